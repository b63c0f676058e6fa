# %% [markdown]
"""
# 04 · Block-diagonal masks

**How can tokens of different requests stand in one row, and none of them notice?**

75 minutes · difficulty: medium · routes: ideas, kernels · you need first: lesson 00 (attention, KV cache) and lesson 01 (positions, padding)

In lesson 01 every request had a row of its own, filled up with padding. In this lesson all requests share one row. What keeps them apart is a mask,
made from two numbers on every token. At the end the six stories run in one row without padding, and each gets the same tokens as if it were alone.

Cells that say `raise NotImplementedError()` are yours. If you skip one, the cell after it hands out a working version.
"""

# %%
import inspect
import math
import random
import textwrap
from functools import partial

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, create_mask

from lessons_lib.attention import PADDING, Tags, not_in_the_future, not_padding, same_sequence
from lessons_lib.batching import generate_in_one_row, greedy_with_cache
from lessons_lib.checks import check, hint, predict, progress, quiz, reveal, solution
from lessons_lib.measuring import MAX_NEW_TOKENS, NAMES, PROMPTS, STORIES, ledger
from lessons_lib.models import load_model, tiny_model
from lessons_lib.recording import mask_text, read_pair, read_row
from lessons_lib.viz.charts import line_chart
from lessons_lib.viz.masks import MaskExplorer, draw_mask
from lessons_lib.viz.tables import Table

model, tokenizer = load_model(device="cpu")  # in float32: the proofs below compare the last digits
prompt_ids = {story.name: tokenizer(story.prompt).input_ids for story in STORIES}


def show_text(label, name, answer):
    """The last words of a story's prompt and its answer, under a label."""
    words = PROMPTS[NAMES.index(name)].split()
    prompt = ("... " if len(words) > 8 else "") + " ".join(words[-8:])
    print(label)
    print(textwrap.fill(prompt + tokenizer.decode(answer).replace("\n", " "), 96, initial_indent="    ", subsequent_indent="    "))

# %% [markdown]
"""
## The problem: a rectangle has corners

The six prompts are to go through the model together. As a rectangle they look like this, `#` for a token and `.` for padding:
"""

# %%
longest = max(map(len, prompt_ids.values()))
for name, ids in prompt_ids.items():
    print(name, ("#" * len(ids)).rjust(longest, "."))
total = sum(map(len, prompt_ids.values()))
print(f"\n{len(prompt_ids) * longest} cells, {total} of them tokens: {1 - total / (len(prompt_ids) * longest):.0%} padding")

# %% [markdown]
"""
Every cell is computed, padding too. Why a rectangle at all? Let us lay the tokens one behind the other, in one long row: as many cells as tokens. Try
it with two stories, first F, and behind it C:
"""

# %%
alone = greedy_with_cache(model, prompt_ids["C"], 30, tokenizer.eos_token_id)
behind_f = greedy_with_cache(model, prompt_ids["F"] + prompt_ids["C"], 30, tokenizer.eos_token_id)
print(f"Prompt of F:\n{textwrap.indent(textwrap.fill(PROMPTS[5], 96), '    ')}")
show_text("C alone:", "C", alone)
show_text("C behind F:", "C", behind_f)

# %% [markdown]
"""
Anna, her grandma and the old dog never met. They belong to two users. But the model sees one text of 43 tokens, and in causal attention a token
attends to all tokens before it, so C attends to F. Lesson 02 called this cross-talk: keys of one request influence the answer to another. (F itself is
not disturbed: it comes first.)

There is a second fault, which is harder to see. C's first token is at position 0 of C. Here the model takes it for position 40.

## Predict

We want what every story gets in a row of its own: each token attends to itself and to those before it in its own story, and to nothing else. A mask
can say that. It has a cell for each pair of tokens: True where the one may attend to the other.
"""

# %%
print("prompt tokens:", {name: len(ids) for name, ids in prompt_ids.items()}, "sum:", total)
predict("04.a", ...)  # The six prompts in one row. What share of the mask's 144 × 144 cells is True, in per cent?

# %% [markdown]
"""
For the second question, suppose that the mask is right and only the positions are not: they go on through the row, 0 to 143 for the prompts, in
place of beginning anew in each story. There is no cache: for every new token the whole row is computed again.
"""

# %%
predict("04.b", ...)  # Each of the six stories is continued by 20 tokens. How many of the six come out differently?

# %% [markdown]
"""
## The idea: two numbers on every token

> **packed row**: tokens of several sequences one behind the other in one row, without padding between them. A *sequence* is what one request has so far, prompt and answer.

> **sequence id**: a number on each token of a packed row that says which sequence the token belongs to.

Every token carries two numbers, its sequence id and its position in its own sequence. In attention, every token asks with its *query*, and is looked
at through its *key* (lesson 00). So a cell of the mask belongs to a query and a key, and three rules decide it:

| rule | True where the key ... | keeps out |
|---|---|---|
| padding | belongs to somebody: its sequence id is not `PADDING`, which is -1 | tokens that are there to fill a row |
| causal | stands at the query's position or before it | the future |
| sequence | has the query's sequence id | the other stories |

Each rule is one comparison. That is all of it; the rest of this lesson shows that it is enough.

## Build 1: the tags

The two numbers of all tokens of a row are kept in one small object:
"""

# %%
print(inspect.getsource(Tags))

# %% [markdown]
"""
**Exercise 04.1.** Write `tag_tokens(lengths, starts=None)`. `lengths` says how many tokens each sequence has in the row. Sequence number i of the
list gets the sequence id i. For example:

    tag_tokens([3, 2])                 →   seq_ids [0, 0, 0, 1, 1],   positions [0, 1, 2, 0, 1]
    tag_tokens([1, 4], starts=[3, 0])  →   seq_ids [0, 1, 1, 1, 1],   positions [3, 0, 1, 2, 3]

`starts` is for sequences whose first tokens are in the KV cache and not in this row. In the second line sequence 0 has three tokens in the cache, at
positions 0, 1 and 2, and brings one new token, at position 3. Sequence 1 is new. Without `starts`, all begin at 0.

A length may be 0. Such a sequence has no tokens in the row, but keeps its number: `tag_tokens([2, 0, 1])` has the ids `[0, 0, 2]`. Both tensors have
one axis and hold int64, also when there is no token at all. (`torch.tensor([])` by itself would make float32.)
"""

# %% exercise="04.1"
import torch

from lessons_lib.attention.masks import Tags

from lessons_lib.attention.masks import tag_tokens

# %% [markdown]
"""
C and E in one row, with your tags:
"""

# %%
tags = tag_tokens([len(prompt_ids[name]) for name in "CE"])
Table(
    ["place in the row", "token", "sequence", "position"],
    [
        [place, repr(tokenizer.decode([token])), "CE"[seq_id], position]
        for place, (token, seq_id, position) in enumerate(zip(prompt_ids["C"] + prompt_ids["E"], tags.seq_ids.tolist(), tags.positions.tolist()))
    ],
)

# %% [markdown]
"""
## The rules, one at a time

In code each rule is a function. It takes the tags of the queries and those of the keys, here the same tokens, and returns a mask: `not_padding`,
`not_in_the_future` for the causal rule, and `same_sequence`. In the pictures a row is a query and a column is a key; rest the mouse on a cell, and the
rules named in `rules` say why. First the causal rule alone, on the row of C and E.
"""

# %%
draw_mask(not_in_the_future(tags, tags), tags, tags, "CE", rules=[not_in_the_future], title="The causal rule alone")

# %% [markdown]
"""
Two of the four parts are as they should be: C with itself, top left, and E with itself, bottom right. The other two are cross-talk. E at position 0
attends to C at position 0, because 0 is not later than 0. It goes the other way too: C, which stands first in the row, attends to E. Positions begin
anew in every sequence, so they can't tell the stories apart.
"""

# %%
draw_mask(same_sequence(tags, tags), tags, tags, "CE", rules=[same_sequence], title="The sequence rule alone")

# %% [markdown]
"""
Now the stories are apart, but within each every token sees every other, later ones included. Both rules together, joined cell by cell with `&`,
leave a staircase for each story:
"""

# %%
mask = not_in_the_future(tags, tags) & same_sequence(tags, tags)
draw_mask(mask, tags, tags, "CE", row=5, title="Both rules")

# %% [markdown]
"""
> **block-diagonal mask**: a mask that is True only inside square blocks along the diagonal, one block for each sequence. Within its block every sequence has its usual causal mask.

The mask can be read aloud, cell by cell or row by row, and printed as text: `#` attends, `.` does not, and the letters are the sequences. This form
is for terminals and screen readers.
"""

# %%
print(mask_text(mask, tags, tags, "CE"))
print()
for query, key in ((5, 3), (5, 7), (5, 1), (2, 3)):
    print(read_pair(tags, tags, query, key, "CE"))
print(read_row(mask, tags, tags, 5, "CE"))

# %% [markdown]
"""
Where is the padding rule needed? Not in this row: a packed row has no padding. But some programs want rows of a fixed length and fill up the end.
Here the row is filled up to 12 places. The padding has positions too; any will do.
"""

# %%
padded = tags.followed_by(Tags(torch.full((4,), PADDING), torch.arange(4)))
without_it = not_in_the_future(padded, padded) & same_sequence(padded, padded)
with_it = without_it & not_padding(padded, padded)
print("Without the padding rule:          With it:")
for left, right in zip(*(mask_text(mask, padded, padded, "CE").split("\n") for mask in (without_it, with_it))):
    print(f"{left:32}   {right}")

# %% [markdown]
"""
The stories' rows are the same on both sides: no story has the sequence id -1, so the sequence rule keeps the padding away already. Without the
padding rule, padding attends to padding, and nobody reads what comes of it. With it, the rows of the padding are empty. We come back to these empty
rows.

In the explorer you set the lengths, how many tokens of each sequence are in the cache, and padding at the end of the row. Toggle each rule by itself.
Let it read the mask to you row by row. Things to try; the answers stand below it:

1. Switch "same sequence" off. Which cells join, and why not all? Then switch it on again.
2. Give A some cached tokens. There are now more columns than rows. In which rows do more cells get a colour?
3. Without padding, set all new tokens to 1 and all cached ones to 10. That is a decode step. What share of the cells is coloured?
4. Add padding, and switch "not padding" off and on. Which rows change?
"""

# %%
MaskExplorer(lengths=(4, 3, 2), cached=(0, 0, 0))

# %% [markdown]
"""
Answers: 1. Those where the key's position is not later than the query's; the causal rule still holds. 2. A's alone. 3. A third: each query attends to
one of three sequences of the same length. 4. Only the padding's own.

## Build 2: the mask

A comparison of tensors goes cell by cell, with broadcasting. `keys.positions` has shape `[keys]`. `queries.positions[:, None]` has shape `[queries,
1]`. Compared with each other they give `[queries, keys]`: every query has met every key. Join masks with `&`; Python's `and` can't do it. Put brackets
round each comparison, since `&` binds more tightly than `==`.

**Exercise 04.2.** Write `block_diagonal_mask(queries, keys)`, by comparing the tags, without the rule functions of the pictures. Both are `Tags`.
Return a bool tensor `[queries, keys]`, True where all three rules allow. With `tag_tokens([3, 2])` for both it is

    #....
    ##...
    ###..
    ...#.
    ...##

Queries and keys need not be the same tokens. One query, C at position 3, and the five keys C 0, C 1, C 2, C 3, E 0 give `####.`. The keys may come in
any order, so the place in the row tells nothing. The row of a padding query is False throughout.
"""

# %% exercise="04.2"
from lessons_lib.attention.masks import PADDING

from lessons_lib.attention.masks import block_diagonal_mask

# %%
six = tag_tokens([len(ids) for ids in prompt_ids.values()])
allowed = block_diagonal_mask(six, six)
print(f"{int(allowed.sum()):,} of {allowed.numel():,} cells are True")
reveal("04.a", 100 * allowed.sum().item() / allowed.numel(), "%")

# %% [markdown]
"""
## With a cache: more keys than queries

In a decode step only the newest token is computed. It asks; all the others lie in the cache and are only looked at. So the mask has a row for each
*new* token, and a column for each token, cached or new. The function stays as it is: it never assumed that queries and keys are the same.

Here C and E decode. They have 3 and 5 tokens in the cache, and bring one new token each. D has come in and brings the first four tokens of its
prompt. The keys are first those in the cache, of all sequences, then the new ones.
"""

# %%
cached, new = [3, 5, 0], [1, 1, 4]
queries = tag_tokens(new, starts=cached)
keys = tag_tokens(cached).followed_by(queries)
mask = block_diagonal_mask(queries, keys)
print(mask_text(mask, queries, keys, "CED"))
print(read_row(mask, queries, keys, 1, "CED"))
draw_mask(mask, queries, keys, "CED", title="Two decodes and a prefill in one pass")

# %% [markdown]
"""
Nothing is new in these rows. They are the rows of the new tokens in the square mask of *all* tokens; the rows of the cached tokens are left out,
since those were computed in earlier passes. And the order of the keys does not matter either. The cell below checks both, and that attention itself
gives the same when keys, values and columns of the mask are shuffled alike.
"""

# %%
everything = tag_tokens([old + more for old, more in zip(cached, new)])  # sequence by sequence, not cached first
is_new = everything.positions >= torch.tensor(cached)[everything.seq_ids]
square = block_diagonal_mask(everything, everything)
print("the rows of the new tokens:", torch.equal(block_diagonal_mask(queries, everything), square[is_new]))

order = torch.tensor(random.Random(0).sample(range(len(keys)), len(keys)))
shuffled = Tags(keys.seq_ids[order], keys.positions[order])
print("shuffled keys, shuffled columns:", torch.equal(block_diagonal_mask(queries, shuffled), mask[:, order]))

torch.manual_seed(0)
q, k, v = torch.randn(1, len(queries), 16), torch.randn(1, len(keys), 16), torch.randn(1, len(keys), 16)
output = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
output_shuffled = F.scaled_dot_product_attention(q, k[:, order], v[:, order], attn_mask=mask[:, order])
print("attention gives the same:", torch.allclose(output, output_shuffled, atol=1e-5))

# %% [markdown]
"""
So the keys may lie in any order: cached first and new ones behind (lesson 05), sequence by sequence, or in blocks all over the memory (lesson 06). As
long as every key keeps its tags, the mask finds it.

## Build 3: the mask as numbers

Attention computes a score for each pair and turns a query's scores into weights by a softmax: no weight is negative, and their sum is 1. A
forbidden key must get the weight 0. Some attention functions take the boolean mask and see to it. Others add numbers to the scores.

> **additive mask**: a mask of numbers that are added to the attention scores before the softmax: 0 where attending is allowed, a very low number where it is not.

How low? The weight is proportional to exp(score), so minus infinity looks right: exp(-∞) is 0. The lowest number that float32 can hold does it too.
The first query below may attend to two of three keys; the second to none.
"""

# %%
def weights(scores, may, low):
    """Softmax over the scores, with the number `low` added to the forbidden ones."""
    return (scores + torch.where(torch.tensor(may), 0.0, low)).softmax(dim=-1)


lowest = torch.finfo(torch.float32).min
scores = torch.tensor([2.0, 1.0, 0.5])
for may in ([True, True, False], [False, False, False]):
    for name, low in (("minus infinity", -math.inf), (f"minimum, {lowest:.3g}", lowest)):
        print(f"may attend {str(may):22} {name:20} weights {[round(w, 4) for w in weights(scores, may, low).tolist()]}")

# %% [markdown]
"""
> **NaN**: "not a number": what a float holds when a computation has no result, such as 0 / 0 or infinity minus infinity.

For the first query both are the same. For the second, minus infinity leaves nothing to divide by, 0 / 0, and the weights are NaN. With the minimum,
all scores become the same number, because a score is far too small to change a number of that size. Equal scores give equal weights. That is useless,
but it is a number, and nobody reads it.

A query with nothing to attend to: that is the empty row of a padding token.

**Exercise 04.3.** Write `additive_mask(mask, dtype=torch.float32)`. It returns a tensor of the mask's shape and of that dtype: 0 where `mask` is
True, else the dtype's own minimum, `torch.finfo(dtype).min`. For example:

    additive_mask(torch.tensor([[True, False]]))                  →   tensor([[0., -3.4028e+38]])
    additive_mask(torch.tensor([[True, False]]), torch.float16)   →   tensor([[0., -65504.]], dtype=torch.float16)

Two helpers: `tensor.masked_fill(where, number)` returns a copy with the number put in where `where` is True, and `~mask` swaps True and False.
"""

# %% exercise="04.3"
import torch

from lessons_lib.attention.masks import additive_mask

# %% [markdown]
"""
### Why a row that nobody reads matters

Does NaN in the row of a padding token do any harm? The next cell runs C and E with four padding tokens through the bundled model, and counts after
each layer how many of the 12 tokens hold a NaN. The model is switched to its plain attention, which Hugging Face calls `eager`: it adds the mask to
the scores and takes an ordinary softmax. (Otherwise it uses PyTorch's `scaled_dot_product_attention`, `sdpa` for short.)
"""

# %%
padded_row = torch.tensor([prompt_ids["C"] + prompt_ids["E"] + [tokenizer.pad_token_id] * 4])
may = block_diagonal_mask(padded, padded)


@torch.inference_mode()
def run_padded(mask, attention):
    model.set_attn_implementation(attention)
    try:
        given = dict(position_ids=padded.positions[None], attention_mask=mask[None, None], use_cache=False)
        return model(input_ids=padded_row, output_hidden_states=True, **given)
    finally:
        model.set_attn_implementation("sdpa")  # what the model uses otherwise


def tokens_with_nan(mask):
    return [int(vectors.isnan().any(dim=-1).sum()) for vectors in run_padded(mask, "eager").hidden_states]


print("                 start, then after each layer")
print("minus infinity ", tokens_with_nan(torch.where(may, 0.0, -math.inf)))
print("minimum        ", tokens_with_nan(additive_mask(may)))
print(f"NaN minus infinity is {math.nan - math.inf}; 0 times NaN is {0.0 * math.nan}")

# %% [markdown]
"""
After layer 1 the four padding tokens are NaN, as expected. After layer 2 everything is, although no story may attend to the padding. In layer 2 the
padding's keys and values are NaN, and a mask can't hide that: a NaN score stays NaN with minus infinity added, and a NaN value stays NaN when it is
multiplied by the weight 0.

Our way is to **have no such rows**: in a packed row without padding every query attends at least to itself. Other programs let padding attend to
itself, or put the minimum *in place of* the score rather than add it, since in float16 the sum can overflow to minus infinity. PyTorch's own
`scaled_dot_product_attention` gave NaN for such a row in 2023 (issue 103963). Later versions give zeros in many of its implementations; a program
that is to run anywhere should not rely on that.

## Build 4: one pass

Now a pass over a packed row of `T` tokens. A Hugging Face model takes three things here:

- `input_ids`, `[1, T]`: the tokens of all sequences, one sequence behind the other. 1 is the batch: there is one row.
- `position_ids`, `[1, T]`: those of the tags. (`tensor[None]` puts an axis of size 1 in front.)
- `attention_mask`, `[1, 1, T, T]`: batch, heads (all use the same), queries, keys. With four axes the model takes the mask as it is. With two axes it
  would take it for the padding mask of lesson 01.

Out come the logits of all tokens, `.logits`, of shape `[1, T, vocabulary]`.

**Exercise 04.4.** Write `packed_logits(model, sequences, mask=block_diagonal_mask)`. `sequences` is a list of lists of token ids, none of them empty.
Make the tags, run **one** forward pass, and return the logits cut into pieces: a list of tensors, one for each sequence, of shape `[its tokens,
vocabulary]`. `tensor.split([3, 5])` cuts a tensor of 8 rows into two pieces of 3 and 5. (`use_cache=False` spares a cache that nobody reads; the
result is the same without it.)

The argument `mask` is a function; call `mask(tags, tags)`. Below we pass others, in which a rule is missing.

Example: for the prompts of C and E, two tensors of shape `[3, 4096]` and `[5, 4096]`. The last row of each gives the next token of that story.
"""

# %% exercise="04.4"
import torch

from lessons_lib.batching.packed_logits import packed_logits

# %%
for name, logits in zip("CE", packed_logits(model, [prompt_ids["C"], prompt_ids["E"]])):
    together, by_itself = int(logits[-1].argmax()), greedy_with_cache(model, prompt_ids[name], 1)[0]
    print(f"{name}: logits {list(logits.shape)}, next token {tokenizer.decode([together])!r}, alone {tokenizer.decode([by_itself])!r}")

# %% [markdown]
"""
You passed a boolean mask, and the model's attention function, PyTorch's `scaled_dot_product_attention` (`sdpa`), takes both forms. `eager` adds
whatever it gets. To it True is 1 and False is 0, which is far too little to forbid a key. The form of the mask must suit the function, and nothing
warns when it does not. Here are C and E with their padding, against the packed row without it:
"""

# %%
def largest_difference(pieces, others):
    return max((a - b).abs().max().item() for a, b in zip(pieces, others))


packed_ce = packed_logits(model, [prompt_ids["C"], prompt_ids["E"]])
for attention in ("sdpa", "eager"):
    for form, given in (("boolean", may), ("additive", additive_mask(may))):
        logits = run_padded(given, attention).logits[0].split([3, 5, 4])
        difference = largest_difference(logits[:2], packed_ce)
        print(f"{attention:5} with the {form:8} mask:", "the same logits" if difference < 0.001 else "other logits")

# %% [markdown]
"""
## Prove it

The claim: every sequence of a packed row gets the same logits as alone. "The same" needs a word first, because floats round.
"""

# %%
a, b, c = torch.tensor([1e8, 1.0, -1e8])
print(f"(a + b) + c = {(a + b) + c:.0f}, (a + c) + b = {(a + c) + b:.0f}")
print(f"next float32 after {a:.0f}: {a.nextafter(torch.tensor(math.inf)):.0f}")
print(f"the steps of bfloat16 are {torch.finfo(torch.bfloat16).eps / torch.finfo(torch.float32).eps:,.0f} times as large")

# %% [markdown]
"""
> **ulp**: "unit in the last place": the distance from a float to the next one. It grows with the number: float32 has about seven digits, wherever the point is.

A sum depends on its order, because every step is rounded to the nearest float. In the packed row the same products are summed, but in other groups:
there are more keys, the forbidden ones with weight 0, and larger matrices are cut into other pieces. So the last digits differ. A wrong key changes
the scores themselves. The table below shows how far apart rounding and a mistake are, for random mixes of two to eight sequences with 1 to 40
tokens, on the bundled model and on three tiny random models.
"""

# %%
from lessons_lib.attention.masks import RULES, combine  # the three rules; and `combine(rules, queries, keys)`, which joins some of them by `&`


def without(rule):
    """The mask of all rules but one, as a function of queries and keys."""
    kept = [other for other in RULES if other is not rule]
    return lambda queries, keys: combine(kept, queries, keys)


@torch.inference_mode()
def compare(model, mixes=8):
    """(largest logit, largest difference to separate runs, smallest difference of a mix without a rule)"""
    rng, largest, difference, broken = random.Random(4), 0.0, 0.0, []
    for _ in range(mixes):
        lengths = [rng.randint(1, 40) for _ in range(rng.randint(2, 8))]
        sequences = [[rng.randrange(model.config.vocab_size) for _ in range(length)] for length in lengths]
        separate = [model(input_ids=torch.tensor([ids]), use_cache=False).logits[0] for ids in sequences]
        largest = max(largest, *(logits.abs().max().item() for logits in separate))
        difference = max(difference, largest_difference(packed_logits(model, sequences), separate))
        broken += [largest_difference(packed_logits(model, sequences, without(rule)), separate) for rule in (same_sequence, not_in_the_future)]
    return largest, difference, min(broken)


compared = {"bundled": compare(model)} | {family: compare(tiny_model(family)) for family in ("gpt2", "llama", "qwen2")}
TOLERANCE = 0.001
print("packed equals separate, all models:", all(difference < TOLERANCE for _, difference, _ in compared.values()))
print("without a rule it never does:      ", all(broken > 100 * TOLERANCE for _, _, broken in compared.values()))

# %% tags=["measured"]
def ulp(number):
    return (torch.tensor(number).nextafter(torch.tensor(math.inf)) - number).item()


Table(
    ["model", "largest logit", "one ulp there", "largest difference", "in ulps", "smallest, a rule missing"],
    [
        [name, f"{largest:.1f}", f"{ulp(largest):.7f}", f"{difference:.7f}", f"{difference / ulp(largest):.0f}", f"{broken:.1f}"]
        for name, (largest, difference, broken) in compared.items()
    ],
    caption="Packed against separate runs in float32, over all tokens and the whole vocabulary",
)

# %% [markdown]
"""
Our tolerance is 0.001. Rounding stays well below it, within some tens of ulps. A mistake lies far above it: with a rule missing, even the mix that
suffers least differs by much more. Between the two there is room, so this test can tell them apart.

Rounding can change a token only where the best two logits are closer together than twice such a difference, since each of them may be off. So the
stories should get the same tokens as from Hugging Face `generate`, one at a time. `generate_in_one_row` calls your `packed_logits` in a loop: it
appends one token to each story, computes the whole row anew, and takes a story out of the row when it ends.
"""

# %%
def oracle(name, max_tokens):
    ids = torch.tensor([prompt_ids[name]])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False, pad_token_id=tokenizer.pad_token_id)
    return out[0, ids.shape[1] :].tolist()


expected = {story.name: oracle(story.name, story.max_new_tokens) for story in STORIES}
answers = generate_in_one_row(model, list(prompt_ids.values()), MAX_NEW_TOKENS, tokenizer.eos_token_id, packed_logits=packed_logits)
for name, answer in zip(NAMES, answers):
    print(f"{name}: {len(answer):3} tokens, equal to `generate`: {answer == expected[name]}")

# %% tags=["measured"]
whole = packed_logits(model, [prompt_ids[name] + expected[name] for name in NAMES])
best_two = torch.cat([logits[len(prompt_ids[name]) - 1 : -1].topk(2).values for name, logits in zip(NAMES, whole)])
gap = (best_two[:, 0] - best_two[:, 1]).min().item()
times = gap / compared["bundled"][1]
print(f"{len(best_two)} tokens; the closest race between two tokens was won by {gap:.4f}, {times:.0f} times the largest difference above")

# %% [markdown]
"""
On a GPU one usually takes bfloat16, with the large steps that the cell further up printed. Then a close race may go the other way, and "equal token
for token" has to give way to "equal up to rounding".

## What breaks when a rule is missing

### Without the sequence rule

Two pairs of stories, each pair in a row of its own. All other rules are in force, and every token has its right position.
"""

# %%
def in_one_row(names, packed_logits, max_tokens=30):
    """The answers of some stories that share a row, each of `max_tokens` tokens."""
    prompts = [prompt_ids[name] for name in names]
    return generate_in_one_row(model, prompts, [max_tokens] * len(names), tokenizer.eos_token_id, packed_logits=packed_logits)


def show_without(rule, names, label):
    wrong = in_one_row(names, partial(packed_logits, mask=without(rule)))
    for name, right_answer, wrong_answer in zip(names, in_one_row(names, packed_logits), wrong):
        show_text(f"{name} beside {names.replace(name, '')}, all rules:", name, right_answer)
        show_text(f"{name} beside {names.replace(name, '')}, {label}:", name, wrong_answer)


for names in ("CF", "AE"):
    show_without(same_sequence, names, "no sequence rule")

# %% [markdown]
"""
C is about an old dog, and goes on with a cake that Anna and her grandma loved: words of another user's prompt, in this user's answer. E, which knew
no Lily, has A's little girl in it. Look who leaks into whom: C stands *before* F in the row, and gets F's story all the same. The causal rule compares
positions, so C's token at position 20 attends to the first 21 tokens of F.

F and A changed too, and their text gives less away. Nothing crashed, and no shape was wrong.

### Without the causal rule

Here cross-talk is ruled out, and every token sees the later ones of its own story. The model was trained to guess the next token without seeing it.
"""

# %%
show_without(not_in_the_future, "AD", "no causal rule")

# %% [markdown]
"""
A reader would hardly object to these, but they are not what the model says; the answers with all rules, printed above each of them, are others.
Tokens have looked ahead, so their keys and values are not like those in training. The prompt's tokens see the answer too, since every turn computes
the whole row anew.

### With positions that go on

This is another kind of mistake: the mask is right, and the positions that the model gets are not. Here they go on through the row: 0 to 143 for the
prompts.
"""

# %%
@torch.inference_mode()
def logits_at(model, sequences, positions):
    """Like `packed_logits`, with positions of one's own for the model; the mask is the right one."""
    tags = tag_tokens([len(ids) for ids in sequences])
    row = torch.tensor([[token for ids in sequences for token in ids]])
    given = dict(attention_mask=block_diagonal_mask(tags, tags)[None, None], use_cache=False)
    return list(model(input_ids=row, position_ids=positions[None], **given).logits[0].split([len(ids) for ids in sequences]))


def positions_go_on(model, sequences):
    return logits_at(model, sequences, torch.arange(sum(map(len, sequences))))


short = in_one_row("ABCDEF", positions_go_on, max_tokens=20)
reveal("04.b", sum(answer != expected[name][:20] for name, answer in zip(NAMES, short)), "stories")

# %% [markdown]
"""
Did you expect all but A? The bundled model has rotary positions (lesson 01): attention depends on the *distance* between two tokens. Where positions
go on through the row, all tokens of a story are shifted by the same number, and no distance changes. In exact arithmetic nothing changes at all; in
floats, the last digits do. So is restarting needless? Here a sequence of 30 random tokens is shifted in two ways, on four models:
"""

# %% tags=["measured"]
def digits(number):
    return f"{number:.1f}" if number > 0.1 else f"{number:.6f}"


def difference_at(model, positions):
    ids = [random.Random(1).choices(range(model.config.vocab_size), k=30)]
    return largest_difference(logits_at(model, ids, positions), logits_at(model, ids, torch.arange(30)))


all_shifted = torch.arange(30) + 40
half_shifted = torch.where(torch.arange(30) < 15, torch.arange(30), torch.arange(30) + 40)
Table(
    ["model", "positions", "all shifted by 40", "second half shifted by 40"],
    [
        [name, "absolute" if name == "gpt2" else "rotary", *(digits(difference_at(m, positions)) for positions in (all_shifted, half_shifted))]
        for name, m in (("bundled", model), *((family, tiny_model(family)) for family in ("gpt2", "llama", "qwen2")))
    ],
    caption="Largest difference of the logits to those with positions 0 to 29",
)

# %% [markdown]
"""
GPT-2 adds a learnt vector for each position, so any shift changes its logits. The rotary models keep theirs up to rounding, *if all tokens are
shifted alike*. Look at the last column: as soon as a part of the sequence has another shift than the rest, distances are wrong, and the logits
change in every model.

That is not far-fetched. With a cache, a key is turned by its position when it is computed, and keeps that turn. In the next pass the row is another
one, the story begins at another place in it, and a new token counted through the row gets another shift. The next cell imitates that without a
cache: the prompts are counted right, and each new token has its place in the row as its position.
"""

# %%
def new_tokens_counted_through_the_row(model, sequences):
    positions, place = [], 0
    for ids in sequences:
        prompt = next(len(prompt) for prompt in prompt_ids.values() if ids[: len(prompt)] == prompt)
        positions += [*range(prompt), *range(place + prompt, place + len(ids))]
        place += len(ids)
    return logits_at(model, sequences, torch.tensor(positions))


for names in ("FC", "BD"):
    for name, answer in zip(names, in_one_row(names, new_tokens_counted_through_the_row, max_tokens=20)):
        verdict = "as it should be" if answer == expected[name][:20] else "something else"
        show_text(f"{name} beside {names.replace(name, '')}, {verdict}:", name, answer)

# %% [markdown]
"""
The first story of each row is right, since its place in the row is its position. The second loses hold of its prompt: C's old dog is a little girl;
D keeps Mia and Ben, and forgets their box. This is no cross-talk, and no name comes from the other story; to the model the prompt lies far away.

## What the mask costs

A mask has a cell for each query and key, and most are False. Let n sequences of 40 tokens each stand in a row:
"""

# %%
counts = [1, 2, 4, 8, 16, 32, 64, 128, 256]
cells = [(40 * n) ** 2 for n in counts]
useful = [n * (40 * 41) // 2 for n in counts]
small = tag_tokens([40] * 8)
assert block_diagonal_mask(small, small).sum() == useful[3]  # the formula against the mask
for n, all_cells, true_cells in list(zip(counts, cells, useful))[::4]:
    sizes = f"{all_cells / 2**20:5.1f} MiB as bool, {4 * all_cells / 2**20:5.1f} as float32"
    print(f"{n:3} sequences: {all_cells:11,} cells, {true_cells:7,} True ({true_cells / all_cells:.1%}), {sizes}")
line_chart(
    counts,
    {"cells of the mask": cells, "of these True": useful},
    xlabel="sequences of 40 tokens in the row",
    ylabel="cells",
    title="The mask grows with the square of the row",
    log="xy",
    alt="Two curves on logarithmic axes. From 1 to 256 sequences the cells of the mask grow "
    f"from {cells[0]:,} to {cells[-1]:,}, those that are True from {useful[0]:,} to {useful[-1]:,}.",
)

# %% [markdown]
"""
Twice as many sequences are four times as many cells, and only twice as many of them are True. And a plain attention function computes a score for
every cell, in every head of every layer, before the mask throws most of them away. That is why fast attention kernels, programs that run on a GPU,
never build the mask. They are told where each sequence begins and ends, and compute only those blocks. You write such a kernel in lesson 07.

PyTorch has a way in between, **FlexAttention**. There a mask is given as a function of a query and a key, like the rules of this lesson; both are
places in the row here. `create_mask` evaluates it for all pairs. `create_block_mask` cuts the mask into blocks, here of 16 × 16 cells, and notes
which blocks have any True cell; the kernel visits only those. The six prompts:
"""

# %%
def may_attend(batch, head, query, key):
    return (six.seq_ids[key] == six.seq_ids[query]) & (six.positions[key] <= six.positions[query])


dense = create_mask(may_attend, None, None, total, total, device="cpu")[0, 0]
block_mask = create_block_mask(may_attend, None, None, total, total, device="cpu", BLOCK_SIZE=16)
blocks = block_mask.to_dense()[0, 0].bool()
ours = block_diagonal_mask(six, six)
any_true = ours.view(9, 16, 9, 16).any(dim=3).any(dim=1)
print("the dense mask is ours:", torch.equal(dense, ours))
print("a block is kept where ours has a True cell:", torch.equal(blocks, any_true))
print(f"{int(blocks.sum())} of {blocks.numel()} blocks are visited:\n")
for line in blocks:
    print("   ", "".join("#" if kept else "." for kept in line))

# %% [markdown]
"""
The staircases are coarse now. The large one is A and B, the middle one D, the last one F. C and E are shorter than a block and vanish in blocks that
they share with their neighbours. In a block that is only partly True, the function is asked again for each cell.

### The ledger

This lesson keeps no cache, so the first row of lesson 00 is back, for comparison.
"""

# %% tags=["measured"]
ledger(model, tokenizer, "04")

# %% [markdown]
"""
Read the last row against the first, "alone, no cache". They compute the same tokens, all of them again in every turn. But the last row needs fewer
forward calls, since each of them serves all stories that are still running. There is no padding in it, and still little is useful: nothing is kept
from one turn to the next. That is why it stays slower than "alone, KV cache", which makes more calls with far fewer tokens.

## What production does

- **vLLM** never builds the dense mask. The tokens of a step stand in one row, as here, and `query_start_loc` says where each request begins in it.
  With the lengths (`seq_lens`) and the block tables it goes to `flash_attn_varlen_func` of FlashAttention, a fast attention kernel, whose argument
  for it is `cu_seqlens_q`: `vllm/v1/attention/backends/flash_attn.py`. For models or sizes without such a kernel there is a FlexAttention backend,
  `flex_attention.py` in the same folder, which does what the FlexAttention cell above does, with sequence ids called `doc_ids`.
- **Hugging Face transformers** has both. Its continuous batching hands `cu_seq_lens_q` to FlashAttention. For `sdpa` and `eager` it fills a
  block-diagonal mask, additive and with the dtype's minimum: `build_attention_mask` in `generation/continuous_batching/utils.py`.
- **In training** the same packing is usual. `DataCollatorWithFlattening` lays samples into one row and gives `position_ids` that restart.
  `find_packed_sequence_indices` in `masking_utils.py` then finds the sequences from the positions alone, and `packed_sequence_mask_function` is our
  sequence rule. The next cell shows it at work: restarting positions, and no mask at all.
"""

# %%
prompts = list(prompt_ids.values())
with torch.inference_mode():
    logits = model(input_ids=torch.tensor([sum(prompts, [])]), position_ids=six.positions[None], use_cache=False).logits[0]
found_by_itself = logits.split([len(ids) for ids in prompts])
print("transformers found the six sequences:", largest_difference(found_by_itself, packed_logits(model, prompts)) < TOLERANCE)

# %% [markdown]
"""
It does so only without a cache, and for a reason: two decodes at positions 5 and 6 of two stories look like neighbours in one. With a cache,
somebody must say which token is whose.

## What is still wrong

Nothing is kept. In every turn the whole row goes through the model again, prompts and answers.
"""

# %%
turns = max(map(len, answers))
computed = sum(len(prompt_ids[name]) + number for name, answer in zip(NAMES, answers) for number in range(len(answer)))
needed = sum(len(prompt_ids[name]) + len(answer) - 1 for name, answer in zip(NAMES, answers))
print(f"{turns} turns computed {computed:,} tokens. With a cache for each story {needed:,} would do: {computed / needed:.0f} times fewer.")

# %% [markdown]
"""
The mask is ready for it: with cached keys, queries are only the new tokens. What is missing is the rest of the machine: a row made of whole prompts
and single new tokens, the caches of all its sequences brought together for the pass, and afterwards given back. Lesson 05 packs with caches.

## Quiz
"""

# %%
quiz("04")

# %% [markdown]
"""
## References

- M. M. Krell, M. Kosec, S. P. Perez, A. Fitzgibbon: *Efficient Sequence Packing without Cross-contamination*, 2021. The same mask for training.
  <https://arxiv.org/abs/2107.02027>
- T. Dao, D. Y. Fu, S. Ermon, A. Rudra, C. Ré: *FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness*, 2022.
  <https://arxiv.org/abs/2205.14135>; `flash_attn_varlen_func` in <https://github.com/Dao-AILab/flash-attention>
- J. Dong, B. Feng, D. Guessous, Y. Liang, H. He: *Flex Attention: A Programming Model for Generating Optimized Attention Kernels*, 2024.
  <https://arxiv.org/abs/2412.05496>
- PyTorch: *torch.nn.attention.flex_attention*. <https://docs.pytorch.org/docs/stable/nn.attention.flex_attention.html>; rows without keys:
  <https://github.com/pytorch/pytorch/issues/103963>, <https://github.com/pytorch/pytorch/pull/131060>
- J. Su et al.: *RoFormer: Enhanced Transformer with Rotary Position Embedding*, 2021, section 3: attention depends on distances.
  <https://arxiv.org/abs/2104.09864>
- Hugging Face: *Continuous batching from first principles*, 2025, which reads such masks row by row.
  <https://huggingface.co/blog/continuous_batching>
"""
