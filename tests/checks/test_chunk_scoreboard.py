"""The scoreboard of lesson 05's chunks counts what one counts with a pencil."""

from answers.lesson_05 import chunks_by

from lessons_lib.batching.ragged_batching import chunked_step, ragged_step
from lessons_lib.batching.request import Request
from lessons_lib.checks.lesson_05.scoreboard import chunk_scoreboard, count_run


def arrivals(*sizes):
    """Requests of (prompt length, answer length) that all arrive at the start."""
    return [(0, Request(f"R{n}", list(range(length)), limit)) for n, (length, limit) in enumerate(sizes)]


def test_what_is_counted():
    log = count_run(chunked_step, arrivals((2, 4), (70, 2)), limit=32)
    assert log.rows == [32, 32, 10, 2]  # 2 + 30, 1 + 31, 1 + 9, 1 + 1
    assert log.waits == [32, 74] and log.gaps == [32, 10, 2, 2]
    whole = count_run(ragged_step, arrivals((2, 4), (70, 2)), limit=None)
    assert whole.rows == [72, 2, 1, 1] and whole.waits == [72, 72]


def test_the_table():
    whole, chunks, yours = chunk_scoreboard(chunks_by(lambda rest: rest)).rows
    assert chunks[2:4] == yours[2:4] == [32, 32] < whole[2:4] and float(yours[4]) < float(chunks[4])
