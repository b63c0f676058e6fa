"""Lesson 02: record the work of every batch slot in a step of continuous batching."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from lessons_lib.batching.continuous_batching import SlotBatch
from lessons_lib.batching.request import Request, RequestState
from lessons_lib.recording.trace import RowWork, Step


@dataclass(frozen=True)
class SlotPass:
    """One forward pass over a `SlotBatch`.

    Attributes:
        slots: the batch slots computed.
        num_tokens: token positions computed for each slot.
        running: batch slot -> the request in it during the pass.
    """

    slots: range
    num_tokens: int
    running: dict[int, Request]


@contextmanager
def watch_slot_passes(batch: SlotBatch) -> Iterator[list[SlotPass]]:
    """Context manager that records the forward passes over a batch."""
    passes: list[SlotPass] = []

    def before(module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        layer: Any = batch.cache.layers[0]
        view = layer.view
        passes.append(SlotPass(range(view.rows.start, view.rows.stop), view.positions.shape[1], dict(batch.running)))

    hook = batch.model.register_forward_pre_hook(before)
    try:
        yield passes
    finally:
        hook.remove()


def record_slot_step(batch: SlotBatch, step: Callable[[SlotBatch], None]) -> Step:
    """Run one step and record the work of every batch slot."""
    known = [*batch.waiting, *batch.running.values()]
    before = {request.id: (request.num_computed_tokens, request.state) for request in known}
    with watch_slot_passes(batch) as passes:
        started = time.perf_counter()
        step(batch)
        seconds = time.perf_counter() - started
    # A request may have left its slot at the end of the step; the passes show its slot.
    occupants = {slot: request for done in passes for slot, request in done.running.items()} | batch.running
    rows = []
    for slot in range(batch.slots.num_slots):
        computed = sum(done.num_tokens for done in passes if slot in done.slots)
        request = occupants.get(slot)
        if request is None:
            rows.append(RowWork(None, "idle", computed, useful=0))
            continue
        computed_before, state_before = before[request.id]
        phase = "decode" if state_before is RequestState.DECODING else "prefill"
        rows.append(RowWork(request.id, phase, computed, useful=request.num_computed_tokens - computed_before))
    return Step(
        rows=tuple(rows),
        seconds=seconds,
        waiting=tuple(request.id for request in batch.waiting),
        forward_calls=len(passes),
        cache_reserved=batch.slots.num_slots * batch.cache.max_seq_len,
        cache_used=sum(request.num_computed_tokens for request in occupants.values()),
    )
