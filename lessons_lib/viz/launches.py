"""Steps on a CPU and a GPU: kernels launched one by one, replayed as a graph, and with the next step overlapped."""

from __future__ import annotations

from dataclasses import dataclass

from lessons_lib.recording.words import count
from lessons_lib.viz.drawing.palette import EDGE, INK, NEUTRAL, PAPER, SERIES, SOFT_INK, tint
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, number, sans_width
from lessons_lib.viz.stepper import Stepper

# Microseconds. A launch and a kernel take what they took in the recorded run; that run has a thousand kernels a step.
KERNELS, LAUNCH, KERNEL, REPLAY, SCHEDULE, TOKENS = 24, 20, 4, 10, 30, 15
SHOWN = 580  # microseconds that are drawn, in frames of
FRAME = 10
WAYS = ("launched one by one", "CUDA graphs", "CUDA graphs, overlapped")
_LEFT, _TOP, _LANE, _WAY = 60, 62, 26, 102
_PER = (WIDTH - _LEFT - 16) / SHOWN
_COLORS = {"schedule": NEUTRAL, "tokens": NEUTRAL, "launch": SERIES[3], "replay": SERIES[0], "wait": PAPER}


@dataclass(frozen=True)
class Span:
    """Work of the CPU or the GPU on a step, from and to in microseconds."""

    side: str
    what: str
    step: int
    start: int
    end: int


def steps_of(way: str) -> list[Span]:
    """The work of all steps that begin in the time that is drawn."""
    spans: list[Span] = []
    cpu = gpu = step = 0
    done: dict[int, int] = {}  # step -> when the GPU has computed it

    def on_cpu(what: str, length: int, of: int) -> None:
        nonlocal cpu
        if length > 0:
            spans.append(Span("CPU", what, of, cpu, cpu + length))
            cpu += length

    while cpu < SHOWN:
        step += 1
        on_cpu("schedule", SCHEDULE, step)
        if way != WAYS[0]:
            on_cpu("replay", REPLAY, step)
        for _ in range(KERNELS):
            if way == WAYS[0]:
                on_cpu("launch", LAUNCH, step)
            gpu = max(gpu, cpu)
            spans.append(Span("GPU", "kernel", step, gpu, gpu + KERNEL))
            gpu += KERNEL
        done[step] = gpu
        ended = step - (way == WAYS[2])  # with overlap, the tokens of the step before
        if ended:
            on_cpu("wait", done[ended] - cpu, ended)
            on_cpu("tokens", TOKENS, ended)
    return spans


def watch_launches() -> Stepper:
    """Play the three ways next to one another."""
    frames = SHOWN // FRAME
    return Stepper(
        lambda i: draw_launches((i + 1) * FRAME), frames, label="frame", name=lambda i: f"{(i + 1) * FRAME} µs"
    )


def draw_launches(now: int) -> Picture:
    """What CPU and GPU have done until `now`, in microseconds, in each of the three ways."""
    d = Drawing(height=_TOP + _WAY * len(WAYS) + 16)
    d.text(16, 18, "Three ways to run the same decode steps", 15, bold=True)
    words = f"a step has {KERNELS} kernels of {KERNEL} µs; a launch takes {LAUNCH} µs, a replay {REPLAY} µs"
    d.text(WIDTH - 16, 18, words, 12, "end", fill=SOFT_INK)
    told = []
    for row, way in enumerate(WAYS):
        y = _TOP + row * _WAY
        spans = [span for span in steps_of(way) if span.start < now]
        busy = sum(min(span.end, now) - span.start for span in spans if span.side == "GPU")
        finished = sum(span.what == "tokens" and span.end <= now for span in spans)
        says = f"{count(finished, 'step')} finished, the GPU was busy {100 * busy / now:.0f} % of the time"
        told.append(f"{way}: {says}")
        d.text(_LEFT, y - 10, way, 13, bold=True)
        d.text(WIDTH - 16, y - 10, says, 12, "end")
        for lane, side in enumerate(("CPU", "GPU")):
            top = y + 4 + lane * (_LANE + 4)
            d.text(_LEFT - 10, top + _LANE / 2, side, 12, "end", fill=SOFT_INK)
            d.lines(f"M{_LEFT} {number(top + _LANE)}H{WIDTH - 16}", EDGE, 0.5)
            for span in spans:
                if span.side == side:
                    _draw_span(d, span, top, min(span.end, now))
    x = number(_LEFT + now * _PER)
    d.lines(f"M{x} {_TOP - 4}V{number(d.height - 22)}", INK, 1.5)
    d.legend(
        _LEFT, d.height - 16,
        [("schedule, or process tokens", lambda x, y: d.rect(x, y, 18, 16, NEUTRAL, EDGE))]
        + [(what, lambda x, y, what=what: d.rect(x, y, 18, 16, _COLORS[what], EDGE)) for what in ("launch", "replay")]
        + [("a kernel (pale: of an even step)", lambda x, y: d.rect(x, y, 18, 16, SERIES[4]))],
    )  # fmt: skip
    return d.picture(f"After {now} µs. {'; '.join(told)}.")


def _draw_span(d: Drawing, span: Span, top: float, end: int) -> None:
    x, width = _LEFT + span.start * _PER, (end - span.start) * _PER
    if span.what == "kernel":  # odd and even steps differ, so that a step can be seen to overlap the next
        fill = SERIES[4] if span.step % 2 else tint(SERIES[4])
        return d.rect(x, top, width - 0.5, _LANE, fill, "none", title=f"kernel of step {span.step}")
    label = f"{span.what} {span.step}" if span.what != "launch" else span.what
    fill, room = _COLORS[span.what], width > sans_width(label, 11) + 4
    d.rect(x, top, width - 0.5, _LANE, fill, EDGE, dashed=span.what == "wait", title=f"{span.what}, step {span.step}")
    if end == span.end and (room or span.what == "replay"):
        d.text(x + width / 2, top + _LANE / 2, label if room else str(span.step), 11, "middle", on=fill)
    elif end == span.end and width > 12 and span.what != "launch":
        d.text(x + width / 2, top + _LANE / 2, str(span.step), 11, "middle", on=fill)
    return None
