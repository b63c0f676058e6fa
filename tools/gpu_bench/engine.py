"""`python -m tools.gpu_bench.engine`: the gain from each idea in the engine's GPU part, on nano-vllm's benchmark.

256 requests at once, greedy, on a model of Qwen2.5-0.5B's shape. Throughput counts output tokens; compiling and
capturing are excluded.
"""

import argparse
import json
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from lessons_lib.engine.gpu_model_runner import MAX_CAPTURED_TOKENS, GPUModelRunner
from lessons_lib.engine.warm_up import warm_up
from lessons_lib.viz.tables.table import Table
from tools.gpu_bench.engine_run import MAX_NUM_SEQS, benchmark_requests, serve, serve_by_engine
from tools.gpu_bench.facts import facts_of
from tools.gpu_bench.models import random_model

NUM_BLOCKS, BLOCK_SIZE, MAX_MODEL_LEN = 32768, 16, 2048


@dataclass(frozen=True)
class Mode:
    """One stage of the engine: which of the ideas it includes. The last one runs a whole `LLMEngine`, the others a bare
    scheduler."""

    name: str
    graphs: bool
    compiled: bool
    overlapped: bool
    whole: bool = False
    repeat: int = 3


MODES = (
    Mode("launched one by one", graphs=False, compiled=False, overlapped=False, repeat=1),
    Mode("decodes from CUDA graphs", graphs=True, compiled=False, overlapped=False),
    Mode("compiled too", graphs=True, compiled=True, overlapped=False),
    Mode("overlapped too, tokens kept on the GPU", graphs=True, compiled=True, overlapped=True, repeat=5),
    Mode("the whole engine", graphs=True, compiled=True, overlapped=True, whole=True, repeat=5),
)


def run_mode(model, mode: Mode, say=lambda line: None) -> dict:
    """Serve the benchmark's requests in one mode, several times; return the run with the median time."""
    options = dict(max_num_seqs=MAX_NUM_SEQS, max_model_len=MAX_MODEL_LEN, compiled=mode.compiled, graphs=mode.graphs)
    # Steps with prompts are captured only in the whole engine: here, nearly all are larger than what is captured.
    captured = MAX_CAPTURED_TOKENS if mode.whole else 0
    runner = GPUModelRunner(model, NUM_BLOCKS, BLOCK_SIZE, **options, max_captured_tokens=captured)
    began = time.perf_counter()
    warm_up(runner)
    run = serve_by_engine if mode.whole else partial(serve, overlapped=mode.overlapped)
    run(runner, benchmark_requests(count=40, longest=110))
    warm_up_s = time.perf_counter() - began
    say(f"{mode.name}: warmed up in {warm_up_s:.0f} s")
    runs = []
    for _ in range(mode.repeat):
        requests = benchmark_requests()
        seconds, times = run(runner, requests)
        runs.append((seconds, times))
        output_tokens = sum(len(request.output_ids) for request in requests)
        say(f"{mode.name}: {output_tokens / seconds:,.0f} tokens/s")
    runner.close()
    seconds, times = sorted(runs, key=lambda run: run[0])[len(runs) // 2]
    return {
        "name": mode.name,
        "output_tokens": output_tokens,
        "seconds": seconds,
        "tokens_per_s": output_tokens / seconds,
        "all_tokens_per_s": [output_tokens / each for each, _ in runs],
        "warm_up_s": warm_up_s,
        "num_steps": len(times.steps),
        "decode_ms": times.of_full_decodes(),
        "first_tokens": requests[0].output_ids[:8],
    }


def engine_results(say=lambda line: print(line, file=sys.stderr)) -> dict:
    model = random_model("Qwen2.5-0.5B", 32768)
    results = [run_mode(model, mode, say) for mode in MODES]
    return facts_of("tools.gpu_bench.engine") | {"modes": results}


def results_table(results: dict) -> Table:
    rows = []
    for mode in results["modes"]:
        parts = mode["decode_ms"]
        times = [f"{parts[name]:.2f}" for name in ("all", "wait", "own", "schedule", "prepare", "launch", "update")]
        rows.append([mode["name"], f"{mode['tokens_per_s']:,.0f}", f"{mode['seconds']:.2f}", *times])
    columns = [
        "",
        "output tokens/s",
        "s",
        "ms a step",
        "wait for the GPU",
        "own",
        "schedule",
        "prepare",
        "launch",
        "update",
    ]
    return Table(
        columns,
        rows,
        f"milliseconds of a decode step of {results['modes'][-1]['decode_ms']['running']} sequences, medians",
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_bench.engine", description=__doc__.splitlines()[0])
    parser.add_argument("--record", type=Path, help="a JSON file for the results")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("There is no GPU here. Recorded results are in lessons_lib/assets/recorded.")
    results = engine_results()
    if options.record:
        options.record.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(results_table(results))


if __name__ == "__main__":
    main()
