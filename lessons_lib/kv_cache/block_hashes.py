"""Lesson 11: a hash for each full block of a sequence, which stands for all tokens up to its end."""

import hashlib
from array import array
from collections.abc import Callable
from typing import Any


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
    """Parent of the first block: b"" without a salt, else 64 bytes, by SHA-512: longer than a block's hash, so that no
    block can be mistaken for a salt."""
    return b"" if cache_salt is None else hashlib.sha512(cache_salt.encode("utf-8", "surrogatepass")).digest()


def hash_full_blocks(
    sequence: Any, block_size: int, block_hash: Callable[[bytes, list[int]], bytes] = block_hash
) -> list[bytes]:
    """Hash the full blocks of a sequence, and cache the hashes in `sequence.block_hashes`. A block with a placeholder
    isn't full: its last tokens aren't known yet."""
    hashes: list[bytes] = sequence.block_hashes
    full = (len(sequence.prompt_ids) + len(sequence.output_ids)) // block_size
    if len(hashes) < full:
        # Look only at tokens that aren't hashed yet: this runs in every step, and sequences are long.
        hashed = len(hashes) * block_size
        token_ids = [*sequence.prompt_ids[hashed:], *sequence.output_ids[max(0, hashed - len(sequence.prompt_ids)) :]]
        for start in range(0, full * block_size - hashed, block_size):
            parent = hashes[-1] if hashes else salt_root(sequence.cache_salt)
            hashes.append(block_hash(parent, token_ids[start : start + block_size]))
    return hashes[:full]
