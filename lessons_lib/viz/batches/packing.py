"""How a rectangle becomes a packed row: the padding falls away, and the tokens of all sequences move together."""

from collections.abc import Sequence
from itertools import accumulate

from lessons_lib.attention.packing import pack
from lessons_lib.viz.batches.token_cell import draw_bounds, draw_token
from lessons_lib.viz.drawing.palette import PAPER, SOFT_INK, color_of, tint
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, share_text, show_token
from lessons_lib.viz.masks.pass_mask import draw_pass_mask
from lessons_lib.viz.stepper import Stepper

STAGES = ("a rectangle", "without padding", "one row", "with its indices", "its mask")
_LEFT, _TOP, _ROW, _CELL = 100, 62, 40, 34
_WIDEST = 56.0


def watch_packing(names: Sequence[str], tokens: Sequence[Sequence[str]]) -> Stepper:
    """Step from prompts, as texts of their tokens, in a padded rectangle to one packed row."""
    return Stepper(
        lambda stage: draw_packing(names, tokens, stage), count=len(STAGES), label="stage", name=lambda i: STAGES[i]
    )


def draw_packing(names: Sequence[str], tokens: Sequence[Sequence[str]], stage: int) -> Picture:
    """One of `STAGES`."""
    total, longest = sum(map(len, tokens)), max(map(len, tokens))
    width = min(_WIDEST, (WIDTH - _LEFT - 16) / total)
    d = Drawing()
    d.text(16, 20, _title(tokens, stage), 15, bold=True)
    ends = list(accumulate(map(len, tokens), initial=0))
    for row, (name, own) in enumerate(zip(names, tokens)):
        top = _TOP + (row * _ROW if stage < 2 else 0)
        first = longest - len(own) if stage < 2 else ends[row]
        with d.marked([(name,)], moves=f"name {name}"):
            d.request_chip(_LEFT + first * width if stage >= 2 else 72, top + (-22 if stage >= 2 else 7), name)
        if not stage:
            for column in range(longest - len(own)):
                d.cell(
                    _LEFT + column * width, top, width - 1.5, _CELL, PAPER, hatched=1.0, pale=tint(color_of(name)),
                    title=f"request {name}: padding",
                )  # fmt: skip
        for position, token in enumerate(own):
            is_last = stage >= 3 and position == len(own) - 1
            title = f"request {name}, position {position}: {show_token(token)!r}"
            x = _LEFT + (first + position) * width
            with d.marked([(name,)], moves=f"{name} {position}"):
                draw_token(d, name, token, str(position), x, top, width - 1.5, _CELL, title, is_last)

    if stage >= 3:
        draw_bounds(d, [(end, _LEFT + end * width - 0.75) for end in ends], _LEFT, _TOP + _CELL)
        words = "framed: the token at a logits_index, its sequence's last"
        d.text(_LEFT, _TOP + _CELL + 30, words, 12, fill=SOFT_INK)

    packed = pack([[0] * len(own) for own in tokens], [0] * len(tokens))  # the last stage is the tallest
    below = draw_pass_mask(d if stage == 4 else Drawing(), packed, names, _LEFT, _TOP + _CELL + 44, width)
    d.height = max(_TOP + len(names) * _ROW + 20, below + 8)
    lengths = ", ".join(f"{name} has {len(own)}" for name, own in zip(names, tokens))
    bounds = f" Cumulative lengths {', '.join(map(str, ends))}." if stage >= 3 else ""
    return d.picture(f"{_title(tokens, stage)}. Of the tokens, {lengths}.{bounds}")


def _title(tokens: Sequence[Sequence[str]], stage: int) -> str:
    lengths = [len(own) for own in tokens]
    cells, total = len(tokens) * max(lengths), sum(lengths)
    return (
        f"A rectangle: {cells} token positions, {cells - total} of them padding ({share_text(cells - total, cells)})",
        f"Without padding: {total} tokens, but no rectangle",
        f"One row of {total} tokens",
        "Where each sequence begins and ends, and each token's position in its own sequence",
        "The mask keeps the sequences apart",
    )[stage]
