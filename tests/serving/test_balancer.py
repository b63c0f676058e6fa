"""The balancer: whatever a replica does in the middle of an answer, the client gets all of it, or an error event. Replicas
are fakes behind httpx that fail where they are told to; `test_replicas_live` has real ones."""

import asyncio
import contextlib
import json

import httpx
import pytest

from lessons_lib.serving.balancer import Balancer
from lessons_lib.serving.client_request import MAX_BODY_BYTES, events, hashes_of
from lessons_lib.serving.continuation import MAX_MOVES
from lessons_lib.serving.router import PrefixAffinity, RoundRobin

DONE = "[DONE]"
WORDS = [(7, "Once"), (8, " up"), (9, ""), (10, "on \u2028 a"), (11, " time"), (12, ".")]  # token, text
COMPLETION, CHAT = "/v1/completions", "/v1/chat/completions"
PROMPTS = {COMPLETION: {"prompt": "Tell me"}, CHAT: {"messages": [{"role": "user", "content": "Tell me"}]}}


class FakeReplica(httpx.AsyncByteStream):
    """A server whose model writes WORDS. It fails behind `fail_after` events: "reset" of the connection, "half" an event
    and a reset, "eof" without [DONE], an "error" event of a dead engine, "hang", or "garbage".

    Attributes:
        bodies: what it was asked for.
        left: set when a client has closed its connection too early.
    """

    def __init__(self, number: int = 0):
        self.number, self.parse, self.is_closed, self.is_read = number, json.loads, False, False
        self.fail_after, self.how = None, "reset"
        self.status, self.health = 200, 200
        self.bodies, self.left, self.is_hanging = [], asyncio.Event(), asyncio.Event()

    async def answer(self, request):
        if self.is_closed:
            raise httpx.ConnectError("refused")
        if request.url.path == "/health":
            if self.is_hanging.is_set() or self.health == "hang":
                raise httpx.ReadTimeout("silence")
            return httpx.Response(self.health)
        if self.health == "hang":
            await asyncio.Event().wait()
        self.request_id, self.path, self.body = (
            request.headers["x-request-id"],
            request.url.path,
            self.parse(request.content),
        )
        self.bodies.append(self.body)
        # As the server does: behind the end of a completion, nothing can go on.
        is_over = self.parse is json.loads and len(self.body.get("output_token_ids", ())) == len(WORDS)
        if is_over or self.status != 200:
            status = 400 if is_over else self.status
            return self.whole(status, {"error": {"message": "no", "code": None}})
        if self.body.get("stream"):
            return httpx.Response(200, headers={"content-type": "text/event-stream", "x-kept": "yes"}, stream=self)
        if self.fail_after is not None:
            raise httpx.ReadError(self.how)
        return self.whole(200, {"text": "".join(text for _, text in WORDS)})

    def whole(self, status, content):
        return httpx.Response(
            status, headers={"retry-after": "7"}, stream=httpx.ByteStream(json.dumps(content).encode())
        )

    async def __aiter__(self):
        self.is_read = False
        for number, event in enumerate([*self.events(self.path, self.body), DONE]):
            data = f"data: {event if event == DONE else json.dumps(event)}\n\n".encode()
            if number != self.fail_after:
                yield data
                continue
            if self.how == "half":
                yield data[: len(data) // 2]
            elif self.how == "error":
                yield b'data: {"error": {"message": "dead", "code": "engine_dead"}}\n\ndata: [DONE]\n\n'
            elif self.how == "garbage":
                yield b"data: {]\n\ndata: [DONE]\n\n"
            elif self.how == "hang":
                self.is_hanging.set()
                await asyncio.Event().wait()
            if self.how in ("reset", "half"):
                raise httpx.ReadError(self.how)
            return
        self.is_read = True

    async def aclose(self):
        if not self.is_read:
            self.left.set()

    def events(self, path, body):
        known = body.get("output_token_ids", [])
        assert known == [token for token, _ in WORDS[: len(known)]]
        head = {"id": f"cmpl-{self.request_id}", "created": 1000 + self.number}
        for index in range(body.get("n", 1)):
            if path == CHAT and not known:
                yield head | {
                    "choices": [{"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]
                }
        for place, (token, text) in list(enumerate(WORDS))[len(known) :]:
            for index in range(body.get("n", 1)):
                reason = "length" if place == len(WORDS) - 1 else None
                choice = (
                    {"index": index, "text": text}
                    if path == COMPLETION
                    else {"index": index, "delta": {"content": text}}
                )
                choice |= {"finish_reason": reason}
                if body.get("return_token_ids"):
                    choice |= {"token_ids": [token]}
                yield head | {"choices": [choice]}
        if body.get("stream_options"):
            yield head | {"choices": [], "usage": {"completion_tokens": len(WORDS)}}


class LeastLoaded:
    """The first of those that have the least to do."""

    name = "least loaded"

    def choose(self, block_hashes, replicas):
        return min(range(len(replicas)), key=lambda index: replicas[index].load)


class Client:
    """A client of an ASGI application, without a socket between them."""

    def __init__(self):
        self.messages, self.gone, self.sent = [], asyncio.Event(), []
        self.news = asyncio.Condition()

    async def ask(self, app, path, body=None, headers=()):
        content = body if isinstance(body, bytes) else json.dumps(body).encode() if body else b""
        self.messages = [{"type": "http.request", "body": content[:9], "more_body": True}]
        self.messages += [{"type": "http.request", "body": content[9:]}]
        path, _, query = path.partition("?")
        scope = {"type": "http", "method": "POST" if body else "GET", "path": path, "raw_path": path.encode()}
        scope |= {"query_string": query.encode(), "headers": [(b"host", b"x"), *headers]}
        await app(scope, self.receive, self.send)
        return self

    async def receive(self):
        if self.messages:
            return self.messages.pop(0)
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        async with self.news:
            self.sent.append(message)
            self.news.notify_all()

    async def until_sent(self, count):
        async with self.news:
            await asyncio.wait_for(self.news.wait_for(lambda: len(self.sent) >= count), 20)

    @property
    def status(self):
        (start,) = [message for message in self.sent if message["type"] == "http.response.start"]
        return start["status"]

    @property
    def headers(self):
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def content(self):
        return b"".join(message.get("body", b"") for message in self.sent)

    @property
    def events(self):
        assert not self.sent[-1].get("more_body"), "the response wasn't ended"
        assert sum(not message.get("more_body") for message in self.sent[1:]) == 1
        found = self.content.decode("ascii").split("\n\n")
        assert found.pop() == ""
        data = [event.removeprefix("data: ") for event in found]
        return [event if event == DONE else json.loads(event) for event in data]

    @property
    def error(self):
        *_, error, done = self.events
        assert done == DONE
        return error["error"]


@contextlib.asynccontextmanager
async def a_balancer(count=2, policy=None, **options):
    """(balancer, its fakes). Round robin: the first request goes to the first one. Health is looked at by hand."""
    fakes = [FakeReplica(number) for number in range(count)]
    transport = httpx.MockTransport(lambda request: fakes[int(request.url.port) - 1].answer(request))
    urls = [f"http://replica:{1 + number}" for number in range(count)]
    options = {"health_interval": 3600} | options
    async with Balancer(urls, policy or RoundRobin(), transport=transport, **options) as balancer:
        yield balancer, fakes
        assert [replica.load for replica in balancer.replicas] == [0] * count
        assert not any(replica.in_use for replica in balancer.replicas)


USAGE = {"stream_options": {"include_usage": True}}
IDS = {"return_token_ids": True}


def again(event):
    """The same event of the second replica."""
    return event if event == DONE else event | {"created": 1001}


async def uninterrupted(path, body):
    async with a_balancer(1) as (balancer, _):
        return (await Client().ask(balancer, path, body, [(b"x-request-id", b"mine")])).events


@pytest.mark.parametrize("how", ["reset", "half", "eof", "error", "garbage"])
@pytest.mark.parametrize("options", [{}, USAGE, IDS | USAGE], ids=["plain", "usage", "token ids"])
@pytest.mark.parametrize("path", [COMPLETION, CHAT])
async def test_a_stream_goes_on_elsewhere_wherever_it_was_cut(path, options, how):
    body = PROMPTS[path] | {"stream": True} | options
    whole = await uninterrupted(path, body)
    assert whole[-1] == DONE and len(whole) == 7 + (path == CHAT) + bool(options.get("stream_options"))
    assert ("token_ids" in json.dumps(whole)) == ("return_token_ids" in options)
    async with a_balancer(2, policy=LeastLoaded()) as (balancer, fakes):
        for cut in range(len(whole)):
            fakes[0].fail_after, fakes[0].how = cut, how
            client = await Client().ask(balancer, path, body, [(b"x-request-id", b"mine")])
            assert client.events == (whole if cut else [again(event) for event in whole]), cut
            assert client.status == 200 and client.headers["x-kept"] == "yes"
            first, second = fakes[0].bodies.pop(), fakes[1].bodies.pop()
            assert first["seed"] == second["seed"]  # or the rest would be drawn by other numbers
            assert "output_token_ids" not in first
            assert balancer.counts["lost"] == cut + 1 and balancer.counts["failed"] == 0
            assert not balancer.replicas[0].is_up
            balancer.replicas[0].is_up = True


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
    body = {"prompt": "Tell me", "stream": True} | options
    whole = await uninterrupted(COMPLETION, body)
    async with a_balancer(2, policy=LeastLoaded()) as (balancer, fakes):
        for cut in range(len(whole)):
            balancer.replicas[0].is_up = True
            fakes[0].fail_after = cut
            client = await Client().ask(balancer, COMPLETION, body, [(b"x-request-id", b"mine")])
            if cut == 0:  # nothing was sent: another replica does all of it
                assert client.events == [again(event) for event in whole]
                assert fakes[1].bodies.pop()
                continue
            assert client.events[:-2] == whole[:cut]
            assert client.error["code"] == "replica_lost"
            assert client.error["message"].endswith(
                f"the stream can't go on elsewhere: {reason}. Send the request again."
            )
            assert fakes[1].bodies == []


async def test_a_list_of_token_ids_is_one_prompt():
    async with a_balancer(2) as (balancer, fakes):
        fakes[0].fail_after = 3
        client = await Client().ask(balancer, COMPLETION, {"prompt": [1, 2, 3], "stream": True})
        assert client.events[-1] == DONE and balancer.counts["continued"] == 1
        assert fakes[1].bodies[0]["output_token_ids"] == [7, 8, 9]


async def test_a_request_that_kills_replicas_does_not_kill_all_of_them():
    async with a_balancer(4) as (balancer, fakes):
        for fake in fakes:
            fake.fail_after = 2
        client = await Client().ask(balancer, COMPLETION, {"prompt": "a", "stream": True})
        assert sorted(len(fake.bodies) for fake in fakes) == [0] * (3 - MAX_MOVES) + [1] * (1 + MAX_MOVES)
        assert len(client.events) == 2 * (1 + MAX_MOVES) + 2 and client.error["code"] == "replica_lost"
        for replica in balancer.replicas:
            replica.is_up = True
        for fake in fakes:
            fake.fail_after = 0
        client = await Client().ask(balancer, COMPLETION, {"prompt": "a", "stream": True})
        assert client.status == 503 and client.headers["retry-after"] == "1"
        lost = 2 * (1 + MAX_MOVES)
        assert balancer.counts == {"requests": 2, "lost": lost, "continued": MAX_MOVES, "failed": 2, "left": 0}


async def test_the_last_replica_s_death_is_said():
    async with a_balancer(1) as (balancer, fakes):
        fakes[0].fail_after = 2
        client = await Client().ask(balancer, COMPLETION, {"prompt": "a", "stream": True})
        assert len(client.events) == 4 and "the replica was lost (" in client.error["message"]
        client = await Client().ask(balancer, COMPLETION, {"prompt": "a", "stream": True})
        assert client.status == 503
        assert json.loads(client.content)["error"]["message"] == "no replica takes requests. Send the request again."
        assert (await Client().ask(balancer, "/health")).status == 503


async def test_an_answer_in_one_piece_is_asked_for_once_more():
    async with a_balancer(2) as (balancer, fakes):
        fakes[0].fail_after = 0
        client = await Client().ask(balancer, COMPLETION, {"prompt": "a"})
        assert client.status == 200 and json.loads(client.content)["text"] == "Once upon \u2028 a time."
        assert [len(fake.bodies) for fake in fakes] == [1, 1]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_full_replica_is_left_for_another_one(stream):
    body = {"prompt": "a", "stream": stream}
    async with a_balancer(2) as (balancer, fakes):
        fakes[0].status = 429
        assert (await Client().ask(balancer, COMPLETION, body)).status == 200
        fakes[1].status = 429
        client = await Client().ask(balancer, COMPLETION, body)
        assert client.status == 429 and client.headers["retry-after"] == "7"  # all are full: theirs is passed on
        assert balancer.counts["lost"] == 0 and all(replica.is_up for replica in balancer.replicas)


async def test_a_continuation_that_is_refused_ends_with_an_error_event():
    for status in (400, 429):
        async with a_balancer(2) as (balancer, fakes):
            fakes[0].fail_after, fakes[1].status = 3, status
            client = await Client().ask(balancer, COMPLETION, {"prompt": "a", "stream": True})
            assert len(client.events) == 5
            assert client.error["message"] == f"the replica answered with status {status}. Send the request again."


@pytest.mark.parametrize("stream", [False, True])
async def test_a_wrong_request_is_wrong_everywhere(stream):
    async with a_balancer(2) as (balancer, fakes):
        fakes[0].status = 400
        client = await Client().ask(balancer, COMPLETION, {"prompt": "a", "stream": stream})
        assert client.status == 400 and fakes[1].bodies == []


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b"3", b'{"stream": true}', b'{"prompt": 3, "stream": true}', b"[" * 9999]
)
async def test_a_body_that_makes_no_sense_is_left_to_the_replica(content):
    async with a_balancer(1) as (balancer, fakes):
        fakes[0].status, fakes[0].parse = 400, bytes
        assert (await Client().ask(balancer, COMPLETION, content)).status == 400
        assert fakes[0].bodies == [content]


async def test_a_body_that_is_too_large_is_refused():
    async with a_balancer(1) as (balancer, fakes):
        client = await Client().ask(balancer, COMPLETION, b" " * (MAX_BODY_BYTES + 1))
        assert client.status == 413 and fakes[0].bodies == []


async def test_a_lost_replica_comes_back_when_its_health_is_green():
    async with a_balancer(2) as (balancer, fakes):
        fakes[0].is_closed = True
        lost = balancer.replicas[0]
        lost.sent_blocks.add([b"block"])
        assert (await Client().ask(balancer, COMPLETION, {"prompt": "a"})).status == 200
        assert not lost.is_up and fakes[1].bodies
        for _ in range(2):
            await balancer.check(lost)
        assert not lost.is_up and not len(lost.sent_blocks)
        fakes[0].is_closed = False
        await balancer.check(lost)
        assert lost.is_up
        for _ in range(2):
            await Client().ask(balancer, COMPLETION, {"prompt": "a"})
        assert len(fakes[0].bodies) == 1


async def test_health_is_watched():
    async with a_balancer(1, health_interval=0.01) as (balancer, fakes):
        for health, is_up in ((503, False), (200, True)):
            fakes[0].health = health
            while balancer.replicas[0].is_up != is_up:
                await asyncio.sleep(0.005)


async def test_a_replica_that_drains_finishes_what_it_has():
    async with a_balancer(2) as (balancer, fakes):
        fakes[0].fail_after, fakes[0].how = 3, "hang"
        client = Client()
        asking = asyncio.create_task(client.ask(balancer, COMPLETION, {"prompt": "a", "stream": True}))
        await client.until_sent(4)
        fakes[0].is_hanging.clear()
        fakes[0].health = 503
        for _ in range(3):
            await balancer.check(balancer.replicas[0])
        assert not balancer.replicas[0].is_up and balancer.replicas[0].load == 1 and not asking.done()
        for _ in range(2):
            await Client().ask(balancer, COMPLETION, {"prompt": "a"})
        assert len(fakes[1].bodies) == 2
        client.gone.set()
        await asking


async def test_a_replica_that_hangs_is_given_up_and_its_streams_go_on():
    body = {"prompt": "a", "stream": True}
    whole = await uninterrupted(COMPLETION, body)
    async with a_balancer(2) as (balancer, fakes):
        fakes[0].fail_after, fakes[0].how = 3, "hang"
        client = Client()
        asking = asyncio.create_task(client.ask(balancer, COMPLETION, body, [(b"x-request-id", b"mine")]))
        await fakes[0].is_hanging.wait()
        await balancer.check(balancer.replicas[0])
        assert not asking.done()  # once may be by chance
        await balancer.check(balancer.replicas[0])
        await asking
        assert client.events == whole
        await asyncio.wait_for(fakes[0].left.wait(), 20)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_is_seen_by_the_replica(stream):
    async with a_balancer(2) as (balancer, fakes):
        fakes[0].fail_after, fakes[0].how = 2, "hang"
        if not stream:
            fakes[0].health = "hang"
        client = Client()
        asking = asyncio.create_task(client.ask(balancer, COMPLETION, {"prompt": "a", "stream": stream}))
        if stream:
            await client.until_sent(3)
        else:
            while not balancer.replicas[0].load:
                await asyncio.sleep(0)
        client.gone.set()
        await asking
        assert balancer.counts["left"] == 1 and balancer.counts["lost"] == 0
        if stream:
            await asyncio.wait_for(fakes[0].left.wait(), 20)
        assert fakes[1].bodies == []


async def test_other_errors_of_a_request_are_passed_on():
    async with a_balancer(2) as (balancer, fakes):
        failed = {"error": {"message": "NaN", "code": "request_failed"}}
        word = {"id": "x", "created": 1, "choices": [{"index": 0, "text": "Once", "finish_reason": None}]}
        fakes[0].events = lambda path, body: [word, failed]
        client = await Client().ask(balancer, COMPLETION, {"prompt": "a", "stream": True})
        assert client.events == [word, failed, DONE] and fakes[1].bodies == []


async def test_requests_with_one_beginning_go_to_one_replica():
    async with a_balancer(3, policy=PrefixAffinity()) as (balancer, fakes):
        system = {"role": "system", "content": "You are " + "very " * 40 + "helpful."}
        for question in ("one", "two", "three"):
            messages = [system, {"role": "user", "content": question}]
            await Client().ask(balancer, CHAT, {"messages": messages, "stream": True})
        assert sorted(len(fake.bodies) for fake in fakes) == [0, 0, 3]
        await Client().ask(balancer, COMPLETION, {"prompt": "x" * 200, "stream": True})
        await Client().ask(balancer, COMPLETION, {"prompt": "x" * 250, "stream": True})
        assert sorted(len(fake.bodies) for fake in fakes) == [0, 2, 3]


def test_hashes_keep_salts_and_kinds_of_prompts_apart():
    ids, text = {"prompt": list(range(40))}, {"prompt": "x" * 130}
    assert len(hashes_of(ids)) == 2 and len(hashes_of(text)) == 2
    assert hashes_of({"prompt": [list(range(40)), [1]]}) == hashes_of(ids)
    assert not set(hashes_of(ids)) & set(hashes_of(ids | {"cache_salt": "mine"}))
    assert hashes_of({"prompt": "short"}) == []


async def test_what_the_client_and_the_replica_say_is_passed_on():
    async with a_balancer(1) as (balancer, fakes):
        body = {"prompt": "a", "stream": True, "seed": 5, "max_tokens": 3, "user": None}
        await Client().ask(balancer, COMPLETION + "?a=b", body, [(b"authorization", b"Bearer k")])
        assert fakes[0].bodies == [
            {"prompt": "a", "stream": True, "seed": 5, "max_tokens": 3, "return_token_ids": True}
        ]
        assert (await Client().ask(balancer, "/health")).status == 200


async def test_events_are_whole_however_they_are_cut():
    stream = b"data: one\n\ndata: two\n\ndata: half"

    async def all_events(parts):
        async def source():
            for part in parts:
                yield part

        return [event async for event in events(source())]

    for size in range(1, len(stream) + 1):
        parts = [stream[start : start + size] for start in range(0, len(stream), size)]
        assert await all_events(parts) == [b"data: one\n\n", b"data: two\n\n"]
