"""Answers to the exercises of lesson 10: what learners get wrong, and other ways to be right."""

from dataclasses import replace

import numpy as np
from answers import Wrong
from lessons_lib.kv_cache.block_copies import SWAP_OUT, BlockCopy
from lessons_lib.kv_cache.block_pool import blocks_for
from lessons_lib.scheduling.preemption import last_in_rank, preempt_sequence
from lessons_lib.scheduling.swap_cost import swap_if_cheaper

# 10.1 last_in_rank


def takes_the_first_in_rank(candidates, policy):
    return min(candidates, key=policy.rank)


def compares_pairs(candidates, policy):
    return max((policy.rank(sequence), sequence) for sequence in candidates)[1]


def takes_the_first_of_two_alike(candidates, policy):
    return max(candidates, key=policy.rank)


def starts_from_zero(candidates, policy):
    """The largest rank so far is 0 at first, so that no negative one is ever larger."""
    largest, victim = (0, 0.0), candidates[-1]
    for candidate in candidates:
        rank = policy.rank(candidate)
        pair = rank if isinstance(rank, tuple) else (rank, 0.0)
        if pair >= largest:
            largest, victim = pair, candidate
    return victim


def returns_nothing_for_negative_ranks(candidates, policy):
    victim, largest = None, (0,)
    for candidate in candidates:
        if parts_of(policy.rank(candidate)) >= largest:
            victim, largest = candidate, parts_of(policy.rank(candidate))
    return victim


def parts_of(rank):
    return rank if isinstance(rank, tuple) else (rank,)


def rounds_the_ranks(candidates, policy):
    return max(reversed(candidates), key=lambda sequence: [int(part) for part in parts_of(policy.rank(sequence))])


def rounds_pairs(candidates, policy):
    def rounded(sequence):
        rank = policy.rank(sequence)
        return tuple(map(round, rank)) if isinstance(rank, tuple) else rank

    return max(reversed(candidates), key=rounded)


def ranks_in_float32(candidates, policy):
    return max(reversed(candidates), key=lambda sequence: np.float32(parts_of(policy.rank(sequence))).tolist())


RANKS_BY_ID: dict = {}
RANKS_BY_SEQUENCE: dict = {}


def remembers_ranks_by_id(candidates, policy):
    for sequence in candidates:
        RANKS_BY_ID.setdefault(sequence.id, policy.rank(sequence))
    return max(reversed(candidates), key=lambda sequence: RANKS_BY_ID[sequence.id])


def remembers_ranks_by_sequence(candidates, policy):
    for sequence in candidates:
        RANKS_BY_SEQUENCE.setdefault(sequence, policy.rank(sequence))
    return max(reversed(candidates), key=RANKS_BY_SEQUENCE.get)


def breaks_ties_by_id(candidates, policy):
    return max(candidates, key=lambda sequence: (policy.rank(sequence), sequence.id))


def spares_those_with_an_answer(candidates, policy):
    begun = [sequence for sequence in candidates if not sequence.output_ids]
    return max(reversed(begun or candidates), key=policy.rank)


def spares_those_without_an_answer(candidates, policy):
    begun = [sequence for sequence in candidates if sequence.output_ids]
    return max(reversed(begun or candidates), key=policy.rank)


def spares_those_with_nothing_computed(candidates, policy):
    computed = [sequence for sequence in candidates if sequence.num_computed_tokens]
    return max(reversed(computed or candidates), key=policy.rank)


def spares_interactive_ones(candidates, policy):
    return max(reversed(candidates), key=lambda sequence: (not sequence.is_interactive, policy.rank(sequence)))


def breaks_ties_by_length(candidates, policy):
    return max(reversed(candidates), key=lambda sequence: (policy.rank(sequence), -sequence.num_tokens))


def looks_at_the_tier(candidates, policy):
    def first_part(sequence):
        rank = policy.rank(sequence)
        return rank[0] if isinstance(rank, tuple) else rank

    return max(reversed(candidates), key=first_part)


def compares_neighbors(candidates, policy):
    victim = candidates[0]
    for before, after in zip(candidates, candidates[1:]):
        if policy.rank(after) >= policy.rank(before):
            victim = after
    return victim


def takes_the_last_admitted(candidates, policy):
    return candidates[-1]


def takes_the_first_admitted(candidates, policy):
    return candidates[0]


def takes_the_longest(candidates, policy):
    return max(reversed(candidates), key=lambda sequence: sequence.num_tokens)


def takes_the_last_to_come(candidates, policy):
    return max(reversed(candidates), key=lambda sequence: sequence.arrival_time)


def returns_the_rank(candidates, policy):
    return max(policy.rank(sequence) for sequence in candidates)


def returns_the_index(candidates, policy):
    return candidates.index(last_in_rank(candidates, policy))


def returns_the_id(candidates, policy):
    return last_in_rank(candidates, policy).id


def reverses_in_place(candidates, policy):
    candidates.reverse()
    return max(candidates, key=policy.rank)


def sorts_in_place(candidates, policy):
    candidates.sort(key=policy.rank)
    return candidates[-1]


def breaks_ties_by_queue_place(candidates, policy):
    return max(reversed(candidates), key=lambda one: (policy.rank(one), one.queue_place or 0))


def looks_at_the_tier_first(candidates, policy):
    return max(reversed(candidates), key=lambda one: (one.tier, policy.rank(one)))


def pops_the_victim(candidates, policy):
    return candidates.pop(candidates.index(last_in_rank(candidates, policy)))


def returns_no_victim(candidates, policy):
    last_in_rank(candidates, policy)


def spares_the_one_that_stands_alone(candidates, policy):
    return last_in_rank(candidates, policy) if len(candidates) > 1 else None


def breaks_ties_by_arrival(candidates, policy):
    return max(reversed(candidates), key=lambda sequence: (policy.rank(sequence), sequence.arrival_time))


def negates_the_rank(candidates, policy):
    return min(reversed(candidates), key=lambda sequence: -policy.rank(sequence))


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


def preempting(
    *,
    step=lambda output, victim: output.num_scheduled_tokens.pop(victim, None),
    note=lambda output, victim: output.preempted.append(victim),
    leave=lambda scheduler, victim: scheduler.running.remove(victim),
    queue=lambda scheduler, victim: scheduler.waiting.add(victim),
    free=lambda scheduler, victim: scheduler.pool.free(victim.blocks),
    forget=lambda victim: setattr(victim, "blocks", []),
    uncount=lambda victim: None if victim.swapped else setattr(victim, "num_computed_tokens", 0),
):
    """The reference, with some of its parts replaced."""

    def preempt(scheduler, scheduler_output, victim):
        step(scheduler_output, victim)
        note(scheduler_output, victim)
        leave(scheduler, victim)
        queue(scheduler, victim)
        free(scheduler, victim)
        forget(victim)
        uncount(victim)

    return preempt


def nothing(*args):
    pass


def drops_copies_of_freed_blocks(output, victim):
    output.num_scheduled_tokens.pop(victim, None)
    output.block_copies[:] = [
        each for each in output.block_copies if not {each.source, each.target} & set(victim.blocks)
    ]


def lists_the_copies_again(output, victim):
    output.num_scheduled_tokens.pop(victim, None)
    output.block_copies += [BlockCopy(SWAP_OUT, *pair) for pair in zip(victim.blocks, victim.swapped)]


def frees_by_hand(scheduler, victim):
    pool = scheduler.pool
    for block in reversed(victim.blocks):
        pool.used.discard(block)
        pool.ref_count.pop(block, None)
        pool.free_queue.append(block)


def starts_the_answer_over(scheduler, scheduler_output, victim):
    preempt_sequence(scheduler, scheduler_output, victim)
    victim.output_ids = []


def makes_the_answer_a_prompt(scheduler, scheduler_output, victim):
    preempt_sequence(scheduler, scheduler_output, victim)
    victim.prompt_ids, victim.output_ids = victim.token_ids, []


def keeps_the_prompt_computed(victim):
    victim.num_computed_tokens = min(len(victim.prompt_ids), victim.num_computed_tokens)


def subtracts_the_scheduled_tokens(scheduler, scheduler_output, victim):
    count = scheduler_output.num_scheduled_tokens.get(victim, 0)
    preempting(uncount=nothing)(scheduler, scheduler_output, victim)
    victim.num_computed_tokens -= count


def subtracts_them_from_a_swapped_one(scheduler, scheduler_output, victim):
    count = scheduler_output.num_scheduled_tokens.get(victim, 0)
    preempting()(scheduler, scheduler_output, victim)
    if victim.swapped:
        victim.num_computed_tokens -= count


def arrives_anew(scheduler, victim):
    victim.arrival_time, victim.queue_place = 100.0, None
    scheduler.waiting.add(victim)


def arrives_first(scheduler, victim):
    victim.arrival_time = -1.0
    scheduler.waiting.add(victim)


def loses_its_place(scheduler, victim):
    victim.queue_place = None
    scheduler.waiting.add(victim)


def gets_the_best_tier(scheduler, victim):
    victim.tier = 0
    scheduler.waiting.add(victim)


def adds_a_copy(scheduler, victim):
    scheduler.waiting.add(replace(victim))


def forgets_its_copies(victim):
    if victim.swapped:
        victim.swapped = []
    else:
        victim.num_computed_tokens = 0
    victim.blocks = []


def stays_in_the_step_if_swapped(scheduler, scheduler_output, victim):
    preempting(**{"step": nothing} if victim.swapped else {})(scheduler, scheduler_output, victim)


def counts_swapped_blocks(victim):
    victim.num_computed_tokens = 4 * len(victim.swapped)


def frees_full_blocks(scheduler, victim):
    scheduler.pool.free(victim.blocks[: victim.num_computed_tokens // scheduler.pool.block_size])


def frees_filled_blocks(scheduler, victim):
    scheduler.pool.free(victim.blocks[: blocks_for(victim.num_computed_tokens, scheduler.pool.block_size)])


def extends_the_free_queue(scheduler, victim):
    scheduler.pool.free_queue.extend(victim.blocks)


def resets_the_pool(scheduler, victim):
    scheduler.pool.reset()


def releases_the_swap_space(scheduler, victim):
    scheduler.release(victim)


def counts_it_too(scheduler, scheduler_output, victim):
    preempt_sequence(scheduler, scheduler_output, victim)
    scheduler.num_preempted += 1


def preempts_everything(scheduler, scheduler_output, victim):
    for sequence in list(scheduler.running):
        preempt_sequence(scheduler, scheduler_output, sequence)


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


def block_by_block(scheduler, victim):
    while victim.blocks:
        scheduler.pool.free([victim.blocks.pop()])


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


def clears_in_place(victim):
    victim.blocks.clear()


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


def swap_slope_only(recorded, tokens):
    return lines(recorded)[1] * tokens


def recompute_line(recorded, tokens):
    return lines(recorded)[2] + lines(recorded)[3] * tokens


def swap_by_bandwidth(recorded, tokens):
    last = recorded[-1]
    bandwidth = 2 * last["bytes"] / (last["swap_out_s"] + last["swap_in_s"])
    return 2 * tokens * last["bytes"] / last["tokens"] / bandwidth


def recompute_by_rate(recorded, tokens):
    return tokens * recorded[-1]["recompute_s"] / recorded[-1]["tokens"]


def out_only(recorded, tokens):
    first, last = recorded[0], recorded[-1]
    slope = (last["swap_out_s"] - first["swap_out_s"]) / (last["tokens"] - first["tokens"])
    return first["swap_out_s"] + slope * (tokens - first["tokens"])


def direction(recorded, tokens):
    first, last = recorded[0], recorded[-1]
    for key in ("swap_out_s", "swap_in_s"):
        yield first[key] + (last[key] - first[key]) / (last["tokens"] - first["tokens"]) * (tokens - first["tokens"])


def twice_out(recorded, tokens):
    return 2 * out_only(recorded, tokens)


def base_for_every_block(recorded, tokens):
    base, slope, *_ = lines(recorded)
    return base * tokens / 16 + slope * tokens


def twice_both(recorded, tokens):
    return 2 * swap_line(recorded, tokens)


def in_milliseconds(recorded, tokens):
    return 1000 * swap_line(recorded, tokens)


def interpolated(recorded, tokens):
    measured = [row["tokens"] for row in recorded]
    return np.interp(tokens, measured, [row["swap_out_s"] + row["swap_in_s"] for row in recorded])


def nearest_row(recorded, tokens):
    row = min(recorded, key=lambda row: abs(row["tokens"] - tokens))
    return row["swap_out_s"] + row["swap_in_s"]


def decides_at_once(recorded):
    return recorded[-1]["swap_out_s"] + recorded[-1]["swap_in_s"] < recorded[-1]["recompute_s"]


def returns_the_saving(recorded):
    def should_swap(scheduler, victim):
        size = scheduler.pool.block_size
        return recompute_slope(recorded, victim.num_computed_tokens) - swap_line(recorded, rounded_up(victim, size))

    return should_swap


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


def by_the_last_two(recorded):
    return swap_if_cheaper(recorded[-2:])


def by_the_first_two(recorded):
    return swap_if_cheaper(recorded[:2])


def by_least_squares(recorded):
    tokens = [row["tokens"] for row in recorded]
    swap = np.polyfit(tokens, [row["swap_out_s"] + row["swap_in_s"] for row in recorded], 1)
    recompute = np.polyfit(tokens, [row["recompute_s"] for row in recorded], 1)

    def should_swap(scheduler, victim):
        copied = rounded_up(victim, scheduler.pool.block_size)
        return bool(swap[1] + swap[0] * copied < recompute[0] * victim.num_computed_tokens)

    return should_swap


def above_break_even(recorded):
    base, swap, _, recompute = lines(recorded)
    return lambda scheduler, victim: bool(victim.num_computed_tokens > base / (recompute - swap))


def with_wrong_slopes(tokens, doubled=1, base=lambda first, line: line):
    """The differences of times are divided by `tokens(first, last)`."""

    def swap_if_cheaper(recorded):
        first, last = recorded[0], recorded[-1]
        start = first["swap_out_s"] + first["swap_in_s"]
        slope = (last["swap_out_s"] + last["swap_in_s"] - start) / tokens(first, last)
        rate = (last["recompute_s"] - first["recompute_s"]) / tokens(first, last)
        on_top = doubled * base(start, start - slope * first["tokens"])

        def should_swap(scheduler, victim):
            copied = rounded_up(victim, scheduler.pool.block_size)
            return on_top + slope * copied < rate * victim.num_computed_tokens

        return should_swap

    return swap_if_cheaper


def difference(first, last):
    return last["tokens"] - first["tokens"]


def needs_swap_space(recorded):
    decide = swap_if_cheaper(recorded)
    return lambda scheduler, victim: len(scheduler.swap_space.free_queue) > 0 and decide(scheduler, victim)


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


def takes_the_nearest_measurement(recorded):
    def should_swap(scheduler, victim):
        row = min(recorded, key=lambda row: abs(row["tokens"] - victim.num_computed_tokens))
        return row["swap_out_s"] + row["swap_in_s"] < row["recompute_s"]

    return should_swap


def rounded_up_to(tokens, size):
    return size * blocks_for(tokens, size)


def between_the_measurements(recorded):
    first, last = recorded[0], recorded[-1]
    slope = (last["recompute_s"] - first["recompute_s"]) / (last["tokens"] - first["tokens"])
    base = first["recompute_s"] - slope * first["tokens"]
    lengths = [first["tokens"], last["tokens"]]
    swaps = [row["swap_out_s"] + row["swap_in_s"] for row in (first, last)]
    steps = [row["recompute_s"] - base for row in (first, last)]

    def should_swap(scheduler, victim):
        computed = victim.num_computed_tokens
        copied = rounded_up_to(computed, scheduler.pool.block_size)
        return bool(np.interp(copied, lengths, swaps) < np.interp(computed, lengths, steps))

    return should_swap


WRONG = {
    "10.1": [
        Wrong("pairs of rank and sequence", compares_pairs, "compares the sequences, and they have no order"),
        Wrong("whole numbers", rounds_the_ranks, "as they are: rounded to whole numbers, these two are equal"),
        Wrong("whole numbers in pairs", rounds_pairs, "Compare the pairs as they are"),
        Wrong("float32", ranks_in_float32, "as float32, these two are equal"),
        Wrong("ranks kept by id", remembers_ranks_by_id, "keep ranks from one call to the next"),
        Wrong("ranks kept by sequence", remembers_ranks_by_sequence, "keep a sequence's rank"),
        Wrong("ties by the place in the queue", breaks_ties_by_queue_place, "the order in which they waited"),
        Wrong("tier before rank", looks_at_the_tier_first, "doesn't look at the tier"),
        Wrong("negative ranks are never larger", starts_from_zero, "their ranks are −1 and −2"),
        Wrong("no victim if all ranks are negative", returns_nothing_for_negative_ranks, "rank of the first candidate"),
        Wrong(
            "the smallest rank instead of the largest",
            takes_the_first_in_rank,
            "The victim is the one with the largest",
        ),
        Wrong("the first of two equal ranks", takes_the_first_of_two_alike, "Which of several equal ones do `max`"),
        Wrong("the largest id of two equal ranks", breaks_ties_by_id, "not the id"),
        Wrong("the last admitted, whatever its rank", takes_the_last_admitted, "was preempted once"),
        Wrong("only those without an answer", spares_those_with_an_answer, "A has 3 tokens of its answer"),
        Wrong("only those with an answer", spares_those_without_an_answer, "B has 3 tokens of its answer"),
        Wrong("only those with computed tokens", spares_those_with_nothing_computed, "none of its tokens are computed"),
        Wrong("interactive ones are spared", spares_interactive_ones, "only A is interactive"),
        Wrong("the first admitted", takes_the_first_admitted, "B is first in the list"),
        Wrong("the longest", takes_the_longest, "The length of a sequence doesn't matter"),
        Wrong("the latest arrival, whatever the policy", takes_the_last_to_come, "not `arrival_time` or `tier`"),
        Wrong("the rank instead of the sequence", returns_the_rank, "yours returned 1.0"),
        Wrong("the index instead of the sequence", returns_the_index, "yours returned 0"),
        Wrong("the id instead of the sequence", returns_the_id, "yours returned 'A'"),
        Wrong("the list is reversed", reverses_in_place, "is [C, D, A, B] afterwards"),
        Wrong("the list is sorted", sorts_in_place, "is [A, B, C, D] afterwards"),
        Wrong("the victim is removed from the list", pops_the_victim, "is [] afterwards"),
        Wrong(
            "never the first",
            lambda c, policy: max(reversed(c[1:] or c), key=policy.rank),
            "the first in the list. Does",
        ),
        Wrong(
            "never the first, even if alone",
            lambda candidates, policy: max(reversed(candidates[1:]), key=policy.rank),
            "There is one candidate here. Does your code leave one out",
        ),
        Wrong(
            "never the last",
            lambda c, policy: max(reversed(c[:-1] or c), key=policy.rank),
            "the last in the list. Does",
        ),
        Wrong("the tier of a pair only", looks_at_the_tier, "the second number of the pairs decides"),
        Wrong("neighbors only", compares_neighbors, "Compare each candidate with the best victim so far"),
        Wrong("the shortest of two alike", breaks_ties_by_length, "Their tokens and blocks make no difference"),
        Wrong("the later arrival of two alike", breaks_ties_by_arrival, "A's later arrival makes no difference"),
        Wrong("nothing is returned", returns_no_victim, "yours returned None"),
        Wrong("a negated rank that is a pair", negates_the_rank, "TypeError"),
    ],
    "10.2": [
        Wrong(
            "the copies of its freed blocks are dropped",
            preempting(step=drops_copies_of_freed_blocks),
            "target=0); yours has lost it",
        ),
        Wrong("its copies are listed again", preempting(step=lists_the_copies_again), "Preempting copies nothing"),
        Wrong("blocks are freed by hand", preempting(free=frees_by_hand), "block 0 should still be in use, with a"),
        Wrong("the victim stays in the step", preempting(step=nothing), "to blocks that it no longer has. Take B out."),
        Wrong(
            "before the other victims",
            preempting(note=lambda output, victim: output.preempted.insert(0, victim)),
            "should be [Z, B]; yours is [B, Z]",
        ),
        Wrong(
            "instead of the other victims",
            preempting(note=lambda output, victim: setattr(output, "preempted", [victim])),
            "Keep those that are in the list already",
        ),
        Wrong(
            "`del`, though it may not have been scheduled",
            preempting(step=lambda output, victim: output.num_scheduled_tokens.__delitem__(victim)),
            "isn't in `num_scheduled_tokens`",
        ),
        Wrong(
            "the step computes nothing at all",
            preempting(step=lambda output, victim: output.num_scheduled_tokens.clear()),
            "The other sequences still compute",
        ),
        Wrong(
            "the step computes 0 tokens of it",
            preempting(step=lambda output, victim: output.num_scheduled_tokens.update({victim: 0})),
            "With 0 tokens B would still be part of the batch",
        ),
        Wrong(
            "the list of victims is replaced by the victim",
            preempting(note=lambda output, victim: setattr(output, "preempted", victim)),
            "append the victim to the list",
        ),
        Wrong(
            "it is noted as admitted",
            preempting(note=lambda output, victim: (output.preempted.append(victim), output.admitted.append(victim))),
            "The victim wasn't admitted in this step",
        ),
        Wrong("it isn't noted as preempted", preempting(note=nothing), "is how it knows"),
        Wrong(
            "the id is noted, not the sequence",
            preempting(note=lambda output, victim: output.preempted.append(victim.id)),
            "yours is ['B']",
        ),
        Wrong("it keeps its batch slot", preempting(leave=nothing), "must give up its batch slot"),
        Wrong(
            "the last one admitted loses its batch slot",
            preempting(leave=lambda scheduler, victim: scheduler.running.pop()),
            "the last one admitted isn't always the victim",
        ),
        Wrong("it doesn't wait again", preempting(queue=nothing), "it has to wait for its next turn"),
        Wrong(
            "the queue is taken for a list",
            preempting(queue=lambda scheduler, victim: scheduler.waiting.insert(0, victim)),
            "The waiting queue isn't a list",
        ),
        Wrong(
            "the queue is emptied",
            preempting(queue=lambda scheduler, victim: (scheduler.waiting.clear(), scheduler.waiting.add(victim))),
            "isn't waiting any more",
        ),
        Wrong("a copy of it waits", preempting(queue=adds_a_copy), "B itself should wait"),
        Wrong(
            "it forgets where its copies are",
            preempting(forget=forgets_its_copies, uncount=nothing),
            "as it is: when B is admitted",
        ),
        Wrong("a swapped one stays in the step", stays_in_the_step_if_swapped, "would compute 7 tokens of B"),
        Wrong("as many as fit in the swapped blocks", preempting(uncount=counts_swapped_blocks), "should still be 5"),
        Wrong("it arrives anew", preempting(queue=arrives_anew), "`arrival_time` of B has changed"),
        Wrong("it arrives first", preempting(queue=arrives_first), "`B.arrival_time` should still be 1.0"),
        Wrong(
            "it loses its place among equals", preempting(queue=loses_its_place), "`B.queue_place` should still be 1"
        ),
        Wrong("it gets the best tier", preempting(queue=gets_the_best_tier), "`B.tier` should still be 1"),
        Wrong("the blocks aren't freed", preempting(free=nothing), "counts 2, 3 as used, and B has no blocks"),
        Wrong("only full blocks are freed", preempting(free=frees_full_blocks), "blocks 2, 3, 4 of B should be free"),
        Wrong(
            "only filled blocks are freed",
            preempting(free=frees_filled_blocks),
            "counts 4 as used, and B has no blocks",
        ),
        Wrong("the free queue is extended by hand", preempting(free=extends_the_free_queue), "Leave the pool's books"),
        Wrong("the whole pool is reset", preempting(free=resets_the_pool), "and no others"),
        Wrong(
            "its blocks become None",
            preempting(forget=lambda victim: setattr(victim, "blocks", None)),
            "It stays a list",
        ),
        Wrong("it keeps its block table", preempting(forget=nothing), "and free its blocks"),
        Wrong("it keeps blocks and table", preempting(free=nothing, forget=nothing), "still counts 2, 3 as used"),
        Wrong("its tokens still count as computed", preempting(uncount=nothing), "the scheduler won't compute them"),
        Wrong(
            "its prompt still counts as computed",
            preempting(uncount=keeps_the_prompt_computed),
            "`B.num_computed_tokens` should be 0; yours is 5",
        ),
        Wrong(
            "only this step's tokens are taken back",
            subtracts_the_scheduled_tokens,
            "`B.num_computed_tokens` should be 0; yours is 7",
        ),
        Wrong(
            "this step's tokens are taken back from a swapped one",
            subtracts_them_from_a_swapped_one,
            "there is nothing to subtract",
        ),
        Wrong(
            "a swapped victim is recomputed",
            preempting(uncount=lambda victim: setattr(victim, "num_computed_tokens", 0)),
            "are in the swap space, so",
        ),
        Wrong("the swap space is freed too", preempting(free=releases_the_swap_space), "holds the only copy"),
        Wrong("the answer starts over", starts_the_answer_over, "They have already been sent"),
        Wrong("the answer is moved to the prompt", makes_the_answer_a_prompt, "`B.prompt_ids` has changed"),
        Wrong("it is counted twice", counts_it_too, "would be counted twice"),
        Wrong("everything is preempted", preempts_everything, "A should still run"),
    ],
    "10.3": [
        Wrong("the nearest measurement", takes_the_nearest_measurement, "the measurement that is nearest in length"),
        Wrong("turned round", choosing(recompute_slope, swap_line), "the wrong way round"),
        Wrong("only out", choosing(out_only, recompute_slope), "A victim is copied twice"),
        Wrong("twice out", choosing(twice_out, recompute_slope), "Out and in may take different times"),
        Wrong("a step of its own", choosing(swap_line, recompute_line), "The step that brings the victim back"),
        Wrong("tokens over a rate", choosing(swap_line, recompute_by_rate), "Compare two measurements"),
        Wrong("a swap costs its bytes only", choosing(swap_slope_only, recompute_slope), "a swap of 0 tokens"),
        Wrong("bytes over a bandwidth", choosing(swap_by_bandwidth, recompute_slope), "come from a single measurement"),
        Wrong("the base for every block", choosing(base_for_every_block, recompute_slope), "For a long victim"),
        Wrong("both directions, twice", choosing(twice_both, recompute_slope), "Count each of them once"),
        Wrong("between measurements only", choosing(interpolated, recompute_slope), "The line goes on"),
        Wrong("milliseconds and seconds", choosing(in_milliseconds, recompute_slope), "in the same unit"),
        Wrong("the nearest row", choosing(nearest_row, recompute_slope), "so the function should return"),
        Wrong(
            "blocks aren't whole",
            choosing(swap_line, recompute_slope, copied=lambda victim, size: victim.num_computed_tokens),
            "17 tokens are in two blocks",
        ),
        Wrong(
            "a block of 16, always",
            choosing(swap_line, recompute_slope, copied=lambda victim, size: rounded_up(victim, 16)),
            "five blocks of 4",
        ),
        Wrong(
            "one block too many",
            choosing(swap_line, recompute_slope, copied=lambda v, size: (v.num_computed_tokens // size + 1) * size),
            "Is one block too many copied?",
        ),
        Wrong(
            "all its blocks",
            choosing(swap_line, recompute_slope, copied=lambda victim, size: size * len(victim.blocks)),
            "Only blocks with computed tokens",
        ),
        Wrong(
            "all known tokens",
            choosing(
                swap_line,
                recompute_slope,
                copied=lambda victim, size: size * blocks_for(victim.num_tokens, size),
                tokens=lambda victim: victim.num_tokens,
            ),
            "that can be copied or lost",
        ),
        Wrong(
            "recomputes all known tokens",
            choosing(swap_line, recompute_slope, tokens=lambda victim: victim.num_tokens),
            "so it is no reason to swap",
        ),
        Wrong(
            "one computed token less",
            choosing(swap_line, recompute_slope, tokens=lambda victim: victim.num_computed_tokens - 1),
            "Does your function count one fewer?",
        ),
        Wrong(
            "only the tokens beyond the first measurement",
            lambda recorded: choosing(
                swap_line, lambda rows, n: recompute_slope(rows, n) - recompute_slope(rows, rows[0]["tokens"])
            )(recorded),
            "to swap and to recompute",
        ),
        Wrong(
            "only the prompt is recomputed",
            choosing(swap_line, recompute_slope, tokens=lambda v: min(v.num_computed_tokens, len(v.prompt_ids))),
            "Most of what is computed belongs to the answer",
        ),
        Wrong(
            "only the prompt is copied",
            choosing(
                swap_line,
                recompute_slope,
                copied=lambda v, size: rounded_up_to(min(v.num_computed_tokens, len(v.prompt_ids)), size),
            ),
            "Most of what is computed belongs to the answer",
        ),
        Wrong("both lines end at the measurements", between_the_measurements, "The line goes on at both ends"),
        Wrong("the last two measurements", by_the_last_two, "use the last two measurements"),
        Wrong("the first two measurements", by_the_first_two, "use the first two measurements"),
        Wrong("all measurements", by_least_squares, "Use the first and the last"),
        Wrong("one break-even length", above_break_even, "with one break-even length"),
        Wrong(
            "blocks instead of tokens",
            choosing(swap_line, recompute_slope, copied=lambda v, size: blocks_for(v.num_computed_tokens, size)),
            "seems to get a number of blocks",
        ),
        Wrong(
            "recomputes whole blocks",
            choosing(swap_line, recompute_slope, tokens=lambda v: 16 * blocks_for(v.num_computed_tokens, 16)),
            "only the 17 computed tokens are recomputed",
        ),
        Wrong(
            "the first measurement on top",
            with_wrong_slopes(difference, base=lambda first, line: first),
            "the whole time of the first measurement",
        ),
        Wrong("on top twice", with_wrong_slopes(difference, doubled=2), "on top twice"),
        Wrong("over the last tokens", with_wrong_slopes(lambda first, last: last["tokens"]), "over the difference"),
        Wrong("over the rows", with_wrong_slopes(lambda first, last: 3), "gives seconds per token"),
        Wrong("asks for swap space", needs_swap_space, "your function looks at `scheduler.swap_space`"),
        Wrong(
            "twice the slower direction",
            choosing(lambda recorded, tokens: 2 * max(direction(recorded, tokens)), recompute_slope),
            "Here one of them is much slower than the other",
        ),
        Wrong("decides before there is a victim", decides_at_once, "should return a function; yours returned"),
        Wrong("the saving instead of a decision", returns_the_saving, "should return True or False"),
        Wrong("nothing is returned", nothing, "should return a function; yours returned None"),
    ],
}

RIGHT = {
    "10.1": [sorted_and_last, by_a_loop, by_rank_and_index, last_of_the_largest],
    "10.2": [
        preempting(),
        in_another_order,
        preempting(free=block_by_block),
        by_release,
        preempting(queue=lambda scheduler, victim: scheduler.add(victim)),
        preempting(forget=clears_in_place),
    ],
    "10.3": [choosing(swap_line, recompute_slope), in_bytes, with_a_class, by_adding_blocks],
}
