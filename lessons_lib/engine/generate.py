"""Lesson 12: two ways to wait for an engine: for several completions at once, or for each token of one."""

from collections.abc import Iterator
from collections.abc import Sequence as ListOf
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm

from lessons_lib.engine.outputs import EngineRequest, NewToken, RequestOutput
from lessons_lib.engine.sampling import SamplingParams
from lessons_lib.models.prompts import BadRequest

if TYPE_CHECKING:
    from lessons_lib.engine.llm_engine import LLMEngine


def generate(
    engine: "LLMEngine",
    prompts: ListOf[str | ListOf[int]],
    params: SamplingParams | ListOf[SamplingParams | None] | None = None,
    *,
    progress: bool = False,
) -> list[RequestOutput]:
    """Complete several prompts, and return when all have ended.

    Args:
        prompts: texts, or lists of token ids.
        params: one SamplingParams for all, a list with one for each, or None.
        progress: show a progress bar.

    Returns:
        the outputs, in the order of the prompts. One that failed says so in `error`.

    Raises:
        BadRequest, OutOfBlocks: see `LLMEngine.add_request`; nothing was computed for any of them.
    """
    if isinstance(prompts, str):
        raise BadRequest("prompts is one string; give a list of prompts, such as `[prompt]`.")
    each: list[SamplingParams | None]
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
    return [request.result for request in requests if request.result]


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
    name = engine.add_request(prompt, params, on_token=arrived.append, **{"is_interactive": True} | options)
    reader = _read(engine, engine.requests[name], arrived)
    next(reader)  # it is inside its `try` from now on: dropping it aborts the request, even if nothing was ever read
    return reader


def _read(engine: "LLMEngine", request: EngineRequest, arrived: list[NewToken]) -> Iterator[Any]:
    try:
        yield
        while arrived or request.result is None:
            if arrived:
                yield arrived.pop(0)
            else:
                _step(engine, [request])
        if request.result and request.result.error:
            raise request.result.error
    finally:
        _leave(engine, request)


def _step(engine: "LLMEngine", awaited: list[EngineRequest]) -> None:
    """A step; outputs that aren't awaited here are left for their own readers."""
    for output in engine.step():
        if not any(output is request.result for request in awaited):
            engine.keep(output)


def _leave(engine: "LLMEngine", request: EngineRequest) -> None:
    """The caller waits for this request no longer."""
    if request.result is None:
        engine.abort(request.id)
    engine.forget(request.result)
