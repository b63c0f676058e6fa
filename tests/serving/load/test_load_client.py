"""What the client writes into its record, for answers byte by byte; the clock is the test's."""

import asyncio
import json
import time

import pytest
from scripted_server import DONE, STREAM, SetClock, chunked, event, scripted_server, usage

from lessons_lib.serving.load.client import ChatClient, CompletionsClient, open_loop
from lessons_lib.serving.load.records import LoadRecord, LoadRequest

REQUEST = LoadRequest([5, 6, 7], 3, 8)


def served(answer, request=REQUEST, client=CompletionsClient, **options):
    """The record of one request, and what the server got."""

    async def main():
        async with scripted_server(answer) as (url, requests):
            record = LoadRecord("0", 0.0, 0.0, request.prompt_tokens, request.max_tokens)
            await client(url, **options).send(request, record, time.perf_counter)
            return record, requests

    return asyncio.run(main())


def answers(*parts):
    async def answer(reader, writer, head, body):
        for part in parts:
            writer.write(part)
            await writer.drain()

    return answer


def test_a_stream_gives_its_tokens_the_servers_counts_and_the_finish_reason():
    parts = [event("a"), event(""), event("c", "length"), usage(4, 7), DONE]
    record, _ = served(answers(STREAM, *map(chunked, parts), chunked(b"")))
    assert (record.status, record.error, record.finish_reason) == (200, None, "length")
    assert len(record.token_times) == 3 and record.output_tokens == 7 and record.prompt_tokens == 4
    assert record.succeeded and record.end_time >= record.token_times[-1]


def test_each_token_has_the_time_at_which_it_came():
    clock = SetClock()

    async def main():
        records = []

        async def answer(reader, writer, head, body):
            writer.write(STREAM)
            for index, seconds in enumerate([1.5, 1.75, 4.0]):
                clock.time = seconds
                writer.write(chunked(event("a", "stop" if index == 2 else None)))
                while len(records[0].token_times) <= index:  # until the client has looked at its clock
                    await asyncio.sleep(0)
            clock.time = 5.0
            writer.write(chunked(DONE))

        async with scripted_server(answer) as (url, _):
            client = CompletionsClient(url)

            async def send(request, record, now):
                records.append(record)
                await client.send(request, record, now)

            return await asyncio.wait_for(open_loop(send, [REQUEST], [0.0], clock=clock), 60)

    log = asyncio.run(main())
    (record,) = log.records
    assert record.token_times == [1.5, 1.75, 4.0] and record.end_time == 5.0
    assert (record.ttft, record.e2el, record.tpot) == (1.5, 4.0, 1.25)
    assert log.window == log.duration == 5.0


def test_what_is_sent():
    options = {"extra_body": {"ignore_eos": True}}
    _, [(head, body)] = served(answers(STREAM, chunked(event("a", "stop")), chunked(DONE), chunked(b"")), **options)
    assert head.startswith("POST /v1/completions HTTP/1.1\r\n")
    assert json.loads(body) == {
        "prompt": [5, 6, 7],
        "max_tokens": 8,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }


def test_a_chat_is_asked_for_by_its_own_route():
    parts = [STREAM, chunked(event("a", "stop")), chunked(DONE), chunked(b"")]
    record, [(head, body)] = served(answers(*parts), LoadRequest("Tell me", 0, 8), ChatClient)
    assert record.succeeded and head.startswith("POST /v1/chat/completions HTTP/1.1\r\n")
    assert json.loads(body) == {
        "messages": [{"role": "user", "content": "Tell me"}],
        "max_tokens": 8,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


REFUSED = json.dumps({"error": {"message": "the server is full", "type": "overloaded"}}).encode()


@pytest.mark.parametrize(
    "parts, status, error, tokens",
    [
        ([b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: %d\r\n\r\n" % len(REFUSED), REFUSED], 429, "the server is full", 0),
        ([b"HTTP/1.1 500 Oh\r\n\r\n", b"not JSON"], 500, "not JSON", 0),
        ([], None, "RemoteProtocolError: Server disconnected", 0),
        ([b"SSH-2.0-OpenSSH\r\n\r\n"], None, "RemoteProtocolError: illegal status line", 0),
        ([STREAM, chunked(event())], 200, "RemoteProtocolError: peer closed connection", 1),
        ([STREAM, chunked(event()), b"5\r\nda"], 200, "RemoteProtocolError: peer closed connection", 1),
        ([STREAM, chunked(event()), chunked(b"")], 200, "the stream ended without a finish_reason, after 1 events", 1),
        ([STREAM, chunked(event()), chunked(DONE)], 200, "the stream ended without a finish_reason, after 1 events", 1),
        ([STREAM, chunked(event()), chunked(b'data: {"error": {"message": "engine died"}}\n\n'), chunked(DONE)], 200, "engine died", 1),
        ([STREAM, chunked(event("a", "stop")), chunked(b'data: {"error": {"message": "late"}}\n\n'), chunked(DONE)], 200, "late", 1),
        ([STREAM, chunked(b"data: {\n\n"), chunked(DONE)], 200, "JSONDecodeError: Expecting property name", 0),
    ],
    ids=["429", "500", "nothing", "ssh", "cut", "cut in a chunk", "no finish", "done without finish", "error event", "error after finish", "bad JSON"],
)  # fmt: skip
def test_what_goes_wrong_is_in_the_record(parts, status, error, tokens):
    record, _ = served(answers(*parts))
    assert record.status == status and record.error.startswith(error)
    assert len(record.token_times) == record.output_tokens == tokens
    assert not record.succeeded and record.end_time is not None


def test_a_server_that_says_nothing_is_given_up():
    async def answer(reader, writer, head, body):
        await reader.read()  # until the client leaves

    record, _ = served(answer, timeout=0.05)
    assert record.error.startswith("ReadTimeout") and record.status is None


def test_no_server_is_in_the_record():
    async def main():
        async with scripted_server(answers()) as (url, _):
            pass
        record = LoadRecord("0", 0.0, 0.0, 3, 8)
        await CompletionsClient(url).send(REQUEST, record, time.perf_counter)
        return record

    record = asyncio.run(main())
    assert record.error.startswith("ConnectError") and record.status is None
