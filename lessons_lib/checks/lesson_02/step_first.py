"""Judges 02.5, `step`: the first step, which admits a request and computes its prompt."""

from contextlib import contextmanager

from lessons_lib.batching.continuous_batching import SlotBatch
from lessons_lib.batching.request import Request, RequestState
from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.lesson_02.batch import a_request, make_batch
from lessons_lib.checks.lesson_02.step_runs import run_step


def check_first_step(attempt) -> None:
    case = "one slot, prefill_step 4; A is waiting with a prompt of 3 tokens; the first step."
    request = a_request("A", 3)
    batch = make_batch([request], num_slots=1)
    with _watch_prefilling(batch) as found_waiting:
        run_step(attempt, batch, case)
    if not batch.running:
        raise Mistake(
            "a slot is free and A is waiting, so A should have the slot after this step. It doesn't.",
            case=case,
            idea="While a request is waiting and a slot is free, take the first request of `batch.waiting` and acquire "
            "a slot for it.",
        )
    if len(request.output_ids) > 1:
        _name_loop_around_step(attempt)
        raise Mistake(
            f"A should have 1 token after the first step; it has {len(request.output_ids)}.",
            case=case,
            idea="You seem to decode after the chunk, so a request whose prompt was just completed gets two tokens in "
            "one step. Decode first, then compute the chunk.",
        )
    if not request.output_ids:
        computed = request.num_computed_tokens
        run_step(attempt, batch, case)
        if request.num_computed_tokens > computed and found_waiting:
            raise Mistake(
                "A had its slot when `prefill_chunk` looked for a prompt in the first step, but its state was still "
                "waiting, so its chunk was computed only in the second.",
                case=case,
                idea="`prefill_chunk` looks for requests that are PREFILLING. Move a request to that state when you "
                "admit it, before you compute.",
            )
        if request.num_computed_tokens > computed:
            raise Mistake(
                "A has its slot after the first step, but its chunk was computed only in the second.",
                case=case,
                idea="A request can get its first chunk in the step that admits it, so admit before you compute.",
            )
        raise Mistake(
            f"A's whole prompt fits in one chunk, so A should have its first token. It has none, and "
            f"{request.num_computed_tokens} of its 3 prompt tokens are computed.",
            case=case,
            idea="End the step with `prefill_chunk(batch)`. A request can get its first chunk in the step that admits "
            "it.",
        )


@contextmanager
def _watch_prefilling(batch: SlotBatch):
    """Records the requests that have a slot, but are waiting, when the prefilling ones are looked for."""
    found_waiting: list[str] = []
    slots_in = batch.slots_in

    def watched(state: RequestState) -> list[int]:
        if state is RequestState.PREFILLING:
            requests = [request for request in batch.running.values() if isinstance(request, Request)]
            found_waiting.extend(request.id for request in requests if request.state is RequestState.WAITING)
        return slots_in(state)

    batch.slots_in = watched
    try:
        yield found_waiting
    finally:
        del batch.slots_in


def _name_loop_around_step(attempt) -> None:
    """Raise if one call computes a whole answer."""
    case = "one slot, prefill_step 4; A (max_new_tokens 9) is waiting with a prompt of 3 tokens; the first step."
    request = a_request("A", 3, max_tokens=9)
    run_step(attempt, make_batch([request], num_slots=1), case)
    if request.state is RequestState.FINISHED:
        raise Mistake(
            "A should have 1 token after the first step; it has all 9 of its tokens, and has finished.",
            case=case,
            idea="You seem to go on until no work is left. One call is one step: whatever calls `step` repeats it, and "
            "new requests may arrive in between.",
        )
