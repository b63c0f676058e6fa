"""Judges 12.1, `token_probabilities`: temperature, then the likeliest few, then the likeliest share, and what is left adds up to 1."""

import torch

from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_12.guessing import likeliest_idea
from lessons_lib.engine.sampling import token_probabilities

HALVES = [0.5, 0.3, 0.15, 0.05]
MIXED = [0.15, 0.5, 0.05, 0.3]

# (probabilities of the tokens 0, 1, 2, ... before anything is done, temperatures, top_k, top_p), a row each; smallest first.
CASES = (
    ([HALVES], [1.0], [4], [1.0]),
    ([MIXED], [1.0], [4], [1.0]),
    ([HALVES], [0.5], [4], [1.0]),
    ([HALVES], [2.0], [4], [1.0]),
    ([MIXED], [1.0], [2], [1.0]),
    ([HALVES], [1.0], [9], [1.0]),
    ([HALVES], [1.0], [1], [1.0]),
    ([HALVES], [1.0], [4], [0.6]),
    ([MIXED], [1.0], [4], [0.9]),
    ([HALVES], [1.0], [4], [0.1]),
    ([[0.3, 0.25, 0.2, 0.15, 0.1]], [1.0], [3], [0.7]),
    ([HALVES], [3.0], [4], [0.7]),
    ([HALVES, MIXED], [1.0, 0.5], [4, 4], [1.0, 1.0]),
    ([HALVES, MIXED], [1.0, 1.0], [1, 3], [1.0, 1.0]),
    ([HALVES, MIXED], [1.0, 1.0], [4, 4], [0.6, 0.9]),
    ([[0.2, 0.2, 0.4, 0.2]], [1.0], [2], [1.0]),
    ([[0.25] * 4], [1.0], [4], [0.5]),
)  # fmt: skip


def check_token_probabilities(attempt) -> None:
    found = []
    for number in range(len(CASES)):
        try:
            found.append(_asked(attempt, *_case(number)))
        except Exception:
            if all(_is_right(found[earlier], *_case(earlier)[:2]) for earlier in range(number)):
                raise
            break  # an earlier case was wrong: that one is told
    for number, got in enumerate(found):
        _compare(got, *_case(number), found, number)
    _check_large_logits(attempt)
    _check_many_ties(attempt)
    generator = torch.Generator().manual_seed(11)
    for _ in range(10):
        count = int(torch.randint(1, 6, (), generator=generator))
        temperature, top_p = (torch.rand(2, count, generator=generator) * 0.9 + 0.1).tolist()
        top_k = torch.randint(1, 400, (count,), generator=generator).tolist()
        logits = 3 * torch.randn(count, 300, generator=generator)
        case = f"{count} rows of 300 random logits; {_settings_told([[round(t, 3) for t in temperature], top_k, [round(p, 3) for p in top_p]])}."
        _check_one(attempt, logits, [temperature, top_k, top_p], case)


def _case(number: int) -> tuple[torch.Tensor, list, str]:
    rows, *settings = CASES[number]
    case = f"probabilities of the tokens 0, 1, … before: {_told(rows)}; {_settings_told(settings)}. (`logits` are their logarithms.)"
    return torch.tensor(rows).log(), settings, case


def _check_large_logits(attempt) -> None:
    logits = torch.tensor([[990.0, 1000.0, 980.0]])
    _check_one(
        attempt, logits, [[1.0], [3], [1.0]], f"logits {logits.tolist()}; {_settings_told([[1.0], [3], [1.0]])}."
    )
    logits = torch.tensor([[0.0, 2.0, float("-inf")]])
    _check_one(
        attempt, logits, [[1.0], [3], [1.0]], f"logits {logits.tolist()}; {_settings_told([[1.0], [3], [1.0]])}."
    )


def _check_many_ties(attempt) -> None:
    logits = torch.randint(0, 4, (1, 500), generator=torch.Generator().manual_seed(1)).float()
    settings = [[1.0], [40], [1.0]]
    _check_one(
        attempt,
        logits,
        settings,
        f"500 logits that are 0, 1, 2 or 3, so that many are equal; {_settings_told(settings)}.",
    )


def _told(values) -> str:
    return short([[round(value, 3) for value in row] for row in values])


def _settings_told(settings) -> str:
    temperature, top_k, top_p = settings
    return f"temperature {temperature}, top_k {top_k}, top_p {top_p}"


def _tensors(settings) -> tuple[torch.Tensor, ...]:
    temperature, top_k, top_p = settings
    return torch.tensor(temperature), torch.tensor(top_k), torch.tensor(top_p)


def _check_one(attempt, logits, settings, case: str) -> None:
    _compare(_asked(attempt, logits, settings, case), logits, settings, case)


def _asked(attempt, logits, settings, case: str) -> tuple[torch.Tensor, torch.Tensor]:
    got = call(attempt, logits.clone(), *_tensors(settings), case=case)
    found, order = _pair(got, logits, case)
    if bool(found.isnan().any()):
        idea = "NaN comes from infinity / infinity or 0 / 0. `softmax` takes large logits and −∞ as they are; `exp` does not. And at least one token is always left."
        raise Mistake("there is NaN among your probabilities.", case=case, idea=idea)
    return found, order


def _same(found, want) -> bool:
    return torch.allclose(found.double(), want, atol=1e-5, rtol=0)


def _is_right(got, logits, settings) -> bool:
    want, tokens = token_probabilities(logits, *_tensors(settings))
    return _same(got[0], want) and bool(((got[1] == tokens) | (want <= 1e-9)).all())


def _compare(got, logits, settings, case: str, all_found=(), number: int = 0) -> None:
    want, tokens = token_probabilities(logits, *_tensors(settings))
    found, order = got
    for row in range(len(want)):
        if not _same(found[row], want[row]):
            what = f"the probabilities{_of_row(row, want)} should be {_numbers(want[row])}; yours are {_numbers(found[row])}."
            raise Mistake(what, case=case, idea=_why(found, logits, settings, all_found, number))
        drawn = want[row] > 1e-9
        if order[row][drawn].tolist() != tokens[row][drawn].tolist():
            what = f"the tokens{_of_row(row, want)} should be {short(tokens[row][drawn])}, as far as they can be drawn; yours are {short(order[row][drawn])}."
            raise Mistake(what, case=case, idea=_why_order(order[row], logits[row], tokens[row], drawn))


def _of_row(row: int, want) -> str:
    return f" of row {row}" if len(want) > 1 else ""


def _numbers(row) -> str:
    return "[" + ", ".join(f"{value:.3f}" for value in row[:6].tolist()) + (", …]" if len(row) > 6 else "]")


def _pair(got, want, case: str) -> tuple[torch.Tensor, torch.Tensor]:
    if not isinstance(got, (tuple, list)) or len(got) != 2 or not all(isinstance(part, torch.Tensor) for part in got):
        idea = "Return both: the probabilities, likeliest first, and which token each of them belongs to. `sort` gives values and indices; the indices are the tokens."
        raise Mistake(
            f"a pair of tensors should come back, (probabilities, tokens); yours returned {short(got)}.",
            case=case,
            idea=idea,
        )
    for name, part in zip(("probabilities", "tokens"), got):
        if part.shape != want.shape:
            idea = "One place for each token of the vocabulary, in each row. Tokens that cannot be drawn stay, with the probability 0."
            raise Mistake(
                f"`{name}` should have the shape {list(want.shape)}; yours has {list(part.shape)}.",
                case=case,
                idea=idea,
            )
    found, order = got
    if order.is_floating_point():
        raise Mistake(
            f"`tokens` should be token numbers; yours are {short(order)}.",
            case=case,
            idea="First the probabilities, then the tokens. The tokens are the indices that `sort` returns.",
        )
    return found, order


def _variant(
    logits,
    settings,
    scale="divide",
    more=0,
    ties="cut",
    reach="kept",
    share_of="cut",
    renormalise=True,
    all_by_first=False,
    rising=False,
):
    """Another rule in place of the right one: what `_why` compares with."""
    temperature, top_k, top_p = (
        setting[:1].expand_as(setting) if all_by_first else setting for setting in _tensors(settings)
    )
    scaled = {"divide": logits / temperature[:, None], "multiply": logits * temperature[:, None], "ignore": logits}[
        scale
    ].double()
    scaled = scaled.sort(dim=-1, descending=not rising, stable=True).values
    rank = torch.arange(scaled.shape[-1])
    uncut = scaled.softmax(dim=-1)
    outside = rank >= (top_k[:, None] + more)
    if ties == "kept":
        outside = scaled < scaled.gather(1, (top_k[:, None] - 1).clamp(max=scaled.shape[-1] - 1))
    cut = scaled.masked_fill(outside, float("-inf")).softmax(dim=-1)
    shares = {
        "cut": cut,
        "uncut": uncut,
        "at temperature 1": (scaled.masked_fill(outside, float("-inf")) * temperature[:, None]).softmax(dim=-1),
    }[share_of]
    reached = {
        "kept": shares.cumsum(-1) - shares >= top_p[:, None],
        "dropped": (shares.cumsum(-1) > top_p[:, None] + 1e-6) & (rank > 0),
    }
    reached["exactly reached, kept"] = shares.cumsum(-1) - shares > top_p[:, None]
    reached["dropped at the border"] = (shares.cumsum(-1) > top_p[:, None] - 1e-6) & (rank > 0)
    reached["one more"] = torch.cat([torch.zeros(len(shares), 1, dtype=torch.bool), reached["kept"][:, :-1]], dim=1)
    reached["ignored"] = torch.zeros_like(reached["kept"])
    outside = outside | reached[reach]
    if not renormalise:
        return uncut.masked_fill(outside, 0.0)
    return cut.masked_fill(outside, 0.0) / cut.masked_fill(outside, 0.0).sum(dim=-1, keepdim=True)


RULES = (
    (dict(scale="ignore"), "That is what comes out without temperature. Divide the logits by it."),
    (dict(scale="multiply"), "The logits were multiplied by the temperature. They are divided by it: below 1 the likeliest tokens become likelier still."),
    (dict(reach="dropped at the border"), "The token that reaches `top_p` was cut, too: with `top_p` = 1 that is the last one. Ask what those before *this* token have together: `cumsum` less its own."),
    (dict(reach="exactly reached, kept"), "Those before this token have exactly `top_p` together. That is enough, so it is cut: `>=` in place of `>`."),
    (dict(ties="kept"), "All that are as likely as the last of the `top_k` were left. Exactly `top_k` stay: cut by the place in the row, not by the value there."),
    (dict(more=1), "One token too many is left. `top_k` of them may be drawn: those of rank 0 to `top_k` − 1."),
    (dict(more=-1), "One token too few is left. `top_k` of them may be drawn: those of rank 0 to `top_k` − 1."),
    (dict(more=10**6), "`top_k` cuts nothing here. Only the `top_k` likeliest tokens may be drawn."),
    (dict(reach="dropped"), "The token that reaches `top_p` was cut, too. It belongs to those that stay: ask what the tokens *before* it have together."),
    (dict(reach="one more"), "One token too many is left. A token is cut when those before it have `top_p` together already."),
    (dict(reach="ignored"), "`top_p` cuts nothing here. A token is cut when those before it have `top_p` together already."),
    (dict(share_of="uncut"), "`top_p` was computed on all tokens. It is a share of what `top_k` has left: bring that to the sum 1 first."),
    (dict(share_of="at temperature 1"), "`top_p` was computed before the temperature. Divide first: the shares are those that are drawn from."),
    (dict(renormalise=False), "What was cut is missing: these do not add up to 1. Divide what is left by its sum, or put −∞ in place of the cut logits before the softmax."),
    (dict(all_by_first=True), "All rows have the settings of the first one. Each row has its own: `temperature[:, None]` stands beside [B, vocabulary] with one number for each row."),
    (dict(rising=True), "The likeliest tokens should come first, and be the ones that stay. `sort` needs `descending=True`."),
)  # fmt: skip


def _why(found, logits, settings, all_found, number: int) -> str:
    want, tokens = token_probabilities(logits, *_tensors(settings))
    if _same(found, torch.zeros_like(want).scatter(1, tokens, want)):
        return "These are the right probabilities in the order of the vocabulary. Likeliest first is asked for, with `tokens` saying which is which."
    if _same(found, want.flip(-1)):
        return "The likeliest tokens should come first: `descending=True`."
    cases = [(got[0], *_case(place)[:2]) for place, got in enumerate(all_found)] or [(found, logits, settings)]
    rules = [
        (lambda place, rule=rule: _same(cases[place][0], _variant(*cases[place][1:], **rule)), idea)
        for rule, idea in RULES
    ]
    if idea := likeliest_idea(rules, number, len(cases)):
        return idea
    if not torch.allclose(found.double().sum(dim=-1), torch.ones(len(found), dtype=torch.float64), atol=1e-4):
        return "These do not add up to 1. What is left after the cuts has to be divided by its own sum."
    return "In this order: divide by the temperature; sort; cut by rank; softmax; cut by the share of those before; divide by the sum."


def _why_order(order, logits, tokens, drawn) -> str:
    if order.tolist() == list(range(len(order))):
        return "`tokens` names the places 0, 1, 2, … of the sorted row. It should say which token stands there: the second thing that `sort` returns."
    in_range = bool(((order >= 0) & (order < len(order))).all())
    if in_range and torch.equal(logits[order.long()][drawn], logits[tokens][drawn]):
        return "Of two tokens alike, the one with the smaller number comes first, or the same seed gives another text on another machine: `sort(..., stable=True)`."
    return "`tokens[i, j]` is the token that is drawn with `probabilities[i, j]`: the second thing that `sort` returns, of the same sort."
