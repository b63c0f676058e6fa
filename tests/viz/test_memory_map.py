"""The contiguous layout as a row of cache slots: each slot is drawn as what it is, on one scale."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from svg_reading import elements, texts

from lessons_lib.recording.fragmentation import contiguous_use
from lessons_lib.viz.cache.memory_map import draw_memory, parts, slots_per_line
from lessons_lib.viz.drawing.palette import color_of


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
def test_tokens_are_as_wide_as_they_are_many_over_all_lines(uses):
    scale = max(use.slots for use in uses)
    for i, use in enumerate(uses):
        boxes = [rect for rect in elements(draw_memory(uses, i), "rect") if rect.get("height") == "34"]
        for region in use.regions:
            wide = sum(float(rect.get("width")) for rect in boxes if rect.get("fill") == color_of(region.request))
            assert wide == pytest.approx(region.tokens * 826 / slots_per_line(scale), abs=0.1)


def test_an_empty_memory_says_so():
    picture = draw_memory(contiguous_use([{}, {"A": 1}, {}], {"A": 4}), 2)
    assert "no slot reserved" in texts(picture)
