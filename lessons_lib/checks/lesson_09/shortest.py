"""09.3, `ShortestWithAging`: its three promises, each on pairs of sequences."""

import time
from random import Random

from lessons_lib.checks.exercise import Exercise, Mistake, call, short
from lessons_lib.checks.lesson_09.made_up import a_sequence, state_of

MOST = 512  # tokens of the longest prompt, and of the longest answer expected
TOGETHER = "they arrive at the same time, and A has the shorter prompt and the shorter answer."
BOUND = "B arrived more than `patience` later."
OVERTAKES = "B is long, and A is short and arrived less than half of `patience` later."

# patience, then (arrival, prompt, expected tokens, what else differs) of the one that goes first, and of the other
CASES = (
    (2, (10, 20, 20), (10, 500, 500), TOGETHER),
    (2, (10, 1, 1), (10, 2, 2), TOGETHER),
    (2, (10, 500, 500), (12.1, 1, 1), BOUND),
    (2, (10, 20, 20), (14, 1, 1), BOUND),
    (2, (10, 512, 512), (12.002, 1, 1), BOUND),
    (2, (10.9, 1, 1), (10, 500, 500), OVERTAKES),
    (2, (11.5, 1, 1), (10.6, 500, 500), OVERTAKES),
    (2, (10.998, 1, 1), (10, 500, 500), OVERTAKES),
    (2, (10, 300, 300), (10, 400, 400), TOGETHER),
    (2, (10, 511, 511), (10, 512, 512), TOGETHER),
    (2, (10, 3, 200), (10, 300, 201), TOGETHER),
    (2, (10, 200, 3), (10, 201, 300), TOGETHER),
    (2, (10, 20, 20, {"max_tokens": 20}), (10, 40, 40, {"max_tokens": 512}), TOGETHER),
    (2, (10, 20, 20, {"tier": 1}), (10, 40, 40, {"tier": 0}), TOGETHER),
    (2, (10, 39, 39, {"interactive": False}), (10, 40, 40, {"interactive": True}), TOGETHER),
    (2, (10, 39, 39, {"interactive": True}), (10, 40, 40, {"interactive": False}), TOGETHER),
    (2, (10, 20, 60, {"answered": 50}), (10, 40, 61, {"answered": 0}), TOGETHER),
    (2, (10, 20, 60, {"answered": 0}), (10, 40, 61, {"answered": 50}), TOGETHER),
    (2, (10, 40, 40, {"tier": 3}), (12.5, 40, 40, {"tier": 0}), BOUND),
    (0.25, (10, 512, 512), (10.26, 1, 1), BOUND),
    (0.25, (10, 512, 1), (10.26, 1, 1), BOUND),
    (0.25, (10, 1, 512), (10.26, 1, 1), BOUND),
    (0.25, (10.12, 1, 1), (10, 500, 500), OVERTAKES),
    (60, (10, 512, 512), (71, 1, 1), BOUND),
    (60, (39, 1, 1), (10, 500, 500), OVERTAKES),
    (60, (10, 7, 7), (10, 8, 8), TOGETHER),
    (0.05, (1000, 400, 400), (1000, 401, 401), TOGETHER),
    (0.05, (1000, 512, 512), (1000.051, 1, 1), BOUND),
    (0.05, (1000.024, 1, 1), (1000, 500, 500), OVERTAKES),
)


def check_shortest_with_aging(attempt) -> None:
    _check_clock(attempt)
    for patience, first, other, promise in CASES:
        _check_pair(attempt, patience, first, other, promise)
    for number in range(200):
        _check_pair(attempt, *_random_pair(Random(number)))


def _random_pair(rng: Random):
    patience, arrival = rng.choice((0.1, 0.5, 3, 40)), rng.random() * 100
    prompts, answers = (sorted(rng.sample(range(1, MOST + 1), 2)) for _ in range(2))
    promise = rng.choice((TOGETHER, BOUND, OVERTAKES))
    if promise == BOUND:
        return (
            patience,
            (arrival, prompts[0], answers[1]),
            (arrival + patience * 1.001, prompts[1], answers[0]),
            promise,
        )
    if promise == OVERTAKES:
        return patience, (arrival + patience * 0.499, 1, 1), (arrival, 500, 500), promise
    return patience, (arrival, prompts[0], answers[0]), (arrival, prompts[1], answers[1]), promise


def _check_pair(attempt, patience: float, first, other, promise: str) -> None:
    policy = _made(attempt, patience)
    a, b = _sequence("A", *first), _sequence("B", *other)
    case = f"patience {patience} s. A: {_told(*first)}. B: {_told(*other)}."
    ranks = _rank(policy, a, case), _rank(policy, b, case)
    if not _is_before(*ranks, case):
        what = f"A should go first: {promise} Your ranks are {short(ranks[0])} for A and {short(ranks[1])} for B."
        raise Mistake(what, case=case, idea=_why(attempt, promise, ranks[0] == ranks[1]))


def _check_clock(attempt) -> None:
    case = "patience 2 s; the rank of one sequence, computed twice."
    policy, sequence = _made(attempt, 2), _sequence("A", 10.0, 20, 20)
    before = _rank(policy, sequence, case)
    time.sleep(0.002)
    after = _rank(policy, sequence, case)
    if before != after:
        raise Mistake(
            f"the rank of a sequence should never change; yours was {short(before)}, then {short(after)}.",
            case=case,
            idea="The queue asks once, when a sequence arrives. All age at the same rate, so leave the clock out.",
        )


def _sequence(name: str, arrival: float, prompt: int, expected: int, more: dict | None = None):
    return a_sequence(name, prompt, arrival=arrival, expected=expected, **{"max_tokens": MOST} | (more or {}))


def _told(arrival: float, prompt: int, expected: int, more: dict | None = None) -> str:
    told = {
        "max_tokens": "`max_new_tokens` {}",
        "tier": "tier {}",
        "interactive": "`is_interactive` {}",
        "answered": "{} tokens of its answer in `output_ids`",
    }
    parts = [told[name].format(value) for name, value in (more or {}).items()]
    return ", ".join([f"arrived at {arrival:.6g} s", f"prompt {prompt}", f"expected answer {expected}", *parts])


def _made(attempt, patience: float):
    policy = attempt(patience)
    if not hasattr(policy, "rank"):
        raise Mistake("the class should have a method `rank(self, sequence)`; yours has none.")
    return policy


def _rank(policy, sequence, case: str):
    def looked_at():
        return state_of(sequence), sequence.arrival_time, sequence.expected_tokens, sequence.tier

    before, patience = looked_at(), policy.patience
    rank = call(policy.rank, sequence, case=case)
    for what, is_changed in (("sequence", looked_at() != before), ("policy", policy.patience != patience)):
        if is_changed:
            raise Mistake(
                f"your code changed the {what}.",
                case=case,
                idea="`rank` only reads: compute the rank from the arrival time and the lengths, and return it.",
            )
    _refuse_no_number(rank, case)
    return rank


def _why(attempt, promise: str, is_tie: bool) -> str:
    def rank(patience, arrival, tokens, expected=None, **more):
        return attempt(patience).rank(_sequence("A", arrival, tokens, expected or tokens, more))

    lengths = (1, 4, 20, 400, 512)
    if all(rank(2, 10, tokens) == rank(2, 10, 1) for tokens in lengths):
        if rank(2, 10, 1, 20) == rank(2, 10, 20, 1) == rank(2, 10, 1):
            return "Your rank is the same for short and long requests. A short one must get a smaller rank."
        return "Your rank is the same whenever prompt and answer are equally long. A short request needs a smaller one."
    if rank(2, 10, 20) == rank(2, 1000, 20):
        return (
            "Your rank ignores the arrival time, so a long request can be overtaken forever. Start from "
            "`arrival_time`, and let the length add something to it."
        )
    if rank(2, 1000, 20) < rank(2, 10, 20):
        return "A later arrival has the smaller rank here, so the newest goes first."
    if rank(2, 10, 400) < rank(2, 10, 20):
        return "Here the longer request goes first. The smallest rank does, so more tokens must make the rank larger."
    for what, one, two in (
        ("`max_new_tokens`", {"max_tokens": 64}, {"max_tokens": 512}),
        ("the tier", {"tier": 0}, {"tier": 2}),
        ("`is_interactive`", {"interactive": False}, {"interactive": True}),
        ("the answer so far (`num_tokens` counts it too)", {"answered": 0}, {"answered": 10}),
    ):
        if rank(2, 10, 20, **one) != rank(2, 10, 20, **two):
            return f"Your rank depends on {what}. The promises hold whatever that is."
    if promise == OVERTAKES and not rank(2, 10.001, 1) < rank(2, 10, 500):
        return (
            "A tuple (arrival, length) looks at the length only if two arrive at the same moment. Turn the length into "
            "seconds, and add them to the arrival time."
        )
    if all(rank(2, 10, tokens) == rank(50, 10, tokens) for tokens in lengths):
        return (
            "With a patience of 2 s and of 50 s your rank is the same. Let the length move a sequence back by a part "
            "of `self.patience`: hardly any of it for the shortest request, and more than half for a long one."
        )
    if is_tie and promise == TOGETHER:
        return (
            "Both have the same rank. A limit such as `min`, or rounding, makes different lengths equal: let the rank "
            "grow a little with every token, up to 512."
        )
    try:
        moved = float(rank(2, 1010, 20) - rank(2, 10, 20)) / 1000
    except TypeError:
        moved = 1.0
    windows = (
        "Do you divide time into windows? Two that arrive shortly after each other may be in different ones. Add "
        "seconds to the arrival time instead: few for a short request, up to `patience` for a long one."
    )
    if rank(2, 10.001, 20) == rank(2, 10, 20) and promise != TOGETHER:
        return windows
    if abs(moved - 1) > 1e-6:
        return (
            f"With a patience of 2 s, a second of arrival moves your rank by {moved:.4g}, not by 1. Keep the arrival "
            "time in seconds, and add seconds to it: a part of `self.patience`."
        )
    try:
        grows = float(rank(2, 10, 500) - rank(2, 10, 1)), float(rank(2, 10, 512) - rank(2, 10, 1))
    except TypeError:
        grows = 1.5, 1.5
    if promise == BOUND and grows[1] > 2:
        return (
            f"With a patience of 2 s, your rank grows by {grows[1]:,.4g} s from the shortest request to the longest. "
            "Length may move a sequence back by 2 s at most."
        )
    if promise == OVERTAKES and grows[0] < 1:
        return (
            f"With a patience of 2 s, your rank grows by {grows[0]:,.4g} s from 1 to 500 tokens. To overtake, it must "
            "grow by half of the patience or more."
        )
    if promise == TOGETHER:
        return "Does the rank grow with every token of the prompt, or of the answer, or of both, and never shrink?"
    return windows


def _refuse_no_number(rank, case: str) -> None:
    """A tuple may be a rank, too: it is compared number by number."""
    if rank is None:
        raise Mistake(
            "`rank` should return a number; yours returned None.",
            case=case,
            idea="The queue sorts by what `rank` returns, so end with `return ...`.",
        )
    parts = rank if isinstance(rank, tuple | list) else (rank,)
    if isinstance(rank, str) or any(part != part for part in parts):
        raise Mistake(
            f"`rank` should return a number; yours returned {short(rank)}.",
            case=case,
            idea="Text is sorted letter by letter, and NaN is neither smaller nor larger than any number.",
        )


def _is_before(one, other, case: str) -> bool:
    try:
        return bool(one < other)
    except TypeError:
        what = f"the ranks {short(one)} and {short(other)} can't be compared."
        raise Mistake(what, case=case, idea="Return a number for every sequence: the smaller one goes first.") from None


EXERCISE = Exercise(
    id="09.3",
    title="a policy of your own",
    reference="lessons_lib.scheduling.policies:ShortestWithAging",
    test=check_shortest_with_aging,
    hints=(
        "Let each sequence rank as if it had arrived later than it did. How much later may the longest one be, so "
        "that none overtakes it that arrived more than `patience` after it? And the shortest?",
        "The rank is the arrival time plus a part of `self.patience`. The part depends on the lengths only: near 0 "
        "for the shortest request, at most 1 for the longest, and larger with every token. What does a request "
        "cost the machine?",
        "`cost = len(sequence.prompt_ids) + 8 * sequence.expected_tokens`; `return sequence.arrival_time + "
        "self.patience * part`, with `part = cost / 4608`. That keeps all three promises, but short requests "
        "hardly differ. A part that grows fast at first and slowly later can keep them too, and scores far better.",
    ),
)
