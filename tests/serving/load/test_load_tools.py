"""The tools that compare load generators and offer three times the knee: what they read, and what they print."""

import asyncio
import json
import sys
import time
import zipfile
from urllib.parse import urlsplit

import pytest

from lessons_lib.serving.load.arrivals import trace_arrivals
from lessons_lib.serving.load.goodput import Target
from lessons_lib.serving.load.http_client import CompletionsClient
from lessons_lib.serving.load.records import LoadLog, LoadRecord
from lessons_lib.serving.load.report import report
from lessons_lib.serving.load.shapes import LoadRequest, trace_requests
from tools import load_peers, overload, peer_programs, recording_proxy

RECORD = LoadRecord("0", 0.0, 0.0, 4, 3, [0.5, 0.75, 1.0], 3, 1.0, 200, "length")


def test_the_trace_is_the_same_load_for_all(tmp_path):
    load_peers.write_trace(tmp_path / "trace", 5, 20, input_len=20, output_len=3, seed=1)
    lines = [json.loads(line) for line in (tmp_path / "trace").read_text().splitlines()]
    assert trace_arrivals(tmp_path / "trace") == [line["timestamp"] / 1000 for line in lines]
    assert {(r.prompt_tokens, r.max_tokens) for r in trace_requests(tmp_path / "trace", (1, 1))} == {(20, 3)}
    ids = [block for line in lines for block in line["hash_ids"]]
    assert len(ids) == len(set(ids)) == 40


def test_rows_are_read_by_the_same_definitions():
    log = LoadLog([RECORD], 1.0, 2.0)
    ours = load_peers.read_vllm(report(log))
    request = {
        "time_to_first_token_ms": 500.0,
        "inter_token_latency_ms": 250.0,  # guidellm's: the mean of the request
        "request_latency": 1.0,
        "prompt_tokens": 4,
        "output_tokens": 3,
    }
    theirs = load_peers.read_guidellm({"benchmarks": [{"duration": 2.0, "requests": {"successful": [request]}}]})
    assert ours.pop("itl") == 250.0 and theirs.pop("itl") is None
    times = {"ttft": 500, "tpot": 250, "e2el": 1000}
    assert ours == theirs == times | {"completed": 1, "input": 4, "requests/s": 0.5, "tokens/s": 1.5}


def test_the_tables():
    row = dict.fromkeys(load_peers.COLUMNS, 2.0) | {"itl": None}
    lines = load_peers.table({"ours": [row, row | {"ttft": 4.0}]}).splitlines()
    assert lines[0].split() == " ".join(load_peers.COLUMNS).split()
    assert lines[1].split() == ["ours", "2.00", "2.00", "3.00", *["2.00"] * 2, "-", *["2.00"] * 4]
    numbers = report(LoadLog([RECORD], 1.0, 2.0), Target())
    text = overload.table({"knee": [numbers], "3 x knee": [numbers | {"goodput": 0.25, "median_ttft_ms": None}]})
    assert text.splitlines()[1].split()[1:] == ["1.00", "1.00", "1.00", "0.00", "500.00", "500.00", "250.00", "100%"]
    assert text.splitlines()[2].split()[3:] == ["1.00", "0.25", "1.00", "0.00", "-", "500.00", "250.00", "25%"]


def test_the_paced_server_answers_as_a_server_does():
    async def main():
        server = await asyncio.start_server(lambda r, w: load_peers.answer_at_a_pace(r, w, 0, 0), "127.0.0.1", 0)
        async with server:
            client = CompletionsClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            names, record = await client.models(), LoadRecord("0", 0, 0, 3, 4)
            await client.send(LoadRequest([1, 2, 3], 3, 4), record, time.perf_counter)
            return names, record

    names, record = asyncio.run(main())
    assert names == ["paced"] and record.succeeded and record.error is None
    assert len(record.token_times) == record.output_tokens == 4 and record.prompt_tokens == 3


def test_a_load_generator_that_fails_says_why(tmp_path):
    command = [sys.executable, "-c", "print('no such option'); raise SystemExit(3)"]
    with pytest.raises(RuntimeError, match=r"ended with 3:\nno such option"):
        load_peers.run(command, tmp_path / "result.json", load_peers.read_vllm)


def test_what_a_server_has_measured_itself(tmp_path):
    name = "vllm:time_to_first_token_seconds"
    text = f'# HELP {name} x\n{name}_bucket{{le="1"}} 2\n{name}_sum{{model_name="a b"}} 0.5\n{name}_count{{x="y"}} 4\n'
    found = []

    async def main(answer):
        async def connected(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            writer.close()

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        async with server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            found.append(await asyncio.to_thread(load_peers.first_tokens_at, url))

    asyncio.run(main(f"HTTP/1.1 200 OK\r\ncontent-length: {len(text)}\r\n\r\n{text}".encode()))
    asyncio.run(main(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"))
    assert found == [(500.0, 4.0), (0.0, 0.0)]


def test_only_python_files_of_a_wheel_are_kept(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        for name in ("a/b.py", "a/_C.abi3.so", "a-1.dist-info/licenses/LICENSE"):
            wheel.writestr(name, "")
    peer_programs.unpack_python_files(tmp_path / "a.whl", tmp_path / "own")
    assert sorted(path.name for path in (tmp_path / "own").rglob("*.*")) == ["a-1.dist-info", "b.py"]
    assert (tmp_path / "own/a-1.dist-info/licenses/LICENSE").exists()


def test_a_folder_without_the_programs_says_how_to_get_them(tmp_path):
    assert "python -m tools.load_peers --install" in peer_programs.PeerPrograms(tmp_path).why_missing()
    with pytest.raises(SystemExit):
        load_peers.main(["--peers", str(tmp_path)])
    (tmp_path / "a").touch()
    with pytest.raises(RuntimeError, match="has files"):
        peer_programs.install(tmp_path)


def test_a_proxy_keeps_what_a_client_sends():
    body = json.dumps({"prompt": [1, 2, 3], "max_tokens": 4}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Own: 1\r\nContent-Length: %d\r\n\r\n" % len(body)

    async def main():
        server = await asyncio.start_server(lambda r, w: load_peers.answer_at_a_pace(r, w, 0, 0), "127.0.0.1", 0)
        async with server:
            proxy = recording_proxy.RecordingProxy(*server.sockets[0].getsockname())
            url = await proxy.start()
            reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
            writer.write(head + body)
            answer = await reader.read()
            names = await CompletionsClient(url).models()
            writer.close()
            return answer, names, proxy.requests

    answer, names, (first, second) = asyncio.run(main())
    assert answer.endswith(b"data: [DONE]\n\n") and names == ["paced"]
    assert (first.connection, first.method, first.path, first.body) == (0, "POST", "/v1/completions", body.decode())
    assert first.headers == [("Host", "x"), ("X-Own", "1"), ("Content-Length", str(len(body)))]
    assert (second.connection, second.method, second.path, second.body) == (1, "GET", "/v1/models", "")
