"""Step through a list of pictures with a slider, two buttons and a play button."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from html import escape

import ipywidgets as widgets

from lessons_lib.viz.drawing.picture import Picture, live_html, still_bundle

_CACHED = 64  # pictures kept, so that going back costs nothing


class Stepper(widgets.VBox):
    """Shows `draw(i)` for i from 0 to count - 1; the slider chooses i.

    draw   makes the picture of one step; called only for steps that are shown. If it raises, the message is shown
           instead of the picture, and the other steps still work.
    count  number of steps; if 0, a sentence says so
    label  what a step is called: "step 3 of 41"
    name   what to call step i instead, if steps have their own names: "program (2, 0)"
    start  index of the step shown first
    still  index of the step shown where no kernel runs (GitHub, an exported page); the last if not given

    Keyboard: Tab to the slider, then the arrow keys, Page Up and Page Down, Home and End; or Tab to a button and Enter.
    """

    def __init__(
        self, draw: Callable[[int], Picture], count: int, label: str = "step", start: int = 0, still: int | None = None,
        name: Callable[[int], str] | None = None,
    ):  # fmt: skip
        if count < 0:
            raise ValueError(f"count is {count}; a stepper needs 0 or more steps.")
        if count and not 0 <= start < count:
            raise IndexError(f"start is {start}; it may be from 0 to {count - 1}.")
        if still is not None and not 0 <= still < count:
            raise IndexError(f"still is {still}; it may be from 0 to {count - 1}.")
        self.still = count - 1 if still is None else still
        self.count = count
        self.label = label
        self._name_of = name
        self._draw = lru_cache(maxsize=_CACHED)(draw)
        fixed = count < 2  # nothing to move
        self.slider = widgets.IntSlider(
            value=start if count else 0,
            min=0,
            max=max(count - 1, 0),
            description=label,
            readout=False,  # its readout would count from 0
            disabled=fixed,
            layout=widgets.Layout(flex="1 1 160px", min_width="120px"),
            style={"description_width": "initial"},
        )
        small = widgets.Layout(width="44px")
        self.previous = widgets.Button(description="◀", tooltip=f"previous {label}", disabled=fixed, layout=small)
        self.next = widgets.Button(description="▶", tooltip=f"next {label}", disabled=fixed, layout=small)
        self.play = widgets.Play(
            min=0, max=max(count - 1, 0), value=self.slider.value, interval=600, show_repeat=False, disabled=fixed
        )
        self.position = widgets.HTML(layout=widgets.Layout(min_width="110px"))
        self.picture = widgets.HTML(layout=widgets.Layout(width="auto", margin="4px 0"))
        self.picture.add_class("lessons-stepper-picture")
        self.position.add_class("lessons-stepper-position")
        self.previous.add_class("lessons-stepper-previous")
        self.next.add_class("lessons-stepper-next")
        controls = widgets.HBox(
            [self.play, self.previous, self.next, self.slider, self.position],
            layout=widgets.Layout(align_items="center", max_width="900px"),
        )
        super().__init__([controls, self.picture])
        self.add_class("lessons-stepper")
        self.previous.on_click(lambda _: self.move(-1))
        self.next.on_click(lambda _: self.move(+1))
        # Linked in the page: a slow kernel never makes the slider and the play button disagree.
        widgets.jslink((self.play, "value"), (self.slider, "value"))
        self.slider.observe(lambda _: self._show(), names="value")
        self._show()

    def move(self, by: int) -> None:
        """Move by `by` steps; stop at the ends."""
        self.slider.value = min(max(self.slider.value + by, self.slider.min), self.slider.max)

    def _show(self) -> None:
        i = self.slider.value
        where = f"no {self.label}s"
        if self.count:
            where = self._name_of(i) if self._name_of else f"{self.label} {i + 1} of {self.count}"
        self.position.value = f'<span role="status">{escape(where)}</span>'
        self.picture.value = live_html(self._content(i))

    def _content(self, i: int) -> Picture | str:
        """The picture of step i, or a sentence saying why there is none."""
        if not self.count:
            return f"There are no {self.label}s to show: the recording is empty."
        try:
            picture = self._draw(i)
            if not isinstance(picture, Picture):
                raise TypeError(f"draw({i}) returned {type(picture).__name__}; it must return a Picture.")
            return picture
        except Exception as error:  # a learner's data may break a picture; the notebook must continue
            return f"{self.label} {i + 1} could not be drawn. {type(error).__name__}: {error}"

    def _repr_mimebundle_(self, **kwargs) -> dict[str, str]:
        return {**super()._repr_mimebundle_(**kwargs), **still_bundle(self._content(self.still))}
