"""Judges 04.5, `additive_mask`: 0 where attending is allowed, the dtype's minimum elsewhere."""

import math

import torch

from lessons_lib.attention.masks import additive_mask
from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_01.words import kind

T, F = True, False
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# (mask, dtype), smallest first; None leaves the dtype out
ADDITIVE_CASES = (
    ([[T]], None),
    ([[T, F]], None),
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
        got = _call(attempt, mask, given, case)
        want = additive_mask(mask, *given)
        _check_kind(got, mask, want, case)
        if not torch.equal(got.cpu(), want):
            raise _name_wrong_values(got.cpu(), mask, want, case)


def _call(attempt, mask, given, case: str):
    try:
        return call(attempt, mask, *given, case=case)
    except (RuntimeError, OverflowError, ValueError, IndexError, TypeError) as error:
        if "without overflow" not in str(error):
            _refuse_two_axes_only(mask, error, case)
            raise
        raise Mistake(
            f"your value does not fit into {given[0] if given else torch.float32}: {error}.",
            case=case,
            idea="Each dtype has its own range. `torch.finfo(dtype).min` is the lowest value of that dtype.",
        ) from None


def _refuse_two_axes_only(mask, error: Exception, case: str) -> None:
    """Masks with two axes come first in every dtype, so only the number of axes is new here."""
    if mask.dim() != 2:
        raise Mistake(
            f"with a mask of {mask.dim()} axes, your code raised {type(error).__name__}: {str(error)[:120]}",
            case=case,
            idea="It works with two axes, but a mask may have any number of them. `masked_fill` and `torch.where` work "
            "cell by cell, whatever the shape.",
        ) from None


def _dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _check_kind(got, mask, want, case: str) -> None:
    if not isinstance(got, torch.Tensor):
        raise Mistake(
            f"it should return a tensor; yours returned {kind(got)}.",
            case=case,
            idea="The mask is added to the scores, and those are a tensor.",
        )
    if got.shape != mask.shape:
        raise Mistake(
            f"the result should have the shape of the mask, {list(mask.shape)}; yours has {list(got.shape)}.",
            case=case,
            idea="There is one value per cell, whatever axes the mask has.",
        )
    if got.dtype == torch.bool:
        raise Mistake(
            f"the dtype should be {_dtype_name(want)}; yours is bool.",
            case=case,
            idea="Added to a score, True counts as 1 and False as 0. Neither changes the score by much.",
        )
    if got.dtype != want.dtype:
        raise Mistake(
            f"the dtype should be {_dtype_name(want)}; yours is {_dtype_name(got)}.",
            case=case,
            idea="Make the zeros in the requested dtype: `torch.zeros(mask.shape, dtype=dtype)`. A plain Python "
            "float such as 0.0 gives float32.",
        )


def _name_wrong_values(got, mask, want, case: str) -> Mistake:
    lowest = torch.finfo(want.dtype).min
    if got[~mask].isnan().any():
        return Mistake(
            f"it should be {short(want)}; yours is {short(got)}.",
            case,
            "Where the mask is False, yours is NaN. Added to a score, that gives NaN, which no softmax can hide: use "
            "`torch.finfo(dtype).min`.",
        )
    if got.isnan().any():
        return Mistake(
            f"it should be {short(want)}; yours is {short(got)}.",
            case,
            "0 times infinity is NaN. Don't multiply. Pick one of two values per cell, with `masked_fill` or "
            "`torch.where`.",
        )
    if (mask.any() or lowest in got) and torch.equal(got, additive_mask(~mask, want.dtype)):
        return Mistake(
            f"it should be {short(want)}; yours is {short(got)}.",
            case,
            "It is inverted. True means allowed, and an allowed score stays unchanged: add 0.",
        )
    allowed, forbidden = set(got[mask].tolist()), set(got[~mask].tolist())
    if allowed - {0.0}:
        return Mistake(
            f"where the mask is True, the value should be 0; yours is {allowed.pop():g}.",
            case,
            "An allowed score should stay unchanged, so add 0.",
        )
    value = forbidden.pop()
    what = (
        f"where the mask is False, the value should be {lowest:g}, the lowest {_dtype_name(want)}; yours is {value:g}."
    )
    if value == -math.inf and want.dtype != torch.float32:
        idea = (
            "The lowest value of another dtype doesn't fit into this one and becomes minus infinity. Use the minimum "
            "of the dtype itself, `torch.finfo(dtype).min`."
        )
    elif value == -math.inf:
        idea = (
            "With minus infinity, a row in which everything is forbidden gives 0 / 0 in the softmax, which is NaN. "
            "With the dtype's minimum the weights are equal: useless, but finite."
        )
    elif value == 0 and not mask.any():  # a row with a True was right before
        idea = (
            "Here the whole row is False. It gets the minimum as well, like any other: equal values give equal "
            "weights, which are finite."
        )
    elif value and lowest / value in (2.0, 4.0, 10.0, 100.0):
        idea = f"That's the minimum divided by {lowest / value:g}. Use `torch.finfo(dtype).min` itself."
    elif value == 0:
        idea = (
            "With 0 the key isn't forbidden. (If you fill the value in: `masked_fill` returns a new tensor and leaves "
            "the old one as it is.)"
        )
    elif others := [str(d).removeprefix("torch.") for d in FLOATS if value == torch.finfo(d).min]:
        idea = f"That's the lowest {others[0]}. Use the minimum of the dtype itself, `torch.finfo(dtype).min`."
    elif value == 1.0 or -100 <= value <= 0:
        idea = (
            "A value of that size hardly changes a score. It must be so low that the weight becomes 0: "
            "`torch.finfo(dtype).min`."
        )
    elif value > 0:
        idea = (
            "`torch.finfo(dtype)` has several attributes: `tiny` is the smallest positive value, `max` the largest "
            "value. The lowest value is `min`, far below 0."
        )
    else:
        idea = (
            "A fixed constant is too small for one dtype and too large for another. `torch.finfo(dtype).min` always "
            "fits."
        )
    return Mistake(what, case=case, idea=idea)
