"""Attention masks as grids, to look at and to play with."""

from lessons_lib.viz.masks.explorer import MaskExplorer
from lessons_lib.viz.masks.grid import draw_mask

__all__ = ["MaskExplorer", "draw_mask"]
