# %% [markdown]
"""
# 08 · Making the kernel fast

![A roofline: attention kernels under the limits of an H200](../lessons_lib/assets/openings/08.svg)

**Lesson 07's kernel is correct. What makes it as fast as the memory allows?**

75 minutes · difficulty: hard · routes: kernels · prerequisites: lesson 07 (programs, masks, strides, a kernel over a
block table)

You rebuild lesson 07's kernel with four ideas, one function at a time. The result fits on one screen and, for large
batches, keeps up with production kernels. Results and loads are computed here, on your machine. Times need a GPU, so
the course ships with times measured on one, labeled *recorded*.
"""

# %% folded=true
# before Triton: decides whether kernels are compiled or interpreted
import lessons_lib.kernels.triton_setup

import torch
import triton
import triton.language as tl
from IPython.display import display

from lessons_lib.attention import plan_attention
from lessons_lib.batching import paged_generate
from lessons_lib.checks import check, hint, predict, progress, quiz, reset, reveal, solution
from lessons_lib.kernels import attend_blocks, decode_groups, decode_groups_kernel
from lessons_lib.kernels import decode_heads, decode_heads_kernel
from lessons_lib.kernels import decode_splits, decode_splits_kernel
from lessons_lib.kernels import how_kernels_run, kernel_device
from lessons_lib.kernels.group_decode import merge_kernel
from lessons_lib.kernels.paged_flash import online_softmax
from lessons_lib.measuring.ablations import Variant, with_functions
from lessons_lib.measuring import NAMES, OURS, PROMPTS, recorded_attention, recorded_ladder
from lessons_lib.measuring import recorded_production, recorded_splits
from lessons_lib.models import kv_head_size, load_model
from lessons_lib.recording import Recorder, decode_inputs
from lessons_lib.viz.charts import draw_bars
from lessons_lib.viz.programs import watch
from lessons_lib.viz.source import show_source
from lessons_lib.viz.tables import Table

# %% tags=["measured"]
print(how_kernels_run())

# %% [markdown]
"""
## The problem: correct, and slow

Here's the attention of one layer, in three decodes. "32,8,128" means 32 query heads, 8 KV heads, head size 128: a Llama
with 8 billion parameters. "14,2,64" is a small Qwen2. Every key and value must be read at least once, so bytes divided
by read bandwidth is a lower bound for any kernel.

> **streaming multiprocessor**: one of a GPU's many processors (SM), with arithmetic units and a small, fast memory of
> its own. Each program runs on one of them, and one can run several programs at a time. We just say *processor*.
"""

# %%
recorded = recorded_attention()
machine = recorded.machine
alone = recorded.case("decode 32,8,128; batch 1,")
even = recorded.case("decode 32,8,128; batch 64, context 2048")
small_heads = recorded.case("decode 14,2,64; batch 256")
THREE = {"one sequence": alone, "64 sequences": even, "256 sequences": small_heads}
SEVEN, LIBRARY = "lesson 07's kernel", "the library's kernel"


def reading(case):
    """Microseconds that the machine takes to read the keys and values once."""
    return case.kv_bytes / machine.bytes_per_s * 1e6


print(recorded.provenance)
print(f"{recorded.processors} processors; reads {machine.bytes_per_s / 1e12:.2f} TB/s")
rows = [
    [name, case.name.removeprefix("decode "), case.kv_bytes / 1e6, reading(case),
     us := case.microseconds[SEVEN], us / reading(case)]
    for name, case in THREE.items()
]
columns = ["recorded", "shapes", "keys and values, MB", "reading them, µs", f"{SEVEN}, µs",
           "times as long"]
display(Table(columns, rows, "Decode attention of one layer"))
iterations = 8192 // 16  # of each program
print(f"one sequence: {iterations} iterations of {alone.microseconds[SEVEN] / iterations:.2f} "
      "µs, one after another")

# %% [markdown]
"""
In each iteration, a program asks for an entry of the block table, waits, asks for 16 keys and values, waits again, and
computes. So its time is

> **number of iterations × time of one iteration**

and each of our four ideas changes that product, or the number of bytes:

| idea | what it changes |
|---|---|
| 1: one program for all query heads that share keys | each key is read once: fewer bytes |
| 2: tiles of several blocks | fewer iterations |
| 3: matrix products on tensor cores | a shorter iteration |
| 4: several programs for one sequence | fewer iterations in each of them |

Which pays most for one sequence, and which for 64? Write down your order before you go on.

## Idea 1: read each key once

Query heads that share a KV head use the same keys. In lesson 07 each had its own program, so each key was read once per
query head. Instead, let one program compute **all query heads of one KV head**. The query becomes a tile with one *row*
per query head, and each key serves all rows: 4 for the Llama, 7 for the Qwen2. Each row has its own maximum, sum and
output.

**Predict 08.a** Take Idea 1 alone, still with 16 keys per iteration. One sequence of 8,192 tokens now needs a quarter
of the bytes. If an iteration takes as long as before, what percentage of the time does that save?
"""

# %%
predict("08.a", ...)

# %%
def iterations_of(keys_per_iteration):
    return 8192 // keys_per_iteration


reveal("08.a", 100 * (1 - iterations_of(16) / (8192 // 16)), unit="%", how="Computed")
ladder_provenance, ladder = recorded_ladder()
steps = [ladder[case.name] for case in THREE.values()]  # name of a kernel -> what was measured
print(ladder_provenance)
for name, case in zip(THREE, steps):
    before, after = case[SEVEN]["us"], case["Idea 1, 16 keys per tile"]["us"]
    print(f"{name}: recorded {before:,.0f} µs without Idea 1, {after:,.0f} µs with it")

# %% [markdown]
"""
Nothing: there are as many iterations as before. (In this other run, lesson 07's kernel took 929 µs, not 901.) One
sequence even gets slower, because each iteration now computes four rows, on 8 processors instead of 32. With 64
sequences all processors are busy either way, so Idea 1 pays. We keep it, and cut iterations.

## Idea 2: a tile of several blocks

16 tokens are a good block for memory (lesson 03), but few for an iteration. So take a tile of, say, 32 positions, and
let each look up **its own** block: `tl.load` takes a tile of addresses, and they needn't be neighbors. Here's what
positions 24 to 39 need, with blocks of 16 and the block table 7, 2, 5:
"""

# %%
table, position = torch.tensor([7, 2, 5]), torch.arange(24, 40)
print("position", position.tolist())
print("block   ", table[position // 16].tolist())
print("slot    ", (position % 16).tolist())

# %% [markdown]
"""
## Build 1: find a tile of keys

**Exercise 08.1: `tile_offsets(table, position, is_key, stride_block, stride_slot, BLOCK_SIZE)`**, a function that
kernels call. Return a tile: for each position, the offset of its key in the cache. Two things to watch for:

- A tile may reach past the last token, where the table has no entries: don't load one where `is_key` is False. What
  you return there doesn't matter.
- The cache may have more than 2³¹ elements. Table entries and strides fit into 32 bits, but their product may not.

Example: BLOCK_SIZE = 16, table 7, 2, 5, `stride_block` = 2,048, `stride_slot` = 128. Position 40 is in slot 8 of block
5, so its offset is 5 × 2,048 + 8 × 128 = 11,264.
"""

# %% exercise="08.1"
from lessons_lib.kernels.group_decode import tile_offsets

# %% [markdown]
"""
## Idea 3: matrix products on tensor cores

> **tensor core**: a part of a processor that multiplies two small matrices at once. In float16 and bfloat16 it's many
> times as fast as the other arithmetic units.

With one query at a time, as in lesson 07, a tensor core has nothing to do. Now there are several: the queries [rows, D]
times the keys, transposed to [D, keys], give all scores in one product, and the weights times the values the output.

| in a kernel | what it is |
|---|---|
| `tl.dot(a, b)` | the product of two tiles of the same dtype, in float32; in 16 bits it runs on tensor cores |
| `tl.dot(a, b, acc)` | the same, added to `acc` |
| `input_precision="ieee"` | for both: without it, a GPU keeps only 10 bits of each float32 factor's mantissa (TF32) |
| `tl.trans(a)` | `a` with its axes swapped |
| `tl.full([N], float("-inf"), tl.float32)` | a tile of this value: if a loop makes a tile of something, start it as a tile, not as a scalar |
| `a.shape[0]`, `a.dtype` | a tile's sides, which are constants, and its dtype |

A tensor core wants at least 16 rows, so queries come in tiles of 16. The rest is padding: 12 rows with the Llama's 4
heads. That costs arithmetic, but no bytes.

## Build 2: a group of heads, a range of keys

The softmax of a tile is given: it's lesson 06's, for all rows at once. It rescales the old sum and `acc` to the new
maximum; you add weights × values. The weights are powers of 2, since a GPU has an instruction for 2ˣ but none for eˣ;
the factor log₂ e in `scale` makes up for it.
"""

# %%
show_source(online_softmax, attend_blocks)

# %% [markdown]
"""
**Exercise 08.2: `attend_keys`**, Ideas 1 to 3 in one loop: lesson 07's `attend_blocks`, shown above, for a tile of
queries and the keys at positions `start` to `end` − 1. (Idea 4 will need only a part of the keys.) Call your
`tile_offsets` and `online_softmax`.

- Load every key and value of the range exactly once, BLOCK_N positions per iteration. Load no other slot: it may
  contain NaN.
- A tile that goes into a `tl.dot` has the dtype of the cache; everything else is float32. The check also compiles your
  function for an NVIDIA GPU (you don't need one) to see what runs on tensor cores. To try 16 bits yourself, use
  float16: Triton's interpreter gets bfloat16 wrong.
- Return the state after the last tile: maximum, sum and `acc`. Don't divide; the caller does.

Example: `start` = 0, `end` = 40, BLOCK_N = 16. Three iterations; the last one has 8 keys, and 8 positions to mask.
"""

# %% exercise="08.2"
from lessons_lib.kernels.group_decode import attend_keys

# %% [markdown]
"""
The kernel around it is lesson 07's with rows instead of one query. `with_functions` puts your function into it.
"""

# %%
show_source(decode_groups_kernel)
my_kernel = with_functions(decode_groups_kernel, attend_keys=attend_keys)

# %% [markdown]
"""
Now count. C, D and B decode in blocks of 16, and `Recorder` counts what one layer's attention loads.
"""

# %%
model, tokenizer = load_model(device="cpu")
KV_HEADS, HEAD_DIM = kv_head_size(model.config)
stories = [PROMPTS[NAMES.index(name)] for name in "CDB"]
load = dict(prompts=stories, max_new_tokens=4, names="CDB", block_size=16)
_, noted = decode_inputs(model, tokenizer, **load)
query, keys, values, tables, contexts, scale = inputs = noted[0]
print("queries", list(query.shape), "| keys", list(keys.shape), "| contexts",
      contexts.tolist())


def count(recorder):
    """(programs, iterations of the longest program, bytes of keys and values loaded)"""
    loads = [[access for access in program.accesses if access.tensor in ("k_cache", "v_cache")]
             for program in recorder.recording.programs]
    elements = sum(len(access.offsets) for program in loads for access in program)
    return len(loads), max(map(len, loads)) // 2, elements * keys.element_size()


seven = Recorder(decode_heads_kernel)
by_seven = decode_heads(*inputs, kernel=seven)
rows = [["lesson 07", *count(seven), "–"]]
for keys_per_tile in (16, 32, 64):
    mine = Recorder(my_kernel, moments_of=(0, 2))
    difference = (decode_groups(*inputs, keys_per_tile, kernel=mine) - by_seven).abs().max()
    rows.append([f"yours, {keys_per_tile} keys per tile", *count(mine),
                 "yes" if difference < 1e-5 else f"no, off by {difference:.0e}"])
necessary = 2 * int(contexts.sum()) * KV_HEADS * HEAD_DIM * keys.element_size()
columns = ["kernel", "programs", "iterations of the longest", "bytes of keys and values",
           "within 1e-5 of lesson 07"]
display(Table(columns, rows, caption=f"C, D and B, one layer; necessary: {necessary:,} bytes"))
watch(mine.recording, ["KV head", "sequence"])

# %% [markdown]
"""
Half the bytes, which is what's necessary: that's Idea 1. A quarter of the iterations: that's Idea 2. Step through B's
program above to see one `tl.load` read keys from four blocks.

## Prove it

Now a whole model: every step that has only decodes goes through your kernel.
"""

# %%
device = kernel_device()


def my_backend(packed, block_tables, block_size):
    """Decodes through your kernel; a step with a prefill through lesson 06's backend."""
    if set(packed.new_lens) != {1}:
        return plan_attention("torch", device)(packed, block_tables, block_size)
    tables, lens = block_tables.int().contiguous(), packed.context_lens.int()
    return lambda query, keys, values, scale: decode_groups(query, keys, values, tables, lens,
                                                            scale, kernel=my_kernel)


model = model.to(device)
same = paged_generate(model, tokenizer, **load, backend=my_backend) == paged_generate(
    model, tokenizer, **load, backend="torch")
print(f"C, D and B: the same tokens as with PyTorch: {same}")

# %% [markdown]
"""
## Which idea makes it fast?

Here's a *ladder* of kernels, timed on one sequence. Without Idea 3, products are sums, as in lesson 07. The last three
are your kernel (its reference solution, to be exact).
"""

# %%
rungs = {name: step["us"] for name, step in steps[0].items() if name != LIBRARY}
draw_bars(rungs, "µs", "One sequence of 8,192 tokens", ladder_provenance,
          list(rungs)[-3:], ("at least", reading(alone)))

# %% [markdown]
"""
With sums, larger tiles change nothing: a quarter of the iterations, and each takes four times as long. The loop is busy
computing. With `tl.dot` the computing nearly vanishes. What's left of an iteration is mostly waiting, which hardly
depends on the number of keys. *Now* fewer iterations pay.

Still, one sequence takes many times as long as reading it would: eight programs, one per KV head, can't keep 132
processors busy.

## Idea 4: split the sequence

> **split-KV**: splitting the keys of one sequence among several programs that run at the same time, and merging their
> results. Also known as *Flash-Decoding*.

A third axis of the grid counts the **splits**: program (h, i, s) computes KV head h of sequence i over the keys
s × SPLIT_SIZE to (s + 1) × SPLIT_SIZE − 1 only.

**Predict 08.b** On another GPU, your kernel with 128 keys per tile took 135 µs for the sequence of 8,192 tokens: 8
programs with 64 iterations each. Now split it into parts of 512 keys. If an iteration takes as long as before, how many
µs does it take?
"""

# %%
predict("08.b", ...)

# %%
splits_provenance, by_case = recorded_splits()  # keys per part -> microseconds
one, many = by_case[alone.name], by_case[even.name]
reveal("08.b", one["not split"] / iterations_of(128) * (512 // 128), unit="µs",
       tolerance=0.1, how="Computed")
print(splits_provenance)
print(f"{8192 // 512 * 8} programs with {512 // 128} iterations each; "
      f"recorded: {one['512']:.0f} µs instead of {one['not split']:.0f}")

# %% [markdown]
"""
More than six times as fast. The estimate is too low, since it leaves out what splitting adds: many programs have to be
started, and their results stored and merged.

A split stores two things per query head: its attention, divided by its own sum, and its **log-sum-exp** (LSE), maximum
+ log₂ of the sum. 2 to the power of the LSE is the sum of the split's exponentials: how much the split counts. You've
built the hard part already: `attend_keys` takes any range. This is all that changes in the kernel around it:
"""

# %%
print(Variant("split", decode_splits_kernel,
              ((decode_groups_kernel, decode_splits_kernel),)).diff())

# %% [markdown]
"""
## Build 3: merge the splits

A second kernel, `merge_kernel`, loads what the splits of one query head stored, calls your function, and stores the
result.

**Exercise 08.3: `merge_splits(lse, outputs)`.** `lse` is a tile [splits], `outputs` a tile [splits, D]. Return the tile
[D] that one program over all keys would have computed.

An LSE may be 300, and 2³⁰⁰ doesn't fit into float32. Splits without keys have an LSE of minus infinity.

Example: two splits, LSEs 0 and 1, attentions [2, 4] and [8, 1]. The second split's sum is twice as large, so the result
is (1 × [2, 4] + 2 × [8, 1]) / 3 = [6, 2].
"""

# %% exercise="08.3"
from lessons_lib.kernels.group_decode import merge_splits

# %% [markdown]
"""
Put both to work: C, D and B in splits of 16 keys, so that D and B are split even though they're short.
"""

# %%
show_source(merge_kernel)
split = Recorder(with_functions(decode_splits_kernel, attend_keys=attend_keys))
my_merge = Recorder(with_functions(merge_kernel, merge_splits=merge_splits))
by_splits = decode_splits(*inputs, split_size=16, keys_per_tile=16, kernel=split,
                          merge=my_merge)
print("split and merged, equal to lesson 07 up to rounding:",
      torch.allclose(by_splits, by_seven, atol=1e-5))
programs, longest, loaded = count(split)
print(f"grid {split.recording.grid}; iterations of the longest program: {longest}; "
      f"bytes loaded: {loaded:,}")
added = {"–": SEVEN, "1: one program per KV head": "Idea 1, 16 keys per tile",
         "3: tensor cores": "Ideas 1 and 3, 16 keys per tile",
         "2: 128 keys per tile": "Ideas 1 to 3, 128 keys per tile",
         "the library's kernel, with splits of its own": LIBRARY}
rows = [[idea, *(f"{case[step]['us']:,.0f}" for case in steps)]
        for idea, step in added.items()]
rows.append(["at least", *(f"{reading(case):,.0f}" for case in THREE.values())])
display(Table(["idea added, µs", *THREE], rows, ladder_provenance))

# %% [markdown]
"""
Compare with the order that you wrote down. For one sequence Idea 4 pays most, for many Idea 3. And an idea's worth
depends on what's there already: before Idea 3, Idea 2 saved one sequence nothing. (The library's kernel has all four
ideas, and doesn't split 64 sequences at all.)

How small should the parts be? **Choose a size** for a server that gets both batches, one sequence and 64, and write it
down. The next cell shows your kernel with several sizes, on the GPU of Predict 08.b.
"""

# %%
rows = []
for size, us in one.items():
    keys_per_part = 8192 if size == "not split" else int(size)
    # 2,048 keys or more per part: these sequences aren't split
    times_64 = many.get(size, many["not split"])
    rows.append([size, 8 * (8192 // keys_per_part), triton.cdiv(keys_per_part, 128), us,
                 times_64, f"{times_64 / many['not split']:.2f}"])
columns = ["keys per part", "programs, one sequence", "iterations of each", "one sequence, µs",
           "64 sequences, µs", "64: times as long as not split"]
Table(columns, rows, f"128 keys per tile, or 64 in parts of 64; {splits_provenance}")

# %% [markdown]
"""
Down to 512 keys, one sequence gets much faster. By then nearly all processors are busy, and smaller parts save at most
5% more. The 64 sequences only get slower: by 7% with parts of 512, by 19% with parts of 64. No size is best for both.
So the library chooses one from a sequence's length and the number of sequences that the batch has room for.

## Measure

How do others compare, with 64 sequences? SDPA is PyTorch's `scaled_dot_product_attention`. "Dense" and "packed" kernels
read contiguous keys, without a block table: the kind of cache that lesson 03 got rid of.
"""

# %%
production = recorded_production()
print(production.provenance)
print("yours:", ladder_provenance)
others = {f"{name} *": us for name, us in production.microseconds[even.name].items()}
others["yours, 64 keys per tile *"] = steps[1]["Ideas 1 to 3, 64 keys per tile"]["us"]
times = {LIBRARY if name == OURS else name: us
         for name, us in (even.microseconds | others).items() if name != SEVEN}
draw_bars(dict(sorted(times.items(), key=lambda item: item[1])), "µs", even.name,
          f"{recorded.provenance}. Outlined, with *: other runs, see the lines printed above",
          (LIBRARY,), ("at least", reading(even)), 8 * reading(even), list(others))

# %% [markdown]
"""
Your kernel, the library's, FlashInfer, FlashAttention-3 and cuDNN's dense kernel are within about a tenth of one
another. That's close enough to change places from run to run.

## What production does

- **vLLM** has this kernel in Triton as well: `kernel_unified_attention` in
  `vllm/v1/attention/ops/triton_unified_attention.py`, in version 0.33. You'll recognize it: `BLOCK_M` is our `BLOCK_M`,
  `TILE_SIZE` our `BLOCK_N`, its *segments* are splits, and its `reduce_segments` is your merge.
- On NVIDIA GPUs vLLM usually uses **FlashAttention** or **FlashInfer** instead, mostly written in CUDA C++. FlashInfer
  looks at all lengths once per step, in `plan(...)`, and distributes the work evenly over the processors.
- The library's decode kernel needs no second launch: of a sequence's programs, the one that finishes last merges.

## What is still wrong

**Decodes only.** A real batch has prefills too. The library has a second kernel for them; `lessons_lib/kernels/README.md`
explains it.

**Keys in 16 bits.** Keys and values in 8 bits (FP8) need half as many bytes.

**Launches.** Every layer of every step launches kernels, and each launch takes CPU time. That can be saved (lesson 13):

> **CUDA graph**: a recording of GPU work that can be replayed with a single launch. It saves the CPU the time to launch
> each kernel. While it is being recorded (*captured*), the CPU may not wait for the GPU.

**Shared prefixes are read again and again.** Requests that start with the same text can share its blocks (lesson 11),
but each program still reads them for its own sequence. Reading them once for all is called *cascade attention*: the
stretch task in "Further".

## Quiz
"""

# %%
quiz("08")

# %% [markdown]
"""
## References

- S. Williams, A. Waterman, D. Patterson: *Roofline: An Insightful Visual Performance Model for Multicore
  Architectures*, CACM 2009.
  <https://doi.org/10.1145/1498765.1498785>
- T. Dao et al.: *FlashAttention*, 2022, <https://arxiv.org/abs/2205.14135>; T. Dao: *FlashAttention-2*, 2023,
  <https://arxiv.org/abs/2307.08691>; J. Shah et al.: *FlashAttention-3: Fast and Accurate Attention with Asynchrony and
  Low-precision*, 2024, <https://arxiv.org/abs/2407.08608>
- T. Dao, D. Haziza, F. Massa, G. Sizov: *Flash-Decoding for long-context inference*, 2023.
  <https://crfm.stanford.edu/2023/10/12/flashdecoding.html>
- Z. Ye et al.: *FlashInfer*, 2025. <https://arxiv.org/abs/2501.01005>
- vLLM: `vllm/v1/attention/ops/triton_unified_attention.py`. <https://github.com/vllm-project/vllm>
"""

# %% [markdown] folded=true
"""
## Further (optional)

Nothing here is needed for the lesson, and its 75 minutes don't include it.

### Stretch: move fewer bytes

Your kernel reads each sequence's keys once. Can a decode move fewer bytes still? In two of the scoreboard's three
batches, all sequences begin with the same blocks, as requests with one system prompt do once their blocks are shared
(lesson 11). Any kernels are allowed, any number of launches.

Write `my_decode`. It returns the attention [N, query heads, head size]. Wrap each kernel that you launch in `counted`:
it runs the kernel, and counts every byte that its programs load and store. Between launches `k_cache` and `v_cache`
hold NaN, so only kernels can read them. Block tables and lengths are on the CPU, and reading them is free. Blocks hold
16 tokens, the head size is 32, and 4 query heads share 2 KV heads, all in float32.
"""

# %%
from lessons_lib.checks.lesson_08.scoreboard import bytes_scoreboard


def my_decode(counted, q, k_cache, v_cache, block_tables, context_lens, scale):
    return decode_groups(q, k_cache, v_cache, block_tables, context_lens, scale,
                         kernel=counted(my_kernel))  # replace this


bytes_scoreboard(my_decode)

# %% [markdown]
"""
### What a tensor core saves

> **warp**: 32 threads of a GPU that execute the same instruction together. A Triton program is run by several warps,
> usually 4 or 8.

You can look at what the compiler makes of your kernel, GPU or not. In bfloat16, each `tl.dot` becomes instructions
named `mma.…m16n8k16`: a warp multiplies a tile [16, 16] by a tile [16, 8].

**Predict 08.c** A tile has 16 rows and 64 keys, and the head size is 128. Four warps share the two products of an
iteration, scores and output. How many `mma` does each of them execute?
"""

# %%
predict("08.c", ...)

# %%
from lessons_lib.measuring.ablations import decode_groups_by_sums, decode_groups_by_sums_kernel
from lessons_lib.measuring.machine_code import MachineCode


def compiled(function, kernel, keys_per_tile, dtype=torch.bfloat16):
    """The kernel's instructions on an H100, for 32 query heads over 8 KV heads of size 128."""
    q, cache = torch.zeros(64, 32, 128, dtype=dtype), torch.zeros(4, 16, 8, 128, dtype=dtype)
    table = torch.zeros(64, 128, dtype=torch.int32)
    code = MachineCode(kernel)  # launched like the kernel, it compiles instead
    function(q, cache, cache, table, table[:, 0], 1.0, keys_per_tile, kernel=code)
    return code


codes = {"sums instead of `tl.dot`": compiled(decode_groups_by_sums,
                                              decode_groups_by_sums_kernel, 64),
         "yours": compiled(decode_groups, my_kernel, 64),
         "yours, float32": compiled(decode_groups, my_kernel, 64, torch.float32)}
rows = [[name, c.count("mma"), c.count("fma", "mul", "add", ending=".f32"), c.count("")]
        for name, c in codes.items()]
columns = ["kernel, 64 keys per tile", "mma", "other products and sums of floats",
           "all instructions"]
display(Table(columns, rows, "Instructions of a warp, in PTX, NVIDIA's assembly language; "
                             "those of the loop count once"))
reveal("08.c", codes["yours"].count("mma") or 2 * (16 * 64 * 128) // (16 * 8 * 16) // 4,
       unit="mma")

# %% [markdown]
"""
That's with 12 of 16 rows as padding. Without `tl.dot`, the 4 rows alone take about 2,000 products and sums, and nearly
nine times the instructions in all. In float32 there's no `mma` either.

### The roof over all kernels

Bytes have to move, and operations have to be done. The two can overlap, so the longer of the two times is the lower
bound. `attention_work` counts both: keys and values once, queries and outputs once, and 4 × head size operations for
each query head and each key that it sees.

> **roofline**: a chart of what a machine allows. The x-axis is the intensity of the work, in operations per byte, the
> y-axis operations per second. On the left is a slope, where memory is the limit. On the right is a flat roof, where
> arithmetic is. They meet at the *ridge*.

Work left of the ridge is memory-bound: better arithmetic doesn't help it. All decodes are, by far: each element of a
key has 2 bytes and is used by 4 query heads, with one multiplication and one addition each. A prefill uses each key for
thousands of queries.

**Predict 08.d** In between is the last chunk of a long prompt: most tokens in the cache, a few new ones. Suppose a
sequence has 8,192 tokens, the new ones included, with the Llama's heads in bfloat16. At how many new tokens does its
attention become compute-bound?
"""

# %%
print(f"on the recorded machine: {machine.flop_per_s / 1e12:.0f} TFLOP/s / "
      f"{machine.bytes_per_s / 1e12:.2f} TB/s = {machine.ridge:.0f} operations per byte")
predict("08.d", ...)  # new tokens

# %%
from lessons_lib.measuring import CASES, attention_work
from lessons_lib.viz.charts import RooflinePoint, draw_roofline


def intensity(new):
    return attention_work([new], [8192], 32, 8, 128).intensity


print("operations per byte:",
      ", ".join(f"{new} new: {intensity(new):.1f}" for new in (1, 2, 4, 16, 64)))
reveal("08.d", next(new for new in range(1, 8192) if intensity(new) >= machine.ridge),
       unit="new tokens")

mixed, long = recorded.case("mixed"), recorded.case("prefill 32")
shown = {"1 × 8,192": alone, "64 × 2,048": even, "mixed": mixed, "prefill": long}
points = []
for name, case in shown.items():
    shape = next(each for each in CASES if each.name == case.name)
    work = attention_work(shape.q_lens, shape.context_lens, shape.q_heads, shape.kv_heads,
                          shape.head_dim)
    for way in (OURS, "gather + SDPA", SEVEN):
        if way in case.microseconds:
            points.append(RooflinePoint(name, work, case.microseconds[way] / 1e6,
                                        LIBRARY if way == OURS else way))
draw_roofline(machine, points, "Attention of one layer under the roof of an H200",
              recorded.provenance)

# %% [markdown]
"""
The keys and values stay the same, and each new token uses them once more: the intensity grows by about 4 per token,
until queries and outputs begin to matter. In the chart, the two decodes are on the far left, below the slope. The
prefill (four prompts of 4,096 tokens) is right of the ridge, and the mixed batch (8 prefills and 120 decodes) is
between them. A single kernel would have to be near the slope in one case, and near the roof in the other: that's why
the library has two.
"""
