"""What becomes of each request if a call of a step fails."""

from collections.abc import Mapping

from lessons_lib.viz.drawing.palette import EDGE, NEUTRAL, PAPER, SERIES, SOFT_INK, tint
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing

KINDS = ("scheduled", "swapped out", "preempted, not swapped", "waiting")
CALLS = ("copy_blocks", "copy_blocks, none scheduled", "forward", "sample, keep_tokens", "count_launched")
ENDS, AGAIN, BUG = "ends", "recomputed", "a bug: raise it"
_COLORS = {ENDS: tint("#D55E00"), AGAIN: tint(SERIES[0]), BUG: NEUTRAL}
_LEFT, _TOP, _ROW, _GAP = 250, 62, 34, 4


def draw_failed_step(fates: Mapping[str, Mapping[str, str]]) -> Picture:
    """A row for each call that may fail, a column for each kind of request; "?" where `fates` has nothing."""
    d = Drawing(height=_TOP + len(CALLS) * (_ROW + _GAP) + 14)
    width = (WIDTH - _LEFT - 16) / len(KINDS)
    d.text(16, 20, "A call of the step fails. What becomes of a request that is …", 15, bold=True)
    for column, kind in enumerate(KINDS):
        d.text(_LEFT + (column + 0.5) * width, _TOP - 16, kind, 13, "middle", fill=SOFT_INK)
    told = []
    for row, call in enumerate(CALLS):
        y = _TOP + row * (_ROW + _GAP)
        d.text(_LEFT - 14, y + _ROW / 2, call, 13, "end", bold=True)
        found = [fates.get(call, {}).get(kind, "?") for kind in KINDS]
        for column, fate in enumerate(found):
            x, fill = _LEFT + column * width, _COLORS.get(fate, PAPER)
            d.rect(x, y, width - _GAP, _ROW, fill, EDGE, dashed=fate == "?")
            d.text(x + (width - _GAP) / 2, y + _ROW / 2, fate, 13, "middle", on=fill)
        told.append(f"{call}: {', '.join(f'{kind} {fate}' for kind, fate in zip(KINDS, found))}.")
    return d.picture(f"What becomes of the requests if a call fails. {' '.join(told)}")
