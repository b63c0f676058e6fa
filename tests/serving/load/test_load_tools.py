"""The tools that compare load generators and offer three times the knee: what they read, and what they print."""

import asyncio
import json
import os
import sys
import time

import pytest

from lessons_lib.serving.load.arrivals import trace_arrivals
from lessons_lib.serving.load.goodput import Target
from lessons_lib.serving.load.http_client import CompletionsClient
from lessons_lib.serving.load.records import LoadLog, LoadRecord
from lessons_lib.serving.load.report import report
from lessons_lib.serving.load.shapes import LoadRequest, trace_requests
from tools import load_peers, overload

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
        "output_tokens": 3,
    }
    theirs = load_peers.read_guidellm({"benchmarks": [{"duration": 2.0, "requests": {"successful": [request]}}]})
    assert ours.pop("itl") == 250.0 and theirs.pop("itl") is None
    assert (
        ours == theirs == {"completed": 1, "ttft": 500, "tpot": 250, "e2el": 1000, "requests/s": 0.5, "tokens/s": 1.5}
    )


def test_the_tables():
    row = dict.fromkeys(load_peers.COLUMNS, 2.0) | {"itl": None}
    lines = load_peers.table({"ours": [row, row | {"ttft": 4.0}]}).splitlines()
    assert lines[0].split() == list(load_peers.COLUMNS)
    assert lines[1].split() == ["ours", "2.00", "3.00", "2.00", "-", "2.00", "2.00", "2.00"]
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


@pytest.mark.skipif(
    "LOAD_PEERS_VLLM" not in os.environ, reason="LOAD_PEERS_VLLM names no folder with vLLM's Python files"
)
def test_vllms_numbers_are_ours(capsys):
    python = os.environ.get("LOAD_PEERS_PYTHON", sys.executable)
    options = ["--vllm-path", os.environ["LOAD_PEERS_VLLM"], "--vllm-python", python]
    load_peers.main([*options, "--rounds", "1", "--num-requests", "10", "--rate", "20"])
    _, ours, theirs = capsys.readouterr().out.splitlines()
    assert ours.split()[1] == theirs.split()[2] == "10.00"
