"""Lesson 18: passes with guesses as plain data, for pictures."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class VerifiedRow:
    """The work of one pass for one sequence.

    Attributes:
        name: the sequence's.
        last: its last token before the pass.
        draft, own: the guesses; what the model draws behind `last` and behind each guess.
        num_new: how many of `own` the sequence got.
        blocks, freed: its blocks in the pass, in order; how many of them, at the end, became free.
    """

    name: str
    last: int
    draft: tuple[int, ...]
    own: tuple[int, ...]
    num_new: int
    blocks: tuple[int, ...]
    freed: int


def recorded_verify(verify: Callable[..., None], passes: list[tuple[VerifiedRow, ...]]) -> Callable[..., None]:
    """`verify`, which also appends each pass to `passes`."""

    def record(drafts: dict[Any, list[int]], logits: Any, draw: Callable[..., int], pool: Any) -> None:
        rows, own = iter(logits), {}
        for each, draft in drafts.items():
            places = range(len(each.output_ids), len(each.output_ids) + len(draft) + 1)
            own[each] = tuple(draw(next(rows), each, place) for place in places)
        before = [(each, each.token_ids[-1], len(each.output_ids), tuple(each.blocks)) for each in drafts]
        verify(drafts, logits, draw, pool)
        passes.append(tuple(
            VerifiedRow(
                each.id, last, tuple(drafts[each]), own[each], len(each.output_ids) - count, blocks,
                len(blocks) - len(each.blocks),
            )
            for each, last, count, blocks in before
        ))  # fmt: skip

    return record
