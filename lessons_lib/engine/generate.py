"""Lesson 12: two ways to wait for an engine: for several completions at once, or for each token of one."""

from collections.abc import Iterator
from collections.abc import Sequence as ListOf
from threading import get_ident
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm

from lessons_lib.engine.outputs import EngineRequest, NewToken, RequestOutput
from lessons_lib.engine.requests_in import checked_params, logits_rules, new_sequence
from lessons_lib.engine.sampling import SamplingParams
from lessons_lib.models.prompts import BadRequest, HasToList, shortened

if TYPE_CHECKING:
    from lessons_lib.engine.llm_engine import LLMEngine


def generate(
    engine: "LLMEngine",
    prompts: ListOf[str | ListOf[int]],
    params: SamplingParams | ListOf[SamplingParams | None] | None = None,
    *,
    progress: bool = False,
    cache_salt: str | None = None,
) -> list[RequestOutput]:
    """Complete several prompts, and return when all have ended.

    Args:
        prompts: texts, or lists of token ids.
        params: one SamplingParams for all, a list with one for each, or None.
        progress: show a progress bar.
        cache_salt: of all the prompts, see `LLMEngine.add_request`.

    Returns:
        the outputs, in the order of the prompts. One that failed says so in `error`.

    Raises:
        BadRequest, OutOfBlocks: see `LLMEngine.add_request`; none of them was added.
    """
    if isinstance(prompts, str):
        raise BadRequest("prompts is one string; give a list of prompts, such as `[prompt]`.")
    if not isinstance(prompts, ListOf | HasToList):
        raise BadRequest(f"prompts is {shortened(prompts)}; give a list of prompts.")
    each = _one_each(params, len(prompts))
    # All are checked before the first is added.
    sequences = []
    for index, (prompt, own) in enumerate(zip(prompts, each)):
        checked = checked_params(engine, own)
        sequence = new_sequence(engine, f"prompt {index}", f"prompt {index}", prompt, checked)
        logits_rules(engine, checked, sequence)
        sequences.append(sequence)
    unfinished: dict[EngineRequest, None] = {}
    try:
        with engine.lock:
            for sequence, own in zip(sequences, each):
                engine.add_request(sequence.prompt_ids, own, cache_salt=cache_salt, awaited=unfinished)
            requests = list(unfinished)
        with tqdm(total=len(requests), disable=not progress, unit="request") as bar:
            while before := len(unfinished):
                engine.advance()
                bar.update(before - len(unfinished))
    finally:
        for request in list(unfinished):
            _leave(engine, request)
    return [request.result for request in requests if request.result]


def _one_each(params: Any, count: int) -> list[SamplingParams | None]:
    if params is None or isinstance(params, SamplingParams):
        return [params] * count
    if not isinstance(params, ListOf):
        raise BadRequest(f"params is {shortened(params)}; give one SamplingParams for all, a list of them, or None.")
    if len(params) != count:
        raise BadRequest(f"{len(params)} sampling parameters for {count} prompts; give one for all, or one for each.")
    return list(params)


def stream(
    engine: "LLMEngine", prompt: str | ListOf[int], params: SamplingParams | None = None, **options: Any
) -> Iterator[NewToken]:
    """Complete one prompt, and yield each token when it is there. All other requests in the engine are served along.

    When the caller stops reading, the request is aborted.

    Args:
        See `LLMEngine.add_request`. The request is interactive unless the options say otherwise.

    Raises:
        What went wrong, if the request failed.
    """
    arrived: list[NewToken] = []
    unfinished: dict[EngineRequest, None] = {}
    everything: dict[str, Any] = {"is_interactive": True, "on_token": arrived.append, "awaited": unfinished} | options
    try:
        with engine.lock:  # a step of another thread may finish the request
            engine.add_request(prompt, params, **everything)
            (request,) = unfinished
        reader = _read(engine, request, arrived)
        next(reader)  # into its `try`: from now on, dropping it aborts the request, even if nothing was ever read
        return reader
    except BaseException:
        for request in list(unfinished):
            _leave(engine, request)
        raise


def _read(engine: "LLMEngine", request: EngineRequest, arrived: list[NewToken]) -> Iterator[Any]:
    try:
        yield
        while True:
            result = request.result  # before looking at tokens: another thread's step may add the last ones right now
            if result and result.finish_reason == "abort":
                return  # nothing follows an abort, not even what had arrived before it
            if arrived:
                yield arrived.pop(0)
            elif result is None:
                engine.advance()
            elif result.error:
                raise result.error
            else:
                return
    finally:
        _leave(engine, request)


def _leave(engine: "LLMEngine", request: EngineRequest) -> None:
    """The caller waits for this request no longer."""
    if engine.calling_thread == get_ident():
        engine.abandoned.append(request)  # the garbage collector may end a stream in the middle of a step
    elif engine.requests.get(request.id) is request:
        engine.abort(request.id)
