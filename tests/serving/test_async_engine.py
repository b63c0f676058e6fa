"""Many callers on one engine, in a thread and in a process of its own: the same tests for both kinds of front."""

import asyncio
import gc
from contextlib import asynccontextmanager

import pytest
from engine_cases import check_that_nothing_is_left, greedy
from fronts import LIMIT, CancelledAt, counting_engine, read, tiny_engine, until, until_empty

from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.kv_cache.block_pool import OutOfBlocks
from lessons_lib.models.validate import BadRequest
from lessons_lib.serving.async_engine import AsyncEngine
from lessons_lib.serving.engine_process import EngineProcess
from lessons_lib.serving.messages import Draining, EngineDead

KINDS = {"thread": lambda: AsyncEngine(tiny_engine()), "process": lambda: EngineProcess(tiny_engine)}

LONG = greedy(200, ignore_eos=True)  # still in flight when a test acts, however slow its event loop


@pytest.fixture(scope="module")
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture(scope="module", params=KINDS)
def shared(request, loop):
    """A front that several tests use one after the other, in one event loop."""
    front = KINDS[request.param]()
    loop.run_until_complete(front.__aenter__())
    gc.freeze()  # what is there stays; each collection looks only at what the tests leave
    yield front
    gc.unfreeze()
    loop.run_until_complete(front.aclose())


@pytest.fixture
def front(shared, loop):
    yield shared
    gc.collect()
    loop.run_until_complete(asyncio.wait_for(until_empty(shared), LIMIT))


MIXED = [
    ([1, 2, 3], greedy(12, ignore_eos=True)),
    ([5], SamplingParams(max_tokens=9, temperature=1.0, seed=7, n=3, ignore_eos=True)),
    ([9, 8, 7, 6, 5, 4], SamplingParams(max_tokens=20, temperature=0.8, top_k=20, seed=1, stop=("A", "0", "b"))),
    ([4, 4, 4], greedy(6, logprobs=3, prompt_logprobs=2, ignore_eos=True)),
    ([11, 2], SamplingParams(max_tokens=30, temperature=1.2, seed=5, stop_token_ids=(3, 30, 60))),
    ([3, 1, 4, 1, 5, 9, 2, 6], greedy(10, repetition_penalty=1.3, min_tokens=4)),
    ("words!", SamplingParams(max_tokens=8, temperature=1.0, seed=2, logprobs=1, n=2)),
    ([2, 7, 1], greedy(5, detokenize=False)),
]


def ended_as(output):
    """What must be equal of a request that has ended."""
    return [
        (each.index, each.token_ids, each.text, each.finish_reason, each.stop_reason, rounded(each.logprobs))
        for each in output.completions
    ]


def rounded(logprobs):
    """Their last digits depend on which requests share a step."""

    def about(logprob):
        return pytest.approx(logprob, abs=1e-4)

    if logprobs is None:
        return None
    return [
        each and (each.token, about(each.logprob), [(token, about(logprob)) for token, logprob in each.top])
        for each in logprobs
    ]


async def test_streams_have_the_tokens_of_generate(front):
    async def one(prompt, params):
        stream = await front.add(prompt, params)
        arrived, end = await read(stream)
        assert stream.num_prompt_tokens == end.num_prompt_tokens == len(prompt)
        return arrived, end

    found = await asyncio.gather(*[one(*each) for each in MIXED * 2])
    with tiny_engine() as engine:
        expected = engine.generate([prompt for prompt, _ in MIXED * 2], [params for _, params in MIXED * 2])
    for (arrived, end), output in zip(found, expected):
        assert end.error is None and ended_as(end) == ended_as(output)
        assert rounded(end.prompt_logprobs) == rounded(output.prompt_logprobs)
        for completion in end.completions:
            tokens = arrived[completion.index]
            assert [token.token for token in tokens] == completion.token_ids
            if completion.text:
                assert "".join(token.text for token in tokens) == completion.text
            assert [token.finish_reason for token in tokens] == [None] * (len(tokens) - 1) + [completion.finish_reason]
            assert tokens[-1].stop_reason == completion.stop_reason
            if completion.logprobs is not None:
                assert [token.logprobs for token in tokens] == completion.logprobs


async def test_what_the_engine_refuses_is_raised_by_add(front):
    with pytest.raises(BadRequest, match="request 'mine' is empty"):
        await front.add([], request_id="mine")
    with pytest.raises(BadRequest, match="tier"):
        await front.add([1], tier="gold")
    with pytest.raises(BadRequest, match="request_id is 5; it must be a str"):
        await front.add([1], request_id=5)
    with pytest.raises(OutOfBlocks):
        await front.add([1] * 200, greedy(50))
    with pytest.raises(BadRequest, match=r"prompt|request"):
        await front.add(2.5)
    _, end = await read(await front.add([1], greedy(3, ignore_eos=True), request_id="mine"))
    assert len(end.completions[0].token_ids) == 3


async def test_an_id_is_used_once_at_a_time(front):
    stream = await front.add([1], LONG, request_id="mine")
    with pytest.raises(BadRequest, match="request id 'mine' is being served"):
        await front.add([2], request_id="mine")
    await stream.aclose()
    assert (await stream.end()).completions[0].finish_reason == "abort"
    _, end = await read(await front.add([2], greedy(2, ignore_eos=True), request_id="mine"))
    assert not end.is_aborted


async def leave_by_context(front):
    async with await front.add([1], LONG) as stream:
        async for _ in stream:
            break
    await stream.aclose()  # once more
    assert (await stream.end()).is_aborted


async def leave_by_garbage(front):
    await front.add([1], LONG)


async def leave_by_garbage_while_reading(front):
    stream = await front.add([1], LONG)
    async for _ in stream:
        break
    del stream


async def leave_by_cancelled_end(front):
    stream = await front.add([1], LONG)
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(stream.end(), 0.0001)
    assert (await stream.end()).is_aborted


BY_GARBAGE = [leave_by_garbage, leave_by_garbage_while_reading]


@pytest.mark.parametrize("leave", [leave_by_context, *BY_GARBAGE, leave_by_cancelled_end])
async def test_a_reader_that_leaves_aborts_its_request(front, leave):
    aborted = front.metrics()["requests"].get("abort", 0)
    await leave(front)
    gc.collect()
    await until_empty(front)
    assert front.metrics()["requests"]["abort"] == aborted + 1


async def whole_client(front):
    async with await front.add([1, 2, 3], greedy(4, ignore_eos=True)) as stream:
        async for _ in stream:
            continue
        await stream.end()


async def careless_client(front):
    stream = await front.add([1, 2, 3], greedy(4, ignore_eos=True))
    async for _ in stream:
        continue
    await stream.end()


@pytest.mark.parametrize("has_arrived", [False, True])
@pytest.mark.parametrize("client", [whole_client, careless_client])
async def test_a_client_is_cancelled_at_every_await(front, client, has_arrived):
    async def was_cancelled(attempt):
        try:
            await attempt
        except asyncio.CancelledError:
            return True
        return False

    cancelled, k = True, 0
    while cancelled:
        k += 1
        attempt = CancelledAt(client(front), k, has_arrived)
        other = asyncio.create_task(read(await front.add([5, 6], greedy(3, ignore_eos=True))))
        if cancelled := await was_cancelled(attempt):
            assert attempt.was_cancelled
        _, end = await other
        assert len(end.completions[0].token_ids) == 3, "others are not touched"
        gc.collect()
        await until_empty(front)
    assert k > 2  # of them: accepted, a token


@pytest.mark.parametrize("make_engine", [counting_engine, tiny_engine])
@pytest.mark.parametrize("has_arrived", [False, True])
def test_the_owner_is_cancelled_at_every_await(make_engine, has_arrived):
    class Cancelled(AsyncEngine):
        async def _own(self):
            self.attempt = CancelledAt(super()._own(), self.k, has_arrived)
            await self.attempt

    async def story(engine, k):
        front = Cancelled(engine)
        front.k = k
        clients = []
        async with front:
            clients = [asyncio.create_task(one_client(front, index)) for index in range(3)]
            ends = await asyncio.gather(*clients)
            if front.attempt.was_cancelled:
                with pytest.raises(EngineDead, match="takes no requests any more"):
                    await front.add([1])
        assert all(ends) or front.error is not None
        check_that_nothing_is_left(engine)
        assert front.admission.num_requests == 0
        return front.attempt.was_cancelled

    async def one_client(front, index):
        try:
            stream = await front.add([index], greedy(3, ignore_eos=True))
        except EngineDead:
            return False
        arrived, end = await read(stream)
        assert end.error is not None or len(end.completions[0].token_ids) == 3 == len(arrived[0])
        return end.error is None

    engine = make_engine()
    k = 1
    while asyncio.run(asyncio.wait_for(story(engine, k), LIMIT)):
        k += 1
    assert k > 3


async def test_a_reader_that_never_reads_costs_only_its_own_tokens(front):
    lazy = await front.add([1], greedy(50, ignore_eos=True))
    await asyncio.gather(*[asyncio.create_task(whole_client(front)) for _ in range(10)])
    end = await lazy.end()
    assert len(lazy._request.mailbox) == 50 == len(end.completions[0].token_ids)
    arrived, _ = await read(lazy)
    assert [token.token for token in arrived[0]] == end.completions[0].token_ids, "they can still be read"


async def test_gauges_metrics_and_what_the_engine_is(front):
    before = front.metrics()["new_tokens"]
    stream = await front.add([1, 2], LONG)
    await anext(stream)
    assert front.gauges.running == 1 and front.gauges.waiting == 0
    assert front.gauges.used_blocks > 0 and front.gauges.num_blocks == 60
    await stream.end()
    await until_empty(front)
    assert front.metrics()["new_tokens"] == before + LONG.max_tokens
    assert front.tokenizer.decode([0, 1]) == '!"'


# Fronts of their own, in a thread.


@asynccontextmanager
async def opened(engine, **options):
    async with AsyncEngine(engine, **options) as front:
        yield front
    assert not front._requests and front.admission.num_requests == 0
    check_that_nothing_is_left(engine)


async def test_a_drain_lets_requests_finish_or_aborts_what_is_left():
    async with opened(counting_engine(num_blocks=200)) as front:
        tasks = [asyncio.create_task(read(await front.add([i], greedy(20, ignore_eos=True)))) for i in range(9)]
        assert await front.drain() == 0
        with pytest.raises(Draining, match="finishes its requests"):
            await front.add([1])
        for arrived, end in await asyncio.gather(*tasks):
            assert len(arrived[0]) == 20 and end.error is None
        front.is_draining = False
        streams = [await front.add([index], greedy(220, ignore_eos=True)) for index in range(3)]
        assert await front.drain(timeout=0) == 3
        for stream in streams:
            assert (await stream.end()).is_aborted


async def test_streams_that_are_open_at_the_end_of_the_front_end_with_an_error():
    engine = counting_engine()
    async with AsyncEngine(engine) as front:
        stream = await front.add([1], LONG)
    assert (await stream.end()).error == "EngineDead: the front was closed."
    with pytest.raises(EngineDead):
        await front.add([1])
    await front.aclose()
    check_that_nothing_is_left(engine)


async def test_a_front_that_is_not_open_says_so():
    with pytest.raises(RuntimeError, match="use it inside `async with`"):
        await AsyncEngine(counting_engine()).add([1])


async def test_the_garbage_collector_may_run_in_the_engines_thread():
    engine = counting_engine()
    step = engine.step
    engine.step = lambda: (gc.collect(), step())[1]
    gc.disable()
    try:
        async with opened(engine) as front:
            for index in range(5):
                stream = await front.add([index], greedy(30, ignore_eos=True))
                ring = [stream]
                ring.append(ring)  # only the collector finds it
                del stream, ring
            await until(lambda: not front._requests)
    finally:
        gc.enable()


def test_a_closed_loop_of_the_caller_does_no_harm():
    """`asyncio.run` ends without the front being closed: the engine is free all the same."""
    engine = counting_engine()

    async def careless():
        front = await AsyncEngine(engine).__aenter__()
        return await front.add([1], LONG)

    stream = asyncio.run(careless())
    check_that_nothing_is_left(engine)
    del stream
