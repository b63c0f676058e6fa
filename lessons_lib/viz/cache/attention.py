"""Attention of one head over a few tokens: every number, and which of them the newest token needs."""

from collections.abc import Sequence

from lessons_lib.viz.drawing.palette import EDGE, NEUTRAL, PAPER, SERIES, SOFT_INK
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, show_token

_NEW, _CACHED, _PAST = SERIES[3], NEUTRAL, PAPER
_CELL, _ROW, _LEFT, _TOP = 42, 30, 72, 70

Matrix = Sequence[Sequence[float]]


def draw_attention(names: Sequence[str], q: Matrix, k: Matrix, v: Matrix, weights: Matrix, output: Matrix) -> Picture:
    """One head: q times k transposed, softmax, times v. The last token is the newest; the others are in the cache.

    q, k, v, output: [tokens, head size]; weights: [tokens, tokens], after the softmax.
    """
    count, dims = len(names), len(q[0])
    shown = [show_token(name.strip()) for name in names]
    widths = [dims, count, count, dims, dims]
    gap = (WIDTH - _LEFT - 16 - _CELL * sum(widths)) / (len(widths) - 1)
    starts = [_LEFT + _CELL * sum(widths[:n]) + gap * n for n in range(len(widths))]
    d = Drawing(height=_TOP + count * _ROW + 48)
    middle = _TOP + count * _ROW / 2
    heads = ("queries q", "keys k, transposed", "attention weights", "values v", "output")
    for x, head in zip(starts, heads):
        d.text(x, 22, head, 13, bold=True)
    for x, sign in zip(starts[1:], ("×", "→", "×", "=")):
        d.text(x - gap / 2, middle, sign, 18, "middle", bold=True)
    d.text(starts[2] - gap / 2, middle + 18, "softmax", 11, "middle", fill=SOFT_INK)

    rows_of_past = [_PAST] * (count - 1) + [_NEW]
    cached_rows = [_CACHED] * (count - 1) + [_NEW]
    for start, matrix, fills in (
        (starts[0], q, rows_of_past),
        (starts[3], v, cached_rows),
        (starts[4], output, rows_of_past),
    ):
        for row, values in enumerate(matrix):
            for column, value in enumerate(values):
                _cell(d, start + column * _CELL, _TOP + row * _ROW, f"{float(value):.1f}", fills[row])
    for column, values in enumerate(k):
        for row, value in enumerate(values):
            y = middle + (row - dims / 2) * _ROW
            _cell(d, starts[1] + column * _CELL, y, f"{float(value):.1f}", cached_rows[column])
    for row, values in enumerate(weights):
        for column, value in enumerate(values):
            text = f"{float(value):.2f}" if column <= row else ""
            _cell(d, starts[2] + column * _CELL, _TOP + row * _ROW, text, rows_of_past[row])
    for index, name in enumerate(shown):
        d.text(_LEFT - 8, _TOP + (index + 0.5) * _ROW, name, 12, "end", mono=True)
        for start, y in ((starts[1], middle - dims * _ROW / 2 - 12), (starts[2], _TOP - 12)):
            d.text(start + (index + 0.5) * _CELL, y, name, min(12, 60 / len(name)), "middle", fill=SOFT_INK, mono=True)
    looks = {
        "computed for the newest token": _NEW,
        "computed before and needed again": _CACHED,
        "computed before, not needed again": _PAST,
    }
    signs = [(words, lambda x, y, fill=fill: d.rect(x, y, 18, 16, fill, EDGE)) for words, fill in looks.items()]
    d.legend(_LEFT, d.height - 17, signs)
    rows = "; ".join(
        f"{name} {', '.join(f'{float(value):.2f}' for value in values[: row + 1])}"
        for row, (name, values) in enumerate(zip(shown, weights))
    )
    return d.picture(
        f"Attention of one head over {count} tokens: queries times keys, softmax, times values. Attention weights "
        f"of each token for itself and the tokens before it: {rows}. The newest token needs its own query and the keys "
        "and values of all tokens, but no earlier query, weight or output."
    )


def _cell(d: Drawing, x: float, y: float, text: str, fill: str) -> None:
    d.rect(x, y, _CELL - 2, _ROW - 2, fill, EDGE)
    d.text(x + _CELL / 2 - 1, y + _ROW / 2 - 1, text, 12, "middle", mono=True, on=fill)
