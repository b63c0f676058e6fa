"""Lesson 15: a balancer over plain server processes. Clients see one server; it chooses a replica for each request, and
another one if the first is lost.

    python -m lessons_lib.serving.balancer --port 8000 http://127.0.0.1:8001 http://127.0.0.1:8002
"""

import argparse
import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import anyio
import httpx
from starlette.types import Receive, Scope, Send

from lessons_lib.serving.client_request import JSON, Answer, ClientRequest, served
from lessons_lib.serving.continuation import MAX_MOVES, ReplicaLost
from lessons_lib.serving.router import PrefixAffinity, Replica, RoundRobin, RoutingPolicy, TwoChoices

MAX_FAILURES = 2  # looks at /health in a row without an answer, after which a replica is given up
POLICIES = {"affinity": PrefixAffinity, "two-choices": TwoChoices, "round-robin": RoundRobin}


@dataclass(eq=False)
class ServerReplica(Replica):
    """A server process behind the balancer.

    Attributes:
        is_up: its /health says that it takes requests.
        failures: looks at /health in a row without an answer.
        in_use: cancelled when it is given up, so that no request waits for it forever.
    """

    url: str = field(kw_only=True)
    is_up: bool = False
    failures: int = 0
    in_use: set[anyio.CancelScope] = field(default_factory=set)


class Balancer:
    """An ASGI application in front of several servers.

    A replica that doesn't answer gets no requests until its /health is green again. Its streams go on elsewhere (see
    `continuation`), or end with an error event; answers in one piece are asked for once more. A replica that drains
    finishes what it has.

    Attributes:
        replicas: a ServerReplica for each server.
        policy: chooses one of them.
        health_interval, health_timeout: seconds between two looks at a replica's /health, and for its answer.
        transport: httpx's, to the replicas.
        counts: of requests by what happened to them.
    """

    def __init__(
        self,
        urls: Sequence[str],
        policy: RoutingPolicy | None = None,
        *,
        health_interval: float = 0.5,
        health_timeout: float = 5.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ):
        self.replicas = [ServerReplica(url=url.rstrip("/")) for url in urls]
        self.policy = policy or PrefixAffinity()
        self.health_interval, self.health_timeout, self.transport = health_interval, health_timeout, transport
        self.counts = {"requests": 0, "lost": 0, "continued": 0, "failed": 0, "left": 0}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            self.counts["left"] += not await served(scope, receive, send, self._respond)

    async def _respond(self, request: ClientRequest) -> None:
        if request.path == "/health":
            num_up = sum(replica.is_up for replica in self.replicas)
            status = 200 if num_up else 503
            await request.answer(status, JSON, json.dumps({"status": "ok" if num_up else "no replica"}).encode())
        else:
            self.counts["requests"] += 1
            await self._serve(request)

    async def _serve(self, request: ClientRequest) -> None:
        """Send a request to one replica after another, until one has served it."""
        losses, reason, refusal = 0, "no replica takes requests", None
        while losses <= MAX_MOVES and (replica := self.choose(request)):
            replica.begin(request.block_hashes)
            self.counts["continued"] += request.has_begun
            try:
                refusal = await self._relay(request, replica)
                if refusal is None:
                    return None
                reason = f"the replica answered with status {refusal[0]}"
            except (ReplicaLost, httpx.TransportError) as error:
                losses += 1
                self.counts["lost"] += 1
                replica.is_up = False  # until its /health is green
                reason = f"the replica was lost ({type(error).__name__}: {error})"
                if why_not := request.why_not_elsewhere():
                    reason += f", and the stream can't go on elsewhere: {why_not}"
                    break
            finally:
                replica.end()
        if refusal and not request.has_begun:
            return await request.answer(*refusal)
        self.counts["failed"] += 1
        return await request.refuse(503, "replica_lost", f"{reason}. Send the request again.")

    def choose(self, request: ClientRequest) -> ServerReplica | None:
        """A replica that takes requests, and hasn't been asked for this one yet."""
        replicas = [replica for replica in self.replicas if replica.is_up and replica not in request.asked]
        if not replicas:
            return None
        replica = replicas[self.policy.choose(request.block_hashes, replicas)]
        request.asked.append(replica)
        return replica

    async def _relay(self, request: ClientRequest, replica: ServerReplica) -> Answer | None:
        """See `ClientRequest.relay`.

        Raises:
            ReplicaLost, httpx.TransportError: the answer isn't complete.
        """
        url, body = replica.url + request.target, request.next_body()
        with anyio.CancelScope() as scope:
            replica.in_use.add(scope)
            try:
                async with self._client.stream(request.method, url, headers=request.headers, content=body) as response:
                    return await request.relay(response.status_code, response.headers, response.aiter_raw())
            finally:
                replica.in_use.discard(scope)
        raise ReplicaLost("it doesn't answer any more")

    async def __aenter__(self) -> "Balancer":
        # A replica may compute for any time: /health tells if it is alive.
        timeout = httpx.Timeout(None, connect=self.health_timeout)
        limits = httpx.Limits(max_connections=None)
        self._client = httpx.AsyncClient(transport=self.transport, limits=limits, timeout=timeout, trust_env=False)
        await asyncio.gather(*map(self.check, self.replicas))
        self._watching = [asyncio.create_task(self._watch(replica)) for replica in self.replicas]
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        await self._client.aclose()

    async def check(self, replica: ServerReplica) -> None:
        """Look at a replica's /health."""
        try:
            response = await self._client.get(f"{replica.url}/health", timeout=self.health_timeout)
            replica.is_up, replica.failures = response.status_code == 200, 0
        except httpx.TransportError:
            replica.failures += 1
            if replica.failures >= MAX_FAILURES:
                replica.is_up = False
                replica.sent_blocks.clear()  # when it comes back, its cache will be empty
                for scope in list(replica.in_use):
                    scope.cancel()

    async def _watch(self, replica: ServerReplica) -> None:
        while True:
            await asyncio.sleep(self.health_interval)
            await self.check(replica)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while (message := await receive())["type"] != "lifespan.shutdown":
            if message["type"] == "lifespan.startup":
                await self.__aenter__()
                await send({"type": "lifespan.startup.complete"})
        await self.__aexit__()
        await send({"type": "lifespan.shutdown.complete"})


def main() -> None:
    """The command line."""
    import uvicorn

    parser = argparse.ArgumentParser(prog="python -m lessons_lib.serving.balancer", description=__doc__)
    parser.add_argument("urls", nargs="+", help="of the servers")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--policy", choices=list(POLICIES), default="affinity")
    wanted = parser.parse_args()
    balancer = Balancer(wanted.urls, POLICIES[wanted.policy]())
    uvicorn.run(balancer, host=wanted.host, port=wanted.port, lifespan="on", access_log=False, server_header=False)


if __name__ == "__main__":
    main()
