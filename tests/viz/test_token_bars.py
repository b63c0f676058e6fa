"""Bars of token probabilities: every bar as long as its probability, what was cut hatched, what is left over shown."""

import math

import pytest
from svg_reading import assert_sound, elements, texts, titles

from lessons_lib.viz.charts.token_bars import draw_token_bars
from lessons_lib.viz.drawing.palette import NEUTRAL, SERIES

NAMES = [" was", " said", " and"]
COLUMNS = {"temperature 1": [0.5, 0.25, 0.125], "top_k 2": [0.75, 0.25, 0.0]}


def bars(picture, fill):
    """title -> width of the bars of one colour."""
    return {
        next(iter(rect)).text: float(rect.get("width"))
        for rect in elements(picture, "rect")
        if rect.get("fill") == fill and len(rect)
    }


def test_bars_are_in_proportion_over_all_columns():
    picture = draw_token_bars(NAMES, COLUMNS)
    found = bars(picture, SERIES[0])
    shares = {"temperature 1: ·was 50 %": 0.5, "temperature 1: ·said 25 %": 0.25, "temperature 1: ·and 12 %": 0.125}
    shares |= {"top_k 2: ·was 75 %": 0.75, "top_k 2: ·said 25 %": 0.25}
    assert found.keys() == shares.keys()
    unit = found["top_k 2: ·was 75 %"] / 0.75
    for title, share in shares.items():
        assert found[title] == pytest.approx(unit * share, abs=0.02)
    assert bars(picture, NEUTRAL) == {"temperature 1: all others 12 %": pytest.approx(unit * 0.125, abs=0.02)}


def test_what_is_never_drawn_is_hatched_and_said():
    picture = draw_token_bars(NAMES, COLUMNS)
    assert texts(picture).count("never") == 2 and "top_k 2: ·and never" in titles(picture)
    hatched = [rect for rect in elements(picture, "rect") if "hatch" in rect.get("fill")]
    assert len(hatched) == 2


def test_there_are_no_others_where_all_is_shown():
    picture = draw_token_bars(["a", "b"], {"x": [0.6, 0.4 - 1e-7]})
    assert "all others" not in texts(picture)


def test_the_words_say_the_same():
    alt = draw_token_bars(NAMES, COLUMNS, "After “The old dog”").alt
    assert alt.startswith("After “The old dog”. temperature 1: ·was 50 %, ·said 25 %, ·and 12 %, all others 12 %.")
    assert alt.endswith("top_k 2: ·was 75 %, ·said 25 %; 1 of 3 are never drawn.")


@pytest.mark.parametrize(
    "names, columns, words",
    [
        ([], {"x": []}, "0 names"),
        (["a"], {}, "0 columns"),
        (["a"], {"x": [0.5, 0.5]}, "2 values for 1 names"),
        (["a"], {"x": [-0.1]}, "0 to 1"),
        (["a", "b"], {"x": [0.8, 0.8]}, "at most 1"),
        (["a"], {"x": [math.nan]}, "0 to 1"),
    ],
)
def test_what_are_no_probabilities_is_refused(names, columns, words):
    with pytest.raises(ValueError, match=words):
        draw_token_bars(names, columns)


@pytest.mark.parametrize("count", [1, 2, 5, 6, 11])
def test_any_number_of_columns_can_be_drawn(count):
    columns = {f"setting {n} with a long name": [0.5, 0.5] for n in range(count)}
    picture = assert_sound(lambda: draw_token_bars(["a" * 60, "b\n"], columns))
    assert sum(text.startswith("setting") for text in texts(picture)) == count
