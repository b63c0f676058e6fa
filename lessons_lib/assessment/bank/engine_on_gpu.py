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
    sizes = [8, 16] if draw.random() < 0.5 else [12, 16]
    right = padding(histogram, sizes)
    steps = sum(histogram.values())
    bars = {f"{tokens} tokens": float(count) for tokens, count in sorted(histogram.items())}
    return asked(
        f"A simulated run had these steps with prompts. Steps are padded to captured sizes of {sizes[0]} and "
        f"{sizes[1]} "
        "tokens. How many tokens of padding do they have in all?",
        (right, "Each step is padded to the smallest captured size that has room for it."),
        [
            (padding(histogram, [16]), "Steps that fit the smaller size are padded to that one."),
            (steps * 16 - sum(sizes), "The padding depends on how many tokens each step has."),
            (padding(dict.fromkeys(histogram, 1), sizes), "A bar's length says how many such steps there were."),
            (sum(tokens * count for tokens, count in histogram.items()), "These are the tokens that are needed."),
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
    inputs = []
    for sequence in decodes:
        index = sequence.num_computed_tokens
        tokens = sequence.token_ids
        if index < len(tokens):
            inputs.append(tokens[index])
        else:
            inputs.append(-1 - rows[sequence.id])
    return inputs
""",
        line=9, wrong="inputs.append(-rows[sequence.id])",
        why="Row 0 would be 0, which is a token id. -1 - row is negative for every row.",
        innocent={
            4: "The first token that isn't computed yet is the one to feed.",
            6: "A sequence that wasn't in the step in flight knows its token already.",
            5: "Prompt and answer together, so positions are indices.",
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
        "A step of a 0.5-billion-parameter model takes 6 ms on a fast GPU; a profile shows 1.5 ms of kernels and "
        "short gaps between all of them. What gives the most?",
        ("CUDA graphs of the steps that are run most", "The GPU waits for the CPU three quarters of the time. A graph "
         "removes the launches."),
        ("Faster attention kernels for the same step", "They can shorten only the 1.5 ms in which kernels run."),
        ("Weights in a smaller type, such as int8", "Fewer bytes shorten kernels, too, not the time between them."),
        ("A second GPU with half of the model each", "More launches and a sum in each layer: the gaps get longer."),
    ),
]  # fmt: skip
