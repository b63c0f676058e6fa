"""Lesson 11: sequences that share blocks. One begins with cached blocks, or copies a block before it writes."""

from lessons_lib.kv_cache.block_copies import COPY, BlockCopy
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.scheduling.sequence import Sequence


def take_cached(pool: PrefixCache, sequence: Sequence, blocks: list[int]) -> None:
    """Let a sequence begin with blocks that hold its first tokens already.

    The last token is computed all the same: its logits predict the next token.

    Args:
        pool: a PrefixCache.
        sequence: has no blocks; changed in place.
        blocks: one or more, what `pool.match_prefix` returned for it.
    """
    covers_all = len(blocks) * pool.block_size == sequence.num_tokens
    others_free = len(pool.free_queue) - sum(block not in pool.ref_count for block in blocks)
    if covers_all and not others_free:
        # No block would be left for the copy that the last token is written to: recompute the last block instead.
        blocks = blocks[:-1]
    pool.touch(blocks)
    sequence.blocks = list(blocks)
    sequence.num_computed_tokens = min(len(blocks) * pool.block_size, sequence.num_tokens - 1)


def copy_before_write(pool: PrefixCache, sequence: Sequence, index: int) -> BlockCopy:
    """Copy-on-write: replace a block that others use, or can find, with one that belongs to the sequence alone.

    Args:
        pool: knows the blocks of `sequence`.
        sequence: `sequence.blocks[index]` is the block; changed in place.

    Returns:
        BlockCopy: to be carried out before the sequence writes.

    Raises:
        OutOfBlocks: no block is free; nothing changes.
    """
    source = sequence.blocks[index]
    (target,) = pool.allocate(1)
    sequence.blocks[index] = target
    pool.free([source])
    return BlockCopy(COPY, source, target)
