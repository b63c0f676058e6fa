"""The application on Ray Serve: what its parts do without Ray's processes; and, by hand, all of it.

LESSONS_RAY=1 pytest tests/serving/test_ray_app.py -n0        # half a minute of two cores, 3 GB
"""

import asyncio
import json
import os
import signal
import tempfile
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import yaml

pytest.importorskip("ray.serve")

from ray.exceptions import ActorDiedError
from ray.serve.exceptions import BackPressureError

from lessons_lib.ray_serve import app as ray_app
from lessons_lib.ray_serve.app import Gateway, PrefixRequestRouter, build, messages_of
from lessons_lib.serving.failover import ReplicaLost
from lessons_lib.serving.http.errors import ApiError
from lessons_lib.serving.router import hash_prompt


@pytest.mark.parametrize("error", [ActorDiedError(), BackPressureError(5, 3)])
async def test_errors_of_ray_are_the_gateways_and_the_call_is_cancelled(error):
    class Answer:
        is_cancelled = False

        async def __aiter__(self):
            yield 200, {}
            raise error

        def cancel(self):
            self.is_cancelled = True

    gateway, answer = object.__new__(Gateway.__bases__[0]), Answer()  # without what Ray adds
    gateway.respond = SimpleNamespace(remote=lambda scope, content, block_hashes: answer)
    with pytest.raises((ReplicaLost, ApiError)) as caught:
        assert [message async for message in gateway.ask({}, b"", [])] == [(200, {})]
    assert type(error).__name__ in str(caught.value) or "Send the request again" in str(caught.value)
    assert answer.is_cancelled


async def test_an_application_is_run_for_one_request():
    async def app(scope, receive, send):
        message = await receive()
        await send({"type": "http.response.start", "status": 201, "headers": [(b"k", b"v")]})
        await send({"type": "http.response.body", "body": message["body"] + b"!", "more_body": True})
        assert (await receive())["type"] == "http.disconnect"
        left.set()

    left = asyncio.Event()
    reading = messages_of(app, {}, b"body")
    assert [await anext(reading), await anext(reading)] == [(201, {"k": "v"}), b"body!"]
    await reading.aclose()
    await asyncio.wait_for(left.wait(), 20)


class Named:
    """A candidate, or its id."""

    def __init__(self, name):
        self.unique_id = name
        self.replica_id = self


class Pending:
    def __init__(self, name, prompt):
        self.kwargs = {"block_hashes": hash_prompt(prompt, 4)}
        self.metadata = self
        self.internal_request_id = name


def test_the_request_router_prefers_the_replica_that_has_the_prefix(monkeypatch):
    loads = {}
    monkeypatch.setattr(ray_app.RequestRouter, "on_replica_actor_died", lambda self, *args: None)
    monkeypatch.setattr(ray_app.RequestRouter, "replica_queue_len_cache", loads)
    router = object.__new__(PrefixRequestRouter)
    router.initialize_state(imbalance_limit=1)
    candidates = [Named("a"), Named("b")]

    def choose(prompt, name):
        pending = Pending(name, prompt)
        ranks = asyncio.run(router.choose_replicas(candidates, pending))
        assert sorted(each.unique_id for rank in ranks for each in rank) == sorted(
            each.unique_id for each in candidates
        )
        router.on_request_routed(pending, ranks[0][0], None)
        loads[ranks[0][0]] = loads.get(ranks[0][0], 0) + 1
        return ranks[0][0].unique_id

    assert asyncio.run(router.choose_replicas([], None)) == []
    first = choose("Once upon a time", "0")
    assert choose("Once upon a hill", "1") == first  # one more than the other one has is allowed
    assert choose("Once upon a time", "2") != first  # and no more
    loads.clear()
    candidates.reverse()
    assert choose("Once upon a hill", "3") == first  # the only one that has its end
    router.on_replica_actor_died(candidates[0])
    assert not len(router._known(candidates[0]).sent_blocks)


def test_the_configuration_file_is_one():
    from ray.serve.schema import ServeDeploySchema

    path = Path(ray_app.__file__).with_name("serve_config.yaml")
    config = ServeDeploySchema.model_validate(yaml.safe_load(path.read_text()))
    (application,) = config.applications
    assert application.import_path == f"{ray_app.__name__}:build"
    assert {deployment.name for deployment in application.deployments} == {"Gateway", "ModelServer"}
    build(application.args)
    with pytest.raises(ValueError, match="args has replica; it may have engine, imbalance_limit, "):
        build({"replica": 2})


async def states(servers):
    """Process id -> open requests, of all replicas that answer. Eight are asked, since a router chooses which."""
    answers = await asyncio.gather(*(servers.state.remote() for _ in range(8)), return_exceptions=True)
    return dict(answer for answer in answers if not isinstance(answer, BaseException))


WAYS = [
    {"temperature": 0},
    {"seed": 1},
    {"seed": 2, "presence_penalty": 1.0, "repetition_penalty": 1.1},
    {"seed": 3, "stop": ["happy", "friend", "sad"]},
    {"seed": 4, "min_tokens": 24, "top_p": 0.9, "logprobs": 1},
]
BODIES = [
    way | {"prompt": f"Once upon a time, {name} went to the ", "max_tokens": 48, "stream": True, "ignore_eos": True}
    for way in WAYS
    for name in ("Tom", "Lily", "Ben")
]


async def answers_of(url, on_event=lambda: None):
    """What the clients of all streams read at the same time: (text, the last line)."""

    async def read(client, body):
        text, line = "", ""
        async with client.stream("POST", f"{url}/v1/completions", json=body) as response:
            async for data in response.aiter_lines():
                if data.startswith("data: {"):
                    chunk = json.loads(data.removeprefix("data: "))
                    text += "".join(choice["text"] for choice in chunk.get("choices", ()))
                    text += str(chunk.get("error", ""))
                    on_event()
                line = data or line
        return text, line

    async with httpx.AsyncClient(timeout=120, limits=httpx.Limits(max_connections=None), trust_env=False) as client:
        return await asyncio.gather(*(read(client, body) for body in BODIES))


async def kill_and_leave(url, servers):
    """A replica dies under load, and comes back; then a client leaves its stream."""
    killed, num_events, tasks = [], 0, []
    wanted = await answers_of(url)
    assert {line for _, line in wanted} == {"data: [DONE]"}

    async def kill_one():
        killed.append(next(iter(await states(servers))))
        os.kill(killed[0], signal.SIGKILL)

    def on_event():
        nonlocal num_events
        num_events += 1
        if num_events == 150:
            tasks.append(asyncio.create_task(kill_one()))

    assert await answers_of(url, on_event) == wanted
    await asyncio.gather(*tasks)
    while len(set(await states(servers)) - set(killed)) < 2:
        await asyncio.sleep(0.1)
    body = {"prompt": "Once upon a time", "stream": True, "max_tokens": 240, "n": 16, "ignore_eos": True}
    async with (
        httpx.AsyncClient(timeout=60, trust_env=False) as client,
        client.stream("POST", f"{url}/v1/completions", json=body) as response,
    ):
        async for _ in response.aiter_raw():
            break
    while any((await states(servers)).values()):
        await asyncio.sleep(0.01)


@pytest.mark.skipif(os.environ.get("LESSONS_RAY") != "1", reason="set LESSONS_RAY=1 to start Ray: it takes a minute")
@pytest.mark.timeout(280)
def test_live():
    args = {"replicas": 2}
    try:
        # A short path: sockets are in it.
        with tempfile.TemporaryDirectory(prefix="ray-") as folder, ray_app.on_this_machine(args, 18000, folder) as url:
            asyncio.run(kill_and_leave(url, ray_app.serve.get_deployment_handle("ModelServer", "llm")))
    except ray_app.RayDidNotStart as error:
        pytest.skip(str(error))
