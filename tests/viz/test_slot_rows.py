"""What a slot cache holds after a step, read off a trace: the tenant's columns, and what earlier tenants left."""

import pytest

from lessons_lib.recording.trace import RowWork, Step, Trace
from lessons_lib.viz.batches.slot_rows import draw_slot_rows, slot_rows


def trace_of(*slots):
    """A trace from one list a slot: (request, useful tokens) in each step; None for an idle slot."""
    steps = []
    for works in zip(*slots):
        rows = [
            RowWork(None, "idle", 1, 0) if not work else RowWork(work[0], "decode", 1 + work[1], work[1])
            for work in works
        ]
        steps.append(Step(tuple(rows), seconds=0.0, waiting=(), forward_calls=1, cache_reserved=0, cache_used=0))
    return Trace(steps)


ONE_SLOT = trace_of([("A", 5), ("A", 1), ("B", 2), ("B", 3), ("B", 4), None])


@pytest.mark.parametrize(
    "trace, i, rows",
    [
        (ONE_SLOT, 0, [("A", 5, ())]),
        (ONE_SLOT, 1, [("A", 6, ())]),
        (ONE_SLOT, 2, [("B", 2, (("A", 6),))]),  # what is left of A is beyond B's tokens
        (ONE_SLOT, 3, [("B", 5, (("A", 6),))]),
        (ONE_SLOT, 4, [("B", 9, ())]),
        (ONE_SLOT, 5, [(None, 0, (("B", 9),))]),
        (trace_of([("A", 0), ("A", 0)]), 1, [("A", 0, ())]),  # computed for nothing
        (trace_of([("A", 3), ("B", 3)]), 1, [("B", 3, ())]),  # exactly as long: nothing is left
        (trace_of([("A", 9), ("B", 6), ("C", 7), ("D", 2)]), 3, [("D", 2, (("C", 7), ("A", 9)))]),  # B ends before C
        (trace_of([("A", 4), ("C", 1)], [("B", 7), ("B", 1)]), 1, [("C", 1, (("A", 4),)), ("B", 8, ())]),
    ],
)
def test_a_row_has_the_columns_of_its_request_and_then_what_others_left(trace, i, rows):
    assert [(row.request, row.used, row.left_over) for row in slot_rows(trace, i)] == rows


def test_the_picture_says_what_the_rows_hold():
    alt = draw_slot_rows(ONE_SLOT, 2, max_seq_len=16).alt
    assert "Slot 0: 2 columns of B, then what A left up to column 5" in alt and "2 of 16 columns in use" in alt
