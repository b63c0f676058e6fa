"""A mask's rules one by one, and what is said with each."""

import xml.etree.ElementTree as ET

import pytest
from svg_reading import SVG

from lessons_lib.attention.masks import block_diagonal_mask, tag_tokens
from lessons_lib.viz.masks import watch_rules

TOKENS = [["The", " dog"], ["It", " was", " wet"]]


def answers_with(mask):
    """Right with the right mask only."""
    tags = tag_tokens([2, 3])
    is_right = bool((mask(tags, tags) == block_diagonal_mask(tags, tags)).all())
    return [" ran home.", " and dry." if is_right else " and wet.\n"]


@pytest.fixture(scope="module")
def pictures():
    return watch_rules("CE", TOKENS, answers_with).pictures


def count(picture, kind, words):
    root = ET.fromstring(picture.svg)
    return sum(words in ("".join(element.itertext()) or "") for element in root.iter(SVG + kind))


def test_each_layer_allows_what_its_rules_allow(pictures):
    allowed = [picture.svg.count("token attends") for picture in pictures]
    # Of 25 cells: all; no later position (keys of the other one included); own sequence; both.
    assert allowed == [25, 17, 13, 9]
    assert [f"{wrong} of them wrongly" in picture.alt for picture, wrong in zip(pictures, (16, 8, 4, 0))] == [True] * 4


def test_cells_that_a_missing_rule_would_forbid_are_crossed_out(pictures):
    crosses = [picture.svg.count("m0 -") for picture in pictures]
    assert crosses == [16, 8, 4, 0]


def test_words_that_differ_from_the_right_ones_are_said_and_marked(pictures):
    for picture in pictures[:3]:
        assert count(picture, "text", "as it should be") == 1  # C
        assert count(picture, "text", "not what it says alone") == 1
        assert "E goes on with ' and wet.\\n' instead of ' and dry.'" in picture.alt
    assert count(pictures[-1], "text", "as it should be") == 2
    assert "instead of" not in pictures[-1].alt


def test_the_names_of_the_steps_are_the_rules():
    names = watch_rules("CE", TOKENS, answers_with).recording()["names"]
    assert names == ["no rule", "not in the future", "same sequence", "same sequence and not in the future"]
