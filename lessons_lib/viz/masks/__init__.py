"""Attention masks as grids, to look at and to play with."""

from lessons_lib.viz.masks.explorer import MaskExplorer
from lessons_lib.viz.masks.grid import draw_mask
from lessons_lib.viz.masks.rule_layers import watch_rules
