"""What a front costs: tokens per second of an engine with many streams, alone, behind each kind of front, over HTTP.

    python -m tools.serving_bench
    python -m tools.serving_bench --models slow --rounds 5 --json figures.json
    python -m tools.serving_bench --http http://127.0.0.1:8000

The server of HTTP and the client that measures it run on the same cores as the engine.

All ways take turns in one run, so that a slow minute of the machine affects them all. Two cores should be quiet.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.fused_llama import fused_runner
from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.engine.model_runner import ModelRunner
from lessons_lib.engine.request import NewToken
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.models.loading import load_model
from lessons_lib.serving.async_engine import AsyncEngine
from lessons_lib.serving.engine_process import EngineProcess
from lessons_lib.serving.http.server_process import ServerProcess
from lessons_lib.serving.load.client import open_loop
from lessons_lib.serving.load.http_client import CompletionsClient
from lessons_lib.serving.load.shapes import LoadRequest

PLAIN = {"temperature": 0, "ignore_eos": True}
SLEEP = 0.005  # seconds a step
PROMPT_TOKENS = 16
SILENT, WITH_TEXT = "alone, nothing is read", "alone, with text"
THREAD, PROCESS, HTTP = "AsyncEngine", "EngineProcess", "HTTP, engine in a process"


class SleepingRunner(ModelRunner):
    """Takes 5 ms a step and leaves the processor free, as a GPU does. Each token is the one before it plus 1."""

    def forward(self, scheduler_output: Any) -> torch.Tensor:
        time.sleep(SLEEP)
        sequences = list(scheduler_output.num_scheduled_tokens)
        size = self.model.config.get_text_config().vocab_size
        logits = torch.zeros(len(sequences), size)
        tokens = [((each.output_ids or each.prompt_ids)[-1] + 1) % size for each in sequences]
        logits[torch.arange(len(sequences)), torch.tensor(tokens)] = 1.0
        return logits


def sleeping_runner(model: Any, num_blocks: int, config: EngineConfig) -> SleepingRunner:
    return SleepingRunner(model, num_blocks, config.block_size)


RUNNERS: dict[str, Callable | None] = {"slow": sleeping_runner, "bundled": None, "fused": fused_runner}


def make_engine(name: str, streams: int) -> LLMEngine:
    """The engine that is measured."""
    model, tokenizer = load_model()
    config = EngineConfig(max_num_seqs=streams, num_blocks=streams * 20, make_runner=RUNNERS[name])
    return LLMEngine(model, tokenizer, config)


def workload(streams: int, max_tokens: int) -> list[tuple[list[int], SamplingParams]]:
    """A prompt for each stream, none like another."""
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return [
        ([(5 + 3 * stream + 7 * place) % 500 for place in range(PROMPT_TOKENS)], params) for stream in range(streams)
    ]


# Each way returns the tokens of each stream.


async def run_alone(engine: LLMEngine, with_text: bool, load: list) -> list[list[int]]:
    arrived: dict[str, list[NewToken]] = {}
    ids = []
    for prompt, params in load:
        own: list[NewToken] = []
        ids.append(engine.add_request(prompt, params, on_token=own.append if with_text else None))
        arrived[ids[-1]] = own
    outputs = {}
    while engine.has_unfinished():
        outputs.update({output.request_id: output for output in engine.step()})
    return [outputs[name].token_ids for name in ids]


async def run_front(front: AsyncEngine, load: list) -> list[list[int]]:
    async def read(prompt: list[int], params: SamplingParams) -> list[int]:
        tokens, text = [], []
        async with await front.add(prompt, params) as stream:
            async for new in stream:
                for token in new:
                    tokens.append(token.token)
                    text.append(token.text)
        "".join(text)
        return tokens

    return list(await asyncio.gather(*[read(*each) for each in load]))


async def run_http(url: str, load: list) -> list[list[int]]:
    """Only the count of the tokens is right."""
    requests = [LoadRequest(prompt, len(prompt), params.max_tokens) for prompt, params in load]
    client = CompletionsClient(url, extra_body=PLAIN)
    log = await open_loop(client.send, requests, [0.0] * len(requests))
    for record in log.records:
        if not record.succeeded:
            raise RuntimeError(f"request {record.request_id} failed: {record.error}")
    return [[0] * record.output_tokens for record in log.records]


async def tokens_over_http(url: str, load: list) -> list[list[int]]:
    """The tokens of each stream."""
    import httpx

    async def read(client: httpx.AsyncClient, prompt: list[int], params: SamplingParams) -> list[int]:
        body = PLAIN | dict(prompt=prompt, max_tokens=params.max_tokens, stream=True, return_token_ids=True)
        tokens: list[int] = []
        async with client.stream("POST", f"{url}/v1/completions", json=body) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    for choice in json.loads(line[len("data: ") :])["choices"]:
                        tokens += choice["token_ids"]
        return tokens

    async with httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=len(load))) as client:
        return list(await asyncio.gather(*[read(client, *each) for each in load]))


async def timed(way: Callable[[list], Awaitable[list[list[int]]]], load: list) -> tuple[float, list[list[int]]]:
    """Tokens per second, and the tokens."""
    started = time.perf_counter()
    tokens = await way(load)
    return sum(map(len, tokens)) / (time.perf_counter() - started), tokens


async def compare(name: str, streams: int, max_tokens: int, rounds: int) -> dict:
    """All ways of one model in turns, the first round to warm up."""
    from tools.serving_bench import make_engine as importable  # this module is called __main__ here

    load = workload(streams, max_tokens)
    threads = torch.get_num_threads()
    with make_engine(name, streams) as engine, ServerProcess(name, streams, module="tools.bench_server") as server:
        async with (
            AsyncEngine(engine) as thread,
            EngineProcess(partial(importable, name, streams), num_threads=threads) as process,
        ):
            ways: dict[str, Callable[[list], Awaitable[list[list[int]]]]] = {
                SILENT: partial(run_alone, engine, False),
                WITH_TEXT: partial(run_alone, engine, True),
                THREAD: partial(run_front, thread),
                PROCESS: partial(run_front, process),
                HTTP: partial(run_http, server.url),
            }
            found = await rounds_of(name, ways, load, rounds)
            found["same"] &= await tokens_over_http(server.url, load) == await run_alone(engine, False, load)
            return found


async def compare_http(url: str, streams: int, max_tokens: int, rounds: int) -> dict:
    """A server that runs already."""
    return await rounds_of(url, {HTTP: partial(run_http, url)}, workload(streams, max_tokens), rounds)


async def rounds_of(name: str, ways: dict, load: list, rounds: int) -> dict:
    """Each way once a round.

    Returns:
        dict: "model", "streams", "same" (whether all ways gave the same tokens), and "ways": for each its "rates" in
            tokens per second and its "ratios" to the first two ways, one for each round.
    """
    rates: dict[str, list[float]] = {way: [] for way in ways}
    answers: list[list[list[int]]] = []
    for index in range(rounds + 1):
        for way, run in ways.items():
            rate, tokens = await timed(run, load)
            answers.append(tokens)
            if index:
                rates[way].append(rate)
    return {
        "model": name,
        "streams": len(load),
        "same": all(tokens == answers[0] for tokens in answers if any(map(any, tokens))),
        "ways": {way: {"rates": rates[way], "ratios": ratios(rates, way)} for way in ways},
    }


def ratios(rates: dict[str, list[float]], way: str) -> dict[str, list[float]]:
    """To each of the ways without a front, in the same round."""
    bases = [base for base in (SILENT, WITH_TEXT) if base in rates]
    return {base: [own / other for own, other in zip(rates[way], rates[base])] for base in bases}


def table(found: dict) -> str:
    """Medians of the rounds."""
    lines = [f"{found['model']}, {found['streams']} streams, {'same tokens' if found['same'] else 'TOKENS DIFFER'}"]
    for way, one in found["ways"].items():
        shares = [f"{statistics.median(values):6.1%} of {base!r}" for base, values in one["ratios"].items()]
        lines.append("  ".join([f"{way:20}", f"{statistics.median(one['rates']):8,.0f} tokens/s", *shares]))
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=RUNNERS, default=["slow", "bundled"])
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--http", metavar="URL", help="measure a server that runs already, instead")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args(arguments)
    sizes = (options.streams, options.max_tokens, options.rounds)
    load_average = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    print(f"{os.cpu_count()} cores, load average {load_average}, torch threads {torch.get_num_threads()}")
    if options.http:
        results = [asyncio.run(compare_http(options.http, *sizes))]
    else:
        results = [asyncio.run(compare(name, *sizes)) for name in options.models]
    for found in results:
        print(table(found))
    if options.json:
        options.json.write_text(json.dumps({"load_average": load_average, "results": results}, indent=1))
    if not all(found["same"] for found in results):
        sys.exit("The tokens differ.")


if __name__ == "__main__":
    main()
