"""Lesson 06: the sums of a softmax computed block by block, after each block, as plain data and in words."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from lessons_lib.attention.online_softmax import Partial, add_block, nothing_seen
from lessons_lib.recording.words import listed


@dataclass(frozen=True)
class SoftmaxStep:
    """One query before and after one block of keys. Outputs have D values each.

    Attributes:
        block: index of the block, from 1; 0 is the state before the first.
        positions, scores: positions and scores of the block's keys; masked keys have a score of minus infinity.
        maximum_before, total_before, output_before: the sums before the block, as in `Partial`.
        factor: rescaling of the old sum and output, exp(old maximum - new maximum); 1 if the maximum doesn't change.
        weights: exp(score - reference) of each key.
        added_total, added_output: the block's contribution: the sum of the weights, and of weight x value.
        maximum, total, output: the sums after the block.
        remarks: sentences about sums that overflowed, if any.
    """

    block: int
    positions: tuple[int, ...]
    scores: tuple[float, ...]
    maximum_before: float
    total_before: float
    output_before: tuple[float, ...]
    factor: float
    weights: tuple[float, ...]
    added_total: float
    added_output: tuple[float, ...]
    maximum: float
    total: float
    output: tuple[float, ...]
    remarks: tuple[str, ...] = ()

    @property
    def reference(self) -> float:
        """The value subtracted from every score: the maximum, or 0 if none is kept."""
        return 0.0 if self.maximum == -math.inf else self.maximum

    @property
    def attention(self) -> tuple[float, ...]:
        """output / total: the attention over all keys so far. NaN where both are 0 or infinite."""
        return tuple((torch.tensor(self.output, dtype=torch.float64) / self.total).tolist())


def record_blocks(
    scores: torch.Tensor, values: torch.Tensor, block_size: int, add_block: Callable[..., Partial] = add_block
) -> list[SoftmaxStep]:
    """Add the keys of one query block by block: one step before the first block, and one after each.

    Args:
        scores: [K] or [1, K], of a floating-point dtype.
        values: [K, D].
        block_size: keys in a block; the last may have fewer.
        add_block: function (Partial, scores [1, k], values [k, D]) -> Partial; you can pass your own.
    """
    scores = scores.reshape(1, -1)
    scores, values = scores.detach(), values.detach()
    seen = nothing_seen(1, values.shape[1], scores.dtype)
    nothing = tuple(seen.output[0].tolist())
    steps = [SoftmaxStep(0, (), (), -math.inf, 0.0, nothing, 1.0, (), 0.0, nothing, -math.inf, 0.0, nothing)]
    for index, start in enumerate(range(0, scores.shape[1], block_size), start=1):
        part = slice(start, start + block_size)
        after = add_block(seen, scores[:, part], values[part])
        steps.append(_step(index, start, seen, scores[0, part], values[part], after))
        seen = after
    return steps


def _step(
    index: int, start: int, before: Partial, scores: torch.Tensor, values: torch.Tensor, after: Partial
) -> SoftmaxStep:
    old, new = before.maximum[0], after.maximum[0]
    # Where the maximum stays at minus infinity, the difference would be NaN.
    factor = torch.ones_like(new) if old == new else (old - new).exp()
    weights = (scores - (torch.zeros_like(new) if new == -math.inf else new)).exp()
    added_total, added_output = weights.sum(), weights @ values
    return SoftmaxStep(
        block=index,
        positions=tuple(range(start, start + len(scores))),
        scores=tuple(scores.tolist()),
        maximum_before=old.item(),
        total_before=before.total[0].item(),
        output_before=tuple(before.output[0].tolist()),
        factor=factor.item(),
        weights=tuple(weights.tolist()),
        added_total=added_total.item(),
        added_output=tuple(added_output.tolist()),
        maximum=new.item(),
        total=after.total[0].item(),
        output=tuple(after.output[0].tolist()),
        remarks=_remarks(after),
    )


def _remarks(after: Partial) -> tuple[str, ...]:
    sums = {"total": after.total, "output": after.output}
    told = {name: "overflow: infinity" for name, value in sums.items() if value.isinf().any()}
    told |= {name: "not a number" for name, value in sums.items() if name not in told and value.isnan().any()}
    return tuple(f"The {name}: {what}." for name, what in told.items())


def number_text(value: float) -> str:
    """Format a value to 3 significant digits, 1 before a power of ten; infinity and NaN in words."""
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "infinity" if value > 0 else "−infinity"
    is_large = 999.5 <= abs(value) < 1e6  # .3g would write these with a power of ten
    text = f"{value:,.0f}" if is_large else f"{value + 0.0:.3g}"  # + 0.0 takes the sign off a negative zero
    if "e" in text:
        digits, power = f"{value:.0e}".split("e")
        text = f"{digits}e{int(power)}"
    return text.replace("-", "−")


def score_text(score: float) -> str:
    return "masked" if score == -math.inf else number_text(score)


def bracketed(value: float) -> str:
    text = number_text(value)
    return f"({text})" if text.startswith("−") else text


def difference_text(one: float, other: float) -> str:
    return f"{number_text(one)} − {bracketed(other)}"


def step_text(step: SoftmaxStep) -> str:
    """Describe a step in a sentence or two, with any errors."""
    if not step.block:
        return "Nothing has been added up yet: there is no maximum, and the sum and the output are 0."
    new, factor = number_text(step.maximum), number_text(step.factor)
    difference = difference_text(step.maximum_before, step.maximum)
    if step.maximum == -math.inf and max(step.scores) == -math.inf:
        event = "the query may not attend to any of these keys, so nothing is added."
    elif step.maximum == -math.inf:
        event = (
            "no maximum is kept, so the weights are the exponentials of the bare scores (0 is subtracted), "
            "and nothing is rescaled."
        )
    elif step.maximum_before == -math.inf:
        event = f"the first maximum is {new}; there was nothing before that could be rescaled."
    elif step.maximum == step.maximum_before:
        event = f"the maximum stays {new}, so nothing is rescaled."
    else:
        kind = "larger" if step.maximum > step.maximum_before else "smaller"
        event = f"a {kind} score, {new}: what was added up is multiplied by exp({difference}) = {factor}."
    return " ".join([f"Block {step.block}: {event}", *step.remarks])


def numbers(values: Sequence[float], most: int = 8) -> str:
    """The first values of a list, and the number of the others."""
    return listed([number_text(value) for value in values], most)
