"""A wave before its prefill: prompts of unequal length in one rectangle, padding hatched, positions below the
tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from lessons_lib.viz.drawing.palette import PAPER, SOFT_INK, color_of, mix, tint
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, mono_width, share_text, show_token

_LEFT = 46  # room for a request's letter
_TEXT_SIZE = 11


def draw_padded_batch(
    names: Sequence[str],
    tokens: Sequence[Sequence[str]],
    attention_mask: Sequence[Sequence[int]],
    position_ids: Sequence[Sequence[int]],
) -> Picture:
    """One row per request: each token's text above its position.

    names           of the requests
    tokens          text of every cell, padding included
    attention_mask  1 on tokens, 0 on padding, which is hatched
    position_ids    position of every cell; shown on tokens only
    All but `names` have one row per request, all of one length, such as a tensor's `.tolist()`.
    """
    shapes = {len(names), len(tokens), len(attention_mask), len(position_ids)}
    lengths = {len(row) for grid in (tokens, attention_mask, position_ids) for row in grid}
    if len(shapes) != 1 or len(lengths) != 1:
        raise ValueError(
            f"{len(names)} names, {len(tokens)} rows of tokens, {len(attention_mask)} of the mask, {len(position_ids)} of positions, with "  # noqa: E501
            f"{sorted(lengths)} columns; there must be as many of each, and rows of one length."
        )
    columns = lengths.pop()
    width, height, y = min(64.0, (WIDTH - _LEFT - 12) / columns), 40, 14.0
    d = Drawing()
    for row, name in enumerate(names):
        d.request_chip(16, y + 10, name)
        for column in range(columns):
            _cell(
                d,
                name,
                tokens[row][column],
                attention_mask[row][column],
                position_ids[row][column],
                _LEFT + column * width,
                y,
                width - 1,
                height,
            )
        y += height + 4
    real, cells = sum(map(sum, attention_mask)), columns * len(names)
    d.text(
        WIDTH - 12,
        y + 12,
        f"{real} tokens in {cells} cells, {cells - real} of padding ({share_text(cells - real, cells)})",
        13,
        "end",
        bold=True,
    )
    d.text(16, y + 12, "above: token (· is a space) · below: its position · hatched: padding", 12, fill=SOFT_INK)
    d.height = y + 28
    told = "; ".join(
        f"{name} has {list(line).count(0)} cells of padding, then {sum(line)} tokens"
        for name, line in zip(names, attention_mask)
    )
    alt = (
        f"Rectangle of {len(names)} rows and {columns} columns. {told}. Positions count from 0 at the first token "
        f"of each row. {cells - real} of {cells} cells are padding."
    )
    return d.picture(alt)


def _cell(
    d: Drawing, name: str, token: str, real: int, position: int, x: float, y: float, width: float, height: float
) -> None:
    if not real:
        d.cell(
            x,
            y,
            width,
            height,
            PAPER,
            hatched=1.0,
            pale=tint(color_of(name)),
            title=f"request {name}: padding, hidden by the mask",
        )
        return
    fill = mix(color_of(name), "#FFFFFF", 0.35)
    d.rect(x, y, width, height, fill, title=f"request {name}, position {position}: {show_token(token)!r}")
    text = show_token(token)
    while len(text) > 1 and mono_width(text, _TEXT_SIZE) > width - 2:
        text = text[:-2] + "…"
    d.text(x + width / 2, y + 13, text, _TEXT_SIZE, "middle", on=fill, mono=True)
    d.text(x + width / 2, y + 30, str(position), 12, "middle", bold=True, on=fill)
