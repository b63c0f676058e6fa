"""04.3, `varlen_attention`: what the masked row gives, and not one score between two sequences is computed."""

from collections.abc import Iterator
from itertools import combinations
from random import Random
from typing import Any

import torch

from lessons_lib.checks.diagnosis import Task, Watch, mistakes
from lessons_lib.checks.exercise import Exercise
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
    """Which query's scores, over which keys, the first wrong output comes from."""
    (query_lens, seq_lens, special), got, right = want["case"], mine["returned"], want["returned"]
    q, k, v = arguments(want["case"])
    if got.shape != q.shape:
        return f"Return a row for each query and no other, in each head: {list(q.shape)}; yours is {list(got.shape)}."
    if special in (LARGE, FAR, NEAR):
        return "`torch.softmax` takes scores of any size, `exp` alone overflows, and only minus infinity hides a key."
    if got.dtype != q.dtype or k.shape[1] > 16:
        return ""
    ends = [sum(seq_lens[: i + 1]) - back for i, m in enumerate(query_lens) for back in range(m)[::-1]]
    starts = [sum(seq_lens[:i]) for i, m in enumerate(query_lens) for _ in range(m)]
    wrong = int((got - right).abs().nan_to_num(1.0).amax(dim=(0, 2)).gt(1e-6).int().argmax())
    text = f"Query {wrong} of the row should see {span(starts[wrong], ends[wrong])}. "
    for query in (wrong, *range(len(ends))):
        for start, end in combinations(range(k.shape[1] + 1), 2):
            output = TASK.right(q[:, [query]], k[:, start:end], v[:, start:end], [1], [end - start])
            if (output[:, 0] - got[:, wrong]).abs().max() < 1e-4:
                whose = "" if query == wrong else f", by query {query}"
                return f"{text}Your output for it is that of {span(start, end)}{whose}."
    return f"{text}Its weights are a softmax of q · k / √head_dim over these. Yours aren't, for any run of keys."


def span(start: int, end: int) -> str:
    return f"key {start}" if end - start == 1 else f"keys {start} to {end - 1}"


MISTAKES = """
A query attends to its own position and to earlier ones. Yours sees later tokens of its sequence, too.
= is_later = torch.arange(seq_len, device=q.device) < 0
The queries are those of the *last* tokens of a sequence: the first one is at position seq_len - query_len, not at 0.
(`is_causal=True` counts from 0, too.)
= position = torch.arange(query_len, device=q.device)[:, None]
A query sees its own position, too.
~ > position => >= position
Scores are divided by √head_dim, and head_dim is the last axis.
~ own_k.mT / q.shape[-1] ** 0.5 => own_k.mT
or
~ / q.shape[-1] ** 0.5 => / q.shape[-1]
or
~ / q.shape[-1] ** 0.5 => * q.shape[-1] ** 0.5
or
~ / q.shape[-1] ** 0.5 => / q.shape[0] ** 0.5
or
~ / q.shape[-1] ** 0.5 => / q.shape[1] ** 0.5
or
~ / q.shape[-1] ** 0.5 => / 4.0
The softmax runs over the keys of a query, the last axis of its scores.
~ .softmax(dim=-1) => .softmax(dim=-2)
or
~ .softmax(dim=-1) => .softmax(dim=0)
The weights of a query sum to 1: take a softmax of the scores, not the exponentials alone.
~ .softmax(dim=-1) => .sigmoid()
or
- outputs.append
+ masked = scores.masked_fill(is_later, float("-inf"))
+ weights = (masked - masked.amax(dim=-1, keepdim=True)).exp() if masked.numel() else masked
+ outputs.append(weights @ own_v)
exp(1024) is beyond the largest float. A softmax stays the same if a query's largest score is subtracted from all of its
scores. `torch.softmax` does that.
- scores =
+ ...
+ weights = scores.masked_fill(is_later, float("-inf")).exp()
- outputs.append
+ outputs.append(weights / weights.sum(dim=-1, keepdim=True) @ own_v)
All weights of a query are 0 here, and 0 / 0 is NaN. Hide keys before the softmax, and let each query have a largest
score of its own: `softmax` over the keys does both.
- scores =
+ ...
+ masked = scores.masked_fill(is_later, float("-inf"))
+ weights = (masked - masked.max()).exp() if masked.numel() else masked
- outputs.append
+ outputs.append(weights / weights.sum(dim=-1, keepdim=True) @ own_v)
A hidden key must be out before the softmax: minus infinity in place of its score. Yours is finite, and a large score
wins all the same.
~ float("-inf") => -100.0
or
~ float("-inf") => -1e4
or
~ float("-inf") => 0.0
Hide keys before the softmax. If their weights are cut out afterwards, the others no longer sum to 1.
- outputs.append
+ outputs.append(scores.softmax(dim=-1).masked_fill(is_later, 0.0) @ own_v)
The mask is inverted: it hides what a query should see.
~ masked_fill(is_later => masked_fill(~is_later
0 × −∞ is NaN: use `masked_fill`.
- outputs.append
+ outputs.append((scores + is_later * float("-inf")).softmax(dim=-1) @ own_v)
The largest float16 is 65,504: a value such as -1e9 is beyond it. Every float dtype has minus infinity.
~ float("-inf") => -1e9
The score is q · k. You took the keys' place for the values', or the other way around.
~ @ own_v) => @ own_k)
or
~ own_k.mT => own_v.mT
or
~ own_k, own_v in => own_v, own_k in
Join the outputs along the tokens, axis 1 of three. `torch.cat` needs at least one: begin with the empty `q[:, :0]`.
= outputs = []
or
= return outputs[1:]
or
= return torch.cat([each.transpose(0, 1) for each in outputs])
or
= return torch.cat(outputs[1:] or outputs)
or
= return torch.stack(outputs[1:] or outputs)
The result has the dtype of q.
- return
+ return torch.cat(outputs, dim=1).float()
or
- outputs =
+ q, k, v = q.float(), k.float(), v.float()
+ ...
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
        "raised RuntimeError": "With m queries and n keys, a sequence's scores are [heads, m, n] (`q @ k.mT`), and so "
        "is what hides keys. m may be 0.",
    },
)

EXERCISE = Exercise(
    id="04.3",
    title="attention without a mask over the row",
    reference=TASK.reference,
    test=TASK,
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
