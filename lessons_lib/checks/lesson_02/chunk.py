"""Judges 02.4, `prefill_chunk`: one chunk of the oldest prompt, in its slot, at its positions."""

import torch

from lessons_lib.batching.request import IllegalTransition, Request, RequestState
from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_02.batch import SeenPass, a_request, answer_alone, make_batch, watch_slot_passes
from lessons_lib.viz.words import marked


def check_prefill_chunk(attempt) -> None:
    # (prompt tokens, prefill_step, max_new_tokens)
    for prompt_length, prefill_step, max_tokens in (
        (3, 8, 4),
        (5, 2, 4),
        (4, 2, 4),
        (3, 3, 4),
        (3, 8, 1),
        (9, 4, 4),
        (6, 1, 4),
    ):
        _check_one_prompt(attempt, prompt_length, prefill_step, max_tokens)
    _check_which_prompt(attempt)
    _check_nothing_to_prefill(attempt)


def _check_one_prompt(attempt, prompt_length: int, prefill_step: int, max_tokens: int) -> None:
    request = a_request("A", prompt_length, max_tokens)
    # Slot 1 of 2, so that a hard-coded row is noticed.
    batch = make_batch(running={1: request}, num_slots=2, prefill_step=prefill_step)
    first_token = answer_alone(tuple(request.prompt_ids), max_tokens)[0]
    starts = range(0, prompt_length, prefill_step)
    for number, start in enumerate(starts, start=1):
        case = (
            f"A is in slot 1 with a prompt of {prompt_length} tokens, prefill_step {prefill_step}; "
            f"call {number} of {len(starts)}."
        )
        end = min(start + prefill_step, prompt_length)
        prompt = list(request.prompt_ids)
        with watch_slot_passes(batch) as seen:
            try:
                call(attempt, batch, case=case)
            except IllegalTransition as error:
                _name_second_move(error, request, case)
                raise
            except AttributeError as error:
                _name_no_range(error, case)
                raise
            except IndexError as error:
                if seen and seen[0].slots == [1]:
                    _name_wrong_row(error, case)
                _name_flat_lists(error, case)
                raise
            except RuntimeError:
                if seen:
                    _name_unequal_lists(seen[0], case)
                raise
        _refuse_changed_prompt(request, prompt, case)
        _check_chunk_pass(seen, request, start, end, number, case)
        _check_after_chunk(
            request, end, prompt_length, first_token, max_tokens, case, is_full=end - start == prefill_step
        )
        if batch.running.get(1) is not request:
            raise Mistake(
                "A was in slot 1 before the call and has lost it.",
                case=case,
                idea="A finished request keeps its slot until the next step begins. The step releases it, not the "
                "chunk.",
            )


def _refuse_changed_prompt(request: Request, before: list[int], case: str) -> None:
    after = list(request.prompt_ids)
    if after == before:
        return
    idea = "The prompt stays as it is; `num_computed_tokens` says how far its request has come."
    if after[: len(before)] == before and after[len(before) :] == list(request.output_ids):
        idea = (
            "New tokens belong to the answer only: `request.append_token(token)` appends to `output_ids`. In "
            "`prompt_ids` they would count as prompt."
        )
    raise Mistake(
        f"your code changed `request.prompt_ids`. It was {short(before)} before the call and {short(after)} after it.",
        case=case,
        idea=idea,
    )


def _name_wrong_row(error: IndexError, case: str) -> None:
    if "size 1" in str(error):
        raise Mistake(
            "the pass computed one slot, so its logits have one row, row 0; yours looks for another one.",
            case=case,
            idea="`forward` returns one row of logits for each slot that it was given, not for each slot of the batch.",
        ) from None


def _name_second_move(error: IllegalTransition, request: Request, case: str) -> None:
    if request.output_ids:
        raise Mistake(
            f"A has its first token and is {request.state.value}, and then your code moved it once more: {error}",
            case=case,
            idea="`request.append_token(token)` has made the transition already. Don't call `move_to` after it.",
        ) from None


def _name_no_range(error: AttributeError, case: str) -> None:
    if error.name == "start" and isinstance(error.obj, list | tuple | int):
        raise Mistake(
            f"`forward` stopped with AttributeError: {error}.",
            case=case,
            idea="`slots` is a `range` of rows, such as `range(2, 3)` for slot 2 alone.",
        ) from None


def _name_flat_lists(error: IndexError, case: str) -> None:
    if "too many indices for tensor of dimension 1" in str(error):
        raise Mistake(
            f"`forward` stopped with IndexError: {error}.",
            case=case,
            idea="`tokens` and `positions` contain one list per row. For one row, pass `[chunk]` and "
            "`[list(range(start, end))]`.",
        ) from None


def _name_unequal_lists(fed: SeenPass, case: str) -> None:
    tokens, positions = len(fed.tokens[0]), len(fed.positions[0])
    if tokens != positions:
        raise Mistake(
            f"`forward` was given {_counted(tokens, 'token')}, but {_counted(positions, 'position')}.",
            case=case,
            idea="Every token has one position. The last chunk of a prompt may be shorter than `prefill_step`, and its "
            "positions with it.",
        ) from None


def _check_chunk_pass(seen: list[SeenPass], request: Request, start: int, end: int, number: int, case: str) -> None:
    prompt = request.prompt_ids
    if not seen:
        raise Mistake(
            "there are prompt tokens left to compute, but your code made no forward pass.",
            case=case,
            idea="`batch.slots_in(RequestState.PREFILLING)` lists the slots with an unfinished prompt. Take the next "
            "tokens of the first, call `forward` with them, and record in `num_computed_tokens` how many are computed.",
        )
    if len(seen) > 1:
        raise Mistake(
            f"one call should make one forward pass; yours made {len(seen)}.",
            case=case,
            idea="One chunk per call. The next chunk comes in the next step, so that decoding requests get a token in "
            "between.",
        )
    fed = seen[0]
    if fed.slots != [1]:
        raise Mistake(
            f"the pass should compute only slot 1, A's row of the cache; yours computed {_slots(fed.slots)}.",
            case=case,
            idea="Rows are slots: `range(slot, slot + 1)` is the one row of this request.",
        )
    tokens, want = fed.tokens[0], prompt[start:end]
    if tokens != want:
        raise Mistake(
            f"call {number} should feed {_counted(len(want), 'token')}, {short(want)}; "
            f"yours fed {len(tokens)}, {short(tokens)}.",
            case,
            _why_tokens(tokens, request, start, end),
        )
    positions = fed.positions[0]
    want = list(range(start, end))
    if positions != want:
        restarted = start and positions == list(range(end - start))
        idea = (
            "Your positions restart at 0. This chunk is a later part of the same sequence, and its keys would "
            "overwrite the first ones."
            if restarted
            else "The token at index i of the prompt has position i, counted from 0."
        )
        raise Mistake(f"the chunk's positions should be {want}; yours are {marked(want, positions)}.", case, idea)
    if fed.num_keys < end:
        raise Mistake(
            f"the pass reads {_counted(fed.num_keys, 'cache column')}; this chunk must see {end}: all tokens of the "
            "prompt up to the chunk's end.",
            case=case,
            idea=_why_few_columns(fed.num_keys, end, len(tokens)),
        )
    if fed.num_keys > end:
        raise Mistake(
            f"the pass reads {_counted(fed.num_keys, 'cache column')}; this chunk may see only the first {end}.",
            case=case,
            idea="The columns beyond the chunk's end hold none of this prompt's tokens yet. The mask hides them, but "
            "the pass reads them anyway: `num_keys` is the end of the chunk.",
        )


def _why_few_columns(num_keys: int, end: int, length: int) -> str:
    if num_keys == length:
        return "`num_keys` counts from column 0: it is the end of the chunk, not its length."
    if num_keys == end - 1:
        return f"Positions count from 0: the last one is {end - 1}, and `num_keys` is that plus 1, the chunk's end."
    return "`num_keys` counts from column 0: it is the end of the chunk."


def _why_tokens(tokens: list[int], request: Request, start: int, end: int) -> str:
    prompt = request.prompt_ids
    if tokens == prompt and (start, end) != (0, len(prompt)):
        return (
            "That is the whole prompt. Feed at most `batch.prefill_step` tokens; decoding requests wait for this pass."
        )
    if (start and tokens == prompt[: end - start]) or (start and tokens == prompt[:start]):
        return "That is the first chunk again. Start at `request.num_computed_tokens`, and advance it after each chunk."
    if tokens == prompt[start:]:
        return "That is everything left of the prompt. Feed at most `batch.prefill_step` tokens."
    return "The chunk starts at `num_computed_tokens` and is `prefill_step` long, or shorter at the end of the prompt."


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _slots(slots: list[int]) -> str:
    return "slot " + str(slots[0]) if len(slots) == 1 else "slots " + ", ".join(map(str, slots))


def _check_after_chunk(
    request: Request, end: int, prompt_length: int, first_token: int, max_tokens: int, case: str, is_full: bool
) -> None:
    if end < prompt_length and (request.output_ids or request.state is not RequestState.PREFILLING):
        raise Mistake(
            f"{end} of {prompt_length} prompt tokens are computed, so A should still be prefilling, with no token yet. "
            f"It has {short(request.output_ids)} and is {request.state.value}.",
            case=case,
            idea="After a part of the prompt, the logits are the model's guess at the next prompt token, which you "
            "already know. Only the chunk that completes the prompt gives a token.",
        )
    if request.num_computed_tokens != end:
        idea = "It counts the tokens whose keys and values are in the cache. Each chunk adds its length."
        if request.output_ids and request.num_computed_tokens == end + 1:
            idea += " Do you count the first token of the answer as well? It isn't in the cache yet."
        raise Mistake(
            f"num_computed_tokens should be {end}; yours is {request.num_computed_tokens}.", case=case, idea=idea
        )
    if end < prompt_length:
        return
    if not request.output_ids:
        exact = "A chunk of exactly `prefill_step` tokens can be the last one. " if is_full else ""
        raise Mistake(
            f"all {prompt_length} prompt tokens are computed, so A should have its first token. It has none.",
            case=case,
            idea=exact
            + "The prompt is complete when `num_computed_tokens` equals its length; then append the argmax of the "
            "logits. (Add this chunk to `num_computed_tokens` before you compare.)",
        )
    if list(request.output_ids) != [first_token]:
        raise Mistake(
            f"A's first token should be {first_token}; yours is {short(request.output_ids)}.",
            case=case,
            idea="`forward` returns one row of logits for the one slot, those of the prompt's last token. The first "
            "token is the index of the largest logit in that row.",
        )
    if isinstance(request.output_ids[0], torch.Tensor):
        raise Mistake(
            f"A's answer should be [{first_token}]; yours is {list(request.output_ids)}, a list with a tensor in it.",
            case=case,
            idea="A token id is a plain int. `argmax` returns a tensor: convert it with `int(...)` or `.item()`.",
        )
    want = RequestState.FINISHED if max_tokens == 1 else RequestState.DECODING
    if request.state is not want:
        raise Mistake(
            f"with its first token out of {max_tokens} allowed, A should be {want.value}; it is {request.state.value}.",
            case=case,
            idea="`request.append_token(token)` appends the token and updates the state. Use it instead of "
            "`output_ids.append`.",
        )


def _check_which_prompt(attempt) -> None:
    case = (
        "A was admitted first, into slot 1; then B, into slot 0; then C, into slot 2. All prompts have 5 tokens, "
        "prefill_step is 2."
    )
    first, second, third = (a_request(name, 5) for name in "ABC")
    batch = make_batch(running={1: first, 0: second, 2: third}, num_slots=3, prefill_step=2)
    with watch_slot_passes(batch) as seen:
        call(attempt, batch, case=case)
    done = {request.id: request.num_computed_tokens for request in (first, second, third)}
    if done == {"A": 2, "B": 2, "C": 2}:
        raise Mistake(
            "all three prompts got a chunk; one call computes a chunk of one prompt.",
            case=case,
            idea="Every decoding request waits for all chunks of a step. One chunk per step keeps that wait short and "
            "bounded.",
        )
    if done != {"A": 2, "B": 0, "C": 0}:
        idea = (
            "First come, first served. `batch.slots_in(RequestState.PREFILLING)` lists the slots in order of "
            "admission, not in numerical order."
        )
        if done["C"]:
            idea = (
                "You took the newest request. If new requests always go first, an old prompt may never be completed. "
                "The oldest is the first of `batch.slots_in(RequestState.PREFILLING)`."
            )
        raise Mistake(
            f"A was admitted first and should get the chunk; computed tokens are {done}.", case=case, idea=idea
        )
    if any(fed.slots != [1] for fed in seen):
        raise Mistake(f"A is in slot 1; your pass computed {_slots(seen[0].slots)}.", case=case)
    call(attempt, batch, case=case)
    done = {request.id: request.num_computed_tokens for request in (first, second, third)}
    if done != {"A": 4, "B": 0, "C": 0}:
        raise Mistake(
            f"the second call should compute A's next chunk; computed tokens are {done}.",
            case=case,
            idea="A keeps its turn until its prompt is complete: the order of admission decides, however far each "
            "request has come.",
        )
    for lengths in ((6, 2), (3, 5)):
        _check_unequal_prompts(attempt, *lengths)
    _check_beside_decoding(attempt)


_AMONG_THE_PREFILLING = (
    "`batch.running` also holds requests that are decoding. Choose among `batch.slots_in(RequestState.PREFILLING)`."
)


def _check_beside_decoding(attempt) -> None:
    case = "A was admitted first, into slot 0, and is decoding; B, in slot 1, is prefilling. prefill_step is 4."
    first, second = a_request("A", 3), a_request("B", 5)
    batch = make_batch(running={0: first, 1: second}, num_slots=2)
    first.num_computed_tokens = 3
    first.append_token(7)
    with watch_slot_passes(batch) as seen:
        try:
            call(attempt, batch, case=case)
        except (RuntimeError, LookupError, ValueError) as error:
            if second.num_computed_tokens:
                raise
            raise Mistake(
                "the chunk should be B's, because A's prompt is done; your code computed none, and raised "
                f"{type(error).__name__}: {str(error)[:160]}",
                case=case,
                idea=_AMONG_THE_PREFILLING,
            ) from None
    if second.num_computed_tokens in (1, 2, 3) and first.output_ids == [7] and all(fed.slots == [1] for fed in seen):
        raise Mistake(
            f"B's chunk should have 4 tokens; yours has {second.num_computed_tokens}.",
            case=case,
            idea="`prefill_step` limits the prompt tokens of a step. The token of the decoding request doesn't count.",
        )
    if second.num_computed_tokens != 4 or first.output_ids != [7] or any(fed.slots != [1] for fed in seen):
        raise Mistake(
            "the chunk should be B's, because A's prompt is done; "
            f"yours computed {second.num_computed_tokens} of B's tokens.",
            case=case,
            idea=_AMONG_THE_PREFILLING,
        )


def _check_unequal_prompts(attempt, first_length: int, second_length: int) -> None:
    case = (
        f"A was admitted first, with a prompt of {first_length} tokens; then B, with a prompt of {second_length}. "
        "prefill_step is 4."
    )
    first, second = a_request("A", first_length), a_request("B", second_length)
    call(attempt, make_batch(running={0: first, 1: second}, num_slots=2), case=case)
    done = {request.id: request.num_computed_tokens for request in (first, second)}
    if done != {"A": min(first_length, 4), "B": 0}:
        idea = "First come, first served, whatever the lengths of the prompts."
        if done["A"]:
            idea = "One call computes a chunk of one prompt, even if that chunk is shorter than `prefill_step`."
        raise Mistake(f"the chunk should be A's, and B should get none; computed tokens are {done}.", case, idea)


def _check_nothing_to_prefill(attempt) -> None:
    case = "A, in slot 0, is decoding; slot 1 is free; no request is prefilling."
    request = a_request("A", 3)
    batch = make_batch(running={0: request}, num_slots=2)
    request.num_computed_tokens = 3
    request.append_token(7)
    with watch_slot_passes(batch) as seen:
        try:
            call(attempt, batch, case=case)
        except (IndexError, StopIteration, ValueError, TypeError) as error:
            raise Mistake(
                f"no request is prefilling, so there is nothing to do; yours raised {type(error).__name__}: {error}.",
                case=case,
                idea="If the list of prefilling slots is empty, return.",
            ) from None
    if seen or request.output_ids != [7] or request.num_computed_tokens != 3:
        raise Mistake(
            "no request is prefilling, so nothing should happen; yours computed something or changed A.",
            case=case,
            idea="Choose among the slots whose request is in the state PREFILLING, and return if there are none.",
        )
