"""The picture of one step of a ragged batch: the requests in the row, the row token by token, and the mask under it."""

import dataclasses
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from svg_reading import assert_sound

from lessons_lib.attention.packing import key_tags, pack, packed_mask
from lessons_lib.recording.packed_steps import PackedStep
from lessons_lib.viz.batches.packed_row import draw_packed_step
from lessons_lib.viz.drawing.palette import color_of
from lessons_lib.viz.drawing.svg import WIDTH

SVG = "{http://www.w3.org/2000/svg}"


def decode(token):
    return f" t{token}"


def step_of(new_lens, cached_lens, names="ABCDEFGHIJKLMNOPQRSTUVWXYZ", left=(), waiting=(), first_token=10):
    """A step whose row holds the tokens 10, 11, 12, ... and whose sequences get the tokens 500, 501, ..."""
    names, token, rows = tuple(names[: len(new_lens)]), first_token, []
    for length in new_lens:
        rows.append(list(range(token, token + length)))
        token += length
    joined = tuple(name for name, cached in zip(names, cached_lens) if not cached)
    return PackedStep(
        names, pack(rows, cached_lens), tuple(range(500, 500 + len(names))), joined, tuple(left), tuple(waiting)
    )


MIXED = step_of([1, 1, 3], [4, 2, 0], left="B", waiting="DE")


def elements(step, kind):
    return list(ET.fromstring(draw_packed_step(step, decode).svg).iter(SVG + kind))


def texts(step):
    return [element.text for element in elements(step, "text")]


def titles(step):
    return [element.text for element in elements(step, "title")]


def box(element):
    return tuple(float(element.get(side)) for side in ("x", "y", "width", "height"))


# --- who


def test_who_took_a_place_after_the_row_is_neither_in_the_row_nor_in_the_queue():
    step = dataclasses.replace(MIXED, waiting=("E",), admitted=("D",))
    shown = texts(step)
    start = shown.index("left:")
    assert shown[start : start + 6] == ["left:", "B", "in the next row:", "D", "waiting:", "E"]
    assert "In the next row: D. Waiting: E." in draw_packed_step(step, decode).alt
    assert "in the next row:" not in texts(MIXED)


# --- the row


def token_cells(step):
    """(place, token, request, position) of every cell."""
    found = [
        re.match(r"index (\d+) of the row: '(.*)', request (\w+), position (\d+)", title) for title in titles(step)
    ]
    return [(int(m[1]), m[2], m[3], int(m[4])) for m in found if m]


def test_every_token_has_a_cell_with_its_tag():
    assert token_cells(MIXED) == [
        (0, "·t10", "A", 4),
        (1, "·t11", "B", 2),
        (2, "·t12", "C", 0),
        (3, "·t13", "C", 1),
        (4, "·t14", "C", 2),
    ]
    shown = texts(MIXED)
    for text in ("·t10", "·t14", "A 4", "B 2", "C 0", "C 1", "C 2"):
        assert text in shown


# --- the mask


def mask_rows(step):
    """(box, query, what it says of keys: the keys, whether it may attend, why) of every row of the mask."""
    found = []
    for rect in elements(step, "rect"):
        said = re.fullmatch(r"(\w+), position (\d+), may attend to (.*)\.", rect.findtext(SVG + "title") or "")
        if said:
            told = []
            for n, part in enumerate(said[3].split("; not to ")):
                named, why = part.split(": ")
                keys = []
                for run in named.split(", "):
                    name, first, last = re.fullmatch(r"(\w+) (\d+)(?: to (\d+))?", run).groups()
                    keys += [(name, position) for position in range(int(first), int(last or first) + 1)]
                told.append((keys, n == 0, why))
            found.append((box(rect), (said[1], int(said[2])), told))
    return found


def columns(step):
    """Left edge and width of every key's column, as the heads say it."""
    places = {}
    for rect in elements(step, "rect"):
        said = re.fullmatch(r"(\w+) (\d+)(?: to (\d+))?", rect.findtext(SVG + "title") or "")
        if said:
            x, _, width, _ = box(rect)
            first, last = int(said[2]), int(said[3] or said[2])
            each = width / (last - first + 1)
            places |= {(said[1], n): (x + (n - first) * each, each) for n in range(first, last + 1)}
    return places


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 30)), min_size=1, max_size=4))
def test_the_rows_say_of_every_cell_what_the_mask_says(sizes):
    step = step_of([new for new, _ in sizes], [cached for _, cached in sizes])
    tags = key_tags(step.packed)
    keys = [(step.names[seq_id], position) for seq_id, position in zip(tags.seq_ids.tolist(), tags.positions.tolist())]
    queries = keys[len(keys) - len(step.packed.input_ids) :]
    told = {}
    for _, query, parts in mask_rows(step):
        for covered, may, why in parts:
            for key in covered:
                assert (query, key) not in told
                told[query, key] = may
                own, past = key[0] == query[0], key[1] <= query[1]
                assert why == (
                    "same sequence, not in the future"
                    if own and past
                    else "in the future"
                    if own
                    else "another sequence"
                )
    mask = packed_mask(step.packed)
    assert told == {(query, key): bool(mask[i, j]) for i, query in enumerate(queries) for j, key in enumerate(keys)}


def filled(step):
    """Corner and size of everything that is filled in a request's colour in the mask."""
    pieces = []
    for name in step.names:
        for path in elements(step, "path"):
            if path.get("fill") == color_of(name):
                shapes = re.findall(r"M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)h-[\d.]+z", path.get("d"))
                pieces += [(name, tuple(map(float, shape))) for shape in shapes]
    return pieces


@pytest.mark.parametrize(
    "step",
    [MIXED, step_of([13, 62, 3, 21], [0] * 4), step_of([1] * 4, [200, 1, 90, 109])],
    ids=["mixed", "prefills", "decodes"],
)
def test_what_may_attend_is_filled_in_the_colour_of_its_sequence(step):
    places, rows = columns(step), mask_rows(step)
    expected = {(query, key) for _, query, told in rows for keys, may, _ in told for key in keys if may}
    found = []
    for name, (x, y, width, height) in filled(step):
        [query] = [query for (_, top, _, its), query, _ in rows if (top, its) == (y, height) and query[0] == name]
        found += [(query, key) for key, (left, each) in places.items() if x < left + each / 2 < x + width]
    assert len(found) == len(set(found)) and set(found) == expected
    assert max(x + width for x, width in places.values()) <= WIDTH
    edges = min(x for x, _ in places.values()), max(x + width for x, width in places.values())
    assert all((x, x + width) == pytest.approx(edges, abs=0.1) for (x, _, width, _), _, _ in rows)


# --- the whole


def test_the_words_say_the_same_as_the_picture():
    alt = draw_packed_step(MIXED, decode).alt
    assert alt == (
        "One row of 5 tokens: 1 prefill and 2 decodes. "
        "A: decode of 1 token at index 0, after 4 in the cache, gives '·t500'. "
        "B: decode of 1 token at index 1, after 2 in the cache, gives '·t501', then it leaves. "
        "C: prefill of 3 tokens at indices 2 to 4, after 0 in the cache, gives '·t502'. "
        "Cumulative lengths 0, 1, 2, 5. Waiting: D, E. "
        "Mask: 5 queries × 11 keys, 6 cached and 5 new; 14 of 55 cells may attend (25 %). "
        "Each query attends to the keys of its own sequence up to its own position, and to no other."
    )


@pytest.mark.parametrize(
    "step",
    [MIXED, step_of([], []), step_of([1], [0]), step_of([30] * 26, [0] * 26), step_of([1] * 26, [50] * 26),
     step_of([60] * 12, [5] * 12), step_of([1] * 7 + [2, 40], [90] * 7 + [0, 0]), step_of([2], [1], names=["a <b> & 'c'"])],
    ids=["mixed", "no request", "one token", "many prefills", "many decodes", "many queries", "long prompt", "odd name"],
)  # fmt: skip
def test_every_step_can_be_drawn(step):
    assert_sound(lambda: draw_packed_step(step, lambda token: "<&\n\"'"))
