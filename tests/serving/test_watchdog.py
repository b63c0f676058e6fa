"""A step that never returns: it is noticed by the silence, in both kinds of front, and ends every stream."""

import asyncio
import os
import signal
import threading

import pytest
from engine_cases import greedy
from fronts import LIMIT, counting_engine, hanging_engine, read

from lessons_lib.serving.async_engine import AsyncEngine
from lessons_lib.serving.engine_process import EngineProcess
from lessons_lib.serving.http.observability import health
from lessons_lib.serving.messages import EngineDead
from lessons_lib.serving.watchdog import NUM_LOOKS, StepWatch

HANGS = [7, 7, 7]


class Front:
    def __init__(self):
        self.num_heard, self.is_waiting, self.reasons = 0, False, []

    def give_up(self, reason):
        self.reasons.append(reason)


def looked(front, watch, times):
    for _ in range(times):
        watch.look()
    return len(front.reasons)


def test_silence_is_counted_while_requests_are_open():
    front = Front()
    watch = StepWatch(front, 20.0)
    assert looked(front, watch, 3 * NUM_LOOKS) == 0, "an idle engine says nothing"
    front.is_waiting = True
    assert looked(front, watch, NUM_LOOKS) == 0, "the first look only sees that something is open"
    front.num_heard += 1
    assert looked(front, watch, NUM_LOOKS) == 0, "a word begins it anew"
    front.is_waiting = False
    assert looked(front, watch, 1) == 0
    front.is_waiting = True
    assert looked(front, watch, NUM_LOOKS) == 0, "so does a time without requests"
    assert looked(front, watch, 1) == 1
    assert "nothing for 20 s" in front.reasons[0] and "step_timeout (--step-timeout" in front.reasons[0]
    assert looked(front, watch, 1) == 1, "once is enough"


def test_looks_follow_each_other_until_it_is_stopped(monkeypatch):
    class Loop:
        def __init__(self):
            self.timers = []

        def call_later(self, seconds, call):
            self.timers.append((seconds, call))
            return self

        def cancel(self):
            self.timers.clear()

    loop, front = Loop(), Front()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    watch = StepWatch(front, 300.0)
    watch.start()
    front.is_waiting, elapsed = True, 0.0
    while loop.timers:
        (seconds, call), *loop.timers = loop.timers
        elapsed += seconds
        call()
    assert 300.0 <= elapsed <= 300.0 * (1 + 1 / NUM_LOOKS) and len(front.reasons) == 1

    StepWatch(front, None).start()
    assert not loop.timers, "no limit"
    watch = StepWatch(front, 1.0)
    watch.start()
    assert loop.timers
    watch.stop()
    assert not loop.timers


@pytest.mark.parametrize("timeout", [0, -1.0, float("inf"), float("nan")])
def test_what_is_no_time_is_refused(timeout):
    for make in (
        lambda: AsyncEngine(None, step_timeout=timeout),
        lambda: EngineProcess(counting_engine, step_timeout=timeout),
    ):
        with pytest.raises(ValueError, match=r"step_timeout is .*; it must be a number of seconds above 0, or None"):
            make()


def limit_steps(front):
    """From now on to 0.2 s. Steps before that may take as long as a busy machine needs."""
    front._watch_of_steps.stop()
    front._watch_of_steps.timeout = 0.2
    front._watch_of_steps.start()


def run(story):
    asyncio.run(asyncio.wait_for(story(), LIMIT))


async def all_end(front):
    """The oracle: whatever waited ends with the same error, and nothing is left in flight."""
    open_before = [await front.add([index], greedy(30, ignore_eos=True)) for index in range(2)]
    hung = await front.add(HANGS, greedy(5))
    limit_steps(front)
    draining = asyncio.create_task(front.drain())
    for stream in (hung, *open_before):
        end = await stream.end()
        assert end.error is None or "has said nothing for 0.2 s" in end.error
    assert "has said nothing for 0.2 s" in (await hung.end()).error and "step_timeout" in front.error
    assert await draining == 0
    assert front.admission.num_requests == front.admission.num_prompt_tokens == 0
    assert health(front) == (503, {"status": "dead", "error": front.error})
    with pytest.raises(EngineDead, match="takes no requests any more: .* said nothing"):
        await front.add([1])


def test_a_process_that_hangs_is_killed():
    async def story():
        async with EngineProcess(hanging_engine, num_threads=1) as front:
            await all_end(front)
            assert front.error.endswith("Its process was killed: make a new one.")
            assert front.process.returncode == -signal.SIGKILL

    run(story)


@pytest.mark.nightly
@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="stops a process")
def test_a_process_that_is_stopped_is_killed_and_an_idle_one_is_not():
    async def story():
        async with EngineProcess(counting_engine, num_threads=1) as front:
            _, end = await read(await front.add([1], greedy(5, ignore_eos=True)))
            assert end.error is None
            os.kill(front.process.pid, signal.SIGSTOP)
            for _ in range(2 * NUM_LOOKS):
                front._watch_of_steps.look()
            assert front.error is None
            limit_steps(front)
            with pytest.raises(EngineDead, match="said nothing"):
                await front.add([1])

    run(story)


def test_a_thread_that_hangs_is_left_alone():
    release = threading.Event()

    async def story():
        async with AsyncEngine(hanging_engine(release.wait)) as front:
            await all_end(front)
            assert front.is_stuck and front.error.endswith("Its thread can't be ended: restart this process.")
        assert front._owner.done() and front._watch_of_steps._timer is None

    try:
        run(story)
    finally:
        release.set()
