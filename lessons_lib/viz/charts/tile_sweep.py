"""The time of a kernel with each combination of tiles that was tried."""

from collections.abc import Sequence

from lessons_lib.viz.charts.figure import described, styled, write_note, write_title
from lessons_lib.viz.charts.heat_table import HeatCell, heat_table
from lessons_lib.viz.drawing.picture import Picture

_NAMES = ("rows", "keys", "warps", "stages")
_SLOWEST = 2.0  # times the best; from here on, a cell has the palest color
_DARKEST = 0.8


@styled
def draw_sweep(tiles: Sequence[dict], note: str = "", title: str = "", chosen: dict | None = None) -> Picture:
    """A table of times: rows and keys of a tile down, warps and stages across; the darker, the faster.

    tiles   "rows", "keys", "warps", "stages" and microseconds "us" of each combination; None where it can't run
    chosen  the first four of the combination in use, which is marked
    """
    times = {tuple(tile[name] for name in _NAMES): tile["us"] for tile in tiles}
    ran = {tile: us for tile, us in times.items() if us is not None}
    best = min(ran, key=ran.__getitem__)
    used = tuple(chosen[name] for name in _NAMES) if chosen else None

    def cell(tile: tuple) -> HeatCell:
        if (us := times.get(tile)) is None:
            return HeatCell("–", None, hatched=True) if tile in times else HeatCell("", None)
        heat = 1 - (us / ran[best] - 1) / (_SLOWEST - 1)
        return HeatCell(_us(us) + "\nchosen" * (tile == used), _DARKEST * max(heat, 0.0), framed=tile == best)

    down, across = sorted({tile[:2] for tile in times}), sorted({tile[2:] for tile in times})
    legend = [
        (HeatCell("", _DARKEST, framed=True), "the fastest"),
        (HeatCell("", _DARKEST / 2), f"{(1 + _SLOWEST) / 2:g} times as long"),
        (HeatCell("", 0.0), f"{_SLOWEST:g} times and more"),
    ]
    if len(ran) < len(times):
        legend.append((HeatCell("", None, hatched=True), "does not fit, or does not compile"))
    fig = heat_table(
        [_words(right, _NAMES[2:]).replace(", ", "\n") for right in across],
        [_words(left) for left in down],
        [[cell((*left, *right)) for right in across] for left in down],
        "times in µs",
        legend,
    )
    title = title or f"{len(tiles)} combinations of tiles"
    write_title(fig, f"{title}: the fastest takes {_us(ran[best])} µs, the slowest {_us(max(ran.values()))} µs")
    write_note(fig, note)
    choice = f"Chosen: {_words(used)}, {_us(ran[used])} µs." if used else ""
    fastest = f"The fastest of {len(times)} has {_words(best)}: {_us(ran[best])} µs."
    slowest = f"{len(times) - len(ran)} don't fit; the slowest of the others takes {_us(max(ran.values()))} µs."
    return Picture.from_figure(fig, described(title, [fastest, choice, slowest], note))


def _words(values: Sequence[int], names: Sequence[str] = _NAMES) -> str:
    return ", ".join(f"{value} {name}" for value, name in zip(values, names))


def _us(us: float) -> str:
    return f"{us:,.1f}" if us < 1000 else f"{us:,.0f}"
