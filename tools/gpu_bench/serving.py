"""`python -m tools.gpu_bench.serving`: what a server costs when the GPU is fast.

256 streams at once, greedy, with a model of Qwen2.5-0.5B's shape: in the process when nothing is read, in the process
with text for each reader, and over HTTP with the engine in a thread and in a process of its own. The clients are in
processes of their own.
"""

import argparse
import asyncio
import json
import multiprocessing
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.serving.http.engine_recipe import EngineRecipe
from lessons_lib.serving.http.server_process import ServerProcess
from lessons_lib.serving.load.client import CompletionsClient, open_loop
from lessons_lib.serving.load.records import LoadRecord, LoadRequest

STREAMS, PROMPT_TOKENS, NEW_TOKENS = 256, 128, 512
CLIENTS = 8  # processes
VOCAB_SIZE, MAX_MODEL_LEN = 151936, 1024


def wide_tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer that has a short word for each id, so that decoding costs what a real one's does."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*alphabet, *(f"Ġ{index:x}" for index in range(vocab_size - len(alphabet)))]
    tokenizer = Tokenizer(models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def save_model(folder: str, is_small: bool) -> None:
    """Random weights in the shape of Qwen2.5-0.5B, and a tokenizer."""
    shape = dict(hidden_size=896, num_hidden_layers=24, num_attention_heads=14, intermediate_size=4864)
    if is_small:
        shape = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128)
    torch.manual_seed(0)
    config = Qwen2Config(
        **shape, num_key_value_heads=2, vocab_size=VOCAB_SIZE, max_position_embeddings=MAX_MODEL_LEN,
        tie_word_embeddings=True, dtype=torch.bfloat16,
    )  # fmt: skip
    Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    wide_tokenizer(VOCAB_SIZE).save_pretrained(folder)


def recipe(folder: str, streams: int) -> EngineRecipe:
    config = EngineConfig(
        max_num_seqs=streams, max_num_batched_tokens=16384, num_blocks=16384, max_model_len=MAX_MODEL_LEN
    )
    return EngineRecipe(folder, None, config)


def in_process(folder: str, requests: list[LoadRequest], rounds: int) -> dict[str, list[float]]:
    """Tokens per second of the engine alone, without and with readers."""
    rates: dict[str, list[float]] = {"alone, nothing is read": [], "alone, with text": []}
    params = [SamplingParams(max_tokens=each.max_tokens, ignore_eos=True) for each in requests]
    with recipe(folder, len(requests))() as engine:
        for index in range(rounds + 1):
            for way, own in rates.items():
                arrived: list[Any] = []
                on_token = arrived.append if way == "alone, with text" else None
                for each, each_params in zip(requests, params):
                    engine.add_request(each.prompt, each_params, on_token=on_token)
                began = time.perf_counter()
                while engine.has_unfinished():
                    engine.step()
                if index:
                    own.append(sum(each.max_tokens for each in requests) / (time.perf_counter() - began))
    return rates


def client(urls: Any, requests: list[LoadRequest], rounds: int, start: Any, results: Any) -> None:
    """One of the processes that read."""
    sender = CompletionsClient(urls.get(), extra_body={"temperature": 0, "ignore_eos": True})
    for _ in range(rounds + 1):
        start.wait()
        log = asyncio.run(open_loop(sender.send, requests, [0.0] * len(requests)))
        results.put(log)


def over_http(folder: str, engine: str, requests: list[LoadRequest], rounds: int) -> list[dict]:
    """The report of each round."""
    sizes = [
        "--max-num-seqs", str(len(requests)), "--max-num-batched-tokens", "16384", "--num-blocks", "16384",
        "--max-model-len", str(MAX_MODEL_LEN), "--max-requests", str(2 * len(requests)), "--no-access-log",
    ]  # fmt: skip
    context = multiprocessing.get_context("spawn")
    start, urls, results = context.Barrier(CLIENTS + 1), context.Queue(), context.Queue()
    processes = [
        context.Process(target=client, args=(urls, requests[index::CLIENTS], rounds, start, results), daemon=True)
        for index in range(CLIENTS)
    ]
    for process in processes:
        process.start()  # they are ready long before the server is
    reports = []
    began = time.perf_counter()
    with ServerProcess("--model", folder, "--engine", engine, *sizes, start_timeout=400) as server:
        print(f"the server was ready after {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
        for _ in processes:
            urls.put(server.url)
        for index in range(rounds + 1):
            start.wait()
            logs = [results.get(timeout=300) for _ in processes]
            records = [record for log in logs for record in log.records]
            found = report(records, max(log.duration for log in logs))
            print(engine, found, file=sys.stderr, flush=True)
            if index:
                reports.append(found)
    return reports


def report(records: list[LoadRecord], duration: float) -> dict[str, float]:
    """Throughput and latencies of a round, named as those of `vllm bench serve`."""
    done = [record for record in records if record.succeeded]
    gaps = np.concatenate([np.diff(record.token_times) for record in done])
    found = {"completed": len(done), "output_throughput": sum(record.output_tokens for record in done) / duration}
    for name, seconds in {"ttft": [record.ttft for record in done], "itl": gaps}.items():
        for label, share in {"median": 50, "p90": 90, "p99": 99}.items():
            found[f"{label}_{name}_ms"] = round(1000 * float(np.percentile(seconds, share)), 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a tiny model and few streams, to try this on a CPU")
    parser.add_argument("--engines", nargs="*", choices=("process", "thread"), default=("process", "thread"))
    parser.add_argument("--rounds", type=int, default=3, help="after one to warm up")
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    streams, new_tokens = (16, 32) if options.small else (STREAMS, NEW_TOKENS)
    tokens = np.random.default_rng(0).integers(300, 10000, (streams, PROMPT_TOKENS))
    requests = [LoadRequest(prompt, PROMPT_TOKENS, new_tokens) for prompt in tokens.tolist()]
    results: dict[str, Any] = {"streams": streams, "prompt_tokens": PROMPT_TOKENS, "new_tokens": new_tokens}
    if torch.cuda.is_available():
        results["device"] = torch.cuda.get_device_name()
    with tempfile.TemporaryDirectory() as folder:
        save_model(folder, options.small)
        results["in the process"] = in_process(folder, requests, options.rounds)
        print(results["in the process"], file=sys.stderr, flush=True)
        torch.cuda.empty_cache()
        for engine in options.engines:
            results[engine] = over_http(folder, engine, requests, options.rounds)
    if options.record:
        options.record.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
