"""`python -m tools.gpu_bench.shared_prefix`: the time to the first token of a prompt whose beginning is in the prefix
cache, next to that of one that is computed from its first token on.
"""

import time
from statistics import median
from typing import Any

import torch

from lessons_lib.engine.gpu_model_runner import GPUModelRunner
from lessons_lib.engine.warm_up import warm_up
from lessons_lib.kv_cache.block_pool import blocks_for
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.scheduling.preemption import PreemptiveScheduler
from lessons_lib.scheduling.sequence import Sequence
from tools.gpu_bench.facts import run_and_record
from tools.gpu_bench.models import random_model
from tools.gpu_bench.workloads import BLOCK_SIZE

SHAPE, BEGINNINGS, OWN, ROUNDS = "Llama-3.1-8B", (512, 2048, 8192, 32768), 64, 5
LONGEST = max(BEGINNINGS) + OWN


def first_token(runner: GPUModelRunner, scheduler: PreemptiveScheduler, prompt: list[int]) -> tuple[float, int]:
    """Seconds from a request's arrival at an idle engine to its first token, and how many tokens were computed."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    scheduler.add(Sequence("request", prompt, 1))
    step = scheduler.schedule()
    scheduler.update(step, runner.forward(step).argmax(dim=-1).tolist())
    return time.perf_counter() - began, step.num_tokens


def with_and_without(runner: GPUModelRunner, beginning: int) -> dict:
    """A request finds nothing; a second one begins the same way. Medians of several rounds, after a warm-up."""
    rounds = []
    for n in range(ROUNDS + 1):
        pool = PrefixCache(runner.null_block, BLOCK_SIZE)
        scheduler = PreemptiveScheduler(pool, max_num_seqs=1, max_num_batched_tokens=LONGEST)
        prompts = [[*range(n, n + beginning), *[own] * OWN] for own in (1, 2)]
        rounds.append([first_token(runner, scheduler, prompt) for prompt in prompts])
    (_, computed), (_, computed_after_hit) = rounds[-1]
    seconds = [median(times) for times in zip(*([time for time, _ in one] for one in rounds[1:]))]
    return {
        "beginning": beginning, "computed": computed, "first_token_s": seconds[0],
        "computed_after_hit": computed_after_hit, "first_token_after_hit_s": seconds[1],
    }  # fmt: skip


def results() -> dict[str, Any]:
    model = random_model(SHAPE, LONGEST)
    num_blocks = blocks_for(LONGEST, BLOCK_SIZE) + blocks_for(OWN, BLOCK_SIZE)
    runner = GPUModelRunner(model, num_blocks, BLOCK_SIZE, max_num_seqs=1, max_model_len=LONGEST)
    warm_up(runner)
    return {"shape": SHAPE, "own": OWN, "rows": [with_and_without(runner, beginning) for beginning in BEGINNINGS]}


if __name__ == "__main__":
    run_and_record("tools.gpu_bench.shared_prefix", __doc__, results)
