"""How a rectangle becomes a packed row: the padding falls away, and the tokens of all sequences move together."""

from __future__ import annotations

from collections.abc import Sequence

from lessons_lib.attention.packing import pack
from lessons_lib.viz.drawing.palette import INK, PAPER, SOFT_INK, color_of, mix, tint
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, mono_width, number, share_text, show_token
from lessons_lib.viz.masks.pass_mask import draw_pass_mask
from lessons_lib.viz.stepper import Stepper

STAGES = ("a rectangle", "without padding", "one row", "with its indices", "its mask")
_LEFT, _TOP, _ROW, _CELL = 100, 62, 40, 34
_WIDEST, _NARROWEST = 56.0, 16.0
_TEXT_SIZE = 10.5


def watch_packing(names: Sequence[str], tokens: Sequence[Sequence[str]]) -> Stepper:
    """Step from prompts in a padded rectangle to one packed row.

    Args:
        names: of the sequences.
        tokens: the texts of each sequence's tokens.

    Raises:
        ValueError: as many names are needed as sequences, each sequence needs a token, and a row has room for 50.
    """
    total = sum(map(len, tokens))
    if len(names) != len(tokens) or not all(tokens) or not names or (WIDTH - _LEFT - 16) / total < _NARROWEST:
        raise ValueError(
            f"{len(names)} names, {len(tokens)} sequences of {[len(own) for own in tokens]} tokens; give as many names "
            f"as sequences, each with at least one token, and at most {int((WIDTH - _LEFT - 16) / _NARROWEST)} in all."
        )
    return Stepper(
        lambda stage: draw_packing(names, tokens, stage), count=len(STAGES), label="stage", name=lambda i: STAGES[i]
    )


def draw_packing(names: Sequence[str], tokens: Sequence[Sequence[str]], stage: int) -> Picture:
    """One of `STAGES`."""
    total, longest = sum(map(len, tokens)), max(map(len, tokens))
    width = min(_WIDEST, (WIDTH - _LEFT - 16) / total)
    d = Drawing()
    d.text(16, 20, _title(tokens, stage), 15, bold=True)
    start = 0
    for row, (name, own) in enumerate(zip(names, tokens)):
        top = _TOP + (row * _ROW if stage < 2 else 0)
        first = longest - len(own) if stage < 2 else start
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
            with d.marked([(name,)], moves=f"{name} {position}"):
                _token(d, name, token, position, is_last, _LEFT + (first + position) * width, top, width - 1.5)
        start += len(own)
    if stage >= 3:
        _indices(d, tokens, width)
    if stage == 4:
        packed = pack([[0] * len(own) for own in tokens], [0] * len(tokens))
        draw_pass_mask(d, packed, names, _LEFT, _TOP + _CELL + 44)
    d.height = _height(names, tokens)
    return d.picture(f"{_title(tokens, stage)}. {_told(names, tokens, stage)}")


def _height(names: Sequence[str], tokens: Sequence[Sequence[str]]) -> float:
    """Of the tallest stage, so that all have the same."""
    packed = pack([[0] * len(own) for own in tokens], [0] * len(tokens))
    return max(_TOP + len(names) * _ROW + 20, draw_pass_mask(Drawing(), packed, names, _LEFT, _TOP + _CELL + 44) + 8)


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


def _token(d: Drawing, name: str, token: str, position: int, is_last: bool, x: float, y: float, width: float) -> None:
    fill, text = mix(color_of(name), "#FFFFFF", 0.35), show_token(token)
    d.rect(x, y, width, _CELL, fill, title=f"request {name}, position {position}: {text!r}")
    while len(text) > 1 and mono_width(text, _TEXT_SIZE) > width - 1:
        text = text[:-2] + "…"
    if is_last:
        d.frame(x, y, width, _CELL, fill)
    d.text(x + width / 2, y + 11, text, _TEXT_SIZE, "middle", on=fill, mono=True)
    d.text(x + width / 2, y + 25, str(position), 11, "middle", bold=True, on=fill)


def _indices(d: Drawing, tokens: Sequence[Sequence[str]], width: float) -> None:
    """Cumulative lengths under the row. A dark frame marks the tokens at `logits_index`."""
    y, bound, free = _TOP + _CELL, 0, 0.0
    d.text(_LEFT - 10, y + 13, "cu_seqlens_q", 11, "end", fill=SOFT_INK)
    for length in (0, *map(len, tokens)):
        bound += length
        x = _LEFT + bound * width - 0.75
        d.lines(f"M{number(x)} {number(y)}v6", INK)
        if x >= free:
            d.text(x, y + 13, str(bound), 11, "middle", bold=True)
            free = x + 6.5 * len(str(bound)) + 8
    d.text(_LEFT, y + 30, "framed: the token at a logits_index, its sequence's last", 12, fill=SOFT_INK)


def _told(names: Sequence[str], tokens: Sequence[Sequence[str]], stage: int) -> str:
    lengths = ", ".join(f"{name} has {len(own)}" for name, own in zip(names, tokens))
    if stage < 3:
        return f"Of the tokens, {lengths}."
    bounds = [sum(len(own) for own in tokens[:n]) for n in range(len(tokens) + 1)]
    kept = ", ".join(str(bound - 1) for bound in bounds[1:])
    return f"Of the tokens, {lengths}. Cumulative lengths {', '.join(map(str, bounds))}; logits are kept at {kept}."
