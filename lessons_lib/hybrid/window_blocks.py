"""Lesson 19: memory for layers with a window, which read only the last tokens of a sequence.

A block of the pool stands for tokens in all layers. Layers with a window have fewer blocks of their own, and a map says
which of them holds a block of the pool. Blocks behind the window of every sequence that has them give theirs up.
"""

from dataclasses import dataclass

from lessons_lib.hybrid.cache_groups import CacheGroup, longest_usable
from lessons_lib.kv_cache.block_pool import blocks_for
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.scheduling.kept_states import KeptStates
from lessons_lib.scheduling.sequence import Sequence


def slide(
    held: range, num_computed_tokens: int, count: int, window: int, block_size: int
) -> tuple[range, range, range]:
    """Find the blocks that a sequence's window needs in a step, those that it gives up, and the new ones.

    A layer with a window of W tokens reads the keys and values of the W - 1 tokens before each token, and its own.

    Args:
        held: indices of the blocks that it needed in the step before; `range(0)` in its first step.
        num_computed_tokens: its tokens before this step.
        count: its tokens in this step, 1 or more.
        window: 1 or more.
        block_size: tokens of a block.

    Returns:
        three ranges of indices: (all blocks that this step reads or writes, those of `held` that neither this step nor
        a later one reads, those that this step needs and `held` doesn't have).
    """
    first = max(0, num_computed_tokens - window + 1) // block_size
    needed = range(first, blocks_for(num_computed_tokens + count, block_size))
    behind = range(held.start, min(first, held.stop))
    new = range(max(first, held.stop), needed.stop)
    return needed, behind, new


def blocks_in_windows(num_sequences: int, num_tokens: int, window: int, block_size: int) -> int:
    """The most blocks that a step needs in layers with a window.

    Args:
        num_sequences: running sequences.
        num_tokens: of all of them in one step.
        window, block_size: see `slide`.
    """
    # A window may begin in the middle of a block, and new tokens, too.
    return num_sequences * (blocks_for(window - 1, block_size) + 2) + blocks_for(num_tokens, block_size)


@dataclass
class Held:
    """The blocks of a sequence, blocks of the pool, and which of them the layers with a window need."""

    blocks: list[int]
    needed: range = range(0)

    def at(self, indices: range) -> list[int]:
        """The blocks with these indices."""
        return self.blocks[indices.start : indices.stop]


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
        return blocks[: longest_usable([CacheGroup(is_kept, blocks_for(self.window - 1, self.block_size))])]

    def launch(self, scheduled: dict[Sequence, int]) -> dict[int, int]:
        """Give the blocks of a step that is launched now their memory, and free what is behind the windows.

        Args:
            scheduled: sequence -> number of tokens.

        Returns:
            block of the scheduler's pool -> its block here, for those that have a new one.
        """
        own = self.pool.hash_to_block
        for sequence in [each for each, held in self.held.items() if each.blocks is not held.blocks]:
            held = self.held.pop(sequence)  # it has ended, or lost its blocks
            self._free(held.at(held.needed))
        missing: list[int] = []
        for sequence, count in scheduled.items():
            held = self.held.setdefault(sequence, Held(sequence.blocks))
            computed = sequence.num_computed_tokens
            held.needed, behind, new = slide(held.needed, computed, count, self.window, self.block_size)
            if behind or new:
                self._free(held.at(behind))
                blocks = held.at(new)
                # Before any is allocated, which could take those that another sequence starts with.
                self.pool.touch([own[block] for block in blocks if block in own])
                missing += [block for block in blocks if block not in own]
        found = dict(zip(missing, self.pool.allocate(len(missing))))
        for block, own_block in found.items():
            self.pool.cache_full_block(own_block, block)
        return found

    def _free(self, blocks: list[int]) -> None:
        self.pool.free([self.pool.hash_to_block[block] for block in blocks])
