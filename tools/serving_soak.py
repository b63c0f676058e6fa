"""Two servers behind the balancer, loaded for minutes: clients vanish, an engine is killed, both servers drain.

    python -m tools.serving_soak --minutes 10 --rate 4

The rate should be the knee's (`python -m tools.overload` finds it for one server). In the middle, the process of the
first engine is killed by SIGKILL; its server is started again, as a supervisor would, once its /health says so. At the
end, both servers get SIGTERM while streams run. Exits with 1 if a stream ended silently, too short or never, if a
request, a block, a process or a file is left, or if draining cut a stream.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from math import ceil
from statistics import quantiles
from typing import Any

from lessons_lib.models.loading import BUNDLED_MODEL
from lessons_lib.serving.http.server_process import ServerProcess
from lessons_lib.serving.load.arrivals import poisson_arrivals
from lessons_lib.serving.load.client import Now, open_loop
from lessons_lib.serving.load.http_client import CompletionsClient, read_body, read_events, read_head
from lessons_lib.serving.load.records import LoadRecord
from lessons_lib.serving.load.shapes import LoadRequest, random_requests
from lessons_lib.viz.tables.table import Table
from tools.server_abuse import child, is_running, megabytes, num_files

PATIENCE = 300  # seconds for what takes some on a quiet machine
LEFT = ("lessons_used_blocks", "vllm:num_requests_running", "vllm:num_requests_waiting")
LEFT += ("lessons_requests_in_flight", "lessons_prompt_tokens_in_flight")
MORE_FILES = 8  # that a process may have open at the end: connections of health checks
DRAINED_STREAMS = 8
NUM_SHOWN = 20  # requests that weren't completed


@dataclass
class Vanishing:
    """A client that leaves at a random moment: while it sends, while it waits, or while it reads.

    Attributes:
        phases: how many left in each phase.
    """

    client: CompletionsClient
    share: float
    chance: random.Random
    ids: set[str] = field(default_factory=set)
    phases: Counter[str] = field(default_factory=Counter)

    async def send(self, request: LoadRequest, record: LoadRecord, now: Now) -> None:
        """As `CompletionsClient.send`, for all; some of them leave."""
        if self.chance.random() >= self.share:
            return await self.client.send(request, record, now)
        self.ids.add(record.request_id)
        phase = self.chance.choice(["sending", "waiting", "reading"])
        self.phases[phase] += 1
        body = {"prompt": request.prompt, "max_tokens": request.max_tokens, "stream": True} | self.client.extra_body
        data = json.dumps(body).encode()
        sent = data[: self.chance.randrange(len(data))] if phase == "sending" else data
        num_events = self.chance.randrange(1, request.max_tokens) if phase == "reading" else 0
        reader, writer = await asyncio.open_connection(self.client.host, self.client.port)
        try:
            head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(data)}\r\n\r\n"
            writer.write(head.encode() + sent)
            await writer.drain()
            if phase == "waiting":
                await asyncio.sleep(self.chance.random() / 5)  # the moment is random, nothing waits for it
            elif phase == "reading":
                _, headers = await read_head(reader)
                async for _ in read_events(read_body(reader, headers)):
                    num_events -= 1
                    if num_events <= 0:
                        break
        finally:
            if self.chance.random() < 0.5:  # with a reset
                linger = b"\x01\0\0\0\0\0\0\0"
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
            record.end_time = now()
        return None


def outcome(record: LoadRecord, vanished: set[str]) -> str:
    """In a word, what a client saw."""
    if record.request_id in vanished:
        return "vanished"
    if record.end_time is None:
        return "never ended"
    if record.succeeded:
        return "completed" if record.output_tokens == record.max_tokens else "too short"
    if record.status not in (None, 200):
        return "refused"
    return "cut with an error" if record.finish_reason is None and was_told(record) else "cut silently"


def was_told(record: LoadRecord) -> bool:
    """Whether the server itself said what went wrong."""
    of_client = ("CutStream: ", "ConnectionResetError: ", "IncompleteReadError: ", "not finished")
    return record.status == 200 and record.error is not None and not record.error.startswith(of_client)


LOST = ("never ended", "too short", "cut silently")


@dataclass
class Fleet:
    """Two servers and the balancer before them, each a process.

    Attributes:
        servers: as they are now; a restart replaces one.
        url: of the balancer.
        events: what was done to it, with seconds.
    """

    arguments: tuple[object, ...]
    servers: list[ServerProcess]
    balancer: subprocess.Popen[bytes]
    url: str
    events: list[str] = field(default_factory=list)

    def processes(self) -> dict[str, int]:
        """Name -> process id, of those that live."""
        found = {"balancer": self.balancer.pid}
        for index, server in enumerate(self.servers):
            if server.process.poll() is None:
                found[f"server {index}"] = server.process.pid
                try:
                    found[f"engine {index}"] = child(server.process.pid)
                except (ValueError, OSError):
                    continue  # it was killed
        return {name: pid for name, pid in found.items() if is_running(pid)}

    def figures(self) -> dict[str, tuple[float, int]]:
        """Name -> (resident megabytes, open files)."""
        found = {}
        for name, pid in self.processes().items():
            try:
                found[name] = megabytes(pid), num_files(pid)
            except OSError:
                continue  # it has ended meanwhile
        return found

    async def kill_an_engine(self) -> None:
        """SIGKILL for the first engine; then do what a supervisor does."""
        start, server = time.monotonic(), self.servers[0]
        port = server.url.rpartition(":")[2]
        os.kill(child(server.process.pid), signal.SIGKILL)
        await until(lambda: status_of(server.url) == 503, "the killed engine isn't noticed")
        noticed = time.monotonic() - start
        await asyncio.to_thread(server.close)
        self.servers[0] = ServerProcess(*self.arguments, "--port", port, **SERVER_OPTIONS)
        await asyncio.to_thread(self.servers[0].start)
        await until(lambda: num_up(self.url) == 2, "the balancer doesn't take the new server")
        self.events.append(
            f"an engine was killed: /health said so after {noticed:.2f} s, two replicas again after "
            f"{time.monotonic() - start:.1f} s"
        )


SERVER_OPTIONS: dict[str, Any] = {"env": {"OMP_NUM_THREADS": "1"}, "shutdown_timeout": 60.0, "start_timeout": PATIENCE}


@contextmanager
def fleet_of_two(arguments: tuple[object, ...]) -> Iterator[Fleet]:
    """Start everything, and wait until both servers get requests. Nothing of it is left behind."""
    with ExitStack() as stack:
        servers = [ServerProcess(*arguments, **SERVER_OPTIONS) for _ in range(2)]
        fleet_servers = [stack.enter_context(server) for server in servers]
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        urls = [server.url for server in fleet_servers]
        command = [sys.executable, "-m", "lessons_lib.serving.balancer", "--port", str(port), *urls]
        balancer = subprocess.Popen([*command, "--policy", "two-choices"], stderr=subprocess.DEVNULL)
        stack.callback(balancer.wait)
        stack.callback(balancer.terminate)
        fleet = Fleet(arguments, fleet_servers, balancer, f"http://127.0.0.1:{port}")
        asyncio.run(until(lambda: num_up(fleet.url) == 2, "the balancer doesn't start"))
        try:
            yield fleet
        finally:
            for server in fleet.servers:
                server.close()


def get(url: str) -> bytes:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(url, timeout=PATIENCE) as answer:
        return bytes(answer.read())


def status_of(url: str) -> int:
    """Of /health; 0 if there is no answer."""
    try:
        get(f"{url}/health")
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0
    return 200


def num_up(url: str) -> int:
    """How many replicas the balancer sends requests to."""
    try:
        return sum(replica["is_up"] for replica in json.loads(get(f"{url}/replicas"))["replicas"])
    except OSError:
        return 0


def left_in(server: ServerProcess) -> float:
    """Requests and blocks in use, by /metrics. 0 if it is idle."""
    lines = get(f"{server.url}/metrics").decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(LEFT))


async def until(holds: Callable[[], bool], complaint: str) -> None:
    """Poll until something holds.

    Raises:
        TimeoutError: it never did.
    """
    deadline = time.monotonic() + PATIENCE
    while not await asyncio.to_thread(holds):
        if time.monotonic() > deadline:
            raise TimeoutError(complaint)
        await asyncio.sleep(0.05)


async def watch(fleet: Fleet, interval: float, rows: list[tuple[float, dict[str, tuple[float, int]]]]) -> None:
    """Note memory and files of all processes now and every `interval` seconds."""
    start = time.monotonic()
    while True:
        rows.append((time.monotonic() - start, await asyncio.to_thread(fleet.figures)))
        await asyncio.sleep(interval)


async def drained(fleet: Fleet, client: CompletionsClient, max_tokens: int) -> list[LoadRecord]:
    """SIGTERM for both servers while streams run. Returns what these saw."""
    requests = [LoadRequest([index + 3] * 8, 8, max_tokens) for index in range(DRAINED_STREAMS)]
    records = [LoadRecord(f"drained-{index}", 0.0, 0.0, 8, max_tokens) for index in range(DRAINED_STREAMS)]
    streams = [asyncio.create_task(client.send(*each, time.monotonic)) for each in zip(requests, records)]
    await until(lambda: all(record.token_times or record.end_time for record in records), "no stream begins")
    for server in fleet.servers:
        server.process.send_signal(signal.SIGTERM)
    await asyncio.gather(*streams)
    return records


async def soak(fleet: Fleet, args: argparse.Namespace) -> int:
    """The whole run; prints its figures. Returns how much was lost."""
    seconds = args.minutes * 60
    count = ceil(args.rate * seconds)
    client = CompletionsClient(fleet.url, extra_body={"ignore_eos": True, "temperature": 0})
    lengths = {"range_ratio": 0.5, "vocab_size": 4096}
    warm = random_requests(8, args.input_len, args.output_len, seed=args.seed + 1, **lengths)
    await open_loop(client.send, warm, [0.0] * len(warm))
    requests = random_requests(count, args.input_len, args.output_len, seed=args.seed, **lengths)
    vanishing = Vanishing(client, args.vanishing, random.Random(args.seed))
    rows: list[tuple[float, dict[str, tuple[float, int]]]] = []
    start = time.monotonic()
    watching = asyncio.create_task(watch(fleet, args.interval, rows))

    async def kill_in_the_middle() -> None:
        await asyncio.sleep(seconds / 2)
        await fleet.kill_an_engine()

    killing = asyncio.create_task(kill_in_the_middle())
    arrivals = poisson_arrivals(args.rate, count, args.seed)
    log = await open_loop(vanishing.send, requests, arrivals, window=seconds, rate=args.rate, patience=PATIENCE)
    await killing
    complaints = []
    for index, server in enumerate(fleet.servers):
        try:
            await until(lambda server=server: left_in(server) == 0, "")
        except TimeoutError:
            complaints.append(f"server {index}: requests or blocks are left")
    first = rows[0][1]

    def few_files() -> bool:
        now = fleet.figures()
        return all(now[name][1] <= first[name][1] + MORE_FILES for name in now)

    try:
        await until(few_files, "")
    except TimeoutError:
        complaints.append(f"files are left open: {fleet.figures()}, at first {first}")
    watching.cancel()
    rows.append((time.monotonic() - start, fleet.figures()))
    pids = fleet.processes()
    after = await drained(fleet, client, 4 * args.output_len)
    statuses = [await asyncio.to_thread(server.process.wait, PATIENCE) for server in fleet.servers]
    for name, pid in pids.items():
        if name != "balancer" and is_running(pid):
            complaints.append(f"{name} runs on after the drain")
    if any(statuses):
        complaints.append(f"the servers' exit statuses are {statuses}")

    outcomes = Counter(outcome(record, vanishing.ids) for record in log.records)
    ends = Counter(outcome(record, set()) for record in after)
    done = [record for record in log.records if outcome(record, vanishing.ids) == "completed"]
    if ends["completed"] != DRAINED_STREAMS:
        complaints.append(f"draining ended streams: {dict(ends)}")
    complaints += [f"{outcomes[each]} {each}" for each in LOST if outcomes[each]]
    say(f"{len(log.records)} requests in {seconds:.0f} s: {counted(outcomes)}")
    others = [record for record in log.records if outcome(record, vanishing.ids) not in ("completed", "vanished")]
    for record in others[:NUM_SHOWN]:
        say(f"  {outcome(record, set())} at {record.send_time:.1f} s: {record.status} {record.error}")
    say(f"clients that vanished: {counted(vanishing.phases)}")
    say(latencies("TTFT", [record.ttft for record in done]))
    say(latencies("ITL", [gap for record in done for gap in record.itl]))
    for event in fleet.events:
        say(event)
    say(f"balancer: {json.loads(get(f'{fleet.url}/replicas'))['counts']}")
    say(f"drained with {DRAINED_STREAMS} streams running: {counted(ends)}; exit statuses {statuses}")
    say(str(memory_table(rows)))
    for complaint in complaints:
        say(f"LOST: {complaint}")
    return len(complaints)


def say(text: str) -> None:
    print(text, flush=True)


def counted(counts: Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in sorted(counts.items())) or "none"


def latencies(name: str, seconds: list[float]) -> str:
    """p50 and p99 in milliseconds."""
    if len(seconds) < 2:
        return f"{name}: too few to say"
    cuts = quantiles(seconds, n=100, method="inclusive")
    return f"{name}: p50 {1000 * cuts[49]:.1f} ms, p99 {1000 * cuts[98]:.1f} ms"


def memory_table(rows: list[tuple[float, dict[str, tuple[float, int]]]]) -> Table:
    """Resident megabytes and open files of each process over time."""
    names = sorted({name for _, figures in rows for name in figures})
    cells = [
        [f"{moment:.0f} s", *(f"{row[name][0]:.0f} MB, {row[name][1]}" if name in row else "–" for name in names)]
        for moment, row in rows
    ]
    return Table(["at", *names], cells, "Resident memory and open files")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.serving_soak", description=__doc__.split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=4.0, help="requests per second")
    parser.add_argument("--vanishing", type=float, default=0.05, help="share of the clients")
    parser.add_argument("--input-len", type=int, default=64, help="tokens of a prompt, half as many to twice as many")
    parser.add_argument("--output-len", type=int, default=48, help="tokens of a completion")
    parser.add_argument("--interval", type=float, default=60.0, help="seconds between two looks at memory")
    parser.add_argument("--max-num-seqs", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)
    server = ("--model", BUNDLED_MODEL, "--max-num-seqs", args.max_num_seqs, "--no-access-log", "--log-level", "error")
    with fleet_of_two(server) as fleet:
        return int(asyncio.run(soak(fleet, args)) > 0)


if __name__ == "__main__":
    sys.exit(main())
