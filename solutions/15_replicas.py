# %% [markdown]
"""
# 15 · Replicas

![Six streams on two replicas; one is lost, and its streams go on](../lessons_lib/assets/openings/15.svg)

**One engine is full. How do several serve as if they were one?**

85 minutes · difficulty: hard · routes: serving · prerequisites: lesson 11 (prefix sharing) and lesson 14 (serving)

A second GPU can hold a copy of the model. Which copy gets which request, and what happens to the requests of a copy
that dies? At the end, two server processes on this machine are your replicas, and you kill one of them. You need
neither a GPU nor a cluster.
"""

# %% folded=true
import os
from functools import partial

from lessons_lib.checks import check, hint, predict, progress, quiz, reset, reveal, solution
from lessons_lib.engine import EngineConfig, LLMEngine, SamplingParams
from lessons_lib.measuring import PROMPTS, STORIES
from lessons_lib.models import load_model
from lessons_lib.models.loading import BUNDLED_MODEL
from lessons_lib.measuring.prefix_places import record_places
from lessons_lib.recording.replica_streams import KIND, NIGHT, ProcessReplica, compare_answers
from lessons_lib.recording.replica_streams import record_streams
from lessons_lib.serving.failover import stream_once
from lessons_lib.serving.http.server_process import ServerProcess, start_together
from lessons_lib.serving.router import PrefixAffinity, Replica, RoundRobin, TwoChoices
from lessons_lib.serving.router import hash_prompt
from lessons_lib.measuring.routing_simulation import chat_prompts, simulate_routing
from lessons_lib.viz.charts import line_chart
from lessons_lib.viz.replicas import draw_prefix_places, watch_streams
from lessons_lib.viz.source import show_source
from lessons_lib.viz.tables import Table

# %%
# float32, so that answers can be compared token by token
model, tokenizer = load_model(device="cpu")
BLOCK = 16


def new_engine(max_num_seqs=6):
    return LLMEngine(
        model, tokenizer,
        EngineConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=256, num_blocks=64)
    )

# %% [markdown]
"""
## The problem: one engine is full

> **replica**: one of several servers with the same model. Any of them can serve any request.

> **load balancer**: what clients talk to. It chooses a replica for each request and passes the answer on.

An engine that runs four sequences at a time gets twelve requests. Every other one is long: 60 tokens, 10 tokens, 60, 10
and so on. Four run, eight wait. A larger batch helps, until memory runs out or each step takes too long. Then you need
a second engine with a model of its own. Here two replicas are used in turn:
"""


# %%
def steps_to_serve(limits, max_num_seqs):
    engine, steps = new_engine(max_num_seqs), 0
    for limit in limits:
        engine.add_request(tokenizer(PROMPTS[0]).input_ids,
                           SamplingParams(max_tokens=limit, ignore_eos=True))
    while engine.has_unfinished():
        engine.step()
        steps += 1
    return steps


limits = [60, 10] * 6
print("one engine, 4 at a time:", steps_to_serve(limits, 4), "steps")
print("two replicas in turn, 4 at a time each:",
      *(steps_to_serve(limits[first::2], 4) for first in (0, 1)), "steps")
print("two replicas, three long ones each:", steps_to_serve([60, 10] * 3, 4), "steps")
print("one engine, 8 at a time:", steps_to_serve(limits, 8), "steps")

# %% [markdown]
"""
Replica 0 got the long ones, so a second replica saved only 10 of 130 steps: from step 20 to 60, two requests wait in
the queue of replica 0 while replica 1 is idle. With three long ones each, the two need 70, like an engine that is twice
as large. But the load balancer doesn't know the lengths. And each replica has its own prefix cache (lesson 11): what
one has computed is unknown to the other.

## Predict

One conversation has five turns. Each prompt contains everything said before, so the five prompts have 64, 128, 192, 256
and 320 tokens. A replica finds the full blocks of any prompt that it computed before. There are two replicas, used
alternately: the first prompt goes to replica 0, the second to replica 1, the third to replica 0, and so on. A block has
16 tokens.

**15.a** How many prompt tokens are found in a cache, over all five prompts?
"""

# %%
predict("15.a", ...)  # tokens

# %% [markdown]
"""
## The idea: send a prompt where its beginning is

Here are three ways to choose, from simple to clever:

- **Round robin**: take the replicas in turn.
- **Two choices**: draw two replicas at random, and take the one that serves fewer requests.
- **Prefix affinity**: take the replica that was sent the longest beginning of this prompt.

> **prefix affinity**: sending a request to the replica whose cache probably holds the beginning of its prompt.

Six conversations, A to F, of five turns each. The prompts arrive in mixed order, and only prefix caches are simulated,
with blocks of 16 tokens. (The 4 of `PrefixAffinity(4)` is a limit; the next section says what for.)
"""

# %%
places, num_blocks = record_places([RoundRobin(), TwoChoices(seed=1), PrefixAffinity(4)],
                                   BLOCK)
draw_prefix_places(places, num_blocks)

# %%
turns = [list(range(64 * turn)) for turn in range(1, 6)]
found = simulate_routing(turns, RoundRobin(), 2).cached_tokens
reveal("15.a", found, unit="tokens")
print(
    f"with prefix affinity: {simulate_routing(turns, PrefixAffinity(4), 2).cached_tokens} of "
    f"{sum(map(len, turns))} prompt tokens"
)

# %% [markdown]
"""
With round robin, each prompt finds what the prompt two turns earlier left behind: 64 + 128 + 192 = 384. And in the
picture, every conversation takes up memory in both caches. With affinity, each is in one cache only, and leaves room
for others.

### Why not affinity alone?

Suppose that all prompts begin with the same instructions. Then the replica that gets the first prompt has been sent the
longest beginning of *every* prompt, and the others get nothing. So affinity needs a limit: a replica that is much
busier than the least loaded one isn't chosen for its prefix.

How does the balancer know what is in a cache? It remembers what it has sent, and that is a good guess.

## Build 1: which replica

The balancer keeps a `Replica` for each server, with these attributes:

| attribute | meaning |
|---|---|
| `load` | how many requests it is serving now |
| `num_sent` | how many requests it was sent in all |
| `sent_blocks` | the block hashes of the prompts that it was sent; `block_hash in replica.sent_blocks` is True or False |

**Exercise 15.1.** Write `choose_replica(block_hashes, replicas, imbalance_limit)`. `block_hashes` are those of the
prompt's full blocks, in order, as in lesson 11: each covers everything up to the end of its block. `replicas` is a list
of one or more. Return an index.

A replica *matches* the blocks from the start of the prompt up to the first one that it wasn't sent. The replica that
matches most blocks gets the request, unless its load is more than `imbalance_limit` above that of the least loaded
replica; then the least loaded one gets it. In both cases ties go to the smaller load, then to the smaller `num_sent`,
then to the first. Change nothing.

Example: the prompt has blocks a, b, c, and the limit is 2. Replica 0 was sent a, b and serves 5 requests. Replica 1 was
sent b, c and serves 3. Replica 0 matches two blocks; replica 1 matches none, because a is missing. 5 is not more than 3
+ 2, so the answer is 0. With a limit of 1 it is 1.
"""

# %% exercise="15.1"
from lessons_lib.serving.router import choose_replica

# %% [markdown]
"""
Now your function gets a larger workload: 150 conversations, 24 of which are open at the same time. Each begins with one
of four system prompts. 16 requests run at a time: when a prompt arrives, the oldest request ends, and the other 15 are
still running. Each replica's cache has 400 blocks.

In the table, "found" is the share of the prompt tokens that were in a cache, and "highest load" the most requests that
one replica served at a time.

**Decide first:** you have four replicas, and each has memory for six requests. Which limit do you set: 0, 1, 2, 4 or 8?
(A pencil: how many of the 15 can the least loaded one have at most, and what can come on top?)
"""

# %%
policies = {"round robin": RoundRobin, "two choices": TwoChoices}
for limit in (0, 1, 2, 4, 8, 1000):
    policies[f"affinity, limit {limit}" if limit < 1000 else "affinity, no limit"] = partial(
        PrefixAffinity, limit, choose_replica
    )
prompts = chat_prompts(seed=0)
rows = []
for name, policy in policies.items():
    two, four = (simulate_routing(prompts, policy(), num_replicas) for num_replicas in (2, 4))
    rows.append([name, f"{two.hit_rate:.0%}", two.highest_load, f"{four.hit_rate:.0%}",
                 four.highest_load])
Table(
    columns=["policy", "2 replicas: found", "highest load", "4 replicas: found",
             "highest load"],
    rows=rows,
    caption=f"{len(prompts)} prompts, {sum(map(len, prompts)):,} tokens",
)

# %% [markdown]
"""
Round robin and two choices get *worse* with more replicas: the more there are, the less likely the right one is chosen
by chance. With four replicas and a limit of 4, affinity leaves 22% of the prompt tokens to compute, and round robin
48%. A small limit keeps the load even, a large one finds more. With memory for six requests, 2 is the best of these.
("Further" derives the highest load with a pencil, and has a scoreboard for a rule of your own.)

Limit 0 is no better than round robin: it always takes a least loaded replica, and here there is nearly always just one.
Two choices looks at loads only, so it finds hardly more than round robin.

### Does your load need it?

Affinity has a price: the load is uneven, and the balancer has to hash every prompt. Take 900 questions, each about one
of n texts. A prompt is a text of 512 tokens and a short question. There are four replicas, with 400 blocks of 16 tokens
each.

**Decide first:** for which n would you pay that price? Find three with a pencil: one n for which affinity finds hardly
more than round robin, one for which it finds at least 40 percentage points more, and a large one for which the lead is
below 20 again. How many texts fit into one cache, and how many into four?
"""

# %%
TEXTS = [1, 2, 3]  # your three


def found_with(num_texts):
    """The percentage of prompt tokens found in a cache, by round robin and by affinity."""
    load = chat_prompts(num_sessions=900, num_systems=num_texts, system_tokens=512, turns=1)
    policies = RoundRobin(), PrefixAffinity(2, choose_replica)
    return [100 * simulate_routing(load, policy, 4).hit_rate for policy in policies]


for num_texts in TEXTS:
    robin, affinity = found_with(num_texts)
    lead = f"a lead of {affinity - robin:.0f} percentage points"
    print(f"{num_texts:3} texts: round robin finds {robin:.0f}%, "
          f"affinity {affinity:.0f}%: {lead}")

# %% [markdown]
"""
And for many n:
"""

# %%
counts = [1, 8, 16, 24, 32, 48, 64, 96, 150]
curves = dict(zip(("round robin", "affinity, limit 2"), zip(*map(found_with, counts))))
in_words = "; ".join(f"{name}: {', '.join(f'{share:.0f}' for share in shares)}"
                     for name, shares in curves.items())
line_chart(
    counts, curves, xlabel="texts", ylabel="found, %", title="Prompt tokens found in a cache",
    alt=f"Percent found with {', '.join(map(str, counts))} texts. {in_words}.",
)

# %% [markdown]
"""
A text has 32 blocks, so a cache of 400 has room for at most 12. Round robin brings every text to every replica, which
is fine while each cache holds them all. With affinity, the four caches hold different texts, up to 48 together. So the
lead is largest in between. With hundreds of texts, hardly any is still there when it's needed again. **Affinity pays if
what the requests share fits into all caches together, but not into one.**

## A replica dies

A process is killed, or a GPU reports an error. The streams that it was serving stop in the middle of a word. The
balancer has three options:

1. **An error.** The stream ends with a message. The client sends its request again, and pays for everything twice.
2. **Begin again** on another replica. Each token that the client already has costs another step and is thrown away,
   in the hope that it's the same one.
3. **Go on elsewhere.** The balancer has passed every token on, so it knows them all. Another replica can continue,
   after a single prefill.

The third is the best, if the client gets exactly the tokens that it would have got without the failure. Can we send the
prompt and the tokens so far as one longer prompt? Take four requests, each cut after ten tokens: a greedy one; one with
temperature 1 and a seed; one with a presence penalty, which looks at generated tokens; and one with a stop string that
begins before the cut and ends after it.

**15.b** How many of the four get the same tokens as without the cut?
"""

# %%
predict("15.b", ...)  # requests

# %%
ids, CUT, LENGTH = tokenizer(PROMPTS[1]).input_ids, 10, 24
whole = new_engine().generate([ids], SamplingParams(max_tokens=LENGTH, ignore_eos=True))[0]
across = tokenizer.decode(whole.token_ids[CUT - 1]).strip() + tokenizer.decode(
    whole.token_ids[CUT])
cases = {
    "greedy": dict(),
    "temperature 1, seed 5": dict(temperature=1.0, seed=5),
    "presence penalty 1.5": dict(presence_penalty=1.5),
    f"stop at {across!r}": dict(stop=[across]),
}


def answer(prompt, output_ids=(), **fields):
    engine = new_engine()
    params = SamplingParams(**{"ignore_eos": True, **fields})
    engine.add_request(prompt, params, request_id="cut", output_ids=output_ids)
    while engine.has_unfinished():
        done = engine.step()
    return done[0].token_ids


rows, uncut_answers = [], {}
for name, fields in cases.items():
    uncut = uncut_answers[name] = answer(ids, max_tokens=LENGTH, **fields)
    longer_prompt = uncut[:CUT] + answer(ids + uncut[:CUT], max_tokens=LENGTH - CUT, **fields)
    rows.append([name, compare_answers(longer_prompt, uncut)])
reveal("15.b", sum(verdict == "yes" for _, verdict in rows), unit="request")
Table(columns=["request", "as a longer prompt: the same tokens"], rows=rows)

# %% [markdown]
"""
Only the greedy request gets the same tokens. As part of the prompt, the ten tokens no longer count as *generated*: the
random numbers start again (lesson 12), penalties ignore them, and nothing looks for the first half of the stop string.

So the replica has to be told which tokens are prompt and which are output. Our engine takes the tokens so far as
`output_ids`, and over HTTP as `output_token_ids`. As after a preemption (lesson 10), it computes their keys and values
again and keeps the tokens.

## Build 2: the request that goes on

**Exercise 15.2.** Write `request_to_go_on(request, token_ids)`. `request` is a dict, the request that was sent to the
lost replica: `"prompt"` (token ids), `"max_tokens"`, and any other fields. `token_ids` is a list: the tokens that the
client has received in answer to this request. Return the request for the next replica, a new dict with a list of its
own.

The next replica continues from `"output_token_ids"`, the list of *all* tokens of the completion so far; a request that
was moved before already has some. The field may be missing or None. `max_tokens` limits the whole completion; return
None if no token is missing. Change neither argument.

Example: `request_to_go_on({"prompt": [5, 6], "max_tokens": 4, "seed": 1}, [8, 9])` returns
`{"prompt": [5, 6], "max_tokens": 4, "seed": 1, "output_token_ids": [8, 9]}`. With four token ids it returns None.
"""

# %% exercise="15.2"
from lessons_lib.serving.failover import request_to_go_on

# %%
CUT_AT = CUT  # the client has this many tokens when the replica dies
for name, fields in cases.items():
    so_far = uncut_answers[name][:CUT_AT]
    again = request_to_go_on(dict(prompt=ids, max_tokens=LENGTH, **fields), so_far)
    try:
        tokens = answer(output_ids=again.pop("output_token_ids"), **again) if again else so_far
        print(f"{name}: the same tokens:", compare_answers(tokens, uncut_answers[name]))
    except ValueError as error:
        print(f"{name}: refused: {error}")

# %% [markdown]
"""
All four requests go on with exactly the tokens of the uncut answer. The price is one prefill, of the prompt and the ten
tokens.

**Break it.** Does that hold wherever an answer is cut? `CUT_AT` is yours: one of the four requests can't go on from
every point. **Guess first:** which one, and from where? Then set `CUT_AT`, and run the cell again.

## Build 3: the core of a balancer

Now we put it together, as a generator: **`relay(request, replicas, choose, max_moves=MAX_MOVES)`**. What may the
*reader* of a stream, the client, get to see? Suppose that replicas A, B and C would all answer 11, 12, 13:

| what happens | the reader gets | asked |
|---|---|---|
| nothing (`max_tokens` is 3) | 11, 12, 13, "length" | A |
| A is lost after 11 and 12 | 11, 12, 13, "length" | A, then B with `output_token_ids` [11, 12] |
| A is lost after 13, before the reason came | 11, 12, 13, then `Chunk([], "length")` | A only: no token is missing |
| each is lost before its first token | `Chunk([], "error", "…")` with a message of yours | A, B, C: at most `max_moves` after the first, because the request itself may kill them |
| A raises `ValueError("too long")` | `Chunk([], "error", "too long")` | A only: any exception but `ReplicaLost` is a refusal; it goes to the reader |

- A `Chunk` has `token_ids`, `finish_reason` (None, except in the last one) and `error`. Some servers send the reason in
  a chunk without tokens.
- `choose(candidates)` gets a list of the replicas that can still be asked, at least one, and returns an index in it.

`stream_once` serves a request by one replica: it covers the first and the last row. It raises `ReplicaLost` if the
replica is lost; a stream that ends without a `finish_reason` is lost, too. It closes the stream and lowers the load
when it ends *or is closed*. Don't rely on Python to close it when you leave a `for` loop early: `with
closing(stream_once(...)) as chunks:` always does.
"""

# %%
show_source(stream_once)

# %% [markdown]
"""
**Exercise 15.3.** Write `relay`, with the other rows too. Use `stream_once`, or do it your own way: a replica
(a `Server` in the type hints) has `load`, which you raise and lower, and `stream(request)`, a generator of chunks.

- If the request has no seed (missing or None), draw a random int. All replicas get the same one.
- Pass each chunk on as it is, before you read the next one. One with a `finish_reason` is the last.
- After a loss, send what `request_to_go_on` returns to one of the replicas that haven't been lost. (Give it the first
  request and *all* tokens so far, or the last request and the tokens that came in answer to *that* one.) If it returns
  None, or if the request itself arrives with all its output tokens, ask no replica: end with `Chunk([], "length")`.
- Before the next replica is asked, and when the reader leaves (it calls `close()` on your generator), the stream is
  closed and its replica's load lowered.
- Change neither `request` nor the list `replicas`. If a replica must be asked and the list is empty, the reader gets an
  error, too.

The cell imports what you need; `MAX_MOVES` is 2.
"""

# %% exercise="15.3"
import random
from contextlib import closing

from lessons_lib.serving.failover import MAX_MOVES, Chunk, ReplicaLost, stream_once

from lessons_lib.serving.failover import relay

# %% [markdown]
"""
### Kill one

Now for real: six streams, A to F, with your `relay` and your `choose_replica`. The prompts of A, B and C begin with one
text, those of D, E and F with another; each of the two fills two blocks and a part of a third. C and E have a
temperature and a seed, D has a penalty, and the others are greedy. First, what the answers should be, from an engine
that serves each alone. And which of them would survive a cut after ten tokens as a longer prompt?
"""

# %%
texts = [(KIND if story.name in "ABC" else NIGHT) + story.prompt for story in STORIES]
sampled = dict(temperature=1.0, seed=5)
how = {"C": sampled, "D": dict(presence_penalty=1.5), "E": sampled}
requests = {
    story.name: dict(prompt=tokenizer(text).input_ids, max_tokens=48,
                     ignore_eos=True) | how.get(story.name, {})
    for story, text in zip(STORIES, texts)
}
alone = [answer(**request) for request in requests.values()]
survive = []
for (name, request), text, tokens in zip(requests.items(), texts, alone):
    print(f"{name}: {text[:20]}… {tokenizer.decode(tokens)[:50]!r}…")
    rest = answer(**request | dict(prompt=request["prompt"] + tokens[:CUT],
                                   max_tokens=48 - CUT))
    survive += [name] if tokens[:CUT] + rest == tokens else []
print("the same tokens as a longer prompt:", *survive)

# %% [markdown]
"""
The next cell starts two servers (lesson 14): two processes, each with a model and an engine of its own.
`ProcessReplica` turns the events of a server into chunks. The readers take turns: in each round, each of them, from A
to F, takes one chunk. After nine rounds, the process of replica 1 is killed, as the operating system does when memory
runs out. Both processes end with the cell, also after an error. It takes ten to thirty seconds.

**Set the limit** of your `choose_replica`: 0, 1 or 2. With which of them do the fewest streams lose their server?
**Guess first:** which streams will replica 1 serve with your limit? (A pencil is enough: the requests arrive from A
to F, and none ends before the kill.)
"""

# %% tags=["measured"]
LIMIT, GUESS = 1, "?"  # your limit, and your guess, such as "BDF"
LOST_AT, MOVES = 9, 2


def start_reader(request):
    block_hashes = hash_prompt(request["prompt"], BLOCK)
    return relay(request, replicas,
                 lambda remaining: choose_replica(block_hashes, remaining, LIMIT), MOVES)


options = ("--model", BUNDLED_MODEL, "--device", "cpu", "--engine", "thread",
           "--num-blocks", 64)
servers = [ServerProcess(*options, env={"OMP_NUM_THREADS": "1"}) for _ in range(2)]
with start_together(*servers):
    print("this process:", os.getpid(), "| replicas 0 and 1:",
          *(server.process.pid for server in servers))
    replicas = [ProcessReplica(server.url, BLOCK) for server in servers]
    readers = {name: start_reader(request) for name, request in requests.items()}
    records = record_streams(readers, replicas, LOST_AT, lose=servers[1].process.kill)
print("exit status of replica 1:", servers[1].process.returncode)
moved = [record.name for record in records if record.has_moved]
print(f"moved to the other replica: {' '.join(moved) or 'none'} (your guess: {GUESS})")
print("ended with an error:",
      *[record.name for record in records if record.end[1] == "error"] or ["none"])
print("the same tokens as without a failure:",
      [record.token_ids for record in records] == alone)
print("longest wait for a chunk, ms:",
      *(f"{record.name} {1000 * record.longest_wait:.0f}" for record in records))
watch_streams(records, 2, lost=(1, LOST_AT))

# %% [markdown]
"""
With a limit of 1, A goes to replica 0, and so does B, which begins alike. C would follow, but replica 0 has two
requests by then and replica 1 has none. D's beginning is new, so only the load counts, and E and F follow D: four lose
their server. With 2, C may follow too: three lose it, and each beginning is in one cache only. With 0, three lose it as
well, but both beginnings are in both caches.

With any limit, each reader gets exactly the tokens that it would have got if no server had died, also in C, D and E,
which a longer prompt would have changed. If its stream was moved, it notices one longer wait: for a new connection, and
for the prefill of the prompt and the tokens so far. (Boxes of replica 1 to the right of the dotted line: these tokens
were on their way when it died.)

`lessons_lib/ray_serve/gateway.py` does the same for all of OpenAI's API, and Ray Serve ("Further") asks each replica
for its health every two seconds, and so notices one that *hangs*.

## What is still wrong

**The balancer guesses.** It doesn't know what a replica has evicted. vLLM can publish *KV events* whenever it stores or
drops blocks, and routers such as NVIDIA Dynamo's follow them.

**The balancer itself can die,** and takes all streams with it. Two of them would have to share what they know.

**A full replica refuses, and `relay` gives up.** Status 429 (lesson 14) means that another replica may have room. Ray
Serve's router asks the next one then.

**An end can get lost.** If a replica is lost between the last token of an answer and its `finish_reason`, the next one
is asked to go on behind the end, as with a `CUT_AT` of 11 or more above. If a stop string or a stop token ended it, the
next one refuses, and the reader of a complete answer gets an error.

**Replicas don't make a stream faster,** and they don't help if a single copy of the model doesn't fit. Lesson 16 cuts a
model in two.

## Quiz
"""

# %%
quiz("15")

# %% [markdown]
"""
## References

- M. Mitzenmacher: *The Power of Two Choices in Randomized Load Balancing*, IEEE TPDS 2001.
  <https://www.eecs.harvard.edu/~michaelm/postscripts/tpds2001.pdf>
- Ray Serve. <https://docs.ray.io/en/latest/serve/index.html>
- NVIDIA Dynamo: request migration. <https://docs.nvidia.com/dynamo/>
"""

# %% [markdown] folded=true
"""
## Further (optional)

What the lesson doesn't need. It isn't part of its 85 minutes.
"""

# %% [markdown]
"""
### The highest load, with a pencil

The larger workload again: 15 requests are running when a new one arrives. There are four replicas, and
`imbalance_limit` is 4. With bad luck, the busiest replica is always the one that was sent the longest beginning. A
start for your pencil: call the load of the least loaded replica m.

**15.c** What is the most requests that one replica can ever serve at a time, the new one included?
"""

# %%
predict("15.c", ...)  # requests

# %%
reveal("15.c", simulate_routing(prompts, PrefixAffinity(4, choose_replica), 4).highest_load,
       unit="requests")

# %% [markdown]
"""
If the least loaded replica has m requests, all four have at least m, and the one chosen for its prefix has at most m +
4 before the new one. And only 15 are running, so it has at most 15 - 3m. Of these two bounds, the smaller is largest
with m = 2 or m = 3: the chosen replica has 6, and now 7. The same pencil gives "highest load" for each limit up to 8 in
the table. So you can derive the limit from the load that a replica can take, before you measure anything.

### Beat the reference

Write a rule of your own: a function of the prompt's block hashes and the list of replicas that returns an index. It is
scored on conversations that you can't see, with 4 replicas. No replica may ever serve more than 6 requests at a time.
Under the same bound, the reference is `choose_replica` with a limit of 2. There is room above it.
"""


# %%
from lessons_lib.checks.lesson_15.scoreboard import routing_scoreboard


def my_rule(block_hashes, replicas):
    return choose_replica(block_hashes, replicas, 2)  # replace this


routing_scoreboard(my_rule)

# %% [markdown]
"""
<details>
<summary><b>Ray Serve</b>: what starts the replicas, replaces dead ones, and adds more?</summary>

Over a hundred machines, something has to start the replicas, place them on machines with free GPUs, replace dead ones,
and add more when the load grows.

> **autoscaling**: adding and removing replicas by how much there is to do.

[Ray Serve](https://docs.ray.io/en/latest/serve/index.html) does all of that. A file describes what it runs:
`lessons_lib/ray_serve/serve_config.yaml`, which `serve deploy serve_config.yaml` puts into effect. Find these four in
it: `autoscaling_config` (how many replicas, and how many requests each should have), the two delays (a new replica
takes long to start, and one that is removed loses its cache), `health_check_period_s`, and
`graceful_shutdown_timeout_s`, the time for which a replica that is taken away may finish its streams.

A *router* inside Ray chooses the replica. Two choices is the default. `PrefixRequestRouter` in
`lessons_lib/ray_serve/app.py` calls `choose_replica` instead.

Ray replaces a replica that dies, but it knows nothing about tokens: the streams would end in the middle. So
the file has a second part in front, the `Gateway`, which does what your `relay` does.

Ray starts about a dozen processes and needs some 3 GB of memory, so this notebook doesn't start it. In a terminal:
`pip install "ray[serve]"`, then `python -m lessons_lib.ray_serve.app --port 8015 --replicas 2`. The cell below shows
figures that were recorded.

</details>

<details>
<summary><b>What production does</b>: Ray, Dynamo</summary>

- **Ray Serve**: `PowerOfTwoChoicesRequestRouter` in `ray/serve/_private/request_router/pow_2_router.py`, and for
  language models `PrefixCacheAffinityRouter` in
  `ray/llm/_internal/serve/routing_policies/prefix_aware/prefix_aware_router.py`. It keeps a tree of the texts that it
  has sent, and falls back to two choices when the load gets uneven (`imbalanced_threshold`).
- **NVIDIA Dynamo** moves streams too, which it calls *request migration*: it collects the tokens and sends them to
  another worker behind the prompt, `--migration-limit` times at most. The default is 0: no moves.
- **Disaggregated serving** goes one step further: some replicas compute only prompts, others only answers, and the KV
  cache is sent from one to the other.

</details>
"""

# %%
import json

from lessons_lib.measuring.published import FOLDER as RECORDED

ray = json.loads((RECORDED / "replicas.json").read_text(encoding="utf-8"))["ray"]
Table(
    columns=["what", "recorded"],
    rows=[
        ["two replicas ready after", f"{ray['ready_s']} s"],
        ["memory", f"{ray['memory_gib']} GiB"],
        *(
            [f"tokens per second, streams at a time: {streams}", f"{rate:,}"]
            for streams, rate in ray["tokens_per_s"].items()
        ),
        ["a request whose client has left is aborted after", f"{ray['abort_s']} s"],
        ["after a kill, two replicas are ready again in", f"{ray['whole_again_s']} s"],
        ["streams that were complete, and equal to those without a kill",
         ray["streams_complete"]],
    ],
    caption=ray["provenance"],
)
