# %% [markdown]
"""
# 13 · The engine on a GPU

**The GPU computes a step faster than Python can start it. How do we keep the GPU busy?**

60 minutes · difficulty: hard · routes: kernels · you need first: lesson 08 (fast kernels) and lesson 12 (the engine)
"""

# %%
import inspect
import math
from functools import partial

import torch
from IPython.display import display

from lessons_lib.attention import write_and_attend
from lessons_lib.batching import generate_one_by_one
from lessons_lib.checks import check, hint, predict, progress, quiz, reveal, solution
from lessons_lib.engine import (
    GPUModelRunner,
    GraphKey,
    GraphStore,
    OverlappedSteps,
    captured_batch_sizes,
    next_size,
    rerun,
    serve_overlapped,
)
from lessons_lib.kv_cache import PrefixCache
from lessons_lib.measuring import (
    MAX_NEW_TOKENS,
    PROMPTS,
    STORIES,
    block_size_costs,
    engine_fits,
    recorded_engine,
    skewed_workload,
)
from lessons_lib.models import cache_bytes_per_token, load_model
from lessons_lib.scheduling import PreemptiveScheduler, Sequence
from lessons_lib.viz.charts import draw_bars
from lessons_lib.viz.tables import Table

model, tokenizer = load_model(device="cpu")  # in float32: equal means equal to the last token
prompt_ids = {story.name: tokenizer(story.prompt).input_ids for story in STORIES}
END = tokenizer.eos_token_id

# %% [markdown]
"""
## The problem: the GPU waits for the CPU

A forward pass of a small model on a large GPU has little to compute, and several hundred kernels to launch, each a few microseconds of the CPU's
time. The GPU waits for the CPU. Four ideas turn that around. They were measured on one H200, in one run, with 256 requests at once: first without
any, then with more and more. The names of the lines say what was added; the last two ideas came in together.
"""

# %%
recording = recorded_engine()
speeds = {mode["name"]: mode["tokens_per_s"] for mode in recording.modes}
last = recording.modes[-1]["name"]
draw_bars(
    speeds, "tokens/s", title="Output tokens a second, 256 requests, a model of half a billion parameters", note=recording.provenance, own=[last]
)

# %%
PARTS = {"whole": "all", "wait for the GPU": "wait", "own": "own"} | {part: part for part in ("schedule", "prepare", "launch", "update")}
Table(
    columns=["milliseconds", *PARTS, "warm-up, s"],
    rows=[[mode["name"], *(f"{mode['decode_ms'][part]:.2f}" for part in PARTS.values()), f"{mode['warm_up_s']:.0f}"] for mode in recording.modes],
    caption=f"A step of {recording.modes[-1]['decode_ms']['running']} decodes; medians",
)

# %%
for (_, before), (name, after) in zip(list(speeds.items()), list(speeds.items())[1:]):
    print(f"{name}: {after / before:.1f} times as fast as the line above")

# %% [markdown]
"""
Read the first line: the CPU is busy launching, and the GPU has nothing to do but wait for it. With overlap, the CPU still has its own work to do;
but the GPU computes meanwhile, so the CPU waits less, and the whole is shorter. In the last line the whole engine does the same, with requests,
sampling rules and metrics; in the lines before it, a bare scheduler drives the model.

A full step of 256 tokens is faster than the bars say. They hold the steps with prompts as well, and the end, when fewer and fewer sequences run.

What the ideas cost is in the last column. Compiling takes a while at every start; what was measured after it, in the same process, found it done.
"""

# %% [markdown]
"""
## Predict

A graph has a fixed batch size. The captured batch sizes are 2, 4, 8 and then every multiple of 16. A step with 37 decodes is padded to the next captured
size. As answers finish, the batch shrinks from 48 sequences to 33, by one sequence a step.
"""

# %%
predict("13.a", ...)  # How many padding decodes do these 16 steps compute, over all of them together?

# %% [markdown]
"""
## The idea

**CUDA graphs.** You met the term in lesson 08: a recording of launches that is replayed with one. A graph has fixed shapes, so there is one for
each of a ladder of batch sizes, and a step of decodes is filled up to the next size with sequences that nobody reads. They write into a block that
belongs to nobody.
"""

# %%
sizes = captured_batch_sizes(256)
print("captured sizes:", sizes[:8], "…", sizes[-1])
print("37 decodes run as", next_size(37, sizes))
print("\n".join(inspect.getsource(GraphStore.run).splitlines()[-6:]))

# %%
reveal("13.a", sum(next_size(num_seqs, sizes) - num_seqs for num_seqs in range(33, 49)), unit="decodes")

# %% [markdown]
"""
A graph knows no tensors, only addresses. If a weight, the cache or an input has moved since, a replay reads and writes the old place, without any
error. This is the last fault in the table under "When something breaks". To see it we need no GPU. `rerun` in place of a capture remembers its
tensors in the same way. One store has a key that says only how many rows there are, the other a key with all addresses. Before you run the cell:
what will each give after the weight has moved?
"""

# %%
inputs, weight = torch.tensor([10.0, 20.0]), torch.tensor([1.0, 2.0])
careless, careful = GraphStore(rerun), GraphStore(rerun)


def key_of_all():
    return GraphKey.of([inputs], [weight], settings=())


def outputs():
    step = partial(torch.mul, inputs, weight)
    return step().tolist(), careless.run(2, "2 rows", step).tolist(), careful.run(2, key_of_all(), step, lambda: (inputs, weight)).tolist()


print("right {}, careless key {}, full key {}".format(*outputs()))
weight = torch.tensor([100.0, 200.0])  # new weights, in another place
print("right {}, careless key {}, full key {}".format(*outputs()))
print(f"captured: {careless.num_captured} and {careful.num_captured} times")

# %% [markdown]
"""
**Compiling around an operator.** `torch.compile` fuses many small operations into few kernels. It would stumble over our attention, whose launch
depends on lengths that change from step to step. So attention is declared as one operator, which the compiler leaves as it is. The declaration
says what goes in, and with a "!" what is written to. What shape comes out is said by a second function (`register_fake` in `paged_operator.py`).
"""

# %%
print(write_and_attend._opoverload._schema)

# %% [markdown]
"""
**Tokens kept on the device.** The token of this step is the input of the next one. The next row can take it from where it is, on the GPU, without a
trip to the host. In the row, −1 − *i* stands for "the token that sequence *i* of the step before has got". The copy for the reader travels beside
the work.

**Overlap.** To plan the next step one need not know *which* token a sequence gets, only that it gets one. So the next step is planned and started
while this one runs. Who turns out to have ended has computed one token too many; it is thrown away.
"""

# %%
print(inspect.getsource(OverlappedSteps.step))

# %% [markdown]
"""
All four are in `GPUModelRunner` and `OverlappedSteps`; `OverlappedEngine` is our engine with the same four. Without a GPU they run too, not faster:
nothing is compiled, and `rerun` takes the place of the capture. So that the answers are right can be seen here:
"""

# %%
alone = generate_one_by_one(model, tokenizer, PROMPTS, max_new_tokens=MAX_NEW_TOKENS).outputs
gpu_model_runner = GPUModelRunner(model, 32, 16, max_num_seqs=4, max_model_len=192, compiled=False, capture=rerun)
scheduler = PreemptiveScheduler(PrefixCache(32, 16), max_num_seqs=4, max_num_batched_tokens=64)
stories = [Sequence(s.name, prompt_ids[s.name], s.max_new_tokens, frozenset({END}), arrival_time=i) for i, s in enumerate(STORIES)]
overlapped = serve_overlapped(gpu_model_runner, scheduler, stories)
print(f"the same answers: {overlapped == alone}; graphs of the sizes {sorted(gpu_model_runner.store.graphs)}; blocks in use: {len(scheduler.pool.used)}")
gpu_model_runner.close()

# %% [markdown]
"""
## How large may the batch be?

Now to the sizes of the engine. How many sequences may run at a time? As many as memory allows, and the cache takes most of it. So one would like to
compute: memory divided by the bytes of a sequence. Say, sequences of 100 tokens, and 16 MiB beside the weights.
"""

# %%
LIMIT, CONTEXT = 16 * 2**20, 100
per_sequence = math.ceil(CONTEXT / 16) * 16 * cache_bytes_per_token(model.config, model.dtype.itemsize)
print(f"a sequence of {CONTEXT} tokens: {per_sequence:,} bytes of cache; {LIMIT:,} bytes hold {LIMIT // per_sequence} of them")

# %% [markdown]
"""
But a step needs memory of its own: the tensors between the layers, the gathered keys, the logits. What the libraries take for themselves, and what
lies unused between two tensors, is in no formula. So it is *tried*: start an engine of a size, give it the worst that can come, and see whether it
runs out of memory. On a GPU that is an allocation that fails. Here, `memory_limit` counts the bytes of all tensors that are alive, and raises the
same kind of error. `engine_fits` in the library does one such try:
"""

# %%
print(inspect.getsource(engine_fits))

# %% [markdown]
"""
## Build 1: few tries

A try takes seconds, on a large model minutes. With 64 possible sizes one does not try them all. Sizes are ordered: if one fits, so do all smaller
ones. One try in the middle rules out half.

**Your task: `largest_that_fits(fits, most)`.** `fits(size)` returns True or False; if it is True for a size, it is True for all smaller ones.
`most` is the largest size of interest, 1 or more. Return the largest size from 1 to `most` that fits, as an int, or 0 if not even 1 does.

Call `fits` only with whole numbers from 1 to `most`, with none of them twice. Halve what is left at each try: for `most` = 64, seven tries are
enough, whatever the answer is. (The check allows one more.)

Example: `most` = 8, and sizes up to 5 fit. Of 1 to 8, try 4: yes. Of 5 to 8, try 6: no. Try 5: yes. The answer is 5, after three tries.
"""

# %% exercise="13.1"
from lessons_lib.measuring.tuning import largest_that_fits

# %% tags=["measured"]
tries = []


def fits(size):
    tries.append([str(size), "yes" if engine_fits(model, tokenizer, size, CONTEXT, LIMIT) else "no"])
    return tries[-1][1] == "yes"


found = largest_that_fits(fits, 64)
display(Table(columns=["sequences", "fits"], rows=tries))
print(f"largest batch: {found}; by the formula {LIMIT // per_sequence}")

# %% [markdown]
"""
The formula promised far more than fits. An engine with that size would start, serve for hours, and fail on the day when all its places are taken.


### The block size
What a block size costs can be counted from a workload, without running it: blocks, empty places at the ends, the length of the longest table, and
how many prompt tokens a newcomer finds in the cache. Here with forty requests that begin with the same instructions.
"""

# %%
INSTRUCTIONS = (
    "Here is a story for small children. It is short, it is kind, and nobody is hurt in it. The words are easy. "
    "There is one problem, and in the end the friends find out what to do about it. "
)
forty = skewed_workload(40)
prompts = [tokenizer(INSTRUCTIONS + prompt).input_ids for prompt in forty.prompts]
costs = block_size_costs(prompts, forty.max_new_tokens, (1, 4, 8, 16, 32, 64, 128))
Table(
    columns=["block size", "blocks", "empty places", "longest table", "prompt tokens found"],
    rows=[[str(cost.block_size), cost.blocks, f"{cost.empty_share:.0%}", cost.table_entries, cost.shareable_tokens] for cost in costs],
    caption=f"Forty requests, {sum(map(len, prompts)):,} prompt tokens; their common beginning has {len(tokenizer(INSTRUCTIONS).input_ids)}",
)

# %% [markdown]
"""
Small blocks waste nothing and find most. Large ones make short tables, and a kernel reads long pieces at once (lesson 08); swapping moves fewer
pieces (lesson 10). At sixteen the waste is still small, and most of the beginning is found. (The six stories come round again, so more
is found than the instructions alone.) With blocks of 64 and more, this workload finds little: its common beginning is shorter than such a block.

Changing the block size of a running engine is another matter. Slots are block number × block size + offset, so every key lies in the wrong place:
the cache has to be made anew. All blocks lose their names, since a name stands for the tokens of a block of that size. On a GPU all graphs must be
captured again. So one *drains* the engine first: no new requests, wait until the last one ends, then start a new engine.


## Measure: other engines

On the GPU, the same benchmark as above, and what other engines reached on such a machine:
"""

# %%
everybody = {**recording.peers, "this engine": speeds[last]}
draw_bars(everybody, "tokens/s", title="The same benchmark on one H200", note=recording.peers_provenance, own=["this engine"])

# %% [markdown]
"""
Read this with care. The model is small and every answer is greedy, so the CPU's work for each step decides, and our engine does little else. vLLM
does more in a step, for more kinds of models and requests, and its figures are from other runs.


## What production does

- The size of the cache is found by one run at startup: `determine_available_memory` in `vllm/v1/worker/gpu_worker.py` runs the largest step that
  may come, looks at the peak, and gives what is left of `gpu_memory_utilization` to blocks. One try is enough there, because the cache can have any
  size; `max_num_seqs` is set by hand.
- Graphs: `cudagraph_capture_sizes` and `cudagraph_mode` in `vllm/config/compilation.py`. Its usual mode cuts the model into pieces at the
  attention, as an operator that is not compiled; captures the pieces for mixed steps, and whole steps for decodes.
- **nano-vllm** has the graphs in `capture_cudagraph` and the run at startup in `warmup_model` and `allocate_kv_cache`, both in
  `nanovllm/engine/model_runner.py`.

## What is still wrong

**One machine, one process, no network.** Nobody outside this Python process can ask for anything: an HTTP server in front is missing.

## Quiz
"""

# %%
quiz("13")

# %% [markdown]
"""
## References

- PyTorch: CUDA graphs, <https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs>; custom operators,
  <https://docs.pytorch.org/tutorials/advanced/python_custom_ops.html>
"""
