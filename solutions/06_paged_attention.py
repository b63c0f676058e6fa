# %% [markdown]
"""
# 06 · Paged attention in PyTorch

![A softmax over the keys of one block after another, with its running sum](../lessons_lib/assets/openings/06.svg)

**Can attention read keys and values straight from scattered blocks, so that we never concatenate or split a cache
again?**

75 minutes · difficulty: medium · routes: ideas, kernels, serving · prerequisites: lesson 03 (blocks, slots) and
lesson 05 (the packed batch)

Lesson 03 kept the books of a cache in blocks, but no model used it. Lesson 05 computed many requests in one packed row,
but copied their caches in every step. Now keys and values go into the blocks and stay there. You'll write the cache,
the softmax and the attention; at the end, a model uses them to continue stories that you begin.
"""

# %% folded=true
import random
from types import SimpleNamespace

import torch

from lessons_lib.attention import Partial, add_block_naive, attention_of, nothing_seen
from lessons_lib.batching import paged_generate, paged_step, ragged_generate
from lessons_lib.batching.paged_batching import forward_in_blocks
from lessons_lib.checks import check, hint, predict, progress, quiz, reset, reveal, solution
from lessons_lib.kv_cache import BlockPool, blocks_for
from lessons_lib.measuring import MAX_NEW_TOKENS, NAMES, PROMPTS, STORIES, ledger
from lessons_lib.models import VOCAB_SIZE, cache_bytes_per_token, load_model, tiny_model
from lessons_lib.recording import attention_inputs, record_blocks, record_run
from lessons_lib.viz.stepper import Stepper
from lessons_lib.viz.charts import line_chart
from lessons_lib.viz.pool import draw_pool_access
from lessons_lib.viz.softmax import draw_rescaling, draw_softmax_step
from lessons_lib.viz.source import show_source

# %%
model, tokenizer = load_model(device="cpu")  # float32: rounding is too small to change a token
SIX = dict(prompts=PROMPTS, max_new_tokens=MAX_NEW_TOKENS, names=NAMES)
prompt_ids = {story.name: tokenizer(story.prompt).input_ids for story in STORIES}

# %% [markdown]
"""
## The problem: everything is copied, almost nothing is new

Here's a late step of the six stories, served by lesson 05's loop.
"""

# %%
ragged = record_run(ragged_generate, model, tokenizer, **SIX, max_num_seqs=4)
late = ragged.packed[59].packed
print(f"step 60: {sum(late.new_lens)} new tokens, {sum(late.cached_lens)} cached tokens")

# %% [markdown]
"""
The model's own attention wants one contiguous tensor with all the keys. So lesson 05 copied the keys and values of
every cached token three times (joining the caches, appending, splitting), and those of the new tokens once. But keys
don't change once they're computed.

Lesson 03 gave every token a fixed cache slot: block id × block size + offset. If a pass wrote its new keys and values
to their slots, and if attention could read from slots, nothing else would have to move.

**Predict 06.a** Step 60 computed the keys and values of 4 tokens. How many times as much did it copy?
"""

# %%
predict("06.a", ...)

# %% [markdown]
"""
## The idea

> **paged attention**: attention that finds the keys and values of a sequence through its block table. The blocks may be
> anywhere in one pool.

The next cell serves C, E and A with short answers, at most two at a time, from a pool of seven blocks of four tokens.
The pool has been in use for a while, so its free blocks are in no particular order. Step through it.
"""

# %%
def used_pool(num_blocks, block_size):
    """A pool with its free blocks in random order."""
    pool = BlockPool(num_blocks, block_size)
    random.Random(6).shuffle(pool.free_queue)
    return pool


small = record_run(
    paged_generate, model, tokenizer, [PROMPTS[NAMES.index(name)] for name in "CEA"],
    max_new_tokens=[3, 7, 4], names="CEA",
    max_num_seqs=2, num_blocks=7, block_size=4, make_pool=used_pool,
)  # fmt: skip
Stepper(lambda i: draw_pool_access(small.accesses[i]), count=len(small.accesses),
        start=0, still=4)

# %% [markdown]
"""
Each new token is written to one slot. Each request reads the slots of its own tokens, block by block in the order of
its table. C finishes in step 3. In step 4 the last token of A's prompt goes into one of C's two blocks; in step 5 E
gets the other.

## Build 1: a cache in blocks

Each layer has one tensor of keys and one of values, each with the shape `[num_blocks, block_size, KV heads, head
size]`. `keys[3][7, 2]` is the key at offset 2 of block 7, in layer 3. Which request owns it? Only the block tables say.

**Exercise 06.1: `write(layer, keys, values, slot_mapping)`** writes the key and value of token *t* to slot
`slot_mapping[t]` of this layer's tensors, without a loop over tokens or blocks, and without a copy of the pool. Slots
come in any order. You needn't raise the `ValueError`. `__init__` and `read` are given.

Example, with blocks of 4 and `slot_mapping` [8, 9, 10, 11, 4]: five tokens of one sequence are written to block 2 and
to offset 0 of block 1. Then `read(layer, [2, 1], 5)` returns the five tokens in their order.
"""

# %% exercise="06.1" given="__init__ read"
from lessons_lib.models.configuration import KVShape, kv_shapes

from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache

# %% [markdown]
"""
`read` gathers:

> **gather**: copying scattered rows of a tensor into one contiguous tensor.

With `read`, lesson 05's attention could already serve from blocks. But it would still copy every cached key in every
step.

## Build 2: softmax, one block at a time

For one query, with a score and a value for each key, attention is

```
             sum over the keys of exp(score) × value
attention =  ───────────────────────────────────────
             sum over the keys of exp(score)
```

Both sums can be accumulated block by block, with one division at the end. The state between two blocks is a `Partial`.
For Q queries at once, and values of D elements, it has

- `maximum`, [Q]: the largest score so far, −∞ before the first key (you'll need it soon),
- `total`, [Q]: the denominator,
- `output`, [Q, D]: the numerator.

Make one by name: `Partial(maximum=..., total=..., output=...)`.

`nothing_seen(num_queries, head_size, dtype)` is the state before the first key, and `attention_of(seen)` does the
division. Here's a block, straight from the formula:
"""

# %%
show_source(add_block_naive)

# %% [markdown]
"""
Let's try it on real scores: those of the last token of D's prompt, in layer 1 and query head 3. (It uses KV head 1:
four query heads share two KV heads. All are counted from 0.)
"""

# %%
BLOCK = 4
query, key, value, scale = attention_inputs(model, prompt_ids["D"])[1]  # heads come first
scores, values = query[3, -1:] @ key[1].T * scale, value[1]
tokens = [tokenizer.decode(token) for token in prompt_ids["D"]]


def in_blocks(add, scores, values, block_size=BLOCK):
    """Start with the empty state and add one block of keys at a time."""
    seen = nothing_seen(len(scores), values.shape[1], scores.dtype)
    for block in zip(scores.split(block_size, dim=1), values.split(block_size)):
        seen = add(seen, *block)
    return seen


for block, own in enumerate(scores[0].split(BLOCK), start=1):
    print(f"D's scores in block {block}:", " ".join(f"{score:5.1f}" for score in own.tolist()))
expected = scores.softmax(dim=1) @ values
naive = attention_of(in_blocks(add_block_naive, scores, values))
print(f"float32: correct up to rounding: {torch.allclose(naive, expected, atol=1e-5)}; "
      f"exp(88) is {torch.tensor(88.0).exp():.1e}, exp(89) is {torch.tensor(89.0).exp()}")
half = attention_of(in_blocks(add_block_naive, scores.half(), values.half()))
print(f"float16: the first elements are {half[0, :4].tolist()}; exp(11) is "
      f"{torch.tensor(11.0).half().exp():.0f}, exp(12) is {torch.tensor(12.0).half().exp()}")

# %% [markdown]
"""
> **overflow**: a result that is too large for its float type. It becomes infinity, and infinity divided by infinity is
> NaN (*not a number*).

In float16, exp(12) already overflows, and all of D's scores are larger than that. In float32 it happens from 89 on. And
if all scores are far below zero, every exponential is 0, and 0 / 0 is NaN.

Here's the fix. Subtract the same constant from all scores of a query. This divides both sums by e to the power of that
constant, so attention doesn't change. The best choice is the **largest score**: no exponential exceeds 1, and one of
them is exactly 1, so the denominator isn't 0.

But block by block, we don't know the largest score until the last block. So we use the largest score *so far*. And when
a larger one shows up? Here are two keys with scores 1 and 2, and values 10 and 20. Then comes a key with score 3:
"""

# %%
draw_rescaling(scores=[1, 2], values=[10, 20], new_score=3, new_value=30)

# %% [markdown]
"""
Each key is a box: its height is its weight, exp(score − largest score), and its width is its value. The heights add up
to the denominator, the areas to the numerator. A larger maximum makes every old box lower, and *all by the same
factor*, 0.368 here, whatever its score was. So you can forget the scores and keep the two sums.

> **online softmax**: a softmax that takes its scores one block at a time. It keeps the largest score so far, and its
> sums are always relative to that.

**Predict 06.b** D's scores are printed above. In how many of the blocks 2 to 6 must the sums so far be corrected?
"""

# %%
predict("06.b", ...)

# %% [markdown]
"""
Where does the factor come from? You know the old maximum and the new one. Work it out on paper before you write code.

**Exercise 06.2: `add_block(seen, scores, values)`**, for Q queries and K keys at once. Return a new `Partial` over the
keys seen so far and those of this block, with both sums relative to the new maximum. Each query has its own maximum.
Don't modify `seen`.

A key that a query may not see has the score −∞. A query that still hasn't seen any key keeps the empty state:
maximum −∞, total 0, output 0. (Beware: −∞ − (−∞) is NaN.) The fields have the dtype of the scores.

The picture is an example, with one query and values of one element. After scores [1, 2] the maximum is 2, the total
1.368 and the output 23.68; after score [3], they're 3, 1.503 and 38.71. Their quotient, 25.75, is the attention.
"""

# %% exercise="06.2"
from lessons_lib.attention.online_softmax import add_block

# %% [markdown]
"""
One factor corrects both sums, since exp(score − new) = exp(score − old) × exp(old − new). Here's your function on D's
scores. Step through the blocks, and watch the factor:
"""

# %%
recorded = record_blocks(scores, values, BLOCK, add_block)
larger = [step.block for step in recorded[2:] if step.factor < 1]
reveal("06.b", len(larger), unit="blocks")
print(f"after the first block, only blocks {' and '.join(map(str, larger))} brought a "
      "larger score")
mine = attention_of(in_blocks(add_block, scores.half(), values.half()))
print("in float16, your function is within 0.02 of float32:",
      torch.allclose(mine.float(), expected, rtol=0, atol=0.02))
Stepper(lambda i: draw_softmax_step(recorded, i, tokens), count=len(recorded),
        start=1, still=5)

# %% [markdown]
"""
## Build 3: paged attention

Here's the attention of one sequence in one layer, as you'd write it with a gather. The queries belong to the *last*
tokens of the sequence: a decode has one, a prompt has all its tokens, and a chunk something in between.
"""

# %%
def attention_gathered(query, keys, values, blocks, num_tokens, scale):
    """Attention of a sequence's last len(query) tokens, over a copy of its keys and values."""
    q_heads, block_size, kv_heads = query.shape[1], *keys.shape[1:3]
    # a batch pads its block tables with zeros
    used = blocks[: blocks_for(num_tokens, block_size)]
    own_keys, own_values = (cache[used].flatten(0, 1)[:num_tokens] for cache in (keys, values))
    position = torch.arange(num_tokens)
    is_later = position > position[-len(query) :, None]
    out = torch.empty_like(query)
    for head in range(q_heads):
        kv_head = head * kv_heads // q_heads  # neighboring query heads share a KV head
        scores = query[:, head] @ own_keys[:, kv_head].T * scale
        weights = scores.masked_fill(is_later, float("-inf")).softmax(dim=1)
        out[:, head] = weights @ own_values[:, kv_head]
    return out


# %% [markdown]
"""
It copies the whole context, and holds a score for every key. But `add_block` doesn't care where its keys come from. So
go through the block table, read one block at a time, and add it to a `Partial`. That's paged attention. And a block can
be read in place: `keys[7]` is a view of block 7, and so is a slice of it. (`keys[[7, 2]]`, with a list, gathers.)

**Exercise 06.3: `attention_in_place(query, keys, values, blocks, num_tokens, scale)`** returns what
`attention_gathered` returns for the same arguments, up to rounding. Your `add_block`, with `nothing_seen` and
`attention_of`, does the softmax. The shapes are in the docstring. `num_tokens` counts cached and new tokens; all their
keys and values are in the cache already. `blocks` may be longer than needed. Two rules:

1. Don't gather: hold the keys, values and scores of one block at a time. The check measures your largest tensor of
   floats, which mustn't grow with the context.
2. Slots without a token of this sequence may hold anything, even NaN. A hidden key has weight 0, but 0 × NaN is NaN. So
   don't read them.

Example: six tokens in blocks [2, 0] of four slots, the last two tokens new, so Q is 2. `#` is a key that the token
attends to, `.` one that it doesn't, and `-` a slot that must not be read.

```
                  block 2     block 0
position of key   0 1 2 3     4 5 - -
token 4           # # # #     # . - -
token 5           # # # #     # # - -
```
"""

# %% exercise="06.3"
from lessons_lib.attention.plain_attention import attention_in_place

# %% [markdown]
"""
One function computes prompts, chunks and decodes, and never holds more than one block's scores.

## Plugging it into a real model

A Hugging Face model looks up its attention function by name. `AttentionInterface.register("paged", function)` registers
one, and `model.set_attn_implementation("paged")` makes a model use it. The library's function does two things in each
layer. It writes the new keys and values to their slots, and then it calls `attend`, which comes from a backend. The
order matters: a new token attends to itself too.

> **attention backend**: the code that computes attention for a packed batch. An engine has several and picks one that
> suits the hardware.

The loop is lesson 05's; only its forward pass is new. Each request has a `BlockTable` (lesson 03) instead of a cache of
its own, and that's where the slots come from:
"""

# %%
show_source(forward_in_blocks)

# %% [markdown]
"""
`paged_forward` calls the backend once per pass. The backend returns `attend`, which every layer calls. In the next
cell, `attend` calls your `attention_in_place` for one sequence after the other. A request joins only if the pool could
hold it and all running requests at their `max_tokens` limits, so no request runs out of blocks.
"""

# %%
def my_backend(packed, block_tables, block_size):
    tables, context_lens = block_tables.tolist(), packed.context_lens.tolist()

    def attend(query, keys, values, scale):
        sequences = zip(query.split(packed.new_lens), tables, context_lens)
        return torch.cat([attention_in_place(own, keys, values, blocks, count, scale)
                          for own, blocks, count in sequences])

    return attend


MINE = dict(backend=my_backend, make_cache=PagedKVCache)
paged = record_run(paged_generate, model, tokenizer, **SIX, max_num_seqs=4,
                   block_size=16, **MINE)
print("same answers as lesson 05:", paged.outputs == ragged.outputs)
print(f"in {len(paged.accesses)} steps, with a pool of {paged.accesses[0].num_blocks} blocks "
      "of 16: as many as the four largest requests may need")

# %% [markdown]
"""
## Prove it

Every request must get the same tokens as in lesson 05, which were compared with `generate`. Here are twenty random
requests on three small models, in a pool so small that requests have to wait for blocks.
"""

# %%
# any token can act as the end token of a random model
plain = SimpleNamespace(pad_token_id=0, eos_token_id=24)
rng = random.Random(6)
prompts = [[rng.randrange(VOCAB_SIZE) for _ in range(rng.choice((1, 2, 4, 5, 16, 17, 40)))]
           for _ in range(20)]
LOAD = dict(prompts=prompts, max_new_tokens=[rng.choice((1, 2, 5, 17)) for _ in prompts],
            max_num_seqs=8)
for family in ("gpt2", "llama", "qwen2"):
    tiny = tiny_model(family)
    run = record_run(paged_generate, tiny, plain, **LOAD, block_size=4, num_blocks=28, **MINE)
    same = sum(a == b for a, b in zip(run.outputs, ragged_generate(tiny, plain, **LOAD)))
    waited = sum(bool(step.waiting) and len(step.names) < 8 for step in run.packed)
    print(f"{family:>6}: {same} of 20 answers equal; "
          f"waited for blocks in {waited} of {len(run.packed)} steps")

# %% [markdown]
"""
## Break it

A block table is a list. How much does its order matter to your attention? The next cell serves the six stories again.
The cache is written as before, but each decode *reads* its blocks in another order: in the first run its full blocks
are reversed, in the second run all of them.

**Guess first:** how many of the six answers change in each case?
"""


# %%
def reading_backwards(how_many):
    """A backend that reverses the first `how_many(tokens, block_size)` blocks of a decode."""

    def backend(packed, block_tables, block_size):
        tables = block_tables.clone()
        for table, new, tokens in zip(tables, packed.new_lens, packed.context_lens.tolist()):
            if new == 1:
                first = table[: how_many(tokens, block_size)]
                first[:] = first.flip(0)
        return my_backend(packed, tables, block_size)

    return backend


def full_blocks(tokens, block_size):
    return tokens // block_size


for how_many in (full_blocks, blocks_for):
    broken = MINE | dict(backend=reading_backwards(how_many))
    answers = paged_generate(model, tokenizer, **SIX, max_num_seqs=4, block_size=16, **broken)
    changed = [name for name, one, other in zip(NAMES, answers, paged.outputs) if one != other]
    print(f"{how_many.__name__} reversed: {len(changed)} of 6 answers change {changed}")

# %% [markdown]
"""
Attention is a quotient of two sums over keys, and a sum doesn't care about their order. Each key got its position
before it was stored, and a decode hides no keys. So full blocks may come in any order, up to rounding.

But `num_tokens` also says how far the *last* block of the list is filled. With all blocks reversed, that's the
sequence's first block: attention skips some of its tokens, and reads as many slots that hold none. Of 17 tokens in two
blocks, only two are read, with 15 empty slots. Longer sequences lose fewer, and F's answer happens to survive.

## Measure

How much does each step write, and how much did lesson 05 copy in the same step?
"""

# %%
per_token = cache_bytes_per_token(model.config, model.dtype.itemsize)
copied = [step.bytes_copied / 1024 for step in ragged.trace.steps]
written = [step.tokens_computed * per_token / 1024 for step in paged.trace.steps]
reveal("06.a", copied[59] / written[59], unit="times as much in step 60")
steps = len(copied)
print(f"whole run: lesson 05 copied {sum(copied) / 1024:,.0f} MiB; lesson 06 wrote "
      f"{sum(written) / 1024:.1f} MiB and copied {paged.trace.bytes_copied} bytes "
      "within the cache")
line_chart(
    range(1, steps + 1), {"05: copied": copied, "06: written": written}, xlabel="step",
    ylabel="KiB per step",
    title="What each step copies or writes",
    alt="KiB in each step. In step " + "; in step ".join(f"{n}: {copied[n - 1]:,.0f} copied, "
                                                         f"{written[n - 1]:,.0f} written"
                                                         for n in (2, 60)) + ".",
)  # fmt: skip

# %% [markdown]
"""
Lesson 05's line climbs while the stories grow, and drops when one leaves. Yours stays flat, however long they get; only
the prompts stick out.

### The ledger
"""

# %% tags=["measured"]
ledger(model, tokenizer, "06", with_cache_only=True, since="05")

# %% [markdown]
"""
The last row was measured with the library's backend, which is faster than your loop. It makes the same tokens as lesson
05 in the same number of forward calls, but "copied per step" is 0: that column counts copies between caches. (To be
fast on a CPU, that backend gathers the keys and values of one layer at a time. Your attention gathers nothing.)

## Your backend tells the stories

Everything between a token's key and its attention is yours now: the cache, the softmax, and the walk through the block
table. Begin three stories of your own, and read them as they grow, side by side in one pool of blocks.
"""

# %%
BEGINNINGS = ["Once upon a time, a little robot", "Lily found a key in the garden.", "The cat"]


def told_aloud(batch, every=12):
    """One step; every so often, print what the running requests have so far."""
    paged_step(batch)
    steps.append([request.id for request in batch.running])
    if len(steps) % every == 0:
        print(f"step {len(steps)}, {len(batch.pool.used)} blocks in use")
        for request in batch.running:
            print(f"   {request.id} …{tokenizer.decode(request.output_ids[-every:])}")


steps = []
told = paged_generate(model, tokenizer, BEGINNINGS, max_new_tokens=[48, 36, 60], names="XYZ",
                      max_num_seqs=3, block_size=16, **MINE, step=told_aloud)
for beginning, answer in zip(BEGINNINGS, told):
    print(f"\n{beginning}{tokenizer.decode(answer)}")

# %% [markdown]
"""
Every word went through your `add_block`, in each layer and each head.

## What production does

- **vLLM** has both halves in `vllm/v1/attention/backends/flash_attn.py`. It writes with `reshape_and_cache_flash(key,
  value, key_cache, value_cache, slot_mapping, ...)`, and reads with `flash_attn_varlen_func(q=..., k=key_cache,
  v=value_cache, ..., seqused_k=..., block_table=...)`, where `seqused_k` counts each sequence's tokens. The kernel
  walks the block table, as your `attention_in_place` does.
- **Hugging Face transformers** has `PagedAttentionCache` in `generation/continuous_batching/cache.py`. Its `update`
  writes with a `write_index` and gathers with a `read_index`.

## What is still wrong

**The Python loop.** It starts thousands of small operators, one after another, so it takes many times as long as the
backend that gathers ("Further" times both). In lesson 07 you'll write a kernel with your loop inside.

**Shared keys are read twice.** A loop over the query heads reads every key once for each of the two heads that share
it. So does the kernel of lesson 07; that of lesson 08 reads it once for both.

**Promised blocks.** Blocks are promised up to the limit, as if all requests reached it at the same time. Lesson 09 is
about which requests to admit, and lesson 10 about what to do when the pool really is empty.

## Quiz
"""

# %%
quiz("06")

# %% [markdown]
"""
## References

- W. Kwon et al.: *Efficient Memory Management for Large Language Model Serving with PagedAttention*, SOSP 2023.
  <https://arxiv.org/abs/2309.06180>
- M. Milakov, N. Gimelshein: *Online normalizer calculation for softmax*, 2018. <https://arxiv.org/abs/1805.02867>
- T. Dao et al.: *FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness*, NeurIPS 2022; the
  block-by-block softmax is in section 3.1. <https://arxiv.org/abs/2205.14135>
- Z. Ye et al.: *FlashInfer: Efficient and Customizable Attention Engine for LLM Inference Serving*, 2025; attention
  states and merging are in section 2.2. <https://arxiv.org/abs/2501.01005>
- vLLM: `vllm/v1/attention/backends/flash_attn.py`, `vllm/v1/attention/ops/merge_attn_states.py`.
  <https://github.com/vllm-project/vllm>
- Hugging Face transformers: `AttentionInterface`, <https://huggingface.co/docs/transformers/attention_interface>; paged
  attention,
  <https://huggingface.co/docs/transformers/main/en/paged_attention>
- PyTorch: variable-length attention. <https://docs.pytorch.org/docs/stable/nn.attention.varlen.html>
"""

# %% [markdown] folded=true
"""
## Further (optional)

Nothing here is needed for the lesson, and its 75 minutes don't include it.

### Exercise: the function a model calls

`paged_forward` is lesson 05's `packed_forward`, for blocks. It takes a `ForwardBatch`: a packed batch, with the slot of
each new token and the block tables added to it. `plan_attention` picks the backend, and `paged_attention_in(model)`
makes the model call the function named "paged" for the duration of the pass. What that function has to know about the
pass is in a `PagedPass`, which goes through `model(...)` as the keyword `paged`:
"""

# %%
from lessons_lib.attention import PagedPass, paged_forward

show_source(PagedPass, paged_forward)

# %% [markdown]
"""
Every layer calls the function named "paged" with these arguments:

| argument | what it is |
|---|---|
| `module` | the layer; `module.layer_idx` is its index, counted from 0 |
| `query` | [1, query heads, T, head size] |
| `key`, `value` | [1, KV heads, T, head size], of the T new tokens; rotary positions, if the model has them, are already applied |
| `attention_mask` | None: transformers doesn't build a mask for custom names. Your attention hides the later keys itself. |
| `scaling` | the factor for the scores; may be None, which means 1 / sqrt(head size) |
| `paged` | our `PagedPass` |
| `**kwargs` | whatever else some models' layers pass; you don't need it here (`ScoreTerms` in `lessons_lib/attention/score_terms.py` says what it is for) |

**Exercise 06.4 (optional): `paged_attention_forward`.** Return the attention of the whole packed batch, `[1, T, query
heads, head size]`, and None in place of the attention weights. Each new token attends to the tokens of its own
sequence, cached and new, up to itself. Afterwards this layer's cache holds the new tokens' keys and values, and no
other layer has changed.

Example: in layer 2, with 3 new tokens, 4 query heads and 2 KV heads of 64, `query` is [1, 4, 3, 64] and `key` is
[1, 2, 3, 64]. The result is [1, 3, 4, 64], and three slots of layer 2 have changed.
"""

# %% exercise="06.4"
from lessons_lib.attention.hf_backend import paged_attention_forward

# %% [markdown]
"""
Register it, and "paged" means your function from now on. Is it true that a step changes the slots of its new tokens and
nothing else? Compare the whole cache before and after every step of the six stories. When the run ends, no blocks
should be in use.
"""

# %%
from transformers import AttentionInterface

from lessons_lib.recording import watch_paged_passes

AttentionInterface.register("paged", paged_attention_forward)


def slots_changed(before, cache):
    """The slots where a key or a value of any layer has changed."""
    pairs = zip(before, cache.keys + cache.values)
    changed = sum((old != now).flatten(2).any(dim=-1).flatten().int() for old, now in pairs)
    return set(changed.nonzero()[:, 0].tolist())


as_written, left_in_use = [], []


def watched_step(batch):
    before = [tensor.clone() for tensor in batch.cache.keys + batch.cache.values]
    with watch_paged_passes(batch) as passes:
        paged_step(batch)
    written = {slot for access in passes for slots in access.written.values()
               for slot in slots}
    as_written.append(slots_changed(before, batch.cache) == written)
    left_in_use.append(len(batch.pool.used))


paged_generate(model, tokenizer, **SIX, max_num_seqs=4, **MINE, step=watched_step)
print(f"{sum(as_written)} of {len(as_written)} steps changed the slots of their new tokens "
      "and no others")
print(f"blocks in use after the last step: {left_in_use[-1]}")

# %% [markdown]
"""
### Longer contexts

Now sixteen requests decode, all with the same context length. (The caches hold zeros: the time of a step doesn't depend
on what is cached.)

**Guess first:** what happens to the time of a step, in lesson 05 and now, when the context gets four times as long?
"""

# %% tags=["measured"]
from IPython.display import display

from lessons_lib.batching import ragged_step
from lessons_lib.measuring import decoding_paged, decoding_ragged, median_ms
from lessons_lib.viz.tables import Table

COUNT, REPEATS = 16, 7
contexts = (50, 200, 800)
taken = {"05: concatenated caches": [], "06: blocks": []}
for context in contexts:
    one = decoding_ragged(model, COUNT, context, REPEATS + 1)
    other = decoding_paged(model, COUNT, context, REPEATS + 1)
    for name, time in zip(taken, median_ms([lambda: ragged_step(one),
                                            lambda: paged_step(other)], repeat=REPEATS)):
        taken[name].append(time)
described = "; ".join(f"{name}: " + ", ".join(f"{time:.0f}" for time in times)
                      for name, times in taken.items())
display(
    line_chart(
        contexts, taken, xlabel="cached tokens per request, 16 requests", ylabel="ms per step",
        title="Time of a step, by context",
        alt=f"Time of a step in ms, with {', '.join(map(str, contexts))} cached tokens per "
            f"request: {described}.",
    )
)  # fmt: skip
old, now = taken.values()
Table(
    columns=["cached tokens each", "05, tokens/s", "06, tokens/s", "06 / 05"],
    rows=[[str(context), 1000 * COUNT / a, 1000 * COUNT / b, f"{a / b:.1f}"]
          for context, a, b in zip(contexts, old, now)],
)

# %% [markdown]
"""
Both get slower: attention has more keys to process, and the library's backend more to gather. With blocks the increase
is smaller, since lesson 05's three copies are gone.

### Your loop, timed

Your attention reads every key in place. But it is a Python loop over sequences and blocks, and probably heads. The
library's PyTorch backend gathers the keys of several sequences into a rectangle and calls
`scaled_dot_product_attention` once for all of them. That copies, for one layer at a time, what yours doesn't. Which is
faster on a CPU?
"""

# %% tags=["measured"]
from lessons_lib.attention import plan_attention
from lessons_lib.measuring import random_row
from lessons_lib.models import kv_head_size

NUM_LAYERS = model.config.num_hidden_layers
KV_HEADS, HEAD_DIM = kv_head_size(model.config)
query_heads = model.config.num_attention_heads
library_backend = plan_attention("torch", model.device)


def make_batch(count):
    """A random packed batch of `count` sequences in blocks of 16: one prompt of 20 tokens,
    the rest decodes."""
    rng = random.Random(count)
    lens = [(rng.randint(0, 80), 20)] + [(rng.randint(20, 100) - 1, 1)
                                         for _ in range(count - 1)]
    return random_row(lens, query_heads, KV_HEADS, 16, head_dim=HEAD_DIM, scale=HEAD_DIM**-0.5)


def attention_pass(backend, batch):
    """Attention in all layers of one pass."""
    attend = backend(batch.packed, batch.block_tables, 16)
    for _ in range(NUM_LAYERS):
        attend(batch.query, batch.keys, batch.values, batch.scale)


def compared(batch):
    mine, gathering = median_ms([lambda: attention_pass(my_backend, batch),
                                 lambda: attention_pass(library_backend, batch)], repeat=5)
    calls = NUM_LAYERS * query_heads * sum(blocks_for(context, 16)
                                           for context in batch.packed.context_lens.tolist())
    return [calls, mine, gathering, f"{mine / gathering:.0f}"]


Table(
    columns=["sequences", "layers × query heads × blocks", "yours, ms", "gather, ms",
             "yours / gather"],
    rows=[[str(count), *compared(make_batch(count))] for count in (4, 16)],
    caption=f"Attention in {NUM_LAYERS} layers",
)

# %% [markdown]
"""
Every call of `add_block` starts more than a dozen small operators, one after the other. On a GPU, every query head of
every sequence can run its loop at the same time, in one kernel. That's lesson 07.
"""
