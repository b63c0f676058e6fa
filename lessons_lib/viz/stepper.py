"""Step through a list of pictures with a slider, buttons and a play button; the pictures are all in the output, so it
works without a kernel, too."""

import base64
import json
import sys
import zlib
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from lessons_lib.recording.words import check_index
from lessons_lib.viz.drawing.picture import Picture, still_bundle
from lessons_lib.viz.drawing.svg import Drawing
from lessons_lib.viz.player.frames import recording_of

PLAYER = Path(__file__).with_name("player") / "player.js"


class Stepper:
    """Shows `draw(i)` for i from 0 to count - 1; the slider chooses i.

    draw   makes the picture of one step, with a `Drawing`. If it raises, the message is shown instead of the picture,
           and the other steps still work.
    count  number of steps; if 0, a sentence says so
    label  what a step is called: "step 3 of 41"
    name   what to call step i instead, if steps have their own names: "program (2, 0)"
    start  index of the step shown first
    still  index of the step shown where no script runs (GitHub, a notebook that isn't trusted); the last if not given

    Keyboard: Tab to the slider, then the arrow keys, Page Up and Page Down, Home and End; or Tab to a button and Enter.
    """

    def __init__(
        self, draw: Callable[[int], Picture], count: int, label: str = "step", start: int = 0, still: int | None = None,
        name: Callable[[int], str] | None = None,
    ):  # fmt: skip
        for index in (start, still) if count else ():
            if index is not None:
                check_index("step", index, count)
        self.still = count - 1 if still is None else still
        self.start = start
        self.count = count
        self.label = label
        self._name_of = name or (lambda i: f"{label} {i + 1} of {count}")
        self._draw = draw

    @cached_property
    def pictures(self) -> list[Picture]:
        """The picture of each step, or the sentence why there is none, as a picture."""
        return [self._picture(i) for i in range(self.count)]

    def _picture(self, i: int) -> Picture:
        try:
            picture = self._draw(i)
            if not isinstance(picture, Picture):
                raise TypeError(f"draw({i}) returned {type(picture).__name__}; it must return a Picture.")
            return picture
        except Exception as error:  # a learner's data may break a picture; the notebook must continue
            return _written(f"{self.label} {i + 1} could not be drawn. {type(error).__name__}: {error}")

    def recording(self) -> dict[str, object]:
        """What the player plays, ready for JSON."""
        names = [self._name_of(i) for i in range(self.count)]
        return recording_of(self.pictures) | {"names": names, "label": self.label, "start": self.start}

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        if not self.count:
            return still_bundle(f"There are no {self.label}s to show: the recording is empty.")
        still = still_bundle(self.pictures[self.still])
        data = json.dumps(self.recording(), separators=(",", ":"), ensure_ascii=False)
        # A run's pictures are alike: 650 kB of JSON become 58.
        packed = base64.b64encode(zlib.compress(data.encode(), 9)).decode()
        player = f'{still["text/html"]}<script type="application/zlib">{packed}</script>'
        # JupyterLab would take the arrow keys for itself.
        tag = "lessons-player class='lessons-stepper' data-lm-suppress-shortcuts='true'"
        return still | {"text/html": f"<{tag}>{player}</lessons-player>{_module()}"}


def _written(sentence: str) -> Picture:
    drawing = Drawing()
    drawing.height = drawing.paragraph(12, 22, sentence, 110, 13, 20)
    return drawing.picture(sentence)


_shown_in: object = None  # the cell whose output holds the module


def _module() -> str:
    """The module, in one output of a notebook; in Colab in each, because there an output is a page of its own."""
    global _shown_in
    cell = _running_cell()
    if _shown_in not in (None, cell) and "google.colab" not in sys.modules:
        return ""
    _shown_in = cell
    return f'<script type="module">{PLAYER.read_text(encoding="utf-8")}</script>'


def _running_cell() -> object:
    """What tells a cell from others, also when it runs again; outside of notebooks always the same."""
    if "IPython" not in sys.modules:
        return "no notebook"
    shell = sys.modules["IPython"].get_ipython()
    if shell is None or not hasattr(shell, "get_parent"):
        return "no notebook"
    request = shell.get_parent()
    # Some clients name no cell, nor do all of them count what they execute; each request has an id.
    return request.get("metadata", {}).get("cellId") or request.get("header", {}).get("msg_id")
