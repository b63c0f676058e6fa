"""A mask to play with: each sequence's new and cached tokens, and the rules that apply."""

from collections.abc import Sequence
from html import escape

import ipywidgets as widgets
import torch

from lessons_lib.attention.masks import PADDING, RULES, Tags, combine, tag_tokens
from lessons_lib.recording.mask_text import letters, read_row, reason
from lessons_lib.viz.drawing.palette import color_of, text_on
from lessons_lib.viz.drawing.picture import Picture, live_html, still_bundle
from lessons_lib.viz.masks.grid import LARGEST, draw_mask

_LONGEST, _MOST_PADDING = 20, 8
_MOST_HOVERS = 1000  # cells; with more, their hover texts would slow the sliders down


def row_tags(lengths: Sequence[int], cached: Sequence[int], padding: int = 0) -> tuple[Tags, Tags]:
    """The tags of one pass. The queries are the new tokens of every sequence, then the padding; the keys are the cached
    tokens of every sequence, then those same queries."""
    at_the_end = Tags(torch.full((padding,), PADDING), torch.arange(padding))
    queries = tag_tokens(lengths, starts=cached).followed_by(at_the_end)
    return queries, tag_tokens(cached).followed_by(queries)


class MaskExplorer(widgets.VBox):
    """Shows the mask of sequences that share a packed row, and redraws it when a slider or a rule changes.

    lengths  new tokens of each sequence at first
    cached   tokens that each has in the cache at first, as many
    Each slider goes to 20.
    Hovering over a cell of a small mask describes it. The slider "read row" frames a query's row and describes it.
    Keyboard: Tab goes from slider to slider and to the boxes; arrow keys move a slider, Space ticks a box.
    Where no kernel runs (GitHub, an exported page), the last picture is shown.
    """

    def __init__(self, lengths: Sequence[int] = (4, 3, 2), cached: Sequence[int] = (0, 0, 0)):
        self.names = letters(len(lengths))
        self.new_tokens = [
            _slider("new tokens", count, _LONGEST, f"new tokens of {name}") for name, count in zip(self.names, lengths)
        ]
        self.cached_tokens = [
            _slider("cached", count, _LONGEST, f"cached tokens of {name}") for name, count in zip(self.names, cached)
        ]
        self.padding_tokens = _slider("padding", 0, _MOST_PADDING, "padding tokens at the end of the row")
        self.rule_boxes = [_box(reason(rule)[0]) for rule in RULES]
        for box in self.rule_boxes:
            box.value = True
        self.reading_row = _slider("read row", 0, 0, "the query whose row is framed and described")
        self.reading_row.readout = False  # it would count from 0, and the sentence says more
        self.sentence = widgets.HTML(layout=widgets.Layout(flex="1 1 300px"))
        self.picture = widgets.HTML(layout=widgets.Layout(width="auto", margin="4px 0"))
        super().__init__([*self._controls(), self.picture])
        self._name_for_browsers()
        self._shown: tuple | None = None
        sliders = [*self.new_tokens, *self.cached_tokens, self.padding_tokens]
        self._moving = [*sliders, *self.rule_boxes, self.reading_row]
        for control in self._moving:
            control.observe(lambda _: self._show(), names="value")
        self._show()

    @property
    def rules(self) -> tuple:
        """The rules that are ticked."""
        return tuple(rule for rule, box in zip(RULES, self.rule_boxes) if box.value)

    @property
    def tags(self) -> tuple[Tags, Tags]:
        """The tags of queries and keys at the sliders' current values."""
        new, cached = ([slider.value for slider in sliders] for sliders in (self.new_tokens, self.cached_tokens))
        return row_tags(new, cached, self.padding_tokens.value)

    def _controls(self) -> list[widgets.Widget]:
        line = widgets.Layout(align_items="center", max_width="900px", flex_flow="row wrap")
        sequences = [
            widgets.HBox([_chip(name), new, cached], layout=line)
            for name, new, cached in zip(self.names, self.new_tokens, self.cached_tokens)
        ]
        padding = widgets.HBox([_chip(None), self.padding_tokens], layout=line)
        may = widgets.HTML("a query may attend to a key that is:")
        wrapped = widgets.Layout(align_items="center", max_width="900px", flex_flow="row wrap", grid_gap="0 16px")
        rules = widgets.HBox([may, *self.rule_boxes], layout=wrapped)
        reading = widgets.HBox([self.reading_row, self.sentence], layout=line)
        return [*sequences, padding, rules, reading]

    def _name_for_browsers(self) -> None:
        self.add_class("lessons-mask")
        self.picture.add_class("lessons-mask-picture")
        self.sentence.add_class("lessons-mask-reading")
        self.reading_row.add_class("lessons-mask-row")
        self.padding_tokens.add_class("lessons-mask-padding")
        for kind, controls in (("new", self.new_tokens), ("cached", self.cached_tokens), ("rule", self.rule_boxes)):
            for control in controls:
                control.add_class(f"lessons-mask-{kind}")

    def _show(self) -> None:
        queries, keys = self.tags
        # This may move the slider, and so come back here before the next line.
        self.reading_row.max = max(len(queries) - 1, 0)
        self.reading_row.disabled = len(queries) < 2
        state = tuple(control.value for control in self._moving)
        if state == self._shown:
            return
        self._shown = state
        mask = combine(self.rules, queries, keys)
        read = read_row(mask, queries, keys, self.reading_row.value, self.names) if len(queries) else ""
        self.sentence.value = f'<span role="status">{escape(read)}</span>'
        self.picture.value = live_html(self._content(live=True))

    def _content(self, live: bool = False) -> Picture | str:
        """The picture, or a sentence saying why there is none. A live one has its sentence next to the slider."""
        queries, keys = self.tags
        if not len(queries):
            return "There are no new tokens, so there are no queries and no mask. Give a sequence a new token."
        if len(keys) > LARGEST:
            return (
                f"{len(keys)} keys, of which {len(keys) - len(queries)} are cached; at most {LARGEST} can be drawn. "
                "Move a slider back."
            )
        mask = combine(self.rules, queries, keys)
        hover = not live or mask.numel() <= _MOST_HOVERS
        row = self.reading_row.value
        return draw_mask(mask, queries, keys, self.names, row, self.rules, sentence=not live, hover=hover)

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
    style = (
        "display:inline-block;min-width:20px;padding:0 "
        f"4px;border-radius:3px;text-align:center;background:{colour};color:{text_on(colour)}"
    )
    return widgets.HTML(f'<b style="{style}">{escape(label)}</b>')
