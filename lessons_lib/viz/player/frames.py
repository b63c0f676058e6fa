"""Many similar pictures as one recording: each distinct element once, and what changes from picture to picture."""

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from lessons_lib.viz.drawing.night import colors_of, night_rules
from lessons_lib.viz.drawing.picture import Picture

_TAG = re.compile(r"<(/?)[a-zA-Z][^>]*?(/?)>")
_DRAWN = re.compile(
    r'<svg [^>]*?viewBox="0 0 ([\d.]+) ([\d.]+)"[^>]*>(?:<defs>(.*?)</defs>)?<g [^>]*>(.*)</g></svg>', re.S
)
_PAPER = re.compile(r'<rect width="[\d.]+" height="[\d.]+" rx="6"[^>]*/>')
_ID = re.compile(r"\b(hatch|arrow)-[0-9a-f]{8}\b")


@dataclass(frozen=True)
class Frame:
    """One picture, taken apart: its size in pixels; patterns and markers; what is drawn, in order, without paper."""

    width: float
    height: float
    defs: tuple[str, ...]
    elements: tuple[str, ...]


def frame_of(picture: Picture) -> Frame:
    """The parts of a picture; ValueError if `Drawing.picture` hasn't made it."""
    drawn = _DRAWN.fullmatch(picture.svg)
    if not drawn:
        raise ValueError(
            f"the picture begins with {picture.svg[:80]!r}; a player shows what `Drawing.picture` has made. Display "
            "another picture by itself."
        )
    width, height, defs, body = drawn.groups()
    elements = tuple(top_level(_PAPER.sub("", body, count=1)))
    return Frame(float(width), float(height), tuple(top_level(defs or "")), elements)


def top_level(markup: str) -> Iterator[str]:
    """The elements of some SVG, each with what is inside."""
    depth = start = 0
    for tag in _TAG.finditer(markup):
        if not depth:
            start = tag.start()
        depth += -1 if tag[1] else 0 if tag[2] else 1
        if not depth:
            yield markup[start : tag.end()]


def recording_of(pictures: list[Picture]) -> dict[str, Any]:
    """What player.js shows, ready for JSON.

    Returns:
        dict with the width of the widest picture; the heights of all; defs; elements, the distinct ones; changes, for
        each picture a list of splices [where, how many elements go, numbers of those that come ...] that make it of the
        one before, the first of an empty one; alts, the words of each picture; night, style rules for a dark page.
    """
    frames = [frame_of(picture) for picture in pictures]
    key = f"{zlib.crc32(''.join(picture.svg for picture in pictures).encode()):08x}"
    known: dict[str, int] = {}
    before: list[int] = []
    changes = []
    for frame in frames:
        now = [known.setdefault(_ID.sub(rf"\1-{key}", element), len(known)) for element in frame.elements]
        changes.append(splices(before, now))
        before = now
    defs = {_ID.sub(rf"\1-{key}", each) for frame in frames for each in frame.defs}
    return {
        "width": max((frame.width for frame in frames), default=0),
        "heights": [frame.height for frame in frames],
        "defs": "".join(sorted(defs)),
        "elements": list(known),
        "changes": changes,
        "alts": [picture.alt for picture in pictures],
        "night": night_rules(colors_of("".join([*known, *defs]))),
    }


def splices(before: list[int], now: list[int]) -> list[list[int]]:
    """What makes `now` of `before`, from the end to the beginning, so that no splice moves the place of another."""
    opcodes = SequenceMatcher(None, before, now, autojunk=False).get_opcodes()
    return [[i, j - i, *now[k:m]] for what, i, j, k, m in reversed(opcodes) if what != "equal"]
