"""06.2, `add_block`: the running maximum, and the old sums rescaled to it."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from lessons_lib.attention.online_softmax import Partial, nothing_seen
from lessons_lib.checks.diagnosis import Task, Watch, mistakes
from lessons_lib.checks.diagnosis.telling import Shown
from lessons_lib.checks.diagnosis.watching import is_tensor
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


def kind_of(got: Any) -> str:
    return Shown("a Partial" if is_partial(got) else f"a {type(got).__name__}")


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


def about(name: str) -> Callable[[dict, dict], str]:
    """What a wrong field means."""

    def why(mine: dict, want: dict) -> str:
        _, [*_, (scores, _)] = want["case"]
        if not is_tensor(mine[name]) or mine[name].dtype != want[name].dtype:
            return ""
        if bool(mine[name].isnan().any() and (want["maximum"] == NONE).any()):
            return NAN
        return NO_KEY if bool((scores == NONE).all()) else SHOULD_BE[name]

    return why


NAN = (
    "−∞ − (−∞) is NaN. A query that has seen no key yet, and sees none in this block, has −∞ as its old and as its new "
    "maximum. It should keep its state. What could you subtract there instead?"
)
NO_KEY = "No key of this block is visible: maximum, total and output stay exactly as they were."
SHOULD_BE = {
    "maximum": "For each query, it is the larger of the old maximum and the block's largest score (`dim=1`); −∞ where "
    "no key was seen.",
    "total": "It is the old total times exp(old maximum − new maximum), plus the sum of the block's weights "
    "(`dim=1`), each exp(score − new maximum).",
    "output": "It is the old output times exp(old maximum − new maximum), plus the block's weights @ values.",
}
MISTAKES = """
`max(dim=1)` returns two tensors, the largest scores and where they are: take `.values`, or use `amax`.
~ scores.max(dim=1).values => scores.max(dim=1)
or
- maximum, seen.total
+ scores.max(dim=1), seen.total * rescale + weights.sum(dim=1), seen.output * rescale[:, None] + weights @ values
`torch.max` and `torch.maximum` compare two tensors. Python's `max` asks which tensor is larger, and there is no answer
for more than one query.
~ torch.maximum(seen.maximum, scores.max(dim=1).values) => max(seen.maximum, scores.max(dim=1).values)
An exponential is ∞ or 0 here, and ∞ × 0 and 0 / 0 are NaN. Subtract before you take exponentials, and replace only the
*new* maximum where it is −∞: for the old one, exp(−∞ − new) is 0, as it should be.
= rescale = (seen.maximum.masked_fill(seen.maximum == float("-inf"), 0.0) - reference).exp()
Return the maximum itself, −∞ where no key was seen. The 0 is only for the subtractions: as a maximum, it would mean
that a key with a score of 0 was seen.
- maximum, seen.total
+ reference, seen.total * rescale + weights.sum(dim=1), seen.output * rescale[:, None] + weights @ values
The old sums weren't rescaled. Their exponentials are exp(score − old maximum), the block's exp(score − new maximum). By
which factor do the two differ, whatever the score is?
~ rescale = (seen.maximum - reference).exp() => rescale = torch.ones_like(maximum)
The old total wasn't rescaled. The factor that corrects the output corrects the total, too.
~ seen.total * rescale => seen.total
The old output wasn't rescaled. The factor that corrects the total corrects the output, too.
~ seen.output * rescale[:, None] => seen.output
The factor is upside down. A larger maximum makes every exponential smaller, so the old sums can only shrink: it is at
most 1.
= rescale = (reference - seen.maximum).exp()
or
= rescale = (reference - seen.maximum).exp().nan_to_num(posinf=0.0)
The factor is exp(old maximum − new maximum), not the difference itself.
= rescale = seen.maximum - reference
The block's weights are relative to the block's own maximum. Subtract the new maximum, the largest of all scores so far.
- weights =
+ own = scores.max(dim=1).values
+ weights = (scores - own.masked_fill(own == float("-inf"), 0.0)[:, None]).exp()
These are bare exponentials. Subtract the new maximum from every score first.
= weights = scores.exp()
or
= reference = torch.zeros_like(maximum)
The block's weights are relative to the *old* maximum. Subtract the new one.
= weights = (scores - torch.where(seen.maximum == float("-inf"), reference, seen.maximum)[:, None]).exp()
Rescale only the old sums. The block's weights are already relative to the new maximum.
~ seen.total * rescale + weights.sum(dim=1) => (seen.total + weights.sum(dim=1)) * rescale
~ seen.output * rescale[:, None] + weights @ values => (seen.output + weights @ values) * rescale[:, None]
Don't divide: keep the sums, so that later blocks can be added. The division comes last, in `attention_of`.
- return ... )
+ total = seen.total * rescale + weights.sum(dim=1)
+ return Partial(maximum, total, (seen.output * rescale[:, None] + weights @ values) / total[:, None])
or
= weights = scores.softmax(dim=1)
`total`, the denominator, and `output`, the numerator, come in this order after `maximum`. Yours are in another one.
- return ... )
+ total, output = seen.total * rescale + weights.sum(dim=1), seen.output * rescale[:, None] + weights @ values
+ return Partial(maximum, output, total)
Each masked key counts with a weight of 1; its weight is 0. exp(−∞ − 0) is 0: put 0 in place of the maximum only, not of
a score, and not in an exponent.
= weights = (scores - maximum[:, None]).nan_to_num(nan=0.0).exp()
Every exponential is 0 here: what you subtract is far above these scores. Subtract the new maximum, however low it is;
something else, such as 0, only where it is −∞.
~ reference = maximum.masked_fill(maximum == float("-inf"), 0.0) => reference = maximum.clamp(min=0.0)
A [Q] tensor needs a second axis before it meets [Q, K] or [Q, D]: `x[:, None]`. Without it, query q's number lands in
column q.
~ scores - reference[:, None] => scores - reference
or
~ seen.output * rescale[:, None] => seen.output * rescale
A Partial is frozen: its fields can't be set. Return a new one.
- return ... )
+ seen.maximum = maximum
+ return seen
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
        "returned": "Return a `Partial(maximum=..., total=..., output=...)`: the next block continues from there.",
        **{name: about(name) for name in FIELDS},
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
