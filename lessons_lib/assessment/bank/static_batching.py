"""Questions on lesson 01: static batching."""

import random

from lessons_lib.assessment.question import Asked, Redraw, asked, bug, design, item
from lessons_lib.assessment.runs import drawn_prompts, recorded
from lessons_lib.batching.static_batching import pad_left, static_generate, wave_steps
from lessons_lib.viz.timelines import draw_timeline


@item("01", "picture", "Answers of unequal length: the batch barrier")
def longer_answer_in_picture(draw: random.Random) -> Asked:
    lengths = draw.sample(range(2, 11), 4)
    prompts = drawn_prompts(draw, [3, 3, 3, 3])
    end = max(lengths)
    early = draw.choice([index for index in range(4) if lengths[index] <= end - 2])
    over = draw.randint(1, 3)
    more = end - lengths[early] + over
    longer = [length + more * (index == early) for index, length in enumerate(lengths)]
    run, other = (recorded(static_generate, prompts, each, batch_size=4) for each in (lengths, longer))
    computed = [sum(step.tokens_computed for step in each.trace.steps) for each in (run, other)]
    return asked(
        f"One wave of four requests. Suppose that the answer of {'ABCD'[early]} had {more} more tokens. How many more "
        "token positions would the wave compute?",
        (computed[1] - computed[0], f"Until the wave's end the row of {'ABCD'[early]} is computed anyway. After it, "
         f"{over} more steps compute all four rows."),
        [
            (more, "Its row is computed until the wave's end in any case, and beyond it the other rows are, too."),
            (over, "The steps beyond the wave's end compute all four rows, not this one alone."),
            (4 * more, "The wave gets longer only where the answer goes beyond its end."),
            (0, "The answer would end after the one that is longest now."),
        ],
        lambda: draw_timeline(run.trace, title="One wave"),
    )  # fmt: skip


@item("01", "compute", "Build: the loop")
def computed_cells(draw: random.Random) -> Asked:
    prompts, answers = draw.sample(range(4, 20), 3), draw.sample(range(3, 12), 3)
    _, mask = pad_left([[1] * length for length in prompts], 0)
    computed = mask.numel() + len(prompts) * (max(answers) - 1)
    told = [f"{prompt} and {answer}" for prompt, answer in zip(prompts, answers)]
    both = [prompt + answer for prompt, answer in zip(prompts, answers)]
    return asked(
        f"One wave of three requests; their prompts and answers have {', '.join(told)} tokens. How many token "
        "positions does the wave compute in all?",
        (computed, "Three rows as long as the longest prompt, and three rows for each decode step. The prefill gives "
         "the first token of each answer, so there is one decode step fewer than the longest answer has tokens."),
        [
            (computed + 3, "The last token of an answer is chosen but never fed."),
            (sum(both) - 3, "That is what the requests need. Padding and finished rows are computed, too."),
            (3 * (max(both) - 1), "Prompts and answers are padded each on their own: all answers begin in the same "
             "column."),
            (mask.numel() + sum(answers) - 3, "A row whose answer is done is computed until the end of the wave."),
        ],
    )  # fmt: skip


@item("01", "compute", "Answers of unequal length: the batch barrier")
def latency_in_waves(draw: random.Random) -> Asked:
    answers, size = [draw.randint(5, 60) for _ in range(6)], draw.choice((2, 3))
    who = draw.randint(size, 5)
    start, done, returned = wave_steps(answers, size)[who]
    if done == returned:  # it's the longest of its wave, so nothing holds it back
        raise Redraw
    return asked(
        f"Six requests A to F want {', '.join(map(str, answers))} tokens. They all wait at step 0 and are served in "
        f"waves of {size}. After how many steps is the answer of {'ABCDEF'[who]} returned?",
        (returned, "Each wave takes as long as its longest answer, and the waves follow one another."),
        [
            (done, "That is its last token. The answer is held back until its whole wave is done."),
            (start, "That is when its wave begins."),
            (sum(answers[: who + 1]), "That is serving one request at a time."),
            (returned - start, "That is the length of its wave alone, without the waves before."),
            (max(answers), "The longest of all answers; but the waves follow one another."),
        ],
    )


ITEMS = [
    longer_answer_in_picture,
    computed_cells,
    latency_in_waves,
    bug(
        "01", "Prompts of unequal length: padding", "pad_and_mask",
        task="`pad` makes a rectangle of prompts, the mask of real tokens (1), and the positions. As in GPT-2, "
        "`pad_id` is the id of the end token.",
        code="""
def pad(prompts, pad_id):
    width = max(map(len, prompts))
    ids, mask, positions = [], [], []
    for prompt in prompts:
        gap = width - len(prompt)
        row = [pad_id] * gap + prompt
        is_real = [int(column >= gap) for column in range(width)]
        ids.append(row)
        mask.append(is_real)
        positions.append([max(0, column - gap) for column in range(width)])
    return ids, mask, positions
""",
        line=7, wrong="is_real = [int(token != pad_id) for token in row]",
        why="A prompt may contain this token, for example between two texts, and it is real there. What is padding "
        "follows from the lengths, not from the ids: then any id will do.",
        innocent={
            2: "The longest prompt sets the width, so its own row has no padding.",
            6: "Padding is on the left, so that the last column holds each row's newest token.",
            10: "The first real token has position 0. Padding may have any valid position: nothing reads its results.",
        },
        trial="""
ids, mask, positions = pad([[5, 0, 6], [7, 8, 9, 1]], 0)
assert ids == [[0, 5, 0, 6], [7, 8, 9, 1]] and mask == [[0, 1, 1, 1], [1, 1, 1, 1]]
assert positions == [[0, 0, 1, 2], [0, 1, 2, 3]]
""",
    ),
    bug(
        "01", "Build: the loop", "positions_of_all_waves",
        task="`computed` returns how many token positions static batching computes until all answers are complete. "
        "`prompts` and `limits` are the lengths of the prompts and of the answers.",
        code="""
def computed(prompts, limits, size):
    total = 0
    for first in range(0, len(prompts), size):
        last = first + size
        wave = prompts[first:last]
        rows = len(wave)
        total += rows * max(wave)
        longest = max(limits[first:last])
        total += rows * (longest - 1)
    return total
""",
        line=9, wrong="total += rows * longest",
        why="The prefill gives the first token of each answer, and the last one is never fed. So there is one decode "
        "step fewer than the longest answer has tokens.",
        innocent={
            6: "The last wave may have fewer rows than `size`, and then the rectangle is smaller.",
            7: "The prefill is a rectangle: padding is computed like real tokens.",
            8: "All rows are computed until the longest answer of the wave is done.",
        },
        trial="""
assert computed([4, 2, 5], [3, 1, 1], 2) == 2 * 4 + 2 * 2 + 5
""",
    ),
    design(
        "01", "Build: the loop", "sort_the_queue",
        "A nightly job runs 10,000 prompts through static batching in waves of 16. Prompts have 100 to 8,000 tokens, "
        "answers 10 to 400, and the two are unrelated. The lengths of both are known. A prefill takes up to 2 s, and a "
        "decode step 30 ms. Which order saves the most time?",
        ("By answer length, shortest answers first", "A wave with one answer of 400 tokens decodes for 12 s, whatever "
         "its other answers are. Padded prompts cost it 2 s at most."),
        ("By prompt length, with the shortest prompts first", "It saves most of the padding, but that is a part of one "
         "prefill per wave, of 2 s. Nearly every wave still decodes for 12 s."),
        ("By the sum of both, with the shortest sums first", "Prompts dominate the sum, so answers of a wave are as "
         "unequal as before."),
        ("Mixed, so that each wave has long and short ones", "Then every wave takes as long as a long prompt and a "
         "long answer."),
    ),
    design(
        "01", "What is still wrong", "larger_waves",
        "A chat service with static batching fills all of its waves. At random, nine of ten answers have 50 tokens, "
        "and one has 500. A step takes 20 ms with waves of 8, and 26 ms with waves of 32. How does the mean time from "
        "a wave's start to the return of a short answer change with waves of 32?",
        ("It doubles: nearly every wave has a long answer", "A short answer waits for a long one in half of the waves "
         "of 8 (1 - 0.9⁷), and in 96% of the waves of 32: about 5.7 s and 12.6 s."),
        ("It grows by 30%: a step takes 26 ms, and not 20 ms any more", "The steps are 30% longer, and there are more "
         "of them: a wave lasts as long as its longest answer."),
        ("It stays: 50 tokens take 50 steps in a wave of any size", "The answer is complete after 50 steps, and it is "
         "held back until its wave is done."),
        ("It falls to a third: each step serves four times the users", "That is about the tokens per second. Here, the "
         "wave has begun already."),
    ),
]  # fmt: skip
