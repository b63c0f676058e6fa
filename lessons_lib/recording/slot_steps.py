"""Lesson 02: record the work of every batch slot in a step of continuous batching."""

import time
from collections.abc import Callable
from typing import Any

from lessons_lib.batching.continuous_batching import SlotBatch
from lessons_lib.batching.request import Request, RequestState
from lessons_lib.recording.forward_passes import before_each_pass
from lessons_lib.recording.trace import RowWork, Step


def record_slot_step(batch: SlotBatch, step: Callable[[SlotBatch], None]) -> Step:
    """Run one step and record the work of every batch slot."""
    known = [*batch.waiting, *batch.running.values()]
    before = {request.id: (request.num_computed_tokens, request.state) for request in known}
    passes: list[tuple[range, int, dict[int, Request]]] = []  # slots computed, positions of each, requests in them

    def note() -> None:
        layer: Any = batch.cache.layers[0]
        rows, positions = layer.view.rows, layer.view.positions
        passes.append((range(rows.start, rows.stop), positions.shape[1], dict(batch.running)))

    with before_each_pass(batch.model, note):
        started = time.perf_counter()
        step(batch)
        seconds = time.perf_counter() - started
    # A request may have left its slot at the end of the step; the passes show its slot.
    occupants = {slot: request for _, _, running in passes for slot, request in running.items()} | batch.running
    rows = []
    for slot in range(batch.slots.num_slots):
        computed = sum(num_tokens for slots, num_tokens, _ in passes if slot in slots)
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
