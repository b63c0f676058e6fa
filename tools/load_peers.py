"""`python -m tools.load_peers`: the same trace sent by our load generator, `vllm bench serve` and `guidellm`, in turns.

Neither is needed by the course. `python -m tools.load_peers --install FOLDER` downloads both, and `--peers FOLDER` uses
them.

Without `--url`, the server is one whose times are known: the first token after `--ttft` ms, then one each `--itl` ms.
With `--bundled`, it is a server of this course with the bundled model and without a prefix cache, in a process beside
it. What that server has measured itself stands in the column `at server`: what a client's TTFT has beyond it was spent
on the way and in the client.

Three things differ between the programs. The definitions: guidellm's ITL is averaged over each request, which is TPOT
here, and its TPOT is the end-to-end latency divided by all tokens; the table uses the definitions of `vllm bench
serve`. The first token: guidellm waits for one with text, the others for any. And the cores: guidellm starts up to 10
processes, which compete with a server on a small machine; `--guidellm-processes` limits them. What else runs on the
machine may outweigh all of it: `load` is the number of processes that wanted a core in the last minute.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, median
from typing import Any

from lessons_lib.serving.http.server_process import ServerProcess
from lessons_lib.serving.load.arrivals import poisson_arrivals
from tools.peer_programs import PeerPrograms, install

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "lessons_lib/assets/model"
BUNDLED = ("--no-prefix-caching", "--no-access-log")
COLUMNS = ("completed", "input", "ttft", "at server", "tpot", "itl", "e2el", "requests/s", "tokens/s", "load")
Row = dict[str, float | None]


def write_trace(path: Path, rate: float, count: int, input_len: int, output_len: int, seed: int) -> None:
    """Poisson arrivals from 0 on, as a trace that all three read. No two prompts share a block."""
    times = poisson_arrivals(rate, count, seed)
    blocks = -(-input_len // 16)
    with path.open("w", encoding="utf-8") as file:
        for index, time in enumerate(times):
            ids = list(range(index * blocks, (index + 1) * blocks))
            entry = {"timestamp": round(1000 * (time - times[0]))}
            file.write(
                json.dumps(entry | {"input_length": input_len, "output_length": output_len, "hash_ids": ids}) + "\n"
            )


def our_command(url: str, trace: Path, result: Path, seed: int) -> list[str]:
    """Our load generator."""
    command = [sys.executable, "-m", "lessons_lib.serving.load", "--url", url, "--trace", str(trace)]
    return [*command, "--vocab-size", "4096", "--seed", str(seed), "--save", str(result)]


def vllm_command(programs: PeerPrograms, url: str, model: str, trace: Path, result: Path, count: int) -> list[str]:
    """`vllm bench serve`."""
    command = [*programs.vllm_bench, "--backend", "openai", "--base-url", url, "--model", model]
    command += ["--tokenizer", str(MODEL), "--dataset-name", "timed_trace", "--dataset-path", str(trace)]
    command += ["--timed-trace-sec-multiplier", "0.001", "--num-prompts", str(count), "--ignore-eos"]
    command += ["--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,90,99", "--disable-tqdm"]
    return [*command, "--save-result", "--result-filename", str(result)]


def guidellm_command(
    programs: PeerPrograms, url: str, model: str, trace: Path, result: Path, seed: int = 0
) -> list[str]:
    """`guidellm run` with the profile that replays a trace."""
    backend = {"kind": "openai_http", "target": url, "model": model, "request_format": "/v1/completions"}
    data = {"kind": "trace_synthetic", "source": {"kind": "json_file", "path": str(trace)}, "time_scale": 0.001}
    command = [*programs.guidellm, "run", "--backend", json.dumps(backend | {"http2": False})]
    command += ["--profile", "kind=replay", "--seed", f"kind=static,value={seed}", "--data", json.dumps(data)]
    command += ["--tokenizer", f"kind=hf_auto,model={MODEL}", "--disable-console"]
    return [*command, "--output", f"kind=json,path={result}"]


def read_vllm(saved: dict[str, Any]) -> Row:
    """A row of the table, of a result of `vllm bench serve` or ours: their fields are the same."""
    row: Row = {name: saved[f"median_{name}_ms"] for name in ("ttft", "tpot", "itl", "e2el")}
    row |= {"completed": saved["completed"], "input": saved["total_input_tokens"] / max(1, saved["completed"])}
    return row | {"requests/s": saved["request_throughput"], "tokens/s": saved["output_throughput"]}


def read_guidellm(saved: dict[str, Any]) -> Row:
    """A row of the table, of a report of guidellm, computed from its requests."""
    benchmark = saved["benchmarks"][0]
    requests = benchmark["requests"]["successful"]
    return {
        "completed": len(requests),
        "input": mean(request["prompt_tokens"] for request in requests),
        "ttft": median(request["time_to_first_token_ms"] for request in requests),
        "tpot": median(request["inter_token_latency_ms"] for request in requests),
        "itl": None,
        "e2el": median(request["request_latency"] * 1000 for request in requests),
        "requests/s": len(requests) / benchmark["duration"],
        "tokens/s": sum(request["output_tokens"] for request in requests) / benchmark["duration"],
    }


def run(
    command: list[str], result: Path, read: Callable[[dict[str, Any]], Row], env: Mapping[str, str] | None = None
) -> Row:
    """Run a load generator, and read what it wrote.

    Args:
        env: more environment variables.

    Raises:
        RuntimeError: it failed; with the end of its output.
    """
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT) if command[0] == sys.executable else ""}
    environment |= env or {}
    done = subprocess.run(command, cwd=result.parent, env=environment, capture_output=True, text=True, check=False)
    if done.returncode or not result.exists():
        raise RuntimeError(f"{command[0]} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}")
    return read(json.loads(result.read_text(encoding="utf-8")))


def table(rows: dict[str, list[Row]]) -> str:
    """Medians over the rounds, one line for each load generator."""
    lines = [f"{'':<12}" + "".join(f"{name:>12}" for name in COLUMNS)]
    for name, rounds in rows.items():
        cells = []
        for column in COLUMNS:
            values = [value for row in rounds if (value := row.get(column)) is not None]
            cells.append(f"{median(values):>12.2f}" if values else f"{'-':>12}")
        lines.append(f"{name:<12}" + "".join(cells))
    return "\n".join(lines)


async def answer_at_a_pace(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ttft: float, itl: float) -> None:
    """One connection of a server whose times are known, in seconds."""
    loop = asyncio.get_running_loop()
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        start = loop.time()
        length = next(
            (line.split(b":")[1] for line in head.split(b"\r\n") if line.startswith(b"content-length:")), b"0"
        )
        request = json.loads(await reader.readexactly(int(length)) or b"{}")
        if not head.startswith(b"post"):
            body = json.dumps(
                {"data": [{"id": "paced", "root": "paced", "object": "model"}], "object": "list"}
            ).encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n")
            writer.write(b"content-length: %d\r\n\r\n%s" % (len(body), body))
            return
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        for index in range(request["max_tokens"]):
            await asyncio.sleep(max(0.0, start + ttft + index * itl - loop.time()))
            finish = "length" if index == request["max_tokens"] - 1 else None
            choice = {"index": 0, "text": " a", "finish_reason": finish}
            writer.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
        usage = {"prompt_tokens": len(request["prompt"]), "completion_tokens": request["max_tokens"]}
        writer.write(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\ndata: [DONE]\n\n")
        await writer.drain()
    except (ConnectionError, asyncio.IncompleteReadError):
        pass  # the client has left
    finally:
        writer.close()


async def serve_at_a_pace(ttft: float, itl: float) -> None:
    """Serve until cancelled; prints the URL."""
    server = await asyncio.start_server(lambda r, w: answer_at_a_pace(r, w, ttft, itl), "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


@contextmanager
def paced_server(ttft: float, itl: float) -> Iterator[str]:
    """In a process of its own; yields its URL. Times in seconds."""
    command = [sys.executable, "-m", "tools.load_peers", "--pace", str(ttft), str(itl)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def first_tokens_at(url: str) -> tuple[float, float]:
    """Sum in ms, and number, of the times to the first token that a server of this course, or vLLM's, has measured so
    far. Other servers have no such figures: zeros."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"{url}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
    except urllib.error.HTTPError:
        return 0.0, 0.0
    name = "vllm:time_to_first_token_seconds"
    found = {line.split("{")[0]: float(line.split()[-1]) for line in lines if line.startswith(name)}
    return 1000 * found.get(f"{name}_sum", 0.0), found.get(f"{name}_count", 0.0)


def compare(args: argparse.Namespace, url: str, model: str) -> dict[str, list[Row]]:
    """Rows of each load generator that is there, one for each round. Each round begins with another one."""
    rows: dict[str, list[Row]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(args.rounds):
            trace, result, seed = Path(folder) / "trace.jsonl", Path(folder) / "result.json", args.seed + turn
            write_trace(trace, args.rate, args.num_requests, args.input_len, args.output_len, seed)
            turns: list[tuple[str, list[str], Callable[[dict[str, Any]], Row]]] = [
                ("ours", our_command(url, trace, result, seed), read_vllm)
            ]
            if args.peers:
                programs = PeerPrograms(args.peers)
                theirs = vllm_command(programs, url, model, trace, result, args.num_requests)
                turns.append(("vllm bench", theirs, read_vllm))
                turns.append(("guidellm", guidellm_command(programs, url, model, trace, result, seed), read_guidellm))
            for name, command, read in turns[turn % len(turns) :] + turns[: turn % len(turns)]:
                # vLLM draws prompts by the hash of their blocks' names
                env = {"PYTHONHASHSEED": str(seed), "GUIDELLM__MAX_WORKER_PROCESSES": str(args.guidellm_processes)}
                before = first_tokens_at(url)
                row = run(command, result, read, env)
                total, count = (new - old for new, old in zip(first_tokens_at(url), before))
                row |= {"at server": total / count if count else None, "load": os.getloadavg()[0]}
                rows.setdefault(name, []).append(row)
                print(f"round {turn}, {name}: " + json.dumps(row), file=sys.stderr, flush=True)
                result.unlink()
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.load_peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", help="a running server; one with known times if left out")
    parser.add_argument("--model", default="lessons-bundled", help="what that server calls its model")
    parser.add_argument("--ttft", type=float, default=50, help="of the server with known times, in ms")
    parser.add_argument("--itl", type=float, default=20)
    parser.add_argument("--bundled", action="store_true", help="start a server with the bundled model")
    parser.add_argument(
        "--install", type=Path, metavar="FOLDER", help="download the other two into a new folder, and end"
    )
    parser.add_argument("--peers", type=Path, metavar="FOLDER", help="use them; ours alone if left out")
    parser.add_argument("--guidellm-processes", type=int, default=10, help="at most; 10 is its own default")
    parser.add_argument("--rate", type=float, default=6)
    parser.add_argument("--num-requests", type=int, default=40)
    parser.add_argument("--input-len", type=int, default=32)
    parser.add_argument("--output-len", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pace", nargs=2, type=float, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.pace:
        asyncio.run(serve_at_a_pace(*args.pace))
    elif args.install:
        install(args.install)
    elif args.peers and (reason := PeerPrograms(args.peers).why_missing()):
        parser.error(reason)
    elif args.bundled:
        with ServerProcess("--model", MODEL, "--served-model-name", "lessons-bundled", *BUNDLED) as server:
            print(table(compare(args, server.url, "lessons-bundled")))
    elif args.url:
        print(table(compare(args, args.url.rstrip("/"), args.model)))
    else:
        with paced_server(args.ttft / 1000, args.itl / 1000) as url:
            print(table(compare(args, url, "paced")))


if __name__ == "__main__":
    main()
