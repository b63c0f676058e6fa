"""A softmax computed block by block."""

from lessons_lib.viz.softmax.blocks import draw_softmax_step

__all__ = ["draw_softmax_step"]
