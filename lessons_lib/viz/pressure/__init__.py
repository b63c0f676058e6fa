"""The pool under memory pressure, step by step, and its free queue, event by event."""

from lessons_lib.viz.pressure.queue_rows import draw_free_queue
from lessons_lib.viz.pressure.steps import draw_pressure
