"""Answers to the exercises of lesson 09: what learners get wrong, and other ways to be right."""

import time

from answers import Wrong
from lessons_lib.kv_cache.block_pool import blocks_for
from lessons_lib.scheduling.policies import PriorityWithAgeing
from lessons_lib.scheduling.scheduler import Deadlock, Scheduler, conservative, share_budget


def wanted(sequence):
    return sequence.num_tokens - sequence.num_computed_tokens


# 09.1 share_budget


def sharing(order=lambda running: running, wants=wanted, give=min):
    """Goes through the sequences in some order, and gives each some of what it wants."""

    def share(running, budget):
        counts = {}
        for sequence in order(running):
            count = give(wants(sequence), budget)
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


def answering_first(running):
    return sorted(running, key=lambda sequence: not sequence.output_ids)


def counts_answers_as_decodes(running, budget):
    return sharing(answering_first, lambda s: 1 if s.output_ids else wanted(s))(running, budget)


def forgets_the_budget(running, budget):
    return {sequence: wanted(sequence) for sequence in running}


def forgets_to_pay_for_decodes(running, budget):
    return {sequence: 1 for sequence in ones(running)} | sharing(more)(running, budget)


def pays_for_decodes_later(running, budget):
    counts = {sequence: 1 for sequence in ones(running)}
    return counts | sharing(more)(running, budget - len(counts))


def keeps_zeros(running, budget):
    return {sequence: share_budget(running, budget).get(sequence, 0) for sequence in running}


def empties_running(running, budget):
    counts = {}
    while running:
        sequence = running.pop(0)
        if budget:
            counts[sequence] = min(wanted(sequence), budget)
            budget -= counts[sequence]
    return counts


def computes_at_once(running, budget):
    counts = share_budget(running, budget)
    for sequence, count in counts.items():
        sequence.num_computed_tokens += count
    return counts


def shares_by_name(running, budget):
    return {sequence.id: count for sequence, count in share_budget(running, budget).items()}


def shares_evenly(running, budget):
    return {sequence: min(wanted(sequence), budget / len(running)) for sequence in running if budget}


def returns_pairs(running, budget):
    return list(share_budget(running, budget).items())


def in_two_dicts(running, budget):
    decodes = {sequence: 1 for sequence in ones(running)[:budget]}
    left = budget - len(decodes)
    prompts = {}
    for sequence in more(running):
        prompts[sequence] = min(wanted(sequence), left - sum(prompts.values()))
    return decodes | {sequence: count for sequence, count in prompts.items() if count}


# 09.2 conservative


def promising(
    tokens=lambda s: s.most_tokens,
    who=lambda scheduler, s: [*scheduler.running, s],
    blocks=blocks_for,
    room=lambda pool: pool.num_blocks,
):
    """The reference with one part made another way."""

    def may_come_in(scheduler, sequence):
        return sum(blocks(tokens(other), scheduler.pool.block_size) for other in who(scheduler, sequence)) <= room(
            scheduler.pool
        )

    return may_come_in


def rounds_once(scheduler, sequence):
    tokens = sum(other.most_tokens for other in [*scheduler.running, sequence])
    return blocks_for(tokens, scheduler.pool.block_size) <= scheduler.pool.num_blocks


def asks_for_one_more(scheduler, sequence):
    promised = sum(blocks_for(other.most_tokens, scheduler.pool.block_size) for other in [*scheduler.running, sequence])
    return promised < scheduler.pool.num_blocks


def compares_need_with_free(scheduler, sequence):
    return blocks_for(sequence.most_tokens, scheduler.pool.block_size) <= len(scheduler.pool.free_queue)


def appends_the_newcomer(scheduler, sequence):
    scheduler.running.append(sequence)
    return (
        sum(blocks_for(other.most_tokens, scheduler.pool.block_size) for other in scheduler.running)
        <= scheduler.pool.num_blocks
    )


def returns_the_promise(scheduler, sequence):
    return sum(blocks_for(other.most_tokens, scheduler.pool.block_size) for other in [*scheduler.running, sequence])


def returns_nothing(scheduler, sequence):
    conservative(scheduler, sequence)


def subtracts_one_by_one(scheduler, sequence):
    left = scheduler.pool.num_blocks
    for other in (sequence, *scheduler.running):
        left -= -(-(len(other.prompt_ids) + other.max_new_tokens - 1) // scheduler.pool.block_size)
    return left >= 0


def counts_what_is_still_to_come(scheduler, sequence):
    """Free blocks against those that are promised and not taken yet: the same, if nobody else uses the pool."""
    size = scheduler.pool.block_size
    to_come = sum(blocks_for(other.most_tokens, size) - len(other.blocks) for other in scheduler.running)
    held = sum(len(other.blocks) for other in scheduler.running)
    return not to_come + blocks_for(sequence.most_tokens, size) > scheduler.pool.num_blocks - held


# 09.3 Scheduler


def scheduling(**methods):
    """The reference with some methods made another way."""
    return type("Scheduler", (Scheduler,), methods)


def waiting_with(
    limit=lambda self, scheduler_output: self.max_num_batched_tokens - scheduler_output.num_tokens,
    goes_on=lambda self, budget: self.waiting and budget and len(self.running) < self.max_num_seqs,
    choose=lambda self: self.waiting.next(self.running),
    asks=lambda self, sequence: self.admission(self, sequence),
    count=lambda sequence, budget: min(wanted(sequence), budget),
    give=lambda self, scheduler_output, sequence, count: self.give(scheduler_output, sequence, count),
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
            give(self, scheduler_output, sequence, tokens)
            budget = pay(budget, tokens)
            if not again:
                break

    return scheduling(schedule_waiting=schedule_waiting)


def append_to(stalled, sequence):
    stalled.append(sequence)
    return stalled


def giving_with(
    needs=lambda s, count: s.num_computed_tokens + count,
    less=lambda s: len(s.blocks),
    partly=False,
    note=append_to,
    asks=True,
    keeps=True,
    is_short=lambda missing, free: missing > free,
):
    def give(self, scheduler_output, sequence, count):
        missing = blocks_for(needs(sequence, count), self.pool.block_size) - less(sequence)
        free = len(self.pool.free_queue)
        if asks and is_short(missing, free):
            if partly:
                sequence.blocks += self.pool.allocate(free)
            scheduler_output.stalled = note(scheduler_output.stalled, sequence)
            return
        if missing > 0:
            blocks = self.pool.allocate(missing)
            if keeps:
                sequence.blocks += blocks
        scheduler_output.num_scheduled_tokens[sequence] = count

    return scheduling(give=give)


def gives_without_blocks(self, scheduler_output, sequence, count):
    scheduler_output.num_scheduled_tokens[sequence] = count


def counts_names(self, scheduler_output, sequence, count):
    Scheduler.give(self, scheduler_output, sequence, count)
    if sequence in scheduler_output.num_scheduled_tokens:
        scheduler_output.num_scheduled_tokens[sequence.id] = scheduler_output.num_scheduled_tokens.pop(sequence)


def computes_while_planning(self, scheduler_output, sequence, count):
    Scheduler.give(self, scheduler_output, sequence, count)
    if sequence in scheduler_output.num_scheduled_tokens:
        sequence.num_computed_tokens += count


def counts_before_it_looks(self, scheduler_output, sequence, count):
    scheduler_output.num_scheduled_tokens[sequence] = count
    missing = blocks_for(sequence.num_computed_tokens + count, self.pool.block_size) - len(sequence.blocks)
    if missing > len(self.pool.free_queue):
        scheduler_output.stalled.append(sequence)
    elif missing > 0:
        sequence.blocks += self.pool.allocate(missing)


def lets_small_ones_pass(self, scheduler_output):
    if scheduler_output.stalled:
        return
    budget = self.max_num_batched_tokens - scheduler_output.num_tokens
    for sequence in list(self.waiting):
        if budget and len(self.running) < self.max_num_seqs and self.admission(self, sequence):
            self.admit(scheduler_output, sequence)
            count = min(wanted(sequence), budget)
            self.give(scheduler_output, sequence, count)
            budget -= count


def asks_for_ever(self, scheduler_output):
    if scheduler_output.stalled:
        return
    budget = self.max_num_batched_tokens - scheduler_output.num_tokens
    while self.waiting and budget and len(self.running) < self.max_num_seqs:
        sequence = self.waiting.next(self.running)
        if not self.admission(self, sequence):
            continue
        self.admit(scheduler_output, sequence)
        count = min(wanted(sequence), budget)
        self.give(scheduler_output, sequence, count)
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
        self.give(scheduler_output, sequence, count)
        budget -= count
        scheduler_output.admitted.append(sequence)
        if len(self.running) > self.max_num_seqs - 1:
            break


def forgets_to_note_them(self, scheduler_output, sequence):
    self.waiting.remove(sequence)
    self.running.append(sequence)


def admits_nobody(self, scheduler_output):
    return


def waits_for_an_empty_machine(self, scheduler_output):
    if not self.running:
        Scheduler.schedule_waiting(self, scheduler_output)


def newcomers_first(self):
    scheduler_output = self.new_output()
    running = list(self.running)
    self.schedule_waiting(scheduler_output)
    for sequence, count in share_budget(running, self.max_num_batched_tokens - scheduler_output.num_tokens).items():
        self.give(scheduler_output, sequence, count)
    if self.running and not scheduler_output.num_scheduled_tokens:
        raise Deadlock("stuck")
    return scheduler_output


def never_stops(self):
    scheduler_output = self.new_output()
    self.schedule_running(scheduler_output)
    self.schedule_waiting(scheduler_output)
    return scheduler_output


def stops_when_there_is_nothing_to_do(self):
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


def schedule_in_one_piece(self):
    scheduler_output = self.new_output()
    for sequence, count in share_budget(self.running, self.max_num_batched_tokens).items():
        self.give(scheduler_output, sequence, count)
    while len(self.waiting) and len(self.running) != self.max_num_seqs and not scheduler_output.stalled:
        left = self.max_num_batched_tokens - sum(scheduler_output.num_scheduled_tokens.values())
        sequence = self.waiting.next(self.running)
        if left <= 0 or not self.admission(self, sequence):
            break
        self.admit(scheduler_output, sequence)
        self.give(scheduler_output, sequence, min(left, wanted(sequence)))
    if self.running and sum(scheduler_output.num_scheduled_tokens.values()) == 0:
        raise Deadlock("nobody can go on")
    return scheduler_output


def give_block_by_block(self, scheduler_output, sequence, count):
    size = self.pool.block_size
    needed = (sequence.num_computed_tokens + count + size - 1) // size
    if needed - len(sequence.blocks) > len(self.pool.free_queue):
        scheduler_output.stalled = [*scheduler_output.stalled, sequence]
    else:
        while len(sequence.blocks) < needed:
            sequence.blocks.extend(self.pool.allocate(1))
        scheduler_output.num_scheduled_tokens[sequence] = count


# 09.4 PriorityWithAgeing


def ageing(rank):
    return type("PriorityWithAgeing", (PriorityWithAgeing,), {"rank": rank})


def by(base=lambda self, s: s.arrival_time + s.tier * self.patience, reader=lambda self, s: -self.head_start):
    """A rank of two parts; the second is added for an interactive request."""
    return ageing(lambda self, s: base(self, s) + (reader(self, s) if s.is_interactive else 0))


def moves_the_arrival(self, sequence):
    sequence.arrival_time += sequence.tier * self.patience
    return sequence.arrival_time - (self.head_start if sequence.is_interactive else 0)


def moves_the_arrival_of_readers(self, sequence):
    if sequence.is_interactive:
        sequence.arrival_time -= self.head_start
    return sequence.arrival_time + sequence.tier * self.patience


def takes_a_token_away(self, sequence):
    sequence.prompt_ids.pop()
    return PriorityWithAgeing.rank(self, sequence)


def raises_the_tier_of_readers(self, sequence):
    if sequence.is_interactive:
        sequence.tier = 0
    return PriorityWithAgeing.rank(self, sequence)


def uses_up_the_flag(self, sequence):
    rank = PriorityWithAgeing.rank(self, sequence)
    sequence.is_interactive = False
    return rank


def takes_the_head_start_away(self, sequence):
    if not sequence.is_interactive:
        self.head_start = 0
    return sequence.arrival_time + sequence.tier * self.patience - self.head_start


def shortens_the_patience(self, sequence):
    if sequence.is_interactive:
        self.patience -= self.head_start
    return sequence.arrival_time + sequence.tier * self.patience


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
    """Everybody 100 s later, and who is not interactive a head start later still: the same order."""
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
    """Makes numbers of the sequence floats; they are equal to what they were."""
    sequence.arrival_time = float(sequence.arrival_time)
    return PriorityWithAgeing.rank(self, sequence)


WRONG = {
    "09.1": [
        Wrong("prompts first", sharing(lambda running: more(running) + ones(running)), "The prompts come first here"),
        Wrong("in one turn", sharing(), "You go through `running` in one turn"),
        Wrong("no budget", forgets_the_budget, "give nobody more than is left"),
        Wrong("decodes are free", forgets_to_pay_for_decodes, "were not taken off the budget"),
        Wrong("more decodes than budget", pays_for_decodes_later, "The last of them get none"),
        Wrong(
            "whole prompts or nothing",
            sharing(decodes_first, give=lambda wish, left: wish if wish <= left else 0),
            "still gets a chunk",
        ),
        Wrong("an answer is a decode", counts_answers_as_decodes, "known − computed is the wish"),
        Wrong("answers first", sharing(answering_first), "You seem to ask whether there is an answer"),
        Wrong("entries of 0", keeps_zeros, "an entry of 0"),
        Wrong(
            "prompts backwards",
            sharing(lambda running: ones(running) + more(running)[::-1]),
            "served in the wrong order",
        ),
        Wrong(
            "short prompts first",
            sharing(lambda running: sorted(running, key=wanted)),
            "You serve short wishes before long ones",
        ),
        Wrong("decodes only", sharing(ones), "for prompts"),
        Wrong("prompts only", sharing(more), "1 is a wish too"),
        Wrong(
            "one prompt a step", sharing(lambda running: ones(running) + more(running)[:1]), "Only one of the prompts"
        ),
        Wrong("a token each", sharing(give=lambda wish, left: min(1, left)), "Everybody got one token"),
        Wrong(
            "a token each, decodes first",
            sharing(decodes_first, give=lambda wish, left: min(1, left)),
            "Nobody got more than one token",
        ),
        Wrong("computed tokens again", sharing(decodes_first, lambda s: s.num_tokens), "wanted = known − computed"),
        Wrong(
            "answers forgotten",
            sharing(decodes_first, lambda s: len(s.prompt_ids) - s.num_computed_tokens or 1),
            "and one token for whoever answers",
        ),
        Wrong(
            "prompts only counted",
            sharing(decodes_first, lambda s: len(s.prompt_ids) - s.num_computed_tokens),
            "You count the prompt only",
        ),
        Wrong("one token kept back", lambda running, budget: share_budget(running, max(budget - 1, 0)), "is not used"),
        Wrong("list emptied", empties_running, "changed the list `running`"),
        Wrong("counts what is only planned", computes_at_once, "This is a plan"),
        Wrong("names as keys", shares_by_name, "The keys are the sequences themselves"),
        Wrong("even shares", shares_evenly, "should be a whole number"),
        Wrong("pairs", returns_pairs, "a dict should come back"),
    ],
    "09.2": [
        Wrong("tokens known now", promising(tokens=lambda s: s.num_tokens), "that are known now"),
        Wrong("last token counted", promising(tokens=lambda s: s.most_tokens + 1), "handed out and never computed"),
        Wrong("prompt forgotten", promising(tokens=lambda s: s.max_new_tokens), "The prompt lies in the cache too"),
        Wrong("answer forgotten", promising(tokens=lambda s: len(s.prompt_ids)), "The answers need blocks too"),
        Wrong("newcomer forgotten", promising(who=lambda scheduler, s: scheduler.running), "The newcomer was left out"),
        Wrong("running forgotten", promising(who=lambda scheduler, s: [s]), "Those who run were left out"),
        Wrong(
            "queue counted",
            promising(who=lambda scheduler, s: [*scheduler.running, *scheduler.waiting]),
            "Nothing is promised to them",
        ),
        Wrong("rounded after the sum", rounds_once, "round up for each, then add"),
        Wrong(
            "rounded down", promising(blocks=lambda tokens, size: tokens // size), "A block that is begun counts whole"
        ),
        Wrong("tokens for blocks", promising(blocks=lambda tokens, size: tokens), "the pool counts blocks"),
        Wrong("free blocks only", promising(room=lambda pool: len(pool.free_queue)), "compare with `pool.num_blocks`"),
        Wrong("need against free", compares_need_with_free, "will be asked for later"),
        Wrong("less than", asks_for_one_more, "`<=`, not `<`"),
        Wrong("always", lambda scheduler, sequence: True, "It says yes to everybody"),
        Wrong("never", lambda scheduler, sequence: False, "It says no to everybody"),
        Wrong(
            "the wrong way round",
            lambda scheduler, sequence: not conservative(scheduler, sequence),
            "Yes and no are exchanged",
        ),
        Wrong("admits by itself", appends_the_newcomer, "only answers a question"),
        Wrong("the sum", returns_the_promise, "True or False should come back"),
        Wrong("nothing returned", returns_nothing, "yours returned None"),
    ],
    "09.3": [
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
            "whole prompt",
            waiting_with(count=lambda sequence, budget: wanted(sequence)),
            "A newcomer gets at most what is left",
        ),
        Wrong("budget not paid", waiting_with(pay=lambda budget, count: budget), "budget"),
        Wrong(
            "budget of the running ones forgotten",
            waiting_with(limit=lambda self, scheduler_output: self.max_num_batched_tokens),
            "Those who run have taken some of it",
        ),
        Wrong("half a token", waiting_with(count=lambda sequence, budget: 1), "what is left"),
        Wrong(
            "no tokens for newcomers",
            waiting_with(give=lambda self, scheduler_output, sequence, count: None),
            "gets its first tokens in the same step",
        ),
        Wrong("admission not asked", waiting_with(asks=lambda self, sequence: True), "The admission rule says no to B"),
        Wrong("small ones pass", scheduling(schedule_waiting=lets_small_ones_pass), "stands behind it and passed it"),
        Wrong("asks for ever", scheduling(schedule_waiting=asks_for_ever), "`break`, not `continue`"),
        Wrong(
            "by arrival whatever the policy",
            waiting_with(choose=lambda self: min(self.waiting, key=lambda s: s.arrival_time)),
            "names who is next by the policy",
        ),
        Wrong(
            "nobody to choose from",
            waiting_with(goes_on=lambda self, budget: budget and len(self.running) < self.max_num_seqs),
            "and nobody waits",
        ),
        Wrong("one newcomer a step", waiting_with(again=False), "one a step is too slow"),
        Wrong("nobody admitted", scheduling(schedule_waiting=admits_nobody), "yours admitted nobody"),
        Wrong(
            "batch barrier",
            scheduling(schedule_waiting=waits_for_an_empty_machine),
            "Others run, and that is no obstacle",
        ),
        Wrong("still in the queue", scheduling(schedule_waiting=enters_them_by_hand), "was admitted and still waits"),
        Wrong(
            "admitted not noted", scheduling(admit=forgets_to_note_them), "`scheduler_output.admitted` should name A"
        ),
        Wrong("no blocks", scheduling(give=gives_without_blocks), "allocate what is missing before the pass"),
        Wrong(
            "blocks for this step's tokens only",
            giving_with(needs=lambda s, count: count),
            "that is what its blocks must hold",
        ),
        Wrong("blocks of the whole prompt", giving_with(needs=lambda s, count: s.num_tokens), "for the whole prompt"),
        Wrong("blocks up to the cap", giving_with(needs=lambda s, count: s.most_tokens), "up to its cap"),
        Wrong("its own blocks forgotten", giving_with(less=lambda s: 0), "It holds blocks already"),
        Wrong("blocks not kept", giving_with(keeps=False), "nobody holds them"),
        Wrong("half of the blocks", giving_with(partly=True), "all that are missing or none"),
        Wrong("stall not noted", giving_with(note=lambda stalled, sequence: stalled), "`scheduler_output.stalled`"),
        Wrong("pool not asked", giving_with(asks=False), "planning raised OutOfBlocks"),
        Wrong("tokens without blocks", scheduling(give=counts_before_it_looks), "There are not enough free blocks"),
        Wrong(
            "admits while somebody stalls",
            waiting_with(heeds_stalls=False),
            "where `scheduler_output.stalled` holds anybody, admit nobody",
        ),
        Wrong(
            "only the prompt", waiting_with(count=lambda s, budget: min(len(s.prompt_ids), budget)), "known − computed"
        ),
        Wrong("all that is known", waiting_with(count=lambda s, budget: min(s.num_tokens, budget)), "known − computed"),
        Wrong(
            "only the last one that stalls",
            giving_with(note=lambda stalled, sequence: [sequence]),
            "`scheduler_output.stalled`",
        ),
        Wrong(
            "stalls with just enough blocks",
            giving_with(is_short=lambda missing, free: missing >= free),
            "`>`, not `>=`",
        ),
        Wrong("names as keys", scheduling(give=counts_names), "The keys are the sequences themselves"),
        Wrong("counted before the pass", scheduling(give=computes_while_planning), "by `update`"),
        Wrong("newcomers first", scheduling(schedule=newcomers_first), "The budget went to newcomers"),
        Wrong("no deadlock", scheduling(schedule=never_stops), "a Deadlock should be raised"),
        Wrong("deadlock when idle", scheduling(schedule=stops_when_there_is_nothing_to_do), "nobody can be stuck"),
        Wrong("deadlock at a stall", scheduling(schedule=stops_at_the_first_stall), "only if nobody at all can go on"),
        Wrong("only counts", scheduling(schedule=returns_counts), "should return a SchedulerOutput"),
    ],
    "09.4": [
        Wrong("sign wrong", by(lambda self, s: s.arrival_time - s.tier * self.patience), "The sign is wrong"),
        Wrong("strict", ageing(lambda self, s: (s.tier, s.arrival_time)), "That is strict priority"),
        Wrong("tier only", ageing(lambda self, s: s.tier), "Only the tier counts"),
        Wrong("arrival only", ageing(lambda self, s: s.arrival_time), "Only the arrival counts"),
        Wrong("tier forgotten", by(lambda self, s: s.arrival_time), "The tier does not count"),
        Wrong("newest first", by(lambda self, s: s.tier * self.patience - s.arrival_time), "the newest goes first"),
        Wrong(
            "all the other way round", ageing(lambda self, s: -PriorityWithAgeing.rank(self, s)), "the other way round"
        ),
        Wrong(
            "patience times arrival",
            by(lambda self, s: s.arrival_time * self.patience + s.tier),
            "multiplied with the arrival time",
        ),
        Wrong(
            "tier times arrival",
            by(lambda self, s: s.arrival_time * (self.patience + s.tier)),
            "depends on the time of day",
        ),
        Wrong("a tier is a second", by(lambda self, s: s.arrival_time + s.tier), "A tier is worth one second"),
        Wrong(
            "a number of one's own",
            by(lambda self, s: s.arrival_time + 10 * s.tier),
            "the same whatever the patience is",
        ),
        Wrong(
            "divides by patience",
            by(lambda self, s: s.arrival_time / self.patience + s.tier),
            "divides by the patience",
        ),
        Wrong(
            "two tiers only",
            by(lambda self, s: s.arrival_time + (self.patience if s.tier else 0)),
            "Tier 2 counts as tier 1",
        ),
        Wrong(
            "whole seconds", by(lambda self, s: int(s.arrival_time) + s.tier * self.patience), "Fractions of a second"
        ),
        Wrong(
            "hundredths of a second",
            ageing(lambda self, s: round(PriorityWithAgeing.rank(self, s), 2)),
            "Fractions of a second",
        ),
        Wrong(
            "milliseconds rounded",
            ageing(lambda self, s: round(1000 * PriorityWithAgeing.rank(self, s))),
            "Fractions of a second",
        ),
        Wrong(
            "a rank in whole seconds",
            ageing(lambda self, s: PriorityWithAgeing.rank(self, s) // 1),
            "Fractions of a second",
        ),
        Wrong(
            "arrival in milliseconds",
            by(lambda self, s: s.arrival_time * 1000 + s.tier * self.patience),
            "The arrival time is multiplied by 1000 here",
        ),
        Wrong(
            "arrival in microseconds",
            by(lambda self, s: s.arrival_time * 1e6 + s.tier * self.patience),
            "A sequence ranks as if it had come",
        ),
        Wrong(
            "arrival forgotten",
            by(lambda self, s: s.tier * self.patience),
            "When a sequence came does not count in your rank",
        ),
        Wrong("only readers count", by(lambda self, s: 0), "Only the reader counts"),
        Wrong(
            "patience times head start",
            by(reader=lambda self, s: -self.patience * self.head_start),
            "The head start is multiplied with the patience",
        ),
        Wrong(
            "head start times patience and tier",
            by(lambda self, s: s.arrival_time + s.tier * self.patience * self.head_start),
            "The patience is multiplied with the head start",
        ),
        Wrong(
            "arrival and tier the other way round",
            by(lambda self, s: -s.arrival_time - s.tier * self.patience),
            "Arrival and tier are the other way round",
        ),
        Wrong(
            "asks the clock",
            by(lambda self, s: s.tier * self.patience - (time.perf_counter() - s.arrival_time)),
            "leave the clock out",
        ),
        Wrong(
            "changes the sequence", ageing(moves_the_arrival), "came at 1 s, tier 1, not interactive became came at 11"
        ),
        Wrong("takes a token away", ageing(takes_a_token_away), "its tokens, its blocks, or how far it is"),
        Wrong("nothing returned", ageing(lambda self, s: None), "yours returned None"),
        Wrong("no head start", by(reader=lambda self, s: 0), "Who reads along does not count"),
        Wrong(
            "head start for all",
            ageing(lambda self, s: s.arrival_time + s.tier * self.patience - self.head_start),
            "Everybody gets the head start",
        ),
        Wrong(
            "sign of the head start", by(reader=lambda self, s: self.head_start), "The sign of the head start is wrong"
        ),
        Wrong(
            "head start for the others",
            ageing(
                lambda self, s: s.arrival_time + s.tier * self.patience - (0 if s.is_interactive else self.head_start)
            ),
            "those with whom nobody reads along",
        ),
        Wrong(
            "a reader is a second",
            ageing(lambda self, s: s.arrival_time + s.tier * self.patience - s.is_interactive),
            "A reader is worth one second",
        ),
        Wrong("a reader's number of one's own", by(reader=lambda self, s: -4), "the same whatever the head start is"),
        Wrong(
            "a reader is a tier",
            ageing(lambda self, s: s.arrival_time + (s.tier - s.is_interactive) * self.patience),
            "A reader is worth `patience` seconds",
        ),
        Wrong(
            "the numbers exchanged",
            by(lambda self, s: s.arrival_time + s.tier * self.head_start, lambda self, s: -self.patience),
            "A tier is worth `head_start` seconds",
        ),
        Wrong(
            "head start off the patience",
            by(reader=lambda self, s: -s.tier * self.head_start),
            "The head start is multiplied with the tier",
        ),
        Wrong(
            "head start instead of the tier",
            by(reader=lambda self, s: -s.tier * self.patience - self.head_start),
            "The head start comes on top of it",
        ),
        Wrong(
            "readers are of tier 0",
            by(reader=lambda self, s: -s.tier * self.patience),
            "the head start does for nobody",
        ),
        Wrong(
            "head start in tier 0 only",
            by(reader=lambda self, s: -self.head_start * (s.tier == 0)),
            "Only tier 0 has a head start",
        ),
        Wrong(
            "head start below tier 0 only",
            by(reader=lambda self, s: -self.head_start * (s.tier > 0)),
            "A reader of tier 0 has no head start",
        ),
        Wrong(
            "head start up to the tier",
            ageing(
                lambda self, s: (
                    s.arrival_time + max(0, s.tier * self.patience - (self.head_start if s.is_interactive else 0))
                )
            ),
            "makes up for the tier at most",
        ),
        Wrong(
            "no rank below 0", ageing(lambda self, s: max(0, PriorityWithAgeing.rank(self, s))), "do not fall below 0"
        ),
        Wrong(
            "no arrival below 0",
            ageing(
                lambda self, s: max(0, s.arrival_time - self.head_start * s.is_interactive) + s.tier * self.patience
            ),
            "Readers of the first seconds are all alike",
        ),
        Wrong(
            "readers first",
            ageing(lambda self, s: (not s.is_interactive, s.arrival_time + s.tier * self.patience)),
            "All interactive requests go before all others",
        ),
        Wrong(
            "readers, then tiers",
            ageing(lambda self, s: (not s.is_interactive, s.tier, s.arrival_time)),
            "All interactive requests go before all others",
        ),
        Wrong(
            "tiers, then readers",
            ageing(lambda self, s: (s.tier, not s.is_interactive, s.arrival_time)),
            "That is strict priority",
        ),
        Wrong(
            "strict with a head start",
            ageing(lambda self, s: (s.tier, s.arrival_time - self.head_start * s.is_interactive)),
            "counts within a tier only",
        ),
        Wrong(
            "divides by the head start",
            ageing(lambda self, s: (s.arrival_time + s.tier * self.patience) / self.head_start - s.is_interactive),
            "divides by the head start",
        ),
        Wrong("reader's arrival changed", ageing(moves_the_arrival_of_readers), "interactive became came at"),
        Wrong("reader's tier changed", ageing(raises_the_tier_of_readers), "became came at 103 s, tier 0, interactive"),
        Wrong("flag used up", ageing(uses_up_the_flag), "became came at"),
        Wrong("head start taken away", ageing(takes_the_head_start_away), "your code changed the policy"),
        Wrong("patience shortened", ageing(shortens_the_patience), "your code changed the policy"),
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
RIGHT = {
    "09.1": [sharing(decodes_first), in_two_dicts],
    "09.2": [subtracts_one_by_one, counts_what_is_still_to_come],
    "09.3": [scheduling(schedule=schedule_in_one_piece), scheduling(give=give_block_by_block)],
    "09.4": [ageing(rank) for rank in RANKS],
}
