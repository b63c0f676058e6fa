"""04.3, `varlen_attention`: what the masked row gives, and not one score between two sequences is computed."""

from collections.abc import Iterator
from random import Random
from typing import Any

import torch

from lessons_lib.checks.diagnosis import Task, Watch, mistakes
from lessons_lib.checks.lesson_04.scoreboard import counted_scores

HEADS, HEAD_DIM = 2, 16
PLAIN, DOUBLE, HALF = "float32", "float64", "float16"
LARGE, FAR, NEAR = "all scores are 1,024", "scores from -200,000 to 200,000", "scores of 300 and 301"
NARROW = "head_dim 8"
Case = tuple[list[int], list[int], str]  # query_lens, seq_lens, and what is special


def cases() -> Iterator[Case]:
    for queries, keys in (
        ([1], [1]), ([3], [3]), ([2], [2]), ([1], [3]), ([2], [4]), ([1, 1], [1, 1]), ([2, 1], [2, 1]),
        ([1, 1], [2, 4]), ([1, 0, 1], [2, 2, 3]), ([0, 2], [3, 2]), ([1, 1, 4], [4, 6, 4]), ([0], [2]), ([], []),
    ):  # fmt: skip
        yield queries, keys, PLAIN
    draw = Random(4)
    for _ in range(12):
        keys = [draw.randint(1, 12) for _ in range(draw.randint(1, 6))]
        yield [draw.randint(0, length) for length in keys], keys, PLAIN
    yield from (([2, 1], [3, 4], dtype) for dtype in (DOUBLE, HALF))
    yield from (([2], [3], special) for special in (LARGE, FAR))
    yield from (([1], [2], NEAR), ([3], [3], NARROW))


def arguments(case: Case) -> list[torch.Tensor]:
    query_lens, seq_lens, special = case
    draw = torch.Generator().manual_seed(len(seq_lens) + sum(seq_lens))
    lengths = (sum(query_lens), sum(seq_lens), sum(seq_lens))
    head_dim = 8 if special == NARROW else HEAD_DIM
    q, k, v = (torch.randn(HEADS, length, head_dim, generator=draw, dtype=torch.float64) for length in lengths)
    if special in (LARGE, FAR, NEAR):
        q = torch.full_like(q, 16.0)
        k = torch.full_like(k, {LARGE: 16.0, FAR: 3125.0, NEAR: 300 / 64}[special])
        k[:, -1] += 1 / 64 if special == NEAR else 0
        k[:, :-1] *= -1 if special == FAR else 1
    dtype = {DOUBLE: torch.float64, HALF: torch.float16}.get(special, torch.float32)
    return [each.to(dtype) for each in (q, k, v)]


def run(attempt: Any, case: Case, watch: Watch) -> None:
    query_lens, seq_lens, special = case
    cells, given = [0], arguments(case)

    def varlen_attention(q: Any, k: Any, v: Any, query_lens: list[int], seq_lens: list[int]) -> Any:
        got, cells[0] = counted_scores(attempt, q, k, v, query_lens, seq_lens)
        return got

    def returns(got: Any) -> Any:
        """In float16, near is near enough."""
        if special != HALF or not isinstance(got, torch.Tensor):
            return got
        want = TASK.right(*(each.double() for each in given), query_lens, seq_lens).to(got.dtype)
        return want if got.shape == want.shape and torch.allclose(got, want, atol=2e-2, rtol=0) else got

    def look() -> dict[str, Any]:
        own = sum(queries * keys for queries, keys in zip(query_lens, seq_lens))
        return {"the number of score cells in each head": max(cells[0], own)}

    watch("`varlen_attention`", varlen_attention, *given, query_lens, seq_lens, returns=returns, look=look)


def tell(case: Case) -> str:
    query_lens, seq_lens, special = case
    q, k, _ = (list(each.shape) for each in arguments(case))
    return (
        f"query_lens={query_lens}, seq_lens={seq_lens}; q {q}, k and v {k}{f'; {special}' if special != PLAIN else ''}."
    )


def smaller(case: Case) -> Iterator[Case]:
    query_lens, seq_lens, special = case
    for index in range(len(seq_lens)):
        if len(seq_lens) > 1:
            yield query_lens[:index] + query_lens[index + 1 :], seq_lens[:index] + seq_lens[index + 1 :], special


def what_it_sees(mine: dict, want: dict) -> str:
    """What the first wrong output is made of: the values are independent, so its weights can be computed."""
    (query_lens, seq_lens, special), got, right = want["case"], mine["returned"], want["returned"]
    q, k, v = (each.double() for each in arguments(want["case"]))
    if got.shape != q.shape:
        return (
            f"Return [heads, queries, head_dim], here {list(q.shape)}, with a row for each query and no other: join "
            "the outputs of the sequences along axis 1."
        )
    if got.dtype != right.dtype:
        return "The result has the dtype of q."
    head, query = ((got.double() - right).abs().nan_to_num(1.0).amax(dim=2) > 1e-6).nonzero()[0].tolist()
    sequence = [index for index, count in enumerate(query_lens) for _ in range(count)][query]
    start, end = sum(seq_lens[:sequence]), sum(seq_lens[: sequence + 1])
    own = set(range(start, end + query + 1 - sum(query_lens[: sequence + 1])))
    text = f"In head {head}, query {query} of the row should see {span(own)}. "
    output = got[head, query].double()
    if not output.isfinite().all() or special == HALF:
        return (
            f"{text}`torch.softmax` takes scores of any size; `exp` alone overflows. NaN comes from 0 / 0, if all "
            "weights of a query are 0, and from 0 × −∞."
        )
    first = 0 if k.shape[1] <= v.shape[2] else start
    values = v[head, first : first + v.shape[2]]
    weights = torch.linalg.lstsq(values.T, output).solution
    seen = {first + key for key, weight in enumerate(weights.tolist()) if abs(weight) > 1e-5}
    if (weights @ values - output).abs().max() > 1e-4:
        return f"{text}Its output is no weighted sum of that head's values: it has others, or rounded ones."
    if not seen:
        return f"{text}Its output is 0: it sees no key."
    if seen - set(range(start, end)):
        return f"{text}Yours sees {span(seen)}. A sequence's keys begin where those of the previous one end."
    if seen - own:
        return f"{text}Yours sees {span(seen)}. Hide later keys before the softmax, by a score of −∞, not a finite one."
    if abs(weights.sum() - 1) > 1e-3:
        return f"{text}Its weights add up to {weights.sum():.3g}. A softmax over the visible keys makes that 1."
    if seen != own:
        return (
            f"{text}Yours sees {span(seen)} only. A sequence's queries are its last tokens: the first is at position "
            "seq_len - query_len. Or are the scores too large?"
        )
    parts, scores = weights[[key - first for key in sorted(own)]], k[head, sorted(own)] @ q[head, query]
    high, low = int(parts.argmax()), int(parts.argmin())
    factor = (parts[high] / parts[low]).log() / (scores[high] - scores[low])
    return (
        f"{text}It does, with weights as by a softmax of {factor:.3f} · q · k. It should be {q.shape[-1] ** -0.5:.3f} "
        "· q · k: divided by √head_dim, and head_dim is the last axis. (A factor that makes no sense comes from other "
        "rows of q or k, or from clamped scores.)"
    )


def span(keys: set[int]) -> str:
    return f"key {min(keys)}" if len(keys) == 1 else f"keys {min(keys)} to {max(keys)}"


def what_does_not_fit(mine: dict, want: dict) -> str:
    if want["case"][2] in (DOUBLE, HALF):
        return "Keep to the dtype of q. The largest float16 is 65,504, and every float dtype has minus infinity."
    return (
        "With m queries and n keys, a sequence's scores are [heads, m, n] (`q @ k.mT`), and so is what hides keys. "
        "m may be 0."
    )


MISTAKES = """
The queries are those of the *last* tokens of a sequence: the first one is at position seq_len - query_len, not at 0.
(`is_causal=True` counts from 0, too.)
= position = torch.arange(query_len, device=q.device)[:, None]
A query sees its own position, too.
~ > position => >= position
`torch.cat` needs at least one tensor: begin with the empty `q[:, :0]`.
= outputs = []
"""

TASK = Task(
    reference="lessons_lib.attention.varlen:varlen_attention",
    cases=cases,
    run=run,
    tell=tell,
    smaller=smaller,
    known=mistakes(MISTAKES),
    about={
        "returned": what_it_sees,
        "the number of score cells in each head": "For each sequence, multiply its own m queries with its own n keys, "
        "once: m × n scores. Other keys, padding and queries that it doesn't have cost scores.",
        "raised RuntimeError": what_does_not_fit,
    },
)

EXERCISE = TASK.exercise(
    id="04.3",
    title="attention without a mask over the row",
    hints=(
        "Go sequence by sequence. Where do its queries begin in q, and its keys in k? And at which position of "
        "its sequence is its first query?",
        "`q.split(query_lens, dim=1)` cuts q into one part for each sequence, and k and v likewise. In a sequence, "
        "the queries are at the positions `seq_len - query_len` to `seq_len - 1`, and the keys at 0 to "
        "`seq_len - 1`: compare the two, and fill −∞ in where the key is later. Softmax, times the values, and "
        "`torch.cat` joins the parts. What does it join if there is none?",
        "For one sequence: `scores = own_q @ own_k.mT / q.shape[-1] ** 0.5`; `position = torch.arange(seq_len - "
        "query_len, seq_len)[:, None]`; `scores.masked_fill(torch.arange(seq_len) > position, float('-inf'))"
        ".softmax(dim=-1) @ own_v`. Begin the list of parts with the empty `q[:, :0]`.",
    ),
    points=3,
)
