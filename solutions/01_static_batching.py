# %% [markdown]
"""
# 01 · Static batching

![Four answers in one wave: the short ones wait for the longest](../lessons_lib/assets/openings/01.svg)

**How can several requests share one forward pass, and what does it cost to start and finish them together?**

85 minutes · difficulty: easy · routes: *ideas* (00–06, 17), *serving* (00–03, 05, 06, 09–12, 14–17) · prerequisites:
lesson 00 (prefill, decode step, KV cache)

You'll put requests of unequal length into one rectangle, decide which of them go together, and write the loop that
continues all of them at once. It serves eight requests several times as fast as one after the other, until one long
answer spoils it.

Cells that say `raise NotImplementedError()` are yours to fill in. If you skip an exercise, the cell after it returns a
working version.
"""

# %% folded=true
from itertools import permutations
from statistics import mean, median
from time import perf_counter

import torch
from transformers import DynamicCache

from lessons_lib.batching import generate_one_by_one, positions_from_mask, static_generate
from lessons_lib.batching import waves
from lessons_lib.checks import check, hint, predict, progress, quiz, reset, reveal, solution
from lessons_lib.measuring import MAX_NEW_TOKENS, NAMES, PROMPTS, STORIES, ledger
from lessons_lib.measuring import request_times
from lessons_lib.models import load_model
from lessons_lib.recording import record_run, watch_forwards
from lessons_lib.viz.tables import Table

# %%
# float32, so that results agree down to the last token
model, tokenizer = load_model(device="cpu")
SIX = dict(prompts=PROMPTS, max_new_tokens=MAX_NEW_TOKENS, names=NAMES)
prompt_ids = [tokenizer(prompt).input_ids for prompt in PROMPTS]

# %% [markdown]
"""
## The problem: one at a time is slow

Here are the six stories of lesson 00, served one after the other, with one forward pass for each token.
"""

# %%
# `record_run` calls a serving loop of the library and records what it does in every step.
alone = record_run(generate_one_by_one, model, tokenizer, **SIX)
times = request_times(alone.trace, in_steps=True)
for story, answer in zip(STORIES, alone.outputs):
    text = tokenizer.decode(answer).replace("\n", " ")
    print(f"{story.name}  {len(answer):3} tokens, waits {times[story.name].admitted:3} passes "
          f"| {text[:90]}")
print(f"\n{alone.trace.forward_calls} forward passes for {sum(map(len, alone.outputs))} "
      "tokens: one each")

# %% [markdown]
"""
F waits for every token of the other five answers. And each of these passes reads all weights for a single new token
(lesson 00). What if a pass computed one token for each of eight requests?

> **batch**: several requests in the same forward pass, one row of the input tensor each. The weights are read once for
> all rows.

Here is one decode step over 1, 2, 4 and 8 rows, with about 64 tokens of each in the cache. **Guess first:** with eight
rows, does a step take about 8 times as long as with one, about 4 times, or hardly longer?
"""

# %% tags=["measured"]
@torch.inference_mode()
def decode_ms(batch_size, cached=64, repeats=10):
    """Median time of one decode step, in milliseconds."""
    cache = DynamicCache(config=model.config)
    model(input_ids=torch.full((batch_size, cached), 5), past_key_values=cache)
    with watch_forwards(model) as passes:
        for _ in range(repeats):
            model(input_ids=torch.full((batch_size, 1), 5), past_key_values=cache)
    return 1000 * median(forward.seconds for forward in passes)

decode_ms(1)  # warm-up: the first passes of a process are slower
# a slow moment spoils only one of them
rounds = [{size: decode_ms(size) for size in (1, 2, 4, 8)} for _ in range(5)]
measured = {size: min(each[size] for each in rounds) for size in (1, 2, 4, 8)}
Table(
    ["rows", "ms per step", "relative to 1 row", "ms per token"],
    [[size, ms, f"{ms / measured[1]:.2f} ×", ms / size] for size, ms in measured.items()],
    caption="One decode step",
)

# %% [markdown]
"""
One after the other, eight rows would take 8 times as long as one. In one batch they take less, because reading the
weights and launching the operations are paid once per step.

So we want many rows in every step. Two things stand in the way: the prompts differ in length, and so do the answers.

## Prompts of unequal length: padding

A tensor is a rectangle of *cells*, and prompts are ragged: we fill up the short ones.

> **ragged**: having rows of unequal length.

> **padding**: meaningless tokens that fill up the rows of a batch to the same length.

> **padding mask**: one number for each cell that attention can read, 1 for tokens and 0 for padding. Attention gives no
> weight to cells with a 0. Hugging Face calls it `attention_mask`.

The padding goes on the left. Then the last real token of *every* row is in the last column, where we read the next
token, and new tokens follow directly.

**Exercise 01.1.** Write `pad_left`. It takes a list of prompts, each a list of ints, and the padding token. It returns
two int64 tensors of the same shape, `[rows, longest prompt]`: the tokens and the padding mask. The lists stay as they
are. For example:

    pad_left([[5], [6, 7]], pad_token_id=9)   →   tensor([[9, 5], [6, 7]]),  tensor([[0, 1], [1, 1]])

A prompt may contain the padding token; there it is a real token.
"""

# %% exercise="01.1"
from lessons_lib.batching.static_batching import pad_left

# %%
four = list("ACDE")
input_ids, attention_mask = pad_left([prompt_ids[NAMES.index(name)] for name in four],
                                     tokenizer.pad_token_id)
print(f"{attention_mask.numel()} cells computed in the prefill of A, C, D and E, "
      f"{int(attention_mask.sum())} of them tokens")

# %% [markdown]
"""
Padding goes through every layer of the model just like the tokens. The mask hides the results but saves no work.

Padding also shifts a short prompt to the right. Served alone, C's first token has position 0. In the rectangle it's in
a later *column*, and by default the model takes the column as the position. Some models, such as GPT-2, would then give
another answer. (Does ours? Predict it in "Further".) So our loop passes the right positions.

> **position ids**: for each input token, its index in its own sequence, counted from 0. They tell the model the order
> of the tokens.

`positions_from_mask` computes them (exercise 01.2, in "Further").
"""

# %%
from lessons_lib.viz.batches import draw_padded_batch

position_ids = positions_from_mask(attention_mask)
tokens = [[tokenizer.decode([token]) for token in row] for row in input_ids.tolist()]
draw_padded_batch(four, tokens, attention_mask.tolist(), position_ids.tolist())

# %% [markdown]
"""
In each row, position 0 is where the hatching ends. The last column holds the newest token of every row, each with its
own position.
"""

# %% [markdown]
"""
## Answers of unequal length: the batch barrier

Every forward pass gives each row one token, and some answers finish early. What happens to their rows? In static
batching, nothing: every row stays in the batch until the last one is done.

> **wave**: requests that go through the model together. They start with the same prefill and leave together.

> **static batching**: serving requests in waves of at most a fixed size. The next wave starts when the previous one has
> left.

> **batch barrier**: the rule that no request joins a running wave, and none leaves before the wave's longest answer is
> done.

How long does a wave take? We count steps, and here a step is one forward pass. An answer of n tokens takes n steps: the
prefill, which gives the first token, and n - 1 decode steps.

Take four requests that want 20, 30, 40 and 60 tokens. In the picture, each row labeled *slot* is one row of the batch,
a *batch slot*, which serves one request at a time. Each column is a step.
"""

# %%
from lessons_lib.viz.timelines import draw_timeline

lengths = [20, 30, 40, 60]
example = record_run(static_generate, model, tokenizer, [PROMPTS[0]] * 4,
                     max_new_tokens=lengths, batch_size=4, names=["G", "H", "I", "J"])
draw_timeline(example.trace, title="One wave: answers of 20, 30, 40 and 60 tokens")

# %% [markdown]
"""
The frames in step 1 are the prefill. G gets its last token in step 20. From then on its row is hatched: the model
still computes it in every pass, but the result is thrown away. G's answer is returned after step 60, together with J's.

**Predict 01.a.** Now serve the six stories in waves of four: first A to D, then E and F. Assume that every answer
reaches its limit. How many forward passes are there, including the prefills?
"""

# %%
Table(["request", "prompt tokens", "new tokens"],
      [[s.name, len(ids), s.max_new_tokens] for s, ids in zip(STORIES, prompt_ids)])

# %%
predict("01.a", ...)

# %% [markdown]
"""
A request can wait twice: before its wave starts, and after its last token, until the wave is done.

> **head-of-line blocking**: requests that could be served have to wait because the ones ahead of them haven't finished.

**Exercise 01.3.** Write `wave_steps`. It takes the lengths of the answers in order of arrival and the batch size. All
requests arrive before step 1. For each request, it returns three ints, in the order of the requests:

1. the step after which it starts (0 in the first wave),
2. the step in which it gets its last token,
3. the step after which its answer is returned.

Steps are counted from the start of the first wave. The last wave may have fewer requests than `batch_size`. For
example,

    wave_steps([2, 5, 3], batch_size=2)   →   [(0, 2, 5), (0, 5, 5), (5, 8, 8)]

The first request has its last token in step 2 but is returned after step 5, together with the second one. The third has
to wait until then. The list that your function gets stays as it is.
"""

# %% exercise="01.3"
from lessons_lib.batching.static_batching import wave_steps

# %%
predicted = wave_steps(MAX_NEW_TOKENS, batch_size=4)
reveal("01.a", predicted[-1][2], "forward passes")
Table(
    ["request", "starts after step", "last token in step", "returned after step",
     "steps from last token to return"],
    [[name, start, last, returned, returned - last]
     for name, (start, last, returned) in zip(NAMES, predicted)],
    caption="The six stories in waves of four",
)

# %% [markdown]
"""
D has its last token first, but its answer is returned only when C is done: that is the barrier. Meanwhile E and F wait
for the whole first wave: that is head-of-line blocking.

### Decide: which requests go together?

Your `wave_steps` can compare plans before anything is served. Suppose you may choose the order of the six stories: the
first four letters are the first wave, the other two the second. Every answer reaches its limit, as before.

**Decide.** Which order takes the fewest steps? And in which order do the answers return earliest, on average? Use a
pencil, put in both orders, and compare them with the best of all 720.
"""

# %%
fewest_steps = "ABCDEF"  # replace this with your order
earliest_answers = "ABCDEF"  # and this

def plan(order):
    """All steps of this order, and the step in which an answer returns: the mean."""
    times = wave_steps([MAX_NEW_TOKENS[NAMES.index(name)] for name in order], batch_size=4)
    return times[-1][2], mean(returned for _, _, returned in times)

all_plans = [plan(order) for order in permutations(NAMES)]
Table(
    ["order", "steps", "an answer returns in step (mean)"],
    [
        ["yours, for the fewest steps", *plan(fewest_steps)],
        ["the fewest steps of all orders", *min(all_plans)],
        ["yours, for the earliest answers", *plan(earliest_answers)],
        ["the earliest answers of all orders", *min(all_plans, key=lambda each: each[1])],
    ],
)

# %% [markdown]
"""
No order is best at both. The fewest steps: let the longest answers share a wave, C, E, B and F before A and D. The
earliest answers: serve the four shortest first, D, A, F and B. That takes 30 steps more, but answers return 17 steps
earlier on average.

Both plans use something that a server doesn't know: how long each answer will be. And even the best plan takes 130
steps, though C, the longest answer, needs only 100. Finished rows still occupy the batch.

## Build: the loop

> **max_tokens**: the maximum number of new tokens of a request. An answer ends at this limit or at the end token,
> whichever comes first.

> **context**: the tokens of one sequence that the model can look at, prompt and answer together. Its length is limited:
> the model wasn't trained on longer ones.

**Exercise 01.4.** Write `generate_wave`. It takes the model, the prompts of one wave, a list `max_tokens_each` with the
maximum number of new tokens of each row (at least 1), the padding token and the end token. It returns the new tokens of
each row, as one list of ints per row.

It's the loop of lesson 00 with several rows. Each pass calls the model with four inputs and returns an output whose
`.logits` have shape `[rows, tokens, vocabulary]`:

| input | shape | in the prefill |
|---|---|---|
| `input_ids` | `[rows, new tokens]` | the padded prompts |
| `attention_mask` | `[rows, columns in the cache + new tokens]` | their padding mask |
| `position_ids` | the shape of `input_ids` | each token's position in its own sequence |
| `past_key_values` | | one `DynamicCache(config=model.config)`, empty at first and the same in all passes |

What the first three are in a decode step is for you to work out: what is new in it, and what has the cache got already?

A row has finished with the end token, which belongs to its answer, or with the token that reaches its limit. From then
on its answer doesn't change. But the row stays in the batch, so the rectangle needs a token for it in every pass; any
token will do. No pass is made once every row has finished. Don't change the lists that you get. You may assume that the
wave fits in the model's context: its longest prompt plus its largest limit.

For example, if a model continues the first prompt with 4, 8, 15, 16 and the second with 23, 42 and the end token 7,
then `generate_wave(model, prompts, [3, 10], pad_token_id=0, eos_token_id=7)` returns `[[4, 8, 15], [23, 42, 7]]` after
three passes.
"""

# %% exercise="01.4"
from lessons_lib.batching.static_batching import generate_wave

# %% [markdown]
"""
The library's `static_generate` splits the requests into waves, as `wave_steps` does, and calls your function for each.
Step through the six stories:
"""

# %%
from lessons_lib.viz.stepper import Stepper

six = record_run(static_generate, model, tokenizer, **SIX, batch_size=4,
                 generate_wave=generate_wave)
Stepper(lambda i: draw_timeline(six.trace, upto=i, title="The six stories in waves of four"),
        count=len(six.trace.steps), start=len(six.trace.steps) - 1)

# %% [markdown]
"""
How many of the cells that this run computed were needed?

> **useful token**: a computed token that its request needed: a token of its prompt, or a new token that is fed back to
> get the next one.

The other cells are wasted: padding before the shorter prompts, and rows that have finished. A wave computes one cell
per row in each column: the padded prompts, then one more column in each later step. The last token of an answer is
never fed back. So

**cells computed by a wave = rows × (longest prompt + longest answer - 1).**

By this formula the two waves compute 882 cells. The six prompts have 144 tokens and the answers 330. **With a pencil:**
what share of the cells was needed? The next cell counts them. It also compares your `wave_steps` with the run, in which
every answer does reach its limit.
"""

# %%
times = request_times(six.trace, in_steps=True)
seen = [[t.admitted, t.done, t.returned] for t in times.values()]
print("`wave_steps` is right for every request:", list(map(list, predicted)) == seen)
padding = sum(row.wasted for step in six.trace.steps
              for row in step.rows if row.phase == "prefill")
finished = sum(row.wasted for step in six.trace.steps
               for row in step.rows if row.phase == "finished")
useful, computed = six.trace.tokens_useful, six.trace.tokens_computed
print(f"useful: {useful} of {computed} cells, {useful / computed:.0%}; padding: {padding}; "
      f"rows that have finished: {finished}")

# %% [markdown]
"""
144 + 330 - 6 = 468 cells were needed: the last token of each of the six answers is never fed back.

## Prove: batching changes nothing

A story must not depend on which other requests share its batch. The oracle is Hugging Face `generate`, one request at a
time. (In bfloat16, sums in another order may change a token now and then.) Your loop serves the six requests in waves
of 2, 4 and 6, which pad the rows differently.
"""

# %%
def oracle(ids, max_tokens):
    ids = torch.tensor([ids])
    return model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens,
                          do_sample=False,
                          pad_token_id=tokenizer.pad_token_id)[0, ids.shape[1] :].tolist()

expected = [oracle(ids, max_tokens) for ids, max_tokens in zip(prompt_ids, MAX_NEW_TOKENS)]
print("one at a time equals `generate`:", alone.outputs == expected)
for size in (2, 4, 6):
    outputs = record_run(static_generate, model, tokenizer, **SIX, batch_size=size,
                         generate_wave=generate_wave).outputs
    equal = sum(answer == reference for answer, reference in zip(outputs, expected))
    print(f"batch size {size}: {equal} of 6 stories equal `generate`, "
          f"token for token ({sum(map(len, outputs))} tokens)")

# %% [markdown]
"""
## Measure: eight stories at once

Here are eight more requests for your loop, in one wave. Put in openings of your own if you like.
"""

# %%
openings = ["A cat", "The king", "One night", "The robot", "Her mom", "A frog", "The snow",
            "My boat"]
eight = [tokenizer(opening).input_ids for opening in openings]
# No end token is passed, so every answer reaches its limit.
for opening, answer in zip(openings,
                           generate_wave(model, eight, [40] * 8, tokenizer.pad_token_id)):
    print(f"{opening}{tokenizer.decode(answer)}".replace("\n", " ")[:110])

# %% [markdown]
"""
How much faster is one wave of eight than eight waves of one?
"""

# %% tags=["measured"]
def one_wave(name, limits, rounds=3):
    """A row of the table below: your loop serves the eight requests in waves of one, and in
    one wave of eight."""
    seconds = {1: [], 8: []}
    # in turn, so that a slow moment hits both; the fastest of each counts
    for _ in range(rounds):
        for batch_size, taken in seconds.items():
            started = perf_counter()
            for ids, max_tokens in zip(waves(eight, batch_size), waves(limits, batch_size)):
                generate_wave(model, ids, max_tokens, tokenizer.pad_token_id)
            taken.append(perf_counter() - started)
    alone_s, wave_s = map(min, seconds.values())
    alone_passes, wave_passes = (wave_steps(limits, batch_size)[-1][2]
                                 for batch_size in seconds)
    speedup = f"{alone_s / wave_s:.1f} ×"
    return [name, sum(limits), alone_passes, f"{alone_s:.2f}", wave_passes,
            f"{wave_s:.2f}", speedup]

equal_answers = one_wave("eight of 40", [40] * 8)
print("One at a time: {} passes in {} s. In one wave: "
      "{} passes in {} s, {} as fast.".format(*equal_answers[2:]))

# %% [markdown]
"""
The wave makes an eighth of the passes, but a pass over eight rows takes longer than one over a single row:

**speedup = (passes one at a time / passes of the wave) / (time of a pass over eight rows / time over one row).**

(If the speedup printed above is 8 or more, another program disturbed the measurement: run the cell again.)

**Predict 01.b.** The same eight requests want 320 tokens again, but now seven of them want 20 tokens each and one wants
180. How many times as fast as one at a time is the wave? First work out how much longer a pass over eight rows takes,
from the speedup printed above. (As the caches grow, a pass takes longer still. 50 % more or less is a hit.)
"""

# %%
predict("01.b", ...)

# %% tags=["measured"]
one_long_answer = one_wave("seven of 20, one of 180", [20] * 7 + [180])
reveal("01.b", float(one_long_answer[-1].removesuffix(" ×")), "times as fast", tolerance=0.5)
Table(
    ["limits", "new tokens", "passes, one at a time", "seconds, one at a time",
     "passes, one wave", "seconds, one wave", "speedup"],
    [equal_answers, one_long_answer],
    caption="Your loop, one request at a time and in one wave of eight",
)

# %% [markdown]
"""
The wave lasts as long as its longest answer: 180 passes, not 40. And each pass still takes longer than one with a
single row, although in 160 of the 180, seven of the eight rows have finished and give no token. Most or all of the gain
from batching is gone.

## The ledger: the six stories

> **ledger**: the table of this course that compares, for the same six stories, what each way of serving them computes,
> stores and copies.

Lesson 00 began it. From here on we leave out its row without a cache.
"""

# %% tags=["measured"]
ledger(model, tokenizer, "01", with_cache_only=True)

# %% [markdown]
"""
Compare the two rows: 180 forward calls instead of 330, but 1.9 times as many tokens computed, and 5.8 times the cache.
It holds the padding and the finished rows too, and all of it is copied in each step. So expect a speedup below 330 /
180 = 1.8. That is static batching: fewer passes, paid for with 414 cells that no request needs.

## What production does

- **Hugging Face** `model.generate` on a padded batch is your loop: `GenerationMixin._sample` in
  `src/transformers/generation/utils.py` feeds the padding token to finished rows and stops when all have finished.
- **Batchers in front of a model**, such as the dynamic batcher of NVIDIA Triton Inference Server, collect requests for
  a moment and send them off as one batch. This suits a model that answers in one pass, such as a classifier.
- **vLLM** has no waves: before every step, `Scheduler.schedule` in `vllm/v1/core/sched/scheduler.py` decides which
  requests take part.

## What is still wrong

A finished row is still computed while a request that could use its batch slot waits. What if a request left the batch
after its last token, and the next one joined immediately? The server wouldn't have to know any length in advance. But
the rows of a batch would be at different points: one in its prompt, another far into its answer. Lesson 02 builds that.

## Quiz
"""

# %%
quiz("01")

# %% [markdown]
"""
## References

- G.-I. Yu et al. (2022), *Orca: A Distributed Serving System for Transformer-Based Generative Models*, OSDI. Section 3
  describes the barrier ("early-finished and late-joining requests").
  https://www.usenix.org/conference/osdi22/presentation/yu
- R. Pope et al. (2022), *Efficiently Scaling Transformer Inference*. How batch size trades latency against cost.
  https://arxiv.org/abs/2211.05102
- J. Su et al. (2021), *RoFormer: Enhanced Transformer with Rotary Position Embedding*, section 3.
  https://arxiv.org/abs/2104.09864
- Hugging Face, *Generation with LLMs*, on padding side. https://huggingface.co/docs/transformers/llm_tutorial
- NVIDIA Triton Inference Server, *Batchers*.
  https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/batcher.html
"""

# %% [markdown] folded=true
"""
## Further (optional)

Nothing here is needed for the lesson, and its 85 minutes don't include it.

### Stretch: which requests share a wave?

Waves need not follow the order of arrival. If similar requests share a wave, fewer cells are wasted. Write
`my_waves(requests, batch_size)`. A request is a pair (number of prompt tokens, `max_tokens`). Return a list of waves,
each a list of indices into `requests`. Every index occurs once, and a wave has 1 to `batch_size` requests.

The scoreboard counts, on requests that you haven't seen, the cells of all batch slots: `batch_size` × (longest prompt +
longest answer - 1) for each wave. A batch slot without a request is wasted, too. The columns:

- *wasted cells*: every answer reaches its limit. Make this as small as you can.
- *wasted, if half of the answers end early*: the same waves, but your rule couldn't know the lengths.
- *steps until an answer is returned*: the mean, waiting for earlier waves included. It depends on the order of your
  waves. What does your rule do to a long request that came first?

The cell starts out with the order of arrival.
"""

# %%
from lessons_lib.checks.lesson_01.scoreboard import waves_scoreboard


def my_waves(requests, batch_size):
    return waves(range(len(requests)), batch_size)  # replace this


waves_scoreboard(my_waves)
# %% [markdown]
"""
### Leave an input out

What is each input for? `left_out(model, name)` drops one argument from every call of the model; the loop is still
yours. All six stories are in one wave. B has the longest prompt, so the other five rows begin with padding. Here the
padding token is the end token. In the output, words between » and « differ from the right answer.

**Predict 01.c.** The mask is left out. How many of the six answers change?

There are two ways to tell a model the positions:

> **absolute positions**: a way to encode the order of tokens by adding a learned vector for position 0, 1, 2, ... to
> each token. GPT-2 uses it.

> **rotary positions**: a way to encode the order of tokens by rotating queries and keys by an angle proportional to
> their position, also called RoPE. Attention then depends on the distance between tokens, not on where they are. Llama,
> Qwen and the bundled model use it.

**Predict 01.d.** The mask is back, and the positions are left out. The model then takes a token's column as its
position. So A's first token is at position 49 instead of 0. How many of the six answers change?
"""

# %%
predict("01.c", ...)
predict("01.d", ...)

# %%
from lessons_lib.batching import left_out
from lessons_lib.viz.words import marked

variants = {}
for variant, name in (("no mask", "attention_mask"), ("no positions", "position_ids")):
    with left_out(model, name):
        variants[variant] = generate_wave(model, prompt_ids, MAX_NEW_TOKENS,
                                          tokenizer.pad_token_id, tokenizer.eos_token_id)
for story, right, *answers in zip(STORIES, expected, *variants.values()):
    print(f"{story.name}: ...{story.prompt[-40:]}\n    right        | "
          f"{' '.join(tokenizer.decode(right)[:80].split())}")
    for variant, answer in zip(variants, answers):
        texts = tokenizer.decode(right), tokenizer.decode(answer)
        text = "the same" if answer == right else marked(*texts, limit=80)
        print(f"    {variant:12} | {text}")
for key, answers in zip(("01.c", "01.d"), variants.values()):
    reveal(key, sum(answer != right for answer, right in zip(answers, expected)), "answers")

# %% [markdown]
"""
**No mask.** The rows read their padding as text, so every row with padding gives a different answer. After an end token
a new story begins: C and E, short prompts after a lot of padding, drift into another story. The answers of A, D and F
read well but are wrong, which makes this mistake easy to miss.

**No positions.** Nothing changed, although five rows had wrong positions. With rotary positions, attention depends only
on the *difference* between two positions, and counting columns shifts all tokens of a row by the same amount. So why
pass positions at all? Models with absolute positions need them (next section), a row that counts its padding reaches
the end of the context sooner, and from lesson 02 on they also say where a row's keys are.
"""

# %% [markdown]
"""
### Positions, and why GPT-2 needs them

One prompt, with more and more padding before it, in two small random models. The mask hides the padding.
"""

# %%
from lessons_lib.models import tiny_model


def next_token(tiny, padding):
    """The token after the prompt 3, 7, 11 in a row that begins with so many cells of
    padding."""
    input_ids, attention_mask = pad_left([[3, 7, 11], [1] * (3 + padding)], pad_token_id=0)
    return int(tiny(input_ids=input_ids, attention_mask=attention_mask).logits[0, -1].argmax())

Table(
    ["cells of padding", "next token, GPT-2", "next token, Qwen2"],
    [[padding, next_token(tiny_model("gpt2"), padding),
      next_token(tiny_model("qwen2"), padding)] for padding in range(4)],
    caption="The same prompt after more and more hidden padding",
)

# %% [markdown]
"""
GPT-2 has absolute positions: a shifted row is another input, and its answer depends on the padding. Qwen2's are rotary.

**Exercise 01.2** (optional). Write `positions_from_mask`. It takes the mask and returns an int64 tensor of the same
shape. In each row, the first real token has position 0, the next 1, and so on. For example:

    positions_from_mask(tensor([[0, 0, 1, 1], [1, 1, 1, 1]]))   →   tensor([[0, 0, 0, 1], [0, 1, 2, 3]])

The positions of the padding don't matter, because its results are never used. But the model looks them up in a table,
so they must be valid, and -1 isn't.
"""

# %% exercise="01.2"
from lessons_lib.batching.static_batching import positions_from_mask

# %% [markdown]
"""
### Padding on the other side

What if the padding is on the right, and the loop still reads the last column? This runs the library's loop, not yours:
`patch.object` replaces the `pad_left` that the library calls with `pad_right`.
"""

# %%
from unittest.mock import patch

from lessons_lib.batching import static_batching


def pad_right(prompt_ids, pad_token_id):
    """The same rectangle with each row's padding moved to the right of its tokens."""
    input_ids, mask = pad_left(prompt_ids, pad_token_id)
    shifts = (mask == 0).sum(dim=1).tolist()
    return tuple(torch.stack([row.roll(-by) for row, by in zip(tensor, shifts)])
                 for tensor in (input_ids, mask))

with patch.object(static_batching, "pad_left", pad_right):
    padded_right = static_batching.generate_wave(
        model, prompt_ids, MAX_NEW_TOKENS, tokenizer.pad_token_id, tokenizer.eos_token_id)
for story, right, answer in zip(STORIES, expected, padded_right):
    print(f"{story.name}  right        | {' '.join(tokenizer.decode(right)[:80].split())}")
    print("   padded right | "
          f"{marked(tokenizer.decode(right), tokenizer.decode(answer), limit=80)}")

# %% [markdown]
"""
The first new token is read from the last column. In a short row, that column holds an end token instead of the last
word of the prompt. So the first word is wrong and the answer continues from it: most rows start a new sentence, and D
ends immediately. (Rows can also start in the first column, with the unused columns on the right. Lesson 02 does that.)
"""
