"""The stretch task of lesson 04: attention in a sliding window over a packed row. It is compared with a mask that is
made cell by cell; then the score cells that it computes are counted, its operators, and its largest tensor.
"""

from collections.abc import Callable
from itertools import accumulate
from math import prod
from random import Random
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lessons_lib.attention.masks import tag_tokens
from lessons_lib.checks.scoreboards import Scored, scoreboard
from lessons_lib.viz.tables.table import Table

Attention = Callable[..., torch.Tensor]  # (q, k, v, lengths, window) -> [heads, tokens, head_dim]

WINDOW, HEADS, HEAD_DIM = 32, 2, 16
# (lengths, window), smallest first
SMALL_CASES = (([1], 1), ([3], 1), ([3], 2), ([3, 2], 2), ([2, 3], 100), ([9, 1, 12], 4), ([], 3))


def visible_cells(lengths: list[int], window: int, causal: bool = True, separate: bool = True) -> torch.Tensor:
    """The mask: bool [tokens, tokens]."""
    tags = tag_tokens(lengths)
    back = tags.positions[:, None] - tags.positions
    own = tags.seq_ids[:, None] == tags.seq_ids
    return (own | (not separate)) & (back < window) & ((back >= 0) | (not causal))


def row_of(lengths: list[int], seed: int) -> list[torch.Tensor]:
    """Queries, keys and values of a packed row."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(HEADS, sum(lengths), HEAD_DIM, generator=generator) for _ in range(3)]


def one_mask(q, k, v, lengths: list[int], window: int) -> torch.Tensor:
    return scaled_dot_product_attention(q, k, v, attn_mask=_band(lengths, window))


def one_call_per_sequence(q, k, v, lengths: list[int], window: int) -> torch.Tensor:
    outputs = [
        scaled_dot_product_attention(*(x[:, end - length : end] for x in (q, k, v)), attn_mask=_band([length], window))
        for length, end in zip(lengths, accumulate(lengths))
    ]
    return torch.cat(outputs, dim=1)


def _band(lengths: list[int], window: int) -> torch.Tensor:
    counts = torch.tensor(lengths)
    seq_ids = torch.arange(len(lengths)).repeat_interleave(counts)
    index = torch.arange(len(seq_ids), dtype=torch.int16)
    back = index[:, None] - index
    return (seq_ids[:, None] == seq_ids) & (back >= 0) & (back < window)


class CountScores(TorchDispatchMode):
    """Counts operators, and the score cells that they compute: multiplications of matrix products and of attention.

    Attributes:
        operators: those that compute or copy something. Views are not counted.
        multiplications: two for each score cell and element of the head, one with the key and one with the value.
        largest_bytes: the size of the largest tensor that an operator returned.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operators = self.multiplications = self.largest_bytes = 0

    @property
    def cells(self) -> int:
        return round(self.multiplications / (2 * HEADS * HEAD_DIM))

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operator(*args, **(kwargs or {}))
        if not operator.is_view:
            self.operators += 1
            sizes = [x.nbytes for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
            self.largest_bytes = max([self.largest_bytes, *sizes])
        name = operator.overloadpacket.__name__
        if "scaled_dot_product" in name:
            q, k = args[:2]
            self.multiplications += 2 * prod(q.shape) * k.shape[-2]
        elif name in ("mm", "bmm", "mv", "dot"):
            self.multiplications += prod(result.shape) * args[0].shape[-1]
        elif name in ("addmm", "baddbmm"):
            self.multiplications += prod(result.shape) * args[1].shape[-1]
        elif name in ("mul", "mul_") and all(isinstance(x, torch.Tensor) for x in args[:2]):
            one, other = (x.shape for x in args[:2])
            if min(len(one), len(other)) > 3 or (one[-1:] == other[-1:] == (HEAD_DIM,) and one != other):
                self.multiplications += prod(result.shape)  # a product with a sum after it, written by hand
        return result


def counted(function: Callable[..., Any], *args: Any) -> tuple[Any, CountScores]:
    """Call an attention function. Returns its result and what it computed."""
    counts = CountScores()
    with torch.no_grad(), counts:  # in inference mode, a matmul would arrive undivided
        return function(*args), counts


def counted_scores(attention: Callable[..., torch.Tensor], *args: Any) -> tuple[torch.Tensor, int]:
    """Call an attention function. Returns its result, and the score cells that it computed in each head."""
    result, counts = counted(attention, *args)
    return result, counts.cells


def window_cases() -> list[tuple[list[int], int]]:
    rng = Random(4)
    mixed = [([rng.randint(1, 20) for _ in range(rng.randint(1, 6))], rng.choice((1, 2, 3, 7, 50))) for _ in range(12)]
    return [*SMALL_CASES, *mixed]


def long_row() -> list[int]:
    """The lengths of the row that is counted: most sequences are short, a few are long."""
    rng = Random(40)
    return [int(200 * rng.random() ** 2) + 1 for _ in range(40)]


def why_wrong(attention: Attention) -> str | None:
    """What is wrong with the outputs, on the smallest case; None if nothing is."""
    for seed, (lengths, window) in enumerate(window_cases()):
        q, k, v = row_of(lengths, seed)
        case = f"lengths {lengths}, window {window}: "
        try:
            with torch.inference_mode():
                given = q.clone(), k.clone(), v.clone()
                got = attention(*given, list(lengths), window)
        except Exception as error:
            return f"{case}it raised {type(error).__name__}: {error}"
        if not isinstance(got, torch.Tensor) or got.shape != q.shape:
            came = list(got.shape) if isinstance(got, torch.Tensor) else type(got).__name__
            return f"{case}it should return a tensor {list(q.shape)}; yours returned {came}."
        if not all(map(torch.equal, given, (q, k, v))):
            return f"{case}your code wrote into q, k or v."
        cells = visible_cells(lengths, window)
        want = scaled_dot_product_attention(q, k, v, attn_mask=cells)
        wrong = ~((got - want).abs() < 1e-3).all(dim=2).all(dim=0)  # NaN counts as wrong
        if wrong.any():
            return case + _first_wrong(got, (q, k, v), lengths, window, int(wrong.nonzero()[0]))
    return None


def _first_wrong(got, row, lengths: list[int], window: int, token: int) -> str:
    visible = visible_cells(lengths, window)[token].nonzero().flatten().tolist()
    seen = f"token {visible[0]}" if len(visible) == 1 else f"tokens {visible[0]} to {visible[-1]}"
    words = f"token {token} of the row should see {seen}."
    if got.isnan().any():
        return f"{words} Your output has NaN."
    for why, mask in (
        ("Yours sees everything before it in its sequence: no window.", visible_cells(lengths, sum(lengths) + 1)),
        ("Yours sees one position too many: the query's own position counts.", visible_cells(lengths, window + 1)),
        ("Yours also sees later tokens.", visible_cells(lengths, window, causal=False)),
        ("Yours also sees other sequences.", visible_cells(lengths, window, separate=False)),
    ):
        if torch.allclose(got, scaled_dot_product_attention(*row, attn_mask=mask), atol=1e-3):
            return f"{words} {why}"
    return f"{words} Your output for it is that of other keys or weights."


def window_scoreboard(attention: Attention) -> Table:
    """Score an attention function of (q, k, v, lengths, window)."""
    lengths = long_row()
    visible = sum(min(position + 1, WINDOW) for length in lengths for position in range(length))

    def count(way: Attention) -> CountScores:
        return counted(way, *row_of(lengths, seed=0), lengths, WINDOW)[1]

    def cells(counts: CountScores) -> list[str]:
        largest = f"{counts.largest_bytes / 2**20:.1f}"
        return [f"{counts.cells:,}", f"{visible / counts.cells:.0%}", f"{counts.operators:,}", largest]

    def yours() -> Scored:
        if (wrong := why_wrong(attention)) is not None:
            return ["–"] * 4, wrong
        counts = count(attention)
        if counts.cells < visible:
            return ["–"] * 4, "Your outputs are right, but the scoreboard can't see how your code multiplies."
        share = counts.cells / calls.cells
        return cells(counts), f"Yours computes {share:.2f} × the cells of one call for each sequence."

    calls = count(one_call_per_sequence)
    rows = {"one mask over the row": cells(count(one_mask)), "one call for each sequence": cells(calls), "yours": yours}
    columns = ["way", "score cells computed", "of these visible", "operators", "largest tensor, MiB"]
    told = f"{len(lengths)} sequences, {sum(lengths):,} tokens, window {WINDOW}; {visible:,} cells are visible"
    return scoreboard(columns, rows, told)
