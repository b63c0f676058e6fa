"""13.4, `draw_on_device`: each token as often as its probability says, whatever else is in the batch, without reading a
value.

A right answer may draw other tokens than the reference, so what is compared is how often it draws each.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from lessons_lib.checks.diagnosis import Task, Watch, mistakes
from lessons_lib.checks.diagnosis.telling import Shown
from lessons_lib.checks.exercise import Exercise, Mistake, current_case
from lessons_lib.checks.lesson_13.launches import Launches, never_waits

NUM_DRAWS = 8_000
LEAST_CHANCE = 1e-7  # a right answer is further from the probabilities once in ten million times
FOUR = [1.0, 0.5, 0.0, -1.0]
SHARES, GREEDY, COMPANY, TWICE, SHIFTED, SMALL = "shares", "greedy", "company", "twice", "shifted", "small number"
Rows = tuple[torch.Tensor, ...]  # logits, temperature, seeds, positions


WEIGHTS = (
    "A token's weight is the positive number exp(logit / temperature). Its time is −log(1 − number) divided by the "
    "weight, and the smallest time wins. Each token of a row has a number of its own, another one at each position."
)
SCALED = "Divide the logits by the temperature, whatever it is, before `exp`. A high one makes the tokens more alike."
APART = "Two seeds draw the same tokens, shifted. Pass seeds and positions to `random_numbers` each on its own."
LOWERED = (
    "exp(300) overflows to infinity, and exp(−200) is 0. The draw stays the same if all logits of a row are lowered by "
    "its largest one. Nothing has to be clamped."
)
PRECISE = (
    "These logits are bfloat16, with three significant digits. Change them to float32 before you compute with them."
)


class Case(NamedTuple):
    """What is looked at, and one row of logits; `changes` is what differs from draw to draw, and `idea` what a wrong
    answer misses."""

    kind: str
    logits: list[float]
    temperature: float = 1.0
    changes: str = "positions"
    dtype: torch.dtype = torch.float32
    idea: str = WEIGHTS


def cases() -> Iterator[Case]:
    greedy = (
        "Where the temperature is 0, take the largest logit: `torch.where` at the end. Dividing by 0 gives ∞ or NaN."
    )
    yield Case(GREEDY, [0.0, 5.0, 1.0], 0.0, idea=greedy)
    greedy = "A very small temperature isn't 0: tokens that are nearly as likely can be drawn. Take the largest logit."
    yield Case(GREEDY, [1.0, 1.0000001], 0.0, idea=greedy)
    yield Case(SHARES, FOUR)
    yield Case(SHARES, FOUR, 0.5, idea=SCALED)
    yield Case(SHARES, FOUR, 2.0, idea=SCALED)
    yield Case(SHARES, FOUR, 1.0, "seeds", idea="Each row uses its own seed.")
    stateless = "All randomness comes from `random_numbers`. What a generator gives depends on all draws before."
    yield Case(TWICE, FOUR, idea=stateless)
    yield Case(SHIFTED, FOUR, 1.0, "1", idea=APART)
    yield Case(SHIFTED, FOUR, 1.0, "-1", idea=APART)
    yield Case(COMPANY, FOUR, idea="A row's token depends on its own logits, temperature, seed and position only.")
    yield Case(SHARES, [300.0, 299.0, 298.0], idea=LOWERED)
    yield Case(SHARES, [-200.0, -201.0, -202.0], idea=LOWERED)
    yield Case(SHARES, [3.0, 2.99, 2.98], 0.01, idea=SCALED)
    yield Case(
        SHARES, [float("-inf"), 1.0, float("-inf"), 0.0], idea="exp(−∞) is 0: no token of −∞ is drawn. " + LOWERED
    )
    yield Case(SHARES, [200.0, 199.0, 198.0], 0.7, dtype=torch.bfloat16, idea=PRECISE)
    yield Case(SHARES, [20.0, 19.875, 19.75], 0.7, dtype=torch.bfloat16, idea=PRECISE)
    small = (
        "In float32, 1 − 2.4e-9 is 1. Its logarithm is 0, so this time is 0 whatever the weight is, and wins. "
        "`torch.log1p(-x)` is log(1 − x) without that rounding. Weights may be very small, too: don't clamp them."
    )
    yield Case(SMALL, [-30.0, 1.0, 0.0], idea=small)


def rows_of(case: Case, count: int, seed: int = 7, start: int = 0) -> Rows:
    ids = torch.arange(start, start + count)
    seeds, positions = (ids, torch.full_like(ids, 3)) if case.changes == "seeds" else (torch.full_like(ids, seed), ids)
    logits = torch.tensor(case.logits, dtype=case.dtype).repeat(count, 1)
    return logits, torch.full((count,), case.temperature), seeds, positions


def many_kinds() -> Rows:
    """40 rows with several temperatures, seeds and positions."""
    random = torch.Generator().manual_seed(4)
    temperature = torch.rand(40, generator=random) * 2 * (torch.arange(40) % 5 > 0)
    logits = 2 * torch.randn(40, 30, generator=random)
    return logits, temperature, torch.arange(40) % 7, torch.arange(40) % 11


def run(attempt: Any, case: Case, watch: Watch) -> None:
    if case.kind == SHARES:
        launches_once(attempt)  # a loop over the rows would take minutes
        rows = rows_of(case, NUM_DRAWS)
        fair = lambda got: shares(got, case)  # noqa: E731
        watch("`draw_on_device`", attempt, *rows, returns=fair, subject="the share of each token")
    elif case.kind == GREEDY:
        logits, temperature, *others = rows_of(case, 20)
        temperature[-1] = 1.0  # one row that isn't greedy, which may get any token
        watch("`draw_on_device`", attempt, logits, temperature, *others, returns=but_the_last)
    elif case.kind == SMALL:
        rows = *rows_of(case, 1)[:2], torch.tensor([20]), torch.tensor([597_864])
        watch("`draw_on_device`", lambda: bool((attempt(*rows) == 0).any()), subject="whether it draws token 0")
    elif case.kind == TWICE:
        rows = rows_of(case, 50)
        same = lambda: torch.equal(attempt(*rows), attempt(*rows))  # noqa: E731
        watch("the same call twice", same, subject="whether both return the same tokens")
    elif case.kind == SHIFTED:
        shift = int(case.changes)
        first, second = rows_of(case, 200, seed=7, start=1), rows_of(case, 200, seed=8, start=1 - shift)
        same = lambda: torch.equal(attempt(*first), attempt(*second))  # noqa: E731
        watch("two calls", same, subject="whether both return the same tokens")
    else:
        rows = many_kinds()
        together = attempt(*rows)
        order = torch.arange(39, -1, -1)
        turned = lambda: torch.equal(attempt(*(each[order] for each in rows)), together[order])  # noqa: E731
        watch("the same rows in another order", turned, subject="whether each gets the same token")
        each_row = zip(*(each.split(1) for each in rows))
        alone = lambda: torch.equal(torch.cat([attempt(*row) for row in each_row]), together)  # noqa: E731
        watch("each row in a call of its own", alone, subject="whether each gets the same token")


def but_the_last(got: Any) -> Any:
    return torch.cat([got[:-1], 0 * got[-1:]]) if isinstance(got, torch.Tensor) and got.shape == (20,) else got


def shares(got: Any, case: Case) -> Any:
    """The probabilities if the tokens are drawn as often, apart from chance; else how often they were drawn.

    An answer of another kind or shape doesn't get here: it fails both GREEDY cases.
    """
    wanted = (torch.tensor(case.logits, dtype=case.dtype).double() / case.temperature).softmax(dim=-1)
    counts, possible = got.bincount(minlength=len(wanted)).double(), wanted > 0
    is_fair = len(counts) == len(wanted) and not counts[~possible].any()
    if is_fair and chance_of(counts[possible], NUM_DRAWS * wanted[possible]) >= LEAST_CHANCE:
        return told(wanted)
    return told(counts / NUM_DRAWS)


def chance_of(counts: torch.Tensor, expected: torch.Tensor) -> float:
    """The probability that counts are at least this far from the expected ones: Pearson's chi-square."""
    distance = ((counts - expected) ** 2 / expected).sum()
    freedom = torch.tensor((len(expected) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, distance / 2))


def told(found: torch.Tensor) -> Shown:
    return Shown(", ".join(f"{share:.0%}" for share in found.tolist()))


def tell(case: Case) -> str:
    row = f"logits {case.logits}{', in bfloat16' * (case.dtype == torch.bfloat16)}, temperature {case.temperature}"
    last = f"positions 0 to {NUM_DRAWS - 1:,}"
    return {
        SHARES: f"{row}, " + (f"seed 7, {last}." if case.changes == "positions" else f"seeds 0 to {NUM_DRAWS - 1:,}."),
        GREEDY: f"20 rows of {row}, but 1 in the last row.",
        TWICE: f"{row}, seed 7, positions 0 to 49.",
        SHIFTED: f"{row}; seed 7 from position 1 on, seed 8 from position {0 if case.changes == '1' else 2} on.",
        COMPANY: "40 rows of 30 tokens, with several temperatures, seeds and positions.",
        SMALL: f"{row}, seed 20, position 597,864. The random number of token 0 is 2.4e-9.",
    }[case.kind]


MISTAKES = """
It's the likeliest token, whatever the temperature is. Is a token drawn at all?
= return likeliest[:, 0]
That is the token with the *largest* time. The smallest wins.
~ .argmax(dim=-1) => .argmin(dim=-1)
"""


def of_case(mine: dict[str, Any], want: dict[str, Any]) -> str:
    got, wanted = mine["returned"], want["returned"]
    is_other_kind = isinstance(wanted, torch.Tensor) and (got.dtype, got.shape) != (wanted.dtype, wanted.shape)
    return "" if is_other_kind else want["case"].idea


def launches_once(attempt: Any) -> None:
    """Operations grow neither with the rows nor with the tokens, and nothing is sorted."""

    def names(count: int, repeats: int) -> list[str]:
        rows = rows_of(Case(SHARES, FOUR * repeats), count)
        return Launches(attempt, *rows).names

    few = names(2, 1)
    for told, other, each in (("2 rows, then 16 rows.", names(16, 1), "row"),
                              ("2 rows of 4 tokens, then of 32.", names(2, 8), "token")):  # fmt: skip
        current_case.text = told
        if sorts := [name for name in few if name in ("sort", "argsort", "topk", "msort", "kthvalue")]:
            idea = "Nothing is cut here, so no order is needed: the race compares times only."
            raise Mistake(f"your code sorts the vocabulary (`{sorts[0]}`).", told, idea)
        if len(few) != len(other):
            idea = f"A launch for each {each} keeps the CPU busy. Let each operation compute all of [N, vocabulary]."
            raise Mistake(f"your code launches {len(few)} operations, then {len(other)}.", told, idea)


TASK = Task(
    reference="lessons_lib.engine.plain_sampling:draw_on_device",
    cases=cases,
    run=run,
    tell=tell,
    known=mistakes(MISTAKES),
    about={"returned": of_case},
    clear=1.0,
    enough=2,
    probes=(
        never_waits("3 rows, one of them of temperature 0.", *rows_of(Case(SHARES, FOUR), 3)[:1],
                    torch.tensor([1.0, 0.0, 0.5]), torch.tensor([7, 8, 9]), torch.tensor([0, 1, 2])),
    ),
)  # fmt: skip

EXERCISE = Exercise(
    id="13.4",
    title="a draw that the CPU doesn't wait for (optional)",
    reference=TASK.reference,
    test=TASK,
    hints=(
        "Draw for every row, whatever its temperature is, and look for the likeliest token of every row. Which of the "
        "two a row gets is decided at the end, for all rows at once.",
        "Subtract the largest logit of each row, divide by its temperature, and take `exp`: these are the weights. "
        "Each token gets a number from `random_numbers`, with seeds and positions as columns. "
        "−log(1 − number), divided by the weight, is its time. `torch.where` takes the fastest token or the likeliest.",
        "`highest, likeliest = logits.float().max(dim=-1, keepdim=True)`; `weights = ((logits - highest) / "
        "temperature[:, None]).exp()`; `numbers = random_numbers(seeds[:, None], positions[:, None], "
        "torch.arange(logits.shape[-1], device=logits.device))`; `drawn = (weights / "
        "-torch.log1p(-numbers)).argmax(dim=-1)`; `return torch.where(temperature > 0, drawn, likeliest[:, 0])`.",
    ),
    points=3,
)
