"""Lesson 11: sequences, such as forks, that share the blocks they write to. Each copies a block before it writes.

The engine doesn't need this: its sequences share only full blocks, which are never written.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

from lessons_lib.kv_cache.block_copies import COPY, BlockCopy
from lessons_lib.kv_cache.block_pool import blocks_for
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.scheduling.scheduler import SchedulerOutput
from lessons_lib.scheduling.sequence import Sequence
from lessons_lib.scheduling.swapping import SwappingScheduler


def take_cached(pool: PrefixCache, sequence: Sequence, blocks: list[int]) -> None:
    """Start a sequence with cached blocks that hold its first tokens.

    The last token is always computed: its logits predict the next token.

    Args:
        pool: a PrefixCache.
        sequence: has no blocks; changed in place.
        blocks: one or more, as returned by `pool.match_prefix` for it.
    """
    covers_all = len(blocks) * pool.block_size == sequence.num_tokens
    others_free = len(pool.free_queue) - sum(block not in pool.ref_count for block in blocks)
    if covers_all and not others_free:
        # No block would be free for the copy that the last token is written to: recompute the last block instead.
        blocks = blocks[:-1]
    pool.touch(blocks)
    sequence.blocks = list(blocks)
    sequence.num_computed_tokens = min(len(blocks) * pool.block_size, sequence.num_tokens - 1)


def copy_before_write(pool: PrefixCache, sequence: Sequence, index: int) -> BlockCopy:
    """Copy-on-write: replace a shared or cached block by one that belongs to the sequence alone.

    Args:
        pool: the pool of the sequence's blocks.
        sequence: `sequence.blocks[index]` is the block; changed in place.

    Returns:
        BlockCopy, to execute before the sequence writes.

    Raises:
        OutOfBlocks: no block is free; nothing changes.
    """
    source = sequence.blocks[index]
    (target,) = pool.allocate(1)
    sequence.blocks[index] = target
    pool.free([source])
    return BlockCopy(COPY, source, target)


@dataclass(eq=False, repr=False)
class CopyOnWriteScheduler(SwappingScheduler):
    """A scheduler whose sequences may share any block: forks, and sequences that find all their tokens in the cache."""

    _: KW_ONLY
    take_cached: Callable[[PrefixCache, Sequence, list[int]], None] = take_cached
    copy_before_write: Callable[[PrefixCache, Sequence, int], BlockCopy] = copy_before_write

    def schedule_running(self, scheduler_output: SchedulerOutput) -> None:
        for sequence, count in self.share_budget(self.running, self.max_num_batched_tokens).items():
            self.allocate_slots(scheduler_output, sequence, count)

    def make_room(self, scheduler_output: SchedulerOutput, sequence: Sequence, count: int) -> bool:
        """See PreemptiveScheduler. If the first block to write to isn't writable, copy it first."""
        size, blocks = self.pool.block_size, sequence.blocks
        index = sequence.num_computed_tokens // size
        if index < len(blocks) and not self.pool.is_writable(blocks[index]):
            missing = blocks_for(sequence.num_computed_tokens + count, size) - len(blocks)
            if missing + 1 > len(self.pool.free_queue):
                return False
            scheduler_output.block_copies.append(self.copy_before_write(self.pool, sequence, index))
        return super().make_room(scheduler_output, sequence, count)

    def admit(self, scheduler_output: SchedulerOutput, sequence: Sequence) -> None:
        """Assign a batch slot to a waiting sequence, and all cached blocks that hold its tokens. The last token is
        computed in a copy of its block."""
        may_share = self.share_prefixes and not sequence.prompt_logits and not sequence.swapped
        blocks = self.pool.match_prefix(self.hashes_of(sequence)) if may_share else []
        size, scheduled = self.pool.block_size, scheduler_output.num_scheduled_tokens
        filling = {block for each in scheduled for block in each.blocks[each.num_computed_tokens // size :]}
        if len(blocks) * size == sequence.num_tokens and blocks[-1] in filling:
            blocks.pop()  # copies are made before the step fills it
        if blocks:
            self.take_cached(self.pool, sequence, blocks)
            scheduler_output.cached[sequence] = sequence.num_computed_tokens
        super().admit(scheduler_output, sequence)


def fork(scheduler: CopyOnWriteScheduler, sequence: Sequence, id: str) -> Sequence:
    """Start a second sequence with all tokens of a running one. They share every block until one of them writes.

    Raises:
        RuntimeError: the sequence isn't running, a step with it is in flight, or no batch slot is free; nothing
            changes.
    """
    if sequence not in scheduler.running or sequence.num_placeholders:
        raise RuntimeError(
            f"sequence {sequence.id!r} is not running, or has {sequence.num_placeholders} tokens in flight; only a "
            "running sequence can be forked, after `update`. Nothing changed."
        )
    if len(scheduler.running) >= scheduler.max_num_seqs:
        raise RuntimeError(
            f"all {scheduler.max_num_seqs} batch slots are taken, and fork {id!r} needs one; raise `max_num_seqs`, or "
            "wait until a sequence has finished. Nothing changed."
        )
    scheduler.pool.touch(sequence.blocks)
    copies: dict[str, Any] = {name: list(getattr(sequence, name)) for name in ("output_ids", "blocks", "block_hashes")}
    child = replace(sequence, id=id, queue_place=None, **copies)
    scheduler.running.append(child)
    return child
