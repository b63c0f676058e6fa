"""One step of a ragged batch: its requests, the packed row token by token, and the mask of the pass below it."""

import math
from collections.abc import Callable

from lessons_lib.recording.packed_steps import PackedStep
from lessons_lib.recording.words import count, listed
from lessons_lib.viz.batches.token_cell import draw_bounds, draw_token
from lessons_lib.viz.drawing.palette import INK, PAPER, SOFT_INK
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, mono_width, number, shortened, show_token
from lessons_lib.viz.masks.pass_mask import describe_pass_mask, draw_pass_mask

_LEFT, _RIGHT = 100, 16
_ROOM = WIDTH - _LEFT - _RIGHT
_HEIGHT = 36  # of a token's cell
_NARROWEST, _WIDEST = 39.0, 72.0
_MOST = 160  # tokens
_MOST_TAGS = 60  # in a longer row, a tag is written where a sequence or a line begins or ends, and every so often
_TAG_EVERY = 5
_OUTPUT, _TICKS = 28, 18  # heights of the bands above and below a line of cells


def draw_packed_step(step: PackedStep, decode: Callable[[int], str]) -> Picture:
    """The packed row of one step (of `RecordedRun.packed`, at most 160 tokens) with its tags, new tokens and mask."""
    length = len(step.packed.input_ids)
    if length > _MOST:
        raise ValueError(f"the row has {length} tokens; at most {_MOST} can be drawn. Record a smaller batch.")
    outputs = [show_token(decode(token)) for token in step.new_tokens]
    d = Drawing()
    d.text(16, 20, f"{_title(step)}, no padding", 15, bold=True)
    y = _requests(d, step, 38)
    d.rule(y)
    y = _cells(d, step, [decode(token) for token in step.packed.input_ids.tolist()], outputs, y + 8)
    lines = math.ceil(length / _columns(length)[0])
    sign = (f"one row, drawn in {lines} lines · " if lines > 1 else "") + "framed"
    words = f"{sign}: a sequence's last token; only its logits are computed; they give the new token above it"
    d.text(16, y + 10, words, 12, fill=SOFT_INK)
    if length > _MOST_TAGS:
        y += 16
        d.text(16, y + 10, "between two tags, positions count on", 12, fill=SOFT_INK)
    d.rule(y + 26)
    d.height = draw_pass_mask(d, step.packed, step.names, _LEFT, y + 34) + 14
    return d.picture(f"{_title(step)}. {_describe(step, outputs)} {describe_pass_mask(step.packed)}")


def _title(step: PackedStep) -> str:
    prefills = sum(name in step.joined for name in step.names)
    kinds = ((prefills, "prefill"), (len(step.names) - prefills, "decode"))
    told = " and ".join(count(number_of, kind) for number_of, kind in kinds if number_of)
    return f"One row of {count(len(step.packed.input_ids), 'token')}: {told or 'no request'}"


def _requests(d: Drawing, step: PackedStep, y: float) -> float:
    """The requests of the row, those that leave, those that join next, and the queue. Returns the y below them."""
    width, height = max((150 + 8 * len(name) for name in step.names), default=1), 38
    columns = max(1, int((WIDTH - 32) / width))
    for i, (name, new, cached) in enumerate(zip(step.names, step.packed.new_lens, step.packed.cached_lens)):
        x, top = 16 + i % columns * width, y + i // columns * height
        with d.marked([(name,)]):
            text = x + 8 + d.request_chip(x, top, name)
        kind, leaves = "prefill" if name in step.joined else "decode", name in step.left
        d.text(text, top + 4, kind + (", then leaves" if leaves else ""), 12, bold=True)
        d.text(text, top + 19, f"{cached} cached + {new} new", 12, fill=SOFT_INK)
    y += height * math.ceil(len(step.names) / columns)
    x = 16.0
    for word, names in (("left", step.left), ("in the next row", step.admitted), ("waiting", step.waiting)):
        if names or word != "in the next row":
            text = f"{word}:" if names else f"{word}: none"
            d.text(x, y + 10, text, 13, fill=SOFT_INK)
            x += 6.4 * len(text) + 8
            x = d.names(x, y, names, x + 240) + 24
    return y + 28


def _columns(length: int) -> tuple[int, float]:
    """Cells in a line, and the width of one."""
    columns = min(max(length, int(_ROOM / _WIDEST)), int(_ROOM / _NARROWEST))
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
            x, name, position = _LEFT + (index - start) * width, step.names[owners[index]], positions[index]
            is_last, begins = index in output_of, index == start or index in bounds
            tag = ""
            if len(tokens) <= _MOST_TAGS or begins or is_last or position % _TAG_EVERY == 0:
                tag = f"{name} {position}" if 6.4 * len(f"{name} {position}") < width - 1.5 else str(position)
            last = "; the last of its sequence, its logits are kept" if is_last else ""
            title = (
                f"index {index} of the row: '{show_token(tokens[index])}', request {name}, position {position}{last}"
            )
            with d.marked([(name,)]):
                draw_token(d, name, tokens[index], tag, x, y, width - 1.5, _HEIGHT, title, is_last)
            if is_last:
                new, output = output_of[index]
                # The chip may extend left over its own sequence's cells, but not over another's.
                room = width * min(new, index - start + 1) - 1.5
                with d.marked([(name,)]):
                    _output_chip(d, name, output, x + width - 1.5, y - _OUTPUT, room, x + width / 2)
        y += _HEIGHT
        ends_here = {len(tokens)} if indices.stop == len(tokens) else set()
        here = [bound for bound in bounds if bound in indices or bound in ends_here]
        if here:
            draw_bounds(d, [(bound, _LEFT + (bound - start) * width - 0.75) for bound in here], _LEFT, y)
            y += _TICKS
        y += 6
    return y


def _output_chip(d: Drawing, name: str, token: str, right: float, y: float, room: float, arrow: float) -> None:
    """A new token in a box that ends at `right`, with an arrow from the cell below it."""
    size = 10 if room < 50 else 11.5
    text = shortened(token, room - 4, size)
    width = min(room, max(mono_width(text, size) + 8, 2 * (right - arrow)))
    d.rect(right - width, y, width, 18, PAPER, INK, radius=3, title=f"new token of request {name}: '{token}'")
    d.text(right - width / 2, y + 9, text, size, "middle", mono=True)
    d.lines(f"M{number(arrow)} {number(y + _OUTPUT)}V{number(y + 19)}", INK, arrow=True)


def _describe(step: PackedStep, outputs: list[str]) -> str:
    packed = step.packed
    told = [
        f"{name}: {count(new, 'new token')} after {cached} in the cache, gives '{output}'"
        + (", then it leaves." if name in step.left else ".")
        for name, new, cached, output in zip(step.names, packed.new_lens, packed.cached_lens, outputs)
    ]
    admitted = f"In the next row: {listed(step.admitted)}. " if step.admitted else ""
    bounds = ", ".join(map(str, packed.cu_seqlens_q.tolist()))
    return f"{' '.join(told)} Cumulative lengths {bounds}. {admitted}Waiting: {listed(step.waiting)}."
