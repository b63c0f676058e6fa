"""What a server does under more and more load: goodput and latency over the rate of arrivals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lessons_lib.viz.charts.curves import STYLE
from lessons_lib.viz.charts.time_axis import say_seconds
from lessons_lib.viz.drawing.palette import SERIES, SOFT_INK
from lessons_lib.viz.drawing.picture import Picture

_DASHES, _MARKERS = ("-", "--", "-."), ("o", "s", "^")


@dataclass(frozen=True)
class LoadPoint:
    """One run at one rate.

    Attributes:
        rate: arrivals per second.
        goodput: requests per second that met the target.
        ttft: seconds to the first token, a high quantile of the requests that were served.
    """

    rate: float
    goodput: float
    ttft: float


def draw_load(
    runs: Mapping[str, Sequence[LoadPoint]],
    *,
    target: float | None = None,
    knee: float | None = None,
    quantile: str = "p99",
    title: str = "",
) -> Picture:
    """Left: goodput over the rate. Right: time to first token over the rate, on a logarithmic scale.

    Args:
        runs: what a run is called -> its points, by rising rate.
        target: seconds to the first token that a request may take; a line on the right.
        knee: the rate beyond which the target is missed; a line on both sides.
    """
    import matplotlib
    from matplotlib.figure import Figure

    title = title or "More and more load"
    with matplotlib.rc_context(STYLE):
        fig = Figure(figsize=(8.2, 3.7), layout="constrained")
        left, right = fig.subplots(1, 2)
        for index, (name, points) in enumerate(runs.items()):
            style = dict(
                color=SERIES[index % len(SERIES)],
                linestyle=_DASHES[index % len(_DASHES)],
                marker=_MARKERS[index % len(_MARKERS)],
            )
            rates = [point.rate for point in points]
            left.plot(rates, [point.goodput for point in points], label=name, **style)
            right.plot(rates, [point.ttft for point in points], **style)
        most = max((point.rate for points in runs.values() for point in points), default=1.0)
        left.plot([0, most], [0, most], color=SOFT_INK, linewidth=0.8, linestyle=":")
        top = 1.25 * max((point.goodput for points in runs.values() for point in points), default=1.0) or 1
        left.set_ylim(0, top)
        if most > top:
            height = 0.94 * top
            left.annotate("all in time", (height, height), xytext=(7, 0), textcoords="offset points", va="center")
        right.set_yscale("log")
        right.yaxis.set_major_formatter("{x:,.10g}")
        for ax in (left, right):
            ax.set_xlim(0, most * 1.03)
            ax.set_xlabel("requests arriving per second")
            if knee is not None:
                ax.axvline(knee, color=SOFT_INK, linewidth=1, linestyle=(0, (2, 2)))
        if knee is not None:
            left.annotate(
                "knee",
                (knee, 0.97),
                xycoords=("data", "axes fraction"),
                xytext=(-4, 0),
                textcoords="offset points",
                ha="right",
                va="top",  # on this side no curve is that high
            )
        if target is not None:
            right.axhline(target, color=SOFT_INK, linewidth=1)
            right.annotate(
                "target", (0.01, target), xycoords=("axes fraction", "data"), xytext=(0, 3), textcoords="offset points"
            )
        left.set_title("requests per second within the target")
        right.set_title(f"time to first token, {quantile}, seconds")
        if runs:
            fig.legend(loc="outside lower center", ncols=len(runs))
        fig.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    return Picture.from_figure(fig, _describe(title, runs, target, knee, quantile))


def _describe(title, runs, target, knee, quantile) -> str:
    told = []
    for name, points in runs.items():
        if points:
            best = max(points, key=lambda point: point.goodput)
            told.append(
                f"{name}: at most {best.goodput:,.1f} requests per second within the target, at a rate of {best.rate:,.1f}; "  # noqa: E501
                f"at {points[-1].rate:,.1f} per second {points[-1].goodput:,.1f}, with a {quantile} of "
                f"{say_seconds(points[-1].ttft)} to the first token."
            )
    limits = [f"The target is {say_seconds(target)} to the first token."] if target is not None else []
    limits += [f"The knee is at {knee:,.1f} requests per second."] if knee is not None else []
    return " ".join([f"{title}.", *told, *limits])
