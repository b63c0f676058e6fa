"""Right answers to the exercises of lesson 09, written in other ways than the reference, and wrong ones beyond the
checks' lists."""

import math

from answers import slips
from lessons_lib.scheduling.policies import ShortestWithAging
from lessons_lib.scheduling.scheduler import SchedulerOutput, share_budget
from lessons_lib.scheduling.stalling import Deadlock, Scheduler


def wanted(sequence):
    return sequence.num_tokens - sequence.num_computed_tokens


# 09.1 share_budget


def by_a_stable_sort(running, budget):
    counts = {}
    for sequence in sorted(running, key=lambda each: wanted(each) > 1):
        if budget:
            counts[sequence] = min(wanted(sequence), budget)
            budget -= counts[sequence]
    return counts


def in_one_dict_in_order(running, budget):
    counts = dict.fromkeys(running, 0)
    for wants_one in (True, False):
        for sequence in running:
            if (wanted(sequence) == 1) == wants_one:
                counts[sequence] = min(wanted(sequence), budget - sum(counts.values()))
    return {sequence: count for sequence, count in counts.items() if count}


def in_two_dicts(running, budget):
    decodes = dict.fromkeys([sequence for sequence in running if wanted(sequence) == 1][:budget], 1)
    left = budget - len(decodes)
    prompts = {}
    for sequence in [sequence for sequence in running if wanted(sequence) > 1]:
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


def rank_linear(self, s):
    return s.arrival_time + self.patience * s.expected_tokens / 512


def rank_by_a_logarithm(self, s):
    return s.arrival_time + self.patience * math.log(s.expected_tokens, 512)


def rank_by_cost(self, s):
    cost = len(s.prompt_ids) + 8 * s.expected_tokens
    return s.arrival_time + self.patience * cost / (cost + 60)


def rank_by_a_root(self, s):
    return 1000 * (s.arrival_time - self.patience * (1 - math.sqrt(s.expected_tokens / 512)))


def rank_as_a_pair(self, s):
    """Grows in a few steps; within a step, the number of tokens decides."""
    step = sum(s.expected_tokens > most for most in (2, 8, 32, 128))
    return s.arrival_time + self.patience * step / 4, s.expected_tokens


# Below what a message says: the change of the reference that it is said of.

SHARES = """
gets no token: leave it out
~ if budget: => if True:
can't get -
~ budget -= counts[sequence] => budget -= wanted
wants fewer: known
= wanted = sequence.num_tokens
more than the budget
~ min(wanted, budget) => wanted
wants one token, so it comes before
~ elif wanted and budget => elif False
~ in prefills => in [(each, each.num_tokens - each.num_computed_tokens) for each in running]
comes before D in `running`
~ in prefills => in sorted(prefills, key=lambda each: each[1])
stay unused
~ in prefills => in prefills[:1]
keys are the sequences
~ counts[sequence] => counts[sequence.id]
A dict is expected
~ return counts => return list(counts.items())
Is a `return` missing
- return counts
Nothing has been computed yet
< return counts => for sequence, count in counts.items(): sequence.num_computed_tokens += count
It is a float
~ = min(wanted, budget) => = float(min(wanted, budget))
"""
SCHEDULES = """
`max_num_seqs` is 2
~ len(self.running) < self.max_num_seqs => len(self.running) <= self.max_num_seqs
No budget is left
~ not budget or not self.admission => not self.admission
has stalled, and
~ not scheduler_output.stalled and => True and
ask `self.admission(self, sequence)`
~ not budget or not self.admission(self, sequence) => not budget
policy says which is next
= sequence = next(iter(self.waiting))
can start
~ if not budget or => if budget <= 1 or
`self.admit` does all three
~ self.admit(scheduler_output, sequence) => self.running.append(sequence)
or ~ self.admit(scheduler_output, sequence) => self.running.append(sequence); scheduler_output.admitted.append(sequence)
tokens, and the limit is
~ min(wanted, budget) => wanted
gets all it wants
~ min(wanted, budget) => 1
or lets it stall
- self.allocate_slots(scheduler_output, sequence, min
+ scheduler_output.num_scheduled_tokens[sequence] = min(wanted, budget)
+ ...
only if the rule says yes
- self.allocate_slots(scheduler_output, sequence, min
Nothing has been computed yet
> self.allocate_slots(scheduler_output, sequence, min => sequence.num_computed_tokens += min(wanted, budget)
Does the loop ever end
~ self.admit(scheduler_output, sequence) => pass
"""
RANKS = """
have the same rank
= return sequence.arrival_time + self.patience * min(1, answer / 100)
token more must make the rank larger
= return sequence.arrival_time - self.patience * answer / 512
start from `arrival_time`
= return self.patience * answer / 512 - sequence.arrival_time
must grow by half
= return sequence.arrival_time + self.patience * answer / 2000
depends on `max_new_tokens`
= return sequence.arrival_time + self.patience * (len(sequence.prompt_ids) + sequence.max_new_tokens) / 1024
"""

WRONG = {
    "09.1": slips(share_budget, SHARES),
    "09.2": slips(Scheduler, SCHEDULES),
    "09.3": slips(ShortestWithAging, RANKS),
}
SHORTEST = (
    rank_linear,
    rank_by_a_logarithm,
    rank_by_cost,
    rank_by_a_root,
    rank_as_a_pair,
)
RIGHT = {
    "09.1": [by_a_stable_sort, in_two_dicts, in_one_dict_in_order],
    "09.2": [
        scheduling(schedule=schedule_in_one_method),
        scheduling(allocate_slots=allocate_block_by_block),
        scheduling(schedule_waiting=admits_by_a_for_loop),
    ],
    "09.3": [shortest(rank) for rank in SHORTEST],
}
