"""Judges 04.3, `additive_mask`: 0 where attending is allowed, the dtype's minimum elsewhere."""

import math

import torch

from lessons_lib.attention.masks import additive_mask
from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_01.words import kind

T, F = True, False
# (mask, dtype), smallest first; None leaves the dtype out
ADDITIVE_CASES = (
    ([[T]], None),
    ([[F]], None),
    ([[T, F], [T, T]], None),
    ([[T, F]], torch.float16),
    ([[T, F]], torch.bfloat16),
    ([[F, F], [T, F], [T, T]], torch.float64),
    ([[[[T, F, F], [T, T, F]]]], torch.float32),
    ([[[[T, F, F], [F, F, F]]]], torch.float16),
)


def check_additive_mask(attempt) -> None:
    for rows, dtype in ADDITIVE_CASES:
        mask = torch.tensor(rows)
        given = () if dtype is None else (dtype,)
        case = f"additive_mask(torch.tensor({rows}){'' if dtype is None else f', {dtype}'})"
        got = _numbers_of(attempt, mask, given, case)
        want = additive_mask(mask, *given)
        _check_kind(got, mask, want, case)
        if not torch.equal(got.cpu(), want):
            raise _name_wrong_numbers(got.cpu(), mask, want, case)


def _numbers_of(attempt, mask, given, case: str):
    try:
        return call(attempt, mask, *given, case=case)
    except (RuntimeError, OverflowError) as error:
        if "without overflow" not in str(error):
            raise
        raise Mistake(
            f"your number does not fit into {given[0] if given else torch.float32}: {error}.",
            case=case,
            idea="Each dtype has a range of its own. `torch.finfo(dtype).min` is the lowest number of that dtype.",
        ) from None


def _check_kind(got, mask, want, case: str) -> None:
    if not isinstance(got, torch.Tensor):
        raise Mistake(
            f"it should return a tensor; yours returned {kind(got)}.",
            case=case,
            idea="It is added to the scores, which are a tensor.",
        )
    if got.shape != mask.shape:
        raise Mistake(
            f"the shape should be that of the mask, {list(mask.shape)}; yours is {list(got.shape)}.",
            case=case,
            idea="One number for each cell, whatever axes the mask has.",
        )
    if got.dtype == torch.bool:
        raise Mistake(
            "it should hold numbers; yours holds True and False.",
            case=case,
            idea="Added to a score, True counts as 1 and False as 0: both leave it nearly as it was.",
        )
    if got.dtype != want.dtype:
        names = [str(dtype).removeprefix("torch.") for dtype in (want.dtype, got.dtype)]
        raise Mistake(
            f"it should hold {names[0]}; yours holds {names[1]}.",
            case=case,
            idea="Make the zeros in the dtype that is asked for: `torch.zeros(mask.shape, dtype=dtype)`. A Python number such as 0.0 alone "
            "gives float32.",
        )


def _name_wrong_numbers(got, mask, want, case: str) -> Mistake:
    lowest = torch.finfo(want.dtype).min
    if got.isnan().any():
        return Mistake(
            f"it should be {short(want)}; yours is {short(got)}.",
            case,
            "0 times infinity is NaN. Don't multiply; choose between two numbers: `masked_fill` or `torch.where`.",
        )
    if (mask.any() or lowest in got) and torch.equal(got, torch.where(mask, lowest, 0.0).to(want.dtype)):
        return Mistake(
            f"it should be {short(want)}; yours is {short(got)}.",
            case,
            "It is turned round. True means allowed, and there the score stays as it is: add 0.",
        )
    allowed, forbidden = set(got[mask].tolist()), set(got[~mask].tolist())
    if allowed - {0.0}:
        return Mistake(
            f"where the mask is True the number should be 0; yours is {allowed.pop():g}.",
            case,
            "An allowed score stays as it is, so add 0 to it.",
        )
    number = forbidden.pop()
    what = f"where the mask is False the number should be {lowest:g}, the lowest of {str(want.dtype).removeprefix('torch.')}; yours is {number:g}."
    if number == -math.inf and want.dtype != torch.float32:
        idea = (
            "The lowest number of another dtype does not fit here and turns to minus infinity. Ask for that of the dtype itself, "
            "`torch.finfo(dtype).min`."
        )
    elif number == -math.inf:
        idea = (
            "With minus infinity, a row in which everything is forbidden gives 0 / 0 in the softmax: NaN. The lowest number gives equal "
            "weights: useless, but numbers."
        )
    elif number in (0.0, -1.0, 1.0):
        idea = "A number of that size hardly changes a score. It must be so low that nothing is left of the weight: `torch.finfo(dtype).min`."
    elif number > 0:
        idea = "`torch.finfo(dtype)` has several entries: `tiny` is the smallest above 0, `max` the largest. The lowest is `min`, far below 0."
    else:
        idea = "A constant of your own is too small for one dtype and too large for another. `torch.finfo(dtype).min` always fits."
    return Mistake(what, case=case, idea=idea)
