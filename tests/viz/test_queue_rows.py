"""The free queue before and after: every block is drawn once per row, and the alternative text says the same."""

import pytest
from svg_reading import elements, texts

from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.recording.queue_states import queue_state
from lessons_lib.viz.pressure.queue_rows import draw_free_queue


@pytest.fixture(scope="module")
def picture():
    pool, names = PrefixCache(4, 16), {b"a": "a", b"b": "b"}
    blocks = pool.allocate(2)
    for block, one in zip(blocks, (b"a", b"b")):
        pool.cache_full_block(block, one)
    states = [queue_state(pool, "X has two full blocks", names)]
    pool.free(blocks)
    states.append(queue_state(pool, "X has ended", names))
    pool.touch([0])
    states.append(queue_state(pool, "Y uses block 0", names))
    return draw_free_queue(states)


def test_the_words_say_what_is_drawn(picture):
    assert picture.alt == (
        "X has two full blocks: free queue 2, 3; in use 0 a × 1, 1 b × 1. "
        "X has ended: free queue 2, 3, 1 b, 0 a; in use none. "
        "Y uses block 0: free queue 2, 3, 1 b; in use 0 a × 1."
    )
    drawn = texts(picture)
    assert [drawn.count(label) for label in ("2", "3", "1 b", "0 a", "0 a ×1", "1 b ×1", "none")] == [
        3,
        3,
        2,
        1,
        2,
        1,
        1,
    ]


def test_changed_blocks_have_a_frame(picture):
    framed = [rect for rect in elements(picture, "rect") if rect.get("stroke-width") == "3"]
    assert len(framed) == 2 + 1 + 1  # both blocks in row 2, one in row 3, and the legend
