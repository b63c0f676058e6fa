# %% [markdown]
"""
# 00 · One request: prefill, decode, KV cache

![All tokens of a text go through the model to write the next one](../lessons_lib/assets/openings/00.svg)

**What does a model compute to write one token, and how much of that had it computed already?**

90 minutes · difficulty: easy · routes: *ideas* (00–06, 17), *kernels* (00, 02–08, 13), *serving* (00–03, 05, 06,
09–12, 14–17) · you need: Python and a little PyTorch (what a tensor's shape is, what `argmax` does). You don't need to
know anything about serving.

You'll write a loop that continues a text, twice. The first version recomputes everything for every token. In between,
you'll see on four tokens why most of that is unnecessary. The second version keeps what it has computed, and writes the
same tokens. Then you'll measure how much work that saves, and how much memory it costs.

Cells that say `raise NotImplementedError()` are yours to fill in. The cell after each one checks what you wrote. If you
skip an exercise, the check returns a working version, so the rest of the notebook still runs. `hint("00.1")` shows one
hint per call, and `solution("00.1")` shows the code. If you want to start an exercise again, `reset("00.1")` puts it as
it was into a new cell.
"""

# %% folded=true
import torch

from lessons_lib.checks import check, hint, predict, progress, quiz, reset, reveal, solution
from lessons_lib.measuring import STORIES
from lessons_lib.models import cache_bytes_per_token, kv_head_size, load_model
from lessons_lib.viz.source import show_source
from lessons_lib.viz.tables import Table
from lessons_lib.viz.words import marked

# %%
# float32, so that results agree down to the last token
model, tokenizer = load_model(device="cpu")
print(f"{model.num_parameters():,} weights, {tokenizer.vocab_size:,} tokens in the vocabulary")

# %% [markdown]
"""
> **weights**: the numbers that a model has learned, also called parameters. Nearly all of them are in matrices. Serving
> never changes them, and all requests use the same ones.

## The problem

A model writes one token per call, and every token depends on the whole text before it. So does each call have to read
the whole text again? For a long text, that decides whether an answer takes seconds or a minute.

Six requests, A to F, each ask this model to continue a story. They stay with us through the whole course, and each
keeps its color in every picture.

> **token**: a piece of text, often a word with the space before it. The vocabulary lists all tokens and gives each an
> integer id. A model reads and writes token ids, never letters.

> **prompt**: the tokens that a request starts with and that the model continues.
"""

# %%
encoded = {story.name: tokenizer(story.prompt).input_ids for story in STORIES}
Table(
    ["request", "prompt tokens", "new tokens wanted", "prompt"],
    [(s.name, len(encoded[s.name]), s.max_new_tokens,
      s.prompt if len(s.prompt) < 60 else s.prompt[:57] + "...") for s in STORIES],
    caption="Six requests",
)

# %% [markdown]
"""
Take A. Here are its tokens with their ids, and what one call of the model returns for them.

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
The axis *rows* has one entry per request, here one. The logits of position 0 predict the token after the first one,
those of position 1 the token after the second, and those of the last position the token after the whole prompt. Only
the last ones tell us something new: we already know the tokens inside the prompt.

So one pass gives one new token. To get a second one, append the first to the prompt and call the model again.

> **greedy decoding**: always taking the token with the highest logit. Nothing is random: the same computation on the
> same prompt gives the same answer.

> **end token**: a token that the model writes when the text is complete, also called EOS (end of sequence). An answer
> ends with it, or at a limit set by the request.

## Predict

The simplest loop recomputes the whole sequence for every new token. Before you write it: **how many token positions
does the model compute in total to write A's new tokens?** The table above has A's prompt length and the number of
tokens it wants. Assume that the story doesn't end before that limit. Count every token of every pass: a pass over 20
tokens counts as 20, no matter how often they were computed before.
"""

# %%
predict("00.a", ...)  # positions

# %% [markdown]
"""
## Build: without a cache

**Exercise 00.1.** Write the simple loop. `prompt_ids` is a list of ints. Return a list of ints too: only the new
tokens, without the prompt.

Each new token takes one pass over the whole sequence so far: a tensor of shape `[1, tokens]`, one row. The caller's
list must stay as it is. Also pass `use_cache=False`; otherwise every pass fills a cache that is never read.

The answer ends when it has `max_new_tokens` tokens (at least 1), or with `eos_token_id`, which stays in the answer.
`eos_token_id` may be `None`; then only the limit ends the answer. No pass is made for a token that isn't returned.

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
Step through the first passes. Tokens in a pale color were already computed in the step before.
"""

# %%
from lessons_lib.recording import record_steps
from lessons_lib.viz.stepper import Stepper
from lessons_lib.viz.cache import draw_cache_growth

plain = record_steps(model, tokenizer, prompt_ids, 8, greedy=greedy_without_cache)
Stepper(lambda i: draw_cache_growth(plain, i, name="A"), len(plain))

# %% [markdown]
"""
After the first step, only one token of each input is new. Let's count. (The third line is arithmetic, not a run.)
"""

# %%
from lessons_lib.recording import watch_forwards

with watch_forwards(model) as plain_passes:
    greedy_without_cache(model, prompt_ids, A.max_new_tokens, tokenizer.eos_token_id)
computed = sum(forward.tokens for forward in plain_passes)
needed = len(prompt_ids) + len(plain_passes) - 1
print(f"{len(plain_passes)} passes of {plain_passes[0].tokens} to {plain_passes[-1].tokens} "
      f"tokens: {computed} positions computed")
print(f"only {needed} of them are distinct, so each was computed {computed / needed:.1f} "
      "times on average")
print("; ".join(f"{new} new tokens: {sum(len(prompt_ids) + i for i in range(new)):,} positions"
                for new in (30, 60, 120)))
reveal("00.a", computed, "positions")

# %% [markdown]
"""
The number of passes grows with the answer, and so does the length of each pass. Doubling the answer more than triples
the work: it grows with the *square* of the answer's length.

## Attention, on four tokens

Which part of that work has to be repeated? Look inside the model. It turns each token into a vector and passes the
vectors through a stack of layers. After the last one, a matrix turns each vector into logits.

> **layer**: one stage of a model, with weights of its own. It takes one vector per token and returns one vector per
> token. The layers run one after the other.

Inside a layer, tokens interact in only one place: attention. There, each token's vector is multiplied by three matrices
of weights, which gives three shorter vectors:

- its **query** says what the token is looking for,
- its **key** says what the token offers to others,
- its **value** is the information that others take from it.

> **head**: one attention computation with its own queries, keys and values. A layer has several heads, which work
> independently, and combines their outputs.

> **causal attention**: attention in which a token sees itself and the tokens before it, never a later one.

Here is one head over four tokens, in six lines. Each token is a vector of three numbers, and the head size is two, so
you can check queries, keys and values with a pencil.

**Guess first.** Suppose the first three tokens were computed earlier, and the fourth is new. Which rows of `q`, `k`,
`v` and `attention_weights` does the last row of `output` need?
"""

# %%
x = torch.tensor([[1.0, 0, 1], [0, 2, 0], [1, 1, 0], [0, 1, 2]])  # four tokens, one per row
W_q = torch.tensor([[1.0, 0], [0, 1], [1, 0]])
W_k = torch.tensor([[0.0, 1], [1, 0], [1, 0]])
W_v = torch.tensor([[2.0, 0], [0, 1], [1, 3]])

q, k, v = x @ W_q, x @ W_k, x @ W_v  # [4 tokens, head size 2] each
# [4, 4]: each query with each key; the root makes up for the head size
scores = q @ k.T / k.shape[1] ** 0.5
later = torch.ones(4, 4).triu(diagonal=1).bool()  # what a token must not see
scores = scores.masked_fill(later, float("-inf"))
# exp of each score, divided by their sum in the row: -inf becomes 0
attention_weights = scores.softmax(dim=1)
output = attention_weights @ v  # [4, 2]: each row is a mix of values
print(output)

# %%
from lessons_lib.viz.cache import draw_attention

draw_attention([tokenizer.decode([token]) for token in prompt_ids[:4]], q, k, v,
               attention_weights, output)

# %% [markdown]
"""
Read the last row from left to right. The query of the fourth token, `time`, is multiplied by each of the four keys. The
softmax turns these scores into shares, the *attention weights*: two thirds for itself, the rest for the tokens before
it. (They aren't the model's weights: they are different for every text.) The output is the four values, mixed in these
shares. The empty cells are the causal rule.

The colors show what the output of `time` needs: only one query, one row of attention weights, and *all* keys and
values. Each key and value is computed from its own token's vector alone, so the earlier ones are unchanged. The next
cell keeps those of the first three tokens, and computes only the row of the fourth:
"""

# %%
kept_k, kept_v = x[:3] @ W_k, x[:3] @ W_v  # from a pass over the first three tokens
new = x[3:]  # the fourth token alone
all_k, all_v = torch.cat([kept_k, new @ W_k]), torch.cat([kept_v, new @ W_v])
last_row = (new @ W_q @ all_k.T / all_k.shape[1] ** 0.5).softmax(dim=1) @ all_v
print("last row of the full computation:      ", output[3:])
print("new row, from kept keys and values:    ", last_row)
assert torch.allclose(last_row, output[3:])

# %% [markdown]
"""
The same numbers, without the first three queries, rows of attention weights, or outputs. No mask is needed either: the
newest token may see everything.

## The idea: keep the keys and values

Does this hold for a whole model, whose layers are stacked? Because of the causal rule, the output of a token in one
layer depends only on tokens up to itself. So the same is true of its vector in the next layer, and of its keys and
values there. The next cell computes the prompt three times: by itself, followed by four more tokens, and with another
first token. (`prefill`, explained below, makes one pass. Its second result holds the keys and values of every layer.)

**Guess first:** in which of the two changed texts do the other tokens of the prompt have other keys in the last layer?

> **KV head**: one head of keys and values in one layer. Our model has fewer KV heads than heads of queries; "What the
> cache costs" explains why.
"""

# %%
from lessons_lib.batching import prefill

caches = [prefill(model, ids)[1]
          for ids in (prompt_ids, prompt_ids + answer[:4], answer[:1] + prompt_ids[1:])]
keys = [cache.layers[-1].keys for cache in caches]
print("keys of the last layer [rows, KV heads, tokens, head size]:",
      *(list(each.shape) for each in keys))
alone, followed, other_first = (each[:, :, 1 : len(prompt_ids)] for each in keys)
print(f"keys of the prompt's tokens but the first: values up to {alone.abs().max():.0f}")
print("four more tokens after them: all differences below 0.00001: "
      f"{bool((alone - followed).abs().max() < 1e-5)}")
print(f"another token before them: differences up to {(alone - other_first).abs().max():.1f}")

# %% [markdown]
"""
Later tokens change nothing, up to rounding: if the shape differs, PyTorch may sum in another order. An earlier token
changes the keys after it. So as long as a text grows only at its end, compute keys and values once and keep them.

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
show_source(prefill)

# %% [markdown]
"""
## Build: one decode step

**Exercise 00.2.** What goes in, and what comes out? Fill in the question marks in your head: is the last token of the
text in the cache? The model continues 5, 17, 42 with 74, 91, 74:

| pass | tokens in the cache before | ids that go in | tokens in the cache after | token that comes out |
|---|---|---|---|---|
| prefill | none | 5, 17, 42 | 5, 17, 42 | 74 |
| first decode step | 5, 17, 42 | ? | 5, 17, 42, 74 | 91 |
| second decode step | ? | ? | ? | ? |

`decode_step(model, 74, cache)` is the first decode step: one pass, after which the cache holds one more token. It
returns 91, as an int. The model also needs to know where in the text a token is, its *position*; it counts what is in
the cache by itself.
"""

# %% exercise="00.2"
from lessons_lib.batching.greedy import decode_step

# %% [markdown]
"""
## Build: the loop with a cache

**Exercise 00.3.** Combine `prefill` and `decode_step`. The function takes the same arguments as `greedy_without_cache`
and returns the same result. Again, `max_new_tokens` is at least 1.

(The table's last row: 5, 17, 42, 74 are in the cache, 91 goes in and joins them, 74 comes out.) Count the passes before
you write: 3 new tokens take one prefill and **two** decode steps.
"""

# %% exercise="00.3"
from lessons_lib.batching.greedy import greedy_with_cache

# %% [markdown]
"""
The same story, step by step. In each decode step *one* token goes in, the output of the step before. The cache grows by
that token, so it's always one token behind the text. Move the slider, or press Tab to focus it and use the arrow keys.
"""

# %%
steps = record_steps(model, tokenizer, prompt_ids, 12, greedy=greedy_with_cache)
Stepper(lambda i: draw_cache_growth(steps, i, name="A"), len(steps))

# %%
with watch_forwards(model) as cached_passes:
    greedy_with_cache(model, prompt_ids, A.max_new_tokens, tokenizer.eos_token_id)
with_cache = sum(forward.tokens for forward in cached_passes)
print(f"{len(cached_passes)} passes, {with_cache} positions computed; without a cache, "
      f"{computed / with_cache:.1f} times as many")

# %% [markdown]
"""
## Prove it

Saving work is worth nothing if it changes the text. Would you notice? A model raises no error if it gets the wrong
tokens: it continues whatever it gets. The next cell feeds it three wrong inputs in each decode step: the token *before*
the newest one; the newest token, but without the cache; and the whole text again, with the cache. **Guess first:**
which of them can you tell from a good story? Words that differ from the right story are marked.
"""

# %%
@torch.inference_mode()
def continue_with(feed, keep=True):
    token, cache = prefill(model, prompt_ids)
    new = [token]
    while len(new) < A.max_new_tokens:
        ids = torch.tensor([feed(prompt_ids + new)])
        new.append(int(model(input_ids=ids,
                             past_key_values=cache if keep else None).logits[0, -1].argmax()))
    return new


right = continue_with(lambda text: text[-1:])
wrong = {
    "the token before it": continue_with(lambda text: text[-2:-1]),
    "the last token, but no cache": continue_with(lambda text: text[-1:], keep=False),
    "the whole text again": continue_with(lambda text: text),
}
rows = [("the last token: right", None, tokenizer.decode(right)[:110])]
for variant, new in wrong.items():
    first = next((i for i, pair in enumerate(zip(new, right), start=1) if pair[0] != pair[1]),
                 None)
    rows.append((variant, first,
                 marked(tokenizer.decode(right)[:110], tokenizer.decode(new)[:110])))
Table(["input of each decode step", "first wrong token", "continuation of story A"], rows)

# %% [markdown]
"""
The first two are obvious. In the first, every input is one token late, so words come twice. In the second, each
step sees a single token. The third isn't obvious: the whole text joins the cache again and again, and
the story still reads well. So don't judge a loop by its story. Compare it with a reference, or *oracle*: here Hugging
Face transformers' `generate` with greedy decoding. Both your functions must write exactly its tokens. The six requests
stop at their limits, before the story ends; a seventh reaches the end token.
"""

# %%
def oracle(prompt_ids, max_new_tokens):
    ids = torch.tensor([prompt_ids])
    options = dict(do_sample=False, eos_token_id=tokenizer.eos_token_id,
                   pad_token_id=tokenizer.pad_token_id)
    output = model.generate(ids, attention_mask=torch.ones_like(ids),
                            max_new_tokens=max_new_tokens, **options)
    return output[0, len(prompt_ids) :].tolist()


rows = []
short_story = ("short", "Mia said sorry. Ben smiled, and they were friends again.", 30)
for name, prompt, limit in [(s.name, s.prompt, s.max_new_tokens)
                            for s in STORIES] + [short_story]:
    arguments = tokenizer(prompt).input_ids, limit
    expected = oracle(*arguments)
    results = [greedy(model, *arguments, tokenizer.eos_token_id) == expected
               for greedy in (greedy_without_cache, greedy_with_cache)]
    stopped = "end token" if expected[-1] == tokenizer.eos_token_id else "limit"
    rows.append((name, limit, len(expected), stopped,
                 *("equal" if same else "DIFFERENT" for same in results),
                 tokenizer.decode(expected)[:50].strip()))
assert all("DIFFERENT" not in row for row in rows) and "end token" in rows[-1]
Table(["request", "limit", "new tokens", "stopped by", "without a cache", "with a cache",
       "continuation"], rows, caption="Token-for-token comparison with generate")

# %% [markdown]
"""
## Measure: what limits a pass

Prefill and decode call the same model, but they stress different parts of a machine. Count what one pass needs:

- **Operations.** Each *token* uses every weight of every layer once, for one multiplication and one addition. Attention
  adds a little.
- **Bytes.** Each *pass* reads every weight from memory once, no matter how many tokens share it. It also reads the
  cache, and writes the keys and values of the new tokens to it.

Each weight of this model is a *float32*, a number of 4 bytes. On GPUs, *bfloat16*, with 2 bytes, is more common.

Below, *decode at 64* is a decode step with 64 tokens in the cache, and *prefill of 64* is a prefill of 64 tokens.

> **arithmetic intensity**: arithmetic operations per byte moved to or from memory.
"""

# %%
from lessons_lib.measuring import forward_cost

rows = []
for name, new, cached in (("decode", 1, 64), ("prefill", 64, 0), ("prefill", 512, 0)):
    cost = forward_cost(model, new, cached)
    rows.append((name, new, cached, f"{cost.operations / 1e6:,.0f}", f"{cost.bytes / 1e6:.1f}",
                 f"{cost.intensity:.1f}"))
step, chunk = forward_cost(model, 1, 64), forward_cost(model, 64)
print(f"prefill of 64 compared with decode at 64: {chunk.operations / step.operations:.0f} "
      f"times the operations, {chunk.bytes / step.bytes:.1f} times the bytes")
Table(["pass", "new tokens", "cached", "million operations", "million bytes",
       "operations per byte"], rows,
       caption="Operations and bytes of one pass, counted for float32")

# %% [markdown]
"""
The bytes change little from row to row, because nearly all of them are weights. The operations grow with the number of
new tokens, and so does the intensity.

A decode step does half an operation per byte: two operations for each weight of four bytes. Is that low? A machine has
a peak rate of operations per second and a peak rate of bytes per second, its memory bandwidth. Their ratio is the
intensity that keeps both busy.

> **memory-bound**: limited by memory bandwidth. There are so few operations per byte that the arithmetic units wait for
> memory, so the work takes about as long as moving its bytes.

> **compute-bound**: limited by arithmetic. There are so many operations per byte that memory waits for the arithmetic
> units, so the work takes about as long as doing its operations.

Which of the two is a decode step? Take a model of 8 billion weights in bfloat16, on an H200. By its data sheet, the GPU
does at most 989 × 10¹² operations per second in bfloat16. It reads about 4.7 × 10¹² bytes per second, measured.

**00.d** With a pencil: how many tokens could share one pass before the arithmetic takes as long as the reading? Leave
out the cache; within 10 % is a hit.
"""

# %%
predict("00.d", ...)  # tokens

# %% [markdown]
"""
Here is a recording of one request to such a model, which decodes a single token per pass:
"""

# %%
from lessons_lib.measuring import recorded_workloads

recorded = recorded_workloads()
one = next(each for each in recorded.workloads
           if each["name"] == "Llama-3.1-8B: one request, 128 + 512")
print(recorded.provenance)
print(f"each new token takes {1e3 / one['best']:.1f} ms")
print(f"reading {one['weight_bytes'] / 1e9:.1f} GB of weights, and the cache, "
      f"at {recorded.bytes_per_s:.2g} bytes/s: {1e3 / one['limit']:.1f} ms")
operations = one["weight_bytes"]  # two for each weight, and each weight has two bytes
print(f"the operations at 989e12 per second: {1e3 * operations / 989e12:.2f} ms")
print(f"this GPU keeps both busy at 989e12 / {recorded.bytes_per_s:.2g} = "
      f"{989e12 / recorded.bytes_per_s:.0f} operations per byte")
reveal("00.d", 989e12 / recorded.bytes_per_s, "tokens", tolerance=0.1)

# %% [markdown]
"""
Reading alone needs most of the time, and the operations need only a small part of it: this decode step is memory-bound.
In bfloat16, one token does one operation per byte of weights, so about 210 tokens could share a pass. Decoding one
story leaves most of the arithmetic units idle. ("Further" measures your own machine.)

Large models read long texts. How long does the recorded model take for one more token after 8,192? By arithmetic:
without a cache, a step computes all of these tokens again. With one, it computes a single token and reads the cache,
1 GiB here. **Guess first:** is the first nearly 8,192 times as long, or far less?
"""

# %%
without_s = 8192 * operations / 989e12  # the whole text again, at the peak rate
# as recorded, and reading 1 GiB of cache
with_s = 1 / one["best"] + 2**30 / recorded.bytes_per_s
print(f"one more token: at least {1e3 * without_s:.0f} ms without a cache, "
      f"about {1e3 * with_s:.1f} ms with one")
print(f"an answer of 500 tokens: at least {500 * without_s:.0f} s, "
      f"or about {500 * with_s:.1f} s")

# %% [markdown]
"""
## What the cache costs

Both steps read all the weights, so the cache saves less time than work. It still makes the difference between seconds
and a minute. The price is memory. How much? In the original design of attention, each head has its own queries,
keys and values. Most current models keep fewer keys and values.

> **grouped-query attention**: several heads of queries, the *query heads*, share one KV head. The cache then holds
> fewer heads than the model has query heads.

How many bytes does *one* token take in the cache of our model? It has this shape:
"""

# %%
config = model.config
print(f"{config.num_hidden_layers} layers, {config.num_attention_heads} query heads, "
      f"{config.num_key_value_heads} KV heads of size {config.head_dim}, {model.dtype}")

# %% [markdown]
"""
**Predict** the bytes, with a pencil.
"""

# %%
predict("00.b", ...)  # bytes

# %% [markdown]
"""
To check, add up the bytes of a real cache, after a prefill of A, and divide by the number of tokens.
"""

# %%
_, cache = prefill(model, prompt_ids)
total = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
print(f"{cache.get_seq_length()} tokens take {total:,} bytes: "
      f"{total / cache.get_seq_length():,.0f} per token")
reveal("00.b", total / cache.get_seq_length(), "bytes")

# %% [markdown]
"""
**bytes per token = 2 (key and value) × layers × KV heads × head size × bytes per element**

These numbers are in a model's configuration. `cache_bytes_per_token` reads them there (exercise 00.4, in "Further").
It needs no weights, so we can apply it to models that wouldn't fit on this machine.
"""

# %%
from transformers import GPT2Config, LlamaConfig, Qwen3Config

shapes = {
    "ours": model.config,
    "GPT-2 (124M)": GPT2Config(),
    "Qwen3-0.6B": Qwen3Config(num_hidden_layers=28, hidden_size=1024, num_attention_heads=16,
                              num_key_value_heads=8, head_dim=128),
    "Llama-2-7B": LlamaConfig(num_hidden_layers=32, hidden_size=4096, num_attention_heads=32,
                              num_key_value_heads=32),
    "Llama-3-8B": LlamaConfig(num_hidden_layers=32, hidden_size=4096, num_attention_heads=32,
                              num_key_value_heads=8),
    "Llama-3-70B": LlamaConfig(num_hidden_layers=80, hidden_size=8192, num_attention_heads=64,
                               num_key_value_heads=8),
}
rows = []
for name, config in shapes.items():
    size = cache_bytes_per_token(config, bytes_per_element=2)
    heads, width = kv_head_size(config)
    rows.append((name, config.num_hidden_layers, config.num_attention_heads, heads, width,
                 f"{size / 1024:g} KiB", f"{8192 * size / 2**30:.2f} GiB"))
Table(["model", "layers", "query heads", "KV heads", "head size", "per token", "8,192 tokens"],
      rows, caption="KV cache in bfloat16. A KiB is 2¹⁰ bytes, a GiB 2³⁰")

# %% [markdown]
"""
Compare Llama-2-7B with Llama-3-8B: the same number of layers and query heads, a quarter of the KV heads, a quarter of
the cache.

**Predict.** A GPU has 80 GB, that is, 80 × 10⁹ bytes. Llama-3-8B has 8.03 billion weights, in bfloat16 too. How many
conversations of 8,192 tokens does the GPU have room for, beside the weights?
"""

# %%
predict("00.c", ...)  # conversations

# %%
left = 80e9 - 2 * 8.03e9
conversations = left // (8192 * cache_bytes_per_token(shapes["Llama-3-8B"],
                                                      bytes_per_element=2))
print(f"{left / 1e9:.1f} GB are left: room for {conversations:.0f} conversations")
reveal("00.c", conversations, "conversations")

# %% [markdown]
"""
From lesson 03 on, this memory is the main subject.

## The ledger

One table grows through the course: the same six requests, served in every way we have built. Three columns matter so
far; the others are about the cache, and later lessons use them.

- *tokens computed*: positions that went through the model. *Useful*: the share of them that a request needed.
- *speed*: tokens per second, relative to serving one request at a time with a cache.
"""

# %% tags=["measured"]
from lessons_lib.measuring import ledger

ledger(model, tokenizer, "00")

# %% [markdown]
"""
In the first row, most of the positions had been computed before. In the second, every position is computed only once,
and each is needed. The price is memory, and a copy of the cache in every step: a `DynamicCache` makes room for one more
token by copying itself into a larger tensor. On texts this short, the speed differs less than the work. Each pass has a
*fixed overhead*, such as running Python and launching hundreds of small operations, and both rows make 330 passes.
"""

# %% [markdown]
"""
## What production does here

- **Hugging Face transformers**: `generate` ends up in `GenerationMixin._sample`
  (`src/transformers/generation/utils.py`), the same loop as `greedy_with_cache`: a prefill, then one token per
  iteration, with `torch.argmax` when `do_sample=False`. `DynamicCache` is in `src/transformers/cache_utils.py`; its
  `update` appends with `torch.cat`, which is the copy in the ledger.
- **vLLM (v1)**: in `vllm/v1/core/sched/scheduler.py`, the comment at the top of `Scheduler.schedule` says that there is
  no prefill phase and no decode phase. A request has a number of tokens and a number of *computed* tokens
  (`num_computed_tokens`), and each step lets the second catch up with the first. We get there in lessons 02 and 09.

## What is still wrong

A decode step reads all weights to advance one story by one token. What if one pass advanced several stories? But the
six prompts differ in length, and so will the six answers. How do they fit into one tensor, and what happens when one
ends before the others? That is lesson 01.

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
- Shazeer 2019, *Fast Transformer Decoding: One Write-Head is All You Need*, sections 2.4 and 3: why decoding one token
  at a time is memory-bound. https://arxiv.org/abs/1911.02150
- Ainslie et al. 2023, *GQA: Training Generalized Multi-Query Transformer Models from Multi-Head Checkpoints*.
  https://arxiv.org/abs/2305.13245
- Williams, Waterman and Patterson 2009, *Roofline: An Insightful Visual Performance Model for Multicore Architectures*.
  https://doi.org/10.1145/1498765.1498785
- Pope et al. 2022, *Efficiently Scaling Transformer Inference*, section 2: what prefill and decode cost.
  https://arxiv.org/abs/2211.05102
- NVIDIA, *H100* and *H200 Tensor Core GPU Data Sheets*: the peak rates of the SXM versions, without sparsity.
  https://www.nvidia.com/en-us/data-center/h100/ and https://www.nvidia.com/en-us/data-center/h200/
- Hugging Face, *Caching*, in the transformers documentation. https://huggingface.co/docs/transformers/cache_explanation
"""

# %% [markdown] folded=true
"""
## Further (optional)

Nothing here is needed for the lesson, and its 90 minutes don't include it.
"""

# %% [markdown]
"""
### Stretch: one document, many questions

Twenty people ask about the same report. Each prompt is the report followed by a question. How few token positions can a
model compute to answer them all?

Write `answer_all(model, document_ids, questions, max_new_tokens)`. It returns the answers as a list of lists of ints,
one per question, in order. Each answer has `max_new_tokens` tokens (there is no end token here) and must equal, token
for token, the one of `greedy_with_cache(model, document_ids + question, max_new_tokens)`.

Every token id that you feed to the model counts, padding included. Memory and time don't. Questions may have more in
common than the document. For example, with the document 5, 17, 42, the questions `[8, 9]` and `[8, 3]`, and 2 new
tokens, asking each alone computes 12 positions. Computing the document once makes it 9, and the fewest possible is 8.

`copy.deepcopy(cache)` copies a cache, and `cache.crop(-n)` removes its last n tokens. The scoreboard asks about
documents that you haven't seen. The cell starts out with each question asked alone.
"""

# %%
from lessons_lib.checks.lesson_00.scoreboard import questions_scoreboard

def answer_all(model, document_ids, questions, max_new_tokens):
    return [greedy_with_cache(model, document_ids + question, max_new_tokens)
            for question in questions]  # replace this


questions_scoreboard(answer_all)

# %% [markdown]
"""
### Bytes per token

**Exercise 00.4** (optional). Write `cache_bytes_per_token` for the configuration of a Hugging Face model whose layers
are all alike: GPT-2, Llama, Qwen and many others. `bytes_per_element` is the size of one element of a key or value.
These fields of `config` tell the rest:

| field | meaning | may be missing or None? |
|---|---|---|
| `num_hidden_layers` | layers | no |
| `num_attention_heads` | query heads | no |
| `hidden_size` | length of a token's vector between layers | no |
| `num_key_value_heads` | KV heads | yes, as in GPT-2: each query head then has a KV head of its own |
| `head_dim` | size of a head | yes: the query heads then divide `hidden_size` among them |

For example, a model with 2 layers and hidden size 32 has 4 query heads that share 1 KV head, and no `head_dim`. So a
head has size 8, and in bfloat16 (2 bytes) a token takes 64 bytes. With `head_dim` 16, it takes 128.
"""

# %% exercise="00.4"
from lessons_lib.models.configuration import cache_bytes_per_token

# %%
print(f"your function says {cache_bytes_per_token(model.config, model.dtype.itemsize):,} "
      "bytes per token of our model")
assert total == len(prompt_ids) * cache_bytes_per_token(model.config, model.dtype.itemsize)

# %% [markdown]
"""
### What limits a pass on your machine

A large matrix product measures this machine's operations, a large copy its bytes. For comparison, here is the ratio of
a GPU, too.
"""

# %% tags=["measured"]
from lessons_lib.measuring import machine_rates, pass_seconds
from lessons_lib.viz.charts import line_chart

peak_operations, peak_bytes = machine_rates(model)
print(f"this machine: {peak_operations / 1e9:.0f} billion operations/s, "
      f"{peak_bytes / 1e9:.0f} billion bytes/s: {peak_operations / peak_bytes:.0f} "
      "operations per byte")
print("NVIDIA H100 SXM, bfloat16: 989e12 operations/s, 3.35e12 bytes/s: "
      f"{989e12 / 3.35e12:.0f} operations per byte")

rows = []
for name, cost in (("decode at 64", step), ("prefill of 64", chunk)):
    bytes_ms = 1e3 * cost.bytes / peak_bytes
    operations_ms = 1e3 * cost.operations / peak_operations
    rows.append((name, f"{bytes_ms:.2f}", f"{operations_ms:.2f}",
                 "memory" if bytes_ms > operations_ms else "compute"))
Table(["pass", "ms for its bytes", "ms for its operations", "bound, by this count"], rows,
      caption="Counts divided by this machine's peak rates")

# %% [markdown]
"""
A pass can't take much less than the longer of the two times, and the last column says which one that is. **Guess
first:** at which length do further tokens stop being nearly free? Both axes of the chart are logarithmic.
"""

# %% tags=["measured"]
lengths = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
seconds = pass_seconds(model, lengths, repeat=7)
print(f"A pass over 16 tokens takes {seconds[4] / seconds[0]:.1f} times as long as a pass "
      f"over 1,\nand a pass over 512 takes {seconds[9] / seconds[4]:.1f} times as long as "
      "one over 16.")
line_chart(
    lengths,
    {"one pass": [1e3 * s for s in seconds],
     "per token": [1e3 * s / n for s, n in zip(seconds, lengths)]},
    xlabel="new tokens in the pass",
    ylabel="milliseconds",
    log="xy",
    title="Time of one forward pass",
    alt="Time of a forward pass against the number of new tokens in it. "
        f"1 token takes {1e3 * seconds[0]:.1f} ms, 16 tokens {1e3 * seconds[4]:.1f} ms, "
    f"512 tokens {1e3 * seconds[-1]:.1f} ms. The time of a pass rises slowly at first and "
    "then in proportion; the time per token falls, then levels off.",
)

# %% [markdown]
"""
The *one pass* curve has two parts. On the left it rises slowly: sixteen tokens need sixteen times the arithmetic of
one, but nowhere near sixteen times the time. On our small model, most of the time on this side is the fixed overhead of
a pass, which the bounds don't count; on a large model, it goes into reading the weights. On the right the curve rises
in proportion: arithmetic takes the time, and each further token costs its share. Decode is at the left end and prefill
at the right.

(The peak rates are rough guides: a copy has to write what it reads, while a pass over weights only reads them.)
"""
