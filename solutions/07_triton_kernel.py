# %% [markdown]
"""
# 07 · A Triton paged-attention kernel

![One program of a kernel: which elements it loads, and which it stores](../lessons_lib/assets/openings/07.svg)

**How does a GPU kernel read keys and values through a block table?**

75 minutes · difficulty: hard · routes: kernels · prerequisites: lesson 03 (blocks, slots) and lesson 06 (softmax block
by block)

Lesson 06 left keys and values in their blocks. But the library's PyTorch backend still copies them in each layer,
because `scaled_dot_product_attention` can't read through a block table. A kernel of your own can. You write it in three
steps: addition, attention over a block table, and all sequences and heads at once. You don't need a GPU: without one,
Triton's interpreter runs every kernel. (Triton supports Linux only: on Windows use WSL, on macOS a container.)
"""

# %% folded=true
import random

import torch

# before Triton: decides whether kernels are compiled or interpreted
import lessons_lib.kernels.triton_setup
import triton
import triton.language as tl
from lessons_lib.attention import attention_in_place, plan_attention, plan_groups
from lessons_lib.batching import paged_generate
from lessons_lib.checks import check, hint, predict, progress, quiz, reset, reveal, solution
from lessons_lib.kernels import decode_heads, how_kernels_run, kernel_device
from lessons_lib.kernels import single_head_kernel
from lessons_lib.kernels.simple_paged import add_keys
from lessons_lib.kv_cache import BlockPool
from lessons_lib.measuring import NAMES, PROMPTS, recorded_attention
from lessons_lib.models import kv_head_size, load_model
from lessons_lib.recording import OutOfBounds, Recorder, decode_inputs, record_kernel
from lessons_lib.viz.programs import draw_program, draw_strides, watch
from lessons_lib.viz.source import show_source

# %%
DEVICE = kernel_device()  # the device for tensors that kernels use
model, tokenizer = load_model(device=DEVICE, dtype=torch.float32)
KV_HEADS, HEAD_DIM = kv_head_size(model.config)

# %% tags=["measured"]
print(how_kernels_run())

# %% [markdown]
"""
## The problem: a copy in each layer

C, E and A decode in a pool with blocks of eight tokens. The pool has been in use for a while, so its free blocks are in
no order. `decode_inputs` serves the three with the library's PyTorch backend and keeps what attention gets. We use the
last layer of the last step. How much does that backend copy there?
"""

# %%
BLOCK_SIZE = 8


class UsedPool(BlockPool):
    def reset(self):
        super().reset()
        random.Random(26).shuffle(self.free_queue)


three = [PROMPTS[NAMES.index(name)] for name in "CEA"]
THREE = dict(prompts=three, names="CEA", max_new_tokens=5, max_num_seqs=3)
THREE |= dict(block_size=BLOCK_SIZE, num_blocks=10, make_pool=UsedPool)
by_torch, noted = decode_inputs(model, tokenizer, **THREE)
query, k_cache, v_cache, block_tables, context_lens, scale = noted[-1]
C, E, A = range(3)
print("queries", list(query.shape), "(sequences, query heads, head size)")
print("keys", list(k_cache.shape), "(blocks, slots of a block, KV heads, head size)")
for name, table, context in zip("CEA", block_tables.tolist(), context_lens.tolist()):
    print(f"{name}: {context} tokens, block table {table[: -(-context // BLOCK_SIZE)]}")

# what the backend copies
groups = plan_groups(torch.arange(4), context_lens.cpu(), block_tables.cpu(), BLOCK_SIZE)
copied = sum(group.slots.numel() for group in groups)
print(f"keys that attention needs: {context_lens.sum()}; keys that are copied: {copied}")

# %% [markdown]
"""
The copy is a rectangle, padded to the longest sequence. Worse, a key is read from its block, written to the copy, and
read again by attention: three times the memory traffic, and a decode is memory-bound (lesson 00). A kernel that follows
the block table reads keys where they are.

## A first kernel

> **kernel**: a function that runs on a GPU. It is launched once, from Python, and runs many times in parallel, on
> different parts of the data.

> **program**: one of these runs of a kernel. All programs of a launch execute the same code.

**Triton** is a language for kernels that looks like Python. Here is a complete kernel, written from the point of view
of one program. It doubles a vector, four elements per program:
"""

# %%
@triton.jit
def double_kernel(x, out, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tile = tl.load(x + offsets)
    tl.store(out + offsets, 2 * tile)


x = torch.arange(12.0, device=DEVICE)
out = torch.zeros_like(x)
double_kernel[(3,)](x, out, BLOCK=4)
print(out.tolist())

# %% [markdown]
"""
> **program id**: the index of a program, which tells it what part of the data to work on.

> **grid**: the number of programs of a launch, along one, two or three axes. A grid of (3, 4) has twelve programs, each
> with two ids.

> **tile**: an array that one program works on at once: `[N]`, or a rectangle `[M, N]`. Its sides are constant powers of
> two.

> **pointer**: the address of an element. A tensor argument reaches the kernel as a pointer to its first element,
> without its shape or strides. Pointer + 3 is the address of the element three elements further.

| in a kernel | what it is |
|---|---|
| `@triton.jit` above `def` | makes the function a kernel |
| `tl.program_id(0)` | this program's id along axis 0 of the grid |
| `tl.arange(0, BLOCK)` | the tile 0, 1, ..., BLOCK − 1 |
| `a + b`, `a * b`, `a < b` | elementwise on tiles; a scalar is combined with every element |
| `tl.load(x + offsets)` | a tile: the elements of `x` at these offsets |
| `tl.store(out + offsets, tile)` | writes the elements of `tile` to `out`, at these offsets; a kernel returns nothing |
| `BLOCK: tl.constexpr` | a compile-time constant, written in capitals and passed by name |

The grid is in brackets: `[(3,)]` launches three programs. What did each of them touch? `record_kernel` runs a kernel in
Triton's **interpreter**, in Python, one program after another, and keeps every load and store:
"""

# %%
def print_accesses(recording):
    for program in recording.programs:
        print(f"program {program.ids[0]}:",
              "; ".join(f"{access.kind}s {access.tensor}{list(access.offsets)}"
                        for access in program.accesses))


print_accesses(record_kernel(double_kernel, (3,), x, torch.zeros_like(x), BLOCK=4))

# %% [markdown]
"""
Twelve elements are three tiles of four. What happens with ten?
"""

# %%
try:
    record_kernel(double_kernel, (3,), x[:10].clone(), torch.zeros(10), BLOCK=4)
except OutOfBounds as error:
    print("OutOfBounds:", error)

# %% [markdown]
"""
This error comes from the recorder. Triton checks no bounds: a GPU would have read whatever follows `x`, and would have
written past the end of `out`. The process may crash with an *illegal memory access*, some time later and somewhere
else. Or another tensor is overwritten, unnoticed.

> **mask of a load or store**: a tile of booleans, `mask=` of `tl.load` and `tl.store`. Where it is False, nothing is
> read or written.

## Build 1: addition

**Exercise 07.1: `add_kernel`**, `out = x + y`. Program i adds the BLOCK elements starting at i × BLOCK, leaving out
offsets that aren't below `n_elements`. The tensors may be longer than `n_elements`; the rest must stay untouched. (Use
pointers as above: the recorder doesn't see Triton's block pointers.)

Example: ten elements with BLOCK = 4 take three programs, and the last one adds elements 8 and 9.

To try things out, use `record_kernel(add_kernel, (3,), x, x, out, 10, BLOCK=4)` instead of a launch: it fills `out`
too, but checks every address first. `print(offsets)` inside the kernel shows a tile's contents there.

The interpreter accepts more than the compiler does. So once your results are right, `check` also asks the compiler
whether it accepts your kernel for an NVIDIA GPU, which need not be there. The compiler rejects an `if` on a tile. It
also rejects a `print` of a bare value, so remove yours when you're done.
"""

# %% exercise="07.1"
from lessons_lib.kernels.basics import add_kernel

# %%
y = 100 * x
added = record_kernel(add_kernel, (3,), x, y, torch.zeros_like(x), 10, BLOCK=4)
print(added)
draw_program(added, 2)

# %% [markdown]
"""
Of the last program's tile, only two elements were loaded and stored.

## An address from a table

So far, each program knew from its id what to read. This kernel has to look it up: it copies row `index[i]` of `source`
to row i of `out`. And memory has no rows: it's one long array, so the kernel also needs to know how far apart they are.

> **stride**: the distance in memory, in elements, between two neighbors along one axis of a tensor. `tensor.stride()`
> has one entry per axis.
"""

# %%
@triton.jit
def gather_rows(source, index, out, stride_row, COLUMNS: tl.constexpr):
    i, column = tl.program_id(0), tl.arange(0, COLUMNS)
    row = tl.load(index + i)
    values = tl.load(source + row * stride_row + column)
    tl.store(out + i * COLUMNS + column, values)


source, index = torch.zeros(6, 2), torch.tensor([4, 1])
print("strides of source", source.stride())
print_accesses(record_kernel(gather_rows, (2,), source, index, torch.zeros(2, 2),
                             source.stride(0), COLUMNS=2))

# %% [markdown]
"""
The first load gets an index, a scalar, and the second uses it in its address. That is all there is to paging: a block
table is just such an index.

Now back to C, E and A. Your kernel loads each key from its block, with one program per sequence and query head. A key
or a value of one head has 64 elements of 4 bytes.

**Predict 07.a** How many KiB of keys and values does the program for query head 0 of A load?
"""

# %%
predict("07.a", ...)

# %% [markdown]
"""
## One block: strides, sums, masks

C fits into one block, so its scores need no table and no loop. For one KV head, that block is a rectangle: 8 slots of
64 elements, with the other head's keys in between. A column of slots and a row of elements combine into a rectangle of
offsets:
"""

# %%
@triton.jit
def scores_kernel(q, k_block, out, num_tokens, scale, stride_slot, HEAD_DIM: tl.constexpr,
                  BLOCK_SIZE: tl.constexpr):
    slot, dim = tl.arange(0, BLOCK_SIZE), tl.arange(0, HEAD_DIM)
    query = tl.load(q + dim)
    offsets = slot[:, None] * stride_slot + dim[None, :]  # [BLOCK_SIZE, HEAD_DIM]
    is_key = slot < num_tokens
    keys = tl.load(k_block + offsets, mask=is_key[:, None], other=0.0)
    scores = tl.sum(query[None, :] * keys, axis=1) * scale  # [BLOCK_SIZE]
    tl.store(out + slot, scores)


C_block = block_tables[C, 0].item()
k_block, v_block = k_cache[C_block, :, 0], v_cache[C_block, :, 0]
print("keys of KV head 0 in C's block: shape", list(k_block.shape), "strides",
      k_block.stride())
scores = torch.empty(BLOCK_SIZE, device=DEVICE)
for name, own_query in (("C's query", query[C, 0].contiguous()),
                        ("the opposite", -query[C, 0])):
    scores_kernel[(1,)](own_query, k_block, scores, context_lens[C].item(), scale,
                        k_block.stride(0), HEAD_DIM=HEAD_DIM, BLOCK_SIZE=BLOCK_SIZE)
    print(f"{name}: scores", [round(score, 1) for score in scores.tolist()],
          f"softmax of slot 7: {scores.softmax(dim=0)[7]:.4f}")

# %% [markdown]
"""
Slot 7 holds no token. Its key was loaded as zeros, so its score is 0: a score like any other. The softmax gives it a
little weight, and for the opposite query, whose real scores are all below 0, most of the weight. Which score would
never be the maximum, and get no weight? Minus infinity: `tl.where(is_key, scores, float("-inf"))`.

| in a kernel | what it is |
|---|---|
| `tl.load(..., mask=m, other=0.0)` | 0 where the mask is False; without `other` it may be anything |
| `tl.sum(tile, axis=1)`, `tl.max(tile, axis=1)` | along the rows: `[M, N]` becomes `[M]` |
| `tl.sum(tile, axis=0)`, `tl.max(tile, axis=0)` | down the columns: `[M, N]` becomes `[N]`, and `[N]` a scalar |
| `tl.where(condition, a, b)` | elementwise a or b |
| `tl.exp(a)`, `tl.maximum(a, b)` | elementwise; also on scalars |
| `tl.zeros([N], tl.float32)` | a tile of zeros |
| `a.to(tl.int64)` | `a`, converted |

## Build 2: attention over a block table

Now the kernel that this lesson is named after: the loop of lesson 06's `attention_in_place`, for one query and one
head. The softmax block by block is the one that you wrote there: `add_keys` is `add_block` for a kernel, and
`maximum`, `total` and `output` of `Partial` are called `row_max`, `row_sum` and `acc` here. `nothing_seen` and
`attention_of` are lesson 06's: what do they do?
"""

# %%
show_source(attention_in_place, add_keys)

# %% [markdown]
"""
`range` works in a kernel. Two things are new:

- **Start sums with `0.0`, not `0`.** What a loop updates keeps the dtype and shape that it starts with.
- **The block comes from the table.** The block of position p is entry `p // BLOCK_SIZE`, a 32-bit integer, and it
  starts at offset block × `stride_block`. In a large cache that offset doesn't fit into 32 bits, although both factors
  do.

Before you write an address, look at two caches. Both have two blocks of four slots, with 8 elements each. The second is
a view: keys and values of a block share one tensor, so between two blocks of keys there's something else.
"""

# %%
own, shared = torch.zeros(2, 4, 8), torch.zeros(2, 2, 4, 8)
draw_strides({"keys alone": own, "keys and values": shared[:, 0]})

# %% [markdown]
"""
**Exercise 07.2: `attend_blocks`**, a function that a kernel calls. It is decorated with `@triton.jit` too, but it
returns its result: a tile `[HEAD_DIM]` of float32. The stub's docstring describes the arguments.

- The last block may be partly full. Don't load its other slots: they may hold anything, even NaN.
- Don't read table entries past the blocks in use: there may be none.
- The cache may be a view of a larger tensor, as in the picture: `stride_block` need not be BLOCK_SIZE × `stride_slot`.
  The elements of one head are adjacent.
- Scores may be near −100,000.
- `query` is the query itself, a tile of float32, not a pointer. Compute in float32 throughout, whatever the cache's
  dtype.

Example: 6 tokens, BLOCK_SIZE = 4, table [3, 1, ...]. The first iteration reads all slots of block 3, the second one
slots 0 and 1 of block 1.
"""

# %% exercise="07.2"
from lessons_lib.kernels.simple_paged import attend_blocks

# %% [markdown]
"""
Here is the kernel that calls it. Let's run it on A's query head 0 over KV head 0, compare it with lesson 06's
`attention_in_place`, and count what it loads:
"""

# %%
show_source(single_head_kernel)
own_keys, own_values = (cache[:, :, 0] for cache in (k_cache, v_cache))
num_tokens, own_table = context_lens[A].item(), block_tables[A].contiguous()
own_query = query[A, 0].contiguous()
own_out = torch.empty(HEAD_DIM, device=DEVICE)
launch = (attend_blocks, own_query, own_keys, own_values, own_table, own_out, num_tokens,
          scale, *own_keys.stride()[:2])
single_head_kernel[(1,)](*launch, HEAD_DIM=HEAD_DIM, BLOCK_SIZE=BLOCK_SIZE)
in_place = attention_in_place(own_query[None, None].cpu(), own_keys[:, :, None].cpu(),
                              own_values[:, :, None].cpu(), own_table.tolist(),
                              num_tokens, scale)
print("same as lesson 06:", torch.allclose(own_out.cpu(), in_place[0, 0], atol=1e-5))


def cache_bytes(recording, program):
    """Bytes of keys and values that a program loaded."""
    return sum(len(a.offsets) * recording.tensors[a.tensor].itemsize
               for a in program.accesses if a.tensor in ("k_cache", "v_cache"))


single = record_kernel(single_head_kernel, (1,), *launch, HEAD_DIM=HEAD_DIM,
                       BLOCK_SIZE=BLOCK_SIZE, moments_of=(0,))
reveal("07.a", cache_bytes(single, single.programs[0]) / 1024, unit="KiB")
watch(single)

# %% [markdown]
"""
A's third block holds a single token. Masked elements aren't read: the kernel loads the keys and values of 17 tokens,
not of 24.

The picture is your function at work, one load after another: the next line, the memory that it touches, and its
variables just before.

## Build 3: all sequences, all heads

One program computes one query head of one sequence. Now we launch a grid of (sequences, query heads): program (i, h)
computes query head h of sequence i. The loop doesn't change.

GROUP neighboring query heads share one KV head: with 4 query heads and 2 KV heads, GROUP is 2, and query heads 0, 1, 2,
3 use KV heads 0, 0, 1, 1.

**Exercise 07.3: `decode_heads_kernel`.** Call your `attend_blocks`, with its arguments in order. It expects pointers to
where *its* sequence and KV head begin, and a query of float32 even if `q` is float16. The stub's docstring has the
shapes and the strides; along each last axis the stride is 1.

Example: for C, E and A, program (2, 3) computes A's query head 3, over KV head 1. It reads entry 2 of `context_lens`
and row 2 of `block_tables`, and stores the 64 elements of out[2, 3].
"""

# %% exercise="07.3"
from lessons_lib.kernels.simple_paged import decode_heads_kernel

# %% [markdown]
"""
`decode_heads` launches the kernel that it is given. Here it gets a `Recorder`, which runs yours in the interpreter and
keeps every access. How much do all programs load?
"""

# %%
mine = Recorder(decode_heads_kernel)
decode_heads(query, k_cache, v_cache, block_tables, context_lens, scale, mine)
recorded = mine.recording
loaded = sum(cache_bytes(recorded, program) for program in recorded.programs)
necessary = int(context_lens.sum()) * KV_HEADS * 2 * HEAD_DIM * 4
print(f"{len(recorded.programs)} programs load {loaded:,} bytes of keys and values; "
      f"the cache holds {necessary:,}, so {loaded / necessary:.0f} times")

# %% [markdown]
"""
Nothing is copied. But each key is loaded GROUP times, once for each query head that uses it. Lesson 08 loads it once.

## Prove it

A backend for lesson 06's loop: every step that has only decodes goes through your kernel, a step with a prompt through
PyTorch.
"""

# %%
launches = []


def kernel_backend(packed, block_tables, block_size):
    if set(packed.new_lens) != {1}:
        return plan_attention("torch", DEVICE)(packed, block_tables, block_size)
    tables, lens = block_tables.int().contiguous(), packed.context_lens.int()

    def attend(query, keys, values, scale):
        launches.append(len(lens))
        return decode_heads(query, keys, values, tables, lens, scale, decode_heads_kernel)

    return attend


by_kernels = paged_generate(model, tokenizer, **THREE, backend=kernel_backend)
print(*(f"{name}: {prompt}|{tokenizer.decode(ids)}"
        for name, ids, prompt in zip("CEA", by_kernels, three)), sep="\n")
print("the same tokens as with PyTorch's attention:", by_kernels == by_torch)
print(f"launches of your decode kernel: {len(launches)}, one per layer of each step that has "
      "only decodes")

# %% [markdown]
"""
## Measure

A decode is memory-bound (lesson 00): at best, its time is the time it takes to read its bytes.

> **achieved bandwidth**: the minimum number of bytes that a computation must read and write, divided by the time it
> took. Compared with the bandwidth of plain reading or copying on the same GPU, it shows how much faster the kernel
> could be.

One sequence of 8,192 tokens, with 32 query heads over 8 KV heads of 128 elements in 16 bits, in blocks of 16, was timed
on an H200, whose 132 *processors* run the programs:
"""

# %%
h200 = recorded_attention()


def times_of(case):
    """Microseconds that the H200 takes to read the keys and values once, and that lesson 07's
    kernel took (recorded)."""
    found = h200.case(f"decode 32,8,128; {case}")
    least = found.kv_bytes / h200.machine.bytes_per_s * 1e6
    return least, found.microseconds["lesson 07's kernel"]


print(h200.provenance)
least, taken = times_of("batch 1, context 8192")
print(f"each key and value read once: {least:,.0f} µs; once for each of 4 query heads: "
      f"{4 * least:,.0f} µs")
iterations = 8192 // 16
per_iteration = taken / iterations
print(f"recorded: {taken:,.0f} µs. Each of the 32 programs has {iterations} iterations: "
      f"{per_iteration:.2f} µs for each")

# %% [markdown]
"""
Even if each query head's loads went to memory, the bytes would explain little of the time. The iterations may explain
it: the 32 programs run at the same time, but the iterations of a program follow each other. An iteration asks for a
table entry, waits, asks for 16 keys and values, waits, and computes.

**Predict 07.b** Now eight such sequences decode in one launch: eight times the bytes, and 256 programs instead of 32. A
processor can run several programs at the same time. How many microseconds does the launch take? Up to 25% off counts as
right.
"""

# %%
predict("07.b", ...)

# %%
reveal("07.b", times_of("batch 8, context 8192")[1], unit="µs", tolerance=0.25)
for case in ("batch 1, context 8192", "batch 8, context 8192", "batch 64, context 2048"):
    least, taken = times_of(case)
    by_iterations = int(case.split()[-1]) // 16 * per_iteration
    print(f"{case}: by bytes {least:,.0f} µs, by iterations {by_iterations:,.0f} µs, "
          f"recorded {taken:,.0f} µs", end="")
    print(f" ({least / taken:.0%} of the bandwidth)")

# %% [markdown]
"""
(The first row agrees by construction; the second is the test.) Eight times the work takes hardly longer: all 256
programs run at the same time, too. In the last row that no longer works: with about 16 programs for each processor,
they slow each other down or take turns. Even so, most of the bandwidth is unused. Lesson 08 starts from these numbers.

## What production does

- **vLLM** started with CUDA kernels: `paged_attention_v1` (in `csrc/attention/`) gave each query head of each sequence
  to one thread block, CUDA's program. On NVIDIA GPUs it now uses FlashAttention or FlashInfer by default.
- vLLM's Triton kernel is `kernel_unified_attention` in `vllm/v1/attention/ops/triton_unified_attention.py` (names as of
  version 0.33). You'll recognize `physical_block_idx = tl.load(...).to(tl.int64)`, and `M`, `L` and `acc`, which are
  your `row_max`, `row_sum` and `acc`. It has one program per *KV* head and group of query tokens.

## What is still wrong

**Keys are loaded once per query head**, GROUP times as often as necessary.

**The tensor cores sit idle.** A GPU has units that multiply whole matrices, its *tensor cores*. They need several
queries at once, and a program here has one.

**One block per iteration, one program per sequence and head.** An iteration loads little, and then waits for it. With
few sequences, most of a GPU's processors have nothing to do.

**Not everything goes through it.** Prompts go through PyTorch, and a head size of 80 or a block of 24 slots needs one
more mask, as in Build 1.

Lesson 08 fixes most of these, one at a time. **Guess before you go there:** one program per KV
head would load each key once, a quarter of the bytes. How much of the single sequence's 901 µs would that save? Lesson
08 has it recorded.

## Quiz
"""

# %%
quiz("07")

# %% [markdown]
"""
## References

- P. Tillet, H. T. Kung, D. Cox: *Triton: An Intermediate Language and Compiler for Tiled Neural Network Computations*,
  MAPL 2019.
  <https://www.eecs.harvard.edu/~htk/publication/2019-mapl-tillet-kung-cox.pdf>
- Triton's documentation: tutorials 01 (vector addition) and 02 (fused softmax), and the language reference.
  <https://triton-lang.org/main/getting-started/tutorials/index.html>
- S. Rush: *Triton-Puzzles* and *GPU-Puzzles*, more exercises of this kind. <https://github.com/srush/Triton-Puzzles>,
  <https://github.com/srush/GPU-Puzzles>
- W. Kwon et al.: *Efficient Memory Management for Large Language Model Serving with PagedAttention*, SOSP 2023.
  <https://arxiv.org/abs/2309.06180>
- M. Milakov, N. Gimelshein: *Online normalizer calculation for softmax*, 2018. <https://arxiv.org/abs/1805.02867>
- vLLM: the files named above. <https://github.com/vllm-project/vllm>
"""

# %% [markdown] folded=true
"""
## Further (optional)

Nothing here is needed for the lesson, and its 75 minutes don't include it.

### Stretch: the same answer from fewer bytes

Your kernel loads every key and every value of a sequence. Write a function with the arguments of `attend_blocks` that
loads fewer bytes of keys and values. No element of the result may be off by more than 0.001.

The scoreboard runs it on four query heads that you haven't seen, with values near ±1. They differ in which keys have
the largest scores. What is loaded twice counts twice. The last row loads every key, and as few values as suffice if all
weights are known beforehand. The cell starts out with your own function.
"""

# %%
from lessons_lib.checks.lesson_07.scoreboard import reading_scoreboard


@triton.jit
def attend_less(query, keys, values, table, num_tokens, scale, stride_block, stride_slot,
                HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    # replace this
    return attend_blocks(query, keys, values, table, num_tokens, scale, stride_block,
                         stride_slot, HEAD_DIM, BLOCK_SIZE)


reading_scoreboard(attend_less)

# %% [markdown]
"""
Fewer bytes needn't mean less time: a kernel that loads values only once it knows their weights requests them later.

### Your kernel's own time

If you have a GPU, this measures your kernel on 64 sequences of 2,048 tokens.
"""

# %% tags=["measured"]
CASE = dict(num_seqs=64, context=2048, q_heads=32, kv_heads=8, head_dim=128)


def gigabytes_per_second(num_seqs, context, q_heads, kv_heads, head_dim, block_size=16):
    """Achieved bandwidth of your kernel, and bandwidth of a copy."""
    num_blocks = num_seqs * context // block_size
    queries = torch.randn(num_seqs, q_heads, head_dim, device=DEVICE, dtype=torch.bfloat16)
    keys, values = (torch.randn(num_blocks, block_size, kv_heads, head_dim, device=DEVICE,
                                dtype=torch.bfloat16) for _ in range(2))
    tables = torch.randperm(num_blocks, device=DEVICE).reshape(num_seqs, -1).int()
    lens = torch.full((num_seqs,), context, dtype=torch.int32, device=DEVICE)
    target = torch.empty_like(keys)
    ms = triton.testing.do_bench(lambda: decode_heads(queries, keys, values, tables, lens,
                                                      head_dim**-0.5, decode_heads_kernel))
    ms_copy = triton.testing.do_bench(lambda: target.copy_(keys))
    return 2 * keys.nbytes / ms / 1e6, 2 * keys.nbytes / ms_copy / 1e6


if DEVICE == "cuda":
    kernel, copy = gigabytes_per_second(**CASE)
    print(f"your kernel: {kernel:,.0f} GB/s of keys and values; a copy reads and writes "
          f"{copy:,.0f} GB/s; your kernel reaches {kernel / copy:.0%} of that")
else:
    print("Kernels are interpreted here: a time would say nothing about the kernel.")

# %% [markdown]
"""
### Step through all programs

First the four query heads of C, then E's, then A's. Go from program (2, 0) to program (2, 1), from A's query head 0 to
its query head 1. The cache slots stay the same.
"""

# %%
from lessons_lib.viz.stepper import Stepper

name = lambda i: f"program {recorded.programs[i].ids}"
draw = lambda i: draw_program(recorded, i, ["sequence", "query head"])
Stepper(draw, count=len(recorded.programs), label="program", name=name, start=8, still=8)
