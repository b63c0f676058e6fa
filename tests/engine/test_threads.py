"""Several threads on one engine: every answer is the right one, and nothing is left behind."""

import threading
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as TimedOut
from contextlib import suppress

import pytest
from engine_cases import KINDS, alone, an_engine, check_that_nothing_is_left, engine_of_kind, greedy, run_out

from lessons_lib.models.validate import BadRequest

SIZES = dict(num_blocks=24, max_num_seqs=4, max_num_batched_tokens=16, block_size=4)
LIMIT = 60  # seconds, for a thread that hangs; none of them waits for time to pass


@pytest.fixture(params=KINDS)
def engine(request):
    engine = engine_of_kind(request.param, **SIZES)
    yield engine
    check_that_nothing_is_left(engine)


def expected(prompt, max_tokens=8):
    return alone("qwen2", prompt, max_tokens, ignore_eos=True)


def prompts_of(thread, count=4):
    return [[thread + 1, index + 2, 5] * (1 + index % 3) for index in range(count)]


def together(*calls):
    """Run each call in a thread of its own, all at the same time. Returns what they return."""
    barrier = threading.Barrier(len(calls))

    def run(call):
        barrier.wait(LIMIT)
        return call()

    for each in calls:
        each()  # what is computed alone for comparison isn't computed in two threads at once
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(LIMIT) for future in [pool.submit(run, call) for call in calls]]


def test_streams_generate_and_steps_of_several_threads(engine):
    def stream(thread):
        for prompt in prompts_of(thread):
            assert [token.token for token in engine.stream(prompt, greedy(8, ignore_eos=True))] == expected(prompt)

    def generate(thread):
        prompts = prompts_of(thread)
        for output, prompt in zip(engine.generate(prompts, greedy(8, ignore_eos=True)), prompts):
            assert output.token_ids == expected(prompt) and output.error is None

    def steps(thread):
        prompts = {engine.add_request(prompt, greedy(8, ignore_eos=True)): prompt for prompt in prompts_of(thread)}
        while prompts:
            for output in engine.step():
                assert output.token_ids == expected(prompts.pop(output.request_id)), "returned once, and to its caller"

    together(*[lambda call=call, n=n: call(n) for n, call in enumerate([stream, generate, stream, steps])])


def test_aborts_from_another_thread_fail_nothing_else(engine):
    def generate():
        prompts = prompts_of(0, 6)
        for output, prompt in zip(engine.generate(prompts, greedy(8, ignore_eos=True)), prompts):
            assert output.error is None and output.token_ids == expected(prompt)

    def abort():
        for index in range(10):
            output = engine.abort(engine.add_request([9, index], greedy(8, ignore_eos=True)))
            assert output.finish_reason == "abort" and output.token_ids == expected([9, index])[: len(output.token_ids)]

    together(generate, abort)


def test_an_id_is_taken_while_another_thread_begins_to_serve_its_request():
    engine = an_engine(**SIZES)
    first, second = (engine.inputs.process("same", "it", [1, 2], greedy(4)) for _ in range(2))
    engine.core.add(first)
    with ThreadPoolExecutor(1) as pool:

        class Groups(dict):
            def __contains__(self, name):
                found = super().__contains__(name)
                with suppress(TimedOut):  # where this thread has the lock, the other one waits for it
                    pool.submit(engine.core.settle).result(0.2)
                return found

        engine.core.groups = Groups()
        with pytest.raises(BadRequest, match="'same' is being served"):
            engine.core.add(second)
    assert run_out(engine)["same"].token_ids == alone("qwen2", [1, 2], 4)
