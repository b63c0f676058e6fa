"""Judges 05.4, `ragged_step`: one row with everything that is not computed yet, one token each, and the places given on at once."""

from functools import partial
from traceback import extract_tb
from types import SimpleNamespace

import torch

from lessons_lib.attention.packing import PackedBatch
from lessons_lib.batching.ragged_batching import RaggedBatch, forward, loop_forward, ragged_generate
from lessons_lib.batching.request import Request, RequestState
from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_05.requests import a_request, answer_alone, make_batch, ragged_requests
from lessons_lib.models.tiny_models import tiny_model


def check_ragged_step(attempt) -> None:
    _check_prefill(attempt)
    _check_decode(attempt)
    _check_two_prompts(attempt)
    _check_prefill_beside_decode(attempt)
    _check_place_is_given_on(attempt)
    _check_two_leave(attempt)
    _check_nobody_waits(attempt)
    _check_no_barrier(attempt)
    _check_answers(attempt)


def _turn(
    attempt, batch: RaggedBatch, case: str, want: dict[str, tuple[list[int], int]] | None = None, idea: str = ""
) -> None:
    """One step, with one call of `forward`.

    Args:
        want: request -> (its tokens in the row, how many it has in its cache), if the case is about that.
    """
    seen: list[PackedBatch] = []
    row_idea = idea

    def watched_forward(batch, packed):
        seen.append(packed)
        if len(seen) > 1:
            idea = "Prompts and single tokens go into the same row, and the next row is the next step's. No request needs a pass of its own."
            raise Mistake("a step should make one row; yours began a second.", case=case, idea=idea)
        if not all(hasattr(packed, name) for name in ("input_ids", "cu_seqlens_q", "context_lens")):
            idea = "`pack(new_tokens, cached_lens)` makes the PackedBatch that `forward` takes."
            raise Mistake(
                f"`forward` takes the batch and a PackedBatch; yours gave it {type(packed).__name__}.",
                case=case,
                idea=idea,
            )
        if len(batch.running) < len(running):
            idea = "A pass for each request is a loop, not a batch: `batch.running` stays as it is, and one row has a piece for everybody in it."
            raise Mistake(
                f"{len(running)} requests were running; when `forward` was called, {len(batch.running)} of them were left.",
                case=case,
                idea=idea,
            )
        if len(packed.new_lens) != len(batch.running):
            idea = "`forward` joins the caches of all running requests, so the row must have a piece for each of them: the whole prompt of one, a single token of another."
            raise Mistake(
                f"{len(batch.running)} requests are running; the row has pieces of {len(packed.new_lens)}.",
                case=case,
                idea=idea,
            )
        if want is not None:
            _check_row(packed, want, case, row_idea)
        return forward(batch, packed)

    waited = [request.id for request in batch.waiting]
    running = list(batch.running)
    prompts = {request.id: (request, list(request.prompt_ids)) for request in [*running, *batch.waiting]}
    try:
        call(attempt, batch, case=case, forward=watched_forward)
    except ValueError as error:
        if "pack" not in [frame.name for frame in extract_tb(error.__traceback__)]:
            raise
        idea = "Of each running request, the row takes what is known and not computed. That is never nothing: in a decode it is the newest token of the answer."
        raise Mistake(f"`pack` refused what your step gave it: {str(error)[:160]}", case=case, idea=idea) from None
    for name, (request, before) in prompts.items():
        if request.prompt_ids != before:
            idea = "`request.prompt_ids += ...` changes the list in the request. `prompt_ids + output_ids` makes a new one."
            raise Mistake(
                f"{name}'s prompt had {len(before)} tokens before the step and has {len(request.prompt_ids)} after it.",
                case=case,
                idea=idea,
            )
    if not seen:
        if any(request.output_ids for request in running) and batch.packed is not None:
            idea = "The caller may bring another way to compute the row, as `loop_forward` below. Call `forward(batch, packed)` by that name."
            raise Mistake("your step did not use the `forward` that it was given.", case=case, idea=idea)
        what = f"{len(running)} running and {len(waited)} waiting, but nothing was computed."
        raise Mistake(
            what,
            case=case,
            idea="Pack what each running request has not computed yet, and call `forward(batch, packed)`.",
        )


def _check_row(packed: PackedBatch, want: dict[str, tuple[list[int], int]], case: str, idea: str) -> None:
    """The row has these new tokens after so many cached ones, for each request in turn."""
    bounds = packed.cu_seqlens_q.tolist()
    for index, (name, (tokens, cached)) in enumerate(want.items()):
        got = packed.input_ids.tolist()[bounds[index] : bounds[index + 1]]
        if got != tokens:
            raise Mistake(
                f"{name}'s piece of the row should be {short(tokens)}; yours is {short(got)}.", case=case, idea=idea
            )
        if packed.cached_lens[index] != cached:
            what = f"{name} has {cached} tokens in its cache; `pack` was told {packed.cached_lens[index]}."
            raise Mistake(
                what,
                case=case,
                idea="`request.num_computed_tokens` says how many tokens of this request are in the cache.",
            )


def _check_request(request: Request, want: list[int], computed: int, case: str) -> None:
    if any(isinstance(token, torch.Tensor) for token in request.output_ids):
        idea = "A token id is a plain int. `argmax(dim=-1)` gives a tensor with a token for each request; `.tolist()` makes it a list of ints."
        raise Mistake(f"{request.id}'s answer should be {want}; yours holds tensors.", case=case, idea=idea)
    if request.output_ids != want:
        idea = "Row i of the logits belongs to request i of `batch.running`; its argmax is that request's next token."
        if not request.output_ids or request.output_ids == want[: len(request.output_ids)]:
            idea = "Everybody in the row gets a token in every step, `request.append_token(...)`: from a prompt the first, from a decode the next."
        elif request.output_ids[: len(want)] == want:
            idea = "One row gives one token to each request. Append it once."
        elif not any(request.output_ids):
            idea = "The logits are [requests, vocabulary]. `argmax(dim=-1)` looks for the best token of each request; `dim=0` looks for the best request of each token."
        raise Mistake(
            f"{request.id} should have {short(want)}; it has {short(request.output_ids)}.", case=case, idea=idea
        )
    if request.num_computed_tokens != computed:
        idea = "It counts the tokens whose keys and values are in the cache: it grows by the number of tokens that this request had in the row."
        if request.num_computed_tokens == computed + 1:
            idea = "You counted the token that has just come out. Its key and value are computed when it is fed, in the next step."
        elif computed and request.num_computed_tokens == 0:
            idea = "It has not grown at all, so the next step would compute everything again. It grows by the number of tokens that this request had in the row."
        elif computed and request.num_computed_tokens == 1:
            idea = "After a prompt it grows by the length of the prompt, not by one: by the number of tokens that this request had in the row."
        what = f"{request.id}'s num_computed_tokens should be {computed}; it is {request.num_computed_tokens}."
        raise Mistake(what, case=case, idea=idea)


def _check_prefill(attempt) -> None:
    case = "one place; A has a prompt of 3 tokens and a cap of 3; the first step."
    request = a_request("A", 3)
    batch = make_batch([request])
    idea = "Nothing of A is computed yet, so the row has its whole prompt: `(prompt_ids + output_ids)[num_computed_tokens:]`."
    _turn(attempt, batch, case, {"A": (list(request.prompt_ids), 0)}, idea)
    _check_request(request, answer_alone(tuple(request.prompt_ids), 3)[:1], 3, case)
    if request.state is not RequestState.DECODING:
        idea = "`request.append_token(token)` takes the token and moves the request on. Use it in place of `output_ids.append`."
        raise Mistake(
            f"with its first token, of 3 allowed, A should be decoding; it is {request.state.value}.",
            case=case,
            idea=idea,
        )


def _check_decode(attempt) -> None:
    case = "one place; A has a prompt of 3 tokens and a cap of 4; the second step and the third."
    request = a_request("A", 3, max_tokens=4)
    answer = answer_alone(tuple(request.prompt_ids), 4)
    batch = make_batch([request])
    _turn(attempt, batch, case)
    for number in (1, 2):
        idea = "Only the token of the step before is not computed yet. The same rule as for a prompt gives it: `(prompt_ids + output_ids)[num_computed_tokens:]`."
        _turn(attempt, batch, case, {"A": ([answer[number - 1]], 2 + number)}, idea)
        _check_request(request, answer[: number + 1], 3 + number, case)


def _check_two_prompts(attempt) -> None:
    case = "two places; A (prompt of 3 tokens) and B (prompt of 2); the first step."
    first, second = a_request("A", 3), a_request("B", 2)
    idea = "The pieces stand in the order of `batch.running`; `forward` joins the caches in that order."
    want = {"A": (list(first.prompt_ids), 0), "B": (list(second.prompt_ids), 0)}
    _turn(attempt, make_batch([first, second], max_num_seqs=2), case, want, idea)
    for request in (first, second):
        _check_request(request, answer_alone(tuple(request.prompt_ids), 3)[:1], len(request.prompt_ids), case)


def _check_prefill_beside_decode(attempt) -> None:
    case = "two places; A (prompt of 3 tokens) alone in step 1; then B (prompt of 4) is submitted; step 2."
    first, second = a_request("A", 3, max_tokens=5), a_request("B", 4, max_tokens=5)
    batch = make_batch([first], max_num_seqs=2)
    _turn(attempt, batch, case)
    batch.submit(second)
    answer = answer_alone(tuple(first.prompt_ids), 5)
    want = {"A": (answer[:1], 3), "B": (list(second.prompt_ids), 0)}
    _turn(attempt, batch, case, want, "A's newest token and B's whole prompt stand in one row.")
    _check_request(first, answer[:2], 4, case)
    _check_request(second, answer_alone(tuple(second.prompt_ids), 5)[:1], 4, case)


def _check_place_is_given_on(attempt) -> None:
    case = "one place; A (cap 1) runs and B waits, prompts of 3 tokens; step 1, in which A gets its last token."
    first, second = a_request("A", 3, max_tokens=1), a_request("B", 3)
    batch = make_batch([first, second])
    _turn(attempt, batch, case)
    _check_request(first, answer_alone(tuple(first.prompt_ids), 1), 3, case)
    running = [request.id for request in batch.running]
    if "A" in running:
        idea = "Once the tokens are handed out, `retire(batch)` takes the finished requests and their caches out. Do that before you admit: the place must be free."
        if "A" not in _running_after_two_steps(attempt):
            idea = "A leaves one step later: you seem to retire at the start of a step. Do it at the end, once the tokens are handed out, so that the next row is full."
        raise Mistake("A has finished and should have left; it is still in `batch.running`.", case=case, idea=idea)
    if "A" in batch.caches:
        raise Mistake(
            "A has left, but its cache is still in `batch.caches`.",
            case=case,
            idea="`retire(batch)` removes both. A cache that nobody removes is memory lost.",
        )
    if "B" not in running:
        idea = "End the step with `admit(batch)`: then the next row has B's prompt in it, and no step goes by with an empty place."
        if "C" in _running_after_two_steps(attempt):
            idea = "A newcomer comes in one step later: you seem to admit before you retire. Free the place first, and then give it away."
        raise Mistake(
            "A's place is free and B waits; after the step B should be in `batch.running`. It still waits.",
            case=case,
            idea=idea,
        )
    if second.state is not RequestState.PREFILLING or "B" not in batch.caches:
        idea = "A request that comes in begins to prefill and gets an empty cache. `admit(batch)` does all of that."
        raise Mistake(
            f"B is in the batch, but is {second.state.value} and has {'a' if 'B' in batch.caches else 'no'} cache.",
            case=case,
            idea=idea,
        )
    if second.output_ids:
        idea = "B came in after this step's row was computed; its prompt is in the next row."
        raise Mistake(
            f"B was admitted at the end of the step and has {short(second.output_ids)} already.", case=case, idea=idea
        )


def _running_after_two_steps(attempt) -> list[str]:
    """Who runs after two steps of A (cap 1) and B, with C waiting, on two places. Tells what comes late from what never comes."""
    batch = make_batch(
        [a_request("A", 3, max_tokens=1), a_request("B", 3, max_tokens=4), a_request("C", 3)], max_num_seqs=2
    )
    try:
        attempt(batch)
        attempt(batch)
    except Exception:  # an attempt that is known to be wrong may raise anything
        pass
    return [request.id for request in batch.running]


def _check_two_leave(attempt) -> None:
    case = "three places; A and B (cap 1), C (cap 4) run, D and E wait; step 1, in which A and B get their last token."
    requests = [a_request(name, 3, max_tokens) for name, max_tokens in zip("ABCDE", (1, 1, 4, 4, 4))]
    batch = make_batch(requests, max_num_seqs=3)
    _turn(attempt, batch, case)
    running = [request.id for request in batch.running]
    if running != ["C", "D", "E"]:
        idea = "Everybody who has finished leaves, and every free place is given away: `retire(batch)` and `admit(batch)` do it for all."
        if any(request.state is RequestState.FINISHED for request in batch.running):
            idea = "A list must not lose members while a `for` goes over it: the one behind is skipped. Hand out all tokens first, then retire."
        raise Mistake(
            f"C, D and E should be running after the step; yours has {', '.join(running) or 'nobody'}.",
            case=case,
            idea=idea,
        )


def _check_nobody_waits(attempt) -> None:
    case = "two places; A (cap 1) and B (cap 4) run, nobody waits; step 1, in which A gets its last token."
    batch = make_batch([a_request("A", 3, max_tokens=1), a_request("B", 3, max_tokens=4)], max_num_seqs=2)
    _turn(attempt, batch, case)
    running = [request.id for request in batch.running]
    if running != ["B"]:
        idea = "Who has finished leaves, whether somebody waits or not. Otherwise it would be computed on and on."
        raise Mistake(f"B alone should be running; yours has {', '.join(running) or 'nobody'}.", case=case, idea=idea)


def _check_no_barrier(attempt) -> None:
    case = "two places; A (cap 9) and B (cap 2) run, C waits; B has its last token in step 2; step 3."
    requests = [a_request("A", 3, max_tokens=9), a_request("B", 3, max_tokens=2), a_request("C", 3, max_tokens=3)]
    batch = make_batch(requests, max_num_seqs=2)
    for _ in range(3):
        _turn(attempt, batch, case)
    if [len(request.output_ids) for request in requests] != [3, 2, 1]:
        what = f"after three steps A, B and C should have 3, 2 and 1 tokens; they have {', '.join(str(len(r.output_ids)) for r in requests)}."
        raise Mistake(
            what,
            case=case,
            idea="C takes B's place while A goes on. Waiting until all have finished would be the batch barrier.",
        )


def _check_answers(attempt) -> None:
    prompts, max_tokens_each = ragged_requests(9, seed=7)
    model, tokenizer = tiny_model("qwen2"), SimpleNamespace(pad_token_id=0, eos_token_id=None)
    settings = dict(max_new_tokens=max_tokens_each, max_num_seqs=3)
    steps = len(ragged_generate(model, tokenizer, prompts, **settings).trace.steps)
    for how, step in (("", attempt), (" and `loop_forward`", partial(attempt, forward=loop_forward))):
        case = f"nine requests with caps {max_tokens_each}, at most three in a row, through `ragged_generate`{how}."
        got = call(ragged_generate, model, tokenizer, prompts, case=case, step=step, **settings)
        for name, (prompt, max_tokens, answer) in enumerate(zip(prompts, max_tokens_each, got.outputs)):
            want = answer_alone(tuple(prompt), max_tokens)
            if answer != want:
                what = f"request {name} should get {short(want)}, as it does alone; it got {short(answer)}."
                raise Mistake(what, case=case, idea="Batching changes when a token is computed, never which one.")
        if len(got.trace.steps) > steps:
            what = f"all answers are right, after {len(got.trace.steps)} steps; {steps} are enough."
            raise Mistake(what, case=case, idea="Is a place left empty while somebody waits?")
