"""Grammars are compiled beside the engine's loop: no step waits for one, and whatever happens to it ends one request."""

import asyncio
from concurrent.futures import Future

import numpy as np
import pytest
from fronts import counting_engine, read, until, until_empty

from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.engine.structured_outputs import StructuredOutputsParams
from lessons_lib.models.validate import BadRequest
from lessons_lib.serving.async_engine import AsyncEngine
from lessons_lib.serving.engine_loop import EngineLoop
from lessons_lib.serving.messages import AbortRequest, Accepted, AddRequest, Draining, NewTokens, Refused

GUIDED = SamplingParams(max_tokens=3, ignore_eos=False, structured_outputs=StructuredOutputsParams(regex="a+"))
PLAIN = SamplingParams(max_tokens=3, ignore_eos=True)


class FreeGrammar:
    """Allows everything."""

    def begin(self):
        return self

    def allowed(self, output_ids, size):
        return np.full(-(-size // 32), -1, np.int32)


@pytest.fixture
def compiler(monkeypatch):
    """Grammars that are compiled when the test says so: the futures, in order. `of` must never compile in the loop."""
    futures, compiled = [], []

    def soon(rules, tokenizer, vocab_size):
        futures.append(Future())
        return futures[-1]

    def of(rules, tokenizer, vocab_size):
        assert any(each.done() for each in futures), "the engine's loop compiles it"
        compiled.append(rules)
        return FreeGrammar()

    monkeypatch.setattr(StructuredOutputsParams, "compiled_soon", soon)
    monkeypatch.setattr(StructuredOutputsParams, "compiled", of)
    return futures


def kinds(events, kind):
    return [event for event in events if isinstance(event, kind)]


def test_steps_go_on_while_a_grammar_is_compiled(compiler):
    loop = EngineLoop(counting_engine())
    events = loop.turn([AddRequest("plain", [1], PLAIN), AddRequest("guided", [5], GUIDED)])
    assert [event.request_id for event in kinds(events, Accepted)] == ["plain"] and kinds(events, NewTokens)
    assert kinds(loop.turn([]), NewTokens) and "guided" in loop.open and "guided" not in loop.readers
    compiler[0].set_result(FreeGrammar())
    events = loop.turn([])
    assert [event.request_id for event in kinds(events, Accepted)] == ["guided"] and not loop.compiling
    tokens = [token.token for _ in range(3) for event in kinds(loop.turn([]), NewTokens) for token in event.tokens]
    assert tokens and not loop.open and not loop.engine.has_unfinished()


def test_an_idle_engine_waits_for_its_compiler(compiler):
    loop = EngineLoop(counting_engine())
    assert loop.turn([AddRequest("guided", [5], GUIDED)]) == [] and list(loop.compiling) == ["guided"]
    compiler[0].set_result(FreeGrammar())
    assert kinds(loop.turn([]), Accepted)


def test_what_cant_be_compiled_is_refused_and_isnt_compiled_again(compiler):
    loop = EngineLoop(counting_engine())
    loop.turn([AddRequest("guided", [5], GUIDED)])
    compiler[0].set_exception(BadRequest("structured_outputs can't be used: it is too deep"))
    (event,) = loop.turn([])
    assert isinstance(event, Refused) and "too deep" in str(event.error) and event.error.__traceback__ is None
    assert not loop.compiling and not loop.engine.requests


def test_a_request_that_is_aborted_before_it_began(compiler):
    loop = EngineLoop(counting_engine())
    loop.turn([AddRequest("first", [5], GUIDED), AddRequest("second", [5], GUIDED)])
    (event,) = loop.apply([AbortRequest("second")])
    assert isinstance(event, Refused) and isinstance(event.error, Draining) and compiler[1].cancelled()
    assert loop.apply([AbortRequest("second")]) == []
    loop.close()
    assert compiler[0].cancelled() and not loop.compiling


async def test_behind_a_front_others_are_served_meanwhile(compiler):
    async with AsyncEngine(counting_engine()) as front:
        adding = asyncio.create_task(front.add([5], GUIDED))
        leaving = asyncio.create_task(front.add([6], GUIDED))
        await until(lambda: len(compiler) == 2)
        _, end = await read(await front.add([1], PLAIN))
        assert len(end.completions[0].token_ids) == 3 and not adding.done()
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        compiler[0].set_result(FreeGrammar())
        _, end = await read(await adding)
        assert end.error is None and len(end.completions[0].token_ids) == 3
        await until_empty(front)
