"""The contrast of what a picture draws: each color against the one that lies under it, read from the SVG."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass

from lessons_lib.viz.drawing.palette import PAPER, contrast, contrast_in_both

SVG = "{http://www.w3.org/2000/svg}"
GRID_LINES = {"#E6E6E6", "#DCDCD7"}  # they help the eye and say nothing
SMALL = 8  # pixels; an outline would hide a narrower box
_START = re.compile(r"[Mm]\s*([-\d.]+)[ ,]([-\d.]+)")
_FILLED = re.compile(r"M([-\d.]+) ([-\d.]+)h([\d.]+)v([\d.]+)")
_HEX = re.compile(r"#[0-9A-Fa-f]{6}")


@dataclass(frozen=True)
class Drawn:
    """A text, box or line on a color.

    Attributes:
        kind: "text", "rect" or "path".
        colors: the one that must be seen, or of a box fill and outline; one of them is enough.
        under: what it lies on; of a text with a rim, the rim.
        least: the contrast that it needs.
    """

    kind: str
    colors: tuple[str, ...]
    under: str
    least: float

    @property
    def contrast(self) -> float:
        return max((contrast_in_both(color, self.under) for color in self.colors), default=21.0)


def too_faint(svg: str) -> set[Drawn]:
    """What has too little contrast, on a light page or on a dark one (WCAG 2.1: text 4.5, shapes 3)."""
    return {each for each in set(drawn(svg)) if each.contrast < each.least}


def drawn(svg: str) -> Iterator[Drawn]:
    """Everything that `Drawing` drew, without hatching, grid lines, lines on colored boxes, and gaps in the color of the paper."""
    boxes: list[tuple[float, float, float, float, str]] = []
    rim = None  # of a frame: the pale line that was drawn before the dark one
    elements = list(_leaves(ET.fromstring(svg)))
    for element, following in zip(elements, [*elements[1:], ET.Element("")]):
        kind, get = element.tag.removeprefix(SVG), element.get
        fill, edge = get("fill", "none"), get("stroke", "none")
        if kind == "text":
            middle = float(get("y")) - 0.35 * float(get("font-size", 13))
            x = float(get("x")) + {"middle": 0, "end": -3}.get(get("text-anchor"), 3)
            yield Drawn(kind, (fill,), edge if edge != "none" else _under(boxes, x, middle, x, middle), 4.5)
        elif kind == "path":
            boxes += ((*_box(*map(float, place)), fill) for place in _FILLED.findall(get("d")) if _HEX.fullmatch(fill))
            if not (start := _START.match(get("d"))):
                continue
            x, y = map(float, start.groups())
            is_rim = following.get("d") == get("d")
            if edge not in ("none", PAPER, *GRID_LINES) and not is_rim and _under(boxes, x, y, x, y) == PAPER:
                yield Drawn(kind, (edge,), PAPER, 3)
        else:
            x, y, width, height = (float(get(name, 0)) for name in ("x", "y", "width", "height"))
            is_hatched = following.get("fill", "").startswith("url(#hatch")
            if fill != PAPER and min(width, height) >= SMALL and not is_hatched:
                colors = tuple(color for color in (fill, edge) if _HEX.fullmatch(color))
                under = rim if rim and fill == "none" else _under(boxes, x, y, x + width, y + height)
                # A request's color on another's: letters tell them apart.
                if contrast(under, PAPER) < 2 and (fill != "none" or float(get("stroke-width", 1)) < 4):
                    yield Drawn(kind, colors, under, 3)
            rim = edge if fill == "none" and float(get("stroke-width", 1)) >= 4 else None
            if _HEX.fullmatch(fill):
                boxes.append((*_box(x, y, width, height), fill))


def _leaves(root: ET.Element) -> Iterator[ET.Element]:
    for child in root:
        if child.tag == SVG + "g" and "matrix" not in child.get("transform", ""):
            yield from _leaves(child)
        elif child.tag in (SVG + "text", SVG + "rect", SVG + "path"):
            yield child


def _box(x: float, y: float, width: float, height: float) -> tuple[float, float, float, float]:
    return x - 2, y - 2, x + width + 2, y + height + 2


def _under(boxes: list, left: float, top: float, right: float, bottom: float) -> str:
    """The fill of the last box with all of this inside."""
    for x, y, end, foot, fill in reversed(boxes):
        if x <= left and y <= top and end >= right and foot >= bottom:
            return fill
    return PAPER
