"""The pool to play with, driven by its buttons without a browser."""

import xml.etree.ElementTree as ET

import pytest

from lessons_lib.kv_cache.block_pool import BlockPool
from lessons_lib.kv_cache.block_table import BlockTable
from lessons_lib.recording.pool_states import pool_state
from lessons_lib.viz.drawing.picture import live_html
from lessons_lib.viz.pool.grid import draw_pool

pytest.importorskip("ipywidgets")
from lessons_lib.viz.pool.playground import PoolPlayground


def append(playground, request, tokens):
    """Choose, type, click; returns what the playground says."""
    playground.request.value, playground.tokens.value = request, tokens
    playground.append_button.click()
    return said(playground)


def free(playground, request):
    playground.request.value = request
    playground.free_button.click()
    return said(playground)


def said(playground):
    return "".join(ET.fromstring(playground.message.value).itertext())


def state(playground):
    return pool_state(playground.pool, playground.tables)


def test_requests_come_grow_and_go():
    playground = PoolPlayground(BlockPool(12, 4))
    assert append(playground, "B", 5) == "B, now 5 tokens, arrives and takes blocks 0, 1."
    assert append(playground, "B", 3) == "B, now 8 tokens, needs no new block."
    assert append(playground, "B", 1) == "B, now 9 tokens, grows and takes block 2."
    assert append(playground, "A", 1) == "A, now 1 token, arrives and takes block 3."
    assert free(playground, "B") == "B frees blocks 0, 1, 2."
    assert list(playground.tables) == ["A"]
    assert list(playground.pool.free_queue)[-3:] == [2, 1, 0]


def test_the_picture_is_that_of_the_pool_with_the_changed_blocks_framed():
    playground = PoolPlayground(BlockPool(12, 4))
    append(playground, "B", 5)
    assert playground.picture.value == live_html(
        draw_pool(pool_state(playground.pool, playground.tables, changed=(0, 1)))
    )
    free(playground, "B")
    assert playground.picture.value == live_html(draw_pool(pool_state(playground.pool, {}, changed=(0, 1))))
    append(playground, "C", 0)
    assert playground.picture.value == live_html(draw_pool(pool_state(playground.pool, playground.tables)))


@pytest.mark.parametrize("known", [False, True])
def test_a_call_that_is_refused_changes_nothing(known):
    playground = PoolPlayground(BlockPool(4, 4))
    append(playground, "A", 9)
    before = state(playground)
    text = append(playground, "A" if known else "B", 9)
    assert text.startswith("Refused. OutOfBlocks:") and text.endswith(
        "1 free of 4. Free a finished request, stop a running one, or make the pool larger. Nothing was allocated."
    )
    assert state(playground) == before
    assert playground.picture.value == live_html(draw_pool(before))  # nothing framed any more


def test_a_full_table_is_told():
    playground = PoolPlayground(BlockPool(12, 4), new_table=lambda pool: BlockTable(pool, max_blocks=2))
    assert append(playground, "A", 9).startswith(
        "Refused. TableFull: 9 tokens need 3 blocks of 4; this table may hold 2."
    )
    assert not playground.tables


def test_freeing_what_holds_nothing_is_told():
    playground = PoolPlayground(BlockPool(12, 4))
    append(playground, "A", 2)
    free(playground, "A")
    for request in "AB":
        assert free(playground, request).startswith(f"{request} owns no blocks: there is nothing to free.")
    assert len(playground.pool.free_queue) == 12


def test_starting_again_begins_with_the_pool_as_it_was():
    pool = BlockPool(12, 4)
    pool.allocate(2)
    playground = PoolPlayground(pool)
    first = (playground.picture.value, said(playground))
    append(playground, "A", 9)
    free(playground, "A")
    assert list(playground.pool.free_queue)[:2] == [5, 6]
    playground.again_button.click()
    assert (playground.picture.value, said(playground)) == first
    assert list(playground.pool.free_queue) == list(pool.free_queue) == list(range(2, 12))
    assert not playground.tables


class Broken(BlockTable):
    def append(self, count=1):
        raise KeyError("<b>")

    def release(self):
        return 1 / 0


def test_mistakes_of_a_learner_become_messages():
    playground = PoolPlayground(BlockPool(4, 4), new_table=Broken)
    assert append(playground, "A", 1) == "Refused. KeyError: '<b>'"
    assert "<b>" not in playground.message.value
    playground.tables["A"] = Broken(playground.pool)
    assert free(playground, "A") == "Refused. ZeroDivisionError: division by zero"
    assert PoolPlayground(BlockPool(4, 4), new_table=None).append_button.click() is None


@pytest.mark.parametrize("pool", [None, 5, object(), (i for i in "ab")])
def test_what_is_no_pool_becomes_a_message(pool):
    playground = PoolPlayground(pool)
    assert "could not be drawn. AttributeError" in playground.picture.value
    assert append(playground, "A", 1).startswith("Refused.")
    free(playground, "A")
    playground.again_button.click()
    assert "could not be drawn" in playground._repr_mimebundle_()["text/plain"]


def test_a_still_picture_with_the_last_event_is_left_behind():
    playground = PoolPlayground(BlockPool(12, 4))
    append(playground, "B", 5)
    still = draw_pool(
        pool_state(playground.pool, playground.tables, "B, now 5 tokens, arrives and takes blocks 0, 1.", (0, 1))
    )
    bundle = playground._repr_mimebundle_()
    assert still._repr_mimebundle_().items() <= bundle.items()
    assert "application/vnd.jupyter.widget-view+json" in bundle
