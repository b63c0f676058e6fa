"""Curves of how many were served within how long: every point of a curve is a count, and the marks are percentiles."""

import math
import re

import numpy as np
import pytest
from svg_reading import SVG, assert_sound, elements, texts

from lessons_lib.viz.charts.distributions import draw_distributions
from lessons_lib.viz.drawing.palette import SERIES

RNG = np.random.default_rng(0)
TWO = {"fast": RNG.lognormal(-1, 1, 500).tolist(), "slow": RNG.lognormal(0.5, 0.5, 130).tolist()}


def axes(picture):
    """seconds of an x and share of a y, from where the ticks stand."""
    places = {text.text: (float(text.get("x")), float(text.get("y"))) for text in elements(picture, "text")}
    below = {word: x for word, (x, y) in places.items() if y > places["0 %"][1] + 5}
    ticks = sorted((float(word.replace(",", "")), x) for word, x in below.items() if re.fullmatch(r"[\d.,]+", word))
    (low, left), (high, right) = ticks[0], ticks[-1]
    top, bottom = places["75 %"][1], places["0 %"][1]
    return (
        lambda x: low * (high / low) ** ((x - left) / (right - left)),
        lambda y: 0.75 * (bottom - 0.35 * 11 - y) / (bottom - top),
    )


def curves(picture, count):
    """The points (seconds, share) of each curve, by colour."""
    seconds, share = axes(picture)
    found = {}
    for path in elements(picture, "path"):
        if path.get("stroke-width") == "2.2":
            numbers = re.findall(r"[ML]([\d.]+) ([\d.]+)", path.get("d"))
            found[path.get("stroke")] = [(seconds(float(x)), share(float(y))) for x, y in numbers]
    assert list(found) == list(SERIES[:count])
    return list(found.values())


def marks(picture):
    """(name, percent) -> x and y of the middle of each mark."""
    found = {}
    for rect in elements(picture, "rect"):
        said = re.fullmatch(r"(.*): (\d+) % within (.*)", rect.findtext(SVG + "title") or "")
        if said:
            x, y, w, h = (float(rect.get(side)) for side in ("x", "y", "width", "height"))
            found[said[1], int(said[2])] = (x + w / 2, y + h / 2, said[3])
    return found


def test_every_point_of_a_curve_counts_who_was_served_by_then():
    picture = draw_distributions(TWO, "latency")
    for values, points in zip(TWO.values(), curves(picture, 2)):
        assert (
            len(points) > 100
            and points[0][1] == pytest.approx(0, abs=0.005)
            and points[-1][1] == pytest.approx(1, abs=0.005)
        )
        assert points == sorted(points)
        for seconds, share in points[1:]:
            # 1 % of time is less than a pixel, in which some requests may lie.
            assert (
                np.mean(np.array(values) <= 0.99 * seconds) - 0.005
                <= share
                <= np.mean(np.array(values) <= 1.01 * seconds) + 0.005
            )


def test_the_median_and_the_99th_percentile_are_marked_on_the_curve():
    picture = draw_distributions(TWO, "latency")
    seconds, share = axes(picture)
    assert set(marks(picture)) == {(name, percent) for name in TWO for percent in (50, 99)}
    for (name, percent), (x, y, _) in marks(picture).items():
        expected = sorted(TWO[name])[math.ceil(percent / 100 * len(TWO[name])) - 1]
        assert seconds(x) == pytest.approx(expected, rel=0.01) and share(y) == pytest.approx(percent / 100, abs=0.005)


def test_percentiles_are_values_that_occurred():
    picture = draw_distributions(
        {"hundred": [n + 1 for n in range(100)], "three": [1, 2, 30], "one": [0.25]}, "latency"
    )
    assert {key: words for key, (_, _, words) in marks(picture).items()} == {
        ("hundred", 50): "50 s", ("hundred", 99): "99 s", ("three", 50): "2 s", ("three", 99): "30 s", ("one", 50): "250 ms", ("one", 99): "250 ms",
    }  # fmt: skip
    assert "hundred, 100 requests: half within 50 s, 99 % within 99 s, all within 100 s." in picture.alt
    for words in ("50 s", "99 s", "2 s", "30 s", "250 ms", "100"):
        assert words in texts(picture)


def test_no_time_at_all_lies_at_the_left_edge():
    picture = draw_distributions({"queue": [0.0] * 60 + [0.5] * 30 + [2.0] * 10}, "queue time")
    (points,) = curves(picture, 1)
    left = points[0][0]
    assert left < 0.5 and max(share for seconds, share in points if seconds == pytest.approx(left)) == pytest.approx(
        0.6, abs=0.01
    )
    assert marks(picture)["queue", 50][2] == "0 ms"


@pytest.mark.parametrize("wrong", [-0.5, float("nan"), float("inf")])
def test_what_is_no_time_is_refused(wrong):
    with pytest.raises(ValueError, match=rf"'a' contains {wrong}; every value must be a number of seconds, 0 or more"):
        draw_distributions({"fine": [1.0], "a": [1.0, wrong]}, "latency")


@pytest.mark.parametrize(
    "values",
    [{}, {"none": []}, {"none": [], "zero": [0.0, 0.0], "one": [1.0]}, {"a": [10.0]}, {"a": [1e-9, 1e9]},
     {f"a long name of a policy, number {n}": [0.1 * n, 2, 3] for n in range(8)}, TWO],
    ids=["no runs", "empty", "zero", "one value", "far apart", "many names", "two"],
)  # fmt: skip
def test_all_values_can_be_drawn(values):
    alt = assert_sound(lambda: draw_distributions(values, "latency", "A title")).alt
    assert alt.startswith("A title: share of requests by latency, in seconds.")
    assert all(f"{name}: no requests." in alt for name in values if not len(values[name]))
    assert ("Nothing was measured." in alt) == (not values)
