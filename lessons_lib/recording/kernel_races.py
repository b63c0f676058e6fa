"""Lesson 07: find races in a kernel: accesses in undefined order on a GPU. The interpreter runs one program after
another and a whole tile at a time, so its results may be right by luck.

Programs run in any order, many at a time. Within a program, each element of a tile belongs to one thread: accesses of
one thread keep their order, those of two threads only with `tl.debug_barrier()` in between.
"""

import linecache
from dataclasses import dataclass
from types import CodeType

import numpy as np

READ, WRITE, UPDATE = 0, 1, 2
KINDS = {"load": READ, "store": WRITE, "update": UPDATE}  # atomic operations update
VERBS = ("loads", "stores", "updates")


@dataclass(frozen=True)
class RacingAccess:
    """One of two racing accesses: program ids; "loads", "stores", or "updates" for an atomic operation; source line."""

    ids: tuple[int, ...]
    verb: str
    line: str


@dataclass(frozen=True)
class Race:
    """Two unordered accesses of one element, in the interpreter's order, at least one of which changes it.

    `number`: offset of the element in the tensor; the smallest with such a pair.
    """

    tensor: str
    number: int
    first: RacingAccess
    second: RacingAccess

    @property
    def is_within(self) -> bool:
        """True if one program makes both."""
        return self.first.ids == self.second.ids

    def __str__(self) -> str:
        element = f"element {self.number:,} of `{self.tensor}`"
        ours, theirs = (f"program {ids[0] if len(ids) == 1 else ids}" for ids in (self.first.ids, self.second.ids))
        if self.first is self.second:
            return f"{ours} {self.first.verb} several values to {element} at once, from several places of a tile"
        if self.is_within:
            what = f"{ours} {self.first.verb} {element} in one place of a tile and {self.second.verb} it in another"
            return f"{what}, with no `tl.debug_barrier()` in between"
        return f"{ours} {self.first.verb} {element}, and {theirs} {self.second.verb} it too"

    @property
    def lines(self) -> str:
        """The source lines of both; "" if unknown."""
        lines = list(dict.fromkeys(f"`{each.line}`" for each in (self.first, self.second) if each.line))
        return f"In your line{'s' * (len(lines) > 1)} {' and '.join(lines)}." if lines else ""


@dataclass(frozen=True)
class _Event:
    ids: tuple[int, ...]
    program: int
    phase: int  # counted over all programs; each barrier begins a new one
    kind: int
    is_scalar: bool
    orders: bool
    tensor: str
    place: tuple[CodeType, int] | None

    @property
    def access(self) -> RacingAccess:
        line = linecache.getline(self.place[0].co_filename, self.place[1]).strip() if self.place else ""
        return RacingAccess(self.ids, VERBS[self.kind], line)


class AccessOrder:
    """The accesses of one launch, in the interpreter's order."""

    def __init__(self) -> None:
        self.events: list[_Event] = []
        self.elements: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # of each event: addresses, offsets, lanes
        self.programs: dict[tuple[int, ...], int] = {}
        self.phases: dict[tuple[int, ...], int] = {}
        self.shapes: dict[tuple[int, ...], int] = {}
        self.num_phases = 0

    def barrier(self, ids: tuple[int, ...]) -> None:
        """Begin a new phase: all threads of a program have reached this point."""
        self.num_phases += 1
        self.phases[ids] = self.num_phases

    def note(
        self, ids: tuple[int, ...], kind: str, tensor: str, elements: tuple[np.ndarray, np.ndarray, np.ndarray],
        shape: tuple[int, ...], orders: bool, place: tuple[CodeType, int] | None,
    ) -> None:  # fmt: skip
        """Note one access.

        Args:
            elements: addresses in memory, offsets in the tensor, and indices in the flattened tile.
            shape: shape of the tile.
            orders: True for atomic operations that aren't "relaxed": they make earlier accesses visible.
        """
        if ids not in self.phases:
            self.barrier(ids)
        program = self.programs.setdefault(ids, len(self.programs))
        event = _Event(ids, program, self.phases[ids], KINDS[kind], not shape, orders, tensor, place)
        self.events.append(event)
        addresses, offsets, lanes = elements
        self.elements.append((addresses, offsets, lanes + (self.shapes.setdefault(shape, len(self.shapes)) << 40)))

    def race(self) -> Race | None:
        """Find the race at the smallest offset of the tensor that was accessed first; None if there is none."""
        changes = [addresses for event, (addresses, _, _) in zip(self.events, self.elements) if event.kind != READ]
        if not changes:
            return None
        number = np.repeat(np.arange(len(self.events)), [len(addresses) for addresses, _, _ in self.elements])
        address, offset, lane = map(np.concatenate, zip(*self.elements))
        changed = np.isin(address, np.unique(np.concatenate(changes)))
        number, address, offset, lane = (values[changed] for values in (number, address, offset, lane))
        names = list(dict.fromkeys(event.tensor for event in self.events))
        facts = [(event.program, event.phase, event.kind, names.index(event.tensor)) for event in self.events]
        program, phase, kind, tensor = np.array(facts)[number].T
        suspects = _suspects((address,), program, kind) | _suspects((phase, address), lane, kind)
        rows = np.flatnonzero(suspects)
        rows = rows[np.argsort(address[rows], kind="stable")]
        groups = np.split(rows, np.flatnonzero(np.diff(address[rows])) + 1) if rows.size else []
        for own in sorted(groups, key=lambda rows: min(zip(tensor[rows], offset[rows]))):
            if pair := self._pair(number[own].tolist(), lane[own].tolist()):
                access = {each: self.events[each].access for each in pair}
                return Race(self.events[pair[0]].tensor, int(offset[own[0]]), access[pair[0]], access[pair[1]])
        return None

    def _pair(self, numbers: list[int], lanes: list[int]) -> tuple[int, int] | None:
        """Find two racing events among those at one address; None if there are none."""
        for one, number in enumerate(numbers):
            if self.events[number].kind == READ:
                continue
            for other in range(len(numbers)):
                first, second = sorted((one, other))
                if one != other and self._races(numbers[first], numbers[second], lanes[first] == lanes[second]):
                    return numbers[first], numbers[second]
        return None

    def _races(self, first: int, second: int, is_same_lane: bool) -> bool:
        one, other = self.events[first], self.events[second]
        if one.kind == other.kind != WRITE:
            return False
        if one.program == other.program:
            return one.phase == other.phase and not is_same_lane
        return not self._ordered(first, second)

    def _ordered(self, first: int, second: int) -> bool:
        """True if atomic operations order an event before another program's: a release after the first, with all
        threads at a barrier, and an acquire at the same address before the second."""
        one, other = self.events[first], self.events[second]
        released = {
            address
            for number, event in enumerate(self.events)
            if event.orders and event.program == one.program and number >= first
            if number == first or event.phase > one.phase or (event.is_scalar and one.is_scalar)
            for address in self.elements[number][0].tolist()
        }
        return any(
            event.orders
            and event.program == other.program
            and not released.isdisjoint(self.elements[number][0].tolist())
            for number, event in enumerate(self.events[: second + 1])
        )


def _suspects(keys: tuple[np.ndarray, ...], who: np.ndarray, kind: np.ndarray) -> np.ndarray:
    """Mark accesses with equal keys by several programs, or lanes, of which one changes the element non-atomically."""
    order = np.lexsort(keys)
    is_new = np.any([np.diff(key[order], prepend=key[order][:1] - 1) != 0 for key in keys], axis=0)
    starts = np.flatnonzero(is_new)
    who, kind = who[order], kind[order]
    several = np.minimum.reduceat(who, starts) != np.maximum.reduceat(who, starts)
    changed = (np.maximum.reduceat(kind, starts) != READ) & (np.minimum.reduceat(kind, starts) != UPDATE)
    marked = np.empty(len(order), bool)
    marked[order] = (several & changed)[np.cumsum(is_new) - 1]
    return marked


def once(addresses: np.ndarray, values: np.ndarray, lanes: np.ndarray) -> np.ndarray | slice:
    """Select the elements of a store, dropping repeated stores of the same value to one address."""
    _, first, of_address = np.unique(addresses, return_index=True, return_inverse=True)
    if len(first) == len(addresses):
        return slice(None)
    stored = values.reshape(-1)[lanes if values.size > 1 else np.zeros_like(lanes)]
    return np.flatnonzero((stored != stored[first][of_address]) | (np.arange(len(lanes)) == first[of_address]))
