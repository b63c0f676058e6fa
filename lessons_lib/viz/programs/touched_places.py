"""What one program of a recorded kernel does with one tensor, counted by the places that a picture draws."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lessons_lib.recording.kernel_accesses import KernelRecording, ProgramRun


@dataclass(frozen=True, eq=False)
class Touched:
    """The places of a tensor that a program loads or stores. A place is drawn as one cell.

    Attributes:
        kind: "vector" or "matrix", where a place is a number; "rows", where it is a whole last axis; "cache", where it is
            the numbers of one KV head in one slot of a block.
        shape: how many places there are along each axis; of a cache (blocks, slots, KV heads).
        numbers: of one place.
        index: int [P, axes], the places that are touched, in the order of the tensor.
        loaded, stored: int [P], how many different numbers of each place.
        times: int [P], how often that number of the place is loaded that is loaded most.
        inner: int [P, 2], the first and the last number of the place that is touched.
        loads, stores: how many numbers in all, the repeated ones too.
        turns: of a cache, "load" or "store" -> block -> which of the program's loads (stores) of this tensor touch it, from 1,
            blocks in the order in which they are touched first.
        astray: how many of the numbers lie between those of the tensor, which then is a view of a larger one.
    """

    kind: str
    shape: tuple[int, ...]
    numbers: int
    index: np.ndarray
    loaded: np.ndarray
    stored: np.ndarray
    times: np.ndarray
    inner: np.ndarray
    loads: int
    stores: int
    turns: dict[str, dict[int, list[int]]]
    astray: int

    def same_as(self, other: Touched) -> bool:
        arrays = ("index", "loaded", "stored", "times", "inner")
        plain = ("kind", "shape", "numbers", "loads", "stores", "turns", "astray")
        return all(getattr(self, name) == getattr(other, name) for name in plain) and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in arrays
        )

    @cached_property
    def runs(self) -> list[Run]:
        """The touched places, neighbours together, in the order of the tensor."""
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
    """Neighbouring places along the last axis of which the program does the same with each.

    Attributes:
        row: their index along the other axes.
        start, end: first place, and the one behind the last.
        loaded, stored: numbers of each place; times: how often each of them is loaded at most.
        first, last: of the numbers of each place, those that are touched lie between these.
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
    kind, shape, axes = _places(name, layout.shape)
    found: dict[str, tuple[np.ndarray, ...]] = {}
    turns: dict[str, dict[int, list[int]]] = {}
    totals, astray = {}, 0
    for what in ("load", "store"):
        accesses = [access.offsets for access in program.accesses if access.tensor == name and access.kind == what]
        offsets = np.concatenate([np.asarray(own, np.int64) for own in accesses]) if accesses else np.zeros(0, np.int64)
        turn = np.repeat(np.arange(1, len(accesses) + 1), [len(own) for own in accesses])
        own = layout.has(offsets)
        totals[what], astray = len(offsets), astray + int((~own).sum())
        offsets, turn = offsets[own], turn[own]
        index = layout.indices_of(offsets)
        place = _raveled(index[:, :axes], layout.shape[:axes])
        found[what] = _counted(offsets, place, _raveled(index[:, axes:], layout.shape[axes:]))
        turns[what] = _turns(index[:, 0], turn) if kind == "cache" else {}
    places = np.union1d(found["load"][0], found["store"][0])
    loaded, stored, times = (np.zeros(len(places), np.int64) for _ in range(3))
    own = np.searchsorted(places, found["load"][0])
    loaded[own], times[own] = found["load"][1:3]
    stored[np.searchsorted(places, found["store"][0])] = found["store"][1]
    inner = np.stack([np.full(len(places), np.iinfo(np.int64).max), np.full(len(places), -1)], axis=1)
    for what, (own, _, _, first, last) in found.items():
        own = np.searchsorted(places, own)
        inner[own, 0], inner[own, 1] = np.minimum(inner[own, 0], first), np.maximum(inner[own, 1], last)
    index = np.stack(np.unravel_index(places, shape), axis=1) if len(places) else np.zeros((0, len(shape)), np.int64)
    numbers = int(np.prod(layout.shape[axes:], dtype=np.int64)) if axes else 1
    return Touched(
        kind, shape, numbers, index, loaded, stored, times, inner, totals["load"], totals["store"], turns, astray
    )


def _places(name: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...], int]:
    """Kind and shape of the places, and how many axes of the tensor they go along."""
    if "cache" in name and len(shape) == 4:
        return "cache", shape[:3], 3
    if "cache" in name and len(shape) == 3:
        return "cache", (*shape[:2], 1), 2
    if len(shape) < 2:
        return "vector", shape or (1,), len(shape)
    return ("matrix", shape, 2) if len(shape) == 2 else ("rows", shape[:-1], len(shape) - 1)


def _raveled(index: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return np.ravel_multi_index(tuple(index.T), shape) if len(index) and shape else np.zeros(len(index), np.int64)


def _counted(offsets: np.ndarray, place: np.ndarray, inside: np.ndarray) -> tuple[np.ndarray, ...]:
    """Touched places; of each how many different numbers, how often the most touched one is touched, and its first and last number."""
    _, first, counts = np.unique(offsets, return_index=True, return_counts=True)
    places, where, numbers = np.unique(place[first], return_inverse=True, return_counts=True)
    where, inside = where.reshape(-1), inside[first]
    times, least, most = (
        np.zeros(len(places), np.int64),
        np.full(len(places), np.iinfo(np.int64).max),
        np.zeros(len(places), np.int64),
    )
    np.maximum.at(times, where, counts)
    np.minimum.at(least, where, inside)
    np.maximum.at(most, where, inside)
    return places, numbers, times, least, most


def _turns(blocks: np.ndarray, turn: np.ndarray) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    changes = np.flatnonzero((np.diff(blocks, prepend=-1) != 0) | (np.diff(turn, prepend=-1) != 0))
    for block, number in dict.fromkeys(zip(blocks[changes].tolist(), turn[changes].tolist())):
        found.setdefault(block, []).append(number)
    return found
