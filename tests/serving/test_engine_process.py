"""What only a front with a process of its own has: how it starts, and every way in which it can end."""

import asyncio
import os
import pickle
import signal
from functools import partial

import pytest
import zmq
from engine_cases import greedy
from fronts import LIMIT, counting_engine, dying_engine, engine_once, is_gone, read, stuck_engine, until

from lessons_lib.engine.outputs import NewToken
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.models.validate import BadRequest
from lessons_lib.serving import engine_process
from lessons_lib.serving.engine_process import EngineProcess
from lessons_lib.serving.messages import EngineDead, NewTokens


@pytest.mark.nightly
async def test_the_engines_last_words_are_heard_and_strangers_are_not():
    front = EngineProcess(dying_engine)
    async with front:
        stranger = zmq.Context.instance().socket(zmq.PAIR)
        stranger.connect(front._socket.last_endpoint)
        stranger.send(pickle.dumps("let me in"), zmq.NOBLOCK)
        stream = await front.add([1], greedy(50, ignore_eos=True))
        await anext(stream)
        last = await front.add([7, 7, 7], greedy(5))
        for each in (stream, last):
            assert (await each.end()).error == "Dead: the cable has come out"
        assert front.error == "Dead: the cable has come out"
        stranger.close(0)
    assert front.process.returncode == 1 or front.process.returncode == -signal.SIGKILL


@pytest.mark.slow
async def test_an_engine_that_cannot_be_made_says_why():
    front = EngineProcess(partial(int, "no weights"))
    with pytest.raises(EngineDead, match="didn't start: ValueError: .* 'no weights'"):
        await front.__aenter__()
    assert is_gone(front.process.pid)


async def test_a_start_that_is_cancelled_leaves_no_process():
    front = EngineProcess(counting_engine)
    task = asyncio.create_task(front.__aenter__())
    await until(lambda: hasattr(front, "process"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert is_gone(front.process.pid)


def test_what_cannot_be_sent_is_refused_at_once():
    with pytest.raises(ValueError, match="can't be sent to another process"):
        EngineProcess(lambda: counting_engine())
    own = type("Own", (), {"__module__": "__main__", "__name__": "mine", "__call__": counting_engine})()
    with pytest.raises(ValueError, match="mine is part of this notebook or script"):
        EngineProcess(partial(own, 1))


def test_tokens_are_sent_as_tuples():
    tokens = NewTokens([NewToken(f"request-{index}", 0, index, "x", None) for index in range(64)])
    message = pickle.dumps(tokens)
    assert pickle.loads(message) == tokens and len(message) < 64 * 40


async def test_ctrl_c_is_ignored_and_an_engine_that_has_died_is_started_again():
    front = EngineProcess(stuck_engine, restarts=True)
    async with front:
        first = front.process
        assert os.getpgid(first.pid) != os.getpgid(0)
        first.send_signal(signal.SIGINT)
        _, end = await read(await front.add([1], greedy(5, ignore_eos=True)))
        assert len(end.completions[0].token_ids) == 5 and front.error is None
        with pytest.raises(BadRequest, match="can't be sent to the engine's process"):
            await front.add([1], SamplingParams(logits_processors=(lambda ids, logits: logits,)))
        assert not front._requests and front.admission.num_requests == 0
        streams = [await front.add([7, 7, 7], greedy(50, ignore_eos=True)) for _ in range(3)]
        await anext(streams[0])
        first.send_signal(signal.SIGSTOP)
        adding = asyncio.create_task(front.add([9], greedy(5)))
        await asyncio.sleep(0)
        first.kill()
        for stream in streams:
            assert (await stream.end()).error == "EngineDead: the engine's process was killed by SIGKILL."
        with pytest.raises(EngineDead, match="killed by SIGKILL"):
            await adding
        assert front.is_restarting and front.error and front.admission.num_requests == 0
        with pytest.raises(EngineDead, match="is being started again, .* SIGKILL.* Ask again soon"):
            await front.add([1])
        await until(lambda: not front.is_restarting)
        assert front.error is None and front.num_restarts == 1 and front.process is not first
        assert is_gone(first.pid)
        assert (front.gauges.running, front.gauges.used_blocks) == (0, 0)
        _, end = await read(await front.add([1], greedy(5, ignore_eos=True)))
        assert end.completions[0].token_ids == [2, 3, 4, 5, 6]
        second = front.process
        second.kill()
        await until(lambda: front.is_restarting)
    assert not front.is_restarting and is_gone(second.pid) and is_gone(front.process.pid)


@pytest.mark.nightly
def test_an_engine_that_cannot_be_started_again_stays_dead(tmp_path, monkeypatch):
    monkeypatch.setattr(engine_process, "MAX_STARTS", 2)
    once = tmp_path / "once"

    async def story():
        async with EngineProcess(partial(engine_once, str(once)), restarts=True) as front:
            front.process.kill()
            await until(lambda: front.is_restarting)
            await until(lambda: not front.is_restarting)
            assert front.error and front.num_restarts == 0
            assert len(once.read_text()) == 1 + 2
            with pytest.raises(EngineDead, match="takes no requests any more"):
                await front.add([1])
        assert is_gone(front.process.pid)

    asyncio.run(asyncio.wait_for(story(), 3 * LIMIT))  # three processes import torch
