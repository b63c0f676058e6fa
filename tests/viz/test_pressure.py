"""The picture of a pool under pressure: every block is drawn and told as what it is, whatever the size of the pool."""

import re
from dataclasses import replace

import pytest
from picture_cases import BUSY, QUIET, queue_moments
from svg_reading import SVG, elements, texts, titles

from lessons_lib.viz.drawing import palette
from lessons_lib.viz.pressure import draw_free_queue, draw_pressure


def pool(num_blocks, owners, **changes):
    return replace(QUIET, num_blocks=num_blocks, owners=owners, filled=dict.fromkeys(owners, 4), **changes)


def stripes(picture, kind, rounded=False):
    """(colour, width) of what is drawn for a block or swap block, without the bay itself, which has round corners."""
    rects = [rect for rect in elements(picture, "rect") if (rect.findtext(SVG + "title") or "").startswith(kind)]
    return [(rect.get("fill"), float(rect.get("width"))) for rect in rects if rounded or rect.get("rx") is None]


def test_the_mouse_reads_every_block():
    hovers = titles(draw_pressure(BUSY))
    for told in (
        "block 0: free, but its contents can still be found",
        "block 1: free",
        "block 2: A, B, one block for 2; 4 of 4 tokens",
        "block 3: A; 1 of 4 tokens",
        "swap block 1: D, swapped out",
        "swap block 0: free",
    ):
        assert told in hovers
    assert {int(re.match(r"block (\d+)", h)[1]) for h in hovers if h.startswith("block")} == set(range(10))


@pytest.mark.parametrize("num_blocks", [4, 12, 40, 120])
def test_a_shared_block_has_a_stripe_and_a_letter_for_each_holder(num_blocks):
    picture = draw_pressure(pool(num_blocks, {3: tuple("ABCDEF"), 1: ("C",)}))
    shared = stripes(picture, "block 3:")
    assert [colour for colour, _ in shared] == [palette.color_of(name) for name in "ABCDEF"]
    assert len({width for _, width in shared}) == 1 and len(stripes(picture, "block 1:")) == 1
    shown = texts(picture)
    at = shown.index("A")
    assert shown[at : at + 6] == list("ABCDEF")
    assert "block 3: A, B, C, D, E, F, one block for 6; 4 of 4 tokens" in titles(picture)


def test_the_swap_space_shows_who_is_out():
    colours = [colour for colour, _ in stripes(draw_pressure(BUSY), "swap block", rounded=True)]
    assert len(colours) == 6 and [n for n, colour in enumerate(colours) if colour == palette.color_of("D")] == [1, 2]
    assert "no swap space" in texts(draw_pressure(QUIET)) and "no swap space" not in texts(draw_pressure(BUSY))


def test_who_computes_and_who_waits_stands_on_top():
    shown = texts(draw_pressure(BUSY))
    assert shown[0] == "Step 9 computes 6 tokens of 4 sequences"
    assert shown[1:13] == ["computed:", *"A1B1C3E1", "waiting:", *"FD"]
    assert texts(draw_pressure(QUIET))[1:5] == ["computed:", "none", "waiting:", "none"]


def test_the_events_of_a_step():
    shown = texts(draw_pressure(BUSY))
    at = shown.index("what happened in this step") + 1
    assert shown[at : at + 15] == [
        "D", "preempted, swapped out",
        "F", "preempted, cache dropped",
        "C", "admitted, 4 tokens found in the", "cache",
        "E", "admitted, swapped in",
        "block 4 is copied to block 9",
        "blocks 5, 6 to swap 1, 2",
        "swap 3 to block 6",
        "G", "finished",
        "6 of 10 blocks in use (1 shared); 4 free (2 cached); 2 of 6 swap blocks in use",
    ]  # fmt: skip
    assert "no changes" in texts(draw_pressure(QUIET))
    crowd = texts(draw_pressure(replace(BUSY, admitted=tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ"))))
    told = sum(text.startswith(("admitted", "preempted")) for text in crowd)
    assert 5 < told < 20 and f"and {26 + 2 + 3 + 1 - told} more" in crowd


def test_the_free_queue_before_and_after():
    picture = draw_free_queue(queue_moments())
    assert picture.alt == (
        "X has two full blocks: free queue 2, 3; in use 0 a × 1, 1 b × 1. "
        "X has ended: free queue 2, 3, 1 b, 0 a; in use none. "
        "Y uses block 0: free queue 2, 3, 1 b; in use 0 a × 1."
    )
    drawn = texts(picture)
    times = {label: drawn.count(label) for label in ("2", "3", "1 b", "0 a", "0 a ×1", "1 b ×1", "none")}
    assert times == {"2": 3, "3": 3, "1 b": 2, "0 a": 1, "0 a ×1": 2, "1 b ×1": 1, "none": 1}
    framed = [rect for rect in elements(picture, "rect") if rect.get("stroke-width") == "3"]
    assert len(framed) == 2 + 1 + 1  # both blocks in row 2, one in row 3, and the legend
