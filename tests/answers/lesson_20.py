"""Right answers to the exercises of lesson 20, written in other ways than the reference. The wrong ones are the checks'
lists."""

from contextlib import suppress

from lessons_lib.kv_cache.block_pool import OutOfBlocks


def block_by_block(pool, block_hashes, depth=0):
    blocks = []
    for place, block_hash in enumerate(block_hashes, depth):
        here = pool.match_prefix([block_hash])
        if here:
            pool.touch(here)
        elif not pool.free_queue or not (slots := pool.below.lend([block_hash], place)):
            break
        else:
            here = pool.replace(1)
            worked = pool.below.load(slots, here)
            pool.below.release(slots)
            if not worked:
                pool.free(here)
                break
        blocks.append(here[0])
    return blocks


def recursive(pool, block_hashes, depth=0):
    if len(block_hashes) == 0:
        return []
    if blocks := pool.match_prefix(block_hashes):
        pool.touch(blocks)
    else:
        missing = 1  # no block of the pool is lent
        while missing < len(block_hashes) and not pool.match_prefix(block_hashes[missing : missing + 1]):
            missing += 1
        slots = pool.below.lend(block_hashes[: min(missing, len(pool.free_queue))], depth)
        blocks = pool.replace(len(slots))
        worked = pool.below.load(slots, blocks)
        pool.below.release(slots)
        if not worked:
            pool.free(blocks)
        if not slots or not worked:
            return []
    return blocks + recursive(pool, block_hashes[len(blocks) :], depth + len(blocks))


def with_sorting(floor):
    slots = [*floor.free_queue]
    slots = slots[: len(slots) - len(slots) // 2]
    slots.sort(key=lambda slot: floor.depths[slot], reverse=True)
    slots.sort(key=lambda slot: floor.hits[slot])
    return slots[0]


def by_enumeration(floor):
    half = list(enumerate(floor.free_queue))[: (len(floor.free_queue) + 1) // 2]
    return min((floor.hits[slot], -floor.depths[slot], place, slot) for place, slot in half)[-1]


def nested(floor, block_hash, depth, read):
    with suppress(OutOfBlocks):
        slot = floor.take()
        if read(block_hash, floor.row(slot)):
            floor.fill(slot, block_hash, depth)
            return slot
        floor.release([slot])


def through_a_buffer(floor, block_hash, depth, read):
    buffer = floor.row(0).clone()
    if not floor.free_queue or not read(block_hash, buffer):
        return None  # no block has left the floor
    slot = floor.take()
    floor.row(slot).copy_(buffer)
    floor.fill(slot, block_hash, depth)
    return slot


WRONG: dict[str, list] = {}
RIGHT = {
    "20.1": [block_by_block, recursive],
    "20.2": [with_sorting, by_enumeration],
    "20.3": [nested, through_a_buffer],
}
