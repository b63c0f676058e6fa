"""The time of a kernel with each combination of tiles that was tried."""

from __future__ import annotations

from collections.abc import Sequence

from lessons_lib.viz.drawing.notes import write_note
from lessons_lib.viz.drawing.palette import SOFT_INK
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import Drawing
from lessons_lib.viz.tables.heat_table import HeatCell, draw_heat_cell, draw_heat_table

_DOWN, _ACROSS = ("rows", "keys"), ("warps", "stages")
_LEFT = 210
_SLOWEST = 2.0  # times the best; from here on, a cell has the palest color
_DARKEST = 0.8


def draw_sweep(tiles: Sequence[dict], note: str = "", title: str = "", chosen: dict | None = None) -> Picture:
    """A table of times: a tile's rows and keys down, warps and stages across; the darker, the faster. The fastest is
    framed, and the chosen one is marked.

    Args:
        tiles: "rows", "keys", "warps", "stages" and microseconds "us" of each combination; None where it can't run.
        note: the source of the figures, written under the picture; for recorded ones, their provenance.
        chosen: "rows", "keys", "warps" and "stages" of the combination in use.

    Raises:
        ValueError: no combination has a time, one is listed twice, or the chosen one has no time.
    """
    times = {tuple(tile[name] for name in _DOWN + _ACROSS): tile["us"] for tile in tiles}
    if len(times) != len(tiles):
        raise ValueError(f"{len(tiles)} combinations, of which only {len(times)} differ; list each only once.")
    ran = {tile: us for tile, us in times.items() if us is not None}
    if not ran:
        raise ValueError(f"none of {len(tiles)} combinations has a time; at least one is needed.")
    best = min(ran, key=ran.get)
    used = tuple(chosen[name] for name in _DOWN + _ACROSS) if chosen else None
    if used and used not in ran:
        raise ValueError(
            f"the chosen combination, {_words(used, _DOWN + _ACROSS)}, has no time; it must be one of those that ran."
        )
    down, across = sorted({tile[:2] for tile in times}), sorted({tile[2:] for tile in times})
    cells = [[_cell((*left, *right), times, ran[best], best, used) for right in across] for left in down]
    title = title or f"{len(tiles)} combinations of tiles"
    d = Drawing()
    d.text(
        16,
        20,
        f"{title}: the fastest takes {_us(ran[best])} µs, the slowest {_us(max(ran.values()))} µs",
        15,
        bold=True,
    )
    names = [_words(right, _ACROSS) for right in across], [_words(left, _DOWN) for left in down]
    y = draw_heat_table(d, 44, _LEFT, *names, cells, "times in µs")
    d.height = write_note(d, _legend(d, y + 6, len(ran) < len(times)), note) + 10
    return d.picture(_describe(title, times, ran, best, used, note))


def _cell(
    tile: tuple[int, ...], times: dict, least: float, best: tuple[int, ...], used: tuple[int, ...] | None
) -> HeatCell:
    words = _words(tile, _DOWN + _ACROSS)
    if tile not in times:
        return HeatCell("", None, f"{words}: not tried")
    us = times[tile]
    if us is None:
        return HeatCell("–", None, f"{words}: does not fit, or does not compile", hatched=True)
    heat = 1 - (us / least - 1) / (_SLOWEST - 1)
    title = f"{words}: {_us(us)} µs, {us / least:.2f} times the fastest" + (", chosen" if tile == used else "")
    return HeatCell(_us(us), _DARKEST * max(heat, 0.0), title, "chosen" if tile == used else "", framed=tile == best)


def _words(values: Sequence[int], names: Sequence[str]) -> str:
    return ", ".join(f"{value} {name}" for value, name in zip(values, names))


def _us(us: float) -> str:
    return f"{us:,.1f}" if us < 1000 else f"{us:,.0f}"


def _legend(d: Drawing, y: float, has_missing: bool) -> float:
    x = 16.0
    signs = [
        (_DARKEST, False, True, "the fastest"),
        (_DARKEST / 2, False, False, f"{1 + (_SLOWEST - 1) / 2:g} times as long"),
        (0.0, False, False, f"{_SLOWEST:g} times and more"),
    ]
    signs += [(None, True, False, "does not fit, or does not compile")] if has_missing else []
    for heat, hatched, framed, words in signs:
        draw_heat_cell(d, x, y, 22, 18, HeatCell("", heat, "", hatched=hatched, framed=framed))
        d.text(x + 30, y + 9, words, 12, fill=SOFT_INK)
        x += 56 + 6.2 * len(words)
    return y + 28


def _describe(
    title: str, times: dict, ran: dict, best: tuple[int, ...], used: tuple[int, ...] | None, note: str
) -> str:
    order = _DOWN + _ACROSS
    told = [
        f"{_words(tile, order)}: {f'{_us(us)} µs' if us is not None else 'does not fit'}." for tile, us in times.items()
    ]
    choice = [f"Chosen: {_words(used, order)}, {_us(ran[used])} µs."] if used else []
    return " ".join(
        [f"{title}. The fastest has {_words(best, order)}: {_us(ran[best])} µs.", *choice, *told, note]
    ).strip()
