"""Step through a list of pictures with a slider, buttons and a play button; the pictures are all in the output, so it
works without a kernel, too."""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from lessons_lib.recording.words import check_index
from lessons_lib.viz.drawing.picture import Picture, still_bundle
from lessons_lib.viz.drawing.svg import Drawing
from lessons_lib.viz.player.frames import recording_of
from lessons_lib.viz.player.script import live_element

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
        return live_element(PLAYER, "lessons-player", self.recording(), still, "lessons-stepper")


def _written(sentence: str) -> Picture:
    drawing = Drawing()
    drawing.height = drawing.paragraph(12, 22, sentence, 110, 13, 20)
    return drawing.picture(sentence)
