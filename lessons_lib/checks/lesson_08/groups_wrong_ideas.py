"""What the plausible mistakes in the arithmetic of 08.2 would give."""

from collections.abc import Iterator

import torch

from lessons_lib.checks.lesson_08.groups_cases import SCALE, Decodes
from lessons_lib.kernels.paged_flash import LOG2_E

PADDED = (
    "Positions past the last token have a score of 0, and a weight. Their score must be minus infinity: "
    '`tl.where(is_key[None, :], scores, float("-inf"))`.'
)


def wrong_ideas(seq: int, kv_head: int, made: Decodes) -> Iterator[tuple[str, torch.Tensor]]:
    """(what is wrong, what it gives for the heads of the group)."""
    queries, keys, values = made.parts(seq, kv_head)
    scores = queries @ keys.T * SCALE
    log2_e = LOG2_E.value
    yield "The scores aren't multiplied by `scale`.", _base2(queries @ keys.T) @ values
    yield "The scores are multiplied by `scale` twice.", _base2(scores * SCALE * log2_e**2) @ values
    yield (
        "log2(e) counts twice: `scale` includes it, so the scores are in base 2. Do you take `tl.exp` of them instead "
        "of `tl.exp2`, or multiply by it again?",
        (scores * log2_e).softmax(dim=1) @ values,
    )
    yield "You used the keys as values.", scores.softmax(dim=1) @ keys
    yield "You used the values as keys.", (queries @ values.T * SCALE).softmax(dim=1) @ values
    yield "Keys and values are swapped.", (queries @ values.T * SCALE).softmax(dim=1) @ keys
    yield "This is the plain mean of the values: all weights are equal.", values.mean(dim=0).expand(made.group, -1)
    if made.group > 1:
        own = scores.softmax(dim=1) @ values
        yield (
            "All rows have the result of the group's first head. Each row needs its own query.",
            own[:1].expand_as(own),
        )
        yield "All rows share one sum. Each row has a maximum and a sum of its own: `axis=1`.", _shared(scores, values)
    if scores.max() < -1e4:  # an earlier case has shown that masked scores aren't 0
        yield (
            "The scores are all far below zero here, and those of masked positions outweigh them. A masked score must "
            "be lower than any other: minus infinity.",
            torch.zeros_like(queries),
        )
    yield (
        PADDED,
        _online(scores, values, made.tile, padded=True),
    )
    yield "The result isn't divided by `row_sum`.", _online(scores, values, made.tile, divide=False)
    for divide in (False, True):
        yield (
            "You divide by `row_sum` in every iteration. Divide once, after the loop.",
            _online(scores, values, made.tile, divide=divide, each=True),
        )
    if len(keys) > made.tile:
        both = "multiply it by exp2(old maximum − new maximum). `online_softmax` returns it rescaled."
        yield (
            f"`acc` isn't rescaled. It's relative to the old maximum: {both}",
            _online(scores, values, made.tile, acc=False),
        )
        yield (
            f"`row_sum` isn't rescaled. It's relative to the old maximum: {both}",
            _online(scores, values, made.tile, total=False),
        )
        yield (
            "Neither `acc` nor `row_sum` is rescaled to the new maximum.",
            _online(scores, values, made.tile, acc=False, total=False),
        )
        last = (len(keys) - 1) // made.tile * made.tile
        yield (
            "The sum of weight × value starts anew in each iteration: only the last tile is in `acc`. Add to it, "
            "`tl.dot(weights, values, acc)`.",
            _online(scores, values, made.tile, keep=False),
        )
        yield (
            "Only the last tile counts in your result. Are `row_max`, `row_sum` and `acc` all carried from one "
            "iteration to the next?",
            scores[:, last:].softmax(dim=1) @ values[last:],
        )
        yield "Only the first tile counts in your result.", scores[:, : made.tile].softmax(dim=1) @ values[: made.tile]
        yield (
            "`acc` is counted twice: `tl.dot(weights, values, acc)` already adds it.",
            _online(scores, values, made.tile, twice=True),
        )


def _base2(scores: torch.Tensor) -> torch.Tensor:
    """The softmax with powers of 2."""
    return (scores * torch.tensor(2.0).double().log()).softmax(dim=1)


def _shared(scores: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    weights = (scores - scores.max(dim=1, keepdim=True).values).exp()
    return weights @ values / weights.sum()


def _online(
    scores, values, tile: int, acc=True, total=True, keep=True, divide=True, padded=False, twice=False, each=False
):
    """The softmax tile by tile, with one step left out.

    Args:
        acc, total: whether it is rescaled. keep: whether `acc` is added to. divide: by the sum of weights.
        padded: the last tile's masked keys have a score of 0 and a value of 0.
        twice: whether `acc` is added to the product, which contains it. each: divide in every iteration.
    """
    rows = len(scores)
    if padded and len(values) % tile:
        missing = -len(values) % tile
        scores = torch.cat([scores, scores.new_zeros(rows, missing)], dim=1)
        values = torch.cat([values, values.new_zeros(missing, values.shape[1])])
    row_max, row_sum = scores.new_full((rows,), -torch.inf), scores.new_zeros(rows)
    sums = values.new_zeros(rows, values.shape[1])
    for first in range(0, len(values), tile):
        own, own_values = scores[:, first : first + tile], values[first : first + tile]
        new_max = torch.maximum(row_max, own.max(dim=1).values)
        weights, rescale = (own - new_max[:, None]).exp(), (row_max - new_max).exp()
        row_sum = row_sum * (rescale if total else 1) + weights.sum(dim=1)
        sums = sums * (rescale[:, None] if acc else 1) if keep else 0
        sums = (1 + twice) * sums + weights @ own_values
        sums = sums / row_sum[:, None] if each else sums
        row_max = new_max
    return sums / row_sum[:, None] if divide else sums
