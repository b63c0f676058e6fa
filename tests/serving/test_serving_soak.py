"""The soak of two servers: how it judges what a client saw, and a short run of all of it."""

import asyncio
import random

import pytest

from lessons_lib.serving.load.http_client import CompletionsClient
from lessons_lib.serving.load.records import LoadRecord
from lessons_lib.serving.load.shapes import LoadRequest
from tools.serving_soak import Vanishing, latencies, main, outcome


def record(**changes):
    whole = dict(token_times=[1.0, 1.5], output_tokens=2, end_time=2.0, status=200, finish_reason="length")
    return LoadRecord("7", 0.0, 0.5, 3, 2, **whole | changes)


@pytest.mark.parametrize(
    "changes, word",
    [
        ({}, "completed"),
        ({"output_tokens": 1}, "too short"),
        ({"output_tokens": 3}, "too short"),
        ({"end_time": None}, "never ended"),
        ({"status": 429, "token_times": [], "finish_reason": None, "error": "the server is full"}, "refused"),
        ({"status": 503, "token_times": [], "finish_reason": None, "error": "draining"}, "refused"),
        ({"finish_reason": None, "error": "the replica was lost"}, "cut with an error"),
        ({"finish_reason": None, "error": "CutStream: the stream ended"}, "cut silently"),
        ({"finish_reason": None, "error": "ConnectionResetError: [Errno 104]"}, "cut silently"),
        ({"status": None, "finish_reason": None, "error": "ConnectionResetError: x"}, "cut silently"),
        ({"status": None, "token_times": [], "finish_reason": None, "error": "ConnectionRefusedError: x"}, "cut silently"),
        ({"finish_reason": None, "error": "not finished after 600 s"}, "cut silently"),
        ({"finish_reason": None, "error": None}, "cut silently"),
    ],
)  # fmt: skip
def test_what_a_client_saw(changes, word):
    assert outcome(record(**changes), set()) == word
    assert outcome(record(**changes), {"7"}) == "vanished"


def test_latencies_are_percentiles():
    assert latencies("TTFT", [index / 1000 for index in range(101)]) == "TTFT: p50 50.0 ms, p99 99.0 ms"
    assert latencies("ITL", [1.0]) == "ITL: too few to say"


def test_clients_leave_in_every_phase():
    """A server that notes what arrived of each request, and then answers with one endless stream."""
    arrived = []

    async def serve(reader, writer):
        data = b""
        try:
            while part := await reader.read(65536):
                data += part
                if data.endswith(b"}"):
                    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
                    while True:
                        writer.write(b"data: {}\n\n")
                        await writer.drain()
                        await asyncio.sleep(0)
        except ConnectionError:
            pass
        finally:
            arrived.append(data)
            writer.close()

    async def story():
        server = await asyncio.start_server(serve, "127.0.0.1")
        async with server:
            client = CompletionsClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            vanishing = Vanishing(client, 1.0, random.Random(0))
            for index in range(12):
                seen = LoadRecord(str(index), 0.0, 0.0, 3, 9)
                await vanishing.send(LoadRequest([1, 2, 3], 3, 9), seen, lambda: 5.0)
                assert seen.end_time == 5.0 and outcome(seen, vanishing.ids) == "vanished"
            while len(arrived) < 12:
                await asyncio.sleep(0.001)
            return vanishing

    vanishing = asyncio.run(asyncio.wait_for(story(), 60))
    assert set(vanishing.phases) == {"sending", "waiting", "reading"} and sum(vanishing.phases.values()) == 12
    assert sum(not data.endswith(b"}") for data in arrived) == vanishing.phases["sending"]


@pytest.mark.nightly
def test_a_short_soak_loses_nothing(capsys):
    short = ["--minutes", "0.33", "--rate", "1", "--vanishing", "0.3", "--interval", "5", "--output-len", "16"]
    status = main(short)
    said = capsys.readouterr().out
    assert status == 0 and "LOST" not in said, said
    assert "an engine was killed" in said and "8 completed; exit statuses [0, 0]" in said
