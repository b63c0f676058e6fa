"""The small server of five parts: the reference engine's tokens, a client that leaves, one too many, a dead engine."""

import http.client
import json

import pytest
from live_server import wait_until

from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.kv_cache import audit
from lessons_lib.models.loading import load_model
from lessons_lib.serving.admission import AdmissionControl
from lessons_lib.serving.http.chat_events import sse_events
from lessons_lib.serving.http.leaving import stream_until_gone
from lessons_lib.serving.http.server_thread import ServerThread
from lessons_lib.serving.http.small_app import SmallApp
from lessons_lib.serving.mailbox import Mailbox
from lessons_lib.serving.owner import own_engine

CHAT = {"messages": [{"role": "user", "content": "The old dog"}], "max_tokens": 12, "temperature": 0}
OPEN = []  # connections and responses, closed after each test
LONG = CHAT | {"max_tokens": 900, "ignore_eos": True}


@pytest.fixture(autouse=True)
def _closed_connections():
    yield
    while OPEN:
        OPEN.pop().close()


def post(host, body, path="/v1/chat/completions"):
    connection = http.client.HTTPConnection(host, timeout=60)
    OPEN.append(connection)
    connection.request("POST", path, body if isinstance(body, (bytes, str)) else json.dumps(body))
    OPEN.append(response := connection.getresponse())
    return connection, response


def events_of(response):
    events = [each.removeprefix("data: ") for each in response.read().decode().split("\n\n") if each.startswith("data")]
    return [each if each == "[DONE]" else json.loads(each) for each in events]


@pytest.fixture(scope="module")
def engine():
    model, tokenizer = load_model(device="cpu")
    return LLMEngine(model, tokenizer, EngineConfig(max_num_seqs=4, max_num_batched_tokens=64, num_blocks=256))


@pytest.fixture
def app(engine):
    return SmallApp(engine, admission=AdmissionControl(max_requests=2))


@pytest.fixture
def host(app):
    with ServerThread(app) as server:
        yield server.host
    assert not app.front._requests and app.front.admission.num_requests == 0 and not app.engine.scheduler.pool.used
    audit(app.engine.scheduler)


def test_a_chat_has_the_engines_tokens(app, host):
    model, tokenizer = app.engine.model, app.engine.tokenizer
    alone = LLMEngine(model, tokenizer, EngineConfig()).generate(
        ["The old dog"], SamplingParams(max_tokens=12, temperature=0)
    )[0]
    _, response = post(host, CHAT | {"stream_options": {"include_usage": True}})
    assert (response.status, response.getheader("content-type")) == (200, "text/event-stream")
    *chunks, usage, done = events_of(response)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""} and done == "[DONE]"
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks)
    assert text == alone.completions[0].text and text
    assert chunks[-1]["choices"][0]["finish_reason"] == alone.completions[0].finish_reason
    assert usage["usage"]["completion_tokens"] == 12
    assert usage["usage"]["prompt_tokens"] == len(alone.prompt_ids)


def test_one_too_many_is_refused_and_clients_that_leave_give_their_blocks_back(app, host):
    pool = app.engine.scheduler.pool
    readers = [post(host, LONG) for _ in range(2)]
    for _, response in readers:
        assert response.read1(200)
    assert pool.used
    _, refused = post(host, CHAT)
    assert refused.status == 429 and refused.getheader("retry-after") == "1"
    assert "2 requests are in flight" in json.loads(refused.read())["error"]["message"]
    for connection, response in readers:
        response.close()
        connection.close()
    wait_until(lambda: app.num_left == 2 and not app.front._requests and not pool.used)
    assert app.front.admission.retry_after(1, 0) == 1.0, "neither was served to its end, so no rate is known"
    assert post(host, CHAT)[1].status == 200


TOO_LONG = {"messages": [{"role": "user", "content": "dog " * 3000}]}


@pytest.mark.parametrize("body", ["{", "[]", {"messages": 3}, CHAT | {"max_tokens": -1}, CHAT | TOO_LONG], ids=len)
def test_a_bad_body_gets_400(host, body):
    status, answer = (response := post(host, body)[1]).status, json.loads(response.read())
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
    assert post(host, CHAT, "/v1/completions")[1].status == 404


def test_an_engine_that_dies_ends_its_stream_with_an_error(app, host, monkeypatch):
    connection, response = post(host, LONG)
    response.read1(200)

    def fail():
        raise RuntimeError("broken")

    monkeypatch.setattr(app.engine, "step", fail)
    *_, error, done = events_of(response)
    assert "RuntimeError: broken" in error["error"]["message"] and done == "[DONE]"
    assert post(host, CHAT)[1].status == 503


def test_all_five_parts_can_be_exchanged(engine):
    used, admission = set(), AdmissionControl()

    def noting(name, part):
        def noted(*args):
            used.add(name)
            return part(*args)

        return noted

    admission.admit = noting("admission", admission.admit)
    parts = {"mailbox": Mailbox, "own": own_engine, "events": sse_events, "until_gone": stream_until_gone}
    app = SmallApp(engine, admission=admission, **{name: noting(name, part) for name, part in parts.items()})
    with ServerThread(app) as server:
        assert post(server.host, CHAT)[1].read().endswith(b"data: [DONE]\n\n")
    assert used == {"admission", *parts}


def test_an_app_that_does_not_start_is_told():
    async def app(scope, receive, send):
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no model"})

    with pytest.raises(RuntimeError, match="didn't start"):
        ServerThread(app)
