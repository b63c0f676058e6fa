# %% [markdown]
"""
# 04 · Block-diagonal masks

![An attention mask of two sequences in one row: two triangles](../lessons_lib/assets/openings/04.svg)

**How can tokens of different requests share one row without affecting each other?**

75 minutes · difficulty: medium · routes: ideas, kernels · prerequisites: lesson 00 (attention, KV cache); lesson 01
(positions, padding) helps

In this lesson all requests share a single row, without padding. An attention mask keeps them apart, and it needs only
two integers per token. You run the six stories in one row, and each gets the tokens that it gets alone. Then you write
the attention that fast kernels compute, and the model runs on it without any mask.
"""

# %% folded=true
import textwrap
from functools import partial

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from lessons_lib.attention import tag_tokens
from lessons_lib.batching import greedy_with_cache, packed_generate
from lessons_lib.batching.packed_logits import logits_at
from lessons_lib.checks import check, hint, predict, progress, quiz, reset, reveal, solution
from lessons_lib.checks.lesson_04.scoreboard import counted_scores
from lessons_lib.measuring import MAX_NEW_TOKENS, NAMES, PROMPTS, STORIES, ledger
from lessons_lib.measuring.timing import median_ms
from lessons_lib.models import load_model
from lessons_lib.viz.by_hand import mask_by_hand
from lessons_lib.viz.masks import draw_mask, watch_rules
from lessons_lib.viz.words import marked

# %%
model, tokenizer = load_model(device="cpu")  # float32, like the answers that we compare with
prompt_ids = {story.name: tokenizer(story.prompt).input_ids for story in STORIES}


def show_text(label, name, answer, right=None):
    """Print a label, then the last words of a story's prompt and its answer; » « mark what
    isn't in the right one."""
    words = PROMPTS[NAMES.index(name)].split()
    prompt = ("... " if len(words) > 8 else "") + " ".join(words[-8:])
    print(label)
    text = marked(tokenizer.decode(right or answer), tokenizer.decode(answer))
    print(textwrap.fill(f"{prompt} {text}", 96, initial_indent="    ",
                        subsequent_indent="    "))

# %% [markdown]
"""
## The problem: a rectangle has padding

Here are the six prompts as a rectangular batch, with `#` for a token and `.` for padding:
"""

# %%
longest = max(map(len, prompt_ids.values()))
for name, ids in prompt_ids.items():
    print(name, ("#" * len(ids)).rjust(longest, "."))
total = sum(map(len, prompt_ids.values()))
print(
    f"\n{len(prompt_ids) * longest} cells, {total} of them tokens: "
    f"{1 - total / (len(prompt_ids) * longest):.0%} is padding"
)

# %% [markdown]
"""
The model computes every cell, padding included. Do we need a rectangle at all? Let's put the tokens in one long row,
first those of F, then those of C. » and « mark the words that differ from the right answer.
"""

# %%
alone = greedy_with_cache(model, prompt_ids["C"], 30, tokenizer.eos_token_id)
after_f = greedy_with_cache(model, prompt_ids["F"] + prompt_ids["C"], 30,
                            tokenizer.eos_token_id)
print(f"Prompt of F:\n{textwrap.indent(textwrap.fill(PROMPTS[5], 96), '    ')}")
show_text("C alone:", "C", alone)
show_text("C after F:", "C", after_f, alone)

# %% [markdown]
"""
Anna and her grandma belong to one user, the old dog to another. But the model sees a single text of 43 tokens, and in
causal attention a token attends to every token before it. So C attends to another user's text: *cross-talk*, as lesson
02 calls it. (F comes first, so it isn't affected.) And C's first token should be at position 0; here it's at position
40. You'll see when that matters.

## Predict

Every token should attend to itself and to the earlier tokens of its own story. A mask says so: it has one cell for each
pair of tokens, True where the first may attend to the second.

**Predict 04.a** Put all six prompts in one row, 144 tokens. What percentage of the mask's 144 × 144 cells are True?
Within three percentage points is a hit.
"""

# %%
print("prompt tokens:", {name: len(ids) for name, ids in prompt_ids.items()}, "sum:", total)
predict("04.a", ...)  # percentage of the mask's cells that are True

# %% [markdown]
"""
## The idea: two integers per token

> **packed row**: a row that holds the tokens of several sequences one after another, with no padding in between. A
> *sequence* is everything a request has so far, prompt and answer.

> **sequence id**: an integer, attached to each token of a packed row, that says which sequence the token belongs to.

Every token carries its sequence id and its position in its own sequence. These two integers decide every cell of the
mask. That's the whole idea.

## The tags

`Tags(seq_ids, positions)` holds both for all tokens of a row, as int64 tensors `[tokens]`. `len(tags)` is the number of
tokens, and `tags.followed_by(others)` joins two rows.

`tag_tokens(lengths, starts=None)` makes the tags of a row. `lengths[i]` is the number of tokens that sequence `i` has in
the row, and `i` is its id:

    tag_tokens([3, 2])                 →   seq_ids [0, 0, 0, 1, 1],   positions [0, 1, 2, 0, 1]
    tag_tokens([1, 4], starts=[3, 0])  →   seq_ids [0, 1, 1, 1, 1],   positions [3, 0, 1, 2, 3]

`starts` is for sequences whose first tokens are in the KV cache. In the second example, sequence 0 has three tokens
there, and adds one new token at position 3.

## Build 1: the mask

In attention, a token's *query* is compared with the *keys* of all tokens (lesson 00). So a row of the mask is a query,
and a column is a key. Three rules have to allow a cell:

- **sequence rule**: a query attends to its own sequence only.
- **causal rule**: it attends to its own token and to earlier ones.
- **padding rule**: nothing attends to padding. (Some programs want rows of a fixed length and fill up the end with it.
  Padding has the sequence id `PADDING`, which is -1.)

**Exercise 04.1.** Write `block_diagonal_mask(queries, keys)`. Both arguments are `Tags`. Return a bool tensor
`[queries, keys]`, True where all three rules allow it. The row of a padding query is all False.

For example, this is the mask if queries and keys are both `tag_tokens([3, 2])`, with `#` for True:

    #....
    ##...
    ###..
    ...#.
    ...##

But they don't have to be the same tokens, and the keys can come in any order: a key's index tells you nothing. Here is
a single query in each example. (C 3 is C's token at position 3.)

    query C 3,  keys C 0, C 1, C 2, C 3, E 0:   ####.
    query C 1,  keys C 2, E 0, C 1, C 0:        ..##
"""

# %% exercise="04.1"
from lessons_lib.attention.masks import PADDING

from lessons_lib.attention.masks import block_diagonal_mask

# %%
six = tag_tokens([len(ids) for ids in prompt_ids.values()])
allowed = block_diagonal_mask(six, six)
print(f"{int(allowed.sum()):,} of {allowed.numel():,} cells are True")
# tolerance: 22% of the measured value, about 3 percentage points
reveal("04.a", 100 * allowed.sum().item() / allowed.numel(), "%", tolerance=0.22)

# %% [markdown]
"""
Here is your mask for the row of C and E. Hover over a cell to see why it's True or False:
"""

# %%
tags = tag_tokens([len(prompt_ids[name]) for name in "CE"])
draw_mask(block_diagonal_mask(tags, tags), tags, tags, "CE", row=5, title="Your mask")

# %% [markdown]
"""
> **block-diagonal mask**: a mask that lets a token attend to its own sequence only. If queries and keys are the same
> tokens in the same order, it's True only inside square blocks along the diagonal, one per sequence. Inside its block,
> each sequence has its usual causal mask.

### By hand

Now change it: drag the bars at the ends of the letters, or move the sliders. Answer first, then try:

1. Without "same sequence", which cells become True, and why not all of them?
2. Give A some cached tokens. There are more columns than rows now. Which rows gain colored cells?
3. Set all new tokens to 1 and all cached tokens to 10. That's a decode step. What share of the cells is colored?
"""

# %%
mask_by_hand(lengths=(4, 3, 2), cached=(0, 0, 0))

# %% [markdown]
"""
Answers: 1. Those whose key position isn't later than the query's: the causal rule still holds. 2. Only A's rows. 3. One
third: each query attends to one of three sequences of equal length.

## Build 2: one pass

A Hugging Face model takes `input_ids`, `position_ids` and `attention_mask`. Pass them by name, because their order
differs from model to model. Each has the batch as its first axis, and here the batch is a single row. The mask has four
axes: batch, heads, queries, keys. The axis of the heads may have size 1: then all heads share one mask. (With two axes,
it would be taken for one that marks padding, as in lesson 01.) The result's `.logits` have the axes batch, tokens,
vocabulary.

**Exercise 04.2.** Write `packed_logits(model, sequences, mask=block_diagonal_mask)`. `sequences` is a list of lists
of token ids, none of them empty. They go into the row in the order of the list. It makes **one** forward pass and
returns a list (or tuple) with one tensor of logits per sequence, of shape `[tokens, vocabulary]`. No cache is needed.

The argument `mask` is a function of the queries' and the keys' tags, like yours. Further down we pass masks with a rule
missing.

Example: for the prompts of C and E, return two tensors of shape `[3, 4096]` and `[5, 4096]`. The last row of each
gives that story's next token.
"""

# %% exercise="04.2"
import torch

from lessons_lib.batching.packed_logits import packed_logits

# %% [markdown]
"""
## The rules, one at a time

What goes wrong without the rules? Step through four masks: no rule, only one of the two, and both. (There's no padding
here.) A cross marks a cell that a missing rule would forbid. On the right, your `packed_logits` continues both stories.

1. With which mask does it rain in C's story, too?
2. With the causal rule alone ("not in the future"), C attends to E, although C comes first in the row. Why?
"""

# %%
CE = [prompt_ids["C"], prompt_ids["E"]]


def answers_with(mask):
    answers = packed_generate(
        model, tokenizer, CE, max_new_tokens=[12, 12],
        packed_logits=partial(packed_logits, mask=mask)
    )
    return [tokenizer.decode(answer) for answer in answers]


watch_rules("CE", [[tokenizer.decode(token) for token in ids] for ids in CE], answers_with)

# %% [markdown]
"""
The causal rule alone is the answer to both. Positions restart in every sequence, so to this rule, E's position 0 isn't
later than C's: positions can't tell the stories apart.

## Prove it

The claim: in a packed row, every story gets the same tokens as when Hugging Face `generate` runs it alone.
`packed_generate` calls your `packed_logits` in a loop. Each iteration appends one token to each story and recomputes the
whole row; a story that ends leaves the row.

The cell may take a minute. **Meanwhile, guess:** the answers have 330 tokens in all, and the longest has 100. How many
forward calls does the single row need? (The ledger at the end counts them.)
"""


# %%
def oracle(name, max_tokens):
    ids = torch.tensor([prompt_ids[name]])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=max_tokens,
        do_sample=False,
        pad_token_id=tokenizer.pad_token_id,
    )
    return out[0, ids.shape[1] :].tolist()


expected = {story.name: oracle(story.name, story.max_new_tokens) for story in STORIES}
answers = packed_generate(
    model, tokenizer, list(prompt_ids.values()), max_new_tokens=MAX_NEW_TOKENS,
    packed_logits=packed_logits
)
for name, answer in zip(NAMES, answers):
    print(f"{name}: {len(answer):3} tokens, equal to `generate`: {answer == expected[name]}")

# %% [markdown]
"""
## Do positions have to restart?

The mask is right. Now suppose that positions don't restart in each story, but run on through the whole row, 0 to 143 for
the prompts. The model's positions are *rotary*: before a query is multiplied with a key, both are rotated, each by an
angle proportional to its position. Each of the six stories is continued by 20 tokens, without a cache.

**Predict 04.b** How many of the six answers change?
"""

# %%
predict("04.b", ...)  # how many of the six answers change


# %%
def in_one_row(names, packed_logits, max_tokens=30):
    """The answers of stories that share a row, `max_tokens` tokens each."""
    prompts = [prompt_ids[name] for name in names]
    return packed_generate(model, tokenizer, prompts, max_new_tokens=max_tokens,
                           packed_logits=packed_logits)


def positions_run_on(model, sequences):
    """Like your `packed_logits`, but at the positions 0, 1, 2, ... of the whole row."""
    return logits_at(model, sequences, torch.arange(sum(map(len, sequences))))


short = in_one_row("ABCDEF", positions_run_on, max_tokens=20)
reveal("04.b", sum(answer != expected[name][:20] for name, answer in zip(NAMES, short)),
       "stories")

# %% [markdown]
"""
None: in a rotary model, only distances matter, and if all tokens of a story are shifted by the same amount, no distance
changes.

With a cache, it's another story: a key is rotated when it's computed, and it keeps that rotation. Imagine a server with
a bug. E's prompt is in the cache. Now B's 62 tokens come before E's new ones in the row, and the server uses a token's
index in the row as its position:

| tokens of E | right positions | positions in this server |
|---|---|---|
| prompt, in the cache | 0 to 4 | 0 to 4 |
| new | 5, 6, 7, ... | 67, 68, 69, ... |

The next cell gives E's tokens these positions. It runs E alone, because the mask hides B anyway, and recomputes the
keys that the server has in its cache. **Guess first:** E's prompt is "It was raining." Will its answer be the right one?
"""

# %%
def new_tokens_behind_b(model, sequences):
    """Logits of E: its prompt has the right positions, and its new tokens are 62 positions
    too far on."""
    prompt_len, length, before = len(prompt_ids["E"]), len(sequences[0]), len(prompt_ids["B"])
    positions = [*range(prompt_len), *range(before + prompt_len, before + length)]
    return logits_at(model, sequences, torch.tensor(positions))


right = expected["E"][:30]
show_text("E alone:", "E", right)
show_text("E after B:", "E", in_one_row("E", new_tokens_behind_b)[0], right)

# %% [markdown]
"""
For the new tokens, E's prompt is far away, and the rain is forgotten. Nothing crashed, and the text is fluent.
("Further" has three such answers. Can you tell which bug made which?)

## With a cache: more keys than queries

In a decode step, only the newest token of a sequence is computed. It provides the query; the earlier ones are in the
cache and provide keys and values. So the mask has one row per *new* token and one column per token, cached or new. Your
function doesn't change: it never assumed that queries and keys are the same tokens.

Here C and E decode. They have 3 and 5 tokens in the cache and add one new token each. D has just arrived and adds the
first four tokens of its prompt. **With a pencil first:** how many rows and columns has the mask, and how many cells are
True? The keys are the cached tokens of all sequences, followed by the new ones.
"""

# %%
cached, new = [3, 5, 0], [1, 1, 4]
queries = tag_tokens(new, starts=cached)
keys = tag_tokens(cached).followed_by(queries)
mask = block_diagonal_mask(queries, keys)
print(f"{len(queries)} rows, {len(keys)} columns, {int(mask.sum())} cells True")
draw_mask(mask, queries, keys, "CED", title="Two decodes and a prefill in one pass")

# %% [markdown]
"""
C's query sees 4 keys, E's sees 6, and D's four see 1 + 2 + 3 + 4. The order of the keys doesn't matter, as long as each
keeps its tags: cached ones first (lesson 05), or in blocks scattered over memory (lesson 06).

## What the mask costs

Most cells are False: 85% for the six prompts. With more requests it gets worse. And a plain attention function computes
a score for every cell, in every head of every layer, before the mask throws most of them away.

That's why fast attention kernels (a kernel is a program that runs on the GPU) never build the mask. They're told where
each sequence begins and ends, and compute only its own part. Here you write in PyTorch what they compute.

## Build 3: attention without the mask

**Exercise 04.3.** Write `varlen_attention(q, k, v, query_lens, seq_lens)`, named after `flash_attn_varlen_func`
(*varlen*: variable length) of FlashAttention, the best-known of these kernels. It computes what attention with your
mask computes, for several sequences in one row. The docstring says what the arguments are.

- The result is a tensor like `q`: for each query, the values weighted by the softmax of its scores. A score is q · k
  divided by √head_dim (lesson 00). Scores may be 1,000 or more, where `exp` overflows. All tensors have the same dtype,
  float16 or wider.
- A sequence has n keys and m queries, which belong to its *last* m tokens. Compute at most m × n scores for it, and
  none between two sequences.
- A sequence may have no queries in a step, and the row may have no sequence at all.

Example: C has 3 tokens in the cache and E 5, and each has one new token. Then `query_lens` is [1, 1] and `seq_lens` is
[4, 6]. Two queries see 4 and 6 keys: 10 scores in each head, where the mask has 20 cells.

"""

# %% exercise="04.3"
import torch

from lessons_lib.attention.varlen import varlen_attention

# %% [markdown]
"""
What does it save? Let's compare it with the mask in two steps: the prefill of the six prompts, and a decode step of 64
sequences with 500 tokens each. **Guess first:** in the decode step, how many times as many scores does the mask take?
"""

# %%
def with_the_mask(q, k, v, query_lens, seq_lens):
    """The same attention with one mask over the whole row."""
    cached = [tokens - queries for queries, tokens in zip(query_lens, seq_lens)]
    mask = block_diagonal_mask(tag_tokens(query_lens, starts=cached), tag_tokens(seq_lens))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


lengths = [len(ids) for ids in prompt_ids.values()]
steps = {}  # name -> q, k, v, query_lens and seq_lens
for name, *lens in (("prefill of the six", lengths, lengths),
                    ("decode of 64 × 500", [1] * 64, [500] * 64)):
    row = [torch.randn(2, sum(tokens), 16) for tokens in (lens[0], lens[1], lens[1])]
    steps[name] = (*row, *lens)
    dense, dense_cells = counted_scores(with_the_mask, *steps[name])
    ours, our_cells = counted_scores(varlen_attention, *steps[name])
    same = "same output" if torch.allclose(dense, ours, atol=1e-5) else "another output"
    print(f"{name}: {dense_cells:,} scores with the mask, {our_cells:,} without it "
          f"({dense_cells / our_cells:.0f} times as many); {same}")

# %% [markdown]
"""
In a decode step, the mask version computes each query's scores with the keys of all 64 sequences. Does the time shrink
as much?
"""

# %% tags=["measured"]
for name, step in steps.items():
    masked_ms, own_ms = median_ms([partial(attention, *step)
                                   for attention in (with_the_mask, varlen_attention)])
    print(f"{name}: {masked_ms:6.1f} ms with the mask, {own_ms:5.1f} ms without it")

# %% [markdown]
"""
Not as much, and for short prompts it may even grow: your function goes through the sequences in Python. A kernel gives
them to different cores of the GPU.

## The model without a mask

Now the model runs on your function. A Hugging Face model looks up its attention function by name, and
`AttentionInterface.register` adds one. In this model a head of k and v serves two heads of q, so k and v are repeated
first. The model gets no mask. It doesn't know `lengths`, and passes it on to each layer's attention:
"""

# %%
def attend(layer, q, k, v, mask, lengths, **_):
    """[1, heads, tokens, head_dim] in, [1, tokens, heads, head_dim] out, and no weights."""
    assert mask is None, "the model has made a mask"
    k, v = (x[0].repeat_interleave(layer.num_key_value_groups, dim=0) for x in (k, v))
    output = varlen_attention(q[0], k, v, lengths, lengths)
    return output.transpose(0, 1)[None], None


@torch.inference_mode()
def logits_without_a_mask(model, sequences):
    lengths = [len(ids) for ids in sequences]
    row, positions = torch.tensor([sum(sequences, [])]), tag_tokens(lengths).positions[None]
    result = model(input_ids=row, position_ids=positions, use_cache=False, lengths=lengths)
    return result.logits[0].split(lengths)


AttentionInterface.register("varlen", attend)
model.set_attn_implementation("varlen")
try:
    for name, answer in zip(NAMES, in_one_row("ABCDEF", logits_without_a_mask, max_tokens=20)):
        print(f"{name}: {tokenizer.decode(answer)!r}, equal to `generate`: "
              f"{answer == expected[name][:20]}")
finally:
    model.set_attn_implementation("sdpa")  # the default

# %% [markdown]
"""
No mask was made in any layer, and not a token has changed. This is what a serving system gives FlashAttention: lengths
instead of a mask.

## The ledger

This lesson has no cache, so the ledger also includes the first line of lesson 00. It times every line again, which
takes a minute or two.
"""

# %% tags=["measured"]
ledger(model, tokenizer, "04")

# %% [markdown]
"""
Compare the last line with the first, "alone, no cache". Both recompute all tokens in every step. But the packed row
needs 100 forward calls instead of 330: each serves every story that's still running. Still, only 3% of the tokens that
it computes are useful: all others were computed before.

## What is still wrong

Nothing is kept from one step to the next, although your mask and your attention are ready for a cache. In lesson 05,
each sequence has one, and a single row holds the whole prompts of some sequences and the newest tokens of others.

## What production does

- **vLLM** never builds the dense mask. The tokens of a step form one row, as here, and `query_start_loc` says where
  each request begins in it. FlashAttention's `flash_attn_varlen_func` gets it as `cu_seqlens_q`, along with the lengths
  and the block tables: see `vllm/v1/attention/backends/flash_attn.py`.
- **Hugging Face transformers** does both: lengths for FlashAttention, and for other attention functions a
  block-diagonal mask, `build_attention_mask` in `generation/continuous_batching/utils.py`.

## Quiz
"""

# %%
quiz("04")

# %% [markdown]
"""
## References

- M. M. Krell, M. Kosec, S. P. Perez, A. Fitzgibbon: *Efficient Sequence Packing without Cross-contamination*, 2021.
  The same mask for training. <https://arxiv.org/abs/2107.02027>
- T. Dao, D. Y. Fu, S. Ermon, A. Rudra, C. Ré: *FlashAttention: Fast and Memory-Efficient Exact Attention with
  IO-Awareness*, 2022. <https://arxiv.org/abs/2205.14135>; `flash_attn_varlen_func` in
  <https://github.com/Dao-AILab/flash-attention>
- J. Su et al.: *RoFormer: Enhanced Transformer with Rotary Position Embedding*, 2021, section 3: attention depends on
  distances. <https://arxiv.org/abs/2104.09864>
- Hugging Face: *Continuous batching from first principles*, 2025, which explains such masks row by row.
  <https://huggingface.co/blog/continuous_batching>
"""

# %% [markdown] folded=true
"""
## Further (optional)

Nothing here is needed for the lesson, and its 75 minutes don't include it.

### Stretch: a fourth rule

In some or all layers of Mistral, Gemma and gpt-oss, a token sees only the last few positions of its own sequence, so
the layer reads a bounded number of keys, however long the sequence gets. Tokens farther back still have an effect: each
position in the window has already seen its own window, one layer down.

> **sliding window**: the rule that a query sees only the last W positions, its own included. In the configuration of a
> Hugging Face model, W is `sliding_window`.

With this rule, even the block of a long sequence is mostly False. Write `window_attention(q, k, v, lengths, window)`:
attention over a packed row with this rule and the ones above. There's no padding and no cache.

- `q`, `k` and `v` are `[heads, tokens, head_dim]`, and so is the result: for each query, the values weighted by the
  softmax of its scores. As usual, a score is q · k divided by √head_dim.
- `lengths` lists the tokens of each sequence, at least 1 each. It may be empty.
- `window` is at least 1. With 1, every token sees itself alone. It may be larger than all sequences.

First make it right, then make it cheap, in any way you like. The scoreboard tries your function on small rows, then on
a hidden row, and counts what your function does there: the score cells that it computes, visible or not; the operators
that PyTorch runs; and the size of the largest tensor it makes. The two ways above yours are good at some of these and
bad at others. Can you be good at all three? The cell starts out with the three rules.
"""

# %%
from lessons_lib.checks.lesson_04.scoreboard import window_scoreboard


def window_attention(q, k, v, lengths, window):
    tags = tag_tokens(lengths)
    # replace this
    return F.scaled_dot_product_attention(q, k, v, attn_mask=block_diagonal_mask(tags, tags))


window_scoreboard(window_attention)

# %% [markdown]
"""
### Three garbled answers

What do you see if something is wrong? F and C share a row, and C comes second. The next cell prints F's prompt, C's
right answer, and three wrong ones. Each wrong one has a bug of its own:

- **sequence**: the sequence rule is missing.
- **causal**: the causal rule is missing.
- **positions**: the mask is right, and so are the prompts' positions. But each new token gets its index in the row as
  its position, instead of its position in the story.

Which is which? Nothing crashed, and no shape was wrong: text is all that you get. Two questions help. Does an answer
contain words that are only in F's prompt? Does it still know C's own prompt? Replace the dots in the first line, and
run the cell again.
"""

# %%
guess = [..., ..., ...]  # the bugs of answers 1, 2 and 3: "sequence", "causal" or "positions"

import random

# `combine` joins rules with `&`
from lessons_lib.attention.masks import RULES, combine, not_in_the_future, same_sequence


def new_tokens_counted_through_the_row(model, sequences):
    """The right mask, and the right positions for F and the prompt of C."""
    len_f, len_c = map(len, sequences)
    prompt_f, prompt_c = len(prompt_ids["F"]), len(prompt_ids["C"])
    # When C's new token i is computed, F has i + 1 new tokens, too.
    new = [prompt_f + i + 1 + prompt_c + i for i in range(len_c - prompt_c)]
    return logits_at(model, sequences, torch.tensor([*range(len_f), *range(prompt_c), *new]))


def without(rule):
    """The mask with all rules but one, as a function of queries and keys."""
    kept = [other for other in RULES if other is not rule]
    return lambda queries, keys: combine(kept, queries, keys)


bugs = {
    "sequence": partial(packed_logits, mask=without(same_sequence)),
    "causal": partial(packed_logits, mask=without(not_in_the_future)),
    "positions": new_tokens_counted_through_the_row,
}
hidden = random.Random(1).sample(list(bugs), k=3)
print(f"Prompt of F:\n{textwrap.indent(textwrap.fill(PROMPTS[5], 96), '    ')}")
right = in_one_row("FC", packed_logits)[1]
show_text("C, no bug:", "C", right)
for number, bug in enumerate(hidden, 1):
    show_text(f"C, answer {number}:", "C", in_one_row("FC", bugs[bug])[1], right)
if ... not in guess:
    for number, (bug, mine) in enumerate(zip(hidden, guess), 1):
        print(f"answer {number}: {bug:10}",
              "as you said" if mine == bug else f"(you said {mine})")

# %% [markdown]
"""
- **sequence**: a cake, Anna and her grandma. These are words from another user's prompt in this user's answer. The
  causal rule doesn't prevent it: it compares positions, so C's token at position 20 attends to the first 21 tokens of
  F.
- **positions**: no name comes from F, but the old dog has become a little girl. The first new token is at position 44
  instead of 3 (F has grown by a token, too), and it moves on in every step, so its distance to the prompt is wrong. To
  the model, the prompt is simply far away.
- **causal**: the hard one. The text is fluent, and it's about the dog. But it isn't the model's answer. Tokens have
  attended to later ones, so their keys and values are unlike those in training. You'd only notice by comparing
  with the right answer, token by token.

### Masks that are added

Attention turns each query's scores into weights with a softmax: no weight is negative, and they sum to 1. A forbidden
key must get weight 0. Some attention functions take the boolean mask and handle this themselves. Others, such as
Hugging Face's `eager`, expect values to add to the scores. (Given a boolean mask, they add 1 and 0, and nothing warns
you.)

> **additive mask**: a mask of values that are added to the attention scores before the softmax: 0 where attending is
> allowed, a very large negative value where it is not.

How large? Three values come to mind: -10, the -1e9 of much published code, and minus infinity. A query has the scores
2, 1 and 9. First it may attend to the first two keys, and then to none, as a padding token in a packed row. **Guess
first:** which of the three give the third key weight 0 in the first case, and leave no weight undefined in the second?
And which in float16, whose largest number is 65,504?
"""

# %%
import math

from lessons_lib.viz.tables import Table


def weights(may, low, dtype):
    """Softmax over the scores 2, 1, 9, with `low` added to the forbidden ones."""
    scores = torch.tensor([2.0, 1.0, 9.0]).to(dtype)
    added = torch.tensor([0.0 if allowed else low for allowed in may]).to(dtype)
    return ", ".join(f"{weight:.2f}" for weight in (scores + added).softmax(dim=-1).tolist())


columns = [
    (dtype, may) for dtype in (torch.float32, torch.float16)
    for may in ([True, True, False], [False, False, False])
]
Table(
    ["added", "float32, two of three", "float32, none", "float16, two of three",
     "float16, none"],
    [[f"{low:g}", *(weights(may, low, dtype) for dtype, may in columns)]
     for low in (-10.0, -1e9, -math.inf)],
    caption="The weights of the three keys",
)

# %% [markdown]
"""
> **NaN**: "not a number", the float value that marks an undefined result, such as 0 / 0 or infinity minus infinity.

Only one passes, and only in float32: -1e9. -10 leaves weight on the forbidden key, whose score happens to be high. With
minus infinity, a row without keys is 0 / 0, NaN. With -1e9 in float32, any ordinary score is tiny compared with it, so
in such a row all sums round to the same value, and equal scores give equal weights: useless, but finite. In float16,
whose lowest finite value is -65504, the same -1e9 *is* minus infinity.

Does NaN in the row of a padding token do any harm? It does. In the next layer, the padding's key and value are NaN, and
no mask can hide them: a NaN score plus minus infinity is NaN, and a NaN value times a weight of 0 is NaN. So our masks
**have no such rows**: there's no padding, and every query attends at least to itself.

What is low enough in every dtype, and still finite? `torch.finfo(dtype).min`.
"""
