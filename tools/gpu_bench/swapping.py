"""What it costs to take a preempted sequence back: its cache copied to the memory of the CPU and back, or computed again."""

import time

import torch

from lessons_lib.engine.gpu_model_runner import GPUModelRunner
from lessons_lib.kv_cache.block_pool import blocks_for
from lessons_lib.scheduling.scheduler import SchedulerOutput
from lessons_lib.scheduling.sequence import Sequence

LENGTHS = (128, 512, 2048, 8192)


def seconds(work, repeat: int = 5) -> float:
    """Shortest of several times, after one to warm up: copies of a few hundred microseconds are easily disturbed."""
    times = []
    for _ in range(repeat + 1):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return min(times[1:])


@torch.inference_mode()
def swap_against_recompute(runner: GPUModelRunner, lengths=LENGTHS) -> list[dict]:
    """For sequences of several lengths, seconds to copy their blocks out of all layers and back in, and to prefill them.

    The copies go through page-locked memory. A prefill is compiled and not captured, so a short one takes as long as it takes to launch it.
    """
    results = []
    caches = [*runner.cache.keys, *runner.cache.values]
    for length in lengths:
        blocks = torch.arange(blocks_for(length, runner.cache.block_size), device=caches[0].device)
        on_host = torch.empty(len(caches), len(blocks), *caches[0].shape[1:], dtype=caches[0].dtype, pin_memory=True)

        def swap_out():
            for place, cache in zip(on_host, caches):
                place.copy_(cache[blocks], non_blocking=True)

        def swap_in():
            for place, cache in zip(on_host, caches):
                cache[blocks] = place.to(cache.device, non_blocking=True)

        def recompute():
            runner.forward(SchedulerOutput({Sequence("again", range(length), 1, blocks=blocks.tolist()): length}))

        results.append({
            "tokens": length,
            "bytes": on_host.nbytes,
            "swap_out_s": seconds(swap_out),
            "swap_in_s": seconds(swap_in),
            "recompute_s": seconds(recompute),
        })  # fmt: skip
    return results
