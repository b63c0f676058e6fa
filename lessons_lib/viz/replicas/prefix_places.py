"""Which conversation is in the cache of which replica, for several routing policies."""

from collections.abc import Mapping, Sequence

from lessons_lib.measuring.prefix_places import PrefixPlaces
from lessons_lib.viz.drawing.palette import EDGE, INK, PAPER, SOFT_INK, color_of, tint
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing

_LEFT, _TOP, _ROW, _GAP, _SPACE = 46, 78, 30, 4, 26


def draw_prefix_places(places: Sequence[PrefixPlaces], blocks: Mapping[str, int]) -> Picture:
    """A grid for each policy, filled as far as a replica's cache holds a conversation; `blocks`: its full blocks."""
    d = Drawing()
    num_replicas = len(next(iter(places[0].cached.values())))
    panel = (WIDTH - _LEFT - 16 - _SPACE * (len(places) - 1)) / len(places)
    width = panel / num_replicas - _GAP
    for row, name in enumerate(blocks):
        d.request_chip(16, _TOP + row * (_ROW + _GAP) + 5, name)
    for index, each in enumerate(places):
        left = _LEFT + index * (panel + _SPACE)
        d.text(left, 20, each.policy, 15, bold=True)
        d.text(left, 40, f"{each.found:.0%} of the prompt tokens found", 13, fill=SOFT_INK)
        for replica in range(num_replicas):
            x = left + replica * (width + _GAP)
            d.text(x + width / 2, _TOP - 14, f"replica {replica}", 12, "middle", fill=SOFT_INK)
            for row, (name, total) in enumerate(blocks.items()):
                _cell(d, x, _TOP + row * (_ROW + _GAP), width, name, each.cached[name][replica], total)
    d.height = _TOP + len(blocks) * (_ROW + _GAP) + 26
    words = "Filled: the blocks of a conversation that this cache holds at the end. What is in both takes memory twice."
    d.text(_LEFT, d.height - 14, words, 12, fill=SOFT_INK)
    told = []
    for each in places:
        held = "; ".join(f"{name} {' and '.join(map(str, counts))}" for name, counts in each.cached.items())
        told.append(f"{each.policy}, {each.found:.0%} of the prompt tokens found: {held}.")
    return d.picture(f"Blocks of each conversation in the cache of each replica. {' '.join(told)}")


def _cell(d: Drawing, x: float, y: float, width: float, name: str, count: int, total: int) -> None:
    filled = width * count / total if total else 0.0
    d.rect(x, y, width, _ROW, tint(color_of(name)) if count else PAPER, EDGE)
    if filled:
        d.rect(x, y, filled, _ROW, color_of(name))
    is_in_filled = filled > width * 0.45
    middle = x + filled / 2 if is_in_filled else x + (filled + width) / 2  # the text doesn't cross the edge
    ink, on = INK if count else SOFT_INK, color_of(name) if is_in_filled else None
    d.text(middle, y + _ROW / 2, f"{count}/{total}", 12, "middle", bold=bool(count), fill=ink, on=on)
