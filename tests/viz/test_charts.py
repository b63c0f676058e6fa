"""What charts say in words, which is what they draw, and how they count."""

import re
from dataclasses import replace
from itertools import pairwise

import pytest
from picture_cases import LOAD, MACHINE, THREE_TOKENS, TOKENS, TWO_POINTS
from svg_reading import texts

from lessons_lib.viz.charts import draw_bars, draw_roofline, draw_token_bars
from lessons_lib.viz.charts.time_axis import say_seconds
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.serving import draw_load

BARS = {"ours": 10.0, "a peer with a long name": 25.0, "nothing": 0.0}


@pytest.mark.parametrize(
    "draw, words",
    [
        (lambda: draw_bars(BARS, "µs", title="Times", limit=("at least", 5.0)), [
            "Times. ours: 10 µs; a peer with a long name: 25 µs; nothing: 0 µs. at least: 5 µs."]),
        (lambda: draw_roofline(MACHINE, TWO_POINTS), [
            "they meet at the ridge, 100 FLOP/byte", "one, slow: 2 TFLOP/s at 4 FLOP/byte, bound by memory, 50 % of what",
            "other, fast: 50 TFLOP/s at 1e+03 FLOP/byte, bound by operations, 50 % of what"]),
        (lambda: draw_token_bars(THREE_TOKENS, TOKENS, "After “The old dog”"), [
            "After “The old dog”. temperature 1: ·was 50 %, ·said 25 %, ·and 12 %, all others 12 %.",
            "top_k 2: ·was 75 %, ·said 25 %; 1 of 3 are never drawn."]),
        (lambda: draw_token_bars(["a", "b"], {"x": [0.6, 0.4 - 1e-7]}), ["x: a 60 %, b 40 %."]),
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
    assert texts(draw_token_bars(THREE_TOKENS, TOKENS)).count("never") == 2
    assert {"slow: 50 %", "fast: 50 %", "ridge: 100 FLOP/byte"} <= set(texts(draw_roofline(MACHINE, TWO_POINTS)))


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
