# %% [markdown]
"""
# 07 · A Triton paged-attention kernel

**What does a program on a GPU look like that reads keys and values through a block table?**

90 minutes · difficulty: hard · routes: kernels · you need first: lesson 03 (blocks, slots) and lesson 06 (softmax block by block)

Lesson 06 left keys and values in their blocks, and still copied them for a moment in each layer, because PyTorch's attention wants them in one piece.
In this lesson you write attention yourself, as a GPU runs it, from the first addition on. You need no GPU: without one, every kernel runs through
Triton's interpreter. Triton is made for Linux only: on Windows use WSL, on macOS a container.
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
from lessons_lib.kernels import decode_heads, how_kernels_run, kernel_device, one_head_kernel, write_cache
from lessons_lib.kv_cache import BlockPool, BlockTable, PagedKVCache, slot_mapping
from lessons_lib.measuring import MAX_NEW_TOKENS, NAMES, PROMPTS
from lessons_lib.models import VOCAB_SIZE, cache_bytes_per_token, kv_head_size, load_model, tiny_model
from lessons_lib.recording import OutOfBounds, record_kernel, record_run
from lessons_lib.viz import Stepper
from lessons_lib.viz.programs import draw_program
from lessons_lib.viz.tables import Table

DEVICE = kernel_device()  # where tensors for kernels must lie
model, tokenizer = load_model(device=DEVICE, dtype=torch.float32)
KV_HEADS, HEAD_DIM = kv_head_size(model.config)
QUERY_HEADS = model.config.num_attention_heads

# %% tags=["measured"]
print(how_kernels_run())

# %% [markdown]
"""
## The problem: the copy that is left

PyTorch's `scaled_dot_product_attention` cannot read through a block table. So lesson 06 gathered: for each layer it copied the keys and values of
all running requests into new memory, used them once, and dropped them. We count these copies for the six stories, four at a time.
"""

# %%
gathered = []


def counting_backend(packed, block_tables, block_size):
    groups = plan_groups(packed.cu_seqlens_q, packed.context_lens, block_tables, block_size)
    gathered.append(sum(group.slots.numel() for group in groups))
    return lambda query, keys, values, scale: paged_attention(query, keys, values, groups, scale)


SIX = dict(prompts=PROMPTS, max_new_tokens=MAX_NEW_TOKENS, names=NAMES, max_num_seqs=4)
run = record_run(paged_generate, model, tokenizer, **SIX, backend=counting_backend)
KIB_A_TOKEN = cache_bytes_per_token(model.config, model.dtype.itemsize) / 1024


def row_of_the_table(number):
    access = run.accesses[number - 1]
    new, needed = sum(map(len, access.written.values())), sum(access.context_lens.values())
    return [str(number), *(f"{tokens * KIB_A_TOKEN:,.0f}" for tokens in (new, needed, gathered[number - 1]))]


Table(
    columns=["step", "new", "keys and values that attention needs", "gathered for it"],
    rows=[row_of_the_table(number) for number in (2, 30, 60, len(gathered))],
    caption="KiB in some steps of lesson 06's loop, all layers together",
)

# %% [markdown]
"""
Attention has to read the keys and values: that is the third column. The last column is read from the pool, written to new memory, and read again. It
is larger where sequences are unequally long, because rectangles are filled up.

The keys lie in memory already. If *we* say which address is read, nothing has to be copied. For that we need a kernel of our own. First the words:

> **kernel**: a function that a GPU runs. It is launched from Python, once, and then runs many times at the same time, on different parts of the data.

> **program**: one of these runs of a kernel. All programs of a launch run the same lines.

> **program id**: the number of a program, by which it finds out what part of the data is its own.

> **grid**: how many programs a launch has, along one, two or three axes. In a grid of (3, 4) there are twelve, and each has two ids.

**Triton** is a language for kernels that looks like Python, and **CUDA** is NVIDIA's own, which looks like C++. What runs on the GPU are *threads*,
each of which computes with single numbers. Up to 1,024 of them form a *thread block*, which runs on one of the GPU's processors, an *SM* (streaming
multiprocessor). A program of Triton becomes a thread block.

| | CUDA | Triton |
|---|---|---|
| what you write | what one thread does with single numbers | what one program does with tiles, that is, many numbers at once |
| who divides a tile among threads | you | the compiler |
| who uses the small, fast *shared memory* of an SM, and its *tensor cores*, which multiply matrices | you | the compiler, as far as it sees where |
| when it is compiled | before, by its own compiler | at the first launch, once for each set of types and constants |
| who checks that an address is in bounds | nobody | nobody |
| where it runs | GPUs of NVIDIA | GPUs of NVIDIA and AMD |

Without a GPU, Triton's **interpreter** runs the same source in Python, one program after the other. It shows whether a kernel's results are right.
Its times say nothing about speed, so this lesson never shows them. And it accepts more than the compiler does. So when your results are right,
`check` also asks the compiler whether it accepts your kernel for a GPU of NVIDIA. That needs no GPU.

## Build 1: addition

Two rows of ten numbers are to be added, `out = x + y`. Each program takes four, so there are three programs. By hand, what each of them has to do:
"""

# %%
length, BLOCK = 10, 4
for program in range(3):
    places = [program * BLOCK + i for i in range(BLOCK)]
    print(f"program {program}: places {places}, of which there are {[place < length for place in places]}")

x, y, out = torch.arange(10.0, device=DEVICE), 100 * torch.arange(10.0, device=DEVICE), torch.zeros(10, device=DEVICE)

# %% [markdown]
"""
A kernel says the same, for a program that asks for its own number. Three more words:

> **tile**: a block of numbers that one program works on at once: `[N]`, or a rectangle `[M, N]`. Its sides are powers of two, and known when the kernel
> is compiled.

> **pointer**: the address of a tensor's first number. A tensor that is handed to a kernel arrives as a pointer, without shape and strides. Pointer + 3
> is the address of the number three places further.

> **mask of a load or store**: a tile of True and False. Where it is False, nothing is read or written.

| in a kernel | what it is |
|---|---|
| `@triton.jit` above `def` | makes the function a kernel |
| `tl.program_id(0)` | this program's number along axis 0 of the grid |
| `tl.arange(0, BLOCK)` | the tile 0, 1, ..., BLOCK − 1 |
| `a + b`, `a * b`, `a < b` | for each number of a tile; a single number goes with all of them |
| `tl.load(x + place, mask=m)` | the numbers of `x` at the places in the tile `place` |
| `tl.store(out + place, tile, mask=m)` | writes them; a kernel returns nothing |
| `BLOCK: tl.constexpr` | a constant for the compiler, written in capitals; handed over by name |

It is launched with the grid in brackets: `add_kernel[(3,)](x, y, out, 10, BLOCK=4)`. The tensors must lie on the GPU, or on the CPU where kernels are
interpreted; `DEVICE` above says which.

**Your task: `add_kernel`.** Program i adds the numbers from i × BLOCK on, BLOCK of them, as far as there are any: the places below `length`. The
tensors may be longer than `length`; what lies behind stays as it is. No loop is needed, and no `if`: an `if` needs one yes or no, and a tile has BLOCK
of them. (The interpreter takes such an `if` for a yes; the compiler refuses it.)

While you try: run a kernel with `record_kernel(add_kernel, (3,), x, y, out, 10, BLOCK=4)` and not bare. It fills `out` as a launch does, and looks
every address up first. Run bare, a wild address can end the whole Python process, on the CPU as on the GPU. `draw_program(what_it_returns, 0)` shows
what program 0 did. `record_kernel` always goes through the interpreter, so `print(place)` inside the kernel shows what a tile holds. Take it out when
you are done: the compiler refuses it.
"""

# %% exercise="07.1"
from lessons_lib.kernels.basics import add_kernel

# %%
add_kernel[(3,)](x, y, out, length, BLOCK=BLOCK)
print(out.tolist())

# %% [markdown]
"""
What each program of your kernel loaded and stored, recorded. Step through the three.
"""

# %%
added = record_kernel(add_kernel, (3,), x, y, torch.zeros_like(out), length, BLOCK=BLOCK)
print(added)
Stepper(lambda i: draw_program(added, i), count=len(added.programs), label="program", name=lambda i: f"program {i}", still=2)

# %% [markdown]
"""
### Nobody checks bounds

What if the mask is forgotten?
"""

# %%
@triton.jit
def add_without_mask(x, y, out, length, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + place, tl.load(x + place) + tl.load(y + place))


try:
    record_kernel(add_without_mask, (3,), x, y, out, length, BLOCK=BLOCK)
except OutOfBounds as error:
    print("OutOfBounds:", error)

# %% [markdown]
"""
It is the recorder that says so. A GPU would have read whatever lies behind `x`, and would have written the sums behind `out`, into memory that may
belong to another tensor. Perhaps the process dies with *illegal memory access*, a while later and in another place. Perhaps nobody notices, and some
other result is wrong.

## Build 2: a softmax of rows

Matrices are next. Memory has no rows: it is one long line. The stride tells where a row begins.

> **stride**: how many places in memory lie between two neighbours along one axis of a tensor. `tensor.stride()` has one number for each axis.

A tensor can be a part of a larger one. Then its rows do not follow directly one after the other:
"""

# %%
wide = torch.arange(12.0).reshape(2, 6)
part = wide[:, :3]
print("part:", part.tolist(), "| shape", list(part.shape), "| strides", part.stride())
row = 1
places = [row * part.stride(0) + column for column in range(3)]
print("row 1 of `part` lies at the places", places, "of the memory:", wide.flatten()[places].tolist())

# %% [markdown]
"""
The number of row *r* and column *c* lies at `r * stride + c`. The shape does not tell: with 3 columns, the stride here is 6.

A softmax of a row with 3 columns needs a tile of 4 places, a power of two. What should the fourth hold? It takes part in the maximum and in the sum.
`tl.load(..., mask=m, other=value)` puts `value` where the mask is False. Without `other` it may be anything. For a softmax, `float("-inf")` is right:
it is never the maximum, and its exponential is 0.

`tl.max(tile, axis=0)` and `tl.sum(tile, axis=0)` make one number out of a tile `[N]`. `tl.exp(tile)` is the exponential of each number.

**Your task: `softmax_kernel`.** Program i has row i. `x` and `out` have `columns` columns and a stride each. `COLUMNS` is a power of two, at least
`columns`. Subtract the row's largest score before the exponential, as in lesson 06: scores may be near 1000. Between the rows of `out` nothing may be
changed.

Example: for the row 0, 1, 2 the weights before the division are 0.135, 0.368 and 1. The result is 0.090, 0.245, 0.665.
"""

# %% exercise="07.2"
from lessons_lib.kernels.basics import softmax_kernel

# %%
wide = 10 * torch.randn(5, 20, generator=torch.Generator().manual_seed(7))
scores = wide.to(DEVICE)[:, :13]  # 13 columns, 20 places from row to row
weights = torch.empty(5, 13, device=DEVICE)
softmax_kernel[(5,)](scores, weights, 13, scores.stride(0), weights.stride(0), COLUMNS=16)
same = torch.allclose(weights, scores.softmax(dim=1), atol=1e-6)
print(f"strides {scores.stride(0)} and {weights.stride(0)}; as PyTorch's softmax: {same}")

# %% [markdown]
"""
## Build 3: an address that is looked up

So far every program knew from its number what to read. Now it has to look that up. `index` is a list of row numbers, and row i of `out` is to become
row `index[i]` of `source`. With `index` = [2, 0], program 0 copies row 2, and program 1 copies row 0.

So there are two loads. The first gets a number; the second uses that number in its address. A load at a single address gives a single number:
`tl.load(index + row)`.

**Your task: `gather_kernel`.** Program i has row i of `out`. `source` and `out` have a stride each. Rows may be named twice.
"""

# %% exercise="07.3"
from lessons_lib.kernels.basics import gather_kernel

# %% [markdown]
"""
The first thing that a language model computes is such a gather. The embedding is a matrix with a row for each token of the vocabulary, and token ids
are an index.
"""

# %%
embedding = model.get_input_embeddings().weight.detach()
ids = torch.tensor(tokenizer(PROMPTS[NAMES.index("E")]).input_ids, dtype=torch.int32, device=DEVICE)
rows = torch.empty(len(ids), embedding.shape[1], device=DEVICE)
gather_kernel[(len(ids),)](embedding, ids, rows, rows.shape[1], embedding.stride(0), rows.stride(0), COLUMNS=256)
same = torch.equal(rows, model.get_input_embeddings()(ids))
print(f"tokens {ids.tolist()} of {len(embedding)}: as the model's own embedding: {same}")

# %% [markdown]
"""
And this is all of paging. A block table is such an index: its entry number *j* says where block *j* of a sequence lies. A kernel that can look up an
address needs no copy in one piece.

## Real keys

We take what we need from a real run: C, E and A in a pool with blocks of four tokens. On the way we note what is handed to the cache in the first
pass, and what is handed to attention in the last one, in layer 1.
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
print("first pass: new keys", list(first_keys.shape), "(tokens, KV heads, head size)")
print("last pass: queries", list(query.shape), "(sequences, query heads, head size); cache", list(k_cache.shape))
for name, table, context in zip("CEA", block_tables.tolist(), context_lens.tolist()):
    print(f"{name}: {context} tokens, block table {table}")

# %% [markdown]
"""
## Predict

Attention of this last pass, in this layer, will have one program for each sequence and each query head. It loads the keys and values block by block,
through the table. A key or a value of one head has 64 numbers of 4 bytes.
"""

# %%
predict("07.a", ...)  # How many KiB of keys and values does the program load that has query head 0 of C?

# %%
predict("07.b", ...)  # All programs together: how many times as many bytes of keys and values as there are of these three in the cache of the layer?

# %% [markdown]
"""
## Build 4: the cache write

New keys come as `[T, KV heads, head size]`. For a kernel that writes, a token is one line of KV heads × head size numbers, here 2 × 64 = 128. In the
cache, `[num_blocks, block_size, KV heads, head size]`, a slot is such a line, too. Slots are counted through the whole pool: slot = block × block
size + offset. So the slot alone, times one stride, says where its line begins.

**Your task: `write_kernel`.** Program i has new token i, with all its heads. `slot_mapping` has a 64-bit number for each new token. `numbers` is the
length of a line, and `NUMBERS` a power of two, at least as large. `stride_new` leads from one line of `new` to the next, `stride_slot` from one slot
of the cache to the next. Nothing else in the cache may change.

Example: with `slot_mapping` = [6, 1], program 0 copies line 0 of `new` to slot 6, and program 1 line 1 to slot 1.
"""

# %% exercise="07.4"
from lessons_lib.kernels.simple_paged import write_kernel

# %% [markdown]
"""
`write_cache(new, cache, slot_mapping, kernel)` in the library launches it, with one program for each new token, and hands it the two strides. Compare
with `write` of lesson 06, on the first pass of our run: three prompts in one row.
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

Now the real thing, for one query head of one new token, in a cache with one KV head. Read again how lesson 06 did it, and what `add_block` does in
each turn.
"""

# %%
print(inspect.getsource(attention_in_place))
print(inspect.getsource(add_block))

# %% [markdown]
"""
The kernel does the same, with one query in place of several. What is called how:

| lesson 06 | in the kernel | shape |
|---|---|---|
| `seen.maximum`, `maximum` | `row_max`, `new_max` | one number; `float("-inf")` before the first block |
| `seen.total` | `row_sum` | one number; `0.0` before the first block |
| `seen.output` | `acc` | `[HEAD_DIM]`; zeros before the first block |
| `weights` | `weights` | `[BLOCK_SIZE]` |
| `rescale` | `rescale` | one number, exp(old maximum − new maximum) |
| `attention_of(seen)` | `acc / row_sum` | `[HEAD_DIM]` |

Five things are different.

**A tile is always a whole block.** Its size is fixed, so in the last block a mask has to say what counts: the offset *o* in the block that begins at
position `first` holds a key if `first + o < num_tokens`. Cells without a token may hold anything, even NaN. Load keys and values with `other=0.0`. That
alone is not enough: a key of zeros has the score 0, which is a score like others. So `tl.where(is_key, scores, float("-inf"))` puts minus infinity in
their place, before the maximum is taken. (In each turn at least one key is real, so the trap of lesson 06, minus infinity minus minus infinity, does
not come up.)

**What a loop changes keeps its type and its shape.** The compiler fixes both before the first turn. A sum that begins as `0` is a whole number, and
is refused when the loop makes a fraction of it; so it begins as `0.0`. And `acc` begins as a tile, not as a number.

**Keys are a rectangle.** Slots down, numbers of a key along: `[BLOCK_SIZE, HEAD_DIM]`. If `offset` is the tile 0 … BLOCK_SIZE − 1, and `dim` the tile
0 … HEAD_DIM − 1, then `offset[:, None]` is a column, `dim[None, :]` a row, and `offset[:, None] * stride_slot + dim[None, :]` a rectangle of places:
"""

# %%
offset, dim, stride_slot = torch.arange(4), torch.arange(8), 100
print(offset[:, None] * stride_slot + dim[None, :])

# %% [markdown]
"""
A mask for it is `is_key[:, None]`. A score is a sum along the row, `tl.sum(query[None, :] * block_keys, axis=1)`. The weighted sum of the values goes
down the columns: `tl.sum(weights[:, None] * block_values, axis=0)`.

**The block comes from the table.** The block of position p stands in entry `p // BLOCK_SIZE`. The entry is the *physical* block, the number of a
block of the pool. The block's numbers begin at block × `stride_block`. The cache may be a part of a larger tensor, so `stride_block` need not be
BLOCK_SIZE × `stride_slot`.

**Addresses can be large.** The block table holds 32-bit numbers, a stride arrives as one if it fits, and a product of two of them has 32 bits, too.
Take a Llama with 8 billion weights (32 layers, 8 KV heads of 128, 2 bytes a number) on a GPU with 80 GB, and the last block of its pool:
"""

# %%
numbers = 16 * 8 * 128  # keys of one layer in a block of 16 tokens
last = (80 - 16) * 10**9 // (numbers * 2 * 32 * 2) - 1  # the weights take 16 GB
for layout, stride_block in (("keys of one layer", numbers), ("keys and values of all layers", numbers * 2 * 32)):
    in_32_bits = torch.tensor([last], dtype=torch.int32) * stride_block
    print(f"a block has {layout}: {last:,} × {stride_block:,} = {last * stride_block:,}; in 32 bits {in_32_bits.item():,}")

# %% [markdown]
"""
It depends on what lies between two blocks. With the keys of one layer, 32 bits are enough here. With all layers side by side the product is cut off,
and what is left may be negative, or, worse, look like a place in the cache, as it does here. A kernel does not know where its cache comes from. So
make the block a 64-bit number *before* it is multiplied: `.to(tl.int64)`.

**Your task: `attend_blocks`**, a function that a kernel calls. It has `@triton.jit` too, and it returns its result.

1. Begin with `row_max`, `row_sum` and `acc`. A tile of zeros is `tl.zeros([HEAD_DIM], tl.float32)`; the list and the type are both needed.
2. `for first in range(0, num_tokens, BLOCK_SIZE)`: load the block's number, its keys and its values; compute scores, multiplied by `scale`; then do
   what `add_block` does. `tl.maximum(a, b)` is the larger one of two numbers.
3. Return `acc / row_sum`, `[HEAD_DIM]`, float32.

`query` is not a pointer but the query itself, a tile `[HEAD_DIM]`. `keys`, `values` and `table` are pointers; keys and values have the same strides.
`num_tokens` counts the new token, and is 1 or more. What stands in the table beyond the blocks in use may be anything. HEAD_DIM and BLOCK_SIZE are powers
of two, so no further mask is needed. The query is float32, so what is computed with it is, too, whatever the cache holds.
"""

# %% exercise="07.5"
from lessons_lib.kernels.simple_paged import attend_blocks

# %% [markdown]
"""
The kernel that calls it is given. A constant for the compiler, here `ATTEND`, may be a function.
"""

# %%
print(inspect.getsource(one_head_kernel.fn))

# %% [markdown]
"""
Your function on real keys: C's query head 0 over KV head 0, next to lesson 06's `attention_in_place`; and how much it loads.
"""

# %%
C, kv_head = 0, 0
own_keys, own_values = (cache[:, :, kv_head] for cache in (k_cache, v_cache))
num_tokens, blocks = context_lens[C].item(), block_tables[C].tolist()
own_query, one_out = query[C, 0].contiguous(), torch.empty(HEAD_DIM, device=DEVICE)
strides = own_keys.stride()[:2]
launch = (attend_blocks, own_query, own_keys, own_values, block_tables[C].contiguous(), one_out, num_tokens, scale, *strides)
one_head_kernel[(1,)](*launch, HEAD_DIM=HEAD_DIM, BLOCK_SIZE=BLOCK_SIZE)
print("strides of block and slot:", strides)
in_place = attention_in_place(own_query[None].cpu(), own_keys.cpu(), own_values.cpu(), blocks, num_tokens, scale)
print("as lesson 06:", torch.allclose(one_out.cpu(), in_place[0], atol=1e-5))


def cache_bytes(recording, program):
    """Bytes of keys and values that a program loaded."""
    return sum(len(a.offsets) * recording.tensors[a.tensor].itemsize for a in program.accesses if a.tensor in ("k_cache", "v_cache"))


one = record_kernel(one_head_kernel, (1,), *launch, HEAD_DIM=HEAD_DIM, BLOCK_SIZE=BLOCK_SIZE)
reveal("07.a", cache_bytes(one, one.programs[0]) / 1024, unit="KiB")

# %% [markdown]
"""
C's second block is half empty. What a mask hides is not read: the kernel loads keys and values of 6 tokens, not of 8.

## Build 6: all sequences, all heads

One program computes one query head of one sequence. Now a grid of (sequences, query heads). Program (i, h) has query head h of sequence i. The loop
stays as it is. What remains is to find, for each program, its own query, KV head, table, length and place for the result.

Query heads share KV heads, GROUP of them each, and neighbours share: with 4 query heads and 2 KV heads, GROUP is 2, and the query heads 0, 1, 2, 3 use
the KV heads 0, 0, 1, 1. A pointer can be moved: `k_cache + n` points to the number n places further.

| argument | what it is | strides |
|---|---|---|
| `q`, `out` | `[sequences, query heads, HEAD_DIM]` | `stride_seq`, `stride_q_head`, the same for both; the last is 1 |
| `k_cache`, `v_cache` | `[num_blocks, BLOCK_SIZE, KV heads, HEAD_DIM]` | `stride_block`, `stride_slot`, `stride_head`, the same for both; the last is 1 |
| `block_tables` | `[sequences, longest table]`, 32-bit | `stride_table`; the last is 1 |
| `context_lens` | `[sequences]`, 32-bit: tokens of each, the new one included | 1 |

HEAD_DIM and BLOCK_SIZE are powers of two here as well: models with heads of 80 or 96 numbers have to wait for lesson 08.

**Your task: `decode_heads_kernel`.** Call your `attend_blocks`, with its arguments in order, HEAD_DIM and BLOCK_SIZE too. It wants the query itself, a
tile, and as float32, also where `q` holds float16: `tl.load(...).to(tl.float32)`.
"""

# %% exercise="07.6"
from lessons_lib.kernels.simple_paged import decode_heads_kernel

# %% [markdown]
"""
`decode_heads` launches it. This is all that Python has to do:
"""

# %%
print(inspect.getsource(decode_heads))

# %%
attended = decode_heads(query, k_cache, v_cache, block_tables, context_lens, scale, decode_heads_kernel)
decodes = plan_groups(torch.arange(4, device=DEVICE), context_lens, block_tables, BLOCK_SIZE)
expected = paged_attention(query, k_cache, v_cache, decodes, scale)
print("three sequences, four query heads: as lesson 06's paged_attention:", torch.allclose(attended, expected, atol=1e-5))

# %% [markdown]
"""
## Who reads what

Your kernel on the last pass of C, E and A, recorded. Step through the programs. First come the four query heads of C, then E's, then A's.
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
Go from program (2, 0) to program (2, 1): from A's query head 0 to its query head 1. The cells stay the same. Both have KV head 0, so both load the same
keys and values. Count it:
"""

# %%
loaded = sum(cache_bytes(recorded, program) for program in recorded.programs)
necessary = sum(lens.tolist()) * KV_HEADS * 2 * HEAD_DIM * 4
print(f"{len(recorded.programs)} programs load {loaded:,} bytes of keys and values; in the cache there are {necessary:,}")
reveal("07.b", loaded / necessary, unit="times as many")

# %% [markdown]
"""
Each key is loaded once for each of the GROUP query heads. On a GPU the second load may find the key in one of the GPU's own caches, or may not.
Lesson 08 gives all query heads of a KV head to one program, which loads each key once.

## Prove it

First random cases against lesson 06. The contexts are around the end of a block: one token, a block less one, a block, a block and one more. Cells
without a token hold NaN.
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


for number, (group, kv_heads, block_size) in enumerate([(1, 1, 1), (1, 2, 8), (2, 2, 4), (4, 1, 16), (7, 2, 8)]):
    case = random_decodes(group, kv_heads, block_size, 16, seed=number)
    got = decode_heads(*case, 0.25, decode_heads_kernel)
    groups = plan_groups(torch.arange(len(case[0]) + 1, device=DEVICE), case[4], case[3], block_size)
    same = torch.allclose(got, paged_attention(*case[:3], groups, 0.25), atol=1e-5)
    print(f"GROUP {group}, KV heads {kv_heads}, blocks of {block_size:2}, contexts {case[4].tolist()}: as lesson 06: {same}")

# %% [markdown]
"""
Then a whole model. A cache that is written by your `write_kernel`, and a backend for lesson 06's loop: the sequences with one new token go through
your decode kernel, and prompts through PyTorch.
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
print(f"launches of your decode kernel: {len(launches)}, one for each layer of each pass with decodes")

# %% [markdown]
"""
Last, small random models of three families, with requests that come and go in a small pool. In GPT-2 no KV heads are shared, in the others they are.
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

A decode is memory-bound (lesson 00): its time is that of the bytes. So a kernel is judged by the bytes that *had* to be read, divided by the time.

> **achieved bandwidth**: the bytes that a computation has to read and write at least, divided by the time it took. Compared with what a plain copy
> reaches on the same GPU, it says how much better the kernel could be.

First count, for a size as in production: 64 sequences of 2,048 tokens, 32 query heads over 8 KV heads of 128 numbers, 2 bytes each.
"""

# %%
CASE = dict(num_seqs=64, context=2048, q_heads=32, kv_heads=8, head_dim=128)


def traffic(num_seqs, context, q_heads, kv_heads, head_dim, itemsize=2):
    """(programs, bytes of keys and values that they load, bytes that lie in the cache)"""
    a_head = 2 * num_seqs * context * head_dim * itemsize
    return num_seqs * q_heads, q_heads * a_head, kv_heads * a_head


programs, loaded, necessary = traffic(**CASE)
print(f"{programs:,} programs; keys and values loaded: {loaded / 1e9:.2f} GB; necessary: {necessary / 1e9:.2f} GB")

# %% [markdown]
"""
Then the clock, where there is a GPU.
"""

# %% tags=["measured"]
def gigabytes_a_second(num_seqs, context, q_heads, kv_heads, head_dim, block_size=16):
    """Achieved bandwidth of your kernel, and that of a copy."""
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
    kernel, copy = gigabytes_a_second(**CASE)
    print(f"your kernel: {kernel:,.0f} GB/s of keys and values; a copy reads and writes {copy:,.0f} GB/s; {kernel / copy:.0%} of it")
else:
    print("Here kernels are interpreted: a time would say nothing about the kernel. Lesson 08 shows times recorded on a GPU.")

# %% [markdown]
"""
There is no row in the ledger for this lesson. The counts would be those of lesson 06, and a time would be one of the interpreter, or of a GPU beside
rows of a CPU.

## What production does

- **vLLM** began with kernels in CUDA. `paged_attention_v1` (in `csrc/attention/`) gave each query head of each sequence to one thread block, as your
  kernel gives it to one program. `paged_attention_v2` cut long sequences into partitions of 512 tokens, and merged them. On NVIDIA GPUs it now uses
  FlashAttention or FlashInfer by default.
- Its kernel in Triton is `kernel_unified_attention` in `vllm/v1/attention/ops/triton_unified_attention.py`. You will recognise `block_tables_ptr`,
  the strides of the caches, `physical_block_idx = tl.load(...).to(tl.int64)`, and `M`, `L` and `acc`, which are your `row_max`, `row_sum` and `acc`.
  It has a program for each *KV* head and some query tokens, and takes prompts and decodes alike.
- Closer to yours is `_fwd_kernel_stage1` in `vllm/v1/attention/ops/triton_decode_attention.py`, which came from SGLang: a program for each sequence,
  query head and part of the sequence, with `cur_kv_head = cur_head // kv_group_num`, `e_max`, `e_sum` and `acc`.
- The cache write is `reshape_and_cache_kernel_flash` in `triton_reshape_and_cache_flash.py` beside it, with a `slot_mapping`. A slot of −1 is a
  token that is not to be written.
- **FlashInfer** has `BatchDecodeWithPagedKVCacheWrapper`. In place of a rectangle of tables it takes all tables one behind the other, with
  cumulative lengths, like the packed row of lesson 05.
- **Hugging Face transformers** gathers in its continuous batching, as lesson 06 did. With FlashAttention, a pass that has only decodes can skip
  that: it hands over a block table.

## What is still wrong

**Keys are loaded once for each query head.** With GROUP query heads to a KV head, that is GROUP times as often as necessary.

**The tensor cores idle.** Scores are sums of products, number by number. Products of matrices are many times as fast there; but they want several
queries at once, and one program here has only one.

**Sizes must be powers of two.** A head of 80 or 96 numbers, or a block of 24 slots, needs one more mask, as in Build 2.

**One block in each turn.** With 16 tokens in a block, a turn loads little, and waits for it.

**A long sequence is one program's affair.** With few sequences, most SMs of a GPU have nothing to do, and the longest sequence decides when
the launch is over.

**Prompts go through PyTorch**, and are gathered for it still.

Lesson 08 takes these one at a time, and measures what each one brings.

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
