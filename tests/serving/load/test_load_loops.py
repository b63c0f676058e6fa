"""The open loop sends at its times, whatever the server does."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lessons_lib.checks.lesson_14.virtual_loop import VirtualLoop
from lessons_lib.serving.load.client import open_loop
from lessons_lib.serving.load.records import LoadRequest

REQUEST = LoadRequest([1, 2], 2, 3)


def run_virtually(main):
    """What the coroutine function `main(clock)` returns; where it waits, the clock jumps."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main(runner.get_loop().time))


def service(seconds):
    """A `send` that takes this long, for each request in turn."""
    left = iter(seconds)

    async def send(request, record, now):
        await asyncio.sleep(next(left))
        record.end_time = now()

    return send


def serve_openly(gaps, seconds, **options):
    arrivals = [sum(gaps[: index + 1]) for index in range(len(gaps))]

    async def main(clock):
        return await open_loop(service(seconds), [REQUEST] * len(gaps), arrivals, clock=clock, **options)

    return arrivals, run_virtually(main)


times = st.integers(0, 40).map(lambda ticks: ticks / 8)  # exact in binary, so that sums are


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(times, times), min_size=1, max_size=12))
def test_an_open_loop_sends_at_its_times_however_slow_the_server_is(pairs):
    gaps, seconds = zip(*pairs)
    arrivals, log = serve_openly(gaps, seconds)
    assert [record.send_time for record in log.records] == arrivals
    assert [record.end_time for record in log.records] == [a + s for a, s in zip(arrivals, seconds)]
    assert log.duration == max(a + s for a, s in zip(arrivals, seconds))
    assert log.window == (arrivals[-1] or log.duration) or log.duration == 0


def test_no_task_is_left_when_sending_raises():
    left = []

    async def main(clock):
        async def send(request, record, now):
            await asyncio.sleep(1)
            if record.request_id == "0":
                raise KeyError("a bug")
            await asyncio.sleep(1)

        with pytest.raises(KeyError, match="a bug"):
            await open_loop(send, [REQUEST] * 2, [0, 0], clock=clock)
        left.extend(asyncio.all_tasks() - {asyncio.current_task()})

    run_virtually(main)
    assert left == []


def test_cancelling_the_loop_ends_its_requests():
    async def main(clock):
        ended = []

        async def send(request, record, now):
            try:
                await asyncio.sleep(100)
            finally:
                ended.append(record.request_id)

        task = asyncio.ensure_future(open_loop(send, [REQUEST] * 3, [0, 0, 50], clock=clock))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert sorted(ended) == ["0", "1"]

    run_virtually(main)


def test_an_open_loop_needs_an_arrival_for_each_request():
    with pytest.raises(ValueError, match="longer"):
        run_virtually(lambda clock: open_loop(service([1]), [REQUEST], [0.0, 1.0], clock=clock))
