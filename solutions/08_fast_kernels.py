# %% [markdown]
"""
# 08 · Making the kernel fast

![A roofline: attention kernels under the limits of an H200](../lessons_lib/assets/openings/08.svg)

**Lesson 07's kernel is correct. What makes it as fast as the memory allows?**

85 minutes · difficulty: hard · routes: kernels · prerequisites: lesson 07 (programs, masks, strides, a kernel over a
block table)

You rewrite lesson 07's kernel so that one program serves all query heads that share keys, and reads many keys at a
time. The result is a kernel of one screen that, for large batches, is about as fast as those used in production. Its
results, its loads and its instructions are computed here, on your machine. Times need a GPU, so the course ships with
times measured on one, labeled *recorded*.
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
from lessons_lib.kernels import attend_blocks, decode_groups, decode_heads, decode_heads_kernel
from lessons_lib.kernels import decode_splits, decode_splits_kernel
from lessons_lib.kernels import how_kernels_run, kernel_device
from lessons_lib.measuring.ablations import decode_groups_by_sums, decode_groups_by_sums_kernel
from lessons_lib.measuring.ablations import with_functions
from lessons_lib.measuring import NAMES, OURS, PROMPTS, recorded_attention, recorded_ladder
from lessons_lib.measuring import recorded_production, recorded_splits
from lessons_lib.measuring.machine_code import MachineCode
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

Here is the attention of one layer, in three decodes. All keys and values must be read once, so bytes divided by read
bandwidth is a lower bound for any kernel. "32,8,128" means 32 query heads, 8 KV heads, head size 128: the shapes of a
Llama with 8 billion parameters. "14,2,64" are those of a small Qwen2. Blocks hold 16 tokens and are scattered over the
pool.

> **streaming multiprocessor**: one of the many processors of a GPU (SM), with its own arithmetic units and its own
> small, fast memory. A program runs on one of them, and each runs several programs at the same time. We simply call it
> a *processor*.
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
iterations, programs = 8192 // 16, 32  # of each program; one program per query head
taken = alone.microseconds[SEVEN] / iterations  # µs
tile = 2 * 16 * 128 * 2  # bytes: 16 keys and 16 values of one head, in bfloat16
print(f"one sequence: {iterations} iterations of {taken:.2f} µs, one after another")
together = programs * tile / taken / 1e6  # TB/s
print(f"each of {programs} programs loads {tile:,} bytes per iteration: "
      f"{together:.2f} TB/s in all")

# %% [markdown]
"""
For one sequence, a program has 512 iterations. In each it requests an entry of the block table, waits for it, requests
keys and values, waits again, and computes. While it waits or computes, it has little else *in flight*, on its way from
memory. So all 32 programs together get far fewer bytes than the memory could deliver. The time of a program is

> **number of iterations × time of one iteration**

and this lesson has four ideas to change that product, or the number of bytes:

| idea | what it changes |
|---|---|
| 1: one program for all query heads that share keys | each key is read once: fewer bytes |
| 2: tiles of several blocks | fewer iterations |
| 3: matrix products on tensor cores | a shorter iteration |
| 4: several programs for one sequence | fewer iterations in each of them, more loads in flight |

Which of them pays most for one sequence, and which for 64? Write down your order now.

## Idea 1: read each key once

Query heads that share a KV head use the same keys. In lesson 07 each of them had its own program, so each key was read
once per query head. Instead, let one program compute **all query heads of one KV head**. What was one query becomes a
tile of queries, one *row* per query head, and each key that the program reads serves all rows: 4 with the shapes of a
Llama, 7 with a Qwen2's 14 over 2.

```diff
- grid (sequences, query heads); query [HEAD_DIM]; row_max and row_sum scalars; acc [HEAD_DIM]
+ grid (KV heads, sequences); queries [rows, HEAD_DIM]; row_max and row_sum [rows]; acc [rows, HEAD_DIM]
```

So each iteration gets a tile of scores, [rows, keys], and each row has its own maximum, its own sum, and its own row of
`acc`. That's the part to build first.

**Predict 08.f** Take Idea 1 alone: still 16 keys per iteration, and suppose that an iteration takes as long as before.
For one sequence, the kernel now reads a quarter of the bytes. What percentage of lesson 07's time does that save?
"""

# %%
predict("08.f", ...)

# %% [markdown]
"""
## Build 1: the softmax of a tile

Here is lesson 07's loop over the blocks again. You take its online softmax out, and give it rows:
"""

# %%
show_source(attend_blocks)

# %% [markdown]
"""
One thing changes besides the rows: the base. A GPU has an instruction for 2ˣ, but none for eˣ. The scores are
multiplied by `scale` anyway, so the function that launches the kernel passes scale × log₂ e. From then on scores and
maxima are in base 2, and the weights come out the same.

**Exercise 08.1: `online_softmax(scores, row_max, row_sum, acc)`**, a function that kernels call. Decorate it with
`@triton.jit`, as in the stub. Its docstring has the shapes. Weights are powers of 2: `tl.exp2(a)` is 2ᵃ, elementwise,
also on scalars.

Return four tiles of float32, in this order: the weights of these keys, [rows, keys]; the new maximum, [rows]; the new
sum, [rows]; and `acc`, **rescaled** to the new maximum. Do *not* add the values of these keys. The kernel does that
afterwards, with a product of weights and values.

Some rows may have seen no key so far, and see none of these either: the library's prefill kernel calls the same
function. The maximum of such a row stays minus infinity, and its weights and its sum are 0, not NaN.

Example, one row: `row_max` 2, `row_sum` 1.5, `acc` 20; scores [3, 1]. The new maximum is 3 and the factor 2⁻¹ = 0.5.
The weights are [1, 0.25], the new sum is 0.75 + 1.25 = 2, and `acc` is 10.
"""

# %% exercise="08.1"
from lessons_lib.kernels.paged_flash import online_softmax

# %% [markdown]
"""
## Count first

What does lesson 07's kernel do on real keys? C, D and B decode in blocks of 16, and `Recorder` counts the loads of one
layer's attention.
"""

# %%
model, tokenizer = load_model(device="cpu")
KV_HEADS, HEAD_DIM = kv_head_size(model.config)
BLOCK_SIZE = 16
stories = [PROMPTS[NAMES.index(name)] for name in "CDB"]
load = dict(prompts=stories, max_new_tokens=4, names="CDB", block_size=BLOCK_SIZE)
_, noted = decode_inputs(model, tokenizer, **load)
query, keys, values, tables, contexts, scale = inputs = noted[0]
print("queries", list(query.shape), "| keys and values", list(keys.shape), "| contexts",
      contexts.tolist())
print("block tables", tables.tolist())


def count(recorder):
    """(programs, iterations of all, bytes of keys and values that they load, iterations of
    the longest program)"""
    recording = recorder.recording
    size = {name: layout.itemsize for name, layout in recording.tensors.items()}
    loads = [access for program in recording.programs
             for access in program.accesses if access.tensor in ("k_cache", "v_cache")]
    loaded = sum(len(access.offsets) * size[access.tensor] for access in loads)
    iterations = [sum(access.tensor == "k_cache" for access in program.accesses)
                  for program in recording.programs]
    return len(recording.programs), sum(iterations), loaded, max(iterations)


seven = Recorder(decode_heads_kernel)
by_seven = decode_heads(*inputs, kernel=seven)
necessary = 2 * int(contexts.sum()) * KV_HEADS * HEAD_DIM * keys.element_size()
programs, iterations, loaded, longest = count(seven)
print(f"lesson 07: {programs} programs, {iterations} iterations, {loaded:,} bytes of keys and "
      f"values; necessary: {necessary:,}, so {loaded / necessary:.0f} times")

# %% [markdown]
"""
28 iterations: 4 query heads × (1 + 2 + 4) blocks. The longest programs, those of B, have 4.

## Idea 2: a tile of several blocks

A block has 16 tokens: a good size for memory (lesson 03), but a small one for an iteration. A tile may have 32
positions, each of which looks up **its own** block, with one `tl.load` of 32 table entries. Here is the second tile of
B:
"""

# %%
position = 32 + torch.arange(32)
print("blocks", tables[2][position // BLOCK_SIZE].tolist())
print("slots ", (position % BLOCK_SIZE).tolist())

# %% [markdown]
"""
Many of these entries are the same, but that doesn't matter.

## Idea 3: matrix products on tensor cores

> **tensor core**: a part of a processor that multiplies two small matrices at once. In float16 and bfloat16 it does
> many times as many operations per second as the other arithmetic units.

In lesson 07 a score was `tl.sum(query * keys, axis=1)`. Now a program has several query heads, so the queries [rows,
head size] and the keys, transposed to [head size, keys], are two matrices, and one product of them gives all scores.
The output is another product, of the weights and the values.

| in a kernel | what it is |
|---|---|
| `tl.dot(a, b)` | the product of two tiles of the same dtype, in float32; in 16 bits it runs on tensor cores |
| `tl.dot(a, b, acc)` | the same, added to `acc` |
| `input_precision="ieee"` | to pass to both: without it, a float32 product on a GPU keeps only 10 bits of each factor's mantissa (TF32) |
| `tl.trans(a)` | `a` with its axes swapped |
| `tl.full([N], float("-inf"), tl.float32)` | a tile with this value everywhere; what a loop updates starts as a tile, not as a scalar |

A product on tensor cores has at least 16 rows. So `BLOCK_M`, the number of rows, is a power of two and at least 16, and
rows past the last query head are padding: with the 4 of a Llama, 12 rows. Padding costs arithmetic but no bytes.

## Build 2: a group of heads, a tile of keys

Now the kernel: lesson 07's, with these three ideas and your `online_softmax`. Its loop, `attend_blocks`, is shown in
Build 1. Here is what called it:
"""

# %%
show_source(decode_heads_kernel)

# %% [markdown]
"""
**Exercise 08.2: `decode_groups_kernel`.** Program (h, i) computes **all query heads of KV head h**, for sequence i:
axis 0 of the grid counts KV heads, axis 1 sequences. As in lesson 07, neighboring query heads share a KV head. The
stub's docstring describes the parameters; the ones in capitals are constants.

- Load every key and every value of the sequence exactly once, BLOCK_N positions per iteration, in one `tl.load` of keys
  and one of values. Load no slot that holds no token: it may contain NaN.
- BLOCK_N may be larger or smaller than BLOCK_SIZE, which needn't be a power of two.
- The caches may be views: blocks, slots and heads have any strides, and the elements of one head are adjacent. They
  may have more than 2³¹ elements, so a block's offset needs 64 bits. Every other product of an index and a stride fits
  into 32.
- `scale` includes log₂ e, so the scores are in base 2, as your `online_softmax` wants them.
- Store each query head of the group once, and nothing else.
- Scores and output are products on tensor cores if the cache has 16 bits: the tiles that go into a `tl.dot` have its
  dtype, and everything else is float32. The result may then be off by 0.005, and in float32 by 0.0001. (To try 16 bits
  without a GPU, take float16: Triton's interpreter takes the bits of a bfloat16 tile for integers.)

The check also counts your loads, and compiles your kernel for an NVIDIA GPU, which needn't be there, to see how it
multiplies.

Example: 6 query heads over 2 KV heads, contexts [40, 17], BLOCK_SIZE = 8 and BLOCK_N = 16. The grid is (2, 2). Program
(1, 0) computes the query heads 3, 4 and 5 of sequence 0, in 3 iterations. Its second tile has the positions 16 to 31,
which are in the blocks of table entries 2 and 3. Its last one has 8 keys, and 8 positions that no token has.
"""

# %% exercise="08.2"
from lessons_lib.kernels.group_decode import decode_groups_kernel

# %% [markdown]
"""
Count again: first with tiles of one block, so without Idea 2, then with larger ones. `decode_groups` launches your
kernel.
"""

# %%
rows = [["lesson 07", *count(seven), "–"]]
for keys_per_tile in (16, 32, 64):
    mine = Recorder(decode_groups_kernel, moments_of=(0, 2))
    difference = (decode_groups(*inputs, keys_per_tile, kernel=mine) - by_seven).abs().max()
    rows.append([f"yours, {keys_per_tile} keys per tile", *count(mine),
                 "yes" if difference < 1e-5 else f"no, off by {difference:.0e}"])
    if keys_per_tile == 16:
        reveal("08.f", 100 * (1 - count(mine)[3] / count(seven)[3]), unit="%")
columns = ["kernel", "programs", "iterations", "bytes of keys and values",
           "iterations of the longest program", "within 1e-5 of lesson 07"]
display(Table(columns, rows, caption=f"C, D and B, one layer; necessary: {necessary:,} bytes"))
watch(mine.recording, ["KV head", "sequence"])

# %% [markdown]
"""
Half as many programs, half the bytes. But with 16 keys per tile the longest program has 4 iterations, as in lesson 07:
Idea 1 alone doesn't shorten it, however many bytes it saves. Idea 2 does. For B, one `tl.load` now reads keys from four
blocks: step through its program above.

## Prove it

Now a whole model: every step that has only decodes goes through your kernel.
"""

# %%
device = kernel_device()


def my_backend(packed, block_tables, block_size):
    """Decodes through your kernel; a step with a prefill through lesson 06's PyTorch
    backend."""
    if set(packed.new_lens) != {1}:
        return plan_attention("torch", device)(packed, block_tables, block_size)
    tables, lens = block_tables.int().contiguous(), packed.context_lens.int()
    return lambda query, keys, values, scale: decode_groups(query, keys, values, tables, lens,
                                                            scale, kernel=decode_groups_kernel)


model = model.to(device)
same = paged_generate(model, tokenizer, **load, backend=my_backend) == paged_generate(
    model, tokenizer, **load, backend="torch")
print(f"C, D and B: the same tokens as with PyTorch: {same}")

# %% [markdown]
"""
## What a tensor core saves

> **warp**: 32 threads of a GPU that execute the same instruction together. A Triton program is run by several warps,
> usually 4 or 8.

A *thread* computes some of the elements of each tile. You can look at what the compiler makes of your kernel, GPU or
not. In bfloat16, each `tl.dot` becomes instructions with the name `mma.…m16n8k16`. With one of them, a warp multiplies
a tile [16, 16] by a tile [16, 8], and adds the result to a third.

**Predict 08.g** A tile has 16 rows and 64 keys, and the head size is 128. Four warps share the two products of an
iteration, scores and output. How many `mma` does each of them execute?
"""

# %%
predict("08.g", ...)

# %%
def compiled(function, kernel, keys_per_tile, dtype=torch.bfloat16):
    """The kernel's instructions on an H100, for 32 query heads over 8 KV heads of size 128."""
    q, cache = torch.zeros(64, 32, 128, dtype=dtype), torch.zeros(4, 16, 8, 128, dtype=dtype)
    table = torch.zeros(64, 128, dtype=torch.int32)
    code = MachineCode(kernel)  # launched like the kernel, it compiles instead
    function(q, cache, cache, table, table[:, 0], 1.0, keys_per_tile, kernel=code)
    return code


codes = {"Ideas 1 and 2, "
         "64 keys per tile": compiled(decode_groups_by_sums, decode_groups_by_sums_kernel, 64)}
codes |= {f"yours, {n} keys per tile": compiled(decode_groups, decode_groups_kernel, n)
          for n in (16, 64, 128)}
codes["yours, 64 keys per tile, float32"] = compiled(
    decode_groups, decode_groups_kernel, 64, torch.float32)
rows = [[name, c.count("mma"), c.count("fma", "mul", "add", ending=".f32"), c.count("shfl"),
         c.count("")] for name, c in codes.items()]
columns = ["kernel", "mma", "other products and sums of floats", "shfl", "all instructions"]
Table(columns, rows, "Instructions of a warp, in PTX, NVIDIA's assembly language; "
                     "those of the loop count once")

# %%
reveal("08.g", codes["yours, 64 keys per tile"].count("mma")
       or 2 * (16 * 64 * 128) // (16 * 8 * 16) // 4, unit="mma")

# %% [markdown]
"""
32 `mma`, although 12 of the 16 rows are padding. The first kernel of the table has no Idea 3: it multiplies element by
element and then sums, as lesson 07's does. For its 4 rows it takes about 2,000 products and sums, and more than 1,000
`shfl`, which pass partial sums from thread to thread. With a cache in float32, your kernel has no `mma` either.

**Break it:** in one of your products, convert both factors to `tl.float32`. Run your kernel's cell, skip its check, and
run the table's cell. How many `mma` are left, and what has replaced them? Then undo it, and run both cells again.

## Which idea makes it fast?

Here is a *ladder* of kernels, with one idea more on each rung, timed on the three decodes from the beginning, in
another run. The rungs with Idea 3 are your kernel; its reference solution was timed. The three rungs between lesson
07's kernel and yours run the first kernel of the table above.

What a thread is working on is in its *registers*, of 4 bytes each. It has 255 at most. What doesn't fit is *spilled*:
written to memory, and read back. Without Idea 3, all products of a tile, rows × keys × head size, exist at once before
they're summed.

**Predict 08.e** Take 4 query heads (without `tl.dot`, 4 rows are enough), tiles of 64 keys, and head size 128, in a
program of 4 warps. How many registers of each thread would the products of one tile fill, in float32?
"""

# %%
predict("08.e", ...)

# %%
reveal("08.e", 4 * 64 * 128 // (4 * 32), unit="registers for the products")
ladder_provenance, ladder = recorded_ladder()
steps = [next(steps for case, steps in ladder.items() if case.startswith(wanted.name))
         for wanted in THREE.values()]
# per iteration, of the rungs up to Idea 3
keys_of = dict(zip(steps[0], (16, 16, 32, 64, 16, 64, 128)))
label = {name: name.replace("3,", "3: yours,") for name in keys_of}  # the rungs with Idea 3
rows = []
for name, keys_per_tile in keys_of.items():
    us, step = [case[name]["us"] for case in steps], steps[1][name]
    rows.append([label[name], *us, f"{us[0] / (8192 / keys_per_tile):.1f}", step["registers"],
                 step["spilled"]])
rows.append(["at least", *map(reading, THREE.values()), "", "", ""])
columns = ["kernel", *(f"{name}, µs" for name in THREE), "one sequence, µs per iteration",
           "registers", "spilled"]
Table(columns, rows, f"{ladder_provenance}. Registers of a thread: with 64 sequences")

# %% [markdown]
"""
**Idea 1 alone** makes one sequence slower, for a quarter of the bytes. Its programs still have 512 iterations, which is
why 08.f says 0%, and each takes longer than before: it computes four rows, so 8 processors do what 32 shared. With 64
sequences there are 512 programs, enough for all processors, and the kernel gets 1.8 times as fast.

**Idea 2 on top of it** brings little. Look at the µs per iteration: with twice the keys, they double as well. This loop
spends its time on the products and sums of each key, and little of it waiting for memory. And larger tiles have a
price: with 32 keys a thread needs 255 registers. A processor has 65,536, enough for only two such programs of 128
threads instead of four. With 64 keys the products alone would fill 256, and registers are spilled.

**Idea 3** computes the same products on tensor cores, with about a ninth of the instructions (see above). From 16 to
128 keys, an iteration only takes about twice as long: much of it, probably the wait for memory, doesn't depend on the
number of keys, and larger tiles wait less often. *Now* Idea 2 pays, and no register is spilled.

With 64 keys per tile, your kernel is 12 times as fast as lesson 07's for 64 sequences, and 22 times for 256: close to
the time it takes to read the keys and values. For one sequence it's 4 times as fast, and takes 29 times as long as
reading. What is missing there? Eight programs, one per KV head, can't keep 132 processors busy.

## Idea 4: split the sequence

The loop over the keys needn't be one loop. Let several programs take a part of the keys each, and merge their results
as the online softmax merges tiles: rescale the sums to the same maximum, then add. So a third axis of the grid counts
**splits**. Program (h, i, s) computes KV head h of sequence i, over the keys s × SPLIT_SIZE to (s + 1) × SPLIT_SIZE − 1
only.

> **split-KV**: splitting the keys of one sequence among several programs that run at the same time, and merging their
> results. Known as *Flash-Decoding*.

**Predict 08.c** For one sequence of 8,192 tokens, your kernel with 128 keys per tile took 132 µs: 8 programs with 64
iterations each. Now split the sequence into parts of 512 keys: how many programs, with how many iterations each? From
that, predict the time in µs.
"""

# %%
predict("08.c", ...)

# %% [markdown]
"""
Here are the lines that change, from the kernel of Build 2 to `decode_splits_kernel`. Each program stores its own
attention and the *log-sum-exp* of its scores (`lse`): maximum + log₂ of the sum. That gives each split its weight in
`merge_kernel`, which merges the partial results ("Further" has it as an exercise).
"""

# %%
from lessons_lib.kernels import group_decode
from lessons_lib.measuring.ablations import Variant

print(Variant("split", decode_splits_kernel,
              ((group_decode.decode_groups_kernel, decode_splits_kernel),)).diff())

# %% [markdown]
"""
`with_functions` makes a copy of `decode_splits_kernel` that calls your softmax. First the three stories in splits of 16
keys, so that D and B are split even though they're short. Then all four ideas in the recorded times, each on top of
those above it.
"""

# %%
my_splits_kernel = with_functions(decode_splits_kernel, online_softmax=online_softmax)
split = Recorder(my_splits_kernel)
by_splits = decode_splits(*inputs, split_size=16, keys_per_tile=16, kernel=split)
print("split and merged, equal to lesson 07 up to rounding:",
      torch.allclose(by_splits, by_seven, atol=1e-5))
programs, _, loaded, longest = count(split)
print(f"grid {split.recording.grid}; iterations of the longest program: {longest}; "
      f"bytes loaded: {loaded:,}")
reveal("08.c", round(steps[0][LIBRARY]["us"]), unit="µs", tolerance=0.2)
added = {"1: one program per KV head": "Idea 1, 16 keys per tile",
         "3: tensor cores": "Ideas 1 and 3, 16 keys per tile"}
added |= {"2: 128 keys per tile": "Ideas 1 to 3, 128 keys per tile",
          "4: splits (the library's kernel)": LIBRARY}
rungs = [SEVEN, *added.values()]
pairs = zip([*added, "all four"], [*rungs[:-1], SEVEN], [*rungs[1:], LIBRARY])
rows = [[idea, *(f"{case[before]['us'] / case[after]['us']:.1f}" for case in steps)]
        for idea, before, after in pairs]
display(Table(["idea added", *THREE], rows,
              f"Times as fast as without it, {ladder_provenance}"))

# %% [markdown]
"""
The library's kernel has all four ideas, and 128 keys per tile. It splits this sequence into parts of 512 keys: 128
programs with 4 iterations each, and takes 18 µs instead of 132. If its iterations took 2.1 µs as well, four of them
would make 8 µs. The other 10 are slower iterations, starting, storing and merging: the recording doesn't separate them.

Compare with the order that you wrote down. For one sequence Idea 4 pays most, for many Idea 3. And an idea's gain
depends on what is there already: Idea 2, worth 1.5 to 4.4 times here, brought little or nothing before Idea 3, and made
64 sequences slower.

So why not smaller parts? Choose a size for a server that gets both batches, one sequence and 64. Write it down before
you run the next cell: your kernel in parts of several sizes, timed on another GPU, an H100.
"""

# %%
splits_provenance, by_case = recorded_splits()
one, many = by_case[alone.name], by_case[even.name]
rows = []
for size, us in one.items():
    keys_per_part = 8192 if size == "not split" else int(size)
    count_of_parts = 8192 // keys_per_part
    # 2,048 keys or more per part: these sequences aren't split
    times_64 = many.get(size, many["not split"])
    rows.append([size, 8 * count_of_parts, triton.cdiv(keys_per_part, 128), us, times_64,
                 f"{times_64 / many['not split']:.2f}"])
columns = ["keys per part", "programs, one sequence", "iterations of each", "one sequence, µs",
           "64 sequences, µs", "64: times as long as not split"]
Table(columns, rows, f"128 keys per tile, or 64 in parts of 64; {splits_provenance}")

# %% [markdown]
"""
Down to 512 keys, one sequence gets much faster. By then 128 programs keep nearly all processors busy, and smaller parts
save at most 5% more. But splits cost time where they aren't needed: the 64 sequences have 512 programs anyway, and each
part has to be started, stored, read again and merged. Parts of 512 keys take 7% longer, parts of 64 take 19% longer. No
size is best for both, so the library chooses one for each batch, usually at least 512 keys.

## Measure

How do others compare, with 64 sequences? PyTorch's dense attention, SDPA (`scaled_dot_product_attention`), appears
twice: "flash", and the kernel from NVIDIA's cuDNN library. "Dense" and "packed" read contiguous keys, without a block
table: the kind of cache that lesson 03 got rid of.
"""

# %%
production = recorded_production()
print(production.provenance)
print("yours:", ladder_provenance)


def bars(case, least_us, others=()):
    others = {f"{name} *": us
              for name, us in (production.microseconds[case.name] | dict(others)).items()}
    times = {LIBRARY if name == OURS else name: us
             for name, us in (case.microseconds | others).items() if name != SEVEN}
    note = f"{recorded.provenance}. Outlined, with *: other runs, see the lines printed above"
    limit = ("at least", least_us)
    return draw_bars(dict(sorted(times.items(), key=lambda item: item[1])), "µs", case.name,
                     note, (LIBRARY,), limit, 8 * limit[1], list(others))


bars(even, reading(even),
     {"yours, 64 keys per tile": steps[1]["Ideas 1 to 3, 64 keys per tile"]["us"]})

# %% [markdown]
"""
Your kernel, the library's, FlashInfer, FlashAttention-3 and cuDNN's dense kernel, which needs no table, are within
about a tenth of one another. A difference of a few percent may change from run to run.

## What production does

- **vLLM** has this kernel in Triton as well: `kernel_unified_attention` in
  `vllm/v1/attention/ops/triton_unified_attention.py`, in version 0.33, whose times are in the chart above. You'll
  recognize it: `BLOCK_M` is our `BLOCK_M`, and `TILE_SIZE` our `BLOCK_N`. One kernel serves prefills and decodes.
- On NVIDIA GPUs vLLM usually uses **FlashAttention** or **FlashInfer** instead, most of whose kernels are written in
  CUDA C++. FlashAttention's `flash_attn_with_kvcache` takes a `block_table`.
- **FlashInfer** looks at the lengths of all requests once per step, in `plan(...)`, and distributes the work evenly
  over the processors; each layer then calls `run(...)`. Ours leaves the scheduling to the GPU.
- **PyTorch**'s `flex_attention`, FlexAttention in the chart, compiles a kernel from a mask function.

## What is still wrong

**Decodes only, and head sizes that are powers of two.** A step of a real batch has prefills too. The library has a
second kernel for them; `lessons_lib/kernels/README.md` explains it.

**Keys in 16 bits.** Keys and values in 8 bits need half as many bytes. Engines do that (FP8), with a scale factor per
head or tensor to keep the range.

**Launches.** Every layer of every step launches kernels, and each launch takes the CPU some time. That can be saved
(lesson 13):

> **CUDA graph**: a recording of GPU work that can be replayed with a single launch. It saves the CPU the time to launch
> each kernel. While it is being recorded (*captured*), the CPU may not wait for the GPU.

**Shared prefixes are read again and again.** If many requests start with the same text, they can share its blocks
(lesson 11), but each program still reads them for its own sequence. Reading them once for all is called *cascade
attention*: the stretch task in "Further".

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
- M. Milakov, N. Gimelshein: *Online normalizer calculation for softmax*, 2018. <https://arxiv.org/abs/1805.02867>
- P. Tillet, H. T. Kung, D. Cox: *Triton: An Intermediate Language and Compiler for Tiled Neural Network Computations*,
  MAPL 2019.
  <https://doi.org/10.1145/3315508.3329973>
- T. Dao et al.: *FlashAttention*, 2022, <https://arxiv.org/abs/2205.14135>; T. Dao: *FlashAttention-2*, 2023,
  <https://arxiv.org/abs/2307.08691>; J. Shah et al.: *FlashAttention-3: Fast and Accurate Attention with Asynchrony and
  Low-precision*, 2024, <https://arxiv.org/abs/2407.08608>
- T. Dao, D. Haziza, F. Massa, G. Sizov: *Flash-Decoding for long-context inference*, 2023.
  <https://crfm.stanford.edu/2023/10/12/flashdecoding.html>
- Z. Ye et al.: *FlashInfer*, 2025. <https://arxiv.org/abs/2501.01005>
- vLLM: `vllm/v1/attention/ops/triton_unified_attention.py`. <https://github.com/vllm-project/vllm>
- Triton: `triton.autotune`. <https://triton-lang.org/main/python-api/generated/triton.autotune.html>
"""

# %% [markdown] folded=true
"""
## Further (optional)

Nothing here is needed for the lesson, and its 85 minutes don't include it. There are three exercises and a stretch
task. `lessons_lib/kernels/README.md` is about the rest of the library's kernels: prefills, tiles, how they are called.

### Build 3 (optional): merge

Each split writes its attention and its log-sum-exp to two tensors in float32. A second kernel reads them back and
merges them.

**Exercise 08.3: `merge_kernel`.** Program (h, i) merges query head h of sequence i: axis 0 of the grid counts query
heads, axis 1 sequences. There are `tl.num_programs(0)` query heads. The stub's docstring describes the parameters; T is
the number of new tokens in the batch.

Both partial tensors are contiguous. So the index of a split in `partial_lse` is (token × query heads + head) ×
NUM_SPLITS + split, and its attention starts at HEAD_DIM times that in `partial_out`.

- **Which token.** If not `RAGGED`, sequence i is token i. If `RAGGED`, it's the token at `cu_seqlens_q[i]`; and unless
  the sequence has exactly one new token, `return`: another kernel handles it. The engine's kernels run over batches
  with prefills, and yours will too.
- **Which splits.** Only those with keys were written: the first `tl.cdiv(context_len, SPLIT_SIZE)`. The others may hold
  anything, even NaN: don't load them.
- **Result.** The weighted mean of the attentions. A split's weight is its share of the total sum: proportional to 2 to
  the power of its log-sum-exp. A log-sum-exp may be 300, and 2³⁰⁰ doesn't fit into float32. Store HEAD_DIM elements in
  `out`, no more.

Example: two splits, log-sum-exps 0 and 1, attentions [2, 4] and [8, 1]. The weights are 2⁻¹ and 1. The result is (0.5 ×
[2, 4] + 1 × [8, 1]) / 1.5 = [6, 2].
"""

# %% exercise="08.3"
from lessons_lib.kernels.group_decode import merge_kernel

# %%
# Your merge after a kernel with your softmax: the same three stories in splits of 16 keys.
split, merged = Recorder(my_splits_kernel, moments_of=(0, 2, 1)), Recorder(merge_kernel)
by_splits = decode_splits(*inputs, split_size=16, keys_per_tile=16, kernel=split, merge=merged)
print("split and merged, equal up to rounding:",
      torch.allclose(by_splits, by_seven, atol=1e-5))
print(f"split kernel: grid {split.recording.grid}; merge kernel: grid {merged.recording.grid}")
print(f"bytes of keys and values: {count(split)[2]:,}, as before: "
      f"{count(split)[2] == necessary}")
watch(split.recording, ["KV head", "sequence", "split"])

# %% [markdown]
"""
Each split of B reads one block, and stores to the partial tensors. The programs of C and D whose split is past the last
token exit immediately; their entries in the partial tensors are never written.

vLLM calls splits *segments*, and its `reduce_segments` is your `merge_kernel`. The engine's decode kernel needs no second
one: of each sequence's programs, the one that finishes last merges, and a split's size follows from the sequence's own
length (`split_of` in `paged_flash.py`).

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
                         kernel=counted(decode_groups_kernel))  # replace this


bytes_scoreboard(my_decode)

# %% [markdown]
"""
### What is the minimum?

Two things have to happen. Bytes have to move between memory and processors: keys, values, queries, outputs. And
multiplications and additions have to be done. The two can overlap, so the longer of the two times is the lower bound. A
GFLOP is 10⁹ of these operations, a TFLOP 10¹².

### Build 4 (optional): count

**Exercise 08.4: `attention_work(q_lens, context_lens, q_heads, kv_heads, head_dim, bytes_per_element=2)`** for a packed
batch over the KV cache of one layer. It returns `Work(bytes=..., flop=...)`. `q_lens` and `context_lens` are lists with
one int per sequence: its new tokens, and all its tokens, the new ones included.

- **bytes**: the keys and values of all contexts are read once, however many queries use them. They have `kv_heads`
  heads. The queries of the new tokens are read and their outputs written; they have `q_heads` heads. Each element takes
  `bytes_per_element` bytes. Block tables and lengths are negligible.
- **flop**: a query at position p of its sequence sees the p + 1 keys at positions 0 to p. For each key that it sees,
  each query head needs head_dim multiplications and as many additions for the score, and the same again for the output:
  4 × head_dim in total. The softmax isn't counted. The q_len new tokens of a sequence are at its last positions,
  context − q_len to context − 1.

Example: one new token after 9 others, with 4 query heads over 2 KV heads and a head size of 8. The context is 10. Keys
and values: 2 × 10 × 2 × 8 = 320 elements. Query and output: 2 × 1 × 4 × 8 = 64. Together 384 elements, 768 bytes.
Operations: 10 keys × 4 heads × 4 × 8 = 1,280. With a chunk of 3 new tokens, at positions 7, 8 and 9, there are 8 + 9 +
10 = 27 pairs of a token and a key instead of 10, so 3,456 operations. The keys and values stay the same; queries and
outputs triple.
"""

# %% exercise="08.4"
from lessons_lib.measuring import Work

from lessons_lib.measuring.roofline import attention_work

# %% [markdown]
"""
All decodes of a model have almost the same intensity (lesson 00), however many sequences there are and however long
they are. An element of a key has 2 bytes. It's used by 4 query heads (32 over 8), each time with one multiplication and
one addition: 8 operations for 2 bytes, 4 per byte. The same holds for the values. A prefill uses each key for thousands
of queries.

> **roofline**: a chart of what a machine allows. The x-axis is the intensity of the work, the y-axis operations per
> second. On the left is a slope, where memory is the limit. On the right is a flat roof, where arithmetic is. They meet
> at the *ridge*.

Work left of the ridge is memory-bound: better arithmetic doesn't help it. Work to its right is compute-bound.

### When is a sequence compute-bound?

**Predict 08.d** One new token per sequence is memory-bound, a long prompt is compute-bound. In between is a sequence
that has most of its tokens in the cache and adds a few new ones: the last chunk of a prompt, say. Suppose it has 8,192
tokens, the new ones included, 32 query heads over 8 KV heads of size 128, in bfloat16. At how many new tokens does its
attention become compute-bound on the recorded machine? What grows with each new token, and what stays the same?
"""

# %%
print(f"on the recorded machine: {machine.flop_per_s / 1e12:.0f} TFLOP/s / "
      f"{machine.bytes_per_s / 1e12:.2f} TB/s = {machine.ridge:.0f} operations per byte")
predict("08.d", ...)  # new tokens

# %%
from lessons_lib.measuring import CASES
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
until queries and outputs begin to matter. In the chart, "1 × 8,192" is the decode of one sequence, "64 × 2,048" that of
64. They're on the far left, below the slope. The prefill (four prompts of 4,096 tokens) is right of the ridge, and the
mixed batch (8 prefills and 120 decodes) is between them. A single kernel would have to be near the slope in one case,
and near the roof in the other. That's why the library has two. ("gather + SDPA" copies the blocks, then runs PyTorch's
own attention.)

### Build 5 (optional): find the sequence of a tile

When a sequence has several new tokens, Idea 1 goes further: a program of the prefill kernel computes **neighboring
tokens of one sequence, with all query heads of one KV head**. Every key that is loaded serves all of them. So the
packed batch is cut into tiles of BLOCK_Q tokens each, sequence by sequence, and program (h, t) computes tile t. Which
sequence does tile t belong to? The lengths are on the GPU, and the CPU shouldn't wait for them. A trick avoids that:

**The tiles of sequence i start at tile cu_seqlens_q[i] // BLOCK_Q + i.** The first term is the number of full tiles
that fit before it. And each of the i sequences before it may end with a tile that isn't full, so there's one more for
each. A sequence may get one tile too many; that tile finds no tokens, and its program exits.

**Exercise 08.5: `find_seq_idx(tile, cu_seqlens_q, num_seqs, BLOCK_Q)`**, a function that kernels call. `tile` is an
int, `cu_seqlens_q` a pointer to `num_seqs` + 1 integers, `BLOCK_Q` a constant. Return the index of the sequence: the
**last** one whose first tile, cu_seqlens_q[i] // BLOCK_Q + i, is at most `tile`. (The rule also holds for a tile that
finds no tokens.)

There may be hundreds of sequences, and every program searches. So use binary search: keep a sequence `low` that is
known to start at or before the tile, and a `high` that is known to start after it, or to be past the last sequence.
Each look at the one in the middle halves the range. There is at least one sequence.

vLLM's `kernel_unified_attention` has this function too, with the same `// BLOCK_Q + mid`; its number of tiles is
`q.shape[0] // BLOCK_Q + num_seqs`.

`while` and `if` work in a kernel as they do in Python, on scalars loaded with `tl.load`. But inside a loop the compiler
rejects `return` and `break`, which the interpreter allows. The check uses both the interpreter and the compiler.

Example: with `cu_seqlens_q` [0, 8, 13, 15] and BLOCK_Q = 4, the sequences start at tiles 0, 3 and 5.
Tile 2 belongs to sequence 0, tile 3 to sequence 1, and tile 5 to sequence 2.
"""

# %% exercise="08.5"
from lessons_lib.kernels.paged_flash import find_seq_idx
