"""Lesson 12: two ways to wait for answers of an engine: for all at once, or for each token of one."""

from collections.abc import Iterator

from tqdm.auto import tqdm

from lessons_lib.engine.outputs import EngineRequest, NewToken, RequestOutput
from lessons_lib.engine.sampling import SamplingParams
from lessons_lib.models.prompts import BadRequest


def generate(engine, prompts, params=None, *, progress: bool = False) -> list[RequestOutput]:
    """Answer several prompts, and return when all are answered.

    Args:
        prompts: texts, or lists of token ids.
        params: one SamplingParams for all, a list with one for each, or None.
        progress: show a bar.

    Returns:
        list of RequestOutput, in the order of the prompts. One that failed says so in `error`.

    Raises:
        BadRequest, OutOfBlocks: see `LLMEngine.add_request`; nothing was computed for any of them.
    """
    if isinstance(prompts, str):
        raise BadRequest("prompts is one string; give a list of prompts, such as `[prompt]`.")
    each = [params] * len(prompts) if params is None or isinstance(params, SamplingParams) else list(params)
    if len(each) != len(prompts):
        raise BadRequest(
            f"{len(each)} sampling parameters for {len(prompts)} prompts; give one for all, or one for each."
        )
    requests = []
    try:
        for prompt, own in zip(prompts, each):
            requests.append(engine.requests[engine.add_request(prompt, own)])
        with tqdm(total=len(requests), disable=not progress, unit="request") as bar:
            while still_served := [request for request in requests if request.result is None]:
                _step(engine, still_served)
                bar.update(sum(request.result is not None for request in still_served))
    finally:
        for request in requests:
            _leave(engine, request)
    return [request.result for request in requests]


def stream(engine, prompt, params=None, **options) -> Iterator[NewToken]:
    """Answer one prompt, and yield each token when it is there. Whoever else is in the engine is served along.

    When the caller stops reading, the request is aborted.

    Args:
        See `LLMEngine.add_request`. Somebody reads along, so the request is interactive, unless it is said to be not.

    Raises:
        What went wrong, if the request failed.
    """
    arrived = []
    name = engine.add_request(prompt, params, on_token=arrived.append, **{"is_interactive": True} | options)
    reader = _read(engine, engine.requests[name], arrived)
    next(
        reader
    )  # it is inside its `try` from now on: whoever drops it aborts the request, even if nothing was ever read
    return reader


def _read(engine, request: EngineRequest, arrived: list[NewToken]) -> Iterator[NewToken]:
    try:
        yield
        while arrived or request.result is None:
            if arrived:
                yield arrived.pop(0)
            else:
                _step(engine, [request])
        if request.result.error:
            raise request.result.error
    finally:
        _leave(engine, request)


def _step(engine, awaited: list[EngineRequest]) -> None:
    """A step; what has ended and is not awaited here is left for its own reader."""
    for output in engine.step():
        if not any(output is request.result for request in awaited):
            engine.keep(output)


def _leave(engine, request: EngineRequest) -> None:
    """Nobody waits for this request any more."""
    if request.result is None:
        engine.abort(request.id)
    engine.forget(request.result)
