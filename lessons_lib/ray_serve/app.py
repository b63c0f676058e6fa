"""Lesson 15: replicas in production, on Ray Serve. It starts them on the machines of a cluster, replaces those that
die, and adds more when there is more to do.

    python -m lessons_lib.ray_serve.app --port 8000 --replicas 2        # on this machine
    serve deploy lessons_lib/ray_serve/serve_config.yaml                    # on a cluster that runs

Two deployments. A `ModelServer` is a replica: an engine, and the same FastAPI application as in lesson 14. The
`Gateway` is what clients talk to. Ray ends the streams of a replica that dies without a word; the Gateway lets them go
on elsewhere, or sends an error event (see `gateway`). `PrefixRequestRouter` chooses the replica.
"""

import argparse
import asyncio
import logging
import os
import signal
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

# Before Ray is imported: it reports nothing to its makers, and writes no token into the home directory.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")

import httpx
import ray
from fastapi import Request
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import RequestRouterConfig
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica
from starlette.responses import Response
from starlette.types import Scope

from lessons_lib.ray_serve.gateway import new_app, relay
from lessons_lib.serving.failover import ReplicaLost
from lessons_lib.serving.http.errors import ApiError
from lessons_lib.serving.router import Replica, choose_replica

START_TIMEOUT = 240.0  # seconds: a dozen processes are started, each of which imports Ray


class RayDidNotStart(RuntimeError):
    """Ray isn't installed, or the machine is too small for it. The message says which."""


async def messages_of(app: Any, scope: Scope, content: bytes) -> AsyncIterator[tuple[int, dict[str, str]] | bytes]:
    """Run an ASGI application for one request: (status, headers), then the parts of the body. If the reader leaves, the
    application sees a client that has left."""
    messages: asyncio.Queue[Any] = asyncio.Queue()
    gone, to_read = asyncio.Event(), [{"type": "http.request", "body": content}]

    async def receive() -> Any:
        if to_read:
            return to_read.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    running = asyncio.create_task(app(scope, receive, messages.put))
    running.add_done_callback(lambda _: messages.put_nowait(None))
    try:
        while (message := await messages.get()) is not None:
            if message["type"] == "http.response.start":
                headers = message["headers"]
                yield message["status"], {key.decode("latin-1"): value.decode("latin-1") for key, value in headers}
            else:
                yield message.get("body", b"")
        await running
    finally:
        gone.set()


class ModelServer:
    """A replica: an engine in a thread of its own, and the application of lesson 14 around it."""

    # Ray awaits it, in the event loop that serves the requests.
    async def __init__(  # type: ignore[misc]
        self, model: str | None = None, max_requests: int = 256, engine: dict[str, Any] | None = None
    ):
        from lessons_lib.engine.config import EngineConfig
        from lessons_lib.serving.http.engine_recipe import EngineRecipe, default_model, model_name
        from lessons_lib.serving.http.server import make_app, make_front
        from lessons_lib.serving.http.settings import ServerSettings

        recipe = EngineRecipe(model or default_model(), config=EngineConfig(**(engine or {})))
        settings = ServerSettings(model_name(recipe.model), max_requests=max_requests)
        self.front = await asyncio.to_thread(make_front, recipe, settings, "thread")
        self.app = make_app(self.front, recipe, settings)
        await self.front.__aenter__()

    async def respond(self, scope: Scope, content: bytes, block_hashes: list[bytes]) -> AsyncIterator[Any]:
        """Serve a request; see `messages_of`. The block hashes of its prompt are for the router."""
        async for message in messages_of(self.app, scope, content):
            yield message

    async def state(self) -> tuple[int, int]:
        """(its process's id, the number of its engine's requests)."""
        return os.getpid(), int(self.front.admission.num_requests)

    def check_health(self) -> None:
        """Raise if the engine is dead. Ray asks every few seconds, and then replaces the replica."""
        if self.front.error is not None:
            raise RuntimeError(self.front.error)


class PrefixRequestRouter(RequestRouter):
    """`choose_replica` inside Ray Serve. There is one in every process that has a handle, and each knows only what it
    has sent itself. The replicas that were not chosen are asked if the chosen one has no room."""

    def initialize_state(self, **kwargs: Any) -> None:
        """Called once, with RequestRouterConfig.request_router_kwargs."""
        self.imbalance_limit: int = kwargs.get("imbalance_limit", 4)
        self.known: dict[str, Replica] = {}

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The candidates in ranks: those of the next one are asked if all of the first one refuse."""
        if not candidate_replicas:
            return []
        replicas = [self._known(candidate.replica_id) for candidate in candidate_replicas]
        chosen = choose_replica(hashes_in(pending_request), replicas, self.imbalance_limit)
        others = [candidate for index, candidate in enumerate(candidate_replicas) if index != chosen]
        return [[candidate_replicas[chosen]], others] if others else [[candidate_replicas[chosen]]]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """Note that a replica has taken the request."""
        replica = self._known(replica_id)
        replica.num_sent += 1
        replica.sent_blocks.add(hashes_in(pending_request))

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Forget the replica: the one that replaces it has another id, and an empty cache."""
        super().on_replica_actor_died(replica_id)
        self.known.pop(replica_id.unique_id, None)

    def _known(self, replica_id: ReplicaID) -> Replica:
        replica = self.known.setdefault(replica_id.unique_id, Replica())
        # Ray counts already: the replica says how much it has with every request that it takes.
        replica.load = self.replica_queue_len_cache.get(replica_id) or 0
        return replica


def hashes_in(pending_request: PendingRequest | None) -> list[bytes]:
    """The block hashes of a call of `ModelServer.respond`."""
    return list(pending_request.kwargs.get("block_hashes", ())) if pending_request else []


gateway_app = new_app()


@serve.ingress(gateway_app)
class Gateway:
    """The one server that clients see: it passes requests to the replicas, and lets streams go on elsewhere."""

    def __init__(self, servers: DeploymentHandle[Any]):
        self.respond = servers.options(stream=True, method_name="respond").respond

    @gateway_app.api_route("/{path:path}", methods=["GET", "POST"])
    async def any(self, request: Request) -> Response:
        """The replicas have the routes."""
        return await relay(request, self.ask)

    async def ask(self, scope: Scope, content: bytes, block_hashes: list[bytes]) -> AsyncGenerator[Any, None]:
        """See `Ask`. Ray's router chooses the replica, and leaves out those that have died."""
        answer: Any = self.respond.remote(scope, content, block_hashes=block_hashes)
        try:
            async for message in answer:
                yield message
        except BackPressureError as error:
            again = {"Retry-After": "1"}
            raise ApiError(503, f"{error}. Send the request again.", code="overloaded", headers=again) from error
        except (RayError, RayServeException) as error:
            raise ReplicaLost(type(error).__name__) from error
        finally:
            answer.cancel()  # does nothing if it has ended


def build(args: dict[str, Any]) -> serve.Application:
    """The application.

    Args:
        args: of the configuration file: model (a folder or a name), engine (fields of EngineConfig), replicas (a
            number, or "auto"), imbalance_limit, max_requests and num_gpus (of a replica).
    """
    known = {"model", "engine", "replicas", "imbalance_limit", "max_requests", "num_gpus"}
    if unknown := sorted(set(args) - known):
        raise ValueError(f"args has {', '.join(unknown)}; it may have {', '.join(sorted(known))}.")
    router = RequestRouterConfig(
        request_router_class="lessons_lib.ray_serve.app:PrefixRequestRouter",
        request_router_kwargs={"imbalance_limit": args.get("imbalance_limit", 4)},
    )
    max_requests, replicas = args.get("max_requests", 256), args.get("replicas", "auto")
    # A replica is added when each has more than this many requests on average, and taken away when they have fewer.
    scaling: dict[str, Any] = {"num_replicas": replicas}
    if replicas == "auto":
        scaling = {"autoscaling_config": {"min_replicas": 1, "max_replicas": 4, "target_ongoing_requests": 32}}
    deployment: Any = serve.deployment
    server = deployment(
        ModelServer,
        max_ongoing_requests=max_requests,
        request_router_config=router,
        ray_actor_options={"num_cpus": 1, "num_gpus": args.get("num_gpus", 0)},
        health_check_period_s=2,
        health_check_timeout_s=30,
        graceful_shutdown_wait_loop_s=0.5,  # between two looks at what it still has
        graceful_shutdown_timeout_s=60,  # for a replica that is taken away to finish what it has
        **scaling,
    )
    gateway = deployment(Gateway, max_ongoing_requests=10_000, ray_actor_options={"num_cpus": 0.5})
    application: serve.Application = gateway.bind(server.bind(args.get("model"), max_requests, args.get("engine")))
    return application


@contextmanager
def on_this_machine(args: dict[str, Any], port: int, folder: str, name: str = "llm") -> Iterator[str]:
    """Ray and the application, for as long as the block. Yields the URL.

    Args:
        folder: for Ray's files: an absolute path, as short as that of /tmp, since sockets are in it.

    Raises:
        RayDidNotStart: see its message.
    """
    url, replicas = f"http://127.0.0.1:{port}", args.get("replicas", 1)
    try:
        ray.init(
            num_cpus=4 + (replicas if isinstance(replicas, int) else 4),  # slots for actors, not cores
            include_dashboard=False,
            object_store_memory=80 * 2**20,  # nothing is put there but what is too large for a message
            logging_level=logging.ERROR,
            log_to_driver=False,
            _temp_dir=folder,
        )
        serve.start(http_options={"host": "127.0.0.1", "port": port}, logging_config={"log_level": "WARNING"})
        serve.run(build(args), name=name, route_prefix="/", blocking=False)
        wait_until_green(f"{url}/health")
    except Exception as error:
        ray.shutdown()
        raise RayDidNotStart(
            f"Ray did not start here because {type(error).__name__}: {error} It needs about 3 GB of memory and half a "
            "minute of two free cores."
        ) from error
    try:
        yield url
    finally:
        serve.shutdown()
        ray.shutdown()


def wait_until_green(url: str, timeout: float = 60.0) -> None:
    """Wait until a request is answered with 200: the proxy learns of the routes after `serve.run` has returned."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            if httpx.get(url, timeout=5, trust_env=False).status_code == 200:
                return
        except httpx.TransportError as error:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{url} isn't green after {timeout:g} s: {error}.") from error
        time.sleep(0.05)


def main() -> int:
    """Returns the exit status: 1 if Ray didn't start."""
    parser = argparse.ArgumentParser(prog="python -m lessons_lib.ray_serve.app")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--model", default=None, help="a folder or a name; otherwise the chat model or the bundled one")
    parser.add_argument("--start-timeout", type=float, default=START_TIMEOUT, help="seconds")
    wanted = parser.parse_args()
    ended = threading.Event()
    args = {"model": wanted.model, "replicas": wanted.replicas}
    signal.alarm(round(wanted.start_timeout))  # it ends this process: Ray's threads may wait forever
    try:
        with tempfile.TemporaryDirectory(prefix="ray-") as folder, on_this_machine(args, wanted.port, folder) as url:
            signal.alarm(0)
            for number in (signal.SIGTERM, signal.SIGINT):  # not earlier: Ray installs handlers of its own
                signal.signal(number, lambda *_: ended.set())
            print(f"Serving on {wanted.replicas} replicas at {url}. Ctrl-C ends them.", flush=True)
            ended.wait()
    except RayDidNotStart as error:
        print(error, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
