"""Tables that work in a notebook, in print and in a screen reader."""

from lessons_lib.viz.tables.steps import step_table
from lessons_lib.viz.tables.table import Table
