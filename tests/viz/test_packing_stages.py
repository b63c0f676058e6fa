"""The stages from a rectangle to a packed row."""

import xml.etree.ElementTree as ET

import pytest
from svg_reading import SVG, texts

from lessons_lib.viz.batches import watch_packing
from lessons_lib.viz.batches.packing import STAGES

NAMES, TOKENS = "AB", [["Once", " upon"], ["The", " old", " dog", " sat"]]


@pytest.fixture(scope="module")
def pictures():
    return watch_packing(NAMES, TOKENS).pictures


def boxes(picture):
    """Where each token's cell is: name and position -> (x, y)."""
    return {
        rect.get("data-moves"): (float(rect.get("x")), float(rect.get("y")))
        for rect in ET.fromstring(picture.svg).iter(f"{SVG}rect")
        if len((rect.get("data-moves") or "").split()) == 2 and rect.find(f"{SVG}title") is not None
    }


def test_every_token_is_in_every_stage(pictures):
    wanted = {f"{name} {position}" for name, own in zip(NAMES, TOKENS) for position in range(len(own))}
    assert len(pictures) == len(STAGES) and all(boxes(picture).keys() == wanted for picture in pictures)


def test_the_padding_is_left_of_the_shorter_ones_and_falls_away(pictures):
    padding = [svg.count("request A: padding") for svg in (picture.svg for picture in pictures)]
    assert padding == [2, 0, 0, 0, 0]
    assert "8 token positions, 2 of them padding (25 %)" in texts(pictures[0])[0]
    first, second = (boxes(pictures[0])[name] for name in ("A 0", "B 2"))
    assert first[0] == second[0] and first[1] < second[1], "aligned at the right"


def test_one_row_holds_the_sequences_one_after_another(pictures):
    for picture in pictures[2:]:
        found = boxes(picture)
        assert len({y for _, y in found.values()}) == 1
        assert sorted(found, key=found.get) == ["A 0", "A 1", "B 0", "B 1", "B 2", "B 3"]


def test_indices_come_with_the_fourth_stage(pictures):
    assert "cu_seqlens_q" not in texts(pictures[2])
    shown = texts(pictures[3])
    assert shown[shown.index("cu_seqlens_q") :][1:4] == ["0", "2", "6"]
    assert "Cumulative lengths 0, 2, 6; logits are kept at 1, 5." in pictures[3].alt
