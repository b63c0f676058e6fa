"""Batch slots against steps: which request had which slot when, and what was computed in vain.

A row is a slot, a column a step, a color a request. A dark frame marks prefill. Hatching covers the share of a cell
that was computed but not needed: padding at the start of a wave, finished rows, and empty slots that are computed
anyway.
"""

from lessons_lib.recording.trace import RowWork, Step, Trace
from lessons_lib.recording.words import check_index, count, listed, runs_of, span
from lessons_lib.viz.drawing.palette import EDGE, INK, NEUTRAL, PAPER, SOFT_INK, color_of, tint
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, number, share_text
from lessons_lib.viz.timelines.samples import sample_colors

_LEFT = 72  # room for "slot 0"
_RIGHT = 16
_WIDEST_CELL = 30
_SEAM_CELL = 5  # narrower cells have no seam between them


def draw_timeline(trace: Trace, upto: int | None = None, title: str | None = None) -> Picture:
    """The timeline of one trace.

    upto   index of the last step shown, 0 to len(trace.steps) - 1; None shows all. Later steps stay blank, so that the
           picture doesn't move while you step through it. Other values raise IndexError.
    """
    if upto is not None:
        check_index("step", upto, len(trace.steps))
    shown = len(trace.steps) if upto is None else upto + 1
    d = Drawing()
    y = 16.0
    if title:
        d.text(16, y + 4, title, 15, bold=True)
        y += 24
    y = _block(d, trace, shown, len(trace.steps), y)
    d.height = _legend(d, trace.requests, y + 10)
    return d.picture((f"{title}. " if title else "") + _describe(trace, shown))


def draw_compare(
    above: Trace,
    below: Trace,
    i: int | None = None,
    names: tuple[str, str] = ("Static batching", "Continuous batching"),
) -> Picture:
    """Two traces on the same steps up to index i (None: to the end); a shorter trace is then shown whole."""
    columns = max(len(above.steps), len(below.steps))
    i = columns - 1 if i is None else i
    check_index("step", i, columns)
    d = Drawing()
    y = 16.0
    words = []
    for name, trace in zip(names, (above, below)):
        shown = min(i + 1, len(trace.steps))
        done = f": all done after {count(len(trace.steps), 'step')}" if shown == len(trace.steps) and shown else ""
        d.text(16, y + 4, name + done, 15, bold=True)
        y = _block(d, trace, shown, columns, y + 24) + 20
        words.append(f"{name}{done}. {_describe(trace, shown)}")
    requests = dict.fromkeys(above.requests + below.requests)
    d.height = _legend(d, tuple(requests), y - 10)
    return d.picture(" ".join(words))


def animate_compare(above: Trace, below: Trace, names: tuple[str, str], seconds: float = 12) -> Picture:
    """Two traces that grow on one clock, again and again: a file of its own, which plays in an `<img>`, by style rules.

    seconds   from one start to the next; in the last quarter nothing moves, nor ever at FILE.svg#still, nor where
              readers want no motion
    """
    columns, d, y = max(len(above.steps), len(below.steps)), Drawing(), 16.0
    width, words, times = WIDTH - _LEFT - _RIGHT, [], {}
    for name, trace in zip(names, (above, below)):
        end, top = len(trace.steps), y + 24
        d.text(16, y + 4, name, 15, bold=True)
        last = {w.request: n for n, step in enumerate(trace.steps, 1) for w in step.rows if w.useful and w.request}
        for place, (request, step) in enumerate(sorted(last.items(), key=lambda item: item[1])):
            with d.marked(moves=times.setdefault(step, f"at{step}")):
                d.request_chip(210 + 26 * place, y - 6, request)
        with d.marked(moves=times.setdefault(end, f"at{end}")):
            d.text(220 + 26 * len(last), y + 4, f"all done after {count(end, 'step')}", 15, bold=True)
        y = _block(d, trace, end, columns, top)
        with d.marked(moves=f"until{end}"):
            d.rect(8, y - 28, WIDTH - 16, 24, PAPER)
        with d.marked(moves="cover"):
            d.rect(_LEFT, top - 4, width + 2, y - 51 - top, PAPER)
        with d.marked(moves="now"):
            d.lines(f"M{_LEFT} {number(top - 4)}V{number(y - 57)}", INK, 2)
        y += 20
        words.append(f"{name}: all done after {count(end, 'step')}. {_describe(trace, end)}")
    d.height = _legend(d, tuple(dict.fromkeys(above.requests + below.requests)), y - 10)
    picture = d.picture(" ".join(words))
    ends = [len(trace.steps) for trace in (above, below)]
    changes = [(name, step, 0, 1) for step, name in times.items()] + [(f"until{end}", end, 1, 0) for end in ends]
    frames = [
        ("cover", "0%{transform:none}75%,to{transform:scaleX(0)}"),
        ("now", f"0%{{opacity:1}}75%{{opacity:1;transform:translateX({width}px)}}76%,to{{opacity:0}}"),
        *(
            (name, f"0%,{(share := 75 * step / columns):.2f}%{{opacity:{old}}}{share + 0.01:.2f}%,to{{opacity:{new}}}")
            for name, step, old, new in changes
        ),
    ]
    plays = "".join(
        f":not(:target)>g>[data-moves={name}]{{animation:{name} {seconds:g}s linear infinite}}" for name, _ in frames
    )
    still = "".join(f"[data-moves={name}]{{opacity:0}}" for name in ("now", *(f"until{end}" for end in ends)))
    rules = (
        f"[data-moves=cover]{{transform:scaleX(0);transform-origin:{WIDTH - _RIGHT + 2}px 0}}{still}"
        f"@media(prefers-reduced-motion:no-preference){{{plays}}}"
        + "".join(f"@keyframes {name}{{{steps}}}" for name, steps in frames)
    )
    svg = picture.svg.replace("<svg ", '<svg id="still" ', 1).replace("<g ", f"<style>{rules}</style><g ", 1)
    return Picture(svg, picture.alt)


def _block(d: Drawing, trace: Trace, shown: int, columns: int, y: float) -> float:
    """Grid, axis, queue and sums of one trace. Returns the y below it."""
    if not trace.steps:
        d.text(16, y + 10, "No steps recorded: nothing has run yet.", fill=SOFT_INK)
        return y + 24
    width = min(_WIDEST_CELL, (WIDTH - _LEFT - _RIGHT) / columns)
    height = 28 if trace.slots <= 4 else 24
    for slot in range(trace.slots):
        top = y + slot * (height + 3)
        d.text(_LEFT - 10, top + height / 2, f"slot {slot}", 12, "end", fill=SOFT_INK)
        d.rect(_LEFT, top, width * len(trace.steps), height, "none", EDGE, dashed=True)
        _row(d, trace.steps[:shown], slot, _LEFT, top, width, height)
    bottom = y + trace.slots * (height + 3)
    if width >= _SEAM_CELL:  # seams between the steps
        seams = "".join(f"M{number(_LEFT + n * width)} {number(y)}V{number(bottom - 3)}" for n in range(1, shown))
        d.lines(seams, PAPER, 1)
    for slot in range(trace.slots):
        _letters(d, trace.steps[:shown], slot, _LEFT, y + slot * (height + 3) + height / 2, width)
    if shown < len(trace.steps):  # the current step
        now = _LEFT + shown * width
        d.lines(f"M{number(now)} {number(y - 4)}V{number(bottom + 1)}", INK, 2)
    _axis(d, columns, bottom + 8, width)
    _summary(d, trace, shown, bottom + 38)
    return bottom + 54


def _row(d: Drawing, steps: list[Step], slot: int, x: float, y: float, width: float, height: float) -> None:
    """One slot through the steps; equal neighbors are drawn as one."""
    for work, start, length in runs_of(_works(steps, slot)):
        if work is not None:
            with d.marked([(work.request,)] if work.request else []):
                _cell(d, work, slot, start, length, x + start * width, y, width, height)


def _cell(
    d: Drawing, work: RowWork, slot: int, start: int, length: int, x: float, y: float, width: float, height: float
) -> None:
    owner = f"request {work.request}" if work.request is not None else "no request"
    hover = f"slot {slot}, {span('step', start + 1, length)}: {owner}, {work.phase}, {work.computed} computed, "
    hover += f"{work.useful} useful" + (" in each" if length > 1 else "")
    if work.computed == 0:  # no forward pass touched the row: empty, or waiting
        fill = PAPER if work.request is None else tint(color_of(work.request))
        d.rect(x, y, width * length, height, fill, title=hover)
        return
    pale = NEUTRAL if work.request is None else tint(color_of(work.request))
    hatched, framed = work.wasted / work.computed, work.phase == "prefill"
    d.cell(x, y, width * length, height, color_of(work.request), "", hover, hatched, pale, framed)


def _letters(d: Drawing, steps: list[Step], slot: int, x: float, y: float, width: float) -> None:
    """One letter in the middle of each request's steps in this slot, where it fits."""
    for name, phase, start, length in _stretches(steps, slot):
        badge = 9 * len(name) + 2
        room = badge if phase == "decode" else 3 * badge  # a letter must not hide the frames of a short prefill
        if length * width >= room:
            middle = x + (start + length / 2) * width
            with d.marked([(name,)], moves=f"request {name}"):
                d.rect(middle - badge / 2, y - 8, badge, 16, color_of(name))
                d.text(middle, y, name, 12, "middle", bold=True, on=color_of(name))


def _works(steps: list[Step], slot: int) -> list[RowWork | None]:
    return [step.rows[slot] if slot < len(step.rows) else None for step in steps]


def _stretches(steps: list[Step], slot: int) -> list[tuple[str, str, int, int]]:
    """(request, phase, first step index, number of steps) for each stretch of useful work in the slot."""
    keys = [(w.request, w.phase) if w and w.useful else (None, "") for w in _works(steps, slot)]
    return [(*key, start, length) for key, start, length in runs_of(keys) if key[0] is not None]


def _axis(d: Drawing, columns: int, y: float, width: float) -> None:
    # Never every second step: 1, 4, 6, 8 isn't evenly spaced, and 1, 3, 5 has no round values.
    every = next(n for n in (1, 5, 10, 20, 50, 100, 200, 500, 1000, 5000, 10**9) if n * width >= 26)
    d.text(_LEFT - 10, y + 4, "step", 11, "end", fill=SOFT_INK)
    for n in range(1, columns + 1):
        if n == 1 or (n % every == 0 and (n - 1) * width >= 16):
            d.text(_LEFT + (n - 0.5) * width, y + 4, str(n), 11, "middle", fill=SOFT_INK)


def _summary(d: Drawing, trace: Trace, shown: int, y: float) -> None:
    """Left: the waiting requests. Right: the sums so far."""
    d.text(WIDTH - _RIGHT, y, _sums(trace, shown), 13, "end", bold=True)
    waiting = trace.steps[shown - 1].waiting
    d.text(16, y, f"waiting in step {shown}:" + ("" if waiting else " none"), 13, fill=SOFT_INK)
    d.names(150, y - 10, waiting, 470)


def _sums(trace: Trace, shown: int) -> str:
    steps = trace.steps[:shown]
    computed, useful = sum(step.tokens_computed for step in steps), sum(step.tokens_useful for step in steps)
    wasted = f"{computed - useful:,} wasted ({share_text(computed - useful, computed)})"
    return f"{useful:,} useful of {computed:,} computed, {wasted}"


def _legend(d: Drawing, requests: tuple[str, ...], y: float) -> float:
    """The legend. Returns the height of the finished sheet."""
    d.rule(y)
    y += 14
    d.text(16, y + 10, "requests", 12, fill=SOFT_INK)
    d.names(78, y, requests, 340, moves=False)
    samples = sample_colors(requests)
    signs = (
        ("prefill", samples, dict(framed=True)),
        ("decode", samples[:1], dict()),
        ("computed, not needed", [NEUTRAL], dict(hatched=1.0, pale=PAPER)),
    )
    x = 440.0 - 22 * (len(samples) - 1)
    for text, fills, style in signs:
        for fill in fills:
            d.cell(x, y, 20, 20, fill, **style)
            x += 22
        d.text(x + 4, y + 10, text, 12, fill=SOFT_INK)
        x += 18 + 6.6 * len(text)
    d.rect(x + 0.5, y + 0.5, 19, 19, "none", EDGE, dashed=True)
    d.text(x + 26, y + 10, "not computed", 12, fill=SOFT_INK)
    return y + 34


def _describe(trace: Trace, shown: int) -> str:
    """The timeline in words."""
    if not trace.steps:
        return "Timeline without steps: nothing has run yet."
    slots = []
    for slot in range(trace.slots):
        first: dict[str, int] = {}
        for name, _, start, _ in _stretches(trace.steps[:shown], slot):
            first.setdefault(name, start + 1)
        slots.append(f"Slot {slot}: {listed([f'{name} from step {start}' for name, start in first.items()])}.")
    waiting = listed(trace.steps[shown - 1].waiting)
    head = f"Timeline of {count(trace.slots, 'slot')}, steps 1 to {shown} of {len(trace.steps)}."
    return " ".join([head, *slots, f"{_sums(trace, shown)}. Waiting in step {shown}: {waiting}."])
