"""Lesson 10: a block pool that knows what its blocks hold, so that sequences with the same beginning share blocks."""

import hashlib
from array import array
from collections import OrderedDict

from lessons_lib.kv_cache.block_pool import BlockPool


def block_hash(parent, token_ids):
    """The name of a full block: a hash of its tokens and of the name of the block before it.

    Keys and values depend on all tokens before them, so the same tokens behind another beginning are another block. The chain makes one
    name stand for everything up to the end of the block.

    Args:
        parent: bytes, the name of the block before; b"" for the first.
        token_ids: list of int, the tokens of the block.

    Returns:
        bytes: 32 of them, by SHA-256: nobody can make a prompt that is called like somebody else's.
    """
    return hashlib.sha256(parent + array("q", token_ids).tobytes()).digest()


def hash_full_blocks(sequence, block_size, block_hash=block_hash):
    """Names of the full blocks of a sequence's known tokens. What has been computed before is kept in `sequence.block_hashes`.

    Returns:
        list of bytes, `sequence.num_tokens // block_size` of them.
    """
    names = sequence.block_hashes
    full = sequence.num_tokens // block_size
    if len(names) < full:
        # Only what has no name yet is looked at: this runs in every step, and sequences are long.
        named = len(names) * block_size
        token_ids = [*sequence.prompt_ids[named:], *sequence.output_ids[max(0, named - len(sequence.prompt_ids)) :]]
        for start in range(0, full * block_size - named, block_size):
            names.append(block_hash(names[-1] if names else b"", token_ids[start : start + block_size]))
    return names[:full]


class LruQueue(OrderedDict):
    """The free queue of a pool, from which a block may also leave from the middle."""

    def popleft(self):
        return self.popitem(last=False)[0]

    def extend(self, blocks):
        self.update(dict.fromkeys(blocks))


class PrefixCache(BlockPool):
    """A block pool whose blocks may have several holders, and are found again by what they hold.

    A block that nobody holds any more keeps what is in it, and its name, until it is handed out for something else. The free queue has
    the least recently used in front, so what has not been used for longest is lost first.

    Attributes:
        holders: block -> how many sequences hold it, for those that anybody holds.
        block_to_hash: block -> its name, for full blocks whose keys and values are computed.
        hash_to_block: name -> block.
        evicted: how many named blocks have been lost.
    """

    def __init__(self, num_blocks, block_size):
        super().__init__(num_blocks, block_size)
        self.free_queue = LruQueue.fromkeys(range(num_blocks))
        self.ref_count = {}
        self.block_to_hash = {}
        self.hash_to_block = {}
        self.evicted = 0

    def allocate(self, count):
        """Hand out `count` blocks for new tokens, least recently used first. What they held is lost.

        Raises:
            OutOfBlocks, ValueError: as in `BlockPool.allocate`; nothing changes.
        """
        blocks = super().allocate(count)
        for block in blocks:
            self.ref_count[block] = 1
            if block in self.block_to_hash:
                del self.hash_to_block[self.block_to_hash.pop(block)]
                self.evicted += 1
        return blocks

    def match_prefix(self, names):
        """The blocks that hold the longest known beginning of a sequence.

        Args:
            names: of its full blocks, in order.

        Returns:
            list of int: as many blocks as are found without a gap.
        """
        blocks = []
        for name in names:
            if name not in self.hash_to_block:
                break
            blocks.append(self.hash_to_block[name])
        return blocks

    def touch(self, blocks):
        """One more sequence holds these blocks. Those that nobody held leave the free queue.

        Raises:
            ValueError: a block holds nothing that could be shared; nothing changes.
        """
        for block in blocks:
            if block not in self.ref_count and block not in self.block_to_hash:
                raise ValueError(
                    f"block {block} is free and has no name; share blocks that are held, or that `match_prefix` gave. Nothing was shared."
                )
        for block in blocks:
            self.ref_count[block] = self.ref_count.get(block, 0) + 1
            self.free_queue.pop(block, None)
        self.used.update(blocks)

    def free(self, blocks):
        """One sequence, given its blocks in the order of its tokens, holds them no longer. Those it held alone join the free queue.

        Raises:
            ValueError: a block is not held, or is named twice; nothing changes.
        """
        if len(set(blocks)) < len(blocks):
            raise ValueError(
                f"a block is named twice in {list(blocks)}. A sequence holds a block once. Nothing was freed."
            )
        super().free([block for block in blocks if self.ref_count.get(block, 1) == 1])
        for block in blocks:
            self.ref_count[block] -= 1
            if not self.ref_count[block]:
                del self.ref_count[block]

    def cache_full_block(self, block, name):
        """A held block is full and computed: from now on it is found by its name. If another block has that name already, nothing changes.

        Raises:
            ValueError: nobody holds the block; nothing changes.
        """
        if block not in self.ref_count:
            raise ValueError(f"block {block} is not handed out; only the holder of a block can say what it holds.")
        if name not in self.hash_to_block and block not in self.block_to_hash:
            self.block_to_hash[block] = name
            self.hash_to_block[name] = block

    def is_writable(self, block) -> bool:
        """Whether the holder may write to it: nobody else holds it, and nobody can find it."""
        return self.ref_count.get(block) == 1 and block not in self.block_to_hash
