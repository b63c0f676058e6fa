# %% [markdown]
"""
# 03 · A block allocator

![A pool of blocks in the colors of their requests, and four block tables](../lessons_lib/assets/openings/03.svg)

**How can requests share one cache when we don't know how long each of them will get?**

75 minutes · difficulty: medium · routes: ideas, kernels, serving · prerequisites: lesson 00 (KV cache) and lesson 02
(slots)

In lesson 02, every batch slot reserved a row of cache for the longest request that might come. Here you build what
serving systems use instead, and serve 32 requests from 4 MiB of cache. We only count tokens; lesson 06 fills the cache
with keys and values.
"""

# %% folded=true
from statistics import mean

import torch

from lessons_lib.batching import batch_generate
from lessons_lib.checks import check, hint, predict, progress, quiz, reset, reveal, solution
from lessons_lib.checks.lesson_03.scoreboard import admission_scoreboard, draw_free_blocks
from lessons_lib.kv_cache import BlockPool, blocks_for, blocks_in_budget
from lessons_lib.kv_cache import serve_in_blocks, step_with_oracle
from lessons_lib.measuring import MAX_NEW_TOKENS, NAMES, PROMPTS, skewed_workload
from lessons_lib.models import cache_bytes_per_token, load_model
from lessons_lib.recording import record_run, tokens_held
from lessons_lib.viz.by_hand import pool_by_hand
from lessons_lib.viz.pool import draw_one_slot, watch_paging
from lessons_lib.viz.tables import Table

# %%
model, tokenizer = load_model(device="cpu")  # float32: 4 bytes per element in the cache
prompt_tokens = {name: len(tokenizer(prompt).input_ids)
                 for name, prompt in zip(NAMES, PROMPTS)}
six = record_run(
    batch_generate, model, tokenizer, PROMPTS, max_new_tokens=MAX_NEW_TOKENS, names=NAMES,
    batch_size=4, max_seq_len=256
)
held = tokens_held(six.trace)

# %% [markdown]
"""
## The problem: memory reserved for tokens that never come

> **cache slot**: room in the KV cache for the key and value of one token, in all layers.

From here on, *slot* alone means a cache slot; lesson 02's row of the batch is a *batch slot*.

Below are lesson 02's four rows after 25 steps of the six stories: 256 slots each, most of them empty.

> **reservation**: memory set aside for a request when it starts, for tokens that it doesn't have yet.

> **internal fragmentation**: memory that belongs to a request and that it never uses, such as the end of its row.

If requests reserve different sizes, one that finishes leaves a gap that the next may not fit into.

> **external fragmentation**: free memory in gaps between reservations, none of them large enough for the next request.

## The idea: small blocks, and a table

Cut the memory into blocks of one size. Let a request own *any* of them, and keep a table that says which.

> **block**: a fixed number of neighboring cache slots, here 16: what is allocated at a time.

> **block table**: a request's list of its blocks, in the order of its tokens.

Step on, and the rows become blocks:
"""

# %%
now = {name: tokens for name, tokens in held[24].items() if tokens}
watch_paging({name: prompt_tokens[name] for name in now}, now, row=256, block_size=16)

# %% [markdown]
"""
> **paging**: storing data in blocks of one size that may be anywhere in memory, with a table that says where each one
> is. Operating systems manage the memory of programs this way; they call a block a page.

> **block pool**: all blocks of the cache, with a record of which are free and which are allocated.

> **free queue**: the free blocks, in the order in which they will be allocated.

Append tokens to a small pool, free A, and watch where the next blocks come from. Ask for more than there is.
"""

# %%
pool_by_hand(12, 4, calls=[("A", 6), ("B", 9), ("A", 5)])

# %% [markdown]
"""
Only its request can fill a hatched slot. A's first eight tokens are in blocks 0 and 1, the next three in block 5.

How much stays empty? Story C grows from 3 tokens to 102. An oracle that knew this would reserve exactly 102 slots.
`blocks_for(num_tokens, block_size)` is the number of blocks that these tokens need.
"""

# %%
grows = range(3, 103)  # the tokens of C, step by step
oracle = 1 - mean(grows) / 102
empty = 1 - sum(grows) / sum(16 * blocks_for(tokens, 16) for tokens in grows)
print(f"C's slots that are empty, on average: {oracle:.0%} with an oracle, "
      f"{empty:.0%} in blocks of 16")

# %% [markdown]
"""
Blocks know nothing in advance and waste far less: about half of C's last block.

## Build 1: the block table

The pool is given (exercise 03.5 is to write it). It puts freed blocks at the end of its queue, last block first, and
doesn't erase them. So a request's beginning survives longest, and lesson 11 reuses it for requests with the same
beginning.

**Exercise 03.1.** A block table belongs to one request. It has

- `blocks`: the list of its block ids, in the order of the tokens,
- `num_tokens`: the number of tokens stored,
- `pool`: the pool that the blocks come from, with the block size in `pool.block_size`.

`release()` is given. Write `append(count=1)`, which makes room for `count` more tokens (0 or more). It fills the last
block first, and allocates only the blocks that are missing. You have `blocks_for`, and `pool.allocate(count)`, which
returns a list of block ids. With blocks of 16 and an empty table, `append(62)` takes 4 blocks; `append(2)` fills the
last of them; `append()` takes a fifth, for the 65th token; and `append(0)` changes nothing.

If too few blocks are free, `allocate` raises `OutOfBlocks` and takes none. Don't catch it: the caller decides what to
do. A negative `count` is the caller's mistake: raise `ValueError`. In both cases nothing has changed.
"""

# %% exercise="03.1" given="__init__ release"
from lessons_lib.kv_cache.block_table import BlockTable

# %% [markdown]
"""
## Build 2: from positions to cache slots

The **position** of a token is its index in its own sequence, from 0. The model will ask: where does the key of A's
token at position 9 go?
"""

# %%
draw_one_slot("A", [0, 1, 5], block_size=4, position=9, num_blocks=6)

# %% [markdown]
"""
> **slot mapping**: for each token, the index of the cache slot for its key and value, counted over the whole pool.

**Exercise 03.2.** Write `slot_mapping(blocks, block_size, start, end)`. It returns the slots of positions `start`,
`start + 1`, ..., `end - 1`, as an int64 tensor of shape `[end - start]`. `blocks` is a list of ints. Example:
`slot_mapping([5, 2], 4, 2, 6)` is `tensor([22, 23, 8, 9])`. A prefill can need hundreds of positions in one step, so
don't loop over them.

Raise `IndexError` unless 0 ≤ `start` ≤ `end` ≤ the number of slots in the table. PyTorch wouldn't: it reads index -1
as the last entry. An empty range, `start == end`, gives an empty tensor.
"""

# %% exercise="03.2"
from lessons_lib.kv_cache.cache_slots import slot_mapping

# %% [markdown]
"""
In place of keys, A stores 1000, 1001, …, and B 2000, 2001, …, through their tables.
"""

# %%
pool = BlockPool(6, 16)
tables = {name: BlockTable(pool) for name in "AB"}
for name, count in (("A", 13), ("B", 62), ("A", 10)):
    tables[name].append(count)
for name, table in tables.items():
    print(f"{name}: {table.num_tokens} tokens in blocks {list(table.blocks)}")

keys = torch.zeros(6 * 16, dtype=torch.int64)
for table, first in ((tables["A"], 1000), (tables["B"], 2000)):
    mapping = slot_mapping(table.blocks, 16, 0, table.num_tokens)
    keys[mapping] = first + torch.arange(table.num_tokens)
old_blocks = list(tables["A"].blocks)
read = slot_mapping(old_blocks, 16, 14, 19)
print("A's positions 14 to 18 are in slots", read.tolist(), "and read", keys[read].tolist())

# %% [markdown]
"""
Position 16 starts a new block, which comes after B's in memory.

Then A leaves, and C comes with 20 tokens and stores 3000, 3001, … Suppose that a bug makes A read positions 14 to 18
through its *old* table.

**03.a** How many of these five numbers are still A's own?
"""

# %%
predict("03.a", ...)

# %%
tables["A"].release()
tables["C"] = BlockTable(pool)
tables["C"].append(20)
keys[slot_mapping(tables["C"].blocks, 16, 0, 20)] = 3000 + torch.arange(20)
print(f"C's blocks: {tables['C'].blocks}; A's were {old_blocks}")
stale = keys[slot_mapping(old_blocks, 16, 14, 19)].tolist()
print("A's old table reads 14 to 18:", stale)
reveal("03.a", sum(1000 <= number < 2000 for number in stale), how="Counted")

# %% [markdown]
"""
A's last block went into the free queue first, so C's first tokens are in it. Positions 14 and 15 still read A's own
numbers: nothing has overwritten them yet. Only a table says which request a number belongs to.

## Build 3: serve requests from the blocks

A server runs in steps, as in lesson 02. What is new: a running request may need a block when none is free.

**Exercise 03.3.** Write `step_in_blocks(waiting, running, pool)`. `waiting` is a deque, and `running` a list in order of
admission. Change both in place; nothing reads what you return. A request has `prompt_tokens` and its own block `table`,
empty at first. `request.finished` says whether its table holds all tokens that it ever needs. One step has three parts:

1. **Leave.** Finished requests leave `running`, and their blocks are free for the others.
2. **Grow.** Each running request stores one more token, in order of admission. If the token needs a block and none is
   free, the request that was admitted *last* releases its table and goes back to the front of `waiting`, to start over.
   That may be the very request that needs the block.
3. **Admit.** First come, first served: as long as the whole prompt of the next request fits in the free blocks
   (`pool.free_queue`), it is admitted and stores its prompt, and no more in this step. The first that doesn't fit ends
   the step.

A request that has just lost its blocks has no special rule: if its prompt fits, it's admitted again. No request needs
more blocks than the pool has. An example with five blocks of 4:

| | A | B | C | D |
|---|---|---|---|---|
| before | runs, 8 tokens in 2 blocks | runs, 5 tokens in 2 blocks | runs, 4 tokens in 1 block | waits, prompt 3 |
| after | 9 tokens in 3 blocks | 6 tokens in 2 blocks | waits, 0 tokens | waits behind C |

A's ninth token needs a block, and none is free. C was admitted last, so it gives up its block, and A takes that
one. Now no block is free, so nothing is admitted.
"""

# %% exercise="03.3"
from lessons_lib.kv_cache.block_pool import OutOfBlocks

from lessons_lib.kv_cache.block_serving import step_in_blocks

# %% [markdown]
"""
## Rows against blocks

32 requests are waiting, and the bundled model has 4 MiB for its cache. `serve_in_blocks` calls your step until all are
finished. It serves rows, too: **a row of 256 slots is a block of 256**.
"""

# %%
load = skewed_workload(32)
many = record_run(
    batch_generate, model, tokenizer, load.prompts, max_new_tokens=load.max_new_tokens,
    names=[str(index) for index in range(32)], batch_size=8, max_seq_len=256
)
lengths = [(len(tokenizer(prompt).input_ids), len(output))
           for prompt, output in zip(load.prompts, many.outputs)]
BUDGET = 4 * 2**20


def serve(size, step=step_in_blocks):
    """The 32 requests in 4 MiB, cut into blocks of this size."""
    pool = BlockPool(blocks_in_budget(model.config, size, BUDGET), size)
    return serve_in_blocks(lengths, pool, BlockTable, step)


rows, blocks = serve(256), serve(16)
token_bytes = cache_bytes_per_token(model.config)
slots = BUDGET // token_bytes
print(f"one cache slot takes {token_bytes:,} bytes, so 4 MiB has {slots} slots: "
      f"{slots // 256} rows of 256, or {slots // 16} blocks of 16")
queued = [step for step in blocks if step.waiting]
tokens = mean(step.tokens / step.running for step in queued)
print(f"in blocks of 16, a running request holds {tokens:.0f} tokens on average, "
      "while others wait")

# %% [markdown]
"""
**03.b** In blocks of 16, how many requests run at once, on average, while others wait? Compute it from these numbers.
"""

# %%
predict("03.b", ...)  # requests

# %%
reveal("03.b", mean(step.running for step in queued), unit="requests", tolerance=0.2,
       how="Counted")

served = {"rows of 256": rows, "oracle": serve(1, step_with_oracle),
          "blocks of 64": serve(64), "blocks of 16": blocks, "blocks of 1": serve(1)}
results = []
for name, steps in served.items():
    full = mean(step.tokens for step in steps if step.waiting) / slots
    results.append([name, max(step.running for step in steps), f"{full:.0%}",
                    sum(step.restarted for step in steps), len(steps)])
Table(["cache", "most at once", "slots with a token, while others wait", "restarts", "steps"],
      results,
      "The same 32 requests in 4 MiB. A restarted request loses all its blocks and tokens")

# %% [markdown]
"""
A request in blocks holds 24 tokens and leaves about half a block empty, so about 512 / (24 + 7.5) = 16 run at once. In
rows, only two do. Each step reads the weights once, however many requests run, so fewer steps mean a faster server.

The oracle leaves half of its cache empty, and loses to blocks of 16, which know nothing in advance. Blocks of 1 need the
fewest steps, but a GPU reads many small pieces slowly: Kwon et al., section 7.2, found 16 large enough.

## Decide: when is a request admitted?

Blocks have a price: the restarts in the table. When a request starts over, anyone reading its answer sees it stop.

Your step's rule is *bold*: it admits a request as soon as its prompt fits. A *safe* rule uses the *limit* that each
request names, the most tokens that its answer may have (`max_new_tokens`). It admits a request only if all running ones
and the new one have room up to their limits. Nothing ever starts over, but most answers end early, and the room kept
for them stays empty.

**Exercise 03.4.** Write `may_admit(request, running, num_free, block_size)`. It returns whether the first request of
the queue is admitted now. After each admission, it is asked about the next one.

- `request` has `prompt_tokens` and `max_new_tokens`. Nothing says how long its answer will be.
- `running` is a list of the running requests. Each also has `num_tokens` and `num_blocks`, what it holds now.
- `num_free` is the number of free blocks, and a block has `block_size` slots.

Two things are fixed. A prompt that doesn't fit in the free blocks is never admitted. If nothing runs, a prompt that
fits always is. The rest is your decision. Your rule serves 300 requests that you can't see, and a restart costs as much
as ten steps. **The 300 requests must cost less than 4,500 steps.** The bold rule costs 3,387 steps and 622 restarts,
together 9,607; the safe one costs 6,072 steps. (The requests come in three runs of 100, and each run has 32 blocks of
16. Prompts have 2 to 60 tokens, limits are 40, 80 or 160, and about one answer in five reaches its limit.)

Example: three requests run, 4 blocks of 16 are free, and the next prompt has 40 tokens. It fits in three blocks, so the
bold rule admits it, and one free block is left for four requests that grow. Would you?
"""

# %% exercise="03.4"
from lessons_lib.kv_cache.block_serving import may_admit

# %%
admission_scoreboard(may_admit)

# %%
draw_free_blocks(may_admit)

# %% [markdown]
"""
Try other rules: run the cell of `may_admit`, then these two. Skip the check, which replaces a rule that costs too much.

Under the safe rule, requests wait next to free blocks. The bold one gives the last free blocks to a new request, just
before the running ones need them. The library's rule, two free blocks for each running request, costs 4,022.

The price decides, too: if a restart cost one step, the bold rule would cost 3,387 + 622 = 4,009, and win.

## What production does

**vLLM** has this pool under the same name, `BlockPool`. Its free queue is a doubly linked list: a block that a request
can reuse leaves the *middle* without a search. Its `compute_slot_mapping` is your `slot_mapping`.

## What is still wrong

**The model knows nothing about blocks.** Lesson 06 writes and reads keys through the block table.

**The pool can still run out mid-answer.** Lesson 10 finds cheaper ways to give up blocks.

**Identical beginnings are stored twice.** Lesson 11 lets requests share them.

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

Nothing here is needed for the lesson, and its 75 minutes don't include it.

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
### Write the pool

The pool works only with block *ids*, 0, 1, 2, ... It keeps two containers:

- `free_queue`, a `deque`: the free blocks.
- `used`, a set: the allocated blocks.

Every block is in exactly one of the two. The cost of `allocate` and `free` must depend on the number of blocks moved,
not on the size of the pool.

**Exercise 03.5** (optional). Write `allocate(count)` and `free(blocks)`. An example, with `pool = BlockPool(6, 16)`:

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

`allocate` is all or nothing, because a request that needs three blocks can do nothing with two. A refused
call changes nothing. `free` takes a list or a tuple, in the order of the request's tokens, and doesn't modify
it.
"""

# %% exercise="03.5" given="__init__ reset"
from collections import deque

from lessons_lib.kv_cache.block_pool import OutOfBlocks

from lessons_lib.kv_cache.block_pool import BlockPool

# %% [markdown]
"""
### How many blocks does a request need?

**Exercise 03.6** (optional). Write `blocks_for(num_tokens, block_size)`. It returns the number of blocks that hold that
many tokens, as an `int`: as many as needed, and not one more. There are 0 tokens or more, and the block size is 1 or
more. Examples: B's prompt of 62 tokens needs 4 blocks of 16 (16 + 16 + 16 + 14), C's prompt of 3 tokens needs 1.
"""

# %% exercise="03.6"
from lessons_lib.kv_cache.block_pool import blocks_for
