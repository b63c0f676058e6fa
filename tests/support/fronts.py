"""Engines behind fronts: small engines that another process can make, and readers that leave at a chosen moment."""

import asyncio
import os
import threading
import time

import torch
from engine_cases import LetterTokenizer, a_model, an_engine, check_that_nothing_is_left

from lessons_lib.engine.llm_engine import EngineConfig, LLMEngine
from lessons_lib.engine.model_runner import ModelRunner
from lessons_lib.serving.async_engine import AsyncEngine
from lessons_lib.serving.messages import RequestEnded

LIMIT = 60  # seconds, for what never happens; nothing waits for time to pass


class EncodingTokenizer(LetterTokenizer):
    """A token for each character, both ways."""

    def __call__(self, text):
        return type("Encoding", (), {"input_ids": [ord(character) - ord("!") for character in text]})


class CountingRunner(ModelRunner):
    """Each token is the one before it plus 1. Real blocks, hardly any time."""

    def forward(self, scheduler_output):
        sequences = list(scheduler_output.num_scheduled_tokens)
        logits = torch.zeros(len(sequences), self.model.config.vocab_size)
        for row, sequence in enumerate(sequences):
            logits[row, counted((sequence.output_ids or sequence.prompt_ids)[-1])] = 1.0
        return logits


def counted(token):
    return (token + 1) % 97


def counting_engine(**config):
    """An LLMEngine with everything but the model."""
    config = {"max_num_seqs": 8, "max_num_batched_tokens": 32, "block_size": 4, "num_blocks": 60, **config}
    return LLMEngine(
        a_model(),
        EncodingTokenizer(),
        EngineConfig(**config, make_runner=lambda model, num_blocks, config: CountingRunner(model, num_blocks, 4)),
    )


def tiny_engine():
    """A small model, with a tokenizer for texts."""
    return an_engine(tokenizer=EncodingTokenizer())


class Dead(RuntimeError):
    pass


def marked_engine(before_step):
    """A counting engine whose steps call `before_step(requests of the prompt [7, 7, 7])` if there are any; if that
    returns False, the step does nothing."""
    engine = counting_engine()
    step = engine.step

    def own_step():
        marked = [request for request in engine.requests.values() if request.prompt_ids == [7, 7, 7]]
        return [] if marked and before_step(marked) is False else step()

    engine.step = own_step
    return engine


def dying_engine():
    """Its step raises once a request is marked."""

    def die(marked):
        raise Dead("the cable has come out")

    return marked_engine(die)


def hanging_engine():
    """Its step doesn't return once a request is marked."""
    return marked_engine(lambda marked: threading.Event().wait())


def stuck_engine():
    """Its first marked request waits for two others; each gets a token, and then the step doesn't return: none can end,
    however busy this machine is."""

    def get_stuck(marked):
        if all(request.completions[0].output_ids for request in marked):
            threading.Event().wait()
        return len(marked) == 3

    return marked_engine(get_stuck)


def engine_once(path):
    """An engine, the first time; each time is a letter in that file."""
    with open(path, "a+") as file:
        file.write("x")
    if os.path.getsize(path) > 1:
        raise Dead("the weights are gone")
    return counting_engine()


def is_gone(pid):
    """Whether a process has ended; its parent may not have asked for its status."""
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except (ProcessLookupError, FileNotFoundError):
        return True


class CancelledAt:
    """Await this to run a coroutine and cancel it when it waits for the k-th time.

    Attributes:
        has_arrived: what it waits for arrives just before the cancellation, instead of never.
        was_cancelled: whether it came that far.
    """

    def __init__(self, coroutine, k, has_arrived=False):
        self.coroutine, self.k, self.has_arrived, self.was_cancelled = coroutine, k, has_arrived, False

    def __await__(self):
        waits = 0
        cancel = False
        while True:
            try:
                if cancel:
                    self.was_cancelled = True
                    future = self.coroutine.throw(asyncio.CancelledError())
                else:
                    future = self.coroutine.send(None)
            except StopIteration as stop:
                return stop.value
            waits += 1
            cancel = waits == self.k
            if cancel and not self.has_arrived:
                if future is not None:
                    future._asyncio_future_blocking = False
                    future.cancel()
                continue
            yield future


async def until(condition):
    """Let the event loop run until the condition holds."""
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        await asyncio.sleep(0.001)


async def until_empty(front: AsyncEngine):
    """Until no request is in flight, and nothing is left of those that were."""
    await until(lambda: not front._requests)
    assert front.admission.num_requests == front.admission.num_prompt_tokens == 0
    assert (front.gauges.running, front.gauges.waiting, front.gauges.used_blocks) == (0, 0, 0)
    if not hasattr(front, "process"):
        check_that_nothing_is_left(front._engine_loop.engine)
        assert not front._engine_loop.open


async def read(stream) -> tuple[dict[int, list], RequestEnded]:
    """Index of a completion -> its tokens, as NewToken; and the end."""
    arrived = {}
    async for tokens in stream:
        assert tokens
        for token in tokens:
            assert token.request_id == stream.request_id
            arrived.setdefault(token.index, []).append(token)
    return arrived, await stream.end()
