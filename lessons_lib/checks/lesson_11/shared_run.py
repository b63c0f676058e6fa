"""The last test of 11.3: sequences arrive, share blocks and end at random, and the pool is compared with a plain
count.
"""

from collections import Counter
from random import Random

from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_03.books import queue_of, used_of


def check_random_run(attempt) -> None:
    rng, pool = Random(10), attempt(14, 4)
    tables: list[list[int]] = []
    block_to_hash: dict[int, bytes] = {}
    for step in range(400):
        queue = queue_of(pool)
        case = (
            f"step {step} of a long run with 14 blocks; the sequences use {short(tables)}; the free queue is {queue}; "
        )
        if tables and rng.random() < 0.45:
            blocks = tables.pop(rng.randrange(len(tables)))
            case += f"`free({blocks})`."
            call(pool.free, list(blocks), case=case)
            others = {block for own in tables for block in own}
            queue += [block for block in reversed(blocks) if block not in others]
        else:
            hashes = [bytes([byte]) * 32 for byte in _beginning(rng)]
            case += (
                "a new sequence looks for its beginning, touches the blocks it finds, and allocates new ones for "
                "the rest."
            )
            blocks = [int(block) for block in call(pool.match_prefix, list(hashes), case=case)]
            _compare_found(blocks, hashes, block_to_hash, case)
            queue = [block for block in queue if block not in blocks]
            rest = len(hashes) - len(blocks)
            if rest > len(queue):
                continue
            call(pool.touch, list(blocks), case=case)
            blocks = blocks + pool.allocate(rest)
            for block in blocks[len(hashes) - rest :]:
                block_to_hash.pop(block, None)
            queue = queue[rest:]
            for block, block_hash in zip(blocks, hashes):
                pool.cache_full_block(block, block_hash)
                if block_hash not in block_to_hash.values():
                    block_to_hash[block] = block_hash
            tables.append(blocks)
        _compare_books(pool, tables, queue, case)


def _beginning(rng: Random) -> list[int]:
    """Four kinds of beginnings, of 1 to 4 blocks: a byte for the hash of each block."""
    kind = rng.randrange(4)
    return [10 * kind + index for index in range(1, rng.randint(2, 5))]


def _compare_found(blocks: list[int], hashes: list[bytes], block_to_hash: dict[int, bytes], case: str) -> None:
    hash_to_block = {block_hash: block for block, block_hash in block_to_hash.items()}
    want = []
    for block_hash in hashes:
        if block_hash not in hash_to_block:
            break
        want.append(hash_to_block[block_hash])
    if blocks != want:
        raise Mistake(
            f"`match_prefix` should return {want}; yours returned {short(blocks)}.",
            case=case,
            idea="Return the blocks of all hashes before the first unknown one.",
        )


def _compare_books(pool, tables: list[list[int]], queue: list[int], case: str) -> None:
    ref_count = dict(Counter(block for own in tables for block in own))
    if dict(pool.ref_count) != ref_count:
        raise Mistake(
            f"`ref_count` should be {ref_count}; yours is {short(dict(pool.ref_count))}.",
            case=case,
            idea="Every `touch` and every `free` changes the count of each of its blocks by one.",
        )
    if queue_of(pool) != queue or used_of(pool) != set(ref_count):
        raise Mistake(
            f"the free queue should be {queue}; yours is {queue_of(pool)}.",
            case=case,
            idea=(
                "Every block is either free or in use, never both; freed blocks join the end of the queue, last "
                "block first."
            ),
        )
