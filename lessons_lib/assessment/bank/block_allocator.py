"""Questions on lesson 03: a block allocator."""

import random
from collections import deque

from lessons_lib.assessment.question import Asked, asked, bug, design, item
from lessons_lib.kv_cache.block_pool import BlockPool, BlockTable, blocks_for
from lessons_lib.kv_cache.cache_slots import slot_mapping
from lessons_lib.recording import pool_state
from lessons_lib.viz.pool import draw_pool


@item("03", "picture", "How requests use the blocks")
def next_blocks_in_picture(draw: random.Random) -> Asked:
    pool = BlockPool(12, 4)
    tables = {name: BlockTable(pool) for name in "ABC"}
    for name in draw.sample("ABC", 3):  # none was freed before, so the queue doesn't show the order of freeing
        tables[name].append(draw.randint(5, 12))
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
            ((queue + freed)[taken:], "The last block of a request joins first, so that its first blocks, "
             "which other requests may share, are reused last."),
            ((queue + freed[::-1])[full if full != taken else taken + 1 :], "The empty slots of its last block are "
             "used first, and only what doesn't fit needs new blocks."),
            ((freed[::-1] + queue)[taken:], "Blocks are taken from the front, and freed ones join the end."),
            ((queue + freed[::-1])[:-taken], "Blocks are taken from the front of the queue, not from its end."),
        ],
        lambda: draw_pool(state),
    )  # fmt: skip


@item("03", "compute", "Serve requests from the blocks")
def blocks_of_all(draw: random.Random) -> Asked:
    size, count = draw.choice((8, 16, 32)), 3
    prompts = [draw.randint(size // 2, 4 * size) for _ in range(count)]
    answers = [draw.randint(2, size) for _ in range(count)]
    which = draw.randrange(count)
    answers[which] += (1 - prompts[which] - answers[which]) % size  # all but its newest token fill whole blocks
    both = [prompt + answer for prompt, answer in zip(prompts, answers)]
    right = sum(blocks_for(length - 1, size) for length in both)
    told = [f"{prompt} and {answer}" for prompt, answer in zip(prompts, answers)]
    return asked(
        f"Three requests decode. At the end of a step, their prompts and answers have {', '.join(told)} tokens, the "
        f"one that this step has chosen included. Blocks have {size} slots. How many blocks hold keys and values now?",
        (right, "The newest token of each was chosen in this step and isn't fed yet, so it has no keys. Each request "
         "rounds up on its own."),
        [
            (sum(blocks_for(length, size) for length in both), "The newest token has no keys yet. Where the tokens "
             "before it fill the last block, it needs no other one so far."),
            (blocks_for(sum(both) - count, size), "Requests don't share a block, so each of them rounds up."),
            (sum((length - 1) // size for length in both), "The last block of a request counts even if it isn't full."),
            (sum(blocks_for(prompt, size) + blocks_for(answer - 1, size) for prompt, answer in zip(prompts, answers)),
             "The answer goes on in the prompt's last block."),
            (sum(blocks_for(length, size) for length in both) + 3, "No request holds an empty block in advance."),
        ],
    )  # fmt: skip


@item("03", "compute", "Build 3: from positions to cache slots")
def slot_after_reuse(draw: random.Random) -> Asked:
    size, ids = draw.choice((4, 8, 16)), draw.sample(range(1, 30), 6)
    pool = BlockPool(30, size)
    held, queue = ids[:4], ids[4:]
    pool.used, pool.free_queue = set(held), deque(queue)
    pool.free(held)
    blocks, tokens = pool.allocate(4), draw.randint(3 * size + 1, 4 * size)
    position = draw.randrange(2 * size, tokens)

    def slot(table: list[int]) -> int:
        return int(slot_mapping(table, size, position, position + 1)[0])

    return asked(
        f"Blocks have {size} slots, and the free queue is {queue}, front first. Request X has the block table {held} "
        f"and ends. Then Y is admitted, with a prompt of {tokens} tokens. In which cache slot of the pool is the key "
        f"of Y's position {position}?",
        (slot(blocks), f"Y gets {blocks}: first what was in the queue, then X's blocks, of which the last one was "
         "freed first. Table[position // size] × size + position % size."),
        [
            (slot([*queue, *held]), "X's blocks join the queue with the last one first, so that its beginning is "
             "reused last."),
            (slot([*held[::-1], *queue]), "Freed blocks go to the end of the queue, behind those that are free."),
            (slot([*held, *queue]), "Freed blocks go to the end of the queue, and the last one first."),
            (position, "Its blocks aren't the first ones of the pool. The table says where each one is."),
        ],
    )  # fmt: skip


@item("03", "compute", "Measure: rows against blocks")
def how_many_fit(draw: random.Random) -> Asked:
    size, memory = 16, 1024 * draw.choice((8, 16, 32))
    prompt, limit, written = draw.randint(50, 120), draw.choice((400, 500, 900)), draw.randint(30, 90)
    rows, each = memory // (prompt + limit), blocks_for(prompt + written, size)
    blocks = memory // size // each
    return asked(
        f"A cache has slots for {memory:,} tokens. Every request has a prompt of {prompt} tokens and a limit of "
        f"{limit} new ones, and holds {prompt + written} tokens now. None has ended. How many of them fit, in "
        f"rows, and in blocks of {size}?",
        (f"{rows} and {blocks}", "A row needs room for the whole answer, and its end isn't known. With "
         f"blocks, each request holds {each}, for the tokens that it has."),
        [
            (f"{memory // (prompt + written)} and {blocks}", "A row can't grow, so it reserves the limit."),
            (f"{rows} and {memory // (prompt + written)}", "A last block isn't full, and its rest is lost."),
            (f"{rows} and {memory // size // blocks_for(prompt + limit, size)}", "Blocks are allocated when tokens "
             "need them, not for the limit."),
        ],
    )  # fmt: skip


ITEMS = [
    next_blocks_in_picture,
    blocks_of_all,
    slot_after_reuse,
    how_many_fit,
    bug(
        "03", "Build 3: from positions to cache slots", "slot_of_a_decode",
        task="`decode_slot` returns the cache slot to which the next decode step writes, for a request that has its "
        "prompt and at least one token of its answer.",
        code="""
def decode_slot(pool, request):
    size = pool.block_size
    tokens = request["prompt"] + request["output"]
    position = len(tokens) - 1
    index = position // size
    if index == len(request["blocks"]):
        request["blocks"] += pool.allocate(1)
    block = request["blocks"][index]
    return block * size + position % size
""",
        line=4, wrong="position = len(tokens)",
        why="The step computes the newest token of the answer, which was chosen and has no keys yet. It is one of "
        "`tokens`, so its position is `len(tokens) - 1`. The next position stays without keys until the next step.",
        innocent={
            3: "The answer's tokens go on where the prompt ends, in the same blocks.",
            6: "A decode adds one token, so at most one block is missing, right behind the last one.",
            9: "Slots are counted over the whole pool, block after block.",
        },
        setup="from lessons_lib.kv_cache.block_pool import BlockPool",
        trial="""
pool = BlockPool(6, 4)
pool.allocate(2)
request = {"prompt": [1, 2, 3], "output": [7], "blocks": pool.allocate(1)}
assert decode_slot(pool, request) == 11 and request["blocks"] == [2]
request["output"].append(8)
assert decode_slot(pool, request) == 12 and request["blocks"] == [2, 3]
""",
    ),
    bug(
        "03", "Build 2: the block table", "append_to_a_table",
        task="`append` makes room for `count` more tokens. If the pool has too few blocks, it raises and nothing has "
        "changed.",
        code="""
def append(table, count):
    pool, held = table.pool, len(table.blocks)
    total = table.num_tokens + count
    needed = blocks_for(total, pool.block_size)
    new_blocks = []
    new_blocks += pool.allocate(needed - held)
    table.blocks.extend(new_blocks)
    table.num_tokens = total
    return new_blocks
""",
        line=6, wrong="new_blocks += [pool.allocate(1)[0] for _ in range(needed - held)]",
        why="If the second block is missing, the first one is allocated already. The table doesn't list it, so nothing "
        "will ever free it. `allocate(needed - held)` gives all of them or none.",
        innocent={
            4: "Tokens that the table holds already count, too: the rest of the last block is used first.",
            7: "Nothing in the table has changed before all blocks are there.",
            8: "This comes after the call that may raise.",
        },
        setup="""
from types import SimpleNamespace
from lessons_lib.kv_cache.block_pool import BlockPool, OutOfBlocks, blocks_for
""",
        trial="""
table = SimpleNamespace(pool=BlockPool(3, 4), blocks=[], num_tokens=0)
append(table, 3), append(table, 1)
assert table.blocks == [0] and table.num_tokens == 4
try:
    append(table, 12)
except OutOfBlocks:
    pass
assert table.blocks == [0] and list(table.pool.free_queue) == [1, 2]
""",
    ),
    design(
        "03", "Serve requests from the blocks", "who_gives_way",
        "Blocks are short in nearly every step. By lesson 03's rule, the request that was admitted last releases its "
        "table and starts over. Someone finds it fairer to take turns: each time another request. What is lost?",
        ("The certainty that some request goes on to its end", "By the rule, the one admitted first is never released "
         "while others run, so it finishes and frees its blocks. With turns, all may start over again and again."),
        ("The keys that the released requests share with others", "In lesson 03 no block is shared. And with either "
         "rule, all keys of the released request are lost."),
        ("The order in which the tokens of a request are stored", "A request that starts over gets a new table, and "
         "its tokens are stored in order again."),
        ("The room: more requests have to be released per step", "One released request gives room either way. The "
         "oldest even holds most blocks."),
    ),
]  # fmt: skip
