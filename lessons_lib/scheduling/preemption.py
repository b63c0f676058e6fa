"""Lesson 10: a scheduler that takes blocks back when there are not enough, and shares those that hold the same."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from lessons_lib.kv_cache.block_copies import COPY, SWAP_IN, SWAP_OUT, BlockCopy
from lessons_lib.kv_cache.block_pool import BlockPool, blocks_for
from lessons_lib.kv_cache.prefix_cache import PrefixCache, block_hash, hash_full_blocks
from lessons_lib.scheduling.scheduler import Scheduler, SchedulerOutput, optimistic, share_budget
from lessons_lib.scheduling.sequence import Sequence


@dataclass
class PreemptiveSchedulerOutput(SchedulerOutput):
    """A SchedulerOutput, and what happens to blocks before it.

    Attributes:
        moves: to be done in this order: a block that one move empties may be the target of a later one.
        preempted: sequences that lost their place in this step.
        cached: sequence -> tokens of a sequence that was admitted that are in the cache already.
    """

    block_copies: list[BlockCopy] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    cached: dict[Sequence, int] = field(default_factory=dict)


def last_in_rank(candidates, policy):
    """The victim: the one that the policy would serve last; of two alike, the later candidate.

    Args:
        candidates: sequences, one or more, in the order of admission.
        policy: has `rank(sequence)`; the smallest rank is served first.
    """
    return max(reversed(candidates), key=policy.rank)


def never_swap(scheduler, victim) -> bool:
    """Drop the victim's cache and compute it again."""
    return False


def always_swap(scheduler, victim) -> bool:
    """Move the victim's cache to the swap space, if there is room."""
    return True


def take_cached(pool, sequence, blocks):
    """Let a sequence begin with blocks that hold its first tokens already.

    The last token that is known is computed all the same: its logits are what the next token is chosen from.

    Args:
        pool: a PrefixCache.
        sequence: holds no block; changed in place.
        blocks: list of int, one or more, what `pool.find` gave for it.
    """
    covers_all = len(blocks) * pool.block_size == sequence.num_tokens
    others_free = len(pool.free_queue) - sum(block not in pool.ref_count for block in blocks)
    if covers_all and not others_free:
        # There would be no block for the copy that the last token is written to: compute the last block again instead.
        blocks = blocks[:-1]
    pool.touch(blocks)
    sequence.blocks = list(blocks)
    sequence.num_computed_tokens = min(len(blocks) * pool.block_size, sequence.num_tokens - 1)


class PreemptiveScheduler(Scheduler):
    """A Scheduler over a PrefixCache. Nobody stalls: where a block is missing, a victim gives its blocks back and waits again.

    Attributes:
        pool: a PrefixCache.
        swap_space: blocks in the memory of the CPU; an empty pool if there are none.
        choose_victim: function (candidates, policy) -> the one that gives its blocks back; see `last_in_rank`.
        should_swap: function (scheduler, victim) -> whether its cache is moved out rather than dropped.
        share_prefixes: whether blocks are found again by what they hold.
        block_hash: function (parent, token_ids) -> the name of a block.
        take_cached: function (pool, sequence, blocks): lets a sequence begin with blocks that were found.
        num_preempted, num_swapped: how often it happened.
    """

    def __init__(
        self,
        pool: PrefixCache,
        *,
        admission: Callable = optimistic,
        swap_space: BlockPool | None = None,
        choose_victim: Callable = last_in_rank,
        should_swap: Callable = always_swap,
        share_prefixes: bool = True,
        block_hash: Callable = block_hash,
        take_cached: Callable = take_cached,
        **limits,
    ):
        super().__init__(pool, admission=admission, **limits)
        self.swap_space = swap_space or BlockPool(0, pool.block_size)
        self.choose_victim = choose_victim
        self.should_swap = should_swap
        self.share_prefixes = share_prefixes
        self.block_hash = block_hash
        self.take_cached = take_cached
        self.num_preempted = self.num_swapped = 0

    new_output = PreemptiveSchedulerOutput

    def schedule_waiting(self, scheduler_output):
        # Whoever was admitted now would take the blocks that a victim has given back, and be the next victim.
        if scheduler_output.preempted:
            return
        super().schedule_waiting(scheduler_output)
        if self.waiting and not self.running:
            for fork in self.waiting_forks():
                self.drop(fork)
            super().schedule_waiting(scheduler_output)

    def schedule_running(self, scheduler_output):
        size, is_writable = self.pool.block_size, self.pool.is_writable
        for sequence, count in share_budget(self.running, self.max_num_batched_tokens).items():
            start, blocks = sequence.num_computed_tokens, sequence.blocks
            # Most have room in a block of their own. `allocate_slots` would do the same for them, in twice the time.
            if start + count <= size * len(blocks) and is_writable(blocks[start // size]):
                scheduler_output.num_scheduled_tokens[sequence] = count
            else:
                self.allocate_slots(scheduler_output, sequence, count)

    def allocate_slots(self, scheduler_output, sequence, count):
        """Let the step compute `count` tokens of a sequence, whatever that costs those who rank behind it."""
        if sequence in scheduler_output.preempted:
            return
        while not self.make_room(scheduler_output, sequence, count):
            victim = self.choose_victim(self.candidates(), self.waiting.policy)
            self.preempt(scheduler_output, victim)
            if victim is sequence:
                return
        scheduler_output.num_scheduled_tokens[sequence] = count

    def candidates(self) -> list[Sequence]:
        """Those whose blocks may be taken: who runs, and behind them the forks that hold blocks while they wait for a place."""
        forks = self.waiting_forks()
        # The only one that runs never gives way to forks that wait: it might be admitted again before them, for ever.
        return forks if forks and len(self.running) == 1 else [*self.running, *forks]

    def make_room(self, scheduler_output: PreemptiveSchedulerOutput, sequence: Sequence, count: int) -> bool:
        """Blocks for `count` more tokens, and a copy of the block that they begin in, if it is not the sequence's own."""
        size, blocks = self.pool.block_size, sequence.blocks
        first = sequence.num_computed_tokens // size
        is_shared = first < len(blocks) and not self.pool.is_writable(blocks[first])
        missing = blocks_for(sequence.num_computed_tokens + count, size) - len(blocks)
        if missing + is_shared > len(self.pool.free_queue):
            return False
        if is_shared:
            scheduler_output.block_copies.append(copy_before_write(self.pool, sequence, first))
        if missing > 0:
            blocks += self.pool.allocate(missing)
        return True

    def preempt(self, scheduler_output: PreemptiveSchedulerOutput, victim: Sequence) -> None:
        """Take a victim's blocks, and let it wait again, with the rank that it had. Its tokens so far stay known."""
        scheduler_output.num_scheduled_tokens.pop(victim, None)
        scheduler_output.preempted.append(victim)
        self.num_preempted += 1
        if victim in self.running:
            self.running.remove(victim)
            self.waiting.add(victim)
        filled = victim.blocks[: blocks_for(victim.num_computed_tokens, self.pool.block_size)]
        if self.should_swap(self, victim) and 0 < len(filled) <= len(self.swap_space.free_queue):
            victim.swapped = self.swap_space.allocate(len(filled))
            scheduler_output.block_copies += [BlockCopy(SWAP_OUT, *pair) for pair in zip(filled, victim.swapped)]
            self.num_swapped += 1
            self.pool.free(victim.blocks)
            victim.blocks = []
        else:
            self.drop(victim)

    def drop(self, sequence: Sequence) -> None:
        """Give up what is cached of a sequence. All its known tokens have to be computed again, in one prefill."""
        self.release(sequence)
        sequence.num_computed_tokens = 0

    def admit(self, scheduler_output, sequence):
        super().admit(scheduler_output, sequence)
        if sequence.swapped:
            sequence.blocks = self.pool.allocate(len(sequence.swapped))
            scheduler_output.block_copies += [
                BlockCopy(SWAP_IN, *pair) for pair in zip(sequence.swapped, sequence.blocks)
            ]
            self.swap_space.free(sequence.swapped)
            sequence.swapped = []
        elif blocks := self.cached_blocks(sequence):
            self.take_cached(self.pool, sequence, blocks)
            scheduler_output.cached[sequence] = sequence.num_computed_tokens

    def cached_blocks(self, sequence: Sequence) -> list[int]:
        """Blocks of the pool that hold the beginning of a sequence that has none itself."""
        if sequence.blocks or sequence.swapped or not self.share_prefixes:
            return []
        return self.pool.match_prefix(self.names(sequence))

    def names(self, sequence: Sequence) -> list[bytes]:
        """Names of the full blocks of its known tokens."""
        return hash_full_blocks(sequence, self.pool.block_size, self.block_hash)

    def missing_blocks(self, sequence):
        # What others hold anyway costs nothing; but the last token is computed, and for that its block is copied or filled anew.
        beginning = self.cached_blocks(sequence)[: (sequence.num_tokens - 1) // self.pool.block_size]
        return super().missing_blocks(sequence) - sum(block in self.pool.ref_count for block in beginning)

    def waiting_forks(self) -> list[Sequence]:
        """Sequences that wait for a place and hold blocks all the same."""
        return [sequence for sequence in self.waiting if sequence.blocks]

    def computed(self, sequence, count):
        before = sequence.num_computed_tokens // self.pool.block_size
        super().computed(sequence, count)
        full = sequence.num_computed_tokens // self.pool.block_size
        if self.share_prefixes and full > before:
            names = self.names(sequence)
            for index in range(before, full):
                self.pool.cache_full_block(sequence.blocks[index], names[index])

    def discard(self, sequence: Sequence) -> None:
        """Take a sequence out whose keys and values may be wrong: nobody shall find its blocks any more."""
        for block in sequence.blocks:
            if block in self.pool.block_to_hash:
                del self.pool.hash_to_block[self.pool.block_to_hash.pop(block)]
        self.remove(sequence)

    def release(self, sequence):
        super().release(sequence)
        self.swap_space.free(sequence.swapped)
        sequence.swapped = []


def copy_before_write(pool, sequence, index):
    """Give a sequence a block of its own in place of one that others hold, or can find.

    Args:
        pool: a PrefixCache with a free block.
        sequence: `sequence.blocks[index]` is the block; changed in place.

    Returns:
        Move: what must be copied before the sequence writes.
    """
    source = sequence.blocks[index]
    (target,) = pool.allocate(1)
    sequence.blocks[index] = target
    pool.free([source])
    return BlockCopy(COPY, source, target)


def fork(pool, sequence, id):
    """A second sequence with all tokens of a first one. They share every block until one of them writes.

    Args:
        pool: a PrefixCache.
        sequence: any sequence that is not swapped out.
        id: name of the new one.

    Returns:
        Sequence: waits to be added to the scheduler.
    """
    pool.touch(sequence.blocks)
    return replace(
        sequence,
        id=id,
        output_ids=list(sequence.output_ids),
        blocks=list(sequence.blocks),
        block_hashes=list(sequence.block_hashes),
        swapped=[],
    )
