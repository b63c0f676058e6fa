"""Right answers to the exercises of lesson 10, written in other ways than the reference. The wrong ones are the checks'
lists."""

import numpy as np

# 10.1 last_in_rank


def sorted_and_last(candidates, policy):
    return sorted(candidates, key=policy.rank)[-1]


def by_a_loop(candidates, policy):
    victim = candidates[0]
    for sequence in candidates:
        if policy.rank(sequence) >= policy.rank(victim):
            victim = sequence
    return victim


def last_of_the_largest(candidates, policy):
    largest = max(map(policy.rank, candidates))
    return [sequence for sequence in candidates if policy.rank(sequence) == largest][-1]


# 10.2 preempt_sequence


def with_new_lists(scheduler, scheduler_output, victim):
    scheduler_output.num_scheduled_tokens = {
        other: count for other, count in scheduler_output.num_scheduled_tokens.items() if other is not victim
    }
    scheduler_output.preempted = [*scheduler_output.preempted, victim]
    scheduler.running = [other for other in scheduler.running if other is not victim]
    scheduler.waiting.add(victim)
    if victim.swapped:
        scheduler.pool.free(victim.blocks)
        victim.blocks = []
    else:
        scheduler.release(victim)
        victim.num_computed_tokens = 0


def block_by_block(scheduler, scheduler_output, victim):
    if victim in scheduler_output.num_scheduled_tokens:
        del scheduler_output.num_scheduled_tokens[victim]
    scheduler_output.preempted += [victim]
    scheduler.running.remove(victim)
    scheduler.add(victim)
    while victim.blocks:
        scheduler.pool.free([victim.blocks.pop()])
    victim.num_computed_tokens *= len(victim.swapped) > 0


# 10.3 swap_if_cheaper


class WithNumPy:
    """Returns NumPy's kind of bool."""

    def __init__(self, recorded):
        ends = recorded[0], recorded[-1]
        tokens = [row["tokens"] for row in ends]
        self.swap = np.polyfit(tokens, [row["swap_out_s"] + row["swap_in_s"] for row in ends], 1)
        self.recompute, _ = np.polyfit(tokens, [row["recompute_s"] for row in ends], 1)

    def __call__(self, scheduler, victim):
        copied = victim.num_computed_tokens + -victim.num_computed_tokens % scheduler.pool.block_size
        return np.polyval(self.swap, copied) < self.recompute * victim.num_computed_tokens


def with_a_class(recorded):
    return WithNumPy(recorded)


def in_bytes(recorded):
    first, last = recorded[0], recorded[-1]
    per_token = last["bytes"] / last["tokens"]
    out, into = ((last[key] - first[key]) / (last["bytes"] - first["bytes"]) for key in ("swap_out_s", "swap_in_s"))
    base = first["swap_out_s"] + first["swap_in_s"] - (out + into) * first["bytes"]
    rate = (last["tokens"] - first["tokens"]) / (last["recompute_s"] - first["recompute_s"])

    def should_swap(scheduler, victim):
        copied = 0
        while copied < victim.num_computed_tokens:
            copied += scheduler.pool.block_size
        return base + copied * per_token * (out + into) < victim.num_computed_tokens / rate

    return should_swap


def takes_the_first_in_rank(candidates, policy):
    """Wrong, for the test of an engine with a wrong part."""
    return min(candidates, key=policy.rank)


WRONG: dict[str, list] = {}
RIGHT = {
    "10.1": [sorted_and_last, by_a_loop, last_of_the_largest],
    "10.2": [with_new_lists, block_by_block],
    "10.3": [with_a_class, in_bytes],
}
