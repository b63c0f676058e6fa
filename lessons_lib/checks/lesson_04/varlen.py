"""Judges 04.4, `varlen_attention`: what the masked row gives, and not one score between two sequences is computed."""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import torch

from lessons_lib.checks.exercise import Mistake, call, reached
from lessons_lib.checks.lesson_01.words import kind
from lessons_lib.checks.lesson_04.earlier_calls import depends_on_earlier_calls
from lessons_lib.checks.lesson_04.scoreboard import HEAD_DIM, HEADS, counted_scores
from lessons_lib.checks.lesson_04.wrong_varlen import WRONG_WAYS, dense

TOLERANCE = 1e-4
HALF_TOLERANCE = 2e-2  # a float16 has about three decimal digits
# (query_lens, seq_lens), smallest first
VARLEN_CASES = (
    ([1], [1]),
    ([3], [3]),  # before [2]: with two tokens, the next one and all later ones are the same
    ([2], [2]),
    ([1], [3]),
    ([2], [4]),
    ([1, 1], [1, 1]),
    ([2, 1], [2, 1]),
    ([1, 1], [2, 4]),
    ([1, 0, 1], [2, 2, 3]),
    ([0, 2], [3, 2]),
    ([1, 1, 4], [4, 6, 4]),
    ([0], [2]),
    ([], []),
)
# Pairs of one sequence each, (queries, keys): the same queries with fewer keys. No case has as many queries.
EARLIER = (((15, 18), (15, 16)), ((17, 18), (17, 17)))


def check_varlen_attention(attempt: Callable[..., Any]) -> None:
    rng = Random(4)
    cases = list(VARLEN_CASES)
    for _ in range(12):
        seq_lens = [rng.randint(1, 12) for _ in range(rng.randint(1, 6))]
        cases.append(([rng.randint(0, length) for length in seq_lens], seq_lens))
    for seed, (query_lens, seq_lens) in enumerate(cases):
        _check_case(attempt, row_of(query_lens, seq_lens, seed), query_lens, seq_lens)
    doubles = [x.double() for x in row_of([2, 1], [3, 4], seed=0)]
    _check_case(attempt, doubles, [2, 1], [3, 4], "float64; ")
    halves = [x.half() for x in row_of([2, 1], [3, 4], seed=0)]
    _check_case(attempt, halves, [2, 1], [3, 4], "float16; ", HALF_TOLERANCE)
    _check_large_scores(attempt)
    _check_near_scores(attempt)
    _check_far_queries(attempt)
    _check_far_scores(attempt)


def _check_large_scores(attempt: Callable[..., Any]) -> None:
    """All scores are 1024, so the weights are equal. No float32 holds exp(1024)."""
    _, _, v = row_of([2], [3], seed=0)
    q, k = torch.full_like(v[:, :2], 16.0), torch.full_like(v, 16.0)
    case = "q is [2, 2, 16], k and v [2, 3, 16]; all elements of q and k are 16, so all scores are 1024."
    got = call(attempt, q, k, v.clone(), [2], [3], case=case)
    if not _close(got, torch.stack([v[:, :2].mean(dim=1), v.mean(dim=1)], dim=1)):
        raise Mistake(
            "with large scores, the outputs are wrong: every query should weight all of its keys alike.",
            case,
            "exp(1024) is beyond the largest float. A softmax stays the same if the largest score of a query is "
            "subtracted from all; `torch.softmax` does that.",
        )


def _check_near_scores(attempt: Callable[..., Any]) -> None:
    """Two scores in the hundreds that differ by 1."""
    _, _, v = row_of([1], [2], seed=0)
    q, k = torch.full_like(v[:, :1], 16.0), torch.full_like(v, 300 / 64)
    k[:, 1] = 301 / 64
    case = "query_lens=[1], seq_lens=[2]; the scores are 300 and 301."
    got = call(attempt, q, k, v.clone(), [1], [2], case=case)
    weights = torch.tensor([300.0, 301.0]).softmax(dim=0)
    if not _close(got, (weights[:, None] * v).sum(dim=1, keepdim=True), 1e-3):
        raise Mistake(
            f"the weights of the two keys should be {weights[0]:.2f} and {weights[1]:.2f}, and the output their mix of "
            "the values; yours is another.",
            case,
            "Are large scores cut off? `torch.softmax` takes them as they are.",
        )


def _check_far_queries(attempt: Callable[..., Any]) -> None:
    """All scores of query 0 are -400, and all of query 1 are 400."""
    _, _, v = row_of([2], [3], seed=0)
    q, k = torch.full_like(v[:, :2], 16.0), torch.full_like(v, 6.25)
    q[:, 0] = -16.0
    case = "query_lens=[2], seq_lens=[3]; all scores of query 0 are -400, and all of query 1 are 400."
    got = call(attempt, q, k, v.clone(), [2], [3], case=case)
    if got[:, 0].isnan().any():
        raise Mistake(
            "the output for query 0 is NaN; it should weight keys 0 and 1 alike.",
            case,
            "Do you subtract one maximum from the scores of all queries? Then exp gives 0 for every key of query 0, "
            "and 0 / 0 is NaN. Each query has its own maximum, as in `softmax` over the keys.",
        )


def _check_far_scores(attempt: Callable[..., Any]) -> None:
    """The keys that a query may attend to have the score -400, and the one that it may not has 400."""
    _, _, v = row_of([2], [3], seed=0)
    q, k = torch.full_like(v[:, :2], 16.0), torch.full_like(v, -6.25)
    k[:, 2] = 6.25
    case = "query_lens=[2], seq_lens=[3]; the scores with keys 0 and 1 are -400, and those with key 2 are 400."
    got = call(attempt, q, k, v.clone(), [2], [3], case=case)
    if got[:, 0].isnan().any():
        raise Mistake(
            "the output for query 0 is NaN; it should weight keys 0 and 1 alike.",
            case,
            "Does the forbidden key 2 take part in the softmax of query 0? Next to a score of 400, the weight of one "
            "of -400 is 0 in any float, and 0 / 0 is NaN. Forbidden keys have to be out before the softmax.",
        )
    if not _close(got, torch.stack([v[:, :2].mean(dim=1), v[:, 2]], dim=1)):
        raise Mistake(
            "a key that a query may not attend to still has weight: query 0 should weight keys 0 and 1 alike, and "
            "query 1 should return the value of key 2.",
            case,
            "Do you add a value to forbidden scores, or put one in their place, that isn't low enough? Minus infinity "
            "is, and every query here sees itself, so no row is empty.",
        )


def row_of(query_lens: list[int], seq_lens: list[int], seed: int) -> list[torch.Tensor]:
    """Queries, keys and values of a packed row."""
    generator = torch.Generator().manual_seed(seed)
    lengths = (sum(query_lens), sum(seq_lens), sum(seq_lens))
    return [torch.randn(HEADS, length, HEAD_DIM, generator=generator) for length in lengths]


def _check_case(
    attempt: Callable[..., Any],
    row: list[torch.Tensor],
    query_lens: list[int],
    seq_lens: list[int],
    note: str = "",
    tolerance: float = TOLERANCE,
) -> None:
    case = (
        f"{note}query_lens={query_lens}, seq_lens={seq_lens}; q is {list(row[0].shape)}, k and v {list(row[1].shape)}."
    )
    try:
        got, cells = counted_scores(partial(call, case=case), attempt, *row, list(query_lens), list(seq_lens))
    except (RuntimeError, ValueError, IndexError) as error:
        _refuse_earlier_calls(attempt, f"your code raised {type(error).__name__}: {str(error)[:120]}, and only")
        with reached(_why_raised(str(error), row[0], seq_lens)):
            raise
    _check_kind(got, row[0], case)
    want = dense(*(x.double() for x in row), query_lens, seq_lens)
    if not _close(got, want, tolerance):
        _refuse_earlier_calls(attempt, "the output is wrong, but only")
        raise _name_wrong_values(got.double(), want, [x.double() for x in row], query_lens, seq_lens, case)
    own = sum(queries * length for queries, length in zip(query_lens, seq_lens))
    if cells > own:
        everything = sum(query_lens) * sum(seq_lens)
        raise Mistake(
            f"the result is right, but your code computed {cells} score cells; the sequences' own are {own}.",
            case,
            f"{everything} are the cells of the whole row. Which queries and keys does one sequence need? Cut them out "
            "of the row before you multiply."
            if cells >= everything
            else "Are some sequences padded, or some scores computed twice? Multiply the queries of one sequence with "
            "its own keys only.",
        )


def _why_raised(error: str, q: torch.Tensor, seq_lens: list[int]) -> str:
    if not seq_lens and "non-empty" in error:
        return "The row may hold no sequence. Then there are no parts to join, and the result is as empty as q."
    if not q.shape[1] and "non-empty" in error:
        return "No sequence has a query here, so there is nothing to join. Which shape should the result have?"
    if q.dtype == torch.float16 and "without overflow" in error:
        return "The largest float16 is 65,504: a value such as -1e9 is beyond it. Every float dtype has minus infinity."
    return ""


def _refuse_earlier_calls(attempt: Callable[..., Any], what: str) -> None:
    def is_right(lens: tuple[int, int]) -> bool:
        query_lens, seq_lens = [lens[0]], [lens[1]]
        row = row_of(query_lens, seq_lens, seed=0)
        return _close(attempt(*(x.clone() for x in row), query_lens, seq_lens), dense(*row, [lens[0]], [lens[1]]))

    if depends_on_earlier_calls(is_right, EARLIER):
        (queries, keys), (_, fewer) = EARLIER[0]
        raise Mistake(
            f"{what} after an earlier call: here, the first call is right, and the second isn't.",
            f"query_lens=[{queries}], seq_lens=[{keys}]; then query_lens=[{queries}], seq_lens=[{fewer}].",
            "Does your code keep a mask from one call to the next, by the number of queries? The mask depends on the "
            "number of keys as well. Build it anew, or keep it by both.",
        )


def _close(got: torch.Tensor, want: torch.Tensor, tolerance: float = TOLERANCE) -> bool:
    return got.shape == want.shape and torch.allclose(got.detach().double(), want.double(), atol=tolerance, rtol=0)


def _check_kind(got: Any, q: torch.Tensor, case: str) -> None:
    if not isinstance(got, torch.Tensor):
        idea = "Join the sequences' outputs along the axis of the tokens." if isinstance(got, (list, tuple)) else ""
        raise Mistake(f"it should return a tensor; yours returned {kind(got)}.", case, idea)
    if got.shape != q.shape:
        raise Mistake(
            f"the result should have the shape of q, {list(q.shape)}; yours has {list(got.shape)}.",
            case,
            "One output for each query, also if a sequence has none, or if there is no sequence. The axes are heads, "
            "tokens, head_dim.",
        )
    if got.dtype != q.dtype:
        raise Mistake(f"the result should have the dtype of q, {q.dtype}; yours has {got.dtype}.", case)


def _name_wrong_values(got, want, row, query_lens: list[int], seq_lens: list[int], case: str) -> Mistake:
    wrong = (~((got - want).abs() < TOLERANCE)).any(dim=2).any(dim=0).nonzero().flatten().tolist()  # NaN is wrong, too
    owners = [(i, s - n + j) for i, (n, s) in enumerate(zip(query_lens, seq_lens)) for j in range(n)]
    sequence, position = owners[wrong[0]]
    what = f"the output for query {wrong[0]} of the row is wrong: sequence {sequence}, position {position}."
    if got[:, wrong[0]].isnan().any():
        what = f"the output for query {wrong[0]} of the row is NaN: sequence {sequence}, position {position}."
    for words, mistaken in WRONG_WAYS:
        if torch.allclose(got, mistaken(*row, query_lens, seq_lens), atol=TOLERANCE, equal_nan=True):
            return Mistake(what, case, words)
    if _is_multiple(got, want):
        return Mistake(what, case, "Yours is a multiple of the right output: the weights of a query don't sum to 1.")
    if (got[:, wrong[0]] == 0).all() or got[:, wrong[0]].isnan().all():
        return Mistake(
            what if got.isnan().any() else f"{what} It is 0.",
            case,
            "Does this query see no key at all? It sees at least itself. In a bool mask for PyTorch's attention, True "
            "means that the query *may* attend; in `masked_fill`, that the score is replaced.",
        )
    if 0 in query_lens and position >= 0 and wrong[0] >= sum(query_lens[: query_lens.index(0)]):
        return Mistake(what, case, "A sequence before it has no queries. Does your code still step over its keys?")
    if len(seq_lens) > 1 and sequence:
        return Mistake(
            what,
            case,
            "The first sequence is right. Where do this one's queries begin in q, and where do its keys begin in k?",
        )
    return Mistake(
        what, case, f"It sees the keys of positions 0 to {position} of its own sequence, with scores q · k / √head_dim."
    )


def _is_multiple(got: torch.Tensor, want: torch.Tensor) -> bool:
    factor = (got * want).sum(dim=2, keepdim=True) / (want * want).sum(dim=2, keepdim=True)
    return bool((factor > 0).all()) and torch.allclose(got, factor * want, atol=TOLERANCE)
