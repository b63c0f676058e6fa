"""`python -m tools.gpu_bench.parallel`: what a second GPU buys: cut matrices (tensor parallel), or a second replica.

First, the tokens of two GPUs are compared with those of one, in float32, from CUDA graphs. Then the same requests are
served by one GPU, by two that share the model, and by two replicas with half of the requests each. Needs two GPUs with
NCCL. Decodes come from CUDA graphs and nothing is compiled, in all three.
"""

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.gpu_model_runner import GPUModelRunner, gpu_model_runner
from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.serving.parallel_engine import ParallelEngine, parallel_engine
from tools.gpu_bench.models import NoWords, random_model

NUM_BLOCKS, BLOCK_SIZE, MAX_MODEL_LEN = 4096, 16, 1024
PROMPT_TOKENS, NEW_TOKENS = 256, 256
BATCHES = (1, 16, 64)
SHAPES = ("Qwen2.5-0.5B", "Llama-3.1-8B")


def tiny_float32() -> PreTrainedModel:
    sizes = dict(hidden_size=256, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=2)
    config = Qwen2Config(
        **sizes, intermediate_size=512, vocab_size=512, max_position_embeddings=MAX_MODEL_LEN, initializer_range=0.3
    )
    return Qwen2ForCausalLM(config)


def load(make: Callable[[], PreTrainedModel], device: str) -> tuple[PreTrainedModel, Any]:
    """Random weights, made on this process's GPU, the same on each."""
    torch.manual_seed(0)
    with torch.device("cuda", torch.cuda.current_device()):
        return make().eval().requires_grad_(False), NoWords()


def make_runner(model: PreTrainedModel, num_blocks: int, config: EngineConfig) -> GPUModelRunner:
    """Of a module, so that other processes can import it. The sums over all GPUs are part of its graphs."""
    return gpu_model_runner(compiled=False)(model, num_blocks, config)


CONFIG = EngineConfig(
    num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, max_num_seqs=max(BATCHES), max_num_batched_tokens=8192,
    max_model_len=MAX_MODEL_LEN, share_prefixes=False, probe=False, overlap=True, make_runner=make_runner,
)  # fmt: skip


def requests(count: int, vocab_size: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(count)
    return torch.randint(3, vocab_size, (count, PROMPT_TOKENS), generator=generator).tolist()


def served(engine: LLMEngine, prompts: list[list[int]], new_tokens: int = NEW_TOKENS) -> dict:
    """Serve all prompts: tokens per second of the whole run, and of its decodes alone."""
    steps: list[Any] = []
    engine.core.observers[:] = [lambda step, requests: steps.append(step)]
    began = time.perf_counter()
    outputs = engine.generate(prompts, SamplingParams(max_tokens=new_tokens, ignore_eos=True))
    seconds = time.perf_counter() - began
    for output in outputs:
        if output.error:
            raise output.error
    decodes = [step for step in steps if list(step.output.num_scheduled_tokens.values()) == [1] * len(prompts)]
    starts = [step.watch.start for step in decodes]
    gaps = sorted(later - earlier for earlier, later in pairwise(starts))
    return {
        "tokens": [output.token_ids for output in outputs],
        "tokens_per_s": sum(len(output.token_ids) for output in outputs) / seconds,
        "decode_ms": 1000 * gaps[len(gaps) // 2] if gaps else None,
    }


def measured(engine: LLMEngine) -> dict[int, dict]:
    vocab_size = engine.model.config.vocab_size
    for count in BATCHES:
        served(engine, requests(count, vocab_size), new_tokens=8)  # captures
    return {count: served(engine, requests(count, vocab_size)) for count in BATCHES}


def one_gpu(make: Callable[[], PreTrainedModel]) -> LLMEngine:
    return LLMEngine(*load(make, "cuda"), CONFIG)


def two_gpus(make: Callable[[], PreTrainedModel]) -> ParallelEngine:
    return parallel_engine(partial(load, make), CONFIG, world_size=2, device="cuda")


def replica(index: int, make: Callable[[], PreTrainedModel], start: Any, results: Any) -> None:
    """One of two replicas: half of the requests of each batch. Both begin each batch together."""
    torch.cuda.set_device(index)
    with one_gpu(make) as engine:
        vocab_size = engine.model.config.vocab_size
        halves = {count: requests(count, vocab_size)[index::2] for count in BATCHES if count > 1}
        for half in halves.values():
            served(engine, half, new_tokens=8)
        for count, half in halves.items():
            start.wait()
            began = time.perf_counter()
            one = served(engine, half)
            results.put((count, time.perf_counter() - began, one["decode_ms"]))


def two_replicas(make: Callable[[], PreTrainedModel]) -> dict[int, dict]:
    context = multiprocessing.get_context("spawn")
    start, results = context.Barrier(2), context.Queue()
    processes = [context.Process(target=replica, args=(index, make, start, results)) for index in range(2)]
    for process in processes:
        process.start()
    found: dict[int, list] = {}
    for _ in range(2 * sum(count > 1 for count in BATCHES)):
        count, seconds, decode_ms = results.get(timeout=300)
        found.setdefault(count, []).append((seconds, decode_ms))
    for process in processes:
        process.join()
    return {
        count: {
            "tokens_per_s": count * NEW_TOKENS / max(seconds for seconds, _ in each),
            "decode_ms": max(decode_ms for _, decode_ms in each),
        }
        for count, each in found.items()
    }


def without_tokens(found: dict[int, dict]) -> dict[int, dict]:
    return {count: {name: one[name] for name in ("tokens_per_s", "decode_ms")} for count, one in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="*", choices=SHAPES, default=SHAPES)
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    if torch.cuda.device_count() < 2:
        sys.exit("This needs two GPUs.")
    results: dict[str, Any] = {"device": torch.cuda.get_device_name(0), "torch": torch.__version__}
    with one_gpu(tiny_float32) as engine:
        alone = measured(engine)
    with two_gpus(tiny_float32) as engine:
        together = measured(engine)
        results["graphs"] = engine.runner.store.num_captured
    results["equal in float32"] = all(alone[count]["tokens"] == together[count]["tokens"] for count in BATCHES)
    print("equal in float32:", results["equal in float32"], flush=True)
    for name in options.shapes:
        make, of_shape = partial(random_model, name, MAX_MODEL_LEN), {}
        with one_gpu(make) as engine:
            of_shape["one GPU"] = without_tokens(measured(engine))
        del engine
        torch.cuda.empty_cache()
        print(name, of_shape, flush=True)
        with two_gpus(make) as engine:
            of_shape["two GPUs, one model"] = without_tokens(measured(engine))
        del engine
        torch.cuda.empty_cache()
        print(name, of_shape, flush=True)
        of_shape["two replicas"] = two_replicas(make)
        results[name] = of_shape
        print(name, of_shape, flush=True)
    if options.record:
        options.record.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
