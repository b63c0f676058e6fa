"""What each sequence did when: one row per sequence, simulated time from left to right.

A sequence has its color: pale and hatched while it waits, with a dark frame in prefill, full in decode, pale with a
dark line in a stall.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from lessons_lib.measuring.simulator import Simulation
from lessons_lib.recording.words import count, listed
from lessons_lib.viz.charts.time_axis import round_ticks, say_seconds, tick_words, unit_of
from lessons_lib.viz.drawing.palette import INK, NEUTRAL, SOFT_INK, color_of, tint
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, flow, number, sans_width
from lessons_lib.viz.timelines.gantt_rows import DECODE, HELD, PREFILL, STALLED, WAITING, Row, Span, gantt_rows, joined
from lessons_lib.viz.timelines.samples import sample_colors

_MARGIN, _GUTTER = 16, 26
_TALLEST, _HIGHEST_ROW, _LOWEST_ROW = 520, 20, 9
_NARROW = 7  # pixels; narrower chunks of a prefill share a frame
_GRID = "#E6E6E6"
_LABEL, _GAP = 28, 3  # room for a name, and between two rows
_SIGNS = {
    WAITING: "waits",
    PREFILL: "prefill",
    DECODE: "decode",
    HELD: "no token: no budget left",
    STALLED: "stalled: no block is free",
}


@dataclass(frozen=True)
class _Frame:
    """Where the rows of one run are."""

    left: float
    right: float
    row: float
    seconds: float

    def x(self, time: float) -> float:
        share = time / self.seconds if self.seconds else 0.0
        return self.left + _LABEL + share * (self.right - self.left - _LABEL)


def draw_gantts(runs: Mapping[str, Simulation]) -> Picture:
    """Several runs on one time axis, each with its name and its mean latency. Three or more are in two columns.

    runs  name -> run, simulated with `keep_steps=True`
    """
    charts = {name: gantt_rows(run) for name, run in runs.items()}
    ends = [max([run.seconds, *(step.start + step.seconds for step in run.steps[-1:])]) for run in runs.values()]
    seconds = max(ends, default=0.0)
    columns = 2 if len(runs) > 2 else 1
    width = (WIDTH - 2 * _MARGIN - (columns - 1) * _GUTTER) / columns
    most = max(map(len, charts.values()), default=0) * -(-len(runs) // columns)
    row = min(max(_TALLEST / max(most, 1) - _GAP, _LOWEST_ROW), _HIGHEST_ROW)  # as high as fits
    d = Drawing()
    y = 14.0
    names = list(charts)
    for first in range(0, len(names), columns):
        bottoms = []
        for column, name in enumerate(names[first : first + columns]):
            rows, left = charts[name], _MARGIN + column * (width + _GUTTER)
            frame = _Frame(left, left + width, row, seconds)
            d.text(left, y + 6, _fitting(_heading(name, rows), width, 13.5), 13.5, bold=True)
            bottoms.append(_block(d, rows, frame, y + 22))
        y = max(bottoms) + 10
    d.height = _legend(d, charts, y - 4)
    told = [f"{_heading(name, rows)}. {say_order(rows)}" for name, rows in charts.items()]
    return d.picture(" ".join(["Gantt charts on one time axis.", *told]))


def _heading(name: str, rows: list[Row]) -> str:
    """The name, and the mean latency, or how many have finished if not all have."""
    done = [row for row in rows if row.finished is not None]
    if not rows or len(done) < len(rows):
        return f"{name}: {len(done)} of {len(rows)} finished"
    return f"{name}: mean latency {say_seconds(sum(row.finished - row.arrival for row in done) / len(done))}"


def _fitting(text: str, width: float, size: float) -> str:
    """The text, without its middle if it doesn't fit: names often differ at their ends."""
    most = max(int(width / sans_width("x", size)), 3)
    return text if len(text) <= most else f"{text[: most // 2]}…{text[len(text) - (most - 1) // 2 :]}"


def _block(d: Drawing, rows: list[Row], frame: _Frame, y: float) -> float:
    """Rows and axis of one run. Returns the y below them."""
    if not rows:
        d.text(frame.left, y + 10, "No sequences: nothing has run yet.", fill=SOFT_INK)
        return y + 28
    bottom = y + len(rows) * (frame.row + _GAP)
    _axis(d, frame, y - 2, bottom)
    for row in rows:
        _label(d, row, frame, y)
        _bar(d, row, frame, y)
        y += frame.row + _GAP
    return bottom + 24


def _axis(d: Drawing, frame: _Frame, top: float, bottom: float) -> None:
    unit, per_second = unit_of(frame.seconds)
    ticks = round_ticks(frame.seconds, int((frame.right - frame.x(0)) / 70))
    d.lines("".join(f"M{number(frame.x(tick))} {number(top)}V{number(bottom)}" for tick in ticks), _GRID)
    for tick in ticks:
        is_last = tick == ticks[-1] and len(ticks) > 1
        words = f"{tick_words(tick, per_second)} {unit}" if is_last else tick_words(tick, per_second)
        x = min(frame.x(tick), frame.right - sans_width(words, 11) / 2)
        d.text(x, bottom + 10, words, 11, "middle", fill=SOFT_INK)


def _label(d: Drawing, row: Row, frame: _Frame, y: float) -> None:
    room, colour, middle = _LABEL - 6, color_of(row.name), y + frame.row / 2
    d.rect(frame.left, y, room, frame.row, colour, radius=2, title=row.name)
    size = min(12.0, frame.row)
    name = _fitting(row.name, room - 4, 1.1 * size)
    d.text(frame.left + room / 2, middle, name, size, "middle", bold=True, on=colour)


def _bar(d: Drawing, row: Row, frame: _Frame, y: float) -> None:
    """What one sequence did."""
    narrow = _NARROW / (frame.right - frame.x(0)) * frame.seconds
    chunks = all(span.end - span.start >= narrow for span in row.spans if span.state == PREFILL)
    for span in row.spans if chunks else joined(row.spans):
        _span(d, row.name, span, frame.x(span.start), frame.x(span.end), y, frame.row)
    if row.finished is not None:
        x = frame.x(row.finished)
        d.rect(x - 1.5, y - 1, 3, frame.row + 2, INK, title=f"{row.name}: finished")


def _span(d: Drawing, name: str, span: Span, start: float, end: float, y: float, height: float) -> None:
    title, pale, width = f"{name}: {say_span(span)}", tint(color_of(name)), end - start
    if span.state in (PREFILL, DECODE):
        d.cell(start, y, width, height, color_of(name), title=title, framed=span.state == PREFILL)
        return
    d.cell(start, y, width, height, pale, title=title, hatched=float(span.state == WAITING), pale=pale)
    if span.state == STALLED:
        d.lines(f"M{number(start)} {number(y + height / 2)}H{number(end)}", INK, 3)


def _legend(d: Drawing, charts: Mapping[str, list[Row]], y: float) -> float:
    """The legend of the signs that occur. Returns the height of the finished sheet."""
    seen = {span.state for rows in charts.values() for row in rows for span in row.spans}
    states = [state for state in _SIGNS if state in seen or state in (WAITING, PREFILL, DECODE)]
    d.rule(y)
    y += 10
    words = [*(_SIGNS[state] for state in states), "finished"]
    samples = sample_colors(row.name for rows in charts.values() for row in rows)
    fills = {state: [NEUTRAL] for state in states} | {PREFILL: samples, DECODE: samples[:1], None: []}
    signs = [*states, None]  # None: finished
    widths = [24 + 28 * max(len(fills[state]), 1) + sans_width(text, 12) for state, text in zip(signs, words)]
    places = flow(widths, WIDTH - 2 * _MARGIN)
    for state, text, (line, x) in zip(signs, words, places):
        left, top = _MARGIN + x, y + 24 * line
        if state is None:
            d.rect(left + 10, top, 3, 18, INK)
        for index, fill in enumerate(fills[state]):
            left = _MARGIN + x + 28 * index
            d.cell(left, top, 24, 18, fill, framed=state == PREFILL, hatched=state == WAITING, pale=tint(NEUTRAL))
        if state in (HELD, STALLED):
            d.rect(left, top, 24, 18, tint(NEUTRAL))
        if state == STALLED:
            d.lines(f"M{number(left)} {number(top + 9)}h24", INK, 3)
        d.text(left + 30, top + 9, text, 12, fill=SOFT_INK)
    y += 24 * (places[-1][0] + 1)
    return y + 6


def say_order(rows: list[Row]) -> str:
    """The order in which the requests finished."""
    order = sorted((row for row in rows if row.finished is not None), key=lambda row: row.finished)
    rest = [row.name for row in rows if row.finished is None]
    missing = f" Not finished: {listed(rest, 20)}." if rest else ""
    return f"Finished in this order: {listed([row.name for row in order], 20)}.{missing}"


def say_span(span: Span) -> str:
    """What a stretch of time was spent on."""
    steps = f" in {count(span.steps, 'step')}" if span.steps else ""
    tokens = f" of {count(span.tokens, 'token')}" if span.tokens else ""
    what = "running without a token" if span.state == HELD else span.state
    return f"{what}{tokens}{steps}, {say_seconds(span.start)} to {say_seconds(span.end)}"
