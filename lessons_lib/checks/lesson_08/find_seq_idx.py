"""Judges 08.5, `find_seq_idx`: the sequence that a tile of the packed batch belongs to."""

from collections.abc import Callable, Iterator
from itertools import accumulate
from random import Random

import lessons_lib.kernels.triton_setup  # noqa: F401 - before Triton: decides whether kernels are compiled

# isort: split

# isort: split
import torch
import triton
import triton.language as tl

from lessons_lib.checks.exercise import Mistake, current_case
from lessons_lib.checks.kernels import compiled_too, run_through, touched
from lessons_lib.checks.sandbox import TimeLimit

# (new tokens of each sequence, BLOCK_Q), smallest first.
CASES = (
    ([1], 4),
    ([9], 4),
    ([4, 4], 4),
    ([4, 3], 4),
    ([8, 5, 2], 4),
    ([1, 1, 1], 4),
    ([5, 1, 20, 1, 3], 8),
    ([3, 1, 4, 1, 5], 1),
)


@triton.jit
def each_tile_kernel(FIND_SEQ_IDX: tl.constexpr, cu_seqlens_q, out, num_seqs, BLOCK_Q: tl.constexpr):
    """Calls the attempt for every tile and stores what it returns."""
    tile = tl.program_id(0)
    tl.store(out + tile, FIND_SEQ_IDX(tile, cu_seqlens_q, num_seqs, BLOCK_Q))


def check_find_seq_idx(attempt) -> None:
    entries = torch.zeros(4, dtype=torch.int32)
    compiled_too(
        lambda: _check_results(attempt),
        attempt,
        ((attempt, entries, entries, 3), dict(BLOCK_Q=4)),
        kernel=each_tile_kernel,
    )


def _check_results(attempt) -> None:
    for new, tokens in CASES:
        _check_batch(attempt, new, tokens)
    _check_loads(attempt)
    rng = Random(8)
    for _ in range(6):
        new = [rng.choice((1, 1, rng.randint(1, 25))) for _ in range(rng.randint(1, 12))]
        _check_batch(attempt, new, rng.choice((1, 4, 16)))


# In a small batch, different wrong ideas may give the same results; here they almost never do.
TELLING = ([5, 1, 20, 1, 1, 3, 17, 9], 8)


def _check_batch(attempt, new: list[int], tokens: int) -> None:
    bounds = [0, *accumulate(new)]
    first = [bounds[seq] // tokens + seq for seq in range(len(new))]
    case = (
        f"cu_seqlens_q {bounds}, {len(new)} sequence{'s' if len(new) > 1 else ''}, BLOCK_Q = {tokens}; the first tiles "
        f"of the sequences are {first}."
    )
    got = _of_all_tiles(attempt, bounds, tokens, case)
    want = [max(seq for seq in range(len(new)) if first[seq] <= tile) for tile in range(len(got))]
    if got == want:
        return
    tile = next(tile for tile in range(len(got)) if got[tile] != want[tile])
    what = f"tile {tile} belongs to sequence {want[tile]}; yours says {got[tile]}."
    raise Mistake(what, case=case, idea=_why(attempt, bounds, tokens, got) or _otherwise(tile, got, want, len(new)))


def _of_all_tiles(attempt, bounds: list[int], tokens: int, case: str) -> list[int]:
    tiles = bounds[-1] // tokens + len(bounds) - 1
    out = torch.full((tiles,), -1, dtype=torch.int32)
    try:
        run_through(
            attempt, each_tile_kernel, (tiles,), attempt, torch.tensor(bounds, dtype=torch.int32), out, len(bounds) - 1,
            BLOCK_Q=tokens, case=case,
            explain=lambda error: _out_of_bounds(error, bounds),
        )  # fmt: skip
    except TimeLimit:
        current_case.text = (
            f"{case} If `low` and `high` are neighbors, their middle, rounded down, is `low` again, and neither moves "
            "anymore. Search while they are more than 1 apart. And is your middle between them, (low + high) // 2?"
        )
        raise
    return out.tolist()


@triton.jit
def one_tile_kernel(FIND_SEQ_IDX: tl.constexpr, cu_seqlens_q, out, num_seqs, tile, BLOCK_Q: tl.constexpr):
    tl.store(out, FIND_SEQ_IDX(tile, cu_seqlens_q, num_seqs, BLOCK_Q))


def _check_loads(attempt, count: int = 64) -> None:
    """Many sequences: the results are right here too, and a search by halves looks at few of them."""
    bounds, out = torch.arange(count + 1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    most, found = count.bit_length() + 2, []
    for tile in (0, count // 2, count - 1):
        case = f"{count} sequences with one new token each, BLOCK_Q = 4, tile {tile}."
        arguments = (attempt, bounds, out, count, tile)
        recording = run_through(attempt, one_tile_kernel, (1,), *arguments, BLOCK_Q=4, case=case)
        want = max(seq for seq in range(count) if seq // 4 + seq <= tile)
        if out.item() != want:
            what = f"tile {tile} belongs to sequence {want}; yours says {out.item()}."
            idea = "With few sequences yours is right. Does it stop after a fixed number of steps, or of sequences?"
            raise Mistake(what, case=case, idea=idea)
        found.append((len(touched(recording, recording.programs[0], "load", "cu_seqlens_q")), case))
    for loads, case in found:
        if loads > most:
            what = f"the result is right, but it read {loads} entries of `cu_seqlens_q`; by halves {most} are enough."
            idea = (
                "Every program searches, and each load waits for the one before it. Look at the sequence in the "
                "middle of those that are left, and drop one half."
            )
            raise Mistake(what, case=case, idea=idea)


def _why(attempt, bounds: list[int], tokens: int, got: list[int]) -> str:
    """The wrong idea that gives these results, here and for a batch in which all wrong ideas differ."""
    others = [0, *accumulate(TELLING[0])]
    try:
        there = _of_all_tiles(attempt, others, TELLING[1], "")
    except Exception:  # it fails in another way there
        there = None
    for (idea, formed), (_, formed_there) in zip(_wrong_ideas(bounds, tokens), _wrong_ideas(others, TELLING[1])):
        is_same = [formed(tile) for tile in range(len(got))] == got
        if is_same and (there is None or [formed_there(tile) for tile in range(len(there))] == there):
            return idea
    return ""


def _out_of_bounds(error, bounds: list[int]) -> str:
    if error.tensor == "cu_seqlens_q":
        return (
            f"cu_seqlens_q has {len(bounds)} entries here, one per sequence plus the end: read only entries 0 to "
            f"{len(bounds) - 1}."
        )
    return ""


def _otherwise(tile: int, got, want, count: int) -> str:
    if not 0 <= got[tile] < count:
        there = f"There are {count} sequences, 0 to {count - 1}." if count > 1 else "Here sequence 0 is the only one."
        return f"{there} `low` starts at 0, and is the result after the loop."
    if got[tile] < want[tile]:
        return (
            "The sequence is the last one whose first tile, cu_seqlens_q[i] // BLOCK_Q + i, is at most this tile. "
            "Yours stops too early."
        )
    return (
        "The sequence is the last one whose first tile, cu_seqlens_q[i] // BLOCK_Q + i, is at most this tile. Yours "
        "goes too far."
    )


def _wrong_ideas(bounds: list[int], tokens: int) -> Iterator[tuple[str, Callable[[int], int]]]:
    count = len(bounds) - 1

    def last(first: Callable[[int], int], most: int = count, strict: bool = False) -> Callable[[int], int]:
        """tile -> the last sequence that starts at or before it."""
        return lambda tile: max(
            [seq for seq in range(most) if (first(seq) < tile if strict else first(seq) <= tile)], default=0
        )

    right = [bounds[seq] // tokens + seq for seq in range(count)]
    yield (
        "Each sequence before this one may have a tile that it doesn't fill: sequence i starts one tile later for "
        "each of them, so + i. You left out `+ middle`.",
        last(lambda seq: bounds[seq] // tokens),
    )
    yield (
        "A sequence includes its first tile: `<= tile`, not `< tile`, and the first tile is + i, not + i + 1.",
        last(lambda seq: right[seq], strict=True),
    )
    yield (
        "`low` is the result: the last sequence whose first tile is at most this tile. `high` is the next one.",
        lambda tile: last(lambda seq: right[seq])(tile) + 1,
    )
    yield (
        "This is one too low. After the loop, `low` is the result.",
        lambda tile: last(lambda seq: right[seq])(tile) - 1,
    )
    yield (
        "The last sequence is never found: start with high = num_seqs, not num_seqs − 1.",
        last(lambda seq: right[seq], most=max(count - 1, 1)),
    )
    yield (
        "The first tile is rounded down: cu_seqlens_q[i] // BLOCK_Q + i. You round up, or divide with `/`.",
        last(lambda seq: -(-bounds[seq] // tokens) + seq),
    )
    yield (
        "Tile t doesn't start at token t × BLOCK_Q: each sequence before it may end with a tile that it doesn't fill. "
        "Compare tiles: sequence i starts at tile cu_seqlens_q[i] // BLOCK_Q + i.",
        last(lambda seq: -(-bounds[seq] // tokens)),
    )
    yield (
        "You compare the tile with token counts. A tile has BLOCK_Q tokens: cu_seqlens_q[i] // BLOCK_Q.",
        last(lambda seq: bounds[seq]),
    )
    yield (
        "You compare the tile with token counts. A tile has BLOCK_Q tokens: cu_seqlens_q[i] // BLOCK_Q.",
        last(lambda seq: bounds[seq] + seq),
    )
    yield (
        "You search for the end of the sequence, not for its start: entry i + 1 is where sequence i ends.",
        last(lambda seq: bounds[seq + 1] // tokens + seq),
    )
    yield (
        "Don't skip the middle: if its first tile is at most this tile, the middle may be the result. So `low` "
        "becomes `middle`, not `middle + 1`.",
        lambda tile: _halving(right, tile, lambda low, middle: (middle + 1, middle)),
    )
    yield (
        "`high` is past the range that is left: if the middle starts after this tile, `high` becomes `middle`, not "
        "`middle - 1`.",
        lambda tile: _halving(right, tile, lambda low, middle: (middle, middle - 1)),
    )
    yield (
        "You keep the wrong half. If the first tile of the middle is at most this tile, `low` moves there; otherwise "
        "`high` does.",
        lambda tile: _halving([-first for first in right], -tile - 1, lambda low, middle: (middle, middle)),
    )
    yield "Sequence 0 is never found: `low` starts at 0.", lambda tile: max(last(lambda seq: right[seq])(tile), 1)
    yield (
        "That's always sequence 0: no later one passes your condition. A first tile is cu_seqlens_q[i] // BLOCK_Q + i, "
        "with a division; and the result is the `low` that the loop has moved.",
        lambda tile: 0,
    )
    yield "That's always the last sequence.", lambda tile: count - 1
    yield "That's the index of the tile. A sequence may have several tiles.", lambda tile: tile
    yield (
        "That's where the sequence starts in the packed batch. Return the index of the sequence.",
        lambda tile: bounds[last(lambda seq: right[seq])(tile)],
    )


def _halving(first: list[int], tile: int, moved: Callable[[int, int], tuple[int, int]]) -> int:
    """A binary search. `moved`: (low, middle) -> where `low` goes, and where `high` goes, if it's that end's turn."""
    low, high = 0, len(first)
    while high - low > 1:
        middle = (low + high) // 2
        new_low, new_high = moved(low, middle)
        low, high = (new_low, high) if first[middle] <= tile else (low, new_high)
    return low
