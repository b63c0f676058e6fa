"""The application: routes, errors, and an id for each request."""

import re
import uuid
from typing import Any

from fastapi import FastAPI
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lessons_lib import __version__
from lessons_lib.serving.async_engine import AsyncEngine
from lessons_lib.serving.http import chat, completions, errors, models_list, tokenization
from lessons_lib.serving.http.served_model import ServedModel
from lessons_lib.serving.http.settings import ServerSettings

REQUEST_ID = "x-request-id"


def create_app(front: AsyncEngine, settings: ServerSettings, served: ServedModel) -> FastAPI:
    """The server's application.

    Args:
        front: open, in the event loop that will run the application.
        served: the model that the engine behind `front` has.
    """
    app = FastAPI(title="lessons_lib", version=__version__, root_path=settings.root_path)
    errors.install(app)
    for router in (
        models_list.router(served),
        completions.router(front, served),
        chat.router(front, served),
        tokenization.router(served),
    ):
        app.include_router(router)
    app.add_middleware(RequestIds)
    make_openapi = app.openapi

    def openapi() -> dict[str, Any]:
        """Without the 422 that FastAPI answers by default, and this application doesn't."""
        document = make_openapi()
        for path in document["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        return document

    app.openapi = openapi  # type: ignore[method-assign]
    return app


class RequestIds:
    """Gives every request an id: the client's `x-request-id`, or a new one. The response has it in the same header."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        request_id = Headers(scope=scope).get(REQUEST_ID, "")
        if not re.fullmatch(r"[\x21-\x7e]{1,128}", request_id):
            request_id = uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID] = request_id
            await send(message)

        await self.app(scope, receive, send_with_id)
