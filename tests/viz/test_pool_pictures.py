"""The pool as a grid: what is seen, what the mouse reads, what the words say, and what a wrong pool looks like."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from picture_cases import SMALL_POOL, pool_of
from svg_reading import SVG, elements, texts

from lessons_lib.recording.pool_states import PoolState
from lessons_lib.recording.words import numbered
from lessons_lib.viz.drawing import palette
from lessons_lib.viz.pool.bays import LOT_WIDTH, lay_out
from lessons_lib.viz.pool.grid import draw_pool


def filled(picture, colour, start="block"):
    """Hover texts of the rectangles of one colour."""
    rects = [e for e in elements(picture, "rect") if e.get("fill") == colour and e.find(SVG + "title") is not None]
    return [e.find(SVG + "title").text for e in rects if e.find(SVG + "title").text.startswith(start)]


@settings(max_examples=40)
@given(block_size=st.sampled_from([1, 2, 3, 4, 7, 8, 16]), held=st.lists(st.integers(0, 12), max_size=5))
def test_every_cell_in_a_table_is_drawn_once_and_in_its_colour(block_size, held):
    state = pool_of(64, block_size, dict(zip("ABCDE", held)))
    picture = draw_pool(state)
    for table in state.tables:
        color = palette.color_of(table.request)
        full, pale = (
            sorted(int(title.split(":")[0].removeprefix("slot ")) for title in filled(picture, fill, "slot"))
            for fill in (color, palette.tint(color))
        )
        slots = [block * block_size + offset for block in table.blocks for offset in range(block_size)]
        assert (full, pale) == (sorted(slots[: table.num_tokens]), sorted(slots[table.num_tokens :]))


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


def test_the_pool_in_words():
    assert draw_pool(SMALL_POOL).alt == (
        "B grows and takes block 6. Pool of 12 blocks with 4 slots each. B: blocks 3, 4, 7, 6; 13 tokens, 3 unused. "
        "C: block 5; 2 tokens, 2 unused. Free queue: blocks 8 to 11, 2, 1, 0, the first of them next. "
        "5 of 12 blocks allocated (42 %); 5 of 20 slots in the tables empty (25 %)."
    )


def test_blocks_in_words():
    assert numbered("block", ()) == "no block" and numbered("block", (7,)) == "block 7"
    assert numbered("block", (2, 1, 0)) == "blocks 2, 1, 0" and numbered("block", (0, 1, 2)) == "blocks 0 to 2"
    assert numbered("block", (3, 0, 1, 3, 9)) == "blocks 3, 0, 1, 3, 9"


def test_blocks_handed_out_in_no_table_are_grey():
    picture = draw_pool(PoolState(4, 4, (2, 3), (), changed=(0, 1)))
    assert filled(picture, palette.NEUTRAL) == ["block 0: allocated, in no table", "block 1: allocated, in no table"]
    assert "2 of 4 blocks allocated (50 %); 2 blocks in no table" in texts(picture)


def test_a_block_is_linked_with_its_table_entry_and_a_free_one_with_the_queue():
    rects = [rect for rect in elements(draw_pool(SMALL_POOL), "rect") if rect.get("data-link")]
    for block, owner in ((4, "B"), (5, "C"), (8, "free")):
        titled = [rect for rect in rects if rect.get("data-link") == f"{owner}/{block}"]
        moving = [rect for rect in titled if rect.get("data-moves") == f"block {block}"]
        assert len(moving) == 1 and len(titled) > 1, (block, owner)
