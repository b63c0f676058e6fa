"""What a step costs on the host: the engine with a model that computes nothing, so that only its own work is left.

    python -m tools.host_bench
    python -m tools.host_bench --against OTHER_CHECKOUT    # both in turns, each run in a process of its own
    python -m tools.host_bench --only decode --profile     # which functions take the time

All times are CPU time of the process, which other processes change little.
"""

import argparse
import cProfile
import io
import json
import os
import pstats
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from lessons_lib.attention.forward_batch import ForwardBatch
from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.gpu_model_runner import GPUModelRunner
from lessons_lib.engine.input_batch import forward_batch
from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.engine.model_runner import ModelRunner
from lessons_lib.engine.overlapped_engine import OverlappedEngine
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.models.tiny_models import tiny_model
from tools.gpu_bench.engine_run import NoWords

MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS, NUM_BLOCKS, BLOCK_SIZE, MAX_MODEL_LEN = 256, 16384, 32768, 16, 2048
Requests = list[tuple[list[int], int]]  # prompt, and how many tokens the answer has


class IdleRunner(ModelRunner):
    """Builds the batch of each step, and computes nothing: all logits are zeros."""

    def __init__(self, model: Any, num_blocks: int, config: EngineConfig):
        super().__init__(model, 1, config.block_size)
        self.logits = torch.zeros(config.max_num_seqs, 2)

    def forward(self, scheduler_output: Any) -> torch.Tensor:
        forward_batch(scheduler_output, self.tables, self.cache.block_size)
        return self.logits[: len(scheduler_output.num_scheduled_tokens)]


class IdleGPURunner(GPUModelRunner):
    """The same for the engine of a GPU: steps are padded and copied to the inputs of a graph."""

    def __init__(self, model: Any, num_blocks: int, config: EngineConfig):
        super().__init__(
            model, num_blocks, config.block_size, max_num_seqs=config.max_num_seqs, max_model_len=config.max_model_len,
            compiled=False,
        )  # fmt: skip
        self.logits = torch.zeros(config.max_num_seqs, 2)

    def compute(self, batch: ForwardBatch) -> torch.Tensor:
        return self.logits[: len(batch.logits_index)]

    def replay(self, store: Any, *size_and_batch: Any) -> torch.Tensor:
        *size, batch = size_and_batch  # older checkouts captured decodes only, and gave no size
        is_mixed = size and size[0].num_tokens is not None
        (self.mixed_buffers if is_mixed else self.buffers).fill(batch)
        return self.logits[: len(batch.context_lens)]


ENGINES: dict[str, tuple[type[LLMEngine], Callable[..., ModelRunner]]] = {
    "LLMEngine": (LLMEngine, IdleRunner),
    "OverlappedEngine": (OverlappedEngine, IdleGPURunner),
}


def decodes() -> Requests:
    """256 sequences with contexts of 1,000 tokens, which decode all the time."""
    rng = random.Random(0)
    return [([rng.randrange(97) for _ in range(1000)], 200) for _ in range(MAX_NUM_SEQS)]


def churn() -> Requests:
    """1,024 requests with prompts and answers of 10 to 200 tokens: most steps have prompts and decodes."""
    rng = random.Random(0)
    return [([rng.randrange(97) for _ in range(rng.randint(10, 200))], rng.randint(10, 200)) for _ in range(1024)]


def queue() -> Requests:
    """16,000 short requests at once."""
    return [([index % 97] * 8, 32) for index in range(16000)]


def long_contexts() -> Requests:
    """Eight sequences with contexts of 131,000 tokens."""
    return [([index] * 131_000, 200) for index in range(8)]


def documents() -> Requests:
    """64 prompts of 2,048 to 8,192 tokens at once, with short answers: every step is full of prompts' tokens."""
    rng = random.Random(0)
    return [([rng.randrange(97) for _ in range(rng.randint(2048, 8192))], rng.randint(16, 64)) for _ in range(64)]


WORKLOADS: dict[str, Callable[[], Requests]] = {
    "decode": decodes, "churn": churn, "queue": queue, "long": long_contexts, "documents": documents,
}  # fmt: skip


def make_engine(kind: str, max_model_len: int) -> LLMEngine:
    """An engine whose model computes nothing."""
    engine, runner = ENGINES[kind]
    config = EngineConfig(
        max_num_seqs=MAX_NUM_SEQS if max_model_len == MAX_MODEL_LEN else 8, num_blocks=2 * NUM_BLOCKS,
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS, block_size=BLOCK_SIZE, max_model_len=max_model_len,
        make_runner=runner, probe=False,
    )  # fmt: skip
    return engine(tiny_model("qwen2", context=max_model_len), NoWords(), config)  # type: ignore[arg-type]


def run(kind: str, requests: Requests) -> tuple[float, dict[str, float]]:
    """Serve all requests once.

    Returns:
        (seconds, parts): CPU time of all, and microseconds a step of each part: those of EngineStep, and "generate",
        what is left over.
    """
    longest = max(len(prompt) for prompt, _ in requests)
    engine = make_engine(kind, MAX_MODEL_LEN if longest < MAX_MODEL_LEN else 131_328)
    engine.clock = time.process_time
    params = [SamplingParams(max_tokens=count, ignore_eos=True) for _, count in requests]
    began = time.process_time()
    outputs = engine.generate([prompt for prompt, _ in requests], params)
    seconds = time.process_time() - began
    assert all(len(output.token_ids) == count for output, (_, count) in zip(outputs, requests))
    metrics = engine.metrics
    parts = {part: 1e6 * value / metrics.steps for part, value in metrics.part_seconds.items()}
    parts["generate"] = 1e6 * seconds / metrics.steps - sum(parts.values())
    engine.close()
    return seconds, {"all": 1e6 * seconds / metrics.steps, **parts, "steps": metrics.steps}


def profiled(kind: str, requests: Requests, lines: int = 45) -> str:
    """The functions that take the most time themselves."""
    profile, text = cProfile.Profile(time.process_time), io.StringIO()
    profile.runcall(run, kind, requests)
    pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(lines)
    return text.getvalue()


def in_a_process(checkout: Path, kind: str, workload: str) -> dict[str, float]:
    """One run with the code of a checkout."""
    search = {**os.environ, "PYTHONPATH": str(checkout)}
    loaded = (  # this file, whatever the checkout has
        f"import importlib.util as u, sys; s = u.spec_from_file_location('tools.host_bench', {__file__!r}); "
        "b = u.module_from_spec(s); sys.modules['tools.host_bench'] = b; s.loader.exec_module(b); "
        f"print(b.json.dumps(b.run({kind!r}, b.WORKLOADS[{workload!r}]())[1]))"
    )
    found = subprocess.run(
        [sys.executable, "-c", loaded], cwd=checkout, env=search, check=True, text=True, stdout=subprocess.PIPE
    )
    return dict(json.loads(found.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, default=["decode", "churn"])
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--against", type=Path, help="another checkout, whose code is measured in turns with this one")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    here = Path(__file__).resolve().parents[1]
    checkouts = {"here": here, **({"there": options.against.resolve()} if options.against else {})}
    for workload in options.only:
        for kind in options.engines:
            if options.profile:
                print(f"{workload}, {kind}", profiled(kind, WORKLOADS[workload]()), sep="\n")
                continue
            found: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
            for _ in range(options.rounds):
                for name, checkout in checkouts.items():
                    found[name].append(in_a_process(checkout, kind, workload))
            for name, runs in found.items():
                medians = {part: statistics.median(run[part] for run in runs) for part in runs[0]}
                told = ", ".join(f"{part} {value:,.0f}" for part, value in medians.items())
                print(f"{workload}, {kind}, {name}: µs a step: {told}", flush=True)


if __name__ == "__main__":
    main()
