# %% [markdown]
"""
# 00 · One request: prefill, decode, KV cache

**What does a model compute to write one token, and how much of that had it computed before?**

60 minutes · difficulty: easy · routes: *ideas* (00–06), *serving* (00–03, 05, 09–12) · you need: Python, and a little PyTorch (what the shape
of a tensor is, what `argmax` does). Nothing of serving.

You write a greedy decoding loop twice. The first one computes everything again for every token. The second one keeps what it has computed,
and writes the same tokens. Then you measure what it saved, what it costs in memory, and what it still wastes.

Cells that say `raise NotImplementedError()` are yours. The cell after each of them checks what you wrote. If you skip one, the check hands
out a working version and the notebook goes on: from there on the function's name means yours, or the course's if you skipped it.
`hint("00.1")` helps in steps, and `solution("00.1")` shows the code.
"""

# %%
import inspect

import torch

from lessons_lib.checks import check, hint, predict, progress, quiz, reveal, solution
from lessons_lib.measuring import STORIES
from lessons_lib.models import load_model
from lessons_lib.viz.tables import Table

model, tokenizer = load_model(device="cpu")  # in float32: equal means equal to the last token
print(f"{model.num_parameters():,} parameters, {model.config.num_hidden_layers} layers, {tokenizer.vocab_size:,} tokens in the vocabulary")

# %% [markdown]
"""
## The problem

Six people ask this model to go on with a story. They are requests A to F. They stay with us through the whole course, each in one colour in every picture.
Their prompts are not equally long, and they do not ask for equally much.

> **token**: a piece of text with a number, often a word with the space before it. A model reads and writes token numbers, never letters.

> **prompt**: the tokens that a request brings along, and that the model is to continue.
"""

# %%
encoded = {story.name: tokenizer(story.prompt).input_ids for story in STORIES}
Table(
    ["request", "prompt tokens", "new tokens wanted", "the story begins"],
    [(s.name, len(encoded[s.name]), s.max_new_tokens, s.prompt if len(s.prompt) < 60 else s.prompt[:57] + "...") for s in STORIES],
    caption="Six requests",
)

# %% [markdown]
"""
Today only one request is served at a time. Take A. Here are its tokens, each with its number, and what one call of the model makes of them.

> **forward pass**: one call of the model. A sequence of tokens goes in; logits come out for every position.

> **logits**: scores, one for each token of the vocabulary. The higher the score, the better the token fits as the *next* one.
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
print("best three after the last position:", [tokenizer.decode([token]) for token in best])

# %% [markdown]
"""
The logits have a row for every position. Row 0 scores what comes after the first token, row 1 what comes after the second, and the last row
what comes after the whole prompt. Only the last row tells something new: we know the tokens inside the prompt already.

One pass gives one token. To get a second one, put the first behind the prompt and call the model again.

> **greedy decoding**: taking the token with the highest logit every time. There is no chance in it: the same prompt always gives the same answer.

> **end token**: a token by which the model says that the text is over. The answer ends with it, or at a limit that the request sets.
"""

# %%
rows = []
for position in range(4):
    best = int(logits[0, position].argmax())
    rows.append((position, tokenizer.decode(prompt_ids[: position + 1]), tokenizer.decode([best]), tokenizer.decode([prompt_ids[position + 1]])))
Table(["position", "the model has read", "its favourite next token", "what the prompt says"], rows, caption="What the first rows of the logits say")

# %% [markdown]
"""
## Predict

The plainest loop computes the whole sequence again for every new token. Before you write it: **how many token positions does the model compute
in all, to write the new tokens that A wants?** The table above says how long A's prompt is and how many tokens it wants; assume that the story does not end before.
Count every token of every pass: a pass over 20 tokens counts 20, however often those 20 were computed before.
"""

# %%
predict("00.a", ...)

# %% [markdown]
"""
## Build: without a cache

**Exercise 00.1.** Write the plain loop. `prompt_ids` is a list of ints, and so is what you return: the new tokens only, without the prompt.

Keep a list of all tokens so far, beginning with a *copy* of the prompt. In each turn make a tensor of shape `[1, tokens]` from it, one row with
the whole sequence. Call the model, take the argmax of the last position, and append it. Pass `use_cache=False` too: otherwise the model
fills a cache in every pass that nobody reads, which changes no token and costs time and memory.

Stop in one of two ways. Either there are `max_new_tokens` new tokens (it is at least 1), or the token just appended is `eos_token_id`; it stays in the answer. `eos_token_id` may
be `None`, which no token equals.

An example: if the model continues 5, 17, 42 with 74, 91, 74, 4, 82, ..., then `greedy_without_cache(model, [5, 17, 42], 3)` returns `[74, 91, 74]`.
With a limit of 6 and the end token 4 it returns `[74, 91, 74, 4]`.

(`@torch.inference_mode()` above the function tells PyTorch that nobody will ask for gradients.)
"""

# %% exercise="00.1"
from lessons_lib.batching.greedy import greedy_without_cache

# %% [markdown]
"""
Story A, as `greedy_without_cache` goes on with it:
"""

# %%
answer = greedy_without_cache(model, prompt_ids, A.max_new_tokens, tokenizer.eos_token_id)
print(f"{A.prompt}|{tokenizer.decode(answer)}")
print(f"\n{len(prompt_ids)} prompt tokens, {len(answer)} new ones")

# %% [markdown]
"""
Now step through the first passes. `record_steps` runs the function and writes down what the model was given. Pale tokens were computed in the step before.
The words *KV cache*, *prefill* and *decode* in the picture are explained below; here nothing is kept yet, and the first step is called prefill, every later one decode.
"""

# %%
from lessons_lib.recording.cache_growth import record_steps
from lessons_lib.viz import Stepper
from lessons_lib.viz.cache import cache_growth_table, draw_cache_growth

plain = record_steps(model, tokenizer, prompt_ids, 8, greedy=greedy_without_cache)
Stepper(lambda i: draw_cache_growth(plain, i, name="A"), len(plain))

# %% [markdown]
"""
In every step the input is one token longer, and all the rest of it was computed in the step before. Count what that amounts to. The last line only counts: it adds up the lengths
of the passes, for A's prompt and for answers of 30, 60 and 120 tokens.
"""

# %%
from lessons_lib.recording import watch_forwards

with watch_forwards(model) as plain_passes:
    greedy_without_cache(model, prompt_ids, A.max_new_tokens, tokenizer.eos_token_id)
computed = sum(forward.tokens for forward in plain_passes)
needed = len(prompt_ids) + len(plain_passes) - 1
print(f"{len(plain_passes)} passes of {plain_passes[0].tokens} to {plain_passes[-1].tokens} tokens: {computed} positions computed")
print(f"different ones among them: {needed}. Each was computed {computed / needed:.1f} times on average.")
print("; ".join(f"{new} new tokens: {sum(len(prompt_ids) + i for i in range(new)):,} positions" for new in (30, 60, 120)))
reveal("00.a", computed, "positions")

# %% [markdown]
"""
The number of passes grows with the answer, and so does the length of each pass. An answer twice as long takes more than three times the work here, and the longer it is, the closer to
four times: the work grows with the *square* of the answer's length.

## The idea: keep the keys and values

Inside a layer, tokens meet in one place only: attention. Each token makes three vectors there. With its *query* it asks, with its *key* it
answers the questions of others, and its *value* is what they take along. A new token compares its query with the keys of all tokens before it and
with its own, and mixes their values accordingly.

> **causal attention**: attention in which a token sees itself and the tokens before it, never a later one.

A token cannot see what comes later. So its keys and values cannot change when something is appended. Is that so? The next cell
computes the prompt once as it is and once with four more tokens, and compares the keys of the prompt's tokens in the last layer.
"""

# %%
from lessons_lib.batching import prefill

_, short = prefill(model, prompt_ids)
_, long = prefill(model, prompt_ids + answer[:4])
alone, followed = short.layers[-1].keys, long.layers[-1].keys[:, :, : len(prompt_ids)]
print("keys of the last layer [rows, KV heads, tokens, size]:", list(alone.shape), "and", list(long.layers[-1].keys.shape))
print(f"the prompt's keys: numbers of up to {alone.abs().max():.0f}; differences all below 0.0001: {bool((alone - followed).abs().max() < 1e-4)}")

# %% [markdown]
"""
They are the same, up to rounding. A float32 has some seven digits, and PyTorch may add up the terms of a sum in another order when the tensor has another shape. So the last digits
may differ, by millionths here. A key that had changed would differ in its first digits.

So compute them once and keep them.

> **KV cache**: the keys and values of all tokens so far, of every layer, kept for the steps to come. Queries are not kept: only a new token asks.

That splits the work of a request into two phases.

> **prefill**: computing all tokens of the prompt in one forward pass. It fills the cache and gives the first new token.

> **decode step**: a forward pass over one token, the newest. It reads the cache, adds one key and value per layer to it, and gives the next token.

Prefill is given. `DynamicCache` is the cache of Hugging Face transformers: hand it to the model as `past_key_values`, and the model reads from it and
adds to it by itself. `logits_to_keep=1` asks for the logits of the last position only.
"""

# %%
print(inspect.getsource(prefill))

# %% [markdown]
"""
## Build: one decode step

**Exercise 00.2.** What goes in, and what comes out? This is where most people slip, so take it slowly.

`prefill` returned the first new token. The model *chose* that token but has never *read* it: the cache holds the prompt, and nothing of the new token.
So the input of the next pass is this token, alone. In it go the token's number, and the cache with everything before it. Out come
logits for the token *after* it.

An example. The cache holds 5, 17, 42, and prefill returned 74. `decode_step(model, 74, cache)` calls the model with the
tensor `[[74]]`, of shape `[1, 1]`, and with the cache. Afterwards the cache holds four tokens, 5, 17, 42, 74, and the call returns 91, as an int.

The model counts positions from the cache: 74 lands at position 3 without your doing anything.
"""

# %% exercise="00.2"
from lessons_lib.batching.greedy import decode_step

# %% [markdown]
"""
One step on request A. See how the cache is always one token behind the text.
"""

# %%
first, cache = prefill(model, prompt_ids)
print(f"after prefill:     the cache holds {cache.get_seq_length()} tokens; chosen: {tokenizer.decode([first])!r}")
second = decode_step(model, first, cache)
print(f"after decode step: the cache holds {cache.get_seq_length()} tokens; fed: {tokenizer.decode([first])!r}, chosen: {tokenizer.decode([second])!r}")

# %% [markdown]
"""
## Build: the loop with a cache

**Exercise 00.3.** Put `prefill` and `decode_step` together. The function takes and returns the same as `greedy_without_cache`; again `max_new_tokens` is at least 1.

The token of the prefill is the first one of the answer. Each decode step feeds the newest token and gives one more. So 3 new tokens take one
prefill and **two** decode steps. A third step would compute a token that nobody asked for: look whether to stop *before* you make the next step. And the very first token
may already be the end token.
"""

# %% exercise="00.3"
from lessons_lib.batching.greedy import greedy_with_cache

# %% [markdown]
"""
The same story, step by step. Move the slider, or press Tab to reach it and use the arrow keys.
"""

# %%
steps = record_steps(model, tokenizer, prompt_ids, 12, greedy=greedy_with_cache)
Stepper(lambda i: draw_cache_growth(steps, i, name="A"), len(steps))

# %%
cache_growth_table(steps[:4], caption="Request A, the first four steps: what goes in, what lies in the cache, what comes out")

# %% [markdown]
"""
Read two rows aloud. Row 1, the prefill: all tokens of the prompt go in, the cache was empty and now holds them all, and out comes the first new token.
Row 2, a decode step: *one* token goes in, and it is the output of row 1. The cache gets longer by that one token, and out comes the next. From here on every row is
like row 2: the output of one row is the input of the next.
"""

# %%
with watch_forwards(model) as cached_passes:
    greedy_with_cache(model, prompt_ids, A.max_new_tokens, tokenizer.eos_token_id)
with_cache = sum(forward.tokens for forward in cached_passes)
print(f"without a cache: {len(plain_passes)} passes, {computed} positions computed")
print(f"with a cache:    {len(cached_passes)} passes, {with_cache} positions computed: {computed / with_cache:.1f} times fewer")

# %% [markdown]
"""
## Prove it

Saving work is worth nothing if the text changes. The judge is `generate` of Hugging Face transformers, told to be greedy. Both functions must
write the same tokens as it does, one by one, for all six requests. These six stop at their limits, before the story is over. So a seventh goes along, which ends by itself: it shows that the
functions stop at the end token where `generate` does.
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
    wanted = oracle(*arguments)
    results = [greedy(model, *arguments, tokenizer.eos_token_id) == wanted for greedy in (greedy_without_cache, greedy_with_cache)]
    stopped = "end token" if wanted[-1] == tokenizer.eos_token_id else "limit"
    rows.append((name, limit, len(wanted), stopped, *("equal" if same else "DIFFERENT" for same in results), tokenizer.decode(wanted)[:50].strip()))
assert all("DIFFERENT" not in row for row in rows) and "end token" in rows[-1]
Table(["request", "limit", "new tokens", "stopped by", "without a cache", "with a cache", "how it goes on"], rows, caption="Token for token against generate")

# %% [markdown]
"""
And if the wrong tokens are fed? No error is raised. The model answers every question it is asked. Here is what the reader of story A gets.
"""

# %%
@torch.inference_mode()
def go_on(feed, keep=True):
    token, cache = prefill(model, prompt_ids)
    new = [token]
    while len(new) < A.max_new_tokens:
        ids = torch.tensor([feed(prompt_ids + new)])
        new.append(int(model(input_ids=ids, past_key_values=cache if keep else None).logits[0, -1].argmax()))
    return new


right = go_on(lambda text: text[-1:])
wrong = {
    "the token before it": go_on(lambda text: text[-2:-1]),
    "the last token, but no cache": go_on(lambda text: text[-1:], keep=False),
    "the whole text again": go_on(lambda text: text),
}
rows = [("the last token: right", None, tokenizer.decode(right)[:110])]
for way, new in wrong.items():
    first = next((number for number, pair in enumerate(zip(new, right), start=1) if pair[0] != pair[1]), None)
    rows.append((way, first, tokenizer.decode(new)[:110]))
Table(["fed in each decode step", "first wrong token", "story A goes on"], rows)

# %% [markdown]
"""
Some mistakes can be heard at once. Feeding the token before asks the same question twice: the model has already said what follows that token, and mostly says it again, hence the stutter.
Other mistakes cannot be heard: a text may be wrong from some token on and still read like a story. In the last row the whole text was put into the cache again and again, and the model makes the best
of it. So reading the output proves nothing. Comparing it with the oracle, token for token, does.
"""

# %% [markdown]
"""
## Measure: two regimes

Prefill and decode are calls of the same model. Yet they strain a machine in different places. Count what one pass asks for:

- **Operations.** Every weight of every layer is used once for each token: one multiplication and one addition. Attention adds to that: each new token's query meets the key and the value
  of every token before it. So a decode step after 512 cached tokens does more than one after 64.
- **Bytes.** Every weight must be fetched from memory once for each *pass*, however many tokens share it. The cache is fetched too.

> **arithmetic intensity**: operations done for each byte moved to or from memory.
"""

# %%
from lessons_lib.measuring import forward_cost

rows = []
for name, new, cached in (("decode", 1, 64), ("decode", 1, 512), ("prefill", 64, 0), ("prefill", 256, 0), ("prefill", 512, 0)):
    cost = forward_cost(model, new, cached)
    rows.append((name, new, cached, f"{cost.operations / 1e6:,.0f}", f"{cost.bytes / 1e6:.1f}", f"{cost.intensity:.1f}"))
step, chunk = forward_cost(model, 1, 64), forward_cost(model, 64)
print(f"prefill of 64 against decode at 64: {chunk.operations / step.operations:.0f} times the operations, {chunk.bytes / step.bytes:.1f} times the bytes")
Table(["pass", "new tokens", "cached", "million operations", "million bytes", "operations a byte"], rows, caption="Counted, in float32")

# %% [markdown]
"""
The bytes hardly change from row to row: they are nearly all weights. The operations grow with the number of new tokens, and so does the intensity. A prefill of 64 tokens does somewhat less
than 64 times the operations of a decode step: of all its positions only the last one gets logits, so the scores of the vocabulary are computed once in both.

In a decode step a weight of 4 bytes is fetched to do 2 operations: half an operation a byte. In bfloat16, with 2 bytes, it is about one. Is that little? It depends on the machine.
A machine can do so many operations in a second and can move so many bytes in a second. Their ratio is the intensity that would keep both busy. Work below it is bound by memory, work above it by compute.

> **memory-bound**: work with so few operations for each byte moved that the arithmetic units wait for memory. Its time is that of the bytes.

> **compute-bound**: work with so many operations for each byte moved that memory waits for the arithmetic. Its time is that of the operations.

Measure this machine: a large matrix product for the operations, a large copy for the bytes. For comparison, the ratio of a GPU, from its data sheet; it is stated for bfloat16, the type in which
such a GPU usually serves, while our model computes in float32 with numbers twice as long.
"""

# %% tags=["measured"]
from lessons_lib.measuring import PassShape, machine_rates, pass_seconds

best_operations, best_bytes = machine_rates(model)
print(f"this machine: {best_operations / 1e9:.0f} billion operations/s, {best_bytes / 1e9:.0f} billion bytes/s: {best_operations / best_bytes:.0f} operations a byte")
print(f"NVIDIA H100 SXM, bfloat16: 989e12 operations/s, 3.35e12 bytes/s: {989e12 / 3.35e12:.0f} operations a byte")
print(f"our model in float32: decode at 512 {forward_cost(model, 1, 512).intensity:.1f}, prefill of 512 {forward_cost(model, 512).intensity:.0f} operations a byte")
print(f"decode at 64, its bytes:      {step.bytes / 1e6:.1f} million / {best_bytes / 1e9:.0f} billion a second = {1e3 * step.bytes / best_bytes:.2f} ms")
print(f"decode at 64, its operations: {step.operations / 1e6:.1f} million / {best_operations / 1e9:.0f} billion a second = {1e3 * step.operations / best_operations:.2f} ms")

# %% [markdown]
"""
Decode lies far below the ratio of either machine, and a long prefill above that of this one. So counting says: decode is memory-bound, prefill is compute-bound. Does the clock agree?

The last two lines show how counting turns into time: bytes divided by bytes a second, operations divided by operations a second, and the longer of the two is the least that the pass can take.
The clock will show more. Every pass pays a fixed price besides, for Python and for starting some hundred small operations. On a model as small as ours that price is larger than the counted time of a decode step.

**Predict.** The counting cell says how many times the operations of a decode step (at 64) a prefill of 64 tokens does. How many times *longer* does it take?
"""

# %%
predict("00.b", ...)

# %% tags=["measured"]
from lessons_lib.viz.charts import line_chart

lengths = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
decode, *seconds = pass_seconds(model, [PassShape(new=1, cached=64)] + [PassShape(new=n) for n in lengths], repeat=7)
reveal("00.b", seconds[6] / decode, "times as long")
print(f"decode at 64: {1e3 * decode:.1f} ms. Prefill of 64 tokens: {1e3 * seconds[6]:.1f} ms, of 512: {1e3 * seconds[9]:.1f} ms.")
print(f"A token of the prefill of 64 costs 1/{64 * decode / seconds[6]:.0f} of a decode step, one of the prefill of 512 costs 1/{512 * decode / seconds[9]:.0f}.")
print(f"A pass over 16 tokens takes {seconds[4] / seconds[0]:.1f} times as long as a pass over 1, one over 512 takes {seconds[9] / seconds[4]:.1f} times as long as one over 16.")
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
The curve of a pass has two parts. On the left it rises little: sixteen tokens ask for sixteen times the arithmetic of one, and take nowhere near sixteen times as long (the line above the chart says
how long). On our small model most of that floor is the fixed price of a pass; in a large model it is the weights. Both are paid for each pass and not for each token, so a few more tokens ride along at a small extra cost.
On the right the curve rises in proportion: now arithmetic takes the time, and each further token costs its share. Decode lives at the left end, prefill at the right. So a token of a prefill
costs a small part of what a token of a decode step costs.

To see memory alone, take a model with more weights. This one writes nothing sensible, but its passes take the time of its size. The last two columns say how much of
the best rates above is reached. Those rates were measured a moment earlier: on a machine that is busy with other things as well, a share may come out too high or too low, and even pass 100 %.
"""

# %% tags=["measured"]
from lessons_lib.measuring import larger_model

larger = larger_model(model)
shapes = [PassShape(new=1, cached=64), PassShape(new=64), PassShape(new=128)]
rows = []
for shape, s in zip(shapes, pass_seconds(larger, shapes, repeat=3)):
    cost = forward_cost(larger, shape.new, shape.cached)
    shares = f"{cost.operations / s / best_operations:.0%}", f"{cost.bytes / s / best_bytes:.0%}"
    rows.append(("decode, 1 token" if shape.new == 1 else f"prefill, {shape.new} tokens", f"{1e3 * s:.0f}", f"{1e3 * s / shape.new:.1f}", *shares))
print(f"{larger.num_parameters() / 1e6:.0f} million parameters")
del larger
Table(["pass", "ms", "ms a token", "of best operations/s", "of best bytes/s"], rows, caption="A larger model, median of 3")

# %% [markdown]
"""
Read the rows crosswise. Decode uses a large part of what memory can deliver and little of the arithmetic; the units are there and have nothing to do. Prefill is the other way round.
(A copy has to write what it reads; a pass over weights only reads them. So the share of the copy rate is a rough guide.)

**A pass over one token is a bad bargain.** Keep that in mind for the end of the lesson.

Now the two loops against each other, as the text grows. One step without a cache computes all tokens; one step with a cache computes one.
"""

# %% tags=["measured"]
lengths = [32, 64, 128, 192, 256, 384, 512]
seconds = pass_seconds(model, [PassShape(new=n) for n in lengths] + [PassShape(new=1, cached=n - 1) for n in lengths], repeat=9)
without, cached = seconds[: len(lengths)], seconds[len(lengths) :]
print(f"one step at {lengths[0]} tokens: {without[0] / cached[0]:.1f} times faster with the cache; at {lengths[-1]}: {without[-1] / cached[-1]:.1f} times")
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

The cache buys time with memory. How much? Attention has several heads. Each works on its own, with keys and values of its own.

> **grouped-query attention**: several query heads share one KV head, a pair of key and value. The cache then holds fewer heads than the model has query heads.

**Exercise 00.4.** How many bytes does *one* token leave in the cache? In every layer it leaves a key and a value for each KV head. Each of the two is a row of
`head_dim` numbers, and each number takes `bytes_per_element` bytes.

`config` is the configuration of a Hugging Face model. `config.num_hidden_layers` is there in every family. The heads are named differently from family to family, so a helper is given:
`kv_head_size(config)` returns `(KV heads, size of a head)`. For a model with 2 layers, 4 query heads over 1 KV head of size 8, in bfloat16 (2 bytes), the answer is
2 × 2 × 1 × 8 × 2 = 64 bytes.

**Predict** first: how many bytes for one token of story A in our model? It computes in float32, and this is its shape:
"""

# %%
from lessons_lib.models import kv_head_size

kv_heads, head_dim = kv_head_size(model.config)
print(f"{model.config.num_hidden_layers} layers, {model.config.num_attention_heads} query heads over {kv_heads} KV heads of size {head_dim}, {model.dtype}")
predict("00.c", ...)

# %% exercise="00.4"
from lessons_lib.models.loading import cache_bytes_per_token

# %% [markdown]
"""
Hold the formula against a real cache: the bytes of all its tensors after a prefill of A, divided by its tokens.
"""

# %%
_, cache = prefill(model, prompt_ids)
total = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
print(f"{cache.get_seq_length()} tokens take {total:,} bytes: {total / cache.get_seq_length():,.0f} a token")
print(f"the formula says {cache_bytes_per_token(model.config, model.dtype.itemsize):,}")
assert total == cache.get_seq_length() * cache_bytes_per_token(model.config, model.dtype.itemsize)
reveal("00.c", total / cache.get_seq_length(), "bytes")

# %% [markdown]
"""
A configuration is enough; no weights are needed. So here are models that would not fit on this machine, by their published shapes.
"""

# %%
from transformers import GPT2Config, LlamaConfig, Qwen2Config, Qwen3Config

shapes = {
    "ours": model.config,
    "GPT-2 (124M)": GPT2Config(),
    "Qwen2.5-0.5B": Qwen2Config(num_hidden_layers=24, hidden_size=896, num_attention_heads=14, num_key_value_heads=2),
    "Qwen3-0.6B": Qwen3Config(num_hidden_layers=28, hidden_size=1024, num_attention_heads=16, num_key_value_heads=8, head_dim=128),
    "Llama-2-7B": LlamaConfig(num_hidden_layers=32, hidden_size=4096, num_attention_heads=32, num_key_value_heads=32),
    "Llama-3-8B": LlamaConfig(num_hidden_layers=32, hidden_size=4096, num_attention_heads=32, num_key_value_heads=8),
    "Llama-3-70B": LlamaConfig(num_hidden_layers=80, hidden_size=8192, num_attention_heads=64, num_key_value_heads=8),
}
rows = []
for name, config in shapes.items():
    size, (heads, width) = cache_bytes_per_token(config, bytes_per_element=2), kv_head_size(config)
    rows.append((name, config.num_hidden_layers, config.num_attention_heads, heads, width, f"{size / 1024:g} KiB", f"{8192 * size / 2**30:.2f} GiB"))
Table(["model", "layers", "query heads", "KV heads", "head size", "a token", "8,192 tokens"], rows, caption="KV cache in bfloat16")

# %% [markdown]
"""
Compare the two rows of Llama-2-7B and Llama-3-8B: the same layers and query heads, a quarter of the KV heads, a quarter of the cache. In the row of Qwen3 the head size is not
the hidden size divided by the heads; the configuration states it. And look at the last column: what one long conversation takes, on a GPU that has to hold
the weights as well. From lesson 03 on, this memory is what everything is about.

## The ledger

One table goes through the course: the same six requests, served in every way that we have built. Here are its first two rows.

- *tokens computed*: positions that went through the model. *Useful*: the share of them that a request needed.
- *cache reserved* and *used*: averages over the steps. *Copied a step*: a `DynamicCache` makes room for one more token by copying all of itself into a larger tensor.
- *speed*: tokens a second, relative to one request at a time with a cache.
"""

# %% tags=["measured"]
from lessons_lib.measuring import ledger

ledger(model, tokenizer, "00")

# %% [markdown]
"""
Read the first row aloud: alone and without a cache, most of the positions had been computed before. In the second row every position is computed once and needed; what it pays is
memory, and a copy of the cache in every step.

Some forty times the positions, and yet only a few times the time: the stories are short. None grows past some hundred tokens, and a pass over so few takes only a few times as long as a pass over one, for
much of its time is the fixed price: *Time of one forward pass* shows it. The longer the text, the more the cache saves: that is what *Time of one step as the text grows* shows.

## What production does here

- **Hugging Face transformers**: `generate` ends up in `GenerationMixin._sample` (`src/transformers/generation/utils.py`), the same loop as `greedy_with_cache`: a prefill, then one token
  a turn, `torch.argmax` when `do_sample=False`. `DynamicCache` lives in `src/transformers/cache_utils.py`; its `update` appends with `torch.cat`, which is the copy in the ledger.
- **vLLM (v1)**: in `vllm/v1/core/sched/scheduler.py` the note at the top of `Scheduler.schedule` says that there is no prefill phase and no decode phase. A request has a number
  of tokens and a number of *computed* tokens (`num_computed_tokens`); a step lets the second catch up with the first. Prefill is a request that lags by its whole prompt, decode one that lags
  by a single token. We get there in lesson 02.
- The product of exercise 00.4 stands in `vllm/v1/kv_cache_interface.py`, as the `page_size_bytes` of an attention layer: two, times KV heads, times head size, times bytes, times the
  tokens of a block.

## What is still wrong

A decode step fetches all weights to advance one story by one token. What if several stories were fed in the same pass? The weights would be fetched once for all of them. Try it: the same decode step with 1, 2, 4 and 8 rows.
"""

# %% tags=["measured"]
rows_in_batch = [1, 2, 4, 8]
seconds = pass_seconds(model, [PassShape(new=1, cached=64, rows=rows) for rows in rows_in_batch], repeat=15)
print(f"8 rows take {seconds[-1] / seconds[0]:.1f} times as long as one row, and give 8 times as many tokens.")
Table(
    ["rows", "ms a step", "ms a token", "tokens a second"],
    [(rows, f"{1e3 * s:.1f}", f"{1e3 * s / rows:.2f}", f"{rows / s:,.0f}") for rows, s in zip(rows_in_batch, seconds)],
    caption="One decode step after 64 cached tokens, median of 15",
)

# %% [markdown]
"""
One request at a time leaves most of the machine idle. But the six prompts are not equally long, and the six answers will not be either. How do sequences of unequal length go into one
tensor, and what happens when one ends before the others? That is lesson 01.

## Quiz

Open an answer to choose it. Every answer says why it is right or wrong.
"""

# %%
quiz("00")

# %%
progress("00")

# %% [markdown]
"""
## References

- Vaswani et al. 2017, *Attention Is All You Need*, section 3.2: queries, keys, values. https://arxiv.org/abs/1706.03762
- Shazeer 2019, *Fast Transformer Decoding: One Write-Head is All You Need*, sections 2.4 and 3: why decoding one token at a time is bound by memory. https://arxiv.org/abs/1911.02150
- Ainslie et al. 2023, *GQA: Training Generalized Multi-Query Transformer Models from Multi-Head Checkpoints*. https://arxiv.org/abs/2305.13245
- Williams, Waterman and Patterson 2009, *Roofline: An Insightful Visual Performance Model for Multicore Architectures*. https://doi.org/10.1145/1498765.1498785
- Pope et al. 2022, *Efficiently Scaling Transformer Inference*, section 2: what prefill and decode cost. https://arxiv.org/abs/2211.05102
- NVIDIA, *H100 Tensor Core GPU Data Sheet*: the two numbers of the SXM version, without sparsity. https://www.nvidia.com/en-us/data-center/h100/
- Hugging Face, *Caching*, in the transformers documentation. https://huggingface.co/docs/transformers/cache_explanation
"""
