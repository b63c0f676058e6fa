# %% [markdown]
"""
# 09 · Scheduling

![Twenty requests under two policies: how long each of them waits](../lessons_lib/assets/openings/09.svg)

**A step has room for a limited number of tokens, sequences and blocks. Which requests get in?**

75 minutes · difficulty: medium · routes: serving · prerequisites: lessons 02 (continuous batching), 03 (blocks) and 06
(paged attention)

You'll write the part of a server that decides what each step computes: the scheduler. Then you'll run it on a hundred
thousand requests, without a model, and try a policy of your own.
"""

# %% folded=true
import random
from statistics import mean, median
from time import perf_counter
from types import SimpleNamespace

from lessons_lib.batching import ragged_generate
from lessons_lib.checks import check, hint, predict, progress, quiz, reset, reveal, solution
from lessons_lib.checks.lesson_09.scoreboard import policy_scoreboard
from lessons_lib.engine import ModelRunner, serve_greedily
from lessons_lib.kv_cache import BlockPool, blocks_for
from lessons_lib.measuring import MAX_NEW_TOKENS, NAMES, STORIES, Arrival, StepCost, simulate
from lessons_lib.measuring import spread, times_of, traffic
from lessons_lib.models import VOCAB_SIZE, load_model, tiny_model
from lessons_lib.scheduling import Deadlock, FirstComeFirstServed, Scheduler, SchedulerOutput
from lessons_lib.scheduling import Sequence, ShortestJobFirst, conservative, optimistic
from lessons_lib.viz.source import show_source
from lessons_lib.viz.stepper import Stepper
from lessons_lib.viz.tables import Table, step_table
from lessons_lib.viz.timelines import draw_gantts

# %%
# float32, so that results agree down to the last token
model, tokenizer = load_model(device="cpu")
prompt_ids = {story.name: tokenizer(story.prompt).input_ids for story in STORIES}
max_tokens_each = dict(zip(NAMES, MAX_NEW_TOKENS))

# %% [markdown]
"""
## The problem: one long prompt delays every answer

A, C, D and E are decoding. After ten steps, L arrives, with a prompt of 600 tokens. In lesson 06, the whole prompt would
go into the next step. The function below limits each step to `budget` tokens. Look only at its loop: schedule, forward
pass, update.
"""

# %% tags=["measured"]
long_prompt = ([token for name in NAMES for token in prompt_ids[name]] * 5)[:600]


def with_a_long_prompt(budget):
    """The milliseconds of each step."""
    runner = ModelRunner(model, 80, 16)
    scheduler = Scheduler(BlockPool(80, 16), max_num_batched_tokens=budget)
    for name in "ACDE":
        scheduler.add(Sequence(name, prompt_ids[name], max_new_tokens=40))
    ms = []
    while scheduler.has_unfinished():
        if len(ms) == 10:
            scheduler.add(Sequence("L", long_prompt, max_new_tokens=5))
        started = perf_counter()
        scheduler_output = scheduler.schedule()
        scheduler.update(scheduler_output,
                         runner.forward(scheduler_output).argmax(dim=-1).tolist())
        ms.append(1000 * (perf_counter() - started))
    return ms


for name, budget in (("whole prompts", 1024), ("at most 32 tokens", 32)):
    ms = with_a_long_prompt(budget)[:40]
    print(f"{name}: median step {median(ms):.0f} ms, longest {max(ms):.0f} ms")

# %% [markdown]
"""
The longest step computes L's whole prompt. A, C, D and E get their tokens only at its end, so all four streams pause.
With the limit, L's prompt is spread over many short steps. L pays for that: each has room for 28 of its tokens, so its
first token comes after 22 steps instead of one.

> **inter-token latency**: the time between two consecutive tokens of an answer, ITL for short.

> **token budget**: the maximum number of tokens that one step computes, over all sequences. vLLM calls it
> `max_num_batched_tokens`.

## Predict

The server is busy, and the six stories are in the state below. A token is **known** once it is in the prompt or has
been generated, and **computed** once its keys and values are in the cache. E has lost its cache (lesson 10 shows how):
20 tokens of its answer are known, but none of its tokens count as computed.
"""

# %%
def six_stories():
    """Six sequences: (name, known tokens of the answer, computed tokens)."""
    state = [("A", 5, 17), ("B", 0, 32), ("C", 2, 4), ("D", 0, 0), ("E", 20, 0), ("F", 0, 0)]
    return [
        Sequence(name, prompt_ids[name], max_tokens_each[name], output_ids=[0] * answer,
                 num_computed_tokens=computed)
        for name, answer, computed in state
    ]


Table(
    columns=["sequence", "prompt", "answer so far", "known", "computed", "known − computed"],
    rows=[
        [s.id, len(s.prompt_ids), len(s.output_ids), s.num_tokens, s.num_computed_tokens,
         s.num_tokens - s.num_computed_tokens]
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

In lesson 02, a request had a state: waiting, prefilling or decoding. Look at the table's last column instead. A has 18
known tokens, 17 of them computed, so it **wants** one. B is in the middle of its prompt and wants 30. E wants 25: its
prompt, plus an answer that has to be computed again. Prefill, chunk, decode and recomputation are the same thing:

> a step computes, for each running sequence, some of the tokens that are known but not computed.

When all known tokens are computed, the logits of the last one give the next token. A `Sequence` counts both:
`num_tokens` are known, and the first `num_computed_tokens` of them are computed.

## Build 1: share the budget

If a decode is skipped, a reader sees a gap in the answer. A prompt that gets a smaller chunk is only a little later.

**Exercise 09.1.** Write `share_budget(running, budget)`. `running` is a list of sequences in the order of admission,
and each wants at least one token. Return a dict: sequence → tokens that the next step computes, without those that
get nothing. None gets more than it wants, and all together get at most `budget`, which may be 0. If they want more:

- Those that want exactly **one** token come first. (It may be a decode, or the last token of a prompt.)
- Within each group, an earlier one gets all it wants before a later one gets anything.
- The whole budget is used.

Don't change the list or the sequences: nothing has been computed yet.

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
The next step has room for the rest of E and for all of F.

"One token first" matters only if a prompt in progress stands before a decode, as B does here. With this lesson's
scheduler, that never happens: a new sequence gets what is left of the budget, so only the last in `running` can be in
the middle of its prompt. But a server that also limits the chunk of any one prompt, as vLLM can, has several such
prompts at once, and your rule keeps its decodes going.

## Schedule, forward, update

```
scheduler.schedule()  ──▶  SchedulerOutput  ──▶  runner.forward(scheduler_output)  ──▶  logits
                                                                                          │
                                        scheduler.update(scheduler_output, tokens)  ◀── tokens
```

A `SchedulerOutput` has `num_scheduled_tokens`, the dict from Build 1; `admitted`, the sequences that start in this
step; and `stalled`, those that get no token for lack of blocks. The runner is lesson 06's forward pass.

## Which requests may start

A waiting request needs a batch slot (`max_num_seqs`), some budget, and memory. Memory is the hard part: how long will
the answer be?

> **admission control**: the rule by which a server decides whether a waiting request may start.

- **Conservative**, as in lesson 06: promise every sequence the blocks for prompt + `max_tokens` − 1 tokens, since the
  last one is never computed. Admit a request if all promises can be kept at once.
- **Optimistic**: admit a request if enough blocks are free for its known tokens, and hope that others finish before it
  grows.

Let's try both, with 6 blocks of 4 tokens, a budget of 8, and three batch slots. P (a prompt of 6 tokens, `max_tokens`
6), Q (10, 4) and R (3, 2) wait, in this order. Under the conservative rule, P runs alone: it may need 3 blocks for
6 + 6 − 1 = 11 tokens, and Q 4 for 13. R may need only one, but Q is next. If R could pass it, so could every small
request after R, and Q might wait forever.
"""

# %%
def all_steps(admission, max_tokens_of_r=2):
    """What the scheduler does with P, Q and R, step by step."""
    scheduler = Scheduler(BlockPool(6, 4), max_num_seqs=3, max_num_batched_tokens=8,
                          admission=admission, share_budget=share_budget)
    for name, prompt, max_tokens in (("P", 6, 6), ("Q", 10, 4), ("R", 3, max_tokens_of_r)):
        scheduler.add(Sequence(name, [5] * prompt, max_tokens))
    return step_table(scheduler, f"{admission.__name__}, max_tokens of R: {max_tokens_of_r}")


print(f"conservative: {len(all_steps(conservative).rows)} steps")
all_steps(optimistic)

# %% [markdown]
"""
In step 1, P leaves 2 tokens of the budget for a chunk of Q's prompt. Q gets blocks for these two, not for its whole
prompt. In step 3, P and Q want one token each, so R joins. In step 4, no block is free, and P's ninth token needs one.
So P **stalls**: it keeps its two blocks and gets no token. R finishes in that step, so P gets its block in the next.

But what if R doesn't finish in time? Let its `max_tokens` be 9:
"""

# %%
all_steps(optimistic, max_tokens_of_r=9)

# %% [markdown]
"""
> **deadlock**: a state in which each of several parties waits for something that another one holds, so none can ever
> continue.

> **watermark**: the number of blocks that optimistic admission keeps free, because running sequences will need more
> blocks soon.

A watermark only makes a deadlock less likely. ("Further" counts them in fifty workloads.) To rule it out, admit
conservatively (the default here), or take blocks back from a running sequence (lesson 10).

## Build 2: the scheduler

**Exercise 09.2.** Write `schedule_waiting(scheduler_output)`. It admits waiting sequences and schedules their first
tokens, once the running ones have theirs. The rest is given.

| you have | what it is |
|---|---|
| `self.waiting.next(self.running)` | the sequence to admit next; leaves it in `self.waiting`, the queue |
| `self.admission(self, sequence)` | whether memory has room for it (an attribute, not a method: pass `self`) |
| `self.admit(scheduler_output, sequence)` | takes it out of the queue; appends it to `self.running` and `scheduler_output.admitted` |
| `self.allocate_slots(scheduler_output, sequence, count)` | schedules `count` of its tokens, or lets it stall |
| `self.max_num_seqs`, `self.max_num_batched_tokens` | the limits: running sequences, and tokens in a step |
| `scheduler_output.num_tokens`, `.stalled` | so far in this step: scheduled tokens, and the sequences that stalled |

- An admitted sequence gets at least one token: all it wants, or what is left of the budget. It may have run before.
- If there is no memory for the next sequence, none behind it is admitted.
- If a sequence has stalled in this step, none is admitted: it would take the blocks that the stalled one waits for.
- Otherwise, as many as possible are admitted.

Example: step 3 in the first table. P and Q have a token each, and R is admitted and gets 3.
"""

# %% exercise="09.2" given="schedule schedule_running allocate_slots"
from lessons_lib.scheduling.scheduler import SchedulerBase

from lessons_lib.scheduling.stalling import Scheduler

# %% [markdown]
"""
## Prove it

A scheduler decides *when* a token is computed, and must never change *which* token. The oracle is lesson 05's packed
batch with whole prompts. Your scheduler, with your `share_budget`, serves a small random model with budgets from 4 to
64: once with `conservative`, which never stalls, and once with `optimistic` and a pool so small that some runs stall.
"""

# %%
END = 24
tiny, rng = tiny_model("llama"), random.Random(9)
prompts = [[rng.randrange(VOCAB_SIZE) for _ in range(length)] for length in (13, 30, 3, 21, 1)]
most = (4, 5, 6, 3, 1)
ends = SimpleNamespace(pad_token_id=0, eos_token_id=END)
expected = ragged_generate(tiny, ends, prompts, max_new_tokens=most)


def your_scheduler(num_blocks, budget, **settings):
    """Build 2 with Build 1."""
    return Scheduler(BlockPool(num_blocks, 16), max_num_batched_tokens=budget,
                     share_budget=share_budget, **settings)


def your_answers(budget, admission, num_blocks):
    scheduler = your_scheduler(num_blocks, budget, max_num_seqs=rng.randint(1, 4),
                               admission=admission)
    sequences = [Sequence(str(n), prompts[n], most[n], frozenset({END})) for n in range(5)]
    return serve_greedily(ModelRunner(tiny, num_blocks, 16), scheduler, sequences)


budgets = range(4, 65, 2)
for admission, num_blocks in ((conservative, 8), (optimistic, 3)):
    equal = sum(your_answers(budget, admission, num_blocks) == expected for budget in budgets)
    print(f"{admission.__name__}, {num_blocks} blocks: "
          f"equal answers with {equal} of {len(budgets)} budgets")

# %% [markdown]
"""
## Time

What a scheduler does depends on lengths, not on the text. So from here on, a simulator runs *your* scheduler without a
model. A step takes 5 ms for reading the weights, 20 µs for each token, and 0.2 µs for each context token: round numbers
for a model with a few billion parameters on one GPU.

> **context tokens**: the tokens that a step attends to, counted once per sequence: all that it has in the cache after
> the step.

An `Arrival` is a request that also says how long the answer will be.
"""

# %%
COST = StepCost(base=0.005, per_token=20e-6, per_context_token=0.2e-6)

# %% [markdown]
"""
Back to the opening, with these step times: four sequences decode, and L arrives with its 600 tokens. No reader of the
four should wait longer than 8 ms for the next token.

**09.b** What is the largest budget that keeps this promise? Leave out the context tokens: they cost little here.
"""

# %%
predict("09.b", ...)  # tokens

# %%
def prompt_of_l(budget):
    """(ms from L's first chunk to its first token, longest step in ms)."""
    four = [Arrival(name, 0, 1, 100, max_new_tokens=128) for name in "ACDE"]
    five = [*four, Arrival("L", 0.1, 600, 5, max_new_tokens=128)]
    run = simulate(your_scheduler(128, budget), five, COST, keep_steps=True)
    waited = run.times["L"].ttft - run.times["L"].queue_time
    return 1000 * waited, 1000 * max(step.seconds for step in run.steps)


reveal("09.b", max(budget for budget in range(100, 200) if prompt_of_l(budget)[1] <= 8),
       unit="tokens", tolerance=0.1)
for budget in (32, 143, 512, 1024):
    wait, longest = prompt_of_l(budget)
    print(f"budget {budget:5}: L's first token after {wait:5.1f} ms, "
          f"longest step {longest:.1f} ms")

# %% [markdown]
"""
The context tokens that you left out cost as much as the 7 tokens missing from 150. A larger budget helps L less and
less, while the longest step keeps growing.

> **time to first token**: the time from arrival to the first token of the answer, TTFT for short.

## Policies

When a batch slot becomes free, which waiting request gets it?

> **policy**: a rule that orders the waiting requests.

Here, a policy is a class with one method, `rank(sequence)`. The smallest rank goes first. The queue asks once, when a
sequence is added, so a rank can't depend on the current time.
"""

# %%
for policy in (FirstComeFirstServed, ShortestJobFirst):
    show_source(policy.rank)

# %% [markdown]
"""
These are **first come, first served** and **shortest job first**. `expected_tokens` is an estimate of the answer's
length, from a small model or from similar requests. Here, the estimates are exact.

> **starvation**: a request waits without end because others keep being served before it.

Under shortest job first, a long one starves for as long as enough short ones arrive. The fix is to let waiting time
count.

> **aging**: raising the priority of a request the longer it waits, so that every request is served eventually.

## Measure: a hundred thousand requests

Requests arrive at random, 480 a second on average. The machine can't serve many more, so queues form. As in real
traffic, most are short and a few are very long. There are 32 batch slots, a budget of 256, and blocks for all. Your
scheduler serves them under two policies.
"""

# %%
LOAD = dict(prompt_median=24, answer_median=4)
many = traffic(100_000, rate=480, **LOAD)
for what in ("prompt_tokens", "answer_tokens"):
    lengths = sorted(getattr(request, what) for request in many)
    print(f"{what}: median {lengths[50_000]}, mean {mean(lengths):.1f}, "
          f"99th percentile {lengths[99_000]}, longest {lengths[-1]}")

# %%
def at_large(policy, requests=many):
    scheduler = your_scheduler(2048, 256, max_num_seqs=32, policy=policy, admission=optimistic)
    return simulate(scheduler, requests, COST)


large = {policy.name: at_large(policy)
         for policy in (FirstComeFirstServed(), ShortestJobFirst())}

# %% [markdown]
"""
> **99th percentile**: the value that 99 of 100 values don't exceed, p99 for short.
"""

# %%
for name, run in large.items():
    latency = spread(times_of(run, "latency"))
    print(f"{name}: mean latency {latency.mean:.2f} s, p99 {latency.p99:.2f} s, "
          f"longest {latency.worst:.2f} s")

# %% [markdown]
"""
Shortest job first has less than half the mean latency. The longest answers pay: the p99 is worse, and one request
took almost a minute.
"""

# %% [markdown]
"""
## Build 3: a policy of your own

Can a policy keep most of what shortest job first gains, and still let no request wait without end? There are many
right answers, and they score differently. What does a request cost? A token of a prompt takes 20 µs. A token of an
answer takes as much, plus its share of a step's 5 ms: 156 µs with 32 in a batch. It costs as much as eight or nine
prompt tokens.

Most requests are short: prompt 24, answer 4. A rank that grows evenly up to 512 + 512 tokens hardly tells such a request
from one twice as long. So let it grow fast among short requests, and slowly among long ones.

**Exercise 09.3.** Write `rank` of `ShortestWithAging`, from a sequence's `arrival_time`, `expected_tokens` and
`len(sequence.prompt_ids)`. Both lengths are from 1 to 512, and `self.patience`, in seconds, is above 0. It must keep
three promises, whatever else differs:

- Of two that arrive at the same time, one whose prompt and expected answer are both shorter goes first.
- None is overtaken by one that arrived more than `self.patience` seconds after it.
- A short one (prompt 1, expected answer 1) overtakes a long one (500, 500) that arrived less than half of
  `self.patience` before it.

Example with a patience of 2 s: A (500, 500) arrives at 10 s, B (20, 20) also at 10 s, C (1, 1) at 10.9 s, and D (1, 1)
at 12.1 s. B and C go before A, and D goes after it. Whether C goes before B is up to you.
"""

# %% exercise="09.3" given="__init__"
from lessons_lib.scheduling.policies import ShortestWithAging

# %% [markdown]
"""
Does it do what you meant? Here are twenty requests on a small machine with three batch slots. Move the slider: the
larger the patience, the further a short request may jump ahead. Change `rank`, run the cells again, and watch.
"""

# %%
few = traffic(20, rate=60, prompt_median=24, answer_median=12, seed=5)
patiences = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)


def on_three_slots(policy):
    scheduler = your_scheduler(128, 64, max_num_seqs=3, policy=policy, admission=optimistic)
    return simulate(scheduler, few, COST, keep_steps=True)


in_order = on_three_slots(FirstComeFirstServed())
Stepper(lambda i: draw_gantts({
    "first come, first served": in_order,
    f"yours, patience {patiences[i]} s": on_three_slots(ShortestWithAging(patiences[i])),
}), count=6, start=3, still=3, name=lambda i: f"patience {patiences[i]} s")

# %% [markdown]
"""
Now the hundred thousand, with a patience of 2 s. The score is the share of the gain that your policy keeps: 0% is the
mean of first come, first served, 100% that of shortest job first. It counts only if the p99 is below that of shortest
job first.
"""

# %%
policy_scoreboard(ShortestWithAging(2), at_large, large)

# %% [markdown]
"""
Ordering by cost alone scores 121%, but its longest latency is 47 s. Aging shortens that, at the price of some of the gain.
Is your score below 40%? Then your rank still grows too evenly.

**Stretch (optional).** The library's policy scores 66%; 84% is possible.

## What is still wrong

**Admission wastes memory or gets stuck.** In lesson 10, the scheduler takes blocks back, so it can be optimistic.

**The loop around the scheduler is too simple.** Lesson 12 makes an engine of it.

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
- vLLM: `vllm/v1/core/sched/scheduler.py`, `vllm/config/scheduler.py`. <https://github.com/vllm-project/vllm>
- Hugging Face transformers: continuous batching. <https://huggingface.co/docs/transformers/main/en/continuous_batching>
"""

# %% [markdown] folded=true
"""
## Further (optional)

Nothing here counts toward the 75 minutes.
"""

# %% [markdown]
"""
### Conservative or optimistic?

We compare them on sixty requests that arrive almost together, each with a `max_tokens` of 96 (`most`, below). The pool
has 44 blocks of 16 tokens, at most 16 sequences run, and the budget is 64 tokens. One workload could be luck, so there
are fifty:

**09.c** How many requests run at the same time with `conservative`? Treat every request as an average one.
"""

# %%
SHORT = dict(rate=1000, prompt_median=24, answer_median=16, spread=0.8, most=96)
fifty = [traffic(60, **SHORT, seed=seed) for seed in range(50)]
for what in ("prompt_tokens", "answer_tokens"):
    lengths = [getattr(request, what) for sixty in fifty for request in sixty]
    print(f"{what}: {min(lengths)} to {max(lengths)}, mean {mean(lengths):.0f}")
predict("09.c", ...)  # requests

# %%
STEPS = StepCost(base=1, per_token=0, per_context_token=0)  # the clock counts steps
deadlocks = []


def run_with(sixty, admission, watermark=0):
    """Steps, running sequences and share of the pool in use (means over the steps), and steps
    with a stall."""
    scheduler = your_scheduler(44, 64, max_num_seqs=16, admission=admission,
                               watermark=watermark)
    run = simulate(scheduler, sixty, STEPS, keep_steps=True)
    running = mean(len(step.prefill) + len(step.decode) + len(step.stalled)
                   for step in run.steps)
    used = mean(1 - step.free_blocks / 44 for step in run.steps)
    return run.num_steps, running, used, sum(bool(step.stalled) for step in run.steps)


def over_fifty(*rule):
    """How many of the fifty workloads end in a deadlock, and the means over those that
    don't."""
    ended = []
    for sixty in fifty:
        try:
            ended.append(run_with(sixty, *rule))
        except Deadlock as error:
            deadlocks.append(error)
    return [len(fifty) - len(ended), *map(mean, zip(*ended))]


rules = {"conservative": (conservative,)}
rules |= {f"optimistic, watermark {n}": (optimistic, n) for n in (0, 2, 4, 8)}
outcome = {name: over_fifty(*rule) for name, rule in rules.items()}
print("The first deadlock:", deadlocks[0])
reveal("09.c", outcome["conservative"][2], unit="requests", tolerance=0.2)
Table(
    columns=["admission", "deadlocks in 50", "steps", "running", "pool in use",
             "steps with a stall"],
    rows=[
        [name, stuck, f"{steps:.0f}", f"{running:.1f}", f"{used:.0%}", f"{stalls:.1f}"]
        for name, (stuck, steps, running, used, stalls) in outcome.items()
    ],
    caption="Fifty workloads of sixty requests. Means of those that ended",
)

# %% [markdown]
"""
An average request is promised 8 blocks, for 32 + 96 − 1 = 127 tokens, and 44 blocks keep five such promises.
Conservative admission is safe, but most of the pool stays idle: answers end long before they reach `max_tokens`.
Optimistic admission with a small watermark runs about twice as many sequences, in about half as many steps, unless it
deadlocks. A larger watermark makes that less likely, and leaves more blocks idle. Even none in fifty doesn't rule it
out.

### Wrong estimates

How wrong may estimates be before first come, first served is better? Here, shortest job first gets estimates that are
off by a random factor. In the last row, the longest answer is expected to be the shortest.
"""

# %%
from lessons_lib.measuring import reversed_estimates

exact, rough, wild = (
    traffic(20_000, rate=480, estimate_error=deviation, **LOAD) for deviation in (0, 1, 3)
)
at_work = [("first come, first served", FirstComeFirstServed(), exact)]
for words, requests in (
    ("exact", exact), ("mostly within a factor of 3", rough),
    ("mostly within a factor of 20", wild), ("reversed", reversed_estimates(exact)),
):  # fmt: skip
    at_work.append((f"shortest job first, estimates {words}", ShortestJobFirst(), requests))


def row_of_policy(name, policy, requests):
    latency = spread(times_of(at_large(policy, requests), "latency"))
    found = latency.mean, latency.p99, latency.worst
    return [name, *(f"{seconds:.2f}" for seconds in found)]


Table(
    columns=["policy", "mean latency, s", "p99, s", "longest, s"],
    rows=[row_of_policy(*one) for one in at_work],
    caption="20,000 requests",
)

# %% [markdown]
"""
A rough estimate still helps the mean, but the p99 gets worse. Reversed estimates are worse than none. A policy doesn't
make the machine faster. It only decides which requests wait.

### What production does

- **vLLM**: `schedule()` in `vllm/v1/core/sched/scheduler.py` starts with a comment saying that there is no decoding
  phase and no prefill phase in the scheduler: every step tries to let `num_computed_tokens` catch up with the known
  tokens. It schedules `self.running` first, then `self.waiting`, and stops at the first waiting request for which there
  are no blocks. Two things differ from ours: it doesn't move those that want one token to the front, and if there is no
  free block, it preempts (lesson 10).
- vLLM's limits are `max_num_batched_tokens` and `max_num_seqs`; `long_prefill_token_threshold` limits the chunk of any
  one prompt. `--scheduling-policy` is `fcfs` or `priority`, without aging.
- **Hugging Face transformers** has two schedulers in `generation/continuous_batching/scheduler.py`, `fifo` (decodes
  first, like yours) and `prefill_first`. Both have a `safety_margin`: a watermark.
- **Orca** (2022) introduced *iteration-level scheduling*: a scheduling decision before every step. **Sarathi-Serve**
  (2024) added chunks of prompts that share one budget with decodes, and called it *stall-free*: no decode waits for a
  prompt.
"""
