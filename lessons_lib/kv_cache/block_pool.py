"""Lesson 03: a pool of blocks, and the block table that lists a request's blocks."""

from collections import deque
from typing import TYPE_CHECKING

from lessons_lib.models.configuration import KVShape, kv_shapes

if TYPE_CHECKING:
    from transformers import PretrainedConfig


class OutOfBlocks(RuntimeError):
    """More blocks are needed than are free."""


class TableFull(RuntimeError):
    """A request needs more blocks than its table may hold."""


class BlockPool:
    """A fixed number of blocks, each with room for the keys and values of `block_size` tokens.

    Attributes:
        num_blocks: number of blocks; their ids are 0 to num_blocks - 1.
        block_size: tokens per block.
        free_queue: ids of the free blocks. Blocks are allocated from the front and freed to the end.
        used: ids of the allocated blocks.
    """

    def __init__(self, num_blocks: int, block_size: int):
        if num_blocks < 0 or block_size < 1:
            raise ValueError(
                f"{num_blocks} blocks of {block_size} tokens: a pool needs 0 or more blocks of at least 1 token each."
            )
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.reset()

    def reset(self) -> None:
        """Free all blocks."""
        self.free_queue = deque(range(self.num_blocks))
        self.used: set[int] = set()

    def allocate(self, count: int) -> list[int]:
        """Allocate `count` blocks from the front of the free queue: all of them or none.

        Returns:
            list of int: their ids, in the order in which they left the queue.

        Raises:
            OutOfBlocks: fewer blocks are free; nothing changes.
            ValueError: `count` is negative; nothing changes.
        """
        if count < 0:
            raise ValueError(f"can't allocate {count} blocks; `count` must be at least 0.")
        if count > len(self.free_queue):
            raise OutOfBlocks(
                f"{count} block{'s' if count != 1 else ''} needed, {len(self.free_queue)} free of {self.num_blocks}. "
                "Free a finished request, stop a running one, or make the pool larger. Nothing was allocated."
            )
        blocks = [self.free_queue.popleft() for _ in range(count)]
        self.used.update(blocks)
        return blocks

    def free(self, blocks: list[int]) -> None:
        """Free a request's blocks, given in the order of its tokens.

        They go to the end of the free queue, last block first, so that a request's tail is reallocated before its
        beginning. Requests often share a beginning: lesson 11 reuses such blocks if they are still intact.

        Raises:
            ValueError: a block is not allocated (freed before, or of another pool) or is listed twice; nothing changes.
        """
        for block in blocks:
            if block not in self.used:
                raise ValueError(
                    f"block {block!r} is not allocated; this pool has blocks 0 to {self.num_blocks - 1}, "
                    f"{len(self.used)} of them in use. Free each block once, in the pool that it came from. "
                    "Nothing was freed."
                )
        if len(set(blocks)) < len(blocks):
            raise ValueError(f"a block is listed twice in {list(blocks)}. Free each block once. Nothing was freed.")
        self.used.difference_update(blocks)
        self.free_queue.extend(reversed(blocks))

    @property
    def utilization(self) -> float:
        """Fraction of the blocks that are allocated, 0 to 1."""
        return len(self.used) / self.num_blocks if self.num_blocks else 0.0


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Minimum number of blocks for `num_tokens` tokens.

    Args:
        num_tokens: 0 or more.
        block_size: tokens per block, at least 1.
    """
    return (num_tokens + block_size - 1) // block_size


class BlockTable:
    """The blocks of one request: `blocks[i]` holds its tokens at positions i x block_size to (i + 1) x block_size - 1.

    Attributes:
        pool: the `BlockPool` that the blocks come from.
        max_blocks: maximum number of blocks; None for no limit.
        blocks: block ids, in the order of the request's tokens.
        num_tokens: number of tokens stored so far.
    """

    def __init__(self, pool: "BlockPool", max_blocks: int | None = None):
        self.pool = pool
        self.max_blocks = max_blocks
        self.blocks: list[int] = []
        self.num_tokens = 0

    def append(self, count: int = 1) -> None:
        """Make room for `count` more tokens. Fill the last block first, and allocate new blocks only for the rest.

        Raises:
            OutOfBlocks: the pool has too few free blocks; nothing changes.
            TableFull: the table would need more than `max_blocks` blocks; nothing changes.
            ValueError: `count` is negative; nothing changes.
        """
        if count < 0:
            raise ValueError(f"can't append {count} tokens; `count` must be at least 0.")
        num_tokens = self.num_tokens + count
        needed = blocks_for(num_tokens, self.pool.block_size)
        if self.max_blocks is not None and needed > self.max_blocks:
            raise TableFull(
                f"{num_tokens} tokens need {needed} blocks of {self.pool.block_size}; this table may hold "
                f"{self.max_blocks}. Finish the request here, or raise `max_blocks`. Nothing was appended."
            )
        self.blocks += self.pool.allocate(needed - len(self.blocks))
        self.num_tokens = num_tokens

    def release(self) -> None:
        """Return all blocks to the pool. The table is empty afterwards and can be reused."""
        self.pool.free(self.blocks)
        self.blocks = []
        self.num_tokens = 0


def slot_of(blocks: list[int], block_size: int, position: int) -> int:
    """The cache slot of the token at `position`: the first slot of its block, plus the offset in the block.

    Args:
        blocks: ids of the request's blocks, in the order of its tokens.
        block_size: tokens per block.
        position: index of the token in its sequence, from 0.

    Returns:
        int: the slot's index, counted over the whole pool.

    Raises:
        IndexError: the position is negative or beyond the last block.
    """
    if not 0 <= position < len(blocks) * block_size:
        raise IndexError(
            f"position {position} has no slot; {len(blocks)} blocks of {block_size} "
            f"have positions 0 to {len(blocks) * block_size - 1}."
        )
    return blocks[position // block_size] * block_size + position % block_size


def block_bytes(
    config: "PretrainedConfig", block_size: int, bytes_per_element: int = 4, layer_shapes: "list[KVShape] | None" = None
) -> int:
    """Size of one block in bytes: the keys and values of `block_size` tokens in all layers.

    Args:
        config: a Hugging Face model configuration.
        block_size: tokens per block.
        bytes_per_element: 4 for float32, 2 for bfloat16 and float16.
        layer_shapes: shape of each layer, if not the configuration's.
    """
    return block_size * bytes_per_element * sum(shape.elements for shape in layer_shapes or kv_shapes(config))


def blocks_in_budget(config: "PretrainedConfig", block_size: int, budget_bytes: int, bytes_per_element: int = 4) -> int:
    """Number of whole blocks that fit in a memory budget.

    Args:
        config: a Hugging Face model configuration.
        block_size: tokens per block, at least 1.
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
