"""The cost of resuming a preempted sequence: its blocks swapped out and back in, or its prefill computed again."""

import time

import torch

from lessons_lib.engine.gpu_model_runner import GPUModelRunner
from lessons_lib.kv_cache.block_pool import blocks_for
from lessons_lib.scheduling.scheduler import SchedulerOutput
from lessons_lib.scheduling.sequence import Sequence

LENGTHS = (128, 512, 2048, 8192)


def seconds(work, repeat: int = 5) -> float:
    """The shortest of several times, after a warm-up: copies of a few hundred microseconds are easily disturbed."""
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
    """For several lengths, the seconds to copy a sequence's blocks of all layers out and back in, and to prefill it.

    The copies use pinned host memory. A prefill is compiled but not captured, so a short one is dominated by launch
    overhead.

    Returns:
        one dict per length: "tokens", "bytes" of the sequence's blocks, "swap_out_s", "swap_in_s", "recompute_s".
    """
    results = []
    caches = [*runner.cache.keys, *runner.cache.values]
    for length in lengths:
        blocks = torch.arange(blocks_for(length, runner.cache.block_size), device=caches[0].device)
        on_host = torch.empty(len(caches), len(blocks), *caches[0].shape[1:], dtype=caches[0].dtype, pin_memory=True)

        def swap_out():
            for buffer, cache in zip(on_host, caches):
                buffer.copy_(cache[blocks], non_blocking=True)

        def swap_in():
            for buffer, cache in zip(on_host, caches):
                cache[blocks] = buffer.to(cache.device, non_blocking=True)

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
