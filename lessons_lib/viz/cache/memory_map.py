"""The cache as one long row of slots, cut into lines: what each request has reserved, and what it uses."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lessons_lib.recording.fragmentation import MemoryUse
from lessons_lib.recording.words import check_index, span
from lessons_lib.viz.drawing.palette import EDGE, INK, PAPER, SOFT_INK, color_of, mix, tint
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, number, share_text

_LEFT, _RIGHT, _LINE, _GAP = 58, 16, 34, 8
_MOST_LINES = 4
_WORDS = {
    "tokens": "a token",
    "later": "reserved, used later",
    "never": "reserved, never used",
    "gaps": "unowned, in a gap",
}


@dataclass(frozen=True)
class Part:
    """Neighboring slots with one use: "tokens", "later" or "never" of a request, or "gaps" between two regions."""

    kind: str
    request: str | None
    start: int
    end: int


def draw_memory(uses: Sequence[MemoryUse], i: int, title: str = "", num_slots: int | None = None) -> Picture:
    """What each cache slot contains after step index i, for a layout with one contiguous region per request.

    uses       see `contiguous_use`; all its steps are drawn on one scale
    num_slots  cache slots on the scale, to compare layouts; if None, as many as the largest step takes up
    """
    check_index("step", i, len(uses))
    largest = max(use.slots for use in uses)
    scale = largest if num_slots is None else num_slots
    use = uses[i]
    d = Drawing()
    head = f"{title}, step {i + 1} of {len(uses)}" if title else f"Memory after step {i + 1} of {len(uses)}"
    empty = use.slots - use.tokens
    d.text(16, 20, head, 15, bold=True)
    total = f"{use.slots:,} slots taken up, {share_text(empty, use.slots)} of them without a token"
    d.text(WIDTH - _RIGHT, 20, total if use.slots else "no slot reserved", 13, "end", bold=True)
    bottom = _strip(d, use, max(scale, 1), 40)
    d.height = _legend(d, use, bottom + 8)
    told = "; ".join(f"{words}: {_amount(use, kind)}" for kind, words in _WORDS.items())
    regions = [f"{one.request}: {span('slot', one.start, one.size)}, {one.tokens} with a token" for one in use.regions]
    return d.picture(f"{head}. {use.slots:,} slots taken up; {told}. {'; '.join(regions)}.")


def parts(use: MemoryUse) -> Iterator[Part]:
    """All reserved slots, from the first to the last."""
    end = 0
    for region in use.regions:
        if not region.size:
            continue
        bounds = [end, *(region.start + tokens for tokens in (0, region.tokens, region.final_tokens, region.size))]
        for kind, first, last in zip(("gaps", "tokens", "later", "never"), bounds, bounds[1:]):
            if last > first:
                yield Part(kind, None if kind == "gaps" else region.request, first, last)
        end = bounds[-1]


def slots_per_line(scale: int) -> int:
    """A power of two, so that reservations of such sizes end at the end of a line; one line if there are few slots."""
    per_line = 64
    while per_line * _MOST_LINES < scale:
        per_line *= 2
    return min(per_line, scale)


def _strip(d: Drawing, use: MemoryUse, scale: int, y: float) -> float:
    """The lines of slots. Returns the y below them."""
    per_line = slots_per_line(scale)
    width = (WIDTH - _LEFT - _RIGHT) / per_line
    for line, first in enumerate(range(0, scale, per_line)):
        top = y + line * (_LINE + _GAP)
        d.text(_LEFT - 8, top + _LINE / 2, f"{first:,}", 11, "end", fill=SOFT_INK)
        last = min(first + per_line, scale)
        d.lines(f"M{_LEFT} {number(top + _LINE)}H{number(_LEFT + (last - first) * width)}", EDGE)
    for part in parts(use):
        for line, first, last in _cut(part.start, part.end, per_line):
            _draw_part(d, part, _LEFT + first * width, y + line * (_LINE + _GAP), (last - first) * width)
    for region in use.regions:
        for line, first, last in _cut(region.start, region.start + region.size, per_line):
            _frame(d, region.request, _LEFT + first * width, y + line * (_LINE + _GAP), (last - first) * width)
    return y + (1 + (scale - 1) // per_line) * (_LINE + _GAP)


def _cut(start: int, end: int, per_line: int) -> Iterator[tuple[int, int, int]]:
    """Slots start to end - 1 as (line, first column, end column)."""
    while start < end:
        line, column = divmod(start, per_line)
        length = min(end - start, per_line - column)
        yield line, column, column + length
        start += length


def _draw_part(d: Drawing, part: Part, x: float, y: float, width: float) -> None:
    if part.kind == "gaps":
        d.rect(x + 1, y + 0.5, max(width - 2, 1), _LINE - 1, PAPER, EDGE, dashed=True)
    elif part.kind == "never":
        d.cell(x, y, width, _LINE, PAPER, hatched=1.0, pale=tint(color_of(part.request)))
    else:
        colour = color_of(part.request)
        d.rect(x, y, width, _LINE, colour if part.kind == "tokens" else tint(colour))


def _frame(d: Drawing, request: str, x: float, y: float, width: float) -> None:
    """The outline of a reservation, with its letter."""
    colour, letter = color_of(request), 8 * len(request) + 6
    d.boxes([(x + 0.5, y + 0.5)], max(width - 1, 0.5), _LINE - 1, stroke=mix(colour, INK, 0.4))
    if letter + 2 <= max(width - 1, 0.5):
        d.rect(x + 2.5, y + 2.5, letter, 15, colour, radius=2)
        d.text(x + 2.5 + letter / 2, y + 10, request, 12, "middle", bold=True, on=colour)


def _legend(d: Drawing, use: MemoryUse, y: float) -> float:
    """The legend, with the number of slots of each kind. Returns the y below it."""
    d.rule(y)
    y += 14
    for n, (kind, words) in enumerate(_WORDS.items()):
        x = 16 + 219 * n
        if kind == "gaps":
            d.rect(x + 0.5, y + 0.5, 19, 17, PAPER, EDGE, dashed=True)
        else:
            pale = tint(color_of("A"))
            d.cell(x, y, 20, 18, color_of("A") if kind == "tokens" else pale, hatched=float(kind == "never"), pale=pale)
        d.text(x + 27, y + 9, words, 12, fill=SOFT_INK)
        d.text(x + 27, y + 26, _amount(use, kind), 13, bold=True)
    return y + 44


def _amount(use: MemoryUse, kind: str) -> str:
    return f"{getattr(use, kind):,} ({share_text(getattr(use, kind), use.slots)})"
