"""A request across the processes: one lane each, time from left to right, an arrow for each message between them."""

from __future__ import annotations

from collections.abc import Sequence

from lessons_lib.recording.request_path import Message, Work
from lessons_lib.viz.charts.time_axis import round_ticks, say_seconds, tick_words, unit_of
from lessons_lib.viz.drawing.notes import sans_width
from lessons_lib.viz.drawing.palette import EDGE, INK, PAPER, SERIES, SOFT_INK
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, number

_LEFT, _RIGHT, _LANE, _BAR = 136, 20, 84, 26
_GRID = "#E6E6E6"
_MOST_TOLD = 8


def draw_path(
    lanes: Sequence[str], messages: Sequence[Message], works: Sequence[Work] = (), title: str = ""
) -> Picture:
    """The lanes from top to bottom, what each did, and the messages between them.

    Raises:
        ValueError: a message or work names a lane that isn't there.
    """
    _refuse_unknown_lanes(lanes, messages, works)
    title = title or "A request across the processes"
    ends = [message.received for message in messages] + [work.end for work in works]
    longest = max(ends, default=0.0) or 1e-6
    d = Drawing()
    d.text(16, 20, title, 15, bold=True)
    top = 76.0
    middle = {lane: top + index * _LANE for index, lane in enumerate(lanes)}
    bottom = top + (len(lanes) - 1) * _LANE + 34

    def x(seconds: float) -> float:
        return _LEFT + seconds / longest * (WIDTH - _LEFT - _RIGHT)

    _axis(d, longest, x, 44, bottom)
    for lane, y in middle.items():
        d.text(16, y, lane, 13, bold=True)
        d.lines(f"M{_LEFT} {number(y)}H{WIDTH - _RIGHT}", EDGE)
    colours = _colours(works)
    for work in works:
        _draw_work(d, work, x, middle[work.lane], colours[work.label])
    taken: list[tuple[float, float, float]] = []
    for message in messages:
        _draw_arrow(d, message, x, middle)
    for run in _labelled(messages):  # above the arrows
        _draw_label(d, run, messages, x, middle, taken)
    d.height = bottom + 16
    return d.picture(_describe(title, lanes, messages, works, longest))


def _refuse_unknown_lanes(lanes: Sequence[str], messages: Sequence[Message], works: Sequence[Work]) -> None:
    named = [lane for message in messages for lane in (message.source, message.target)]
    unknown = sorted({*named, *(work.lane for work in works)} - set(lanes))
    if unknown:
        raise ValueError(f"no lane is called {', '.join(unknown)}. The lanes are {', '.join(lanes)}.")


def _colours(works: Sequence[Work]) -> dict[str, str]:
    """The kind of work that takes longest gets the first colour."""
    sums: dict[str, float] = {}
    for work in works:
        sums[work.label] = sums.get(work.label, 0.0) + work.end - work.start
    longest_first = sorted(sums, key=lambda label: -sums[label])
    return {label: SERIES[index % len(SERIES)] for index, label in enumerate(longest_first)}


def _axis(d: Drawing, longest: float, x, top: float, bottom: float) -> None:
    unit, factor = unit_of(longest)
    for tick in round_ticks(longest, 8):
        d.lines(f"M{number(x(tick))} {number(top + 8)}V{number(bottom)}", _GRID)
        d.text(x(tick), top, f"{tick_words(tick, factor)} {unit}", 11, "middle", fill=SOFT_INK)


def _draw_work(d: Drawing, work: Work, x, y: float, colour: str) -> None:
    left, width = x(work.start), max(x(work.end) - x(work.start), 1.5)
    hover = f"{work.lane}: {work.label}, {say_seconds(work.end - work.start)}"
    d.rect(left, y - _BAR / 2, width, _BAR, colour, PAPER, 0.8, title=hover)
    if sans_width(work.label, 11) + 8 <= width:
        d.text(left + width / 2, y, work.label, 11, "middle", on=colour)


def _ends(message: Message, middle: dict[str, float]) -> tuple[float, float]:
    """The y where its arrow begins, and where it ends."""
    half = _BAR / 2 if middle[message.target] > middle[message.source] else -_BAR / 2
    return middle[message.source] + half, middle[message.target] - half


def _draw_arrow(d: Drawing, message: Message, x, middle: dict[str, float]) -> None:
    start, end = _ends(message, middle)
    from_x, to_x = x(message.sent), x(message.received)
    d.lines(f"M{number(from_x)} {number(start)}L{number(to_x)} {number(end)}", INK, 1.2, arrow=True)


def _labelled(messages: Sequence[Message]) -> list[list[Message]]:
    """Messages that share a label: those of the same kind that follow each other between two lanes."""
    runs: list[list[Message]] = []
    latest: dict[tuple[str, str], list[Message]] = {}
    for message in messages:
        way = (message.source, message.target)
        if way in latest and latest[way][0].label == message.label:
            latest[way].append(message)
        else:
            latest[way] = [message]
            runs.append(latest[way])
    return runs


def _draw_label(d: Drawing, run: Sequence[Message], messages: Sequence[Message], x, middle, taken: list) -> None:
    """What the messages of a run are called: beside the first arrow where no other arrow and no label is in the way.

    Args:
        messages: all of them.
        taken: (left, right, y) of the labels that stand already; this one is added.
    """
    width = sans_width(run[0].label, 11)
    for message in run:
        start, end = sorted(_ends(message, middle))
        for y in (start + share * (end - start) for share in (0.75, 0.5, 0.25)):
            at = _x_at(message, y, x, middle) or 0.0
            others = [_x_at(other, y, x, middle) for other in messages if other is not message]
            for left in (at + 9, at - 9 - width):
                right = left + width
                is_free = not any(other is not None and left - 3 < other < right + 3 for other in others)
                is_free &= not any(
                    first < right + 6 and left < stop + 6 and abs(y - at_y) < 13 for first, stop, at_y in taken
                )
                if is_free and left >= 4 and right <= WIDTH - 4:
                    d.text(left, y, run[0].label, 11, halo=PAPER)
                    taken.append((left, right, y))
                    return


def _x_at(message: Message, y: float, x, middle: dict[str, float]) -> float | None:
    """Where its arrow passes the height y; None if it doesn't."""
    start, end = _ends(message, middle)
    if not min(start, end) <= y <= max(start, end):
        return None
    return x(message.sent) + (y - start) / (end - start) * (x(message.received) - x(message.sent))


def _describe(title, lanes, messages, works, longest: float) -> str:
    told = [
        f"After {say_seconds(message.received)}, {message.target} has “{message.label}” from {message.source}, sent "
        f"{say_seconds(message.received - message.sent)} before."
        for message in messages[:_MOST_TOLD]
    ]
    if len(messages) > _MOST_TOLD:
        told.append(
            f"{len(messages) - _MOST_TOLD} more messages follow; the last arrives after {say_seconds(longest)}."
        )
    sums: dict[tuple[str, str], list[float]] = {}
    for work in works:
        sums.setdefault((work.lane, work.label), []).append(work.end - work.start)
    busy = [
        f"{lane}: {label}, {len(spans)} time{'s' if len(spans) > 1 else ''}, {say_seconds(sum(spans))} together."
        for (lane, label), spans in sums.items()
    ]
    return f"{title}. Lanes from top to bottom: {', '.join(lanes)}. " + " ".join([*told, *busy])
