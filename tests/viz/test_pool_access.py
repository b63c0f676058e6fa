"""What a packed row writes and reads in the pool: every cell is told and drawn as what it is, whatever the size of the
pool.
"""

import re

from hypothesis import given, settings
from hypothesis import strategies as st
from picture_cases import MIXED_ACCESS, paged_step
from svg_reading import elements, texts, titles

from lessons_lib.recording.pool_states import PagedStep
from lessons_lib.viz.drawing import palette
from lessons_lib.viz.pool.access import draw_pool_access


def told(picture):
    """Slot -> what the mouse reads there."""
    found = (re.fullmatch(r"slot (\d+): block \d+, offset \d+; (.*)", title) for title in titles(picture))
    return {int(one[1]): one[2] for one in found if one}


def dots(picture):
    """How many cells have a dot, the one in the legend left out."""
    return sum(p.get("d").count("h.5") for p in elements(picture, "path") if p.get("stroke-dasharray")) - 1


def frames(picture):
    """How many cells of the grid are framed."""
    lines = [rect for rect in elements(picture, "rect") if rect.get("stroke") == palette.INK]
    return sum(rect.get("fill") == "none" and rect.get("rx") is None for rect in lines)


@settings(max_examples=40)
@given(
    block_size=st.sampled_from([1, 3, 4, 8, 16]),
    sizes=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), max_size=5),
    seed=st.integers(0, 99),
)
def test_every_cell_is_drawn_and_told_as_what_it_is(block_size, sizes, seed):
    used = sum(-(-(cached + new) // block_size) for cached, new in sizes)
    step = paged_step(used + 5, block_size, dict(zip("ABCDE", sizes)), seed)
    picture = draw_pool_access(step)
    reads = {
        name: [
            table[position // block_size] * block_size + position % block_size
            for position in range(step.context_lens[name])
        ]
        for name, table in step.tables.items()
    }
    read = {slot for slots in reads.values() for slot in slots}
    written = {slot for slots in step.written.values() for slot in slots}
    assert dots(picture) == len(read)
    assert frames(picture) == len(written)
    cells = told(picture)
    assert {slot for slot, text in cells.items() if "written by this row" in text} == written
    assert {slot for slot, text in cells.items() if re.search(r"(, | and )read$", text)} == read
    for name, blocks in step.tables.items():
        for position, slot in enumerate(reads[name]):
            assert cells[slot].startswith(f"{name}, position {position}, ")
        slots = {block * block_size + offset for block in blocks for offset in range(block_size)}
        assert all(cells[slot].startswith(f"{name}, unused, kept for") for slot in slots - set(reads[name]))
    assert len(cells) == block_size * used


def test_the_picture_in_words():
    assert draw_pool_access(MIXED_ACCESS).alt == (
        "5 slots are written and 16 are read. The 11 cached before stay where they are. Pool of 8 blocks with 4 slots "
        "each. "
        "A writes position 6 to slot 22, and reads 7 tokens in blocks 2, 5. "
        "B writes position 5 to slot 5, and reads 6 tokens in blocks 4, 1. "
        "C writes positions 0 to 2 to slots 28 to 30, and reads 3 tokens in block 7."
    )
    empty = draw_pool_access(PagedStep(8, 4, {}, {}, {}))
    assert empty.alt.startswith("The row is empty: nothing is written, nothing is read.")
    assert "no request in the row" in texts(empty)
