"""Lesson 11: two ways to wait for answers of an engine: for all at once, or for each token of one."""

from collections.abc import Iterator

from tqdm.auto import tqdm

from lessons_lib.engine_request import NewToken, RequestOutput
from lessons_lib.prompts import BadRequest
from lessons_lib.sampling import SamplingParams


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
        raise BadRequest(f"{len(each)} sampling parameters for {len(prompts)} prompts; give one for all, or one for each.")
    names = {}
    try:
        for prompt, own in zip(prompts, each):
            names[engine.add_request(prompt, own)] = None
    except Exception:
        for name in names:
            engine.abort(name)
        raise
    with tqdm(total=len(names), disable=not progress, unit="request") as bar:
        while None in names.values():
            for output in engine.step():
                if output.request_id in names:
                    names[output.request_id] = output
                    bar.update()
                else:
                    engine.keep(output)
    return list(names.values())


def stream(engine, prompt, params=None, **options) -> Iterator[NewToken]:
    """Answer one prompt, and yield each token when it is there. Whoever else is in the engine is served along.

    When the caller stops reading, the request is aborted.

    Args:
        See `LLMEngine.add_request`.

    Raises:
        What went wrong, if the request failed.
    """
    arrived = []
    name = engine.add_request(prompt, params, on_token=arrived.append, **options)
    return _read(engine, name, arrived)


def _read(engine, name: str, arrived: list[NewToken]) -> Iterator[NewToken]:
    try:
        while arrived or name in engine.requests:
            if arrived:
                yield arrived.pop(0)
                continue
            for output in engine.step():
                if output.request_id != name:
                    engine.keep(output)
                elif output.error:
                    raise output.error
    finally:
        engine.abort(name)
