# %% [markdown]
"""
# 17 · Capstone: an engine of your own

![An engine that serves one at a time above, one that batches below](../lessons_lib/assets/openings/17.svg)

**You have built parts of an engine, each inside a frame that was given. Can you write an engine of your own, and how do
you know that it's right?**

90 minutes · difficulty: hard · routes: ideas, serving · prerequisites: lessons 00 to 02 and 05 · then, in "Further", a
project of about 60 minutes (for its larger sizes also 09 to 12 and 14)

In this lesson you start from a file with empty methods. You get a contract and a *conformance suite*: a program that
judges any engine by what it does.

First you write an engine that serves one request at a time, and race it. Then you write the loop that batches, and a
test that catches wrong engines. At the end you see what your own engine still gets wrong.
"""

# %% folded=true
import inspect
from dataclasses import replace

from lessons_lib.checks import check, hint, points, predict, progress, quiz, reset, reveal
from lessons_lib.checks import solution
from lessons_lib.conformance.break_in.grading import error_of
from lessons_lib.conformance.capstone import engine_of, start_capstone
from lessons_lib.conformance.contract import Limits, NewTokens, Params
from lessons_lib.conformance.examples.batching_engine import BatchingEngine
from lessons_lib.conformance.examples.slow_engine import SlowEngine
from lessons_lib.conformance.examples.slow_engine import make_engine as make_slow_engine
from lessons_lib.conformance.items import Level
from lessons_lib.conformance.level_table import judge_package
from lessons_lib.conformance.levels import LEVELS
from lessons_lib.conformance.oracle import a_model
from lessons_lib.conformance.production_map import parts_in
from lessons_lib.conformance.report import SIGNS, judge
from lessons_lib.conformance.scoreboard import race, steps_of
from lessons_lib.conformance.texts import byte_tokenizer
from lessons_lib.measuring import STORIES
from lessons_lib.models import load_model
from lessons_lib.viz.tables import Table
from lessons_lib.viz.timelines import draw_compare

# %% [markdown]
"""
## The problem: when is an engine right?

A wrong engine rarely crashes. It gives one token too many after an abort, loses a request when two end in the same
step, or answers correctly as long as memory suffices. So before you write an engine, write down what it must guarantee.

> **contract**: what every caller may rely on, however it's done inside. Here it's five methods.

| method | what callers rely on |
| --- | --- |
| `add_request(request_id, prompt_ids, params)` | It notes the request and computes nothing. A prompt that leaves no room for an answer gets a ValueError. |
| `step()` | It makes one pass of the model at most. It returns the new tokens of each request that got some, or []. |
| `has_unfinished()` | Whether a request is waiting or running. |
| `abort(request_id)` | The request ends now: no token follows, and all it held is free. |
| `stream(...)` | A generator of tokens, only for the project in "Further". |

A step returns `NewTokens(request_id, token_ids, finish_reason)`. The reason is None while the answer goes on. It is
"stop" after the end token or a stop token of the request, and "length" after `max_tokens` or when the context is full.
If both hold after the same token, it's "stop". The token that ends an answer is part of it. These are the limits of an
engine and the parameters of a request:
"""

# %%
for part in (Limits, Params, NewTokens):
    print(inspect.getsource(part))

# %% [markdown]
"""
> **conformance suite**: tests of the contract alone. They see an engine's methods and its calls of the model, nothing
> else, so they can judge any engine.

The tests, called *items*, come in levels. The right answer to a greedy request is what Hugging Face `generate` returns
for its prompt alone, whatever else is running. An engine reaches a level if no item up to it is broken and at least
half of the level's items could be tried.
"""

# %%
Table(
    columns=["level", "what it judges", "items"],
    rows=[[level.name, level.title, len(level.items)] for level in LEVELS],
)

# %% [markdown]
"""
## Begin: an empty file

This cell makes a folder `my_serving` next to the notebook. Its file `engine.py` has the contract's methods, still
empty. Their docstrings are the contract in full.
"""

# %%
print(start_capstone("small"))

# %% [markdown]
"""
## Build: the first level

The easiest engine to get right serves one request at a time, without a cache: each step computes a whole sequence
again. The only model call you need is `model(input_ids=torch.tensor([tokens])).logits[0, -1]`, for GPT-2, Llama and
Qwen2 alike. Ignore `max_num_seqs` and `max_num_batched_tokens` for now. The work is in how an answer ends: the end
token, stop tokens, `max_tokens`, the full context. The suite varies the limits, so read them from `self.limits`.

Write `add_request`, `step` and `has_unfinished` in `engine.py`, and run the next cell after every change. It reloads
your file, tries the level's items, and explains the first that are broken.
"""

# %%
judge_package("answers")

# %% [markdown]
"""
**Exercise 17.1: `make_engine(model, limits, tokenizer)`.** Return the engine of your file, in one line:
`return engine_of("my_serving")(model, limits, tokenizer)`. The check tries the items of `answers` up to the first that
is broken. After a ✗, fix the file, then run the cell and its check again.

(To debug, put a `breakpoint()` into your file and run the suite in a terminal:
`python -m lessons_lib.conformance my_serving.engine --only answers.end_token`.)
"""

# %% exercise="17.1"
from typing import Any

from lessons_lib.conformance.examples.slow_engine import make_engine

# %% [markdown]
"""
The cells below use your engine if it has passed, and otherwise `lessons_lib/conformance/examples/slow_engine.py`.

### It tells stories

The suite's models have random weights. Now give your engine the model of the other lessons. Three stories are added at
once, and each gets 24 tokens.
"""

# %%
story_model, story_tokenizer = load_model(device="cpu")


def tell(make_engine):
    limits = Limits(max_model_len=256, eos_token_id=story_tokenizer.eos_token_id)
    engine, texts, steps = make_engine(story_model, limits, story_tokenizer), {}, []
    for story in (STORIES[0], STORIES[2], STORIES[4]):
        texts[story.name] = story.prompt
        engine.add_request(story.name, story_tokenizer(story.prompt).input_ids,
                           Params(max_tokens=24, ignore_eos=True))
    while engine.has_unfinished():
        events = engine.step()
        for event in events:
            texts[event.request_id] += story_tokenizer.decode(event.token_ids)
        steps.append("".join(event.request_id for event in events))
    print(f"{len(steps)} steps, and the requests that get a token in each:", " ".join(steps))
    for name, text in texts.items():
        print(f"{name}: {text}")


tell(make_engine)

# %% [markdown]
"""
That is an engine, and all of it is your code. If yours serves in order of arrival, E's reader waits for two whole
stories first.

## Measure: the scoreboard

Your engine is right. How fast is it? It races the course's, in turns, on sixteen requests that arrive while others run.
Times compare only within one table.

- *p99*: the time that 99 of 100 requests don't exceed. Of 16 requests, it's almost the longest.
- *Tokens computed*: with a cache, each token once, except the last of each answer. Without one, a prompt of *p* tokens
  and an answer of *a* cost *p* + (*p* + 1) + … = *a p* + *a* (*a* − 1) / 2.
- *Memory at peak*: for your engine, slots. Once it has a cache, each may grow to a whole context of 64 tokens. The
  course's takes blocks of 4 tokens, as it needs them (lesson 03).
- *Lines of code*: including those that the engine imports from the course. The course's engine also samples, makes
  text and keeps metrics (lesson 12), shares prefixes (11) and preempts (10).
"""

# %% tags=["measured"]
mine = race(make_engine, "make_engine", seed=0)
mine.table()

# %% [markdown]
"""
Two rows show what the course's engine does and yours doesn't: it computes a fourteenth of the tokens, thanks to a
cache, in a third of the steps, thanks to batch slots. Your next engine has both.

## Predict: what do slots save?

An engine has three batch slots. Six requests arrive at once: five want 2 tokens each, and the last wants 12. Their
prompts are short, and a request gets its first token in its first step.

**17.a** How many steps does it take with continuous batching?

**17.b** And with static batching, in waves of three?
"""

# %%
predict("17.a", ...)  # steps
predict("17.b", ...)  # steps

# %% [markdown]
"""
## Build: the loop that batches

A step of the new engine goes like this:

1. **Admit.** While a slot is free (`max_num_seqs`), the request that has waited longest takes it.
2. **Choose**, oldest first. Each running request computes its uncomputed tokens (at first its prompt, later its newest
   token), as many as still fit into `max_num_batched_tokens`. So a long prompt may take several steps.
3. **Compute.** One pass over one packed row.
4. **Append.** A request whose tokens are all computed gets a token. One that ends frees its slot.

The row is lesson 05's, and you may import it from `lessons_lib.attention.packing`:

    packed = pack(new_tokens, cached_lens)   # a list of tokens, and a cached length, for each request
    joined = concatenate_caches(caches)      # first cache: DynamicCache(), from transformers
    logits = packed_forward(model, packed, joined)  # row i: after the last of new_tokens[i]
    caches = scatter_cache(joined, packed)   # each request's cache, with its new tokens

**Exercise 17.2: `make_batching_engine(model, limits, tokenizer)`.** First copy `my_serving` to `my_first`, and name
that in 17.1, to keep the old engine. Then change `my_serving/engine.py`, and return its engine as in 17.1. What ends an
answer stays as it is. The check tries the items of `answers` and `batches`: no answer changes, slots and budget hold
and are used, requests start in order of arrival and share passes, and no token is computed twice.
`judge_package("batches")` tells you where you are.
"""

# %% exercise="17.2"
from lessons_lib.conformance.examples.batching_engine import make_batching_engine

# %%
def in_waves(lengths):
    return sum(steps_of(make_batching_engine, wave, max_num_seqs=3)
               for wave in (lengths[:3], lengths[3:]))


wanted = [2, 2, 2, 2, 2, 12]
reveal("17.a", steps_of(make_batching_engine, wanted, max_num_seqs=3), unit="steps")
reveal("17.b", in_waves(wanted), unit="steps")
turned = wanted[::-1]
print(f"long one first: {steps_of(make_batching_engine, turned, max_num_seqs=3)} steps, "
      f"in waves {in_waves(turned)}")
tell(make_batching_engine)

# %% [markdown]
"""
Continuous batching saves nothing over waves here: the long request starts in the third step either way. With the long
one first, its 12 tokens take 12 steps, and all others fit into the two slots next to it. Only the waves still take 14.
So the order of arrival decides what a scheduler can gain.

The stories are the same, and each reader gets a token in every step.

## Measure: the cache, then the slots

With one slot, your new engine is the old one with a cache. It computes a fourteenth of the tokens in the same
number of steps.

**17.c** By what factor does the cache alone raise the tokens per second? Within 30 % is a hit. And which
helps more on this workload, the cache or the slots? The next two tables tell.
"""

# %%
predict("17.c", ...)  # times

# %% tags=["measured"]
def make_one_slot(model, limits, tokenizer):
    return make_batching_engine(model, replace(limits, max_num_seqs=1), tokenizer)


cached = race(make_one_slot, "a cache, one slot",
              against=("slow_engine.py", make_slow_engine), seed=0)
with_cache, without = (each["tokens_per_second"] for each in cached.figures().values())
reveal("17.c", with_cache / without, "times", tolerance=0.3)
cached.table()

# %% [markdown]
"""
A fourteenth of the tokens, and yet it's hardly faster, or even slower. This model is tiny, so most of a step is fixed
overhead (lesson 00). Both engines pay it 236 times, and the new one also joins and splits caches.

On a large model with long texts, the cache matters most: with 8 billion parameters and 8,192 tokens, lesson 00 computes
at least 124 ms a token without one, and about 4.8 with one. So measure with the model and the requests that you serve.
"""

# %% tags=["measured"]
slots = race(make_batching_engine, "four slots", against=("one slot", make_one_slot), seed=0)
slots.table()

# %%
draw_compare(*slots.timelines()[::-1], names=("one slot", "four slots"))

# %% [markdown]
"""
The same tokens in a third of the steps, and most of the waiting is gone. Here, slots help more than the cache did: one
step over four requests takes far less time than four steps over one. The price is memory: each of the four may fill a
whole context.

## Build: one test

Now you write a test of your own. The contract says of `abort`: *no token follows*.

**Exercise 17.3: `test_an_abort(make_engine)`.** It raises (an `assert` is enough) if an engine gives tokens to a
request after its abort, whether it was running or still waiting. `make_engine(max_num_seqs=2)` makes an engine with
these `Limits` and a small model with the tokens 0 to 96; make as many as you like. To add a request:
`engine.add_request("a", [5, 7], Params(max_tokens=6, ignore_eos=True))`. Every engine that keeps the contract must
pass, for example one whose next `step` returns a `NewTokens` with "abort" and no tokens. The check tries your test on
five right engines and on several wrong ones.
"""

# %% exercise="17.3"
from collections.abc import Callable

from lessons_lib.conformance.contract import Params

from lessons_lib.conformance.break_in.one_test import test_an_abort

# %% [markdown]
"""
Does your own engine pass it, too? If its `abort` isn't written yet, write it now: the next cell reloads your file.
"""

# %%
def of_my_engine(**limits):
    return make_batching_engine(a_model("qwen2"), Limits(**limits), byte_tokenizer())


error = error_of(test_an_abort, of_my_engine)
print("your engine:", "passes" if error is None else f"fails: {error}")

# %% [markdown]
"""
## Predict: what does your engine get wrong?

The level after `batches` is `manners`. You have built nothing for it but `abort`. Here are eight of its items:
"""

# %%
NAMES = ("empty_prompt", "unknown_token", "id_in_use", "id_of_the_aborted", "lists_are_copied",
         "abort_frees_the_slot", "a_pass_fails", "waiting_survive_a_fault")
items = {item.name: item for level in LEVELS for item in level.items}
eight = [items[f"manners.{name}"] for name in NAMES]
Table(
    columns=["", "item", "what must hold"],
    rows=[[letter, item.name, item.sentence.replace("`", "")]
          for letter, item in zip("ABCDEFGH", eight)],
)

# %% [markdown]
"""
(In G, one pass of the model raises, once before its layers and once after them, and the suite goes on calling `step`.)

Which of the eight does your engine break? Write their letters into `BROKEN_ONES`, then run the cell.
"""

# %%
BROKEN_ONES = None  # such as "AH"

report = judge(make_batching_engine, [Level("eight", "", eight)])
rows = []
for letter, verdict in zip("ABCDEFGH", report.verdicts["eight"]):
    guess = "–" if BROKEN_ONES is None else "✗" if letter in BROKEN_ONES else "✓"
    rows.append([letter, verdict.item.name, guess, SIGNS[verdict.status], verdict.reason])
Table(columns=["", "item", "your guess", "it is", "why"], rows=rows)

# %% [markdown]
"""
E holds if you copy lists, D and F if an abort removes everything that you keep of the request.

G is harder than it looks. If a pass fails after its layers and is tried again with the same cache, the cache has its
keys twice, and the answer is wrong. Here the pass writes into `joined`, a copy, and requests change only once it has
returned. So H holds, too.

A to C are the dangerous ones. An empty prompt or an unknown token may make every later step raise, or hold its slot
forever. Two requests with one id mix their tokens. **Fix these now**, unless your engine refuses them already: a few
lines at the beginning of `add_request` in `engine.py`, before anything is appended. Then run the cell again: if 17.2
has passed, it reloads your file, and the rows turn to ✓. (`lessons_lib/conformance/examples/small_engine.py` has these
lines.)

## What is still wrong

**A suite finds what it looks for.** Earlier versions of this one accepted an engine with the flaw in G, one with a
hard-coded end token 12, and one that computes the shortest prompt first. Readers of this lesson found them.

**Your engine copies every cache in every step**, and each may grow to a whole context. The medium size replaces this
with a pool of blocks (03, 06), a scheduler (09) and preemption (10).

**It runs on one CPU.** Lesson 13 says what changes on a GPU.

## Where to go next

Most of what this course builds exists in production engines, often under a similar name. Open a file next to your own
code, and ask what it has to handle that yours doesn't. Begin with `_prepare_inputs` in vLLM's
`vllm/v1/worker/gpu_model_runner.py`: it's lesson 05's `pack`. In this map of vLLM, "here" is the name in `lessons_lib`,
and "there" the one in vLLM. "Further" has more maps, and ten kinds of first issues.
"""

# %%
parts_in("vLLM")

# %% [markdown]
"""
## Quiz
"""

# %%
quiz("17")

# %% [markdown]
"""
## References

- G. Yu et al.: *Orca: A Distributed Serving System for Transformer-Based Generative Models*, OSDI 2022.
  <https://www.usenix.org/conference/osdi22/presentation/yu>
- W. Kwon et al.: *Efficient Memory Management for Large Language Model Serving with PagedAttention*, SOSP 2023.
  <https://arxiv.org/abs/2309.06180>
- nano-vllm, an engine in about 1,200 lines. <https://github.com/GeeeekExplorer/nano-vllm>
"""

# %% [markdown] folded=true
"""
## Further (optional)

None of this is part of the lesson's 90 minutes. The project comes first. The break-in after it takes an hour, and gives
points for parts of it.
"""

# %% [markdown]
"""
### Project: the small engine (about 60 minutes)

Your engine has the levels `answers` and `batches`. `manners` makes it a small one: check before you append; abort in
every state; the reader of a stream may leave, even before its first `next`; the model may raise. First read what the
contract says of `stream`:
"""

# %%
from lessons_lib.conformance import contract

print(inspect.getsource(contract.Engine.stream))
judge_package("small")

# %% [markdown]
"""
**Exercise 17.4: `make_engine(model, limits, tokenizer)`** once more. The check tries every item of the small size, up
to the first that is broken. The cell after it has the levels and the race of the new engine.
"""

# %% exercise="17.4"
from lessons_lib.conformance.examples.small_engine import SmallEngine
from lessons_lib.conformance.examples.small_engine import make_engine

# %% tags=["measured"]
from IPython.display import display

from lessons_lib.conformance.level_table import judge_size

display(judge_size(make_engine, "small", name="make_engine"))
race(make_engine, "make_engine", seed=0).table()

# %% [markdown]
"""
The new engine may even beat the course's. Both call the same model on as many tokens, but the course's runs more Python
for each request, and on a tiny model that shows.

### Break in (60 minutes)

Here are twelve engines with one mistake each, called *mutants*. They lose a block, end a stream twice, or share a
prefix that isn't one. You don't get to see them.

> **mutation testing**: judging tests by trying them on programs with a mistake. A test *kills* a mutant by failing on
> it. A mutant that passes all tests *survives*, and shows what they don't look at.

A test is a function that takes `make_engine` and raises if the engine is wrong. The right engine must pass it. The cell
prints what a test may call, besides the methods of the contract and `engine.num_free_blocks()`, the number of blocks
that no request holds. Then it tries a first test: one request alone. How many mutants does that kill? The last column
is all that you get: what can be seen from outside.
"""

# %%
from lessons_lib.conformance.break_in.engine import ChatEngine, right_engine
from lessons_lib.conformance.break_in.grading import break_in
from lessons_lib.engine.sampling_params import SamplingParams

for each in (right_engine, ChatEngine.events, ChatEngine.text_of):
    print(f"{each.__qualname__}: {inspect.getdoc(each)}", end="\n\n")


def test_one_request(make_engine):
    engine = make_engine()
    three = SamplingParams(max_tokens=3, temperature=0, ignore_eos=True)
    engine.add_request("a", [5, 7], three)
    tokens = []
    while engine.has_unfinished():
        tokens += [token for event in engine.step() for token in event.token_ids]
    assert len(tokens) == 3


break_in([test_one_request]).table()

# %% [markdown]
"""
**Exercise 17.5: `break_in_tests()`.** Return a list of tests that kills all twelve. Any error that the
right engine doesn't raise counts as a failed assertion. An engine takes 600 steps at most, so that a loop ends. Each
mutant is worth a point. `break_in(break_in_tests()).table()` shows where you are.
"""

# %% exercise="17.5"
import json

from lessons_lib.conformance.break_in.examples import break_in_tests

# %% [markdown]
"""
### The medium and the large size

Rename `my_serving` to keep the small one, and call `start_capstone("medium")`, which says what it has and may import.
Begin with `LLMEngine` behind the contract (`lessons_lib/conformance/adapters/course.py` shows how), so that all levels
hold from the first minute, and replace one part at a time by your own. With the parts of lessons 05 and 06, the cache
and a pass over it are three calls:

    cache = PagedKVCache(model.config, num_blocks, block_size)  # once
    batch = pack(new_tokens, cached_lens).with_tables(slot_mapping, block_tables)
    logits = paged_forward(model, batch, cache)

`slot_mapping` is a tensor with the cache slot of each new token in the row, and `block_tables` one with a row of blocks
for each sequence, filled up with any number. Row *i* of the logits has those after the last token of `new_tokens[i]`.
`PagedKVCache` is in `lessons_lib.kv_cache`, and the others are in `lessons_lib.attention`.

For the large size, sampling and text are judged once your class says `also = ("sampling", "text", "prefixes")`; a class
with a `url` is judged as a server.

### Judge another engine

`examples/engines` has adapters for Hugging Face's continuous batching and for HTTP servers. In the course's folder,
`python -m lessons_lib.conformance examples.engines.hugging_face --size small` says what holds there, and what isn't
offered.

### Ten first issues

This course prepares you for contributions of these kinds. Read how the project wants to be contacted, ask whether
someone is working on it, and begin with the smallest case that fails.

1. **A missing refusal**: a request with impossible parameters fails deep inside a step, and takes others with it (12).
2. **A leak after a disconnect or an abort**: blocks or slots stay taken. Leave in every state (10, 14).
3. **A wrong metric**, such as a time to first token that counts from the wrong moment (12).
4. **Text that comes out wrong in a stream**: half a character, a stop string that shows (12).
5. **A missing test**: greedy answers equal to `generate` for one more architecture, or a full context (06, 10).
6. **An edge of the prefix cache**: a prompt that is cached as a whole, a block that is freed twice (11).
7. **A default that fits badly**: block or batch sizes for a small GPU, with measurements before and after (08, 13).
8. **An API field that isn't what OpenAI's API says**: a `finish_reason`, the usage, an error's status (14).
9. **A scheduler's corner**: a request that starves. First a simulation that shows it (09).
10. **A document that isn't true any more.** You have just read the code: write down what it does now.

### The parts in three more engines

Versions are in the captions. A file may have moved in a later one; then search for the name.
"""

# %%
for engine in ("SGLang", "TensorRT-LLM", "transformers"):
    display(parts_in(engine))
