"""Judges 07.1, `add_kernel`: each program adds its own numbers, and none beyond the last."""

from random import Random

import torch

from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.kernels import close, compiled_too, numbers_text, places, refuse_wrong_tensors, run, touched

# (length, numbers in the tensors, BLOCK), smallest first.
CASES = ((4, 4, 4), (8, 8, 4), (2, 6, 4), (3, 3, 4), (10, 10, 4), (10, 13, 4), (1, 1, 8))
UNTOUCHED = -7.0


def check_add_kernel(attempt) -> None:
    numbers = torch.zeros(8)
    compiled_too(lambda: _check_results(attempt), attempt, ((numbers, numbers, numbers, 8), dict(BLOCK=4)))


def _check_results(attempt) -> None:
    for length, size, block in CASES:
        _check_case(attempt, length, size, block)
    rng = Random(1)
    for _ in range(4):
        length = rng.randint(1, 70)
        _check_case(attempt, length, length + rng.choice((0, 5)), rng.choice((1, 8, 16)))


def _check_case(attempt, length: int, size: int, block: int) -> None:
    programs = -(-length // block)
    more = f" of tensors with {size}" if size > length else ""
    case = f"{length} numbers{more}, BLOCK = {block}: {programs} program{'s' if programs > 1 else ''}."
    x = torch.arange(1.0, size + 1)
    y = 10 * torch.arange(1.0, size + 1) + 0.5
    out = torch.full((size,), UNTOUCHED)
    recording = run(
        attempt, (programs,), x, y, out, length, BLOCK=block, case=case, wild=lambda error: _wild(error, length, block)
    )
    refuse_wrong_tensors(recording, "out", case)
    for number, program in enumerate(recording.programs):
        want = list(range(number * block, min((number + 1) * block, length)))
        stored = touched(recording, program, "store", "out")
        if stored != want:
            raise _wrong_places(number, want, stored, length, block, case)
        for name in ("x", "y"):
            loaded = touched(recording, program, "load", name)
            if not set(want) <= set(loaded):
                what = f"program {number} should load the numbers {places(want)} of `{name}`; yours loads {places(loaded)}."
                idea = f"The same `place` serves three times: `x + place`, `y + place`, `out + place`. Here one of them is not moved on to program {number}'s part."
                if not loaded:
                    idea = f"`tl.load({name} + place, mask=...)` fetches the numbers; `{name}` alone is an address."
                raise Mistake(what, case=case, idea=idea)
    _check_sums(out[:length], x[:length], y[:length], case)


def _wild(error, length: int, block: int) -> str:
    if error.kind == "store":
        return (
            f"The last program has places up to {-(-length // block) * block - 1}, and there are only {length} numbers. Without a mask `tl.store` writes "
            "all places of the tile. Give it `mask=place < length`."
        )
    if error.number < error.count + block:
        return f"The numbers end at {length - 1}, the tile of the last program does not. `tl.load(x + place, mask=place < length)` leaves out what is too much."
    return "`place` grew too large. Program i begins at number i × BLOCK: `tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)`."


def _wrong_places(number: int, want, stored, length: int, block: int, case: str) -> Mistake:
    what = f"program {number} should store the numbers {places(want)}; yours stores {places(stored)}."
    idea = "Program i has the numbers from i × BLOCK up to (i + 1) × BLOCK − 1, as far as there are any."
    if number and stored == list(range(min(block, length))):
        idea = "All programs do the same part. They differ in their number alone: begin at `tl.program_id(0) * BLOCK`."
    elif number and stored == list(range(number, min(number + block, length))):
        idea = "Each program begins one further than the one before, so they overlap. A program has BLOCK numbers: multiply `tl.program_id(0)` by BLOCK."
    elif set(stored) > set(want) and len(stored) == length:
        idea = "One program does everything. The others then do it all again, at the same time. Each does its own part, and no loop is needed."
    elif stored and stored[-1] == length:
        idea = f"The places count from 0, so the last number is number {length - 1}: `place < length`, not `<=`."
    elif set(stored) > set(want):
        idea = f"Numbers behind `length` belong to somebody else. The mask of `tl.store` is `place < length`, with the argument `length`, {length} here; and the mask of a load holds for that load only."
    elif stored == want[:-1]:
        idea = "The last number is left out. The mask should be `place < length`."
    elif not stored:
        idea = "Its mask is False everywhere, or it never gets to `tl.store`."
    return Mistake(what, case=case, idea=idea)


def _check_sums(got, x, y, case: str) -> None:
    if close(got, x + y):
        return
    idea = "Load both, add the two tiles, and store the sum."
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
    raise Mistake(f"out should be {numbers_text(x + y)}; yours is {numbers_text(got)}.", case=case, idea=idea)
