"""Right answers to the exercises of lesson 10, written in other ways than the reference. The wrong ones are the checks'
lists."""

import numpy as np
from lessons_lib.kv_cache.block_pool import blocks_for

# 10.1 last_in_rank


def sorted_and_last(candidates, policy):
    return sorted(candidates, key=policy.rank)[-1]


def by_a_loop(candidates, policy):
    victim = candidates[0]
    for sequence in candidates:
        if policy.rank(sequence) >= policy.rank(victim):
            victim = sequence
    return victim


def by_rank_and_index(candidates, policy):
    return candidates[max(range(len(candidates)), key=lambda i: (policy.rank(candidates[i]), i))]


def last_of_the_largest(candidates, policy):
    largest = max(map(policy.rank, candidates))
    return [sequence for sequence in candidates if policy.rank(sequence) == largest][-1]


# 10.2 preempt_sequence


def in_another_order(scheduler, scheduler_output, victim):
    if not victim.swapped:
        victim.num_computed_tokens = 0
    blocks, victim.blocks = victim.blocks, []
    scheduler.pool.free(blocks)
    if victim in scheduler_output.num_scheduled_tokens:
        del scheduler_output.num_scheduled_tokens[victim]
    scheduler_output.preempted = [*scheduler_output.preempted, victim]
    if victim not in list(scheduler.waiting):
        scheduler.waiting.add(victim)
        scheduler.running = [other for other in scheduler.running if other is not victim]


def by_release(scheduler, scheduler_output, victim):
    scheduler_output.num_scheduled_tokens = {
        other: count for other, count in scheduler_output.num_scheduled_tokens.items() if other is not victim
    }
    scheduler_output.preempted += [victim]
    for index, other in enumerate(scheduler.running):
        if other is victim:
            del scheduler.running[index]
            scheduler.waiting.add(victim)
            break
    if victim.swapped:
        scheduler.pool.free(victim.blocks)
        victim.blocks = []
    else:
        scheduler.release(victim)
        victim.num_computed_tokens = 0


def block_by_block(scheduler, scheduler_output, victim):
    scheduler_output.num_scheduled_tokens.pop(victim, None)
    scheduler_output.preempted.append(victim)
    scheduler.running.remove(victim)
    scheduler.add(victim)
    while victim.blocks:
        scheduler.pool.free([victim.blocks.pop()])
    victim.num_computed_tokens *= len(victim.swapped) > 0


# 10.3 swap_if_cheaper


def lines(recorded):
    """(base and slope of swapping, base and slope of recomputing), in seconds and tokens."""
    recorded = [recorded[0], recorded[-1]]
    tokens = [row["tokens"] for row in recorded]
    swap = np.polyfit(tokens, [row["swap_out_s"] + row["swap_in_s"] for row in recorded], 1)
    recompute = np.polyfit(tokens, [row["recompute_s"] for row in recorded], 1)
    return swap[1], swap[0], recompute[1], recompute[0]


def rounded_up(victim, size):
    return size * blocks_for(victim.num_computed_tokens, size)


def choosing(swap, recompute, *, copied=rounded_up, tokens=lambda victim: victim.num_computed_tokens):
    """`swap` and `recompute` are functions (recorded, tokens) -> seconds."""

    def swap_if_cheaper(recorded):
        def should_swap(scheduler, victim):
            return swap(recorded, copied(victim, scheduler.pool.block_size)) < recompute(recorded, tokens(victim))

        return should_swap

    return swap_if_cheaper


def swap_line(recorded, tokens):
    base, slope, *_ = lines(recorded)
    return base + slope * tokens


def recompute_slope(recorded, tokens):
    return lines(recorded)[3] * tokens


def in_bytes(recorded):
    first, last = recorded[0], recorded[-1]
    per_token = last["bytes"] / last["tokens"]
    out, into = ((last[key] - first[key]) / (last["bytes"] - first["bytes"]) for key in ("swap_out_s", "swap_in_s"))
    base = first["swap_out_s"] + first["swap_in_s"] - (out + into) * first["bytes"]
    rate = (last["tokens"] - first["tokens"]) / (last["recompute_s"] - first["recompute_s"])

    def should_swap(scheduler, victim):
        blocks = -(-victim.num_computed_tokens // scheduler.pool.block_size)
        num_bytes = blocks * scheduler.pool.block_size * per_token
        return base + num_bytes * (out + into) < victim.num_computed_tokens / rate

    return should_swap


class ByBreakEven:
    def __init__(self, recorded):
        self.base, self.swap, _, self.recompute = lines(recorded)

    def __call__(self, scheduler, victim):
        size = scheduler.pool.block_size
        return bool(rounded_up(victim, size) * self.swap + self.base < self.recompute * victim.num_computed_tokens)


def with_a_class(recorded):
    return ByBreakEven(recorded)


def difference(first, last):
    return last["tokens"] - first["tokens"]


def by_adding_blocks(recorded):
    first, last = recorded[0], recorded[-1]
    per_token = {key: (last[key] - first[key]) / difference(first, last) for key in first if key.endswith("_s")}

    def should_swap(scheduler, victim):
        copied = 0
        while copied < victim.num_computed_tokens:
            copied += scheduler.pool.block_size
        swap = sum(first[key] + per_token[key] * (copied - first["tokens"]) for key in ("swap_out_s", "swap_in_s"))
        return swap < per_token["recompute_s"] * victim.num_computed_tokens

    return should_swap


def takes_the_first_in_rank(candidates, policy):
    """Wrong, for the test of an engine with a wrong part."""
    return min(candidates, key=policy.rank)


WRONG: dict[str, list] = {}
RIGHT = {
    "10.1": [sorted_and_last, by_a_loop, by_rank_and_index, last_of_the_largest],
    "10.2": [in_another_order, block_by_block, by_release],
    "10.3": [choosing(swap_line, recompute_slope), in_bytes, with_a_class, by_adding_blocks],
}
