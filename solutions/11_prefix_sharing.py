# %% [markdown]
"""
# 11 · Prefix sharing

**Many requests begin with the same text. Does each of them have to compute and store it?**

75 minutes · difficulty: hard · routes: serving · prerequisites: lesson 10 (memory pressure)

Lesson 10 took blocks back when there were too few of them. It's better to need fewer. In this lesson, sequences with the same beginning (the same
*prefix*) share the blocks that hold it: the pool finds blocks by their contents, counts the sequences that use them, and copies a shared block before
a sequence writes to it.
"""

# %%
import inspect
import random
from types import SimpleNamespace

from lessons_lib.batching import ragged_generate
from lessons_lib.checks import check, hint, predict, progress, quiz, reveal, solution
from lessons_lib.engine import ModelRunner
from lessons_lib.kv_cache import BlockPool, PagedKVCache, PrefixCache, blocks_for, copy_blocks
from lessons_lib.measuring import STORIES, ledger, median_ms
from lessons_lib.models import VOCAB_SIZE, load_model, tiny_model
from lessons_lib.recording import recorded_step, serve_recorded
from lessons_lib.scheduling import (
    FirstComeFirstServed,
    PreemptiveScheduler,
    SchedulerOutput,
    Sequence,
    ShortestJobFirst,
    StrictPriority,
    always_swap,
    copy_before_write,
    fork,
    never_swap,
)
from lessons_lib.viz.stepper import Stepper
from lessons_lib.viz.pressure import draw_pressure
from lessons_lib.viz.tables import Table

model, tokenizer = load_model(device="cpu")  # float32, so that answers can be compared token by token
END = frozenset({tokenizer.eos_token_id})
BLOCK = 16


def six_stories(before=""):
    """The six stories as sequences, A to F; each prompt begins with the text `before`."""
    prompts = {story.name: tokenizer(before + story.prompt).input_ids for story in STORIES}
    return [
        Sequence(story.name, prompts[story.name], story.max_new_tokens, END, arrival_time=i)
        for i, story in enumerate(STORIES)
    ]


# %% [markdown]
"""
## The problem: the same beginning, six times

Real requests often begin the same way: with the instructions that come before every question, with the same examples, with the conversation so far.
Let all six stories begin with the same text.
"""

# %%
SYSTEM = (
    "Here is a story for small children. It is short, it is kind, and nobody is hurt in it. The words are easy. "
    "There is one problem, and in the end the friends find out what to do about it. "
)
together = six_stories(SYSTEM)
beginning = together[0].prompt_ids
while any(sequence.prompt_ids[: len(beginning)] != beginning for sequence in together):
    beginning = beginning[:-1]
full = len(beginning) // BLOCK
print("prompt tokens:", {sequence.id: len(sequence.prompt_ids) for sequence in together})
print(f"all begin with the same {len(beginning)} tokens: {full} full blocks of {BLOCK}")
print(f"stored by each sequence separately: {len(together) * full} blocks; stored once: {full}")

# %% [markdown]
"""
The keys and values of these tokens are the same in all six sequences, so storing them once is enough. Block tables make that possible: two tables may
contain the same block.

## Predict

B's prompt has 62 tokens. We want four samples of its answer: four sequences with the same prompt, and answers that differ from their first token on. Each
of them now has 70 tokens, 69 of them computed. If each had its own blocks, they would use 4 × 5 = 20 blocks of 16.

**11.a** How many blocks do the four use together, if everything that can be shared is stored only once?
"""

# %%
predict("11.a", ...)  # blocks

# %% [markdown]
"""
## The idea

Sharing takes three things:

1. **Find.** A new sequence looks for blocks that already hold its first tokens. Each full block gets a hash, and a table maps hashes to blocks.
2. **Count.** Several sequences may use a block, so it becomes free only when the last of them is done with it.
3. **Copy.** A sequence must not write to a block that others use. It gets a copy of its own first.

Why a hash, and not just the 16 tokens of the block? Because a key depends on all tokens before it:
"""


# %%
def second_block_keys(token_ids):
    """Keys of tokens 16 to 31 of a sequence, in all layers."""
    runner, sequence = ModelRunner(model, 2, BLOCK), Sequence("A", token_ids, 1, blocks=[0, 1])
    runner.forward(SchedulerOutput(num_scheduled_tokens={sequence: 32}))
    return [keys[1] for keys in runner.cache.keys]


tail = beginning[16:32]
one, other = second_block_keys(beginning[:16] + tail), second_block_keys(beginning[1:16] + beginning[:1] + tail)
for layer, (keys, other_keys) in enumerate(zip(one, other)):
    print(
        f"layer {layer}: keys of the same 16 tokens after two different beginnings differ by up to {(keys - other_keys).abs().max():.1f}"
    )

# %% [markdown]
"""
In the first layer, a key depends only on its own token and position. In every later layer it depends on all tokens before it. So a block's identifier
has to cover all tokens up to the end of that block. Storing all of them for each block would be wasteful. A hash is short, and hashes can be chained:
each block's hash is computed from its own tokens and from the hash of the block before it.

> **block hash**: the hash of a full block's tokens together with the hash of the block before it. Equal hashes mean equal tokens from the start of the
> sequence to the end of the block.

Only full blocks have a hash. The contents of a block that is still being filled change in the next step.

## Build 1: block hashes

A hash function maps any number of bytes to a small, fixed number of them. `hashlib.sha256(data).digest()` returns 32 bytes, and there is no known way
to find two inputs with the same result. That matters: anyone who could write a prompt with the same block hash as another user's prompt would read
from that user's cache.

**Your task: `block_hash(parent, token_ids)`.** `parent` is the hash of the previous block, 32 bytes, or `b""` for the first block. `token_ids` is a
list of ints, the tokens of one full block. Return the hash, 32 `bytes`. It must depend on all of `parent`, on every token and its position, and on
nothing else: the same arguments give the same hash in every call and in every process. Token ids may be as large as 200,000. Don't change the list.

`array("q", token_ids).tobytes()` turns a list of ints into bytes, eight per int. `array` and `hashlib` are imported in the cell. `+` concatenates
bytes.
"""

# %% exercise="11.1"
import hashlib
from array import array

from lessons_lib.kv_cache.prefix_cache import block_hash

# %% [markdown]
"""
Here are the hashes of all full blocks of three of the prompts, the first eight hex digits of each:
"""


# %%
def hashes_of(token_ids):
    hashes = []
    for start in range(0, len(token_ids) // BLOCK * BLOCK, BLOCK):
        hashes.append(block_hash(hashes[-1] if hashes else b"", token_ids[start : start + BLOCK]))
    return hashes


for sequence in together[1::2]:
    print(
        f"{sequence.id}: {len(sequence.prompt_ids)} tokens:", *(one.hex()[:8] for one in hashes_of(sequence.prompt_ids))
    )

# %% [markdown]
"""
The first three hashes are the same. From the fourth block on, the stories differ, and so do their hashes.

## Build 2: a pool that shares

In lesson 03's pool, every block in use belonged to one request. Now several sequences may use the same block, so the pool counts them.

> **reference count**: how many users something has. When the count drops to 0, it is free.

We can go one step further. When the last sequence that used a block is gone, the contents are still there and still correct, and the next sequence
with this beginning may arrive a minute later. So a free block keeps its contents and its hash until it is allocated for something else. A cached
block that no sequence uses still counts as free.

> **prefix cache**: full blocks that can be found by their hashes, whether or not a sequence uses them, so that a new sequence can begin with the blocks that
> hold its first tokens.

Which free block is allocated first? The one that hasn't been used for the longest time: it is the least likely to be needed again.

> **eviction**: losing the contents of a cached block because the block is allocated for something else. The usual order is *least recently used* first.

The free queue does this by itself: freed blocks join the end, and blocks are allocated from the front. What's new is that a block may also leave from the
middle, when a sequence finds it. The library's `LruQueue` is a queue that supports this: `self.free_queue.pop(block, None)` removes a block wherever it
is in the queue, and does nothing if it isn't there.

A `PrefixCache` is a `BlockPool` with these attributes:

| attribute | meaning |
|---|---|
| `num_blocks`, `block_size` | as in lesson 03 |
| `free_queue` | the blocks that no sequence uses, least recently used first |
| `used` | the set of blocks that at least one sequence uses |
| `ref_count` | block → how many sequences use it; no entry if none does |
| `hash_to_block`, `block_to_hash` | hash → block and block → hash, for full blocks that have one |

`allocate` (new blocks get a count of 1 and lose their old hashes), `cache_full_block` (a block in use is full and computed, so it gets its hash) and
`is_writable` are given.

**Your task: `match_prefix`, `touch` and `free`.**

- `match_prefix(block_hashes)`: `block_hashes` is a list of bytes, the hashes of the full blocks of a sequence, in order. Return the list of blocks
  with these hashes, starting with the first hash, and stop at the first unknown one. Blocks after a gap are useless. Change nothing.
- `touch(blocks)`: one more sequence uses each of these blocks. Raise their counts. A block that was free leaves the free queue and joins `used`. A block
  that no sequence uses *and* that has no hash contains nothing to share: raise `ValueError`, and change nothing at all.
- `free(blocks)`: one sequence, given its blocks in the order of its tokens, no longer uses them. Lower the counts, and delete an entry that drops to 0.
  Blocks that no sequence uses anymore go back to the end of the free queue, the *last* block of the sequence first, since a block is useless without the
  ones before it. They keep their hashes. If a block is not in use, or appears twice in the list, raise `ValueError` and change nothing at all.

`super().free(some_blocks)` is lesson 03's `free`. It raises `ValueError` if any of the blocks is not in `used`. Otherwise it removes them from `used`
and appends them to the free queue, last one first. It checks all of its blocks before it changes anything.

Example with six blocks. X allocates three and gets [0, 1, 2]; their hashes are a, b, c. X ends: after `free([0, 1, 2])` the free queue is [3, 4, 5, 2, 1,
0]. Y begins with blocks whose hashes are a, b, z: `match_prefix([a, b, z])` returns [0, 1]. After `touch([0, 1])` the queue is [3, 4, 5, 2], and
`ref_count` is {0: 1, 1: 1}.
"""

# %% exercise="11.2" given="__init__ allocate cache_full_block is_writable"
from lessons_lib.kv_cache.block_pool import BlockPool
from lessons_lib.kv_cache.prefix_cache import LruQueue

from lessons_lib.kv_cache.prefix_cache import PrefixCache

# %% [markdown]
"""
Here are X and Y from the example, followed by Z, which needs five new blocks:
"""

# %%
pool = PrefixCache(6, BLOCK)
a, b, c, z = (block_hash(b"", [token] * BLOCK) for token in range(4))


def show(what):
    letters = dict(zip((a, b, c, z), "abcz"))
    hashes = {block: letters[one] for block, one in sorted(pool.block_to_hash.items())}
    print(
        f"{what:<25} queue {list(pool.free_queue)}, ref_count {pool.ref_count}, hashes {hashes}, evicted {pool.evicted}"
    )


x_blocks = pool.allocate(3)
for block, one in zip(x_blocks, (a, b, c)):
    pool.cache_full_block(block, one)
show("X has three full blocks")
pool.free(x_blocks)
show("X has ended")
y_blocks = pool.match_prefix([a, b, z])
pool.touch(y_blocks)
show(f"Y finds and uses {y_blocks}")
pool.free(y_blocks)
show("Y has ended")
pool.allocate(5)
show("Z allocates five")

# %% [markdown]
"""
Z's blocks come from the front of the queue: first the three that never contained anything, then c's block, unused since X ended, then b's. The first block
of the beginning, a's, would be evicted last.

### Copy before you write

A sequence writes its new tokens into its last block. If other sequences use that block, or can find it by its hash, they would read what it writes. So
before a write the scheduler calls `pool.is_writable(block)`, and if the answer is no, the sequence first gets a copy of its own.

> **copy-on-write**: sharing something until one of its users wants to change it. That user gets a copy, and the others keep the original.
"""

# %%
print(inspect.getsource(copy_before_write))
print(inspect.getsource(PreemptiveScheduler.make_room))

# %% [markdown]
"""
When does that happen? Shared blocks are usually full, and new tokens go into a block after them that belongs to one sequence only. There are two
exceptions. One is a fork, which we'll get to below. The other is a prompt that is *entirely* in the cache.

## Build 3: start from what is cached

A sequence is admitted. It has no blocks yet. `match_prefix` has found some for it, so it starts with these: they are touched, they become its first
blocks, and their tokens count as computed. That's all, except for one trap.

Suppose a prompt has 32 tokens, and both of its blocks are found. All 32 tokens are computed, so nothing is left to compute. But then there are no
logits to choose the first token of the answer from! Engines have crashed here ([vLLM](https://github.com/vllm-project/vllm/issues/53706),
[nano-vllm](https://github.com/GeeeekExplorer/nano-vllm/issues/144)). So the last known token is always computed: 31 tokens count as computed. Its key
goes to a cache slot in the second block, which already contains an equal key, and the sequence must not write to that block. `make_room` notices this
and copies the block first. The copy needs one free block.

**Your task: `take_cached(pool, sequence, blocks)`.** `pool` is a `PrefixCache`. `sequence` has no blocks. It has `sequence.num_tokens` known tokens,
including those of its answer so far. `blocks` is a list of one or more blocks that `pool.match_prefix` returned for it, so they hold its first
`len(blocks) × pool.block_size` known tokens. Return nothing; change `sequence`:

1. If the blocks hold *all* known tokens, the copy needs a block. That block has to be free and not one of `blocks`: if no sequence uses a block in
   `blocks`, it is still in `pool.free_queue`, but it is about to leave it. If there is no such block, leave out the last of `blocks`. Its tokens are
   then computed again.
2. Touch the remaining blocks: `pool.touch(...)`.
3. `sequence.blocks` is a list of these blocks. It must be a new list, since it will grow.
4. `sequence.num_computed_tokens` is the number of tokens in these blocks, but at most the number of known tokens minus one.

Don't change the list `blocks`. Example, blocks of 16: with 40 known tokens and blocks [0, 1], 32 count as computed, no matter which other blocks are
free. With 32 known tokens and blocks [0, 1], 31 count if a third block is free. If not, the sequence gets [0], and 16 count.
"""

# %% exercise="11.3"
from lessons_lib.scheduling.preemption import take_cached

# %% [markdown]
"""
Try it on a prompt that is entirely in the cache: the first 48 tokens of the common beginning. X computes it, then Y arrives with the same prompt. We
go through Y's first step by hand.
"""

# %%
prompt = beginning[:48]
pool, runner = PrefixCache(8, BLOCK), ModelRunner(model, 8, BLOCK)
x = Sequence("X", prompt, 5, blocks=pool.allocate(3))
logits_of_x = runner.forward(SchedulerOutput(num_scheduled_tokens={x: 48}))
for block, one in zip(x.blocks, hashes_of(prompt)):
    pool.cache_full_block(block, one)

y = Sequence("Y", prompt, 5)
take_cached(pool, y, pool.match_prefix(hashes_of(prompt)))
print(
    f"Y starts with blocks {y.blocks}, and {y.num_computed_tokens} of its tokens count as computed; ref_count {pool.ref_count}"
)
block_copy = copy_before_write(pool, y, index=2)
copy_blocks([block_copy], runner.cache, None)
print(
    f"{block_copy.kind} {block_copy.source} → {block_copy.target}: Y has blocks {y.blocks}, X has {x.blocks}; ref_count {pool.ref_count}"
)
logits_of_y = runner.forward(SchedulerOutput(num_scheduled_tokens={y: 1}))
print(
    f"X's and Y's first token: {tokenizer.decode(logits_of_x.argmax())!r}, {tokenizer.decode(logits_of_y.argmax())!r}"
)
print(f"their logits differ by less than 0.0001: {bool((logits_of_x - logits_of_y).abs().max() < 1e-4)}")

# %% [markdown]
"""
Y computed 1 token where X computed 48.

### The six stories with a common beginning

Four at a time, at most 64 tokens per step, and plenty of blocks. This run uses your `block_hash`, `PrefixCache` and `take_cached`.
`scheduler_output.cached` says for each admitted sequence how many of its tokens were found in the cache; in a recorded step it is called `hits`.
"""

# %%
YOURS = dict(block_hash=block_hash, take_cached=take_cached)


def serve_stories(share, num_blocks=40, **options):
    scheduler = PreemptiveScheduler(
        PrefixCache(num_blocks, BLOCK),
        max_num_seqs=4,
        max_num_batched_tokens=64,
        share_prefixes=share,
        **YOURS,
        **options,
    )
    sequences, runner = six_stories(SYSTEM), ModelRunner(model, num_blocks, BLOCK)
    return sequences, scheduler, runner, serve_recorded(runner, scheduler, sequences)


unshared, *_ = serve_stories(False)
sharing, scheduler, runner, sharing_steps = serve_stories(True)
print("the same answers:", [one.output_ids for one in unshared] == [one.output_ids for one in sharing])
prompt_tokens = sum(len(sequence.prompt_ids) for sequence in sharing)
hits = {id: tokens for step in sharing_steps for id, tokens in step.hits.items()}
print(f"found in the cache: {hits}")
saved = sum(hits.values())
print(
    f"prefill tokens: {prompt_tokens} without sharing, {prompt_tokens - saved} with it: {saved / prompt_tokens:.0%} saved"
)

# %% [markdown]
"""
A found nothing, because it was the first. B found nothing either: it was admitted in the same step as A, and a block gets its hash only once it has
been computed. So B computed the common beginning again. Its three blocks get no hashes, since A's blocks already have these hashes (see
`cache_full_block`). C to F start with A's three blocks.

In that run, the sequences overlapped. But the beginning is also found when no sequence uses it anymore. Let B come back for four tokens after all six
have ended:
"""

# %%
print(
    f"all have ended; {len(scheduler.pool.used)} blocks are in use, {len(sharing_steps[-1].cached)} free ones can still be found"
)
again = six_stories(SYSTEM)[1]
again.max_new_tokens = 4
return_steps = serve_recorded(runner, scheduler, [again], first_index=len(sharing_steps))
print(
    f"B again: {return_steps[0].hits['B']} of its {len(again.prompt_ids)} prompt tokens found, {return_steps[0].counts['B']} computed"
)
print("the same answer:", again.output_ids == sharing[1].output_ids[:4])

# %%
all_steps, comes_back = sharing_steps + return_steps, len(sharing_steps)
Stepper(lambda i: draw_pressure(all_steps[i]), count=len(all_steps), start=comes_back, still=comes_back)

# %% [markdown]
"""
In this picture, only B uses blocks. The dotted blocks are free, and can be found by their hashes until they are allocated for something else.

### Preemption and sharing together

A preempted sequence frees its blocks. But other sequences may still use the blocks of the common beginning, and the rest keep their hashes until they are
allocated again. So a victim may find part of its own cache when it is admitted again. The same six in a pool of 14 blocks, with recompute:
"""


# %%
def row_of_pressure(share):
    sequences, scheduler, _, steps = serve_stories(share, num_blocks=14, should_swap=never_swap)
    assert [one.output_ids for one in sequences] == [one.output_ids for one in unshared]
    computed = sum(sum(step.counts.values()) for step in steps)
    victims = {id for step in steps for id in step.preempted}
    found = {
        id: step.hits.get(id, 0) for step in steps for id in step.admitted if id in victims
    }  # the last admission counts
    found = ", ".join(f"{id} {tokens}" for id, tokens in sorted(found.items()))
    return [
        "with sharing" if share else "without sharing",
        len(steps),
        scheduler.num_preempted,
        found,
        computed,
        scheduler.pool.evicted,
    ]


Table(
    columns=["", "steps", "preemptions", "found on readmission", "tokens computed", "cached blocks evicted"],
    rows=[row_of_pressure(False), row_of_pressure(True)],
    caption="Six stories with a common beginning, in 14 blocks; the answers are the same",
)

# %% [markdown]
"""
Sharing helps in two ways. Fewer blocks are needed, so fewer sequences are preempted. And a preempted sequence doesn't lose everything: B finds its
whole prompt again, and the beginning of its answer. That's one reason why an engine with a prefix cache can do without swapping.

## Fork: several samples of one prompt

> **fork**: creating a second sequence with all the tokens of an existing one. Both use the same blocks, including the last one, which may not be full.

Nothing is copied at that moment. A copy is made when one of them writes to the last block. The last sequence that still uses that block is its only user
and needs no copy. A fork that is waiting for a batch slot already has blocks, so it can be chosen as a victim too.
"""

# %%
print(inspect.getsource(fork))

# %% [markdown]
"""
Now B's prompt with four continuations. Random sampling comes in lesson 12; here, each sample begins with a different one of the four likeliest tokens. X, Y
and Z are forks of B.
"""

# %%
pool = PrefixCache(24, BLOCK)
scheduler, runner = PreemptiveScheduler(pool, max_num_seqs=4, max_num_batched_tokens=64), ModelRunner(model, 24, BLOCK)
b = next(sequence for sequence in six_stories() if sequence.id == "B")
b.max_new_tokens = 20
scheduler.add(b)
scheduler_output = scheduler.schedule()
likeliest = runner.forward(scheduler_output)[0].topk(4).indices.tolist()
scheduler.update(scheduler_output, likeliest[:1])
samples = [b]
for id, token in zip("XYZ", likeliest[1:]):
    sample = fork(pool, b, id)
    sample.output_ids[-1] = token  # chosen, but not computed yet
    scheduler.add(sample)
    samples.append(sample)
print(f"after the fork: blocks {b.blocks}, ref_count {pool.ref_count}")

# %%
fork_steps = [recorded_step(runner, scheduler)]
copies = ", ".join(f"{block_copy.source} → {block_copy.target}" for block_copy in fork_steps[0].block_copies)
print(f"block copies in the first step after the fork: {copies}")
while b.num_computed_tokens < 69:
    fork_steps.append(recorded_step(runner, scheduler, index=len(fork_steps)))
num_used = len(pool.used)
apart = sum(len(sample.blocks) for sample in samples)
reveal("11.a", num_used, unit="blocks")
print(f"together they use {num_used} blocks; if each had its own: {apart}")
Stepper(lambda i: draw_pressure(fork_steps[i]), count=len(fork_steps), start=0, still=0)

# %% [markdown]
"""
The first three blocks of the prompt are stored once. The fourth has room for the first tokens of the answer, so it differs, and so does the fifth: 3 + 4 ×
2 = 11.
"""

# %%
while scheduler.has_unfinished():
    fork_steps.append(recorded_step(runner, scheduler, index=len(fork_steps)))
for sample in samples:
    print(f"{sample.id}: …he asked his friend the duck{tokenizer.decode(sample.output_ids)}")

# %% [markdown]
"""
## Prove it

The claim: whatever is shared, copied, preempted, swapped or dropped, every request gets the answer that it would get alone, and no block is ever
lost. After every step, `audit` checks the pool's bookkeeping: each block is either free or used by exactly as many sequences as its reference count
says, hashes and blocks agree, and every sequence has the blocks that its tokens need.

We try twenty random workloads on a small random model: prompts with common beginnings, pools that are barely large enough, and limits of all kinds.
"""

# %%
tiny, plain = tiny_model("qwen2"), SimpleNamespace(pad_token_id=0, eos_token_id=24)


def random_workload(rng):
    """(sequences, scheduler, runner, cache of the swap space)"""
    size = rng.choice((1, 2, 4))
    base = [rng.randrange(VOCAB_SIZE) for _ in range(32)]
    prompts = [
        base[: rng.choice((0, 4, 16))] + [rng.randrange(VOCAB_SIZE) for _ in range(rng.choice((1, 2, 9)))]
        for _ in range(6)
    ]
    prompts[1] = list(prompts[0])  # may be entirely in the cache
    sequences = [
        Sequence(str(i), p, rng.choice((5, 12, 20)), frozenset({24}), rng.random(), rng.randrange(2))
        for i, p in enumerate(prompts)
    ]
    num_blocks = max(blocks_for(sequence.most_tokens, size) for sequence in sequences) + rng.choice((0, 1, 4))
    max_num_seqs = rng.choice((2, 4, 6))
    scheduler = PreemptiveScheduler(
        PrefixCache(num_blocks, size),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + rng.choice((0, 5, 60)),
        policy=rng.choice((FirstComeFirstServed, ShortestJobFirst, StrictPriority))(),
        watermark=rng.choice((0, 1)),
        swap_space=BlockPool(rng.choice((0, 8, 60)), size),
        should_swap=rng.choice((always_swap, never_swap)),
        share_prefixes=rng.random() < 0.7,
        **YOURS,
    )
    return sequences, scheduler, ModelRunner(tiny, num_blocks, size), PagedKVCache(tiny.config, 60, size)


total = dict(equal=0, requests=0, steps=0, preemptions=0, swapped=0, hits=0, copies=0)
for seed in range(20):
    sequences, scheduler, runner, swap_cache = random_workload(random.Random(seed))
    max_tokens_each = [sequence.max_new_tokens for sequence in sequences]
    alone = ragged_generate(
        tiny, plain, [sequence.prompt_ids for sequence in sequences], max_new_tokens=max_tokens_each, max_num_seqs=1
    )
    record = serve_recorded(runner, scheduler, sequences, swap_cache)  # audits after every step
    assert len(scheduler.pool.free_queue) == scheduler.pool.num_blocks
    total["equal"] += sum(sequence.output_ids == answer for sequence, answer in zip(sequences, alone))
    total["requests"] += len(sequences)
    total["steps"] += len(record)
    total["preemptions"] += scheduler.num_preempted
    total["swapped"] += scheduler.num_swapped
    total["hits"] += sum(len(step.hits) for step in record)
    total["copies"] += sum(block_copy.kind == "copy" for step in record for block_copy in step.block_copies)
print(", ".join(f"{name} {count}" for name, count in total.items()))

# %% [markdown]
"""
The course's own tests do the same on hundreds of workloads. Two bugs reported in other engines, and what prevents them in ours:

| bug | reported in | here |
|---|---|---|
| A prompt that was entirely in the prefix cache left nothing to compute. | [vLLM][1] | `take_cached` never counts the last known token as computed. |
| A preempted sequence that found cached blocks read past the end of its block table. | [nano-vllm][2] | An admitted sequence takes its cached blocks before its new tokens are counted. |

[1]: https://github.com/vllm-project/vllm/issues/53706
[2]: https://github.com/GeeeekExplorer/nano-vllm/pull/211

## Measure

How much time does sharing save? We serve twelve requests with and without sharing, in alternating rounds. Each has the common beginning, then a
story, and an answer of four tokens.
"""


# %% tags=["measured"]
def twelve_answers(share):
    pool = PrefixCache(120, BLOCK)
    scheduler = PreemptiveScheduler(pool, max_num_seqs=4, max_num_batched_tokens=64, share_prefixes=share, **YOURS)
    sequences = [
        Sequence(f"{n}{one.id}", one.prompt_ids, 4, arrival_time=i)
        for n in range(2)
        for i, one in enumerate(six_stories(SYSTEM))
    ]
    runner = ModelRunner(model, 120, BLOCK)
    return serve_recorded(runner, scheduler, sequences)


runs = {}
apart_ms, shared_ms = median_ms(
    [lambda: runs.update(apart=twelve_answers(False)), lambda: runs.update(shared=twelve_answers(True))], repeat=3
)
computed_apart, computed_shared = (
    sum(sum(step.counts.values()) for step in steps) for steps in (runs["apart"], runs["shared"])
)
Table(
    columns=["", "tokens computed", "ms"],
    rows=[
        ["without sharing", computed_apart, apart_ms],
        ["with sharing", computed_shared, shared_ms],
        ["ratio", f"{computed_apart / computed_shared:.1f}", f"{apart_ms / shared_ms:.1f}"],
    ],
    caption="Twelve requests with a common beginning",
)

# %% [markdown]
"""
Each story comes twice. The second time, its own part of the prompt is found too, up to the last full block.

### The ledger
"""

# %% tags=["measured"]
ledger(model, tokenizer, "11", with_cache_only=True, since="06")

# %% [markdown]
"""
The last row serves the same requests from the same pool as the row above it, and computes 583 tokens instead of 647. Sharing saves little here, because
these prompts begin differently: only a preempted sequence finds blocks, and they are its own.

## What production does

- vLLM's prefix cache: `hash_block_tokens` in `vllm/v1/core/kv_cache_utils.py` hashes the parent's hash, the tokens, and everything else that makes a
  difference: the adapter, the images, a salt if the user sets one. `FreeKVCacheBlockQueue` in the same file is our `LruQueue`, written as a linked
  list; there, too, the tail of a sequence is evicted before its beginning. `KVCacheManager.get_computed_blocks` describes our trap in a comment: if
  all tokens hit, the last one must be computed again. In that case it uses one block fewer and recomputes that whole block.
- vLLM serves n samples of one prompt as n requests that find each other's blocks by hash (`vllm/v1/engine/parallel_sampling.py`).
- **nano-vllm** has its prefix cache in `nanovllm/engine/block_manager.py`. Its hash has only 64 bits, so it compares the tokens as well.
- **SGLang** keeps prefixes in a tree of tokens instead of a table of hashes, *RadixAttention*, and evicts the least recently used leaves
  (`python/sglang/srt/mem_cache/radix_cache.py`). It can also schedule requests with a long cached prefix first.
- **Hugging Face transformers** shares blocks by hash with `allow_block_sharing` in `generation/continuous_batching`, and its `cache.py` has
  `prepare_fork_request` for several samples.

The PagedAttention paper describes sharing and copy-on-write in section 4.4.

## What is still wrong

**Every token is still the likeliest one.** Forks only make sense once tokens are sampled.

**No token is delivered before the whole answer is done.** There is no streaming, no way to stop at a word, and no way to abort a request.

**We can't see what a running server is doing.** In lesson 12, we put all the parts together into one engine that does all of this and reports
metrics.

## Quiz
"""

# %%
quiz("11")

# %% [markdown]
"""
## References

- W. Kwon et al.: *Efficient Memory Management for Large Language Model Serving with PagedAttention*, SOSP 2023; sections 4.3 and 4.4.
  <https://arxiv.org/abs/2309.06180>
- L. Zheng et al.: *SGLang: Efficient Execution of Structured Language Model Programs*, NeurIPS 2024; RadixAttention in section 3.
  <https://arxiv.org/abs/2312.07104>
- vLLM: automatic prefix caching. <https://docs.vllm.ai/en/latest/design/prefix_caching.html>
- nano-vllm: `nanovllm/engine/block_manager.py`. <https://github.com/GeeeekExplorer/nano-vllm>
- Hugging Face transformers: continuous batching. <https://huggingface.co/docs/transformers/main/en/continuous_batching>
"""
