"""Programs of the decode kernel per processor: which batches are large enough to keep the GPU busy."""

import math
from collections.abc import Callable, Sequence

from lessons_lib.recording.words import count
from lessons_lib.viz.charts.figure import described, styled, write_note, write_title
from lessons_lib.viz.charts.heat_table import HeatCell, heat_table
from lessons_lib.viz.drawing.picture import Picture

_ENOUGH = 8  # programs per processor; above this, the color doesn't change
_DARKEST = 0.75


@styled
def draw_programs(
    batches: Sequence[int],
    contexts: Sequence[int],
    kv_heads: int,
    processors: int,
    splits: Callable[[int, int], int],
    title: str = "Programs for each processor",
) -> Picture:
    """Programs per processor of a decode, by batch and context; below 1, some processors are idle.

    kv_heads  one program each
    splits    (batch, context) -> into how many splits a sequence's keys are divided, one program each
    """
    cells, told = [], [f"{count(kv_heads, 'KV head')}, {processors} processors."]
    for batch in batches:
        cells.append([])
        for context in contexts:
            num_splits = splits(batch, context)
            each = batch * kv_heads * num_splits / processors
            words = f"{each:.2f}" if each < 1 else f"{each:.1f}" if each < 10 else f"{each:,.0f}"
            heat = _DARKEST * math.log(min(max(each, 1.0), _ENOUGH)) / math.log(_ENOUGH)
            cells[-1].append(HeatCell(f"{words}\n{count(num_splits, 'split')}", heat, hatched=each < 1))
            case = f"{count(batch, 'sequence')} of {context:,} tokens, {count(num_splits, 'split')}"
            told.append(f"{case}: {words} programs per processor.")
    legend = (
        (HeatCell("", 0.0, hatched=True), "fewer programs than processors"),
        (HeatCell("", 0.0), "1 for each processor"),
        (HeatCell("", _DARKEST), f"{_ENOUGH} and more"),
    )
    names = [f"{context:,}" for context in contexts], [f"{batch:,}" for batch in batches]
    fig = heat_table(*names, cells, "sequences ↓  context →", legend)
    write_title(fig, title)
    heads = count(kv_heads, "KV head")
    write_note(fig, f"programs = sequences × {heads} × splits; value: programs / {processors} processors")
    return Picture.from_figure(fig, described(title, told))
