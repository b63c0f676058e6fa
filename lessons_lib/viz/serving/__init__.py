"""Serving: a request's way through a server, and the load that it can take."""

from lessons_lib.viz.serving.endings import draw_endings
from lessons_lib.viz.serving.load import LoadPoint, draw_load
from lessons_lib.viz.serving.mailboxes import draw_server, watch_server

__all__ = ["LoadPoint", "draw_endings", "draw_load", "draw_server", "watch_server"]
