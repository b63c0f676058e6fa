"""Right answers to the exercises of lesson 09, written in other ways than the reference. The wrong ones are the checks'
lists."""

import math

from lessons_lib.scheduling.policies import ShortestWithAging
from lessons_lib.scheduling.scheduler import SchedulerOutput, share_budget
from lessons_lib.scheduling.stalling import Deadlock, Scheduler


def wanted(sequence):
    return sequence.num_tokens - sequence.num_computed_tokens


# 09.1 share_budget


def sharing(order=lambda running: running, wants=wanted, amount=min):
    """Goes through the sequences in some order, and schedules some of what each wants."""

    def share(running, budget):
        counts = {}
        for sequence in order(running):
            count = amount(wants(sequence), budget)
            if count > 0:
                counts[sequence] = count
                budget -= count
        return counts

    return share


def ones(running):
    return [sequence for sequence in running if wanted(sequence) == 1]


def more(running):
    return [sequence for sequence in running if wanted(sequence) > 1]


def decodes_first(running):
    return ones(running) + more(running)


def in_one_dict_in_order(running, budget):
    counts = dict.fromkeys(running, 0)
    for wants_one in (True, False):
        for sequence in running:
            if (wanted(sequence) == 1) == wants_one:
                counts[sequence] = min(wanted(sequence), budget - sum(counts.values()))
    return {sequence: count for sequence, count in counts.items() if count}


def in_two_dicts(running, budget):
    decodes = {sequence: 1 for sequence in ones(running)[:budget]}
    left = budget - len(decodes)
    prompts = {}
    for sequence in more(running):
        prompts[sequence] = min(wanted(sequence), left - sum(prompts.values()))
    return decodes | {sequence: count for sequence, count in prompts.items() if count}


# 09.2 Scheduler


def scheduling(**methods):
    """The reference with some methods replaced."""
    return type("Scheduler", (Scheduler,), methods)


def schedule_in_one_method(self):
    scheduler_output = SchedulerOutput()
    for sequence, count in share_budget(self.running, self.max_num_batched_tokens).items():
        self.allocate_slots(scheduler_output, sequence, count)
    while len(self.waiting) and len(self.running) != self.max_num_seqs and not scheduler_output.stalled:
        left = self.max_num_batched_tokens - sum(scheduler_output.num_scheduled_tokens.values())
        sequence = self.waiting.next(self.running)
        if left <= 0 or not self.admission(self, sequence):
            break
        self.admit(scheduler_output, sequence)
        self.allocate_slots(scheduler_output, sequence, min(left, wanted(sequence)))
    if self.running and sum(scheduler_output.num_scheduled_tokens.values()) == 0:
        raise Deadlock("none can continue")
    return scheduler_output


def allocate_block_by_block(self, scheduler_output, sequence, count):
    size = self.pool.block_size
    needed = (sequence.num_computed_tokens + count + size - 1) // size
    if needed - len(sequence.blocks) > len(self.pool.free_queue):
        scheduler_output.stalled = [*scheduler_output.stalled, sequence]
    else:
        while len(sequence.blocks) < needed:
            sequence.blocks.extend(self.pool.allocate(1))
        scheduler_output.num_scheduled_tokens[sequence] = count


def admits_by_a_for_loop(self, scheduler_output):
    for _ in range(len(self.waiting)):
        left = self.max_num_batched_tokens - scheduler_output.num_tokens
        if left <= 0 or scheduler_output.stalled or len(self.running) >= self.max_num_seqs:
            break
        sequence = self.waiting.next(list(self.running))
        if not self.admission(self, sequence):
            break
        self.admit(scheduler_output, sequence)
        self.allocate_slots(scheduler_output, sequence, min(left, wanted(sequence)))


# 09.3 ShortestWithAging


def shortest(rank):
    return type("ShortestWithAging", (ShortestWithAging,), {"rank": rank})


def rank_from_0_to_1(self, s):
    return s.arrival_time + self.patience * (s.expected_tokens - 1) / 511


def rank_linear(self, s):
    return s.arrival_time + self.patience * s.expected_tokens / 512


def rank_by_a_reciprocal(self, s):
    return s.arrival_time + self.patience * (1 - 1 / s.expected_tokens)


def rank_by_a_logarithm(self, s):
    return s.arrival_time + self.patience * math.log(s.expected_tokens, 512)


def rank_by_cost(self, s):
    cost = len(s.prompt_ids) + 8 * s.expected_tokens
    return s.arrival_time + self.patience * cost / (cost + 60)


def rank_by_prompt_and_answer(self, s):
    return s.arrival_time + self.patience * (len(s.prompt_ids) + s.expected_tokens) / 1024


def rank_by_a_root(self, s):
    return 1000 * (s.arrival_time - self.patience * (1 - math.sqrt(s.expected_tokens / 512)))


def rank_as_a_pair(self, s):
    """Grows in a few steps; within a step, the number of tokens decides."""
    step = sum(s.expected_tokens > most for most in (2, 8, 32, 128))
    return s.arrival_time + self.patience * step / 4, s.expected_tokens


WRONG = {}
SHORTEST = (
    rank_linear,
    rank_from_0_to_1,
    rank_by_a_reciprocal,
    rank_by_a_logarithm,
    rank_by_cost,
    rank_by_prompt_and_answer,
    rank_by_a_root,
    rank_as_a_pair,
)
RIGHT = {
    "09.1": [sharing(decodes_first), in_two_dicts, in_one_dict_in_order],
    "09.2": [
        scheduling(schedule=schedule_in_one_method),
        scheduling(allocate_slots=allocate_block_by_block),
        scheduling(schedule_waiting=admits_by_a_for_loop),
    ],
    "09.3": [shortest(rank) for rank in SHORTEST],
}
