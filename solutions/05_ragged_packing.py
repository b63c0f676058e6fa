# %% [markdown]
"""
# 05 · Ragged packing

![One packed row of two prompts without padding, and its mask](../lessons_lib/assets/openings/05.svg)

**Can one forward pass compute what all requests need, and nothing else?**

75 minutes · difficulty: medium · routes: ideas, kernels, serving · prerequisites: lesson 02 (request states, the step)
and lesson 01 (padding). Lesson 04 (tags and masks) helps.

In lesson 02, the batch was still a rectangle of slots. Here you put all new tokens into one row, without padding: a
long prompt and the single tokens of running answers go through the model together. Then you give the row a limit and
cut long prompts into chunks. That's the heart of vLLM's scheduler, in about 15 lines of yours.
"""

# %% folded=true
import random
from functools import partial
from statistics import median
from time import perf_counter

import torch
from transformers import DynamicCache

from lessons_lib.attention import concatenate_caches, copied_tokens, key_tags
from lessons_lib.attention import packed_mask, unpack
from lessons_lib.attention.packing import packed_forward
from lessons_lib.batching import batch_generate, ragged_generate
from lessons_lib.checks import check, hint, predict, progress, quiz, reset, reveal, solution
from lessons_lib.checks.lesson_05.scoreboard import chunk_scoreboard
from lessons_lib.measuring import MAX_NEW_TOKENS, NAMES, PROMPTS, STORIES, ledger
from lessons_lib.models import load_model
from lessons_lib.recording import record_run
from lessons_lib.viz.batches import draw_packed_step
from lessons_lib.viz.source import show_source
from lessons_lib.viz.stepper import Stepper

# %%
# float32: "equal" below means equal down to the last token
model, tokenizer = load_model(device="cpu")
SIX_PROMPTS = dict(prompts=PROMPTS, max_new_tokens=MAX_NEW_TOKENS)
SIX = dict(**SIX_PROMPTS, names=NAMES)
prompt_ids = {story.name: tokenizer(story.prompt).input_ids for story in STORIES}

# %% [markdown]
"""
## The problem: what is left of the rectangle

Here are the six stories again in four slots, as in lesson 02. What did it compute in step 2?
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
The decode pass is a rectangle: one token in each of the four slots. Only A's is needed; the other three are dummies.
B's prompt of 62 tokens doesn't fit into it, so a second pass computes the prompt and reads all weights again.

Here are sixteen short requests, cut from the stories, in sixteen slots:
"""

# %%
rng = random.Random(2)
prompts = [" ".join(rng.choice(PROMPTS).split()[: rng.randint(3, 40)]) for _ in range(16)]
max_tokens_each = [40, 30, 20] + [rng.randint(4, 8) for _ in range(13)]
rng.shuffle(max_tokens_each)
crowd = record_run(batch_generate, model, tokenizer, prompts,
                   max_new_tokens=max_tokens_each, batch_size=16).trace
print(f"{crowd.forward_calls} passes in {len(crowd.steps)} steps")
print(f"{crowd.tokens_computed} tokens computed, {crowd.tokens_useful} needed")

# %% [markdown]
"""
Every prompt takes a pass of its own, and more than half of the computed tokens aren't needed.

## The idea

> **packed batch**: the new tokens of several sequences in one row, together with the indices that say which sequence
> each token belongs to, what its position in that sequence is, and where each sequence's part of the row ends. The
> parts differ in length, so it's also called *ragged*.

Here is a whole run of C, E and A, at most two at a time. Step through it, and watch the row when C has left and A's
prompt comes in.
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
At the top is the packed row: each token with its request and its position in it. The new token that a request gets is
above its last one. Below is the mask: a row per token, and a column per key, first the cached keys of all requests, then
the new ones.

Why don't the requests disturb each other? Almost everything in the model works on each token separately. Only attention
mixes tokens, and it obeys one rule (lesson 04): **a token attends to keys of its own sequence, at its own position or
earlier**, and to nothing else. A sequence is a request's prompt and its answer so far.

## Build 1: the packed row

A `PackedBatch` has six tensors, for T tokens of N sequences. The last column is an example: `pack([[7], [5, 6, 8],
[9]], cached_lens=[2, 0, 4])` packs one new token of a sequence with 2 cached tokens, a prompt of three tokens, and one
new token of a sequence with 4 cached tokens.

| field | shape | meaning | example |
|---|---|---|---|
| `input_ids` | [T] | the new tokens, one sequence after another | 7, 5, 6, 8, 9 |
| `positions` | [T] | each token's position in its own sequence | 2, 0, 1, 2, 4 |
| `seq_ids` | [T] | each token's sequence id, 0 to N − 1 | 0, 1, 1, 1, 2 |
| `cu_seqlens_q` | [N + 1] | the index in the row where each sequence begins, and finally T | 0, 1, 4, 5 |
| `context_lens` | [N] | each sequence's number of tokens after this pass, cached and new | 3, 3, 5 |
| `logits_index` | [N] | the index in the row of each sequence's last token | 0, 3, 4 |

> **cumulative lengths**: the running sum of the lengths of a row's parts, starting with 0. Part *i* is
> `row[cu[i]:cu[i + 1]]`. The usual name is `cu_seqlens`; the `q` stands for queries, that is, new tokens.

**Exercise 05.1.** Write `pack(new_tokens, cached_lens)`. It returns `PackedBatch(input_ids=..., positions=..., ...)`
with all six fields, one-dimensional int64 tensors (int32 is accepted). With no sequences at all, `cu_seqlens_q` is [0],
and the other five are empty, but still integers. Lesson 04's `tag_tokens(lengths, starts)` may help: it returns an
object with `seq_ids` and `positions` `[T]`; those of sequence *i* begin at `starts[i]`. (The `ValueError` in the
docstring is the library's; yours needn't check its arguments.)
"""

# %% exercise="05.1"
from lessons_lib.attention import PackedBatch, tag_tokens

from lessons_lib.attention.packing import pack

# %% [markdown]
"""
## Build 2: the pass

Each request keeps its own cache, so that it can leave at any time. But a pass takes a single cache. So
`concatenate_caches` first joins the caches of the row's requests, and the model appends the new keys and values at the
end. Say the row is C3 E5 E6: one token of C, which has 3 in the cache, and two of E, which has 5. Then the keys are in
this order:

```
C0 C1 C2  E0 E1 E2 E3 E4  C3  E5 E6
└── cached, all seqs ──┘  └─ new, all
```

C's keys aren't adjacent. Does that matter? No: the mask compares sequence ids and positions, wherever a key is stored.
`packed_mask(packed)` builds it. **With a pencil first:** draw it, three rows and eleven columns. How many of its 33
cells are True?
"""

# %%
C_AND_E = pack([tokenizer(" was").input_ids, tokenizer(" Tom was").input_ids],
               cached_lens=[len(prompt_ids[name]) for name in "CE"])
mask = packed_mask(C_AND_E)
print("\n".join("".join("#" if may else "." for may in query) for query in mask.tolist()))
print(f"{int(mask.sum())} of {mask.numel()} cells are True")

# %% [markdown]
"""
C3 attends to C0, C1 and C2 at the left and to itself near the right: 4 keys. E5 has 6, and E6 has 7.

Now the pass is one call of the model, with everything that the row knows:
"""

# %%
show_source(packed_forward)

# %% [markdown]
"""
To the model, the row is a batch with a single sequence: `[None]` adds that axis, and the mask gets two, for batch and
heads. `logits_to_keep` saves work: only the last token of C and the last one of E predict something new. Do both get
what they get alone?
"""

# %%
def prefill_alone(name):
    cache = DynamicCache()
    with torch.inference_mode():
        model(input_ids=torch.tensor([prompt_ids[name]]), past_key_values=cache)
    return cache


joined = concatenate_caches([prefill_alone(name) for name in "CE"])
new_parts = unpack(C_AND_E, C_AND_E.input_ids)
for name, part, logits in zip("CE", new_parts, packed_forward(model, C_AND_E, joined)):
    with torch.inference_mode():
        whole = torch.tensor([[*prompt_ids[name], *part]])
        logits_alone = model(input_ids=whole).logits[0, -1]
    packed_next, alone_next = (tokenizer.decode(each.argmax())
                               for each in (logits, logits_alone))
    same = torch.allclose(logits, logits_alone, atol=1e-3)
    print(f"{name}: next token {packed_next!r}, alone {alone_next!r}; "
          f"all logits within 0.001: {same}")

# %% [markdown]
"""
Afterwards, `scatter_cache` splits the joined cache again: C gets C0 to C3, and E gets E0 to E6.

## Build 3: the step

`batch.running` is the list of the requests in the next row, in order of admission, at most `batch.max_num_seqs`.
`batch.waiting` is the queue.

Three functions are given:

- `forward(batch, packed)` joins the caches of `batch.running`, computes the row, splits the joined cache again, and
  returns the logits, `[requests, vocabulary]`;
- `retire(batch)` removes the finished requests from `batch.running`, and their caches;
- `admit(batch)` moves requests from the queue to `batch.running` while there's room.

In lesson 02, prompts and decodes took separate passes. Here they're the same. Every request has known tokens:
`request.prompt_ids`, and its answer so far, `request.output_ids`, both lists of ints. The first `num_computed_tokens`
of these are in its cache. **The row takes the rest.**

**Exercise 05.2.** Write `ragged_step(batch, forward=forward)`. It computes one row for all requests in `batch.running`,
with a single call of `forward(batch, packed)`. Row *i* of the logits belongs to request *i*. After the step:

- each of these requests has one new token, the one with the highest logit. `request.append_token(token)` appends an int
  and updates the request's state;
- `request.num_computed_tokens` again equals the number of tokens in its cache, even if the request has finished;
- finished requests have left, and waiting ones have taken their places: no request waits while there's room.

At least one request is running. A prompt may be partly in the cache already. The check passes another `forward`, so call
the one that you get.

Example with `max_num_seqs=2`: C decodes with 5 tokens in its cache, E was just admitted with a prompt of 5, and A waits.
The row has 1 + 5 tokens. Both requests get a token, and `num_computed_tokens` is now 6 for C and 5 for E. If that was
C's last token, C is gone after the step and A is in `batch.running`: its prompt goes into the next row.
"""

# %% exercise="05.2"
from lessons_lib.batching.ragged_batching import admit, forward, retire

from lessons_lib.batching.ragged_batching import ragged_step

# %% [markdown]
"""
## The six stories

`ragged_generate` submits all six at the start, A first, and calls your step until they have finished. At most four run
at a time. The limits (`max_tokens`) are A 30, B 60, C 100, D 20, E 80, F 40, and each request reaches its own.

**Predict 05.a** The slots made 108 passes. How many does your row make for the six stories?
"""

# %%
predict("05.a", ...)  # forward passes

# %%
ragged = record_run(ragged_generate, model, tokenizer, **SIX, max_num_seqs=4,
                    step=ragged_step)
trace = ragged.trace
print(f"{trace.tokens_computed} tokens computed, "
      f"{trace.tokens_computed - trace.tokens_useful} of them wasted")
reveal("05.a", trace.forward_calls, unit="forward passes")

# %% [markdown]
"""
C needs 100 tokens, one a pass, so fewer passes aren't possible. And no computed token is wasted. But are they the right
ones? Every request must get what Hugging Face `generate` gives it alone:
"""

# %%
def alone(model, ids, max_tokens, end):
    ids = torch.tensor([ids])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False,
        eos_token_id=end, pad_token_id=0
    )
    return out[0, ids.shape[1] :].tolist()


oracle = [alone(model, prompt_ids[story.name], story.max_new_tokens, tokenizer.eos_token_id)
          for story in STORIES]
print(f"{sum(a == b for a, b in zip(ragged.outputs, oracle))} of 6 answers equal `generate`")
copied = sum(copied_tokens(step.packed) for step in ragged.packed)
answered = sum(map(len, ragged.outputs))
print(f"keys and values of {copied:,} tokens copied, {copied / answered:.0f} for each token "
      "of an answer")

# %% [markdown]
"""
The last line is the price. Each step copies all cached keys and values three times: joining the caches, growing by the
new tokens, splitting. None of the values changes. In lesson 06, your own attention copies none.

## Break it

Only the sequence ids keep the requests apart. Leave them out, and the mask compares positions alone: those of the row's
tokens with those of all keys, `key_tags(packed).positions`. A is first in every row, until it finishes.

**Predict 05.b** How many of the six answers change without the sequence ids?
"""

# %%
predict("05.b", ...)  # answers

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
reveal("05.b", sum(got != right for got, right in zip(broken, oracle)), unit="answers")

# %% [markdown]
"""
All six, A included. Being first in the row doesn't help: every sequence has its own position 0, so A's token at
position 13 attends to all tokens of B, C and D at positions 0 to 13, in the row or in the cache. (Other logits needn't
change an answer, but here they change each of the six.)

## Which loads suit the row?

Your row computes no token in vain. But each step has costs that the slots don't have: the copies, the mask, and the
operators that pack the row, join the caches and split them.

> **operator**: a single PyTorch operation on tensors, such as a matrix product, an addition or a concatenation. A
> forward pass is a chain of a few hundred of them.

So it depends on the load. **Make two** from up to sixteen of the prompts above: say how many tokens each answer may
have, and how many requests run at a time. With the first, the row should be at least three times as fast as the slots.
With the second, the slots should be faster.
"""

# %% tags=["measured"]
def race(load, max_tokens_each, at_a_time, rounds=3):
    """Slots and row serve the load in turn, so a temporary slowdown affects both. Speeds are
    from the medians."""
    served = partial(record_run, model=model, tokenizer=tokenizer,
                     prompts=prompts[: len(max_tokens_each)], max_new_tokens=max_tokens_each)
    methods = (lambda: served(batch_generate, batch_size=at_a_time),
               lambda: served(ragged_generate, max_num_seqs=at_a_time, step=ragged_step))
    passes, taken = [0, 0], ([], [])
    for _ in range(rounds):
        for index, method in enumerate(methods):
            started = perf_counter()
            passes[index] = method().trace.forward_calls
            taken[index].append(perf_counter() - started)
    slots_seconds, row_seconds = map(median, taken)
    print(f"{load}: {passes[0]} passes of the slots, {passes[1]} of the row; "
          f"the row is {slots_seconds / row_seconds:.2f} times as fast as the slots")


race("for the row", [10] * 16, at_a_time=4)  # change the list and the number
race("for the slots", [10] * 16, at_a_time=4)  # and these

# %% [markdown]
"""
Here are the sixteen requests from the beginning, and two loads of ours:
"""

# %% tags=["measured"]
race("from the beginning", max_tokens_each, at_a_time=16)
race("short answers", [2] * 16, at_a_time=16)
race("long answers", [100] * 2, at_a_time=2)

# %% [markdown]
"""
The slots need a pass for every prompt. The row computes all prompts of a step together: sixteen short answers take two
passes. (A load like that: requests whose whole answer is yes or no.) With long answers, both make about one pass per
step. Then the row has nothing to save, and still copies all caches.

## Build 4: a limit for the row

"All prompts of a step together" has a catch. You're reading an answer, and another user pastes a report of 300 tokens.
Your next token comes out of the same pass as those 300, and you wait for all of them.

So give the row a limit, `max_num_batched_tokens`. A prompt that doesn't fit goes in chunks, over several steps, while
the answers go on. `pack` takes any number of new tokens after any number of cached ones, so it needs nothing new.

**Exercise 05.3.** Write `chunked_step(batch, max_num_batched_tokens, forward=forward)`. It does what your `ragged_step`
does, and every request still gets the tokens that it gets alone, but:

- The row never has more than `max_num_batched_tokens` tokens. It has that many, unless fewer are left to compute.
- `forward` joins the caches of all of `batch.running`, so the row has at least one token of each of these requests, in
  the same order. The limit is never below their number.
- A prompt that is computed in part has no next token yet. Its logits predict a token that you know already.

Which prompt gets how much of the row is up to you.

Example: the limit is 8. A and B decode, and C was just admitted with a prompt of 10 tokens. The row has 1 + 1 + 6
tokens: A and B get a token, and C doesn't. The next row has 1 + 1 + 4, and all three get one.
"""

# %% exercise="05.3"
from lessons_lib.batching.ragged_batching import chunked_step

# %% [markdown]
"""
What did that buy? The scoreboard serves hidden workloads, some prompts long, with at most 32 tokens in a row. It counts
steps (each reads all the weights), the largest row, and two things that a user notices: the longest gap between two
tokens of an answer, and the wait from arrival to the first token. Both are in tokens computed meanwhile, which stand for
time here.
"""

# %%
chunk_scoreboard(chunked_step)

# %% [markdown]
"""
With whole prompts, a reader waits for the long prompts of others. A limit caps the gap at one row. The price is more
steps, and a longer wait: in order of admission, a short prompt waits behind the chunks of a long one. **Can you do
better?** Change which prompt gets the rest of the row, and run the last three code cells again. One policy brings the
mean wait from 181 down to 154. (Lesson 09 calls such a decision a *policy*.)

## The ledger

Now the six stories, with each method so far that has a cache. **Guess first:** the slots make 108 passes here, and the
row 100. Which of the two is faster?
"""

# %% tags=["measured"]
ledger(model, tokenizer, "05", with_cache_only=True)

# %% [markdown]
"""
No method makes fewer forward calls, but none copies more per step. With six prompts there are few passes to save, so
the row doesn't beat the slots here. (Each speed comes from a single run. Lessons 02 and 03 run the same computation, so
any difference between these two is noise.)

## What is still wrong

**Copies.** Lesson 06 leaves keys and values where they are, in the blocks of lesson 03, and attention finds them through
the block table.

**The dense mask.** Most of its cells are False, and attention computes the scores of all of them.

**Nothing tracks memory.** `admit` asks whether the batch has room for one more request, not whether its keys will fit.

## What production does

- **vLLM**: in `vllm/v1/worker/gpu_model_runner.py`, `GPUModelRunner._prepare_inputs` builds the flat `input_ids` and
  `positions`, `query_start_loc` (our `cu_seqlens_q`), `seq_lens` (our `context_lens`) and `logits_indices`. Its
  scheduler gives each request tokens from `num_computed_tokens` on, up to `max_num_batched_tokens` in all: your
  `chunked_step`.
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
    batch, arriving = RaggedBatch(model, max_num_seqs), deque(requests)
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
prompt of one before them. (F's place changes only once, by one, and its answer stays.)
"""
