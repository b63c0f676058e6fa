"""Tables that read well in a notebook, on paper and aloud."""

from lessons_lib.viz.tables.table import Table

__all__ = ["Table"]
