"""The server of lesson 14 on a tiny model, asked over HTTP."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI

from lessons_lib.conformance.adapters.course import config_of
from lessons_lib.conformance.adapters.http_client import HttpEngine
from lessons_lib.conformance.contract import BLOCKS, MODEL, Limits
from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.serving.async_engine import AsyncEngine
from lessons_lib.serving.http.app import create_app
from lessons_lib.serving.http.served_model import ServedModel
from lessons_lib.serving.http.server_thread import ServerThread
from lessons_lib.serving.http.settings import ServerSettings


class ServedEngine(HttpEngine):
    """A server in a thread of this process, so that its blocks and its model's passes can be seen as well."""

    features = HttpEngine.features | {BLOCKS, MODEL}

    def __init__(self, engine: LLMEngine, limits: Limits):
        self.engine = engine
        self.server = ServerThread(application(engine, limits))
        super().__init__(self.server.url)

    def num_free_blocks(self) -> int:
        return len(self.engine.scheduler.pool.free_queue)

    def close(self) -> None:
        super().close()
        self.server.close()
        self.engine.close()


def application(engine: LLMEngine, limits: Limits) -> FastAPI:
    """The course's server; its front opens when it starts and closes when it ends."""
    front = AsyncEngine(engine)
    served = ServedModel.of("tiny", engine.model.config, engine.tokenizer, limits.max_model_len)
    app = create_app(front, ServerSettings("tiny", access_log=False), served)

    @contextlib.asynccontextmanager
    async def open_front(app: FastAPI) -> AsyncIterator[None]:
        async with front:
            yield

    app.router.lifespan_context = open_front
    return app


def make_engine(model: Any, limits: Limits, tokenizer: Any) -> ServedEngine:
    """LLMEngine, AsyncEngine and HTTP."""
    return ServedEngine(LLMEngine(model, tokenizer, config_of(limits)), limits)
