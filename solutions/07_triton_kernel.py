# %% [markdown]
"""
# 07 · A Triton paged-attention kernel

**How does a GPU kernel read keys and values through a block table?**

90 minutes · difficulty: hard · routes: kernels · prerequisites: lesson 03 (blocks, slots) and lesson 06 (softmax block by block)

Lesson 06 left keys and values in their blocks, but each layer still made a temporary copy of them, because PyTorch's attention wants contiguous
tensors. In this lesson you write the attention kernel yourself, starting from a plain addition. You don't need a GPU: without one, every kernel runs
through Triton's interpreter. Triton supports Linux only: on Windows use WSL, on macOS a container.
"""

# %%
import inspect
import random
from types import SimpleNamespace

import torch

import lessons_lib.kernels.triton_setup  # before Triton: decides whether kernels are compiled or interpreted
import triton
import triton.language as tl
from lessons_lib.attention import add_block, attention_in_place, paged_attention, plan_groups
from lessons_lib.batching import padded_tables, paged_generate
from lessons_lib.checks import check, hint, predict, progress, quiz, reveal, solution
from lessons_lib.kernels import decode_heads, how_kernels_run, kernel_device, single_head_kernel, write_cache
from lessons_lib.kv_cache import BlockPool, BlockTable, PagedKVCache, slot_mapping
from lessons_lib.measuring import MAX_NEW_TOKENS, NAMES, PROMPTS
from lessons_lib.models import VOCAB_SIZE, cache_bytes_per_token, kv_head_size, load_model, tiny_model
from lessons_lib.recording import OutOfBounds, record_kernel, record_run
from lessons_lib.viz.stepper import Stepper
from lessons_lib.viz.programs import draw_program
from lessons_lib.viz.tables import Table

DEVICE = kernel_device()  # the device for tensors that kernels use
model, tokenizer = load_model(device=DEVICE, dtype=torch.float32)
KV_HEADS, HEAD_DIM = kv_head_size(model.config)
QUERY_HEADS = model.config.num_attention_heads

# %% tags=["measured"]
print(how_kernels_run())

# %% [markdown]
"""
## The problem: the remaining copy

In lesson 06 your attention read keys in place, in a Python loop that is too slow to serve. PyTorch's `scaled_dot_product_attention` is fast, but can't
read through a block table. So the library's PyTorch backend gathers: in each layer it copies the keys and values of all
running requests into new memory, uses them once, and drops them. Let's count these copies for the six stories, with four batch slots.
"""

# %%
gathered = []


def counting_backend(packed, block_tables, block_size):
    groups = plan_groups(packed.cu_seqlens_q, packed.context_lens, block_tables, block_size)
    gathered.append(sum(group.slots.numel() for group in groups))
    return lambda query, keys, values, scale: paged_attention(query, keys, values, groups, scale)


SIX = dict(prompts=PROMPTS, max_new_tokens=MAX_NEW_TOKENS, names=NAMES, max_num_seqs=4)
run = record_run(paged_generate, model, tokenizer, **SIX, backend=counting_backend)
KIB_PER_TOKEN = cache_bytes_per_token(model.config, model.dtype.itemsize) / 1024


def table_row(step):
    access = run.accesses[step - 1]
    new, needed = sum(map(len, access.written.values())), sum(access.context_lens.values())
    return [str(step), *(f"{tokens * KIB_PER_TOKEN:,.0f}" for tokens in (new, needed, gathered[step - 1]))]


Table(
    columns=["step", "new", "keys and values that attention needs", "gathered for it"],
    rows=[table_row(step) for step in (2, 30, 60, len(gathered))],
    caption="KiB in some steps of lesson 06's loop, all layers together",
)

# %% [markdown]
"""
Attention has to read the keys and values: that's the third column. The data in the last column is read from the pool, written to new memory, and read
again. There's more of it when sequences have different lengths: several sequences are gathered into one rectangle, padded to the longest.

The keys are already in memory. If *we* say which address to read, nothing has to be copied. That takes a kernel of our own. First, the vocabulary:

> **kernel**: a function that runs on a GPU. It is launched from Python, once, and then runs many times in parallel, on different parts of the data.

> **program**: one of these runs of a kernel. All programs of a launch execute the same code.

> **program id**: the index of a program, which tells it what part of the data to work on.

> **grid**: the number of programs of a launch, along one, two or three axes. A grid of (3, 4) has twelve programs, each with two ids.

**Triton** is a language for kernels that looks like Python, and **CUDA** is NVIDIA's own, which looks like C++. The GPU runs *threads*, each of which
computes with scalars. Up to 1,024 of them form a *thread block*, which runs on one of the GPU's processors, an *SM* (streaming multiprocessor). A
Triton program becomes a thread block.

| | CUDA | Triton |
|---|---|---|
| what you write | what one thread does with scalars | what one program does with tiles, arrays of many elements |
| who divides a tile among threads | you | the compiler |
| who uses an SM's small, fast *shared memory*, and its *tensor cores*, which multiply matrices | you | the compiler, where it can |
| when it is compiled | ahead of time, by its own compiler | at the first launch, once per combination of dtypes and constants |
| bounds checks | none | none |
| where it runs | NVIDIA GPUs | NVIDIA and AMD GPUs |

Without a GPU, Triton's **interpreter** runs the same source in Python, one program after another. It shows whether a kernel's results are right. Its
run times say nothing about speed, so this lesson never shows them. And it accepts more than the compiler does. So once your results are right, `check`
also asks the compiler whether it accepts your kernel for an NVIDIA GPU. That doesn't need a GPU either.

## Build 1: addition

We want to add two vectors of ten elements, `out = x + y`. Each program handles four elements, so we need three programs. By hand, each program's part:
"""

# %%
n_elements, BLOCK = 10, 4
for program in range(3):
    offsets = [program * BLOCK + i for i in range(BLOCK)]
    print(f"program {program}: offsets {offsets}, mask {[offset < n_elements for offset in offsets]}")

x, y, out = torch.arange(10.0, device=DEVICE), 100 * torch.arange(10.0, device=DEVICE), torch.zeros(10, device=DEVICE)

# %% [markdown]
"""
A kernel is written from the point of view of one program, which asks for its own id. Three more terms:

> **tile**: an array that one program works on at once: `[N]`, or a rectangle `[M, N]`. Its sides are powers of two, and known when the kernel is
> compiled.

> **pointer**: the address of a tensor's first element. A tensor argument reaches the kernel as a pointer, without its shape or strides. Pointer + 3 is
> the address of the element three elements further.

> **mask of a load or store**: a tile of booleans. Where it is False, nothing is read or written.

| in a kernel | what it is |
|---|---|
| `@triton.jit` above `def` | makes the function a kernel |
| `tl.program_id(0)` | this program's id along axis 0 of the grid |
| `tl.arange(0, BLOCK)` | the tile 0, 1, ..., BLOCK − 1 |
| `a + b`, `a * b`, `a < b` | elementwise on tiles; a scalar is combined with every element |
| `tl.load(x + offsets, mask=m)` | the elements of `x` at the offsets in the tile `offsets` |
| `tl.store(out + offsets, tile, mask=m)` | writes the elements of `tile` to `out`, at these offsets; a kernel returns nothing |
| `BLOCK: tl.constexpr` | a compile-time constant, written in capitals and passed by name |

You launch it with the grid in brackets: `add_kernel[(3,)](x, y, out, 10, BLOCK=4)`. The tensors must be on the GPU, or on the CPU where kernels are
interpreted; `DEVICE` above says which.

**Your task: `add_kernel`.** Program i adds the BLOCK elements starting at i × BLOCK, leaving out offsets that aren't below `n_elements`. The tensors
may be longer than `n_elements`; the rest must stay untouched. You need no loop and no `if`: an `if` takes one boolean, and a tile has BLOCK of them.
(The interpreter treats such a condition as True; the compiler rejects it.)

While you try things out, run the kernel with `record_kernel(add_kernel, (3,), x, y, out, 10, BLOCK=4)` instead of launching it. It fills `out` just as
a launch does, but checks every address first. In a plain launch, an out-of-range address can crash the whole Python process, on a CPU as well as on a
GPU. `draw_program(what_it_returns, 0)` shows what program 0 did. `record_kernel` always uses the interpreter, so `print(offsets)` inside the kernel
shows a tile's contents. Remove it when you're done: the compiler rejects it.
"""

# %% exercise="07.1"
from lessons_lib.kernels.basics import add_kernel

# %%
add_kernel[(3,)](x, y, out, n_elements, BLOCK=BLOCK)
print(out.tolist())

# %% [markdown]
"""
Here is everything that each program of your kernel loaded and stored. Step through the three programs.
"""

# %%
added = record_kernel(add_kernel, (3,), x, y, torch.zeros_like(out), n_elements, BLOCK=BLOCK)
print(added)
Stepper(lambda i: draw_program(added, i), count=len(added.programs), label="program", name=lambda i: f"program {i}", still=2)

# %% [markdown]
"""
### Nothing checks bounds

What happens if you forget the mask?
"""

# %%
@triton.jit
def add_without_mask(x, y, out, n_elements, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.load(x + offsets) + tl.load(y + offsets))


try:
    record_kernel(add_without_mask, (3,), x, y, out, n_elements, BLOCK=BLOCK)
except OutOfBounds as error:
    print("OutOfBounds:", error)

# %% [markdown]
"""
This error comes from the recorder. A GPU would have read whatever follows `x`, and would have written the sums past the end of `out`, into memory that
may belong to another tensor. The process may crash with an *illegal memory access*, some time later and somewhere else. Or the error goes unnoticed,
and some other result is wrong.

## Build 2: a row softmax

Next, matrices. Memory has no rows: it's one long array. The stride says where a row starts.

> **stride**: the distance in memory, in elements, between two neighbors along one axis of a tensor. `tensor.stride()` has one entry per axis.

A tensor can be a view of a larger one. Then there are gaps between its rows:
"""

# %%
wide = torch.arange(12.0).reshape(2, 6)
part = wide[:, :3]
print("part:", part.tolist(), "| shape", list(part.shape), "| strides", part.stride())
row = 1
offsets = [row * part.stride(0) + column for column in range(3)]
print("row 1 of `part` is at offsets", offsets, "in memory:", wide.flatten()[offsets].tolist())

# %% [markdown]
"""
Element (r, c) is at offset `r * stride + c`. The shape doesn't tell you that: with 3 columns, the stride here is 6.

A softmax over 3 columns needs a tile of 4 elements, a power of two. What should the fourth be? It takes part in the maximum and in the sum.
`tl.load(..., mask=m, other=value)` puts `value` where the mask is False. Without `other` those elements are undefined. For a softmax, use
`float("-inf")`: it's never the maximum, and its exponential is 0.

`tl.max(tile, axis=0)` and `tl.sum(tile, axis=0)` reduce a tile `[N]` to a scalar. `tl.exp(tile)` takes the exponential of each element.

**Your task: `softmax_kernel`.** Program i computes row i. `x` and `out` have `columns` columns and one stride each. `COLUMNS` is a power of two, at
least `columns`. Subtract the row's largest score before the exponential, as in lesson 06: scores may be near 1000. Don't touch the gaps between the
rows of `out`.

Example: for the row 0, 1, 2 the weights before the division are 0.135, 0.368 and 1. The result is 0.090, 0.245, 0.665.
"""

# %% exercise="07.2"
from lessons_lib.kernels.basics import softmax_kernel

# %%
wide = 10 * torch.randn(5, 20, generator=torch.Generator().manual_seed(7))
scores = wide.to(DEVICE)[:, :13]  # 13 columns; rows start 20 elements apart
weights = torch.empty(5, 13, device=DEVICE)
softmax_kernel[(5,)](scores, weights, 13, scores.stride(0), weights.stride(0), COLUMNS=16)
same = torch.allclose(weights, scores.softmax(dim=1), atol=1e-6)
print(f"strides {scores.stride(0)} and {weights.stride(0)}; same as PyTorch's softmax: {same}")

# %% [markdown]
"""
## Build 3: an address from a table

So far, each program knew from its id what to read. Now it has to look that up. `index` is a list of row indices, and row i of `out` becomes row
`index[i]` of `source`. With `index` = [2, 0], program 0 copies row 2, and program 1 copies row 0.

So there are two loads: the first gets an index, and the second uses it in its address. A load from a single address returns a scalar:
`tl.load(index + row)`.

**Your task: `gather_kernel`.** Program i writes row i of `out`. `source` and `out` have one stride each. An index may occur twice.
"""

# %% exercise="07.3"
from lessons_lib.kernels.basics import gather_kernel

# %% [markdown]
"""
The first thing a language model computes is a gather of this kind. The embedding is a matrix with one row per token of the vocabulary, and the token
ids are the index.
"""

# %%
embedding = model.get_input_embeddings().weight.detach()
ids = torch.tensor(tokenizer(PROMPTS[NAMES.index("E")]).input_ids, dtype=torch.int32, device=DEVICE)
rows = torch.empty(len(ids), embedding.shape[1], device=DEVICE)
gather_kernel[(len(ids),)](embedding, ids, rows, rows.shape[1], embedding.stride(0), rows.stride(0), COLUMNS=256)
same = torch.equal(rows, model.get_input_embeddings()(ids))
print(f"tokens {ids.tolist()} of {len(embedding)}: same as the model's own embedding: {same}")

# %% [markdown]
"""
That is all there is to paging. A block table is just such an index: its entry *j* says which block of the pool holds block *j* of a sequence. A kernel
that can look up an address doesn't need a contiguous copy.

## Real keys

We take our data from a real run: C, E and A in a pool with blocks of four tokens. During the run we keep what layer 1 passes to the cache in the first
step, and to attention in the last one.
"""

# %%
LAYER, BLOCK_SIZE = 1, 4
writes, reads = [], []


class NotingCache(PagedKVCache):
    def write(self, layer, keys, values, slot_mapping):
        if layer == LAYER:
            writes.append((keys.clone(), slot_mapping))
        super().write(layer, keys, values, slot_mapping)


def noting_backend(packed, block_tables, block_size):
    groups = plan_groups(packed.cu_seqlens_q, packed.context_lens, block_tables, block_size)
    layers = iter(range(model.config.num_hidden_layers))

    def attend(query, keys, values, scale):
        if next(layers) == LAYER:
            reads.append((query, keys.clone(), values.clone(), block_tables.int(), packed.context_lens.int(), scale))
        return paged_attention(query, keys, values, groups, scale)

    return attend


three = [PROMPTS[NAMES.index(name)] for name in "CEA"]
THREE = dict(prompts=three, names="CEA", max_new_tokens=4, max_num_seqs=3, block_size=BLOCK_SIZE)
by_torch = paged_generate(model, tokenizer, **THREE, backend=noting_backend, make_cache=NotingCache)
first_keys, first_slots = writes[0]
query, k_cache, v_cache, block_tables, context_lens, scale = reads[-1]
print("first step: new keys", list(first_keys.shape), "(tokens, KV heads, head size)")
print("last step: queries", list(query.shape), "(sequences, query heads, head size); cache", list(k_cache.shape))
for name, table, context in zip("CEA", block_tables.tolist(), context_lens.tolist()):
    print(f"{name}: {context} tokens, block table {table}")

# %% [markdown]
"""
## Predict

In this last step, attention in this layer will have one program per sequence and query head. Each program loads keys and values block by block, through
the table. A key or a value of one head has 64 elements of 4 bytes. How many KiB of keys and values does the program for query head 0 of C load? And how
many bytes do all programs load together, as a multiple of what these three sequences have in the layer's cache?
"""

# %%
predict("07.a", ...)  # KiB of keys and values that the program for query head 0 of C loads

# %%
predict("07.b", ...)  # all programs together: bytes of keys and values loaded / bytes of these three sequences in the layer's cache

# %% [markdown]
"""
## Build 4: the cache write

New keys arrive as `[T, KV heads, head size]`. For a kernel that writes them, a token is one vector of KV heads × head size elements, here 2 × 64 = 128.
In the cache, `[num_blocks, block_size, KV heads, head size]`, each cache slot holds one such vector. Slots are numbered across the whole pool: slot =
block × block size + offset in the block. So the slot times one stride gives the start of its vector.

**Your task: `write_kernel`.** Program i writes new token i, with all its heads. `slot_mapping` has a 64-bit integer per new token. `n_elements` is the
length of a token's vector, and `BLOCK` is a power of two at least that large. `stride_new` is the distance from one token of `new` to the next,
and `stride_slot` is the distance from one slot of the cache to the next. Nothing else in the cache may change.

Example: with `slot_mapping` = [6, 1], program 0 copies row 0 of `new` to slot 6, and program 1 copies row 1 to slot 1.
"""

# %% exercise="07.4"
from lessons_lib.kernels.simple_paged import write_kernel

# %% [markdown]
"""
The library's `write_cache(new, cache, slot_mapping, kernel)` launches it with one program per new token and passes the two strides. Compare it with
lesson 06's `write` on the first step of our run: three prompts in one packed batch.
"""

# %%
mine, theirs = (PagedKVCache(model.config, k_cache.shape[0], BLOCK_SIZE, device=DEVICE) for _ in range(2))
write_cache(first_keys, mine.keys[0], first_slots, write_kernel)
theirs.write(0, first_keys, first_keys, first_slots)
same = torch.equal(mine.keys[0], theirs.keys[0])
print(f"{len(first_slots)} tokens of three prompts: the same cache as lesson 06's `write`: {same}")

# %% [markdown]
"""
## Build 5: attention over a block table

Now the real thing, for one query head of one new token, in a cache with one KV head. Look again at how lesson 06 did it, and at what `add_block` does in
each iteration.
"""

# %%
print(inspect.getsource(attention_in_place))
print(inspect.getsource(add_block))

# %% [markdown]
"""
The kernel does what the inner loop does, for one query. A single new token sees every key, so nothing is masked. Its names for the same things:

| lesson 06 | in the kernel | shape |
|---|---|---|
| `seen.maximum`, `maximum` | `row_max`, `new_max` | scalar; `float("-inf")` before the first block |
| `seen.total` | `row_sum` | scalar; `0.0` before the first block |
| `seen.output` | `acc` | `[HEAD_DIM]`; zeros before the first block |
| `weights` | `weights` | `[BLOCK_SIZE]` |
| `rescale` | `rescale` | scalar, exp(old maximum − new maximum) |
| `attention_of(seen)` | `acc / row_sum` | `[HEAD_DIM]` |

Five things are different.

**A tile is always a whole block.** Its size is fixed, so the last block needs a mask: in the block that starts at position `first`, slot *s* holds a key
if `first + s < num_tokens`. Slots without a token may hold anything, even NaN. Load keys and values with `other=0.0`. That alone isn't enough: a key of
zeros has a score of 0, which is a score like any other. So `tl.where(is_key, scores, float("-inf"))` replaces it with minus infinity before the maximum
is taken. (Every iteration has at least one real key, so the trap of lesson 06, −∞ − (−∞), can't occur here.)

**Variables that a loop updates keep their dtype and shape.** The compiler fixes both before the first iteration. A sum that starts as `0` is an
integer, and the compiler rejects the loop if it turns the sum into a float; so start with `0.0`. And `acc` starts as a tile, not as a scalar.

**Keys form a rectangle.** One row per slot, one column per element of a key: `[BLOCK_SIZE, HEAD_DIM]`. If `slot` is the tile 0 … BLOCK_SIZE − 1, and
`dim` the tile 0 … HEAD_DIM − 1, then `slot[:, None]` is a column, `dim[None, :]` a row, and `slot[:, None] * stride_slot + dim[None, :]` a rectangle of
offsets:
"""

# %%
slot, dim, stride_slot = torch.arange(4), torch.arange(8), 100
print(slot[:, None] * stride_slot + dim[None, :])

# %% [markdown]
"""
The mask for this rectangle is `is_key[:, None]`. The scores are sums along the rows, `tl.sum(query[None, :] * block_keys, axis=1)`. The weighted sum
of the values goes down the columns: `tl.sum(weights[:, None] * block_values, axis=0)`.

**The block comes from the table.** Entry `p // BLOCK_SIZE` tells you which block position p is in. The entry is the *physical* block, an index into the
pool. That block starts at offset block × `stride_block`. The cache may be a view of a larger tensor, so `stride_block` need not be BLOCK_SIZE ×
`stride_slot`.

**Offsets can be large.** The block table holds 32-bit integers, a stride is passed as one if it fits, and the product of two 32-bit integers has 32
bits as well. Take a Llama with 8 billion parameters (32 layers, 8 KV heads of 128, 2 bytes per element) on a GPU with 80 GB, and the last block of its
pool:
"""

# %%
block_elements = 16 * 8 * 128  # keys of one layer in a block of 16 tokens
last = (80 - 16) * 10**9 // (block_elements * 2 * 32 * 2) - 1  # the weights take 16 GB
for layout, stride_block in (("keys of one layer", block_elements), ("keys and values of all layers", block_elements * 2 * 32)):
    in_32_bits = torch.tensor([last], dtype=torch.int32) * stride_block
    print(f"stride_block covers {layout}: {last:,} × {stride_block:,} = {last * stride_block:,}; in 32 bits {in_32_bits.item():,}")

# %% [markdown]
"""
Whether 32 bits are enough depends on what is stored between the starts of two blocks. With the keys of one layer, they're enough here. With all layers
side by side, the product overflows, and the result may be negative or, worse, look like a valid offset, as it does here. A kernel doesn't know where
its cache comes from. So convert the block to a 64-bit integer *before* you multiply: `.to(tl.int64)`.

**Your task: `attend_blocks`**, a function that a kernel calls. It is decorated with `@triton.jit` too, but it returns its result.

1. Start with `row_max`, `row_sum` and `acc`. A tile of zeros is `tl.zeros([HEAD_DIM], tl.float32)`; it needs both the list and the dtype.
2. `for first in range(0, num_tokens, BLOCK_SIZE)`: load the block's index, its keys and its values; compute the scores, multiplied by `scale`; then do
   what `add_block` does. `tl.maximum(a, b)` is the larger of two scalars.
3. Return `acc / row_sum`, `[HEAD_DIM]`, float32.

`query` isn't a pointer but the query itself, a tile `[HEAD_DIM]`. `keys`, `values` and `table` are pointers; keys and values have the same strides.
`num_tokens` includes the new token, and is at least 1. Table entries past the blocks in use may be anything. HEAD_DIM and BLOCK_SIZE are powers of two,
so you need no further mask. The query is float32, so everything computed with it is float32 as well, whatever the cache's dtype.
"""

# %% exercise="07.5"
from lessons_lib.kernels.simple_paged import attend_blocks

# %% [markdown]
"""
The kernel that calls it is given. A compile-time constant, here `ATTEND`, can be a function.
"""

# %%
print(inspect.getsource(single_head_kernel.fn))

# %% [markdown]
"""
Now run your function on real keys, C's query head 0 over KV head 0, compare it with lesson 06's `attention_in_place`, and count what it loads:
"""

# %%
C, kv_head = 0, 0
own_keys, own_values = (cache[:, :, kv_head] for cache in (k_cache, v_cache))
num_tokens, blocks = context_lens[C].item(), block_tables[C].tolist()
own_query, own_out = query[C, 0].contiguous(), torch.empty(HEAD_DIM, device=DEVICE)
strides = own_keys.stride()[:2]
launch = (attend_blocks, own_query, own_keys, own_values, block_tables[C].contiguous(), own_out, num_tokens, scale, *strides)
single_head_kernel[(1,)](*launch, HEAD_DIM=HEAD_DIM, BLOCK_SIZE=BLOCK_SIZE)
print("strides of block and slot:", strides)
in_place = attention_in_place(own_query[None, None].cpu(), own_keys[:, :, None].cpu(), own_values[:, :, None].cpu(), blocks, num_tokens, scale)
print("same as lesson 06:", torch.allclose(own_out.cpu(), in_place[0, 0], atol=1e-5))


def cache_bytes(recording, program):
    """Bytes of keys and values that a program loaded."""
    return sum(len(a.offsets) * recording.tensors[a.tensor].itemsize for a in program.accesses if a.tensor in ("k_cache", "v_cache"))


single = record_kernel(single_head_kernel, (1,), *launch, HEAD_DIM=HEAD_DIM, BLOCK_SIZE=BLOCK_SIZE)
reveal("07.a", cache_bytes(single, single.programs[0]) / 1024, unit="KiB")

# %% [markdown]
"""
C's second block is half empty. Masked elements aren't read: the kernel loads the keys and values of 6 tokens, not of 8.

## Build 6: all sequences, all heads

One program computes one query head of one sequence. Now we launch a grid of (sequences, query heads): program (i, h) computes query head h of sequence
i. The loop doesn't change. What remains is to find each program's query, KV head, block table, context length and output.

GROUP neighboring query heads share one KV head: with 4 query heads and 2 KV heads, GROUP is 2, and query heads 0, 1, 2, 3 use KV heads 0, 0, 1, 1.
You can move a pointer: `k_cache + n` points n elements further.

| argument | what it is | strides |
|---|---|---|
| `q`, `out` | `[sequences, query heads, HEAD_DIM]` | `stride_seq`, `stride_q_head`, the same for both; the last is 1 |
| `k_cache`, `v_cache` | `[num_blocks, BLOCK_SIZE, KV heads, HEAD_DIM]` | `stride_block`, `stride_slot`, `stride_head`, the same for both; the last is 1 |
| `block_tables` | `[sequences, longest table]`, 32-bit | `stride_table`; the last is 1 |
| `context_lens` | `[sequences]`, 32-bit: number of tokens in each sequence, including the new one | 1 |

HEAD_DIM and BLOCK_SIZE are powers of two again: models with a head size of 80 or 96 have to wait for lesson 08.

**Your task: `decode_heads_kernel`.** Call your `attend_blocks`, with its arguments in order, HEAD_DIM and BLOCK_SIZE included. It expects the query
itself, a tile, as float32 even if `q` is float16: `tl.load(...).to(tl.float32)`.
"""

# %% exercise="07.6"
from lessons_lib.kernels.simple_paged import decode_heads_kernel

# %% [markdown]
"""
`decode_heads` launches it. This is everything that Python has to do:
"""

# %%
print(inspect.getsource(decode_heads))

# %%
attended = decode_heads(query, k_cache, v_cache, block_tables, context_lens, scale, decode_heads_kernel)
decodes = plan_groups(torch.arange(4, device=DEVICE), context_lens, block_tables, BLOCK_SIZE)
expected = paged_attention(query, k_cache, v_cache, decodes, scale)
print("three sequences, four query heads: same as lesson 06's paged_attention:", torch.allclose(attended, expected, atol=1e-5))

# %% [markdown]
"""
## Which program reads what

Here is your kernel on the last step of C, E and A, recorded. Step through the programs: first the four query heads of C, then E's, then A's.
"""

# %%
on_cpu = [tensor.cpu().contiguous() for tensor in (query, k_cache, v_cache, block_tables, context_lens)]
q, k, v, tables, lens = on_cpu
strides = (*q.stride()[:2], *k.stride()[:3], tables.stride(0))
constants = dict(GROUP=QUERY_HEADS // KV_HEADS, HEAD_DIM=HEAD_DIM, BLOCK_SIZE=BLOCK_SIZE)
recorded = record_kernel(decode_heads_kernel, (3, QUERY_HEADS), *on_cpu, torch.empty_like(q), scale, *strides, **constants)
axes = ["sequence", "query head"]
name = lambda i: f"program {recorded.programs[i].ids}"
Stepper(lambda i: draw_program(recorded, i, axes), count=len(recorded.programs), label="program", name=name, start=8, still=8)

# %% [markdown]
"""
Go from program (2, 0) to program (2, 1): from A's query head 0 to its query head 1. The cache slots stay the same. Both heads use KV head 0, so both
programs load the same keys and values. Count them:
"""

# %%
loaded = sum(cache_bytes(recorded, program) for program in recorded.programs)
necessary = sum(lens.tolist()) * KV_HEADS * 2 * HEAD_DIM * 4
print(f"{len(recorded.programs)} programs load {loaded:,} bytes of keys and values; the cache holds {necessary:,}")
reveal("07.b", loaded / necessary, unit="times as many")

# %% [markdown]
"""
Each key is loaded once per query head of its group, GROUP times. On a GPU, the second load may find the key in one of the GPU's caches, or may not.
Lesson 08 gives all query heads of a KV head to one program, which loads each key once.

## Prove it

First, random cases against lesson 06. One context is a single token; the others are close to the size of a block: one less, exactly a block, and one
more. Slots without a token hold NaN.
"""

# %%
def random_decodes(group, kv_heads, block_size, head_dim, seed):
    """Sequences over a cache with blocks in random order."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    contexts = [1, max(1, block_size - 1), block_size, block_size + 1]
    pool = BlockPool(sum(-(-context // block_size) for context in contexts) + 2, block_size)
    rng.shuffle(pool.free_queue)
    caches = torch.full((2, pool.num_blocks, block_size, kv_heads, head_dim), float("nan"))
    block_tables = []
    for context in contexts:
        table = BlockTable(pool)
        table.append(context)
        slots = slot_mapping(table.blocks, block_size, 0, context)
        caches.flatten(1, 2)[:, slots] = torch.randn(2, context, kv_heads, head_dim, generator=generator)
        block_tables.append(table)
    queries = torch.randn(len(contexts), group * kv_heads, head_dim, generator=generator)
    lens = torch.tensor(contexts, dtype=torch.int32)
    return [tensor.to(DEVICE) for tensor in (queries, *caches, padded_tables(block_tables).int(), lens)]


for seed, (group, kv_heads, block_size) in enumerate([(1, 1, 1), (1, 2, 8), (2, 2, 4), (4, 1, 16), (7, 2, 8)]):
    case = random_decodes(group, kv_heads, block_size, 16, seed)
    got = decode_heads(*case, 0.25, decode_heads_kernel)
    groups = plan_groups(torch.arange(len(case[0]) + 1, device=DEVICE), case[4], case[3], block_size)
    same = torch.allclose(got, paged_attention(*case[:3], groups, 0.25), atol=1e-5)
    print(f"GROUP {group}, KV heads {kv_heads}, blocks of {block_size:2}, contexts {case[4].tolist()}: same as lesson 06: {same}")

# %% [markdown]
"""
Then a whole model: a cache written by your `write_kernel`, and a backend for lesson 06's loop. Sequences with one new token go through your decode
kernel, prompts through PyTorch.
"""

# %%
class KernelCache(PagedKVCache):
    def write(self, layer, keys, values, slot_mapping):
        write_cache(keys, self.keys[layer], slot_mapping, write_kernel)
        write_cache(values, self.values[layer], slot_mapping, write_kernel)


launches = []


def kernel_backend(packed, block_tables, block_size):
    is_decode = packed.cu_seqlens_q.diff() == 1
    rows = packed.logits_index[is_decode]
    own_tables, own_lens = block_tables[is_decode].int(), packed.context_lens[is_decode].int()
    groups = plan_groups(packed.cu_seqlens_q, packed.context_lens, block_tables, block_size)
    prompts = [group for group in groups if group.rows.shape[1] > 1]

    def attend(query, keys, values, scale):
        out = paged_attention(query, keys, values, prompts, scale)
        if len(rows):
            launches.append(len(rows))
            out[rows] = decode_heads(query[rows], keys, values, own_tables, own_lens, scale, decode_heads_kernel)
        return out

    return attend


MINE = dict(backend=kernel_backend, make_cache=KernelCache)
by_kernels = paged_generate(model, tokenizer, **THREE, **MINE)
for name, ids, prompt in zip("CEA", by_kernels, THREE["prompts"]):
    print(f"{name}: {prompt}|{tokenizer.decode(ids)}")
print("the same tokens as with PyTorch's attention:", by_kernels == by_torch)
print(f"launches of your decode kernel: {len(launches)}, one per layer of each step with decodes")

# %% [markdown]
"""
Last, small random models of three families, with requests that come and go in a small pool. In GPT-2 each query head has its own KV head; in the
others, query heads share them.
"""

# %%
rng = random.Random(7)
plain = SimpleNamespace(pad_token_id=0, eos_token_id=None)
prompts = [[rng.randrange(VOCAB_SIZE) for _ in range(n)] for n in (1, 4, 6, 3)]
LOAD = dict(prompts=prompts, max_new_tokens=[4, 2, 3, 2], max_num_seqs=2, block_size=4)
for family in ("gpt2", "llama", "qwen2"):
    tiny = tiny_model(family).to(DEVICE)
    same = paged_generate(tiny, plain, **LOAD, **MINE) == paged_generate(tiny, plain, **LOAD, backend="torch")
    print(f"{family:>6}: the same tokens: {same}")

# %% [markdown]
"""
## Measure

A decode is memory-bound (lesson 00): its time is the time it takes to move its bytes. So we judge a kernel by the bytes that *had* to be read, divided
by its time.

> **achieved bandwidth**: the minimum number of bytes that a computation must read and write, divided by the time it took. Compared with the bandwidth
> of a plain copy on the same GPU, it shows how much faster the kernel could be.

First the counts, for a production size: 64 sequences of 2,048 tokens, 32 query heads over 8 KV heads of 128 elements, 2 bytes per element.
"""

# %%
CASE = dict(num_seqs=64, context=2048, q_heads=32, kv_heads=8, head_dim=128)


def traffic(num_seqs, context, q_heads, kv_heads, head_dim, itemsize=2):
    """(programs, bytes of keys and values that they load, bytes of keys and values in the cache)"""
    bytes_per_head = 2 * num_seqs * context * head_dim * itemsize
    return num_seqs * q_heads, q_heads * bytes_per_head, kv_heads * bytes_per_head


programs, loaded, necessary = traffic(**CASE)
print(f"{programs:,} programs; keys and values loaded: {loaded / 1e9:.2f} GB; necessary: {necessary / 1e9:.2f} GB")

# %% [markdown]
"""
Then the time, if there is a GPU.
"""

# %% tags=["measured"]
def gigabytes_per_second(num_seqs, context, q_heads, kv_heads, head_dim, block_size=16):
    """Achieved bandwidth of your kernel, and bandwidth of a copy."""
    num_blocks = num_seqs * context // block_size
    queries = torch.randn(num_seqs, q_heads, head_dim, device=DEVICE, dtype=torch.bfloat16)
    keys, values = (torch.randn(num_blocks, block_size, kv_heads, head_dim, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    tables = torch.randperm(num_blocks, device=DEVICE).reshape(num_seqs, -1).int()
    lens = torch.full((num_seqs,), context, dtype=torch.int32, device=DEVICE)
    target = torch.empty_like(keys)
    ms = triton.testing.do_bench(lambda: decode_heads(queries, keys, values, tables, lens, head_dim**-0.5, decode_heads_kernel))
    ms_copy = triton.testing.do_bench(lambda: target.copy_(keys))
    return 2 * keys.nbytes / ms / 1e6, 2 * keys.nbytes / ms_copy / 1e6


if DEVICE == "cuda":
    kernel, copy = gigabytes_per_second(**CASE)
    print(f"your kernel: {kernel:,.0f} GB/s of keys and values; a copy reads and writes {copy:,.0f} GB/s; your kernel reaches {kernel / copy:.0%} of that")
else:
    print("Kernels are interpreted here: a time would say nothing about the kernel. Lesson 08 shows times recorded on a GPU.")

# %% [markdown]
"""
This lesson adds no row to the ledger. The counts would be the same as in lesson 06. The time would be either the interpreter's, which means nothing,
or a GPU's, which can't be compared with the other rows: they were all measured on a CPU.

## What production does

- **vLLM** started with CUDA kernels. `paged_attention_v1` (in `csrc/attention/`) gave each query head of each sequence to one thread block, as your
  kernel gives it to one program. `paged_attention_v2` split long sequences into partitions of 512 tokens and merged their results. On NVIDIA GPUs vLLM
  now uses FlashAttention or FlashInfer by default.
- vLLM's Triton kernel is `kernel_unified_attention` in `vllm/v1/attention/ops/triton_unified_attention.py` (names as of version 0.33). You'll recognize
  `block_tables_ptr`, the strides of the caches, `physical_block_idx = tl.load(...).to(tl.int64)`, and `M`, `L` and `acc`, which are your `row_max`,
  `row_sum` and `acc`. It has one program per *KV* head and group of query tokens, and handles prompts and decodes alike.
- `_fwd_kernel_stage1` in `vllm/v1/attention/ops/triton_decode_attention.py`, which came from SGLang, is closer to yours: one program per sequence, query
  head and part of the sequence, with `cur_kv_head = cur_head // kv_group_num`, `e_max`, `e_sum` and `acc`.
- The cache write is `reshape_and_cache_kernel_flash` in `triton_reshape_and_cache_flash.py`, in the same folder, with a `slot_mapping`. A slot of −1
  marks a token that must not be written.
- **FlashInfer** has `BatchDecodeWithPagedKVCacheWrapper`. Instead of a rectangle of block tables it takes all tables concatenated, with cumulative
  lengths, like the packed batch of lesson 05.
- **Hugging Face transformers** gathers in its continuous batching, as our PyTorch backend does. With FlashAttention, a step that has only decodes can skip the
  gather and pass a block table.

## What is still wrong

**Keys are loaded once per query head.** With GROUP query heads per KV head, that is GROUP times as often as necessary.

**The tensor cores sit idle.** Each score is a sum of products, computed element by element. Tensor cores multiply matrices many times faster, but they
need several queries at once, and a program here has only one.

**Sizes must be powers of two.** A head size of 80 or 96, or a block of 24 slots, needs one more mask, as in Build 2.

**One block per iteration.** With 16 tokens per block, an iteration loads little, and then waits for it.

**One program per sequence and head, however long the sequence.** With few sequences, most SMs of a GPU have nothing to do, and the longest sequence
decides when the launch finishes.

**Prompts go through PyTorch**, and their keys and values are still gathered for it.

Lesson 08 fixes these one at a time, and measures what most of the fixes gain.

## Quiz
"""

# %%
quiz("07")

# %% [markdown]
"""
## References

- P. Tillet, H. T. Kung, D. Cox: *Triton: An Intermediate Language and Compiler for Tiled Neural Network Computations*, MAPL 2019.
  <https://www.eecs.harvard.edu/~htk/publication/2019-mapl-tillet-kung-cox.pdf>
- Triton's documentation: tutorials 01 (vector addition) and 02 (fused softmax), and the language reference.
  <https://triton-lang.org/main/getting-started/tutorials/index.html>
- S. Rush: *Triton-Puzzles* and *GPU-Puzzles*, more exercises of this kind. <https://github.com/srush/Triton-Puzzles>,
  <https://github.com/srush/GPU-Puzzles>
- W. Kwon et al.: *Efficient Memory Management for Large Language Model Serving with PagedAttention*, SOSP 2023. <https://arxiv.org/abs/2309.06180>
- M. Milakov, N. Gimelshein: *Online normalizer calculation for softmax*, 2018. <https://arxiv.org/abs/1805.02867>
- vLLM: the files named above. <https://github.com/vllm-project/vllm>
- FlashInfer: *KV-Cache Layout*. <https://docs.flashinfer.ai/tutorials/kv_layout.html>
"""
