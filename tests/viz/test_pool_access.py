"""What a packed row writes and reads in the pool: every cell is told and drawn as what it is, whatever the size of the
pool.
"""

import random
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from svg_reading import assert_sound, elements, height, texts, titles

from lessons_lib.recording.paged_steps import PagedStep
from lessons_lib.viz.drawing import palette
from lessons_lib.viz.pool.access import draw_pool_access
from lessons_lib.viz.pool.access_grid import drawn_as_squares
from lessons_lib.viz.pool.lot import lay_out


def step_of(num_blocks, block_size, sizes, seed=0):
    """A step with shuffled blocks.

    Args:
        sizes: request -> (tokens cached before, new tokens).
    """
    free, tables, written = list(range(num_blocks)), {}, {}
    random.Random(seed).shuffle(free)
    for name, (cached, new) in sizes.items():
        table = [free.pop() for _ in range(-(-(cached + new) // block_size))]
        tables[name] = tuple(table)
        written[name] = tuple(table[p // block_size] * block_size + p % block_size for p in range(cached, cached + new))
    return PagedStep(num_blocks, block_size, tables, written, {name: sum(size) for name, size in sizes.items()})


# B's tokens 0 to 5 in blocks 4, 1; A's token 6 in its second block; C comes with three.
MIXED = PagedStep(
    8, 4, {"A": (2, 5), "B": (4, 1), "C": (7,)}, {"A": (22,), "B": (5,), "C": (28, 29, 30)}, {"A": 7, "B": 6, "C": 3}
)


def told(picture):
    """Slot -> what the mouse reads there of this slot; of several side by side, each has its own position."""
    cells = {}
    for title in titles(picture):
        found = re.fullmatch(r"slots? (\d+)(?: to (\d+))?: block \d+, offsets? (\d+)(?: to (\d+))?; (.*)", title)
        if found:
            first, last = int(found[1]), int(found[2] or found[1])
            assert int(found[4] or found[3]) - int(found[3]) == last - first
            for n in range(last - first + 1):
                assert first + n not in cells
                cells[first + n] = re.sub(
                    r"positions? (\d+)( to \d+)?", lambda m: f"position {int(m[1]) + n}", found[5]
                )
    return cells


def dots(picture):
    """How many cells have a dot, the one in the legend left out."""
    paths = [p for p in elements(picture, "path") if p.get("stroke-dasharray")]
    gap = [float(p.get("stroke-dasharray").split()[1]) for p in paths]
    lengths = [[float(n) for n in re.findall(r"h([\d.]+)", p.get("d"))] for p in paths]
    return sum(1 + round((length - 0.5) / step) for step, row in zip(gap, lengths) for length in row) - 1


def frames(picture, colour):
    """How many cells or squares of the grid are framed in one colour. Block chips in the list have round corners."""
    return sum(
        e.get("fill") == colour and e.get("stroke") == palette.INK and e.get("rx") is None
        for e in elements(picture, "rect")
    )


# --- the cells


@settings(max_examples=40)
@given(
    block_size=st.sampled_from([1, 3, 4, 8, 16]),
    sizes=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), max_size=5),
    seed=st.integers(0, 99),
    with_reader=st.booleans(),
)
def test_every_cell_is_drawn_and_told_as_what_it_is(block_size, sizes, seed, with_reader):
    used = sum(-(-(cached + new) // block_size) for cached, new in sizes)
    step = step_of(used + 5, block_size, dict(zip("ABCDE", sizes)), seed)
    reader = "A" if with_reader and sizes else None
    picture = draw_pool_access(step, reader)
    readers = [reader] if reader else list(step.tables)
    read = {slot for name in readers for slot in step.read(name)}
    written = {slot for slots in step.written.values() for slot in slots}
    if not drawn_as_squares(step):
        assert dots(picture) == len(read)
        for name, slots in step.written.items():
            assert frames(picture, palette.color_of(name)) == len(slots)
    if lay_out(step.num_blocks, block_size).cell >= 7:
        cells = told(picture)
        assert {slot for slot, text in cells.items() if "written by this row" in text} == written
        assert {slot for slot, text in cells.items() if re.search(r"(, | and )read$", text)} == read
        for name, blocks in step.tables.items():
            for position, slot in enumerate(step.read(name)):
                assert cells[slot].startswith(f"{name}, position {position}, ")
            empty = {block * block_size + offset for block in blocks for offset in range(block_size)} - set(
                step.read(name)
            )
            assert all(cells[slot].startswith(f"{name}, unused, kept for position ") for slot in empty)
        assert len(cells) == block_size * used


# --- words


def test_the_picture_in_words():
    assert draw_pool_access(MIXED).alt == (
        "5 slots are written and 16 are read. The 11 cached before stay where they are. Pool of 8 blocks with 4 slots "
        "each. "
        "A: position 6 is written to slot 22; its last new token reads 7 tokens in blocks 2, 5, in this order. "
        "B: position 5 is written to slot 5; its last new token reads 6 tokens in blocks 4, 1, in this order. "
        "C: positions 0 to 2 are written to slots 28 to 30; its last new token reads 3 tokens in block 7."
    )
    assert "C: positions 0 to 2 are written to slots 28 to 30. " not in draw_pool_access(MIXED, "C").alt
    assert "A: position 6 is written to slot 22. B" in draw_pool_access(MIXED, "C").alt


def test_a_row_without_requests():
    empty = PagedStep(8, 4, {}, {}, {})
    assert (
        draw_pool_access(empty).alt
        == "The row is empty: nothing is written, nothing is read. Pool of 8 blocks with 4 slots each."
    )
    assert "no request in the row" in texts(draw_pool_access(empty))


def test_a_reader_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="no request 'Z' in this row; there are A, B, C"):
        draw_pool_access(MIXED, "Z")


@pytest.mark.parametrize(
    "wrong, sentence",
    [
        ({"written": MIXED.written | {"A": (23,)}}, "A's position 6 belongs in slot 22; slot 23 is written."),
        ({"written": MIXED.written | {"A": (0,)}}, "A's position 6 belongs in slot 22; slot 0 is written."),
        ({"tables": MIXED.tables | {"C": (5,)}}, "Block 5 is listed 2 times: by A and by C."),
        ({"tables": MIXED.tables | {"A": (2,)}}, "A has 3 tokens more than its blocks have slots."),
        ({"tables": MIXED.tables | {"C": (9,)}}, "Not of this pool: block 9."),
    ],
)
def test_what_cannot_be_is_said(wrong, sentence):
    picture = draw_pool_access(replace(MIXED, **wrong))
    assert sentence in texts(picture) and sentence in picture.alt
    assert "!" not in texts(draw_pool_access(MIXED))


# --- sizes


@pytest.mark.parametrize(
    "num_blocks, block_size",
    [(8, 4), (8, 16), (26, 16), (37, 8), (60, 4), (60, 16), (97, 16), (119, 16), (1000, 16), (3000, 1)],
)
def test_a_pool_of_any_size_can_be_drawn(num_blocks, block_size):
    room = num_blocks * block_size // 8
    step = step_of(num_blocks, block_size, {"A": (room, 1), "B": (0, min(room, 99)), "<b>": (room, 1), "D": (room, 2)})
    assert height(assert_sound(lambda: draw_pool_access(step))) < 900
