"""06.2, `add_block`: the running maximum, and the old sums rescaled to it."""

from collections.abc import Iterator
from typing import Any

import torch

from lessons_lib.attention.online_softmax import Partial, nothing_seen
from lessons_lib.checks.diagnosis import Task, Watch, mistakes
from lessons_lib.checks.diagnosis.telling import Shown
from lessons_lib.checks.exercise import Exercise

NONE = float("-inf")
FIELDS = ("maximum", "total", "output")
Case = tuple[Partial, list[tuple[torch.Tensor, torch.Tensor]]]  # the state, and (scores, values) of each block


def state(maximum: list, total: list, output: list) -> Partial:
    return Partial(*(torch.tensor(each, dtype=torch.float32) for each in (maximum, total, output)))


def cases() -> Iterator[Case]:
    """The empty state isn't the first case: its −∞ would hide other mistakes behind NaN."""
    one, two = state([2], [1.5], [[20]]), state([2, 5], [1.5, 1], [[20, 1], [7, 3]])
    for seen, scores, values in (
        (one, [[3.0]], [[30.0]]),
        (one, [[1.0, 0.0]], [[30.0], [40.0]]),
        (nothing_seen(1, 1), [[1.0, 2.0]], [[10.0], [20.0]]),
        (two, [[4.0, 3.0], [1.0, 2.0]], [[10.0, 1.0], [20.0, 2.0]]),
        (state([5, 2], [1, 1.5], [[7, 3], [20, 1]]), [[1.0, 2.0], [4.0, 3.0]], [[10.0, 1.0], [20.0, 2.0]]),
        (one, [[3.0, NONE]], [[30.0], [40.0]]),
        (one, [[NONE, NONE]], [[30.0], [40.0]]),
        (nothing_seen(1, 1), [[NONE, NONE]], [[30.0], [40.0]]),
        (nothing_seen(2, 1), [[NONE, NONE], [1.0, 2.0]], [[10.0], [20.0]]),
        (state([NONE, 2], [0, 1.5], [[0], [20]]), [[1.0], [3.0]], [[30.0]]),
        (state([200], [1], [[10]]), [[300.0, 299.0]], [[10.0], [20.0]]),
        (nothing_seen(1, 1), [[-300.0, -301.0]], [[10.0], [20.0]]),
        (nothing_seen(1, 1), [[-100_000.0, -100_001.0]], [[10.0], [20.0]]),
        (nothing_seen(1, 2), [[1.0, 2.0, 4.0]], [[10.0, 1.0], [20.0, 2.0], [30.0, 5.0]]),
    ):
        yield seen, [(torch.tensor(scores), torch.tensor(values))]
    generator = torch.Generator().manual_seed(6)
    for index in range(20):
        queries, size, dim = 1 + index % 3, 2 + index % 4, 1 + index % 3
        dtype = torch.float64 if index % 5 == 4 else torch.float32
        scores = 10 * torch.randn(queries, 3 * size, generator=generator, dtype=dtype)
        scores[torch.rand(scores.shape, generator=generator) < 0.3 * (index % 2)] = NONE
        values = torch.randn(3 * size, dim, generator=generator, dtype=dtype)
        yield nothing_seen(queries, dim, dtype), list(zip(scores.split(size, dim=1), values.split(size)))


def run(attempt: Any, case: Case, watch: Watch) -> None:
    seen, blocks = case
    for index, (scores, values) in enumerate(blocks, 1):
        given, made = seen, []

        def add_block(scores: torch.Tensor, values: torch.Tensor) -> Any:
            made.append(attempt(given, scores, values))
            return made[0]

        def look() -> dict[str, Any]:
            state = {f"the caller's `seen.{name}`": getattr(given, name) for name in FIELDS}
            return state | {name: getattr(made[0], name) for name in FIELDS if made and is_partial(made[0])}

        done = "`add_block`" if len(blocks) == 1 else f"block {index}"
        watch(done, add_block, scores, values, returns=kind_of, look=look)
        seen = made[0]


def is_partial(got: Any) -> bool:
    return all(hasattr(got, name) for name in FIELDS)


def kind_of(got: Any) -> Any:
    return Shown("a Partial") if is_partial(got) else got


def tell(case: Case) -> str:
    seen, blocks = case
    state = "nothing seen"
    if bool(seen.total.any()):
        state = f"seen: maximum {told(seen.maximum)}, total {told(seen.total)}, output {told(seen.output)}"
    first = [f"scores {told(scores)}, values {told(values)}" for scores, values in blocks[:1]]
    dtype = str(blocks[0][0].dtype).removeprefix("torch.")
    return f"{state}; {'; '.join(first)}{f'; {len(blocks)} blocks' if blocks[1:] else ''}; {dtype}."


def told(tensor: torch.Tensor) -> str:
    def rounded(value: Any) -> Any:
        return [rounded(item) for item in value] if isinstance(value, list) else f"{value:.4g}"

    return str(rounded(tensor.tolist())).replace("'", "")


def smaller(case: Case) -> Iterator[Case]:
    """Without the last block, or with the first query only."""
    seen, blocks = case
    if len(blocks) > 1:
        yield seen, blocks[:-1]
    if len(seen.maximum) > 1:
        for query in range(len(seen.maximum)):
            own = slice(query, query + 1)
            one = Partial(seen.maximum[own].clone(), seen.total[own].clone(), seen.output[own].clone())
            yield one, [(scores[own].clone(), values) for scores, values in blocks]


MISTAKES = """
`max(dim=1)` returns two tensors, the largest scores and where they are: take `.values`, or use `amax`.
~ scores.max(dim=1).values => scores.max(dim=1)
or
- maximum, seen.total
+ scores.max(dim=1), seen.total * rescale + weights.sum(dim=1), seen.output * rescale[:, None] + weights @ values
`torch.max` and `torch.maximum` compare two tensors. Python's `max` asks which tensor is larger, and there is no answer
for more than one query.
~ torch.maximum(seen.maximum, scores.max(dim=1).values) => max(seen.maximum, scores.max(dim=1).values)
−∞ − (−∞) is NaN. A query that has seen no key yet, and sees none in this block, has −∞ as its old and as its new
maximum. It should keep its state. What could you subtract there instead?
~ reference = maximum.masked_fill(maximum == float("-inf"), 0.0) => reference = maximum
or
~ weights = (scores - reference[:, None]).exp() => weights = (scores - maximum[:, None]).exp()
or
~ rescale = (seen.maximum - reference).exp() => rescale = (seen.maximum - maximum).exp()
Only replace the *new* maximum where it is −∞. With the *old* one replaced by 0, exp(0 − new) may be ∞, and ∞ × the old
total, 0, is NaN.
= rescale = (seen.maximum.masked_fill(seen.maximum == float("-inf"), 0.0) - reference).exp()
Return the maximum itself, −∞ where no key was seen. The 0 is only for the subtractions: as a maximum, it would mean
that a key with a score of 0 was seen.
- maximum, seen.total
+ reference, seen.total * rescale + weights.sum(dim=1), seen.output * rescale[:, None] + weights @ values
That is the largest score of this block. An earlier block may have had a larger one: take the larger of the two.
~ torch.maximum(seen.maximum, scores.max(dim=1).values) => scores.max(dim=1).values
The maximum didn't change. It should be the largest score of all keys so far, with this block's.
~ torch.maximum(seen.maximum, scores.max(dim=1).values) => seen.maximum
Each query has its own maximum: take the largest score along `dim=1`, not of the whole block.
~ scores.max(dim=1).values => scores.max()
or
= maximum = torch.maximum(seen.maximum, scores.max(dim=1).values).max().expand_as(seen.maximum)
or
~ scores.max(dim=1).values => scores.max(dim=0).values
Take the *largest* score of the block, not the smallest.
~ scores.max(dim=1).values => scores.min(dim=1).values
The old sums weren't rescaled. Their exponentials are exp(score − old maximum), the block's exp(score − new maximum). By
which factor do the two differ, whatever the score is?
~ rescale = (seen.maximum - reference).exp() => rescale = torch.ones_like(maximum)
The old total wasn't rescaled. The factor that corrects the output corrects the total, too.
~ seen.total * rescale => seen.total
The old output wasn't rescaled. The factor that corrects the total corrects the output, too.
~ seen.output * rescale[:, None] => seen.output
The old sum is gone. The new one is the old one, rescaled, plus the block's own.
~ seen.total * rescale + => 0 +
or
~ seen.output * rescale[:, None] + => 0 +
or
~ seen.total * rescale + => 0 +
~ seen.output * rescale[:, None] + => 0 +
The block's own sum is missing.
~ rescale + weights.sum(dim=1) => rescale
or
~ rescale[:, None] + weights @ values => rescale[:, None]
The factor is upside down. A larger maximum makes every exponential smaller, so the old sums can only shrink: it is at
most 1.
= rescale = (reference - seen.maximum).exp()
The factor is exp(old maximum − new maximum). The difference alone, or the quotient of the two, isn't it.
~ rescale = (seen.maximum - reference).exp() => rescale = seen.maximum - reference
or
~ rescale = (seen.maximum - reference).exp() => rescale = (seen.maximum / reference).nan_to_num()
The block's weights are relative to the block's own maximum. Subtract the new maximum, the largest of all scores so far.
- weights =
+ own = scores.max(dim=1).values
+ weights = (scores - own.masked_fill(own == float("-inf"), 0.0)[:, None]).exp()
These are bare exponentials. Subtract the new maximum from every score first.
= weights = scores.exp()
or
= reference = torch.zeros_like(maximum)
exp(new maximum) alone may be ∞, or 0. Subtract first, and then take the exponential.
= rescale = seen.maximum.exp() / maximum.exp()
or
= weights = scores.exp() / reference.exp()[:, None]
The block's weights are relative to the *old* maximum. Subtract the new one.
- weights =
+ old = seen.maximum.masked_fill(seen.maximum == float("-inf"), 0.0)
+ weights = (scores - old[:, None]).exp()
or
= weights = (scores - torch.where(seen.maximum == float("-inf"), reference, seen.maximum)[:, None]).exp()
Rescale only the old sums. The block's weights are already relative to the new maximum.
~ seen.total * rescale + weights.sum(dim=1) => (seen.total + weights.sum(dim=1)) * rescale
~ seen.output * rescale[:, None] + weights @ values => (seen.output + weights @ values) * rescale[:, None]
or
~ seen.total * rescale + weights.sum(dim=1) => (seen.total + weights.sum(dim=1)) * rescale
or
~ seen.output * rescale[:, None] + weights @ values => (seen.output + weights @ values) * rescale[:, None]
The factor was applied to the block's own sum. It converts the *old* sums, which are relative to the old maximum.
~ seen.total * rescale + weights.sum(dim=1) => seen.total + weights.sum(dim=1) * rescale
~ seen.output * rescale[:, None] + weights @ values => seen.output + (weights @ values) * rescale[:, None]
Don't divide: keep the sums, so that later blocks can be added. The division comes last, in `attention_of`.
- return ... )
+ total = seen.total * rescale + weights.sum(dim=1)
+ return Partial(maximum, total, (seen.output * rescale[:, None] + weights @ values) / total[:, None])
or
- return ... )
+ total = seen.total * rescale + weights.sum(dim=1)
+ output = (seen.total * rescale)[:, None] * seen.output + weights @ values
+ return Partial(maximum, total, output / total[:, None])
or
= weights = scores.softmax(dim=1)
or
~ weights @ values => scores.softmax(dim=1) @ values
These are powers of 2, not of e: use `exp`.
= weights = 2 ** (scores - reference[:, None])
= rescale = 2 ** (seen.maximum - reference)
Values are weighted: the block adds `weights @ values` to the output.
~ weights @ values => values.sum(dim=0)
or
~ weights @ values => scores.masked_fill(scores == float("-inf"), 0.0) @ values
The total is the sum of a query's weights over the block's keys: `weights.sum(dim=1)`.
~ weights.sum(dim=1) => weights.mean(dim=1)
or
~ weights.sum(dim=1) => scores.isfinite().sum(dim=1)
or
~ weights.sum(dim=1) => weights.sum()
or
~ weights.sum(dim=1) => weights.max(dim=1).values
`total`, the denominator, and `output`, the numerator, come in this order after `maximum`. Yours are in another one.
- return ... )
+ total, output = seen.total * rescale + weights.sum(dim=1), seen.output * rescale[:, None] + weights @ values
+ return Partial(total, maximum, output)
or
- return ... )
+ total, output = seen.total * rescale + weights.sum(dim=1), seen.output * rescale[:, None] + weights @ values
+ return Partial(maximum, output, total)
Each masked key counts with a weight of 1; its weight is 0. exp(−∞ − 0) is 0: put 0 in place of the maximum only, not of
a score, and not in an exponent.
= weights = (scores - reference[:, None]).masked_fill(scores == float("-inf"), 0.0).exp()
or
= weights = (scores - maximum[:, None]).nan_to_num(nan=0.0).exp()
A query that has seen no key has exactly 0 here. Don't add a small number against a division by 0: every block would add
it again.
~ weights.sum(dim=1), => weights.sum(dim=1) + 1e-9,
Return −∞ itself where no key was seen. A finite number, however small, could be a score.
- maximum, seen.total
+ maximum.clamp(min=-1e30),
+ seen.total * rescale + weights.sum(dim=1), seen.output * rescale[:, None] + weights @ values
or
- maximum, seen.total
+ maximum.nan_to_num(neginf=torch.finfo(scores.dtype).min),
+ seen.total * rescale + weights.sum(dim=1), seen.output * rescale[:, None] + weights @ values
or
- maximum =
+ maximum = torch.maximum(seen.maximum, scores.max(dim=1).values).clamp(min=-1e9)
Every exponential is 0 here: what you subtract is far above these scores. Subtract the new maximum, however low it is;
something else, such as 0, only where it is −∞.
~ reference = maximum.masked_fill(maximum == float("-inf"), 0.0) => reference = maximum.clamp(min=0.0)
or
~ maximum == float("-inf"), 0.0 => maximum < -10_000, 0.0
A block whose keys are all masked adds nothing: maximum, total and output stay as they were. Did you start again?
- return
+ if bool((scores == float("-inf")).all()): maximum, rescale = scores.max(dim=1).values, torch.zeros_like(maximum)
+ ...
or
- maximum =
+ own = scores.max(dim=1).values
+ maximum = torch.where(own == float("-inf"), own, torch.maximum(seen.maximum, own))
The factor is one number for each query, and must be a column to multiply [Q, D]: `factor[:, None]`.
~ seen.output * rescale[:, None] => seen.output * rescale
Take the factor of each query, not of the first one, or of all together.
- rescale =
+ rescale = (seen.maximum - reference).exp()[:1].expand_as(maximum)
or
- rescale =
+ rescale = (seen.maximum.max() - reference.max()).exp().expand_as(maximum)
`x *= factor` changes the caller's tensor; `x * factor` makes a new one. Return a new Partial.
~ seen.total * rescale + => seen.total.mul_(rescale) +
or
~ seen.output * rescale[:, None] + => seen.output.mul_(rescale[:, None]) +
or
- return ... )
+ seen.total.mul_(rescale).add_(weights.sum(dim=1))
+ seen.output.mul_(rescale[:, None]).add_(weights @ values)
+ return Partial(maximum, seen.total, seen.output)
A Partial is frozen: its fields can't be set. Return a new one.
- return ... )
+ seen.maximum = maximum
+ return seen
Return a `Partial(maximum=..., total=..., output=...)`: the next block continues from there.
- return ... )
+ return maximum, seen.total * rescale + weights.sum(dim=1), seen.output * rescale[:, None] + weights @ values
or
- return ... )
+ return (seen.output * rescale[:, None] + weights @ values) / (seen.total * rescale + weights.sum(dim=1))[:, None]
A field has an axis too many. Add one with `[:, None]`, or by `keepdim=True`, only where you combine [Q] with [Q, K] or
[Q, D].
- return ... )
+ total = seen.total[:, None] * rescale[:, None] + weights.sum(dim=1, keepdim=True)
+ return Partial(maximum, total, seen.output * rescale[:, None] + weights @ values)
or
- return ... )
+ total, output = seen.total * rescale + weights.sum(dim=1), seen.output * rescale[:, None] + weights @ values
+ return Partial(maximum[:, None], total, output)
The fields have the dtype of the arguments. Is there a conversion, or a new tensor without `dtype=`?
- return ... )
+ total, output = seen.total * rescale + weights.sum(dim=1), seen.output * rescale[:, None] + weights @ values
+ return Partial(maximum.float(), total.float(), output.float())
or
~ weights = (scores - reference[:, None]).exp() => weights = (scores - reference[:, None]).float().exp()
"""

TASK = Task(
    reference="lessons_lib.attention.online_softmax:add_block",
    cases=cases,
    run=run,
    tell=tell,
    smaller=smaller,
    known=mistakes(MISTAKES),
    about={
        **dict.fromkeys(
            (f"the caller's `seen.{name}`" for name in FIELDS),
            "`x *= factor` changes the caller's tensor; `x * factor` makes a new one. Return a new Partial.",
        ),
        "returned": "Return a `Partial(maximum=..., total=..., output=...)`.",
        "maximum": "For each query, it is the larger of the old maximum and the block's largest score.",
        "total": "It is the old total times exp(old maximum − new maximum), plus the sum of the block's weights, each "
        "exp(score − new maximum).",
        "output": "It is the old output times exp(old maximum − new maximum), plus the block's weights @ values.",
    },
)

EXERCISE = Exercise(
    id="06.2",
    title="a softmax, one block at a time",
    reference=TASK.reference,
    test=TASK,
    hints=(
        "Before you can add two sums, both must have the same score subtracted. Which one do the old sums have, "
        "and which one will the new ones have? If you get NaN: it is the difference of two infinities, and "
        "whatever you subtract from −∞ needs to be finite.",
        "New maximum: the larger of `seen.maximum` and the largest score in each row (`dim=1`). "
        "Weights: exp(score − new maximum). Factor for the old sums: exp(old maximum − new maximum). "
        "Where the new maximum is minus infinity, subtract 0 instead of it in both, but return minus infinity. "
        "To combine a [Q] tensor with [Q, K] or [Q, D], add an axis: `x[:, None]`.",
        "`maximum = torch.maximum(seen.maximum, scores.max(dim=1).values)`; `reference = "
        'maximum.masked_fill(maximum == float("-inf"), 0.0)`; '
        "`weights = (scores - reference[:, None]).exp()`; `rescale = (seen.maximum - reference).exp()`. "
        "Then `Partial(maximum, seen.total * rescale + weights.sum(dim=1), ...)`.",
    ),
    points=3,
)
