"""`python -m lessons_lib.serving.load` against a server that answers at once."""

import asyncio
import json
import threading
from contextlib import contextmanager

import pytest
from scripted_server import DONE, STREAM, chunked, event, scripted_server, usage

from lessons_lib.serving.load.__main__ import main
from lessons_lib.serving.load.records import LoadLog


@contextmanager
def fast_server(refused=()):
    """A server in a thread, which refuses the requests of these numbers; yields its URL and the bodies it gets."""
    bodies, ready, done = [], threading.Event(), []

    async def answer(reader, writer, head, body):
        if head.startswith("GET"):
            names = json.dumps({"data": [{"id": "tiny"}]}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(names), names))
            return
        bodies.append(json.loads(body))
        if len(bodies) - 1 in refused:
            writer.write(b"HTTP/1.1 429 Full\r\ncontent-length: 0\r\n\r\n")
            return
        count = bodies[-1]["max_tokens"]
        parts = [event("a", "length" if index == count - 1 else None) for index in range(count)]
        writer.write(
            STREAM + b"".join(map(chunked, [*parts, usage(len(bodies[-1]["prompt"]), count), DONE])) + chunked(b"")
        )

    async def serve():
        stop = asyncio.Event()
        async with scripted_server(answer) as (url, _):
            done.extend([url, asyncio.get_running_loop(), stop])
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert ready.wait(60)
        yield done[0], bodies
    finally:
        done[1].call_soon_threadsafe(done[2].set)
        thread.join()


def test_a_run_is_printed_and_saved(tmp_path, capsys):
    with fast_server(refused={1}) as (url, bodies):
        options = ["--rate", "500", "--num-requests", "5", "--input-len", "7", "--output-len", "3", "--seed", "4"]
        status = main(["--url", url, *options, "--goodput", "ttft:60000", "--save", str(tmp_path / "log.json")])
    text = capsys.readouterr().out
    assert (
        status == 0
        and "Successful requests:                     4\n" in text
        and "  429:                                   1\n" in text
    )
    assert all(body["model"] == "tiny" and body["ignore_eos"] and len(body["prompt"]) == 7 for body in bodies)
    saved = json.loads((tmp_path / "log.json").read_text())
    assert (saved["completed"], saved["total_output_tokens"], saved["goodput"]) == (4, 12, 400.0)
    log = LoadLog.load(tmp_path / "log.json")
    assert log.window == 0.01 and sorted(record.status for record in log.records) == [200] * 4 + [429]


@pytest.mark.parametrize(
    "options, count",
    [
        (["--arrivals", "closed", "--users", "3", "--num-requests", "7"], 7),
        (["--arrivals", "bursty", "--rate", "200", "--seconds", "0.03"], 6),
        (["--arrivals", "constant", "--rate", "200", "--num-requests", "3", "--stop-at-eos", "--model", "m"], 3),
    ],
)
def test_each_kind_of_arrival(options, count, capsys):
    with fast_server() as (url, bodies):
        assert main(["--url", url, "--output-len", "2", *options]) == 0
    assert len(bodies) == count
    assert ("ignore_eos" in bodies[0]) == ("--stop-at-eos" not in options)
    assert bodies[0]["model"] == ("m" if "--model" in options else "tiny")


def test_a_trace_and_prompts_from_files(tmp_path, capsys):
    (tmp_path / "trace").write_text('0\n{"timestamp": 1, "input_length": 2, "output_length": 1}\n0.002\n')
    (tmp_path / "prompts").write_text("one\n\ntwo\n")
    with fast_server() as (url, bodies):
        assert main(["--url", url, "--trace", str(tmp_path / "trace"), "--input-len", "4", "--output-len", "3"]) == 0
        assert sorted((len(body["prompt"]), body["max_tokens"]) for body in bodies) == [(2, 1), (4, 3), (4, 3)]
        bodies.clear()
        assert main(["--url", url, "--trace", str(tmp_path / "trace"), "--prompts", str(tmp_path / "prompts")]) == 0
        assert sorted(body["prompt"] for body in bodies) == ["one", "one", "two"]


def test_a_search_prints_its_runs(capsys):
    with fast_server(refused=range(4, 10_000)) as (url, _):  # 4 good requests, then none
        options = ["--search", "--rate", "400", "--num-requests", "2", "--goodput", "ttft:60000", "--votes", "1"]
        assert main(["--url", url, *options]) == 0
    text = capsys.readouterr().out
    assert (
        "  400.00 requests/s offered:   400.00 good\n" in text
        and " 1600.00 requests/s offered:     0.00 good\n" in text
    )
    assert "The knee is at 800.00 requests/s" in text


@pytest.mark.parametrize(
    "options, message",
    [
        (["--goodput", "itl:5"], "unknown target 'itl'"),
        (["--url", "nowhere"], "the URL is 'nowhere'"),
        (["--rate", "0", "--model", "m"], "the rate is 0"),
        ([], "ConnectionRefused|Connect call failed"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(options, message, capsys):
    async def free_url():
        async with scripted_server(None) as (url, _):
            return url

    assert main(["--url", asyncio.run(free_url()), *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(captured.err)


def test_nothing_served_is_a_failure(capsys):
    with fast_server(refused=range(100)) as (url, _):
        assert main(["--url", url, "--rate", "500", "--num-requests", "2"]) == 1


@pytest.mark.parametrize(
    "options", [[], ["--goodput", "ttft:1", "--trace", "x"], ["--goodput", "ttft:1", "--arrivals", "closed"]]
)
def test_a_search_needs_targets_and_a_rate(options, capsys):
    with pytest.raises(SystemExit):
        main(["--search", *options])
    assert "--search changes the rate" in capsys.readouterr().err
