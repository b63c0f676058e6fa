"""Runs one step of an answer to 02.5: slots and running requests must agree after it."""

from contextlib import contextmanager

from lessons_lib.batching.continuous_batching import SlotBatch
from lessons_lib.batching.request import Request, RequestState
from lessons_lib.batching.slots import NoFreeSlot
from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_02.batch import SeenPass, watch_slot_passes


def run_step(attempt, batch: SlotBatch, case: str) -> list[SeenPass]:
    """One step; afterwards slots and running requests must agree."""
    with watch_slot_passes(batch) as seen, _watch_ids(batch, case):
        try:
            call(attempt, batch, case=case)
        except NoFreeSlot:
            running = {request.id for request in batch.running.values() if isinstance(request, Request)}
            left = [name for name in batch.slots.slot_of if name not in running]
            raise Mistake(
                "no slot is free, but your code called `acquire`, which raised NoFreeSlot.",
                case=case,
                idea=f"{left[0]} isn't in `batch.running`, but still has its slot: `batch.slots.release(request.id)`."
                if left
                else "Admit while a request is waiting *and* `batch.slots.free` isn't empty.",
            ) from None
        except ValueError:
            _name_still_waiting(batch, case)
            raise
        except (RuntimeError, TypeError, AttributeError, LookupError) as error:
            _name_changed_dict(error, case)
            _name_empty_queue(error, batch, case)
            _check_running_kind(batch, case)
            raise
    _check_running_kind(batch, case)
    running = {request.id: slot for slot, request in batch.running.items()}
    if dict(batch.slots.slot_of) != running:
        raise Mistake(
            f"`batch.running` has the slots {running}, but the slot manager has {batch.slots.slot_of}.",
            case=case,
            idea="Change both together. To admit: `acquire`, and add the request to `batch.running`. To release: "
            "`release`, and remove it from `batch.running`.",
        )
    for request in batch.running.values():
        if request.state is RequestState.WAITING:
            raise Mistake(
                f"{request.id} has slot {running[request.id]}, but its state is still waiting.",
                case=case,
                idea="A request that gets a slot starts to prefill: `request.move_to(RequestState.PREFILLING)`. "
                "Otherwise it is never computed.",
            )
    return seen


@contextmanager
def _watch_ids(batch: SlotBatch, case: str):
    """Catches a slot or a whole request passed to the slot manager, which takes request ids."""
    manager = batch.slots
    acquire, release = manager.acquire, manager.release

    def check_id(method: str, value) -> None:
        if not isinstance(value, str):
            got = f"the request {value.id} itself" if isinstance(value, Request) else f"{short(value)}"
            what = f"`{method}` takes the request's id, a string such as 'A'; yours passed {got}."
            raise Mistake(
                what,
                case=case,
                idea=f"The slot manager finds a slot by its request's id: `batch.slots.{method}(request.id)`.",
            )

    def watched_acquire(request_id):
        check_id("acquire", request_id)
        return acquire(request_id)

    def watched_release(request_id):
        check_id("release", request_id)
        return release(request_id)

    manager.acquire, manager.release = watched_acquire, watched_release
    try:
        yield
    finally:
        del manager.acquire, manager.release


def _name_changed_dict(error: Exception, case: str) -> None:
    if "changed size during iteration" in str(error):
        raise Mistake(
            "your code removes entries from `batch.running` while a loop goes over it, and Python stops that.",
            case=case,
            idea="Go over a list instead: `batch.slots_in(RequestState.FINISHED)` is one.",
        ) from None


def _name_still_waiting(batch: SlotBatch, case: str) -> None:
    for request in batch.waiting:
        if request.id in batch.slots.slot_of:
            raise Mistake(
                f"{request.id} has a slot, but it is still in `batch.waiting`, so your code asked for a second one.",
                case=case,
                idea="An admitted request must leave the queue: `batch.waiting.popleft()` returns it and removes it, "
                "`batch.waiting[0]` only reads it.",
            ) from None


def _name_empty_queue(error: Exception, batch: SlotBatch, case: str) -> None:
    if not batch.waiting and "empty deque" in str(error):
        raise Mistake(
            "no request is waiting, but your code takes one from `batch.waiting`.",
            case=case,
            idea="Admit while a slot is free *and* `batch.waiting` isn't empty.",
        ) from None


def _check_running_kind(batch: SlotBatch, case: str) -> None:
    """`batch.running` maps slots to requests."""
    for key, value in batch.running.items():
        if not isinstance(key, int) or not isinstance(value, Request):
            raise Mistake(
                f"`batch.running` maps each slot to its request, such as 0 → A; yours maps {_kind(key)} to "
                f"{_kind(value)}.",
                case=case,
                idea="`slot = batch.slots.acquire(request.id)`, then `batch.running[slot] = request`.",
            )


def _kind(value) -> str:
    return f"the request {value.id}" if isinstance(value, Request) else f"{type(value).__name__} {short(value)}"
