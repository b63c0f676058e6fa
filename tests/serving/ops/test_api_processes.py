"""Several API processes in front of one engine: who gets which connection, what they count together, how they end."""

import asyncio
import concurrent.futures
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
from multiprocessing import Pipe
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
from live_server import wait_until

from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.models.loading import BUNDLED_MODEL, load_model
from lessons_lib.serving.admission import AdmissionControl, Overloaded
from lessons_lib.serving.http.api_process import EngineHangs, Joins, Serves
from lessons_lib.serving.http.api_processes import ApiProcess, ManyServers, share
from lessons_lib.serving.http.arguments import WrongArgument, parse
from lessons_lib.serving.http.board import AdmissionOnBoard, Board, WholeServer
from lessons_lib.serving.http.observability import ServerMetrics, cockpit
from lessons_lib.serving.http.server_process import ServerProcess
from lessons_lib.serving.http.settings import ServerSettings

ARGUMENTS = ("--model", BUNDLED_MODEL, "--served-model-name", "m", "--num-blocks", 400, "--max-num-seqs", 8)
MANY = (*ARGUMENTS, "--api-server-count", 2, "--log-level", "warning")
PROMPTS = ["Once upon a time", "There was a dog", "The sun", "Tom and Lily went to the park", "One day", "A big tree"]
needs_linux = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks at processes as Linux shows them")


class Client:
    """One connection, and so one API process."""

    def __init__(self, server):
        self.connection = http.client.HTTPConnection("127.0.0.1", urlsplit(server.url).port, timeout=60)
        self.connection.connect()

    def ask(self, path, body=None):
        """An http.client.HTTPResponse, whose head was read."""
        data = json.dumps({"model": "m", "ignore_eos": True, "temperature": 0} | body) if body else None
        self.connection.request("POST" if body else "GET", path, data, {"Content-Type": "application/json"})
        return self.connection.getresponse()

    def get(self, path):
        answer = self.ask(path)
        return answer.status, answer.read().decode()

    def metric(self, name):
        """The value of the line that begins like this."""
        lines = [line for line in self.get("/metrics")[1].splitlines() if line.startswith(name)]
        return sum(float(line.split()[-1]) for line in lines)

    def stream(self, prompt, max_tokens):
        return self.ask("/v1/completions", {"prompt": prompt, "max_tokens": max_tokens, "stream": True})


def said(answer):
    """The data of server-sent events."""
    return [line[6:].decode() for line in answer.read().split(b"\n") if line.startswith(b"data: ")]


def text_of(answer):
    chunks = said(answer)
    assert chunks[-1] == "[DONE]"
    return "".join(json.loads(each)["choices"][0]["text"] for each in chunks[:-1])


def children(pid):
    """(processes of the API, process of the engine)."""
    found = {}
    for each in subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout.split():
        with open(f"/proc/{each}/cmdline") as file:
            found[int(each)] = file.read()
    engine = [pid for pid, command in found.items() if "engine_process" in command]
    return [pid for pid in found if pid not in engine], *engine


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def num_sockets(pid):
    """How many sockets a process has open."""
    found = 0
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            found += os.readlink(f"/proc/{pid}/fd/{descriptor}").startswith("socket:")
    return found


def expected_texts(max_tokens):
    model, tokenizer = load_model(device="cpu")
    with LLMEngine(model, tokenizer, EngineConfig(max_num_seqs=8, num_blocks=400)) as engine:
        params = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)
        return [engine.generate([prompt], params)[0].completions[0].text for prompt in PROMPTS]


@needs_linux
@pytest.mark.nightly
def test_a_server_of_several_processes_from_its_start_until_it_is_killed_bit_by_bit():
    with ServerProcess(*MANY, env={"OMP_NUM_THREADS": "1"}) as server:
        apis, engine = children(server.process.pid)
        assert len(apis) == 2

        # Connections are handed out in turn.
        before = [num_sockets(pid) for pid in apis]
        idle = [Client(server) for _ in range(64)]
        assert {client.get("/health") for client in idle} == {(200, '{"status":"ok"}')}
        gained = [num_sockets(pid) - old for pid, old in zip(apis, before)]
        assert sum(gained) in (64, 63) and min(gained) >= 31, "ServerProcess's own connection may just have been closed"

        # Tokens through both are those of the engine alone; what one counts, the other shows.
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = pool.map(lambda pair: text_of(pair[0].stream(pair[1], 24)), zip(idle, PROMPTS))
            assert list(answers) == expected_texts(24)
        one, two = idle[:2]
        for client in (one, two):
            wait_until(lambda: client.metric("vllm:generation_tokens_total") == 24 * len(PROMPTS))
            path = 'lessons_http_responses_total{path="/v1/completions",status="200"}'
            assert client.metric(path) == len(PROMPTS)
            assert client.metric("lessons_requests_in_flight") == 0
            assert json.loads(client.get("/cockpit")[1])["max_requests"] == 256

        # A client that leaves frees its blocks, whichever process it was connected to; the other process knows.
        for client, other in ((one, idle[3]), (two, idle[2])):
            answer = client.stream("Once", 400)
            answer.readline()
            assert json.loads(other.get("/load")[1]) == {"server_load": 1}
            answer.close()
            client.connection.close()
            wait_until(lambda: json.loads(other.get("/load")[1]) == {"server_load": 0})
            wait_until(lambda: other.metric("lessons_used_blocks") == 0)

        # The engine is killed: all streams end with an error, and all processes say so.
        streams = [idle[index].stream("Once", 400) for index in (4, 5)]
        for each in streams:
            each.readline()
        os.kill(engine, signal.SIGKILL)
        for each in streams:
            chunks = said(each)
            assert chunks[-1] == "[DONE]" and "killed by SIGKILL" in json.loads(chunks[-2])["error"]["message"]
        for client in idle[6:8]:
            status, body = client.get("/health")
            assert status == 503 and "killed by SIGKILL" in json.loads(body)["error"]
            answer = client.ask("/v1/completions", {"prompt": "Once"})
            assert answer.status == 503 and "started again" in answer.read().decode()

        # A new one is started, and all processes serve with it.
        wait_until(lambda: {Client(server).get("/health")[0] for _ in apis} == {200}, 120)
        assert all(text_of(Client(server).stream("Once", 8)) for _ in apis)
        (_, new) = children(server.process.pid)
        assert new != engine and not is_running(engine)

        # A process of the API is killed: the server ends, says why, and nothing runs on.
        os.kill(apis[0], signal.SIGKILL)
        assert server.process.wait(60) == 1
        assert f"(process id {apis[0]}) was killed by SIGKILL" in server.log().splitlines()[-1]
        assert not any(map(is_running, (*apis, new)))


@needs_linux
@pytest.mark.nightly
def test_an_api_process_that_is_killed_ends_the_server_in_an_orderly_way():
    with ServerProcess(*MANY, env={"OMP_NUM_THREADS": "1"}, shutdown_timeout=60.0) as server:
        apis, engine = children(server.process.pid)
        clients = [Client(server) for _ in range(2)]
        streams = [client.stream("Once upon a time", 450) for client in clients]
        for each in streams:
            each.readline()
        own = [num_sockets(pid) for pid in apis]
        watcher = Client(server)
        watcher.get("/health")
        (watching,) = (pid for pid, old in zip(apis, own) if num_sockets(pid) > old)
        (killed,) = set(apis) - {watching}
        os.kill(killed, signal.SIGKILL)
        # Its requests are aborted, the other's goes on and is complete, and nothing is left in the engine.
        wait_until(lambda: watcher.metric('vllm:request_success_total{engine="0",finished_reason="abort"') == 1)
        assert watcher.metric("lessons_requests_in_flight") <= 1, "those of the process that died don't count"
        ends = []
        for each in streams:
            with contextlib.suppress(http.client.IncompleteRead, ConnectionError):
                ends.append(said(each)[-1])
        assert ends == ["[DONE]"]
        server.process.wait(60)
        assert server.process.returncode == 1
        last = server.log().splitlines()[-1]
        assert last.startswith("The server has ended: API process ") and f"(process id {killed}) was killed" in last
        wait_until(lambda: not any(map(is_running, (*apis, engine))))


@needs_linux
@pytest.mark.nightly
@pytest.mark.parametrize("how", ["drain", "second signal"])
def test_a_signal_drains_all_processes(how):
    with ServerProcess(*MANY, env={"OMP_NUM_THREADS": "1"}, shutdown_timeout=60.0) as server:
        apis, engine = children(server.process.pid)
        clients = [Client(server) for _ in range(4)]
        streams = [client.stream("Once upon a time", 450) for client in clients[:2]]
        for each in streams:
            each.readline()
        for pid in apis:
            os.kill(pid, signal.SIGTERM)  # as a service manager does; the main process alone decides
        server.process.terminate()
        for client in clients[2:]:
            wait_until(lambda: client.get("/health") == (503, '{"status":"draining"}'))
        if how == "second signal":
            server.process.terminate()
        else:
            assert [said(each)[-1] for each in streams] == ["[DONE]"] * 2
        assert server.process.wait(60) == 0
        assert not any(map(is_running, (*apis, engine)))


@needs_linux
@pytest.mark.nightly
def test_when_the_main_process_is_killed_nothing_runs_on():
    with ServerProcess(*MANY, env={"OMP_NUM_THREADS": "1"}) as server:
        apis, engine = children(server.process.pid)
        stream = Client(server).stream("Once upon a time", 450)
        stream.readline()
        server.process.kill()
        wait_until(lambda: not any(map(is_running, (*apis, engine))))
        assert "main process has ended" in json.loads(said(stream)[-2])["error"]["message"]


# Without processes.


def test_the_command_line():
    assert parse([]).api_server_count == 1
    assert parse(["--api-server-count", "3"]).api_server_count == 3
    with pytest.raises(WrongArgument, match="--api-server-count is 0; it must be at least 1"):
        parse(["--api-server-count", "0"])
    with pytest.raises(WrongArgument, match="--api-server-count is 2, and --engine is 'thread'"):
        parse(["--api-server-count", "2", "--engine", "thread"])


def test_a_share_is_rounded_up_and_has_room_for_the_longest_prompt():
    settings = ServerSettings("m", max_requests=10, max_prompt_tokens=1000)
    found = [share(settings, 4, longest) for longest in (None, 100, 600, 5000)]
    assert [each.max_requests for each in found] == [3] * 4
    assert [each.max_prompt_tokens for each in found] == [250, 250, 600, 1000]
    assert share(settings, 1, 100) == settings


def admission_story(admission):
    """What is seen of one."""
    seen = []
    admitted = [admission.admit(tokens) for tokens in (10, 20)]
    admission.correct(admitted[1], 25)
    seen.append((admission.num_requests, admission.num_prompt_tokens))
    with pytest.raises(Overloaded):
        admission.admit(66)
    admission.release(admitted[0])
    return [*seen, (admission.num_requests, admission.num_prompt_tokens, admission.num_refused)]


def test_the_board_adds_up_what_each_process_counts():
    board = Board(3)
    same = [Board(3, board.file_descriptor) for _ in range(3)]  # as other processes see it
    stories = [admission_story(AdmissionOnBoard(each.rows[index], 5, 100)) for index, each in enumerate(same)]
    assert stories == [admission_story(AdmissionControl(5, 100))] * 3
    wholes = [WholeServer(each, each.rows[index], 15, 300) for index, each in enumerate(same)]
    for whole in wholes:
        assert (whole.num_requests, whole.num_prompt_tokens, whole.num_refused) == (3, 75, 3)
    answers = [whole.answers(frozenset({"/health", "/v1/completions"})) for whole in wholes]
    for _ in range(4):
        answers[0]["/health", 200] += 1
    answers[1]["/health", 200] += 1
    answers[2]["other", 404] += 1
    assert all(dict(each.items()) == {("/health", 200): 5, ("other", 404): 1} for each in answers)
    board.forget(0)
    assert wholes[1].num_requests == 2 and wholes[1].num_refused == 3 and dict(answers[1].items())["/health", 200] == 5


def test_a_scrape_shows_the_whole_server():
    board = Board(2)
    wholes = [WholeServer(board, row, 20, 300) for row in board.rows]
    own = AdmissionOnBoard(board.rows[1], 10, 100)
    own.admit(7)
    gauges = SimpleNamespace(
        running=1, waiting=0, used_blocks=2, num_blocks=4, kv_cache_usage_perc=0.5, swapped=0, named_blocks=0
    )
    front = SimpleNamespace(gauges=gauges, metrics=dict, error=None, is_draining=False, admission=AdmissionControl(10))
    metrics = ServerMetrics(front, "m", whole=wholes[0])
    metrics.answers = wholes[0].answers(frozenset({"/health"}))
    wholes[1].answers(frozenset({"/health"}))["/health", 503] = 3
    board.rows[1, 3] = 9
    text = metrics.text().decode()
    assert 'lessons_requests_in_flight{engine="0",model_name="m"} 1.0' in text
    assert 'lessons_prompt_tokens_in_flight{engine="0",model_name="m"} 7.0' in text
    assert 'lessons_http_responses_total{path="/health",status="503"} 3.0' in text
    assert 'lessons_log_lines_dropped_total{engine="0",model_name="m"} 9.0' in text
    assert "process_cpu_seconds" not in text, "of a process that differs from scrape to scrape"
    found = cockpit(front, wholes[0])
    assert (found["requests"], found["max_requests"]) == (1, 20)


def test_a_process_that_finds_the_engine_hanging_lets_it_be_killed():
    asked = []
    engine = SimpleNamespace(
        give_up=asked.append, let_join=lambda *of: asked.append(of), let_leave=asked.append, error=None
    )
    settings = ServerSettings("m")

    async def story():
        servers = ManyServers(engine, Board(1), [], settings)
        servers._event_loop, servers._news = asyncio.get_running_loop(), asyncio.Event()
        ours, its = Pipe()
        ended = SimpleNamespace(pid=5, returncode=3, wait=lambda *seconds: 3, kill=lambda: None)
        process = ApiProcess(1, ended, ours, None)
        servers.processes.append(process)
        assert not servers._is_started()
        for message in (Joins("ipc://x", []), Serves(), EngineHangs("it hangs")):
            its.send(message)
            servers._hear(process)
        assert servers._is_started() and asked == [(1, "ipc://x", []), "it hangs"]
        its.close()
        servers._hear(process)
        assert process.has_exited and asked[2:] == [1]
        assert servers.failure.startswith("API process 1 (process id 5) ended with exit status 3.")
        ours.close()

    asyncio.run(story())


def test_a_process_without_room_takes_no_connection():
    ours, its = socket.socketpair()
    ours.setblocking(False)
    process = ApiProcess(1, SimpleNamespace(pid=5, returncode=-9), None, ours)
    with socket.socket() as connection:
        assert process.take(connection)
        while process.take(connection):
            continue
        _, descriptors, _, _ = socket.recv_fds(its, 1, 1)
        assert len(descriptors) == 1 and os.fstat(descriptors[0]).st_ino == os.fstat(connection.fileno()).st_ino
        os.close(descriptors[0])
        its.close()
        assert not process.take(connection)
    ours.close()
    assert process.how_it_ended() == "API process 1 (process id 5) was killed by SIGKILL"
