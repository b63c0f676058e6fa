"""Questions on lesson 02: continuous batching with slots."""

import random

from lessons_lib.assessment.question import Asked, Redraw, asked, bug, design, item
from lessons_lib.assessment.runs import drawn_prompts, recorded
from lessons_lib.batching.continuous_batching import batch_generate
from lessons_lib.batching.slot_cache import cache_mask
from lessons_lib.batching.static_batching import wave_steps
from lessons_lib.measuring import request_times
from lessons_lib.viz.timelines import draw_timeline


@item("02", "picture", "The idea")
def queue_time_in_picture(draw: random.Random) -> Asked:
    prompts, answers = [draw.randint(2, 4) for _ in range(4)], draw.sample(range(2, 9), 4)
    run = recorded(batch_generate, drawn_prompts(draw, prompts), answers, batch_size=2, max_seq_len=16, prefill_step=4)
    times = request_times(run.trace, in_steps=True)
    slot = int(times["D"].admitted)
    return asked(
        "Four requests, two slots, continuous batching. In which step does D get its slot?",
        (slot + 1, "In the step after the one in which a request ahead of it got its last token."),
        [
            (slot, "In that step the slot is still needed: the request that leaves gets its last token."),
            (int(max(times[name].done for name in "ABC")) + 1, "D takes the first slot that is free. It doesn't wait "
             "for all of the others."),
            (slot + 2, "A slot is released and assigned again at the start of the same step."),
            (int(times["C"].admitted) + 1, "That is when C gets its slot."),
            (1, "There are two slots, and A and B take them."),
        ],
        lambda: draw_timeline(run.trace, title="Four requests in two slots"),
    )  # fmt: skip


@item("02", "compute", "Build 2: one chunk of a prompt")
def steps_of_prefill(draw: random.Random) -> Asked:
    step, chunks = draw.choice((16, 32, 64)), draw.randint(2, 5)
    prompt = step * chunks + draw.randint(1, step - 1)
    return asked(
        f"`prefill_step` is {step}. A prompt of {prompt} tokens is the only one that prefills. How many steps does its "
        "prefill take, and how many tokens does the last chunk have?",
        (f"{-(-prompt // step)} and {prompt % step}", "Full chunks first, and the rest in one more step."),
        [
            (f"{prompt // step} and {step}", "The tokens after the last full chunk need a step, too."),
            (f"{-(-prompt // step)} and {step}", "A chunk isn't padded: the last one has what is left."),
            (f"{-(-prompt // step) + 1} and {prompt % step}", "The last chunk also gives the first new token. "
             "There is no step between."),
        ],
    )  # fmt: skip


@item("02", "compute", "Build 1: a mask for every row")
def keys_seen_by_a_chunk(draw: random.Random) -> Asked:
    start, count = draw.randint(8, 60), draw.randint(3, 8)
    import torch

    mask = cache_mask(torch.arange(start, start + count)[None], num_keys=start + count)
    right = int(mask.sum())
    return asked(
        f"A chunk of {count} prompt tokens begins at position {start}. How many pairs of a query and a key does its "
        "mask allow?",
        (right, "The token at position p sees p + 1 columns: all earlier ones and its own."),
        [
            (right - count, "Each token sees its own key, too: `column <= position`."),
            (count * (start + count), "Within the chunk, a token must not see the later ones."),
            (count * (count + 1) // 2, "The earlier chunks are in the cache, and these tokens see all of them."),
        ],
    )


@item("02", "compute", "Measure")
def steps_saved(draw: random.Random) -> Asked:
    answers = draw.sample(range(4, 40), 4)
    slots = [0, 0]
    for answer in answers:
        first = slots.index(min(slots))
        slots[first] += answer
    static, continuous = max(end for _, _, end in wave_steps(answers, 2)), max(slots)
    if static == continuous:
        raise Redraw
    return asked(
        f"Four requests want {', '.join(map(str, answers))} tokens, in this order. Assume that a prefill gives the "
        "first token in the step in which the request gets its slot, for any number of requests. How many steps do two "
        "slots save with continuous batching, compared with waves of two?",
        (static - continuous, f"{static} steps in waves, {continuous} with slots: the next request takes the slot that "
         "is free first."),
        [
            (static - -(-sum(answers) // 2), "That assumes that both slots are busy until the end."),
            (static - max(answers), "There are two slots for four requests, so some follow one another."),
            (static, "That is how long the waves take."),
            (continuous, "That is how long the slots take."),
            (sum(answers) - continuous, "That compares with one request at a time."),
        ],
    )  # fmt: skip


ITEMS = [
    queue_time_in_picture,
    steps_of_prefill,
    keys_seen_by_a_chunk,
    steps_saved,
    bug(
        "02", "Build 2: one chunk of a prompt", "next_chunk",
        task="`advance` computes the next chunk of a prompt. `forward(chunk, positions)` writes keys and values and "
        "returns a token. The request gets a token only when its prompt is done.",
        code="""
def advance(request, size):
    prompt = request["prompt"]
    start = request["computed"]
    chunk = prompt[start : start + size]
    end = start + len(chunk)
    positions = list(range(start, end))
    token = forward(chunk, positions)
    request["computed"] = end
    if end == len(prompt):
        request["output"].append(token)
""",
        line=6, wrong="positions = list(range(len(chunk)))",
        why="Positions count from the start of the sequence. From 0, each chunk would overwrite the first one's keys.",
        innocent={
            4: "A slice past the end is short, so the last chunk has what is left.",
            5: "The last chunk may be shorter than `size`, so its own length counts.",
            9: "After any other chunk the token predicts what the prompt already says.",
        },
        setup="""
seen = []
def forward(chunk, positions):
    seen.append((chunk, positions))
    return 99
""",
        trial="""
request = {"prompt": [1, 2, 3, 4, 5], "computed": 0, "output": []}
for _ in range(3):
    advance(request, 2)
assert seen == [([1, 2], [0, 1]), ([3, 4], [2, 3]), ([5], [4])]
assert request["output"] == [99] and request["computed"] == 5
""",
    ),
    bug(
        "02", "Build 3: the step", "order_of_a_step",
        task="`step` is one step of continuous batching.",
        code="""
def step(waiting, running, free):
    for slot in sorted(running):
        if not running[slot]["left"]:
            del running[slot]
            free.append(slot)
    while waiting and free:
        slot = free.pop()
        running[slot] = waiting.popleft()
    for request in running.values():
        request["left"] -= 1
""",
        line=6, wrong="if waiting and free:",
        why="At most one request would be admitted in a step, and other slots stay empty although requests wait. "
        "`while waiting and free:` fills every slot in every step.",
        innocent={
            3: "A request that got its last token in the step before leaves at the start of this one.",
            8: "The queue is served from the front: first come, first served.",
            9: "Requests that were admitted in this step are running, too.",
        },
        setup="from collections import deque",
        trial="""
waiting = deque({"name": name, "left": left} for name, left in zip("ABC", (3, 1, 2)))
running, free = {}, [1, 0]
step(waiting, running, free)
assert {slot: one["name"] for slot, one in running.items()} == {0: "A", 1: "B"}
step(waiting, running, free)
assert {slot: one["name"] for slot, one in running.items()} == {0: "A", 1: "C"} and not waiting
""",
    ),
    design(
        "02", "Measure", "choose_prefill_step",
        "Users of a voice assistant notice every gap of more than 100 ms between two tokens. Prompts have up to 4,000 "
        "tokens. How do you choose `prefill_step`?",
        ("So that a step takes less than 100 ms with its chunk", "Every step computes at most one chunk besides "
         "the decodes, so the chunk bounds the gap."),
        ("So that the longest prompt fits, and prefill takes one step", "Then a prompt of 4,000 tokens makes all "
         "others wait for its whole prefill."),
        ("So that prompts take as many steps as answers do on average", "The gap depends on what a single step "
         "computes, not on how many steps there are."),
        ("So that one chunk by itself takes just under 100 ms on this GPU", "A step computes the decodes as well, so "
         "the gap is longer than the chunk alone."),
    ),
    design(
        "02", "Slots, and the cache: one row per slot", "slots_or_room",
        "A batch has 8 slots of 2,048 tokens. Measured: requests need 300 tokens on average, one in a thousand needs "
        "2,000, and the queue is long. Memory is full. What does the dense cache of this lesson allow?",
        ("More slots only if each has less room, so long requests are refused", "Every slot reserves the same room. "
         "Blocks, in lesson 03, end that trade."),
        ("More slots of the same room, because most of the rows are empty", "Empty or not, a row's memory is "
         "reserved. It's full at 8 slots."),
        ("Short rows for short requests and one long row for the others", "The cache is one rectangle: all rows have "
         "the same length."),
        ("A long request that continues in the unused end of another row", "A row belongs to one request, and the "
         "mask takes columns as positions."),
    ),
]  # fmt: skip
