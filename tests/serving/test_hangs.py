"""A step that never returns: it is noticed by the silence, and ends every stream."""

import asyncio
import signal

import pytest
from engine_cases import greedy
from fronts import counting_engine, hanging_engine

from lessons_lib.serving.engine_process import NUM_LOOKS, EngineProcess
from lessons_lib.serving.http.observability import health
from lessons_lib.serving.messages import EngineDead

HANGS = [7, 7, 7]


class Socket:
    """Each look finds as many open requests as the script says; after it, a message is there.

    Attributes:
        waits: how long each look waits, in milliseconds.
    """

    def __init__(self, front, num_open):
        self.front, self.num_open, self.waits = front, list(num_open), []

    async def poll(self, milliseconds):
        self.waits.append(milliseconds)
        if not self.num_open:
            return 1
        self.front._requests = dict.fromkeys(range(self.num_open.pop(0)))
        return 0


@pytest.mark.parametrize(
    "num_open, hangs",
    [
        pytest.param([0] * 3 * NUM_LOOKS, False, id="an idle engine says nothing"),
        pytest.param([1] * NUM_LOOKS, False, id="the first look only sees that something is open"),
        pytest.param([1] * (NUM_LOOKS + 1), True, id="silence"),
        pytest.param(([1] * NUM_LOOKS + [0]) * 3, False, id="a time without requests begins it anew"),
    ],
)
def test_silence_is_counted_while_requests_are_open(num_open, hangs):
    front = EngineProcess(counting_engine, step_timeout=20.0)
    front._socket = Socket(front, num_open)
    if hangs:
        with pytest.raises(EngineDead, match=r"nothing for 20 s, .* raise step_timeout \(--step-timeout"):
            asyncio.run(front._refuse_silence())
    else:
        asyncio.run(front._refuse_silence())
    assert set(front._socket.waits) == {2000.0}


def test_without_a_limit_it_waits_forever():
    front = EngineProcess(counting_engine, step_timeout=None)
    front._socket = Socket(front, [])
    asyncio.run(front._refuse_silence())
    assert front._socket.waits == [None]


@pytest.mark.parametrize("timeout", [0, -1.0, float("inf"), float("nan")])
def test_what_is_no_time_is_refused(timeout):
    with pytest.raises(ValueError, match=r"step_timeout is .*; it must be a number of seconds above 0, or None"):
        EngineProcess(counting_engine, step_timeout=timeout)


async def all_end(front):
    """The oracle: whatever waited ends with the same error, and nothing is left in flight."""
    open_before = [await front.add([index], greedy(30, ignore_eos=True)) for index in range(2)]
    front.step_timeout = 1.0  # steps before that may take as long as a busy machine needs
    hung = await front.add(HANGS, greedy(5))
    draining = asyncio.create_task(front.drain())
    for stream in (hung, *open_before):
        end = await stream.end()
        assert end.error is None or "has said nothing for 1 s" in end.error
    assert "has said nothing for 1 s" in (await hung.end()).error and "step_timeout" in front.error
    assert await draining == 0
    assert front.admission.num_requests == front.admission.num_prompt_tokens == 0
    assert health(front) == (503, {"status": "dead", "error": front.error})
    with pytest.raises(EngineDead, match="takes no requests any more: .* said nothing"):
        await front.add([1])


async def test_a_process_that_hangs_is_killed():
    async with EngineProcess(hanging_engine) as front:
        await all_end(front)
        assert front.error.endswith("Its process was killed: make a new one.")
        assert front.process.returncode == -signal.SIGKILL
