"""Judges 03.4, `slot_mapping`: block number times block size plus offset, for all positions at once."""

from collections.abc import Iterable
from random import Random

import torch

from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.kv_cache.block_pool import slot_of

# (blocks, block size, start, end), smallest first.
CASES = [
    ([5, 2], 2, 0, 4),
    ([3], 4, 0, 4),
    ([5, 2], 4, 0, 8),
    ([5, 2], 4, 2, 6),
    ([5, 2], 4, 4, 5),
    ([5, 2], 4, 7, 8),
    ([5, 2], 4, 3, 3),
    ([5, 2], 4, 8, 8),
    ([], 4, 0, 0),
    ([7, 1, 4, 9], 16, 0, 62),
    ([7, 1, 4, 9], 16, 62, 63),
    ([6, 0, 2], 1, 0, 3),
    ([20_000, 300], 16, 14, 18),  # slots beyond 16 bits
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
            asked = (
                f"these positions have slots, {short(want)}"
                if want
                else "no position is asked for, so the answer is empty"
            )
            raise Mistake(
                f"{asked}; yours raised IndexError: {str(error)[:120]}",
                case=case,
                idea="`end` itself is not asked for, as in `range(start, end)`, and the range may be empty. `//` says which "
                "block of the table, `%` which cell.",
            ) from None
        _check_kind(got, want, case)
        if got.tolist() != want:
            raise _name_wrong_slots(got.tolist(), blocks, size, start, end, want, case)
    _check_refusals(attempt)
    _check_no_loop(attempt)


def _check_kind(got, want: list[int], case: str) -> None:
    if not isinstance(got, torch.Tensor):
        raise Mistake(
            f"the answer should be a torch tensor; yours is {type(got).__name__}.",
            case=case,
            idea="The slots are used to index the cache, which is a tensor.",
        )
    if got.dim() != 1:
        raise Mistake(f"the shape should be [{len(want)}], one slot a position; yours is {list(got.shape)}.", case=case)
    if got.is_floating_point() or got.dtype == torch.bool:
        raise Mistake(
            f"slots are whole numbers, int64; yours are {str(got.dtype).removeprefix('torch.')}: {short(got)}.",
            case=case,
            idea="`/` gives fractions, `//` whole numbers. And a tensor made from an empty list holds floats, unless you say `dtype=torch.int64`.",
        )
    if got.dtype.itemsize < 4:
        raise Mistake(
            f"slots are int64, or int32; yours are {str(got.dtype).removeprefix('torch.')}.",
            case=case,
            idea=f"{8 * got.dtype.itemsize} bits hold {2 ** (8 * got.dtype.itemsize):,} different numbers, and a large pool has more slots than that.",
        )


def _name_wrong_slots(
    got: list[int], blocks: list[int], size: int, start: int, end: int, want: list[int], case: str
) -> Mistake:
    """Recognise wrong slots by what they equal."""
    positions = range(start, end)

    def formula(slot) -> list[int] | None:
        try:
            return [slot(position) for position in positions]
        except IndexError:
            return None

    recognised = (
        (
            list(positions),
            "Those are the positions. The table says where each block lies: position // block size is the *place in the table*.",
        ),
        (
            formula(lambda p: blocks[p // size] + p % size),
            "A block number is no slot: the blocks before it have `block_size` slots each. Multiply.",
        ),
        (
            formula(lambda p: blocks[p // size] * size),
            "That is the first slot of each block. Add the offset in the block, position % block size.",
        ),
        (
            formula(lambda p: blocks[p // size] * size + p),
            "The offset begins at 0 again in every block: position % block size, not the position.",
        ),
        (
            formula(lambda p: blocks[p // size] * size + (p - start) % size),
            "The offset counts from the start of the request, not from `start`.",
        ),
        (
            formula(lambda p: blocks[p % size] * size + p // size),
            "`//` and `%` have changed places: `//` says which block, `%` which cell in it.",
        ),
        (
            formula(lambda p: slot_of(blocks, size, p - start)),
            "You begin at the table's first block. Position `start` may lie further on.",
        ),
        (
            formula(lambda p: blocks[p // size]),
            "Those are the blocks. Which slot of the block? Block × block size + offset.",
        ),
        (formula(lambda p: blocks[p // size] * 16 + p % 16), "That is right for blocks of 16. Use `block_size`."),
        (
            formula(lambda p: sorted(blocks)[p // size] * size + p % size),
            "You sorted the blocks. Their order is the order of the request's tokens.",
        ),
    )
    idea = next((why for wrong, why in recognised if got == wrong), "")
    if (
        not idea
        and max(want, default=0) >= 2**15
        and any(mine != right and (mine - right) % 2**16 == 0 for mine, right in zip(got, want))
    ):
        idea = "Does it overflow on the way? Make both tensors of int64."
    if len(got) != len(want) and not idea:
        idea = "`end` is not asked for, as in `range(start, end)`; `start` is."
        if len(got) == end:
            idea = "Those begin at position 0. Only the positions from `start` on are asked for."
        elif len(got) == len(blocks) * size:
            idea = "Those are all slots of the table. Only the positions from `start` to `end - 1` are asked for."
        return Mistake(
            f"{len(want)} slots are asked for, {short(want)}; yours gave {len(got)}: {short(got)}.",
            case=case,
            idea=idea,
        )
    first = next((i for i, (mine, right) in enumerate(zip(got, want)) if mine != right), 0)
    p = start + first
    return Mistake(
        f"position {p} should get slot {want[first]}: block {blocks[p // size]} × {size} + offset {p % size}. Yours is "
        f"{got[first]}; all: {short(got)}.",
        case=case,
        idea=idea or "position // block size says which block of the table, position % block size which cell in it.",
    )


def _check_refusals(attempt) -> None:
    beyond = "Look at `end` before you compute: the table may lack the block."
    below = (
        "Python and torch count negative indexes from the end, so -1 quietly becomes a cell of the last block. "
        "Look at `start` yourself."
    )
    cases = (
        (0, 9, "the last position with a cell is 7", beyond),
        (8, 9, "the last position with a cell is 7", beyond),
        (-1, 3, "no position is negative", below),
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
                f"positions without a cell should raise IndexError; yours raised {type(error).__name__}.",
                case=case,
                idea=idea,
            ) from None
        raise Mistake(
            f"positions without a cell should raise IndexError; yours returned {short(got)}.", case=case, idea=idea
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
    """Looking up the table once a position is a Python loop. Counted, not timed."""
    _WatchedList.lookups = 0
    blocks = _WatchedList(range(8))
    attempt(blocks, 16, 0, 128)
    if _WatchedList.lookups >= 128:
        raise Mistake(
            f"the slots are right, but your code looks into the table {_WatchedList.lookups} times for 128 positions: one after the other.",
            case="`slot_mapping([0, 1, 2, 3, 4, 5, 6, 7], 16, 0, 128)`.",
            idea="Make a tensor of the positions and one of the table, and index the second with `positions // block_size`: all of them at once.",
        )
