"""A client that leaves, in whatever phase, takes its requests out of the engine, and nothing of them stays."""

import json
import socket

import pytest
from live_server import wait_until

BODIES = {
    "unstreamed": {"prompt": "Once upon a time"},
    "streamed": {"prompt": "Once upon a time", "stream": True},
    "several prompts": {"prompt": ["Once upon a time", "A dog", "The sun"], "stream": True},
    "several completions": {"prompt": "Once upon a time", "n": 4},
}


def open_request(live, body, path="/v1/completions"):
    content = json.dumps({"max_tokens": 1000, "ignore_eos": True} | body).encode()
    connection = socket.create_connection(("127.0.0.1", int(live.url.rpartition(":")[2])))
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    connection.sendall(head.encode() + content)
    return connection


@pytest.mark.parametrize("name", BODIES)
def test_a_client_that_leaves_while_tokens_are_computed(live, name):
    steps, aborted = live.front.metrics()["steps"], live.ended().get("abort", 0)
    connection = open_request(live, BODIES[name])
    wait_until(lambda: live.front.metrics()["steps"] > steps + 1)
    if BODIES[name].get("stream"):
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
    connection.close()
    wait_until(live.is_idle)
    prompts = 3 if name == "several prompts" else 1
    assert live.ended().get("abort", 0) == aborted + prompts
    assert live.front.metrics()["steps"] < steps + 900  # it would have been 1,000


def test_a_client_that_leaves_before_its_first_token(live):
    """The engine stands still, so that the request waits: head and first token have not been sent."""
    aborted = live.ended().get("abort", 0)
    for body in ({}, {"stream": True}):
        with live.engine.core.lock:
            connection = open_request(live, {"prompt": "Once upon a time"} | body)
            wait_until(lambda: live.front.admission.num_requests == 1)
            connection.close()
        wait_until(live.is_idle)
    assert live.ended().get("abort", 0) - aborted in (0, 1, 2)  # or it was gone before the engine knew it
