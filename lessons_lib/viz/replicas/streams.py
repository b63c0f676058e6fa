"""Streams on a time axis, while one of the replicas that serve them is lost."""

from collections.abc import Sequence
from itertools import pairwise

from lessons_lib.recording.replica_streams import StreamRecord
from lessons_lib.recording.words import count, runs_of
from lessons_lib.viz.drawing.palette import EDGE, INK, NEUTRAL, SOFT_INK, color_of
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, number, sans_width
from lessons_lib.viz.stepper import Stepper

_LEFT, _TOP, _ROW, _BAND_GAP = 118, 46, 24, 34


def watch_streams(streams: Sequence[StreamRecord], num_replicas: int, lost: tuple[int, int] | None = None) -> Stepper:
    """Play streams, a round of chunks after another; `lost`: (replica, round)."""
    rounds = _length(streams)
    return Stepper(lambda i: draw_streams(streams, num_replicas, lost, i), rounds, label="round")


def _length(streams: Sequence[StreamRecord]) -> int:
    times = [time for stream in streams for time, _ in stream.tokens] + [each.end[0] for each in streams if each.end]
    return max(times) + 1


def draw_streams(
    streams: Sequence[StreamRecord], num_replicas: int, lost: tuple[int, int] | None = None, until: int | None = None
) -> Picture:
    """A row for each stream in a band for each replica. `lost`: (replica, round); `until`: the last round."""
    length = _length(streams)
    until = length - 1 if until is None else until
    lost = lost if lost and lost[1] <= until else None
    streams = [_so_far(stream, until) for stream in streams]
    per, band = (WIDTH - _LEFT - 30) / length, len(streams) * _ROW
    tops = [_TOP + replica * (band + _BAND_GAP) for replica in range(num_replicas)]
    d = Drawing(height=tops[-1] + band + 52)
    for replica, top in enumerate(tops):
        d.rect(_LEFT, top, per * length, band, "#F3F3F0", EDGE)
        d.text(16, top + band / 2, f"replica {replica}", 13, bold=True)
        for row, stream in enumerate(streams):
            d.text(_LEFT - 10, top + row * _ROW + _ROW / 2, stream.name, 12, "end", bold=True)
    if lost:
        _draw_loss(d, lost, tops, per, band, length)
    for row, stream in enumerate(streams):
        with d.marked([(stream.name,)]):
            _draw_stream(d, stream, row, tops, per)
    _draw_moves(d, streams, tops, per, band)
    lines = ["Rounds →, a box for each chunk that a reader gets. ✓: the stream is complete."]
    more = ["Arrow: these streams go on in another replica."] * any(stream.has_moved for stream in streams)
    more += ["In the hatched part: already on their way."] * bool(lost)
    lines += [" ".join(more)] * bool(more)
    for row, line in enumerate(lines):
        d.text(_LEFT, tops[-1] + band + 20 + 16 * row, line, 12, fill=SOFT_INK)
    return d.picture(_describe(streams, lost))


def _so_far(stream: StreamRecord, until: int) -> StreamRecord:
    end = stream.end if stream.end and stream.end[0] <= until else None
    return StreamRecord(stream.name, [token for token in stream.tokens if token[0] <= until], end)


def _draw_loss(d: Drawing, lost: tuple[int, int], tops: Sequence[float], per: float, band: float, length: int) -> None:
    replica, time = lost
    x = _LEFT + per * time
    d.rect(x, tops[replica], per * (length - time), band, NEUTRAL)
    d.hatch(x, tops[replica], per * (length - time), band)
    d.lines(f"M{number(x)} {number(tops[0] - 8)}V{number(tops[-1] + band)}", INK, 2, dots=5)
    d.text(x, tops[0] - 20, f"replica {replica} is lost", 13, "middle", bold=True)


def _draw_stream(d: Drawing, stream: StreamRecord, row: int, tops: Sequence[float], per: float) -> None:
    colour = color_of(stream.name)
    for time, replica in stream.tokens:
        x, y = _LEFT + per * time, tops[replica] + row * _ROW + 3
        d.rect(x + 0.75, y, per - 1.5, _ROW - 6, colour)
    if stream.tokens and not stream.end:  # where it is now
        time, replica = stream.tokens[-1]
        with d.marked(moves=stream.name):
            d.rect(_LEFT + per * (time + 1) + 2, tops[replica] + row * _ROW + 2, 20, _ROW - 4, colour, INK, 2, radius=4)
        middle = tops[replica] + (row + 0.5) * _ROW
        d.text(_LEFT + per * (time + 1) + 12, middle, stream.name, 12, "middle", bold=True, on=colour)
    if stream.end:
        time, reason = stream.end
        place = tops[stream.tokens[-1][1]] if stream.tokens else tops[0]
        x, y = _LEFT + per * (stream.tokens[-1][0] + 1 if stream.tokens else time), place + row * _ROW + 3
        fill, sign = (INK, "!") if reason == "error" else (colour, "✓")
        d.rect(x + 2, y, _ROW - 6, _ROW - 6, fill, INK, radius=3)
        d.text(x + 2 + (_ROW - 6) / 2, y + (_ROW - 6) / 2, sign, 12, "middle", bold=True, on=fill)


def _draw_moves(d: Drawing, streams: Sequence[StreamRecord], tops: Sequence[float], per: float, band: float) -> None:
    """One arrow, from band to band, for all streams that move at the same time, with their names beside it."""
    moves: dict[tuple[int, int, int], list[str]] = {}
    for stream in streams:
        for (_, before), (time, after) in pairwise(stream.tokens):
            if before != after:
                moves.setdefault((time, before, after), []).append(stream.name)
    right = 0.0  # the end of the last arrow's names: no arrow is drawn over them
    for (time, before, after), names in sorted(moves.items()):
        x = max(_LEFT + per * (time + 0.5), right)
        goes_down, words = after > before, ", ".join(names)
        start, end = (tops[before] + band, tops[after] - 3) if goes_down else (tops[before], tops[after] + band + 3)
        d.lines(f"M{number(x)} {number(start)}V{number(end)}", INK, 2, arrow=True)
        near = start + (_BAND_GAP if goes_down else -_BAND_GAP) / 2
        d.text(x + 10, near, words, 12, bold=True)
        right = x + 20 + 1.1 * sans_width(words, 12)


def _describe(streams: Sequence[StreamRecord], lost: tuple[int, int] | None) -> str:
    told = [f"Replica {lost[0]} is lost at time {lost[1]}."] if lost else []
    for stream in streams:
        runs = runs_of(replica for _, replica in stream.tokens)
        parts = ", then ".join(f"{count(n, 'token')} by replica {replica}" for replica, _, n in runs) or "no token"
        told.append(f"{stream.name}: {parts}" + (f", ends with {stream.end[1]!r}." if stream.end else "."))
    return f"Streams and the replicas that computed their tokens. {' '.join(told)}"
