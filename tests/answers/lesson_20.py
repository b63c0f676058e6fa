"""Right answers to the exercises of lesson 20, written in other ways than the reference. The wrong ones are the checks'
lists."""

# 20.1 load_prefix


def block_by_block(pool, block_hashes, depth=0):
    blocks = []
    for place, block_hash in enumerate(block_hashes, depth):
        here = pool.match_prefix([block_hash])
        if here:
            pool.touch(here)
        elif not pool.free_queue:
            break
        else:
            slots = pool.below.lend([block_hash], place)
            if not slots:
                break
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
        room = len(pool.free_queue)
        slots = pool.below.lend(block_hashes[:room], depth) if room else []
        if not slots:
            return []
        blocks = pool.replace(len(slots))
        try:
            if not pool.below.load(slots, blocks):
                pool.free(blocks)
                return []
        finally:
            pool.below.release(slots)
    return blocks + recursive(pool, block_hashes[len(blocks) :], depth + len(blocks))


# 20.2 cheapest_to_lose


def with_a_loop(floor):
    slots = list(floor.free_queue)
    best = None
    for slot in slots[: -(-len(slots) // 2)]:
        cost = floor.hits[slot], -floor.depths[slot]
        if best is None or cost < (floor.hits[best], -floor.depths[best]):
            best = slot
    return best


def with_sorting(floor):
    slots = [*floor.free_queue]
    slots = slots[: len(slots) - len(slots) // 2]
    slots.sort(key=lambda slot: floor.depths[slot], reverse=True)
    slots.sort(key=lambda slot: floor.hits[slot])
    return slots[0]


# 20.3 receive_blocks


def with_a_flag(floor, block_hashes, receive):
    held, depth, goes_on = [], 0, True
    while goes_on and depth < len(block_hashes):
        block_hash = block_hashes[depth]
        if block_hash in floor.hash_to_block:
            held += floor.match_prefix([block_hash])
            floor.touch(held[-1:])
            depth += 1
        elif len(floor.free_queue) == 0:
            goes_on = False
        else:
            slot = floor.take()
            goes_on = receive(block_hash, floor.row(slot))
            if goes_on:
                floor.fill(slot, block_hash, depth)
                held.append(slot)
                depth += 1
            else:
                floor.release([slot])
    floor.release(held)
    return depth


def with_finally(floor, block_hashes, receive):
    slots = []
    try:
        for depth in range(len(block_hashes)):
            found = floor.hash_to_block.get(block_hashes[depth], -1)
            if found >= 0:
                floor.touch([found])
                slots.append(found)
                continue
            if not len(floor.free_queue):
                return len(slots)
            new = floor.take()
            if receive(block_hashes[depth], floor.row(new)):
                floor.fill(new, block_hashes[depth], depth)
                slots.append(new)
            else:
                floor.release([new])
                return len(slots)
        return len(slots)
    finally:
        floor.release(slots)


WRONG: dict[str, list] = {}
RIGHT = {
    "20.1": [block_by_block, recursive],
    "20.2": [with_a_loop, with_sorting],
    "20.3": [with_a_flag, with_finally],
}
