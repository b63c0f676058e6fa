"""The pool under memory pressure, step by step."""

from lessons_lib.viz.pressure.steps import draw_pressure

__all__ = ["draw_pressure"]
