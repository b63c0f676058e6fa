"""What the exercises on a running batch share: a small batch, its requests, and a record of its forward passes."""

from collections import deque
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from random import Random

from lessons_lib.batching.continuous_batching import SlotBatch
from lessons_lib.batching.greedy import greedy_with_cache
from lessons_lib.batching.request import Request, RequestState
from lessons_lib.batching.slot_cache import SlotCache
from lessons_lib.batching.slots import SlotManager
from lessons_lib.models.tiny_models import VOCAB_SIZE, tiny_model


@dataclass(frozen=True)
class SeenPass:
    """What one forward pass was given."""

    tokens: list[list[int]]
    positions: list[list[int]]
    slots: list[int]
    num_keys: int
    running: list[str]


@contextmanager
def watch_slot_passes(batch: SlotBatch):
    """Records the forward passes over a batch, however they are made."""
    seen: list[SeenPass] = []

    def before(module, args, kwargs) -> None:
        view = batch.cache.layers[0].view
        tokens = args[0] if args else kwargs["input_ids"]
        positions = kwargs.get("position_ids")
        positions = view.positions if positions is None else positions
        slots = list(range(view.rows.start, view.rows.stop))
        running = [getattr(request, "id", str(request)) for request in batch.running.values()]
        seen.append(SeenPass(tokens.tolist(), positions.tolist(), slots, view.num_keys, running))

    hook = batch.model.register_forward_pre_hook(before, with_kwargs=True)
    try:
        yield seen
    finally:
        hook.remove()


class StepCounter:
    """Counts how often a loop calls the step that it is given: `step=StepCounter(step).run`."""

    def __init__(self, step: Callable):
        self.step = step
        self.count = 0

    def run(self, batch) -> None:
        self.count += 1
        self.step(batch)


def make_batch(waiting=(), running=None, num_slots: int = 1, prefill_step: int = 4) -> SlotBatch:
    """A batch on a tiny model. Requests in `running` (slot -> request) get those slots."""
    model = tiny_model("qwen2")
    batch = SlotBatch(model, SlotCache(model, num_slots, 48), SlotManager(num_slots), prefill_step, deque(waiting))
    for slot, request in (running or {}).items():
        batch.slots.free.remove(slot)
        batch.slots.slot_of[request.id] = slot
        batch.running[slot] = request
        request.move_to(RequestState.PREFILLING)
    return batch


def a_request(name: str, prompt_length: int, max_tokens: int = 3) -> Request:
    rng = Random(ord(name))
    return Request(name, [rng.randrange(VOCAB_SIZE) for _ in range(prompt_length)], max_tokens)


@cache
def answer_alone(prompt: tuple[int, ...], max_tokens: int) -> list[int]:
    return greedy_with_cache(tiny_model("qwen2"), list(prompt), max_tokens)
