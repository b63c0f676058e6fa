"""The tokens along one side of a grid, with as many labels as fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lessons_lib.attention.masks import PADDING, Tags
from lessons_lib.recording.words import runs_of
from lessons_lib.viz.drawing.palette import NEUTRAL, color_of

_LETTER_EM = 0.74  # width and height of a bold capital, in font sizes
_EVERY_TOKEN = 13  # pixels; in narrower cells, a run has one letter


@dataclass(frozen=True)
class TokenAxis:
    """Tokens side by side: (sequence id, position) of each, names by sequence id, pixels of a token along the axis."""

    tokens: list[tuple[int, int]]
    names: Sequence[str]
    cell: int

    @classmethod
    def of(cls, tags: Tags, names: Sequence[str], cell: int) -> TokenAxis:
        return cls(list(zip(tags.seq_ids.tolist(), tags.positions.tolist())), names, cell)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def length(self) -> int:
        """In pixels."""
        return self.cell * len(self.tokens)

    def runs(self) -> list[tuple[int, int, int]]:
        """(sequence id, first index, tokens) of neighbors of one sequence."""
        return runs_of([seq_id for seq_id, _ in self.tokens])

    def colour(self, seq_id: int) -> str:
        return NEUTRAL if seq_id == PADDING else color_of(self.names[seq_id])

    def label(self, seq_id: int) -> str:
        return "–" if seq_id == PADDING else self.names[seq_id]

    def letters(self, upright: bool) -> list[tuple[int, float, float]]:
        """(sequence id, pixels to its middle, font size) of the labels: one per token if they fit, else one per run.

        upright  the axis runs downwards, so that a label's length doesn't matter
        """
        found = []
        for seq_id, start, size in self.runs():
            em = _LETTER_EM * (1 if upright else len(self.label(seq_id)))
            if self.cell >= max(_EVERY_TOKEN, 12 * em):
                found += [(seq_id, (index + 0.5) * self.cell, 12) for index in range(start, start + size)]
            elif (font := min(12, int(size * self.cell / em))) >= 8:
                found.append((seq_id, (start + size / 2) * self.cell, font))
        return found

    def ticks(self, upright: bool) -> list[tuple[int, str]]:
        """(index, position) of the tokens whose positions are shown: the first of a run, and round positions."""
        digits = max((len(str(position)) for _, position in self.tokens), default=1)
        gap = 11 if upright else 6.2 * digits + 6
        step = next(step for step in (1, 2, 5, 10, 20) if step * self.cell >= gap)
        round_ones = [index for index, (_, position) in enumerate(self.tokens) if position % step == 0]
        shown: list[int] = []
        for index in [*(start for _, start, _ in self.runs()), *round_ones]:
            if all(abs(index - other) * self.cell >= gap for other in shown):
                shown.append(index)
        return [(index, str(self.tokens[index][1])) for index in sorted(shown)]
