"""Questions on lesson 02: continuous batching with slots."""

import random

from lessons_lib.assessment.question import Asked, Redraw, asked, bug, design, item
from lessons_lib.assessment.runs import drawn_prompts, recorded
from lessons_lib.batching.continuous_batching import batch_generate
from lessons_lib.batching.slot_cache import cache_mask
from lessons_lib.batching.static_batching import wave_steps
from lessons_lib.measuring import request_times
from lessons_lib.viz.timelines import draw_timeline


def slots_without_prefill(answers: list[int], count: int) -> tuple[list[int], int]:
    """When requests start and the last one ends if each takes as many steps as its answer has tokens."""
    ends, starts = [0] * count, []
    for answer in answers:
        first = ends.index(min(ends))
        starts.append(ends[first])
        ends[first] += answer
    return starts, max(ends)


@item("02", "picture", "Build 3: the step")
def queue_time_in_picture(draw: random.Random) -> Asked:
    prompts, answers = [draw.randint(2, 4) for _ in range(4)], draw.sample(range(3, 10), 4)
    run = recorded(batch_generate, drawn_prompts(draw, prompts), answers, batch_size=2, max_seq_len=16, prefill_step=4)
    times = request_times(run.trace, in_steps=True)
    slot, naive = int(times["D"].admitted), slots_without_prefill(answers, 2)[0][3]
    if naive == slot:
        raise Redraw
    return asked(
        f"Four requests in two slots, continuous batching; no prompt is longer than a chunk. A, B, C and D get "
        f"{', '.join(map(str, answers))} tokens. The picture shows the first two steps. In which step does D get its "
        "slot?",
        (slot + 1, "One prompt's chunk is computed in a step, so B waits a step for its own. And a slot is given on in "
         "the step after a last token."),
        [
            (naive + 1, "That takes as many steps for a request as its answer has tokens. Prompts that are admitted "
             "together prefill one after another."),
            (slot, "In that step the slot is still needed: the request that leaves gets its last token."),
            (slot + 2, "A slot is released and assigned again at the start of the same step."),
            (int(max(times[name].done for name in "ABC")) + 1, "D takes the first slot that is free. It doesn't wait "
             "for all of the others."),
            (int(times["C"].admitted) + 1, "That is when C gets its slot."),
        ],
        lambda: draw_timeline(run.trace, upto=1, title="Two steps of four requests in two slots"),
    )  # fmt: skip


@item("02", "compute", "Build 2: one chunk of a prompt")
def first_token_of_the_second(draw: random.Random) -> Asked:
    step = draw.choice((16, 32, 64))
    one, two = (step * draw.randint(1, 4) + draw.randint(1, step // 2) for _ in range(2))
    first, second = -(-one // step), -(-two // step)
    return asked(
        f"Two slots are free, no other request runs, and `prefill_step` is {step}. X and Y are admitted in step 1, X "
        f"first. Their prompts have {one} and {two} tokens. In which step of lesson 02's loop does Y get its first "
        "token?",
        (first + second, "One chunk of one prompt is computed in each step: first those of X, then those of Y. A chunk "
         "doesn't mix two prompts, and the last one gives the first token."),
        [
            (-(-(one + two) // step), "The rest of a chunk isn't filled with the next prompt's tokens: a pass over one "
             "row computes one prompt."),
            (second, "Y's chunks wait until X, which was admitted first, has none left."),
            (first + second + 1, "The chunk that completes the prompt gives the first token, in the same step."),
            (2 * max(first, second), "The prompts don't take turns, and the shorter one isn't padded."),
            (first + 1, "Y's prompt has more than one chunk."),
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
def steps_of_a_run(draw: random.Random) -> Asked:
    answers = draw.sample(range(3, 14), 4)
    run = recorded(batch_generate, drawn_prompts(draw, [3] * 4), answers, batch_size=2, max_seq_len=20, prefill_step=4)
    static, naive = max(end for _, _, end in wave_steps(answers, 2)), slots_without_prefill(answers, 2)[1]
    right = len(run.trace.steps)
    if right in (naive, static):
        raise Redraw
    return asked(
        f"Four requests get {', '.join(map(str, answers))} tokens, in this order. Each prompt fits in one chunk. After "
        "how many steps of lesson 02's loop, with two slots, are all of them done?",
        (right, "The next request takes the slot that is free first, and a step computes a chunk of one prompt only: "
         "the second request waits a step for its own."),
        [
            (naive, "That lets both prompts prefill in the first step. A step computes one chunk."),
            (static, "That is in waves of two. A free slot needn't wait for the other one."),
            (-(-sum(answers) // 2), "That assumes that both slots are busy until the end."),
            (right + 2, "The step that computes a prompt's last chunk also gives its first token, and a slot is given "
             "on without an empty step."),
            (sum(answers), "That is one request at a time."),
        ],
    )  # fmt: skip


ITEMS = [
    queue_time_in_picture,
    first_token_of_the_second,
    keys_seen_by_a_chunk,
    steps_of_a_run,
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
        task="`step` is one step of lesson 02's loop. `decode_all` computes a token for each request that decodes, and "
        "`prefill_chunk` the next chunk of one prompt.",
        code="""
def step(waiting, running, free):
    done = [slot for slot in running if running[slot]["state"] == "finished"]
    for slot in done:
        del running[slot]
        free.append(slot)
    while waiting and free:
        slot = free.pop()
        running[slot] = waiting.popleft()
        running[slot]["state"] = "prefilling"
    for work in (decode_all, prefill_chunk):
        work(running)
""",
        line=10, wrong="for work in (prefill_chunk, decode_all):",
        why="The chunk that completes a prompt gives the first token, and then the request decodes. If the decodes "
        "come after it, the request gets a second token in the same step.",
        innocent={
            2: "A request that got its last token in the step before leaves at the start of this one.",
            5: "The slot may be given on at once. Its old keys stay: the mask hides them.",
            9: "A request that is admitted has computed nothing of its prompt yet.",
        },
        setup="""
from collections import deque
def decode_all(running):
    for request in running.values():
        if request["state"] == "decoding":
            add(request)
def prefill_chunk(running):
    for request in running.values():
        if request["state"] == "prefilling":
            request["state"] = "decoding"
            return add(request)
def add(request):
    request["left"] -= 1
    if not request["left"]:
        request["state"] = "finished"
""",
        trial="""
waiting = deque({"name": name, "left": left} for name, left in zip("ABC", (2, 5, 5)))
running, free, seen = {}, [1, 0], []
for _ in range(4):
    step(waiting, running, free)
    seen.append({slot: (one["name"], one["left"]) for slot, one in running.items()})
assert seen[0] == {0: ("A", 1), 1: ("B", 5)} and seen[1] == {0: ("A", 0), 1: ("B", 4)}
assert seen[2] == {0: ("C", 4), 1: ("B", 3)} and seen[3] == {0: ("C", 3), 1: ("B", 2)}
""",
    ),
    design(
        "02", "The cache: one row per slot", "slots_or_room",
        "Memory is full with 8 slots of 2,048 tokens. One request in a thousand needs 2,000 tokens, the others 300. "
        "What can the cache of lesson 02 do for the long queue?",
        ("32 slots of 512 tokens, without the long requests", "Every slot reserves the same room, so more slots are "
         "shorter ones. Blocks, in lesson 03, end that trade."),
        ("7 slots of 2,048 tokens and 4 of 512 for short requests", "The cache is one rectangle, and a pass computes "
         "all of its rows: they have the same length."),
        ("32 slots of 512, and four of them for a long request", "A row belongs to one request, and its columns are "
         "the positions. A request can't go on in another row."),
        ("50 slots of 2,048, as the mask hides what isn't used", "The mask hides columns from queries. Their memory is "
         "reserved all the same."),
    ),
]  # fmt: skip
