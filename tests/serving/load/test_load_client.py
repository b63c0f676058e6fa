"""What the client writes into its record, for answers byte by byte; the clock is the test's."""

import asyncio
import json
import time

import httpx
import pytest

from lessons_lib.serving.load.client import ChatClient, open_loop
from lessons_lib.serving.load.records import LoadRecord, LoadRequest

REQUEST = LoadRequest("Tell me", 3, 8)
DONE = b"data: [DONE]\n\n"


def event(text="a", finish_reason=None):
    """A completion's event as bytes."""
    choices = [{"index": 0, "delta": {"content": text}, "finish_reason": finish_reason}]
    return b"data: " + json.dumps({"choices": choices}).encode() + b"\n\n"


async def parts_of(*parts):
    for part in parts:
        if isinstance(part, Exception):
            raise part
        yield part


def client_of(answer):
    """A client whose requests are answered by `answer(request)`, without a socket."""
    client = ChatClient("http://server/", extra_body={"ignore_eos": True})
    client.options["transport"] = httpx.MockTransport(answer)
    return client


def served(status, *parts):
    """(record, request) of one request that is answered with these parts, some of which may be exceptions."""
    requests, record = [], LoadRecord("0", 0.0, 0.0, 3, 8)

    def answer(request):
        requests.append(request)
        if status is None:
            raise parts[0]
        return httpx.Response(status, content=parts_of(*parts))

    asyncio.run(client_of(answer).send(REQUEST, record, time.perf_counter))
    return record, requests[0]


def test_a_stream_gives_its_tokens_the_servers_counts_and_the_finish_reason():
    usage = b'data: {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 7}}\n\n'
    record, request = served(200, event("a"), event(""), event("c", "length"), usage, DONE)
    assert (record.status, record.error, record.finish_reason) == (200, None, "length")
    assert len(record.token_times) == 3 and record.output_tokens == 7 and record.prompt_tokens == 4
    assert record.succeeded and record.end_time >= record.token_times[-1]
    assert (request.method, request.url) == ("POST", "http://server/v1/chat/completions")
    assert json.loads(request.content) == {
        "messages": [{"role": "user", "content": "Tell me"}],
        "max_tokens": 8,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }


def test_each_token_has_the_time_at_which_it_came():
    now = [0.0]

    async def parts():
        for now[0], reason in ((1.5, None), (1.75, None), (4.0, "stop")):
            yield event("a", reason)
        now[0] = 5.0
        yield DONE

    client = client_of(lambda request: httpx.Response(200, content=parts()))
    log = asyncio.run(open_loop(client.send, [REQUEST], [0.0], clock=lambda: now[0]))
    (record,) = log.records
    assert record.token_times == [1.5, 1.75, 4.0] and record.end_time == 5.0
    assert (record.ttft, record.e2el, record.tpot) == (1.5, 4.0, 1.25)
    assert log.window == log.duration == 5.0


@pytest.mark.parametrize(
    "status, parts, error, tokens",
    [
        (429, [b'{"error": {"message": "the server is full", "type": "overloaded"}}'], "the server is full", 0),
        (500, [b"not JSON"], "not JSON", 0),
        (None, [httpx.ConnectError("refused")], "ConnectError: refused", 0),
        (200, [event(), httpx.RemoteProtocolError("peer closed")], "RemoteProtocolError: peer closed", 1),
        (200, [event(), b"da", httpx.ReadTimeout("silence")], "ReadTimeout: silence", 1),
        (200, [event()], "the stream ended without a finish_reason, after 1 events", 1),
        (200, [event(), DONE], "the stream ended without a finish_reason, after 1 events", 1),
        (200, [event(), b'data: {"error": {"message": "engine died"}}\n\n', DONE], "engine died", 1),
        (200, [event("a", "stop"), b'data: {"error": {"message": "late"}}\n\n', DONE], "late", 1),
        (200, [b"data: {\n\n", DONE], "JSONDecodeError: Expecting property name", 0),
    ],
    ids=str,
)
def test_what_goes_wrong_is_in_the_record(status, parts, error, tokens):
    record, _ = served(status, *parts)
    assert record.status == status and record.error.startswith(error)
    assert len(record.token_times) == record.output_tokens == tokens
    assert not record.succeeded and record.end_time is not None
