"""One step of a ragged batch: its requests, the packed row token by token, and the mask of the pass below it."""

from __future__ import annotations

import math
from collections.abc import Callable

from lessons_lib.recording.packed_steps import PackedStep
from lessons_lib.viz.drawing.palette import EDGE, INK, PAPER, SOFT_INK, color_of, mix
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, mono_width, number, show_token
from lessons_lib.viz.masks.pass_mask import describe_pass_mask, draw_pass_mask

_LEFT, _RIGHT = 100, 16
_ROOM = WIDTH - _LEFT - _RIGHT
_HEIGHT = 36  # of a token's cell
_NARROWEST, _WIDEST = 39.0, 72.0
_MOST_CELLS = 120  # a longer row is drawn as one strip, one run per sequence
_MOST_TAGS = 60  # in a longer row, a tag is written where a sequence or a line begins or ends, and every so often
_TAG_EVERY = 5
_MOST_ENTRIES = 12  # with more requests, each gets a shorter entry
_OUTPUT, _TICKS = 28, 18  # heights of the bands above and below a line of cells


def draw_packed_step(step: PackedStep, decode: Callable[[int], str]) -> Picture:
    """The packed row of one step with its tags, the new tokens, and the mask of the pass.

    Args:
        step: one of `RecordedRun.packed`.
        decode: token id -> its text.
    """
    count = len(step.packed.input_ids)
    outputs = [show_token(decode(token)) for token in step.new_tokens]
    d = Drawing()
    d.text(16, 20, f"{_title(step)}, no padding", 15, bold=True)
    y = _requests(d, step, 38)
    d.lines(f"M16 {number(y)}H{WIDTH - 16}", EDGE)
    if count <= _MOST_CELLS:
        y = _cells(d, step, [show_token(decode(token)) for token in step.packed.input_ids.tolist()], outputs, y + 8)
        lines = math.ceil(count / _columns(count)[0])
        sign = (f"one row, drawn in {lines} lines · " if lines > 1 else "") + "framed"
    else:
        y, sign = _strip(d, step, outputs, y + 8), "with an edge"
    d.text(
        16,
        y + 10,
        f"{sign}: a sequence's last token; only its logits are computed; they give the new token above it",
        12,
        fill=SOFT_INK,
    )
    if _MOST_TAGS < count <= _MOST_CELLS:
        y += 16
        d.text(16, y + 10, "between two tags, positions count on", 12, fill=SOFT_INK)
    d.lines(f"M16 {number(y + 26)}H{WIDTH - 16}", EDGE)
    d.height = draw_pass_mask(d, step.packed, step.names, _LEFT, y + 34) + 14
    return d.picture(f"{_title(step)}. {_describe(step, outputs)} {describe_pass_mask(step.packed)}")


def _title(step: PackedStep) -> str:
    prefills = sum(name in step.joined for name in step.names)
    kinds = ((prefills, "prefill"), (len(step.names) - prefills, "decode"))
    told = " and ".join(_count(count, kind) for count, kind in kinds if count)
    return f"One row of {_count(len(step.packed.input_ids), 'token')}: {told or 'no request'}"


def _requests(d: Drawing, step: PackedStep, y: float) -> float:
    """The requests of the row, those that leave, those that join next, and the queue. Returns the y below them."""
    brief = len(step.names) > _MOST_ENTRIES
    chip = max((10 + 8 * len(name) for name in step.names), default=0)
    width, height = (chip + 86, 24) if brief else (chip + 140, 38)
    columns = max(1, int((WIDTH - 32) / width))
    for i, (name, new, cached) in enumerate(zip(step.names, step.packed.new_lens, step.packed.cached_lens)):
        x, top = 16 + i % columns * width, y + i // columns * height
        with d.marked([(name,)]):
            text = x + 8 + d.request_chip(x, top, name)
        kind, leaves = "prefill" if name in step.joined else "decode", name in step.left
        if brief:
            d.text(text, top + 10, f"{cached}+{new}" + (" leaves" if leaves else ""), 11)
        else:
            d.text(text, top + 4, kind + (", then leaves" if leaves else ""), 12, bold=True)
            d.text(text, top + 19, f"{cached} cached + {new} new", 12, fill=SOFT_INK)
    y += height * math.ceil(len(step.names) / columns)
    if brief:
        d.text(16, y + 6, "cached + new tokens of each request", 12, fill=SOFT_INK)
        y += 20
    x = 16 + _named(d, "left", step.left, 16, y + 10)
    if step.admitted:
        x += _named(d, "in the next row", step.admitted, x, y + 10)
    _named(d, "waiting", step.waiting, x, y + 10)
    return y + 28


def _named(d: Drawing, word: str, names: tuple[str, ...], x: float, y: float) -> float:
    """A word and request chips after it, ten at most. Returns the width."""
    start, most = x, 10
    text = f"{word}:" if names else f"{word}: none"
    d.text(x, y, text, 13, fill=SOFT_INK)
    x += 6.4 * len(text) + 8
    for name in names[:most]:
        with d.marked([(name,)], moves=f"request {name}"):
            x += d.request_chip(x, y - 10, name) + 4
    if len(names) > most:
        d.text(x + 2, y, f"and {len(names) - most} more", 12, fill=SOFT_INK)
        x += 70
    return x - start + 24


def _columns(count: int) -> tuple[int, float]:
    """Cells in a line, and the width of one."""
    columns = min(max(count, int(_ROOM / _WIDEST)), int(_ROOM / _NARROWEST))
    return columns, _ROOM / columns


def _cells(d: Drawing, step: PackedStep, tokens: list[str], outputs: list[str], y: float) -> float:
    """The row token by token, in as many lines as it needs. Returns the y below it."""
    packed = step.packed
    columns, width = _columns(len(tokens))
    bounds, owners, positions = packed.cu_seqlens_q.tolist(), packed.seq_ids.tolist(), packed.positions.tolist()
    output_of = dict(zip(packed.logits_index.tolist(), zip(packed.new_lens, outputs)))
    for start in range(0, len(tokens), columns):
        indices = range(start, min(start + columns, len(tokens)))
        if any(index in output_of for index in indices):
            d.text(_LEFT - 10, y + 9, "new token", 11, "end", fill=SOFT_INK)
            y += _OUTPUT
        d.text(_LEFT - 10, y + 11, "token", 11, "end", fill=SOFT_INK)
        d.text(_LEFT - 10, y + 26, "its tag", 11, "end", fill=SOFT_INK)
        for index in indices:
            x, name = _LEFT + (index - start) * width, step.names[owners[index]]
            is_last, begins = index in output_of, index == start or index in bounds
            with d.marked([(name,)]):
                _token_cell(d, name, tokens[index], positions[index], index, is_last, x, y, width - 1.5)
                if len(tokens) <= _MOST_TAGS or begins or is_last or positions[index] % _TAG_EVERY == 0:
                    _tag(d, name, positions[index], x, y, width - 1.5)
            if is_last:
                new, output = output_of[index]
                # The chip may extend left over its own sequence's cells, but not over another's.
                room = width * min(new, index - start + 1) - 1.5
                with d.marked([(name,)]):
                    _output_chip(d, name, output, x + width - 1.5, y - _OUTPUT, room, x + width / 2)
        y += _HEIGHT
        y += _ticks(
            d,
            [
                (bound, _LEFT + (bound - start) * width - 0.75)
                for bound in bounds
                if _on_line(bound, indices, len(tokens))
            ],
            y,
        )
        y += 6
    return y


def _on_line(bound: int, indices: range, count: int) -> bool:
    return bound in indices or bound == count == indices.stop


def _token_cell(
    d: Drawing, name: str, token: str, position: int, index: int, is_last: bool, x: float, y: float, width: float
) -> None:
    fill = _pale(name)
    last = "; the last of its sequence, its logits are kept" if is_last else ""
    d.rect(
        x,
        y,
        width,
        _HEIGHT,
        fill,
        title=f"index {index} of the row: '{token}', request {name}, position {position}{last}",
    )
    if is_last:
        d.lines(f"M{number(x + 1)} {number(y + 1)}h{number(width - 2)}v{_HEIGHT - 2}h{number(2 - width)}z", INK, 2)
    size = _text_size(width)
    d.text(x + width / 2, y + 12, _shorten(token, width - 1, size), size, "middle", on=fill, mono=True)


def _tag(d: Drawing, name: str, position: int, x: float, y: float, width: float) -> None:
    tag = f"{name} {position}"
    text = tag if 6.4 * len(tag) < width else str(position)
    d.text(x + width / 2, y + 27, text, 11, "middle", bold=True, on=_pale(name))


def _pale(name: str) -> str:
    return mix(color_of(name), "#FFFFFF", 0.35)


def _output_chip(d: Drawing, name: str, token: str, right: float, y: float, room: float, arrow: float) -> None:
    """A new token in a box that ends at `right`, with an arrow from the cell below it."""
    size = _text_size(room)
    text = _shorten(token, room - 4, size)
    width = min(room, max(mono_width(text, size) + 8, 2 * (right - arrow)))
    d.rect(right - width, y, width, 18, PAPER, INK, radius=3, title=f"new token of request {name}: '{token}'")
    d.text(right - width / 2, y + 9, text, size, "middle", mono=True)
    d.lines(f"M{number(arrow)} {number(y + _OUTPUT)}V{number(y + 19)}", INK, arrow=True)


def _ticks(d: Drawing, ticks: list[tuple[int, float]], y: float) -> float:
    """Cumulative lengths below a line of the row. Returns the height used."""
    if not ticks:
        return 0
    d.text(_LEFT - 14, y + 12, "cu_seqlens_q", 11, "end", fill=SOFT_INK)
    free = 0.0
    for bound, x in ticks:
        d.lines(f"M{number(x)} {number(y)}v5", INK)
        if x >= free:
            d.text(x, y + 12, str(bound), 11, "middle", fill=SOFT_INK)
            free = x + 6.5 * len(str(bound)) + 8
    return _TICKS


def _strip(d: Drawing, step: PackedStep, outputs: list[str], y: float) -> float:
    """A long row as one strip, one run per sequence. Returns the y below it."""
    packed = step.packed
    bounds, positions = packed.cu_seqlens_q.tolist(), packed.positions.tolist()
    width = _ROOM / bounds[-1]
    d.text(_LEFT - 10, y + _OUTPUT + _HEIGHT / 2, "tokens", 11, "end", fill=SOFT_INK)
    y += _OUTPUT
    for name, output, start, end in zip(step.names, outputs, bounds, bounds[1:]):
        x, size, fill = _LEFT + start * width, (end - start) * width, _pale(name)
        title = (
            f"indices {start} to {end - 1} of the row: request {name}, positions {positions[start]} to "
            f"{positions[end - 1]}; new token '{output}'"
        )
        with d.marked([(name,)]):
            d.rect(x, y, size, _HEIGHT, fill, title=title)
        d.lines(f"M{number(x + size - 1)} {number(y)}v{_HEIGHT}", INK, min(2.0, width))
        if size > 8 * len(name) + 6:
            d.text(x + size / 2, y + _HEIGHT / 2, name, 13, "middle", bold=True, on=fill)
        if size >= 40:
            _output_chip(d, name, output, x + size, y - _OUTPUT, size - 2, x + size - 8)
    y += _HEIGHT
    return y + _ticks(d, [(bound, _LEFT + bound * width) for bound in bounds], y) + 6


def _text_size(room: float) -> float:
    return 10 if room < 50 else 11.5


def _shorten(text: str, room: float, size: float) -> str:
    while len(text) > 1 and mono_width(text, size) > room:
        text = text[:-2] + "…"
    return text


def _describe(step: PackedStep, outputs: list[str]) -> str:
    packed = step.packed
    told = []
    for name, new, cached, start, output in zip(
        step.names, packed.new_lens, packed.cached_lens, packed.cu_seqlens_q.tolist(), outputs
    ):
        where = f"index {start}" if new == 1 else f"indices {start} to {start + new - 1}"
        kind = "prefill" if name in step.joined else "decode"
        leaves = ", then it leaves" if name in step.left else ""
        told.append(
            f"{name}: {kind} of {_count(new, 'token')} at {where}, after {cached} in the cache, gives "
            f"'{output}'{leaves}."
        )
    bounds = ", ".join(map(str, packed.cu_seqlens_q.tolist()))
    admitted = f"In the next row: {', '.join(step.admitted)}. " if step.admitted else ""
    return f"{' '.join(told)} Cumulative lengths {bounds}. {admitted}Waiting: {', '.join(step.waiting) or 'none'}."


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
