"""Judges the cost of the pool of 03.1: moving one block must not iterate over either container."""

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
    for method in ("allocate", "free"):
        pool = attempt(1000, 16)
        call(pool.allocate, 500, case="")
        queue = used = None  # containers other than the given ones are not watched
        if type(pool.free_queue) is deque:
            queue = pool.free_queue = _WatchedQueue(pool.free_queue)
        if type(pool.used) is set:
            used = pool.used = _WatchedSet(pool.used)
        if method == "allocate":
            call(pool.allocate, 1, case="")
            whole_queue = search = (
                "`popleft()` takes the first block without looking at the rest. Don't copy or slice the queue."
            )
        else:
            call(pool.free, [0], case="")
            whole_queue = "Don't build another queue: `extend` adds at the end of the existing one."
            search = "To see whether a block is allocated, look in `used`: a set finds it without a search."
        doing = "`allocate(1)`" if method == "allocate" else "`free([0])`"
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


def _refuse_walk(walked: bool, doing: str, what: str, idea: str) -> None:
    if walked:
        raise Mistake(
            f"your pool is correct but slow: {doing} iterates over {what}, to move one.",
            case=f"pool = BlockPool(1000, 16) with 500 blocks allocated; {doing}.",
            idea=idea + " The time must not depend on the size of the pool.",
        )
