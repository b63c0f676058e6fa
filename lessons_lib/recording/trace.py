"""What a generation loop writes down while it runs: plain data, one `Step` for each turn of the loop.

The loops fill a `Trace`; pictures, metrics and the ledger read it. Nothing here knows about models or drawing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

PHASES = ("prefill", "decode", "finished", "idle")


@dataclass(frozen=True)
class RowWork:
    """What one row of the batch (one slot) did in one step.

    request   name of the request in this slot, or None
    phase     "prefill" or "decode": the request is at work;
              "finished": a row of a static wave whose request has ended; "idle": a slot without a request
    computed  token positions that the forward passes of this step computed for this row, padding included
    useful    those that a request needed; what is left over is waste
    """

    request: str | None
    phase: str
    computed: int
    useful: int

    def __post_init__(self) -> None:
        if self.phase not in PHASES:
            raise ValueError(f"phase is {self.phase!r}; it must be one of {', '.join(PHASES)}.")
        if not 0 <= self.useful <= self.computed:
            raise ValueError(
                f"useful is {self.useful} and computed is {self.computed}; "
                "useful must lie between 0 and computed: a row cannot use what was not computed."
            )

    @property
    def wasted(self) -> int:
        """Positions computed that no request needed."""
        return self.computed - self.useful


@dataclass(frozen=True)
class Step:
    """One turn of a generation loop: what every slot did, and what the turn cost.

    rows            one `RowWork` a slot, in the order of the slots
    seconds         wall time of the step
    waiting         names of the requests that queue, first in line first
    forward_calls   calls of the model in this step (0, 1 or more)
    cache_reserved  KV cache positions set aside, in tokens
    cache_used      those that hold a key and a value that is still needed, in tokens
    bytes_copied    bytes moved to rearrange the cache, beyond writing the new keys and values
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
    """All steps of one run, with its sums. An empty trace has sums of 0 and no waste."""

    steps: list[Step] = field(default_factory=list)

    @property
    def slots(self) -> int:
        """Rows of the widest step."""
        return max((len(step.rows) for step in self.steps), default=0)

    @property
    def requests(self) -> tuple[str, ...]:
        """Names of all requests, in the order in which the trace first mentions them."""
        seen: dict[str, None] = {}
        for step in self.steps:
            seen.update((row.request, None) for row in step.rows if row.request is not None)
            seen.update((name, None) for name in step.waiting)
        return tuple(seen)

    @property
    def tokens_computed(self) -> int:
        """Token positions that went through the model, padding and finished rows included."""
        return sum(step.tokens_computed for step in self.steps)

    @property
    def tokens_useful(self) -> int:
        """Token positions that went through the model and that a request needed."""
        return sum(step.tokens_useful for step in self.steps)

    @property
    def waste(self) -> float:
        """Share of the computed positions that nobody needed, 0 to 1."""
        return _missing_share(self.tokens_useful, self.tokens_computed)

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
    def cache_reserved(self) -> int:
        """Largest reservation of any step, in tokens."""
        return max((step.cache_reserved for step in self.steps), default=0)

    @property
    def cache_used(self) -> int:
        """Largest use in any step, in tokens."""
        return max((step.cache_used for step in self.steps), default=0)

    @property
    def cache_waste(self) -> float:
        """Share of the reserved cache that lay empty, averaged over the steps, 0 to 1."""
        return _missing_share(sum(s.cache_used for s in self.steps), sum(s.cache_reserved for s in self.steps))


def _missing_share(part: int, whole: int) -> float:
    return 1 - part / whole if whole else 0.0
