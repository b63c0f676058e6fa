"""`python -m tools.gpu_bench.swapping`: what it costs to bring a preempted sequence back: its blocks swapped out and
in, or its prefill computed again, alone and in a step that runs anyway.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from collections.abc import Sequence as ListOf
from pathlib import Path
from typing import Any

import torch

from lessons_lib.engine.gpu_model_runner import GPUModelRunner
from lessons_lib.engine.warm_up import warm_up
from lessons_lib.kv_cache.block_pool import blocks_for
from lessons_lib.scheduling.scheduler import SchedulerOutput
from lessons_lib.scheduling.sequence import Sequence
from tools.gpu_bench.facts import facts_of
from tools.gpu_bench.models import random_model
from tools.gpu_bench.workloads import BLOCK_SIZE

SHAPE, LENGTHS, OTHERS, CONTEXT = "Llama-3.1-8B", (128, 512, 2048, 8192), 32, 1024


def seconds(work: Callable[[], Any], repeat: int = 30) -> float:
    """The shortest of several times, after a warm-up: copies of a few hundred microseconds are easily disturbed."""
    times = []
    for _ in range(repeat + 1):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return min(times[1:])


def others(runner: GPUModelRunner, first_block: int) -> dict[Sequence, int]:
    """Sequences in the middle of their answers, and the one token that a step computes of each."""
    per_sequence = blocks_for(CONTEXT, runner.cache.block_size)
    return {
        Sequence(
            f"other {i}", [0] * CONTEXT, 1, num_computed_tokens=CONTEXT - 1,
            blocks=list(range(start := first_block + i * per_sequence, start + per_sequence)),
        ): 1
        for i in range(OTHERS)
    }  # fmt: skip


@torch.inference_mode()
def swap_against_recompute(runner: GPUModelRunner, lengths: ListOf[int] = LENGTHS) -> dict[str, Any]:
    """For several lengths, the seconds to copy a sequence's blocks of all layers out and back in, and to prefill it.

    The copies use pinned host memory, with the blocks of a layer gathered into one buffer.

    Returns:
        dict with "step_s", the seconds of a step that decodes OTHERS sequences of CONTEXT tokens; and "swapping": per
        length "tokens", "bytes" of the sequence's blocks, "swap_out_s", "swap_in_s", "recompute_s" of a step that
        computes it alone, and "beside_s" of one that computes it and decodes the others.
    """
    caches = [*runner.cache.keys, *runner.cache.values]
    decodes = others(runner, blocks_for(max(lengths), runner.cache.block_size))
    results = []
    for length in lengths:
        blocks = torch.arange(blocks_for(length, runner.cache.block_size), device=caches[0].device)
        on_host = torch.empty(len(caches), len(blocks), *caches[0].shape[1:], dtype=caches[0].dtype, pin_memory=True)
        again = {Sequence("again", range(length), 1, blocks=blocks.tolist()): length}

        def swap_out():
            for buffer, cache in zip(on_host, caches):
                buffer.copy_(cache[blocks], non_blocking=True)

        def swap_in():
            for buffer, cache in zip(on_host, caches):
                cache[blocks] = buffer.to(cache.device, non_blocking=True)

        results.append({
            "tokens": length,
            "bytes": on_host.nbytes,
            "swap_out_s": seconds(swap_out),
            "swap_in_s": seconds(swap_in),
            "recompute_s": seconds(lambda: runner.forward(SchedulerOutput(again))),
            "beside_s": seconds(lambda: runner.forward(SchedulerOutput(decodes | again))),
        })  # fmt: skip
    return {"step_s": seconds(lambda: runner.forward(SchedulerOutput(decodes))), "swapping": results}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_bench.swapping", description=__doc__)
    parser.add_argument("--record", type=Path, help="a JSON file for the results")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="of the sequence, the shortest first")
    parser.add_argument("--runs", type=int, default=1, help="how often everything is measured")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("There is no GPU here. Recorded results are in lessons_lib/assets/recorded.")
    longest = max(*options.lengths, 2 * CONTEXT)
    num_blocks = blocks_for(longest, BLOCK_SIZE) + OTHERS * blocks_for(CONTEXT, BLOCK_SIZE)
    model = random_model(SHAPE, longest)
    runner = GPUModelRunner(model, num_blocks, BLOCK_SIZE, max_num_seqs=OTHERS + 1, max_model_len=longest)
    warm_up(runner)
    facts = facts_of("tools.gpu_bench.swapping") | {"shape": SHAPE, "others": OTHERS, "context": CONTEXT}
    if options.runs > 1:
        facts["command"] += f" --runs {options.runs}"
        facts["runs"] = [swap_against_recompute(runner, options.lengths) for _ in range(options.runs)]
    else:
        facts |= swap_against_recompute(runner, options.lengths)
    if options.lengths != LENGTHS:
        facts["command"] += f" --lengths {' '.join(map(str, options.lengths))}"
    text = json.dumps(facts, indent=1)
    print(text)
    if options.record:
        options.record.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
