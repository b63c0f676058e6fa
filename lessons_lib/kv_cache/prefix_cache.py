"""Lesson 11: a block pool that tracks block contents, so that sequences with the same prefix share blocks."""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from lessons_lib.kv_cache.block_pool import BlockPool

if TYPE_CHECKING:
    from lessons_lib.scheduling.sequence import Sequence


def block_hash(parent: bytes, token_ids: list[int]) -> bytes:
    """Hash a full block: its tokens, and the hash of the block before it.

    Keys and values depend on all tokens before them, so the same tokens after another prefix are another block. Through
    the chain, a hash identifies everything up to the end of its block.

    Args:
        parent: hash of the block before; `b""` for the first block.
        token_ids: tokens of the block.

    Returns:
        32 bytes, by SHA-256: constructing a prompt with another prompt's hashes is infeasible.
    """
    return hashlib.sha256(parent + array("q", token_ids).tobytes()).digest()


def salt_root(cache_salt: str | None) -> bytes:
    """Parent of the first block: b"" without a salt.

    Returns:
        64 bytes, by SHA-512: longer than a block's hash, so that no block can be mistaken for a salt.
    """
    return b"" if cache_salt is None else hashlib.sha512(cache_salt.encode("utf-8", "surrogatepass")).digest()


def hash_full_blocks(
    sequence: "Sequence", block_size: int, block_hash: Callable[[bytes, list[int]], bytes] = block_hash
) -> list[bytes]:
    """Hash the full blocks of a sequence, and cache the hashes in `sequence.block_hashes`.

    Args:
        sequence: without placeholders, which have no token ids yet.
        block_size: tokens per block.

    Returns:
        `sequence.num_tokens // block_size` hashes.
    """
    hashes = sequence.block_hashes
    full = sequence.num_tokens // block_size
    if len(hashes) < full:
        # Look only at tokens that aren't hashed yet: this runs in every step, and sequences are long.
        hashed = len(hashes) * block_size
        token_ids = [*sequence.prompt_ids[hashed:], *sequence.output_ids[max(0, hashed - len(sequence.prompt_ids)) :]]
        for start in range(0, full * block_size - hashed, block_size):
            parent = hashes[-1] if hashes else salt_root(sequence.cache_salt)
            hashes.append(block_hash(parent, token_ids[start : start + block_size]))
    return hashes[:full]


class LruQueue(OrderedDict[int, None]):
    """A pool's free queue that also supports removal from the middle."""

    def popleft(self) -> int:
        return self.popitem(last=False)[0]

    def append(self, block: int) -> None:
        self[block] = None

    def extend(self, blocks: Iterable[int]) -> None:
        self.update(dict.fromkeys(blocks))


class SharedBlockPool(BlockPool):
    """A block pool whose blocks may be shared by several sequences.

    A free block keeps its contents until it is allocated again. Until then it can be taken from anywhere in the free
    queue, which is ordered from least to most recently used.

    Attributes:
        ref_count: block -> number of sequences that use it, for blocks in use.
    """

    def reset(self) -> None:
        """Free all blocks."""
        super().reset()
        self.free_queue = LruQueue.fromkeys(range(self.num_blocks))  # type: ignore[assignment]
        self.ref_count: dict[int, int] = {}

    def allocate(self, count: int) -> list[int]:
        """Allocate `count` blocks to one sequence, least recently used first.

        Raises:
            OutOfBlocks, ValueError: as in `BlockPool.allocate`; nothing changes.
        """
        blocks = super().allocate(count)
        self.ref_count.update(dict.fromkeys(blocks, 1))
        return blocks

    def touch(self, blocks: list[int]) -> None:
        """Add one user to each block. Free blocks leave the free queue.

        Args:
            blocks: distinct blocks of this pool, free or in use.
        """
        for block in blocks:
            self.ref_count[block] = self.ref_count.get(block, 0) + 1
            self.free_queue.pop(block, None)  # type: ignore[call-arg]
        self.used.update(blocks)

    def free(self, blocks: list[int]) -> None:
        """Remove one user from blocks, given in the order of the sequence's tokens. Unused ones join the free queue.

        Raises:
            ValueError: a block is not in use, or is given twice; nothing changes.
        """
        if len(set(blocks)) < len(blocks):
            raise ValueError(f"a block is given twice in {list(blocks)}. Give each block once. Nothing was freed.")
        super().free([block for block in blocks if self.ref_count.get(block, 1) == 1])
        for block in blocks:
            self.ref_count[block] -= 1
            if not self.ref_count[block]:
                del self.ref_count[block]


class PrefixCache(SharedBlockPool):
    """A shared pool whose full blocks can be found by the hash of their contents, in use or free.

    Attributes:
        block_to_hash: block -> its hash, for full blocks whose keys and values are computed.
        hash_to_block: hash -> block.
        evicted: number of cached blocks evicted so far.
    """

    def __init__(self, num_blocks: int, block_size: int):
        super().__init__(num_blocks, block_size)
        self.evicted = 0

    def reset(self) -> None:
        """Free all blocks and forget their contents."""
        super().reset()
        self.block_to_hash: dict[int, bytes] = {}
        self.hash_to_block: dict[bytes, int] = {}

    def match_prefix(self, block_hashes: list[bytes]) -> list[int]:
        """Find the longest cached prefix of a sequence.

        Args:
            block_hashes: hashes of its full blocks, in order.

        Returns:
            the blocks found, up to the first miss.
        """
        blocks = []
        for block_hash in block_hashes:
            if block_hash not in self.hash_to_block:
                break
            blocks.append(self.hash_to_block[block_hash])
        return blocks

    def allocate(self, count: int) -> list[int]:
        """Allocate `count` blocks for new tokens, least recently used first, and evict their contents.

        Raises:
            OutOfBlocks, ValueError: as in `BlockPool.allocate`; nothing changes.
        """
        blocks = super().allocate(count)
        for block in blocks:
            if block in self.block_to_hash:
                del self.hash_to_block[self.block_to_hash.pop(block)]
                self.evicted += 1
        return blocks

    def is_writable(self, block: int) -> bool:
        """True if the block's owner may write to it: no other sequence reads it, now or later."""
        return self.ref_count.get(block) == 1 and block not in self.block_to_hash

    def touch(self, blocks: list[int]) -> None:
        """Add one user to each block. Free blocks leave the free queue.

        Raises:
            ValueError: a block is free and has no hash, so there is nothing to share; nothing changes.
        """
        for block in blocks:
            if block not in self.ref_count and block not in self.block_to_hash:
                raise ValueError(
                    f"block {block} is free and has no hash; touch blocks in use, or those that `match_prefix` "
                    "returned. Nothing changed."
                )
        super().touch(blocks)

    def cache_full_block(self, block: int, block_hash: bytes) -> None:
        """Register a full, computed block in use under its hash, unless another block has that hash.

        Raises:
            ValueError: the block is not in use; nothing changes.
        """
        if block not in self.ref_count:
            raise ValueError(f"block {block} is not in use; only an allocated block can be cached. Nothing changed.")
        if block_hash not in self.hash_to_block and block not in self.block_to_hash:
            self.block_to_hash[block] = block_hash
            self.hash_to_block[block_hash] = block
