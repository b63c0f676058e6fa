"""Questions on lesson 16: one model on two GPUs."""

import random

import torch

from lessons_lib.assessment.question import Asked, Redraw, asked, bug, design, item
from lessons_lib.recording.all_reduce_steps import record_all_reduce
from lessons_lib.serving.all_reduce import all_reduce
from lessons_lib.serving.tensor_parallel import cut_linear
from lessons_lib.viz.replicas import draw_all_reduce


@item("16", "picture", "Build 2: the sum over all workers")
def ring_in_picture(draw: random.Random) -> Asked:
    workers = draw.choice((4, 5))
    steps = record_all_reduce(all_reduce, workers)
    part, rank = draw.randrange(workers), draw.randrange(workers)
    sizes = [len(step.holds[rank][part]) for step in steps]
    right = sizes.index(workers)
    first = next(step for step, size in enumerate(sizes) if size > 1)
    if right == workers - 1:
        raise Redraw
    return asked(
        f"The first step of a ring all-reduce of {workers} workers. After which step does worker {rank} have the "
        f"complete sum of part {part}?",
        (f"step {right}", f"In the first {workers - 1} steps the part is added up on its way once round the ring, and "
         f"ends at worker {(part - 1) % workers}. From there the complete sum goes round, one worker per step."),
        [
            (f"step {first}", f"The part comes by then, but with the tensors of only {sizes[first]} workers."),
            (f"step {workers - 1}", f"Then it's complete, but at worker {(part - 1) % workers} only."),
            (f"step {2 * (workers - 1)}", "That is the last step of all. This worker gets this part earlier."),
            (f"step {workers}", f"Then it's complete at workers {(part - 1) % workers} and {part}."),
        ],
        lambda: draw_all_reduce(steps[:2]),
    )  # fmt: skip


@item("16", "compute", "Build 2: the sum over all workers")
def bytes_of_a_ring(draw: random.Random) -> Asked:
    workers = draw.choice((2, 4, 8))
    kib = workers * draw.choice((16, 32, 64, 128))
    right = 2 * (workers - 1) * kib // workers
    return asked(
        f"{workers} workers add up tensors of {kib} KiB with a ring all-reduce. How many KiB does each worker send, "
        f"and "
        "in how many messages?",
        (f"{right} and {2 * (workers - 1)}", "Reduce-scatter and all-gather: N - 1 messages each, of an Nth of the "
         "tensor."),
        [
            (f"{right // 2} and {workers - 1}", "That is the reduce-scatter: then each worker has one part of the sum "
             "only."),
            (f"{(workers - 1) * kib} and {workers - 1}", "Sending the whole tensor to all others takes more bytes than "
             "a ring."),
            (f"{2 * kib} and {2 * workers}", "A worker doesn't send a part to itself: N - 1 messages each."),
            (f"{kib} and 1", "One message is enough only if another worker does all the adding."),
        ],
    )  # fmt: skip


@item("16", "compute", "Build 1: the two cuts")
def shape_of_a_cut(draw: random.Random) -> Asked:
    world, outputs, inputs = draw.choice((2, 4)), 64 * draw.randint(2, 6), 64 * draw.randint(7, 12)
    cut = draw.choice(("colwise", "rowwise"))
    rank = draw.randrange(1, world)
    weight, bias = cut_linear(torch.zeros(outputs, inputs), torch.zeros(outputs), cut, rank, world)
    rows, columns = weight.shape
    own = "none" if bias is None else str(len(bias))
    full = {"colwise": (outputs // world, inputs), "rowwise": (outputs, inputs // world)}
    other = full["rowwise" if cut == "colwise" else "colwise"]
    return asked(
        f"A linear layer's weight is [outputs, inputs] = [{outputs}, {inputs}], with a bias. It is cut {cut} over "
        f"{world} processes. Each adds the bias that it has to its part"
        f"{'' if cut == 'colwise' else ', and the parts are then summed'}. What does process {rank} get: the shape of "
        "its weight, and how many elements of the bias?",
        (f"[{rows}, {columns}] and {own}", "Colwise divides the outputs, and each has its bias. Rowwise divides the "
         "inputs; the bias is added once, by process 0."),
        [
            (f"[{other[0]}, {other[1]}] and {own}", "The weight is stored as [outputs, inputs]: a column of the "
             "formula x @ W is a row of this tensor."),
            (f"[{rows}, {columns}] and {outputs if cut == 'rowwise' else 'none'}", "With a row cut, a bias in every "
             "process would be added several times; with a column cut, each output needs its own."),
            (f"[{other[0]}, {other[1]}] and {outputs}", "That is the other cut, with a bias that is added too often."),
            (f"[{outputs}, {inputs}] and {outputs}", "That is the whole layer: a replica."),
        ],
    )  # fmt: skip


@item("16", "compute", "Two replicas, or one model on two GPUs?")
def memory_per_gpu(draw: random.Random) -> Asked:
    billions, gpus, size = draw.choice((14, 20, 24, 28, 32)), draw.choice((2, 4)), 80
    weights = 2 * billions
    room = size - weights
    right = (gpus * size - weights) / room  # each GPU: (size - weights / gpus) GB, and 1 / gpus of a token's bytes
    return asked(
        f"A model of {billions} billion parameters in bfloat16 has {2 * gpus} KV heads. On one GPU of {size} GB, what "
        f"the weights leave is for the cache. Now the model is cut over {gpus} such GPUs, as in lesson 16; count all "
        "weights as cut. How many times as many tokens can be cached?",
        (f"{right:.2f}", f"Each GPU has {size} - {weights // gpus} GB instead of {room} GB. And a token takes 1/{gpus} "
         "of the bytes on each, as a GPU holds its own KV heads only."),
        [
            (f"{(size - weights / gpus) / room:.2f}", "A token takes fewer bytes on each GPU, too: those of its own KV "
             "heads."),
            (f"{gpus:.2f}", f"That would be {gpus} replicas. Here the weights are stored only once, and leave more "
             "room."),
            (f"{gpus * gpus:.2f}", "The room on each GPU grows by what the weights of the others took, not by the "
             f"factor {gpus}."),
            (f"{1:.2f}", "All GPUs cache the same tokens, but each a part of them, and each has more room."),
        ],
    )  # fmt: skip


ITEMS = [
    ring_in_picture,
    bytes_of_a_ring,
    shape_of_a_cut,
    memory_per_gpu,
    bug(
        "16", "Build 1: the two cuts", "mlp_in_two_parts",
        task="Process `rank` of `world` computes an MLP with gate together with the others; `add_up` returns the sum "
        "over all of them. In `gate_up` [2 * inner, inputs] are the rows of gate, then those of up; `down` is "
        "[outputs, inner].",
        code="""
def mlp(x, gate_up, down, rank, world, add_up):
    size = down.shape[1] // world
    start = rank * size
    rows = gate_up.unflatten(0, (2, world, -1))[:, rank].flatten(0, 1)
    columns = down[:, start : start + size]
    gate, up = (x @ rows.T).chunk(2, dim=-1)
    inner = torch.nn.functional.silu(gate) * up
    return add_up(inner @ columns.T)
""",
        line=4, wrong="rows = gate_up.unflatten(0, (world, -1))[rank]",
        why="Equal parts of the joined matrix give the first processes all of gate, and the last ones all of up. Each "
        "needs its share of both, for the same inner elements.",
        innocent={
            5: "These columns belong to the inner elements of this process, so it needs no others.",
            7: "An inner element is computed by one process alone, so it needs no sum before silu or the product.",
            8: "Each process has a part of every output. One sum at the end is enough.",
        },
        setup="import torch",
        trial="""
torch.manual_seed(0)
x, gate, up, down = torch.randn(3, 4), torch.randn(8, 4), torch.randn(8, 4), torch.randn(5, 8)
whole = (torch.nn.functional.silu(x @ gate.T) * (x @ up.T)) @ down.T
parts = [mlp(x, torch.cat([gate, up]), down, rank, 2, lambda part: part) for rank in range(2)]
assert torch.allclose(sum(parts), whole, atol=1e-5)
""",
    ),
    bug(
        "16", "Build 2: the sum over all workers", "one_step_of_a_ring",
        task="`reduce_scatter` simulates the first half of a ring all-reduce: `parts[rank][i]` is part i of a worker's "
        "numbers. Afterwards each worker has one complete sum.",
        code="""
def reduce_scatter(parts):
    world = len(parts)
    for step in range(world - 1):
        sent = {}
        for rank in range(world):
            index = (rank - step) % world
            sent[(rank + 1) % world] = index, parts[rank][index]
        for rank, (index, value) in sent.items():
            parts[rank][index] += value
    return [parts[rank][(rank + 1) % world] for rank in range(world)]
""",
        line=6, wrong="index = (rank + step) % world",
        why="A worker has to pass on the part that it has just added to: the one it received, one index lower.",
        innocent={
            3: "A part needs N - 1 additions to contain the numbers of N workers.",
            7: "Each worker sends to its right neighbor, all at the same time.",
            10: "The part that a worker received last is the complete one.",
        },
        trial="""
assert reduce_scatter([[1, 2, 3], [10, 20, 30], [100, 200, 300]]) == [222, 333, 111]
""",
    ),
    design(
        "16", "Two replicas, or one model on two GPUs?", "small_model_one_reader",
        "A model has 32 layers and weights of 2 GB. One GPU reads them in 1 ms, and a decode step of a single user "
        "takes about that long. A sum over two GPUs takes 0.02 ms, however little is summed. How long does the step "
        "take with the model cut over both, by columns and then rows?",
        ("About 1.8 ms: slower than on one of the two GPUs", "Each reads half: 0.5 ms. Each layer needs two sums, one "
         "for attention and one for the MLP: 64 × 0.02 ms = 1.28 ms."),
        ("About 1.1 ms: hardly another time than on one GPU", "That is with one sum per layer. Attention and MLP need "
         "one each."),
        ("About 0.5 ms: nearly twice as fast as on one GPU", "That is with a single sum for the whole step. Each "
         "layer needs two."),
        ("About 2.3 ms: the sums, on top of the full 1 ms", "Each GPU reads only its half of the weights, in 0.5 ms."),
    ),
]  # fmt: skip
