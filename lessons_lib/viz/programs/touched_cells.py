"""What one program of a recorded kernel does with one tensor, counted per drawn cell."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lessons_lib.recording.kernel_accesses import KernelRecording, ProgramRun


@dataclass(frozen=True, eq=False)
class Touched:
    """The cells of a tensor that a program loads or stores. A cell is drawn as one box.

    Attributes:
        kind: "vector" or "matrix", where a cell is one element; "rows", where it is a whole last axis; "cache", where
            it is the elements of one KV head in one slot of a block.
        shape: cells along each axis; for a cache, (blocks, slots, KV heads).
        elements: elements of one cell.
        index: int [P, axes], the touched cells, in the order of the tensor.
        loaded, stored: int [P], how many distinct elements of each cell.
        times: int [P], how often the cell's most loaded element is loaded.
        inner: int [P, 2], the first and the last touched element of the cell.
        iterations: of a cache, "load" or "store" -> block -> which of the program's loads (stores) of this tensor touch
            it, from 1, blocks in the order in which they are touched first.
        astray: how many accessed elements are between those of the tensor, which then is a view of a larger one.
    """

    kind: str
    shape: tuple[int, ...]
    elements: int
    index: np.ndarray
    loaded: np.ndarray
    stored: np.ndarray
    times: np.ndarray
    inner: np.ndarray
    iterations: dict[str, dict[int, list[int]]]
    astray: int

    def same_as(self, other: Touched) -> bool:
        """Whether the same cells are accessed alike."""
        mine, theirs = ((each.kind, each.shape, each.runs, each.iterations, each.astray) for each in (self, other))
        return mine == theirs

    @cached_property
    def runs(self) -> list[Run]:
        """The touched cells, neighbors together, in the order of the tensor."""
        if not len(self.index):
            return []
        states = np.stack([self.loaded, self.stored, self.times, *self.inner.T], axis=1)
        same_row = (self.index[1:, :-1] == self.index[:-1, :-1]).all(axis=1)
        joined = same_row & (np.diff(self.index[:, -1]) == 1) & (states[1:] == states[:-1]).all(axis=1)
        starts = np.concatenate([[0], np.flatnonzero(~joined) + 1])
        lasts = np.concatenate([starts[1:], [len(states)]]) - 1
        firsts, ends = self.index[starts].tolist(), (self.index[lasts, -1] + 1).tolist()
        return [
            Run(tuple(row), start, end, *state)
            for (*row, start), end, state in zip(firsts, ends, states[starts].tolist())
        ]


@dataclass(frozen=True)
class Run:
    """Neighboring cells along the last axis, in one `row` of the others, that the program accesses alike.

    loaded, stored  elements of each cell; times: how often each of them is loaded at most
    first, last     the touched elements of each cell are between these
    """

    row: tuple[int, ...]
    start: int
    end: int
    loaded: int
    stored: int
    times: int
    first: int = 0
    last: int = 0


def touched(recording: KernelRecording, program: ProgramRun, name: str) -> Touched:
    """What `program` does with the tensor given as the parameter `name`."""
    layout = recording.tensors[name]
    kind, shape, axes = _cell_layout(name, layout.shape)
    elements = math.prod(layout.shape[axes:])
    order = np.array([math.prod(layout.shape[axis + 1 :]) for axis in range(len(layout.shape))], np.int64)
    counts: list[np.ndarray] = []  # loads, then stores of each element: int [*shape, elements]
    iterations: dict[str, dict[int, list[int]]] = {}
    astray = 0
    for what in ("load", "store"):
        accesses = [access.offsets for access in program.accesses if access.tensor == name and access.kind == what]
        offsets = np.concatenate([np.zeros(0, np.int64), *accesses]).astype(np.int64)
        iteration = np.repeat(np.arange(1, len(accesses) + 1), [len(own) for own in accesses])
        own = layout.has(offsets)
        astray += int((~own).sum())
        index = layout.indices_of(offsets[own])
        size = (*shape, max(elements, 1))
        counts.append(np.bincount(index @ order, minlength=math.prod(size)).reshape(size))
        iterations[what] = _iterations(index[:, 0], iteration[own]) if kind == "cache" else {}
    index = np.argwhere((counts[0] + counts[1]).any(axis=-1))
    loads, stores = (count[tuple(index.T)] for count in counts)
    used = loads + stores > 0
    inner = np.stack([used.argmax(axis=1), used.shape[1] - 1 - used[:, ::-1].argmax(axis=1)], axis=1)
    loaded, stored = (loads > 0).sum(axis=1), (stores > 0).sum(axis=1)
    return Touched(kind, shape, elements, index, loaded, stored, loads.max(axis=1), inner, iterations, astray)


def _cell_layout(name: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...], int]:
    """The cells' kind and shape, and how many axes of the tensor they span."""
    if "cache" in name and len(shape) == 4:
        return "cache", shape[:3], 3
    if "cache" in name and len(shape) == 3:
        return "cache", (*shape[:2], 1), 2
    if len(shape) < 2:
        return "vector", shape or (1,), len(shape)
    return ("matrix", shape, 2) if len(shape) == 2 else ("rows", shape[:-1], len(shape) - 1)


def _iterations(blocks: np.ndarray, iteration: np.ndarray) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    changes = np.flatnonzero((np.diff(blocks, prepend=-1) != 0) | (np.diff(iteration, prepend=-1) != 0))
    for block, number in dict.fromkeys(zip(blocks[changes].tolist(), iteration[changes].tolist())):
        found.setdefault(block, []).append(number)
    return found
