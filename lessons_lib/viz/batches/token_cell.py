"""A token in a batch: its text above its position, on the pale color of its request."""

from lessons_lib.viz.drawing.palette import INK, SOFT_INK, color_of, mix
from lessons_lib.viz.drawing.svg import Drawing, number, shortened, show_token

_SIZE = 10.5


def draw_token(
    d: Drawing, name: str, token: str, tag: str, x: float, y: float, width: float, height: float,
    title: str | None = None, framed: bool = False,
) -> None:  # fmt: skip
    """A cell with its upper left corner at (x, y). A frame marks the last token of its sequence."""
    fill = mix(color_of(name), "#FFFFFF", 0.35)
    d.rect(x, y, width, height, fill, title=title)
    if framed:
        d.lines(f"M{number(x + 1)} {number(y + 1)}h{number(width - 2)}v{height - 2}h{number(2 - width)}z", INK, 2)
    text = shortened(show_token(token), width - 1, _SIZE)
    d.text(x + width / 2, y + 0.33 * height, text, _SIZE, "middle", on=fill, mono=True)
    d.text(x + width / 2, y + 0.75 * height, tag, 11, "middle", bold=True, on=fill)


def draw_bounds(d: Drawing, bounds: list[tuple[int, float]], left: float, y: float) -> None:
    """Cumulative lengths, each (value, x), below a packed row that ends at y; `left` is where the row begins."""
    d.text(left - 14, y + 12, "cu_seqlens_q", 11, "end", fill=SOFT_INK)
    free = 0.0
    for bound, x in bounds:
        d.lines(f"M{number(x)} {number(y)}v5", INK)
        if x >= free:
            d.text(x, y + 12, str(bound), 11, "middle", fill=SOFT_INK)
            free = x + 6.5 * len(str(bound)) + 8
