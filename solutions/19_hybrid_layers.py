# %% [markdown]
"""
# 19 · Layers that remember differently

![Pools of blocks for all tokens, of blocks of a window, and of states](../lessons_lib/assets/openings/19.svg)

**What does a layer have to remember of a sequence? And what becomes of blocks, prefixes and batches if layers
remember differently?**

75 minutes · difficulty: medium · routes: serving · prerequisites: lesson 05 (the packed row) and lesson 11 (prefix
sharing)

Until now, each layer kept a key and a value of every token. Many new models don't: some of their layers look back
over a window only, or keep one state of fixed size. You write the step of such a state, the rule that frees the
blocks of a window, and a prefix match for all kinds of layers together.
"""

# %% folded=true
import random

import torch
from transformers.utils import logging

from lessons_lib.checks import check, hint, predict, progress, quiz, reset, reveal, solution
from lessons_lib.engine import EngineConfig, LLMEngine, SamplingParams
from lessons_lib.hybrid.cache_groups import CacheGroup
from lessons_lib.kv_cache import BlockPool, blocks_for
from lessons_lib.measuring.conversations import conversations, every, replay, where_it_goes_on
from lessons_lib.measuring.published import recorded
from lessons_lib.models import load_model, tiny_model
from lessons_lib.viz.charts import line_chart
from lessons_lib.viz.pool import draw_kinds
from lessons_lib.viz.stepper import Stepper
from lessons_lib.viz.tables import Table

logging.set_verbosity_error()  # transformers says that it has no faster kernels here

# %% [markdown]
"""
## The problem: memory grows with every token

To compute a token, a layer of attention reads the keys and values of all tokens before it. So its memory grows with
the sequence, and a step reads all of it. Three kinds of layers are in use:

- **Full attention** keeps the keys and values of every token.
- Attention over a **window** of W tokens (the sliding window of lesson 04): a token sees itself and the W - 1 before
  it. No later token reads anything further back.
- A **state**: a matrix into which each token writes. It has the same size after ten tokens as after ten thousand.

> **hybrid model**: a model whose layers don't all remember in the same way. Mostly, a few layers have full attention.

Here are three real shapes. A key or value has 2 bytes per element, the matrix of a state 4.
"""

# %%
KIB, MIB, GIB = 2**10, 2**20, 2**30
# A state: 32 matrices of 128 x 128, and the last 4 inputs of the layer's convolution
STATE = 32 * 128 * 128 * 4 + 4 * (2 * 16 + 32) * 128 * 2
SHAPES = {  # layers of each kind; heads of keys and values, their elements; window
    "Llama 3.1 8B": dict(full=32, heads=8, dim=128),
    "Gemma 3 12B": dict(full=8, windows=40, heads=8, dim=256, window=1024),
    "Qwen3-Next 80B": dict(full=12, states=36, heads=2, dim=256),
}


def sequence_bytes(num_tokens, heads, dim, full, windows=0, window=0, states=0):
    """The bytes of a sequence in all layers."""
    token = 2 * heads * dim * 2  # in one layer
    kept = full * num_tokens + windows * min(num_tokens, window)
    return kept * token + states * STATE


for name, shape in SHAPES.items():
    token = 2 * shape["heads"] * shape["dim"] * 2
    print(f"{name}: a token takes {token / KIB:.0f} KiB in a layer of attention")
print(f"A state takes {STATE / MIB:.2f} MiB in a layer")

# %% [markdown]
"""
**19.a** A chat with Gemma 3 12B has 32,768 tokens. Of its 48 layers, 40 have a window of 1,024. How many times as
much memory would the chat take if all 48 had full attention? Use a pencil: 32,768 is 32 windows.

**19.b** In a layer of Qwen3-Next with full attention, a token takes 2 KiB. The matrices of a state take 32 × 128 ×
128 × 4 bytes. From how many tokens on is the state smaller?
"""

# %%
predict("19.a", ...)  # times
predict("19.b", ...)  # tokens

# %%
gemma = SHAPES["Gemma 3 12B"]
all_full = sequence_bytes(32_768, heads=8, dim=256, full=48)
reveal("19.a", all_full / sequence_bytes(32_768, **gemma), unit="times", tolerance=0.05,
       how="Computed")
reveal("19.b", 32 * 128 * 128 * 4 // (2 * KIB), unit="tokens", tolerance=0.05, how="Computed")
lengths = [2**power for power in range(8, 18)]
curves = {name: [sequence_bytes(n, **shape) / MIB for n in lengths]
          for name, shape in SHAPES.items()}
told = "; ".join(f"{name}: {c[0]:,.0f} to {c[-1]:,.0f}" for name, c in curves.items())
line_chart(lengths, curves, xlabel="tokens of a sequence", ylabel="MiB", log="xy",
           alt=f"Memory of a sequence against its tokens. MiB at 256 and 131,072: {told}.")

# %% [markdown]
"""
Llama's line is straight: every token costs the same. Gemma's bends at 1,024 tokens, where the windows are full. A
short chat takes more in Qwen3-Next than in Llama, because of the states. A long one takes a fifth.

Less memory means more sequences in a batch, and less to read in each step. But an engine that treats all layers alike
either wastes what they could save, or is wrong. We build the three things that it needs.

## Build 1: a layer with a state

A state S is a matrix, K × V. Think of it as a table that returns a value for a key: reading is one product, `q @ S`.
To write a pair, add the outer product of key and value: if k is a unit vector, `k @ outer(k, v)` is v again.

But a sum never forgets. If k is written with v and then with w, reading gives v + w. So a *delta net* first reads
what the state returns for k, and writes only the difference. And it lets old pairs fade. For each token, the layer
computes a decay and a beta from 0 to 1:

```
S = decay · S                   what was written fades
error = v - k @ S               what is missing
S = S + beta · outer(k, error)  correct a share of it
output = q @ S                  read, with the token's own pair in it
```

> **gated delta net**: a layer with a state that fades by each token's decay, and is then corrected by the error for the
> token's key. Qwen3-Next and Qwen3.5 have three of them for each layer with full attention.

No token reads earlier tokens, so there is nothing to page. But a batch needs care. In a packed row, a sequence has
one token or a chunk of its prompt. Its state waits in a **slot** from one step to the next. The slots are rows of one
tensor, and each running sequence has one.

**Exercise 19.1.** Write `gated_delta(queries, keys, values, decays, betas, states, segments)` for one head. It
computes a packed row of T tokens and returns the outputs, a new tensor [T, V].

- `queries` and `keys` are [T, K], `values` [T, V], `decays` and `betas` [T].
- `segments` is a list of `(length, slot, is_fresh)`, in the order of the row. The lengths add up to T.
- `states` is [slots, K, V]. A sequence continues from the state in its slot, and leaves there the one after its last
  token. Change `states` itself. Slots that no segment has stay as they are: they belong to others, or to padding.
- A *fresh* sequence has no computed tokens yet. It begins with zeros, whatever an earlier sequence left in the slot.

Example: K = V = 1, a fresh segment of 2 tokens. All keys and queries are 1, values 4 and 8, decays 0.5, betas 0.5.
The first token finds 0, corrects half of the error 4, and reads 2. The second finds 0.5 · 2 = 1, corrects half of the
error 7, and reads 4.5, which stays in the slot.
"""

# %% exercise="19.1"
from lessons_lib.hybrid.gated_delta import gated_delta

# %% [markdown]
"""
The oracle is Hugging Face's own function, which takes whole sequences of equal length. Yours gets the same three
sequences in packed rows of random chunks. Each head is a sequence of its own here: heads don't see each other.
"""

# %%
from transformers.models.qwen3_5.modeling_qwen3_5 import torch_chunk_gated_delta_rule

torch.manual_seed(19)
NUM, LENGTH, K, V = 6, 40, 8, 8  # 3 sequences x 2 heads
q, v = torch.randn(NUM, LENGTH, K), torch.randn(NUM, LENGTH, V)
k = torch.nn.functional.normalize(torch.randn(NUM, LENGTH, K), dim=-1)
decays, betas = torch.rand(NUM, LENGTH), torch.rand(NUM, LENGTH)
expected, _ = torch_chunk_gated_delta_rule(*(each[:, :, None] for each in (q, k, v)),
                                           decays.log()[..., None], betas[..., None])
expected = expected[:, :, 0] * K**0.5  # it divides queries by the root of K

rng = random.Random(19)
states = torch.randn(NUM + 1, K, V)  # what others left; slot 0 is for padding
padding, done, num_rows = states[0].clone(), [0] * NUM, 0
outputs = torch.zeros_like(expected)
while min(done) < LENGTH:
    counts = {i: min(LENGTH - done[i], rng.choice((1, 1, 5, 9))) for i in range(NUM)
              if done[i] < LENGTH and rng.random() < 0.7}
    if counts:
        row = [torch.cat([each[i, done[i] : done[i] + n] for i, n in counts.items()])
               for each in (q, k, v, decays, betas)]
        segments = [(n, i + 1, done[i] == 0) for i, n in counts.items()]
        parts = gated_delta(*row, states, segments).split(list(counts.values()))
        for (i, n), part in zip(counts.items(), parts):
            outputs[i, done[i] : done[i] + n] = part
            done[i] += n
        num_rows += 1
print(f"{num_rows} rows; largest difference below 1e-5: "
      f"{(outputs - expected).abs().max().item() < 1e-5}; "
      f"padding untouched: {torch.equal(states[0], padding)}")

# %% [markdown]
"""
However a prompt is cut, and whatever is next to it in the row, the outputs stay the same. On a GPU, our engine
computes your loop in a Triton kernel (`lessons_lib/kernels/gated_delta.py`): one program for each segment and head,
which reads the state from its slot once and writes it once.

## Build 2: blocks behind a window

A layer with a window could share the block tables of the others, and mask what is out of sight. Then nothing is
saved. So these layers get a smaller pool of their own, and a sequence gives blocks up *while it runs*.

Take a window of 6 and blocks of 4. The token at position 12 sees positions 7 to 12. Block 0 (0 to 3) is behind the
window, and no later token sees it again: free it. Block 1 (4 to 7) is still needed, for position 7. If a step
computes a chunk, its first token sees the furthest back, and its last one needs the newest block.

**Exercise 19.2.** Write `slide(held, num_computed_tokens, count, window, block_size)`. A sequence has
`num_computed_tokens` and computes `count` more in this step, from position `num_computed_tokens` on. Return three
ranges of block indices, `needed, behind, new`:

- `needed`: all blocks that this step reads or writes. A token at position p sees p - window + 1 to p, from 0 on.
- `behind`: held blocks that neither this step nor a later one reads. `held` is what the step before needed.
- `new`: needed blocks that aren't held.

In a sequence's first step, `held` is `range(0)`, even if it continues a cached prefix of many tokens. Positions never
go back. `blocks_for(n, block_size)` returns how many blocks n tokens take.

Example: window 6, blocks of 4, `held` = range(0, 3), and the step computes position 12. Needed is range(1, 4), behind
range(0, 1), and new range(3, 4).
"""

# %% exercise="19.2"
from lessons_lib.kv_cache.block_pool import blocks_for

from lessons_lib.hybrid.window_blocks import slide

# %% [markdown]
"""
Now three sequences run, with your rule. A and C have prompts of several chunks. Each of the three pools is for one
kind of layer. Play it: what grows, what moves on, and what stays?
"""

# %%
def remember(slide, window=12, size=4, chunk=8):
    """What A (20 + 24 tokens), B (5 + 28) and C (30 + 14) hold after each step:
    (lengths, pools)."""
    full, own, slots = BlockPool(32, size), BlockPool(12, size), BlockPool(4, 1)
    jobs = {"A": (20, 44), "B": (5, 33), "C": (30, 44)}  # prompt, all tokens
    lengths, held = dict.fromkeys(jobs, 0), dict.fromkeys(jobs, range(0))
    tables = {name: ([], {}, slots.allocate(1)) for name in jobs}
    moments = []
    while lengths:
        for name, n in [*lengths.items()]:
            prompt, end = jobs[name]
            blocks, in_window, slot = tables[name]
            if n == end:
                full.free(blocks), own.free([*in_window.values()]), slots.free(slot)
                del lengths[name], tables[name]
                continue
            count = min(chunk, prompt - n) if n < prompt else 1
            blocks += full.allocate(blocks_for(n + count, size) - len(blocks))
            held[name], behind, new = slide(held[name], n, count, window, size)
            own.free([in_window.pop(index) for index in behind])
            in_window.update(zip(new, own.allocate(len(new))))
            lengths[name] = n + count
        owners = [[None] * 32, [None] * 12, [None] * 4]
        for name, (blocks, in_window, slot) in tables.items():
            for pool, used in zip(owners, (blocks, in_window.values(), slot)):
                for block in used:
                    pool[block] = name
        headings = ("full attention", f"window of {window}", "states")
        moments.append((dict(lengths), dict(zip(headings, owners))))
    return moments


moments = remember(slide)
Stepper(lambda i: draw_kinds(*moments[i], before=moments[i - 1][1] if i else None, index=i),
        count=len(moments), start=0, still=15)

# %% [markdown]
"""
The left pool fills until a sequence ends. In the middle, blocks are freed and allocated all the time, and no decode
holds more than four. On the right, each sequence keeps its one slot from its first token to its last.

## Build 3: one prefix for all

In lesson 11, a new sequence took the blocks of a cached prefix and computed the rest. What does it need if layers
remember differently? To continue after n blocks,

- full attention needs all n of them;
- a window needs the last few, which hold the W - 1 tokens before the next one. Earlier ones may be gone;
- a state needs a copy of the state exactly there. From the state after 40 tokens, the one after 32 can't be computed.

> **checkpoint**: a copy of a sequence's states after a certain token, from which other sequences with the same
> beginning can start.

> **cache group**: layers that remember in the same way. vLLM says *KV cache group*.

So each group says, for each block of the prefix, whether it's kept, and how many blocks at the end are needed: all of
them, those of the window, or 1. For a state, "kept" means that there is a checkpoint at the block's end. X is kept:

```
block              0 1 2 3 4 5
full attention     X X X X X X    needs all
window             . X X . X X    needs 2
state              . . X . . .    needs 1
```

Full attention alone would give 6 blocks, and so would the window. The state gives 3. Are 3 blocks usable? The window
needs blocks 1 and 2, and has them: yes. Had it lost block 1, no prefix would be usable, though each group alone finds
one.

**Exercise 19.3.** Write `longest_usable(groups)`. It returns how many blocks the longest usable prefix has, 0 if
there is none. A prefix of n blocks is usable if every group has its last `num_needed` blocks, or all n if it needs
more.

- `groups` is a list of at least one `CacheGroup(is_kept, num_needed)`; all `is_kept` are lists of the same length.
- `num_needed` may be 0 (a window of one token), and larger than the length.

Example: the table above gives 3. Without the state it gives 6.
"""

# %% exercise="19.3"
from lessons_lib.hybrid.cache_groups import CacheGroup

from lessons_lib.hybrid.cache_groups import longest_usable

# %%
def groups_of(*rows):
    return [CacheGroup([letter == "X" for letter in kept], needed) for kept, needed in rows]


FULL = ("XXXXXX", 6)
for window in (".XX.XX", "..X.XX"):
    alone = [longest_usable(groups_of(row)) for row in (FULL, (window, 2), ("..X...", 1))]
    together = longest_usable(groups_of(FULL, (window, 2), ("..X...", 1)))
    print(f"window {window}: alone {alone}, together {together}")

# %% [markdown]
"""
Our engine calls this function, too: `usable` in `lessons_lib/hybrid/window_blocks.py` and `sequence_states.py`.

## Prove it

The engine serves two small random models: one with windows of 12 tokens in three of four layers, and a Qwen3.5 with
three gated delta nets and one layer with full attention. Prompts share beginnings, come in chunks, and the pool is so
small that sequences are preempted. The oracle is Hugging Face's `generate`, one prompt at a time.
"""

# %%
_, tokenizer = load_model(device="cpu")
rng = random.Random(19)
shared = [rng.randrange(97) for _ in range(24)]
prompts = [shared[:same] + [rng.randrange(97) for _ in range(rest)]
           for same, rest in ((24, 5), (0, 13), (24, 12), (0, 3))]
greedy = SamplingParams(max_tokens=10, ignore_eos=True)


def generate(model, prompt, count):
    ids = torch.tensor([prompt])
    answer = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count,
                            do_sample=False, pad_token_id=0)
    return answer[0, len(prompt) :].tolist()


def engine_of(family, **sizes):
    return LLMEngine(tiny_model(family), tokenizer, EngineConfig(block_size=4, **sizes))


for family, num_blocks in (("windowed", 20), ("hybrid", 22)):
    expected = [generate(tiny_model(family), prompt, 10) for prompt in prompts]
    with engine_of(family, num_blocks=num_blocks, max_num_seqs=3,
                   max_num_batched_tokens=10) as engine:
        runner, cached = type(engine.runner).__name__, []
        for _ in range(2):  # the second time, prefixes are cached
            outputs = engine.generate(prompts, greedy)
            assert [each.token_ids for each in outputs] == expected
            cached.append(sum(each.num_cached_tokens for each in outputs))
        print(f"{family} ({runner}): all tokens equal; preempted: "
              f"{engine.scheduler.num_preempted}; prompt tokens found: {cached[0]}, "
              f"then {cached[1]}")

# %% [markdown]
"""
The hybrid finds nothing at first: the third prompt branches off after 24 tokens, where the first left no checkpoint.

Are the blocks of a window bounded? One sequence has a prompt of 40 tokens and a long answer. Its blocks in both pools
after each step:
"""

# %%
with engine_of("windowed", num_blocks=60, max_num_seqs=1, max_num_batched_tokens=8) as engine:
    engine.add_request([7] * 40, SamplingParams(max_tokens=80, ignore_eos=True))
    in_use = []
    while engine.has_unfinished():
        engine.step()
        in_use.append((len(engine.scheduler.pool.used), len(engine.runner.blocks.pool.used)))
in_use = in_use[:-1]  # after the last step, it has none
steps = [(start, 8) for start in range(0, 40, 8)] + [(start, 1) for start in range(40, 119)]
yours = [len(slide(range(0), *step, 12, 4)[0]) for step in steps][: len(in_use)]
pairs = {"full attention": [all_of for all_of, _ in in_use],
         "window of 12": [own for _, own in in_use]}
print("your slide needs as many blocks:", yours == pairs["window of 12"])
line_chart(range(1, len(in_use) + 1), pairs, xlabel="step", ylabel="blocks of 4 tokens",
           alt=f"Blocks in use, step by step: up to {max(pairs['full attention'])} for full "
               f"attention, and {max(pairs['window of 12'])} for the layers with a window.")

# %% [markdown]
"""
## Measure: which states to keep

States make prefix sharing expensive. A checkpoint takes as much as the keys and values of thousands of tokens:
"""

# %%
next_80b = SHAPES["Qwen3-Next 80B"]
per_token = sequence_bytes(1, **next_80b) - sequence_bytes(0, **next_80b)
checkpoint = sequence_bytes(0, **next_80b)
print(f"a token: {per_token / KIB:.0f} KiB; a checkpoint: {checkpoint / MIB:.1f} MiB, "
      f"as much as {checkpoint // per_token:,} tokens")

# %% [markdown]
"""
One at each block's end is out of the question. So where will another sequence continue? We replay 360 turns of 60
conversations, 20 at a time. Each begins with one of two system prompts, and each turn sends all that
was said before. There is room for 128 checkpoints; the least recently used one goes first. Your `longest_usable`
decides what is found.

- *where it goes on*: our engine's rule. At the ends of prompts and answers, where a prompt turned out to branch off
  from a cached one, and every 2,048 tokens;
- *every 528 tokens*: the block size that vLLM takes for Qwen3.5, since there, states are kept at the ends of blocks;
- *every 16 tokens*: at each block of ours.

Which is best, and by how much?
"""

# %%
turns = conversations()
RULES = {"where it goes on": where_it_goes_on, "every 528 tokens": every(528),
         "every 16 tokens": every(16)}


def hits(rule, most=128):
    return replay(turns, rule, most, match=longest_usable)


without_states = hits(None)
rows = [["full attention only", f"{without_states.found:,}", "100%",
         f"{without_states.computed:,}", 0, ""]]
for name, rule in RULES.items():
    found = hits(rule)
    rows.append([name, f"{found.found:,}", f"{found.found / without_states.found:.0%}",
                 f"{found.computed:,}", found.copies,
                 f"{found.copies * checkpoint / GIB:.1f} GiB"])
    unlimited = hits(rule, most=10**6)
    print(f"{name}, without a limit: {unlimited.found / without_states.found:.1%}, "
          f"{unlimited.copies:,} checkpoints, {unlimited.copies * checkpoint / GIB:,.0f} GiB")
Table(["rule", "tokens found", "of full attention", "computed", "checkpoints", "memory"], rows,
      f"{len(turns)} turns, {sum(turn.num_prompt for turn in turns):,} prompt tokens, "
      "at most 128 checkpoints")

# %% [markdown]
"""
A few checkpoints in the right places find nearly all. At every 528 tokens, each turn recomputes the tokens after the
last boundary, more than twice as many in all. And with one at each block, the last few turns take all 128: what the
other conversations need is gone when they continue.

### What it brings

The engine with a hybrid on a GPU, against `generate` with static batches; recorded, since a CPU wouldn't show it:
"""

# %%
recording = recorded("h200_hybrid")
print(recording.provenance)
state_mib = recording.rows[0]["state_mib"]
Table(["requests at once", "engine, tokens/s", "generate, tokens/s", "speedup", "decode step"],
      [[row["readers"], f"{row['engine']:,.0f}", f"{row['generate']:,.0f}",
        f"{row['ratio']:.1f}", f"{row['decode_ms']:.1f} ms"] for row in recording.rows],
      f"Shape of Qwen3.5-0.8B, random weights; {state_mib:.1f} MiB of states for a sequence")

# %% [markdown]
"""
## What is still wrong

**Two kinds at a time.** Our engine serves full attention with windows, or with states. A model with all three gets no
smaller pool for its windows.

**No guesses.** A wrong guess (lesson 18) has already changed the state, and that can't be undone. For hybrids, our
engine refuses to speculate.

**Latents are expanded.** DeepSeek's layers could keep one short vector for each token, from which keys and values are
computed. Ours keep the keys and values.

**Checkpoints are whole.** A copy has the states of all layers, even if two differ by a few tokens only.

## Quiz
"""

# %%
quiz("19")

# %% [markdown]
"""
## References

- S. Yang, J. Kautz, A. Hatamizadeh: *Gated Delta Networks: Improving Mamba2 with Delta Rule*, 2024.
  <https://arxiv.org/abs/2412.06464>
- I. Beltagy, M. Peters, A. Cohan: *Longformer: The Long-Document Transformer*, 2020.
  <https://arxiv.org/abs/2004.05150>
- A. Jiang et al.: *Mistral 7B*, 2023. <https://arxiv.org/abs/2310.06825>
- Gemma Team: *Gemma 3 Technical Report*, 2025. <https://arxiv.org/abs/2503.19786>
"""

# %% [markdown] folded=true
"""
## Further (optional)

None of this is part of its 75 minutes.
"""

# %% [markdown]
"""
### What production does

- **vLLM** has a manager for each kind of layer in `vllm/v1/core/single_type_kv_cache_manager.py`.
  `remove_skipped_blocks` of `SlidingWindowManager` is your second exercise, with a *null block* in place of what was
  freed. `HybridKVCacheCoordinator` in `kv_cache_coordinator.py` is your third: each kind accepts a length or reduces
  it, until none does.
- There, a block must have room for a state, too, so blocks grow: to 528 tokens for Qwen3.5-4B. In its mode `align`,
  states are kept only at such boundaries, and users report hits of 0% (vllm-project/vllm, issues #40696 and #51250).
- **SGLang** keeps states at the nodes of its radix tree: `MambaRadixCache` in
  `python/sglang/srt/mem_cache/mamba_radix_cache.py`.
- **Hugging Face transformers** has the layer itself, `Qwen3_5GatedDeltaNet` in `models/qwen3_5/modeling_qwen3_5.py`,
  and its states in `LinearAttentionLayer` of `cache_utils.py`. Chunks of 64 tokens are computed with matrix products
  there, which is faster for prompts than a token at a time.

### Stretch: a better rule

Half as many checkpoints: 64. Where would you keep them? `turn` has `num_prompt`, `num_tokens` (with the answer),
`name` and `system`; `branch` is how many tokens full attention found. Return token counts, multiples of 16. The score
is the share of what full attention finds.
"""

# %%
def my_rule(turn, branch):
    return where_it_goes_on(turn, branch)  # change this


for name, rule in {**RULES, "yours": my_rule}.items():
    print(f"{name}: {hits(rule, most=64).found / without_states.found:.3f}")
