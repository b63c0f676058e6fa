"""Lesson 05: one step of a packed batch as plain data, for pictures."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lessons_lib.attention.packing import PackedBatch, copied_tokens
from lessons_lib.batching.ragged_batching import RaggedBatch
from lessons_lib.batching.request import RequestState
from lessons_lib.models.configuration import cache_bytes_per_token
from lessons_lib.recording.forward_passes import watch_forwards
from lessons_lib.recording.trace import RowWork, Step, Trace


@dataclass(frozen=True)
class PackedStep:
    """One step, after its forward pass.

    Attributes:
        names: the requests of the packed batch, in order.
        packed: the packed batch.
        new_tokens: the new token of each request.
        joined: requests in their first step, with their whole prompts.
        left: requests that finished in this step.
        waiting: the queue after the step.
        admitted: requests admitted after the forward pass; their prompts are in the next packed batch.
    """

    names: tuple[str, ...]
    packed: PackedBatch
    new_tokens: tuple[int, ...]
    joined: tuple[str, ...]
    left: tuple[str, ...]
    waiting: tuple[str, ...]
    admitted: tuple[str, ...] = ()


class PackedStepRecorder:
    """Records each step of a `RaggedBatch`, in `steps`, and in `trace` in the form of the earlier lessons."""

    def __init__(self, step: Callable[[Any], None]):
        self.step = step
        self.trace = Trace()
        self.steps: list[PackedStep] = []
        # A packed batch has no batch slots, but the trace does: a request keeps its slot until it leaves.
        self._slots: list[str | None] = []

    def __call__(self, batch: RaggedBatch) -> None:
        requests = list(batch.running)
        prefilling = {request.id for request in requests if request.state is RequestState.PREFILLING}
        answered = {request.id: len(request.output_ids) for request in requests}
        with watch_forwards(batch.model) as forwards, _watch_joined_passes(batch) as joined_passes:
            started = time.perf_counter()
            self.step(batch)
            seconds = time.perf_counter() - started
        if not forwards or batch.packed is None:
            return  # nothing was computed; the loop will raise
        done = PackedStep(
            names=tuple(request.id for request in requests),
            packed=batch.packed,
            new_tokens=tuple(token for request in requests for token in request.output_ids[answered[request.id] :]),
            joined=tuple(request.id for request in requests if request.id in prefilling),
            left=tuple(request.id for request in requests if request.state is RequestState.FINISHED),
            waiting=tuple(request.id for request in batch.waiting),
            admitted=tuple(request.id for request in batch.running if request not in requests),
        )
        self.steps.append(done)
        self._assign_slots(done.names, batch.max_num_seqs)
        new = dict(zip(done.names, done.packed.new_lens))
        phases = dict.fromkeys(done.names, "decode") | dict.fromkeys(prefilling, "prefill")
        rows = tuple(
            RowWork(name, phases.get(name, "idle"), new.get(name, 0), new.get(name, 0)) for name in self._slots
        )
        # Without joined caches, only the model copies: a DynamicCache grows by copying its tokens into a larger tensor.
        copied = copied_tokens(done.packed) if joined_passes else sum(forward.cached for forward in forwards)
        cached = sum(request.num_computed_tokens for request in requests)
        bytes_copied = copied * cache_bytes_per_token(batch.model.config, batch.model.dtype.itemsize)
        self.trace.steps.append(Step(rows, seconds, done.waiting, len(forwards), cached, cached, bytes_copied))

    def _assign_slots(self, present: tuple[str, ...], max_num_seqs: int) -> None:
        self._slots = [name if name in present else None for name in self._slots or [None] * max_num_seqs]
        for name in present:
            if name not in self._slots:
                self._slots[self._slots.index(None)] = name


@contextmanager
def _watch_joined_passes(batch: RaggedBatch) -> Iterator[list[PackedBatch]]:
    """Record the forward passes over joined caches; `loop_forward` and paged batches make none."""
    packed_forward, passes = batch.packed_forward, []

    def watched(model: Any, packed: PackedBatch, cache: Any) -> Any:
        passes.append(packed)
        return packed_forward(model, packed, cache)

    batch.packed_forward = watched
    try:
        yield passes
    finally:
        batch.packed_forward = packed_forward
