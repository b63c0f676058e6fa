"""The picture of a pool under pressure: every block is drawn and told as what it is, whatever the size of the pool."""

import re
from dataclasses import replace

import pytest
from picture_cases import BUSY, QUIET
from svg_reading import SVG, elements, texts, titles

from lessons_lib.viz.drawing import palette
from lessons_lib.viz.pressure.steps import draw_pressure


def pool(num_blocks, owners, **changes):
    return replace(QUIET, num_blocks=num_blocks, owners=owners, filled=dict.fromkeys(owners, 4), **changes)


def stripes(picture, block):
    """(colour, width) of what fills a block, from left to right; the bay itself, which has round corners, left out."""
    rects = [
        e
        for e in elements(picture, "rect")
        if (e.findtext(SVG + "title") or "").startswith(f"block {block}:") and e.get("rx") is None
    ]
    return [(e.get("fill"), float(e.get("width"))) for e in rects]


# --- the blocks


def test_the_mouse_reads_every_block():
    hovers = titles(draw_pressure(BUSY))
    for told in (
        "block 0: free, but its contents can still be found",
        "block 1: free",
        "block 2: A and B, one block for 2; 4 of 4 tokens",
        "block 3: A; 1 of 4 tokens",
        "swap block 1: D, swapped out",
        "swap block 0: free",
    ):
        assert told in hovers
    assert {int(re.match(r"block (\d+)", h)[1]) for h in hovers if h.startswith("block")} == set(range(10))


@pytest.mark.parametrize("num_blocks", [4, 12, 40, 120])
def test_a_shared_block_has_a_stripe_and_a_letter_for_each_holder(num_blocks):
    picture = draw_pressure(pool(num_blocks, {3: tuple("ABCDEF"), 1: ("C",)}))
    assert [colour for colour, _ in stripes(picture, 3)] == [palette.color_of(name) for name in "ABCDEF"]
    assert len({width for _, width in stripes(picture, 3)}) == 1 and len(stripes(picture, 1)) == 1
    shown = texts(picture)
    at = shown.index("A")
    assert shown[at : at + 6] == list("ABCDEF")
    assert "block 3: A, B, C, D, E and F, one block for 6; 4 of 4 tokens" in titles(picture)


def test_the_swap_space_shows_who_is_out():
    def in_swap(step):
        rects = [
            e
            for e in elements(draw_pressure(step), "rect")
            if (e.findtext(SVG + "title") or "").startswith("swap block")
        ]
        return [e.get("fill") for e in rects]

    colours = in_swap(BUSY)
    assert len(colours) == 6 and [n for n, colour in enumerate(colours) if colour == palette.color_of("D")] == [1, 2]
    assert "no swap space" in texts(draw_pressure(QUIET)) and "no swap space" not in texts(draw_pressure(BUSY))


# --- the words


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
