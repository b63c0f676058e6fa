"""Lesson 10: a scheduler that preempts sequences when it runs out of blocks. Lesson 11: and shares equal blocks."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field

from lessons_lib.kv_cache.block_hashes import block_hash, hash_full_blocks
from lessons_lib.kv_cache.block_pool import BlockPool, blocks_for
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.scheduling.kept_states import KeptStates
from lessons_lib.scheduling.scheduler import Admission, SchedulerBase, SchedulerOutput, optimistic
from lessons_lib.scheduling.sequence import Policy, Sequence


def last_in_rank(candidates: list[Sequence], policy: "Policy") -> Sequence:
    """Choose the victim: the candidate that the policy serves last, and among those of equal rank the one admitted
    last.

    Args:
        candidates: one or more, in order of admission.
        policy: has `rank(sequence)`; the smallest rank is served first.
    """
    return max(reversed(candidates), key=policy.rank)


def preempt_sequence(scheduler: "PreemptiveScheduler", scheduler_output: SchedulerOutput, victim: Sequence) -> None:
    """Free a victim's blocks, and return it to the waiting queue with its rank. Its tokens are kept.

    Args:
        scheduler: has `running`, `waiting` (lesson 09's queue: `add(sequence)` inserts a sequence by its rank) and
            `pool`; changed in place.
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


@dataclass(eq=False, repr=False)
class PreemptiveScheduler(SchedulerBase):
    """Schedules each step within a budget of tokens, sequences and blocks. If a block is missing, a victim loses its
    blocks and waits again; its tokens are recomputed.

    Attributes:
        pool: a PrefixCache. The attributes of SchedulerBase apply too.
        choose_victim: function (candidates, policy) -> the sequence that loses its blocks; see `last_in_rank`.
        preempt_sequence: function (scheduler, scheduler_output, victim): frees its blocks; see `preempt_sequence`.
        block_hash: function (parent, token_ids) -> the hash of a block; see `block_hashes.block_hash`.
        share_prefixes: True if sequences with the same beginning share blocks.
        states: the rules of layers that keep a state (lesson 19).
        num_preempted, num_swapped: preemptions and swaps so far.
        swap_space: blocks in CPU memory; none here, see SwappingScheduler.
    """

    pool: PrefixCache
    _: KW_ONLY
    admission: Admission = optimistic
    choose_victim: Callable[[list[Sequence], Policy], Sequence] = last_in_rank
    preempt_sequence: Callable[..., None] = preempt_sequence
    block_hash: Callable[[bytes, list[int]], bytes] = block_hash
    share_prefixes: bool = True
    states: KeptStates = field(default_factory=KeptStates)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.swap_space = BlockPool(0, self.pool.block_size)
        self.num_preempted = self.num_swapped = 0

    def schedule(self) -> SchedulerOutput:
        """Schedule the next step: first the running sequences, then, with the rest of the budget, the waiting ones. The
        scheduled sequences have blocks for their new tokens."""
        scheduler_output, size = SchedulerOutput(), self.pool.block_size
        self.schedule_running(scheduler_output)
        # The blocks that this step fills are found at once: each layer writes all keys and values before any is read.
        for sequence, count in scheduler_output.num_scheduled_tokens.items():  # no victim is among them
            if (end := sequence.num_computed_tokens + count) % size < count:
                self.cache_full_blocks(sequence, end - count, end)
        # A sequence admitted now would take the victim's blocks and be the next victim.
        if not scheduler_output.preempted:
            self.schedule_waiting(scheduler_output)
        return scheduler_output

    def schedule_running(self, scheduler_output: SchedulerOutput) -> None:
        for sequence, count in self.states.chunks(self.share_budget(self.running, self.max_num_batched_tokens)).items():
            # A shortcut, twice as fast as `allocate_slots`: most sequences have room in their last block. A victim of
            # this step has no block, so it never takes the shortcut.
            if sequence.num_computed_tokens + count <= self.pool.block_size * len(sequence.blocks):
                scheduler_output.num_scheduled_tokens[sequence] = count
            else:
                self.allocate_slots(scheduler_output, sequence, count)

    def schedule_waiting(self, scheduler_output: SchedulerOutput) -> None:
        """Admit waiting sequences. One that can't be admitted keeps all behind it waiting, or small ones would overtake
        a large one forever."""
        budget = self.max_num_batched_tokens - scheduler_output.num_tokens
        while self.waiting and budget >= self.states.least_budget and len(self.running) < self.max_num_seqs:
            sequence = self.waiting.next(self.running)
            if not (self.has_blocks_for(sequence) and self.admission(self, sequence)):
                break
            self.admit(scheduler_output, sequence)
            count = self.states.chunk(sequence, min(sequence.num_tokens - sequence.num_computed_tokens, budget))
            self.allocate_slots(scheduler_output, sequence, count)  # preempts nothing: the blocks are free
            self.cache_full_blocks(sequence, sequence.num_computed_tokens, sequence.num_computed_tokens + count)
            budget -= count

    def has_blocks_for(self, sequence: Sequence) -> bool:
        """True if enough blocks are free for a waiting sequence's present tokens. An admission rule that looks only at
        running sequences misses the blocks of those whose last token is in flight."""
        return self.missing_blocks(sequence) <= len(self.pool.free_queue)

    def allocate_slots(self, scheduler_output: SchedulerOutput, sequence: Sequence, count: int) -> None:
        """Schedule `count` tokens of a sequence, preempting victims until enough blocks are free."""
        if sequence in scheduler_output.preempted:
            return
        while not self.make_room(scheduler_output, sequence, count):
            victim = self.choose_victim(list(self.running), self.waiting.policy)
            self.preempt(scheduler_output, victim)
            if victim is sequence:
                return
        scheduler_output.num_scheduled_tokens[sequence] = count

    def make_room(self, scheduler_output: SchedulerOutput, sequence: Sequence, count: int) -> bool:
        """Allocate blocks for `count` more tokens. Return False if too few are free; then nothing changes."""
        missing = blocks_for(sequence.num_computed_tokens + count, self.pool.block_size) - len(sequence.blocks)
        if missing > len(self.pool.free_queue):
            return False
        sequence.blocks += self.pool.allocate(missing)
        return True

    def preempt(self, scheduler_output: SchedulerOutput, victim: Sequence) -> None:
        """Preempt a victim; see `preempt_sequence`."""
        self.preempt_sequence(self, scheduler_output, victim)
        self.num_preempted += 1

    def admit(self, scheduler_output: SchedulerOutput, sequence: Sequence) -> None:
        """Assign a batch slot to a waiting sequence, and the cached blocks that hold its first tokens."""
        if not sequence.blocks and (blocks := self.cached_blocks(sequence)):
            self.pool.touch(blocks)
            sequence.blocks, sequence.num_computed_tokens = blocks, len(blocks) * self.pool.block_size
            scheduler_output.cached[sequence] = sequence.num_computed_tokens
        super().admit(scheduler_output, sequence)

    def cached_blocks(self, sequence: Sequence) -> list[int]:
        """Find the cached blocks of a waiting sequence's first tokens. They never include the last token, which is
        always computed, since its logits predict the next one."""
        if not self.share_prefixes or sequence.prompt_logits:
            return []
        most = (sequence.num_tokens - 1) // self.pool.block_size
        return self.states.usable(sequence, self.pool.match_prefix(self.hashes_of(sequence)[:most]))

    def hashes_of(self, sequence: Sequence) -> list[bytes]:
        """Hashes of a sequence's full blocks."""
        return hash_full_blocks(sequence, self.pool.block_size, self.block_hash)

    def missing_blocks(self, sequence: Sequence) -> int:
        """See SchedulerBase. Cached blocks in use cost nothing; a free one that is cached leaves the free queue."""
        in_use = sum(block in self.pool.ref_count for block in self.cached_blocks(sequence))
        return super().missing_blocks(sequence) - in_use

    def cache_full_blocks(self, sequence: Sequence, start: int, end: int) -> None:
        """Cache the blocks that the tokens from `start` to `end` fill, if they are known and the blocks aren't lost."""
        first, last = start // self.pool.block_size, end // self.pool.block_size
        if self.share_prefixes:
            for block, known in zip(sequence.blocks[first:last], self.hashes_of(sequence)[first:]):
                self.pool.cache_full_block(block, known)

    def discard(self, sequence: Sequence) -> None:
        """Remove a sequence whose keys and values may be wrong, and the hashes of its blocks, also lost ones."""
        for known in self.pool.hash_to_block.keys() & sequence.block_hashes:
            del self.pool.block_to_hash[self.pool.hash_to_block.pop(known)]
        self.states.discard(sequence)
        self.remove(sequence)
