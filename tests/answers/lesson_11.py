"""Right answers to the exercises of lesson 11, written in other ways than the reference. The wrong ones are the checks'
lists."""

import hashlib
import struct
from functools import reduce

from lessons_lib.kv_cache.block_copies import COPY, BlockCopy
from lessons_lib.kv_cache.block_pool import OutOfBlocks

# 11.1 block_hash


def written_with_commas(parent, token_ids):
    return hashlib.sha256(parent + ",".join(map(str, token_ids)).encode()).digest()


def updated_step_by_step(parent, token_ids):
    digest = hashlib.new("sha256", parent)
    for token in token_ids:
        digest.update(struct.pack("<i", token))
    return bytes.fromhex(digest.hexdigest())


def tokens_before_the_parent(parent, token_ids):
    return hashlib.sha256(repr(tuple(int(token) for token in token_ids)).encode() + parent).digest()


def token_after_token(parent, token_ids):
    return reduce(lambda one, token: hashlib.sha256(one + token.to_bytes(8, "big")).digest(), token_ids, parent)


# 11.2 take_cached


def in_another_order(pool, sequence, blocks):
    full = sequence.num_tokens == len(blocks) * pool.block_size
    taken = [block for block in blocks if block not in pool.ref_count]
    if full and len(taken) == len(pool.free_queue):
        blocks = blocks[: len(blocks) - 1]
    sequence.blocks = [*blocks]
    sequence.num_computed_tokens = len(blocks) * pool.block_size
    if sequence.num_computed_tokens == sequence.num_tokens:
        sequence.num_computed_tokens -= 1
    pool.touch(tuple(blocks))


def with_a_loop(pool, sequence, blocks):
    free = set(pool.free_queue).difference(blocks)
    keep = len(blocks) if free or sequence.num_tokens > len(blocks) * pool.block_size else len(blocks) - 1
    sequence.blocks = []
    for block in blocks[:keep]:
        pool.touch([block])
        sequence.blocks.append(block)
    sequence.num_computed_tokens = max(0, min(keep * pool.block_size, sequence.num_tokens - 1))


def frees_what_it_touched(pool, sequence, blocks):
    pool.touch(blocks)
    sequence.blocks = blocks[:]
    if sequence.num_tokens == len(blocks) * pool.block_size and not pool.free_queue:
        pool.free([sequence.blocks.pop()])
    sequence.num_computed_tokens = min(sequence.num_tokens - 1, pool.block_size * len(sequence.blocks))


# 11.3 copy_before_write


def with_a_new_table(pool, sequence, index):
    target = pool.allocate(1)[0]
    old = sequence.blocks[index]
    sequence.blocks = sequence.blocks[:index] + [target] + sequence.blocks[index + 1 :]
    pool.free([old])
    return BlockCopy(kind=COPY, source=old, target=target)


def frees_before_it_writes_the_table(pool, sequence, index):
    [new] = pool.allocate(1)
    copy = BlockCopy(COPY, sequence.blocks[index], new)
    pool.free(sequence.blocks[index : index + 1])
    sequence.blocks[index] = new
    return copy


def asks_before_it_starts(pool, sequence, index):
    if not pool.free_queue:
        raise OutOfBlocks("no block for the copy")
    source = sequence.blocks[index]
    pool.touch([source])
    target = pool.allocate(1)[0]
    pool.free([source])
    pool.free([source])
    sequence.blocks[index] = target
    return BlockCopy("copy", source, target)


def with_a_slice(pool, sequence, index):
    source = sequence.blocks[index]
    sequence.blocks[index : index + 1] = pool.allocate(1)
    pool.free([source])
    return BlockCopy(COPY, source, sequence.blocks[index])


WRONG: dict[str, list] = {}
RIGHT = {
    "11.1": [written_with_commas, updated_step_by_step, tokens_before_the_parent, token_after_token],
    "11.2": [in_another_order, with_a_loop, frees_what_it_touched],
    "11.3": [with_a_new_table, frees_before_it_writes_the_table, asks_before_it_starts, with_a_slice],
}
