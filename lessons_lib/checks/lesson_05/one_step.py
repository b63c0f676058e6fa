"""One step of an attempt at 05.4, watched: the row that it passes to `forward`, and what it does to a request."""

from traceback import extract_tb

import torch

from lessons_lib.attention.packing import PackedBatch
from lessons_lib.batching.ragged_batching import RaggedBatch, forward
from lessons_lib.batching.request import Request, RequestState
from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.viz.words import marked


def run_step(
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
            changed = {request.id for request in running if request.num_computed_tokens != computed_before[request.id]}
            _check_row(packed, want, case, row_idea, changed)
        return forward(batch, packed)

    waiting_before = len(batch.waiting)
    running = list(batch.running)
    computed_before = {request.id: request.num_computed_tokens for request in running}
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
    except IndexError as error:
        partly = [request for request in running if 0 < computed_before[request.id] < len(request.prompt_ids)]
        if not seen and partly:
            what = f"{str(error)[:120]}. {partly[0].id} has no answer token yet: its prompt is computed only in part."
            raise Mistake(f"your code raised IndexError: {what}", case=case, idea=row_idea) from None
        if not seen or len(batch.running) >= len(running):
            raise
        raise Mistake(
            f"your code raised IndexError: {str(error)[:120]}. {len(running)} requests were in the row; "
            f"{len(batch.running)} are left in `batch.running`.",
            case=case,
            idea="Do you retire before every request has its token? Then an index into `batch.running` no longer "
            "fits the rows of the logits. Append all tokens first, then retire.",
        ) from None
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


def _check_row(
    packed: PackedBatch, want: dict[str, tuple[list[int], int]], case: str, idea: str, changed: set[str]
) -> None:
    """Check each request's new tokens in the row and its number of cached tokens.

    Args:
        changed: the requests whose `num_computed_tokens` the step has changed before the pass.
    """
    bounds = packed.cu_seqlens_q.tolist()
    for index, (name, (tokens, cached)) in enumerate(want.items()):
        got = packed.input_ids.tolist()[bounds[index] : bounds[index + 1]]
        if got != tokens:
            raise Mistake(
                f"{name}'s part of the row should be {short(tokens)}; yours is {marked(tokens, got)}.",
                case=case,
                idea=idea,
            )
        if packed.cached_lens[index] != cached:
            what = f"{name} has {cached} tokens in its cache; you passed {packed.cached_lens[index]} to `pack`."
            idea = "The number of cached tokens is `request.num_computed_tokens`."
            if name in changed:
                idea += (
                    " Your step has changed it before the pass. Pass the number from before the step, and increase it "
                    "after `forward`: only then are the new keys and values in the cache."
                )
            raise Mistake(what, case=case, idea=idea)


def check_request(request: Request, want: list[int], computed: int, case: str) -> None:
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
            f"{request.id}'s answer should be {short(want)}; it is {marked(want, request.output_ids)}.",
            case=case,
            idea=idea,
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
        elif request.num_computed_tokens == 0 and request.state is RequestState.FINISHED:
            idea = (
                f"It hasn't changed, and {request.id} has finished. Does your code count only requests that go on, or "
                "count after `retire` has removed it from `batch.running`? Count for every request in the row."
            )
        elif computed and request.num_computed_tokens == 0:
            idea = (
                "It hasn't changed. Increase it by the number of tokens that this request had in the row, before "
                "`retire` and `admit` change `batch.running`."
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
