"""Questions on lesson 03: a block allocator."""

import random

from lessons_lib.assessment.question import Asked, asked, bug, design, item
from lessons_lib.kv_cache.block_pool import BlockPool, BlockTable, blocks_for
from lessons_lib.kv_cache.cache_slots import slot_mapping
from lessons_lib.recording import pool_state
from lessons_lib.viz.pool import draw_pool


@item("03", "picture", "How requests use the blocks")
def next_blocks_in_picture(draw: random.Random) -> Asked:
    pool = BlockPool(12, 4)
    tables = {name: BlockTable(pool) for name in "ABC"}
    for name in draw.sample("ABC", 3):
        tables[name].append(draw.randint(5, 12))
    gone = draw.choice("ABC")
    tables.pop(gone).release()
    grown, leaves = draw.sample(sorted(tables), 2)
    more = draw.randint(5, 8)
    state = pool_state(pool, tables, "some steps into a run")
    queue, freed = list(pool.free_queue), list(tables[leaves].blocks)
    tables[leaves].release()
    held = len(tables[grown].blocks)
    tables[grown].append(more)
    taken = len(tables[grown].blocks) - held
    right = list(pool.free_queue)
    full = -(-more // 4)
    return asked(
        f"Request {leaves} ends now and frees its blocks. Then request {grown} gets {more} more tokens at once. What "
        "is in the free queue afterwards, front first?",
        (right, f"{leaves}'s blocks join the end, the last one first. {grown} fills its last block and takes {taken} "
         "from the front."),
        [
            ((queue + freed)[taken:], "The last block of a request joins first, so that its first blocks are "
             "reused last."),
            ((queue + freed[::-1])[full if full != taken else taken + 1 :], "The empty slots of its last block are "
             "used first, and only what doesn't fit needs new blocks."),
            ((freed[::-1] + queue)[taken:], "Blocks are taken from the front, and freed ones join the end."),
            ((queue + freed[::-1])[:-taken], "Blocks are taken from the front of the queue, not from its end."),
        ],
        lambda: draw_pool(state),
    )  # fmt: skip


@item("03", "compute", "Blocks against the oracle")
def blocks_of_all(draw: random.Random) -> Asked:
    size = draw.choice((8, 16, 32))
    lengths = [draw.randint(size // 2, 6 * size) for _ in range(4)]
    right = sum(blocks_for(length, size) for length in lengths)
    return asked(
        f"Four requests hold {', '.join(map(str, lengths))} tokens, in blocks of {size}. How many blocks are in use?",
        (right, "Each request rounds up on its own: a block belongs to one request."),
        [
            (blocks_for(sum(lengths), size), "Requests don't share a block, so each of them rounds up."),
            (sum(length // size for length in lengths), "The last block of a request counts even if it isn't full."),
            (sum(length // size + 1 for length in lengths), "A request whose last block is exactly full needs no other "
             "until its next token."),
            (4 * blocks_for(max(lengths), size), "That is a reservation of equal size for all."),
            (right + 4, "No request holds an empty block in advance."),
        ],
    )  # fmt: skip


@item("03", "compute", "Build 3: from positions to cache slots")
def slot_of_position(draw: random.Random) -> Asked:
    size, blocks = draw.choice((4, 8, 16)), draw.sample(range(1, 30), 4)
    position = draw.randrange(size, 4 * size)
    right = int(slot_mapping(blocks, size, position, position + 1)[0])
    return asked(
        f"A request's block table is {blocks}, with blocks of {size}. In which cache slot of the pool is the key of "
        f"position {position}?",
        (right, "Block table[position // size], times the block size, plus position % size."),
        [
            (position, "That would be right if the request's blocks began at block 0 and were neighbors."),
            (blocks[0] * size + position, "Its blocks needn't be neighbors: the table says where each one is."),
            (blocks[position // size] + position % size, "A block id counts blocks. Times the block size it's the "
             "block's first slot."),
            (blocks[position // size - 1] * size + position % size, "Blocks of the table are counted from 0."),
        ],
    )  # fmt: skip


@item("03", "compute", "Measure: rows against blocks")
def waste_of_rows(draw: random.Random) -> Asked:
    size, row = draw.choice((8, 16)), draw.choice((128, 256))
    lengths = [draw.randint(20, 110) for _ in range(4)]
    blocks = sum(blocks_for(length, size) for length in lengths) * size
    right = f"{1 - sum(lengths) / (4 * row):.0%} and {1 - sum(lengths) / blocks:.0%}"
    return asked(
        f"Four requests hold {', '.join(map(str, lengths))} tokens. What share of the reserved cache slots is empty, "
        f"with a row of {row} slots each, and with blocks of {size}?",
        (right, "Empty slots divided by reserved slots: with blocks, only the ends of last blocks are empty."),
        [
            (f"{1 - sum(lengths) / (4 * row):.0%} and 0%", "Last blocks aren't full, unless a length is a multiple."),
            (f"{sum(lengths) / (4 * row):.0%} and {sum(lengths) / blocks:.0%}", "These are the shares in use."),
            (f"{1 - max(lengths) / row:.0%} and {1 - sum(lengths) / blocks:.0%}", "All four rows are reserved, and the "
             "shorter requests leave more of theirs empty."),
        ],
    )  # fmt: skip


ITEMS = [
    next_blocks_in_picture,
    blocks_of_all,
    slot_of_position,
    waste_of_rows,
    bug(
        "03", "Build 3: from positions to cache slots", "slots_of_a_chunk",
        task="A request has `num_tokens` tokens in its blocks and computes `count` more. `slots` allocates what they "
        "need and returns their cache slots.",
        code="""
def slots(pool, blocks, num_tokens, count):
    total = num_tokens + count
    missing = blocks_for(total, pool.block_size) - len(blocks)
    blocks += pool.allocate(missing)
    found = []
    for position in range(num_tokens, total):
        block = blocks[position // pool.block_size]
        offset = position % pool.block_size
        found.append(block * pool.block_size + offset)
    return found
""",
        line=8, wrong="offset = (position - num_tokens) % pool.block_size",
        why="A chunk may begin in the middle of a block. Its tokens go behind those that are there, at the place that "
        "their position has in the block, not at the block's beginning.",
        innocent={
            3: "The last block may have room for all of them; then nothing is allocated.",
            6: "The new tokens come after those that are there, so their positions do, too.",
            9: "Slots are counted over the whole pool, block after block.",
        },
        setup="from lessons_lib.kv_cache.block_pool import BlockPool, blocks_for",
        trial="""
pool = BlockPool(6, 4)
pool.allocate(2)
blocks = pool.allocate(1)
assert slots(pool, blocks, 3, 3) == [11, 12, 13] and blocks == [2, 3]
assert slots(pool, blocks, 6, 2) == [14, 15] and blocks == [2, 3]
""",
    ),
    bug(
        "03", "Build 2: the block table", "append_to_a_table",
        task="`append` adds tokens to a block table. It changes nothing if the pool has too few blocks.",
        code="""
def append(table, count):
    size = table.pool.block_size
    total = table.num_tokens + count
    needed = (total + size - 1) // size
    missing = needed - len(table.blocks)
    new_blocks = table.pool.allocate(missing)
    table.blocks.extend(new_blocks)
    table.num_tokens = total
    return new_blocks
""",
        line=4, wrong="needed = total // size + 1",
        why="If the total is a multiple of the block size, this takes a block too many. Round up instead.",
        innocent={
            3: "The tokens that the table holds already are part of the total.",
            5: "It may be 0: then the last block has room, and `allocate(0)` returns an empty list.",
            6: "`allocate` raises before anything in the table has changed.",
        },
        setup="""
from types import SimpleNamespace
from lessons_lib.kv_cache.block_pool import BlockPool
""",
        trial="""
table = SimpleNamespace(pool=BlockPool(4, 4), blocks=[], num_tokens=0)
append(table, 3), append(table, 1)
assert table.blocks == [0] and table.num_tokens == 4
append(table, 1)
assert table.blocks == [0, 1]
""",
    ),
    design(
        "03", "Further (optional)", "choose_block_size",
        "A service answers in 20 tokens on average, to prompts of about 30, with thousands of requests at a time. The "
        "cache has blocks of 256. Memory is full, although few slots hold a token. What helps most?",
        ("Smaller blocks of 16 cache slots each", "A request of 50 tokens leaves 206 of 256 slots empty, and at "
         "most 15 of its "
         "last block of 16."),
        ("A pool that has more blocks of 256", "More memory would help a little; four fifths of it would be empty."),
        ("Admission that counts tokens, not blocks", "Counting frees no slot: the empty end of a block can't go to "
         "another request."),
        ("A queue that puts long requests first", "They fill their blocks better, but nearly all requests are short "
         "and still take a block each."),
    ),
    design(
        "03", "Serve requests from the blocks", "who_gives_way",
        "All blocks are taken, and five running requests need one more each. None of them is near its end. What keeps "
        "the service going with the least work lost?",
        ("Release the request that was admitted last, and queue it first", "It has computed least, the others get "
         "its blocks, and it is the next to be admitted."),
        ("Release the request that was admitted first, since it holds most", "It is likely nearest to its end, and all "
         "that was computed for it would be lost."),
        ("Wait until one of the requests has finished and frees its blocks", "None can compute its next token, so "
         "none will ever finish."),
        ("Release the oldest block of each request, since it matters least", "Every later token attends to these "
         "keys, too. Without them the answers change."),
    ),
]  # fmt: skip
