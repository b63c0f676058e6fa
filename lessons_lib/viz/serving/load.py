"""What a server does under more and more load: goodput and latency over the rate of arrivals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lessons_lib.viz.charts.figure import DASHES, described, log_scale, look, new_figure, styled, write_title
from lessons_lib.viz.charts.time_axis import say_seconds
from lessons_lib.viz.drawing.palette import SOFT_INK
from lessons_lib.viz.drawing.picture import Picture


@dataclass(frozen=True)
class LoadPoint:
    """One run: arrivals and requests within the target per second, and a high quantile of the TTFT in seconds."""

    rate: float
    goodput: float
    ttft: float


@styled
def draw_load(
    runs: Mapping[str, Sequence[LoadPoint]], *, target: float, knee: float, title: str = "More and more load"
) -> Picture:
    """Goodput and, on a logarithmic scale, time to first token over the rate of arrivals.

    runs          what a run is called -> its points, by rising rate
    target, knee  seconds to the first token that a request may take; the rate beyond which it does: lines
    """
    fig, (left, right) = new_figure(8.2, 3.7, 1, 2)
    for index, (name, points) in enumerate(runs.items()):
        style = look(index) | {"linestyle": DASHES[index % len(DASHES)]}
        rates = [point.rate for point in points]
        left.plot(rates, [point.goodput for point in points], label=name, **style)
        right.plot(rates, [point.ttft for point in points], **style)
    most = max(point.rate for points in runs.values() for point in points)
    top = 1.25 * max(point.goodput for points in runs.values() for point in points)
    left.plot([0, most], [0, most], color=SOFT_INK, linewidth=0.8, linestyle=":")
    left.set(ylim=(0, top), title="requests per second within the target")
    log_scale(right)
    right.set_title("time to first token, p99, seconds")
    for ax in (left, right):
        ax.set(xlim=(0, most * 1.03), xlabel="requests arriving per second")
        ax.axvline(knee, color=SOFT_INK, linewidth=1, linestyle=(0, (2, 2)))
    right.axhline(target, color=SOFT_INK, linewidth=1)
    beside = {"textcoords": "offset points", "annotation_clip": True}
    left.annotate("all in time", (0.94 * top, 0.94 * top), (7, 0), va="center", **beside)
    # On this side of the knee, no curve is that high.
    left.annotate("knee", (knee, 0.97), (-4, 0), ("data", "axes fraction"), ha="right", va="top", **beside)
    right.annotate("target", (0.01, target), (0, 3), ("axes fraction", "data"), **beside)
    fig.legend(loc="outside lower center", ncols=len(runs))
    write_title(fig, title)
    told = [
        f"{name}: at most {max(point.goodput for point in points):,.1f} requests per second within the target; at "
        f"{points[-1].rate:,.1f} per second {points[-1].goodput:,.1f}, with a p99 of {say_seconds(points[-1].ttft)}."
        for name, points in runs.items()
    ]
    limits = f"The target is {say_seconds(target)} to the first token. The knee is at {knee:,.1f} requests per second."
    return Picture.from_figure(fig, described(title, [*told, limits]))
