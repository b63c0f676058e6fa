"""12.2, `token_probabilities`: temperature, then top-k, then top-p, and what is left adds up to 1."""

from collections.abc import Iterator
from math import inf
from typing import Any, NamedTuple

import torch

from lessons_lib.checks.diagnosis import Shown, Task, Watch, mistakes
from lessons_lib.checks.lesson_03.books import counted

HALVES, MIXED = [0.5, 0.3, 0.15, 0.05], [0.15, 0.5, 0.05, 0.3]


class Case(NamedTuple):
    """One row of logits for each request, and its settings."""

    logits: torch.Tensor
    temperature: list[float]
    top_k: list[int]
    top_p: list[float]
    told: str


def of(rows: list[list[float]], temperature: list[float], top_k: list[int], top_p: list[float]) -> Case:
    """Logits that are the logarithms of these probabilities."""
    told = f"tokens 0, 1, … have the probabilities {', '.join(map(str, rows))} (`logits` are their logarithms)"
    return Case(torch.tensor(rows).log(), temperature, top_k, top_p, told)


def cases() -> Iterator[Case]:
    for row, temperature, top_k, top_p in (
        (HALVES, 1.0, 4, 1.0), (MIXED, 1.0, 4, 1.0), (HALVES, 0.5, 4, 1.0), (HALVES, 2.0, 4, 1.0),
        (MIXED, 1.0, 2, 1.0), (HALVES, 1.0, 9, 1.0), (HALVES, 1.0, 1, 1.0), (HALVES, 1.0, 4, 0.6),
        (MIXED, 1.0, 4, 0.9), (HALVES, 1.0, 4, 0.1), ([0.3, 0.25, 0.2, 0.15, 0.1], 1.0, 3, 0.7), (HALVES, 3.0, 4, 0.7),
        ([0.2, 0.2, 0.4, 0.2], 1.0, 2, 1.0), ([0.25] * 4, 1.0, 4, 0.5), ([0.25] * 4, 1.0, 4, 0.75),
    ):  # fmt: skip
        yield of([row], [temperature], [top_k], [top_p])
    for temperature, top_k, top_p in (
        ([1.0, 0.5], [4, 4], [1.0, 1.0]), ([1.0, 1.0], [1, 3], [1.0, 1.0]), ([1.0, 1.0], [4, 4], [0.6, 0.9]),
        ([1.0, 1.0], [1, 4], [1.0, 1.0]), ([1.0, 1.0], [4, 4], [0.6, 1.0]), ([2.0, 0.5], [3, 9], [1.0, 0.7]),
    ):  # fmt: skip
        yield of([HALVES, MIXED], temperature, top_k, top_p)
    yield of([HALVES, MIXED, [0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1]], [1.0, 2.0, 0.5, 3.0], [2, 4, 3, 9], [1.0] * 4)
    for row, top_k, top_p in (
        ([990.0, 1000.0, 995.0], 3, 1.0), ([0.0, 2.0, -inf], 3, 1.0), ([0.0, 2.0, -inf], 2, 1.0),
        ([-inf, 0.0, -inf, 2.0], 3, 0.9), ([-20001.0, -20002.0, -20000.0], 2, 1.0),
    ):  # fmt: skip
        yield Case(torch.tensor([row]), [1.0], [top_k], [top_p], f"logits {[row]}")
    for dtype in (torch.float64, torch.bfloat16):
        logits = (3 * torch.randn(2, 60, generator=torch.Generator().manual_seed(4))).to(dtype)
        yield Case(logits, [0.7, 1.5], [40, 60], [0.95, 1.0], f"60 random {str(dtype).removeprefix('torch.')} logits")
    draw = torch.Generator().manual_seed(11)
    logits = torch.randint(0, 4, (1, 500), generator=draw).float()
    yield Case(logits, [1.0], [40], [1.0], "500 logits, each 0, 1, 2 or 3, so that many are equal")
    for rows in (1, 3, 5):
        logits = 3 * torch.randn(rows, 300, generator=draw)
        temperature, top_p = (torch.rand(2, rows, generator=draw) * 0.9 + 0.1).round(decimals=2).tolist()
        top_k = torch.randint(1, 400, (rows,), generator=draw).tolist()
        yield Case(logits, temperature, top_k, top_p, f"{rows} rows of 300 random logits")


def run(attempt: Any, case: Case, watch: Watch) -> None:
    settings, found = (torch.tensor(case.temperature), torch.tensor(case.top_k), torch.tensor(case.top_p)), {}

    def ask(logits: Any, temperature: Any, top_k: Any, top_p: Any) -> Any:  # by name: each is watched for changes
        got = attempt(logits, temperature, top_k, top_p)
        if isinstance(got, torch.Tensor):
            return Shown("one tensor")
        pair = got if isinstance(got, tuple | list) else ()
        if len(pair) != 2 or not all(isinstance(each, torch.Tensor) for each in pair):
            return got
        if pair[1].is_floating_point() and not pair[0].is_floating_point():
            return Shown("a pair of tensors, the tokens first")
        found.update(seen(*pair))
        return Shown("a pair of tensors")

    watch("the call", ask, case.logits, *settings, look=lambda: found)


def seen(probabilities: torch.Tensor, tokens: torch.Tensor) -> dict[str, Any]:
    """In which order tokens with the probability 0 come is free, and so is float32 or float64."""
    if probabilities.dtype in (torch.float32, torch.float64):
        probabilities = probabilities.float()
    looked: dict[str, Any] = {"the probabilities": probabilities, "the tokens": tokens}
    if not tokens.is_floating_point() and probabilities.shape == tokens.shape and probabilities.dim() == 2:
        cut = probabilities == 0
        looked["the tokens"] = torch.where(cut, -1, tokens.long())  # -1 for those that are cut
        looked["the tokens that are cut"] = [sorted(row[hidden].tolist()) for row, hidden in zip(tokens, cut)]
    return looked


def tell(case: Case) -> str:
    return f"{case.told}; temperature {case.temperature}, top_k {case.top_k}, top_p {case.top_p}."


MISTAKES = """
The temperature has no effect. Divide the logits by it.
~ logits.double() / temperature[:, None] => logits.double()
You multiplied the logits by the temperature. Divide by it: below 1, the likeliest tokens become even likelier.
~ logits.double() / temperature[:, None] => logits.double() * temperature[:, None]
You divided probabilities by the temperature. Divide the logits, before the softmax.
~ logits.double() / temperature[:, None] => logits.double()
~ .softmax(dim=-1) => .softmax(dim=-1) / temperature[:, None]
One token too many is left. Exactly `top_k` tokens may be drawn: ranks 0 to `top_k` − 1.
~ rank >= top_k[:, None] => rank > top_k[:, None]
One token too few is left. Exactly `top_k` tokens may be drawn: ranks 0 to `top_k` − 1.
~ rank >= top_k[:, None] => (rank >= top_k[:, None] - 1) & (rank > 0)
`top_k` cuts nothing in your code. Only the `top_k` likeliest tokens may be drawn.
~ rank >= top_k[:, None] => rank < 0
You kept every token that is as likely as the last of the `top_k`. Exactly `top_k` stay: cut by rank, not by value.
~ rank >= top_k[:, None] => scaled < scaled.gather(1, (top_k[:, None] - 1).clamp(max=logits.shape[-1] - 1))
You compared token ids with `top_k`. Compare ranks: after the sort, rank 0 is the likeliest token.
~ rank >= top_k[:, None] => tokens >= top_k[:, None]
A slice cuts all rows at the same place, but `top_k` has a value for each. Compare ranks: `rank >= top_k[:, None]`.
< probabilities = scaled => scaled[:, top_k:] = float("-inf")
Only `float("-inf")` surely cuts a token: e⁰ is 1, and the logits that stay may be lower than any other number.
~ top_k[:, None], float("-inf") => top_k[:, None], 0.0
`top_k` may be larger than the vocabulary; then it cuts nothing, and an index beyond the end must not be used.
> rank => scaled.gather(1, top_k[:, None] - 1)
or ~ rank >= top_k[:, None] => rank >= torch.where(top_k > len(rank), top_k % len(rank), top_k)[:, None]
You cut the token that reaches `top_p`, but it stays. Look at the sum of the tokens *before* it: `cumsum` minus its own
probability.
= of_likelier = probabilities.cumsum(dim=-1)
The tokens before this one add up to exactly `top_p`. That is enough, so this one is cut: `>=` instead of `>`.
~ of_likelier >= top_p[:, None] => of_likelier > top_p[:, None]
You subtracted two probabilities from the sum. The tokens before it: `cumsum` minus its own probability.
> of_likelier => of_likelier[:, 1:] -= probabilities[:, :-1]
`top_p` cuts nothing in your code. A token is cut if the tokens before it in its row already add up to `top_p`.
~ of_likelier >= top_p[:, None] => rank < 0
The likeliest token always stays: the sum of the tokens before it is 0.
= of_likelier = probabilities.cumsum(dim=-1).roll(1, dims=-1)
or - of_likelier
+ remove = probabilities.cumsum(dim=-1) >= top_p[:, None] - 1e-6
+ remove[:, 1:] = remove[:, :-1].clone()
~ of_likelier >= top_p[:, None] => remove
That compares each token's own probability with `top_p`. It's the sum of the tokens before it that counts.
= of_likelier = 1 - probabilities
or ~ of_likelier >= top_p[:, None] => (probabilities < top_p[:, None]) & (rank > 0)
You applied `top_p` to the probabilities of all tokens. It applies to what `top_k` leaves, after a softmax over that.
= of_likelier = scaled.softmax(dim=-1).cumsum(dim=-1) - scaled.softmax(dim=-1)
`top_p` is a share of what is left: divide the exponentials by their sum before you compare.
- probabilities = scaled => probabilities = (scaled - scaled[:, :1]).exp().masked_fill(rank >= top_k[:, None], 0.0)
You applied `top_p` to probabilities without the temperature. Divide by the temperature first.
- of_likelier
+ plain = (scaled * temperature[:, None]).masked_fill(rank >= top_k[:, None], float("-inf")).softmax(dim=-1)
+ of_likelier = plain.cumsum(dim=-1) - plain
Your code keeps a share of 1 − `top_p`. `top_p` itself is the share that stays.
~ of_likelier >= top_p[:, None] => (of_likelier >= 1 - top_p[:, None]) & (rank > 0)
Each row has settings of its own. In your code, those of one row count for another, too.
~ temperature[:, None] => temperature[0]
or ~ top_k[:, None] => top_k[0]
or ~ top_k[:, None] => top_k.max()
or ~ top_p[:, None] => top_p[0]
or ~ temperature[:, None] => temperature[0]
~ top_k[:, None] => top_k[0]
~ top_p[:, None] => top_p[0]
A value per row is [N]. `[:, None]`, or `keepdim=True` in a sum, makes it [N, 1], which broadcasts over [N, vocabulary].
~ temperature[:, None] => temperature
or ~ top_k[:, None] => top_k
Is your softmax over `dim=-1`? Over `dim=0` it goes down the columns, over the requests instead of the tokens.
~ .softmax(dim=-1) => .softmax(dim=0)
The sums go along a row: `cumsum(dim=-1)`. Over `dim=0` they go down the columns.
~ cumsum(dim=-1) => cumsum(dim=0)
You applied a softmax to probabilities, but they aren't logits. Apply it once, to logits; then divide by a sum.
= return probabilities.softmax(dim=-1), tokens
or = return probabilities.masked_fill(probabilities == 0, float("-inf")).softmax(dim=-1), tokens
or = scaled, tokens = (logits.double().softmax(-1) / temperature[:, None]).sort(dim=-1, descending=True, stable=True)
Your `tokens` are ranks. They should be the tokens at these ranks: the second tensor that `sort` returns.
= return probabilities / probabilities.sum(dim=-1, keepdim=True), rank.expand_as(tokens)
or = return probabilities / probabilities.sum(dim=-1, keepdim=True), tokens.argsort(dim=-1)
Return token ids. They are the *second* tensor that `sort` returns; the first has the sorted values.
= return probabilities / probabilities.sum(dim=-1, keepdim=True), scaled
Of two equally likely tokens, the smaller id comes first, so that a seed gives the same text everywhere: `stable=True`.
- scaled
+ scaled, tokens = (logits.double() / temperature[:, None]).flip(-1).sort(dim=-1, descending=True, stable=True)
+ tokens = logits.shape[-1] - 1 - tokens
or ~ stable=True => stable=False
or ~ .sort(dim=-1, descending=True, stable=True) => .topk(logits.shape[-1])
With `stable`, `sort` takes its arguments by name: `sort(dim=-1, descending=True, stable=True)`.
~ .sort(dim=-1, => .sort(-1,
NaN comes from ∞ / ∞ or 0 · ∞. `masked_fill` and `softmax` can handle large logits and −∞; `exp` and products can't.
- probabilities = scaled
+ weights = scaled.exp().masked_fill(rank >= top_k[:, None], 0.0)
+ probabilities = weights / weights.sum(dim=-1, keepdim=True)
or - probabilities = scaled
+ probabilities = (scaled * (rank < top_k[:, None]) - 1e9 * (rank >= top_k[:, None])).softmax(dim=-1)
"""


def about_probabilities(mine: dict[str, Any], want: dict[str, Any]) -> str:
    got, wanted, case = mine["the probabilities"], want["the probabilities"], want["case"]
    if got.shape != wanted.shape:
        return "A token that is cut stays in its row, with the probability 0."
    if got.dtype != wanted.dtype or case.logits.dtype == torch.bfloat16:
        return "Compute in float32 or float64, and return that."
    if got.isnan().any():
        return "NaN comes from 0 / 0: every token of a row was cut, and the likeliest should stay."
    if (got < 0).any():
        return "Probabilities are 0 or more. These are their logarithms, or logits."
    if ((got.sum(dim=-1) - 1).abs() > 1e-2).any():
        return "A row doesn't add up to 1. After each cut, divide each row by its own sum."
    if ((got.sort(dim=-1, descending=True).values - wanted).abs() < 1e-6).all():
        return "These are the right probabilities in another order. Return the likeliest first, with its token."
    for row, (mine_left, left) in enumerate(zip((got > 0).sum(dim=-1).tolist(), (wanted > 0).sum(dim=-1).tolist())):
        if mine_left != left:
            several = f"In row {row}, {counted(left, 'token')} should be left; yours has {mine_left}."
            if left == case.top_k[row] < got.shape[-1]:
                return f"{several} `top_k` leaves exactly the ranks 0 to `top_k` − 1."
            if case.top_p[row] < 1:
                return f"{several} `top_p` cuts a token if the tokens before it in its row already add up to `top_p`."
            return f"{several} A logit of −∞ means the probability 0; any other token that isn't cut may be drawn."
    if ((got - wanted).abs() < 1e-2).all():
        return "That is right, but rounded. Make the logits float32 or float64 first, and stay there."
    return (
        "In this order: divide by the temperature, sort, cut by rank, softmax, cut by the sum of the tokens before, "
        "divide by the sum."
    )


TASK = Task(
    reference="lessons_lib.engine.plain_sampling:token_probabilities",
    cases=cases,
    run=run,
    tell=tell,
    known=mistakes(MISTAKES),
    about={
        "returned": "Return the pair (probabilities, tokens), two tensors [N, vocabulary], in this order.",
        "the probabilities": about_probabilities,
        "the tokens": "`tokens[i, j]` is the token that is drawn with `probabilities[i, j]`.",
        "the tokens that are cut": "A token that is cut stays in its row. Only its place among the others is free.",
    },
)

EXERCISE = TASK.exercise(
    id="12.2",
    title="what to draw from",
    hints=(
        "Sort each row first. Then both cuts keep a beginning of it, so each cut is one comparison per rank: of the "
        "rank itself, or of a running sum.",
        "`values, tokens = logits.sort(dim=-1, descending=True, stable=True)`. Then divide: `temperature[:, None]` is "
        "[N, 1] and broadcasts over [N, vocabulary]. Make a `rank` 0, 1, 2, … with `torch.arange`; put −∞ where `rank "
        ">= top_k` (`x.masked_fill(mask, value)`); softmax, which gives 0 there. The tokens before each one add up to "
        "`cumsum(dim=-1)` minus the token's own probability. Put 0 where that is `top_p` or more, and divide by the "
        "row's sum.",
        "`scaled = values.float() / temperature[:, None]`; `rank = torch.arange(logits.shape[-1])`; `probabilities = "
        'scaled.masked_fill(rank >= top_k[:, None], float("-inf")).softmax(dim=-1)`; `before = '
        "probabilities.cumsum(dim=-1) - probabilities`; `probabilities = probabilities.masked_fill(before >= top_p[:, "
        "None], 0.0)`. Then divide by `probabilities.sum(dim=-1, keepdim=True)`.",
    ),
    points=3,
)
