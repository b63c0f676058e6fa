"""The pool under pressure, one step of a run: which sequence uses which blocks, what is cached, what is in the swap
space.

A stripe in a block is a sequence that uses it; its empty slots are hatched. Dots mark blocks that are free but can
still be found by their hashes. A dark frame marks the target of a copy in this step.
"""

import textwrap

from lessons_lib.kv_cache.block_copies import COPY, SWAP_OUT
from lessons_lib.recording.memory_steps import MemoryStep
from lessons_lib.recording.words import count, listed, numbered
from lessons_lib.viz.drawing.palette import EDGE, INK, PAPER, SOFT_INK, color_of, tint
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, sans_width
from lessons_lib.viz.pressure.grid import draw_bays, draw_cached, draw_swap_space

Event = tuple[str | None, str]  # the sequence that it concerns, if it is one, and what happened
_LEFT, _PANEL = 16, 262  # margin, width of the list of events
_LINE, _CHARS = 18, 34  # of the list
_FEWEST_LINES = 9
_CHIPS_LEFT = 92


def draw_pressure(step: MemoryStep) -> Picture:
    """One step of `serve_recorded`. Pools and swap spaces of one size make pictures of one height."""
    d = Drawing()
    d.text(_LEFT, 20, title(step), 15, bold=True)
    _names(d, "computed:", {name: str(tokens) for name, tokens in step.counts.items()}, 36)
    _names(d, "waiting:", dict.fromkeys(step.waiting, ""), 62)
    d.lines(f"M{_LEFT} 92H{WIDTH - _LEFT}", EDGE)
    size = f"{count(step.num_blocks, 'block')} of {count(step.block_size, 'token')} each"
    d.text(_LEFT, 106, f"{size}, after the step", 12, fill=SOFT_INK)
    y = 118 + draw_bays(d, step, _LEFT, 118) + 18
    if step.num_swap_blocks:
        d.text(_LEFT, y, f"swap space, in CPU memory: {count(step.num_swap_blocks, 'block')}", 12, fill=SOFT_INK)
        y += 12 + draw_swap_space(d, step, _LEFT, y + 12) + 12
    else:
        d.text(_LEFT, y, "no swap space", 12, fill=SOFT_INK)
        y += 16
    y = max(y, 118 + _FEWEST_LINES * _LINE + 6)
    _events(d, step, y)
    d.height = _footer(d, step, y)
    return d.picture(describe(step))


def _names(d: Drawing, label: str, names: dict[str, str], y: float) -> None:
    """A line of sequences, each followed by a word; as many as fit."""
    d.text(_CHIPS_LEFT - 10, y + 10, label, 12, "end", fill=SOFT_INK)
    x, left_over = float(_CHIPS_LEFT), len(names)
    for name, word in names.items():
        width = max(20, 10 + 8 * len(name)) + sans_width(word, 13) + 18
        if x + width > WIDTH - _LEFT - (80 if left_over > 1 else 0):
            d.text(x, y + 10, f"and {left_over} more", 12, fill=SOFT_INK)
            return
        with d.marked([(name,)], moves=f"request {name}"):
            chip = d.request_chip(x, y, name)
        if word:
            d.text(x + chip + 5, y + 10, word, 13)
        x, left_over = x + width, left_over - 1
    if not names:
        d.text(x, y + 10, "none", 12, fill=SOFT_INK)


def _events(d: Drawing, step: MemoryStep, bottom: float) -> None:
    """What happened, one event per line; as many as fit."""
    x, y = WIDTH - _LEFT - _PANEL, 106.0
    d.text(x, y, "what happened in this step", 12, fill=SOFT_INK)
    y += 22
    told = [(name, textwrap.wrap(what, _CHARS if name else _CHARS + 4)) for name, what in events(step)]
    if not told:
        d.text(x, y, "no changes", 12)
    for index, (name, lines) in enumerate(told):
        needed = len(lines) * _LINE + (_LINE if index + 1 < len(told) else 0)
        if y + needed - _LINE / 2 > bottom:
            d.text(x, y, f"and {len(told) - index} more", 12, fill=SOFT_INK)
            return
        indent = d.request_chip(x, y - 8, name, 16) + 6 if name else 0
        for line in lines:
            d.text(x + indent, y, line, 12)
            y += _LINE
        y += 3


def _footer(d: Drawing, step: MemoryStep, y: float) -> float:
    """Sums and the legend. Returns the y below it."""
    d.rule(y)
    y += 16
    d.text(_LEFT, y, sums(step), 13, bold=True)
    d.text(WIDTH - _LEFT, y, lost(step), 13, "end", bold=True)
    y += 22
    one, other = color_of("A"), color_of("B")

    def shared(x: float, y: float) -> None:
        d.rect(x, y, 18, 16, one)
        d.rect(x + 10, y, 8, 16, other)

    signs = [
        ("token stored", lambda x, y: d.rect(x, y, 18, 16, one)),
        ("in use, but empty", lambda x, y: d.cell(x, y, 18, 16, PAPER, hatched=1.0, pale=tint(one))),
        ("shared", shared),
        ("free, but cached", lambda x, y: draw_cached(d, x, y, 18, 16)),
        ("free", lambda x, y: d.rect(x + 0.5, y + 0.5, 17, 15, "none", EDGE, radius=3)),
        ("target of a copy", lambda x, y: d.rect(x + 1.5, y + 1.5, 15, 13, "none", INK, 3, radius=3)),
    ]
    d.legend(_LEFT, y, signs)
    return y + 16


def title(step: MemoryStep) -> str:
    tokens, sequences = sum(step.counts.values()), len(step.counts)
    return f"Step {step.index + 1} computes {count(tokens, 'token')} of {count(sequences, 'sequence')}"


def events(step: MemoryStep) -> list[Event]:
    """What happened, in order: blocks are taken and copied before the forward pass; sequences finish after it."""
    told: list[Event] = []
    for name in step.preempted:
        told.append((name, "preempted, " + ("swapped out" if name in step.swapped_out else "cache dropped")))
    for name in step.admitted:
        found = f", {count(step.hits[name], 'token')} found in the cache" if name in step.hits else ""
        told.append((name, "admitted" + (", swapped in" if name in step.swapped_in else found)))
    moves = step.block_copies
    told += [(None, f"block {one.source} is copied to block {one.target}") for one in moves if one.kind == COPY]
    for kind in dict.fromkeys(move.kind for move in moves if move.kind != COPY):
        sources, targets = zip(*((move.source, move.target) for move in moves if move.kind == kind))
        ends = (numbered("block", sources), targets) if kind == SWAP_OUT else (sources, numbered("block", targets))
        source, target = (end if isinstance(end, str) else f"swap {', '.join(map(str, end))}" for end in ends)
        told.append((None, f"{source} to {target}"))
    return told + [(name, "finished") for name in step.finished]


def sums(step: MemoryStep) -> str:
    """How many blocks are in use, and of these shared; free, and of these cached."""
    used, cached = len(step.owners), len(step.cached)
    shared = sum(len(owners) > 1 for owners in step.owners.values())
    told = [f"{used:,} of {count(step.num_blocks, 'block')} in use" + (f" ({shared:,} shared)" if shared else "")]
    told.append(f"{step.num_blocks - used:,} free ({cached:,} cached)")
    if step.num_swap_blocks:
        told.append(f"{sum(map(len, step.swapped.values())):,} of {count(step.num_swap_blocks, 'swap block')} in use")
    return "; ".join(told)


def lost(step: MemoryStep) -> str:
    return f"{count(step.evicted, 'cached block')} evicted so far"


def describe(step: MemoryStep) -> str:
    """The whole picture in words."""
    happened = "; ".join(f"{name} {what}" if name else what for name, what in events(step)) or "no changes"
    computed = listed([f"{name} {tokens}" for name, tokens in step.counts.items()])
    waiting = listed(step.waiting)
    return f"{title(step)}: {computed}. Events: {happened}. After it, {sums(step)}; {lost(step)}. Waiting: {waiting}."
