"""Judges 02.5, `step`: release, admit, decode, one chunk, in this order, in every step."""

from contextlib import contextmanager
from random import Random
from types import SimpleNamespace

from lessons_lib.batching.continuous_batching import SlotBatch, batch_generate, step
from lessons_lib.batching.request import Request, RequestState
from lessons_lib.batching.slots import NoFreeSlot
from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_02.batch import (
    SeenPass,
    StepCounter,
    a_request,
    answer_alone,
    make_batch,
    watch_slot_passes,
)
from lessons_lib.models.tiny_models import VOCAB_SIZE, tiny_model
from lessons_lib.viz.words import marked

_ORDER_OF_ADMISSION = (
    "`batch.running` keeps the order of admission, and `prefill_chunk` serves the first prefilling request in it. Add "
    "new requests at its end; don't sort it by slot."
)


def check_step(attempt) -> None:
    _check_first_step(attempt)
    _check_all_slots_filled(attempt)
    _check_order_of_queue(attempt)
    _check_slot_is_refilled(attempt)
    _check_slot_is_released(attempt)
    _check_short_queue(attempt)
    _check_chunk_beside_decode(attempt)
    _check_no_barrier(attempt)
    _check_order_of_admission(attempt)
    _check_two_leave(attempt)
    _check_late_arrival(attempt)
    _check_one_chunk_one_token(attempt)
    _check_end_token(attempt)
    _check_answers(attempt)


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


def _run_step(attempt, batch: SlotBatch, case: str) -> list[SeenPass]:
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


def _check_first_step(attempt) -> None:
    case = "one slot, prefill_step 4; A is waiting with a prompt of 3 tokens; the first step."
    request = a_request("A", 3)
    batch = make_batch([request], num_slots=1)
    with _watch_prefilling(batch) as found_waiting:
        _run_step(attempt, batch, case)
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
        _run_step(attempt, batch, case)
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
    _run_step(attempt, make_batch([request], num_slots=1), case)
    if request.state is RequestState.FINISHED:
        raise Mistake(
            "A should have 1 token after the first step; it has all 9 of its tokens, and has finished.",
            case=case,
            idea="You seem to go on until no work is left. One call is one step: whatever calls `step` repeats it, and "
            "new requests may arrive in between.",
        )


def _check_all_slots_filled(attempt) -> None:
    case = "three slots; A, B, C, D and E are waiting, in this order; the first step."
    batch = make_batch([a_request(name, 3) for name in "ABCDE"], num_slots=3)
    _run_step(attempt, batch, case)
    admitted = [request.id for request in batch.running.values()]
    if len(admitted) < 3:
        raise Mistake(
            f"three slots are free, so A, B and C should be admitted; yours admitted {', '.join(admitted) or 'none'}.",
            case=case,
            idea="You seem to admit one request per step. Keep admitting while a slot is free and a request is "
            "waiting, even if another one is prefilling."
            if len(admitted) == 1
            else "Admit while a slot is free and a request is waiting, however many there are of either.",
        )
    if sorted(admitted) != ["A", "B", "C"]:
        raise Mistake(
            f"A, B and C arrived first; yours admitted {', '.join(admitted)}.",
            case=case,
            idea="First come, first served: `batch.waiting.popleft()` takes from the front of the queue; `pop()` takes "
            "from its end.",
        )
    waiting = [request.id for request in batch.waiting]
    if waiting != ["D", "E"]:
        idea = "An admitted request must leave `batch.waiting`: `popleft()` returns it and removes it."
        if waiting == ["E", "D"]:
            idea = (
                "A request that is taken off the queue and put back at its end loses its turn. Look for a free slot "
                "before you take a request."
            )
        elif len(waiting) < 2:
            idea = "Take a request off the queue only if a slot is free. Otherwise nothing will ever compute it."
        raise Mistake(f"D and E should be left in the queue; yours has {waiting}.", case=case, idea=idea)


def _check_order_of_queue(attempt) -> None:
    for first, second in ((6, 2), (2, 6)):
        case = f"one slot; A is waiting with a prompt of {first} tokens, then B with one of {second}; the first step."
        batch = make_batch([a_request("A", first, first), a_request("B", second, second)], num_slots=1)
        _run_step(attempt, batch, case)
        admitted = [request.id for request in batch.running.values()]
        if admitted != ["A"]:
            raise Mistake(
                f"A arrived first and should get the slot; yours admitted {', '.join(admitted) or 'none'}.",
                case=case,
                idea="First come, first served: no request overtakes another, whatever their prompts and limits are.",
            )


def _check_slot_is_refilled(attempt) -> None:
    case = (
        "one slot; A (max_new_tokens 2) and B are waiting, with prompts of 3 tokens. A gets its second and last token "
        "in step 2; then step 3."
    )
    first, second = a_request("A", 3, max_tokens=2), a_request("B", 3)
    batch = make_batch([first, second], num_slots=1)
    _run_step(attempt, batch, case)
    _run_step(attempt, batch, case)
    if len(first.output_ids) != 2:
        raise Mistake(
            f"A was decoding before step 2 and should have 2 tokens; it has {len(first.output_ids)}.",
            case=case,
            idea="Every decoding request gets one token in every step: call `decode_all(batch)`.",
        )
    if second.state is not RequestState.WAITING:
        raise Mistake(
            "A decoded in step 2, and B took its slot in the same step.",
            case=case,
            idea="Release and admit before anything is computed, then decode and prefill. Each row of the batch then "
            "belongs to one request for the whole step.",
        )
    if not batch.running:
        raise Mistake(
            "A got its last token in step 2 and lost its slot in the same step; it should keep it until step 3.",
            case=case,
            idea="The step begins with the release of the requests that finished in the step before. Whatever calls "
            "`step`, such as the loop with a barrier further down, finds finished requests in `batch.running`.",
        )
    _run_step(attempt, batch, case)
    if second.state is RequestState.WAITING:
        left = "A still has it." if batch.running else "It is empty."
        raise Mistake(
            f"A has finished; in step 3 its slot should go to B. {left}",
            case=case,
            idea="Release before you admit: for every slot in `batch.slots_in(RequestState.FINISHED)`, remove the "
            "request from `batch.running` and pass its id to `batch.slots.release`.",
        )
    if not second.output_ids:
        raise Mistake(
            f"B took the slot in step 3 but has no first token; {second.num_computed_tokens} of its 3 prompt tokens "
            "are computed.",
            case=case,
            idea="Call `prefill_chunk(batch)` after you admit.",
        )


def _check_slot_is_released(attempt) -> None:
    case = (
        "two slots; A (max_new_tokens 1) and B (max_new_tokens 9) are waiting, with prompts of 3 tokens. A finishes in "
        "step 1; then step 2. No other request arrives."
    )
    first, second = a_request("A", 3, max_tokens=1), a_request("B", 3, max_tokens=9)
    batch = make_batch([first, second], num_slots=2)
    _run_step(attempt, batch, case)
    if second.num_computed_tokens and not first.output_ids:
        raise Mistake(
            "step 1 should compute A's chunk, because A was admitted first; yours computed B's.",
            case=case,
            idea=_ORDER_OF_ADMISSION,
        )
    if first.state is RequestState.FINISHED and first not in batch.running.values():
        raise Mistake(
            "A got its last token in step 1 and lost its slot in the same step; it should keep it until step 2.",
            case=case,
            idea="Release where the step begins, and nowhere else, whether or not a request is waiting.",
        )
    _run_step(attempt, batch, case)
    running = [request.id for request in batch.running.values()]
    if running != ["B"]:
        raise Mistake(
            f"only B should have a slot after step 2; yours has {', '.join(running) or 'no request'} in "
            "`batch.running`.",
            case=case,
            idea="Release the slot of a finished request even if no request is waiting for it.",
        )


def _check_short_queue(attempt) -> None:
    case = "three slots; only A is waiting; the first step."
    _run_step(attempt, make_batch([a_request("A", 3)], num_slots=3), case)


def _check_late_arrival(attempt) -> None:
    case = "three slots; only A is waiting. After step 1, B arrives; then step 2."
    batch = make_batch([a_request("A", 3)], num_slots=3)
    _run_step(attempt, batch, case)
    batch.waiting.append(later := a_request("B", 3))
    _run_step(attempt, batch, case)
    if later.state is RequestState.WAITING:
        raise Mistake(
            "two slots are free in step 2, and B is waiting, so B should have one of them. B is still waiting.",
            case=case,
            idea="How many requests may join is up to the free slots, not to those released in this step.",
        )


def _check_one_chunk_one_token(attempt) -> None:
    case = "two slots, prefill_step 8; A and B are waiting, with prompts of 3 tokens; the first step."
    batch = make_batch([a_request("A", 3), second := a_request("B", 3)], num_slots=2, prefill_step=8)
    _run_step(attempt, batch, case)
    if second.num_computed_tokens:
        raise Mistake(
            f"step 1 should compute A's chunk and none of B's; yours has computed {second.num_computed_tokens} tokens "
            "of B.",
            case=case,
            idea="One chunk of one prompt per step, even if that chunk is shorter than `prefill_step`: call "
            "`prefill_chunk` once.",
        )
    case = case.replace("the first step", "A decodes in step 2, and B gets its chunk")
    _run_step(attempt, batch, case)
    if len(second.output_ids) > 1:
        raise Mistake(
            f"B should have 1 token after step 2; it has {len(second.output_ids)}.",
            case=case,
            idea="B's chunk gave its first token. Did a decode pass come after the chunk? Only the requests that are "
            "decoding when the step begins get a token from it.",
        )


def _check_two_leave(attempt) -> None:
    case = (
        "two slots; A (max_new_tokens 2), B (max_new_tokens 1), C and D are waiting, with prompts of 3 tokens. A and B "
        "both finish in step 2; then step 3."
    )
    limits = dict(A=2, B=1, C=3, D=3)
    batch = make_batch([a_request(name, 3, max_tokens=limit) for name, limit in limits.items()], num_slots=2)
    for _ in range(3):
        _run_step(attempt, batch, case)
    running = [request.id for request in batch.running.values()]
    if running != ["C", "D"]:
        raise Mistake(
            f"C and D should have the two slots in step 3; yours has {', '.join(running) or 'no request'} in "
            "`batch.running`.",
            case=case,
            idea="Several requests can finish in one step. Release all of them before you admit.",
        )


def _check_end_token(attempt) -> None:
    case = (
        "one slot; A (max_new_tokens 9) and B are waiting, with prompts of 3 tokens. A writes the end token in step 1; "
        "then step 2."
    )
    first, second = a_request("A", 3, max_tokens=9), a_request("B", 3)
    first.eos_token_id = answer_alone(tuple(first.prompt_ids), 1)[0]
    batch = make_batch([first, second], num_slots=1)
    _run_step(attempt, batch, case)
    _run_step(attempt, batch, case)
    if second.state is RequestState.WAITING:
        raise Mistake(
            "A finished with the end token in step 1, so B should have its slot in step 2. B is still waiting.",
            case=case,
            idea="An answer may end before its limit. `batch.slots_in(RequestState.FINISHED)` also lists the requests "
            "that ended with the end token.",
        )


def _check_no_barrier(attempt) -> None:
    case = (
        "two slots; A (max_new_tokens 9), B (max_new_tokens 2) and C are waiting, with prompts of 3 tokens. B finishes "
        "in step 3; then step 4, with A in the middle of its answer."
    )
    requests = [a_request("A", 3, max_tokens=9), a_request("B", 3, max_tokens=2), a_request("C", 3)]
    batch = make_batch(requests, num_slots=2)
    for _ in range(4):
        seen = _run_step(attempt, batch, case)
    if requests[2].state is RequestState.WAITING:
        raise Mistake(
            "B's slot is free from step 4 on, so C should be in it while A keeps decoding. C is still waiting.",
            case=case,
            idea="That is the batch barrier of static batching. Admit whenever a slot is free, not only when all are.",
        )
    if len(requests[0].output_ids) != 4:
        count = len(requests[0].output_ids)
        idea = "Call `decode_all(batch)` once in a step: it serves every decoding request." if count > 4 else ""
        raise Mistake(f"A should have 4 tokens after 4 steps; it has {count}.", case=case, idea=idea)
    if any(fed.running != ["A", "C"] for fed in seen):
        raise Mistake(
            "in step 4, A and C should have the slots in both passes; yours had "
            f"{' and then '.join(short(fed.running) for fed in seen)} in `batch.running`.",
            case=case,
            idea="A slot belongs to one request for the whole step: release and admit before anything is computed.",
        )


def _check_order_of_admission(attempt) -> None:
    case = (
        "two slots, prefill_step 2; A (prompt of 2 tokens, max_new_tokens 1), B and C (prompts of 6) are waiting. A "
        "finishes in step 1; in step 2, C takes A's slot, 0. B, in slot 1, was admitted before C."
    )
    first, second, third = a_request("A", 2, max_tokens=1), a_request("B", 6), a_request("C", 6)
    batch = make_batch([first, second, third], num_slots=2, prefill_step=2)
    _run_step(attempt, batch, case)
    _run_step(attempt, batch, case)
    if (second.num_computed_tokens, third.num_computed_tokens) != (2, 0):
        raise Mistake(
            f"step 2 should compute a chunk of B and none of C; yours has computed {second.num_computed_tokens} tokens "
            "of B and "
            f"{third.num_computed_tokens} of C.",
            case=case,
            idea=_ORDER_OF_ADMISSION,
        )
    if third.state is RequestState.WAITING:
        raise Mistake(
            "A has finished, so C should take its slot in step 2. C is still waiting, and the slot is empty.",
            case=case,
            idea="Admit whenever a slot is free, also while another request is prefilling.",
        )


def _check_chunk_beside_decode(attempt) -> None:
    case = (
        "two slots, prefill_step 2; A (prompt of 2 tokens) and B (prompt of 6) are waiting. After step 1, A is "
        "decoding; then step 2."
    )
    first, second = a_request("A", 2, max_tokens=9), a_request("B", 6)
    batch = make_batch([first, second], num_slots=2, prefill_step=2)
    _run_step(attempt, batch, case)
    if (first.num_computed_tokens, second.num_computed_tokens) != (2, 0):
        raise Mistake(
            f"step 1 should compute A's prompt and none of B's; yours has computed {first.num_computed_tokens} "
            "tokens of A and "
            f"{second.num_computed_tokens} of B.",
            case=case,
            idea="One chunk per step: call `prefill_chunk` once, without a loop around it.",
        )
    _run_step(attempt, batch, case)
    if len(first.output_ids) > 2:
        raise Mistake(
            f"A should get one token per step; after step 2 it has {len(first.output_ids)}.",
            case=case,
            idea="Call `decode_all(batch)` once in a step: it serves every decoding request.",
        )
    if len(first.output_ids) != 2:
        raise Mistake(
            f"A decodes while B prefills, so A should have 2 tokens after step 2. It has {len(first.output_ids)}.",
            case=case,
            idea="Decode in every step, even if a request is prefilling. Otherwise a long prompt stalls all the others."
            if second.num_computed_tokens
            else "This step computed nothing at all. No request is waiting, but A and B are in their slots: decode and "
            "prefill in every step, whether or not it admits or releases.",
        )
    if second.num_computed_tokens == 0:
        raise Mistake(
            "step 2 should compute 2 tokens of B's prompt while A decodes; yours computed none.",
            case=case,
            idea="Compute a chunk in every step, even if a request is decoding. Otherwise a new request waits until "
            "all the others are done.",
        )
    if second.num_computed_tokens != 2:
        raise Mistake(
            f"step 2 should compute 2 tokens of B's prompt; yours computed {second.num_computed_tokens}.",
            case=case,
            idea="You seem to continue until the prompt is complete. Compute one chunk per step: A waits for each "
            "of them.",
        )


def _check_answers(attempt) -> None:
    rng = Random(5)
    prompts = [[rng.randrange(VOCAB_SIZE) for _ in range(rng.choice((1, 3, 8, 9)))] for _ in range(7)]
    max_tokens_each = [rng.choice((1, 2, 5, 9)) for _ in prompts]
    model, tokenizer = tiny_model("qwen2"), SimpleNamespace(pad_token_id=0, eos_token_id=None)
    case = f"seven requests in three slots, prefill_step 4, max_new_tokens {max_tokens_each}."
    settings = dict(max_seq_len=32, batch_size=3, prefill_step=4, max_new_tokens=max_tokens_each)
    steps = StepCounter(attempt)
    outputs = call(batch_generate, model, tokenizer, prompts, case=case, step=steps.run, **settings)
    for name, (prompt, max_tokens, answer) in enumerate(zip(prompts, max_tokens_each, outputs)):
        want = answer_alone(tuple(prompt), max_tokens)
        if answer != want:
            raise Mistake(
                f"request {name} should get {short(want)}, as it does when served alone; "
                f"it got {marked(want, answer)}.",
                case=case,
                idea="Batching changes when a token is computed, never which one. Did a request lose its slot before "
                "it finished?",
            )
    expected = StepCounter(step)
    batch_generate(model, tokenizer, prompts, step=expected.run, **settings)
    if steps.count > expected.count:
        what = f"all answers are right, but took {steps.count} steps; {expected.count} are enough."
        raise Mistake(
            what,
            case=case,
            idea="Is there a step that leaves a slot empty while a request is waiting, "
            "or one that computes no chunk while a request is prefilling?",
        )
