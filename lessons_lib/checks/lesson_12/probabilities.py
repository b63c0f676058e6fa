"""Judges 12.1, `token_probabilities`: temperature, then top-k, then top-p, and what is left adds up to 1."""

import torch

from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_12.guessing import likeliest_idea
from lessons_lib.engine.plain_sampling import token_probabilities
from lessons_lib.viz.words import START, marked

HALVES = [0.5, 0.3, 0.15, 0.05]
MIXED = [0.15, 0.5, 0.05, 0.3]

# (probabilities of the tokens 0, 1, 2, ... at temperature 1 and without cuts, temperatures, top_k, top_p), one row each; smallest case first.  # noqa: E501
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
    ([HALVES, MIXED], [1.0, 1.0], [1, 4], [1.0, 1.0]),
    ([HALVES, MIXED], [1.0, 1.0], [4, 4], [0.6, 1.0]),
    ([[0.2, 0.2, 0.4, 0.2]], [1.0], [2], [1.0]),
    ([[0.25] * 4], [1.0], [4], [0.5]),
)  # fmt: skip


def check_token_probabilities(attempt) -> None:
    found = []
    for index in range(len(CASES)):
        try:
            found.append(_asked(attempt, *_case(index)))
        except Exception:
            if all(_is_right(found[earlier], *_case(earlier)[:2]) for earlier in range(index)):
                raise
            break  # an earlier case was wrong: report that one
    for index, got in enumerate(found):
        _compare(got, *_case(index), found, index)
    _check_large_logits(attempt)
    _check_many_ties(attempt)
    _check_float64(attempt)
    _check_bfloat16(attempt)
    _check_nearly_equal(attempt)
    generator = torch.Generator().manual_seed(11)
    for _ in range(10):
        count = int(torch.randint(1, 6, (), generator=generator))
        temperature, top_p = (torch.rand(2, count, generator=generator) * 0.9 + 0.1).tolist()
        top_k = torch.randint(1, 400, (count,), generator=generator).tolist()
        logits = 3 * torch.randn(count, 300, generator=generator)
        case = f"{count} rows of 300 random logits; {_settings_told([[round(t, 3) for t in temperature], top_k, [round(p, 3) for p in top_p]])}."  # noqa: E501
        _check_one(attempt, logits, [temperature, top_k, top_p], case)


def _case(index: int) -> tuple[torch.Tensor, list, str]:
    rows, *settings = CASES[index]
    case = f"tokens 0, 1, … have the probabilities {_told(rows)}; {_settings_told(settings)}. (`logits` are their logarithms.)"  # noqa: E501
    return torch.tensor(rows).log(), settings, case


def _check_large_logits(attempt) -> None:
    none = float("-inf")
    cases = (
        ([990.0, 1000.0, 980.0], 3, 1.0),
        ([0.0, 2.0, none], 3, 1.0),
        ([0.0, 2.0, none], 2, 1.0),
        ([0.0, 2.0, none], 3, 0.5),
        ([none, 0.0, none, 2.0], 1, 0.9),
    )
    for row, top_k, top_p in cases:
        settings = [[1.0], [top_k], [top_p]]
        _check_one(attempt, torch.tensor([row]), settings, f"logits {[row]}; {_settings_told(settings)}.")


def _check_many_ties(attempt) -> None:
    logits = torch.randint(0, 4, (1, 500), generator=torch.Generator().manual_seed(1)).float()
    settings = [[1.0], [40], [1.0]]
    _check_one(
        attempt,
        logits,
        settings,
        f"500 logits, each of them 0, 1, 2 or 3, so many are equal; {_settings_told(settings)}.",
    )


def _check_float64(attempt) -> None:
    """`logits.double()` of a float64 tensor is that tensor itself, so working in place would change the argument."""
    logits = torch.tensor([MIXED], dtype=torch.float64).log()
    settings = [[0.5], [3], [0.9]]
    _check_one(attempt, logits, settings, f"float64 logits {_told(logits.tolist())}; {_settings_told(settings)}.")


def _check_bfloat16(attempt) -> None:
    logits, settings = torch.tensor([[1.0, 0.625, 2.5, 0.25]], dtype=torch.bfloat16), [[0.7], [3], [1.0]]
    case = f"bfloat16 logits {logits.tolist()}; {_settings_told(settings)}."
    found, order = _asked(attempt, logits, settings, case)
    want, _ = token_probabilities(logits, *_tensors(settings))
    _check_dtype(found, want, case)
    if not _same(found, want) and torch.allclose(found.double(), want, atol=0.02, rtol=0):
        raise Mistake(
            f"the probabilities should be {_rounded(want[0])}; yours are {_rounded(found[0])}.", case=case,
            idea="bfloat16 has two to three significant digits. Change the logits to float64 before you compute with "
            "them.",
        )  # fmt: skip
    _compare((found, order), logits, settings, case)


def _check_dtype(found: torch.Tensor, want: torch.Tensor, case: str) -> None:
    """Probabilities that are right, and were rounded at the end."""
    rounded = want.to(found.dtype).double()
    if found.dtype in (torch.bfloat16, torch.float16) and not _same(found, want) and _same(found, rounded):
        dtype = str(found.dtype).removeprefix("torch.")
        raise Mistake(
            f"the probabilities are returned as {dtype}: {_rounded(found[0], '.5f')} in place of "
            f"{_rounded(want[0], '.5f')}.",
            case=case,
            idea=f"Return float32 or float64. Until then your numbers are right; a conversion to {dtype} at the end "
            "rounds them.",
        )


def _check_nearly_equal(attempt) -> None:
    logits, settings = torch.tensor([[0.1, 0.10000001]]), [[1.0], [1], [1.0]]
    case = f"float32 logits [[0.1, 0.10000001]]; {_settings_told(settings)}."
    _, order = got = _asked(attempt, logits, settings, case)
    if order[0].tolist() == [0, 1]:
        raise Mistake(
            "token 1 has the larger logit, so it should stay; yours keeps token 0.", case=case,
            idea="In float32, the two probabilities round to the same number. Do you sort probabilities? Sort logits.",
        )  # fmt: skip
    _compare(got, logits, settings, case)


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
    try:
        got = call(attempt, logits.clone(), *_tensors(settings), case=case)
    except (IndexError, RuntimeError, ValueError) as error:
        idea = _why_raised(str(error), logits, settings)
        if not idea:
            raise
        raise Mistake(f"your code raised {type(error).__name__}: {error}.", case=case, idea=idea) from None
    found, order = _pair(got, logits, case)
    if bool(found.isnan().any()):
        raise Mistake("your probabilities contain NaN.", case=case, idea=_why_nan(logits))
    return found, order


def _why_nan(logits: torch.Tensor) -> str:
    if bool(logits.isfinite().all()):
        return (
            "NaN comes from ∞ / ∞ or 0 / 0. `softmax` can handle large logits; `exp` can't. And at least one token is "
            "always left."
        )
    return (
        "A logit is −∞ here, and 0 · (−∞), ∞ − ∞ and 0 / 0 are NaN. Do you multiply logits by a mask? `masked_fill`, "
        "`torch.where` and `softmax` can handle −∞. And at least one token is always left."
    )


def _why_raised(error: str, logits, settings) -> str | None:
    if len(logits) > 1 and "size of tensor" in error:
        return "Each setting has one value per row, [N]. `[:, None]` makes it [N, 1], which broadcasts over [N, vocabulary]."  # noqa: E501
    # The cases before the first with so large a `top_k` raise nothing.
    top_k, size = max(settings[1]), logits.shape[-1]
    if top_k > size and ("out of" in error or len(logits) == 1):
        limit = " An index needs a limit." * ("out of" in error)
        return f"`top_k` may be larger than the vocabulary, {top_k} of {size} tokens here; then it cuts nothing.{limit}"
    return None


def _same(found, want) -> bool:
    return torch.allclose(found.double(), want, atol=1e-5, rtol=0)


def _is_right(got, logits, settings) -> bool:
    want, tokens = token_probabilities(logits, *_tensors(settings))
    return _same(got[0], want) and bool(((got[1] == tokens) | (want <= 1e-9)).all())


def _compare(got, logits, settings, case: str, all_found=(), index: int = 0) -> None:
    want, tokens = token_probabilities(logits, *_tensors(settings))
    found, order = got
    _check_dtype(found, want, case)
    for row in range(len(want)):
        if not _same(found[row], want[row]):
            what = f"the probabilities{_of_row(row, want)} should be {_told_apart(want[row], found[row])}."
            raise Mistake(what, case=case, idea=_why(found, logits, settings, all_found, index))
        drawn = want[row] > 1e-9
        if order[row][drawn].tolist() != tokens[row][drawn].tolist():
            what = f"the tokens{_of_row(row, want)} with a probability above 0 should be {short(tokens[row][drawn])}; yours are {_marked(tokens[row][drawn], order[row][drawn])}."  # noqa: E501
            raise Mistake(what, case=case, idea=_why_order(order[row], logits[row], tokens[row], drawn))
        if order[row].sort().values.tolist() != list(range(logits.shape[-1])):
            raise Mistake(
                f"`tokens`{_of_row(row, want)} should contain each token of the vocabulary once; yours is "
                f"{short(order[row])}.",
                case=case,
                idea="A token that is cut stays in its row, with the probability 0. Only its place among the others is "
                "free.",
            )


def _marked(want: torch.Tensor, found: torch.Tensor) -> str:
    told = marked(want.tolist(), found.tolist())
    return told if START in told else short(found)


def _of_row(row: int, want) -> str:
    return f" of row {row}" if len(want) > 1 else ""


def _told_apart(want, found) -> str:
    if _rounded(want) != _rounded(found) or len(want) > 6:
        return f"{_rounded(want)}; yours are {_rounded(found)}"
    return f"{_rounded(want, '.3g')}; yours are {_rounded(found, '.3g')}"


def _rounded(row, digits=".3f") -> str:
    return "[" + ", ".join(f"{value:{digits}}" for value in row[:6].tolist()) + (", …]" if len(row) > 6 else "]")


def _pair(got, want, case: str) -> tuple[torch.Tensor, torch.Tensor]:
    if not isinstance(got, (tuple, list)) or len(got) != 2 or not all(isinstance(part, torch.Tensor) for part in got):
        idea = "Return both: the probabilities, likeliest first, and the token of each. `sort` returns values and indices; the indices are the tokens."  # noqa: E501
        raise Mistake(
            f"expected a pair of tensors, (probabilities, tokens); yours returned {short(got)}.",
            case=case,
            idea=idea,
        )
    for name, part in zip(("probabilities", "tokens"), got):
        if part.shape != want.shape:
            idea = "Each row has one element per token of the vocabulary. Tokens that can't be drawn stay in it, with the probability 0."  # noqa: E501
            raise Mistake(
                f"`{name}` should have the shape {list(want.shape)}; yours has {list(part.shape)}.",
                case=case,
                idea=idea,
            )
    found, order = got
    if order.is_floating_point():
        raise Mistake(
            f"`tokens` should be token ids; yours are {short(order)}.",
            case=case,
            idea="Return the probabilities first, then the tokens. The tokens are the indices that `sort` returns.",
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
    renormalize=True,
    one_for_all=None,
    rising=False,
    cut_logit=float("-inf"),
    cut_by="rank",
    dim=-1,
    again=False,
):
    """The reference with one rule replaced by a wrong one: what `_why` compares with."""
    temperature, top_k, top_p = (
        one_for_all(setting).expand_as(setting) if one_for_all else setting for setting in _tensors(settings)
    )
    scaled = {"divide": logits / temperature[:, None], "multiply": logits * temperature[:, None]}.get(scale, logits)
    scaled = scaled.double()
    scaled, tokens = scaled.sort(dim=-1, descending=not rising, stable=True)
    rank = torch.arange(scaled.shape[-1])
    uncut = scaled.softmax(dim=-1)
    outside = (rank if cut_by == "rank" else tokens) >= (top_k[:, None] + more)
    if ties == "kept":
        outside = scaled < scaled.gather(1, (top_k[:, None] - 1).clamp(max=scaled.shape[-1] - 1))
    cut = scaled.masked_fill(outside, cut_logit).softmax(dim=dim).nan_to_num(0.0)
    outside = outside & (cut_logit < 0)
    if scale == "probabilities":
        cut = cut / temperature[:, None]
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
    reached["complement"] = (shares.cumsum(-1) - shares >= 1 - top_p[:, None]) & (rank > 0)
    reached["ignored"] = torch.zeros_like(reached["kept"])
    outside = outside | reached[reach]
    if again:
        return cut.masked_fill(outside, float("-inf")).softmax(dim=-1)
    if not renormalize:
        return uncut.masked_fill(outside, 0.0)
    return cut.masked_fill(outside, 0.0) / cut.masked_fill(outside, 0.0).sum(dim=-1, keepdim=True)


ONE_ROW = "In your code the setting of one row counts for another one, too. Each row has its own: `temperature[:, None]` is [N, 1] and broadcasts over [N, vocabulary]."  # noqa: E501

RULES = (
    (dict(scale="ignore"), "That is the result without temperature. Divide the logits by it."),
    (dict(scale="multiply"), "You multiplied the logits by the temperature. Divide by it: below 1, the likeliest tokens become even likelier."),  # noqa: E501
    (dict(scale="probabilities"), "You divided probabilities by the temperature. Divide the logits, before the softmax."),  # noqa: E501
    (dict(reach="dropped at the border"), "You cut a token though those before it add up to less than `top_p`. Is the token itself in your sum? Look at the sum *before* each token: `cumsum` minus its own probability."),  # noqa: E501
    (dict(reach="exactly reached, kept"), "The tokens before this one add up to exactly `top_p`. That is enough, so this one is cut: `>=` instead of `>`."),  # noqa: E501
    (dict(ties="kept"), "You kept every token that is as likely as the last of the `top_k`. Exactly `top_k` stay: cut by rank, not by value."),  # noqa: E501
    (dict(more=1), "One token too many is left. Exactly `top_k` tokens may be drawn: ranks 0 to `top_k` − 1."),
    (dict(more=-1), "One token too few is left. Exactly `top_k` tokens may be drawn: ranks 0 to `top_k` − 1."),
    (dict(more=10**6), "`top_k` cuts nothing in your code. Only the `top_k` likeliest tokens may be drawn."),
    (dict(reach="dropped"), "You cut the token that reaches `top_p`, but it should stay. Look at the sum of the tokens *before* it."),  # noqa: E501
    (dict(reach="one more"), "One token too many is left. A token is cut if the tokens before it already add up to `top_p`."),  # noqa: E501
    (dict(reach="ignored"), "`top_p` cuts nothing in your code. A token is cut if the tokens before it in its row already add up to `top_p`. (Along a row: `cumsum(dim=-1)`.)"),  # noqa: E501
    (dict(share_of="uncut"), "You applied `top_p` to the probabilities of all tokens. It applies to what `top_k` leaves, after a softmax over just that."),  # noqa: E501
    (dict(share_of="at temperature 1"), "You applied `top_p` to probabilities without the temperature. Divide by the temperature first."),  # noqa: E501
    (dict(renormalize=False), "These don't add up to 1, because what was cut is missing. Divide what is left by its sum, or replace the cut logits by −∞ before the softmax."),  # noqa: E501
    (dict(one_for_all=torch.amax), ONE_ROW),
    (dict(one_for_all=torch.amin), ONE_ROW),
    (dict(one_for_all=lambda setting: setting[:1]), ONE_ROW),
    (dict(cut_logit=0.0), "A logit of 0 doesn't cut a token: e⁰ is 1, so it can still be drawn. Replace the logits that are cut by `float(\"-inf\")`."),  # noqa: E501
    (dict(cut_by="token"), "You compared token ids with `top_k`. Compare the ranks, `torch.arange(vocabulary)`: after the sort, rank 0 is the likeliest token."),  # noqa: E501
    (dict(dim=0), "Is your softmax over `dim=-1`? Over `dim=0` it goes down the columns, over the requests instead of the tokens."),  # noqa: E501
    (dict(again=True), "You applied a softmax to probabilities, but they aren't logits. Apply it once, to logits, and divide by a sum after that."),  # noqa: E501
    (dict(rising=True), "The likeliest tokens should come first, and they are the ones that stay. `sort` needs `descending=True`."),  # noqa: E501
    (dict(reach="complement"), "Your code keeps a share of 1 − `top_p`. `top_p` itself is the share that stays."),
)  # fmt: skip


def _why(found, logits, settings, all_found, index: int) -> str:
    want, tokens = token_probabilities(logits, *_tensors(settings))
    if _same(found, torch.zeros_like(want).scatter(1, tokens, want)):
        return "These are the right probabilities, but in the order of the vocabulary. Return them likeliest first; `tokens` says which is which."  # noqa: E501
    if _same(found, want.flip(-1)):
        return "The likeliest tokens should come first: `descending=True`."
    too_many = _tensors(settings)[1] > logits.shape[-1]
    if bool(too_many.any()) and all(
        _is_right(got, *_case(other)[:2]) for other, got in enumerate(all_found) if other != index
    ):
        return "`top_k` may be larger than the vocabulary; then it cuts nothing. Does an index wrap round or get clamped in your code?"  # noqa: E501
    cases = [(got[0], *_case(other)[:2]) for other, got in enumerate(all_found)] or [(found, logits, settings)]
    rules = [
        (lambda case, rule=rule: _same(cases[case][0], _variant(*cases[case][1:], **rule)), idea)
        for rule, idea in RULES
    ]
    mixed = (token_probabilities(logits, *each)[0] for each in _with_one_for_all(settings))
    if len(found) > 1 and any(_same(found, each) for each in mixed):
        return ONE_ROW  # an attempt that ignores a setting is wrong in a case of one row before
    if idea := likeliest_idea(rules, index, len(cases)):
        return idea
    if bool((found < 0).any()):
        return "Probabilities aren't negative. Are these logarithms, or logits?"
    if torch.allclose(found.double(), want, atol=4e-3, rtol=0):
        return "That is nearly right, so something is rounded. Compute in float32 or float64 from the logits to the result."  # noqa: E501
    if bool((found[:, 0] == 0).any()):
        return "The likeliest token always stays: the sum of the tokens before it is 0."
    if bool(logits.isneginf().any()) and bool((found[:, -1] > 0).any()):
        return "A logit of −∞ stands for a token that must not be drawn. Its probability is 0, as `softmax` makes it."
    if not torch.allclose(found.double().sum(dim=-1), torch.ones(len(found), dtype=torch.float64), atol=1e-4):
        return "These don't add up to 1. Divide what is left after the cuts by its own sum."
    return "In this order: divide by the temperature, sort, cut by rank, softmax, cut by the sum of the tokens before, divide by the sum."  # noqa: E501


def _with_one_for_all(settings):
    """The settings, with one of them the same in all rows: that of the first row, the smallest or the largest."""
    for index in range(3):
        for choose in (lambda setting: setting[0], torch.amin, torch.amax):
            changed = list(_tensors(settings))
            changed[index] = choose(changed[index]).expand(len(changed[index]))
            yield changed


def _why_order(order, logits, tokens, drawn) -> str:
    if order.tolist() == list(range(len(order))):
        return "Your `tokens` are the ranks 0, 1, 2, … of the sorted row. They should be the tokens at these ranks: the second tensor that `sort` returns."  # noqa: E501
    in_range = bool(((order >= 0) & (order < len(order))).all())
    if in_range and torch.equal(logits[order.long()][drawn], logits[tokens][drawn]):
        return "Of two equally likely tokens, the smaller token id comes first; otherwise the same seed can give a different text on another machine. Use `sort(dim=-1, descending=True, stable=True)`; an ascending sort that is flipped puts them in the wrong order."  # noqa: E501
    return "`tokens[i, j]` is the token that is drawn with `probabilities[i, j]`: the second tensor that the same `sort` returns."  # noqa: E501
