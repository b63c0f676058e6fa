"""The proof of lesson 10: whatever happens to a sequence's blocks, its answer is the one that it gets alone.

Random workloads in pools that are too small for them. Cells that must not be read are NaN in every step, so that reading
one cannot go unseen, and the books of the pool are checked after every step.
"""

import functools
import random
from collections import Counter

import pytest
from how_many import by_day
from oracle import END, generate_alone

from lessons_lib.engine.model_runner import ModelRunner
from lessons_lib.kv_cache.block_copies import copy_blocks
from lessons_lib.kv_cache.block_pool import BlockPool, blocks_for
from lessons_lib.kv_cache.invariants import audit
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.models.tiny_models import VOCAB_SIZE, tiny_model
from lessons_lib.scheduling.policies import BalancedLengths, PriorityWithAging, ShortestJobFirst, StrictPriority
from lessons_lib.scheduling.preemption import PreemptiveScheduler, last_in_rank
from lessons_lib.scheduling.scheduler import conservative, optimistic
from lessons_lib.scheduling.sequence import FirstComeFirstServed, Sequence
from lessons_lib.scheduling.shared_blocks import CopyOnWriteScheduler, fork
from lessons_lib.scheduling.swapping import always_swap, never_swap

MOST_WORKLOADS = 102
WORKLOADS = by_day(34, MOST_WORKLOADS)  # of each family
LONGEST = 20  # answers
MOST_STEPS = 3000


@functools.cache
def prompts():
    """Prompts of which many begin alike; some are the beginning of another."""
    rng = random.Random(5)
    words = [rng.randrange(VOCAB_SIZE) for _ in range(200)]
    branches = [(shared, *own) for shared in (4, 8, 16) for own in ((0, 1), (9, 4))]
    alone = [(40, 41), (50, 53), (60, 64), (64, 71), (71, 79), (80, 96)]
    found = [words[:length] for length in (1, 2, 3, 4, 7, 8, 15, 16, 17, 24)]
    found += [words[:shared] + words[100 + start : 100 + start + own] for shared, start, own in branches]
    return tuple(map(tuple, found + [words[start:end] for start, end in alone]))


@functools.cache
def alone(family, prompt):
    return generate_alone(tiny_model(family, seed=3), list(prompt), LONGEST, None)


def expected(family, prompt, max_tokens):
    answer = alone(family, prompt)[:max_tokens]
    return answer[: answer.index(END) + 1] if END in answer else answer


def poison(scheduler, step, cache, swap_cache):
    """NaN in every cell that holds nothing: in free blocks without a name, behind the last computed token (also if
    others have found the block that this step fills), in free swap blocks."""
    pool, size = scheduler.pool, scheduler.pool.block_size
    valid = dict.fromkeys(pool.block_to_hash, size)
    for sequence in [*scheduler.running, *scheduler.waiting]:
        for index, block in enumerate(sequence.blocks):
            valid[block] = max(valid.get(block, 0), sequence.num_computed_tokens - index * size)
    for sequence in step.num_scheduled_tokens:
        first = sequence.num_computed_tokens // size
        for index, block in enumerate(sequence.blocks[first:], first):
            valid[block] = sequence.num_computed_tokens - index * size
    nothing = [
        block * size + offset
        for block in range(pool.num_blocks)
        for offset in range(size)
        if offset >= valid.get(block, 0)
    ]
    swapped_nothing = [block * size + offset for block in scheduler.swap_space.free_queue for offset in range(size)]
    for each, slots in ((cache, nothing), (swap_cache, swapped_nothing)):
        for tensor in [*each.keys, *each.values]:
            tensor.flatten(0, 1)[slots] = float("nan")


POLICIES = (
    FirstComeFirstServed(),
    ShortestJobFirst(),
    StrictPriority(),
    PriorityWithAging(1.0),
    BalancedLengths(20, 4),
)


def make_scheduler(rng, needed, block_size):
    """A scheduler whose pool holds the largest sequence, and seldom much more."""
    pool = PrefixCache(needed + rng.choice([0, 0, 1, 2, 4]), block_size)
    max_num_seqs = rng.choice([1, 3, 8, 8, 8, 8])
    swap_space = BlockPool(rng.choice([0, 5, 30, 30]), block_size)
    limits = dict(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + rng.choice([0, 1, 3, 8, 60]),
        policy=rng.choice(POLICIES),
        admission=conservative if rng.random() < 0.3 else optimistic,
        watermark=rng.choice([0, 0, 0, 1]),
        choose_victim=rng.choice([last_in_rank, lambda candidates, policy: rng.choice(candidates)]),
        share_prefixes=rng.random() < 0.75,
    )
    should_swap = rng.choice([always_swap, never_swap, lambda scheduler, victim: rng.random() < 0.5])
    if rng.random() < 0.2:
        return PreemptiveScheduler(pool, **limits)  # the engine's, which neither swaps nor copies
    return CopyOnWriteScheduler(pool, swap_space=swap_space, should_swap=should_swap, **limits)


def make_sequences(rng):
    # Many short prompts are admitted together, and then all of them grow.
    longest = rng.choice([4, 4, 8, 32])
    choice, made = [prompt for prompt in prompts() if len(prompt) <= longest], []
    for n in range(rng.randint(4, 9)):
        prompt, max_tokens = list(rng.choice(choice)), rng.choice([1, 5, 12, LONGEST, LONGEST, LONGEST])
        guess = rng.choice([None, 3.0, 9.0])
        rank = (rng.random() * 3, rng.randrange(2), guess)
        made.append(Sequence(str(n), prompt, max_tokens, frozenset({END}), *rank))
    return made


class Workload:
    """Random requests, some late, some forked, some aborted, and all that is done to serve them."""

    def __init__(self, family, seed):
        self.name = f"{family} {seed}"
        self.rng = rng = random.Random(self.name)
        self.sequences, block_size = make_sequences(rng), rng.choice([1, 2, 2, 3, 4, 4, 8, 16])
        needed = max(blocks_for(sequence.most_tokens, block_size) for sequence in self.sequences)
        self.scheduler = make_scheduler(rng, needed, block_size)
        model, pool, swap_space = tiny_model(family, seed=3), self.scheduler.pool, self.scheduler.swap_space
        self.runner = ModelRunner(model, pool.num_blocks, block_size)
        self.swap_cache = PagedKVCache(model.config, max(swap_space.num_blocks, 1), block_size)
        self.to_come = [(0 if n < 2 else rng.choice([0, 0, 0, 4, 12]), each) for n, each in enumerate(self.sequences)]
        self.forks, self.aborts = 0.1 * (rng.random() < 0.4), 0.08 * (rng.random() < 0.3)  # how likely in a step
        self.aborted, self.happened = [], Counter()

    def add_those_who_come(self, step):
        for sequence in [sequence for comes, sequence in self.to_come if comes <= step]:
            self.scheduler.add(sequence)
        self.to_come = [(comes, sequence) for comes, sequence in self.to_come if comes > step]

    def disturb(self):
        scheduler, rng = self.scheduler, self.rng
        sequences = [*scheduler.running, *scheduler.waiting]
        parent, victim = rng.choice(sequences), rng.choice(sequences)
        can_fork = isinstance(scheduler, CopyOnWriteScheduler) and parent in scheduler.running
        has_slot = len(scheduler.running) < scheduler.max_num_seqs and len(self.sequences) < 14
        if rng.random() < self.forks and can_fork and has_slot:
            self.sequences.append(fork(scheduler, parent, f"{len(self.sequences)} of {parent.id}"))
            self.happened["forks"] += 1
        if rng.random() < self.aborts:
            swapped = [sequence for sequence in scheduler.waiting if sequence.swapped]
            if swapped and rng.random() < 0.5:  # there are few, and they don't wait for long
                victim = rng.choice(swapped)
            self.aborted.append(victim)
            self.happened.update({"aborts": 1, "aborts of the swapped": bool(victim.swapped)})
            scheduler.remove(victim)
        audit(scheduler)

    def step(self):
        scheduler = self.scheduler
        step = scheduler.schedule()
        assert step.num_scheduled_tokens and not step.stalled, f"{self.name}: nothing is computed, or a sequence stalls"
        assert step.num_tokens <= scheduler.max_num_batched_tokens and len(scheduler.running) <= scheduler.max_num_seqs
        copy_blocks(step.block_copies, self.runner.cache, self.swap_cache)
        poison(scheduler, step, self.runner.cache, self.swap_cache)
        logits = self.runner.forward(step)
        assert logits.isfinite().all(), f"{self.name}: a cell was read that holds nothing"
        self.count(step)
        scheduler.update(step, logits.argmax(dim=-1).tolist())
        audit(scheduler)

    def count(self, step):
        happened, size, cached = self.happened, self.scheduler.pool.block_size, step.cached.items()
        left = [s.num_tokens - s.num_computed_tokens - count for s, count in step.num_scheduled_tokens.items()]
        happened["steps"] += 1
        happened["prefills in chunks"] += any(left)
        happened["hits"] += len(cached)
        filling = {block for s in step.num_scheduled_tokens for block in s.blocks[s.num_computed_tokens // size :]}
        happened["hits of what is being computed"] += sum(bool(filling & {*s.blocks[: n // size]}) for s, n in cached)
        happened["hits of everything"] += sum(n == s.num_tokens - 1 and s.num_tokens % size == 0 for s, n in cached)
        happened["hits after preemption"] += sum(bool(s.output_ids) for s in step.cached)
        happened.update(f"blocks moved by {move.kind}" for move in step.block_copies)

    def check_answers(self, family):
        for sequence in self.sequences:
            answer = expected(family, tuple(sequence.prompt_ids), sequence.max_new_tokens)
            if sequence in self.aborted:
                answer = answer[: len(sequence.output_ids)]
            assert sequence.output_ids == answer, f"{self.name}: sequence {sequence.id}"

    def check_that_nothing_is_lost(self):
        for pool in (self.scheduler.pool, self.scheduler.swap_space):
            assert sorted(pool.free_queue) == list(range(pool.num_blocks)) and not pool.used, self.name
        assert not self.scheduler.pool.ref_count, self.name
        assert all(sequence.blocks == sequence.swapped == [] for sequence in self.sequences), self.name


def play(family, seed):
    """One workload, from the first request to the last answer. Returns what happened, counted."""
    workload = Workload(family, seed)
    for step in range(MOST_STEPS):
        workload.add_those_who_come(step)
        if workload.scheduler.has_unfinished():
            workload.disturb()
        if workload.scheduler.has_unfinished():
            workload.step()
        elif not workload.to_come:
            break
    assert not workload.scheduler.has_unfinished(), f"{workload.name}: not done after {MOST_STEPS} steps"
    workload.check_answers(family)
    workload.check_that_nothing_is_lost()
    scheduler = workload.scheduler
    workload.happened.update(
        {"preemptions": scheduler.num_preempted, "swaps": scheduler.num_swapped, "evictions": scheduler.pool.evicted}
    )
    return workload.happened


# About half of what happens in all of them, so that a change of the random numbers is no failure, and workloads that prove nothing are
# one.
LEAST = {
    "preemptions": 90,
    "swaps": 25,
    "blocks moved by swap in": 75,
    "blocks moved by copy": 60,
    "evictions": 1000,
    "prefills in chunks": 180,
    "hits": 120,
    "hits of everything": 40,
    "hits of what is being computed": 30,
    "hits after preemption": 25,
    "forks": 40,
    "aborts": 40,
    "aborts of the swapped": 1,
}


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen2"])
def test_no_answer_changes_under_pressure(family, record_property):
    happened = Counter()
    for seed in range(WORKLOADS):
        happened += play(family, seed)
    share = 1 if WORKLOADS == MOST_WORKLOADS else WORKLOADS / MOST_WORKLOADS / 2  # a few differ more from the mean
    few = {what: happened[what] for what, least in LEAST.items() if happened[what] < int(least * share)}
    assert not few, "the workloads do not put the pool under the pressure that they should"
    told = ", ".join(f"{count} {what}" for what, count in happened.items())
    record_property("measured", f"{WORKLOADS} workloads: {told}")


def test_the_answers_are_not_all_alike():
    """Answers of one repeated token would hide a mistake in the positions."""
    for family in ("gpt2", "llama", "qwen2"):
        answers = [expected(family, prompt, LONGEST) for prompt in prompts()]
        assert len(set(map(tuple, answers))) > len(answers) // 2 < sum(len(set(answer)) > 3 for answer in answers)
        assert any(len(answer) < LONGEST for answer in answers)
