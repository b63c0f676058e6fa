"""Judges 05.4, `ragged_step`: one row with all uncomputed tokens, one new token each, then retire and admit."""

from functools import partial
from types import SimpleNamespace

import torch

from lessons_lib.batching.ragged_batching import loop_forward, ragged_generate, ragged_step
from lessons_lib.batching.request import RequestState
from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_02.batch import StepCounter
from lessons_lib.checks.lesson_05.one_step import check_request, run_step
from lessons_lib.checks.lesson_05.requests import a_request, answer_alone, make_batch, ragged_requests
from lessons_lib.models.tiny_models import tiny_model
from lessons_lib.viz.words import marked


def check_ragged_step(attempt) -> None:
    _check_prefill(attempt)
    _check_decode(attempt)
    _check_three_prompts(attempt)
    _check_prefill_with_decode(attempt)
    _check_half_computed(attempt)
    _check_waiting_request_is_admitted(attempt)
    _check_end_token(attempt)
    _check_two_leave(attempt)
    _check_empty_queue(attempt)
    _check_no_barrier(attempt)
    _check_answers(attempt)


def _check_prefill(attempt) -> None:
    case = "max_num_seqs=1; A has a prompt of 3 tokens and max_tokens 3; the first step."
    request = a_request("A", 3)
    batch = make_batch([request])
    idea = (
        "Nothing of A is computed yet, so the row takes its whole prompt: "
        "`(prompt_ids + output_ids)[num_computed_tokens:]`."
    )
    run_step(attempt, batch, case, {"A": (list(request.prompt_ids), 0)}, idea)
    check_request(request, answer_alone(tuple(request.prompt_ids), 3)[:1], 3, case)
    if request.state is not RequestState.DECODING:
        idea = "`request.append_token(token)` also updates the request's state. Use it instead of `output_ids.append`."
        raise Mistake(
            f"after its first token of 3, A should be decoding; it is {request.state.value}.",
            case=case,
            idea=idea,
        )


def _check_decode(attempt) -> None:
    case = "max_num_seqs=1; A has a prompt of 3 tokens and max_tokens 4; the second and third steps."
    request = a_request("A", 3, max_tokens=4)
    answer = answer_alone(tuple(request.prompt_ids), 4)
    batch = make_batch([request])
    run_step(attempt, batch, case)
    for step in (1, 2):
        idea = (
            "Only the token from the previous step isn't computed yet. The same rule as for a prompt selects it: "
            "`(prompt_ids + output_ids)[num_computed_tokens:]`."
        )
        run_step(attempt, batch, case, {"A": ([answer[step - 1]], 2 + step)}, idea)
        check_request(request, answer[: step + 1], 3 + step, case)


def _check_three_prompts(attempt) -> None:
    case = "max_num_seqs=3; A (prompt of 4 tokens), B (prompt of 3) and C (prompt of 5); the {} step."
    requests = [a_request("A", 4), a_request("B", 3), a_request("C", 5)]  # sorted neither up nor down
    idea = "Pack the requests in the order of `batch.running`, because `forward` joins the caches in that order."
    batch = make_batch(requests, max_num_seqs=3)
    want = {request.id: (list(request.prompt_ids), 0) for request in requests}
    run_step(attempt, batch, case.format("first"), want, idea)
    answers = [answer_alone(tuple(request.prompt_ids), 3) for request in requests]
    for request, answer in zip(requests, answers):
        check_request(request, answer[:1], len(request.prompt_ids), case.format("first"))
    want = {request.id: (answer[:1], len(request.prompt_ids)) for request, answer in zip(requests, answers)}
    run_step(attempt, batch, case.format("second"), want, idea)


def _check_prefill_with_decode(attempt) -> None:
    case = "max_num_seqs=2; A (prompt of 3 tokens) is alone in step 1; then B (prompt of 4) is submitted; step 2."
    first, second = a_request("A", 3, max_tokens=5), a_request("B", 4, max_tokens=5)
    batch = make_batch([first], max_num_seqs=2)
    run_step(attempt, batch, case)
    batch.submit(second)
    answer = answer_alone(tuple(first.prompt_ids), 5)
    want = {"A": (answer[:1], 3), "B": (list(second.prompt_ids), 0)}
    idea = "A's newest token and B's whole prompt go into one row, in the order of `batch.running`."
    run_step(attempt, batch, case, want, idea)
    check_request(first, answer[:2], 4, case)
    check_request(second, answer_alone(tuple(second.prompt_ids), 5)[:1], 4, case)


def _check_half_computed(attempt) -> None:
    case = "max_num_seqs=1; A has a prompt of 5 tokens, and the first 2 are already in its cache; the next step."
    request = a_request("A", 5)
    batch = make_batch([request])
    with torch.inference_mode():
        batch.model(input_ids=torch.tensor([request.prompt_ids[:2]]), past_key_values=batch.caches["A"])
    request.num_computed_tokens = 2
    idea = (
        "The row takes all known tokens that aren't computed yet, neither the whole prompt nor just the last token: "
        "`(prompt_ids + output_ids)[num_computed_tokens:]`."
    )
    run_step(attempt, batch, case, {"A": (request.prompt_ids[2:], 2)}, idea)
    check_request(request, answer_alone(tuple(request.prompt_ids), 3)[:1], 5, case)


def _check_waiting_request_is_admitted(attempt) -> None:
    case = "max_num_seqs=1; A (max_tokens 1) runs and B waits, prompts of 3 tokens; A gets its last token in step 1."
    first, second = a_request("A", 3, max_tokens=1), a_request("B", 3)
    batch = make_batch([first, second])
    run_step(attempt, batch, case)
    check_request(first, answer_alone(tuple(first.prompt_ids), 1), 3, case)
    running = [request.id for request in batch.running]
    if "A" in running:
        idea = (
            "After all tokens are appended, `retire(batch)` removes finished requests and their caches. Do that "
            "before you admit, to make room."
        )
        if "A" not in _running_after_two_steps(attempt):
            idea = (
                "A leaves one step later, so you seem to retire too early: at the start of a step, or before the "
                "tokens are appended. Do it at the end, so that the next row is full."
            )
        raise Mistake("A has finished and should be gone, but it is still in `batch.running`.", case=case, idea=idea)
    if "A" in batch.caches:
        raise Mistake(
            "A is gone, but its cache is still in `batch.caches`.",
            case=case,
            idea="`retire(batch)` removes both. A cache that is never removed is a memory leak.",
        )
    if "B" not in running:
        idea = "End the step with `admit(batch)`, so that the next row already has B's prompt."
        if "C" in _running_after_two_steps(attempt):
            idea = (
                "A new request gets in one step later, so you seem to admit before you retire: before it in the same "
                "step, or at the start of the next one. End the step with `retire(batch)`, then `admit(batch)`."
            )
        raise Mistake(
            "A has left, so B should be in `batch.running` after the step. It is still waiting.",
            case=case,
            idea=idea,
        )
    if second.state is not RequestState.PREFILLING or "B" not in batch.caches:
        idea = "An admitted request starts to prefill and gets an empty cache. `admit(batch)` does all of that."
        raise Mistake(
            f"B is in `batch.running`, but it is {second.state.value} and has {'a' if 'B' in batch.caches else 'no'} "
            "cache.",
            case=case,
            idea=idea,
        )
    if second.output_ids:
        idea = "B is admitted after this step's row was computed; its prompt goes into the next row."
        raise Mistake(
            f"B was only admitted at the end of the step, but it already has {short(second.output_ids)}.",
            case=case,
            idea=idea,
        )


def _running_after_two_steps(attempt) -> list[str]:
    """The running requests after two steps of A (max_tokens 1) and B, with C waiting and max_num_seqs=2.

    Distinguishes an attempt that retires or admits one step late from one that never does.
    """
    batch = make_batch(
        [a_request("A", 3, max_tokens=1), a_request("B", 3, max_tokens=4), a_request("C", 3)], max_num_seqs=2
    )
    try:
        attempt(batch)
        attempt(batch)
    except Exception:  # this attempt is known to be wrong, so it may raise anything
        pass
    return [request.id for request in batch.running]


def _check_end_token(attempt) -> None:
    case = "max_num_seqs=1; A (prompt of 3 tokens, max_tokens 3) runs and B waits; A's first token is its end token."
    request = a_request("A", 3)
    request.eos_token_id = answer_alone(tuple(request.prompt_ids), 1)[0]
    batch = make_batch([request, a_request("B", 3)])
    run_step(attempt, batch, case)
    if not request.output_ids:
        idea = "The end token is part of the answer. `append_token` appends it, and the request has finished."
        raise Mistake(f"A's answer should be [{request.eos_token_id}]; it is [].", case=case, idea=idea)
    check_request(request, [request.eos_token_id], 3, case)
    if request in batch.running:
        idea = (
            "Does your code compare the number of tokens with the limit? A request also finishes with its end token: "
            "`retire(batch)` goes by its state."
        )
        raise Mistake("A has finished and should be gone, but it is still in `batch.running`.", case=case, idea=idea)


def _check_two_leave(attempt) -> None:
    case = (
        "max_num_seqs=3; A and B (max_tokens 1) and C (max_tokens 4) run, D and E wait; A and B get their last token "
        "in step 1."
    )
    requests = [a_request(name, 3, max_tokens) for name, max_tokens in zip("ABCDE", (1, 1, 4, 4, 4))]
    batch = make_batch(requests, max_num_seqs=3)
    run_step(attempt, batch, case)
    running = [request.id for request in batch.running]
    if running != ["C", "D", "E"]:
        idea = (
            "All finished requests leave, and waiting requests are admitted as long as there is room: `retire(batch)` "
            "and `admit(batch)` handle all of them."
        )
        if sorted(running) == ["C", "D", "E"]:
            idea = (
                "These are the right requests in another order. `admit(batch)` takes them from the front of the queue."
            )
        elif missed := [request.id for request in requests[:3] if not request.output_ids]:
            idea = (
                f"{missed[0]} was in the row but got no token. If `batch.running` changes while a `for` loop iterates "
                "over it, the loop skips a request. Append all tokens first, then retire and admit."
            )
        elif running[:2] == ["A", "B"]:
            idea = (
                "Neither A nor B has left. A finished request leaves at the end of its own step, even if others still "
                "run or finish at the same time."
            )
        elif any(request.state is RequestState.FINISHED for request in batch.running):
            idea = (
                "If you remove elements from a list while a `for` loop iterates over it, the loop skips the next one. "
                "Append all tokens first, then retire."
            )
        raise Mistake(
            f"C, D and E should be running after the step; yours has {', '.join(running) or 'none'}.",
            case=case,
            idea=idea,
        )


def _check_empty_queue(attempt) -> None:
    case = (
        "max_num_seqs=2; A (max_tokens 1) and B (max_tokens 4) run, the queue is empty; A gets its last token in step "
        "1."
    )
    batch = make_batch([a_request("A", 3, max_tokens=1), a_request("B", 3, max_tokens=4)], max_num_seqs=2)
    run_step(attempt, batch, case)
    running = [request.id for request in batch.running]
    if running != ["B"]:
        idea = "A finished request leaves even if the queue is empty. Otherwise every step would keep computing it."
        raise Mistake(f"only B should be running; yours has {', '.join(running) or 'none'}.", case=case, idea=idea)


def _check_no_barrier(attempt) -> None:
    case = (
        "max_num_seqs=2; A (max_tokens 9) and B (max_tokens 2) run, C waits; B gets its last token in step 2; step 3."
    )
    requests = [a_request("A", 3, max_tokens=9), a_request("B", 3, max_tokens=2), a_request("C", 3, max_tokens=3)]
    batch = make_batch(requests, max_num_seqs=2)
    for _ in range(3):
        run_step(attempt, batch, case)
    if [len(request.output_ids) for request in requests] != [3, 2, 1]:
        what = (
            "after three steps, A, B and C should have 3, 2 and 1 tokens; they have "
            f"{', '.join(str(len(request.output_ids)) for request in requests)}."
        )
        raise Mistake(
            what,
            case=case,
            idea="C replaces B while A continues. Waiting until all have finished would be the batch barrier.",
        )


def _check_answers(attempt) -> None:
    prompts, max_tokens_each = ragged_requests(9, seed=7)
    model, tokenizer = tiny_model("qwen2"), SimpleNamespace(pad_token_id=0, eos_token_id=None)
    settings = dict(max_new_tokens=max_tokens_each, max_num_seqs=3)
    expected = StepCounter(ragged_step)
    ragged_generate(model, tokenizer, prompts, step=expected.run, **settings)
    for how, step in (("", attempt), (" and `loop_forward`", partial(attempt, forward=loop_forward))):
        case = (
            f"nine requests with max_tokens {max_tokens_each}, at most three per row, through `ragged_generate`{how}."
        )
        steps = StepCounter(step)
        outputs = call(ragged_generate, model, tokenizer, prompts, case=case, step=steps.run, **settings)
        for name, (prompt, max_tokens, answer) in enumerate(zip(prompts, max_tokens_each, outputs)):
            want = answer_alone(tuple(prompt), max_tokens)
            if answer != want:
                what = f"request {name} should get {short(want)}, as it does alone; it got {marked(want, answer)}."
                raise Mistake(what, case=case, idea="Batching changes when a token is computed, but not which one.")
        if steps.count > expected.count:
            what = f"all answers are right, but they took {steps.count} steps; {expected.count} are enough."
            raise Mistake(what, case=case, idea="Does a request wait although the batch has room?")
