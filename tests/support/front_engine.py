"""The asyncio front of lesson 14, behind the contract."""

import asyncio
import threading
from typing import Any

from examples.engines.threaded import ThreadedEngine
from lessons_lib.conformance.adapters.course import config_of, sampling_params
from lessons_lib.conformance.contract import BLOCKS, MODEL, PREFIXES, SAMPLING, STREAM, TEXT, Limits, NewTokens, Params
from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.kv_cache.block_pool import OutOfBlocks
from lessons_lib.serving.async_engine import AsyncEngine, RequestStream

LIMIT = 30.0  # seconds for what takes milliseconds


class FrontEngine(ThreadedEngine):
    """An AsyncEngine whose event loop runs in a thread of its own.

    Attributes:
        engine: the LLMEngine behind it.
    """

    features = frozenset({BLOCKS, MODEL, PREFIXES, SAMPLING, STREAM, TEXT})

    def __init__(self, engine: LLMEngine):
        super().__init__()
        self.engine = engine
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.front = self._wait(self._opened())
        self.streams: dict[str, RequestStream] = {}
        self.readers: set[asyncio.Task[None]] = set()

    def _wait(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(LIMIT)

    async def _opened(self) -> AsyncEngine:
        return await AsyncEngine(self.engine).__aenter__()

    def add_request(self, request_id: str, prompt_ids: list[int], params: Params) -> None:
        self.take(request_id)
        try:
            self._wait(self._add(request_id, prompt_ids, params))
        except OutOfBlocks as error:
            self.open.discard(request_id)
            raise ValueError(str(error)) from error
        except BaseException:
            self.open.discard(request_id)
            raise

    async def _add(self, request_id: str, prompt_ids: list[int], params: Params) -> None:
        stream = await self.front.add(prompt_ids, sampling_params(params), request_id=request_id)
        self.streams[request_id] = stream
        self.readers.add(reader := asyncio.create_task(self._read(stream)))
        reader.add_done_callback(self.readers.discard)

    async def _read(self, stream: RequestStream) -> None:
        name = stream.request_id
        async for tokens in stream:
            text = "".join(token.text for token in tokens)
            self._put(stream, NewTokens(name, [token.token for token in tokens], tokens[-1].finish_reason, text))
        end = await stream.end()
        if end.error or end.is_aborted:
            self._put(stream, NewTokens(name, [], "error" if end.error else "abort"))

    def _put(self, stream: RequestStream, event: NewTokens) -> None:
        """Unless the request was aborted: its id may be in use again."""
        if self.streams.get(stream.request_id) is stream:
            self.arrived.put(event)

    def stop(self, request_id: str) -> None:
        self._wait(self._leave(self.streams.pop(request_id)))

    async def _leave(self, stream: RequestStream) -> None:
        await stream.aclose()
        await stream.end()

    def num_free_blocks(self) -> int:
        return len(self.engine.scheduler.pool.free_queue)

    def close(self) -> None:
        self._wait(self.front.aclose())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.engine.close()


def make_engine(model: Any, limits: Limits, tokenizer: Any) -> FrontEngine:
    """AsyncEngine over an LLMEngine."""
    return FrontEngine(LLMEngine(model, tokenizer, config_of(limits)))
