"""The application: the API, and around it health, metrics, the page, and the guards in front of all."""

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.responses import JSONResponse, Response

from lessons_lib import __version__
from lessons_lib.serving.async_engine import AsyncEngine
from lessons_lib.serving.http import chat, completions, errors
from lessons_lib.serving.http.generation import check_model
from lessons_lib.serving.http.observability import AccessLog, ServerMetrics, cockpit, health
from lessons_lib.serving.http.page import page
from lessons_lib.serving.http.security import ApiKeys, BodyLimit, HostCheck, SafeHeaders
from lessons_lib.serving.http.served_model import ServedModel
from lessons_lib.serving.http.settings import ServerSettings

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def create_app(front: AsyncEngine, settings: ServerSettings, served: ServedModel) -> FastAPI:
    """The server's application. Its `state.metrics` is what /metrics shows.

    Args:
        front: open, in the event loop that will run the application.
        served: the model that the engine behind `front` has.
    """
    settings = settings.for_context(served.max_model_len)
    app = FastAPI(title="lessons_lib", version=__version__, root_path=settings.root_path)
    errors.install(app)
    routers = models(served), completions.router(front, served), chat.router(front, served)
    for router in routers:
        app.include_router(router)
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

    # The app's own list of routes doesn't name those of its routers.
    routes = [*app.routes, *(route for router in routers for route in router.routes)]
    known_paths = frozenset(getattr(route, "path", "") for route in routes)
    assert settings.max_body_bytes  # see `for_context`
    limits = {"max_body_bytes": settings.max_body_bytes, "max_values": settings.max_values}
    # The last one is the outermost.
    app.add_middleware(BodyLimit, **limits, context=served.max_model_len)
    app.add_middleware(ApiKeys, api_keys=settings.api_keys)
    app.add_middleware(HostCheck, known_hosts=settings.known_hosts)
    app.add_middleware(SafeHeaders)
    app.add_middleware(AccessLog, metrics=metrics, known_paths=known_paths, is_logged=settings.access_log)
    describe_requests(app)
    return app


def describe_requests(app: FastAPI) -> None:
    """Let the OpenAPI document describe only requests in detail: answers are OpenAI's."""
    make_openapi = app.openapi

    def openapi() -> dict[str, Any]:
        document = make_openapi()
        for path in document["paths"].values():
            for operation in path.values():
                content: dict[str, Any] = {"application/json": {}, "text/event-stream": {}}
                operation["responses"] = {
                    "200": {"description": "OK; with `stream`, server-sent events.", "content": content},
                    "default": {"description": "An error, as OpenAI writes it.", "content": {"application/json": {}}},
                }
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def models(served: ServedModel) -> APIRouter:
    """`GET /v1/models`."""
    routes = APIRouter(tags=["models"])
    card = {
        "id": served.name,
        "object": "model",
        "created": served.created,
        "owned_by": "lessons_lib",
        "root": served.name,
        "parent": None,
        "max_model_len": served.max_model_len,
    }

    @routes.head("/v1/models", include_in_schema=False)
    @routes.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        """The models of this server: one."""
        return {"object": "list", "data": [card]}

    # Names such as "HuggingFaceTB/SmolLM2-135M-Instruct" have a slash.
    @routes.head("/v1/models/{model:path}", include_in_schema=False)
    @routes.get("/v1/models/{model:path}")
    async def retrieve_model(model: str) -> dict[str, Any]:
        """One model."""
        check_model(model, served)
        return card

    return routes
