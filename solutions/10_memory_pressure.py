# %% [markdown]
"""
# 10 · Memory pressure

**What happens when a block is needed and none is free?**

75 minutes · difficulty: hard · routes: serving · you need first: lesson 03 (blocks), lesson 06 (paged attention) and lesson 09 (the scheduler)

In lesson 09 there were two ways to admit a sequence. The conservative one promises blocks that are mostly never used. The optimistic one may get
stuck. In this lesson the scheduler learns to take blocks back, so that it can be optimistic and never gets stuck. And it learns to need fewer blocks:
sequences with the same beginning share them.
"""

# %%
import inspect
import random
from types import SimpleNamespace

from lessons_lib.batching import ragged_generate
from lessons_lib.checks import check, hint, predict, progress, quiz, reveal, solution
from lessons_lib.engine import ModelRunner
from lessons_lib.kv_cache import SWAP_IN, SWAP_OUT, BlockCopy, BlockPool, PagedKVCache, PrefixCache, copy_blocks, blocks_for
from lessons_lib.measuring import STORIES, ledger, median_ms, recorded_engine
from lessons_lib.models import VOCAB_SIZE, load_model, tiny_model
from lessons_lib.recording import recorded_step, serve_recorded
from lessons_lib.scheduling import Deadlock, FirstComeFirstServed, PreemptionCost, PreemptiveScheduler, Scheduler, Sequence, ShortestJobFirst, StepCost, SchedulerOutput, StrictPriority, always_swap, conservative, copy_before_write, fork, never_swap, optimistic, share_budget, simulate, traffic
from lessons_lib.viz import Stepper
from lessons_lib.viz.charts import line_chart
from lessons_lib.viz.pressure import draw_pressure
from lessons_lib.viz.tables import Table

model, tokenizer = load_model(device="cpu")  # in float32: equal means equal to the last token
END = frozenset({tokenizer.eos_token_id})
BLOCK = 16


def six_stories():
    """The six stories as sequences, in the order A to F."""
    prompts = {story.name: tokenizer(story.prompt).input_ids for story in STORIES}
    return [Sequence(story.name, prompts[story.name], story.max_new_tokens, END, arrival_time=i) for i, story in enumerate(STORIES)]


# %% [markdown]
"""
## The problem: promises or a deadlock

The six stories, at most six at a time and 64 tokens a step, in a pool of 12 blocks of 16 tokens. First with both kinds of admission of lesson 09. For
each step we note how many sequences run, and how many blocks are in use.
"""

# %%
NUM_BLOCKS = 12


def served(scheduler, sequences):
    """Serve greedily; for each step, (sequences that run, blocks in use, tokens computed)."""
    runner = ModelRunner(model, NUM_BLOCKS, BLOCK)
    for sequence in sequences:
        scheduler.add(sequence)
    steps = []
    while scheduler.has_unfinished():
        scheduler_output = scheduler.schedule()
        steps.append((len(scheduler.running), len(scheduler.pool.used), scheduler_output.num_tokens))
        scheduler.update(scheduler_output, runner.forward(scheduler_output).argmax(dim=-1).tolist())
    return steps


LIMITS = dict(max_num_seqs=6, max_num_batched_tokens=64)
careful = Scheduler(BlockPool(NUM_BLOCKS, BLOCK), **LIMITS, admission=conservative)
stories = six_stories()
print("blocks that each may need:", {sequence.id: blocks_for(sequence.most_tokens, BLOCK) for sequence in stories})
steps = served(careful, stories)
expected = {sequence.id: sequence.output_ids for sequence in stories}
running, in_use, computed = (sum(column) for column in zip(*steps))
print(f"conservative: {len(steps)} steps, {running / len(steps):.1f} sequences at a time, {in_use / len(steps):.1f} of {NUM_BLOCKS} blocks in use")

# %%
hopeful = Scheduler(BlockPool(NUM_BLOCKS, BLOCK), **LIMITS, admission=optimistic)
try:
    served(hopeful, six_stories())
except Deadlock as error:
    print("Deadlock:", error)
for sequence in hopeful.running:
    most = blocks_for(sequence.most_tokens, BLOCK)
    print(f"  {sequence.id}: {sequence.num_computed_tokens} tokens fill {len(sequence.blocks)} of its {most} blocks")

# %% [markdown]
"""
With promises, most of the time one sequence runs alone, and more than half of the pool lies idle. Without, all six begin. Then every one of them
stands at the end of a full block, and waits for another to give one back. None of them will.

In a deadlock somebody has to give way. That need not be a catastrophe: what a sequence loses are keys and values, and they can be had again.

> **preemption**: taking its blocks from a running sequence, for the sake of another. It waits again, and goes on later.

## Predict

A's prompt has 13 tokens. A has handed out 20 tokens of its answer when it is preempted, and what was in its blocks is lost.
"""

# %%
predict("10.a", ...)  # A is admitted again. How many of its tokens are computed before its next new token comes out?

# %% [markdown]
"""
## The idea

When a block is missing, the scheduler makes room in three moves.

1. **Choose a victim** among those who run.
2. **Take its blocks.** What was in them is dropped and computed again later, or moved to other memory and moved back later.
3. **Put it back in the queue**, with the rank that it had. Its tokens so far stay known: they were handed out.

The third is why preemption is so cheap to add. A waiting sequence that has an answer already is nothing new: lesson 09's rule computes what is known
and not computed, whatever it is.

## Build 1: the victim

Whom shall it hit? The policy says who is served first. So the victim is the one whom it would serve *last*: the one with the largest
`policy.rank(sequence)`. Otherwise a sequence would lose its place to another that ranks behind it, and the policy would be worth nothing. It also
means that the first in rank is never a victim while others run: it goes on in every step and will end. Then the next one is first. So everybody ends.

**Your task: `last_in_rank(candidates, policy)`.** `candidates` is a list of sequences, one or more, in the order of admission. Return the one with
the largest `policy.rank(sequence)`; of several with the same largest rank, the one that stands last in the list. A rank may be a number or a tuple;
ranks of one policy can be compared with `<` and by `max`, but not all of them can be negated. Leave the list as it is.

Example: first come, first served, so the rank is the time of arrival. A came at 0, B at 1, C at 2. B was preempted once and has been admitted again,
so the candidates are [A, C, B]. The victim is C. With [A, B, C] it is C too. If B and C both came at 1, it is B of [A, C, B], and C of [A, B, C].
"""

# %% exercise="10.1"
from lessons_lib.scheduling.preemption import last_in_rank

# %% [markdown]
"""
### What the victim loses

`PreemptiveScheduler` in the library is lesson 09's `Scheduler` with another `allocate_slots`. Where a running sequence cannot get its blocks, it chooses a
victim, and tries again:
"""

# %%
for method in (PreemptiveScheduler.allocate_slots, PreemptiveScheduler.preempt, PreemptiveScheduler.drop):
    print(inspect.getsource(method))

# %% [markdown]
"""
Read `preempt`. The victim leaves the plan, and the running sequences, and waits again. Then one of two things happens to what it has in the cache.
`drop` is the simple one: the blocks are freed, and `num_computed_tokens` is 0.

> **recompute**: dropping a victim's cache. When it comes back, all its known tokens are computed in one prefill.

The victim may be the very sequence that needs the block, if nobody ranks behind it. `candidates()` are those who run.

In a step that has preempted somebody, nobody is admitted. A newcomer would take the victim's blocks, rank behind everybody, and be the next victim.

`make_room`, which `allocate_slots` calls, needs a pool of a new kind, a `PrefixCache`. It is the subject of the second half. With `share_prefixes=False` it is
a block pool like any other.

Now the six stories again, in the pool in which they got stuck. `serve_recorded` serves greedily, and notes for each step what it did and how the pool
lies. Step through it. A block is coloured as far as it is filled.
"""

# %%
def under_pressure(**how):
    """The six stories in the small pool: (sequences, scheduler, recorded steps)."""
    swap_space = BlockPool(NUM_BLOCKS, BLOCK)
    swap_cache = PagedKVCache(model.config, NUM_BLOCKS, BLOCK)
    how = dict(choose_victim=last_in_rank, share_prefixes=False, swap_space=swap_space) | how
    scheduler = PreemptiveScheduler(PrefixCache(NUM_BLOCKS, BLOCK), **LIMITS, **how)
    sequences = six_stories()
    return sequences, scheduler, serve_recorded(ModelRunner(model, NUM_BLOCKS, BLOCK), scheduler, sequences, swap_cache)


dropped, dropping, drop_steps = under_pressure(should_swap=never_swap)
first = next(step.index for step in drop_steps if step.preempted)
Stepper(lambda i: draw_pressure(drop_steps[i]), count=len(drop_steps), start=first, still=first)

# %%
def told(names):
    return ", ".join(names) or "–"


def events(steps):
    changed = [step for step in steps if step.preempted or step.admitted or step.finished]
    rows = [[str(step.index + 1), told(step.preempted), told(step.admitted), told(step.finished), told(step.waiting)] for step in changed]
    return Table(
        columns=["step", "preempted", "admitted", "finished", "queue after it"], rows=rows, caption="The six stories in 12 blocks, recompute"
    )


events(drop_steps)

# %%
def twice(sequences, steps):
    """Tokens that were computed more than was needed."""
    needed = sum(len(sequence.prompt_ids) + len(sequence.output_ids) - 1 for sequence in sequences)
    return sum(sum(step.counts.values()) for step in steps) - needed


def same_answers(sequences):
    return all(sequence.output_ids == expected[sequence.id] for sequence in sequences)


print(f"the same answers: {same_answers(dropped)}; {len(drop_steps)} steps, conservative {len(steps)}")
print(f"{dropping.num_preempted} preemptions; {twice(dropped, drop_steps)} tokens computed twice, beside {computed} that are needed anyway")

# %% [markdown]
"""
About half as many steps as with promises, no deadlock, and the same tokens to the last one. How does a victim come back? As a prefill of everything
that is known:
"""

# %%
a = next(sequence for sequence in six_stories() if sequence.id == "A")
a.output_ids = expected["A"][:20]
back = share_budget([a], budget=64)[a]
reveal("10.a", back)
print(f"A knows {len(a.prompt_ids)} + {len(a.output_ids)} tokens, {a.num_computed_tokens} of them computed")
print(f"the step computes {back}, and then A's next token is chosen")

# %% [markdown]
"""
One of the 33 had not been computed before: the last one, which had been chosen and not fed to the model yet.

### Swap

The other way is to keep the victim's keys and values, elsewhere.

> **swap**: moving the blocks of a victim to other memory, usually the CPU's, and back when it is admitted again.

> **swap space**: that other memory, cut into blocks of the same size, with a block pool of its own.

Then nothing is computed again. What it costs is the way there and back. The scheduler only keeps the books. It writes `BlockCopy`s into the plan, and
`copy_blocks` carries them out before the forward pass. If the swap space is full, the victim is dropped after all.
"""

# %%
swapped, swapping, swap_steps = under_pressure(should_swap=always_swap)
block_copies = [move for step in swap_steps for move in step.block_copies]
print(f"the same answers: {same_answers(swapped)}; {len(swap_steps)} steps")
print(f"{swapping.num_preempted} preemptions, {swapping.num_swapped} of them swapped")
print(f"{twice(swapped, swap_steps)} tokens computed twice; {len(block_copies)} moves of a block")
first = next(step for step in swap_steps if step.preempted)
for move in first.block_copies:
    print(f"step {first.index + 1}, {told(first.preempted)}: {move}")

# %%
Stepper(lambda i: draw_pressure(swap_steps[i]), count=len(swap_steps), start=first.index, still=first.index)

# %% [markdown]
"""
The order of the moves matters. A block that one move empties may be the target of a later one, in the same step.

Only the filled blocks are moved. A sequence that was preempted in the middle of its prefill goes on in the middle of its prefill.

## When is swapping cheaper?

Both prices can be computed. Swapping moves bytes, out and in. Recomputing takes the time of some more tokens in a step that runs anyway.
"""

# %%
print(inspect.getsource(PreemptionCost))

# %% [markdown]
"""
Take lesson 09's cost of a step, and a cache as of a model with 8 billion parameters: 32 layers, 8 KV heads of 128 numbers in bfloat16. Assume that
memory of the CPU and memory of the GPU exchange 50 GB a second. A block is not one piece of memory: each layer has its own keys and its own values,
so a block moves in 64 pieces. Assume 5 µs to start each of them. For a sequence of 1,024 tokens:
"""

# %%
COST = StepCost(base=5e-3, per_token=20e-6, per_context_token=0.2e-6)
PER_TOKEN = 32 * 2 * 8 * 128 * 2  # layers, key and value, heads, head size, bytes of a number


def prices_for(block_size, seconds_to_start=5e-6):
    return PreemptionCost(COST, block_bytes=block_size * PER_TOKEN, bandwidth=50e9, per_move=64 * seconds_to_start)


def row_of_prices(block_size):
    prices, at_once = prices_for(block_size), prices_for(block_size, 0.0)
    count = blocks_for(1024, block_size)
    seconds = prices.swap_seconds(count), at_once.swap_seconds(count), prices.recompute_seconds(1024)
    return [str(block_size), count, *(f"{1000 * one:.1f}" for one in seconds)]


Table(
    columns=["block size", "blocks", "swap, ms", "swap without starting time, ms", "recompute, ms"],
    rows=[row_of_prices(block_size) for block_size in (1, 4, 16, 64, 256)],
    caption="Bringing back a sequence of 1,024 tokens",
)

# %% [markdown]
"""
The bytes alone would be on their way in a few milliseconds. It is the many small pieces that make swapping slow, and larger blocks make it faster. So
it depends on the block size, the model, and the machine; here the two meet between 16 and 64 tokens a block. Other numbers shift that point. Both
prices grow in proportion to the length of the sequence here, so the length decides little. (`StepCost` charges for the tokens attended to once a
sequence. The attention of a real prefill grows with the square of the length, so recomputing a very long one is dearer than computed.)

`cheaper(scheduler, victim)` asks for both prices, and can be used as `should_swap`.

And here, measured: the bundled model on this machine, blocks of 16. Both memories are the same here, so the way between them is short.
"""

# %% tags=["measured"]
runner = ModelRunner(model, NUM_BLOCKS, BLOCK)
space = PagedKVCache(model.config, NUM_BLOCKS, BLOCK)


def out_and_in(tokens):
    pairs = [(block, block) for block in range(blocks_for(tokens, BLOCK))]
    copy_blocks([BlockCopy(SWAP_OUT, *pair) for pair in pairs] + [BlockCopy(SWAP_IN, *pair) for pair in pairs], runner.cache, space)


def prefill(tokens):
    sequence = Sequence("A", [5] * tokens, 1, blocks=list(range(blocks_for(tokens, BLOCK))))
    runner.forward(SchedulerOutput(num_scheduled_tokens={sequence: tokens}))


rows = []
for tokens in (16, 48, 96, 192):
    swap_ms, prefill_ms = median_ms([lambda: out_and_in(tokens), lambda: prefill(tokens)], repeat=5)
    rows.append([str(tokens), swap_ms, prefill_ms, f"{prefill_ms / swap_ms:.1f}"])
Table(columns=["tokens", "swap out and in, ms", "prefill, ms", "prefill / swap"], rows=rows, caption="Bringing a victim back, on this machine")

# %% [markdown]
"""
The prefill is measured as a step of its own. In a step that runs anyway it would add less.

On a GPU the way is longer, from its memory to the CPU's. This was recorded, with a model of the shape of Qwen2.5-0.5B (24 layers). The blocks of a
layer are gathered into one piece before they are sent, so 48 pieces go each way, however many blocks there are:
"""

# %%
recording = recorded_engine()
rows = []
for one in recording.swapping:
    swap_ms, prefill_ms = 1000 * (one["swap_out_s"] + one["swap_in_s"]), 1000 * one["recompute_s"]
    gb_per_s = 2 * one["bytes"] / swap_ms / 1e6
    rows.append([one["tokens"], f"{one['bytes'] / 1e6:.1f}", f"{swap_ms:.1f}", f"{gb_per_s:.0f}", f"{prefill_ms:.1f}", f"{prefill_ms / swap_ms:.1f}"])
print(recording.provenance)
Table(columns=["tokens", "MB", "swap out and in, ms", "GB/s", "prefill, ms", "prefill / swap"], rows=rows, caption="Bringing a victim back, on a GPU")

# %% [markdown]
"""
A few MB come nowhere near the 50 GB a second that we assumed, since about a millisecond goes by whatever their number. The many small pieces are gone,
which was the remedy that we looked for.

As a step of its own, recomputing is dearer at each of these lengths. But look at its first rows: up to 2,048 tokens a prefill takes about as long as
for 128, because the CPU starts the operations of this small model one by one (lesson 12 comes to that). In a step that runs anyway that time is spent
already, and a short sequence may be cheaper to recompute than the table says. With a larger model both would grow: measure it.

## Watermarks

A pool that is always full has another problem. Somebody is admitted with the last free blocks. In the next step one of those who run needs a block.
The newcomer ranks last, so it is the victim, and its prefill was for nothing. It waits, some blocks come free, it is admitted again.

> **thrashing**: spending more and more of the work on bringing back what was thrown out a moment ago.

The usual remedy is the watermark: lesson 09's `optimistic` admission leaves that many blocks free, for those who run. They will need them soon. (Some
systems have a second mark, at which they begin to preempt before they must. Ours begins when a block is missing.)

The simulator shows it on a larger scale. It runs the same scheduler, without a model: 200 requests that are all there at the beginning, at most 32 at
a time, 80 blocks of 16, recompute. Requests have only lengths there, so nothing can be shared: `share_prefixes=False`.
"""

# %%
requests = traffic(200, rate=1e6, prompt_median=32, answer_median=64, spread=0.6, most=256, seed=10)
answer_tokens = sum(request.answer_tokens for request in requests)
needed = sum(request.prompt_tokens + request.answer_tokens - 1 for request in requests)
MANY = dict(max_num_seqs=32, max_num_batched_tokens=256)


class CountingScheduler(PreemptiveScheduler):
    """Counts the moves that it orders."""

    num_block_copies = 0

    def schedule(self):
        scheduler_output = super().schedule()
        self.num_block_copies += len(scheduler_output.block_copies)
        return scheduler_output


def preemptive(num_blocks, **how):
    return CountingScheduler(PrefixCache(num_blocks, BLOCK), choose_victim=last_in_rank, share_prefixes=False, **MANY, **how)


def row_of_watermark(watermark):
    scheduler = preemptive(80, should_swap=never_swap, watermark=watermark)
    run = simulate(scheduler, requests, COST)
    return [str(watermark), scheduler.num_preempted, run.computed_tokens - needed, run.num_steps, f"{answer_tokens / run.seconds:,.0f}"]


Table(
    columns=["watermark", "preemptions", "tokens computed twice", "steps of the run", "answer tokens/s"],
    rows=[row_of_watermark(watermark) for watermark in (0, 1, 2, 4, 8, 16, 32)],
    caption=f"200 requests in 80 blocks; {needed:,} tokens are needed anyway",
)

# %% [markdown]
"""
Without a reserve, there are more preemptions than requests. A reserve of 8 blocks, a tenth of the pool, leaves less than a quarter of them. A larger
one costs steps: blocks lie idle that somebody could use. The speed changes little here, as a token is cheap on the machine that the cost line stands
for: the steps themselves take most of the time. Where prefill is dear, or where somebody watches the answer stall, the preemptions weigh more.

How does each way bear it when the pool shrinks? The simulator does not charge for moves, so we add their price, for blocks of 16 from the table
above.
"""

# %%
def conservative_run(num_blocks):
    scheduler = Scheduler(BlockPool(num_blocks, BLOCK), admission=conservative, **MANY)
    run = simulate(scheduler, requests, COST)
    return answer_tokens / run.seconds, run.computed_tokens - needed


def preemptive_run(num_blocks, **how):
    scheduler = preemptive(num_blocks, **how)
    run = simulate(scheduler, requests, COST)
    return answer_tokens / (run.seconds + prices_for(BLOCK).move_seconds(scheduler.num_block_copies)), run.computed_tokens - needed


ways = {
    "conservative": conservative_run,
    "recompute": lambda n: preemptive_run(n, should_swap=never_swap),
    "recompute, watermark n / 8": lambda n: preemptive_run(n, should_swap=never_swap, watermark=n // 8),
    "swap": lambda n: preemptive_run(n, swap_space=BlockPool(1000, BLOCK)),
}
sizes = (32, 64, 96, 128, 192, 256)
results = {name: [run(size) for size in sizes] for name, run in ways.items()}
speeds = {name: [round(results[name][i][0]) for i in range(len(sizes))] for name in ("conservative", "recompute")}
told_speeds = "; ".join(f"{name}: {', '.join(f'{speed:,}' for speed in values)}" for name, values in speeds.items())
alt = f"answer tokens/s with {', '.join(map(str, sizes))} blocks. {told_speeds}."
line_chart(sizes, speeds, xlabel="blocks in the pool", ylabel="answer tokens/s", alt=alt)

# %% [markdown]
"""
The other two ways lie so near to recompute that lines could not be told apart. Here all speeds are given as parts of the speed of recompute:
"""

# %%
def row_of_size(i):
    rate = {name: points[i][0] for name, points in results.items()}
    twice = {name: points[i][1] for name, points in results.items()}
    return [
        str(sizes[i]),
        f"{rate['recompute']:,.0f}",
        *(f"{rate[name] / rate['recompute']:.0%}" for name in ("recompute, watermark n / 8", "swap", "conservative")),
        twice["recompute"],
        twice["recompute, watermark n / 8"],
    ]


Table(
    columns=["blocks", "recompute, tokens/s", "watermark n / 8", "swap", "conservative", "computed twice", "with watermark"],
    rows=[row_of_size(i) for i in range(len(sizes))],
    caption="Speed of the other ways against recompute, and tokens computed twice by recompute",
)

# %% [markdown]
"""
Promises cost most, at every size: caps are far above what answers need. With 96 blocks, preemption hands out more than promises with 256.

This watermark, an eighth of the pool, makes nothing faster here. Where a token is cheap, an idle block costs more than some tokens
computed twice; what the watermark buys is fewer of them. Swap computes nothing twice, and pays for its moves instead.
"""

# %% [markdown]
"""
## Prove it

The claim: whatever is preempted, swapped, dropped, shared or copied, every answer is the one that the request gets alone. And no block is ever lost.
After every step, `audit` compares the books: each block is free, or held by exactly as many sequences as its count says; names and blocks agree;
every sequence has the blocks that its tokens need.

Twenty random workloads on a small random model: prompts with common beginnings, pools that are barely large enough, all kinds of limits. Some have a
victim chosen by chance.
"""

# %%
tiny, plain = tiny_model("qwen2"), SimpleNamespace(pad_token_id=0, eos_token_id=24)


def random_workload(rng):
    """(sequences, scheduler, runner, cache of the swap space)"""
    size = rng.choice((1, 2, 4))
    prompts = [[rng.randrange(VOCAB_SIZE) for _ in range(rng.choice((1, 2, 9, 25)))] for _ in range(6)]
    sequences = [Sequence(str(i), p, rng.choice((5, 12, 20)), frozenset({24}), rng.random(), rng.randrange(2)) for i, p in enumerate(prompts)]
    num_blocks = max(blocks_for(sequence.most_tokens, size) for sequence in sequences) + rng.choice((0, 1, 4))
    max_num_seqs = rng.choice((2, 4, 6))
    scheduler = PreemptiveScheduler(
        PrefixCache(num_blocks, size),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + rng.choice((0, 5, 60)),
        policy=rng.choice((FirstComeFirstServed, ShortestJobFirst, StrictPriority))(),
        watermark=rng.choice((0, 1)),
        swap_space=BlockPool(rng.choice((0, 8, 60)), size),
        choose_victim=rng.choice((last_in_rank, lambda candidates, policy: rng.choice(candidates))),
        should_swap=rng.choice((always_swap, never_swap)),
        share_prefixes=False,
    )
    return sequences, scheduler, ModelRunner(tiny, num_blocks, size), PagedKVCache(tiny.config, 60, size)


total = dict(equal=0, requests=0, steps=0, preemptions=0, swapped=0)
for seed in range(20):
    sequences, scheduler, runner, swap_cache = random_workload(random.Random(seed))
    max_tokens_each = [sequence.max_new_tokens for sequence in sequences]
    alone = ragged_generate(tiny, plain, [sequence.prompt_ids for sequence in sequences], max_new_tokens=max_tokens_each, max_num_seqs=1).outputs
    record = serve_recorded(runner, scheduler, sequences, swap_cache)  # audits after every step
    assert len(scheduler.pool.free_queue) == scheduler.pool.num_blocks
    total["equal"] += sum(sequence.output_ids == answer for sequence, answer in zip(sequences, alone))
    total["requests"] += len(sequences)
    total["steps"] += len(record)
    total["preemptions"] += scheduler.num_preempted
    total["swapped"] += scheduler.num_swapped
print(", ".join(f"{name} {count}" for name, count in total.items()))

# %% [markdown]
"""
The course's own tests do the same on hundreds of workloads. Faults that were reported of other engines, and what keeps ours from them:

| fault | reported for | here |
|---|---|---|
| A prompt that was wholly in the prefix cache left nothing to compute. | [vLLM][1] | `take_cached` counts at most all known tokens less one. |
| A preempted sequence that found blocks read behind its table. | [nano-vllm][2] | Who is admitted takes its blocks before its tokens are counted. |
| A step read blocks that were free already. | [vLLM on Ascend][3] | What anybody holds is not free: `free` lowers a count; `audit` compares. |
| At a block boundary, room was looked for at the wrong token. | [MinivLLM][4] | `make_room` counts the blocks for the tokens of the step. |

[1]: https://github.com/vllm-project/vllm/issues/53706
[2]: https://github.com/GeeeekExplorer/nano-vllm/pull/211
[3]: https://github.com/vllm-project/vllm-ascend/issues/14055
[4]: https://github.com/Wenyueh/MinivLLM/pull/85

## Measure

What is saved in time? Twelve requests, each with the common beginning and a story behind it, and four tokens of answer: with and without sharing, one
after the other and in turns.
"""

# %% [markdown]
"""
## Measure

### The ledger
"""

# %% tags=["measured"]
ledger(model, tokenizer, "10", with_cache_only=True, since="06")

# %% [markdown]
"""
The last row serves all six at a time in half of the blocks that they may need together, with about as many forward calls as the two rows above it.
The price is the part of its tokens that is computed twice. Sharing spares little here, as these prompts begin differently; only a
victim finds blocks of its own again.

## What production does

- **vLLM**, in `vllm/v1/core/sched/scheduler.py`: when `allocate_slots` returns None, a victim is taken. With priorities it is `max(self.running,
  key=lambda r: (r.priority, r.arrival_time))`, and without them `self.running.pop()`, the last admitted. `_preempt_request` frees its blocks and sets
  `num_computed_tokens` to 0. Nobody is admitted in such a step (`if not preempted_reqs`). vLLM's first engine could swap (`swap_space`); the present
  one recomputes. `num_gpu_blocks` is the size of its pool, and `KVCacheManager` has a `watermark`, a share of all blocks.
- vLLM's prefix cache: `hash_block_tokens` in `vllm/v1/core/kv_cache_utils.py` hashes the parent's hash, the tokens, and what else makes a difference:
  which adapter, which images, a salt of one's own. `FreeKVCacheBlockQueue` in the same file is our `LruQueue`, a linked list, with the tail of a
  sequence in front too. `KVCacheManager.get_computed_blocks` has our trap in a comment: when all tokens hit, the last must be computed again. It
  takes one block less then, and computes all of it.
- vLLM serves n samples of one prompt as n requests that find each other's blocks by name (`vllm/v1/engine/parallel_sampling.py`).
- **nano-vllm** has it all in `nanovllm/engine/block_manager.py`. Its hash has 64 bits, so it compares the tokens as well.
- **SGLang** keeps beginnings in a tree of tokens in place of a table of hashes, *RadixAttention*, and evicts its least recently used leaves
  (`python/sglang/srt/mem_cache/radix_cache.py`). It also lets requests that find much in the cache go first.
- **Hugging Face transformers** has both ways of preemption in `generation/continuous_batching/offloading_manager.py`: the cache goes to a buffer in
  the CPU's memory, and where that is full or missing, the request is reset and computed again. Blocks are shared by hashes with
  `allow_block_sharing`, and `cache.py` has `prepare_fork_request` for several samples.

The paper on PagedAttention describes swap, recompute, sharing and copy-on-write in its section 4, and compares swap with recompute in section 7.3:
with small blocks swap is slow, because of many small transfers; between 16 and 64 tokens a block the two are alike. With the numbers assumed above,
they meet in the same range.

## What is still wrong

**Nobody asks for anything but the likeliest token.** Forks make sense when tokens are chosen at random.

**Nobody sees a token before all are there.** There is no streaming, no way to stop at a word, none to give up a request.

**Nobody measures a running engine.** In lesson 12 all parts so far become one engine with these things.

## Quiz
"""

# %%
quiz("10")

# %% [markdown]
"""
## References

- W. Kwon et al.: *Efficient Memory Management for Large Language Model Serving with PagedAttention*, SOSP 2023; sections 4.3 to 4.5 and 7.3.
  <https://arxiv.org/abs/2309.06180>
- L. Zheng et al.: *SGLang: Efficient Execution of Structured Language Model Programs*, NeurIPS 2024; RadixAttention in section 3.
  <https://arxiv.org/abs/2312.07104>
- vLLM: automatic prefix caching, <https://docs.vllm.ai/en/latest/design/prefix_caching.html>; preemption,
  <https://docs.vllm.ai/en/latest/configuration/optimization.html>
- nano-vllm: `nanovllm/engine/block_manager.py`. <https://github.com/GeeeekExplorer/nano-vllm>
- Hugging Face transformers: continuous batching. <https://huggingface.co/docs/transformers/main/en/continuous_batching>
"""
