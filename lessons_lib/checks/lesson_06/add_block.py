"""06.2, `add_block`: the running maximum, and the old sums rescaled to it."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from lessons_lib.attention.online_softmax import Partial, add_block, nothing_seen
from lessons_lib.checks.diagnosis import Shown, Task, Watch, brief, is_tensor, mistakes

NONE = float("-inf")
FIELDS = ("maximum", "total", "output")
Case = tuple[Partial, torch.Tensor, torch.Tensor]  # the state, scores, values


def state(maximum: list, total: list, output: list) -> Partial:
    return Partial(*(torch.tensor(each, dtype=torch.float32) for each in (maximum, total, output)))


def cases() -> Iterator[Case]:
    """The empty state isn't the first case: its −∞ would hide other mistakes behind NaN."""
    none, one, two = nothing_seen(1, 1), state([2], [1.5], [[20]]), state([2, 5], [1.5, 1], [[20, 1], [7, 3]])
    for seen, scores, values in (
        (one, [[3]], [[30]]), (one, [[1, 0]], [[30], [40]]), (none, [[1, 2]], [[10], [20]]),
        (two, [[4, 3], [1, 2]], [[10, 1], [20, 2]]),
        (state([5, 2], [1, 1.5], [[7, 3], [20, 1]]), [[1, 2], [4, 3]], [[10, 1], [20, 2]]),
        (one, [[3, NONE]], [[30], [40]]), (one, [[NONE, NONE]], [[30], [40]]), (none, [[NONE, NONE]], [[30], [40]]),
        (nothing_seen(2, 1), [[NONE, NONE], [1, 2]], [[10], [20]]),
        (state([NONE, 2], [0, 1.5], [[0], [20]]), [[1], [3]], [[30]]),
        (state([200], [1], [[10]]), [[300, 299]], [[10], [20]]), (none, [[-300, -301]], [[10], [20]]),
        (none, [[-100_000, -100_001]], [[10], [20]]), (nothing_seen(1, 2), [[1, 2, 4]], [[10, 1], [20, 2], [30, 5]]),
    ):  # fmt: skip
        yield seen, *(torch.tensor(each, dtype=torch.float32) for each in (scores, values))
    generator = torch.Generator().manual_seed(6)
    for index in range(20):
        queries, size, dim = 1 + index % 3, 2 + index % 4, 1 + index % 3
        dtype = torch.float64 if index % 5 == 4 else torch.float32
        scores = 10 * torch.randn(queries, 3 * size, generator=generator, dtype=dtype)
        scores[torch.rand(scores.shape, generator=generator) < 0.3 * (index % 2)] = NONE
        values = torch.randn(3 * size, dim, generator=generator, dtype=dtype)
        seen = nothing_seen(queries, dim, dtype)
        for block in zip(scores.split(size, dim=1), values.split(size)):
            yield seen, *block
            seen = add_block(seen, *block)


def run(attempt: Any, case: Case, watch: Watch) -> None:
    seen, made = case[0], []

    def add_block(scores: torch.Tensor, values: torch.Tensor) -> Any:
        made.append(attempt(seen, scores, values))
        return made[0]

    def look() -> dict[str, Any]:
        given = {f"the caller's `seen.{name}`": getattr(seen, name) for name in FIELDS}
        return given | {name: getattr(made[0], name, None) for name in FIELDS}

    def kind(got: Any) -> str:
        return Shown("a Partial" if all(hasattr(got, name) for name in FIELDS) else f"a {type(got).__name__}")

    watch("`add_block`", add_block, *case[1:], returns=kind, look=look)


def tell(case: Case) -> str:
    seen, scores, values = case
    state = "seen: " + ", ".join(f"{name} {brief(getattr(seen, name))}" for name in FIELDS)
    dtype = str(scores.dtype).removeprefix("torch.")
    return f"{state if seen.total.any() else 'nothing seen'}; scores {brief(scores)}, values {brief(values)}; {dtype}."


def smaller(case: Case) -> Iterator[Case]:
    """With one query only."""
    seen, scores, values = case
    for own in torch.arange(len(scores)).split(1) if len(scores) > 1 else ():
        yield Partial(*(getattr(seen, name)[own] for name in FIELDS)), scores[own], values


def about(name: str) -> Callable[[dict, dict], str]:
    """What a wrong field means."""

    def why(mine: dict, want: dict) -> str:
        if not is_tensor(mine[name]) or mine[name].dtype != want[name].dtype:
            return ""
        if bool(mine[name].isnan().any() and (want["maximum"] == NONE).any()):
            return NAN
        return NO_KEY if bool((want["case"][1] == NONE).all()) else SHOULD_BE[name]

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
    "output": "It is the old output times exp(old maximum − new maximum), plus the block's weights @ values, each "
    "weight exp(score − new maximum).",
}
MISTAKES = """
`max(dim=1)` returns two tensors, the largest scores and where they are: take `.values`, or use `amax`.
~ scores.max(dim=1).values => scores.max(dim=1)
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
Only one of the old sums was rescaled. The factor that corrects it corrects the other one, too.
~ seen.total * rescale => seen.total
or ~ seen.output * rescale[:, None] => seen.output
The factor is upside down. A larger maximum makes every exponential smaller, so the old sums can only shrink: it is at
most 1.
= rescale = (reference - seen.maximum).exp()
or = rescale = (reference - seen.maximum).exp().nan_to_num(posinf=0.0)
The block's weights are relative to the block's own maximum. Subtract the new maximum, the largest of all scores so far.
- weights =
+ own = scores.max(dim=1).values
+ weights = (scores - own.masked_fill(own == float("-inf"), 0.0)[:, None]).exp()
These are bare exponentials. Subtract the new maximum from every score first.
= weights = scores.exp()
or = reference = torch.zeros_like(maximum)
The block's weights are relative to the *old* maximum. Subtract the new one.
= weights = (scores - torch.where(seen.maximum == float("-inf"), reference, seen.maximum)[:, None]).exp()
Rescale only the old sums. The block's weights are already relative to the new maximum.
~ seen.total * rescale + weights.sum(dim=1) => (seen.total + weights.sum(dim=1)) * rescale
~ seen.output * rescale[:, None] + weights @ values => (seen.output + weights @ values) * rescale[:, None]
Don't divide: keep the sums, so that later blocks can be added. The division comes last, in `attention_of`.
- return ... )
+ total = seen.total * rescale + weights.sum(dim=1)
+ return Partial(maximum, total, (seen.output * rescale[:, None] + weights @ values) / total[:, None])
or = weights = scores.softmax(dim=1)
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
or ~ seen.output * rescale[:, None] => seen.output * rescale
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
        "raised FrozenInstanceError": "A Partial is frozen: its fields can't be set. Return a new one.",
        "returned": "Return a `Partial(maximum=..., total=..., output=...)`: the next block continues from there.",
        **{name: about(name) for name in FIELDS},
    },
)

EXERCISE = TASK.exercise(
    id="06.2",
    title="a softmax, one block at a time",
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
