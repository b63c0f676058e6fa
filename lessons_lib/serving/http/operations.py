"""Lesson 14: everything around the API: health, metrics, the page and its cockpit, and the guards in front of all."""

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response

from lessons_lib import __version__
from lessons_lib.serving.async_engine import AsyncEngine
from lessons_lib.serving.http.observability import AccessLog, ServerMetrics, cockpit, health
from lessons_lib.serving.http.page import page
from lessons_lib.serving.http.security import ApiKeys, BodyLimit, HostCheck, SafeHeaders
from lessons_lib.serving.http.settings import ServerSettings

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def install(
    app: FastAPI, front: AsyncEngine, settings: ServerSettings, api_paths: frozenset[str], context: int | None
) -> None:
    """Add them to an app that has its API. `app.state.metrics` is what /metrics shows.

    Args:
        api_paths: the paths of the API.
        context: the longest sequence of the model, for errors.
    """
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

    known_paths = api_paths | {path for route in app.routes if (path := getattr(route, "path", None))}
    assert settings.max_body_bytes  # see `for_context`
    # The last one is the outermost.
    app.add_middleware(
        BodyLimit, max_body_bytes=settings.max_body_bytes, max_values=settings.max_values, context=context
    )
    app.add_middleware(ApiKeys, api_keys=settings.api_keys)
    app.add_middleware(HostCheck, known_hosts=settings.known_hosts)
    app.add_middleware(SafeHeaders)
    app.add_middleware(AccessLog, metrics=metrics, known_paths=known_paths, is_logged=settings.access_log)
