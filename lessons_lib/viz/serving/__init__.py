"""Serving: the load that a server can take."""

from lessons_lib.viz.serving.load import LoadPoint, draw_load

__all__ = ["LoadPoint", "draw_load"]
