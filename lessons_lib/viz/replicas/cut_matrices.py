"""Two matrices in a row, the first cut by columns and the second by rows."""

from __future__ import annotations

from lessons_lib.viz.drawing.palette import EDGE, INK, NEUTRAL, PAPER, SOFT_INK
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, number

# One colour for each process; they are no requests, and differ in lightness.
PROCESSES = ("#0072B2", "#8FC3E4", "#5E3C99", "#A6A6A6")
_TOP, _LABEL = 62, 92


def draw_cut_matrices(num_tokens: int, inputs: int, inner: int, outputs: int, world_size: int = 2) -> Picture:
    """x @ W1 -> elementwise -> @ W2 = y, in so many processes: what each of them has, and the sum at the end.

    Args:
        num_tokens, inputs, inner, outputs: sizes of the matrices: x [tokens, inputs], W1 [inputs, inner], W2 [inner,
            outputs].

    Raises:
        ValueError: `inner` can't be divided by `world_size`, or there are more than four processes.
    """
    if inner % world_size or not 1 <= world_size <= len(PROCESSES):
        raise ValueError(f"{inner} columns in {world_size} parts; up to {len(PROCESSES)} equal parts can be drawn.")
    d = Drawing()
    gap = 44
    unit = min((WIDTH - _LABEL - 100 - 4 * gap) / (inputs + inner + inner / world_size + 3 * outputs), 9.0)
    part, height = inner // world_size, max(inputs, inner, num_tokens) * unit
    row_height = height + 46
    xs, x = {}, float(_LABEL)
    for name, columns in (("x", inputs), ("W1", inner), ("h", part), ("W2", outputs), ("partial", outputs)):
        xs[name] = x
        x += columns * unit + gap
    heads = (("x", "x"), ("W1", "W1, by columns"), ("h", "SiLU"), ("W2", "W2, by rows"), ("partial", "a part of y"))
    for name, head in heads:
        d.text(xs[name], 24, head, 13, bold=True)
    for rank in range(world_size):
        top, colour = _TOP + rank * row_height, PROCESSES[rank]
        middle = top + height / 2
        d.text(16, middle, f"process {rank}", 13, bold=True)

        _matrix(
            d, xs["x"], middle, unit, num_tokens, inputs, NEUTRAL, f"x: {num_tokens} tokens, whole in every process"
        )
        d.text(xs["W1"] - gap / 2, middle, "×", 18, "middle", bold=True)
        _matrix(d, xs["W1"], middle, unit, inputs, inner, PAPER, "the columns of the other processes")
        first = xs["W1"] + rank * part * unit
        d.rect(first, top + (height - inputs * unit) / 2, part * unit, inputs * unit, colour, INK, 2,
               title=f"columns {rank * part} to {(rank + 1) * part - 1} of W1")  # fmt: skip
        d.text(xs["h"] - gap / 2, middle, "→", 18, "middle", bold=True)
        _matrix(
            d,
            xs["h"],
            middle,
            unit,
            num_tokens,
            part,
            colour,
            f"elements {rank * part} to {(rank + 1) * part - 1} of each token",
        )
        d.text(xs["W2"] - gap / 2, middle, "×", 18, "middle", bold=True)
        _matrix(d, xs["W2"], middle, unit, inner, outputs, PAPER, "the rows of the other processes")
        second = top + (height - inner * unit) / 2 + rank * part * unit
        d.rect(xs["W2"], second, outputs * unit, part * unit, colour, INK, 2,
               title=f"rows {rank * part} to {(rank + 1) * part - 1} of W2")  # fmt: skip
        d.text(xs["partial"] - gap / 2, middle, "=", 18, "middle", bold=True)
        _matrix(
            d, xs["partial"], middle, unit, num_tokens, outputs, colour, "every output, but only a part of each sum"
        )
    _draw_sum(d, xs["partial"] + outputs * unit, row_height, height, num_tokens * unit, outputs * unit, world_size)
    d.height = _TOP + world_size * row_height - 6
    d.text(16, d.height - 14, "Filled: what a process has in memory. Empty: what it doesn't have.", 12, fill=SOFT_INK)
    return d.picture(
        f"{world_size} processes compute x times W1, SiLU, times W2. Each has all of x ({num_tokens} by {inputs}), "
        f"{part} of the {inner} columns of W1, the same {part} elements of each token after SiLU, and {part} rows of "
        f"W2. The result of each process has the shape of y ({num_tokens} by {outputs}) and is a "
        "part of every sum. One all-reduce adds them up, and every process gets all of y."
    )


def _matrix(d: Drawing, x: float, middle: float, unit: float, rows: int, columns: int, fill: str, title: str) -> None:
    d.rect(x, middle - rows * unit / 2, columns * unit, rows * unit, fill, INK, title=title)


def _draw_sum(
    d: Drawing, x: float, row_height: float, height: float, rows: float, columns: float, world_size: int
) -> None:
    """The partial results are added, and the sum goes to every process."""
    middle = _TOP + (world_size * row_height - row_height + height) / 2
    meet = x + 40
    for rank in range(world_size):
        y = _TOP + rank * row_height + height / 2
        d.lines(f"M{number(x + 6)} {number(y)}H{number(meet)}V{number(middle)}", EDGE, 2)
    d.lines(f"M{number(meet)} {number(middle)}h24", INK, 2, arrow=True)
    d.rect(meet + 30, middle - rows / 2, columns, rows, NEUTRAL, INK, title="y, whole, in every process")
    d.text(meet + 30 + columns / 2, middle, "y", 14, "middle", bold=True)
    d.text(meet + 30 + columns / 2, middle + rows / 2 + 16, "all-reduce: the sum,", 12, "middle", fill=SOFT_INK)
    d.text(meet + 30 + columns / 2, middle + rows / 2 + 32, "in each process", 12, "middle", fill=SOFT_INK)
