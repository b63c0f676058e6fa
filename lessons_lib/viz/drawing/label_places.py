"""Where the labels of points go, so that none covers a point, another label or the chart's edge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_AWAY, _STEP = 14.0, 4.0
_FURTHEST = 80  # steps up and down that are tried


@dataclass(frozen=True)
class Box:
    """A rectangle in pixels."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> bool:
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )

    def is_within(self, other: Box) -> bool:
        return (
            other.left <= self.left
            and self.right <= other.right
            and other.top <= self.top
            and self.bottom <= other.bottom
        )


def place_labels(
    points: Sequence[tuple[float, float]],
    widths: Sequence[float],
    height: float,
    area: Box,
    taken: Sequence[Box] = (),
    radius: float = 0,
) -> list[Box]:
    """A box for each label: next to its point, as near as there is room; first right of it, then left, then above and
    below these.

    Args:
        points: (x, y) of each.
        widths, height: of the labels.
        area: no label leaves it.
        taken: what no label may cover.
        radius: half the size of a point's sign, which no label may cover either.

    Returns:
        as many boxes as points. Where there is no room at all, the label lies right of its point, over whatever is
        there.
    """
    signs = [Box(x - radius, y - radius, x + radius, y + radius) for x, y in points]
    placed: dict[int, Box] = {}
    # From the top down, so that the leader lines of points above each other do not cross.
    for index in sorted(range(len(points)), key=lambda i: points[i][1]):
        obstacles = [*taken, *signs, *placed.values()]
        candidates = _candidates(*points[index], widths[index], height)
        first = next(candidates)
        free = (
            box
            for box in (first, *candidates)
            if box.is_within(area) and not any(box.meets(other) for other in obstacles)
        )
        placed[index] = next(free, first)
    return [placed[index] for index in range(len(points))]


def _candidates(x: float, y: float, width: float, height: float):
    """Boxes around a point, the nearest first."""
    options = []
    for step in range(-_FURTHEST, _FURTHEST + 1):
        for reach in (_AWAY, 3 * _AWAY, 6 * _AWAY):
            for is_left in (False, True):
                options.append(
                    (abs(step) * _STEP + (reach - _AWAY) + 6 * is_left + 0.1 * (step < 0), step, reach, is_left)
                )
    for _, step, reach, is_left in sorted(options):
        left = x - reach - width if is_left else x + reach
        top = y + step * _STEP - height / 2
        yield Box(left, top, left + width, top + height)
