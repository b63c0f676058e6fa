"""Where the time of steps goes: bars as high as the times, and shares that add up."""

import re

import pytest
from svg_reading import assert_sound, elements, texts, titles

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


@pytest.mark.parametrize("count", [0, 1, 2, 100, 101, 1000])
def test_any_number_of_steps_can_be_drawn(count):
    picture = assert_sound(lambda: draw_step_parts([a_step(0.001, 0.001, 0.01, 0.001, 0.002)] * count))
    assert count or picture.alt == "Where the time of a step goes. No steps yet."
    assert ("1,000 steps, each bar the mean of 10" in texts(picture)) == (count == 1000)
