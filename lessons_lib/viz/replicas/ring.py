"""Which worker holds which part of a sum, step by step, during an all-reduce."""

import math
from collections.abc import Sequence

from lessons_lib.recording.all_reduce_steps import ReduceStep
from lessons_lib.recording.words import count
from lessons_lib.viz.drawing.palette import EDGE, INK, PAPER, SOFT_INK
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, number
from lessons_lib.viz.replicas.cut_matrices import PROCESSES
from lessons_lib.viz.stepper import Stepper

_TOP, _HEAD, _GAP, _STRIPE = 56, 24, 84, 14  # a stripe for each worker in a sum
_WIDEST = 60  # of a part


def watch_all_reduce(steps: Sequence[ReduceStep]) -> Stepper:
    """Play the steps of `record_all_reduce`."""
    return Stepper(
        lambda i: draw_all_reduce(steps, i), len(steps), still=len(steps) // 2,
        name=lambda i: f"step {i} of {len(steps) - 1}" if i else "before",
    )  # fmt: skip


def draw_all_reduce(steps: Sequence[ReduceStep], index: int) -> Picture:
    """The workers after a step, around a ring: a cell for each part, in it a stripe for each worker whose tensor is in
    its sum. An arrow leads from the sender to what has just arrived.
    """
    step, size = steps[index], len(steps[0].holds)
    width, boxes = _boxes(size)
    d = Drawing(height=max(y for _, y in boxes) + _HEAD + size * _STRIPE + 66)
    d.text(16, 20, _title(steps, index), 15, bold=True)
    for rank, received in enumerate(step.received):
        for source in sorted({*received.values()} - {rank}):
            words = ", ".join(f"part {part}" for part, sender in received.items() if sender == source)
            _arrow(d, _middle(boxes[source], width, size), _middle(boxes[rank], width, size), width, size, words)
    for rank, (x, y) in enumerate(boxes):
        with d.marked([(f"worker {rank}",)]):
            d.rect(x, y, 22, 20, PROCESSES[rank % len(PROCESSES)], INK, radius=4)
            d.text(x + 11, y + 10, str(rank), 13, "middle", bold=True, on=PROCESSES[rank % len(PROCESSES)])
            d.text(x + 28, y + 10, f"worker {rank}", 12, fill=SOFT_INK)
            for part in range(size):
                _cell(d, x + part * width, y + _HEAD, width - 3, part, rank, steps, index)
    words = "A stripe for each worker in the sum. Thick frame: just arrived; dashed: sent next. ✓: the sum is complete."
    d.text(16, d.height - 14, words, 12, fill=SOFT_INK)
    return d.picture(_describe(steps, index))


def _boxes(size: int) -> tuple[float, list[tuple[float, float]]]:
    """The width of a part, and the corner of each worker: the first half at the top, the others below, back."""
    across = math.ceil(size / 2)
    room = (WIDTH - 32) / across
    width = min(_WIDEST, (room - 50) / size)
    places = [(column, 0) for column in range(across)] + [(across - 1 - column, 1) for column in range(size - across)]
    height = _HEAD + size * _STRIPE + 16 + _GAP
    return width, [(16 + column * room + (room - width * size) / 2, _TOP + row * height) for column, row in places]


def _middle(corner: tuple[float, float], width: float, size: int) -> tuple[float, float]:
    return corner[0] + width * size / 2, corner[1] + (_HEAD + size * _STRIPE) / 2


def _arrow(
    d: Drawing, start: tuple[float, float], end: tuple[float, float], width: float, size: int, words: str
) -> None:
    """From the edge of one worker to that of another, with what is sent."""
    x, y = end[0] - start[0], end[1] - start[1]
    half = width * size / 2 + 8, (_HEAD + size * _STRIPE) / 2 + 20
    leaves = min(side / abs(way) for side, way in zip(half, (x, y)) if way)  # of the whole way
    (x1, y1), (x2, y2) = ((start[0] + x * part, start[1] + y * part) for part in (leaves, 1 - leaves))
    d.lines(f"M{number(x1)} {number(y1)}L{number(x2)} {number(y2)}", INK, 2, arrow=True)
    beside = 12 if abs(x) < abs(y) else 0
    anchor = "start" if beside else "middle"
    d.text((x1 + x2) / 2 + beside, (y1 + y2) / 2 - (0 if beside else 14), words, 13, anchor, bold=True)


def _cell(
    d: Drawing, x: float, y: float, width: float, part: int, rank: int, steps: Sequence[ReduceStep], index: int
) -> None:
    step, size = steps[index], len(steps[0].holds)
    contains, height = step.holds[rank][part], size * _STRIPE
    d.rect(x, y, width, height, PAPER, EDGE, title=f"part {part} of worker {rank}: the sum of {sorted(contains)}")
    for worker in sorted(contains):
        d.rect(x, y + worker * _STRIPE, width, _STRIPE, PROCESSES[worker % len(PROCESSES)])
    is_whole = len(contains) == size
    d.text(
        x + width / 2, y + height + 9, "✓" if is_whole else f"{len(contains)} of {size}", 11, "middle", bold=is_whole
    )
    if part in step.received[rank]:  # it has come from the sender's frame in the picture before
        with d.marked(moves=f"{index} {rank} {part}"):
            d.rect(x - 1, y - 1, width + 2, height + 2, "none", INK, 4, radius=2)
    for receiver, received in enumerate(steps[index + 1].received if index + 1 < len(steps) else ()):
        if received.get(part) == rank:
            with d.marked(moves=f"{index + 1} {receiver} {part}"):
                d.rect(x + 3, y + 3, width - 6, height - 6, "none", INK, 2, dashed=True, radius=2)


def _title(steps: Sequence[ReduceStep], index: int) -> str:
    size = len(steps[0].holds)
    whole = [sum(len(part) == size for holds in step.holds for part in holds) for step in steps]
    if not index:
        return f"Before: each of {size} workers has its own tensor, in {size} parts"
    before, step = steps[index - 1], steps[index]
    adds = any(
        step.holds[rank][part] != before.holds[source][part]
        for rank, received in enumerate(step.received)
        for part, source in received.items()
    )
    does = "what arrives is added" if adds else "what arrives is complete, and replaces a part"
    return f"Step {index}: {does}. {whole[index]} of {size * size} sums are complete"


def _describe(steps: Sequence[ReduceStep], index: int) -> str:
    step = steps[index]
    arrived = [
        f"part {part} from worker {source} to worker {rank}, then of {len(step.holds[rank][part])}"
        for rank, received in enumerate(step.received)
        for part, source in received.items()
    ]
    complete = [sum(len(part) == len(holds) for part in holds) for holds in step.holds]
    ends = f"Complete parts of each worker: {', '.join(map(str, complete))}."
    of = f"An all-reduce of {len(step.holds)} workers in {count(len(steps) - 1, 'step')}."
    return f"{of} {_title(steps, index)}. {'; '.join(arrived)}{'. ' if arrived else ''}{ends}"
