"""Two matrices in a row, the first cut by columns and the second by rows."""

from lessons_lib.viz.drawing.palette import EDGE, INK, NEUTRAL, PAPER, SOFT_INK
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, number

# One colour for each process; they are no requests, and differ in lightness.
PROCESSES = ("#0072B2", "#8FC3E4", "#5E3C99", "#A6A6A6")
_TOP, _LABEL, _GAP = 62, 92, 44


def draw_cut_matrices(num_tokens: int, inputs: int, inner: int, outputs: int) -> Picture:
    """x [tokens, inputs] @ W1 [inputs, inner] -> elementwise -> @ W2 [inner, outputs] = y, in two processes: what each
    has, and the sum at the end.
    """
    part = inner // 2
    unit = min((WIDTH - _LABEL - 100 - 4 * _GAP) / (inputs + inner + part + 3 * outputs), 9.0)
    height = max(inputs, inner, num_tokens) * unit
    row_height = height + 46
    d = Drawing(height=_TOP + 2 * row_height - 6)
    x = float(_LABEL)
    for head, sign, rows, columns, is_whole in (
        ("x", "×", num_tokens, inputs, True),
        ("W1, by columns", "→", inputs, inner, False),
        ("SiLU", "×", num_tokens, part, True),
        ("W2, by rows", "=", inner, outputs, False),
        ("a part of y", "", num_tokens, outputs, True),
    ):
        d.text(x, 24, head, 13, bold=True)
        for rank, colour in enumerate(PROCESSES[:2]):
            top = _TOP + rank * row_height
            middle, fill = top + height / 2, NEUTRAL if head == "x" else colour
            y, wide, high = middle - rows * unit / 2, columns * unit, rows * unit
            d.rect(x, y, wide, high, fill if is_whole else PAPER, INK)
            if head == "W1, by columns":
                d.rect(x + rank * part * unit, y, part * unit, high, colour, INK, 2)
            if head == "W2, by rows":
                d.rect(x, y + rank * part * unit, wide, part * unit, colour, INK, 2)
            d.text(x + wide + _GAP / 2, middle, sign, 18, "middle", bold=True)
        x += columns * unit + _GAP
    for rank in range(2):
        d.text(16, _TOP + rank * row_height + height / 2, f"process {rank}", 13, bold=True)
    _draw_sum(d, x - _GAP, row_height, height, num_tokens * unit, outputs * unit)
    d.text(16, d.height - 14, "Filled: what a process has in memory. Empty: what it doesn't have.", 12, fill=SOFT_INK)
    return d.picture(
        f"Two processes compute x times W1, SiLU, times W2. Each has all of x ({num_tokens} by {inputs}), {part} of "
        f"the {inner} columns of W1, the same {part} elements of each token after SiLU, and {part} rows of W2. The "
        f"result of each process has the shape of y ({num_tokens} by {outputs}) and is a part of every sum. One "
        "all-reduce adds them up, and every process gets all of y."
    )


def _draw_sum(d: Drawing, x: float, row_height: float, height: float, rows: float, columns: float) -> None:
    """The partial results are added, and the sum goes to every process."""
    middle = _TOP + (row_height + height) / 2
    meet = x + 40
    for rank in range(2):
        y = _TOP + rank * row_height + height / 2
        d.lines(f"M{number(x + 6)} {number(y)}H{number(meet)}V{number(middle)}", EDGE, 2)
    d.lines(f"M{number(meet)} {number(middle)}h24", INK, 2, arrow=True)
    d.rect(meet + 30, middle - rows / 2, columns, rows, NEUTRAL, INK)
    d.text(meet + 30 + columns / 2, middle, "y", 14, "middle", bold=True)
    d.text(meet + 30 + columns / 2, middle + rows / 2 + 16, "all-reduce: the sum,", 12, "middle", fill=SOFT_INK)
    d.text(meet + 30 + columns / 2, middle + rows / 2 + 32, "in each process", 12, "middle", fill=SOFT_INK)
