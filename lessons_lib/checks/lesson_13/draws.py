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


class Case(NamedTuple):
    """What is looked at, and one row of logits; `changes` is what differs from draw to draw."""

    kind: str
    logits: list[float]
    temperature: float = 1.0
    changes: str = "positions"
    dtype: torch.dtype = torch.float32


def cases() -> Iterator[Case]:
    yield Case(GREEDY, [0.0, 5.0, 1.0], 0.0)
    yield Case(GREEDY, [1.0, 1.0000001], 0.0)
    for temperature in (1.0, 0.5, 2.0):
        yield Case(SHARES, FOUR, temperature)
    yield Case(SHARES, FOUR, 1.0, "seeds")
    yield Case(TWICE, FOUR)
    yield Case(SHIFTED, FOUR, 1.0, "1")
    yield Case(SHIFTED, FOUR, 1.0, "-1")
    yield Case(COMPANY, FOUR)
    yield Case(SHARES, [300.0, 299.0, 298.0])
    yield Case(SHARES, [-200.0, -201.0, -202.0])
    yield Case(SHARES, [3.0, 2.99, 2.98], 0.01)
    yield Case(SHARES, [float("-inf"), 1.0, float("-inf"), 0.0])
    yield Case(SHARES, [200.0, 199.0, 198.0], 0.7, dtype=torch.bfloat16)
    yield Case(SHARES, [20.0, 19.875, 19.75], 0.7, dtype=torch.bfloat16)
    yield Case(SMALL, [-30.0, 1.0, 0.0])


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
    def draw(*rows: torch.Tensor) -> torch.Tensor:
        got = attempt(*rows)
        if not (isinstance(got, torch.Tensor) and got.dtype == torch.int64 and got.shape == rows[1].shape):
            watch("`draw_on_device`", lambda: got)  # of another kind, shape or dtype, so it differs
        return got

    if case.kind == SHARES:
        launches_once(attempt)  # a loop over the rows would take minutes
        rows = rows_of(case, NUM_DRAWS)
        watch(
            "`draw_on_device`", attempt, *rows, returns=lambda got: shares(got, case), subject="the share of each token"
        )
    elif case.kind == GREEDY:
        logits, temperature, *others = rows_of(case, 20)
        temperature[-1] = 1.0  # one row that isn't greedy, which may get any token
        watch("`draw_on_device`", attempt, logits, temperature, *others, returns=but_the_last)
    elif case.kind == SMALL:
        rows = *rows_of(case, 1)[:2], torch.tensor([20]), torch.tensor([597_864])
        watch("`draw_on_device`", lambda: bool((draw(*rows) == 0).any()), subject="whether it draws token 0")
    elif case.kind == TWICE:
        rows = rows_of(case, 50)
        same = lambda: torch.equal(draw(*rows), draw(*rows))  # noqa: E731
        watch("the same call twice", same, subject="whether both return the same tokens")
    elif case.kind == SHIFTED:
        shift = int(case.changes)
        first, second = rows_of(case, 200, seed=7, start=1), rows_of(case, 200, seed=8, start=1 - shift)
        same = lambda: torch.equal(draw(*first), draw(*second))  # noqa: E731
        watch("two calls", same, subject="whether both return the same tokens")
    else:
        rows = many_kinds()
        together = draw(*rows)
        order = torch.arange(39, -1, -1)
        turned = lambda: torch.equal(draw(*(each[order] for each in rows)), together[order])  # noqa: E731
        watch("the same rows in another order", turned, subject="whether each gets the same token")
        alone = lambda: [int(draw(*(each[row : row + 1] for each in rows))) for row in range(40)] == together.tolist()  # noqa: E731
        watch("each row in a call of its own", alone, subject="whether each gets the same token")


def but_the_last(got: Any) -> Any:
    return got[:-1] if isinstance(got, torch.Tensor) and got.shape == (20,) else got


def shares(got: Any, case: Case) -> Any:
    """The probabilities if the tokens are drawn as often, apart from chance; else how often they were drawn."""
    if not (isinstance(got, torch.Tensor) and got.shape == (NUM_DRAWS,) and got.dtype == torch.int64):
        return got if isinstance(got, torch.Tensor) else Shown(f"a {type(got).__name__}")
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


# `* x` stands for a draw of the token with the largest x.
RACE = (
    "\n- drawn = \n+ rate, times = temperature[:, None], -torch.log1p(-numbers)\n+ logits = logits.float()\n+ drawn = ("
)
MISTAKES = """
Where the temperature is 0, the token with the largest logit is chosen: `torch.where` at the end. Dividing by 0 gives
∞ or NaN.
* (logits / rate).softmax(dim=-1) / times).argmax(dim=-1)
= return drawn
or
~ / temperature[:, None] => / temperature.clamp(min=0.9)[:, None]
= return drawn
A very small temperature isn't 0: tokens that are nearly as likely can be drawn. Take the largest logit itself.
~ / temperature[:, None] => / temperature.clamp(min=1e-6)[:, None]
= return drawn
It's the likeliest token, whatever the temperature is. Is a token drawn at all? If so, does each token of a row have a
number of its own?
= return likeliest[:, 0]
or
~ temperature > 0 => temperature < 0
or
~ positions[:, None], tokens => positions[:, None], tokens * 0
Divide the logits by the temperature before `exp`: whatever is divided later changes nothing about the order.
* logits.softmax(dim=-1) / times).argmax(dim=-1)
or
* logits.softmax(dim=-1) / rate / times).argmax(dim=-1)
Divide by the temperature. A high one makes the tokens more alike.
* (logits * rate).softmax(dim=-1) / times).argmax(dim=-1)
or
~ / temperature[:, None]) => * temperature[:, None])
A temperature below 1 counts as it is.
~ / temperature[:, None] => / temperature.clamp(min=1.0)[:, None]
A number between 0 and 1 is no exponential random number yet: −log(1 − number) is.
* (logits / rate).softmax(dim=-1) / numbers).argmax(dim=-1)
or
* (logits / rate).softmax(dim=-1) * numbers).argmax(dim=-1)
or
* (logits / rate).softmax(dim=-1) - numbers).argmax(dim=-1)
or
* logits / rate + numbers).argmax(dim=-1)
or
* logits / rate - numbers.log()).argmax(dim=-1)
That is the token with the *largest* time. The smallest wins.
* times / (logits / rate).softmax(dim=-1)).argmax(dim=-1)
or
~ .argmax(dim=-1) => .argmin(dim=-1)
Yours multiplies where it should divide: time = exponential random number / weight. (In logarithms: minus, not plus.)
* (logits / rate).softmax(dim=-1) * times).argmax(dim=-1)
or
* (logits / rate).softmax(dim=-1) * times).argmin(dim=-1)
or
* logits / rate + times.log()).argmax(dim=-1)
A weight is a positive number, exp(logit / temperature), or the probability. Yours races logits or logarithms.
* logits / rate / times).argmax(dim=-1)
or
* (logits / rate).log_softmax(dim=-1) / times).argmax(dim=-1)
or
* logits / rate / times).argmin(dim=-1)
The exponential random number divides the weight. If you add to the logit, add −log(exponential random number).
* logits / rate + times).argmax(dim=-1)
or
* logits / rate - times).argmax(dim=-1)
Other positions give other numbers: pass `positions`, too.
~ positions[:, None] => 0 * positions[:, None]
Each row uses its own seed.
~ seeds[:, None], p => 0 * seeds[:, None], p
or
~ seeds[:, None], p => seeds[:1, None], p
Two seeds draw the same tokens, shifted. Pass seeds and positions to `random_numbers` each on its own.
~ seeds[:, None], positions[:, None] => (seeds + positions)[:, None], 0 * positions[:, None]
or
~ seeds[:, None], positions[:, None] => (seeds - positions)[:, None], 0 * positions[:, None]
A row's token depends on its own logits, temperature, seed and position, and on nothing else. In another step its index
is another.
~ seeds[:, None], p => (seeds + torch.arange(len(seeds), device=seeds.device))[:, None], p
or
~ / temperature[:, None] => / temperature.max()
or
~ / temperature[:, None] => / temperature[0]
exp(300) overflows to infinity, and exp(−200) is 0. The draw stays the same if all logits of a row are lowered by the
same number, such as the largest of them.
~ logits - highest => logits.float()
Lower each row by its largest logit. Relative to the smallest one, weights overflow, and −inf has no difference.
~ logits - highest => logits.float() - logits.float().amin(dim=-1, keepdim=True)
The differences between the logits are lost. Don't clamp logits or weights; lower a row by its largest logit.
- highest, likeliest
+ logits = logits.clamp(min=-100)
+ ...
or
~ logits - highest => (logits.float() - highest).clamp(min=-5)
or
~ .exp() => .exp().clamp(min=0.01)
These logits are bfloat16, with three significant digits. Change them to float32 before you compute with them.
~ (logits - highest) / temperature[:, None] => (logits / temperature[:, None].to(logits.dtype)).float()
~ .exp() => .softmax(dim=-1)
In float32, 1 − 2.4e-9 is 1. Its logarithm is 0, so this time is 0 whatever the weight is, and wins. `torch.log1p(-x)`
is log(1 − x) without that rounding.
* logits / rate - (-torch.log(1 - numbers)).log()).argmax(dim=-1)
or
* -torch.log(1 - numbers) / (logits / rate).softmax(dim=-1)).argmin(dim=-1)
All randomness comes from `random_numbers`. What a generator gives depends on all draws before, those of other requests
included.
- drawn =
+ drawn = torch.multinomial(weights.nan_to_num(1.0, 1.0).clamp(max=1.0), 1)[:, 0]
or
= numbers = torch.rand(logits.shape)
The tokens of a row are along the last dimension: `dim=-1`.
= drawn = ((logits.float() / temperature[:, None]).softmax(dim=0) / -torch.log1p(-numbers)).argmax(dim=-1)
One token for each row, int64 [N].
~ return torch.where(temperature > 0, drawn, likeliest[:, 0]) => return torch.where(temperature > 0, drawn, likeliest[:, 0])[:, None]
or
= return torch.where(temperature > 0, drawn, likeliest)
A token is an index, int64, as `argmax` returns it.
~ likeliest[:, 0]) => likeliest[:, 0]).int()
or
~ likeliest[:, 0]) => likeliest[:, 0]).float()
A tensor is asked for. A list is made on the CPU, which would have to wait for the tokens.
~ likeliest[:, 0]) => likeliest[:, 0]).tolist()
The caller still needs its logits: don't change them in place.
- highest, likeliest
+ logits -= logits.amax(dim=-1, keepdim=True)
+ ...
or
- highest, likeliest
+ temperature[temperature == 0] = 1e-6
+ ...
"""  # noqa: E501


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
    known=mistakes(MISTAKES.replace("\n* ", RACE)),
    about={
        "returned": "A token's weight is exp(logit / temperature). Its time is an exponential random number divided by "
        "the weight, and the smallest time wins. At temperature 0, it is the largest logit.",
    },
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
