"""Judges 04.1, `tag_tokens`: the sequence each token belongs to, and its position in that sequence."""

from random import Random

import torch

from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_01.words import count, kind

# (lengths, starts), smallest first
TAG_CASES = (
    ([3], None),
    ([3, 2], None),
    ([1, 1, 1], None),
    ([2], [5]),
    ([1, 1], [3, 5]),
    ([2, 3], [4, 0]),
    ([2, 0, 1], None),
    ([0, 2], [7, 1]),
    ([0, 0], None),
    ([], None),
    ([], []),
)


def check_tag_tokens(attempt) -> None:
    for lengths, starts in TAG_CASES:
        _check_case(attempt, lengths, starts)
    rng = Random(4)
    for _ in range(40):
        lengths = [rng.randrange(6) for _ in range(rng.randrange(1, 7))]
        _check_case(attempt, lengths, rng.choice((None, [rng.randrange(9) for _ in lengths])))


def _check_case(attempt, lengths: list[int], starts: list[int] | None) -> None:
    given = {} if starts is None else {"starts": list(starts)}
    case = f"tag_tokens({lengths}{'' if starts is None else f', starts={starts}'})"
    tags = call(attempt, list(lengths), case=case, **given)
    starts = [0] * len(lengths) if starts is None else starts
    seq_ids, positions = (_field(tags, name, case) for name in ("seq_ids", "positions"))
    want_ids = [index for index, length in enumerate(lengths) for _ in range(length)]
    want_positions = [start + offset for length, start in zip(lengths, starts) for offset in range(length)]
    if seq_ids != want_ids and seq_ids == want_positions and positions == want_ids:
        raise Mistake(
            "the sequence ids and the positions are swapped.",
            case=case,
            idea="It's `Tags(seq_ids, positions)`: the sequence ids come first.",
        )
    if positions != want_positions:
        if len(positions) == len(want_positions):
            raise Mistake(
                f"the positions should be {want_positions}; yours are {short(positions)}.",
                case=case,
                idea=_why_positions(positions, lengths, starts),
            )
        raise Mistake(
            f"there should be {count(len(want_positions), 'position')}, one per token; yours has {len(positions)}: "
            f"{short(positions)}.",
            case=case,
            idea=_why_count(positions, lengths, starts),
        )
    if seq_ids != want_ids:
        raise Mistake(
            f"the sequence ids should be {want_ids}; yours are {short(seq_ids)}.",
            case=case,
            idea=_why_ids(seq_ids, lengths, starts),
        )


def _field(tags, name: str, case: str) -> list[int]:
    """One of the two tensors as a list."""
    if not hasattr(tags, name):
        raise Mistake(
            f"it should return `Tags`; yours returned {kind(tags)}.",
            case=case,
            idea="`Tags(seq_ids, positions)` holds the two tensors, and the functions that follow access them by name.",
        )
    tensor = getattr(tags, name)
    if not isinstance(tensor, torch.Tensor):
        raise Mistake(
            f"`{name}` should be a tensor; yours is {kind(tensor)}.",
            case=case,
            idea="`torch.tensor(..., dtype=torch.int64)` turns a list into a tensor.",
        )
    if tensor.dtype not in (torch.int64, torch.int32):
        idea = "Ids and positions are integers. Pass `dtype=torch.int64`."
        if not (tensor.is_floating_point() or tensor.dtype == torch.bool):
            idea = "A long sequence overflows fewer bits. Pass `dtype=torch.int64`."
        elif not len(tensor):
            idea = (
                "`torch.tensor([])` has no element to infer the dtype from, so it is float32. Pass `dtype=torch.int64`."
            )
        raise Mistake(
            f"the dtype of `{name}` should be int64 (or int32); yours is {str(tensor.dtype).removeprefix('torch.')}.",
            case=case,
            idea=idea,
        )
    if tensor.dim() != 1:
        raise Mistake(
            f"`{name}` should have one axis, with one element per token; yours has shape {list(tensor.shape)}.",
            case=case,
            idea="There is a single row, so no batch axis is needed here.",
        )
    return tensor.tolist()


def _why_positions(positions: list[int], lengths: list[int], starts: list[int]) -> str:
    total, pairs = sum(lengths), list(zip(lengths, starts))
    want = [start + offset for length, start in pairs for offset in range(length)]
    if positions == list(range(total)) and not any(starts):
        return "Your positions run on through the whole row. Count each sequence's own tokens, from 0."
    if 0 in lengths and positions == [
        start + offset for length, start in zip(filter(None, lengths), starts) for offset in range(length)
    ]:
        return (
            "A sequence that has no tokens still has its own entry in `starts`. You give that entry to the next "
            "sequence."
        )
    if positions == list(range(starts[0], starts[0] + total)):
        return "Your positions run on from one sequence to the next. Each sequence begins at its own start."
    if positions == [offset for length, _ in pairs for offset in range(length)]:
        return (
            "You ignore `starts`. The tokens before these are in the cache, so the first one in the row has position "
            "`start`."
        )
    if positions == [start + 1 + offset for length, start in pairs for offset in range(length)]:
        return (
            "Your positions are off by one. They begin at 0, or at `start`: with 3 tokens in the cache, at 0, 1 and 2, "
            "the next one has position 3."
        )
    if positions == [starts[0] + offset for length, _ in pairs for offset in range(length)]:
        return "You use the start of the first sequence for all of them. `starts` has one per sequence."
    if positions == [start for length, start in pairs for _ in range(length)]:
        return "All tokens of a sequence share one position. Each token's position is one more than the previous one's."
    if positions == [start + length - 1 - offset for length, start in pairs for offset in range(length)]:
        return "Your positions count down. Each token's position is one more than the previous one's."
    if positions == [start + offset for length, start in zip(lengths, starts[::-1]) for offset in range(length)]:
        return "A sequence begins at the start of another one. The start of sequence i is `starts[i]`."
    if sorted(positions) == sorted(want):
        return "These are the right positions in a different order. Put all of one sequence before the next one."
    if min(positions) < 0:
        return (
            "A position is never negative. If you subtract from the index in the row, subtract the index at which the "
            "sequence begins, not the one at which it ends."
        )
    if positions == [dict(pairs)[length] + offset for length, _ in pairs for offset in range(length)]:
        return (
            "A sequence begins at the start of another one. The start of sequence i is `starts[i]`. (If you look it up "
            "by length: two sequences may have the same length.)"
        )
    if positions == [sum(starts[: i + 1]) + offset for i, length in enumerate(lengths) for offset in range(length)]:
        return "You add up the starts. Each one belongs to a single sequence: `starts[i]` is where sequence i begins."
    return "Sequence i has the positions starts[i], starts[i] + 1, ..., lengths[i] of them."


def _why_count(positions: list[int], lengths: list[int], starts: list[int]) -> str:
    if positions == [position for length, start in zip(lengths, starts) for position in range(start, length)]:
        return (
            "You count from `start` to `length`. A sequence has `length` tokens in the row, whatever its start, so the "
            "last one has position start + length - 1."
        )
    if len(positions) == sum(lengths) + len(lengths):
        return "Each sequence has one position too many. `range(start, start + length)` already excludes its end."
    if len(positions) == sum(lengths) + sum(starts):
        return "You also tag the tokens in the cache. They aren't in this row; `starts` only says how many there are."
    want = [start + offset for length, start in zip(lengths, starts) for offset in range(length)]
    ends = [sum(lengths[:i]) for i in range(1, len(lengths))]
    if 0 not in lengths and len(positions) in ends and positions == want[: len(positions)]:
        return (
            f"Only {count(ends.index(len(positions)) + 1, 'sequence')} of {len(lengths)} got positions. Does a loop "
            "return or end too early? `zip` stops at the end of the shorter list."
        )
    if want and positions[-len(want) :] == want:
        return (
            "Yours ends with the right positions, but there are others before them. Are they left from an earlier "
            "call? A list that is a default argument, or that is made outside the function, is the same in every call."
        )
    if 0 in lengths:
        return "A sequence of length 0 gets no tag. The sequences after it get theirs as usual."
    return "Each sequence needs one tag per token that it has in the row."


def _why_ids(seq_ids: list[int], lengths: list[int], starts: list[int]) -> str:
    if any(starts) and len(seq_ids) == sum(lengths) + sum(starts):
        return (
            "You also tag the tokens in the cache. They aren't in this row: repeat each id once per token in the row."
        )
    if len(seq_ids) != sum(lengths):
        return "Every token needs a sequence id: repeat the id of the sequence once per token."
    if seq_ids == [index + 1 for index, length in enumerate(lengths) for _ in range(length)]:
        return "You count the sequences from 1. Sequence i of the list has id i, so the first one has id 0."
    if seq_ids == [index for index, length in enumerate(filter(None, lengths)) for _ in range(length)]:
        return (
            "You skip a sequence that has no tokens when you assign the ids. It still uses up its id, so that the "
            "other sequences keep theirs."
        )
    if len(set(lengths)) < len(lengths) and seq_ids == [lengths.index(n) for n in lengths for _ in range(n)]:
        return (
            "Sequences of the same length get the same id. Do you look the id up with `lengths.index`, which always "
            "finds the first? `enumerate(lengths)` counts the sequences."
        )
    if len(set(seq_ids)) == 1 and len(lengths) > 1:
        return "All tokens have the same id, as if they were one story."
    return "Every token of sequence i has the id i."
