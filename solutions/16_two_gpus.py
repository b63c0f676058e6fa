# %% [markdown]
"""
# 16 · Two GPUs

![Two matrices cut in halves, one half for each of two processes](../lessons_lib/assets/openings/16.svg)

**What if the model doesn't fit on one GPU? And if it does, is a second GPU better as a replica or as one half of the
model?**

75 minutes · difficulty: hard · routes: serving · prerequisites: lesson 00 (a decode step reads all weights) and lesson
14 (serving); lesson 15 for the comparison

You build what one model on two GPUs needs, and decide how eight GPUs should serve a model that doesn't fit on one. You
need no GPU: the halves are threads or processes on your CPU.
"""

# %% folded=true
import json
from functools import partial

import torch
import torch.nn.functional as F

from lessons_lib.batching import generate_one_by_one
from lessons_lib.checks import check, hint, predict, progress, quiz, reset, reveal, solution
from lessons_lib.measuring import MAX_NEW_TOKENS, PROMPTS
from lessons_lib.measuring.published import FOLDER as RECORDED
from lessons_lib.models import load_model
from lessons_lib.recording.all_reduce_steps import record_all_reduce
from lessons_lib.serving.workers import run_workers
from lessons_lib.viz.replicas import decode_ratio, draw_cut_matrices
from lessons_lib.viz.replicas import two_gpus_table, watch_all_reduce
from lessons_lib.viz.tables import Table

# %%
# float32, so that answers can be compared token by token
model, tokenizer = load_model(device="cpu")
recorded = json.loads((RECORDED / "replicas.json").read_text(encoding="utf-8"))

# %% [markdown]
"""
## The problem: too large for one GPU

Replicas, as in lesson 15, don't help if a single copy of the model doesn't fit: 70 billion parameters in bfloat16 take
140 GB, and an H100 has 80.

You could give each GPU some of the layers: *pipeline parallelism*. But a token still goes through all layers, one after
the other, so it takes as long as before. The other way is to cut every layer.

> **tensor parallelism**: several processes, each with a GPU, compute every layer together. Each has a part of every
> large matrix.

## The idea: columns, then rows

The simplest MLP is a matrix, a function like SiLU that treats each element separately, and a second matrix. Cut the
first by *columns*, and each process computes some of the elements, from the whole input. Cut the second by *rows* at
the same places, and each process already has the inputs that its rows need. It computes one term of each output; the
sum over the processes is the output:
"""

# %%
draw_cut_matrices(num_tokens=4, inputs=12, inner=16, outputs=12)

# %% [markdown]
"""
Nothing is sent between the two matrices. Attention works the same way, with heads in place of elements: a process
computes queries, keys and values of its own heads, attends with them, and multiplies by its rows of the output matrix.
Its cache holds only its own KV heads, so their number must be divisible by the number of processes.

So a layer needs only two sums, one after attention and one after the MLP:

> **all-reduce**: each process has a tensor, and afterwards each has the sum of all of them.

## Build 1: the two cuts

`torch.nn.Linear` stores its weight as `[outputs, inputs]` and computes `x @ weight.T + bias`. Columns and rows are
those of `weight.T`.

**Exercise 16.1: `cut_linear(weight, bias, cut, rank, world_size)`.** Return the tuple (weight, bias) of one process.
`rank` is its index, and `world_size` the number of processes, 1 or more. `bias` is a tensor or None. `cut` is always
one of these two:

- `cut == "colwise"`: the *outputs* are divided among the processes, rank 0 first. The results of all processes, side by
  side, are the layer's output.
- `cut == "rowwise"`: the *inputs* are divided among the processes, rank 0 first. The results of all processes, added
  up, are the layer's output.
- If equal parts aren't possible, raise `ValueError`.
- Return new tensors of the same type, often bfloat16, which share no memory with the whole ones. Otherwise every
  process would still hold the whole model.

Example: a weight of shape [4, 6], two processes. Colwise, each gets [2, 6]; rowwise, each gets [4, 3].
"""

# %% exercise="16.1"
from lessons_lib.serving.tensor_parallel import cut_linear

# %% [markdown]
"""
The first layer's MLP of the course's model, with your cuts, in two and four parts:
"""

# %%
mlp = model.model.layers[0].mlp
x = torch.randn(5, model.config.hidden_size, generator=torch.Generator().manual_seed(0))


def part_of_mlp(rank, world_size):
    gate, up = (F.linear(x, *cut_linear(linear.weight, None, "colwise", rank, world_size))
                for linear in (mlp.gate_proj, mlp.up_proj))
    return F.linear(F.silu(gate) * up,
                    *cut_linear(mlp.down_proj.weight, None, "rowwise", rank, world_size))


for world_size in (2, 4):
    total = sum(part_of_mlp(rank, world_size) for rank in range(world_size))
    print(f"{world_size} parts: the sum differs from the whole MLP by less than 0.00001: "
          f"{bool((total - mlp(x)).abs().max() < 1e-5)}")

# %% [markdown]
"""
## Two replicas, or one model on two GPUs?

Suppose the model *does* fit on one GPU, and you have two. Run two replicas, each with half of the requests, or cut the
model in two: which decodes faster? Both were measured with the course's engine on two H100s, with 64 requests at a
time, for a model with 8 billion parameters and 32 layers, and for one with 0.5 billion and 24 layers. Here are the
steps of *one* GPU, and those of the replicas:
"""

# %%
two_gpus = recorded["two_gpus"]
NAMES = {"8 billion": "llama_8_billion", "0.5 billion": "qwen_half_billion"}
for name, shape in NAMES.items():
    one, replica = (two_gpus[shape][way]["64"]["decode_ms"]
                    for way in ("one GPU", "two replicas"))
    print(f"{name} parameters, a decode step: {one:.2f} ms for 64 requests; on a replica, "
          f"{replica:.2f} ms for 32")

# %% [markdown]
"""
Take the 8 billion. What would a step of the cut model take, for all 64 requests? Start from one GPU's 10.97 ms:

- **Less to read.** The layers have 7 of the 8 billion parameters, 14 GB in bfloat16, and the 64 requests have 3.2 GB of
  keys and values (384 tokens each on average, 128 KiB a token). Each GPU reads half of these 17.2 GB. At an H100's
  3,350 GB/s, that saves 2.57 ms.
- **Sums.** There are 64, two in each layer. At 7 µs each ("Further" infers that), they cost 0.45 ms.
- Assume that everything else takes as long as before.

10.97 - 2.57 + 0.45 = 8.85 ms. The replicas, which still read all weights, take 9.99 ms for their 64 requests. So the
cut model should decode 9.99 / 8.85 = 1.13 times as fast.

**16.a** And with 0.5 billion? Its layers have 0.36 billion parameters, and the 64 requests 0.3 GB of keys and values.
How many times as fast as two replicas is the cut model? (5 % more or less is a hit.)
"""

# %%
predict("16.a", ...)  # times

# %%
reveal("16.a", decode_ratio(two_gpus[NAMES["0.5 billion"]]), "times", tolerance=0.05)
two_gpus_table(two_gpus, NAMES)

# %% [markdown]
"""
(The last column is of the whole run, prompts included.)

Half of the bytes saves 0.15 ms, and 48 sums cost 0.34 ms: 3.21 - 0.15 + 0.34 = 3.40 ms (measured: 3.33). Two GPUs that
share the small model are slower than *one*. The large model's step was measured at 8.84 ms (estimated: 8.85).

Don't trust this agreement too much: the 7 µs come from the small model itself, with one request. There a sum adds up
2 KB; in the large model, 0.5 MB.

A cut in two shortens a step only if reading half of the bytes takes longer than all the sums. To beat replicas, it must
also make up for their smaller batches.
"""

# %% [markdown]
"""
## Build 2: the sum over all workers

In the simplest all-reduce, every process sends its tensor to process 0, which adds them up and sends the sum back. Here
the processes are *workers*, threads of this notebook, and these methods are all that connects them:

| of a `worker` | meaning |
|---|---|
| `rank`, `world_size` | its index, and N, the number of workers |
| `send(to, tensor)` | sends a copy of a tensor to the worker with the rank `to`; doesn't wait |
| `receive(source)` | waits for the next tensor that the worker `source` has sent to this one, and returns it |

"""

# %%
def through_worker_0(tensor, worker):
    if worker.rank:
        worker.send(0, tensor)
        return worker.receive(0)
    total = tensor + sum(worker.receive(source) for source in range(1, worker.world_size))
    for to in range(1, worker.world_size):
        worker.send(to, total)
    return total


totals, workers = run_workers(
    lambda worker: through_worker_0(torch.full([4096], 10.0**worker.rank), worker), 4)
print("each worker's first element:", [total[0].item() for total in totals])
print("elements that each has sent:", [worker.sent_bytes // 4 for worker in workers])

# %% [markdown]
"""
The sum is right, but worker 0 sends three times as much as any other, and all wait for it. Two steps share the work
evenly:

> **reduce-scatter**: each process has a tensor, and afterwards each has one part of the sum.

> **all-gather**: each process has a part, and afterwards each has all of them.

One after the other, they make an all-reduce. Here each of three workers is responsible for one part of the sum (–: the
worker needn't know that part):

| worker | before | after reduce-scatter | after all-gather |
|---|---|---|---|
| 0 | 1, 2, 3 | 111, –, – | 111, 222, 333 |
| 1 | 10, 20, 30 | –, 222, – | 111, 222, 333 |
| 2 | 100, 200, 300 | –, –, 333 | 111, 222, 333 |

With a pencil, draw an arrow for each element that one worker has to send to another in each step. A sum is one element,
too, so it is one arrow.

**16.b** How many elements does each worker send in both steps together, if all send the same number?
"""

# %%
predict("16.b", ...)  # elements

# %% [markdown]
"""
**Exercise 16.2: `all_reduce(tensor, worker)`.** All workers call it at the same time, each with its own tensor; the
shapes and types are equal. Return the sum.

- The result is a new tensor of the same shape and type, also if there is only one worker. The worker's own tensor
  doesn't change. Sums of integers are exact.
- Receive everything that is sent to you, and send only tensors of the original type.
- **Bytes**: a worker sends at most 2 (N - 1) * ceil(n / N) elements, where n is the number of elements of its tensor. n
  may be less than N.
- **Bits**: every worker returns the same bits. Float sums depend on their order, and two workers that differ in the
  last bit could choose different tokens.

Example: two workers with [1, 2, 3, 4] and [10, 20, 30, 40]. Both return [11, 22, 33, 44], and each sends two elements
twice.

`tensor.flatten().tensor_split(N)` returns N parts, which are views, of at most ceil(n / N) elements each. Some are
empty if n is less than N. `torch.cat(parts).view(tensor.shape)` puts them together again.
"""

# %% exercise="16.2"
from lessons_lib.serving.all_reduce import all_reduce

# %%
tensors = [[1, 2, 3], [10, 20, 30], [100, 200, 300]]
sums, workers = run_workers(
    lambda worker: all_reduce(torch.tensor(tensors[worker.rank], dtype=torch.float32), worker),
    3)
print("each worker's sum:", [each.tolist() for each in sums])
reveal("16.b", max(worker.sent_bytes for worker in workers) // 4, "elements", how="Counted")

# %% [markdown]
"""
Each of the three parts needs two elements from other workers: six arrows, two from each worker. Then each finished part
goes to two other workers: six arrows again.

Step through what *your* workers do. In the library's answer they form a *ring*: each worker sends only to the next one,
so each part goes around once while it is added up, and then once more, complete.
"""

# %%
watch_all_reduce(record_all_reduce(all_reduce, 4))

# %% [markdown]
"""
However many workers there are, none sends more than twice its tensor, apart from rounding up. But in a ring, 2 (N - 1)
messages wait for one another. If each part goes straight to its owner, only the second round waits for the first. For
short tensors, the waits count more than the bytes.

In production, the workers are processes with a GPU each, started by `torchrun`. They call
`torch.distributed.all_reduce(tensor)`, and NVIDIA's library NCCL moves the parts over the links between the GPUs. vLLM
does all of this if you say `--tensor-parallel-size 2`.
"""

# %% [markdown]
"""
## Build 3: a layer in parts

Which matrix is cut which way, and where do the sums belong? A decoder layer of Llama or Qwen has seven matrices, four
in `layer.self_attn` and three in `layer.mlp`:

```
x = x + o_proj(attend(q_proj(norm(x)), k_proj(norm(x)), v_proj(norm(x))))
x = x + down_proj(silu(gate_proj(norm(x))) * up_proj(norm(x)))
```

**Exercise 16.3: `cut_layer(layer, rank, world_size, all_reduce)`.** Change the layer in place, so that it holds only
the part of one process and still returns what the whole layer returned. Each process does so with its own copy.

- Each of the seven matrices is a `torch.nn.Linear`, with a bias or `bias = None`. Give it this process's part, from
  your `cut_linear`. All else stays as it is: attention finds out from the sizes how many heads it has. Heads and sizes
  divide evenly here.
- `all_reduce(tensor)` returns the sum over all processes. A forward pass calls it at most twice.
- To change what a module returns, use a hook: after `module.register_forward_hook(hook)`, the module returns what
  `hook(module, inputs, output)` returns instead of `output`, unless that is None. `self_attn` returns a tuple, whose
  first element is the result.

Assign a new weight as `linear.weight = torch.nn.Parameter(weight, requires_grad=False)`, and a bias the same way; if
the new bias is None, assign None.
"""

# %% exercise="16.3"
from lessons_lib.serving.cut_layer import cut_layer

# %% [markdown]
"""
### All of it in a model

Two workers, each with its own copy of the model, cut every layer with your functions and generate three stories, once
with the sums and once without.

**Guess first:** what does a worker generate without the sums? An error, gibberish, or a story? And do both generate the
same?
"""

# %% folded=true
LENGTHS = [min(each, 12) for each in MAX_NEW_TOKENS[:3]]


def generate_in_halves(add_up):
    """The answers of two workers, the workers, and their models. `add_up(tensor, worker)` is
    called in each layer."""
    halves = [load_model(device="cpu")[0] for _ in range(2)]

    def generate(worker):
        for layer in halves[worker.rank].model.layers:
            cut_layer(layer, worker.rank, worker.world_size, partial(add_up, worker=worker))
        return generate_one_by_one(halves[worker.rank], tokenizer, PROMPTS[:3],
                                   max_new_tokens=LENGTHS)

    answers, workers = run_workers(generate, 2)
    return answers, workers, halves


alone = generate_one_by_one(model, tokenizer, PROMPTS[:3], max_new_tokens=LENGTHS)
answers, workers, halves = generate_in_halves(all_reduce)
without_sums, _, _ = generate_in_halves(lambda tensor, worker: tensor)
print("the same tokens as the whole model, in each worker:",
      [each == alone for each in answers])
for what, stories in {"your sums": answers[0], "no sums, worker 0": without_sums[0],
                      "no sums, worker 1": without_sums[1]}.items():
    print(f"{what:17}  {PROMPTS[2]} “{tokenizer.decode(stories[2])}”")
whole, half = (sum(each.nbytes for each in one.model.layers.parameters()) / 1e6
               for one in (model, halves[0]))
print(f"the layers' weights: {whole:.1f} MB in the whole model, {half:.1f} MB in each worker; "
      f"each sent {workers[0].sent_bytes / 1e6:.1f} MB in all")

# %% [markdown]
"""
Half a layer computes without an error, but returns only a part of every sum. The workers' parts differ, so each writes
its own gibberish.

## Decide: eight GPUs for 70 billion parameters

Back to the model that doesn't fit on one GPU. It has 80 layers and 8 KV heads. You have eight H100s and 64 requests of
5,120 tokens, prompt and answer together, with 107 GB of keys and values. You can form groups of GPUs, each with one
copy of the model: eight groups of 1, four of 2, two of 4, or one of 8.

**Guess first:** which of these hold the model and all requests? The next cell computes that, and a lower bound for the
last step: each GPU reads at full bandwidth, a sum takes 7 µs, and its bytes go at 450 GB/s (one direction of NVLink,
the link between GPUs). Read only its two functions.
"""

# %%
# Llama with 70 billion parameters, bfloat16
layers, width, keys, inner, vocabulary = 80, 8192, 1024, 28672, 128256
layers_gb = 2e-9 * layers * (2 * width * width + 2 * width * keys + 3 * width * inner)
# the last matrix, which isn't cut; the embedding is as large
last_gb = 2e-9 * width * vocabulary
caches_gb = 2e-9 * 2 * layers * keys * 5120 * 64 / 8  # on each GPU, however they are grouped


def read_ms(group):
    """What a decode step reads on each GPU, in groups of this size."""
    return (layers_gb / group + caches_gb + last_gb) / 3.35


def sums_ms(group):
    # bytes, for 8 requests on each GPU of the group
    sent = 2 * (group - 1) / group * 2 * width * 8 * group
    return 2 * layers * (7 + sent / 450e3) / 1000


rows = []
for group in (1, 2, 4, 8):
    stored_gb = layers_gb / group + caches_gb + 2 * last_gb
    steps = [f"{read_ms(group):.1f}", f"{read_ms(group) + sums_ms(group):.1f}"]
    rows.append([f"{8 // group} × {group}", f"{stored_gb:.0f}",
                 *(steps if stored_gb < 80 else ["doesn't fit"] * 2)])
Table(
    columns=["groups × GPUs", "GB on each GPU", "reading, ms", "reading and sums, ms"],
    rows=rows,
    caption="70 billion parameters, 64 requests of 5,120 tokens, eight H100s: computed, "
            "not measured",
)

# %% [markdown]
"""
Each GPU holds an eighth of the caches in any case, but groups of 2 have no room for it next to the weights. Of the two
setups that fit, the group of 8 is clearly faster, unless its sums take longer. In a ring of 8, a sum is 14 messages one
after the other; in a ring of 4, it is 6.

**With a pencil:** how much longer may a sum take in the group of 8 before both setups are equally fast? Start from the
third column: how large is the difference, and how many sums share it?
"""

# %%
lead = read_ms(4) - read_ms(8)
print(f"{lead:.1f} ms for {2 * layers} sums: {1000 * lead / (2 * layers):.0f} µs for each")

# %% [markdown]
"""
In a ring of two GPUs, a sum is two messages. If each takes half of the 7 µs, eight more take 28 µs: in rings, the lead
would be nearly gone. (Inside one host, engines avoid rings: see "Further".) So measure one thing: the time of a sum
over your GPUs. If the eight are in two machines with a slow link between them, two groups of 4 may well win. They also
lose less when a process dies: to the balancer of lesson 15, a group is one replica.
"""

# %% [markdown]
"""
## What is still wrong

**All wait for the slowest.** One slow GPU or link slows down every sum, and so every step.

**The last matrix isn't cut.** Each process computes all logits itself. vLLM cuts it, and the embedding.

**Between machines, links are slow.** There, pipeline parallelism is the usual choice.

## Quiz
"""

# %%
quiz("16")

# %% [markdown]
"""
## References

- M. Shoeybi et al.: *Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism*, 2019; the
  two cuts are in section 3. <https://arxiv.org/abs/1909.08053>
- Hugging Face transformers: distributed inference.
  <https://huggingface.co/docs/transformers/main/en/perf_infer_gpu_multi>
- vLLM: parallelism and scaling. <https://docs.vllm.ai/en/latest/serving/parallelism_scaling.html>
"""

# %% [markdown] folded=true
"""
## Further (optional)

### Beat the ring

Eight workers are timed on simulated links. Each message costs its sender 2 µs and its bytes at 50 GB/s, and arrives
5 µs later. There are two baselines: the ring, and an all-reduce that sends each part straight to its owner. Write one
that is faster than both for the short tensor of a single decode, and not slower than the faster one for the long tensor
of a prefill. The limit on the bytes doesn't apply here, but all workers must still return the same bits. Which of these
numbers matters most for which size?
"""

# %%
from lessons_lib.checks.lesson_16.scoreboard import all_reduce_scoreboard


def my_all_reduce(tensor, worker):
    return all_reduce(tensor, worker)  # replace this


all_reduce_scoreboard(my_all_reduce)

# %% [markdown]
"""
### An engine in two processes

Each process needs a scheduler of its own, and all must schedule the *same* step, or they would add up the results of
different tokens. So in `lessons_lib/serving/parallel_engine.py`, the first process sends the others what each step
begins and ends.

The next cell starts a second process, cuts every layer, and serves the six stories. (It runs the course's `cut_linear`,
and the sums are PyTorch's.)
"""

# %%
from lessons_lib.engine import EngineConfig, SamplingParams
from lessons_lib.serving.parallel_engine import parallel_engine

lengths = [min(each, 40) for each in MAX_NEW_TOKENS]
expected = generate_one_by_one(model, tokenizer, PROMPTS, max_new_tokens=lengths)
# too few blocks: some are preempted
config = EngineConfig(max_num_seqs=6, max_num_batched_tokens=64, num_blocks=16)
with parallel_engine(partial(load_model, None), config) as engine:
    outputs = engine.generate(PROMPTS, [SamplingParams(max_tokens=each) for each in lengths])
    print("the same tokens as one at a time:",
          [output.token_ids for output in outputs] == expected)
    heads = model.config.num_key_value_heads, engine.runner.cache.keys[0].shape[2]
    print(f"KV heads of the model: {heads[0]}; in this process: {heads[1]}")
    print(f"sequences preempted: {engine.scheduler.num_preempted}")

# %% [markdown]
"""
### Where do the milliseconds go?

Take the steps with one request from the table of GPUs and replicas. A decode step reads all weights once, so bytes
divided by bandwidth is a lower bound for its time (lessons 00 and 08). The measured step is far above it, and halving
the bytes doesn't halve the time. Why?

The recording has only the times of whole steps, but of two models whose layers do the same operations, on matrices of
very different sizes. In the small model, reading takes little of the step. So what *its* steps take beyond the bound,
divided by the number of operations and sums, is an estimate of what each of them costs however small it is:
"""

# %%
from lessons_lib.measuring.operations import CountOperations

BANDWIDTH = 3.35e12  # bytes per second of an H100, from its data sheet
SHAPES = {  # layers, hidden, keys, MLP, vocabulary
    "8 billion": (32, 4096, 1024, 14336, 128256),
    "0.5 billion": (24, 896, 128, 4864, 151936),
}
LARGE, SMALL = SHAPES["8 billion"][0], SHAPES["0.5 billion"][0]  # their layers


def ms_to_read(name, num_gpus):
    layers, hidden, keys, inner, vocabulary = SHAPES[name]
    of_layers = layers * (2 * hidden * hidden + 2 * hidden * keys + 3 * hidden * inner)
    # 2 bytes each; the last matrix isn't cut
    return 1e3 * 2 * (of_layers / num_gpus + hidden * vocabulary) / BANDWIDTH


small = load_model(device="cpu")[0].bfloat16()
hidden = torch.zeros(1, 1, small.config.hidden_size, dtype=torch.bfloat16)
angles = small.model.rotary_emb(hidden, torch.tensor([[0]]))
with torch.no_grad(), CountOperations() as operations:
    small.model.layers[0](hidden, position_embeddings=angles)

ways = ("one GPU", "two GPUs, one model")
step = {
    name: [two_gpus[shape][way]["1"]["decode_ms"] for way in ways]
    for name, shape in NAMES.items()
}
beyond = [step["0.5 billion"][gpus - 1] - ms_to_read("0.5 billion", gpus) for gpus in (1, 2)]
per_operation = beyond[0] / (SMALL * operations.count)
per_sum = (beyond[1] - beyond[0]) / (2 * SMALL)
print(f"the small model's step: {step['0.5 billion'][0]:.2f} ms; reading takes at least "
      f"{ms_to_read('0.5 billion', 1):.2f} ms")  # fmt: skip
print(f"operations of {SMALL} layers: {SMALL} × {operations.count}")
print(f"beyond the bound, for each operation: {1e3 * per_operation:.1f} µs; "
      f"for each sum, on two GPUs: {1e3 * per_sum:.1f} µs")  # fmt: skip
count = LARGE * operations.count
parts = {
    "reading the weights at full "
    "bandwidth (computed)": [ms_to_read("8 billion", n) for n in (1, 2)],
    f"{count:,} operations, "
    "each as in the small model (inferred)": [count * per_operation] * 2,
    f"{2 * LARGE} sums, each as in the small model (inferred)": [0, 2 * LARGE * per_sum],
}
told = [sum(part[gpu] for part in parts.values()) for gpu in (0, 1)]
parts["the rest: not explained"] = [step["8 billion"][gpu] - told[gpu] for gpu in (0, 1)]
parts["the step (measured)"] = step["8 billion"]
Table(
    columns=["8 billion parameters, 1 request, ms", *ways],
    rows=[[name, *(f"{each:.2f}" for each in part)] for name, part in parts.items()],
)

# %% [markdown]
"""
Only the last row of the table is measured. The rest is an estimate, and this is what it rests on:

- **Many small kernels.** The recorded engine replayed CUDA graphs, but nothing was compiled, so no operations were
  fused: a norm alone is half a dozen kernels. Each has to start and end, and reads and writes a few kilobytes. The
  second row assumes that an operation costs the same in both models.
- **The sums.** The third row contains everything that a second GPU adds: the link, waiting for the slower GPU, and the
  messages by which both engines stay in step. It comes from the small difference between two steps, so it is rough.
- **The rest** may be matrix products that don't reach the data sheet's bandwidth, sums that take longer for longer
  tensors, or an error of the two rows above. The times of whole steps can't tell these apart. A *profile* could:
  `torch.profiler` or Nsight Systems note the start and end of every kernel on the GPU.

What the estimate does explain is why two GPUs aren't twice as fast: only the first row is halved, and not all of that.

<details>
<summary><b>What production does</b>: vLLM, transformers</summary>

- **transformers**: `AutoModelForCausalLM.from_pretrained(name, tp_plan="auto")`, started in several processes with
  `torchrun`, cuts a model by a plan in its configuration (`base_model_tp_plan`). For Llama, the plan's cuts are yours,
  and those of `CUTS` in `lessons_lib/serving/tensor_parallel.py`.
- **vLLM**, cuts: `ColumnParallelLinear` and `RowParallelLinear` in `vllm/model_executor/layers/linear.py`; the sum is
  `tensor_model_parallel_all_reduce`. `--tensor-parallel-size 2` is all you have to say.
- **vLLM**, short tensors inside one host: `CustomAllreduce` in
  `vllm/distributed/device_communicators/custom_all_reduce.py` takes the place of a ring. GPUs read each other's tensors
  directly, in one or two rounds.
- **vLLM**, processes: one scheduler for all of them. `vllm/v1/executor/multiproc_executor.py` sends its decisions to
  the workers. Ours lets every process schedule for itself, and checks that all did the same.

</details>
"""
