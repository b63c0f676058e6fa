"""Judges 09.4, `PriorityWithAgeing`: who goes before whom, and that it never depends on when one asks."""

import time
from random import Random

from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_09.made_up import a_sequence, state_of
from lessons_lib.policies import PriorityWithAgeing, WaitingQueue

# (patience, (arrival, tier) of the one that goes first, of the other)
CASES = (
    (10, (1, 0), (2, 0)),
    (10, (1, 1), (2, 1)),
    (10, (5, 0), (4, 1)),
    (10, (1, 1), (12, 0)),
    (10, (10.5, 0), (1, 1)),
    (10, (5, 1), (4, 2)),
    (10, (1, 2), (22, 0)),
    (10, (20, 0), (1, 2)),
    (10, (101, 0), (92, 1)),
    (10, (100, 1), (111, 0)),
    (0, (1, 1), (2, 0)),
    (0.5, (1.25, 0), (1, 1)),
    (0.5, (1, 1), (1.75, 0)),
    (1000, (900, 0), (1, 1)),
    (10, (1.25, 0), (1.5, 0)),
)


def check_priority_with_ageing(attempt) -> None:
    for patience, first, other in CASES:
        _check_pair(attempt, patience, first, other)
    _check_clock(attempt)
    _check_queue(attempt)


def _sequence(name: str, arrival: float, tier: int):
    return a_sequence(name, 13, arrival=arrival, tier=tier)


def _rank(policy, sequence, case: str):
    state, place = state_of(sequence), (sequence.arrival_time, sequence.tier)
    rank = call(policy.rank, sequence, case=case)
    if state_of(sequence) != state or (sequence.arrival_time, sequence.tier) != place:
        what = f"your code changed the sequence: arrival {place[0]} and tier {place[1]} became {sequence.arrival_time} and {sequence.tier}."
        raise Mistake(what, case=case, idea="A policy looks at sequences. Others read arrival and tier too.")
    if rank is None:
        raise Mistake("`rank` should return a number; yours returned None.", case=case, idea="The queue sorts by what `rank` returns: `return ...`.")
    return rank


def _is_before(one, other, case: str) -> bool:
    try:
        return bool(one < other)
    except TypeError:
        what = f"the ranks {short(one)} and {short(other)} cannot be compared."
        raise Mistake(what, case=case, idea="Return a number for every sequence: the smaller one goes first.") from None


def _made(attempt, patience: float):
    policy = attempt(patience)
    if not hasattr(policy, "rank"):
        raise Mistake("the class should have a method `rank(self, sequence)`; yours has none.", case=f"patience {patience}.")
    return policy


def _check_pair(attempt, patience: float, first, other) -> None:
    case = f"patience {patience} s; A came at {first[0]} s in tier {first[1]}, B at {other[0]} s in tier {other[1]}."
    policy = _made(attempt, patience)
    a, b = (_sequence(name, *numbers) for name, numbers in zip("AB", (first, other)))
    try:
        ranks = _rank(policy, a, case), _rank(policy, b, case)
    except ZeroDivisionError:
        raise Mistake("`rank` divides by the patience, and a patience of 0 is allowed.", case=case, idea="Multiply: so many tiers, so many seconds each. Patience 0 is then the order of arrival.") from None
    if not _is_before(*ranks, case):
        a_, b_ = (arrival + tier * patience for arrival, tier in (first, other))
        what = f"A should go first: A counts as if it had come at {a_:g} s, B at {b_:g} s. Your ranks are {short(ranks[0])} for A and {short(ranks[1])} for B."
        raise Mistake(what, case=case, idea=_why(policy, patience))


def _why(policy, patience: float) -> str:
    """Which other rule orders everything as this one does. Where patience is small or 0, rules look alike: so it is asked with larger ones."""
    policy.patience = max(patience, 25)
    rng = Random(4)
    people = [_sequence(str(n), rng.uniform(0, 100), rng.choice((0, 1, 2, 3))) for n in range(60)]
    patience = policy.patience
    try:
        order = [person.id for person in sorted(people, key=policy.rank)]
        policy.patience = patience + 35
        is_constant = order == [person.id for person in sorted(people, key=policy.rank)]
    except Exception:  # noqa: BLE001 - what is wrong was found already; this only looks for better words
        order, is_constant = None, False
    rules = (
        (lambda s: s.arrival_time, "The tier does not count in your rank. Each tier below the best is worth `patience` seconds."),
        (lambda s: (s.tier, s.arrival_time), "That is strict priority: whoever is of a lower tier waits until no better one is left, however long. Here waiting counts too: seconds and tiers in one sum."),
        (lambda s: s.tier, "Only the tier counts in your rank. Who has waited long must pass at some time: arrival time and tier in one sum."),
        (lambda s: s.arrival_time - s.tier * patience, "The sign is wrong: tier 0 is the best, and the smallest rank goes first. Being below the best tier makes a rank larger."),
        (lambda s: s.tier * patience - s.arrival_time, "Who came later has the smaller rank here, so the newest goes first. An early arrival is a small rank."),
        (lambda s: -s.arrival_time - s.tier * patience, "Everything is the other way round: the smallest rank goes first."),
        (lambda s: s.arrival_time * patience + s.tier, "The patience is multiplied with the arrival time. It is worth a number of seconds for each tier: patience × tier."),
        (lambda s: s.arrival_time * (patience + s.tier), "Arrival time and tier are multiplied, so what a tier is worth depends on the time of day. Add: arrival + tier × patience."),
        (lambda s: s.arrival_time + s.tier, "A tier is worth one second here, whatever the patience is. It is worth `self.patience` seconds."),
        (lambda s: s.arrival_time + bool(s.tier) * patience, "Tier 2 counts as tier 1 does. Each tier further down is worth `patience` seconds more."),
        (lambda s: int(s.arrival_time) + s.tier * patience, "Fractions of a second are lost. Many come within a second; keep the arrival time as it is."),
    )  # fmt: skip
    for rule, idea in rules:
        if order == [person.id for person in sorted(people, key=rule)]:
            return idea
    if is_constant:
        return "Your ranks are the same whatever the patience is. A tier is worth `self.patience` seconds, and everybody may choose another number."
    return "A sequence ranks as if it had come `patience` seconds later for each tier that it is below the best: arrival time + tier × patience."


def _check_clock(attempt) -> None:
    case = "patience 10 s; the rank of one sequence, asked for twice."
    policy, sequence = _made(attempt, 10), _sequence("A", 1.0, 1)
    before = _rank(policy, sequence, case)
    time.sleep(0.002)
    after = _rank(policy, sequence, case)
    if before != after:
        what = f"the rank of a sequence should stay what it is; yours was {short(before)}, then {short(after)}."
        idea = "The queue asks once, when a sequence comes. All who wait age alike, so the time that it is now makes no difference to the order: leave the clock out."
        raise Mistake(what, case=case, idea=idea)


def _check_queue(attempt) -> None:
    """A queue of many, in the order that it would be in."""
    rng = Random(9)
    for patience in (0, 0.5, 7, 1000):
        people = [_sequence(str(n), n * 0.75, rng.choice((0, 1, 2, 3))) for n in range(40)]
        case = f"patience {patience} s; forty sequences of the tiers 0 to 3, one every 0.75 s."
        queue, want = WaitingQueue(_made(attempt, patience)), WaitingQueue(PriorityWithAgeing(patience))
        for person in people:
            queue.add(person), want.add(person)
        found, expected = [s.arrival_time + s.tier * patience for s in queue], [s.arrival_time + s.tier * patience for s in want]
        place = next((n for n, (a, b) in enumerate(zip(found, expected)) if a != b), None)
        if place is not None:
            one, other = list(queue)[place], list(want)[place]
            what = f"place {place + 1} of the queue should be {other.id}'s (came at {other.arrival_time}, tier {other.tier}); yours has {one.id} (came at {one.arrival_time}, tier {one.tier})."
            raise Mistake(what, case=case, idea="arrival time + tier × patience, the same for every sequence.")
