"""What a drawing tells a player: what belongs together, what moves, what is seen only while it is followed."""

import xml.etree.ElementTree as ET

from svg_reading import SVG

from lessons_lib.viz.drawing.svg import Drawing


def marks_of(d):
    return [
        (element.tag.removeprefix(SVG), element.get("data-link"), element.get("data-moves"), element.get("opacity"))
        for element in ET.fromstring(d.picture("a picture").svg).find(f"{SVG}g")
    ][1:]  # without the paper


def test_only_what_is_drawn_meanwhile_is_marked():
    d = Drawing(height=40)
    d.rect(0, 0, 20, 20, "#009E73")
    with d.marked([("A",)], moves="chip"):
        d.cell(30, 0, 20, 20, "#009E73", "A", hatched=0.5)
        d.hover_grid(30, 0, 10, 10, [["one", "two"]])
    d.text(60, 10, "after")
    first, *marked, last = marks_of(d)
    assert first == ("rect", None, None, None) and last == ("text", None, None, None)
    assert {mark[1:] for mark in marked} == {("A", "chip", None)} and len(marked) >= 4
    assert "g" in {mark[0] for mark in marked}


def test_names_have_parts_and_hold_no_signs_of_their_own():
    d = Drawing(height=40)
    with d.marked([("my request", "1/3"), ('<"b">',)], hidden=True):
        d.lines("M0 0H9")
    assert marks_of(d) == [("path", 'my_request/1_3 <"b">', None, "0")]
