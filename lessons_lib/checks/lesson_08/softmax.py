"""Judges 08.1, `online_softmax`: one step for several rows at once, in base 2."""

from dataclasses import dataclass

import lessons_lib.kernels.triton_setup  # noqa: F401 - before Triton: decides whether kernels are compiled

# isort: split

# isort: split
import torch
import triton
import triton.language as tl

from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.kernels import close, compiled_too, run_through, values_text
from lessons_lib.kernels.paged_flash import LOG2_E

NONE = float("-inf")
PARTS = ("weights", "new_max", "row_sum", "acc")


class WrongResult(Exception):
    """The attempt didn't return four tiles of the right shapes.

    `is_swapped`: the shapes are right, but in another order. `is_factor`: `acc` has one value per row.
    """

    def __init__(self, words: str, is_swapped: bool = False, is_factor: bool = False):
        super().__init__(words)
        self.is_swapped = is_swapped
        self.is_factor = is_factor


def refuse_wrong_result(result, rows: int, keys: int, dim: int) -> None:
    """Called inside the kernel below, which only runs interpreted, where a tile is a Python object.

    Raises:
        WrongResult: with a message for the learner.
    """
    if not isinstance(result, tuple) and not hasattr(result, "__len__"):
        raise WrongResult(f"it returned {'nothing' if result is None else 'a single value'}")
    if len(result) != 4:
        raise WrongResult(f"it returned {len(result)} values")
    wanted = ([rows, keys], [rows], [rows], [rows, dim])
    shapes = [[int(size) for size in getattr(value, "shape", [])] for value in result]
    for name, found, sizes in zip(PARTS, shapes, wanted):
        if found != sizes:
            is_factor = name == "acc" and found == [rows]
            words = f"`{name}` should have the sides {sizes}; yours has {found}"
            raise WrongResult(words, sorted(shapes) == sorted(wanted), is_factor)


@triton.jit
def one_step_kernel(
    ONLINE: tl.constexpr, scores, row_max, row_sum, acc, weights_out, max_out, sum_out, acc_out,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr
):  # fmt: skip
    """One call of the attempt; all four results are stored."""
    row, key, dim = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D)
    score_at, acc_at = row[:, None] * BLOCK_N + key[None, :], row[:, None] * BLOCK_D + dim[None, :]
    result = ONLINE(tl.load(scores + score_at), tl.load(row_max + row), tl.load(row_sum + row), tl.load(acc + acc_at))
    refuse_wrong_result(result, len(row.handle.data), len(key.handle.data), len(dim.handle.data))
    tl.store(weights_out + score_at, result[0])
    tl.store(max_out + row, result[1])
    tl.store(sum_out + row, result[2])
    tl.store(acc_out + acc_at, result[3])


@triton.jit
def loop_kernel(
    ONLINE: tl.constexpr, scores, state, out, steps, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr
):
    """Calls the attempt in a loop, as the decode kernel does. Only compiled, never run."""
    row, key, dim = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D)
    row_max, row_sum = tl.load(state + row), tl.load(state + row)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for step in range(steps):
        weights, row_max, row_sum, acc = ONLINE(
            tl.load(scores + step + row[:, None] * BLOCK_N + key[None, :]), row_max, row_sum, acc
        )
        acc += tl.sum(weights, axis=1)[:, None]
    tl.store(out + row[:, None] * BLOCK_D + dim[None, :], acc / row_sum[:, None])


@dataclass
class Step:
    """The arguments of one call.

    Attributes:
        scores: [rows, keys].
        row_max, row_sum: [rows].
        acc: [rows, D].
    """

    scores: torch.Tensor
    row_max: torch.Tensor
    row_sum: torch.Tensor
    acc: torch.Tensor

    @classmethod
    def of(cls, scores, row_max=None, row_sum=None, acc=None) -> "Step":
        """From lists; without a state, no key has been seen."""
        rows = len(scores)
        state = (row_max or [NONE] * rows, row_sum or [0.0] * rows, acc or [[0.0]] * rows)
        return cls(*(torch.tensor(part, dtype=torch.float32) for part in (scores, *state)))

    def want(self) -> tuple[torch.Tensor, ...]:
        """The four results, in float64."""
        scores, row_max, row_sum, acc = (part.double() for part in (self.scores, self.row_max, self.row_sum, self.acc))
        new_max = torch.maximum(row_max, scores.max(dim=1).values)
        reference = new_max.masked_fill(new_max == NONE, 0.0)
        weights, rescale = (scores - reference[:, None]).exp2(), (row_max - reference).exp2()
        return weights, new_max, row_sum * rescale + weights.sum(dim=1), acc * rescale[:, None]


# (description, step), smallest first.
CASES = (
    ("the first step: scores [1, 3].", Step.of([[1, 3]])),
    ("state: maximum 2, sum 1.5, acc 20; then a larger score, [3, 1].", Step.of([[3, 1]], [2], [1.5], [[20]])),
    ("state: maximum 2, sum 1.5, acc 20; then smaller scores, [1, 0].", Step.of([[1, 0]], [2], [1.5], [[20]])),
    (
        "two rows with the maxima 2 and 5; scores [4, 3] and [1, 2].",
        Step.of([[4, 3], [1, 2]], [2, 5], [1.5, 1], [[20, 1, 5, 4], [7, 3, 2, 2]]),
    ),
    (
        "four rows, two keys, the first step: scores [4, 3], [1, 2], [0, 5] and [6, 6].",
        Step.of([[4, 3], [1, 2], [0, 5], [6, 6]]),
    ),
    (
        "state: maximum 2, sum 1.5, acc 20; the second key is masked: scores [3, -inf].",
        Step.of([[3, NONE]], [2], [1.5], [[20]]),
    ),
    (
        "state: maximum 2, sum 1.5, acc 20; both keys are masked: scores [-inf, -inf].",
        Step.of([[NONE, NONE]], [2], [1.5], [[20]]),
    ),
    ("no key seen before, and both keys are masked: scores [-inf, -inf].", Step.of([[NONE, NONE]])),
    (
        "no key seen before; the first of two rows may see no key, the second has the scores [1, 2].",
        Step.of([[NONE, NONE], [1, 2]]),
    ),
    ("large scores: state maximum 300, sum 1, acc 10; scores [400, 399].", Step.of([[400, 399]], [300], [1], [[10]])),
    ("scores far below zero, no key seen before: [-400, -401].", Step.of([[-400, -401]])),
    ("scores very far below zero, no key seen before: [-100000, -100001].", Step.of([[-100_000, -100_001]])),
    ("no key seen before, and the largest score is 0: [0, -1].", Step.of([[0, -1]])),
    ("no key seen before; a weight that 16 bits can't hold: scores [0.7, 0.4].", Step.of([[0.7, 0.4]])),
    (
        "state: maximum 2, sum 1.4008, acc 1.4008, digits that 16 bits can't hold; then a larger score, [3, 1].",
        Step.of([[3, 1]], [2], [1.4008], [[1.4008]]),
    ),
)


def check_online_softmax(attempt) -> None:
    x = torch.zeros(4)
    compiled_too(
        lambda: _check_results(attempt),
        attempt,
        ((attempt, x, x, x, 3), dict(BLOCK_M=2, BLOCK_N=4, BLOCK_D=8)),
        kernel=loop_kernel,
    )


def _check_results(attempt) -> None:
    for case, step in CASES:
        _check_step(attempt, step, case)
    generator = torch.Generator().manual_seed(8)
    for rows, keys, dim in ((16, 8, 4), (2, 16, 8)):
        _check_many_steps(attempt, rows, keys, dim, generator)


def _step(attempt, step: Step, case: str) -> tuple[torch.Tensor, ...]:
    (rows, keys), dim = step.scores.shape, step.acc.shape[1]
    out = tuple(torch.full(shape, 7.25) for shape in ((rows, keys), (rows,), (rows,), (rows, dim)))
    try:
        run_through(
            attempt, one_step_kernel, (1,), attempt, step.scores, step.row_max, step.row_sum, step.acc, *out,
            BLOCK_M=rows, BLOCK_N=keys, BLOCK_D=dim, case=case
        )  # fmt: skip
    except WrongResult as error:
        idea = (
            "Return four tiles in this order: the weights [rows, keys], the new maximum [rows], the new sum [rows], "
            "and acc [rows, head size], rescaled."
        )
        if error.is_swapped:
            idea = f"All four have the right shapes, but the order is wrong. {idea}"
        elif error.is_factor:
            idea = (
                "`acc` has a whole head per row, and yours has one value: is that the factor itself? Return `acc` "
                "times the factor, with the factor as a column: `rescale[:, None]`."
            )
        elif "the sides" in str(error):
            idea = (
                "`axis=1`, along the keys, gives one value per row: `tl.max(scores, axis=1)`. To combine it with a "
                "tile, make it a column: `new_max[:, None]`."
            )
        raise Mistake(f"{error}.", case=case, idea=idea) from None
    return out


def _check_step(attempt, step: Step, case: str) -> None:
    got, want = _step(attempt, step, case), step.want()
    # The maximum first: all the others follow from it.
    for index in (1, 0, 2, 3):
        zeros = want[index] == 0
        if _same(got[index], want[index]) and not bool(got[index][zeros].any()):
            continue
        name = PARTS[index]
        idea = _why_nothing_seen(attempt, name, got, step) or _why(name, got, step)
        if step.scores.max() == 0:
            idea = "0 is a score like any other, also as the maximum. What is special is minus infinity: test for that."
        if _same(got[index], want[index]):
            idea = NOT_QUITE_0[name]
        elif close(got[index], want[index], 1e-3):
            idea = (
                "Nearly right: the difference is as small as rounding to 16 bits. Everything is float32 here; the "
                "kernel converts the weights itself."
            )
        raise Mistake(
            f"`{name}` should be {values_text(want[index])}; yours is {values_text(got[index])}.",
            case=case,
            idea=idea,
        )


def _same(got: torch.Tensor, want: torch.Tensor) -> bool:
    return torch.equal(got.isinf(), want.isinf()) and close(
        got.nan_to_num(nan=1e30, neginf=-1e9), want.nan_to_num(neginf=-1e9)
    )


NOT_QUITE_0 = {
    "weights": "The weight of a masked key is exactly 0: exp2(−∞) is 0. Does your code keep the exponents above some "
    "number? Thousands of masked keys together would count.",
    "row_sum": "A row that hasn't seen a key has a sum of exactly 0. Does your code add a small number, to avoid a "
    "division by 0? Every step would add it again, and nothing is divided here.",
    "acc": "Where `acc` is 0 it stays exactly 0: it is only rescaled. Does your code add a small number? Every step "
    "would add it again.",
}
RESCALED_TOO = "Rescale only the old sum. The weights are relative to the new maximum already."
NO_FACTOR = (
    " `acc` isn't either. Is the factor missing, or is `row_max` overwritten before the factor is computed from it? "
    "Then it's 1."
)
OLD_MAXIMUM = "You subtract the old maximum. The weights are relative to the new one."
# Right and wrong ideas all differ here: a larger score than before.
SEEN = Step.of([[3, 1]], [2], [1.5], [[20]])


def _why_nothing_seen(attempt, name: str, got: tuple[torch.Tensor, ...], step: Step) -> str:
    """If no row has seen a key, several wrong ideas look the same; so see what the attempt does if keys were seen."""
    if name == "new_max" or bool((step.row_max != NONE).any()) or bool((step.want()[1] == NONE).any()):
        return ""
    if name == "weights" and bool((step.scores < -200).all()) and not bool(got[0].any()):
        # an earlier case has shown that the first step is right
        return (
            "All weights are 0: what you subtract is far above all of these scores. Subtract the new maximum itself, "
            "however low it is. Only where it is minus infinity, subtract 0 instead: "
            '`tl.where(new_max == float("-inf"), 0.0, new_max)`. If you do: are low scores taken for masked ones?'
        )
    try:
        there = _step(attempt, SEEN, "")
    except Exception:  # noqa: BLE001 - it fails in another way there
        return ""
    if name == "weights" and _same(got[0], step.scores.exp2()) and _same(there[0], SEEN.want()[0]):
        return (
            "You subtract 0 where the *old* maximum is −∞. In the first step it always is. Test the new one: "
            '`tl.where(new_max == float("-inf"), 0.0, new_max)`.'
        )
    if name == "weights" and _same(there[0], (SEEN.scores.double() - SEEN.row_max.double()[:, None]).exp2()):
        return OLD_MAXIMUM
    up = (SEEN.want()[1] - SEEN.row_max.double()).exp2()
    if _same(there[2], SEEN.row_sum.double() * up + SEEN.want()[0].sum(dim=1)) or _same(
        there[3], SEEN.acc.double() * up[:, None]
    ):
        return (
            "The factor is inverted: exp2(old maximum − new maximum), at most 1, and 0 before the first key. Yours is "
            "exp2(new − old), which is infinite there."
        )
    both = (SEEN.row_sum.double() + SEEN.want()[0].sum(dim=1)) / up
    if name == "row_sum" and _same(there[2], both):
        return RESCALED_TOO
    return ""


def _why(name: str, got: tuple[torch.Tensor, ...], step: Step) -> str:
    found = got[PARTS.index(name)].double()
    scores, row_max, row_sum, acc = (part.double() for part in (step.scores, step.row_max, step.row_sum, step.acc))
    weights, new_max, total, rescaled = step.want()
    if name == "new_max":
        return _why_maximum(found, scores, row_max, new_max, row_sum, total)
    reference = new_max.masked_fill(new_max == NONE, 0.0)
    own_max = scores.max(dim=1).values
    if bool(found.isnan().any()):
        if bool((new_max == NONE).any()):
            return (
                "A row that hasn't seen a key has the maximum −∞, and −∞ − (−∞) is NaN. Where the new maximum is minus "
                "infinity, subtract 0 instead."
            )
        return (
            "NaN comes from ∞ − ∞, 0 × ∞ or 0 / 0. Exponents are a score minus the new maximum, and the old maximum "
            "minus the new one."
        )
    if bool(found.isinf().any()):
        return "An exponential overflowed. Every exponent is something minus the new maximum, so it's never above 0."
    if name == "row_sum" and bool((total == 0).any()) and _same(found, total.masked_fill(total == 0, 1.0)):
        return (
            "A row that hasn't seen a key keeps the sum 0: no weight was added to it. Is the 1 there to avoid 0 / 0? "
            "Nothing is divided in this function."
        )
    rescale = (row_max - reference).exp2()
    up = rescale.reciprocal()
    natural = (row_max - reference).exp()
    guesses: tuple[tuple[torch.Tensor, str], ...]
    if name == "weights":
        guesses = (
            (
                (scores - reference[:, None]).exp(),
                "These are powers of e. The scores are in base 2 here, and contain log₂ e already: `tl.exp2`, without "
                "another factor.",
            ),
            (scores.exp2(), "The new maximum isn't subtracted from the scores."),
            (scores.exp(), "The new maximum isn't subtracted from the scores, and you need `tl.exp2`, not `tl.exp`."),
            (
                (scores - row_max.masked_fill(row_max == NONE, 0.0)[:, None]).exp2(),
                OLD_MAXIMUM,
            ),
            (
                (scores - own_max.masked_fill(own_max == NONE, 0.0)[:, None]).exp2(),
                "You subtract the largest score of these keys. The weights are relative to the largest of all keys so "
                "far, `new_max`.",
            ),
            ((reference[:, None] - scores).exp2(), "The exponent has the wrong sign: score minus maximum."),
            (
                weights / weights.sum(dim=1, keepdim=True),
                "Don't divide the weights yet. The kernel divides once, after the loop.",
            ),
            (
                torch.ones_like(scores),
                "Masked keys have a weight of 1 here; it should be 0. exp2(−∞ − 0) is 0: use 0 in place of the maximum "
                "only, not of a score, and not in an exponent."
                if bool((new_max == NONE).all())
                else "All weights are 1. Do you subtract something from itself?",
            ),
        )
    elif name == "row_sum":
        guesses = (
            (
                row_sum + weights.sum(dim=1),
                "The old sum isn't rescaled. It's relative to the old maximum: multiply it by exp2(row_max − new_max)."
                + NO_FACTOR * _same(got[3], acc),
            ),
            (
                weights.sum(dim=1),
                "The sum so far is lost. The new sum is the old one, rescaled, plus that of the weights.",
            ),
            (row_sum * rescale, "The weights of these keys are missing."),
            (
                row_sum * up + weights.sum(dim=1),
                "The factor is inverted: exp2(old maximum − new maximum), at most 1.",
            ),
            (
                row_sum * natural + weights.sum(dim=1),
                "The factor is a power of e. Everything is in base 2: `tl.exp2(row_max - new_max)`.",
            ),
            (
                (row_sum + weights.sum(dim=1)) * rescale,
                RESCALED_TOO,
            ),
            (
                row_sum * rescale + weights.sum(),
                "You summed the whole tile. Each row has its own sum: `axis=1`.",
            ),
            (
                row_sum * rescale + weights.max(dim=1).values,
                "You added the largest weight instead of the sum: `tl.sum(weights, axis=1)`.",
            ),
            (rescaled[:, 0], "That's `acc`. The order is weights, new_max, row_sum, acc."),
        )
    else:
        column = torch.ones_like(acc)
        guesses = (
            (
                acc,
                "`acc` isn't rescaled. It's relative to the old maximum: multiply it by exp2(row_max − new_max), like "
                "the sum.",
            ),
            (acc * up[:, None], "The factor is inverted: exp2(old maximum − new maximum), at most 1."),
            (
                acc * natural[:, None],
                "The factor is a power of e. Everything is in base 2: `tl.exp2(row_max - new_max)`.",
            ),
            (rescaled / total[:, None], "Don't divide `acc` yet. The kernel divides once, after the loop."),
            (
                rescaled + weights.sum(dim=1, keepdim=True),
                "Only rescale `acc` here. This function doesn't know the values; the kernel adds weights · values "
                "afterwards.",
            ),
            (column * rescale[:, None], "That's the factor. Multiply `acc` by it."),
        )
        if acc.shape[0] == acc.shape[1]:
            guesses += (
                (
                    acc * rescale[None, :],
                    "You multiplied the columns. Each row has its own factor: `rescale[:, None]`.",
                ),
            )
    if bool((own_max == NONE).any()) and not bool((row_max == NONE).any()):
        factor = (row_max - new_max.masked_fill(own_max == NONE, 0.0)).exp2()
        both_masked = (
            "You subtract 0 where *these* keys are all masked. This row has seen keys before, and its new maximum is "
            'the old one. Test the new maximum: `tl.where(new_max == float("-inf"), 0.0, new_max)`.'
        )
        if name == "row_sum":
            guesses += ((row_sum * factor + weights.sum(dim=1), both_masked),)
        elif name == "acc":
            guesses += ((acc * factor[:, None], both_masked),)
    if len(acc) > 1 and name in ("row_sum", "acc"):  # earlier cases have shown that a single row is rescaled
        for factor in (rescale.max(), rescale.min(), rescale[0], rescale[-1]):
            by_one = row_sum * factor + weights.sum(dim=1) if name == "row_sum" else acc * factor
            if _same(found, by_one):
                own = values_text(rescale)
                return (
                    f"Every row was rescaled by the same factor, {factor:.4g}. Each row has its own, exp2(row_max − "
                    f"new_max), here {own}: does your code take one of them, or one of all rows together?"
                )
    for guess, idea in guesses:
        if guess.shape == found.shape and _same(found, guess):
            return idea
    return {
        "weights": "weights = exp2(scores − new_max), with each row's own maximum: `new_max[:, None]`.",
        "row_sum": "row_sum × rescale + the sum of the weights along the keys, `axis=1`.",
        "acc": "acc × rescale, each row with its own factor: `rescale[:, None]`.",
    }[name]


def _why_maximum(found, scores, row_max, new_max, row_sum, total) -> str:
    if bool((new_max == NONE).any()) and _same(found, new_max.masked_fill(new_max == NONE, 0.0)):
        return (
            "A row that hasn't seen a key keeps the maximum minus infinity. The 0 is only what you subtract instead; "
            "if you return it, later scores below 0 are compared with it."
        )
    own = scores.max(dim=1).values
    if bool(((found == NONE) & (new_max < -65504) & (new_max != NONE)).any()):
        return "Minus infinity only stands for no key. Is the maximum converted to 16 bits, which end at −65,504?"
    for guess, idea in (
        (own, "That's the largest score of these keys. A larger one may have come before: `tl.maximum(row_max, ...)`."),
        (row_max, "The maximum didn't change. It's the largest score of all keys so far, these included."),
        (
            torch.maximum(row_max, scores.max()),
            "Each row has its own maximum: `tl.max(scores, axis=1)`, along the keys.",
        ),
        (scores.max().expand_as(found), "Each row has its own maximum: `tl.max(scores, axis=1)`, along the keys."),
        (total, "That's the sum. The order is weights, new_max, row_sum, acc."),
        (scores.min(dim=1).values, "That's the smallest score."),
        (row_max + own, "You added the two maxima. Take the larger one: `tl.maximum`."),
        (
            torch.maximum(row_max, own * LOG2_E.value),
            "You multiplied the scores by log₂ e. They contain it already, and are in base 2.",
        ),
    ):
        if _same(found, guess):
            return idea
    if scores.shape[0] == scores.shape[1] and _same(found, torch.maximum(row_max, scores.max(dim=0).values)):
        return "That's the largest of each column. A row's scores are along axis 1: `tl.max(scores, axis=1)`."
    if bool(found[new_max == NONE].isfinite().any()):
        return (
            "A row that hasn't seen a key keeps the maximum minus infinity, not a large negative number. Return it as "
            'it is; only for the exponents, subtract 0 instead: `tl.where(new_max == float("-inf"), 0.0, new_max)`.'
        )
    return (
        "For each row: the larger of the old maximum and the largest of these scores, "
        "`tl.maximum(row_max, tl.max(scores, axis=1))`."
    )


def _check_many_steps(attempt, rows: int, keys: int, dim: int, generator) -> None:
    """Several steps, some keys masked, against a softmax over all keys at once."""
    steps = 5
    scores = 40 * torch.randn(rows, steps * keys, generator=generator)
    hidden = torch.rand(scores.shape, generator=generator) < 0.4
    hidden[0, :keys] = True
    hidden[:, -1] = False
    scores = scores.masked_fill(hidden, NONE)
    values = torch.randn(steps * keys, dim, generator=generator)
    case = (
        f"{rows} rows, {steps} steps of {keys} keys, some masked, scores up to {scores.max():.0f}; after the last "
        "step, acc / row_sum."
    )
    row_max, row_sum, acc = torch.full((rows,), NONE), torch.zeros(rows), torch.zeros(rows, dim)
    for own, own_values in zip(scores.split(keys, dim=1), values.split(keys)):
        weights, row_max, row_sum, acc = _step(attempt, Step(own.contiguous(), row_max, row_sum, acc), case)
        acc = acc + weights @ own_values
    want = (scores.double() * torch.tensor(2.0).double().log()).softmax(dim=1) @ values.double()
    if not close(acc / row_sum[:, None], want, 1e-3):
        raise Mistake(
            "after several steps the attention is wrong, though each step by itself was right.",
            case=case,
            idea="Does a step return a state that a later step can't continue from?",
        )
