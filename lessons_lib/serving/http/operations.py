"""Lesson 14: everything around the API: health, metrics, the page and its cockpit, and the guards in front of all."""

from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response

from lessons_lib import __version__
from lessons_lib.serving.http.observability import AccessLog, Front, ServerMetrics, cockpit, health
from lessons_lib.serving.http.page import page
from lessons_lib.serving.http.security import ApiKeys, BodyLimit, HeadAsGet, HostCheck, SafeHeaders
from lessons_lib.serving.http.settings import ServerSettings

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def install(
    app: FastAPI,
    front: Front,
    settings: ServerSettings,
    api_paths: frozenset[str] = frozenset(),
    context: int | None = None,
) -> ServerMetrics:
    """Add them to an app that has its API. Returns what /metrics shows; `app.state.metrics` is the same.

    Args:
        api_paths: the paths of the API.
        context: the longest sequence of the model, for errors.
    """
    metrics = app.state.metrics = ServerMetrics(front, settings.model_name)

    # None of these waits for anything, so all can run in the event loop.
    @app.get("/health", include_in_schema=False)
    @app.get("/ping", include_in_schema=False)
    async def _health() -> JSONResponse:
        status, body = health(front)
        return JSONResponse(body, status)

    @app.get("/metrics", include_in_schema=False)
    async def _metrics() -> Response:
        return Response(metrics.text(), headers={"content-type": METRICS_TYPE})

    @app.get("/version", include_in_schema=False)
    async def _version() -> dict[str, str]:
        return {"version": __version__}

    @app.get("/load", include_in_schema=False)
    async def _load() -> dict[str, int]:  # what a balancer asks that can't read metrics
        return {"server_load": front.admission.num_requests}

    @app.get("/cockpit", include_in_schema=False)
    async def _cockpit() -> dict[str, Any]:
        return cockpit(front)

    @app.get("/", include_in_schema=False)
    async def _page() -> Response:
        return page(settings)

    known_paths = api_paths | {path for route in app.routes if (path := getattr(route, "path", None))}
    assert settings.max_body_bytes  # see `for_context`
    # The last one is the outermost.
    app.add_middleware(HeadAsGet)
    app.add_middleware(
        BodyLimit, max_body_bytes=settings.max_body_bytes, max_values=settings.max_values, context=context
    )
    app.add_middleware(ApiKeys, api_keys=settings.api_keys)
    app.add_middleware(HostCheck, known_hosts=settings.known_hosts)
    app.add_middleware(SafeHeaders)
    app.add_middleware(AccessLog, metrics=metrics, known_paths=known_paths, is_logged=settings.access_log)
    return metrics
