"""The trace of a serving loop as plain data: one `Step` for each step of the loop.

Recorders fill a `Trace`; pictures, metrics and the ledger read it. Nothing here depends on models or drawing.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class RowWork:
    """The work of one batch slot in one step.

    Attributes:
        request: name of the request in this slot, or None.
        phase: "prefill" or "decode": the request is being computed; "finished": the row of a static wave whose request
            has finished; "idle": a slot without a request.
        computed: token positions that the forward passes of this step computed for this row, padding included.
        useful: computed positions that a request needed; the rest is waste.
    """

    request: str | None
    phase: str
    computed: int
    useful: int

    @property
    def wasted(self) -> int:
        return self.computed - self.useful


@dataclass(frozen=True)
class Step:
    """One step of a serving loop: the work of every batch slot, and the step's cost.

    Attributes:
        rows: one `RowWork` per batch slot, in the order of the slots.
        seconds: wall time of the step.
        waiting: names of the waiting requests, in the order of the queue.
        forward_calls: calls of the model in this step (0, 1 or more).
        cache_reserved: reserved KV cache slots, in tokens.
        cache_used: slots with a key and value still needed, in tokens.
        bytes_copied: bytes copied to rearrange the cache, beyond writing the new keys and values.
    """

    rows: tuple[RowWork, ...]
    seconds: float
    waiting: tuple[str, ...]
    forward_calls: int
    cache_reserved: int
    cache_used: int
    bytes_copied: int = 0

    @property
    def tokens_computed(self) -> int:
        return sum(row.computed for row in self.rows)

    @property
    def tokens_useful(self) -> int:
        return sum(row.useful for row in self.rows)


@dataclass
class Trace:
    """All steps of one run, and their sums. An empty trace has sums of 0 and no waste."""

    steps: list[Step] = field(default_factory=list)

    @property
    def slots(self) -> int:
        """Batch slots of the widest step."""
        return max((len(step.rows) for step in self.steps), default=0)

    @property
    def requests(self) -> tuple[str, ...]:
        """Names of all requests, in order of first appearance."""
        seen: dict[str, None] = {}
        for step in self.steps:
            seen.update((row.request, None) for row in step.rows if row.request is not None)
            seen.update((name, None) for name in step.waiting)
        return tuple(seen)

    @property
    def tokens_computed(self) -> int:
        return sum(step.tokens_computed for step in self.steps)

    @property
    def tokens_useful(self) -> int:
        return sum(step.tokens_useful for step in self.steps)

    @property
    def forward_calls(self) -> int:
        return sum(step.forward_calls for step in self.steps)

    @property
    def seconds(self) -> float:
        return sum(step.seconds for step in self.steps)

    @property
    def bytes_copied(self) -> int:
        return sum(step.bytes_copied for step in self.steps)

    @property
    def cache_waste(self) -> float:
        """Share of the reserved cache that was empty, averaged over the steps, 0 to 1."""
        reserved = sum(step.cache_reserved for step in self.steps)
        return 1 - sum(step.cache_used for step in self.steps) / reserved if reserved else 0.0


def tokens_held(trace: Trace) -> list[dict[str, int]]:
    """For every step: request -> its tokens in the cache after it, from admission until its memory is freed."""
    held: list[dict[str, int]] = []
    total: dict[str, int] = {}
    for step in trace.steps:
        for row in step.rows:
            if row.request is not None:
                total[row.request] = total.get(row.request, 0) + row.useful
        present = [row.request for row in step.rows if row.request is not None and row.phase != "finished"]
        held.append({name: total[name] for name in present})
    return held
