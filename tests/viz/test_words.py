"""Words that differ are marked, as text and in color."""

import pytest

from lessons_lib.checks.panel import Panel
from lessons_lib.viz.tables import Table
from lessons_lib.viz.words import STYLE, marked, marks_as_html

STORY = "The old dog ran to the river and saw a big red boat"


@pytest.mark.parametrize(
    "other, says",
    [
        (STORY, STORY),
        (STORY.replace("saw", "found"), "The old dog ran to the river and »found« a big red boat"),
        ("The old dog sat down and the cat saw a bird", "The old dog »sat down and the cat saw a bird«"),
        ("Once upon a time", "»Once upon a time«"),
        (STORY.replace("old dog ran ", ""), "The »3 missing« to the river and saw a big red boat"),
        (STORY.removesuffix(" red boat"), STORY.removesuffix(" red boat") + " »ends here«"),
        (STORY + " there", STORY + " »there«"),
        ("", "»ends here«"),
        ("The dog dog dog ran", "The »dog dog dog ran«"),
        ("The " + STORY, "The »The« " + STORY.removeprefix("The ")),
    ],
)
def test_words(other, says):
    assert marked(STORY, other) == says


@pytest.mark.parametrize(
    "right, other, says",
    [
        ([1, 2, 3, 4], [1, 2, 9, 4], "[1, 2, »9, 4«]"),
        ([1, 2, 3, 4, 5], [2, 3, 4, 5], "[»1 missing«, 2, 3, 4, 5]"),
        ([1, 2, 3], [1, 2], "[1, 2]"),
        ([1, 2], [1, 2, 2], "[1, 2, »2«]"),
        ([], [5], "[5]"),
        ([1, 2], [3, 4, 5], "[3, 4, 5]"),
        ([], [], "[]"),
        (list(range(50)), [*range(40), 7, *range(41, 50)], "[… 37 equal …, 37, 38, 39, »7«, 41, 42, 43, … 6 equal …]"),
        ([0], list(range(20)), "[0, »1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, … 7 more«]"),
        (["a", "b"], ("a", "c"), "['a', »'c'«]"),
    ],
)
def test_tokens(right, other, says):
    assert marked(right, other) == says


@pytest.mark.parametrize(
    "other, says",
    [
        (STORY, "The old dog ran"),
        (STORY.removesuffix(" and saw a big red boat"), "The old dog ran"),
        ("The old dog ran", "The old dog ran »ends here«"),
        (STORY.replace("river", "house"), "The old dog ran"),
        (STORY.replace("ran", "wandered"), "The old dog"),  # "wandered" is cut off, so nothing ends
        ("The cat sat down and slept", "The »cat sat down«"),
        (STORY.replace("to the river and saw a", ""), "The old dog ran"),
        ("Then a big red boat came", "»Then a big red«"),  # as in the part of the right text that is shown
    ],
)
def test_a_text_that_is_cut_does_not_end(other, says):
    assert marked(STORY, other, limit=17) == says


def test_tables_and_panels_show_marks_in_color():
    text = marked("a & b", "a < b")
    assert text == "a »< b«" and text in str(Table(["text"], [[text]])) and text in str(Panel("wrong", text))
    as_html = f"a <mark style='{STYLE}'>&lt; b</mark>"
    assert as_html in Table(["name", "text"], [["x", text]])._html() and as_html in Panel("wrong", text).as_html()
    assert marks_as_html("» no end") == "» no end"
