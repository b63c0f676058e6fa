"""Lesson 10: a scheduler that takes blocks back when there are too few. Lesson 11: and shares blocks with the same
contents."""

from collections.abc import Callable
from typing import Any

from lessons_lib.kv_cache.block_copies import SWAP_IN, SWAP_OUT, BlockCopy
from lessons_lib.kv_cache.block_pool import BlockPool, blocks_for
from lessons_lib.kv_cache.prefix_cache import PrefixCache, block_hash, hash_full_blocks
from lessons_lib.scheduling.policies import Policy
from lessons_lib.scheduling.scheduler import Admission, SchedulerBase, SchedulerOutput, optimistic
from lessons_lib.scheduling.sequence import Sequence
from lessons_lib.scheduling.shared_blocks import copy_before_write, take_cached


def last_in_rank(candidates: list[Sequence], policy: "Policy") -> Sequence:
    """The victim. Whichever candidate needs the block, none gives way to one that the policy serves after it, nor, at
    equal rank, to one that was admitted later.

    Args:
        candidates: one or more, in the order of admission.
        policy: has `rank(sequence)`; the smallest rank is served first.
    """
    return max(reversed(candidates), key=policy.rank)


def preempt_sequence(scheduler: "PreemptiveScheduler", scheduler_output: SchedulerOutput, victim: Sequence) -> None:
    """Take a victim's blocks, and put it back in the waiting queue with the same rank. Its tokens are kept.

    Args:
        scheduler: has `running`, `waiting` (lesson 09's queue: `add(sequence)` puts a sequence where its rank belongs)
            and `pool`; changed in place.
        scheduler_output: of the step that is being scheduled: the victim computes nothing in it, and is in `preempted`.
        victim: running. `victim.swapped` is empty if its keys and values are lost.
    """
    scheduler_output.num_scheduled_tokens.pop(victim, None)
    scheduler_output.preempted.append(victim)
    scheduler.running.remove(victim)
    scheduler.waiting.add(victim)
    scheduler.pool.free(victim.blocks)
    victim.blocks = []
    if not victim.swapped:
        victim.num_computed_tokens = 0


def never_swap(scheduler: "PreemptiveScheduler", victim: Sequence) -> bool:
    """Drop the victim's cache and recompute it later."""
    return False


def always_swap(scheduler: "PreemptiveScheduler", victim: Sequence) -> bool:
    """Copy the victim's cache to the swap space, if there is room."""
    return True


PreemptSequence = Callable[["PreemptiveScheduler", SchedulerOutput, Sequence], None]


class PreemptiveScheduler(SchedulerBase):
    """Decides before every step what it computes, within a budget of tokens, of sequences and of blocks. If a block is
    missing, a victim loses its blocks and waits again.

    Attributes:
        pool: a PrefixCache.
        swap_space: blocks in CPU memory; an empty pool if there is none.
        choose_victim: function (candidates, policy) -> the sequence that loses its blocks; see `last_in_rank`.
        should_swap: function (scheduler, victim) -> whether its cache is swapped out rather than dropped.
        preempt_sequence: function (scheduler, scheduler_output, victim): takes its blocks; see `preempt_sequence`.
        share_prefixes: whether sequences with the same beginning share blocks.
        block_hash: function (parent, token_ids) -> the hash of a block; see `prefix_cache.block_hash`.
        take_cached: function (pool, sequence, blocks): lets a sequence begin with cached blocks; see `shared_blocks`.
        copy_before_write: function (pool, sequence, index) -> a block copy; see `shared_blocks`.
        num_preempted, num_swapped: how often it happened.

    Args:
        limits: see SchedulerBase.
    """

    pool: PrefixCache

    def __init__(
        self,
        pool: PrefixCache,
        *,
        admission: Admission = optimistic,
        swap_space: BlockPool | None = None,
        choose_victim: Callable[[list[Sequence], Policy], Sequence] = last_in_rank,
        should_swap: Callable[["PreemptiveScheduler", Sequence], bool] = always_swap,
        preempt_sequence: PreemptSequence = preempt_sequence,
        share_prefixes: bool = True,
        block_hash: Callable[[bytes, list[int]], bytes] = block_hash,
        take_cached: Callable[[PrefixCache, Sequence, list[int]], None] = take_cached,
        copy_before_write: Callable[[PrefixCache, Sequence, int], BlockCopy] = copy_before_write,
        **limits: Any,
    ):
        super().__init__(pool, admission=admission, **limits)
        self.swap_space = swap_space or BlockPool(0, pool.block_size)
        self.choose_victim = choose_victim
        self.should_swap = should_swap
        self.preempt_sequence = preempt_sequence
        self.share_prefixes = share_prefixes
        self.block_hash = block_hash
        self.take_cached = take_cached
        self.copy_before_write = copy_before_write
        self.num_preempted = self.num_swapped = 0

    def schedule(self) -> SchedulerOutput:
        """Schedule the next step: first the running sequences, then, with what is left of the budget, the waiting ones.

        Returns:
            SchedulerOutput. Its sequences have blocks for their new tokens.
        """
        scheduler_output = SchedulerOutput()
        self.schedule_running(scheduler_output)
        # A sequence admitted now would take the blocks that a victim has just lost, and be the next victim.
        if not scheduler_output.preempted:
            self.schedule_waiting(scheduler_output)
        return scheduler_output

    def schedule_running(self, scheduler_output: SchedulerOutput) -> None:
        size, is_writable = self.pool.block_size, self.pool.is_writable
        for sequence, count in self.share_budget(self.running, self.max_num_batched_tokens).items():
            start, blocks = sequence.num_computed_tokens, sequence.blocks
            # Most have room in a block of their own. `allocate_slots` would do the same for them, in twice the time.
            if start + count <= size * len(blocks) and is_writable(blocks[start // size]):
                scheduler_output.num_scheduled_tokens[sequence] = count
            else:
                self.allocate_slots(scheduler_output, sequence, count)

    def schedule_waiting(self, scheduler_output: SchedulerOutput) -> None:
        """Admit waiting sequences. One that can't be admitted keeps all behind it waiting: otherwise small ones would
        overtake a large one forever."""
        budget = self.max_num_batched_tokens - scheduler_output.num_tokens
        while self.waiting and budget and len(self.running) < self.max_num_seqs:
            sequence = self.waiting.next(self.running)
            if not (self.has_blocks_for(sequence) and self.admission(self, sequence)):
                break
            self.admit(scheduler_output, sequence)
            count = min(sequence.num_tokens - sequence.num_computed_tokens, budget)
            self.allocate_slots(scheduler_output, sequence, count)
            budget -= count

    def has_blocks_for(self, sequence: Sequence) -> bool:
        """Whether blocks are free for the tokens that a waiting sequence has now. An admission rule that looks at
        running sequences doesn't count the blocks of those whose last token is in flight."""
        return self.missing_blocks(sequence) <= len(self.pool.free_queue)

    def allocate_slots(self, scheduler_output: SchedulerOutput, sequence: Sequence, count: int) -> None:
        """Schedule `count` tokens of a sequence, preempting victims until there are enough free blocks."""
        if sequence in scheduler_output.preempted:
            return
        while not self.make_room(scheduler_output, sequence, count):
            victim = self.choose_victim(list(self.running), self.waiting.policy)
            self.preempt(scheduler_output, victim)
            if victim is sequence:
                return
        scheduler_output.num_scheduled_tokens[sequence] = count

    def make_room(self, scheduler_output: SchedulerOutput, sequence: Sequence, count: int) -> bool:
        """Allocate blocks for `count` more tokens, and a copy of the block that they begin in if the sequence may not
        write to it.

        Returns:
            whether enough blocks were free; if not, nothing changes.
        """
        size, blocks = self.pool.block_size, sequence.blocks
        index = sequence.num_computed_tokens // size
        needs_copy = index < len(blocks) and not self.pool.is_writable(blocks[index])
        missing = blocks_for(sequence.num_computed_tokens + count, size) - len(blocks)
        if missing + needs_copy > len(self.pool.free_queue):
            return False
        if needs_copy:
            scheduler_output.block_copies.append(self.copy_before_write(self.pool, sequence, index))
        if missing > 0:
            blocks += self.pool.allocate(missing)
        return True

    def preempt(self, scheduler_output: SchedulerOutput, victim: Sequence) -> None:
        """Preempt a victim: swap its cache out or drop it; see `preempt_sequence`."""
        if self.should_swap(self, victim):
            self.swap_out(scheduler_output, victim)
        self.preempt_sequence(self, scheduler_output, victim)
        self.num_preempted += 1

    def swap_out(self, scheduler_output: SchedulerOutput, victim: Sequence) -> None:
        """Have the filled blocks of a victim copied to the swap space, if it has room for them."""
        filled = victim.blocks[: blocks_for(victim.num_computed_tokens, self.pool.block_size)]
        if 0 < len(filled) <= len(self.swap_space.free_queue):
            victim.swapped = self.swap_space.allocate(len(filled))
            scheduler_output.block_copies += [BlockCopy(SWAP_OUT, *pair) for pair in zip(filled, victim.swapped)]
            self.num_swapped += 1

    def admit(self, scheduler_output: SchedulerOutput, sequence: Sequence) -> None:
        """Give a waiting sequence a batch slot, and the blocks that hold its tokens: swapped in, or found in the
        cache."""
        if sequence.swapped:
            sequence.blocks = self.pool.allocate(len(sequence.swapped))  # if this raises, nothing has changed
            pairs = zip(sequence.swapped, sequence.blocks)
            scheduler_output.block_copies += [BlockCopy(SWAP_IN, *pair) for pair in pairs]
            self.swap_space.free(sequence.swapped)
            sequence.swapped = []
        elif blocks := self.cached_blocks(sequence):
            self.take_cached(self.pool, sequence, blocks)
            scheduler_output.cached[sequence] = sequence.num_computed_tokens
        super().admit(scheduler_output, sequence)

    def cached_blocks(self, sequence: Sequence) -> list[int]:
        """Blocks of the pool that hold the beginning of a waiting sequence."""
        if sequence.swapped or not self.share_prefixes or sequence.prompt_logits:
            return []
        return self.pool.match_prefix(self.hashes_of(sequence))

    def hashes_of(self, sequence: Sequence) -> list[bytes]:
        """Hashes of the full blocks of its tokens."""
        return hash_full_blocks(sequence, self.pool.block_size, self.block_hash)

    def missing_blocks(self, sequence: Sequence) -> int:
        """Blocks that a waiting sequence lacks for the tokens that it has now, those to be copied included."""
        # Cached blocks in use cost nothing. But the last token is always computed, in a copy of its block or in a new
        # one.
        prefix = self.cached_blocks(sequence)[: (sequence.num_tokens - 1) // self.pool.block_size]
        in_use = sum(block in self.pool.ref_count for block in prefix)
        return super().missing_blocks(sequence) - in_use

    def computed(self, sequence: Sequence, start: int, end: int) -> None:
        """See `Scheduler.computed`. Blocks that are full now can be found by their hash."""
        size = self.pool.block_size
        # A sequence that was preempted with this step in flight has no blocks any more.
        if end // size > start // size and self.share_prefixes and sequence.blocks:
            hashes = self.hashes_of(sequence)
            for index in range(start // size, end // size):
                self.pool.cache_full_block(sequence.blocks[index], hashes[index])

    def discard(self, sequence: Sequence) -> None:
        """Take out a sequence whose keys and values may be wrong: its blocks can't be found by their hashes any
        more."""
        for block in sequence.blocks:
            if block in self.pool.block_to_hash:
                del self.pool.hash_to_block[self.pool.block_to_hash.pop(block)]
        self.remove(sequence)

    def release(self, sequence: Sequence) -> None:
        """Free all its blocks, those of the swap space too."""
        super().release(sequence)
        self.swap_space.free(sequence.swapped)
        sequence.swapped = []

    def reset(self) -> None:
        """Forget all sequences, and what the pool and the swap space hold."""
        super().reset()
        self.swap_space.reset()
