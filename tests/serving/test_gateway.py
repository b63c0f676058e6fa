"""The gateway: whatever a replica does in the middle of an answer, the client gets all of it, or an error event. Replicas
are fakes that fail where they are told to; `test_ray_app` has real ones."""

import asyncio
import json

import httpx
import pytest
from fastapi import Request
from starlette.datastructures import Headers

from lessons_lib.ray_serve.gateway import MAX_BODY_BYTES, hashes_of, new_app, relay, whole_events
from lessons_lib.serving.failover import MAX_MOVES, ReplicaLost
from lessons_lib.serving.http.errors import ApiError
from lessons_lib.serving.http.sse import KEEP_ALIVE

DONE = "[DONE]"
WORDS = [(7, "Once"), (8, " up"), (9, ""), (10, "on \u2028 a"), (11, " time"), (12, ".")]  # token, text
COMPLETION, CHAT = "/v1/completions", "/v1/chat/completions"
STREAM = {"prompt": "Tell me", "stream": True}
BODIES = {COMPLETION: STREAM, CHAT: {"messages": [{"role": "user", "content": "Tell me"}], "stream": True}}
USAGE = {"stream_options": {"include_usage": True}}
IDS = {"return_token_ids": True}


def data_of(event):
    return f"data: {event if event == DONE else json.dumps(event)}\n\n".encode()


class FakeReplica:
    """A server whose model writes WORDS.

    Attributes:
        fail_after: events behind which it fails; None for never.
        how: it fails with "died", "half" an event, "eof" without [DONE], an "error" event of a dead engine, "garbage"; or
            it "hangs".
        asked: the requests.
        has_ended: its answer was read to its end, or closed.
    """

    def __init__(self, fail_after=None, how="died", status=200):
        self.fail_after, self.how, self.status = fail_after, how, status
        self.asked, self.has_ended = [], asyncio.Event()

    async def answer(self, scope, content):
        try:
            self.asked.append((scope, content))
            body = json.loads(content)
            if self.fail_after == -1:
                raise ReplicaLost("Died")
            # As the server does: behind the end of a completion, nothing can go on.
            is_over = len(body.get("output_token_ids", ())) == len(WORDS)
            if is_over or self.status != 200 or not body.get("stream"):
                yield 400 if is_over else self.status, {"x-kept": "yes", "date": "now"}
                yield b'"No'
                if self.how == "hangs":
                    await asyncio.sleep(1000)
                if self.fail_after is not None:
                    raise ReplicaLost("Died")
                yield b'ne"'
                return
            yield 200, {"x-kept": "yes", "date": "now"}
            for number, event in enumerate([*self.events(scope, body), DONE]):
                if number == self.fail_after:
                    yield {
                        "half": data_of(event)[:9],
                        "error": data_of({"error": {"message": "dead", "code": "engine_dead"}}),
                        "garbage": b"data: {]\n\n",
                    }.get(self.how, b"")
                    if self.how in ("died", "half"):
                        raise ReplicaLost("Died")
                    await asyncio.sleep(1000 if self.how == "hangs" else 0)
                    return
                yield KEEP_ALIVE + data_of(event)
        finally:
            self.has_ended.set()

    def events(self, scope, body):
        known, choices = body.get("output_token_ids", []), range(body.get("n", 1))
        assert known == [token for token, _ in WORDS[: len(known)]]
        head = {"id": f"cmpl-{Headers(scope=scope)['x-request-id']}", "created": id(self)}
        if scope["path"] == CHAT and not known:
            delta = {"role": "assistant", "content": ""}
            yield from ({"choices": [{"index": i, "delta": delta, "finish_reason": None}]} | head for i in choices)
        for place, (token, text) in list(enumerate(WORDS))[len(known) :]:
            for index in choices:
                own = {"text": text} if scope["path"] == COMPLETION else {"delta": {"content": text}}
                choice = {"index": index, "finish_reason": "length" if place == len(WORDS) - 1 else None} | own
                yield head | {"choices": [choice | ({"token_ids": [token]} if body.get("return_token_ids") else {})]}
        if body.get("stream_options"):
            yield head | {"choices": [], "usage": {"completion_tokens": len(WORDS)}}


def app_of(*fakes):
    """A gateway that asks one fake after the other."""
    app, left = new_app(), list(fakes)

    async def ask(scope, content, block_hashes):
        async for message in (left.pop(0) if len(left) > 1 else left[0]).answer(scope, content):
            yield message

    @app.api_route("/{path:path}", methods=["GET", "POST"])
    async def any(request: Request):
        return await relay(request, ask)

    return app


async def ask(fakes, body=STREAM, path=COMPLETION, **options):
    headers = {"x-request-id": "mine"} | options
    transport = httpx.ASGITransport(app_of(*fakes))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        return await client.post(path, json=body, headers=headers)


def events_of(response, created=None):
    """The events, with the time that a replica has given them."""
    assert response.status_code == 200, response.text
    *events, rest = response.content.decode("ascii").split("\n\n")
    assert rest == ""
    data = [event.removeprefix("data: ") for event in events]
    events = [each if each == DONE else json.loads(each) for each in data]
    return [each | {"created": created} if "created" in each and created else each for each in events]


def error_of(response):
    """The error event at the end of a stream."""
    *_, error, done = events_of(response)
    assert done == DONE
    return error["error"]


@pytest.mark.parametrize("how", ["died", "half", "eof", "error", "garbage"])
@pytest.mark.parametrize("options", [{}, USAGE, IDS | USAGE], ids=["plain", "usage", "token ids"])
@pytest.mark.parametrize("path", [COMPLETION, CHAT])
async def test_a_stream_goes_on_elsewhere_wherever_it_was_cut(path, options, how):
    body = BODIES[path] | options
    whole = events_of(await ask([FakeReplica()], body, path), 1)
    assert whole[-1] == DONE and len(whole) == 7 + (path == CHAT) + bool(options.get("stream_options"))
    assert ("token_ids" in json.dumps(whole)) == ("return_token_ids" in options)
    for cut in range(len(whole)):
        fakes = [FakeReplica(cut, how), FakeReplica()]
        response = await ask(fakes, body, path)
        assert events_of(response, 1) == whole, cut
        assert {each["created"] for each in events_of(response)[:-1]} == {id(fakes[0 if cut else 1])}
        assert response.headers["x-kept"] == "yes" and "date" not in response.headers
        first, second = (json.loads(fake.asked[0][1]) for fake in fakes)
        assert first["seed"] == second["seed"]  # or the rest would be drawn by other numbers
        assert "output_token_ids" not in first


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"n": 2}, "it has 2 completions"),
        ({"prompt": ["Tell me", "more"]}, "it has a list of prompts"),
        ({"prompt": [[1, 2]]}, "it has a list of prompts"),
        ({"echo": True}, "it has echo"),
    ],
)
async def test_what_cannot_go_on_ends_with_an_error_event(options, reason):
    body = STREAM | options
    whole = events_of(await ask([FakeReplica()], body), 1)
    for cut in range(len(whole)):
        fakes = [FakeReplica(cut), FakeReplica()]
        response = await ask(fakes, body)
        if cut == 0:  # nothing was sent: another replica does all of it
            assert events_of(response, 1) == whole
            continue
        assert events_of(response, 1)[:-2] == whole[:cut] and not fakes[1].asked
        assert error_of(response)["code"] == "replica_lost"
        told = f"the replica was lost (Died), and the stream can't go on elsewhere: {reason}. Send the request again."
        assert error_of(response)["message"] == told


async def test_a_list_of_token_ids_is_one_prompt():
    fakes = [FakeReplica(3), FakeReplica()]
    assert events_of(await ask(fakes, STREAM | {"prompt": [1, 2, 3]}))[-1] == DONE
    assert json.loads(fakes[1].asked[0][1])["output_token_ids"] == [7, 8, 9]


@pytest.mark.parametrize("body", [STREAM, {"prompt": "Tell me"}], ids=["streamed", "whole"])
async def test_a_request_that_kills_replicas_does_not_kill_all_of_them(body):
    fakes = [FakeReplica(2) for _ in range(MAX_MOVES + 2)]
    response = await ask(fakes, body)
    assert [len(fake.asked) for fake in fakes] == [1] * (MAX_MOVES + 1) + [0]
    if "stream" in body:
        assert len(events_of(response)) == 2 * (MAX_MOVES + 1) + 2
        assert error_of(response)["code"] == "replica_lost"
    for fake in fakes:
        fake.fail_after = -1
    response = await ask(fakes, body)
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert response.json()["error"]["message"] == "the replica was lost (Died). Send the request again."


async def test_an_answer_in_one_piece_is_asked_for_once_more():
    fakes = [FakeReplica(0), FakeReplica()]
    response = await ask(fakes, {"prompt": "a"})
    assert (response.json(), response.headers["x-kept"]) == ("None", "yes")
    assert fakes[0].asked == fakes[1].asked and fakes[0].has_ended.is_set()


@pytest.mark.parametrize("status", [400, 429])
@pytest.mark.parametrize("body", [STREAM, {"prompt": "a"}], ids=["streamed", "whole"])
async def test_a_refusal_is_passed_on_and_a_continuation_that_is_refused_is_lost(status, body):
    response = await ask([FakeReplica(status=status), FakeReplica()], body)
    assert (response.status_code, response.json(), response.headers["x-kept"]) == (status, "None", "yes")
    response = await ask([FakeReplica(3), FakeReplica(status=status)])
    assert len(events_of(response)) == 5
    assert f"another replica answered with status {status}" in error_of(response)["message"]


async def test_responses_are_not_offered_since_only_one_replica_would_know_them():
    response = await ask([], path="/v1/responses")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "not_offered")


async def test_what_the_router_refuses_has_a_status():
    async def full(scope, content):
        raise ApiError(503, "all are full", code="overloaded")
        yield

    fake = FakeReplica()
    fake.answer = full
    for body in (STREAM, {"prompt": "a"}):
        response = await ask([fake], body)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "overloaded")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_is_seen_by_the_replica(stream):
    fake = FakeReplica(2, "hangs")
    body = json.dumps(STREAM | {"stream": stream}).encode()
    has_left, content = asyncio.Event(), [{"type": "http.request", "body": body}]

    async def receive():
        if content:
            return content.pop()
        await has_left.wait()
        return {"type": "http.disconnect"}

    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": COMPLETION, "query_string": b"", "headers": []}
    asking = asyncio.create_task(app_of(fake)(scope, receive, send))
    while len(sent) < 3 if stream else not fake.asked:
        await asyncio.sleep(0)
    has_left.set()
    await asking
    await asyncio.wait_for(fake.has_ended.wait(), 20)


async def test_other_errors_of_a_request_are_passed_on():
    failed = {"error": {"message": "NaN", "code": "request_failed"}}
    word = {"id": "x", "created": 1, "choices": [{"index": 0, "text": "Once", "finish_reason": None}]}
    fakes = [FakeReplica(), FakeReplica()]
    fakes[0].events = lambda scope, body: [word, failed]
    assert events_of(await ask(fakes)) == [word, failed, DONE] and not fakes[1].asked


async def test_what_the_client_says_is_passed_on():
    fake = FakeReplica()
    body = {"prompt": "a", "stream": True, "seed": 5, "max_tokens": 3, "user": None}
    await ask([fake], body, COMPLETION + "?a=b", authorization="Bearer k")
    ((scope, content),) = fake.asked
    assert json.loads(content) == {"prompt": "a", "stream": True, "seed": 5, "max_tokens": 3} | IDS
    assert (scope["method"], scope["path"], scope["query_string"]) == ("POST", COMPLETION, b"a=b")
    own = {"authorization": "Bearer k", "host": "localhost", "accept-encoding": "identity"}
    assert own.items() <= dict(Headers(scope=scope)).items()
    wrong = FakeReplica(status=400)
    assert (await ask([wrong], {"prompt": 5, "stream": True})).status_code == 400  # the replica says what is wrong
    assert (await ask([wrong], "x" * MAX_BODY_BYTES)).status_code == 413 and len(wrong.asked) == 1


def test_hashes_keep_salts_and_kinds_of_prompts_apart():
    ids, text = {"prompt": list(range(40))}, {"prompt": "x" * 130}
    assert len(hashes_of(ids)) == 2 and len(hashes_of(text)) == 2
    assert hashes_of({"prompt": [list(range(40)), [1]]}) == hashes_of(ids)
    assert not set(hashes_of(ids)) & set(hashes_of(ids | {"cache_salt": "mine"}))
    assert hashes_of({"prompt": "short"}) == []
    system = {"role": "system", "content": "You are " + "very " * 40 + "helpful."}
    one, other = (hashes_of({"messages": [system, {"role": "user", "content": text}]}) for text in ("one", "two"))
    assert one[:3] == other[:3]


async def test_events_are_whole_however_they_are_cut():
    stream = b"data: one\n\ndata: two\n\ndata: half"

    async def source(size):
        for start in range(0, len(stream), size):
            yield stream[start : start + size]

    for size in range(1, len(stream) + 1):
        assert [event async for event in whole_events(source(size))] == [b"data: one\n\n", b"data: two\n\n"]
