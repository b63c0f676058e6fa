# %% [markdown]
"""
# 01 · Static batching

![Four answers in one wave: the short ones wait for the longest](../lessons_lib/assets/openings/01.svg)

**How can several requests share one forward pass, and what does it cost to start and finish them together?**

75 minutes · difficulty: easy · routes: *ideas* (00–06, 17), *serving* (00–03, 05, 06, 09–12, 14–17) · prerequisites:
lesson 00 (prefill, decode step, KV cache)

You'll put requests of unequal length into one rectangle, and write the loop that continues all of them at once. It
serves eight requests several times as fast as a loop that takes them one by one, until one long answer spoils it.
"""

# %% folded=true
from itertools import permutations
from statistics import mean, median
from time import perf_counter

import torch
from transformers import DynamicCache

from lessons_lib.batching import generate_one_by_one, left_out, positions_from_mask
from lessons_lib.batching import static_generate, waves
from lessons_lib.batching.static_batching import wave_steps
from lessons_lib.checks import check, hint, predict, progress, quiz, reset, reveal, solution
from lessons_lib.measuring import MAX_NEW_TOKENS, NAMES, PROMPTS, STORIES, ledger
from lessons_lib.measuring import recorded_workloads, request_times
from lessons_lib.models import load_model
from lessons_lib.recording import record_run, watch_forwards
from lessons_lib.viz.batches import draw_padded_batch
from lessons_lib.viz.stepper import Stepper
from lessons_lib.viz.tables import Table
from lessons_lib.viz.timelines import draw_timeline
from lessons_lib.viz.words import marked

# %%
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
F waits for every token of the other five answers. And each of these passes computes a single token.

## What limits a decode step

Every *pass* reads every weight from memory once, no matter how many tokens share it. Every *token* of a pass uses each
weight for one multiplication and one addition. So a decode step does very little with what it reads.

> **memory-bound**: limited by memory bandwidth, the bytes that memory delivers per second. There are so few operations
> per byte that the work takes about as long as moving its bytes.

> **compute-bound**: limited by arithmetic. There are so many operations per byte that memory waits for them.

> **arithmetic intensity**: arithmetic operations per byte moved to or from memory.

Take a model of 8 billion weights in *bfloat16*, 2 bytes each, on an H200. By its data sheet, the GPU does at most
989 × 10¹² operations per second in bfloat16. It reads about 4.6 × 10¹² bytes per second, measured.

**Predict 01.a**, with a pencil: how many tokens could share one pass before the arithmetic takes as long as the
reading? Leave out the cache; within 10 % is a hit.
"""

# %%
predict("01.a", ...)  # tokens

# %% [markdown]
"""
Here is a recording of one request to such a model, which decodes a single token per pass:
"""

# %%
recorded = recorded_workloads()
one = next(each for each in recorded.workloads
           if each["name"] == "Llama-3.1-8B: one request, 128 + 512")
print(recorded.provenance)
print(f"each new token takes {1e3 / one['best']:.1f} ms")
# a step reads all weights but the embedding table, of which it needs one row for each token
print(f"reading {one['weight_bytes'] / 1e9:.1f} GB of weights, and the cache, "
      f"at {recorded.bytes_per_s:.2g} bytes/s: {1e3 / one['limit']:.1f} ms")
# two operations for each weight, and each weight has two bytes
print(f"the operations at 989e12 per second: {1e3 * one['weight_bytes'] / 989e12:.2f} ms")
reveal("01.a", 989e12 / recorded.bytes_per_s, "tokens", tolerance=0.1, how="Computed")

# %% [markdown]
"""
Reading takes most of the time, the operations less than a hundredth of it: a decode step is memory-bound. Some two
hundred tokens could share a pass at the price of one. So let them.

> **batch**: several requests in the same forward pass, one row of the input tensor each. The weights are read once for
> all rows.

A CPU has far less arithmetic to spare, but it too pays only once per step for the weights and for launching the
operations. **Guess first:** does a step over eight rows take about 8 times as long as one over a single row, about 4
times, or hardly longer?
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
A step over eight rows takes far less than 8 times as long as one over a single row. So we want many rows in every step.
Two things stand in the way: the prompts differ in length, and so do the answers.

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
Padding goes through every layer of the model just like the tokens. The mask keeps the tokens from attending to it, but
saves no work.

Padding also shifts a short prompt to the right. Served alone, C's first token has position 0. In the rectangle it's in
a later *column*, and by default the model takes the column as the position. So our loop passes the right positions;
`positions_from_mask` computes them.

> **position ids**: for each input token, its index in its own sequence, counted from 0. They tell the model the order
> of the tokens.
"""

# %%
position_ids = positions_from_mask(attention_mask)
tokens = [[tokenizer.decode([token]) for token in row] for row in input_ids.tolist()]
draw_padded_batch(four, tokens, attention_mask.tolist(), position_ids.tolist())

# %% [markdown]
"""
In each row, position 0 is where the hatching ends. The last column holds the newest token of every row.

## Answers of unequal length: the batch barrier

Every forward pass gives each row one token, and some answers finish early. What happens to their rows? In static
batching, nothing: every row stays in the batch until the last one is done.

> **wave**: requests that go through the model together. They start with the same prefill and leave together.

> **static batching**: serving requests in waves of at most a fixed size, one wave after the other.

> **batch barrier**: the rule that no request joins a running wave, and none leaves before the wave's longest answer is
> done.

How long does a wave take? We count steps, and here a step is one forward pass. An answer of n tokens takes n steps: the
prefill, which gives the first token, and n - 1 decode steps. Take four requests that want 20, 30, 40 and 60 tokens.
Each row labeled *slot* is one row of the batch, and each column is a step:
"""

# %%
lengths = [20, 30, 40, 60]
example = record_run(static_generate, model, tokenizer, [PROMPTS[0]] * 4,
                     max_new_tokens=lengths, batch_size=4, names=["G", "H", "I", "J"])
draw_timeline(example.trace, title="One wave: answers of 20, 30, 40 and 60 tokens")

# %% [markdown]
"""
The frames in step 1 are the prefill. G gets its last token in step 20. From then on its row is hatched: the model still
computes it in every pass, but the result is thrown away. G's answer is returned after step 60, together with J's. The
line below the picture counts cells: 60 for each row, and 12 more in the prefill, for a prompt of 13 tokens. The 90 that
are hatched are wasted.

> **head-of-line blocking**: requests that could be served have to wait because the ones ahead of them haven't finished.

### Decide: which requests go together?

Suppose you may choose the order of the six stories: the first four letters are the first wave, the other two the
second. They want 30 (A), 60 (B), 100 (C), 20 (D), 80 (E) and 40 (F) tokens.

**Decide.** Which order takes the fewest steps? And in which order do the answers return earliest, on average? Use a
pencil, put in both orders, and compare them with all 720. (`wave_steps` does the arithmetic: when each request starts,
gets its last token, and is returned.)
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
No order is best at both. Fewest steps: the longest answers share a wave, C, E, B and F before A and D. Earliest answers:
the four shortest first, D, A, F and B, which takes 30 steps more, with answers 17 steps earlier on average.

Both plans use something that a server doesn't know: how long each answer will be. And even the best plan takes 130
steps, though C, the longest answer, needs only 100.

## Build: the loop

> **max_tokens**: the maximum number of new tokens of a request. An answer ends at this limit or at the end token,
> whichever comes first.

> **context**: the tokens of one sequence that the model can look at, prompt and answer together. Its length is limited.

**Exercise 01.2.** Write `generate_wave`. It takes the model, the prompts of one wave, a list `max_tokens_each` with the
maximum number of new tokens of each row (at least 1), the padding token and the end token. It returns the new tokens of
each row, as one list of ints per row.

It's the loop of lesson 00 with several rows, after `pad_left` and `positions_from_mask`. Don't call `model.generate`.
The output's `.logits` have shape `[rows, tokens, vocabulary]`, and each pass has four inputs:

| input | shape | in the prefill |
|---|---|---|
| `input_ids` | `[rows, new tokens]` | the padded prompts |
| `attention_mask` | `[rows, columns in the cache + new tokens]` | their padding mask |
| `position_ids` | the shape of `input_ids` | each token's position in its own sequence |
| `past_key_values` | | one `DynamicCache(config=model.config)`, empty at first and the same in all passes |

What the first three are in a decode step is for you to work out: what is new in it, and what has the cache got already?

An answer ends with the end token, which belongs to it, or with the token that reaches the row's limit. The row stays in
the batch, so every later pass still needs a token for it; any token will do. Make no pass once every row has finished,
and don't change the lists that you get.

For example, if a model continues the first prompt with 4, 8, 15, 16 and the second with 23, 42 and the end token 7,
then `generate_wave(model, prompts, [3, 10], pad_token_id=0, eos_token_id=7)` returns `[[4, 8, 15], [23, 42, 7]]` after
three passes.
"""

# %% exercise="01.2"
from lessons_lib.batching.static_batching import generate_wave

# %% [markdown]
"""
The library's `static_generate` splits the requests into waves and calls your function for each. Step through the six
stories:
"""

# %%
six = record_run(static_generate, model, tokenizer, **SIX, batch_size=4,
                 generate_wave=generate_wave)
Stepper(lambda i: draw_timeline(six.trace, upto=i, title="The six stories in waves of four"),
        count=len(six.trace.steps), start=len(six.trace.steps) - 1)

# %% [markdown]
"""
How many of the cells that this run computed were needed?

> **useful token**: a computed token that its request needed: a token of its prompt, or a new token that is fed back to
> get the next one.

The others are wasted: padding before the shorter prompts, and rows that have finished. A wave computes

**rows × (longest prompt + longest answer - 1) cells:**

the padded prompts, then one more column in each later step; the last token of an answer is never fed back. **With a
pencil:** the two waves compute 882 cells, the six prompts have 144 tokens and the answers 330. What share was needed?
"""

# %%
padding = sum(row.wasted for step in six.trace.steps
              for row in step.rows if row.phase == "prefill")
finished = sum(row.wasted for step in six.trace.steps
               for row in step.rows if row.phase == "finished")
useful, computed = six.trace.tokens_useful, six.trace.tokens_computed
print(f"useful: {useful} of {computed} cells, {useful / computed:.0%}; padding: {padding}; "
      f"rows that have finished: {finished}")

# %% [markdown]
"""
The prompts' 144 tokens and the answers' 330, less the last one of each answer: 144 + 330 - 6 = 468.

## Prove: batching changes nothing

A story must not depend on which other requests share its batch. The oracle is Hugging Face `generate`, one request at a
time. Your loop serves the six requests in waves of 2, 4 and 6, which pad the rows differently.
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
## Leave an input out

What is each input for? `left_out(model, name)` drops one argument from every call of the model; the loop is still
yours. All six stories are in one wave, so five rows begin with padding, here the end token. Words between » and «
differ from the right answer.

**Predict 01.b.** The mask is left out. How many of the six answers change?

> **absolute positions**: a way to encode the order of tokens by adding a learned vector for position 0, 1, 2, ... to
> each token. GPT-2 uses it.

> **rotary positions**: a way to encode the order of tokens by rotating queries and keys by an angle proportional to
> their position, also called RoPE. Attention then depends on the distance between tokens, not on where they are. Llama,
> Qwen and the bundled model use it.

**Predict 01.c.** The mask is back, and the positions are left out. The model then takes a token's column as its
position. So A's first token is at position 49 instead of 0. How many of the six answers change?
"""

# %%
predict("01.b", ...)
predict("01.c", ...)

# %%
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
for key, answers in zip(("01.b", "01.c"), variants.values()):
    reveal(key, sum(answer != right for answer, right in zip(answers, expected)), "answers")

# %% [markdown]
"""
**No mask.** The rows read their padding as text, so every row with padding gives a different answer. After an end token
a new story begins: C and E, short prompts after a lot of padding, drift into another story. The answers of A, D and F
read well but are wrong, which makes this mistake easy to miss.

**No positions.** Nothing changed, although five rows had wrong positions. With rotary positions, attention depends only
on *differences* between positions, and counting columns shifts all tokens of a row alike. Models with absolute
positions need the right ones. From lesson 02 on, every model does: there, positions also say where a row's keys are.

## Measure: eight stories at once

Eight more requests, in one wave. Put in openings of your own if you like.
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
The wave makes an eighth of the passes, but each takes longer than one over a single row:

**speedup = (passes one at a time / passes of the wave) / (time of a pass over eight rows / time over one row).**

**Predict 01.d.** The same eight requests want 320 tokens again, but now seven of them want 20 tokens each and one wants
180. How many times as fast as one at a time is the wave? First work out how much longer a pass over eight rows takes,
from the speedup printed above. (As the caches grow, a pass takes longer still. A quarter more or less is a hit.)
"""

# %%
predict("01.d", ...)

# %% tags=["measured"]
one_long_answer = one_wave("seven of 20, one of 180", [20] * 7 + [180])
reveal("01.d", float(one_long_answer[-1].removesuffix(" ×")), "times as fast", tolerance=0.25)
Table(
    ["limits", "new tokens", "passes, one at a time", "seconds, one at a time",
     "passes, one wave", "seconds, one wave", "speedup"],
    [equal_answers, one_long_answer],
    caption="Your loop, one request at a time and in one wave of eight",
)

# %% [markdown]
"""
The wave lasts as long as its longest answer: 180 passes, not 40. In 160 of them, seven of the eight rows have finished,
and are computed all the same. Most or all of the gain from batching is gone.

## The ledger: the six stories

> **ledger**: the table of this course that compares, for the same six stories, what each way of serving them computes,
> stores and copies.
"""

# %% tags=["measured"]
ledger(model, tokenizer, "01", with_cache_only=True,
       columns=("tokens computed", "useful", "cache reserved", "forward calls", "speed"))

# %% [markdown]
"""
180 forward calls instead of 330, but 1.9 times as many tokens computed, and 5.8 times the cache reserved: four rows at
once, their padding, and rows that have finished. So expect a speedup below 330 / 180 = 1.8. That is static batching:
fewer passes, paid for with 414 cells that no request needs.

## What production does

- **Hugging Face** `model.generate` on a padded batch is your loop: `GenerationMixin._sample` in
  `src/transformers/generation/utils.py` feeds the padding token to finished rows and stops when all have finished.
- **Batchers in front of a model**, such as that of NVIDIA Triton Inference Server, collect requests for a moment and send
  them off as one batch. This suits a model that answers in one pass, such as a classifier.
- **vLLM** has no waves: before every step, `Scheduler.schedule` in `vllm/v1/core/sched/scheduler.py` decides which
  requests take part.

## What is still wrong

A finished row is still computed while a request that could use its batch slot waits. What if a request left the batch
after its last token, and the next one joined immediately? But then the rows would be at different points: one in its
prompt, another far into its answer. Lesson 02 builds that.

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
- N. Shazeer (2019), *Fast Transformer Decoding: One Write-Head is All You Need*, sections 2.4 and 3: why decoding one
  token at a time is memory-bound. https://arxiv.org/abs/1911.02150
- S. Williams et al. (2009), *Roofline: An Insightful Visual Performance Model for Multicore Architectures*.
  https://doi.org/10.1145/1498765.1498785
- NVIDIA, *H200 Tensor Core GPU Data Sheet*: the peak rates of the SXM version, without sparsity.
  https://www.nvidia.com/en-us/data-center/h200/
- J. Su et al. (2021), *RoFormer: Enhanced Transformer with Rotary Position Embedding*, section 3.
  https://arxiv.org/abs/2104.09864
- Hugging Face, *Generation with LLMs*, on padding side. https://huggingface.co/docs/transformers/llm_tutorial
- NVIDIA Triton Inference Server, *Batchers*.
  https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/batcher.html
"""

# %% [markdown] folded=true
"""
## Further (optional)

Nothing here is needed for the lesson, and its 75 minutes don't include it.

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
