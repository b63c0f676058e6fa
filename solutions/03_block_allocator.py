# %% [markdown]
"""
# 03 · A block allocator

**How can requests share one memory when nobody knows how long each will become?**

75 minutes · difficulty: medium · routes: ideas, serving · you need first: lesson 00 (KV cache) and lesson 02 (slots)

In lesson 02 every slot reserved a row of cache for the longest request that might come. In this lesson you build what serving systems have instead: a pool of small
blocks, and for each request a table that says which of them it holds. No model computes in blocks yet. Here the books are kept; lesson 06 fills the blocks with keys.
"""

# %%
import inspect
import random
from functools import partial
from statistics import mean, median
from time import perf_counter

import torch
from transformers import LlamaConfig

from lessons_lib.batching import batch_generate
from lessons_lib.checks import check, hint, predict, progress, quiz, reveal, solution
from lessons_lib.kv_cache import block_bytes, block_pool as reference, slot_of
from lessons_lib.measuring import MAX_NEW_TOKENS, NAMES, PROMPTS, ledger, skewed_workload
from lessons_lib.models import cache_bytes_per_token, load_model
from lessons_lib.recording.fragmentation import contiguous_use, final_tokens, paged_use, tokens_held, waste
from lessons_lib.recording.pool_states import replay
from lessons_lib.viz import Stepper
from lessons_lib.viz.cache import draw_memory
from lessons_lib.viz.charts import line_chart
from lessons_lib.viz.pool import PoolPlayground, draw_pool
from lessons_lib.viz.tables import Table

model, tokenizer = load_model(device="cpu")  # in float32: equal means equal to the last token
prompt_tokens = {name: len(tokenizer(prompt).input_ids) for name, prompt in zip(NAMES, PROMPTS)}

# %% [markdown]
"""
## The problem: places kept for tokens that never come

The six stories once more, as lesson 02 served them: four slots, 256 places each. A **place** has room for the key and value of one token, in all layers. `tokens_held`
reads off `six.trace`, the recording of the run, how many tokens each request has in the cache after each step.
"""

# %%
six = batch_generate(model, tokenizer, PROMPTS, max_new_tokens=MAX_NEW_TOKENS, names=NAMES, batch_size=4, max_seq_len=256)
held = tokens_held(six.trace)
final = final_tokens(held)
answer_tokens = dict(zip(NAMES, map(len, six.outputs)))
Table(
    columns=["request", "prompt tokens", "answer tokens", "in the cache at the end", "places reserved"],
    rows=[[name, prompt_tokens[name], answer_tokens[name], final[name], 256] for name in NAMES],
    caption="The last token of an answer is never fed back, so the cache holds one token less than prompt and answer together.",
)

# %%
longest_possible = contiguous_use(held, {name: 256 for name in NAMES})
draw_memory(longest_possible, 24, title="256 places for everybody", places=1024)

# %% [markdown]
"""
The memory of the cache as one long row of places, cut into lines. Full colour: a token is there. Pale: reserved, and the request will come to use it. Hatched:
reserved, and nobody will ever use it.

> **reservation**: memory set aside for a request when it begins, for tokens that it does not have yet. Until they come nobody else can use it.

> **internal fragmentation**: memory inside a reservation that is never used, because the request ends first.

## Predict

The hatched part comes from not knowing how long an answer gets. So suppose we knew. An oracle says, at the start, how many tokens each request will hold at its end, and we
reserve exactly that, in one piece, for as long as the request runs. Nothing is hatched any more.

We look at the steps in which somebody waits in the queue. In those, an empty place hurts: somebody could use it. As memory in use we count all places from the
first to the last reserved one.
"""

# %%
predict("03.a", ...)  # With the oracle: what share of that memory holds no token, on average over those steps? In per cent.

# %% [markdown]
"""
For the second prediction, take 64 MiB of memory for the cache of the bundled model. Cut into rows of 256 places, it serves as many requests at once as there are rows. Cut into blocks of 16
places, it serves more: a request holds only as many blocks as its tokens need at the moment.
"""

# %%
row_bytes = 256 * cache_bytes_per_token(model.config)
print(f"one place {row_bytes // 256:,} bytes, one row of 256 places {row_bytes / 2**20:g} MiB: 64 MiB are {64 * 2**20 // row_bytes} rows")
print(f"a story holds {mean(tokens for now in held for tokens in now.values()):.0f} tokens at an average moment of the run")
predict("03.b", ...)  # In blocks of 16: how many requests like the stories does it serve at once, on average?

# %% [markdown]
"""
## Three ways to reserve

The paper behind this lesson (Kwon et al., 2023) compares three ways to reserve memory in one piece:

- **longest possible**: as many places as any request may need. This is what lesson 02 did.
- **power of two**: the prompt, and the answer's length rounded up to 2, 4, 8, 16, ... It stands for a fair guess: less than twice what the answer needs.
- **oracle**: exactly what the request will need. No real system can do that. It is the best that one piece can be.

`contiguous_use` plays each of them on the recording: a request gets its piece when it begins, in the first gap that is large enough, or else at the end, and loses it when it ends.
"""

# %%
def power_of_two(number):
    return 1 << (number - 1).bit_length()


def three_ways(held, prompts, answers):
    final = final_tokens(held)
    return {
        "longest possible": contiguous_use(held, {name: 256 for name in final}),
        "power of two": contiguous_use(held, {name: prompts[name] + power_of_two(answers[name]) for name in final}),
        "oracle": contiguous_use(held, final),
    }


def while_somebody_waits(uses, trace):
    return [use for use, step in zip(uses, trace.steps) if step.waiting]


ways = three_ways(held, prompt_tokens, answer_tokens)
reveal("03.a", 100 * waste(while_somebody_waits(ways["oracle"], six.trace)), unit="%")

# %%
draw_memory(ways["oracle"], 24, title="Oracle: exactly what each will need", places=512)

# %% [markdown]
"""
All of the empty places are pale here. They will be used, but later. C has its 102 places from its first step on, and fills the last of them in its last step. Knowing the length does not help
against that: while an answer grows, on average about half of the places reserved for it are still empty.

Some steps later A ends, and F comes. F needs one piece of 79 places.
"""

# %%
f_comes = next(i for i, now in enumerate(held) if "F" in now)
places_before, use = ways["oracle"][f_comes - 1].places, ways["oracle"][f_comes]
print(f"F needs {final['F']} places; in the gap that A has left there are {use.gaps}")
print(f"the memory in use grows from {places_before} to {use.places} places")
draw_memory(ways["oracle"], f_comes, title="F has come", places=512)

# %% [markdown]
"""
A's gap is too small for F. So it stays empty, F goes to the end, and more memory is in use.

> **external fragmentation**: free memory in gaps between reservations, none of them large enough for what is asked for.

One could push the others together. That means copying keys and values of running requests while everybody waits.

F was the last in the queue. From here on nobody waits, so by our rule this gap hurts nobody. With more requests it does. Here are 32 on eight slots, most with a short answer, a few with
a long one. First count how many of them met such gaps: requests that went to the end although the gaps that were left, taken together, had room for them.
"""

# %%
load = skewed_workload(32)
names = [str(number) for number in range(32)]
many = batch_generate(model, tokenizer, load.prompts, max_new_tokens=load.max_new_tokens, names=names, batch_size=8, max_seq_len=256)
many_held = tokens_held(many.trace)
many_prompts = {name: len(tokenizer(prompt).input_ids) for name, prompt in zip(names, load.prompts)}
many_ways = three_ways(many_held, many_prompts, answers=dict(zip(names, map(len, many.outputs))))

seen, to_the_end = set(), []
for use in many_ways["oracle"]:
    last = use.regions[-1]
    if last.request not in seen and use.gaps >= last.size:
        to_the_end.append(last.request)
    seen.update(region.request for region in use.regions)
print(f"{len(to_the_end)} of 32 requests went to the end although the gaps together had room: {', '.join(to_the_end)}")

# %%
def shares(uses):
    """Shares of the memory, averaged over the steps: tokens, later, never, gaps."""
    places = sum(use.places for use in uses)
    return [f"{sum(getattr(use, kind) for use in uses) / places:.0%}" for kind in ("tokens", "later", "never", "gaps")]


runs = {"six stories": (six.trace, ways), "32 requests": (many.trace, many_ways)}
Table(
    columns=["requests, way to reserve", "tokens", "reserved, used later", "reserved, never used", "in gaps", "wasted"],
    rows=[
        [f"{name}, {way}", *shares(w := while_somebody_waits(uses, trace)), f"{waste(w):.0%}"]
        for name, (trace, its_ways) in runs.items()
        for way, uses in its_ways.items()
    ],
    caption="One piece a request: what the memory does while somebody waits",
)

# %% [markdown]
"""
The last column counts all that holds no token, as the paper does: in its experiments 20.4 to 38.2 % of the memory held tokens, so that 60 to 80 % were wasted. Read our rows beside that. (The paper's
requests are longer, and its allocator hands out powers of two, so compare the size of the problem, not the digits.) The oracle gets rid of the column "never used", and of that one only. The
gap that F met is not in the table, since nobody waited any more.

## The idea: small blocks, and a table

Operating systems met this problem long ago, and solved it in two moves. First, cut the memory into pieces of one size. Second, let a request hold *any* of them, and write down
which.

> **block**: a fixed number of neighbouring places in the KV cache, here 16. It is the smallest amount of memory that is handed out.

A place in a block is called a **cell** here. The **position** of a token is counted in its own request, from 0.

> **block table**: a request's list of the blocks that it holds, in the order of its tokens.

> **paging**: keeping what belongs together in blocks that may lie anywhere, with a table that says where. It is how operating systems give memory to programs; they call
> a block a page.

Look at what happens to the three kinds of waste, the columns "used later", "never used" and "in gaps":

- No block is reserved for later. A request takes one when a token needs it.
- No gap is too small. All blocks are alike, so any free block will do for anybody. External fragmentation is gone.
- What is left is the unfilled part of each request's last block: less than one block a request, however long it grows.

B's prompt has 62 tokens. At 16 tokens a block it holds four blocks: 16 + 16 + 16 + 14. Two cells of the last one are empty. Here are 24 blocks, some steps into the run:
"""

# %%
early = replay(six.trace, reference.BlockPool(24, 16))
draw_pool(early[24])

# %% [markdown]
"""
On the left the pool, like a parking lot: each box is a block with its cells. In colour what holds a token; hatched what a request holds and has not filled. On the right the block
tables. Read the first: A's tokens 0 to 15 lie in one block, 16 to 31 in the next, and these two need not be neighbours. Below, the free blocks in the order in which they will be handed out.
With a running kernel the cursor over a cell shows its block, its owner and the position in the request.

You build five parts: the pool, the number of blocks that a request needs, the table, the mapping from a position to a place, and the number of blocks that the memory has room for.

## Build 1: the pool

> **block pool**: all blocks of the cache, and the books about them: which are free, and which are handed out.

> **free queue**: the free blocks, in the order in which they will be handed out.

The pool works with block *numbers* only. Where block 7 lies in memory follows from the 7. Its books are two containers:

- `free_queue`, a `deque`: the free blocks. `popleft()` takes the first; `append(...)` and `extend(...)` add at the end. Each takes the same time, however long the queue is.
- `used`, a set: the blocks that are handed out. `block in self.used` takes the same time, however many there are.

Every block is in exactly one of the two. `allocate` and `free` are called all the time, so their time must depend on how many blocks are moved and not on how large the pool is: don't
go through either container, don't copy it, don't sort it.

**Your task: `allocate(count)` and `free(blocks)`.** An example, with `pool = BlockPool(6, 16)`:

| call | what happens | free queue after it |
|---|---|---|
| `pool.allocate(4)` | returns the list `[0, 1, 2, 3]` | 4, 5 |
| `pool.allocate(3)` | raises `OutOfBlocks`: 3 needed, 2 free | 4, 5 |
| `pool.allocate(0)` | returns `[]` | 4, 5 |
| `pool.allocate(-1)` | raises `ValueError` | 4, 5 |
| `pool.free([0, 1, 2])` | takes them back, *last block first* | 4, 5, 2, 1, 0 |
| `pool.free([3, 5])` | raises `ValueError`: 5 is free already | 4, 5, 2, 1, 0 |
| `pool.free([3, 9])` | raises `ValueError`: there is no block 9 | 4, 5, 2, 1, 0 |
| `pool.free([3, 3])` | raises `ValueError`: 3 is named twice | 4, 5, 2, 1, 0 |

`allocate` is all or nothing: a request that needs three blocks can do nothing with two. As in lesson 02, a refused call changes nothing, so check everything first. `free` gets a list or a tuple, in the
order of the request's tokens, and leaves it as it is. Why it puts the last block first into the queue, the next section shows.
"""

# %% exercise="03.1" given="__init__ utilisation"
from collections import deque

from lessons_lib.kv_cache.block_pool import OutOfBlocks

from lessons_lib.kv_cache.block_pool import BlockPool

# %%
pool = BlockPool(6, 16)
print("handed out:", pool.allocate(4), "| free queue:", list(pool.free_queue), f"| in use: {pool.utilisation:.0%}")
for call in (lambda: pool.allocate(3), lambda: pool.free([3, 5]), lambda: pool.free([-1]), lambda: BlockPool(6, 0)):
    try:
        call()
    except (OutOfBlocks, ValueError) as error:
        print(f"{type(error).__name__}: {error}")
pool.free([0, 1, 2])
print("free queue:", list(pool.free_queue))

# %% [markdown]
"""
A good refusal says what was asked for, what there is, and what can be done about it. Somebody will read it at night.

### Why the tail goes first

Freed blocks are not erased. Until a block is handed out again, the keys of its former owner are still in it. That can be put to use: if a later request begins with the same text, it needs the same keys for
those tokens. Lesson 10 does this. But a token's key depends on all tokens *before* it. So a later request can use A's first block if it shares A's first 16 tokens, and A's second only if it shares
the first 32. A block is of no use without those before it.

So the beginning should stay whole for longest. Here A has all three blocks of a pool, full, and leaves. Then two blocks are asked for. How many of A's blocks could still be used?
"""

# %%
def blocks_left(put_back):
    """A held blocks 0, 1, 2 of a pool of three. They are put back in this order; then two blocks are handed out."""
    pool = BlockPool(3, 16)
    pool.allocate(3)
    for block in put_back:
        pool.free([block])
    pool.allocate(2)
    return list(pool.free_queue)


for what, order in (("tail first", [2, 1, 0]), ("beginning first", [0, 1, 2])):
    left = blocks_left(order)
    usable = sum(set(range(block + 1)) <= set(left) for block in left)  # with all the blocks before it
    print(f"{what}: of A's blocks {left} is left; blocks of use to a request with the same beginning: {usable}")

# %% [markdown]
"""
With the tail first, block 0 is left, which holds A's first 16 tokens. The other way round it is block 2, with the keys of tokens 32 to 47, and nobody can use them.

## Build 2: how many blocks?

A function of one line, and an exercise of its own, because the boundary is where allocators go wrong.

At 16 tokens a block, 128 tokens fill exactly 8 blocks: positions 0 to 127. The token after them has position 128. That is the first cell of a ninth block. So 128 tokens need 8 blocks, and 129 need 9.

**Your task: `blocks_for(num_tokens, block_size)`**: how many blocks hold so many tokens, as an `int`. As many as are needed, and not one more. 0 tokens need 0 blocks. B's prompt of 62 tokens needs 4 blocks, C's prompt of
3 needs 1.
"""

# %% exercise="03.2"
from lessons_lib.kv_cache.block_pool import blocks_for

# %%
for name, tokens in prompt_tokens.items():
    count = blocks_for(tokens, 16)
    print(f"{name}: {tokens:2} prompt tokens, blocks: {count}, empty cells: {count * 16 - tokens}")
print({tokens: blocks_for(tokens, 16) for tokens in (0, 1, 15, 16, 17, 127, 128, 129)})

# %% [markdown]
"""
## Build 3: the block table

A table belongs to one request. It holds `blocks`, the list of its block numbers in the order of its tokens, and `num_tokens`, how many tokens are stored. `pool` is where blocks come from, and
`pool.block_size` is their size. Some requests have a limit: `max_blocks` is the most blocks that the table may hold. `None` means no limit; 0 is a limit like any other.

**Your task: `append(count=1)` and `release()`.** An example with blocks of 16 and an empty table:

| call | tokens | blocks of the table |
|---|---|---|
| `append(62)` | 62 | 4 |
| `append(2)` | 64 | 4: there was room for both |
| `append()` | 65 | 5: position 64 begins a block |
| `append(0)` | 65 | 5 |
| `release()` | 0 | none; all five are back in the pool |

The last block is filled first; new blocks are taken only for what is left over. `append` refuses a negative `count` with `ValueError`. If the table would need more than `max_blocks` blocks it raises `TableFull`.
If the pool has too few blocks left, `pool.allocate` raises `OutOfBlocks`, and you let it through. (Asked for 0 blocks, it gives an empty list.) In all three cases nothing has changed: not the table, not the pool. Either all `count` tokens have
room, or none of them is counted.

`release` gives all blocks to `pool.free` in one call, in the order of the tokens. Afterwards the table is empty and may be filled again; releasing an empty table does nothing. You have `blocks_for`.
"""

# %% exercise="03.3" given="__init__"
from lessons_lib.kv_cache.block_pool import TableFull

from lessons_lib.kv_cache.block_pool import BlockTable

# %%
pool = BlockPool(10, 16)
table = BlockTable(pool, max_blocks=9)
for count in (128, 1, 15, 1):
    try:
        table.append(count)
        print(f"append({count}): {table.num_tokens} tokens in {len(table.blocks)} blocks")
    except TableFull as error:
        print(f"append({count}) refused:", error)
table.release()
print("released; free queue:", list(pool.free_queue))

# %% [markdown]
"""
Now by hand. Choose a request and a number of tokens, append, let somebody else come, free the first, and watch where the next one's blocks lie. Ask for more than there is. Twelve blocks of 4 cells;
the pool and the tables are yours.
"""

# %%
PoolPlayground(BlockPool(12, 4), new_table=BlockTable)

# %% [markdown]
"""
And the recorded run. `replay` does with your pool and your tables what the six stories would have done: one picture for each request that comes, takes a block, or leaves.
A step in which all new tokens find room gives one picture too. So there are more pictures than steps. The view opens where A leaves; the next picture is the one in which F comes. Where no kernel runs you see
that one.
"""

# %%
states = replay(six.trace, BlockPool(24, 16), BlockTable)
a_leaves = next(i for i, state in enumerate(states) if ": A has its answer" in state.event)
print(f"picture {a_leaves + 1}: A leaves; picture {a_leaves + 2}: F comes")
Stepper(lambda i: draw_pool(states[i]), count=len(states), label="picture", start=a_leaves, still=a_leaves + 1)

# %% [markdown]
"""
In one piece, F did not fit into what A had left. Here it takes blocks for its prompt, and later more, from wherever they are free:
"""

# %%
for number, state in enumerate(states, start=1):
    for table in state.tables:
        if table.request == "F" and state.changed and set(state.changed) <= set(table.blocks):
            print(f"picture {number}. {state.event:60} F's table: {list(table.blocks)}")

# %% [markdown]
"""
Its last block has a lower number than its first. It was D's before. No gap has to be large enough for all of F.

Also look at the free queue after a request has left: its blocks stand at the end, the last one first.

## Build 4: from a position to a place

The model will ask: token 40 of request A, where does its key go? The answer is the number of a cell, counted over the whole pool: block 0 has the cells 0 to 15, block 1 has 16 to 31, and so on. vLLM calls this
number the token's slot. From here on we do too. (In lesson 02 a slot was a whole row for one request.)

> **slot mapping**: for each token, its slot: the number of the cell in the pool where its key and value lie, block number × block size + offset in the block.

For one position it is this:
"""

# %%
print(inspect.getsource(slot_of))

# %% [markdown]
"""
Take a request with the blocks 5 and 2, at 4 tokens a block. Position 6: 6 // 4 = 1, so it is in the second block of the table, number 2. 6 % 4 = 2 is its offset. The slot is 2 × 4 + 2 = 10.

A prefill may ask for hundreds of positions in one step, and the answer is needed as a tensor, to index the cache with. So no loop over the positions.

**Your task: `slot_mapping(blocks, block_size, start, end)`**: the slots of positions `start`, `start + 1`, ..., `end - 1`, as a tensor of shape `[end - start]`, int64. (int32 will do; in fewer bits the slots of a large pool overflow.) `blocks` is a list of ints. Example:
`slot_mapping([5, 2], 4, 2, 6)` is `tensor([22, 23, 8, 9])`. An empty range, `start == end`, gives an empty tensor, also for an empty table.

A position below 0, or one beyond the last cell of the table, raises `IndexError`. Look at both ends yourself: a negative index counts from the end, in Python and in torch, and would give a slot in the table's last block, without a word.

Two tensors do it: the positions (`torch.arange`), and the table (`torch.tensor(blocks, dtype=torch.int64)`). `//`, `%` and `*` work on every element, and a tensor can be indexed with a tensor.
"""

# %% exercise="03.4"
from lessons_lib.kv_cache.block_pool import slot_mapping

# %%
pool = BlockPool(24, 16)
tables = {name: BlockTable(pool) for name in "AB"}
for name, count in (("A", 13), ("B", 62), ("A", 10)):
    tables[name].append(count)
for name, table in tables.items():
    print(f"{name}: {table.num_tokens} tokens in blocks {list(table.blocks)}")
print("A's tokens 10 to 22 go to slots", slot_mapping(tables["A"].blocks, 16, 10, 23).tolist())
print("the next token of B goes to slot", slot_mapping(tables["B"].blocks, 16, 62, 63).tolist())

# %% [markdown]
"""
A's tokens 13, 14 and 15 found room in its first block. Token 16 begins a new one, which lies behind B's.

## Build 5: how many blocks are there?

The memory left beside the weights decides. A block holds, in every layer and for each of its tokens, a key and a value of every KV head: `block_bytes(config, block_size, bytes_per_element)` says how many bytes
that is. `bytes_per_element` is 4 for float32, and 2 for bfloat16.

**Your task: `blocks_in_budget(config, block_size, budget_bytes, bytes_per_element=4)`**: how many whole blocks fit, as an `int`. The budget may be a float, as "90 % of what is free" is. A block size below 1 or a
negative budget raises `ValueError`. Example: a block of the bundled model at 16 tokens takes 131,072 bytes, so 300,000 bytes are 2 blocks.
"""

# %% exercise="03.5"
from lessons_lib.kv_cache.block_pool import blocks_in_budget

# %%
llama = LlamaConfig(hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8)
for what, config, budget, size in (
    ("bundled model, float32, 64 MiB", model.config, 64 * 2**20, 4),
    ("Llama 3 of 8 billion weights, bfloat16, 40 GiB", llama, 40 * 2**30, 2),
):
    count = blocks_in_budget(config, 16, budget, size)
    print(f"{what}: {block_bytes(config, 16, size):,} bytes a block of 16, {count:,} blocks, room for {16 * count:,} tokens")

# %% [markdown]
"""
Back to the second prediction. At an average moment a story holds some of the blocks that it will hold at its end.
"""

# %%
blocks = blocks_in_budget(model.config, 16, 64 * 2**20)
at_the_moment = mean(blocks_for(tokens, 16) for now in held for tokens in now.values())
at_the_end = mean(blocks_for(final[name], 16) for now in held for name in now)
print(f"a story holds {at_the_moment:.2f} blocks at an average moment, and will hold {at_the_end:.2f} at its end")
print(f"in rows of 256 places {blocks * 16 // 256} requests at once; in {blocks} blocks, with all at their ends, {int(blocks / at_the_end)}")
reveal("03.b", int(blocks / at_the_moment), unit="requests")

# %% [markdown]
"""
That many find room on average. If more of them than usual are near their ends, the blocks do not suffice, and somebody must give way. How, lesson 10 shows.

## Prove it

An allocator that is wrong once in a thousand calls is worse than none: two requests write into one block, and both texts go wrong without an error. So we compare it with a model
of it that is too simple to be wrong, over a long run of random calls. The model is a list of the free blocks, and for each table a list of its blocks and a count of its tokens. It never asks your code.
Before each call it says whether the call must be refused and with which exception (if there are several reasons, any of theirs will do), and what must stand where afterwards. After each call we compare: the exception, the free queue in its order, `used`, the
blocks and tokens of all five tables, and the slots of all their tokens.
"""

# %%
def random_run(seed, turns=3000, num_blocks=40, size=4, limit=12):
    """Random calls on five tables and their pool, beside the model. Returns how many were refused, rightly."""
    rng, refused = random.Random(seed), 0
    pool = BlockPool(num_blocks, size)
    tables = {name: BlockTable(pool, max_blocks=limit) for name in "ABCDE"}
    free, held_by, tokens = list(range(num_blocks)), {name: [] for name in tables}, dict.fromkeys(tables, 0)  # the model
    for _ in range(turns):
        name, count, kind = rng.choice("ABCDE"), rng.choice((-1, 0, 1, 1, 2, 5, 30)), rng.random()
        due = []  # the exceptions that may come; if there is one, the model stays as it is
        if kind < 0.1:
            call = tables[name].release
            free, held_by[name], tokens[name] = free + held_by[name][::-1], [], 0
        elif kind < 0.15 and free:
            call, due = partial(pool.free, [*held_by[name], free[-1]]), ["ValueError"]  # the last one is free already
        else:
            call, needed = partial(tables[name].append, count), len(range(0, tokens[name] + count, size))
            new = needed - len(held_by[name])
            reasons = {"ValueError": count < 0, "TableFull": needed > limit, "OutOfBlocks": new > len(free)}
            due = [error for error, applies in reasons.items() if applies]
            if not due:
                held_by[name], free, tokens[name] = held_by[name] + free[:new], free[new:], tokens[name] + count
        came = None
        try:
            call()
        except (ValueError, TableFull, OutOfBlocks) as error:
            came = type(error).__name__
            refused += 1
        assert came in (due or [None]), f"table {name}, count {count}: due was {due or 'no refusal'}, and {came or 'no refusal'} came"
        assert list(pool.free_queue) == free, "another free queue"
        assert set(pool.used) == {block for blocks in held_by.values() for block in blocks}, "other blocks in `used`"
        for name, table in tables.items():
            assert (list(table.blocks), table.num_tokens) == (held_by[name], tokens[name]), f"another table of {name}"
            slots = [block * size + offset for block in held_by[name] for offset in range(size)][: tokens[name]]
            assert slot_mapping(table.blocks, size, 0, tokens[name]).tolist() == slots, f"other slots of {name}"
    return refused


for seed in (0, 1, 2):
    print(f"run {seed}: 3,000 calls, {random_run(seed)} of them rightly refused, and all as in the model after each")

# %% [markdown]
"""
Second, the recorded runs: replayed with your pool and tables, and with the reference, picture by picture.
"""

# %%
SIZES = (1, 4, 8, 16, 32, 64)
for name, result in (("six stories", six), ("32 requests", many)):
    same = [replay(result.trace, BlockPool(500, size), BlockTable) == replay(result.trace, reference.BlockPool(500, size)) for size in SIZES]
    print(f"{name}: {len(result.trace.steps)} steps, block sizes {SIZES}: {sum(same)} of {len(same)} replays equal the reference's in every picture")

# %% [markdown]
"""
## Measure

### Waste against block size

First the comparison that this lesson is about: the same steps of the same run, with the best that one piece can be, and in blocks.
"""

# %%
paged = {name: {size: while_somebody_waits(paged_use(run, size), trace) for size in SIZES}
         for name, run, trace in (("six stories", held, six.trace), ("32 requests", many_held, many.trace))}  # fmt: skip
oracle = while_somebody_waits(many_ways["oracle"], many.trace)
Table(
    columns=["layout", "tokens", "used later", "never used", "in gaps", "wasted"],
    rows=[
        ["one piece, oracle", *shares(oracle), f"{waste(oracle):.1%}"],
        *[[f"blocks of {size}", *shares(uses), f"{waste(uses):.1%}"] for size, uses in paged["32 requests"].items()],
    ],
    caption="32 requests while somebody waits. \"Used later\" means in blocks: cells of the last block that the request will fill.",
)

# %%
wasted = {name: [100 * waste(uses) for uses in by_size.values()] for name, by_size in paged.items()}
line_chart(
    SIZES, {**wasted, "32 requests, oracle, one piece": [100 * waste(oracle)] * len(SIZES)},
    xlabel="block size, tokens", ylabel="memory without a token, %", log="x",
    alt="Memory without a token against block size. " + "; ".join(
        f"{name}: " + ", ".join(f"{value:.0f} % at {size}" for size, value in zip(SIZES, values)) for name, values in wasted.items()
    ) + f". For comparison, 32 requests with the oracle in one piece: {100 * waste(oracle):.0f} %.",
)  # fmt: skip

# %% [markdown]
"""
Smaller blocks waste less, down to nothing at one token a block. At 64 tokens a block most requests fit in one block, and the layout wastes about as much as the oracle in one piece.

### Where are the 4 %?

The vLLM project reports less than 4 % waste for paging. Ours at 16 is several times as much. Is something wrong?

A request leaves part of its last block empty. If 0 to 15 empty cells are equally likely, that is (16 − 1) / 2 = 7.5 cells on average, and it is 7.5 cells for short requests and for long ones. So the share depends on how
many tokens stand beside them. The paper gives the average lengths of its two workloads: ShareGPT, conversations that people had with ChatGPT, and Alpaca, short instructions. Of each we
take one request with a prompt and an answer of these lengths, and let it grow. Beside them our runs, now with all their steps:
"""

# %%
def grown(prompt, answer, block_size=16):
    """Waste of one request that grows from its prompt to its end, token by token, and how many tokens it holds on average."""
    steps = [{"X": tokens} for tokens in range(prompt, prompt + answer)]
    return waste(paged_use(steps, block_size)), mean(step["X"] for step in steps)


def rule(tokens, block_size=16):
    """Half a block, less half a token, beside so many tokens."""
    return (block_size - 1) / 2 / ((block_size - 1) / 2 + tokens)


rows = []
for name, run in (("32 requests", many_held), ("six stories", held)):
    tokens = mean(tokens for now in run for tokens in now.values())
    rows.append([f"ours, {name}", tokens, f"{waste(paged_use(run, 16)):.1%}", f"{rule(tokens):.1%}"])
for name, prompt, answer in (("Alpaca, average request", 19, 58), ("ShareGPT, average request", 161, 338)):
    share, tokens = grown(prompt, answer)
    rows.append([name, tokens, f"{share:.1%}", f"{rule(tokens):.1%}"])
print(f"half a block is below 4 % beside {next(n for n in range(1, 10_000) if rule(n) < 0.04)} tokens or more")
Table(
    columns=["requests", "tokens held on average", "wasted, counted", "wasted by the rule"],
    rows=rows,
    caption="Waste in blocks of 16 over whole runs, all steps. Rule: 7.5 empty cells a request. Lengths of Alpaca and ShareGPT: Kwon et al., figure 11",
)

# %% [markdown]
"""
The rule of half a block explains all of them. With requests as long as those of ShareGPT, blocks of 16 waste less than 4 %. With the short instructions of Alpaca, and with our short requests, they waste more. So "under 4 %" is
a statement about requests that hold at least as many tokens as the line above the table says. (Here one average request stands for a whole workload. In a real one more of the running requests are long ones, since these run longer, and the share is smaller still.)

What does not depend on the length: less than one block a request is wasted, and no oracle is needed.

### What small blocks cost

Why not one token a block, then? Each block is an entry in a table, a number that must be handed out, taken back, and looked up. Counted on the 32 requests:
"""

# %%
ends = final_tokens(many_held).values()
Table(
    columns=["block size", "wasted", "table entries for 1,024 tokens", "blocks handed out for 100 tokens"],
    rows=[
        [str(size), f"{waste(uses):.0%}", blocks_for(1024, size), 100 * sum(blocks_for(tokens, size) for tokens in ends) / sum(ends)]
        for size, uses in paged["32 requests"].items()
    ],
    caption="The price of small blocks, counted",
)

# %% [markdown]
"""
And the keys must be read. With the table as an index, torch gathers the blocks of 1,024 tokens into one tensor: `keys[table]`. We time it for one layer of the bundled model, with the blocks in random order, beside
a copy of the same number of keys that lie next to each other.
"""

# %% tags=["measured"]
def gather_times(tokens=1024, places=65_536, times=61):
    """Median seconds to read the keys of so many tokens, in one piece and in blocks. In turns."""
    rng, heads, size = random.Random(0), model.config.num_key_value_heads, model.config.head_dim
    pool = torch.randn(places, heads, size)
    reads = {"one piece": lambda: pool[:tokens].clone()}
    for block_size in SIZES:
        keys = pool.view(places // block_size, block_size, heads, size)
        table = torch.tensor(rng.sample(range(len(keys)), blocks_for(tokens, block_size)))
        reads[f"blocks of {block_size}"] = lambda keys=keys, table=table: keys[table]
    seconds = {way: [] for way in reads}
    for _ in range(times):
        for way, read in reads.items():
            started = perf_counter()
            read()
            seconds[way].append(perf_counter() - started)
    return {way: median(taken) for way, taken in seconds.items()}


taken = gather_times()
Table(
    columns=["keys of 1,024 tokens", "µs", "× one piece"],
    rows=[[way, 1e6 * seconds, seconds / taken["one piece"]] for way, seconds in taken.items()],
    caption="Reading keys by block table, one layer, on this machine",
)

# %% [markdown]
"""
Here, on a CPU, the size of the blocks matters little, except for the smallest. Gathering at all costs more than a copy of one piece. On a GPU small blocks cost more: they leave part of the GPU's parallelism
unused when it reads, says the paper (section 7.2), which finds 16 large enough for the GPU and small enough for little waste. Its attention kernel, a program on the GPU that looks up a block table, took 20 to 26 % longer than one that
reads the keys in one piece (section 7.1). Lessons 06 to 08 show how to read blocks without gathering them first.

### How fast is the allocator?

It runs between two steps of the model, while the GPU waits. To see what the queue is worth, here is a pool that does without one: a list of flags, one a block, searched for the first free one.
"""

# %%
class ScanningPool:
    """Finds a free block by looking at one flag after the other."""

    def __init__(self, num_blocks, block_size):
        self.is_free = [True] * num_blocks

    def allocate(self, count):
        blocks = []
        for block, free in enumerate(self.is_free):
            if len(blocks) == count:
                break
            if free:
                blocks.append(block)
        if len(blocks) < count:
            raise OutOfBlocks(f"{count} blocks needed, {len(blocks)} free.")
        for block in blocks:
            self.is_free[block] = False
        return blocks

    def free(self, blocks):
        for block in blocks:
            self.is_free[block] = True


# %% tags=["measured"]
def operations_a_second(make_pool, num_blocks, turns):
    """A pool that is nine tenths full: free one block, allocate one, over and over. Two operations a turn."""
    pool, rng = make_pool(num_blocks, 16), random.Random(0)
    held = pool.allocate(num_blocks * 9 // 10)
    places = [rng.randrange(len(held)) for _ in range(turns)]
    started = perf_counter()
    for place in places:
        pool.free([held[place]])
        (held[place],) = pool.allocate(1)
    return 2 * turns / (perf_counter() - started)


rows = []
for num_blocks in (100, 1000, 10_000):
    queue = median(operations_a_second(BlockPool, num_blocks, 20_000) for _ in range(5))
    scan = median(operations_a_second(ScanningPool, num_blocks, 2_000_000 // (num_blocks + 900)) for _ in range(5))
    rows.append([f"{num_blocks:,} blocks", queue, scan, f"{queue / scan:.1f} ×"])
Table(
    columns=["pool", "free queue: operations/s", "scanning: operations/s", "ratio"],
    rows=rows,
    caption="Allocate and free, one block at a time, nine tenths of the pool in use. Median of five runs on this machine",
)

# %% tags=["measured"]
operation = 1 / queue  # in the largest pool
step = median(step.seconds for step in six.trace.steps)
print(f"one operation {1e6 * operation:.1f} µs; one step of the six stories {1000 * step:.1f} ms, as long as {step / operation:,.0f} operations")

# %% [markdown]
"""
Read down the columns of the table. With the queue the speed falls far less than the pool grows. With scanning, ten times the blocks are about a tenth of the operations: it walks over blocks that are taken until it
reaches a free one. The pool computed above for Llama 3 has more blocks than any in this table.

The queue's times include the checks against misuse, of which the scanning pool has almost none. They cost little beside a step of the model.

### The ledger
"""

# %% tags=["measured"]
ledger(model, tokenizer, "03", with_cache_only=True)

# %% [markdown]
"""
The new row is the one before it once more: the same tokens in the same forward passes, and as many of them in the cache. Only the cache *reserved* is new, and it is **counted**: the recording was replayed with
block tables, as you did above. Nothing was served from blocks, so a difference in speed says nothing about blocks. (Here all steps count, also those in which nobody waits.)

## What production does

- **vLLM** has your pool under the same name: `BlockPool` in `vllm/v1/core/block_pool.py`, with `get_new_blocks` and `free_blocks`. Its free queue, `FreeKVCacheBlockQueue` in `kv_cache_utils.py`, is a doubly linked list instead of a
  `deque`, so that a block can be taken out of the *middle* without a search: that happens when somebody can use what is still in a free block. `free` in `single_type_kv_cache_manager.py` gives a request's blocks back in reverse
  order, tail first, for the reason you saw. When blocks run out, `allocate_slots` in `kv_cache_manager.py` returns `None`, and the scheduler decides who gives way.
- vLLM's tables on the GPU are one tensor with a row for each request: `BlockTable` in `vllm/v1/worker/block_table.py`. `compute_slot_mapping` there does on the GPU what your `slot_mapping` does.
- **Hugging Face transformers** (5.23) has `generation/continuous_batching/cache_allocators/`: `CachePool` in `cache_pool.py` keeps the free blocks, and `FullAttentionCacheAllocator` in `full_attention.py` the table of each request. `get_write_indices` is its slot
  mapping. It speaks of pages, and its `page_size` is 256 tokens by default.
- Both work out the number of blocks at the start, from the memory that is left beside the weights.

## What is still wrong

**The model knows nothing of blocks.** Its attention wants the keys of a request in one piece. Lesson 06 writes keys by slot mapping and computes attention over a block table. Lessons 04 and 05 first
remove the other waste of lesson 02: idle rows, and a forward pass of its own for every prompt.

**The pool can run out in the middle of an answer.** Reserving for the longest request was safe: whoever got a row of cache could finish. Whoever gets a first block has no such promise. The six stories in a pool that is too small:
"""

# %%
peak = max(use.places // 16 for use in paged_use(held, 16))
print(f"at their peak the six stories hold {peak} blocks of 16")
for num_blocks in (peak, peak - 1):
    try:
        print(f"pool of {num_blocks} blocks: {len(replay(six.trace, BlockPool(num_blocks, 16), BlockTable))} states, all served")
    except OutOfBlocks as error:
        print(f"pool of {num_blocks} blocks: OutOfBlocks: {error}")

# %% [markdown]
"""
One block too few, and a request that was well under way cannot store its next token. Nothing is broken, since the refused call changed nothing. But somebody must now wait, or give its blocks back and begin again. That is a question of
scheduling, and lesson 10 answers it.

**Equal beginnings are stored twice.** Two requests that begin with the same text have the same keys for it, each in blocks of its own. Lesson 10 lets them share.

## Quiz
"""

# %%
quiz("03")

# %% [markdown]
"""
## References

- W. Kwon et al.: *Efficient Memory Management for Large Language Model Serving with PagedAttention*, SOSP 2023: section 3.1 on the three kinds of waste, figure 2 for 20.4 to 38.2 %, section 4 on blocks and tables, section 6.1
  on the three ways to reserve, figure 11 for the lengths, section 7.1 on the attention kernel, section 7.2 on the block size. <https://arxiv.org/abs/2309.06180>
- vLLM team: *vLLM: Easy, Fast, and Cheap LLM Serving with PagedAttention*, 2023, for "60 % – 80 %" and "under 4 %". <https://blog.vllm.ai/2023/06/20/vllm.html>
- vLLM: `vllm/v1/core/block_pool.py`, `kv_cache_utils.py`, `kv_cache_manager.py`, `single_type_kv_cache_manager.py`, and `vllm/v1/worker/block_table.py`. <https://github.com/vllm-project/vllm>
- Hugging Face transformers: `src/transformers/generation/continuous_batching/cache_allocators/`. <https://github.com/huggingface/transformers>
- T. Kilburn et al.: *One-Level Storage System*, IRE Transactions on Electronic Computers, 1962: paging, on the Atlas computer. <https://doi.org/10.1109/TEC.1962.5219356>
"""
