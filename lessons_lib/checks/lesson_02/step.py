"""Judges 02.5, `step`: release, admit, decode, one chunk, in every step and in this order."""

from contextlib import contextmanager
from random import Random
from types import SimpleNamespace

from lessons_lib.batching.continuous_batching import SlotBatch, batch_generate
from lessons_lib.batching.request import Request, RequestState
from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_02.batch import SeenPass, a_request, answer_alone, make_batch, watch_slot_passes
from lessons_lib.models.tiny_models import VOCAB_SIZE, tiny_model


def check_step(attempt) -> None:
    _check_first_step(attempt)
    _check_all_slots_filled(attempt)
    _check_slot_changes_hands(attempt)
    _check_slot_falls_free(attempt)
    _check_chunk_beside_decode(attempt)
    _check_no_barrier(attempt)
    _check_order_of_admission(attempt)
    _check_answers(attempt)


@contextmanager
def _watch_ids(batch: SlotBatch, case: str):
    """Names a slot number or a whole request handed to the slot manager, which takes ids."""
    manager = batch.slots
    acquire, release = manager.acquire, manager.release

    def check_id(method: str, value) -> None:
        if not isinstance(value, str):
            got = f"the request {value.id} itself" if isinstance(value, Request) else f"{short(value)}"
            what = f"{method} takes the request's id, a string such as 'A'; yours gave it {got}."
            raise Mistake(
                what, case=case, idea=f"The slot manager finds the slot by the id: `batch.slots.{method}(request.id)`."
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


def _turn(attempt, batch: SlotBatch, case: str) -> list[SeenPass]:
    """One step; afterwards slots and running requests must agree."""
    with watch_slot_passes(batch) as seen, _watch_ids(batch, case):
        call(attempt, batch, case=case)
    seated = {request.id: slot for slot, request in batch.running.items()}
    if dict(batch.slots.slot_of) != seated:
        raise Mistake(
            f"`batch.running` seats {seated}, but the slot manager has {batch.slots.slot_of}.",
            case=case,
            idea="Both must change together: admitting is `acquire` and an entry in `batch.running`; releasing is `release` and taking that entry out.",
        )
    for request in batch.running.values():
        if request.state is RequestState.WAITING:
            raise Mistake(
                f"{request.id} sits in slot {seated[request.id]} and is still waiting.",
                case=case,
                idea="A request that gets a slot begins to prefill: `request.move_to(RequestState.PREFILLING)`. Nothing else will ever pick it up.",
            )
    return seen


def _check_first_step(attempt) -> None:
    case = "one slot, A waits with a prompt of 3 tokens, prefill_step 4; the first step."
    request = a_request("A", 3)
    batch = make_batch([request], num_slots=1)
    _turn(attempt, batch, case)
    if not batch.running:
        raise Mistake(
            "a slot is free and A waits; after the step A should have it.",
            case=case,
            idea="As long as somebody waits and a slot is free: take the first of `batch.waiting`, and give it the slot.",
        )
    if len(request.output_ids) > 1:
        raise Mistake(
            f"A should have 1 token after the first step; it has {len(request.output_ids)}.",
            case=case,
            idea="You seem to decode after the chunk: a request whose prompt is completed gets two tokens in one step. Decode first, then compute the chunk.",
        )
    if not request.output_ids:
        raise Mistake(
            f"A's whole prompt fits in one chunk, so A should have its first token; it has none and {request.num_computed_tokens} computed tokens.",
            case=case,
            idea="End the step with `prefill_chunk(batch)`; a request that was admitted in this step already gets its chunk.",
        )


def _check_all_slots_filled(attempt) -> None:
    case = "three slots; A, B, C, D wait, in this order; the first step."
    batch = make_batch([a_request(name, 3) for name in "ABCD"], num_slots=3)
    _turn(attempt, batch, case)
    seated = [request.id for request in batch.running.values()]
    if len(seated) < 3:
        raise Mistake(
            f"three slots are free, and A, B and C should sit in them; yours seated {', '.join(seated)}.",
            case=case,
            idea="You seem to admit one request a step. Go on as long as there is a free slot and somebody waits.",
        )
    if sorted(seated) != ["A", "B", "C"]:
        raise Mistake(
            f"A, B and C came first; yours seated {', '.join(seated)}.",
            case=case,
            idea="First come, first served: `batch.waiting.popleft()` takes from the front of the queue; `pop()` takes from its end.",
        )
    if [request.id for request in batch.waiting] != ["D"]:
        raise Mistake(
            f"D alone should wait; yours has {[request.id for request in batch.waiting]} in the queue.", case=case
        )


def _check_slot_changes_hands(attempt) -> None:
    case = "one slot; A (cap 2) and B wait, prompts of 3 tokens. A has its second and last token after step 2; then step 3."
    first, second = a_request("A", 3, max_tokens=2), a_request("B", 3)
    batch = make_batch([first, second], num_slots=1)
    _turn(attempt, batch, case)
    _turn(attempt, batch, case)
    if len(first.output_ids) != 2:
        raise Mistake(
            f"A was decoding before step 2 and should have 2 tokens; it has {len(first.output_ids)}.",
            case=case,
            idea="Every decoding request gets one token in every step: `decode_all(batch)`.",
        )
    if second.state is not RequestState.WAITING:
        raise Mistake(
            "A decoded in step 2 and B took its slot in the same step.",
            case=case,
            idea="Settle who sits where before anything is computed: release and admit first, then decode and prefill. "
            "One row of the batch then belongs to one request in one step.",
        )
    _turn(attempt, batch, case)
    if second.state is RequestState.WAITING:
        left = "A still sits in it." if batch.running else "It is empty."
        raise Mistake(
            f"A has finished; in step 3 its slot should go to B. {left}",
            case=case,
            idea="Release before you admit: for every slot in `batch.slots_in(RequestState.FINISHED)`, take the request out of `batch.running` and "
            "`batch.slots.release` its id.",
        )
    if not second.output_ids:
        raise Mistake(
            f"B took the slot in step 3 but got no chunk; it has {second.num_computed_tokens} computed tokens.",
            case=case,
        )


def _check_slot_falls_free(attempt) -> None:
    case = "two slots; A (cap 1) and B (cap 9) wait, prompts of 3 tokens. A ends with step 1; then step 2. Nobody else comes."
    batch = make_batch([a_request("A", 3, max_tokens=1), a_request("B", 3, max_tokens=9)], num_slots=2)
    _turn(attempt, batch, case)
    _turn(attempt, batch, case)
    seated = [request.id for request in batch.running.values()]
    if seated != ["B"]:
        raise Mistake(
            f"B alone should sit in a slot; yours has {', '.join(seated) or 'nobody'}.",
            case=case,
            idea="A finished request leaves, whether somebody waits or not.",
        )


def _check_no_barrier(attempt) -> None:
    case = "two slots; A (cap 9), B (cap 2) and C wait, prompts of 3 tokens. B ends after step 3; then step 4, with A in the middle of its answer."
    requests = [a_request("A", 3, max_tokens=9), a_request("B", 3, max_tokens=2), a_request("C", 3)]
    batch = make_batch(requests, num_slots=2)
    for _ in range(4):
        _turn(attempt, batch, case)
    if requests[2].state is RequestState.WAITING:
        raise Mistake(
            "B's slot is free from step 4 on, and C waits; C should be in it while A goes on. It still waits.",
            case=case,
            idea="That is the batch barrier of static batching. Admit whenever a slot is free, not when all are.",
        )
    if len(requests[0].output_ids) != 4:
        raise Mistake(f"A should have 4 tokens after 4 steps; it has {len(requests[0].output_ids)}.", case=case)


def _check_order_of_admission(attempt) -> None:
    case = (
        "two slots, prefill_step 2; A (prompt of 2 tokens, cap 1), B and C (prompts of 6) wait. A ends with step 1; in step 2 C takes A's slot, 0. "
        "B, in slot 1, was admitted before C."
    )
    first, second, third = a_request("A", 2, max_tokens=1), a_request("B", 6), a_request("C", 6)
    batch = make_batch([first, second, third], num_slots=2, prefill_step=2)
    _turn(attempt, batch, case)
    _turn(attempt, batch, case)
    if (second.num_computed_tokens, third.num_computed_tokens) != (2, 0):
        raise Mistake(
            f"step 2 should compute a chunk of B and none of C; computed tokens are {second.num_computed_tokens} and {third.num_computed_tokens}.",
            case=case,
            idea="`batch.running` keeps the order of admission, and `prefill_chunk` serves the first. Put newcomers at its end; do not sort it by slot or build it anew.",
        )


def _check_chunk_beside_decode(attempt) -> None:
    case = "two slots, prefill_step 2; A (prompt of 2 tokens) and B (prompt of 6) wait. After step 1 A decodes; then step 2."
    first, second = a_request("A", 2, max_tokens=9), a_request("B", 6)
    batch = make_batch([first, second], num_slots=2, prefill_step=2)
    _turn(attempt, batch, case)
    if (first.num_computed_tokens, second.num_computed_tokens) != (2, 0):
        raise Mistake(
            f"step 1 should compute A's prompt and nothing of B's; computed tokens are {first.num_computed_tokens} and {second.num_computed_tokens}.",
            case=case,
            idea="One chunk a step: call `prefill_chunk` once, without a loop round it.",
        )
    _turn(attempt, batch, case)
    if len(first.output_ids) != 2:
        raise Mistake(
            f"A decodes while B prefills; after step 2 A should have 2 tokens. It has {len(first.output_ids)}.",
            case=case,
            idea="Decode in every step, whether somebody prefills or not. Otherwise a long prompt stops all the others.",
        )
    if second.num_computed_tokens == 0:
        raise Mistake(
            "step 2 should compute 2 tokens of B's prompt beside A's decoding; it computed none.",
            case=case,
            idea="Compute a chunk in every step, whether somebody decodes or not. Otherwise a newcomer waits until all the others are done.",
        )
    if second.num_computed_tokens != 2:
        raise Mistake(
            f"step 2 should compute 2 tokens of B's prompt; {second.num_computed_tokens} are computed.",
            case=case,
            idea="You seem to go on until the prompt is complete. One chunk a step: A waits for every one of them.",
        )


def _check_answers(attempt) -> None:
    rng = Random(5)
    prompts = [[rng.randrange(VOCAB_SIZE) for _ in range(rng.choice((1, 3, 8, 9)))] for _ in range(7)]
    max_tokens_each = [rng.choice((1, 2, 5, 9)) for _ in prompts]
    model, tokenizer = tiny_model("qwen2"), SimpleNamespace(pad_token_id=0, eos_token_id=None)
    case = f"seven requests with caps {max_tokens_each} in three slots, prefill_step 4."
    settings = dict(max_seq_len=32, batch_size=3, prefill_step=4, max_new_tokens=max_tokens_each)
    got = call(batch_generate, model, tokenizer, prompts, case=case, step=attempt, **settings)
    for name, (prompt, max_tokens, answer) in enumerate(zip(prompts, max_tokens_each, got.outputs)):
        want = answer_alone(tuple(prompt), max_tokens)
        if answer != want:
            raise Mistake(
                f"request {name} should get {short(want)}, as it does alone; it got {short(answer)}.",
                case=case,
                idea="Batching changes when a token is computed, never which one. Did a request lose its slot before it had finished?",
            )
    expected = len(batch_generate(model, tokenizer, prompts, **settings).trace.steps)
    if len(got.trace.steps) > expected:
        what = f"all answers are right, after {len(got.trace.steps)} steps; {expected} are enough."
        raise Mistake(what, case=case, idea="Is a slot left empty while somebody waits?")
