# %% [markdown]
"""
# 12 · The engine

![The engine after 20 steps: rates, batch slots, blocks, requests](../lessons_lib/assets/openings/12.svg)

**We have a scheduler, a paged cache and a model. How do we turn them into an engine that takes requests and streams
answers?**

85 minutes · difficulty: medium · routes: serving · prerequisites: lesson 09 (the scheduler), lesson 10 (memory
pressure) and lesson 11 (prefix sharing)

An engine drives the parts, and adds what users expect: sampling, and answers that can be read while they grow. Then we
break it on purpose, and you write the step that survives it.
"""

# %% folded=true
from collections import deque
from itertools import count
from time import perf_counter

import torch

from lessons_lib.attention.paged_attention import plan_torch
from lessons_lib.batching import generate_one_by_one
from lessons_lib.checks import check, hint, predict, progress, quiz, reset, reveal, solution
from lessons_lib.checks.my_engine import by_lesson, my_engine
from lessons_lib.engine import EngineConfig, EngineCore, LLMEngine, ModelRunner, Parts
from lessons_lib.engine import SamplingParams, random_numbers
from lessons_lib.engine.metrics import EngineMetrics
from lessons_lib.kv_cache import PrefixCache, audit
from lessons_lib.measuring import MAX_NEW_TOKENS, NAMES, PROMPTS, STORIES, ledger
from lessons_lib.measuring import skewed_workload
from lessons_lib.models import load_model
from lessons_lib.scheduling import PreemptiveScheduler, Sequence
from lessons_lib.viz.charts import draw_token_bars
from lessons_lib.viz.engine_run import watch_engine
from lessons_lib.viz.tables import Table

# %%
# float32, so answers can be compared token for token
model, tokenizer = load_model(device="cpu")
prompt_ids = {story.name: tokenizer(story.prompt).input_ids for story in STORIES}
END = tokenizer.eos_token_id

# %% [markdown]
"""
## The problem: driving it by hand

With only the parts from earlier lessons, a user has to write this to get three stories:
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
To add a request later, to show a word before the end or to stop one sequence, you have to change the loop. Decoding is
always greedy. And what if an exception comes in the middle?

With an engine, a user writes this. `SamplingParams` holds the settings of a request, `EngineConfig` the sizes of the
engine: batch slots, token budget, blocks. The finish reason `length` means that an answer has reached its maximum
length.
"""

# %%
SMALL = EngineConfig(max_num_seqs=4, max_num_batched_tokens=64, num_blocks=32)
AS_ASKED = [SamplingParams(max_tokens=max_tokens) for max_tokens in MAX_NEW_TOKENS]
answers = LLMEngine(model, tokenizer, SMALL).generate(PROMPTS, AS_ASKED)
for name, output in zip(NAMES, answers):
    print(f"{name}: {len(output.token_ids)} tokens, {output.finish_reason}: "
          f"…{output.text[:80]!r}")

# %%
alone = generate_one_by_one(model, tokenizer, PROMPTS, max_new_tokens=MAX_NEW_TOKENS)
print("the same tokens as one at a time (lesson 00):",
      [output.token_ids for output in answers] == alone)

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
   copy blocks   swap-out, swap-in                                                lesson 10
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
then. And no token reaches a reader before the whole pass has succeeded. The first three steps of the six stories:
"""

# %%
engine = LLMEngine(model, tokenizer, SMALL)
metrics = EngineMetrics(engine)
for story, params in zip(STORIES, AS_ASKED):
    engine.add_request(story.prompt, params, request_id=story.name)
for number in (1, 2, 3):
    engine.step()
    step = metrics.recent[-1]
    print(f"step {number}: {step.tokens} tokens computed for {step.running} sequences, "
          f"{step.new_tokens} new; waiting: {step.waiting}")

# %%
reveal("12.a", metrics.recent[0].new_tokens)

# %% [markdown]
"""
A's prompt takes 13 of the 64 tokens, and B gets the other 51 for a part of its prompt, so two batch slots stay free.
Only A gets a new token: B's row of logits predicts a token that is already in its prompt.
"""

# %% [markdown]
"""
## Choosing a token

Always taking the likeliest token makes for dull stories, and a second answer is identical to the first.

> **sampling**: choosing the next token at random, where each token has the probability that the model gives it.

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
temperature, top_k, top_p = torch.tensor([0.5, 1, 2, 1,
                                          1]), torch.tensor([V, V, V, 3, V]), torch.tensor(
                                              [1, 1, 1, 1, 0.5])
after_dog = next_logits(prompt_ids["C"])
probabilities, tokens = token_probabilities(after_dog.expand(len(SETTINGS), -1), temperature,
                                            top_k, top_p)
names = [tokenizer.decode(token) for token in tokens[0, :10].tolist()]
draw_token_bars(names, dict(zip(SETTINGS, probabilities[:, :10].tolist())),
                title="The next token after “The old dog”")

# %% [markdown]
"""
Temperature keeps every token possible. At 1, a third of the draws are outside these ten; at 2, 82 %. The cuts rule
tokens out, and the remaining tokens share their probability.
"""

# %% [markdown]
"""
## Draw a token

Lay the probabilities end to end, and see on which of them a random number between 0 and 1 falls. That takes running
sums along the whole row, sorted if there are cuts. There is a way without sums: give each token a random number of its
own, and compare. But what do you compare? Three ideas, for a token's `probability` and `number`:

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
next moment are the probabilities. In B, no time exceeds `1 / probability`. That limit comes sooner for the likelier
token, so the odds shift toward it. A `number` may not be 0: a token that is cut has the probability 0 and so an
infinite time, while 0 / 0 would be NaN. ("The race and the cuts" in "Further" says why C is exact.)

### The same seed, the same text

> **seed**: a number that determines all random numbers of a request. The same seed should give the same answer again. A
> request without one gets a random seed.

If all requests share a random number generator, a request's numbers depend on the others. If each has its own, a
preempted request must keep its state. There is a way that needs no state: the random number of a token is a *hash* of
the seed, of the position in the answer, and of the token's id. ("Neighboring seeds" in "Further" shows how such a hash
can go wrong.)

Here are all parts of a draw, with your function, in the simplest possible loop:
"""

# %%
SETTING = dict(temperature=0.9, top_k=50, top_p=0.95)


def race(probabilities, numbers):
    """The index with the smallest time in each row. `numbers` [N, vocabulary]: one for each
    token."""
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
    print(", ".join(f"{name} {value}"
                    for name, value in setting.items() if value not in (V, 1.0)))
    print(f"  The old dog{told}")
expected = by_hand(prompt_ids["C"], seed=7, count=20, **SETTING)

# %% [markdown]
"""
At a temperature of 2, the tail ruins the story; `top_k` 3 cuts it off. Now the engine, with the last setting and the
same seed. C is added last, so in a small pool it's preempted first.
"""

# %%
def with_others(others, **sizes):
    """C with seed 7, after other requests: (preemptions, swap-outs, whether C's answer is the
    loop's)."""
    engine, answers = LLMEngine(model, tokenizer,
                                EngineConfig(max_num_seqs=6, max_num_batched_tokens=64,
                                             **sizes)), {}
    for seed, name in enumerate(others):
        engine.add_request(prompt_ids[name],
                           SamplingParams(max_tokens=20, seed=seed, **SETTING))
    engine.add_request("The old dog", SamplingParams(max_tokens=20, seed=7, **SETTING),
                       request_id="C")
    while "C" not in answers:
        answers |= {output.request_id: output.token_ids for output in engine.step()}
    is_same = "yes" if answers["C"] == expected else "no"
    return engine.scheduler.num_preempted, engine.scheduler.num_swapped, is_same


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
all other requests too. Here E's reader leaves after the second period, with 23 tokens; D was added before, and nothing
reads it. **With a pencil first:** how many tokens does D have by then? And which requests are still in the engine?
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
    print(f"D: {len(engine.abort('D').token_ids)} tokens; blocks in use after its abort: "
          f"{len(pool.used)}")


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
`engine.stream` has one more thing that ours lacks: if D ends in a step that E's reader runs, the next `engine.step()`
still returns D's output. (If you keep a stream in a variable, call its `close()` when you're done with it.)

## When something breaks

A step can break in the middle, in three ways that are no bug of the engine.

The first is user code: the callback that receives each token. Its error ends its own request, and no other.

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
        print(f"{error}: "
              f"{', '.join(sequence.id for sequence in scheduler.running)} have ended")
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
    # checks that each block is free or in a sequence that the scheduler knows (lesson 10)
    audit(scheduler)
except Exception as error:
    print(f"{type(error).__name__}: {error}")
reveal("12.b", len(pool.used), unit="blocks")

# %% [markdown]
"""
A's prompt and four more tokens need two blocks, and the second was allocated for the very step that failed. No sequence
will ever free these blocks. After a few such failures, the engine could admit nothing.

What should a failed step do instead? If it just tries again, and one request makes the model fail, every step fails,
forever. We keep it simple: the step ends its requests, and all others are computed anew from their tokens.

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
| `sampler(logits, params, seeds, positions, processors)` | returns a token for each row of `logits`; the other arguments are lists with an entry for each row |

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
Here is an engine with your step. The fifth forward pass fails, with A, B, C and D in it. E and F wait, and must get the
answers that they get alone:
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
        engine.add_request(story.prompt, params, request_id=story.name,
                           on_token=on_token.get(story.name))
    outputs = {}
    while engine.has_unfinished():
        outputs |= {output.request_id: output for output in engine.step()}
        audit(engine.scheduler)
    for name, right in zip(NAMES, alone):
        output = outputs[name]
        same = output.token_ids == right[: len(output.token_ids)]
        print(f"  {name}: {output.finish_reason:<6} {len(output.token_ids):3} tokens, "
              f"as alone so far: {same}  {output.error or ''}")
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

## The engine at work, and in trouble

The six stories, and three kinds of trouble: a long prompt, a reader that leaves, and a pass that fails. **Guess first:**
which requests does the failed pass end, and what becomes of their blocks?
"""

# %%
def a_long_prompt():
    busy.add_request(" ".join(PROMPTS), SamplingParams(max_tokens=20), request_id="G")
    return "G comes, with a long prompt"


def a_reader_leaves():
    busy.abort("E")
    return "E's reader leaves"


busy = LLMEngine(model, tokenizer,
                 EngineConfig(max_num_seqs=4, max_num_batched_tokens=32, num_blocks=32))
busy.runner.forward = fails_in_call(21, busy.runner.forward)
for story, params in zip(STORIES, AS_ASKED):
    busy.add_request(story.prompt, params, request_id=story.name)
watch_engine(busy, trouble={12: a_long_prompt, 40: a_reader_leaves})

# %% [markdown]
"""
Change the trouble, or make more. With a prompt of your own, and knobs for everything, the engine also runs on the
page *engine room*: `engine_room()` in START.
"""

# %% [markdown]
"""
## Your own engine

Whenever a check passes, your answer is kept in the folder `work`, next to this notebook. `my_engine` builds an engine
of your answers. Where one is missing or no longer passes, it takes the reference's.
"""

# %%
MANY = EngineConfig(max_num_seqs=32, max_num_batched_tokens=256, num_blocks=512,
                    backend=plan_torch)
yours = my_engine(model, tokenizer, MANY)
by_lesson(yours.parts)

# %% [markdown]
"""
A part of yours may have no work in this engine, and then its row says why. The `backend` here is the reference's
attention, since lesson 06's computes one sequence and block after another.

What is it worth? 32 requests, most with short answers and some with long ones, are served one at a time, as in lesson
00, and then together, by your engine. **Guess first:** how many times as fast is your engine?
"""

# %% tags=["measured"]
load = skewed_workload(32)
limits = [SamplingParams(max_tokens=max_tokens) for max_tokens in load.max_new_tokens]
started = perf_counter()
one_at_a_time = generate_one_by_one(model, tokenizer, load.prompts,
                                    max_new_tokens=load.max_new_tokens)
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
The model and the machine are the same; the lessons in between make the difference.

### The ledger

Runs this short can't rank engines by speed: compare tokens, passes and copies. The last row is yours, with the same
attention as the row above it. First, does your engine tell these stories as the reference's does?
"""

# %%
own = [output.token_ids for output in yours.generate(PROMPTS, AS_ASKED)]
print("six stories, token for token as the reference's engine:",
      own == [output.token_ids for output in answers])

# %% tags=["measured"]
ledger(model, tokenizer, "12", with_cache_only=True, since="10", my_engine=my_engine)

# %% [markdown]
"""
Both engines compute only tokens that are needed, copy nothing, and reserve little more cache than they use.

## What is still wrong

**One bad request takes its neighbors along.** A failed step ends all requests in it: the engine can't tell which one
was to blame. And after some errors on a GPU, such as an illegal memory access, the process can't use the device any
more, whatever it catches.

**One caller.** `stream` runs the steps itself: callers in two threads wait for each other, and between calls nothing
runs. And requests can come only from inside this Python process.

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
"""

# %% [markdown] folded=true
"""
## Further (optional)

What the lesson doesn't need. It isn't part of its 85 minutes.
"""

# %% [markdown]
"""
### Stop strings

> **stop string**: a string that ends the answer as soon as it appears. It isn't part of the answer.

A stop *token*, such as the end token, is simple: the sequence ends with it. A stop *string* may span several tokens, or
begin in the middle of one, and the reader must never see the beginning of it. So text is held back, as much as might be
the beginning of a stop string. With the stop string "END", the text "The dog. E" can be shown up to the space. If "ND"
follows, the answer is finished. If "very" follows, it wasn't a stop string, and "Every" can be shown.

**Exercise 12.2: `releasable(text, stop)`** (optional). `text` is the text so far. `stop` is a tuple of stop strings,
none of them empty; the tuple itself may be empty. Return the pair (length, stopped): `text[:length]` can be shown.

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
Here is A's answer, token by token, with two stop strings that both span several tokens. "day, she sang" won't appear;
"a big" will. What does the reader see, and when?
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
stopped_early = SamplingParams(max_tokens=30, stop=STOP)
output = LLMEngine(model, tokenizer, SMALL).generate([PROMPTS[0]], stopped_early)[0]
print(f"\nthe answer: {shown!r}; the engine's: {output.finish_reason}, the same: "
      f"{output.text == shown}")

# %% [markdown]
"""
"day, she" was held back while three tokens arrived. Then " saw" showed that it wasn't the stop string, and all of it
was released at once. Text is held back for another reason, too: a character such as "€" may be spread over several
tokens, and a byte of it, decoded alone, gives "�".

### Interrupted anywhere

Code that repairs a half-changed state would have to know every line where Ctrl-C can come. The engine has no such code.
Its core makes a note when a change begins, and deletes it only once the change is complete. A call that finds a change
unfinished calls `EngineCore.rebuild`: it empties the queues, the pool and the block tables, and adds every unfinished
sequence to the queue again, with its tokens and nothing computed.

Does that work at any line? The six stories, with 6 tokens each, run through thousands of lines of your step, the
engine, the scheduler and the cache. Let's interrupt each of 20 runs at one of them, drawn at random. (`rebuild` itself
runs only after an interrupt, so none of its lines is drawn.)
"""

# %%
import random
import sys
from pathlib import Path

PLACES = tuple(str(Path("lessons_lib", part)) for part in ("engine", "scheduling", "kv_cache"))


def six_tokens(interrupt_at=None):
    """Serve the six stories. Returns (lines that ran, function where Ctrl-C came, tokens of
    each story)."""
    engine, lines, struck, answers = LLMEngine(model, tokenizer, SMALL,
                                               parts=YOURS), 0, None, {}
    for story in STORIES:
        engine.add_request(story.prompt, SamplingParams(max_tokens=6), request_id=story.name)

    def on_line(frame, event, _):
        nonlocal lines, struck
        code = frame.f_code
        if code is not run_step.__code__ and not any(place in code.co_filename
                                                     for place in PLACES):
            return None
        lines += event == "line"
        if event == "line" and lines == interrupt_at:
            struck = code.co_name
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
runs = [six_tokens(interrupt_at=place)
        for place in random.Random(0).sample(range(1, lines), 20)]
places = ", ".join(sorted({struck for _, struck, _ in runs})[:12])
print(f"{lines:,} lines; interrupted in {places}, …")
same = sum(answers == uninterrupted for *_, answers in runs)
print(f"the same tokens for all six: {same} of {len(runs)} runs")

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
from lessons_lib.engine.stateless_random import mixed

# the engine's hash
seed_7, seed_8 = (mixed(seed + torch.arange(20)).tolist() for seed in (7, 8))
reveal("12.c", len(set(seed_7) & set(seed_8)), unit="hashes")

# %% [markdown]
"""
8 + 0 is 7 + 1: seed 8 draws with the numbers of seed 7, each one position earlier. A perfect hash doesn't help against
equal arguments. So the engine hashes the seed first, and then the result plus the position: `hash(seed) + 1` is nothing
like `hash(seed + 1)`.

### The race and the cuts

Why does each token win with its own probability? As long as no time has come, the chance that a token's time is the
next one is proportional to its weight, exp(logit / temperature). So token i wins with the probability wᵢ / Σ wⱼ. That
is the softmax, though no sum was computed. And with cuts? If the winner's rank is below `top_k`, and the tokens before
it have less than `top_p`, then it would have won among the remaining tokens alone, too. To find out, count the tokens
that are likelier, and add up their probabilities; that needs no sort. If the winner is cut, so is every token after it;
the race is run again among those before it, with the same times. (With logarithms of everything, the race is called the
*Gumbel-max trick*.)

### The other settings

> **penalty**: a setting that makes tokens less likely if they have already occurred.

> **min_p**: only tokens at least this many times as likely as the likeliest one may be drawn.

> **structured outputs**: answers that are guaranteed to follow a regular expression, a JSON schema or a grammar, unless
> `max_tokens` cuts them off.

> **log-probability**: the logarithm of a probability, 0 or below. The log-probabilities of an answer's tokens add up to
> that of the whole answer.

`SamplingParams` has most of vLLM's settings, with the same names, applied in the same order: first those that can
change which token is likeliest, then temperature, `min_p`, `top_k` and `top_p`. One prompt, with some of them:
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
    ("the answer ends before this string, but not within 16 tokens",
     dict(stop=(".",), min_tokens=16)),
    ("temperature 1, seed 3", dict(temperature=1.0, seed=3)),
    ("… only tokens at least 0.2 times as likely as the likeliest",
     dict(temperature=1.0, seed=3, min_p=0.2)),
]
params = [SamplingParams(max_tokens=24, **setting) for _, setting in OTHER_SETTINGS]
outputs = LLMEngine(model, tokenizer, SMALL).generate(["The old dog"] * len(params), params)
rows = [
    [", ".join(setting) or "–", what, output.text.replace("\n", " ")]
    for (what, setting), output in zip(OTHER_SETTINGS, outputs)
]
Table(columns=["setting", "what it does", "The old dog …"], rows=rows)

# %% [markdown]
"""
**What does a rule cost?** A penalty depends on how often each token has occurred. If the CPU counted them for one row
after another, the GPU would wait before each token. So the counts stay where the logits are, and the step that draws a
token counts it. One pass over the logits then applies all rules of all rows (`lessons_lib/engine/rules_state.py`; on a
GPU, a kernel of one screen). Here are 64 sequences with a vocabulary of 32,000, on this machine:
"""

# %% tags=["measured"]
from lessons_lib.engine.logits_processors import LogitsRules
from lessons_lib.engine.rules_state import RulesState
from lessons_lib.engine.sampling import choose_tokens
from lessons_lib.measuring.timing import median_ms


def chooser(**rule):
    """A function that chooses the next tokens of 64 sequences with this rule."""
    params, memory, position = SamplingParams(**rule), RulesState(), count()
    sequences = [Sequence(str(number), [number], 99) for number in range(64)]
    own = LogitsRules(params, memory)
    rules = [own.processor(each) if rule else None for each in sequences]
    return lambda: choose_tokens(LOGITS, [params] * 64, [0] * 64, [next(position)] * 64, rules)


LOGITS = torch.randn(64, 32_000)
rules = {
    "no rule": {},
    "a bias": dict(logit_bias={PERIOD: -100.0}),
    "a repetition penalty": dict(repetition_penalty=1.3),
    "both": dict(logit_bias={PERIOD: -100.0}, repetition_penalty=1.3),
}
times = median_ms([chooser(**rule) for rule in rules.values()])
for name, ms in zip(rules, times):
    print(f"{name:20} {ms:5.1f} ms")

# %% [markdown]
"""
- With `structured_outputs`, a parser follows the answer, and says before each token which tokens may come next. It
  comes from an optional library (`pip install llguidance`); see `lessons_lib/engine/guided.py`.
- `n=3` asks for three answers. The first computes the prompt; the others find its full blocks in the prefix cache, and
  draw with the seeds seed + 1 and seed + 2. `logprobs=2` adds each token's log-probability, and the two likeliest.
- A reader who tries prompts and looks at the clock can find out what others have asked: a cached beginning gets its
  first token sooner. A request's `cache_salt` is hashed into its blocks, so only requests with the same salt share
  them.

### Stretch: which requests should be given up?

A request may have a deadline: an answer that comes later is worth nothing. Tokens for a request that will be late are
wasted, and `engine.abort` would free its batch slot for another one. Before each step, your function gets the list of
the unfinished requests, and returns a list of those that the engine aborts. The more requests get their whole answer in
time, the better. A request has five attributes:

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
from lessons_lib.checks.lesson_12.deadlines import deadline_scoreboard


def give_up(requests):
    return []  # replace this


deadline_scoreboard(give_up)

# %% [markdown]
"""
### What production does

- **vLLM**: `EngineCore.step` in `vllm/v1/engine/core.py` has the same parts as ours: `schedule`, `execute_model`,
  `sample_tokens`, `update_from_output`. `LLMEngine` in `vllm/v1/engine/llm_engine.py` is the user-facing side. The two
  run in separate processes, so that turning tokens into text doesn't hold up the GPU.
- `vllm/v1/sample/sampler.py` documents the order of all sampling settings. Its penalties count tokens on the device,
  for the whole batch, as `lessons_lib/engine/rules_state.py` does. A request with a seed has its own `torch.Generator`,
  a state that must be kept. It draws by the race as well (`random_sample` in
  `vllm/v1/sample/ops/topk_topp_sampler.py`).
- **FlashInfer** draws without a sort, too: a token that is cut is rejected, and the next draw is among those above it.
- `vllm/v1/engine/detokenizer.py` always holds back the length of the longest stop string minus one. That is simpler
  than `releasable`, and shows everything a little later.
- **nano-vllm**: a request has a temperature and no other sampling setting; `nanovllm/sampling_params.py` refuses 0 with
  "greedy sampling is not permitted".
- **Hugging Face transformers**: `ContinuousBatchingManager` in `generation/continuous_batching/continuous_api.py` has
  `add_request`, `get_result` and a thread that runs the steps. `generate_batch` is our `generate`.

Three bugs of real engines, and what prevents them in ours:

| bug | reported for | what prevents it here |
|---|---|---|
| A temperature of 0, for greedy decoding, was refused, because the sampler divides by it. | [nano-vllm][1] | Where the temperature is 0, `choose_tokens` takes the likeliest token. |
| A seed was ignored if another request in the batch had none. | [vLLM 0.26 on a CPU][2] | A random number depends on the request's own seed and position, and on nothing else. |
| Paged attention that was called without its cache ran without the causal mask, and raised no error. | [Hugging Face transformers][3] | `paged` has no default in our attention function, so a call without it raises. |

[1]: https://github.com/GeeeekExplorer/nano-vllm/pull/249
[2]: https://github.com/vllm-project/vllm/issues/51226
[3]: https://github.com/huggingface/transformers/issues/48296
"""
