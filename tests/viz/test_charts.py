"""What charts say in words, which is what they draw, and how they count."""

import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from picture_cases import LOAD, MACHINE, QUICK, SWEEP, THREE_TOKENS, TOKENS, TWO_POINTS, timed, waits
from svg_reading import texts

from lessons_lib.scheduling.simulator import Simulation
from lessons_lib.viz.charts import (
    draw_bars,
    draw_distributions,
    draw_laps,
    draw_programs,
    draw_roofline,
    draw_step_parts,
    draw_sweep,
    draw_token_bars,
    draw_waits,
)
from lessons_lib.viz.charts.step_parts import BETWEEN, median_laps
from lessons_lib.viz.charts.time_axis import say_seconds
from lessons_lib.viz.charts.waits import binned, waits_by_tier
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.serving import draw_load

SECONDS = {"hundred": [n + 1 for n in range(100)], "three": [1, 2, 30], "one": [0.25]}
BARS = {"ours": 10.0, "a peer with a long name": 25.0, "nothing": 0.0}
SPLITS = lambda batch, context: context // 512
SLOW = timed(0, 0.02, 0.04, forward=0.012, update=0.004)
TIERED = waits((0, 0), (2, 1), (4, 8), (10, 4)), {"0": 0, "1": 0, "2": 1, "3": 1}


@pytest.mark.parametrize(
    "draw, words",
    [
        (lambda: draw_bars(BARS, "µs", title="Times", limit=("at least", 5.0)), [
            "Times. ours: 10 µs; a peer with a long name: 25 µs; nothing: 0 µs. at least: 5 µs."]),
        (lambda: draw_distributions({"latency": SECONDS}), [
            "latency, hundred: half within 50 s, 99 % within 99 s.", "latency, three: half within 2 s, 99 % within 30 s",
            "half within 250 ms, 99 % within 250 ms"]),
        (lambda: draw_programs([1, 64], [512, 8192], 8, 132, SPLITS), [
            "1 sequence of 512 tokens, 1 split: 0.06 programs per processor.",
            "64 sequences of 8,192 tokens, 16 splits: 62 programs per processor."]),
        (lambda: draw_roofline(MACHINE, TWO_POINTS), [
            "they meet at the ridge, 100 FLOP/byte", "one, slow: 2 TFLOP/s at 4 FLOP/byte, 50 % of what",
            "other, fast: 50 TFLOP/s at 1e+03 FLOP/byte, 50 % of what"]),
        (lambda: draw_step_parts(timed(0, schedule=0.001, forward=0.008, sample=0.001), "Six stories"), [
            "Six stories. 1 step, 10 ms in all: forward 80 %, 8 ms; schedule 10 %, 1 ms; sample 10 %, 1 ms."]),
        (lambda: draw_laps({"alone": QUICK, "beside a loop": SLOW}), [
            "beside a loop: 20 ms from one step to the next, of which forward 12 ms, update 4 ms, between two steps 4 ms"]),
        (lambda: draw_sweep(SWEEP, title="decode", chosen=SWEEP[0]), [
            "The fastest of 4 has 16 rows, 32 keys, 4 warps, 3 stages: 20.0 µs. Chosen: 16 rows, 32 keys, 4 warps, 2 stages, 30",
            "1 don't fit; the slowest of the others takes 100.0 µs."]),
        (lambda: draw_token_bars(THREE_TOKENS, TOKENS, "After “The old dog”"), [
            "After “The old dog”. temperature 1: ·was 50 %, ·said 25 %, ·and 12 %, all others 12 %.",
            "top_k 2: ·was 75 %, ·said 25 %; 1 of 3 are never drawn."]),
        (lambda: draw_token_bars(["a", "b"], {"x": [0.6, 0.4 - 1e-7]}), ["x: a 60 %, b 40 %."]),
        (lambda: draw_waits({"strict": TIERED[0]}, TIERED[1]), [
            "strict, tier 0: mean wait 500 ms, longest 1 s. strict, tier 1"]),
        (lambda: draw_load({"all are taken": LOAD}, target=0.5, knee=20, title="Load"), [
            "at most 10.0 requests per second within the target; at 30.0 per second 2.0",
            "The target is 500 ms", "The knee is at 20.0"]),
    ],
)  # fmt: skip
def test_what_a_chart_shows_is_said(draw, words):
    alt = draw().alt
    for sentence in words:
        assert sentence in alt


def test_values_and_marks_are_written_in_the_chart():
    cut = texts(draw_bars({"a": 10.0, "b": 2500.0}, "µs", most=80.0))
    assert {"a", "b", "10 µs", "2,500 µs", "//"} <= set(cut)
    assert {"–", "20.0", "30.0", "chosen", "does not fit, or does not compile"} <= set(
        texts(draw_sweep(SWEEP, chosen=SWEEP[0]))
    )
    assert texts(draw_token_bars(THREE_TOKENS, TOKENS)).count("never") == 2
    assert {"slow: 50 %", "fast: 50 %", "ridge: 100 FLOP/byte"} <= set(texts(draw_roofline(MACHINE, TWO_POINTS)))
    assert "300 steps, each bar the mean of 3" in texts(draw_step_parts(QUICK * 100))


def test_laps_are_medians_and_add_up_to_the_time_between_two_steps():
    assert median_laps(QUICK) == pytest.approx({"forward": 0.006, "update": 0.002, BETWEEN: 0.002})
    slow = [*QUICK, *timed(0.03, forward=0.5, update=0.002), *timed(0.6, forward=0.006, update=0.002)]
    assert median_laps(slow)["forward"] == pytest.approx(0.006), "one slow step changes nothing"


def test_sequences_are_put_in_their_tiers_in_the_order_of_arrival():
    by_tier = waits_by_tier(waits((5, 1), (0, 2), (3, 4), (1, 0)), {"0": 1, "1": 0, "2": 1, "3": 0})
    assert list(by_tier) == [0, 1]
    assert by_tier[0].tolist() == [[0, 2], [1, 0]] and by_tier[1].tolist() == [[3, 4], [5, 1]]
    assert waits_by_tier(Simulation(), {}) == {}


@pytest.mark.parametrize("bins", [1, 7, 60])
def test_bins_count_every_request_once(bins):
    rng = np.random.default_rng(1)
    points = np.stack([np.sort(rng.random(500) * 90), rng.exponential(3, 500)], axis=1)
    inside = {}
    for low, high in pairwise(np.linspace(points[0, 0], points[-1, 0], bins + 1)):
        is_inside = (points[:, 0] >= low) & ((points[:, 0] < high) | (high == points[-1, 0]))
        inside[(low + high) / 2] = points[is_inside, 1]
    inside = {middle: own for middle, own in inside.items() if len(own)}
    middles, mean, longest = binned(points, bins)
    assert middles.tolist() == pytest.approx(list(inside))
    assert mean.tolist() == pytest.approx([own.mean() for own in inside.values()])
    assert longest.tolist() == pytest.approx([own.max() for own in inside.values()])
    assert binned(points[:1])[1].tolist() == [points[0, 1]]


@pytest.mark.parametrize(
    "seconds, words",
    [(0, "0 ms"), (0.00051, "0.51 ms"), (0.0125, "12.5 ms"), (0.5, "500 ms"), (0.9994, "999 ms"), (0.9996, "1 s"),
     (3.4, "3.4 s"), (12.345, "12.3 s"), (99.96, "100 s"), (1234.5, "1,234 s"), (20, "20 s")],
)  # fmt: skip
def test_seconds_in_words(seconds, words):
    assert say_seconds(seconds) == words


def test_labels_of_points_do_not_cover_each_other():
    points = [replace(TWO_POINTS[0], name=f"case {n}", seconds=2e-9 * 1.02**n) for n in range(8)]
    labels = re.findall(r'y="([\d.]+)" transform[^>]*>case', draw_roofline(MACHINE, points).svg)
    heights = sorted(map(float, labels))
    assert len(heights) == 8 and min(below - above for above, below in pairwise(heights)) > 9


def test_figures_keep_their_text_and_are_closed():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    fig, ax = pyplot.subplots()
    ax.set_title("tokens & time")
    picture = Picture.from_figure(fig, "An empty chart.")
    assert fig.number not in pyplot.get_fignums()
    assert "tokens & time" in texts(picture) and "<dc:date>" not in picture.svg
