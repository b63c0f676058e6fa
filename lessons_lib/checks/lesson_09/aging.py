"""Checks 09.4, `PriorityWithAgeing`: the order of the ranks, and that a rank never changes with time."""

import time
from random import Random

from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_09.aging_words import why
from lessons_lib.checks.lesson_09.made_up import a_sequence, state_of
from lessons_lib.checks.lesson_09.ranks import is_before, refuse_no_number
from lessons_lib.scheduling.policies import PriorityWithAgeing
from lessons_lib.scheduling.sequence import WaitingQueue

INTERACTIVE = True
# patience, head start, then (arrival, tier, interactive) of the sequence that goes first, and of the other
CASES = (
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


def check_priority_with_aging(attempt) -> None:
    for patience, head_start, first, other in CASES:
        _check_pair(attempt, patience, head_start, first, other)
    _check_clock(attempt)
    _check_lengths(attempt)
    _check_queue(attempt)


def _sequence(name: str, arrival: float, tier: int, interactive: bool = False):
    return a_sequence(name, 13, arrival=arrival, tier=tier, interactive=interactive)


def _looked_at(sequence) -> tuple:
    return sequence.arrival_time, sequence.tier, sequence.is_interactive


def _settings(patience: float, head_start: float) -> str:
    return f"patience {patience} s, head start {head_start} s"


def _told(sequence) -> str:
    return (
        f"arrived at {sequence.arrival_time} s, tier {sequence.tier}, "
        f"{'' if sequence.is_interactive else 'not '}interactive"
    )


def _counts_as(sequence, patience: float, head_start: float) -> float:
    return sequence.arrival_time + sequence.tier * patience - sequence.is_interactive * head_start


def _rank(policy, sequence, case: str):
    state, own, told, settings = (
        state_of(sequence),
        _looked_at(sequence),
        _told(sequence),
        (policy.patience, policy.head_start),
    )
    rank = call(policy.rank, sequence, case=case)
    if _looked_at(sequence) != own:
        what = f"your code changed the sequence. Before: {told}. Now: {_told(sequence)}."
        raise Mistake(
            what,
            case=case,
            idea=("A policy only reads sequences. Other code relies on their arrival, tier and state too."),
        )
    if state_of(sequence) != state:
        what = "your code changed the sequence: its tokens, its blocks or its number of computed tokens."
        raise Mistake(
            what,
            case=case,
            idea=("A policy only reads sequences. Other code relies on their arrival, tier and state too."),
        )
    if (policy.patience, policy.head_start) != settings:
        what = (
            f"your code changed the policy. Before: {_settings(*settings)}. Now: "
            f"{_settings(policy.patience, policy.head_start)}."
        )
        raise Mistake(
            what,
            case=case,
            idea=(
                "Both settings apply to all sequences, including later ones. Keep what applies only to this "
                "sequence in a local variable."
            ),
        )
    refuse_no_number(rank, case)
    return rank


def _made(attempt, patience: float, head_start: float):
    policy = attempt(patience, head_start)
    if not hasattr(policy, "rank"):
        raise Mistake(
            "the class should have a method `rank(self, sequence)`; yours has none.",
            case=f"{_settings(patience, head_start)}.",
        )
    return policy


def _check_pair(attempt, patience: float, head_start: float, first, other) -> None:
    policy = _made(attempt, patience, head_start)
    a, b = (_sequence(name, *numbers) for name, numbers in zip("AB", (first, other)))
    case = f"{_settings(patience, head_start)}. A: {_told(a)}. B: {_told(b)}."
    try:
        ranks = _rank(policy, a, case), _rank(policy, b, case)
    except ZeroDivisionError:
        if patience and head_start:
            raise
        zero = "head start" if patience else "patience"
        raise Mistake(
            f"`rank` divides by the {zero}, and a {zero} of 0 is allowed.",
            case=case,
            idea="Add and subtract seconds. A setting of 0 seconds then has no effect on the order.",
        ) from None
    if not is_before(*ranks, case):
        a_, b_ = (_counts_as(sequence, patience, head_start) for sequence in (a, b))
        what = (
            f"A should go first: A ranks as if it had arrived at {a_:g} s, B as if at {b_:g} s. "
            f"Your ranks are {short(ranks[0])} for A and {short(ranks[1])} for B."
        )
        raise Mistake(what, case=case, idea=why(attempt))


def _check_clock(attempt) -> None:
    case = f"{_settings(10, 4)}; the rank of one sequence, computed twice."
    policy, sequence = _made(attempt, 10, 4), _sequence("A", 1.0, 1, INTERACTIVE)
    before = _rank(policy, sequence, case)
    time.sleep(0.002)
    after = _rank(policy, sequence, case)
    if before != after:
        what = f"the rank of a sequence should never change; yours was {short(before)}, then {short(after)}."
        idea = (
            "The queue asks once, when a sequence arrives. All waiting sequences age at the same rate, so the "
            "current time makes no difference to the order: leave the clock out."
        )
        raise Mistake(what, case=case, idea=idea)


def _check_lengths(attempt) -> None:
    case = (
        f"{_settings(10, 4)}. Both tier 0 and not interactive. A: arrived at 1 s, prompt 40, max_tokens 90, expected "
        "answer 60. B: arrived at 2 s, prompt 3, max_tokens 8, expected answer 5."
    )
    policy = _made(attempt, 10, 4)
    a = a_sequence("A", 40, max_tokens=90, arrival=1, expected=60)
    b = a_sequence("B", 3, max_tokens=8, arrival=2, expected=5)
    ranks = _rank(policy, a, case), _rank(policy, b, case)
    if not is_before(*ranks, case):
        what = f"A should go first, since it arrived first. Your ranks are {short(ranks[0])} and {short(ranks[1])}."
        idea = (
            "How long a request is makes no difference here: only its arrival time, its tier and `is_interactive` do."
        )
        raise Mistake(what, case=case, idea=idea)


def _check_queue(attempt) -> None:
    """The order of a queue of forty sequences."""
    rng = Random(9)
    for settings in ((0, 0), (0.5, 0.25), (7, 3), (7, 20), (1000, 5)):
        sequences = [_sequence(str(n), n * 0.75, rng.choice((0, 1, 2, 3)), rng.random() < 0.5) for n in range(40)]
        case = (
            f"{_settings(*settings)}; forty sequences in tiers 0 to 3, one every 0.75 s, about half of them "
            "interactive."
        )
        queue, want = WaitingQueue(_made(attempt, *settings)), WaitingQueue(PriorityWithAgeing(*settings))
        for sequence in sequences:
            queue.add(sequence), want.add(sequence)
        index = next(
            (
                n
                for n, (one, other) in enumerate(zip(queue, want))
                if _counts_as(one, *settings) != _counts_as(other, *settings)
            ),
            None,
        )
        if index is not None:
            one, other = list(queue)[index], list(want)[index]
            what = (
                f"position {index + 1} of the queue should be {other.id} ({_told(other)}); yours is {one.id} "
                f"({_told(one)})."
            )
            raise Mistake(
                what,
                case=case,
                idea=(
                    "The rule is the same for every sequence: arrival time + tier × patience, minus the head "
                    "start if it is interactive."
                ),
            )
