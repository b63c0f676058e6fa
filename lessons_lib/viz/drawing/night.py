"""The dark theme: for each color of a drawing, the one that takes its place on a dark page.

A drawing is made once, in light colors. Style rules exchange them where it is dark; `in_the_dark` says by what.
Charts of matplotlib write their colors in another way; a filter inverts them as a whole.
"""

import re
from collections.abc import Iterable

from lessons_lib.viz.drawing.palette import in_the_dark

CHART = "lessons-chart"  # class of a matplotlib chart
FILTER = "invert(0.88) hue-rotate(180deg)"  # what `inverted` of the palette computes
_COLOR = re.compile(r'\b(?:fill|stroke)="(#[0-9A-Fa-f]{6})"')


def colors_of(svg: str) -> list[str]:
    """The colors that the elements of a drawing have and that change in the dark, in order of their names."""
    return sorted(color for color in set(_COLOR.findall(svg)) if in_the_dark(color) != color)


def night_rules(colors: Iterable[str]) -> str:
    """Style rules that follow the page's theme by `--lessons-night`: invalid on a light page, where the color itself is
    used, and empty on a dark one. Fill and stroke have a variable each, as an element may have both.
    """
    return "".join(
        f'[{what}="{color}"]{{--{what}:var(--lessons-night) {in_the_dark(color)};{what}:var(--{what},{color})}}'
        for color in colors
        for what in ("fill", "stroke")
    )


def image_style(svg: str) -> str:
    """A style element for a picture that is an image of its own: it asks for the color scheme of its `<img>`."""
    if CHART in svg:
        rules = f"svg{{filter:{FILTER}}}"
    else:
        rules = "".join(
            f'[{what}="{color}"]{{{what}:{in_the_dark(color)}}}'
            for color in colors_of(svg)
            for what in ("fill", "stroke")
        )
    return f"<style>@media (prefers-color-scheme:dark){{{rules}}}</style>"
