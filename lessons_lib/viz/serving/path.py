"""A request across the processes: one lane each, time from left to right, an arrow for each message between them."""

from collections.abc import Sequence

from lessons_lib.recording.served_requests import Message, Work
from lessons_lib.viz.charts.time_axis import draw_time_axis, say_seconds
from lessons_lib.viz.drawing.palette import EDGE, INK, PAPER, SERIES
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, number, sans_width

_LEFT, _RIGHT, _LANE, _BAR = 136, 20, 84, 26

_MOST_TOLD = 8


def draw_path(
    lanes: Sequence[str], messages: Sequence[Message], works: Sequence[Work] = (), title: str = ""
) -> Picture:
    """The lanes from top to bottom, what each did, and the messages between them."""
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

    draw_time_axis(d, longest, x, 44, 52, bottom)
    for lane, y in middle.items():
        d.text(16, y, lane, 13, bold=True)
        d.lines(f"M{_LEFT} {number(y)}H{WIDTH - _RIGHT}", EDGE)
    colours = _colours(works)
    for work in works:
        left, y, colour = x(work.start), middle[work.lane], colours[work.label]
        width = max(x(work.end) - left, 1.5)
        d.rect(left, y - _BAR / 2, width, _BAR, colour, PAPER, 0.8)
        if sans_width(work.label, 11) + 8 <= width:
            d.text(left + width / 2, y, work.label, 11, "middle", on=colour)
    for message in messages:
        start, end = _ends(message, middle)
        path = f"M{number(x(message.sent))} {number(start)}L{number(x(message.received))} {number(end)}"
        d.lines(path, INK, 1.2, arrow=True)
    for message in _first_of_each_kind(messages):  # above the arrows
        start, end = _ends(message, middle)
        at = (x(message.sent) + x(message.received)) / 2
        side, anchor = (-9, "end") if end > start else (9, "start")  # downwards on the left, upwards on the right
        d.text(at + side, (start + end) / 2, message.label, 11, anchor, halo=PAPER)
    d.height = bottom + 16
    told = [
        f"{message.target} has “{message.label}” from {message.source} after {say_seconds(message.received)}."
        for message in messages[:_MOST_TOLD]
    ]
    more = f"{len(messages)} messages in all, in {say_seconds(longest)}."
    return d.picture(f"{title}. Lanes from top to bottom: {', '.join(lanes)}. {' '.join([*told, more])}")


def _colours(works: Sequence[Work]) -> dict[str, str]:
    """The kind of work that takes longest gets the first colour."""
    sums: dict[str, float] = {}
    for work in works:
        sums[work.label] = sums.get(work.label, 0.0) + work.end - work.start
    longest_first = sorted(sums, key=lambda label: -sums[label])
    return {label: SERIES[index % len(SERIES)] for index, label in enumerate(longest_first)}


def _ends(message: Message, middle: dict[str, float]) -> tuple[float, float]:
    """The y where its arrow begins, and where it ends."""
    half = _BAR / 2 if middle[message.target] > middle[message.source] else -_BAR / 2
    return middle[message.source] + half, middle[message.target] - half


def _first_of_each_kind(messages: Sequence[Message]) -> list[Message]:
    """Of messages of one kind that follow each other between two lanes, the first."""
    first: list[Message] = []
    latest: dict[tuple[str, str], str] = {}
    for message in messages:
        way = (message.source, message.target)
        if latest.get(way) != message.label:
            first.append(message)
        latest[way] = message.label
    return first
