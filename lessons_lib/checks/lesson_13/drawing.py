"""Judges 13.7, `draw_on_device`: each token as often as its probability says, whatever else is in the batch, without
reading a value."""

from collections.abc import Callable

import torch

from lessons_lib.checks.exercise import Mistake, call, current_case, short
from lessons_lib.checks.lesson_13.launches import NoReads, names_of_launches
from lessons_lib.engine.stateless_random import random_numbers

NUM_DRAWS = 20_000
LEAST_CHANCE = 1e-7  # a right answer is further from the probabilities once in ten million times
LOGITS = [1.0, 0.5, 0.0, -1.0]
NO_WAIT = "Compute something for every row and choose with `torch.where`. Then nothing depends on a value."


def check_draw_on_device(attempt) -> None:
    _check_kind(attempt)
    _check_greedy(attempt)
    _check_again(attempt)
    _check_reads(attempt)
    _check_launches(attempt)
    _check_shares(attempt, 1.0)
    _check_shares(attempt, 0.5)
    _check_shares(attempt, 2.0)
    _check_seeds(attempt)
    _check_streams(attempt)
    _check_company(attempt)
    _check_close(attempt)
    _check_extremes(attempt)
    _check_small_number(attempt)


def _rows(logits, temperature, seeds, positions, dtype=torch.float32) -> tuple[torch.Tensor, ...]:
    return torch.tensor(logits, dtype=dtype), torch.tensor(temperature), torch.tensor(seeds), torch.tensor(positions)


def _told(logits, temperature, seeds, positions) -> str:
    return f"logits {short(logits)}, temperature {temperature}, seeds {seeds}, positions {positions}."


def _drawn(attempt, rows: tuple[torch.Tensor, ...], case: str) -> torch.Tensor:
    got, count = call(attempt, *rows, case=case), len(rows[0])
    if not isinstance(got, torch.Tensor):
        raise Mistake(f"expected a tensor of token ids; yours returned {short(got)}.", case=case,
                      idea="Return an int64 tensor [N], one token for each row.")  # fmt: skip
    if got.shape != (count,):
        raise Mistake(f"the tokens should have the shape [{count}]; yours have {list(got.shape)}.", case=case,
                      idea="One token for each row. `dim=-1` is the vocabulary.")  # fmt: skip
    if got.dtype != torch.int64:
        raise Mistake(f"tokens should be int64; yours are {got.dtype}.", case=case,
                      idea="A token is an index in its row, as `argmax` returns it.")  # fmt: skip
    return got


def _check_kind(attempt) -> None:
    values = ([[0.0, 5.0, 1.0]], [0.0], [7], [0])
    got = _drawn(attempt, _rows(*values), _told(*values))
    if got.tolist() != [1]:
        raise Mistake(f"the token should be 1; yours is {short(got)}.", case=_told(*values),
                      idea="Where the temperature is 0, the token with the largest logit is chosen. Do you divide by 0 "
                      "there? Then ∞ or NaN decides: divide by 1 instead (`torch.where`). And is it the "
                      "`argmax`?")  # fmt: skip


def _check_greedy(attempt) -> None:
    case = "8 rows of logits [1.0, 1.1, 1.0]; the temperature is 0 in all but the last, where it is 1."
    rows = _rows([[1.0, 1.1, 1.0]] * 8, [0.0] * 7 + [1.0], list(range(8)), [3] * 8)
    got = _drawn(attempt, rows, case).tolist()
    if got[:7] != [1] * 7:
        raise Mistake(f"the tokens of the first seven rows should be 1; yours are {got[:7]}.", case=case,
                      idea="Rows of temperature 0 may be among others. They get the likeliest token, and the others "
                      "are drawn.")  # fmt: skip


def _check_again(attempt) -> None:
    rows = _rows([LOGITS] * 50, [1.0] * 50, [7] * 50, list(range(50)))
    case = f"logits {LOGITS}, temperature 1.0, seed 7, positions 0 to 49, called twice."
    first, second = (_drawn(attempt, rows, case) for _ in range(2))
    if not torch.equal(first, second):
        raise Mistake(
            "the same seeds and positions gave other tokens at the second call.", case=case,
            idea="All randomness comes from `random_numbers`. What a generator gives, as in `torch.rand`, "
            "`exponential_` or `torch.multinomial`, depends on all draws before, those of other requests included.",
        )  # fmt: skip


def _check_reads(attempt) -> None:
    case = "3 rows, one of them of temperature 0, with 4 tokens each."
    rows = _rows([LOGITS] * 3, [1.0, 0.0, 0.5], [7, 8, 9], [0, 1, 2])
    current_case.text = case
    with NoReads(case, NO_WAIT):
        attempt(*rows)
    current_case.text = case = "tensors on another device, without values, as during a capture."
    try:
        got = attempt(*(row.to("meta") for row in rows))
    except Exception as error:
        text = str(error)
        if "device" in text:
            what, idea = "your code mixes tensors of several devices", "Create tensors with `device=logits.device`."
        else:
            what, idea = f"your code raised {type(error).__name__}: {short(text)}", NO_WAIT
        raise Mistake(f"{what}.", case=case, idea=idea) from None
    if got.device.type != "meta":
        raise Mistake(f"the tokens should be on the device of the logits; yours are on {got.device}.", case=case,
                      idea="The next step reads the tokens there.")  # fmt: skip


def _check_shares(attempt, temperature: float) -> None:
    case = f"logits {LOGITS}, temperature {temperature}, seed 7, positions 0 to {NUM_DRAWS - 1:,}."
    rows = _many(temperature, torch.full((NUM_DRAWS,), 7), torch.arange(NUM_DRAWS))
    got = _drawn(attempt, rows, case)
    if torch.equal(got, got[:1].expand_as(got)):
        of_seeds = attempt(*_many(temperature, torch.arange(NUM_DRAWS), torch.arange(NUM_DRAWS)))
        idea = "Other seeds give other tokens. Does each position have its own numbers, too?"
        if torch.equal(of_seeds, got):
            idea = (
                "It's the likeliest token, whatever the seed is. Is a token drawn at all? If so, does each token of a "
                "row have a number of its own?"
            )
        raise Mistake(f"every draw gave token {int(got[0])}.", case=case, idea=idea)
    _expect_shares(got, rows, case)


def _check_seeds(attempt) -> None:
    case = f"logits {LOGITS}, temperature 1.0, seeds 0 to {NUM_DRAWS - 1:,}, position 3."
    rows = _many(1.0, torch.arange(NUM_DRAWS), torch.full((NUM_DRAWS,), 3))
    got = _drawn(attempt, rows, case)
    if torch.equal(got, got[:1].expand_as(got)):
        raise Mistake(f"every seed gave token {int(got[0])}.", case=case,
                      idea="Does each row use its own seed?")  # fmt: skip
    _expect_shares(got, rows, case)


def _check_streams(attempt) -> None:
    """A hash of seed + position would let requests share their numbers."""
    for first, second, told in (
        ((7, 1), (8, 0), "seed 7 at positions 1 to 200, and seed 8 at positions 0 to 199"),
        ((7, 0), (8, 1), "seed 7 at positions 0 to 199, and seed 8 at positions 1 to 200"),
    ):
        case = f"logits {LOGITS}, temperature 1.0, {told}."
        tokens = [
            _drawn(attempt, _rows([LOGITS] * 200, [1.0] * 200, [seed] * 200, list(range(start, start + 200))), case)
            for seed, start in (first, second)
        ]
        if torch.equal(*tokens):
            raise Mistake("two seeds draw the same tokens, shifted.", case=case,
                          idea="Give seeds and positions to `random_numbers` each on its own.")  # fmt: skip


def _many(temperature: float, seeds: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.tensor(LOGITS).repeat(NUM_DRAWS, 1), torch.full((NUM_DRAWS,), temperature), seeds, positions


def _expect_shares(got: torch.Tensor, rows: tuple[torch.Tensor, ...], case: str) -> None:
    logits, temperature, seeds, positions = rows
    probabilities = (logits[0].double() / float(temperature[0])).softmax(dim=-1)
    counts = got.bincount(minlength=len(probabilities)).double()
    if len(counts) == len(probabilities) and chance_of(counts, probabilities * len(got)) > LEAST_CHANCE:
        return
    shares = counts / len(got)
    token = int((shares[: len(probabilities)] - probabilities).abs().argmax())
    what = f"token {token} should be drawn in {probabilities[token]:.1%} of the rows; yours draws it in "
    raise Mistake(what + f"{shares[token]:.1%}.", case=case, idea=_why(got, logits, temperature, seeds, positions))


def chance_of(counts: torch.Tensor, expected: torch.Tensor) -> float:
    """The probability that counts are at least this far from the expected ones: Pearson's chi-square."""
    distance = ((counts - expected) ** 2 / expected).sum()
    freedom = torch.tensor((len(expected) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, distance / 2))


def _why(got, logits, temperature, seeds, positions) -> str:
    numbers = random_numbers(seeds[:, None], positions[:, None], torch.arange(logits.shape[-1]))
    for each in (numbers, 1 - numbers):
        for tokens, idea in _guesses(logits, temperature[:, None], each):
            if (tokens == got).double().mean() > 0.999:
                return idea
    if _are_equal(got.bincount(minlength=logits.shape[-1])):
        return (
            "All tokens are drawn equally often. Does each token's own logit decide its weight? The tokens of a row "
            "are along the last dimension, `dim=-1`."
        )
    return (
        "A token's weight is exp(logit / temperature). Its time is an exponential random number divided by the weight, "
        "and the smallest time wins."
    )


def _are_equal(counts: torch.Tensor) -> bool:
    """Whether all tokens came equally often, apart from chance."""
    return chance_of(counts.double(), torch.full(counts.shape, counts.double().mean())) > LEAST_CHANCE


def _guesses(logits, temperature, numbers) -> list[tuple[torch.Tensor, str]]:
    """Pairs (what a wrong rule draws, its message)."""
    weights, plain, times = (logits / temperature).exp(), logits.exp(), -torch.log1p(-numbers)
    number = "A number between 0 and 1 is no exponential random number yet: −log(1 − number) is."
    largest = "That is the token with the *largest* time."
    return [
        ((plain / times).argmax(dim=-1), "That would be right at temperature 1. Divide the logits by the temperature before `exp`: whatever is divided later changes nothing about the order."),  # noqa: E501
        (((logits * temperature).exp() / times).argmax(dim=-1), "Divide by the temperature. A high one makes the tokens more alike."),  # noqa: E501
        ((weights / numbers).argmax(dim=-1), number),
        ((weights * numbers).argmax(dim=-1), number),
        ((weights * times).argmax(dim=-1), "Yours multiplies where it should divide: time = exponential random number / weight. (In logarithms: minus, not plus.)"),  # noqa: E501
        ((weights * times).argmin(dim=-1), "Yours multiplies where it should divide: time = exponential random number / weight."),  # noqa: E501
        ((times / weights).argmax(dim=-1), largest),
        ((weights / times).argmin(dim=-1), largest),
        (((logits / temperature).log_softmax(dim=-1) / times).argmax(dim=-1), "A weight is a positive number: exp(logit / temperature), or the probability. Yours races logarithms."),  # noqa: E501
        ((logits / temperature / times).argmax(dim=-1), "A weight is exp(logit / temperature), a positive number. Yours races the logits themselves."),  # noqa: E501
        ((logits / temperature + numbers).argmax(dim=-1), number + " With logarithms: logit / temperature − log(exponential random number)."),  # noqa: E501
        ((logits / temperature + times).argmax(dim=-1), "The exponential random number divides the weight. If you add to the logit, add −log(exponential random number)."),  # noqa: E501
    ]  # fmt: skip


def _check_company(attempt) -> None:
    generator = torch.Generator().manual_seed(4)
    logits = 2 * torch.randn(40, 30, generator=generator)
    temperature = torch.rand(40, generator=generator) * 2 * (torch.arange(40) % 5 > 0)
    seeds, positions = torch.arange(40) % 7, torch.arange(40) % 11
    rows = (logits, temperature, seeds, positions)
    case = "40 rows of 30 tokens, with several temperatures, seeds and positions."
    together = _drawn(attempt, rows, case)
    greedy = (together != logits.argmax(dim=-1))[temperature == 0]
    if greedy.any():
        raise Mistake("a row of temperature 0 didn't get its likeliest token.", case=case,
                      idea="The other rows must not matter.")  # fmt: skip
    idea = (
        "A row's token depends on its own logits, temperature, seed and position, and on nothing else: the index of "
        "the row is another one in each step. Does each row use its own temperature? `[:, None]` makes it [N, 1]."
    )
    order = torch.randperm(40, generator=generator)
    if not torch.equal(_drawn(attempt, tuple(row[order] for row in rows), case), together[order]):
        raise Mistake("in another order, the same rows got other tokens.", case=case, idea=idea)
    for row in range(40):
        alone = _drawn(attempt, tuple(each[row : row + 1] for each in rows), f"row {row} of these, alone.")
        if alone[0] != together[row]:
            what = f"row {row} got token {int(together[row])} among 40 rows, and {int(alone[0])} alone."
            raise Mistake(what, case=case, idea=idea)


def _check_close(attempt) -> None:
    case = "20 rows of logits [1.0, 1.0000001], temperature 0."
    rows = _rows([[1.0, 1.0000001]] * 20, [0.0] * 20, list(range(20)), [3] * 20)
    got = _drawn(attempt, rows, case).tolist()
    if got != [1] * 20:
        raise Mistake(f"the tokens should all be 1; yours are {got}.", case=case,
                      idea="A very small temperature isn't 0: tokens that are nearly as likely can be drawn. Take "
                      "the largest logit itself.")  # fmt: skip


EXTREMES = (
    ([300.0, 299.0, 298.0], 1.0, torch.float32, "exp(300) overflows to infinity. The draw stays the same if all logits of a row are lowered by the same number: such as the largest of them."),  # noqa: E501
    ([-200.0, -201.0, -202.0], 1.0, torch.float32, "exp(-200) is 0 in float32. The draw stays the same if all logits of a row change by the same number: raise them so that the largest is 0."),  # noqa: E501
    ([3.0, 2.99, 2.98], 0.01, torch.float32, "Divided by a small temperature, logits become large, and `exp` of them infinite. Lower them first, so that the largest is 0."),  # noqa: E501
    ([float("-inf"), 1.0, float("-inf"), 0.0], 1.0, torch.float32, "A logit of -inf says that the token must not be drawn: its weight is 0."),  # noqa: E501
    ([200.0, 199.0, 198.0], 0.7, torch.bfloat16, "These logits are bfloat16, with three significant digits. Change them to float32 before you compute with them."),  # noqa: E501
    ([20.0, 19.875, 19.75], 0.7, torch.bfloat16, "These logits are bfloat16, with three significant digits. Change them to float32 before you compute with them."),  # noqa: E501
)  # fmt: skip


def _check_extremes(attempt) -> None:
    for logits, temperature, dtype, idea in EXTREMES:
        kind = "" if dtype == torch.float32 else ", in bfloat16"
        case = f"logits {logits}{kind}, temperature {temperature}, seed 5, positions 0 to 3,999."
        rows = (
            torch.tensor(logits, dtype=dtype).repeat(4000, 1), torch.full((4000,), temperature),
            torch.full((4000,), 5), torch.arange(4000),
        )  # fmt: skip
        got = _drawn(attempt, rows, case)
        probabilities = (rows[0][0].double() / temperature).softmax(dim=-1)
        counts, possible = got.bincount(minlength=len(logits)).double(), probabilities > 0
        if counts[~possible].any() or chance_of(counts[possible], 4000 * probabilities[possible]) < LEAST_CHANCE:
            shares = ", ".join(f"{share:.1%}" for share in counts / 4000)
            wanted = ", ".join(f"{share:.1%}" for share in probabilities)
            if possible.all() and _are_equal(counts):
                idea = (
                    "All of them are drawn equally often: the differences between the logits are lost. Does your code "
                    "clamp logits or weights, or add a number to the weights? Change all logits of a row by the same "
                    "number instead, so that the largest is 0."
                )
            raise Mistake(f"the tokens should be drawn in {wanted} of the rows; yours in {shares}.", case=case,
                          idea=idea)  # fmt: skip


def _check_small_number(attempt) -> None:
    """1 − 2.4e-9 is 1 in float32."""
    case = "logits [-30.0, 1.0, 0.0], temperature 1.0, seed 20, position 597,864. The number of token 0 is 2.4e-9."
    got = _drawn(attempt, _rows([[-30.0, 1.0, 0.0]], [1.0], [20], [597_864]), case)
    if int(got[0]) == 0:
        raise Mistake(
            "your code draws token 0, which comes once in 40 trillion draws.", case=case,
            idea="In float32, 1 − 2.4e-9 is 1. Its logarithm is 0, so this time is 0 whatever the weight is, and wins. "
            "`torch.log1p(-number)` is log(1 − number) without that rounding.",
        )  # fmt: skip


def _check_launches(attempt) -> None:
    few, many, wide = (names_of_launches(_call_with(attempt, *sizes)) for sizes in ((2, 1), (16, 1), (2, 8)))
    current_case.text = case = "2 rows, then 16 rows."
    if few.sorts:
        raise Mistake(f"your code sorts the vocabulary (`{few.sorts[0]}`).", case=case,
                      idea="Nothing is cut here, so no order is needed: the race compares times only.")  # fmt: skip
    if len(few.names) != len(many.names):
        what = f"your code launches {len(few.names)} operations for 2 rows, and {len(many.names)} for 16."
        raise Mistake(what, case=case, idea="A launch for each row keeps the CPU busy. Let each operation compute all "
                      "rows at once: [N, vocabulary].")  # fmt: skip

    if len(few.names) != len(wide.names):
        what = f"your code launches {len(few.names)} operations for 4 tokens, and {len(wide.names)} for 32."
        raise Mistake(what, case="2 rows of 4 tokens, then of 32.", idea="A launch for each token of the vocabulary "
                      "keeps the CPU busy. Let each operation compute all of [N, vocabulary].")  # fmt: skip


def _call_with(attempt, count: int, repeats: int) -> Callable[[], object]:
    rows = _rows([LOGITS * repeats] * count, [1.0] * count, list(range(count)), [3] * count)
    return lambda: attempt(*rows)
