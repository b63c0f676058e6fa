"""Lesson 12: the batch slots of an engine's last steps, and the current owners of the pool's blocks."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lessons_lib.scheduling.sequence import Sequence

if TYPE_CHECKING:
    from lessons_lib.engine.core import InFlightStep
    from lessons_lib.engine.llm_engine import LLMEngine
    from lessons_lib.engine.request import Request

PREFILL, DECODE, STALLED = "prefill", "decode", "stalled"


@dataclass(frozen=True)
class Lane:
    """A sequence in a batch slot in one step: PREFILL if prompt tokens were computed, STALLED if none, else DECODE."""

    name: str
    work: str


@dataclass(frozen=True)
class PoolUse:
    """The blocks of a pool: which sequences use each block, and free ones that prefix matching can still find."""

    num_blocks: int
    owners: dict[int, tuple[str, ...]]
    cached: frozenset[int]


class LaneRecorder:
    """Observer of an engine: `engine.core.observers.append(LaneRecorder(engine))`.

    A sequence keeps its lane while it runs; a new one takes the first free lane. Requests that are admitted and
    finished within one step are not recorded. `steps`: the lanes of each of the last steps; None: an empty lane.
    """

    def __init__(self, engine: LLMEngine, most_steps: int = 60):
        self.engine = engine
        self.steps: deque[tuple[Lane | None, ...]] = deque(maxlen=most_steps)
        self._lanes: list[Sequence | None] = []
        self._computed: dict[Sequence, int] = {}
        self._note_new()

    def __call__(self, step: InFlightStep, requests: list[Request]) -> None:
        running = set(self.engine.scheduler.running)
        # Other missing sequences were preempted or aborted, or their step failed.
        self._lanes = [each if each in running or _has_finished(each) else None for each in self._lanes]
        self._note_new()
        self.steps.append(tuple(self._lane(each, running) if each else None for each in self._lanes))
        self._lanes = [each if each in running else None for each in self._lanes]
        self._computed = {each: each.num_computed_tokens for each in running}

    def _note_new(self) -> None:
        for sequence in self.engine.scheduler.running:
            if sequence not in self._lanes:
                free = next((lane for lane, there in enumerate(self._lanes) if there is None), len(self._lanes))
                self._lanes[free : free + 1] = [sequence]

    def _lane(self, sequence: Sequence, running: set[Sequence]) -> Lane:
        before = self._computed.get(sequence, 0)
        if sequence in running and sequence.num_computed_tokens == before:
            return Lane(sequence.id, STALLED)
        return Lane(sequence.id, PREFILL if before < len(sequence.prompt_ids) else DECODE)


def _has_finished(sequence: Sequence | None) -> bool:
    return sequence is not None and sequence.finish_reason in ("stop", "length")


def pool_use(engine: LLMEngine) -> PoolUse:
    """Return the current use of the pool's blocks."""
    pool = engine.scheduler.pool
    owners: dict[int, tuple[str, ...]] = {}
    for sequence in (*engine.scheduler.running, *engine.scheduler.leaving, *engine.scheduler.waiting):
        for block in sequence.blocks:
            owners[block] = (*owners.get(block, ()), sequence.id)
    cached = frozenset(block for block in pool.block_to_hash if block not in owners)
    return PoolUse(pool.num_blocks, owners, cached)
