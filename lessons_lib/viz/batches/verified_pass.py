"""Lesson 18: a pass with guesses. The packed row, what the model draws behind each of its tokens, and what is kept."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lessons_lib.recording.words import count
from lessons_lib.viz.drawing.palette import INK, NEUTRAL, PAPER, SOFT_INK, color_of, tint
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import Drawing, shortened, show_token

_LEFT, _CELL, _HEIGHT, _BLOCK, _SIZE = 156, 92, 27, 24, 12


@dataclass(frozen=True)
class VerifiedRow:
    """A pass for one sequence: its last token, guesses, the model's draws, and how many of these are new."""

    name: str
    last: int
    draft: tuple[int, ...]
    own: tuple[int, ...]
    num_new: int  # how many of `own` the sequence got
    blocks: tuple[int, ...]
    freed: int  # how many of them, at the end, became free


def recorded_verify(verify: Callable[..., None], passes: list[tuple[VerifiedRow, ...]]) -> Callable[..., None]:
    """`verify`, so that it also appends each pass to `passes`."""

    def record(drafts: dict[Any, list[int]], logits: Any, draw: Callable[..., int], pool: Any) -> None:
        rows, own = iter(logits), {}
        for each, draft in drafts.items():
            places = range(len(each.output_ids), len(each.output_ids) + len(draft) + 1)
            own[each] = tuple(draw(next(rows), each, place) for place in places)
        before = [(each, each.token_ids[-1], len(each.output_ids), tuple(each.blocks)) for each in drafts]
        verify(drafts, logits, draw, pool)
        passes.append(tuple(
            VerifiedRow(
                each.id, last, tuple(drafts[each]), own[each], len(each.output_ids) - count, blocks,
                len(blocks) - len(each.blocks),
            )
            for each, last, count, blocks in before
        ))  # fmt: skip

    return record


def draw_verified_pass(rows: tuple[VerifiedRow, ...], index: int, decode: Callable[[int], str]) -> Picture:
    """One pass: a line of the row, and of the model's draws, for each sequence; at most 5 guesses."""
    d = Drawing()
    num_tokens, num_new = (sum(counts) for counts in zip(*((1 + len(row.draft), row.num_new) for row in rows)))
    title = f"Pass {index + 1}: a row of {count(num_tokens, 'token')} brings {num_new}"
    d.text(16, 20, title, 15, bold=True)
    y = 44.0
    for row in rows:
        with d.marked([(row.name,)]):
            _draw_row(d, row, y, decode)
        y += 2 * _HEIGHT + 32
    d.legend(16, y, [
        ("kept", lambda x, y: d.cell(x, y, 18, 16, color_of(rows[0].name))),
        ("kept: the model's own", lambda x, y: d.cell(x, y, 18, 16, color_of(rows[0].name), framed=True)),
        ("computed for nothing", lambda x, y: d.cell(x, y, 18, 16, NEUTRAL, hatched=1)),
        ("block, now free", lambda x, y: d.rect(x, y, 18, 16, PAPER, SOFT_INK, dashed=True)),
    ])  # fmt: skip
    d.height = y + 22
    return d.picture(f"{title}. " + " ".join(_told(row, decode) for row in rows))


def _draw_row(d: Drawing, row: VerifiedRow, y: float, decode: Callable[[int], str]) -> None:
    d.request_chip(16, y + 4, row.name)
    d.text(_LEFT - 10, y + _HEIGHT / 2, "in the row", 12, "end", fill=SOFT_INK)
    d.text(_LEFT - 10, y + 1.5 * _HEIGHT + 8, "model draws", 12, "end", fill=SOFT_INK)
    color, num_right = color_of(row.name), min(row.num_new - 1, len(row.draft))
    for place, (token, own) in enumerate(zip((row.last, *row.draft), row.own)):
        x, is_kept = _LEFT + place * (_CELL + 6), place < row.num_new
        is_right = place <= num_right
        fill = (color if place else tint(color)) if is_right else NEUTRAL
        d.cell(x, y, _CELL, _HEIGHT, fill, hatched=not is_right)
        _write(d, x, y, decode(token), fill if is_right else None)
        below = y + _HEIGHT + 8
        is_own = is_kept and place == row.num_new - 1
        d.cell(x, below, _CELL, _HEIGHT, color if is_kept else NEUTRAL, hatched=not is_kept, framed=is_own)
        _write(d, x, below, decode(own), color if is_kept else None, is_own)
        if place + 1 < row.num_new:  # this draw is the next token of the row
            d.lines(f"M{x + _CELL / 2 + 30} {below - 1}L{x + _CELL + 12} {y + _HEIGHT + 1}", INK, 1.2, arrow=True)
    for place, block in enumerate(row.blocks):
        x, is_free = 664 + place * (_BLOCK + 3), place >= len(row.blocks) - row.freed
        d.rect(x, y + 8, _BLOCK, _BLOCK, PAPER if is_free else tint(color), SOFT_INK, dashed=is_free)
        d.text(x + _BLOCK / 2, y + 8 + _BLOCK / 2, str(block), 11, "middle", fill=SOFT_INK if is_free else INK)
    d.text(664, y + 46, f"{count(row.num_new, 'new token')}", 12, fill=SOFT_INK)


def _write(d: Drawing, x: float, y: float, text: str, on: str | None, bold: bool = False) -> None:
    """A word in its cell; without a color, on hatching."""
    look = {"on": on} if on else {"halo": PAPER}
    text = shortened(show_token(text), _CELL - 6, _SIZE)
    d.text(x + _CELL / 2, y + _HEIGHT / 2, text, _SIZE, "middle", bold, mono=True, **look)


def _told(row: VerifiedRow, decode: Callable[[int], str]) -> str:
    guesses = ", ".join(f"'{show_token(decode(token))}'" for token in row.draft) or "none"
    new = ", ".join(f"'{show_token(decode(token))}'" for token in row.own[: row.num_new])
    freed = f"; {count(row.freed, 'block')} became free" if row.freed else ""
    return f"{row.name}: the guesses were {guesses}; it gets {new}{freed}."
