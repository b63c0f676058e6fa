# %% [markdown]
"""
# 05 · Ragged packing

![One packed row of two prompts without padding, and its mask](../lessons_lib/assets/openings/05.svg)

**Can one forward pass compute what all requests need, and nothing else?**

75 minutes · difficulty: medium · routes: ideas, kernels, serving · prerequisites: lesson 02 (request states, the step)
and lesson 01 (padding). Lesson 04 (tags and masks) helps, but what we need from it is repeated here. The last sections
mention the blocks of lesson 03.

In lesson 02, the batch was still a rectangle of slots. Here you put all new tokens into one row, without padding. A
long prompt and the single tokens of running answers go through the model together, and each request gets the same
tokens as it would alone.
"""

# %% folded=true
import random
from functools import partial
from statistics import median
from time import perf_counter

import torch
from transformers import DynamicCache

from lessons_lib.attention import PackedBatch, concatenate_caches, copied_tokens, key_tags
from lessons_lib.attention import packed_mask, tag_tokens, unpack
from lessons_lib.batching import batch_generate, ragged_generate, static_generate
from lessons_lib.batching.ragged_batching import admit, forward, retire
from lessons_lib.checks import check, hint, predict, progress, quiz, reset, reveal, solution
from lessons_lib.measuring import MAX_NEW_TOKENS, NAMES, PROMPTS, STORIES, ledger
from lessons_lib.models import load_model
from lessons_lib.recording import record_run
from lessons_lib.viz.stepper import Stepper
from lessons_lib.viz.batches import draw_packed_step
from lessons_lib.viz.tables import Table

# %%
# float32: "equal" below means equal down to the last token
model, tokenizer = load_model(device="cpu")
SIX_PROMPTS = dict(prompts=PROMPTS, max_new_tokens=MAX_NEW_TOKENS)
SIX = dict(**SIX_PROMPTS, names=NAMES)
prompt_ids = {story.name: tokenizer(story.prompt).input_ids for story in STORIES}

# %% [markdown]
"""
## The problem: what is left of the rectangle

Here are the six stories again in four slots, as in lesson 02. What was computed in step 2?
"""

# %%
slots = record_run(batch_generate, model, tokenizer, **SIX, batch_size=4)
step = slots.trace.steps[1]
computed = " · ".join(f"{row.request} {row.computed}" for row in step.rows)
print(f"step 2: forward passes: {step.forward_calls}; {computed}: "
      f"{step.tokens_computed} tokens computed, {step.tokens_useful} needed")
print(f"in all: {slots.trace.forward_calls} passes, {slots.trace.tokens_computed} tokens "
      f"computed, {slots.trace.tokens_useful} needed")

# %% [markdown]
"""
A decode pass is a rectangle: one token in each of the four slots, and only A needs it. B's prompt of 62 tokens doesn't
fit into it, so a second pass computes the prompt and reads all weights again. (B's 63 are those 62 and its one token in
the rectangle.)

Here are sixteen requests cut from the stories, three of them with long answers, in sixteen slots:
"""

# %%
rng = random.Random(2)
prompts = [" ".join(rng.choice(PROMPTS).split()[: rng.randint(3, 40)]) for _ in range(16)]
max_tokens_each = [40, 30, 20] + [rng.randint(4, 8) for _ in range(13)]
rng.shuffle(max_tokens_each)
LOAD = dict(prompts=prompts, max_new_tokens=max_tokens_each)
crowd = record_run(batch_generate, model, tokenizer, **LOAD, batch_size=16).trace
print(f"{crowd.forward_calls} passes in {len(crowd.steps)} steps")
print(f"{crowd.tokens_computed} tokens computed, {crowd.tokens_useful} needed")

# %% [markdown]
"""
Every prompt takes a pass of its own, and more than half of the computed tokens aren't needed: empty slots are computed,
too.

## Predict

From now on, each step makes one pass. It computes the whole prompt of each request that was just admitted, and one
token of every other running request. At most four requests run at a time. A request leaves in the same step in which it
finishes, so the next prompt in the queue is computed in the following step. (In lesson 02, it left in the next step.
The next request starts in the same step either way.) The limits (`max_tokens`) are A 30, B 60, C 100, D 20, E 80, F 40.
Assume that every request reaches its limit.

**Predict 05.a** How many forward passes do the six stories take now?
"""

# %%
predict("05.a", ...)  # forward passes

# %% [markdown]
"""
## The idea

> **packed batch**: the new tokens of several sequences in one row, together with the indices that say which sequence
> each token belongs to, what its position in that sequence is, and where each sequence's part of the row ends. The
> parts differ in length, so it's also called *ragged*.

A sequence is everything a request has so far, prompt and answer.

Here is a whole run of C, E and A: short answers, and at most two requests at a time. Step through it, and watch the row
when C has left and A's prompt comes in.
"""

# %%
CEA = [PROMPTS[NAMES.index(name)] for name in "CEA"]
small = record_run(
    ragged_generate, model, tokenizer, CEA, max_new_tokens=[3, 7, 4], names="CEA",
    max_num_seqs=2
)
Stepper(lambda i: draw_packed_step(small.packed[i], tokenizer.decode),
        count=len(small.packed), still=0)

# %% [markdown]
"""
At the top are the tokens of the packed row, each with its tag: request and position. The new token that each request
gets is above its last token. Below is the mask of the pass: a row per token, and a column per key, first the cached
keys of all requests, then the new ones.

Why don't the requests affect each other? Almost everything in the model works on each token separately. Only attention
combines tokens, and every token carries its sequence id and its position (lesson 04). **A token attends to keys of its
own sequence, at its own position or earlier**, and to nothing else. Positions are counted within the sequence, not
along the row.

You'll build three parts: the packed row, the pass, and the step.

## Build 1: the packed row

A `PackedBatch` has six tensors. T is the number of tokens in the row, and N is the number of sequences.

| field | shape | meaning |
|---|---|---|
| `input_ids` | [T] | the new tokens, one sequence after another |
| `positions` | [T] | each token's position in its own sequence |
| `seq_ids` | [T] | each token's sequence id, 0 to N − 1 |
| `cu_seqlens_q` | [N + 1] | the index in the row where each sequence begins, and finally T |
| `context_lens` | [N] | each sequence's number of tokens after this pass, cached and new |
| `logits_index` | [N] | the index in the row of each sequence's last token |

> **cumulative lengths**: the running sum of the lengths of a row's parts, starting with 0. Part *i* begins at the
> index in entry *i* and ends before the index in entry *i* + 1. The usual name is `cu_seqlens`; the `q` in
> `cu_seqlens_q` stands for queries, that is, new tokens.

Example: `pack([[7], [5, 6, 8], [9]], cached_lens=[2, 0, 4])` packs one new token of a sequence with 2 cached tokens,
a prompt of three tokens, and one new token of a sequence with 4 cached tokens. Its `input_ids` are [7, 5, 6, 8, 9]
and its `positions` [2, 0, 1, 2, 4]. Its `cu_seqlens_q` are [0, 1, 4, 5]: the prompt is at indices 1, 2 and 3 of the
row. The `logits_index` is [0, 3, 4], and the `context_lens` are [3, 3, 5].

**Exercise 05.1.** Write `pack(new_tokens, cached_lens)`. It returns `PackedBatch(input_ids=..., positions=..., ...)`
with all six fields passed by name. Each field is a one-dimensional int64 tensor (int32 is accepted). With no sequences
at all, `cu_seqlens_q` is [0], and the other five are empty, but still integers. Lesson 04's
`tag_tokens(lengths, starts)` may help: it returns an object with `seq_ids` and `positions`, tensors `[T]`, in which the
positions of sequence *i* begin at `starts[i]`. (The `ValueError` in the docstring is the library's; yours needn't check
its arguments.)
"""

# %% exercise="05.1"
from lessons_lib.attention.packing import pack

# %% [markdown]
"""
Here is your packed row with real stories. D has left, and E has just arrived with its prompt. A, B and C have 20 answer
tokens each. The newest of these 20 isn't computed yet: it's the one that goes into the row. `unpack` splits the row
again: it takes `row[start:end]` for each pair of adjacent entries in `cu_seqlens_q`.
"""

# %%
answer = dict(zip(NAMES, slots.outputs))
new_tokens = [*([answer[name][19]] for name in "ABC"), prompt_ids["E"]]
packed = pack(new_tokens, cached_lens=[*(len(prompt_ids[name]) + 19 for name in "ABC"), 0])
for name in ("input_ids", "positions", "seq_ids", "cu_seqlens_q", "context_lens",
             "logits_index"):
    print(f"{name:>13}  {getattr(packed, name).tolist()}")
parts = unpack(packed, packed.input_ids)
print("unpacked:    ", [tokenizer.decode(part) for part in parts])

# %% [markdown]
"""
## Build 2: the pass

Each request keeps its own cache, so that it can leave at any time. But a pass takes only one. So before every pass,
`concatenate_caches` joins the caches of the row's requests, and the model appends the new keys and values at the end.
Say the row is C3 E5 E6, with a letter and a position for each token: one token of C, which has 3 in the cache, and two
of E, which has 5 (`packed.cached_lens` is [3, 5]). Then the keys are in this order:

```
C0 C1 C2  E0 E1 E2 E3 E4  C3  E5 E6
└── cached, all seqs ──┘  └─ new, all
```

After the pass, `scatter_cache` gives C its own C0 to C3 again, and E its E0 to E6. (Both functions are provided;
`scatter_cache` is exercise 05.2, in "Further".) C's keys aren't adjacent during the pass. That's all right: the mask
compares sequence ids and positions, so it doesn't matter where a key is stored. `packed_mask(packed)` builds it by the
rule above: bool, a row for each new token, a column for each key in this order.

**Exercise 05.3.** Write `packed_forward(model, packed, cache)`. It calls the model once and returns the logits `[N,
vocabulary]`: row *i* has those after sequence *i*'s last token. Afterwards `cache` also holds the row's tokens.

- Pass the model's arguments by name, because their order differs from model to model: `input_ids`, `position_ids`,
  `attention_mask` (its axes are batch, heads, queries and keys), `past_key_values`, and `logits_to_keep`, the indices
  at which to compute logits. It must compute no logits but those that you return.
- The model may be on a GPU; the tensors of a `PackedBatch` and the mask are on the CPU. The logits stay on the model's
  device.

Example: for the row C3 E5 E6, the model computes 3 tokens over 11 keys, but logits after only 2 of them, and you return
[2, vocabulary]. To the model, the row is a batch with a single sequence: which shapes must its arguments have?
"""

# %% exercise="05.3"
from lessons_lib.attention.packing import packed_forward

# %% [markdown]
"""
Let's run your pass on this very row. The prompts of C and E are in a joined cache; C gets one more token, E gets two.
Then each goes through the model alone. **With a pencil first:** draw the mask of this pass, three rows and eleven
columns. How many of its 33 cells are True?
"""

# %%
def prefill_alone(name):
    cache = DynamicCache()
    with torch.inference_mode():
        model(input_ids=torch.tensor([prompt_ids[name]], device=model.device),
              past_key_values=cache)
    return cache


more = {"C": tokenizer(" was").input_ids, "E": tokenizer(" Tom was").input_ids}
packed = pack(list(more.values()), cached_lens=[len(prompt_ids[name]) for name in more])
mask = packed_mask(packed)
print("\n".join("".join("#" if may else "." for may in query) for query in mask.tolist()))
print(f"{int(mask.sum())} of {mask.numel()} cells are True\n")
joined = concatenate_caches([prefill_alone(name) for name in more])
for name, logits in zip(more, packed_forward(model, packed, joined)):
    with torch.inference_mode():
        ids = torch.tensor([prompt_ids[name] + more[name]])
        alone_logits = model(input_ids=ids).logits[0, -1]
    same = torch.allclose(logits, alone_logits, atol=1e-3)
    packed_next = tokenizer.decode(logits.argmax())
    alone_next = tokenizer.decode(alone_logits.argmax())
    both = f"next token {packed_next!r}, alone {alone_next!r}"
    print(f"{name}: {both}; all logits within 0.001: {same}")

# %% [markdown]
"""
C3 attends to C0, C1 and C2 at the left and to itself near the right. The logits agree up to rounding.

## Build 3: the step

The loop keeps its state in one object. `batch.running` is the list of the requests in the next row, in the order of
admission, at most `batch.max_num_seqs`. `batch.waiting` is the queue of those that haven't been admitted yet.

Three functions are provided:

- `forward(batch, packed)` joins the caches of `batch.running`, computes the row with your `packed_forward`, gives each
  request its own cache back, and returns the logits;
- `retire(batch)` removes the finished requests from `batch.running`, and their caches;
- `admit(batch)` moves requests from the queue to `batch.running` while there's room.

In lesson 02, a prompt and a decode were two functions. Here they're the same. Every request has known tokens: its
prompt, `request.prompt_ids`, and its answer so far, `request.output_ids`, both lists of ints. The first
`num_computed_tokens` of these are in its cache. **The row takes the rest.**

**Exercise 05.4.** Write `ragged_step(batch, forward=forward)`, one step of the loop. It computes one row for all
requests in `batch.running`, with a single call of `forward(batch, packed)`. Row *i* of the logits belongs to request
*i*. After the step:

- each of these requests has one new token, the one with the highest logit, even if it's the request's last one.
  `request.append_token(token)` appends it, an int, and updates the request's state;
- `request.num_computed_tokens` again equals the number of tokens in its cache, whether the row had a whole prompt, the
  rest of a prompt that is partly in the cache already, or a single token, and even if the request finishes;
- finished requests have left, and waiting ones have taken their places: no request waits while there's room.

At least one request is running whenever the step is called. The check also passes another function as `forward`, so
call the one that you get.

Example with `max_num_seqs=2`: C decodes with 5 tokens in its cache, E was just admitted with a prompt of 5 tokens, and
A waits. The row has 1 + 5 tokens. Both requests get a token, and `num_computed_tokens` is now 6 for C and 5 for E. If
that was C's last token, C is gone after the step and A is in `batch.running`, so A's prompt goes into the next row.
"""

# %% exercise="05.4"
from lessons_lib.batching.ragged_batching import ragged_step

# %% [markdown]
"""
## The six stories

`ragged_generate` makes the requests, submits them all at the start, and calls your step until all of them have
finished.

Joining and splitting caches has a price. Every step copies all cached keys and values three times: when the caches are
joined, when a `DynamicCache` grows by the new tokens, and when the caches are split.

**Predict 05.b** How many tokens' keys and values does the whole run copy *for each token of an answer*? A pencil
estimate will do; the next cell prints the lengths of the prompts, and the limits are above. A guess is a hit if it's
off by at most half of the measured number, which `copied_tokens` counts by this rule.
"""

# %%
print("tokens in the prompts:", {name: len(ids) for name, ids in prompt_ids.items()})
predict("05.b", ...)  # copied tokens for each token of an answer

# %%
MINE = dict(packed_forward=packed_forward)  # your own
ragged = record_run(ragged_generate, model, tokenizer, **SIX, max_num_seqs=4,
                    step=ragged_step, **MINE)
copied, answered = sum(copied_tokens(step.packed) for step in ragged.packed), sum(
    len(answer) for answer in ragged.outputs)
print(f"{ragged.trace.tokens_computed} tokens computed, "
      f"{ragged.trace.tokens_computed - ragged.trace.tokens_useful} of them wasted")
print(f"{answered} tokens in the answers; {copied:,} tokens' keys and values copied")
masks = [packed_mask(step.packed) for step in ragged.packed]
cells, attended = sum(mask.numel() for mask in masks), sum(int(mask.sum()) for mask in masks)
print(f"cells in the masks of all steps: {cells:,}; of these True: {attended:,}")
reveal("05.a", ragged.trace.forward_calls, unit="forward passes")
reveal("05.b", copied / answered, unit="tokens", tolerance=0.5)

# %% [markdown]
"""
C gets one token in each pass and needs 100, so fewer passes aren't possible, and no computed token is wasted. But for
each answer token, the keys and values of about 160 tokens are copied, and not one number in them changes. In lesson 06,
your own attention copies none.

## Prove it

Every request must get the same tokens as from Hugging Face `generate` on its prompt alone. ("Further" also tries forty
random requests on three families of models.)
"""

# %%
def alone(model, ids, max_tokens, end):
    ids = torch.tensor([ids], device=model.device)
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False,
        eos_token_id=end, pad_token_id=0
    )
    return out[0, ids.shape[1] :].tolist()


oracle = [alone(model, prompt_ids[story.name], story.max_new_tokens, tokenizer.eos_token_id)
          for story in STORIES]
print(f"{sum(a == b for a, b in zip(ragged.outputs, oracle))} of 6 answers equal `generate`")

# %% [markdown]
"""
## Break it

Only the sequence ids keep the requests apart. Leave them out, and the mask compares positions alone: those of the row's
tokens with those of all keys. `key_tags(packed)` gives the tags of the keys in the order of the mask's columns; it
assumes that the cached keys are in the order of the row. A is first in every row, until it finishes.

**Predict 05.c** How many of the six answers change without the sequence ids?
"""

# %%
predict("05.c", ...)  # answers

# %%
class Changed:
    """The model, but it gets other arguments."""

    def __init__(self, **changes):
        self.changes = changes

    def __call__(self, **arguments):
        return model(**(arguments | self.changes))

    def __getattr__(self, name):
        return getattr(model, name)


def without_ids(_, packed, cache):
    may = key_tags(packed).positions <= packed.positions[:, None]
    return packed_forward(Changed(attention_mask=may[None, None]), packed, cache)


broken = ragged_generate(model, tokenizer, **SIX_PROMPTS, max_num_seqs=4,
                         packed_forward=without_ids)
for title, answers in (("with the ids", oracle), ("without", broken)):
    print(f"A's answer {title:>12}: {tokenizer.decode(answers[0])[:60]!r}")
reveal("05.c", sum(got != right for got, right in zip(broken, oracle)), unit="answers")

# %% [markdown]
"""
All six, A included. Being first in the row doesn't help: every sequence has its own position 0, so A's token at
position 13 attends to all tokens of B, C and D at positions 0 to 13, in the row or in the cache. The others attend to
foreign keys in the same way. (Other logits needn't change an answer, but here they change each of the six.)

## Which loads suit the row?

Here are the sixteen requests from the beginning again. First four run at a time, then all sixteen. The row runs with
your step.
"""

# %%
recorded = partial(record_run, model=model, tokenizer=tokenizer)
METHODS = {
    "static, 01": lambda load, n: recorded(static_generate, **load, batch_size=n),
    "slots, 02": lambda load, n: recorded(batch_generate, **load, batch_size=n),
    "ragged, 05": lambda load,
    n: recorded(ragged_generate, **load, max_num_seqs=n, step=ragged_step, **MINE),
}

runs = {(method, n): METHODS[method](LOAD, n) for n in (4, 16) for method in METHODS}
print("all answers the same:",
      all(run.outputs == runs["static, 01", 4].outputs for run in runs.values()))
traces = {key: run.trace for key, run in runs.items()}
Table(
    columns=["at a time", "method", "steps", "forward passes", "tokens computed", "wasted"],
    rows=[[str(n), how, len(t.steps), t.forward_calls, t.tokens_computed, f"{t.waste:.0%}"]
          for (how, n), t in traces.items()],
    caption="Sixteen requests: steps, passes and tokens",
)

# %% [markdown]
"""
With your row, every computed token is needed, and no prompt takes a pass of its own. But it pays in each step: for the
copies, the mask, and the operators that pack the row, join the caches and split them. So it depends on the load, and
now you design the load.

> **operator**: a single PyTorch operation on tensors, such as a matrix product, an addition or a concatenation. A
> forward pass is a chain of a few hundred of them.

**Make two loads** from up to sixteen of these prompts. You set how many tokens each answer may have, and how many
requests run at a time. With the first load, the row should be at least three times as fast as the slots. With the
second, the slots should be faster. **Guess first:** how many passes does each make? (A step of lesson 02 computes at
most one prompt, or one chunk of a long one, in a pass of its own, and one token of each other running request.)
"""

# %% tags=["measured"]
def race(load, max_tokens_each, at_a_time, rounds=5):
    """Slots and row serve the load in turn, so a temporary slowdown affects both. Speeds are
    from the medians."""
    asked = dict(prompts=prompts[: len(max_tokens_each)], max_new_tokens=max_tokens_each)
    passes, taken = {}, {"slots, 02": [], "ragged, 05": []}
    for _ in range(rounds):
        for method, seconds in taken.items():
            started = perf_counter()
            passes[method] = METHODS[method](asked, at_a_time).trace.forward_calls
            seconds.append(perf_counter() - started)
    slots, row = passes.values()
    slots_seconds, row_seconds = map(median, taken.values())
    speed = f"the row is {slots_seconds / row_seconds:.2f} times as fast as the slots"
    print(f"{load}: {slots} passes of the slots, {row} of the row ({slots / row:.2f} times as "
          f"many); {speed}")


race("for the row", [10] * 16, at_a_time=4)  # change the list and the number
race("for the slots", [10] * 16, at_a_time=4)  # and these

# %% [markdown]
"""
Here is the load from the beginning, and two of ours:
"""

# %% tags=["measured"]
race("from the beginning", max_tokens_each, at_a_time=16)
race("short answers", [2] * 16, at_a_time=16)
race("long answers", [100] * 2, at_a_time=2)

# %% [markdown]
"""
The slots need a step, and a pass of its own, for every prompt. The row computes all prompts of a step together: sixteen
short answers take it two passes. Think of requests whose whole answer is a yes or no. With long answers, both methods
make about one pass per step. Then the row has nothing to save, and still copies all caches.

## The ledger

Now the six stories, with each method so far that has a cache. The slots make 108 passes here, and the row 100.
**Guess first:** which of the two is faster?
"""

# %% tags=["measured"]
ledger(model, tokenizer, "05", with_cache_only=True)

# %% [markdown]
"""
No method computes fewer tokens or makes fewer forward calls, but none copies more per step. With six prompts there are
few passes to save, so don't expect the row to beat the slots here. (Each speed comes from a single run. Lessons
02 and 03 run the same computation, so any difference between these two is noise.)

## What is still wrong

**Copies.** Every step copies the whole cache three times. Lesson 06 leaves keys and values where they are, in the
blocks of lesson 03, and attention finds them through the block table.

**The dense mask.** It has a cell for every query and every key: 78,122 for the six stories, and only 21,087 are True.
Attention computes the scores of all of them.

**A long prompt goes in whole.** Something has to decide how many tokens a step may compute, and whose. That's the
scheduler of lesson 09, with its token budget.

**Nothing tracks memory.** `admit` checks whether the batch has room for one more request, not whether the request's
keys will fit in memory. With the block pool of lesson 03, it could check that too.

## What production does

- **vLLM** packs in the same way. In `vllm/v1/worker/gpu_model_runner.py`, `GPUModelRunner._prepare_inputs` builds the
  flat `input_ids` and `positions`, `query_start_loc` (our `cu_seqlens_q`), `seq_lens` (our `context_lens`) and
  `logits_indices`, which are `query_start_loc[1:] - 1`. Its scheduler doesn't distinguish prefill from decode either:
  each request gets tokens from `num_computed_tokens` on. That's your step, plus a limit on the tokens per step.
- **FlashAttention** has `flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, ...)`. It takes the packed row and
  the cumulative lengths, and no mask tensor: the kernel (a GPU program) computes each sequence separately.

## Quiz
"""

# %%
quiz("05")

# %% [markdown]
"""
## References

- G.-I. Yu et al.: *Orca: A Distributed Serving System for Transformer-Based Generative Models*, OSDI 2022, section 3
  on *selective batching*: the tokens of all requests in one row for everything but attention.
  <https://www.usenix.org/conference/osdi22/presentation/yu>
- W. Kwon et al.: *Efficient Memory Management for Large Language Model Serving with PagedAttention*, SOSP 2023.
  <https://arxiv.org/abs/2309.06180>
- T. Dao: *FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning*, 2023.
  <https://arxiv.org/abs/2307.08691>; the function for sequences of variable length is in
  `flash_attn/flash_attn_interface.py`. <https://github.com/Dao-AILab/flash-attention>
- vLLM: `vllm/v1/worker/gpu_model_runner.py`, `vllm/v1/worker/gpu/input_batch.py`.
  <https://github.com/vllm-project/vllm>
- Hugging Face transformers: `src/transformers/generation/continuous_batching/input_outputs.py`.
  <https://github.com/huggingface/transformers>
- PyTorch: variable-length attention. <https://docs.pytorch.org/docs/stable/nn.attention.varlen.html>
"""

# %% [markdown] folded=true
"""
## Further (optional)

Nothing here is needed for the lesson, and its 75 minutes don't include it.

### Stretch: a long prompt in pieces

A long prompt makes the row long, and every request in it waits longer for its next token. Lesson 02 split prompts into
chunks. A row can hold a chunk as well, since `pack` takes any number of new tokens after any number of cached ones.

Write `chunked_step(batch, max_num_batched_tokens, forward=forward)`. It does what your `ragged_step` does, but its row
never has more than `max_num_batched_tokens` tokens. Every request still gets the tokens that it gets alone.

- Call `forward(batch, packed)` once. It joins the caches of all requests in `batch.running`, so each of them needs at
  least one token in the row, in this order. `max_num_batched_tokens` is never smaller than their number.
- A prompt that is computed in part has no next token yet: its logits predict a token that we know already.
- Which prompt gets how much of the row is up to you. The row may also be shorter than the limit.

The scoreboard first checks the tokens. Then it serves hidden workloads, in which some prompts are long, with at most 32
tokens in a row. It counts the steps (each reads all the weights), the largest row, and two things that a user notices,
both in tokens computed meanwhile: the longest gap between two tokens of the same request, and the wait from a request's
arrival to its first token. Whole prompts give short waits and long gaps. Can you have both short? The cell starts out
with your `ragged_step`.
"""

# %%
from lessons_lib.checks.lesson_05.scoreboard import chunk_scoreboard


def chunked_step(batch, max_num_batched_tokens, forward=forward):
    ragged_step(batch, forward=forward)  # replace this


chunk_scoreboard(chunked_step)

# %% [markdown]
"""
### Three prompts, one row

Here are the prompts of C, E and A on their way into one row:
"""

# %%
from lessons_lib.viz.batches import watch_packing

watch_packing("CEA", [[tokenizer.decode(token) for token in tokenizer(prompt).input_ids]
                      for prompt in CEA])

# %% [markdown]
"""
### Exercise: splitting the joined cache

For every layer, a `DynamicCache` holds keys and values of shape `[rows, KV heads, tokens, head size]`. Each request has
its own cache, with a single row. Two functions are provided: `concatenate_caches` joins the tokens of all requests in
every layer, and `cache_of` makes a cache from existing keys and values. A `DynamicLayer` is one layer of a
`DynamicCache`; `lazy_initialization` tells it the dtype and device.
"""

# %%
from lessons_lib.attention import cache_of
from lessons_lib.viz.source import show_source

show_source(concatenate_caches, cache_of)

# %% [markdown]
"""
Nothing in the joined tensors says where C ends and E begins. That information is in the `PackedBatch`:
`packed.cached_lens` are the lengths before the pass.

After a pass with one more token of C and two of E, the order is that of Build 2: C0 C1 C2 E0 E1 E2 E3 E4 C3 E5 E6.

**Exercise 05.2** (optional). Write `scatter_cache(joined, packed)`. Give each sequence its own cache again: its old
tokens, then its new ones. In the example, C gets C0 C1 C2 C3, and E gets E0 to E6. Return a list of N caches, in the
order of the row. They may share memory with `joined`, which isn't used afterwards. N is at least 1.

`packed.cached_lens` and `packed.new_lens` are lists of N ints that follow from its tensors, here [3, 5] and [1, 2]. A
cached length may be 0. `joined.layers[i].keys` and `.values` are the tensors of layer *i*. `cache_of([(keys, values),
...])` takes one pair per layer.
"""

# %% exercise="05.2"
from lessons_lib.attention.packing import scatter_cache

# %% [markdown]
"""
### Random requests on three families

Forty random requests arrive in shuffled order and at random moments. The small random models write nonsense, but a bug
in a mask or a position is likely to change it. GPT-2 adds positions to the embeddings, and Llama and Qwen2 rotate
queries and keys by them.
"""

# %%
from collections import deque

from lessons_lib.batching import RaggedBatch, Request
from lessons_lib.models import VOCAB_SIZE, tiny_model

END = 24  # with a random model, any token can serve as the end token
rng = random.Random(5)
ragged_requests = [([rng.randrange(VOCAB_SIZE) for _ in range(rng.choice((1, 2, 5, 17, 40)))],
                    rng.choice((1, 2, 5, 20))) for _ in range(40)]


def serve_arrivals(model, requests, rng, max_num_seqs):
    """Submit the requests one by one between steps, at random moments."""
    batch, arriving = RaggedBatch(model, max_num_seqs, **MINE), deque(requests)
    while arriving or batch.running:
        while arriving and (not batch.running or rng.random() < 0.4):
            batch.submit(arriving.popleft())
        ragged_step(batch)


def equal_to_generate(family, max_num_seqs):
    """How many of the requests get what they get alone."""
    tiny = tiny_model(family)
    requests = [Request(str(i), ids, max_tokens, END)
                for i, (ids, max_tokens) in enumerate(ragged_requests)]
    serve_arrivals(tiny, rng.sample(requests, k=len(requests)), rng, max_num_seqs)
    return sum(request.output_ids == alone(tiny, *asked, END)
               for request, asked in zip(requests, ragged_requests))


for family in ("gpt2", "llama", "qwen2"):
    for max_num_seqs in (3, 8):
        print(f"{family:>6}, at most {max_num_seqs} per row: "
              f"{equal_to_generate(family, max_num_seqs)} of {len(ragged_requests)} "
              "equal `generate`")

# %% [markdown]
"""
### Shifted positions

What if each sequence's positions begin where it begins in the row, with the right mask?
"""

# %%
def shifted_positions(_, packed, cache):
    """The right mask, but the model counts each sequence's positions from where it begins in
    the row."""
    begins = packed.cu_seqlens_q[packed.seq_ids]
    return packed_forward(Changed(position_ids=(begins + packed.positions)[None]),
                          packed, cache)


shifted = ragged_generate(model, tokenizer, **SIX_PROMPTS, max_num_seqs=4,
                          packed_forward=shifted_positions)
print("other answers:",
      ", ".join(name for name, got, right in zip(NAMES, shifted, oracle) if got != right))

# %% [markdown]
"""
Without a cache, lesson 04 found that this changes no answer, because all distances stay the same. Now the keys in the
cache keep the shift that they were computed with, while a new token gets the shift of its own pass. A is always first,
so its shift is always 0. The others move when a request before them leaves, and after a step that computes the whole
prompt of one before them. (F was lucky: its place changes once, by one.)
"""
