"""What a packed row writes and reads in the pool: every cell is told and drawn as what it is, whatever the size of the
pool.
"""

import random
import re
import time
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from svg_reading import SVG, elements, texts, titles

from lessons_lib.recording.paged_steps import PagedStep
from lessons_lib.viz.drawing import palette
from lessons_lib.viz.drawing.svg import WIDTH
from lessons_lib.viz.pool.access import draw_pool_access
from lessons_lib.viz.pool.access_grid import READ, drawn_as_squares
from lessons_lib.viz.pool.lot import LOT_WIDTH, lay_out


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


def height(picture):
    return float(ET.fromstring(picture.svg).get("height"))


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


@settings(max_examples=40, deadline=None, derandomize=True)
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


def test_the_mouse_reads_cells_and_blocks():
    picture = draw_pool_access(MIXED)
    assert told(picture)[22] == "A, position 6, written by this row and read"
    assert told(picture)[8] == "A, position 0, read"
    assert told(picture)[23] == "A, unused, kept for position 7"
    assert {
        "block 5: the 2nd of A, positions 4 to 6, read, 1 slot unused",
        "block 0: free, in no table of this row",
    } <= set(titles(picture))
    only_b = draw_pool_access(MIXED, "B")
    assert told(only_b)[22] == "A, position 6, written by this row and not read by B"
    assert "block 2: the 1st of A, positions 0 to 3, not read by B" in titles(only_b)
    assert told(only_b)[5] == "B, position 5, written by this row and read"


def test_small_cells_share_a_text_where_they_are_alike():
    step = PagedStep(62, 16, {"A": (2, 5)}, {"A": (84, 85)}, {"A": 22})
    assert [title for title in titles(draw_pool_access(step)) if title.startswith("slot")] == [
        "slots 32 to 39: block 2, offsets 0 to 7; A, positions 0 to 7, read",
        "slots 40 to 47: block 2, offsets 8 to 15; A, positions 8 to 15, read",
        "slots 80 to 83: block 5, offsets 0 to 3; A, positions 16 to 19, read",
        "slots 84 to 85: block 5, offsets 4 to 5; A, positions 20 to 21, written by this row and read",
        "slots 86 to 87: block 5, offsets 6 to 7; A, unused, kept for positions 22 to 23",
        "slots 88 to 95: block 5, offsets 8 to 15; A, unused, kept for positions 24 to 31",
    ]


def test_what_is_written_stands_out_from_what_is_read():
    """Full colour against half: by the sums of luminance no request's two shades are alike."""
    for name in "ABCDEF":
        colour = palette.color_of(name)
        pale = palette.mix(colour, palette.PAPER, READ)
        assert pale in draw_pool_access(step_of(8, 4, {name: (5, 1)})).svg
        assert palette.luminance(pale) - palette.luminance(colour) > 0.05


def test_wide_cells_show_the_positions_of_their_tokens():
    shown = texts(draw_pool_access(step_of(8, 4, {"A": (5, 1)})))
    assert {"0", "1", "2", "3", "4", "5"} <= set(shown)


def test_a_block_says_whose_it_is_and_which_of_its_blocks():
    shown = texts(draw_pool_access(MIXED))
    assert [text for text in shown if re.fullmatch(r"[ABC] [12]", text)] == ["B 2", "A 1", "B 1", "A 2", "C 1"]
    assert "A 2: the second block of A" in shown


# --- the row and the list


def test_every_new_token_stands_over_its_slot():
    step = step_of(20, 4, {"A": (6, 1), "B": (0, 9), "C": (3, 2)})
    step = replace(
        step, tables=step.tables | {"B": (4, 5, 6)}, written=step.written | {"B": tuple(range(16, 25))}
    )  # neighbours, but three blocks
    told_of_run = r"(\w), positions? (\d+)(?: to \d+)?: written to slots? (\d+)(?: to (\d+))?, block (\d+), .*"
    runs = [re.fullmatch(told_of_run, title) for title in titles(draw_pool_access(step))]
    seen = {}
    for name, first, slot, last, block in [m.groups() for m in runs if m]:
        slots = list(range(int(slot), int(last or slot) + 1))
        assert {slot // 4 for slot in slots} == {int(block)}
        for n, slot in enumerate(slots):
            seen[name, int(first) + n] = slot
    assert seen == {
        (name, step.context_lens[name] - len(slots) + n): slot
        for name, slots in step.written.items()
        for n, slot in enumerate(slots)
    }
    boxes = [e for e in elements(draw_pool_access(step), "rect") if ": written to" in (e.findtext(SVG + "title") or "")]
    assert [float(b.get("x")) for b in boxes] == sorted(float(b.get("x")) for b in boxes)
    assert float(boxes[-1].get("x")) + float(boxes[-1].get("width")) <= WIDTH


def test_slots_and_positions_are_written_where_they_have_room():
    shown = texts(draw_pool_access(MIXED))
    start = shown.index("go to slots")
    assert shown[start + 1 : start + 7] == ["A 6", "22", "B 5", "5", "C 0 to 2", "28 to 30"]
    many = texts(draw_pool_access(step_of(60, 16, dict.fromkeys("ABCDEF", (100, 1)) | {"G": (0, 90)})))
    assert "A" in many and "A 100" not in many


def test_the_list_has_blocks_in_the_order_in_which_they_are_read():
    picture = draw_pool_access(MIXED)
    shown = texts(picture)
    start = shown.index("blocks in the order read; framed: written to")
    assert shown[start + 1 : start + 17] == [
        "A", "writes slot 22", "reads 7 tokens in 2 blocks:", "2", "5",
        "B", "writes slot 5", "reads 6 tokens in 2 blocks:", "4", "1",
        "C", "writes slots 28 to 30", "reads 3 tokens in 1 block:", "7",
        "written by this row", "read",
    ]  # fmt: skip
    chips = [
        e.findtext(SVG + "title")
        for e in elements(picture, "rect")
        if e.get("rx") == "3" and e.get("stroke") == palette.INK
    ]
    assert [title.split(":")[0] for title in chips] == ["block 5", "block 1", "block 7"]
    only_b = [text for text in texts(draw_pool_access(MIXED, "B")) if text.startswith(("writes", "reads"))]
    assert only_b == ["writes slot 22", "writes slot 5", "reads 6 tokens in 2 blocks:", "writes slots 28 to 30"]


def test_long_tables_are_cut_before_their_end():
    step = step_of(1000, 4, {"A": (3000, 1), "B": (0, 3)})
    shown = texts(draw_pool_access(step, "A"))
    chips = shown[shown.index("reads 3,001 tokens in 751 blocks:") + 1 : shown.index("B")]
    cut = next(index for index, text in enumerate(chips) if text.endswith(" more"))
    head, tail = [int(t) for t in chips[:cut]], [int(t) for t in chips[cut + 1 :]]
    assert head == list(step.tables["A"][: len(head)]) and tail == list(step.tables["A"][-len(tail) :])
    assert len(head) + len(tail) + int(chips[cut].split()[0]) == 751 and len(tail) > 2


def test_of_many_requests_less_is_said_but_nobody_is_forgotten():
    step = step_of(400, 4, {str(n): (10 + n, 1) for n in range(30)})
    shown = texts(draw_pool_access(step))
    assert f"slot {step.written['0'][0]}; reads 11 in 3 blocks" in shown
    assert "and 6 requests more" in shown
    last = texts(draw_pool_access(step, "29"))
    assert "reads 40 tokens in 10 blocks:" in last and "and 29 requests more" in last


# --- words


def test_the_title_counts_what_is_written_read_and_left_where_it_is():
    assert (
        texts(draw_pool_access(MIXED))[0]
        == "5 slots are written and 16 are read. The 11 cached before stay where they are."
    )
    assert (
        texts(draw_pool_access(step_of(8, 4, {"A": (1, 1)})))[0]
        == "1 slot is written and 2 are read. The one cached before stays where it is."
    )
    assert (
        texts(draw_pool_access(step_of(8, 4, {"A": (0, 1)})))[0]
        == "1 slot is written and 1 is read. Nothing was there before."
    )
    assert (
        texts(draw_pool_access(MIXED, "A"))[0]
        == "A's last new token reads 7 slots in 2 blocks, in the order of its table."
    )


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
    [
        (8, 4),
        (8, 16),
        (12, 16),
        (26, 16),
        (37, 8),
        (60, 4),
        (60, 16),
        (97, 16),
        (98, 4),
        (119, 16),
        (200, 8),
        (1000, 16),
        (3000, 1),
    ],
)
def test_the_picture_fits_its_place_and_is_drawn_in_time(num_blocks, block_size):
    room = num_blocks * block_size // 8
    step = step_of(num_blocks, block_size, {"A": (room, 1), "B": (0, min(room, 99)), "C": (room, 1), "D": (room, 2)})
    draws = []
    for _ in range(3):
        start = time.process_time()
        picture = draw_pool_access(step)
        draws.append(time.process_time() - start)
    assert min(draws) < 0.1
    assert draw_pool_access(step) == picture
    foot = height(picture)
    assert foot < 900
    flat = [e for e in ET.fromstring(picture.svg).find(SVG + "g") if e.tag == SVG + "rect"]
    for rect in flat:
        assert float(rect.get("x", 0)) + float(rect.get("width")) <= WIDTH
        assert float(rect.get("y", 0)) + float(rect.get("height")) <= foot
    assert dots(picture) == (
        sum(map(len, step.tables.values())) if drawn_as_squares(step) else sum(step.context_lens.values())
    )
    assert set(re.findall(r"url\(#([^)]+)\)", picture.svg)) <= set(re.findall(r'id="([^"]+)"', picture.svg))
    assert len(picture.svg) < 450_000


@pytest.mark.parametrize("num_blocks", [12, 1000])
def test_dots_on_a_written_cell_are_seen_in_both_themes(num_blocks):
    """Its color is the request's, light or dark; the other cells are pale, and turn dark."""
    picture = draw_pool_access(step_of(num_blocks, 16, {"E": (20, 1)}))
    colors = {path.get("stroke") for path in elements(picture, "path") if path.get("stroke-dasharray")}
    assert colors == {palette.INK, palette.text_on(palette.color_of("E"))}


def test_a_large_pool_has_a_square_for_each_block():
    step = step_of(1000, 16, {"A": (500, 1), "B": (160, 16)})
    picture = draw_pool_access(step)
    free = {int(m[1]) for m in (re.match(r"block (\d+): free", title) for title in titles(picture)) if m}
    assert free == set(range(1000)) - {block for table in step.tables.values() for block in table}
    framed = [
        p.get("d") for p in elements(picture, "path") if p.get("stroke") == palette.INK and p.get("d").endswith("z")
    ]
    assert [path.count("M") for path in framed] == [2]  # one block of A, one of B
    assert "allocated, empty" not in texts(picture) and "1,000 blocks of 16 slots; a square is a block" in texts(
        picture
    )


def test_steps_of_one_pool_have_one_height():
    steps = [step_of(40, 16, dict.fromkeys("ABCD"[: n + 1], (20 * n, 1 if n else 30))) for n in range(4)]
    assert len({height(draw_pool_access(step)) for step in steps}) == 1


@pytest.mark.parametrize("num_blocks", [97, 98, 101, 119])
def test_blocks_that_fill_no_rectangle_still_have_cells(num_blocks):
    lot = lay_out(num_blocks, 4)
    assert lot.cell >= 7 and LOT_WIDTH * 0.8 < lot.width <= LOT_WIDTH


def test_a_hostile_name_is_only_text():
    picture = draw_pool_access(step_of(8, 4, {'<b>"': (5, 1)}))
    assert "<b>" not in picture.svg
    assert "block 0: free, in no table of this row" in titles(picture)
