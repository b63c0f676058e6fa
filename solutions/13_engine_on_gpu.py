# %% [markdown]
"""
# 13 · The engine on a GPU

![Three ways to run the same decode steps, on the CPU and on the GPU](../lessons_lib/assets/openings/13.svg)

**On a GPU, the model runs faster than the Python that drives it. How do we keep the GPU busy?**

75 minutes · difficulty: hard · routes: kernels · prerequisites: lesson 08 (fast kernels, CUDA graphs); lessons
09, 10 and 12 (scheduler, preemption, engine) help

You don't need a GPU for this lesson: on a CPU you can check that not a single token changes.
"""

# %% folded=true
import time
from functools import partial
from unittest.mock import patch

import torch

from lessons_lib.attention.custom_op import replace_placeholders
from lessons_lib.batching import generate_one_by_one
from lessons_lib.checks import check, hint, predict, progress, quiz, reset, reveal, solution
from lessons_lib.engine import GPUModelRunner, GreedyLoop, captured_batch_sizes, next_size
from lessons_lib.engine import rerun, serve_greedily
from lessons_lib.engine.cuda_graphs import CudaCapture
from lessons_lib.kv_cache import PrefixCache
from lessons_lib.measuring import MAX_NEW_TOKENS, PROMPTS, STORIES, recorded_engine
from lessons_lib.models import load_model
from lessons_lib.recording.thread_device import ThreadDevice
from lessons_lib.scheduling import PreemptiveScheduler, SchedulerOutput, Sequence
from lessons_lib.viz.charts import draw_bars
from lessons_lib.viz.launches import watch_launches
from lessons_lib.viz.source import show_source
from lessons_lib.viz.stale_graph import draw_stale_graph
from lessons_lib.viz.tables import Table

# %%
# float32, so answers can be compared token for token
model, tokenizer = load_model(device="cpu")
prompt_ids = {story.name: tokenizer(story.prompt).input_ids for story in STORIES}
END = tokenizer.eos_token_id

# %% [markdown]
"""
## The problem: the GPU waits for the CPU

With a model of half a billion parameters on an H200, one decode step of 256 requests launches about a thousand kernels.
Each launch takes the CPU about 20 µs, mostly in Python and PyTorch. Each kernel takes the GPU about 4 µs.

So for what share of the step does the GPU compute?

Below is a recorded run of 256 requests. Each row adds what its name says to the row above.
"""

# %%
recording = recorded_engine()
PARTS = {"whole step": "all", "CPU work": "own", "launching alone": "launch",
         "waiting for the GPU": "wait"}
Table(
    columns=["milliseconds", *PARTS, "tokens/s"],
    rows=[[mode["name"], *(f"{mode['decode_ms'][part]:.2f}" for part in PARTS.values()),
           f"{mode['tokens_per_s']:,.0f}"] for mode in recording.modes],
    caption="A step of 256 decodes, median, and the speed of the whole run. Launching is part "
            f"of the CPU's work; work and waiting make up the step ({recording.provenance})",
)

# %% [markdown]
"""
- In the first row nearly the whole step is launching. The GPU computes for about a fifth of it. The second row runs the
  same kernels, but the CPU waits for the GPU, so the step is as long as its kernels.
- With overlap, the CPU works while the GPU computes. The last row is the whole engine: its CPU has more to do, but the
  step takes no longer.

The whole engine is 12 times as fast as the first row.

## The idea

Here is the picture at the top, as it happens. When does the GPU wait, and for what?
"""

# %%
watch_launches()

# %% [markdown]
"""
- **CUDA graphs** replace about a thousand launches with a single one.
- **Overlap**: launch the next step, then process the results of the previous one.
- **Tokens kept on the device** make overlap possible: the next step reads its input tokens on the GPU, where the last
  step wrote them.
- **Compilation**, not shown here, fuses small operations, so there are fewer kernels to run.

## CUDA graphs

A CUDA graph is a recording of GPU work that is replayed with a single launch (lesson 08). Its shapes and addresses are
fixed. So the engine captures one graph for each of its *captured batch sizes*. Before a replay it copies the step's
inputs into fixed buffers, and pads them to the next size.

> **null block**: a block of the cache that belongs to no sequence. Padding writes its keys and values there, and no
> real sequence reads them.
"""

# %%
sizes = captured_batch_sizes(256)
print("captured batch sizes:", sizes[:8], "…", sizes[-1])
print("37 decodes are padded to", next_size(37, sizes))

# %% [markdown]
"""
A graph holds addresses, not tensors. If a weight or the cache moves, a replay still reads and writes the old address,
and no error is raised. ([Reported for SGLang](https://github.com/sgl-project/sglang/pull/27140): after a
weight update, the text was garbled.)
"""

# %%
draw_stale_graph()

# %% [markdown]
"""
You can see it without a GPU: `rerun` holds on to the tensors of the first run. Below, the inputs change in place, and the
weight is replaced by another tensor. What does the replay return?
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

> **graph key**: everything that a graph depends on, as it was at its capture. Before each step the engine computes the
> key again. It replays the graph if the key is the same, and otherwise captures the step again.

The sizes 4, 8 and 16 are captured, each when it is first needed. There are steps of 3, 7, 5 and 12 decodes. Then all
weights get new addresses, and three more steps have 6, 5 and 2 decodes.

**13.a** How many captures are there in total?
"""

# %%
predict("13.a", ...)  # captures

# %% [markdown]
"""
## Build: graphs that are never stale

**Exercise 13.1: the class `GraphStore`.** It keeps one graph for each batch size. `__init__` and `has` are given; write
`key_of` and `run`.

`key_of` returns everything that the graph of a step depends on:

- Keys must differ whenever a replay would do something other than the step. Any tensor may get other memory, even while
  it stays the same object (`weight.data = …`). An input may be replaced by another view of its memory, with another
  shape, other strides or another dtype.
- A changed *value* at the same address is no reason to capture again.
- `settings` are new objects at each call: compare them as values.

`run` captures if it has to, and then replays:

- `self.capture(step)` returns the pair (`replay`, `output`). What a capture computes isn't valid: `replay()` writes to
  `output`. Don't call `step` yourself.
- Each graph holds on to the tensors of its key, which `keeps()` returns. If one were freed, another tensor could get its
  address, as the cache did above, or its `id`. Call `keeps` only at a capture: it takes long.
- A new graph replaces the old one of its size, and no other.
- If a capture raises an error, the caller gets it, and the next call with this key captures again.

`tensor.data_ptr()` is a tensor's address, and `id(tensor)` tells objects apart as long as they exist.
`Graph(key, keeps, replay, output)` is a dataclass for what the store has of a graph.

Example: `run(2, "A", step, keeps)` on a new store captures and replays. A second such call only replays.
`run(2, "B", step, keeps)` captures again, and drops the graph of "A".
"""

# %% exercise="13.1" given="__init__ has"
from collections.abc import Callable, Hashable
from typing import Any

from lessons_lib.engine.cuda_graphs import Capture, Graph, GraphKey, Step

from lessons_lib.engine.cuda_graphs import GraphStore

# %% [markdown]
"""
On a GPU the store gets the `capture` below. It warms up, then records the step. All graphs share one memory pool, so an
output is valid only until the next replay:
"""

# %%
show_source(CudaCapture.__call__)

# %% [markdown]
"""
The steps of your prediction, with your store. Each step's inputs are copied into one buffer and padded, and a product
stands for the model:
"""

# %%
store, buffer, weight = GraphStore(rerun), torch.zeros(16), torch.tensor(2.0)
if torch.cuda.is_available():  # then your store captures real graphs
    store, buffer, weight = GraphStore(CudaCapture()), buffer.cuda(), weight.cuda()


def run_decodes(*steps):
    for num_seqs in steps:
        size = next_size(num_seqs, [4, 8, 16])
        buffer[:num_seqs], buffer[num_seqs:size] = torch.arange(num_seqs), -1
        key = store.key_of([buffer], [weight], ())
        output = store.run(size, key, partial(torch.mul, buffer[:size], weight),
                           lambda: (buffer, weight))
        print(f"captures so far: {store.num_captured};", num_seqs, "decodes, graph of", size,
              output[:num_seqs].tolist())


run_decodes(3, 7, 5, 12)
weight = weight + 1  # at another address
print("the weight is now", weight.item())
run_decodes(6, 5, 2)
reveal("13.a", store.num_captured, unit="captures", how="Computed")

# %% [markdown]
"""
Each of the three sizes is captured once. After the change, two are captured again when a step needs them, and compute
with the new weight. No step needs the stale graph of 16, but it still holds the old one.

## Tokens kept on the device

A step's token is the input of the next step, which can read it on the GPU. But the CPU builds the packed batch, and
doesn't know the token yet. So it writes a placeholder.

> **step in flight**: a step that has been launched, and whose tokens the CPU hasn't read yet.

> **placeholder**: a stand-in for a token that the step in flight will produce. The sequence only counts it, in
> `num_placeholders`. In the packed batch it is the value −1 − *i*, where *i* is the sequence's index in that step. The
> GPU replaces it by the token.

## Build: tokens that aren't known yet

**Exercise 13.2: `next_tokens(scheduler_output, previous_rows)`.** In the scheduler output (lesson 09),
`num_scheduled_tokens` is a dict sequence → count, in the order of the packed row. Return one list of token ids: for
each sequence, its next `count` tokens.

- A sequence's tokens are its `prompt_ids`, then its `output_ids`. The first `num_computed_tokens` of them are in the
  cache, or will be after the step in flight. If that step produces a token for the sequence (`num_placeholders` is 1),
  it comes last, as a placeholder.
- `previous_rows` maps *every* sequence of the step in flight to its index *i* there, also those that get no token.
- A sequence may start its prompt, go on with it, decode, or compute all again after a preemption (lesson 10).
- Don't change any sequence.

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
tokens of B, one each of C and A. Which four ids does the CPU write?
"""

# %%
in_flight = [
    Sequence("A", [1, 2], 9, output_ids=[10], num_computed_tokens=3, num_placeholders=1),
    Sequence("B", [3, 4, 5, 6, 7, 8], 9, num_computed_tokens=4),
    Sequence("C", [9, 9], 9, num_computed_tokens=2, num_placeholders=1),
]
a, b, c = in_flight
host_ids = next_tokens(
    SchedulerOutput({c: 1, b: 2, a: 1}),
    {sequence: index for index, sequence in enumerate(in_flight)}
)
print("on the CPU:", host_ids)
previous_tokens = torch.tensor([100, 0, 300])  # A's and C's new tokens; B gets none
print("on the device:", replace_placeholders(torch.tensor(host_ids), previous_tokens).tolist())

# %% [markdown]
"""
C has index 2 in the step in flight, so its token is −1 − 2 = −3, wherever C is in the next step. B is in flight too, but
its tokens are known. The GPU replaces the placeholders as a part of the graph, which can't branch on a value. So it
computes an index for every id, then chooses:
"""

# %%
show_source(replace_placeholders)

# %% [markdown]
"""
## Steps that overlap

To schedule the next step, the CPU needn't know *which* token a sequence gets, only that it gets one. If it's the end
token, one token too many is computed, and thrown away. The step in flight may still write to blocks that are free by
then. That does no harm: the GPU runs launches in order, so the next owner writes later.

A preempted sequence is recomputed from its tokens, so all of them must be known. If one has a placeholder, the loop
first waits for the step in flight.

### Build: one turn of the loop

**Exercise 13.3: `overlapped_step(loop)`.** It launches the next step, if there is something to compute. Then it processes
all but the last `loop.depth` steps in flight, or all if nothing was launched. `loop` has:

| | |
|---|---|
| `loop.depth` | how many steps may stay in flight when you return: 1 on a GPU, 0 in lesson 12's engine |
| `loop.in_flight` | a deque of the launched steps that haven't been processed, oldest first. You append to it |
| `loop.schedule()` | returns the scheduler output of the next step. `preempted` lists the sequences that have lost their blocks for it |
| `loop.launch(scheduler_output)` | starts the step, without waiting for it; each sequence that gets a token has one more placeholder. Returns the step, or None if there is nothing to compute |
| `loop.process(depth)` | waits for the tokens of all steps in flight but the last `depth`, and puts them in place of the placeholders |

- The device must never wait while the CPU reads tokens, except for the tokens of a preempted sequence.
- Tokens that are processed after the next step was scheduled may end sequences in it. `scheduler_output.drop_finished()`
  takes those out of it.

Example: a request gets three tokens, and `depth` is 1. The first call launches step 1. The second launches step 2 and
reads the token of step 1, and so on. The fourth has nothing to launch, so it reads the last token.
"""

# %% exercise="13.3"
from typing import Any

from lessons_lib.engine.core import overlapped_step

# %% [markdown]
"""
### Measure: steps that overlap

Here is your loop on a device that is a thread. For each of 10 steps the CPU works 20 ms, and the device 30 ms. One after
the other, that takes 500 ms.

**13.b** How many milliseconds pass until the last token if the steps overlap? Draw the lines of CPU and device.
"""

# %%
predict("13.b", ...)  # milliseconds

# %% tags=["measured"]
def serve(device):
    """Two requests with 10 tokens each. Returns the milliseconds."""
    scheduler = PreemptiveScheduler(PrefixCache(32, 16), max_num_seqs=2,
                                    max_num_batched_tokens=8)
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
Each digit is 5 ms of a step, and a dot is 5 ms of waiting. Only the first launch overlaps with nothing:
20 + 10 × 30 = 320 ms. With a device twice as fast, the CPU is the slower side: 10 × 20 + 15 = 215 ms (more on a busy
machine). An overlapped step takes as long as the *slower* of the two.

### Break it: one look at a value

While you look for a bug, you add `print(logits.max().item())` after each launch. `item` needs the value on the CPU, so it
waits until the GPU has computed it. How long do the ten steps take now on the faster device, the one with 15 ms?
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
All of the overlap is lost: 10 × (20 + 15) = 350 ms. On a GPU an `if` on a tensor, `tolist()` and an index with a mask
wait in the same way, without an error (unless you ask for one: `torch.cuda.set_sync_debug_mode("error")`).
"""

# %% [markdown]
"""
## Prove it

`GPUModelRunner` runs on the CPU here, with `rerun` as the capture, your store and your two functions. That's no faster,
but the answers must be the same as when each request runs alone.
"""

# %%
alone = generate_one_by_one(model, tokenizer, PROMPTS, max_new_tokens=MAX_NEW_TOKENS)


def serve_stories(next_tokens):
    """Returns the tokens of each story, the number of captures, the graphs' sizes, and the
    number of blocks in use."""
    runner = GPUModelRunner(model, 32, 16, max_num_seqs=4, max_model_len=192, compiled=False,
                            capture=rerun)
    runner.store = GraphStore(rerun)
    scheduler = PreemptiveScheduler(PrefixCache(32, 16), max_num_seqs=4,
                                    max_num_batched_tokens=64)
    stories = [
        Sequence(s.name, prompt_ids[s.name], s.max_new_tokens, frozenset({END}),
                 arrival_time=i)
        for i, s in enumerate(STORIES)
    ]
    with (
        patch("lessons_lib.engine.input_batch.next_tokens", next_tokens),
        patch("lessons_lib.engine.greedy_loop.overlapped_step", overlapped_step),
    ):
        answers = serve_greedily(runner, scheduler, stories, depth=1)
    graph_sizes = [size[:2] for size in runner.store.graphs]
    runner.close()
    return answers, runner.store.num_captured, graph_sizes, len(scheduler.pool.used)


overlapped, captures, graph_sizes, in_use = serve_stories(next_tokens)
print(f"the same tokens as one at a time: {overlapped == alone}; blocks in use: {in_use}")
print(f"captures: {captures}; (sequences, tokens) of the graphs:", *graph_sizes)
print("tokens of each story:",
      {story.name: len(tokens) for story, tokens in zip(STORIES, overlapped)})

# %% [markdown]
"""
Every step was a replay of one of these graphs: two for steps with prompts, padded to 16 or 64 tokens, and two for
decodes only, where the number of tokens is None.

### Break it: whose token?

What if `next_tokens` used a sequence's index in the *new* step? As long as no request leaves, it's the same. Four
stories run at a time, A, B, C and D first. When one leaves, those after it move up, and the next story comes last. Their
numbers of tokens are printed above.

**13.c** How many of the six stories come out right?
"""

# %%
predict("13.c", ...)  # stories

# %%
def with_new_index(scheduler_output, previous_rows):
    new_rows = {sequence: row
                for row, sequence in enumerate(scheduler_output.num_scheduled_tokens)}
    return next_tokens(scheduler_output, new_rows)


def around(tokens, i):
    return repr(tokenizer.decode(tokens[i - 6 : i + 6]))[1:-1]


rows = []
for story, right, got in zip(STORIES, alone, serve_stories(with_new_index)[0]):
    wrong = [i for i, pair in enumerate(zip(right, got)) if pair[0] != pair[1]]
    texts = [around(right, wrong[0]), around(got, wrong[0])] if wrong else ["", ""]
    rows.append([story.name, wrong[0] + 1 if wrong else "–", *texts])
reveal("13.c", sum(row[1] == "–" for row in rows), unit="stories", how="Computed")
print(f"A ends with {tokenizer.decode(alone[0][-1:])!r}")
Table(columns=["story", "first wrong token", "right", "with the new index"], rows=rows)

# %% [markdown]
"""
Only A and D are right. D leaves first, but it's the last in the batch, so no other moves. When A leaves, B, C and E
move up, and for one step each gets the last token of the story before it. B gets A's " wanted", so it goes
on with "to". When B leaves, F goes wrong too. One step later the indices agree again, and the stories go on from the
wrong word. A test whose requests all start and end together can't find this.

## What is still wrong

**No server, and one GPU.** Lesson 14 puts an HTTP server in front, lesson 15 adds replicas on other GPUs.

**Overlap has exceptions.** A grammar's parser runs on the CPU, so the engine has to wait for the last token before it can
choose the next one.

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

This section isn't part of the 75 minutes.
"""

# %% [markdown]
"""
### On your GPU

The bundled model is tiny, so its kernels take next to no time, and launching is nearly all there is.
"""

# %% tags=["measured"]
def tokens_per_second(model, depth, **options):
    """64 requests with 100 tokens each, served twice: the first time, graphs are captured."""
    runner = GPUModelRunner(model, 1024, 16, max_num_seqs=64, max_model_len=192,
                            compiled=False, **options)
    for _ in range(2):
        scheduler = PreemptiveScheduler(PrefixCache(1024, 16), max_num_seqs=64,
                                        max_num_batched_tokens=512)
        requests = [Sequence(str(i), [i + 5], 100) for i in range(64)]
        started = time.perf_counter()
        serve_greedily(runner, scheduler, requests, depth)
        seconds = time.perf_counter() - started
    runner.close()
    return 6400 / seconds


MODES = {"launched one by one": (0, False), "CUDA graphs": (0, True),
         "overlapped too": (1, True)}
if torch.cuda.is_available():
    on_gpu, _ = load_model(device="cuda")
    for name, (depth, graphs) in MODES.items():
        print(f"{name}: {tokens_per_second(on_gpu, depth, graphs=graphs):,.0f} tokens/s")
else:
    print("There is no GPU here.")

# %% [markdown]
"""
### Optional: drawing on the device

In "Prove it" each token was an `argmax`, which the GPU can compute. A token that is *drawn* has to be drawn there as
well. Lesson 12's race needs no order, no sums and no state: each token of a row gets a time, −log(1 − *u*) divided by
the token's weight exp(logit / temperature), and the smallest time wins. The number *u* is a hash of the request's seed,
the position in its answer, and the token's id.

**Exercise 13.4: `draw_on_device(logits, temperature, seeds, positions)`**, for N rows at once. Return int64 [N].

- `logits` [N, vocabulary] are of any floating-point dtype, and may be large. A token whose logit is −inf must not be
  drawn.
- `temperature`, float32 [N]: where it is above 0, each token is drawn with the probability that
  `softmax(logits / temperature)` gives it. Where it is 0, the token with the largest logit is returned.
- `seeds` and `positions`, int64 [N], are all that a draw depends on, apart from its row's logits and temperature. A
  request gets the same token in any batch, in any row.
- `random_numbers(seeds, positions, tokens)` returns the numbers *u*, float32, strictly between 0 and 1. The smallest is
  about 10⁻¹⁰. Its arguments are int64 tensors whose shapes broadcast.
- No value may go to the CPU: no `if` may look at one, and a mask can't be an index, since the number of selected
  elements would be a shape. The number of launches must not grow with N, and nothing may be sorted.

Example: for the logits `[[0, 5, 1]]`, the result at temperature 0 is `[1]`. At temperature 1 it is `[1]` for 98% of all
positions.

**13.d** How many operations does your draw start for 64 rows, those of `random_numbers`
included? Count them in your code. Views, such as `seeds[:, None]`, start none.
"""

# %% exercise="13.4"
from lessons_lib.engine import random_numbers

from lessons_lib.engine.plain_sampling import draw_on_device

# %%
from lessons_lib.measuring.operations import CountOperations


def launches_of(function, *inputs):
    with CountOperations() as operations:
        function(*inputs)
    return operations.count


logits, hot = torch.randn(64, 4096), torch.full((64,), 0.9)
seeds, positions = torch.arange(64), torch.arange(64)
of_numbers = launches_of(random_numbers, seeds[:, None], positions[:, None],
                         torch.arange(4096))
print("random_numbers alone:", of_numbers)
predict("13.d", ...)  # operations

# %%
from dataclasses import replace

from lessons_lib.checks.my_engine import my_engine
from lessons_lib.engine import EngineConfig, LLMEngine, SamplingParams

of_all = launches_of(draw_on_device, logits, hot, seeds, positions)
of_one = launches_of(draw_on_device, logits[:1], hot[:1], seeds[:1], positions[:1])
reveal("13.d", of_all, unit="operations", tolerance=0.1)
print(f"64 rows: {of_all}; one row: {of_one}; 64 rows one by one would be {64 * of_one:,}")

small = EngineConfig(max_num_seqs=4, num_blocks=64, max_num_batched_tokens=64,
                     max_model_len=192)
sampled = SamplingParams(temperature=0.8, seed=1, max_tokens=30)
yours = my_engine(model, tokenizer, replace(small, overlap=True))
reference = LLMEngine(model, tokenizer, small)
texts = [[output.text for output in engine.generate(PROMPTS, sampled)]
         for engine in (yours, reference)]
print("the same texts:", texts[0] == texts[1])
of_this_lesson = [row for row in yours.parts.rows if row[0].startswith("13")]
Table(columns=yours.parts.columns, rows=of_this_lesson)

# %% [markdown]
"""
The engine above has all your answers, those of this lesson and of the lessons before, and its steps overlap. It has to
draw the same tokens as lesson 12's engine, which runs one step after the other. (If your draw isn't lesson 12's race,
it may be just as right, but other texts come out.)

### Steps with prompts

When requests are short, nearly every step has a prompt in it. Padding helps here too, now in both directions: a graph
has room for `max_num_seqs` sequences, and for one of a few numbers of tokens. Larger steps keep the GPU busy for so
long that launching them doesn't matter.
"""

# %%
from lessons_lib.measuring import recorded_workloads

workloads, CHURN = recorded_workloads(), "Qwen2.5-0.5B: churn"
of_churn = {
    "only decodes from graphs": workloads.best[f"{CHURN}, only decodes captured"],
    "steps with prompts too": workloads.best[f"{CHURN}, 1,024 × 10–200 + 10–200"],
}
draw_bars(
    of_churn, "tokens/s",
    title="Output tokens a second, 1,024 short requests, a model of 0.5 B",
    note=workloads.provenance, own=["steps with prompts too"],
)  # fmt: skip

# %% [markdown]
"""
### What production does

- **vLLM**, graphs: `cudagraph_capture_sizes` and `cudagraph_mode` in `vllm/config/compilation.py`. By default the model
  is split at the attention operators, which aren't compiled. Steps with prompts replay a graph for each part, so any
  attention kernel will do; steps with only decodes replay a single graph of the whole step.
- **vLLM**, overlap (*async scheduling*): `step_with_batch_queue` in `vllm/v1/engine/core.py` schedules the next batch
  before the last one is done. `AsyncScheduler` in `vllm/v1/core/sched/async_scheduler.py` counts placeholders for
  tokens that haven't arrived (`num_output_placeholders`).
- **vLLM**, memory: `determine_available_memory` in `vllm/v1/worker/gpu_worker.py` runs the largest step possible at
  startup, measures the peak, and gives the rest of `gpu_memory_utilization` to blocks.
- **vLLM**, drawing: `random_sample` in `vllm/v1/sample/ops/topk_topp_sampler.py` is a race as well. Its docstring says
  why: `torch.multinomial` makes the CPU wait for the GPU.
- **mini-sglang**: `overlap_loop` in `python/minisgl/scheduler/scheduler.py` is the loop of this lesson.
- **nano-vllm** captures graphs in `capture_cudagraph`, and sizes the cache with a run at startup in `warmup_model` and
  `allocate_kv_cache`, all in `nanovllm/engine/model_runner.py`.
"""
