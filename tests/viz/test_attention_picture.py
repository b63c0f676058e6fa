"""The picture of one head over four tokens says which numbers the newest token needs."""

import re

import pytest

from lessons_lib.viz.cache import draw_attention
from lessons_lib.viz.drawing.palette import NEUTRAL, SERIES

Q = [[1.0, 0.0], [0.0, 1.0], [2.0, -1.0]]
WEIGHTS = [[1.0, 0.0, 0.0], [0.25, 0.75, 0.0], [0.1, 0.2, 0.7]]


def test_what_is_new_and_what_is_cached():
    picture = draw_attention(["Once", " upon", " a"], Q, Q, Q, WEIGHTS, Q)
    # Of q, k, v, output 2 numbers each and 3 weights; keys and values of two tokens; and the legend.
    assert picture.svg.count(f'fill="{SERIES[3]}"') == 4 * 2 + 3 + 1
    assert picture.svg.count(f'fill="{NEUTRAL}"') == 2 * 2 * 2 + 1
    assert "Once 1.00; upon 0.25, 0.75; a 0.10, 0.20, 0.70" in picture.alt
    assert len(re.findall(r">0\.00<", picture.svg)) == 0  # a later token has no weight, rather than 0


def test_too_many_numbers_are_refused():
    with pytest.raises(ValueError, match="7 tokens of 2 components"):
        draw_attention(list("abcdefg"), Q, Q, Q, WEIGHTS, Q)
