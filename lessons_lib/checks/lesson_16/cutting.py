"""16.1, `cut_linear`: the parts of all ranks, what they hold in memory, and sizes that can't be divided."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from lessons_lib.checks.diagnosis import Shown, Task, Watch, kind, mistakes


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
or ~ 0 if cut == "colwise" else 1 => 1 if cut == "colwise" else 0
~ weight[own].clone(), None if bias is None => weight[:, own].clone(), None if bias is None
~ weight[:, own].clone(), None if bias is None or => weight[own].clone(), None if bias is None or
Both cuts give you the same part. `cut`, "colwise" or "rowwise", says which side to divide: the outputs for colwise,
the inputs for rowwise.
~ cut == "colwise" => True
or ~ cut == "colwise" => False
`F.linear` transposes the weight itself: a part stays [outputs, inputs].
~ weight[own].clone() => weight[own].T.clone()
~ weight[:, own].clone() => weight[:, own].T.clone()
`split` takes the size of a part, and `chunk` the number of parts.
~ weight[own].clone() => weight.split(world_size, 0)[rank].clone()
~ weight[:, own].clone() => weight.split(world_size, 1)[rank].clone()
The number of parts is `world_size`; yours is always 2.
< size, rest => rank, world_size = rank % 2, 2
`bias` is None if the layer has none. Then the part has none either: return None for it.
~ None if bias is None else bias[own] => bias[own]
~ None if bias is None or rank > 0 else => None if rank > 0 else
`if bias` asks for the truth of a tensor, which only one of a single element has: `if bias is None`.
~ if bias is None else => if not bias else
~ if bias is None or => if not bias or
"""

UNEQUAL = (
    "Equal parts aren't possible here: some would be longer, or elements lost. Raise ValueError in every rank: see "
    "whether `world_size` divides the side that is cut."
)
RANGE = (
    "Colwise, rank r has the rows of `weight` from `r * size` to `(r + 1) * size`, as they are; rowwise, it has these "
    "columns."
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
    known=mistakes(MISTAKES),
    about={
        "returned": "Return both, as a tuple: `return weight, bias`.",
        "the weight": lambda seen, want: RANGE if seen["the weight"].dtype == want["the weight"].dtype else "",
        **dict.fromkeys(
            ("the bias", "the shape of the bias"),
            "Side by side, each output keeps its own bias: cut it at the same places as the outputs, in each rank.",
        ),
        "the bias, if there is one,": "A row cut computes a part of *every* output, so a bias has an element for each, "
        "in the type of the weight. None adds nothing.",
        "the sum of their biases": "The results are added up, so one process adds the bias, or each a share of it.",
        **dict.fromkeys(("the memory of the new weight", "the memory of the new bias"), MEMORY),
        "should raise ValueError": UNEQUAL,
        "raised ValueError": "Only the side that is cut must be divisible, and here it is. The other side needn't be, "
        "nor the bias of a row cut, which one process adds.",
    },
)

EXERCISE = TASK.exercise(
    id="16.1",
    title="the two cuts of a matrix",
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
