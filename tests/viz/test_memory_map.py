"""The contiguous layout as a row of cache slots: each slot is drawn as what it is, on one scale."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from svg_reading import SVG, assert_sound, elements, texts

from lessons_lib.recording.fragmentation import contiguous_use, paged_use
from lessons_lib.viz.cache.memory_map import draw_memory, parts, slots_per_line

HELD = [{"A": 2}, {"A": 3, "B": 4}, {"B": 5, "C": 1}, {"B": 5, "C": 2}]
USES = contiguous_use(HELD, {"A": 6, "B": 7, "C": 4})


def hovers(picture):
    """Hover text -> how many pixels wide all that it stands on is."""
    wide = {}
    for rect in elements(picture, "rect"):
        title = rect.find(SVG + "title")
        if title is not None:
            wide[title.text] = wide.get(title.text, 0) + float(rect.get("width"))
    return wide


@st.composite
def layouts(draw):
    held, running, number = [], {}, 0
    for _ in range(draw(st.integers(1, 10))):
        running = {
            name: tokens + draw(st.integers(0, 9)) for name, tokens in running.items() if draw(st.integers(0, 3))
        }
        while len(running) < 4 and draw(st.booleans()):
            running[str(number)] = draw(st.integers(0, 200))
            number += 1
        held.append(dict(running))
    names = {name for step in held for name in step}
    return contiguous_use(
        held, {name: max(step.get(name, 0) for step in held) + draw(st.integers(0, 100)) for name in sorted(names)}
    )


@settings(max_examples=30)
@given(uses=layouts())
def test_parts_are_all_slots_once_and_add_up(uses):
    for use in uses:
        pieces = list(parts(use))
        assert [slot for piece in pieces for slot in range(piece.start, piece.end)] == list(range(use.slots))
        for kind in ("tokens", "later", "never", "gaps"):
            assert sum(piece.end - piece.start for piece in pieces if piece.kind == kind) == getattr(use, kind)


@settings(max_examples=30)
@given(uses=layouts())
def test_widths_are_in_proportion_over_all_lines(uses):
    scale = max(use.slots for use in uses)
    for i, use in enumerate(uses):
        wide = hovers(draw_memory(uses, i))
        pixels = 826 / slots_per_line(scale) if scale else 0
        for piece in parts(use):
            if piece.kind != "gaps":  # a gap's dashes stand a pixel inside
                (width,) = [w for title, w in wide.items() if re.match(rf"slots? {piece.start:,}(:| to)", title)]
                assert width == pytest.approx((piece.end - piece.start) * pixels, abs=0.1)


def test_nobody_there():
    picture = draw_memory(contiguous_use([{}, {"A": 1}, {}], {"A": 4}), 2)
    assert "no slot reserved" in texts(picture)
    assert not hovers(picture)
    assert draw_memory(contiguous_use([{}], {}), 0).svg.endswith("</svg>")


def test_the_picture_is_sound():
    assert_sound(lambda: draw_memory(USES, 1, title='<b>"'))
    assert_sound(lambda: draw_memory(contiguous_use([{"B": 40, "A": 90}], {"B": 40, "A": 150}), 0))


def test_a_layout_in_blocks_is_refused():
    with pytest.raises(ValueError, match="draw_pool shows blocks"):
        draw_memory(paged_use(HELD, 4), 0)


def test_limits_are_named():
    for i in (-1, 4):
        with pytest.raises(IndexError, match=f"index {i} .* from 0 to 3"):
            draw_memory(USES, i)
    with pytest.raises(IndexError, match="no steps"):
        draw_memory([], 0)
    with pytest.raises(ValueError, match="num_slots is 12; a step of the layout takes up 13. Give at least 13"):
        draw_memory(USES, 0, num_slots=12)
