"""Lesson 13: choose the batch sizes to capture for steps with prompts, so that a workload gets the least padding."""

import math
from collections import Counter
from collections.abc import Iterable
from itertools import accumulate

from lessons_lib.kv_cache.block_pool import BlockPool, blocks_for
from lessons_lib.scheduling.scheduler import optimistic
from lessons_lib.scheduling.sequence import Sequence
from lessons_lib.scheduling.stalling import Scheduler


def tokens_of_steps(
    lengths: Iterable[tuple[int, int]], max_num_seqs: int = 256, max_tokens: int = 2048
) -> Counter[int]:
    """Count the steps with prompts by size if all requests arrive at the start. No model runs.

    Args:
        lengths: (prompt tokens, answer tokens) of each request.
        max_tokens: maximum tokens per step.

    Returns:
        Counter: tokens in a step -> number of such steps. Decode-only steps aren't counted.
    """
    sequences = [Sequence(str(number), range(prompt), answer) for number, (prompt, answer) in enumerate(lengths)]
    pool = BlockPool(sum(blocks_for(sequence.most_tokens, 16) for sequence in sequences), 16)
    scheduler = Scheduler(pool, max_num_seqs=max_num_seqs, max_num_batched_tokens=max_tokens, admission=optimistic)
    for sequence in sequences:
        scheduler.add(sequence)
    histogram: Counter[int] = Counter()
    while scheduler.has_unfinished():
        step = scheduler.schedule()
        num_seqs = len(step.num_scheduled_tokens)
        if step.num_tokens > num_seqs:
            histogram[step.num_tokens] += 1
        scheduler.update(step, [0] * num_seqs)
    return histogram


def least_padding(histogram, max_graphs):
    """Choose the sizes to capture that minimize the total padding.

    A step is padded to the smallest captured size that holds it.

    Args:
        histogram: dict: tokens in a step -> number of such steps, 1 or more. Not empty.
        max_graphs: maximum number of sizes, 1 or more.

    Returns:
        list of int: ascending. The last one holds every step.
    """
    counts = sorted(histogram)
    steps = [0, *accumulate(histogram[count] for count in counts)]
    # For the steps with the first 0, 1, 2, ... counts: the fewest tokens computed, padding included, and the sizes.
    best = [(0, [])] + [(math.inf, [])] * len(counts)
    for _ in range(max_graphs):
        best = [(0, [])] + [
            min(
                (best[start][0] + (steps[end] - steps[start]) * counts[end - 1], [*best[start][1], counts[end - 1]])
                for start in range(end)
            )
            for end in range(1, len(best))
        ]
    return best[-1][1]


def padding(histogram, sizes):
    """Total tokens of padding if these sizes are captured.

    Args:
        histogram: see `least_padding`. Every step must fit the largest size.
    """
    return sum((min(size for size in sizes if size >= count) - count) * steps for count, steps in histogram.items())
