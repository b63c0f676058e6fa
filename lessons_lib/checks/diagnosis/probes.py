"""Probes that several exercises share: how often a collaborator is called, and what an answer costs."""

import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from functools import cache, wraps
from typing import Any


@cache
def counting(kind: type, *methods: str) -> type:
    """A subclass whose objects count in `calls` how often these methods are called."""

    def counted(name: str) -> Callable[..., Any]:
        original = getattr(kind, name)

        @wraps(original)
        def method(self: Any, *args: Any, **named: Any) -> Any:
            self.calls[name] += 1
            return original(self, *args, **named)

        return method

    def new(cls: type, *_: Any, **__: Any) -> Any:
        made = kind.__new__(cls)
        made.calls = Counter()
        return made

    return type(kind.__name__, (kind,), {"__new__": new, **{name: counted(name) for name in methods}})


class Compared(int):
    """An int that counts how often one like it is compared: a search in a list or deque, or sorting, shows in it."""

    count = 0

    def __eq__(self, other: object) -> bool:
        Compared.count += 1
        return int(self) == other

    def __lt__(self, other: int) -> bool:
        Compared.count += 1
        return int(self) < int(other)

    __hash__ = int.__hash__


def work(*calls: Callable[[], Any]) -> dict[str, int]:
    """What a call costs, as the least of several: memory in bytes, instructions of Python, comparisons of `Compared`.
    Counted, not timed."""
    costs = []
    for call in calls:
        Compared.count = 0
        executed, used = instructions(call)
        costs.append({"memory": used, "instructions": executed, "comparisons": Compared.count})
    return {name: min(cost[name] for cost in costs) for name in costs[0]}


def grows(few: dict[str, int], many: dict[str, int], by: int) -> list[str]:
    """Which costs grow by more than this, from few elements to many."""
    return [name for name in few if many[name] - few[name] > (4 if name == "memory" else 0.5) * by]


def instructions(function: Callable[..., Any], *args: Any) -> tuple[int, int]:
    """How many instructions of Python a call executes, and how many bytes it holds at most: they tell a loop from an
    operation on a whole tensor."""
    executed = 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal executed
        frame.f_trace_opcodes = True
        executed += event in ("opcode", "line")
        return trace

    before, is_tracing = sys.gettrace(), tracemalloc.is_tracing()
    if not is_tracing:
        tracemalloc.start()
    tracemalloc.reset_peak()
    start = tracemalloc.get_traced_memory()[0]
    sys.settrace(trace)
    try:
        function(*args)
    finally:
        sys.settrace(before)
        peak = tracemalloc.get_traced_memory()[1] - start
        if not is_tracing:
            tracemalloc.stop()
    return executed, peak
