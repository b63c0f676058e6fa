"""A server that drains: one row for each client, the time from left to right, and the server's own process below."""

from lessons_lib.recording.served_requests import ClientRequest, DrainRun
from lessons_lib.viz.charts.time_axis import draw_time_axis, say_seconds
from lessons_lib.viz.drawing.palette import INK, PAPER, SERIES, color_of
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, number, sans_width

_LEFT, _RIGHT, _ROW, _BAR = 100, 150, 36, 24

_SERVING, _DRAINING = SERIES[0], SERIES[3]


def draw_drain(run: DrainRun, title: str = "") -> Picture:
    """What each client got, before and after SIGTERM, and until when the server's process lived."""
    title = title or "A server drains"
    longest = max(run.exited, *(request.ended for request in run.requests)) or 1e-6
    d = Drawing()
    d.text(16, 20, title, 15, bold=True)
    top = 82.0
    rows = len(run.requests) + 1
    bottom = top + rows * _ROW

    def x(seconds: float) -> float:
        return _LEFT + seconds / longest * (WIDTH - _LEFT - _RIGHT)

    draw_time_axis(d, longest, x, bottom + 14, top, bottom)
    for when, words in ((run.signaled, "SIGTERM"), (run.exited, "the process ends")):
        d.lines(f"M{number(x(when))} {number(top - 12)}V{number(bottom)}", INK, 1.5)
        d.text(x(when), top - 24, words, 12, "middle", bold=True)
    for index, request in enumerate(run.requests):
        y = top + (index + 0.5) * _ROW
        d.text(16, y, "client", 13)
        d.request_chip(62, y - 10, request.name)
        _draw_request(d, request, x, y)
    y = bottom - _ROW / 2
    d.text(16, y, "server", 13, bold=True)
    _draw_span(d, x(0), x(run.signaled), y, _SERVING, "serves")
    _draw_span(d, x(run.signaled), x(run.exited), y, _DRAINING, "drains")
    d.text(x(run.exited) + 8, y, f"exit status {run.exit_status}", 12)
    d.height = bottom + 30
    told = [f"{one.name}, sent after {say_seconds(one.sent)}: {_outcome(one)}." for one in run.requests]
    ends = f"SIGTERM comes after {say_seconds(run.signaled)}; the process ends after {say_seconds(run.exited)}"
    return d.picture(f"{title}. {ends}, with exit status {run.exit_status}. {' '.join(told)}")


def _draw_request(d: Drawing, request: ClientRequest, x, y: float) -> None:
    words = _outcome(request)
    if request.status == 200:
        left, right = x(request.sent), x(request.ended)
        fits = _draw_span(d, left, right, y, color_of(request.name), words)
        if not fits:
            d.text(right + 8, y, words, 12, halo=PAPER)
        return
    left = x(request.sent)
    d.rect(left - 7, y - 7, 14, 14, PAPER, INK, 1.5)
    d.lines(f"M{number(left - 4)} {number(y - 4)}l8 8m0 -8l-8 8", INK, 1.5)
    d.text(left + 14, y, words, 12, halo=PAPER)


def _draw_span(d: Drawing, left: float, right: float, y: float, colour: str, label: str) -> bool:
    """Returns whether it had room for its label."""
    width = max(right - left, 1.5)
    d.rect(left, y - _BAR / 2, width, _BAR, colour)
    fits = sans_width(label, 12) + 8 <= width
    if fits:
        d.text(left + width / 2, y, label, 12, "middle", on=colour)
    return fits


def _outcome(request: ClientRequest) -> str:
    if request.status == 200:
        return f"{request.num_tokens} of {request.asked} tokens"
    return f"refused: {request.status}" if request.status else "no connection"
