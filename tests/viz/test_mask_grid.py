"""The picture of a mask: its cells, what it says, and that it can be read at any size."""

import random
import re
import xml.etree.ElementTree as ET

import pytest
from picture_cases import PICTURES, mask_of, pass_of
from svg_reading import SVG, elements, texts

from lessons_lib.attention.masks import RULES, block_diagonal_mask, combine, tag_tokens
from lessons_lib.recording.mask_text import read_pairs, read_row
from lessons_lib.viz.drawing.palette import INK
from lessons_lib.viz.masks.grid import draw_mask


def hover_layer(picture):
    """Scale and place of the hover texts, and the texts row by row."""
    (layer,) = [g for g in elements(picture, "g") if g.get("pointer-events") == "fill"]
    wide, _, _, high, x, y = map(float, re.fullmatch(r"matrix\((.*)\)", layer.get("transform"))[1].split())
    rows = []
    for number, row in enumerate(layer):
        assert row.get("transform") == f"translate(0 {number})"
        assert [cell.get("x") for cell in row] == [str(column) for column in range(len(row))]
        rows.append([cell.find(SVG + "title").text for cell in row])
    return (wide, high, x, y), rows


def filled_cells(picture):
    """(row, column) -> colour, read off the paths of the picture."""
    (wide, high, left, top), _ = hover_layer(picture)
    found = {}
    for path in elements(picture, "path"):
        for x, y, size, height, back in re.findall(r"M([\d.]+) ([\d.]+)h([\d.]+)v(\d+)h-(\d+)z", path.get("d")):
            assert size == back and float(height) == high
            row, first, count = (float(y) - top) / high, (float(x) - left) / wide, float(size) / wide
            assert row == int(row) and first == int(first) and count == int(count)
            for column in range(int(first), int(first + count)):
                assert (int(row), column) not in found
                found[int(row), column] = path.get("fill")
    return found


def random_passes(count):
    rng = random.Random(11)
    for _ in range(count):
        sequences = rng.randrange(1, 6)
        lengths = [rng.randrange(6) for _ in range(sequences)]
        lengths[rng.randrange(sequences)] = 3
        rules = tuple(rule for rule in RULES if rng.random() < 0.7)
        yield lengths, [rng.randrange(6) for _ in range(sequences)], rng.randrange(4), rules


WIDE = [1] * 6, [16, 15, 14, 13, 12, 11], 0, RULES  # its cells are no squares


def test_a_cell_is_coloured_where_the_mask_is_true_and_read_aloud():
    for lengths, cached, padded, rules in [*random_passes(25), WIDE]:
        queries, keys = pass_of(lengths, cached, padded)
        picture = mask_of(lengths, cached, padded, rules)
        assert set(filled_cells(picture)) == {tuple(cell) for cell in combine(rules, queries, keys).nonzero().tolist()}
        assert hover_layer(picture)[1] == read_pairs(queries, keys, rules=rules)


def test_a_mask_that_differs_from_the_rules_is_crossed():
    tags = tag_tokens([2, 2])
    mask = block_diagonal_mask(tags, tags)
    right = draw_mask(mask, tags, tags)
    mask[3, 0], mask[1, 0] = True, False
    wrong = draw_mask(mask, tags, tags)
    (wide, high, left, top), hovers = hover_layer(wrong)
    # In the crosses alone a path goes on with a relative line of two strokes; those over cells have a rim, drawn before.
    inked = [e for e in elements(wrong, "path") if e.get("stroke") == INK]
    crosses = [m for e in inked for m in re.findall(r"M([\d.]+) ([\d.]+)l[\d.]+ [\d.]+m0-", e.get("d"))]
    cells = {(int((float(y) - top) / high), int((float(x) - left) / wide)) for x, y in crosses}
    assert {(3, 0), (1, 0)} <= cells and len(crosses) == 3  # the third is in the legend
    assert hovers[3][0].startswith("B, position 1, may attend to A, position 0, but should not")
    assert "not as the rules say: 2 cells" in texts(wrong)
    assert "m0-" not in right.svg and not any("rules" in text for text in texts(right))


def test_a_row_is_framed_and_read():
    queries, keys = pass_of([4, 3])
    picture = mask_of([4, 3], row=5)
    (wide, high, left, top), _ = hover_layer(picture)
    (frame,) = [e for e in elements(picture, "rect") if e.get("stroke") == INK]
    assert float(frame.get("y")) == top + 5 * high and float(frame.get("height")) == high
    sentence = read_row(block_diagonal_mask(queries, keys), queries, keys, 5)
    assert sentence in texts(picture) and picture.alt.endswith(sentence)
    assert not [e for e in elements(mask_of([4, 3]), "rect") if e.get("stroke") == INK]


@pytest.mark.parametrize("name", [name for name in PICTURES if name.startswith("mask ")])
def test_it_can_be_read_at_any_size(name):
    picture = PICTURES[name]()
    width, height = map(float, ET.fromstring(picture.svg).get("viewBox").split()[2:])
    (wide, high, left, top), hovers = hover_layer(picture)
    assert width == 900 and height < 820 and wide >= 6 and high >= 6
    assert left + wide * len(hovers[0]) <= width and top + high * len(hovers) <= height
    assert all(float(e.get("font-size")) >= 8 for e in elements(picture, "text"))


@pytest.mark.browser
def test_the_mouse_finds_the_cell_it_rests_on(chromium):
    queries, keys = pass_of([5, 4], [3, 2], 2)
    picture = mask_of([5, 4], [3, 2], 2, row=6)
    page = chromium.new_page(viewport={"width": 700, "height": 700})  # narrower than the picture, which shrinks
    page.set_content(f"<!doctype html>{picture.svg}")
    (wide, high, left, top), hovers = hover_layer(picture)
    # The middle and two corners of cells: nothing may reach over into a neighbour.
    for row, column, share in ((0, 0, 0.5), (6, 3, 0.1), (6, 9, 0.9), (10, 15, 0.5)):
        found = page.evaluate(
            """([x, y]) => {
                 const svg = document.querySelector('svg'), place = svg.getBoundingClientRect(), scale = place.width / 900;
                 return document.elementFromPoint(place.x + x * scale, place.y + y * scale).querySelector('title').textContent;
               }""",
            [left + (column + share) * wide, top + (row + share) * high],
        )
        assert found == hovers[row][column] == read_pairs(queries, keys)[row][column]
    page.close()
