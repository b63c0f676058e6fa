"""Judges 03.4, `slot_mapping`: block id times block size plus offset, for all positions at once."""

import re
import sys
from collections.abc import Iterable
from random import Random

from lessons_lib.checks.exercise import Mistake, call, reached, short
from lessons_lib.checks.lesson_03.books import counted, own_refusal
from lessons_lib.kv_cache.block_table import slot_of

# (blocks, block size, start, end), smallest first.
CASES = [
    ([5, 2], 2, 0, 4),
    ([3], 4, 0, 4),
    ([5, 2], 4, 0, 8),
    ([5, 2], 4, 4, 5),
    ([5, 2], 4, 2, 6),
    ([5, 2], 4, 7, 8),
    ([5, 2], 4, 3, 3),
    ([5, 2], 4, 8, 8),
    ([], 4, 0, 0),
    ([7, 1, 4, 9], 16, 0, 62),
    ([7, 1, 4, 9], 16, 62, 63),
    ([6, 0, 2], 1, 0, 3),
    ([20_000, 300], 16, 14, 18),  # slots beyond 16 bits
    ([3_000_000, 7], 16, 14, 18),  # and beyond what a float32 can represent
    ([5, 2], 40_000, 39_998, 40_002),  # positions beyond 15 bits
]


def check_slot_mapping(attempt) -> None:
    rng = Random(4)
    further = []
    for _ in range(60):
        size, blocks = rng.choice((1, 3, 8, 16)), rng.sample(range(50), rng.randint(1, 9))
        start = rng.randint(0, len(blocks) * size)
        further.append((blocks, size, start, rng.randint(start, len(blocks) * size)))
    for blocks, size, start, end in CASES + further:
        case = f"`slot_mapping({blocks}, {size}, {start}, {end})`."
        want = [slot_of(blocks, size, position) for position in range(start, end)]
        try:
            got = call(attempt, list(blocks), size, start, end, case=case)
        except IndexError as error:
            if "used as indices" in str(error):
                raise Mistake(
                    f"torch can't index with that dtype: {str(error)[:120]}",
                    case=case,
                    idea="Is the index a float? `/` gives floats, `//` integers. Or an integer of fewer bits? Use "
                    "int64 for the positions: `torch.arange(start, end)` already is.",
                ) from None
            expected = (
                f"these positions have slots, {short(want)}" if want else "the range is empty, so the result is empty"
            )
            idea = (
                "`end` is excluded, as in `range(start, end)`, and the range may be empty. `//` gives the index "
                "of the block in the table, `%` the offset in the block."
            )
            if not want and "out of bounds" not in str(error):
                idea = "An empty range contains no position, so none that lacks a slot: don't refuse it."
            if want and "out of bounds" not in str(error):  # not torch's, so the answer's own check
                slots = len(blocks) * size
                idea = (
                    f"{counted(len(blocks), 'block')} of {size} {'has' if len(blocks) == 1 else 'have'} {slots} slots, "
                    f"for positions 0 to {slots - 1}. `end` is excluded, so it may be {slots}, and no more."
                )
            raise Mistake(f"{expected}; yours raised IndexError: {str(error)[:120]}", case=case, idea=idea) from None
        except (RuntimeError, ValueError) as error:
            if want or isinstance(error, NotImplementedError):
                raise
            about = "`min` and `max` need at least one element." if re.search("min|max", str(error)) else ""
            with reached(f"The range is empty, and it may be: the result is an empty tensor. {about}".strip()):
                raise
        _check_kind(got, want, case)
        if got.tolist() != want:
            raise _name_wrong_slots(got.tolist(), blocks, size, start, end, want, case)
    _check_refusals(attempt)
    _check_no_loop(attempt)


def _check_kind(got, want: list[int], case: str) -> None:
    import torch  # here, because the other exercises of the lesson need none

    if not isinstance(got, torch.Tensor):
        raise Mistake(
            f"the answer should be a torch tensor; yours is {type(got).__name__}.",
            case=case,
            idea="The slots are used to index the cache, so they must be a tensor.",
        )
    if got.dim() != 1:
        raise Mistake(
            f"the shape should be [{len(want)}], one slot per position; yours is {list(got.shape)}.", case=case
        )
    if got.is_floating_point() or got.dtype == torch.bool:
        raise Mistake(
            f"slots should be integers, int64; yours are {str(got.dtype).removeprefix('torch.')}: {short(got)}.",
            case=case,
            idea="`/` gives floats, `//` integers. And a tensor made from an empty list has a float dtype, unless you "
            "pass `dtype=torch.int64`.",
        )
    if got.dtype.itemsize < 4:
        raise Mistake(
            f"slots should be int64 (or int32); yours are {str(got.dtype).removeprefix('torch.')}.",
            case=case,
            idea=f"{8 * got.dtype.itemsize} bits can represent {2 ** (8 * got.dtype.itemsize):,} different values, and "
            "a large pool has more slots than that.",
        )


def _name_wrong_slots(
    got: list[int], blocks: list[int], size: int, start: int, end: int, want: list[int], case: str
) -> Mistake:
    """Recognize wrong slots by what they equal."""
    positions = range(start, end)

    def formula(slot) -> list[int] | None:
        try:
            return [slot(position) for position in positions]
        except IndexError:
            return None

    recognised = (
        (
            list(positions),
            "Those are the positions. Look up each block in the table: position // block size is the *index in the "
            "table*.",
        ),
        (
            formula(lambda p: blocks[p // size] + p % size),
            "A block id is not a slot: each block before it has `block_size` slots. Multiply.",
        ),
        (
            formula(lambda p: blocks[p // size] * size),
            "That is the first slot of each block. Add the offset in the block, position % block size.",
        ),
        (
            formula(lambda p: blocks[p // size] * size + p),
            "The offset starts at 0 again in every block: it is position % block size, with the block size of this "
            "call.",
        ),
        (
            formula(lambda p: blocks[p // size] * size + (p - start) % size),
            "The offset follows from the position in the sequence: position % block size, not (position - `start`) % "
            "block size.",
        ),
        (
            formula(lambda p: blocks[p % size] * size + p // size),
            "`//` and `%` are swapped: `//` gives the index of the block in the table, `%` the offset in the block.",
        ),
        (
            formula(lambda p: slot_of(blocks, size, p - start)),
            f"You start at position {start - start % size}. Position `start` may be in the middle of a block."
            if 0 < start < size
            else "You start at the table's first block. Position `start` may be in a later one.",
        ),
        (
            formula(lambda p: slot_of(blocks, size, start) + p - start),
            "Yours are neighbors, one after the other. The next block of the table may be anywhere in the pool: look "
            "up the block of every position.",
        ),
        (
            formula(lambda p: blocks[p // size]),
            "Those are the block ids. Which slot in the block? Block id × block size + offset.",
        ),
        (formula(lambda p: blocks[p // size] * 16 + p % 16), "That is right for blocks of 16. Use `block_size`."),
        (formula(lambda p: blocks[p // 16] * 16 + p % 16), "That is right for blocks of 16. Use `block_size`."),
        (
            formula(lambda p: sorted(blocks)[p // size] * size + p % size),
            "You sorted the blocks. Their order in the table is the order of the request's tokens.",
        ),
    )
    idea = next((why for wrong, why in recognised if got == wrong), "")
    if (
        not idea
        and max(want, default=0) >= 2**15
        and any(mine != right and (mine - right) % 2**16 == 0 for mine, right in zip(got, want))
    ):
        idea = "Does an intermediate result overflow? Use int64 for both tensors."
    if not idea and max(want, default=0) >= 2**24 and all(abs(mine - right) <= 4 for mine, right in zip(got, want)):
        idea = "Is an intermediate result a float32? It can't represent every int of this size. Use int64 throughout."
    if not idea and end > 2**15:
        idea = "Do positions as high as these overflow? Use int64 for both tensors."
    if len(got) != len(want) and not idea:
        idea = "`start` is included and `end` is excluded, as in `range(start, end)`."
        if len(got) == end:
            idea = "Yours start at position 0. Return only the slots of positions `start` to `end - 1`."
        elif len(got) < len(want) and start // size == end // size:
            idea = (
                f"All these positions are in entry {start // size} of the table. Do you take the entries `start // "
                "block_size` to `end // block_size`, without the last one?"
            )
        elif len(got) == len(blocks) * size:
            idea = "Those are all slots of the table. Return only the slots of positions `start` to `end - 1`."
        return Mistake(
            f"the result should have {counted(len(want), 'slot')}, {short(want)}; yours has {len(got)}: {short(got)}.",
            case=case,
            idea=idea,
        )
    first = next((i for i, (mine, right) in enumerate(zip(got, want)) if mine != right), 0)
    p = start + first
    return Mistake(
        f"position {p} should get slot {want[first]}: block {blocks[p // size]} × {size} + offset {p % size}. Yours is "
        f"{got[first]}; all: {short(got)}.",
        case=case,
        idea=idea or "position // block size is the index in the table, position % block size the offset in the block.",
    )


def _check_refusals(attempt) -> None:
    beyond = "Check `end` before you compute anything: the table may not have that block."
    below = (
        "In Python and torch, negative indices count from the end, so -1 silently becomes a slot of the last block. "
        "Check `start` yourself."
    )
    cases = (
        (0, 9, "the last position with a slot is 7", beyond),
        (8, 9, "the last position with a slot is 7", beyond),
        (-1, 3, "position -1 has no slot", below),
    )
    for start, end, why, idea in cases:
        case = f"`slot_mapping([5, 2], 4, {start}, {end})`: two blocks of 4; {why}."
        try:
            got = call(attempt, [5, 2], 4, start, end, case=case)
        except IndexError:
            continue
        except (ValueError, RuntimeError, KeyError, AssertionError) as error:
            if isinstance(error, NotImplementedError):
                raise
            raise Mistake(
                f"positions without a slot should raise IndexError; yours raised {type(error).__name__}: "
                f"{str(error)[:120]}",
                case=case,
                idea=f"{own_refusal('IndexError')} test `start` and `end` before you compute anything.",
            ) from None
        raise Mistake(
            f"positions without a slot should raise IndexError; yours returned {short(got)}.", case=case, idea=idea
        )


class _WatchedList(list):
    """Counts how often an entry is looked up."""

    lookups = 0

    def __getitem__(self, key):
        _WatchedList.lookups += 1
        return super().__getitem__(key)

    def __iter__(self) -> Iterable:
        return super().__iter__()


def _check_no_loop(attempt) -> None:
    """A Python loop over the positions looks up the table for each of them, or executes more instructions the more
    positions there are. Counted, not timed."""
    _WatchedList.lookups = 0
    blocks = _WatchedList(range(8))
    attempt(blocks, 16, 0, 128)
    if _WatchedList.lookups >= 128:
        raise Mistake(
            f"the slots are right, but your code reads the table {_WatchedList.lookups} times for 128 positions, one "
            "after the other.",
            case="`slot_mapping([0, 1, 2, 3, 4, 5, 6, 7], 16, 0, 128)`.",
            idea="Make one tensor of the positions and one of the table, and index the table with `positions // "
            "block_size`: one lookup for all positions.",
        )
    few, many = (_instructions(attempt, list(range(8)), size, 0, 8 * size) for size in (16, 160))
    if many - few >= 1280 - 128:
        raise Mistake(
            "the slots are right, but your code works position by position: with 1,280 positions in the same 8 blocks "
            f"instead of 128, Python executes {many / few:.1f} times as many instructions.",
            case="`slot_mapping([0, 1, 2, 3, 4, 5, 6, 7], 160, 0, 1280)`.",
            idea="Is there a loop or a comprehension over the positions, or over all slots? Make one tensor of the "
            "positions, and compute with it as a whole.",
        )


def _instructions(attempt, *arguments) -> int:
    """How many instructions of Python a call executes."""
    executed = 0

    def trace(frame, event, _):
        nonlocal executed
        frame.f_trace_opcodes = True
        executed += event in ("opcode", "line")
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        attempt(*arguments)
    finally:
        sys.settrace(before)
    return executed
