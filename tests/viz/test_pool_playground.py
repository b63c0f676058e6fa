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


def drawn(playground, event="", changed=()):
    return draw_pool(pool_state(playground.pool, playground.tables, event, changed))


def test_requests_come_grow_and_go_and_the_blocks_that_changed_are_framed():
    playground = PoolPlayground(BlockPool(12, 4))
    first = (playground.picture.value, said(playground))
    for act, words, changed in (
        (lambda: append(playground, "B", 5), "B, now 5 tokens, arrives and takes blocks 0, 1.", (0, 1)),
        (lambda: append(playground, "B", 3), "B, now 8 tokens, needs no new block.", ()),
        (lambda: append(playground, "B", 1), "B, now 9 tokens, grows and takes block 2.", (2,)),
        (lambda: append(playground, "A", 1), "A, now 1 token, arrives and takes block 3.", (3,)),
        (lambda: free(playground, "B"), "B frees blocks 0 to 2.", (0, 1, 2)),
    ):
        assert act() == words and playground.picture.value == live_html(drawn(playground, changed=changed))
    assert list(playground.tables) == ["A"] and list(playground.pool.free_queue)[-3:] == [2, 1, 0]
    assert drawn(playground, words, changed)._repr_mimebundle_().items() <= playground._repr_mimebundle_().items()
    playground.again_button.click()
    assert (playground.picture.value, said(playground)) == first and not playground.tables


def test_starting_again_begins_with_the_pool_as_it_was():
    pool = BlockPool(12, 4)
    pool.allocate(2)
    playground = PoolPlayground(pool)
    append(playground, "A", 9)
    playground.again_button.click()
    assert list(playground.pool.free_queue) == list(pool.free_queue) == list(range(2, 12))


@pytest.mark.parametrize("request_", ["A", "B"])
def test_a_call_that_is_refused_changes_nothing(request_):
    playground = PoolPlayground(BlockPool(4, 4))
    append(playground, "A", 9)
    before = drawn(playground)
    text = append(playground, request_, 9)
    assert text.startswith("Refused. OutOfBlocks:") and text.endswith(
        "1 free of 4. Free a finished request, stop a running one, or make the pool larger. Nothing was allocated."
    )
    assert drawn(playground) == before and playground.picture.value == live_html(before)


def test_a_full_table_and_a_request_without_blocks_are_told():
    playground = PoolPlayground(BlockPool(12, 4), new_table=lambda pool: BlockTable(pool, max_blocks=2))
    words = "Refused. TableFull: 9 tokens need 3 blocks of 4; this table may hold 2."
    assert append(playground, "A", 9).startswith(words) and not playground.tables
    assert free(playground, "A").startswith("A owns no blocks: there is nothing to free.")


class Broken(BlockTable):
    def append(self, count=1):
        raise KeyError("<b>")

    def release(self):
        return 1 / 0


def test_mistakes_of_a_learner_become_messages():
    playground = PoolPlayground(BlockPool(4, 4), new_table=Broken)
    assert append(playground, "A", 1) == "Refused. KeyError: '<b>'" and "<b>" not in playground.message.value
    playground.tables["A"] = Broken(playground.pool)
    assert free(playground, "A") == "Refused. ZeroDivisionError: division by zero"
    assert append(PoolPlayground(BlockPool(4, 4), new_table=None), "A", 1).startswith("Refused. TypeError")


@pytest.mark.parametrize("pool", [None, object(), (i for i in "ab")])
def test_what_is_no_pool_becomes_a_message(pool):
    playground = PoolPlayground(pool)
    assert "could not be drawn. AttributeError" in playground.picture.value
    assert append(playground, "A", 1).startswith("Refused.")
    playground.again_button.click()
    assert "could not be drawn" in playground._repr_mimebundle_()["text/plain"]
