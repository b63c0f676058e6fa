# %% [markdown]
"""
# 20 · A cache of several floors

![Three shelves, the pool, the host and the disk, with blocks of four conversations](../lessons_lib/assets/openings/20.svg)

**A conversation comes back after a pause: where are its keys and values now, and is it cheaper to fetch them or to
compute them again?**

75 minutes · difficulty: medium · routes: serving · prerequisites: lesson 10 (swap or recompute) and lesson 11 (the
prefix cache)

Agents send long prompts that begin alike, take many turns, and pause for seconds or hours. Meanwhile, others need the
pool. You'll keep evicted blocks on floors below it: you'll look prompts up on all floors, choose which block leaves a
full floor, and fetch a block from the disk or from another engine.
"""

# %% folded=true
import tempfile
import zlib
from collections import Counter
from functools import partial
from pathlib import Path
from statistics import median

import torch

from lessons_lib.checks import check, hint, predict, progress, quiz, reset, reveal, solution
from lessons_lib.engine import EngineConfig, LLMEngine, SamplingParams
from lessons_lib.engine.proposers import own_stories
from lessons_lib.floors.segment_file import ENTRY_BYTES
from lessons_lib.floors.transfer import receive_prompt, send_prompt
from lessons_lib.kv_cache.block_hashes import hash_full_blocks
from lessons_lib.measuring import recorded_swaps
from lessons_lib.measuring.agent_trace import agent_calls, replay_calls
from lessons_lib.models import load_model
from lessons_lib.scheduling import Sequence
from lessons_lib.viz.pool import draw_shelves, shelves_of
from lessons_lib.viz.stepper import Stepper
from lessons_lib.viz.tables import Table

# %%
model, tokenizer = load_model(device="cpu")
BLOCK = 16
TOKEN_BYTES = 2 * 8 * 2 * 64 * 4  # keys and values, layers, KV heads, their size, float32
ROW = BLOCK * TOKEN_BYTES
stories = own_stories()  # texts to talk about, as token ids


def new_engine(num_blocks, slots=0, on_disk=0, folder=None):
    """An engine with so many blocks in the pool, in host memory, and on the disk."""
    config = EngineConfig(num_blocks=num_blocks, host_cache_bytes=slots * ROW,
                          disk_cache_bytes=on_disk * (ROW + ENTRY_BYTES), cache_dir=folder)
    return LLMEngine(model, tokenizer, config)


def ask(engine, prompt, max_tokens=1):
    """(tokens of the prompt that were found, milliseconds, the answer)."""
    started = engine.clock()
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    [output] = engine.generate([prompt], params)
    return output.num_cached_tokens, 1000 * (engine.clock() - started), output.token_ids

# %% [markdown]
"""
## The problem: it comes back

Conversation A begins with two stories, and adds a sentence now and then. The pool has 40 blocks, room for 640 tokens.
A comes back at once, and again after others have sent four stories.
"""

# %% tags=["measured"]
def comes_back(engine):
    """A's requests: (when, prompt tokens, computed, milliseconds to the first token)."""
    prompt, rows = [token for story in stories[:2] for token in story], []
    for when, others in (("first", []), ("at once", []), ("after a pause", stories[3:7])):
        for other in others:
            ask(engine, other)
        found, ms, _ = ask(engine, prompt)
        rows.append([when, len(prompt), len(prompt) - found, f"{ms:.0f}"])
        prompt = prompt + stories[11][:20]
    return rows


COLUMNS = ["A comes", "prompt tokens", "computed", "ms to the first token"]
with new_engine(40) as engine:
    rows = comes_back(engine)
Table(COLUMNS, rows, "A conversation, with a prefix cache in the pool alone")

# %% [markdown]
"""
Lesson 11's prefix cache helps only if A comes back at once. After the pause, everything is computed again: others
needed the blocks, and what the pool evicts is lost.

## The idea

An evicted block can move down instead.

> **floor**: a place for blocks below the pool, larger and slower than the one above: host memory, then a file on the
> disk. Blocks are found there by the same hashes.

- **Down.** A block that the pool evicts is copied to a slot in host memory. If the host is full, one of its blocks
  moves on to the disk.
- **Up.** A prompt's blocks are looked up in the pool, on the host, and on the disk. Those found below are copied to free
  blocks of the pool. A copy stays on the host, so that the next eviction costs nothing.
- **Nothing else changes.** To the scheduler, loaded blocks are cached blocks.

Four conversations take turns, with a pool of 12 blocks, a host of 12 slots, and a disk of 36. Before each step, guess
how many blocks it loads:
"""

# %%
names, states = {}, []
with tempfile.TemporaryDirectory() as folder, new_engine(12, 12, 36, folder) as engine:
    for name, length in zip("ABCADBCA", (90, 70, 130, 110, 130, 100, 150, 130)):
        start = 200 * "ABCD".index(name)
        prompt = [token for story in stories[20:30] for token in story][start : start + length]
        for depth, one in enumerate(hash_full_blocks(Sequence("", prompt, 1), BLOCK)):
            names.setdefault(one, f"{name}{depth}")
        pool, before = engine.scheduler.pool, engine.scheduler.pool.num_loaded
        found, _, _ = ask(engine, prompt)
        loaded = pool.num_loaded - before
        event = (f"{name}, {length} tokens: {found // BLOCK - loaded} blocks found in the pool"
                 f", {loaded} loaded, {length - found} tokens computed")
        states.append(shelves_of(pool, names, event))
Stepper(lambda i: draw_shelves(states, i), count=len(states), start=0, still=len(states) - 1)

# %% [markdown]
"""
## When is a copy cheaper?

A copy moves bytes over a bus; computing takes FLOPs. Lesson 10's prefill and copies, with 8 billion parameters, were
recorded on a GPU:
"""

# %%
recording = recorded_swaps()
first, last = recording.rows[0], recording.rows[-1]
span = last["tokens"] - first["tokens"]
token_bytes = last["bytes"] / last["tokens"]
compute_s = (last["recompute_s"] - first["recompute_s"]) / span
print(recording.provenance)
print(f"one token: {token_bytes:,.0f} bytes of keys and values, "
      f"{1e6 * compute_s:.1f} µs of prefill")
print(f"that is {2 * 8e9 / compute_s / 1e12:.0f} TFLOP/s, at 2 × 8 billion FLOPs for a token")

# %% [markdown]
"""
**20.a** Host memory is behind a PCIe 5 bus that copies 55 GB/s in practice. Copying a token is how many times as fast as
computing it?
"""

# %%
predict("20.a", ...)  # times

# %%
reveal("20.a", compute_s / (token_bytes / 55e9), unit="times", tolerance=0.1, how="Computed")
rows = []
for bus, rate in (("PCIe 5, host memory", 55e9), ("network, 100 Gbit/s", 12.5e9),
                  ("NVMe disk", 7e9), ("SATA disk", 0.5e9)):
    rows.append([bus, rate / 1e9, f"{1e6 * token_bytes / rate:.1f}",
                 f"{compute_s * rate / token_bytes:.1f}"])
Table(["from", "GB/s", "µs for a token", "times as fast as computing"], rows,
      f"8 billion parameters: {1e6 * compute_s:.1f} µs of prefill for a token")

# %% [markdown]
"""
Host memory is clearly worth it, a good disk just about, and a slow one isn't. With fewer KV heads, a token has fewer
bytes at about the same FLOPs, so every copy gets cheaper.

A copy also has a fixed cost, its launches. As in lesson 10, that gives a break-even:
"""

# %%
load_s = (last["swap_in_s"] - first["swap_in_s"]) / span
base_s = first["swap_in_s"] - first["tokens"] * load_s
print(f"recorded: {1000 * base_s:.2f} ms, and {1e6 * load_s:.2f} µs a token, to load")
print(f"from {base_s / (compute_s - load_s):.0f} tokens on, loading is cheaper than computing")

# %% [markdown]
"""
## Build 1: look on all floors

The library's pool with floors adds to lesson 11's:

| method | what it does |
|---|---|
| `match_prefix(hashes)` | returns the blocks of the longest prefix that is in the pool; changes nothing |
| `touch(blocks)` | adds a user to each block; free ones leave the free queue |
| `free(blocks)` | removes a user from each |
| `free_queue` | the free blocks |
| `replace(count)` | allocates blocks to copy to; what they held moves down |
| `below.lend(hashes, depth)` | returns host slots with these blocks, in use until you release them, up to the first block that is on no floor below. Reads those on the disk to slots. May stop sooner: the host keeps room for what the pool evicts |
| `below.load(slots, blocks)` | copies slots to blocks. Returns False if that failed; the blocks then hold anything |
| `below.release(slots)` | ends their use, so other blocks may overwrite them |

> **depth** of a block: how many blocks of its sequence are in front of it.

**Exercise 20.1.** Write `load_prefix(pool, block_hashes, depth=0)`. It returns blocks of the pool for these hashes, in
order: up to the first that is nowhere, that can't be loaded, or for which no block is free.

- Blocks may be anywhere: pool, host, pool, disk, host. Look for the next one in the pool first. (`lend` may go on to
  blocks that the pool has, too. A second copy does no harm.)
- The returned blocks get one more user each. The scheduler registers their hashes, so don't.
- `depth` is that of the first hash; `lend` wants that of the first hash that it gets.
- Don't ask for more blocks than are free. If you get fewer slots, go on until you get none.
- Release every slot. If a copy failed, free its blocks, and return what was found before.

Example: the prompt is a b c d e. The pool has a and c, the host b, the disk d. You touch a, lend and load b, touch c,
lend and load d. e is nowhere, so you return four blocks.
"""

# %% exercise="20.1"
from typing import Any

from lessons_lib.floors.loading import load_prefix

# %% [markdown]
"""
What does A gain?
"""

# %% tags=["measured"]
def with_yours(engine):
    pool = engine.scheduler.pool
    pool.load = partial(load_prefix, pool)  # the scheduler calls it for each new request
    return engine


with with_yours(new_engine(40, slots=80)) as engine:
    rows = comes_back(engine)
Table(COLUMNS, rows, "The same, with 80 slots in host memory below the pool")

# %% [markdown]
"""
## Build 2: what leaves a full floor?

Floors fill up, too. By default, the least recently used block leaves. Is that best for agents? This trace has 16 of
three kinds, each kind with its own long instructions. Between *turns*, an agent pauses for seconds to minutes. Now and
then, it tries a *branch* and drops it, or helpers read a *document* once.
"""

# %%
calls = agent_calls()
kinds = Counter(call.kind for call in calls)
print(", ".join(f"{count} calls: {kind}" for kind, count in kinds.items()))
print(f"{sum(len(call.prompt) for call in calls):,} prompt tokens; if nothing were ever lost, "
      f"{replay_calls(calls, 10_000, 1):,} of them would be computed")

# %% [markdown]
"""
Branches and documents never come back, but they push out what does. Keeping a block is worth the chance that it's
asked for again, times the cost of computing it. What does a floor know about that?

- *When it was last used*: its place in `floor.free_queue`, least recently used first.
- *How often it was asked for* since it came, `floor.hits[slot]`: instructions often, a document never.
- *Its depth*, `floor.depths[slot]`. A deep token costs a little more to compute. But a block is useless without those
  in front of it, so of one conversation, the deepest leaves first.

**Exercise 20.2.** Write `cheapest_to_lose(floor)`, which returns the slot whose block leaves.

- Only the older half of `floor.free_queue` (rounded up) can leave: what was just used may come back any moment.
- Of these, choose the one with the fewest hits; of several, the deepest; of several of these, the least recently used.
- Change nothing: the floor removes the block.

Example: the queue is 4, 1, 0, 2, 3. Slots 4 and 1 have no hits and the depths 3 and 5, and slot 0 has 2 hits. Slot 1
leaves.
"""

# %% exercise="20.2"
from itertools import islice

from lessons_lib.floors.eviction import cheapest_to_lose

# %% [markdown]
"""
We replay three traces with a pool of 80 blocks and a host of 240. *Avoidable* tokens are those that an endless floor
would have kept:
"""

# %%
rows = []
for seed in (20, 21, 22):
    calls = agent_calls(seed=seed)
    alone, least = replay_calls(calls, 80, 1), replay_calls(calls, 10_000, 1)
    lru, yours = (replay_calls(calls, 80, 240, order) for order in (None, cheapest_to_lose))
    rows.append([seed, f"{alone - least:,}", f"{lru - least:,}", f"{yours - least:,}",
                 f"{1 - (yours - least) / (lru - least):.0%}"])
Table(["seed", "pool alone", "least recently used", "yours", "saved by the order"], rows,
      "Avoidable tokens that were computed")

# %% [markdown]
"""
The floor itself saves most, and the order some of the rest. With a host of 100 slots, the order saves little or
nothing (try it): *least recently used* is hard to beat if you only know the past. Sometimes the client knows the
future: APIs let it mark a prefix and say how long to keep it.

## Build 3: a block from elsewhere

Prefill needs a GPU's FLOPs, decode its memory bandwidth, and a long prompt delays all other streams. So large services
compute prompts on one engine, and decode on another.

> **disaggregation**: prefill and decode on different engines. One sends the prompt's keys and values to the other.

With floors, this is almost nothing new: the decode engine reads blocks from a wire as from its disk. Then it adds the
request as usual, and finds its prompt. If something was lost, it finds less, and computes the rest.

**Exercise 20.3.** Write `fetch_block(floor, block_hash, depth, read)`. It brings a block that the host floor doesn't
have. `read(block_hash, row)` writes the block to a row of bytes. If it returns False, the block is lost or damaged, and
the row may hold anything. Return the slot, in use; or None if the block didn't come, or no slot is free.

The floor's `free_queue` has the slots that aren't in use. `take()` allocates one of them; the block that it held moves
down. `row(slot)` returns its bytes, `fill(slot, block_hash, depth)` registers the block, so that it can be found, and
`release(slots)` ends their use.

- A wrong token must be impossible: nothing that didn't come whole can be found.
- Call `read` only if there is a slot, and lose no slot.
"""

# %% exercise="20.3"
from collections.abc import Callable

from torch import Tensor

from lessons_lib.floors.fetching import fetch_block

# %% [markdown]
"""
Here is a wire with a checksum, which may lose or damage blocks. A prefill engine sends a prompt of two stories over it.

**20.b** The prompt has 378 tokens, so 23 full blocks. The wire loses block 9, counting from 0. How many tokens does the
decode engine compute?
"""

# %%
predict("20.b", ...)  # tokens

# %%
class Wire(dict):
    def __init__(self, lost=(), damaged=()):
        self.lost, self.damaged = lost, damaged

    def send(self, block_hash, depth, row):
        if depth not in self.lost:
            self[block_hash] = row.clone(), zlib.crc32(row.numpy())
            self[block_hash][0][7] ^= depth in self.damaged

    def receive(self, block_hash, row):
        if block_hash not in self:
            return False
        data, checksum = self[block_hash]
        row.copy_(data)
        return zlib.crc32(row.numpy()) == checksum


def with_all_yours(engine):
    floor = with_yours(engine).scheduler.pool.below
    floor.fetch = partial(fetch_block, floor)
    for each in filter(None, (floor, floor.below)):
        each.choose = cheapest_to_lose
    return engine


prompt = [token for story in stories[40:42] for token in story]
with new_engine(64, slots=128) as prefill:
    _, _, expected = ask(prefill, prompt, 12)
    for name, wire in (("good wire", Wire()), ("block 4 damaged", Wire(damaged=[4])),
                       ("block 9 lost", Wire(lost=[9]))):
        send_prompt(prefill, prompt, wire)
        with with_all_yours(new_engine(64, slots=128)) as decode:
            came = receive_prompt(decode, prompt, wire)
            found, _, answer = ask(decode, prompt, 12)
        print(f"{name}: {came} blocks came, {len(prompt) - found} of {len(prompt)} tokens "
              f"computed, the same answer: {answer == expected}")
reveal("20.b", len(prompt) - found, unit="tokens", how="Counted")

# %% [markdown]
"""
## Prove it

All your code, with tiny floors, so that everything moves: 24 blocks, 12 slots, 48 on the disk. Five conversations take
four turns each, and we compare every answer with Hugging Face `generate`.
"""

# %%
def generated(prompt, count):
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        output = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False,
                                max_new_tokens=count, min_new_tokens=count)
    return output[0, len(prompt):].tolist()


folder = tempfile.mkdtemp()
talks = {name: stories[50 + i][:60] for i, name in enumerate("ABCDE")}
equal = computed = 0
with with_all_yours(new_engine(24, 12, 48, folder)) as engine:
    for turn in range(4):
        for name, prompt in talks.items():
            found, _, answer = ask(engine, prompt, 8)
            equal += answer == generated(prompt, 8)
            computed += len(prompt) - found
            talks[name] = prompt + answer + stories[60 + turn][:24]
    print(f"{equal} of 20 answers equal; {computed} prompt tokens computed, "
          f"{engine.scheduler.pool.num_loaded} blocks loaded")

# %% [markdown]
"""
That engine is closed. A new one finds its file. Then we flip one bit in each block of the file:
"""

# %%
def after_restart():
    with with_all_yours(new_engine(24, 12, 48, folder)) as engine:
        results = [ask(engine, prompt, 8) for prompt in talks.values()]
        failed = engine.scheduler.pool.below.below.num_failed
    right = sum(got[2] == generated(prompt, 8) for prompt, got in zip(talks.values(), results))
    found = sum(found for found, _, _ in results)
    return f"{found} tokens found, {failed} damaged, {right} of 5 equal"


print("restart:", after_restart())
[path] = Path(folder).glob("*.kv")
data = bytearray(path.read_bytes())
for place in range(len(data) - ROW // 2, 0, -(ROW + ENTRY_BYTES)):
    data[place] ^= 1
path.write_bytes(data)
print("restart, flipped:", after_restart())

# %% [markdown]
"""
A block whose checksum doesn't fit is computed again. The file begins with a description of the model, its weights
included, and of the blocks' size and dtype, so an engine with another model never reads it.

## Measure

Five agents on this machine, one call after the other: the pool alone, with a host, and with a disk below a small host.
*Returning* turns are all but each agent's first.
"""

# %% tags=["measured"]
trace = agent_calls(num_agents=5, num_turns=4)
prompt_tokens = sum(len(call.prompt) for call in trace)
returning = [i for i, call in enumerate(trace) if call.kind == "turn"
             and any(earlier.agent == call.agent for earlier in trace[:i])]
rows = []
for name, slots, disk in ("pool alone", 0, 0), ("host", 300, 0), ("small host, disk", 40, 300):
    with (tempfile.TemporaryDirectory() as folder,
          new_engine(44, slots, disk, folder) as engine):
        if slots:
            with_all_yours(engine)
        found, ms, _ = zip(*(ask(engine, list(call.prompt)) for call in trace))
    rows.append([name, f"{sum(found) / prompt_tokens:.0%}",
                 f"{median(ms[i] for i in returning):.0f}"])
Table(["floors", "found", "returning turns: ms to the first token, median"], rows,
      f"{len(trace)} calls, {prompt_tokens:,} prompt tokens")

# %% [markdown]
"""
## What is still wrong

**Loading waits.** On a CPU, the copy comes before the step. On a GPU, a second stream copies while other sequences
compute (`lessons_lib/floors/gpu_mover.py`). But the sequence waits for all layers; it could begin with the first.

**It never says no.** It loads two blocks even if computing them is cheaper, and keeps blocks that never come back.

**The router doesn't know.** With several replicas (lesson 15), a conversation should go where its blocks are.

## Quiz
"""

# %%
quiz("20")

# %% [markdown]
"""
## References

- Y. Zhong et al.: *DistServe: Disaggregating Prefill and Decoding for Goodput-optimized Large Language Model Serving*,
  OSDI 2024. <https://arxiv.org/abs/2401.09670>
- R. Qin et al.: *Mooncake: Trading More Storage for Less Computation – A KVCache-centric Architecture for Serving LLM
  Chatbot*, FAST 2025. <https://www.usenix.org/conference/fast25/presentation/qin>
- vLLM: [KV offloading](https://docs.vllm.ai/en/latest/features/kv_offloading_usage/) and
  [disaggregated prefilling](https://docs.vllm.ai/en/latest/features/disagg_prefill.html)
- SGLang: [HiCache](https://docs.sglang.io/advanced_features/hicache_design.html)
- [LMCache](https://github.com/LMCache/LMCache) and [NIXL](https://github.com/ai-dynamo/nixl)
"""

# %% [markdown] folded=true
"""
## Further (optional)

None of this is part of its 75 minutes.
"""

# %% [markdown]
"""
### What production does

- **vLLM**'s *KV connectors* (`vllm/distributed/kv_transfer/kv_connector/v1/base.py`) have a part in the scheduler
  (`get_num_new_matched_tokens`) and one in each worker (`start_load_kv`, and `wait_for_layer_load`, so that a pass can
  begin with the first layer). `OffloadingConnector` is our floors: host memory, in the order LRU or ARC, and tiers
  below it (`vllm/v1/kv_offload`). It copies blocks down when they are full, not when they are evicted. `NixlConnector`
  sends prompts from a prefill engine to a decode engine.
- **LMCache**, another connector, keeps chunks of 256 tokens in CPU memory, on disks, and on remote stores
  (`lmcache/v1/storage_backend`), for several engines.
- **SGLang**'s HiCache (`python/sglang/srt/mem_cache/hiradix_cache.py`) gives each node of the radix tree a place on the
  GPU, on the host, and in a storage backend. It does say no: `load_back` loads nothing below a number of tokens, and
  with `write_through_selective`, a node goes down only after some hits.
- **NIXL**, from NVIDIA's Dynamo, moves bytes between GPUs, hosts, files and object stores; each transport is a plug-in.
- **DistServe** gives prefill and decode GPUs and parallelism of their own. **Mooncake** builds a whole service, Kimi's,
  around a pool of keys and values in the memory and SSDs of all machines.

### Stretch: a better order

Beat `cheapest_to_lose`. Your order gets a floor, whose `hits`, `depths` and `free_queue` it may look at, and returns a
slot of the queue. The score is avoidable tokens over two traces that you haven't seen.
"""

# %%
def my_order(floor):
    return next(iter(floor.free_queue))  # change this


def avoidable(order):
    return sum(replay_calls(calls, 80, 240, order) - replay_calls(calls, 10_000, 1)
               for calls in (agent_calls(seed=31), agent_calls(seed=32)))


for name, order in (("least recently used", None), ("exercise 20.2", cheapest_to_lose),
                    ("yours", my_order)):
    print(f"{name}: {avoidable(order):,} avoidable tokens")
