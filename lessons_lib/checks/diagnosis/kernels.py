"""What can be seen of a kernel: its results, the tokens whose keys it loads, and what a GPU's compiler makes of it."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from lessons_lib.checks.diagnosis.telling import Shown
from lessons_lib.checks.diagnosis.watching import Watch
from lessons_lib.checks.exercise import Mistake, current_case
from lessons_lib.checks.kernels import ranges, refuse_uncompiled, run_through
from lessons_lib.measuring.compile_check import rounded_products, tensor_core_products
from lessons_lib.recording.kernel_accesses import KernelRecording

FOR_A_GPU = "compiled for an NVIDIA GPU, which need not be there"


def launch(
    watch: Watch,
    done: str,
    attempt: Any,
    kernel: Any,
    grid: tuple[int, ...],
    *args: Any,
    look: Callable[[KernelRecording], dict[str, Any]],
    explain: Callable[[Any], str] = lambda error: "",
    **constants: Any,
) -> None:
    """Run a kernel that calls an answer, or is one, in the interpreter, and note what `look` sees of the recording.

    Args:
        explain: the idea behind an `OutOfBounds`.
    """
    made = []

    def run() -> None:
        case = current_case.text
        made.append(run_through(attempt, kernel, grid, *args, case=case, explain=explain, **constants))

    watch(done, run, look=lambda: look(made[0]))


def near(got: torch.Tensor, want: torch.Tensor, tolerance: float = 1e-4) -> torch.Tensor:
    """`got`, with the value of `want` wherever it is as near as rounding explains, so that two answers may round
    differently."""
    is_near = (got.double() - want.double()).abs() <= tolerance * (1 + want.double().abs())
    return torch.where(is_near | (got == want), want.to(got.dtype), got)


def tokens_loaded(
    recording: KernelRecording, tensor: str, table: Sequence[int], block_size: int, once: bool = True
) -> Shown:
    """The positions of the sequence whose vectors a program loaded from a cache [num_blocks, block_size, ..., D].

    Args:
        once: whether it matters how often, and in how many loads.
    """
    position = {
        (block, slot): size * block_size + slot for size, block in enumerate(table) for slot in range(block_size)
    }
    layout = recording.tensors[tensor]
    loads = [a.offsets for a in recording.programs[0].accesses if (a.kind, a.tensor) == ("load", tensor)]
    slots: Counter[tuple[int, int]] = Counter()
    for offsets in loads:
        slots.update(map(tuple, layout.indices_of(offsets)[:, :2].tolist()))
    found, others = sorted(slots[each] for each in slots), [each for each in slots if each not in position]
    text = f"those of positions {ranges([position[each] for each in slots if each in position])}"
    if others:
        text += f", and slot {others[0][1]} of block {others[0][0]}, which isn't the sequence's"
    if once and found and found[-1] > layout.shape[-1]:
        text += ", some of them more than once"
    if found and found[0] < layout.shape[-1]:
        text += ", of some only a part"
    return Shown(f"{text}, in {len(loads)} load{'s' * (len(loads) != 1)}" if once else text)


def refuse_other_tiles(result: Any, **shapes: list[int]) -> None:
    """Called by a kernel that only runs interpreted, with what an answer returned and the tiles that are asked for.

    Raises:
        Mistake: it returned something else.
    """
    shapes = {name: list(map(int, sides)) for name, sides in shapes.items()}
    wanted = ", ".join(f"`{name}` {sides}" for name, sides in shapes.items())
    tiles = result if isinstance(result, tuple) else (result,)
    found = [list(map(int, getattr(tile, "shape", []))) for tile in tiles]
    if result is None or len(tiles) != len(shapes):
        came = "nothing" if result is None else "one value" if len(tiles) == 1 else f"{len(tiles)} values"
        raise Mistake(
            f"your function returned {came}.", idea=f"Return {wanted}{', in this order' * (len(shapes) > 1)}."
        )
    for (name, sides), shape in zip(shapes.items(), found):
        if shape != sides:
            idea = (
                "`axis=0` goes down the columns, `axis=1` along the rows, and what you sum along is gone. To combine a "
                "tile [N] with a rectangle, make it a column, `[:, None]`, or a row, `[None, :]`."
            )
            if sorted(found) == sorted(shapes.values()):
                idea = f"All tiles have the right sides, but another order. Return {wanted}."
            raise Mistake(f"the sides of `{name}` should be {sides}; yours are {shape}.", idea=idea)


def compiles(*launches: tuple[tuple, dict], kernel: Callable[[Any], Any]) -> Callable[[Any], None]:
    """A probe: a GPU's compiler accepts the answer.

    Args:
        launches: (arguments, constants).
        kernel: function (answer) -> the kernel that calls it.
    """
    return lambda attempt: refuse_uncompiled(attempt, launches, kernel(attempt))


def multiplies_well(
    in_float32: tuple[tuple, dict], in_float16: tuple[tuple, dict], kernel: Callable[[Any], Any]
) -> Callable[[Any], None]:
    """A probe: in float32 products keep all digits, and in 16 bits two `tl.dot`, at least, run on tensor cores."""

    def probe(attempt: Any) -> None:
        made = kernel(attempt)
        if rounded := rounded_products(made, *in_float32[0], **in_float32[1]):
            what = f"right in the interpreter, but on a GPU {rounded} of your `tl.dot` would keep only 10 bits (TF32)."
            idea = 'Give every `tl.dot` `input_precision="ieee"`, that of the scores and that of the output.'
            raise Mistake(what, case=f"{FOR_A_GPU}; float32.", idea=idea)
        fast, slow = tensor_core_products(made, *in_float16[0], **in_float16[1]) or (2, 0)
        if slow:
            what = f"right, but no tensor core computes {slow} of your `tl.dot` calls: their tiles are float32."
            idea = (
                "In 16 bits, leave queries, keys and values in the dtype in which they're loaded, and convert the "
                "weights to that of the values. The result of a `tl.dot` is float32 anyway."
            )
            raise Mistake(what, case=f"{FOR_A_GPU}; float16.", idea=idea)
        if fast < 2:
            what = f"right, but {'there is only one' if fast else 'there is no'} `tl.dot` in your function."
            idea = "Scores and output are products of two matrices. Sums of products don't use tensor cores."
            raise Mistake(what, case=f"{FOR_A_GPU}; float16.", idea=idea)

    return probe
