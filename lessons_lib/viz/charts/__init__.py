"""Charts: bars, curves, rooflines."""

from lessons_lib.viz.charts.bars import draw_bars
from lessons_lib.viz.charts.curves import line_chart
from lessons_lib.viz.charts.roofline import RooflinePoint, draw_roofline
from lessons_lib.viz.charts.token_bars import draw_token_bars

__all__ = ["RooflinePoint", "draw_bars", "draw_roofline", "draw_token_bars", "line_chart"]
