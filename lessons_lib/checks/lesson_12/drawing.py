"""Judges 12.2, `draw`: a number falls on one of the probabilities that lie end to end."""

import torch

from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_12.guessing import likeliest_idea
from lessons_lib.engine.sampling import draw

P, TOKENS = [0.5, 0.25, 0.125, 0.125], [7, 3, 9, 1]

# (probabilities, tokens, numbers), a row each; smallest first. The last ones add up to a little less than 1.
CASES = (
    ([P], [TOKENS], [0.3]),
    ([P], [TOKENS], [0.6]),
    ([P], [TOKENS], [0.8]),
    ([P], [TOKENS], [0.95]),
    ([P], [TOKENS], [0.0]),
    ([P], [TOKENS], [0.5]),
    ([P], [TOKENS], [0.75]),
    ([[1.0, 0.0, 0.0, 0.0]], [TOKENS], [0.999]),
    ([P, P], [TOKENS, TOKENS], [0.1, 0.9]),
    ([P, [0.25] * 4], [TOKENS, [4, 5, 6, 8]], [0.3, 0.3]),
    ([P] * 5, [TOKENS] * 5, [0.9, 0.6, 0.1, 0.8, 0.5]),
)
SHORT_SUMS = (
    ([[0.6, 0.3, 0.0999]], [[7, 3, 9]], [0.99995]),
    ([[0.6, 0.3, 0.0999, 0.0]], [TOKENS], [0.99995]),
)


def check_draw(attempt) -> None:
    _check_same_again(attempt)
    found = [_asked(attempt, *_tensors(*values), _told(*values)) for values in CASES]
    for number, (values, got) in enumerate(zip(CASES, found)):
        _compare(got, *_tensors(*values), _told(*values), found, number)
    for values in SHORT_SUMS:
        _check_short_sum(attempt, *values)
    generator = torch.Generator().manual_seed(2)
    for _ in range(5):
        probabilities = (
            torch.randn(100, 200, generator=generator)
            .double()
            .mul(3)
            .softmax(dim=-1)
            .sort(dim=-1, descending=True)
            .values
        )
        tokens = torch.stack([torch.randperm(200, generator=generator) for _ in range(100)])
        numbers = torch.rand(100, generator=generator, dtype=torch.float64)
        _check_one(attempt, probabilities, tokens, numbers, "100 rows with 200 random probabilities each.")


def _tensors(probabilities, tokens, numbers):
    return (
        torch.tensor(probabilities, dtype=torch.float64),
        torch.tensor(tokens),
        torch.tensor(numbers, dtype=torch.float64),
    )


def _told(probabilities, tokens, numbers) -> str:
    return f"probabilities {short(probabilities)}, tokens {short(tokens)}, numbers {short(numbers)}."


def _check_same_again(attempt) -> None:
    values = ([P] * 8, [TOKENS] * 8, [0.6] * 8)
    case = _told([P], [TOKENS], [0.6]) + " Eight rows alike, five times."
    answers = [_tokens(call(attempt, *_tensors(*values), case=case), 8, case).tolist() for _ in range(5)]
    if len({token for answer in answers for token in answer}) > 1:
        idea = "All chance is in `numbers` already. A generator of your own (`torch.multinomial`, `torch.rand`) makes the answer depend on what was drawn before, for others too."
        raise Mistake(
            f"the same number should give the same token every time; yours gave {sorted({t for answer in answers for t in answer})}.",
            case=case,
            idea=idea,
        )


def _tokens(got, count: int, case: str) -> torch.Tensor:
    if not isinstance(got, torch.Tensor):
        raise Mistake(
            f"a tensor of token numbers should come back; yours returned {short(got)}.",
            case=case,
            idea="An int64 tensor [B], a token for each row.",
        )
    if got.shape != (count,):
        idea = "One token for each row. `gather` and `searchsorted` return [B, 1] for one column: take `[:, 0]` of it."
        raise Mistake(
            f"the tokens should have the shape {[count]}; yours have {list(got.shape)}.", case=case, idea=idea
        )
    if got.is_floating_point():
        raise Mistake(
            f"tokens should be whole numbers; yours are {short(got)}.",
            case=case,
            idea="Return what stands in `tokens`, not a probability or a number.",
        )
    return got


def _check_one(attempt, probabilities, tokens, numbers, case: str) -> None:
    _compare(_asked(attempt, probabilities, tokens, numbers, case), probabilities, tokens, numbers, case)


def _asked(attempt, probabilities, tokens, numbers, case: str) -> torch.Tensor:
    return _tokens(call(attempt, probabilities.clone(), tokens.clone(), numbers.clone(), case=case), len(numbers), case)


def _compare(got, probabilities, tokens, numbers, case: str, all_found=(), number: int = 0) -> None:
    want = draw(probabilities, tokens, numbers)
    wrong = (got != want).nonzero()[:, 0].tolist()
    if wrong:
        row = wrong[0]
        of_row = f" of row {row}" if len(want) > 1 else ""
        what = f"the token{of_row} should be {int(want[row])}; yours is {int(got[row])}."
        cases = [(other, *_tensors(*values)) for other, values in zip(all_found, CASES)] or [
            (got, probabilities, tokens, numbers)
        ]
        raise Mistake(what, case=case, idea=_why(cases, number))


def _check_short_sum(attempt, probabilities, tokens, numbers) -> None:
    case = _told(probabilities, tokens, numbers)
    idea = "By rounding, the sum may stop short of 1, and a number may lie beyond it. The last token that has a probability above 0 takes what is left."
    try:
        got = _tokens(call(attempt, *_tensors(probabilities, tokens, numbers), case=case), 1, case)
    except (IndexError, RuntimeError, ValueError, StopIteration) as error:
        raise Mistake(
            f"the token should be 9; your code raised {type(error).__name__}: {str(error)[:80]}.", case=case, idea=idea
        ) from None
    if int(got[0]) != 9:
        if int(got[0]) == 1:
            idea += " The last place of the row is a token that was cut: it must never be drawn."
        raise Mistake(f"the token should be 9; yours is {int(got[0])}.", case=case, idea=idea)


def _guesses(probabilities, tokens, numbers) -> list[tuple[torch.Tensor, str]]:
    """(what another rule draws, what to say of it)"""
    ends = probabilities.cumsum(dim=-1)
    last = probabilities.shape[-1] - 1

    def chosen(index):
        return tokens.gather(1, index.clamp(0, last).long())[:, 0]

    def found(ends, numbers, right=True):
        return torch.searchsorted(ends.contiguous(), numbers[:, None].contiguous(), right=right)

    right = found(ends, numbers)
    return [
        (right[:, 0], "That is the place in the sorted row. The token that stands there is in `tokens`."),
        (tokens[:, 0], "That is the likeliest token every time. The number decides: it may fall on any of them."),
        (chosen(found(ends, numbers, right=False)), "The number lies on the border of two tokens. The first has the numbers from 0 up to, but not with, its end: `right=True`, or `>` in place of `>=`."),
        (chosen(right + 1), "That is the token behind the right one. The first token has the numbers from 0 on: count the ends that the number has reached."),
        (chosen(right - 1), "That is the token before the right one. Count the ends that the number has reached: that many tokens lie before yours."),
        (chosen(found(ends, numbers[:1].expand_as(numbers))), "Every row has a number of its own. `numbers[:, None]` stands beside [B, vocabulary]."),
        (tokens[:1].expand_as(tokens).gather(1, right)[:, 0], "Every row has its own order of tokens. `tokens.gather(1, index)` looks into the row of each index."),
        (chosen(found(ends, 1 - numbers)), "The probabilities lie from 0 on, likeliest first. You seem to count from the other end."),
        (chosen((probabilities - numbers[:, None]).abs().argmin(dim=-1, keepdim=True)), "That is the probability nearest to the number. Lay them end to end, and see on which of them the number falls."),
        (chosen((ends - numbers[:, None]).abs().argmin(dim=-1, keepdim=True)), "That is the nearest end. Take the first end that lies beyond the number."),
        (chosen((numbers[:, None] * (last + 1)).floor()), "All tokens were taken to be alike. A token with a large probability has a long piece of the line."),
    ]  # fmt: skip


def _why(cases, first: int) -> str:
    guesses = [_guesses(*values) for _, *values in cases]
    ideas = [idea for _, idea in guesses[first]]
    rules = [
        (lambda number, place=place: torch.equal(cases[number][0].long(), guesses[number][place][0].long()), idea)
        for place, idea in enumerate(ideas)
    ]
    otherwise = "Lay the probabilities end to end (`cumsum`). The first end that lies beyond the number is the token's."
    return likeliest_idea(rules, first, len(cases)) or otherwise
