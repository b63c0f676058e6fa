"""07.1, `add_kernel`: each program adds its own elements, and none past the last."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from lessons_lib.checks.diagnosis import Shown, Task, Watch, mistakes
from lessons_lib.checks.diagnosis.kernels import compiles, launch, near
from lessons_lib.checks.kernels import RACE_WITHIN, ranges, stored_anywhere, touched

UNTOUCHED = -7.0


@dataclass(frozen=True)
class Case:
    """`n_elements` of tensors with `size`; `digits` are added to each, 1/3 has more than 16 bits can hold."""

    n_elements: int
    size: int
    block: int
    digits: float = 0.0
    dtype: torch.dtype = torch.float32

    @property
    def programs(self) -> int:
        return -(-self.n_elements // self.block)


def run(attempt: Any, case: Case, watch: Watch) -> None:
    x = torch.arange(1.0, case.size + 1, dtype=case.dtype) + case.digits
    y = 10 * torch.arange(1.0, case.size + 1, dtype=case.dtype) + 0.5 + case.digits
    out = torch.full((case.size,), UNTOUCHED, dtype=case.dtype)
    want = out.clone()
    want[: case.n_elements] = (x + y)[: case.n_elements]

    is_exact = case.dtype == torch.float64

    def look(recording: Any) -> dict[str, Any]:
        def missing(program: Any, name: str) -> str:
            own = range(program.ids[0] * case.block, min((program.ids[0] + 1) * case.block, case.n_elements))
            return ranges(sorted({*own} - {*touched(recording, program, "load", name)}))

        return {
            "the tensors that are stored to": sorted(stored_anywhere(recording)),
            "what each program stores": Shown(
                " | ".join(ranges(touched(recording, each, "store", "out")) for each in recording.programs)
            ),
            "the elements of `x` that each program lacks": [Shown(missing(each, "x")) for each in recording.programs],
            "the elements of `y` that each program lacks": [Shown(missing(each, "y")) for each in recording.programs],
            "out": near(out, want, 1e-6),
            "the digits of `out`": Shown("float32's" if is_exact and (out - want).abs().max() > 1e-12 else "all there"),
            "the race": Shown(recording.race or "none"),
        }

    launch(
        watch, "`add_kernel`", attempt, attempt, (case.programs,), x, y, out, case.n_elements, BLOCK=case.block,
        look=look, explain=outside,
    )  # fmt: skip


def outside(error: Any) -> str:
    return (
        "The last program's tile goes past the last element. Give each `tl.load` and the `tl.store` "
        "`mask=offsets < n_elements`; the offsets of program i begin at i × BLOCK."
    )


def tell(case: Case) -> str:
    more = f" of tensors with {case.size}" if case.size > case.n_elements else ""
    plural = "s" if case.programs > 1 else ""
    kind = f" The tensors are {str(case.dtype).removeprefix('torch.')}, with many digits." if case.digits else ""
    return f"{case.n_elements} elements{more}, BLOCK = {case.block}: {case.programs} program{plural}.{kind}"


def cases() -> Iterator[Case]:
    for n_elements, size, block in (
        *((4, 4, 4), (8, 8, 4), (2, 6, 4), (3, 3, 4), (10, 10, 4), (10, 13, 4), (1, 1, 8), (9, 9, 8), (33, 40, 16)),
        (3, 3, 1),
    ):
        yield Case(n_elements, size, block)
    yield Case(3, 3, 4, digits=1 / 3)
    yield Case(3, 3, 4, digits=1 / 3, dtype=torch.float64)


MISTAKES = """
All programs add the same elements. They differ only in their id, on axis 0: start at `tl.program_id(0) * BLOCK`.
~ tl.program_id(0) * BLOCK + tl => tl
or ~ tl.program_id(0) => tl.program_id(1)
Each program starts one element after the previous one, so they overlap. A program has BLOCK elements: multiply
`tl.program_id(0)` by BLOCK.
~ * BLOCK + => +
or ~ * BLOCK + => + BLOCK +
Is the 4 of the example in your code? A tile has BLOCK elements.
~ * BLOCK + tl.arange(0, BLOCK) => * 4 + tl.arange(0, 4)
or ~ * BLOCK + => * 4 +
The mask compares the element's offset, which begins at the program's first element, not the place in the tile.
~ offsets < n_elements => tl.arange(0, BLOCK) < n_elements
Offsets count from 0, so the last element is `n_elements` − 1: `offsets < n_elements`, not `<=`.
~ offsets < n_elements => offsets <= n_elements
The mask is the wrong way round. It is True where there is an element: `offsets < n_elements`.
~ offsets < n_elements => offsets > n_elements
or ~ offsets < n_elements => offsets >= n_elements
The last element is left out: `offsets < n_elements`.
~ offsets < n_elements => offsets < n_elements - 1
The mask compares with the argument `n_elements`. Is a number of the example in your code?
~ offsets < n_elements => offsets < 10
The mask compares offsets with `n_elements`. You compare them with the length of a tile.
~ offsets < n_elements => offsets < BLOCK
A mask applies to its own load or store only: give both loads `mask=mask`. The last tile may go past the last element.
~ tl.load(x + offsets, mask=mask) => tl.load(x + offsets)
or ~ tl.load(y + offsets, mask=mask) => tl.load(y + offsets)
Without a mask, or with one that is True everywhere, `tl.store` writes the whole tile, and elements from `n_elements` on
aren't yours to write. An `if` on a tile is no mask: the interpreter takes it for True, and the compiler refuses it.
~ total, mask=mask => total
or ~ , mask=mask) => )
or - tl.store
+ if mask:
+     tl.store(out + offsets, total)
The last tile needn't be full: its elements are added, too.
- tl.store
+ if tl.program_id(0) * BLOCK + BLOCK <= n_elements:
+     tl.store(out + offsets, total, mask=mask)
or - offsets =
+ if tl.program_id(0) * BLOCK + BLOCK > n_elements:
+     return
+ ...
The loads are right, but all programs store to the same elements: `out + offsets`, as for `x`.
~ out + offsets => out + tl.arange(0, BLOCK)
Use the same offsets in all three. Here one of the loads doesn't move to the program's part.
~ x + offsets => x + tl.arange(0, BLOCK)
or ~ y + offsets => y + tl.arange(0, BLOCK)
Add the two. You subtract or multiply.
~ + tl.load(y => - tl.load(y
or ~ + tl.load(y => * tl.load(y
Load one tile of `x` and one of `y`. You load the same one twice.
~ tl.load(y => tl.load(x
or ~ tl.load(x => tl.load(y
You store one of the two alone.
~ + tl.load(y + offsets, mask=mask) => + 0 * tl.load(y + offsets, mask=mask)
or ~ tl.load(x + offsets, mask=mask) => 0 * tl.load(x + offsets, mask=mask)
You add to what `out` held before. Store x + y alone.
~ total, mask => total + tl.load(out + offsets, mask=mask), mask
The first argument of `tl.store` is the destination: `out + offsets`. The caller still needs what you overwrite.
~ tl.store(out => tl.store(x
or ~ tl.store(out => tl.store(y
A kernel returns nothing: what it doesn't store is lost.
- tl.store => return total
Load the values first: you compute with an address.
~ tl.load(x + offsets, mask=mask) => (x + offsets)
or ~ tl.load(y + offsets, mask=mask) => (y + offsets)
You store all elements to one address: `out + offsets`.
~ out + offsets => out
Leave the dtype that the tensors have: you convert, and digits are lost.
~ total, mask => total.to(tl.float16), mask
or ~ total, mask => total.to(tl.float32), mask
One program does everything. Each does only its own part; no loop over tiles and no `if` on the program id is needed.
- offsets = ... tl.store
+ for first in range(0, n_elements, BLOCK):
+     offsets = first + tl.arange(0, BLOCK)
+     mask = offsets < n_elements
+     tl.store(out + offsets, tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask=mask), mask=mask)
or - offsets = ... tl.store
+ if tl.program_id(0) == 0:
+     for first in range(0, n_elements, BLOCK):
+         offsets = first + tl.arange(0, BLOCK)
+         mask = offsets < n_elements
+         tl.store(out + offsets, tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask=mask), mask=mask)
"""


def tensors() -> tuple[tuple, dict]:
    x = torch.zeros(8)
    return (x, x, x, 8), dict(BLOCK=4)


TASK = Task(
    reference="lessons_lib.kernels.basics:add_kernel",
    cases=cases,
    run=run,
    tell=tell,
    known=mistakes(MISTAKES),
    about={
        "the tensors that are stored to": "`tl.store(out + offsets, total, mask=mask)`. If you have such a line: is "
        "its mask False everywhere, or is it skipped? (Use pointers: stores through block pointers aren't seen here.)",
        "what each program stores": "Program i has the elements from i × BLOCK to (i + 1) × BLOCK − 1, up to the last.",
        "out": "Load both, add the two tiles, and store the sum. Leave the dtype that the tensors have.",
        "the race": RACE_WITHIN,
    },
    probes=(compiles(tensors(), kernel=lambda attempt: attempt),),
)

EXERCISE = TASK.exercise(
    id="07.1",
    title="addition, one tile per program",
    points=1,
    hints=(
        "Start from `double_kernel`. Which of its lines touch memory, and which offsets of program 2 would be wrong "
        "with ten elements?",
        "Four steps: the offsets of this program's tile, a mask that is True where an offset is below `n_elements`, "
        "the sum of two loads, a store. All loads and stores use the same offsets and the same mask.",
        "`offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)` and `mask = offsets < n_elements`. Then "
        "`tl.load(x + offsets, mask=mask)`, the same for y, and `tl.store(out + offsets, ..., mask=mask)`.",
    ),
)
