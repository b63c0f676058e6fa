# %% [markdown]
"""
# 11 · Prefix sharing

**Must two requests with the same beginning store it twice?**

75 minutes · difficulty: hard · routes: serving · you need first: lesson 10 (memory pressure)
"""

# %%
import inspect
import random
from types import SimpleNamespace

from lessons_lib.batching import ragged_generate
from lessons_lib.checks import check, hint, predict, progress, quiz, reveal, solution
from lessons_lib.engine import ModelRunner
from lessons_lib.kv_cache import BlockPool, PagedKVCache, PrefixCache, copy_blocks, blocks_for
from lessons_lib.measuring import STORIES, ledger, median_ms, recorded_engine
from lessons_lib.models import VOCAB_SIZE, load_model, tiny_model
from lessons_lib.recording import recorded_step, serve_recorded
from lessons_lib.kv_cache import BlockCopy, SWAP_IN
from lessons_lib.scheduling import Deadlock, FirstComeFirstServed, PreemptionCost, PreemptiveScheduler, SWAP_OUT, Scheduler, Sequence, ShortestJobFirst, StepCost, SchedulerOutput, StrictPriority, always_swap, conservative, copy_before_write, fork, never_swap, optimistic, share_budget, simulate, traffic
from lessons_lib.viz import Stepper
from lessons_lib.viz.charts import line_chart
from lessons_lib.viz.pressure import draw_pressure
from lessons_lib.viz.tables import Table

model, tokenizer = load_model(device="cpu")  # in float32: equal means equal to the last token
END = frozenset({tokenizer.eos_token_id})
BLOCK = 16


def six_stories(before=""):
    """The six stories as sequences, in the order A to F; each prompt begins with the text `before`."""
    prompts = {story.name: tokenizer(before + story.prompt).input_ids for story in STORIES}
    return [Sequence(story.name, prompts[story.name], story.max_new_tokens, END, arrival_time=i) for i, story in enumerate(STORIES)]


# %% [markdown]
"""
## Sharing: the same beginning

The best way to have more blocks is to need fewer. Real requests often begin alike: the instructions that stand before every question, the
conversation so far, the examples. Let all six stories begin with the same text.
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
print("prompt tokens:", {sequence.id: len(sequence.prompt_ids) for sequence in together})
print(f"all begin with the same {len(beginning)} tokens: {len(beginning) // BLOCK} full blocks of {BLOCK}")

# %% [markdown]
"""
## Predict

The second one is about sharing. B's prompt has 62 tokens. Four samples of its answer are wanted: four sequences with the same prompt, and answers
that differ from their first token on. Each of them has 70 tokens now, 69 of them computed. Apart, they hold 4 × 5 = 20 blocks of 16.
"""

# %%
predict("11.a", ...)  # How many blocks do the four hold together, if nothing is stored twice that could be stored once?

# %% [markdown]
"""
Keys and values of these tokens are the same in all six. They need to be there once. With a block table per sequence nothing stands in the way: two
tables may name the same block.

How does a new sequence find out which block holds what it needs? It asks for the block by a **name**. The name cannot be the tokens of the block
alone. A key depends on all tokens before it:
"""

# %%
def second_block_keys(token_ids):
    """Keys of the tokens 16 to 31 of a sequence, in all layers."""
    runner, sequence = ModelRunner(model, 2, BLOCK), Sequence("A", token_ids, 1, blocks=[0, 1])
    runner.forward(SchedulerOutput(num_scheduled_tokens={sequence: 32}))
    return [keys[1] for keys in runner.cache.keys]


tail = beginning[16:32]
here, there = second_block_keys(beginning[:16] + tail), second_block_keys(beginning[1:16] + beginning[:1] + tail)
for layer, (one, other) in enumerate(zip(here, there)):
    print(f"layer {layer}: keys of the same 16 tokens behind two beginnings differ by up to {(one - other).abs().max():.1f}")

# %% [markdown]
"""
Only in the first layer is a key a matter of its own token and position. So the name must stand for all tokens up to the end of the block. A long name
for a long beginning would be a nuisance. A hash is short, and can be chained: each block's name is made of its own tokens and of the name of the
block before.

> **block hash**: the name of a full block: a hash of its tokens and of the name of the block before it. Equal names mean equal tokens from the very
> beginning to the end of the block.

Only full blocks have names. One that is still being filled will be another one in the next step.

## Build 2: names

A hash turns any bytes into a few. `hashlib.sha256(data).digest()` turns them into 32, and nobody knows how to find two inputs with the same result.
That matters: if somebody could make a prompt that is called like another user's, they would read from that one's cache.

**Your task: `block_hash(parent, token_ids)`.** `parent` is the name of the block before, 32 bytes, and `b""` for the first block. `token_ids` is a
list of ints, the tokens of one full block. Return the name, 32 `bytes`. It depends on all of `parent`, and on every token and its place, and on
nothing else: the same arguments give the same name in every call, in every process. Token ids may be as large as 200,000. Leave the list as it is.

`array("q", token_ids).tobytes()` are the bytes of a list of ints, eight for each. `array` and `hashlib` are imported in the cell. `+` puts bytes
behind bytes.
"""

# %% exercise="11.1"
import hashlib
from array import array

from lessons_lib.kv_cache.prefix_cache import block_hash

# %% [markdown]
"""
The names of all full blocks of three of the prompts, in their first eight digits:
"""

# %%
def names_of(token_ids):
    names = []
    for start in range(0, len(token_ids) // BLOCK * BLOCK, BLOCK):
        names.append(block_hash(names[-1] if names else b"", token_ids[start : start + BLOCK]))
    return names


for sequence in together[1::2]:
    print(f"{sequence.id}: {len(sequence.prompt_ids)} tokens:", *(name.hex()[:8] for name in names_of(sequence.prompt_ids)))

# %% [markdown]
"""
The first three names are the same. From the fourth block on the stories differ, and so do all names.

## Build 3: a pool that shares

Lesson 03's pool knew one holder for each block. Now several sequences may hold a block, so the pool counts them.

> **reference count**: how many hold a thing. What nobody holds any more is free.

There is one more step to take. When the last holder of a block has gone, what is in it is still there, and still right. The next sequence with this
beginning may come in a minute. So a free block keeps its contents and its name until it is handed out for something else. A pool that looks full of
cached blocks is a pool with all these blocks free.

> **prefix cache**: full blocks kept under their names, whether anybody holds them or not, so that a sequence can begin with those that hold its first
> tokens.

Which free block is handed out first? The one that has been of no use for longest, since it is the least likely to be asked for again.

> **eviction**: losing what a cached block held, because the block is handed out. *Least recently used* first is the usual order.

The free queue does that by itself: who comes back joins the end, and the front is handed out. Only now a block may also leave from the middle, when
it is shared. `LruQueue` in the library is a queue that can do that: `self.free_queue.pop(block, None)` takes a block out wherever it stands, and does
nothing if it is not there.

A `PrefixCache` is a `BlockPool` with these books:

| attribute | what it says |
|---|---|
| `num_blocks`, `block_size` | as in lesson 03 |
| `free_queue` | the blocks that nobody holds, least recently used in front |
| `used` | the set of blocks that somebody holds |
| `ref_count` | block → how many sequences hold it; no entry if nobody does |
| `hash_to_block`, `block_to_hash` | name → block, and block → name, for full blocks that have one |

`allocate` (count 1 for new blocks, and their old names are lost), `cache_full_block` (a held block is full and computed) and `is_writable` are given.

**Your task: `match_prefix`, `touch` and `free`.**

- `find(names)`: `names` is a list of bytes, the names of the full blocks of a sequence, in order. Return the list of the blocks that have these
  names, from the first on, up to the first name that is unknown. Behind a gap nothing is of use. Change nothing.
- `share(blocks)`: one more sequence holds each of these blocks. Count it. A block that was free leaves the free queue and joins `used`. A block that
  nobody holds *and* that has no name holds nothing: raise `ValueError`, and change nothing at all.
- `free(blocks)`: one sequence, given its blocks in the order of its tokens, does not hold them any more. Lower the counts; an entry that comes to 0
  is deleted. Those that nobody holds now go back to the free queue: at its end, the *last* block of the sequence first, since a block is of no use
  without those before it. They keep their names. If a block is not held, or stands in the list twice, raise `ValueError` and change nothing at all.

`super().free(some_blocks)` is lesson 03's `free`. It refuses what is not in `used`, takes the blocks out of `used`, and puts them at the end of the
free queue, last one first. It looks at all of its blocks before it changes anything.

Example with six blocks. X allocates three and gets [0, 1, 2]; they get the names a, b, c. X ends: `free([0, 1, 2])`, and the free queue is [3, 4, 5,
2, 1, 0]. Y has a beginning with the names a, b, z: `find([a, b, z])` gives [0, 1]. After `share([0, 1])` the queue is [3, 4, 5, 2], and `ref_count` is
{0: 1, 1: 1}.
"""

# %% exercise="11.2" given="__init__ allocate cache_full_block is_writable"
from lessons_lib.kv_cache.block_pool import BlockPool
from lessons_lib.kv_cache.prefix_cache import LruQueue

from lessons_lib.kv_cache.prefix_cache import PrefixCache

# %% [markdown]
"""
X and Y of the example, and then Z, which needs five blocks of its own:
"""

# %%
pool = PrefixCache(6, BLOCK)
a, b, c, z = (block_hash(b"", [number] * BLOCK) for number in range(4))


def told_pool(what):
    letters = dict(zip((a, b, c, z), "abcz"))
    names = {block: letters[name] for block, name in sorted(pool.block_to_hash.items())}
    print(f"{what:<25} queue {list(pool.free_queue)}, holders {pool.ref_count}, names {names}, lost {pool.evicted}")


x_blocks = pool.allocate(3)
for block, name in zip(x_blocks, (a, b, c)):
    pool.cache_full_block(block, name)
told_pool("X has three full blocks")
pool.free(x_blocks)
told_pool("X has ended")
y_blocks = pool.match_prefix([a, b, z])
pool.touch(y_blocks)
told_pool(f"Y found and shares {y_blocks}")
pool.free(y_blocks)
told_pool("Y has ended")
pool.allocate(5)
told_pool("Z takes five")

# %% [markdown]
"""
Z's blocks come from the front of the queue: first the three that never held anything, then c's block, which nobody has used since X, then b's. The
beginning, a, is the last to go.

### A block is not written while others look at it

A sequence writes its new tokens into its last block. If others hold that block, or can find it by its name, they would read what it writes. So before
a write the scheduler asks `pool.is_writable(block)`, and where the answer is no, the sequence gets a copy of its own first.

> **copy-on-write**: sharing a thing until somebody wants to change it; that one gets a copy, and the others keep the original.
"""

# %%
print(inspect.getsource(copy_before_write))
print(inspect.getsource(PreemptiveScheduler.make_room))

# %% [markdown]
"""
When does that happen? Full blocks are shared, and tokens are written behind them, into a block of one's own. There are two cases. One is a fork,
further down. The other is a prompt that is found in the cache as a *whole*.

## Build 4: beginning with what is cached

A sequence is admitted. It holds no block yet. `match_prefix` gave some blocks for it, so it begins with them: it shares them, they are its first blocks, and
their tokens count as computed. That is all, but for one trap.

Suppose a prompt of 32 tokens, and both its blocks are found. All 32 tokens are computed. Then there is nothing left to compute, and so no logits,
from which the first token of the answer is chosen! Engines have crashed here ([vLLM](https://github.com/vllm-project/vllm/issues/53706),
[nano-vllm](https://github.com/GeeeekExplorer/nano-vllm/issues/144)). So the last known token is computed all the same: 31 count as
computed. Its key is written to the place where an equal one lies already, in the second block, and that block is not the sequence's own. `make_room`
will see that, and copy the block first. For the copy, one block must be free.

**Your task: `take_cached(pool, sequence, blocks)`.** `pool` is a `PrefixCache`. `sequence` holds no block, and has `sequence.num_tokens` known
tokens, those of its answer so far included. `blocks` is a list of one or more blocks that `pool.find` gave for it, so they hold its first
`len(blocks) × pool.block_size` known tokens. Return nothing; change `sequence`:

1. If the blocks hold *all* known tokens, a block for the copy is needed. It has to be free, and not one of `blocks`: those of them that nobody holds
   stand in `pool.free_queue` too, and will leave it. If there is no such block, leave the last of `blocks` out. Its tokens are computed again.
2. Share the blocks that are left: `pool.touch(...)`.
3. `sequence.blocks` is a list of these blocks, its own list, since it will grow.
4. `sequence.num_computed_tokens` is the number of tokens in these blocks, but at most all known tokens less one.

Do not change the list `blocks`. Example, blocks of 16: with 40 known tokens and blocks [0, 1], 32 count as computed, whatever is free. With 32 known
tokens and blocks [0, 1], 31 count if a third block is free. If not, the sequence gets [0], and 16 count.
"""

# %% exercise="11.3"
from lessons_lib.scheduling.preemption import take_cached

# %% [markdown]
"""
Try it on a prompt that is in the cache as a whole: the first 48 tokens of the common beginning. X computes it; then Y comes with the same prompt. Y's
first step is done by hand here.
"""

# %%
prompt = beginning[:48]
pool, runner = PrefixCache(8, BLOCK), ModelRunner(model, 8, BLOCK)
x = Sequence("X", prompt, 5, blocks=pool.allocate(3))
logits_of_x = runner.forward(SchedulerOutput(num_scheduled_tokens={x: 48}))
for block, name in zip(x.blocks, names_of(prompt)):
    pool.cache_full_block(block, name)

y = Sequence("Y", prompt, 5)
take_cached(pool, y, pool.match_prefix(names_of(prompt)))
print(f"Y begins with the blocks {y.blocks}, of which {y.num_computed_tokens} tokens count as computed; holders {pool.ref_count}")
move = copy_before_write(pool, y, index=2)
copy_blocks([move], runner.cache, None)
print(f"{move.kind} {move.source} → {move.target}: Y holds {y.blocks}, X holds {x.blocks}; holders {pool.ref_count}")
logits_of_y = runner.forward(SchedulerOutput(num_scheduled_tokens={y: 1}))
print(f"X's and Y's first token: {tokenizer.decode(logits_of_x.argmax())!r}, {tokenizer.decode(logits_of_y.argmax())!r}")
print(f"their logits differ by less than 0.0001: {bool((logits_of_x - logits_of_y).abs().max() < 1e-4)}")

# %% [markdown]
"""
Y computed 1 token where X computed 48.

### The six stories with a common beginning

Four at a time, at most 64 tokens a step, blocks enough. All four pieces are yours now. `scheduler_output.cached` says of everybody who is admitted how many of
its tokens were in the cache; in a recorded step it is `hits`.
"""

# %%
YOURS = dict(block_hash=block_hash, take_cached=take_cached)


def with_beginning(share, num_blocks=40, **how):
    scheduler = PreemptiveScheduler(
        PrefixCache(num_blocks, BLOCK), max_num_seqs=4, max_num_batched_tokens=64, share_prefixes=share, **YOURS, **how
    )
    sequences, runner = six_stories(SYSTEM), ModelRunner(model, num_blocks, BLOCK)
    return sequences, scheduler, runner, serve_recorded(runner, scheduler, sequences)


apart, *_ = with_beginning(False)
sharing, scheduler, runner, sharing_steps = with_beginning(True)
print("the same answers:", [one.output_ids for one in apart] == [one.output_ids for one in sharing])
prompt_tokens = sum(len(sequence.prompt_ids) for sequence in sharing)
hits = {name: tokens for step in sharing_steps for name, tokens in step.hits.items()}
print(f"found in the cache: {hits}")
saved = sum(hits.values())
print(f"prefill tokens: {prompt_tokens} without sharing, {prompt_tokens - saved} with it: {saved / prompt_tokens:.0%} saved")

# %% [markdown]
"""
A found nothing, as it was the first. B found nothing either: it was admitted in the same step as A, and a block has a name only when it has been
computed. So B computed the common beginning a second time. Its three copies stay without names, since A's have them already (`cache_full_block`). C to F
begin with A's three blocks.

All of them overlapped. But the beginning is found too when nobody holds it any more. Let B come once more, for four tokens, when all six have ended:
"""

# %%
print(f"all have ended; {len(scheduler.pool.used)} blocks are held, {len(sharing_steps[-1].cached)} free ones can be found again")
again = six_stories(SYSTEM)[1]
again.max_new_tokens = 4
return_steps = serve_recorded(runner, scheduler, [again], first_index=len(sharing_steps))
print(f"B again: {return_steps[0].hits['B']} of its {len(again.prompt_ids)} prompt tokens found, {return_steps[0].counts['B']} computed")
print("the same answer:", again.output_ids == sharing[1].output_ids[:4])

# %%
all_steps, comes_back = sharing_steps + return_steps, len(sharing_steps)
Stepper(lambda i: draw_pressure(all_steps[i]), count=len(all_steps), start=comes_back, still=comes_back)

# %% [markdown]
"""
In the picture nobody but B holds a block. The dotted blocks are free, and still found by their names until somebody needs them.

### Preemption and sharing together

A victim's blocks are dropped. But a block of the common beginning has other holders, or keeps its name until somebody needs the block. So a victim
may find a part of itself again when it comes back. The same six in a pool of 14 blocks, recompute:
"""

# %%
def row_of_pressure(share):
    sequences, scheduler, _, steps = with_beginning(share, num_blocks=14, should_swap=never_swap)
    assert [one.output_ids for one in sequences] == [one.output_ids for one in apart]
    computed = sum(sum(step.counts.values()) for step in steps)
    victims = {name for step in steps for name in step.preempted}  # they come back later than everybody's first time
    found = {name: step.hits.get(name, 0) for step in steps for name in step.admitted if name in victims}
    found = ", ".join(f"{name} {tokens}" for name, tokens in sorted(found.items()))
    return ["with sharing" if share else "without sharing", len(steps), scheduler.num_preempted, found, computed, scheduler.pool.evicted]


Table(
    columns=["", "steps", "preemptions", "found on coming back", "tokens computed", "cached blocks lost"],
    rows=[row_of_pressure(False), row_of_pressure(True)],
    caption="Six stories with a common beginning, in 14 blocks; the answers are the same",
)

# %% [markdown]
"""
Sharing helps twice: fewer blocks are needed, so fewer sequences are preempted; and who is preempted does not lose all: B finds
its whole prompt again, and the beginning of its answer. That is one reason why an engine with a prefix cache may do without swap.

## Fork: several samples of one prompt

> **fork**: making a second sequence with all tokens of a first one. They hold the same blocks, the last one too, which may not be full.

Nothing is copied at that moment. The copies are made when one of them writes into the last block. Whoever still holds that block at the end holds it
alone, and needs no copy.
"""

# %%
print(inspect.getsource(fork))

# %% [markdown]
"""
B's prompt, and four ways to go on. Choosing at random comes in lesson 12; here each sample begins with another of the four likeliest tokens. X, Y and
Z are forks of B.
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
for name, token in zip("XYZ", likeliest[1:]):
    sample = fork(pool, b, name)
    sample.output_ids[-1] = token  # chosen, and not computed yet
    scheduler.add(sample)
    samples.append(sample)
print(f"after the fork: blocks {b.blocks}, holders {pool.ref_count}")

# %%
fork_steps = [recorded_step(runner, scheduler)]
print("copies in the first step after it:", ", ".join(f"{move.source} → {move.target}" for move in fork_steps[0].block_copies))
while b.num_computed_tokens < 69:
    fork_steps.append(recorded_step(runner, scheduler, index=len(fork_steps)))
held = len(pool.used)
alone = sum(len(sample.blocks) for sample in samples)
reveal("11.a", held, unit="blocks")
print(f"together they hold {held} blocks; if each had its own: {alone}")
Stepper(lambda i: draw_pressure(fork_steps[i]), count=len(fork_steps), start=0, still=0)

# %%
while scheduler.has_unfinished():
    fork_steps.append(recorded_step(runner, scheduler, index=len(fork_steps)))
for sample in samples:
    print(f"{sample.id}: …he asked his friend the duck{tokenizer.decode(sample.output_ids)}")

# %% [markdown]
"""
## Prove it

The claim: whatever is preempted, swapped, dropped, shared or copied, every answer is the one that the request gets alone. And no block is ever lost.
After every step, `audit` compares the books: each block is free, or held by exactly as many sequences as its count says; names and blocks agree;
every sequence has the blocks that its tokens need.

Twenty random workloads on a small random model: prompts with common beginnings, pools that are barely large enough, all kinds of limits. Some have a
victim chosen by chance.
"""

# %%
tiny, plain = tiny_model("qwen2"), SimpleNamespace(pad_token_id=0, eos_token_id=24)


def random_workload(rng):
    """(sequences, scheduler, runner, cache of the swap space)"""
    size = rng.choice((1, 2, 4))
    base = [rng.randrange(VOCAB_SIZE) for _ in range(32)]
    prompts = [base[: rng.choice((0, 4, 16))] + [rng.randrange(VOCAB_SIZE) for _ in range(rng.choice((1, 2, 9)))] for _ in range(6)]
    prompts[1] = list(prompts[0])  # a prompt that may be found as a whole
    sequences = [Sequence(str(i), p, rng.choice((5, 12, 20)), frozenset({24}), rng.random(), rng.randrange(2)) for i, p in enumerate(prompts)]
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
    alone = ragged_generate(tiny, plain, [sequence.prompt_ids for sequence in sequences], max_new_tokens=max_tokens_each, max_num_seqs=1).outputs
    record = serve_recorded(runner, scheduler, sequences, swap_cache)  # audits after every step
    assert len(scheduler.pool.free_queue) == scheduler.pool.num_blocks
    total["equal"] += sum(sequence.output_ids == answer for sequence, answer in zip(sequences, alone))
    total["requests"] += len(sequences)
    total["steps"] += len(record)
    total["preemptions"] += scheduler.num_preempted
    total["swapped"] += scheduler.num_swapped
    total["hits"] += sum(len(step.hits) for step in record)
    total["copies"] += sum(move.kind == "copy" for step in record for move in step.block_copies)
print(", ".join(f"{name} {count}" for name, count in total.items()))

# %% [markdown]
"""
The course's own tests do the same on hundreds of workloads. Faults that were reported of other engines, and what keeps ours from them:

| fault | reported for | here |
|---|---|---|
| A prompt that was wholly in the prefix cache left nothing to compute. | [vLLM][1] | `take_cached` counts at most all known tokens less one. |
| A preempted sequence that found blocks read behind its table. | [nano-vllm][2] | Who is admitted takes its blocks before its tokens are counted. |
| A step read blocks that were free already. | [vLLM on Ascend][3] | What anybody holds is not free: `free` lowers a count; `audit` compares. |
| At a block boundary, room was looked for at the wrong token. | [MinivLLM][4] | `make_room` counts the blocks for the tokens of the step. |

[1]: https://github.com/vllm-project/vllm/issues/53706
[2]: https://github.com/GeeeekExplorer/nano-vllm/pull/211
[3]: https://github.com/vllm-project/vllm-ascend/issues/14055
[4]: https://github.com/Wenyueh/MinivLLM/pull/85

## Measure

What is saved in time? Twelve requests, each with the common beginning and a story behind it, and four tokens of answer: with and without sharing, one
after the other and in turns.
"""

# %% tags=["measured"]
def twelve_answers(share):
    pool = PrefixCache(120, BLOCK)
    scheduler = PreemptiveScheduler(pool, max_num_seqs=4, max_num_batched_tokens=64, share_prefixes=share, **YOURS)
    sequences = [Sequence(f"{n}{one.id}", one.prompt_ids, 4, arrival_time=i) for n in range(2) for i, one in enumerate(six_stories(SYSTEM))]
    runner = ModelRunner(model, 120, BLOCK)
    return serve_recorded(runner, scheduler, sequences)


runs = {}
apart_ms, shared_ms = median_ms([lambda: runs.update(apart=twelve_answers(False)), lambda: runs.update(shared=twelve_answers(True))], repeat=3)
computed_apart, computed_shared = (sum(sum(step.counts.values()) for step in steps) for steps in (runs["apart"], runs["shared"]))
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
In the second round each story's own prompt is found too, as far as it fills blocks.

### The ledger
"""

# %% tags=["measured"]
ledger(model, tokenizer, "11", with_cache_only=True, since="06")

# %% [markdown]
"""
The last row serves all six at a time in half of the blocks that they may need together, with about as many forward calls as the two rows above it.
The price is the part of its tokens that is computed twice. Sharing spares little here, as these prompts begin differently; only a
victim finds blocks of its own again.

## What production does

- **vLLM**, in `vllm/v1/core/sched/scheduler.py`: when `allocate_slots` returns None, a victim is taken. With priorities it is `max(self.running,
  key=lambda r: (r.priority, r.arrival_time))`, and without them `self.running.pop()`, the last admitted. `_preempt_request` frees its blocks and sets
  `num_computed_tokens` to 0. Nobody is admitted in such a step (`if not preempted_reqs`). vLLM's first engine could swap (`swap_space`); the present
  one recomputes. `num_gpu_blocks` is the size of its pool, and `KVCacheManager` has a `watermark`, a share of all blocks.
- vLLM's prefix cache: `hash_block_tokens` in `vllm/v1/core/kv_cache_utils.py` hashes the parent's hash, the tokens, and what else makes a difference:
  which adapter, which images, a salt of one's own. `FreeKVCacheBlockQueue` in the same file is our `LruQueue`, a linked list, with the tail of a
  sequence in front too. `KVCacheManager.get_computed_blocks` has our trap in a comment: when all tokens hit, the last must be computed again. It
  takes one block less then, and computes all of it.
- vLLM serves n samples of one prompt as n requests that find each other's blocks by name (`vllm/v1/engine/parallel_sampling.py`).
- **nano-vllm** has it all in `nanovllm/engine/block_manager.py`. Its hash has 64 bits, so it compares the tokens as well.
- **SGLang** keeps beginnings in a tree of tokens in place of a table of hashes, *RadixAttention*, and evicts its least recently used leaves
  (`python/sglang/srt/mem_cache/radix_cache.py`). It also lets requests that find much in the cache go first.
- **Hugging Face transformers** has both ways of preemption in `generation/continuous_batching/offloading_manager.py`: the cache goes to a buffer in
  the CPU's memory, and where that is full or missing, the request is reset and computed again. Blocks are shared by hashes with
  `allow_block_sharing`, and `cache.py` has `prepare_fork_request` for several samples.

The paper on PagedAttention describes swap, recompute, sharing and copy-on-write in its section 4, and compares swap with recompute in section 7.3:
with small blocks swap is slow, because of many small transfers; between 16 and 64 tokens a block the two are alike. With the numbers assumed above,
they meet in the same range.

## What is still wrong

**Nobody asks for anything but the likeliest token.** Forks make sense when tokens are chosen at random.

**Nobody sees a token before all are there.** There is no streaming, no way to stop at a word, none to give up a request.

**Nobody measures a running engine.** In lesson 12 all parts so far become one engine with these things.

## Quiz
"""

# %%
quiz("11")

# %% [markdown]
"""
## References

- W. Kwon et al.: *Efficient Memory Management for Large Language Model Serving with PagedAttention*, SOSP 2023; sections 4.3 to 4.5 and 7.3.
  <https://arxiv.org/abs/2309.06180>
- L. Zheng et al.: *SGLang: Efficient Execution of Structured Language Model Programs*, NeurIPS 2024; RadixAttention in section 3.
  <https://arxiv.org/abs/2312.07104>
- vLLM: automatic prefix caching, <https://docs.vllm.ai/en/latest/design/prefix_caching.html>; preemption,
  <https://docs.vllm.ai/en/latest/configuration/optimization.html>
- nano-vllm: `nanovllm/engine/block_manager.py`. <https://github.com/GeeeekExplorer/nano-vllm>
- Hugging Face transformers: continuous batching. <https://huggingface.co/docs/transformers/main/en/continuous_batching>
"""
