"""The application: its routes, its errors, and what surrounds them."""

from typing import Any

from fastapi import APIRouter, FastAPI

from lessons_lib import __version__
from lessons_lib.serving.async_engine import AsyncEngine
from lessons_lib.serving.http import chat, completions, errors, operations
from lessons_lib.serving.http.generation import check_model
from lessons_lib.serving.http.served_model import ServedModel
from lessons_lib.serving.http.settings import ServerSettings


def create_app(front: AsyncEngine, settings: ServerSettings, served: ServedModel) -> FastAPI:
    """The server's application.

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
    # The app's own list of routes doesn't name those of its routers.
    api_paths = frozenset(getattr(route, "path", "") for router in routers for route in router.routes)
    operations.install(app, front, settings, api_paths, served.max_model_len)

    make_openapi = app.openapi

    def openapi() -> dict[str, Any]:
        """Answers are OpenAI's, so only requests are described in detail."""
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
    return app


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
