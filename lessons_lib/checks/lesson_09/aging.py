"""09.4, `PriorityWithAgeing`: the order of the ranks, and that a rank never changes with time."""

import time
from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Any

from lessons_lib.checks.diagnosis import Task, Watch, mistakes
from lessons_lib.checks.diagnosis.telling import Shown
from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_09.made_up import a_sequence, state_of
from lessons_lib.checks.lesson_09.ranks import is_before, refuse_no_number
from lessons_lib.scheduling.sequence import Sequence

Spec = tuple[Any, ...]  # arrival, tier, and perhaps interactive, the lengths of prompt and expected answer
Case = tuple[float, float, list[Spec]]  # patience, head start, the sequences
INTERACTIVE = True
# patience, head start, then (arrival, tier, interactive) of the sequence that goes first, and of the other
PAIRS = (
    (10, 4, (1, 0), (2, 0)),
    (10, 4, (1, 1), (2, 1)),
    (10, 4, (5, 0), (4, 1)),
    (10, 4, (1, 1), (12, 0)),
    (10, 4, (10.5, 0), (1, 1)),
    (10, 4, (5, 1), (4, 2)),
    (10, 4, (1, 2), (22, 0)),
    (10, 4, (20, 0), (1, 2)),
    (10, 4, (101, 0), (92, 1)),
    (10, 4, (100, 1), (111, 0)),
    (0, 4, (1, 1), (2, 0)),
    (0.5, 0.25, (1.25, 0), (1, 1)),
    (0.5, 0.25, (1, 1), (1.75, 0)),
    (1000, 4, (900, 0), (1, 1)),
    (10, 4, (1.25, 0), (1.5, 0)),
    (10, 4, (103, 0, INTERACTIVE), (100, 0)),
    (10, 4, (100, 0), (105, 0, INTERACTIVE)),
    (10, 4, (103, 1, INTERACTIVE), (100, 1)),
    (10, 4, (92, 1, INTERACTIVE), (100, 0)),
    (10, 4, (100, 0), (97, 1, INTERACTIVE)),
    (10, 4, (100, 1, INTERACTIVE), (107, 0)),
    (10, 4, (83, 2, INTERACTIVE), (100, 0)),
    (10, 15, (101, 1, INTERACTIVE), (100, 0)),
    (10, 15, (104, 0), (110, 1, INTERACTIVE)),
    (10, 4, (107, 0, INTERACTIVE), (100, 1, INTERACTIVE)),
    (10, 4, (1, 0, INTERACTIVE), (2, 0, INTERACTIVE)),
    (10, 0, (1, 0), (2, 0, INTERACTIVE)),
    (0, 5, (104, 1, INTERACTIVE), (100, 0)),
    (0, 5, (100, 1), (106, 0, INTERACTIVE)),
    (0.5, 0.25, (1.5, 0, INTERACTIVE), (1.375, 0)),
    (10, 4, (1.001, 0), (1.004, 0)),
    (10, 4, (2.0001, 1, INTERACTIVE), (2.0004, 1, INTERACTIVE)),
)


def cases() -> Iterator[Case]:
    """Pairs of which the first goes first, then one twice, two of other lengths, and many in one queue."""
    yield from ((patience, head_start, [first, other]) for patience, head_start, first, other in PAIRS)
    yield 10, 4, [(1.0, 1, INTERACTIVE)]
    yield 10, 4, [(1, 0, False, 40, 60), (2, 0, False, 3, 5)]
    draw = Random(9)
    for patience, head_start in ((25, 40), (25, 40), (0, 0), (0, 40), (25, 0), (0.5, 0.25), (60, 75), (1000, 5)):
        specs: dict[float, Spec] = {}
        while len(specs) < 60:
            spec = (draw.randrange(80_000) / 64, draw.choice((0, 1, 2, 3)), draw.random() < 0.5)
            specs.setdefault(counts_as(spec, patience, head_start), spec)  # no two of the same rank
        yield patience, head_start, list(specs.values())


def counts_as(spec: Spec, patience: float, head_start: float) -> float:
    return spec[0] + spec[1] * patience - (len(spec) > 2 and spec[2]) * head_start


def run(Policy: Any, case: Case, watch: Watch) -> None:
    patience, head_start, specs = case
    policy = Policy(patience, head_start)
    sequences = [made(f"{number}" if len(specs) > 2 else "AB"[number], *spec) for number, spec in enumerate(specs)]

    def look() -> dict[str, Any]:
        """What a rank may not change."""
        own = {"policy.patience": policy.patience, "policy.head_start": policy.head_start}
        for each in sequences[:2]:
            own |= {
                f"arrival_time of {each.id}": each.arrival_time,
                f"is_interactive of {each.id}": each.is_interactive,
                f"tier of {each.id}": each.tier,
                f"state of {each.id}": list(state_of(each)),
            }
        return own

    if len(sequences) == 1:
        watch("`rank`, twice", partial(twice, policy, *sequences), look=look, subject="the second rank of A")
    elif len(sequences) == 2:
        watch("`rank` of A and B", partial(first_of, policy, *sequences), look=look, subject="the one that goes first")
    else:
        watch("a queue of 60", partial(order, policy, sequences), subject="the order")


def made(
    name: str, arrival: float, tier: int, interactive: bool = False, prompt: int = 13, expected: float | None = None
) -> Sequence:
    return a_sequence(name, prompt, arrival=float(arrival), tier=tier, interactive=interactive, expected=expected)


def rank_of(policy: Any, sequence: Sequence) -> Any:
    rank = policy.rank(sequence)
    refuse_no_number(rank, "")
    return rank


def first_of(policy: Any, a: Sequence, b: Sequence) -> str:
    ranks = rank_of(policy, a), rank_of(policy, b)
    return Shown("A" if is_before(*ranks, "") else "B" if is_before(*ranks[::-1], "") else "neither: they are tied")


def twice(policy: Any, sequence: Sequence) -> str:
    before = rank_of(policy, sequence)
    time.sleep(0.002)
    return Shown("the same" if rank_of(policy, sequence) == before else "another")


def order(policy: Any, sequences: list[Sequence]) -> list[str]:
    return [each.id for each in sorted(sequences, key=partial(rank_of, policy))]


def tell(case: Case) -> str:
    patience, head_start, specs = case
    settings = f"patience {patience} s, head start {head_start} s."
    if len(specs) > 2:
        return f"{settings} Sixty sequences in tiers 0 to 3, about half of them interactive."
    told = (f"{name}: {told_of(*spec)}; ranks as if it had arrived at {counts_as(spec, patience, head_start):g} s."
            for name, spec in zip("AB", specs))  # fmt: skip
    return f"{settings} {' '.join(told)}"


def told_of(arrival: float, tier: int, interactive: bool = False, *lengths: float) -> str:
    text = f"arrived at {arrival} s, tier {tier}, {'' if interactive else 'not '}interactive"
    return text + (f", prompt {lengths[0]}, expected answer {lengths[1]}" if lengths else "")


MISTAKES = """
The whole order is reversed: the smallest rank goes first.
= return -(sequence.arrival_time + sequence.tier * self.patience - head_start)
Your rank uses only the arrival time: that is first come, first served. The tier and the head start belong in the same
sum.
= return sequence.arrival_time
That is strict priority: a lower tier waits until no better one is left, however long that takes. Here waiting counts,
too: arrival, tier and head start belong in one sum.
= return sequence.tier, sequence.arrival_time
or
= return sequence.tier, not sequence.is_interactive, sequence.arrival_time
Your head start works only within a tier. Between tiers, that is strict priority: a lower tier waits until no better one
is left. Arrival, tier and head start belong in one sum.
= return sequence.tier, sequence.arrival_time - head_start
All interactive requests go before all others, however long the others wait. Being interactive is worth `head_start`
seconds, no more: put everything in one sum.
= return not sequence.is_interactive, sequence.tier, sequence.arrival_time
or
= return not sequence.is_interactive, sequence.arrival_time + sequence.tier * self.patience
Your rank uses only the tier. A request that has waited long enough must go first at some point: put arrival time and
tier in one sum.
= return sequence.tier
Your rank uses only `is_interactive`. Arrival time, tier and head start belong in one sum.
= return -head_start
Your ranks never go below 0, so all sequences whose rank should be negative are tied. A rank may be negative: only the
order matters.
= return max(sequence.arrival_time + sequence.tier * self.patience - head_start, 0)
Interactive requests that arrive in the first seconds are all tied, because your arrival − head start never goes below
0. A rank may be negative.
= return max(sequence.arrival_time - head_start, 0) + sequence.tier * self.patience
In the tiers below the best, your head start can at most cancel the tier. Subtract all of it, even if the rank becomes
smaller than the arrival time.
- return
+ tier = sequence.tier * self.patience
+ return sequence.arrival_time + (max(tier - head_start, 0) if sequence.tier else -head_start)
Your head start can at most cancel the tier, so an interactive tier-0 request gains nothing. Subtract all of it.
= return sequence.arrival_time + max(sequence.tier * self.patience - head_start, 0)
Your rank ignores `is_interactive`, or all sequences get the head start. An interactive request ranks as if it had
arrived `head_start` seconds earlier, and no other.
= head_start = 0
The sign of the head start is wrong, or it goes to the sequences that aren't interactive. The smallest rank goes first,
so a head start makes the rank of an interactive request smaller.
= return sequence.arrival_time + sequence.tier * self.patience + head_start
Being interactive is worth twice the head start here. Subtract it once from interactive requests, and leave the others.
= head_start = self.head_start if sequence.is_interactive else -self.head_start
Being interactive is worth one second here, whatever the head start is: subtract `self.head_start` seconds.
= head_start = sequence.is_interactive
Being interactive is worth `patience` seconds here, like a tier. It has a setting of its own: `self.head_start`.
= head_start = self.patience if sequence.is_interactive else 0.0
You multiply the head start by the patience, so it is worth more or less than it says. All are in seconds: use them as
they are.
= head_start = self.head_start * self.patience if sequence.is_interactive else 0.0
You multiply the head start by the tier, so interactive tier-0 requests have none. It's the same for all tiers.
= return sequence.arrival_time + sequence.tier * self.patience - head_start * sequence.tier
Only tier 0 gets a head start in your rank. Every interactive request gets it, whatever its tier.
~ if sequence.is_interactive => if sequence.is_interactive and sequence.tier == 0
Interactive tier-0 requests get no head start in your rank. Every interactive request gets it, whatever its tier.
~ if sequence.is_interactive => if sequence.is_interactive and sequence.tier
Your rank ignores the tier of interactive requests. The head start comes on top of it: arrival + tier × patience − head
start.
= return sequence.arrival_time - head_start + sequence.tier * self.patience * (not sequence.is_interactive)
Your rank ignores the tier of interactive requests, and never uses the head start. Both belong in one sum.
= return sequence.arrival_time + sequence.tier * self.patience * (not sequence.is_interactive)
Your rank ignores the tier. Each tier below the best adds `patience` seconds.
= return sequence.arrival_time - head_start
Your rank ignores the arrival time, and with it the time spent waiting. Arrival time, tier and head start belong in one
sum.
= return sequence.tier * self.patience - head_start
The sign of the tier is wrong: tier 0 is the best, and the smallest rank goes first. A worse tier makes the rank larger.
= return sequence.arrival_time - sequence.tier * self.patience - head_start
A later arrival has the smaller rank here, so the newest goes first. An early arrival should have a small rank.
= return sequence.tier * self.patience - sequence.arrival_time - head_start
The signs of arrival and tier are flipped: the smallest rank goes first.
= return -sequence.arrival_time - sequence.tier * self.patience - head_start
A longer patience makes a tier worth less here. Do you divide by it, or multiply the arrival time by it? It's the number
of seconds that each tier is worth: patience × tier.
= return sequence.arrival_time * self.patience + sequence.tier - head_start
or
= return sequence.arrival_time + (sequence.tier / self.patience if self.patience else 0) - head_start
`rank` divides by a setting, and a patience or head start of 0 is allowed. Add and subtract seconds.
= return sequence.arrival_time + sequence.tier / self.patience - head_start
or
= return sequence.arrival_time / self.patience + sequence.tier - head_start / self.patience
You multiply arrival time and tier, so what a tier is worth depends on the time of day. Add them: arrival + tier ×
patience.
= return sequence.arrival_time * (self.patience + sequence.tier) - head_start
or
= return sequence.arrival_time * sequence.tier - head_start
A tier is worth one second here, whatever the patience is. It should be worth `self.patience` seconds.
= return sequence.arrival_time + sequence.tier - head_start
A tier is worth `head_start` seconds here. `self.patience` is for tiers, `self.head_start` for interactive requests.
= return sequence.arrival_time + sequence.tier * self.head_start - head_start
Tier 2 ranks like tier 1. Each further tier adds `patience` seconds.
= return sequence.arrival_time + bool(sequence.tier) * self.patience - head_start
Tier 2 is worth four times the patience here. Each tier below the best adds `patience` seconds once: patience × tier.
= return sequence.arrival_time + sequence.tier**2 * self.patience - head_start
You raise the patience to the power of the tier. Each tier below the best adds `patience` seconds: tier × patience.
= return sequence.arrival_time + (self.patience**sequence.tier if sequence.tier else 0) - head_start
or
= return sequence.arrival_time + self.patience**sequence.tier - head_start
You multiply the patience by the head start. They are separate numbers of seconds: a tier is worth `patience` seconds.
= return sequence.arrival_time + sequence.tier * self.patience * self.head_start - head_start
Fractions of a second are lost. Many requests arrive within one second; keep the arrival time as it is.
~ sequence.arrival_time => int(sequence.arrival_time)
or
= return round(sequence.arrival_time + sequence.tier * self.patience - head_start, 2)
or
= return (sequence.arrival_time + sequence.tier * self.patience - head_start) // 1
or
= return round(1000 * (sequence.arrival_time + sequence.tier * self.patience - head_start))
You multiply the arrival time, so patience and head start in seconds hardly count next to it. All are in seconds.
~ sequence.arrival_time => 1000 * sequence.arrival_time
The two settings are swapped: `self.patience` is for tiers, `self.head_start` for interactive requests.
- head_start =
- return
+ return sequence.arrival_time + sequence.tier * self.head_start - self.patience * sequence.is_interactive
Your ranks are the same whatever the patience is. A tier is worth `self.patience` seconds, which differs from policy to
policy.
~ self.patience - => 10 -
Your ranks are the same whatever the head start is. Being interactive is worth `self.head_start` seconds.
~ self.head_start if => 4 if
A setting of 0 needs no special case: 0 seconds add nothing, and the order of arrival is what is left.
~ self.head_start if => (self.head_start if self.patience else 0.0) if
or
~ sequence.tier * self.patience => sequence.tier * (self.patience or 1)
The queue asks once, when a sequence arrives. All waiting sequences age at the same rate, so the current time makes no
difference to the order: leave the clock out.
= return sequence.arrival_time + sequence.tier * self.patience - head_start - time.time()
How long a request is makes no difference here: only its arrival time, its tier and `is_interactive` do.
~ - head_start => - head_start + (sequence.expected_tokens or 0)
or
~ - head_start => - head_start + len(sequence.prompt_ids)
"""

READS = "A policy only reads sequences. Other code relies on their arrival, tier and state: use a local variable."
SETTINGS = "Both settings apply to all sequences. Keep what applies only to this one in a local variable."
TASK = Task(
    reference="lessons_lib.scheduling.policies:PriorityWithAgeing",
    cases=cases,
    run=run,
    tell=tell,
    clear=0.6,
    known=mistakes(MISTAKES, time=time),
    about={
        "returned": "A sequence ranks as if it had arrived `patience` seconds later for each tier below the best, and "
        "`head_start` seconds earlier if it is interactive.",
        "raised ZeroDivisionError": "A patience or head start of 0 is allowed. Add and subtract seconds.",
        **{
            f"{name} of {which}": READS
            for name in ("arrival_time", "is_interactive", "tier", "state")
            for which in "AB"
        },
        **dict.fromkeys(("policy.patience", "policy.head_start"), SETTINGS),
    },
)

EXERCISE = Exercise(
    id="09.4",
    title="priority with aging (optional)",
    reference=TASK.reference,
    test=TASK,
    hints=(
        "All waiting requests age at the same rate. So three things are enough: when a request arrived, how many "
        "seconds its tier costs it, and how many it gains if it is interactive.",
        "The rank is a time: the arrival time, plus `patience` seconds for each tier below the best, minus "
        "`head_start` seconds if the request is interactive. Tier 0 is the best.",
        "`head_start = self.head_start if sequence.is_interactive else 0`; `return sequence.arrival_time + "
        "sequence.tier * self.patience - head_start`",
    ),
    points=1,
)
