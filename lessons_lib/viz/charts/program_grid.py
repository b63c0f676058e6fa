"""Programs of the decode kernel per processor: which batches are large enough to keep the GPU busy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from lessons_lib.viz.drawing.palette import SOFT_INK
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import Drawing
from lessons_lib.viz.tables.heat_table import HeatCell, draw_heat_cell, draw_heat_table

_LEFT = 166
_ENOUGH = 8  # programs per processor; above this, the color doesn't change
_DARKEST = 0.75


def draw_programs(
    batches: Sequence[int],
    contexts: Sequence[int],
    kv_heads: int,
    processors: int,
    splits: Callable[[int, int], int],
    title: str = "",
) -> Picture:
    """A table of programs per processor, one row per batch and one column per context; below 1, some processors are
    idle.

    Args:
        batches: sequences with one new token each; contexts: tokens of each of them.
        kv_heads: one program each.
        processors: of the GPU.
        splits: (batch, context) -> into how many splits a sequence's keys are divided, one program each.

    Raises:
        ValueError: there is no batch, context or processor, or `splits` gave less than 1.
    """
    if not batches or not contexts or processors < 1:
        raise ValueError(
            f"{len(batches)} batches, {len(contexts)} contexts and {processors} processors; at least one of each is "
            "needed."
        )
    counts = {
        (batch, context): _programs(batch, context, kv_heads, splits) for batch in batches for context in contexts
    }
    title = title or "Programs for each processor"
    cells = [
        [_cell(batch, context, kv_heads, processors, *counts[batch, context]) for context in contexts]
        for batch in batches
    ]
    d = Drawing()
    d.text(16, 20, title, 15, bold=True)
    y = draw_heat_table(
        d, 44, _LEFT, [f"{c:,}" for c in contexts], [f"{b:,}" for b in batches], cells, "sequences ↓   context →"
    )
    d.height = _legend(d, y + 8, kv_heads, processors)
    return d.picture(_describe(title, counts, kv_heads, processors))


def _programs(batch: int, context: int, kv_heads: int, splits: Callable[[int, int], int]) -> tuple[int, int]:
    num_splits = splits(batch, context)
    if num_splits < 1:
        raise ValueError(f"splits({batch}, {context}) is {num_splits}; a sequence has 1 or more.")
    return num_splits, batch * kv_heads * num_splits


def _cell(batch: int, context: int, kv_heads: int, processors: int, num_splits: int, programs: int) -> HeatCell:
    each = programs / processors
    title = (
        f"{_count(batch, 'sequence')} of {context:,} tokens: {batch:,} × {_count(kv_heads, 'KV head')} × "
        f"{_count(num_splits, 'split')} = "
        f"{_count(programs, 'program')} for {processors} processors, {_short(each)} each"
    )
    title += f"; {_count(processors - programs, 'processor')} without work" if programs < processors else ""
    heat = math.log(min(max(each, 1.0), _ENOUGH)) / math.log(_ENOUGH)
    return HeatCell(_short(each), _DARKEST * heat, title, _count(num_splits, "split"), hatched=programs < processors)


def _short(each: float) -> str:
    return f"{each:.2f}" if each < 1 else f"{each:.1f}" if each < 10 else f"{each:,.0f}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def _legend(d: Drawing, y: float, kv_heads: int, processors: int) -> float:
    d.text(
        16,
        y + 8,
        f"programs = sequences × {_count(kv_heads, 'KV head')} × splits; the value is programs / {processors} "
        "processors",
        12,
        fill=SOFT_INK,
    )
    x = 16.0
    for heat, hatched, words in (
        (0.0, True, "fewer programs than processors"),
        (0.0, False, "1 for each processor"),
        (_DARKEST, False, f"{_ENOUGH} and more for each processor"),
    ):
        draw_heat_cell(d, x, y + 24, 22, 18, HeatCell("", heat, "", hatched=hatched))
        d.text(x + 30, y + 33, words, 12, fill=SOFT_INK)
        x += 56 + 6.2 * len(words)
    return y + 54


def _describe(title: str, counts: dict[tuple[int, int], tuple[int, int]], kv_heads: int, processors: int) -> str:
    told = [
        f"{_count(batch, 'sequence')} of {context:,} tokens, {_count(num_splits, 'split')}: "
        f"{_count(programs, 'program')}, {_short(programs / processors)} per processor"
        + (f", {processors - programs} without work." if programs < processors else ".")
        for (batch, context), (num_splits, programs) in counts.items()
    ]
    return f"{title}. {_count(kv_heads, 'KV head')}, {processors} processors. " + " ".join(told)
