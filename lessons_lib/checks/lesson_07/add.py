"""Judges 07.1, `add_kernel`: each program adds its own elements, and none past the last."""

from random import Random

import torch

from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.kernels import close, compiled_too, ranges, refuse_wrong_tensors, run, touched, values_text

# (n_elements, elements in the tensors, BLOCK), smallest first.
CASES = ((4, 4, 4), (8, 8, 4), (2, 6, 4), (3, 3, 4), (10, 10, 4), (10, 13, 4), (1, 1, 8))
UNTOUCHED = -7.0


def check_add_kernel(attempt) -> None:
    x = torch.zeros(8)
    compiled_too(lambda: _check_results(attempt), attempt, ((x, x, x, 8), dict(BLOCK=4)))


def _check_results(attempt) -> None:
    for n_elements, size, block in CASES:
        _check_case(attempt, n_elements, size, block)
    rng = Random(1)
    for _ in range(4):
        n_elements = rng.randint(1, 70)
        _check_case(attempt, n_elements, n_elements + rng.choice((0, 5)), rng.choice((1, 8, 16)))
    _check_case(attempt, 3, 3, 4, digits=1 / 3)
    _check_case(attempt, 3, 3, 4, digits=1 / 3, dtype=torch.float64)


def _check_case(attempt, n_elements: int, size: int, block: int, digits: float = 0.0, dtype=torch.float32) -> None:
    """`digits`: added to each element; 1/3 has more digits than 16 bits can hold."""
    programs = -(-n_elements // block)
    more = f" of tensors with {size}" if size > n_elements else ""
    case = f"{n_elements} elements{more}, BLOCK = {block}: {programs} program{'s' if programs > 1 else ''}."
    case += " The tensors are float32, with digits that 16 bits can't hold." if digits else ""
    if dtype == torch.float64:
        case = case.replace("float32", "float64").replace("16 bits", "float32")
    x = torch.arange(1.0, size + 1, dtype=dtype) + digits
    y = 10 * torch.arange(1.0, size + 1, dtype=dtype) + 0.5 + digits
    out = torch.full((size,), UNTOUCHED, dtype=dtype)
    explain = lambda error: _out_of_bounds(error, n_elements, block)  # noqa: E731
    recording = run(attempt, (programs,), x, y, out, n_elements, BLOCK=block, case=case, explain=explain)
    refuse_wrong_tensors(recording, "out", case)
    for index, program in enumerate(recording.programs):
        want = list(range(index * block, min((index + 1) * block, n_elements)))
        stored = touched(recording, program, "store", "out")
        if stored != want:
            loaded = touched(recording, program, "load", "x")
            mistake = _wrong_offsets(index, want, stored, loaded, n_elements, block, case)
            rest = [other for other in recording.programs if other is not program]
            if stored == list(range(n_elements)) and not any(
                touched(recording, other, "store", "out") for other in rest
            ):
                idea = (
                    f"Program {index} does everything, and the others do nothing, so nothing runs at the same time. "
                    "Each program does only its own part; no `if` on the program id and no loop are needed."
                )
                mistake = Mistake(mistake.what, case=case, idea=idea)
            raise mistake
        for name in ("x", "y"):
            loaded = touched(recording, program, "load", name)
            if not set(want) <= set(loaded):
                what = f"program {index} should load elements {ranges(want)} of `{name}`; yours loads {ranges(loaded)}."
                idea = (
                    "Use the same offsets in all three: `x + offsets`, `y + offsets`, `out + offsets`. Here one of "
                    f"them doesn't move to program {index}'s part."
                )
                if not loaded:
                    idea = f"`tl.load({name} + offsets, mask=...)` gets the elements; `{name}` alone is an address."
                    other = "y" if name == "x" else "x"
                    if sum((access.kind, access.tensor) == ("load", other) for access in program.accesses) > 1:
                        idea = f"You load `{other}` twice, and no element of `{name}`."
                raise Mistake(what, case=case, idea=idea)
    _check_sums(out[:n_elements], x[:n_elements], y[:n_elements], case)


def _out_of_bounds(error, n_elements: int, block: int) -> str:
    if block < n_elements and error.number < error.count + block:  # the cases with one program come before
        return (
            "With one program yours is right, so there is a mask. Does it compare the place in the tile, "
            "`tl.arange(0, BLOCK)`? Compare the element's offset, which begins at the program's first element: "
            "`offsets < n_elements`."
        )
    if error.kind == "store":
        return (
            f"The last program's tile goes up to offset {-(-n_elements // block) * block - 1}, but there are only "
            f"{n_elements} elements. Without a mask `tl.store` writes the whole tile. Give it "
            "`mask=offsets < n_elements`."
        )
    if error.number < error.count + block:
        return (
            f"The last element is {n_elements - 1}, and the last program's tile goes further. "
            f"`tl.load({error.tensor} + offsets, mask=offsets < n_elements)` leaves out the rest."
        )
    return "The offsets are too large. Program i starts at i × BLOCK: `tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)`."


def _wrong_offsets(index: int, want, stored, loaded, n_elements: int, block: int, case: str) -> Mistake:
    what = f"program {index} should store elements {ranges(want)}; yours stores {ranges(stored)}."
    idea = "Program i has the elements from i × BLOCK to (i + 1) × BLOCK − 1, up to the last one that exists."
    if index and stored == list(range(min(block, n_elements))) and loaded == want:
        idea = "The loads are right, but all programs store to the same elements: `out + offsets`, as for `x`."
    elif index and stored == list(range(min(block, n_elements))):
        idea = "All programs add the same elements. They differ only in their id: start at `tl.program_id(0) * BLOCK`."
    elif index and stored == list(range(index, min(index + block, n_elements))):
        idea = (
            "Each program starts one element after the previous one, so they overlap. A program has BLOCK elements: "
            "multiply `tl.program_id(0)` by BLOCK."
        )
    elif set(stored) > set(want) and len(stored) == n_elements:
        idea = (
            "One program does everything, and the others do it all again at the same time. Each program does only its "
            "own part; no loop is needed."
        )
    elif stored and stored[-1] == n_elements:
        idea = f"Offsets count from 0, so the last element is {n_elements - 1}: `offsets < n_elements`, not `<=`."
    elif set(stored) > set(want):
        idea = (
            "Elements from `n_elements` on aren't yours to write. The mask of `tl.store` is `offsets < n_elements`, "
            f"with the argument `n_elements`, {n_elements} here; and the mask of a load applies to that load only."
        )
    elif stored == want[:-1]:
        idea = "The last element is left out. The mask should be `offsets < n_elements`."
    elif block != 4 and stored == list(range(4 * index, min(4 * index + 4, n_elements))):
        idea += f" Is the 4 of the example in your code? BLOCK is {block} here."
    elif not stored:
        idea = "Its mask is False everywhere, or it never reaches `tl.store`."
        if index:
            idea += (
                f" The offsets of program {index} should be {ranges(want)}, all of them below `n_elements`, "
                f"{n_elements}. What are yours, and what does your mask compare them with?"
            )
    return Mistake(what, case=case, idea=idea)


def _check_sums(got, x, y, case: str) -> None:
    if got.dtype == torch.float64 and close(got, x + y, 1e-6):
        if float((got - x - y).abs().max()) > 1e-12:
            what = f"out should be {values_text(x + y, 12)}; yours is {values_text(got, 12)}."
            idea = "The difference is as small as rounding to float32. Leave the dtype that the tensors have."
            raise Mistake(what, case=case, idea=idea)
        return
    if close(got, x + y, 1e-6):
        return
    idea = "Load both, add the two tiles, and store the sum."
    if close(got, x + y + UNTOUCHED):
        idea = f"You added to what `out` held before, here {UNTOUCHED:g}. Store x + y alone."
    for formed, name in (
        (x - y, "x − y"),
        (x * y, "x × y"),
        (x, "x alone"),
        (y, "y alone"),
        (x + x, "x + x"),
        (y + y, "y + y"),
    ):
        if close(got, formed):
            idea = f"What you stored is {name}."
    digits = 4
    if close(got, x + y, 5e-3):
        digits = 6
        idea = (
            "Nearly right: the difference is as small as rounding to 16 bits. Do you convert something? Leave the "
            "dtype that the tensors have."
        )
    what = f"out should be {values_text(x + y, digits)}; yours is {values_text(got, digits)}."
    raise Mistake(what, case=case, idea=idea)
