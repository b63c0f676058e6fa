"""`GET /v1/models`: which model is served."""

from typing import Any

from fastapi import APIRouter

from lessons_lib.serving.http.generation import check_model
from lessons_lib.serving.http.served_model import ServedModel


def router(served: ServedModel) -> APIRouter:
    """The routes."""
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

    @routes.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        """The models of this server: one."""
        return {"object": "list", "data": [card]}

    # Names such as "HuggingFaceTB/SmolLM2-135M-Instruct" have a slash.
    @routes.get("/v1/models/{model:path}")
    async def retrieve_model(model: str) -> dict[str, Any]:
        """One model."""
        check_model(model, served)
        return card

    return routes
