"""Questions on lesson 13: the engine on a GPU."""

import random

import torch

from lessons_lib.assessment.question import Asked, asked, bug, design, item
from lessons_lib.attention.custom_op import replace_placeholders


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


ITEMS = [
    after_placeholders,
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
