"""Judges 12.2, `draw`: a number falls on one of the probabilities laid end to end."""

import torch

from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_12.guessing import likeliest_idea
from lessons_lib.engine.sampling import draw

P, TOKENS = [0.5, 0.25, 0.125, 0.125], [7, 3, 9, 1]

# (probabilities, tokens, numbers), one row each; smallest case first. The rows of SHORT_SUMS add up to a little less than 1.  # noqa: E501
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
    ([[0.6, 0.3, 0.0999, 0.0], [0.6, 0.3999, 0.0, 0.0]], [TOKENS] * 2, [0.99995] * 2),
    ([[0.6, 0.3999, 0.0, 0.0], [0.6, 0.3, 0.0999, 0.0]], [TOKENS] * 2, [0.99995] * 2),
)


def check_draw(attempt) -> None:
    _check_same_again(attempt)
    found = [_asked(attempt, *_tensors(*values), _told(*values)) for values in CASES]
    for index, (values, got) in enumerate(zip(CASES, found)):
        _compare(got, *_tensors(*values), _told(*values), found, index)
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
    case = _told([P], [TOKENS], [0.6]) + " Eight equal rows, five calls."
    answers = [_tokens(call(attempt, *_tensors(*values), case=case), 8, case).tolist() for _ in range(5)]
    if len({token for answer in answers for token in answer}) > 1:
        idea = "All randomness is in `numbers` already. With a generator of your own (`torch.multinomial`, `torch.rand`) the result depends on all earlier draws, including those of other requests."  # noqa: E501
        raise Mistake(
            f"the same number should give the same token every time; yours returned {sorted({t for answer in answers for t in answer})}.",  # noqa: E501
            case=case,
            idea=idea,
        )


def _tokens(got, count: int, case: str) -> torch.Tensor:
    if not isinstance(got, torch.Tensor):
        raise Mistake(
            f"expected a tensor of token ids; yours returned {short(got)}.",
            case=case,
            idea="Return an int64 tensor [N], one token for each row.",
        )
    if got.shape != (count,):
        idea = "One token for each row. `gather` and `searchsorted` return [N, 1] here: take its column `[:, 0]`."
        raise Mistake(
            f"the tokens should have the shape {[count]}; yours have {list(got.shape)}.", case=case, idea=idea
        )
    if got.is_floating_point():
        raise Mistake(
            f"tokens should be integers; yours are {short(got)}.",
            case=case,
            idea="Return an element of `tokens`, not a probability or one of `numbers`.",
        )
    if got.dtype != torch.int64:
        raise Mistake(
            f"tokens should have the dtype torch.int64; yours have {got.dtype}.",
            case=case,
            idea="`tokens` is int64, and so is what `gather` takes from it. The model's embedding expects that dtype.",
        )
    return got


def _check_one(attempt, probabilities, tokens, numbers, case: str) -> None:
    _compare(_asked(attempt, probabilities, tokens, numbers, case), probabilities, tokens, numbers, case)


def _asked(attempt, probabilities, tokens, numbers, case: str) -> torch.Tensor:
    return _tokens(call(attempt, probabilities.clone(), tokens.clone(), numbers.clone(), case=case), len(numbers), case)


def _compare(got, probabilities, tokens, numbers, case: str, all_found=(), index: int = 0) -> None:
    want = draw(probabilities, tokens, numbers)
    wrong = (got != want).nonzero()[:, 0].tolist()
    if wrong:
        row = wrong[0]
        of_row = f" of row {row}" if len(want) > 1 else ""
        what = f"the token{of_row} should be {int(want[row])}; yours is {int(got[row])}."
        cases = [(other, *_tensors(*values)) for other, values in zip(all_found, CASES)] or [
            (got, probabilities, tokens, numbers)
        ]
        raise Mistake(what, case=case, idea=_why(cases, index))


def _check_short_sum(attempt, probabilities, tokens, numbers) -> None:
    case = _told(probabilities, tokens, numbers)
    idea = "Because of rounding, the sum can be slightly less than 1, and a number can be beyond it. Then the last token with a probability above 0 is drawn."  # noqa: E501
    want = draw(*_tensors(probabilities, tokens, numbers)).tolist()
    try:
        got = _tokens(call(attempt, *_tensors(probabilities, tokens, numbers), case=case), len(want), case).tolist()
    except (IndexError, RuntimeError, ValueError, StopIteration) as error:
        raise Mistake(
            f"the token should be {want[0]}; your code raised {type(error).__name__}: {str(error)[:80]}.",
            case=case,
            idea=idea,
        ) from None
    for row, (right, yours) in enumerate(zip(want, got)):
        if right == yours:
            continue
        if yours in tokens[row] and probabilities[row][tokens[row].index(yours)] == 0:
            idea += " Yours has a probability of 0: a token that was cut must never be drawn."
        elif len(want) > 1:
            idea += " Each row has its own last token."
        of_row = f" of row {row}" if len(want) > 1 else ""
        raise Mistake(f"the token{of_row} should be {right}; yours is {yours}.", case=case, idea=idea)


def _guesses(probabilities, tokens, numbers) -> list[tuple[torch.Tensor, str]]:
    """Pairs (what a wrong rule draws, its message)."""
    ends = probabilities.cumsum(dim=-1)
    last = probabilities.shape[-1] - 1

    def chosen(index):
        return tokens.gather(1, index.clamp(0, last).long())[:, 0]

    def found(ends, numbers, right=True):
        return torch.searchsorted(ends.contiguous(), numbers[:, None].contiguous(), right=right)

    right = found(ends, numbers)
    return [
        (right[:, 0], "That is the index in the sorted row. The token at that index is in `tokens`."),
        (tokens[:, 0], "That is the likeliest token every time. The number decides, and it can fall on any of them."),
        (chosen(found(ends, numbers, right=False)), "The number is on the border between two tokens. A token covers the line up to, but not including, its end: `right=True`, or `>` instead of `>=`."),  # noqa: E501
        (chosen(right + 1), "That is the token after the right one. The first token starts at 0, so count the ends that the number has reached."),  # noqa: E501
        (chosen(right - 1), "That is the token before the right one. Count the ends that the number has reached: that is the index."),  # noqa: E501
        (chosen(found(ends, numbers[:1].expand_as(numbers))), "Each row has its own number. `numbers[:, None]` is [N, 1], one for each row of [N, vocabulary]."),  # noqa: E501
        (tokens[:1].expand_as(tokens).gather(1, right)[:, 0], "Each row has its own order of tokens. `tokens.gather(1, index)` looks up each index in its own row."),  # noqa: E501
        (chosen(found(ends, 1 - numbers)), "The likeliest token starts at 0. You seem to count from the other end."),
        (chosen((probabilities - numbers[:, None]).abs().argmin(dim=-1, keepdim=True)), "That is the probability nearest to the number. Lay the probabilities end to end, and find the one on which the number falls."),  # noqa: E501
        (chosen((ends - numbers[:, None]).abs().argmin(dim=-1, keepdim=True)), "That is the end nearest to the number. Take the first end beyond it."),  # noqa: E501
        (chosen((numbers[:, None] * (last + 1)).floor()), "You treat all tokens as equally likely. A token with a large probability covers more of the line."),  # noqa: E501
    ]  # fmt: skip


def _why(cases, first: int) -> str:
    guesses = [_guesses(*values) for _, *values in cases]
    ideas = [idea for _, idea in guesses[first]]
    rules = [
        (lambda case, rule=rule: torch.equal(cases[case][0].long(), guesses[case][rule][0].long()), idea)
        for rule, idea in enumerate(ideas)
    ]
    otherwise = "Lay the probabilities end to end (`cumsum`). The first end beyond the number belongs to the token."
    return likeliest_idea(rules, first, len(cases)) or otherwise
