"""Lesson 12: the tokens of a step on their way out: text, stop strings, callbacks, and the ends of requests."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from lessons_lib.engine.outputs import CompletionOutput, NewToken, OnToken

if TYPE_CHECKING:
    from lessons_lib.engine.llm_engine import LLMEngine


def pass_on(engine: "LLMEngine", completions: Iterable[CompletionOutput]) -> None:
    """Pass on the newest token of each completion."""
    now, gaps = engine.clock(), []
    for completion in completions:
        if completion.sequence not in engine.completions:
            continue  # a callback has ended it
        # Most tokens have no reader, and there are many of them in every step.
        if completion.request.on_token or completion.detokenizer or completion.sequence.finish_reason:
            pass_on_one(engine, completion, now)
        if (previous := completion.last_token_time) is None:
            completion.first_token_time = now
            engine.metrics.ttft.add(now - completion.request.arrival)
            if completion.index == 0:
                engine.metrics.prompt_tokens += len(completion.request.prompt_ids)
        else:
            gaps.append(now - previous)
        completion.last_token_time = now
    engine.metrics.itl.add_all(gaps)


def pass_on_one(engine: "LLMEngine", completion: CompletionOutput, now: float) -> None:
    """Append the newest token of a completion to its text, call back, and see whether the completion has finished, and
    its request."""
    request, sequence = completion.request, completion.sequence
    is_running = not sequence.finish_reason
    try:
        token = completion.new_token(completion.add_text(), engine.tokenizer)
    except Exception as error:  # of the tokenizer
        if is_running:
            sequence.finish_reason = None  # a stop string may have been found; the scheduler has the sequence still
        engine.end(request, "error", error)
        return
    if sequence.finish_reason and is_running:  # by a stop string, which the scheduler doesn't know
        engine.scheduler.remove(sequence)
    if sequence.finish_reason and completion.first_token_time is not None:
        engine.metrics.tpot.add((now - completion.first_token_time) / (len(sequence.output_ids) - 1))
    if request.on_token:
        call_back(engine, request.on_token, token, completion)
        if engine.requests.get(request.id) is not request:
            return  # it has failed, or its own callback has aborted it
    if sequence.finish_reason:
        del engine.completions[sequence]
        try:
            completion.finish(engine.tokenizer)
        except Exception as error:  # of the tokenizer
            engine.end(request, "error", error)
            return
        if request.is_finished:
            engine.end(request, sequence.finish_reason)


def call_back(engine: "LLMEngine", on_token: OnToken, token: NewToken, completion: CompletionOutput) -> None:
    """Call `on_token`. If it raises, its request fails. Ctrl-C or SystemExit goes on to the caller of `step`, once the
    step is complete."""
    request, unfinished = completion.request, engine.changes.unfinished
    completion.num_offered = len(completion.token_ids)
    try:
        on_token(token)
    except BaseException as error:
        if engine.changes.unfinished > unfinished:
            raise  # it interrupted an abort or add_request of the callback
        if not isinstance(error, Exception):
            engine.late_errors.append(error)
        if engine.requests.get(request.id) is request:
            engine.end(request, "error", error)
    completion.num_passed_on = completion.num_offered
