"""Lesson 02: record the work of every batch slot in each step of continuous batching."""

import time
from collections import Counter
from collections.abc import Callable

from lessons_lib.batching.continuous_batching import SlotBatch
from lessons_lib.batching.request import Request
from lessons_lib.recording.trace import RowWork, Step, Trace


class SlotRecorder:
    """Records what a loop over batch slots computes: it stands in for `batch.forward`.

    A step is one decode pass, if any request decodes, and the chunk after it. So a decode pass begins a step, and so
    does a chunk behind another one.
    """

    def __init__(self, batch: SlotBatch):
        self.batch, self.forward, self.trace = batch, batch.forward, Trace()
        self.stored: Counter[str] = Counter()  # tokens of each request whose keys and values are in the cache
        self._begin()

    def _begin(self) -> None:
        self.started = time.perf_counter()
        self.calls, self.is_full = 0, False
        self.computed, self.useful = Counter[int](), Counter[int]()
        self.owners: dict[int, tuple[Request, str]] = {}
        self.waiting: tuple[str, ...] = ()

    def __call__(self, slots: range, tokens: list[list[int]], positions: list[list[int]]) -> list[int]:
        running = self.batch.running
        decoding = [slot for slot in slots if slot in running and running[slot].output_ids]
        is_chunk = len(slots) == 1 and not decoding
        if self.is_full or (self.calls and not is_chunk):
            self.close()
        for slot, request in running.items():
            self.owners.setdefault(slot, (request, "decode" if request.output_ids else "prefill"))
        self.waiting = tuple(request.id for request in self.batch.waiting)
        self.calls, self.is_full = self.calls + 1, is_chunk
        for slot, new in zip(slots, tokens):
            self.computed[slot] += len(new)
            if slot in running and (is_chunk or slot in decoding):
                self.useful[slot] += len(new)
                self.stored[running[slot].id] += len(new)
        return self.forward(slots, tokens, positions)

    def close(self) -> None:
        if not self.calls:
            return
        rows = []
        for slot in range(self.batch.num_slots):
            request, phase = self.owners.get(slot, (None, "idle"))
            rows.append(RowWork(request and request.id, phase, self.computed[slot], self.useful[slot]))
        reserved = self.batch.num_slots * self.batch.cache.max_seq_len
        used = sum(self.stored[request.id] for request, _ in self.owners.values())
        seconds = time.perf_counter() - self.started
        self.trace.steps.append(Step(tuple(rows), seconds, self.waiting, self.calls, reserved, used))
        self._begin()


def recorded_serve(batch: SlotBatch, serve: Callable[[SlotBatch], None]) -> Trace:
    """Serve a batch, and record the steps."""
    recorder = SlotRecorder(batch)
    batch.forward = recorder  # type: ignore[method-assign]
    try:
        serve(batch)
    finally:
        del batch.forward
    recorder.close()
    return recorder.trace
