"""Questions on lesson 01: static batching."""

import random

from lessons_lib.assessment.question import Asked, asked, bug, design, item
from lessons_lib.assessment.runs import drawn_prompts, recorded
from lessons_lib.batching.static_batching import pad_left, static_generate, wave_steps
from lessons_lib.viz.timelines import draw_timeline


@item("01", "picture", "Answers of unequal length: the batch barrier")
def held_back_in_picture(draw: random.Random) -> Asked:
    lengths = draw.sample(range(2, 13), 4)
    run = recorded(static_generate, drawn_prompts(draw, [3, 3, 3, 3]), lengths, batch_size=4)
    end = max(lengths)
    early = draw.choice([index for index in range(4) if lengths[index] != end])
    done = lengths[early]
    return asked(
        f"One wave of four requests. For how many steps is the finished answer of {'ABCD'[early]} held back, and in "
        "how many of these is its row still computed?",
        (f"{end - done} and {end - done}", "From its last token to the wave's end the row is hatched: computed, and "
         "not needed."),
        [
            (f"{end - done} and 0", "A static batch is a rectangle: every pass computes all of its rows."),
            (f"0 and {end - done}", "No answer leaves before the wave's longest answer is done."),
            (f"{done} and {end - done}", "The first is how long its answer took, not how long it was held back."),
            (f"{end} and {end}", "That is the length of the whole wave."),
        ],
        lambda: draw_timeline(run.trace, title="One wave"),
    )  # fmt: skip


@item("01", "compute", "The cells of a wave")
def wasted_cells(draw: random.Random) -> Asked:
    prompts, answers = draw.sample(range(4, 20), 3), draw.sample(range(3, 12), 3)
    _, mask = pad_left([[1] * length for length in prompts], 0)
    computed = mask.numel() + len(prompts) * (max(answers) - 1)
    useful = int(mask.sum()) + sum(answers) - len(answers)
    told = [f"{prompt} and {answer}" for prompt, answer in zip(prompts, answers)]
    return asked(
        f"One wave of three requests; their prompts and answers have {', '.join(told)} tokens. How many of the token "
        "positions that the wave computes are wasted?",
        (computed - useful, "Padding in the prefill, and the decode steps of rows whose answers are done."),
        [
            (mask.numel() - int(mask.sum()), "That is the padding of the prefill. Finished rows are computed too."),
            (computed - int(mask.sum()) - sum(answers), "Each answer's last token is chosen but never fed, so a "
             "request needs one position fewer than its answer has tokens."),
            (3 * max(answers) - sum(answers), "That is the waste of the decode steps; the prompts are padded too."),
            (computed, "That is everything the wave computes, the useful part included."),
            (useful, "That is what the requests need."),
        ],
    )  # fmt: skip


@item("01", "compute", "Answers of unequal length: the batch barrier")
def latency_in_waves(draw: random.Random) -> Asked:
    answers, size = [draw.randint(5, 60) for _ in range(6)], draw.choice((2, 3))
    who = draw.randint(size, 5)
    start, done, returned = wave_steps(answers, size)[who]
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
    held_back_in_picture,
    wasted_cells,
    latency_in_waves,
    bug(
        "01", "Prompts of unequal length: padding", "pad_and_mask",
        task="`pad` makes a rectangle of prompts with padding on the left, the mask of real tokens (1), and the "
        "positions.",
        code="""
def pad(prompts, pad_id):
    width = max(map(len, prompts))
    ids, mask, positions = [], [], []
    for prompt in prompts:
        gap = width - len(prompt)
        ids.append([pad_id] * gap + prompt)
        mask.append([0] * gap + [1] * len(prompt))
        counted = list(range(len(prompt)))
        positions.append([0] * gap + counted)
    return ids, mask, positions
""",
        line=8, wrong="counted = list(range(gap, width))",
        why="These are columns. The first real token of a row has position 0 however much padding is before it.",
        innocent={
            2: "The longest prompt sets the width, so its own row has no padding.",
            6: "Padding is on the left, so that the last column holds each row's newest token.",
            9: "The positions of padding are never used. They only have to be valid, and 0 is.",
        },
        trial="""
ids, mask, positions = pad([[5, 6], [7, 8, 9]], 0)
assert ids == [[0, 5, 6], [7, 8, 9]] and mask == [[0, 1, 1], [1, 1, 1]]
assert positions == [[0, 0, 1], [0, 1, 2]]
""",
    ),
    bug(
        "01", "Answers of unequal length: the batch barrier", "when_an_answer_returns",
        task="All requests wait at step 0. `latencies` returns after how many steps each of them has its answer, with "
        "static batching of `size` rows. `limits` are the answers' lengths; the prefill gives the first token.",
        code="""
def latencies(limits, size):
    start, found = 0, []
    for first in range(0, len(limits), size):
        wave = limits[first : first + size]
        steps = max(wave)
        for limit in wave:
            found.append(start + steps)
        start += steps
    return found
""",
        line=7, wrong="found.append(start + limit)",
        why="Static batching returns the answers of a wave together, when the longest of them is done.",
        innocent={
            3: "A wave takes the next `size` requests. The last wave may have fewer.",
            5: "The batch is a rectangle: it runs until its longest row is done.",
            8: "The next wave begins when this one has ended, not before.",
        },
        trial="""
assert latencies([20, 30, 40, 60, 5], 4) == [60, 60, 60, 60, 65] and latencies([], 2) == []
""",
    ),
    design(
        "01", "The cells of a wave", "sort_the_queue",
        "A nightly job runs 10,000 prompts through static batching. All are known in advance, and a good guess of "
        "each answer's length is, too. The order of the results doesn't matter. What reduces the time most?",
        ("Waves of requests with similar answer lengths", "The barrier then costs little: rows of a wave finish "
         "at nearly the same step."),
        ("Waves of requests with similar prompt lengths", "It saves padding in one prefill per wave. Unequal "
         "answers waste rows in every decode step."),
        ("Waves that each mix long and short answers", "Every wave then takes as long as a long answer: the worst "
         "case of the barrier."),
        ("Waves in the order in which prompts arrived", "Any order gives right results, and this one ignores what is "
         "known about the lengths."),
    ),
    design(
        "01", "What is still wrong", "larger_waves",
        "Chat users complain about long waits. The server uses static batching in waves of 8, and there is memory for "
        "32. Someone proposes waves of 32. What do users see?",
        ("More tokens per second, but short answers are held back longer", "A wave lasts as long as its "
         "longest answer, and the longest of 32 is rarely shorter than the longest of 8."),
        ("Shorter waits for all users, but fewer tokens per second", "The queue moves faster and more tokens come per "
         "second, but a short answer is held back until the longest of 32 is done."),
        ("No change, because a step computes the same tokens", "A step computes four times as many rows, in less than "
         "four times the time."),
        ("Different answers, because of the additional padding", "With a right mask and positions, padding changes "
         "no answer."),
    ),
]  # fmt: skip
