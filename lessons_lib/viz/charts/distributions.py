"""The share of requests served within a given time: one panel per metric, one curve per way of serving them."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from lessons_lib.viz.charts.figure import DASHES, WIDE, described, log_scale, look, new_figure, styled
from lessons_lib.viz.charts.time_axis import say_seconds
from lessons_lib.viz.drawing.palette import SERIES
from lessons_lib.viz.drawing.picture import Picture

_POINTS = 200  # of a curve; more wouldn't be visible
_MOST_DECADES = 5
_MARKED = (50, 99)


@styled
def draw_distributions(metrics: Mapping[str, Mapping[str, Sequence[float]]]) -> Picture:
    """The share of requests within a given time; marked are median (p50) and 99th percentile (p99). A panel per metric,
    a curve per name. `metrics`: metric ("time to first token") -> name -> seconds of each request.
    """
    panels = {metric: {name: np.sort(list(values)) for name, values in own.items()} for metric, own in metrics.items()}
    rows = -(-len(panels) // 2)
    fig, axes = new_figure(WIDE, 0.5 + 2.9 * rows, rows, min(len(panels), 2), squeeze=False, sharey=True)
    for ax in axes.flat[len(panels) :]:
        ax.set_visible(False)
    for ax, (metric, curves) in zip(axes.flat, panels.items()):
        longest = max(ordered[-1] for ordered in curves.values())
        # A wait of 0 has no place on the axis: it is drawn at the smallest of the others.
        smallest = min(ordered[ordered > 0].min(initial=longest) for ordered in curves.values())
        shortest = max(smallest, longest / 10**_MOST_DECADES, 1e-9)
        for index, (name, ordered) in enumerate(curves.items()):
            ranks = np.linspace(0, len(ordered) - 1, min(len(ordered), _POINTS)).round().astype(int)
            times, dashes = np.maximum(ordered, shortest), DASHES[index % len(DASHES)]
            ax.plot(times[ranks], 100 * (ranks + 1) / len(ordered), color=SERIES[index % len(SERIES)], linestyle=dashes)
            marks = [max(_percentile(ordered, percent), shortest) for percent in _MARKED]
            ax.plot(marks, _MARKED, linestyle="", markersize=7, label=name, **look(index))
        log_scale(ax, "x")
        ax.set_yticks((0, 25, 50, 75, 99), ("0 %", "25 %", "50 %", "75 %", "99 %"))
        ax.set_title(metric)
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper left", ncols=4)
    fig.supxlabel("seconds (logarithmic axes); marked: median (p50) and 99th percentile (p99)", fontsize=10)
    fig.supylabel("share of requests", fontsize=10)
    told = [
        f"{metric}, {name}: half within {say_seconds(_percentile(ordered, 50))}, 99 % within "
        f"{say_seconds(_percentile(ordered, 99))}."
        for metric, curves in panels.items()
        for name, ordered in curves.items()
    ]
    return Picture.from_figure(fig, described("Distributions", told))


def _percentile(ordered: np.ndarray, percent: float) -> float:
    """The smallest value that at least `percent` percent of the values don't exceed."""
    return float(ordered[math.ceil(percent / 100 * len(ordered)) - 1])
