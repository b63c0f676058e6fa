"""`python -m tools.gpu_bench.workloads`: the whole engine, in its fastest mode, on workloads of many kinds.

    python -m tools.gpu_bench.workloads --only "Qwen2.5-0.5B: one" churn --record FILE
    python -m tools.gpu_bench.workloads --small     # tiny models and few requests, to try it without a GPU

Random weights, 256 slots, a token budget of 16,384, end tokens ignored. Compiling and capturing are excluded. A row is
printed, and recorded, as soon as it is there: the best and the median of three runs. Its file also has the mean seconds
to a request's first token and between two tokens. The first rows leave out what makes the engine fast, idea by idea.

The limit beside a row is that of memory: the rate if each step took no longer than reading the weights and the keys and
values of its contexts, and prompts took no time.
"""

import argparse
import gc
import json
import random
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate, count, groupby
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.cuda_graphs import rerun
from lessons_lib.engine.gpu_model_runner import GPUModelRunner
from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.engine.metrics import EngineMetrics
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.engine.warm_up import warm_up
from lessons_lib.kv_cache.block_memory import block_bytes
from lessons_lib.kv_cache.block_pool import blocks_for
from lessons_lib.measuring.gpu_timing import machine_limits
from tools.gpu_bench.facts import facts_of
from tools.gpu_bench.models import NoWords, random_model

BLOCK_SIZE, RUNS = 16, 3
MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS = 256, 16384


@dataclass(frozen=True)
class Request:
    """A prompt, and how many tokens its answer has."""

    prompt: list[int]
    answer: int


@dataclass(frozen=True)
class Workload:
    """One row of the table.

    Attributes:
        name: what is asked for, of which model.
        shape: a key of SHAPES.
        make: function (rng, scale) -> requests; lengths are divided by `scale`.
        sampling: of all requests; each has a seed of its own.
        max_model_len: the longest sequence that the engine has room for.
        counts: "output" or "all": the tokens that the rate counts.
        arrivals_per_s: how many requests arrive in a second, at random; all at once if None.
        runner: options of GPUModelRunner, for what it leaves out.
        overlap: see EngineConfig.
    """

    name: str
    shape: str
    make: Callable[[random.Random, int], list[Request]]
    sampling: dict[str, float] = field(default_factory=lambda: {"temperature": 0.0})
    max_model_len: int = 2048
    counts: str = "output"
    arrivals_per_s: float | None = None
    runner: dict[str, Any] = field(default_factory=dict)
    overlap: bool = True

    def requests(self, scale: int = 1) -> list[Request]:
        """The same ones in each run."""
        return self.make(random.Random(0), scale)


def of_lengths(count: int, prompts: tuple[int, int], answers: tuple[int, int]) -> Callable[..., list[Request]]:
    """Random prompts and answers; (least, most) tokens of each."""

    def make(rng: random.Random, scale: int) -> list[Request]:
        several = count if scale == 1 or count < 10 else max(9, count // scale)
        lengths = [rng.randint(*prompts) for _ in range(several)]
        texts = [random_tokens(rng, max(1, length // scale)) for length in lengths]
        return [Request(text, max(2, rng.randint(*answers) // scale)) for text in texts]

    return make


def behind_one_beginning(count: int, common: int, own: tuple[int, int], answer: int) -> Callable[..., list[Request]]:
    """Prompts that begin with the same tokens."""

    def make(rng: random.Random, scale: int) -> list[Request]:
        beginning = random_tokens(rng, common // scale)
        ends = [random_tokens(rng, rng.randint(*own)) for _ in range(max(9, count // scale))]
        return [Request(beginning + end, max(2, answer // scale)) for end in ends]

    return make


def arrival_times(per_second: float | None, count: int) -> list[float]:
    """Seconds after the beginning, the same ones in each run."""
    rng = random.Random(1)
    return list(accumulate(rng.expovariate(per_second) if per_second else 0.0 for _ in range(count)))


def random_tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(97) for _ in range(count)] if count else []


NANO = of_lengths(256, (100, 1024), (100, 1024))
ONE = of_lengths(1, (128, 128), (512, 512))
CHURN = of_lengths(1024, (10, 200), (10, 200))
SAMPLED, CUT = {"temperature": 1.0}, {"temperature": 0.8, "top_p": 0.95}
LONG = 8320  # most tokens of a document and its answer, and some

LAUNCHED, CAPTURED, COMPILED = (
    dict(compiled=compiled, graphs=graphs, max_captured_tokens=0)
    for compiled, graphs in ((False, False), (False, True), (True, True))
)

WORKLOADS = (
    Workload("Qwen2.5-0.5B: nano-vllm, launched one by one", "Qwen2.5-0.5B", NANO, runner=LAUNCHED, overlap=False),
    Workload("Qwen2.5-0.5B: nano-vllm, decodes captured", "Qwen2.5-0.5B", NANO, runner=CAPTURED, overlap=False),
    Workload("Qwen2.5-0.5B: nano-vllm, compiled too", "Qwen2.5-0.5B", NANO, runner=COMPILED, overlap=False),
    Workload("Qwen2.5-0.5B: churn, only decodes captured", "Qwen2.5-0.5B", CHURN, runner=COMPILED),
    Workload("Qwen2.5-0.5B: nano-vllm, greedy", "Qwen2.5-0.5B", NANO),
    Workload("Qwen2.5-0.5B: nano-vllm, temperature 0.8, top-p 0.95", "Qwen2.5-0.5B", NANO, CUT),
    Workload("Qwen2.5-0.5B: nano-vllm, temperature 1", "Qwen2.5-0.5B", NANO, SAMPLED),
    Workload("Qwen2.5-0.5B: churn, 1,024 × 10–200 + 10–200", "Qwen2.5-0.5B", CHURN),
    Workload("Qwen2.5-0.5B: 100 arrivals a second, 512 × 128–512 + 128–256", "Qwen2.5-0.5B",
             of_lengths(512, (128, 512), (128, 256)), arrivals_per_s=100),
    Workload("Qwen2.5-0.5B: one request, 128 + 512", "Qwen2.5-0.5B", ONE),
    Workload("Qwen2.5-0.5B: eight requests, 100–1,000 + 512", "Qwen2.5-0.5B", of_lengths(8, (100, 1000), (512, 512))),
    Workload("Qwen2.5-0.5B: 64 documents, 2,048–8,192 + 16–64", "Qwen2.5-0.5B",
             of_lengths(64, (2048, 8192), (16, 64)), max_model_len=LONG, counts="all"),
    Workload("Qwen2.5-0.5B: 256 behind the same 2,000 tokens, + 64", "Qwen2.5-0.5B",
             behind_one_beginning(256, 2000, (16, 64), 64), max_model_len=LONG),
    Workload("Qwen3-0.6B: nano-vllm, greedy", "Qwen3-0.6B", NANO),
    Workload("Qwen3-0.6B: nano-vllm, temperature 1", "Qwen3-0.6B", NANO, SAMPLED),
    Workload("Qwen3-0.6B: one request, 128 + 512", "Qwen3-0.6B", ONE),
    Workload("Llama-3.2-1B: nano-vllm, greedy", "Llama-3.2-1B", NANO),
    Workload("Llama-3.2-1B: one request, 128 + 512", "Llama-3.2-1B", ONE),
    Workload("Llama-3.1-8B: nano-vllm, greedy", "Llama-3.1-8B", NANO),
    Workload("Llama-3.1-8B: one request, 128 + 512", "Llama-3.1-8B", ONE),
)  # fmt: skip


def num_blocks_for(requests: list[Request]) -> int:
    """So many that nothing is preempted, whichever requests run together."""
    needed = sorted((blocks_for(len(each.prompt) + each.answer, BLOCK_SIZE) + 1 for each in requests), reverse=True)
    return sum(needed[:MAX_NUM_SEQS]) + 2 * MAX_NUM_SEQS + MAX_NUM_BATCHED_TOKENS // BLOCK_SIZE


def read_in_a_step(model: PreTrainedModel) -> tuple[int, int]:
    """Bytes of the weights that each decode step reads, and of one token's keys and values.

    Of an embedding only single rows are read, unless its weights are those of the last layer, too.
    """
    size = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    if not model.config.tie_word_embeddings:
        embedding = model.get_input_embeddings().weight
        size -= embedding.numel() * embedding.element_size()
    return size, block_bytes(model.config, 1, model.dtype.itemsize)


def limit_of_memory(requests: list[Request], weights: int, per_token: int, bytes_per_s: float) -> float:
    """The most output tokens per second that reading allows; see the module."""
    tokens = sum(each.answer for each in requests)
    # Each step reads the weights once, for at most MAX_NUM_SEQS tokens, of different requests.
    steps = max(-(-tokens // MAX_NUM_SEQS), max(each.answer for each in requests))
    contexts = sum(each.answer * len(each.prompt) + each.answer * (each.answer - 1) // 2 for each in requests)
    return tokens * bytes_per_s / (steps * weights + contexts * per_token)


def serve(runner: GPUModelRunner, workload: Workload, requests: list[Request]) -> dict[str, float]:
    """Serve all requests with an engine of their own. Returns the seconds that it took, and the means of the seconds
    to a first token and between two tokens."""
    config = EngineConfig(
        max_num_seqs=MAX_NUM_SEQS, max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS, block_size=BLOCK_SIZE,
        num_blocks=runner.null_block, max_model_len=workload.max_model_len, make_runner=lambda *_: runner,
        overlap=workload.overlap,
    )  # fmt: skip
    engine = LLMEngine(runner.model, NoWords(), config)  # not closed: the runner and its graphs are used again
    metrics = EngineMetrics(engine)
    to_come = deque(zip(arrival_times(workload.arrivals_per_s, len(requests)), requests, count()))
    outputs = []
    synchronize()
    began = time.perf_counter()
    while to_come or engine.has_unfinished():
        while to_come and to_come[0][0] <= time.perf_counter() - began:
            _, request, seed = to_come.popleft()
            params = SamplingParams(max_tokens=request.answer, ignore_eos=True, seed=seed, **workload.sampling)
            engine.add_request(request.prompt, params)
        outputs += engine.step()
    synchronize()
    seconds = time.perf_counter() - began
    for output in outputs:
        if output.error:
            raise output.error
    answers = sorted(len(output.token_ids) for output in outputs)
    assert answers == sorted(each.answer for each in requests), "answers of other lengths"
    return {"seconds": seconds, "ttft": metrics.ttft.mean, "itl": metrics.itl.mean}


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def results_of(wanted: list[Workload], bytes_per_s: float, small: bool) -> Iterator[dict[str, Any]]:
    """One result after the other; workloads of one model and the same sizes share a runner."""
    kinds = groupby(wanted, key=lambda each: (each.shape, each.max_model_len, each.runner))
    for (shape, max_model_len, options), group in kinds:
        began = time.perf_counter()
        loads = [(workload, workload.requests(32 if small else 1)) for workload in group]
        model = random_model(shape, max_model_len, small)
        if small:
            options = options | dict(compiled=False, capture=rerun)
        runner = GPUModelRunner(
            model, max(num_blocks_for(requests) for _, requests in loads), BLOCK_SIZE, max_num_seqs=MAX_NUM_SEQS,
            max_model_len=max_model_len, **options,
        )  # fmt: skip
        if not small:
            warm_up(runner)
        warm_up_s = time.perf_counter() - began
        print(f"{shape}, sequences of up to {max_model_len:,}: warmed up in {warm_up_s:.0f} s", flush=True)
        for workload, requests in loads:
            yield result_of(runner, workload, requests, bytes_per_s) | {"warm_up_s": warm_up_s}
        runner.close()
        del runner, model
        gc.collect()
        torch.cuda.empty_cache()
        torch._dynamo.reset()  # only so many variants of a function are compiled


def result_of(
    runner: GPUModelRunner, workload: Workload, requests: list[Request], bytes_per_s: float
) -> dict[str, Any]:
    """Three runs of a workload."""
    serve(runner, workload, [replace(each, answer=min(each.answer, 4)) for each in requests])  # compiles what is left
    output_tokens = sum(each.answer for each in requests)
    all_tokens = output_tokens + sum(len(each.prompt) for each in requests)
    counted = {"output": output_tokens, "all": all_tokens}[workload.counts]
    runs = [serve(runner, workload, requests) for _ in range(RUNS)]
    seconds = [run["seconds"] for run in runs]
    weights, per_token = read_in_a_step(runner.model)
    limit = limit_of_memory(requests, weights, per_token, bytes_per_s) if workload.counts == "output" else None
    return {
        "name": workload.name,
        "counts": workload.counts,
        "output_tokens": output_tokens,
        "all_tokens": all_tokens,
        "seconds": seconds,
        "mean_ttft_s": [run["ttft"] for run in runs],
        "mean_itl_s": [run["itl"] for run in runs],
        "best": counted / min(seconds),
        "median": counted / statistics.median(seconds),
        "limit": limit,
        "weight_bytes": weights,
        "bytes_per_token": per_token,
    }


HEADER = f"{'':58} {'tokens/s: best':>14} {'median':>10} {'limit':>10} {'share':>6}"


def row(result: dict[str, Any]) -> str:
    """A line of the table."""
    limit = f"{result['limit']:10,.0f} {result['best'] / result['limit']:6.1%}" if result["limit"] else f"{'–':>10}"
    name = result["name"] + (", all tokens" if result["counts"] == "all" else "")
    return f"{name:58} {result['best']:14,.0f} {result['median']:10,.0f} {limit}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.gpu_bench.workloads", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="workloads whose name contains one of these")
    parser.add_argument("--record", type=Path, help="a JSON file for the results, written anew after each row")
    parser.add_argument("--small", action="store_true", help="tiny models and few requests, on the CPU")
    options = parser.parse_args(arguments)
    wanted = [each for each in WORKLOADS if not options.only or any(part in each.name for part in options.only)]
    if not wanted:
        sys.exit(f"No workload matches {options.only}. There are:\n" + "\n".join(each.name for each in WORKLOADS))
    if not options.small and not torch.cuda.is_available():
        sys.exit("There is no GPU here. Try --small, which runs on the CPU.")
    bytes_per_s = 1e10 if options.small else machine_limits()["read_bytes_per_s"]
    facts = facts_of("tools.gpu_bench.workloads", on_gpu=not options.small) | {"read_bytes_per_s": bytes_per_s}
    print(f"{facts['machine']}, reads {bytes_per_s / 1e9:,.0f} GB/s", HEADER, sep="\n", flush=True)
    results = []
    for result in results_of(wanted, bytes_per_s, options.small):
        print(row(result), flush=True)
        results.append(result)
        if options.record:
            text = json.dumps(facts | {"workloads": results}, indent=1, ensure_ascii=False)
            options.record.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
