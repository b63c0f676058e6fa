"""`python -m lessons_lib.serving.load --url http://127.0.0.1:8000 --rate 10`: load a server, and say how it did."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from math import ceil
from pathlib import Path

from lessons_lib.serving.load.arrivals import constant_arrivals, gamma_arrivals, trace_arrivals
from lessons_lib.serving.load.client import closed_loop, open_loop
from lessons_lib.serving.load.goodput import Target
from lessons_lib.serving.load.http_client import CompletionsClient, CutStream
from lessons_lib.serving.load.knee import find_knee, keeps_goodput
from lessons_lib.serving.load.records import LoadLog
from lessons_lib.serving.load.report import as_text, report
from lessons_lib.serving.load.shapes import LoadRequest, random_requests, text_requests, trace_requests


def parser() -> argparse.ArgumentParser:
    """The options; named as those of `vllm bench serve` where there are such."""
    options = argparse.ArgumentParser(prog="python -m lessons_lib.serving.load", description=__doc__)
    server = options.add_argument_group("the server")
    server.add_argument("--url", default="http://127.0.0.1:8000", help="(default: %(default)s)")
    server.add_argument("--model", help="its name; the first that the server offers if left out")
    server.add_argument("--api-key")
    server.add_argument("--timeout", type=float, default=600, help="seconds for one request (default: %(default)s)")
    when = options.add_argument_group("when requests arrive")
    when.add_argument("--arrivals", choices=["poisson", "bursty", "constant", "closed"], default="poisson")
    when.add_argument("--rate", type=float, default=4, help="requests per second (default: %(default)s)")
    when.add_argument("--burstiness", type=float, default=0.25, help="for bursty; 1 is poisson (default: %(default)s)")
    when.add_argument("--users", type=int, default=8, help="for closed: users at a time (default: %(default)s)")
    when.add_argument("--trace", type=Path, help="a file of arrival times instead: seconds, or JSON with timestamps")
    number = when.add_mutually_exclusive_group()
    number.add_argument("--num-requests", type=int, default=None, help="how many (default: 100)")
    number.add_argument("--seconds", type=float, help="offer requests for as long as this, instead")
    what = options.add_argument_group("what they ask")
    what.add_argument("--input-len", type=int, default=32, help="tokens of a prompt (default: %(default)s)")
    what.add_argument("--output-len", type=int, default=16, help="tokens of a completion (default: %(default)s)")
    what.add_argument("--range-ratio", type=float, default=0.0, help="lengths vary by this share (default: 0)")
    what.add_argument("--vocab-size", type=int, default=256, help="ids of random prompts are below (default: 256)")
    what.add_argument("--prompts", type=Path, help="a file with one prompt per line, instead of random tokens")
    what.add_argument("--stop-at-eos", action="store_true", help="let completions end early")
    what.add_argument("--seed", type=int, default=0)
    goal = options.add_argument_group("what is promised")
    goal.add_argument("--goodput", nargs="+", metavar="NAME:MS", help="targets, such as ttft:500 tpot:50 e2el:2000")
    goal.add_argument("--search", action="store_true", help="find the highest rate that keeps the promise")
    goal.add_argument("--share", type=float, default=0.9, help="of the requests that must be good (default: 0.9)")
    goal.add_argument("--votes", type=int, default=2, help="equal verdicts that decide about a rate (default: 2)")
    options.add_argument("--save", type=Path, metavar="FILE", help="write the report and all records as JSON")
    return options


def requests_of(args: argparse.Namespace, count: int) -> list[LoadRequest]:
    """What the options ask for, `count` times."""
    if args.prompts:
        texts = [line for line in args.prompts.read_text(encoding="utf-8").splitlines() if line.strip()]
        return text_requests(count, texts, args.output_len)
    lengths = (args.input_len, args.output_len)
    return random_requests(count, *lengths, range_ratio=args.range_ratio, vocab_size=args.vocab_size, seed=args.seed)


async def load(args: argparse.Namespace, client: CompletionsClient, rate: float) -> LoadLog:
    """One run, as the options say, at this rate."""
    count = ceil(rate * args.seconds) if args.seconds else args.num_requests or 100
    if args.arrivals == "closed":
        return await closed_loop(client.send, requests_of(args, count), args.users)
    if args.trace:
        arrivals = trace_arrivals(args.trace)
        lengths = (args.input_len, args.output_len)
        requests = trace_requests(args.trace, lengths, vocab_size=args.vocab_size, seed=args.seed)
        if args.prompts:
            requests = requests_of(args, len(arrivals))
        return await open_loop(client.send, requests[: args.num_requests], arrivals[: args.num_requests])
    if args.arrivals == "constant":
        arrivals = constant_arrivals(rate, count)
    else:
        arrivals = gamma_arrivals(rate, count, args.burstiness if args.arrivals == "bursty" else 1.0, args.seed)
    return await open_loop(client.send, requests_of(args, count), arrivals, window=count / rate, rate=rate)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, 1 if no request succeeded, 2 if there is no server or an option is wrong."""
    options = parser()
    args = options.parse_args(arguments)
    if args.search and (not args.goodput or args.trace or args.arrivals == "closed"):
        options.error(
            "--search changes the rate until --goodput is missed: it needs targets, and no trace or closed loop."
        )
    try:
        target = Target.parse(args.goodput) if args.goodput else None
        extra_body = {} if args.stop_at_eos else {"ignore_eos": True}
        client = CompletionsClient(
            args.url, args.model, api_key=args.api_key, extra_body=extra_body, timeout=args.timeout
        )
        if client.model is None:
            client.model = asyncio.run(client.models())[0]
        if args.search:
            assert target is not None
            log = search(args, client, target)
        else:
            log = asyncio.run(load(args, client, args.rate))
    except (OSError, ValueError, CutStream) as error:
        print(f"{args.url}: {error}", file=sys.stderr)
        return 2
    numbers = report(log, target)
    print(as_text(numbers))
    if args.save:
        log.save(args.save, **numbers)
    return 0 if numbers["completed"] else 1


def search(args: argparse.Namespace, client: CompletionsClient, target: Target) -> LoadLog:
    """Find the knee, printing each run; returns a run at the knee."""

    def run(rate: float) -> LoadLog:
        log = asyncio.run(load(args, client, rate))
        numbers = report(log, target)
        print(f"{rate:8.2f} requests/s offered: {numbers['goodput']:8.2f} good", flush=True)
        return log

    knee = find_knee(run, keeps_goodput(target, args.share), args.rate, votes=args.votes)
    print(f"The knee is at {knee.rate:.2f} requests/s; {knee.beyond:.2f} are too many.")
    return knee.log


if __name__ == "__main__":
    sys.exit(main())
