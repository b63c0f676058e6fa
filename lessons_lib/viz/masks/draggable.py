"""A picture in a notebook whose reader drags the ends of sequences."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anywidget
from traitlets import Unicode


class DraggablePicture(anywidget.AnyWidget):
    """Shows the HTML in `value`, and tells which end in it was dragged to which count (see draggable.js)."""

    _esm = Path(__file__).with_suffix(".js")
    _css = """
      .lessons-mask-picture [data-end] { cursor: ew-resize; }
      .lessons-mask-picture [data-end][data-axis="y"] { cursor: ns-resize; }
    """
    value = Unicode().tag(sync=True)

    def on_drag(self, act: Callable[[str, int], None]) -> None:
        """Call `act(name of the end, count)` at each move by a token."""
        self.on_msg(lambda _, told, __: act(told["end"], told["count"]))
