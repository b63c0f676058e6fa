"""Streams on a time axis, while one of the replicas that serve them is lost."""

from __future__ import annotations

from collections.abc import Sequence

from lessons_lib.recording.replica_streams import StreamRecord
from lessons_lib.viz.drawing.palette import EDGE, INK, NEUTRAL, SOFT_INK, color_of
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, number

_LEFT, _TOP, _ROW, _BAND_GAP = 118, 46, 24, 34


def draw_streams(streams: Sequence[StreamRecord], num_replicas: int, lost: tuple[int, int] | None = None) -> Picture:
    """A band for each replica, with a row for each stream; a token is in the band of the replica that computed it.

    Args:
        lost: (replica, time) of the loss, or None.

    Raises:
        ValueError: no stream has a token.
    """
    if not any(stream.tokens for stream in streams):
        raise ValueError("no stream has a token; record some first.")
    times = [time for stream in streams for time, _ in stream.tokens] + [each.end[0] for each in streams if each.end]
    length = max(times) + 1
    per, band = (WIDTH - _LEFT - 30) / length, len(streams) * _ROW
    tops = [_TOP + replica * (band + _BAND_GAP) for replica in range(num_replicas)]
    d = Drawing()
    for replica, top in enumerate(tops):
        d.rect(_LEFT, top, per * length, band, "#F3F3F0", EDGE)
        d.text(16, top + band / 2, f"replica {replica}", 13, bold=True)
        for row, stream in enumerate(streams):
            d.text(_LEFT - 10, top + row * _ROW + _ROW / 2, stream.name, 12, "end", bold=True)
    if lost:
        _draw_loss(d, lost, tops, per, band, length)
    for row, stream in enumerate(streams):
        _draw_stream(d, stream, row, tops, per)
    d.height = tops[-1] + band + 34
    moved = " Arrow: the stream goes on in another replica." if _has_moved(streams) else ""
    words = f"Time →, a box for each chunk that a reader gets. ✓: the stream is complete.{moved}"
    d.text(_LEFT, d.height - 14, words, 12, fill=SOFT_INK)
    return d.picture(_describe(streams, lost))


def _has_moved(streams: Sequence[StreamRecord]) -> bool:
    return any(len({replica for _, replica in stream.tokens}) > 1 for stream in streams)


def _draw_loss(d: Drawing, lost: tuple[int, int], tops: Sequence[float], per: float, band: float, length: int) -> None:
    replica, time = lost
    x = _LEFT + per * time
    d.rect(x, tops[replica], per * (length - time), band, NEUTRAL)
    d.hatch(x, tops[replica], per * (length - time), band)
    d.lines(f"M{number(x)} {number(tops[0] - 8)}V{number(tops[-1] + band)}", INK, 2, dots=5)
    d.text(x, tops[0] - 20, f"replica {replica} is lost", 13, "middle", bold=True)


def _draw_stream(d: Drawing, stream: StreamRecord, row: int, tops: Sequence[float], per: float) -> None:
    colour, before = color_of(stream.name), None
    for index, (time, replica) in enumerate(stream.tokens):
        x, y = _LEFT + per * time, tops[replica] + row * _ROW + 3
        d.rect(x + 0.5, y, per - 1, _ROW - 6, colour, title=f"{stream.name}: token {index}, by replica {replica}")
        if before and before[1] != replica:
            start = tops[before[1]] + row * _ROW + _ROW / 2
            last = _LEFT + per * (before[0] + 1)
            end = y - 2 if replica > before[1] else y + _ROW
            path = f"M{number(last)} {number(start)}L{number(x + per / 2)} {number(end)}"
            d.lines(path, INK, 1.5, arrow=True)
        before = time, replica
    if stream.end:
        time, reason = stream.end
        place = tops[stream.tokens[-1][1]] if stream.tokens else tops[0]
        x, y = _LEFT + per * (stream.tokens[-1][0] + 1 if stream.tokens else time), place + row * _ROW + 3
        fill, sign = (INK, "!") if reason == "error" else (colour, "✓")
        d.rect(x + 2, y, _ROW - 6, _ROW - 6, fill, INK, radius=3, title=f"{stream.name} ends: {reason}")
        d.text(x + 2 + (_ROW - 6) / 2, y + (_ROW - 6) / 2, sign, 12, "middle", bold=True, on=fill)


def _describe(streams: Sequence[StreamRecord], lost: tuple[int, int] | None) -> str:
    told = []
    for stream in streams:
        runs: list[list[int]] = []
        for _, replica in stream.tokens:
            if runs and runs[-1][0] == replica:
                runs[-1][1] += 1
            else:
                runs.append([replica, 1])
        parts = ", then ".join(f"{count} tokens by replica {replica}" for replica, count in runs) or "no token"
        ends = f", ends with {stream.end[1]!r}" if stream.end else ", without an end"
        told.append(f"{stream.name}: {parts}{ends}.")
    loss = f" Replica {lost[0]} is lost at time {lost[1]}." if lost else ""
    return f"Streams and the replicas that computed their tokens.{loss} {' '.join(told)}"
