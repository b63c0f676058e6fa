"""Questions on lesson 11: prefix sharing."""

import random

from lessons_lib.assessment.question import Asked, Redraw, asked, bug, design, item
from lessons_lib.kv_cache import PrefixCache
from lessons_lib.kv_cache.prefix_cache import SharedBlockPool, block_hash
from lessons_lib.recording import queue_state
from lessons_lib.scheduling import Sequence
from lessons_lib.scheduling.shared_blocks import take_cached
from lessons_lib.serving.router import hash_prompt
from lessons_lib.viz.pressure import draw_free_queue


@item("11", "picture", "Build 2: count the users")
def queue_after_free_in_picture(draw: random.Random) -> Asked:
    pool = SharedBlockPool(7, 16)
    count, shared = draw.randint(3, 4), draw.randint(1, 2)
    x = pool.allocate(count)
    states = [queue_state(pool, f"X: allocate({count})")]
    pool.touch(x[:shared])
    states.append(queue_state(pool, f"Y begins like X: touch({x[:shared]})"))
    before = list(pool.free_queue)
    pool.free(x)
    right = list(pool.free_queue)
    own = right[len(before) :]
    return asked(
        "X ends now: all of its blocks are freed. Which blocks are in the free queue afterwards, in order?",
        (right, "Y still uses the shared blocks. X's others join the end, the last one first."),
        [
            (before + own[::-1], "Blocks of one sequence join with the last one first: it's the first to be useless "
             "without the others."),
            (before + x[::-1], "Blocks that Y uses stay out: their count only falls to 1."),
            (own + before, "Freed blocks join the end of the queue."),
            (before, "What only X used is free now."),
        ],
        lambda: draw_free_queue(states),
    )  # fmt: skip


@item("11", "compute", "Build 1: block hashes")
def shared_full_blocks(draw: random.Random) -> Asked:
    size, same = draw.choice((8, 16)), draw.randint(30, 90)
    one = list(range(same)) + [1000 + index for index in range(40)]
    other = list(range(same)) + [2000 + index for index in range(40)]
    pairs = zip(hash_prompt(one, size), hash_prompt(other, size))
    right = sum(a == b for a, b in pairs)
    if same % size == 0:
        raise Redraw
    return asked(
        f"Two prompts of {same + 40} tokens agree in their first {same} tokens. Blocks have {size} slots, and the "
        f"first "
        "prompt is in the cache. How many blocks does the second one share, and how many of its tokens are then "
        "computed?",
        (f"{right} and {same + 40 - right * size}", "Only full blocks whose every token agrees, from the start on."),
        [
            (f"{right + 1} and 40", "The block in which they begin to differ can't be shared."),
            (f"{right} and 40", "Tokens that agree but aren't in a shared block are computed again."),
            (f"{(same + 40) // size} and {(same + 40) % size}", "Blocks after the first difference have other hashes."),
        ],
    )


@item("11", "compute", "Start from what is cached")
def computed_of_a_hit(draw: random.Random) -> Asked:
    size, blocks = draw.choice((8, 16)), draw.randint(2, 5)
    pool = PrefixCache(12, size)
    tokens = list(range(blocks * size))
    held, parent = pool.allocate(blocks), b""
    for index, block in enumerate(held):
        parent = block_hash(parent, tokens[index * size : (index + 1) * size])
        pool.cache_full_block(block, parent)
    pool.free(held)
    extra = draw.choice((0, 0, draw.randint(1, size - 1)))
    sequence = Sequence("A", tokens + [500] * extra, 8)
    take_cached(pool, sequence, held)
    right = sequence.num_tokens - sequence.num_computed_tokens
    return asked(
        f"The first {blocks * size} tokens of a prompt of {blocks * size + extra} tokens are in the cache, in full "
        f"blocks "
        f"of {size}. Other blocks are free. How many of its tokens does the first step of lesson 11's scheduler "
        f"compute?",
        (right, "What isn't cached, but at least one token: without a forward pass there are no logits."),
        [
            (extra, "At least one token has to be computed, to get the logits of the next one."),
            (blocks * size + extra, "The keys and values of the cached tokens are used as they are."),
            (size + extra, "If all is cached, one token is enough; the block is copied before it's written to."),
            (1 + extra, "One token more than needed: the uncached tokens give logits by themselves."),
            (size, "Only the tokens outside of the cached blocks are missing."),
        ],
    )


@item("11", "compute", "Build 3: find blocks by their contents")
def evicted_first(draw: random.Random) -> Asked:
    pool = PrefixCache(6, 4)
    first, second = draw.randint(2, 3), draw.randint(2, 3)
    hashes = [bytes([index]) for index in range(6)]
    x, y = pool.allocate(first), pool.allocate(second)
    for block in [*x, *y]:
        pool.cache_full_block(block, hashes[block])
    order = draw.choice(((x, y), (y, x)))
    for blocks in order:
        pool.free(blocks)
    taken = pool.allocate(6 - first - second + 1)
    right = taken[-1]
    ended = ("X", "Y") if order[0] is x else ("Y", "X")
    return asked(
        f"A pool of 6 blocks. X has {x} and Y has {y}, all full and cached. {ended[0]} ends, then {ended[1]}. Then Z "
        f"allocates {len(taken)} block{'s' if len(taken) > 1 else ''}. Which cached block is evicted?",
        (right, f"After the blocks that were never used, the last block of {ended[0]} is next: it joined the queue "
         "first."),
        [
            (order[0][0], "That is the first block of the one that ended first. Its last block is evicted before it."),
            (order[1][-1], "Its sequence ended later, so it joined the queue later."),
            (order[1][0], "It's the first block of the sequence that ended last: evicted last of all."),
        ],
    )  # fmt: skip


ITEMS = [
    queue_after_free_in_picture,
    shared_full_blocks,
    computed_of_a_hit,
    evicted_first,
    bug(
        "11", "Build 1: block hashes", "hashes_of_a_prompt",
        task="`hashes` returns the hashes under which the blocks of a prompt are kept for later prompts.",
        code="""
def hashes(tokens, size):
    found, parent = [], b""
    count = len(tokens) // size
    for index in range(count):
        start = index * size
        own = tokens[start : start + size]
        data = parent + repr(own).encode()
        parent = hashlib.sha256(data).digest()
        found.append(parent)
    return found
""",
        line=3, wrong="count = (len(tokens) + size - 1) // size",
        why="That counts a last block that isn't full. The answer is written to it later, and its hash is out of "
        "date. Only full blocks get a hash: `len(tokens) // size`.",
        innocent={
            6: "The tokens of this block alone; those before it are in the parent's hash.",
            7: "Keys and values depend on all tokens before them, so the parent's hash goes in.",
            9: "The block's hash is also the parent of the next one.",
        },
        setup="import hashlib",
        trial="""
one, other = hashes([1, 2, 3, 4, 5], 2), hashes([9, 2, 3, 4], 2)
assert len(one) == 2 and one[1] != other[1] and one == hashes([1, 2, 3, 4], 2)
""",
    ),
    bug(
        "11", "Start from what is cached", "copy_on_write",
        task="`own_copy` is called before a sequence writes to its block at `index`, as in lesson 11. It returns which "
        "block has to be copied to which, or None. If it raises, it has changed nothing.",
        code="""
def own_copy(pool, sequence, index):
    source = sequence.blocks[index]
    if pool.is_writable(source):
        return None
    allocated = pool.allocate(1)
    target = allocated[0]
    sequence.blocks[index] = target
    pool.free([source])
    return source, target
""",
        line=3, wrong="if pool.ref_count[source] == 1:",
        why="A block with one user may still have a hash, by which later prompts find it. Writing to it would change "
        "what they find. It has to be copied, too.",
        innocent={
            5: "`allocate` raises before anything has changed.",
            7: "Only this sequence's table changes. The others keep the source.",
            8: "The sequence gives up its share of the source. The pool counts the users that are left.",
        },
        setup="from types import SimpleNamespace\nfrom lessons_lib.kv_cache import PrefixCache",
        trial="""
pool = PrefixCache(6, 4)
x = SimpleNamespace(blocks=pool.allocate(2))
y = SimpleNamespace(blocks=list(x.blocks))
pool.touch(y.blocks)
assert own_copy(pool, y, 1) == (1, 2) and y.blocks == [0, 2] and x.blocks == [0, 1]
assert pool.ref_count == {0: 2, 1: 1, 2: 1} and own_copy(pool, y, 1) is None
pool.cache_full_block(1, b"known")
assert own_copy(pool, x, 1) == (1, 3)
""",
    ),
    design(
        "11", "The idea", "order_of_a_prompt",
        "A support bot's prompt has the customer's name and the time first, then 3,000 tokens of instructions, then "
        "the "
        "question. The hit rate of the prefix cache is near 0. What do you change?",
        ("The order: instructions first, name, time and question after", "A block can be shared only if everything "
         "before it agrees, and the instructions always do."),
        ("The block size: smaller ones, so that more of them are full", "The first block already differs, and with it "
         "the hash of every later one."),
        ("The memory: more blocks, so that fewer of them are evicted", "Nothing is found although it's there: all "
         "hashes differ."),
        ("The hash: leave out the parent, to find the instructions anywhere", "Their keys and values depend on what "
         "stands before them. The answers would be wrong."),
    ),
    design(
        "11", "Build 3: find blocks by their contents", "two_customers",
        "Two companies share a server. A security review says: no company may learn from response times what the other "
        "has asked. What is the smallest change that keeps most of the gain of sharing?",
        ("A salt for each company in the first block's hash", "Blocks are then found only by requests of the same "
         "company, and each one still shares its own prefixes."),
        ("A hash of each block that no company can compute", "None has to: a company sends a prompt, and the time "
         "of its first token shows whether its blocks were there."),
        ("A separate pool for each company, half of the memory each", "Safe as well, but memory that one company "
         "leaves idle is no use to the other."),
        ("A random delay of a few milliseconds for each response", "Over many requests, averages still show what was "
         "cached."),
    ),
]  # fmt: skip
