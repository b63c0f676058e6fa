# %% [markdown]
"""
# 02 · Continuous batching with slots

![Static batching above, continuous batching below: done much earlier](../lessons_lib/assets/openings/02.svg)

**Can a new request join the batch while the others keep running?**

75 minutes · difficulty: medium · routes: ideas, kernels, serving · prerequisites: lesson 00 (prefill, decode, KV
cache); lesson 01 (static batching, masks, positions) helps

In lesson 01 (*static batching*), a wave of requests went through the model together, and none left before all were
done. Here you write, from an empty cell, the whole loop that serving systems use instead.
"""

# %% folded=true
import random
from collections import deque
from functools import partial
from statistics import mean

import torch

from lessons_lib.batching import SlotBatch, SlotCache, batch_generate, static_generate
from lessons_lib.batching.continuous_batching import serve as library_serve
from lessons_lib.batching.request import Request
from lessons_lib.checks import check, hint, predict, progress, quiz, reset, reveal, solution
from lessons_lib.measuring import MAX_NEW_TOKENS, NAMES, PROMPTS, STORIES, batch_metrics
from lessons_lib.measuring import ledger, request_times
from lessons_lib.models import cache_bytes_per_token, load_model
from lessons_lib.recording import record_run
from lessons_lib.viz.stepper import Stepper
from lessons_lib.viz.batches import draw_slot_rows
from lessons_lib.viz.tables import Table
from lessons_lib.viz.timelines import draw_compare, draw_timeline
from lessons_lib.viz.words import marked

# %%
# float32: "equal" below means equal down to the last token
model, tokenizer = load_model(device="cpu")
SIX = dict(prompts=PROMPTS, max_new_tokens=MAX_NEW_TOKENS, names=NAMES)
prompt_ids = {story.name: tokenizer(story.prompt).input_ids for story in STORIES}

# %% [markdown]
"""
## The problem: a slot that sits idle

Here are the six stories again, served in waves of four. Look at slot 3, which D occupies in the first wave.
"""

# %%
static = record_run(static_generate, model, tokenizer, **SIX, batch_size=4)
times = request_times(static.trace, in_steps=True)
print(f"D gets its last token in step {times['D'].done}. Its slot stays occupied until step "
      f"{times['D'].returned}.")
print(f"E and F wait in the queue for {times['E'].admitted} steps.")
draw_timeline(static.trace, title="Static batching, waves of four")

# %% [markdown]
"""
What keeps E out is the batch barrier of lesson 01: a wave starts and ends as a whole.

## The idea

> **continuous batching**: batching in which each request joins and leaves the batch on its own, between any two
> steps, instead of together with a wave.

> **batch slot**: one row of the batch, that is, one row of the input tensors and one row of the KV cache. It belongs
> to one request at a time.

When a request finishes, the next one in the queue gets its slot in the following step. Its prompt must be computed
while the others decode, and one long pass would freeze their text. So the prompt is computed in pieces:

> **chunk**: a limited number of adjacent prompt tokens of one request, computed in one forward pass.

> **chunked prefill**: computing a prompt chunk by chunk, in several passes, so that other requests get tokens in
> between.

In every step,

1. free slots are filled from the queue;
2. each request whose prompt is done gets one token, all of them in one *decode pass*;
3. the model computes one chunk of *one* prompt. Of the prompts that aren't done, it's the one that was *admitted*
   (given its slot) first. The chunk that completes a prompt also gives that request its first token;
4. requests that have their last token leave.

So a step makes at most two forward passes.

> **first come, first served**: the rule that requests are admitted in the order in which they arrived.

Here are three stories, D, B and F, and two slots, above with static batching and below with slots.
"""

# %%
three = [STORIES[NAMES.index(name)] for name in "DBF"]
THREE = dict(prompts=[s.prompt for s in three],
             max_new_tokens=[s.max_new_tokens for s in three], names="DBF")
waves = record_run(static_generate, model, tokenizer, **THREE, batch_size=2)
slots = record_run(batch_generate, model, tokenizer, **THREE, batch_size=2, prefill_step=16)
draw_compare(waves.trace, slots.trace)

# %% [markdown]
"""
**Top (static).** Once D's answer is done, D's row is hatched until the wave ends: computed, but not needed. F waits
for B.

**Bottom (continuous).** F takes D's slot in the step after D's last token. The framed cells are prefill, in chunks of
16 tokens. B gets a token in every step of F's prefill. B's own first two steps are pale: it has
its slot, but D's prompt comes first. And the hatched end of slot 0 shows that the decode pass covers both rows,
including one without a request.

## The cache: one row per slot

Here the rows have different lengths, so we reserve the whole cache at the start and never move it. Each layer has one
tensor for the keys and one for the values, of shape `[slots, KV heads, max_seq_len, head size]`. Column *c* of a row
belongs to the token at position *c* of the request in that slot. There is no padding, and nothing is copied when a row
grows.
"""

# %%
cache = SlotCache(model, num_slots=4, max_seq_len=256)
print("keys of one layer:", list(cache.layers[0].keys.shape))
megabytes = 4 * 256 * cache_bytes_per_token(model.config, model.dtype.itemsize) / 2**20
print(f"reserved in {len(cache.layers)} layers, keys and values: {megabytes:.1f} MiB, "
      "before the first request arrives")

# %% [markdown]
"""
A pass writes the keys and values of its new tokens, then reads a rectangle: all its rows, up to the last column of the
longest one. Nothing clears a row when its request leaves. So beyond a shorter row's own columns, the pass reads zeros,
or what an earlier request left. Here is the cache of the three stories shortly after F took over D's row, slot 0.
"""

# %%
draw_slot_rows(slots.trace, 22, max_seq_len=256)

# %% [markdown]
"""
Row 0 holds F's columns, followed by what is left of D's, hatched. F must not see that part; it will overwrite it token
by token. Most of both rows is dashed: reserved but never written.

## Build 1: a mask for every row

**A new token at position *p* may see columns 0 to *p*** of its own row: the tokens before it, and itself. Everything
beyond is a later token of the same chunk, a leftover, or empty. One rule covers both kinds of pass: many rows with one
new token each, or one row with several.

**Exercise 02.1.** Write `cache_mask(positions, num_keys)`. `positions` is an integer tensor of shape
`[rows, new tokens]`, and `num_keys` the number of columns that the pass reads. Return a bool tensor of shape
`[rows, 1, new tokens, num_keys]`, where True means "may attend". The 1 stands for the attention heads, which all use
the same mask.

Example: `cache_mask(torch.tensor([[2], [0]]), 4)` is True at columns 0, 1, 2 in row 0, and at column 0 in row 1. For
a chunk with tokens at positions 3 and 4, `cache_mask(torch.tensor([[3, 4]]), 6)` is True at 0–3 for the first and at
0–4 for the second.
"""

# %% exercise="02.1"
from lessons_lib.batching.slot_cache import cache_mask

# %% [markdown]
"""
Here is your mask for a decode pass with A, B, C and D right after their prompts:
"""


# %%
lengths = [len(prompt_ids[name]) for name in "ABCD"]
mask = cache_mask(torch.tensor([[length] for length in lengths]), num_keys=max(lengths) + 1)
for name, length, row in zip("ABCD", lengths, mask.flatten(0, 2)):
    print(f"{name} at {length:2}  ", "".join("#" if may else "." for may in row))

# %% [markdown]
"""
B is the longest, so it sees every column of this pass.

### What happens without the mask

Two slots. C runs for a long time in slot 0; slot 1 goes to F first, then to E. The library's loop, `batch_generate`,
serves them twice: with your mask, and with a careless one that lets every row see all columns of a decode pass.

**Guess first:** what does the careless mask make of E's answer? An error, gibberish, or a story? If a story, whose?
Words between » and « differ from the right answer.
"""

# %%
def careless_mask(positions, num_keys):
    if positions.shape[1] > 1:  # a prompt chunk
        return cache_mask(positions, num_keys)
    # a decode pass: every column
    return torch.ones(len(positions), 1, 1, num_keys, dtype=torch.bool)


def answer_of_e(mask, loop=library_serve):
    prompts = [PROMPTS[NAMES.index(name)] for name in "CFE"]
    how = dict(max_new_tokens=[70, 3, 40], names="CFE", batch_size=2)
    return batch_generate(model, tokenizer, prompts, **how, mask=mask, loop=loop)[2]


right, careless = answer_of_e(cache_mask), answer_of_e(careless_mask)
print(f"your mask:\n   {PROMPTS[4]}{tokenizer.decode(right)}\n")
print(f"careless mask:\n   {PROMPTS[4]} "
      f"{marked(tokenizer.decode(right), tokenizer.decode(careless))}\n")
print(f"F's prompt:\n   {PROMPTS[5]}")

# %% [markdown]
"""
Nothing crashes, every shape is right, and the wrong answer is a good story. But it's about a grandma, a word from F's
prompt, not E's. C is two tokens ahead of E, so a pass reads two columns more than E has, and that is enough.
("Further" watches the word come in.)

> **cross-talk**: keys of one request influencing the answer to another, because the second one could see columns that
> aren't its own.

In a server, that is one user's text in another user's answer.

## A batch, printed

What will your loop have to do? Watch the library's. Two slots, chunks of 4 tokens, three requests X, Y and Z with
prompts of 3, 6 and 2 tokens. Each line is a forward pass: which requests wait, which one has which slot, and what
goes in.

**Guess first:** the model computes X and Y in one rectangle although Y's prompt isn't done. What goes in for Y, and
where does its key end up?
"""


# %%
def watched(batch):
    compute = batch.forward

    def forward(slots, tokens, positions):
        queue = "".join(request.id for request in batch.waiting) or "-"
        held = {slot: request.id for slot, request in batch.running.items()}
        print(f"{queue:3}{held!s:20} {slots!s:11}  tokens {tokens!s:28} positions {positions}")
        return compute(slots, tokens, positions)

    batch.forward = forward
    return batch


asked = {"X": ("A dog ran", 3), "Y": ("The sun was up and the", 3), "Z": ("One day", 2)}
waiting = deque(Request(name, tokenizer(text).input_ids, limit)
                for name, (text, limit) in asked.items())
print({request.id: request.prompt_ids for request in waiting}, "\n")
library_serve(watched(SlotBatch(model, SlotCache(model, 2, 256), 4, waiting)))

# %% [markdown]
"""
Read it pass by pass. X's chunk completes its prompt, so X has a token. In the second pass, X decodes at position 3. Y's
row takes part, because a batch is a rectangle, but with a *dummy* token, whose output is thrown away. Its key is
written to column 0, and in the very next pass Y's chunk overwrites it. That is the trick: a dummy goes where the row's
next real token will go. In the fourth pass, that is column 4.

## Build 2: the loop

The `batch` that you saw has everything you need:

| | what it is |
|---|---|
| `batch.waiting` | queue (`deque`) of requests without a slot; more may arrive while you serve |
| `batch.running` | dict: slot → the request in it, in order of admission. You keep it up to date |
| `batch.num_slots`, `batch.prefill_step` | the number of slots, and the longest chunk |
| `batch.forward(slots, tokens, positions)` | one pass, with your mask. `slots` is a `range`; `tokens` and `positions` have a list for each of its slots. Returns the next token for each, in the order of the range |

A request has its `prompt_ids`; its `output_ids`, to which you append; `num_computed_tokens`, yours to count with; and
`is_done`, which is True once its answer is complete.

**Exercise 02.2.** Write `serve(batch)`, the whole loop: in every step, the four points of "The idea", in that order.
It returns when every answer is complete; by then `batch.running` is empty. Only the answers and the passes count. Which
slot a request gets, and how you organize the code, is up to you. In detail:

- A step fills *all* free slots. A request that gets its first token in a step decodes from the next one on.
- The decode pass covers all slots. Those that don't decode take a dummy: any token, at a position that holds nothing of
  the request yet, such as where its next token will go; in an empty slot, position 0. If none decodes, there is no pass.
- A chunk is as long as it may be, and it's computed for its slot alone.

Give it half an hour.
"""

# %% exercise="02.2"
from lessons_lib.batching.continuous_batching import serve

# %% [markdown]
"""
Now the six stories, with four slots and chunks of 64 tokens, so every prompt fits in one chunk. Every answer reaches its
limit: 30 (A), 60 (B), 100 (C), 20 (D), 80 (E) and 40 (F) tokens. Static batching took 180 steps.

**Predict 02.a.** How many steps does your loop take?
"""

# %%
predict("02.a", ...)  # steps

# %% [markdown]
"""
From here on, continuous batching runs with your mask and loop, `MINE`. The stepper shows it below the waves of lesson
01.
"""

# %%
MINE = dict(mask=cache_mask, loop=serve)
continuous = record_run(batch_generate, model, tokenizer, **SIX, max_seq_len=256, batch_size=4,
                        prefill_step=64, **MINE)
reveal("02.a", len(continuous.trace.steps), unit="steps")
before, after = (request_times(run.trace, in_steps=True) for run in (static, continuous))
print("The step in which each answer is returned, static → continuous:")
print(", ".join(f"{name} {before[name].returned} → {after[name].returned}" for name in NAMES))
Stepper(lambda i: draw_compare(static.trace, continuous.trace, i),
        count=len(static.trace.steps), start=len(static.trace.steps) - 1)

# %% [markdown]
"""
Five answers come back sooner. C's comes a little later: it had the longest answer of its wave, so the barrier cost it
nothing, and now its prompt waits for the chunks of A and B.

## Join a running batch

In a server, requests arrive at any time. Here the six stories are running, and your own request arrives in step 40.
In waves, it would start with E and F in step 101, and its answer would be returned after step 180.

**Guess first:** in which step does it get its first token now? The numbers above tell. Then try an opening of your own.
"""

# %%
# another opening, or another step, 2 to 100
OPENING, ARRIVES = "Lily found a tiny door in the garden.", 40
yours = Request("yours", tokenizer(OPENING).input_ids, 30, tokenizer.eos_token_id)


def serve_with_yours(batch):
    compute, step = batch.forward, 1

    def forward(slots, tokens, positions):
        nonlocal step
        if len(slots) == batch.num_slots:  # a decode pass begins each step but the first
            step += 1
            if step == ARRIVES:
                batch.waiting.append(yours)
        return compute(slots, tokens, positions)

    batch.forward = forward
    serve(batch)


joined = record_run(batch_generate, model, tokenizer, **SIX, mask=cache_mask,
                    loop=serve_with_yours)
print(f"{OPENING}{tokenizer.decode(yours.output_ids)}\n")
print("the answers to the six stories are the same as without your request:",
      joined.outputs == continuous.outputs)
draw_timeline(joined.trace, title="Your request joins the six stories")

# %% [markdown]
"""
B gets its last token in step 61. Your request takes B's slot in step 62 and gets its first token in the same step,
since its prompt fits in one chunk. It is done before C and E, and neither of them waits for it.

## Prove it

Requests come and go, in rows that still contain old keys. Each answer must still be, token for token, what Hugging Face
`generate` gives for that prompt alone.
"""


# %%
def alone(name, max_tokens):
    ids = torch.tensor([prompt_ids[name]])
    how = dict(max_new_tokens=max_tokens, do_sample=False, pad_token_id=tokenizer.pad_token_id)
    return model.generate(ids, attention_mask=torch.ones_like(ids),
                          **how)[0, ids.shape[1] :].tolist()


oracle = [alone(story.name, story.max_new_tokens) for story in STORIES]
for batch_size, prefill_step in ((2, 64), (4, 64), (4, 7)):
    how = dict(batch_size=batch_size, prefill_step=prefill_step, **MINE)
    result = record_run(batch_generate, model, tokenizer, **SIX, **how)
    same, steps = sum(a == b for a, b in zip(result.outputs, oracle)), len(result.trace.steps)
    print(f"{batch_size} slots, chunks of {prefill_step:2}: "
          f"{same} of 6 answers equal `generate`, in {steps} steps")

# %% [markdown]
"""
## Measure

Throughput matters to the operator, latency and queue time to the user.

> **throughput**: answer tokens per second, over all requests together.

> **latency**: the time from a request's arrival until its whole answer is returned.

> **queue time**: the time from a request's arrival until it gets a slot in the batch.

> **slot utilization**: the share of slots × steps in which the slot computed something that a request needed.

24 requests arrive together. Most have short answers, three have long ones (60, 40 and 30 tokens).
**Guess first:** which takes fewer steps, static batching with 8 rows or continuous batching with 4 slots?
"""

# %%
rng = random.Random(2)
prompts = [" ".join(rng.choice(PROMPTS).split()[: rng.randint(3, 40)]) for _ in range(24)]
max_tokens_each = [60, 40, 30] + [rng.randint(5, 8) for _ in range(21)]
rng.shuffle(max_tokens_each)
WORKLOAD = dict(prompts=prompts, max_new_tokens=max_tokens_each)

methods = {"static": partial(record_run, static_generate),
           "continuous": partial(record_run, batch_generate, **MINE)}
keys = [("static", 1), *((kind, n) for n in (4, 8) for kind in methods)]
runs = {(kind, n): [methods[kind](model, tokenizer, **WORKLOAD, batch_size=n)]
        for kind, n in keys}
equal = all(run[0].outputs == runs["static", 1][0].outputs for run in runs.values())
print("all answers equal those of one request at a time:", equal)


def in_steps(kind, n):
    trace = runs[kind, n][0].trace
    times = request_times(trace, in_steps=True).values()
    queued, latency = mean(t.admitted for t in times), mean(t.returned for t in times)
    return [len(trace.steps), trace.forward_calls, queued, latency,
            f"{batch_metrics([], trace).slot_utilization:.0%}"]


Table(
    columns=["batch size", "method", "steps", "passes", "mean queue time", "mean latency",
             "slot utilization"],
    rows=[[str(n), "one at a time" if n == 1 else kind, *in_steps(kind, n)]
          for kind, n in runs],
    caption="24 requests. Times in steps, which are the same on every machine.",
)

# %% [markdown]
"""
Four slots that are refilled beat eight rows that aren't: 76 steps instead of 108, at half the mean latency. Slot
utilization shows why.

But steps aren't seconds. Now the clock, the faster of two runs. **Guess first:** which of the columns above will it
confirm on this machine?
"""

# %% tags=["measured"]
def in_seconds(kind, n):
    both = [batch_metrics(run.outputs, run.trace) for run in runs[kind, n]]
    faster = max(both, key=lambda metrics: metrics.throughput)
    return faster.throughput, faster.mean_latency


for (kind, n), done in runs.items():
    done.append(methods[kind](model, tokenizer, **WORKLOAD, batch_size=n))
seconds = {key: in_seconds(*key) for key in runs}
base = seconds["static", 1][0]
for (kind, n), (throughput, latency) in seconds.items():
    name = "one at a time:" if n == 1 else f"{kind}, batch size {n}:"
    print(f"{name:26}{throughput:4.0f} tokens/s, {throughput / base:.2f} ×; "
          f"mean latency {latency:4.1f} s")

# %% [markdown]
"""
In steps, static batching with eight rows halves the mean latency of one at a time. On the clock, less of that is
left: a step counts as one, whatever it computes, but a pass over eight rows takes longer than one over a single row,
and the prefill of a wave, padded to its longest prompt, takes many times as long as a decode step. Continuous batching
still gains, since fewer of its rows are idle. With eight slots nearly half are, so eight may not beat four.

On the H200 of lesson 01, some two hundred tokens could share a pass at the price of one. There, a pass over eight rows
takes about as long as over one. So it's the number of passes that counts, and a step with a chunk makes two.

The ledger has the six stories:
"""

# %% tags=["measured"]
ledger(model, tokenizer, "02", with_cache_only=True, columns=(
    "tokens computed", "useful", "cache reserved", "used", "forward calls", "speed"))

# %% [markdown]
"""
Fewer token positions than with waves, a larger share of them useful, and 108 forward calls instead of 180. But no other
method reserves as much cache.

## What production does

- **Orca** (Yu et al., 2022) is the paper behind this lesson; it says *iteration-level scheduling*. **Sarathi-Serve**
  (Agrawal et al., 2024) puts the chunk into the same batch as the decodes.
- **vLLM** keeps `waiting`, `running` and each request's `num_computed_tokens` too: see `Scheduler` in
  `vllm/v1/core/sched/scheduler.py`. Our `num_slots` is its `max_num_seqs`.
- **Hugging Face transformers** has `generation/continuous_batching/`. Like vLLM, it divides the cache into blocks
  instead of reserving whole rows, for the reason that follows.

## What is still wrong

**Predict 02.b.** For the six stories, four rows of 256 columns were reserved, and the prompts have 24 tokens on
average. What percentage of these columns held tokens of running requests, averaged over the steps? A rough number will
do.
"""

# %%
predict("02.b", ...)  # percent of the cache in use

# %%
reveal("02.b", 100 * (1 - continuous.trace.cache_waste), unit="%")
for name, run in {"six stories, 4 slots": continuous,
                  "24 requests, 8 slots": runs["continuous", 8][0]}.items():
    trace, two = run.trace, sum(step.forward_calls == 2 for step in run.trace.steps)
    wasted = 1 - trace.tokens_useful / trace.tokens_computed
    print(f"{name}: reserved cache empty: {trace.cache_waste:.0%} on average; "
          f"computed positions wasted: {wasted:.0%};")
    print(f"    {two} of {len(trace.steps)} steps made two passes")

# %% [markdown]
"""
**Every slot reserves room for `max_seq_len` tokens**, enough for the longest request that might come, and most requests
are short. On a GPU, the memory for the cache limits the number of slots, yet most of it stays empty. Lesson 03
allocates small blocks instead of whole rows.

**Idle rows still take time, and a step that decodes and prefills makes two passes**, so it reads the weights twice.
With many short answers, that is about every third step. Lesson 04 builds the mask that lets tokens of different
requests share one row. Lesson 05 packs decodes and chunks into that row: one pass, no idle slots.

## Quiz
"""

# %%
quiz("02")

# %% [markdown]
"""
## References

- G.-I. Yu, J. S. Jeong, G.-W. Kim, S. Kim, B.-G. Chun: *Orca: A Distributed Serving System for Transformer-Based
  Generative Models*, OSDI 2022, section 3. <https://www.usenix.org/conference/osdi22/presentation/yu>
- A. Agrawal et al.: *Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve*, OSDI 2024.
  <https://arxiv.org/abs/2403.02310>
- W. Kwon et al.: *Efficient Memory Management for Large Language Model Serving with PagedAttention*, SOSP 2023,
  section 3 on reserved memory that stays empty. <https://arxiv.org/abs/2309.06180>
"""

# %% [markdown] folded=true
"""
## Further (optional)

Nothing here is needed for the lesson, and its 75 minutes don't include it.

### Stretch: which request gets the free slot?

First come, first served is fair, but one long request can hold up ten short ones. Write a rule that lowers the mean
queue time, and doesn't let any request wait longer than one and a half times the longest queue time of first come,
first served.

`next_request(waiting)` gets the list of the waiting requests, in order of arrival, each time that a slot is free. It
returns the index of the request that gets the slot. Each request has `prompt_tokens`, `max_new_tokens` (the limit of
its answer; most answers are shorter) and `waited`, the number of steps that it has been waiting. The scoreboard serves
requests that you haven't seen, as `step` does; they arrive one after another, and the slots are nearly always busy. It
counts steps and runs no model. The cell starts out with first come, first served.
"""


# %%
from lessons_lib.checks.lesson_02.scoreboard import queue_scoreboard


def next_request(waiting):
    return 0  # replace this


queue_scoreboard(next_request)

# %% [markdown]
"""
### Where does the grandma come from?

With the careless mask, E's answer is about a grandma. Which columns does E see beyond its own? And does the answer
change back if slot 1 is set to zero when F leaves it, with the same careless mask?
"""

# %%
# position of the new token in slot 1 -> how many columns that decode pass reads
columns_read = {}


def watched_mask(positions, num_keys):
    if positions.shape[1] == 1:
        columns_read[int(positions[1, 0])] = num_keys
    return careless_mask(positions, num_keys)


def serve_in_cleared_rows(batch):
    compute = batch.forward

    def forward(slots, tokens, positions):
        if len(slots) == 1 and positions[0][0] == 0:  # the first chunk of a prompt
            for layer in batch.cache.layers:
                layer.keys[slots.start] = layer.values[slots.start] = 0
        return compute(slots, tokens, positions)

    batch.forward = forward
    library_serve(batch)


assert answer_of_e(watched_mask) == careless
first = len(prompt_ids["E"])
for position in range(first, first + 3):
    foreign = tokenizer.decode(prompt_ids["F"][position + 1 : columns_read[position]])
    fed, new = (tokenizer.decode(careless[i])
                for i in (position - first, position - first + 1))
    print(f"{fed!r} sees F's {foreign!r}; the next token is {new!r}")
cleared = answer_of_e(careless_mask, serve_in_cleared_rows)
print("careless mask, but the row is cleared: the answer is the right one:", cleared == right)

# %% [markdown]
"""
With the row cleared, the same mask gives the right answer here: what F left is the cause. Clearing doesn't replace the
mask, though, because a key of zeros still gets some weight.

### The size of a chunk

How long does a decoding request wait for its next token? As long as a step takes. The more token positions a step
computes, the longer it takes.

Four slots: A, C and E, and then a request with a prompt of 240 tokens. While its chunks are computed, a step makes two
passes: the decode pass computes one position in each of the four rows (the prefilling row too, although its output
isn't used), and the other pass computes the chunk. So with chunks of 240, one step computes 4 + 240 token positions,
and A, C and E wait for all of them. With chunks of 16, no step computes more than 20. The price: the fourth
request waits longer for its first token. All four arrive together, and each of the three short prompts fits in one
chunk. With chunks of 16, how many steps does it take until the fourth request has its first token?
"""

# %%
predict("02.c", ...)  # steps


# %%
def with_long_prompt(prefill_step):
    ids = [*(prompt_ids[n] for n in "ACE"), (prompt_ids["B"] * 5)[:240]]
    how = dict(batch_size=4, prefill_step=prefill_step, **MINE)
    return record_run(batch_generate, model, tokenizer, ids, max_new_tokens=[20, 20, 20, 4],
                      **how).trace.steps


for prefill_step in (240, 64, 16):
    steps = with_long_prompt(prefill_step)
    largest = max(s.tokens_computed for s in steps)
    first = next(i for i, s in enumerate(steps, 1) if s.rows[3].phase == "decode") - 1
    print(f"chunks of {prefill_step:3}: largest step {largest:3} token positions; "
          f"first token of the long one in step {first}")
reveal("02.c", first, unit="steps")

# %% [markdown]
"""
With chunks of 240, the first token of the new request comes soonest, and the other three wait longest for one of their
own. The operator of the server chooses.
"""
