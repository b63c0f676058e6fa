# %% [markdown]
"""
# 12 · The engine

![The engine after 20 steps: rates, batch slots, blocks, requests](../lessons_lib/assets/openings/12.svg)

**We have a scheduler, a paged cache and a model. How do we turn them into an engine that takes requests and streams
answers?**

75 minutes · difficulty: medium · routes: serving · prerequisites: lesson 09 (the scheduler), lesson 10 (memory
pressure) and lesson 11 (prefix sharing)

You write the loop that drives the parts, and the sampling. Then we break it on purpose, and you write the step that
survives it.
"""

# %% folded=true
from collections import deque
from itertools import count
from time import perf_counter

import torch

from lessons_lib.attention.paged_attention import plan_torch
from lessons_lib.batching import generate_one_by_one
from lessons_lib.checks import check, hint, predict, progress, quiz, reset, reveal, solution
from lessons_lib.checks.lesson_12.steps import fates
from lessons_lib.checks.my_engine import by_lesson, my_engine
from lessons_lib.engine import EngineConfig, EngineCore, LLMEngine, ModelRunner, Parts
from lessons_lib.engine import SamplingParams
from lessons_lib.kv_cache import PrefixCache, audit
from lessons_lib.measuring import MAX_NEW_TOKENS, NAMES, PROMPTS, STORIES, ledger
from lessons_lib.measuring import skewed_workload
from lessons_lib.models import load_model
from lessons_lib.scheduling import PreemptiveScheduler, Sequence
from lessons_lib.viz.charts import draw_token_bars
from lessons_lib.viz.engine_run import watch_engine
from lessons_lib.viz.failed_step import draw_failed_step
from lessons_lib.viz.tables import Table

# %%
# float32, so answers can be compared token for token
model, tokenizer = load_model(device="cpu")
prompt_ids = {story.name: tokenizer(story.prompt).input_ids for story in STORIES}
LIMITS = dict(zip(NAMES, MAX_NEW_TOKENS))
END = tokenizer.eos_token_id

# %% [markdown]
"""
## The problem: driving it by hand

With the parts from earlier lessons, a user writes this to get three stories:
"""

# %%
def new_parts():
    """A scheduler with an empty pool, and a function that runs its steps."""
    pool, runner = PrefixCache(32, 16), ModelRunner(model, 32, 16)  # 32 blocks of 16 tokens
    scheduler = PreemptiveScheduler(pool, max_num_seqs=4, max_num_batched_tokens=64)

    def compute(scheduler_output):
        """One forward pass, and the likeliest token of each row."""
        return runner.forward(scheduler_output).argmax(dim=-1).tolist()

    return scheduler, compute


def sequence_of(name, max_tokens):
    return Sequence(name, prompt_ids[name], max_tokens, frozenset({END}))


scheduler, compute = new_parts()
sequences = [sequence_of(name, 12) for name in "ACD"]
for sequence in sequences:
    scheduler.add(sequence)
while scheduler.has_unfinished():
    scheduler_output = scheduler.schedule()
    scheduler.update(scheduler_output, compute(scheduler_output))
for sequence in sequences:
    print(f"{sequence.id}: …{tokenizer.decode(sequence.output_ids)}")

# %% [markdown]
"""
Nothing is shown before the end, no request can come later, and a reader can't leave. And what if an exception comes in
the middle?

## The idea: one step, again and again

```
 inbox ──▶ waiting                                                     at any time
              │
 step         ▼
   schedule      which sequences, how many tokens, which blocks        lessons 09–11
   copy blocks   swap-out, swap-in                                     lesson 10
   compute       forward pass: a row of logits for each sequence       lessons 05–08
                 sample: a token from each row                         here
   update        tokens to their sequences                             lesson 09
              │
              ▼
 stream: each token to its reader                                      here
```

> **engine**: the object that owns the model, the cache and the scheduler, and runs one step after another for all
> requests in it.

> **streaming**: returning an answer piece by piece as it grows.

The forward pass may overwrite a block that a swap-out has yet to save. So copies come first. And no token reaches a
reader before the whole pass has succeeded.
"""

# %% [markdown]
"""
## Build 1: the loop that batches

**Exercise 12.1: `engine_loop(scheduler, compute, inbox)`**, a generator, from an empty function.

- `inbox` is a deque of sequences. Before each step, and only then, move all of them to the scheduler
  (`scheduler.add`), the oldest first. More may come whenever your loop waits at a `yield`.
- A step is `scheduler.schedule()`, `compute(scheduler_output)` and `scheduler.update(scheduler_output, tokens)`, once
  each. Run it even if nothing is scheduled: `compute` may have blocks to copy.
- `scheduler_output.num_scheduled_tokens` is a dict, sequence → number of tokens to compute. After `update`,
  `scheduler_output.gets_token` is a list in its order: False in the middle of a prompt. `compute` returns a token for
  *every* scheduled sequence; ignore it where `gets_token` is False.
- Then `yield` a pair (id, token) for each sequence that got a new token, in the same order.
- The loop ends when the inbox is empty and `scheduler.has_unfinished()` is False.
- It may end early, too: if the reader leaves, Python raises `GeneratorExit` at your `yield`; `compute` may raise an
  error, or be interrupted by Ctrl-C. The caller must get that error.
- Whatever ends the loop, `scheduler.remove(sequence)` frees a sequence's blocks. Call it for all that are left in
  `scheduler.running` (a list) and in `scheduler.waiting` (loop over it). Leave the inbox as it is.
"""

# %% exercise="12.1"
from collections import deque
from collections.abc import Callable, Iterator

from lessons_lib.scheduling.scheduler import SchedulerBase, SchedulerOutput
from lessons_lib.scheduling.sequence import Sequence

from lessons_lib.conformance.examples.engine_loop import engine_loop

# %% [markdown]
"""
Your loop serves the six stories:
"""

# %%
alone = dict(zip(NAMES, generate_one_by_one(model, tokenizer, PROMPTS,
                                            max_new_tokens=MAX_NEW_TOKENS)))
scheduler, compute = new_parts()
answers = {name: [] for name in NAMES}
inbox = deque(sequence_of(name, LIMITS[name]) for name in NAMES)
for name, token in engine_loop(scheduler, compute, inbox):
    answers[name].append(token)
print("the same tokens as one at a time (lesson 00):", answers == alone)

# %% [markdown]
"""
Now what the loop by hand couldn't do: D is running, E comes after D's third token, and the reader leaves after E's
second sentence. **With a pencil first:** E then has 23 tokens. How many does D have?
"""

# %%
scheduler, compute = new_parts()
inbox = deque([sequence_of("D", 60)])
stream, told = engine_loop(scheduler, compute, inbox), {"D": [], "E": []}
for name, token in stream:
    told[name].append(tokenizer.decode(token))
    if len(told["D"]) == 3 and not told["E"]:
        inbox.append(sequence_of("E", 80))
    if sum("." in text for text in told["E"]) == 2:
        break
print("blocks in use:", len(scheduler.pool.used))
stream.close()
print("after the reader left:", len(scheduler.pool.used))
print(f"D has {len(told['D'])} tokens, E {len(told['E'])}: {''.join(told['E'])}")

# %% [markdown]
"""
D has three more: E's prompt fits into one step, and each step computes a token for both.

An `LLMEngine` is such a loop with everything around it. `SamplingParams` holds the settings of a request,
`EngineConfig` the sizes of the engine:
"""

# %%
SMALL = EngineConfig(max_num_seqs=4, max_num_batched_tokens=64, num_blocks=32)
AS_ASKED = [SamplingParams(max_tokens=max_tokens) for max_tokens in MAX_NEW_TOKENS]
outputs = LLMEngine(model, tokenizer, SMALL).generate(PROMPTS, AS_ASKED)
for name, output in zip(NAMES, outputs):
    print(f"{name}: {len(output.token_ids)} tokens, {output.finish_reason}: "
          f"…{output.text[:70]!r}")
print("the same tokens as one at a time:",
      [output.token_ids for output in outputs] == list(alone.values()))

# %% [markdown]
"""
`length` means that an answer has reached its maximum length. `engine.stream(prompt)` streams one answer, and its steps
serve all other requests, too. If its reader leaves, only its request is aborted.

## Choosing a token

Greedy decoding makes for dull stories, and a second answer is identical to the first.

> **sampling**: choosing the next token at random, where each token has the probability that the model gives it.

> **temperature**: a value by which all logits are divided before the softmax. Below 1, the likeliest tokens become even
> likelier; above 1, the probabilities become more alike. A temperature of 0 means greedy decoding.

> **top-k**: only the k likeliest tokens may be drawn.

> **top-p**: only the smallest set of likeliest tokens whose probabilities add up to at least p may be drawn. Also
> called *nucleus sampling*.

A temperature of 0.5 squares the ratio of two probabilities: 2 : 1 becomes 4 : 1. The two cuts remove the long tail,
thousands of tokens that don't fit.

## Build 2: what to draw from

**Exercise 12.2: `token_probabilities(logits, temperature, top_k, top_p)`**, for N requests at once, each with its own
settings: a row of `logits` and one value of each setting. Return the pair (probabilities, tokens), both
[N, vocabulary]: `tokens[i, j]` is drawn with `probabilities[i, j]`. The likeliest token comes first in each row; of two
equally likely ones, the smaller token id.

- Temperature comes first, then `top_k`, then `top_p`. What each cut leaves adds up to 1 again, so `top_p` is a share of
  what `top_k` leaves. `top_k` may be larger than the vocabulary.
- `top_p` cuts a token if the tokens before it already add up to `top_p` or more. So the token that reaches `top_p`
  stays, and so does the likeliest.
- A token that is cut stays in its row, with the probability 0. The order of the tokens with 0 doesn't matter.
- `logits` may have any float dtype. A logit of −∞ means that the token must not be drawn; a row never has only those.
- Compute in float32 or float64, and don't change the arguments.

Example: four tokens 0 to 3 with the probabilities 0.15, 0.5, 0.05, 0.3 at temperature 1. Their order is 1, 3, 0, 2.
With `top_k` 3 they get 0.526, 0.316, 0.158, 0. With `top_p` 0.6 as well, token 3 stays, since 0.526 is less than 0.6;
token 0 is cut, since 0.842 isn't. The result is 0.625, 0.375, 0, 0. With `top_p` 0.52 instead, it is 1, 0, 0, 0.
"""

# %% exercise="12.2"
import torch

from lessons_lib.engine.plain_sampling import token_probabilities

# %% [markdown]
"""
The real probabilities after "The old dog", with five settings:
"""

# %%
V = model.config.vocab_size
SETTINGS = ["temperature 0.5", "temperature 1", "temperature 2", "top-k 3", "top-p 0.5"]
temperature = torch.tensor([0.5, 1, 2, 1, 1])
top_k, top_p = torch.tensor([V, V, V, 3, V]), torch.tensor([1, 1, 1, 1, 0.5])
with torch.inference_mode():
    after_dog = model(input_ids=torch.tensor([prompt_ids["C"]])).logits[:, -1]
probabilities, tokens = token_probabilities(after_dog.expand(len(SETTINGS), -1), temperature,
                                            top_k, top_p)
names = [tokenizer.decode(token) for token in tokens[0, :10].tolist()]
draw_token_bars(names, dict(zip(SETTINGS, probabilities[:, :10].tolist())),
                title="The next token after “The old dog”")

# %% [markdown]
"""
Temperature keeps every token possible. The cuts rule tokens out, and the remaining tokens share their probability.
"""

# %% [markdown]
"""
## Draw a token

One way: lay the probabilities end to end, and see on which of them a random number between 0 and 1 falls. That takes
running sums along the whole row. Another way needs no sums: each token gets a random `number` of its own. Three ideas:

- A draws the token with the largest `probability * number`.
- B draws the token with the smallest `number / probability`.
- C draws the token with the smallest `-log(1 - number) / probability`.

**Decide.** One of the three draws each token exactly as often as it should. Which? Take a pencil and two tokens, one
twice as likely as the other. The cell draws 200,000 times.
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
C is right: A and B draw the likelier token in three quarters of all cases. B is a race in which `number / probability`
is a token's finishing time: up to 1.5 for the likelier token, up to 3 for the other. In half of the races the other one
needs more than 1.5 and loses; the other half is even: ½ + ¼ = ¾. The engine draws as in C:

> **exponential race**: each token gets a random time: an exponential random number, divided by the token's probability.
> The token with the smallest time wins, and is drawn. Each token wins with exactly its own probability.

An exponential random number, `-log(1 - number)`, has no memory: however long the race has lasted, the odds for the next
moment are the probabilities.

### The same seed, the same text

> **seed**: a number that determines all random numbers of a request. The same seed should give the same answer again. A
> request without one gets a random seed.

If all requests share a random number generator, a request's numbers depend on the others. If each has its own, the
generator's state must survive a preemption. No state is needed if the random number of a token is a *hash* of the seed, of
the position in the answer, and of the token's id.

Here C is drawn with seed 7, alone and among others. It is added last, so in a small pool it's preempted first.
**Guess first:** how many of the four texts differ?
"""

# %%
SETTING = dict(max_tokens=20, temperature=0.9, top_k=50, top_p=0.95)


def with_others(others, **sizes):
    """C with seed 7, after other requests: (preemptions, swap-outs, C's answer)."""
    config = EngineConfig(max_num_seqs=6, max_num_batched_tokens=64, **sizes)
    engine, told = LLMEngine(model, tokenizer, config), {}
    for seed, name in enumerate(others):
        engine.add_request(prompt_ids[name], SamplingParams(seed=seed, **SETTING))
    engine.add_request("The old dog", SamplingParams(seed=7, **SETTING), request_id="C")
    while "C" not in told:
        told |= {output.request_id: output.text for output in engine.step()}
    return engine.scheduler.num_preempted, engine.scheduler.num_swapped, told["C"]


Table(
    columns=["C with seed 7", "preemptions", "of these, swapped", "The old dog …"],
    rows=[
        ["alone", *with_others("", num_blocks=64)],
        ["with five others", *with_others("ABDEF", num_blocks=64)],
        ["in 12 blocks, recompute", *with_others("ABDEF", num_blocks=12)],
        ["in 12 blocks, swap", *with_others("ABDEF", num_blocks=12, num_swap_blocks=24)],
    ],
)

# %% [markdown]
"""
None, though C was preempted. One caveat: the rest of the batch changes the last digits of the logits.
If the two smallest times are that close, another token is drawn: in float32 hardly ever, in bfloat16 now and then.

## When something breaks

Three things can break a step, and none is a bug of the engine:

1. User code, such as a callback for each token. Its error ends its own request, and no other.
2. The model, or the copying of blocks: memory runs out, or a kernel refuses its input.
3. Ctrl-C, at any line.

In the second case, your loop gives up everything, even requests that weren't in that step. The obvious repair is a
handler inside the loop, which forgets the running sequences and goes on. Here the fifth pass fails:
"""

# %%
def fails_in_call(number, function):
    """`function`, except that this call of it raises, once its work is done."""
    calls = count(1)

    def call(*args):
        result = function(*args)
        if next(calls) == number:
            raise MemoryError("out of memory")
        return result

    return call


scheduler, compute = new_parts()
compute = fails_in_call(5, compute)
for name in "ACD":
    scheduler.add(sequence_of(name, 12))
while scheduler.has_unfinished():
    scheduler_output = scheduler.schedule()
    try:
        tokens = compute(scheduler_output)
    except MemoryError as error:
        print(f"{error}: {', '.join(each.id for each in scheduler.running)} have ended")
        scheduler.running.clear()
        continue
    scheduler.update(scheduler_output, tokens)

# %% [markdown]
"""
**12.a** Nothing runs any more. How many of the 32 blocks, of 16 tokens each, are lost: not free, and in no sequence
that the scheduler knows? (The prompts of A, C and D have 13, 3 and 21 tokens, all computed in the first pass.)
"""

# %%
predict("12.a", ...)  # blocks

# %%
try:
    # checks that each block is free or in a sequence that the scheduler knows (lesson 10)
    audit(scheduler)
except Exception as error:
    print(f"{type(error).__name__}: {error}")
reveal("12.a", len(scheduler.pool.used), unit="blocks")

# %% [markdown]
"""
A's prompt and four more tokens need two blocks, and the second was allocated for the very step that failed. No sequence
will ever free these blocks. After a few such failures, the engine could admit nothing.

What should a failed step do instead? A real engine has a `core`. It schedules a step, calls a function for the part
that may fail, and later gives the tokens to their requests. That function makes these calls, in this order:

1. `copy_blocks(scheduler_output.block_copies)` copies blocks, also in a step that schedules nothing.
2. `forward(scheduler_output)` is the forward pass, and returns logits.
3. `sample(scheduler_output, logits)` draws a token for each scheduled request, and returns a tensor.
4. `keep_tokens(scheduler_output, tokens)` begins to send them to the host, and returns them as `in_flight`.
5. `count_launched(scheduler_output, in_flight, logits)` counts the computed tokens, and returns the step.

Trying again may fail forever, if one request makes the model fail. And an error doesn't say which request caused it. So
our rule is crude, but always makes progress: if one of the first four calls fails, all scheduled requests end. If none
is scheduled, a copy has failed, so those that are swapped out end. All others are recomputed from their tokens. An
error of `count_launched` is a bug of the engine; it's raised as it is.

**With a pencil first:** fill in the other rows. "Swapped out" and "preempted" mean: in this step.
"""

# %%
OTHERS = dict.fromkeys(("swapped out", "preempted, not swapped", "waiting"), "recomputed")
draw_failed_step({"forward": {"scheduled": "ends", **OTHERS}})

# %% [markdown]
"""
## Build 3: the step, whole or failed

**Exercise 12.3: `run_step(core, scheduler_output)`** is that function.

- Return the step. If nothing is scheduled (`scheduler_output.num_scheduled_tokens` is empty), copy the blocks and
  return None.
- If one of the first four calls raises an `Exception`, end with `raise StepFailed(requests) from error`. The core ends
  these requests with this error, and recomputes all others.
- Anything else goes through: `KeyboardInterrupt` isn't an `Exception`, and an error of `count_launched` is a bug.
- `requests` is a list of those that end. `scheduler_output.preempted` lists what this step preempts; if a request's
  `swapped` isn't empty, it is swapped out.
"""

# %% exercise="12.3"
from typing import Any

from lessons_lib.engine.core import InFlightStep, StepFailed
from lessons_lib.scheduling.scheduler import SchedulerOutput

from lessons_lib.engine.core import run_step

# %%
draw_failed_step(fates(run_step))  # what your step does

# %% [markdown]
"""
### Ctrl-C

`KeyboardInterrupt` may come at any line, such as after a block has left the free queue and before it is in a block
table. No request is to blame, so none should end:

> **recover**: after an interrupt, drop all blocks and put every unfinished sequence back in the queue, with the tokens
> that it has. Everything else can be computed from those.

("Further" interrupts 20 runs of an engine with your step, each at a random line.)

## The engine at work, and in trouble

An engine with your step serves the six stories, and meets three kinds of trouble: a long prompt, a reader that leaves,
and a pass that fails. **Guess first:** which requests does the failed pass end, and what becomes of their blocks?
"""

# %%
class YourCore(EngineCore):
    """A core whose steps are yours."""

    def launch(self, scheduler_output):
        return run_step(self, scheduler_output)


YOURS = Parts(core=YourCore)


def a_long_prompt():
    busy.add_request(" ".join(PROMPTS), SamplingParams(max_tokens=20), request_id="G")
    return "G comes, with a long prompt"


def a_reader_leaves():
    busy.abort("E")
    return "E's reader leaves"


busy = LLMEngine(model, tokenizer,
                 EngineConfig(max_num_seqs=4, max_num_batched_tokens=32, num_blocks=32),
                 parts=YOURS)
busy.runner.forward = fails_in_call(21, busy.runner.forward)
for story, params in zip(STORIES, AS_ASKED):
    busy.add_request(story.prompt, params, request_id=story.name)
watch_engine(busy, trouble={12: a_long_prompt, 40: a_reader_leaves})

# %% [markdown]
"""
The failed pass ends A, B, C and D, and frees their blocks. Change the trouble, or make more. (With knobs for everything: `engine_room()` in START.)
"""

# %% [markdown]
"""
## Your own engine

Whenever a check passes, your answer is kept in the folder `work`. `my_engine` builds an engine of your answers; where
one is missing, it takes the reference's.
"""

# %%
MANY = EngineConfig(max_num_seqs=32, max_num_batched_tokens=256, num_blocks=512,
                    backend=plan_torch)
yours = my_engine(model, tokenizer, MANY)
by_lesson(yours.parts)

# %% [markdown]
"""
If a part of yours has no work in this engine, its row says why. The `backend` is the reference's attention, since
lesson 06's computes one sequence and block after another.

What is it worth? 32 requests are served one at a time, as in lesson 00, and then together, by your engine. **Guess
first:** how many times as fast is your engine?
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
### The ledger

Runs this short can't rank engines by speed: compare tokens, passes and copies. The last row is yours.
"""

# %% tags=["measured"]
ledger(model, tokenizer, "12", with_cache_only=True, since="10", my_engine=my_engine)

# %% [markdown]
"""
The last two rows, `engine` and `yours`, compute only what is needed, copy nothing, and reserve little more cache than
they use.

## What is still wrong

**One bad request takes its neighbors along.** A failed step ends all requests in it. And after some errors on a GPU,
such as an illegal memory access, the process can't use the device any more, whatever it catches.

**One caller.** Callers in two threads wait for each other, between calls nothing runs, and requests can come only from
inside this Python process (lesson 14).

**Python drives the model.** On a GPU that is too slow (lesson 13).

**One machine.** If it fails, all requests are lost (lesson 15).

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

None of this is part of the 75 minutes.
"""

# %% [markdown]
"""
### Stop strings

> **stop string**: a string that ends the answer as soon as it appears. It isn't part of the answer.

A stop *token*, such as the end token, is simple: the sequence ends with it. A stop *string* may span several tokens, or
begin in the middle of one, and the reader must never see the beginning of it. So text is held back, as much as might be
the beginning of a stop string. With the stop string "END", the text "The dog. E" can be shown up to the space. If "ND"
follows, the answer is finished. If "very" follows, it wasn't a stop string, and "Every" can be shown.

**Exercise 12.4: `releasable(text, stop)`** (optional). `text` is the text so far. `stop` is a tuple of stop strings,
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

# %% exercise="12.4"
from lessons_lib.engine.detokenizer import releasable

# %% [markdown]
"""
Here is A's answer, token by token, with two stop strings that both span several tokens. "day, she sang" won't appear;
"a big" will. What does the reader see, and when?
"""

# %%
STOP = ("day, she sang", "a big")
text = shown = ""
for token in answers["A"]:
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

Code that repairs a half-changed state would have to know every line where Ctrl-C can come. The engine has no such code:
its core only makes a note when a change begins, and deletes it once the change is complete. A call that finds a note
recovers first (`EngineCore.rebuild`).

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
    engine, lines, struck, found = LLMEngine(model, tokenizer, SMALL,
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
        found |= {output.request_id: output.token_ids for output in outputs}
    return lines, struck, found


lines, _, uninterrupted = six_tokens()
runs = [six_tokens(interrupt_at=place)
        for place in random.Random(0).sample(range(1, lines), 20)]
places = ", ".join(sorted({struck for _, struck, _ in runs})[:12])
print(f"{lines:,} lines; interrupted in {places}, …")
same = sum(found == uninterrupted for *_, found in runs)
print(f"the same tokens for all six: {same} of {len(runs)} runs")

# %% [markdown]
"""
### The other settings

> **penalty**: a setting that makes tokens less likely if they have already occurred.

> **min_p**: only tokens at least this many times as likely as the likeliest one may be drawn.

> **structured outputs**: answers that are guaranteed to follow a regular expression, a JSON schema or a grammar, unless
> `max_tokens` cuts them off.

> **completion**: one answer to a request, which may ask for several (`n` above 1).

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
- Penalties depend on the tokens so far. Their counts stay where the logits are, so that no step waits for the host:
  `lessons_lib/engine/rules_state.py`.
- With `structured_outputs`, a parser says before each token which ones may come next. It comes from an optional library
  (`pip install llguidance`); see `lessons_lib/engine/guided.py`.
- `n=3` asks for three completions. The first computes the prompt; the others find its full blocks in the prefix cache, and
  draw with the seeds seed + 1 and seed + 2. `logprobs=2` adds each token's log-probability, and the two likeliest.
- A reader who looks at the clock can find out what others have asked: a cached beginning gets its first token sooner.
  Only requests with the same `cache_salt` share blocks.

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
