"""A block can be found from the step that fills it: a prompt is computed once, also if its requests arrive together."""

import functools
import random
from collections import Counter

import pytest
from how_many import by_day
from hypothesis import given, settings
from hypothesis import strategies as st

from lessons_lib.engine.core import overlapped_step
from lessons_lib.engine.greedy_loop import GreedyLoop
from lessons_lib.kv_cache.block_copies import SWAP_IN, SWAP_OUT
from lessons_lib.kv_cache.block_hashes import block_hash
from lessons_lib.kv_cache.block_pool import BlockPool, blocks_for
from lessons_lib.kv_cache.invariants import audit
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.scheduling.preemption import PreemptiveScheduler
from lessons_lib.scheduling.scheduler import optimistic
from lessons_lib.scheduling.sequence import Sequence
from lessons_lib.scheduling.shared_blocks import CopyOnWriteScheduler, fork
from lessons_lib.scheduling.swapping import SwappingScheduler

NOT_A_NUMBER = "not a number"


def after(state, token):
    """What the cache holds of a token: everything up to it."""
    return hash((state, token))


def answer_to(prompt, length):
    """The tokens that a `Device` chooses after a prompt."""
    state, tokens = 0, []
    for token in prompt:
        state = after(state, token)
    while len(tokens) < length:
        tokens.append(state % 50 + 1000)
        state = after(state, tokens[-1])
    return tokens


class Device(GreedyLoop):
    """A loop and a cache without a model, in which each slot holds the tokens up to it, and each read is checked.

    Sequences are computed one after the other, so that one can read what those before it in the
    same step have written. The last step of the prompts of `sick` ids computes no numbers.
    """

    def __init__(self, scheduler, depth, sick=()):
        super().__init__(scheduler, runner=None, depth=depth)
        self.slots, self.swapped, self.chosen, self.state_of, self.sick = {}, {}, {}, {}, sick
        self.happened = Counter()
        scheduler.block_hash = self.block_hash

    def block_hash(self, parent, token_ids):
        """See `block_hashes.block_hash`; notes what a block with this hash must hold."""
        found = block_hash(parent, token_ids)
        self.state_of[found] = functools.reduce(after, token_ids, self.state_of.get(parent, 0))
        return found

    def schedule(self):
        """See GreedyLoop. A block that has a hash holds its tokens, or will do so after this step."""
        scheduler, size = self.scheduler, self.scheduler.pool.block_size
        scheduler_output = scheduler.schedule()
        scheduled = scheduler_output.num_scheduled_tokens
        self.filling = {block for each in scheduled for block in each.blocks[each.num_computed_tokens // size :]}
        for block, known in scheduler.pool.block_to_hash.items():
            found = self.slots.get((block, size - 1))
            is_there = found in (self.state_of[known], NOT_A_NUMBER)
            assert is_there or block in self.filling, f"block {block} can be found, and nothing will fill it"
        return scheduler_output

    def launch(self, scheduler_output):
        scheduled, size = scheduler_output.num_scheduled_tokens, self.scheduler.pool.block_size
        for copy in scheduler_output.block_copies:
            source = self.swapped if copy.kind == SWAP_IN else self.slots
            target = self.swapped if copy.kind == SWAP_OUT else self.slots
            target |= {(copy.target, offset): source.get((copy.source, offset)) for offset in range(size)}
        if not scheduled:
            return None
        for sequence, count in scheduler_output.cached.items():
            self.happened["found in the step that fills it"] += bool(self.filling & {*sequence.blocks[: count // size]})
        tokens = [self.compute(sequence, count) for sequence, count in scheduled.items()]
        self.chosen = dict(zip(scheduled, tokens))
        self.happened["tokens"] += scheduler_output.num_tokens
        self.scheduler.update_after_launch(scheduler_output)
        return scheduler_output, tokens

    def compute(self, sequence, count):
        """Check what the next `count` tokens read, and write them. The token after them, or -1."""
        size, start, state = self.scheduler.pool.block_size, sequence.num_computed_tokens, 0
        known = sequence.token_ids
        if start == len(known):  # a placeholder
            known.append(self.chosen[sequence])
        is_sick = sequence.id in self.sick and start + count == len(sequence.prompt_ids)
        for position, token in enumerate(known[: start + count]):
            state, slot = after(state, token), (sequence.blocks[position // size], position % size)
            if position >= start:
                self.slots[slot] = NOT_A_NUMBER if is_sick else state
            elif self.slots.get(slot) == NOT_A_NUMBER:
                is_sick = True
            else:
                assert self.slots.get(slot) == state, f"{sequence.id} reads what isn't there at position {position}"
        return -1 if is_sick else state % 50 + 1000

    def process(self, depth):
        """See EngineCore.process."""
        while len(self.in_flight) > depth:
            scheduler_output, tokens = self.in_flight.popleft()
            for sequence, token, gets in zip(
                scheduler_output.num_scheduled_tokens, tokens, scheduler_output.gets_token
            ):
                if token < 0 and gets and not sequence.finish_reason:
                    sequence.finish_reason = "error"
                    self.scheduler.discard(sequence)
            self.scheduler.update_from_output(scheduler_output, tokens)

    def step(self):
        overlapped_step(self)
        audit(self.scheduler)

    def run_out(self, to_come=(), disturb=lambda: None):
        """Serve until all is done. `to_come`: (step, sequence) in order of the steps."""
        to_come, step = list(to_come), 0
        while to_come or self.scheduler.has_unfinished():
            assert step < 3000, "it never ends"
            while to_come and to_come[0][0] <= step:
                self.scheduler.add(to_come.pop(0)[1])
            disturb()
            self.step()
            step += 1
        self.process(0)
        for pool in (self.scheduler.pool, self.scheduler.swap_space):
            assert len(pool.free_queue) == pool.num_blocks and not pool.used
        return self


def needed(sequences, size):
    """Tokens that must be computed if the prompts come one after the other, and no block is ever evicted."""
    cached, total = set(), 0
    for sequence in sequences:
        prompt = tuple(sequence.prompt_ids)
        ends = range(size, len(prompt) + 1, size)
        found = 0
        while found + size < len(prompt) and prompt[: found + size] in cached:
            found += size
        total += len(prompt) - found + sequence.max_new_tokens - 1
        cached |= {prompt[:end] for end in ends}
    return total


def alike(count, shared=40, own=5, max_tokens=4):
    """Sequences whose prompts have the same beginning."""
    own_tokens = [range(100 + own * n, 100 + own * (n + 1)) for n in range(count)]
    return [Sequence(f"{n}", [*range(shared), *tail], max_tokens) for n, tail in enumerate(own_tokens)]


def a_scheduler(num_blocks=500, size=4, kind=PreemptiveScheduler, **limits):
    return kind(PrefixCache(num_blocks, size), **dict(max_num_seqs=8, max_num_batched_tokens=400) | limits)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("kind", [PreemptiveScheduler, SwappingScheduler, CopyOnWriteScheduler])
@pytest.mark.parametrize("own", [0, 5])
def test_requests_that_arrive_together_compute_their_prefix_once(depth, kind, own):
    sequences = alike(30, own=own)
    device = Device(a_scheduler(kind=kind), depth).run_out([(0, each) for each in sequences])
    if own:
        # 10 blocks of 4 once; each request's own 5 tokens, and 3 of its 4 new ones.
        assert device.happened["tokens"] == needed(sequences, 4) == 40 + 30 * (5 + 3)
    elif kind is CopyOnWriteScheduler:
        # The next ones compute the last block or, once it is computed, the last token in a copy of it.
        assert 40 + 29 * 1 + 30 * 3 < device.happened["tokens"] < 40 + 29 * 4 + 30 * 3
    else:
        assert device.happened["tokens"] == needed(sequences, 4) == 40 + 29 * 4 + 30 * 3


@st.composite
def requests(draw):
    """(step, sequence) in order of the steps: prompts that begin with one of two trunks, or with another's prompt."""
    found, step = [], 0
    for n in range(draw(st.integers(1, 10))):
        step += draw(st.sampled_from([0, 0, 0, 1, 2, 7]))
        trunks = [list(range(60)), list(range(200, 260)), *(list(each.prompt_ids) for _, each in found)]
        trunk = draw(st.sampled_from(trunks))
        own = [300 + 20 * n + i for i in range(draw(st.sampled_from([0, 0, 1, 3, 9])))]
        prompt = trunk[: draw(st.integers(1, len(trunk)))] + own
        salt = draw(st.sampled_from([None, None, None, "another"]))
        found.append((step, Sequence(f"{n}", prompt, draw(st.integers(1, 6)), cache_salt=salt)))
    return found


@settings(max_examples=by_day(60, 400), deadline=None)
@given(requests(), st.integers(1, 9), st.integers(1, 6), st.integers(0, 40), st.integers(0, 1))
def test_as_many_tokens_are_computed_as_if_prompts_came_in_turn(to_come, size, max_num_seqs, more, depth):
    limits = dict(max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_seqs + more)
    device = Device(a_scheduler(2000, size, **limits), depth).run_out(to_come)
    sequences = [sequence for _, sequence in to_come]
    assert [each.output_ids for each in sequences] == [answer_to(s.prompt_ids, s.max_new_tokens) for s in sequences]
    by_salt = [[each for each in sequences if each.cache_salt == salt] for salt in (None, "another")]
    assert device.happened["tokens"] == sum(needed(each, size) for each in by_salt)


def pressed(seed):
    """A random workload in a pool that is too small for it, with aborts, forks and swaps, at either depth."""
    rng = random.Random(seed)
    size, trunks = rng.choice([1, 2, 3, 4, 8]), [list(range(40)), list(range(200, 240))]
    to_come, step = [], 0
    for n in range(rng.randint(4, 12)):
        step += rng.choice([0, 0, 0, 0, 3])
        prompt = rng.choice(trunks)[: rng.choice([4, 8, 16, 16, 30])] + [300 + n] * rng.choice([0, 0, 1, 6])
        to_come.append((step, Sequence(f"{n}", prompt, rng.choice([1, 4, 15, 30]), arrival_time=rng.random())))
    sequences = [sequence for _, sequence in to_come]
    most = max(blocks_for(sequence.most_tokens, size) for sequence in sequences)
    kind = rng.choice([PreemptiveScheduler, SwappingScheduler, CopyOnWriteScheduler])
    swap = {} if kind is PreemptiveScheduler else dict(swap_space=BlockPool(rng.choice([0, 30]), size))
    max_num_seqs = rng.choice([2, 4, 8])
    scheduler = a_scheduler(
        most + rng.choice([0, 1, 3, 9]), size, kind, max_num_seqs=max_num_seqs, **swap,
        max_num_batched_tokens=max_num_seqs + rng.choice([0, 2, 9, 80]),
        admission=rng.choice([optimistic, lambda scheduler, sequence: True]),
        choose_victim=lambda candidates, policy: rng.choice(candidates),
    )  # fmt: skip
    device = Device(scheduler, depth=rng.randrange(2))

    def disturb():
        parents = [each for each in scheduler.running if not each.num_placeholders]
        has_slot = len(scheduler.running) < scheduler.max_num_seqs and len(sequences) < 20
        if kind is CopyOnWriteScheduler and parents and has_slot and rng.random() < 0.1:
            parent = rng.choice(parents)
            sequences.append(fork(scheduler, parent, f"{len(sequences)} of {parent.id}"))
            device.happened["forks"] += 1
        candidates = [*scheduler.running, *scheduler.leaving, *scheduler.waiting]
        if candidates and rng.random() < 0.03:
            victim = rng.choice(candidates)
            victim.finish_reason = "abort"
            scheduler.remove(victim)
            device.happened["aborts"] += 1

    device.run_out(to_come, disturb)
    for each in sequences:
        answer = answer_to(each.prompt_ids, each.max_new_tokens)
        assert each.output_ids == answer[: len(each.output_ids)]
        assert each.finish_reason == "abort" or each.output_ids == answer
    device.happened.update(preemptions=scheduler.num_preempted, swaps=scheduler.num_swapped)
    return device.happened


LEAST = {"found in the step that fills it": 40, "preemptions": 80, "swaps": 20, "aborts": 15, "forks": 50}


def test_no_block_is_read_before_it_is_computed():
    workloads, happened = by_day(80, 2000), Counter()
    for seed in range(workloads):
        happened += pressed(seed)
    few = {what: happened[what] for what, least in LEAST.items() if happened[what] < least}
    assert not few, "the workloads do not put the pool under the pressure that they should"


@pytest.mark.parametrize("depth", [0, 1])
def test_blocks_of_a_request_that_failed_are_not_found(depth):
    """Those that share its blocks in the same step, or in the next one while it is in flight, fail with it."""
    sequences = alike(20, shared=16, own=3)
    Device(a_scheduler(max_num_seqs=4), depth, sick={"0"}).run_out([(0, each) for each in sequences])
    failed = [each.id for each in sequences if each.finish_reason == "error"]
    assert failed == [f"{n}" for n in range(4)], failed
    for each in sequences[4:]:
        assert each.output_ids == answer_to(each.prompt_ids, 4)


def test_blocks_of_a_request_that_failed_and_was_preempted_are_not_found():
    """Its last step is in flight when it loses its blocks."""
    scheduler = a_scheduler(7, admission=lambda scheduler, sequence: True)
    a, b, c = Sequence("A", range(14), 9), Sequence("B", range(50, 62), 2), Sequence("C", range(50, 62), 2)
    device = Device(scheduler, 1, sick={"B"})
    scheduler.add(a)
    device.step(), device.step()
    scheduler.add(b)
    device.step()  # launches B's prompt, in the last three blocks
    assert not scheduler.pool.free_queue and b.num_placeholders
    device.step()
    assert scheduler.num_preempted == 1 and b.finish_reason == "error"
    assert not scheduler.pool.match_prefix(scheduler.hashes_of(c))
    scheduler.add(c)
    device.run_out()
    assert c.output_ids == answer_to(range(50, 62), 2)
