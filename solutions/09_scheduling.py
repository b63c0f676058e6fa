# %% [markdown]
"""
# 09 · Scheduling

**Every step has room for so many tokens, sequences and blocks. Who gets it?**

75 minutes · difficulty: medium · routes: serving · you need first: lessons 02 (continuous batching), 03 (blocks) and 06 (the paged row)

So far requests were served in the order in which they came, and each newcomer brought its whole prompt into the next row. In this lesson you write
the part of a server that decides what a step computes: the scheduler. And you try it on a hundred thousand requests, without a model.
"""

# %%
import inspect
import random
from dataclasses import replace
from statistics import mean, median
from time import perf_counter
from types import SimpleNamespace

import torch

from lessons_lib.batching import paged_generate, ragged_generate
from lessons_lib.checks import check, hint, predict, progress, quiz, reveal, solution
from lessons_lib.engine import ModelRunner, serve_greedily
from lessons_lib.kv_cache import BlockPool, OutOfBlocks, blocks_for
from lessons_lib.measuring import MAX_NEW_TOKENS, NAMES, PROMPTS, STORIES, ledger, median_ms
from lessons_lib.models import BadRequest, VOCAB_SIZE, load_model, tiny_model
from lessons_lib.scheduling import (
    Arrival,
    BalancedLengths,
    Deadlock,
    FirstComeFirstServed,
    Scheduler,
    Sequence,
    ShortestJobFirst,
    StepCost,
    SchedulerOutput,
    StrictPriority,
    WaitingQueue,
    bursty_arrivals,
    fit_cost,
    jain_index,
    optimistic,
    reversed_estimates,
    simulate,
    simulate_static,
    slowdowns,
    spread,
    summary,
    times_of,
    traffic,
)
from lessons_lib.viz import Stepper
from lessons_lib.viz.charts import draw_distributions, draw_waits, line_chart
from lessons_lib.viz.tables import Table
from lessons_lib.viz.timelines import draw_gantts

model, tokenizer = load_model(device="cpu")  # in float32: equal means equal to the last token
prompt_ids = {story.name: tokenizer(story.prompt).input_ids for story in STORIES}
max_tokens_each = dict(zip(NAMES, MAX_NEW_TOKENS))

# %% [markdown]
"""
## The problem: one long prompt, and everybody stops

A, C, D and E are being answered. After ten steps somebody comes with a prompt of 600 tokens; we call it L. Lesson 06 would put L's whole prompt into
the next row. The function below does that if `budget` is large, and otherwise lets no step compute more than `budget` tokens. It uses the finished
parts of this lesson; look at its loop only: plan, compute, note.
"""

# %%
long_prompt = ([token for name in NAMES for token in prompt_ids[name]] * 5)[:600]


def with_a_newcomer(budget):
    """The tokens that each step computed, and the seconds that it took."""
    runner, scheduler = ModelRunner(model, 80, 16), Scheduler(BlockPool(80, 16), max_num_batched_tokens=budget)
    for name in "ACDE":
        scheduler.add(Sequence(name, prompt_ids[name], max_new_tokens=40))
    tokens, seconds = [], []
    while scheduler.has_unfinished():
        if len(tokens) == 10:
            scheduler.add(Sequence("L", long_prompt, max_new_tokens=5))
        started = perf_counter()
        scheduler_output = scheduler.schedule()
        scheduler.update(scheduler_output, runner.forward(scheduler_output).argmax(dim=-1).tolist())
        tokens.append(scheduler_output.num_tokens)
        seconds.append(perf_counter() - started)
    return tokens, seconds


runs = {"whole prompts": with_a_newcomer(1024), "at most 32 tokens": with_a_newcomer(32)}
for name, (tokens, _) in runs.items():
    print(f"{name}: {len(tokens)} steps; tokens in each:\n  {' '.join(map(str, tokens))}")

# %% tags=["measured"]
shown = {name: [1000 * second for second in seconds[:40]] for name, (_, seconds) in runs.items()}
told = "; ".join(f"{name}: half of the steps take less than {median(ms):.0f} ms, the longest {max(ms):.0f} ms" for name, ms in shown.items())
print(told)
line_chart(range(1, 41), shown, xlabel="step", ylabel="ms, logarithmic axis", log="y", alt=f"Time of each step. {told}.")

# %% [markdown]
"""
With whole prompts, the step with L's prompt stands out. In it A, C, D and E each get one token, as in every step, but they wait for it as long as
the prompt takes. Whoever reads along sees the text stop. With a limit, the prompt is spread over many steps, each a little longer than a plain one.

L pays for that. With whole prompts its first token comes at the end of step 11. With the limit it comes some twenty steps later.

> **inter-token latency**: the time between two tokens of one answer, ITL for short. It is the length of a step, if the sequence gets a token in each.

> **token budget**: the most tokens that one step computes, for all sequences together. vLLM calls it `max_num_batched_tokens`.

Lesson 02 had chunks too, of one prompt at a time, in a pass of their own. Here chunks and decodes share one row, and one limit.

## Predict

In the middle of a busy moment, the six stories stand like this. E has lost its cache, for reasons that lesson 10 will explain: 20 tokens of its
answer are known, and nothing is computed.
"""

# %%
def six_stories():
    """Six sequences: (name, tokens of the answer that are known, tokens computed)."""
    state = [("A", 5, 17), ("B", 0, 32), ("C", 2, 4), ("D", 0, 0), ("E", 20, 0), ("F", 0, 0)]
    return [Sequence(name, prompt_ids[name], max_tokens_each[name], output_ids=[0] * answer, num_computed_tokens=done) for name, answer, done in state]


Table(
    columns=["sequence", "prompt", "answer so far", "known", "computed", "known − computed"],
    rows=[
        [s.id, len(s.prompt_ids), len(s.output_ids), s.num_tokens, s.num_computed_tokens, s.num_tokens - s.num_computed_tokens] for s in six_stories()
    ],
    caption="All six run, in this order of admission",
)

# %%
predict("09.a", ...)  # The budget is 64 tokens. Decodes come first, then the others in order. How many tokens of E does this step compute?

# %% [markdown]
"""
The second question is about memory: a pool of 40 blocks of 16 tokens, and sixty requests with caps of 96 tokens. At most 16 run at a time, with a
budget of 64 tokens. A newcomer is let in only if the pool would do even if everybody ran to the cap.
"""

# %%
sixty = traffic(60, rate=1000, prompt_median=24, answer_median=16, spread=0.8, most=96, seed=38)
for what in ("prompt_tokens", "answer_tokens"):
    lengths = [getattr(request, what) for request in sixty]
    print(f"{what}: {min(lengths)} to {max(lengths)}, on average {mean(lengths):.0f}")

# %%
predict("09.b", ...)  # What share of the pool is in use, averaged over the steps? In per cent.

# %% [markdown]
"""
## The idea: two numbers

Lesson 02 gave a request a state: waiting, prefilling, decoding. Look at the last column of the table instead. A knows 18 tokens, and the keys and
values of 17 are computed: it **wants** one token. B is in the middle of its prompt and wants 30. D wants its whole prompt. E wants 25: its prompt and
an answer that has to be computed again. There is no difference in kind. Prefill, a chunk, decode, and computing again are all this:

> a step gives each running sequence some of the tokens that it knows and has not computed.

When a sequence catches up, so that all it knows is computed, the logits after its last token give the next one. Then it knows one more.

A `Sequence` in the library is no more than that. These attributes matter here:

| attribute | what it is |
|---|---|
| `prompt_ids`, `output_ids` | tokens of the prompt, and of the answer so far |
| `num_tokens` | known: both together |
| `num_computed_tokens` | computed: so many of them, from the first on, are in the cache |
| `blocks` | the blocks that it holds |
| `max_new_tokens` | its cap |
| `most_tokens` | tokens that it may ever have in the cache: prompt + cap − 1, as the last token is never computed |
| `arrival_time`, `tier`, `expected_tokens`, `is_interactive` | for policies, later in this lesson |

## Build 1: the budget shared out

Who gets how much? A decode takes one token of the budget. A step without that token ends its answer a step later, and its place and its blocks
are free a step later. So those who want **one** token come first. What is left goes to the others.

**Your task: `share_budget(running, budget)`.** `running` is a list of sequences, in the order of admission. Return a dict: sequence → how many of
its tokens the next step computes.

1. Each sequence that wants exactly one token gets it, in order, while there is budget. (Whether that is a decode, or the last token of a prompt,
   makes no difference.)
2. Each of the others, in order, gets as much as it wants, or what is left, whichever is smaller.

Who gets nothing is not in the dict. The sequences and the list stay as they are: this is only a plan. The budget may be 0.

Example: A wants 1, D 21, C 1, F 40, in this order. With a budget of 32, A and C get 1 each, D gets 21, and F a chunk of 9. With a budget of 23 F gets
nothing, and with a budget of 1 only A gets a token.
"""

# %% exercise="09.1"
from lessons_lib.scheduling.scheduler import share_budget

# %% [markdown]
"""
Your function on the six stories, for several budgets:
"""

# %%
budgets = (4, 16, 32, 64, 128)
shared = {budget: {s.id: count for s, count in share_budget(six_stories(), budget).items()} for budget in budgets}
Table(
    columns=["sequence", "wants", *(f"budget {budget}" for budget in budgets)],
    rows=[[s.id, s.num_tokens - s.num_computed_tokens, *(shared[budget].get(s.id) for budget in budgets)] for s in six_stories()],
    caption="Tokens of each sequence in the next step",
)

# %%
reveal("09.a", shared[64]["E"], unit="tokens")

# %% [markdown]
"""
With a budget of 32, D, E and F stand still in this step, and B's chunk takes what A and C leave. The next steps finish B, then D, and so on: the
oldest prompt is done first, so that its answer can begin.

## Plan, compute, note

A step has three parts, and the scheduler does the first and the last:

```
scheduler.schedule()  ──▶  SchedulerOutput  ──▶  runner.forward(plan)  ──▶  logits  ──▶  scheduler.update(plan, tokens)
```

A `SchedulerOutput` holds three things: `counts`, the dict that you know; `admitted`, the sequences that run from this step on; and `stalled`, the running
sequences for which no block was free. `scheduler_output.num_tokens` is the sum of the counts.

The runner is lesson 06's pass, and decides nothing. It packs the tokens, finds their slots, and computes one row:
"""

# %%
print(inspect.getsource(ModelRunner.forward))
print(inspect.getsource(serve_greedily))

# %% [markdown]
"""
Logits come back for every sequence of the plan. In the middle of a prompt they say nothing that is not known, and `update` ignores them.

## Who may come in

Three limits stand before a newcomer: a place (`max_num_seqs`), some budget, and memory.

> **admission control**: the rule by which a server lets a waiting request in, or keeps it waiting.

The first two are easy to tell. Memory is not: nobody knows how long an answer will be. There are two ways to look at it.

**Conservative.** Promise every sequence the blocks that it may need at most. Let a newcomer in if all promises together can be kept. Lesson 06 did
that.

**Optimistic.** Look at what is free now. Let a newcomer in if the tokens that it knows now fit, and hope that others leave before it grows.

## Build 2: admission by promise

**Your task: `conservative(scheduler, sequence)`.** It answers True or False: may `sequence` come in? It changes nothing.

Take the sequences of the list `scheduler.running`, and the newcomer, which is not in that list. Each is promised the blocks for its `most_tokens`.
`blocks_for(tokens, block_size)` rounds up to whole blocks. The answer is True if the promises together are not more than the blocks of the pool,
free or not. The pool is `scheduler.pool`; it has `block_size` and `num_blocks`.

Example with blocks of 16: A (13 tokens of prompt, cap 30) may have 42 tokens, so 3 blocks. B (62, cap 60) may have 121, so 8 blocks. While both
run, may C (3, cap 100) come in, which may have 102 tokens, so 7 blocks? In a pool of 18 blocks yes, in one of 17 no. How many blocks A and B hold
at present does not matter.
"""

# %% exercise="09.2"
from lessons_lib.kv_cache.block_pool import blocks_for

from lessons_lib.scheduling.scheduler import conservative

# %% [markdown]
"""
The optimistic rule is given. `missing_blocks` is how many blocks the newcomer lacks for the tokens it knows.

> **watermark**: a number of blocks that admission leaves free, for those who run and will need one soon.
"""

# %%
print(inspect.getsource(optimistic))

# %% [markdown]
"""
Try both. This needs many requests, but no model: what a scheduler does depends on lengths, not on words. So a simulator goes through the loop above
with the *same* scheduler, and does everything but the forward pass. For now its clock counts steps. An `Arrival` is a request for the simulator:
besides what a server knows, it says how long the answer will be, which only the simulator looks at. One of the rules ends in a deadlock; that word,
and what a stall is, come right after the table.
"""

# %%
STEPS = StepCost(base=1, per_token=0, per_context_token=0)  # every step takes 1


def under(admission, watermark=0, num_blocks=40):
    """Steps, sequences that run, share of the pool in use (both averages over the steps), and steps in which somebody stalled."""
    limits = dict(max_num_seqs=16, max_num_batched_tokens=64)
    try:
        run = simulate(Scheduler(BlockPool(num_blocks, 16), admission=admission, watermark=watermark, **limits), sixty, STEPS, keep_steps=True)
    except Deadlock:
        return ["deadlock", None, None, None]
    running = mean(len(step.prefill) + len(step.decode) + len(step.stalled) for step in run.steps)
    used = mean(1 - step.free_blocks / num_blocks for step in run.steps)
    return [run.num_steps, running, f"{used:.0%}", sum(bool(step.stalled) for step in run.steps)]


rules = {"conservative": (conservative,), "optimistic": (optimistic,)} | {f"optimistic, watermark {n}": (optimistic, n) for n in (2, 4, 8)}
outcome = {name: under(*rule) for name, rule in rules.items()}
Table(
    columns=["admission", "steps", "running", "pool in use", "steps with a stall"],
    rows=[[name, *row] for name, row in outcome.items()],
    caption="Sixty requests, 40 blocks of 16, at most 16 sequences",
)

# %%
reveal("09.b", float(outcome["conservative"][2].rstrip("%")), unit="%")

# %% [markdown]
"""
The promise is safe, and it leaves most of the pool lying idle: the answers end long before their caps. Optimistic admission with a watermark runs
about twice as many at a time, and needs about half as many steps.

It has its price. A running sequence whose last block is full needs another one, and none may be free. It **stalls**: no token for it in this step. If
somebody else leaves, it goes on. If everybody stalls, nobody will ever leave. That is how the run without a watermark ended, the row of dashes:

> **deadlock**: each of several waits for something that another of them holds, so none of them will ever go on.
"""

# %%
try:
    simulate(Scheduler(BlockPool(40, 16), admission=optimistic, max_num_seqs=16, max_num_batched_tokens=64), sixty, STEPS)
except Deadlock as error:
    print("Deadlock:", error)

# %% [markdown]
"""
A reserve makes that unlikely, and each block of it is a block that lies idle. No reserve makes it impossible. For that a scheduler must be able to
take blocks back from somebody who runs; that is lesson 10. Until then `conservative` is the default.

## Build 3: the scheduler

Now the parts come together. Most of the class is given. Read `schedule`: it serves those who run, then those who wait, and refuses to go on
for ever where nobody can move. (`new_output = SchedulerOutput` is the kind of scheduler_output that `schedule` makes; lesson 10 puts a richer one in its place.)

**Your task: `schedule_waiting` and `give`.**

`schedule_waiting(scheduler_output)` lets newcomers in. If `scheduler_output.stalled` holds anybody, it lets nobody in: a newcomer would take the blocks that those who stall
wait for. Otherwise begin with what those who run have left of the budget: `self.max_num_batched_tokens - scheduler_output.num_tokens`. As long as somebody waits,
budget is left, and fewer than `self.max_num_seqs` run:

1. `self.waiting.next(self.running)` says who is next. It stays in the queue for now. (`self.waiting` is a queue in the order of a policy;
   `len(self.waiting)` is how many wait, so `while self.waiting` does what one expects.)
2. Ask the rule of admission: `self.admission(self, sequence)`. If it says no, stop. Nobody behind may pass, even if small enough: otherwise small
   ones would keep a large one waiting for ever.
3. `self.admit(scheduler_output, sequence)` takes it out of the queue, and into `running` and `scheduler_output.admitted`.
4. It gets the tokens that it wants (known − computed: it may have run before), or what is left of the budget, whichever is smaller:
   `self.give(scheduler_output, sequence, count)`. Take them off the budget.

`give(scheduler_output, sequence, count)` puts `count` tokens of a sequence into the plan, if there are blocks for them. After the step,
`num_computed_tokens + count` tokens will be in the cache; `update` counts them then. Some blocks the sequence has already. If more are missing than
are free (`self.pool.free_queue`), it **stalls**: append it to `scheduler_output.stalled`; it gets no token and no block. Otherwise take what is missing with
`self.pool.allocate(missing)`, which returns a list, add it to `sequence.blocks`, and set `scheduler_output.num_scheduled_tokens[sequence]`.

Example: blocks of 4, budget 8, D waits with a prompt of 21. The first step admits D, gives it 8 tokens and 2 blocks. The next one gives it 8 more
tokens, and 2 more blocks. The third gives it 5 tokens and 2 blocks, and D has its first token of the answer.
"""

# %% exercise="09.3" given="__init__ add has_unfinished schedule schedule_running missing_blocks admit update computed remove release"
from collections.abc import Callable, Iterable
from typing import Generic

from lessons_lib.scheduling.policies import Policy
from lessons_lib.scheduling.scheduler import Admission, OutputT

from lessons_lib.scheduling.scheduler import Scheduler

# %% [markdown]
"""
Your scheduler plans for C, D and F, with a budget of 16 and two places. Read in each step who takes what of the 16 tokens:
"""

# %%
scheduler = Scheduler(BlockPool(16, 16), max_num_seqs=2, max_num_batched_tokens=16)
for name in "CDF":
    scheduler.add(Sequence(name, prompt_ids[name], max_new_tokens=3))
number = 0
while scheduler.has_unfinished():
    scheduler_output = scheduler.schedule()
    finished = scheduler.update(scheduler_output, [0] * len(scheduler_output.num_scheduled_tokens))
    number += 1
    told = ", ".join(f"{s.id} {count}" for s, count in scheduler_output.num_scheduled_tokens.items())
    print(f"step {number}: {told:<12} came in: {' '.join(s.id for s in scheduler_output.admitted) or '–':<4} left: {' '.join(s.id for s in finished) or '–'}")

# %% [markdown]
"""
And what could never run is refused when it comes, not when it is stuck:
"""

# %%
try:
    scheduler.add(Sequence("B", prompt_ids["B"], max_new_tokens=500))
except OutOfBlocks as error:
    print("OutOfBlocks:", error)

# %% [markdown]
"""
## Time

Steps are not seconds. What does a step cost? We measure passes of the bundled model: few and many tokens, with short and long contexts. The tokens
that a sequence attends to are counted for each sequence once, all that it has in the cache after the step.
"""

# %% tags=["measured"]
def a_pass(count, new, cached):
    """A forward pass of `count` sequences with so many new tokens each, and so many in the cache; its tokens, and those attended to."""
    each = blocks_for(cached + new, 16)
    runner = ModelRunner(model, count * each, 16)
    scheduler_output = SchedulerOutput()
    for index in range(count):
        sequence = Sequence(str(index), [5] * (cached + new), 1, num_computed_tokens=cached, blocks=list(range(index * each, (index + 1) * each)))
        scheduler_output.num_scheduled_tokens[sequence] = new
    return lambda: runner.forward(scheduler_output), scheduler_output.num_tokens, count * (cached + new)


shapes = [(1, 1, 15), (4, 1, 31), (8, 1, 63), (16, 1, 63), (16, 1, 255), (1, 32, 0), (1, 64, 0), (1, 128, 0), (4, 32, 32), (1, 64, 192)]
passes, tokens, contexts = zip(*(a_pass(*shape) for shape in shapes))
ms = median_ms(passes, repeat=5)
line = fit_cost(tokens, contexts, ms)
print(f"a step takes about {line.base:.1f} ms + {line.per_token:.3f} ms a token + {line.per_context_token:.4f} ms a token attended to")
Table(
    columns=["sequences", "new tokens each", "in the cache", "measured, ms", "by the line, ms"],
    rows=[[*shape, time, line.seconds(*counts)] for shape, time, *counts in zip(shapes, ms, tokens, contexts)],
)

# %% [markdown]
"""
Why a line? A step has work that is done once, whatever is in it: reading the weights, starting the operators. It has work for each token: the
matrix products. And attention looks at each token in the cache. The fit finds the three numbers for which the squared errors add up to the least.
It is a rough model. On a busy machine, or with so few measurements, one of the numbers may even come out below zero.

From here on we leave your machine. A fixed line makes the numbers of the simulator the same everywhere: 5 ms to begin a step, 20 µs for each token,
and 0.2 µs for each token attended to. That is in the range of a model with some billions of weights on one GPU; the numbers are round, not
measured. What follows compares policies with each other under this line.
"""

# %%
COST = StepCost(base=0.005, per_token=20e-6, per_context_token=0.2e-6)
print(f"32 decodes with 100 tokens each: {1000 * COST.seconds(32, 3200):.2f} ms")
print(f"a prompt of 600 tokens at once: {1000 * COST.seconds(600, 600):.2f} ms")

# %% [markdown]
"""
With a clock, the usual measures can be told. All are computed for each request.

> **time to first token**: from arrival to the first token of the answer; TTFT for short.

> **time per output token**: the average time of each further token; TPOT for short.

Queue time and latency are those of lesson 02.

## Policies

When a place falls free, who gets it?

> **policy**: a rule that puts those who wait in an order.

Here a policy is a class with one method, `rank(sequence)`. The smallest rank goes first. Of two with the same rank, the one that was added to the
queue first goes first.

Eight requests, two places, a budget of 32. The tier says what a customer pays: tier 0 is the best. The last column says whether anybody reads the
answer as it grows. E is a job of a customer who pays much, and nobody waits at a screen for it; F is the other way round.
"""

# %%
PEOPLE = [  # name, arrival in ms, prompt tokens, answer tokens, tier, does anybody read along?
    ("A", 0, 13, 60, 1, False), ("B", 0, 62, 50, 1, False), ("C", 20, 3, 100, 1, False), ("D", 30, 21, 80, 1, False),
    ("E", 40, 5, 8, 0, False), ("F", 50, 40, 12, 1, True), ("G", 60, 10, 5, 0, True), ("H", 300, 8, 10, 0, True),
]  # fmt: skip
eight = [
    Arrival(name, ms / 1000, prompt, answer, max_new_tokens=128, tier=tier, expected_tokens=answer, is_interactive=reads)
    for name, ms, prompt, answer, tier, reads in PEOPLE
]


def served(policy, requests=eight, places=2):
    scheduler = Scheduler(BlockPool(64, 16), max_num_seqs=places, max_num_batched_tokens=32, policy=policy)
    return simulate(scheduler, requests, COST, keep_steps=True)


Table(
    columns=["request", "comes at, ms", "prompt", "answer", "tier", "somebody reads along"],
    rows=[[*person, "yes" if reads else "no"] for *person, reads in PEOPLE],
)

# %%
for policy in (FirstComeFirstServed, ShortestJobFirst, StrictPriority):
    print(f"{policy.name}:\n{inspect.getsource(policy.rank)}")

# %% [markdown]
"""
**First come, first served** asks for the time of arrival only. **Shortest job first** asks for the length of the answer. Nobody knows it, so
`expected_tokens` is a guess: of a small model, or from what such requests took before. Here the guesses are right. **Strict priority** asks for the
tier. None of the three asks who reads along.

Step through it. Beside each name stand its tier and, if somebody reads along, a dot. What happens to E, F and G in the first chart?
"""

# %%
first_three = {policy.name: served(policy()) for policy in (FirstComeFirstServed, ShortestJobFirst, StrictPriority)}
end = max(run.seconds for run in first_three.values())
moments = [end * part / 24 for part in range(1, 25)]
Stepper(lambda i: draw_gantts(first_three, moments[i], requests=eight), count=len(moments), label="moment", start=6)

# %%
def in_ms(seconds):
    return f"{1000 * seconds:,.0f}"


def row_of(name, run):
    return [name, in_ms(mean(times_of(run, "latency"))), *(in_ms(run.times[one].queue_time) for one in "CDEFGH")]


WAITS = ["policy", "mean latency, ms", *(f"{one} waits, ms" for one in "CDEFGH")]
Table(columns=WAITS, rows=[row_of(name, run) for name, run in first_three.items()])

# %% [markdown]
"""
First come, first served has the disease of lesson 01: C and D, with long answers, take both places, and E, F, G and H, all short, stand behind them.
Shortest job first lets the short ones through. (A waits a moment at the start: B came with it, and its answer is shorter. B's prompt of 62 takes all
32 tokens of the first step, so no budget is left for A.) C and D pay: C waits half as long again, and D almost a quarter longer. Each of the other
four gains more than three times what C loses, and the mean falls much.

No other order has a smaller mean wait, if one sequence runs at a time and all are there at the start. With several places and arrivals in between it
is only a good rule.

Strict priority looks after E, G and H. F, which is short too, but of tier 1, comes last, though somebody reads its answer as it grows. E is the first
to come in after A and B, though nobody reads along.

### Guesses that are wrong

Shortest job first needs to know what nobody knows. The worst case: the longest answer is expected to be the shortest.
"""

# %%
guesses = {"right guesses": eight, "reversed guesses": reversed_estimates(eight)}
rows = [row_of(f"shortest job first, {name}", served(ShortestJobFirst(), requests)) for name, requests in guesses.items()]
Table(columns=WAITS, rows=[*rows, row_of("first come, first served", first_three["first come, first served"])])

# %% [markdown]
"""
### Who never comes in

Worse than a bad mean is somebody who is never served.

> **starvation**: a request waits without end, because others keep being served before it.

One place. Short requests of tier 0 come one after the other, a little faster than they can be served. Near the beginning comes one longer request
of tier 1; we call it the odd one. The more short ones come, the longer the stream.
"""

# %%
GAP = 0.038  # seconds from one short request to the next


def stream(count, interactive="nobody", odd_tier=1):
    """An odd one near the beginning of a stream of short requests. Interactive are "the odd one", "the others", or nobody."""
    is_read = interactive == "the others"
    short = [Arrival(f"short {n}", GAP * n, 8, 8, 128, tier=0, expected_tokens=8, is_interactive=is_read) for n in range(count)]
    odd = Arrival("odd", 0.02, 13, 60, 128, tier=odd_tier, expected_tokens=60, is_interactive=interactive == "the odd one")
    return [short[0], odd, *short[1:]]


def stream_row(name, policy):
    """Seconds that the odd one waits in three streams, and the means of the others' queue times."""
    runs = [served(policy, stream(count), places=1).times for count in (25, 50, 100)]
    waits = [times["odd"].queue_time for times in runs]
    others = [mean(own.queue_time for who, own in times.items() if who != "odd") for times in runs]
    return [name, *(f"{seconds:.2f}" for seconds in (*waits, *others))]


def stream_table(rows):
    columns = [f"{who} {count}" for who in ("odd, of", "others, of") for count in (25, 50, 100)]
    caption = "Seconds in the queue: the odd one, and the others on average, in streams of 25, 50 and 100"
    return Table(columns=["policy", *columns], rows=rows, caption=caption)


stream_table([stream_row(policy.name, policy()) for policy in (FirstComeFirstServed, ShortestJobFirst, StrictPriority)])

# %% [markdown]
"""
Under the last two, the odd one waits until the stream is over, however long that takes. It is not forgotten. There is always somebody better.

## Build 4: a priority that ages

The way out is old: let waiting count.

> **ageing**: raising the priority of a request the longer it waits, so that everybody is served at some time.

Say that being one tier lower is worth `patience` seconds of waiting. With a patience of 10 s, a request of tier 1 that has waited for 10 seconds
stands as high as one of tier 0 that comes now.

A tier says what a customer pays. It does not say whether somebody sits at a screen and waits.

> **interactive request**: one whose answer somebody reads as it grows.

Who reads along notices every wait. Of a job that runs overnight, nobody notices when it begins. So an interactive request gets a head start: it
stands as if it had waited for `head_start` seconds already when it comes. Now all that this policy looks at is in one unit, seconds of waiting: the arrival, the
tier, and the reader. The head start counts in the queue only. Once they run, all decodes are treated alike: `share_budget` does not ask who reads.

Must the queue be sorted again as time goes by? No. Everybody who waits gets older by the same, so the order of two requests never changes. It is
enough to rank a request once, as if it had come at another time: `patience` seconds later for each tier that it is below the best, and `head_start`
seconds earlier if it is interactive.

**Your task: `rank` of `PriorityWithAgeing`.** `self.patience` and `self.head_start` are numbers of seconds, 0 or more. Return the rank of a sequence
from its `arrival_time` (in seconds), `tier` (0 is the best, then 1, 2, ...) and `is_interactive` (True or False). The smallest rank goes first.

Example with patience 10 and head start 4. P is the night job of a customer who pays: it comes at 100 s in tier 0, and ranks as 100. Q of tier 1 is
interactive, and came at 92 s: it ranks as 92 + 10 − 4 = 98, and goes before P. Without a reader it would rank as 102, and go after P. R is like Q,
but came at 97 s, so it ranks as 103 and goes after P. S of tier 2, interactive, came at 83 s and ranks as 83 + 20 − 4 = 99. T of tier 0,
interactive, came at 2 s and ranks as 2 − 4 = −2: a rank may be negative. With 0 for both numbers only the arrival counts.
"""

# %% exercise="09.4" given="__init__"
from lessons_lib.scheduling.policies import PriorityWithAgeing

# %% [markdown]
"""
First the tiers alone. In the stream, nobody reads along for now, and the head start is 0:
"""

# %%
stream_table([stream_row(f"ageing, patience {patience} s", PriorityWithAgeing(patience)) for patience in (0, 0.1, 0.5, 5)])

# %% [markdown]
"""
With a short patience, the odd one waits for about as long as the patience says, however long the stream is. What was an accident of the traffic is
now a number, and somebody has to choose it. With 0 it is first come, first served. If it is longer than the stream, as 5 s are here, it is strict
priority.

Now with readers, a patience of 0.5 s and a head start of 0.2 s. In the first two rows all are of tier 0, the odd one too:
"""

# %%
reading = PriorityWithAgeing(patience=0.5, head_start=0.2)


def odd_row(odd_tier, interactive):
    """Seconds that the odd one waits in three streams."""
    runs = [served(reading, stream(count, interactive, odd_tier), places=1).times for count in (25, 50, 100)]
    return [odd_tier, interactive, *(f"{times['odd'].queue_time:.2f}" for times in runs)]


one_short = served(reading, stream(1), places=1).times["short 0"]
print(f"patience + head start: {reading.patience + reading.head_start:.1f} s")
print(f"A short one comes every {1000 * GAP:.0f} ms, and takes about {1000 * (one_short.finished - one_short.admitted):.0f} ms.")
Table(
    columns=["tier of the odd one", "interactive", *(f"odd waits, of {count}" for count in (25, 50, 100))],
    rows=[odd_row(0, "nobody"), odd_row(0, "the others"), *(odd_row(1, who) for who in ("nobody", "the odd one", "the others"))],
    caption="Seconds that the odd one waits in streams of 25, 50 and 100; the others are of tier 0",
)

# %% [markdown]
"""
In its own tier, a job gives way only to readers who come within one head start after it. So in the second row the odd one waits 0.2 s longer than in
the first, and no longer than that in a longer stream: ageing puts a bound on what readers may do, too.

Each lower tier costs one patience. To readers of the tier above, the odd one gives way for both together, 0.7 s, as the last row shows. If it is
interactive itself, and the others are not, it waits 0.2 s less than it would otherwise.

These are bounds on the order. How many seconds they make depends on how fast those in front are served. Here the short ones are served about as fast
as they come, so one second of arrivals takes about one second to serve.

### Balanced lengths

One more rule, of another kind. If all that run are long, every step reads a large cache; if all are short, memory lies idle. `BalancedLengths`
looks at the first few who wait, and takes the one that brings the mean length of those who run nearest to a target. So it needs to see who runs,
and has a method `choose` besides `rank`:
"""

# %%
print(inspect.getsource(BalancedLengths.choose))
with_ageing = {
    "ageing 0.2 s": served(PriorityWithAgeing(0.2)),
    "ageing 0.2 s, head start 0.3 s": served(PriorityWithAgeing(0.2, head_start=0.3)),
}
balanced = {"balanced lengths, target 50": served(BalancedLengths(target=50))}

# %% [markdown]
"""
All six on the same time scale. Ageing is there twice, without a head start and with one:
"""

# %%
six = first_three | with_ageing | balanced
draw_gantts(six, requests=eight)

# %%
Table(columns=WAITS, rows=[row_of(name, run) for name, run in six.items()])

# %% [markdown]
"""
With a patience of 0.2 s, E and G pass the tier 1 that came before them. When H comes, C, D and F have waited longer than that, and H goes last.

With a head start of 0.3 s, F, G and H, which are interactive, come in before C and D. The head start is longer than the patience, so F of tier 1 even
goes before E of tier 0, the job that came a moment before it. C, D and E pay for that with a longer wait. The mean falls, because those with
readers happen to be short here.

In this trace the mean of the balanced order is near that of shortest job first, by luck of the lengths: short requests bring the mean down to the
target while long ones run. Now the stream:
"""

# %%
stream_table([stream_row(f"balanced lengths, target {target}", BalancedLengths(target)) for target in (16, 60)])

# %% [markdown]
"""
It fails on whoever is unlike the others. With a target of 16, which is the length of the short ones, the odd one never suits while a short one
waits. With a target nearer to its own length it goes first.

## Prove it

A scheduler decides *when* a token is computed, and must never change *which*. The oracle is lesson 05's row, one whole prompt after the other.
First a small model with random weights: every budget from 4 to 64, with any number of places up to 4, and a token that plays the end token.
"""

# %%
END = 24
plain = SimpleNamespace(pad_token_id=0, eos_token_id=END)
tiny = tiny_model("llama")
rng = random.Random(9)
tiny_prompts = [[rng.randrange(VOCAB_SIZE) for _ in range(length)] for length in (13, 30, 3, 21, 1)]
tiny_caps = (4, 5, 6, 3, 1)
expected = ragged_generate(tiny, plain, tiny_prompts, max_new_tokens=tiny_caps)


def answers(one, prompts, limits, ends, num_blocks, **settings):
    """Served by your scheduler."""
    sequences = [Sequence(str(n), ids, max_tokens, frozenset(ends)) for n, (ids, max_tokens) in enumerate(zip(prompts, limits))]
    scheduler = Scheduler(BlockPool(num_blocks, 16), **settings)
    return serve_greedily(ModelRunner(one, num_blocks, 16), scheduler, sequences), scheduler


same = freed = 0
for budget in range(4, 65):
    outputs, used = answers(tiny, tiny_prompts, tiny_caps, [END], 8, max_num_seqs=rng.randint(1, 4), max_num_batched_tokens=budget)
    same += outputs == expected
    freed += len(used.pool.free_queue) == 8
print(f"equal answers with {same} of 61 budgets; all blocks free at the end with {freed}")

# %% [markdown]
"""
Then the six stories with the bundled model, against lesson 06:
"""

# %%
paged = paged_generate(model, tokenizer, PROMPTS, max_new_tokens=MAX_NEW_TOKENS, names=NAMES, max_num_seqs=4)
ids = list(prompt_ids.values())
outputs, _ = answers(model, ids, MAX_NEW_TOKENS, [tokenizer.eos_token_id], 60, max_num_seqs=4, max_num_batched_tokens=16)
print(f"budget 16: {sum(a == b for a, b in zip(outputs, paged))} of 6 answers equal")

# %% [markdown]
"""
## Measure: a hundred thousand requests

Small examples show how a policy works. What it is worth shows under load. Requests come at random, 480 a second on average (the gaps between them
are exponentially distributed: a *Poisson* process). Most are short and a few very long, as with real ones. One in five is of tier 0. There are 32
places, and a budget of 256. The pool has blocks for 32 sequences at their caps of 512, so memory keeps nobody waiting here, and the cheaper rule of
admission will do.
"""

# %%
LOAD = dict(prompt_median=24, answer_median=4)
many = traffic(100_000, rate=480, **LOAD)
for what in ("prompt_tokens", "answer_tokens"):
    lengths = sorted(getattr(request, what) for request in many)
    print(f"{what}: half up to {lengths[50_000]}, mean {mean(lengths):.1f}, one in a hundred {lengths[99_000]} or more, longest {lengths[-1]}")

# %% [markdown]
"""
Most of these requests need a handful of steps, of some milliseconds each. Under shortest job first, how long does the one wait that waits longest?
"""

# %%
predict("09.c", ...)  # The longest time in the queue under shortest job first, in seconds

# %%
def at_large(policy, requests=many):
    scheduler = Scheduler(BlockPool(2048, 16), max_num_seqs=32, max_num_batched_tokens=256, policy=policy, admission=optimistic)
    return simulate(scheduler, requests, COST)


policies = (FirstComeFirstServed(), ShortestJobFirst(), StrictPriority(), PriorityWithAgeing(0.5), BalancedLengths(target=50))
large = {policy.name: at_large(policy) for policy in policies}
large["static, waves of 32"] = simulate_static(many, COST, batch_size=32)

# %% [markdown]
"""
A mean hides those who fared badly. So beside it stands the 99th percentile.

> **99th percentile**: the number that 99 of 100 values do not exceed; p99 for short. One request in a hundred fares worse.

And is the time fairly shared? Someone who asks for two words and waits ten seconds is worse off than someone who asks for a long story and waits as
long. We compare each request's latency with what it would have been on an empty machine: its *slowdown*.

> **Jain's index**: a measure of how even a distribution is: (sum of the values)² / (count × sum of their squares). It is 1 if all are alike, and
> 1 / count if one has everything.
"""

# %%
def two(spread):
    return f"{spread.mean:,.2f} / {spread.p99:,.2f}"


def row_at_large(name, run, requests=many):
    found = summary(run)
    tpot = found["tpot"]
    return [
        name, two(found["ttft"]), f"{1000 * tpot.mean:.1f} / {1000 * tpot.p99:.1f}", two(found["latency"]), two(found["queue_time"]),
        f"{found['queue_time'].worst:,.1f}", f"{jain_index(slowdowns(run, requests, COST)):.2f}",
    ]  # fmt: skip


AT_LARGE = ["policy", "TTFT, s", "TPOT, ms", "latency, s", "queue time, s", "longest in the queue, s", "Jain's index"]
rows = [row_at_large(name, run) for name, run in large.items()]
Table(columns=AT_LARGE, rows=rows, caption="Mean / p99 of 100,000 requests; Jain's index of the slowdowns")

# %%
reveal("09.c", summary(large["shortest job first"])["queue_time"].worst, unit="s")

# %% [markdown]
"""
The whole distributions, without static batching, which would press the others to the edge. There are four measures to step through.
"""

# %%
KINDS = {"ttft": "time to first token", "tpot": "time per output token", "latency": "latency", "queue_time": "queue time"}
KIND = list(KINDS)
Stepper(
    lambda i: draw_distributions({policy.name: times_of(large[policy.name], KIND[i]) for policy in policies}, xlabel=KINDS[KIND[i]]),
    count=len(KIND), label="measure", name=lambda i: KINDS[KIND[i]], still=0,
)  # fmt: skip

# %% [markdown]
"""
Read the table from below.

**Static batching** cannot keep up with this load at all. Its queue grows as long as requests come, so its times say more about how long the trace
is than about anything else. How much work it gets done in a second is the fairer measure:
"""

# %%
for name in ("first come, first served", "static, waves of 32"):
    print(f"{name}: {len(many) / large[name].seconds:,.0f} requests a second")

# %% [markdown]
"""
Its Jain's index is as good as that of first come, first served all the same. An index of evenness does not see that all are served equally badly.

**First come, first served** keeps everybody's wait alike, and has the smallest longest wait. Equal waits are not equal slowdowns: who asks for
little suffers more from the same wait.

**Shortest job first** has the smallest mean latency, less than half of that of first come, first served. At this load its slowdowns are the most
even: who asks for little waits little. The price is at the other end: its p99 is the worst of the five, and its longest wait is longer than that of
first come, first served many times over. There stand those with the longest answers.

**Strict priority** and **ageing** move time from one tier to the other; the mean over both hardly changes. We look at the tiers below. (Nobody in
this traffic is interactive, so ageing goes by tier and arrival.)

**Balanced lengths** has a better mean than first come, first served, and a longest wait that is nearly as bad as that of shortest job first: whoever
is unlike the target waits for company that suits. So the slowdowns are the least even. Its TPOT, which it was made for, is what it is with the
others: under this line a step costs little more with a large cache. On another machine that may differ.

TPOT hardly depends on the policy. Once a sequence runs, it gets a token in every step: that is what "decodes first" and the budget see to.

### Guesses

How good must the guesses be? On 10,000 requests, the logarithm of the guess is off by a random number with the given standard deviation.
"""

# %%
def guessed(error):
    return traffic(10_000, rate=480, estimate_error=error, **LOAD)


tries = {"right": guessed(0), "mostly within a factor 3 (deviation 1)": guessed(1), "mostly within a factor 20 (deviation 3)": guessed(3)}
tries["reversed"] = reversed_estimates(tries["right"])
rows = [[f"shortest job first, guesses {name}", at_large(ShortestJobFirst(), requests)] for name, requests in tries.items()]
rows.append(["first come, first served", at_large(FirstComeFirstServed(), tries["right"])])
Table(
    columns=["policy", "mean latency, s", "p99, s", "longest, s"],
    rows=[[name, *(f"{value:.2f}" for value in vars(spread(times_of(run, "latency"))).values())] for name, run in rows],
    caption="10,000 requests",
)

# %% [markdown]
"""
A rough guess still helps the mean; the slowest one in a hundred pays for it. Guesses that are upside down are worse than none.

### Bursts

Real requests come in bursts. Here are 450 a second on average, a little less than before, once as Poisson arrivals and once in bursts: twenty at
ten times the speed, then a pause.
"""

# %%
rows = []
for name, arrivals in (("Poisson", {}), ("bursts", {"arrivals": bursty_arrivals})):
    requests = traffic(10_000, rate=450, **LOAD, **arrivals)
    rows += [row_at_large(f"{name}: {policy.name}", at_large(policy, requests), requests) for policy in (FirstComeFirstServed(), ShortestJobFirst())]
Table(columns=AT_LARGE, rows=rows, caption="Mean / p99 of 10,000 requests")

# %% [markdown]
"""
As many requests a second, the same lengths, the same machine: the longer waits come from the bursts alone. A server that is large enough on average is too
small in every burst.

### Starvation

At last an overload: 510 a second, more than the machine can do. Somebody must wait longer and longer. Who? Queue time against arrival, tier 0 and
tier 1 apart, under strict priority and with ageing.
"""

# %%
too_many = traffic(20_000, rate=510, **LOAD)
overloaded = {policy.name: at_large(policy, too_many) for policy in (StrictPriority(), PriorityWithAgeing(1.0))}
tiers = {request.id: request.tier for request in too_many}
draw_waits(overloaded, tiers)

# %% [markdown]
"""
Under strict priority, tier 0 does not notice the overload. Tier 1 pays for it alone, and its wait climbs for as long as the overload lasts. It falls
only for the last to come: behind them the trace ends, and nobody of tier 0 comes any more to pass them.

With ageing, tier 0 waits for nobody at first either. Once the wait of tier 1 has reached one patience, here 1 s, both climb together, one patience
apart. That is what the number means: so much longer may tier 1 wait than tier 0, and no more.

Neither is right or wrong. No policy makes a machine larger; a policy says who pays.

And the readers? The same overload, with every second request interactive, the same patience of 1 s, and three head starts:
"""

# %%
half_read = [replace(request, is_interactive=index % 2 == 0) for index, request in enumerate(too_many)]
groups = {f"tier {tier} {'readers' if reads else 'jobs'}": (tier, reads) for tier in (0, 1) for reads in (True, False)}


def head_start_row(head_start):
    """Mean seconds in the queue: of all, and of each group."""
    run = at_large(PriorityWithAgeing(1.0, head_start), half_read)
    waits = {group: [run.times[r.id].queue_time for r in half_read if (r.tier, r.is_interactive) == group] for group in groups.values()}
    return [f"{head_start} s", *(f"{mean(seconds):.2f}" for seconds in (times_of(run, "queue_time"), *waits.values()))]


Table(
    columns=["head start", "all", *groups], rows=[head_start_row(head_start) for head_start in (0, 0.5, 2)],
    caption="Mean seconds in the queue: 20,000 requests, 510 a second, ageing with a patience of 1 s",
)  # fmt: skip

# %% [markdown]
"""
The mean over all hardly changes: what readers gain, jobs pay, in both tiers. A head start of 2 s is longer than the patience, so the readers of
tier 1 wait less than the jobs of tier 0. The gaps are smaller than the head start: who waits for nobody can gain no more.

### The ledger
"""

# %% tags=["measured"]
ledger(model, tokenizer, "09", with_cache_only=True, since="06")

# %% [markdown]
"""
The first row is the baseline. Compare the other two. As many tokens are computed, all of them useful, and nothing is copied. There are a few more
forward calls, because prompts come in chunks. With six stories that are all there at the start, a budget buys no speed; what it buys is the even step
that this lesson began with.

## What production does

- **vLLM**: `schedule()` in `vllm/v1/core/sched/scheduler.py` opens with a note that there is no decoding phase and no prefill phase in it. Each
  request has `num_computed_tokens`, and a number of tokens that it knows; every step tries to let the one catch up with the other. It serves
  `self.running` first, then `self.waiting`, and stops at the first newcomer for which there are no blocks. Two things differ from ours: it takes
  the running requests in their order, without putting those that want one token first; and where a block is missing it does not stall, but preempts
  (lesson 10).
- Its limits are `max_num_batched_tokens` and `max_num_seqs`, and the first must not be smaller than the second. `long_prefill_token_threshold`
  limits the chunk of any one prompt. `--scheduling-policy` is `fcfs` or `priority`: priority first, then time of arrival, which is our strict
  priority. There is no ageing.
- **Hugging Face transformers**: `ContinuousBatchingManager` has two schedulers in `generation/continuous_batching/scheduler.py`, `fifo` and
  `prefill_first`. The first serves decodes before prompts, as yours does; the second goes on with prompts that are begun. Both have a
  `safety_margin`, a share of the blocks that has to be free before new prompts come in: a watermark.
- **Orca** (2022) brought the decision into every step: *iteration-level scheduling*. **Sarathi-Serve** (2024) combined it with chunks of prompts
  beside decodes within one budget, and called it *stall-free*: no decode waits for a prompt.

## What is still wrong

**Promises waste.** With `conservative`, most of the pool lay idle. **Optimism gets stuck.** With `optimistic`, a deadlock is a question of luck,
and a watermark only of better luck. Lesson 10 lets the scheduler take blocks back.

**Nothing is shared.** A thousand requests that begin with the same page compute and store that page a thousand times. That is in lesson 10 too.

**Only greedy, and no front door.** `serve_greedily` takes the likeliest token, and all sequences are there at the start. Lesson 12 makes an engine
of it.

## Quiz
"""

# %%
quiz("09")

# %% [markdown]
"""
## References

- G.-I. Yu et al.: *Orca: A Distributed Serving System for Transformer-Based Generative Models*, OSDI 2022.
  <https://www.usenix.org/conference/osdi22/presentation/yu>
- A. Agrawal et al.: *Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve*, OSDI 2024. <https://arxiv.org/abs/2403.02310>
- R. Jain, D.-M. Chiu, W. Hawe: *A Quantitative Measure of Fairness and Discrimination for Resource Allocation in Shared Computer Systems*, 1984.
  <https://arxiv.org/abs/cs/9809099>
- vLLM: `vllm/v1/core/sched/scheduler.py`, `vllm/config/scheduler.py`. <https://github.com/vllm-project/vllm>
- Hugging Face transformers: continuous batching. <https://huggingface.co/docs/transformers/main/en/continuous_batching>
"""
