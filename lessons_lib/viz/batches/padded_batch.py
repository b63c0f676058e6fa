"""A wave before its prefill: unequal prompts in one rectangle, padding hatched, positions below the tokens."""

from collections.abc import Sequence

from lessons_lib.viz.batches.token_cell import draw_token
from lessons_lib.viz.drawing.palette import PAPER, SOFT_INK, color_of, tint
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, share_text

_LEFT, _HEIGHT = 46, 40  # room for a request's letter; height of a cell


def draw_padded_batch(
    names: Sequence[str],
    tokens: Sequence[Sequence[str]],
    attention_mask: Sequence[Sequence[int]],
    position_ids: Sequence[Sequence[int]],
) -> Picture:
    """One row per request: each token's text above its position, padding hatched."""
    columns = len(tokens[0])
    width, y = min(64.0, (WIDTH - _LEFT - 12) / columns), 14.0
    d = Drawing()
    for name, *cells in zip(names, tokens, attention_mask, position_ids):
        d.request_chip(16, y + 10, name)
        for column, (token, is_real, position) in enumerate(zip(*cells)):
            x = _LEFT + column * width
            if is_real:
                draw_token(d, name, token, str(position), x, y, width - 1, _HEIGHT)
            else:
                d.cell(x, y, width - 1, _HEIGHT, PAPER, hatched=1.0, pale=tint(color_of(name)))
        y += _HEIGHT + 4
    real, total = sum(map(sum, attention_mask)), columns * len(names)
    padding = total - real
    words = f"{real} tokens in {total} cells, {padding} of padding ({share_text(padding, total)})"
    d.text(WIDTH - 12, y + 12, words, 13, "end", bold=True)
    d.text(16, y + 12, "above: token (· is a space) · below: its position · hatched: padding", 12, fill=SOFT_INK)
    d.height = y + 28
    told = "; ".join(
        f"{name} has {columns - sum(line)} cells of padding, then {sum(line)} tokens"
        for name, line in zip(names, attention_mask)
    )
    return d.picture(f"{told}. {words}.")
