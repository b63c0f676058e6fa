# %% [markdown]
"""
# 12 · The engine

**We have a scheduler, a paged cache and a model. How do we turn them into an engine that takes requests and streams
answers?**

85 minutes · difficulty: medium · routes: serving · prerequisites: lesson 09 (the scheduler), lesson 10 (memory
pressure) and lesson 11 (prefix sharing)

An engine drives the parts, and adds what users expect: sampling, and answers that can be read while they grow, and
stopped early. Then we break the engine on purpose, and you write the step that survives it.
"""

# %%
from collections import deque
from itertools import count
from time import perf_counter

import torch

from lessons_lib.attention.paged_attention import plan_torch
from lessons_lib.batching import generate_one_by_one
from lessons_lib.checks import check, hint, predict, progress, quiz, reveal, solution
from lessons_lib.checks.my_engine import by_lesson, my_engine
from lessons_lib.engine import EngineConfig, EngineCore, LLMEngine, ModelRunner, Parts, SamplingParams, random_numbers
from lessons_lib.engine.metrics import EngineMetrics
from lessons_lib.kv_cache import PrefixCache, audit
from lessons_lib.measuring import MAX_NEW_TOKENS, NAMES, PROMPTS, STORIES, ledger, skewed_workload
from lessons_lib.models import load_model
from lessons_lib.scheduling import PreemptiveScheduler, Sequence
from lessons_lib.viz.charts import draw_token_bars
from lessons_lib.viz.dashboard import Dashboard
from lessons_lib.viz.tables import Table

model, tokenizer = load_model(device="cpu")  # float32, so answers can be compared token for token
prompt_ids = {story.name: tokenizer(story.prompt).input_ids for story in STORIES}
END = tokenizer.eos_token_id

# %% [markdown]
"""
## The problem: driving it by hand

With only the parts from earlier lessons, this is what a user has to write to get three stories:
"""

# %%
pool, runner = PrefixCache(32, 16), ModelRunner(model, 32, 16)  # 32 blocks of 16 tokens
scheduler = PreemptiveScheduler(pool, max_num_seqs=4, max_num_batched_tokens=64)
sequences = [Sequence(name, prompt_ids[name], 12, frozenset({END})) for name in "ACD"]
for sequence in sequences:
    scheduler.add(sequence)
while scheduler.has_unfinished():
    scheduler_output = scheduler.schedule()
    logits = runner.forward(scheduler_output)
    scheduler.update(scheduler_output, logits.argmax(dim=-1).tolist())
for sequence in sequences:
    print(f"{sequence.id}: …{tokenizer.decode(sequence.output_ids)}")

# %% [markdown]
"""
It works, if you know all the parts. But to add a request later, to show a word before the end or to stop one sequence,
you have to change the loop. Decoding is always greedy. And what if an exception comes in the middle?

With an engine, a user writes this. `SamplingParams` holds the settings of a request; here, only the maximum length of
its answer. `EngineConfig` holds the sizes of the engine: batch slots, token budget, blocks. The finish reason `length`
means that an answer has reached its maximum length.
"""

# %%
SMALL = EngineConfig(max_num_seqs=4, max_num_batched_tokens=64, num_blocks=32)
AS_ASKED = [SamplingParams(max_tokens=max_tokens) for max_tokens in MAX_NEW_TOKENS]
answers = LLMEngine(model, tokenizer, SMALL).generate(PROMPTS, AS_ASKED)
for name, output in zip(NAMES, answers):
    print(f"{name}: {len(output.token_ids)} tokens, {output.finish_reason}: …{output.text[:80]!r}")

# %%
alone = generate_one_by_one(model, tokenizer, PROMPTS, max_new_tokens=MAX_NEW_TOKENS)
print("the same tokens as one at a time (lesson 00):", [output.token_ids for output in answers] == alone)

# %% [markdown]
"""
## Predict

All six stories are added to this engine at once, while its pool is empty. It has four batch slots and a token budget of
64 a step. The prompts of A to F have 13, 62, 3, 21, 5 and 40 tokens.

**12.a** How many new tokens does the first step produce, over all requests together?
"""

# %%
predict("12.a", ...)

# %% [markdown]
"""
## The idea: one step, and everything around it

```
 add_request ──▶ waiting                                                          at any time
                    │
 step               ▼
   schedule      which sequences, how many tokens, which blocks                   lessons 09 to 11
   copy blocks   swap-out, swap-in, copy-on-write                                 lessons 10 and 11
   compute       forward pass: one row of logits for each sequence                lessons 05 to 08
                 sample: a token from each row, by its request's parameters       this lesson
   update        tokens to their sequences, blocks to the pool                    lesson 09
   pass on       text, callbacks                                                  this lesson
   observe       metrics                                                          this lesson
                    │
                    ▼
 on_token / stream / RequestOutput                                                this lesson
```

> **engine**: the object that owns the model, the cache and the scheduler, and runs one step after another for all
> requests in it.

> **completion**: one answer to a request. A request may ask for several (`n` above 1). A `RequestOutput` has all of
> them.

Blocks are copied before the forward pass, because it writes into blocks whose old contents must have been saved by
then. And no token reaches a reader before the whole pass has succeeded.

Here are the first three steps of the six stories. `EngineMetrics` observes an engine and keeps a record of each step.
"""

# %%
engine = LLMEngine(model, tokenizer, SMALL)
metrics = EngineMetrics(engine)
for story, params in zip(STORIES, AS_ASKED):
    engine.add_request(story.prompt, params, request_id=story.name)
for number in (1, 2, 3):
    engine.step()
    step = metrics.recent[-1]
    print(f"step {number}: {step.tokens} tokens computed for {step.running} sequences, {step.new_tokens} new; waiting: {step.waiting}")

# %%
reveal("12.a", metrics.recent[0].new_tokens)

# %% [markdown]
"""
A's prompt takes 13 of the 64 tokens, and B gets the other 51 for a part of its prompt. The budget is used up, so two
batch slots stay free. Only A gets a new token. B has a row of logits too, but it predicts a token that is already in
B's prompt, so it isn't used.

## Choosing a token

So far we've always taken the likeliest token. That makes for dull stories, and a second answer is identical to the
first.

> **sampling**: choosing the next token at random, where each token has the probability that the model gives it.

A softmax of the logits gives these probabilities. Three settings change them.

> **temperature**: a value by which all logits are divided before the softmax. Below 1, the likeliest tokens become even
> likelier; above 1, the probabilities become more alike. A temperature of 0 means greedy decoding.

> **top-k**: only the k likeliest tokens may be drawn.

> **top-p**: only the smallest set of likeliest tokens whose probabilities add up to at least p may be drawn. Also
> called *nucleus sampling*.

A temperature of 0.5 squares the ratio of two probabilities: 2 : 1 becomes 4 : 1. The two cuts remove the long tail:
thousands of tokens that don't fit, one of which would be drawn now and then.

## Build 1: what to draw from

**Exercise 12.1: `token_probabilities(logits, temperature, top_k, top_p)`**, for N requests at once, each with its own
settings: a row of `logits` and one value of each setting. Return the pair (probabilities, tokens), both
[N, vocabulary]: `tokens[i, j]` is drawn with `probabilities[i, j]`. The likeliest token comes first in each row; of two
equally likely ones, the smaller token id.

- Temperature comes first, then `top_k`, then `top_p`, which is a share of what `top_k` leaves. What each cut leaves
  adds up to 1 again. `top_k` may be larger than the vocabulary.
- `top_p` cuts a token if the tokens before it already add up to `top_p` or more. So the token that reaches `top_p`
  stays, and so does the likeliest.
- A token that is cut stays in its row, with the probability 0. The order of the tokens with 0 doesn't matter.
- `logits` may have any float dtype. A logit of −∞ means that the token must not be drawn; a row never has only those.
- Compute in float32 or float64, and don't change the arguments. Of two tokens with nearly equal logits, the one with
  the larger logit comes first, even if their probabilities round to the same number.

Example: four tokens 0 to 3 with the probabilities 0.15, 0.5, 0.05, 0.3 at temperature 1. Their order is 1, 3, 0, 2.
With `top_k` 3 they get 0.526, 0.316, 0.158, 0. With `top_p` 0.6 as well, token 3 stays, since 0.526 is less than 0.6;
token 0 is cut, since 0.842 isn't. The result is 0.625, 0.375, 0, 0. With `top_p` 0.52 instead, it is 1, 0, 0, 0.
"""

# %% exercise="12.1"
import torch

from lessons_lib.engine.plain_sampling import token_probabilities

# %% [markdown]
"""
Here are the real probabilities after "The old dog" with five settings, computed in one call:
"""

# %%
def next_logits(token_ids):
    """The model's logits after these tokens, [1, vocabulary]."""
    with torch.inference_mode():
        return model(input_ids=torch.tensor([token_ids])).logits[:, -1]


V = model.config.vocab_size
SETTINGS = ["temperature 0.5", "temperature 1", "temperature 2", "top-k 3", "top-p 0.5"]
temperature, top_k, top_p = torch.tensor([0.5, 1, 2, 1, 1]), torch.tensor([V, V, V, 3, V]), torch.tensor([1, 1, 1, 1, 0.5])
after_dog = next_logits(prompt_ids["C"])
probabilities, tokens = token_probabilities(after_dog.expand(len(SETTINGS), -1), temperature, top_k, top_p)
names = [tokenizer.decode(token) for token in tokens[0, :10].tolist()]
draw_token_bars(names, dict(zip(SETTINGS, probabilities[:, :10].tolist())), title="The next token after “The old dog”")

# %% [markdown]
"""
Temperature keeps every token possible. At 1, a third of the draws are outside these ten; at 2, 82 %. The cuts rule
tokens out, and the remaining tokens share their probability.
"""

# %% [markdown]
"""
## Draw a token

Lay the probabilities end to end, and see on which of them a random number between 0 and 1 falls. That draws a token,
but it takes running sums along the whole row, sorted if there are cuts. There is a way without sums: give each token a
random number of its own, and compare. But what do you compare? Three ideas, for a token's `probability` and `number`:

- A draws the token with the largest `probability * number`.
- B draws the token with the smallest `number / probability`.
- C draws the token with the smallest `-log(1 - number) / probability`.

**Decide.** One of the three draws each token exactly as often as it should. Which? Take a pencil and two tokens, one
twice as likely as the other: it should be drawn in two thirds of all cases. The cell draws 200,000 times.
"""

# %%
WAY = None  # yours: "A", "B" or "C"

two = torch.tensor([2 / 3, 1 / 3])
numbers = torch.rand(200_000, 2, generator=torch.Generator().manual_seed(0))
winners = {
    "A": (two * numbers).argmax(dim=-1),
    "B": (numbers / two).argmin(dim=-1),
    "C": (-torch.log1p(-numbers) / two).argmin(dim=-1),
}
for way, drawn in winners.items():
    likelier, other = (drawn.bincount() / len(drawn)).tolist()
    print(f"{way}: {likelier:.1%} and {other:.1%}" + "  ← yours" * (way == WAY))

# %% [markdown]
"""
A and B draw the likelier token in three quarters of all cases. C is right, and the engine draws this way:

> **exponential race**: each token gets a random time: an exponential random number, divided by the token's probability.
> The token with the smallest time wins, and is drawn. Each token wins with exactly its own probability.

An exponential random number is `-log(1 - number)`. It has no memory: however long the race has lasted, the odds for the
next moment are the probabilities. In B, no time exceeds `1 / probability`. The likelier token reaches its limit
sooner, so the odds shift toward it. A `number` may not be 0: a token that is cut has the probability 0 and so an
infinite time, while 0 / 0 would be NaN. ("The race and the cuts" in "Further" says why C is exact.)

### The same seed, the same text

> **seed**: a number that determines all random numbers of a request. The same seed should give the same answer again. A
> request without one gets a random seed.

A random number generator has a state, from which each call takes the next number. If all requests share one, a
request's numbers depend on the others. If each has its own, a preempted request must keep its state. There is a way
that needs no state: the random number of a token is a *hash* of the seed, of the position in the answer, and of the
token's id. ("Neighboring seeds" in "Further" shows how such a hash can go wrong.)

Here are all parts of a draw, with your function, in the simplest possible loop, without cache, batch or engine:
"""

# %%
SETTING = dict(temperature=0.9, top_k=50, top_p=0.95)


def race(probabilities, numbers):
    """The index with the smallest time in each row. `numbers` [N, vocabulary]: one for each token."""
    return (-torch.log1p(-numbers) / probabilities).argmin(dim=-1)


def by_hand(token_ids, seed, count, **setting):
    """Sample `count` tokens after `token_ids`."""
    settings = [torch.tensor([setting[name]]) for name in ("temperature", "top_k", "top_p")]
    answer = []
    while len(answer) < count:
        probabilities, tokens = token_probabilities(next_logits(token_ids + answer), *settings)
        numbers = random_numbers(torch.tensor(seed), torch.tensor(len(answer)), tokens)
        answer.append(int(tokens[0, race(probabilities, numbers)]))
    return answer


for setting in (
    dict(temperature=2.0, top_k=V, top_p=1.0),
    dict(temperature=2.0, top_k=3, top_p=1.0),
    SETTING,
):
    told = tokenizer.decode(by_hand(prompt_ids["C"], seed=7, count=20, **setting))
    print(", ".join(f"{name} {value}" for name, value in setting.items() if value not in (V, 1.0)))
    print(f"  The old dog{told}")
expected = by_hand(prompt_ids["C"], seed=7, count=20, **SETTING)

# %% [markdown]
"""
At a temperature of 2, the tail ruins the story; `top_k` 3 cuts it off. Now the engine, with the last setting and the
same seed: alone, with five others in the batch, and in a pool so small that sequences are preempted. C is added last,
so it's preempted first.
"""

# %%
def with_others(others, **sizes):
    """C with seed 7, after other requests: (preemptions, swap-outs, whether C's answer is the loop's)."""
    engine, answers = LLMEngine(model, tokenizer, EngineConfig(max_num_seqs=6, max_num_batched_tokens=64, **sizes)), {}
    for seed, name in enumerate(others):
        engine.add_request(prompt_ids[name], SamplingParams(max_tokens=20, seed=seed, **SETTING))
    engine.add_request("The old dog", SamplingParams(max_tokens=20, seed=7, **SETTING), request_id="C")
    while "C" not in answers:
        answers |= {output.request_id: output.token_ids for output in engine.step()}
    return engine.scheduler.num_preempted, engine.scheduler.num_swapped, "yes" if answers["C"] == expected else "no"


Table(
    columns=["C with seed 7", "preemptions", "of these, swapped", "same tokens as the loop"],
    rows=[
        ["alone", *with_others("", num_blocks=64)],
        ["with five others", *with_others("ABDEF", num_blocks=64)],
        ["in 12 blocks, recompute", *with_others("ABDEF", num_blocks=12)],
        ["in 12 blocks, swap", *with_others("ABDEF", num_blocks=12, num_swap_blocks=24)],
    ],
)

# %% [markdown]
"""
One caveat: the rest of the batch changes the last digits of the logits. If the two smallest times are that close, a
different token is drawn: in float32 hardly ever, in bfloat16 now and then.

## Streaming

> **streaming**: returning an answer piece by piece as it grows.

A stream is a Python generator. When its reader asks for a token, it runs steps until there is one, and the steps serve
all other requests too. A first version takes six lines. Here E's reader leaves after the second period, with 23 tokens;
D was added before, and nothing reads it. **With a pencil first:** how many tokens does D have by then? And which
requests are still in the engine?
"""

# %%
def stream(engine, prompt, params, request_id):
    """Yield the tokens of one answer, each as soon as a step has computed it."""
    arrived = deque()
    engine.add_request(prompt, params, request_id=request_id, on_token=arrived.append)
    while request_id in engine.requests:
        engine.step()
        while arrived:
            yield arrived.popleft()


def leave_early(stream):
    """E's reader leaves after two periods."""
    engine, stops = LLMEngine(model, tokenizer, SMALL), 0
    engine.add_request(PROMPTS[3], SamplingParams(max_tokens=60), request_id="D")
    for token in stream(engine, PROMPTS[4], SamplingParams(max_tokens=80), request_id="E"):
        print(token.text, end="|")
        stops += "." in token.text
        if stops == 2:
            break
    pool = engine.scheduler.pool
    print(f"\nin the engine: {', '.join(engine.requests)}; blocks in use: {len(pool.used)}")
    print(f"D: {len(engine.abort('D').token_ids)} tokens; blocks in use after its abort: {len(pool.used)}")


leave_early(stream)

# %% [markdown]
"""
D has 23 as well: both prompts fit into the first step, and each step that E's reader ran computed a token for D.

But E is still there. Its reader has gone, and every further step computes a token of E that nothing reads, in blocks
that others need. **Mend it:** when the `for` loop is left, Python closes the generator, since nothing else refers to
it. That raises `GeneratorExit` at its `yield`, and a `finally` still runs. Where do `try`, `finally` and
`engine.abort(request_id)` belong? (Once the request has ended, `abort` does nothing.) Run the cell again: E's reader
must get the same tokens, E must be gone, and no block in use at the end. Then compare with the engine's own:
"""

# %%
leave_early(LLMEngine.stream)

# %% [markdown]
"""
If you keep a stream in a variable, call its `close()` when you're done with it. `engine.stream` has one more thing that
ours lacks: if D ends in a step that E's reader runs, the next `engine.step()` still returns D's output.

## When something breaks

A step can break in the middle, in three ways that are no bug of the engine.

The first is user code: the callback that receives each token. Its error ends its own request, and no other ("A callback
that fails" in "Further").

The second is the model, or the copying of blocks: memory runs out, or a kernel refuses its input. By then the scheduler
has allocated blocks for the step. Here is the loop from the beginning of the lesson. Its fifth pass fails, and the
obvious handler tells the three callers, and forgets their sequences:
"""

# %%
def fails_in_call(number, function):
    """The function, but its call with this number fails once its work is done."""
    calls = count(1)

    def call(*args):
        result = function(*args)
        if next(calls) == number:
            raise MemoryError("out of memory")
        return result

    return call


pool, runner = PrefixCache(32, 16), ModelRunner(model, 32, 16)
scheduler = PreemptiveScheduler(pool, max_num_seqs=4, max_num_batched_tokens=64)
for name in "ACD":
    scheduler.add(Sequence(name, prompt_ids[name], 12, frozenset({END})))
forward = fails_in_call(5, runner.forward)
while scheduler.has_unfinished():
    scheduler_output = scheduler.schedule()
    try:
        logits = forward(scheduler_output)
    except MemoryError as error:
        print(f"{error}: {', '.join(sequence.id for sequence in scheduler.running)} have ended")
        scheduler.running.clear()
        break
    scheduler.update(scheduler_output, logits.argmax(dim=-1).tolist())

# %% [markdown]
"""
**12.b** Nothing runs any more. How many of the 32 blocks, of 16 tokens each, are lost: not free, and in no sequence
that the scheduler knows? (The prompts of A, C and D have 13, 3 and 21 tokens. The first pass computes all three of
them.)
"""

# %%
predict("12.b", ...)  # blocks

# %%
try:
    audit(scheduler)  # checks that each block is free or in a sequence that the scheduler knows (lesson 10)
except Exception as error:
    print(f"{type(error).__name__}: {error}")
reveal("12.b", len(pool.used), unit="blocks")

# %% [markdown]
"""
A's prompt and four more tokens need two blocks, and the second was allocated for the very step that failed. No sequence
will ever free these blocks. After a few such failures, the engine could admit nothing.

What should a failed step do instead? It could try again, because a request can always be computed anew from its tokens.
But if one request makes the model fail, every step fails, forever. One could retry each request alone, a few times. We
keep it simple: the step ends its requests, and all others are computed anew from their tokens.

## Build 2: the step, whole or failed

**Exercise 12.3: `run_step(core, scheduler_output)`**, the part of a step that can fail. (12.2 is optional, in
"Further".) An engine's `core` schedules the step, calls your function, and then gives the tokens to their requests. You
need these calls, here in alphabetical order:

| call of `core` | what it does |
|---|---|
| `copy_blocks(block_copies)` | carries out `scheduler_output.block_copies` |
| `count_launched(scheduler_output, in_flight, logits)` | counts the computed tokens; returns the step, and so does your function |
| `forward(scheduler_output)` | forward pass; returns logits: a row for each scheduled request, in order, even in the middle of a prompt. Below them may be others, of prompts whose log-probabilities are wanted |
| `keep_tokens(scheduler_output, tokens)` | sends the tokens to the host; returns them as `in_flight` |
| `sampler(logits, params, seeds, positions, processors)` | returns a token for each row; the others are lists with an entry for each row |

**The whole step.** The picture in "The idea" has the order.

- `scheduler_output.num_scheduled_tokens` is a dict request → count (lesson 09). A `Request` is a sequence that also has
  `params`, a `seed`, a `processor` (its rules, or None) and, as its position, `num_output_tokens`.
- If nothing is scheduled (the dict is empty), there may still be blocks to copy. Such a step copies them, and returns
  None.

**The failed step.** If copying, the pass, the sampler or `keep_tokens` raises an `Exception`, end your function with
`raise StepFailed(requests) from error`. The core ends these requests with this error, and recomputes all others.
Any other error goes through: `KeyboardInterrupt` isn't an `Exception`, and an error of `count_launched` is a bug.

- Which requests? All that are scheduled: nobody knows which of them is to blame. If none is, only the copies can have
  failed. Which requests would fail again, step after step, if they went on?
- `scheduler_output.preempted` lists what this step preempts. If a request's `swapped` (lesson 10) isn't empty, it is
  swapped out; otherwise it will be recomputed.

Example: there are two batch slots, A and B run, and C waits. If `forward` raises an error, the outputs of A and B have
that error and the tokens of the steps before. Their blocks are free, and the next step admits C.
"""

# %% exercise="12.3"
from typing import Any

from lessons_lib.engine.core import InFlightStep, StepFailed
from lessons_lib.scheduling.scheduler import SchedulerOutput

from lessons_lib.engine.core import run_step

# %% [markdown]
"""
Here is an engine with your step. `launch` is what its core calls. The fifth forward pass fails, with A, B, C and D in
it. E and F wait, and must get the answers that they get alone:
"""

# %%
class YourCore(EngineCore):
    """A core whose steps are yours."""

    def launch(self, scheduler_output):
        return run_step(self, scheduler_output)


YOURS = Parts(core=YourCore)


def serve_six(engine, **on_token):
    """Serve the six stories; `audit` checks the pool after every step (lesson 10)."""
    for story, params in zip(STORIES, AS_ASKED):
        engine.add_request(story.prompt, params, request_id=story.name, on_token=on_token.get(story.name))
    outputs = {}
    while engine.has_unfinished():
        outputs |= {output.request_id: output for output in engine.step()}
        audit(engine.scheduler)
    for name, right in zip(NAMES, alone):
        output = outputs[name]
        same = output.token_ids == right[: len(output.token_ids)]
        print(f"  {name}: {output.finish_reason:<6} {len(output.token_ids):3} tokens, as alone so far: {same}  {output.error or ''}")
    print(f"blocks in use: {len(engine.scheduler.pool.used)}")


engine = LLMEngine(model, tokenizer, SMALL, parts=YOURS)
engine.runner.forward = fails_in_call(5, engine.runner.forward)
serve_six(engine)

# %% [markdown]
"""
### Ctrl-C

The third way is Ctrl-C. `KeyboardInterrupt` may come at any line: for example, after a block has left the free queue,
and before it is in a block table. No request is to blame, so none should end:

> **recover**: after an interrupt, drop all blocks and put every unfinished sequence back in the queue, with the tokens
> that it has. Everything else can be computed from those.

"Interrupted anywhere" in "Further" interrupts 20 runs of an engine with your step, each at a line drawn at random.

## The engine, live

Drive an engine yourself. "step" runs one step, "run" runs until no request is left or you press "pause". (A pause
counts in TTFT and ITL.) Type the beginning of a story and add it. Then make trouble: a crowd, a long prompt, a reader
that leaves, a model that fails once.
"""

# %% tags=["measured"]
live = LLMEngine(model, tokenizer, EngineConfig(max_num_seqs=4, max_num_batched_tokens=32, num_blocks=32))
for story in STORIES:
    live.add_request(story.prompt, SamplingParams(max_tokens=story.max_new_tokens, temperature=0.8, seed=1), request_id=story.name)
cockpit = Dashboard(live)
for _ in range(20):
    live.step()
cockpit

# %% [markdown]
"""
## Your own engine

Whenever a check passes, your answer is kept in the folder `work`, next to this notebook. `my_engine` builds an engine
of your answers. Where one is missing or no longer passes, it takes the reference's.
"""

# %%
MANY = EngineConfig(max_num_seqs=32, max_num_batched_tokens=256, num_blocks=512, backend=plan_torch)
yours = my_engine(model, tokenizer, MANY)
by_lesson(yours.parts)

# %% [markdown]
"""
A part of yours may have no work in this engine, and then its row says why. The `backend` here is the reference's
attention, since lesson 06's computes one sequence and block after another. Some parts are for another policy or
admission rule, or for lesson 13's engine.

What is it worth? Here are 32 requests, most with short answers and some with long ones. They are served one at a time,
as in lesson 00, and then together, by your engine. **Guess first:** how many times as fast is your engine?
"""

# %% tags=["measured"]
load = skewed_workload(32)
limits = [SamplingParams(max_tokens=max_tokens) for max_tokens in load.max_new_tokens]
started = perf_counter()
one_at_a_time = generate_one_by_one(model, tokenizer, load.prompts, max_new_tokens=load.max_new_tokens)
between = perf_counter()
together = [output.token_ids for output in yours.generate(load.prompts, limits)]
ended = perf_counter()
number = sum(map(len, together))
alone_speed, own_speed = number / (between - started), number / (ended - between)
print(f"{number:,} new tokens, the same both ways: {together == one_at_a_time}")
print(f"one at a time: {alone_speed:,.0f} tokens/s; your engine: {own_speed:,.0f} tokens/s")
print(f"your engine is {own_speed / alone_speed:.1f} times as fast")

# %% [markdown]
"""
The model and the machine are the same; the lessons in between make the difference. ("The designs side by side" in
"Further" compares all of them, and Hugging Face's continuous batching.)

### The ledger

Six stories keep an engine less busy, and runs this short can't rank engines by speed: compare tokens, passes and
copies. The last row is yours, with the same attention as the row above it. First, does your engine tell these stories
as the reference's does?
"""

# %%
own = [output.token_ids for output in yours.generate(PROMPTS, AS_ASKED)]
print("six stories, token for token as the reference's engine:", own == [output.token_ids for output in answers])

# %% tags=["measured"]
ledger(model, tokenizer, "12", with_cache_only=True, since="10", my_engine=my_engine)

# %% [markdown]
"""
Both engines compute only tokens that are needed, copy nothing, and reserve little more cache than they use.

## What is still wrong

**One bad request takes its neighbors along.** A failed step ends all requests in it: the engine can't tell which one
was to blame. And after some errors on a GPU, such as an illegal memory access, the process can't use the device any
more, whatever it catches.

**One caller.** `stream` runs the steps itself. A lock lets one call in at a time, so callers in two threads wait for
each other, and between calls nothing runs.

**No network.** Requests can come only from inside this Python process.

**Python drives the model.** On a GPU that is too slow. Lesson 13 shows what to do about it.

**One machine.** If it fails, all requests are lost.

## Quiz
"""

# %%
quiz("12")

# %% [markdown]
"""
## References

- A. Holtzman et al.: *The Curious Case of Neural Text Degeneration*, ICLR 2020; top-p.
  <https://arxiv.org/abs/1904.09751>
- P. Efraimidis, P. Spirakis: *Weighted random sampling with a reservoir*, Information Processing Letters 97, 2006; the
  race.
- C. Maddison, D. Tarlow, T. Minka: “A* Sampling”, NeurIPS 2014; the Gumbel-max trick. <https://arxiv.org/abs/1411.0030>
- G. Steele, D. Lea, C. Flood: *Fast Splittable Pseudorandom Number Generators*, OOPSLA 2014; SplitMix64, the hash of
  the random numbers.
- S. Xing et al.: *Sorting-Free GPU Kernels for LLM Sampling*, 2025. <https://flashinfer.ai/2025/03/10/sampling.html>
- W. Kwon et al.: *Efficient Memory Management for Large Language Model Serving with PagedAttention*, SOSP 2023.
  <https://arxiv.org/abs/2309.06180>
- vLLM: architecture, <https://docs.vllm.ai/en/latest/design/arch_overview.html>; metrics,
  <https://docs.vllm.ai/en/latest/design/metrics.html>
- nano-vllm. <https://github.com/GeeeekExplorer/nano-vllm>
- Hugging Face transformers: continuous batching. <https://huggingface.co/docs/transformers/main/en/continuous_batching>
- Prometheus: metric types, <https://prometheus.io/docs/concepts/metric_types/>
"""

# %% [markdown] folded=true
"""
## Further (optional)

What the lesson doesn't need. It isn't part of its 85 minutes.
"""

# %%
import math
import random
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median

from IPython.display import display

from lessons_lib.checks.lesson_12.deadlines import deadline_scoreboard
from lessons_lib.engine import IncrementalDetokenizer, choose_tokens, draw, fused_runner
from lessons_lib.engine.prometheus import prometheus_text
from lessons_lib.engine.stateless_random import mixed
from lessons_lib.measuring import DESIGNS, Workload, hugging_face_continuous, median_ms, recorded_ways, ways_table
from lessons_lib.measuring.operations import CountOperations
from lessons_lib.viz.charts import draw_step_parts
from lessons_lib.viz.source import show_source

# %% [markdown]
"""
### What must be refused

An engine gets requests from strangers. If it can't serve one, it refuses it at once, says why, with numbers, and leaves
its own state unchanged:
"""

# %%
engine = LLMEngine(model, tokenizer, SMALL)
engine.add_request("The old dog", request_id="C")
for call in (
    lambda: engine.add_request([5] * 600),
    lambda: engine.add_request([5, 4096]),
    lambda: engine.add_request("It was raining.", request_id="C"),
    lambda: SamplingParams(temperature=-0.5),
):
    try:
        call()
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
print("in the engine:", list(engine.requests))

# %% [markdown]
"""
A request that would fit in an empty pool is accepted even if the pool is full now: it waits. One that wouldn't fit even
then would wait forever.
"""

# %% [markdown]
"""
### A callback that fails

B's callback fails at the fourth token. The other five requests must not be affected. This is again an engine with your
step:
"""

# %%
of_b = []


def failing_callback(token):
    of_b.append(token)
    if len(of_b) == 4:
        raise ConnectionError("the reader is gone")


serve_six(LLMEngine(model, tokenizer, SMALL, parts=YOURS), B=failing_callback)

# %% [markdown]
"""
### Interrupted anywhere

Code that repairs a half-changed state would have to know every line where Ctrl-C can come. The engine has no such code.
Its core notes when a change begins, and that it is whole only once it has finished. A call that finds a change
unfinished begins with this:
"""

# %%
show_source(EngineCore.rebuild)

# %% [markdown]
"""
`reset` empties the queues, the pool and the block tables. `begin` adds a request's sequences to the queue again, with
their tokens, and nothing computed. Their keys and values are recomputed, as after a preemption in lesson 10. A request
that had its output already keeps it.

Does that hold at any line? The six stories, with 6 tokens each, run through thousands of lines of your step, the
engine, the scheduler and the cache. Let's interrupt each of 20 runs at one of them, drawn at random. (That's a sample,
not a proof. `rebuild` itself runs only after an interrupt, so none of its lines is drawn.)
"""

# %%
PLACES = tuple(str(Path("lessons_lib", part)) for part in ("engine", "scheduling", "kv_cache"))


def six_tokens(interrupt_at=None):
    """Serve the six stories. Returns (lines that ran, function where Ctrl-C came, tokens of each story)."""
    engine, lines, struck, answers = LLMEngine(model, tokenizer, SMALL, parts=YOURS), 0, None, {}
    for story in STORIES:
        engine.add_request(story.prompt, SamplingParams(max_tokens=6), request_id=story.name)

    def on_line(frame, event, _):
        nonlocal lines, struck
        if frame.f_code is not run_step.__code__ and not any(place in frame.f_code.co_filename for place in PLACES):
            return None
        lines += event == "line"
        if event == "line" and lines == interrupt_at:
            struck = frame.f_code.co_name
            raise KeyboardInterrupt
        return on_line

    while engine.has_unfinished():
        sys.settrace(None if struck else on_line)  # Python calls it for each line that runs
        try:
            outputs = engine.step()
        except KeyboardInterrupt:
            continue
        finally:
            sys.settrace(None)
        audit(engine.scheduler)
        answers |= {output.request_id: output.token_ids for output in outputs}
    return lines, struck, answers


lines, _, uninterrupted = six_tokens()
runs = [six_tokens(interrupt_at=place) for place in random.Random(0).sample(range(1, lines), 20)]
print(f"{lines:,} lines; interrupted in {', '.join(sorted({struck for _, struck, _ in runs})[:12])}, …")
print(f"the same tokens for all six: {sum(answers == uninterrupted for *_, answers in runs)} of {len(runs)} runs")

# %% [markdown]
"""
### Text, character by character

Why not decode each token as it arrives? Look at this:
"""

# %%
euro = tokenizer("It cost 5 €.").input_ids
stream = IncrementalDetokenizer(tokenizer)
print("each alone:  ", [tokenizer.decode(token) for token in euro])
print("incremental: ", [stream.add(token) for token in euro])

# %% [markdown]
"""
"€" has no token of its own, so three tokens hold a byte of it each. Decoded alone, a byte gives "�", and what a reader
has seen can't be taken back. `IncrementalDetokenizer` releases text only once its characters are complete. It also
holds back what might be the beginning of a stop string, which the next section explains.
"""

# %% [markdown]
"""
### Stop strings

> **stop string**: a string that ends the answer as soon as it appears. It isn't part of the answer.

A stop *token*, such as the end token, is simple: the sequence ends with it. A stop *string* is harder, for three
reasons. It may span several tokens. It may begin in the middle of a token. And the reader must never see the beginning
of it.

So part of the text is held back: as much as might be the beginning of a stop string. With the stop string "END", the
text "The dog. E" can be shown up to the space. If "ND" follows, the answer is finished. If "very" follows, it wasn't a
stop string, and "Every" can be shown.

### Optional: what can be shown

**Exercise 12.2: `releasable(text, stop)`.** `text` is the text so far. `stop` is a tuple of stop strings, none of them
empty; the tuple itself may be empty. Return the pair (length, stopped): `text[:length]` can be shown.

- If a complete stop string is *anywhere* in the text, the answer ends where it begins: return that index, and True. If
  there are several, the one that comes first in the text counts, whatever their order in `stop`. This holds even if a
  longer stop string might have begun before it.
- Otherwise, if the text *ends* with the beginning of a stop string, hold that back. If several beginnings match, hold
  back the longest. Return the length of the rest, and False.
- Otherwise return the length of the whole text, and False.

`text.index(string)` is the index of the first occurrence (and raises an error if there is none: check `string in text`
first). `text.endswith(beginning)` says whether the text ends that way. `string[:n]` is its first n characters. Matching
is case-sensitive.

Examples, with `("END", "###")`: `"The dog. E"` gives (9, False); `"The dog. END of"` gives (9, True);
`"one### two END"` gives (3, True); `"The EN dog"` gives (10, False). With `("aab",)`, `"aaa"` gives (1, False).
"""

# %% exercise="12.2"
from lessons_lib.engine.detokenizer import releasable

# %% [markdown]
"""
Here is A's answer, token by token, with two stop strings: "day, she sang", which will turn out not to appear, and "a
big". Both span several tokens. What does the reader see, and when?
"""

# %%
STOP = ("day, she sang", "a big")
text = shown = ""
for token in answers[0].token_ids:
    new_text = tokenizer.decode(token)
    text += new_text
    length, stopped = releasable(text, STOP)
    print(f"{new_text!r:>12} arrives, shown: {text[len(shown):length]!r}")
    shown = text[:length]
    if stopped:
        break
print(f"\nthe answer: {shown!r}")

# %% [markdown]
"""
Even the "d" of "loved" had to wait for the next token, because "day, she sang" begins with it. Later, "day, she" was
held back while three tokens arrived. Then " saw" showed that it wasn't the stop string, and all of it was released at
once. The other stop string ended the answer: only the space of " a" was shown, and " big" completed the match. The
engine does the same:
"""

# %%
output = LLMEngine(model, tokenizer, SMALL).generate([PROMPTS[0]], SamplingParams(max_tokens=30, stop=STOP))[0]
print(output.finish_reason, repr(output.text), output.text == shown)

# %% [markdown]
"""
### What an engine knows about itself

`EngineMetrics` counts while an engine serves, and `snapshot()` returns everything as plain data. Here are twelve
requests with skewed lengths:
"""

# %% tags=["measured"]
load = skewed_workload(12)
engine = LLMEngine(model, tokenizer, EngineConfig(max_num_seqs=8, max_num_batched_tokens=64, num_blocks=64))
measured = EngineMetrics(engine)
engine.generate(load.prompts, [SamplingParams(max_tokens=max_tokens) for max_tokens in load.max_new_tokens])
snapshot = measured.snapshot()
rows = [["throughput", f"{snapshot['throughput']:.0f} tokens/s"]]
rows += [[f"utilization of {what}s", f"{snapshot[f'{what}_utilization']:.0%}"] for what in ("slot", "token", "block")]
for name in ("queue_time", "ttft", "itl", "latency"):
    mean, p50, p99 = (f"{1000 * snapshot[name][key]:.0f} ms" for key in ("mean", "p50", "p99"))
    rows.append([name, f"{mean} on average; p50 at most {p50}, p99 at most {p99}"])
Table(columns=["metric", "value"], rows=rows, caption=f"{len(snapshot)} metrics are in the snapshot; these are some of them")

# %% [markdown]
"""
The times were defined in lessons 02 and 09.

| metric | meaning |
|---|---|
| throughput | new tokens per second of busy time |
| queue time, TTFT | from arrival to the request's first step, and to its first token |
| ITL, TPOT | each gap between two tokens of an answer, and their mean over one answer |
| latency | from arrival to the last token |
| utilization of slots, tokens, blocks | share of the batch slots, the token budget and the pool in use, averaged over the steps |
| preemptions, prefix hits | how often a running sequence was preempted; prefill tokens that were found in the cache |
| finished | requests by finish reason |

A server runs for weeks, so it can't keep every value. It keeps counts and sums, and a histogram for each of the times:

> **histogram**: for each interval between fixed bounds, how many values fell into it. Quantiles can be read from it;
> the closer the bounds, the more precise they are.
"""

# %% [markdown]
"""
### How your functions get into the engine

An answer of yours is left out if it no longer passes its check, or if an engine with it fails a short trial. The others
take the places of the reference's.

How does your `blocks_for` get into a scheduler that imports the reference's? `my_engine` executes the scheduler's
source once more, in a copy of its module's names, where `blocks_for` is your function; see
`lessons_lib/checks/linking.py`. The original stays as it is. `yours.parts` has a row for each exercise. The engine
doesn't call `slot_mapping`, `add_block`, `attention_in_place` and `token_probabilities` itself: it computes slots and
attention of many sequences at once, and draws without a sort. If one of them is yours, a function that calls it takes
the place of the engine's own (`lessons_lib/checks/stand_ins.py`). That's slower, and several times slower with
lesson 06's attention.

Drawn tokens should be the reference engine's, too (with the caveat from "The same seed, the same text"):
"""

# %%
engines = LLMEngine(model, tokenizer, SMALL), my_engine(model, tokenizer, SMALL)
drawn = SamplingParams(max_tokens=20, seed=7, **SETTING)
reference, own = ([output.token_ids for output in engine.generate(PROMPTS, drawn)] for engine in engines)
print("the same drawn tokens:", own == reference)

# %% [markdown]
"""
### Neighboring seeds

How are seed, position and token id combined? The simplest choice is `hash(hash(seed + position) + token id)`. The hash
is a good one: if its argument changes by 1, about half of its 64 bits change. The inner hash is the same for all tokens
of a position. One user asks with seed 7, another with seed 8, and each gets an answer of 20 tokens.

**12.c** How many of the 20 inner hashes of the second answer also occur in the first?
"""

# %%
predict("12.c", ...)  # hashes

# %%
seed_7, seed_8 = (mixed(seed + torch.arange(20)).tolist() for seed in (7, 8))  # `mixed` is the engine's hash
reveal("12.c", len(set(seed_7) & set(seed_8)), unit="hashes")

# %% [markdown]
"""
8 + 0 is 7 + 1: seed 8 draws with the numbers of seed 7, each one position earlier. A perfect hash doesn't help against
equal arguments. So the seed is hashed first, and then the result plus the position: `hash(seed) + 1` is nothing like
`hash(seed + 1)`. The engine's `random_numbers` hashes `hash(hash(seed) + position)` plus a multiple of the token id,
and turns 32 bits of the result into a number between 0 and 1.
"""

# %% [markdown]
"""
### Several answers, and how likely they are

`n=3` asks for three answers. The first computes the prompt; the others begin after its first token, and find the full
blocks of the prompt in the prefix cache (lesson 11). Each draws with its own seed: seed, seed + 1, seed + 2. That is why
the seed is hashed before the position is added.

> **log-probability**: the logarithm of a probability, 0 or below. The log-probabilities of an answer's tokens add up to
> that of the whole answer.

> **perplexity**: e to the power of minus the mean log-probability of a text's tokens. A perplexity of 5 means that the
> model was, on average, as uncertain as if it had to choose between 5 equally likely tokens.

With `logprobs=2`, the engine returns the log-probability of each token, and the two likeliest tokens at its position.
These are the model's own log-probabilities, before temperature and cuts.

`prompt_logprobs` does the same for the tokens of the prompt. Usually only the last row of a prompt's logits is needed;
now all rows are. So the whole prompt is computed, and nothing comes from the prefix cache, which holds keys and values
but no logits.
"""

# %%
engine = LLMEngine(model, tokenizer, SMALL)
metrics = EngineMetrics(engine)
drawn = engine.generate([PROMPTS[1]], SamplingParams(n=3, max_tokens=24, seed=1, logprobs=2, **SETTING))[0]
most_used = max(step.used_blocks for step in metrics.recent)
likeliest = engine.generate([PROMPTS[1]], SamplingParams(max_tokens=24, logprobs=2))[0]


def perplexity(completion):
    return math.exp(-sum(position.logprob for position in completion.logprobs) / len(completion.logprobs))


for completion in [*drawn.completions, likeliest.completions[0]]:
    print(f"perplexity {perplexity(completion):4.1f}: …{completion.text!r}")
first = drawn.completions[0].logprobs[0]
top = ", ".join(f"{tokenizer.decode(token)!r} {math.exp(logprob):.2f}" for token, logprob in first.top)
print(f"\nthe first token drawn: {tokenizer.decode(first.token)!r} {math.exp(first.logprob):.2f}; the likeliest at its position: {top}")
unshared = 3 * math.ceil((len(prompt_ids["B"]) + 24) / 16)
print(f"B's prompt fills {len(prompt_ids['B']) / 16:.1f} blocks; the three answers use at most {most_used} together, and would use {unshared} without sharing")

# %% [markdown]
"""
The last one is the greedy answer. It has the lowest perplexity.
"""

# %% [markdown]
"""
### Stretch: which requests should be given up?

A request may have a deadline: an answer that comes later is worth nothing. If there is too much to do, not all
deadlines can be met. Tokens for a request that will be late are wasted, and `engine.abort` would free its batch slot
for another one. Before each step, your function gets the list of the unfinished requests, and returns a list of those
that the engine aborts. The more requests get their whole answer in time, the better. A request has five attributes:

| attribute | meaning |
|---|---|
| `steps_left` | steps until its deadline, the next one included; 0 or less if it has passed |
| `prompt_left` | tokens of its prompt that aren't computed |
| `answer_left` | tokens of its answer that are missing |
| `waited` | steps since it arrived |
| `is_running` | whether it is in a batch slot |

The scoreboard serves requests that you haven't seen, first come, first served, with 8 batch slots and a budget of 64
tokens a step. It counts requests, not seconds, and skips the model. An aborted request isn't answered in time. The cell
starts out with the rule that gives up nothing.
"""

# %%
def give_up(requests):
    return []  # replace this


deadline_scoreboard(give_up)

# %% [markdown]
"""
### The race and the cuts

Anything proportional to the probabilities will do, such as the weights exp(logit / temperature): a common factor
doesn't change the winner. So the engine doesn't even need the softmax.

Why does each token win with its own probability? As long as no time has come, the chance that a token's time is the
next one is proportional to its rate, which is its weight. So token i wins with the probability wᵢ / Σ wⱼ. That is the
softmax, though no sum was computed. And with cuts? If the winner's rank is below `top_k`, and the tokens before
it have less than `top_p`, then it would have won among the remaining tokens alone, too. To find out, count the tokens
that are likelier, and add up their probabilities; that needs no sort. If the winner is cut, so is every token after it;
the race is run again among those before it, with the same times. (With logarithms of everything, the race is called the
*Gumbel-max trick*.)

`token_probabilities` sorts, and `draw`, a function of the library, lays the probabilities end to end: the row "sort and
line" below. The engine's `choose_tokens` runs the race, and your own engine draws from your function. Here are the
times of one step of 8 requests with a vocabulary of 151,936, on this CPU:
"""

# %% tags=["measured"]
REQUESTS, LARGE = 8, 151_936
wide = torch.randn(REQUESTS, LARGE, generator=torch.Generator().manual_seed(0))


def by_sorting():
    settings = [torch.tensor([value]).expand(REQUESTS) for value in (1.0, LARGE, 0.95)]
    return draw(*token_probabilities(wide, *settings), torch.rand(REQUESTS, dtype=torch.float64))


def by_the_engine(**setting):
    return choose_tokens(wide, [SamplingParams(**setting)] * REQUESTS, range(REQUESTS), [0] * REQUESTS)


ways = {
    "greedy: the largest logit": lambda: by_the_engine(),
    "race": lambda: by_the_engine(temperature=1.0),
    "sort and line, top-p 0.95": by_sorting,
    "race, top-p 0.95": lambda: by_the_engine(temperature=1.0, top_p=0.95),
    "race, top-k 50": lambda: by_the_engine(temperature=1.0, top_k=50),
}
Table(columns=["tokens of 8 requests", "ms"], rows=[[name, f"{ms:.1f}"] for name, ms in zip(ways, median_ms(list(ways.values()), repeat=3))])

# %% [markdown]
"""
On a GPU, one kernel does it for all requests (`lessons_lib/kernels/race.py`): one program per row, which reads the row
and writes one token.
"""

# %% [markdown]
"""
### The other settings

Real clients need more control than that: an answer that repeats itself less, avoids a word, or has a minimum length.
`SamplingParams` has most of vLLM's settings, with the same names. Two of the terms are new:

> **penalty**: a setting that makes tokens less likely if they have already occurred.

> **min_p**: only tokens at least this many times as likely as the likeliest one may be drawn.

The order is vLLM's too. Settings that can change which token is likeliest come first: `allowed_token_ids`, `bad_words`,
`min_tokens`, `logit_bias`, then the three penalties. Temperature, `min_p`, `top_k` and `top_p` follow. Here's one
prompt with different settings. `stop`, a string that ends the answer, has a section of its own, "Stop strings".
"""

# %%
PERIOD = tokenizer(".").input_ids[0]
OTHER_SETTINGS = [
    ("greedy decoding", {}),
    ("tokens of prompt and answer become less likely", dict(repetition_penalty=1.3)),
    ("tokens of the answer become less likely …", dict(presence_penalty=1.0)),
    ("… each time they occur", dict(frequency_penalty=2.0)),
    ("a value is added to a token's logit", dict(logit_bias={PERIOD: -100.0})),
    ("words that the answer must not contain", dict(bad_words=("dog", "friend"))),
    ("the only tokens that the answer may contain", dict(allowed_token_ids=tuple(tokenizer("The cat ran to the red ball.").input_ids))),
    ("the answer ends before this string", dict(stop=(".",))),
    ("the answer ends after it", dict(stop=(".",), include_stop_str_in_output=True)),
    ("the answer ends before it, but not within the first 16 tokens", dict(stop=(".",), min_tokens=16)),
    ("temperature 1, seed 3", dict(temperature=1.0, seed=3)),
    ("… only tokens at least 0.2 times as likely as the likeliest", dict(temperature=1.0, seed=3, min_p=0.2)),
]
params = [SamplingParams(max_tokens=24, **setting) for _, setting in OTHER_SETTINGS]
outputs = LLMEngine(model, tokenizer, SMALL).generate(["The old dog"] * len(params), params)
rows = [[", ".join(setting) or "–", what, output.text.replace("\n", " ")] for (what, setting), output in zip(OTHER_SETTINGS, outputs)]
Table(columns=["setting", "what it does", "The old dog …"], rows=rows)

# %% [markdown]
"""
Each setting that comes before temperature is a few lines in `lessons_lib/engine/logits_processors.py`. These rules keep
no state between steps: they only look at the tokens so far. So preemption and several answers to one prompt need no
extra code. Requests without such settings skip all of it.

Programs that read an answer need it in a fixed format.

> **structured outputs**: answers that are guaranteed to follow a regular expression, a JSON schema or a grammar, unless
> `max_tokens` cuts them off.

With `structured_outputs`, a parser follows the answer, and before each token it returns the tokens that may come next.
It's `allowed_token_ids` with a new list for each token. The parser comes from an optional library
(`pip install llguidance`); see `lessons_lib/engine/guided.py`.

A model brings settings, too. Many come with a `generation_config`: further end tokens, a penalty, tokens that must not
be drawn. `generate` obeys it, so the engine must, or its answers differ. Here the model asks for a penalty, and the
request asks for nothing:
"""

# %%
model.generation_config.repetition_penalty = 1.3
try:
    with LLMEngine(model, tokenizer, SMALL) as engine:
        (output,) = engine.generate(["The old dog"], SamplingParams(max_tokens=24))
    prompt = tokenizer("The old dog", return_tensors="pt").input_ids
    expected = model.generate(prompt, max_new_tokens=24, do_sample=False)[0, prompt.shape[1] :].tolist()
finally:
    model.generation_config.repetition_penalty = None
print(repr(output.text))
print("equal to generate:", output.token_ids == expected)

# %% [markdown]
"""
A setting that the engine can't follow is refused when the engine is made. `EngineConfig(generation_config=False)`
ignores them all; only the tokenizer's end token ends an answer then.
"""

# %% [markdown]
"""
### What other users must not find out

Users must not learn each other's prompts. A prompt whose beginning is cached gets its first token sooner. So a reader
who tries prompts and looks at the clock can find out what others have asked. A request's `cache_salt` is hashed into
its blocks: only requests with the same salt share them.
"""

# %%
SECRET = "Once upon a time there was a small dog. His name was Max and his bone was under the tree. "
for salt in ("the same", "another"):
    engine = LLMEngine(model, tokenizer, SMALL)
    metrics = EngineMetrics(engine)
    for tenant_salt in ("the same", salt):
        before = metrics.cached_tokens
        engine.generate([SECRET], SamplingParams(max_tokens=4), cache_salt=tenant_salt)
    print(f"{salt} salt: {metrics.cached_tokens - before} of {len(tokenizer(SECRET).input_ids)} prompt tokens were cached")

# %% [markdown]
"""
Cached blocks are also wrong once the model's weights change: `engine.reset_prefix_cache()` forgets them all.
"""

# %% [markdown]
"""
### Bugs of real engines

Real engines have had bugs in these places. These are three of them, and what prevents them in ours:

| bug | reported for | what prevents it here |
|---|---|---|
| A temperature of 0, for greedy decoding, was refused, because the sampler divides by it. | [nano-vllm][1] | Where the temperature is 0, `choose_tokens` takes the likeliest token. |
| A seed was ignored if another request in the batch had none. | [vLLM 0.26 on a CPU][2] | A random number depends on the request's own seed and position, and on nothing else. |
| Paged attention that was called without its cache ran without the causal mask, and raised no error. | [Hugging Face transformers][3] | `paged` has no default in our attention function, so a call without it raises. |

[1]: https://github.com/GeeeekExplorer/nano-vllm/pull/249
[2]: https://github.com/vllm-project/vllm/issues/51226
[3]: https://github.com/huggingface/transformers/issues/48296
"""

# %% [markdown]
"""
### For a monitoring system

A monitoring system reads such metrics from many engines every few seconds. The most common one is Prometheus. It reads
text with one value per line. A *counter* only grows, a *gauge* goes up and down, and a histogram has a line for each
bound: how many values didn't exceed it.
"""

# %% tags=["measured"]
lines = prometheus_text(snapshot).splitlines()
print("\n".join(lines[:6]), "\n…")
print("\n".join(line for line in lines if "first_token_seconds_bucket" in line or "first_token_seconds_count" in line))

# %% [markdown]
"""
### Where a step's time goes

Each step is timed in its five parts. Everything but the forward pass is the engine's own time: scheduling, block
copies, sampling, bookkeeping.
"""

# %% tags=["measured"]
display(draw_step_parts(list(measured.recent)))
parts = measured.part_seconds
print(", ".join(f"{part} {1000 * seconds / measured.steps:.2f} ms" for part, seconds in parts.items()), "per step on average")
print(f"the engine's own share: {measured.own_share:.1%}")

# %% [markdown]
"""
On a CPU the model takes nearly all of the time. If your chart says otherwise, look at the largest part that isn't the
model. On a GPU the model is so fast that the same bookkeeping matters. That is the subject of lesson 13.

What does the model do all that time? It multiplies matrices, and it runs hundreds of small operations in between.
`fused_runner` makes a runner that computes the same model with fewer: queries, keys and values come from a single
product with their concatenated weights, and so do the gate and up projections of the MLP. Each norm is one operation.
Here is a step of four stories:
"""

# %% tags=["measured"]
def decodes(make_runner=None):
    """Operators in one decode step of four stories, milliseconds of a forward pass (median of 20), and the tokens."""
    engine, tokens = LLMEngine(model, tokenizer, replace(SMALL, make_runner=make_runner)), []
    metrics = EngineMetrics(engine)
    for story in STORIES[:4]:
        engine.add_request(story.prompt, SamplingParams(max_tokens=60, ignore_eos=True), on_token=lambda token: tokens.append(token.token))
    for _ in range(4):
        engine.step()
    with CountOperations() as operators:
        engine.step()
    for _ in range(20):
        engine.step()
    return operators.count, 1000 * median(step.seconds["forward"] for step in list(metrics.recent)[-20:]), tokens


(plain, plain_ms, tokens), (fused, fused_ms, fused_tokens) = decodes(), decodes(fused_runner)
print(f"Hugging Face's forward pass: {plain} operators, {plain_ms:.1f} ms; fused: {fused} operators, {fused_ms:.1f} ms")
print("the same tokens:", tokens == fused_tokens)

# %% [markdown]
"""
It's the same model with fewer operators to launch. vLLM's model files concatenate weights too: `QKVParallelLinear` and
`MergedColumnParallelLinear` in `vllm/model_executor/layers/linear.py`.
"""

# %% [markdown]
"""
### The designs side by side

Here is everything that this course has built, on one workload: the six stories, one of them with a longer answer, at
most four at a time. All produce the same tokens. "Loop over sequences" is a design that is sometimes called continuous
batching: a scheduler that batches, and a model that is called for one sequence after another. Hugging Face's own
continuous batching is in the table too, without its startup time.
"""

# %% tags=["measured"]
load = Workload(PROMPTS, (24, 8, 48, 8, 8, 8))
results = {}
for name, design in DESIGNS.items():
    started = perf_counter()
    answers = design(model, tokenizer, load, 4)
    results[name] = perf_counter() - started, answers
results["Hugging Face continuous batching"] = hugging_face_continuous(model, tokenizer, load, 4)
base, right = results["one at a time"]
count = sum(map(len, right))
Table(
    columns=["design", "tokens/s", "speedup over one at a time", "the same tokens"],
    rows=[[name, f"{count / took:,.0f}", f"{base / took:.1f}", "yes" if answers == right else "no"] for name, (took, answers) in results.items()],
    caption=f"{len(load.prompts)} requests, {count} new tokens; one run",
)

# %% [markdown]
"""
Look at the loop. Its scheduler is as good as any, but the design gains little or nothing, because the model computes
one sequence at a time. Static waves pay for padding and the batch barrier. With a small model, short contexts and a
CPU, most of the others are close together, and a run as short as this one can't rank them; on a busy machine any two
may swap ranks. What sets them apart is memory and long contexts (lesson 06), and how much load they can take (lessons
09 and 10). `make bench` measures with 64 requests. This is a recorded run:
"""

# %%
print(recorded_ways().provenance)
ways_table(recorded_ways().results)

# %% [markdown]
"""
"sdpa" and "paged|eager" are the two attention implementations of Hugging Face's continuous batching that need no GPU.
With 64 requests the differences are clearer. With 64 batch slots no request waits, and everything gains from that
except the loop and the dense slots. The engine is no slower than "paged row", although it schedules every step, looks
for shared prefixes and is ready to preempt. With the fused model it is the fastest of all.
"""

# %% [markdown]
"""
### What production does

- **vLLM**: `EngineCore.step` in `vllm/v1/engine/core.py` is also ours: `schedule`, `execute_model`,
  `sample_tokens`, `update_from_output`. `LLMEngine` in `vllm/v1/engine/llm_engine.py` is the user-facing side. The two
  run in separate processes, so that turning tokens into text doesn't hold up the GPU.
- `vllm/v1/sample/sampler.py` documents the order of all sampling settings: first those that can change which token is
  likeliest, then temperature, min-p, top-k and top-p. Our order is the same. Its penalties work on tensors of counts
  for the whole batch; ours handle one sequence after another. By default its log-probabilities are computed before any
  of these, like ours. A request with a seed has its own `torch.Generator`, which has a state that must be kept. It
  draws by the race as well (`random_sample` in `vllm/v1/sample/ops/topk_topp_sampler.py`).
- **FlashInfer** draws without a sort, too: a token that is cut is rejected, and the next draw is among those above it.
  Unlike ours, each draw lays the probabilities end to end, with a new random number.
- `vllm/v1/engine/detokenizer.py` always holds back the same number of characters: the length of the longest stop string
  minus one. That is simpler than `releasable`, and shows everything a little later.
- In vLLM, n answers are n requests (`vllm/v1/engine/parallel_sampling.py`), with the seeds seed, seed + 1, …. They
  share the prompt through the prefix cache.
- Metrics: `vllm/v1/metrics/loggers.py` exports histograms like ours to Prometheus, such as
  `vllm:time_to_first_token_seconds`.
- **nano-vllm**: a request has a temperature and no other sampling setting; `nanovllm/sampling_params.py` refuses 0 with
  "greedy sampling is not permitted".
- **Hugging Face transformers**: `ContinuousBatchingManager` in `generation/continuous_batching/continuous_api.py` has
  `add_request`, `get_result` and a thread that runs the steps. `generate_batch` is our `generate`.
"""
