"""Lesson 13: which sizes of steps with prompts to capture: how large the steps of a workload are, and the sizes that
pad them the least."""

import math
from collections import Counter
from collections.abc import Iterable
from itertools import accumulate

from lessons_lib.kv_cache.block_pool import BlockPool, blocks_for
from lessons_lib.scheduling.scheduler import Scheduler, optimistic
from lessons_lib.scheduling.sequence import Sequence


def tokens_of_steps(
    lengths: Iterable[tuple[int, int]], max_num_seqs: int = 256, max_tokens: int = 2048
) -> Counter[int]:
    """How many tokens the steps with prompts have if these requests all arrive at the start. No model runs.

    Args:
        lengths: tokens of the prompt and of the answer of each request.
        max_tokens: the most tokens of a step.

    Returns:
        Counter: tokens of a step -> how many steps have so many. Steps of decodes only aren't counted.
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
    """The sizes to capture, so that all steps together have as few tokens of padding as possible.

    A step is padded to the smallest size that has room for it.

    Args:
        histogram: dict: tokens of a step -> how many steps have so many, 1 or more. Not empty.
        max_graphs: the most sizes, 1 or more.

    Returns:
        list of int: ascending. The last one has room for every step.
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
    """Tokens of padding of all steps, if these sizes are captured.

    Args:
        histogram: see `least_padding`. Every step has to fit the largest size.
    """
    return sum((min(size for size in sizes if size >= count) - count) * steps for count, steps in histogram.items())
