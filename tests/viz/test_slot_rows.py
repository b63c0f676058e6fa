"""What a slot cache holds after a step, read off a trace: the tenant's columns, and what earlier tenants left."""

from lessons_lib.recording.trace import RowWork, Step, Trace
from lessons_lib.viz.batches.slot_rows import draw_slot_rows, slot_rows


def trace_of(*slots):
    """A trace from one list a slot: (request, useful tokens) in each step; None for an idle slot."""
    steps = []
    for works in zip(*slots):
        rows = [
            RowWork(None, "idle", 1, 0) if work is None else RowWork(work[0], "decode", 1 + work[1], work[1])
            for work in works
        ]
        steps.append(Step(tuple(rows), seconds=0.0, waiting=(), forward_calls=1, cache_reserved=0, cache_used=0))
    return Trace(steps)


ONE_SLOT = trace_of([("A", 5), ("A", 1), ("B", 2), ("B", 3), ("B", 4), None])


def rows_of(trace, i):
    return [(row.request, row.used, row.left_over) for row in slot_rows(trace, i)]


def test_a_request_uses_the_columns_it_has_written_so_far():
    assert rows_of(ONE_SLOT, 0) == [("A", 5, ())]
    assert rows_of(ONE_SLOT, 1) == [("A", 6, ())]


def test_what_was_computed_for_nobody_takes_no_column():
    assert rows_of(trace_of([("A", 0), ("A", 0)]), 1) == [("A", 0, ())]


def test_the_end_of_an_earlier_request_lies_beyond_the_new_one():
    assert rows_of(ONE_SLOT, 2) == [("B", 2, (("A", 6),))]
    assert rows_of(ONE_SLOT, 3) == [("B", 5, (("A", 6),))]


def test_it_is_gone_when_the_new_one_has_grown_past_it():
    assert rows_of(ONE_SLOT, 4) == [("B", 9, ())]
    assert rows_of(trace_of([("A", 3), ("B", 3)]), 1) == [("B", 3, ())]  # exactly as long: nothing is left


def test_an_empty_slot_keeps_what_was_left():
    assert rows_of(ONE_SLOT, 5) == [(None, 0, (("B", 9),))]


def test_several_earlier_requests_lie_one_behind_the_other():
    trace = trace_of([("A", 9), ("B", 6), ("C", 7), ("D", 2)])
    assert rows_of(trace, 3) == [("D", 2, (("C", 7), ("A", 9)))]  # B ends before C does


def test_slots_keep_their_own_books():
    trace = trace_of([("A", 4), ("C", 1)], [("B", 7), ("B", 1)])
    assert rows_of(trace, 1) == [("C", 1, (("A", 4),)), ("B", 8, ())]


def test_the_picture_says_what_the_rows_hold():
    alt = draw_slot_rows(ONE_SLOT, 2, max_seq_len=16).alt
    assert "Slot 0: 2 columns of B, then what A left up to column 5." in alt
    assert "2 of 16 columns in use" in alt
