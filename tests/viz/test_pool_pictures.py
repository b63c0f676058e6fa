"""The pool as a grid: what is seen, what the mouse reads, what the words say, and what a wrong pool looks like."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from picture_cases import SMALL_POOL, pool_of
from svg_reading import SVG, elements, texts

from lessons_lib.recording.pool_states import PoolState, named_blocks
from lessons_lib.viz.drawing import palette
from lessons_lib.viz.pool.grid import draw_pool
from lessons_lib.viz.pool.lot import LOT_WIDTH, lay_out
from lessons_lib.viz.pool.words import ordinal


def filled(picture, colour, start="block"):
    """Hover texts of the rectangles of one colour."""
    rects = [e for e in elements(picture, "rect") if e.get("fill") == colour and e.find(SVG + "title") is not None]
    return [e.find(SVG + "title").text for e in rects if e.find(SVG + "title").text.startswith(start)]


# --- hover texts


@settings(max_examples=40)
@given(block_size=st.sampled_from([1, 2, 3, 4, 7, 8, 16]), held=st.lists(st.integers(0, 12), max_size=5))
def test_every_cell_in_a_table_is_drawn_once_and_in_its_colour(block_size, held):
    state = pool_of(64, block_size, dict(zip("ABCDE", held)))
    picture = draw_pool(state)
    for table in state.tables:
        full = filled(picture, palette.color_of(table.request))
        pale = filled(picture, palette.tint(palette.color_of(table.request)))
        slots = [block * block_size + offset for block in table.blocks for offset in range(block_size)]
        assert sorted(int(h.split("slot ")[1]) for h in full if "offset" in h) == sorted(slots[: table.num_tokens])
        assert sorted(int(h.split("slot ")[1]) for h in pale if "offset" in h) == sorted(slots[table.num_tokens :])


def test_ordinals():
    said = ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "112th", "122nd"]
    assert [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 112, 122)] == said


# --- what is seen


def test_what_has_changed_is_framed_in_the_grid_and_in_the_table_or_the_queue():
    def frames(state):
        return sum(e.get("stroke") == palette.INK for e in elements(draw_pool(state), "rect"))

    assert frames(SMALL_POOL) == frames(replace(SMALL_POOL, changed=())) + 2
    assert frames(replace(SMALL_POOL, changed=(2, 1, 0))) == frames(replace(SMALL_POOL, changed=())) + 6


@pytest.mark.parametrize(
    "num_blocks, block_size",
    [(12, 4), (40, 1), (40, 16), (40, 64), (64, 1), (64, 16), (64, 64), (0, 1), (1, 1), (7, 5), (1000, 16)],
)
def test_a_pool_of_any_size_has_room(num_blocks, block_size):
    lot = lay_out(num_blocks, block_size)
    assert lot.width <= LOT_WIDTH and (lot.height <= 660 or num_blocks > 64)
    assert lot.per_line * lot.lines >= block_size and lot.columns * lot.rows >= num_blocks


# --- words


def test_the_pool_in_words():
    assert draw_pool(SMALL_POOL).alt == (
        "B grows and takes block 6. Pool of 12 blocks with 4 slots each. B: 13 tokens in blocks 3, 4, 7, 6, 3 slots "
        "unused. "
        "C: 2 tokens in block 5, 2 slots unused. Free queue: blocks 8 to 11, 2, 1, 0, the first of them next. "
        "Just allocated or freed: block 6. 5 of 12 blocks allocated (42 %); 5 of 20 slots in the tables empty (25 %)."
    )


def test_blocks_in_words():
    assert named_blocks(()) == "no block" and named_blocks((7,)) == "block 7"
    assert named_blocks((2, 1, 0)) == "blocks 2, 1, 0" and named_blocks((0, 1, 2)) == "blocks 0, 1, 2"
    assert named_blocks((3, 0, 1, 2, 3, 9)) == "blocks 3, 0 to 3, 9"


def test_blocks_handed_out_in_no_table_are_grey():
    picture = draw_pool(PoolState(4, 4, (2, 3), (), changed=(0, 1)))
    assert filled(picture, palette.NEUTRAL) == ["block 0: allocated, in no table", "block 1: allocated, in no table"]
    assert "Allocated, in no table: blocks 0, 1." in picture.alt
    assert "2 of 4 blocks allocated (50 %); 2 blocks in no table" in texts(picture)
