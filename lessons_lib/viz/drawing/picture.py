"""A picture: SVG and the words that say the same."""

from __future__ import annotations

import base64
import io
import re
import sys
import zlib
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from lessons_lib.viz.drawing.night import CHART, image_style
from lessons_lib.viz.drawing.palette import PAPER

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# A picture in an <img> asks for that element's color scheme (`image_style`); player.js sets it, too.
# JupyterLab says its theme at its body, the website at its root. Where a page has no player, nothing else reads it.
# `openings`: the picture in a lesson's first cell is a file.
DARK_PAGES = (
    "<style>:is([data-theme='dark'],[data-jp-theme-light='false']) "
    ":is(.lessons-picture,img[src*='/openings/']){color-scheme:dark}</style>"
)

LEAST_WIDTH = 820  # pixels: that of player.js. In a narrower column a picture scrolls.
_DECIMALS = re.compile(r"(?<=\.\d\d)\d+")  # beyond two


@dataclass(frozen=True)
class Picture:
    """A still picture with its alternative text.

    svg  one complete `<svg ...>...</svg>` element; a page that takes it in as it is (a `Stepper` does) also
         shows the hover texts
    alt  what the picture tells, in words: read aloud by a screen reader, shown where no picture can be
    """

    svg: str
    alt: str

    def __post_init__(self) -> None:
        if not self.alt.strip():
            raise ValueError(
                f"alt is {self.alt!r}; a picture needs alternative text. Say in words what one learns by looking at it."
            )
        if not self.svg.startswith("<svg") or not self.svg.rstrip().endswith("</svg>"):
            raise ValueError(f"svg begins with {self.svg[:20]!r}; it must be one <svg>...</svg> element.")

    @classmethod
    def from_figure(cls, fig: Figure, alt: str) -> Picture:
        """Turn a matplotlib figure into a picture and close the figure.

        The same figure gives the same SVG: no date, no random ids; its text stays text.
        """
        import matplotlib

        buffer = io.StringIO()
        salt = f"lessons-{zlib.crc32(alt.encode()):08x}"
        with matplotlib.rc_context({"svg.hashsalt": salt, "svg.fonttype": "none"}):
            fig.savefig(buffer, format="svg", facecolor=PAPER, metadata={"Date": None, "Creator": None})
        if "matplotlib.pyplot" in sys.modules:
            sys.modules["matplotlib.pyplot"].close(fig)
        svg = buffer.getvalue()
        svg = svg[svg.index("<svg") :].rstrip()
        start, rest = svg.split(">", 1)
        width, height = (float(re.search(rf'\b{side}="([\d.]+)pt"', start)[1]) * 4 / 3 for side in ("width", "height"))
        view_box = re.search(r'viewBox="[^"]*"', start)[0]
        # Fewer characters: no comments, no line breaks, and coordinates with two decimals.
        rest = re.sub(r"<!--.*?-->|(?<=>)\s+(?=<)", "", rest, flags=re.DOTALL)
        rest = re.sub(r' [dxy]="[^"]*"', lambda found: " " + " ".join(_DECIMALS.sub("", found[0]).split()), rest)
        # Matplotlib makes ids of coordinates to their last bit, which is the processor's; a page has many pictures.
        for index, name in enumerate(dict.fromkeys(re.findall(r'\bid="([mp][0-9a-f]{10})"', rest))):
            rest = rest.replace(name, f"{salt}-{index}")
        return cls(svg_start(width, height, alt, view_box, f"lessons-picture {CHART}") + rest, alt)

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        # Inline SVG would be torn to a heap of words where a notebook is not trusted; an <img> is shown there too.
        start, rest = self.svg.split(">", 1)
        width = re.search(r' width="([\d.]+)"', start)
        full = float(width[1]) if width else LEAST_WIDTH
        data = base64.b64encode(f"{start}>{image_style(self.svg)}{rest}".encode()).decode()
        html = (
            '<div style="overflow-x:auto" tabindex="0">'
            f'{DARK_PAGES}<img class="lessons-picture" alt="{escape(self.alt)}" src="data:image/svg+xml;base64,{data}" '
            f'style="width:100%;max-width:{full:g}px;min-width:{min(full, LEAST_WIDTH):g}px;height:auto"></div>'
        )
        return {"text/html": html, "image/svg+xml": self.svg, "text/plain": self.alt}


def still_bundle(content: Picture | str) -> dict[str, str]:
    """A picture, or the sentence that stands in its place, as an output."""
    if isinstance(content, Picture):
        return content._repr_mimebundle_()
    return {"text/html": f"<p>{escape(content)}</p>", "text/plain": content}


def svg_start(
    width: float, height: float, alt: str, view_box: str | None = None, classes: str = "lessons-picture"
) -> str:
    """The opening tag of a picture: fixed size where it is an image file, never wider than the notebook."""
    view_box = view_box or f'viewBox="0 0 {width:g} {height:g}"'
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'{view_box} width="{width:g}" height="{height:g}" style="max-width:100%;height:auto" '
        f'class="{classes}" role="img" aria-label="{escape(alt)}">'
    )
