"""The free queue before and after: every block is drawn once per row, and the alternative text says the same."""

import pytest
from picture_cases import queue_moments
from svg_reading import elements, texts

from lessons_lib.viz.pressure.queue_rows import draw_free_queue


@pytest.fixture(scope="module")
def picture():
    return draw_free_queue(queue_moments())


def test_the_words_say_what_is_drawn(picture):
    assert picture.alt == (
        "X has two full blocks: free queue 2, 3; in use 0 a × 1, 1 b × 1. "
        "X has ended: free queue 2, 3, 1 b, 0 a; in use none. "
        "Y uses block 0: free queue 2, 3, 1 b; in use 0 a × 1."
    )
    drawn = texts(picture)
    times = {label: drawn.count(label) for label in ("2", "3", "1 b", "0 a", "0 a ×1", "1 b ×1", "none")}
    assert times == {"2": 3, "3": 3, "1 b": 2, "0 a": 1, "0 a ×1": 2, "1 b ×1": 1, "none": 1}


def test_changed_blocks_have_a_frame(picture):
    framed = [rect for rect in elements(picture, "rect") if rect.get("stroke-width") == "3"]
    assert len(framed) == 2 + 1 + 1  # both blocks in row 2, one in row 3, and the legend
