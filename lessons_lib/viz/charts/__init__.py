"""Charts: bars, curves, distributions, rooflines."""

from lessons_lib.viz.charts.bars import draw_bars
from lessons_lib.viz.charts.curves import bar_chart, line_chart
from lessons_lib.viz.charts.distributions import draw_distributions
from lessons_lib.viz.charts.program_grid import draw_programs
from lessons_lib.viz.charts.roofline import RooflinePoint, draw_roofline
from lessons_lib.viz.charts.step_parts import draw_laps, draw_step_parts
from lessons_lib.viz.charts.tile_sweep import draw_sweep
from lessons_lib.viz.charts.token_bars import draw_token_bars
from lessons_lib.viz.charts.waits import draw_waits
