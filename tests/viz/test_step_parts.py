"""Where the time of steps goes: bars as high as the times, and shares that add up."""

import re
import time

import pytest
from svg_reading import elements, texts, titles

from lessons_lib.engine.metrics import EngineStep
from lessons_lib.viz.charts.step_parts import COLOURS, draw_step_parts

PARTS = ("schedule", "move", "forward", "sample", "update")


def a_step(*seconds, parts=PARTS):
    return EngineStep(0.0, dict(zip(parts, seconds)), 3, 1, 2, 2, 0, 5, 0, 0, 0)


TWO = [a_step(0.001, 0, 0.008, 0.0005, 0.0005), a_step(0.001, 0.001, 0.016, 0.001, 0.001)]


def heights(picture, part):
    """Of the bars of a part, in both panels, from left to right. The first is the legend."""
    return [float(rect.get("height")) for rect in elements(picture, "rect") if rect.get("fill") == COLOURS[part]][1:]


def test_bars_are_as_high_as_the_times():
    picture = draw_step_parts(TWO)
    first, second = heights(picture, "forward")
    assert second == pytest.approx(2 * first, abs=0.02)
    whole_1, whole_2, own_1, own_2 = heights(picture, "sample")
    assert whole_2 == pytest.approx(2 * whole_1, abs=0.02) and own_2 == pytest.approx(2 * own_1, abs=0.02)
    assert whole_2 / second == pytest.approx(1 / 16, abs=0.01), "one scale in a panel"
    assert own_2 / whole_2 == pytest.approx(20 / 4, rel=0.02), (
        "the second panel has the scale of what is the engine's own"
    )
    assert len(heights(picture, "move")) == 2, "what takes no time is not drawn"


def test_parts_stand_on_each_other():
    def first_bar(part):
        rect = [rect for rect in elements(picture, "rect") if rect.get("fill") == COLOURS[part]][1]
        return float(rect.get("y")), float(rect.get("y")) + float(rect.get("height"))

    picture = draw_step_parts(TWO[1:])
    for lower, upper in (("forward", "schedule"), ("schedule", "move"), ("move", "sample"), ("sample", "update")):
        assert first_bar(upper)[1] == pytest.approx(first_bar(lower)[0], abs=0.02)


def test_shares_are_told_and_add_up():
    picture = draw_step_parts(TWO, "Six stories")
    told = [text for text in texts(picture) if re.match(rf"({'|'.join(PARTS)}) ", text)]
    assert told == [
        "forward 80 %, 24 ms",
        "schedule 6.7 %, 2 ms",
        "move 3.3 %, 1 ms",
        "sample 5.0 %, 1.5 ms",
        "update 5.0 %, 1.5 ms",
    ]
    assert picture.alt.startswith("Six stories. 2 steps, 30 ms in all: forward 80 %, 24 ms; ") and picture.alt.endswith(
        "All but the model: 20 %."
    )
    assert "step 1: forward 8 ms, schedule 1 ms, move 0 ms, sample 0.5 ms, update 0.5 ms" in titles(picture)


def test_many_steps_are_averaged_and_it_is_said():
    steps = [a_step(0.001 * (n % 2), 0, 0.01, 0, 0) for n in range(1000)]
    started = time.process_time()
    picture = draw_step_parts(steps)
    assert time.process_time() - started < 1
    assert "1,000 steps, each bar the mean of 10" in texts(picture)
    assert len(heights(picture, "forward")) == 100
    assert "from step 11: forward 10 ms, schedule 0.5 ms, move 0 ms, sample 0 ms, update 0 ms" in titles(picture)
    assert len(draw_step_parts(steps[:101]).svg) < 60_000


def test_no_step_and_one_step():
    assert draw_step_parts([]).alt == "Where the time of a step goes. No steps yet."
    picture = draw_step_parts([a_step(0, 0, 0, 0, 0)])
    assert "1 step" in texts(picture)
    assert len(heights(draw_step_parts(TWO[:1]), "forward")) == 1


def test_parts_that_nobody_knows_are_drawn_too():
    picture = draw_step_parts([a_step(0.01, 0.02, parts=("forward", "graph"))])
    assert "graph 67 %, 20 ms" in texts(picture)
    assert "without the model" not in texts(draw_step_parts([a_step(0.01, parts=("forward",))]))


def test_all_bars_are_on_the_paper():
    for count in (1, 2, 40, 100, 101, 1000):
        picture = draw_step_parts([a_step(0.001, 0.001, 0.01, 0.001, 0.002)] * count)
        for rect in elements(picture, "rect"):
            assert float(rect.get("x") or 0) + float(rect.get("width")) <= 900.01
            assert float(rect.get("height")) >= 0 and float(rect.get("y") or 0) >= 0
