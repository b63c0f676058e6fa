"""A dashboard for a running engine."""

from lessons_lib.viz.dashboard.live import Dashboard
from lessons_lib.viz.dashboard.picture import draw_dashboard

__all__ = ["Dashboard", "draw_dashboard"]
