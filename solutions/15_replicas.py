# %% [markdown]
"""
# 15 · Replicas and two GPUs

**One engine is full. How do several serve as if they were one, and what if the model doesn't fit on one GPU?**

90 minutes · difficulty: hard · routes: serving · prerequisites: lesson 11 (prefix sharing) and lesson 14 (serving)

There are two ways to use a second GPU. It can hold a copy of the model, and then the question is which copy gets which request, and what happens to the
requests of a copy that dies. Or it can hold half of the model: then every matrix has to be cut, and the results of both halves have to be added up. We build the core of both. You need neither a GPU nor a
cluster: the replicas are engines in this process, and the two halves of the model are first two threads and then two processes on your CPU. Figures that were recorded on other machines are marked as such.

The minutes above cover the five exercises and the text between them. Optional parts are extra.
"""

# %%
import json
import random
from functools import partial

import torch
import torch.nn.functional as F
from IPython.display import display
from torch.utils._python_dispatch import TorchDispatchMode

from lessons_lib.batching import generate_one_by_one
from lessons_lib.checks import check, hint, predict, progress, quiz, reveal, solution
from lessons_lib.checks.lesson_15.scoreboard import routing_scoreboard
from lessons_lib.engine import EngineConfig, LLMEngine, SamplingParams
from lessons_lib.measuring import MAX_NEW_TOKENS, PROMPTS, STORIES, recorded_engine
from lessons_lib.measuring.published import FOLDER as RECORDED
from lessons_lib.models import load_model
from lessons_lib.serving.failover import Chunk, ReplicaLost
from lessons_lib.serving.parallel_engine import parallel_engine
from lessons_lib.serving.router import PrefixAffinity, Replica, RoundRobin, TwoChoices, hash_prompt
from lessons_lib.serving.routing_simulation import chat_prompts, simulate_routing
from lessons_lib.serving.tensor_parallel import cut_model
from lessons_lib.serving.workers import run_workers
from lessons_lib.viz.replicas import PrefixPlaces, StreamRecord, draw_cut_matrices, draw_prefix_places, draw_streams
from lessons_lib.viz.tables import Table

model, tokenizer = load_model(device="cpu")  # float32, so that answers can be compared token by token
BLOCK = 16
recorded = json.loads((RECORDED / "replicas.json").read_text(encoding="utf-8"))


def new_engine(max_num_seqs=6):
    return LLMEngine(model, tokenizer, EngineConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=256, num_blocks=64))


# %% [markdown]
"""
## The problem: one engine is full

An engine that runs four sequences at a time gets twelve requests at once. Then the same twelve go to two such engines, six to each.
"""

# %%
def gauges_after_two_steps(num_engines):
    engines = [new_engine(max_num_seqs=4) for _ in range(num_engines)]
    for index in range(12):
        engines[index % num_engines].add_request(PROMPTS[index % 6], SamplingParams(max_tokens=8))
    for engine in engines:
        engine.step()
        engine.step()
    return [engine.gauges() for engine in engines]


for num_engines in (1, 2):
    now = gauges_after_two_steps(num_engines)
    print(f"{num_engines} engine(s): running {[each.running for each in now]}, waiting {[each.waiting for each in now]}")

# %% [markdown]
"""
A larger batch would help until memory runs out. From then on, you need a second engine with a model of its own.

> **replica**: one of several servers with the same model. Any of them can serve any request.

> **load balancer**: what clients talk to. It chooses a replica for each request and passes the answer on.

Two replicas are not as good as one engine that is twice as large. Each has its own waiting queue, so one can be full while the other is idle. And each has
its own prefix cache (lesson 11), so what one has computed is unknown to the other. That makes the choice matter.

## Predict

One conversation has five turns. Each prompt contains everything said before, so the five prompts have 64, 128, 192, 256 and 320 tokens. A replica finds the
full blocks of any prompt that it computed before. There are two replicas, which are used alternately: the first prompt goes to replica 0, the second to replica 1, the third to
replica 0, and so on.

**15.a** How many prompt tokens are found in a cache, over all five prompts?
"""

# %%
predict("15.a", ...)  # tokens

# %% [markdown]
"""
In the second half of the lesson, we cut a model into two parts. After each attention block and after each MLP, the results of the two parts are added up.

**15.b** The course's model has 8 layers. How many such sums does one forward pass take?
"""

# %%
predict("15.b", ...)  # sums

# %% [markdown]
"""
## The idea: send a prompt where its beginning is

Here are three ways to choose, from simple to clever:

- **Round robin**: one after the other.
- **Two choices**: draw two replicas at random, and take the one that serves fewer requests. The second draw makes the load far more even than a single one would.
- **Prefix affinity**: take the replica that was sent the longest beginning of this prompt.

> **prefix affinity**: sending a request to the replica whose cache probably holds the beginning of its prompt.

Let's try them on six conversations, A to F, of five turns each. The prompts arrive in mixed order, and no model runs: only prefix caches are simulated, with blocks of 16
tokens as in lesson 11.
"""

# %%
draw = random.Random(3)
conversations = {name: [draw.randrange(4096) for _ in range(320)] for name in "ABCDEF"}
order = [name for name in "ABCDEF" for _ in range(5)]
draw.shuffle(order)
six_chats = [conversations[name][: 64 * (1 + order[:index].count(name))] for index, name in enumerate(order)]


def places(policy, num_replicas=2):
    result = simulate_routing(six_chats, policy, num_replicas, num_blocks=200)
    cached = {name: [sum(one in cache for one in hash_prompt(tokens, BLOCK)) for cache in result.cached_blocks] for name, tokens in conversations.items()}
    return PrefixPlaces(policy.name, cached, result.hit_rate)


draw_prefix_places([places(RoundRobin()), places(TwoChoices(seed=1)), places(PrefixAffinity(4))], {name: 320 // BLOCK for name in conversations})

# %%
turns = [list(range(64 * turn)) for turn in range(1, 6)]
found = simulate_routing(turns, RoundRobin(), 2).cached_tokens
reveal("15.a", found, unit="tokens")
print(f"with prefix affinity: {simulate_routing(turns, PrefixAffinity(4), 2).cached_tokens} of {sum(map(len, turns))} prompt tokens")

# %% [markdown]
"""
With round robin, each prompt finds what the prompt *before the last* left behind: 64 + 128 + 192 = 384. And in the picture, every conversation takes up memory in both caches.
With affinity, each is in one cache only, so the two caches together hold twice as much.

### Why not affinity alone?

Suppose that all prompts begin with the same instructions. The first one goes to some replica. From then on, that replica has been sent the longest beginning of *every*
prompt, and the others get nothing. So affinity needs a limit: a replica that is much busier than the least loaded one isn't chosen for its prefix.

How does the balancer know what is in a cache? It doesn't ask. It remembers what it has sent, and that is a good guess.

## Build 1: which replica

The balancer keeps a `Replica` for each server, with these attributes:

| attribute | meaning |
|---|---|
| `load` | how many requests it is serving now |
| `num_sent` | how many requests it was sent in all |
| `sent_blocks` | the block hashes of the prompts that it was sent; `block_hash in replica.sent_blocks` is True or False |

**Your task: `choose_replica(block_hashes, replicas, imbalance_limit)`.** `block_hashes` are those of the prompt's full blocks, in order, as in lesson 11: each covers
everything up to the end of its block. `replicas` is a list of one or more. Return an index.

1. A replica *matches* as many blocks as it was sent from the start of the prompt without a gap. Find the replica that matches the most. If several match
   equally many, take the one with the smaller load; then the one with the smaller `num_sent`; then the first.
2. Find the least loaded replica, with the same rules for ties: `num_sent`, then the first.
3. If the load of the first one is more than `imbalance_limit` above that of the second one, return the second one. Otherwise return the first one.

Change nothing. Example: the prompt has blocks a, b, c, and the limit is 2. Replica 0 was sent a, b and serves 5 requests. Replica 1 was sent b, c and serves 3. Replica 0
matches two blocks; replica 1 matches none, because a is missing. 5 is not more than 3 + 2, so the answer is 0. With a limit of 1 it is 1.
"""

# %% exercise="15.1"
from lessons_lib.serving.router import choose_replica

# %% [markdown]
"""
Now with your function, on a larger workload: 150 conversations, 24 of which are open at the same time. Each begins with one of four system prompts. 16
requests run at a time, and each replica's cache has 400 blocks.
"""

# %%
class Affinity:
    """Your `choose_replica` as a policy."""

    def __init__(self, limit):
        self.limit, self.name = limit, f"affinity, limit {limit}" if limit < 1000 else "affinity, no limit"

    def choose(self, block_hashes, replicas):
        return choose_replica(block_hashes, replicas, self.limit)


prompts = chat_prompts(seed=0)
rows = []
for make in (RoundRobin, TwoChoices, *(partial(Affinity, limit) for limit in (0, 1, 2, 4, 8, 1000))):
    row = [make().name]
    for num_replicas in (2, 4):
        result = simulate_routing(prompts, make(), num_replicas)
        row += [f"{result.hit_rate:.0%}", f"{result.highest_load}"]
    rows.append(row)
Table(
    columns=["policy", "2 replicas: found", "highest load", "4 replicas: found", "highest load"],
    rows=rows,
    caption=f"{len(prompts)} prompts, {sum(map(len, prompts)):,} tokens; found: share of the prompt tokens that were in a cache",
)

# %% [markdown]
"""
Three things to see. Round robin and two choices get *worse* with more replicas: the more there are, the less likely the right one is chosen by chance. Affinity with a
limit of 2 or more doesn't. And the limit is a trade-off: a small limit keeps the load even, a large one finds more. "Highest load" is the most requests
that one replica had at a time; 16 requests over 4 replicas would ideally be 4 each.
Round robin reaches that only because the oldest request always ends first in this simulation. With answers of different lengths, it wouldn't.

### Optional: beat the reference

Write a rule of your own: a function of the prompt's block hashes and the list of replicas that returns an index. It is scored on conversations that you can't see,
with 4 replicas. No replica may ever serve more than 6 requests at a time. Under the same bound, the reference is `choose_replica` with a limit of 2. There is room above it.
"""

# %%
def my_rule(block_hashes, replicas):
    return choose_replica(block_hashes, replicas, 2)  # replace this


routing_scoreboard(my_rule)

# %% [markdown]
"""
## A replica dies

A process is killed, a machine loses power, a GPU reports an error. The streams that it was serving stop in the middle of a word. The client must not be left waiting, so
the balancer has three options:

1. **An error event.** The stream ends with a message. The client sends its request again, and pays for everything twice.
2. **Begin again** on another replica. That works only as long as the client has received nothing. Afterwards, it would see the beginning twice.
3. **Go on elsewhere.** The balancer has passed every token on, so it knows them all. Another replica can continue from there.

The third is the best, if the client gets exactly the tokens that it would have got without the failure. The simplest way is to send the prompt and the tokens so far as
one longer prompt. Is that the same? Four requests, each cut after ten tokens:
"""

# %%
ids, CUT, LENGTH = tokenizer(PROMPTS[1]).input_ids, 10, 24
whole = new_engine().generate([ids], SamplingParams(max_tokens=LENGTH, ignore_eos=True))[0]
across = tokenizer.decode(whole.token_ids[CUT - 1]).strip() + tokenizer.decode(whole.token_ids[CUT])
cases = {
    "greedy": dict(),
    "temperature 1, seed 5": dict(temperature=1.0, seed=5),
    "presence penalty 1.5": dict(presence_penalty=1.5),
    f"stop at {across!r}": dict(stop=[across]),
}


def answer(prompt, output_ids=(), **fields):
    engine = new_engine()
    engine.add_request(prompt, SamplingParams(ignore_eos=True, **fields), request_id="cut", output_ids=output_ids)
    while engine.has_unfinished():
        done = engine.step()
    return done[0].token_ids


rows, uncut_answers = [], {}
for name, fields in cases.items():
    uncut = uncut_answers[name] = answer(ids, max_tokens=LENGTH, **fields)
    longer_prompt = uncut[:CUT] + answer(ids + uncut[:CUT], max_tokens=LENGTH - CUT, **fields)
    same = sum(one == other for one, other in zip(longer_prompt, uncut))
    verdict = f"no: {same} of {len(uncut)} tokens are" if same < len(uncut) else f"no: {len(longer_prompt)} tokens instead of {len(uncut)}"
    rows.append([name, "yes" if longer_prompt == uncut else verdict])
Table(columns=["request", "as a longer prompt: the same tokens"], rows=rows)

# %% [markdown]
"""
Only plain greedy decoding is safe. As part of the prompt, the ten tokens no longer count as *generated*. The random number of a token depends on the seed and on how many tokens
were generated before it (lesson 12), so the random numbers start again. Penalties look at generated tokens only. And half of the stop string is before the cut, where nothing looks for it
anymore: that completion should have ended, but it goes on.

So the replica has to be told which tokens are prompt and which are output. Our engine takes the tokens so far as `output_ids`, and over HTTP as `output_token_ids`. As after a preemption
(lesson 10), it computes their keys and values again and keeps the tokens.

## Build 2: the request that goes on

**Your task: `request_to_go_on(request, token_ids)`.** `request` is a dict, the request that the lost replica was sent: `"prompt"` (token ids), `"max_tokens"`, and any other fields. `token_ids`
is a list: the tokens that the reader has received in answer to this request. Return the request for the next replica.

- It is a new dict with the same fields, and one more: `"output_token_ids"`, a new list of *all* tokens of the completion so far. If `request` itself has `"output_token_ids"`, its
  completion was moved before: these tokens come first.
- `max_tokens` limits the whole completion, including `output_token_ids`.
- Return None if no token is missing: the completion has `max_tokens` tokens, or its last token is one of `request["stop_token_ids"]`, if there is such a field.
- If `request["n"]` is given and above 1, raise `ValueError`: nothing says which token belongs to which completion.

Change neither argument. Example: `request_to_go_on({"prompt": [5, 6], "max_tokens": 4, "seed": 1}, [8, 9])` returns `{"prompt": [5, 6], "max_tokens": 4, "seed": 1,
"output_token_ids": [8, 9]}`. With four token ids it returns None.
"""

# %% exercise="15.2"
from lessons_lib.serving.failover import request_to_go_on

# %%
rows = []
for name, fields in cases.items():
    request = dict(prompt=ids, max_tokens=LENGTH, **fields)
    uncut = uncut_answers[name]
    again = request_to_go_on(request, uncut[:CUT])
    rows.append([name, "yes" if answer(output_ids=again.pop("output_token_ids"), **again) == uncut else "no"])
Table(columns=["request", "as output tokens: the same tokens"], rows=rows)

# %% [markdown]
"""
## Build 3: the core of a balancer

Now we put it together. A stream consists of chunks:

| `Chunk` attribute | meaning |
|---|---|
| `token_ids` | new tokens; may be empty in the last chunk |
| `finish_reason` | None, except in the last chunk: "stop", "length" or "error" |
| `error` | what went wrong, if the reason is "error" |

A replica has an attribute `load` and a method `stream(request)`, which returns an iterator of chunks. The iterator has a method `close()`: it ends the connection, and a replica
that still runs aborts the request. `ReplicaLost` may be raised by `stream(...)` itself or at any chunk. A cut connection may also look like the end of the iterator *without* a
`finish_reason`. Both mean the same.

**Your task: the generator `relay(request, replicas, choose, max_moves=2)`.** It yields the chunks of one request with one completion, whatever happens to the replicas. `choose(candidates)` gets a
list of those that can still be asked, and returns an index in it. `relay` guarantees the following:

- **The reader** gets each token once and as soon as it is there, and then exactly one `finish_reason`. The tokens are those of a run without a failure. For that, all replicas need the same
  seed: if the request has none (missing or None), draw one.
- **The replicas**: one that was lost isn't asked again, and after the first, at most `max_moves` others are asked, since it may be the request that kills them. `relay` counts its stream in the
  replica's `load`, from before the call of `stream` until that stream is over. Every stream is closed. Both hold however the stream ends, even if the reader leaves.
- **The errors**: if nothing is left to ask, the last chunk is `Chunk([], "error", "…")` with a message. If a replica raises anything but `ReplicaLost`, it has *refused* the request. Every other one would
  do the same, so the last chunk is `Chunk([], "error", str(error))`.
- **The caller's** dict `request` and list `replicas` stay as they are.

| A, B and C would all answer 11, 12, 13. | the reader gets | asked |
|---|---|---|
| A is lost after 11 and 12. | 11, 12, 13, "length" | A, then B with `output_token_ids` [11, 12] |
| A is lost after 13, before the reason came. | 11, 12, 13, and `Chunk([], "length")`; "stop" if 13 is one of the `stop_token_ids` | A only: no token is missing |
| Each is lost before its first token. | "error" | all three, as `max_moves` is 2 |
| A raises `ValueError("max_tokens is -1")`. | "error", with that message | A only |

`Chunk`, `ReplicaLost` and `random` are imported in the cell.
"""

# %% exercise="15.3"
import random

from lessons_lib.serving.failover import Chunk, ReplicaLost

from lessons_lib.serving.failover import relay

# %% [markdown]
"""
### Kill one

Two replicas, each a real engine. All six stories are streamed at the same time, with your `relay` and your `choose_replica`; the readers take turns. After nine rounds, replica 0 is lost.
"""

# %%
class LocalReplica(Replica):
    """An engine in this process that can be killed."""

    def start(self, number):
        self.number, self.engine, self.is_alive = number, new_engine(), True
        return self

    def stream(self, request):
        fields = dict(request)
        prompt, so_far = fields.pop("prompt"), fields.pop("output_token_ids", ())
        if not self.is_alive:
            raise ReplicaLost(f"replica {self.number} doesn't answer")
        self.num_sent += 1
        self.sent_blocks.add(hash_prompt(prompt, BLOCK))
        for token in self.engine.stream(prompt, SamplingParams(**fields), output_ids=so_far):
            if not self.is_alive:
                raise ReplicaLost(f"replica {self.number} has gone")
            record.tokens.append((clock, self.number))
            yield Chunk([token.token], token.finish_reason)


def serve_through_a_kill(max_moves, lost_at=9):
    global record, clock
    replicas = [LocalReplica().start(number) for number in range(2)]
    records, answers, readers = {}, {}, {}
    for story in STORIES:
        request = dict(prompt=tokenizer(story.prompt).input_ids, max_tokens=min(story.max_new_tokens, 40))
        records[story.name], answers[story.name] = StreamRecord(story.name), []
        hashes = hash_prompt(request["prompt"], BLOCK)
        choose = lambda remaining, hashes=hashes: choose_replica(hashes, remaining, 1)
        readers[story.name] = relay(request, replicas, choose, max_moves)
    clock = 0
    while readers:
        replicas[0].is_alive = clock < lost_at
        for name in list(readers):
            record = records[name]
            chunk = next(readers[name])
            answers[name] += chunk.token_ids
            if chunk.finish_reason:
                record.end = (clock, chunk.finish_reason)
                del readers[name]
        clock += 1
    return list(records.values()), list(answers.values()), replicas


alone = generate_one_by_one(model, tokenizer, PROMPTS, max_new_tokens=[min(each, 40) for each in MAX_NEW_TOKENS])
records, answers, replicas = serve_through_a_kill(max_moves=2)
print("the same tokens as without a failure:", answers == alone)
print("loads afterwards:", [replica.load for replica in replicas])
draw_streams(records, 2, lost=(0, 9))

# %%
cut_records, cut_answers, _ = serve_through_a_kill(max_moves=0)
for one, answer_cut, answer_alone in zip(cut_records, cut_answers, alone):
    print(f"{one.name}: {len(answer_cut):2} of {len(answer_alone):2} tokens, ends with {one.end[1]!r}")

# %% [markdown]
"""
Without moves, the streams of replica 0 end with an error: not nice, but honest. With moves, the readers only see a short pause (the picture counts chunks, so the pause doesn't show). The second replica computes the keys and values of the
prompt and the tokens so far in one prefill, and goes on.

`lessons_lib/serving/balancer.py` is the same over HTTP and plain server processes. It also asks each replica's `/health` every half second, so that a replica that *hangs* is noticed too.

## A model too large for one GPU

Replicas don't help if a single copy doesn't fit:
"""

# %%
for billions in (8, 70):
    print(f"{billions} billion parameters in bfloat16: {2 * billions} GB; one H100 has 80 GB, and the KV cache needs its share of it")

# %% [markdown]
"""
So a model has to be spread over several GPUs. You could give each GPU some of the layers, which is called *pipeline parallelism*. But a token goes through the layers one after the other, so only one GPU
works on a batch at a time. Several batches under way keep all GPUs busy, but no step gets faster. The other way is to cut every layer.

> **tensor parallelism**: several processes, each with a GPU, compute every layer together. Each has a part of every large matrix.

Take the MLP of a layer. In its simplest form it is a matrix, a function like SiLU that treats each element separately, and a second matrix. Cut the first by *columns*, and each process computes some of the elements, from the whole input. Cut the
second by *rows* at the same places, and each process has exactly the inputs that its rows need. What it gets is a part of every sum:
"""

# %%
draw_cut_matrices(num_tokens=4, inputs=12, inner=16, outputs=12)

# %% [markdown]
"""
Nothing is sent between the two matrices. Attention works the same way: its "elements" are the heads. A process computes queries, keys and values of its own heads, attends with them, and multiplies by its rows of the
output matrix. So its cache holds only its own KV heads. Only two sums in each layer have to be sent.

> **all-reduce**: each process has a tensor, and afterwards each has the sum of all of them.

## Build 4: the two cuts

`torch.nn.Linear` stores its weight as `[outputs, inputs]` and computes `x @ weight.T + bias`. The names of the cuts refer to the transposed weight in this formula.

**Your task: `cut_linear(weight, bias, cut, rank, world_size)`.** Return the tuple (weight, bias) of one process. `rank` is its index, and `world_size` the number of processes. `bias` is a tensor or None.

- `cut == "colwise"`: the *outputs* are divided among the processes, rank 0 first. The results of all processes, side by side, are the layer's output.
- `cut == "rowwise"`: the *inputs* are divided among the processes, rank 0 first. The results of all processes, added up, are the layer's output.
- A process may return None for the bias, or zeros, if it adds none.
- If equal parts aren't possible, raise `ValueError`.
- Return new tensors, which keep nothing of the whole ones in memory: that's the point of it all.

Example: a weight of shape [4, 6], two processes. Colwise, each gets [2, 6]; rowwise, each gets [4, 3].
"""

# %% exercise="15.4"
from lessons_lib.serving.tensor_parallel import cut_linear

# %% [markdown]
"""
The first layer's MLP of the course's model, with your cuts, in two and four parts:
"""

# %%
mlp = model.model.layers[0].mlp
x = torch.randn(5, model.config.hidden_size, generator=torch.Generator().manual_seed(0))


def part_of_mlp(rank, world_size):
    gate, up = (F.linear(x, *cut_linear(linear.weight, None, "colwise", rank, world_size)) for linear in (mlp.gate_proj, mlp.up_proj))
    return F.linear(F.silu(gate) * up, *cut_linear(mlp.down_proj.weight, None, "rowwise", rank, world_size))


for world_size in (2, 4):
    total = sum(part_of_mlp(rank, world_size) for rank in range(world_size))
    print(f"{world_size} parts: the sum differs from the whole MLP by less than 0.00001: {bool((total - mlp(x)).abs().max() < 1e-5)}")

# %% [markdown]
"""
## Build 5: the sum over all workers

The `sum(...)` above was too easy: all parts were in one place. With tensor parallelism, each part is on another GPU. In the simplest all-reduce, every process sends its tensor to process 0, which adds them up and sends the sum back. With N
processes, process 0 then sends and receives N - 1 whole tensors, while the links of the others are hardly used.

> **reduce-scatter**: each process has a tensor, and afterwards each has one part of the sum.

> **all-gather**: each process has a part, and afterwards each has all of them.

One after the other, these two make an all-reduce. You build it for *workers*, which are threads here, so that it runs in this notebook. Workers communicate only through these methods:

| of a `worker` | meaning |
|---|---|
| `rank`, `world_size` | its index, and N, the number of workers |
| `send(to, tensor)` | sends a copy of a tensor to the worker with the rank `to`; doesn't wait |
| `receive(source)` | waits for the next tensor that the worker `source` has sent to this one, and returns it |

**Your task: `all_reduce(tensor, worker)`.** All workers call it at the same time, each with its own tensor; the shapes and types are equal. Return the sum.

- The result is a new tensor of the same shape and type. Everything that was sent has been received.
- **Bytes**: a worker sends at most 2 (N - 1) / N of the bytes of its tensor. If N doesn't divide its number of elements n, round up: 2 (N - 1) * ceil(n / N) elements. n may be less than N.
- **Bits**: every worker returns the same bits. Float sums depend on their order, and two workers that differ in the last bit could choose different tokens. Compared with the exact sum, N - 1 additions in float32 may
  be off by (N - 1) * 2⁻²⁴ of the sum of the absolute values.

Example: two workers with [1, 2, 3, 4] and [10, 20, 30, 40]. Both return [11, 22, 33, 44], and each sends two elements twice. If all workers wait for each other, the check says where.
"""

# %% exercise="15.5"
from lessons_lib.serving.all_reduce import all_reduce

# %% [markdown]
"""
The first table shows what your workers send, in order. Worker 0 has 1 everywhere, worker 1 has 10, and worker 2 has 100. So each digit says how often a worker was counted, and 111 is complete.

Is it worth the trouble? The second table shows the elements that the busiest worker sends for a tensor of 4096 elements.
"""

# %%
def watched(worker):
    send = worker.send

    def send_and_note(to, tensor):
        messages[worker.rank].append(f"{[round(each) for each in tensor.flatten().tolist()]} to {to}")
        send(to, tensor)

    worker.send = send_and_note
    return all_reduce(torch.full([3], 10.0**worker.rank), worker)


messages = {rank: [] for rank in range(3)}
run_workers(watched, 3)
rows = [[f"{step}.", *row] for step, row in enumerate(zip(*messages.values()), 1)]
display(Table(columns=["", *(f"worker {rank} sends" for rank in messages)], rows=rows, caption="3 workers, 3 elements each"))


def through_worker_0(tensor, worker):
    if worker.rank:
        worker.send(0, tensor)
        return worker.receive(0)
    total = tensor + sum(worker.receive(source) for source in range(1, worker.world_size))
    for to in range(1, worker.world_size):
        worker.send(to, total)
    return total


rows = []
for num_workers in (2, 4, 8, 16):
    row = [num_workers]
    for function in (through_worker_0, all_reduce):
        _, workers = run_workers(lambda worker: function(torch.ones(4096), worker), num_workers)
        row.append(f"{max(worker.sent_bytes for worker in workers) // 4:,}")
    rows.append(row)
Table(columns=["workers", "through worker 0", "your all_reduce"], rows=rows, caption="elements that the busiest worker sends")

# %% [markdown]
"""
However many workers there are, none sends more than two tensors, apart from rounding up. What does grow is the number of messages. In a ring, 2 (N - 1) of them follow one another. Workers that send each part straight to the one that adds it up
need only two rounds, but every worker sends to every other. For short tensors, the waits count more than the bytes, so NCCL, NVIDIA's library for this, has other algorithms than the ring.

### A whole model in two parts

`cut_model` cuts every layer with `cut_linear`, and puts an all-reduce after each second matrix. In the first cell below, two workers, each with half of the model and your `all_reduce`, generate three stories.

An engine is more than a model. Each process needs an engine of its own, and all must schedule the *same* step, or they would add up the results of different tokens. So in `lessons_lib/serving/parallel_engine.py`, the first process tells the others about every call that
changes its engine, and they make the same call. Two things must not differ: the seeds, which the first process draws, and the arrival times, which policies compare. The second cell starts such a process and serves the six stories. (It imports everything anew, which
takes a few seconds. Between processes, PyTorch's all-reduce takes the place of yours.)
"""

# %%
halves, sums = [load_model(device="cpu")[0] for _ in range(2)], [0, 0]
LENGTHS = [min(each, 12) for each in MAX_NEW_TOKENS[:3]]


def generate_with_half(worker):
    def counted(tensor):
        sums[worker.rank] += 1
        return all_reduce(tensor, worker)

    half = halves[worker.rank]
    cut_model(half, worker.rank, worker.world_size, counted)
    return generate_one_by_one(half, tokenizer, PROMPTS[:3], max_new_tokens=LENGTHS)


answers, workers = run_workers(generate_with_half, 2)
expected = [tokens[:length] for tokens, length in zip(alone, LENGTHS)]
passes = sum(len(tokens) for tokens in answers[0])  # one forward pass for each new token
reveal("15.b", sums[0] / passes, unit="sums")
print("the same tokens as the whole model:", answers[0] == expected)
print("the same in both workers:", answers[0] == answers[1])
own, whole = (sum(each.numel() for each in one.model.layers.parameters()) for one in (halves[0], model))
print(f"parameters of the layers: {own:,} of {whole:,} in each worker")
print(f"kilobytes that each has sent: {[round(worker.sent_bytes / 1000) for worker in workers]}")

# %%
config = EngineConfig(max_num_seqs=6, max_num_batched_tokens=64, num_blocks=16)  # too few blocks: some are preempted
with parallel_engine(partial(load_model, None), config) as engine:
    outputs = engine.generate(PROMPTS, [SamplingParams(max_tokens=min(each, 40)) for each in MAX_NEW_TOKENS])
    print("the same tokens as one at a time:", [output.token_ids for output in outputs] == alone)
    print(f"KV heads of the model: {model.config.num_key_value_heads}; in this process: {engine.runner.cache.keys[0].shape[2]}")
    print(f"sequences preempted: {engine.scheduler.num_preempted}")

# %% [markdown]
"""
Two sums in each of 8 layers: 16. A worker has a little more than half of the parameters, because the norms stay whole. Heads can't be cut in half, so here the number of processes must divide the number of KV heads. (vLLM goes further: if there are
more processes than KV heads, several of them hold a copy of the same head.)

## Two replicas, or one model on two GPUs?

Suppose the model fits on one GPU, and you have two. Here is how the two compare, recorded with random weights in the shapes of two models. Each of two replicas gets half of the requests:
"""

# %%
two_gpus = recorded["two_gpus"]
NAMES = {"8 billion": "llama_8_billion", "0.5 billion": "qwen_half_billion"}
rows = []
for name, shape in NAMES.items():
    for way, found in two_gpus[shape].items():
        steps = [f"{found[count]['decode_ms']:.2f} ms" if count in found else "–" for count in ("1", "16", "64")]
        rows.append([name, way, *steps, f"{found['64']['tokens_per_s']:,.0f}"])
Table(
    columns=["parameters", "", "a step: 1 request", "16 requests", "64 requests", "tokens/s, 64 requests"],
    rows=rows,
    caption=two_gpus["provenance"],
)

# %% [markdown]
"""
### Where do the milliseconds go?

Take the steps with one request. A decode step reads all weights once, and the bytes over the bandwidth are a lower bound for its time (lesson 08). The bound is far below the measured step, and halving the bytes doesn't halve the time. Why?

The recording has only the times of whole steps. But it has two models whose layers do the same operations, on matrices of very different sizes. In the small model, reading takes little of the step. So what *its* steps take beyond the bound, divided by the number of operations and
sums, is an estimate of what each of them costs however small it is:
"""

# %%
BANDWIDTH = 3.35e12  # bytes per second of an H100, from its data sheet
SHAPES = {"8 billion": (32, 4096, 1024, 14336, 128256), "0.5 billion": (24, 896, 128, 4864, 151936)}  # layers, hidden, keys, MLP, vocabulary


def milliseconds_to_read(name, num_gpus):
    layers, hidden, keys, inner, vocabulary = SHAPES[name]
    of_layers = layers * (2 * hidden * hidden + 2 * hidden * keys + 3 * hidden * inner)
    return 1e3 * 2 * (of_layers / num_gpus + hidden * vocabulary) / BANDWIDTH  # 2 bytes each; the last matrix isn't cut


class CountOperations(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.count += not operation.is_view and "view" not in operation.name()  # a view computes nothing
        return operation(*args, **(kwargs or {}))


small = load_model(device="cpu")[0].bfloat16()
hidden = torch.zeros(1, 1, small.config.hidden_size, dtype=torch.bfloat16)
angles = small.model.rotary_emb(hidden, torch.tensor([[0]]))
with torch.no_grad(), CountOperations() as operations:
    small.model.layers[0](hidden, position_embeddings=angles)

step = {name: [two_gpus[shape][way]["1"]["decode_ms"] for way in ("one GPU", "two GPUs, one model")] for name, shape in NAMES.items()}
beyond = [step["0.5 billion"][gpus - 1] - milliseconds_to_read("0.5 billion", gpus) for gpus in (1, 2)]
per_operation = beyond[0] / (SHAPES["0.5 billion"][0] * operations.count)
per_sum = (beyond[1] - beyond[0]) / (2 * SHAPES["0.5 billion"][0])
print(f"the small model's step: {step['0.5 billion'][0]:.2f} ms; reading its weights takes at least {milliseconds_to_read('0.5 billion', 1):.2f} ms")
print(f"operations of a layer: {operations.count}; of {SHAPES['0.5 billion'][0]} layers: {SHAPES['0.5 billion'][0] * operations.count}")
print(f"beyond the bound, for each operation: {1e3 * per_operation:.1f} µs; for each sum, on two GPUs: {1e3 * per_sum:.1f} µs")

# %%
num_layers = SHAPES["8 billion"][0]
parts = {"reading the weights at full bandwidth (computed)": [milliseconds_to_read("8 billion", gpus) for gpus in (1, 2)]}
parts[f"{num_layers * operations.count:,} operations, each as in the small model (inferred)"] = [num_layers * operations.count * per_operation] * 2
parts[f"{2 * num_layers} sums, each as in the small model (inferred)"] = [0, 2 * num_layers * per_sum]
parts["the rest: not explained"] = [whole - sum(part[gpu] for part in parts.values()) for gpu, whole in enumerate(step["8 billion"])]
parts["the step (measured)"] = step["8 billion"]
waits = {mode["name"]: mode["decode_ms"]["wait"] for mode in recorded_engine().modes}
graphs, compiled = waits["decodes from CUDA graphs"], waits["compiled too"]
print(f"0.5 billion parameters, 256 requests, one H200 (lesson 13): the CPU waits for the GPU {graphs:.2f} ms in a step; {compiled:.2f} ms if compiled")
Table(
    columns=["8 billion parameters, 1 request, ms", "one GPU", "two GPUs, one model"],
    rows=[[name, *(f"{each:.2f}" for each in part)] for name, part in parts.items()],
)

# %% [markdown]
"""
Only the last row of the table is measured. The rest is an estimate, and this is what it rests on:

- **Many small kernels.** The recorded engine replayed CUDA graphs, but nothing was compiled, so no operations were fused: a norm alone is half a dozen kernels. Each has to start and end, and reads and writes a few kilobytes. Their cost is measured in
  one case only: in lesson 13, the CPU waits much less for the GPU after the small model is compiled, which fuses many of them (the line above the table, on another GPU and with 256 requests). For the large model it isn't measured. The second row assumes that an operation costs the same in both models. And the count
  is of PyTorch's operations: attention is one of them, though the engine's own attention takes a few kernels.
- **The sums.** The third row contains everything that a second GPU adds: the link, waiting for the slower GPU, and the messages by which both engines stay in step. It comes from the small difference between two steps, so it is rough.
- **The rest** may be matrix products that don't reach the data sheet's bandwidth, sums that take longer for longer tensors, or an error of the two rows above. It hardly shrinks on two GPUs, so bandwidth alone doesn't explain it. The times of whole steps can't tell these apart.

A *profile* could: `torch.profiler` or Nsight Systems note the start and end of every kernel on the GPU. For each matrix product, bytes divided by time is the bandwidth that it reached. The sum of the small kernels, and the gaps between them, would confirm or refute the second row. And each all-reduce
would show how long it runs, and how much of that is waiting.

What the estimate does explain is why two GPUs aren't twice as fast: only the first row is halved, and not all of that. For the small model, the sums cost more than the cut saves: its step got slower.

### Which one?

Replicas don't make a step much faster: each still reads all weights. With only 64 requests, the large model generates more tokens per second on two GPUs that share it than in two replicas: a replica's
step for 32 requests takes nearly as long as one for 64. For the small model it's the other way around.

What replicas add is room without communication. Each has its own cache and its own batch slots, so two of them take twice as many requests as one; and if one is
lost, the other remains. Tensor parallelism makes *each stream* faster if the model is large, and it lets you serve a model that doesn't fit on one GPU. Large installations do both: replicas, each over
several GPUs.

## What is still wrong

**The router guesses.** It doesn't know what a replica has evicted, and after a restart of the balancer it knows nothing. Some systems let the engines report every block that they store or drop.

**The balancer itself can die,** and takes all streams with it. Two of them would have to share what they know.

**A moved stream is computed again.** The prefill of the prompt and the tokens so far is short compared with an answer, but if many streams move at once, the other replicas get a burst of prompts.

**An end can get lost.** A completion also ends with the model's EOS token or a stop string, and `relay` knows neither. If a replica is lost between that last token and its
`finish_reason`, the next replica refuses the request, because nothing is left to generate: the reader has the whole answer, and gets an error. With our engine this can't happen, as the
reason comes with the last token.

**One lost process ends a parallel model.** If any of its processes dies, all its streams are lost: to the balancer, the group is one replica.

**Replicas don't help a single long prompt.** And a model in parts helps only as long as the sums are quicker than the work that is saved.

The ledger gets no row here: each replica serves its requests exactly as in lesson 12.

## Quiz
"""

# %%
quiz("15")

# %% [markdown]
"""
## References

- M. Mitzenmacher: *The Power of Two Choices in Randomized Load Balancing*, IEEE TPDS 2001. <https://www.eecs.harvard.edu/~michaelm/postscripts/tpds2001.pdf>
- M. Shoeybi et al.: *Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism*, 2019; the two cuts are in section 3. <https://arxiv.org/abs/1909.08053>
- Ray Serve. <https://docs.ray.io/en/latest/serve/index.html>
- Hugging Face transformers: distributed inference. <https://huggingface.co/docs/transformers/main/en/perf_infer_gpu_multi>
- vLLM: parallelism and scaling. <https://docs.vllm.ai/en/latest/serving/parallelism_scaling.html>
- NVIDIA Dynamo: request migration. <https://docs.nvidia.com/dynamo/>

## Further (optional)

<details>
<summary><b>Ray Serve</b>: what starts the replicas, replaces dead ones, and adds more?</summary>

You wouldn't run your own balancer over a hundred machines. Something has to start the replicas, place them on machines with free GPUs, notice dead ones and replace them, and add more when the load grows.

> **autoscaling**: adding and removing replicas by how much there is to do.

[Ray Serve](https://docs.ray.io/en/latest/serve/index.html) does all of that. A file describes what it runs: `lessons_lib/serving/serve_config.yaml`, which `serve deploy serve_config.yaml` puts into effect. Find these four in it: `autoscaling_config` (how many
replicas, and how many requests each should have), the two delays (a new replica takes long to start, and one that is removed loses its cache), `health_check_period_s`, and `graceful_shutdown_timeout_s`, the time for which a replica that is
taken away may finish its streams.

A *router* inside Ray chooses the replica. Two choices is the default. `PrefixRequestRouter` in `lessons_lib/serving/ray_app.py` calls `choose_replica` instead.

Ray replaces a replica that dies, but it knows nothing about tokens: the streams would end in the middle. So `ray_app.py` has a second part in front, the `Gateway`, which does what your `relay` does.

Ray starts about a dozen processes and needs some 3 GB of memory, so this notebook doesn't start it unless you say so: `pip install "ray[serve]"`, set `RUN_RAY` to True and run the cell below. If Ray isn't installed or doesn't start, the cell says so. It also
shows figures that were recorded.

</details>

<details>
<summary><b>What production does</b>: vLLM, transformers, Ray, Dynamo</summary>

- **transformers**: `AutoModelForCausalLM.from_pretrained(name, tp_plan="auto")`, started in several processes with `torchrun`, cuts a model by a plan in its configuration (`base_model_tp_plan`). For Llama, the plan's cuts are those of `CUTS` in `lessons_lib/serving/tensor_parallel.py`.
- **vLLM**, cuts: `ColumnParallelLinear` and `RowParallelLinear` in `vllm/model_executor/layers/linear.py`; the sum is `tensor_model_parallel_all_reduce`. It also cuts the embedding and the last matrix. `--tensor-parallel-size 2` is all you have to say.
- **vLLM**, processes: one scheduler for all of them. `vllm/v1/executor/multiproc_executor.py` sends its decisions to the workers. Ours lets every process schedule for itself, and checks that all did the same.
- **Ray Serve**: `PowerOfTwoChoicesRequestRouter` in `ray/serve/_private/request_router/pow_2_router.py`, and for language models `PrefixCacheAffinityRouter` in `ray/llm/_internal/serve/routing_policies/prefix_aware/prefix_aware_router.py`. It keeps a tree of the texts that
  it has sent, and falls back to two choices when the load gets uneven (`imbalanced_threshold`).
- **NVIDIA Dynamo** moves streams too, which it calls *request migration*: it collects the tokens and sends them to another worker behind the prompt, `--migration-limit` times at most. The default is 0: no moves.
- **Disaggregated serving** goes one step further: some replicas compute only prompts, others only answers, and the KV cache is sent from one to the other.

</details>
"""

# %%
RUN_RAY = False


def try_ray(seconds=240):
    import importlib.util
    import subprocess
    import sys

    if importlib.util.find_spec("ray") is None:
        return 'Ray is not installed: pip install "ray[serve]". Nothing below needs it.'
    command = [sys.executable, "-m", "lessons_lib.serving.ray_app", "--port", "8015", "--replicas", "2", "--start-timeout", str(seconds)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        started = server.stdout.readline()  # "Serving on …", or why not
        if not started.startswith("Serving"):
            return started or "Ray didn't start. Nothing below needs it."
        import httpx

        reply = httpx.post("http://127.0.0.1:8015/v1/completions", json={"model": None, "prompt": PROMPTS[0], "max_tokens": 20, "temperature": 0}, timeout=120)
        return f"{started.strip()}\n{reply.status_code}: {reply.text[:200]}"
    except Exception as error:
        return f"Ray started, but gave no answer ({type(error).__name__}: {error}). Nothing below needs it."
    finally:
        server.terminate()
        server.wait(60)


print(try_ray() if RUN_RAY else "RUN_RAY is False; nothing was started.")
ray = recorded["ray"]
Table(
    columns=["what", "recorded"],
    rows=[
        ["two replicas ready after", f"{ray['ready_s']} s"],
        ["memory", f"{ray['memory_gib']} GiB"],
        *[[f"tokens per second, streams at a time: {streams}", f"{rate:,}"] for streams, rate in ray["tokens_per_s"].items()],
        ["a client that leaves is aborted after", f"{ray['abort_s']} s"],
        ["a replica is killed: two again after", f"{ray['whole_again_s']} s"],
        ["streams that were complete, and equal to those without a kill", ray["streams_complete"]],
    ],
    caption=ray["provenance"],
)
