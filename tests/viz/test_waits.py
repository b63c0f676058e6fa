"""Waits against arrivals: points where their times are, bins that hold every request once, tiers apart."""

import re

import numpy as np
import pytest
from svg_reading import SVG, assert_sound, elements, texts

from lessons_lib.scheduling.simulator import SequenceTimes, Simulation
from lessons_lib.viz.charts.waits import binned, draw_waits, waits_by_tier


def run_of(*waits):
    """A run of sequences "0", "1", ...: (arrival, queue time) of each."""
    return Simulation(
        {str(n): SequenceTimes(at, at + wait, at + wait + 1, at + wait + 2, 3) for n, (at, wait) in enumerate(waits)}
    )


def tiers_of(*tiers):
    return {str(n): tier for n, tier in enumerate(tiers)}


def points(picture):
    """(tier, arrival in words, wait in words) -> where it lies."""
    found = {}
    for rect in elements(picture, "rect"):
        said = re.fullmatch(r"tier (\d): arrived at (.*), waited (.*)", rect.findtext(SVG + "title") or "")
        if said:
            found.setdefault((int(said[1]), said[2], said[3]), []).append(
                (float(rect.get("x")) + 8, float(rect.get("y")) + 8)
            )
    return found


def test_a_few_are_points_where_their_times_are():
    picture = draw_waits({"strict": run_of((0, 0), (2, 1), (4, 8), (10, 4))}, tiers_of(0, 0, 1, 1))
    places = {key: place for key, (place,) in points(picture).items()}
    assert set(places) == {(0, "0 ms", "0 ms"), (0, "2 s", "1 s"), (1, "4 s", "8 s"), (1, "10 s", "4 s")}
    left, bottom = places[0, "0 ms", "0 ms"]
    right, top = places[1, "10 s", "4 s"][0], places[1, "4 s", "8 s"][1]
    for (_, arrival, wait), (x, y) in places.items():
        at, waited = (float(words.split()[0]) for words in (arrival, wait))
        assert x == pytest.approx(left + (right - left) * at / 10, abs=0.1) and y == pytest.approx(
            bottom - (bottom - top) * waited / 8, abs=0.1
        )
    said = texts(picture)
    assert "tier 0: mean 500 ms, longest 1 s" in said and "tier 1: mean 6 s, longest 8 s" in said
    assert "queue time, each request" in said


def test_sequences_are_put_in_their_tiers_in_the_order_of_arrival():
    by_tier = waits_by_tier(run_of((5, 1), (0, 2), (3, 4), (1, 0)), tiers_of(1, 0, 1, 0))
    assert list(by_tier) == [0, 1]
    assert by_tier[0].tolist() == [[0, 2], [1, 0]] and by_tier[1].tolist() == [[3, 4], [5, 1]]
    assert waits_by_tier(Simulation(), {}) == {}


def test_a_sequence_without_a_tier_is_refused():
    with pytest.raises(
        ValueError,
        match="sequence '1' has no tier; `tiers` must name the tier of each sequence of the runs, and names 1",
    ):
        draw_waits({"strict": run_of((0, 1), (1, 1))}, {"0": 0})


def test_bins_hold_everybody_once():
    rng = np.random.default_rng(1)
    arrivals, waits = rng.random(5000) * 90, rng.exponential(3, 5000)
    bins = binned(np.stack([arrivals, waits], axis=1), 90.0, 60)
    assert sum(b.count for b in bins) == 5000 and len(bins) == 60
    for n, b in enumerate(bins):
        inside = waits[(arrivals >= n * 1.5) & (arrivals < (n + 1) * 1.5)]
        assert (b.arrival, b.count) == (pytest.approx((n + 0.5) * 1.5), len(inside))
        assert (b.mean, b.most) == (pytest.approx(inside.mean()), inside.max())


def test_empty_bins_are_left_out_and_the_last_arrival_has_a_bin():
    bins = binned(np.array([[0.0, 1.0], [10.0, 3.0], [10.0, 5.0]]), 10.0, 4)
    assert [(b.arrival, b.mean, b.most, b.count) for b in bins] == [(1.25, 1, 1, 1), (8.75, 4, 5, 2)]
    assert [b.count for b in binned(np.array([[0.0, 1.0], [0.0, 2.0]]), 0.0, 4)] == [2]


@pytest.mark.parametrize(
    "runs",
    [{}, {"none": Simulation()}, {"one": run_of((0, 0))},
     {"a": run_of((3, 0), (4, 0)), "b": Simulation(), "c": run_of((1, 5)), "d": run_of(*[(n, n) for n in range(400)]), "e": run_of((0, 1))}],
    ids=["no runs", "empty", "one", "five"],
)  # fmt: skip
def test_all_runs_can_be_drawn(runs):
    picture = assert_sound(lambda: draw_waits(runs, {str(n): n % 3 for n in range(400)}, "A title"))
    assert picture.alt.startswith("A title.") and all(name in texts(picture) for name in runs)
    assert picture.alt.count("no request was served") == sum(not run.times for run in runs.values())
