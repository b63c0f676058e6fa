# %% [markdown]
"""
# 00 · One request: prefill, decode, KV cache

**What does a model compute to write one token, and how much of that has it computed before?**

60 minutes · difficulty: easy · routes: *ideas* (00–06), *serving* (00–03, 05, 06, 09–12) · you need: Python and a
little PyTorch (what a tensor's shape is, what `argmax` does). You don't need to know anything about serving.

You'll write a greedy decoding loop twice. The first version recomputes everything for every token. The second keeps
what it has computed, and writes the same tokens. Then you'll measure how much work that saves, how much memory it
costs, and what it still wastes.

Cells that say `raise NotImplementedError()` are yours to fill in. The cell after each one checks what you wrote. If you
skip an exercise, the check returns a working version, so the rest of the notebook still runs. From that cell on, the
function's name refers to your version, or the course's version if you skipped it. `hint("00.1")` shows one hint per
call, and `solution("00.1")` shows the code.
"""

# %%
import inspect

import torch

from lessons_lib.checks import check, hint, predict, progress, quiz, reveal, solution
from lessons_lib.measuring import STORIES
from lessons_lib.models import load_model
from lessons_lib.viz.tables import Table

model, tokenizer = load_model(device="cpu")  # float32, so that results agree down to the last token
print(
    f"{model.num_parameters():,} parameters, {model.config.num_hidden_layers} layers, {tokenizer.vocab_size:,} tokens in the vocabulary"
)

# %% [markdown]
"""
## The problem

Six requests, A to F, each ask this model to continue a story. They stay with us through the whole course, and each
keeps its color in every picture. Their prompts differ in length, and so does the number of new tokens they want.

> **token**: a piece of text, often a word with the space before it. The vocabulary lists all tokens and gives each an
> integer id. A model reads and writes token ids, never letters.

> **prompt**: the tokens that a request starts with and that the model continues.
"""

# %%
encoded = {story.name: tokenizer(story.prompt).input_ids for story in STORIES}
Table(
    ["request", "prompt tokens", "new tokens wanted", "prompt"],
    [
        (s.name, len(encoded[s.name]), s.max_new_tokens, s.prompt if len(s.prompt) < 60 else s.prompt[:57] + "...")
        for s in STORIES
    ],
    caption="Six requests",
)

# %% [markdown]
"""
In this lesson we serve one request at a time. Take A. Here are its tokens with their ids, and what one call of the
model returns for them.

> **forward pass**: one call of the model. A sequence of tokens goes in, and logits for every position come out.

> **logits**: scores, one for each token of the vocabulary. The higher the score, the better the token fits as the
> *next* one.
"""

# %%
A = STORIES[0]
prompt_ids = encoded["A"]
print([(token, tokenizer.decode([token])) for token in prompt_ids], "\n")

with torch.inference_mode():
    logits = model(input_ids=torch.tensor([prompt_ids])).logits
print("input  [rows, tokens]            ", [1, len(prompt_ids)])
print("logits [rows, tokens, vocabulary]", list(logits.shape))
best = logits[0, -1].topk(3).indices.tolist()
print("top three after the last position:", [tokenizer.decode([token]) for token in best])

# %% [markdown]
"""
The logits have one row per position. Row 0 predicts the token after the first one, row 1 the token after the second,
and the last row the token after the whole prompt. Only the last row tells us something new: we already know the tokens
inside the prompt.

So one pass gives one new token. To get a second one, append the first to the prompt and call the model again.

> **greedy decoding**: always taking the token with the highest logit. Nothing is random, so the same prompt always
> gives the same answer.

> **end token**: a token that the model writes when the text is complete, also called EOS (end of sequence). An answer
> ends with it, or at a limit set by the request.
"""

# %%
rows = []
for position in range(4):
    best = int(logits[0, position].argmax())
    rows.append(
        (
            position,
            tokenizer.decode(prompt_ids[: position + 1]),
            tokenizer.decode([best]),
            tokenizer.decode([prompt_ids[position + 1]]),
        )
    )
Table(
    ["position", "text so far", "model's top choice", "next token in the prompt"],
    rows,
    caption="What the first rows of the logits say",
)

# %% [markdown]
"""
## Predict

The simplest loop recomputes the whole sequence for every new token. Before you write it: **how many token positions
does the model compute in total to write A's new tokens?** The table above has A's prompt length and the number of
tokens it wants. Assume that the story doesn't end before that limit. Count every token of every pass: a pass over 20
tokens counts as 20, no matter how often they were computed before.
"""

# %%
predict("00.a", ...)

# %% [markdown]
"""
## Build: without a cache

**Exercise 00.1.** Write the simple loop. `prompt_ids` is a list of ints. Return a list of ints too: only the new
tokens, without the prompt.

Keep a list of all tokens so far, starting with a *copy* of the prompt. In each iteration, turn the list into a tensor
of shape `[1, tokens]`: one row with the whole sequence. Call the model, take the argmax at the last position, and
append it. Also pass `use_cache=False`. Otherwise every pass fills a cache that is never read. The tokens stay the same,
but it costs time and memory.

Stop when there are `max_new_tokens` new tokens (at least 1), or when the token you just appended is `eos_token_id`. The
end token stays in the answer. `eos_token_id` may be `None`; then only the limit ends the answer.

For example, if the model continues 5, 17, 42 with 74, 91, 74, 4, 82, ..., then
`greedy_without_cache(model, [5, 17, 42], 3)` returns `[74, 91, 74]`. With a limit of 6 and the end token 4, it returns
`[74, 91, 74, 4]`.

(The decorator `@torch.inference_mode()` tells PyTorch that no gradients are needed.)
"""

# %% exercise="00.1"
from lessons_lib.batching.greedy import greedy_without_cache

# %% [markdown]
"""
This is how `greedy_without_cache` continues story A:
"""

# %%
answer = greedy_without_cache(model, prompt_ids, A.max_new_tokens, tokenizer.eos_token_id)
print(f"{A.prompt}|{tokenizer.decode(answer)}")
print(f"\n{len(prompt_ids)} prompt tokens, {len(answer)} new tokens")

# %% [markdown]
"""
Now step through the first passes. `record_steps` runs the function and records the model's inputs. Tokens in a pale
color were already computed in the step before. The terms *KV cache*, *prefill* and *decode* in the picture are
explained below. For now nothing is cached; the first step is labeled prefill, and every later one decode.
"""

# %%
from lessons_lib.recording import record_steps
from lessons_lib.viz.stepper import Stepper
from lessons_lib.viz.cache import cache_growth_table, draw_cache_growth

plain = record_steps(model, tokenizer, prompt_ids, 8, greedy=greedy_without_cache)
Stepper(lambda i: draw_cache_growth(plain, i, name="A"), len(plain))

# %% [markdown]
"""
In every step the input grows by one token, and everything else in it was computed in the step before. Let's count what
that adds up to. The last printed line is arithmetic, not a run: it sums the pass lengths for A's prompt with answers of
30, 60 and 120 tokens.
"""

# %%
from lessons_lib.recording import watch_forwards

with watch_forwards(model) as plain_passes:
    greedy_without_cache(model, prompt_ids, A.max_new_tokens, tokenizer.eos_token_id)
computed = sum(forward.tokens for forward in plain_passes)
needed = len(prompt_ids) + len(plain_passes) - 1
print(
    f"{len(plain_passes)} passes of {plain_passes[0].tokens} to {plain_passes[-1].tokens} tokens: {computed} positions computed"
)
print(f"only {needed} of them are distinct, so each was computed {computed / needed:.1f} times on average")
print(
    "; ".join(f"{new} new tokens: {sum(len(prompt_ids) + i for i in range(new)):,} positions" for new in (30, 60, 120))
)
reveal("00.a", computed, "positions")

# %% [markdown]
"""
The number of passes grows with the answer, and so does the length of each pass. Doubling the answer more than triples
the work here, and the factor approaches four as the answer gets longer: the work grows with the *square* of the
answer's length.

## The idea: keep the keys and values

Inside a layer, tokens interact in only one place: attention. There, each token produces three vectors. Its *query* says
what it is looking for, its *key* says what it offers to other tokens, and its *value* is the information they take from
it. A new token compares its query with its own key and the keys of all tokens before it, and mixes their values
accordingly.

> **causal attention**: attention in which a token sees itself and the tokens before it, never a later one.

A token can't see what comes later, so appending to the sequence can't change its keys and values. Is that true? The
next cell computes the prompt once by itself and once followed by four more tokens, and compares the keys of the
prompt's tokens in the last layer. (*KV heads*, in the printed shape, are explained in "What the cache costs".)
"""

# %%
from lessons_lib.batching import prefill

_, short = prefill(model, prompt_ids)
_, long = prefill(model, prompt_ids + answer[:4])
alone, followed = short.layers[-1].keys, long.layers[-1].keys[:, :, : len(prompt_ids)]
print(
    "keys of the last layer [rows, KV heads, tokens, head size]:",
    list(alone.shape),
    "and",
    list(long.layers[-1].keys.shape),
)
print(
    f"the prompt's keys: values up to {alone.abs().max():.0f}; all differences below 0.0001: {bool((alone - followed).abs().max() < 1e-4)}"
)

# %% [markdown]
"""
They are the same, up to rounding. A float32 has about seven significant digits, and PyTorch may sum the terms in a
different order when the tensor has a different shape. So the last digits may differ, here by millionths. A key that had
really changed would differ in its first digits.

So compute them once and keep them.

> **KV cache**: the keys and values of all tokens so far, in every layer, kept for later steps. Queries aren't kept:
> only the query of a new token is ever used.

This splits the work of a request into two phases.

> **prefill**: computing all tokens of the prompt in one forward pass. It fills the cache and gives the first new token.

> **decode step**: a forward pass over one token, the newest. It reads the cache, adds the token's key and value to it
> in every layer, and gives the next token.

Prefill is given. `DynamicCache` is the cache class of Hugging Face transformers. Pass it to the model as
`past_key_values`, and the model reads it and appends to it by itself. `logits_to_keep=1` asks for the logits of the
last position only.
"""

# %%
print(inspect.getsource(prefill))

# %% [markdown]
"""
## Build: one decode step

**Exercise 00.2.** What goes in, and what comes out? Most mistakes happen here, so take it slowly.

`prefill` returned the first new token. The model has *chosen* that token but has never *read* it: the cache holds the
prompt but not the new token. So the next pass takes this one token's id and the cache of everything before it, and
returns logits for the token *after* it.

For example, say the cache holds 5, 17, 42, and prefill returned 74. `decode_step(model, 74, cache)` calls the model
with the tensor `[[74]]`, of shape `[1, 1]`, and with the cache. Afterwards the cache holds four tokens, 5, 17, 42, 74,
and the function returns 91, as an int.

The model derives the position from the cache, so 74 gets position 3 without any work on your part.
"""

# %% exercise="00.2"
from lessons_lib.batching.greedy import decode_step

# %% [markdown]
"""
Here is one decode step on request A. The cache is always one token behind the text.
"""

# %%
first, cache = prefill(model, prompt_ids)
print(f"after prefill:     the cache holds {cache.get_seq_length()} tokens; chosen: {tokenizer.decode([first])!r}")
second = decode_step(model, first, cache)
print(
    f"after decode step: the cache holds {cache.get_seq_length()} tokens; fed: {tokenizer.decode([first])!r}, chosen: {tokenizer.decode([second])!r}"
)

# %% [markdown]
"""
## Build: the loop with a cache

**Exercise 00.3.** Combine `prefill` and `decode_step`. The function takes the same arguments as `greedy_without_cache`
and returns the same result. Again, `max_new_tokens` is at least 1.

Prefill gives the first token of the answer. Each decode step feeds the newest token and gives one more. So 3 new tokens
take one prefill and **two** decode steps. A third step would compute a token that isn't needed, so decide whether to
stop *before* you run the next step. And the very first token may already be the end token.
"""

# %% exercise="00.3"
from lessons_lib.batching.greedy import greedy_with_cache

# %% [markdown]
"""
The same story, step by step. Move the slider, or press Tab to focus it and use the arrow keys.
"""

# %%
steps = record_steps(model, tokenizer, prompt_ids, 12, greedy=greedy_with_cache)
Stepper(lambda i: draw_cache_growth(steps, i, name="A"), len(steps))

# %%
cache_growth_table(steps[:4], caption="Request A, the first four steps: input, cache, output")

# %% [markdown]
"""
Look at the first two steps. Step 1 is the prefill: all tokens of the prompt go in, the cache goes from empty to holding
all of them, and the first new token comes out. Step 2 is a decode step: *one* token goes in, the output of step 1. The
cache grows by that token, and the next token comes out. Every later step looks like step 2: the output of each step is
the input of the next.
"""

# %%
with watch_forwards(model) as cached_passes:
    greedy_with_cache(model, prompt_ids, A.max_new_tokens, tokenizer.eos_token_id)
with_cache = sum(forward.tokens for forward in cached_passes)
print(f"without a cache: {len(plain_passes)} passes, {computed} positions computed")
print(
    f"with a cache:    {len(cached_passes)} passes, {with_cache} positions computed: {computed / with_cache:.1f} times fewer"
)

# %% [markdown]
"""
## Prove it

Saving work is worth nothing if it changes the text. Our reference, or *oracle*, is Hugging Face transformers'
`generate` with greedy decoding. Both functions must write exactly the same tokens for all six requests. These six stop
at their limits, before the story ends. A seventh request reaches the end token, to show that the functions stop there,
as `generate` does.
"""


# %%
def oracle(prompt_ids, max_new_tokens):
    ids = torch.tensor([prompt_ids])
    options = dict(do_sample=False, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_new_tokens, **options)
    return output[0, len(prompt_ids) :].tolist()


rows = []
short_story = ("short", "Mia said sorry. Ben smiled, and they were friends again.", 30)
for name, prompt, limit in [(s.name, s.prompt, s.max_new_tokens) for s in STORIES] + [short_story]:
    arguments = tokenizer(prompt).input_ids, limit
    expected = oracle(*arguments)
    results = [
        greedy(model, *arguments, tokenizer.eos_token_id) == expected
        for greedy in (greedy_without_cache, greedy_with_cache)
    ]
    stopped = "end token" if expected[-1] == tokenizer.eos_token_id else "limit"
    rows.append(
        (
            name,
            limit,
            len(expected),
            stopped,
            *("equal" if same else "DIFFERENT" for same in results),
            tokenizer.decode(expected)[:50].strip(),
        )
    )
assert all("DIFFERENT" not in row for row in rows) and "end token" in rows[-1]
Table(
    ["request", "limit", "new tokens", "stopped by", "without a cache", "with a cache", "continuation"],
    rows,
    caption="Token-for-token comparison with generate",
)

# %% [markdown]
"""
What if you feed the wrong tokens? No error is raised: the model continues whatever it gets. Here is what happens to
story A.
"""


# %%
@torch.inference_mode()
def continue_with(feed, keep=True):
    token, cache = prefill(model, prompt_ids)
    new = [token]
    while len(new) < A.max_new_tokens:
        ids = torch.tensor([feed(prompt_ids + new)])
        new.append(int(model(input_ids=ids, past_key_values=cache if keep else None).logits[0, -1].argmax()))
    return new


right = continue_with(lambda text: text[-1:])
wrong = {
    "the token before it": continue_with(lambda text: text[-2:-1]),
    "the last token, but no cache": continue_with(lambda text: text[-1:], keep=False),
    "the whole text again": continue_with(lambda text: text),
}
rows = [("the last token: right", None, tokenizer.decode(right)[:110])]
for variant, new in wrong.items():
    first = next((i for i, pair in enumerate(zip(new, right), start=1) if pair[0] != pair[1]), None)
    rows.append((variant, first, tokenizer.decode(new)[:110]))
Table(["input of each decode step", "first wrong token", "continuation of story A"], rows)

# %% [markdown]
"""
Some mistakes are obvious. Feeding the token before the newest one asks the same question twice: the model has already
said what follows that token and usually says it again, hence the stutter. Other mistakes don't show: a text can go
wrong at some token and still read like a story. In the last row the whole text was added to the cache again and again,
and the story still reads well. So reading the output proves nothing. You have to compare it with the oracle, token for
token.
"""

# %% [markdown]
"""
## Measure: two regimes

Prefill and decode call the same model, but they stress different parts of a machine. Count what one pass needs:

- **Operations.** Each token uses every weight of every layer once, for one multiplication and one addition. Attention
  adds to that: each new token also uses the key and value of every token before it. So a decode step after 512 cached
  tokens does more operations than one after 64.
- **Bytes.** Each *pass* reads every weight from memory once, no matter how many tokens share it. It reads the cache
  too.

Below, *decode at 64* is a decode step with 64 tokens in the cache, and *prefill of 64* is a prefill of 64 tokens.

> **arithmetic intensity**: arithmetic operations per byte moved to or from memory.
"""

# %%
from lessons_lib.measuring import forward_cost

rows = []
for name, new, cached in (
    ("decode", 1, 64),
    ("decode", 1, 512),
    ("prefill", 64, 0),
    ("prefill", 256, 0),
    ("prefill", 512, 0),
):
    cost = forward_cost(model, new, cached)
    rows.append(
        (name, new, cached, f"{cost.operations / 1e6:,.0f}", f"{cost.bytes / 1e6:.1f}", f"{cost.intensity:.1f}")
    )
step, chunk = forward_cost(model, 1, 64), forward_cost(model, 64)
print(
    f"prefill of 64 compared with decode at 64: {chunk.operations / step.operations:.0f} times the operations, {chunk.bytes / step.bytes:.1f} times the bytes"
)
Table(
    ["pass", "new tokens", "cached", "million operations", "million bytes", "operations per byte"],
    rows,
    caption="Operations and bytes of one pass, counted for float32",
)

# %% [markdown]
"""
The bytes hardly change from row to row, because nearly all of them are weights. The operations grow with the number of
new tokens, and so does the intensity. A prefill of 64 tokens does somewhat less than 64 times the operations of a
decode step, because only its last position gets logits: both passes score the vocabulary once.

A decode step reads 4 bytes per weight to do 2 operations: half an operation per byte. In bfloat16, with 2 bytes per
weight, it's about one. Is that low? It depends on the machine. A machine has a peak rate of operations per second
and a peak rate of bytes per second, its memory bandwidth. Their ratio is the intensity that keeps both busy. Work below
that ratio is limited by memory, and work above it by compute.

> **memory-bound**: limited by memory bandwidth. There are so few operations per byte that the arithmetic units wait for
> memory, so the work takes as long as moving its bytes.

> **compute-bound**: limited by arithmetic. There are so many operations per byte that memory waits for the arithmetic
> units, so the work takes as long as doing its operations.

Let's measure this machine: a large matrix product for the operations, a large copy for the bytes. For comparison, we
print the ratio of a GPU from its data sheet. That one is for bfloat16, the usual dtype for serving on such a GPU. Our
model computes in float32, whose elements take twice as many bytes.
"""

# %% tags=["measured"]
from lessons_lib.measuring import PassShape, machine_rates, pass_seconds

peak_operations, peak_bytes = machine_rates(model)
print(
    f"this machine: {peak_operations / 1e9:.0f} billion operations/s, {peak_bytes / 1e9:.0f} billion bytes/s: {peak_operations / peak_bytes:.0f} operations per byte"
)
print(f"NVIDIA H100 SXM, bfloat16: 989e12 operations/s, 3.35e12 bytes/s: {989e12 / 3.35e12:.0f} operations per byte")
print(
    f"our model in float32: decode at 512 {forward_cost(model, 1, 512).intensity:.1f}, prefill of 512 {forward_cost(model, 512).intensity:.0f} operations per byte"
)
print(
    f"decode at 64, its bytes:      {step.bytes / 1e6:.1f} million / {peak_bytes / 1e9:.0f} billion per second = {1e3 * step.bytes / peak_bytes:.2f} ms"
)
print(
    f"decode at 64, its operations: {step.operations / 1e6:.1f} million / {peak_operations / 1e9:.0f} billion per second = {1e3 * step.operations / peak_operations:.2f} ms"
)

# %% [markdown]
"""
Decode is far below the ratio of either machine, and a long prefill is above the ratio of this one. So going by the
counts, decode is memory-bound and prefill is compute-bound. Does the clock agree?

The last two lines turn the counts into time: bytes divided by bytes per second, and operations divided by operations
per second. The longer of the two is a lower bound for the pass. The clock will show more, because every pass also has a
fixed overhead: running Python and launching hundreds of small operations. For a model as small as ours, that overhead
exceeds the counted time of a decode step.

**Predict.** In operations, how does a prefill of 64 compare with a decode step at 64? The counting cell printed that
ratio. What is the ratio in *time*: how many times as long does the prefill take?
"""

# %%
predict("00.b", ...)

# %% tags=["measured"]
from lessons_lib.viz.charts import line_chart

lengths = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
decode, *seconds = pass_seconds(model, [PassShape(new=1, cached=64)] + [PassShape(new=n) for n in lengths], repeat=7)
reveal("00.b", seconds[6] / decode, "times as long")
print(
    f"decode at 64: {1e3 * decode:.1f} ms. Prefill of 64 tokens: {1e3 * seconds[6]:.1f} ms, of 512: {1e3 * seconds[9]:.1f} ms."
)
print(
    f"Per token, the prefill of 64 takes 1/{64 * decode / seconds[6]:.0f} of the time of a decode step, and the prefill of 512 takes 1/{512 * decode / seconds[9]:.0f}."
)
print(
    f"A pass over 16 tokens takes {seconds[4] / seconds[0]:.1f} times as long as a pass over 1, and a pass over 512 takes {seconds[9] / seconds[4]:.1f} times as long as one over 16."
)
line_chart(
    lengths,
    {"one pass": [1e3 * s for s in seconds], "per token": [1e3 * s / n for s, n in zip(seconds, lengths)]},
    xlabel="new tokens in the pass",
    ylabel="milliseconds",
    log="xy",
    title="Time of one forward pass",
    alt=f"Time of a forward pass against the number of new tokens in it. 1 token takes {1e3 * seconds[0]:.1f} ms, 16 tokens {1e3 * seconds[4]:.1f} ms, "
    f"512 tokens {1e3 * seconds[-1]:.1f} ms. The time of a pass rises slowly at first and then in proportion; the time per token falls, then levels off.",
)

# %% [markdown]
"""
The *one pass* curve has two parts. On the left it rises slowly: sixteen tokens need sixteen times the arithmetic of
one, but nowhere near sixteen times the time (the last printed line has the factor). On our small model, most of the
time on this side is the fixed overhead of a pass; on a large model, it goes into reading the weights. Both are paid
once per pass, not once per token, so a few more tokens come at a small extra cost. On the right the curve rises in
proportion: arithmetic takes the time, and each further token costs its share. Decode is at the left end and prefill at
the right, so a token in a prefill costs a small fraction of a token in a decode step.

To see past the fixed overhead, take a model with more weights. This one isn't trained, so it writes gibberish,
but its passes take as long as those of any model of its size. The table shows what percentage of each peak rate a pass
reaches, and which of the two rates it is closer to.
"""

# %% tags=["measured"]
from lessons_lib.measuring import larger_model


def limited_by(of_operations, of_bytes):
    """Which peak rate a pass is closer to, or "neither" if it reaches less than 40 % of both."""
    if max(of_operations, of_bytes) < 0.4:
        return "neither"
    return "memory" if of_bytes > of_operations else "compute"


larger = larger_model(model)
shapes = [PassShape(new=1, cached=64), PassShape(new=64), PassShape(new=128)]
rows = []
for shape, s in zip(shapes, pass_seconds(larger, shapes, repeat=3)):
    cost = forward_cost(larger, shape.new, shape.cached)
    shares = cost.operations / s / peak_operations, cost.bytes / s / peak_bytes
    name = "decode, 1 token" if shape.new == 1 else f"prefill, {shape.new} tokens"
    rows.append(
        (
            name,
            f"{1e3 * s:.0f}",
            f"{1e3 * s / shape.new:.1f}",
            *(f"{share:.0%}" for share in shares),
            limited_by(*shares),
        )
    )
print(f"{larger.num_parameters() / 1e6:.0f} million parameters")
print(
    f"measured here: decode is limited by {rows[0][5]} (the count says memory), prefill of 128 by {rows[2][5]} (the count says compute)"
)
del larger
Table(
    ["pass", "ms", "ms per token", "of peak operations/s", "of peak bytes/s", "limited by"],
    rows,
    caption="A larger model, median of 3",
)

# %% [markdown]
"""
Read the last column. *Memory* means that the pass uses a large part of the memory bandwidth while the arithmetic units
mostly wait; *compute* is the opposite. *Neither* means that something else takes most of the time, such as the
fixed overhead or other work on this machine. The peak rates were measured a moment earlier, so on a busy machine a
share may come out too high or too low, even above 100 %. If a row contradicts the count, rerun the two measuring cells
on an idle machine. (A copy has to write what it reads, while a pass over weights only reads them, so the share of peak
bytes/s is a rough guide.)

**A pass over one token makes poor use of the machine.** Keep that in mind for the end of the lesson.

Now compare the two loops as the text grows. One step without a cache computes all tokens; one step with a cache
computes one.
"""

# %% tags=["measured"]
lengths = [32, 64, 128, 192, 256, 384, 512]
seconds = pass_seconds(
    model, [PassShape(new=n) for n in lengths] + [PassShape(new=1, cached=n - 1) for n in lengths], repeat=9
)
without, cached = seconds[: len(lengths)], seconds[len(lengths) :]
print(
    f"one step at {lengths[0]} tokens: {without[0] / cached[0]:.1f} times faster with the cache; at {lengths[-1]}: {without[-1] / cached[-1]:.1f} times"
)
line_chart(
    lengths,
    {"without a cache": [1e3 * s for s in without], "with a cache": [1e3 * s for s in cached]},
    xlabel="tokens in the sequence",
    ylabel="milliseconds for one more token",
    title="Time of one step as the text grows",
    alt=f"Time of one step against the length of the sequence. Without a cache it grows from {1e3 * without[0]:.1f} ms at {lengths[0]} tokens to "
    f"{1e3 * without[-1]:.1f} ms at {lengths[-1]}; with a cache it goes from {1e3 * cached[0]:.1f} ms to {1e3 * cached[-1]:.1f} ms.",
)

# %% [markdown]
"""
## What the cache costs

The cache trades memory for time. How much memory? Attention is split into heads. In the original design, each head has
its own queries, keys and values.

> **grouped-query attention**: several query heads share one KV head, that is, one head of keys and values. The cache
> then holds fewer heads than the model has query heads.

**Exercise 00.4.** How many bytes does *one* token take in the cache? In every layer it stores a key and a value for
each KV head. Each of these is a vector of `head_dim` elements, and each element takes `bytes_per_element` bytes.

`config` is the configuration of a Hugging Face model. `config.num_hidden_layers` exists in every model family. The
names for the heads differ between families, so a helper is given: `kv_head_size(config)` returns
`(KV heads, size of a head)`. For a model with 2 layers and 4 query heads that share 1 KV head of size 8, in bfloat16 (2
bytes), the answer is 2 × 2 × 1 × 8 × 2 = 64 bytes.

**Predict** first: how many bytes does one token of story A take in our model? It computes in float32 and has this
shape:
"""

# %%
from lessons_lib.models import kv_head_size

kv_heads, head_dim = kv_head_size(model.config)
print(
    f"{model.config.num_hidden_layers} layers, {model.config.num_attention_heads} query heads, {kv_heads} KV heads of size {head_dim}, {model.dtype}"
)
predict("00.c", ...)

# %% exercise="00.4"
from lessons_lib.models.loading import cache_bytes_per_token

# %% [markdown]
"""
Check the formula against a real cache: the bytes of all its tensors after a prefill of A, divided by the number of
tokens.
"""

# %%
_, cache = prefill(model, prompt_ids)
total = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
print(f"{cache.get_seq_length()} tokens take {total:,} bytes: {total / cache.get_seq_length():,.0f} per token")
print(f"the formula says {cache_bytes_per_token(model.config, model.dtype.itemsize):,}")
assert total == cache.get_seq_length() * cache_bytes_per_token(model.config, model.dtype.itemsize)
reveal("00.c", total / cache.get_seq_length(), "bytes")

# %% [markdown]
"""
The formula needs only a configuration, no weights. So we can apply it to models that wouldn't fit on this machine,
using their published shapes.
"""

# %%
from transformers import GPT2Config, LlamaConfig, Qwen2Config, Qwen3Config

shapes = {
    "ours": model.config,
    "GPT-2 (124M)": GPT2Config(),
    "Qwen2.5-0.5B": Qwen2Config(num_hidden_layers=24, hidden_size=896, num_attention_heads=14, num_key_value_heads=2),
    "Qwen3-0.6B": Qwen3Config(
        num_hidden_layers=28, hidden_size=1024, num_attention_heads=16, num_key_value_heads=8, head_dim=128
    ),
    "Llama-2-7B": LlamaConfig(num_hidden_layers=32, hidden_size=4096, num_attention_heads=32, num_key_value_heads=32),
    "Llama-3-8B": LlamaConfig(num_hidden_layers=32, hidden_size=4096, num_attention_heads=32, num_key_value_heads=8),
    "Llama-3-70B": LlamaConfig(num_hidden_layers=80, hidden_size=8192, num_attention_heads=64, num_key_value_heads=8),
}
rows = []
for name, config in shapes.items():
    size, (heads, width) = cache_bytes_per_token(config, bytes_per_element=2), kv_head_size(config)
    rows.append(
        (
            name,
            config.num_hidden_layers,
            config.num_attention_heads,
            heads,
            width,
            f"{size / 1024:g} KiB",
            f"{8192 * size / 2**30:.2f} GiB",
        )
    )
Table(
    ["model", "layers", "query heads", "KV heads", "head size", "per token", "8,192 tokens"],
    rows,
    caption="KV cache in bfloat16",
)

# %% [markdown]
"""
Compare Llama-2-7B with Llama-3-8B: the same number of layers and query heads, a quarter of the KV heads, a quarter of
the cache. For Qwen3 the head size is not the hidden size divided by the number of heads; the configuration sets it
explicitly. And look at the last column: that is what one long conversation takes on a GPU that has to hold the weights
as well. From lesson 03 on, this memory is the main subject.

## The ledger

One table grows through the course: the same six requests, served in every way we have built. Here are its first two
rows.

- *tokens computed*: positions that went through the model. *Useful*: the share of them that a request needed.
- *cache reserved* and *used*: averages over the steps. *Copied per step*: bytes copied to rearrange the cache. A `DynamicCache` makes
  room for one more token by copying itself into a larger tensor.
- *speed*: tokens per second, relative to serving one request at a time with a cache.
"""

# %% tags=["measured"]
from lessons_lib.measuring import ledger

ledger(model, tokenizer, "00")

# %% [markdown]
"""
In the first row, one request at a time without a cache, most of the positions had been computed before. In the second
row, every position is computed only once, and each is needed. The price is memory, and a copy of the cache in every
step.

The first row computes about forty times as many positions but takes only a few times as long, because the stories are
short. None grows much longer than a hundred tokens, and a pass over so few tokens is mostly fixed overhead: it takes
only a few times as long as a pass over one, as *Time of one forward pass* shows. The longer the text, the more the
cache saves, as *Time of one step as the text grows* shows.

## What production does here

- **Hugging Face transformers**: `generate` ends up in `GenerationMixin._sample`
  (`src/transformers/generation/utils.py`), the same loop as `greedy_with_cache`: a prefill, then one token per
  iteration, with `torch.argmax` when `do_sample=False`. `DynamicCache` is in `src/transformers/cache_utils.py`; its
  `update` appends with `torch.cat`, which is the copy in the ledger.
- **vLLM (v1)**: in `vllm/v1/core/sched/scheduler.py`, the comment at the top of `Scheduler.schedule` says that there is
  no prefill phase and no decode phase. A request has a number of tokens and a number of *computed* tokens
  (`num_computed_tokens`), and each step lets the second catch up with the first. A request in prefill lags by its whole
  prompt; one in decode lags by a single token. We get there in lessons 02 and 09.
- The product of exercise 00.4 appears in `vllm/v1/kv_cache_interface.py` as the `page_size_bytes` of an attention
  layer: two, times KV heads, times head size, times bytes per element, times the number of tokens in a block (lesson
  03).

## What is still wrong

A decode step reads all weights to advance one story by one token. What if one pass advanced several stories? The
weights would be read once for all of them. Let's try: the same decode step with 1, 2, 4 and 8 rows.
"""

# %% tags=["measured"]
rows_in_batch = [1, 2, 4, 8]
seconds = pass_seconds(model, [PassShape(new=1, cached=64, rows=rows) for rows in rows_in_batch], repeat=15)
print(f"8 rows take {seconds[-1] / seconds[0]:.1f} times as long as one row, and give 8 times as many tokens.")
Table(
    ["rows", "ms per step", "ms per token", "tokens per second"],
    [(rows, f"{1e3 * s:.1f}", f"{1e3 * s / rows:.2f}", f"{rows / s:,.0f}") for rows, s in zip(rows_in_batch, seconds)],
    caption="One decode step after 64 cached tokens, median of 15",
)

# %% [markdown]
"""
Serving one request at a time leaves most of the machine idle. But the six prompts differ in length, and so will the six
answers. How do sequences of unequal length fit into one tensor, and what happens when one ends before the others? That
is lesson 01.

## Quiz

Open an answer to choose it. Each one explains why it is right or wrong.
"""

# %%
quiz("00")

# %%
progress("00")

# %% [markdown]
"""
## References

- Vaswani et al. 2017, *Attention Is All You Need*, section 3.2: queries, keys, values. https://arxiv.org/abs/1706.03762
- Shazeer 2019, *Fast Transformer Decoding: One Write-Head is All You Need*, sections 2.4 and 3: why decoding one token at a time is memory-bound. https://arxiv.org/abs/1911.02150
- Ainslie et al. 2023, *GQA: Training Generalized Multi-Query Transformer Models from Multi-Head Checkpoints*. https://arxiv.org/abs/2305.13245
- Williams, Waterman and Patterson 2009, *Roofline: An Insightful Visual Performance Model for Multicore Architectures*. https://doi.org/10.1145/1498765.1498785
- Pope et al. 2022, *Efficiently Scaling Transformer Inference*, section 2: what prefill and decode cost. https://arxiv.org/abs/2211.05102
- NVIDIA, *H100 Tensor Core GPU Data Sheet*: the two peak rates of the SXM version, without sparsity. https://www.nvidia.com/en-us/data-center/h100/
- Hugging Face, *Caching*, in the transformers documentation. https://huggingface.co/docs/transformers/cache_explanation
"""
