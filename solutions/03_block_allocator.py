# %% [markdown]
"""
# 03 · A block allocator

**How can requests share one cache when we don't know how long each of them will get?**

90 minutes · difficulty: medium · routes: ideas, kernels, serving · prerequisites: lesson 00 (KV cache) and lesson 02
(slots)

In lesson 02, every batch slot reserved a row of cache for the longest request that might come. In this lesson you
build what serving systems use instead: a pool of small blocks, and for each request a table of the blocks that it owns.
Then your pool and your tables serve 32 requests from 4 MiB of cache, once in rows and once in blocks, and you decide
when a server admits a request. We only count tokens in the cache; lesson 06 fills the blocks with keys and values.
"""

# %%
import random
from functools import partial
from statistics import mean, median
from time import perf_counter

import torch
from transformers import LlamaConfig

from lessons_lib.batching import batch_generate
from lessons_lib.checks import check, hint, predict, progress, quiz, reveal, solution
from lessons_lib.checks.lesson_03.scoreboard import admission_scoreboard
from lessons_lib.kv_cache import block_bytes, block_pool as reference, blocks_for, blocks_in_budget
from lessons_lib.kv_cache import serve_in_blocks, step_in_blocks, step_with_oracle
from lessons_lib.measuring import MAX_NEW_TOKENS, NAMES, PROMPTS, ledger, skewed_workload
from lessons_lib.models import cache_bytes_per_token, load_model
from lessons_lib.recording import contiguous_use, final_tokens, paged_use, record_run, replay, tokens_held, waste
from lessons_lib.viz.stepper import Stepper
from lessons_lib.viz.cache import draw_memory
from lessons_lib.viz.charts import line_chart
from lessons_lib.viz.pool import PoolPlayground, draw_pool, watch_paging
from lessons_lib.viz.tables import Table

model, tokenizer = load_model(device="cpu")  # float32: 4 bytes per element in the cache
prompt_tokens = {name: len(tokenizer(prompt).input_ids) for name, prompt in zip(NAMES, PROMPTS)}

# %% [markdown]
"""
## The problem: memory reserved for tokens that never come

Here are the six stories again, served as in lesson 02: in four batch slots, each with a cache row for 256 tokens.

> **cache slot**: room in the KV cache for the key and value of one token, in all layers.

In lesson 02, a slot was a row of the batch. From here on we call that row a *batch slot*; *slot* alone means a cache
slot.
"""

# %%
six = record_run(
    batch_generate, model, tokenizer, PROMPTS, max_new_tokens=MAX_NEW_TOKENS, names=NAMES, batch_size=4, max_seq_len=256
)
held = tokens_held(six.trace)
final = final_tokens(held)
longest_possible = contiguous_use(held, {name: 256 for name in NAMES})
draw_memory(longest_possible, 24, title="256 cache slots for every request", num_slots=1024)

# %% [markdown]
"""
The picture shows the cache as one long row of slots, wrapped over several lines. Solid color: the slot holds a token.
Pale: reserved, and the request will use it later. Hatched: reserved, and never used.

> **reservation**: memory set aside for a request when it starts, for tokens that it doesn't have yet. In the meantime,
> no other request can use it.

> **internal fragmentation**: memory that belongs to a request and that it never uses: here the end of its row, because
> its answer ends before the row is full.

## Predict

Rows are too long because we don't know how long an answer will be. So suppose an oracle tells us. C's prompt has 3
tokens, and its answer 100. (The last of them is never fed back, so it takes no slot.) From C's first step to its last,
we reserve 102 slots for it in one piece (*contiguous* memory). C will fill every one of them.

**03.a** Averaged over C's steps, what percentage of the 102 slots is empty?
"""

# %%
predict("03.a", ...)  # percent

# %%
c_tokens = [now["C"] for now in held if now.get("C")]
reveal("03.a", 100 * (1 - mean(c_tokens) / final["C"]), unit="%")

# %% [markdown]
"""
Even with a perfect oracle, half of C's piece is empty on average: reserved, and used only later.

A second loss shows when many requests come and go: a request that finishes leaves a gap of its own size, and the next
one may be larger.

> **external fragmentation**: free memory in gaps between reservations, none of them large enough for the next request.

## The idea: small blocks, and a table

First, cut the memory into blocks of one size. Second, let a request own
*any* of them, and keep a table that says which.

> **block**: a fixed number of neighboring cache slots, here 16: what is allocated at a time.

> **block table**: a request's list of its blocks, in the order of its tokens.

These are the four rows of the picture above, after 25 steps. Step on, and they become blocks, wherever some are free
(the block numbers are an example):
"""

# %%
now = {region.request: region.tokens for region in longest_possible[24].regions}
watch_paging({name: prompt_tokens[name] for name in now}, now, row=256, block_size=16)

# %% [markdown]
"""
## Build 1: the pool

> **block pool**: all blocks of the cache, with a record of which are free and which are allocated.

> **free queue**: the free blocks, in the order in which they will be allocated.

The pool works only with block *ids*, 0, 1, 2, ... The id alone determines where a block is in memory. The pool keeps
two containers:

- `free_queue`, a `deque`: the free blocks.
- `used`, a set: the allocated blocks.

Every block is in exactly one of the two. `allocate` and `free` are called all the time, so their cost must depend on
the number of blocks moved, not on the size of the pool.

**Exercise 03.1.** Write `allocate(count)` and `free(blocks)`. An example, with `pool = BlockPool(6, 16)`:

| call | what happens | free queue afterwards |
|---|---|---|
| `pool.allocate(4)` | returns the list `[0, 1, 2, 3]` | 4, 5 |
| `pool.allocate(3)` | raises `OutOfBlocks`: 3 needed, 2 free | 4, 5 |
| `pool.allocate(0)` or `pool.free([])` | returns `[]`, or does nothing | 4, 5 |
| `pool.allocate(-1)` | raises `ValueError` | 4, 5 |
| `pool.free([0, 1, 2])` | takes them back, *last block first* | 4, 5, 2, 1, 0 |
| `pool.free([3, 5])` | raises `ValueError`: 5 is already free | 4, 5, 2, 1, 0 |
| `pool.free([3, 9])` | raises `ValueError`: there is no block 9 | 4, 5, 2, 1, 0 |
| `pool.free([3, 3])` | raises `ValueError`: 3 is listed twice | 4, 5, 2, 1, 0 |

`allocate` is all or nothing, because a request that needs three blocks can do nothing with two. As in lesson 02, a
refused call changes nothing. `free` takes a list or a tuple, in the order of the request's tokens, and doesn't modify
it. (Why the last block goes into the queue first is explained below.)
"""

# %% exercise="03.1" given="__init__ reset"
from collections import deque

from lessons_lib.kv_cache.block_pool import OutOfBlocks

from lessons_lib.kv_cache.block_pool import BlockPool

# %% [markdown]
"""
Why does the last block go into the queue first? Freed blocks aren't erased. If a later request starts with the same
text, it can use the keys in them (lesson 11), but only up to the first block that has been overwritten. So the
beginning of a request should survive longest. ("Further" tries both orders.)

## How requests use the blocks

> **paging**: storing data in blocks of one size that may be anywhere in memory, with a table that says where each one
> is. Operating systems manage the memory of programs this way; they call a block a page.

No block is reserved for later: a request takes one when a token needs it, and any free block will do. What a request
leaves empty is part of its last block: less than one block, however long it grows. Here is a pool of 24 blocks, some
steps into the run:
"""

# %%
early = replay(six.trace, reference.BlockPool(24, 16))
draw_pool(early[24])

# %% [markdown]
"""
On the left is the pool: each box is a block, divided into its cache slots. A hatched slot is empty: only its request
can use it, now or never. On the right are the block tables: A's tokens 0 to 15 are in one block, 16 to 31 in the next,
and the two need not be neighbors. At the bottom are the free blocks, in the order in which they will be allocated.

The oracle left half of C's slots empty. And blocks? `blocks_for(num_tokens, block_size)` returns the number of blocks
that these tokens need. (It's exercise 03.2, in "Further".)
"""

# %%
grows = range(3, 103)  # the tokens of C, step by step
empty = 1 - sum(grows) / sum(16 * blocks_for(tokens, 16) for tokens in grows)
print(f"C in blocks of 16: {empty:.0%} of its slots are empty, on average")

# %% [markdown]
"""
Blocks need no oracle, and leave far less empty: about half of C's last block.

## Build 2: the block table

A block table belongs to one request. It has

- `blocks`: the list of its block ids, in the order of the tokens,
- `num_tokens`: the number of tokens stored,
- `pool`: the pool that the blocks come from, with the block size in `pool.block_size`,
- `max_blocks`: the most blocks that the table may hold. `None` means no limit; 0 is a limit like any other.

**Exercise 03.3.** `release()` is given. Write `append(count=1)`. You have `blocks_for`. An example with blocks of 16
and an empty table:

| call | tokens | blocks of the table |
|---|---|---|
| `append(62)` | 62 | 4 |
| `append(2)` | 64 | 4: there was room for both |
| `append()` | 65 | 5: the 65th token starts a new block |
| `append(0)` | 65 | 5 |

`append` fills the last block first. It refuses in three cases:

- a negative `count`: raise `ValueError`;
- more than `max_blocks` blocks needed: raise `TableFull`;
- too few free blocks: `OutOfBlocks` leaves `append`.

In all three cases nothing changes, neither the table nor the pool. If several apply, raise any of their exceptions.
"""

# %% exercise="03.3" given="__init__ release"
from lessons_lib.kv_cache.block_table import TableFull

from lessons_lib.kv_cache.block_table import BlockTable

# %% [markdown]
"""
## Build 3: from positions to cache slots

The **position** of a token is its index in its own sequence, from 0. The model will ask: where does the key of A's
token at position 40 go? The answer is the index of a cache slot, counted over the whole pool: block 0 has slots 0 to
15, block 1 has 16 to 31, and so on.

> **slot mapping**: for each token, the index of the cache slot for its key and value.

If A's blocks are 0, 8 and 12, position 40 is in its third block, which is block 12 of the pool. Eight slots of that
block come before it. So its slot is 12 × 16 + 8 = 200.

A prefill can need hundreds of positions in one step, so don't loop over them.

**Exercise 03.4.** Write `slot_mapping(blocks, block_size, start, end)`. It returns the slots of positions `start`,
`start + 1`, ..., `end - 1`, as an int64 tensor of shape `[end - start]`. (int32 is accepted; with fewer bits, the
slot indices of a large pool overflow.) `blocks` is a list of ints. Example: `slot_mapping([5, 2], 4, 2, 6)` is
`tensor([22, 23, 8, 9])`.

A position below 0, or beyond the last slot of the table, raises `IndexError`. Check for both yourself: indexing in
Python and in torch would let some of them pass silently. An empty range, `start == end`, gives an empty tensor,
also at the very end of the table and for an empty table. (You are never given a `start` above `end`, or an empty range
further outside.)
"""

# %% exercise="03.4"
from lessons_lib.kv_cache.cache_slots import slot_mapping

# %%
pool = BlockPool(6, 16)
tables = {name: BlockTable(pool) for name in "AB"}
for name, count in (("A", 13), ("B", 62), ("A", 10)):
    tables[name].append(count)
for name, table in tables.items():
    print(f"{name}: {table.num_tokens} tokens in blocks {list(table.blocks)}")
print("A's tokens 10 to 22 go to slots", slot_mapping(tables["A"].blocks, 16, 10, 23).tolist())

# %% [markdown]
"""
A's tokens at positions 13, 14 and 15 still fit in its first block. Position 16 starts a new one, which comes after B's
in memory.

So far we've only counted. Now something is stored: one number for each cache slot, in place of a key. A stores 1000,
1001, …, and B 2000, 2001, …, each through its own table. Then A leaves, and C comes with 20 tokens and stores 3000,
3001, … The code below your prediction does all this, and then reads positions 14 to 18 once more, through A's *old*
table.

**03.b** How many of these five numbers are still A's own?
"""

# %%
predict("03.b", ...)

# %%
keys = torch.zeros(6 * 16, dtype=torch.int64)
for table, first in ((tables["A"], 1000), (tables["B"], 2000)):
    keys[slot_mapping(table.blocks, 16, 0, table.num_tokens)] = first + torch.arange(table.num_tokens)
old_blocks = list(tables["A"].blocks)
print("A reads its positions 14 to 18:", keys[slot_mapping(old_blocks, 16, 14, 19)].tolist())
print("B reads its positions 46 to 50:", keys[slot_mapping(tables["B"].blocks, 16, 46, 51)].tolist())

tables["A"].release()
tables["C"] = BlockTable(pool)
tables["C"].append(20)
keys[slot_mapping(tables["C"].blocks, 16, 0, 20)] = 3000 + torch.arange(20)
print(f"C's blocks: {tables['C'].blocks}; A's were {old_blocks}")
stale = keys[slot_mapping(old_blocks, 16, 14, 19)].tolist()
print("A's old table reads 14 to 18:  ", stale)
reveal("03.b", sum(1000 <= number < 2000 for number in stale))

# %% [markdown]
"""
The blocks of A and B lie mixed in one tensor, and each reads back what it stored. After A has left, its table is worth
nothing. A's last block went into the free queue first, so C's first tokens are in it: positions 16 to 18 read C's
first three numbers. Positions 14 and 15 read A's own, which nothing has overwritten yet. Only the tables say whose a
number is, so a block must never be in two tables by mistake.

Is all of that right over a whole run? We replay a run of 32 other requests, with your pool and tables and with the
reference, and compare the pool and all tables after every change.
"""

# %%
load = skewed_workload(32)
names = [str(index) for index in range(32)]
how = dict(max_new_tokens=load.max_new_tokens, names=names, batch_size=8, max_seq_len=256)
many = record_run(batch_generate, model, tokenizer, load.prompts, **how)
for size in (1, 16, 64):
    same = replay(many.trace, BlockPool(500, size), BlockTable) == replay(many.trace, reference.BlockPool(500, size))
    print(f"blocks of {size}: the same pool and tables as the reference after every change: {same}")

# %% [markdown]
"""
## Serve requests from the blocks

How many blocks are there? As many as fit in the memory that is left after loading the weights: `blocks_in_budget`
divides. (It's exercise 03.5, in "Further".)
"""

# %%
BUDGET = 4 * 2**20
count = blocks_in_budget(model.config, 16, BUDGET)
print(f"a block of 16 takes {block_bytes(model.config, 16):,} bytes: 4 MiB has {count} blocks, for {16 * count} tokens")

# %% [markdown]
"""
Now your parts serve requests. `step_in_blocks` is one step of a server, with these rules, in this order:

1. **Leave.** Finished requests release their tables.
2. **Grow.** Each running request stores one token more. If a token needs a block and none is free, the request that was
   admitted *last* releases its table and goes back to the queue, to start over.
3. **Admit.** First come, first served: the next request is admitted if its whole prompt fits in the free blocks.

The step is given. (Writing it is exercise 03.6, in "Further". It takes half an hour.)

## Measure: rows against blocks

The payoff: 32 requests are waiting, and the bundled model has 4 MiB for its cache, cut into rows or into blocks.

`serve_in_blocks` calls the step until all requests are finished. It serves rows, too: **a row of 256 slots is a block
of 256**, and a request never needs a second one.

**03.c** Predict from the numbers that the next cell prints: in blocks of 16, after how many steps are all 32 requests
done? Within 25% is a hit.
"""

# %%
lengths = [(len(tokenizer(prompt).input_ids), len(output)) for prompt, output in zip(load.prompts, many.outputs)]
answers = sorted(answer for _, answer in lengths)
token_bytes = cache_bytes_per_token(model.config)
print(f"one cache slot takes {token_bytes:,} bytes, so 4 MiB has {BUDGET // token_bytes} slots")
print(f"that is {BUDGET // (256 * token_bytes)} rows of 256 slots, or {BUDGET // (16 * token_bytes)} blocks of 16")


def serve(size, step=step_in_blocks, num_blocks=None):
    """The 32 requests in 4 MiB, cut into blocks of this size, or in so many blocks."""
    pool = BlockPool(num_blocks or blocks_in_budget(model.config, size, BUDGET), size)
    return serve_in_blocks(lengths, pool, BlockTable, step)


served = {"rows of 256": serve(256), "oracle": serve(1, step_with_oracle)}
served |= {f"blocks of {size}": serve(size) for size in (64, 16, 1)}
rows, blocks = served["rows of 256"], served["blocks of 16"]
print(f"in rows, {max(step.running for step in rows)} requests run at once; all 32 are done after {len(rows)} steps")
queued = [step for step in blocks if step.waiting]
tokens = mean(step.tokens / step.running for step in queued)
print(f"in blocks of 16, a running request holds {tokens:.0f} tokens on average, while others wait")
print(f"the answers have {answers[0]} to {answers[-1]} tokens, {median(answers):.0f} in the middle")

# %%
predict("03.c", ...)  # steps until all requests are done, in blocks of 16

# %%
reveal("03.c", len(blocks), unit="steps", tolerance=0.25)
print(f"while others wait, {mean(step.running for step in queued):.1f} requests run at once on average")
for name, steps in (("rows", rows), ("blocks of 16", blocks)):
    last = max(number for number, step in enumerate(steps, 1) if step.waiting)
    print(f"in {name}, no request waits any more after step {last}")

done = [float("nan")] * (len(rows) - len(blocks))  # the curve ends when all requests are done
curves = {"rows of 256": [step.running for step in rows], "blocks of 16": [step.running for step in blocks] + done}
told = f"Rows: at most 2 requests, done after {len(rows)} steps. Blocks: all done after {len(blocks)} steps."
line_chart(
    range(1, len(rows) + 1), curves, xlabel="step", ylabel="requests that run", title="Requests that run at once",
    alt=told,
)  # fmt: skip


# %%
def compare(served):
    """A table of these ways to serve the 32 requests."""
    rows = []
    for name, steps in served.items():
        held = mean(step.tokens for step in steps if step.waiting) / 512
        most, restarts = max(step.running for step in steps), sum(step.restarted for step in steps)
        rows.append([name, len(steps), most, f"{held:.0%}", restarts])
    columns = ["cache", "steps until all are done", "most at once", "slots with a token, while others wait", "restarts"]
    caption = "The same 32 requests in about 4 MiB. A restarted request loses all its blocks and tokens"
    return Table(columns, rows, caption)


compare(served)

# %% [markdown]
"""
In rows, only two requests run at a time, and most of each row stays empty. In blocks of 16, about 16 run at once: each
holds 24 tokens on average and leaves about half a block empty, and 512 / (24 + 7.5) is 16. So the queue is gone in less
than a tenth of the steps. Then the curve falls: the long answers go on alone. (All tokens divided by 16 would give only
about 60 steps. But the longest answer takes 129, after it has waited.)

The oracle knows the length of each answer, and reserves all of it. It needs more steps than blocks of 16, which know
nothing in advance: half of its cache is empty, as half of C's piece was.

Each step reads the weights once, however many requests run, so fewer steps mean a faster server. ("Further" says why
servers don't use blocks of 1, which need the fewest.)

## Decide: when is a request admitted?

Blocks have a price: the restarts in the table of rows and blocks. An answer grows, no block is free, and the request
that was admitted last starts over: its reader sees the answer stop.

A server can be safe instead. Each request names a *limit*, the most tokens that its answer may have
(`max_new_tokens`). A request is admitted only if it and all running requests have room up to their limits. Nothing ever
starts over. But most answers end early, and the room kept for them stays empty.

Let a restart cost as much as ten steps. The check serves 300 requests that you can't see. With the bold rule of the
step, that takes 3,387 steps and 622 restarts, and costs 9,607. The safe rule costs 6,072, all of it steps.

**Exercise 03.7.** Write `may_admit(request, running, num_free, block_size)`. It returns whether the first request of
the queue is admitted now. After each admission, it is asked about the next one.

- `request` has `prompt_tokens` and `max_new_tokens`. Nothing says how long its answer will be.
- `running` is a list of the running requests. Each also has `num_tokens` and `num_blocks`, what it holds now.
- `num_free` is the number of free blocks, and a block has `block_size` slots.

Two things are fixed. A prompt that doesn't fit in the free blocks is never admitted. If nothing runs, a prompt that
fits always is. The rest is your decision. **The 300 requests must cost less than 4,500.** (They come in three runs of
100, and each run has 32 blocks of 16. Prompts have 2 to 60 tokens, limits are 40, 80 or 160, and about one answer in
five reaches its limit.)

Example: three requests run, 4 blocks of 16 are free, and the next prompt has 40 tokens. It fits in three blocks, so the
bold rule admits it, and one free block is left for four requests that grow. Would you?
"""

# %% exercise="03.7"
from lessons_lib.kv_cache.block_serving import may_admit

# %%
admission_scoreboard(may_admit)

# %% [markdown]
"""
Both given rules lose, for opposite reasons. The safe one makes requests wait next to empty blocks. The bold one gives
the last free blocks to a new request, just before the running ones need them. The library's rule keeps two
free blocks for each running request, and costs 4,022. Half of what is left to the limits costs 4,102, and eight free
blocks 4,209.

What is best depends on the price, and that is a decision, too. If a restart cost only one step, the bold rule would
cost 4,009, and beat the safe one.

## What is still wrong

**The model knows nothing about blocks.** Its attention expects the keys of a request in one piece. Lesson 06 writes
keys by slot mapping and computes attention through a block table.

**The pool can still run out in the middle of an answer.** Your rule makes that rare, not impossible. Lesson 10
finds cheaper ways to give up blocks.

**Identical beginnings are stored twice.** Two requests that start with the same text have the same keys for it, each
in its own blocks. Lesson 11 lets them share.

## Quiz
"""

# %%
quiz("03")

# %% [markdown]
"""
## Further (optional)

What the lesson doesn't need. It isn't part of its 90 minutes.

### The ledger
"""

# %% tags=["measured"]
ledger(model, tokenizer, "03", with_cache_only=True)

# %% [markdown]
"""
The last row is the run of lesson 02 once more. What is new is its "cache reserved": **counted**, by replaying the
recording with block tables, as you did above. (The speed of one and the same run varies by several percent.) The model
hasn't read a key from a block yet.
"""

# %% [markdown]
"""
### What production does

- **vLLM** has your pool under the same name: `BlockPool` in `vllm/v1/core/block_pool.py`. Its free queue,
  `FreeKVCacheBlockQueue` in `kv_cache_utils.py`, is a doubly linked list instead of a `deque`: a block that a request
  can reuse is removed from the *middle* without a search. `free` in `single_type_kv_cache_manager.py` frees the tail
  first, for the reason you saw.
- vLLM's `compute_slot_mapping` does what your `slot_mapping` does: `BlockTable` in `vllm/v1/worker/block_table.py`.
- **Hugging Face transformers** (5.23) has blocks, too; the part of a block that belongs to one layer is a *page* there.
  `CachePool` in `cache_pool.py` of `generation/continuous_batching/cache_allocators/` keeps the free ones.
"""

# %% [markdown]
"""
### Write the step

A `CachedRequest` has an `id`, `prompt_tokens`, `answer_tokens`, and its own block `table`, empty at first.
`request.finished` says whether it has its whole answer: whether the table holds all tokens that it ever needs. (A
server doesn't know `answer_tokens` in advance. Your step shouldn't use it.)

**Exercise 03.6** (optional). Write `step_in_blocks(waiting, running, pool)`, one step of a server. `waiting` is a
deque, and `running` a list in order of admission. These are its rules, now in full:

1. **Leave.** Finished requests leave `running`, in order, and their blocks are free for the others.
2. **Grow.** Each running request stores one token more, in order of admission. For a token that finds no free block,
   the request that was admitted *last* releases its table and goes back to the front of `waiting`, to start over.
   That may be the very request that needs the block.
3. **Admit.** First come, first served: as long as the whole prompt of the next request fits in the free blocks, it is
   admitted and stores its prompt, and no more in this step. The first that doesn't fit ends the step. A request that
   has just lost its blocks has no special rule: if its prompt fits, it's admitted again.

No request needs more blocks than the pool has. Change `waiting` and `running` in place; nothing reads what you return.
An example with five blocks of 4:

| | A | B | C | D |
|---|---|---|---|---|
| before | runs, 8 tokens in 2 blocks | runs, 5 tokens in 2 blocks | runs, 4 tokens in 1 block | waits, prompt 3 |
| after | 9 tokens in 3 blocks | 6 tokens in 2 blocks | waits, 0 tokens | waits behind C |

A's ninth token needs a block, and none is free. C was admitted last, so it gives up its block, and A takes that
one. Now no block is free, so nothing is admitted.
"""

# %% exercise="03.6"
from lessons_lib.kv_cache.block_serving import step_in_blocks

# %%
rows_with_your_step, blocks_with_your_step = serve(256, step_in_blocks), serve(16, step_in_blocks)
print(f"with your step: {len(rows_with_your_step)} steps in rows, {len(blocks_with_your_step)} in blocks of 16")

# %% [markdown]
"""
### Stretch: never start over, and still be quick

Write a rule with 0 restarts, whatever the answers, that needs fewer than 4,500 steps. The safe rule has 0 restarts, but
it assumes that all requests reach their limits in the same step. They don't. The cell starts out with the rule of the
step.
"""


# %%
def never_starts_over(request, running, num_free, block_size):
    return blocks_for(request.prompt_tokens, block_size) <= num_free  # replace this


admission_scoreboard(never_starts_over)

# %% [markdown]
"""
### How many blocks does a request need?

**Exercise 03.2** (optional). Write `blocks_for(num_tokens, block_size)`. It returns the number of blocks that hold that
many tokens, as an `int`: as many as needed, and not one more. There are 0 tokens or more, and the block size is 1 or
more. Examples: B's prompt of 62 tokens needs 4 blocks of 16 (16 + 16 + 16 + 14), C's prompt of 3 tokens needs 1.
"""

# %% exercise="03.2"
from lessons_lib.kv_cache.block_pool import blocks_for

# %%
for name, tokens in prompt_tokens.items():
    count = blocks_for(tokens, 16)
    print(f"{name}: {tokens:2} prompt tokens, blocks: {count}, empty slots: {count * 16 - tokens}")

# %% [markdown]
"""
### Rows that just fit

No server knows how long its longest request will be. Suppose that ours did: its rows are exactly as long. (It even gets
a fourth row, for which 4 MiB isn't quite enough.)
"""

# %%
longest = max(prompt + answer - 1 for prompt, answer in lengths)
compare({f"4 rows of {longest}": serve(longest, num_blocks=4), "blocks of 16": blocks})

# %% [markdown]
"""
Rows that just fit still need almost twice as many steps as blocks.

### The pool by hand

Twelve blocks of 4 slots, on your `BlockPool` and `BlockTable`. Append tokens, add a second request, free the first, and
watch where the next one's blocks come from. Ask for more than the pool has.
"""

# %%
PoolPlayground(BlockPool(12, 4), new_table=BlockTable)

# %% [markdown]
"""
### Prove it: 9,000 random calls

An allocator that is wrong once in a thousand calls is worse than none: two requests write into the same block, and
both texts go wrong without an error. So we compare yours with a *test model*, one that is too simple to be wrong,
over a long run of random calls.

The test model is a list of the free blocks, and for each table a list of its blocks and a token count. It never calls
your code. Before each call it predicts whether the call must be refused, with which exception (if there are several
reasons, any of their exceptions will do), and what the state must be afterwards. After each call we compare the
exception, the free queue in its order, `used`, the blocks and token counts of all five tables, and the slots of all
their tokens.
"""


# %%
def random_run(seed, num_calls=3000, num_blocks=40, size=4, limit=12):
    """Random calls on five tables and their pool, compared with the test model. Returns how many were refused."""
    rng, refused = random.Random(seed), 0
    pool = BlockPool(num_blocks, size)
    tables = {name: BlockTable(pool, max_blocks=limit) for name in "ABCDE"}
    # the test model
    free, held_by, tokens = list(range(num_blocks)), {name: [] for name in tables}, dict.fromkeys(tables, 0)
    for _ in range(num_calls):
        name, count, kind = rng.choice("ABCDE"), rng.choice((-1, 0, 1, 1, 2, 5, 30)), rng.random()
        due = []  # the exceptions that are allowed; if there are any, the test model doesn't change
        if kind < 0.1:
            call = tables[name].release
            free, held_by[name], tokens[name] = free + held_by[name][::-1], [], 0
        elif kind < 0.15 and free:
            call, due = partial(pool.free, [*held_by[name], free[-1]]), ["ValueError"]  # the last one is already free
        else:
            call, needed = partial(tables[name].append, count), len(range(0, tokens[name] + count, size))
            new = needed - len(held_by[name])
            reasons = {"ValueError": count < 0, "TableFull": needed > limit, "OutOfBlocks": new > len(free)}
            due = [error for error, applies in reasons.items() if applies]
            if not due:
                held_by[name], free, tokens[name] = held_by[name] + free[:new], free[new:], tokens[name] + count
        raised = None
        try:
            call()
        except (ValueError, TableFull, OutOfBlocks) as error:
            raised = type(error).__name__
            refused += 1
        expected = due or [None]
        assert raised in expected, f"table {name}, count {count}: expected one of {expected}, but got {raised}"
        assert list(pool.free_queue) == free, "different free queue"
        assert set(pool.used) == {block for blocks in held_by.values() for block in blocks}, "different `used`"
        for name, table in tables.items():
            assert (list(table.blocks), table.num_tokens) == (held_by[name], tokens[name]), f"different table of {name}"
            slots = [block * size + offset for block in held_by[name] for offset in range(size)][: tokens[name]]
            assert slot_mapping(table.blocks, size, 0, tokens[name]).tolist() == slots, f"different slots of {name}"
    return refused


for seed in (0, 1, 2):
    print(f"run {seed}: 3,000 calls, {random_run(seed)} correctly refused; state equal to the test model's after each")

# %% [markdown]
"""
### How many blocks are there?

`block_bytes(config, block_size, bytes_per_element)` returns the size of one block in bytes, where `bytes_per_element`
is 4 for float32 and 2 for bfloat16.

**Exercise 03.5** (optional). Write `blocks_in_budget(config, block_size, budget_bytes, bytes_per_element=4)`. It
returns how many whole blocks fit, as an `int`. The budget may be a float, as in "90% of what is free". A block size
below 1 or a negative budget raises `ValueError`. Example: a block of the bundled model with 16 tokens takes 131,072
bytes, so 2 blocks fit in 300,000 bytes.
"""

# %% exercise="03.5"
from lessons_lib.kv_cache.block_memory import blocks_in_budget

# %%
llama = LlamaConfig(hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8)
for what, config, budget, bytes_per_element in (
    ("bundled model, float32, 4 MiB", model.config, BUDGET, 4),
    ("Llama 3 with 8 billion parameters, bfloat16, 40 GiB", llama, 40 * 2**30, 2),
):
    count, each = blocks_in_budget(config, 16, budget, bytes_per_element), block_bytes(config, 16, bytes_per_element)
    print(f"{what}: {each:,} bytes per block of 16, {count:,} blocks, room for {16 * count:,} tokens")

# %% [markdown]
"""
### The six stories, block by block

`replay` repeats the recorded run of the six stories on your pool and your tables. You get one picture for
each request that starts, takes a block, or finishes, and one for each step in which no request does. The view opens
where A finishes. In the next picture F starts, and takes the first blocks of the free queue. Also look at the end of
the queue after a request has finished: its blocks are there, the last one first.
"""

# %%
states = replay(six.trace, BlockPool(24, 16), BlockTable)
a_finishes = next(i for i, state in enumerate(states) if ": A has finished" in state.event)
Stepper(lambda i: draw_pool(states[i]), count=len(states), label="picture", start=a_finishes, still=a_finishes + 1)

# %% [markdown]
"""
### Rows, oracle and blocks side by side

The 32 requests again, with eight batch slots. With the oracle, a request gets its piece in the first gap that is large
enough, or else at the end. We count only the steps in which requests wait, because that's when an
empty slot hurts. As memory in use, we count all slots from slot 0 to the last reserved one.
"""

# %%
many_held = tokens_held(many.trace)
many_final = final_tokens(many_held)
many_oracle = contiguous_use(many_held, many_final)


def while_queued(uses, trace):
    """Only the steps in which requests wait in the queue."""
    return [use for use, step in zip(uses, trace.steps) if step.waiting]


def shares(uses):
    """Shares of the memory that hold no token, averaged over the steps: later, never, gaps."""
    num_slots = sum(use.slots for use in uses)
    return [f"{sum(getattr(use, kind) for use in uses) / num_slots:.0%}" for kind in ("later", "never", "gaps")]


layouts = {"rows of 256": contiguous_use(many_held, dict.fromkeys(many_final, 256)), "one piece, oracle": many_oracle}
SIZES = (1, 4, 8, 16, 32, 64)
layouts |= {f"blocks of {size}": paged_use(many_held, size) for size in SIZES[::-1]}
layouts = {name: while_queued(uses, many.trace) for name, uses in layouts.items()}
Table(
    columns=["layout", "used later", "never used", "in gaps", "wasted"],
    rows=[
        [name, *shares(layouts[name]), f"{waste(layouts[name]):.0%}"]
        for name in ("rows of 256", "one piece, oracle", "blocks of 64", "blocks of 16", "blocks of 1")
    ],
    caption='32 requests, while some wait. "Used later", in blocks: slots of the last block that will be filled.',
)

# %% [markdown]
"""
The last column counts everything that holds no token, as the paper behind this lesson does (Kwon et al., 2023). In its
experiments with contiguous memory, only 20.4 to 38.2% of the memory held tokens; the rest was wasted.

Of the three losses, the oracle removes only "never used". Blocks of 16 waste less than half of what the oracle wastes,
and they need no oracle: each request wastes less than one block. Even blocks of 64, longer than most of these requests,
waste only a little more than the oracle. Smaller blocks waste less, down to nothing with one token per block.
Why not use those? "What small blocks cost" counts and times it.

### A request that fits nowhere

The run of the 32 requests, with the oracle: which requests had to go to the end, although the gaps together had room?
"""

# %%
too_small, seen = [], set()  # the requests that go to the end although the gaps together have room, and their steps
for i, use in enumerate(many_oracle):
    last = use.regions[-1]
    if last.request not in seen and use.gaps >= last.size:
        too_small.append((last, i))
    seen.update(region.request for region in use.regions)
last, i = too_small[-1]
print(
    f"{len(too_small)} of 32 requests went to the end although the gaps together had room. The last one is request "
    f"{last.request}:"
)
print(
    f"it needs {last.size} slots in one piece; the gaps have {many_oracle[i].gaps}; {len(many.trace.steps[i].waiting)} "
    "more requests wait"
)
draw_memory(many_oracle, i, title=f"Request {last.request} has started")

# %% [markdown]
"""
### Which end of a request goes into the queue first?

A owns all three blocks of a pool, all full, and finishes. Then two blocks are allocated. How many of A's blocks can a
request with the same beginning still reuse?
"""


# %%
def blocks_left(order):
    """A owned blocks 0, 1, 2 of a pool of three. They are freed in this order; then two blocks are allocated."""
    pool = BlockPool(3, 16)
    pool.allocate(3)
    for block in order:
        pool.free([block])
    pool.allocate(2)
    return list(pool.free_queue)


for what, order in (("tail first", [2, 1, 0]), ("beginning first", [0, 1, 2])):
    left = blocks_left(order)
    reusable = sum(set(range(block + 1)) <= set(left) for block in left)  # with all the blocks before it
    print(f"{what}: of A's blocks, {left} is left; reusable for a request with the same beginning: {reusable}")

# %% [markdown]
"""
With the tail first, block 0 survives, which holds A's first 16 tokens. In the other order it's block 2, with the keys
of tokens 32 to 47, which the look-up never reaches.

### Shouldn't it be under 4%?

The vLLM project reports less than 4% waste for paging. Ours is several times that at block size 16. Is something
wrong?

Every request leaves part of its last block empty. If 0 to 15 empty slots are equally likely, that's (16 − 1) / 2 =
7.5 slots on average, for short requests and long ones alike. So the percentage depends on how many tokens a request
holds. The paper gives the average lengths of its two workloads: ShareGPT (people's conversations with ChatGPT) and
Alpaca (short instructions). For each of them we take one request with an average prompt and an average answer, and
let it grow. We compare them with our runs, now over all steps:
"""


# %%
def grown(prompt, answer, block_size=16):
    """Waste of one request that grows from its prompt to its end, token by token, and its average number of tokens."""
    steps = [{"X": tokens} for tokens in range(prompt, prompt + answer)]
    return waste(paged_use(steps, block_size)), mean(step["X"] for step in steps)


def rule(tokens, block_size=16):
    """Expected waste of a request with this many tokens: (block_size - 1) / 2 empty slots."""
    empty = (block_size - 1) / 2
    return empty / (empty + tokens)


rows = []
for name, run in (("32 requests", many_held), ("six stories", held)):
    tokens = mean(tokens for now in run for tokens in now.values())
    rows.append([f"ours, {name}", tokens, f"{waste(paged_use(run, 16)):.1%}", f"{rule(tokens):.1%}"])
for name, prompt, answer in (("Alpaca, average request", 19, 58), ("ShareGPT, average request", 161, 338)):
    share, tokens = grown(prompt, answer)
    rows.append([name, tokens, f"{share:.1%}", f"{rule(tokens):.1%}"])
enough = next(n for n in range(1, 10_000) if rule(n) < 0.04)
print(f"by the rule, the waste is below 4% for requests that hold {enough} tokens or more")
Table(
    columns=["requests", "tokens held on average", "wasted, counted", "wasted, by the rule"],
    rows=rows,
    caption="Waste in blocks of 16 over whole runs, all steps. Rule: 7.5 empty slots per request. "
    "Lengths of Alpaca and ShareGPT: Kwon et al., figure 11",
)

# %% [markdown]
"""
The rule explains all four rows. With requests as long as those of ShareGPT, blocks of 16 waste less than
4%. With Alpaca's short instructions, and with our short requests, they waste more. So "under 4%" is a statement
about requests that hold at least the number of tokens printed above the table. (Here one average request stands for a
whole workload. In a real one, long requests run longer, so more of the running requests are long, and the percentage
is smaller still.)

One thing doesn't depend on the length: each request wastes less than one block, and no oracle is needed.

### What small blocks cost

Then why not use one token per block? Each block is an entry in a table: an id that has to be allocated, freed, and
looked up. Counted on the 32 requests:
"""

# %%
ends = many_final.values()
Table(
    columns=["block size", "wasted", "table entries for 1,024 tokens", "blocks allocated per 100 tokens"],
    rows=[
        [
            str(size),
            f"{waste(layouts[f'blocks of {size}']):.0%}",
            blocks_for(1024, size),
            100 * sum(blocks_for(tokens, size) for tokens in ends) / sum(ends),
        ]
        for size in SIZES
    ],
    caption="The price of small blocks, counted",
)

# %% [markdown]
"""
The keys also have to be read. With the block table as an index, torch gathers the blocks of 1,024 tokens into one
tensor: `keys[table]`. We time this for one layer of the bundled model, with the blocks in random order, and compare
it with copying the same number of keys from contiguous memory.
"""


# %% tags=["measured"]
def gather_times(tokens=1024, num_slots=65_536, rounds=61):
    """Median seconds to read the keys of these tokens, in one piece and in blocks. The layouts alternate."""
    rng, heads, head_dim = random.Random(0), model.config.num_key_value_heads, model.config.head_dim
    pool = torch.randn(num_slots, heads, head_dim)
    reads = {"one piece": lambda: pool[:tokens].clone()}
    for block_size in SIZES:
        keys = pool.view(num_slots // block_size, block_size, heads, head_dim)
        table = torch.tensor(rng.sample(range(len(keys)), blocks_for(tokens, block_size)))
        reads[f"blocks of {block_size}"] = lambda keys=keys, table=table: keys[table]
    seconds = {way: [] for way in reads}
    for _ in range(rounds):
        for way, read in reads.items():
            started = perf_counter()
            read()
            seconds[way].append(perf_counter() - started)
    return {way: median(taken) for way, taken in seconds.items()}


taken = gather_times()
Table(
    columns=["keys of 1,024 tokens", "µs", "× one piece"],
    rows=[[way, 1e6 * seconds, seconds / taken["one piece"]] for way, seconds in taken.items()],
    caption="Reading keys through a block table, one layer, on this machine",
)

# %% [markdown]
"""
On a CPU, the block size matters little, except for the smallest blocks. But any gather costs more than copying one
contiguous piece. On a GPU, small blocks cost more: according to the paper (section 7.2), reading them doesn't use
all of the GPU's parallelism. The paper finds 16 large enough for the GPU and small enough for little waste. Its
attention kernel, a GPU program that reads keys through a block table, took 20 to 26% longer than one that reads
contiguous keys (section 7.1). Lessons 06 to 08 show how to read blocks without gathering them first.

### How fast is the allocator?

It runs between two steps of the model, while the GPU waits. To see what the free queue is worth, here is a pool
without one. It has a list of flags, one per block, and searches it for the first free block.
"""


# %%
class ScanningPool:
    """Finds a free block by checking one flag after the other."""

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
def operations_per_second(make_pool, num_blocks, rounds):
    """A pool that is 90% full: free one block, allocate one, over and over. Two operations per round."""
    pool, rng = make_pool(num_blocks, 16), random.Random(0)
    held = pool.allocate(num_blocks * 9 // 10)
    picks = [rng.randrange(len(held)) for _ in range(rounds)]
    started = perf_counter()
    for pick in picks:
        pool.free([held[pick]])
        (held[pick],) = pool.allocate(1)
    return 2 * rounds / (perf_counter() - started)


rows = []
for num_blocks in (100, 1000, 10_000):
    queue = median(operations_per_second(BlockPool, num_blocks, 20_000) for _ in range(5))
    scan = median(operations_per_second(ScanningPool, num_blocks, 2_000_000 // (num_blocks + 900)) for _ in range(5))
    rows.append([f"{num_blocks:,} blocks", queue, scan, f"{queue / scan:.1f} ×"])
Table(
    columns=["pool", "free queue: operations/s", "scanning: operations/s", "ratio"],
    rows=rows,
    caption="Allocate and free, one block at a time, with 90% of the pool in use. Median of five runs on this machine",
)

# %% tags=["measured"]
operation = 1 / queue  # in the largest pool
step = median(step.seconds for step in six.trace.steps)
print(f"one operation takes {1e6 * operation:.1f} µs, one step of the six stories {1000 * step:.1f} ms")
print(f"a step takes as long as {step / operation:,.0f} operations")

# %% [markdown]
"""
Read down the columns of the table. With the queue, the speed changes little as the pool grows. With scanning, ten
times the blocks means about a tenth of the operations per second, because each call walks past the allocated blocks
until it finds a free one. The pool that we computed for Llama 3 has more blocks than any in this table.

The numbers for the queue include its checks against misuse; the scanning pool has almost none. One operation on the
queue takes little time compared with a step of the model.

## References

- W. Kwon et al.: *Efficient Memory Management for Large Language Model Serving with PagedAttention*, SOSP 2023:
  section 3.1 on the three kinds of waste, figure 2 for 20.4 to 38.2%, section 4 on blocks and tables, figure 11 for the
  lengths, section 7.1 on the attention kernel, section 7.2 on the block size. <https://arxiv.org/abs/2309.06180>
- vLLM team: *vLLM: Easy, Fast, and Cheap LLM Serving with PagedAttention*, 2023, for "under 4%".
  <https://blog.vllm.ai/2023/06/20/vllm.html>
- vLLM: `vllm/v1/core/block_pool.py`, `kv_cache_utils.py`, `single_type_kv_cache_manager.py`,
  and `vllm/v1/worker/block_table.py`. <https://github.com/vllm-project/vllm>
- Hugging Face transformers: `src/transformers/generation/continuous_batching/cache_allocators/`.
  <https://github.com/huggingface/transformers>
- T. Kilburn et al.: *One-Level Storage System*, IRE Transactions on Electronic Computers, 1962: paging, on the Atlas
  computer. <https://doi.org/10.1109/TEC.1962.5219356>
"""
