"""The picture of one step of a ragged batch: the requests in the row, the row token by token, and the mask under it."""

import dataclasses
import re

import svg_reading
from hypothesis import example, given, settings
from hypothesis import strategies as st
from picture_cases import MIXED_ROW, packed_step
from svg_reading import SVG, box

from lessons_lib.attention.packing import key_tags, packed_mask
from lessons_lib.viz.batches.packed_row import draw_packed_step
from lessons_lib.viz.drawing.palette import color_of
from lessons_lib.viz.drawing.svg import WIDTH


def drawn(step):
    return draw_packed_step(step, lambda token: f" t{token}")


def test_who_took_a_place_after_the_row_is_neither_in_the_row_nor_in_the_queue():
    step = dataclasses.replace(MIXED_ROW, waiting=("E",), admitted=("D",))
    shown = svg_reading.texts(drawn(step))
    start = shown.index("left:")
    assert shown[start : start + 6] == ["left:", "B", "in the next row:", "D", "waiting:", "E"]
    assert "In the next row: D. Waiting: E." in drawn(step).alt
    assert "in the next row:" not in svg_reading.texts(drawn(MIXED_ROW))


def test_every_token_has_a_cell_with_its_tag():
    titles = svg_reading.titles(drawn(MIXED_ROW))
    cells = [re.match(r"index (\d+) of the row: '(.*)', request (\w+), position (\d+)", title) for title in titles]
    wanted = [
        ("0", "·t10", "A", "4"),
        ("1", "·t11", "B", "2"),
        ("2", "·t12", "C", "0"),
        ("3", "·t13", "C", "1"),
        ("4", "·t14", "C", "2"),
    ]
    assert [cell.groups() for cell in cells if cell] == wanted
    assert {*(token for _, token, *_ in wanted), "A 4", "B 2", "C 0", "C 1", "C 2"} <= set(
        svg_reading.texts(drawn(MIXED_ROW))
    )


def columns(step):
    """Left edge and width of every key's column, as the heads say it."""
    places = {}
    for rect in svg_reading.elements(drawn(step), "rect"):
        said = re.fullmatch(r"(\w+) (\d+)(?: to (\d+))?", rect.findtext(SVG + "title") or "")
        if said:
            x, _, width, _ = box(rect)
            first, last = int(said[2]), int(said[3] or said[2])
            each = width / (last - first + 1)
            places |= {(said[1], n): (x + (n - first) * each, each) for n in range(first, last + 1)}
    return places


def filled(step):
    """Corner and size of everything that is filled in a request's colour in the mask."""
    pieces = []
    for name in step.names:
        for path in svg_reading.elements(drawn(step), "path"):
            if path.get("fill") == color_of(name):
                shapes = re.findall(r"M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)h-[\d.]+z", path.get("d"))
                pieces += [(name, tuple(map(float, shape))) for shape in shapes]
    return pieces


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 30)), min_size=1, max_size=4))
@example([(13, 0), (62, 0), (3, 0), (21, 0)])
@example([(1, 200), (1, 1), (1, 90), (1, 109)])
def test_what_may_attend_is_filled_in_the_colour_of_its_sequence(sizes):
    step = packed_step([new for new, _ in sizes], [cached for _, cached in sizes])
    places, pieces = columns(step), filled(step)
    tags = key_tags(step.packed)
    keys = [(step.names[seq_id], position) for seq_id, position in zip(tags.seq_ids.tolist(), tags.positions.tolist())]
    rows = sorted({top for _, (_, top, _, _) in pieces})  # each query attends to itself, so each row has a piece
    owners = step.packed.seq_ids.tolist()
    assert places.keys() == set(keys) and len(rows) == len(owners)
    assert max(x + width for x, width in places.values()) <= WIDTH
    found = []
    for name, (x, y, width, _) in pieces:
        query = rows.index(y)
        assert step.names[owners[query]] == name
        found += [(query, key) for key, (left, each) in places.items() if x < left + each / 2 < x + width]
    expected = {(query, keys[key]) for query, key in packed_mask(step.packed).nonzero().tolist()}
    assert len(found) == len(set(found)) and set(found) == expected


def test_the_words_say_the_same_as_the_picture():
    alt = drawn(MIXED_ROW).alt
    assert alt == (
        "One row of 5 tokens: 1 prefill and 2 decodes. "
        "A: 1 new token after 4 in the cache, gives '·t500'. "
        "B: 1 new token after 2 in the cache, gives '·t501', then it leaves. "
        "C: 3 new tokens after 0 in the cache, gives '·t502'. "
        "Cumulative lengths 0, 1, 2, 5. Waiting: D, E. "
        "Mask: 5 queries × 11 keys, 6 cached and 5 new; 14 of 55 cells may attend (25 %). "
        "Each query attends to the keys of its own sequence up to its own position, and to no other."
    )
