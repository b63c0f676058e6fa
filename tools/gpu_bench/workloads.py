"""`python -m tools.gpu_bench.workloads`: the whole engine, in its fastest mode, on workloads of many kinds.

    python -m tools.gpu_bench.workloads --shapes Qwen3-1.7B 8B --only greedy penalty --record FILE
    python -m tools.gpu_bench.workloads --small     # tiny models and few requests, to try it without a GPU

Random weights, 256 slots, a token budget of 16,384, end tokens ignored. If vLLM is installed, it serves the same
requests in turns with this engine, on the same GPU, in a process of its own, with a cache of the same size. Compiling
and capturing are excluded. A row is printed, and put into the file, as soon as it is there: tokens per second, the best
and the median of the rounds, and the mean times to a request's first token and between two tokens. The rows of
the last shape include some that leave out what makes the engine fast, idea by idea.

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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, groupby
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
from tools.gpu_bench import vllm_peer
from tools.gpu_bench.facts import facts_of
from tools.gpu_bench.models import SHAPES, NoWords, random_model
from tools.gpu_bench.vllm_peer import Arrivals, Vllm, drive

BLOCK_SIZE, MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS = 16, 256, 16384
OVERHEAD = 7 << 30  # bytes of an engine on the GPU besides weights and cache, at most


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
        make: function (rng, scale) -> requests; lengths are divided by `scale`.
        sampling: of the first request, the second and so on, then from the beginning; each has a seed of its own.
        shape: a key of SHAPES.
        max_model_len: the longest sequence that the engine has room for.
        counts: "output" or "all": the tokens that the rate counts.
        arrivals_per_s: how many requests arrive in a second, at random; all at once if None.
        runner: options of GPUModelRunner, for what it leaves out.
        overlap: see EngineConfig.
    """

    name: str
    make: Callable[[random.Random, int], list[Request]]
    sampling: tuple[dict[str, Any], ...] = ({"temperature": 0.0},)
    shape: str = "Qwen2.5-0.5B"
    max_model_len: int = 10240
    counts: str = "output"
    arrivals_per_s: float | None = None
    runner: dict[str, Any] = field(default_factory=dict)
    overlap: bool = True

    def requests(self, scale: int = 1) -> list[Request]:
        """The same ones in each run."""
        return self.make(random.Random(0), scale)

    def arrivals(self, requests: list[Request]) -> Arrivals:
        """When each request arrives, its prompt and its sampling parameters."""
        rng, rate = random.Random(1), self.arrivals_per_s
        times = accumulate(rng.expovariate(rate) if rate else 0.0 for _ in requests)
        arrivals = []
        for seed, (moment, request) in enumerate(zip(times, requests)):
            options = dict(
                max_tokens=request.answer, ignore_eos=True, seed=seed, **self.sampling[seed % len(self.sampling)]
            )
            if "stop_token_ids" in options:
                options["min_tokens"] = request.answer
            arrivals.append((moment, request.prompt, options))
        return arrivals


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


def random_tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(97) for _ in range(count)] if count else []


def halves(**rule: Any) -> tuple[dict[str, Any], ...]:
    """Every other request is greedy, and the rest is drawn."""
    return GREEDY | rule, DRAWN | rule


GREEDY, DRAWN = {"temperature": 0.0}, {"temperature": 1.0}
RULES = {
    "repetition penalty 1.1": halves(repetition_penalty=1.1),
    "presence and frequency penalties": halves(presence_penalty=0.5, frequency_penalty=0.5),
    "logit_bias of 32 tokens": halves(logit_bias={token: (-1.0) ** token for token in range(32)}),
    "min_tokens": halves(stop_token_ids=[7]),
    "64 allowed_token_ids": halves(allowed_token_ids=list(range(64))),
}
MIXED = {"each request another rule": tuple(pair[i % 2] for i, pair in enumerate(RULES.values()))}
LOGPROBS = {"5 log-probabilities": halves(logprobs=5)}
SAMPLING = {
    "greedy": (GREEDY,),
    "temperature 0.8, top-p 0.95": ({"temperature": 0.8, "top_p": 0.95},),
    "temperature 1": (DRAWN,),
    "top-k 50, top-p 0.9, temperature 0.7": ({"temperature": 0.7, "top_k": 50, "top_p": 0.9},),
    "half greedy, half drawn": halves(),
    **RULES, **MIXED, **LOGPROBS,
}  # fmt: skip
FEW_RULES = {"repetition penalty 1.1": RULES["repetition penalty 1.1"], **MIXED, **LOGPROBS}

NANO, CHURN = of_lengths(256, (100, 1024), (100, 1024)), of_lengths(1024, (10, 200), (10, 200))
EIGHT, EIGHT_NAME = of_lengths(8, (100, 1000), (512, 512)), "eight requests, 100–1,000 + 512"
CHAT, CHAT_LENGTHS = ((128, 512), (128, 256)), "128–512 + 128–256"
LAUNCHED, CAPTURED, COMPILED = (
    dict(compiled=compiled, graphs=graphs, max_captured_tokens=0)
    for compiled, graphs in ((False, False), (False, True), (True, True))
)

ABLATIONS = (
    Workload("nano-vllm, launched one by one", NANO, runner=LAUNCHED, overlap=False),
    Workload("nano-vllm, decodes captured", NANO, runner=CAPTURED, overlap=False),
    Workload("nano-vllm, compiled too", NANO, runner=COMPILED, overlap=False),
    Workload("churn, only decodes captured", CHURN, runner=COMPILED),
)
LOADS = (
    *(Workload(f"nano-vllm, {name}", NANO, sampling) for name, sampling in SAMPLING.items()),
    Workload("churn, 1,024 × 10–200 + 10–200", CHURN),
    Workload(f"25 arrivals a second, 200 × {CHAT_LENGTHS}", of_lengths(200, *CHAT), arrivals_per_s=25),
    Workload(f"100 arrivals a second, 512 × {CHAT_LENGTHS}", of_lengths(512, *CHAT), arrivals_per_s=100),
    Workload("64 documents, 2,048–8,192 + 16–64", of_lengths(64, (2048, 8192), (16, 64)), counts="all"),
    Workload("256 behind the same 2,000 tokens, + 64", behind_one_beginning(256, 2000, (16, 64), 64)),
    Workload("one request, 128 + 512", of_lengths(1, (128, 128), (512, 512))),
    Workload(EIGHT_NAME, EIGHT),
    *(Workload(f"{EIGHT_NAME}, {name}", EIGHT, sampling) for name, sampling in FEW_RULES.items()),
    Workload("long contexts, 16 × 30,000 + 256", of_lengths(16, (30000, 30000), (256, 256)), max_model_len=32768),
)
WORKLOADS = [
    replace(load, name=f"{shape}: {load.name}", shape=shape)
    for shape in SHAPES
    for load in (*(ABLATIONS if shape == Workload.shape else ()), *LOADS)
]


def num_blocks_for(requests: list[Request]) -> int:
    """So many that nothing is preempted, whichever requests run together."""
    needed = sorted((blocks_for(len(each.prompt) + each.answer, BLOCK_SIZE) + 1 for each in requests), reverse=True)
    return sum(needed[:MAX_NUM_SEQS]) + 2 * MAX_NUM_SEQS + MAX_NUM_BATCHED_TOKENS // BLOCK_SIZE


def room_beside(model: PreTrainedModel, engines: int) -> int:
    """Blocks of the cache if this many engines with this model share the GPU's memory."""
    memory = 0.95 * torch.cuda.mem_get_info()[1] / engines - model.get_memory_footprint() - OVERHEAD
    return int(memory // block_bytes(model.config, BLOCK_SIZE, model.dtype.itemsize))


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


def serve(runner: GPUModelRunner, workload: Workload, arrivals: Arrivals) -> dict[str, float]:
    """Serve all requests with an engine of their own. Returns the seconds that it took, and the means of the seconds
    to a first token and between two tokens."""
    config = EngineConfig(
        max_num_seqs=MAX_NUM_SEQS, max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS, block_size=BLOCK_SIZE,
        num_blocks=runner.null_block, max_model_len=workload.max_model_len, make_runner=lambda *_: runner,
        overlap=workload.overlap,
    )  # fmt: skip
    engine = LLMEngine(runner.model, NoWords(), config)  # not closed: the runner and its graphs are used again
    metrics = EngineMetrics(engine)
    outputs: list[Any] = []

    def add(prompt: list[int], options: dict[str, Any]) -> None:
        engine.add_request(prompt, SamplingParams(**options))

    seconds = drive(arrivals, add, lambda: outputs.extend(engine.step()), engine.has_unfinished)
    for output in outputs:
        if output.error:
            raise output.error
    answers = sorted(len(output.token_ids) for output in outputs)
    assert answers == sorted(options["max_tokens"] for *_, options in arrivals), "answers of other lengths"
    return {"seconds": seconds, "ttft": metrics.ttft.mean, "itl": metrics.itl.mean}


def results_of(
    wanted: list[Workload], bytes_per_s: float, rounds: int, small: bool, beside: bool
) -> Iterator[dict[str, Any]]:
    """One result after the other; workloads of one model and the same sizes share a runner. `beside`: vLLM, too."""
    kinds = groupby(wanted, key=lambda each: (each.shape, each.max_model_len, each.runner))
    for (shape, max_model_len, options), group in kinds:
        loads = [(workload, workload.requests(32 if small else 1)) for workload in group]
        model = random_model(shape, max_model_len, small)
        theirs = beside and not options
        num_blocks = max(num_blocks_for(requests) for _, requests in loads)
        if not small:
            num_blocks = min(num_blocks, room_beside(model, 1 + theirs))
        peer = start_vllm(model, num_blocks, max_model_len) if theirs else None
        began = time.perf_counter()
        if small:
            options = options | dict(compiled=False, capture=rerun)
        runner = GPUModelRunner(
            model, num_blocks, BLOCK_SIZE, max_num_seqs=MAX_NUM_SEQS, max_model_len=max_model_len, **options
        )
        if not small:
            warm_up(runner)
        warm_up_s = time.perf_counter() - began
        others = f", vLLM {peer.version} in {peer.warm_up_s:.0f} s" if peer else ""
        print(f"{shape}, sequences of up to {max_model_len:,}: warmed up in {warm_up_s:.0f} s{others}", flush=True)
        for workload, requests in loads:
            yield result_of(runner, peer, workload, requests, bytes_per_s, rounds) | {"warm_up_s": warm_up_s}
        runner.close()
        if peer:
            peer.close()
        del runner, model
        gc.collect()
        torch.cuda.empty_cache()
        torch._dynamo.reset()  # only so many variants of a function are compiled


def start_vllm(model: PreTrainedModel, num_blocks: int, max_model_len: int, **options: Any) -> Vllm:
    """With the same settings, and as much memory as they take."""
    memory = model.get_memory_footprint() + OVERHEAD
    memory += num_blocks * block_bytes(model.config, BLOCK_SIZE, model.dtype.itemsize)
    total = torch.cuda.mem_get_info()[1] if torch.cuda.is_available() else memory
    return Vllm(
        model, max_num_seqs=MAX_NUM_SEQS, max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS, block_size=BLOCK_SIZE,
        num_gpu_blocks_override=num_blocks, max_model_len=max_model_len, gpu_memory_utilization=memory / total,
        **options,
    )  # fmt: skip


def result_of(
    runner: GPUModelRunner, peer: Vllm | None, workload: Workload, requests: list[Request], bytes_per_s: float,
    rounds: int,
) -> dict[str, Any]:  # fmt: skip
    """Several rounds of a workload, in each of which every engine has its turn."""
    engines: list[Callable[[Arrivals], dict[str, float]]] = [partial(serve, runner, workload)]
    if peer:
        engines.append(peer.serve)
    short = replace(workload, arrivals_per_s=None)
    for engine in engines:  # compiles what is left
        engine(short.arrivals([replace(each, answer=min(each.answer, 4)) for each in requests]))
    arrivals = workload.arrivals(requests)
    ours, *theirs = zip(*([engine(arrivals) for engine in engines] for _ in range(rounds)))
    output_tokens = sum(each.answer for each in requests)
    all_tokens = output_tokens + sum(len(each.prompt) for each in requests)
    counted = {"output": output_tokens, "all": all_tokens}[workload.counts]
    weights, per_token = read_in_a_step(runner.model)
    limit = limit_of_memory(requests, weights, per_token, bytes_per_s) if workload.counts == "output" else None
    return {
        "name": workload.name,
        "counts": workload.counts,
        "output_tokens": output_tokens,
        "all_tokens": all_tokens,
        **rates(ours, counted),
        "limit": limit,
        "weight_bytes": weights,
        "bytes_per_token": per_token,
        "vllm": rates(theirs[0], counted) | {"version": peer.version, "warm_up_s": peer.warm_up_s} if peer else None,
    }


def rates(runs: tuple[dict[str, float], ...], counted: int) -> dict[str, Any]:
    seconds = [run["seconds"] for run in runs]
    return {
        "seconds": seconds,
        "mean_ttft_s": [run["ttft"] for run in runs],
        "mean_itl_s": [run["itl"] for run in runs],
        "best": counted / min(seconds),
        "median": counted / statistics.median(seconds),
    }


HEADER = f"{'':66} {'tokens/s: best':>14} {'median':>8} {'of limit':>8} {'TTFT, ITL in ms':>16}    vLLM's"


def row(result: dict[str, Any]) -> str:
    """A line of the table: ours / vLLM's = ratio of the best."""
    name = result["name"] + (", all tokens" if result["counts"] == "all" else "")
    share = f"{result['best'] / result['limit']:8.1%}" if result["limit"] else f"{'–':>8}"

    def times(rates: dict[str, Any]) -> str:
        first, between = (1e3 * statistics.median(rates[key]) for key in ("mean_ttft_s", "mean_itl_s"))
        return f"{first:9,.1f} {between:6.2f}"

    line = f"{name:66} {result['best']:14,.0f} {result['median']:8,.0f} {share} {times(result)}"
    theirs = result["vllm"]
    return line + (
        f" / {theirs['best']:8,.0f} = {result['best'] / theirs['best']:.2f} {times(theirs)}" if theirs else ""
    )


def recorded(file: Path, facts: dict[str, Any], result: dict[str, Any]) -> None:
    """Put a row into the file, which keeps its other rows."""
    before = json.loads(file.read_text(encoding="utf-8"))["workloads"] if file.exists() else []
    rows = {each["name"]: each for each in (*before, result)}
    found = [rows[each.name] for each in WORKLOADS if each.name in rows]
    text = json.dumps(facts | {"workloads": found}, indent=1, ensure_ascii=False)
    file.write_text(text + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.gpu_bench.workloads", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", default=[""], metavar="NAME", help="only workloads with this in their name"
    )
    parser.add_argument("--shapes", nargs="+", default=[""], metavar="NAME", help="only models with this in their name")
    parser.add_argument("--rounds", type=int, default=3, help="how often each engine serves a workload")
    parser.add_argument("--alone", action="store_true", help="without vLLM")
    parser.add_argument("--record", type=Path, help="a JSON file for the results, which keeps its other rows")
    parser.add_argument("--small", action="store_true", help="tiny models and few requests, on the CPU")
    options = parser.parse_args(arguments)
    wanted = [
        each
        for each in WORKLOADS
        if any(part in each.name for part in options.only) and any(part in each.shape for part in options.shapes)
    ]
    if not wanted:
        names = "\n".join([*SHAPES, "", *(each.name for each in (*ABLATIONS, *LOADS))])
        sys.exit(f"No workload matches {options.only} of {options.shapes}. There are:\n{names}")
    if not options.small and not torch.cuda.is_available():
        sys.exit("There is no GPU here. Try --small, which runs on the CPU.")
    bytes_per_s = 1e10 if options.small else machine_limits()["read_bytes_per_s"]
    facts = facts_of("tools.gpu_bench.workloads", on_gpu=not options.small) | {"read_bytes_per_s": bytes_per_s}
    print(f"{facts['machine']}, reads {bytes_per_s / 1e9:,.0f} GB/s", HEADER, sep="\n", flush=True)
    beside = vllm_peer.is_installed() and not options.alone
    for result in results_of(wanted, bytes_per_s, options.rounds, options.small, beside):
        print(row(result), flush=True)
        if options.record:
            recorded(options.record, facts, result)


if __name__ == "__main__":
    main()
