"""The colors that a legend shows the prefill's frame on."""

from collections.abc import Iterable

from lessons_lib.viz.drawing.palette import NEUTRAL, ON_COLOR, color_of, text_on


def sample_colors(requests: Iterable[str]) -> list[str]:
    """One request's color for each look of the frame (dark or pale on a dark page); gray if there are no requests."""
    first: dict[bool, str] = {}
    for name in requests:
        first.setdefault(text_on(color_of(name)) == ON_COLOR, color_of(name))
    return [*first.values()] or [NEUTRAL]
