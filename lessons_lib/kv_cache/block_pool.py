"""Lesson 03: a pool of blocks, and the table that says which of them belong to a request."""

from collections import deque

import torch

from lessons_lib.models.loading import cache_bytes_per_token


class OutOfBlocks(RuntimeError):
    """More blocks were asked for than are free."""


class TableFull(RuntimeError):
    """A request has grown past the most blocks that its table may hold."""


class BlockPool:
    """A fixed number of blocks, each with room for the keys and values of `block_size` tokens.

    Attributes:
        num_blocks: how many there are; they are numbered from 0.
        block_size: tokens of one block.
        free_queue: the free blocks. The first is handed out next; blocks that come back join the end.
        used: the blocks that are handed out.
    """

    def __init__(self, num_blocks, block_size):
        if num_blocks < 0 or block_size < 1:
            raise ValueError(
                f"{num_blocks} blocks of {block_size} tokens; give 0 or more blocks, of at least 1 token each."
            )
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.free_queue = deque(range(num_blocks))
        self.used = set()

    def allocate(self, count):
        """Take `count` blocks off the front of the free queue: all of them or none.

        Returns:
            list of int: their numbers, in the order in which they left the queue.

        Raises:
            OutOfBlocks: fewer are free; nothing changes.
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

    def free(self, blocks):
        """Take a request's blocks back, given in the order of its tokens.

        They join the end of the queue last block first, so that the tail of a request is handed out again before its
        beginning. Beginnings are what requests have in common: lesson 10 shares them, if they are still there.

        Raises:
            ValueError: a block is not handed out (freed before, or not of this pool), or is named twice; nothing changes.
        """
        for block in blocks:
            if block not in self.used:
                raise ValueError(
                    f"block {block!r} is not handed out; this pool has blocks 0 to {self.num_blocks - 1}, "
                    f"{len(self.used)} of them in use. Free a block once, in the pool that it came from. Nothing was freed."
                )
        if len(set(blocks)) < len(blocks):
            raise ValueError(f"a block is named twice in {list(blocks)}. Free a block once. Nothing was freed.")
        self.used.difference_update(blocks)
        self.free_queue.extend(reversed(blocks))

    @property
    def utilisation(self) -> float:
        """Share of the blocks that are handed out, 0 to 1."""
        return len(self.used) / self.num_blocks if self.num_blocks else 0.0


def blocks_for(num_tokens, block_size):
    """How many blocks hold `num_tokens` tokens: as many as are needed, and not one more.

    Args:
        num_tokens: 0 or more.
        block_size: tokens of one block, at least 1.
    """
    return (num_tokens + block_size - 1) // block_size


class BlockTable:
    """Which blocks one request holds: `blocks[i]` has its tokens i x block_size to (i + 1) x block_size - 1.

    Attributes:
        pool: where the blocks come from.
        max_blocks: the most blocks that it may hold; without a limit if None.
        blocks: numbers of its blocks, in the order of its tokens.
        num_tokens: tokens stored so far.
    """

    def __init__(self, pool, max_blocks=None):
        self.pool = pool
        self.max_blocks = max_blocks
        self.blocks = []
        self.num_tokens = 0

    def append(self, count=1):
        """Make room for `count` more tokens. The last block is filled first; new ones are taken only for what is left.

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

    def release(self):
        """Give all blocks back to the pool. The table is empty afterwards, and may be filled again."""
        self.pool.free(self.blocks)
        self.blocks = []
        self.num_tokens = 0


def slot_of(blocks, block_size, position):
    """Where the token at `position` of a request lies in the pool: its block's first place, plus the offset in the block.

    Args:
        blocks: the request's blocks, in the order of its tokens.
        position: 0 for its first token.

    Returns:
        int: the slot, counted over all places of the pool.

    Raises:
        IndexError: the position is negative, or beyond the last block.
    """
    if not 0 <= position < len(blocks) * block_size:
        raise IndexError(
            f"position {position} has no slot; {len(blocks)} blocks of {block_size} "
            f"have positions 0 to {len(blocks) * block_size - 1}."
        )
    return blocks[position // block_size] * block_size + position % block_size


def slot_mapping(blocks, block_size, start, end):
    """The slots of the tokens at positions start, start + 1, ..., end - 1, all at once.

    Args:
        blocks: list of int, the request's blocks in the order of its tokens.
        start, end: a range of positions, as in `range(start, end)`; it may be empty.

    Returns:
        int64 tensor [end - start].

    Raises:
        IndexError: a position is negative, or beyond the last block.
    """
    if start < 0 or end > len(blocks) * block_size:
        raise IndexError(
            f"positions {start} to {end - 1} are asked for; {len(blocks)} blocks of {block_size} have positions 0 to {len(blocks) * block_size - 1}."
        )
    positions = torch.arange(start, max(start, end))
    table = torch.tensor(blocks, dtype=torch.int64)
    return table[positions // block_size] * block_size + positions % block_size


def block_bytes(config, block_size, bytes_per_element=4):
    """Bytes of one block: the keys and values of `block_size` tokens in all layers.

    Args:
        config: a Hugging Face model configuration.
        bytes_per_element: 4 for float32, 2 for bfloat16 and float16.
    """
    return block_size * cache_bytes_per_token(config, bytes_per_element)


def blocks_in_budget(config, block_size, budget_bytes, bytes_per_element=4):
    """How many whole blocks fit in a memory budget.

    Args:
        config: a Hugging Face model configuration.
        block_size: tokens of one block, at least 1.
        budget_bytes: bytes that the cache may take.
        bytes_per_element: 4 for float32, 2 for bfloat16 and float16.

    Raises:
        ValueError: `block_size` is below 1, or the budget is negative.
    """
    if block_size < 1 or budget_bytes < 0:
        raise ValueError(
            f"block_size is {block_size} and budget_bytes {budget_bytes}; they must be at least 1 and at least 0."
        )
    return int(budget_bytes // block_bytes(config, block_size, bytes_per_element))
