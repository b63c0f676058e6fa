# %% [markdown]
"""
# 12 · The engine

**The parts are there. What makes of them an engine, into which one can put requests and from which one can read answers?**

90 minutes · difficulty: medium · routes: serving · you need first: lesson 09 (the scheduler) and lesson 10 (memory pressure)

A scheduler, a paged cache and a model answer requests, if somebody drives them. In this lesson they get a driver, and the driver gets what a user
asks for: chance in the choice of tokens, text in place of token numbers, answers that can be read while they grow, and that can be broken off. Then
we measure the engine, tune it, and put it beside others.
"""

# %%
import inspect
import json
import math
from dataclasses import replace
from statistics import median
from time import perf_counter

import torch
from IPython.display import display

from lessons_lib.batching import generate_one_by_one
from lessons_lib.checks import check, hint, predict, progress, quiz, reveal, solution
from lessons_lib.engine import (
    EngineConfig,
    FEW_TOKENS,
    LLMEngine,
    ModelRunner,
    SamplingParams,
    IncrementalDetokenizer,
    fused_runner,
    prometheus_text,
    random_number,
)
from lessons_lib.kv_cache import PrefixCache, audit
from lessons_lib.measuring import (
    DESIGNS,
    MAX_NEW_TOKENS,
    NAMES,
    PROMPTS,
    STORIES,
    Workload,
    hugging_face_continuous,
    ledger,
    median_ms,
    recorded_ways,
    skewed_workload,
    ways_table,
)
from lessons_lib.models import load_model
from lessons_lib.recording import count_operators
from lessons_lib.scheduling import PreemptiveScheduler, Sequence
from lessons_lib.viz.charts import draw_step_parts, draw_token_bars
from lessons_lib.viz.dashboard import Dashboard, draw_dashboard
from lessons_lib.viz.tables import Table

model, tokenizer = load_model(device="cpu")  # in float32: equal means equal to the last token
prompt_ids = {story.name: tokenizer(story.prompt).input_ids for story in STORIES}
END = tokenizer.eos_token_id

# %% [markdown]
"""
## The problem: who turns the crank?

This is what a user of lesson 10 has to write to get three stories:
"""

# %%
pool, runner = PrefixCache(32, 16), ModelRunner(model, 32, 16)
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
It works, for those who know all the parts. But nobody can put in a request while the loop runs, nor read a word before it ends. The tokens are
always the likeliest. And if anything raises an exception, all sequences are lost.

Here is the same with an engine, for all six stories:
"""

# %%
SMALL = EngineConfig(max_num_seqs=4, max_num_batched_tokens=64, num_blocks=32)
AS_ASKED = [SamplingParams(max_tokens=max_tokens) for max_tokens in MAX_NEW_TOKENS]
engine = LLMEngine(model, tokenizer, SMALL)
answers = engine.generate(PROMPTS, AS_ASKED)
for name, output in zip(NAMES, answers):
    print(f"{name}: {len(output.token_ids)} tokens, {output.finish_reason}: …{output.text[:80]!r}")

# %%
alone = generate_one_by_one(model, tokenizer, PROMPTS, max_new_tokens=MAX_NEW_TOKENS).outputs
print("the same tokens as one at a time (lesson 00):", [output.token_ids for output in answers] == alone)

# %% [markdown]
"""
`SamplingParams` is what a user asks for beside the prompt. `EngineConfig` has the sizes of the machine: places, the token budget, blocks.
`generate` waits until all answers are there (with `progress=True` it shows a bar). Further down they are read token by token.

## Predict

The six stories are put into the engine: four places, a budget of 64 tokens, an empty pool that is large enough. A's prompt has 13 tokens, B's 62.
"""

# %%
print({name: len(ids) for name, ids in prompt_ids.items()})
predict("12.a", ...)  # How many new tokens does the first step hand out, over all requests together?

# %% [markdown]
"""
The second one is about chance. After "The old dog" the likeliest next token has a probability of one fifth. The vocabulary has 4,096 tokens.
"""

# %%
predict("12.b", ...)  # How many tokens, the likeliest ones, have a probability of 0.8 together?

# %% [markdown]
"""
## The idea: one step, and everything around it

```
 add_request ──▶ waiting                                                     who may ask: anybody, at any time
                    │
 step:   schedule() ▼
         SchedulerOutput: which sequence, how many tokens, which blocks, which moves          lessons 09, 10
                    │
         moves of blocks (swap, copy before a write)                                   lesson 10
                    │
         one packed row ──▶ forward: logits, one line for each sequence                lessons 05 to 08
                    │
         sample: from each line one token, by the rules of its request                 this lesson
                    │
         update: tokens to their sequences, blocks back ──▶ text, stop strings, metrics
                    │
                    ▼
 on_token / stream / RequestOutput                                                     this lesson
```

> **engine**: the object that owns the model, the cache and the scheduler, and does one step after the other for all requests that are in it.

Read its `step` aloud:
"""

# %%
print(inspect.getsource(LLMEngine.step))

# %% [markdown]
"""
Five parts, each with a lap of the stop watch: schedule, move, forward, sample, and the update in `_finish`. `_rules` collects the settings of the
requests, and `_claim` returns those that have ended. The order is not free. The moves come before the forward pass: it writes into blocks whose old
contents must have been saved by then. And nothing is handed out before the whole pass is done.

At an error there is `_fail`. `schedule` has taken blocks for the sequences of the plan, and the model has failed. Nobody knows what of it lies in
the cache. So all requests of this step end with the error, and their blocks go back. Those who wait have lost nothing.

Now the parts at work. We listen at two of them, and take the first three steps of the six stories.
"""

# %%
def listening_to(noted, name, function):
    """The same function; what it returns is noted."""

    def call(*args):
        noted[name] = function(*args)
        return noted[name]

    return call


engine, noted, told = LLMEngine(model, tokenizer, SMALL), {}, []
engine.scheduler.schedule = listening_to(noted, "plan", engine.scheduler.schedule)
engine.runner.forward = listening_to(noted, "logits", engine.runner.forward)
for story, params in zip(STORIES, AS_ASKED):
    engine.add_request(story.prompt, params, request_id=story.name, on_token=told.append)
handed_out = []
for number in (1, 2, 3):
    told.clear()
    engine.step()
    handed_out.append(len(told))
    print(f"step {number}")
    print("   plan:   ", {s.id: count for s, count in noted["plan"].num_scheduled_tokens.items()}, "tokens; waiting:", *(s.id for s in engine.scheduler.waiting))
    print("   logits: ", list(noted["logits"].shape))
    print("   tokens: ", {token.request_id: tokenizer.decode(token.token) for token in told})

# %%
reveal("12.a", handed_out[0])

# %% [markdown]
"""
A's prompt takes 13 of the 64 tokens, and B gets the other 51. C and D are not even admitted: no budget is left. So A is the only one whose known
tokens are all computed, and the only one to get a token. B has a line of logits too: it predicts a token that already stands in B's prompt. It is
not used.

## Choosing a token

So far we took the likeliest token every time. That makes dull stories, and the second sample of a prompt would be the first one again.

> **sampling**: choosing the next token by chance, each with the probability that the model gives it.

A softmax of the logits gives these probabilities. Three settings change them.

> **temperature**: a number by which all logits are divided before the softmax. Below 1, the likeliest tokens become likelier; above 1, all become
> more alike. A temperature of 0 stands for the likeliest token every time.

> **top-k**: only the k likeliest tokens may be drawn.

> **top-p**: only the likeliest tokens may be drawn that together have the probability p. Also called *nucleus sampling*.

Both cuts are against the long tail: thousands of tokens, none of which fits, but one of which is drawn now and then.

## Build 1: what is drawn from

The rows of a step belong to different requests, each with settings of its own. So temperature, top-k and top-p are tensors with a number for each
row.

**Your task: `token_probabilities(logits, temperature, top_k, top_p)`**, for B rows at once. `logits` is [B, vocabulary], of any type of float;
`temperature` [B] is above 0, `top_k` [B] is 1 or more and may be larger than the vocabulary (where a user says 0, for all tokens,
the engine has put the size of the vocabulary), `top_p` [B] is above 0 and at most 1. In this order:

1. Divide each row by its temperature. `temperature[:, None]` is [B, 1] and stands beside [B, vocabulary].
2. Sort each row, likeliest first. Of two alike, the smaller token number comes first. `values, tokens = x.sort(dim=-1, descending=True,
   stable=True)` does both. `tokens[i, j]` is the token that stands at place *j* of row *i*.
3. top-k: the places from `top_k` on, counted from 0, get the probability 0. The others get a softmax over what is left.
4. top-p, of *these* probabilities: a token gets 0 if those before it have `top_p` or more together. So the token that reaches `top_p` stays, and
   the first one always does. Divide what is left by its sum.

Return (probabilities, tokens), both [B, vocabulary], in the sorted order. Change none of the arguments. Take `logits.double()` at the beginning:
the vocabulary is large, and with many small numbers the rounding of a sum in float32 shows.

`torch.arange(n)` are the places; `x.masked_fill(mask, value)` makes a copy with the value where the mask is True; a softmax gives 0 where a logit is
`float("-inf")`; `x.cumsum(dim=-1)` adds up along the row, each place included; `x.sum(dim=-1, keepdim=True)` is [B, 1].

Example: four tokens 0 to 3 with the probabilities 0.15, 0.5, 0.05, 0.3 at temperature 1. The order is 1, 3, 0, 2. With `top_k` 3, these have 0.526,
0.316, 0.158, 0. With `top_p` 0.6 on top of that: before token 3 there are 0.526, less than 0.6, so it stays. Before token 0 there are 0.842: it
goes. The result is 0.625, 0.375, 0, 0 of the tokens 1, 3, 0, 2.
"""

# %% exercise="12.1"
import torch

from lessons_lib.engine.sampling import token_probabilities

# %% [markdown]
"""
The real logits after "The old dog", five times, in one call with five settings:
"""

# %%
def next_logits(token_ids):
    """The model's logits behind a line of tokens, [1, vocabulary]."""
    with torch.inference_mode():
        return model(input_ids=torch.tensor([token_ids])).logits[:, -1]


VOCABULARY = model.config.vocab_size
SETTINGS = {
    "temperature 0.5": (0.5, VOCABULARY, 1.0),
    "temperature 1": (1.0, VOCABULARY, 1.0),
    "temperature 2": (2.0, VOCABULARY, 1.0),
    "top-k 3": (1.0, 3, 1.0),
    "top-p 0.5": (1.0, VOCABULARY, 0.5),
}
temperature, top_k, top_p = (torch.tensor(column) for column in zip(*SETTINGS.values()))
after_dog = next_logits(prompt_ids["C"])
probabilities, tokens = token_probabilities(after_dog.expand(len(SETTINGS), -1), temperature, top_k, top_p)
names = [tokenizer.decode(token) for token in tokens[0, :10].tolist()]
draw_token_bars(names, dict(zip(SETTINGS, probabilities[:, :10].tolist())), title="The next token after “The old dog”")

# %%
cut, _ = token_probabilities(after_dog, torch.tensor([1.0]), torch.tensor([VOCABULARY]), torch.tensor([0.8]))
reveal("12.b", int((cut > 0).sum()), unit="tokens")
print(f"the other {VOCABULARY - int((cut > 0).sum()):,} tokens share a fifth of the probability")

# %% [markdown]
"""
Temperature keeps every token possible. At 2, "all others" have most of the probability: at nearly every step, something unlikely would be drawn.
The cuts make tokens impossible, and the rest takes what they had.

## Build 2: a draw

Lay the probabilities end to end: they fill the line from 0 to 1. A random number between 0 and 1 falls on one of them. That is the token. Likely
tokens have long pieces of the line, so they are hit often.

**Your task: `draw(probabilities, tokens, numbers)`**, for B rows at once. `probabilities` and `tokens` are those of `token_probabilities`, [B,
vocabulary], likeliest first; `numbers` [B] are floats from 0 up to, but not including, 1. Return an int64 tensor [B]: for each row, the *token* on
whose piece the number falls.

- The first token has the numbers from 0 up to, but not including, its probability. A number that lies on the border of two tokens belongs to the
  later one. `torch.searchsorted(ends, numbers[:, None], right=True)` counts, in each row, the `ends` that are the number or below it: [B, 1].
- By rounding, the sum of a row may stop short of 1, and a number may lie beyond it. Then the *last token with a probability above 0* is drawn:
  never one that was cut, and never a place that the row does not have.
- All chance is in `numbers`. The function draws nothing itself: the same arguments give the same tokens. Change none of them.

`tokens.gather(1, index)` takes, from each row, the places that `index` [B, n] names; it gives [B, n].

Example: probabilities 0.5, 0.25, 0.125, 0.125 of the tokens 7, 3, 9, 1. The number 0.3 gives token 7, 0.5 gives 3, 0.8 gives 9, and 0.95 gives 1.
"""

# %% exercise="12.2"
import torch

from lessons_lib.engine.sampling import draw

# %% [markdown]
"""
### The same seed, the same text

Where do the numbers come from? The usual way is a generator: an object with a state, from which each call takes the next number.

> **seed**: a number from which all random numbers of a request follow. Who gives the same seed again expects the same answer again.

With one generator for the whole engine that fails: who else draws decides which number comes next. With one for each request it has to be kept, put
aside and brought back with the request. There is a way to remember nothing at all. The number is a hash of the seed and of the place in the answer:
"""

# %%
print(inspect.getsource(random_number))
print([round(random_number(7, position), 3) for position in range(6)])
print([round(random_number(8, position), 3) for position in range(6)])

# %% [markdown]
"""
Number 5 of seed 7 can be had without the numbers 0 to 4. Seed and place both go into the hash, with a space between them. `seed + position` would
be a bad idea: then seed 8 would draw the numbers of seed 7, each one place earlier.

That is all. Here is your `token_probabilities` and your `draw` in the plainest loop there is, without cache, batch or engine:
"""

# %%
SETTING = dict(temperature=0.9, top_k=50, top_p=0.95)


def by_hand(token_ids, seed, count):
    """Sample `count` tokens behind `token_ids`."""
    settings = [torch.tensor([SETTING[name]]) for name in ("temperature", "top_k", "top_p")]
    answer = []
    while len(answer) < count:
        number = torch.tensor([random_number(seed, len(answer))], dtype=torch.float64)
        answer.append(int(draw(*token_probabilities(next_logits(token_ids + answer), *settings), number)))
    return answer


expected = by_hand(prompt_ids["C"], seed=7, count=20)
print("The old dog" + tokenizer.decode(expected))

# %% [markdown]
"""
Now the engine, with the same seed: alone; with five others in the batch; in a pool so small that sequences are preempted and computed again; and
with swap; and as the first of three answers to one prompt. The others draw with seeds of their own.
"""

# %%
def in_company(n=1, **sizes):
    """C's answer with seed 7 among five others, and how often somebody was preempted."""
    engine = LLMEngine(model, tokenizer, EngineConfig(max_num_seqs=6, max_num_batched_tokens=64, **sizes))
    asked = engine.add_request("The old dog", SamplingParams(max_tokens=20, seed=7, n=n, **SETTING))
    for number, name in enumerate("ABDEF"):
        engine.add_request(prompt_ids[name], SamplingParams(max_tokens=20, seed=number, **SETTING))
    while asked in engine.requests:
        outputs = engine.step()
    return next(output for output in outputs if output.request_id == asked), engine.metrics.preemptions


def row_of_seed(name, output, preemptions):
    return [name, preemptions, "yes" if output.token_ids == expected else "no"]


by_itself = LLMEngine(model, tokenizer, SMALL).generate(["The old dog"], SamplingParams(max_tokens=20, seed=7, **SETTING))[0]
Table(
    columns=["C with seed 7", "preemptions", "the tokens of the loop"],
    rows=[
        row_of_seed("alone", by_itself, 0),
        row_of_seed("with five others", *in_company(num_blocks=64)),
        row_of_seed("in 12 blocks, recompute", *in_company(num_blocks=12)),
        row_of_seed("in 12 blocks, swap", *in_company(num_blocks=12, num_swap_blocks=24)),
        row_of_seed("the first of three answers", *in_company(n=3, num_blocks=64)),
    ],
)

# %% [markdown]
"""
One caution. The logits of a row depend a little on what else is in the batch: sums are added up in another order, and the last digits differ. A
number that falls within these digits of a border gives another token. In float32 that hardly ever happens. In bfloat16, with its three digits, it
does, for greedy decoding too, where two logits are nearly alike. No engine can promise more unless all its kernels add in one order.

## From tokens to text

A user wants text, as it grows. Decode each token when it comes? Look at this:
"""

# %%
euro = tokenizer("It cost 5 €.").input_ids
print([tokenizer.decode(token) for token in euro])

# %% [markdown]
"""
The tokenizer splits text into bytes where it knows no better, and "€" has three of them. A token may hold a part of a character. Decoded alone it
gives "�". A reader who has been shown that can't be given anything better later. So the text has to wait until the character is whole.

`IncrementalDetokenizer` does this: it decodes the newest tokens behind the last few, and hands on what is new and whole. Its `add` returns what can be shown now.
"""

# %%
print(inspect.getsource(IncrementalDetokenizer.add))
stream = IncrementalDetokenizer(tokenizer)
print([stream.add(token) for token in euro], stream.finish())

# %% [markdown]
"""
### Stop strings

> **stop string**: a text that ends the answer when it comes up in it. It is not part of the answer.

A stop *token*, as the end token, is simple: the sequence ends with it. A stop *string* is not, for three reasons. It may be spread over several
tokens. It may begin in the middle of a token. And the reader must never have seen the beginning of it.

So part of the text is held back: as much as might be the beginning of a stop string. With the stop string "END", the text "The dog. E" can be shown
up to the space. If "ND" follows, the answer is over. If "very" follows, it was no stop string, and "Every" can be shown.

## Build 3: what may be shown

**Your task: `releasable(text, stop)`.** `text` is the text so far; `stop` is a tuple of stop strings, none of them empty; there may be none at all.
Return the pair (length, stopped): `text[:length]` may be shown.

- If a whole stop string stands *anywhere* in the text, the answer ends where the first one begins: return that place, and True. With several, it is
  the one that stands first in the text, whatever their order in `stop`. This holds even if something longer might have begun before it.
- Otherwise: if the text *ends* with the beginning of a stop string, so much is held back. Of several beginnings, the longest. Return how much is
  left, and False.
- Otherwise return the length of the whole text, and False.

`text.index(string)` is the first place of a string in a text (an error if there is none: ask `string in text` before). `text.endswith(beginning)`
says whether the text ends so. `string[:n]` is the beginning of n characters. Upper and lower case differ.

Examples, with `("END", "###")`: `"The dog. E"` gives (9, False); `"The dog. END of"` gives (9, True); `"one### two END"` gives (3, True);
`"The EN dog"` gives (10, False). With `("aab",)`, `"aaa"` gives (1, False).
"""

# %% exercise="12.3"
from lessons_lib.engine.detokenizer import releasable

# %% [markdown]
"""
A's answer, piece by piece, with two stop strings: "day, she sang", which will turn out not to come, and "a big". Both are spread over several
tokens. What does the reader get to see, and when?
"""

# %%
STOP = ("day, she sang", "a big")
text = shown = ""
for token in answers[0].token_ids:
    piece = tokenizer.decode(token)
    text += piece
    length, stopped = releasable(text, STOP)
    print(f"{piece!r:>12} came, shown {text[len(shown):length]!r}")
    shown = text[:length]
    if stopped:
        break
print(f"\nthe answer: {shown!r}")

# %% [markdown]
"""
Even the "d" of "loved" had to wait for the next token: "day, she sang" begins with it. Then "day, she" was held back while three tokens came.
The token of "saw" showed that it is no stop string, and all of it came at once. At the end it was the other one: of " a", only the blank was shown,
and with " big" the answer was over. The engine does the same:
"""

# %%
output = LLMEngine(model, tokenizer, SMALL).generate([PROMPTS[0]], SamplingParams(max_tokens=30, stop=STOP))[0]
print(output.finish_reason, repr(output.text), output.text == shown)

# %% [markdown]
"""
## Reading along

> **streaming**: handing over an answer piece by piece while it grows.

`engine.stream(...)` is a generator: each turn of the `for` loop does as many steps as are needed for one more token. Whoever else is in the engine
is served along. Here the reader has had enough after the second full stop.
"""

# %%
engine = LLMEngine(model, tokenizer, SMALL)
other = engine.add_request(PROMPTS[3], SamplingParams(max_tokens=60), request_id="D")
stops = 0
for token in engine.stream(PROMPTS[4], SamplingParams(max_tokens=80), request_id="E"):
    print(token.text, end="|")
    stops += "." in token.text
    if stops == 2:
        break
of_d = engine.scheduler.running[0].blocks
print(f"\n\nin the engine: {list(engine.requests)}; blocks in use: {len(engine.scheduler.pool.used)}, of D: {len(of_d)}")

# %% [markdown]
"""
When the loop was left, the request was aborted: its blocks are free again, and no further token of it is computed. D has got its tokens all along.
To end a request from elsewhere, there is `abort`:
"""

# %%
aborted = engine.abort("D")
print(f"D: {aborted.finish_reason} after {len(aborted.token_ids)} tokens; blocks in use: {len(engine.scheduler.pool.used)}")
print("aborted once more:", engine.abort("D"))

# %% [markdown]
"""
### Several answers, and how likely they were

`n=3` asks for three answers. The prompt is computed once. Then the sequence is forked (lesson 10): all three hold the blocks of the prompt, and
each draws with a seed of its own: seed, seed + 1, seed + 2. That is why the hash matters.

> **log-probability**: the logarithm of a probability, 0 or below. Those of an answer's tokens add up to that of the whole answer.

> **perplexity**: e to minus the mean log-probability of a text's tokens. If it is 5, the model was on average as uncertain as between 5 equally
> likely tokens.

With `logprobs=2`, the engine hands out the log-probability of each token, and the two likeliest at its place, as the model itself has them: before
temperature and cuts.
"""

# %%
engine, held = LLMEngine(model, tokenizer, SMALL), []
engine.listeners.append(lambda step: held.append(step.used_blocks))
drawn = engine.generate([PROMPTS[1]], SamplingParams(n=3, max_tokens=24, seed=1, logprobs=2, **SETTING))[0]
likeliest = engine.generate([PROMPTS[1]], SamplingParams(max_tokens=24, logprobs=2))[0]


def perplexity(completion):
    return math.exp(-sum(place.logprob for place in completion.logprobs) / len(completion.logprobs))


for completion in [*drawn.completions, likeliest.completions[0]]:
    print(f"perplexity {perplexity(completion):4.1f}: …{completion.text!r}")
first = drawn.completions[0].logprobs[0]
top = ", ".join(f"{tokenizer.decode(token)!r} {math.exp(logprob):.2f}" for token, logprob in first.top)
print(f"\nthe first token drawn: {tokenizer.decode(first.token)!r} {math.exp(first.logprob):.2f}; the likeliest there: {top}")
unshared = 3 * math.ceil((len(prompt_ids["B"]) + 24) / 16)
print(f"B's prompt fills {len(prompt_ids['B']) / 16:.1f} blocks; the three held {max(held)} together at most, and {unshared} if nothing were shared")

# %% [markdown]
"""
The greedy answer is the last one, and the model is least surprised by it.

## What must not be let in

An engine serves strangers. What can't be served is refused at once, with the numbers, and nothing has changed by it. Here is a collection:
"""

# %%
engine = LLMEngine(model, tokenizer, SMALL)
engine.add_request("The old dog", request_id="C")
before = (dict(engine.requests), len(engine.scheduler.waiting), set(engine.scheduler.pool.used))
BAD = (
    ("longer than the pool", lambda: engine.add_request([5] * 600)),
    ("longer than the context", lambda: engine.add_request([5] * 2000)),
    ("empty", lambda: engine.add_request("")),
    ("a token that there is not", lambda: engine.add_request([5, 4096])),
    ("a name that is taken", lambda: engine.add_request("It was raining.", request_id="C")),
    ("temperature", lambda: SamplingParams(temperature=-0.5)),
    ("top-p", lambda: SamplingParams(top_p=0.0)),
    ("top-k", lambda: SamplingParams(top_k=-1)),
    ("max_tokens", lambda: SamplingParams(max_tokens=0)),
    ("n", lambda: SamplingParams(n=0)),
    ("stop", lambda: SamplingParams(stop=("",))),
)
for name, call in BAD:
    try:
        call()
    except Exception as error:
        print(f"{name}:\n    {type(error).__name__}: {error}")
print("\nabort of an unknown id:", engine.abort("nobody"))
print("nothing has changed:", before == (dict(engine.requests), len(engine.scheduler.waiting), set(engine.scheduler.pool.used)))

# %% [markdown]
"""
What the pool could hold alone is let in, even if it is full now: the request waits. What it could not hold even when empty would wait for ever.

## When something breaks

Two things can raise an exception in the middle of a step. One is the code of a user: the callback that is given each token. Here B's reader fails
at the fourth token. The five others must not notice.
"""

# %%
def served_to_the_end(engine):
    """Step until nobody is left; the books are audited after every step (lesson 10)."""
    outputs = {}
    while engine.has_unfinished():
        outputs |= {output.request_id: output for output in engine.step()}
        audit(engine.scheduler)
    return outputs


def told_ends(outputs):
    for name in NAMES:
        output, right = outputs[name], alone[NAMES.index(name)]
        same = "as alone" if output.token_ids == right else "as alone so far" if output.token_ids == right[: len(output.token_ids)] else "different"
        print(f"  {name}: {output.finish_reason:<6} {len(output.token_ids):3} tokens, {same}" + (f"; {output.error!r}" if output.error else ""))


engine, of_b = LLMEngine(model, tokenizer, SMALL), []


def weak_reader(token):
    of_b.append(token)
    if len(of_b) == 4:
        raise ConnectionError("the reader has gone")


for story, params in zip(STORIES, AS_ASKED):
    engine.add_request(story.prompt, params, request_id=story.name, on_token=weak_reader if story.name == "B" else None)
told_ends(served_to_the_end(engine))
print(f"blocks in use: {len(engine.scheduler.pool.used)}")

# %% [markdown]
"""
The other is the model: a device that is lost, memory that runs out. Let the fifth forward pass fail. Four requests are in it, and two wait.
"""

# %%
engine = LLMEngine(model, tokenizer, SMALL)
forward, passes = engine.runner.forward, []


def fails_once(scheduler_output):
    passes.append(len(scheduler_output.num_scheduled_tokens))
    if len(passes) == 5:
        raise RuntimeError("the device is gone")
    return forward(scheduler_output)


engine.runner.forward = fails_once
for story, params in zip(STORIES, AS_ASKED):
    engine.add_request(story.prompt, params, request_id=story.name)
told_ends(served_to_the_end(engine))
print(f"requests in the pass that failed: {passes[4]}; blocks in use: {len(engine.scheduler.pool.used)}")

# %% [markdown]
"""
Faults that real engines had, and what keeps ours from them. Some you know from lesson 10.

| fault | here |
|---|---|
| A prompt that was wholly in the prefix cache left nothing to compute. | `take_cached` leaves the last token to be computed (lesson 10). |
| A preempted sequence that found blocks in the cache had a broken block table. | `drop` empties the table first (lesson 10). |
| A decode read blocks that were free already. | Blocks are freed only in `release`, when nobody computes with them; `audit` compares. |
| Room was looked for at the wrong token of a block boundary. | `make_room` counts the blocks that the tokens of the step need. |
| Greedy decoding was impossible, since a temperature of 0 divides by 0. | `sample` takes the likeliest token where it is 0. |
| A request whose first token was the end token was lost. | It ends as any other: see below. |
| Paged attention, called without its cache, computed without the causal mask. | Our function has no default for `paged`: it raises. |
| A CUDA graph was replayed with a stale key, and the quality fell silently. | The key holds every address: further down. |
"""

# %%
first_token = alone[0][0]
output = LLMEngine(model, tokenizer, SMALL).generate([PROMPTS[0]], SamplingParams(stop_token_ids=(first_token,)))[0]
print(f"ended by its first token: {output.finish_reason}, tokens {output.token_ids}, text {output.text!r}")

# %% [markdown]
"""
## Measure: what an engine knows about itself

While it serves, an engine counts. These are the usual figures; the times are those of lesson 09:

| name | what it is |
|---|---|
| throughput | new tokens a second of busy time |
| queue time, TTFT | from arrival to the first step of the request, and to its first token |
| ITL, TPOT | each gap between two tokens of an answer, and their mean over one answer |
| latency | from arrival to the last token |
| utilisation of slots, tokens, blocks | share of the places, of the token budget, of the pool that is used, on average over the steps |
| preemptions, prefix hits | sequences that lost their place; prefill tokens that were found in the cache |
| finished | requests by the reason for which they ended |

A server runs for weeks, so it can't keep every value. Counts and sums are kept, and for the times a histogram:

> **histogram**: how many values fell between which bounds. Quantiles can be read from it, as exactly as the bounds are close.

`engine.metrics.snapshot()` gives everything as plain data. Here after twelve requests with skewed lengths:
"""

# %% tags=["measured"]
load = skewed_workload(12)
LOAD_PARAMS = [SamplingParams(max_tokens=max_tokens) for max_tokens in load.max_new_tokens]
engine = LLMEngine(model, tokenizer, EngineConfig(max_num_seqs=8, max_num_batched_tokens=64, num_blocks=64))
engine.generate(load.prompts, LOAD_PARAMS)
snapshot = engine.metrics.snapshot()
plain = {name: round(value, 4) if isinstance(value, float) else value for name, value in snapshot.items() if not isinstance(value, dict)}
print(json.dumps(plain, indent=1))
itl = {name: f"{1000 * snapshot['itl'][name]:.0f} ms" for name in ("mean", "p50", "p99")}
print(f"itl: {itl['mean']} on average; p50 at most {itl['p50']}, p99 at most {itl['p99']}")

# %% [markdown]
"""
Who watches many engines reads such figures from all of them every few seconds. The usual program for it is Prometheus. It reads text, a line for
each number. A *counter* only grows, a *gauge* goes up and down, and of a histogram there is a line for each bound: how many values did not exceed
it.
"""

# %% tags=["measured"]
lines = prometheus_text(engine.metrics).splitlines()
print("\n".join(lines[:6]), "\n…")
print("\n".join(line for line in lines if "ttft_seconds_bucket" in line or "ttft_seconds_count" in line))

# %% [markdown]
"""
And here as a picture: the run above, and then an engine that you can drive yourself. "step" does one step, "run" goes on until nobody is left or
you press "pause"; type the beginning of a story and add it while the others run.
"""

# %% tags=["measured"]
draw_dashboard(engine.metrics.snapshot(), list(engine.metrics.recent))

# %% tags=["measured"]
live = LLMEngine(model, tokenizer, EngineConfig(max_num_seqs=4, max_num_batched_tokens=32, num_blocks=32))
for story in STORIES:
    live.add_request(story.prompt, SamplingParams(max_tokens=story.max_new_tokens, temperature=0.8, seed=1), request_id=story.name)
for _ in range(20):
    live.step()
Dashboard(live)

# %% [markdown]
"""
### Where the time of a step goes

Each step was timed in its five parts. What is not the forward pass is the engine's own time: planning, moving blocks, sampling, book-keeping.
"""

# %% tags=["measured"]
display(draw_step_parts(list(engine.metrics.recent)))
parts = engine.metrics.part_seconds
print(", ".join(f"{part} {1000 * seconds / engine.metrics.steps:.2f} ms" for part, seconds in parts.items()), "a step on average")
print(f"the engine's own share: {engine.metrics.own_share:.1%}")

# %% [markdown]
"""
On a CPU the model takes nearly all the time. If yours says otherwise, look at the largest part that is not the model. On a GPU the model is so fast
that the same book-keeping counts: we come to that.

And what does the model do all that time? It multiplies matrices, and around that it starts hundreds of small operations. `fused_runner` makes a runner that computes the same model with
fewer: queries, keys and values are one product with a joined matrix, the gate and up projections of the MLP likewise, and each norm is one operation.

The products themselves can be had in two ways: the tokens times the weights, or the weights times the tokens, and the result turned back. Both
multiply the same numbers. The library that PyTorch calls for it does not take the same time for both:
"""

# %% tags=["measured"]
weights = [weight for name, weight in model.named_parameters() if name.endswith("proj.weight")]


def products(num_tokens):
    """Milliseconds of the products of a pass with every weight matrix of the layers: tokens times weights, weights times tokens."""
    inputs = {width: torch.randn(num_tokens, width) for width in {weight.shape[1] for weight in weights}}
    return median_ms(
        [
            lambda: [inputs[weight.shape[1]] @ weight.T for weight in weights],
            lambda: [(weight @ inputs[weight.shape[1]].T).T.contiguous() for weight in weights],
        ],
        repeat=20,
    )


rows = [[num_tokens, *(f"{ms:.2f}" for ms in products(num_tokens))] for num_tokens in (1, 2, 4, 8, 16, 32, 64)]
print(f"fused_model.product takes the second way up to {FEW_TOKENS} tokens.")
Table(columns=["tokens", "tokens × weights, ms", "weights × tokens, ms"], rows=rows)

# %% [markdown]
"""
Where the second way stops paying depends on the machine, and on how many threads it computes with; `product` changes over where it stopped paying with two. Now
fewer operations and turned products together, in a step of four stories:
"""

# %% tags=["measured"]
def decodes(make_runner=None):
    """Operators of one decode of four stories, milliseconds of a forward pass (median of 20), and the tokens."""
    engine, tokens = LLMEngine(model, tokenizer, replace(SMALL, make_runner=make_runner)), []
    for story in STORIES[:4]:
        engine.add_request(story.prompt, SamplingParams(max_tokens=60, ignore_eos=True), on_token=lambda token: tokens.append(token.token))
    for _ in range(4):
        engine.step()
    with count_operators() as operators:
        engine.step()
    for _ in range(20):
        engine.step()
    return operators.count, 1000 * median(step.seconds["forward"] for step in list(engine.metrics.recent)[-20:]), tokens


(plain, plain_ms, tokens), (fused, fused_ms, fused_tokens) = decodes(), decodes(fused_runner)
print(f"Hugging Face's forward pass: {plain} operators, {plain_ms:.1f} ms; fused: {fused} operators, {fused_ms:.1f} ms")
print("the same tokens:", tokens == fused_tokens)

# %% [markdown]
"""
The model is the same; fewer operators had to be started, and the products were turned. vLLM's own model files do likewise: `QKVParallelLinear` and
`MergedColumnParallelLinear` in `vllm/model_executor/layers/linear.py`.

### The token budget against the gaps

A large budget brings prompts in fast. A small one keeps steps short, and so the gaps between the tokens of those who read. One reader is in the
middle of an answer when three prompts of 300 tokens arrive:
"""

# %% tags=["measured"]
def with_newcomers(budget):
    """Seconds of each step after three long prompts came in, until their first tokens are there."""
    engine = LLMEngine(model, tokenizer, EngineConfig(max_num_seqs=4, max_num_batched_tokens=budget, num_blocks=128, share_prefixes=False))
    engine.add_request("The old dog", SamplingParams(max_tokens=150, ignore_eos=True))
    for _ in range(5):
        engine.step()
    first_tokens = set()
    for number in range(3):
        long_prompt = (prompt_ids["B"] * 5)[number : 300 + number]
        engine.add_request(long_prompt, SamplingParams(max_tokens=20), on_token=lambda token: first_tokens.add(token.request_id))
    steps = len(engine.metrics.recent)
    while len(first_tokens) < 3:
        engine.step()
    return [step.total_seconds for step in list(engine.metrics.recent)[steps:]]


rows = []
for budget in (32, 128, 1024):
    seconds = with_newcomers(budget)
    rows.append([str(budget), len(seconds), 1000 * max(seconds), 1000 * sum(seconds)])
Table(
    columns=["token budget", "steps", "longest gap of the reader, ms", "until all three have a first token, ms"],
    rows=rows,
    caption="Three prompts of 300 tokens arrive beside one reader",
)

# %% [markdown]
"""
Both columns have a price, so the budget is a decision: how long a gap may be, and how long a newcomer may wait. It is made with a measurement like
this one, for the model and machine at hand.
"""

# %% [markdown]
"""
## The designs side by side

Everything that this course has built, on one workload: the six stories, one of which wants a long answer, at most four at a time. All give the same
tokens. "Loop over sequences" is a design that one meets under the name of continuous batching: a scheduler that batches, and a model that is called
for each sequence in turn. Beside ours is Hugging Face's own continuous batching, its start left out.
"""

# %% tags=["measured"]
load = Workload(PROMPTS, (24, 8, 48, 8, 8, 8))
results = {}
for name, design in DESIGNS.items():
    started = perf_counter()
    answered = design(model, tokenizer, load, 4)
    results[name] = perf_counter() - started, answered
results["Hugging Face continuous batching"] = hugging_face_continuous(model, tokenizer, load, 4)
base, right = results["one at a time"]
count = sum(map(len, right))
Table(
    columns=["design", "tokens/s", "times one at a time", "the same tokens"],
    rows=[[name, f"{count / took:,.0f}", f"{base / took:.1f}", "yes" if answered == right else "no"] for name, (took, answered) in results.items()],
    caption=f"{len(load.prompts)} requests, {count} new tokens; one run",
)

# %% [markdown]
"""
Look at the loop: its scheduler is as good as any, and it gains little or nothing, since the model computes one sequence at a time. Static waves pay
for padding and the barrier. With a small model, short contexts and a CPU, most others are near each other, and a run as short as this one says
little about who is ahead; on a busy machine any two may change places. What sets them apart is memory and long contexts (lesson 06), and the load
that they can bear (lessons 09 and 10). `make bench` measures with 64 requests; this is what it found:
"""

# %%
print(recorded_ways().provenance)
ways_table(recorded_ways().results)

# %% [markdown]
"""
"sdpa" and "paged|eager" are the two kinds of attention of Hugging Face's continuous batching that need no GPU. With 64 requests more can be told
apart. With 64 places nobody waits, and all ways gain by that but the loop and the dense slots. The engine is no slower than the paged row, though it
plans every step, looks for shared beginnings and could preempt. With the fused model it is the fastest of all.


### The ledger
"""

# %% tags=["measured"]
ledger(model, tokenizer, "12", with_cache_only=True)

# %% [markdown]
"""
The last row computes no token in vain, copies nothing, and keeps little more cache than it uses. On six short stories the slots of lesson 02 are
about as fast. What the engine has gained is memory, and with it places for more requests.

## What production does

- **vLLM**: `EngineCore.step` in `vllm/v1/engine/core.py` is our `step`: `schedule`, `execute_model`, `sample_tokens`, `update_from_output`.
  `LLMEngine` in `vllm/v1/engine/llm_engine.py` is the side of the user. The two run in processes of their own, so that turning tokens into text
  does not hold up the GPU. Next to `step` there is `step_with_batch_queue`, in which the next batch is planned before the last one is done.
- `vllm/v1/sample/sampler.py` says at its top in which order everything is applied: first what can change the likeliest token, then temperature,
  then top-k and top-p. Its log-probabilities are by default those before all that, as ours. A request with a seed has a `torch.Generator` of its
  own, which is the way with a state. On a CPU, version 0.26 ignored the seed when another request of the batch had none (issue 51226).
- `vllm/v1/engine/detokenizer.py` holds back a fixed number of characters, the longest stop string less one, whatever they are. That is simpler than
  `releasable`, and shows everything a little later.
- n answers are n requests there (`vllm/v1/engine/parallel_sampling.py`), with the seeds seed, seed + 1, …, that find the prompt in the prefix
  cache.
- Metrics: `vllm/v1/metrics/loggers.py` has our histograms for Prometheus: `vllm:time_to_first_token_seconds` and its like.
- **nano-vllm** knows a temperature and nothing else. It refuses a temperature of 0 with "greedy sampling is not permitted": one of the faults above.
- **Hugging Face transformers**: `ContinuousBatchingManager` in `generation/continuous_batching/continuous_api.py` has `add_request`, `get_result`
  and a thread that does the steps. `generate_batch` is our `generate`.

## What is still wrong

**One process, one caller.** `stream` does the steps itself: two callers in two threads would step on each other's feet, and between two calls
nothing moves.

**No network.** Nobody outside this Python process can ask for anything.

**One machine.** If it fails, all requests are gone.

**A slow driver.** On a GPU the model is faster than the Python around it. Lesson 13 comes to that.

## Quiz
"""

# %%
quiz("12")

# %% [markdown]
"""
## References

- A. Holtzman et al.: *The Curious Case of Neural Text Degeneration*, ICLR 2020; top-p. <https://arxiv.org/abs/1904.09751>
- W. Kwon et al.: *Efficient Memory Management for Large Language Model Serving with PagedAttention*, SOSP 2023. <https://arxiv.org/abs/2309.06180>
- vLLM: architecture, <https://docs.vllm.ai/en/latest/design/arch_overview.html>; metrics, <https://docs.vllm.ai/en/latest/design/metrics.html>; the
  seed on a CPU, <https://github.com/vllm-project/vllm/issues/51226>
- nano-vllm. <https://github.com/GeeeekExplorer/nano-vllm>
- Hugging Face transformers: continuous batching. <https://huggingface.co/docs/transformers/main/en/continuous_batching>
- Prometheus: metric types, <https://prometheus.io/docs/concepts/metric_types/>
"""
