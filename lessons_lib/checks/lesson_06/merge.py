"""Checks 06.5, `merge`: two parts rescaled to the same maximum and added."""

import torch

from lessons_lib.attention.online_softmax import Partial, add_block, merge, nothing_seen
from lessons_lib.checks.exercise import Mistake, call
from lessons_lib.checks.lesson_06.partials import (
    FILLED_IN,
    NONE,
    NOT_QUITE_0,
    check_is_partial,
    check_unchanged,
    clone,
    one_query_wrong,
    partial,
    same,
    told,
    wrong_field,
)

# (description, one, other), smallest first. Two queries come before one: they tell more mistakes apart.
CASES = (
    (
        "two queries. one: maxima 2 and 5, totals 1.5 and 1, outputs 20 and 7; other: maxima 3 and 4, totals "
        "1 and 2, outputs 30 and 4.",
        partial([2, 5], [1.5, 1], [[20], [7]]),
        partial([3, 4], [1, 2], [[30], [4]]),
    ),
    (
        "the same maximum 2: totals 1.5 and 1, outputs 20 and 30.",
        partial([2], [1.5], [[20]]),
        partial([2], [1], [[30]]),
    ),
    (
        "two-dimensional values. one: maximum 3, total 1, output 30 and 1; other: maximum 2, total 1.5, "
        "output 20 and 6.",
        partial([3], [1], [[30, 1]]),
        partial([2], [1.5], [[20, 6]]),
    ),
    ("`other` has seen no key; one: maximum 2, total 1.5, output 20.", partial([2], [1.5], [[20]]), nothing_seen(1, 1)),
    ("`one` has seen no key; other: maximum 2, total 1.5, output 20.", nothing_seen(1, 1), partial([2], [1.5], [[20]])),
    ("neither has seen a key.", nothing_seen(1, 1), nothing_seen(1, 1)),
    (
        "the first of two queries has seen no key in either part.",
        partial([NONE, 2], [0, 1.5], [[0], [20]]),
        partial([NONE, 3], [0, 1], [[0], [30]]),
    ),
    ("large maxima, 300 and 200.", partial([300], [1.5], [[20]]), partial([200], [1], [[30]])),
    ("maxima far below zero, -300 and -301.", partial([-300], [1.5], [[20]]), partial([-301], [1], [[30]])),
)
EITHER = "Either part may have the larger one, and it may differ from query to query."


def check_merge(attempt) -> None:
    for case, one, other in CASES:
        _check_one(attempt, one, other, case)
    generator = torch.Generator().manual_seed(6)
    for spread in (1.0, 60.0):
        _check_many_parts(attempt, spread, generator)


def _check_one(attempt, one: Partial, other: Partial, case: str) -> None:
    want, mine = merge(one, other), (clone(one), clone(other))
    got = call(attempt, *mine, case=case)
    for name, before, now in zip(("one", "other"), (one, other), mine):
        check_unchanged(before, now, name, case)
    check_is_partial(got, want, case)
    wrong = wrong_field(got, want)
    if wrong:
        found, expected = getattr(got, wrong), getattr(want, wrong)
        raise Mistake(
            f"`{wrong}` should be {told(expected)}; yours is {told(found)}.",
            case=case,
            idea=NOT_QUITE_0 if same(found, expected) else _why(wrong, found, one, other),
        )


def _why(wrong: str, found, one: Partial, other: Partial) -> str:
    maximum = torch.maximum(one.maximum, other.maximum)
    if bool(found.isnan().any()):
        if bool((maximum == NONE).any()):
            return (
                "−∞ − (−∞) is NaN. Where neither part has seen a key, all three maxima are −∞, and the result is the "
                "empty state again. What did you subtract there in `add_block`?"
            )
        return (
            "A part that has seen no key has total 0 and maximum −∞. Dividing by its total, or multiplying by its "
            "maximum, can give NaN."
        )
    if bool(found.isinf().any()) and wrong != "maximum":
        return (
            "An exponential overflowed. The factor of each part is exp(its own maximum − the larger one), which "
            "is never above 1."
        )
    reference = maximum.masked_fill(maximum == NONE, 0.0)
    if wrong == "maximum":
        if same(found, reference):
            return FILLED_IN
        for guess, idea in (
            (one.maximum, f"That is the maximum of `one`. {EITHER}"),
            (other.maximum, f"That is the maximum of `other`. {EITHER}"),
            (
                one.maximum + other.maximum,
                "The largest score over both parts is the larger of the two maxima, not their sum.",
            ),
            (
                torch.minimum(one.maximum, other.maximum),
                "That is the smaller of the two. Relative to it, an exponential could overflow.",
            ),
            (maximum.max().expand_as(found), "Each query has its own maximum."),
        ):
            if same(found, guess):
                return idea
        return "For each query, take the larger of the two: `torch.maximum(one.maximum, other.maximum)`."
    factors = [(part.maximum - reference).exp() for part in (one, other)]
    if wrong == "output":
        factors = [factor[:, None] for factor in factors]
    a, b = (getattr(part, wrong) for part in (one, other))
    some_empty = bool((maximum == NONE).any()) and bool((maximum != NONE).any())
    for_all = " Does your code ask once for all queries whether a part is empty? Ask for each." if some_empty else ""
    for guess, idea in (
        (
            a + b,
            "The two were added without rescaling. They are relative to different maxima: multiply each by "
            "exp(its own maximum − the larger one).",
        ),
        (
            a * factors[0] + b,
            "Only `one` was rescaled to the new maximum. `other` needs its factor too, where `one` has the "
            "larger maximum.",
        ),
        (
            a + b * factors[1],
            "Only `other` was rescaled to the new maximum. `one` needs its factor too, where `other` has the "
            "larger maximum.",
        ),
        (
            a * factors[1] + b * factors[0],
            "The factors are swapped: each part is multiplied by exp(*its own* maximum − the larger one).",
        ),
        (
            a / factors[0] + b / factors[1],
            "The factors are upside down: exp(its own maximum − the larger one), at most 1.",
        ),
        *(
            (
                sums,
                f"The factor of `{name}` is upside down: exp(its own maximum − the larger one), at most 1.",
            )
            for name, sums in (
                ("one", a / factors[0] + b * factors[1]),
                ("other", a * factors[0] + b / factors[1]),
            )
        ),
        (
            (a * factors[0] + b * factors[1]) / 2,
            "You averaged the two. Just add the sums; the division by the total comes last and takes care of the rest.",
        ),
        (
            (a + b) * factors[0],
            "Both were multiplied by the factor of `one`. Each part has its own: exp(*its own* maximum − the "
            "larger one).",
        ),
        (
            (a + b) * factors[1],
            "Both were multiplied by the factor of `other`. Each part has its own: exp(*its own* maximum − the larger "
            "one).",
        ),
        (a * factors[0], "The keys of `other` are missing." + for_all),
        (b * factors[1], "The keys of `one` are missing." + for_all),
        (
            torch.where(_like(one.maximum >= other.maximum, a), a, b),
            "Only the part with the larger maximum is left. The other one counts for less, but not for nothing.",
        ),
        (
            a * _like((one.maximum - other.maximum).exp(), a) + b,
            "Both are relative to the maximum of `other` now. Where `one` has the larger maximum, the new one is that.",
        ),
        (
            a + b * _like((other.maximum - one.maximum).exp(), b),
            "Both are relative to the maximum of `one` now. Where `other` has the larger maximum, the new one is that.",
        ),
    ):
        if same(found, guess):
            return idea
    if wrong == "output":
        normalized = one.output / one.total[:, None] + other.output / other.total[:, None]
        if same(found, normalized) or same(found, normalized / 2):
            return (
                "You divided by the totals. Add the outputs as sums, each times its factor: the parts don't weigh "
                "the same."
            )
        merged = merge(one, other)
        if same(found, merged.output / merged.total[:, None]):
            return "You divided by the total. Return the sums: more parts may follow, and `attention_of` divides."
    if apart := one_query_wrong(wrong, found, getattr(merge(one, other), wrong)):
        return apart
    used = [told(factor.flatten()) for factor in factors]
    return (
        f"The factors here are {used[0]} for `one` and {used[1]} for `other`, one per query. Which factors does "
        f"your code use, and does it multiply each part's `{wrong}` by that part's own?"
    )


def _like(factor: torch.Tensor, field: torch.Tensor) -> torch.Tensor:
    """A [Q] tensor with the axes of a field, [Q] or [Q, D]."""
    return factor if field.dim() == 1 else factor[:, None]


def _check_many_parts(attempt, spread: float, generator) -> None:
    """Eight parts merged in a tree and in a chain, against softmax over all keys at once."""
    scores = spread * torch.randn(3, 40, generator=generator)
    scores[1, 7:] = NONE
    values = torch.randn(40, 2, generator=generator)
    case = (
        f"3 queries and 40 keys in eight parts, scores up to {scores.max():.0f}; the second query sees only the "
        "first 7 keys."
    )
    parts = [add_block(nothing_seen(3, 2), s, v) for s, v in zip(scores.split(5, dim=1), values.split(5))]
    expected = scores.softmax(dim=1) @ values
    chain = parts[0]
    for part in parts[1:]:
        chain = call(attempt, chain, part, case=case)
    while len(parts) > 1:
        parts = [call(attempt, parts[i + 1], parts[i], case=case) for i in range(0, len(parts), 2)]
    for how, merged in (("one after another", chain), ("in pairs", parts[0])):
        found = merged.output / merged.total[:, None]
        if not torch.allclose(found, expected, rtol=1e-3, atol=1e-4):
            far = float((found - expected).abs().max())
            raise Mistake(
                f"merged {how}, output / total should be the attention; it is off by up to {far:.2g}.",
                case=case,
                idea="The result must not depend on the order in which parts are merged.",
            )
