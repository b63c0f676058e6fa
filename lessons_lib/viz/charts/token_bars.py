"""The next token's probabilities under several settings, side by side: one column of bars per setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lessons_lib.viz.drawing.notes import sans_width
from lessons_lib.viz.drawing.palette import EDGE, INK, NEUTRAL, SERIES, SOFT_INK
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, mono_width, number, show_token

_ROW, _BAR, _SIZE, _HEAD = 26, 18, 13, 26
_GAP = 18
_MOST_COLUMNS = 5  # side by side; more settings go below
_MOST_NAME = 22  # characters
_OTHERS = "all others"
_ROUNDING = 1e-6  # how far below 1 a sum of float32 may be
_TEXT = 54  # room for "12.3 %" after a bar


def draw_token_bars(names: Sequence[str], columns: Mapping[str, Sequence[float]], title: str = "") -> Picture:
    """One row per token, one column of bars per setting, all on one scale. A token that can't be sampled is hatched.

    Args:
        names: texts of the likeliest tokens, likeliest first.
        columns: setting -> a probability for each name, 0 to 1; 0 if it was cut. The rest up to 1 is shown as "all
            others".

    Raises:
        ValueError: nothing to show, a column whose length differs from `names`, or values that aren't probabilities.
    """
    _check(names, columns)
    rest = {setting: max(1 - sum(values), 0.0) for setting, values in columns.items()}
    labels = [_shortened(show_token(name)) for name in names]
    has_rest = any(share > 5e-4 for share in rest.values())
    shown = {setting: [*values, rest[setting]] if has_rest else list(values) for setting, values in columns.items()}
    rows = [*labels, _OTHERS] if has_rest else labels
    d = Drawing()
    y = 16.0
    if title:
        d.text(16, 20, title, 15, bold=True)
        y = 40.0
    left = 28 + max(mono_width(label, _SIZE) for label in rows)
    settings = list(shown)
    per_line = min(len(settings), _MOST_COLUMNS)
    width = (WIDTH - 16 - left - _GAP * (per_line - 1)) / per_line
    scale = (width - _TEXT) / (max(max(values) for values in shown.values()) or 1.0)
    for start in range(0, len(settings), per_line):
        head = y + _HEAD / 2
        for row, label in enumerate(rows):
            middle = y + _HEAD + _ROW * (row + 0.5)
            d.text(
                left - 10,
                middle,
                label,
                _SIZE,
                "end",
                fill=SOFT_INK if label is _OTHERS else INK,
                mono=label is not _OTHERS,
            )
        for index, setting in enumerate(settings[start : start + per_line]):
            x = left + index * (width + _GAP)
            d.text(x, head, _fitted(setting, width), _SIZE, bold=True)
            _column(d, x, y + _HEAD, shown[setting], rows, scale, setting)
        y += _HEAD + _ROW * len(rows) + 14
    d.height = y
    return d.picture(_describe(names, shown, title))


def _column(
    d: Drawing, x: float, y: float, values: Sequence[float], rows: Sequence[str], scale: float, setting: str
) -> None:
    for row, (value, label) in enumerate(zip(values, rows)):
        top = y + row * _ROW + (_ROW - _BAR) / 2
        is_cut = value == 0 or (label is _OTHERS and value <= _ROUNDING)
        length = 26 if is_cut else max(value * scale, 1)
        told = "never" if is_cut else _percent(value)
        d.rect(
            x,
            top,
            length,
            _BAR,
            "none" if is_cut else NEUTRAL if label is _OTHERS else SERIES[0],
            title=f"{setting}: {label} {told}",
        )
        if is_cut:
            d.hatch(x, top, length, _BAR)
        d.text(x + length + 6, top + _BAR / 2, told, 12, fill=SOFT_INK if is_cut else INK)
    d.lines(f"M{number(x)} {number(y)}V{number(y + _ROW * len(rows))}", EDGE)


def _percent(value: float) -> str:
    percent = 100 * value
    return "< 0.1 %" if percent < 0.05 else f"{percent:.1f} %" if percent < 9.95 else f"{percent:.0f} %"


def _shortened(text: str) -> str:
    return text if len(text) <= _MOST_NAME else text[: _MOST_NAME - 1] + "…"


def _fitted(text: str, width: float) -> str:
    most = max(int(width / sans_width("x", _SIZE)), 2)
    return text if len(text) <= most else text[: most - 1] + "…"


def _check(names: Sequence[str], columns: Mapping[str, Sequence[float]]) -> None:
    if not names or not columns:
        raise ValueError(f"{len(names)} names and {len(columns)} columns; give at least one of each.")
    for setting, values in columns.items():
        if len(values) != len(names):
            raise ValueError(f"column {setting!r} has {len(values)} values for {len(names)} names; give one for each.")
        if not all(0 <= value <= 1 + 1e-6 for value in values) or sum(values) > 1 + 1e-4:
            raise ValueError(
                f"column {setting!r} has values {list(values)}; probabilities are 0 to 1 and sum to at most 1."
            )


def _describe(names: Sequence[str], columns: Mapping[str, Sequence[float]], title: str) -> str:
    parts = []
    for setting, values in columns.items():
        told = [f"{show_token(name)} {_percent(value)}" for name, value in zip(names, values) if value]
        cut = sum(value == 0 for value in values[: len(names)])
        others = f", all others {_percent(values[-1])}" if len(values) > len(names) and values[-1] > _ROUNDING else ""
        parts.append(
            f"{setting}: "
            f"{', '.join(told) or 'none of these'}{others}{f'; {cut} of {len(names)} are never drawn' if cut else ''}."
        )
    return " ".join([f"{title or 'Probabilities of the next token'}.", *parts])
