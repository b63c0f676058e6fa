"""The rows of a slot cache: the current request's columns, the columns left by earlier requests, and the empty ones."""

from dataclasses import dataclass

from lessons_lib.recording.trace import Trace
from lessons_lib.recording.words import check_index
from lessons_lib.viz.drawing.palette import EDGE, INK, PAPER, SOFT_INK, color_of, tint
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, share_text

_LEFT, _RIGHT, _ROW, _GAP = 72, 16, 30, 8


@dataclass(frozen=True)
class SlotRow:
    """One row of the cache after a step.

    request    the request in it, or None
    used       columns with its keys, from column 0
    left_over  (request, end column) of earlier requests whose keys are still beyond those columns, nearest first
    """

    request: str | None
    used: int
    left_over: tuple[tuple[str, int], ...]


def slot_rows(trace: Trace, i: int) -> list[SlotRow]:
    """The rows after step index i of a continuous run: a request's useful tokens fill its row from column 0 on."""
    check_index("step", i, len(trace.steps))
    stays: list[dict[str, int]] = [{} for _ in range(trace.slots)]  # a slot's requests in order -> columns written
    for step in trace.steps[: i + 1]:
        for slot, row in enumerate(step.rows):
            if row.request is not None:
                stays[slot][row.request] = stays[slot].get(row.request, 0) + row.useful
    return [_row(list(stay.items()), now.request) for stay, now in zip(stays, trace.steps[i].rows)]


def _row(stay: list[tuple[str, int]], request: str | None) -> SlotRow:
    used = stay.pop()[1] if request is not None else 0
    left_over, reached = [], used
    for name, columns in reversed(stay):
        if columns > reached:
            left_over.append((name, columns))
            reached = columns
    return SlotRow(request, used, tuple(left_over))


def draw_slot_rows(trace: Trace, i: int, max_seq_len: int) -> Picture:
    """The cache after step index i: one row per batch slot, one column per token, `max_seq_len` columns wide."""
    rows = slot_rows(trace, i)
    d = Drawing()
    width = (WIDTH - _LEFT - _RIGHT) / max_seq_len
    used, reserved = sum(row.used for row in rows), len(rows) * max_seq_len
    in_use = f"{used:,} of {reserved:,} columns in use, {share_text(reserved - used, reserved)} not"
    title = f"KV cache after step {i + 1} of {len(trace.steps)}: {in_use}"
    d.text(16, 20, title, 15, bold=True)
    y = 42.0
    for slot, row in enumerate(rows):
        d.text(_LEFT - 10, y + _ROW / 2, f"slot {slot}", 12, "end", fill=SOFT_INK)
        d.rect(_LEFT, y, width * max_seq_len, _ROW, "none", EDGE, dashed=True)
        start = row.used
        for name, end in row.left_over:
            _span(d, start, end, y, width, name, stale=True)
            start = end
        if row.used:
            _span(d, 0, row.used, y, width, row.request)
            d.lines(f"M{_LEFT + row.used * width:.2f} {y - 3}V{y + _ROW + 3}", INK, 2)
        y += _ROW + _GAP
    for column in range(0, max_seq_len + 1, 32):
        d.text(_LEFT + column * width, y + 4, str(column), 11, "middle", fill=SOFT_INK)
    d.text(_LEFT - 10, y + 4, "column", 11, "end", fill=SOFT_INK)
    d.height = _signs(d, y + 20)
    told = [
        f"Slot {slot}: {f'{row.used} columns of {row.request}' if row.request is not None else 'no request'}"
        + "".join(f", then what {name} left up to column {end - 1}" for name, end in row.left_over)
        for slot, row in enumerate(rows)
    ]
    return d.picture(". ".join([title, *told]))


def _span(d: Drawing, start: int, end: int, y: float, width: float, name: str, stale: bool = False) -> None:
    x, size = _LEFT + start * width, (end - start) * width
    fill = tint(color_of(name)) if stale else color_of(name)
    d.rect(x, y, size, _ROW, fill)
    if stale:
        d.hatch(x, y, size, _ROW)
    if size > 8 * len(name) + 6:
        d.text(x + size / 2, y + _ROW / 2, name, 13, "middle", bold=True, on=fill)


def _signs(d: Drawing, y: float) -> float:
    d.rule(y)

    def own(x: float, y: float) -> None:
        d.rect(x, y, 18, 16, color_of("A"))
        d.lines(f"M{x + 18} {y - 2}V{y + 18}", INK, 2)

    left_over = dict(hatched=1.0, pale=tint(color_of("D")))
    signs = [
        ("its own keys: visible", own),
        ("left by an earlier request: hidden by the mask", lambda x, y: d.cell(x, y, 18, 16, PAPER, **left_over)),
        ("reserved, never written", lambda x, y: d.rect(x + 0.5, y + 0.5, 17, 15, "none", EDGE, dashed=True)),
    ]
    d.legend(16, y + 21, signs)
    return y + 42
