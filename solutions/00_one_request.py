# %% [markdown]
"""
# 00 · One request: prefill, decode, KV cache

![One token goes through the model to write the next one; the others are in the cache](../lessons_lib/assets/openings/00.svg)

**What does a model compute to write one token, and how much of that had it computed already?**

75 minutes · difficulty: easy · routes: *ideas* (00–06, 17), *kernels* (00, 02–08, 13), *serving* (00–03, 05, 06,
09–12, 14–20) · you need: Python and a little PyTorch (what a tensor's shape is, what `argmax` does). You don't need to
know anything about serving.

You'll write a loop that makes a language model continue a story. It works, and it computes almost everything again for
every token. So you'll find out what can be kept, write the cache that keeps it, and a second loop that writes the same
tokens with your cache. That cache is what the rest of this course is about.

Cells that say `raise NotImplementedError()` are yours, and the cell after each one checks what you wrote. If you skip
one, the check returns a working version. `hint("00.1")` and `solution("00.1")` help when you're stuck, and
`reset("00.1")` brings the empty exercise back.
"""

# %% folded=true
import torch
from transformers import LlamaConfig

from lessons_lib.batching.growing_cache import ModelCache
from lessons_lib.checks import check, hint, predict, progress, quiz, reset, reveal, solution
from lessons_lib.measuring import STORIES, ledger
from lessons_lib.models import cache_bytes_per_token, kv_head_size, load_model
from lessons_lib.recording import record_steps, watch_forwards
from lessons_lib.viz.cache import draw_attention, draw_cache_growth
from lessons_lib.viz.stepper import Stepper
from lessons_lib.viz.words import marked

# %%
model, tokenizer = load_model(device="cpu")
print(f"{model.num_parameters():,} weights, {tokenizer.vocab_size:,} tokens in the vocabulary")

# %% [markdown]
"""
> **weights**: the numbers that a model has learned, also called parameters. Serving never changes them, and all
> requests use the same ones.

## The problem

A model writes one token per call, and every token depends on the whole text before it. Does each call have to read it
all again? For a long text, that decides whether an answer takes seconds or a minute.

Six requests, A to F, each ask this model to continue a story. They stay with us through the whole course, each in its
own color.

> **token**: a piece of text, often a word with the space before it. The vocabulary lists all tokens and gives each an
> integer id. A model reads and writes token ids, never letters.

> **prompt**: the tokens that a request starts with and that the model continues.
"""

# %%
encoded = {story.name: tokenizer(story.prompt).input_ids for story in STORIES}
for s in STORIES:
    print(f"{s.name}: {len(encoded[s.name]):2} prompt tokens, wants {s.max_new_tokens:3} new "
          f"ones | {s.prompt[:46]}")

# %% [markdown]
"""
Here are A's tokens with their ids, and what one call of the model returns for them.

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
The axis *rows* has one entry per request, here one. The logits of a position predict the token *after* it. We know the
tokens inside the prompt, so only the last position tells us something new. To get a second new token, append the first
to the prompt and call the model again.

> **greedy decoding**: always taking the token with the highest logit. Nothing is random.

> **end token**: a token that the model writes when the text is complete, also called EOS (end of sequence). An answer
> ends with it, or at a limit set by the request.

**Predict 00.a.** The simplest loop feeds the whole text for every new token. How many token positions does it compute
in total to write A's new tokens? The list above has A's prompt length and the number of tokens it wants. A pass over 20
tokens counts as 20, however often they were computed before.
"""

# %%
predict("00.a", ...)  # positions

# %% [markdown]
"""
## Build 1: the loop, without a cache

**Exercise 00.1.** Write that loop. `prompt_ids` is a list of ints. Return a list of ints too: only the new tokens,
without the prompt.

- Each new token takes one pass over the whole text so far, a tensor of shape `[1, tokens]`.
- The answer ends after `max_new_tokens` tokens (at least 1), or with `eos_token_id`, which is part of the answer. If
  `eos_token_id` is `None`, only the limit ends it.
- The caller's list stays as it is, and no pass is made for a token that isn't returned.
- Don't call `model.generate`: it *is* this loop, and we'll compare yours with it.

For example, if the model continues 5, 17, 42 with 74, 91, 74, 4, 82, ..., then
`greedy_without_cache(model, [5, 17, 42], 3)` returns `[74, 91, 74]`. With a limit of 6 and the end token 4, it returns
`[74, 91, 74, 4]`.

(`@torch.inference_mode()` says that no gradients are needed. Pass `use_cache=False`: otherwise every pass fills a
cache that this loop never reads.)
"""

# %% exercise="00.1"
from lessons_lib.batching.greedy import greedy_without_cache

# %% [markdown]
"""
Here is what your loop makes of story A:
"""

# %%
answer = greedy_without_cache(model, prompt_ids, A.max_new_tokens, tokenizer.eos_token_id)
print(f"{A.prompt}|{tokenizer.decode(answer)}")
print(f"\n{len(prompt_ids)} prompt tokens, {len(answer)} new tokens")

# %% [markdown]
"""
After the first pass, only one token of each input is new. Let's count. (The last line is arithmetic, not a run.)
"""

# %%
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
The work grows with the *square* of the answer's length: twice the answer is more than three times the work.

## Attention, on four tokens

Which part of that work has to be repeated? Look inside the model:

```
token ids ─▶ vectors ─▶ [ attention ─▶ MLP ] ─▶ [ attention ─▶ MLP ] ─▶ ... ─▶ logits
                         └──── layer 0 ────┘     └──── layer 1 ────┘
```

> **layer**: one stage of a model, with weights of its own. It takes one vector per token and returns one per token. Its
> MLP, which holds most of the weights, treats each token by itself.

Tokens interact in only one place: attention. There, each token's vector is multiplied by three matrices of weights,
which gives three shorter vectors:

- its **query** says what the token is looking for,
- its **key** says what the token offers to others,
- its **value** is the information that others take from it.

> **head**: one attention computation with its own queries, keys and values. A layer has several, and combines their
> outputs.

> **causal attention**: attention in which a token sees itself and the tokens before it, never a later one.

Here is one head over four tokens, in six lines. Each token is a vector of three numbers, and the head size is two, so
you can check it with a pencil.

**Guess first.** Say the first three tokens were computed earlier, and the fourth is new. Which rows of `q`, `k`, `v`
and `attention_weights` does the last row of `output` need?
"""

# %%
x = torch.tensor([[1.0, 0, 1], [0, 2, 0], [1, 1, 0], [0, 1, 2]])  # four tokens, one per row
W_q = torch.tensor([[1.0, 0], [0, 1], [1, 0]])
W_k = torch.tensor([[0.0, 1], [1, 0], [1, 0]])
W_v = torch.tensor([[2.0, 0], [0, 1], [1, 3]])

q, k, v = x @ W_q, x @ W_k, x @ W_v  # [4 tokens, head size 2] each
# [4, 4]: each query with each key, divided by the root of the head size
scores = q @ k.T / k.shape[1] ** 0.5
later = torch.ones(4, 4).triu(diagonal=1).bool()  # what a token must not see
scores = scores.masked_fill(later, float("-inf"))
# exp of each score, divided by their sum in the row: -inf becomes 0
attention_weights = scores.softmax(dim=1)
output = attention_weights @ v  # [4, 2]: each row is a mix of values
print(output)

# %%
draw_attention([tokenizer.decode([token]) for token in prompt_ids[:4]], q, k, v,
               attention_weights, output)

# %% [markdown]
"""
Read the last row from left to right. The query of the fourth token, `time`, meets each of the four keys. The softmax
turns these scores into shares, the *attention weights*: two thirds for itself, the rest for the tokens before it. The
output is the four values, mixed in these shares. The empty cells are tokens that come later.

The colors show what the output of `time` needs: one query, one row of attention weights, and *all* keys and values. Each
key and value comes from its own token's vector alone. So keep those of the first three tokens, and compute only the
fourth row:
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
The same numbers, without the first three queries, rows of attention weights, or outputs.

## The idea: keep the keys and values

Does this hold for a whole stack of layers? A token's output in one layer depends only on tokens up to itself. So the
same goes for its vector, key and value in the next layer. The next cell computes the prompt three times: by itself,
followed by four more tokens, and with another first token.

> **KV head**: one head of keys and values in one layer. Our model has fewer KV heads than heads of queries; "What the
> cache costs" says why.

**Guess first:** which of the two changes alters the keys of the other prompt tokens, in the last layer?
"""

# %%
@torch.inference_mode()
def last_keys(ids):  # Hugging Face models return a cache, if you let them
    return model(input_ids=torch.tensor([ids])).past_key_values.layers[-1].keys


keys = [last_keys(ids) for ids in (prompt_ids, prompt_ids + answer[:4],
                                   answer[:1] + prompt_ids[1:])]
print("keys of the last layer [rows, KV heads, tokens, head size]:",
      *(list(each.shape) for each in keys))
alone, followed, other_first = (each[:, :, 1 : len(prompt_ids)] for each in keys)
print("four more tokens after them: all differences below 0.00001: "
      f"{bool((alone - followed).abs().max() < 1e-5)}")
print(f"another token before them: differences up to {(alone - other_first).abs().max():.1f}")

# %% [markdown]
"""
Later tokens change nothing, up to rounding; an earlier token changes the keys of all tokens after it. So as long as a
text grows only at its end, compute keys and values once and keep them.

> **KV cache**: the keys and values of all tokens so far, in every layer, kept for later steps. Queries aren't kept:
> only the query of a new token is ever used.

## Build 2: the cache

The model does the rest. Give it an object as `past_key_values`: in every pass, each layer calls the object's `update`
with the keys and values of the new tokens, and attends to whatever comes back. What the object keeps in between is up
to you.

```
pass over 5, 17, 42:   layer 0:  update(keys of 5 17 42, values, 0)  ─▶  keys of 5 17 42, values
                       layer 1:  update(keys of 5 17 42, values, 1)  ─▶  keys of 5 17 42, values
pass over 74:          layer 0:  update(keys of 74, values, 0)       ─▶  keys of 5 17 42 74, values
                       layer 1:  update(keys of 74, values, 1)       ─▶  keys of 5 17 42 74, values
```

**Exercise 00.2.** Write `KVCache` from scratch: one sequence, any number of layers, any length. What you keep, from
`__init__` on, is up to you. `update` returns the keys and values of all tokens so far in that layer. `num_tokens` says
how many tokens the cache holds once a pass is over (0 at first), `num_bytes` how much memory their keys and values
take, in all layers together. (`ModelCache` answers the model's other questions from your `num_tokens`, such as which
position a new token has.)
"""

# %% exercise="00.2"
from lessons_lib.batching.growing_cache import KVCache

# %% [markdown]
"""
Now the real model uses it. The prompt goes in, then one more token:
"""

# %%
cache = KVCache()
with torch.inference_mode():
    for ids in (prompt_ids, answer[:1]):
        logits = model(input_ids=torch.tensor([ids]), past_key_values=cache).logits
        print(f"{len(ids):2} tokens in; the cache holds {cache.num_tokens} tokens and "
              f"{cache.num_bytes:,} bytes; the next token is "
              f"{tokenizer.decode([int(logits[0, -1].argmax())])!r}")

# %% [markdown]
"""
The second pass computed one token, and the model went on as if it had read all of them. Two names:

> **prefill**: computing all tokens of the prompt in one forward pass. It fills the cache and gives the first new token.

> **decode step**: a forward pass over one token, the newest. It reads the cache, adds the token's key and value to it
> in every layer, and gives the next token.

## Build 3: the loop, with your cache

What goes into each pass, and what is in the cache before it? Fill in the question marks in your head:

| pass | in the cache before | goes in | comes out |
|---|---|---|---|
| prefill | nothing | 5, 17, 42 | 74 |
| first decode step | 5, 17, 42 | ? | 91 |
| second decode step | ? | ? | ? |

**Exercise 00.3.** Write `greedy_with_cache`, with the arguments and the result of `greedy_without_cache`. Each token of
the text goes through the model at most once, and the prompt in one pass. Three new tokens take one prefill and **two**
decode steps.
"""

# %% exercise="00.3"
from lessons_lib.batching.greedy import greedy_with_cache

# %% [markdown]
"""
(The last row: 5, 17, 42, 74 in the cache, 91 goes in, 74 comes out.) The same story, step by step. The cache is always
one token behind the text. (Move the slider, or press Tab to focus it and use the arrow keys.)
"""

# %%
steps = record_steps(model, tokenizer, prompt_ids, 12, greedy=greedy_with_cache)
Stepper(lambda i: draw_cache_growth(steps, i, name="A"), len(steps))

# %%
with watch_forwards(model) as cached_passes:
    greedy_with_cache(model, prompt_ids, A.max_new_tokens, tokenizer.eos_token_id)
with_cache = sum(forward.tokens for forward in cached_passes)
print(f"{len(cached_passes)} passes, {with_cache} positions instead of {computed}")

# %% [markdown]
"""
## Prove it

A cache that changes the text is worthless. Would you notice? A model raises no error: it continues whatever it gets.
The next cell decodes with three wrong inputs: the token *before* the newest one; the newest, but without the cache; and
the whole text again, with the cache. **Guess first:** which can you tell from a good story? Words that differ from the
right story are marked.
"""

# %%
@torch.inference_mode()
def continue_with(feed, keep=True):
    cache, ids, new = KVCache(), prompt_ids, []
    while len(new) < A.max_new_tokens:
        logits = model(input_ids=torch.tensor([ids]), past_key_values=cache).logits
        new.append(int(logits[0, -1].argmax()))
        ids, cache = feed(prompt_ids + new), cache if keep else KVCache()
    return new


right = continue_with(lambda text: text[-1:])
wrong = {
    "the token before it": continue_with(lambda text: text[-2:-1]),
    "the last token, but no cache": continue_with(lambda text: text[-1:], keep=False),
    "the whole text again": continue_with(lambda text: text),
}
story = tokenizer.decode(right)[:110]
print(f"the last token: right\n    {story}")
for variant, new in wrong.items():
    first = next((i for i, pair in enumerate(zip(new, right), start=1) if pair[0] != pair[1]),
                 None)
    print(f"{variant}: wrong from token {first} on\n    "
          f"{marked(story, tokenizer.decode(new)[:110])}")

# %% [markdown]
"""
The first two are obvious: each word comes twice, or each step sees a single token. The third isn't. The whole text
joins the cache again and again, and the story still reads well. So don't judge a loop by its story. Compare it with a
reference, or *oracle*: here `generate` of Hugging Face transformers, which is greedy with `do_sample=False`. The six
requests stop at their limits; a seventh reaches the end token.
"""

# %%
def oracle(prompt_ids, max_new_tokens):
    ids = torch.tensor([prompt_ids])
    options = dict(do_sample=False, eos_token_id=tokenizer.eos_token_id,
                   pad_token_id=tokenizer.pad_token_id)
    output = model.generate(ids, attention_mask=torch.ones_like(ids),
                            max_new_tokens=max_new_tokens, **options)
    return output[0, len(prompt_ids) :].tolist()


short = "Mia said sorry. Ben smiled, and they were friends again."
for name, prompt, limit in [*((s.name, s.prompt, s.max_new_tokens) for s in STORIES),
                            ("short", short, 30)]:
    arguments = tokenizer(prompt).input_ids, limit
    expected = oracle(*arguments)
    same = [greedy(model, *arguments, tokenizer.eos_token_id) == expected
            for greedy in (greedy_without_cache, greedy_with_cache)]
    print(f"{name:5} {len(expected):3} of at most {limit:3} tokens; your loops without and "
          f"with a cache write the same: {same[0]}, {same[1]}")

# %% [markdown]
"""
## What the cache costs

The price of the cache is memory. How much? Originally, each head had queries, keys and values of its own. Most current
models keep fewer keys and values:

> **grouped-query attention**: several heads of queries, the *query heads*, share one KV head. The cache then holds
> fewer heads than the model has query heads.

This is the shape of our model. *float32* is a number of 4 bytes.
"""

# %%
config = model.config
print(f"{config.num_hidden_layers} layers, {config.num_attention_heads} query heads, "
      f"{config.num_key_value_heads} KV heads of size {config.head_dim}, {model.dtype}")

# %% [markdown]
"""
**Predict 00.b**, with a pencil: how many bytes does *one* token take in the cache?
"""

# %%
predict("00.b", ...)  # bytes

# %% [markdown]
"""
Your own cache knows: it still holds A's prompt and one token.
"""

# %%
print(f"{cache.num_tokens} tokens take {cache.num_bytes:,} bytes")
reveal("00.b", cache.num_bytes / cache.num_tokens, "bytes")

# %% [markdown]
"""
**bytes per token = 2 (key and value) × layers × KV heads × head size × bytes per element**

These numbers are in a model's configuration, and `cache_bytes_per_token` reads them there. How many conversations of
8,192 tokens fit in 80 GB, next to the weights?
"""

# %%
llama_2 = LlamaConfig(num_hidden_layers=32, hidden_size=4096, num_attention_heads=32,
                      num_key_value_heads=32)
llama_3 = LlamaConfig(num_hidden_layers=32, hidden_size=4096, num_attention_heads=32,
                      num_key_value_heads=8)
for name, config, weights in (("Llama-2-7B", llama_2, 6.74e9),
                              ("Llama-3-8B", llama_3, 8.03e9)):
    size = cache_bytes_per_token(config, bytes_per_element=2)  # bfloat16
    print(f"{name}: {config.num_key_value_heads:2} KV heads of {kv_head_size(config)[1]}, "
          f"{size / 1024:.0f} KiB per token, {8192 * size / 2**30:.0f} GiB for 8,192: "
          f"{(80e9 - 2 * weights) // (8192 * size):.0f} conversations")

# %% [markdown]
"""
A quarter of the KV heads, a quarter of the cache. And that is still only a few dozen conversations on a large GPU. From
lesson 03 on, this memory is the main subject.

## The ledger

One table grows through the course: the same six requests, served in every way we have built. *Useful* is the share of
the computed tokens that a request needed; *speed* is relative to one request at a time with a cache.
"""

# %% tags=["measured"]
ledger(model, tokenizer, "00", columns=("tokens computed", "useful", "speed"))

# %% [markdown]
"""
The cache cuts the work to a fraction, and yet the speed differs by less. Both methods make 330 passes, and on texts
this short each pass has a *fixed overhead*: running Python and launching hundreds of small operations. On a long text,
the work decides.

## What production does here

- **Hugging Face transformers**: `GenerationMixin._sample` in `src/transformers/generation/utils.py` is your loop, and
  `DynamicCache` in `src/transformers/cache_utils.py` your cache: it too joins old and new with `torch.cat`, which copies
  the whole cache in every step.
- **vLLM (v1)** has no prefill phase and no decode phase, says the comment at the top of `Scheduler.schedule` in
  `vllm/v1/core/sched/scheduler.py`. A request has a number of tokens and a number of *computed* tokens, and each step
  lets the second catch up with the first. So does your loop.

## What is still wrong

A decode step reads all weights to advance one story by one token. What if one pass advanced several stories? But the
prompts differ in length, and so will the answers. How do they fit into one tensor? That is lesson 01.

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
- Ainslie et al. 2023, *GQA: Training Generalized Multi-Query Transformer Models from Multi-Head Checkpoints*.
  https://arxiv.org/abs/2305.13245
- Hugging Face, *Caching*, in the transformers documentation. https://huggingface.co/docs/transformers/cache_explanation
"""

# %% [markdown] folded=true
"""
## Further (optional)

Nothing here is needed for the lesson, and its 75 minutes don't include it.

### Stretch: one document, many questions

Twenty people ask about the same report. Each prompt is the report followed by a question. How few token positions can a
model compute to answer them all?

Write `answer_all(model, document_ids, questions, max_new_tokens)`. It returns the answers as a list of lists of ints,
one per question, in order. Each answer has `max_new_tokens` tokens (there is no end token here) and must equal, token
for token, the one of `greedy_with_cache(model, document_ids + question, max_new_tokens)`.

Every token id that you feed to the model counts, padding included. Memory and time don't. Questions may have more in
common than the document. For example, with the document 5, 17, 42, the questions `[8, 9]` and `[8, 3]`, and 2 new
tokens, asking each alone computes 12 positions. Computing the document once makes it 9, and the fewest possible is 8.

`copy.deepcopy(cache)` copies a cache, and a method that removes the last n tokens from yours may help. The scoreboard
asks about documents that you haven't seen. The cell starts out with each question asked alone.
"""

# %%
from lessons_lib.checks.lesson_00.scoreboard import questions_scoreboard

def answer_all(model, document_ids, questions, max_new_tokens):
    return [greedy_with_cache(model, document_ids + question, max_new_tokens)
            for question in questions]  # replace this


questions_scoreboard(answer_all)
