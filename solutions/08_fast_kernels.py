# %% [markdown]
"""
# 08 · Making the kernel fast

**The kernel of lesson 07 is right. What makes it as fast as the memory allows?**

90 minutes · difficulty: hard · routes: kernels · you need first: lesson 07 (programs, masks, strides, a kernel over a block table)

You count what attention has to do at least, and see how far lesson 07's kernel is from that. Then you go through the ideas that close the gap, one at
a time, with the lines that they change and the time that they buy. You write four of the pieces. At the end stand two kernels of about two screens
each, beside those that production uses.
"""

# %%
import lessons_lib.kernels.triton_setup  # before Triton: decides whether kernels are compiled or interpreted

import inspect

import torch
import triton
import triton.language as tl
from IPython.display import display

from lessons_lib.checks import check, hint, predict, progress, quiz, reveal, solution
from lessons_lib.kernels import (
    VARIANTS,
    decode,
    decode_kernel,
    how_kernels_run,
    kernel_device,
    launch_decode,
    launch_prefill,
    places_of,
    prefill_kernel,
    with_functions,
)
from lessons_lib.measuring import OURS, Work, attainable, recorded_attention, recorded_production
from lessons_lib.recording import Recorder
from lessons_lib.viz import Stepper
from lessons_lib.viz.tables import Table

# %% tags=["measured"]
print(how_kernels_run())

# %% [markdown]
"""
Speed can only be seen on a GPU, and you may have none. So results that were measured on one ship with the course. Wherever a number of theirs is
shown, it says *recorded*. What is counted, and whether results are right, is computed here, on your machine.
"""

# %%
recorded = recorded_attention()
machine = recorded.machine
print(recorded.provenance)
print(f"({recorded.note})")
print(f"{recorded.processors} processors; reads {machine.bytes_per_s / 1e12:.2f} TB/s; a large matrix product {machine.flop_per_s / 1e12:.0f} TFLOP/s")

# %% [markdown]
"""
Both limits were measured there in the same run: a kernel that reads 8 GB once and adds them up, and a product of two matrices of 8192 × 8192 numbers
in bfloat16. A TFLOP is 10¹² operations, a GFLOP 10⁹.

## The problem: right, and slow

The attention of one layer, in decodes of several sizes. "32,8,128" means 32 query heads, 8 KV heads, 128 numbers a head: the shapes of a Llama with 8
billion weights. "14,2,64" are those of a small Qwen2. Blocks hold 16 tokens, and lie scattered over the pool. All keys and values must be read once,
so their bytes over the reading speed are a time below which no kernel can be.
"""

# %%
decodes = [case for case in recorded.cases if case.kind == "decode"]


def reading(case):
    """Microseconds in which the machine reads the keys and values once."""
    return case.kv_bytes / machine.bytes_per_s * 1e6


SEVEN = "lesson 07's kernel"
Table(
    columns=["recorded", "keys and values, MB", "reading them, µs", "lesson 07's kernel, µs", "times as long"],
    rows=[
        [case.name.removeprefix("decode "), case.kv_bytes / 1e6, reading(case), case.microseconds[SEVEN], case.microseconds[SEVEN] / reading(case)]
        for case in decodes
    ],
    caption="Decode attention of one layer on an H200",
)

# %% [markdown]
"""
All of them are far slower than the memory. Where does the time go? Take the first line, one sequence of 8,192 tokens. A program goes through its
blocks one after the other, 16 tokens in each turn of the loop:
"""

# %%
alone = recorded.case("decode 32,8,128; batch 1,")
turns = 8192 // 16
taken = alone.microseconds[SEVEN]
print(f"{turns} turns in {taken:.0f} µs (recorded): {taken / turns:.2f} µs a turn, for 16 keys and 16 values of one head")

# %% [markdown]
"""
A turn asks for an entry of the block table, waits for it, asks for the keys, waits, computes, asks for the values, waits. Hardly anything is read or
computed in that time. It is nearly all waiting, and a GPU that waits reads nothing. All ideas of this lesson are of three kinds: **read and compute
less, compute in larger pieces, and always have enough under way**.

> **streaming multiprocessor**: one of the many processors of a GPU, with its own arithmetic units and its own small, fast memory. A program runs on
> one of them, and several programs run on each at the same time. We call it *processor*.

> **warp**: 32 threads of a GPU that execute the same instruction together. A program of Triton is run by several warps, usually 4 or 8.

> **shared memory**: the small memory inside each processor, about 200 KB on an H200. Tiles on their way to the arithmetic units wait there. Still
> nearer are the *registers*, which hold the numbers that are being computed with.

## What is the least?

Before making it faster, one should know how fast it could be. Two things have to be done. Bytes have to move between memory and the processors: keys,
values, queries, outputs. And numbers have to be multiplied and added. The larger of the two times is the limit, since both go on at the same time.

## Build 1: count

**Your task: `attention_work(q_lens, context_lens, q_heads, kv_heads, head_dim, bytes_per_element=2)`** for a packed row over the cache of one layer.
It returns `Work(bytes=..., flop=...)`. `q_lens` and `context_lens` are lists with an int for each sequence: its new tokens, and all its tokens, the
new ones included.

- **bytes**: the keys and the values of all contexts are read once, by whatever many queries they are used. They have `kv_heads` heads. The queries of
  the new tokens are read and their outputs are written; they have `q_heads` heads. Every number has `bytes_per_element` bytes. Block tables and
  lengths are so few bytes that we leave them out.
- **flop**: a query at position p of its sequence sees the p + 1 keys at the positions 0 to p. For each key that it sees, each query head takes
  head_dim multiplications and as many additions for the score, and as many again for the output: 4 × head_dim together. The softmax is not counted.
  The q_len new tokens of a sequence stand at its last positions, context − q_len to context − 1.

Example: one new token after 9 others, with 4 query heads over 2 KV heads of 8 numbers. The context is 10. Keys and values: 2 × 10 × 2 × 8 = 320
numbers. Query and output: 2 × 1 × 4 × 8 = 64. Together 384 numbers, 768 bytes. Operations: 10 keys × 4 heads × 4 × 8 = 1,280. With a chunk of 3 new
tokens, positions 7, 8 and 9, there are 8 + 9 + 10 = 27 pairs of a token and a key in place of 10, so 3,456 operations. The keys and values stay the
same; queries and outputs are three times as many.

As in the other lessons, `hint("08.1")` in a cell of its own helps on, in three steps.
"""

# %% exercise="08.1"
from lessons_lib.measuring.roofline import attention_work

# %% [markdown]
"""
The cases of the benchmark, counted with your function.
"""

# %%
from lessons_lib.measuring import CASES

SHAPES = {case.name: case for case in CASES}


def work_of(name):
    case = SHAPES[name]
    return attention_work(case.q_lens, case.context_lens, case.q_heads, case.kv_heads, case.head_dim)


print("as many operations as in the recording:", all(work_of(case.name).flop == case.flop for case in recorded.cases))
Table(
    columns=["case", "MB", "GFLOP", "operations a byte"],
    rows=[[case.name, work_of(case.name).bytes / 1e6, work_of(case.name).flop / 1e9, work_of(case.name).intensity] for case in recorded.cases],
)

# %% [markdown]
"""
Look at the last column, the arithmetic intensity of lesson 00. All decodes of a model have nearly the same, however many sequences there are, and
however long they are. A key's number has 2 bytes. It is used by 4 query heads (32 over 8), each time with one multiplication and one addition. 8
operations for 2 bytes: 4 a byte. The values are the same. A prefill uses each key for thousands of queries.

And the machine? Divide its operations a second by its bytes a second: that is the intensity at which both limits are reached together.
"""

# %%
print(f"on the recorded machine: {machine.ridge:.0f} operations a byte")

# %% [markdown]
"""
> **roofline**: a chart of what a machine allows. Along the bottom the intensity of the work, upwards the operations a second. On the left a slope:
> there the memory is the limit. On the right a flat roof: there the arithmetic is. Where they meet is the *ridge*.

Work left of the ridge is memory-bound: better arithmetic does not help it. Work on its right is compute-bound.

## Predict

One new token a sequence is memory-bound, a long prompt is compute-bound. In between lies a sequence that has most of its tokens in the cache, and
brings a few new ones: the last chunk of a prompt, say. Let it have 8,192 tokens with the new ones, 32 query heads over 8 KV heads of 128 numbers, in
bfloat16. Think of the count above: what grows with each new token, and what stays?
"""

# %%
predict("08.a", ...)  # From how many new tokens on is its attention bound by operations, on the recorded machine?

# %%
def intensity(new):
    return attention_work([new], [8192], 32, 8, 128).intensity


reveal("08.a", next(new for new in range(1, 8192) if intensity(new) >= machine.ridge), unit="new tokens")
print("operations a byte:", ", ".join(f"{new} new: {intensity(new):.1f}" for new in (1, 2, 4, 16, 64)))

# %% [markdown]
"""
The keys and values stay the same, and every new token uses them once more. So the intensity grows by about 4 with each, until queries and outputs
begin to weigh.

Now the chart, with three ways to compute attention in it: the kernels to which this lesson leads ("this course"); gathering the blocks into a dense
copy, and then PyTorch's own attention ("gather + SDPA"); and lesson 07's kernel, which can only decode.
"""

# %%
from lessons_lib.viz.charts import RooflinePoint, draw_roofline

WAYS = (OURS, "gather + SDPA", SEVEN)
even = recorded.case("decode 32,8,128; batch 64, context 2048")
small_heads = recorded.case("decode 14,2,64; batch 256")
mixed, long = recorded.case("mixed"), recorded.case("prefill")
shown = {"1 × 8,192": alone, "64 × 2,048": even, "mixed": mixed, "prefill": long}
points = [
    RooflinePoint(name, work_of(case.name), case.microseconds[way] / 1e6, way)
    for name, case in shown.items()
    for way in WAYS
    if way in case.microseconds
]
draw_roofline(machine, points, "Attention of one layer under the roof of an H200", recorded.provenance)

# %% [markdown]
"""
"1 × 8,192" is the decode of one sequence, "64 × 2,048" that of 64. They stand far left, below the slope. The prefill stands right of the ridge. The
mixed row, prefills and decodes together, lies between. A single kernel would have to be near the slope in the one case, and near the roof in the
other. That is why there will be two.

## Idea 1: read each key once

Query heads that share a KV head use the same keys. In lesson 07 each of them had a program of its own, and each program read the keys for itself. Let
one program have **all query heads of one KV head**. Then every key that it reads serves all of them.

We count it on real keys. C, D and B decode, and in one layer we note what attention is given.
"""

# %%
from lessons_lib.attention import plan_attention
from lessons_lib.batching import paged_generate
from lessons_lib.measuring import NAMES, PROMPTS
from lessons_lib.models import kv_head_size, load_model

model, tokenizer = load_model(device="cpu")
KV_HEADS, HEAD_DIM = kv_head_size(model.config)
BLOCK = 16
noted = []


def look_on(packed, block_tables, block_size):
    """PyTorch's backend of lesson 06, that notes what the first layer of a pass of decodes is given."""
    attend = plan_attention("torch", torch.device("cpu"))(packed, block_tables, block_size)

    def attend_and_note(query, keys, values, scale):
        if set(packed.new_lens) == {1}:
            inputs = (query, keys, values, block_tables.int(), packed.context_lens.int(), scale)
            noted.append(tuple(x.clone() if isinstance(x, torch.Tensor) else x for x in inputs))
        return attend(query, keys, values, scale)

    return attend_and_note


stories = [PROMPTS[NAMES.index(name)] for name in "CDB"]
paged_generate(model, tokenizer, stories, max_new_tokens=4, names="CDB", block_size=BLOCK, backend=look_on)
query, keys, values, tables, contexts, scale = noted[0]
print("queries", list(query.shape), "| keys and values", list(keys.shape), "| contexts", contexts.tolist())
print("block tables", tables.tolist())

# %% [markdown]
"""
`record_kernel` of lesson 07 runs a kernel through the interpreter and writes down its loads. The library's functions start kernels with
`kernel[grid](...)`. `Recorder` takes the place of a kernel there, and records.
"""

# %%
from lessons_lib.kernels import decode_heads, decode_heads_kernel
from lessons_lib.viz.programs import draw_program


def cache_bytes(recording):
    """Bytes of keys and values that all programs loaded."""
    size = {name: layout.itemsize for name, layout in recording.tensors.items()}
    loads = [access for program in recording.programs for access in program.accesses if access.tensor in ("k_cache", "v_cache")]
    return sum(len(access.offsets) * size[access.tensor] for access in loads)


seven, eight = Recorder(decode_heads_kernel), Recorder(decode_kernel)
by_seven = decode_heads(query, keys, values, tables, contexts, scale, kernel=seven)
by_eight = torch.empty_like(query)
launch_decode(query, keys, values, tables, contexts, None, by_eight, scale, int(contexts.max()), kernel=eight)
print(f"largest difference of the results: {(by_seven - by_eight).abs().max():.0e}")
necessary = 2 * int(contexts.sum()) * KV_HEADS * HEAD_DIM * keys.element_size()
rows = [[name, len(r.recording.programs), cache_bytes(r.recording)] for name, r in (("lesson 07", seven), ("lesson 08", eight))]
Table(
    columns=["kernel", "programs", "bytes of keys and values loaded", "times as many as necessary"],
    rows=[[*row, f"{row[2] / necessary:.2f}"] for row in rows],
    caption=f"C, D and B, one layer: {query.shape[1]} query heads over {KV_HEADS} KV heads; counted here",
)

# %%
AXES = ["KV head", "sequence", "split"]


def programs_of(recording, **where):
    def name(i):
        return f"program {recording.programs[i].ids}"

    return Stepper(lambda i: draw_program(recording, i, AXES), count=len(recording.programs), label="program", name=name, **where)


programs_of(eight.recording, start=0, still=2)

# %% [markdown]
"""
There are half as many programs, and each key is loaded once. With the shapes of a Llama it is 4 query heads, with the 14 over 2 of Qwen2 it is 7.

What does it buy? For each idea the same kernel was built without it, right like the other, and timed on the H200. We look at these times when the
whole kernel is there. Make a guess now. The decode of 64 × 2,048 is bound by reading. Without this idea, four programs read each key, one for each
query head.
"""

# %%
predict("08.b", ...)  # How many times as long does it take then?

# %% [markdown]
"""
## Idea 2: products on tensor cores

> **tensor core**: a part of a processor that multiplies two small matrices at once. It does many times the operations a second of the other
> arithmetic units, in float16 and bfloat16.

In lesson 07 a score was `tl.sum(query * keys, axis=1)`: products one by one, then a sum. Now a program has several query heads, so queries [heads,
numbers] and keys [numbers, keys] are two matrices, and their product is `tl.dot(queries, keys)`. It runs on tensor cores.

A tensor core takes at least 16 rows at a time. A Llama has 4 query heads for each KV head, so 12 rows are padding. They are computed for nobody. It
costs nearly nothing: the time goes into reading. In the kernel, `GROUP` is the number of query heads for each KV head, 4 in the Llama, and `BLOCK_M` the
number of rows, padding included. `is_row` says which are real, and only those are stored.

## Idea 3: a tile of several blocks

A block has 16 tokens. That is a good size for memory (lesson 03), and a small one for a turn of the loop. But nothing says that a turn must look at
one block. A tile may have 64 positions, and each looks up **its own** block: `table + position // BLOCK_SIZE` is 64 addresses, of which 16 neighbours
are the same. What comes back are 64 block numbers, and from these 64 places:
"""

# %%
print(inspect.getsource(places_of.fn))

# %%
first = next(access for access in eight.recording.programs[2].accesses if access.tensor == "k_cache")
cells = eight.recording.indices(first, 2)
blocks = list(dict.fromkeys(block for block, _ in cells))
print(f"B's first load of keys: {len(cells)} keys, (block, slot) from {cells[0]} to {cells[-1]}, in the blocks {blocks}, in one `tl.load`")

# %% [markdown]
"""
`USE_INT64` is the other trick in `places_of`. Lesson 07 made every block number 64 bits wide, because in a large cache 32 bits overflow. But wide numbers
take two registers each, and there are many of them in a tile. So the function that starts the kernel looks at the cache. If all its places fit into
32 bits, the kernel is compiled without.

Keys can be asked for only when their block numbers are there. That is two waits in a row, in every turn. Triton hides a part of them by itself. With
`num_stages=2` a turn asks for the keys and values of the next one before it ends; with `num_stages=3` also for the block numbers of the one after
that. Keys and values wait in shared memory until they are needed.

## Idea 4: powers of two

A GPU has an instruction for 2 to the x, and none for e to the x. `tl.exp(x)` is computed as 2 to the (x × log₂ e). Triton 3.6 makes one instruction
of `tl.exp2`, and five of `tl.exp`: a multiplication, a comparison and two corrections for very small results, and that one. All that for each score.
But the scores are multiplied by `scale` anyway. So whoever starts the kernel hands over scale × log₂ e:
"""

# %%
from lessons_lib.kernels import LOG2_E

print(f"log2(e) = {LOG2_E:.6f};  exp(1.7) = {torch.tensor(1.7).exp():.6f};  exp2(1.7 × log2(e)) = {torch.tensor(1.7 * LOG2_E).exp2():.6f}")

# %% [markdown]
"""
From then on everything is in base 2: scores, maxima, weights, and log-sum-exps. The weights come out the same.

## Build 2: the softmax of a tile

In lesson 07, `attend_blocks` had one query, with one maximum and one sum. Now a program has several rows. A turn gets a tile of scores, [rows, keys],
and each row has its own maximum, its own sum, and its own line of `acc`.

**Your task: `online_softmax(scores, row_max, row_sum, acc)`**, a function that kernels call. Put `@triton.jit` above it, as it stands there.

| argument | shape | what it is |
|---|---|---|
| `scores` | [rows, keys] | multiplied by scale × log₂ e already; minus infinity for keys that a row may not see |
| `row_max` | [rows] | largest score so far; minus infinity before the first key |
| `row_sum` | [rows] | sum of the weights so far, relative to `row_max` |
| `acc` | [rows, numbers] | sum of weight × value so far, relative to `row_max` |

It returns four things, in this order: the weights of this turn, [rows, keys]; the new maximum, [rows]; the new sum, [rows]; and `acc`, **rescaled**
to the new maximum. The values of this turn are *not* added in here. The kernel does that afterwards, with a `tl.dot` of weights and values.

It is `add_block` of lesson 06 with `tl.exp2`, for all rows at once. `tl.max` and `tl.sum` take an axis, and `tl.maximum` compares two tiles. Beside a
tile [rows, keys], a number of each row must be a column: `x[:, None]`.

The trap is that of lesson 06. If a row has seen no key yet, and may see none of this turn either, its new maximum is minus infinity, and −∞ − (−∞) is
NaN. For such a row 0 must be subtracted instead, while the new maximum that you return stays minus infinity; its weights and its sum are 0 then. An
`if` cannot choose row by row. `tl.where(condition, this, that)` can.

Example, one row: `row_max` 2, `row_sum` 1.5, `acc` 20; scores [3, 1]. The new maximum is 3 and the factor 2⁻¹ = 0.5. The weights are [1, 0.25], the
new sum is 0.75 + 1.25 = 2, and `acc` is 10.
"""

# %% exercise="08.2"
from lessons_lib.kernels.paged_flash import online_softmax

# %% [markdown]
"""
### The decode kernel, whole

With these four ideas you can read the kernel. The names that end a program early, `RAGGED` and `start >= context_len`, belong to the next ideas, as
do the lines behind the loop for `NUM_SPLITS` above 1. `HEAD_DIM` is the size of a head, and `DIM` the next power of two. `token` and `seq` are made 64
bits wide, for the same reason as block numbers in lesson 07: with many tokens, token × stride may not fit into 32. They are single numbers, so it
costs nothing. The loop is that of lesson 07: blocks, place, keys, scores, softmax, values.
"""

# %%
print(inspect.getsource(decode_kernel.fn))

# %% [markdown]
"""
`with_functions` of the library makes the same kernel with other functions in it: yours. From here on our runs use it.
"""

# %%
my_decode_kernel = with_functions(decode_kernel, online_softmax=online_softmax)
device = kernel_device()
on_device = [x.to(device) for x in (query, keys, values, tables, contexts)]
out = torch.empty_like(on_device[0])
launch_decode(*on_device, None, out, scale, int(contexts.max()), kernel=my_decode_kernel)
print("with your softmax, equal to lesson 07's kernel up to rounding:", torch.allclose(out.cpu(), by_seven, atol=1e-5))

# %% [markdown]
"""
### What these ideas buy

Four kernels were timed. These lines were changed in three of them; the fourth is the same kernel, started with `BLOCK_N` = 16. The first one is told
that there are as many KV heads as query heads, and finds every four of them at the same place in memory. The third one has an idea *more*: which
entries of the table the next turn needs is known already, so it reads them one turn early.
"""

# %%
WITHOUT = ("one program per query head", "no tensor cores", "table read one turn early")
for name in WITHOUT:
    print(f"{name}:\n{VARIANTS[name].diff()}\n")

# %%
def prices(*pairs):
    """What a case takes as it is, and with something else in place of one idea."""
    rows = [[case.name, without, case.microseconds[OURS], case.without[without]] for case, without in pairs]
    columns = ["case", "in place of the idea", "as it is, µs", "then, µs", "times as long"]
    return Table(columns, [[*row, f"{row[3] / row[2]:.2f}"] for row in rows], f"Recorded on one {machine.name}")


reveal("08.b", even.without["one program per query head"] / even.microseconds[OURS], unit="times as long")
prices(*((even, name) for name in (*WITHOUT[:2], "one block a turn", WITHOUT[2])), (small_heads, WITHOUT[2]))

# %% [markdown]
"""
**Keys read four times** are not four times as long. The four programs read the same keys at about the same time, and a GPU has a cache of its own
between memory and processors (50 MB on an H200). Often it still had what a neighbour had read.

**Without tensor cores** the products of all rows, numbers and keys exist at once, one by one. With 128 keys a turn they would not fit into the
registers. So this was timed with 16 keys a turn, as the line below it: compare it with that one. What is left is what tensor cores buy.

**One block a turn** is slower, with all other settings as they were. Whether small tiles are slow with *any* settings is a question for the last
idea of this lesson.

**The table read early** sounded right, and it is not in our kernel. In the first case it changes hardly more than what two timings of the same kernel
differ by (Idea 7 shows two): with 128 keys in each, turns are few, and other programs on the same processor can use the wait. With the small heads of a
Qwen2 and 256 sequences it gains a few percent. That is too little for lines that every reader must think through. Where a few
percent are money, one would decide otherwise.
"""

# %% [markdown]
"""
## Idea 5: split one sequence among many processors

How many programs are there? One for each KV head of each sequence. Here is what that means for a GPU with as many processors as the recorded one.
"""

# %%
from lessons_lib.viz.charts import draw_programs

BATCHES, CONTEXTS = (1, 4, 16, 64, 256), (512, 2048, 8192, 32768)
draw_programs(BATCHES, CONTEXTS, 8, recorded.processors, lambda batch, context: 1, title="Sequences not split: programs for each processor")

# %% [markdown]
"""
Hatched cells have fewer programs than processors. And one program a processor is still few. While a program waits for memory, the processor can go on
with another, if it has one.

Attention over one sequence can be cut: lesson 06's `merge`. So a third axis of the grid counts **splits**. Program (h, i, s) has KV head h of
sequence i, and of its keys only those from s × SPLIT up to (s + 1) × SPLIT.

> **split-KV**: cutting the keys of one sequence into pieces that different programs go through at the same time, and merging their results. Known as
> *Flash-Decoding*.

How many keys should a split have? If they are too many, processors have no work. If they are too few, programs spend their time on beginning and on
being merged. And all sequences get splits of the same size, so that a long one among short ones does not keep everybody waiting at the end. The
library's rule aims at eight programs a processor, but it gives no program fewer than 512 keys, nor more than 2,048:
"""

# %%
from lessons_lib.kernels import FEWEST_KEYS_A_SPLIT, MOST_KEYS_A_SPLIT, keys_a_split

print(inspect.getsource(keys_a_split))
print(f"FEWEST_KEYS_A_SPLIT = {FEWEST_KEYS_A_SPLIT}, MOST_KEYS_A_SPLIT = {MOST_KEYS_A_SPLIT}")


def splits(batch, context):
    return triton.cdiv(context, keys_a_split(batch, 8, context, recorded.processors))


draw_programs(BATCHES, CONTEXTS, 8, recorded.processors, splits, title="Split: programs for each processor")

# %% [markdown]
"""
In the hatched cells the lower bound of 512 keys stops the rule. So the sequence of 8,192 tokens that decodes alone becomes 16 pieces, and 16 × 8
programs are four fewer than there are processors. Why not smaller pieces?
"""

# %%
piece = FEWEST_KEYS_A_SPLIT * 2 * 128 * 2  # keys and values, 128 numbers, 2 bytes
rate = machine.bytes_per_s / recorded.processors
print(f"512 keys and values of one head: {piece / 1e3:.0f} KB, read in {piece / rate * 1e6:.1f} µs at a processor's share of the recorded speed")

# %% [markdown]
"""
Besides reading, a program has to start, to look up its table, to wait for its first keys, and to write its result; and each piece is one more to
merge. The smaller the pieces, the more that weighs.
"""

# %%
prices((alone, "sequences not split"), (recorded.case("decode 32,8,128; batch 64, ragged"), "sequences not split"))

# %% [markdown]
"""
In the ragged batch there are programs enough without splits. But the lengths run from 100 to 8,000, and the longest sequences are still at work when
the others have finished. Smaller pieces even that out.

The price: the pieces have to be merged. Each split writes its attention and its log-sum-exp, in base 2, to two tensors, in float32. Then a second
kernel joins them.

## Build 3: merge

**Your task: `merge_kernel`.** Program (h, i) has query head h of sequence i: axis 0 of the grid counts query heads, axis 1 sequences. There are
`tl.num_programs(0)` query heads.

| parameter | what it is |
|---|---|
| `partial_out` | pointer to [T, query heads, NUM_SPLITS, HEAD_DIM]: the attention of each split, divided by its own sum already |
| `partial_lse` | pointer to [T, query heads, NUM_SPLITS]: its log-sum-exp, in base 2 |
| `context_lens` | pointer to the number of keys of each sequence |
| `cu_seqlens_q` | pointer to where each sequence begins in the row; read it only if `RAGGED` |
| `out`, `stride_out`, `stride_out_head` | pointer to [T, query heads, HEAD_DIM], and numbers from one token to the next, and from one head to the next |
| `HEAD_DIM`, `DIM` | size of a head, and a power of two that is not below it |
| `SPLIT` | keys of a split |
| `NUM_SPLITS`, `SPLITS` | splits for which there is room, and a power of two that is not below it |
| `RAGGED` | whether the row holds more than decodes |

Both partial tensors lie without gaps. So the line of a split in `partial_lse` is (token × query heads + head) × NUM_SPLITS + split, and its attention
begins at HEAD_DIM times that in `partial_out`.

- **Which token.** If not `RAGGED`, sequence i is token i. If `RAGGED`, it is the one at `cu_seqlens_q[i]`; and if the sequence has not exactly one
  new token, `return`: it is another kernel's. The decode kernel above begins in the same way.
- **Which splits.** Only those with keys were written: the first `tl.cdiv(context_len, SPLIT)`. In the others anything may lie, even NaN. Load them
  with a mask: log-sum-exps with `other=float("-inf")`, attentions with `other=0.0`.
- **Result.** The mean of the attentions, each weighted with 2 to the (log-sum-exp − the largest of them). Store it in `out`, with a mask for
  `dim < HEAD_DIM`.

Example: two splits, log-sum-exps 0 and 1, attentions [2, 4] and [8, 1]. The weights are 2⁻¹ and 1. The result is (0.5 × [2, 4] + 1 × [8, 1]) / 1.5 =
[6, 2].
"""

# %% exercise="08.3"
from lessons_lib.kernels.paged_flash import merge_kernel

# %% [markdown]
"""
Your merge behind your decode kernel: the same three stories, cut into splits of 16 keys, so that D and B are cut, short as they are. (The library's
smallest split is 512.)
"""

# %%
launch_decode(*on_device, None, out, scale, int(contexts.max()), split=16, kernel=my_decode_kernel, merge=merge_kernel)
print("split and merged, equal up to rounding:", torch.allclose(out.cpu(), by_seven, atol=1e-5))
cut, joined = Recorder(my_decode_kernel), Recorder(merge_kernel)
launch_decode(query, keys, values, tables, contexts, None, torch.empty_like(query), scale, int(contexts.max()), split=16, kernel=cut, merge=joined)
print(f"decode kernel: grid {cut.recording.grid}; merge kernel: grid {joined.recording.grid}")
print(f"bytes of keys and values: {cache_bytes(cut.recording):,}, as before: {cache_bytes(cut.recording) == necessary}")
programs_of(cut.recording, start=8, still=9)

# %% [markdown]
"""
Each split of B reads one block, and stores to the partial tensors in place of `out`. An index of `partial_out` is token, query head, split, number;
one of `partial_lse` is token, query head, split. The splits of C and D behind their last token end at once. Their lines in the partial tensors are
never written.

## Idea 6: one packed row, prefills included

In a real step the row is mixed: some requests bring a whole prompt, some a chunk, most one token. For several new tokens of a sequence the same idea
goes further: a program takes **neighbouring tokens of one sequence, with all query heads of one KV head**. 64 tokens × 4 heads are 256 rows. Every
key that is loaded serves all of them.

So the row is cut into tiles of TOKENS tokens each, sequence by sequence. Program (h, t) has tile t. Whose tile is it? Sequences have different
lengths, so one must look. It would be easy if the CPU, the *host* of the GPU, counted the tiles of each sequence. But then it would have to know the
lengths, which lie on the GPU, and to wait for them. There is a trick that needs no lengths:

**Sequence i gets its tiles from number cu_seqlens_q[i] // TOKENS + i on.** The first part is the number of full tiles that would fit in front of it.
And each of the i sequences in front may have a tile at its end that is not full, so there is one more for each. There may be a tile too many; it
finds no tokens, and ends. T // TOKENS + B tiles are enough for T tokens of B sequences: both numbers are known from shapes.
"""

# %%
from lessons_lib.attention import pack

TOKENS = 4
row = pack([[0] * n for n in (8, 5, 2)], [0, 0, 0])
bounds = row.cu_seqlens_q.tolist()
firsts = [bounds[i] // TOKENS + i for i in range(3)]
tiles = bounds[-1] // TOKENS + 3
print(f"new tokens {row.new_lens}, cu_seqlens_q {bounds}, tiles of {TOKENS}: {tiles}; the sequences begin at the tiles {firsts}")
for tile in range(tiles):
    seq = max(i for i in range(3) if firsts[i] <= tile)
    start = (tile - firsts[seq]) * TOKENS
    own = list(range(start, min(start + TOKENS, row.new_lens[seq])))
    print(f"  tile {tile}: sequence {seq}, " + (f"its new tokens {own}" if own else "no tokens"))

# %% [markdown]
"""
## Build 4: whose tile?

**Your task: `sequence_of(tile, cu_seqlens_q, num_seqs, TOKENS)`**, a function that kernels call. `tile` is a number, `cu_seqlens_q` a pointer to
`num_seqs` + 1 integers, `TOKENS` a constant. Return the number of the sequence: the **last** one whose first tile, cu_seqlens_q[i] // TOKENS + i, is
not above `tile`. (For a tile that finds no tokens this rule holds as well.)

There may be hundreds of sequences, and every program asks. So search by halves: keep a sequence `low` of which you know that it begins at or before
the tile, and a `high` of which you know that it begins behind it, or that there is no such sequence. Each look at the one in the middle halves what
lies between them. At least one sequence is there.

`while` and `if` work in a kernel as they do in Python, with numbers that were loaded with `tl.load`. But the compiler takes no `return` and no
`break` inside a loop, though the interpreter would. The check asks both.

Example: with `cu_seqlens_q` [0, 8, 13, 15] and TOKENS = 4, the sequences begin at the tiles 0, 3 and 5, as printed above. Tile 2 belongs to sequence
0, tile 3 to sequence 1, and tile 5 to sequence 2.
"""

# %% exercise="08.4"
from lessons_lib.kernels.paged_flash import sequence_of

# %% [markdown]
"""
### The prefill kernel

Three more ideas are in it.

**A mask on the diagonal only.** A token sees the keys up to its own position. For a tile of tokens that means: keys before the first of them are seen
by all. Only around the tile's own positions does one see what another does not. So there are two loops. The first, up to `diagonal`, masks no key.
The second does, and is short.

**The longest first.** The last tokens of a long prompt see most keys, so their programs take longest. A GPU starts programs in the order of their
numbers. If the longest come last, most processors wait for them at the end. So the tiles are counted backwards.

**A kernel of its own for decodes.** One kernel could do both: a decode is a tile with one token. But its tile has room for 64, and the other rows are
padding. So a sequence with one new token is passed over here, and `decode_kernel` passes over the others. Both run over the same row.
"""

# %%
print(inspect.getsource(prefill_kernel.fn))

# %%
IN_PREFILLS = ("natural exponentials", "a mask in every turn", "first tokens first", "one kernel for prefills and decodes")
for name in IN_PREFILLS:
    print(f"{name}:\n{VARIANTS[name].diff()}\n")

# %%
prices(*((long, name) for name in (*IN_PREFILLS[:3], "64-bit offsets")), (mixed, IN_PREFILLS[3]))

# %% [markdown]
"""
**Natural exponentials** are Idea 4, taken out. They were timed here because here every score counts: a decode waits for memory, whatever it computes
meanwhile. The kernel is then handed the scale alone, without log₂ e. Four instructions more a score are much: tensor cores do the products, and the
other arithmetic units are left with scaling, maximum, exponential and sum, a handful of instructions a score.

**The mask.** Look at the first loop. The softmax is written out there, without the `tl.where` of yours: all keys are seen by all tokens, so no row
can be without a maximum.

**First tokens first** is only a little slower here, though by more than two timings of the same kernel differ by. Each processor gets many programs
in this case, one after the other, so the wait at the end is a small part of the whole.

**64-bit offsets** are the price of `USE_INT64`, which has no diff. In the prefill kernel registers are what is short.

## Idea 7: choose tiles once, on purpose

How many keys in a turn, how many rows, how many warps, how many stages? No formula says. One tries. Triton has a decorator for that:

```python
@triton.autotune(configs=[triton.Config({"BLOCK_N": 32}, num_warps=4), triton.Config({"BLOCK_N": 64}, num_warps=4), ...], key=["num_tokens"])
@triton.jit
def kernel(...):
```

> **autotuning**: finding the fastest of several configurations of a kernel by running all of them.

What it does must be known before one uses it in a server. At the first call with each new value of the `key`, it compiles *every* configuration, and
runs each many times. A request that happens to bring a new value waits seconds, not microseconds. The outputs are written many times, which is wrong
for a kernel that adds to what is there. And it cannot happen while a CUDA graph is captured.

> **CUDA graph**: a recording of GPU work that can be replayed with a single launch. It saves the CPU's time for starting each kernel. While it is
> captured, nothing may wait for the GPU.

So we swept once, by hand, over both kernels, and wrote the winners into two functions. Here is what was tried.
"""

# %%
from dataclasses import asdict

from lessons_lib.kernels import decode_tiles, prefill_tiles
from lessons_lib.viz.charts import draw_sweep

tiles_of = {even.name: decode_tiles(128 * 2), long.name: prefill_tiles(128 * 2, torch.bfloat16)}  # heads of 128 numbers, 2 bytes each
for case in (even, long):
    display(draw_sweep(case.tiles, recorded.provenance, case.name, chosen=asdict(tiles_of[case.name])))

# %%
print(inspect.getsource(decode_tiles))
print(inspect.getsource(prefill_tiles))
for case in (even, long):
    print(f"{case.name}: with the chosen tiles, timed a second time in the same run: {case.microseconds[OURS]:,.1f} µs (recorded)")

# %% [markdown]
"""
Each sweep is one case, and the tiles have to be good for all. So the chosen tiles of the decode are not the fastest of this sweep, but the best over
all cases of the benchmark. They are a little behind, by more than two timings of the same tiles differ by (the last lines printed). The chosen tiles
of the prefill are the fastest, and only one other comes near. What a sweep shows more clearly is what to stay away from, and that settings depend on
each other. Look at the first line of the decodes, the single blocks of Idea 3. With two warps in place of four, what was slow above is about as fast
as the chosen tiles: 16 keys are work enough for 64 threads, and little for 128. So an idea has no price by itself. What it buys depends on what is
there already, and all the numbers above hold for the kernel as it is.

## Two functions

What others call has to be safe. A kernel checks nothing; a wrong table makes it read elsewhere, or destroy somebody's memory. So the kernels stand
behind two functions:

- `decode(q, k_cache, v_cache, block_tables, context_lens, scale)` for sequences with one new token each;
- `varlen(q, k_cache, v_cache, cu_seqlens_q, context_lens, block_tables, scale, *, max_seqlen_q=None, max_context_len=None)` for a packed row.

Shapes, dtypes, devices and layouts are known to the CPU, and always checked. What lengths and tables *hold* is known to the GPU, and to look means to
wait for it. So that is checked on a CPU, or where `varlen` is not given the maxima and has to wait anyway. `decode` needs none: it goes by the width
of the table. On a GPU it never waits, nor does `varlen` with both maxima. Such a call can be captured in a CUDA graph:
"""

# %% tags=["measured"]
if device == "cuda":
    given = [x.clone() for x in on_device]
    decode(*given, scale)  # compiles the kernels, which is not allowed during the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = decode(*given, scale)
    given[0].mul_(2)  # other queries, in the same place
    graph.replay()
    print("captured, replayed on other queries, equal to a call:", torch.equal(captured, decode(*given, scale)))
else:
    print("No GPU here, so nothing to capture.")

# %% [markdown]
"""
Two refusals:
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
## Prove it

Both kernels, with your functions in them, against lesson 06's loop over sequences: random rows with prefills, chunks and decodes, contexts of 1, just
a block, and one more, and NaN in every cell of the pool that holds no token.
"""

# %%
import random

from lessons_lib.attention import attention_one_by_one
from lessons_lib.batching import padded_tables
from lessons_lib.kv_cache import BlockPool, BlockTable, blocks_for

my_prefill_kernel = with_functions(prefill_kernel, online_softmax=online_softmax, sequence_of=sequence_of)


def attend_mine(query, keys, values, bounds, contexts, tables, scale, longest, split=None):
    """`varlen` with your functions inside. Each kernel passes over the sequences of the other."""
    out = torch.empty_like(query)
    launch_prefill(query, keys, values, tables, contexts, bounds, out, scale, kernel=my_prefill_kernel)
    launch_decode(query, keys, values, tables, contexts, bounds, out, scale, longest, split=split, kernel=my_decode_kernel, merge=merge_kernel)
    return out


def random_row(rng, q_heads, kv_heads, head_dim, block_size):
    """A packed row with random queries, keys and values; NaN where no token is."""
    new = [rng.choice((1, 1, 2, block_size, 13)) for _ in range(rng.randint(1, 4))]
    contexts = [n + rng.choice((0, block_size - 1, block_size, 30)) for n in new]
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


rng = random.Random(8)
for *shape, split in ((4, 2, 16, 4, None), (4, 2, 16, 8, 8), (14, 2, 64, 16, 16), (3, 3, 20, 8, None), (8, 1, 32, 16, 32)):
    q_heads, kv_heads, head_dim, block_size = shape
    worst, lens = 0.0, []
    for _ in range(3):
        q, k, v, packed, block_tables = random_row(rng, *shape)
        expected = attention_one_by_one(q, k, v, packed, block_tables, head_dim**-0.5)
        given = [x.to(device) for x in (q, k, v, packed.cu_seqlens_q.int(), packed.context_lens.int(), block_tables.int())]
        mine = attend_mine(*given, head_dim**-0.5, int(packed.context_lens.max()), split).cpu()
        worst = max(worst, float((mine - expected).abs().max()))
        lens.append(packed.new_lens)
    told = f"{q_heads} query heads over {kv_heads}, {head_dim} numbers, blocks of {block_size}, " + (f"splits of {split}" if split else "not split")
    print(f"{told}; new tokens {lens}\n   off by less than 1e-5: {worst < 1e-5}")

# %% [markdown]
"""
And in a whole model: greedy tokens through the library's Triton backend, and through one with your functions, against the PyTorch backend of lesson
06.
"""

# %%
from types import SimpleNamespace

from lessons_lib.models import VOCAB_SIZE, tiny_model


def my_backend(packed, block_tables, block_size):
    bounds, lens, tables = (tensor.int().contiguous() for tensor in (packed.cu_seqlens_q, packed.context_lens, block_tables))
    longest = int(packed.context_lens.max())
    return lambda query, keys, values, scale: attend_mine(query.contiguous(), keys, values, bounds, lens, tables, scale, longest)


plain = SimpleNamespace(pad_token_id=0, eos_token_id=24)
for family in ("gpt2", "llama", "qwen2"):
    tiny = tiny_model(family).to(device)
    prompts = [[rng.randrange(VOCAB_SIZE) for _ in range(length)] for length in (1, 8, 17)]
    load = dict(prompts=prompts, max_new_tokens=[2, 3, 2], max_num_seqs=2, block_size=8)
    expected = paged_generate(tiny, plain, **load, backend="torch")
    same = [paged_generate(tiny, plain, **load, backend=backend) == expected for backend in ("triton", my_backend)]
    print(f"{family:>6}: the same tokens as with PyTorch: the library's backend {same[0]}, yours {same[1]}")

# %% [markdown]
"""
## Measure

### On your GPU, if there is one
"""

# %% tags=["measured"]
from lessons_lib.measuring import PEERS, make_inputs, microseconds

MINE_TOO = ("decode 32,8,128; batch 1, context 8192", "decode 32,8,128; batch 64, context 2048", "prefill 32,8,128; 4 × 4096")
if device == "cuda":
    rows = []
    for name in MINE_TOO:
        inputs = make_inputs(SHAPES[name])
        calls = {way: PEERS[way](inputs) for way in WAYS}
        times = [microseconds(own) if own else None for own in calls.values()]
        ours, work = times[0], work_of(name)
        rows.append([name, *times, f"{work.bytes / ours / 1e6:.2f} TB/s, {work.flop / ours / 1e6:.0f} TFLOP/s"])
    display(Table(["µs", *WAYS, "rate of the first"], rows, f"Measured here, on {torch.cuda.get_device_name()}, bfloat16"))
else:
    print("Here kernels are interpreted, which says nothing about speed. Below are the recorded times.")

# %% [markdown]
"""
### Recorded

All cases, with the kernels of this lesson: what the machine allows, what they take, and how much of the allowed that is.
"""

# %%
def least(case):
    """Microseconds below which the machine cannot be."""
    return attainable(work_of(case.name), machine) * 1e6


def bound(case):
    """What bounds its sequences, by the intensity of each."""
    shape, found = SHAPES[case.name], set()
    for q_len, context_len in zip(shape.q_lens, shape.context_lens):
        work = attention_work([q_len], [context_len], shape.q_heads, shape.kv_heads, shape.head_dim)
        found.add(f"{'decodes' if q_len == 1 else 'prefills'}: {'memory' if work.intensity < machine.ridge else 'operations'}")
    return ", ".join(sorted(found))


Table(
    columns=["recorded", "bound by", "at least, µs", "lesson 07, µs", "lesson 08, µs", "share of what is allowed"],
    rows=[
        [case.name, bound(case), least(case), case.microseconds.get(SEVEN), case.microseconds[OURS], f"{least(case) / case.microseconds[OURS]:.0%}"]
        for case in recorded.cases
    ],
)

# %% [markdown]
"""
In the decodes the share is one of the reading speed: near 100 %, a kernel is about as fast as this machine can read at all. The short cases cannot
come as near, because starting and ending take their time. In the prefill it is a share of the rate of the large matrix product. The limit of the
mixed row is too low to be reached: it takes reading and computing to go on at the same time, but the decodes read and the prefills compute, and the
two kernels run one after the other.

And beside others? Two kinds of them. What PyTorch has was timed in the same run; its dense attention, SDPA, has two kernels here, "flash" and one of
NVIDIA's library cuDNN. "Dense" and "packed" read keys that lie together, without a block table: a cache of that kind is what lesson 03 got rid of.
And production's kernels, timed in another run on the same kind of machine:
"""

# %%
from lessons_lib.viz.charts import draw_bars

production = recorded_production()
print(production.provenance)


def bars(case):
    others = {f"{name} *": us for name, us in production.microseconds[case.name].items()}
    times = {name: us for name, us in {**case.microseconds, **others}.items() if name != SEVEN}
    note = f"{recorded.provenance}. Outlined, with *: another run, see the line printed above"
    limit = ("at least", least(case))
    return draw_bars(dict(sorted(times.items(), key=lambda item: item[1])), "µs", case.name, note, (OURS,), limit, 8 * limit[1], list(others))


for case in (even, mixed, long):
    display(bars(case))

# %% [markdown]
"""
All cases, as times of ours: below 1 is faster.
"""

# %%
names = [name for name in even.microseconds if name not in (OURS, SEVEN)]
others = list(production.microseconds[even.name])


def of_ours(case, us):
    return f"{us / case.microseconds[OURS]:.2f}" if us else "–"


Table(
    columns=["recorded", f"{OURS}, µs", *names, *(f"{name} *" for name in others)],
    rows=[
        [c.name, c.microseconds[OURS]]
        + [of_ours(c, c.microseconds.get(name)) for name in names]
        + [of_ours(c, production.microseconds[c.name].get(name)) for name in others]
        for c in recorded.cases
    ],
    caption="Times relative to this course's. * another run on the same kind of machine",
)

# %% [markdown]
"""
In the two cases with unequal lengths, the kernels with a * had random lengths of their own from the same range, so compare those only roughly.

Read the table without vanity. In the decodes of the Llama shapes, FlashInfer and FlashAttention-3 end near our time where lengths are equal, and a
difference of a few percent may change from run to run. cuDNN's dense kernel is ahead in most decodes, in some by more than that, though not in the
largest. It reads keys that lie together, without a table; how much of its lead comes from there, we did not measure.

In the prefill it is another story. FlashAttention-3 and cuDNN are written for the tensor cores of this generation of GPUs, and FlashInfer has kernels
of that kind. Some warps do nothing but fetch, with hardware that copies whole tiles; others compute; the softmax of one tile overlaps with the
products of the next. Our kernel is plain Triton, and its warps do all of it in turn. Gather + SDPA is ahead of ours as well: in a long prefill
gathering costs little beside so many operations, and SDPA may choose cuDNN's kernel.

There is no row for the ledger in this lesson. The ledger counts tokens, bytes and passes, and they are those of lesson 06.

## What production does

- **vLLM** has this kernel in Triton, too: `kernel_unified_attention` in `vllm/v1/attention/ops/triton_unified_attention.py`. You will recognise it.
  `find_seq_idx` is your `sequence_of`, with the same `// BLOCK_Q + mid`. Its number of tiles is `q.shape[0] // BLOCK_Q + num_seqs`. `BLOCK_M` are our
  rows, `TILE_SIZE` our keys of a turn. Splits are called *segments*; they are on (`IS_3D`) where all sequences of the row have one new token and
  there are few of them, and `reduce_segments` is your `merge_kernel`. There is one kernel for prefills and decodes, with 16 rows in most cases.
- On NVIDIA GPUs vLLM usually takes **FlashAttention** or **FlashInfer** instead, most of whose kernels are written in CUDA C++. FlashAttention's
  `flash_attn_with_kvcache` takes a `block_table` and `num_splits`; with 0 a heuristic chooses, as our `keys_a_split` does.
- **FlashInfer** separates what depends on lengths from the work itself: `plan(...)` looks at the lengths of all requests once a step and hands out
  the pieces evenly to the processors; `run(...)` is then called in each layer. Ours gives all sequences splits of one size, and leaves the rest to
  the GPU's own order.
- **Hugging Face transformers** gathers in its continuous batching. With FlashAttention, a pass that has only decodes can skip that, with a block
  table.
- **PyTorch**: `flex_attention` compiles a kernel from a mask function, and is told by a `BlockMask` which blocks to look at. It is in the table
  above.

## What is still wrong

**Tiles of one GPU.** The sweep was made on one machine, with heads of 128 numbers in bfloat16. Elsewhere these tiles work, and others may be faster.
`python -m tools.gpu_bench` measures it where you are.

**Keys in 16 bits.** A decode is bound by bytes. Keys and values in 8 bits are half of them. Engines do that (FP8), with a factor for each head or
tensor to keep the range.

**Two launches and a round trip.** The partial results go out to memory and come back for the merge. The shorter the sequence, the more that
weighs.

**Shared beginnings are read again and again.** If many requests begin with the same text, they may share its blocks (lesson 10). Each program then
reads the shared keys for its own sequence. One could attend to them once for all, and merge: *cascade attention*.

**Attention is one part.** The kernel takes the row as it comes. Whether a step should have one long prefill in it or many decodes is decided before
it, by the scheduler: lesson 09.

## Quiz
"""

# %%
quiz("08")

# %% [markdown]
"""
## References

- S. Williams, A. Waterman, D. Patterson: *Roofline: An Insightful Visual Performance Model for Multicore Architectures*, CACM 2009.
  <https://doi.org/10.1145/1498765.1498785>
- M. Milakov, N. Gimelshein: *Online normalizer calculation for softmax*, 2018. <https://arxiv.org/abs/1805.02867>
- P. Tillet, H. T. Kung, D. Cox: *Triton: An Intermediate Language and Compiler for Tiled Neural Network Computations*, MAPL 2019.
  <https://doi.org/10.1145/3315508.3329973>
- T. Dao et al.: *FlashAttention*, 2022, <https://arxiv.org/abs/2205.14135>; T. Dao: *FlashAttention-2*, 2023, <https://arxiv.org/abs/2307.08691>; J.
  Shah et al.: *FlashAttention-3: Fast and Accurate Attention with Asynchrony and Low-precision*, 2024, <https://arxiv.org/abs/2407.08608>
- T. Dao, D. Haziza, F. Massa, G. Sizov: *Flash-Decoding for long-context inference*, 2023. <https://crfm.stanford.edu/2023/10/12/flashdecoding.html>
- Z. Ye et al.: *FlashInfer*, 2025. <https://arxiv.org/abs/2501.01005>
- vLLM: `vllm/v1/attention/ops/triton_unified_attention.py`. <https://github.com/vllm-project/vllm>
- Triton: `triton.autotune`. <https://triton-lang.org/main/python-api/generated/triton.autotune.html>
"""
