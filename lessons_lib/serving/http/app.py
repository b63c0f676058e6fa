"""The application: the API, and around it health, metrics, the page, and the guards in front of all."""

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from lessons_lib import __version__
from lessons_lib.serving.async_engine import AsyncEngine
from lessons_lib.serving.http import errors
from lessons_lib.serving.http.chat import ChatGeneration
from lessons_lib.serving.http.completions import TextGeneration
from lessons_lib.serving.http.errors import ApiError
from lessons_lib.serving.http.generation import check_model
from lessons_lib.serving.http.observability import AccessLog, ServerMetrics, cockpit, health
from lessons_lib.serving.http.page import page
from lessons_lib.serving.http.protocol import ChatRequest, CompletionRequest
from lessons_lib.serving.http.response_protocol import ResponsesRequest
from lessons_lib.serving.http.responses import ResponseGeneration, ResponseStore, not_found, owner_of
from lessons_lib.serving.http.security import ApiKeys, BodyLimit, HostCheck, SafeHeaders
from lessons_lib.serving.http.served_model import ServedModel
from lessons_lib.serving.http.settings import ServerSettings

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# The OpenAPI document describes only requests in detail: answers are OpenAI's.
RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"description": "OK; with `stream`, server-sent events.", "content": {"text/event-stream": {}}},
    "default": {"description": "An error, as OpenAI writes it.", "content": {"application/json": {}}},
}


def create_app(front: AsyncEngine, settings: ServerSettings, served: ServedModel) -> FastAPI:
    """The server's application. Its `state.metrics` is what /metrics shows.

    Args:
        front: open, in the event loop that will run the application.
        served: the model that the engine behind `front` has.
    """
    settings = settings.for_context(served.max_model_len)
    app = FastAPI(title="lessons_lib", version=__version__, root_path=settings.root_path, responses=RESPONSES)
    errors.install(app)
    add_models(app, served)

    @app.post("/v1/completions", tags=["completions"])
    async def create_completion(request: Request, body: CompletionRequest) -> Response:
        """Continue one or several prompts."""
        return await TextGeneration(front, served, request, body).respond()

    @app.post("/v1/chat/completions", tags=["chat"])
    async def create_chat_completion(request: Request, body: ChatRequest) -> Response:
        """Answer the last message of a chat."""
        return await ChatGeneration(front, served, request, body).respond()

    store = ResponseStore(settings.max_responses, settings.response_ttl)
    app.state.settings = settings

    @app.post("/v1/responses", tags=["responses"])
    async def create_response(request: Request, body: ResponsesRequest) -> Response:
        """Answer a message, or the last items of a conversation."""
        return await ResponseGeneration(front, served, request, body, store=store).respond()

    @app.get("/v1/responses/{response_id}", tags=["responses"])
    async def retrieve_response(request: Request, response_id: str, cache_salt: str | None = None) -> dict[str, Any]:
        """Show a response that is kept."""
        if unknown := request.query_params.keys() - {"cache_salt"}:
            raise ApiError(400, f"{min(unknown)[:100]} isn't offered for a response that is kept.")
        return stored(request, response_id, cache_salt)

    @app.delete("/v1/responses/{response_id}", tags=["responses"])
    async def delete_response(request: Request, response_id: str, cache_salt: str | None = None) -> dict[str, Any]:
        """Forget a response."""
        stored(request, response_id, cache_salt)
        del store.responses[response_id]
        return {"id": response_id, "object": "response", "deleted": True}

    def stored(request: Request, response_id: str, cache_salt: str | None) -> dict[str, Any]:
        if (found := store.find(response_id, owner_of(request, cache_salt))) is None:
            raise not_found(404, response_id, None)
        return found.response

    metrics = app.state.metrics = ServerMetrics(front, settings.model_name)

    def show(path: str, answer: Callable[[], Response]) -> None:
        async def respond(request: Any) -> Response:  # nothing here waits, so all can run in the event loop
            return answer()

        app.add_route(path, respond)

    def answer_health() -> Response:
        status, body = health(front)
        return JSONResponse(body, status)

    show("/health", answer_health)
    show("/ping", answer_health)
    show("/metrics", lambda: Response(metrics.text(), headers={"content-type": METRICS_TYPE}))
    show("/version", lambda: JSONResponse({"version": __version__}))
    show("/cockpit", lambda: JSONResponse(cockpit(front)))
    show("/", lambda: page(settings))

    known_paths = frozenset(getattr(route, "path", "") for route in app.routes)
    assert settings.max_body_bytes  # see `for_context`
    limits = {"max_body_bytes": settings.max_body_bytes, "max_values": settings.max_values}
    # The last one is the outermost.
    app.add_middleware(BodyLimit, **limits, context=served.max_model_len)
    app.add_middleware(ApiKeys, api_keys=settings.api_keys)
    app.add_middleware(HostCheck, known_hosts=settings.known_hosts)
    app.add_middleware(SafeHeaders)
    app.add_middleware(AccessLog, metrics=metrics, known_paths=known_paths, is_logged=settings.access_log)
    return app


def add_models(app: FastAPI, served: ServedModel) -> None:
    """Add `GET /v1/models`."""
    card = {"id": served.name, "object": "model", "created": served.created, "owned_by": "lessons_lib"}
    card |= {"root": served.name, "parent": None, "max_model_len": served.max_model_len}

    @app.head("/v1/models", include_in_schema=False)
    @app.get("/v1/models", tags=["models"])
    async def list_models() -> dict[str, Any]:
        """The models of this server: one."""
        return {"object": "list", "data": [card]}

    # Names such as "HuggingFaceTB/SmolLM2-135M-Instruct" have a slash.
    @app.head("/v1/models/{model:path}", include_in_schema=False)
    @app.get("/v1/models/{model:path}", tags=["models"])
    async def retrieve_model(model: str) -> dict[str, Any]:
        """One model."""
        check_model(model, served)
        return card
