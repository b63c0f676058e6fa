"""The application on Ray Serve: what its parts do without Ray's processes."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

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
