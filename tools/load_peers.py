"""`python -m tools.load_peers`: the same trace sent by our load generator, `vllm bench serve` and `guidellm`, in turns.

Neither is needed by the course; install them in environments of their own:

    pip download --no-deps vllm==0.33.0      # unpack it; only its Python files are used, without CUDA
    pip install guidellm==0.8.1

`--vllm-path` is the folder with the folder `vllm`, `--vllm-python` an interpreter that has what it imports.

Without `--url`, the server is one whose times are known: the first token after `--ttft` ms, then one each `--itl` ms.
guidellm's definitions are others: its ITL is averaged over each request, which is TPOT here, and its TPOT is the
end-to-end latency divided by all tokens. The table uses the definitions of `vllm bench serve`.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from lessons_lib.serving.load.arrivals import poisson_arrivals

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "lessons_lib/assets/model"
COLUMNS = ("completed", "ttft", "tpot", "itl", "e2el", "requests/s", "tokens/s")
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


VLLM_MAIN = """\
import sys
sys.path.insert(0, sys.argv.pop(1))
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.benchmarks.serve import add_cli_args, main
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


def vllm_command(python: str, path: Path, url: str, model: str, trace: Path, result: Path, count: int) -> list[str]:
    """`vllm bench serve`, from its Python files."""
    command = [python, "-c", VLLM_MAIN, str(path), "--backend", "openai", "--base-url", url, "--model", model]
    command += ["--tokenizer", str(MODEL), "--dataset-name", "timed_trace", "--dataset-path", str(trace)]
    command += ["--timed-trace-sec-multiplier", "0.001", "--num-prompts", str(count), "--ignore-eos"]
    command += ["--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,90,99", "--disable-tqdm"]
    return [*command, "--save-result", "--result-filename", str(result)]


def guidellm_command(program: str, url: str, model: str, trace: Path, result: Path) -> list[str]:
    """`guidellm run` with the profile that replays a trace."""
    backend = {"kind": "openai_http", "target": url, "model": model, "request_format": "/v1/completions"}
    data = {"kind": "trace_synthetic", "source": {"kind": "json_file", "path": str(trace)}, "time_scale": 0.001}
    command = [program, "run", "--backend", json.dumps(backend | {"http2": False}), "--profile", "kind=replay"]
    command += ["--data", json.dumps(data), "--tokenizer", f"kind=hf_auto,model={MODEL}", "--disable-console"]
    return [*command, "--output", f"kind=json,path={result}"]


def read_vllm(saved: dict[str, Any]) -> Row:
    """A row of the table, of a result of `vllm bench serve` or ours: their fields are the same."""
    row: Row = {name: saved[f"median_{name}_ms"] for name in ("ttft", "tpot", "itl", "e2el")}
    row["completed"] = saved["completed"]
    return row | {"requests/s": saved["request_throughput"], "tokens/s": saved["output_throughput"]}


def read_guidellm(saved: dict[str, Any]) -> Row:
    """A row of the table, of a report of guidellm, computed from its requests."""
    benchmark = saved["benchmarks"][0]
    requests = benchmark["requests"]["successful"]
    return {
        "completed": len(requests),
        "ttft": median(request["time_to_first_token_ms"] for request in requests),
        "tpot": median(request["inter_token_latency_ms"] for request in requests),
        "itl": None,
        "e2el": median(request["request_latency"] * 1000 for request in requests),
        "requests/s": len(requests) / benchmark["duration"],
        "tokens/s": sum(request["output_tokens"] for request in requests) / benchmark["duration"],
    }


def run(command: list[str], result: Path, read: Callable[[dict[str, Any]], Row]) -> Row:
    """Run a load generator, and read what it wrote.

    Raises:
        RuntimeError: it failed; with the end of its output.
    """
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT) if command[0] == sys.executable else ""}
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
            values = [value for row in rounds if (value := row[column]) is not None]
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


def compare(args: argparse.Namespace, url: str, model: str) -> dict[str, list[Row]]:
    """Rows of each load generator that is there, one for each round."""
    rows: dict[str, list[Row]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(args.rounds):
            trace, result = Path(folder) / "trace.jsonl", Path(folder) / "result.json"
            write_trace(trace, args.rate, args.num_requests, args.input_len, args.output_len, args.seed)
            commands = {"ours": (our_command(url, trace, result, args.seed + turn), read_vllm)}
            if args.vllm_path:
                python, path = args.vllm_python, args.vllm_path.resolve()
                commands["vllm bench"] = (
                    vllm_command(python, path, url, model, trace, result, args.num_requests),
                    read_vllm,
                )
            if args.guidellm:
                commands["guidellm"] = (guidellm_command(args.guidellm, url, model, trace, result), read_guidellm)
            for name, (command, read) in commands.items():
                rows.setdefault(name, []).append(run(command, result, read))
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
    parser.add_argument("--vllm-path", type=Path)
    parser.add_argument("--vllm-python", default=sys.executable)
    parser.add_argument("--guidellm", help="the program")
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
    elif args.url:
        print(table(compare(args, args.url.rstrip("/"), args.model)))
    else:
        with paced_server(args.ttft / 1000, args.itl / 1000) as url:
            print(table(compare(args, url, "paced")))


if __name__ == "__main__":
    main()
