"""A mask to play with: each sequence's new and cached tokens, and the rules that apply."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import ipywidgets as widgets
import torch

from lessons_lib.attention.masks import PADDING, RULES, Tags, combine, tag_tokens
from lessons_lib.recording.mask_text import letters, mask_text, read_row, reason
from lessons_lib.viz.controls import line_of
from lessons_lib.viz.drawing.palette import color_of, text_on
from lessons_lib.viz.drawing.picture import Picture, live_html, still_bundle
from lessons_lib.viz.masks.draggable import DraggablePicture
from lessons_lib.viz.masks.grid import LARGEST, draw_mask
from lessons_lib.viz.masks.token_axis import ends_of

_MOST_PADDING = 8
_HOVERED = 1000  # cells; with more, the hover texts would slow the picture down


def row_tags(lengths: Sequence[int], cached: Sequence[int], padding: int = 0) -> tuple[Tags, Tags]:
    """The tags of one pass. Queries: all new tokens, then the padding; keys: all cached tokens, then the queries."""
    at_the_end = Tags(torch.full((padding,), PADDING), torch.arange(padding))
    queries = tag_tokens(lengths, starts=cached).followed_by(at_the_end)
    return queries, tag_tokens(cached).followed_by(queries)


class MaskExplorer(widgets.VBox):
    """Shows the mask of sequences that share a packed row, and redraws it when a slider or a rule changes.

    lengths  new tokens of each sequence at first
    cached   tokens that each has in the cache at first, as many
    names    of the sequences; A, B, ... if not given
    longest  the maximum of the sliders for a sequence's new and cached tokens

    The ends of the letters at both axes can be dragged: each moves its slider.
    Hovering over a cell describes it. The slider "read row" frames a query's row and describes it.
    Keyboard: Tab goes from slider to slider and to the boxes; arrow keys move a slider, Space ticks a box.
    Where no kernel runs (GitHub, an exported page), the last picture is shown.
    """

    def __init__(
        self,
        lengths: Sequence[int] = (4, 3, 2),
        cached: Sequence[int] = (0, 0, 0),
        names: Sequence[str] | None = None,
        longest: int = 20,
    ):
        self.names = list(letters(len(lengths)) if names is None else names)
        if not len(lengths) == len(cached) == len(self.names):
            raise ValueError(
                f"{len(lengths)} lengths, {len(cached)} cached lengths and {len(self.names)} names; there must be as "
                "many of each."
            )
        for count in (*lengths, *cached):
            if not 0 <= count <= longest:
                raise ValueError(
                    f"a sequence has {count} tokens; the sliders go from 0 to {longest}. `longest` makes them longer."
                )
        self.new_tokens, self.cached_tokens = (
            [_slider(words, count, longest, f"{kind} tokens of {name}") for name, count in zip(self.names, counts)]
            for words, kind, counts in (("new tokens", "new", lengths), ("cached", "cached", cached))
        )
        self.padding_tokens = _slider("padding", 0, _MOST_PADDING, "padding tokens at the end of the row")
        self.rule_boxes = [_box(reason(rule)[0]) for rule in RULES]
        for box in self.rule_boxes:
            box.value = True
        self.reading_row = _slider("read row", 0, 0, "the query whose row is framed and described")
        self.reading_row.readout = False  # it would count from 0, and the sentence says more
        self.as_text = _box("as text")
        self.sentence = widgets.HTML(layout=widgets.Layout(flex="1 1 300px"))
        self.picture = DraggablePicture(layout=widgets.Layout(width="auto", margin="4px 0"))
        self.picture.on_drag(self._drag)
        super().__init__([*self._controls(), self.picture])
        self._name_for_browsers()
        self._shown: tuple | None = None
        tokens = [*self.new_tokens, *self.cached_tokens, self.padding_tokens]
        self._moving = [*tokens, *self.rule_boxes, self.reading_row, self.as_text]
        for control in self._moving:
            control.observe(lambda _: self._show(), names="value")
        self._show()

    @property
    def rules(self) -> tuple:
        """The rules that are ticked."""
        return tuple(rule for rule, box in zip(RULES, self.rule_boxes) if box.value)

    @property
    def _tokens(self) -> tuple[list[int], list[int], int]:
        """New and cached tokens of each sequence, and the padding, at the sliders' current values."""
        new, cached = ([slider.value for slider in sliders] for sliders in (self.new_tokens, self.cached_tokens))
        return new, cached, self.padding_tokens.value

    @property
    def tags(self) -> tuple[Tags, Tags]:
        """The tags of queries and keys at the sliders' current values."""
        return row_tags(*self._tokens)

    def _drag(self, end: str, count: int) -> None:
        """Move the slider of an end of `ends_of`; a count that it doesn't have becomes the nearest that it has."""
        kind, _, index = end.partition(" ")
        sliders = {"new": self.new_tokens, "cached": self.cached_tokens, "padding": [self.padding_tokens]}[kind]
        slider = sliders[int(index or 0)]
        slider.value = min(count, slider.max)

    def _controls(self) -> list[widgets.Widget]:
        sequences = [
            line_of(_chip(name), new, cached)
            for name, new, cached in zip(self.names, self.new_tokens, self.cached_tokens)
        ]
        rules = line_of(widgets.HTML("a query may attend to a key that is:"), *self.rule_boxes, gap="0 16px")
        reading = line_of(self.reading_row, self.sentence, self.as_text)
        return [*sequences, line_of(_chip(None), self.padding_tokens), rules, reading]

    def _name_for_browsers(self) -> None:
        parts: dict[str, Sequence[widgets.Widget]] = {
            "": [self],
            "-picture": [self.picture],
            "-reading": [self.sentence],
            "-row": [self.reading_row],
            "-as-text": [self.as_text],
            "-padding": [self.padding_tokens],
            "-new": self.new_tokens,
            "-cached": self.cached_tokens,
            "-rule": self.rule_boxes,
        }
        for part, controls in parts.items():
            for control in controls:
                control.add_class(f"lessons-mask{part}")

    def _show(self) -> None:
        queries, keys = self.tags
        # May move the slider, and so come back here before the next line.
        self.reading_row.max = max(len(queries) - 1, 0)
        self.reading_row.disabled = len(queries) < 2
        state = tuple(control.value for control in self._moving)
        if state == self._shown:
            return
        self._shown = state
        mask = combine(self.rules, queries, keys)
        read = read_row(mask, queries, keys, self.reading_row.value, self.names) if len(queries) else ""
        self.sentence.value = f'<span role="status">{escape(read)}</span>'
        if self.as_text.value:
            text = mask_text(mask, queries, keys, self.names)
            self.picture.value = f'<pre style="line-height:1.25">{escape(text)}</pre>'
        else:
            self.picture.value = live_html(self._content(live=True))

    def _content(self, live: bool = False) -> Picture | str:
        """The picture, or why there is none. A live one has ends to drag; a still one shows the sentence, too."""
        queries, keys = self.tags
        if not len(queries):
            return "There are no new tokens, so there are no queries and no mask. Give a sequence a new token."
        if len(keys) > LARGEST:
            return (
                f"{len(keys)} keys, of which {len(keys) - len(queries)} are cached; at most {LARGEST} can be drawn. "
                "Move a slider back, or tick “as text”."
            )
        mask, ends = combine(self.rules, queries, keys), ends_of(*self._tokens) if live else ()
        row, hover = self.reading_row.value, mask.numel() <= _HOVERED
        return draw_mask(mask, queries, keys, self.names, row, self.rules, sentence=not live, hover=hover, ends=ends)

    def _repr_mimebundle_(self, **kwargs) -> dict[str, str]:
        return {**super()._repr_mimebundle_(**kwargs), **still_bundle(self._content())}


def _slider(description: str, value: int, most: int, tooltip: str) -> widgets.IntSlider:
    return widgets.IntSlider(
        value=value,
        min=0,
        max=most,
        description=description,
        tooltip=tooltip,
        layout=widgets.Layout(flex="1 1 220px", min_width="220px", max_width="360px"),
        style={"description_width": "96px"},
    )


def _box(description: str) -> widgets.Checkbox:
    return widgets.Checkbox(description=description, indent=False, layout=widgets.Layout(width="auto"))


def _chip(name: str | None) -> widgets.HTML:
    label, colour = ("–" if name is None else name), color_of(name)
    box = "display:inline-block;min-width:20px;padding:0 4px;border-radius:3px;text-align:center"
    return widgets.HTML(f'<b style="{box};background:{colour};color:{text_on(colour)}">{escape(label)}</b>')
