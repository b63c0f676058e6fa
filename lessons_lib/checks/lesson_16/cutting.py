"""16.1, `cut_linear`: the parts of all ranks, what they hold in memory, and sizes that can't be divided."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from lessons_lib.checks.diagnosis import Task, Watch, mistakes
from lessons_lib.checks.diagnosis.telling import Shown, kind
from lessons_lib.checks.exercise import Exercise


class Case(NamedTuple):
    outputs: int
    inputs: int
    cut: str
    world_size: int
    has_bias: bool = False
    dtype: torch.dtype = torch.float32
    first: int = 0


def cases() -> Iterator[Case]:
    yield Case(4, 6, "colwise", 2)
    yield Case(4, 6, "rowwise", 2)
    for cut, outputs, inputs in (("colwise", 6, 4), ("rowwise", 4, 6)):
        for has_bias in (False, True):
            yield Case(outputs, inputs, cut, 3, has_bias)
        yield Case(outputs, inputs, cut, 1)
        yield Case(outputs, inputs, cut, 1, True)
        yield Case(8, 8, cut, 4, True, torch.bfloat16)
        yield Case(8, 8, cut, 4, False, torch.bfloat16)
        yield Case(outputs, inputs, cut, 3, True, first=100_001)
        yield Case(8, 8, cut, 8, True)
    yield Case(4, 3, "colwise", 2, True)
    yield Case(3, 4, "rowwise", 2, True)
    for world_size, size in ((2, 7), (2, 5), (3, 4), (4, 2)):
        yield Case(size, 12, "colwise", world_size, True)
        yield Case(12, size, "rowwise", world_size, size == 5)


def run(attempt: Any, case: Case, watch: Watch) -> None:
    weight = case.first + torch.arange(case.outputs)[:, None] * 10 + torch.arange(case.inputs)
    weight, bias = weight.to(case.dtype), torch.arange(1, case.outputs + 1).to(case.dtype) if case.has_bias else None
    results: list[tuple[Any, Any]] = []

    def note(got: Any) -> Any:
        if isinstance(got, tuple) and len(got) == 2 and isinstance(got[0], torch.Tensor):
            results.append(got)
            return Shown("a tuple (weight, bias) with a tensor as the weight")
        return got if got is None else Shown(kind(got))

    def look() -> dict[str, Any]:
        if not results:
            return {}
        own, own_bias = (each.data if isinstance(each, torch.Tensor) else each for each in results[-1])
        seen = {"the weight": own}
        if case.cut == "colwise" and case.has_bias:
            seen["the shape of the bias"] = Shown(
                list(own_bias.shape) if isinstance(own_bias, torch.Tensor) else own_bias
            )
            seen["the bias"] = own_bias
        else:  # one rank may add the bias, or each a share of it
            seen["the bias, if there is one,"] = of_all_outputs(own_bias, len(own), case)
        seen["the memory of the new weight"] = memory_of(results[-1][0], weight, "weight")
        return seen | {"the memory of the new bias": memory_of(results[-1][1], bias, "bias")}

    is_uneven = (case.outputs, case.inputs)[case.cut == "rowwise"] % case.world_size
    for rank in range(case.world_size)[:: -1 if is_uneven else 1]:
        call = f"`cut_linear(weight, {'bias' if case.has_bias else None}, {case.cut!r}, {rank}, {case.world_size})`"
        watch(call, attempt, weight, bias, case.cut, rank, case.world_size, returns=note, look=look)
    if results and (case.cut == "rowwise" or not case.has_bias):
        total = sum((each for _, each in results if each is not None), torch.zeros(len(results[0][0])))
        watch("the calls of all ranks", int, look=lambda: {"the sum of their biases": total})


def of_all_outputs(bias: Any, outputs: int, case: Case) -> Any:
    """A bias; what is wanted, if it is that."""
    wanted = torch.empty(outputs, dtype=case.dtype)
    is_fine = bias is None or (isinstance(bias, torch.Tensor) and kind(bias) == kind(wanted))
    return Shown(f"None or {kind(wanted)}" if is_fine else kind(bias))


def memory_of(part: torch.Tensor | None, whole: torch.Tensor | None, name: str) -> Shown:
    memory = None if part is None else part.untyped_storage()
    if part is not None and part is whole:
        return Shown(f"that of `{name}`: it is the argument itself")
    if memory and whole is not None and memory.data_ptr() == whole.untyped_storage().data_ptr():
        return Shown(f"all of `{name}`: it is a view")
    if memory and memory.nbytes() > part.numel() * part.element_size():
        return Shown("that of a larger tensor: it is a view")
    return Shown("its own")


def tell(case: Case) -> str:
    bias = "bias[i] = i + 1" if case.has_bias else "no bias"
    dtype = "" if case.dtype == torch.float32 else f" in {str(case.dtype)[6:]}"
    numbers = f"weight[i, j] = {f'{case.first} + ' if case.first else ''}10 i + j"
    return (
        f"weight [{case.outputs}, {case.inputs}]{dtype}, {numbers}; {bias}; {case.cut}, all ranks of {case.world_size}."
    )


MISTAKES = """
A weight is [outputs, inputs], so the outputs are its *rows* in memory: `weight[...]` for colwise, `weight[:, ...]` for
rowwise. The names come from x @ W, where W is the transposed weight.
~ "colwise" => "rowwise"
or
~ 0 if cut == "colwise" else 1 => 1 if cut == "colwise" else 0
~ weight[own].clone(), None if bias is None => weight[:, own].clone(), None if bias is None
~ weight[:, own].clone(), None if bias is None or => weight[own].clone(), None if bias is None or
Both cuts give you the same part. `cut`, "colwise" or "rowwise", says which side to divide: the outputs for colwise,
the inputs for rowwise.
~ cut == "colwise" => True
or
~ cut == "colwise" => False
Too much is cut: one cut divides either the outputs or the inputs, and keeps all of the others.
~ weight[own].clone() => weight[own, : weight.shape[1] // world_size].clone()
~ weight[:, own].clone() => weight[: weight.shape[0] // world_size, own].clone()
or
~ weight[own].clone() => weight[own, own].clone()
~ weight[:, own].clone() => weight[own, own].clone()
The size of a part comes from the side that is cut: the {outputs} outputs for colwise, the {inputs} inputs for rowwise.
~ weight.shape[dim], world_size => weight.shape[1 - dim], world_size
or
~ weight.shape[dim], world_size => weight.shape[0], world_size
`F.linear` transposes the weight itself: a part stays [outputs, inputs].
~ weight[own].clone() => weight[own].T.clone()
~ weight[:, own].clone() => weight[:, own].T.clone()
Every rank has neighbors: rank 0 the first ones, rank 1 the next ones, so that an attention head stays in one piece.
- own = slice
+ own = slice(rank, None, world_size)
or
~ return weight[:, own] => return weight[:, rank::world_size]
or
~ return weight[own].clone() => return weight[rank::world_size].clone()
Each rank has a part of its own: rank r begins at `r * size`.
- own = slice
+ own = slice(0, size)
or
- own = slice
+ own = slice(rank, rank + size)
A slice ends where the next rank's begins, at `(rank + 1) * size`.
- own = slice
+ own = slice(rank * size, size)
or
- own = slice
+ own = slice(rank * size, (rank + 1) * size - 1)
Ranks count from 0, and rank 0 has the first part.
- own = slice
+ own = slice((world_size - 1 - rank) * size, (world_size - rank) * size)
or
~ return weight[:, own] => return weight[:, (world_size - 1 - rank) * size : (world_size - rank) * size]
`split` takes the size of a part, and `chunk` the number of parts.
~ weight[own].clone() => weight.split(world_size, 0)[rank].clone()
~ weight[:, own].clone() => weight.split(world_size, 1)[rank].clone()
or
~ weight[own].clone() => weight.split(world_size, 0)[rank].clone()
~ weight[:, own].clone() => weight.split(world_size, 1)[rank].clone()
~ bias[own].clone() => bias.split(world_size)[rank].clone()
A part has only this process's outputs or inputs. Zeros in place of the others take as much memory as the whole.
~ weight[own].clone() => torch.zeros_like(weight).index_copy_(0, torch.arange(len(weight))[own], weight[own])
~ weight[:, own].clone() => torch.zeros_like(weight).index_copy_(1, torch.arange(weight.shape[1])[own], weight[:, own])
The weights stay as they are. Only the bias of a row cut may be shared out.
~ weight[:, own].clone() => weight[:, own] / world_size
`//` drops the fraction: a share of the bias is `bias / world_size`.
~ None if bias is None or rank > 0 else bias.clone() => None if bias is None else bias // world_size
One of {world_size} processes has one of {world_size} shares of the bias: `bias / world_size`, if you share it out.
~ None if bias is None or rank > 0 else bias.clone() => None if bias is None else bias * 0.5
Another type on the way loses digits, and none is needed: slice the tensor as it is.
~ weight[own].clone() => weight[own].half().to(weight.dtype)
~ weight[:, own].clone() => weight[:, own].half().to(weight.dtype)
or
~ weight[own].clone() => weight[own].bfloat16().to(weight.dtype)
~ weight[:, own].clone() => weight[:, own].bfloat16().to(weight.dtype)
A layer without a bias needs none, and zeros of another type give results of another type: return None.
- dim =
+ if bias is None: bias = torch.zeros(weight.shape[0])
+ ...
The remainder is the other way round: `weight.shape[dim] % world_size`.
- if rest:
+ if world_size % weight.shape[dim]:
The number of parts is `world_size`; yours is always 2.
- size, rest
+ rank, world_size = rank % 2, 2
+ ...
Only the side that is cut must be divisible: {world_size} divides it here. It needn't divide the other side, nor the
bias of a row cut, which one process adds.
- if rest:
+ if weight.shape[0] % world_size:
or
- if rest:
+ if weight.shape[1] % world_size:
or
- if rest:
+ if weight.shape[0] % world_size or weight.shape[1] % world_size:
or
- if rest:
+ if rest or (cut == "rowwise" and bias is not None and len(bias) % world_size):
UNEQUAL
- if rest:
- raise ValueError
or
- if rest:
- raise ValueError
+ size = -(-weight.shape[dim] // world_size)
or
~ if rest: => if rest and cut == "rowwise":
or
~ if rest: => if rest and cut == "colwise":
`bias` is None if the layer has none. Then the part has none either: return None for it.
~ None if bias is None else bias[own] => bias[own]
~ None if bias is None or rank > 0 else => None if rank > 0 else
or
- dim =
+ bias = bias.clone()
+ ...
or
- dim =
+ bias = bias[:]
+ ...
or
~ None if bias is None or rank > 0 else => torch.zeros_like(bias) if rank > 0 else
`if bias` asks for the truth of a tensor, which only one of a single element has: `if bias is None`.
~ if bias is None else => if not bias else
~ if bias is None or => if not bias or
numpy has no bfloat16, the type of most large models. Slice the tensor itself.
- dim =
+ weight = torch.from_numpy(weight.numpy())
+ ...
"""

UNEQUAL = (
    "Equal parts aren't possible here: some would be longer, or elements lost. Raise ValueError in every rank: see "
    "whether `world_size` divides the side that is cut."
)
MEMORY = (
    "A slice, and the argument itself, keep the whole tensor alive, so every process would hold the whole model. "
    "`.clone()` the slice, also if there is only one process."
)
TASK = Task(
    reference="lessons_lib.serving.tensor_parallel:cut_linear",
    cases=cases,
    run=run,
    tell=tell,
    refusals=("ValueError",),
    known=mistakes(MISTAKES.replace("UNEQUAL", UNEQUAL)),
    facts=lambda case: case._asdict(),
    about={
        "returned": "Return both, as a tuple: `return weight, bias`.",
        "the weight": "Rank r has the outputs, or the inputs, from `r * size` to `(r + 1) * size`.",
        **dict.fromkeys(
            ("the bias", "the shape of the bias"),
            "Side by side, each output keeps its own bias: cut it at the same places as the outputs, in each rank.",
        ),
        "the bias, if there is one,": "A row cut gives each process a part of *every* output, so a bias is "
        "whole, and of the same type, or None.",
        "the sum of their biases": "The results are added up, so one process adds the bias, or each a share of it.",
        **dict.fromkeys(("the memory of the new weight", "the memory of the new bias"), MEMORY),
        "should raise ValueError": UNEQUAL,
    },
)

EXERCISE = Exercise(
    id="16.1",
    title="the two cuts of a matrix",
    reference=TASK.reference,
    test=TASK,
    hints=(
        "Write down the shapes for a weight of [4, 6] and two processes, and multiply by an x of six elements. "
        "Then do it once more with a bias of four ones: where does a 2 come out?",
        "The first dimension of the weight are its outputs: `colwise` cuts there, `rowwise` cuts the second one. "
        "Results of a column cut stand side by side, so the bias is cut as the outputs are. Results of a row cut "
        "are added up, so a bias that every process adds is counted as often as there are processes. One that adds "
        "none returns None or zeros. A slice is a view of the whole tensor and keeps it in memory.",
        "`size, rest = divmod(weight.shape[dim], world_size)`; ValueError if `rest`; `own = slice(rank * size, "
        "(rank + 1) * size)`. Colwise: `weight[own].clone(), None if bias is None else bias[own].clone()`. "
        "Rowwise: `weight[:, own].clone(), None if bias is None or rank > 0 else bias.clone()`.",
    ),
)
