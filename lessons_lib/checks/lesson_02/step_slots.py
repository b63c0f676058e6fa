"""Judges 02.5, `step`: which request has a slot, and from which step on."""

from lessons_lib.batching.request import RequestState
from lessons_lib.checks.exercise import Mistake, short
from lessons_lib.checks.lesson_02.batch import a_request, answer_alone, make_batch
from lessons_lib.checks.lesson_02.step_runs import run_step

_ORDER_OF_ADMISSION = (
    "`batch.running` keeps the order of admission, and `prefill_chunk` serves the first prefilling request in it. Add "
    "new requests at its end; don't sort it by slot."
)

_OLD_PLACE = (
    "`batch.running` keeps the order of admission, and `prefill_chunk` serves the first prefilling request in it: new "
    "requests go to its end. Do you sort it, or assign to a slot whose old entry is still there? A dict key keeps its "
    "place; remove the entry first."
)


def check_all_slots_filled(attempt) -> None:
    case = "three slots; A, B, C, D and E are waiting, in this order; the first step."
    batch = make_batch([a_request(name, 3) for name in "ABCDE"], num_slots=3)
    run_step(attempt, batch, case)
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


def check_order_of_queue(attempt) -> None:
    for first, second in ((6, 2), (2, 6)):
        case = f"one slot; A is waiting with a prompt of {first} tokens, then B with one of {second}; the first step."
        batch = make_batch([a_request("A", first, first), a_request("B", second, second)], num_slots=1)
        run_step(attempt, batch, case)
        admitted = [request.id for request in batch.running.values()]
        if admitted != ["A"]:
            raise Mistake(
                f"A arrived first and should get the slot; yours admitted {', '.join(admitted) or 'none'}.",
                case=case,
                idea="First come, first served: no request overtakes another, whatever their prompts and limits are.",
            )


def check_slot_is_refilled(attempt) -> None:
    case = (
        "one slot; A (max_new_tokens 2) and B are waiting, with prompts of 3 tokens. A gets its second and last token "
        "in step 2; then step 3."
    )
    first, second = a_request("A", 3, max_tokens=2), a_request("B", 3)
    batch = make_batch([first, second], num_slots=1)
    run_step(attempt, batch, case)
    run_step(attempt, batch, case)
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
    run_step(attempt, batch, case)
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


def check_slot_is_released(attempt) -> None:
    case = (
        "two slots; A (max_new_tokens 1) and B (max_new_tokens 9) are waiting, with prompts of 3 tokens. A finishes in "
        "step 1; then step 2. No other request arrives."
    )
    first, second = a_request("A", 3, max_tokens=1), a_request("B", 3, max_tokens=9)
    batch = make_batch([first, second], num_slots=2)
    run_step(attempt, batch, case)
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
    run_step(attempt, batch, case)
    running = [request.id for request in batch.running.values()]
    if running != ["B"]:
        check_no_barrier(attempt)  # is a slot released once all have finished, or only if a request is waiting?
        raise Mistake(
            f"only B should have a slot after step 2; yours has {', '.join(running) or 'no request'} in "
            "`batch.running`.",
            case=case,
            idea="Release the slot of a finished request even if no request is waiting for it.",
        )


def check_short_queue(attempt) -> None:
    case = "three slots; only A is waiting; the first step."
    run_step(attempt, make_batch([a_request("A", 3)], num_slots=3), case)


def check_no_barrier(attempt) -> None:
    case = (
        "two slots; A (max_new_tokens 9), B (max_new_tokens 2) and C are waiting, with prompts of 3 tokens. B finishes "
        "in step 3; then step 4, with A in the middle of its answer."
    )
    requests = [a_request("A", 3, max_tokens=9), a_request("B", 3, max_tokens=2), a_request("C", 3)]
    batch = make_batch(requests, num_slots=2)
    for _ in range(4):
        seen = run_step(attempt, batch, case)
    if requests[2].state is RequestState.WAITING:
        if requests[1] in batch.running.values():
            raise Mistake(
                "B finished in step 3, so its slot should go to C in step 4, while A keeps decoding. B still has it.",
                case=case,
                idea="That is the batch barrier of static batching. Release the slot of each finished request in the "
                "next step, not only when all have finished.",
            )
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


def check_order_of_admission(attempt) -> None:
    case = (
        "two slots, prefill_step 2; A (prompt of 2 tokens, max_new_tokens 1), B and C (prompts of 6) are waiting. A "
        "finishes in step 1; in step 2, C takes A's slot, 0. B, in slot 1, was admitted before C."
    )
    first, second, third = a_request("A", 2, max_tokens=1), a_request("B", 6), a_request("C", 6)
    batch = make_batch([first, second, third], num_slots=2, prefill_step=2)
    run_step(attempt, batch, case)
    run_step(attempt, batch, case)
    if (second.num_computed_tokens, third.num_computed_tokens) != (2, 0):
        raise Mistake(
            f"step 2 should compute a chunk of B and none of C; yours has computed {second.num_computed_tokens} tokens "
            "of B and "
            f"{third.num_computed_tokens} of C.",
            case=case,
            idea=_ORDER_OF_ADMISSION if _sorts(attempt) else _OLD_PLACE,
        )
    if third.state is RequestState.WAITING:
        raise Mistake(
            "A has finished, so C should take its slot in step 2. C is still waiting, and the slot is empty.",
            case=case,
            idea="Admit whenever a slot is free, also while another request is prefilling.",
        )


def _sorts(attempt) -> bool:
    """Whether a step changes the order of two requests that keep their slots."""
    batch = make_batch(running={1: a_request("A", 6), 0: a_request("B", 6)}, num_slots=2)
    try:
        run_step(attempt, batch, "")
    except Exception:  # noqa: BLE001 - it fails in another way there
        return False
    return list(batch.running) == [0, 1]


def check_two_leave(attempt) -> None:
    case = (
        "two slots; A (max_new_tokens 2), B (max_new_tokens 1), C and D are waiting, with prompts of 3 tokens. A and B "
        "both finish in step 2; then step 3."
    )
    limits = dict(A=2, B=1, C=3, D=3)
    batch = make_batch([a_request(name, 3, max_tokens=limit) for name, limit in limits.items()], num_slots=2)
    for _ in range(3):
        run_step(attempt, batch, case)
    running = [request.id for request in batch.running.values()]
    if running != ["C", "D"]:
        raise Mistake(
            f"C and D should have the two slots in step 3; yours has {', '.join(running) or 'no request'} in "
            "`batch.running`.",
            case=case,
            idea="Several requests can finish in one step. Release all of them before you admit.",
        )


def check_late_arrival(attempt) -> None:
    case = "three slots; only A is waiting. After step 1, B arrives; then step 2."
    batch = make_batch([a_request("A", 3)], num_slots=3)
    run_step(attempt, batch, case)
    batch.waiting.append(later := a_request("B", 3))
    run_step(attempt, batch, case)
    if later.state is RequestState.WAITING:
        raise Mistake(
            "two slots are free in step 2, and B is waiting, so B should have one of them. B is still waiting.",
            case=case,
            idea="How many requests may join is up to the free slots, not to those released in this step.",
        )


def check_end_token(attempt) -> None:
    case = (
        "one slot; A (max_new_tokens 9) and B are waiting, with prompts of 3 tokens. A writes the end token in step 1; "
        "then step 2."
    )
    first, second = a_request("A", 3, max_tokens=9), a_request("B", 3)
    first.eos_token_id = answer_alone(tuple(first.prompt_ids), 1)[0]
    batch = make_batch([first, second], num_slots=1)
    run_step(attempt, batch, case)
    run_step(attempt, batch, case)
    if second.state is RequestState.WAITING:
        raise Mistake(
            "A finished with the end token in step 1, so B should have its slot in step 2. B is still waiting.",
            case=case,
            idea="An answer may end before its limit. `batch.slots_in(RequestState.FINISHED)` also lists the requests "
            "that ended with the end token.",
        )
