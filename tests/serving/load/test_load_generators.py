"""`vllm bench serve` and guidellm against a live server.

Where they are not installed, what they send is sent again as it was recorded (`python -m tools.recording_proxy`), with
its headers, its order and its connections, and answers are read by the rules of their readers. `LESSONS_PEERS` names a
folder in which `python -m tools.load_peers --install` has put both: then they run themselves.
"""

import asyncio
import contextlib
import http.client
import json
import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

from live_server import LiveServer, wait_until

from tools import load_peers, recording_proxy
from tools.peer_programs import PeerPrograms

RUNS = json.loads(Path(__file__).with_name("recorded_requests.json").read_text(encoding="utf-8"))
COUNT, INPUT, OUTPUT = recording_proxy.COUNT, recording_proxy.INPUT, recording_proxy.OUTPUT
FOLDER = os.environ.get("LESSONS_PEERS")
WHY_MISSING = (
    PeerPrograms(Path(FOLDER)).why_missing()
    if FOLDER
    else "run `python -m tools.load_peers --install FOLDER`, and set LESSONS_PEERS=FOLDER"
)


@pytest.fixture(scope="module")
def live():
    with LiveServer() as server:
        yield server


class Connection:
    """One that is kept open between requests."""

    def __init__(self, url):
        self.address = urlsplit(url)
        self.socket = socket.create_connection((self.address.hostname, self.address.port), timeout=60)

    def ask(self, request):
        """Send a recorded request to this server. Returns headers and body of the answer, which has status 200."""
        headers = [
            (name, self.address.netloc if name.lower() == "host" else value) for name, value in request["headers"]
        ]
        lines = [f"{request['method']} {request['path']} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
        self.socket.sendall("\r\n".join([*lines, "", request["body"]]).encode())
        answer = http.client.HTTPResponse(self.socket, method=request["method"])
        answer.begin()
        body = answer.read().decode()
        assert answer.status == 200, body
        assert not answer.will_close  # both keep their connections
        return {name.lower(): value for name, value in answer.getheaders()}, body


def read_as_vllm(text):
    """(time-stamped events, usage) of a stream: an event without choices has the usage."""
    *events, done, rest = text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    events = [json.loads(event.removeprefix("data: ")) for event in events]
    tokens = [event["choices"][0] for event in events if event.get("choices")]
    # A chat begins with an event that has a role, and no token.
    tokens = [
        choice
        for choice in tokens
        if "text" in choice or choice["delta"].get("content") or "role" not in choice["delta"]
    ]
    (usage,) = (event["usage"] for event in events if not event.get("choices"))
    return len(tokens), usage


def read_as_guidellm(text):
    """(time-stamped events, usage): lines with text count, and the last usage."""
    lines = [line[5:].strip() for line in text.splitlines() if line.startswith("data:")]
    assert lines.pop() == "[DONE]"
    events = [json.loads(line) for line in lines]
    assert not any("error" in event for event in events)
    choices = [event["choices"][0] for event in events if event.get("choices")]
    counted = [each for each in choices if each.get("text") or each.get("delta", {}).get("content")]
    usages = [event["usage"] for event in events if event.get("usage")]
    assert len(usages) > 1  # it asks for continuous ones
    return len(counted), usages[-1]


@pytest.mark.parametrize("run", RUNS)
def test_what_they_send_is_served_as_they_read_it(live, run):
    read, asked = read_as_vllm if "vllm" in run else read_as_guidellm, []
    with contextlib.ExitStack() as stack:
        connections = {}
        for request in RUNS[run]:
            number, path = request["connection"], request["path"]
            if number not in connections:
                connections[number] = Connection(live.url)
                stack.enter_context(contextlib.closing(connections[number].socket))
            headers, text = connections[number].ask(request)
            if path == "/v1/models":
                first = json.loads(text)["data"][0]
                assert first["id"] and first["root"]
            elif path == "/metrics":
                for line in text.splitlines():
                    assert line.startswith("#") or float(line.split()[-1]) is not None
            elif request["method"] == "POST":
                sent, own_id = json.loads(request["body"]), dict(request["headers"]).get("x-request-id")
                assert headers["content-type"].startswith("text/event-stream")
                assert own_id is None or headers["x-request-id"] == own_id
                num_events, usage = read(text)
                assert 1 <= num_events <= OUTPUT
                assert usage["completion_tokens"] == OUTPUT
                if isinstance(sent.get("prompt"), list):
                    assert usage["prompt_tokens"] == len(sent["prompt"])
                asked.append(path)
    assert asked[0] == ("/v1/chat/completions" if "chats" in run else "/v1/completions")
    assert len(asked) >= COUNT and len(set(asked)) == 1
    wait_until(live.is_idle)


def shape(requests):
    """What matters of requests: method, path, names of headers and fields of the body, each kind once."""
    found = set()
    for request in requests:
        fields = list(json.loads(request["body"])) if request["body"] else []
        names = [name for name, _ in request["headers"]]
        found.add((request["method"], request["path"], tuple(names), tuple(fields)))
    return found


@pytest.mark.timeout(900)
@pytest.mark.skipif(WHY_MISSING is not None, reason=str(WHY_MISSING))
def test_the_programs_themselves(live):
    recorded = asyncio.run(recording_proxy.record(PeerPrograms(Path(FOLDER)), live.url))
    for run, (requests, result) in recorded.items():
        assert shape(RUNS.get(run, [])) <= shape(requests), f"{run}: record its requests again"
        if "vllm" in run:
            assert (result["completed"], result["failed"]) == (COUNT, 0)
            assert result["total_output_tokens"] == COUNT * OUTPUT
        else:
            requests_of = result["benchmarks"][0]["requests"]
            assert len(requests_of["successful"]) == COUNT and not requests_of["errored"]
            assert {each["output_tokens"] for each in requests_of["successful"]} == {OUTPUT}
    wait_until(live.is_idle)


@pytest.mark.timeout(900)
@pytest.mark.skipif(WHY_MISSING is not None, reason=str(WHY_MISSING))
def test_all_three_measure_a_server_with_known_times(capsys):
    load_peers.main(["--peers", FOLDER, "--rounds", "1", "--num-requests", "10", "--rate", "20"])
    _, *rows = capsys.readouterr().out.splitlines()
    ours, vllm, guidellm = (float(row.replace("vllm bench", "vllm-bench").split()[1]) for row in rows)
    assert ours == vllm == 10 and guidellm >= 9  # it leaves out a request at the end of some runs
