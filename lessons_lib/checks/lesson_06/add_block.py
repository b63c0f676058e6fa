"""Checks 06.2, `add_block`: the running maximum, and the old sums rescaled to it."""

import torch

from lessons_lib.attention.online_softmax import Partial, add_block, nothing_seen
from lessons_lib.checks.exercise import Mistake, call
from lessons_lib.checks.lesson_06.partials import (
    FILLED_IN,
    HIDDEN_BLOCK,
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

# (description, seen, scores, values), smallest first. The empty state is not the first case: its −∞ would hide other
# mistakes behind NaN.
CASES = (
    (
        "seen: maximum 2, total 1.5, output 20; then a larger score: scores [3], value [30].",
        partial([2], [1.5], [[20]]),
        [[3.0]],
        [[30.0]],
    ),
    (
        "seen: maximum 2, total 1.5, output 20; then smaller scores: [1, 0], values [30] and [40].",
        partial([2], [1.5], [[20]]),
        [[1.0, 0.0]],
        [[30.0], [40.0]],
    ),
    ("the first block: scores [1, 2], values [10] and [20].", nothing_seen(1, 1), [[1.0, 2.0]], [[10.0], [20.0]]),
    (
        "two queries with maxima 2 and 5; scores [4, 3] and [1, 2].",
        partial([2, 5], [1.5, 1], [[20, 1], [7, 3]]),
        [[4.0, 3.0], [1.0, 2.0]],
        [[10.0, 1.0], [20.0, 2.0]],
    ),
    (
        "two queries with maxima 5 and 2; scores [1, 2] and [4, 3].",
        partial([5, 2], [1, 1.5], [[7, 3], [20, 1]]),
        [[1.0, 2.0], [4.0, 3.0]],
        [[10.0, 1.0], [20.0, 2.0]],
    ),
    (
        "seen: maximum 2, total 1.5, output 20; the second key of the block is masked: scores [3, -inf].",
        partial([2], [1.5], [[20]]),
        [[3.0, NONE]],
        [[30.0], [40.0]],
    ),
    (
        "seen: maximum 2, total 1.5, output 20; all keys of the block are masked: scores [-inf, -inf].",
        partial([2], [1.5], [[20]]),
        [[NONE, NONE]],
        [[30.0], [40.0]],
    ),
    (
        "nothing seen, and all keys of the block are masked: scores [-inf, -inf].",
        nothing_seen(1, 1),
        [[NONE, NONE]],
        [[30.0], [40.0]],
    ),
    (
        "nothing seen; the first of two queries may see no key, the second has scores [1, 2].",
        nothing_seen(2, 1),
        [[NONE, NONE], [1.0, 2.0]],
        [[10.0], [20.0]],
    ),
    (
        "two queries: the first has seen nothing, the second has maximum 2; scores [1] and [3].",
        partial([NONE, 2], [0, 1.5], [[0], [20]]),
        [[1.0], [3.0]],
        [[30.0]],
    ),
    (
        "large scores: seen maximum 200, total 1, output 10; scores [300, 299].",
        partial([200], [1], [[10]]),
        [[300.0, 299.0]],
        [[10.0], [20.0]],
    ),
    (
        "scores far below zero: nothing seen; scores [-300, -301].",
        nothing_seen(1, 1),
        [[-300.0, -301.0]],
        [[10.0], [20.0]],
    ),
    (
        "scores very far below zero: nothing seen; scores [-100000, -100001].",
        nothing_seen(1, 1),
        [[-100_000.0, -100_001.0]],
        [[10.0], [20.0]],
    ),
)


def check_add_block(attempt) -> None:
    for case, seen, scores, values in CASES:
        _check_one(attempt, seen, torch.tensor(scores), torch.tensor(values), case)
    generator = torch.Generator().manual_seed(6)
    for index, (queries, size, dtype) in enumerate(
        [(1, 4, torch.float32), (3, 7, torch.float32), (5, 2, torch.float64)]
    ):
        _check_many_blocks(attempt, queries, size, dtype, 30.0 * index + 1, generator)


def _check_one(attempt, seen: Partial, scores, values, case: str) -> None:
    before, want = clone(seen), add_block(seen, scores, values)
    seen = clone(seen)
    got = call(attempt, seen, scores, values, case=case)
    check_unchanged(before, seen, "seen", case)
    check_is_partial(got, want, case, " If it is one: is the block's own sum `weights @ values`?")
    wrong = wrong_field(got, want)
    if wrong:
        found, expected = getattr(got, wrong), getattr(want, wrong)
        what = f"`{wrong}` should be {told(expected)}; yours is {told(found)}."
        idea = _why_not_the_same_again(attempt, wrong, got, seen, scores, values)
        if not idea:
            idea = NOT_QUITE_0 if same(found, expected) else _why(wrong, found, expected, seen, scores, values, got)
        raise Mistake(what, case=case, idea=idea)


def _why_not_the_same_again(attempt, wrong: str, got: Partial, seen: Partial, scores, values) -> str:
    """What to say if the result depends on earlier calls, here on one with much larger scores."""
    found = getattr(got, wrong).clone()
    above = 1000 + float(got.maximum.abs().nan_to_num(posinf=0.0).max())
    try:
        attempt(Partial(seen.maximum + above, seen.total.clone(), seen.output.clone()), scores + above, values.clone())
        again = getattr(attempt(clone(seen), scores.clone(), values.clone()), wrong)
        if torch.allclose(again.double(), found.double(), equal_nan=True):
            return ""
    except Exception:  # noqa: BLE001 - it fails in another way there
        return ""
    return (
        f"It depends on earlier calls: after one with much larger scores, the same arguments give {told(again)}. "
        "Your function keeps something between calls, in a global variable or an attribute. Calls belong to different "
        "requests and heads, and all that a call may know comes in `seen`."
    )


def _why(wrong: str, found, expected, seen: Partial, scores, values, got: Partial) -> str:
    block_maximum = scores.max(dim=1).values
    maximum = torch.maximum(seen.maximum, block_maximum)
    if bool(found.isnan().any()):
        if bool((maximum == NONE).any()):
            return (
                "−∞ − (−∞) is NaN. A query that has seen no key yet, and sees none in this block, has −∞ as its old "
                "and as its new maximum. It should keep its state, total 0 and output 0. Which of your subtractions "
                "meets two infinities, and what could you subtract there instead?"
            )
        first = (seen.maximum == NONE) & (maximum < -80)
        if bool(first.any()):
            new = told(maximum[first][:1])[1:-1]
            return (
                f"Did you replace the *old* maximum, −∞, with 0? exp(0 − ({new})) is ∞, and ∞ × the old "
                "total, 0, is NaN. Only replace the *new* maximum where it is −∞: "
                f"exp(−∞ − ({new})) is 0, as it should be."
            )
        if bool((seen.maximum == NONE).any()):
            return (
                "Before the first key the old maximum is −∞. The factor exp(−∞ − new maximum) is 0, and 0 × the "
                "old total is 0. NaN comes from ∞ − ∞, 0 × ∞ or 0 / 0."
            )
        if bool(torch.cat([seen.maximum, block_maximum]).exp().isinf().any()):
            return (
                f"exp({float(maximum.max()):g}) alone is ∞, and ∞ / ∞, ∞ − ∞ and 0 × ∞ are NaN. Does your code take "
                "an exponential before it subtracts the new maximum?"
            )
        return (
            "NaN comes from ∞ − ∞, 0 × ∞ or 0 / 0. Did you multiply by minus infinity, or divide here? The division "
            "comes last, in `attention_of`."
        )
    if bool(found.isinf().any()) and wrong != "maximum":
        return (
            "An exponential overflowed. Every exponent is a score minus the new maximum, or the old maximum minus "
            "the new one, so it is never above 0."
        )
    reference = maximum.masked_fill(maximum == NONE, 0.0)
    if wrong == "maximum":
        if same(found, reference):
            return FILLED_IN
        if apart := one_query_wrong(wrong, found, maximum):
            return apart
        if bool(((maximum == NONE) & found.isfinite()).any()):
            return "Return −∞ itself where no key was seen. A finite number, however small, could be a score."
        if bool((block_maximum == NONE).all()) and same(found, block_maximum):
            return HIDDEN_BLOCK  # an earlier case has shown that it takes the larger maximum
        of_all = "Each query has its own maximum: take the largest score along `dim=1`, not of the whole block."
        for guess, idea in (
            (
                block_maximum,
                "That is the largest score of this block. An earlier block may have had a larger one: take "
                "the larger of the two, for each query.",
            ),
            (
                seen.maximum,
                "The maximum did not change. It should be the largest score of all keys so far, including "
                "this block's.",
            ),
            (scores.max().expand_as(found), of_all),
            (maximum.max().expand_as(found), of_all),
            (scores.min(dim=1).values, "That is the smallest score of the block."),
        ):
            if same(found, guess):
                return idea
        return (
            "For each query, take the larger of the old maximum and the block's largest score, "
            "`torch.maximum(seen.maximum, scores.max(dim=1).values)`."
        )
    if apart := one_query_wrong(wrong, found, expected):
        return apart
    rescale, weights = (seen.maximum - reference).exp(), (scores - reference[:, None]).exp()
    old, own = (seen.total, weights.sum(dim=1)) if wrong == "total" else (seen.output, weights @ values)
    by = rescale if wrong == "total" else rescale[:, None]
    local = (scores - block_maximum.masked_fill(block_maximum == NONE, 0.0)[:, None]).exp()
    of_block = local.sum(dim=1) if wrong == "total" else local @ values
    bare = scores.exp().sum(dim=1) if wrong == "total" else scores.exp() @ values
    if not bool(seen.total.any()) and not bool(found.any()):
        if bool((block_maximum < -80).all()):  # an earlier case has shown that a first block isn't rescaled
            return (
                "Every exponential is 0 here: what you subtract is far above all of these scores. Subtract the new "
                "maximum itself, however low it is; something else, such as 0, only where it is −∞."
            )
        return (
            "The block's own sum is missing. Did you multiply it by the factor as well? For the first block that "
            "is exp(−∞) = 0. Only the old sums are rescaled."
        )
    for guess, idea in (
        (
            old + own,
            f"The old {wrong} was not rescaled. Its exponentials are exp(score − old maximum), and the block's are "
            "exp(score − new maximum). By which factor do the two differ, whatever the score is?",
        ),
        (own, f"The old sum is gone. The new {wrong} is the old one, rescaled, plus the block's own sum."),
        (old * by, "The block's own sum is missing."),
        (
            old / by + own,
            "The factor is upside down. A larger maximum makes every exponential smaller, so the old sums can only "
            "shrink: the factor is at most 1.",
        ),
        (
            old * by + of_block,
            "The block's weights are relative to the block's own maximum. Subtract the new maximum, the "
            "largest of all scores so far.",
        ),
        (old + bare, "These are bare exponentials. Subtract the new maximum from every score first."),
        (
            old * by + bare,
            "The block's weights are bare exponentials. Subtract the new maximum from every score first.",
        ),
        (
            old * by + _relative_to(seen.maximum, scores, values, wrong),
            "The block's weights are relative to the *old* maximum. Subtract the new one, the largest of all scores "
            "so far.",
        ),
        *_other_sums(old * by, seen, scores, values, reference, wrong, got),
        (
            (old + own) * by,
            "Rescale only the old sums. The block's weights are already relative to the new maximum.",
        ),
        (
            expected / got.total if wrong == "total" else expected / got.total[:, None],
            "The output was divided by the total. Keep the sums, so that later blocks can be added: the "
            "division comes last, in `attention_of`.",
        ),
        (
            ((seen.total * rescale)[:, None] * seen.output + own) / got.total[:, None]
            if wrong == "output"
            else found[:0],
            "Yours times the new total is the old total × factor × the old output, plus `weights @ values`: it's the "
            "attention so far. `output` is the sum itself: rescale it by the factor alone, and don't divide it. The "
            "division comes last, in `attention_of`.",
        ),
    ):
        if guess.shape == found.shape and same(found, guess):
            return idea
    if bool((maximum == NONE).all()) and wrong == "total" and same(found, torch.full_like(found, scores.shape[1])):
        return (
            "Each masked key counts with a weight of 1; its weight is 0. exp(−∞ − 0) is 0: use 0 in place of the "
            "maximum only, not of a score, and not in an exponent."
        )
    parts = f"Here the rescaled old {wrong} is {told(old * by)}, and this block adds {told(own)}"
    if wrong == "output" and len(seen.total) > 1:
        parts += ". The factor has to be a column, `factor[:, None]` of shape [Q, 1]"
    return parts + ". Which of the two does your code get differently?"


def _relative_to(maximum, scores, values, wrong: str):
    """The block's own sum, relative to these maxima; where one is −∞, to 0."""
    weights = (scores - maximum.masked_fill(maximum == NONE, 0.0)[:, None]).exp()
    return weights.sum(dim=1) if wrong == "total" else weights @ values


def _other_sums(rescaled, seen: Partial, scores, values, reference, wrong: str, got: Partial):
    """A block added in the wrong way to old sums that are right, and what to say about it."""
    weights = (scores - reference[:, None]).exp()

    def of(weights):
        return weights.sum(dim=1) if wrong == "total" else weights @ values

    old = seen.total if wrong == "total" else seen.output
    by = 2 ** (seen.maximum - reference) if wrong == "total" else 2 ** (seen.maximum - reference)[:, None]
    yield (
        old + of(weights) * (rescaled / old).nan_to_num(),
        "The factor was applied to the block's own sum. It converts the *old* sums, relative to the old maximum.",
    )
    yield old * by + of(2 ** (scores - reference[:, None])), "These are powers of 2, not of e: use `exp`."
    by_softmax = scores.softmax(dim=1)
    in_output = seen.output * (seen.maximum - reference).exp()[:, None] + by_softmax @ values
    yield (
        rescaled + of(by_softmax),
        "The block's weights were divided by their sum, as `softmax` does. Add the weights themselves: the division "
        "comes last, over all blocks."
        if same(got.output, in_output)
        else "This block adds exactly 1 to the total. Add the weights of all its keys, each exp(score − new maximum).",
    )
    if wrong == "output":
        yield rescaled + values.sum(dim=0), "The block's values were added without their weights: `weights @ values`."
    if wrong == "total":
        yield rescaled + weights.mean(dim=1), "The block's weights were averaged. Add their sum."
        keys = scores.isfinite().sum(dim=1)
        yield rescaled + keys, "The block's keys were counted. Add their weights, exp(score − new maximum)."
        yield rescaled + weights.sum(), "The weights of all queries were added up. Each query has its own: `dim=1`."


def _check_many_blocks(attempt, queries: int, size: int, dtype, spread: float, generator) -> None:
    """Many blocks, with some keys masked, against softmax over all keys at once."""
    keys = 6 * size + 1
    scores = spread * torch.randn(queries, keys, generator=generator, dtype=dtype)
    hidden = torch.rand(queries, keys, generator=generator) < 0.4
    hidden[:, 2] = False
    scores, values = scores.masked_fill(hidden, NONE), torch.randn(keys, 3, generator=generator, dtype=dtype)
    case = f"{queries} queries and {keys} keys in blocks of {size}, some keys masked, scores up to {scores.max():.0f}."
    seen = nothing_seen(queries, 3, dtype)
    for own_scores, own_values in zip(scores.split(size, dim=1), values.split(size)):
        seen = call(attempt, seen, own_scores, own_values, case=case)
    found, expected = seen.output / seen.total[:, None], scores.softmax(dim=1) @ values
    if not torch.allclose(found, expected, rtol=1e-3, atol=1e-4):
        far = float((found - expected).abs().max())
        raise Mistake(
            f"after all blocks, output / total should be the attention; it is off by up to {far:.2g}.",
            case=case,
            idea="Does one call change something that a later call relies on?",
        )
