# %% [markdown]
"""
# 11 · Prefix sharing

![A pool whose first three blocks belong to four sequences; some free blocks are still cached](../lessons_lib/assets/openings/11.svg)

**Many requests begin with the same text. Does each of them have to compute and store it?**

75 minutes · difficulty: medium · routes: serving · prerequisites: lesson 10 (memory pressure)

Lesson 10 took blocks back when there were too few. It's better to need fewer. Here, sequences with the same beginning
(the same *prefix*) share the blocks that hold it.
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
from lessons_lib.viz.pressure import draw_free_queue, draw_pressure
from lessons_lib.viz.source import show_source
from lessons_lib.viz.stepper import Stepper
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

1. **Find.** Each full block gets a hash, computed from its tokens and all tokens before them. A table maps hashes to
   blocks, and a new sequence looks up its own hashes there.
2. **Count.** Several sequences may use a block, so it becomes free only when the last of them is done with it.
3. **Copy.** A sequence must not write to a block that others use. It gets a copy of its own first.

Why not find a block by its 16 tokens alone? From the second layer on, a key depends on all tokens before it. So the
hash has to cover everything up to the end of the block. To stay cheap, it includes the previous hash instead of all
those tokens:

> **block hash**: the hash of a full block's tokens together with the hash of the block before it. Equal hashes mean
> equal tokens from the start of the sequence to the end of the block.

```text
block 0: hash(b"", tokens  0 to 15) = h0
block 1: hash(h0,  tokens 16 to 31) = h1
block 2: hash(h1,  tokens 32 to 47) = h2
```

Only full blocks have a hash. A block that is still being filled changes in the next step.

## Build 1: find

If two beginnings had the same hash, one user would read another user's cache. So it must be impossible to *construct*
such a pair. No one knows how to find two inputs with the same SHA-256; for MD5 and Python's `hash`, it's easy.

**Exercise 11.1.** Write `block_hash(parent, token_ids)`. `parent` is the hash of the block before, or `b""` for the
first block. `token_ids` is a list of ints, the tokens of a full block. Blocks have any size, and ids go up to 200,000.
Use SHA-256 and no other hash, and return its 32 `bytes`. They depend on all of `parent`, on every token and its
position, and on nothing else: `[1, 2, 34, 5]`, `[5, 34, 2, 1]` and `[12, 3, 4, 5]` all have different hashes.

`hashlib.sha256(data).digest()` hashes bytes, and `array(code, ints).tobytes()` packs ints into bytes, with a
[code](https://docs.python.org/3/library/array.html) for the size of each. Both are imported in the cell.
"""

# %% exercise="11.1"
import hashlib
from array import array

from lessons_lib.kv_cache.block_hashes import block_hash

# %% [markdown]
"""
### Break it: a careless hash

Is `parent` really needed? Here's a hash that leaves it out. The story of Tom and the story of Lily differ in their
first block, `tom` and `lily`, and go on with the same second one, `rain`. `CopyOnWriteScheduler` is lesson 10's
scheduler with a prefix cache. It calls your hash for every full block.

Now attack: send any prompts before Lily's, made of the parts `tom`, `lily`, `rain` and `soon`. Only `lily` followed by
`rain` is forbidden. Change `before` so that Lily gets a wrong answer.
"""

# %%
texts = (
    "Tom was a big dog. He lived in a house with a red door.",
    "Lily was a small cat. She lived in a box with a blue roof.",
    " One day it began to rain. It rained and rained all day.",
    " Soon",
)
tom, lily, rain, soon = (tokenizer(text).input_ids for text in texts)  # 3 blocks, 1 token


def careless_hash(parent, token_ids):
    return block_hash(b"", token_ids)


def lilys_answer(before, block_hash):
    """Serve the prompts in `before`, then Lily's. Returns (how many of her tokens were found,
    her answer)."""
    scheduler = CopyOnWriteScheduler(PrefixCache(32, BLOCK), max_num_seqs=1,
                                     max_num_batched_tokens=64, block_hash=block_hash)
    runner = ModelRunner(model, 32, BLOCK)
    for prompt in [*before, lily + rain + soon]:
        sequence = Sequence("one", prompt, 18, END)
        steps = serve_recorded(runner, scheduler, [sequence])
    return steps[0].hits.get("one", 0), tokenizer.decode(sequence.output_ids)


right = lilys_answer([], block_hash)[1]

# %%
before = [tom + rain + soon]  # change this

found, answer = lilys_answer(before, careless_hash)
print(f"Lily: {found} tokens found, the answer is {'right' if answer == right else 'WRONG'}")

# %% [markdown]
"""
Tom's prompt alone does nothing: Lily's *first* block isn't found, so the scheduler doesn't look for her second one. It
takes another prompt, which puts her first block into the cache. Here are both, first with the careless hash, then with yours.
Words between » and « differ from the right answer.
"""

# %%
attack = [tom + rain + soon, lily + soon]
careless_found, careless = lilys_answer(attack, careless_hash)
found, answer = lilys_answer(attack, block_hash)
print(f"careless hash, {careless_found} tokens found: "
      f"{tokenizer.decode(lily + rain + soon)}{marked(right, careless)}\n")
print(f"your hash, {found} tokens found: … Soon{marked(right, answer)}")

# %% [markdown]
"""
Nothing crashes, and it isn't gibberish. Both second blocks contain the same tokens, but Tom's keys depend on what came
before them, so Lily's story goes on as his did. On a server, another user's prompt would have changed your answer.

## Count

> **reference count**: how many users something has. When the count drops to 0, it is free.

A free block keeps its contents until it is allocated for something else. If a sequence with the same beginning comes
in time, the block leaves the free queue again, perhaps from the middle.

X allocates three blocks. Y begins like X, so it also uses X's first two (`touch`). Both end. Then Z arrives and begins
like them:
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
unused for longest. A sequence's last block joins first, since it is useless without the ones before it. This is all of
`free`; the order comes from `super().free`, lesson 03's:
"""

# %%
show_source(SharedBlockPool.free)

# %% [markdown]
"""
## Find and count together

> **prefix cache**: full blocks that can be found by their hashes (*cached blocks*), whether or not a sequence uses
> them.

> **eviction**: losing the contents of a cached block because it is allocated for something else. The usual order
> is *least recently used* first, which is the order of the free queue.

The library's `PrefixCache` is a pool that counts and finds:

| of the pool | what it is |
|---|---|
| `allocate(count)` | takes blocks from the front of the queue. Their count is 1, and their old hashes are forgotten |
| `touch(blocks)` | one more sequence uses each of these blocks, which leave the queue if they were in it |
| `free(blocks)` | one sequence fewer uses each of them; they keep their hashes |
| `match_prefix(block_hashes)` | the blocks of the longest cached beginning; changes nothing |
| `is_writable(block)` | whether a sequence may write to its block: the count is 1, and it has no hash |
| `free_queue`, `ref_count` | the free blocks; block → how many sequences use it (a free one has no entry) |

In a pool of six blocks, X computes three full ones, with the hashes a, b and c, and ends. Y begins with a and b, uses
these two, and ends. Then Z arrives, finds nothing, and allocates five blocks.

**11.a** After that, how many of X's three blocks does a sequence that begins like X find?
"""

# %%
predict("11.a", ...)  # blocks

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
reveal("11.a", len(pool.match_prefix([a, b, c])), unit="blocks")
draw_free_queue(states)

# %% [markdown]
"""
Z gets the three blocks that never contained anything, then c's, unused since X ended, then b's. The first block of the
beginning, a's, would be evicted last.

## Build 2: start from what is cached

A new sequence starts with the blocks that `match_prefix` has found: they are touched, they become its first blocks, and
their tokens count as computed. That sounds like three lines of code. Here's the trap.

X computes a prompt of exactly three blocks, the first 48 tokens of the common beginning, and ends. Then Y comes with
the same prompt. All three blocks are still there.

**11.b** How many tokens does Y's first step compute?
"""

# %%
predict("11.b", ...)  # tokens

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
reveal("11.b", y_steps[0].counts["Y"], unit="tokens")
print("the same answer:", x.output_ids == y.output_ids)

# %% [markdown]
"""
If all 48 tokens counted as computed, there would be no logits to choose the first token of the answer from! Engines
have crashed here ([vLLM](https://github.com/vllm-project/vllm/issues/53706),
[nano-vllm](https://github.com/GeeeekExplorer/nano-vllm/issues/144)). So the last known token is always computed.

And why the copy? The key of token 47 goes to the third block, which has a hash: others may find it and read it. (Would
it do harm to write the same key again? Yes: in another batch its last digits may differ, so an answer could depend on
requests that came later.) Y gets a copy of the block, and writes there.

> **copy-on-write**: sharing something until one of its users wants to change it. That user gets a copy, and the others
> keep the original.

The copy needs a free block. If there is none, the sequence leaves out its last found block and computes those tokens
again. That's slower, but it never gets stuck.

**Exercise 11.2.** Write `take_cached(pool, sequence, blocks)`. The sequence has no blocks yet, and
`sequence.num_tokens` known tokens, those of its answer so far included. `blocks` is what `pool.match_prefix` returned
for it: one or more blocks, which hold its first `len(blocks) × pool.block_size` known tokens. Afterwards:

- `sequence.blocks` is a list of its own with these blocks. The last one is left out only if they hold *all* known
  tokens and no block is left for the copy.
- `sequence.num_computed_tokens` is the number of tokens in its blocks, but at most the known tokens minus one.
- The pool has counted the sequence as a user of its blocks, and nothing else has changed. The copy comes later.

The copy can take any free block that isn't among `blocks`. (A block that was found may be in `pool.free_queue`, too,
but it's about to leave it.)

| known tokens | `blocks` | other free blocks | `sequence.blocks` | computed |
|---|---|---|---|---|
| 40 | [0, 1] | any number | [0, 1] | 32 |
| 32 | [0, 1] | 1 | [0, 1] | 31 |
| 32 | [0, 1] | 0 | [0] | 16 |
"""

# %% exercise="11.2"
from lessons_lib.scheduling.shared_blocks import take_cached

# %% [markdown]
"""
## Build 3: copy before a write

Y needed a copy because its whole prompt was cached. There's a second use: several answers to one prompt.

> **fork**: creating a second sequence with all the tokens of an existing one. Both use the same blocks.

A fork copies nothing. But then the two go on with different tokens, and both would write to the last block.

**Exercise 11.3.** Write `copy_before_write(pool, sequence, index)`. The sequence is about to write to the block
`sequence.blocks[index]`, and `pool.is_writable` says that it may not. Afterwards:

- Its table has a block at `index` that it may write to. The rest of the table is as before.
- The old block is as before, for the sequences that read it now, and for those that find it later.
- The pool counts each block exactly as often as tables contain it.

Return `BlockCopy(COPY, source, target)`: copy block `source` to block `target`. You copy nothing yourself. If no block
is free, raise `OutOfBlocks` and change nothing at all.

Example with four blocks. X and its fork Y have blocks 0 and 1, and Y is about to write to block 1:

| | X's table | Y's table | `ref_count` | free queue |
|---|---|---|---|---|
| before | 0, 1 | 0, 1 | 0: 2, 1: 2 | 2, 3 |
| `copy_before_write(pool, y, 1)` returns `BlockCopy(COPY, 1, 2)` | 0, 1 | 0, 2 | 0: 2, 1: 1, 2: 1 | 3 |

The copies are made before the forward pass writes any key, so it does no harm if a source is free by then.
"""

# %% exercise="11.3"
from lessons_lib.scheduling.shared_blocks import copy_before_write

# %%
# For all runs below:
YOURS.update(take_cached=take_cached, copy_before_write=copy_before_write)

# %% [markdown]
"""
### Four samples of one prompt

B's prompt has 62 tokens. We want four answers to it, so X, Y and Z are forks of B, and each begins with a different one
of the four likeliest tokens. The prompt's last block has room for two more, and all four are about to write to it.

**11.c** Some steps later, each has 70 tokens, 69 of them computed. Without sharing, they would use 4 × 5 = 20 blocks of
16. How many do the four use together, if everything that can be shared is stored only once?
"""

# %%
predict("11.c", ...)  # blocks

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
# copies nothing: each block has three more users
samples = [b, *(fork(scheduler, b, id) for id in "XYZ")]
for sample, token in zip(samples[1:], likeliest[1:]):
    sample.output_ids[-1] = token  # chosen, but not computed yet
copies = [f"{one.source} → {one.target}"
          for one in recorded_step(runner, scheduler).block_copies]
print(f"block copies in the first step after the fork: {', '.join(copies)}")
while b.num_computed_tokens < 69:
    recorded_step(runner, scheduler)
reveal("11.c", len(pool.used), unit="blocks")
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

Now everything together: your hash, your `take_cached`, your copies. Four sequences at a time, at most 64 tokens per
step, and plenty of blocks. All six wait from the start. After they have ended, B's prompt is sent again, for an answer
of four tokens.
"""

# %%
def serve_stories(share):
    scheduler = CopyOnWriteScheduler(
        PrefixCache(40, BLOCK), max_num_seqs=4, max_num_batched_tokens=64,
        share_prefixes=share, **YOURS
    )
    sequences, runner = six_stories(SYSTEM), ModelRunner(model, 40, BLOCK)
    steps = serve_recorded(runner, scheduler, sequences)
    again = six_stories(SYSTEM)[1]
    again.max_new_tokens = 4
    return sequences, steps, serve_recorded(runner, scheduler, [again], first_index=len(steps))


unshared, *_ = serve_stories(False)
sharing, steps, return_steps = serve_stories(True)
print("the same answers:",
      [one.output_ids for one in unshared] == [one.output_ids for one in sharing])
prompt_tokens = sum(len(sequence.prompt_ids) for sequence in sharing)
hits = {id: tokens for step in steps for id, tokens in step.hits.items()}
saved = sum(hits.values())
print(f"found in the cache: {hits}; when B's prompt comes again: {return_steps[0].hits['B']}")
print(f"prefill tokens: {prompt_tokens} without sharing, {prompt_tokens - saved} with it: "
      f"{saved / prompt_tokens:.0%} saved")
all_steps = steps + return_steps
Stepper(lambda i: draw_pressure(all_steps[i]), count=len(all_steps), still=22)

# %% [markdown]
"""
A was the first, and found nothing. All others start with A's three blocks. B does, too, although it was admitted in the
same step as A, when nothing had been computed yet! A block gets its hash as soon as the tokens that fill it are
scheduled, and each layer writes the keys of the whole batch before it computes attention. And when B's prompt comes
again, no sequence uses its blocks anymore, but all six full ones are still there.

### You choose the order

An app adds three parts to every prompt: instructions, always the same; the reader, one of three children in turn; and
the time, never the same. It sends twelve prompts, one after the other.
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
Change the order in the next cell so that as many tokens as possible are found.
"""

# %%
order = ["reader", "time", "instructions"]  # change this

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


print("prompt tokens found over all twelve, for each order:")
for other in sorted(permutations(sorted(order)), key=tokens_found, reverse=True):
    print(f"{tokens_found(other):4}  "
          f"{', '.join(other)}{'  ← yours' if list(other) == list(order) else ''}")

# %% [markdown]
"""
What all prompts share goes first, then what some share, and last what is new each time. With the time at the front,
nothing is ever found: one difference changes all hashes from there on. OpenAI charges less for cached tokens, and
[advises the same](https://developers.openai.com/docs/guides/prompt-caching).

## Measure

A user notices how long the first token takes. A request is a document followed by a question of 64 tokens, and then
comes another question about the same document. Your code counts the tokens; the milliseconds were recorded on a GPU,
with a model of the shape of Llama 3.1 (8 billion parameters).
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
                 f"{after:.0f}", f"{before / after:.0f} ×"])
Table(
    columns=["tokens of the document", "first question: computed", "second question: computed",
             "first: ms", "second: ms", "speedup"],
    rows=rows,
    caption="A question about a document, then another one: "
            "tokens computed and time to the first token",
)

# %% [markdown]
"""
The first question pays for the document. Later ones don't, but their 64 tokens still attend to all of it, so a longer
document takes longer. And even for 64 tokens, all weights are read from memory, so a short document saves little.

The time also tells a user whether a document is in the cache, and thus whether another user has sent it lately. vLLM
can mix a *salt* into a user's first hash, so that users find only their own blocks.

## What is still wrong

**Every answer is the likeliest one, and comes all at once.** Nothing can be sampled, streamed, stopped or aborted.
Lesson 12 puts all parts together into one engine.

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

None of this is part of its 75 minutes.
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

### Stretch: what should be lost first?

*Least recently used* is the usual order, but not the best possible one. One long document that never comes again can
push out the beginning of all other requests. Find an order in which more prompt tokens are found. Your function gets a
block that is free and cached, and returns a number or a tuple. Of all free blocks, the one with the largest value is
lost (evicted) first. A block has four attributes:

| attribute | meaning |
|---|---|
| `index` | its place in its sequence; 0 is the first block |
| `uses` | how many requests have used it, the one that computed it included |
| `last_use` | how many requests ago it was used, 1 or more |
| `first_use` | how many requests ago it was computed |

The scoreboard serves requests that you haven't seen: questions after one of six system prompts, conversations that grow
turn by turn, and long documents that come once. They are served one at a time, and only the cache is simulated. The
last row knows which requests will come. The cell starts out with the order of the free queue.
"""

# %%
from lessons_lib.checks.lesson_11.scoreboard import eviction_scoreboard


def lost_first(block):
    return block.last_use, block.index  # replace this


eviction_scoreboard(lost_first)
