# %% [markdown]
"""
# 09 · Scheduling

**A step has room for a limited number of tokens, sequences and blocks. Which requests get in?**

90 minutes · difficulty: medium · routes: serving · prerequisites: lessons 02 (continuous batching), 03 (blocks) and 06
(paged attention)

So far, requests were served in the order of arrival, and nothing limited what a step computes for all of them together.
In this lesson you'll write the part of a server that decides what each step computes: the scheduler. Then you'll run it
on a hundred thousand requests, without a model, and try a policy of your own.
"""

# %%
import random
from dataclasses import replace
from statistics import mean, median
from time import perf_counter
from types import SimpleNamespace

from lessons_lib.batching import paged_generate, ragged_generate
from lessons_lib.checks import check, hint, predict, progress, quiz, reveal, solution
from lessons_lib.checks.lesson_09.scoreboard import policy_scoreboard
from lessons_lib.engine import ModelRunner, serve_greedily
from lessons_lib.kv_cache import BlockPool, blocks_for
from lessons_lib.measuring import MAX_NEW_TOKENS, NAMES, PROMPTS, STORIES, ledger, median_ms
from lessons_lib.models import VOCAB_SIZE, load_model, tiny_model
from lessons_lib.scheduling import (
    Arrival,
    BalancedLengths,
    Deadlock,
    FirstComeFirstServed,
    Scheduler,
    Sequence,
    PriorityWithAgeing,
    ShortestJobFirst,
    StepCost,
    SchedulerOutput,
    StrictPriority,
    bursty_arrivals,
    conservative,
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
from lessons_lib.viz.stepper import Stepper
from lessons_lib.viz.charts import draw_distributions, draw_waits, line_chart
from lessons_lib.viz.source import show_source
from lessons_lib.viz.tables import Table
from lessons_lib.viz.timelines import draw_gantts

model, tokenizer = load_model(device="cpu")  # float32, so that results agree down to the last token
prompt_ids = {story.name: tokenizer(story.prompt).input_ids for story in STORIES}
max_tokens_each = dict(zip(NAMES, MAX_NEW_TOKENS))

# %% [markdown]
"""
## The problem: one long prompt delays every answer

A, C, D and E are decoding. After ten steps, a request with a prompt of 600 tokens arrives; we'll call it L. In lesson
06, L's whole prompt would go into the next step. The function below limits each step to `budget` tokens. It uses the
finished code of this lesson, so look only at the loop: schedule, forward pass, update.
"""

# %% tags=["measured"]
long_prompt = ([token for name in NAMES for token in prompt_ids[name]] * 5)[:600]


def with_a_long_prompt(budget):
    """The milliseconds of each step."""
    runner, scheduler = ModelRunner(model, 80, 16), Scheduler(BlockPool(80, 16), max_num_batched_tokens=budget)
    for name in "ACDE":
        scheduler.add(Sequence(name, prompt_ids[name], max_new_tokens=40))
    ms = []
    while scheduler.has_unfinished():
        if len(ms) == 10:
            scheduler.add(Sequence("L", long_prompt, max_new_tokens=5))
        started = perf_counter()
        scheduler_output = scheduler.schedule()
        scheduler.update(scheduler_output, runner.forward(scheduler_output).argmax(dim=-1).tolist())
        ms.append(1000 * (perf_counter() - started))
    return ms


shown = {"whole prompts": with_a_long_prompt(1024)[:40], "at most 32 tokens": with_a_long_prompt(32)[:40]}
in_words = "; ".join(f"{name}: median step {median(ms):.0f} ms, longest {max(ms):.0f} ms" for name, ms in shown.items())
print(in_words)
line_chart(
    range(1, 41), shown, xlabel="step", ylabel="ms (log scale)", log="y", title="Time of each step",
    alt=f"Time of each step. {in_words}.",
)  # fmt: skip

# %% [markdown]
"""
With whole prompts, one step stands out: the one with L's prompt. A, C, D and E each get one token in it, but only once
the whole prompt has been computed, so all four streams pause. With the limit, the prompt is spread over many short
steps.

L pays for that. With whole prompts, its first token comes at the end of the step in which it arrives. With the limit,
each step has room for 28 tokens of L, so its 600 tokens take 22 steps.

> **inter-token latency**: the time between two consecutive tokens of an answer, ITL for short. If the sequence gets a
> token in every step, its ITL is the duration of a step.

> **token budget**: the maximum number of tokens that one step computes, over all sequences. vLLM calls it
> `max_num_batched_tokens`.

In lesson 02, a chunk had a forward pass of its own. Here, chunks and decodes share one packed batch and one budget.

## Predict

Suppose the server is busy, and the six stories are in the state below. A token is **known** once it is in the prompt or
has been generated, and **computed** once its keys and values are in the cache. E has lost its cache (lesson 10 explains
how that happens): 20 tokens of its answer are known, but none of its tokens count as computed.
"""

# %%
def six_stories():
    """Six sequences: (name, known tokens of the answer, computed tokens)."""
    state = [("A", 5, 17), ("B", 0, 32), ("C", 2, 4), ("D", 0, 0), ("E", 20, 0), ("F", 0, 0)]
    return [
        Sequence(name, prompt_ids[name], max_tokens_each[name], output_ids=[0] * answer, num_computed_tokens=computed)
        for name, answer, computed in state
    ]


Table(
    columns=["sequence", "prompt", "answer so far", "known", "computed", "known − computed"],
    rows=[
        [s.id, len(s.prompt_ids), len(s.output_ids), s.num_tokens, s.num_computed_tokens, s.num_tokens - s.num_computed_tokens]
        for s in six_stories()
    ],
    caption="All six are running, in this order of admission",
)

# %% [markdown]
"""
**09.a** The budget is 64 tokens. Decodes come first, then the other sequences in order. How many tokens of E does this
step compute?
"""

# %%
predict("09.a", ...)

# %% [markdown]
"""
## The idea: two counters

In lesson 02, a request had a state: waiting, prefilling or decoding. Look at the last column of the table above
instead. A has 18 known tokens, and the keys and values of 17 are computed, so it **wants** one token. B is in the
middle of its prompt and wants 30. D wants its whole prompt. E wants 25: its prompt, plus an answer that has to be
computed again. These aren't different kinds of work. Prefill, chunk, decode and recomputation are all the same thing:

> a step computes, for each running sequence, some of the tokens that are known but not computed.

When all known tokens of a sequence are computed, the logits of the last one give the next token. Then one more token is
known.

In the library, a `Sequence` counts both: `num_tokens` are known, and the first `num_computed_tokens` of them are
computed.

## Build 1: share the budget

How many tokens does each sequence get? A decode takes only one token of the budget, and if it is skipped, a reader
sees a gap in the answer. A prompt that gets a smaller chunk is only a little later.

**Exercise 09.1.** Write `share_budget(running, budget)`. `running` is a list of sequences in the order of admission,
and each wants at least one token. Return a dict that maps each sequence that gets something to the number of its
tokens that the next step computes. No sequence gets more than it wants, and all together get at most `budget`, which
may be 0. If the budget is large enough, each gets all it wants. If not:

- no sequence that wants exactly **one** token goes without while one that wants more gets something. (It makes no
  difference whether that token is a decode or the last token of a prompt.)
- among those that want one, and among those that want more, a later sequence gets something only if the earlier ones
  got all they want.
- the whole budget is used.

The order of the dict's keys makes no difference. Don't change the list or the sequences: nothing has been computed yet.

Example: A wants 1, D 21, C 1 and F 40, in this order. With a budget of 32, A and C get 1 each, D gets 21, and F gets a
chunk of 9. With a budget of 23, F gets nothing. With a budget of 1, only A gets a token.
"""

# %% exercise="09.1"
from lessons_lib.scheduling.scheduler import share_budget

# %%
shares = {sequence.id: count for sequence, count in share_budget(six_stories(), 64).items()}
print("your function, budget 64:", shares)
reveal("09.a", shares["E"], unit="tokens")

# %% [markdown]
"""
F gets nothing in this step. The next one has room for the rest of E and for all of F.

## Schedule, forward, update

The scheduler does the first and the last part of a step:

```
scheduler.schedule()  ──▶  SchedulerOutput  ──▶  runner.forward(scheduler_output)  ──▶  logits
                                                                                          │
                                        scheduler.update(scheduler_output, tokens)  ◀── tokens
```

Three fields of a `SchedulerOutput` matter here: `num_scheduled_tokens`, the dict from Build 1; `admitted`, the
sequences that start in this step; and `stalled`, those that get no token because there aren't enough free blocks. The
runner makes no decisions: it is lesson 06's forward pass. In the middle of a prompt, the logits predict a token that is
already known, so `update` ignores them.

## Which requests may start

A waiting request needs a batch slot (`max_num_seqs`), some budget, and memory. Only memory is hard to check, because
the length of an answer isn't known in advance.

> **admission control**: the rule by which a server decides whether a waiting request may start.

**Conservative**, as in lesson 06: promise every sequence the blocks for its `most_tokens`, which are prompt +
`max_tokens` − 1, since the last token is never computed. Admit a request if all promises can be kept at once.

**Optimistic**: admit a request if enough blocks are free for its known tokens, and hope that other sequences finish
before it grows.

Let's try both on three requests, with the library's scheduler. There are 6 blocks of 4 tokens, a budget of 8 tokens,
and three batch slots. P (a prompt of 6 tokens, `max_tokens` 6), Q (10, 4) and R (3, 2) wait, in this order. The running
sequences share the budget as in Build 1; those that wait get what is left.

**Guess first:** which of the other two run alongside P, under the conservative rule?
"""

# %%
def all_steps(admission, max_tokens_of_r=2):
    """What the scheduler does with P, Q and R, step by step."""
    scheduler = Scheduler(BlockPool(6, 4), max_num_seqs=3, max_num_batched_tokens=8, admission=admission)
    for name, prompt, max_tokens in (("P", 6, 6), ("Q", 10, 4), ("R", 3, max_tokens_of_r)):
        scheduler.add(Sequence(name, [5] * prompt, max_tokens))
    rows = []
    while scheduler.has_unfinished():
        try:
            output = scheduler.schedule()
        except Deadlock as error:
            print(f"step {len(rows) + 1}: Deadlock: {error}")
            break
        tokens = ", ".join(f"{s.id} {count}" for s, count in output.num_scheduled_tokens.items())
        blocks = ", ".join(f"{s.id} {len(s.blocks)}" for s in scheduler.running)
        stalled, free = ", ".join(s.id for s in output.stalled), len(scheduler.pool.free_queue)
        finished = scheduler.update(output, [5] * len(output.num_scheduled_tokens))
        rows.append([str(len(rows) + 1), tokens, stalled or "–", blocks, free, ", ".join(s.id for s in finished) or "–"])
    columns = ["step", "tokens", "stalled", "blocks", "free blocks", "finished"]
    return Table(columns, rows, caption=f"{admission.__name__}, max_tokens of R: {max_tokens_of_r}")


all_steps(conservative)

# %% [markdown]
"""
Neither does. P may need 3 blocks for 6 + 6 − 1 = 11 tokens, and Q 4 blocks for 13: that's 7 of 6. So P runs alone, and
at least half of the pool stays free until it finishes. R may need a single block, but Q is the next. If R could pass
it, so could every small request after R, and Q might wait forever.

**Guess again:** under the optimistic rule, in which step does R join? And which sequence stalls first?
"""

# %%
all_steps(optimistic)

# %% [markdown]
"""
A prompt may join with a chunk: in step 1, P leaves 2 tokens of the budget for Q. In step 3, P and Q want one token
each, so R joins with its whole prompt. A sequence gets blocks for the tokens that the step computes, not for its whole
prompt. In step 4, no block is free. Q and R have room in their last block, but P's ninth token needs a third one. So P
**stalls**: it keeps its two blocks and gets no token. R finishes in that step, so P gets its block in the next one.

That's 8 steps instead of 11. But what if R doesn't finish in time? Let its `max_tokens` be 9:
"""

# %%
all_steps(optimistic, max_tokens_of_r=9)

# %% [markdown]
"""
> **deadlock**: a state in which each of several parties waits for something that another one holds, so none can ever
> continue.

> **watermark**: the number of blocks that optimistic admission keeps free, because running sequences will need more
> blocks soon.

A watermark only makes a deadlock less likely. With optimistic admission, only taking blocks back from a running
sequence rules it out: lesson 10. Until then, `conservative` is the default. ("Further" has it as exercise 09.2,
and compares the two on 3,000 requests.)

## Build 2: the scheduler

**Exercise 09.3.** Write `schedule_waiting(scheduler_output)`. It is called once the running sequences have their
tokens, admits waiting sequences, and schedules their first tokens in the same step. The rest is given:
`allocate_slots` schedules `count` tokens of a sequence, or lets it stall.

| you have | what it is |
|---|---|
| `self.waiting` | the queue; true if it isn't empty. `self.waiting.next(self.running)` returns the sequence that the policy puts next, not always the first, and leaves it in the queue |
| `self.admit(scheduler_output, sequence)` | takes a sequence out of the queue and appends it to `self.running` and `scheduler_output.admitted` |
| `self.admission(self, sequence)` | whether there is memory for a sequence that waits, given those in `self.running` |
| `self.max_num_seqs`, `self.max_num_batched_tokens` | at most so many running sequences, and so many tokens in a step |
| `scheduler_output.num_tokens`, `.stalled` | tokens that the step has scheduled so far; the list of sequences that stalled in it |

- An admitted sequence gets at least one token: all it wants, or what is left of the budget. (If it has run before, part
  of its answer is known, and some of its tokens may still be computed.)
- None is overtaken, as under `conservative` above: if there is no memory for the next sequence, none behind it is
  admitted.
- If a running sequence has stalled in this step, none is admitted: it would take the blocks that the stalled one waits
  for.
- Otherwise, as many as possible are admitted.

Example: the table for `optimistic` above. In step 3, P and Q have a token each, and R is admitted and gets 3.
"""

# %% exercise="09.3" given="schedule schedule_running allocate_slots"
from lessons_lib.scheduling.scheduler import SchedulerBase

from lessons_lib.scheduling.stalling import Scheduler

# %% [markdown]
"""
## Prove it

A scheduler decides *when* a token is computed, and must never change *which* token. The oracle is lesson 05's packed
batch with whole prompts. Your scheduler serves a small random model with every second budget from 4 to 64, up to 4
batch slots, and an arbitrary end token: once with `conservative`, which never stalls, and once with `optimistic` and a
pool so small that some runs stall. (`serve_greedily` is the loop of the opening.)
"""

# %%
END = 24
tiny, rng = tiny_model("llama"), random.Random(9)
tiny_prompts = [[rng.randrange(VOCAB_SIZE) for _ in range(length)] for length in (13, 30, 3, 21, 1)]
tiny_max_tokens = (4, 5, 6, 3, 1)
ends = SimpleNamespace(pad_token_id=0, eos_token_id=END)
expected = ragged_generate(tiny, ends, tiny_prompts, max_new_tokens=tiny_max_tokens)


def your_answers(budget, admission, num_blocks):
    limits = dict(max_num_seqs=rng.randint(1, 4), max_num_batched_tokens=budget, admission=admission)
    pairs = zip(tiny_prompts, tiny_max_tokens)
    sequences = [Sequence(str(n), ids, most, frozenset({END})) for n, (ids, most) in enumerate(pairs)]
    return serve_greedily(ModelRunner(tiny, num_blocks, 16), Scheduler(BlockPool(num_blocks, 16), **limits), sequences)


budgets = range(4, 65, 2)
for admission, num_blocks in ((conservative, 8), (optimistic, 3)):
    equal = sum(your_answers(budget, admission, num_blocks) == expected for budget in budgets)
    print(f"{admission.__name__}, {num_blocks} blocks: equal answers with {equal} of {len(budgets)} budgets")

# %% [markdown]
"""
And the opening again, with your scheduler and at most 32 tokens a step. Compare with the numbers for whole prompts
there.
"""

# %% tags=["measured"]
ms = with_a_long_prompt(32)[:40]
print(f"your scheduler, at most 32 tokens: median step {median(ms):.0f} ms, longest {max(ms):.0f} ms")

# %% [markdown]
"""
## Time

What does a step cost? Part of it is paid once, whatever the step contains: reading the weights, launching operators.
Part is paid for each token: the matrix products. And attention reads the cache.

> **context tokens**: the tokens that a step attends to, counted once per sequence: all tokens that the sequence has in
> the cache after the step.

So a rough model of a step's time is a sum of three terms. Here: 5 ms per step, 20 µs per token, and 0.2 µs per context
token, in the range of a model with a few billion parameters on one GPU. (The numbers are round, not measured; "Further"
fits them to your machine.)

With such a formula we need no model: what a scheduler does depends on lengths, not on the text. From here on, a
simulator runs the loop above with *your* scheduler, skips the forward pass, and lets the formula say how long each step
takes. An `Arrival` is a request for the simulator, which also knows how long the answer will be.
"""

# %%
COST = StepCost(base=0.005, per_token=20e-6, per_context_token=0.2e-6)
print(f"a prompt of 600 tokens at once: {1000 * COST.seconds(600, 600):.2f} ms")

# %% [markdown]
"""
Back to the opening, now on this formula's machine: four sequences decode, and L arrives with its 600 tokens. No reader
of the four should wait longer than 8 ms for the next token.

**09.b** What is the largest budget that keeps this promise? Leave out the context tokens: they cost little here.
"""

# %%
predict("09.b", ...)  # tokens

# %%
def prompt_of_l(budget):
    """(ms from L's first chunk to its first token, longest step in ms)."""
    four = [Arrival(name, 0, 1, 100, max_new_tokens=128) for name in "ACDE"]
    scheduler = Scheduler(BlockPool(128, 16), max_num_batched_tokens=budget)
    run = simulate(scheduler, [*four, Arrival("L", 0.1, 600, 5, max_new_tokens=128)], COST, keep_steps=True)
    waited = run.times["L"].ttft - run.times["L"].queue_time
    return 1000 * waited, 1000 * max(step.seconds for step in run.steps)


reveal("09.b", max(budget for budget in range(100, 200) if prompt_of_l(budget)[1] <= 8), unit="tokens", tolerance=0.1)
budgets = (16, 32, 64, 128, 256, 512, 1024)
waits_of_l, longest = zip(*map(prompt_of_l, budgets))
in_words = "; ".join(
    f"budget {b}: {w:.1f} ms to L's first token, {step:.1f} ms a step"
    for b, w, step in zip(budgets, waits_of_l, longest)
)
line_chart(
    budgets, {"longest wait for a token of A, C, D and E": longest, "L's first token": waits_of_l},
    xlabel="budget, tokens (log scale)", ylabel="ms (log scale)", log="xy", title="What the budget changes",
    alt=f"Two times. {in_words}.",
)  # fmt: skip

# %% [markdown]
"""
The 7 tokens missing from 150 are the context tokens that you left out. A larger budget helps L a lot at first, and then
less and less: its tokens cost the same with every budget, but each step costs 5 ms before it has computed anything. For
A, C, D and E it's the other way round. The curves bend where the tokens of a step cost as much as the step
itself: 5 ms / 20 µs = 250 tokens.

> **time to first token**: the time from arrival to the first token of the answer, TTFT for short.

Queue time and latency are defined as in lesson 02.

## Policies

When a batch slot becomes free, which waiting request gets it?

> **policy**: a rule that orders the waiting requests.

Here, a policy is a class with one method, `rank(sequence)`. The smallest rank goes first. The queue asks for a rank
once, when a sequence is added, so a rank can't depend on the current time. Of two equal ones, the sequence that was
added first goes first. A request's **tier** says what the customer pays for: tier 0 is the best.
"""

# %%
for policy in (FirstComeFirstServed, ShortestJobFirst, StrictPriority):
    show_source(policy.rank)

# %% [markdown]
"""
These are **first come, first served**, **shortest job first** and **strict priority**. The length of an answer isn't
known in advance, so `expected_tokens` is an estimate, from a small model or from similar requests. Here, the estimates
are exact.

### Requests that are never served

> **starvation**: a request waits without end because others keep being served before it.

Under shortest job first and strict priority, that happens for as long as enough requests with a better rank arrive. The
classic fix is to let waiting time count.

> **aging**: raising the priority of a request the longer it waits, so that every request is served eventually.

## Measure: a hundred thousand requests

Requests arrive at random, 480 a second on average (the gaps between them are exponentially distributed: a *Poisson*
process). This machine can't serve much more, so queues form. As in real traffic, most are short and a few are very
long. There are 32 batch slots, a budget of 256, and blocks for all. Your scheduler serves them all, once under each of
two policies.
"""

# %%
LOAD = dict(prompt_median=24, answer_median=4)
many = traffic(100_000, rate=480, **LOAD)
for what in ("prompt_tokens", "answer_tokens"):
    lengths = sorted(getattr(request, what) for request in many)
    print(f"{what}: median {lengths[50_000]}, mean {mean(lengths):.1f}, 99th percentile {lengths[99_000]}, longest {lengths[-1]}")

# %%
def at_large(policy, requests=many):
    scheduler = Scheduler(BlockPool(2048, 16), max_num_seqs=32, max_num_batched_tokens=256, policy=policy, admission=optimistic)
    return simulate(scheduler, requests, COST)


large = {policy.name: at_large(policy) for policy in (FirstComeFirstServed(), ShortestJobFirst())}

# %% [markdown]
"""
A mean hides the requests that fared badly, so we also look at the 99th percentile.

> **99th percentile**: the value that 99 of 100 values don't exceed, p99 for short.

**Guess first:** compared with first come, first served, which of these does shortest job first make better, and which
worse: the mean latency, the 99th percentile, the longest latency?
"""

# %%
for name, run in large.items():
    latency = spread(times_of(run, "latency"))
    print(f"{name}: mean latency {latency.mean:.2f} s, p99 {latency.p99:.2f} s, longest {latency.worst:.2f} s")

# %% [markdown]
"""
Shortest job first has less than half of the mean latency. The longest answers pay for it: the p99 is worse, and one
request took almost a minute.

## Build 3: a policy of your own

Can a policy keep most of what shortest job first gains, and still let no request wait without end? And is the length of
the answer the right measure? A token of a prompt takes 20 µs. A token of an answer takes as much, and its share of a
step's 5 ms: with 32 in a batch, 156 µs more. So it costs eight to nine prompt tokens.

**Exercise 09.5.** Write `rank` of `ShortestWithAgeing`, from a sequence's `arrival_time`, `expected_tokens` and
`len(sequence.prompt_ids)`. Both lengths are from 1 to 512 (`expected_tokens` is never None here), and `self.patience`,
in seconds, is above 0. It must keep three promises, whatever else differs:

- Of two that arrive at the same time, one whose prompt and expected answer are both shorter goes first.
- None is overtaken by one that arrived more than `self.patience` seconds after it.
- A short one (prompt 1, expected answer 1) overtakes a long one (500, 500) that arrived less than half of
  `self.patience` before it.

Example with a patience of 2 s: A (500, 500) arrives at 10 s, B (20, 20) also at 10 s, C (1, 1) at 10.9 s, and D (1, 1)
at 12.1 s. B and C go before A, and D goes after it. Whether C goes before B is up to you.
"""

# %% exercise="09.5" given="__init__"
from lessons_lib.scheduling.policies import ShortestWithAgeing

# %% [markdown]
"""
Your policy serves the hundred thousand requests, with a patience of 2 s. The score is the share of the gain that it
keeps: 0% is the mean of first come, first served, 100% that of shortest job first. It counts only if the p99 is below
that of shortest job first.
"""

# %%
policy_scoreboard(ShortestWithAgeing(2), at_large, large)

# %% [markdown]
"""
Ordering by cost alone has 121%: two requests with the same answer can differ by 500 prompt tokens, which shortest job
first ignores. But its longest latency is 47 s. Aging has to shorten that, at the price of some of the gain.

Is your score below 40%? Most requests are short: prompt 24, answer 4. What does your `rank` add to the arrival time of
such a request, and of one twice as long? How many seconds lie between them? A part that grows evenly up to 512 + 512
tells them apart by a few hundredths of `patience`, so among themselves they stay in order of arrival. Let it grow fast
among short requests, and run the scoreboard again.

Which patience would you choose? Suppose you promise your customers that no request takes longer than 5 s. Under first
come, first served, the longest takes 3 s. **Guess first:** how much patience does that leave you? Here are five, on the
first 20,000 requests:
"""

# %%
for patience in (0.5, 2, 4, 8, 32):
    latency = spread(times_of(at_large(ShortestWithAgeing(patience), many[:20_000]), "latency"))
    verdict = "kept" if latency.worst <= 5 else "broken"
    seconds = f"mean {latency.mean:.2f} s, p99 {latency.p99:.2f} s, longest {latency.worst:.2f} s"
    print(f"patience {patience:4} s: {seconds}: promise {verdict}")

# %% [markdown]
"""
The larger the patience, the more the policy may reorder. The mean falls; the p99 and the longest latency are what you
pay for it. 5 − 3 = 2 s is a careful guess: in the 2 s after a request, about 2 s of work arrive, and only some of it
overtakes. The list says whether your policy can afford more.

**Stretch (optional).** Keep the patience at 2 s, and raise the score further. The library's policy has 66%; 84% is
possible.

## What is still wrong

**Admission wastes memory or gets stuck.** In lesson 10, the scheduler takes blocks back, so it can be optimistic.

**Estimates are exact here.** "Further" makes them wrong.

**The loop around the scheduler is too simple.** `serve_greedily` takes the likeliest token, and all its
sequences have to be there at the start. In lesson 12 you'll build an engine that takes requests at any time.

## Quiz
"""

# %%
quiz("09")

# %% [markdown]
"""
## References

- G.-I. Yu et al.: *Orca: A Distributed Serving System for Transformer-Based Generative Models*, OSDI 2022.
  <https://www.usenix.org/conference/osdi22/presentation/yu>
- A. Agrawal et al.: *Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve*, OSDI 2024.
  <https://arxiv.org/abs/2403.02310>
- R. Jain, D.-M. Chiu, W. Hawe: *A Quantitative Measure of Fairness and Discrimination for Resource Allocation in Shared
  Computer Systems*, 1984.
  <https://arxiv.org/abs/cs/9809099>
- vLLM: `vllm/v1/core/sched/scheduler.py`, `vllm/config/scheduler.py`. <https://github.com/vllm-project/vllm>
- Hugging Face transformers: continuous batching. <https://huggingface.co/docs/transformers/main/en/continuous_batching>
"""

# %% [markdown] folded=true
"""
## Further (optional)

What the lesson doesn't need. It isn't part of its 90 minutes.
"""

# %% [markdown]
"""
### Four requests, one at a time

**09.c** A, B, C and D arrive at the same moment, in this order, and one runs at a time. They need 9, 1, 2 and 4
seconds. First come, first served, they'd wait 7.75 seconds on average: (0 + 9 + 10 + 12) / 4. How long do they wait on
average under shortest job first, in seconds?
"""

# %%
predict("09.c", ...)

# %%
NEEDS = {"A": (9, 1), "B": (1, 1), "C": (2, 0), "D": (4, 1)}  # request: seconds, tier
STEPS = StepCost(base=1, per_token=0, per_context_token=0)  # every step takes one second, and an answer a step per token
needs = [Arrival(name, 0, 1, seconds, 16, tier=tier, expected_tokens=seconds) for name, (seconds, tier) in NEEDS.items()]


def one_at_a_time(policy):
    scheduler = Scheduler(BlockPool(8, 16), max_num_seqs=1, max_num_batched_tokens=32, policy=policy)
    return simulate(scheduler, needs, STEPS, keep_steps=True)


small = {policy.name: one_at_a_time(policy()) for policy in (FirstComeFirstServed, ShortestJobFirst, StrictPriority)}
reveal("09.c", mean(times_of(small["shortest job first"], "queue_time")), unit="s")
draw_gantts(small, requests=needs)

# %% [markdown]
"""
First come, first served suffers from lesson 01's head-of-line blocking: B waits nine seconds to run for one. Shortest
job first makes only A wait longer. If one request runs at a time and all are there at the start, no other order has a
smaller mean wait. Otherwise it's only a good heuristic.
"""

# %% [markdown]
"""
### Optional: conservative admission

**Exercise 09.2** (optional). Write `conservative(scheduler, sequence)`. It returns True if `sequence` may be admitted,
and False otherwise. It changes nothing.

Each sequence in `scheduler.running`, and the new one, is promised enough blocks for its `most_tokens`. Can the pool
(`scheduler.pool`, with `block_size` and `num_blocks`) keep all promises? `blocks_for(tokens, block_size)` rounds up to
whole blocks.

Example with blocks of 16: A (prompt 13, `max_tokens` 30) may have 42 tokens in the cache, so 3 blocks. B (prompt 62,
`max_tokens` 60) may have 121, so 8 blocks. While both run, C (prompt 3, `max_tokens` 100) arrives. It may have 102, so
7 blocks. A pool of 18 blocks can admit C; a pool of 17 can't.
"""

# %% exercise="09.2"
from lessons_lib.kv_cache.block_pool import blocks_for

from lessons_lib.scheduling.scheduler import conservative

# %% [markdown]
"""
### Conservative or optimistic?

Here is `optimistic`, in which `missing_blocks` is the number of blocks that a sequence still needs for its known
tokens:
"""

# %%
show_source(optimistic)

# %% [markdown]
"""
Let's compare it with `conservative`. There is a pool of 44 blocks of 16 tokens, and there are sixty requests, which
arrive within a tenth of a step, each with a `max_tokens` of 96 (`most`, below). At most 16 run at a time, with a budget
of 64 tokens, and the clock counts steps. So that no number hangs on one draw, there are fifty such workloads, drawn at
random:
"""

# %%
SHORT = dict(rate=1000, prompt_median=24, answer_median=16, spread=0.8, most=96)
fifty = [traffic(60, **SHORT, seed=seed) for seed in range(50)]
for what in ("prompt_tokens", "answer_tokens"):
    lengths = [getattr(request, what) for sixty in fifty for request in sixty]
    print(f"{what}: {min(lengths)} to {max(lengths)}, mean {mean(lengths):.0f}")

# %% [markdown]
"""
**09.d** How many requests run at the same time with `conservative`? Treat every request as an average one.
"""

# %%
predict("09.d", ...)  # requests

# %%
def run_with(sixty, admission, watermark=0, num_blocks=44):
    """Steps, running sequences, share of the pool in use (both averaged over the steps), and steps with a stall."""
    pool, limits = BlockPool(num_blocks, 16), dict(max_num_seqs=16, max_num_batched_tokens=64)
    run = simulate(Scheduler(pool, admission=admission, watermark=watermark, **limits), sixty, STEPS, keep_steps=True)
    running = mean(len(step.prefill) + len(step.decode) + len(step.stalled) for step in run.steps)
    used = mean(1 - step.free_blocks / num_blocks for step in run.steps)
    return run.num_steps, running, used, sum(bool(step.stalled) for step in run.steps)


deadlocks = []


def over_fifty(*rule):
    """How many of the fifty workloads end in a deadlock, and the means over those that don't."""
    ended = []
    for sixty in fifty:
        try:
            ended.append(run_with(sixty, *rule))
        except Deadlock as error:
            deadlocks.append(error)
    return [len(fifty) - len(ended), *map(mean, zip(*ended))]


rules = {"conservative": (conservative,)} | {f"optimistic, watermark {n}": (optimistic, n) for n in (0, 2, 4, 8)}
outcome = {name: over_fifty(*rule) for name, rule in rules.items()}
Table(
    columns=["admission", "deadlocks in 50", "steps", "running", "pool in use", "steps with a stall"],
    rows=[
        [name, stuck, f"{steps:.0f}", f"{running:.1f}", f"{used:.0%}", f"{stalls:.1f}"]
        for name, (stuck, steps, running, used, stalls) in outcome.items()
    ],
    caption="Fifty workloads of sixty requests, 44 blocks of 16, at most 16 sequences. Means of those that ended",
)

# %%
print("The first deadlock:", deadlocks[0])
reveal("09.d", outcome["conservative"][2], unit="requests", tolerance=0.2)

# %% [markdown]
"""
An average request may have 32 + 96 − 1 = 127 tokens in the cache, so it's promised 8 blocks, and 44 blocks are enough
for five such promises. With longer prompts among them it may be four, and at the end fewer are left. Conservative
admission is safe, but leaves most of the pool idle, because the answers end long before they reach `max_tokens`.
With a small watermark or none, optimistic admission runs about twice as many sequences at a time, and needs about half
as many steps, if it doesn't end in a deadlock.

A watermark makes a deadlock less likely, at the cost of blocks that stay idle: read "deadlocks" and "pool in use"
from the second row down. It can't rule a deadlock out: none in fifty isn't never.
"""

# %% [markdown]
"""
### Eight requests under three policies

Here are eight requests, two batch slots, and a budget of 32.

> **interactive request**: a request with a user who is waiting for the answer and reads it as it is generated.

The others are *offline*, such as a job that runs overnight. E is an offline request from a customer who pays for tier
0. F is the opposite: interactive, but tier 1. None of the three policies looks at whether a request is interactive.
"""

# %%
REQUESTS = [  # name, arrival in ms, prompt tokens, answer tokens, tier, interactive
    ("A", 0, 13, 60, 1, False), ("B", 0, 62, 50, 1, False), ("C", 20, 3, 100, 1, False), ("D", 30, 21, 80, 1, False),
    ("E", 40, 5, 8, 0, False), ("F", 50, 40, 12, 1, True), ("G", 60, 10, 5, 0, True), ("H", 300, 8, 10, 0, True),
]  # fmt: skip
eight = [
    Arrival(name, ms / 1000, prompt, answer, max_new_tokens=128, tier=tier, expected_tokens=answer, is_interactive=interactive)
    for name, ms, prompt, answer, tier, interactive in REQUESTS
]


def served(policy, requests=eight, max_num_seqs=2):
    scheduler = Scheduler(BlockPool(64, 16), max_num_seqs=max_num_seqs, max_num_batched_tokens=32, policy=policy)
    return simulate(scheduler, requests, COST, keep_steps=True)


Table(
    columns=["request", "arrives at, ms", "prompt", "answer", "tier", "interactive"],
    rows=[[*fields, "yes" if interactive else "no"] for *fields, interactive in REQUESTS],
)

# %% [markdown]
"""
Step through all three runs. Next to each name is the request's tier, and a dot if it is interactive. What happens to E,
F and G in the first chart?
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
First come, first served suffers from head-of-line blocking: C and D, with long answers, occupy both batch slots, and
the short requests E, F, G and H wait behind them.

Shortest job first lets the short ones through. (A, which isn't in the table, waits a moment at the start: B arrived at
the same time, and its answer is shorter. B's prompt of 62 uses all 32 tokens of the first step, so no budget is left
for A.) C and D pay: C waits one and a half times as long, and D almost a quarter longer. E, F, G and H each gain more
than three times what C loses, and the mean drops a lot.

Strict priority favors E, G and H. F, which is also short but tier 1, starts last, although it is interactive. E is the
first to be admitted after A and B, although it's offline.

### A stream of short requests

Take a single batch slot. Short tier-0 requests arrive one after the other, a little faster than they can be served.
Near the beginning, one longer tier-1 request arrives; we call it the odd one.

`PriorityWithAgeing` makes each tier worth `patience` seconds of waiting. With a patience of 10 s, a tier-1 request that
has waited for 10 seconds has the same rank as a tier-0 request that arrives now. All waiting requests age at the same
rate, so the order of two never changes, and one rank is enough, on arrival: `arrival_time + tier * patience`.

Here are streams of 25, 50 and 100 short requests:
"""

# %%
GAP = 0.038  # seconds from one short request to the next


def stream(count, interactive="none", odd_tier=1):
    """The odd one near the beginning of a stream of short requests. `interactive`: "the odd one", "the others" or "none"."""
    short_interactive, odd_interactive = interactive == "the others", interactive == "the odd one"
    short = [
        Arrival(f"short {n}", GAP * n, 8, 8, 128, tier=0, expected_tokens=8, is_interactive=short_interactive)
        for n in range(count)
    ]
    odd = Arrival("odd", 0.02, 13, 60, 128, tier=odd_tier, expected_tokens=60, is_interactive=odd_interactive)
    return [short[0], odd, *short[1:]]


def stream_row(name, policy):
    """Queue time of the odd one in three streams, in seconds, and the mean queue times of the others."""
    runs = [served(policy, stream(count), max_num_seqs=1).times for count in (25, 50, 100)]
    waits = [times["odd"].queue_time for times in runs]
    others = [mean(times[name].queue_time for name in times if name != "odd") for times in runs]
    return [name, *(f"{seconds:.2f}" for seconds in (*waits, *others))]


def stream_table(rows):
    columns = [f"{group} {count}" for group in ("odd one, stream of", "others, stream of") for count in (25, 50, 100)]
    caption = "Queue time in seconds: the odd one, and the mean of the others, in streams of 25, 50 and 100"
    return Table(columns=["policy", *columns], rows=rows, caption=caption)


unaged = [stream_row(policy.name, policy) for policy in (FirstComeFirstServed(), ShortestJobFirst(), StrictPriority())]
aged = [stream_row(f"aging, patience {patience} s", PriorityWithAgeing(patience)) for patience in (0.1, 0.5)]
stream_table([*unaged, *aged])

# %% [markdown]
"""
Under shortest job first and strict priority, the odd one waits until the stream ends, however long that takes. With
aging, it waits here for the patience and one short request more, however long the stream is. (The patience bounds which
requests may overtake it. If more arrives than is served, the requests ahead of it can still take longer.)
"""

# %% [markdown]
"""
### Optional: priority with aging and a head start

A tier says what a customer pays for. It doesn't say whether a user is sitting in front of a screen. A user notices
every wait; for a job that runs overnight, it doesn't matter exactly when it starts. So an interactive request gets a
head start: it ranks as if it had already waited for `head_start` seconds when it arrives. Now everything this policy
looks at (arrival, tier and interactivity) is in the same unit: seconds of waiting. The head start counts only in the
queue. Once sequences run, all decodes are treated alike, since `share_budget` doesn't look at `is_interactive`.

**Exercise 09.4.** Write `rank` of `PriorityWithAgeing`. `self.patience` and `self.head_start` are in seconds, 0 or
more. Return the rank of a sequence from its `arrival_time` (in seconds), `tier` (0 is the best, then 1, 2, ...) and
`is_interactive` (True or False). The smallest rank goes first.

Some examples with patience 10 and head start 4:

| sequence | arrives at | tier | interactive | rank |
|---|---|---|---|---|
| P | 100 s | 0 | no | 100 |
| Q | 92 s | 1 | yes | 98: goes before P |
| Q, if not interactive | 92 s | 1 | no | 102: goes after P |
| R | 97 s | 1 | yes | 103: goes after P |
| S | 83 s | 2 | yes | 99: goes before P |
| T | 2 s | 0 | yes | −2: a rank may be negative |

If both patience and head start are 0, only the arrival time counts. Ranks are only compared with each other, so ranks
that are all larger or smaller by the same number are right too.
"""

# %% exercise="09.4" given="__init__"
from lessons_lib.scheduling.policies import PriorityWithAgeing

# %% [markdown]
"""
### The six stories

Your scheduler serves C, D and F with a budget of 16 and two batch slots. Watch how each step splits its 16 tokens:
"""

# %%
scheduler = Scheduler(BlockPool(16, 16), max_num_seqs=2, max_num_batched_tokens=16)
for name in "CDF":
    scheduler.add(Sequence(name, prompt_ids[name], max_new_tokens=3))
step = 0
while scheduler.has_unfinished():
    scheduler_output = scheduler.schedule()
    finished = scheduler.update(scheduler_output, [0] * len(scheduler_output.num_scheduled_tokens))
    step += 1
    scheduled = ", ".join(f"{s.id} {count}" for s, count in scheduler_output.num_scheduled_tokens.items())
    admitted = " ".join(s.id for s in scheduler_output.admitted) or "–"
    print(f"step {step}: {scheduled:<12} admitted: {admitted:<4} finished: {' '.join(s.id for s in finished) or '–'}")

# %% [markdown]
"""
Next, all six stories with the bundled model, compared with lesson 06:
"""

# %%
paged = paged_generate(model, tokenizer, PROMPTS, max_new_tokens=MAX_NEW_TOKENS, names=NAMES, max_num_seqs=4)
scheduler = Scheduler(BlockPool(60, 16), max_num_seqs=4, max_num_batched_tokens=16)
end = frozenset({tokenizer.eos_token_id})
sequences = [Sequence(name, prompt_ids[name], max_tokens_each[name], end) for name in NAMES]
outputs = serve_greedily(ModelRunner(model, 60, 16), scheduler, sequences)
print(f"budget 16: {sum(a == b for a, b in zip(outputs, paged))} of 6 answers equal")

# %% [markdown]
"""
### The ledger
"""

# %% tags=["measured"]
ledger(model, tokenizer, "09", with_cache_only=True, since="06")

# %% [markdown]
"""
The first row is the baseline. Compare the other two. They compute the same number of tokens, all of them useful, and
copy nothing. The last row has a few more forward passes, because prompts come in chunks. When all six stories are there
from the start, a budget doesn't make anything faster. What it buys is even step times, which is where this lesson
began.
"""

# %% [markdown]
"""
### What production does

- **vLLM**: `schedule()` in `vllm/v1/core/sched/scheduler.py` starts with a comment saying that there is no decoding
  phase and no prefill phase in the scheduler. Each request has `num_computed_tokens` and a number of known tokens, and
  every step tries to let the first catch up with the second. It schedules `self.running` first, then `self.waiting`,
  and stops at the first waiting request for which there are no blocks. Two things differ from ours: it takes the
  running requests in order, without moving those that want one token to the front, and if there is no free block, it
  doesn't stall but preempts (lesson 10).
- vLLM's limits are `max_num_batched_tokens` and `max_num_seqs`, and the first must not be smaller than the second.
  `long_prefill_token_threshold` limits the chunk of any one prompt. `--scheduling-policy` is `fcfs` or `priority`. The
  latter sorts by priority, then by arrival time, which is our strict priority. There is no aging.
- **Hugging Face transformers**: `ContinuousBatchingManager` has two schedulers in
  `generation/continuous_batching/scheduler.py`, `fifo` and `prefill_first`. The first serves decodes before prompts, as
  yours does; in the second, prompts that have already started come before decodes. Both have a `safety_margin`, a share
  of the blocks that must be free before new prompts are admitted: a watermark.
- **Orca** (2022) introduced *iteration-level scheduling*: a scheduling decision before every step. **Sarathi-Serve**
  (2024) combined it with chunks of prompts that share one budget with decodes, and called the result *stall-free*: no
  decode waits for a prompt.
"""

# %% [markdown]
"""
### What a step costs on this machine

We measure forward passes of the bundled model, with few and many tokens and with short and long contexts.
"""

# %% tags=["measured"]
def forward_case(num_seqs, new, cached):
    """A forward pass of `num_seqs` sequences, each with `new` new and `cached` cached tokens; its counts of tokens and context tokens."""
    blocks_each = blocks_for(cached + new, 16)
    runner = ModelRunner(model, num_seqs * blocks_each, 16)
    scheduler_output = SchedulerOutput()
    for index in range(num_seqs):
        blocks = list(range(index * blocks_each, (index + 1) * blocks_each))
        sequence = Sequence(str(index), [5] * (cached + new), 1, num_computed_tokens=cached, blocks=blocks)
        scheduler_output.num_scheduled_tokens[sequence] = new
    return lambda: runner.forward(scheduler_output), scheduler_output.num_tokens, num_seqs * (cached + new)


shapes = [(1, 1, 15), (4, 1, 31), (8, 1, 63), (16, 1, 63), (16, 1, 255), (1, 32, 0), (1, 64, 0), (1, 128, 0), (4, 32, 32), (1, 64, 192)]
passes, tokens, contexts = zip(*(forward_case(*shape) for shape in shapes))
ms = median_ms(passes, repeat=5)
fit = fit_cost(tokens, contexts, ms)
print(f"a step takes about {fit.base:.1f} ms + {fit.per_token:.3f} ms per token + {fit.per_context_token:.4f} ms per context token")
Table(
    columns=["sequences", "new tokens each", "cached tokens each", "measured, ms", "linear fit, ms"],
    rows=[[*shape, time, fit.seconds(*sizes)] for shape, time, *sizes in zip(shapes, ms, tokens, contexts)],
)

# %% [markdown]
"""
The fit finds the three coefficients with the smallest sum of squared errors. It's a rough model. With so few
measurements, a coefficient may even come out negative, especially on a busy machine.

### How long interactive requests can delay others

We repeat the streams of short requests with interactive requests, a patience of 0.5 s and a head start of 0.2 s. In the
first two rows, all requests are tier 0, including the odd one:
"""

# %%
with_head_start = PriorityWithAgeing(patience=0.5, head_start=0.2)


def odd_row(odd_tier, interactive):
    """Queue time of the odd one in three streams, in seconds."""
    runs = [served(with_head_start, stream(count, interactive, odd_tier), max_num_seqs=1).times for count in (25, 50, 100)]
    return [odd_tier, interactive, *(f"{times['odd'].queue_time:.2f}" for times in runs)]


one_short = served(with_head_start, stream(1), max_num_seqs=1).times["short 0"]
print(f"patience + head start: {with_head_start.patience + with_head_start.head_start:.1f} s")
print(f"A short request arrives every {1000 * GAP:.0f} ms and takes about {1000 * (one_short.finished - one_short.admitted):.0f} ms.")
Table(
    columns=["tier of the odd one", "interactive", *(f"stream of {count}" for count in (25, 50, 100))],
    rows=[odd_row(0, "none"), odd_row(0, "the others"), *(odd_row(1, which) for which in ("none", "the odd one", "the others"))],
    caption="Queue time of the odd one in seconds, in streams of 25, 50 and 100; the others are tier 0",
)

# %% [markdown]
"""
Within its own tier, an offline request yields only to interactive requests that arrive up to `head_start` seconds after
it. So in the second row the odd one waits 0.2 s longer than in the first, however long the stream is: aging also
limits how much interactive requests can delay the others.

Each tier below the best adds `patience` seconds. If the odd one is tier 1, it yields to interactive tier-0 requests
that arrive up to 0.7 s (patience plus head start) after it, as the last row shows. If the odd one is interactive and
the others aren't, it waits 0.2 s less than it would otherwise.

These are bounds on the order. How many seconds they amount to depends on how fast the requests ahead are served. Here,
short requests are served about as fast as they arrive, so one second of arrivals takes about one second to serve.
"""

# %% [markdown]
"""
### Tiers, on twenty thousand requests

The first 20,000 requests will do here. One in five is tier 0, the others are tier 1.
"""

# %%
policies = (FirstComeFirstServed(), ShortestJobFirst(), StrictPriority(), PriorityWithAgeing(0.5))
some = many[:20_000]
runs = {policy.name: at_large(policy, some) for policy in policies}


def row_of_latency(name, run):
    latency, longest_wait = spread(times_of(run, "latency")), max(times_of(run, "queue_time"))
    best, others = (
        mean(run.times[request.id].latency for request in some if (request.tier == 0) == is_best)
        for is_best in (True, False)
    )
    return [name, *(f"{seconds:,.2f}" for seconds in (latency.mean, latency.p99, longest_wait, best, others))]


Table(
    columns=["policy", "mean latency, s", "p99 latency, s", "longest queue time, s", "mean latency of tier 0, s", "of tier 1, s"],
    rows=[row_of_latency(name, run) for name, run in runs.items()],
    caption="20,000 requests",
)

# %% [markdown]
"""
Strict priority and aging hardly change the mean over both tiers: what tier 0 gains, tier 1 loses.

### Is the waiting time shared fairly?

> **time per output token**: the average time for each token after the first, TPOT for short.

A request for two words that waits ten seconds is worse off than a request for a long story that waits as long. So we
divide each request's latency by the latency it would have had on an empty machine. The result is its *slowdown*.

> **Jain's index**: a measure of how even a distribution is: (sum of the values)² / (count × sum of their squares). It
> is 1 if all values are equal, and 1 / count if all but one are 0.
"""

# %%
def mean_and_p99(spread):
    return " / ".join(f"{value:,.2f}" if value < 100 else f"{value:,.0f}" for value in (spread.mean, spread.p99))


def row_at_large(name, run, requests=some):
    found = summary(run)
    tpot = found["tpot"]
    return [
        name, mean_and_p99(found["ttft"]), f"{1000 * tpot.mean:.1f} / {1000 * tpot.p99:.1f}", mean_and_p99(found["latency"]),
        mean_and_p99(found["queue_time"]), f"{found['queue_time'].worst:,.1f}", f"{jain_index(slowdowns(run, requests, COST)):.2f}",
    ]  # fmt: skip


AT_LARGE = ["policy", "TTFT, s", "TPOT, ms", "latency, s", "queue time, s", "longest queue time, s", "Jain's index"]
runs["static, waves of 32"] = simulate_static(some, COST, batch_size=32)
for name in ("first come, first served", "static, waves of 32"):
    print(f"{name}: {len(some) / runs[name].seconds:,.0f} requests per second")
rows = [row_at_large(name, run) for name, run in runs.items()]
Table(columns=AT_LARGE, rows=rows, caption="Mean / p99 of 20,000 requests; Jain's index of the slowdowns")

# %% [markdown]
"""
**Static batching** can't keep up with this load: each wave runs for as long as its longest answer. So its queue grows
for as long as requests arrive, and its times mostly reflect the length of the trace. Even so, it does almost as well on
Jain's index as first come, first served: an index of evenness doesn't notice when all are served equally badly.

**First come, first served** makes requests that arrive together wait about equally long. But equal waits aren't equal
slowdowns: the same wait hurts a short request more. At this load, the slowdowns of **shortest job first** are the most
even, because short requests barely wait.

TPOT hardly depends on the policy, static batching apart. Once a sequence runs, it gets a token in every step, thanks to
"decodes first" and the budget.
"""

# %% [markdown]
"""
### Wrong estimates

Shortest job first depends on a length that isn't known in advance. In the worst case, the longest answer is expected to
be the shortest.
"""

# %%
estimates = {"exact estimates": eight, "reversed estimates": reversed_estimates(eight)}
rows = [row_of(f"shortest job first, {name}", served(ShortestJobFirst(), requests)) for name, requests in estimates.items()]
Table(columns=WAITS, rows=[*rows, row_of("first come, first served", first_three["first come, first served"])])

# %% [markdown]
"""
### Estimates

How good do the estimates have to be? On 10,000 requests, we add a normally distributed error with the given standard
deviation to the logarithm of each estimate.
"""

# %%
def with_error(deviation):
    return traffic(10_000, rate=480, estimate_error=deviation, **LOAD)


tries = {
    "exact": with_error(0),
    "mostly within a factor of 3 (deviation 1)": with_error(1),
    "mostly within a factor of 20 (deviation 3)": with_error(3),
}
tries["reversed"] = reversed_estimates(tries["exact"])
rows = [[f"shortest job first, estimates {name}", at_large(ShortestJobFirst(), requests)] for name, requests in tries.items()]
rows.append(["first come, first served", at_large(FirstComeFirstServed(), tries["exact"])])
Table(
    columns=["policy", "mean latency, s", "p99 latency, s", "longest latency, s"],
    rows=[[name, *(f"{value:.2f}" for value in vars(spread(times_of(run, "latency"))).values())] for name, run in rows],
    caption="10,000 requests",
)

# %% [markdown]
"""
A rough estimate still helps the mean; the slowest 1% of requests pay for it. Reversed estimates are worse than none.
"""

# %% [markdown]
"""
### Balanced lengths

Here's a different kind of policy. If all running sequences are long, every step reads a large cache. If all are short,
memory is idle. `BalancedLengths` looks at the first few waiting requests and picks the one that brings the mean length
of the running sequences closest to a target. It needs to see the running sequences, so in addition to `rank` it has a
method `choose`:
"""

# %%
show_source(BalancedLengths.choose)
with_aging = {
    "aging 0.2 s": served(PriorityWithAgeing(0.2)),
    "aging 0.2 s, head start 0.3 s": served(PriorityWithAgeing(0.2, head_start=0.3)),
}
balanced = {"balanced lengths, target 50": served(BalancedLengths(target=50))}

# %% [markdown]
"""
Here are all six runs on the same time scale. Aging appears twice, without a head start and with one:
"""

# %%
six = first_three | with_aging | balanced
draw_gantts(six, requests=eight)

# %%
Table(columns=WAITS, rows=[row_of(name, run) for name, run in six.items()])

# %% [markdown]
"""
With a patience of 0.2 s, E and G pass the tier-1 requests that arrived before them. When H arrives, C, D and F have
already waited longer than that, so H goes last.

With a head start of 0.3 s, the interactive requests F, G and H are admitted before C and D. The head start is longer
than the patience, so F, a tier-1 request, even goes before E, an offline tier-0 request that arrived just before it. C,
D and E pay for that with a longer wait. The mean drops, because the interactive requests happen to be short here.

In this trace, the mean latency under balanced lengths is close to that under shortest job first. That is luck: while
long requests run, short ones bring the mean length down to the target. Now the stream:
"""

# %%
stream_table([stream_row(f"balanced lengths, target {target}", BalancedLengths(target)) for target in (16, 60)])

# %% [markdown]
"""
It fails on a request that is unlike the others. With a target of 16, the length of the short requests, the odd one
never fits while a short one waits. With a target closer to its own length, it goes first.
"""

# %% [markdown]
"""
On the twenty thousand requests:
"""

# %%
balanced_at_large = at_large(BalancedLengths(target=50), some)
rows = [row_at_large(name, run) for name, run in [*list(runs.items())[:2], ("balanced lengths", balanced_at_large)]]
Table(columns=AT_LARGE, rows=rows, caption="Mean / p99 of 20,000 requests; Jain's index of the slowdowns")

# %% [markdown]
"""
**Balanced lengths** has a better mean and a better p99 than first come, first served. Judged by these two, it does
well. But its longest wait is almost as bad as that of shortest job first: a request far from the target waits until the
running sequences offset it. So its slowdowns are the least even. It was designed for TPOT, but its TPOT is about the
same as the others', because under this cost model a large cache makes a step only slightly more expensive. On another
machine that may differ.
"""

# %% [markdown]
"""
### The whole distributions

The table has two or three numbers for each metric. Here are the full distributions of four metrics. Static batching is
left out, because it would squeeze the others against the edge.
"""

# %%
METRICS = {"ttft": "time to first token", "tpot": "time per output token", "latency": "latency", "queue_time": "queue time"}
draw_distributions(
    {words: {policy.name: times_of(runs[policy.name], metric) for policy in policies} for metric, words in METRICS.items()}
)

# %% [markdown]
"""
### Bursts

Real requests arrive in bursts. Here we send 450 a second on average, slightly fewer than before, once as Poisson
arrivals and once in bursts: twenty at ten times the rate, then a pause.
"""

# %%
rows = []
for name, arrivals in (("Poisson", {}), ("bursts", {"arrivals": bursty_arrivals})):
    requests = traffic(10_000, rate=450, **LOAD, **arrivals)
    rows += [row_at_large(f"{name}: {policy.name}", at_large(policy, requests), requests) for policy in (FirstComeFirstServed(), ShortestJobFirst())]
Table(columns=AT_LARGE, rows=rows, caption="Mean / p99 of 10,000 requests")

# %% [markdown]
"""
The request rate, the lengths and the machine are the same, so the longer waits come from the bursts alone. A server
that is large enough on average is too small in many bursts.
"""

# %% [markdown]
"""
### Overload

An overload: 510 requests a second, more than the machine can serve. Some requests have to wait longer and longer. Which
ones? The charts plot queue time against arrival, separately for tier 0 and tier 1, under strict priority and under
aging.
"""

# %%
too_many = traffic(20_000, rate=510, **LOAD)
overloaded = {policy.name: at_large(policy, too_many) for policy in (StrictPriority(), PriorityWithAgeing(1.0))}
tiers = {request.id: request.tier for request in too_many}
draw_waits(overloaded, tiers)

# %% [markdown]
"""
Under strict priority, tier 0 doesn't notice the overload. Tier 1 alone pays for it, and its wait grows for as long as
the overload lasts. The wait drops only for the last arrivals: after them the trace ends, so no further tier-0 requests
arrive to pass them.

With aging, tier 0 hardly waits at first either. Once the wait of tier 1 has reached the patience, here 1 s, both waits
grow together, about 1 s apart. That is what the parameter means: a request of tier 1 waits as if it had arrived that
much later.

Neither is right or wrong. No policy makes a machine faster; a policy only decides which requests pay.

What about interactive requests? Here are the first 10,000 of them again, with every second request interactive, the
same patience of 1 s, and three head starts:
"""

# %%
half_interactive = [replace(request, is_interactive=index % 2 == 0) for index, request in enumerate(too_many[:10_000])]
groups = {f"tier {tier} {'interactive' if flag else 'offline'}": (tier, flag) for tier in (0, 1) for flag in (True, False)}


def head_start_row(head_start):
    """Mean queue time in seconds: of all requests, and of each group."""
    run = at_large(PriorityWithAgeing(1.0, head_start), half_interactive)
    waits = [
        [run.times[r.id].queue_time for r in half_interactive if (r.tier, r.is_interactive) == group]
        for group in groups.values()
    ]
    return [f"{head_start} s", *(f"{mean(seconds):.2f}" for seconds in (times_of(run, "queue_time"), *waits))]


Table(
    columns=["head start", "all", *groups], rows=[head_start_row(head_start) for head_start in (0, 0.5, 2)],
    caption="Mean queue time in seconds: 10,000 requests, 510 a second, aging with a patience of 1 s",
)  # fmt: skip

# %% [markdown]
"""
The mean over all requests hardly changes: what interactive requests gain, offline requests lose, in both tiers. A head
start of 2 s is longer than the patience, so interactive tier-1 requests wait less than offline tier-0 requests. Even
so, the gaps between interactive and offline requests stay below 2 s, because a request that hardly waits anyway has
nothing left to gain.
"""
