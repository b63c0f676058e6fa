"""Queue time against arrival time: one panel per run, one curve per tier. Starvation shows as a rising line."""

from collections.abc import Mapping

import numpy as np

from lessons_lib.scheduling.simulator import Simulation
from lessons_lib.viz.charts.figure import WIDE, described, look, new_figure, styled, write_note, write_title
from lessons_lib.viz.charts.time_axis import say_seconds
from lessons_lib.viz.drawing.palette import SERIES
from lessons_lib.viz.drawing.picture import Picture

_TITLE = "Queue time against time of arrival"


@styled
def draw_waits(runs: Mapping[str, Simulation], tiers: Mapping[str, int], title: str = _TITLE) -> Picture:
    """Queue time against arrival time, per tier: the mean of the requests of a time as a line, to the longest a band.

    runs   name -> run; at least one
    tiers  sequence id -> tier, for every sequence of the runs
    """
    waits = {name: waits_by_tier(run, tiers) for name, run in runs.items()}
    fig, axes = new_figure(WIDE, 3.4, 1, len(runs), squeeze=False, sharex=True, sharey=True)
    for ax, (name, by_tier) in zip(axes.flat, waits.items()):
        for tier, points in reversed(by_tier.items()):  # the best tier is drawn on top
            arrivals, mean, longest = binned(points)
            ax.fill_between(arrivals, mean, longest, color=SERIES[tier % len(SERIES)], alpha=0.25, linewidth=0)
            label = f"tier {tier}: mean {say_seconds(points[:, 1].mean())}, longest {say_seconds(points[:, 1].max())}"
            ax.plot(arrivals, mean, label=label, markevery=max(len(mean) // 6, 1), **look(tier))
        ax.set_title(name)
        ax.set(xlabel="time of arrival, s", ylabel="queue time, s", ylim=(0, None))
        ax.label_outer()
        ax.legend(loc="upper left", fontsize=9, reverse=True)
    write_title(fig, title)
    write_note(fig, "Line: mean of the requests that arrived at that time. Band: up to the longest wait.")
    told = [
        f"{name}, tier {tier}: mean wait {say_seconds(points[:, 1].mean())}, longest {say_seconds(points[:, 1].max())}."
        for name, by_tier in waits.items()
        for tier, points in by_tier.items()
    ]
    return Picture.from_figure(fig, described(title, told))


def waits_by_tier(run: Simulation, tiers: Mapping[str, int]) -> dict[int, np.ndarray]:
    """Tier -> float array [sequences, 2]: arrival and queue time of each, in the order of arrival."""
    points: dict[int, list[tuple[float, float]]] = {}
    for name, times in run.times.items():
        points.setdefault(tiers[name], []).append((times.arrival, times.admitted - times.arrival))
    return {tier: np.array(sorted(own)) for tier, own in sorted(points.items())}


def binned(points: np.ndarray, bins: int = 60) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points [sequences, 2] in equal bins of arrival time: middles of full bins, mean and longest wait of each."""
    edges = np.linspace(points[0, 0], points[-1, 0], bins + 1)
    bin_of = np.clip(np.searchsorted(edges, points[:, 0], side="right") - 1, 0, bins - 1)
    full, starts = np.unique(bin_of, return_index=True)
    sums, longest = np.add.reduceat(points[:, 1], starts), np.maximum.reduceat(points[:, 1], starts)
    return (edges[full] + edges[full + 1]) / 2, sums / np.diff([*starts, len(points)]), longest
