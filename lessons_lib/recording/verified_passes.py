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

    def verify_and_record(drafts: dict[Any, list[int]], logits: Any, draw: Callable[..., int], pool: Any) -> None:
        before = {each: (each.token_ids, len(each.output_ids), tuple(each.blocks)) for each in drafts}
        own, rows = {}, iter(logits)
        for each, draft in drafts.items():
            own[each] = tuple(draw(next(rows), each, before[each][1] + place) for place in range(len(draft) + 1))
        verify(drafts, logits, draw, pool)
        passes.append(
            tuple(
                VerifiedRow(
                    each.id, before[each][0][-1], tuple(draft), own[each], len(each.output_ids) - before[each][1],
                    before[each][2], len(before[each][2]) - len(each.blocks),
                )
                for each, draft in drafts.items()
            )
        )  # fmt: skip

    return verify_and_record
