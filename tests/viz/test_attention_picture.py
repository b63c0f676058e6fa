"""The picture of one head over four tokens says which numbers the newest token needs."""

import re

from picture_cases import ROWS, WEIGHTS

from lessons_lib.viz.cache import draw_attention
from lessons_lib.viz.drawing.palette import NEUTRAL, SERIES


def test_what_is_new_and_what_is_cached():
    picture = draw_attention(["Once", " upon", " a"], ROWS, ROWS, ROWS, WEIGHTS, ROWS)
    # Of q, k, v, output 2 numbers each and 3 weights; keys and values of two tokens; and the legend.
    assert picture.svg.count(f'fill="{SERIES[3]}"') == 4 * 2 + 3 + 1
    assert picture.svg.count(f'fill="{NEUTRAL}"') == 2 * 2 * 2 + 1
    assert "Once 1.00; upon 0.25, 0.75; a 0.10, 0.20, 0.70" in picture.alt
    assert len(re.findall(r">0\.00<", picture.svg)) == 0  # a later token has no weight, rather than 0
