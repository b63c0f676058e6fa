"""Lesson 11: a block pool that knows what its blocks hold, so that sequences with the same beginning share blocks."""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from lessons_lib.kv_cache.block_pool import BlockPool

if TYPE_CHECKING:
    from lessons_lib.scheduling.sequence import Sequence


def block_hash(parent: bytes, token_ids: list[int]) -> bytes:
    """The hash of a full block: of its tokens, and of the hash of the block before it.

    Keys and values depend on all tokens before them, so the same tokens behind another beginning are another block. The
    chain makes one hash stand for everything up to the end of the block.

    Args:
        parent: the hash of the block before; for the first block, `b""`.
        token_ids: the tokens of the block.

    Returns:
        32 bytes, by SHA-256: it is not feasible to construct a prompt whose blocks have another one's hashes.
    """
    return hashlib.sha256(parent + array("q", token_ids).tobytes()).digest()


def salt_root(cache_salt: str | None) -> bytes:
    """What stands for the block before the first one: b"" without a salt.

    Returns:
        64 bytes, by SHA-512: longer than a block's hash, so that no block of tokens can pass for a salt.
    """
    return b"" if cache_salt is None else hashlib.sha512(cache_salt.encode("utf-8", "surrogatepass")).digest()


def hash_full_blocks(
    sequence: "Sequence", block_size: int, block_hash: Callable[[bytes, list[int]], bytes] = block_hash
) -> list[bytes]:
    """Hashes of the full blocks of a sequence's tokens. Those computed before are kept in `sequence.block_hashes`.

    Args:
        sequence: without placeholders, since they have no token ids yet.
        block_size: tokens of a block.

    Returns:
        `sequence.num_tokens // block_size` hashes.
    """
    hashes = sequence.block_hashes
    full = sequence.num_tokens // block_size
    if len(hashes) < full:
        # Only tokens that aren't hashed yet are looked at: this runs in every step, and sequences are long.
        hashed = len(hashes) * block_size
        token_ids = [*sequence.prompt_ids[hashed:], *sequence.output_ids[max(0, hashed - len(sequence.prompt_ids)) :]]
        for start in range(0, full * block_size - hashed, block_size):
            parent = hashes[-1] if hashes else salt_root(sequence.cache_salt)
            hashes.append(block_hash(parent, token_ids[start : start + block_size]))
    return hashes[:full]


class LruQueue(OrderedDict[int, None]):
    """The free queue of a pool, from whose middle a block can be taken too."""

    def popleft(self) -> int:
        return self.popitem(last=False)[0]

    def append(self, block: int) -> None:
        self[block] = None

    def extend(self, blocks: Iterable[int]) -> None:
        self.update(dict.fromkeys(blocks))


class SharedBlockPool(BlockPool):
    """A block pool whose blocks may be used by several sequences.

    A free block keeps its contents until it is allocated again. Until then it may be taken out of the free queue,
    wherever it is in it. The front of the queue is the block that hasn't been used for longest.

    Attributes:
        ref_count: block -> how many sequences use it, for blocks in use.
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
        """One more sequence uses these blocks. Those that were free leave the free queue.

        Args:
            blocks: different blocks of this pool, free or in use.
        """
        for block in blocks:
            self.ref_count[block] = self.ref_count.get(block, 0) + 1
            self.free_queue.pop(block, None)  # type: ignore[call-arg]
        self.used.update(blocks)

    def free(self, blocks: list[int]) -> None:
        """One sequence no longer uses its blocks, given in the order of its tokens. Those it used alone join the free
        queue.

        Raises:
            ValueError: a block is not in use, or is given twice; nothing changes.
        """
        if len(set(blocks)) < len(blocks):
            raise ValueError(
                f"a block is given twice in {list(blocks)}. A sequence has a block once. Nothing was freed."
            )
        super().free([block for block in blocks if self.ref_count.get(block, 1) == 1])
        for block in blocks:
            self.ref_count[block] -= 1
            if not self.ref_count[block]:
                del self.ref_count[block]


class PrefixCache(SharedBlockPool):
    """A shared pool whose full blocks can be found by the hash of their contents, whether in use or free.

    Attributes:
        block_to_hash: block -> its hash, for full blocks whose keys and values are computed.
        hash_to_block: hash -> block.
        evicted: how many blocks with a hash have been lost.
    """

    def __init__(self, num_blocks: int, block_size: int):
        super().__init__(num_blocks, block_size)
        self.evicted = 0

    def reset(self) -> None:
        """Free all blocks, and forget what they hold."""
        super().reset()
        self.block_to_hash: dict[int, bytes] = {}
        self.hash_to_block: dict[bytes, int] = {}

    def match_prefix(self, block_hashes: list[bytes]) -> list[int]:
        """The blocks that hold the longest cached beginning of a sequence.

        Args:
            block_hashes: of its full blocks, in order.

        Returns:
            the blocks found, up to the first hash that isn't there.
        """
        blocks = []
        for block_hash in block_hashes:
            if block_hash not in self.hash_to_block:
                break
            blocks.append(self.hash_to_block[block_hash])
        return blocks

    def allocate(self, count: int) -> list[int]:
        """Allocate `count` blocks for new tokens, least recently used first. Their contents are lost.

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
        """Whether its owner may write to it: a write must not change what another sequence reads, now or later."""
        return self.ref_count.get(block) == 1 and block not in self.block_to_hash

    def touch(self, blocks: list[int]) -> None:
        """One more sequence uses these blocks. Those that were free leave the free queue.

        Raises:
            ValueError: a block is free and has no hash, so it holds nothing that could be shared; nothing changes.
        """
        for block in blocks:
            if block not in self.ref_count and block not in self.block_to_hash:
                raise ValueError(
                    f"block {block} is free and has no hash; touch blocks in use, or those that `match_prefix` "
                    "returned. Nothing changed."
                )
        super().touch(blocks)

    def cache_full_block(self, block: int, block_hash: bytes) -> None:
        """A block in use is full and computed: from now on it can be found by its hash. If another block has that hash,
        nothing changes.

        Raises:
            ValueError: the block is not in use; nothing changes.
        """
        if block not in self.ref_count:
            raise ValueError(f"block {block} is not in use; only an allocated block can be cached. Nothing changed.")
        if block_hash not in self.hash_to_block and block not in self.block_to_hash:
            self.block_to_hash[block] = block_hash
            self.hash_to_block[block_hash] = block

    def forget_contents(self) -> None:
        """Forget what all blocks hold: none can be found anymore.

        Raises:
            RuntimeError: a block is in use, and its sequence would go on with it; nothing changes.
        """
        if self.used:
            raise RuntimeError(
                f"{len(self.used)} of {self.num_blocks} blocks are in use; finish or abort all requests first. "
                "Nothing changed."
            )
        self.block_to_hash.clear()
        self.hash_to_block.clear()
