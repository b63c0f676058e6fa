"""Judges 10.1, `last_in_rank`: the victim is the sequence that the policy would serve last; on a tie, the later
candidate.
"""

from random import Random

from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.scheduling.policies import ShortestJobFirst, StrictPriority
from lessons_lib.scheduling.sequence import FirstComeFirstServed, Sequence


class LastComeFirstServed:
    """A policy that only this check uses: the latest arrival is served first."""

    name = "last come, first served"

    def rank(self, sequence):
        return -sequence.arrival_time


def check_last_in_rank(attempt) -> None:
    _check_alone(attempt)
    _check_order_of_arrival(attempt)
    _check_called_again(attempt)
    _check_other_policies(attempt)
    _check_another_policy(attempt)
    _check_progress(attempt)
    _check_alike(attempt)
    _check_close_ranks(attempt)
    _check_random(attempt)


def _sequence(
    id: str, arrival_time: float = 0.0, prompt: int = 8, expected: float | None = None, tier: int = 0
) -> Sequence:
    return Sequence(
        id,
        list(range(prompt)),
        30,
        arrival_time=arrival_time,
        expected_tokens=expected,
        tier=tier,
        num_computed_tokens=prompt,
        blocks=list(range(prompt)),
    )


def _ids(candidates: list[Sequence]) -> str:
    return "[" + ", ".join(sequence.id for sequence in candidates) + "]"


def _choose(
    attempt, candidates: list[Sequence], policy, want: Sequence, case: str, ideas: dict[str, str], otherwise: str
) -> None:
    """Let the attempt choose, and explain a wrong choice by the sequence it chose, or by `ideas["None"]`."""
    given = list(candidates)
    try:
        got = call(lambda: attempt(given, policy), case=case)
    except (ValueError, IndexError) as error:
        if len(candidates) > 1:
            raise
        raise Mistake(
            f"your code raised {type(error).__name__}: {error}.",
            case=case,
            idea="There is one candidate here. Does your code leave one out, such as the first, or take a second one "
            "for granted? Every candidate may be the victim, even if it is the only one.",
        ) from None
    except TypeError as error:
        if "'Sequence' and 'Sequence'" not in str(error):
            raise
        raise Mistake(
            f"your code raised TypeError: {error}.",
            case=case,
            idea="Two candidates have the same rank. A tuple (rank, sequence) then compares the sequences, and they "
            "have no order. Compare the ranks alone, as with `key=policy.rank`, and let the order in `candidates` "
            "break a tie.",
        ) from None
    changed = len(given) != len(candidates) or any(one is not other for one, other in zip(given, candidates))
    if changed:
        what = f"your code changed `candidates`: it was {_ids(candidates)} and is {_ids(given)} afterwards."
        raise Mistake(
            what,
            case=case,
            idea=(
                "Only read the list. `reversed(candidates)` and `sorted(candidates, ...)` leave the list as it is; "
                "`.reverse()`, `.sort()` and `.pop()` do not."
            ),
        )
    if got is want:
        return
    if not isinstance(got, Sequence):
        itself = (
            "`max(..., key=...)` returns the sequence with the largest key. The scheduler takes the blocks of what "
            "you return, so it needs the sequence itself."
        )
        nothing = "There is always a victim. Does your function return one here?"
        idea = ideas.get("None", nothing) if got is None else itself
        raise Mistake(
            f"the victim should be the sequence {want.id}; yours returned {short(got)}.", case=case, idea=idea
        )
    raise Mistake(
        f"the victim should be {want.id}; yours chose {got.id}.", case=case, idea=ideas.get(got.id, otherwise)
    )


LAST = "The policy serves the smallest rank first, so the sequence with the largest rank would be served last."


def _check_alone(attempt) -> None:
    a = _sequence("A", 1.0)
    case = "only A runs, and it needs a block itself."
    _choose(
        attempt,
        [a],
        FirstComeFirstServed(),
        a,
        case,
        {},
        "With one candidate there is no choice: it gives up its own blocks.",
    )


def _check_order_of_arrival(attempt) -> None:
    a, b, c, d = (_sequence(name, float(time), prompt=8 + time) for time, name in enumerate("ABCD"))
    first = (
        "A has the smallest rank, so the policy serves it before all others. It would lose its blocks to "
        "sequences that rank behind it. "
    )
    ideas = {
        "A": first + "The victim is the one with the largest rank.",
        "B": (
            "B is first in the list, but it doesn't have the largest rank. The position in the list only breaks ties "
            "between equal ranks."
        ),
        "C": (
            "C was admitted last, but D ranks behind it. If the last one admitted were the victim, a sequence that "
            "was preempted once would be preempted again and again. Ask `policy.rank`."
        ),
    }
    case = (
        "first come, first served; A arrived at 0, B at 1, C at 2, D at 3. Some were preempted earlier and have "
        "been admitted again, so the candidates are B, A, D, C."
    )
    _choose(attempt, [b, a, d, c], FirstComeFirstServed(), d, case, ideas, LAST)
    case = "first come, first served; A arrived at 0, B at 1, C at 2, and they were admitted in this order."
    at_the_end = "C has the largest rank and is the last in the list. Does your function look at it?"
    _choose(attempt, [a, b, c], FirstComeFirstServed(), c, case, {"A": first, "B": at_the_end}, LAST)
    case = "first come, first served; the candidates are C (arrived at 2), B (at 1), A (at 0)."
    _choose(
        attempt,
        [c, b, a],
        FirstComeFirstServed(),
        c,
        case,
        {
            "A": "A is last in the list, but it arrived first. " + LAST,
            "B": "C has the largest rank and is the first in the list. Does your function look at it?",
        },
        LAST,
    )
    case = "first come, first served; the candidates are D (arrived at 3), A (at 0), B (at 1)."
    ideas = {
        "A": first + "The victim is the one with the largest rank.",
        "B": (
            "B ranks behind A, which is before it in the list, but D has the largest rank of all. Compare each "
            "candidate with the best victim so far."
        ),
    }
    _choose(attempt, [d, a, b], FirstComeFirstServed(), d, case, ideas, LAST)


def _check_close_ranks(attempt) -> None:
    """Ranks that are equal once they are rounded."""
    rounded = "A's rank is larger. Compare the ranks as they are: rounded to whole numbers, these two are equal."
    a, b = _sequence("A", 0.5), _sequence("B", 0.2)
    case = "first come, first served; A arrived at 0.5 and B at 0.2; the candidates are A, B."
    _choose(attempt, [a, b], FirstComeFirstServed(), a, case, {"B": rounded}, LAST)
    case = (
        "strict priority; both are in tier 0, A arrived at 0.5 and B at 0.2, so their ranks are (0, 0.5) and (0, 0.2)."
    )
    parts = "A's rank is larger. Compare the pairs as they are: rounded to whole numbers, these two are equal."
    _choose(attempt, [a, b], StrictPriority(), a, case, {"B": parts}, LAST)
    a, b = _sequence("A", 1_700_000_001.0), _sequence("B", 1_700_000_000.0)
    case = (
        "first come, first served; B arrived at 1,700,000,000 (`time.time()` in 2023) and A a second later; the "
        "candidates are A, B."
    )
    single = "A's rank is larger. Compare the ranks as they are: as float32, these two are equal."
    _choose(attempt, [a, b], FirstComeFirstServed(), a, case, {"B": single}, LAST)


def _check_called_again(attempt) -> None:
    """Other sequences may have the ids of earlier ones."""
    policy = FirstComeFirstServed()
    p, q = _sequence("P", 1.0), _sequence("Q", 0.0)
    case = "first come, first served; P arrived at 1 and Q at 0; the candidates are Q, P."
    _choose(attempt, [q, p], policy, p, case, {}, LAST)
    q, p = _sequence("Q", 1.0), _sequence("P", 0.0)
    case = (
        "first come, first served, and two calls. In the first one, P arrived at 1 and Q at 0. In the second one, two "
        "other sequences have these ids: Q arrived at 1 and P at 0, and the candidates are P, Q."
    )
    kept = (
        "The first call was right, and so this one would be by itself. Does your function keep ranks from one call to "
        "the next? Ask `policy.rank` in every call."
    )
    _choose(attempt, [p, q], policy, q, case, {"P": kept}, LAST)


def _check_another_policy(attempt) -> None:
    """The same sequences have other ranks under another policy."""
    a, b = _sequence("A", 1.0), _sequence("B", 0.0)
    case = "first come, first served; A arrived at 1 and B at 0; the candidates are A, B."
    _choose(attempt, [a, b], FirstComeFirstServed(), a, case, {}, LAST)
    case = (
        "two calls with the same sequences: A arrived at 1 and B at 0. The first call's policy was first come, first "
        "served. The second one's serves the latest arrival first, so the ranks are −1 and 0."
    )
    kept = (
        "The first call was right, and so this one would be by itself. Does your function keep a sequence's rank? "
        "Another policy ranks it in another way: ask `policy.rank` in every call."
    )
    _choose(attempt, [a, b], LastComeFirstServed(), b, case, {"A": kept}, LAST)


def _check_other_policies(attempt) -> None:
    a, b, c = (
        _sequence("A", 0.0, prompt=40, expected=5),
        _sequence("B", 1.0, prompt=3, expected=60),
        _sequence("C", 2.0, prompt=8, expected=20),
    )
    case = (
        "shortest job first; A has a prompt of 40 tokens and an expected answer of 5, B has 3 and 60, C has 8 and 20."
    )
    ideas = {
        "A": (
            "A has the most tokens and blocks now, but the policy serves it first. The length of a sequence doesn't "
            "matter unless the policy ranks by it: `policy.rank(sequence)`."
        ),
        "C": (
            "C arrived last, but this policy ranks by expected length. Ask `policy.rank(sequence)`, not `arrival_time` "
            "or `tier`."
        ),
    }
    _choose(attempt, [a, b, c], ShortestJobFirst(), b, case, ideas, LAST)
    low, high = _sequence("A", 0.0, tier=1), _sequence("B", 1.0, tier=0)
    case = (
        "strict priority; A arrived at 0 in tier 1, B arrived at 1 in tier 0. Here ranks are pairs: (1, 0.0) and "
        "(0, 1.0)."
    )
    _choose(
        attempt,
        [low, high],
        StrictPriority(),
        low,
        case,
        {"B": "B is in the better tier: its rank (0, 1.0) is the smaller one, so it is served first. " + LAST},
        LAST,
    )
    late, early = _sequence("A", 1.0, tier=1), _sequence("B", 0.0, tier=1)
    case = "strict priority; A arrived at 1 and B at 0, both in tier 1, so their ranks are (1, 1.0) and (1, 0.0)."
    both = "If the tiers are equal, the second number of the pairs decides. Python compares pairs as a whole."
    _choose(attempt, [late, early], StrictPriority(), late, case, {"B": both}, LAST)
    a, b = _sequence("A", 1.0), _sequence("B", 2.0)
    case = (
        "a policy that serves the latest arrival first: rank = −arrival time. A arrived at 1, B at 2, so their ranks "
        "are −1 and −2."
    )
    _choose(
        attempt,
        [a, b],
        LastComeFirstServed(),
        a,
        case,
        {
            "B": (
                "B arrived last, so this policy serves it first: its rank is the smaller one. Does your function go by "
                "`policy.rank` alone, and may a rank be negative?"
            ),
            "None": (
                "Here both ranks are negative. If your function compares each with the largest one so far, begin with "
                "the rank of the first candidate."
            ),
        },
        LAST,
    )


def _check_progress(attempt) -> None:
    """What a candidate has computed, and whether a reader watches it, makes no difference."""
    for answered in ("A", "B"):
        a, b = _sequence("A", 1.0), _sequence("B", 0.0)
        (a if answered == "A" else b).output_ids = [5, 5, 5]
        other = "B" if answered == "A" else "A"
        case = (
            f"first come, first served; A arrived at 1 and B at 0. {answered} has 3 tokens of its answer, {other} none "
            "yet. The candidates are A, B."
        )
        idea = "A ranks behind B, so A is the victim. How far they are makes no difference: the tokens are kept."
        _choose(attempt, [a, b], FirstComeFirstServed(), a, case, {"B": idea}, LAST)
    only_rank = "A ranks behind B, so A is the victim. The rank alone decides, unless two are equal."
    a, b = _sequence("A", 1.0), _sequence("B", 0.0)
    a.num_computed_tokens = 0
    case = "first come, first served; A arrived at 1 and B at 0. A has blocks, but none of its tokens are computed yet."
    _choose(attempt, [a, b], FirstComeFirstServed(), a, case, {"B": only_rank}, LAST)
    for name in "AB":
        a, b = _sequence("A", 1.0), _sequence("B", 0.0)
        (a if name == "A" else b).is_interactive = True
        case = f"first come, first served; A arrived at 1 and B at 0; only {name} is interactive."
        _choose(attempt, [a, b], FirstComeFirstServed(), a, case, {"B": only_rank}, LAST)


def _check_alike(attempt) -> None:
    idea = (
        "If several candidates share the largest rank, the victim is the last of them in the list, the one admitted "
        "last. Which of several equal ones do `max` and `sorted(..., reverse=True)` put first?"
    )
    for count in (2, 3):
        candidates = [_sequence(name, 1.0) for name in "ABC"[:count]]
        case = f"first come, first served; the candidates {_ids(candidates)} all arrived at 1."
        _choose(attempt, candidates, FirstComeFirstServed(), candidates[-1], case, {}, idea)
    for prompts in ((4, 20), (20, 4)):
        a, b = (_sequence(name, 1.0, prompt) for name, prompt in zip("AB", prompts))
        case = "first come, first served; A and B arrived at 1, with prompts of {} and {} tokens.".format(*prompts)
        length = "A and B have the same rank, and B is later in the list. Their tokens and blocks make no difference."
        _choose(attempt, [a, b], FirstComeFirstServed(), b, case, {"A": length}, LAST)
    a, b = _sequence("A", 2.0, expected=20), _sequence("B", 1.0, expected=20)
    case = "shortest job first; A arrived at 2, B at 1; both have an expected answer of 20; the candidates are A, B."
    later = (
        "A and B have the same rank, and B is later in the list. This policy doesn't rank by arrival, so A's later "
        "arrival makes no difference."
    )
    _choose(attempt, [a, b], ShortestJobFirst(), b, case, {"A": later}, LAST)
    _check_queue_places(attempt)
    _check_tiers(attempt)
    a, b, c = _sequence("A", 0.0), _sequence("B", 1.0), _sequence("C", 1.0)
    case = "first come, first served; A arrived at 0, B and C at 1; the candidates are A, C, B."
    by_list = "B and C have the same rank, and B is later in the list. The position in the list decides, not the id."
    _choose(attempt, [a, c, b], FirstComeFirstServed(), b, case, {"C": by_list}, LAST)
    a, b, c = _sequence("A", 2.0), _sequence("B", 2.0), _sequence("C", 0.0)
    case = "first come, first served; A and B arrived at 2, C at 0; the candidates are A, B, C."
    _choose(attempt, [a, b, c], FirstComeFirstServed(), b, case, {"A": idea}, LAST)


def _check_queue_places(attempt) -> None:
    """A sequence that was preempted and admitted again waited first, but was admitted last."""
    a, b = _sequence("A", 1.0), _sequence("B", 1.0)
    a.queue_place, b.queue_place = 1, 0
    case = (
        "first come, first served; A and B arrived at 1. B waited first: its `queue_place` is 0, and A's is 1. B was "
        "preempted and admitted again, so the candidates are A, B."
    )
    idea = (
        "A and B have the same rank, and B was admitted later. The order of admission is that of the list; "
        "`queue_place` is the order in which they waited."
    )
    _choose(attempt, [a, b], FirstComeFirstServed(), b, case, {"A": idea}, LAST)


def _check_tiers(attempt) -> None:
    """Not every policy looks at the tier."""
    a, b = _sequence("A", 0.0, tier=1), _sequence("B", 1.0, tier=0)
    case = "first come, first served; A arrived at 0 in tier 1, B at 1 in tier 0; the candidates are A, B."
    idea = "This policy doesn't look at the tier, so A's worse tier makes no difference. Ask `policy.rank` alone."
    _choose(attempt, [a, b], FirstComeFirstServed(), b, case, {"A": idea}, LAST)


def _check_random(attempt) -> None:
    rng = Random(10)
    for index in range(200):
        candidates = [
            _sequence(f"s{i}", rng.randrange(4), rng.randint(1, 50), rng.randint(1, 50), rng.randrange(2))
            for i in range(rng.randint(1, 8))
        ]
        policy = rng.choice((FirstComeFirstServed(), ShortestJobFirst(), StrictPriority()))
        ranks = [policy.rank(sequence) for sequence in candidates]
        want = max(range(len(ranks)), key=lambda i: (ranks[i], i))
        _choose(
            attempt,
            candidates,
            policy,
            candidates[want],
            f"random case {index}, {policy.name}; ranks in list order: {ranks}.",
            {},
            LAST,
        )
