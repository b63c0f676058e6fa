"""Judges 02.1, `Request`: which states may follow each other, and when an answer finishes."""

from lessons_lib.batching.request import NEXT_STATES, IllegalTransition, RequestState
from lessons_lib.checks.exercise import Mistake, call, current_case, short
from lessons_lib.viz.words import marked

WAITING, PREFILLING, DECODING, FINISHED = RequestState


def check_request(attempt) -> None:
    _check_allowed_transitions(attempt)
    _check_refused_transitions(attempt)
    _check_first_tokens(attempt)
    _check_endings(attempt)
    _check_refused_tokens(attempt)


def _word(state) -> str:
    return state.value if isinstance(state, RequestState) else short(state)


def _request_in(attempt, state: RequestState, answer=(), max_tokens: int = 4, eos: int | None = 9):
    current_case.text = f"Request(id='A', prompt_ids=[5, 17, 42], max_new_tokens={max_tokens}, eos_token_id={eos})."
    request = attempt(id="A", prompt_ids=[5, 17, 42], max_new_tokens=max_tokens, eos_token_id=eos)
    request.state, request.output_ids = state, list(answer)
    return request


def _check_allowed_transitions(attempt) -> None:
    for before, nexts in NEXT_STATES.items():
        for after in sorted(nexts, key=lambda state: state.value):
            case = f"request A is {before.value}; `A.move_to(RequestState.{after.name})`."
            request = _request_in(attempt, before)
            try:
                call(request.move_to, after, case=case)
            except IllegalTransition:
                if request.state is after:
                    raise Mistake(
                        f"{before.value} → {after.value} is allowed; yours refused it, yet the request is now "
                        f"{after.value}.",
                        case=case,
                        idea="You seem to store the new state first and then look up what may follow *it*. "
                        "Do the lookup before you overwrite `self.state`.",
                    ) from None
                raise Mistake(
                    f"{before.value} → {after.value} is allowed; yours refused it.",
                    case=case,
                    idea="Look up the current state in `NEXT_STATES`: it maps to the set of states that may follow.",
                ) from None
            if request.state is not after:
                raise Mistake(
                    f"after an allowed transition the state should be {after.value}; yours is {_word(request.state)}.",
                    case=case,
                    idea="`move_to` must store the new state in `self.state`.",
                )


def _check_refused_transitions(attempt) -> None:
    pairs = [(before, after) for before in RequestState for after in RequestState if after not in NEXT_STATES[before]]
    # Transitions to another state first: staying is the subtler mistake.
    for before, after in sorted(pairs, key=lambda pair: pair[0] is pair[1]):
        case = f"request A is {before.value}; `A.move_to(RequestState.{after.name})`."
        request = _request_in(attempt, before)
        try:
            call(request.move_to, after, case=case)
        except IllegalTransition:
            if request.state is not before:
                raise Mistake(
                    f"the transition was refused, but the request is now {_word(request.state)}; it should still be "
                    f"{before.value}.",
                    case=case,
                    idea="You seem to change the state before you decide. Check first, then change `self.state`.",
                ) from None
            continue
        except NotImplementedError:
            raise
        except (AssertionError, ValueError, RuntimeError, KeyError) as error:
            raise Mistake(
                f"an illegal transition should raise IllegalTransition; yours raised {type(error).__name__}.",
                case=case,
                idea="The caller must be able to tell this refusal from any other error: `raise "
                "IllegalTransition(...)`.",
            ) from None
        if request.state is before:
            what, idea = (
                "nothing happened",
                "A silent refusal hides the mistake in the caller. Raise `IllegalTransition`.",
            )
            if before is after:
                idea = (
                    "Staying in a state is a transition too, and no state may follow itself. Raise `IllegalTransition`."
                )
        else:
            what, idea = (
                "yours allowed it",
                "Refuse every pair that isn't in `NEXT_STATES`, not just some of them.",
            )
        raise Mistake(
            f"{before.value} → {after.value} is illegal and should raise IllegalTransition; {what}.",
            case=case,
            idea=idea,
        )


def _append(request, token: int, before: str):
    """append_token on a request that accepts tokens; returns the case."""
    case = f"{before}; `A.append_token({token})`."
    try:
        call(request.append_token, token, case=case)
    except IllegalTransition:
        idea = "Call `move_to` only if the state changes: from prefilling to decoding, or to finished."
        raise Mistake(
            "`append_token` raised IllegalTransition on a request that should accept the token.", case=case, idea=idea
        ) from None
    return case


def _check_first_tokens(attempt) -> None:
    for state in (PREFILLING, DECODING):
        request = _request_in(attempt, state)
        case = _append(request, 7, f"request A is {state.value} with an empty answer, max_new_tokens 4, end token 9")
        if list(request.output_ids) != [7]:
            raise Mistake(
                f"`output_ids` should be [7]; yours is {short(request.output_ids)}.",
                case=case,
                idea="Append every token to `output_ids`, once.",
            )
        if request.state is not DECODING:
            idea = (
                "It has 1 token of 4, and 7 isn't the end token. `max_new_tokens` limits the answer; does your code "
                "count something else, such as the prompt's 3 tokens?"
                if request.state is FINISHED
                else "The first token comes from the prefill. With it, the prompt is done and the request starts "
                "decoding."
                if state is PREFILLING
                else "This is neither the end token nor the last token allowed."
            )
            raise Mistake(f"A should be decoding; it is {_word(request.state)}.", case=case, idea=idea)
        if request.num_computed_tokens != 0:
            raise Mistake(
                f"`append_token` should leave `num_computed_tokens` unchanged, here 0; yours set it to "
                f"{short(request.num_computed_tokens)}.",
                case=case,
                idea="It counts tokens whose keys and values are in the cache. A token that was just chosen has none "
                "yet: the pass that feeds it will compute them, and the loop counts it then.",
            )
        if request.finish_reason is not None:
            raise Mistake(
                f"A has not finished, so its finish_reason should be None; yours is {request.finish_reason!r}.",
                case=case,
            )


# (state, answer so far, max_new_tokens, end token, token, reason)
ENDINGS = (
    (DECODING, [7, 7], 4, 9, 8, None),
    (DECODING, [7], 4, 9, 9, "stop"),
    (DECODING, [7, 7, 7], 4, 9, 7, "length"),
    (DECODING, [7, 7, 7], 4, None, 7, "length"),
    (DECODING, [7], 4, 0, 0, "stop"),
    (DECODING, [7, 7, 7], 4, 9, 9, "stop"),
    (PREFILLING, [], 1, 9, 7, "length"),
    (PREFILLING, [], 4, 9, 9, "stop"),
)


def _check_endings(attempt) -> None:
    for state, answer, max_tokens, eos, token, reason in ENDINGS:
        request = _request_in(attempt, state, answer, max_tokens, eos)
        case = _append(
            request,
            token,
            f"request A is {state.value} with the answer {answer}, max_new_tokens {max_tokens}, end token {eos}",
        )
        if reason is None:
            if request.state is not DECODING:
                raise Mistake(
                    f"A has 3 of 4 tokens and no end token; it should be decoding, but is {_word(request.state)}.",
                    case=case,
                    idea="You seem to finish one token too early. Include the new token in the count, then compare "
                    "it with `max_new_tokens`.",
                )
            continue
        _check_ending(request, state, answer, max_tokens, eos, token, reason, case)


def _check_ending(request, before, answer, max_tokens, eos, token, reason, case) -> None:
    want = [*answer, token]
    if list(request.output_ids) != want:
        left_out = list(request.output_ids) == answer and token == eos
        idea = (
            "The end token is part of the answer, as in `generate`. Append it, then finish."
            if left_out
            else "The token that finishes a request is appended to `output_ids` too, once."
        )
        raise Mistake(
            f"`output_ids` should be {want}; yours is {marked(want, request.output_ids)}.", case=case, idea=idea
        )
    if request.state is not FINISHED:
        if eos == 0 and token == 0:
            idea = (
                "0 is a token id like any other, but it counts as False in Python. Compare with `==`; don't write "
                "`if self.eos_token_id`."
            )
        elif request.finish_reason is not None:
            idea = (
                f"You set finish_reason to {request.finish_reason!r} but left the state unchanged. "
                "The loop only releases the slots of requests in the state FINISHED: call "
                "`move_to(RequestState.FINISHED)`."
            )
        elif before is PREFILLING:
            idea = (
                "The first token of an answer can also be its last one: a request can go straight from prefilling to "
                "finished. Look at the token and the limit in every state."
            )
        elif reason == "length":
            idea = (
                f"With this token the answer has {max_tokens} of {max_tokens} tokens. If you test for *more* than "
                "`max_new_tokens`, the request runs one token too far."
            )
        else:
            idea = "This is the end token. Compare the token with `self.eos_token_id`."
        raise Mistake(f"A should be finished; it is {_word(request.state)}.", case=case, idea=idea)
    if request.finish_reason != reason:
        idea = (
            'If the last token allowed is also the end token, the model stopped by itself: the reason is "stop".'
            if len(answer) + 1 == max_tokens and token == eos
            else '"stop" is for the end token, "length" for the token limit.'
        )
        raise Mistake(f"finish_reason should be {reason!r}; yours is {request.finish_reason!r}.", case=case, idea=idea)


def _check_refused_tokens(attempt) -> None:
    for state, answer, token in ((WAITING, [], 7), (WAITING, [], 9), (FINISHED, [7, 9], 7), (FINISHED, [7, 9], 9)):
        request = _request_in(attempt, state, answer)
        request.finish_reason = "stop" if state is FINISHED else None
        before = request.finish_reason
        case = (
            f"request A is {state.value} with the answer {answer}, max_new_tokens 4, end token 9; "
            f"`A.append_token({token})`."
        )
        try:
            call(request.append_token, token, case=case)
        except IllegalTransition:
            if list(request.output_ids) != answer or request.state is not state or request.finish_reason != before:
                raise Mistake(
                    f"the token was refused, but the request changed: answer {short(request.output_ids)}, "
                    f"{_word(request.state)}, finish_reason {request.finish_reason!r}.",
                    case=case,
                    idea="Call `move_to` before you change anything else. If it refuses, nothing has changed yet.",
                ) from None
            continue
        raise Mistake(
            f"a {state.value} request accepts no tokens; `append_token` should raise IllegalTransition, but didn't.",
            case=case,
            idea="A request that isn't decoding yet has to move to DECODING with its token. In this state, `move_to` "
            "refuses that."
            if token == 7
            else "This is the end token, so the request would have to move to FINISHED. In this state, `move_to` "
            "refuses that: call it, and don't set `self.state` yourself.",
        )
