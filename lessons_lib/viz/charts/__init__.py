"""Charts: bars, curves, rooflines."""

from lessons_lib.viz.charts.bars import draw_bars
from lessons_lib.viz.charts.curves import bar_chart, line_chart
from lessons_lib.viz.charts.program_grid import draw_programs
from lessons_lib.viz.charts.roofline import RooflinePoint, draw_roofline
from lessons_lib.viz.charts.tile_sweep import draw_sweep
from lessons_lib.viz.charts.token_bars import draw_token_bars

__all__ = [
    "RooflinePoint",
    "bar_chart",
    "draw_bars",
    "draw_programs",
    "draw_roofline",
    "draw_sweep",
    "draw_token_bars",
    "line_chart",
]
