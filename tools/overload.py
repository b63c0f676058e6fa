"""`python -m tools.overload`: find the knee of a server with the bundled model, then offer three times as much.

A server that refuses early should keep the goodput of its knee; one that takes everything on should lose it. Both run
one after the other, the engine in a process of its own, on 127.0.0.1; the client shares their cores. On a busy machine
the capacity itself changes from minute to minute, so each round measures the knee's rate again between the overloads.
"""

import argparse
import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any

from lessons_lib.serving.load.arrivals import poisson_arrivals
from lessons_lib.serving.load.client import open_loop
from lessons_lib.serving.load.goodput import Target
from lessons_lib.serving.load.http_client import CompletionsClient
from lessons_lib.serving.load.knee import find_knee, keeps_goodput
from lessons_lib.serving.load.records import LoadLog
from lessons_lib.serving.load.report import report
from lessons_lib.serving.load.shapes import random_requests

ROOT = Path(__file__).resolve().parent.parent
NO_LIMIT = ("--max-requests", "1000000", "--max-prompt-tokens", "1000000000")
COLUMNS = ("offered_rate", "goodput", "completed", "failed", "median_ttft_ms", "p99_ttft_ms", "median_tpot_ms")


@contextmanager
def serving(*options: str) -> Iterator[str]:
    """A server with the bundled model in a process of its own; yields its URL.

    Raises:
        RuntimeError: it does not start.
    """
    model = str(ROOT / "lessons_lib/assets/model")
    command = [sys.executable, "-m", "lessons_lib.serving", "--model", model, "--port", "0", "--no-access-log"]
    command += ["--shutdown-timeout", "1", *options]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            said = []
            for line in process.stdout:
                said.append(line)
                if found := re.search(r"Serving .* at (http://\S+)", line):
                    yield found[1]
                    return
            raise RuntimeError(f"the server did not start: {''.join(said)[-2000:]}")
        finally:
            process.terminate()
            process.wait(60)


def offer(url: str, rate: float, args: argparse.Namespace, seed: int) -> LoadLog:
    """An open loop at this rate (per second)."""
    count = ceil(rate * args.seconds)
    requests = random_requests(
        count, args.input_len, args.output_len, range_ratio=args.range_ratio, vocab_size=4096, seed=seed
    )
    client = CompletionsClient(url, extra_body={"ignore_eos": True})
    arrivals = poisson_arrivals(rate, count, seed)
    return asyncio.run(open_loop(client.send, requests, arrivals, window=count / rate, rate=rate, patience=120))


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """The knee, and for each round the report at the knee's rate and, at three times that, with and without limits."""
    target = Target.parse(args.goodput)
    engine = ["--max-num-seqs", str(args.max_num_seqs)]
    limits = ["--max-requests", str(args.max_requests), "--max-prompt-tokens", str(args.max_prompt_tokens)]
    with serving(*engine, *limits) as limited, serving(*engine, *NO_LIMIT) as unlimited:
        for url in (limited, unlimited):
            offer(url, 2.0, args, seed=10_000)  # compiles and warms up

        seeds = iter(range(10_000))

        def run(rate: float) -> LoadLog:
            log = offer(unlimited, rate, args, next(seeds))
            print(f"{rate:8.2f} requests/s offered: {report(log, target)['goodput']:8.2f} good", flush=True)
            return log

        knee = find_knee(run, keeps_goodput(target, args.share), args.start, precision=args.precision, votes=args.votes)
        print(f"The knee is at {knee.rate:.2f} requests/s; {knee.beyond:.2f} are too many.", flush=True)
        cases = {
            "knee": (unlimited, knee.rate),
            "3 x knee, refusing": (limited, 3 * knee.rate),
            "3 x knee, taking all": (unlimited, 3 * knee.rate),
        }
        rows: dict[str, list[dict[str, Any]]] = {name: [] for name in cases}
        for _ in range(args.rounds):
            for name, (url, rate) in cases.items():
                rows[name].append(report(offer(url, rate, args, next(seeds)), target))
                print(f"{name}: {rows[name][-1]['goodput']:.2f} good", flush=True)
    return {"knee": knee.rate, "beyond": knee.beyond, "rows": rows}


def table(rows: dict[str, list[dict[str, Any]]]) -> str:
    """Medians over the rounds, and the share of the knee's goodput."""
    lines = [f"{'':<22}" + "".join(f"{name:>16}" for name in (*COLUMNS, "of the knee's"))]
    at_knee = median(row["goodput"] for row in rows["knee"])
    for name, rounds in rows.items():
        cells = []
        for column in COLUMNS:
            values = [row[column] for row in rounds if row[column] is not None]
            cells.append(f"{median(values):>16.2f}" if values else f"{'-':>16}")
        share = median(row["goodput"] for row in rounds) / at_knee if at_knee else float("nan")
        lines.append(f"{name:<22}" + "".join(cells) + f"{share:>16.0%}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.overload", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--goodput", nargs="+", default=["ttft:2000", "tpot:250"], metavar="NAME:MS")
    parser.add_argument("--share", type=float, default=0.9, help="of the requests that are good at the knee")
    parser.add_argument("--start", type=float, default=4, help="rate at which the search begins")
    parser.add_argument("--precision", type=float, default=0.1)
    parser.add_argument("--votes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=15, help="of each run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--input-len", type=int, default=48)
    parser.add_argument("--output-len", type=int, default=24)
    parser.add_argument("--range-ratio", type=float, default=0.5)
    parser.add_argument("--max-num-seqs", type=int, default=8)
    parser.add_argument("--max-requests", type=int, default=12, help="of the server that refuses")
    parser.add_argument("--max-prompt-tokens", type=int, default=1024)
    parser.add_argument("--save", type=Path)
    args = parser.parse_args(arguments)
    measured = measure(args)
    print(table(measured["rows"]))
    if args.save:
        args.save.write_text(json.dumps(measured) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
