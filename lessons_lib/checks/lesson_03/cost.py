"""Judges the cost of the pool of 03.1: moving one block must not iterate over either container."""

import tracemalloc
from collections import deque

from lessons_lib.checks.exercise import Mistake, call


class _WatchedQueue(deque):
    """Counts the blocks that are looked at on the way to the one that is wanted."""

    looked_at = 0

    def __iter__(self):
        for block in super().__iter__():
            self.looked_at += 1
            yield block

    def __contains__(self, block) -> bool:
        return any(other == block for other in self)

    def _look_at_all(self):
        self.looked_at += len(self)

    def index(self, *args):
        self._look_at_all()
        return super().index(*args)

    def count(self, block):
        self._look_at_all()
        return super().count(block)

    def remove(self, block):
        self._look_at_all()
        super().remove(block)

    def copy(self):
        self._look_at_all()
        return deque(super().__iter__())

    __copy__ = copy


def _whole(name: str):
    """The set's own method, which iterates over all of it."""
    own = getattr(set, name)

    def method(self, *args):
        self.looked_at += len(self)
        return own(self, *args)

    return method


class _WatchedSet(set):
    """Counts the blocks that are looked at, to find one or to build another set."""

    looked_at = 0

    def __iter__(self):
        for block in super().__iter__():
            self.looked_at += 1
            yield block


for _name in (
    "copy",
    "__sub__",
    "__or__",
    "__ror__",
    "__xor__",
    "__rxor__",
    "difference",
    "union",
    "symmetric_difference",
):
    setattr(_WatchedSet, _name, _whole(_name))


def check_cost(attempt) -> None:
    """With 500 free blocks and 500 used ones, neither method gets slower. Counted, not timed."""
    for method, doing in (("allocate", "`allocate(1)`"), ("free", "`free([0])`")):
        pool = attempt(1000, 16)
        call(pool.allocate, 500, case="pool = BlockPool(1000, 16); `allocate(500)`.")
        case = f"pool = BlockPool(1000, 16) with 500 blocks allocated; {doing}."
        queue = used = None  # containers other than the given ones are not watched
        if type(pool.free_queue) is deque:
            queue = pool.free_queue = _WatchedQueue(pool.free_queue)
        if type(pool.used) is set:
            used = pool.used = _WatchedSet(pool.used)
        if method == "allocate":
            call(pool.allocate, 1, case=case)
            whole_queue = search = (
                "`popleft()` takes the first block without looking at the rest. Don't copy or slice the queue."
            )
        else:
            call(pool.free, [0], case=case)
            whole_queue = "Don't build another queue: `extend` adds at the end of the existing one."
            search = "To see whether a block is allocated, look in `used`: a set finds it without a search."
        if queue is not None:
            rebuilt = pool.free_queue is not queue
            _refuse_walk(
                rebuilt or queue.looked_at > 10,
                doing,
                "`free_queue`, 499 or 500 blocks",
                whole_queue if rebuilt else search,
            )
        if used is not None:
            rebuilt = pool.used is not used
            idea = "Use `block in self.used`: a set finds a block without a search. Don't make a list or a copy of it."
            if rebuilt:
                idea = (
                    "Don't build another set: `update` and `difference_update` change the existing one, block by block."
                )
            _refuse_walk(rebuilt or used.looked_at > 10, doing, "`used`, 500 blocks", idea)
    _check_all_ids(attempt)


class _AskedSet(set):
    """Counts the blocks that are looked up."""

    lookups = 0

    def __contains__(self, block) -> bool:
        self.lookups += 1
        return super().__contains__(block)


def _check_all_ids(attempt) -> None:
    """Refuse an answer that goes over the ids of all blocks, allocated or not: in a set of them, or one by one."""
    size = 100_000
    for method, doing in (("allocate", "`allocate(1)`"), ("free", "`free([0])`")):
        pool = attempt(size, 16)
        call(pool.allocate, 1, case=f"pool = BlockPool({size}, 16); `allocate(1)`.")
        case = f"pool = BlockPool({size}, 16) with 1 block allocated; {doing}."
        if type(pool.used) is not set:
            continue
        used = pool.used = _AskedSet(pool.used)
        memory = _memory_of(pool.allocate, 1, case) if method == "allocate" else _memory_of(pool.free, [0], case)
        if memory > 8 * size or used.lookups > 100:  # a list or a set of all ids takes 8 bytes for each, or more
            raise Mistake(
                f"your pool is correct but slow: {doing} goes over the ids of all {size:,} blocks, to move one.",
                case=case,
                idea="`len(self.free_queue)` is the number of free blocks, and `used` knows which are allocated: "
                "neither needs `range(self.num_blocks)`. The time must not depend on the size of the pool.",
            )


def _memory_of(method, argument, case: str) -> int:
    """The bytes that the call had in use at most, beyond those from before."""
    is_tracing = tracemalloc.is_tracing()
    if not is_tracing:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        call(method, argument, case=case)
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        if not is_tracing:
            tracemalloc.stop()


def _refuse_walk(walked: bool, doing: str, what: str, idea: str) -> None:
    if walked:
        raise Mistake(
            f"your pool is correct but slow: {doing} iterates over {what}, to move one.",
            case=f"pool = BlockPool(1000, 16) with 500 blocks allocated; {doing}.",
            idea=idea + " The time must not depend on the size of the pool.",
        )
