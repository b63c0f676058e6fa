"""A live server: draining, an engine that dies, slow and rude clients, and processes that are killed."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from urllib.parse import urlsplit

import pytest
from fronts import counting_engine, is_gone
from live_server import LiveServer, slow, wait_until

from lessons_lib.models.loading import BUNDLED_MODEL
from lessons_lib.serving.http.server import listen, make_front
from lessons_lib.serving.http.server_process import ServerFailed, ServerProcess
from lessons_lib.serving.http.settings import ServerSettings

SETTINGS = dict(model_name="m", max_header_bytes=10_000)
SETTINGS |= dict(receive_timeout=0.4, stall_timeout=0.4, shutdown_timeout=20.0)


@pytest.fixture(scope="module")
def live():
    with LiveServer(**SETTINGS) as server:
        yield server


@pytest.fixture
def slow_model(live, monkeypatch):
    monkeypatch.setattr(live.engine.model, "forward", slow(live.engine.model.forward))


class Connection:
    """A connection to a server, and the answer to one request on it."""

    def __init__(self, server, receive_buffer=None):
        self.socket = socket.socket()
        self.socket.settimeout(60)
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.connect(("127.0.0.1", urlsplit(server.url).port))

    def ask(self, path="/v1/completions", body=b"", **headers):
        if isinstance(body, dict):
            body = json.dumps({"model": "m", "ignore_eos": True, "temperature": 0} | body).encode()
        head = {"Host": "localhost", "Content-Length": len(body), "Content-Type": "application/json"} | headers
        lines = [f"{'POST' if body else 'GET'} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in head.items())]
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        return self

    def answer(self):
        """An http.client.HTTPResponse, whose head was read."""
        response = http.client.HTTPResponse(self.socket)
        response.begin()
        return response

    def is_closed_by_server(self):
        """Waits until it is."""
        try:
            while self.socket.recv(65536):
                continue
        except ConnectionError:
            pass
        return True


def get(server, path):
    response = Connection(server).ask(path).answer()
    return response.status, response.read()


def events(response):
    """The data of server-sent events, up to the end of the answer."""
    return [line[6:].decode() for line in response.read().split(b"\n") if line.startswith(b"data: ")]


LONG = {"prompt": "Once upon a time", "max_tokens": 100, "stream": True}
SHORT = {"prompt": "Once upon a time", "max_tokens": 5}


def test_a_head_that_is_too_large_gets_431(live):
    connection = Connection(live)
    connection.socket.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ")
    with contextlib.suppress(ConnectionError):
        for _ in range(30):
            connection.socket.sendall(b"a" * 1000)
    assert connection.answer().status == 431 and connection.is_closed_by_server()


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: %b\r\n\r\n" % (b"a" * 11_000),
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n%b\r\n" % (b"X: a\r\n" * 3000),
        b"GET /%b HTTP/1.1\r\nHost: localhost\r\n\r\n" % (b"a" * 11_000),
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" + b"GET /health HTTP/1.1\r\nX: %b\r\n\r\n" % (b"a" * 11_000),
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX: %b\r\n\r\n"
        % (b"a" * 11_000),
    ],
    ids=["one header", "many headers", "a path", "the second request", "a trailer"],
)
def test_a_head_that_comes_in_one_write_is_counted(live, head):
    connection = Connection(live)
    connection.socket.sendall(head)
    received = b""
    with contextlib.suppress(ConnectionError):
        while data := connection.socket.recv(65536):
            received += data
    assert received.count(b"HTTP/1.1 431 ") == 1
    assert Connection(live).ask("/health", X="a" * 9_500).answer().status == 200, "a head within the limit is served"


@pytest.mark.parametrize("body", [SHORT, SHORT | {"stream": True}, None], ids=["whole", "streamed", "health"])
@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_a_client_that_only_reads_gets_its_answer(live, slow_model, body, version):
    """It has closed its half of the connection behind the request, as `nc -N` does."""
    connection = Connection(live)
    content = json.dumps({"model": "m"} | body).encode() if body else b""
    line = f"POST /v1/completions HTTP/{version}" if body else f"GET /health HTTP/{version}"
    head = f"{line}\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    connection.socket.sendall(head.encode() + content)
    connection.socket.shutdown(socket.SHUT_WR)
    received = b""
    while data := connection.socket.recv(65536):
        received += data
    assert b" 200 OK\r\n" in received and received.rstrip().endswith((b"}", b"[DONE]", b"0"))


def test_a_client_that_closes_its_half_before_its_request_is_whole_is_dropped(live):
    head = b"POST /v1/completions HTTP/1.1\r\n"
    for sent in (b"", head, head + b"Content-Length: 9\r\n\r\n{"):
        connection = Connection(live)
        connection.socket.sendall(sent)
        connection.socket.shutdown(socket.SHUT_WR)
        assert connection.is_closed_by_server()


def test_a_client_that_sends_nothing_or_half_a_request_is_dropped(live):
    clients = [Connection(live), Connection(live), Connection(live)]
    clients[1].socket.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: loc")
    clients[2].socket.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
    assert all(each.is_closed_by_server() for each in clients)
    assert get(live, "/health")[0] == 200


def test_a_request_may_take_longer_than_it_may_take_to_arrive(live, slow_model):
    start = time.monotonic()
    assert events(Connection(live).ask(body=LONG | {"max_tokens": 25}).answer())[-1] == "[DONE]"
    assert time.monotonic() - start > 0.4  # seconds: 25 steps of at least 0.02


def test_a_client_that_never_reads_is_dropped(live):
    connections = live.server.server_state.connections
    before = set(connections)
    client = Connection(live, receive_buffer=4096)
    wait_until(lambda: set(connections) - before)
    (protocol,) = set(connections) - before
    for _ in range(6):  # the kernel takes some megabytes, it decides how many, before anything waits in the server
        for _ in range(600):
            client.ask("/metrics")
        with contextlib.suppress(AssertionError):
            wait_until(lambda: protocol.flow.write_paused, patience=5)
            break
    assert protocol.flow.write_paused
    assert protocol.transport.get_write_buffer_size() < 2**17  # a bounded buffer
    assert get(live, "/health")[0] == 200
    wait_until(lambda: protocol not in connections)


def test_a_drained_server_finishes_its_streams_and_refuses_others():
    with LiveServer(**SETTINGS) as server:
        whole = events(Connection(server).ask(body=LONG).answer())
        waiting = Connection(server)  # a client that was there before
        stream = Connection(server).ask(body=LONG).answer()
        first = stream.readline()
        server.end()
        wait_until(lambda: server.front.is_draining)
        status, body = get(server, "/health")
        assert (status, json.loads(body)["status"]) == (503, "draining")
        for connection in (waiting, Connection(server)):
            refused = connection.ask(body=SHORT).answer()
            assert refused.status == 503 and "draining" in json.loads(refused.read())["error"]["message"]
        rest = events(stream)
        texts = [
            [json.loads(each)["choices"][0]["text"] for each in part if "choices" in each] for part in (whole, rest)
        ]
        assert first.startswith(b"data: ") and rest[-1] == "[DONE]"
        assert "".join(texts[0]).endswith("".join(texts[1]))
        server.wait_until_ended()


@pytest.mark.parametrize("how", ["timeout", "second signal"])
def test_draining_ends_in_time(how):
    with LiveServer(**SETTINGS | {"shutdown_timeout": 0.05 if how == "timeout" else 1000.0}) as server:
        server.engine.model.forward = slow(server.engine.model.forward)
        stream = Connection(server).ask(body=LONG | {"max_tokens": 450}).answer()
        stream.readline()
        server.end()
        if how == "second signal":
            wait_until(lambda: server.front.is_draining)
            server.end()
        else:
            last = json.loads(events(stream)[-2])
            assert last["error"]["code"] == "aborted"
        server.wait_until_ended()
        assert not server.engine.requests and not server.engine.scheduler.pool.used


def children(pid):
    """Process ids of a process's children."""
    return [
        int(each) for each in subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout.split()
    ]


@pytest.mark.nightly
@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks at processes as Linux shows them")
def test_an_engine_that_is_killed_is_noticed_and_started_again():
    arguments = ["--model", BUNDLED_MODEL, "--served-model-name", "m", "--api-key", "k", "--log-level", "warning"]
    with ServerProcess(*arguments, env={"OMP_NUM_THREADS": "1"}) as server:
        (engine,) = children(server.process.pid)
        own = {"Authorization": "Bearer k"}
        assert Connection(server).ask(body=SHORT).answer().status == 401
        stream = Connection(server).ask(body=LONG | {"max_tokens": 450}, **own).answer()
        stream.readline()
        os.kill(engine, signal.SIGKILL)
        said = events(stream)
        assert said[-1] == "[DONE]" and "SIGKILL" in json.loads(said[-2])["error"]["message"]
        status, body = get(server, "/health")
        assert status == 503 and "SIGKILL" in json.loads(body)["error"]
        refused = Connection(server).ask(body=SHORT, **own).answer()
        assert refused.status == 503
        wait_until(lambda: get(server, "/health")[0] == 200, 120)
        wait_until(lambda: "the engine is dead" in server.log() and "a new engine serves" in server.log())
        served = Connection(server).ask(body=SHORT, **own).answer()
        assert served.status == 200 and json.loads(served.read())["choices"][0]["text"]
        (new,) = children(server.process.pid)
        assert new != engine and is_gone(engine)
    assert server.process.returncode == 0
    assert is_gone(server.process.pid) and is_gone(new)


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks at processes as Linux shows them")
def test_a_server_that_is_killed_leaves_no_folder(tmp_path):
    own = {"TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    with ServerProcess("--model", BUNDLED_MODEL, "--log-level", "warning", env=own) as server:
        (engine,) = children(server.process.pid)
        assert get(server, "/health")[0] == 200
        os.kill(server.process.pid, signal.SIGKILL)
        wait_until(lambda: is_gone(engine))
        assert list(tmp_path.iterdir()) == []


def python_that(does, tmp_path, monkeypatch):
    """In place of a Python, whose imports take seconds."""
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{does}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))


@pytest.mark.skipif(os.name == "nt", reason="needs a shell")
def test_a_server_that_cannot_start_says_why(tmp_path, monkeypatch):
    python_that("for i in $(seq 30); do echo line $i; done; echo no memory >&2; exit 3", tmp_path, monkeypatch)
    with pytest.raises(ServerFailed) as caught:
        ServerProcess().start()
    said = str(caught.value).splitlines()
    assert said[0] == "the server ended with exit status 3. Its last lines:"
    assert said[1:] == [*(f"line {index}" for index in range(12, 31)), "no memory"]


@pytest.mark.skipif(os.name == "nt", reason="needs a shell")
def test_a_server_that_does_not_answer_is_ended(tmp_path, monkeypatch):
    python_that("exec sleep 1000", tmp_path, monkeypatch)
    server = ServerProcess(start_timeout=0.1)
    with pytest.raises(ServerFailed, match="didn't answer within 0.1 s.*It has written nothing"):
        server.start()
    assert is_gone(server.process.pid)


def test_the_front_gets_the_limits():
    settings = ServerSettings("m", step_timeout=7.0, max_requests=5, max_prompt_tokens=6)
    fronts = [make_front(counting_engine, settings, engine) for engine in ("thread", "process")]
    assert fronts[1].step_timeout == 7.0
    assert {(each.admission.max_requests, each.admission.max_prompt_tokens) for each in fronts} == {(5, 6)}


def test_a_socket_that_is_bound_does_not_listen():
    with listen(ServerSettings("m", port=0)) as bound, pytest.raises(ConnectionRefusedError):
        socket.create_connection(bound.getsockname())
