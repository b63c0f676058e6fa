# %% [markdown]
"""
# 05 · Ragged packing

**Can one forward pass compute what is needed for all requests, and nothing else?**

75 minutes · difficulty: medium · routes: ideas, serving · you need first: lesson 02 (states of a request, the step). Lesson 04 (tags and masks)
helps; what we need of it is said again here

In lesson 02 requests came and went at any step, but the batch was still a rectangle of slots. In this lesson you lay all that is new into one row,
without padding. A long prompt and the single tokens of running answers go through the model together. Each request gets the same tokens as alone.
"""

# %%
import inspect
import random
from collections import deque
from statistics import median
from time import perf_counter
from types import SimpleNamespace

import torch
from IPython.display import display
from transformers import DynamicCache

from lessons_lib.attention import (
    PackedBatch,
    cache_of,
    concatenate_caches,
    copied_tokens,
    key_tags,
    packed_mask,
    tag_tokens,
    unpack,
)
from lessons_lib.batching import (
    RaggedBatch,
    Request,
    admit,
    batch_generate,
    forward,
    loop_forward,
    ragged_generate,
    retire,
    static_generate,
)
from lessons_lib.checks import check, hint, predict, progress, quiz, reveal, solution
from lessons_lib.measuring import MAX_NEW_TOKENS, NAMES, PROMPTS, STORIES, ledger
from lessons_lib.models import VOCAB_SIZE, cache_bytes_per_token, load_model, tiny_model
from lessons_lib.recording import count_operators, mask_text, packed_text
from lessons_lib.viz import Stepper
from lessons_lib.viz.batches import draw_packed_step
from lessons_lib.viz.charts import line_chart
from lessons_lib.viz.tables import Table

model, tokenizer = load_model(device="cpu")  # in float32: equal means equal to the last token
SIX = dict(prompts=PROMPTS, max_new_tokens=MAX_NEW_TOKENS, names=NAMES)
prompt_ids = {story.name: tokenizer(story.prompt).input_ids for story in STORIES}

# %% [markdown]
"""
## The problem: what is left of the rectangle

Here are the six stories once more in four slots, as in lesson 02. For some of the steps, the table says what was computed for each slot.
"""

# %%
slots = batch_generate(model, tokenizer, **SIX, batch_size=4)


def row_of_the_table(number):
    step = slots.trace.steps[number - 1]
    computed = " · ".join(f"{row.request or 'nobody'} {row.computed}" for row in step.rows)
    return [str(number), step.forward_calls, computed, step.tokens_computed, step.tokens_useful]


Table(
    columns=["step", "forward passes", "token positions of each slot", "together", "needed"],
    rows=[row_of_the_table(number) for number in (1, 2, 3, 4, 5, 24, 80)],
    caption="Some steps of lesson 02's loop",
)

# %%
wasted = slots.trace.tokens_computed - slots.trace.tokens_useful
two = sum(step.forward_calls == 2 for step in slots.trace.steps)
print(f"{slots.trace.tokens_computed} token positions computed, {wasted} of them for nobody")
print(f"{slots.trace.forward_calls} forward passes in {len(slots.trace.steps)} steps; {two} steps made two")

# %% [markdown]
"""
Look at step 2. One pass goes over all four slots, one token each, because a decode pass is a rectangle; only A needs it. B's prompt of 62 tokens does
not fit into a rectangle one token wide, so a second pass computes it. B's 63 are these 62 and the one of the rectangle. The model's weights are read
twice. C and D have their slots and wait, because a step computes one prompt only. In step 80 two slots have no request, and are computed as well.

All of this comes from the shape: the rows of a tensor are equally long. With a single row there is nothing to be equal to.

## Predict

From now on, each step makes one pass. It computes the whole prompt of every request that has just come, and one token of each of the others. At most
four requests run. A request whose answer ends leaves in that very step, so the prompt of the next in the queue is computed in the following step. The
caps are A 30, B 60, C 100, D 20, E 80, F 40. Assume that every request runs to its cap.
"""

# %%
print(f"In four slots: {slots.trace.forward_calls} forward passes")
predict("05.a", ...)  # How many forward passes do the six stories take now?

# %% [markdown]
"""
There is a price. A request may leave at any time, so each has a KV cache of its own. But a pass takes one cache. So before every pass the caches of
the running requests are joined into one: a copy of all that is cached. During the pass the model adds the new tokens; a `DynamicCache` does that by
making a larger tensor, and copies everything again. After the pass the cache is taken apart: a third copy.
"""

# %%
print("tokens of the prompts:", {name: len(ids) for name, ids in prompt_ids.items()})
# Take the whole run of the six stories. For each token computed, how many tokens' keys and values are copied, in all three copies together?
predict("05.b", ...)

# %% [markdown]
"""
## The idea

> **packed batch**: the new tokens of several sequences in one row, with the numbers that say whose each token is, where it stands in its own
> sequence, and where each sequence's piece of the row ends.

A sequence is what one request has so far, prompt and answer.

A small case first: C, E and A with short answers, and at most two requests at a time. Step through it. In the first step the row holds two prompts.
Then every request has one token in the row. When C has its last token it leaves, and the next row holds one token of E and, behind it, A's prompt.
"""

# %%
small = ragged_generate(
    model, tokenizer, [PROMPTS[NAMES.index(name)] for name in "CEA"], max_new_tokens=[3, 7, 4], names="CEA", max_num_seqs=2
)
Stepper(lambda i: draw_packed_step(small.packed[i], tokenizer.decode), count=len(small.packed), still=0)

# %% [markdown]
"""
On top are the tokens of the row, each with its tag: the request and the position. From the last token of each request comes its next token. Below is
the mask of the pass, which says what token may attend to what key. It has one line for each token of the row, and one column for each key: first what
is in the cache of each request, then the new tokens.

Here is the fourth step by itself, and in characters, for a terminal or a screen reader. `#` means that the token of this line attends to the key of
this column. The bar `|` parts the cached keys from the new ones.
"""

# %%
display(draw_packed_step(small.packed[3], tokenizer.decode))
print(packed_text(small.packed[3]))

# %% [markdown]
"""
Why does nobody notice the others? Almost everything in the model works on each token by itself: the embedding, the large matrices, the logits. Only
attention brings tokens together, and there the rule of lesson 04 holds. Every token carries two numbers, its sequence and its position. **A token
attends to keys of its own sequence, at its own position or before**, and to no others. And positions are counted in the sequence, not in the row.

Four parts make this work, and you write each of them: the row, the caches taken apart, the pass, and the step.

## Build 1: the row

A `PackedBatch` has six tensors. T is the number of tokens in the row, and B the number of sequences, whatever the stories are called.

| field | shape | what it says |
|---|---|---|
| `input_ids` | [T] | the new tokens, one sequence behind the other |
| `positions` | [T] | position of each in its own sequence |
| `seq_ids` | [T] | number of its sequence in the row, 0 to B − 1 |
| `cu_seqlens_q` | [B + 1] | where each sequence begins in the row, and at the end T |
| `context_lens` | [B] | tokens of each sequence after this pass, cached and new |
| `logits_index` | [B] | place in the row of each sequence's last token |

> **cumulative lengths**: the lengths of the pieces of a row, added up from the left, with a 0 in front. Counted from 0, piece *i* begins at the place
> that entry *i* names, and ends before the place that entry *i* + 1 names. Their usual name is `cu_seqlens`; the `q` in `cu_seqlens_q` stands for
> queries, that is, new tokens.

Example: `pack([[7], [5, 6, 8], [9]], cached_lens=[2, 0, 4])` is one new token of a sequence that has 2 tokens in its cache, a prompt of three tokens,
and one new token after 4 cached ones. Its `input_ids` are [7, 5, 6, 8, 9] and its `positions` [2, 0, 1, 2, 4]. Its `cu_seqlens_q` are [0, 1, 4, 5]:
the prompt lies at the places 1, 2 and 3 of the row. The `logits_index` is [0, 3, 4], and the `context_lens` are [3, 3, 5].

**Your task: `pack(new_tokens, cached_lens)`.** It returns `PackedBatch(input_ids=..., positions=..., ...)`, with all six fields by name. Each is a
tensor of integers with one axis. You may use `tag_tokens(lengths, starts)` of lesson 04: `tag_tokens([1, 3, 1], starts=[2, 0, 4])` gives an object
with two such tensors, `.positions` with the numbers 2, 0, 1, 2, 4 and `.seq_ids` with 0, 1, 1, 1, 2. Or make them yourself.

Refuse with a `ValueError`: not as many cached lengths as sequences, a sequence without a new token, a negative cached length. Two empty lists are no
mistake; they give empty tensors, but for `cu_seqlens_q`, which is [0]. Say `dtype=torch.int64`: of an empty list PyTorch would make floats.
"""

# %% exercise="05.1"
from lessons_lib.attention.packing import pack

# %% [markdown]
"""
Your row on real stories. D has left, and E has come with its prompt. A, B and C have 20 tokens each of their answers. The newest of the 20 is not
computed yet: it is what the request brings. So its prompt and 19 tokens are in its cache.

`unpack` takes a row apart again. It is given: `row[start:end]` for each pair of neighbours in `cu_seqlens_q`.
"""

# %%
answer = dict(zip(NAMES, slots.outputs))
new_tokens = [*([answer[name][19]] for name in "ABC"), prompt_ids["E"]]
packed = pack(new_tokens, cached_lens=[*(len(prompt_ids[name]) + 19 for name in "ABC"), 0])
for name in ("input_ids", "positions", "seq_ids", "cu_seqlens_q", "context_lens", "logits_index"):
    print(f"{name:>13}  {getattr(packed, name).tolist()}")
pieces = unpack(packed, packed.input_ids)
print("taken apart: ", [tokenizer.decode(piece) for piece in pieces])
print("round trip:  ", [piece.tolist() for piece in pieces] == new_tokens)

# %% [markdown]
"""
## Build 2: the caches taken apart

A `DynamicCache` holds, for every layer, keys and values of shape `[rows, KV heads, tokens, head size]`. Each request has one, with a single row.
Joining them means: in every layer, put the tokens of all requests one behind the other. That is given, and so is `cache_of`, which makes a cache out
of keys and values. Read both. A `DynamicLayer` is the part of a `DynamicCache` for one layer; `lazy_initialization` tells it their dtype and device.
"""

# %%
print(inspect.getsource(concatenate_caches))
print(inspect.getsource(cache_of))

# %%
def prefill_alone(name):
    cache = DynamicCache()
    with torch.inference_mode():
        model(input_ids=torch.tensor([prompt_ids[name]], device=model.device), past_key_values=cache)
    return cache


joined = concatenate_caches([prefill_alone(name) for name in "CE"])
print("prompts:", {name: len(prompt_ids[name]) for name in "CE"})
print("joined keys of one layer:", list(joined.layers[0].keys.shape), "(rows, KV heads, tokens, head size)")
print("layers:", len(joined.layers))

# %% [markdown]
"""
Nothing in these tensors says where C ends and E begins. That is written in the `PackedBatch`: `packed.cached_lens` are the lengths before the pass.

In the pass, the model hands each layer's cache the keys and values of the new tokens, and the cache puts them at the end. So after a pass with one
more token of C and two of E the order is this, with a letter and a position for each token:

```
C0 C1 C2  E0 E1 E2 E3 E4  C3  E5 E6
└────── cached of all ─┘  └─ new of all
```

This order is the reason for `key_tags` in the library, which makes the tags of the keys for the mask: first the cached of all, then the new of all.
The tags need not be sorted. A mask compares numbers, and does not ask where a key lies.

**Your task: `scatter_cache(joined, packed)`.** Give each sequence a cache of its own again: its old tokens, then its new ones. In the example C gets
C0 C1 C2 C3, and E gets E0 to E6. Return a list of B caches, in the order of the row.

`packed.cached_lens` and `packed.new_lens` are lists of B ints, here [3, 5] and [1, 2]. A length of 0 is possible among the cached.
`tensor.split(sizes, dim=2)` cuts a tensor along its tokens into pieces of these sizes. `joined.layers[i].keys` and `.values` are the tensors of layer
*i*. `cache_of([(keys, values), ...])` takes a pair for each layer.
"""

# %% exercise="05.2"
from lessons_lib.attention.packing import scatter_cache

# %% [markdown]
"""
## Build 3: the pass

Lesson 01 gave the model a batch of several rows, padded to one length. Now there is one row. The model takes the tokens, the positions and the mask
with an axis for rows in front, here of size 1.

| argument of `model(...)` | shape | what we hand over |
|---|---|---|
| `input_ids` | [1, T] | the row |
| `position_ids` | [1, T] | the positions |
| `attention_mask` | [1, 1, T, keys] | `packed_mask(packed)`, a bool tensor [T, keys], with two axes in front, for rows and heads |
| `past_key_values` | | the joined cache |
| `logits_to_keep` | [B] | for which places of the row logits are computed |

The last one saves work. Logits are as many numbers as the vocabulary has tokens, and nobody asks for the logits in the middle of a prompt.

**Your task: `packed_forward(model, packed, cache)`.** One call of the model. Return the logits `[B, vocabulary]`, without the axis for rows: line *i*
belongs to sequence *i*. The tensors of a `PackedBatch` are on the CPU; `.to(model.device)` brings them to where the model is. `tensor[None]` puts an
axis in front.
"""

# %% exercise="05.3"
from lessons_lib.attention.packing import packed_forward

# %% [markdown]
"""
Your pass, with your caches: C and E have their prompts in a joined cache. C gets one more token, E two. Then each goes through the model alone, to
compare the logits.
"""

# %%
more = {"C": tokenizer(" was").input_ids, "E": tokenizer(" Tom was").input_ids}
packed = pack(list(more.values()), cached_lens=[len(prompt_ids[name]) for name in more])
joined = concatenate_caches([prefill_alone(name) for name in more])
logits = packed_forward(model, packed, joined)
print(mask_text(packed_mask(packed), tag_tokens(packed.new_lens, packed.cached_lens), key_tags(packed), names="CE"))
print()
for name, line, cache in zip(more, logits, scatter_cache(joined, packed)):
    with torch.inference_mode():
        by_itself = model(input_ids=torch.tensor([prompt_ids[name] + more[name]], device=model.device)).logits[0, -1]
    same = torch.allclose(line, by_itself, atol=1e-3)
    print(f"{name}: next token {tokenizer.decode(line.argmax())!r}, alone {tokenizer.decode(by_itself.argmax())!r}")
    print(f"   all logits within 0.001: {same}; its cache now holds {cache.get_seq_length()} tokens")

# %% [markdown]
"""
The logits agree up to rounding. They need not agree to the last bit: with other shapes, sums may be added up in another order.

## Build 4: the step

Everything that the loop remembers is in one object, `batch`:

| field | what it is |
|---|---|
| `batch.waiting` | queue (`deque`) of requests without a place |
| `batch.running` | list of the requests of the next row, in the order of admission |
| `batch.max_num_seqs` | the most requests in a row |
| `batch.caches` | dict: request id → the cache of that request |

Three functions are given. `forward(batch, packed)` joins the caches of `batch.running`, computes the row with your `packed_forward`, hands each
request its own cache back with your `scatter_cache`, and returns the logits. (Both are handed over when a batch is made.) `forward` also
notes the row in `batch.packed`, and how much was copied, for the pictures and the counts. `retire` and `admit` keep the books:
"""

# %%
for function in (forward, retire, admit):
    print(inspect.getsource(function))

# %% [markdown]
"""
In lesson 02 a prompt and a decode were two kinds of work, in two functions. Here they are one. Every request has tokens that are known: its prompt,
`request.prompt_ids`, and its answer so far, `request.output_ids`, both lists of ints. Of these, the first `num_computed_tokens` are in its cache.
**The row takes the rest.** For a request that has just come, the rest is its whole prompt. For one that decodes, it is the one token that came out of
the step before.

**Your task: `ragged_step(batch, forward=forward)`**, one turn of the loop:

1. Collect, for each request of `batch.running`, the tokens that are known and not computed yet, and `pack` them. `request.num_computed_tokens` says
   how many tokens it has in its cache.
2. Call `forward(batch, packed)`, once. Line *i* of the logits belongs to request *i*. The next token is the argmax.
3. For each request: `num_computed_tokens` grows by the number of tokens that it had in the row; then `request.append_token(token)`, with an int.
4. `retire(batch)`, then `admit(batch)`.

There is always at least one running request when the step is called. Example: two places, C decodes with 5 tokens in its cache, E has just come with
a prompt of 5 tokens, A waits. The row has 1 + 5 tokens. Both get a token; C's `num_computed_tokens` is 6 now, E's is 5. If that was C's last token, C
is gone after the step, and A is in `batch.running`, with a prompt that the next row will hold.
"""

# %% exercise="05.4"
from lessons_lib.batching.ragged_batching import ragged_step

# %% [markdown]
"""
## A batch driven by hand

`batch.submit(request)` takes a request in: at once if a place is free, else at the end of the queue. It may come at any time between two steps. Here
C comes first, then E and A together, while C is decoding. There are two places.
"""

# %%
MINE = dict(packed_forward=packed_forward, scatter_cache=scatter_cache)
batch = RaggedBatch(model, max_num_seqs=2, **MINE)
c, e, a = (Request(name, prompt_ids[name], max_tokens, tokenizer.eos_token_id) for name, max_tokens in (("C", 4), ("E", 4), ("A", 2)))


def turn():
    in_the_row = [request.id for request in batch.running]
    ragged_step(batch)
    pieces = zip(in_the_row, batch.packed.new_lens, batch.packed.cached_lens)
    row = ", ".join(f"{name} {new} after {cached}" for name, new, cached in pieces)
    print(f"row: {row:28} then running: {[r.id for r in batch.running]}, waiting: {[r.id for r in batch.waiting]}")


batch.submit(c)
turn()
turn()
batch.submit(e)
batch.submit(a)
while batch.running:
    turn()
for request in (c, e, a):
    print(f"{request.id}: {tokenizer.decode(request.prompt_ids + request.output_ids)!r}, {request.finish_reason}")

# %% [markdown]
"""
E came into the row at once, beside C. A had to wait, and came into the row in the step after C's last token.

## The six stories

`ragged_generate` makes the requests, submits them all at the start, and calls your step until nobody is left.
"""

# %%
ragged = ragged_generate(model, tokenizer, **SIX, max_num_seqs=4, step=ragged_step, **MINE)
reveal("05.a", ragged.trace.forward_calls, unit="forward passes")

# %%
def event(number):
    step = ragged.packed[number]
    names = [", ".join(who) or "–" for who in (step.joined, step.left, step.waiting)]
    return [str(number + 1), " + ".join(map(str, step.packed.new_lens)), sum(step.packed.cached_lens), *names]


changes = [number for number, step in enumerate(ragged.packed) if step.joined or step.left]
Table(
    columns=["step", "new tokens in the row", "cached", "prompts of", "leave", "queue after it"],
    rows=[event(number) for number in changes],
    caption="The steps in which somebody comes or leaves",
)

# %% [markdown]
"""
C needs 100 passes for its 100 tokens, however we batch: fewer are not possible. C is in the first row, and nobody is left when it ends.

Compare the table with the first one. The prompts of A, B, C and D are all in the first row. No step makes a second pass, no place in a row belongs to
nobody. And D leaves in step 20; in step 21 the prompt of E is in the row already. Here is the row of step 21:
"""

# %%
draw_packed_step(ragged.packed[20], tokenizer.decode)

# %% [markdown]
"""
Step through the run. In step 30 A leaves, and F takes its place: it is in the next row, no longer in the queue. In step 31 F's long prompt
stands beside the tokens of B, C and E. From step 71 on the row has two tokens.
"""

# %%
Stepper(lambda i: draw_packed_step(ragged.packed[i], tokenizer.decode), count=len(ragged.packed), start=29, still=30)

# %% [markdown]
"""
## Prove it

The claim: every request gets the tokens that Hugging Face `generate` gives for its prompt alone. First the six stories.
"""

# %%
def alone(model, ids, max_tokens, end):
    ids = torch.tensor([ids], device=model.device)
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False, eos_token_id=end, pad_token_id=0
    )
    return out[0, ids.shape[1] :].tolist()


oracle = [alone(model, prompt_ids[story.name], story.max_new_tokens, tokenizer.eos_token_id) for story in STORIES]
print(f"{sum(a == b for a, b in zip(ragged.outputs, oracle))} of 6 answers equal `generate`")

# %% [markdown]
"""
Six requests in one order are a weak proof. Now forty requests with prompts of 1 to 40 random tokens and caps of 1 to 20, on three small random
models, a GPT-2, a Llama and a Qwen2, with at most three and at most eight in a row. The models write nonsense, but a mistake in a mask or a position
is likely to change it. The requests come in shuffled order and at random moments, so each of them meets other neighbours in every run. Some answers
end with the end token.
"""

# %%
END = 24  # any token can play the end token of a random model
rng = random.Random(5)
ragged_requests = [([rng.randrange(VOCAB_SIZE) for _ in range(rng.choice((1, 2, 5, 17, 40)))], rng.choice((1, 2, 5, 20))) for _ in range(40)]


def serve_arrivals(model, requests, rng, max_num_seqs):
    """Submit the requests one by one between the steps, at random moments."""
    batch, still_to_come = RaggedBatch(model, max_num_seqs, **MINE), deque(requests)
    while still_to_come or batch.running:
        while still_to_come and (not batch.running or rng.random() < 0.4):
            batch.submit(still_to_come.popleft())
        ragged_step(batch)


for family in ("gpt2", "llama", "qwen2"):
    tiny = tiny_model(family)
    expected = [alone(tiny, ids, max_tokens, END) for ids, max_tokens in ragged_requests]
    for max_num_seqs in (3, 8):
        requests = [Request(str(n), ids, max_tokens, END) for n, (ids, max_tokens) in enumerate(ragged_requests)]
        serve_arrivals(tiny, rng.sample(requests, k=len(requests)), rng, max_num_seqs)
        same = sum(request.output_ids == answer for request, answer in zip(requests, expected))
        stopped = sum(request.finish_reason == "stop" for request in requests)
        print(f"{family:>6}, at most {max_num_seqs} in a row: {same} of {len(requests)} equal `generate`; {stopped} of them ended with the end token")

# %% [markdown]
"""
## Why this is batching, and a loop is not

One could serve the same requests, in the same steps, with a Python loop: for each running request one pass with its own cache. `loop_forward` in the
library does that. It needs no mask, and no joining of caches. It gives the same tokens: the check of your step tried both. What is the difference?
"""

# %%
print(inspect.getsource(loop_forward))

# %% [markdown]
"""
Count first. One step of four decoding requests each way: how often the model is called, how many operators PyTorch runs, and how many bytes of
weights are read.

> **operator**: one elementary operation of PyTorch on tensors, such as a matrix product, an addition or a concatenation. A forward pass is a chain of
> some hundreds.

> **kernel launch**: handing a GPU one kernel to run, a small program of its own. Nearly every operator is one launch, and a launch costs a few
> microseconds of the CPU's time, however small the work.
"""

# %% tags=["measured"]
def four_decoding():
    batch = RaggedBatch(model, max_num_seqs=4, **MINE)
    for name in "ABCD":
        batch.submit(Request(name, prompt_ids[name], max_new_tokens=100))
    ragged_step(batch)
    return batch


def counted_step(how):
    batch, calls = four_decoding(), []
    watch = model.register_forward_hook(lambda *_: calls.append("a pass"))
    with count_operators() as operators:
        ragged_step(batch, forward=how)
    watch.remove()
    return len(calls), operators.count


weight_bytes = sum(weight.nbytes for weight in model.parameters())
WAYS = {"one row": forward, "a loop": loop_forward}
counts = {name: counted_step(how) for name, how in WAYS.items()}
Table(
    columns=["four requests, one step", "forward calls", "operators", "weights read, MiB"],
    rows=[[name, calls, operators, f"{calls * weight_bytes / 2**20:.0f}"] for name, (calls, operators) in counts.items()],
)

# %% tags=["measured"]
batch, inside = four_decoding(), count_operators()


def counted_pass(*arguments):
    with inside:
        return packed_forward(*arguments)


batch.packed_forward = counted_pass
ragged_step(batch)
around = counts["one row"][1] - inside.count
print(f"Of the operators of the row's step, {inside.count} are the pass. The other {around} are around it, most of them for the caches.")

# %% [markdown]
"""
The loop calls the model four times. Each call runs the whole chain of operators and reads all the weights, for a single token. The row does both
once, for four tokens. It pays with operators for its caches; lesson 06 removes those.

Now the clock: the time of a step against the number of requests that decode in it.
"""

# %% tags=["measured"]
def step_seconds(counts, times=7):
    """Median seconds of a decode step, for each way and number of requests. In turns: a slow moment of the machine meets all alike."""
    batches = {(name, count): RaggedBatch(model, max_num_seqs=count, **MINE) for count in counts for name in WAYS}
    for (_, count), batch in batches.items():
        for i in range(count):
            batch.submit(Request(str(i), prompt_ids[NAMES[i % 6]], max_new_tokens=100))
        ragged_step(batch)
    taken = {key: [] for key in batches}
    for _ in range(times):
        for (name, count), batch in batches.items():
            started = perf_counter()
            ragged_step(batch, forward=WAYS[name])
            taken[name, count].append(perf_counter() - started)
    return {name: [median(taken[name, count]) for count in counts] for name in WAYS}


numbers = (1, 2, 4, 8)
seconds = step_seconds(numbers)
milliseconds = {name: [1000 * t for t in times] for name, times in seconds.items()}
told = "; ".join(f"{name}: " + ", ".join(f"{t:.0f}" for t in times) for name, times in milliseconds.items())
print(f"ms a step with {', '.join(map(str, numbers))} requests: {told}")
line_chart(
    numbers, milliseconds, xlabel="requests that decode in the step", ylabel="ms a step",
    alt=f"Time of a step in ms, with {', '.join(map(str, numbers))} requests: {told}.",
)

# %% [markdown]
"""
The loop's time grows with the number of requests. The row's grows far more slowly. That difference is what batching means: the tokens of many go
through the weights together.

## Measure

Against lessons 01 and 02, on a workload like that of lesson 02: sixteen requests cut from the stories, most with short answers, three with long ones.
Four of them at a time, and then all sixteen.
"""

# %%
rng = random.Random(2)
prompts = [" ".join(rng.choice(PROMPTS).split()[: rng.randint(3, 40)]) for _ in range(16)]
max_tokens_each = [40, 30, 20] + [rng.randint(4, 8) for _ in range(13)]
rng.shuffle(max_tokens_each)
LOAD = dict(prompts=prompts, max_new_tokens=max_tokens_each)
METHODS = {
    "static, 01": lambda n: static_generate(model, tokenizer, **LOAD, batch_size=n),
    "slots, 02": lambda n: batch_generate(model, tokenizer, **LOAD, batch_size=n),
    "ragged, 05": lambda n: ragged_generate(model, tokenizer, **LOAD, max_num_seqs=n, step=ragged_step, **MINE),
}


def timed(method, n):
    started = perf_counter()
    run = METHODS[method](n)
    return run, perf_counter() - started


runs = {(method, n): timed(method, n) for n in (4, 16) for method in METHODS}
answers = runs["static, 01", 4][0].outputs
print("all answers the same:", all(run.outputs == answers for run, _ in runs.values()))
traces = {key: run.trace for key, (run, _) in runs.items()}
Table(
    columns=["at a time", "method", "steps", "forward passes", "tokens computed", "for nobody"],
    rows=[[str(n), how, len(t.steps), t.forward_calls, t.tokens_computed, f"{t.waste:.0%}"] for (how, n), t in traces.items()],
    caption="Sixteen requests, counted",
)

# %% [markdown]
"""
With the packed row, no token is computed for nobody, however many requests there are. With more slots, more is wasted: most of the sixteen slots are
soon empty, and the rectangle stays.

What does it bring in time? **Guess first:** where is the row further ahead of the slots, at four or at sixteen?
"""

# %% tags=["measured"]
load_tokens = sum(len(answer) for answer in answers)
speed = {key: load_tokens / min(once, timed(*key)[1]) for key, (_, once) in runs.items()}
Table(
    columns=["at a time", "method", "tokens/s", "× static", "× slots"],
    rows=[[str(n), how, now, now / speed["static, 01", n], now / speed["slots, 02", n]] for (how, n), now in speed.items()],
    caption=f"The same, timed: {load_tokens} new tokens, the faster of two runs on this machine",
)

# %% [markdown]
"""
Two things are saved against the slots. Passes, because in the slots each prompt takes a pass of its own. And tokens: at sixteen, more than half of
those in the slots. At four the slots waste few, so the row should be further ahead at sixteen. Static batching makes as few passes as the row when
all sixteen start at once. So it may beat the slots there, although it wastes more.

The row pays for it with the copies of its caches, and the more is cached, the more it pays. In this workload little is cached, and many prompts save
many passes. The six stories have few prompts and long answers. With them the row need not be faster than the slots; the ledger below has both.

### Copies

Everything that is cached is copied three times in a step, as said before the prediction. Taking the cache apart also copies the new tokens. The
library counts both:
"""

# %%
print(inspect.getsource(copied_tokens))

# %%
computed, copied = ragged.trace.tokens_computed, sum(copied_tokens(step.packed) for step in ragged.packed)
print(f"{computed} tokens computed; {copied:,} tokens' keys and values copied")
reveal("05.b", copied / computed, unit="tokens copied for each computed")

# %%
per_token = cache_bytes_per_token(model.config, model.dtype.itemsize)
moved = [step.bytes_copied / 1024 for step in ragged.trace.steps]
written = [step.tokens_computed * per_token / 1024 for step in ragged.trace.steps]
told = f"{moved[0]:,.0f} in the first step, {moved[1]:,.0f} in the second, {max(moved):,.0f} at most, {moved[-1]:,.0f} in the last"
line_chart(
    range(1, len(moved) + 1), {"copied": moved, "new keys and values": written}, xlabel="step", ylabel="KiB a step",
    alt=f"KiB copied in each step: {told}. New keys and values: {written[0]:,.0f} in the first step, then {written[1]:,.0f} in most.",
)

# %%
def copied_a_step(config, bytes_per_element, requests, context):
    return 3 * requests * context * cache_bytes_per_token(config, bytes_per_element)


# Shapes of a Llama with 8 billion weights; 2 bytes a number.
llama_8b = SimpleNamespace(num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, hidden_size=4096)
for requests, context in ((4, 500), (16, 2000), (64, 4000)):
    gigabytes = copied_a_step(llama_8b, 2, requests, context) / 1e9
    told = f"{gigabytes:6.1f} GB copied in every step, so {2 * gigabytes:6.1f} GB read and written"
    print(f"{requests:2} requests with {context:,} tokens each: {told}, for {requests} new tokens")

# %% [markdown]
"""
The curve climbs as long as the same requests run, and falls when one leaves. The new keys and values are the line at the bottom, with a bump where a
prompt comes in. The weights of a Llama with 8 billion weights, at 2 bytes each, are 16 GB. With sixteen requests of 2,000 tokens each, a step would
read and write more bytes for copies than it reads of weights. All of that for keys and values that do not change.

### The ledger
"""

# %% tags=["measured"]
ledger(model, tokenizer, "05", with_cache_only=True)

# %% [markdown]
"""
Read the last row. It computes as few tokens as one request at a time with a KV cache, all of them useful. Between two steps no cache is reserved that
is not used. No row has fewer forward calls. And "copied a step" is the largest of all.

The speeds are of a single run each. The rows of 02 and 03 run the same computation, so any speed may be off by as much as these two differ, or more.

## What production does

- **vLLM** packs just like this. In `vllm/v1/worker/gpu_model_runner.py`, `GPUModelRunner._prepare_inputs` makes the flat `input_ids` and `positions`,
  `query_start_loc` (our `cu_seqlens_q`), `seq_lens` (our `context_lens`) and `logits_indices`, which are `query_start_loc[1:] - 1`. The newer runner
  in `vllm/v1/worker/gpu/` has a dataclass `InputBatch` in `input_batch.py` with the same names. Two tensors stand
  in place of our joined cache: the `slot_mapping` of lesson 03 says where each new key is written, and the block table where the old ones are read.
  So nothing is ever joined.
- Its scheduler has no prefill and no decode either: each request gets tokens from `num_computed_tokens` on. That is your step, with a limit on
  the tokens of a step.
- **Hugging Face transformers** does the same in `generation/continuous_batching/input_outputs.py`: `input_ids` of shape (1, tokens), `position_ids`,
  `cumulative_seqlens_q`, and `logits_indices`, the last place of each request that gets a token in this step. Where attention is not computed by
  FlashAttention (the next point), it builds a block-diagonal mask from the cumulative lengths; ours comes from the tags.
- **FlashAttention** has `flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, ...)`: the packed row and the
  cumulative lengths, and no mask tensor. The kernel goes from sequence to sequence; `causal=True` hides the future. PyTorch has such a function of
  its own, `torch.nn.attention.varlen.varlen_attn`.

## What is still wrong
"""

# %%
longest = max(len(step.packed.input_ids) for step in ragged.packed)
usual = median(len(step.packed.input_ids) for step in ragged.packed)
masks = [packed_mask(step.packed) for step in ragged.packed]
print(f"copied in a step, on average: {ragged.trace.bytes_copied / len(ragged.packed) / 1024:,.0f} KiB")
cells, attended = sum(mask.numel() for mask in masks), sum(int(mask.sum()) for mask in masks)
print(f"cells in the masks of all steps: {cells:,}; attended to: {attended:,}")
print(f"tokens in a row: usually {usual:.0f}, at most {longest}")

# %% [markdown]
"""
**Copies.** Every step moves all that is cached, three times, and while it does, the same keys lie in memory twice or three times. Lesson 06 leaves
keys and values where they are, in the blocks of lesson 03, and lets attention find them through the block table.

**The dense mask.** It has a cell for every query and every key. Most of its cells say no, and attention computes those scores all the same.

**A long prompt goes in whole.** The row in which it stands is long, and everybody in it waits for their next token. Lesson 02 cut prompts into
chunks. A row could hold a chunk as well, since it takes any number of new tokens after any number of cached ones; `pack` does not mind. What is
missing is someone to decide how many tokens a step may have, and a step that hands out no token after part of a prompt. That is the scheduler of
lesson 09, with its token budget.

**Nobody counts memory.** `admit` asks whether a place is free, not whether the new request's keys will fit. A finished request's cache goes when
Python collects it. The block pool of lesson 03 can say whether keys will fit, once the cache lives in it.

## Quiz
"""

# %%
quiz("05")

# %% [markdown]
"""
## References

- G.-I. Yu et al.: *Orca: A Distributed Serving System for Transformer-Based Generative Models*, OSDI 2022, section 3 on *selective batching*: the
  tokens of all requests in one row for everything but attention. <https://www.usenix.org/conference/osdi22/presentation/yu>
- W. Kwon et al.: *Efficient Memory Management for Large Language Model Serving with PagedAttention*, SOSP 2023. <https://arxiv.org/abs/2309.06180>
- T. Dao: *FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning*, 2023. <https://arxiv.org/abs/2307.08691>; the function
  for rows of unequal length is in `flash_attn/flash_attn_interface.py`. <https://github.com/Dao-AILab/flash-attention>
- vLLM: `vllm/v1/worker/gpu_model_runner.py`, `vllm/v1/worker/gpu/input_batch.py`. <https://github.com/vllm-project/vllm>
- Hugging Face transformers: `src/transformers/generation/continuous_batching/input_outputs.py`. <https://github.com/huggingface/transformers>
- PyTorch: variable-length attention. <https://docs.pytorch.org/docs/stable/nn.attention.varlen.html>
"""
