"""13.4, `draw_on_device`: each token as often as its probability says, whatever else is in the batch, without reading a
value.

A right answer may draw other tokens than the reference, so what is compared is how often it draws each.
"""

from typing import Any, NamedTuple

import torch

from lessons_lib.checks.diagnosis import Shown, Task, Watch, mistakes
from lessons_lib.checks.exercise import Mistake, current_case
from lessons_lib.measuring.operations import CountOperations

NUM_DRAWS = 8_000
LEAST_CHANCE = 1e-7  # a right answer is further from the probabilities once in ten million times
FOUR, MINUS_INF = [1.0, 0.5, 0.0, -1.0], float("-inf")
SHARES, GREEDY, COMPANY, SHIFTED, SMALL = "shares", "greedy", "company", "shifted", "small number"
Rows = tuple[torch.Tensor, ...]  # logits, temperature, seeds, positions

WEIGHTS = (
    "A token's weight is the positive number exp(logit / temperature). Its time is −log(1 − number) divided by the "
    "weight, and the smallest time wins. Each token of a row has a number of its own, another one at each position."
)
SCALED = "Divide the logits by the temperature, whatever it is, before `exp`. A high one makes the tokens more alike."
LOWERED = (
    "exp(−∞) is 0: no such token is drawn. exp(300) overflows to infinity, and exp(−200) is 0. The draw stays the same "
    "if all logits of a row are lowered by its largest one. Nothing has to be clamped."
)
PRECISE = (
    "These logits are bfloat16, with three significant digits. Change them to float32 before you compute with them."
)
NO_WAIT = (
    "On this line a value is read, or a shape depends on values: `.item()`, `.tolist()`, `.cpu()`, an `if`, a mask as "
    "an index. Compute something for all rows, and choose with `torch.where`."
)


class Case(NamedTuple):
    """One row of logits, what is looked at, and what a wrong answer misses. From draw to draw, the position differs, or
    the seed."""

    logits: list[float]
    temperature: float = 1.0
    idea: str = WEIGHTS
    kind: str = SHARES
    of_seeds: bool = False
    dtype: torch.dtype = torch.float32


CASES = [
    Case([0.0, 5.0, 1.0], 0.0, "Where the temperature is 0, take the largest logit: `torch.where` at the end. Dividing "
         "by 0 gives ∞ or NaN.", GREEDY),
    Case([1.0, 1.0000001], 0.0, "A very small temperature isn't 0: tokens that are nearly as likely can be drawn. Take "
         "the largest logit.", GREEDY),
    Case(FOUR),
    Case(FOUR, 0.5, SCALED),
    Case(FOUR, 2.0, SCALED),
    Case(FOUR, 1.0, "Each row uses its own seed.", of_seeds=True),
    Case(FOUR, 1.0, "A row's token depends on its own logits, temperature, seed and position only, and all randomness "
         "comes from `random_numbers`.", COMPANY),
    Case(FOUR, 1.0, "Two seeds draw the same tokens, shifted. Pass seeds and positions to `random_numbers` each on its "
         "own.", SHIFTED),
    Case([300.0, 299.0, 298.0], 1.0, LOWERED),
    Case([-200.0, -201.0, -202.0], 1.0, LOWERED),
    Case([3.0, 2.99, 2.98], 0.01, SCALED),
    Case([MINUS_INF, 1.0, MINUS_INF, 0.0], 1.0, LOWERED),
    Case([MINUS_INF, -3e4, -3e4 - 1], 1.0, LOWERED),
    Case([200.0, 199.0, 198.0], 0.7, PRECISE, dtype=torch.bfloat16),
    Case([20.0, 19.875, 19.75], 0.7, PRECISE, dtype=torch.bfloat16),
    Case([-30.0, 1.0, 0.0], 1.0, "In float32, 1 − 2.4e-9 is 1. Its logarithm is 0, so this time is 0 whatever the "
         "weight is, and wins. `torch.log1p(-x)` is log(1 − x) without that rounding. Weights may be very small, too: "
         "don't clamp them.", SMALL),
]  # fmt: skip


def rows_of(case: Case, count: int, seed: int = 7, start: int = 0) -> Rows:
    ids = torch.arange(start, start + count)
    seeds, positions = (ids, torch.full_like(ids, 3)) if case.of_seeds else (torch.full_like(ids, seed), ids)
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
        fair = lambda got: shares(got, case)  # noqa: E731
        watch("`draw_on_device`", attempt, *rows_of(case, NUM_DRAWS), returns=fair, subject="the share of each token")
    elif case.kind == GREEDY:
        logits, temperature, *others = rows_of(case, 20)
        temperature[-1] = 1.0  # one row that isn't greedy, which may get any token
        watch("`draw_on_device`", attempt, logits, temperature, *others, returns=but_the_last)
    elif case.kind == SMALL:
        rows = *rows_of(case, 1)[:2], torch.tensor([20]), torch.tensor([597_864])
        watch("`draw_on_device`", lambda: bool((attempt(*rows) == 0).any()), subject="whether it draws token 0")
    elif case.kind == SHIFTED:
        tokens, *others = (attempt(*rows_of(case, 200, *each)) for each in ((7, 1), (8, 0), (8, 2)))
        same = lambda: any(torch.equal(tokens, each) for each in others)  # noqa: E731
        watch("three calls", same, subject="whether two of them return the same tokens")
    else:
        rows, order = many_kinds(), torch.arange(39, -1, -1)
        together = attempt(*rows)
        turned = lambda: torch.equal(attempt(*(each[order] for each in rows)), together[order])  # noqa: E731
        watch("the same rows in another order", turned, subject="whether each gets the same token")
        each_row = zip(*(each.split(1) for each in rows))
        alone = lambda: torch.equal(torch.cat([attempt(*row) for row in each_row]), together)  # noqa: E731
        watch("each row in a call of its own", alone, subject="whether each gets the same token")


def but_the_last(got: Any) -> Any:
    return torch.cat([got[:-1], 0 * got[-1:]]) if isinstance(got, torch.Tensor) and got.shape == (20,) else got


def shares(got: Any, case: Case) -> Shown:
    """The probabilities if the tokens are drawn as often, apart from chance; else how often they were drawn.

    An answer of another kind or shape doesn't get here: it fails both GREEDY cases.
    """
    wanted = (torch.tensor(case.logits, dtype=case.dtype).double() / case.temperature).softmax(dim=-1)
    counts, possible = got.bincount(minlength=len(wanted)).double(), wanted > 0
    shown = counts / NUM_DRAWS
    if len(counts) == len(wanted) and not counts[~possible].any():
        expected = NUM_DRAWS * wanted[possible]
        distance = ((counts[possible] - expected) ** 2 / expected).sum()  # Pearson's chi-square
        freedom = torch.tensor((len(expected) - 1) / 2, dtype=torch.float64)
        if torch.special.gammaincc(freedom, distance / 2) >= LEAST_CHANCE:
            shown = wanted
    return Shown(", ".join(f"{share:.0%}" for share in shown.tolist()))


def tell(case: Case) -> str:
    row = f"logits {case.logits}{', in bfloat16' * (case.dtype == torch.bfloat16)}, temperature {case.temperature}"
    draws = f"0 to {NUM_DRAWS - 1:,}."
    return {
        SHARES: f"{row}, " + (f"seeds {draws}" if case.of_seeds else f"seed 7, positions {draws}"),
        GREEDY: f"20 rows of {row}, but 1 in the last row.",
        SHIFTED: f"{row}; seed 7 from position 1 on; seed 8 from position 0 on, then from 2 on.",
        COMPANY: "40 rows of 30 tokens, with several temperatures, seeds and positions.",
        SMALL: f"{row}, seed 20, position 597,864. The random number of token 0 is 2.4e-9.",
    }[case.kind]


MISTAKES = """
It's the likeliest token each time: nothing is drawn, or all tokens of a row share a random number.
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
        with CountOperations() as operations:
            attempt(*rows_of(Case(FOUR * repeats), count))
        return operations.names

    few = names(2, 1)
    if sorts := [name for name in few if "sort" in name or "topk" in name]:
        idea = "Nothing is cut here, so no order is needed: the race compares times only."
        raise Mistake(f"your code sorts the vocabulary (`{sorts[0].removeprefix('aten::')}`).", "2 rows.", idea)
    for told, each, other in (("2 rows, then 16 rows.", "row", names(16, 1)),
                              ("2 rows of 4 tokens, then of 32.", "token", names(2, 8))):  # fmt: skip
        if len(few) != len(other):
            idea = f"A launch for each {each} keeps the CPU busy. Let each operation compute all of [N, vocabulary]."
            raise Mistake(f"your code launches {len(few)} operations, then {len(other)}.", told, idea)


def never_waits(attempt: Any) -> None:
    """On the meta device, tensors have no values, so whatever looks at one raises."""
    current_case.text = "3 rows on another device, without values, as during a capture."
    try:
        got = attempt(*(each.to("meta") for each in rows_of(CASES[0], 3)))
    except Exception as error:
        if "expected" in str(error).lower():
            idea = "Create tensors on the device of the arguments: `device=….device`."
            raise Mistake("your code mixes tensors of several devices.", current_case.text, idea) from None
        raise Mistake("the CPU would have to wait for the GPU.", current_case.text, NO_WAIT) from None
    if got.device.type != "meta":
        what = f"the result should be on the device of the arguments; yours is on {got.device}."
        raise Mistake(what, current_case.text, "The next operation reads it there.")


TASK = Task(
    reference="lessons_lib.engine.plain_sampling:draw_on_device",
    cases=lambda: CASES,
    run=run,
    tell=tell,
    known=mistakes(MISTAKES),
    about={
        "returned": of_case,
        "raised RuntimeError": "Temperature, seeds and positions are [N]. As columns, `[:, None]`, they belong to the "
        "rows of the logits.",
    },
    clear=1.0,
    enough=2,
    probes=(never_waits,),
)

EXERCISE = TASK.exercise(
    id="13.4",
    title="a draw that the CPU doesn't wait for (optional)",
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
