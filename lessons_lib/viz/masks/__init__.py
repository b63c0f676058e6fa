"""Attention masks as grids."""

from lessons_lib.viz.masks.grid import draw_mask
from lessons_lib.viz.masks.rule_layers import watch_rules
