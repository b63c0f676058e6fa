"""Answers to the exercises of lesson 09: what learners get wrong, and other ways to be right."""

import math
import time

from answers import Wrong
from lessons_lib.kv_cache.block_pool import blocks_for
from lessons_lib.scheduling.policies import PriorityWithAgeing, ShortestWithAgeing
from lessons_lib.scheduling.scheduler import SchedulerOutput, conservative, share_budget
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


# 09.2 conservative


def subtracts_one_by_one(scheduler, sequence):
    left = scheduler.pool.num_blocks
    for other in (sequence, *scheduler.running):
        left -= -(-(len(other.prompt_ids) + other.max_new_tokens - 1) // scheduler.pool.block_size)
    return left >= 0


def counts_what_is_still_to_come(scheduler, sequence):
    """Compares free blocks with those promised and not allocated yet: the same, if nothing else uses the pool."""
    size = scheduler.pool.block_size
    to_come = sum(blocks_for(other.most_tokens, size) - len(other.blocks) for other in scheduler.running)
    held = sum(len(other.blocks) for other in scheduler.running)
    return not to_come + blocks_for(sequence.most_tokens, size) > scheduler.pool.num_blocks - held


# 09.3 Scheduler


def sends_a_stalled_one_back(self, scheduler_output, sequence, count):
    missing = blocks_for(sequence.num_computed_tokens + count, self.pool.block_size) - len(sequence.blocks)
    if missing > len(self.pool.free_queue):
        scheduler_output.stalled.append(sequence)
        self.running.remove(sequence)
        self.waiting.add(sequence)
        return
    sequence.blocks += self.pool.allocate(missing)
    scheduler_output.num_scheduled_tokens[sequence] = count


def admits_none_after_a_stall(self, scheduler_output):
    self.has_stalled = getattr(self, "has_stalled", False) or bool(scheduler_output.stalled)
    if not self.has_stalled:
        Scheduler.schedule_waiting(self, scheduler_output)


def scheduling(**methods):
    """The reference with some methods replaced."""
    return type("Scheduler", (Scheduler,), methods)


def waiting_with(
    limit=lambda self, scheduler_output: self.max_num_batched_tokens - scheduler_output.num_tokens,
    goes_on=lambda self, budget: self.waiting and budget and len(self.running) < self.max_num_seqs,
    choose=lambda self: self.waiting.next(self.running),
    asks=lambda self, sequence: self.admission(self, sequence),
    count=lambda sequence, budget: min(wanted(sequence), budget),
    allocate_slots=lambda self, scheduler_output, sequence, count: self.allocate_slots(
        scheduler_output, sequence, count
    ),
    pay=lambda budget, count: budget - count,
    again=True,
    heeds_stalls=True,
):
    def schedule_waiting(self, scheduler_output):
        if heeds_stalls and scheduler_output.stalled:
            return
        budget = limit(self, scheduler_output)
        while goes_on(self, budget):
            sequence = choose(self)
            if not asks(self, sequence):
                break
            self.admit(scheduler_output, sequence)
            tokens = count(sequence, budget)
            allocate_slots(self, scheduler_output, sequence, tokens)
            budget = pay(budget, tokens)
            if not again:
                break

    return scheduling(schedule_waiting=schedule_waiting)


def asks_with_the_running_of_before(self, scheduler_output):
    running = list(self.running)
    budget = self.max_num_batched_tokens - scheduler_output.num_tokens
    while self.waiting and budget and len(self.running) < self.max_num_seqs and not scheduler_output.stalled:
        sequence = self.waiting.next(running)
        if not self.admission(self, sequence):
            break
        self.admit(scheduler_output, sequence)
        self.allocate_slots(scheduler_output, sequence, min(wanted(sequence), budget))
        budget = self.max_num_batched_tokens - scheduler_output.num_tokens


def append_to(stalled, sequence):
    stalled.append(sequence)
    return stalled


def allocating_with(
    needs=lambda s, count: s.num_computed_tokens + count,
    less=lambda s: len(s.blocks),
    partly=False,
    record=append_to,
    asks=True,
    keeps=True,
    is_short=lambda missing, free: missing > free,
):
    def allocate_slots(self, scheduler_output, sequence, count):
        missing = blocks_for(needs(sequence, count), self.pool.block_size) - less(sequence)
        free = len(self.pool.free_queue)
        if asks and is_short(missing, free):
            if partly:
                sequence.blocks += self.pool.allocate(free)
            scheduler_output.stalled = record(scheduler_output.stalled, sequence)
            return
        if missing > 0:
            blocks = self.pool.allocate(missing)
            if keeps:
                sequence.blocks += blocks
        scheduler_output.num_scheduled_tokens[sequence] = count

    return scheduling(allocate_slots=allocate_slots)


def schedules_without_blocks(self, scheduler_output, sequence, count):
    scheduler_output.num_scheduled_tokens[sequence] = count


def schedules_ids(self, scheduler_output, sequence, count):
    Scheduler.allocate_slots(self, scheduler_output, sequence, count)
    if sequence in scheduler_output.num_scheduled_tokens:
        scheduler_output.num_scheduled_tokens[sequence.id] = scheduler_output.num_scheduled_tokens.pop(sequence)


def computes_while_planning(self, scheduler_output, sequence, count):
    Scheduler.allocate_slots(self, scheduler_output, sequence, count)
    if sequence in scheduler_output.num_scheduled_tokens:
        sequence.num_computed_tokens += count


def counts_before_it_looks(self, scheduler_output, sequence, count):
    scheduler_output.num_scheduled_tokens[sequence] = count
    missing = blocks_for(sequence.num_computed_tokens + count, self.pool.block_size) - len(sequence.blocks)
    if missing > len(self.pool.free_queue):
        scheduler_output.stalled.append(sequence)
    elif missing > 0:
        sequence.blocks += self.pool.allocate(missing)


def computes_what_fits(self, scheduler_output, sequence, count):
    size = self.pool.block_size
    room = (len(sequence.blocks) + len(self.pool.free_queue)) * size - sequence.num_computed_tokens
    if room <= 0:
        scheduler_output.stalled.append(sequence)
    else:
        Scheduler.allocate_slots(self, scheduler_output, sequence, min(count, room))


def gives_blocks_back(self, scheduler_output, sequence, count):
    Scheduler.allocate_slots(self, scheduler_output, sequence, count)
    if sequence in scheduler_output.stalled:
        self.release(sequence)


def subtracts_too_much(self, scheduler_output, sequence, count):
    sequence.blocks += self.pool.allocate(blocks_for(count, self.pool.block_size) - len(sequence.blocks))
    scheduler_output.num_scheduled_tokens[sequence] = count


def appends_a_list(self, scheduler_output, sequence, count):
    sequence.blocks.append(self.pool.allocate(blocks_for(count, self.pool.block_size)))
    scheduler_output.num_scheduled_tokens[sequence] = count


def new_blocks_first(self, scheduler_output, sequence, count):
    had = list(sequence.blocks)
    Scheduler.allocate_slots(self, scheduler_output, sequence, count)
    sequence.blocks = sequence.blocks[len(had) :] + had


def leaves_it_in_the_queue(self, scheduler_output, sequence):
    self.running.append(sequence)
    scheduler_output.admitted.append(sequence)


def allocates_without_guard(self, scheduler_output, sequence, count):
    missing = blocks_for(sequence.num_computed_tokens + count, self.pool.block_size) - len(sequence.blocks)
    if missing > len(self.pool.free_queue):
        scheduler_output.stalled.append(sequence)
        return
    sequence.blocks += self.pool.allocate(missing)
    scheduler_output.num_scheduled_tokens[sequence] = count


def pays_for_all_known_tokens(self, scheduler_output):
    budget = self.max_num_batched_tokens - scheduler_output.num_tokens
    while not scheduler_output.stalled and self.waiting and budget > 0 and len(self.running) < self.max_num_seqs:
        sequence = self.waiting.next(self.running)
        if not self.admission(self, sequence):
            return
        self.admit(scheduler_output, sequence)
        self.allocate_slots(scheduler_output, sequence, min(wanted(sequence), budget))
        budget -= sequence.num_tokens


def keeps_blocks_free(self, scheduler_output, sequence, count):
    missing = blocks_for(sequence.num_computed_tokens + count, self.pool.block_size) - len(sequence.blocks)
    if missing > len(self.pool.free_queue) - self.watermark:
        scheduler_output.stalled.append(sequence)
    else:
        Scheduler.allocate_slots(self, scheduler_output, sequence, count)


def removes_it_first(self, scheduler_output):
    if self.waiting:
        sequence = self.waiting.next(self.running)
        self.waiting.remove(sequence)
        self.admit(scheduler_output, sequence)


def schedules_the_sum(self, scheduler_output, sequence, count):
    Scheduler.allocate_slots(self, scheduler_output, sequence, count)
    if sequence in scheduler_output.num_scheduled_tokens:
        scheduler_output.num_scheduled_tokens[sequence] = sequence.num_computed_tokens + count


def waits_for_the_whole_prompt(self, scheduler_output):
    waiting_with(
        asks=lambda self, s: (
            wanted(s) <= self.max_num_batched_tokens - scheduler_output.num_tokens and self.admission(self, s)
        )
    ).schedule_waiting(self, scheduler_output)


def adds_whole_prompts_only(self, scheduler_output):
    waiting_with(
        asks=lambda self, s: (
            (not self.running or wanted(s) <= self.max_num_batched_tokens - scheduler_output.num_tokens)
            and self.admission(self, s)
        )
    ).schedule_waiting(self, scheduler_output)


def lets_small_ones_pass(self, scheduler_output):
    if scheduler_output.stalled:
        return
    budget = self.max_num_batched_tokens - scheduler_output.num_tokens
    for sequence in list(self.waiting):
        if budget and len(self.running) < self.max_num_seqs and self.admission(self, sequence):
            self.admit(scheduler_output, sequence)
            count = min(wanted(sequence), budget)
            self.allocate_slots(scheduler_output, sequence, count)
            budget -= count


def asks_forever(self, scheduler_output):
    if scheduler_output.stalled:
        return
    budget = self.max_num_batched_tokens - scheduler_output.num_tokens
    while self.waiting and budget and len(self.running) < self.max_num_seqs:
        sequence = self.waiting.next(self.running)
        if not self.admission(self, sequence):
            continue
        self.admit(scheduler_output, sequence)
        count = min(wanted(sequence), budget)
        self.allocate_slots(scheduler_output, sequence, count)
        budget -= count


def enters_them_by_hand(self, scheduler_output):
    if scheduler_output.stalled:
        return
    budget = self.max_num_batched_tokens - scheduler_output.num_tokens
    while self.waiting and budget and len(self.running) < self.max_num_seqs:
        sequence = self.waiting.next(self.running)
        if not self.admission(self, sequence):
            break
        self.running.append(sequence)
        count = min(wanted(sequence), budget)
        self.allocate_slots(scheduler_output, sequence, count)
        budget -= count
        scheduler_output.admitted.append(sequence)
        if len(self.running) > self.max_num_seqs - 1:
            break


def forgets_to_record_them(self, scheduler_output, sequence):
    self.waiting.remove(sequence)
    self.running.append(sequence)


def admits_none(self, scheduler_output):
    return


def waits_for_an_empty_machine(self, scheduler_output):
    if not self.running:
        Scheduler.schedule_waiting(self, scheduler_output)


def new_sequences_first(self):
    scheduler_output = SchedulerOutput()
    running = list(self.running)
    self.schedule_waiting(scheduler_output)
    for sequence, count in share_budget(running, self.max_num_batched_tokens - scheduler_output.num_tokens).items():
        self.allocate_slots(scheduler_output, sequence, count)
    if self.running and not scheduler_output.num_scheduled_tokens:
        raise Deadlock("stuck")
    return scheduler_output


def never_stops(self):
    scheduler_output = SchedulerOutput()
    self.schedule_running(scheduler_output)
    self.schedule_waiting(scheduler_output)
    return scheduler_output


def stops_when_idle(self):
    scheduler_output = never_stops(self)
    if not scheduler_output.num_scheduled_tokens:
        raise Deadlock("stuck")
    return scheduler_output


def stops_at_the_first_stall(self):
    scheduler_output = never_stops(self)
    if scheduler_output.stalled:
        raise Deadlock("stuck")
    return scheduler_output


def returns_counts(self):
    return Scheduler.schedule(self).num_scheduled_tokens


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


# 09.4 PriorityWithAgeing


def aging(rank):
    return type("PriorityWithAgeing", (PriorityWithAgeing,), {"rank": rank})


def rank_as_a_tuple(self, sequence):
    return (PriorityWithAgeing.rank(self, sequence), sequence.arrival_time)


def rank_tier_by_tier(self, sequence):
    rank = sequence.arrival_time
    for _ in range(sequence.tier):
        rank += self.patience
    if sequence.is_interactive is True:
        rank -= self.head_start
    return rank


def rank_by_multiplying_the_flag(self, sequence):
    return self.patience * sequence.tier - self.head_start * sequence.is_interactive + sequence.arrival_time


def rank_counted_from_the_job(self, sequence):
    """All ranks 100 s later, and those of offline requests a head start later still: the same order."""
    return (
        100
        + sequence.arrival_time
        + sequence.tier * self.patience
        + (0 if sequence.is_interactive else self.head_start)
    )


def rank_in_ms(self, sequence):
    return (
        1000 * sequence.arrival_time
        + 1000 * self.patience * sequence.tier
        - 1000 * self.head_start * sequence.is_interactive
    )


def rank_of_floats(self, sequence):
    """Turns the arrival time into an equal float."""
    sequence.arrival_time = float(sequence.arrival_time)
    return PriorityWithAgeing.rank(self, sequence)


# 09.5 ShortestWithAgeing


def shortest(rank):
    return type("ShortestWithAgeing", (ShortestWithAgeing,), {"rank": rank})


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


def allocates_for_all_known_of_an_answer(self, scheduler_output, sequence, count):
    tokens = sequence.num_tokens if sequence.output_ids else sequence.num_computed_tokens + count
    missing = blocks_for(tokens, self.pool.block_size) - len(sequence.blocks)
    if missing > len(self.pool.free_queue):
        scheduler_output.stalled.append(sequence)
        return
    sequence.blocks += self.pool.allocate(max(missing, 0))
    scheduler_output.num_scheduled_tokens[sequence] = count


def stalls_when_no_block_is_free(self, scheduler_output, sequence, count):
    missing = blocks_for(sequence.num_computed_tokens + count, self.pool.block_size) - len(sequence.blocks)
    if not self.pool.free_queue or missing > len(self.pool.free_queue):
        scheduler_output.stalled.append(sequence)
        return
    sequence.blocks += self.pool.allocate(max(missing, 0))
    scheduler_output.num_scheduled_tokens[sequence] = count


WRONG = {
    "09.3": [
        Wrong(
            "a stall is remembered",
            scheduling(schedule_waiting=admits_none_after_a_stall),
            "B stalled in step 2, but in this step none stalls",
        ),
        Wrong(
            "asks with the running of before",
            scheduling(schedule_waiting=asks_with_the_running_of_before),
            "also what this step has just admitted",
        ),
        Wrong(
            "a stalled sequence waits again",
            scheduling(allocate_slots=sends_a_stalled_one_back),
            "A ran before this step, and must still run",
        ),
        Wrong(
            "stalls although it has room",
            scheduling(allocate_slots=stalls_when_no_block_is_free),
            "B needs none: its 2 blocks of 4 have room for the 8 tokens",
        ),
        Wrong(
            "no limit of sequences",
            waiting_with(goes_on=lambda self, budget: self.waiting and budget),
            "and max_num_seqs is",
        ),
        Wrong(
            "one sequence too many",
            waiting_with(
                goes_on=lambda self, budget: self.waiting and budget and len(self.running) <= self.max_num_seqs
            ),
            "Now 3 sequences run",
        ),
        Wrong(
            "no limit of tokens",
            waiting_with(goes_on=lambda self, budget: self.waiting and len(self.running) < self.max_num_seqs),
            "No budget is left",
        ),
        Wrong(
            "one token for each running sequence",
            waiting_with(
                limit=lambda self, scheduler_output: self.max_num_batched_tokens - len(self.running),
                goes_on=lambda self, budget: self.waiting and budget > 0 and len(self.running) < self.max_num_seqs,
            ),
            "A running sequence may take more than one token",
        ),
        Wrong(
            "whole prompt",
            waiting_with(count=lambda sequence, budget: wanted(sequence)),
            "A new sequence gets at most what is left",
        ),
        Wrong("budget not paid", waiting_with(pay=lambda budget, count: budget), "budget"),
        Wrong(
            "budget of the running ones forgotten",
            waiting_with(limit=lambda self, scheduler_output: self.max_num_batched_tokens),
            "The running sequences have used some of it",
        ),
        Wrong("half a token", waiting_with(count=lambda sequence, budget: 1), "what is left"),
        Wrong(
            "no tokens for new sequences",
            waiting_with(allocate_slots=lambda self, scheduler_output, sequence, count: None),
            "gets its first tokens in the same step",
        ),
        Wrong(
            "the first in the queue, whatever the policy chooses",
            waiting_with(choose=lambda self: next(iter(self.waiting))),
            "It isn't always the first in the queue",
        ),
        Wrong(
            "blocks for a whole answer at once",
            scheduling(allocate_slots=allocates_for_all_known_of_an_answer),
            "E should have 1 block",
        ),
        Wrong(
            "chosen as if nothing ran",
            waiting_with(choose=lambda self: self.waiting.next([])),
            "what runs already may make a difference",
        ),
        Wrong(
            "no chunk of a new prompt",
            scheduling(schedule_waiting=waits_for_the_whole_prompt),
            "D wants 21 tokens, and 8 of the budget are left",
        ),
        Wrong(
            "no chunk behind a whole prompt",
            scheduling(schedule_waiting=adds_whole_prompts_only),
            "F wants 40 tokens, and 19 of the budget are left",
        ),
        Wrong(
            "blocks of this step's tokens, beside its own",
            allocating_with(needs=lambda s, count: count, less=lambda s: 0),
            "It had 4: subtract them, and allocate the rest. Did you count blocks for this step's tokens alone?",
        ),
        Wrong("as many tokens as fit", scheduling(allocate_slots=computes_what_fits), "so it should stall"),
        Wrong(
            "new blocks first", scheduling(allocate_slots=new_blocks_first), "new blocks go behind those that it has"
        ),
        Wrong("blocks given back", scheduling(allocate_slots=gives_blocks_back), "It stalls, and has lost blocks"),
        Wrong("blocks of the chunk, less its own", scheduling(allocate_slots=subtracts_too_much), "can't allocate -3"),
        Wrong("a list as a block", scheduling(allocate_slots=appends_a_list), "adds each of its blocks"),
        Wrong(
            "still in the queue, without a guard",
            scheduling(admit=leaves_it_in_the_queue, allocate_slots=allocates_without_guard),
            "is still in the queue",
        ),
        Wrong(
            "all known tokens paid",
            scheduling(schedule_waiting=pays_for_all_known_tokens),
            "Subtract what each one gets",
        ),
        Wrong(
            "watermark kept by running ones",
            scheduling(allocate_slots=keeps_blocks_free),
            "The watermark is for admission",
        ),
        Wrong("removed twice", scheduling(schedule_waiting=removes_it_first), "Was it removed before?"),
        Wrong(
            "all tokens that will be in the cache",
            scheduling(allocate_slots=schedules_the_sum),
            "A runs already, and `allocate_slots` was asked",
        ),
        Wrong(
            "blocks for the whole prompt must be free",
            waiting_with(
                asks=lambda self, s: self.admission(self, s) and self.missing_blocks(s) <= len(self.pool.free_queue)
            ),
            "is for the admission rule to say",
        ),
        Wrong("admission not asked", waiting_with(asks=lambda self, sequence: True), "The admission rule says no to B"),
        Wrong("small ones pass", scheduling(schedule_waiting=lets_small_ones_pass), "overtook it"),
        Wrong("asks forever", scheduling(schedule_waiting=asks_forever), "`break`, not `continue`"),
        Wrong(
            "by arrival whatever the policy",
            waiting_with(choose=lambda self: min(self.waiting, key=lambda s: s.arrival_time)),
            "asks the policy",
        ),
        Wrong(
            "empty queue",
            waiting_with(goes_on=lambda self, budget: budget and len(self.running) < self.max_num_seqs),
            "and the queue is empty",
        ),
        Wrong("one admission per step", waiting_with(again=False), "one per step is too slow"),
        Wrong("none admitted", scheduling(schedule_waiting=admits_none), "yours admitted none"),
        Wrong(
            "batch barrier",
            scheduling(schedule_waiting=waits_for_an_empty_machine),
            "but that doesn't prevent admission",
        ),
        Wrong(
            "still in the queue",
            scheduling(schedule_waiting=enters_them_by_hand),
            "admitted but still in the queue",
        ),
        Wrong(
            "admitted not noted",
            scheduling(admit=forgets_to_record_them),
            "`scheduler_output.admitted` should contain A",
        ),
        Wrong(
            "no blocks",
            scheduling(allocate_slots=schedules_without_blocks),
            "allocate the missing blocks before the forward pass",
        ),
        Wrong(
            "blocks for this step's tokens only",
            allocating_with(needs=lambda s, count: count),
            "its blocks must hold them all",
        ),
        Wrong(
            "blocks of the whole prompt", allocating_with(needs=lambda s, count: s.num_tokens), "for all known tokens"
        ),
        Wrong(
            "blocks up to max_tokens",
            allocating_with(needs=lambda s, count: s.most_tokens),
            "allocated up to `max_tokens`",
        ),
        Wrong("its own blocks forgotten", allocating_with(less=lambda s: 0), "It already has blocks"),
        Wrong("blocks not kept", allocating_with(keeps=False), "no sequence has them"),
        Wrong("half of the blocks", allocating_with(partly=True), "all the missing blocks or none"),
        Wrong(
            "stall not noted", allocating_with(record=lambda stalled, sequence: stalled), "`scheduler_output.stalled`"
        ),
        Wrong("pool not asked", allocating_with(asks=False), "`schedule` raised OutOfBlocks"),
        Wrong(
            "tokens without blocks",
            scheduling(allocate_slots=counts_before_it_looks),
            "There aren't enough free blocks",
        ),
        Wrong(
            "admits during a stall",
            waiting_with(heeds_stalls=False),
            "if `scheduler_output.stalled` isn't empty, admit none",
        ),
        Wrong(
            "only the prompt", waiting_with(count=lambda s, budget: min(len(s.prompt_ids), budget)), "known − computed"
        ),
        Wrong("all that is known", waiting_with(count=lambda s, budget: min(s.num_tokens, budget)), "known − computed"),
        Wrong(
            "only the last one that stalls",
            allocating_with(record=lambda stalled, sequence: [sequence]),
            "Is the list replaced where one should be appended to it?",
        ),
        Wrong(
            "stalls with just enough blocks",
            allocating_with(is_short=lambda missing, free: missing >= free),
            "`>`, not `>=`",
        ),
        Wrong("names as keys", scheduling(allocate_slots=schedules_ids), "The keys are the sequences themselves"),
        Wrong("counted before the pass", scheduling(allocate_slots=computes_while_planning), "by `update`"),
        Wrong("new sequences first", scheduling(schedule=new_sequences_first), "The budget went to new sequences"),
        Wrong("no deadlock", scheduling(schedule=never_stops), "should raise a Deadlock"),
        Wrong("deadlock when idle", scheduling(schedule=stops_when_idle), "nothing can be stuck"),
        Wrong(
            "deadlock at a stall",
            scheduling(schedule=stops_at_the_first_stall),
            "only if no sequence at all can continue",
        ),
        Wrong("only counts", scheduling(schedule=returns_counts), "should return a SchedulerOutput"),
    ],
    "09.5": [
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

RANKS = (
    rank_as_a_tuple,
    rank_tier_by_tier,
    rank_by_multiplying_the_flag,
    rank_counted_from_the_job,
    rank_in_ms,
    rank_of_floats,
)
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
    "09.2": [subtracts_one_by_one, counts_what_is_still_to_come],
    "09.3": [scheduling(schedule=schedule_in_one_method), scheduling(allocate_slots=allocate_block_by_block)],
    "09.4": [aging(rank) for rank in RANKS],
    "09.5": [shortest(rank) for rank in SHORTEST],
}
