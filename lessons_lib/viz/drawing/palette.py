"""One palette for the whole course: a request keeps its colour in every picture of every lesson.

The colours are those of Okabe and Ito (2008, "Color Universal Design"), which people with the common kinds of
colour blindness tell apart. Colour never stands alone: requests also carry their letter, waste is hatched.
"""

import zlib
from functools import cache

# Requests A to F. Blue and black of Okabe and Ito are left for curves and bars, which are not requests.
_BASE = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#D55E00")

# Yellow is so bright that its outline has to be dark on a dark page, too.
_YELLOW, _EDGE_OF_YELLOW = _BASE[4], "#7A752C"

PAPER = "#FDFDFB"  # background of every picture, so that it reads the same in a light and in a dark theme
INK = "#1A1A1A"  # text and frames
ON_COLOR = "#181818"  # text on the color of a request A to F
_KEPT = frozenset({*_BASE, _EDGE_OF_YELLOW, ON_COLOR})  # they stay as they are in the dark
SOFT_INK = "#555555"  # text of lesser rank
EDGE = "#8A8A8A"  # outline of something that is empty
NEUTRAL = "#D9D9D9"  # something that belongs to no request
HATCH = "#4A4A4A"  # lines over what was computed for nothing
# Curves and bars that are not requests; neighbours differ in lightness, so that they differ on grey paper too.
SERIES = ("#0072B2", "#1A1A1A", "#8A8A8A", "#469ACB", "#5E3C99", "#6B6B6B")


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def mix(colour: str, other: str, share: float) -> str:
    """`colour` with `share` (0 to 1) of `other` in it."""
    return "#" + "".join(f"{round(a + (b - a) * share):02X}" for a, b in zip(_rgb(colour), _rgb(other)))


def tint(colour: str) -> str:
    """The pale version of a request's colour: there, but not at work."""
    return mix(colour, "#FFFFFF", 0.72)


# Beyond F: other hues, muted, so that none of them passes for one of A to F. Letters tell the rest.
_FURTHER = (
    "#332288",  # indigo
    "#8A5A2B",  # brown
    "#9AA5AE",  # slate
    "#8A8A2E",  # olive
    "#14505C",  # petrol
    "#B8A9E3",  # lavender
    "#4D4D4D",  # charcoal
    "#D3C3A5",  # sand
    "#6E5BA8",  # violet
    "#5A3A1A",  # umber
    "#B5CBB0",  # sage
    "#7A1F4B",  # wine
)
_COLOURS = _BASE + _FURTHER


def color_of(request: str | None) -> str:
    """Colour of a request by its name: the same name has the same colour in every picture and every run.

    "A" to "Z" and "0", "1", ... go through the palette in order; any other name gets a stable place in it. Completions
    "A/0" and "A/1" have the color of "A"; None (no request) is neutral grey.
    """
    if request is None:
        return NEUTRAL
    request = request.split("/")[0]
    if len(request) == 1 and "A" <= request <= "Z":
        index = ord(request) - ord("A")
    elif request.isdecimal():
        index = int(request)
    else:
        index = zlib.crc32(request.encode())  # hash() differs from run to run
    return _COLOURS[index % len(_COLOURS)]


def luminance(colour: str) -> float:
    """Relative luminance, 0 (black) to 1 (white). Source: WCAG 2.1, "relative luminance"."""
    channels = [c / 255 for c in _rgb(colour)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours, 1 to 21; text needs 4.5 (WCAG 2.1, criterion 1.4.3)."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@cache
def text_on(colour: str) -> str:
    """The text colour, dark or white, that reads better on `colour`."""
    return ON_COLOR if colour in _BASE else max((INK, "#FFFFFF"), key=lambda text: contrast(text, colour))


@cache
def outline(colour: str) -> str:
    """A darker shade: contrast 3 with paper and with its tint in both themes, as shapes need (WCAG 2.1, 1.4.11)."""
    if colour == _YELLOW:
        return _EDGE_OF_YELLOW
    grounds = (PAPER, NEUTRAL, colour) if contrast(colour, PAPER) < 1.75 else (PAPER, tint(colour))
    shades = (mix(colour, INK, share / 20) for share in range(21))
    return next(shade for shade in shades if min(contrast_in_both(shade, ground) for ground in grounds) >= 3)


def contrast_in_both(one: str, other: str) -> float:
    """The contrast on a light page or on a dark one, whichever is less."""
    return min(contrast(one, other), contrast(in_the_dark(one), in_the_dark(other)))


def in_the_dark(colour: str) -> str:
    """What takes a colour's place on a dark page. Requests A to F keep theirs; the lightness of others turns over."""
    return colour if colour in _KEPT else inverted(colour)


def in_both_themes(request: str) -> list[str]:
    """A request's color, the text on it and its outline: for a light page, and again for a dark one."""
    color, dark = color_of(request), in_the_dark(color_of(request))
    text = text_on(dark) if contrast(text_on(dark), dark) >= 4.5 else "#000000"
    return [color, text_on(color), outline(color), dark, text, in_the_dark(outline(color))]


def inverted(colour: str) -> str:
    """What `invert(0.88) hue-rotate(180deg)` (CSS Filter Effects 1) makes of a colour: other lightness, same hue."""
    red, green, blue = (0.88 - 0.76 * channel / 255 for channel in _rgb(colour))
    grey = 2 * (0.213 * red + 0.715 * green + 0.072 * blue)
    return "#" + "".join(f"{round(255 * min(max(grey - channel, 0), 1)):02X}" for channel in (red, green, blue))


@cache
def halo_on(colour: str) -> str | None:
    """The rim that text on `colour` needs so that it has contrast in both themes; None if it needs none."""
    text = text_on(colour)
    if contrast_in_both(text, colour) >= 4.5:
        return None
    return mix(colour, INK, 0.8) if text == "#FFFFFF" else mix(colour, PAPER, 0.8)
