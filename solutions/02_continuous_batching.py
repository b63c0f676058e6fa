# %% [markdown]
"""
# 02 · Continuous batching with slots

**Can a new request take a place in the batch while the others go on?**

90 minutes · difficulty: medium · routes: ideas, serving · you need first: lesson 00 (prefill, decode, KV cache) and lesson 01
(static batching, masks, positions)

In lesson 01 a wave of requests went through the model together, and all of them left together. In this lesson you build the loop that
serving systems use instead. A request leaves in the step after its last token, and the next one takes its place at once.
"""

# %%
import inspect
import random
from collections import deque
from statistics import mean, median
from time import perf_counter

import torch
from IPython.display import display

from lessons_lib.batching import SlotBatch, SlotCache, SlotLayer, batch_generate, decode_all, forward, static_generate
from lessons_lib.checks import check, hint, predict, progress, quiz, reveal, solution
from lessons_lib.measuring import MAX_NEW_TOKENS, NAMES, PROMPTS, STORIES, batch_metrics, ledger, request_times
from lessons_lib.models import cache_bytes_per_token, load_model
from lessons_lib.viz import Stepper
from lessons_lib.viz.batches import draw_slot_rows
from lessons_lib.viz.charts import bar_chart
from lessons_lib.viz.tables import Table
from lessons_lib.viz.timelines import draw_compare, draw_timeline

model, tokenizer = load_model(device="cpu")  # in float32: equal means equal to the last token
SIX = dict(prompts=PROMPTS, max_new_tokens=MAX_NEW_TOKENS, names=NAMES)
prompt_ids = {story.name: tokenizer(story.prompt).input_ids for story in STORIES}

# %% [markdown]
"""
## The problem: a place that nobody uses

Here are the six stories again, in waves of four. Look at slot 3, which belongs to D in the first wave.
"""

# %%
static = static_generate(model, tokenizer, **SIX, batch_size=4)
draw_timeline(static.trace, title="Static batching, waves of four")

# %%
times = request_times(static.trace, in_steps=True)
Table(
    columns=["request", "steps waited", "last token in step", "answer handed over in step", "held back, steps"],
    rows=[[name, t.admitted, t.done, t.returned, t.held_back] for name, t in times.items()],
    caption="Static batching: when each request begins, ends, and leaves",
)

# %%
print(f"D has its last token in step {times['D'].done}. Its slot stays taken until step {times['D'].returned}.")
print(f"E and F wait in the queue for {times['E'].admitted} steps. From step {times['D'].done} on there is a row that E could use.")
print(f"Of all token positions computed, {static.trace.waste:.0%} were for nobody.")

# %% [markdown]
"""
Two things hold E back. The wave has one shape, made when it began: its padding and its cache fit these four prompts. And a wave ends as a
whole. That was the batch barrier of lesson 01.

## Predict

We take the barrier away. There are four **slots**. In each step
- every request whose prompt is done gets one token, and
- at most 64 prompt tokens of *one* request are computed, the one that has been in its slot longest. The chunk that completes a prompt
  gives the first token of the answer.

A slot whose request has ended goes to the next in the queue in the following step. The caps are A 30, B 60, C 100, D 20, E 80, F 40.
Each prompt fits in one chunk. Assume that every request runs to its cap.
"""

# %%
print("prompt tokens:", {name: len(ids) for name, ids in prompt_ids.items()})
print(f"Static batching took {len(static.trace.steps)} steps.")
predict("02.a", ...)  # How many steps do the six stories take with four slots? One step = one turn as described above.

# %% [markdown]
"""
Each slot gets a row of cache with 256 places, whoever sits in it. So 4 × 256 = 1,024 places are reserved all the time. In every step, some
of them hold a key and a value that a request still needs.
"""

# %%
predict("02.b", ...)  # Averaged over the steps, what share of the 1,024 places is in use? In per cent; guess to within ten.

# %% [markdown]
"""
## The idea

> **continuous batching**: batching in which requests join and leave the batch between any two steps, each on its own, instead of as a wave.

> **slot**: a place in the batch, that is, one row of the tensors and one row of the KV cache. It belongs to one request at a time.

A small case first: three stories, D, B and F, and two slots. Above, static batching; below, the same requests with slots. Step through it
and watch the queue under each timeline.
"""

# %%
three = [STORIES[NAMES.index(name)] for name in "DBF"]
THREE = dict(prompts=[s.prompt for s in three], max_new_tokens=[s.max_new_tokens for s in three], names="DBF", batch_size=2)
waves = static_generate(model, tokenizer, **THREE)
slots = batch_generate(model, tokenizer, **THREE, prefill_step=16)
Stepper(lambda i: draw_compare(waves.trace, slots.trace, i), count=len(waves.trace.steps))

# %% [markdown]
"""
In the upper half, D's row is hatched from the end of D's answer to the end of the wave: computed, not needed. F waits for B.

In the lower half, F takes D's slot in the step after D's last token. The framed cells are its prefill, in chunks of 16 tokens. B gets a token
in every one of those steps; it does not stop for F.

At the start, B's cells are pale, without hatching, for two steps. B has its slot and waits: a step computes a chunk of one prompt only, and D's
comes first. No pass touched B's row in those steps.

At the end, slot 0 is hatched in grey. Nobody sits there, yet the decode pass goes over both rows, so it is computed along. So there are two kinds of
hatching: in a request's colour, a row whose request did not need what was computed; in grey, a row without a request.

The decode pass also goes over a row that is still prefilling. That costs one position beside a chunk of 16, too little to see in the picture.

Five parts make this work, and you write each of them: a request that knows how far it has come, a manager of the slots, a mask for rows
of unequal length, the chunk, and the step.

## Build 1: a request and its states

Static batching needed no notion of *where a request stands*: all rows of a wave stood at the same place. Now they differ. One waits, one is in the
middle of its prompt, one decodes. The loop asks every request for its state, so the state must never be wrong.

```
waiting ──▶ prefilling ──▶ decoding ──▶ finished
                 └──────────────────────────▲
```

`NEXT_STATES` says which states may follow which: `NEXT_STATES[RequestState.WAITING]` is the set `{RequestState.PREFILLING}`, and
`NEXT_STATES[RequestState.FINISHED]` is the empty set: nothing follows. The way from prefilling straight to finished is for an answer of one token: the
prefill gives that token.

**Your task: the two methods.** The fields are there. `move_to(state)` makes an allowed move, and refuses every other with
`IllegalTransition`. A refused call changes nothing: the caller can catch the error, and the request is as it was.

`append_token(token)` takes a new token and settles what follows from it. Example: E has cap 80, end token 0, 79 tokens, and is decoding.
`E.append_token(5)` makes 80 tokens; E is now finished, with `finish_reason == "length"`. Had the token been 0, the reason would be `"stop"`, and 0
would be the last token of the answer, as `generate` does it. A token that changes nothing else leaves E decoding.

A waiting or finished request takes no token at all. You need no test of your own for that: such a request would have to move to decoding or finished, which
`move_to` refuses. Call it before you change anything.
"""

# %% exercise="02.1"
from dataclasses import dataclass, field

from lessons_lib.batching.request import NEXT_STATES, IllegalTransition, RequestState

from lessons_lib.batching.request import Request

# %% [markdown]
"""
A walk through the life of D with a cap of 3. The tokens are made up; the states are yours.
"""

# %%
d = Request("D", prompt_ids["D"], max_new_tokens=3, eos_token_id=tokenizer.eos_token_id)
print(d.state.value)
d.move_to(RequestState.PREFILLING)
for token in (101, 102, 103):
    d.append_token(token)
    print(d.output_ids, d.state.value, d.finish_reason)
try:
    d.append_token(104)
except IllegalTransition as error:
    print("refused:", error)
print(d.output_ids)

# %% [markdown]
"""
## Build 2: who sits where

A slot number is a row of the cache. Two requests with one row would overwrite each other's keys, and both would go on writing, fluently, the
wrong text. A slot that nobody gives back is lost until the server restarts. So one small class keeps the books and refuses
what cannot be right.

`free` is the list of free slots, `slot_of` the request id → slot of those taken. `acquire("A")` takes a slot out of `free`, notes it in
`slot_of`, and returns its number. `release("A")` does the reverse.

**Your task: `acquire` and `release`**, with the three refusals in their docstrings. Any free slot will do; the numbers here are those of the reference,
which takes the last of `free`. With two slots: `acquire("A")` returns 0, `acquire("B")` returns 1, and `acquire("C")` raises `NoFreeSlot`. After
`release("A")`, `acquire("C")` returns the slot that A had. A second `release("A")` raises `ValueError`. As above: a refused call changes nothing.
"""

# %% exercise="02.2" given="__init__"
from lessons_lib.batching.slots import NoFreeSlot

from lessons_lib.batching.slots import SlotManager

# %%
manager = SlotManager(4)
print({name: manager.acquire(name) for name in "ABCD"})
try:
    manager.acquire("E")
except NoFreeSlot as error:
    print("refused:", error)
manager.release("D")
print("D has left; E gets slot", manager.acquire("E"))

# %% [markdown]
"""
## The cache: one row a slot

In lesson 01 the cache grew by one column a step, for all rows together. That cannot work here, since the rows are not equally long. So the whole
cache is reserved at the start, and never moves: in every layer one tensor for keys and one for values, of shape
`[slots, KV heads, max_seq_len, head size]`. Column *c* of a row holds the token at position *c* of the request in that slot. No padding, and no
copying when a row grows.
"""

# %%
cache = SlotCache(model, num_slots=4, max_seq_len=256)
print("keys of one layer:", list(cache.layers[0].keys.shape), "(slots, KV heads, columns, head size)")
megabytes = 4 * 256 * cache_bytes_per_token(model.config, model.dtype.itemsize) / 2**20
print(f"reserved in {len(cache.layers)} layers, keys and values: {megabytes:.1f} MiB, before the first request has come")

# %% [markdown]
"""
How does the model come to use it? A Hugging Face model is handed a `Cache` and asks nothing about its insides. In every layer it computes the keys and
values of the *new* tokens and calls `update` of that layer's cache. It computes attention over what `update` gives back. So `update` is the whole hook:
ours writes the new keys to their rows and columns, and returns the columns that this pass looks at.

Where that is, the loop notes in `view` before each pass: which rows take part (`view.rows`), where the new tokens go (`view.positions`), and how many
columns the pass looks at (`view.num_keys`), which is as many as the longest running request needs.

The `transpose` in the source is for a habit of PyTorch. `keys[rows, :, positions]` picks single places by row and column, and PyTorch then puts the axis of
the heads behind these two. The new keys come with the heads in front, so the two axes change places.
"""

# %%
print(inspect.getsource(SlotLayer.update))

# %% [markdown]
"""
Rows that are shorter than `view.num_keys` have something else in the last columns: zeros, or what an earlier request left there. Nobody clears a row when
its request leaves.

Here is the cache of the three stories at two moments: when F has taken over D's row, slot 0, and ten steps later.
"""

# %%
for i in (22, 32):
    display(draw_slot_rows(slots.trace, i, max_seq_len=256))

# %% [markdown]
"""
In the first picture, row 0 holds F's columns in front, and behind them, hatched, still the end of D. (Here hatching means left over, not computed in vain.) F must
not see that part. In the second, F has grown past it, and it is gone: written over, column by column.

Most of both rows is dashed: reserved, and not written. We come back to that at the end.

## Build 3: the mask of every row

The rule is short. **A new token at position *p* may see columns 0 to *p*** of its own row: the tokens before it, and itself. Everything beyond
is a later token of the same chunk, a leftover, or empty.

This one rule covers both kinds of pass. In a decode pass every row has one new token, at its own position, so each row sees a different number of
columns. In a prefill pass one row has several new tokens, and each sees one column more than the one before.

**Your task: `cache_mask(positions, num_keys)`.** `positions` is an integer tensor `[rows, new tokens]`. Return a bool tensor
`[rows, 1, new tokens, num_keys]`; True means "may look". The 1 stands for the attention heads, which all use the same mask.

Example: `cache_mask(torch.tensor([[2], [0]]), 4)` is True at columns 0, 1, 2 in row 0, and at column 0 in row 1. For a chunk whose tokens stand
at positions 3 and 4, `cache_mask(torch.tensor([[3, 4]]), 6)` is True at 0–3 for the first and at 0–4 for the second. Two lines are enough: comparison
of tensors broadcasts.
"""

# %% exercise="02.3"
from lessons_lib.batching.slot_cache import cache_mask

# %% [markdown]
"""
Your mask on two passes. The first is a decode pass as it would be if A, B, C and D all stood right after their prompts: each has its prompt in the cache, and the
token it feeds goes to the column after it. The second is the second chunk of F's prompt, with 8 tokens a chunk.
"""

# %%
def show_mask(mask, labels):
    for label, line in zip(labels, mask.flatten(0, 2)):
        print(f"{label:>14} ", "".join("#" if may else "." for may in line))


lengths = [len(prompt_ids[name]) for name in "ABCD"]
positions = torch.tensor([[length] for length in lengths])
show_mask(cache_mask(positions, num_keys=max(lengths) + 1), [f"{name} at {length}" for name, length in zip("ABCD", lengths)])
print("\nSecond chunk of F, 8 tokens a chunk:")
show_mask(cache_mask(torch.arange(8, 16)[None], num_keys=16), [f"F at {p}" for p in range(8, 16)])

# %% [markdown]
"""
Read the first block by rows: B sees all columns of this pass, because B is the longest. C sees few; the dots to its right are columns that
C has not reached. Read the second block as a staircase that begins at column 8: every token of the second chunk sees the whole first chunk.

## Build 4: one chunk of a prompt

A long prompt could be computed in one pass, as in lesson 00. But all the others would wait for that pass, and see their text stop. So a prompt goes in
by pieces, one piece a step, beside the decoding of the others.

> **chunked prefill**: computing a prompt in several passes, a limited number of tokens in each, so that other requests get their tokens in between.

Everything that the loop remembers is in one object, `batch`:

| field | what it is |
|---|---|
| `batch.waiting` | queue (`deque`) of requests without a slot |
| `batch.running` | dict: slot → the request in it, in the order of admission |
| `batch.slots` | a `SlotManager` |
| `batch.slots_in(state)` | list of the slots whose request is in that state, in the order of admission |
| `batch.prefill_step` | the most prompt tokens computed in one step |

And one function computes: `forward(batch, slots, tokens, positions, num_keys)`. `slots` is a range of rows; `tokens` and `positions` have one list for each of
them; `num_keys` is how many columns the pass looks at. It returns the logits of each row's last token, `[slots, vocabulary]`. (Inside it calls
`cache_mask`, then the model.)

**Your task: `prefill_chunk(batch)`.** Example: a request X has a prompt of 60 tokens, sits in slot 1, and `prefill_step` is 16. The first call computes its tokens
0–15 with `forward(batch, range(1, 2), [tokens 0–15], [[0, ..., 15]], num_keys=16)` and sets `num_computed_tokens` to 16. The second computes 16–31, at
positions 16–31, with 32 columns. The fourth computes the last 12, and only now do the logits mean something: their argmax, as an `int`, is X's
first token, which goes to `append_token`. One call, one chunk, one request: the first of those that are prefilling. When nobody is prefilling, do nothing.
"""

# %% exercise="02.4"
from lessons_lib.batching.continuous_batching import prefill_chunk

# %%
b = Request("B", prompt_ids["B"], max_new_tokens=60, eos_token_id=tokenizer.eos_token_id)
batch = SlotBatch(model, SlotCache(model, 2, 256), SlotManager(2), prefill_step=16, waiting=deque())
batch.running[1] = b
b.move_to(RequestState.PREFILLING)
while b.state is RequestState.PREFILLING:
    prefill_chunk(batch)
    print(f"{b.num_computed_tokens:2} of {len(b.prompt_ids)} prompt tokens computed; {b.state.value}; answer {b.output_ids}")
print("first token:", repr(tokenizer.decode(b.output_ids)))

# %% [markdown]
"""
## Build 5: the step

The decode pass is given. It goes over *all* slots at once, because a batch is a rectangle: slots that are empty or prefilling are computed too, with
a made-up token, and what comes out for them is dropped. Read what it feeds: the last token of every decoding request, at the position `num_computed_tokens`.

A made-up token leaves a key and a value in the cache too. In a prefilling row they go to column `num_computed_tokens`, where the next chunk begins; in an empty
row, to column 0, where the next request begins. Either way they are written over before anybody may see them.
"""

# %%
print(inspect.getsource(decode_all))

# %% [markdown]
"""
**Your task: `step(batch)`**, one turn of the loop. Four things:

1. **Release.** Every request that has finished leaves `batch.running`, and its slot goes back to `batch.slots`.
2. **Admit.** As long as a slot is free and somebody waits: take the first of `batch.waiting`, acquire a slot, enter the request in `batch.running`
   under that slot, and move it to prefilling.
3. **Decode.** `decode_all(batch)`.
4. **One chunk.** `prefill_chunk(batch)`.

Keep this order. Release and admit come first, so that who sits where stays the same for the whole step, and a slot that fell free works again in the very next
step. Decoding comes before the chunk, so that nobody gets two tokens in one step. Another order can give the same tokens, in other steps: order is about when, not what.

> **first come, first served**: the rule that requests are admitted in the order in which they arrived.

Example: two slots, A with one token to go, B in the middle, C waiting. This step gives A its last token, and B one. In the next step A leaves, C gets A's
slot and its first chunk, and B gets a token. What static batching did is one condition away: it admits only when *nobody* is left.
"""

# %% exercise="02.5"
from lessons_lib.batching.continuous_batching import step

# %% [markdown]
"""
Your step, your chunk and your mask serve the six stories. `batch_generate` makes the requests, the cache and the slots, and calls `step` until
nobody is left. (The requests and slots inside are those of `lessons_lib`, which do what yours do.)
"""

# %%
continuous = batch_generate(model, tokenizer, **SIX, max_seq_len=256, batch_size=4, prefill_step=64, step=step, mask=cache_mask)
reveal("02.a", len(continuous.trace.steps), unit="steps")

# %%
def who(step, phase, useful=True):
    return ", ".join(row.request for row in step.rows if row.phase == phase and bool(row.useful) == useful) or "–"


Table(
    columns=["step", "chunk and first token", "a further token", "in a slot, no chunk yet", "queue"],
    rows=[
        [str(n), who(turn, "prefill"), who(turn, "decode"), who(turn, "prefill", useful=False), ", ".join(turn.waiting)]
        for n, turn in enumerate(continuous.trace.steps[:6], start=1)
    ],
    caption="The first six steps, as recorded. Every prompt fits in one chunk.",
)

# %%
Stepper(lambda i: draw_compare(static.trace, continuous.trace, i), count=len(static.trace.steps))

# %% [markdown]
"""
In the lower half, compare slots 2 and 3 with the table. In step 1 they are pale: nobody decodes yet, so no pass touches them. In steps 2 and 3 slot 3 is hatched, and slot 2
in step 2: D and C still wait for their chunks, but A decodes, and its pass goes over all four rows.
"""

# %%
before, after = request_times(static.trace, in_steps=True), request_times(continuous.trace, in_steps=True)
Table(
    columns=["request", "queue: static", "queue: continuous", "latency: static", "latency: continuous"],
    rows=[[n, before[n].admitted, after[n].admitted, before[n].returned, after[n].returned] for n in NAMES],
    caption="Queue time and latency of the six stories, in steps",
)

# %% [markdown]
"""
E begins when D has left, F when A has left. Nobody holds a finished answer back.

The end of the run is near its limit. C needs 100 steps for 100 tokens, however we batch, and got its first chunk only in step 3. E came in when D left, and ends one
step after C. For B, C and D the answer itself comes a little later than its cap says, since the four prompts go in one after the other.

## Prove it

Requests come and go around each other, in rows with old keys in them. The claim is that none of them notices: every answer is token for token what
Hugging Face `generate` gives for that prompt alone.
"""

# %%
def alone(name, max_tokens):
    ids = torch.tensor([prompt_ids[name]])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False, pad_token_id=tokenizer.pad_token_id)
    return out[0, ids.shape[1] :].tolist()


oracle = [alone(story.name, story.max_new_tokens) for story in STORIES]
for batch_size, prefill_step in ((2, 64), (4, 64), (4, 7), (6, 16)):
    how = dict(batch_size=batch_size, prefill_step=prefill_step, step=step, mask=cache_mask)
    result = batch_generate(model, tokenizer, **SIX, **how)
    same = sum(a == b for a, b in zip(result.outputs, oracle))
    print(f"{batch_size} slots, chunks of {prefill_step:2}: {same} of 6 answers equal `generate`, in {len(result.trace.steps)} steps")

# %% [markdown]
"""
### What happens without the mask

Now leave one rule out: in decode passes, every row sees all columns of the pass. Prompts are computed as before. Two slots; C runs for long in slot 0. In
slot 1 sits a first tenant, then E. We run it twice, with two different first tenants. E's prompt is the same both times.

> **cross-talk**: keys of one request influencing the answer to another, because that one could see columns that are not its own.
"""

# %%
def careless_mask(positions, num_keys):
    if positions.shape[1] > 1:  # a prompt chunk
        return cache_mask(positions, num_keys)
    return torch.ones(len(positions), 1, 1, num_keys, dtype=torch.bool)  # a decode pass: every column


def answer_of_e(first_tenant, mask):
    prompts = [PROMPTS[NAMES.index(name)] for name in ("C", first_tenant, "E")]
    names = ["C", first_tenant, "E"]
    run = batch_generate(model, tokenizer, prompts, max_new_tokens=[70, 3, 40], names=names, batch_size=2, step=step, mask=mask)
    return tokenizer.decode(run.outputs[2])


texts = {(mask, tenant): answer_of_e(tenant, mask) for mask in (cache_mask, careless_mask) for tenant in "BF"}
for (mask, tenant), text in texts.items():
    print(f"{mask.__name__}, slot used by {tenant} before:\n   {PROMPTS[4]}{text}\n")
for mask in (cache_mask, careless_mask):
    print(f"{mask.__name__}: E's answer is the same after B and after F: {texts[mask, 'B'] == texts[mask, 'F']}")

# %% [markdown]
"""
Nothing crashes, and no shape is wrong. With the mask, E's answer is the same whoever sat in the slot before. Without it, the answer depends on who sat there.

The other text need not be quoted for that. E attends to foreign keys beside its own, the scores shift, one token comes out differently, and from there the story goes
another way. A reader of one answer alone could not tell. On a server it would be another user's text that steers this user's answer.

### What happens when a freed slot is not refilled

One condition in the step brings the barrier back: as long as anybody is unfinished, neither release nor admit.
"""

# %%
def step_with_barrier(batch):
    if len(batch.slots_in(RequestState.FINISHED)) == len(batch.running):
        return step(batch)  # nobody is at work: clear all slots and take the next ones in
    decode_all(batch)
    prefill_chunk(batch)


barrier = batch_generate(model, tokenizer, **SIX, batch_size=4, step=step_with_barrier, mask=cache_mask)
print(f"answers equal: {barrier.outputs == continuous.outputs}")
print(f"steps: {len(continuous.trace.steps)} with refilling, {len(barrier.trace.steps)} without, {len(static.trace.steps)} in static waves")

# %% [markdown]
"""
The answers are right all the same: this rule is about time, not about truth. The few steps more than static batching are the prompts, which go in one
after the other here, and all at once there.

## Measure

Four numbers describe a serving run. The first is the owner's, the second and third are the user's, the last says how well the machine is used.

> **throughput**: answer tokens a second, over all requests together.

> **latency**: the time from a request's arrival until its whole answer is handed over.

> **queue time**: the time from a request's arrival until it gets its place in the batch.

> **slot utilisation**: the share of slots × steps in which the slot computed something that a request needed.

The workload: sixteen requests cut from the stories, most with short answers, three with long ones, in an order drawn with a fixed seed. All arrive at
once.
"""

# %%
rng = random.Random(2)
prompts = [" ".join(rng.choice(PROMPTS).split()[: rng.randint(3, 40)]) for _ in range(16)]
max_tokens_each = [60, 40, 30] + [rng.randint(6, 10) for _ in range(13)]
rng.shuffle(max_tokens_each)
WORKLOAD = dict(prompts=prompts, max_new_tokens=max_tokens_each)
methods = {"static": static_generate, "continuous": lambda *args, **how: batch_generate(*args, **how, step=step, mask=cache_mask)}
keys = [("static", 1), *((kind, n) for n in (2, 4, 8) for kind in methods)]
runs = {(kind, n): [methods[kind](model, tokenizer, **WORKLOAD, batch_size=n)] for kind, n in keys}
print("caps:", max_tokens_each)
print("all answers equal those of one at a time:", all(run[0].outputs == runs["static", 1][0].outputs for run in runs.values()))

# %%
def in_steps(kind, n):
    trace = runs[kind, n][0].trace
    times = request_times(trace, in_steps=True).values()
    queued, latency = mean(t.admitted for t in times), mean(t.returned for t in times)
    return [len(trace.steps), trace.forward_calls, queued, latency, f"{batch_metrics([], trace).slot_utilisation:.0%}"]


Table(
    columns=["batch size", "method", "steps", "forward passes", "mean queue time", "mean latency", "slot utilisation"],
    rows=[[str(n), "one at a time" if n == 1 else kind, *in_steps(kind, n)] for kind, n in runs],
    caption="Sixteen requests. Times in steps, which are the same on every machine.",
)

# %% [markdown]
"""
Counted in steps, continuous batching is ahead at every batch size, and slot utilisation shows why. (With one slot it would be one request at a time again: nobody can
join or leave beside anybody, so there is nothing to win.)

At 8 slots, compare the steps with the largest cap: the longest request decides. More slots would not shorten the run; queue time and latency would still fall. And compare the
forward passes with those of static batching: there are only two waves of eight, so little waiting can be saved, and the prompts that go in one by one cost
more passes than were saved.

A step is not a second, though. Now the clock: one more run of everything, and of the two the faster one. What disturbs a run can only make it slower.
"""

# %% tags=["measured"]
for (kind, n), done in runs.items():
    done.append(methods[kind](model, tokenizer, **WORKLOAD, batch_size=n))


def in_seconds(kind, n):
    faster = max((batch_metrics(run.outputs, run.trace) for run in runs[kind, n]), key=lambda metrics: metrics.throughput)
    return [faster.throughput, faster.mean_queue_time, faster.mean_latency]


seconds = {key: in_seconds(*key) for key in runs}
base = seconds["static", 1][0]
Table(
    columns=["batch size", "method", "tokens/s", "× one at a time", "× static", "mean queue time, s", "mean latency, s"],
    rows=[[str(n), "one at a time" if n == 1 else k, s[0], s[0] / base, s[0] / seconds["static", n][0], s[1], s[2]] for (k, n), s in seconds.items()],
    caption="The faster of two runs on this machine",
)

# %% tags=["measured"]
ratios = {kind: [seconds[kind, n][0] / base for n in (2, 4, 8)] for kind in methods}
best = max(ratios["continuous"])
print(f"Continuous batching, best batch size: {best:.1f} × one at a time; against static at the same size: "
      + ", ".join(f"{c / s:.2f} × at {n}" for n, c, s in zip((2, 4, 8), ratios["continuous"], ratios["static"])))
bar_chart(
    ["2", "4", "8"], ratios, ylabel="throughput, × one at a time", xlabel="batch size", value_format="{:.2f}",
    alt=f"Throughput relative to one request at a time at batch sizes 2, 4, 8: {', '.join(f'{k} ' + ' '.join(f'{r:.2f}' for r in v) for k, v in ratios.items())}.",
)

# %% [markdown]
"""
With 8 slots one might hope for 8 times the tokens a second. Where does the rest go? First, time a pass by itself: a decode pass with 1, 2, 4 and 8 rows, and the prefill of one
prompt.
"""

# %% tags=["measured"]
@torch.inference_mode()
def pass_times(cases, times=41):
    """Median seconds of a pass over so many rows with so many tokens each. In turns: a slow moment of the machine meets all alike."""
    seconds = {case: [] for case in cases}
    batches = {case: SlotBatch(model, SlotCache(model, case[0], 256), SlotManager(case[0]), 64, deque()) for case in cases}
    for _ in range(times):
        for rows, tokens in cases:
            started = perf_counter()
            forward(batches[rows, tokens], range(rows), [[5] * tokens] * rows, [list(range(100 - tokens, 100))] * rows, num_keys=100)
            seconds[rows, tokens].append(perf_counter() - started)
    return {case: median(taken) for case, taken in seconds.items()}


mean_prompt = round(mean(len(tokenizer(prompt).input_ids) for prompt in prompts))
*decode_times, took_prefill = pass_times([(1, 1), (2, 1), (4, 1), (8, 1), (1, mean_prompt)]).values()
took = dict(zip((1, 2, 4, 8), decode_times))
for rows, t in took.items():
    print(f"decode pass, {rows} rows: {1000 * t:5.1f} ms, {t / took[1]:.2f} × one row; with all rows in use {rows * took[1] / t:.1f} × the tokens a second")
print(f"prefill of {mean_prompt} tokens: {1000 * took_prefill:5.1f} ms, {took_prefill / took[1]:.2f} × a decode pass with one row")

# %% [markdown]
"""
The last column is the ceiling: what batching could give on this machine if every row were useful all the time. Now multiply it out. Of the rows that the decode passes computed, only
some gave a token. And every prompt takes a pass of its own.
"""

# %% tags=["measured"]
def account(n):
    """One row of the table: from n rows to the throughput that these passes should give."""
    trace = runs["continuous", n][0].trace
    useful = [row.phase for step in trace.steps for row in step.rows if row.useful]
    prefills, tokens = useful.count("prefill"), useful.count("decode")
    decodes = trace.forward_calls - prefills
    ceiling, in_use = n * took[1] / took[n], tokens / (n * decodes)
    one_at_a_time = tokens * took[1] + prefills * took_prefill
    expected = one_at_a_time / (decodes * took[n] + prefills * took_prefill)
    return [str(n), ceiling, f"{in_use:.0%}", ceiling * in_use, prefills, decodes, expected, seconds["continuous", n][0] / base]


Table(
    columns=["slots", "ceiling ×", "rows in use", "ceiling × rows in use", "prefill passes", "decode passes", "with prefill passes ×", "measured ×"],
    rows=[account(n) for n in (2, 4, 8)],
    caption="Continuous batching against one at a time, multiplied out from the passes timed above",
)

# %% [markdown]
"""
There are three losses, and they do not overlap:

- **A pass with more rows costs more** than a pass with one. It makes the ceiling lower than the number of slots.
- **Rows without a token.** A decode pass over 8 rows is paid for 8. At 8 slots more than half of the rows give none: the longest requests run on while the other
  slots are empty.
- **Prefill passes.** One at a time has them too, and batching does not make them fewer. What does not shrink counts for more when the rest has shrunk.

The last two columns agree only roughly. The passes were timed apart from the runs, all with 100 columns; the runs add our own bookkeeping; and one at a time
used the growing cache of lesson 01.

Do not compare these numbers with those of papers without asking what they divide by. Orca reports 36.9 times the throughput of FasterTransformer at equal latency, for a model of 175 billion
weights (Yu et al., 2022, abstract); vLLM reports 2 to 4 times that of FasterTransformer and Orca (Kwon et al., 2023, abstract). Both compare with systems that batch already.

### The size of a chunk

How long does a decoding request wait for its next token? As long as a step takes. Here a prompt of 240 tokens is there from the start, behind A, C and E. Count the token positions of
the largest step.
"""

# %%
def with_long_prompt(prefill_step):
    ids = [*(prompt_ids[n] for n in "ACE"), (prompt_ids["B"] * 5)[:240]]
    how = dict(batch_size=4, prefill_step=prefill_step, step=step, mask=cache_mask)
    return batch_generate(model, tokenizer, ids, max_new_tokens=[20, 20, 20, 4], **how).trace.steps


for prefill_step in (16, 64, 240):
    steps = with_long_prompt(prefill_step)
    largest = max(s.tokens_computed for s in steps)
    first = next(i for i, s in enumerate(steps, 1) if s.rows[3].phase == "decode") - 1
    print(f"chunks of {prefill_step:3}: largest step {largest:3} token positions; the long prompt has its first token in step {first}")

# %% tags=["measured"]
for prefill_step in (16, 64, 240):
    longest = median(max(s.seconds for s in with_long_prompt(prefill_step)) for _ in range(3))
    print(f"chunks of {prefill_step:3}: longest step {1000 * longest:4.0f} ms (median of three runs)")

# %% [markdown]
"""
Small chunks keep every step short, for those who are decoding. Large chunks bring the newcomer's first token sooner. That is a trade, and the owner
of the server chooses.

### The ledger
"""

# %% tags=["measured"]
ledger(model, tokenizer, "02", with_cache_only=True)

# %% [markdown]
"""
Read the last row against the one above it. Fewer token positions are computed, more of them are useful, and nothing is copied: the cache stays where it is, and
each step writes only its new keys. But look at "cache reserved": it is the largest of all rows.

## What production does

- The paper behind this lesson is **Orca** (Yu et al., 2022). It calls the idea *iteration-level scheduling*: the scheduler decides before every iteration
  of the model, not once for a batch. **Sarathi-Serve** (Agrawal et al., 2024) puts the chunk into the same batch as the decodes.
- **vLLM** (version 1 of its engine) keeps `waiting` and `running` in the `Scheduler` of `vllm/v1/core/sched/scheduler.py`. It has no separate prefill and decode:
  each request has `num_computed_tokens`, and gets as many new tokens as it lacks and the step's budget allows (`max_num_batched_tokens`). Our `batch_size` is its
  `max_num_seqs`.
- **Hugging Face transformers** has `generation/continuous_batching/`, with the states `PENDING`, `PREFILLING`, `DECODING`, `FINISHED` among those in `requests.py`.
- Neither reserves whole rows of cache, as we do. Both cut the cache into blocks, for the reason that follows.

## What is still wrong
"""

# %%
reveal("02.b", 100 * (1 - continuous.trace.cache_waste), unit="%")
for name, run in (("six stories, 4 slots", continuous), ("workload, 4 slots", runs["continuous", 4][0]), ("workload, 8 slots", runs["continuous", 8][0])):
    peak = max(step.cache_used / step.cache_reserved for step in run.trace.steps)
    print(f"{name}: {run.trace.cache_waste:.0%} of the reserved cache lay empty on average; {1 - peak:.0%} even in the fullest step")

# %% [markdown]
"""
**Every slot reserves `max_seq_len` places, whoever sits in it.** We must reserve for the longest request that might come, and most are short. On a GPU the cache
is what limits the number of slots, so most of the memory that could serve further requests lies empty. Lesson 03 hands out small blocks instead of rows.

**Idle rows still cost.** The pass is a rectangle over all slots.
"""

# %%
for name, run in (("six stories, 4 slots", continuous), ("workload, 8 slots", runs["continuous", 8][0])):
    wasted = run.trace.tokens_computed - run.trace.tokens_useful
    two = sum(step.forward_calls == 2 for step in run.trace.steps)
    print(f"{name}: {wasted} of {run.trace.tokens_computed} token positions computed for nobody; {two} of {len(run.trace.steps)} steps made two forward passes")

# %% [markdown]
"""
**A step with a prefill makes two forward passes**, one for the rectangle and one for the chunk, and the weights are read twice. Lesson 04 builds the mask that lets
tokens of different requests stand in one row, and lesson 05 packs decodes and chunks into that row: one pass, no idle cells.

## Quiz
"""

# %%
quiz("02")

# %% [markdown]
"""
## References

- G.-I. Yu, J. S. Jeong, G.-W. Kim, S. Kim, B.-G. Chun: *Orca: A Distributed Serving System for Transformer-Based Generative Models*, OSDI 2022, section 3.
  <https://www.usenix.org/conference/osdi22/presentation/yu>
- A. Agrawal et al.: *Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve*, OSDI 2024. <https://arxiv.org/abs/2403.02310>
- W. Kwon et al.: *Efficient Memory Management for Large Language Model Serving with PagedAttention*, SOSP 2023, section 3 on reserved memory that lies
  empty. <https://arxiv.org/abs/2309.06180>
- vLLM: `vllm/v1/core/sched/scheduler.py`. <https://github.com/vllm-project/vllm>
- Hugging Face transformers: `src/transformers/generation/continuous_batching/`. <https://github.com/huggingface/transformers>
"""
