"""The pool as a grid: what is seen, what the mouse reads, what the words say, and what a wrong pool looks like."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from svg_reading import SVG, elements, texts, titles

from lessons_lib.kv_cache.block_pool import BlockPool
from lessons_lib.kv_cache.block_table import BlockTable
from lessons_lib.recording.pool_states import PoolState, TableState, named_blocks, pool_state
from lessons_lib.viz.drawing import palette
from lessons_lib.viz.pool.grid import draw_pool
from lessons_lib.viz.pool.lot import LOT_WIDTH, lay_out
from lessons_lib.viz.pool.words import ordinal


def pool_of(num_blocks, block_size, held, event="", changed=()):
    pool = BlockPool(num_blocks, block_size)
    tables = {name: BlockTable(pool) for name in held}
    for name, tokens in held.items():
        tables[name].append(tokens)
    return pool_state(pool, tables, event, changed)


SMALL = PoolState(
    12,
    4,
    (8, 9, 10, 11, 2, 1, 0),
    (TableState("B", (3, 4, 7, 6), 13), TableState("C", (5,), 2)),
    "B grows and takes block 6.",
    (6,),
)


def filled(picture, colour, start="block"):
    """Hover texts of the rectangles of one colour."""
    rects = [e for e in elements(picture, "rect") if e.get("fill") == colour and e.find(SVG + "title") is not None]
    return [e.find(SVG + "title").text for e in rects if e.find(SVG + "title").text.startswith(start)]


def height(picture):
    return float(ET.fromstring(picture.svg).get("height"))


# --- hover texts


def test_the_mouse_reads_a_block():
    hovers = titles(draw_pool(SMALL))
    assert "block 4: B, positions 4 to 7" in hovers
    assert (
        "block 6: B, position 12, 3 slots unused" in hovers
    )  # the fourth of the table, though not the fourth of the pool
    assert "block 5: C, positions 0 to 1, 2 slots unused" in hovers
    assert "block 8: free, 1st in the queue" in hovers
    assert "block 0: free, 7th in the queue" in hovers


def test_the_mouse_reads_a_cell():
    hovers = titles(draw_pool(SMALL))
    assert "block 7, offset 3: B, position 11, slot 31" in hovers
    assert "block 6, offset 0: B, position 12, slot 24" in hovers
    assert "block 6, offset 1: B, unused, kept for position 13, slot 25" in hovers
    assert len([h for h in hovers if "offset" in h]) == 5 * 4  # free blocks are read as a whole


@settings(max_examples=40, deadline=None, derandomize=True)
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


@pytest.mark.parametrize(
    "n, word",
    [
        (1, "1st"),
        (2, "2nd"),
        (3, "3rd"),
        (4, "4th"),
        (11, "11th"),
        (12, "12th"),
        (13, "13th"),
        (21, "21st"),
        (112, "112th"),
        (122, "122nd"),
    ],
)
def test_ordinals(n, word):
    assert ordinal(n) == word


# --- what is seen


def test_unused_cells_are_hatched_and_nothing_else():
    def hatched(state):
        return [float(e.get("width")) for e in elements(draw_pool(state), "rect") if "hatch" in e.get("fill")]

    legend = hatched(pool_of(12, 4, {"A": 8}))
    assert len(legend) == 1
    cell = lay_out(12, 4).cell
    assert sorted(hatched(SMALL)) == sorted([*legend, 3 * cell - 1, 2 * cell - 1])


def test_what_has_changed_is_framed_in_the_grid_and_in_the_table_or_the_queue():
    def frames(state):
        return sum(e.get("stroke") == palette.INK for e in elements(draw_pool(state), "rect"))

    assert frames(SMALL) == frames(replace(SMALL, changed=())) + 2
    assert frames(replace(SMALL, changed=(2, 1, 0))) == frames(replace(SMALL, changed=())) + 6


def test_tables_show_blocks_in_the_order_of_tokens_and_what_is_unused():
    shown = texts(draw_pool(SMALL))
    at = shown.index("13 tokens, 3 unused")
    assert shown[at - 5 : at] == ["B", "3", "4", "7", "6"]
    assert "2 tokens, 2 unused" in shown
    assert "block tables: none" in texts(draw_pool(pool_of(4, 4, {})))


def test_a_short_queue_is_shown_whole_and_in_order():
    shown = texts(draw_pool(SMALL))
    at = shown.index("free queue, 7 blocks: 8 is allocated next; freed blocks join the end")
    assert shown[at + 1 : at + 8] == ["8", "9", "10", "11", "2", "1", "0"]
    assert "free queue: empty" in texts(draw_pool(pool_of(2, 4, {"A": 8})))


@pytest.mark.parametrize("num_blocks", [60, 64, 200, 1000])
def test_a_long_queue_is_cut_in_the_middle_and_counted(num_blocks):
    queue = tuple(reversed(range(num_blocks)))
    shown = texts(draw_pool(PoolState(num_blocks, 4, queue, ())))
    (more,) = [t for t in shown if t.startswith("…")]
    at = shown.index(more)
    head = shown[shown.index(next(t for t in shown if t.startswith("free queue"))) + 1 : at]
    tail = shown[at + 1 : shown.index("block tables: none")]
    assert [int(t) for t in head] == list(queue[: len(head)])
    assert [int(t) for t in tail] == list(queue[-len(tail) :])
    assert len(head) > 10 and len(tail) > 5
    assert more == f"… and {num_blocks - len(head) - len(tail)} more …"


def test_sums():
    assert "5 of 12 blocks allocated (42 %); 5 of 20 slots in the tables empty (25 %)" in texts(draw_pool(SMALL))
    assert "0 of 0 blocks allocated (0 %)" in texts(draw_pool(pool_of(0, 4, {})))


def test_the_event_stands_on_top_and_a_long_one_takes_two_lines():
    def first_bay(state):
        return next(e.get("y") for e in elements(draw_pool(state), "rect") if e.find(SVG + "title") is not None)

    long = "A " + "rather " * 18 + "long event."
    assert texts(draw_pool(SMALL))[0] == SMALL.event
    lines = texts(draw_pool(replace(SMALL, event=long)))[:2]
    assert " ".join(lines) == long
    assert first_bay(SMALL) == first_bay(replace(SMALL, event=long))
    assert texts(draw_pool(replace(SMALL, event=long * 3)))[1].endswith(" …")


def test_the_picture_stays_in_place_while_a_pool_fills():
    states = [pool_of(40, 16, dict.fromkeys("ABCDEF"[:n], 20 * n), "Something.") for n in range(6)]
    assert len({height(draw_pool(state)) for state in states}) == 1


@pytest.mark.parametrize(
    "num_blocks, block_size",
    [
        (12, 4),
        (40, 16),
        (64, 16),
        *((40, 2**n) for n in range(7)),
        *((64, 2**n) for n in range(7)),
        (0, 1),
        (1, 1),
        (7, 5),
        (1000, 16),
    ],
)
def test_the_grid_fits_its_place(num_blocks, block_size):
    lot = lay_out(num_blocks, block_size)
    assert lot.width <= LOT_WIDTH
    assert lot.per_line * lot.lines >= block_size and lot.columns * lot.rows >= num_blocks
    assert lot.height <= 470 or num_blocks > 64
    picture = draw_pool(pool_of(num_blocks, block_size, {}))
    assert len([t for t in titles(picture) if t.startswith("block 0:")]) == (
        2 if num_blocks else 0
    )  # in the grid and in the queue
    foot = height(picture)
    for rect in elements(picture, "rect"):
        assert float(rect.get("x", 0)) + float(rect.get("width")) <= 900
        assert float(rect.get("y", 0)) + float(rect.get("height")) <= foot


def test_small_cells_become_bars():
    picture = draw_pool(pool_of(64, 64, {"A": 64 * 3 + 5}))
    assert "block 3: A, positions 192 to 196, 59 slots unused" in titles(picture)
    assert not any("offset" in t for t in titles(picture))
    assert len(picture.svg) < 100_000


# --- words


def test_the_pool_in_words():
    assert draw_pool(SMALL).alt == (
        "B grows and takes block 6. Pool of 12 blocks with 4 slots each. B: 13 tokens in blocks 3, 4, 7, 6, 3 slots "
        "unused. "
        "C: 2 tokens in block 5, 2 slots unused. Free queue: blocks 8 to 11, 2, 1, 0, the first of them next. "
        "Just allocated or freed: block 6. 5 of 12 blocks allocated (42 %); 5 of 20 slots in the tables empty (25 %)."
    )


def test_an_empty_pool_in_words():
    assert draw_pool(pool_of(4, 4, {})).alt == (
        "Pool of 4 blocks with 4 slots each. No request has a table. Free queue: blocks 0 to 3, the first of them "
        "next. 0 of 4 blocks allocated (0 %)."
    )


@pytest.mark.parametrize(
    "blocks, words",
    [
        ((), "no block"),
        ((7,), "block 7"),
        ((2, 1, 0), "blocks 2, 1, 0"),
        ((0, 1, 2), "blocks 0, 1, 2"),
        ((3, 0, 1, 2, 3, 9), "blocks 3, 0 to 3, 9"),
    ],
)
def test_blocks_in_words(blocks, words):
    assert named_blocks(blocks) == words


def test_the_picture_is_sound_and_always_the_same():
    for state in (SMALL, pool_of(64, 16, {"A": 100}), pool_of(0, 1, {})):
        picture = draw_pool(state)
        assert draw_pool(state) == picture
        root = ET.fromstring(picture.svg)
        assert root.get("role") == "img" and root.get("aria-label") == picture.alt
        assert set(re.findall(r"url\(#([^)]+)\)", picture.svg)) <= set(re.findall(r'id="([^"]+)"', picture.svg))


def test_a_hostile_name_is_only_text():
    picture = draw_pool(pool_of(4, 4, {'<b>"': 5}, event="<script>"))
    assert "<script>" not in picture.svg and "<b>" not in picture.svg
    assert 'block 0: <b>", positions 0 to 3' in titles(picture)


# --- pools that are wrong


@pytest.mark.parametrize(
    "tables, queue, sentence",
    [
        ((TableState("A", (0, 1), 5), TableState("B", (1,), 2)), (2, 3), "Block 1 is listed 2 times: by A and by B."),
        ((TableState("A", (0, 0), 5),), (1, 2, 3), "Block 0 is listed 2 times: by A and by A."),
        ((TableState("A", (0, 1), 5),), (1, 2, 3), "Block 1 is in the table of A and free at once."),
        ((), (0, 1, 2, 3, 1), "More than once in the free queue: block 1."),
        ((TableState("A", (4, -1), 5),), (0, 1, 2, 3), "Not of this pool: blocks 4, -1."),
        ((TableState("A", (0,), 5),), (1, 2, 3), "A has 1 token more than its blocks have slots."),
    ],
)
def test_what_cannot_be_is_said(tables, queue, sentence):
    picture = draw_pool(PoolState(4, 4, queue, tables))
    assert sentence in texts(picture)
    assert picture.alt.endswith(sentence)


def test_a_sound_pool_is_not_accused():
    assert "!" not in texts(draw_pool(SMALL))


def test_many_faults_are_counted():
    state = PoolState(12, 4, tuple(range(12)), (TableState("A", tuple(range(10)), 40),))
    shown = texts(draw_pool(state))
    assert shown.count("!") == 4 and "… and 7 more." in shown


def test_blocks_handed_out_in_no_table_are_grey():
    picture = draw_pool(PoolState(4, 4, (2, 3), (), changed=(0, 1)))
    assert filled(picture, palette.NEUTRAL) == ["block 0: allocated, in no table", "block 1: allocated, in no table"]
    assert "Allocated, in no table: blocks 0, 1." in picture.alt
    assert "2 of 4 blocks allocated (50 %); 2 blocks in no table" in texts(picture)


def test_a_block_held_twice_carries_both_letters():
    assert "A+B" in texts(draw_pool(PoolState(4, 4, (2, 3), (TableState("A", (0, 1), 5), TableState("B", (1,), 2)))))
