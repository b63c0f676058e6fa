"""A dashboard for a running engine."""

from lessons_lib.viz.dashboard.live import Dashboard
