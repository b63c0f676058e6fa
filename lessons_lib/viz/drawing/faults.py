"""What is wrong in a picture, said under it."""

from collections.abc import Sequence

from lessons_lib.viz.drawing.palette import INK, PAPER
from lessons_lib.viz.drawing.svg import Drawing


def draw_faults(d: Drawing, told: Sequence[str], left: float, y: float) -> float:
    """A line for each sentence, below y: of more than four, the first three and how many more there are. Returns where
    the last line is.
    """
    for sentence in [*told[:3], f"… and {len(told) - 3} more."] if len(told) > 4 else told:
        y += 22
        d.rect(left, y - 9, 18, 18, INK, radius=3)
        d.text(left + 9, y, "!", 13, "middle", bold=True, fill=PAPER)
        d.text(left + 25, y, sentence, 13, bold=True)
    return y
