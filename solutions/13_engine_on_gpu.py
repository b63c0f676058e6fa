# %% [markdown]
"""
# 13 · The engine on a GPU

**On a GPU, the model runs faster than the Python that drives it. How do we keep the GPU busy?**

90 minutes · difficulty: hard · routes: kernels · prerequisites: lesson 08 (fast kernels, CUDA graphs); lessons
09, 10 and 12 (scheduler, preemption, engine) help

You don't need a GPU for this lesson. The engine also runs on a CPU, where you can check that not a single token
changes. You write the store of the graphs, the placeholders for tokens that aren't known yet, and the loop whose steps
overlap.
"""

# %%
import time
from functools import partial
from unittest.mock import patch

import torch

from lessons_lib.batching import generate_one_by_one
from lessons_lib.checks import check, hint, predict, progress, quiz, reveal, solution
from lessons_lib.engine import (
    GPUModelRunner,
    GraphKey,
    GreedyLoop,
    captured_batch_sizes,
    next_size,
    rerun,
    serve_greedily,
)
from lessons_lib.engine.cuda_graphs import CudaCapture
from lessons_lib.kv_cache import PrefixCache
from lessons_lib.measuring import MAX_NEW_TOKENS, PROMPTS, STORIES, recorded_engine
from lessons_lib.models import load_model
from lessons_lib.recording.thread_device import ThreadDevice
from lessons_lib.scheduling import PreemptiveScheduler, SchedulerOutput, Sequence
from lessons_lib.viz.charts import draw_bars
from lessons_lib.viz.source import show_source
from lessons_lib.viz.tables import Table

model, tokenizer = load_model(device="cpu")  # float32, so answers can be compared token for token
prompt_ids = {story.name: tokenizer(story.prompt).input_ids for story in STORIES}
END = tokenizer.eos_token_id

# %% [markdown]
"""
## The problem: the GPU waits for the CPU

Here is one decode step of 256 requests, on a model of half a billion parameters and an H200. It launches about a
thousand kernels, one after another. For each launch the CPU needs about 20 µs, in Python and PyTorch. For each kernel
the GPU needs about 4 µs.

**Guess first:** For what share of the step does the GPU compute? And how many times faster could the step be if
launching cost nothing?

Below is a recorded run: 256 requests arrive at the start, and the batch shrinks as they finish. So the whole run has
fewer tokens/s than its full steps. Each bar adds what its name says to the bar above.
"""

# %%
recording = recorded_engine()
speeds = {mode["name"]: mode["tokens_per_s"] for mode in recording.modes}
last = recording.modes[-1]["name"]
draw_bars(
    speeds,
    "tokens/s",
    title="Output tokens a second, 256 requests, a model of half a billion parameters",
    note=recording.provenance,
    own=[last],
)

# %%
graphs, compiled = (f"{recording.modes[mode]['warm_up_s']:.0f} s" for mode in (1, 2))
PARTS = {"whole step": "all", "CPU work": "own", "launching alone": "launch", "waiting for the GPU": "wait"}
Table(
    columns=["milliseconds", *PARTS],
    rows=[[mode["name"], *(f"{mode['decode_ms'][part]:.2f}" for part in PARTS.values())] for mode in recording.modes],
    caption=f"One step of {recording.modes[-1]['decode_ms']['running']} decodes, median; the same recorded run. "
    f"Launching is part of the CPU's work; work and waiting make up the step. "
    f"Ready after {graphs} with graphs, {compiled} if compiled",
)

# %% [markdown]
"""
In the first row nearly the whole step is launching. The second row runs the same kernels in at most 4.9 ms, so in the
first the GPU computes for about a fifth of the step. In the second, launching takes less than half a millisecond, and
now the CPU waits for the GPU. The step is 4.6 times as fast, close to the factor of 5 (20 µs / 4 µs) that free launches
would give. With overlap, the CPU works while the GPU computes. The last row is the whole engine, with requests,
sampling parameters and metrics instead of a bare scheduler. Its CPU work takes 0.4 ms more, but the step takes the same
time: the extra work is hidden behind the GPU. From the first bar to the last, the engine became 12 times as fast.

(The CPU's times vary from run to run. In the third row even its work without launching takes longer, and compilation
doesn't touch that.)

## The idea

```
launched one by one
  CPU  │ schedule │ launch launch launch launch launch launch │ tokens │ schedule │ …
  GPU  │          │ k1     k2     k3     k4     k5     k6     │        │          │ …

CUDA graphs
  CPU  │ schedule │ replay │ wait              │ tokens │ schedule │ replay │ …
  GPU  │          │        │ k1 k2 k3 k4 k5 k6 │        │          │        │ …

overlapped
  CPU  │ schedule 2 │ replay 2 │ wait │ tokens 1 │ schedule 3 │ replay 3 │ wait │ …
  GPU  │ step 1                       │ step 2                                  │ …
```

- **CUDA graphs** replace about a thousand launches with a single one.
- **Compilation** fuses small operations, so there are fewer kernels to run.
- **Tokens kept on the device**: the next step reads its input tokens on the GPU, where the last step wrote them.
- **Overlap**: schedule and launch the next step, then process the results of the previous one.

## CUDA graphs

Lesson 08 introduced the term: a recording of GPU work that is replayed with a single launch. The engine captures one
graph for each of its *captured batch sizes*. A graph has fixed shapes, so a step that consists of decodes only is
padded to the next of these sizes. Steps with prompts have graphs of their own, for a few token counts ("Further").

> **null block**: a block of the cache that belongs to no sequence. Padding writes its keys and values there, and no
> real sequence reads them.
"""

# %%
sizes = captured_batch_sizes(256)
print("captured batch sizes:", sizes[:8], "…", sizes[-1])
print("37 decodes are padded to", next_size(37, sizes))

# %% [markdown]
"""
A graph doesn't hold tensors, only addresses. If a weight, the cache or an input has been moved since the capture, a
replay still reads and writes the old addresses, and no error is raised. ([Reported for
SGLang](https://github.com/sgl-project/sglang/pull/27140): around a weight update, state buffers of a model got new
memory. The graphs didn't know, and the text was garbled.)

You can see it without a GPU. In place of a capture, `rerun` holds on to the tensors of the first run, as a graph holds
on to their addresses. It returns a function that replays the step, and the tensor that a replay writes to.

Below, the inputs change in place, and the weight is replaced by another tensor. **Guess first:** what will the replay
return?
"""

# %%
inputs, weight = torch.tensor([10.0, 20.0]), torch.tensor([1.0, 2.0])
replay, output = rerun(partial(torch.mul, inputs, weight))
inputs += 1  # new values at the same address
weight = torch.tensor([100.0, 200.0])  # new weights at another address
replay()
print("right:", (inputs * weight).tolist(), "| replayed:", output.tolist())

# %% [markdown]
"""
The replay read the new inputs, but the old weight.

> **graph key**: everything that a graph depends on, as it was at its capture. The engine computes the key again
> before each step, and replays the graph only if the key is still the same. Otherwise it captures the step again.

### Predict

The sizes 4, 8 and 16 are captured, each when it is first needed. There are steps of 3, 7, 5 and 12 decodes. Then all
weights get new addresses, and three more steps have 6, 5 and 2 decodes.

**13.a** How many captures are there in total?
"""

# %%
predict("13.a", ...)  # captures

# %% [markdown]
"""
## Build: graphs that are never stale

**Exercise 13.1: the class `GraphStore`.** It keeps one graph for each size of a batch. `__init__` and `has` are given.
Write `key_of` and `run`; their docstrings say what they get and return.

`key_of` decides what your graphs depend on:

- Keys must differ whenever a replay would do something other than the step. An input may get other memory, or be
  replaced by another tensor, even by one of another shape, with other strides or of another dtype at the same address.
  Of a weight, only the memory can change. `settings` are new objects at each call: compare them as values.
- A changed *value* at the same address is no reason to capture again: a replay reads it.

`run` captures and replays:

- `self.capture(step)` returns the pair (`replay`, `output`). A capture computes nothing: `replay()` does, and writes to
  `output`. So `run` always returns the output of a replay. `self.num_captured` counts the captures that succeeded.
- A new graph takes the place of the old one of its size, and of no other. As long as the store has a graph, it has to
  hold on to what `keeps()` returned at its capture, and no longer. (Once a tensor is freed, a new one may get the same
  `id` and the same address. Then the old key would fit by accident.)
- An error in a capture goes on to the caller. The next call must not find a graph that was never captured.

`tensor.data_ptr()` is a tensor's address, and `id(tensor)` tells one object from another.
`Graph(key, keeps, replay, output)` is a dataclass for what the store has of a graph.

Example: `run(2, "A", step, keeps)` on a new store captures and replays. A second such call only replays.
`run(2, "B", step, keeps)` captures again, and drops the graph of "A".
"""

# %% exercise="13.1" given="__init__ has"
from collections.abc import Callable, Hashable
from typing import Any

from lessons_lib.engine.cuda_graphs import Capture, Graph, Step

from lessons_lib.engine.cuda_graphs import GraphStore

# %% [markdown]
"""
On a GPU the store gets the `capture` below instead of `rerun`. It runs the step twice to warm up (harmless: a replay
writes the same values again), records it in a graph, and returns what starts the graph and the tensor that it writes
to. All graphs share one memory pool, so an output is valid only until the next replay:
"""

# %%
show_source(CudaCapture.__call__)

# %% [markdown]
"""
Now the steps of your prediction, with your store:
"""

# %%
store = GraphStore(rerun)
if torch.cuda.is_available():  # then your store captures real graphs
    store, inputs, weight = GraphStore(CudaCapture()), inputs.cuda(), weight.cuda()


def run_decodes(*steps):
    key = store.key_of([inputs], [weight], ())
    for num_seqs in steps:
        store.run(next_size(num_seqs, [4, 8, 16]), key, partial(torch.mul, inputs, weight), lambda: (inputs, weight))


run_decodes(3, 7, 5, 12)
weight = weight.clone()
run_decodes(6, 5, 2)
reveal("13.a", store.num_captured, unit="captures")

# %% [markdown]
"""
At first each of the three sizes is captured once. After the change two of them are captured again, when a step needs
them. No step needs the stale graph of 16, but it still holds the old weights, and so their memory. An engine that
replaces a large cache should drop all its graphs first.

## Tokens kept on the device

The token that this step produces is the input of the next one. The next step can read it on the GPU, without a round
trip through the CPU. But the CPU builds the packed batch, and it doesn't know the token yet. So it writes a
placeholder.

> **step in flight**: a step that has been launched, and whose tokens the CPU hasn't read yet.

> **placeholder**: a stand-in for a token that the step in flight will produce. The sequence only counts it, in
> `num_placeholders`. In the packed batch it is the value −1 − *i*: the token of sequence *i* of that step. On the GPU
> it is replaced by the token itself.

## Build: tokens that aren't known yet

**Exercise 13.2: `next_tokens(scheduler_output, previous_rows)`.** The *scheduler output* says what a step computes
(lesson 09): `num_scheduled_tokens` is a dict sequence → count, in the order of the packed row. Return the ids of these
tokens as one list: for each sequence, its next `count` tokens.

A sequence's tokens are its `prompt_ids`, then its `output_ids`. `num_computed_tokens` of them are in the cache, or will
be once the step in flight has ended. If that step is about to produce a token for it, that token comes last, and a
placeholder stands for it. `previous_rows` maps *every* sequence of the step in flight to its index *i* there. Don't
change any sequence.

A sequence may start its prompt in this step, go on with it, or decode. Or it was *preempted* (lesson 10): when blocks
ran out, it lost its batch slot and its blocks. Now it computes its prompt and output again.

Example: `new` has the prompt 11, 12, 13, of which two tokens are scheduled. `old` has the prompt 21, 22 and the output
31, all three computed, one placeholder, and index 4 in the step in flight. The result is `[11, 12, -5]`.
"""

# %% exercise="13.2"
from collections.abc import Mapping

from lessons_lib.engine.input_batch import next_tokens

# %% [markdown]
"""
The step in flight computes A, B and C, in this order. A decodes. B has the prompt 3, 4, 5, 6, 7, 8, and the step
computes its first four tokens. C's prompt ends in this step. The next step computes C, B and A, in this order: two
tokens of B, one each of C and A. **Guess first:** which four ids does the CPU write?
"""

# %%
from lessons_lib.attention.custom_op import replace_placeholders

in_flight = [
    Sequence("A", [1, 2], 9, output_ids=[10], num_computed_tokens=3, num_placeholders=1),
    Sequence("B", [3, 4, 5, 6, 7, 8], 9, num_computed_tokens=4),
    Sequence("C", [9, 9], 9, num_computed_tokens=2, num_placeholders=1),
]
a, b, c = in_flight
host_ids = next_tokens(
    SchedulerOutput({c: 1, b: 2, a: 1}), {sequence: index for index, sequence in enumerate(in_flight)}
)
print("on the CPU:", host_ids)
previous_tokens = torch.tensor([100, 0, 300])  # A's and C's new tokens; B gets none
print("on the device:", replace_placeholders(torch.tensor(host_ids), previous_tokens).tolist())

# %% [markdown]
"""
C has index 2 in the step in flight, so its token is −1 − 2 = −3. Where C is in the *next* step doesn't matter. B is in
the step in flight too, but its tokens are known.

The second line is the GPU's half: `replace_placeholders` runs inside the graph. (It's an exercise under "Further".)

## Steps that overlap

Placeholders also make overlap possible. Scheduling the next step doesn't require knowing *which* token a sequence gets,
only that it gets one. If it turns out to be the end token, one token too many is computed for that sequence, and
thrown away. (A limit on the number of tokens wastes none: the CPU knows in advance which token is the last.) Its blocks
are free by then, and the step in flight may still write to them. That does no harm: the GPU runs launches in order, so
whatever the next owner writes comes later.

A preempted sequence is recomputed from its tokens, so all of them must be known. If the next step preempts one that has
a placeholder, the loop first waits for the step in flight.

### Build: one turn of the loop

**Exercise 13.3: `overlapped_step(loop)`.** It launches the next step, if there is something to compute, and then
processes those that were in flight. It returns nothing. `loop` has:

| | |
|---|---|
| `loop.depth` | how many steps may stay in flight when you return: 1 on a GPU, 0 in lesson 12's engine |
| `loop.in_flight` | a deque of the steps that have been launched and not processed, oldest first. You append to it |
| `loop.schedule()` | returns the scheduler output of the next step. `preempted` lists the sequences that have lost their blocks for it |
| `loop.launch(scheduler_output)` | starts the step, without waiting for it. Its tokens count as computed, and each sequence that gets a token has one more placeholder. Returns the step, or None if there is nothing to compute |
| `loop.process(depth)` | waits for the tokens of all steps in flight but the last `depth`, and gives them to their sequences, in place of the placeholders |
| `loop.host_must_see_tokens()` | whether the next step can't be scheduled before all tokens are known |

- The device must never wait for the CPU to read tokens, unless they must be known.
- Tokens that are processed after the next step was scheduled may end sequences in it. Then
  `scheduler_output.drop_finished()` leaves them out.

Example: a request gets three tokens, and `depth` is 1. The first call launches step 1. The second launches step 2 and
reads the token of step 1, the third launches step 3 and reads that of step 2. The fourth has nothing to launch; it
reads the last token.
"""

# %% exercise="13.3"
from typing import Any

from lessons_lib.engine.core import overlapped_step

# %% [markdown]
"""
### Measure: steps that overlap

Here is your loop on a device that is a thread. For each step the CPU works 20 ms (it schedules and launches), and the
device 30 ms. Two requests get 10 tokens each, so there are 10 steps. One after the other, they take 10 × 50 = 500 ms.

**13.b** How many milliseconds pass from the beginning to the last token if the steps overlap? Draw the lines of CPU and
device, as above. Then guess what a device with 15 ms for each step would change.
"""

# %%
predict("13.b", ...)  # milliseconds

# %% tags=["measured"]
def serve(device):
    """Two requests with 10 tokens each. Returns the milliseconds."""
    scheduler = PreemptiveScheduler(PrefixCache(32, 16), max_num_seqs=2, max_num_batched_tokens=8)
    for name in "AB":
        scheduler.add(Sequence(name, [5], 10))
    loop, started = GreedyLoop(scheduler, device, depth=1), time.perf_counter()
    while scheduler.has_unfinished():
        overlapped_step(loop)
    return 1000 * (time.perf_counter() - started)


slow, fast = ThreadDevice(cpu_ms=20, device_ms=30), ThreadDevice(cpu_ms=20, device_ms=15)
times = [serve(slow), serve(fast)]
reveal("13.b", times[0], unit="ms", tolerance=0.05)
slow.draw()
print(f"with a device twice as fast: {times[1]:.0f} ms")
fast.draw()

# %% [markdown]
"""
Each digit is 5 ms of a step, and a dot is 5 ms of waiting. Only the first launch has nothing to overlap with:
20 + 10 × 30 = 320 ms. With a device twice as fast, the CPU is the slower side: 10 × 20 + 15 = 215 ms (more on a busy
machine), and the device waits at least a quarter of the time. So an overlapped step takes as long as the *slower* of
the two.

### Break it: one look at a value

While you look for a bug, you add `print(logits.max().item())` right after the launch of a step. `item` needs the value
on the CPU, so it waits until the GPU has computed it. Your loop stays as it is. **Guess first:** how long do the ten
steps take now on the faster device, the one with 15 ms?
"""

# %% tags=["measured"]
class PeekingDevice(ThreadDevice):
    def forward(self, scheduler_output):
        logits = super().forward(scheduler_output)
        self.computed.result()  # what `item` does
        return logits


peeking = PeekingDevice(cpu_ms=20, device_ms=15)
print(f"with a look at each step: {serve(peeking):.0f} ms")
peeking.draw()

# %% [markdown]
"""
All of the overlap is lost: 10 × (20 + 15) = 350 ms, though your loop still launches before it reads. On a GPU an `if`
on a tensor, `tolist()` and an index with a mask wait in the same way. A capture refuses them. Anywhere else they cost
time without an error (unless you ask for one, with `torch.cuda.set_sync_debug_mode("error")`).

### Decide: what next?

Back to the table at the top. In its last row the CPU still waits for the GPU in each step. You have time for one
project: kernels that take half the time, or Python code that takes half the time. **Guess first:** which one, and how
many times as fast does it make the step?
"""

# %%
cpu, gpu = (recording.modes[-1]["decode_ms"][part] for part in ("own", "all"))  # the GPU computes during the whole step
for project, cpu_ms, gpu_ms in (
    ("as recorded", cpu, gpu),
    ("the CPU's work halved", cpu / 2, gpu),
    ("the kernels twice as fast", cpu, gpu / 2),
    ("both", cpu / 2, gpu / 2),
):
    step_ms = max(cpu_ms, gpu_ms)
    faster = f"{gpu / step_ms:.1f} times as fast"
    print(f"{project:26} CPU {cpu_ms:.2f} ms, GPU {gpu_ms:.2f} ms: step {step_ms:.2f} ms, {faster}")

# %% [markdown]
"""
Halving the CPU's work changes nothing, because it's hidden. Faster kernels do help, but not by a factor of two: the CPU
becomes the limit again. On a larger model the kernels take longer, and the CPU matters less.
"""

# %% [markdown]
"""
## Prove it

All four ideas are in `GPUModelRunner` and your loop. Here all but compilation run on the CPU, with `rerun` in
place of the capture. That's no faster, but the answers must be the same as when each request runs alone.

`patch` puts your two functions in the place of the library's, and the runner gets your store.
"""

# %%
alone = generate_one_by_one(model, tokenizer, PROMPTS, max_new_tokens=MAX_NEW_TOKENS)


def serve_stories(next_tokens):
    """Serve the six stories with your store and your loop.

    Returns:
        the tokens of each story, how many captures there were, the graphs' sizes, and how many blocks are in use.
    """
    runner = GPUModelRunner(model, 32, 16, max_num_seqs=4, max_model_len=192, compiled=False, capture=rerun)
    runner.store = GraphStore(rerun)
    scheduler = PreemptiveScheduler(PrefixCache(32, 16), max_num_seqs=4, max_num_batched_tokens=64)
    stories = [
        Sequence(s.name, prompt_ids[s.name], s.max_new_tokens, frozenset({END}), arrival_time=i)
        for i, s in enumerate(STORIES)
    ]
    with (
        patch("lessons_lib.engine.input_batch.next_tokens", next_tokens),
        patch("lessons_lib.engine.greedy_loop.overlapped_step", overlapped_step),
    ):
        answers = serve_greedily(runner, scheduler, stories, depth=1)
    graph_sizes = list(runner.store.graphs)
    runner.close()
    return answers, runner.store.num_captured, graph_sizes, len(scheduler.pool.used)


overlapped, captures, graph_sizes, in_use = serve_stories(next_tokens)
print(f"the same tokens as one at a time: {overlapped == alone}; blocks in use: {in_use}")
print(f"captures: {captures}; graphs:", *graph_sizes, sep="\n    ")
print("tokens of each story:", {story.name: len(tokens) for story, tokens in zip(STORIES, overlapped)})

# %% [markdown]
"""
Every step of the six stories was a replay of one of these graphs: two for steps with prompts, padded to 16 or 64
tokens, and two for decodes only. ("Further" counts the launches that this saves.)

Here each token was an `argmax`, which the GPU can compute. A token that is *drawn* has to be drawn there as well: if
the CPU had to look at the logits first, it couldn't launch the next step before this one is done. "Further" has that
draw as an exercise, then an engine of all your parts, and a comparison with vLLM.

### Break it: whose token?

What if `next_tokens` used a sequence's index in the *new* step, instead of the step in flight? No error is raised, and
as long as no request leaves, the two are the same.

Four stories run at a time, A, B, C and D first. When one leaves, those after it move up, and the next story comes last.
The number of tokens that each gets is printed above. **Guess first:** which of the six stories come out right?
"""

# %%
def with_new_index(scheduler_output, previous_rows):
    new_rows = {sequence: row for row, sequence in enumerate(scheduler_output.num_scheduled_tokens)}
    return next_tokens(scheduler_output, new_rows)


rows = []
for story, tokens, right in zip(STORIES, serve_stories(with_new_index)[0], alone):
    wrong = next((i for i, (token, other) in enumerate(zip(tokens, right)) if token != other), None)
    texts = [tokenizer.decode(each[wrong - 6 : wrong + 6]) if wrong else "" for each in (right, tokens)]
    rows.append([story.name, "–" if wrong is None else wrong + 1, *(repr(text)[1:-1] for text in texts)])
print(f"A ends with {tokenizer.decode(alone[0][-1:])!r}")
Table(columns=["story", "first wrong token", "right", "with the new index"], rows=rows)

# %% [markdown]
"""
Only A and D are right. D leaves first, but it's the last in the batch, so no other moves. When A leaves, B, C and E
move up, and for one step the model computes each of them with the last token of the story before it. B gets A's: that's
where its "to" comes from. When B leaves, F goes wrong too. One step later the indices agree again, and the stories go
on from the wrong word, mostly fluently. A test whose requests all start and end together can't find this.

## What is still wrong

**No server.** Requests come only from this Python process. Lesson 14 puts an HTTP server in front.

**Large steps aren't captured.** A step with more than 2,048 tokens is launched kernel by kernel. The more the GPU has
to do in it, the less that matters.

**Overlap has exceptions.** Where the CPU must see the logits or the last token (log-probabilities are asked for, or a
penalty), or where a sequence is preempted, the engine waits for its tokens.

**One GPU.** If it fails, all requests are lost. Lesson 15 adds others.

## Quiz
"""

# %%
quiz("13")

# %% [markdown]
"""
## References

- PyTorch: CUDA graphs, <https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs>; custom operators,
  <https://docs.pytorch.org/tutorials/advanced/python_custom_ops.html>
- mini-sglang. <https://github.com/sgl-project/mini-sglang>
- nano-vllm. <https://github.com/GeeeekExplorer/nano-vllm>
- vLLM: architecture. <https://docs.vllm.ai/en/latest/design/arch_overview.html>
"""

# %% [markdown] folded=true
"""
## Further (optional)

What the lesson doesn't need. It isn't part of its 90 minutes.
"""

# %%
import math
import random
from dataclasses import replace

from IPython.display import display

from lessons_lib.attention import attend_paged, write_kv
from lessons_lib.checks.my_engine import my_engine
from lessons_lib.engine import BlockTables, EngineConfig, JoinedLinear, LLMEngine, SamplingParams, captured_token_counts, forward_batch
from lessons_lib.measuring import block_size_costs, engine_fits, padding, recorded_workloads, skewed_workload, tokens_of_steps
from lessons_lib.measuring.memory_limit import memory_limit
from lessons_lib.measuring.operations import CountOperations
from lessons_lib.models import cache_bytes_per_token

# %% [markdown]
"""
### Optional: placeholders on the GPU

**Exercise 13.4: `replace_placeholders(input_ids, previous_tokens)`.** `input_ids` is what the CPU wrote, int64 [T].
`previous_tokens` holds the tokens of the step in flight, int64 [as many as that step has sequences, or more]. Return a
new tensor, int64 [T], in which each negative id −1 − *i* is replaced by `previous_tokens[i]`.

This runs inside the graph. A graph has fixed shapes, and no value may go to the CPU. So there can be no loop over the
ids, no `if` that looks at them, and no indexing with a mask, since the number of selected ids would be a shape.

Example: for the ids `[5, -2, -1]` and the tokens `[70, 80, 90]`, the result is `[5, 80, 70]`.
"""

# %% exercise="13.4"
from torch import Tensor

from lessons_lib.attention.custom_op import replace_placeholders

# %% [markdown]
"""
### Optional: drawing on the device

In "Prove it" each token was an `argmax`. For requests that aren't greedy, the GPU has to draw.

Lesson 12's race needs no order, no sums and no state: each token of a row gets a time, −log(1 − *u*) divided by the
token's weight exp(logit / temperature), and the smallest time wins. The number *u* is a hash of the request's seed, the
position in its answer, and the token's id. Requests without top-k, top-p and min_p need nothing else.

**Exercise 13.7: `draw_on_device(logits, temperature, seeds, positions)`**, for N rows at once. Return int64 [N].

- `logits` [N, vocabulary] are of any floating-point dtype, and may be large. A token whose logit is −inf must not be
  drawn.
- `temperature`, float32 [N]: where it is above 0, each token is drawn with the probability that
  `softmax(logits / temperature)` gives it. Where it is 0, the token with the largest logit is returned.
- `seeds` and `positions`, int64 [N], are all that a draw depends on, apart from its row's logits and temperature. A
  request gets the same token in any batch, in any row.
- `random_numbers(seeds, positions, tokens)` returns the numbers *u*, float32, strictly between 0 and 1. The smallest is
  about 10⁻¹⁰. Its arguments are int64 tensors whose shapes broadcast.
- No value may go to the CPU: what holds for `replace_placeholders` holds here. The number of launches must not grow
  with N, and nothing may be sorted.

Example: for the logits `[[0, 5, 1]]`, the result at temperature 0 is `[1]`. At temperature 1 it is `[1]` for 98% of all
positions.
"""

# %% exercise="13.7"
from lessons_lib.engine import random_numbers

from lessons_lib.engine.plain_sampling import draw_on_device

# %% [markdown]
"""
Three requests at once, in 20,000 positions of their answers: how often is each token drawn, and how often should it be?
"""

# %%
POSITIONS = 20_000
three = torch.tensor([[2.0, 1.0, 0.0], [2.0, 1.0, 0.0], [1000.0, 999.0, float("-inf")]])
temperatures, seeds = torch.tensor([1.0, 0.0, 2.0]), torch.tensor([7, 7, 8])
every = [each.repeat_interleave(POSITIONS, dim=0) for each in (three, temperatures, seeds)]
drawn = draw_on_device(*every, torch.arange(POSITIONS).repeat(3)).view(3, POSITIONS)
rows = []
for tokens, logits, temperature in zip(drawn, three, temperatures.tolist()):
    wanted = (logits / temperature).softmax(dim=-1) if temperature else torch.eye(3)[logits.argmax()]
    rows.append([str(logits.tolist()), f"{temperature:g}", *("  ".join(f"{share:.3f}" for share in shares) for shares in (tokens.bincount(minlength=3) / POSITIONS, wanted))])
Table(columns=["logits", "temperature", "drawn", "softmax"], rows=rows)

# %% [markdown]
"""
And here is one request, alone and then in the last row of a batch with 63 others. Its draws must not change:
"""

# %%
generator = torch.Generator().manual_seed(0)
batch = 3 * torch.randn(64, 4096, generator=generator)
their_seeds, their_positions = torch.randint(0, 1000, (2, 64), generator=generator)
hot = torch.full((64,), 0.9)
print("alone:    ", draw_on_device(batch[63:], hot[63:], their_seeds[63:], their_positions[63:]).tolist())
print("with 63:  ", draw_on_device(batch, hot, their_seeds, their_positions)[63:].tolist())

# %% [markdown]
"""
The stories above were greedy. For drawn tokens there is `my_engine` (lesson 12). With `overlap` it builds an engine
whose steps overlap, and takes all your answers: those of this lesson and of the lessons before. It has to draw the same
tokens as lesson 12's engine, which runs one step after the other. (If your draw isn't lesson 12's race, it may be just
as right, but other texts come out.)
"""

# %%
small = EngineConfig(max_num_seqs=4, num_blocks=64, max_num_batched_tokens=64, max_model_len=192)
sampled = SamplingParams(temperature=0.8, seed=1, max_tokens=30)
yours, reference = my_engine(model, tokenizer, replace(small, overlap=True)), LLMEngine(model, tokenizer, small)
texts = [[output.text for output in engine.generate(PROMPTS, sampled)] for engine in (yours, reference)]
print("the same texts:", texts[0] == texts[1])
print(PROMPTS[0] + texts[0][0].replace("\n", " "), "…")
Table(columns=yours.parts.columns, rows=[row for row in yours.parts.rows if row[0].startswith("13")])

# %% [markdown]
"""
### What a draw launches
"""


# %%
def launches_of(function, *inputs):
    with CountOperations() as operations:
        function(*inputs)
    return operations.count


print("random_numbers:", launches_of(random_numbers, their_seeds[:, None], their_positions[:, None], torch.arange(4096)))

# %% [markdown]
"""
**13.c** How many operations does your draw start for these 64 rows, those of `random_numbers` included? Count them in
your code. Views, such as `seeds[:, None]`, start none.
"""

# %%
predict("13.c", ...)  # operations

# %%
of_all = launches_of(draw_on_device, batch, hot, their_seeds, their_positions)
of_one = launches_of(draw_on_device, batch[:1], hot[:1], their_seeds[:1], their_positions[:1])
reveal("13.c", of_all, unit="operations", tolerance=0.1)
print(f"64 rows: {of_all}; one row: {of_one}; 64 rows one by one would be {64 * of_one:,}")

# %% [markdown]
"""
### Other engines

vLLM was timed next to this engine, in one run on one machine:
"""

# %%
NANO, both = "Qwen2.5-0.5B: nano-vllm, greedy", recorded_workloads()
ours = both.best[NANO]
theirs = both.peers[NANO]
print(f"vLLM {theirs:,.0f} tokens/s, this engine {ours:,.0f}: {ours / theirs:.1f} times as many")
print(both.peers_provenance)

# %% [markdown]
"""
By default vLLM overlaps its steps, too (*async scheduling*), and none of the settings above turns that off. Still, read
this with care: the model is small and all sampling is greedy, so the CPU's work counts more than usual. vLLM does more
in a step, for more kinds of models and requests, and it ran in one process, which is its slower mode (see the two bars
below). The requests aren't those of the first chart.

The benchmark of the first chart with other engines was recorded on the same kind of GPU, but in other runs, so only
large differences mean something:
"""

# %%
engines = {**recording.peers, "this engine": speeds[last]}
draw_bars(engines, "tokens/s", title="Output tokens a second on one H200 each, in several runs", note=recording.peers_provenance, own=["this engine"])

# %% [markdown]
"""
### Padding

A CUDA graph has fixed shapes, so it serves one batch size. Each capture takes time and memory, so only some sizes are
captured: 2, 4, 8, and every multiple of 16. A step with 37 decodes is padded to 48.

As requests finish, the batch shrinks from 48 decodes to 33, one fewer at each step. That is 16 steps.

**13.d** How many padding decodes do these 16 steps compute in total?
"""

# %%
predict("13.d", ...)  # decodes

# %%
reveal("13.d", sum(next_size(num_seqs, sizes) - num_seqs for num_seqs in range(33, 49)), unit="decodes")

# %% [markdown]
"""
The padding runs from 0 decodes up to 15: 0 + 1 + … + 15 = 120, out of 16 × 48 = 768. More captured sizes would mean
less padding and a longer start.
"""

# %% [markdown] folded=true
"""
### A careless key

Here is your store, and a careless one, whose key says only how many sequences the batch has. One thing changes before
each row:
"""

# %%
state = {"inputs": torch.tensor([10.0, 20.0]), "cache": torch.tensor([1.0, 1.0]), "weight": torch.tensor([1.0, 2.0])}
careless, yours = GraphStore(rerun), GraphStore(rerun)
rows = []


def try_all(what):
    inputs, cache, weight = tensors = tuple(state.values())
    step = partial(torch.addcmul, cache, inputs, weight)  # cache + inputs × weight
    key = yours.key_of([inputs, cache], [weight], ())
    outputs = [step(), careless.run(2, "2 sequences", step), yours.run(2, key, step, lambda: tensors)]
    rows.append([what, *(str(output.tolist()) for output in outputs), careless.num_captured, yours.num_captured])


try_all("nothing yet")
state["inputs"] += 1
try_all("new values in the inputs")
for name in ("weight", "cache", "inputs"):
    state[name] = 2 * state[name]
    try_all(f"another tensor: {name}")
Table(columns=["what has changed", "right", "careless key", "your key", "captures: careless", "yours"], rows=rows)

# %% [markdown]
"""
### How many launches your store saves

How many launches does your store save? This is a decode step of the course's model without a graph:
"""

# %%
runner = GPUModelRunner(model, 32, 16, max_num_seqs=4, max_model_len=192, compiled=False, graphs=False)
four = [Sequence(name, [21, 22, 23], 9, output_ids=[24], num_computed_tokens=3, blocks=[block]) for block, name in enumerate("ABCD")]
with CountOperations() as one_by_one:
    runner.forward(SchedulerOutput(dict.fromkeys(four, 1)))
print("operations of a decode step, each of which is a launch:", one_by_one.count)

# %% [markdown]
"""
Now 60 decode steps: 20 with four sequences and 20 with three, which are padded to four. Then all weights get new
addresses, and 20 more steps have four sequences. A replay is one launch. A capture computes nothing, but the CPU goes
through all operations of the step: it takes as long as launching them, so count it the same. (Leave out the runs that
warm it up.)

**13.e** By what factor does your store reduce the launches?
"""

# %%
predict("13.e", ...)  # times

# %%
store = GraphStore(rerun)
run_decodes(*[4] * 20, *[3] * 20)
weight = weight.clone()
run_decodes(*[4] * 20)
launches = store.num_captured * one_by_one.count + 60
print(f"one by one: {60 * one_by_one.count:,} launches; with your store: {store.num_captured} captures and 60 replays, {launches:,}")
reveal("13.e", 60 * one_by_one.count / launches, unit="times", tolerance=0.05)

# %% [markdown]
"""
Far less than the operations of a step would suggest: nine tenths of the launches that are left belong to the two
captures. So an engine captures before its first request, and a key that changes for nothing is expensive.
"""

# %% [markdown]
"""
### Steps with prompts

A step with a prompt in it, or with part of one, has another shape each time: so many sequences, so many tokens. If it
is launched kernel by kernel, the CPU needs the same many milliseconds as for any other step. And when requests are
short, nearly every step has a prompt: as soon as one request ends, the next one starts.

Padding helps here too, now in both directions. A graph has room for `max_num_seqs` sequences, and for one of a few
numbers of tokens: 16, 32, 64, every multiple of 128 up to 1,024, and every multiple of 256 up to 2,048. Larger steps
keep the GPU busy for so long that launching them doesn't matter.

The cell below packs a prompt of five tokens and two decodes, and pads them to 4 sequences and 16 tokens.
"""

# %%
new = Sequence("new", [11, 12, 13, 14, 15], 9, blocks=[0, 1])
older = [Sequence(name, [21, 22, 23], 9, output_ids=[24], num_computed_tokens=3, blocks=[block]) for name, block in (("a", 2), ("b", 3))]
step = SchedulerOutput({new: 5} | dict.fromkeys(older, 1))
padded = forward_batch(step, BlockTables(null_block=7, max_num_seqs=4, max_blocks=4), block_size=4, num_seqs=4, num_tokens=16)
for name in ("input_ids", "positions", "slot_mapping", "cu_seqlens_q", "context_lens"):
    print(f"{name:14}", getattr(padded, name).tolist())

# %% [markdown]
"""
The nine tokens of padding belong to no sequence: `cu_seqlens_q` ends at 7, not at 16. Their keys and values go to the
null block, which is block 7 here, so slot 28. The padding sequence has no token, and begins where it ends. Lesson 08's
kernels find their sequence in `cu_seqlens_q`, on the GPU. A program whose tokens belong to no sequence ends at once. So
one graph serves every step that fits into it.

An engine has `max_num_seqs` = 256. One of its steps has 255 decodes, and a prompt of 45 tokens.

**13.f** How many tokens of padding does this step compute?
"""

# %%
predict("13.f", ...)  # tokens

# %%
counts = captured_token_counts(2048)
print("captured numbers of tokens:", counts)
reveal("13.f", next_size(255 + 45, counts) - (255 + 45), unit="tokens")

# %% [markdown]
"""
The step has 300 tokens, and the next size is 384. The 84 tokens of padding cost the GPU little: it reads the same
weights for 300 tokens as for 384.

Here is what it changes for 1,024 requests whose prompts and answers have 10 to 200 tokens. Again, this is a recorded
run:
"""

# %%
workloads = recorded_workloads()
of_churn = {
    "only decodes from graphs": workloads.best["Qwen2.5-0.5B: churn, only decodes captured"],
    "steps with prompts too": workloads.best["Qwen2.5-0.5B: churn, 1,024 × 10–200 + 10–200"],
    "vLLM 0.26.0": workloads.peers["Qwen2.5-0.5B: churn, 1,024 × 10–200 + 10–200"],
}
print(f"{of_churn['steps with prompts too'] / of_churn['only decodes from graphs']:.1f} times as fast.\nvLLM: {workloads.peers_provenance}")
draw_bars(of_churn, "tokens/s", title="Output tokens a second, 1,024 short requests", note=workloads.provenance, own=["steps with prompts too"])

# %% [markdown]
"""
### What production does

- **vLLM**, graphs: `cudagraph_capture_sizes` and `cudagraph_mode` in `vllm/config/compilation.py`. By default the model
  is split at the attention operators, which aren't compiled. Steps with prompts replay a graph for each part, so any
  attention kernel will do; steps with only decodes replay a single graph of the whole step.
- **vLLM**, joined products: `QKVParallelLinear` and `MergedColumnParallelLinear` in
  `vllm/model_executor/layers/linear.py`.
- **vLLM**, overlap: `step_with_batch_queue` in `vllm/v1/engine/core.py` schedules the next batch before the last one is
  done. `AsyncScheduler` in `vllm/v1/core/sched/async_scheduler.py` counts placeholders for tokens that haven't arrived
  (`num_output_placeholders`).
- **vLLM**, memory: one run at startup finds the size of the cache. `determine_available_memory` in
  `vllm/v1/worker/gpu_worker.py` runs the largest step possible, measures the peak, and gives the rest of
  `gpu_memory_utilization` to blocks. One run is enough because the cache can have any size; `max_num_seqs` is set by
  hand.
- **vLLM**, drawing: `random_sample` in `vllm/v1/sample/ops/topk_topp_sampler.py` is a race as well. Its docstring says
  why: `torch.multinomial` makes the CPU wait for the GPU.
- **mini-sglang**: `overlap_loop` in `python/minisgl/scheduler/scheduler.py` is the loop of this lesson: schedule the
  next batch, launch it, then process the results of the last one.
- **nano-vllm** captures graphs in `capture_cudagraph`, and sizes the cache with a run at startup in `warmup_model` and
  `allocate_kv_cache`, all in `nanovllm/engine/model_runner.py`.
"""

# %% [markdown]
"""
### Compilation around two operators

`torch.compile` fuses many small operations into a few kernels. It would trip over our attention, whose launch depends
on lengths that change from step to step. So the cache write and the attention are declared as operators, which the
compiler treats as black boxes. An operator's schema lists its inputs and marks with "!" the tensors that it writes to.
For attention, a second function, registered with `register_fake` in `lessons_lib/attention/custom_op.py`, tells the
compiler the shape of the output.
"""

# %%
for operator in (write_kv, attend_paged):
    print(operator._opoverload._schema)

# %% [markdown]
"""
### Stretch: which sizes should be captured?

An engine has to choose before its first request which sizes it captures. Each captured size costs memory and time at
the start, so their number is limited. Which ones pad the steps of *your* requests the least? The cell below schedules
1,024 requests whose prompts and answers have 10 to 200 tokens, without a model, and counts how large the steps with
prompts are.
"""


# %%
def short_requests(seed):
    rng = random.Random(seed)
    return [(rng.randint(10, 200), rng.randint(10, 200)) for _ in range(1024)]


histogram = tokens_of_steps(short_requests(0))
engine_sizes = captured_token_counts(2048)
computed = sum(count * steps for count, steps in histogram.items())
shares = {f"the engine's {len(engine_sizes)} sizes": padding(histogram, engine_sizes) / computed}
print(
    f"{sum(histogram.values())} steps with {min(histogram)} to {max(histogram)} tokens, {computed:,} in all; padding: {next(iter(shares.values())):.1%}"
)

# %% [markdown]
"""
The best sizes depend on how often each number of tokens occurs.

Of twelve steps, ten have 100 tokens, one has 110 and one has 300. Two graphs may be captured.

**13.g** How many tokens of padding can't be avoided, over all twelve steps?
"""

# %%
predict("13.g", ...)  # tokens

# %% [markdown]
"""
**Exercise 13.5: `least_padding(histogram, max_graphs)`.** `histogram` is a dict: tokens of a step → how many steps have
so many. Return at most `max_graphs` sizes, as an ascending list of ints. The last one must have room for every step.
Each step is padded to the smallest size that has room for it. Make the sum of the padding of all steps as small as
possible. If several lists reach that, any of them will do. There may be hundreds of different numbers of tokens, and a
dozen graphs: too many choices to try them all.

Example: for `{1: 1, 2: 1, 10: 1}` and two graphs, the answer is `[2, 10]`: one token of padding. `[1, 10]` would pad
eight.
"""

# %% exercise="13.5"
import math
from itertools import accumulate

from lessons_lib.measuring.step_sizes import least_padding

# %%
twelve = {100: 10, 110: 1, 300: 1}
print("sizes:", least_padding(twelve, 2))
reveal("13.g", padding(twelve, least_padding(twelve, 2)), unit="tokens")

# %% [markdown]
"""
Ten steps of 100 tokens are padded to 110, ten tokens each. With 100 and 300 it would be a single step, but 190 tokens.

And this is the padding of the 1,024 requests:
"""

# %%
for max_graphs in (2, 4, 8, 15):
    shares[f"your {max_graphs}"] = padding(histogram, least_padding(histogram, max_graphs)) / computed
draw_bars(
    {name: 100 * share for name, share in shares.items()},
    "% padding",
    title="Padding of the steps with prompts, as a share of their tokens",
    note="Counted: 1,024 requests with prompts and answers of 10 to 200 tokens",
    own=[name for name in shares if name.startswith("your")],
)

# %% [markdown]
"""
Of the engine's sizes, this workload never uses the small ones. But sizes made for one workload may not suit another.
Below, the requests change and the captured sizes don't: first come other requests of the same kind, then times when
only 32 of them run at once.
"""

# %%
chosen = least_padding(histogram, len(engine_sizes))
others = {
    "the same requests": histogram,
    "others of the same kind": tokens_of_steps(short_requests(1)),
    "others, 32 at a time": tokens_of_steps(short_requests(1), max_num_seqs=32),
}
rows = []
for name, other in others.items():
    tokens = sum(count * steps for count, steps in other.items())
    choices = (engine_sizes, chosen, least_padding(other, len(engine_sizes)))
    rows.append([name, *(f"{padding(other, sizes) / tokens:.1%}" for sizes in choices)])
small = sum(steps for count, steps in other.items() if count < chosen[0])
print(f"your smallest size: {chosen[0]} tokens; {small / sum(other.values()):.0%} of the steps in the last row have fewer")
Table(columns=["padding", "the engine's sizes", f"your {len(chosen)}", "the least possible"], rows=rows)

# %% [markdown]
"""
For the requests that you chose them for, your sizes are far better than the engine's, and for similar ones too. But
when fewer requests run at a time, they are far worse: your smallest size is larger than most steps. That is why engines
come with sizes that suit many workloads, and let you choose your own.

Padding isn't lost time in proportion. As long as a step is short, reading the weights takes most of its time, with or
without padding.
"""

# %% [markdown]
"""
### How large can the batch be?

Graphs are captured and buffers are allocated before the first request arrives, so the engine must know its largest
batch, `max_num_seqs`, in advance. A larger batch serves more requests at once. Memory sets the limit, and the cache
takes most of it. So it's tempting to simply divide the memory by the cache of one sequence. Take sequences of 100
tokens, and 16 MiB of memory on top of the weights.
"""

# %%
LIMIT, CONTEXT = 16 * 2**20, 100
per_sequence = math.ceil(CONTEXT / 16) * 16 * cache_bytes_per_token(model.config, model.dtype.itemsize)
print(f"a sequence of {CONTEXT} tokens: {per_sequence:,} bytes of cache; {LIMIT:,} bytes hold {LIMIT // per_sequence} of them")

# %% [markdown]
"""
But a step needs memory of its own: the tensors between the layers, the gathered keys, the logits. Libraries allocate
workspaces, and fragmentation leaves gaps. No formula accounts for all of that. So we *try*: start an engine of a given
size, serve the worst case, and see whether memory runs out. On a GPU, an allocation fails. Here `memory_limit` counts
the bytes of all live tensors and raises the same kind of error. `engine_fits` makes one such try:
"""

# %%
show_source(engine_fits)

# %% [markdown]
"""
#### Build: the largest batch that fits

One try takes seconds, or minutes with a large model, so we don't want to try every size from 1 to 64. If one size
fits, all smaller ones do.

**Exercise 13.6: `largest_that_fits(fits, most)`.** `fits(size)` returns True or False. If it is True for a size, it is
True for all smaller sizes. `most` is the largest size worth trying, 1 or more. Return the largest size from 1 to `most`
that fits, as an int, or 0 if not even 1 fits.

Call `fits` only with integers from 1 to `most`, and never twice with the same one. Halve the remaining range with each
try: for `most` = 64, seven tries are always enough. (The check allows one more.)

Example: `most` = 8, and sizes up to 5 fit. The range is 1 to 8: try 4. It fits, so the range is 5 to 8: try 6. It
doesn't fit, so only 5 is left. It fits. The answer is 5, after three tries.
"""

# %% exercise="13.6"
from lessons_lib.measuring.tuning import largest_that_fits

# %% tags=["measured"]
tries = []


def fits(size):
    tries.append([str(size), "yes" if engine_fits(model, tokenizer, size, CONTEXT, LIMIT) else "no"])
    return tries[-1][1] == "yes"


found = largest_that_fits(fits, 64)
display(Table(columns=["sequences", "fits"], rows=tries))
print(f"largest batch: {found}; the formula says {LIMIT // per_sequence}")

# %% [markdown]
"""
Far fewer sequences fit than the formula promised. What happens to an engine that is too large? Give one request, a
prompt of 99 tokens, to an engine of the formula's size, and to one that is a single sequence too large:
"""

# %% tags=["measured"]
for size in (LIMIT // per_sequence, found + 1):
    with memory_limit(LIMIT):
        engine = LLMEngine(model, tokenizer, EngineConfig(max_num_seqs=size, max_num_batched_tokens=512, num_blocks=size * math.ceil(CONTEXT / 16)))
        output = engine.generate([[1] * (CONTEXT - 1)], SamplingParams(max_tokens=2, ignore_eos=True))[0]
    print(f"{size} sequences: {output.error or f'{len(output.token_ids)} tokens'}")

# %% [markdown]
"""
The first fails at once: its cache leaves no room for a forward pass. The second is more dangerous: it serves this
request, and fails later, under full load. That is why a try has to run the worst case.
"""

# %% [markdown]
"""
### How large should a block be?

You can work out what a block size costs for a workload without running it: the number of blocks, the empty cache slots
at the sequences' ends, the length of the longest block table, and how many prompt tokens are found in the prefix cache.
Here are forty requests whose prompts start with the same instructions.
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
    columns=["block size", "blocks", "empty cache slots", "longest table", "prompt tokens found"],
    rows=[[str(cost.block_size), cost.blocks, f"{cost.empty_share:.0%}", cost.table_entries, cost.shareable_tokens] for cost in costs],
    caption=f"Forty requests, {sum(map(len, prompts)):,} prompt tokens; their common prefix has {len(tokenizer(INSTRUCTIONS).input_ids)} tokens",
)

# %% [markdown]
"""
Small blocks waste almost nothing and find most of the shared tokens. Large blocks keep the tables short, let a kernel
read longer contiguous runs of memory (lesson 08), and mean fewer copies when a sequence is swapped (lesson 10). At 16
the waste is still small and most of the shared prefix is found. (The six stories repeat among the forty requests, so
more is found than the instructions alone.) With blocks of 64 or more, little is found, because the common prefix is
shorter than a block.

The block size can't be changed while the engine runs. A cache slot's index is block × block size + offset, so every key
would be in the wrong slot, and the cache would have to be rebuilt. The block hashes would be lost too, because each
covers the tokens of a block of the old size. On a GPU all graphs would have to be captured again. So you *drain* the
engine first: accept no new requests, wait until the last one finishes, then start a new engine.
"""

# %% [markdown]
"""
### Joined products

One thing the compiler doesn't do by itself. A layer multiplies the same hidden states by three weights for queries,
keys and values, and by two in the MLP. For a few tokens, each product takes about as long as starting it.
`join_projections` stacks the weights in memory, so that one product computes all three, and a small pass of the
compiler removes the other two:
"""

# %%
show_source(JoinedLinear.forward)
