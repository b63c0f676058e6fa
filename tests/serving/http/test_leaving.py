"""`stream_until_gone` on an engine: whatever is waited for when the client leaves, nothing of the request is left."""

import asyncio

import pytest
from engine_cases import check_that_nothing_is_left, greedy
from fronts import LIMIT, counting_engine, until, until_empty

from lessons_lib.serving.admission import AdmissionControl, Overloaded
from lessons_lib.serving.async_engine import AsyncEngine
from lessons_lib.serving.http.leaving import stream_until_gone

MAX_TOKENS = 40


class Client:
    """Leaves when it has read so many tokens; `stalls` says whether it reads no more from then on."""

    def __init__(self, num_read=10**9, stalls=False):
        self.num_read, self.stalls, self.got, self.has_left = num_read, stalls, [], asyncio.Event()
        if num_read == 0:
            self.has_left.set()

    async def receive(self):
        await self.has_left.wait()
        return {"type": "http.disconnect"}

    async def send(self, tokens):
        self.got += [token.token for token in tokens]
        if len(self.got) >= self.num_read:
            self.has_left.set()
            if self.stalls:
                await asyncio.get_running_loop().create_future()


def served(client, max_requests=8, cancel_after=None):
    """What `stream_until_gone` returns. Nothing is left in the engine, and no task goes on."""

    async def story():
        engine = counting_engine()
        async with AsyncEngine(engine, AdmissionControl(max_requests)) as front:
            other_tasks = asyncio.all_tasks()
            params = greedy(MAX_TOKENS, ignore_eos=True)
            serving = asyncio.ensure_future(
                stream_until_gone(lambda: front.add([5], params), client.receive, client.send)
            )
            if cancel_after is not None:
                await until(lambda: len(client.got) >= cancel_after)
                serving.cancel()
            try:
                return await serving
            finally:
                assert asyncio.all_tasks() == other_tasks
                await until_empty(front)
                check_that_nothing_is_left(engine)

    return asyncio.run(asyncio.wait_for(story(), LIMIT))


def test_a_client_that_stays_gets_all_tokens():
    client = Client()
    assert served(client) is True
    assert client.got == list(range(6, 6 + MAX_TOKENS))


@pytest.mark.parametrize("num_read", [0, 1, 7])
@pytest.mark.parametrize("stalls", [False, True])
def test_a_client_that_leaves_leaves_nothing(num_read, stalls):
    client = Client(num_read, stalls)
    assert served(client) is False
    assert len(client.got) < MAX_TOKENS


async def test_what_add_raises_comes_out():
    async with AsyncEngine(counting_engine(), AdmissionControl(1)) as front:
        first = await front.add([5], greedy(MAX_TOKENS, ignore_eos=True))
        client = Client()
        with pytest.raises(Overloaded):
            await stream_until_gone(lambda: front.add([6]), client.receive, client.send)
        await first.aclose()


@pytest.mark.parametrize("cancel_after", [0, 3])
def test_the_server_may_cancel_it(cancel_after):
    with pytest.raises(asyncio.CancelledError):
        served(Client(num_read=10**9, stalls=True), cancel_after=cancel_after)
