# %% [markdown]
"""
# 11 · Prefix sharing

![A pool in which free blocks keep their contents for later requests](../lessons_lib/assets/openings/11.svg)

**Many requests begin with the same text. Does each of them have to compute and store it?**

90 minutes · difficulty: medium · routes: serving · prerequisites: lesson 10 (memory pressure)

Lesson 10 took blocks back when there were too few. It's better to need fewer. In this lesson, sequences with the same
beginning (the same *prefix*) share the blocks that hold it.
"""

# %% folded=true
from itertools import permutations

from lessons_lib.checks import check, hint, predict, progress, quiz, reset, reveal, solution
from lessons_lib.engine import ModelRunner
from lessons_lib.kv_cache import COPY, BlockCopy, OutOfBlocks, PrefixCache, SharedBlockPool
from lessons_lib.kv_cache import blocks_for
from lessons_lib.measuring import STORIES, recorded_first_tokens
from lessons_lib.models import load_model
from lessons_lib.recording import queue_state, recorded_step, serve_recorded
from lessons_lib.scheduling import CopyOnWriteScheduler, Sequence, fork, take_cached
from lessons_lib.viz.pressure import draw_free_queue
from lessons_lib.viz.source import show_source
from lessons_lib.viz.tables import Table
from lessons_lib.viz.words import marked

# %%
# float32, so that answers can be compared token by token
model, tokenizer = load_model(device="cpu")
END = frozenset({tokenizer.eos_token_id})
BLOCK = 16


def six_stories(before=""):
    """The six stories as sequences, A to F; each prompt begins with the text `before`."""
    prompts = {story.name: tokenizer(before + story.prompt).input_ids for story in STORIES}
    return [Sequence(story.name, prompts[story.name], story.max_new_tokens, END,
                     arrival_time=i) for i, story in enumerate(STORIES)]

# %% [markdown]
"""
## The problem: the same beginning, six times

Real requests often begin the same way: with instructions, with examples, with the conversation so far. Let all six
stories begin with the same text.
"""

# %%
SYSTEM = (
    "Here is a story for small children. It is short, it is kind, and nobody is hurt in it. "
    "The words are easy. "
    "There is one problem, and in the end the friends find out what to do about it. "
)
together = six_stories(SYSTEM)
beginning = together[0].prompt_ids
while any(sequence.prompt_ids[: len(beginning)] != beginning for sequence in together):
    beginning = beginning[:-1]
full = len(beginning) // BLOCK
print("prompt tokens:", {sequence.id: len(sequence.prompt_ids) for sequence in together})
print(f"all begin with the same {len(beginning)} tokens: {full} full blocks of {BLOCK}")
print(f"stored by each sequence separately: {len(together) * full} blocks; "
      f"stored once: {full}")

# %% [markdown]
"""
The keys and values of these tokens are the same in all six sequences, so storing them once is enough: two block tables
may contain the same block.

## The idea

Sharing takes three things:

1. **Find.** A new sequence looks for blocks that already hold its first tokens. Each full block gets a hash,
   a few bytes that are computed from its tokens and all tokens before them, and a table maps hashes to blocks.
2. **Count.** Several sequences may use a block, so it becomes free only when the last of them is done with it.
3. **Copy.** A sequence must not write to a block that others use. It gets a copy of its own first.

Why can't a block be found by its 16 tokens alone? In the first layer, a key depends only on its own token and position.
In all later layers it also depends on the tokens before it. So the hash has to cover all tokens up to the end of the
block. (You'll see what happens otherwise.)

> **block hash**: the hash of a full block's tokens together with the hash of the block before it. Equal hashes mean
> equal tokens from the start of the sequence to the end of the block.

Only full blocks have a hash. The contents of a block that is still being filled change in the next step.

## Build 1: block hashes

`hashlib.sha256(data).digest()` returns 32 bytes, and no one knows how to find two inputs with the same result. That
matters: anyone who could write a prompt with the same block hash as another user's prompt would read from that user's
cache.

**Exercise 11.1.** Write `block_hash(parent, token_ids)`. `parent` is the hash of the previous block, 32 bytes, or `b""`
for the first block. `token_ids` is a list of ints, the tokens of one full block, of any size. Return the hash, 32
`bytes`, by SHA-256. It must depend on all of `parent`, on every token and its position, and on nothing else: the same
arguments give the same hash in every call and in every process. Token ids may be as large as 200,000. Don't change the
list.

Example: the blocks `[1, 2, 34, 5]`, `[5, 34, 2, 1]` and `[12, 3, 4, 5]` have three different hashes after the same
parent. After another parent, `[1, 2, 34, 5]` has a fourth.

`hashlib` and `array` are imported in the cell.
"""

# %% exercise="11.1"
import hashlib
from array import array

from lessons_lib.kv_cache.block_hashes import block_hash

# %% [markdown]
"""
## Build 2: count the users

> **reference count**: how many users something has. When the count drops to 0, it is free.

A free block keeps its contents until it is allocated for something else: the next sequence with this beginning may
arrive a minute later. If a sequence uses the block again, it leaves the free queue, perhaps from the middle. The
library's `LruQueue` (for *least recently used*) supports that: `self.free_queue.pop(block, None)` removes a block from
anywhere, and does nothing if it isn't there.

Here is the queue after each of five events. X allocates three blocks; Y begins like X and also uses X's first two
(`touch`); both end; and then Z begins like them. This cell uses the library's `SharedBlockPool`.
"""

# %%
def example_of_counts(pool):
    states = []
    x = pool.allocate(3)
    states.append(queue_state(pool, "X: allocate(3)"))
    pool.touch(x[:2])
    states.append(queue_state(pool, "Y begins like X: touch([0, 1])"))
    pool.free(x)
    states.append(queue_state(pool, "X ends: free([0, 1, 2])"))
    pool.free(x[:2])
    states.append(queue_state(pool, "Y ends: free([0, 1])"))
    pool.touch(x[:1])
    states.append(queue_state(pool, "Z begins like them: touch([0])"))
    return states


draw_free_queue(example_of_counts(SharedBlockPool(6, BLOCK)))

# %% [markdown]
"""
Blocks are allocated from the front of the queue, and freed blocks join its end. So the block at the front has been
unused for longest, the usual guess at what won't be needed again. Of one sequence's blocks, the last one goes first,
since it is useless without the ones before it.

A `SharedBlockPool` is a `BlockPool` with these attributes:

| attribute | meaning |
|---|---|
| `num_blocks`, `block_size` | as in lesson 03 |
| `free_queue` | the blocks that no sequence uses, the longest unused first |
| `used` | the set of blocks that at least one sequence uses |
| `ref_count` | block → how many sequences use it; no entry if none does |

`reset` and `allocate` are given: new blocks have a count of 1.

**Exercise 11.2.** Write `touch` and `free`.

- `touch(blocks)`: one more sequence uses each of these blocks. They are different blocks of this pool; each may be free
  or in use.
- `free(blocks)`: one sequence no longer uses these blocks; they are in the order of its tokens. Blocks that no
  sequence uses anymore join the end of the free queue, the *last* block of the sequence first. If a block is not in
  use, or appears twice in the list, raise `ValueError` and change nothing at all.

After each call, `free_queue`, `used` and `ref_count` agree, as in the picture. An empty list changes nothing.

`super().free(some_blocks)` is lesson 03's `free`. It raises `ValueError` if any of the blocks is not in `used`.
Otherwise it removes them from `used` and appends them to the free queue, last one first. It checks all of its blocks
before it changes anything.
"""

# %% exercise="11.2" given="reset allocate"
from lessons_lib.kv_cache.block_pool import BlockPool
from lessons_lib.kv_cache.prefix_cache import LruQueue

from lessons_lib.kv_cache.prefix_cache import SharedBlockPool

# %% [markdown]
"""
## Build 3: find blocks by their contents

Now each full block gets its hash, and two tables lead from blocks to hashes and back.

> **prefix cache**: full blocks that can be found by their hashes (*cached blocks*), whether or not a sequence uses
> them, so that a new sequence can begin with the blocks that hold its first tokens.

> **eviction**: losing the contents of a cached block because the block is allocated for something else. The usual order
> is *least recently used* first, which is the order of your free queue.

A `PrefixCache` is a `SharedBlockPool`, yours from above, with three more attributes:

| attribute | meaning |
|---|---|
| `hash_to_block`, `block_to_hash` | hash → block and block → hash, for full blocks that have one |
| `evicted` | how many blocks with a hash have been allocated for something else so far |

The other methods are given. `allocate` evicts: new tokens will be written to its blocks, so it removes their old hashes
from both tables. `cache_full_block` gives a full block in use its hash. `touch` also refuses a free block that has no
hash, since it contains nothing to share.

**Exercise 11.3.** Write `match_prefix` and `is_writable`.

- `match_prefix(block_hashes)`: `block_hashes` is a list of bytes, the hashes of the full blocks of a sequence, in
  order. Return the list of blocks with which the sequence can begin. Blocks after a gap are useless. Change nothing.
- `is_writable(block)`, for a block in use: whether a sequence that uses it may write to it. A write must not change
  what another sequence reads there, now or later.

Example with six blocks. X allocates three and gets [0, 1, 2]; their hashes are a, b, c. X ends. Y begins with blocks
whose hashes are a, b, z: `match_prefix([a, b, z])` returns [0, 1].
"""

# %% exercise="11.3" given="reset allocate touch cache_full_block"
from lessons_lib.kv_cache.prefix_cache import PrefixCache

# %% [markdown]
"""
Let the example go on. Y uses the two blocks that it has found, and ends. Then Z arrives, finds nothing, and allocates
five blocks. **Guess first:** which of X's three blocks can still be found after that?
"""

# %%
pool = PrefixCache(6, BLOCK)
a, b, c, z = (block_hash(b"", [token] * BLOCK) for token in range(4))
states = []


def note(event):
    states.append(queue_state(pool, event, dict(zip((a, b, c), "abc"))))


x_blocks = pool.allocate(3)
for block, one in zip(x_blocks, (a, b, c)):
    pool.cache_full_block(block, one)
note("X has three full blocks")
pool.free(x_blocks)
note("X has ended")
y_blocks = pool.match_prefix([a, b, z])
pool.touch(y_blocks)
note(f"Y finds and uses {y_blocks}")
pool.free(y_blocks)
note("Y has ended")
pool.allocate(5)
note(f"Z allocates five; {pool.evicted} cached blocks are evicted")
print("still found:", pool.match_prefix([a, b, c]))
draw_free_queue(states)

# %% [markdown]
"""
Z gets the three blocks that never contained anything, then c's, unused since X ended, then b's. The first block of the
beginning, a's, would be evicted last.

## Start from what is cached

A new sequence starts with the blocks that `match_prefix` has found for it: they are touched, they become its first
blocks, and their tokens count as computed. The library's `take_cached` does that. (You can write it yourself in
"Further".)

With your hashes and your pool, X computes a prompt of exactly three blocks, the first 48 tokens of the common
beginning, and ends. Then Y comes with the same prompt, and all three blocks are still there.

**11.a** How many tokens does Y's first step compute?
"""

# %%
predict("11.a", ...)  # tokens

# %%
YOURS = dict(block_hash=block_hash)
scheduler = CopyOnWriteScheduler(PrefixCache(8, BLOCK), max_num_seqs=4,
                                 max_num_batched_tokens=64, **YOURS)
runner = ModelRunner(model, 8, BLOCK)
x, y = (Sequence(name, beginning[:48], 5) for name in "XY")
x_steps = serve_recorded(runner, scheduler, [x])
y_steps = serve_recorded(runner, scheduler, [y], first_index=len(x_steps))
for name, first in (("X", x_steps[0]), ("Y", y_steps[0])):
    copies = [f"{one.kind} {one.source} → {one.target}" for one in first.block_copies]
    print(f"{name}'s first step: {first.hits.get(name, 0)} tokens found, "
          f"{first.counts[name]} computed, block copies: {copies}")
reveal("11.a", y_steps[0].counts["Y"], unit="token")
print("the same answer:", x.output_ids == y.output_ids)

# %% [markdown]
"""
If all 48 tokens counted as computed, there would be no logits to choose the first token of the answer from! Engines
have crashed here ([vLLM](https://github.com/vllm-project/vllm/issues/53706),
[nano-vllm](https://github.com/GeeeekExplorer/nano-vllm/issues/144)). So the last known token is always computed.
Look at the `min` in the last line:
"""

# %%
show_source(take_cached)

# %% [markdown]
"""
And why the copy? The key and value of token 47 go to a slot of the third block. That block has a hash, so your
`is_writable` says no: other sequences may find it and read it. (Would writing the same key do harm? In another batch
its last digits may differ, so an answer could depend on requests that came later.) Y gets a copy of the block, and
writes there.

> **copy-on-write**: sharing something until one of its users wants to change it. That user gets a copy, and the others
> keep the original.

### What happens with a careless hash

Tom's story and Lily's differ in their first block, and go on with the same second one. A careless hash covers the
tokens of its own block and leaves out `parent`. Tom's story is served first, then the beginning of Lily's, which puts
her first block into the cache, then all of it.

**Guess first:** Lily's story now begins with her own first block, followed by Tom's second one. Does the careless hash
give an error, gibberish, or a story? Words between » and « differ from the right answer.
"""

# %%
texts = (
    "Tom was a big dog. He lived in a house with a red door.",
    "Lily was a small cat. She lived in a box with a blue roof.",
    " One day it began to rain. It rained and rained all day.",
)
tom, lily, rain = (tokenizer(text).input_ids for text in texts)  # one block each
soon = tokenizer(" Soon").input_ids


def answers_with(block_hash):
    pool, runner = PrefixCache(12, BLOCK), ModelRunner(model, 12, BLOCK)
    scheduler = CopyOnWriteScheduler(pool, max_num_seqs=1, max_num_batched_tokens=64,
                                     block_hash=block_hash)
    sequences = [Sequence("one", prompt, 18, END)
                 for prompt in (tom + rain + soon, lily + soon, lily + rain + soon)]
    for sequence in sequences:
        steps = serve_recorded(runner, scheduler, [sequence])
    first, third = (tokenizer.decode(sequences[i].output_ids) for i in (0, 2))
    return first, third, steps[0].hits["one"]


def careless_hash(parent, token_ids):
    return block_hash(b"", token_ids)


toms, right, found = answers_with(block_hash)
_, careless, careless_found = answers_with(careless_hash)
print(f"Tom: {tokenizer.decode(tom + rain + soon)}{toms}\n")
print(f"Lily, your hash, {found} tokens found: "
      f"{tokenizer.decode(lily + rain + soon)}{right}\n")
print(f"Lily, careless hash, {careless_found} tokens found: … Soon {marked(right, careless)}")

# %% [markdown]
"""
Nothing crashes. The same tokens are in both second blocks, yet Tom's keys depend on what came before them, and Lily's
story goes on as his did. In a server, another user's prompt would have changed your answer.

## Build 4: copy before a write

A prompt that is entirely in the cache needs a copy. So does a request for several answers to one prompt.

> **fork**: creating a second sequence with all the tokens of an existing one. Both use the same blocks, including the
> last one, which may not be full.

A fork copies nothing. But then the two sequences go on with different tokens, and both would write to the last block.

**Exercise 11.4.** Write `copy_before_write(pool, sequence, index)`. `pool` is a `PrefixCache`. `sequence` is about to
write to the block `sequence.blocks[index]`, and `pool.is_writable` says that it may not. Afterwards:

- It may write at this place of its table, and the rest of the table is as before. Edit `sequence.blocks` in place or
  assign a new list; both are fine.
- Whatever could be read in the old block can still be read there, by other sequences now, and by those that find it
  later.
- The pool counts each block exactly as often as tables contain it.

Return `BlockCopy(COPY, source, target)`: the contents of block `source` have to be copied to block `target` before the
sequence writes. (That happens before the forward pass, as with lesson 10's `BlockCopy`s; you copy nothing yourself. By
then, `source` may be free, or even belong to another sequence: copies are made in order, and all of them before any new
key is written.) If no block is free, raise `OutOfBlocks` and change nothing at all.

Example with four blocks. X and its fork Y have blocks 0 and 1, each with a count of 2, and the free queue is 2, 3. Then
`copy_before_write(pool, y, 1)` returns `BlockCopy(COPY, 1, 2)`. Now Y has 0 and 2, blocks 1 and 2 have a count of 1,
and the free queue is 3.

On paper, before you write any code: if X has no fork, but both of its blocks have a hash, what's the free queue after
`copy_before_write(pool, x, 1)`, and which blocks does a sequence that begins like X find?
"""

# %% exercise="11.4"
from lessons_lib.scheduling.shared_blocks import copy_before_write

# %% [markdown]
"""
Your answer on paper, and the pool's:
"""

# %%
pool = PrefixCache(4, BLOCK)
x = Sequence("X", list(range(32)), 5, blocks=pool.allocate(2), num_computed_tokens=31)
hashes = [block_hash(b"", [token] * BLOCK) for token in range(2)]
for block, one in zip(x.blocks, hashes):
    pool.cache_full_block(block, one)
copy_before_write(pool, x, index=1)
print(f"X alone: free queue {list(pool.free_queue)}; found afterwards: "
      f"{pool.match_prefix(hashes)}")
YOURS["copy_before_write"] = copy_before_write  # for all runs below

# %% [markdown]
"""
### Four samples of one prompt

B's prompt has 62 tokens. We want four answers to it, so X, Y and Z are forks of B. Each begins with a different one of
the four likeliest tokens. The last block of the prompt has room for two more tokens, and all four sequences are about
to write to it. **Guess first:** how many block copies does the first step after the fork need?

**11.b** Some steps later, each has 70 tokens, 69 of them computed. Apart, they would use 4 × 5 = 20 blocks of 16. How
many do the four use together, if everything that can be shared is stored only once?
"""

# %%
predict("11.b", ...)  # blocks

# %%
pool = PrefixCache(24, BLOCK)
scheduler = CopyOnWriteScheduler(pool, max_num_seqs=4, max_num_batched_tokens=64, **YOURS)
runner = ModelRunner(model, 24, BLOCK)
b = six_stories()[1]
b.max_new_tokens = 20
scheduler.add(b)
scheduler_output = scheduler.schedule()
likeliest = runner.forward(scheduler_output)[0].topk(4).indices.tolist()
scheduler.update(scheduler_output, likeliest[:1])
# only counts: three more users of each block
samples = [b, *(fork(scheduler, b, id) for id in "XYZ")]
for sample, token in zip(samples[1:], likeliest[1:]):
    sample.output_ids[-1] = token  # chosen, but not computed yet
copies = [f"{one.source} → {one.target}"
          for one in recorded_step(runner, scheduler).block_copies]
print(f"block copies in the first step after the fork: {', '.join(copies)}")
while b.num_computed_tokens < 69:
    recorded_step(runner, scheduler)
reveal("11.b", len(pool.used), unit="blocks")
while scheduler.has_unfinished():
    recorded_step(runner, scheduler)
for sample in samples:
    print(f"{sample.id}: …he asked his friend the duck{tokenizer.decode(sample.output_ids)}")

# %% [markdown]
"""
Three copies, not four: the last sequence that still uses the old block is its only user. The first three blocks of the
prompt are stored once. The fourth has room for the first tokens of the answer, so it differs, and so does the fifth:
3 + 4 × 2 = 11.

## The six stories with a common beginning

Four at a time, at most 64 tokens per step, and plenty of blocks. All six wait from the start; A's prompt and a few
tokens of B's fit into the first step. A sequence looks for cached blocks once, when it is admitted. **Guess first:**
which of the six find the common beginning in the cache?
"""

# %%
def serve_stories(share, num_blocks=40, **options):
    scheduler = CopyOnWriteScheduler(
        PrefixCache(num_blocks, BLOCK), max_num_seqs=4, max_num_batched_tokens=64,
        share_prefixes=share, **YOURS, **options
    )
    sequences, runner = six_stories(SYSTEM), ModelRunner(model, num_blocks, BLOCK)
    return sequences, scheduler, runner, serve_recorded(runner, scheduler, sequences)


unshared, *_ = serve_stories(False)
sharing, stories, runner, sharing_steps = serve_stories(True)
print("the same answers:",
      [one.output_ids for one in unshared] == [one.output_ids for one in sharing])
prompt_tokens = sum(len(sequence.prompt_ids) for sequence in sharing)
hits = {id: tokens for step in sharing_steps for id, tokens in step.hits.items()}
saved = sum(hits.values())
print(f"found in the cache: {hits}")
print(f"prefill tokens: {prompt_tokens} without sharing, {prompt_tokens - saved} with it: "
      f"{saved / prompt_tokens:.0%} saved")

# %% [markdown]
"""
A was the first, and found nothing. All others start with A's three blocks. B does, too, although it was admitted in the
same step as A, when nothing had been computed yet! The scheduler gives a block its hash as soon as it has scheduled the
tokens that fill it. That works, since each layer writes the keys and values of the whole batch before it computes
attention.

### Requests that arrive together

How much does that save? Compare it with a scheduler whose blocks get their hashes after the step that fills them. The
requests arrive together, each with the common beginning and eight tokens of its own.
"""

# %%
class HashesAfterTheStep(CopyOnWriteScheduler):
    def schedule(self):
        self.filled = []
        return super().schedule()

    def cache_full_blocks(self, *filled):
        self.filled.append(filled)

    def update_from_output(self, *output):
        for filled in self.filled:
            super().cache_full_blocks(*filled)
        return super().update_from_output(*output)


def tokens_computed(scheduler_class, count):
    pool = PrefixCache(300, BLOCK)
    scheduler = scheduler_class(pool, max_num_seqs=16, max_num_batched_tokens=1024, **YOURS)
    for n in range(count):
        scheduler.add(Sequence(str(n), [*beginning, *range(8 * n, 8 * n + 8)], 1))
    computed = 0
    while scheduler.has_unfinished():
        scheduler_output = scheduler.schedule()
        computed += scheduler_output.num_tokens
        scheduler.update(scheduler_output, [0] * len(scheduler_output.num_scheduled_tokens))
    return computed


counts = (1, 2, 4, 8, 16, 32)
Table(
    columns=["requests", *map(str, counts)],
    rows=[
        ["tokens of their prompts", *(n * (len(beginning) + 8) for n in counts)],
        ["computed, hashes after the step",
         *(tokens_computed(HashesAfterTheStep, n) for n in counts)],
        ["computed, hashes when scheduled",
         *(tokens_computed(CopyOnWriteScheduler, n) for n in counts)],
    ],
    caption="Requests with a common beginning that arrive together",
)

# %% [markdown]
"""
With hashes after the step, every request admitted in the first step computes the beginning: all 16 that have a batch
slot. With hashes at scheduling, only the first one does. vLLM works the same way.

### You choose the order

An app adds three parts to every prompt: instructions that are always the same, a description of the reader, who is one
of three children in turn, and the time, which is never the same. It sends twelve prompts, one after the other.
"""

# %%
def prompt_of(n, order):
    name = ("Mia", "Tim", "Ben")[n % 3]
    parts = {
        "instructions": SYSTEM.strip(),
        "reader": f" The reader is {name}, who is five years old. "
                  f"{name} likes dogs and boats, but not the dark, "
        "and reads with Mom in the evening.",
        "time": f" It is {8 + n}:30.",
    }
    return [token for part in order for token in tokenizer(parts[part]).input_ids]


print("tokens in prompt 0:",
      {part: len(prompt_of(0, [part])) for part in ("instructions", "reader", "time")})

# %% [markdown]
"""
Change the order in the next cell so that your pool finds as many tokens as possible.

**11.c** How many prompt tokens are found with your order, over all twelve?
"""

# %%
order = ["reader", "time", "instructions"]  # change this
predict("11.c", ...)  # tokens

# %%
def tokens_of_first_step(scheduler, prompt_ids):
    scheduler.add(Sequence("one", prompt_ids, 1))
    scheduler_output = scheduler.schedule()
    scheduler.update(scheduler_output, [0])  # no model computes it, so any token will do
    return scheduler_output.num_tokens


def tokens_found(order):
    scheduler = CopyOnWriteScheduler(PrefixCache(200, BLOCK), max_num_seqs=1,
                                     max_num_batched_tokens=200, **YOURS)
    prompts = [prompt_of(n, order) for n in range(12)]
    return sum(len(prompt) - tokens_of_first_step(scheduler, prompt) for prompt in prompts)


reveal("11.c", tokens_found(order), unit="tokens")
for other in sorted(permutations(sorted(order)), key=tokens_found, reverse=True):
    print(f"{tokens_found(other):4}  "
          f"{', '.join(other)}{'  ← yours' if list(other) == list(order) else ''}")

# %% [markdown]
"""
What all prompts share goes first, then what some of them share, and last what is new each time. With the time at the
front, nothing is ever found: a hash covers all tokens before its block too, so one difference changes all hashes from
there on. With the reader at the front, the first prompt for each reader finds nothing, not even the instructions.
OpenAI charges less for cached tokens, and [advises the same](https://developers.openai.com/docs/guides/prompt-caching).

## Measure

A user notices how long the first token takes. A request is a document followed by a question of 64 tokens, and then
comes another question about the same document. *Your* pool schedules both; the milliseconds were recorded on a GPU,
with a model of the shape of Llama 3.1 (8 billion parameters). The longest document has 32,768 tokens, and its first
question gets its first token after more than a second. **Guess first:** when does the second one get it?
"""

# %%
provenance, recorded = recorded_first_tokens()
print(provenance)
rows = []
for row in recorded:
    pool = PrefixCache(blocks_for(row["beginning"] + 2 * 64, BLOCK), BLOCK)
    scheduler = CopyOnWriteScheduler(pool, max_num_seqs=1,
                                     max_num_batched_tokens=row["computed"], **YOURS)
    first, second = (tokens_of_first_step(scheduler, [*range(row["beginning"]), *[word] * 64])
                     for word in (1, 2))
    assert first == row["computed"] and second == row["computed_after_hit"], "other tokens"
    before, after = 1000 * row["first_token_s"], 1000 * row["first_token_after_hit_s"]
    rows.append([f"{row['beginning']:,}", f"{first:,}", second, f"{before:,.0f}",
                 f"{after:.0f}", f"{before / after:.0f}"])
Table(
    columns=["tokens of the document", "first question: computed", "second question: computed",
             "first: ms", "second: ms", "ratio of ms"],
    rows=rows,
    caption="A question about a document, then another one: "
            "tokens computed and time to the first token",
)

# %% [markdown]
"""
The first question pays for the document. Later ones don't, but their first token still comes later if the document is
longer: their 64 tokens attend to all of it, and the pool has to find all of its blocks. And even for 64 tokens, all
weights are read from memory, so a short document saves little.

The time also tells a user whether the document was in the cache, and thus whether another user has sent it lately.
("Further" says how vLLM keeps users apart.)

## What is still wrong

**Every answer is the likeliest one, and comes all at once.** Nothing can be sampled, streamed, stopped or aborted. In
lesson 12, we put all parts together into one engine.

## Quiz
"""

# %%
quiz("11")

# %% [markdown]
"""
## References

- W. Kwon et al.: *Efficient Memory Management for Large Language Model Serving with PagedAttention*, SOSP 2023;
  sections 4.3 and 4.4.
  <https://arxiv.org/abs/2309.06180>
- L. Zheng et al.: *SGLang: Efficient Execution of Structured Language Model Programs*, NeurIPS 2024; RadixAttention in
  section 3.
  <https://arxiv.org/abs/2312.07104>
- vLLM: automatic prefix caching. <https://docs.vllm.ai/en/latest/design/prefix_caching.html>
- nano-vllm: `nanovllm/engine/block_manager.py`. <https://github.com/GeeeekExplorer/nano-vllm>
- Hugging Face transformers: continuous batching. <https://huggingface.co/docs/transformers/main/en/continuous_batching>
"""

# %% [markdown] folded=true
"""
## Further (optional)

What the lesson doesn't need. It isn't part of its 90 minutes.
"""

# %% [markdown]
"""
### What production does

- **vLLM**: `hash_block_tokens` in `vllm/v1/core/kv_cache_utils.py` hashes the parent's hash, the tokens, and everything
  else that makes a difference: the adapter, the images, and a *salt* that keeps users apart. `FreeKVCacheBlockQueue` in
  the same file is our `LruQueue`, written as a linked list. If a prompt is entirely in the cache, vLLM uses one block
  fewer, and computes the whole last block again. It serves n samples of one prompt as n requests that find each other's
  blocks by hash (`vllm/v1/engine/parallel_sampling.py`). Lesson 12's engine does both in the same way, so it shares
  full blocks only and has nothing to copy.
- **nano-vllm** has its prefix cache in `nanovllm/engine/block_manager.py`. Its hash has only 64 bits, so it compares
  the tokens as well.
- **SGLang** keeps prefixes in a tree of tokens instead of a table of hashes, *RadixAttention*, and evicts the least
  recently used leaves (`python/sglang/srt/mem_cache/radix_cache.py`). It can also schedule requests with a long cached
  prefix first.
- **Hugging Face transformers** shares blocks by hash with `allow_block_sharing` in `generation/continuous_batching`,
  and its `cache.py` has `prepare_fork_request` for several samples.

### B comes back

The sequences of the six stories overlapped. But a beginning is also found when no sequence uses it anymore. Let B come
back for four tokens after all six have ended:
"""

# %%
from lessons_lib.viz.pressure import draw_pressure
from lessons_lib.viz.stepper import Stepper

found, in_use = len(sharing_steps[-1].cached), len(stories.pool.used)
print(f"all have ended; {in_use} blocks are in use, {found} free ones can still be found")
again = six_stories(SYSTEM)[1]
again.max_new_tokens = 4
return_steps = serve_recorded(runner, stories, [again], first_index=len(sharing_steps))
hit, counted = return_steps[0].hits["B"], return_steps[0].counts["B"]
print(f"B again: {hit} of its {len(again.prompt_ids)} prompt tokens found, {counted} computed")
print("the same answer:", again.output_ids == sharing[1].output_ids[:4])
all_steps, comes_back = sharing_steps + return_steps, len(sharing_steps)
Stepper(lambda i: draw_pressure(all_steps[i]), count=len(all_steps), start=comes_back,
        still=comes_back)

# %% [markdown]
"""
### Optional: start from what is cached

**Exercise 11.5** (optional). Write `take_cached(pool, sequence, blocks)`. `pool` is a `PrefixCache`. `sequence` has no
blocks. It has `sequence.num_tokens` known tokens, including those of its answer so far. `blocks` is a list of one or
more blocks that `pool.match_prefix` returned for it, so they hold its first `len(blocks) × pool.block_size` known
tokens. Return nothing, and don't change the list `blocks`. Afterwards:

- The sequence starts with these blocks, in a list of its own: `sequence.blocks`. There is one exception. If they hold
  *all* known tokens and no block would be left for the copy, the sequence does without the last of them.
- `sequence.num_computed_tokens` is the number of tokens in its blocks, but at most the number of known tokens minus
  one.
- The pool has counted the sequence as a user of its blocks.

Which block can the copy go to? To one that is free, and isn't among `blocks`: a block that was found may itself still
be in `pool.free_queue`, but it's about to leave it.

Example, blocks of 16: with 40 known tokens and blocks [0, 1], 32 count as computed, no matter which other blocks are
free. With 32 known tokens and blocks [0, 1], 31 count if a third block is free. If not, the sequence gets [0], and 16
count.
"""

# %% exercise="11.5"
from lessons_lib.scheduling.shared_blocks import take_cached

# %% [markdown]
"""
### Preemption and sharing together

A preempted sequence frees its blocks. But other sequences may still use the blocks of the common beginning, and the
rest keep their hashes until they are allocated again. So a victim may find part of its own cache when it is admitted
again. The six stories in a pool of 16 blocks, with recompute and your `take_cached`:
"""

# %%
from lessons_lib.scheduling import never_swap

YOURS["take_cached"] = take_cached


def row_of_pressure(share):
    sequences, scheduler, _, steps = serve_stories(share, num_blocks=16,
                                                   should_swap=never_swap)
    assert [one.output_ids for one in sequences] == [one.output_ids for one in unshared]
    computed = sum(sum(step.counts.values()) for step in steps)
    victims = {id for step in steps for id in step.preempted}
    # a victim's last admission counts
    found = {id: step.hits.get(id, 0) for step in steps
             for id in step.admitted if id in victims}
    found = ", ".join(f"{id} {tokens}" for id, tokens in sorted(found.items()))
    name = "with sharing" if share else "without sharing"
    return [name, len(steps), scheduler.num_preempted, found, computed, scheduler.pool.evicted]


Table(
    columns=["", "steps", "preemptions", "found on readmission", "tokens computed",
             "cached blocks evicted"],
    rows=[row_of_pressure(False), row_of_pressure(True)],
    caption="Six stories with a common beginning, in 16 blocks; the answers are the same",
)

# %% [markdown]
"""
Fewer blocks are needed, so fewer sequences are preempted. And a preempted sequence doesn't lose everything: F finds four
blocks of its prompt again. That's one reason why an engine with a prefix cache can do without swapping.

### Stretch: what should be lost first?

*Least recently used* is the usual order, but not the best possible one. One long document that never comes again can
push out the beginning of all other requests. Find an order that finds more prompt tokens again. Your function gets a
block that is free and cached, and returns a number or a tuple. Of all free blocks, the one with the largest value is
lost first. A block has four attributes:

| attribute | meaning |
|---|---|
| `index` | its place in its sequence; 0 is the first block |
| `uses` | how many requests have used it, the one that computed it included |
| `last_use` | how many requests ago it was used, 1 or more |
| `first_use` | how many requests ago it was computed |

The scoreboard serves requests that you haven't seen: questions after one of six system prompts, conversations that grow
turn by turn, and long documents that come once. They are served one at a time, and only the cache is simulated. The
last row knows which requests will come. The cell starts out with the order of your queue.
"""

# %%
from lessons_lib.checks.lesson_11.scoreboard import eviction_scoreboard


def lost_first(block):
    return block.last_use, block.index  # replace this


eviction_scoreboard(lost_first)

# %% [markdown]
"""
### Prove it

Whatever is shared, copied, preempted or swapped, every request must get the answer that it would get alone. Twenty
random workloads on a small random model, with common beginnings, pools that are barely large enough, and limits of all
kinds. After every step, `audit` checks that hashes, reference counts and block tables agree:
"""

# %%
import random
from types import SimpleNamespace

from lessons_lib.batching import ragged_generate
from lessons_lib.kv_cache import BlockPool, PagedKVCache
from lessons_lib.models import VOCAB_SIZE, tiny_model
from lessons_lib.scheduling import FirstComeFirstServed, ShortestJobFirst
from lessons_lib.scheduling import StrictPriority, always_swap

tiny, plain = tiny_model("qwen2"), SimpleNamespace(pad_token_id=0, eos_token_id=24)


def random_run(rng):
    """Serve a random workload. Returns (its sequences, their answers when served alone, the
    scheduler, the steps)."""
    size, most = rng.choice((1, 2, 4)), rng.choice((2, 4, 6))
    base = [rng.randrange(VOCAB_SIZE) for _ in range(32)]
    ends = [[rng.randrange(VOCAB_SIZE) for _ in range(rng.choice((1, 2, 9)))]
            for _ in range(6)]
    prompts = [base[: rng.choice((0, 4, 16))] + end for end in ends]
    prompts[1] = list(prompts[0])  # may be entirely in the cache
    sequences = [
        Sequence(str(i), p, rng.choice((5, 12, 20)), frozenset({24}), rng.random(),
                 rng.randrange(2))
        for i, p in enumerate(prompts)
    ]
    num_blocks = max(blocks_for(one.most_tokens, size)
                     for one in sequences) + rng.choice((0, 1, 4))
    scheduler = CopyOnWriteScheduler(
        PrefixCache(num_blocks, size),
        max_num_seqs=most,
        max_num_batched_tokens=most + rng.choice((0, 5, 60)),
        policy=rng.choice((FirstComeFirstServed, ShortestJobFirst, StrictPriority))(),
        watermark=rng.choice((0, 1)),
        swap_space=BlockPool(rng.choice((0, 8, 60)), size),
        should_swap=rng.choice((always_swap, never_swap)),
        share_prefixes=rng.random() < 0.7,
        **YOURS,
    )
    max_tokens = [one.max_new_tokens for one in sequences]
    alone = ragged_generate(tiny, plain, prompts, max_new_tokens=max_tokens, max_num_seqs=1)
    cache = PagedKVCache(tiny.config, 60, size)  # of the swap space
    steps = serve_recorded(ModelRunner(tiny, num_blocks, size), scheduler, sequences, cache)
    return sequences, alone, scheduler, steps


total = dict(equal=0, requests=0, steps=0, preemptions=0, swapped=0, hits=0, copies=0)
for seed in range(20):
    sequences, alone, scheduler, steps = random_run(random.Random(seed))
    assert len(scheduler.pool.free_queue) == scheduler.pool.num_blocks
    total["equal"] += sum(one.output_ids == answer for one, answer in zip(sequences, alone))
    total["requests"] += len(sequences)
    total["steps"] += len(steps)
    total["preemptions"] += scheduler.num_preempted
    total["swapped"] += scheduler.num_swapped
    total["hits"] += sum(len(step.hits) for step in steps)
    total["copies"] += sum(one.kind == "copy" for step in steps for one in step.block_copies)
print(", ".join(f"{name} {count}" for name, count in total.items()))
