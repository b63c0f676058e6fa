"""A picture in a notebook whose reader drags the ends of sequences."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anywidget
from traitlets import Unicode


class DraggablePicture(anywidget.AnyWidget):
    """Shows the HTML that is its `value`, and tells which end of the picture in it was dragged, and to which count.

    The pointer is followed in the browser (draggable.js); the picture is drawn in Python only.
    """

    _esm = Path(__file__).with_suffix(".js")
    _css = """
      .lessons-mask-picture [data-end] { cursor: ew-resize; }
      .lessons-mask-picture [data-end][data-axis="y"] { cursor: ns-resize; }
    """
    value = Unicode().tag(sync=True)

    def on_drag(self, act: Callable[[str, int], None]) -> None:
        """Call `act(name of the end, count)` at each move by a token."""
        self.on_msg(lambda _, told, __: act(told["end"], told["count"]))
