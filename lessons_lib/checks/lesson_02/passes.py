"""What can be seen of the loop of 02.2: its passes, in words, and the answers."""

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from lessons_lib.batching.continuous_batching import SlotBatch
from lessons_lib.batching.request import Request
from lessons_lib.batching.slot_cache import SlotCache
from lessons_lib.checks.diagnosis import Watch
from lessons_lib.checks.diagnosis.own_passes import own_passes
from lessons_lib.models.tiny_models import VOCAB_SIZE, tiny_model

Asked = tuple[str, int, int]  # a request's name, the length of its prompt, its limit


class Case(NamedTuple):
    num_slots: int
    prefill_step: int
    asked: list[Asked]
    end: int | None = None
    late: tuple[tuple[int, Asked], ...] = ()  # the pass in which a further request arrives


DECODE = "a token for "


class TooManyPasses(RuntimeError):
    pass


def run(attempt: Any, case: Case, watch: Watch) -> None:
    model = tiny_model("qwen2")
    late = [(number, request_of(asked, case)) for number, asked in case.late]
    requests = [request_of(asked, case) for asked in case.asked]
    batch = SlotBatch(model, SlotCache(model, case.num_slots, 64), case.prefill_step, deque(requests))
    compute, passes = remembered(batch, case), []
    most = 6 + len(watch.wanted[0].seen["the passes"]) if watch.wanted else 100

    def forward(slots: range, tokens: list[list[int]], positions: list[list[int]]) -> list[int]:
        free = len(batch.running) < batch.num_slots and batch.waiting
        words = told(batch, slots, tokens, positions)
        is_filled = not free or (passes and not words.startswith(DECODE))
        passes.append(words if is_filled else f"{words}, while a slot is free and a request waits")
        if len(passes) > most:
            raise TooManyPasses(f"stopped after {most} passes: {most - 6} are enough")
        batch.waiting.extend(request for number, request in late if number == len(passes))
        return compute(slots, in_vocabulary(tokens), positions)

    batch.forward = forward  # type: ignore[method-assign]
    all_requests = [*requests, *(request for _, request in late)]

    def look() -> dict[str, Any]:
        return {
            "the passes": passes,
            "the answers": {request.id: [int(token) for token in request.output_ids] for request in all_requests},
            "batch.running": [request.id for request in batch.running.values()],
            "batch.waiting": [request.id for request in batch.waiting],
        }

    with own_passes(model):
        watch("`serve(batch)`", attempt, batch, look=look, returns=lambda got: None)


def in_vocabulary(tokens: Any) -> Any:
    """Dummy tokens may be any of the real model's; the vocabulary of this one is small."""
    try:
        return [[token % VOCAB_SIZE for token in row] for row in tokens]
    except TypeError:
        return tokens


KNOWN: dict[tuple[str, ...], list[int]] = {}  # the case and all passes so far -> what the last one returned


def remembered(batch: SlotBatch, case: Case) -> Callable[[range, list[list[int]], list[list[int]]], list[int]]:
    """`batch.forward`, which computes nothing that the same passes have computed before: many answers begin alike."""
    compute, history, due = batch.forward, [repr(case)], []

    def forward(*inputs: Any) -> list[int]:
        history.append(repr(inputs))
        due.append(inputs)
        if tuple(history) not in KNOWN:
            while due:
                result = compute(*due.pop(0))
            KNOWN[tuple(history)] = result
        return KNOWN[tuple(history)][:]

    return forward


def request_of(asked: Asked, case: Case) -> Request:
    name, length, limit = asked
    draw = Random(ord(name))
    return Request(name, [draw.randrange(VOCAB_SIZE) for _ in range(length)], limit, case.end)


def told(batch: SlotBatch, slots: range, tokens: list[list[int]], positions: list[list[int]]) -> str:
    """A pass in words: whose tokens it computes. Which slots it uses, and its dummy tokens, are free."""
    rows = list(zip(slots, tokens, positions))
    empty = [slot for slot, _, _ in rows if slot not in batch.running]
    decoding = [
        (batch.running[slot], *row) for slot, *row in rows if slot not in empty and batch.running[slot].output_ids
    ]
    if decoding:
        words = DECODE + ", ".join(sorted(request.id + fed(request, *row) for request, *row in decoding))
        if len(rows) < batch.num_slots:
            words += f", in slots {list(slots)} of {batch.num_slots}"
        outside = [slot for slot, _, places in rows if min(places) < 0]
        return words + (f", position {rows[outside[0] - slots[0]][2]} in slot {outside[0]}" if outside else "")
    if len(rows) != 1 or empty:
        return f"no request's token: `batch.running` has none that decodes in slots {list(slots)}"
    (slot, chunk, places) = rows[0]
    request = batch.running[slot]
    is_its = chunk == [request.prompt_ids[place] for place in places if place < len(request.prompt_ids)]
    what = "tokens" if is_its else "other tokens than those"
    return f"{request.id}'s prompt, {len(chunk)} {what} from position {places[0] if places else 0}"


def fed(request: Request, tokens: list[int], positions: list[int]) -> str:
    """What is wrong with the input of a decoding request, in words; "" if nothing is."""
    place = len(request.prompt_ids) + len(request.output_ids) - 1
    if tokens != request.output_ids[-1:]:
        return f" after {tokens} instead of its newest, {request.output_ids[-1:]}"
    return "" if positions == [place] else f" at position {positions} instead of {[place]}"


def tell(case: Case) -> str:
    def words(asked: Asked) -> str:
        return f"{asked[0]} ({asked[1]} prompt tokens, limit {asked[2]})"

    end = "" if case.end is None else f", end token {case.end}"
    late = "".join(f"; during pass {number}, {words(asked)} arrives" for number, asked in case.late)
    slots = f"{case.num_slots} slot{'s' * (case.num_slots > 1)}"
    return f"{slots}, prefill_step {case.prefill_step}{end}; {', '.join(map(words, case.asked))} wait{late}."
