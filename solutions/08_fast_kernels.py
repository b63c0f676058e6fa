# %% [markdown]
"""
# 08 · Making the kernel fast

**Lesson 07's kernel is correct. What makes it as fast as the memory allows?**

85 minutes · difficulty: hard · routes: kernels · prerequisites: lesson 07 (programs, masks, strides, a kernel over a block table)

You rewrite lesson 07's kernel so that one program serves all query heads that share keys, and reads many keys at a
time. The result is a kernel of one screen that, for large batches, is about as fast as those used in production. Its
results, its loads and its instructions are computed here, on your machine. Times need a GPU, so the course ships with
times measured on one, labeled *recorded*.
"""

# %%
import lessons_lib.kernels.triton_setup  # before Triton: decides whether kernels are compiled or interpreted


import torch
import triton
import triton.language as tl
from IPython.display import display

from lessons_lib.attention import plan_attention
from lessons_lib.batching import paged_generate
from lessons_lib.checks import check, hint, predict, progress, quiz, reveal, solution
from lessons_lib.kernels import VARIANTS, attend_blocks, decode_groups, decode_heads, decode_heads_kernel, decode_splits, decode_splits_kernel, how_kernels_run, kernel_device, with_functions
from lessons_lib.kernels.ablations import decode_groups_by_sums, decode_groups_by_sums_kernel
from lessons_lib.measuring import ANY_GPU, HOPPER, NAMES, OURS, PROMPTS, Work, attainable, attention_work, recorded_attention, recorded_ladder, recorded_production, recorded_splits
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
pool. (The GPU's caches held none of them. The bandwidth is that of a kernel that reads 8 GB once and sums it.)

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
    [name, case.name.removeprefix("decode "), case.kv_bytes / 1e6, reading(case), us := case.microseconds[SEVEN], us / reading(case)]
    for name, case in THREE.items()
]
columns = ["recorded", "shapes", "keys and values, MB", "reading them, µs", f"{SEVEN}, µs", "times as long"]
display(Table(columns, rows, "Decode attention of one layer"))
iterations, programs = 8192 // 16, 32  # of each program; one program per query head
taken = alone.microseconds[SEVEN] / iterations  # µs
tile = 2 * 16 * 128 * 2  # bytes: 16 keys and 16 values of one head, in bfloat16
print(f"one sequence: {iterations} iterations of {taken:.2f} µs, one after another")
together = programs * tile / taken / 1e6  # TB/s
print(f"each of {programs} programs loads {tile:,} bytes per iteration: {together:.2f} TB/s in all")

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

Which of them pays most for one sequence, and which for 64? Write down your order now. The times come after Build 2, and
a table of the four ideas after Idea 4.

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
One thing changes besides the rows: the base. A GPU has an instruction for 2ˣ, but none for eˣ, so `tl.exp` takes more
instructions than `tl.exp2`, for every score. But the scores are multiplied by `scale` anyway, so the function that
launches the kernel passes scale × log₂ e. From then on scores and maxima are in base 2, and the weights come out the
same.

**Exercise 08.1: `online_softmax(scores, row_max, row_sum, acc)`**, a function that kernels call. Decorate it with
`@triton.jit`, as in the stub. Its docstring has the shapes. Weights are powers of 2.

Return four tiles of float32, in this order: the weights of these keys, [rows, keys]; the new maximum, [rows]; the new
sum, [rows]; and `acc`, **rescaled** to the new maximum. Do *not* add the values of these keys. The kernel does that
afterwards, with a product of weights and values.

Some rows may have seen no key so far, and see none of these either: the library's prefill kernel ("Further") calls the
same function. The maximum of such a row stays minus infinity, and its weights and its sum are 0, not NaN.

Example, one row: `row_max` 2, `row_sum` 1.5, `acc` 20; scores [3, 1]. The new maximum is 3 and the factor 2⁻¹ = 0.5.
The weights are [1, 0.25], the new sum is 0.75 + 1.25 = 2, and `acc` is 10.
"""

# %% exercise="08.1"
from lessons_lib.kernels.paged_flash import online_softmax

# %% [markdown]
"""
## Count first

What does lesson 07's kernel do on real keys? C, D and B decode in blocks of 16, and we keep the inputs of one layer's
attention. `decode_heads` launches the kernel; `Recorder` stands in for it there, runs it through the interpreter, and
records its loads.
"""

# %%
model, tokenizer = load_model(device="cpu")
KV_HEADS, HEAD_DIM = kv_head_size(model.config)
BLOCK_SIZE = 16
stories = [PROMPTS[NAMES.index(name)] for name in "CDB"]
load = dict(prompts=stories, max_new_tokens=4, names="CDB", block_size=BLOCK_SIZE)
_, noted = decode_inputs(model, tokenizer, **load)
query, keys, values, tables, contexts, scale = inputs = noted[0]
print("queries", list(query.shape), "| keys and values", list(keys.shape), "| contexts", contexts.tolist())
print("block tables", tables.tolist())


def count(recorder):
    """(programs, iterations of all, bytes of keys and values that they load, iterations of the longest program)"""
    recording = recorder.recording
    size = {name: layout.itemsize for name, layout in recording.tensors.items()}
    loads = [access for program in recording.programs for access in program.accesses if access.tensor in ("k_cache", "v_cache")]
    loaded = sum(len(access.offsets) * size[access.tensor] for access in loads)
    iterations = [sum(access.tensor == "k_cache" for access in program.accesses) for program in recording.programs]
    return len(recording.programs), sum(iterations), loaded, max(iterations)


seven = Recorder(decode_heads_kernel)
by_seven = decode_heads(*inputs, kernel=seven)
necessary = 2 * int(contexts.sum()) * KV_HEADS * HEAD_DIM * keys.element_size()
programs, iterations, loaded, longest = count(seven)
print(f"lesson 07: {programs} programs, {iterations} iterations, {loaded:,} bytes of keys and values; necessary: {necessary:,}, so {loaded / necessary:.0f} times")

# %% [markdown]
"""
28 iterations: 4 query heads × (1 + 2 + 4) blocks. The longest programs, those of B, have 4.

## Idea 2: a tile of several blocks

A block has 16 tokens. That's a good size for memory (lesson 03), but a small one for an iteration. Luckily, an
iteration needn't be one block. A tile may have 32 positions, each of which looks up **its own** block, with one
`tl.load` of 32 table entries. Here is the second tile of B:
"""

# %%
position = 32 + torch.arange(32)
print("blocks", tables[2][position // BLOCK_SIZE].tolist())
print("slots ", (position % BLOCK_SIZE).tolist())

# %% [markdown]
"""
Many of these entries are the same, but that doesn't matter: each position has a block and a slot, and from these you
compute where its key is.

## Idea 3: matrix products on tensor cores

> **tensor core**: a part of a processor that multiplies two small matrices at once. In float16 and bfloat16 it does
> many times as many operations per second as the other arithmetic units.

In lesson 07 a score was `tl.sum(query * keys, axis=1)`: products element by element, then a sum. Now a program has
several query heads, so the queries [rows, head size] and the keys, transposed to [head size, keys], are two matrices,
and one product of them gives all scores. The output is another product, of the weights and the values.

| in a kernel | what it is |
|---|---|
| `tl.dot(a, b)` | the product of two tiles of the same dtype, in float32; in 16 bits it runs on tensor cores |
| `tl.dot(a, b, acc)` | the same, added to `acc` |
| `input_precision="ieee"` | to pass to both: without it, a GPU rounds the factors of a float32 product to 10 bits after the leading one (TF32) |
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
    rows.append([f"yours, {keys_per_tile} keys per tile", *count(mine), "yes" if difference < 1e-5 else f"no, off by {difference:.0e}"])
    if keys_per_tile == 16:
        reveal("08.f", 100 * (1 - count(mine)[3] / count(seven)[3]), unit="%")
columns = ["kernel", "programs", "iterations", "bytes of keys and values", "iterations of the longest program", "within 1e-5 of lesson 07"]
display(Table(columns, rows, caption=f"C, D and B, one layer; necessary: {necessary:,} bytes"))
watch(mine.recording, ["KV head", "sequence"])

# %% [markdown]
"""
Half as many programs, half the bytes. But with 16 keys per tile the longest program has 4 iterations, as in lesson 07:
Idea 1 alone doesn't shorten it, however many bytes it saves. Idea 2 does. For B, one `tl.load` now reads keys from four
blocks: step through its program above.

## Prove it

The check compared your kernel with dense attention. Now a whole model: every step that has only decodes goes through
your kernel.
"""

# %%
device = kernel_device()


def my_backend(packed, block_tables, block_size):
    """Decodes through your kernel; a step with a prefill through lesson 06's PyTorch backend."""
    if set(packed.new_lens) != {1}:
        return plan_attention("torch", device)(packed, block_tables, block_size)
    tables, lens = block_tables.int().contiguous(), packed.context_lens.int()
    return lambda query, keys, values, scale: decode_groups(query, keys, values, tables, lens, scale, kernel=decode_groups_kernel)


model = model.to(device)
same = paged_generate(model, tokenizer, **load, backend=my_backend) == paged_generate(model, tokenizer, **load, backend="torch")
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


codes = {"Ideas 1 and 2, 64 keys per tile": compiled(decode_groups_by_sums, decode_groups_by_sums_kernel, 64)}
codes |= {f"yours, {n} keys per tile": compiled(decode_groups, decode_groups_kernel, n) for n in (16, 64, 128)}
codes["yours, 64 keys per tile, float32"] = compiled(decode_groups, decode_groups_kernel, 64, torch.float32)
rows = [[name, c.count("mma"), c.count("fma", "mul", "add", ending=".f32"), c.count("shfl"), c.count("")] for name, c in codes.items()]
columns = ["kernel", "mma", "other products and sums of floats", "shfl", "all instructions"]
Table(columns, rows, "Instructions of a warp, in PTX, NVIDIA's assembly language; those of the loop count once")

# %%
reveal("08.g", codes["yours, 64 keys per tile"].count("mma") or 2 * (16 * 64 * 128) // (16 * 8 * 16) // 4, unit="mma")

# %% [markdown]
"""
32 `mma`, although 12 of the 16 rows are padding. The first kernel of the table has no Idea 3: it multiplies element by
element and then sums, as lesson 07's does. For its 4 rows it takes about 2,000 products and sums, and more than 1,000
`shfl`, which pass partial sums from thread to thread. With a cache in float32, your kernel has no `mma` either. (With
16 keys, the scores are only two `mma` wide, too few for four warps, so some are computed twice: 12 `mma`, not 8.)

**Break it:** in one of your products, convert both factors to `tl.float32`. Run your kernel's cell, skip its check, and
run the table's cell. How many `mma` are left, and what has replaced them? Then undo it, and run both cells again.

## Which idea makes it fast?

Here is a *ladder* of kernels, with one idea more on each rung, timed on the three decodes from the beginning. (It's
another run, so the times of lesson 07's kernel differ a little.) The rungs with Idea 3 are your kernel; its reference
solution was timed. The three rungs between lesson 07's kernel and yours run the first kernel of the table above.

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
steps = [next(steps for case, steps in ladder.items() if case.startswith(wanted.name)) for wanted in THREE.values()]
keys_of = dict(zip(steps[0], (16, 16, 32, 64, 16, 64, 128)))  # per iteration, of the rungs up to Idea 3
label = {name: name.replace("3,", "3: yours,") for name in keys_of}  # the rungs with Idea 3
rows = []
for name, keys_per_tile in keys_of.items():
    us, step = [case[name]["us"] for case in steps], steps[1][name]
    rows.append([label[name], *us, f"{us[0] / (8192 / keys_per_tile):.1f}", step["registers"], step["spilled"]])
rows.append(["at least", *map(reading, THREE.values()), "", "", ""])
columns = ["kernel", *(f"{name}, µs" for name in THREE), "one sequence, µs per iteration", "registers", "spilled"]
Table(columns, rows, f"{ladder_provenance}. Registers of a thread: with 64 sequences")

# %% [markdown]
"""
**Idea 1 alone** makes one sequence slower, for a quarter of the bytes. Its programs still have 512 iterations, which
is why 08.f says 0%. But each iteration takes longer than before, 3.1 µs instead of 1.8, because it computes four rows.
The arithmetic that 32 processors shared is left to 8. With 64 sequences there are 512 programs, enough for all
processors, and the kernel gets 1.8 times as fast.

**Idea 2 on top of it** brings little: with 32 keys, 64 sequences take 17% more time, and 256 take 13% less. For one
sequence an iteration takes 3.1, 6.0 and 12.3 µs with 16, 32 and 64 keys: about 190 ns per key, whatever the tile. There
are fewer iterations, but each takes longer by about the same factor: this loop spends its time on the products and sums
of each key, and little of it waiting for memory. And larger tiles have a price: with 32 keys a thread needs 255
registers. A processor has 65,536, enough for only two such programs of 128 threads instead of four. With 64 keys the
products alone would fill 256, and registers are spilled.

**Idea 3** computes the same products on tensor cores. With 64 keys, your kernel has about a ninth of the instructions
of the loop of sums (see above), and its iteration takes about an eighth of the time. From 16 to 128 keys, an iteration
grows only from 1.1 to 2.1 µs: much of it, probably the wait for memory, doesn't depend on the number of keys, and
larger tiles wait less often. *Now* Idea 2 pays, and no register is spilled.

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
from lessons_lib.kernels.ablations import Variant

print(Variant("split", decode_splits_kernel, ((group_decode.decode_groups_kernel, decode_splits_kernel),)).diff())

# %% [markdown]
"""
`with_functions` makes a copy of it that calls your softmax. First the three stories in splits of 16 keys, so that D and
B are split even though they're short. Then all four ideas in the recorded times, each on top of those above it.
"""

# %%
my_splits_kernel = with_functions(decode_splits_kernel, online_softmax=online_softmax)
split = Recorder(my_splits_kernel)
by_splits = decode_splits(*inputs, split_size=16, keys_per_tile=16, kernel=split)
print("split and merged, equal to lesson 07 up to rounding:", torch.allclose(by_splits, by_seven, atol=1e-5))
programs, _, loaded, longest = count(split)
print(f"grid {split.recording.grid}; iterations of the longest program: {longest}; bytes loaded: {loaded:,}")
reveal("08.c", round(steps[0][LIBRARY]["us"]), unit="µs", tolerance=0.2)
added = {"1: one program per KV head": "Idea 1, 16 keys per tile", "3: tensor cores": "Ideas 1 and 3, 16 keys per tile"}
added |= {"2: 128 keys per tile": "Ideas 1 to 3, 128 keys per tile", "4: splits (the library's kernel)": LIBRARY}
rungs = [SEVEN, *added.values()]
pairs = zip([*added, "all four"], [*rungs[:-1], SEVEN], [*rungs[1:], LIBRARY])
rows = [[idea, *(f"{case[before]['us'] / case[after]['us']:.1f}" for case in steps)] for idea, before, after in pairs]
display(Table(["idea added", *THREE], rows, f"Times as fast as without it, {ladder_provenance}"))

# %% [markdown]
"""
The library's kernel has all four ideas, and 128 keys per tile. It splits this sequence into parts of 512 keys: 128
programs with 4 iterations each, and takes 18 µs instead of 132. If its iterations took 2.1 µs as well, four of them
would make 8 µs. The other 10 are slower iterations, starting, storing and merging: the recording doesn't separate them.

Compare with the order that you wrote down. For one sequence Idea 4 pays most, for many Idea 3. With 64 or 256 sequences
there are enough programs anyway: splits bring nothing, or even cost time. And an idea's gain depends on what is there
already: Idea 2, worth 1.5 to 4.4 times here, brought little or nothing before Idea 3.

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
    times_64 = many.get(size, many["not split"])  # 2,048 keys or more per part: these sequences aren't split
    rows.append([size, 8 * count_of_parts, triton.cdiv(keys_per_part, 128), us, times_64, f"{times_64 / many['not split']:.2f}"])
columns = ["keys per part", "programs, one sequence", "iterations of each", "one sequence, µs", "64 sequences, µs", "64: times as long as not split"]
Table(columns, rows, f"128 keys per tile, or 64 in parts of 64; {splits_provenance}")

# %% [markdown]
"""
Down to 512 keys, one sequence gets much faster. By then 128 programs keep nearly all processors busy, and smaller parts
save at most 5% more. But splits cost time where they aren't needed: the 64 sequences have 512 programs anyway, and each
part has to be started, stored, read again and merged. Parts of 512 keys take 7% longer, parts of 64 take 19% longer. No
size is best for both, so the library chooses one for each batch, usually at least 512 keys ("Further").

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
    others = {f"{name} *": us for name, us in (production.microseconds[case.name] | dict(others)).items()}
    times = {LIBRARY if name == OURS else name: us for name, us in (case.microseconds | others).items() if name != SEVEN}
    note = f"{recorded.provenance}. Outlined, with *: other runs, see the lines printed above"
    limit = ("at least", least_us)
    return draw_bars(dict(sorted(times.items(), key=lambda item: item[1])), "µs", case.name, note, (LIBRARY,), limit, 8 * limit[1], list(others))


bars(even, reading(even), {"yours, 64 keys per tile": steps[1]["Ideas 1 to 3, 64 keys per tile"]["us"]})

# %% [markdown]
"""
Your kernel, the library's, FlashInfer, FlashAttention-3 and cuDNN's dense kernel are within about a tenth of one
another, and a difference of a few percent may change from run to run. cuDNN's reads contiguous keys, without a table.
In prefills the order is different ("Further").

This lesson adds no row to the ledger: tokens, bytes and forward passes are those of lesson 06.

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
second kernel for them ("Further").

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

What the lesson doesn't need: the size of splits and their merge, the roofline, the prefill kernel, tiles, and how the
kernels are called. It isn't part of its 85 minutes. It has three more exercises and a stretch task.
"""

# %% [markdown]
"""
### How large is a split?

How many programs are there? One per KV head of each sequence. Here's what that means for a GPU with as many processors
as the recorded one.
"""

# %%
from lessons_lib.viz.charts import draw_programs

BATCHES, CONTEXTS = (1, 4, 16, 64, 256), (512, 2048, 8192, 32768)
draw_programs(BATCHES, CONTEXTS, 8, recorded.processors, lambda batch, context: 1, title="Sequences not split: programs per processor")

# %% [markdown]
"""
Hatched cells have fewer programs than processors. And one program per processor is still few: while a program waits for
memory, the processor can switch to another, if it has one.

Here is what Idea 4 saves, for one long sequence, and for a batch that has enough programs without splits:
"""

# %%
def prices(*rows):
    """Each row: (case, variant) or (case, variant, what to compare it with). Times of the variant and of the other."""
    table = []
    for case, variant, other in ((*row, LIBRARY)[:3] for row in rows):
        before = case.without.get(other, case.microseconds[OURS])
        table.append([case.name, variant, case.without[variant], other, before, f"{case.without[variant] / before:.2f}"])
    columns = ["case", "variant", "µs", "compared with", "its µs", "times as long"]
    return Table(columns, table, f"Recorded on one {machine.name}")


prices((alone, "sequences not split"), (recorded.case("decode 32,8,128; batch 64, ragged"), "sequences not split"))

# %% [markdown]
"""
The lengths of the ragged batch run from 100 to 8,000, and the longest sequences are still running when the others have
finished. Splits even that out.

How many keys should a split have? With too many keys per split, some processors have no work. With too few, starting
and merging take too large a share of the time. And all sequences get splits of the same size, so that a long one among
short ones doesn't delay the end of the launch. The library's rule aims at eight programs per processor, but gives each
program at least 512 keys, and at most 2,048:
"""

# %%
from lessons_lib.kernels import MAX_KEYS_PER_SPLIT, MIN_KEYS_PER_SPLIT, keys_per_split

show_source(keys_per_split)
print(f"MIN_KEYS_PER_SPLIT = {MIN_KEYS_PER_SPLIT}, MAX_KEYS_PER_SPLIT = {MAX_KEYS_PER_SPLIT}")


def splits(batch, context):
    return triton.cdiv(context, keys_per_split(batch, 8, context, recorded.processors))


draw_programs(BATCHES, CONTEXTS, 8, recorded.processors, splits, title="Split: programs per processor")

# %% [markdown]
"""
In the hatched cells, the minimum of 512 keys determines the split size. So the 16 × 8 programs of the single sequence
are four fewer than there are processors. Smaller splits would use those too. But besides reading, a program has to
start, look up its blocks, wait for its first keys, and write its result; and each split is one more to merge. The
smaller the splits, the larger the share of this overhead.

The price of splitting: each split writes its attention and its log-sum-exp to two tensors in float32. (The log-sum-exp
is the maximum + the logarithm of the total; here both are in base 2.) Then a second kernel reads them back and merges
them. The shorter the sequence, the larger the share of that round trip.

### Build 3 (optional): merge

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
from lessons_lib.kernels.paged_flash import merge_kernel

# %% [markdown]
"""
Your merge after a kernel with your softmax: the same three stories in splits of 16 keys. (The library's smallest split
is usually 512.)
"""

# %%
split, merged = Recorder(my_splits_kernel, moments_of=(0, 2, 1)), Recorder(merge_kernel)
by_splits = decode_splits(*inputs, split_size=16, keys_per_tile=16, kernel=split, merge=merged)
print("split and merged, equal up to rounding:", torch.allclose(by_splits, by_seven, atol=1e-5))
print(f"split kernel: grid {split.recording.grid}; merge kernel: grid {merged.recording.grid}")
print(f"bytes of keys and values: {count(split)[2]:,}, as before: {count(split)[2] == necessary}")
watch(split.recording, ["KV head", "sequence", "split"])

# %% [markdown]
"""
Each split of B reads one block, and stores to the partial tensors. The programs of C and D whose split is past the last
token exit immediately; their entries in the partial tensors are never written.

vLLM calls splits *segments*. Its kernel makes them (`IS_3D`) if all sequences of the batch have one new token and there
are few of them, and its `reduce_segments` is your `merge_kernel`. In FlashAttention's `flash_attn_with_kvcache`,
`num_splits` = 0 lets a heuristic choose, as our `keys_per_split` does.

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
    return decode_groups(q, k_cache, v_cache, block_tables, context_lens, scale, kernel=counted(decode_groups_kernel))  # replace this


bytes_scoreboard(my_decode)

# %% [markdown]
"""
### The whole decode kernel

This is the kernel that the engine runs. Its loop is that of your `decode_groups_kernel`, with splits. `RAGGED` skips
sequences with several new tokens. `HEAD_DIM` is the head size, and `BLOCK_D` the next power of two. `token` and `seq`
are converted to 64 bits for the same reason as block indices: with many tokens, token × stride may not fit into 32
bits. They're scalars, so that takes two registers per program rather than two per key. For the block indices the
launcher decides: if all offsets of a cache fit into 32 bits, `USE_INT64` is off, and `cache_offsets` is compiled
without the conversion.

Two things are there for models other than ours. `VALUE_DIM` is the head size of the values, and `BLOCK_V` the next
power of two: with DeepSeek's *multi-head latent attention* (MLA), keys and values have different head sizes. `WINDOW`,
`CHUNKED`, `SOFTCAP`, `sinks` and `alibi_slopes` are the terms that lesson 06's `ScoreTerms` lists. Whether a layer has
a term is known when the kernel is compiled: for a layer without terms, those lines aren't compiled at all.
"""

# %%
from lessons_lib.kernels import decode_kernel

show_source(decode_kernel)

# %% [markdown]
"""
The last lines are for few, short sequences. There, launching `merge_kernel` takes longer than merging. So splits have
only 128 keys, and the decode kernel merges them itself: each program stores its part and raises a counter, and the
program that raises it to the number of splits knows that all parts are there. The merge is an online softmax again. To
it, a split is a key with a score, the split's log-sum-exp, and with a value, its attention:
"""

# %%
from lessons_lib.kernels.paged_flash import merge_if_last
from lessons_lib.measuring import recorded_short_decodes

show_source(merge_if_last)
provenance, short_decodes = recorded_short_decodes()
print(provenance)
Table(
    ["query heads, KV heads, head size", "sequences", "keys of each", "two kernels, µs", "one kernel, µs", "ratio"],
    [
        (", ".join(map(str, case["heads"])), case["num_seqs"], case["context_len"], two := case["two_kernels_us"], one := case["one_kernel_us"], two / one)
        for case in short_decodes
        if case["heads"] in ([14, 2, 64], [32, 8, 128]) and case["num_seqs"] == 1 and case["room"] == 2048 and case["context_len"] >= 640
    ],
    caption="The block tables have room for 2,048 tokens",
)

# %% [markdown]
"""
One idea isn't in it: it's known in advance which table entries the next iteration needs, so they can be read
one iteration early.
"""

# %%
EARLY = "table read one iteration early"
print(VARIANTS[EARLY].diff())
prices((even, EARLY), (small_heads, EARLY))

# %% [markdown]
"""
With 64 sequences it's a little slower, though by more than the difference between two timings of the same kernel (see
"Choose tiles" below). With the small heads of a Qwen2 and 256 sequences it gains a few percent. We left it out: that's
too small a gain for lines that every reader has to think through.

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
from lessons_lib.measuring.roofline import attention_work

# %% [markdown]
"""
Some of the benchmark's cases, counted with your function:
"""

# %%
from lessons_lib.measuring import CASES

SHAPES = {case.name: case for case in CASES}
mixed, long = recorded.case("mixed"), recorded.case("prefill 32")


def work_of(name):
    case = SHAPES[name]
    return attention_work(case.q_lens, case.context_lens, case.q_heads, case.kv_heads, case.head_dim)


print("all cases: the same operations as in the recording:", all(work_of(case.name).flop == case.flop for case in recorded.cases))
Table(
    columns=["case", "MB", "GFLOP", "operations per byte"],
    rows=[
        [case.name, work_of(case.name).bytes / 1e6, work_of(case.name).flop / 1e9, work_of(case.name).intensity]
        for case in (alone, even, small_heads, mixed, long)
    ],
)

# %% [markdown]
"""
Look at the last column, the arithmetic intensity of lesson 00. All decodes of a model have almost the same intensity,
however many sequences there are and however long they are. An element of a key has 2 bytes. It's used by 4 query heads
(32 over 8), each time with one multiplication and one addition. That makes 8 operations for 2 bytes: 4 per byte. The
same holds for the values. A prefill uses each key for thousands of queries.

And the machine? Its rate of operations was recorded too, with a product of two 8192 × 8192 matrices in bfloat16. Divide
it by the bytes per second: that's the intensity at which the machine reaches both limits at once.
"""

# %%
print(f"on the recorded machine: {machine.flop_per_s / 1e12:.0f} TFLOP/s / {machine.bytes_per_s / 1e12:.2f} TB/s = {machine.ridge:.0f} operations per byte")

# %% [markdown]
"""
> **roofline**: a chart of what a machine allows. The x-axis is the intensity of the work, the y-axis operations per
> second. On the left is a slope, where memory is the limit. On the right is a flat roof, where arithmetic is. They meet
> at the *ridge*.

Work left of the ridge is memory-bound: better arithmetic doesn't help it. Work to its right is compute-bound.

### When is a sequence compute-bound?

**Predict 08.d** One new token per sequence is memory-bound, a long prompt is compute-bound. In between is a sequence
that has most of its tokens in the cache and adds a few new ones: the last chunk of a prompt, say. Suppose it has 8,192
tokens, the new ones included, 32 query heads over 8 KV heads of size 128, in bfloat16. At how many new tokens does its
attention become compute-bound on the recorded machine? Look at the count above: what grows with each new token, and
what stays the same?
"""

# %%
predict("08.d", ...)

# %%
def intensity(new):
    return attention_work([new], [8192], 32, 8, 128).intensity


reveal("08.d", next(new for new in range(1, 8192) if intensity(new) >= machine.ridge), unit="new tokens")
print("operations per byte:", ", ".join(f"{new} new: {intensity(new):.1f}" for new in (1, 2, 4, 16, 64)))

# %% [markdown]
"""
The keys and values stay the same, and each new token uses them once more. So the intensity grows by about 4 per token,
until queries and outputs begin to matter.

Now the chart, with three ways to compute attention: the library's kernels, to which this lesson leads; gathering the
blocks into a dense copy and then running PyTorch's own attention ("gather + SDPA"); and lesson 07's kernel, which
can only decode.
"""

# %%
from lessons_lib.viz.charts import RooflinePoint, draw_roofline

WAYS = (OURS, "gather + SDPA", SEVEN)
shown = {"1 × 8,192": alone, "64 × 2,048": even, "mixed": mixed, "prefill": long}
points = [
    RooflinePoint(name, work_of(case.name), case.microseconds[way] / 1e6, LIBRARY if way == OURS else way)
    for name, case in shown.items()
    for way in WAYS
    if way in case.microseconds
]
draw_roofline(machine, points, "Attention of one layer under the roof of an H200", recorded.provenance)

# %% [markdown]
"""
"1 × 8,192" is the decode of one sequence, "64 × 2,048" that of 64. They're on the far left, below the slope. The
prefill is right of the ridge. The mixed batch, prefills and decodes together, is between them. A single kernel would
have to be near the slope in one case, and near the roof in the other. That's why there are two.

### One packed batch, prefills included

In a real step the batch is mixed: some requests contribute a whole prompt, some a chunk, and most of them one token.
When a sequence has several new tokens, Idea 1 goes further: a program computes **neighboring tokens of one sequence,
with all query heads of one KV head**. 64 tokens × 4 heads are 256 rows. Every key that is loaded serves all of them.

So the packed batch is cut into tiles of BLOCK_Q tokens each, sequence by sequence. Program (h, t) computes tile t.
Which sequence does tile t belong to? Sequences have different lengths, so the program has to find out. It would be easy
if the CPU, the *host* of the GPU, counted each sequence's tiles. But then it would need the lengths, which are on the
GPU, and would have to wait for them. A trick avoids that:

**The tiles of sequence i start at tile cu_seqlens_q[i] // BLOCK_Q + i.** The first term is the number of full tiles
that fit before it. And each of the i sequences before it may end with a tile that isn't full, so there's one more for
each. A sequence may get one tile too many; that tile finds no tokens, and its program exits. T // BLOCK_Q + N tiles are
enough for T tokens of N sequences: both are known from shapes.
"""

# %%
from lessons_lib.attention import pack

BLOCK_Q = 4
packed = pack([[0] * n for n in (8, 5, 2)], [0, 0, 0])
bounds = packed.cu_seqlens_q.tolist()
firsts = [bounds[i] // BLOCK_Q + i for i in range(3)]
num_tiles = bounds[-1] // BLOCK_Q + 3
print(f"new tokens {packed.new_lens}, cu_seqlens_q {bounds}, {num_tiles} tiles of {BLOCK_Q}; the first tiles of the sequences are {firsts}")
for tile in range(num_tiles):
    seq = max(i for i in range(3) if firsts[i] <= tile)
    start = (tile - firsts[seq]) * BLOCK_Q
    own = list(range(start, min(start + BLOCK_Q, packed.new_lens[seq])))
    print(f"  tile {tile}: sequence {seq}, " + (f"its new tokens {own}" if own else "no tokens"))

# %% [markdown]
"""
### Build 5 (optional): find the sequence of a tile

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

Example: with `cu_seqlens_q` [0, 8, 13, 15] and BLOCK_Q = 4, the sequences start at tiles 0, 3 and 5, as printed above.
Tile 2 belongs to sequence 0, tile 3 to sequence 1, and tile 5 to sequence 2.
"""

# %% exercise="08.5"
from lessons_lib.kernels.paged_flash import find_seq_idx

# %% [markdown]
"""
### The prefill kernel

It uses three more ideas. The functions below implement them.

**A mask on the diagonal only.** A token sees the keys up to its own position. So all tokens of a tile see all keys
before the tile's first token. What they see differs only around the tile's own positions. Therefore the kernel has two
loops. The first, up to `first_masked_key`, needs no mask, and no row in it can be without a key, so `unmasked_softmax`
drops your `tl.where`. The second loop masks, and is short.

**Longest first.** The last tokens of a long prompt see the most keys, so their programs take longest. A GPU starts
programs in the order of their ids. If the longest came last, most processors would wait for them at the end. So
`longest_first` counts the tiles backwards.

**A separate kernel for decodes.** One kernel could do both: a decode is a tile with one token. But the tile has room
for 64, and all other rows are padding. So this kernel skips sequences with one new token (`has_own_kernel`), and
`decode_kernel` skips all others. Both run over the same batch.
"""

# %%
from lessons_lib.kernels import first_masked_key, has_own_kernel, longest_first, prefill_kernel, unmasked_softmax

for function in (first_masked_key, unmasked_softmax, longest_first, has_own_kernel):
    show_source(function)

# %%
show_source(prefill_kernel)

# %% [markdown]
"""
And here are the variants that were timed, each with one idea taken out:
"""

# %%
IN_PREFILLS = ("natural exponentials", "a mask in every iteration", "first tokens first", "one kernel for prefills and decodes")
for name in IN_PREFILLS:
    print(f"{name}:\n{VARIANTS[name].diff()}\n")

# %%
prices(*((long, name, ANY_GPU) for name in (*IN_PREFILLS[:3], "64-bit offsets")), (mixed, IN_PREFILLS[3], ANY_GPU))

# %% [markdown]
"""
**Natural exponentials** take out base 2; the launcher then passes the scale without log₂ e. Four extra instructions per
score is a lot: the tensor cores do the products, and the other arithmetic units only a handful of instructions per
score, for scaling, maximum, exponential and sum.

**A mask in every iteration** runs all keys through the second loop, with its comparison, its `tl.where` and your
softmax.

**First tokens first** is only a little slower here, though by more than the difference between two timings of the same
kernel. Each processor runs many programs in this case, one after another, so the wait at the end is a small part of the
whole.

**64-bit offsets** shows the price of `USE_INT64`. It has no diff: it's the same kernel, compiled with a different
constant. Registers are scarce in the prefill kernel.

### Choose tiles once, on purpose

> **shared memory**: the small memory inside each processor, about 200 KB on an H200, where tiles wait until they're
> used. Registers are even closer to the arithmetic units.

Larger tiles have a price: registers and shared memory. Keys can be requested only once their block indices have
arrived, which makes two waits in a row per iteration. Triton hides part of this by itself: with `num_stages=2`, an
iteration requests the next one's keys and values before it ends. Those tiles wait in shared memory until they're
needed.

How many keys per iteration, how many rows, how many warps, how many stages? There's no formula; you have to try. Triton
has a decorator for that:

```python
@triton.autotune(configs=[triton.Config({"BLOCK_N": 32}, num_warps=4), triton.Config({"BLOCK_N": 64}, num_warps=4), ...], key=["num_tokens"])
@triton.jit
def kernel(...):
```

> **autotuning**: finding the fastest of several configurations of a kernel by running all of them.

Know what it does before you use it in a server. At the first call with each new value of the `key`, it compiles *every*
configuration, and runs each many times. A request that happens to have a new value waits seconds, not microseconds. The
outputs are written many times, which is wrong for a kernel that accumulates into them. And none of this can happen
while a CUDA graph is being captured.

So we ran a sweep once, by hand, over both kernels, and wrote the results into two functions. Here is what was tried.
"""

# %%
from dataclasses import asdict

from lessons_lib.kernels import decode_tiles, prefill_tiles
from lessons_lib.viz.charts import draw_sweep

tiles_of = {even.name: decode_tiles(128 * 2), long.name: prefill_tiles(128 * 2, torch.bfloat16)}  # heads of 128 elements, 2 bytes each
for case in (even, long):
    display(draw_sweep(case.tiles, recorded.provenance, case.name, chosen=asdict(tiles_of[case.name])))

# %%
show_source(decode_tiles, prefill_tiles)
for case in (even, long):
    again = case.without.get(ANY_GPU, case.microseconds[OURS])
    print(f"{case.name}: with the chosen tiles, timed a second time in the same run: {again:,.1f} µs (recorded)")

# %% [markdown]
"""
Each sweep covers one case, and tiles have to serve all cases. The chosen decode tiles aren't the fastest of this sweep:
they're a little slower, by more than the difference between two timings of the same tiles (see the last two lines
printed). We chose them with the other decode cases in mind, for which no sweep is recorded. The chosen prefill tiles
are the fastest, and only one other combination comes close.

A sweep shows more clearly what to avoid, and that settings depend on each other. Look at the first row of the decode
sweep, the single blocks of Idea 2. With two warps instead of four, what was slow above is about as fast as the chosen
tiles: 16 keys are enough work for 64 threads, but too little for 128. So no idea has a fixed value. What it buys
depends on what is already there, and all the times above hold only for this kernel.

### Two functions

A function that others call has to be safe. A kernel checks nothing; with a wrong table it reads the wrong memory, and
with a wrong `cu_seqlens_q` it may overwrite another tensor. So two functions wrap the kernels:

- `decode(q, k_cache, v_cache, block_tables, context_lens, scale, terms=None)` for sequences with one new token each;
- `varlen(q, k_cache, v_cache, cu_seqlens_q, context_lens, block_tables, scale, terms=None, *, max_seqlen_q=None,
  max_context_len=None)`
  for a packed batch.

Shapes, dtypes, devices and layouts are known on the CPU, and always checked. The *contents* of lengths and tables are
on the GPU, and reading them synchronizes. So those are checked only on a CPU, or if `varlen` isn't given both maxima
and has to synchronize anyway. `decode` doesn't need maxima: it uses the width of the table. On a GPU it never
synchronizes, nor does `varlen` with both maxima. Such a call can be captured in a CUDA graph:
"""

# %% tags=["measured"]
from lessons_lib.kernels import decode

if device == "cuda":
    given = [x.to(device, copy=True) for x in (query, keys, values, tables, contexts)]
    decode(*given, scale)  # compiles the kernels, which isn't allowed during capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = decode(*given, scale)
    given[0].mul_(2)  # other queries, in the same memory
    graph.replay()
    print("captured, replayed on other queries, same as a direct call:", torch.equal(captured, decode(*given, scale)))
else:
    print("No GPU here, so nothing to capture.")

# %% [markdown]
"""
Two rejected calls:
"""

# %%
wrong_table = tables.clone()
wrong_table[2, 1] = 1000
for arguments in ((query, keys, values, tables.long(), contexts, scale), (query, keys, values, wrong_table, contexts, scale)):
    try:
        decode(*arguments)
    except ValueError as error:
        print("ValueError:", error)

# %% [markdown]
"""
### Prove both kernels

Both kernels, with your functions in them, against lesson 06's PyTorch attention: random packed batches with prefills,
chunks and decodes, and NaN in every cache slot that holds no token. And in whole models: greedy tokens through the
library's Triton backend, and through one with your functions.
"""

# %%
import random

from lessons_lib.attention import plan_torch
from lessons_lib.batching import padded_tables
from lessons_lib.kernels import launch_decode, launch_prefill
from lessons_lib.kv_cache import BlockPool, BlockTable, blocks_for

my_decode_kernel = with_functions(decode_kernel, online_softmax=online_softmax)
my_prefill_kernel = with_functions(prefill_kernel, online_softmax=online_softmax, find_seq_idx=find_seq_idx)


def random_batch(rng, new, contexts, q_heads, kv_heads, head_dim, block_size):
    """A packed batch with random queries, keys and values; NaN in slots without a token."""
    pool = BlockPool(sum(blocks_for(c, block_size) for c in contexts) + 2, block_size)
    rng.shuffle(pool.free_queue)
    tables = [BlockTable(pool) for _ in contexts]
    generator = torch.Generator().manual_seed(rng.randrange(1000))
    caches = [torch.full((pool.num_blocks, block_size, kv_heads, head_dim), float("nan")) for _ in range(2)]
    for table, context in zip(tables, contexts):
        table.append(context)
        for position in range(context):
            for cache in caches:
                cache[table.blocks[position // block_size], position % block_size] = torch.randn(kv_heads, head_dim, generator=generator)
    packed = pack([[0] * n for n in new], [c - n for c, n in zip(contexts, new)])
    return torch.randn(sum(new), q_heads, head_dim, generator=generator), *caches, packed, padded_tables(tables)


def attend_mine(query, keys, values, bounds, contexts, tables, scale, max_context, split_size=None):
    """`varlen` with your functions inside. Each kernel skips the other's sequences."""
    out = torch.empty_like(query)
    launch_prefill(query, keys, values, tables, contexts, bounds, out, scale, kernel=my_prefill_kernel)
    mine = dict(split_size=split_size, kernel=my_decode_kernel, merge=merge_kernel)
    launch_decode(query, keys, values, tables, contexts, bounds, out, scale, max_context, **mine)
    return out


rng = random.Random(8)
for *shape, split_size in ((4, 2, 16, 4, None), (4, 2, 16, 8, 8), (14, 2, 64, 16, 16), (3, 3, 20, 8, None), (8, 1, 32, 16, 32)):
    q_heads, kv_heads, head_dim, block_size = shape
    worst, lens = 0.0, []
    for _ in range(3):
        new = [rng.choice((1, 1, 2, block_size, 13)) for _ in range(rng.randint(1, 4))]
        lens_now = [n + rng.choice((0, block_size - 1, block_size, 30)) for n in new]
        q, k, v, packed, block_tables = random_batch(rng, new, lens_now, *shape)
        expected = plan_torch(packed, block_tables, block_size)(q, k, v, head_dim**-0.5)
        given = [x.to(device) for x in (q, k, v, packed.cu_seqlens_q.int(), packed.context_lens.int(), block_tables.int())]
        mine = attend_mine(*given, head_dim**-0.5, int(packed.context_lens.max()), split_size).cpu()
        worst = max(worst, float((mine - expected).abs().max()))
        lens.append(packed.new_lens)
    splits_text = f"splits of {split_size}" if split_size else "not split"
    print(f"{q_heads} query heads over {kv_heads}, head size {head_dim}, blocks of {block_size}, {splits_text}; new tokens {lens}")
    print(f"   off by less than 1e-5: {worst < 1e-5}")

# %%
from types import SimpleNamespace

from lessons_lib.models import VOCAB_SIZE, tiny_model


def varlen_backend(packed, block_tables, block_size):
    bounds, lens, tables = (tensor.int().contiguous() for tensor in (packed.cu_seqlens_q, packed.context_lens, block_tables))
    max_context = int(packed.context_lens.max())
    return lambda query, keys, values, scale: attend_mine(query.contiguous(), keys, values, bounds, lens, tables, scale, max_context)


plain = SimpleNamespace(pad_token_id=0, eos_token_id=24)
for family in ("gpt2", "llama", "qwen2"):
    tiny = tiny_model(family).to(device)
    prompts = [[rng.randrange(VOCAB_SIZE) for _ in range(length)] for length in (1, 8, 17)]
    load = dict(prompts=prompts, max_new_tokens=[2, 3, 2], max_num_seqs=2, block_size=8)
    expected = paged_generate(tiny, plain, **load, backend="torch")
    same = [paged_generate(tiny, plain, **load, backend=backend) == expected for backend in ("triton", varlen_backend)]
    print(f"{family:>6}: the same tokens as with PyTorch: the library's backend {same[0]}, yours {same[1]}")

# %% [markdown]
"""
### Measure on your GPU, if you have one

"This course" is the library's kernel.
"""

# %% tags=["measured"]
from lessons_lib.measuring import PEERS, make_inputs, microseconds


def yours(inputs):
    """Your kernel of 08.2, with each of the block tables; None for prefills."""
    if inputs.case.kind != "decode":
        return None
    caches = inputs.k_cache, inputs.v_cache
    return [lambda table=table: decode_groups(inputs.q, *caches, table, inputs.context_lens, inputs.scale, kernel=decode_groups_kernel) for table in inputs.tables]


MEASURED = ("decode 32,8,128; batch 1, context 8192", "decode 32,8,128; batch 64, context 2048", "prefill 32,8,128; 4 × 4096")
if device == "cuda":
    rows = []
    for name in MEASURED:
        inputs = make_inputs(SHAPES[name])
        calls = {way: PEERS[way](inputs) for way in WAYS} | {"yours": yours(inputs)}
        times = [microseconds(own) if own else None for own in calls.values()]
        ours, work = times[0], work_of(name)
        rows.append([name, *times, f"{work.bytes / ours / 1e6:.2f} TB/s, {work.flop / ours / 1e6:.0f} TFLOP/s"])
    display(Table(["µs", *calls, f"rate of {OURS}"], rows, f"Measured here, on {torch.cuda.get_device_name()}, bfloat16"))
else:
    print("Kernels are interpreted here, which says nothing about speed. Below are the recorded times.")

# %% [markdown]
"""
### All recorded cases

The lower bound, the time they take, and how much of the limit they reach:
"""

# %%
def least(case):
    """Lower bound in microseconds: bytes or operations, whichever take longer."""
    shape = SHAPES[case.name]
    return attainable(attention_work(shape.q_lens, shape.context_lens, shape.q_heads, shape.kv_heads, shape.head_dim), machine) * 1e6


Table(
    columns=["recorded", "at least, µs", f"{LIBRARY}, µs", "share of the limit"],
    rows=[[case.name, least(case), case.microseconds[OURS], f"{least(case) / case.microseconds[OURS]:.0%}"] for case in recorded.cases],
)

# %% [markdown]
"""
In the decodes the limit is read bandwidth. The short cases stay further from it. In the prefill the
limit is the rate of the large matrix product. The mixed batch can't reach its limit: that would require reading and
computing to overlap, but the decodes read and the prefills compute, and the two kernels run one after the other.

And the others, in a mixed batch and in a prefill:
"""

# %%
for case in (mixed, long):
    display(bars(case, least(case)))

# %% [markdown]
"""
All cases, relative to the library's times: below 1 is faster. Each row names the fastest of the others that start from
blocks ("gather + SDPA" includes the gathering), and the fastest of those that need contiguous keys.
"""

# %%
CONTIGUOUS = ("dense SDPA, flash", "dense SDPA, cuDNN", "packed FlashAttention-2")


def fastest(case, contiguous):
    """The fastest of the others that need contiguous keys, or of those that don't: its time relative to the library's, and its name."""
    times = {name: us for name, us in case.microseconds.items() if name not in (OURS, SEVEN)}
    times |= {f"{name} *": us for name, us in production.microseconds.get(case.name, {}).items()}
    name, us = min(((name, us) for name, us in times.items() if (name in CONTIGUOUS) == contiguous), key=lambda pair: pair[1])
    return f"{us / case.microseconds[OURS]:.2f}  {name}"


Table(
    columns=["recorded", f"{LIBRARY}, µs", "fastest from blocks", "fastest on contiguous keys"],
    rows=[[case.name, case.microseconds[OURS], fastest(case, False), fastest(case, True)] for case in recorded.cases],
    caption="Times relative to those of the library's kernels. * another run on the same kind of machine",
)

# %% [markdown]
"""
In the two cases with different lengths, the kernels with a * were timed with other random lengths from the same range,
so compare those only roughly.

The prefill is different from the decodes. FlashAttention-3 and cuDNN are written for the tensor cores of this GPU
generation, and FlashInfer has kernels of that kind. Some of their warps only fetch, with hardware that copies whole
tiles; others compute; the softmax of one tile overlaps with the products of the next. The kernel that you read is plain
Triton, and its warps do all of that in sequence.

So on a Hopper GPU the engine uses another kernel for long prefills, and the library's times above include it.
`lessons_lib/kernels/hopper_prefill.py` is written in Gluon, Triton's language one level below: one warp fetches, and
three groups of four compute. Here are both kernels, in the same run:
"""

# %%
cuDNN, prefills = "dense SDPA, cuDNN", [case for case in recorded.cases if case.kind == "prefill"]
Table(
    columns=["recorded", f"{ANY_GPU}, µs", f"{HOPPER}, µs", f"{cuDNN}, µs"],
    rows=[[case.name, case.without[ANY_GPU], case.without.get(HOPPER, case.microseconds[OURS]), case.microseconds[cuDNN]] for case in prefills],
)

# %% [markdown]
"""
It isn't faster everywhere. Its programs are few and large, so short prompts leave most of a tile empty. `hopper_pays`
in `launch.py` decides, and for the 64 prompts of 100 tokens it decides against it.
"""
