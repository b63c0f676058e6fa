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
    workers = 4
    steps = record_all_reduce(all_reduce, workers)
    upto, rank = draw.randint(1, 2), draw.randrange(workers)
    complete_at = {
        next(part for part, of in enumerate(steps[workers - 1].holds[worker]) if len(of) == workers): worker
        for worker in range(workers)
    }
    right = next(part for part, worker in complete_at.items() if worker == rank)
    return asked(
        f"An all-reduce of {workers} workers, up to step {upto}. When the first half of the ring is over, each worker "
        f"has one complete sum. Which part's sum does worker {rank} have?",
        (f"part {right}", f"A part moves on by one worker in each step. This one reaches worker {rank} in the last of "
         f"the {workers - 1} steps, with the tensors of all others."),
        [(f"part {part}", f"This part is complete at worker {worker} then.")
         for part, worker in complete_at.items() if part != right],
        lambda: draw_all_reduce(steps[: upto + 1]),
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
    billions, gpus = draw.choice((8, 14, 32, 70)), draw.choice((2, 4))
    size = 80
    each = 2 * billions / gpus
    left = size - each
    if left <= 5 or each == left:
        raise Redraw
    return asked(
        f"A model of {billions} billion parameters in bfloat16 is cut over {gpus} GPUs of {size} GB. About how many GB "
        "are left for the cache on each, if nothing else takes memory?",
        (f"{left:g}", f"2 bytes per parameter are {2 * billions} GB, and each GPU holds {each:g} of them."),
        [
            (f"{size - billions / gpus:g}", "A bfloat16 takes 2 bytes."),
            (f"{size - 2 * billions:g}" if size > 2 * billions else "nothing is left", "Each GPU holds a part of the "
             "model, not all of it."),
            (f"{size - 4 * billions / gpus:g}" if size > 4 * billions / gpus else "none: it doesn't fit", "That would "
             "be float32."),
            (f"{each:g}", "That is the part of the weights."),
        ],
    )  # fmt: skip


ITEMS = [
    ring_in_picture,
    bytes_of_a_ring,
    shape_of_a_cut,
    memory_per_gpu,
    bug(
        "16", "Build 1: the two cuts", "mlp_in_two_parts",
        task="`mlp_part` computes what process `rank` of `world` contributes to an MLP; the parts of all processes are "
        "added up to its result. `up` is [inner, inputs], `down` is [outputs, inner].",
        code="""
def mlp_part(x, up, up_bias, down, down_bias, rank, world):
    size = up.shape[0] // world
    own = slice(rank * size, (rank + 1) * size)
    hidden = x @ up[own].T
    hidden = hidden + up_bias[own]
    hidden = torch.nn.functional.silu(hidden)
    part = hidden @ down[:, own].T
    return part + down_bias / world
""",
        line=5, wrong="hidden = hidden + up_bias[own] / world",
        why="These inner elements belong to this process alone, so their bias is added once, and whole. Only what all "
        "processes add to the same result has to be divided.",
        innocent={
            2: "The inner elements are divided evenly among the processes.",
            7: "These columns of `down` belong to the inner elements that this process has.",
            8: "All processes add to the same outputs, so each adds its share. One could add the whole bias as well.",
        },
        setup="import torch",
        trial="""
torch.manual_seed(0)
x, up, down = torch.randn(3, 4), torch.randn(8, 4), torch.randn(5, 8)
up_bias, down_bias = torch.randn(8), torch.randn(5)
whole = torch.nn.functional.silu(x @ up.T + up_bias) @ down.T + down_bias
parts = [mlp_part(x, up, up_bias, down, down_bias, rank, 2) for rank in range(2)]
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
        "16", "Two replicas, or one model on two GPUs?", "large_model_one_reader",
        "A model of 30 billion parameters fits on one GPU, with little room for the cache. You have two GPUs in one "
        "host "
        "and a single important user who wants each answer as fast as possible. What do you try first?",
        ("Tensor parallel over both of the GPUs", "Each GPU reads half of the weights in each step, which is most "
         "of the time of a "
         "lone decode."),
        ("Two replicas, one for each GPU", "A lone stream runs on one of them, no faster than before."),
        ("Half of the layers on each of the GPUs", "A lone token goes through one half, then the other. All weights "
         "are read one after another, as on one GPU."),
        ("Prefill on one, decode on the other GPU", "The decode steps, nearly all of the time, are as slow as before."),
    ),
    design(
        "16", "A whole model in two processes", "diverging_processes",
        "Two processes share a model. After an hour one of them hangs in an all-reduce, and the other has finished its "
        "step. What is the most likely direct cause?",
        ("They scheduled different steps, and one expects another sum", "Both must run the same steps in the same "
         "order. "
         "One process decides, and the other follows."),
        ("One GPU is slower, and the sum has timed out in the meantime", "The faster one would wait in the sum, not be "
         "done with it."),
        ("The system paused one process for a while, in the middle of the sum", "The other would wait for it in this "
         "sum, and both would go on later."),
        ("The cache of one process was full while the other had room", "Each holds its part of the same tokens, so "
         "they "
         "fill up at the same time."),
    ),
]  # fmt: skip
