"""Serving: a request across the processes, load, and a drain."""

from lessons_lib.viz.serving.drain import draw_drain
from lessons_lib.viz.serving.load import LoadPoint, draw_load
from lessons_lib.viz.serving.path import draw_path
