"""Questions on lesson 13: the engine on a GPU."""

import random

import torch

from lessons_lib.assessment.question import Asked, Redraw, asked, bug, design, item
from lessons_lib.attention.custom_op import replace_placeholders
from lessons_lib.measuring import largest_that_fits, least_padding, padding, tokens_of_steps
from lessons_lib.viz.charts import draw_bars


@item("13", "picture", "Steps with prompts")
def padding_in_picture(draw: random.Random) -> Asked:
    lengths = [(draw.randint(3, 9), draw.randint(2, 5)) for _ in range(14)]
    histogram = tokens_of_steps(lengths, max_num_seqs=4, max_tokens=16)
    if not 3 <= len(histogram) <= 6 or len(set(histogram.values())) < 3:  # so that the bars tell something
        raise Redraw
    sizes = draw.choice(([6, 12], [8, 12], [8, 14]))
    captured = {tokens: count for tokens, count in histogram.items() if tokens <= sizes[1]}
    if len(captured) in (0, len(histogram)) or not any(tokens <= sizes[0] for tokens in captured):
        raise Redraw
    right = padding(captured, sizes)
    bars = {f"{tokens} tokens": float(count) for tokens, count in sorted(histogram.items())}
    return asked(
        f"A simulated run had these steps with prompts. Its engine has captured graphs for {sizes[0]} and {sizes[1]} "
        "tokens. How many tokens of padding does it compute in all?",
        (
            right,
            "A step is padded to the smallest captured size that has room for it. One that is larger than all of "
            "them runs without a graph, and needs no padding.",
        ),
        [
            (
                padding(histogram, [*sizes, 2 * sizes[1]]),
                "Steps that no graph has room for are launched kernel by "
                "kernel, as they are. They aren't padded to two graphs' size.",
            ),
            (padding(histogram, [*sizes, 16]), "There is no graph of 16 tokens, so larger steps aren't padded."),
            (padding(captured, sizes[1:]), "Steps that fit the smaller size are padded to that one."),
            (padding(dict.fromkeys(captured, 1), sizes), "A bar's length says how many such steps there were."),
        ],
        lambda: draw_bars(bars, "×", title="How many steps have so many tokens"),
    )


@item("13", "compute", "Steps with prompts")
def best_sizes(draw: random.Random) -> Asked:
    counts = draw.sample(range(10, 60), 4)
    histogram = {count: draw.randint(1, 30) for count in sorted(counts)}
    ordered = sorted(histogram)
    right = least_padding(histogram, 2)
    others = [[size, ordered[-1]] for size in ordered[:-1] if [size, ordered[-1]] != right]
    if any(padding(histogram, other) == padding(histogram, right) for other in others):
        raise Redraw
    told = ", ".join(f"{steps} of {count}" for count, steps in histogram.items())
    return asked(
        f"A workload has these steps, as number and tokens: {told} tokens. You may capture two sizes, and "
        "each step must fit into one. Which have the least padding?",
        (right, f"{padding(histogram, right)} tokens of padding in all."),
        [(other, f"{padding(histogram, other):,} tokens of padding: more than {padding(histogram, right):,}.")
         for other in others]
        + [(ordered[:2], f"Steps of {ordered[-1]} tokens would have no size that has room for them.")],
    )  # fmt: skip


@item("13", "compute", "Build: tokens that aren't known yet")
def after_placeholders(draw: random.Random) -> Asked:
    previous = [draw.randint(10, 90) for _ in range(3)]
    rows = draw.sample(range(3), 2)
    known = draw.randint(10, 90)
    ids = [-1 - rows[0], known, -1 - rows[1]]
    right = replace_placeholders(torch.tensor(ids), torch.tensor(previous)).tolist()
    return asked(
        f"The step in flight produces the tokens {previous}. The next step was launched with the input ids {ids}. What "
        "does the GPU replace them by?",
        (right, "-1 - row stands for the token of that row of the previous step; known ids stay."),
        [
            ([previous[0], known, previous[1]], "The placeholder says which row: they needn't be in order."),
            ([previous[ids[0] % 3], known, previous[ids[2] % 3]], "-1 is row 0: the index is -1 - id, not the id "
             "itself, counted from the end."),
            ([previous[(rows[0] + 1) % 3], known, previous[(rows[1] + 1) % 3]], "Rows count from 0: that takes the "
             "row after the one that is meant."),
            (previous, "The id in the middle isn't negative, so it's a known token."),
        ],
    )  # fmt: skip


@item("13", "compute", "Further (optional)")
def trials_of_a_search(draw: random.Random) -> Asked:
    most, limit = draw.choice((100, 200, 300)), 0
    limit = draw.randint(20, most - 20)
    tried: list[int] = []

    def fits(size: int) -> bool:
        tried.append(size)
        return size <= limit

    found = largest_that_fits(fits, most)
    if tried[2] == tried[1]:
        raise Redraw
    return asked(
        f"`largest_that_fits` searches by halving, from 1 to {most}. The largest batch that fits is {found}. Which "
        f"sizes "
        "does it try first?",
        (tried[:3], "Always the middle between the largest known to fit and the smallest known not to."),
        [
            ([1, 2, 4], "That is doubling, which is for searches without an upper end."),
            ([most, most - 1, most - 2], "From the top it could take hundreds of trials."),
            ([tried[0], tried[0] // 2 if tried[1] > tried[0] else (tried[0] + most + 1) // 2, tried[2]],
             f"{tried[0]} {'fits' if tried[0] <= limit else 'does not fit'}, so the search goes on in the other half."),
        ],
    )  # fmt: skip


ITEMS = [
    padding_in_picture,
    best_sizes,
    after_placeholders,
    trials_of_a_search,
    bug(
        "13", "Build: graphs that are never stale", "stale_graphs",
        task="`run` replays the graph that was captured for a size. If that graph can't be used any more, it captures "
        "a new one.",
        code="""
def run(store, size, tensors, settings, capture):
    key = (tuple(tensor.data_ptr() for tensor in tensors), settings)
    graph = store.get(size)
    if graph is None or graph["key"] != key:
        replay = capture(size)
        graph = {"key": key, "keeps": list(tensors), "replay": replay}
        store[size] = graph
    return graph["replay"]()
""",
        line=2, wrong="key = (tuple(tensor.shape for tensor in tensors), settings)",
        why="A graph reads the addresses of its capture. A new tensor of the same shape would be ignored.",
        innocent={
            4: "There is no graph for this size, or it belongs to other tensors or settings.",
            6: "Keeping the tensors keeps their memory from being given to others while the graph may read it.",
            8: "A replay runs the captured kernels on what is in the tensors now.",
        },
        setup="import torch",
        trial="""
captured = []
def capture(size):
    captured.append(size)
    return lambda: len(captured)
store, one, other = {}, torch.zeros(4), torch.zeros(4)
assert [run(store, 8, [tensor], "bf16", capture) for tensor in (one, one, other)] == [1, 1, 2]
""",
    ),
    bug(
        "13", "Build: tokens that aren't known yet", "placeholders_of_a_step",
        task="`next_inputs` gives the input of the next step's decodes while the previous step is still in "
        "flight. `rows` says in which row of that step a sequence is. Where its token isn't known yet, a negative id "
        "names the row.",
        code="""
def next_inputs(decodes, rows):
    inputs = [0] * len(decodes)
    for row, sequence in enumerate(decodes):
        index = sequence.num_computed_tokens
        tokens = sequence.token_ids
        if index < len(tokens):
            inputs[row] = tokens[index]
        else:
            assert sequence.id in rows
            inputs[row] = -1 - rows[sequence.id]
    return inputs
""",
        line=10, wrong="inputs[row] = -1 - row",
        why="`row` is the sequence's row in the next step. The token comes from its row in the step in flight, "
        "`rows[sequence.id]`. They differ as soon as a sequence ends or is preempted.",
        innocent={
            4: "The step in flight counts as computed already, so this is the first token that has yet to be fed.",
            6: "A sequence that wasn't in the step in flight knows its token already.",
            9: "A token that isn't known yet can only come from the step in flight.",
        },
        setup="from types import SimpleNamespace",
        trial="""
one = SimpleNamespace(id="A", num_computed_tokens=3, token_ids=[5, 6, 7])
two = SimpleNamespace(id="B", num_computed_tokens=2, token_ids=[5, 6, 9])
assert next_inputs([one, two], {"A": 0}) == [-1, 9]
assert next_inputs([two, one], {"A": 2}) == [9, -3]
""",
    ),
    design(
        "13", "Optional: drawing on the device", "no_waiting",
        "A profile of overlapped steps shows a gap: once per step the CPU stands still until the GPU is done, in the "
        "sampling code. Which line of it is the cause?",
        ("`if temperature.max() > 0:`", "Python needs the value to decide, so it waits for the GPU."),
        ("`scaled = logits / temperature[:, None]`", "It only queues an operation on the GPU."),
        ("`tokens = scores.argmax(dim=-1)`", "The result stays on the GPU. Nothing reads it yet."),
        ("`torch.where(is_greedy, best, drawn)`", "Both are computed, and chosen on the GPU, without waiting."),
    ),
    design(
        "13", "The idea", "what_to_speed_up",
        "The CPU schedules a step in 2 ms, then launches its kernels one by one for 4 ms. They take 2.5 ms on the GPU, "
        "and the last one ends with the last launch: 6 ms. With a graph, launching takes next to no time. What do "
        "graphs and overlapped steps bring?",
        ("Overlap alone: 6 ms as before; with graphs as well: 2.5 ms", "Without graphs the CPU has 6 ms of work in "
         "each step, whatever the GPU does meanwhile. With them it has 2 ms, and the GPU's 2.5 ms hide those."),
        ("Overlap alone: 4 ms; with graphs as well: 2.5 ms", "Scheduling and launching are both work of the CPU, so "
         "they can't overlap with each other."),
        ("Graphs alone: 2.5 ms; with overlap as well: the same 2.5 ms", "Without overlap, a step is scheduled when the "
         "last one is done: 2 + 2.5 ms."),
        ("Graphs alone: 4.5 ms; with overlap as well: down to 2 ms", "4.5 ms is right. But the GPU needs 2.5 ms for a "
         "step, and the CPU's 2 ms hide behind them."),
    ),
]  # fmt: skip
