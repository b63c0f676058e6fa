"""Answers to the exercises of lesson 09: other ways to be right, and wrong policies. The other wrong answers are the
checks' lists."""

import math
import time

from answers import Wrong
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
    if len(scheduler_output.stalled) > 0:
        return
    for _ in range(len(self.waiting)):
        left = self.max_num_batched_tokens - scheduler_output.num_tokens
        if left <= 0 or len(self.running) >= self.max_num_seqs:
            break
        sequence = self.waiting.next(list(self.running))
        if not self.admission(self, sequence):
            break
        self.admit(scheduler_output, sequence)
        self.allocate_slots(scheduler_output, sequence, min(left, wanted(sequence)))


# 09.3 ShortestWithAging


def shortest(rank):
    return type("ShortestWithAging", (ShortestWithAging,), {"rank": rank})


def later_by(part):
    """The arrival time, later by a part of the patience."""
    return shortest(lambda self, s: s.arrival_time + self.patience * part(s.expected_tokens))


def counts_windows(self, s):
    return s.arrival_time // self.patience + (len(s.prompt_ids) + s.expected_tokens) / 1025


def in_windows(self, s):
    return s.arrival_time // self.patience, s.expected_tokens


def postpones_the_arrival(self, s):
    s.arrival_time += self.patience * s.expected_tokens / 512
    return s.arrival_time


def uses_up_the_patience(self, s):
    self.patience /= 2
    return s.arrival_time + self.patience * s.expected_tokens / 512


def counts_its_calls(self, s):
    self.calls = getattr(self, "calls", 0) + 1e-9
    return s.arrival_time + self.patience * s.expected_tokens / 512 - self.calls


def later_by_sequence(part):
    return shortest(lambda self, s: s.arrival_time + self.patience * part(s))


def cost_of(s):
    return len(s.prompt_ids) + 8 * s.expected_tokens


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


WRONG = {  # promises are compared, not ranks; the other exercises list their mistakes themselves
    "09.3": [
        Wrong("arrival only", shortest(lambda self, s: s.arrival_time), "the same for short and long requests"),
        Wrong("length only", shortest(lambda self, s: s.expected_tokens), "ignores the arrival time"),
        Wrong("a pair", shortest(lambda self, s: (s.arrival_time, s.expected_tokens)), "A tuple (arrival, length)"),
        Wrong(
            "length first",
            shortest(lambda self, s: (s.expected_tokens, s.arrival_time)),
            "B arrived more than `patience`",
        ),
        Wrong("windows", shortest(in_windows), "divide time into windows"),
        Wrong("windows that are counted", shortest(counts_windows), "divide time into windows"),
        Wrong("long ones first", later_by(lambda n: -n / 512), "Here the longer request goes first"),
        Wrong(
            "newest first", shortest(lambda self, s: s.expected_tokens / 512 - s.arrival_time), "the newest goes first"
        ),
        Wrong(
            "seconds for tokens",
            shortest(lambda self, s: s.arrival_time + s.expected_tokens / 100),
            "With a patience of 2 s and of 50 s your rank is the same",
        ),
        Wrong("patience per token", later_by(lambda n: n), "your rank grows by 1,022 s from the shortest"),
        Wrong(
            "the arrival time counts twice",
            shortest(lambda self, s: s.arrival_time * self.patience + (len(s.prompt_ids) + s.expected_tokens) / 1024),
            "a second of arrival moves your rank by 2, not by 1",
        ),
        Wrong(
            "the arrival time in patiences",
            shortest(lambda self, s: s.expected_tokens + s.arrival_time / self.patience),
            "a second of arrival moves your rank by 0.5, not by 1",
        ),
        Wrong("too little", later_by(lambda n: n / 2000), "your rank grows by 0.499 s from 1 to 500 tokens"),
        Wrong("a limit", later_by(lambda n: min(1, n / 100)), "Both have the same rank"),
        Wrong("rounded", shortest(lambda self, s: round(rank_linear(self, s), 1)), "Both have the same rank"),
        Wrong(
            "its own limit",
            shortest(lambda self, s: s.arrival_time + self.patience * s.expected_tokens / s.max_new_tokens),
            "depends on `max_new_tokens`",
        ),
        Wrong(
            "a part for the prompt and one for the answer",
            shortest(lambda self, s: s.arrival_time + self.patience * (s.expected_tokens + len(s.prompt_ids)) / 512),
            "your rank grows by 3.992 s from the shortest",
        ),
        Wrong(
            "a limit in seconds",
            shortest(lambda self, s: s.arrival_time + min(self.patience, cost_of(s) * 20e-6)),
            "With a patience of 2 s and of 50 s your rank is the same",
        ),
        Wrong("almost half, a tie", later_by(lambda n: 0.45 * min(1, (n - 1) / 499)), "your rank grows by 0.9 s"),
        Wrong("almost half, at once", later_by(lambda n: 0.49 * (n > 1) + n / 1e6), "your rank grows by 0.981 s"),
        Wrong("499 thousandths", later_by(lambda n: 0.4985 * (n - 1) / 499), "your rank grows by 0.997 s"),
        Wrong("beyond the patience", later_by(lambda n: n / 503), "your rank grows by 2.032 s"),
        Wrong(
            "answer minus prompt",
            shortest(lambda self, s: s.arrival_time + self.patience * (s.expected_tokens - len(s.prompt_ids)) / 512),
            "the same whenever prompt and answer are equally long",
        ),
        Wrong(
            "answer over prompt",
            shortest(lambda self, s: s.arrival_time + self.patience * s.expected_tokens / len(s.prompt_ids) / 512),
            "the same whenever prompt and answer are equally long",
        ),
        Wrong(
            "interactive first",
            shortest(lambda self, s: rank_linear(self, s) - 0.1 * self.patience * s.is_interactive),
            "depends on `is_interactive`",
        ),
        Wrong(
            "interactive last",
            shortest(lambda self, s: rank_linear(self, s) * (1 + s.is_interactive / 1000)),
            "depends on `is_interactive`",
        ),
        Wrong(
            "all known tokens",
            shortest(
                lambda self, s: s.arrival_time + self.patience * (s.num_tokens + 8 * s.expected_tokens) / (9 * 512)
            ),
            "depends on the answer so far",
        ),
        Wrong(
            "what is left of the answer",
            later_by_sequence(lambda s: (s.expected_tokens - len(s.output_ids)) / 512),
            "depends on the answer so far",
        ),
        Wrong("text", shortest(lambda self, s: f"{rank_linear(self, s):09.4f}"), "should return a number"),
        Wrong("not a number", shortest(lambda self, s: float("nan")), "should return a number; yours returned nan"),
        Wrong("tiers", shortest(lambda self, s: rank_linear(self, s) + s.tier * self.patience), "depends on the tier"),
        Wrong("the clock", shortest(lambda self, s: rank_linear(self, s) - time.perf_counter()), "leave the clock out"),
        Wrong("another rank each time", shortest(counts_its_calls), "should never change"),
        Wrong("moves the arrival", shortest(postpones_the_arrival), "your code changed the sequence"),
        Wrong("changes the patience", shortest(uses_up_the_patience), "your code changed the policy"),
        Wrong("nothing returned", shortest(lambda self, s: None), "yours returned None"),
    ],
}

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
