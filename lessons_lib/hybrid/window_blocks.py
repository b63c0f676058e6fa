"""Lesson 19: memory for layers with a window, which read only the last tokens of a sequence.

A block of the pool stands for tokens in all layers. Layers with a window have fewer blocks of their own, and a map says
which of them holds a block of the pool. Blocks behind the window of every sequence that has them give theirs up.
"""

from dataclasses import dataclass

from lessons_lib.kv_cache.block_pool import blocks_for
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.scheduling.kept_states import KeptStates
from lessons_lib.scheduling.sequence import Sequence


def first_needed_block(num_computed_tokens: int, window: int, block_size: int) -> int:
    """Index of the first block of a sequence that its next token, or any later one, reads.

    Args:
        num_computed_tokens: position of the next token, 0 or more.
        window: number of tokens that each token sees, its own included; 1 or more.
        block_size: tokens per block.
    """
    return max(0, num_computed_tokens - window + 1) // block_size


def longest_usable(is_kept: list[bool], window: int, block_size: int) -> int:
    """Find the longest prefix that a new sequence can start with, among blocks that the layers without a window have.

    Args:
        is_kept: for each block of the prefix, in order: do the layers with a window have it, too?
        window, block_size: see `first_needed_block`.

    Returns:
        number of blocks; all those that the token behind them reads are kept.
    """
    longest = num_kept = 0  # blocks kept without a gap, up to here
    for count, is_here in enumerate(is_kept, start=1):
        num_kept = num_kept + 1 if is_here else 0
        if count - num_kept <= first_needed_block(count * block_size, window, block_size):
            longest = count
    return longest


def blocks_in_windows(num_sequences: int, num_tokens: int, window: int, block_size: int) -> int:
    """The most blocks that a step needs in layers with a window.

    Args:
        num_sequences: running sequences.
        num_tokens: of all of them in one step.
        window, block_size: see `first_needed_block`.
    """
    # A window may begin in the middle of a block, and new tokens, too.
    return num_sequences * (blocks_for(window - 1, block_size) + 2) + blocks_for(num_tokens, block_size)


@dataclass
class Held:
    """The blocks that a sequence needs in layers with a window: `blocks[first:end]`, blocks of the pool."""

    blocks: list[int]
    first: int
    end: int


class WindowBlocks(KeptStates):
    """The blocks of the layers with a window, and the rules that a scheduler follows for their sake.

    Attributes:
        window: of the layer with the largest one.
        pool: a PrefixCache of these blocks. The "hash" of one is the block of the scheduler's pool that it stands for,
            so a block that no sequence needs any more can be found until its memory is allocated again.
        held: sequence -> Held, as of the last step that computed it.
    """

    def __init__(self, window: int, num_blocks: int, block_size: int):
        self.window, self.block_size = window, block_size
        self.pool = PrefixCache(num_blocks, block_size)
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.pool.reset()
        self.held: dict[Sequence, Held] = {}

    def usable(self, sequence: Sequence, blocks: list[int]) -> list[int]:
        """See KeptStates: all that the next token reads must be kept."""
        is_kept = [block in self.pool.hash_to_block for block in blocks]
        return blocks[: longest_usable(is_kept, self.window, self.block_size)]

    def launch(self, scheduled: dict[Sequence, int]) -> dict[int, int]:
        """Give the blocks of a step that is launched now their memory, and free what is behind the windows.

        Args:
            scheduled: sequence -> number of tokens.

        Returns:
            block of the scheduler's pool -> its block here, for those that have a new one.
        """
        own, size = self.pool.hash_to_block, self.block_size
        for sequence in [each for each, held in self.held.items() if each.blocks is not held.blocks]:
            held = self.held.pop(sequence)  # it has ended, or lost its blocks
            self._free(held.blocks[held.first : held.end])
        missing: list[int] = []
        for sequence, count in scheduled.items():
            start = sequence.num_computed_tokens
            first, end = first_needed_block(start, self.window, size), blocks_for(start + count, size)
            held = self.held.setdefault(sequence, Held(sequence.blocks, first, first))
            if (first, end) != (held.first, held.end):
                self._free(held.blocks[held.first : min(first, held.end)])
                new = sequence.blocks[max(first, held.end) : end]
                # Before any is allocated, which could take those that another sequence starts with.
                self.pool.touch([own[block] for block in new if block in own])
                missing += [block for block in new if block not in own]
                held.first, held.end = first, end
        found = dict(zip(missing, self.pool.allocate(len(missing))))
        for block, own_block in found.items():
            self.pool.cache_full_block(own_block, block)
        return found

    def _free(self, blocks: list[int]) -> None:
        self.pool.free([self.pool.hash_to_block[block] for block in blocks])
