# %% [markdown]
"""
# 15 · Replicas

![Six streams on two replicas; one is lost, and its streams go on](../lessons_lib/assets/openings/15.svg)

**One engine is full. How do several serve as if they were one?**

75 minutes · difficulty: hard · routes: serving · prerequisites: lesson 11 (prefix sharing) and lesson 14 (serving)

A second GPU can hold a copy of the model. Which copy gets which request? And what happens to its requests when a copy
dies? At the end you kill one of two server processes on this machine.
"""

# %% folded=true
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
    config = EngineConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=256, num_blocks=64)
    return LLMEngine(model, tokenizer, config)

# %% [markdown]
"""
## The problem: one engine is full

> **replica**: one of several servers with the same model. Any of them can serve any request.

> **load balancer**: what clients talk to. It chooses a replica for each request and passes the answer on.

An engine that runs four sequences at a time gets twelve requests, for 60 tokens, 10, 60, 10 and so on. A larger batch
helps until memory runs out. Then you need a second engine with a copy of the model. Here two replicas take turns:
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
Replica 0 got all the long ones, so a second replica saved only 10 of 130 steps. With three long ones each, 70 steps are
enough. But the balancer doesn't know how long answers will get. And each replica has a prefix cache of its own (lesson
11): what one has computed, the other can't use.

## Predict

A conversation has five turns. Each prompt repeats everything said before, so the five prompts have 64, 128, 192, 256
and 320 tokens. Two replicas get them in turn. Each finds the full blocks (16 tokens) of any prompt that it computed
before.

**15.a** How many prompt tokens are found in a cache, over all five prompts?
"""

# %%
predict("15.a", ...)  # tokens

# %% [markdown]
"""
## The idea: send a prompt where its beginning is

Three ways to choose:

- **Round robin**: take the replicas in turn.
- **Two choices**: draw two replicas at random, and take the one that serves fewer requests.
- **Prefix affinity**: take the replica that was sent the longest beginning of this prompt.

> **prefix affinity**: sending a request to the replica whose cache probably holds the beginning of its prompt.

Where do six conversations of five turns end up, if their prompts arrive in mixed order? (Only the caches are simulated.
1 is a seed, and 4 a limit, explained below.)
"""

# %%
places, num_blocks = record_places([RoundRobin(), TwoChoices(1), PrefixAffinity(4)], BLOCK)
draw_prefix_places(places, num_blocks)

# %%
turns = [list(range(64 * turn)) for turn in range(1, 6)]
found, with_affinity = (simulate_routing(turns, policy, 2).cached_tokens
                        for policy in (RoundRobin(), PrefixAffinity(4)))
reveal("15.a", found, unit="tokens", how="Computed")
print(f"with prefix affinity: {with_affinity} of {sum(map(len, turns))} prompt tokens")

# %% [markdown]
"""
With round robin, a prompt finds what the one two turns earlier left behind: 64 + 128 + 192 = 384.

**Why not affinity alone?** If all prompts begin with the same instructions, the replica that gets the first one matches
*every* prompt, and the others get nothing. So a replica that's much busier than the least loaded one isn't chosen for
its prefix.

The balancer can't see the caches, so it remembers what it has sent.

## Build 1: which replica

**Exercise 15.1.** Write `choose_replica(block_hashes, replicas, imbalance_limit)`. `block_hashes` is a list: the hashes
of the prompt's full blocks, in order. As in lesson 11, each covers everything up to the end of its block. `replicas` is
a list of at least one. A replica has a `load` (how many requests it serves now), `num_sent` (how many it was ever
sent), and `sent_blocks`, which answers one question: `block_hash in replica.sent_blocks`. Return an index in
`replicas`. Change nothing.

A replica *matches* the blocks from the start of the prompt up to the first one that it wasn't sent. The replica that
matches most blocks gets the request, unless its load is more than `imbalance_limit` above the smallest load. Then the
least loaded replica gets it. Ties go to the smaller load, then to the smaller `num_sent`, then to the first.

Example: the prompt has blocks a, b, c. Replica 0 was sent a, b and serves 5 requests. Replica 1 was sent b, c and
serves 3. Replica 0 matches two blocks, replica 1 none: it lacks a. With a limit of 2 the answer is 0. With a limit of 1
it's 1.
"""

# %% exercise="15.1"
from lessons_lib.serving.router import choose_replica

# %% [markdown]
"""
Now your function routes 150 conversations, each with one of four system prompts. There are always 16 requests running:
when a prompt arrives, the oldest ends. Each cache has 400 blocks. "Found" is the share of prompt tokens in a cache,
which needn't be computed (lesson 11). "Highest load" is the most requests that one replica served at a time.

**Decide first:** you have four replicas, and each has memory for six requests. Which limit do you set: 0, 1, 2, 4 or 8?
(A pencil: 15 are running when one arrives. How many can the least loaded replica have at most?)
"""

# %%
policies = {"round robin": RoundRobin, "two choices": TwoChoices} | {
    f"affinity, limit {limit}": partial(PrefixAffinity, limit, choose_replica)
    for limit in (0, 1, 2, 4, 8, 1000)
}
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
Round robin and two choices find *less* with more replicas, because they hit the right one less often. A small limit
keeps the load even, a large one finds more. The least loaded of four replicas has at most 3 of 15 requests. With a
limit of 2, one that's chosen for its prefix has at most 5, and 6 with the new request: what fits.

Limit 0 is no better than round robin: it always takes a least loaded replica, and there's nearly always just one.

### Does your load need it?

Affinity has a price: the load is uneven, and the balancer hashes every prompt. Take 900 questions, each about one of n
texts of 512 tokens, and four replicas with 400 blocks of 16 tokens.

**Decide first:** for which n is affinity worth it? With a pencil, choose an n for which it leads round robin by hardly
anything, one with a lead of 40 percentage points, and a large one with less than 20 again. (How many texts fit into one
cache?)
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
    print(f"{num_texts:3} texts: round robin finds {robin:.0f}%, affinity {affinity:.0f}%, "
          f"{affinity - robin:.0f} percentage points more")

# %%
# and for many n:
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
A text has 32 blocks, so a cache of 400 holds at most 12. Round robin brings every text to every replica, which is fine
while each cache holds them all. With affinity the four caches hold different texts, up to 48 together. **Affinity pays
if what requests share fits into all caches together, but not into one.**

## A replica dies

A process is killed, or a GPU reports an error, and its streams stop in mid-word. The balancer has three options:

1. **An error.** The client sends its request again, and pays for everything twice.
2. **Begin again** on another replica, and hope for the same tokens.
3. **Go on elsewhere.** The balancer knows all tokens, so another replica can continue after a single prefill.

We want the third, with exactly the tokens of an answer without a failure. Can we send the prompt and the tokens so far
as one longer prompt? Take four requests, each cut after ten tokens: a greedy one; one with temperature 1 and a seed;
one with a presence penalty, which looks at generated tokens; and one with a stop string that lies across the cut.

**15.b** How many of the four get the same tokens as without the cut?
"""

# %%
predict("15.b", ...)  # requests

# %%
ids, CUT, LENGTH = tokenizer(PROMPTS[1]).input_ids, 10, 24
whole = new_engine().generate([ids], SamplingParams(max_tokens=LENGTH, ignore_eos=True))[0]
# half of this stop string is before the cut, half after it
across = tokenizer.decode(whole.token_ids[CUT - 1 : CUT + 1]).strip()
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
reveal("15.b", sum(verdict == "yes" for _, verdict in rows), unit="requests")
Table(columns=["request", "as a longer prompt: the same tokens"], rows=rows)

# %% [markdown]
"""
Only the greedy one. In the prompt, the ten tokens no longer count as *generated*: the random numbers start
again (lesson 12), penalties ignore them, and nothing looks for the first half of the stop string.

So the replica has to know which tokens are output. Our engine takes them as `output_ids`, and over HTTP as
`output_token_ids`. As after a preemption (lesson 10), it computes their keys and values again.

## Build 2: the request that goes on

**Exercise 15.2.** Write `request_to_go_on(request, token_ids)`. `request` is a dict, the request that the lost replica
got: `"prompt"` (token ids), `"max_tokens"`, and any other fields. `token_ids` is a list of the tokens that the client
received in answer to it. Return the request for the next replica, a new dict.

The next replica continues from `"output_token_ids"`, a new list of *all* tokens of the completion so far. A request
that was moved before already has some; otherwise the field is missing or None. `max_tokens` limits the whole
completion: return None if no token is missing. Change neither argument.

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
All four go on with exactly the tokens of the uncut answer. The price is one prefill.

**Break it.** Does that hold wherever an answer is cut? One of the four can't go on from every point. **Guess first:**
which one, and from where? Then change `CUT_AT`, and run the cell again.

## Build 3: the core of a balancer

A replica streams *chunks*. A `Chunk` has `token_ids`, a `finish_reason` (None in all but the last), and an `error` if
something went wrong. The last chunk may have no tokens. `stream_once` serves a request with one replica:
"""

# %%
show_source(stream_once)

# %% [markdown]
"""
It raises `ReplicaLost` if the replica is lost or its stream just ends. Any other exception is a refusal, and becomes
the last chunk: every replica would refuse this request.

**Exercise 15.3.** Write the generator `relay(request, replicas, choose, max_moves=MAX_MOVES)`. It serves a request with
one of several replicas and, if that is lost, with the next. If A, B and C would all answer 11, 12, 13:

| what happens | the reader gets | asked |
|---|---|---|
| nothing (`max_tokens` is 3) | 11, 12, 13, "length" | A |
| A is lost after 11 and 12 | 11, 12, 13, "length" | A, then B with `output_token_ids` [11, 12] |
| A is lost after 13, before the reason | 11, 12, 13, then `Chunk([], "length")` | A: no token is missing |
| each is lost before its first token | `Chunk([], "error", "…")`, a message of yours | A, B, C: `max_moves` after the first |
| A raises `ValueError("too long")` | `Chunk([], "error", "too long")` | A: a refusal |

- **Chunks**: pass each one on as it is, before you read the next. One with a `finish_reason` is the last.
- **Choice**: `choose(candidates)` gets a list of the replicas that haven't been lost, at least one, and returns an
  index in it. If `replicas` is empty, the reader gets an error.
- **A loss**: ask the next for what `request_to_go_on` returns. Give it the first request and *all* tokens so far, or
  the last request and the tokens since then. Ask at most `max_moves` more: it may be the request that kills them.
- **Seed**: if it's missing or None, draw one, `random.getrandbits(31)`, the same for all replicas.
- **The reader leaves**: it calls `close()` on your generator. Then `stream_once`'s must be closed, too.
- Change neither `request` nor `replicas`.

If a `for` loop over a generator ends early, CPython closes the generator only once nothing refers to it. `with
closing(stream_once(...)) as chunks:` closes it in every case.
"""

# %% exercise="15.3"
import random
from contextlib import closing

from lessons_lib.serving.failover import MAX_MOVES, Chunk, ReplicaLost, Request, stream_once

from lessons_lib.serving.failover import relay

# %% [markdown]
"""
### Kill one

Now for real: six streams, A to F, with your `relay` and your `choose_replica`. The prompts of A, B and C begin with one
text, those of D, E and F with another, each two full blocks and a bit. C and E have a temperature and a seed, D has a
penalty, and the others are greedy. First, the answers without a failure. Which would survive as a longer prompt?
"""

# %%
texts = [(KIND if story.name in "ABC" else NIGHT) + story.prompt for story in STORIES]
how = {one: dict(temperature=1.0, seed=5) for one in "CE"} | {"D": dict(presence_penalty=1.5)}
requests = {
    story.name: dict(prompt=tokenizer(text).input_ids, max_tokens=48,
                     ignore_eos=True) | how.get(story.name, {})
    for story, text in zip(STORIES, texts)
}
alone = [answer(**request) for request in requests.values()]
survive = []
for (name, request), tokens in zip(requests.items(), alone):
    rest = answer(**request | dict(prompt=request["prompt"] + tokens[:CUT],
                                   max_tokens=48 - CUT))
    survive += [name] if tokens[:CUT] + rest == tokens else []
print("the same tokens as a longer prompt:", *survive)

# %% [markdown]
"""
The next cell starts two servers (lesson 14), each a process with an engine of its own. In each round, each reader takes
one chunk. After nine rounds, the process of replica 1 is killed.

**Set the limit**: 0, 1 or 2. With which do the fewest streams lose their server? **Guess first:** which streams will
replica 1 serve? (Requests arrive from A to F, and none ends before the kill.)
"""

# %% tags=["measured"]
LIMIT, GUESS = 1, "?"  # your limit, and your guess, such as "BDF"
LOST_AT = 9


def start_reader(request):
    hashes = hash_prompt(request["prompt"], BLOCK)
    return relay(request, replicas, partial(choose_replica, hashes, imbalance_limit=LIMIT))


options = "--model", BUNDLED_MODEL, "--device", "cpu", "--engine", "thread", "--num-blocks", 64
servers = [ServerProcess(*options, env={"OMP_NUM_THREADS": "1"}) for _ in range(2)]
with start_together(*servers):
    replicas = [ProcessReplica(server.url, BLOCK) for server in servers]
    readers = {name: start_reader(request) for name, request in requests.items()}
    records = record_streams(readers, replicas, LOST_AT, lose=servers[1].process.kill)
print("moved to the other replica:", *(record.name for record in records if record.has_moved),
      "| your guess:", GUESS)
print("as without a failure:", [record.token_ids for record in records] == alone)
print("longest wait, ms:",
      *(f"{record.name} {1000 * record.longest_wait:.0f}" for record in records))
watch_streams(records, 2, lost=(1, LOST_AT))

# %% [markdown]
"""
With a limit of 1, A and B go to replica 0. C would follow, but replica 0 has two requests by then and replica 1 none.
D's beginning is new, so only the load counts, and E and F follow D: four lose their server. With 2, C may follow too:
three lose it. With 0, three lose it as well, but both beginnings are in both caches.

Whatever the limit, each reader gets exactly the tokens of an answer without a failure, even in C, D and E. A stream
that moves has one longer wait, for a new connection and the prefill. (Boxes of replica 1 right of the dotted line:
these tokens were on their way when it died.)

## What is still wrong

**The balancer guesses.** It doesn't know what replicas have evicted. vLLM can publish *KV events* when it stores or
drops blocks, and routers such as NVIDIA Dynamo's follow them.

**A replica can hang.** Then no exception comes. Production asks for its health every few seconds, and takes silence for
a loss.

**A full replica refuses, and `relay` gives up.** Status 429 (lesson 14) means that another replica may have room.

**The end can get lost.** If a replica is lost between the last token and its `finish_reason`, the next one is asked to
go on behind the end. After a stop string it refuses, and the reader of a complete answer gets an error. (That's what a
`CUT_AT` of 11 breaks.)

**Every replica does two jobs,** and long prefills delay the tokens of others. Large deployments *disaggregate*: some
replicas compute only prompts, and send the KV cache to others that only decode.

**Replicas don't make a stream faster,** and one copy of the model has to fit. Lesson 16 cuts it in two.

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

Not part of the 75 minutes.
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
       unit="requests", how="Computed")

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
