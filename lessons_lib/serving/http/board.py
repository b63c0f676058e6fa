"""Lesson 14: numbers that several API processes have in common. A scrape or a balancer asks whichever process gets its
connection, and means the whole server.

The board is a piece of shared memory with a row of numbers for each process. A process writes only into its own row, so
no lock is needed, and every process adds up all rows. (Apache calls this a scoreboard; prometheus_client's multiprocess
mode does the same with a file for each process and metric, but only for metrics that are its own objects.)
"""

import mmap
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from lessons_lib.serving.admission import AdmissionControl
from lessons_lib.serving.http.observability import BackgroundLog

STATUSES = 600  # an HTTP status is below it
MAX_PATHS = 64
REQUESTS, PROMPT_TOKENS, REFUSED, DROPPED = range(4)  # the first columns; then the answers, by path and status
FIRST_ANSWER = 4
NUM_COLUMNS = FIRST_ANSWER + MAX_PATHS * STATUSES


class Board:
    """
    Attributes:
        rows: (processes, NUM_COLUMNS), int64.
        file_descriptor: of the shared memory, for other processes.
    """

    def __init__(self, num_rows: int, file_descriptor: int | None = None):
        """
        Args:
            file_descriptor: of a board of that many rows; a new one is made if not given.
        """
        size = num_rows * NUM_COLUMNS * 8
        if file_descriptor is None:
            with tempfile.TemporaryFile() as file:
                file.truncate(size)  # zeros, which take no space before they are written
                file_descriptor = os.dup(file.fileno())
        self.file_descriptor = file_descriptor
        self.rows = np.frombuffer(mmap.mmap(file_descriptor, size), np.int64).reshape(num_rows, NUM_COLUMNS)

    def total(self, column: int) -> int:
        """Of all processes."""
        return int(self.rows[:, column].sum())

    def forget(self, index: int) -> None:
        """A process has died, and what it had in flight with it. What it has counted stays."""
        self.rows[index, [REQUESTS, PROMPT_TOKENS]] = 0


class Cell:
    """An attribute that lives in the `row` of its object, where other processes can read it."""

    def __init__(self, column: int):
        self.column = column

    def __get__(self, owner: Any, kind: type[Any] | None = None) -> int:
        return int(owner.row[self.column])

    def __set__(self, owner: Any, value: int) -> None:
        owner.row[self.column] = value


class AdmissionOnBoard(AdmissionControl):
    """One process's AdmissionControl, with its numbers on the board."""

    num_requests = Cell(REQUESTS)
    num_prompt_tokens = Cell(PROMPT_TOKENS)
    num_refused = Cell(REFUSED)

    def __init__(self, row: np.ndarray, max_requests: int | None, max_prompt_tokens: int | None):
        self.row = row
        super().__init__(max_requests, max_prompt_tokens)


class LogOnBoard(BackgroundLog):
    """One process's log, with its lost lines on the board."""

    num_dropped = Cell(DROPPED)

    def __init__(self, row: np.ndarray):
        self.row = row
        super().__init__()


class AnswersOnBoard:
    """What `ServerMetrics.answers` is, on the board: (path, status) -> how many answers. An item is this process's;
    `items` adds up all processes."""

    def __init__(self, board: Board, row: np.ndarray, known_paths: frozenset[str]):
        self.board, self.row = board, row
        self.paths = ["other", *sorted(known_paths)]
        assert len(self.paths) <= MAX_PATHS

    def __getitem__(self, key: tuple[str, int]) -> int:
        return int(self.row[self._column(*key)])

    def __setitem__(self, key: tuple[str, int], count: int) -> None:
        self.row[self._column(*key)] = count

    def items(self) -> Iterator[tuple[tuple[str, int], int]]:
        """Of all processes, those that aren't 0."""
        totals = self.board.rows[:, FIRST_ANSWER:].sum(axis=0)
        for column in totals.nonzero()[0].tolist():
            path, status = divmod(column, STATUSES)
            yield (self.paths[path], status), int(totals[column])

    def _column(self, path: str, status: int) -> int:
        return FIRST_ANSWER + self.paths.index(path) * STATUSES + status


class WholeServer:
    """What the AdmissionControl and the log of a server with one process say, of all processes together.

    Attributes:
        max_requests, max_prompt_tokens: the sums of the processes' shares.
    """

    def __init__(self, board: Board, row: np.ndarray, max_requests: int, max_prompt_tokens: int):
        self.board, self.row, self.max_requests, self.max_prompt_tokens = board, row, max_requests, max_prompt_tokens

    def answers(self, known_paths: frozenset[str]) -> AnswersOnBoard:
        """
        Args:
            known_paths: the same in all processes.
        """
        return AnswersOnBoard(self.board, self.row, known_paths)

    num_requests = property(lambda self: self.board.total(REQUESTS))
    num_prompt_tokens = property(lambda self: self.board.total(PROMPT_TOKENS))
    num_refused = property(lambda self: self.board.total(REFUSED))
    num_dropped = property(lambda self: self.board.total(DROPPED))
