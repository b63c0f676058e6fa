# %% [markdown]
"""
# 15 · Replicas and two GPUs

**One engine is full. How do several serve as if they were one, and what if the model doesn't fit on one GPU?**

90 minutes · difficulty: hard · routes: serving · prerequisites: lesson 11 (prefix sharing) and lesson 14 (serving)

There are two ways to use a second GPU. It can hold a copy of the model, and then the question is which copy gets which request, and what happens to the
requests of a copy that dies. Or it can hold half of the model, and then every matrix has to be cut. We build the core of both. You need neither a GPU nor a
cluster: the replicas are engines in this process, and the two halves of the model are two processes on your CPU. Figures that were recorded on other machines are marked as such.
"""

# %%
import ast
import inspect
import json
import random
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from IPython.display import display
from transformers import LlamaConfig

import lessons_lib.serving
from lessons_lib.batching import generate_one_by_one
from lessons_lib.checks import check, hint, predict, progress, quiz, reveal, solution
from lessons_lib.checks.lesson_15.scoreboard import routing_scoreboard
from lessons_lib.engine import EngineConfig, LLMEngine, SamplingParams
from lessons_lib.measuring import MAX_NEW_TOKENS, PROMPTS, STORIES
from lessons_lib.measuring.published import FOLDER as RECORDED
from lessons_lib.models import load_model
from lessons_lib.serving.failover import Chunk, ReplicaLost
from lessons_lib.serving.parallel_engine import parallel_engine
from lessons_lib.serving.router import PrefixAffinity, Replica, RoundRobin, TwoChoices, hash_prompt
from lessons_lib.serving.routing_simulation import chat_prompts, simulate_routing
from lessons_lib.serving.tensor_parallel import CUTS, cut_model
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
A larger batch would help until memory runs out (lesson 13). From then on, you need a second engine with a model of its own.

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
- **Two choices**: draw two replicas at random, and take the one that serves fewer requests. This spreads the load almost as well as asking all of them.
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

Suppose that all prompts begin with the same instructions. The first one goes to some replica. From then on, that replica was sent the longest beginning of *every*
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

### Stretch: beat the reference

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


rows = []
for name, fields in cases.items():
    uncut = answer(ids, max_tokens=LENGTH, **fields)
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
    uncut = answer(**request)
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

**Your task: the generator `relay(request, replicas, choose, max_moves=2)`.** It yields the chunks of one request with one completion, whatever happens to the replicas.

1. If `request` has no seed, or its seed is None, draw one *before* the first replica is asked: all replicas must use the same. Don't change `request`.
2. `choose(remaining)` gets the list of replicas that haven't been lost, and returns an index. Ask that replica. Its `load` is 1 higher from before the call of `stream` until the stream is
   over, in whatever way. Close every stream that you opened.
3. Yield each chunk as soon as it is there. After a chunk with a `finish_reason`, nothing follows.
4. If the replica is lost, ask another one, with `request_to_go_on`. If that returns None, only the reason was missing, and no other replica is needed: yield `Chunk([], "stop")` if the last token is one of
   `request["stop_token_ids"]`, else `Chunk([], "length")`.
5. If no replica is left, or `max_moves` replicas have been asked after the first one, yield `Chunk([], "error", "…")` with a message. It may be the request that kills the replicas.
6. Any other exception means that the replica has *refused* the request, and every other one would do the same: yield `Chunk([], "error", str(error))`.

If the reader leaves, Python raises `GeneratorExit` at your `yield`. `finally` also runs then. `Chunk`, `ReplicaLost` and `random` are imported in the cell. Example: A yields tokens 11 and 12 and is lost; B is asked with `output_token_ids` [11, 12], and yields 13
and a chunk with the reason "length". The reader gets 11, 12, 13 and the reason, and the loads of A and B are what they were before.
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
Without moves, the streams of replica 0 end with an error: not nice, but honest. With moves, the readers only see a short pause (the picture counts chunks, so it doesn't show). The second replica computes the keys and values of the
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

Take the MLP of a layer: a matrix, something that treats each element separately, and a second matrix. Cut the first by *columns*, and each process computes some of the elements, from the whole input. Cut the
second by *rows* at the same places, and each process has exactly the inputs that its rows need. What it gets is a part of every sum:
"""

# %%
draw_cut_matrices(num_tokens=4, inputs=12, inner=16, outputs=12)

# %% [markdown]
"""
> **all-reduce**: each process has a tensor, and afterwards each has the sum of all of them.

Nothing is sent between the two matrices. Attention works the same way: its "elements" are the heads. A process computes queries, keys and values of its own heads, attends with them, and multiplies by its rows of the
output matrix. So its cache holds only its own KV heads. That leaves two sums in each layer.

## Build 4: the two cuts

`torch.nn.Linear` stores its weight as `[outputs, inputs]` and computes `x @ weight.T + bias`. The names of the cuts refer to the transposed weight in this formula.

**Your task: `cut_linear(weight, bias, cut, rank, world_size)`.** Return the tuple (weight, bias) of one process. `rank` is its index, and `world_size` the number of processes. `bias` is a tensor or None.

- `cut == "colwise"`: the process computes its share of the *outputs*: rank 0 the first ones, rank 1 the next, and so on.
- `cut == "rowwise"`: the process gets its share of the *inputs*, in the same order, and computes a part of every output. The results of all processes are added up.
- The bias must be counted exactly once in the final output. A process that adds none has None (zeros are fine too).
- If the outputs or inputs can't be divided into equal parts, raise `ValueError`.
- Return new tensors that hold nothing of the whole ones in memory: that's the point of it all.

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
### A whole model, in two processes

`cut_model` does this to every layer, and puts an all-reduce behind each second matrix:
"""

# %%
print(inspect.getsource(cut_model).split('"""')[2])

# %%
counted = []
copy, _ = load_model(device="cpu")
cut_model(copy, rank=0, world_size=1, all_reduce=lambda tensor: counted.append(tensor) or tensor)  # one part: the whole
copy(torch.tensor([ids]))
reveal("15.b", len(counted), unit="sums")
print(f"each of them over {counted[0].shape[-1]} elements for every token")

# %% [markdown]
"""
Two sums in each of 8 layers: 16.

One engine alone can't serve a model in two parts. Each process needs an engine of its own, and all must schedule the *same* step, or they would add up the results of different tokens. So the first process tells the others of every call that
changes its engine, and they make the same call. Two things must not differ: the seeds, which the first process draws, and the arrival times, which policies compare.

The first cell below shows the loop of every other process; the second one starts such a process and serves the six stories. (It imports everything anew, which takes a few seconds. The two processes use the library's `cut_linear`.)
"""

# %%
print(inspect.getsource(lessons_lib.serving.follower.follow).split("while True:")[1])

# %%
config = EngineConfig(max_num_seqs=6, max_num_batched_tokens=64, num_blocks=16)  # too few blocks: some are preempted
with parallel_engine(partial(load_model, None), config) as engine:
    outputs = engine.generate(PROMPTS, [SamplingParams(max_tokens=min(each, 40)) for each in MAX_NEW_TOKENS])
    print("the same tokens as one at a time:", [output.token_ids for output in outputs] == alone)
    print(f"KV heads of the model: {model.config.num_key_value_heads}; in this process: {engine.runner.cache.keys[0].shape[2]}")
    print(f"sequences preempted: {engine.scheduler.num_preempted}")

# %% [markdown]
"""
Heads can't be cut in half, so the number of processes must divide the number of KV heads. What can't be cut is refused by name:
"""

# %%
try:
    cut_model(model, rank=0, world_size=4, all_reduce=None)
except ValueError as error:
    print(type(error).__name__ + ":", error)

# %% [markdown]
"""
## Two replicas, or one model on two GPUs?

Suppose the model fits on one GPU, and you have two. A decode step reads all weights once, so the bytes that a GPU has to read are a lower bound for its time (lesson 08):
"""

# %%
BANDWIDTH = 3.35e12  # bytes per second of an H100, from its data sheet
weights = 2 * 8e9  # 8 billion parameters in bfloat16
print(f"one GPU reads           {weights / 1e9:2.0f} GB in a step: at least {1e3 * weights / BANDWIDTH:.1f} ms")
print(f"each of two that share  {weights / 2e9:2.0f} GB in a step: at least {1e3 * weights / 2 / BANDWIDTH:.1f} ms")

# %% [markdown]
"""
So a step could take half the time. The table shows what two GPUs really do. Each of the two replicas gets half of the requests:
"""

# %%
two_gpus = recorded["two_gpus"]
rows = []
for name, shape in (("8 billion", "llama_8_billion"), ("0.5 billion", "qwen_half_billion")):
    for way, found in two_gpus[shape].items():
        steps = [f"{found[count]['decode_ms']:.1f} ms" if count in found else "–" for count in ("1", "16", "64")]
        rows.append([name, way, *steps, f"{found['64']['tokens_per_s']:,.0f}"])
Table(
    columns=["parameters", "", "a step: 1 request", "16 requests", "64 requests", "tokens/s, 64 requests"],
    rows=rows,
    caption=two_gpus["provenance"],
)

# %%
def faster(shape, count):
    one, two = (two_gpus[shape][way][count]["decode_ms"] for way in ("one GPU", "two GPUs, one model"))
    return one / two


for name, shape in (("8 billion", "llama_8_billion"), ("0.5 billion", "qwen_half_billion")):
    print(f"{name} parameters, two GPUs that share the model: a step of one request is {faster(shape, '1'):.2f} times as fast")

# %% [markdown]
"""
Half of the bytes don't give half of the time. Each sum waits for the slower GPU and is sent over a link, and there are two in each layer. Small matrices use a GPU badly, and whatever isn't
cut takes as long as before. For the small model, the sums cost more than the cut saves.

Replicas don't make a step much faster: each still reads all weights. With only 64 requests, the large model therefore generates more tokens per second on two GPUs that share it than in two replicas: a
step for 32 requests takes nearly as long as one for 64. For the small model it's the other way around.

What replicas add is room without communication. Each has its own cache and its own batch slots, so two of them take twice as many requests as one; and if one is
lost, the other is left. Tensor parallelism makes *each stream* faster if the model is large, and it lets you serve a model that doesn't fit on one GPU. Large installations do both: replicas, each over
several GPUs.

## Ray Serve

You wouldn't run your own balancer over a hundred machines. Something has to start the replicas, place them on machines with free GPUs, notice dead ones and replace them, add more when the load grows, and drain those that are taken away.

> **autoscaling**: adding and removing replicas by how much there is to do.

[Ray Serve](https://docs.ray.io/en/latest/serve/index.html) does all of that. What it runs is described by a file, which you deploy with `serve deploy serve_config.yaml`; deploying a changed file replaces the replicas one after another:
"""

# %%
serving = Path(lessons_lib.serving.__file__).parent
print((serving / "serve_config.yaml").read_text(encoding="utf-8"))

# %% [markdown]
"""
Find these four in the file: `autoscaling_config` (how many replicas, and how many requests each should have), the two delays (a new replica takes long to start, and one that is removed loses its cache), `health_check_period_s`, and
`graceful_shutdown_timeout_s` for draining.

A *router* inside Ray chooses the replica. Two choices is the default. Yours is in there too:
"""

# %%
source = (serving / "ray_app.py").read_text(encoding="utf-8")
router = next(node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == "PrefixRequestRouter")
choose_replicas = next(node for node in router.body if getattr(node, "name", "") == "choose_replicas")
print(ast.get_source_segment(source, choose_replicas))

# %% [markdown]
"""
Ray starts about a dozen processes and needs some 3 GB of memory, so this notebook doesn't start it unless you say so. These figures were recorded:
"""

# %%
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

# %% [markdown]
"""
Ray replaces the replica, but it knows nothing about tokens: the streams of the killed one would end in the middle. So `ray_app.py` has a second deployment in front, the *Gateway*, which does what your
`relay` does.

To run it here, `pip install "ray[serve]"`, set `RUN_RAY` to True and run the cell. If Ray isn't installed or doesn't start, the cell says so.
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
            return started or "Ray did not start. Nothing below needs it."
        import httpx

        reply = httpx.post("http://127.0.0.1:8015/v1/completions", json={"model": None, "prompt": PROMPTS[0], "max_tokens": 20, "temperature": 0}, timeout=120)
        return f"{started.strip()}\n{reply.status_code}: {reply.text[:200]}"
    finally:
        server.terminate()
        server.wait(60)


print(try_ray() if RUN_RAY else "RUN_RAY is False; nothing was started.")

# %% [markdown]
"""
## What production does

**The cuts** of a model are written down in Hugging Face transformers. Each configuration has a plan that says how every matrix is cut. Is it the same as ours?
"""

# %%
plan = LlamaConfig().base_model_tp_plan
for name, cut in plan.items():
    print(f"{name:<35} {cut}")
print("the same cuts as ours:", {f"layers.*.{name}": cut for name, cut in CUTS.items()} == plan)

# %% [markdown]
"""
`AutoModelForCausalLM.from_pretrained(name, tp_plan="auto")`, started in several processes with `torchrun`, cuts a model by this plan (`transformers/integrations/tensor_parallel.py`).

- **vLLM**, cuts: `ColumnParallelLinear` and `RowParallelLinear` in `vllm/model_executor/layers/linear.py`; the sum is `tensor_model_parallel_all_reduce`. It also cuts the embedding and the last matrix. `--tensor-parallel-size 2` is all you have to say.
- **vLLM**, processes: one scheduler for all of them. `vllm/v1/executor/multiproc_executor.py` sends its decisions to the workers. Ours lets every process schedule for itself, and checks that all did the same.
- **Ray Serve**: `PowerOfTwoChoicesRequestRouter` in `ray/serve/_private/request_router/pow_2_router.py`, and for language models `PrefixCacheAffinityRouter` in `ray/llm/_internal/serve/routing_policies/prefix_aware/prefix_aware_router.py`. It keeps a tree of the texts that
  it has sent, and falls back to two choices when the load gets uneven (`imbalanced_threshold`).
- **NVIDIA Dynamo** moves streams too, which it calls *request migration*: it collects the tokens and sends them to another worker behind the prompt, `--migration-limit` times at most. The default is 0: no moves.
- **Disaggregated serving** goes one step further: some replicas compute only prompts, others only answers, and the KV cache is sent from one to the other.

The ledger gets no row here: each replica serves its requests exactly as in lesson 12.

## What is still wrong

**The router guesses.** It doesn't know what a replica has evicted, and after a restart of the balancer it knows nothing. Some systems let the engines report every block that they store or drop.

**The balancer itself can die,** and takes all streams with it. Two of them would have to share what they know.

**A moved stream is computed again.** The prefill of the prompt and the tokens so far is short compared with an answer, but if many streams move at once, the other replicas get a burst of prompts.

**One lost process ends a parallel model.** If any of its processes dies, all its streams are lost: to the balancer, the group is one replica.

**Replicas don't help a single long prompt.** And a model in parts helps only as long as the sums are quicker than the work that is saved.

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
"""
