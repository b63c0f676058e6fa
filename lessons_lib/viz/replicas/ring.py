"""Which worker holds which part of a sum, step by step, during an all-reduce."""

from collections.abc import Sequence

from lessons_lib.recording.all_reduce_steps import ReduceStep
from lessons_lib.viz.drawing.palette import EDGE, INK, PAPER, SOFT_INK
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, number
from lessons_lib.viz.replicas.cut_matrices import PROCESSES

_LEFT, _TOP, _GAP, _ROW_GAP, _CELL_GAP = 96, 62, 30, 22, 3
_STRIPE = 13


def draw_all_reduce(steps: Sequence[ReduceStep]) -> Picture:
    """Steps of `record_all_reduce`: a column for each step, a row for each worker, a cell for each part, in it a stripe
    for each worker whose tensor is in its sum. An arrow leads from the sender to what has just arrived.
    """
    world_size = len(steps[0].holds)
    panel = (WIDTH - _LEFT - 16 - _GAP * (len(steps) - 1)) / len(steps)
    width = min((panel - _CELL_GAP * (world_size - 1)) / world_size, 40.0)
    panel = world_size * (width + _CELL_GAP) - _CELL_GAP
    height = world_size * _STRIPE
    lefts = [_LEFT + index * (panel + _GAP) for index in range(len(steps))]
    tops = [_TOP + rank * (height + _ROW_GAP) for rank in range(world_size)]
    d = Drawing()
    for rank, top in enumerate(tops):
        d.rect(16, top + height / 2 - 11, 22, 22, PROCESSES[rank], INK, radius=4)
        d.text(27, top + height / 2, str(rank), 13, "middle", bold=True, on=PROCESSES[rank])
        d.text(44, top + height / 2, "worker" if rank == 0 else "", 12, fill=SOFT_INK)
    for index, (left, step) in enumerate(zip(lefts, steps)):
        d.text(left + panel / 2, 20, f"step {index}" if index else "before", 13, "middle", bold=True)
        for part in range(world_size):
            x = left + part * (width + _CELL_GAP)
            d.text(x + width / 2, _TOP - 14, str(part), 12, "middle", fill=SOFT_INK)
            for rank, top in enumerate(tops):
                _cell(d, x, top, width, height, rank, part, step)
    for index, step in enumerate(steps[1:], 1):
        for rank, received in enumerate(step.received):
            for source in set(received.values()):
                start, end = tops[source] + height / 2, tops[rank] + height / 2
                x = lefts[index - 1] + panel + 3
                d.lines(f"M{number(x)} {number(start)}L{number(lefts[index] - 4)} {number(end)}", INK, 1.5, arrow=True)
    d.text(44, _TOP - 14, "part", 12, fill=SOFT_INK)
    d.height = tops[-1] + height + 44
    words = "A stripe for each worker whose tensor is in the sum. Thick frame: it has just arrived. ✓: it is complete."
    d.text(_LEFT, d.height - 14, words, 12, fill=SOFT_INK)
    return d.picture(_describe(steps))


def _cell(d: Drawing, x: float, y: float, width: float, height: float, rank: int, part: int, step: ReduceStep) -> None:
    contains, is_new = step.holds[rank][part], part in step.received[rank]
    d.rect(x, y, width, height, PAPER, EDGE)
    for worker in sorted(contains):
        d.rect(x, y + worker * _STRIPE, width, _STRIPE, PROCESSES[worker])
    if is_new:
        d.rect(x - 0.5, y - 0.5, width + 1, height + 1, stroke=INK, stroke_width=3)
    if len(contains) == len(step.holds):
        d.text(x + width / 2, y + height + 9, "✓", 12, "middle", bold=True)


def _describe(steps: Sequence[ReduceStep]) -> str:
    world_size, told = len(steps[0].holds), []
    for index, step in enumerate(steps[1:], 1):
        arrived = [
            f"part {part} from worker {source} to worker {rank}, then of {len(step.holds[rank][part])}"
            for rank, received in enumerate(step.received)
            for part, source in received.items()
        ]
        told.append(f"Step {index}: {'; '.join(arrived)}.")
    complete = [sum(len(part) == world_size for part in holds) for holds in steps[-1].holds]
    ends = f"At the end, the workers have {', '.join(map(str, complete))} of {world_size} parts complete."
    return f"An all-reduce of {world_size} workers in {len(steps) - 1} steps. {' '.join(told)} {ends}"
