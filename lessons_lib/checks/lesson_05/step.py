"""Judges 05.4, `ragged_step`: one row with all uncomputed tokens, one new token each, then retire and admit."""

from functools import partial
from traceback import extract_tb
from types import SimpleNamespace

import torch

from lessons_lib.attention.packing import PackedBatch
from lessons_lib.batching.ragged_batching import RaggedBatch, forward, loop_forward, ragged_generate, ragged_step
from lessons_lib.batching.request import Request, RequestState
from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_02.batch import StepCounter
from lessons_lib.checks.lesson_05.requests import a_request, answer_alone, make_batch, ragged_requests
from lessons_lib.models.tiny_models import tiny_model


def check_ragged_step(attempt) -> None:
    _check_prefill(attempt)
    _check_decode(attempt)
    _check_two_prompts(attempt)
    _check_prefill_with_decode(attempt)
    _check_half_computed(attempt)
    _check_waiting_request_is_admitted(attempt)
    _check_two_leave(attempt)
    _check_empty_queue(attempt)
    _check_no_barrier(attempt)
    _check_answers(attempt)


def _run_step(
    attempt, batch: RaggedBatch, case: str, want: dict[str, tuple[list[int], int]] | None = None, idea: str = ""
) -> None:
    """Run one step, which must call `forward` once.

    Args:
        want: request -> (its tokens in the row, its number of cached tokens), if the case checks that.
        idea: explains a wrong row.
    """
    seen: list[PackedBatch] = []
    row_idea = idea

    def watched_forward(batch, packed):
        seen.append(packed)
        if len(seen) > 1:
            idea = "Prompts and single tokens go into the same row, and the next row belongs to the next step."
            raise Mistake("a step should compute one row; yours started a second.", case=case, idea=idea)
        if not all(hasattr(packed, name) for name in ("input_ids", "cu_seqlens_q", "context_lens")):
            idea = "`pack(new_tokens, cached_lens)` makes the PackedBatch that `forward` takes."
            raise Mistake(
                f"`forward` takes the batch and a PackedBatch; you passed {type(packed).__name__}.",
                case=case,
                idea=idea,
            )
        if len(batch.running) < len(running):
            idea = (
                "One pass per request is a loop, not a batch: leave `batch.running` as it is, and pack a part for "
                "every running request into one row."
            )
            raise Mistake(
                f"{len(running)} requests were running, but only {len(batch.running)} when `forward` was called.",
                case=case,
                idea=idea,
            )
        if [request.id for request in batch.running] != [request.id for request in running]:
            idea = "It is the order of admission. Leave the list as it is, and make new lists in the same order."
            raise Mistake("your step changed the order of `batch.running`.", case=case, idea=idea)
        if len(packed.new_lens) != len(batch.running):
            idea = (
                "`forward` joins the caches of all running requests, so the row needs a part for each of them: a "
                "whole prompt for one, a single token for another."
            )
            raise Mistake(
                f"{len(batch.running)} requests are running; your row has parts for {len(packed.new_lens)}.",
                case=case,
                idea=idea,
            )
        if want is not None:
            _check_row(packed, want, case, row_idea)
        return forward(batch, packed)

    waiting_before = len(batch.waiting)
    running = list(batch.running)
    prompts = {request.id: (request, list(request.prompt_ids)) for request in [*running, *batch.waiting]}
    try:
        call(attempt, batch, case=case, forward=watched_forward)
    except ValueError as error:
        if "pack" not in [frame.name for frame in extract_tb(error.__traceback__)]:
            raise
        idea = (
            "For each running request, the row takes the tokens that are known but not computed. There is always at "
            "least one: in a decode, it is the newest token of the answer."
        )
        raise Mistake(f"`pack` rejected your arguments: {str(error)[:160]}", case=case, idea=idea) from None
    for name, (request, before) in prompts.items():
        if request.prompt_ids != before:
            idea = (
                "`request.prompt_ids += ...` changes the request's own list. `prompt_ids + output_ids` makes a new "
                "list."
            )
            raise Mistake(
                f"{name}'s prompt had {len(before)} tokens before the step and has {len(request.prompt_ids)} after it.",
                case=case,
                idea=idea,
            )
    if not seen:
        if any(request.output_ids for request in running) and batch.packed is not None:
            idea = (
                "The caller may pass a different `forward`, such as `loop_forward`. Call the argument: "
                "`forward(batch, packed)`."
            )
            raise Mistake("your step never called the `forward` it was given.", case=case, idea=idea)
        what = f"{len(running)} running and {waiting_before} waiting, but nothing was computed."
        raise Mistake(
            what,
            case=case,
            idea="Pack the uncomputed tokens of each running request, and call `forward(batch, packed)`.",
        )


def _check_row(packed: PackedBatch, want: dict[str, tuple[list[int], int]], case: str, idea: str) -> None:
    """Check each request's new tokens in the row and its number of cached tokens."""
    bounds = packed.cu_seqlens_q.tolist()
    for index, (name, (tokens, cached)) in enumerate(want.items()):
        got = packed.input_ids.tolist()[bounds[index] : bounds[index + 1]]
        if got != tokens:
            raise Mistake(
                f"{name}'s part of the row should be {short(tokens)}; yours is {short(got)}.", case=case, idea=idea
            )
        if packed.cached_lens[index] != cached:
            what = f"{name} has {cached} tokens in its cache; you passed {packed.cached_lens[index]} to `pack`."
            raise Mistake(
                what,
                case=case,
                idea="The number of cached tokens is `request.num_computed_tokens`.",
            )


def _check_request(request: Request, want: list[int], computed: int, case: str) -> None:
    if any(isinstance(token, torch.Tensor) for token in request.output_ids):
        idea = (
            "A token id is a plain int. `argmax(dim=-1)` gives a tensor with one token per request; `.tolist()` "
            "converts it."
        )
        raise Mistake(f"{request.id}'s answer should be {want}; yours contains tensors.", case=case, idea=idea)
    if any(not isinstance(token, int) for token in request.output_ids):
        idea = "A token id is a plain int. `request.append_token(token)` appends one."
        raise Mistake(f"{request.id}'s answer should be {want}; it is {request.output_ids}.", case=case, idea=idea)
    if request.output_ids != want:
        idea = "Row i of the logits belongs to request i of `batch.running`; its argmax is that request's next token."
        if not request.output_ids or request.output_ids == want[: len(request.output_ids)]:
            idea = (
                "Every request in the row gets a token in every step, with `request.append_token(...)`. A prompt "
                "gives the first one."
            )
        elif request.output_ids[: len(want)] == want:
            idea = "One row gives each request one token. Append it once."
        elif not any(request.output_ids):
            idea = (
                "The logits are [requests, vocabulary]. `argmax(dim=-1)` finds the best token for each request; "
                "`dim=0` finds the best request for each token."
            )
        raise Mistake(
            f"{request.id}'s answer should be {short(want)}; it is {short(request.output_ids)}.", case=case, idea=idea
        )
    if request.num_computed_tokens != computed:
        idea = (
            "It counts the tokens whose keys and values are in the cache. Increase it by the number of tokens that "
            "this request had in the row."
        )
        if request.num_computed_tokens == computed + 1:
            idea = (
                "You counted the new token as well. Its key and value are computed in the next step, when it goes "
                "into the row."
            )
        elif computed and request.num_computed_tokens == 0:
            idea = (
                "It hasn't changed, so the next step would compute everything again. Increase it by the number of "
                "tokens that this request had in the row."
            )
        elif request.num_computed_tokens == 1 and len(want) > 1:
            idea = (
                f"It was {computed - 1} before this step, and the row had one token of {request.id}. Add to it with "
                "`+=` instead of replacing it."
            )
        elif computed and request.num_computed_tokens == 1:
            idea = (
                "After a prompt, increase it by the length of the prompt, not by one: by the number of tokens that "
                "this request had in the row."
            )
        what = f"{request.id}'s num_computed_tokens should be {computed}; it is {request.num_computed_tokens}."
        raise Mistake(what, case=case, idea=idea)


def _check_prefill(attempt) -> None:
    case = "max_num_seqs=1; A has a prompt of 3 tokens and max_tokens 3; the first step."
    request = a_request("A", 3)
    batch = make_batch([request])
    idea = (
        "Nothing of A is computed yet, so the row takes its whole prompt: "
        "`(prompt_ids + output_ids)[num_computed_tokens:]`."
    )
    _run_step(attempt, batch, case, {"A": (list(request.prompt_ids), 0)}, idea)
    _check_request(request, answer_alone(tuple(request.prompt_ids), 3)[:1], 3, case)
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
    _run_step(attempt, batch, case)
    for step in (1, 2):
        idea = (
            "Only the token from the previous step isn't computed yet. The same rule as for a prompt selects it: "
            "`(prompt_ids + output_ids)[num_computed_tokens:]`."
        )
        _run_step(attempt, batch, case, {"A": ([answer[step - 1]], 2 + step)}, idea)
        _check_request(request, answer[: step + 1], 3 + step, case)


def _check_two_prompts(attempt) -> None:
    case = "max_num_seqs=2; A (prompt of 3 tokens) and B (prompt of 5); the first step."
    first, second = a_request("A", 3), a_request("B", 5)
    idea = "Pack the requests in the order of `batch.running`, because `forward` joins the caches in that order."
    want = {"A": (list(first.prompt_ids), 0), "B": (list(second.prompt_ids), 0)}
    _run_step(attempt, make_batch([first, second], max_num_seqs=2), case, want, idea)
    for request in (first, second):
        _check_request(request, answer_alone(tuple(request.prompt_ids), 3)[:1], len(request.prompt_ids), case)


def _check_prefill_with_decode(attempt) -> None:
    case = "max_num_seqs=2; A (prompt of 3 tokens) is alone in step 1; then B (prompt of 4) is submitted; step 2."
    first, second = a_request("A", 3, max_tokens=5), a_request("B", 4, max_tokens=5)
    batch = make_batch([first], max_num_seqs=2)
    _run_step(attempt, batch, case)
    batch.submit(second)
    answer = answer_alone(tuple(first.prompt_ids), 5)
    want = {"A": (answer[:1], 3), "B": (list(second.prompt_ids), 0)}
    idea = "A's newest token and B's whole prompt go into one row, in the order of `batch.running`."
    _run_step(attempt, batch, case, want, idea)
    _check_request(first, answer[:2], 4, case)
    _check_request(second, answer_alone(tuple(second.prompt_ids), 5)[:1], 4, case)


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
    _run_step(attempt, batch, case, {"A": (request.prompt_ids[2:], 2)}, idea)
    _check_request(request, answer_alone(tuple(request.prompt_ids), 3)[:1], 5, case)


def _check_waiting_request_is_admitted(attempt) -> None:
    case = "max_num_seqs=1; A (max_tokens 1) runs and B waits, prompts of 3 tokens; A gets its last token in step 1."
    first, second = a_request("A", 3, max_tokens=1), a_request("B", 3)
    batch = make_batch([first, second])
    _run_step(attempt, batch, case)
    _check_request(first, answer_alone(tuple(first.prompt_ids), 1), 3, case)
    running = [request.id for request in batch.running]
    if "A" in running:
        idea = (
            "After all tokens are appended, `retire(batch)` removes finished requests and their caches. Do that "
            "before you admit, to make room."
        )
        if "A" not in _running_after_two_steps(attempt):
            idea = (
                "A leaves one step later, so you seem to retire at the start of a step. Do it at the end, after the "
                "tokens are appended, so that the next row is full."
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


def _check_two_leave(attempt) -> None:
    case = (
        "max_num_seqs=3; A and B (max_tokens 1) and C (max_tokens 4) run, D and E wait; A and B get their last token "
        "in step 1."
    )
    requests = [a_request(name, 3, max_tokens) for name, max_tokens in zip("ABCDE", (1, 1, 4, 4, 4))]
    batch = make_batch(requests, max_num_seqs=3)
    _run_step(attempt, batch, case)
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
    _run_step(attempt, batch, case)
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
        _run_step(attempt, batch, case)
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
                what = f"request {name} should get {short(want)}, as it does alone; it got {short(answer)}."
                raise Mistake(what, case=case, idea="Batching changes when a token is computed, but not which one.")
        if steps.count > expected.count:
            what = f"all answers are right, but they took {steps.count} steps; {expected.count} are enough."
            raise Mistake(what, case=case, idea="Does a request wait although the batch has room?")
