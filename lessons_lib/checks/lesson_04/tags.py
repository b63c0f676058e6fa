"""Judges 04.1, `tag_tokens`: which sequence a token belongs to, and where it stands in it."""

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
    seq_ids, positions = (_numbers(tags, name, case) for name in ("seq_ids", "positions"))
    want_ids = [index for index, length in enumerate(lengths) for _ in range(length)]
    want_positions = [start + place for length, start in zip(lengths, starts) for place in range(length)]
    if seq_ids != want_ids and seq_ids == want_positions and positions == want_ids:
        raise Mistake(
            "the sequence ids and the positions have changed places.",
            case=case,
            idea="`Tags(seq_ids, positions)`: the sequence comes first.",
        )
    if positions != want_positions:
        if len(positions) == len(want_positions):
            raise Mistake(
                f"the positions should be {want_positions}; yours are {short(positions)}.",
                case=case,
                idea=_why_positions(positions, lengths, starts),
            )
        raise Mistake(
            f"there should be {count(len(want_positions), 'position')}, one for each token; yours has {len(positions)}: {short(positions)}.",
            case=case,
            idea=_why_count(positions, lengths, starts),
        )
    if seq_ids != want_ids:
        raise Mistake(
            f"the sequence ids should be {want_ids}; yours are {short(seq_ids)}.",
            case=case,
            idea=_why_ids(seq_ids, lengths),
        )


def _numbers(tags, name: str, case: str) -> list[int]:
    """One of the two tensors as a list."""
    if not hasattr(tags, name):
        raise Mistake(
            f"it should return `Tags`; yours returned {kind(tags)}.",
            case=case,
            idea="`Tags(seq_ids, positions)` puts the two tensors together, and the functions to come read them by name.",
        )
    tensor = getattr(tags, name)
    if not isinstance(tensor, torch.Tensor):
        raise Mistake(
            f"`{name}` should be a tensor; yours is {kind(tensor)}.",
            case=case,
            idea="`torch.tensor(..., dtype=torch.int64)` makes one of a list.",
        )
    if tensor.is_floating_point() or tensor.dtype == torch.bool:
        idea = "Both are whole numbers. Say `dtype=torch.int64`."
        if not len(tensor):
            idea = "`torch.tensor([])` has nothing to tell the type from and makes float32. Say `dtype=torch.int64`."
        raise Mistake(
            f"`{name}` should hold int64; yours holds {str(tensor.dtype).removeprefix('torch.')}.", case=case, idea=idea
        )
    if tensor.dim() != 1:
        raise Mistake(
            f"`{name}` should have one axis, a number for each token; yours has shape {list(tensor.shape)}.",
            case=case,
            idea="The sequences lie one behind the other in one row.",
        )
    return tensor.tolist()


def _why_positions(positions: list[int], lengths: list[int], starts: list[int]) -> str:
    total, pieces = sum(lengths), list(zip(lengths, starts))
    want = [start + place for length, start in pieces for place in range(length)]
    if positions == list(range(total)) and not any(starts):
        return "Your positions go on through the row. Every sequence counts its own tokens, from 0."
    if positions == list(range(starts[0], starts[0] + total)):
        return "Your positions go on from one sequence to the next. Every sequence begins at its own start."
    if positions == [place for length, _ in pieces for place in range(length)]:
        return "You leave `starts` out. The tokens before these lie in the cache, so the first one here has position `start`."
    if positions == [start + 1 + place for length, start in pieces for place in range(length)]:
        return (
            "Your first token is one too far. Positions begin at 0, or at `start`: with 3 tokens in the cache, at 0, 1 and 2, the next one "
            "has position 3."
        )
    if positions == [starts[0] + place for length, _ in pieces for place in range(length)]:
        return "You give all sequences the start of the first. `starts` has one for each."
    if positions == [start for length, start in pieces for _ in range(length)]:
        return "All tokens of a sequence share one position. Each is one further than the one before."
    if sorted(positions) == sorted(want):
        return "These are the right numbers in another order. One whole sequence lies behind the other."
    return "Sequence i has the positions starts[i], starts[i] + 1, ..., as many as lengths[i]."


def _why_count(positions: list[int], lengths: list[int], starts: list[int]) -> str:
    if positions == [place for length, start in zip(lengths, starts) for place in range(start, length)]:
        return (
            "You count from `start` up to `length`. A sequence has `length` tokens in the row, whatever its start: the last has position "
            "start + length - 1."
        )
    if len(positions) == sum(lengths) + len(lengths):
        return "One too many for each sequence. `range(start, start + length)` stops before its end by itself."
    if len(positions) == sum(lengths) + sum(starts):
        return (
            "You tag the tokens in the cache as well. They aren't in this row; `starts` only says how many there are."
        )
    return "A sequence adds as many tags as it has tokens in the row."


def _why_ids(seq_ids: list[int], lengths: list[int]) -> str:
    if len(seq_ids) != sum(lengths):
        return "Every token has a sequence id: repeat the number of the sequence as often as it has tokens."
    if seq_ids == [index + 1 for index, length in enumerate(lengths) for _ in range(length)]:
        return "You number the sequences from 1. Sequence i of the list has the id i, so the first has 0."
    if seq_ids == [index for index, length in enumerate(filter(None, lengths)) for _ in range(length)]:
        return "You leave out a sequence without tokens when you number them. It keeps its number all the same, so that the others keep theirs."
    if len(set(seq_ids)) == 1 and len(lengths) > 1:
        return "All tokens have one id, as if they were one story."
    return "Sequence i has the id i on each of its tokens."
