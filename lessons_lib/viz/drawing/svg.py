"""A sheet of paper to draw on: cells, labels, hatching, hover texts, legends.

Just enough SVG for grids of cells. Coordinates are pixels from the top left corner at full size; the sheet is
900 wide, about the width of a notebook, and shrinks with it. Later drawings cover earlier ones.
"""

import re
import textwrap
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any

from lessons_lib.viz.drawing.palette import (
    EDGE,
    HATCH,
    INK,
    NEUTRAL,
    PAPER,
    SOFT_INK,
    color_of,
    halo_on,
    mix,
    outline,
    text_on,
)
from lessons_lib.viz.drawing.picture import Picture, svg_start

WIDTH = 900
SANS = "Helvetica, Arial, 'DejaVu Sans', sans-serif"
MONO = "Menlo, Consolas, 'DejaVu Sans Mono', monospace"
_MONO_EM = 0.61  # width of one character of a fixed-width font, in font sizes
_HATCH_URL = "url(#HATCH)"  # the real id is put in at the end


def number(value: float) -> str:
    """A coordinate in as few characters as needed."""
    text = f"{value:.2f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def mono_width(text: str, size: float = 13) -> float:
    """Width of fixed-width text in pixels; East Asian wide characters count twice."""
    return size * _MONO_EM * sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def sans_width(text: str, size: float) -> float:
    """About how wide text is, in pixels. The font is the reader's own, so this is an estimate."""
    return 0.56 * size * len(text)


class Drawing:
    """Collects SVG elements. `height` may be set any time before `picture`."""

    def __init__(self, width: float = WIDTH, height: float = 0):
        self.width = width
        self.height = height
        self._parts: list[str] = []
        self._marks = ""

    @contextmanager
    def marked(self, links: Iterable[Sequence[str]] = (), moves: str = "", hidden: bool = False) -> Iterator[None]:
        """What is drawn meanwhile tells a player what it shows. In a still picture, only `hidden` makes a difference.

        links   of each thing that it belongs to, the name's parts: ("A",), ("A", "13"). Under the mouse, and when its
                reader follows a name, all names that begin with it are lit, and the others are pale.
        moves   from one picture to the next, what has the same name glides to its new place
        hidden  seen only while it is lit
        """
        before = self._marks
        link = " ".join("/".join(re.sub(r"[\s/]", "_", part) for part in parts) for parts in links)
        for name, value in (("link", link), ("moves", moves)):
            self._marks += f' data-{name}="{escape(value)}"' if value else ""
        self._marks += ' opacity="0"' if hidden else ""
        yield
        self._marks = before

    def _add(self, element: str) -> None:
        tag = element.index(" ")
        self._parts.append(element[:tag] + self._marks + element[tag:])

    def rect(
        self, x: float, y: float, width: float, height: float, fill: str = "none", stroke: str | None = None,
        stroke_width: float = 1, dashed: bool = False, radius: float = 0, title: str | None = None,
    ) -> None:  # fmt: skip
        """A rectangle; `title` is its hover text. A fill without a stroke gets an outline; "none" leaves it out."""
        if stroke is None and min(width, height) >= 8 and len(fill) == 7 and fill != PAPER:
            stroke = outline(fill)
        extra = f' rx="{number(radius)}"' if radius else ""
        if stroke and stroke != "none":
            extra += f' stroke="{stroke}"' + (f' stroke-width="{number(stroke_width)}"' if stroke_width != 1 else "")
        if dashed:
            extra += ' stroke-dasharray="3 3"'
        end = f"><title>{escape(title)}</title></rect>" if title else "/>"
        self._box(x, y, width, height, f'fill="{fill}"{extra}', end)

    def _box(self, x: float, y: float, width: float, height: float, look: str, end: str = ' pointer-events="none"/>'):
        size = f'x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}"'
        self._add(f"<rect {size} {look}{end}")

    def hatch(self, x: float, y: float, width: float, height: float) -> None:
        """Slanted lines over a part of a cell: computed for nothing, or reserved for nothing."""
        self._box(x, y, width, height, f'fill="{_HATCH_URL}"')

    def text(
        self, x: float, y: float, text: str, size: float = 13, anchor: str = "start", bold: bool = False,
        fill: str = INK, mono: bool = False, halo: str | None = None, on: str | None = None,
    ) -> None:  # fmt: skip
        """Text whose *middle* line is at y. `anchor` is "start", "middle" or "end"; `halo` is a rim around the
        letters. `on` is the color that it lies on, which then gives ink and halo.
        """
        if on:
            fill, halo = text_on(on), halo or halo_on(on)
        extra = f' text-anchor="{anchor}"' if anchor != "start" else ""
        extra += ' font-weight="bold"' if bold else ""
        extra += f' font-family="{MONO}" xml:space="preserve"' if mono else ""
        extra += f' stroke="{halo}" stroke-width="3" paint-order="stroke" stroke-linejoin="round"' if halo else ""
        # 0.35 of the size is half the height of a capital letter: renderers disagree about dominant-baseline.
        self._add(
            f'<text x="{number(x)}" y="{number(y + 0.35 * size)}" font-size="{number(size)}" fill="{fill}"{extra} '
            f'pointer-events="none">{escape(text)}</text>'
        )

    def lines(
        self, d: str, stroke: str = EDGE, width: float = 1, fill: str = "none", arrow: bool = False, dots: float = 0
    ) -> None:
        """A path in SVG's own notation ("M x y H x V y"), with an arrow head at its end when asked for.

        With `dots`, the line is a row of round dots so many pixels apart, the first one where a piece of the path
        begins.
        """
        end = ' marker-end="url(#ARROW)"' if arrow else ""
        end += f' stroke-dasharray="0 {number(dots)}" stroke-linecap="round"' if dots else ""
        self._add(
            f'<path d="{d}" stroke="{stroke}" stroke-width="{number(width)}" fill="{fill}"{end} pointer-events="none"/>'
        )

    def rule(self, y: float) -> None:
        """A line across the sheet, from margin to margin."""
        self.lines(f"M16 {number(y)}H{number(self.width - 16)}")

    def boxes(
        self, corners: Iterable[tuple[float, float]], width: float, height: float, fill: str = "none",
        stroke: str = "none",
    ) -> None:  # fmt: skip
        """Boxes of one size as one element, which costs a player less than many."""
        box = f"h{number(width)}v{number(height)}h{number(-width)}z"
        if path := "".join(f"M{number(x)} {number(y)}{box}" for x, y in corners):
            self.lines(path, stroke, fill=fill)

    def hover_grid(self, x: float, y: float, width: float, height: float, titles: Sequence[Sequence[str]]) -> None:
        """Hover texts for a grid of cells so wide and so high, row by row; nothing is seen of it.

        The grid sets the scale and a row its place, so that a cell costs few characters: there may be thousands. Only a
        cell's inside answers the mouse; its outline, though not drawn, would be a cell wide at that scale.
        """
        self._add(
            f'<g transform="matrix({number(width)} 0 0 {number(height)} {number(x)} {number(y)})" fill="none" '
            'pointer-events="fill">'
        )
        for row, line in enumerate(titles):
            cells = (
                f'<rect x="{column}" width="1" height="1"><title>{escape(title)}</title></rect>'
                for column, title in enumerate(line)
            )
            self._parts.append(f'<g transform="translate(0 {row})">{"".join(cells)}</g>')
        self._parts.append("</g>")

    def cell(
        self, x: float, y: float, width: float, height: float, fill: str, label: str = "", title: str | None = None,
        hatched: float = 0.0, pale: str = PAPER, framed: bool = False, size: float = 13,
    ) -> None:  # fmt: skip
        """One cell of a grid.

        hatched  share of the cell, 0 to 1, from its foot upwards, that is waste: hatched, on the colour `pale`
        framed   a dark frame inside the cell marks it
        label    stands in the part that is not hatched, where it has room
        """
        waste = height * hatched
        seen = pale if hatched >= 1 else fill
        # Narrower cells would be all outline.
        rim = outline(seen) if width >= 8 and seen.startswith("#") else None
        self.rect(x, y, width, height, seen, rim, title=title)
        if 0 < hatched < 1:
            self._box(x, y + height - waste, width, waste, f'fill="{pale}"')
        if hatched:
            self.hatch(x, y + height - waste, width, waste)
        if framed:
            self.frame(x, y, width, height, seen)
        if label and height - waste >= size + 3:
            self.text(x + width / 2, y + (height - waste) / 2, label, size, "middle", bold=True, on=fill)
        elif label and hatched < 1:
            self.text(x + width / 2, y + height / 2, label, size, "middle", bold=True, halo=pale)

    def frame(self, x: float, y: float, width: float, height: float, on: str) -> None:
        """A dark frame inside a box, with a pale line within on strong colors; in a narrow box, half stays color."""
        line = min(2.0, width / 4)
        ink = text_on(on)
        if ink == "#FFFFFF":
            ink, rim = INK, mix(on, PAPER, 0.8)
        else:
            rim = halo_on(on)
        for stroke, inset in ((rim, 2 * line), (ink, line)):
            if stroke and (stroke == ink or width > 4 * line):
                look = f'fill="none" stroke="{stroke}" stroke-width="{number(inset)}"'
                self._box(x + inset / 2, y + inset / 2, width - inset, height - inset, look)

    def chip(
        self, x: float, y: float, text: str, fill: str = NEUTRAL, stroke: str | None = None, stroke_width: float = 1,
        title: str | None = None,
    ) -> float:  # fmt: skip
        """A word in a box of its own width (fixed-width font). Returns the width. y is the upper edge."""
        width = chip_width(text)
        self.rect(x, y, width, 24, fill, stroke, stroke_width, radius=3, title=title)
        self.text(x + width / 2, y + 12, text, 13, "middle", mono=True, on=PAPER if fill == "none" else fill)
        return width

    def legend(self, x: float, y: float, signs: Iterable[tuple[str, Callable[[float, float], object]]]) -> float:
        """Signs side by side, each with its words after it. Returns the x after the last one.

        signs  (words, function that draws the sign, 18 x 16 pixels, with its upper left corner at (x, y))
        """
        for words, draw in signs:
            draw(x, y - 8)
            self.text(x + 25, y, words, 12, fill=SOFT_INK)
            x += 46 + 6.2 * len(words)
        return x

    def paragraph(
        self, x: float, y: float, text: str, characters: int, size: float = 12, line: float = 16, **look: Any
    ) -> float:
        """Text in lines of `characters` at most, the middle of the first at y. Returns where the next line would be."""
        for one in textwrap.wrap(text, characters):
            self.text(x, y, one, size, **look)
            y += line
        return y

    def names(self, x: float, y: float, names: Sequence[str], end: float, moves: bool = True) -> float:
        """Requests as chips, as many as have room before `end`, and the number of others. Returns the x after them."""
        for index, name in enumerate(names):
            if x > end - 30:
                self.text(x + 2, y + 10, f"and {len(names) - index} more", 12, fill=SOFT_INK)
                return x + 70
            with self.marked([(name,)], moves=f"request {name}" if moves else ""):
                x += self.request_chip(x, y, name) + 4
        return x

    def request_chip(self, x: float, y: float, name: str, size: float = 20) -> float:
        """A request's letter on its colour. Returns the width."""
        width = max(size, 10 + 8 * len(name))
        self.rect(x, y, width, size, color_of(name), radius=3)
        self.text(x + width / 2, y + size / 2, name, 12, "middle", bold=True, on=color_of(name))
        return width

    def picture(self, alt: str) -> Picture:
        """The finished picture; `alt` says in words what it shows."""
        body = "".join(self._parts)
        # All pictures of a page share one space of ids, so each gets its own, the same in every run.
        key = f"{zlib.crc32(body.encode()):08x}"
        defs = ""
        if "url(#HATCH)" in body:
            defs += (
                f'<pattern id="hatch-{key}" width="5" height="5" patternUnits="userSpaceOnUse" '
                f'patternTransform="rotate(45)"><path d="M0 0V5" stroke="{HATCH}" stroke-width="2.2"/></pattern>'
            )
        if "url(#ARROW)" in body:
            defs += (
                f'<marker id="arrow-{key}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
                f'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8Z" fill="{INK}"/></marker>'
            )
        # With the quotes: escaped text cannot hold them, so only attributes are replaced.
        body = body.replace('"url(#HATCH)"', f'"url(#hatch-{key})"').replace('"url(#ARROW)"', f'"url(#arrow-{key})"')
        paper = f'<rect width="{number(self.width)}" height="{number(self.height)}" rx="6" fill="{PAPER}"/>'
        start = svg_start(self.width, self.height, alt)
        defs = f"<defs>{defs}</defs>" if defs else ""
        return Picture(f'{start}{defs}<g font-family="{SANS}">{paper}{body}</g></svg>', alt)


def chip_width(text: str) -> float:
    return max(24.0, mono_width(text) + 12)


def flow(widths: list[float], room: float, gap: float = 4) -> list[tuple[int, float]]:
    """Lay boxes out like words of a text: (line, x) for each; a new line begins where `room` pixels are used up."""
    places: list[tuple[int, float]] = []
    line, x = 0, 0.0
    for width in widths:
        if x > 0 and x + width > room:
            line, x = line + 1, 0.0
        places.append((line, x))
        x += width + gap
    return places


def shortened(text: str, room: float, size: float) -> str:
    """Fixed-width text, cut so that it fits into so many pixels."""
    while len(text) > 1 and mono_width(text, size) > room:
        text = text[:-2] + "…"
    return text


def share_text(part: float, whole: float) -> str:
    """A share as a learner reads it: "25 %"."""
    return f"{100 * part / whole:.0f} %" if whole else "0 %"


def show_token(text: str) -> str:
    """The text of a token made visible: a space as a middle dot, line breaks and tabs as \\n and \\t."""
    text = text.replace(" ", "·").replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")
    visible = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
    return visible or "(empty)"
