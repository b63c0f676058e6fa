# %% [markdown]
"""
# 06 · Paged attention in PyTorch

**Can attention read keys and values where they lie, in scattered blocks, so that no cache is ever joined or taken apart?**

75 minutes · difficulty: medium · routes: ideas, kernels · you need first: lesson 03 (blocks, slots) and lesson 05 (the packed row)

Lesson 03 kept the books of a cache in blocks, without a cache. Lesson 05 computed many requests in one row, and copied their caches around in every
step. In this lesson the two come together. The keys go into the blocks, stay there, and attention finds them through the block table.
"""

# %%
import inspect
import random
from types import SimpleNamespace

import torch
from IPython.display import display
from transformers import AttentionInterface, DynamicCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from lessons_lib.attention import (
    ForwardBatch,
    PagedPass,
    Partial,
    add_block_naive,
    attention_in_place,
    attention_of,
    attention_one_by_one,
    cache_of,
    concatenate_caches,
    log_sum_exp,
    nothing_seen,
    pack,
    packed_forward,
    paged_forward,
    plan_groups,
)
from lessons_lib.batching import (
    PagedBatch,
    Request,
    blocks_at_most,
    forward_in_blocks,
    padded_tables,
    paged_generate,
    paged_step,
    ragged_generate,
    ragged_step,
)
from lessons_lib.checks import check, hint, predict, progress, quiz, reveal, solution
from lessons_lib.kv_cache import BlockPool, BlockTable, OutOfBlocks, blocks_for, slot_mapping
from lessons_lib.measuring import (
    MAX_NEW_TOKENS,
    NAMES,
    PROMPTS,
    STORIES,
    decoding_paged,
    decoding_ragged,
    ledger,
    median_ms,
    random_row,
)
from lessons_lib.models import VOCAB_SIZE, cache_bytes_per_token, kv_head_size, load_model, tiny_model
from lessons_lib.recording import paged_step_text, record_blocks
from lessons_lib.viz import Stepper
from lessons_lib.viz.charts import line_chart
from lessons_lib.viz.pool import draw_pool_access
from lessons_lib.viz.softmax import draw_softmax_step
from lessons_lib.viz.tables import Table

model, tokenizer = load_model(device="cpu")  # in float32: equal means equal to the last token
SIX = dict(prompts=PROMPTS, max_new_tokens=MAX_NEW_TOKENS, names=NAMES)
prompt_ids = {story.name: tokenizer(story.prompt).input_ids for story in STORIES}
NUM_LAYERS = model.config.num_hidden_layers
KV_HEADS, HEAD_DIM = kv_head_size(model.config)

# %% [markdown]
"""
## The problem: everything moves, almost nothing is new

The six stories, served by lesson 05's packed row. For some of the steps, the table says what was computed, what lay in the caches, and what was
moved.
"""

# %%
ragged = ragged_generate(model, tokenizer, **SIX, max_num_seqs=4)
per_token = cache_bytes_per_token(model.config, model.dtype.itemsize)


def row_of_the_table(number):
    step, packed = ragged.trace.steps[number - 1], ragged.packed[number - 1].packed
    return [str(number), step.tokens_computed, sum(packed.cached_lens), f"{step.bytes_copied / 1024:,.0f}"]


Table(
    columns=["step", "new tokens", "tokens in the caches", "KiB moved"],
    rows=[row_of_the_table(number) for number in (1, 2, 20, 31, 60)],
    caption="Some steps of lesson 05's loop",
)

# %%
moved, new = ragged.trace.bytes_copied, ragged.trace.tokens_computed * per_token
print(f"in the whole run {moved / 2**20:,.0f} MiB moved for {new / 2**20:.1f} MiB of new keys and values: {moved / new:.0f} times as much")

# %% [markdown]
"""
A key does not change once it is computed. Why was it moved? Because the model's own attention wants, for each layer, one tensor with all keys in it,
one behind the other. So all caches were joined before the pass, and taken apart after it.

Lesson 03 gave every token a place that it keeps: its slot, block number × block size + offset. If the keys of a pass went to their slots, and if
attention could look for them there, nothing else would have to move.

## Predict

The keys and values of a token, in the bundled model:
"""

# %%
print(f"{NUM_LAYERS} layers, {KV_HEADS} KV heads, heads of {HEAD_DIM} numbers, {model.dtype.itemsize} bytes a number; a key and a value each")
predict("06.a", ...)  # Four requests decode. How many KiB have to be written to the cache in this step?

# %% [markdown]
"""
Attention turns scores into weights with exponentials, and a type of float has a largest number.
"""

# %%
print(f"the largest float32 is {torch.finfo(torch.float32).max:.1e}")
predict("06.b", ...)  # What is the smallest whole number x for which exp(x) is too large for a float32?

# %% [markdown]
"""
## The idea

> **paged attention**: attention that finds the keys and values of a sequence through its block table, in blocks that may lie anywhere in one pool.

Here are C, E and A with short answers, at most two of them at a time, in a pool of seven blocks of four tokens. It has been in use, so its free
blocks come in no particular order. The parts behind it are the library's for now; by the end of the lesson they are yours. Step through it.
"""

# %%
def used_pool(num_blocks, block_size):
    """A pool whose free blocks come in no order."""
    pool = BlockPool(num_blocks, block_size)
    random.Random(6).shuffle(pool.free_queue)
    return pool


small = paged_generate(
    model, tokenizer, [PROMPTS[NAMES.index(name)] for name in "CEA"], max_new_tokens=[3, 7, 4], names="CEA",
    max_num_seqs=2, num_blocks=7, block_size=4, make_pool=used_pool,
)  # fmt: skip
Stepper(lambda i: draw_pool_access(small.accesses[i]), count=len(small.accesses), start=0, still=4)

# %%
for number in (2, 3, 4):
    print(f"step {number + 1}:\n{paged_step_text(small.accesses[number])}\n")

# %% [markdown]
"""
Each new token is written to one slot. Each request reads the slots of its own tokens, block after block of its table, wherever they lie. C leaves
after step 3, and its two blocks go back to the pool: in step 4, A's prompt ends in one of them, and in step 5, E goes on in the other.

The way there has four parts: a cache in blocks; a softmax computed one block at a time; attention for a whole row; and a model that uses it. Each is
compared with what we had before.

## Build 1: a cache in blocks

One tensor of keys for each layer, and one of values, of shape `[num_blocks, block_size, KV heads, head size]`. `keys[3][7, 2]` is the key of the
token in cell 2 of block 7, in layer 3. Which request it belongs to is not written there. That is the block table's affair.

`tensor.flatten(0, 1)` looks at the same memory as `[num_blocks × block_size, KV heads, head size]`: one row for each slot, and row number = slot. It
is a *view*, that is, what is written into it is written into the cache.

**Your task: `write` and `read`.** `__init__` is given. It makes two lists with a tensor for each layer, `self.keys` and `self.values`.

- `write(layer, keys, values, slot_mapping)`: `keys` and `values` have the shape `[T, KV heads, head size]`, one entry for each token of the row,
  whosever it is. `slot_mapping` is an integer tensor with T slots, in any order. Token *t* goes to slot `slot_mapping[t]`, in this layer. No other
  place changes. Write into the tensors that are there, without a loop over the tokens: `tensor[slot_mapping] = rows` puts all rows in their places at
  once.
- `read(layer, blocks, num_tokens)`: what one sequence has in this layer. `blocks` is a list of block numbers in the order of its tokens. Return the
  pair (keys, values), each `[num_tokens, KV heads, head size]`, in the order of the tokens. `tensor[blocks]` picks blocks in this order. The last
  block may be partly filled; what lies in its other cells does not belong to the sequence.

Example, with blocks of 4 and `slot_mapping` [8, 9, 10, 11, 4]: five tokens of one sequence are written to block 2 and to cell 0 of block 1. Then
`read(layer, [2, 1], 5)` gives the five tokens.
"""

# %% exercise="06.1" given="__init__"
from lessons_lib.models.loading import kv_head_size

from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache

# %% [markdown]
"""
Now with real keys. D and E go through the model alone, each with a `DynamicCache`, as ever. Then all their keys and values are written into the
blocks of one pool.
"""

# %%
BLOCK = 4
pool = used_pool(12, BLOCK)
tables = {name: BlockTable(pool) for name in "DE"}
for name, table in tables.items():
    table.append(len(prompt_ids[name]))
    print(f"{name}: {table.num_tokens} tokens in the blocks {table.blocks}")


def prefill_alone(name):
    cache = DynamicCache()
    with torch.inference_mode():
        model(input_ids=torch.tensor([prompt_ids[name]]), past_key_values=cache)
    return cache


dense = {name: prefill_alone(name) for name in "DE"}
pages = PagedKVCache(model.config, pool.num_blocks, BLOCK)
slots = torch.cat([slot_mapping(table.blocks, BLOCK, 0, table.num_tokens) for table in tables.values()])
for layer in range(NUM_LAYERS):
    of_all = [cache.layers[layer] for cache in dense.values()]
    keys, values = (torch.cat([getattr(own, part)[0].transpose(0, 1) for own in of_all]) for part in ("keys", "values"))
    pages.write(layer, keys, values, slots)

# %% [markdown]
"""
Read them back, and they are what they were. Let lesson 05's pass go on from there: gather D's and E's keys out of their blocks, join them to one
cache, and compute one more token of each.

> **gather**: copying rows that lie in different places into a new tensor, one behind the other.
"""

# %%
def gathered(name):
    """What lies in the blocks of a request, as a DynamicCache of its own."""
    layers = [pages.read(layer, tables[name].blocks, tables[name].num_tokens) for layer in range(NUM_LAYERS)]
    return cache_of([(keys.transpose(0, 1)[None], values.transpose(0, 1)[None]) for keys, values in layers])


back = {name: gathered(name) for name in "DE"}
for name in "DE":
    pairs = zip(back[name].layers, dense[name].layers)
    print(f"{name}: read back equal in every layer:", all(torch.equal(a.keys, b.keys) and torch.equal(a.values, b.values) for a, b in pairs))
one_more = pack([tokenizer(" Tom").input_ids, tokenizer(" Tom").input_ids], [len(prompt_ids[name]) for name in "DE"])
from_dense = packed_forward(model, one_more, concatenate_caches(list(dense.values())))
from_pages = packed_forward(model, one_more, concatenate_caches(list(back.values())))
print("logits equal:", torch.equal(from_dense, from_pages))

# %% [markdown]
"""
The keys have moved into blocks, and attention has not noticed, because we gathered them for it. Gathering is a copy of everything, in every step. To
get rid of it, attention must be able to work with one block at a time.

## Build 2: a softmax in pieces

For one query, with a score and a value for each key, attention is

```
             sum over the keys of exp(score) × value
attention =  ───────────────────────────────────────
             sum over the keys of exp(score)
```

Two sums. A sum can be added up in pieces, in any order. So take a block of keys, compute its scores, add to both sums, and go on to the next block;
at the end divide. The state between two blocks is a `Partial`. For Q queries at once:

| field | shape | what it is |
|---|---|---|
| `maximum` | [Q] | largest score so far; needed a little later. Before the first key it is minus infinity. |
| `total` | [Q] | the sum below |
| `output` | [Q, D] | the sum above; values have D numbers |

First as the formula has it:
"""

# %%
for function in (nothing_seen, add_block_naive, attention_of):
    print(inspect.getsource(function))

# %% [markdown]
"""
To try it we want real scores. A Hugging Face model finds its attention function by name. So we register one that notes what it is given, and then
calls the usual one. (More in Build 5.) Here is the last token of D's prompt, in one layer, with one of its query heads. Four query heads share two
KV heads, so query head 3 uses KV head 1, both counted from 0.
"""

# %%
noted = {}


def look_on(module, query, key, value, attention_mask, **kwargs):
    noted[module.layer_idx] = query[0], key[0], value[0], kwargs["scaling"]
    return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)


AttentionInterface.register("look_on", look_on)


def scores_of(name, layer, query_head):
    """Scores of a prompt's last token to all its tokens, [1, tokens], and the values of the KV head, [tokens, head size]."""
    model.set_attn_implementation("look_on")
    prefill_alone(name)
    model.set_attn_implementation("sdpa")
    query, key, value, scale = noted[layer]
    kv_head = query_head * len(key) // len(query)
    return query[query_head, -1:] @ key[kv_head].T * scale, value[kv_head]


scores, values = scores_of("D", layer=1, query_head=3)
tokens = [tokenizer.decode(token) for token in prompt_ids["D"]]
print(f"{scores.shape[1]} scores, from {scores.min():.1f} to {scores.max():.1f}; values {list(values.shape)}")

# %%
def in_blocks(add, scores, values, block_size=BLOCK):
    """Start with nothing, and add one block of keys after the other."""
    seen = nothing_seen(len(scores), values.shape[1], scores.dtype)
    for own_scores, own_values in zip(scores.split(block_size, dim=1), values.split(block_size)):
        seen = add(seen, own_scores, own_values)
    return seen


naive = attention_of(in_blocks(add_block_naive, scores, values))
print("block by block, all at once: largest difference", f"{(naive - scores.softmax(dim=1) @ values).abs().max():.0e}")

# %% [markdown]
"""
It works for these scores. It does not for all.
"""

# %%
for x in (88, 89, -104):
    print(f"exp({x}) in float32: {torch.tensor(float(x)).exp():.3g}")
print(f"exp(12) in float16: {torch.tensor(12.0).half().exp():.3g}")
overflow = next(x for x in range(1000) if torch.tensor(float(x)).exp().isinf())
reveal("06.b", overflow)

# %% [markdown]
"""
> **overflow**: a result that is too large for the type of float it should go into. It becomes infinity, and infinity divided by infinity is NaN.

Nothing in a model holds its scores below 89. And float16 ends far earlier: even for the smallest of D's real scores above, the exponential is too
large for it.

Step through the same scores, times five. The first blocks are still all right.
"""

# %%
large = record_blocks(5 * scores, values, BLOCK, add_block_naive)
Stepper(lambda i: draw_softmax_step(large, i, tokens), count=len(large), start=1, still=5)

# %% [markdown]
"""
The other side is as bad: with scores far below zero every exponential is 0, and 0 / 0 is NaN too.

Now the way out. Take the same number away from all scores of a query. Above and below the line, every term is then divided by the same factor, e to
that number, so the attention stays as it was. We may choose the number. The best choice is the **largest score**: then every exponent is 0 or below.
No exponential is larger than 1, so nothing overflows; and one of them is 1, so the sum below is not 0.

But block by block we do not know the largest score before the last block. So we take the largest *so far*, and correct what we have when a larger one
turns up. The sums hold exp(score − old maximum). They should hold exp(score − new maximum). The one becomes the other by a factor:

```
exp(score − new)  =  exp(score − old) × exp(old − new)
```

> **online softmax**: a softmax that takes its scores one piece after the other. It keeps the largest score so far, and multiplies what it has added
> up by exp(old maximum − new maximum).

**Your task: `add_block(seen, scores, values)`**, for Q queries at once, and K keys. Each query has a maximum of its own.

1. The new maximum, [Q]: the larger one of the old maximum and the largest score of the block.
2. The weights, [Q, K]: exp(score − new maximum).
3. The factor, [Q]: exp(old maximum − new maximum).
4. Return a new `Partial`: new maximum; total × factor + sum of the weights; output × factor + weights @ values. Leave `seen` as it is.

`scores.max(dim=1).values` holds the largest score of each query. Where a number of each query meets [Q, K] or [Q, D], it needs an axis more:
`x[:, None]`.

A query may be forbidden to see a key. Such a key has the score minus infinity. There is one trap in that. If a query has not been allowed any key
yet, old and new maximum are both minus infinity, and −∞ − (−∞) is NaN. Such a query must keep its state: maximum −∞, total 0, output 0. So in steps 2
and 3, subtract 0 in place of a new maximum of minus infinity: `maximum.masked_fill(maximum == float("-inf"), 0.0)`.

Example, one query, values of one number. After scores [1, 2] with values [10, 20] the maximum is 2, the total exp(−1) + 1 = 1.368, and the output 10
exp(−1) + 20 = 23.68. Then comes a block with score [3] and value [30]. The factor is exp(−1) = 0.368. The new total is 0.368 × 1.368 + 1 = 1.503, and
the output 0.368 × 23.68 + 30 = 38.71. Their quotient, 25.75, is the attention.
"""

# %% exercise="06.2"
from lessons_lib.attention.online_softmax import add_block

# %% [markdown]
"""
Your function on D's real scores. In which blocks is something rescaled?
"""

# %%
recorded = record_blocks(scores, values, BLOCK, add_block)
Stepper(lambda i: draw_softmax_step(recorded, i, tokens), count=len(recorded), start=1, still=5)

# %%
larger = [step.block for step in recorded[2:] if step.factor < 1]
print(f"after the first block, a larger score came in the blocks {' and '.join(map(str, larger))}; the others changed no maximum")

# %% [markdown]
"""
Both versions against PyTorch's softmax in float64, on D's scores: made larger, moved down, and in float16.
"""

# %%
def error(add, scores, values):
    """Largest difference from the attention in float64, relative to its largest number."""
    expected = scores.double().softmax(dim=1) @ values.double()
    found = attention_of(in_blocks(add, scores, values))
    return float((found - expected).abs().max() / expected.abs().max())


def told(number):
    return "NaN" if number != number else f"{number:.0e}" if number else "0"


cases = {
    "as they are": (scores, values),
    "× 4": (4 * scores, values),
    "× 5": (5 * scores, values),
    "× 100": (100 * scores, values),
    "− 60": (scores - 60, values),
    "− 110": (scores - 110, values),
    "− 130": (scores - 130, values),
    "as they are, float16": (scores.half(), values.half()),
}
Table(
    columns=["scores", "smallest", "largest", "error, bare exponentials", "error, yours"],
    rows=[
        [name, f"{s.min():.1f}", f"{s.max():.1f}", told(error(add_block_naive, s, v)), told(error(add_block, s, v))]
        for name, (s, v) in cases.items()
    ],
)

# %% [markdown]
"""
Read the column of the bare exponentials. "× 5" and "× 100" overflow, and in float16 even the scores as they are do. "− 60" does no harm, at "− 110"
the error has grown, and "− 130" is NaN: near the smallest float a number has few digits left, and below it none. Yours is right up to rounding in
every row, and in float16 that means three digits.

### Reading where the keys lie

With that, attention for one new token needs no gathered keys. This function is given. The Q queries of `add_block` are here the query heads that
share a KV head: they look at the same keys.
"""

# %%
print(inspect.getsource(attention_in_place))

# %%
query, _, _, scale = noted[1]
two_heads = query[2:, -1]  # query heads 2 and 3, of the last token of D
own_keys, own_values = pages.keys[1][:, :, 1], pages.values[1][:, :, 1]  # layer 1, KV head 1
in_place = attention_in_place(two_heads, own_keys, own_values, tables["D"].blocks, tables["D"].num_tokens, scale, add_block)
dense_keys, dense_values = dense["D"].layers[1].keys[0, 1], dense["D"].layers[1].values[0, 1]
expected = (two_heads @ dense_keys.T * scale).softmax(dim=1) @ dense_values
print(f"from the blocks {tables['D'].blocks}, one at a time; largest difference from dense attention: {(in_place - expected).abs().max():.0e}")


def shares_memory(part):
    """Whether a tensor looks at the memory of the cache, and has none of its own."""
    return part.untyped_storage().data_ptr() == pages.keys[1].untyped_storage().data_ptr()


first = tables["D"].blocks[0]
print("one block, keys[block, :3], lies in the cache's own memory:", shares_memory(own_keys[first, :3]))
print("several blocks, keys[[block, ...]], lie there:", shares_memory(own_keys[tables["D"].blocks]))

# %% [markdown]
"""
A single block is a view: nothing is copied. Several blocks picked with a list are gathered into new memory. So here the keys are read where they lie,
and no row with all the scores is ever made. The price is a Python loop over blocks. A GPU kernel has this very loop inside, where it costs little
(lesson 07).

## Build 3: two halves

A long sequence has many blocks, and the loop takes them one after the other. Could two workers take half of the blocks each? Each would end with a
`Partial`. What is missing is a way to join two of them.

It is the same idea as before. Each part is relative to its own maximum. Bring both to the larger one of the two maxima, then add.

**Your task: `merge(one, other)`.** Two `Partial` of the same Q queries, over keys that they do not share. Return the `Partial` of all these keys
together; leave both as they are. Either may have the larger maximum, and that may differ from query to query. Either may have seen no key of a query
(maximum −∞, total 0, output 0): then the result is the other one's, and if neither has seen one, that state again. The trap with −∞ − (−∞) is as
before.

Example, one query, values of one number: `one` has maximum 2, total 1.5, output 20, and `other` has maximum 3, total 1, output 30. The new maximum is
3. `one` is multiplied by exp(2 − 3) = 0.368, `other` by exp(3 − 3) = 1. So total = 0.368 × 1.5 + 1 = 1.552, and output = 0.368 × 20 + 30 = 37.36.
"""

# %% exercise="06.3"
from lessons_lib.attention.online_softmax import Partial

from lessons_lib.attention.online_softmax import merge

# %%
half = 3 * BLOCK
parts = [in_blocks(add_block, scores[:, own], values[own]) for own in (slice(0, half), slice(half, None))]
whole = merge(*parts)
expected = scores.softmax(dim=1) @ values
print(f"two halves merged: largest difference from all at once {(attention_of(whole) - expected).abs().max():.0e}")
print("the other way round:", torch.allclose(attention_of(merge(*reversed(parts))), expected, atol=1e-5))

# %% [markdown]
"""
There is a second way to say the same, which you will meet in papers and kernels. A finished part hands over its attention, output / total, and one
more number that says how much it weighs:

> **log-sum-exp**: the logarithm of the sum of exp(score) over all keys of a part: maximum + log(total). `log_sum_exp(part)` in the library. It fits
> into a float however large the scores are.

The share of a part in the whole is exp(its log-sum-exp − that of the whole).
"""

# %%
shares = [(log_sum_exp(part) - log_sum_exp(whole)).exp() for part in parts]
print("shares of the two halves:", ", ".join(f"{share.item():.3f}" for share in shares), f"together {sum(shares).item():.3f}")
weighted = sum(share[:, None] * attention_of(part) for share, part in zip(shares, parts))
print(f"weighted sum of the two attentions: largest difference {(weighted - expected).abs().max():.0e}")

# %% [markdown]
"""
The second half has nearly all the weight: the largest scores are there. Lesson 08 gives the parts of one long sequence to many processors of a GPU,
and merges them in this way.

## Build 4: a whole row

The model computes a packed row: decodes, prefills, perhaps a chunk of a prompt, each with keys of its own. Here D and E each bring one new token
after their prompts, and C comes with its prompt of three.
"""

# %%
tables["C"] = BlockTable(pool)
for name, count in (("D", 1), ("E", 1), ("C", 3)):
    tables[name].append(count)
packed = pack([tokenizer(" Tom").input_ids, tokenizer(" Tom").input_ids, prompt_ids["C"]], [21, 5, 0])
block_tables = padded_tables(list(tables.values()))
print("new tokens:", dict(zip("DEC", packed.new_lens)), "| context, new ones included:", dict(zip("DEC", packed.context_lens.tolist())))
print("block tables, filled up with 0 to one length:")
print(block_tables)

# %% [markdown]
"""
The plain way is a loop: for each sequence, gather its keys, and compute causal attention. `attention_one_by_one` in the library does that, and is our
oracle. But with 32 requests it makes 32 small computations in each layer: what we left behind in lesson 05.

To compute several at once, PyTorch wants rectangles. A decode has one query and a prefill has many: together, the decodes would be mostly padding. So
`plan_groups` separates the sequences with one new token from the rest. Where lengths still differ much, `divide` splits off the largest sequences, as
long as less than half of a rectangle would be needed. For each rectangle, `_group` fills in a `Group`. All this is given:
"""

# %%
print(inspect.getsource(plan_groups))

# %% [markdown]
"""
A `Group` is a rectangle of S sequences, of up to Q queries and K keys each:

| field | shape | what it says |
|---|---|---|
| `rows` | [S, Q] | the place in the packed row of each query; 0 where a sequence has fewer than Q |
| `is_query` | [S, Q], bool | whether there is a query at this place, or filling |
| `slots` | [S, K] | the slot of each key; that of the sequence's first key where a sequence has fewer than K |
| `mask` | [S, 1, Q, K], bool | True where the query may attend to the key; the 1 stands for all heads |

Here are the groups of our row:
"""

# %%
groups = plan_groups(packed.cu_seqlens_q, packed.context_lens, block_tables, BLOCK)
for group in groups:
    print("rows", group.rows.tolist(), "is_query", group.is_query.tolist())
    for own_slots, own_mask in zip(group.slots, group.mask[:, 0]):
        print("  slots", own_slots.tolist())
        print("  mask ", ["".join(".#"[cell] for cell in line) for line in own_mask.tolist()])

# %% [markdown]
"""
Look at E in the first group. It has 6 keys, and the rectangle is as wide as D's context. The other places name E's first key again, and the mask
forbids them. Why a real key? In a cell without a token anything may lie, even NaN. A forbidden key has the weight 0, but 0 × NaN is NaN.

**Your task: `paged_attention(query, keys, values, groups, scale)`**, for one layer.

- `query` is the packed row, `[T, query heads, head size]`. `keys` and `values` are the cache of the layer, `[num_blocks, block_size, KV heads, head
  size]`; the new tokens are in it already. Return the attention, of the shape and type of `query`, in the order of the row.
- For each group, call PyTorch's attention once. It computes all S sequences and all heads: `F.scaled_dot_product_attention(q, k, v,
  attn_mask=group.mask, scale=scale, enable_gqa=True)`, with q `[S, query heads, Q, head size]` and k, v `[S, KV heads, K, head size]`. The result has
  the shape of q. With `enable_gqa`, query heads share KV heads as they should.
- `query[group.rows]` has the shape `[S, Q, query heads, head size]`; `.transpose(1, 2)` swaps the two axes in the middle. `keys.flatten(0, 1)` has a
  row for each slot, as in Build 1.
- Put only real queries in their places. Where `is_query` is False, `rows` says 0, and row 0 belongs to somebody: `group.rows[group.is_query]` are the
  places of the real ones, as a tensor with one axis, and `tensor[group.is_query]` picks their entries from `[S, Q, ...]`.
"""

# %% exercise="06.4"
import torch.nn.functional as F

from lessons_lib.attention.paged_attention import paged_attention

# %% [markdown]
"""
Your function against the loop, on a row of the same lengths. `random_row` makes queries, keys and values of random numbers; every cell of the pool
that holds no token is NaN.
"""

# %%
query_heads = model.config.num_attention_heads


def a_row(lens):
    """A row of sequences with so many (cached, new) tokens, in blocks of 16, with the heads of the model."""
    return random_row(lens, query_heads, KV_HEADS, 16, head_dim=HEAD_DIM, scale=HEAD_DIM**-0.5)


row = a_row([(21, 1), (5, 1), (0, 3)])
by_loop = attention_one_by_one(row.query, row.keys, row.values, row.packed, row.block_tables, row.scale)
together = paged_attention(row.query, row.keys, row.values, row.groups, row.scale)
print(f"largest difference {(together - by_loop).abs().max():.0e}; NaN in the output: {bool(together.isnan().any())}")

# %% [markdown]
"""
One thing must be said plainly. Picking rows by `slots` gathers: it copies the keys and values of one layer, for the moment in which this layer
attends, since `scaled_dot_product_attention` cannot read through a table. The cache itself stays where it is, and the copy is gone when the layer is
done. We count these bytes below. The kernel of lesson 07 does without.

## Build 5: into a real model

In a Hugging Face model each layer computes queries, keys and values, and then calls a function for its attention. The function has a name, and
anybody may register another:

- `AttentionInterface.register("paged", function)` makes a function known;
- `model.set_attn_implementation("paged")` makes a model call it;
- what you give to `model(...)` under a keyword of your own reaches the function as it is.

That holds for almost every model in the library. We give it one keyword, `paged`, with what a layer must know about the pass.

> **attention backend**: the code that computes the attention of a row. An engine has several, and picks one for the machine.

`paged_forward` is lesson 05's `packed_forward` for blocks. In it, `plan_attention` picks the backend, and `paged_attention_in(model)` makes the model
call the function named "paged" until the pass is done.
"""

# %%
print(inspect.getsource(PagedPass))
print(inspect.getsource(paged_forward))

# %% [markdown]
"""
What the function is called with, in every layer:

| argument | what it is |
|---|---|
| `module` | the layer; `module.layer_idx` is its number, from 0 |
| `query` | [1, query heads, T, head size] |
| `key`, `value` | [1, KV heads, T, head size], of the T new tokens; where the model turns keys by their position, that is done already |
| `attention_mask` | None: for a name of our own nobody makes a mask. Our groups have theirs. |
| `scaling` | what scores are multiplied by; may be None, then it is 1 / sqrt(head size) |
| `paged` | our `PagedPass` |
| `**kwargs` | more that other attention functions want |

**Your task: `paged_attention_forward`.** Two things, in this order:

1. Write the keys and values of the new tokens into the cache, with `paged.cache.write(layer, keys, values, paged.slot_mapping)`. It wants them as
   `[T, KV heads, head size]`: `key[0].transpose(0, 1)`.
2. Compute the attention: `paged.attend(query, keys, values, scale)`, with the query as `[T, query heads, head size]`, and with this layer's tensors
   of the whole cache, `paged.cache.keys[layer]` and `paged.cache.values[layer]`. It returns `[T, query heads, head size]`.

Return a pair: the attention with an axis in front, `[1, T, query heads, head size]`, and None in place of the attention weights, which we do not
have.
"""

# %% exercise="06.5"
from lessons_lib.attention.hf_backend import paged_attention_forward

# %% [markdown]
"""
Register it: from now on "paged" means your function, and the library's of that name is no longer called. A backend is a function of the row, the
block tables and the block size. It is called once a pass, and returns what the layers call as `paged.attend`. Yours makes the groups, and calls your
`paged_attention`.
"""

# %%
AttentionInterface.register("paged", paged_attention_forward)


def my_backend(packed, block_tables, block_size):
    groups = plan_groups(packed.cu_seqlens_q, packed.context_lens, block_tables, block_size)
    return lambda query, keys, values, scale: paged_attention(query, keys, values, groups, scale)


# %% [markdown]
"""
Small models of three families, with random weights. For each, two passes. In the first, two prompts and the beginning of a third. In the second, one
more token for each of the two, and the rest of the third prompt: a chunk. At the end the logits are compared with those of each sequence alone.
"""

# %%
TEXTS = [[5, 6, 7, 8, 9, 10], [20, 21], list(range(30, 52))]  # token ids of three sequences
FIRST = [5, 1, 9]  # how many tokens of each come in the first pass


def two_passes(model):
    pool = used_pool(20, BLOCK)
    cache = PagedKVCache(model.config, pool.num_blocks, BLOCK)
    tables = [BlockTable(pool) for _ in TEXTS]
    for new_tokens in ([text[:n] for text, n in zip(TEXTS, FIRST)], [text[n:] for text, n in zip(TEXTS, FIRST)]):
        packed = pack(new_tokens, [table.num_tokens for table in tables])
        for table, count in zip(tables, packed.new_lens):
            table.append(count)
        bounds = zip(tables, packed.cached_lens)
        slots = torch.cat([slot_mapping(table.blocks, BLOCK, start, table.num_tokens) for table, start in bounds])
        logits = paged_forward(model, ForwardBatch.of(packed, slots, padded_tables(tables)), cache, my_backend)
    return logits


for family in ("gpt2", "llama", "qwen2"):
    tiny = tiny_model(family)
    with torch.inference_mode():
        alone = torch.stack([tiny(input_ids=torch.tensor([text])).logits[0, -1] for text in TEXTS])
    print(f"{family:>6}: logits as alone, up to rounding: {torch.allclose(two_passes(tiny), alone, rtol=1e-4, atol=1e-3)}")

# %% [markdown]
"""
## The loop

The loop is that of lesson 05. What changes is where a request keeps its cache. `PagedBatch` is a `RaggedBatch` with a pool and a `PagedKVCache`. A
request's cache is a `BlockTable` now: made when the request comes in, released when it leaves.
"""

# %%
for method in ("has_room_for", "open_cache", "close_cache"):
    print(inspect.getsource(getattr(PagedBatch, method)))
for function in (blocks_at_most, forward_in_blocks):
    print(inspect.getsource(function))

# %% [markdown]
"""
Read `has_room_for`. A request takes its blocks one by one, as it grows. What if two requests need a block, and one is free? To rule that out, a
request comes in only if the pool would be large enough even if all ran to their caps. So `table.append` never meets an empty pool. We come back to
what that costs.

Now everything is yours: the cache, the attention, the function in the model. The six stories, four at a time, in a pool with room for the four
largest at their caps (`num_blocks` is not given):
"""

# %%
MINE = dict(backend=my_backend, make_cache=PagedKVCache)
paged = paged_generate(model, tokenizer, **SIX, max_num_seqs=4, block_size=16, **MINE)
print("the same answers as lesson 05:", paged.outputs == ragged.outputs)
print(f"a pool of {paged.accesses[0].num_blocks} blocks of 16; {len(paged.accesses)} steps")
Stepper(lambda i: draw_pool_access(paged.accesses[i]), count=len(paged.accesses), start=29, still=30)

# %% [markdown]
"""
In step 30, A leaves. In step 31, F's prompt is written in one go, and everybody else writes one slot. Here is step 31 once more: what does B read?
"""

# %%
display(draw_pool_access(paged.accesses[30], reader="B"))
print(paged_step_text(paged.accesses[30]))

# %% [markdown]
"""
### When the pool is small

Four places, but only 20 blocks. First what the six may need at most. In the table, "queue after it" names who still waits once the next have come in.
"""

# %%
max_tokens_each = {story.name: Request(story.name, prompt_ids[story.name], story.max_new_tokens) for story in STORIES}
print("blocks at the cap:", {name: blocks_at_most(request, 16) for name, request in max_tokens_each.items()})
tight = paged_generate(model, tokenizer, **SIX, max_num_seqs=4, num_blocks=20, block_size=16, **MINE)
print(f"the same answers: {tight.outputs == ragged.outputs}; {len(tight.packed)} steps, with the larger pool {len(paged.packed)}")


def event(number):
    step, access = tight.packed[number], tight.accesses[number]
    used = sum(len(blocks) for blocks in access.tables.values())
    promised = sum(blocks_at_most(max_tokens_each[name], 16) for name in step.names)
    return [str(number + 1), " ".join(step.names), ", ".join(step.left) or "–", ", ".join(step.waiting) or "–", used, promised]


changes = [number for number, step in enumerate(tight.packed) if step.joined or step.left]
Table(
    columns=["step", "in the row", "leave", "queue after it", "blocks in use", "blocks promised"],
    rows=[event(number) for number in changes],
    caption="Four places and a pool of 20 blocks",
)

# %% [markdown]
"""
A, B and C may need 18 blocks together, and D 3 more. So D waits although a place is free: not for a place, but for blocks. It comes in when A has
left and has given its blocks back. As it turned out, D could have come in at once: look how few blocks are in use until then. Nobody knows that in
advance. When D has left, F would fit beside B and C. But E stands before F and does not fit: first come, first served, as ever. So the run takes more
steps.

And what could never run is refused at once:
"""

# %%
try:
    paged_generate(model, tokenizer, **SIX, num_blocks=7, block_size=16, **MINE)
except OutOfBlocks as error:
    print("OutOfBlocks:", error)

# %% [markdown]
"""
## Prove it

Two claims. First: every request gets the tokens of lesson 05, which were compared with `generate`. Thirty requests with random prompts and caps on
the three small models, with blocks of 1, 4 and 16, in a small pool. One token plays the end token, so an answer may end before its cap. We also count
the steps in which a request waited for blocks although a place was free.
"""

# %%
END = 24  # any token can play the end token of a random model
plain = SimpleNamespace(pad_token_id=0, eos_token_id=END)
rng = random.Random(6)
prompts = [[rng.randrange(VOCAB_SIZE) for _ in range(rng.choice((1, 2, 4, 5, 16, 17, 40)))] for _ in range(30)]
LOAD = dict(prompts=prompts, max_new_tokens=[rng.choice((1, 2, 5, 17)) for _ in prompts], max_num_seqs=8)
for family in ("gpt2", "llama", "qwen2"):
    tiny = tiny_model(family)
    expected = ragged_generate(tiny, plain, **LOAD).outputs
    for block_size in (1, 4, 16):
        num_blocks = 2 * blocks_for(40 + 17 - 1, block_size)  # room for two requests of the largest size
        run = paged_generate(tiny, plain, **LOAD, block_size=block_size, num_blocks=num_blocks, **MINE)
        same = sum(a == b for a, b in zip(run.outputs, expected))
        waited = sum(bool(step.waiting) and len(step.names) < 8 for step in run.packed)
        print(f"{family:>6}, blocks of {block_size:2}: {same} of 30 equal; waited for blocks in {waited} of {len(run.packed)} steps")

# %% [markdown]
"""
Second: in a step, only the slots of the new tokens change. We look at the whole cache before and after every step of the six stories, and count. At
the end no block may be in use.
"""

# %%
def slots_changed(before, cache):
    """The slots at which a key or a value of any layer is another than before."""
    pairs = zip(before, cache.keys + cache.values)
    changed = sum((old != now).flatten(2).any(dim=-1).flatten().int() for old, now in pairs)
    return set(changed.nonzero()[:, 0].tolist())


as_written, left_in_use = [], []


def watched_step(batch):
    before = [tensor.clone() for tensor in batch.cache.keys + batch.cache.values]
    paged_step(batch)
    written = {slot for slots in batch.access.written.values() for slot in slots}
    as_written.append(slots_changed(before, batch.cache) == written)
    left_in_use.append(len(batch.pool.used))


watched = paged_generate(model, tokenizer, **SIX, max_num_seqs=4, **MINE, step=watched_step)
print(f"{sum(as_written)} of {len(as_written)} steps changed the slots of the new tokens, and no other")
print(f"blocks in use after the last step: {left_in_use[-1]}")

# %% [markdown]
"""
## Measure

### Bytes

What is written in a step, and what lesson 05 moved in the same step.
"""

# %%
decodes = next(step for step in paged.packed if step.packed.new_lens == [1, 1, 1, 1])
to_write = len(decodes.packed.input_ids) * per_token / 1024
reveal("06.a", to_write, unit="KiB")
print(f"half of it for the keys, {to_write / 2:.0f} KiB, and half for the values")

# %%
moved = [step.bytes_copied / 1024 for step in ragged.trace.steps]
written = [step.tokens_computed * per_token / 1024 for step in paged.trace.steps]


def keys_gathered(packed):
    """How many keys the groups of a row name, filling included. Where they lie makes no difference, so any block table will do."""
    tables = torch.zeros(len(packed.new_lens), blocks_for(int(packed.context_lens.max()), 16), dtype=torch.int64)
    return sum(group.slots.numel() for group in plan_groups(packed.cu_seqlens_q, packed.context_lens, tables, 16))


gathered_keys = [keys_gathered(step.packed) for step in paged.packed]
for_a_moment = [count * per_token / 1024 for count in gathered_keys]
told = "; in step ".join(f"{n}: {moved[n - 1]:,.0f} moved, {for_a_moment[n - 1]:,.0f} gathered, {written[n - 1]:,.0f} written" for n in (2, 60))
line_chart(
    range(1, len(moved) + 1),
    {"05: moved": moved, "06: gathered for a moment": for_a_moment, "06: written": written},
    xlabel="step", ylabel="KiB a step", alt=f"KiB in each step. In step {told}.",
)  # fmt: skip

# %%
steps = len(moved)
print("On average in a step:")
print(f"  lesson 05 moved {sum(moved) / steps:,.0f} KiB")
print(f"  lesson 06 wrote {sum(written) / steps:,.0f} KiB, and moved {paged.trace.bytes_copied} bytes")
most = max(for_a_moment) / NUM_LAYERS
print(f"  and gathered {sum(for_a_moment) / steps:,.0f} KiB for a moment, never more than {most:,.0f} KiB at once, for one layer")

# %% [markdown]
"""
The lowest line is all that is written for good. The line in the middle is the copy that PyTorch's attention needs, with the padding of its
rectangles. It jumps where the contexts have become alike enough for one rectangle, as in the steps 14 and 33. The copy comes and goes layer by layer.
Lesson 05 made three copies, of all layers, and kept one of them.

### Attention for many sequences

Your `paged_attention` against the loop over sequences: all layers of a pass, planning included. Contexts of 20 to 100 tokens; one sequence prefills,
the others decode.
"""

# %% tags=["measured"]
def lengths(count, longest=None):
    """(cached, new) tokens of so many sequences: one prefill, then decodes, the last one perhaps with a long context."""
    rng = random.Random(count)
    contexts = [rng.randint(20, 100) for _ in range(count - 1)] + [longest or 60]
    return [(contexts[0] - 20, 20)] + [(context - 1, 1) for context in contexts[1:]]


def a_pass_together(row):
    attend = my_backend(row.packed, row.block_tables, 16)
    for _ in range(NUM_LAYERS):
        attend(row.query, row.keys, row.values, row.scale)


def a_pass_by_loop(row):
    for _ in range(NUM_LAYERS):
        attention_one_by_one(row.query, row.keys, row.values, row.packed, row.block_tables, row.scale)


def compared(row):
    loop, together = median_ms([lambda: a_pass_by_loop(row), lambda: a_pass_together(row)], repeat=9)
    return [loop, together, f"{loop / together:.1f}"]


rows = {str(count): a_row(lengths(count)) for count in (4, 8, 16, 32)} | {"32, one of them with 800 tokens": a_row(lengths(32, longest=800))}
Table(
    columns=["sequences", "loop, ms", "together, ms", "loop / together"],
    rows=[[name, *compared(row)] for name, row in rows.items()],
    caption=f"Attention of {NUM_LAYERS} layers",
)

# %% [markdown]
"""
The loop pays for every sequence: a handful of small operators each. Together, there is one set of operators for each group. What is paid instead is
padding. In the last row one sequence is much longer than the others. It gets a rectangle of its own; without `divide`, all decodes would be as wide.

In that row the lead may be smaller, or gone: large gathered copies may need fresh memory from the operating system in every layer. (On Linux, start
Jupyter with `MALLOC_TOP_PAD_=100000000` in the environment, and Python keeps such memory.)

### Steps, as the context grows

Sixteen requests decode, all with contexts of one length. How long does a step take, with lesson 05's caches and with blocks? The time does not depend
on which numbers lie in the cache. So `decoding_ragged` and `decoding_paged` fill the caches with zeros, and save us thousands of prompt tokens.

**Guess first:** what happens to each of the two when the context gets four times as long?
"""

# %% tags=["measured"]
COUNT, TIMES = 16, 7
contexts = (50, 200, 800)
taken = {"joined caches, 05": [], "blocks, 06": []}
for context in contexts:
    one, other = decoding_ragged(model, COUNT, context, TIMES + 1), decoding_paged(model, COUNT, context, TIMES + 1, **MINE)
    for name, time in zip(taken, median_ms([lambda: ragged_step(one), lambda: paged_step(other)], repeat=TIMES)):
        taken[name].append(time)
told = "; ".join(f"{name}: " + ", ".join(f"{time:.0f}" for time in times) for name, times in taken.items())
display(
    line_chart(
        contexts, taken, xlabel="tokens in the cache of each of 16 requests", ylabel="ms a step",
        alt=f"Time of a step in ms, with {', '.join(map(str, contexts))} tokens each: {told}.",
    )
)  # fmt: skip
old, now = taken.values()
Table(
    columns=["tokens each", "05, tokens/s", "06, tokens/s", "times as many"],
    rows=[[str(context), 1000 * COUNT / a, 1000 * COUNT / b, f"{a / b:.1f}"] for context, a, b in zip(contexts, old, now)],
)

# %% [markdown]
"""
Both grow: attention has more keys to look at. With blocks it grows more slowly, because the gathered copy is the only one left. With short contexts
there is little to move, and the lead differs from run to run.

### The ledger
"""

# %% tags=["measured"]
ledger(model, tokenizer, "06", with_cache_only=True)

# %% [markdown]
"""
Compare the last two rows. As few tokens computed, as few forward calls. "Copied a step" is 0: it counts what is moved in the cache, not what is
gathered for a moment. The cache reserves a little more than it uses: the empty cells of the last blocks. The speed need not differ by much: the
stories are short, and with short contexts the copies cost little.

## What production does

- **vLLM** does the two halves of your `paged_attention_forward` in `vllm/v1/attention/backends/flash_attn.py`. `do_kv_cache_update` writes:
  `reshape_and_cache_flash(key, value, key_cache, value_cache, slot_mapping, ...)`, a CUDA kernel in `cache_kernels.cu`. The forward method reads:
  `flash_attn_varlen_func(q=..., k=key_cache, v=value_cache, cu_seqlens_q=..., seqused_k=..., block_table=...)`, where `seqused_k` are our
  `context_lens`. The kernel goes through the block table itself, so nothing is gathered.
- Your `merge` is there as `merge_attn_states` in `vllm/v1/attention/ops/merge_attn_states.py`, with log-sum-exps. vLLM uses it, for example, when
  many requests begin with the same text: attention over the shared beginning once for all, over the rest for each, then merged (`cascade_attention`).
- **Hugging Face transformers** has `PagedAttentionCache` in `generation/continuous_batching/cache.py`. Its `update` writes by a `write_index` and
  gathers by a `read_index`, then SDPA or FlashAttention attends to the gathered keys: what your PyTorch version does. Its documentation says that
  this can become a bottleneck for long sequences. With a block table, it lets FlashAttention's kernel read the cache in place.
- **FlashInfer** keeps the block tables of all requests in one list, `paged_kv_indices`. `paged_kv_indptr` holds their cumulative lengths, and
  `paged_kv_last_page_len` how many tokens each last block has. An attention with its log-sum-exp is called an attention state there, and
  `merge_state(v_a, s_a, v_b, s_b)` merges two.
- **PyTorch**: recent versions of `torch.nn.attention.varlen.varlen_attn` take a `block_table`, on GPUs. FlexAttention, which compiles an attention
  kernel from Python code, has an experimental class `PagedAttention` in `torch/nn/attention/experimental/_paged_attention.py`.

## What is still wrong

**The gathered copy.** Each layer's keys are gathered before it attends. In lesson 07 you write a kernel with the loop of `attention_in_place` inside.

**Rectangles.** A group is as wide as the longest context in it. How much of what is gathered is padding, in the run of the six stories?
"""

# %%
needed = [sum(step.packed.context_lens.tolist()) for step in paged.packed]
print(f"keys gathered in all steps: {sum(gathered_keys):,}; needed: {sum(needed):,}; padding: {1 - sum(needed) / sum(gathered_keys):.0%}")

# %% [markdown]
"""
Among decodes, up to half of the keys in a rectangle may be filling. A kernel has no rectangle at all: each sequence ends where it ends.

**The mask inside.** Within a group there still is a mask with a cell for each query and key. For a decode it is one line. For a long prefill it is a
whole square, and its upper half is computed for nothing.

**The promise.** Blocks are promised up to the cap, as if every answer ran that far.
"""

# %%
promised = [sum(blocks_at_most(max_tokens_each[name], 16) for name in step.names) for step in paged.packed]
in_use = [sum(len(blocks) for blocks in access.tables.values()) for access in paged.accesses]
print(f"blocks promised, on average: {sum(promised) / steps:.1f}; in use: {sum(in_use) / steps:.1f}")

# %% [markdown]
"""
The difference lies free, while others may be waiting. Lesson 09 decides who comes in, and lesson 10 what to do when the pool really is empty.

## Quiz
"""

# %%
quiz("06")

# %% [markdown]
"""
## References

- W. Kwon et al.: *Efficient Memory Management for Large Language Model Serving with PagedAttention*, SOSP 2023. <https://arxiv.org/abs/2309.06180>
- M. Milakov, N. Gimelshein: *Online normalizer calculation for softmax*, 2018. <https://arxiv.org/abs/1805.02867>
- T. Dao et al.: *FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness*, NeurIPS 2022; block by block in section 3.1.
  <https://arxiv.org/abs/2205.14135>
- Z. Ye et al.: *FlashInfer: Efficient and Customizable Attention Engine for LLM Inference Serving*, 2025; attention states and how they are merged in
  section 2.2. <https://arxiv.org/abs/2501.01005>
- vLLM: `vllm/v1/attention/backends/flash_attn.py`, `vllm/v1/attention/ops/merge_attn_states.py`. <https://github.com/vllm-project/vllm>
- Hugging Face transformers: `AttentionInterface`, <https://huggingface.co/docs/transformers/attention_interface>; paged attention,
  <https://huggingface.co/docs/transformers/main/en/paged_attention>
- PyTorch: variable-length attention. <https://docs.pytorch.org/docs/stable/nn.attention.varlen.html>
"""
