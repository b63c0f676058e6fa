"""The last test of 11.2: sequences come, share, and go at random, and the pool's books are compared with a plain count."""

from collections import Counter
from random import Random

from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_03.books import queue_of, used_of


def check_random_run(attempt) -> None:
    rng, pool = Random(10), attempt(14, 4)
    held: list[list[int]] = []
    block_to_hash: dict[int, bytes] = {}
    for turn in range(400):
        queue = queue_of(pool)
        case = (
            f"turn {turn} of a long run with 14 blocks; the sequences hold {short(held)}; the free queue is {queue}; "
        )
        if held and rng.random() < 0.45:
            blocks = held.pop(rng.randrange(len(held)))
            case += f"`free({blocks})`."
            call(pool.free, list(blocks), case=case)
            others = {block for own in held for block in own}
            queue += [block for block in reversed(blocks) if block not in others]
        else:
            names = [bytes([kind]) * 32 for kind in _beginning(rng)]
            case += "a sequence looks for its beginning, shares it, and takes new blocks for the rest."
            blocks = [int(block) for block in call(pool.match_prefix, list(names), case=case)]
            _compare_found(blocks, names, block_to_hash, case)
            queue = [block for block in queue if block not in blocks]
            rest = len(names) - len(blocks)
            if rest > len(queue):
                continue
            call(pool.touch, list(blocks), case=case)
            blocks = blocks + pool.allocate(rest)
            for block in blocks[len(names) - rest :]:
                block_to_hash.pop(block, None)
            queue = queue[rest:]
            for block, name in zip(blocks, names):
                pool.cache_full_block(block, name)
                if name not in block_to_hash.values():
                    block_to_hash[block] = name
            held.append(blocks)
        _compare_books(pool, held, queue, case)


def _beginning(rng: Random) -> list[int]:
    """Four kinds of beginnings, of 1 to 4 blocks: numbers that stand for names."""
    kind = rng.randrange(4)
    return [10 * kind + place for place in range(1, rng.randint(2, 5))]


def _compare_found(blocks: list[int], names: list[bytes], block_to_hash: dict[int, bytes], case: str) -> None:
    hash_to_block = {name: block for block, name in block_to_hash.items()}
    want = []
    for name in names:
        if name not in hash_to_block:
            break
        want.append(hash_to_block[name])
    if blocks != want:
        raise Mistake(
            f"`match_prefix` should return {want}; yours returned {short(blocks)}.",
            case=case,
            idea="As many blocks as are known without a gap.",
        )


def _compare_books(pool, held: list[list[int]], queue: list[int], case: str) -> None:
    ref_count = dict(Counter(block for own in held for block in own))
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
            idea="Every block is free or held, never both; what is freed joins the end, last block first.",
        )
