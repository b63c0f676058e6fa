"""Lesson 12: a call of the engine either happens or it doesn't, whatever interrupts it and whichever thread makes it.

Ctrl-C raises KeyboardInterrupt between any two lines, so an interrupted call can leave the scheduler, the pool and a
request half changed. None of that needs to be repaired: all of it follows from the tokens that the requests have. After
an interrupt, the next call drops all blocks, lets every unfinished sequence wait again with its tokens, and goes on.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import get_ident
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from transformers import PreTrainedTokenizerBase

from lessons_lib.engine.outputs import CompletionOutput, EngineRequest, RequestOutput

if TYPE_CHECKING:
    from lessons_lib.engine.llm_engine import LLMEngine

P = ParamSpec("P")
R = TypeVar("R")
EngineT = TypeVar("EngineT", bound="LLMEngine")


@dataclass
class Changes:
    """Wraps every change of an engine: `with engine.changes:`.

    Attributes:
        unfinished: changes that have begun and haven't finished. Between two calls: those that were interrupted.
    """

    unfinished: int = 0

    def __enter__(self) -> None:
        self.unfinished += 1

    def __exit__(self, error_type: type | None, *error: object) -> None:
        if error_type is None:
            self.unfinished -= 1


def one_call(method: Callable[Concatenate[EngineT, P], R]) -> Callable[Concatenate[EngineT, P], R]:
    """A method of an engine that changes it: one thread at a time, and recovered from an interrupt before it begins.

    Outputs that it returns are returned once: if an interrupt keeps them from the caller, they wait for the next step.
    """

    @functools.wraps(method)
    def call(engine: EngineT, /, *args: P.args, **kwargs: P.kwargs) -> R:
        is_nested = engine.calling_thread == get_ident()  # by a callback, or by another call of the engine
        returned: dict[EngineRequest, RequestOutput] = {}
        try:
            with engine.lock:
                try:
                    if not is_nested:
                        engine.calling_thread = get_ident()
                        engine.recover()
                        abort_abandoned(engine)
                    result = method(engine, *args, **kwargs)
                    if not is_nested:
                        raise_late_error(engine)
                    hand_over(engine, result, returned)
                finally:
                    if not is_nested:
                        engine.calling_thread = None
            return result
        except BaseException:
            with engine.lock:
                if not is_nested:
                    engine.calling_thread = None  # if the interrupt came in the `finally` above
                engine.unclaimed.update(returned)
            raise

    return call


def abort_abandoned(engine: "LLMEngine") -> None:
    """Abort the requests whose reader has left in the middle of a call."""
    while engine.abandoned:
        request = engine.abandoned[-1]
        if engine.requests.get(request.id) is request:
            engine.abort(request.id)
        engine.abandoned.pop()


def hand_over(engine: "LLMEngine", result: object, returned: dict[EngineRequest, RequestOutput]) -> None:
    """Move the outputs that a call returns from `unclaimed` to `returned`."""
    outputs = set(map(id, result if isinstance(result, list) else [result]))
    returned.update({request: output for request, output in engine.unclaimed.items() if id(output) in outputs})
    for request in returned:
        del engine.unclaimed[request]


def raise_late_error(engine: "LLMEngine") -> None:
    """Raise what a callback or a listener raised in the middle of a step: the first error, if there are several."""
    if engine.late_errors:
        errors, engine.late_errors = engine.late_errors, []
        raise errors[0]


def recover(engine: "LLMEngine") -> None:
    """After an interrupted call, make the engine right again. Otherwise do nothing.

    An interrupt in here is no different from any other: the requests hold all that is needed to begin again.
    """
    if not engine.changes.unfinished:
        return
    engine.reset()
    for request in list(engine.requests.values()):
        if request.result is None:
            restore(engine, request)
        else:
            engine.hand_in(request, request.result)
    engine.changes.unfinished = 0


def restore(engine: "LLMEngine", request: EngineRequest) -> None:
    """After a reset: let the unfinished sequences of a request wait again, with the tokens that they have."""
    if len(request.completions) < request.params.n:
        del request.completions[1:]  # the forks begin again once the prompt is computed
    error: Exception | None = None
    try:
        request.completions = [restored(each, engine.tokenizer) for each in request.completions]
    except Exception as failure:  # of the tokenizer
        error = failure
    if was_interrupted_in_callback(request):
        error = RuntimeError("an interrupt came during on_token, so whether the token was passed on isn't known.")
    for completion in request.completions:
        if error:
            completion.sequence.finish_reason = "error"
        elif not completion.sequence.finish_reason:
            engine.scheduler.add(completion.sequence)
            engine.completions[completion.sequence] = completion
    if error or request.is_finished:
        engine.end(request, request.completions[-1].sequence.finish_reason or "error", error)
    else:
        engine.note_request(request)


def restored(completion: CompletionOutput, tokenizer: PreTrainedTokenizerBase) -> CompletionOutput:
    """A completion like this one, made anew from its tokens, with nothing in the cache.

    Tokens that its `on_token` hasn't been called with are left out: they are computed again, and passed on then.
    """
    request, sequence = completion.request, completion.sequence
    known = completion.num_passed_on if request.on_token else len(completion.token_ids)
    token_ids = completion.token_ids[:known]
    if completion.logprobs is not None:
        token_ids = token_ids[: len(completion.logprobs)]
    sequence = replace(
        sequence, output_ids=[], finish_reason=None, num_computed_tokens=0, num_placeholders=0,
        blocks=[], swapped=[], block_hashes=[],
    )  # fmt: skip
    again = request.make_completion(completion.index, sequence, completion.seed, tokenizer)
    for token in token_ids:
        sequence.append_token(token)
        again.add_text()
    if completion.logprobs is not None:
        again.logprobs = completion.logprobs[: len(token_ids)]
    again.num_offered, again.num_passed_on = completion.num_offered, completion.num_passed_on
    again.first_token_time, again.last_token_time = completion.first_token_time, completion.last_token_time
    if sequence.finish_reason:
        again.finish(tokenizer)
    return again


def was_interrupted_in_callback(request: EngineRequest) -> bool:
    """Whether an interrupt came while `on_token` was called, so that it may have got its token or not."""
    return any(completion.num_offered > completion.num_passed_on for completion in request.completions)
