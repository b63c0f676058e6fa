"""Pictures of lesson 08: the roofline, programs against processors, the sweep over tiles, lying bars, and the places of
labels.
"""

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from svg_reading import SVG, box, elements, texts, titles

from lessons_lib.measuring.roofline import Machine, Work
from lessons_lib.viz.charts.bars import draw_bars
from lessons_lib.viz.charts.program_grid import draw_programs
from lessons_lib.viz.charts.roofline import RooflinePoint, draw_roofline
from lessons_lib.viz.charts.tile_sweep import draw_sweep
from lessons_lib.viz.drawing.label_places import Box, place_labels

MACHINE = Machine("a machine", 1e12, 1e14)  # ridge at 100


def titled(picture):
    """(what answers the mouse, its title) of all."""
    return [(e, e.findtext(SVG + "title")) for e in elements(picture, "rect") if e.find(SVG + "title") is not None]


# --- roofline


def axis(picture, is_x):
    """(value, pixel) of the ticks along the bottom or up the left edge."""
    ticks = []
    for element in elements(picture, "text"):
        if re.fullmatch(r"[\d,.]+", element.text) and (element.get("text-anchor") == "middle") == is_x:
            y = float(element.get("y")) - 0.35 * float(element.get("font-size"))
            ticks.append((float(element.text.replace(",", "")), float(element.get("x")) if is_x else y))
    return ticks


def on_axis(ticks, value):
    (low, start), (high, end) = ticks[0], ticks[-1]
    return start + math.log(value / low) / math.log(high / low) * (end - start)


def test_points_ridge_and_limits_lie_where_the_logarithmic_axes_say():
    points = [
        RooflinePoint("slow", Work(1000, 4000), 4000 / 2e12, "one"),
        RooflinePoint("fast", Work(10, 10000), 10000 / 5e13, "other"),
    ]
    picture = draw_roofline(MACHINE, points)
    x_ticks, y_ticks = axis(picture, True), axis(picture, False)
    assert (
        all(place == pytest.approx(on_axis(x_ticks, value), abs=0.1) for value, place in x_ticks) and len(x_ticks) > 3
    )
    for sign, title in titled(picture):
        x, y, width, height = box(sign)
        for point in points:
            if title.startswith(f"{point.series}, {point.name}"):
                assert x + width / 2 == pytest.approx(on_axis(x_ticks, point.work.intensity), abs=0.1)
                assert y + height / 2 == pytest.approx(on_axis(y_ticks, point.flop_per_s / 1e12), abs=0.1)
    roof = next(p.get("d") for p in elements(picture, "path") if p.get("stroke-width") == "2.5")
    left, low, ridge, top, right = map(
        float, re.fullmatch(r"M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)H([\d.]+)", roof).groups()
    )
    assert ridge == pytest.approx(on_axis(x_ticks, 100), abs=0.1) and top == pytest.approx(
        on_axis(y_ticks, 100), abs=0.1
    )
    # On the slope, the operations a second are the intensity times the bytes a second.
    intensity = x_ticks[0][0] * math.exp(
        (left - x_ticks[0][1]) / (x_ticks[-1][1] - x_ticks[0][1]) * math.log(x_ticks[-1][0] / x_ticks[0][0])
    )
    assert low == pytest.approx(on_axis(y_ticks, intensity), abs=0.2) and right > ridge


@pytest.mark.parametrize("work, seconds", [(Work(1, 1), 0.0), (Work(0, 1), 1.0), (Work(1, 0), 1.0)])
def test_a_point_without_time_or_work_is_refused(work, seconds):
    with pytest.raises(ValueError, match="point 'x' has"):
        draw_roofline(MACHINE, [RooflinePoint("x", work, seconds, "one")])


# --- places of labels


@settings(max_examples=30)
@given(st.lists(st.tuples(st.floats(100, 400), st.floats(100, 300)), max_size=12), st.floats(10, 120))
def test_labels_never_meet_while_there_is_room(points, width):
    area = Box(0, 0, 900, 600)
    taken = [Box(400, 290, 600, 310)]
    boxes = place_labels(points, [width] * len(points), 16, area, taken, 8)
    assert len(boxes) == len(points)
    for index, label in enumerate(boxes):
        assert label.is_within(area) and label.right - label.left == pytest.approx(width)
        assert not any(label.meets(other) for other in [*taken, *boxes[:index]])
        assert not any(label.meets(Box(x - 8, y - 8, x + 8, y + 8)) for x, y in points)


# --- programs


def program_cells(picture):
    found = [re.match(r"(\d+) sequences? of ([\d,]+) tokens: .* = ([\d,]+) programs? for (\d+) processors, ([\d.,]+) each(?:; (\d+) processors? without work)?", t)
             for _, t in titled(picture)]  # fmt: skip
    return {
        (int(m[1]), int(m[2].replace(",", ""))): (int(m[3].replace(",", "")), m[5], int(m[6] or 0)) for m in found if m
    }


def test_programs_are_sequences_times_heads_times_splits():
    picture = draw_programs([1, 16, 64], [512, 8192], 8, 132, lambda batch, context: context // 512)
    assert program_cells(picture) == {
        (1, 512): (8, "0.06", 124), (1, 8192): (128, "0.97", 4),
        (16, 512): (128, "0.97", 4), (16, 8192): (2048, "16", 0),
        (64, 512): (512, "3.9", 0), (64, 8192): (8192, "62", 0),
    }  # fmt: skip
    assert (
        "1 sequence of 8,192 tokens: 1 × 8 KV heads × 16 splits = 128 programs for 132 processors, 0.97 each; 4 "
        "processors without work" in titles(picture)
    )
    assert "1 sequence of 512 tokens, 1 split: 8 programs, 0.06 per processor, 124 without work." in picture.alt
    assert "64 sequences of 8,192 tokens, 16 splits: 8,192 programs, 62 per processor." in picture.alt


# --- sweep


def tile(rows, keys, warps, stages, us):
    return {"rows": rows, "keys": keys, "warps": warps, "stages": stages, "us": us}


SWEEP = [tile(16, 32, 4, 2, 30.0), tile(16, 32, 4, 3, 20.0), tile(16, 64, 4, 2, None), tile(16, 64, 8, 3, 100.0)]


def test_every_combination_has_its_cell_and_the_fastest_a_frame():
    picture = draw_sweep(SWEEP, title="decode")
    cells = {title: e for e, title in titled(picture)}
    assert set(cells) == {
        "16 rows, 32 keys, 4 warps, 2 stages: 30.0 µs, 1.50 times the fastest",
        "16 rows, 32 keys, 4 warps, 3 stages: 20.0 µs, 1.00 times the fastest",
        "16 rows, 32 keys, 8 warps, 3 stages: not tried",
        "16 rows, 64 keys, 4 warps, 2 stages: does not fit, or does not compile",
        "16 rows, 64 keys, 4 warps, 3 stages: not tried",
        "16 rows, 64 keys, 8 warps, 3 stages: 100.0 µs, 5.00 times the fastest",
    }
    frames = [box(e) for e in elements(picture, "rect") if e.get("stroke-width") == "3"]
    x, y, _, _ = box(next(e for title, e in cells.items() if "1.00 times" in title))
    assert frames[0][:2] == (x + 1.5, y + 1.5) and len(frames) == 2  # the other is the legend's
    shown = texts(picture)
    assert (
        shown[0] == "decode: the fastest takes 20.0 µs, the slowest 100.0 µs"
        and "–" in shown
        and "does not fit, or does not compile" in shown
    )
    assert (
        "The fastest has 16 rows, 32 keys, 4 warps, 3 stages: 20.0 µs." in picture.alt
        and "16 rows, 64 keys, 4 warps, 2 stages: does not fit." in picture.alt
    )


def test_a_sweep_needs_a_time_and_no_combination_twice():
    with pytest.raises(ValueError, match="none of 1 combinations has a time"):
        draw_sweep([tile(1, 2, 3, 4, None)])
    with pytest.raises(ValueError, match="2 combinations, of which only 1 differ"):
        draw_sweep([tile(1, 2, 3, 4, 5.0), tile(1, 2, 3, 4, 6.0)])


# --- bars


def bars(picture):
    return {title.split(":")[0]: box(e) for e, title in titled(picture)}


def test_bars_are_as_long_as_their_values_and_say_how_much_longer_than_the_shortest():
    picture = draw_bars(
        {"ours": 10.0, "a peer with a long name": 25.0, "nothing": 0.0}, "µs", title="Times", own=["ours"]
    )
    lengths = {name: width for name, (_, _, width, _) in bars(picture).items()}
    assert (
        lengths["a peer with a long name"] == pytest.approx(2.5 * lengths["ours"], rel=1e-3) and lengths["nothing"] == 1
    )
    assert {"ours", "10 µs", "25 µs", "0 µs", "Times"} <= set(texts(picture))
    assert picture.alt == "Times. ours: 10 µs; a peer with a long name: 25 µs; nothing: 0 µs."
    hover = titles(draw_bars({"a": 10.0, "b": 25.0}, "µs", limit=("at least", 5.0)))
    assert hover == ["a: 10 µs, 2 times the limit", "b: 25 µs, 2.5 times the shortest, 5 times the limit"]


def test_bars_need_values_that_have_a_length():
    for values in ({}, {"a": -1.0}):
        with pytest.raises(ValueError, match="each must be 0 or more"):
            draw_bars(values, "µs")
