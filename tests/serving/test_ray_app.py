"""The application on Ray Serve: what its parts do without Ray's processes; and, by hand, all of it.

LESSONS_RAY=1 pytest tests/serving/test_ray_app.py -n0        # half a minute of two cores, 3 GB
"""

import asyncio
import json
import os
import signal
import tempfile
from pathlib import Path

import httpx
import pytest
import test_balancer
import yaml
from replicas_under_load import load, outcomes, requests_of

pytest.importorskip("ray.serve")

from ray.exceptions import ActorDiedError

from lessons_lib.serving.ray import app as ray_app
from lessons_lib.serving.ray.app import Gateway, HttpRequest, PrefixRequestRouter, build, messages_of
from lessons_lib.serving.router import hash_prompt

DONE = test_balancer.DONE
BODY = {"prompt": "Tell me", "stream": True}


class FakeAnswer:
    """What a handle returns: the answer of a FakeReplica, until it dies."""

    def __init__(self, fake, request):
        self.is_cancelled = False
        self._parts = self.parts(fake, request)

    async def parts(self, fake, request):
        body = json.loads(request.content)
        fake.bodies.append(body)
        if fake.fail_after == -1:
            raise ActorDiedError
        yield 200, {"content-type": "text/event-stream"}
        for number, event in enumerate([*fake.events(request.path, body), DONE]):
            if number == fake.fail_after:
                if fake.how == "eof":
                    return
                raise ActorDiedError
            yield f"data: {event if event == DONE else json.dumps(event)}\n\n".encode()

    def __aiter__(self):
        return self

    def __anext__(self):
        return self._parts.__anext__()

    def cancel(self):
        self.is_cancelled = True


def a_gateway(fakes):
    """A Gateway whose requests go to one fake after the other."""
    gateway = object.__new__(Gateway.__bases__[0])  # without what Ray adds
    gateway.answers = []

    class Respond:
        @staticmethod
        def remote(request, block_hashes):
            assert block_hashes == hash_prompt("Tell me", 64)
            fake = fakes[len(gateway.answers) % len(fakes)]
            fake.request_id = request.headers["x-request-id"]
            gateway.answers.append(FakeAnswer(fake, request))
            return gateway.answers[-1]

    gateway.respond = Respond
    return gateway


async def ask(fakes, body=BODY):
    gateway = a_gateway(fakes)
    client = await test_balancer.Client().ask(gateway.relay, "/v1/completions", body, [(b"x-request-id", b"mine")])
    assert all(answer.is_cancelled for answer in gateway.answers)
    return client


@pytest.mark.parametrize("how", ["died", "eof"])
async def test_a_stream_of_a_replica_that_dies_goes_on_elsewhere(how):
    whole = (await ask([test_balancer.FakeReplica()])).events
    for cut in range(len(whole)):
        fakes = [test_balancer.FakeReplica(number) for number in range(2)]
        fakes[0].fail_after, fakes[0].how = cut, how
        events = (await ask(fakes)).events
        assert events in (whole, [test_balancer.again(event) for event in whole])
        assert len(fakes[1].bodies) == 1


async def test_what_cannot_go_on_ends_with_an_error_event():
    fakes = [test_balancer.FakeReplica(number) for number in range(2)]
    fakes[0].fail_after = 2
    client = await ask(fakes, BODY | {"n": 2})
    assert len(client.events) == 4 and "the replica was lost (ActorDiedError)" in client.error["message"]
    for fake in fakes:
        fake.fail_after = -1
    assert (await ask(fakes)).status == 503


async def test_an_application_is_run_for_one_request():
    async def app(scope, receive, send):
        assert scope["path"] == "/x" and scope["query_string"] == b"a=b" and (b"name", b"value") in scope["headers"]
        message = await receive()
        await send({"type": "http.response.start", "status": 201, "headers": [(b"k", b"v")]})
        await send({"type": "http.response.body", "body": message["body"] + b"!", "more_body": True})
        assert (await receive())["type"] == "http.disconnect"
        left.set()

    left, request = asyncio.Event(), HttpRequest("POST", "/x", "a=b", {"name": "value"}, b"body")
    reading = messages_of(app, request)
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


async def kill_and_leave(url, servers):
    """A replica dies under load, and comes back; then a client leaves its stream."""
    bodies, killed = requests_of(16, 48, seed=0), []
    wanted = await load(url, bodies)

    async def kill_one():
        killed.append(next(iter(await states(servers))))
        os.kill(killed[0], signal.SIGKILL)

    streams = await load(url, bodies, sum(body["max_tokens"] for body in bodies) // 4, kill_one)
    assert set(outcomes(streams, wanted)) <= {"complete", "error event"}
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
