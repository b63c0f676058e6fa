# %% [markdown]
"""
# 03 · A block allocator

![A pool of blocks in the colors of their requests, and four block tables](../lessons_lib/assets/openings/03.svg)

**How can requests share one cache when we don't know how long each of them will get?**

90 minutes · difficulty: medium · routes: ideas, kernels, serving · prerequisites: lesson 00 (KV cache) and lesson 02
(slots)

In lesson 02, every batch slot reserved a row of cache for the longest request that might come. Here you build what
serving systems use instead: a pool of small blocks, and for each request a table of the blocks that it owns. They serve
32 requests from 4 MiB of cache, and you decide when a server admits a request. We only count tokens in the cache;
lesson 06 fills the blocks with keys and values.
"""

# %% folded=true
from statistics import mean, median

import torch

from lessons_lib.batching import batch_generate
from lessons_lib.checks import check, hint, predict, progress, quiz, reset, reveal, solution
from lessons_lib.checks.lesson_03.scoreboard import admission_scoreboard
from lessons_lib.kv_cache import block_bytes, block_pool as reference, blocks_for
from lessons_lib.kv_cache import blocks_in_budget
from lessons_lib.kv_cache import serve_in_blocks, step_in_blocks, step_with_oracle
from lessons_lib.measuring import MAX_NEW_TOKENS, NAMES, PROMPTS, skewed_workload
from lessons_lib.models import cache_bytes_per_token, load_model
from lessons_lib.recording import contiguous_use, final_tokens, record_run, replay, tokens_held
from lessons_lib.viz.by_hand import pool_by_hand
from lessons_lib.viz.cache import draw_memory
from lessons_lib.viz.charts import line_chart
from lessons_lib.viz.pool import watch_paging
from lessons_lib.viz.tables import Table

# %%
model, tokenizer = load_model(device="cpu")  # float32: 4 bytes per element in the cache
prompt_tokens = {name: len(tokenizer(prompt).input_ids)
                 for name, prompt in zip(NAMES, PROMPTS)}

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
    batch_generate, model, tokenizer, PROMPTS, max_new_tokens=MAX_NEW_TOKENS, names=NAMES,
    batch_size=4, max_seq_len=256
)
held = tokens_held(six.trace)
final = final_tokens(held)
longest_possible = contiguous_use(held, {name: 256 for name in NAMES})
draw_memory(longest_possible, 24, title="256 cache slots for every request", num_slots=1024)

# %% [markdown]
"""
Solid color: the slot holds a token. Pale: reserved, and the request will use
it later. Hatched: reserved, and never used.

> **reservation**: memory set aside for a request when it starts, for tokens that it doesn't have yet.

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
Even with an oracle, half of C's piece is empty on average.

A second loss shows up when many requests come and go: a request that finishes leaves a gap of its own size, and the
next one may be larger.

> **external fragmentation**: free memory in gaps between reservations, none of them large enough for the next request.

## The idea: small blocks, and a table

First, cut the memory into blocks of one size. Second, let a request own *any* of them, and keep a table that says
which.

> **block**: a fixed number of neighboring cache slots, here 16: what is allocated at a time.

> **block table**: a request's list of its blocks, in the order of its tokens.

These are the four rows of the picture above, after 25 steps. Step on, and they become blocks, wherever some are free:
"""

# %%
now = {region.request: region.tokens for region in longest_possible[24].regions}
watch_paging({name: prompt_tokens[name] for name in now}, now, row=256, block_size=16)

# %% [markdown]
"""
## Build 1: the pool

> **block pool**: all blocks of the cache, with a record of which are free and which are allocated.

> **free queue**: the free blocks, in the order in which they will be allocated.

The pool works only with block *ids*, 0, 1, 2, ... It keeps two containers:

- `free_queue`, a `deque`: the free blocks.
- `used`, a set: the allocated blocks.

Every block is in exactly one of the two. The cost of `allocate` and `free` must depend on the number of blocks moved,
not on the size of the pool.

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
text, it can use the keys in them (lesson 11), but only up to the first block that has been overwritten. So a request's
beginning should survive longest.

## How requests use the blocks

> **paging**: storing data in blocks of one size that may be anywhere in memory, with a table that says where each one
> is. Operating systems manage the memory of programs this way; they call a block a page.

A request takes a block when a token needs it, and any free block will do. So it leaves less than one block empty,
however long it grows. Here is a small pool. Append tokens, free A, and watch where the next request's blocks come from.
Ask for more than the pool has.
"""

# %%
pool_by_hand(12, 4, calls=[("A", 6), ("B", 9), ("A", 5)])

# %% [markdown]
"""
Each box is a block, divided into its cache slots. A hatched slot is empty, and only its request can fill it. The block
tables say where the tokens are: A's first eight are in blocks 0 and 1, the next three in block 5.

The oracle left half of C's slots empty. And blocks? `blocks_for(num_tokens, block_size)` returns the number of blocks
that these tokens need. (It's exercise 03.2.)
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
- too few free blocks: don't catch the pool's `OutOfBlocks`.

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

If A's blocks are 0, 8 and 12, position 40 is in its third block, block 12, after eight other slots: slot 12 × 16 + 8 =
200.

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

Now something is stored: one number for each cache slot, in place of a key. A stores 1000,
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
    keys[slot_mapping(table.blocks, 16, 0,
                      table.num_tokens)] = first + torch.arange(table.num_tokens)
old_blocks = list(tables["A"].blocks)
print("A reads its positions 14 to 18:", keys[slot_mapping(old_blocks, 16, 14, 19)].tolist())
print("B reads its positions 46 to 50:",
      keys[slot_mapping(tables["B"].blocks, 16, 46, 51)].tolist())

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
After A has left, its table is worth nothing. A's last block went into the free
queue first, so C's first tokens are in it: positions 16 to 18 read C's first three numbers. Positions 14 and 15 read
A's own, which nothing has overwritten yet. Only the tables say whose a number is.

Is all of that right over a whole run? We replay a run of 32 other requests, with your pool and tables and with the
reference, and compare the pool and all tables after every change.
"""

# %%
load = skewed_workload(32)
names = [str(index) for index in range(32)]
how = dict(max_new_tokens=load.max_new_tokens, names=names, batch_size=8, max_seq_len=256)
many = record_run(batch_generate, model, tokenizer, load.prompts, **how)
for size in (1, 16, 64):
    same = replay(many.trace, BlockPool(500, size),
                  BlockTable) == replay(many.trace, reference.BlockPool(500, size))
    print(f"blocks of {size}: the same pool and tables as the reference after every "
          f"change: {same}")

# %% [markdown]
"""
## Serve requests from the blocks

How many blocks are there? As many as fit in the memory that is left after loading the weights: `blocks_in_budget`
divides. (It's exercise 03.5.)
"""

# %%
BUDGET = 4 * 2**20
count = blocks_in_budget(model.config, 16, BUDGET)
print(f"a block of 16 takes {block_bytes(model.config, 16):,} bytes: "
      f"4 MiB has {count} blocks, for {16 * count} tokens")

# %% [markdown]
"""
Now your parts serve requests. `step_in_blocks` is one step of a server, with these rules, in this order:

1. **Leave.** Finished requests release their tables.
2. **Grow.** Each running request stores one token more. If a token needs a block and none is free, the request that was
   admitted *last* releases its table and goes back to the queue, to start over.
3. **Admit.** First come, first served: the next request is admitted if its whole prompt fits in the free blocks.

The step is given. (Writing it is exercise 03.6.)

## Measure: rows against blocks

32 requests are waiting, and the bundled model has 4 MiB for its cache, cut into rows or into blocks.

`serve_in_blocks` calls the step until all requests are finished. It serves rows, too: **a row of 256 slots is a block
of 256**, and a request never needs a second one.

**03.c** Predict from the numbers that the next cell prints: in blocks of 16, after how many steps are all 32 requests
done? Within 25% is a hit.
"""

# %%
lengths = [(len(tokenizer(prompt).input_ids), len(output))
           for prompt, output in zip(load.prompts, many.outputs)]
answers = sorted(answer for _, answer in lengths)
token_bytes = cache_bytes_per_token(model.config)
print(f"one cache slot takes {token_bytes:,} bytes, "
      f"so 4 MiB has {BUDGET // token_bytes} slots")
print(f"that is {BUDGET // (256 * token_bytes)} rows of 256 slots, "
      f"or {BUDGET // (16 * token_bytes)} blocks of 16")


def serve(size, step=step_in_blocks, num_blocks=None):
    """The 32 requests in 4 MiB, cut into blocks of this size, or in so many blocks."""
    pool = BlockPool(num_blocks or blocks_in_budget(model.config, size, BUDGET), size)
    return serve_in_blocks(lengths, pool, BlockTable, step)


served = {"rows of 256": serve(256), "oracle": serve(1, step_with_oracle)}
served |= {f"blocks of {size}": serve(size) for size in (64, 16, 1)}
rows, blocks = served["rows of 256"], served["blocks of 16"]
print(f"in rows, {max(step.running for step in rows)} requests run at once; "
      f"all 32 are done after {len(rows)} steps")
queued = [step for step in blocks if step.waiting]
tokens = mean(step.tokens / step.running for step in queued)
print(f"in blocks of 16, a running request holds {tokens:.0f} tokens on average, "
      "while others wait")
print(f"the answers have {answers[0]} to {answers[-1]} tokens, "
      f"{median(answers):.0f} in the middle")

# %%
predict("03.c", ...)  # steps until all requests are done, in blocks of 16

# %%
reveal("03.c", len(blocks), unit="steps", tolerance=0.25)
print(f"while others wait, {mean(step.running for step in queued):.1f} requests run at "
      "once on average")
for name, steps in (("rows", rows), ("blocks of 16", blocks)):
    last = max(number for number, step in enumerate(steps, 1) if step.waiting)
    print(f"in {name}, no request waits any more after step {last}")

done = [float("nan")] * (len(rows) - len(blocks))  # the curve ends when all requests are done
curves = {"rows of 256": [step.running for step in rows],
          "blocks of 16": [step.running for step in blocks] + done}
told = (f"Rows: at most 2 requests, done after {len(rows)} steps. "
        f"Blocks: all done after {len(blocks)} steps.")
line_chart(
    range(1, len(rows) + 1), curves, xlabel="step", ylabel="requests that run",
    title="Requests that run at once",
    alt=told,
)  # fmt: skip


# %%
def compare(served):
    """A table of these ways to serve the 32 requests."""
    rows = []
    for name, steps in served.items():
        held = mean(step.tokens for step in steps if step.waiting) / 512
        most, restarts = max(step.running
                             for step in steps), sum(step.restarted for step in steps)
        rows.append([name, len(steps), most, f"{held:.0%}", restarts])
    columns = ["cache", "steps until all are done", "most at once",
               "slots with a token, while others wait", "restarts"]
    caption = ("The same 32 requests in about 4 MiB. "
               "A restarted request loses all its blocks and tokens")
    return Table(columns, rows, caption)


compare(served)

# %% [markdown]
"""
In rows, only two requests run at a time, and most of each row stays empty. In blocks of 16, about 16 run at once: each
holds 24 tokens on average and leaves about half a block empty, and 512 / (24 + 7.5) is 16. So the queue is gone in less
than a tenth of the steps. Then the curve falls: the long answers go on alone. (The longest answer
takes 129 steps, after it has waited.)

The oracle knows the length of each answer, and reserves all of it. It needs more steps than blocks of 16, which know
nothing in advance: half of its cache is empty, as half of C's piece was.

Each step reads the weights once, however many requests run, so fewer steps mean a faster server. (Blocks of 1
need the fewest. But each block is an entry in a table, and a GPU reads many small pieces slowly: Kwon et al., section
7.2, found 16 large enough.)

## Decide: when is a request admitted?

Blocks have a price: the restarts in the table. An answer grows, no block is free, and the request that was admitted
last starts over: its reader sees the answer stop.

A server can be safe instead. Each request names a *limit*, the most tokens that its answer may have
(`max_new_tokens`). A request is admitted only if it and all running requests have room up to their limits. Nothing ever
starts over. But most answers end early, and the room kept for them stays empty.

Let a restart cost as much as ten steps. The check serves 300 requests that you can't see. With rule 3 of the step,
which admits a request as soon as its prompt fits (the *bold* rule), that takes 3,387 steps and 622 restarts, and costs
9,607. The safe rule costs 6,072, all of it steps.

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
free blocks for each running request, and costs 4,022. Other rules come close.

What is best depends on the price, and that is a decision, too. If a restart cost only one step, the bold rule would
cost 4,009, and beat the safe one.

## What production does

- **vLLM** has your pool under the same name: `BlockPool` in `vllm/v1/core/block_pool.py`. Its free queue,
  `FreeKVCacheBlockQueue` in `kv_cache_utils.py`, is a doubly linked list instead of a `deque`: a block that a request
  can reuse is removed from the *middle* without a search. `free` in `single_type_kv_cache_manager.py` frees the tail
  first, as yours does.
- vLLM's `compute_slot_mapping` does what your `slot_mapping` does: `BlockTable` in `vllm/v1/worker/block_table.py`.
- **Hugging Face transformers** has blocks, too: `CachePool` in `generation/continuous_batching/cache_allocators/`.

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
## References

- W. Kwon et al.: *Efficient Memory Management for Large Language Model Serving with PagedAttention*, SOSP 2023: section
  3.1 on the three kinds of waste, section 4 on blocks and tables, section 7.2 on the block size.
  <https://arxiv.org/abs/2309.06180>
- vLLM: `vllm/v1/core/block_pool.py`, `kv_cache_utils.py`, `single_type_kv_cache_manager.py`, and
  `vllm/v1/worker/block_table.py`. <https://github.com/vllm-project/vllm>
- Hugging Face transformers: `src/transformers/generation/continuous_batching/cache_allocators/`.
  <https://github.com/huggingface/transformers>
- T. Kilburn et al.: *One-Level Storage System*, IRE Transactions on Electronic Computers, 1962: paging, on the Atlas
  computer. <https://doi.org/10.1109/TEC.1962.5219356>
"""

# %% [markdown] folded=true
"""
## Further (optional)

Nothing here is needed for the lesson, and its 90 minutes don't include it.

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

# %% [markdown]
"""
### How many blocks does a request need?

**Exercise 03.2** (optional). Write `blocks_for(num_tokens, block_size)`. It returns the number of blocks that hold that
many tokens, as an `int`: as many as needed, and not one more. There are 0 tokens or more, and the block size is 1 or
more. Examples: B's prompt of 62 tokens needs 4 blocks of 16 (16 + 16 + 16 + 14), C's prompt of 3 tokens needs 1.
"""

# %% exercise="03.2"
from lessons_lib.kv_cache.block_pool import blocks_for

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
