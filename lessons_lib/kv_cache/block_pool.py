"""Lesson 03: a pool of blocks, and the table that says which of them belong to a request."""

from collections import deque
from typing import TYPE_CHECKING, Any

import torch

from lessons_lib.models.loading import cache_bytes_per_token

if TYPE_CHECKING:
    from transformers import PretrainedConfig


class OutOfBlocks(RuntimeError):
    """More blocks are needed than are free."""


class TableFull(RuntimeError):
    """A request needs more blocks than its table may have."""


class BlockPool:
    """A fixed number of blocks, each with room for the keys and values of `block_size` tokens.

    Attributes:
        num_blocks: how many there are; their ids are 0 to num_blocks - 1.
        block_size: tokens of one block.
        free_queue: the free blocks. The first is allocated next; freed blocks join the end.
        used: the blocks that are allocated.

    Raises:
        ValueError: `num_blocks` is negative, or `block_size` below 1.
    """

    def __init__(self, num_blocks: int, block_size: int):
        if num_blocks < 0 or block_size < 1:
            raise ValueError(
                f"{num_blocks} blocks of {block_size} tokens; give 0 or more blocks, of at least 1 token each."
            )
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.free_queue: Any = deque(range(num_blocks))
        self.used: set[int] = set()

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks from the front of the free queue: all of them or none.

        Returns:
            their ids, in the order in which they left the queue.

        Raises:
            OutOfBlocks: too few are free; nothing changes.
            ValueError: `count` is negative; nothing changes.
        """
        if count < 0:
            raise ValueError(f"can't allocate {count} blocks; ask for 0 or more.")
        if count > len(self.free_queue):
            raise OutOfBlocks(
                f"{count} block{'s' if count != 1 else ''} needed, {len(self.free_queue)} free of {self.num_blocks}. "
                "Free a finished request, preempt one, or make the pool larger. Nothing was allocated."
            )
        blocks = [self.free_queue.popleft() for _ in range(count)]
        self.used.update(blocks)
        return blocks

    def free(self, blocks: list[int]) -> None:
        """Return a request's blocks to the pool, given in the order of its tokens.

        They join the end of the queue last block first, so that the end of a request is allocated again before its
        beginning. Beginnings are what requests have in common: lesson 11 shares them, if they are still there.

        Raises:
            ValueError: a block is not allocated (freed before, or not of this pool), or is given twice; nothing changes.
        """
        for block in blocks:
            if block not in self.used:
                raise ValueError(
                    f"block {block!r} is not allocated; this pool has blocks 0 to {self.num_blocks - 1}, "
                    f"{len(self.used)} of them in use. Free a block once, in its own pool. Nothing was freed."
                )
        if len(set(blocks)) < len(blocks):
            raise ValueError(f"a block is given twice in {list(blocks)}. Free a block once. Nothing was freed.")
        self.used.difference_update(blocks)
        self.free_queue.extend(reversed(blocks))

    @property
    def utilisation(self) -> float:
        """Share of the blocks that are allocated, 0 to 1."""
        return len(self.used) / self.num_blocks if self.num_blocks else 0.0


def blocks_for(num_tokens: int, block_size: int) -> int:
    """How many blocks `num_tokens` tokens need, and not one more.

    Args:
        num_tokens: 0 or more.
        block_size: tokens of one block, at least 1.
    """
    return (num_tokens + block_size - 1) // block_size


class BlockTable:
    """Which blocks a request has: `blocks[i]` holds its tokens i x block_size to (i + 1) x block_size - 1.

    Attributes:
        pool: where the blocks come from.
        max_blocks: the most blocks it may have; no limit if None.
        blocks: ids of its blocks, in the order of its tokens.
        num_tokens: tokens stored so far.
    """

    def __init__(self, pool: "BlockPool", max_blocks: int | None = None):
        self.pool = pool
        self.max_blocks = max_blocks
        self.blocks: list[int] = []
        self.num_tokens = 0

    def append(self, count: int = 1) -> None:
        """Make room for `count` more tokens. The last block is filled first; new ones are allocated only for what is left.

        Raises:
            OutOfBlocks: the pool has too few free blocks; nothing changes.
            TableFull: more than `max_blocks` blocks would be needed; nothing changes.
            ValueError: `count` is negative; nothing changes.
        """
        if count < 0:
            raise ValueError(f"can't append {count} tokens; append 0 or more.")
        num_tokens = self.num_tokens + count
        needed = blocks_for(num_tokens, self.pool.block_size)
        if self.max_blocks is not None and needed > self.max_blocks:
            raise TableFull(
                f"{num_tokens} tokens need {needed} blocks of {self.pool.block_size}; this table may hold {self.max_blocks}. "
                "End the request here, or give it a longer table. Nothing was appended."
            )
        self.blocks += self.pool.allocate(needed - len(self.blocks))
        self.num_tokens = num_tokens

    def release(self) -> None:
        """Return all blocks to the pool. The table is empty afterwards, and can be filled again."""
        self.pool.free(self.blocks)
        self.blocks = []
        self.num_tokens = 0


def slot_of(blocks: list[int], block_size: int, position: int) -> int:
    """The cache slot of the token at `position` of a request: its block's first slot, plus the offset in the block.

    Args:
        blocks: the request's blocks, in the order of its tokens.
        position: 0 for its first token.

    Returns:
        the slot, counted over all blocks of the pool.

    Raises:
        IndexError: the position is negative, or beyond the last block.
    """
    if not 0 <= position < len(blocks) * block_size:
        raise IndexError(
            f"position {position} has no slot; {len(blocks)} blocks of {block_size} "
            f"have positions 0 to {len(blocks) * block_size - 1}."
        )
    return blocks[position // block_size] * block_size + position % block_size


def slot_mapping(blocks: list[int], block_size: int, start: int, end: int) -> torch.Tensor:
    """The cache slots of the tokens at positions start, start + 1, ..., end - 1, all at once.

    Args:
        blocks: the request's blocks, in the order of its tokens.
        start, end: a range of positions, as in `range(start, end)`; it may be empty.

    Returns:
        int64 tensor [end - start].

    Raises:
        IndexError: a position is negative, or beyond the last block.
    """
    if start < 0 or end > len(blocks) * block_size:
        raise IndexError(
            f"positions {start} to {end - 1} are out of range; {len(blocks)} blocks of {block_size} "
            f"have positions 0 to {len(blocks) * block_size - 1}."
        )
    positions = torch.arange(start, max(start, end))
    table = torch.tensor(blocks, dtype=torch.int64)
    return table[positions // block_size] * block_size + positions % block_size


def block_bytes(config: "PretrainedConfig", block_size: int, bytes_per_element: int = 4) -> int:
    """Bytes of one block: the keys and values of `block_size` tokens in all layers.

    Args:
        config: a Hugging Face model configuration.
        bytes_per_element: 4 for float32, 2 for bfloat16 and float16.
    """
    return block_size * cache_bytes_per_token(config, bytes_per_element)


def blocks_in_budget(config: "PretrainedConfig", block_size: int, budget_bytes: int, bytes_per_element: int = 4) -> int:
    """How many whole blocks fit in a memory budget.

    Args:
        config: a Hugging Face model configuration.
        block_size: tokens of one block, at least 1.
        budget_bytes: bytes that the cache may use.
        bytes_per_element: 4 for float32, 2 for bfloat16 and float16.

    Raises:
        ValueError: `block_size` is below 1, or the budget is negative.
    """
    if block_size < 1 or budget_bytes < 0:
        raise ValueError(
            f"block_size is {block_size} and budget_bytes {budget_bytes}; they must be at least 1 and at least 0."
        )
    return int(budget_bytes // block_bytes(config, block_size, bytes_per_element))
