"""Small print under a picture: where its figures come from."""

from __future__ import annotations

import textwrap

from lessons_lib.viz.drawing.palette import SOFT_INK
from lessons_lib.viz.drawing.svg import Drawing

_SIZE, _LINE = 12, 17
_EM = 0.53  # width of an average character, in font sizes


def sans_width(text: str, size: float) -> float:
    """About how wide text is, in pixels. The font is the reader's own, so this is an estimate."""
    return 0.56 * size * len(text)


def write_note(d: Drawing, y: float, note: str, left: float = 16) -> float:
    """Write the note under y, in as many lines as it takes. Returns the y below it."""
    for line in textwrap.wrap(note, int((d.width - left - 16) / (_EM * _SIZE))):
        d.text(left, y + _LINE / 2, line, _SIZE, fill=SOFT_INK)
        y += _LINE
    return y
