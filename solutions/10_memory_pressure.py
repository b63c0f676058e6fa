# %% [markdown]
"""
# 10 · Memory pressure

![A full pool of blocks: request F has been preempted](../lessons_lib/assets/openings/10.svg)

**A sequence needs a block and none is free. Now what?**

75 minutes · difficulty: medium · routes: serving · prerequisites: lesson 03 (blocks), lesson 06 (paged attention) and
lesson 09 (the scheduler)

Conservative admission promises blocks that mostly go unused, and optimistic admission can deadlock (lesson 09). Here
the scheduler learns to take blocks back from a running sequence. Then it can admit optimistically and never deadlock.
"""

# %% folded=true
from itertools import accumulate
from types import SimpleNamespace

from lessons_lib.checks import check, hint, predict, progress, quiz, reset, reveal, solution
from lessons_lib.engine import ModelRunner
from lessons_lib.kv_cache import BlockPool, PagedKVCache, PrefixCache, blocks_for
from lessons_lib.measuring import STORIES, StepCost, recorded_swaps, recorded_victims, simulate
from lessons_lib.measuring import traffic, tried_rule
from lessons_lib.models import load_model
from lessons_lib.recording import serve_recorded
from lessons_lib.scheduling import Deadlock, PreemptiveScheduler, Scheduler, Sequence
from lessons_lib.scheduling import SwappingScheduler, always_swap, conservative, never_swap
from lessons_lib.scheduling import optimistic, share_budget
from lessons_lib.viz.charts import line_chart
from lessons_lib.viz.stepper import Stepper
from lessons_lib.viz.pressure import draw_pressure
from lessons_lib.viz.source import show_source
from lessons_lib.viz.tables import Table

# %%
# float32, so that answers can be compared token by token
model, tokenizer = load_model(device="cpu")
END = frozenset({tokenizer.eos_token_id})
BLOCK = 16


def six_stories():
    """The six stories as sequences, A to F."""
    prompts = {story.name: tokenizer(story.prompt).input_ids for story in STORIES}
    return [Sequence(story.name, prompts[story.name], story.max_new_tokens, END,
                     arrival_time=i) for i, story in enumerate(STORIES)]

# %% [markdown]
"""
## The problem: idle blocks or a deadlock

We serve the six stories from a pool of 12 blocks of 16 tokens, with the two kinds of admission from lesson 09.
"""

# %%
NUM_BLOCKS = 12


def serve(scheduler, sequences):
    """Serve greedily; return (running sequences, blocks in use, tokens computed) for each
    step."""
    runner = ModelRunner(model, NUM_BLOCKS, BLOCK)
    for sequence in sequences:
        scheduler.add(sequence)
    steps = []
    while scheduler.has_unfinished():
        scheduler_output = scheduler.schedule()
        steps.append((len(scheduler.running), len(scheduler.pool.used),
                      scheduler_output.num_tokens))
        scheduler.update(scheduler_output,
                         runner.forward(scheduler_output).argmax(dim=-1).tolist())
    return steps


LIMITS = dict(max_num_seqs=6, max_num_batched_tokens=64)
scheduler = Scheduler(BlockPool(NUM_BLOCKS, BLOCK), **LIMITS, admission=conservative)
stories = six_stories()
print("blocks each sequence may need:",
      {sequence.id: blocks_for(sequence.most_tokens, BLOCK) for sequence in stories})
steps = serve(scheduler, stories)
expected = {sequence.id: sequence.output_ids for sequence in stories}
running, in_use, computed = (sum(column) for column in zip(*steps))
print(f"conservative: {len(steps)} steps, {running / len(steps):.1f} sequences at a time, "
      f"{in_use / len(steps):.1f} of {NUM_BLOCKS} blocks in use")

# %%
scheduler = Scheduler(BlockPool(NUM_BLOCKS, BLOCK), **LIMITS, admission=optimistic)
try:
    serve(scheduler, six_stories())
except Deadlock as error:
    print("Deadlock:", error)
for sequence in scheduler.running:
    most = blocks_for(sequence.most_tokens, BLOCK)
    print(f"  {sequence.id}: {sequence.num_computed_tokens} tokens fill "
          f"{len(sequence.blocks)} of its {most} blocks")

# %% [markdown]
"""
With conservative admission, more than half of the pool is unused. With optimistic admission, all six start. Then each
fills its last block and waits for another sequence to free one. None ever will.

To break the deadlock, one sequence gives its blocks back. All it loses is its keys and values, and we can restore
those.

> **preemption**: taking the blocks of a running sequence so that another one can continue. The preempted sequence
> returns to the waiting queue and continues later.

## The idea

When a sequence needs a block and none is free, the scheduler makes room:

1. **Choose a victim** among the running sequences.
2. **Take its blocks.** Their contents are either dropped and recomputed later, or copied to other memory and back.
3. **Put it back in the waiting queue**, with the same rank as before. It keeps the tokens that it has generated: they
   have already been sent.

A waiting sequence with part of an answer is nothing special: lesson 09's rule computes every known token that hasn't
been computed yet, whether it belongs to the prompt or to the answer.

## Build 1: the victim

Which sequence should be preempted? The scheduler asks a function, `choose_victim(candidates, policy)`. The candidate
that needs the block may be the victim itself: then it gives up its own blocks. Three rules sound sensible:

- **the newest**: the candidate that was admitted last. The least work is lost.
- **the largest**: the candidate with the most blocks. A single preemption frees many.
- **the oldest**: the candidate that was admitted first. It has had its share.

We try them on sixty requests under *strict priority*, a policy that always serves tier 0, the customers who pay more,
before tier 1. A sequence *gives way* if it loses its blocks so that another one can continue. How often does one give
way to a sequence that the policy serves *later*?
"""

# %%
def newest(candidates, policy):
    return candidates[-1]


def largest(candidates, policy):
    return max(candidates, key=lambda sequence: len(sequence.blocks))


def oldest(candidates, policy):
    return candidates[0]


Table(
    columns=["victim", "preemptions", "gave way to a later one", "steps"],
    rows=[tried_rule(rule.__name__, rule) for rule in (newest, largest, oldest)],
    caption="Sixty requests in 16 blocks, strict priority",
)

# %% [markdown]
"""
Each of them acts against the policy. Even the newest does: a tier-0 request that arrives late is admitted last, and
then gives way to a tier-1 request.

**Exercise 10.1.** Write `last_in_rank(candidates, policy)`, a rule that never does. `candidates` is a list of one or
more sequences, in the order of admission. Return one of them, so that under any policy, and whichever candidate needs
the block:

- no sequence gives way to one that the policy serves later. The policy serves the smallest `policy.rank(sequence)`
  first; a rank is a number or a tuple.
- among sequences of equal rank, none gives way to one that was admitted later.

Don't change the list.

Example: first come, first served, so the rank is the arrival time. A arrived at 0, B at 1, C at 2. The victim is C,
for the candidates [A, B, C] and also for [A, C, B], where B was preempted before and has been admitted again. If B and
C both arrived at 1, the victim is the one admitted last: C for [A, B, C] and B for [A, C, B].
"""

# %% exercise="10.1"
from lessons_lib.scheduling.preemption import last_in_rank

# %%
_, preemptions, gave_way, num_steps = tried_rule("yours", last_in_rank)
print(f"the same requests with your rule: {preemptions} preemptions, "
      f"{gave_way} gave way to a later one, {num_steps} steps")

# %% [markdown]
"""
Your rule takes a few more steps than the newest, but it never acts against the policy. It also guarantees progress:
the running sequence that the policy serves first is never the victim while others run, so it finishes. Then the next
one is first.

## Build 2: preemption

In the library's `PreemptiveScheduler`, a running sequence that can't get its blocks doesn't stall: `allocate_slots`
preempts a victim and tries again. `make_room` allocates the blocks for `count` more tokens, or returns False if too few
are free.
"""

# %%
show_source(PreemptiveScheduler.allocate_slots)

# %% [markdown]
"""
`self.preempt` decides what becomes of the victim's keys and values:

> **recompute**: dropping a victim's cache. When the victim is admitted again, all its known tokens are prefilled,
> prompt and answer alike.

> **swap**: copying the blocks of a victim to other memory, usually the CPU's, and copying them back when it is admitted
> again.

> **swap space**: that other memory, divided into blocks of the same size, with a block pool of its own.

To swap, it allocates blocks of the swap space, `victim.swapped`, and adds `BlockCopy`s to the step's output, which are
carried out before the forward pass. To recompute, or if the swap space is full, `victim.swapped` stays empty. Then it
calls the function that you write now.

Here's a first try: out of the running sequences, into the queue, and the blocks back into the pool. Nothing is swapped.
(`PrefixCache` is a block pool, and lesson 11 shows what `share_prefixes=False` turns off.)
"""

# %%
def first_try(scheduler, scheduler_output, victim):
    scheduler.running.remove(victim)
    scheduler.waiting.add(victim)  # where its rank belongs
    scheduler.pool.free(victim.blocks)
    victim.blocks = []
    scheduler_output.preempted.append(victim)


def wrong_answers(preempt):
    scheduler = SwappingScheduler(PrefixCache(NUM_BLOCKS, BLOCK), choose_victim=last_in_rank,
                                  preempt_sequence=preempt, share_prefixes=False, **LIMITS)
    stories = six_stories()
    serve(scheduler, stories)
    print(f"{scheduler.num_preempted} preemptions")
    return [one for one in stories if one.output_ids != expected[one.id]]


for sequence in wrong_answers(first_try):
    alone = expected[sequence.id]
    for way, ids in (("alone:    ", alone), ("first try:", sequence.output_ids)):
        print(f"  {sequence.id} {way} {tokenizer.decode(ids[:24])!r} …")

# %% [markdown]
"""
Every request finishes, and nothing raises an error. But some answers change in the middle, and things from other
stories turn up, such as a balloon or a duck: text for one user, computed from the keys of another. Why?

**Make it right.** One line is missing. Which attribute of the victim still says what was true before? Add the line, and
run the cell until no story is wrong.
"""

# %%
def second_try(scheduler, scheduler_output, victim):
    first_try(scheduler, scheduler_output, victim)
    # your line


print("wrong:", [sequence.id for sequence in wrong_answers(second_try)])

# %% [markdown]
"""
A victim that comes back reads the keys of other sequences if its tokens still count as computed:
`victim.num_computed_tokens = 0`. There's a second mistake, which these stories don't show: the step may have scheduled
tokens of the victim already, and would write their keys to blocks that now belong to another sequence.

**Exercise 10.2.** Write `preempt_sequence(scheduler, scheduler_output, victim)`, which turns a victim into a sequence
that waits as if it had never run, except that its tokens stay. Afterwards

- the victim waits where its rank belongs, and has no blocks. Its blocks are free, in any order;
- this step computes nothing of it, and lists it in `scheduler_output.preempted`, after those preempted before. (The
  step may have scheduled tokens of it, or not: `scheduler_output.num_scheduled_tokens` is a dict, sequence → tokens);
- once it's admitted again, it goes on with the answer that it would have given alone. If it is swapped, nothing is
  computed twice;
- everything else is as it was, the swap space too.

Example: blocks of 4, none is free. A and B run, C and D wait. B has 5 prompt tokens and 4 answer tokens, 8 of these 9
are computed, and the step has scheduled the ninth. B is the victim. Afterwards A runs, the queue is B, C, D, B's blocks
are free, and the step computes nothing of B. When B is admitted again, all 9 tokens are computed. (With a
swapped B, only the ninth.)
"""

# %% exercise="10.2"
from lessons_lib.scheduling.scheduler import SchedulerOutput

from lessons_lib.scheduling.preemption import preempt_sequence

# %% [markdown]
"""
A step that preempts a sequence doesn't admit any: one admitted now would take the blocks that have just been freed, and
be the next victim.

Now the six stories, with your two functions and an audit of the pool after every step. The picture starts one step
before the first preemption: go one step further, and look at the waiting queue and the victim's blocks.
"""

# %%
yours = dict(choose_victim=last_in_rank, preempt_sequence=preempt_sequence,
             share_prefixes=False)


def under_pressure(**options):
    """The six stories in the small pool: (sequences, scheduler, recorded steps)."""
    swap_space = BlockPool(NUM_BLOCKS, BLOCK)
    swap_cache = PagedKVCache(model.config, NUM_BLOCKS, BLOCK)
    scheduler = SwappingScheduler(PrefixCache(NUM_BLOCKS, BLOCK), **LIMITS, **yours,
                                  swap_space=swap_space, **options)
    sequences = six_stories()
    return sequences, scheduler, serve_recorded(ModelRunner(model, NUM_BLOCKS, BLOCK),
                                                scheduler, sequences, swap_cache)


recomputed, scheduler, recompute_steps = under_pressure(should_swap=never_swap)
first = next(step.index for step in recompute_steps if step.preempted)
Stepper(lambda i: draw_pressure(recompute_steps[i]), count=len(recompute_steps),
        start=first - 1, still=first)

# %%
def computed_twice(sequences, steps):
    """How many more tokens were computed than necessary."""
    needed = sum(len(sequence.prompt_ids) + len(sequence.output_ids) - 1
                 for sequence in sequences)
    return sum(sum(step.counts.values()) for step in steps) - needed


def same_answers(sequences):
    return all(sequence.output_ids == expected[sequence.id] for sequence in sequences)


print(f"the same answers: {same_answers(recomputed)}; {len(recompute_steps)} steps, "
      f"compared with {len(steps)} for conservative admission")
print(f"{scheduler.num_preempted} preemptions; {computed_twice(recomputed, recompute_steps)} "
      f"tokens computed twice, on top of {computed} needed anyway")

# %% [markdown]
"""
About half as many steps as with conservative admission, and the answers match token for token.

**10.a** A's prompt has 13 tokens. Suppose that A has already streamed 20 tokens of its answer when it is preempted, and
is recomputed. How many of its tokens have then been computed twice?
"""

# %%
predict("10.a", ...)  # tokens

# %%
a = six_stories()[0]
a.output_ids = expected["A"][:20]
back = share_budget([a], budget=64)[a]
print(f"A has {a.num_tokens} known tokens, {a.num_computed_tokens} of them computed. "
      f"The step computes {back}.")
reveal("10.a", back - 1, unit="tokens")

# %% [markdown]
"""
The last of these 33 tokens is computed for the first time: it was chosen right before the preemption and hadn't been
fed to the model yet.

And if every victim is swapped? The picture shows the step that preempts F once more: look at the swap space.
"""

# %%
swapped, scheduler, swap_steps = under_pressure(should_swap=always_swap)
num_copies = sum(len(step.block_copies) for step in swap_steps)
print(f"the same answers: {same_answers(swapped)}; {len(swap_steps)} steps")
print(f"{scheduler.num_preempted} preemptions, {scheduler.num_swapped} of them swapped")
print(f"{computed_twice(swapped, swap_steps)} tokens computed twice; "
      f"{num_copies} block copies")
draw_pressure(swap_steps[first])

# %% [markdown]
"""
## When is swapping cheaper?

Recorded on a GPU, with a model of Llama 3.1's shape (8 billion parameters). "Prefill" is a step that computes the
victim's tokens and nothing else.
"""

# %%
recording = recorded_swaps()
rows = []
for one in recording.rows:
    swap_ms = 1000 * (one["swap_out_s"] + one["swap_in_s"])
    prefill_ms = 1000 * one["recompute_s"]
    rows.append([one["tokens"], f"{one['bytes'] / 1e6:,.0f}",
                 f"{2 * one['bytes'] / swap_ms / 1e6:.0f}", f"{swap_ms:.2f}",
                 f"{prefill_ms:.2f}"])
print(recording.provenance)
Table(columns=["tokens", "MB", "GB/s", "swap out and in, ms", "prefill, ms"], rows=rows,
      caption="Bringing a victim back, on a GPU")

# %% [markdown]
"""
Extrapolate the table to 0 tokens: a swap would still take about 1.5 ms, and every swapped victim pays that. A step has
such a base, too: it reads all weights. But a victim comes back in a step that runs anyway, for the other sequences, so
only what its tokens add counts.

**10.b** From about how many tokens on does swapping pay on this GPU? The victim comes back in a step that runs
anyway. Assume straight lines through the first and the last row.
"""

# %%
predict("10.b", ...)  # tokens

# %% [markdown]
"""
## Build 3: swap or recompute

**Exercise 10.3.** Write `swap_if_cheaper(recorded)`. `recorded` is a list of two or more measurements like the rows
above, the shortest first: dicts with `tokens`, `swap_out_s`, `swap_in_s` and `recompute_s`, the time of a step that
computes these tokens and nothing else. Return a function `should_swap(scheduler, victim)`: it returns True if swapping
adds less time than recomputing.

- Take all times from the straight lines through the first and the last measurement.
- Swapping copies the blocks that hold computed tokens, out and in, each block as a whole (`scheduler.pool.block_size`).
- Recomputing makes a step that runs anyway longer, by what the computed tokens add. (Known tokens that aren't computed
  yet have to be computed either way.)

Example: 1,000 and 10,000 tokens were measured. Swapping takes 11 and 20 ms in all, a prefill 52 and 70 ms. A victim
with 1,600 computed tokens, in 100 full blocks, is recomputed: swapping it takes 11.6 ms, and recomputing it makes the
step 3.2 ms longer. One with 16,000 is swapped: 26 ms, compared with 32 ms.
"""

# %% exercise="10.3"
from collections.abc import Callable

from lessons_lib.scheduling.swap_cost import swap_if_cheaper

# %% [markdown]
"""
From which length on does your function swap, on the GPU of the table?
"""

# %%
should_swap = swap_if_cheaper(list(recording.rows))
any_scheduler = SimpleNamespace(pool=BlockPool(1, BLOCK))  # only its block size counts


def choice(tokens, should_swap=should_swap):
    return should_swap(any_scheduler,
                       Sequence("A", range(tokens + 1), 1, num_computed_tokens=tokens))


def break_even(should_swap):
    return next((tokens for tokens in range(BLOCK, 8192 + 1, BLOCK)
                 if choice(tokens, should_swap)), None)


reveal("10.b", break_even(should_swap), unit="tokens", tolerance=0.5)
first, last = recording.rows[0], recording.rows[-1]
per_token = (last["recompute_s"] - first["recompute_s"]) / (last["tokens"] - first["tokens"])

# %% [markdown]
"""
### Test it

The break-even is below the shortest row of the table. So we measured again, three times, on another GPU, with shorter
victims: how much longer does a step that decodes 32 other sequences take if it also computes the victim's tokens?
"""

# %%
runs, OVERLAP = recorded_victims(), "the runs overlap"
rows, cheaper = [], {}
for same in zip(*(run.rows for run in runs)):  # one length in each run
    tokens = same[0]["tokens"]
    swap = [1000 * (one["swap_out_s"] + one["swap_in_s"]) for one in same]
    adds = [1000 * (one["beside_s"] - run.step_s) for one, run in zip(same, runs)]
    cheaper[tokens] = ("recompute" if max(adds) < min(swap)
                       else "swap" if max(swap) < min(adds) else OVERLAP)
    ranges = (f"{min(ms):.1f} to {max(ms):.1f}" for ms in (swap, adds))
    rows.append([tokens, *ranges, cheaper[tokens], "swap" if choice(tokens) else "recompute"])
print(runs[0].provenance)
Table(
    columns=["tokens", "swap out and in, ms", "prefill adds, ms", "cheaper", "your function"],
    rows=rows,
    caption="Bringing a victim back, measured again: the least and the most of three runs",
)

# %% [markdown]
"""
It's wrong for one length: it swaps the victim of 96 tokens, although recomputing it adds less time in all three runs.
From 128 to 192 tokens the runs overlap, so the table doesn't decide. But your function still has the lines of the first
GPU, through prefills of 128 and 8,192 tokens.

The next cell fits the lines to each of the three runs instead, through the measurements at two lengths. **Choose two
other lengths** from the table, so that your function makes no wrong choice in any run.
"""

# %%
SHORT, LONG = 128, 8192  # change these
for run in runs:
    by_length = {one["tokens"]: one for one in run.rows}
    fitted = swap_if_cheaper([by_length[SHORT], by_length[LONG]])
    chosen = {tokens: "swap" if choice(tokens, fitted) else "recompute" for tokens in cheaper}
    wrong = [tokens for tokens in cheaper if cheaper[tokens] not in (chosen[tokens], OVERLAP)]
    print(f"break-even: {break_even(fitted)} tokens; "
          f"the wrong choice for these lengths: {wrong}")

# %% [markdown]
"""
With 64 and 2,048, say, the function is right in each run. In a prefill of 8,192 tokens, attention to earlier tokens
makes each token more expensive; and if the two lengths are close together, noise decides the slope. So measure near
the lengths that you decide about, and more than once.

## Watermarks and thrashing

A full pool has another problem. A sequence is admitted with the last free blocks, and in the next step a running one
needs a block. The new one ranks last, so it is the victim, and its prefill was wasted. It waits, some blocks become
free, it is admitted again, and so on.

> **thrashing**: spending more and more work on restoring what was thrown out a moment ago.

There are two remedies: run fewer sequences at a time, or use lesson 09's watermark. We try them in the simulator, with
100 requests that are all present from the start, and 96 blocks of 16 tokens.
"""

# %%
requests = traffic(100, rate=1e6, prompt_median=16, answer_median=256, spread=0.6,
                   most=512, seed=10)
answer_tokens = sum(request.answer_tokens for request in requests)
needed = sum(request.prompt_tokens + request.answer_tokens - 1 for request in requests)


def in_96_blocks(cost, max_num_seqs=32, **options):
    """(scheduler, run); without a swap space, every victim is recomputed."""
    limits = dict(max_num_seqs=max_num_seqs, max_num_batched_tokens=256)
    scheduler = SwappingScheduler(PrefixCache(96, BLOCK), **yours, **limits, **options)
    return scheduler, simulate(scheduler, requests, cost, keep_steps=True)


# the base: a step that decodes 32 sequences of 1,024 tokens, longer than those here
GPU = StepCost(recording.step_s, per_token, 0)
WAYS = {"32 at a time": {}, "32, watermark 20": dict(watermark=20),
        "6 at a time": dict(max_num_seqs=6)}
ways = {name: in_96_blocks(GPU, **way) for name, way in WAYS.items()}
_, plain = ways["32 at a time"]
print(f"{needed:,} tokens are needed. A step of the GPU above takes {1000 * GPU.base:.2f} ms "
      f"with 32 sequences, and {1e6 * GPU.per_token:.1f} µs more for each token.")
prefilled = {}
for name, (scheduler, run) in ways.items():
    more, saved = run.num_steps - plain.num_steps, plain.computed_tokens - run.computed_tokens
    per_step = f", {saved / more:.0f} tokens saved for each added step" if more else ""
    print(f"{name}: {scheduler.num_preempted} preemptions, {run.num_steps:,} steps, "
          f"{run.computed_tokens - needed:,} tokens computed twice{per_step}")
    prefilled[name] = [*accumulate(sum(step.prefill.values()) for step in run.steps)]
shown = range(0, plain.num_steps, 50)
ends = ", ".join(f"{name}: {sums[shown[-1]]:,}" for name, sums in prefilled.items())
line_chart(
    shown, {name: [sums[i] for i in shown] for name, sums in prefilled.items()},
    xlabel="step", ylabel="tokens prefilled so far", title="Thrashing",
    alt=f"Prefilled tokens against steps. After {shown[-1]:,} steps: {ends}.",
)  # fmt: skip

# %% [markdown]
"""
The steeper the line, the more is recomputed. With 32 at a time, a request is preempted more than three times on
average, and almost half of all computed tokens are computed again. Both remedies prevent most of that. Their price:
blocks sit idle, so there are more steps.

**10.c** On the GPU above, one more step takes as long as computing how many more tokens? (Compare that with what each
added step saves: which of the three has the most answer tokens per second?)
"""

# %%
predict("10.c", ...)  # tokens

# %%
reveal("10.c", GPU.base / GPU.per_token, unit="tokens", tolerance=0.1)
for name, (_, run) in ways.items():
    print(f"{name}: {answer_tokens / run.seconds:,.0f} answer tokens per second")

# %% [markdown]
"""
The first, so neither remedy pays. A step reads all weights whatever it computes, and costs as much as 258 tokens. The
watermark saves 45 for each step that it adds, and running six at a time 19. A swap space helps little for the same
reason ("Further" has the numbers). vLLM's current engine always recomputes.

So a scheduler can admit requests without knowing how long their answers will be, and still finish them all.

## What is still wrong

**The same beginnings are stored again and again.** A thousand requests with the same instructions compute and store
them a thousand times.

**A recomputed victim starts from scratch**, even if its blocks haven't been overwritten yet. Lesson 11 changes that.

## Quiz
"""

# %%
quiz("10")

# %% [markdown]
"""
## References

- W. Kwon et al.: *Efficient Memory Management for Large Language Model Serving with PagedAttention*, SOSP 2023;
  sections 4.5 and 7.3.
  <https://arxiv.org/abs/2309.06180>
- vLLM: preemption. <https://docs.vllm.ai/en/latest/configuration/optimization.html>
- Hugging Face transformers: continuous batching. <https://huggingface.co/docs/transformers/main/en/continuous_batching>
"""

# %% [markdown] folded=true
"""
## Further (optional)

Nothing here counts toward the 75 minutes.
"""

# %% [markdown]
"""
### Prove it

Whatever is preempted, swapped or dropped, every request must get the answer that it would get alone, and no block may
ever be lost. We try twenty random workloads on a small random model, with your `preempt_sequence`, and audit the pool
after every step. Every pool has room for the largest sequence and at most one block more. A coin toss per workload
decides whether your `last_in_rank` or chance chooses the victims, and another whether to swap always or never.
"""

# %%
import random

from lessons_lib.batching import ragged_generate
from lessons_lib.models import VOCAB_SIZE, tiny_model
from lessons_lib.scheduling import FirstComeFirstServed, ShortestJobFirst, StrictPriority

tiny, ends = tiny_model("qwen2"), SimpleNamespace(pad_token_id=0, eos_token_id=24)


def random_run(rng):
    """Serve a random workload. Returns (its sequences, their answers when served alone, the
    scheduler)."""
    size, most, policy = rng.choice((1, 2, 4)), rng.choice((4, 6)), rng.choice(
        (FirstComeFirstServed, ShortestJobFirst, StrictPriority))
    prompts = [[rng.randrange(VOCAB_SIZE) for _ in range(rng.choice((1, 2, 9)))]
               for _ in range(6)]
    sequences = [Sequence(str(i), p, rng.choice((12, 20)), frozenset({24}), rng.random(),
                          rng.randrange(2)) for i, p in enumerate(prompts)]
    num_blocks = max(blocks_for(sequence.most_tokens, size)
                     for sequence in sequences) + rng.choice((0, 1))
    scheduler = SwappingScheduler(
        PrefixCache(num_blocks, size), share_prefixes=False, policy=policy(),
        watermark=rng.choice((0, 1)),
        max_num_seqs=most, max_num_batched_tokens=most + rng.choice((0, 5, 60)),
        swap_space=BlockPool(rng.choice((8, 60)), size),
        choose_victim=rng.choice((last_in_rank, lambda candidates,
                                  policy: rng.choice(candidates))),
        preempt_sequence=preempt_sequence, should_swap=rng.choice((always_swap, never_swap)),
    )  # fmt: skip
    alone = ragged_generate(tiny, ends, prompts,
                            max_new_tokens=[sequence.max_new_tokens for sequence in sequences],
                            max_num_seqs=1)
    serve_recorded(ModelRunner(tiny, num_blocks, size), scheduler, sequences,
                   PagedKVCache(tiny.config, 60, size))  # audits every step
    return sequences, alone, scheduler


runs = [random_run(random.Random(seed)) for seed in range(20)]
equal = [sequence.output_ids == answer for sequences, alone, _ in runs
         for sequence, answer in zip(sequences, alone)]
swaps, preemptions = (sum(getattr(scheduler, name) for *_, scheduler in runs)
                      for name in ("num_swapped", "num_preempted"))
print(f"{sum(equal)} of {len(equal)} answers are equal; {preemptions} preemptions, "
      f"{swaps} of them swapped")
print("all blocks are free at the end:",
      all(len(scheduler.pool.free_queue) == scheduler.pool.num_blocks
          for *_, scheduler in runs))

# %% [markdown]
"""
### Does a swap space help on the GPU?

The requests of "Watermarks and thrashing" again. All tokens that are computed twice take 0.6 of 24 seconds there, so
even free swaps of all victims would save only about 3%. Your `should_swap` decides for each victim:
"""

# %%
ways = {"always recompute": {}}
ways["your choice"] = dict(swap_space=BlockPool(1000, BLOCK), should_swap=should_swap)
for name, options in ways.items():
    scheduler, run = in_96_blocks(GPU, **options)
    twice = f"{run.computed_tokens - needed:,} tokens computed twice"
    swaps = f"{scheduler.num_swapped} of {scheduler.num_preempted} victims swapped"
    print(f"{name}: {swaps}; {twice}; {run.seconds:.1f} s, not counting the swaps")
swap_s = scheduler.num_swapped * (first["swap_out_s"] + first["swap_in_s"])
print(f"the swaps take about {swap_s:.1f} s more, if each is one of {first['tokens']} tokens")

# %% [markdown]
"""
Your function recomputes most victims: the last in rank has often just been admitted, and is shorter than the
break-even. The longer ones are swapped, and most of the work that was done twice goes away. But it was cheap: the run
is half a second shorter, and the swaps take more than half of that back.

### Was it right to ignore the base of a step?

The first recording also has the time of a step that decodes 32 other sequences and computes the victim's tokens too.
Compare it with the same step without the victim:
"""

# %%
rows = []
for one in recording.rows:
    swap_ms = 1000 * (one["swap_out_s"] + one["swap_in_s"])
    added_ms = 1000 * (one["beside_s"] - recording.step_s)
    times = (f"{ms:.2f}" for ms in (swap_ms, 1000 * one["recompute_s"], added_ms))
    rows.append([one["tokens"], *times, "swap" if choice(one["tokens"]) else "recompute"])
decoding = f"A step that decodes {recording.others} sequences of {recording.context:,} tokens"
Table(
    columns=["tokens", "swap, ms", "prefill alone, ms", "prefill adds, ms", "your choice"],
    rows=rows,
    caption=f"{decoding} takes {1000 * recording.step_s:.2f} ms without the victim",
)

# %% [markdown]
"""
For short victims the base matters: a prefill of 128 tokens takes 6 ms on its own, and makes a step that runs anyway
less than half of that longer. From 2,048 tokens on nothing is saved: the prefill adds as much as it takes alone. Your
choice ignores the base for all lengths, and it's the right one in all four rows.

### What production does

- **vLLM**, in `vllm/v1/core/sched/scheduler.py`: if `allocate_slots` returns None, a victim is preempted. With
  priorities it is `max(self.running, key=lambda r: (r.priority, r.arrival_time))`, without them `self.running.pop()`,
  the last one admitted. `_preempt_request` is your `preempt_sequence`. Such a step admits no request (`if not
  preempted_reqs`). vLLM's first engine could swap (`swap_space`); the current one always recomputes.
- **Hugging Face transformers** can do both, in `generation/continuous_batching/offloading_manager.py`: the cache goes
  to a buffer in CPU memory, and if that buffer is full or missing, the request is reset and computed again.
- The PagedAttention paper compares the two in section 7.3. With small blocks, swapping is slow: in every layer, a block
  has its own keys and its own values, so copying it takes many small transfers. In our recording, they are gathered
  first.
"""
