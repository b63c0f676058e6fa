"""10.1, `last_in_rank`: the victim is what the policy would serve last; on a tie, the later candidate."""

from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

from lessons_lib.checks.diagnosis import Task, Watch, mistakes
from lessons_lib.checks.exercise import Exercise
from lessons_lib.scheduling.policies import ShortestJobFirst, StrictPriority
from lessons_lib.scheduling.sequence import FirstComeFirstServed, Sequence


class LastComeFirstServed:
    name = "last come, first served"

    def rank(self, sequence: Any) -> float:
        return -float(sequence.arrival_time)


class Case(NamedTuple):
    """Candidates, as (id, arrival time, what else), and the policy; with a second one, another call follows."""

    candidates: list[tuple[str, float, dict[str, Any]]]
    policy: Any = FirstComeFirstServed()
    then: Any = None


def arrived(*times: float, **more: dict[str, Any]) -> list[tuple[str, float, dict[str, Any]]]:
    return [(name, time, more.get(name, {})) for name, time in zip("ABCD", times)]


def cases() -> Iterator[Case]:
    """Smallest first."""
    yield Case(arrived(1, 0), FirstComeFirstServed(), LastComeFirstServed())
    yield Case(arrived(1))
    for times in ((0, 1), (1, 0), (1, 1), (0, 2, 1), (2, 0, 1), (1, 1, 1), (2, 2, 0), (0, 1, 1), (3, 1, 2, 0)):
        yield Case(arrived(*times))
    yield Case([("B", 1, {}), ("A", 1, {})])
    yield Case(arrived(1, 2), LastComeFirstServed())
    yield Case(arrived(2, 1), LastComeFirstServed())
    yield Case(arrived(0, 1, A={"tier": 1}), StrictPriority())
    yield Case(arrived(1, 0, A={"tier": 1}, B={"tier": 1}), StrictPriority())
    yield Case(arrived(0, 1, A={"tier": 1}))
    expected = {name: {"expected_tokens": tokens} for name, tokens in (("A", 5), ("B", 60), ("C", 20))}
    expected["A"]["prompt"] = 40
    yield Case(arrived(0, 1, 2, **expected), ShortestJobFirst())
    yield Case(arrived(2, 1, A={"expected_tokens": 20}, B={"expected_tokens": 20}), ShortestJobFirst())
    for name in "AB":
        yield Case(arrived(1, 0, **{name: {"output_ids": [5, 5, 5]}}))
        yield Case(arrived(1, 0, **{name: {"is_interactive": True}}))
        yield Case(arrived(1, 1, **{name: {"prompt": 20}}))
    yield Case(arrived(1, 0, A={"num_computed_tokens": 0}))
    yield Case(arrived(1, 1, A={"queue_place": 1}, B={"queue_place": 0}))
    yield Case(arrived(0.5, 0.2))
    yield Case(arrived(0.5, 0.2), StrictPriority())
    yield Case(arrived(1_700_000_001, 1_700_000_000))
    draw = Random(10)
    for _ in range(40):
        more = {name: {"tier": draw.randrange(2), "expected_tokens": draw.randint(1, 9)} for name in "ABCD"}
        times = [draw.randrange(3) for _ in range(draw.randint(1, 4))]
        yield Case(arrived(*times, **more), draw.choice((FirstComeFirstServed(), ShortestJobFirst(), StrictPriority())))


def run(attempt: Any, case: Case, watch: Watch) -> None:
    candidates = []
    for name, arrival, more in case.candidates:
        settings = {"prompt": 8} | more
        length = settings.pop("prompt")
        settings = {"num_computed_tokens": length, "blocks": list(range(length))} | settings
        candidates.append(Sequence(name, list(range(length)), 30, arrival_time=arrival, **settings))
    watch("`last_in_rank`", attempt, candidates, case.policy, subject="the victim")
    if case.then:
        done = f"`last_in_rank` again, with the policy {case.then.name}"
        watch(done, attempt, candidates, case.then, subject="the victim")


def tell(case: Case) -> str:
    told = []
    for name, arrival, more in case.candidates:
        words = "".join(f", {key} {value}" for key, value in more.items())
        told.append(f"{name} (arrived at {arrival:,}{words})")
    return f"{case.policy.name}; the candidates are {', '.join(told)}, in the order of admission."


def smaller(case: Case) -> Iterator[Case]:
    for index in range(len(case.candidates)) if len(case.candidates) > 2 else ():
        yield case._replace(candidates=case.candidates[:index] + case.candidates[index + 1 :])


MISTAKES = """
The policy serves the *smallest* rank first. The victim is the one with the largest.
~ max( => min(
or
~ max(reversed(candidates) => min(candidates
Of equal ranks, the one admitted last is the victim. Which of several equal ones does `max` return: the first that it
sees.
~ reversed(candidates) => candidates
or
= return sorted(candidates, key=policy.rank, reverse=True)[0]
A pair (rank, sequence) compares the sequences if the ranks are equal, and they have no order. Compare the ranks alone:
`key=policy.rank`.
= return max((policy.rank(sequence), sequence) for sequence in candidates)[1]
Compare the ranks as they are: rounded to whole numbers, or as float32, different ones become equal.
= return max(reversed(candidates), key=lambda one: [int(part) for part in parts(policy.rank(one))])
or
= return max(reversed(candidates), key=lambda one: [float32(part) for part in parts(policy.rank(one))])
Ranks may be negative: begin with the rank of the first candidate, not with 0.
- return
+ victim, largest = None, [0]
+ for one in candidates:
+     if parts(policy.rank(one)) >= largest: victim, largest = one, parts(policy.rank(one))
+ return victim
or
- return
+ victim, largest = candidates[-1], [0]
+ for one in candidates:
+     if parts(policy.rank(one)) >= largest: victim, largest = one, parts(policy.rank(one))
+ return victim
If the ranks are equal, the position in the list decides, not the id.
= return max(candidates, key=lambda one: (policy.rank(one), one.id))
If the ranks are equal, the position in the list decides. `queue_place` is the order in which they waited.
= return max(reversed(candidates), key=lambda one: (policy.rank(one), one.queue_place or 0))
If the ranks are equal, the position in the list decides. Tokens and blocks make no difference.
= return max(reversed(candidates), key=lambda one: (policy.rank(one), -one.num_tokens))
or
= return max(reversed(candidates), key=lambda one: (policy.rank(one), one.num_tokens))
If the ranks are equal, the position in the list decides. This policy doesn't rank by arrival.
= return max(reversed(candidates), key=lambda one: (policy.rank(one), one.arrival_time))
Not every policy looks at the tier. Ask `policy.rank` alone.
= return max(reversed(candidates), key=lambda one: (one.tier, policy.rank(one)))
A rank may be a pair, and if the tiers are equal, its second number decides. Python compares pairs as a whole.
= return max(reversed(candidates), key=lambda one: parts(policy.rank(one))[0])
How far a candidate has come makes no difference: its tokens are kept. The rank alone decides.
= return max(reversed([one for one in candidates if not one.output_ids] or candidates), key=policy.rank)
or
= return max(reversed([one for one in candidates if one.output_ids] or candidates), key=policy.rank)
or
= return max(reversed([one for one in candidates if one.num_computed_tokens] or candidates), key=policy.rank)
The rank alone decides, whether or not a reader waits for the answer.
= return max(reversed(candidates), key=lambda one: (not one.is_interactive, policy.rank(one)))
You compare neighbors. Compare each candidate with the best victim so far.
- return
+ victim = candidates[0]
+ for before, after in zip(candidates, candidates[1:]):
+     if policy.rank(after) >= policy.rank(before): victim = after
+ return victim
The last one admitted may be one that was preempted, and that the policy serves early. Ask `policy.rank`.
= return candidates[-1]
The first one admitted is often the one that the policy serves first. Ask `policy.rank`.
= return candidates[0]
The length of a sequence makes no difference, unless the policy ranks by it. Ask `policy.rank`.
= return max(reversed(candidates), key=lambda one: one.num_tokens)
or
= return max(reversed(candidates), key=lambda one: len(one.blocks))
The policy may rank by something else than arrival and tier. Ask `policy.rank`.
= return max(reversed(candidates), key=lambda one: one.arrival_time + 1000 * one.tier)
or
= return max(reversed(candidates), key=lambda one: one.arrival_time)
The scheduler takes the blocks of what you return: it needs the sequence itself. `max(..., key=...)` returns it.
= return max(policy.rank(one) for one in candidates)
or
= return candidates.index(max(reversed(candidates), key=policy.rank))
or
= return max(reversed(candidates), key=policy.rank).id
Each candidate may be the victim, the first and the last one, too, also if it is alone.
~ reversed(candidates) => reversed(candidates[1:] or candidates)
or
~ reversed(candidates) => reversed(candidates[1:])
or
~ reversed(candidates) => reversed(candidates[:-1] or candidates)
A rank may be a pair, which has no negative. Use `max`.
= return min(reversed(candidates), key=lambda one: -policy.rank(one))
"""


def parts(rank: Any) -> list[float]:
    return [*rank] if isinstance(rank, tuple) else [rank]


def float32(part: float) -> float:
    """Rounded to 24 bits."""
    return float(round(part, -2)) if part > 1e7 else part


TASK = Task(
    reference="lessons_lib.scheduling.preemption:last_in_rank",
    cases=cases,
    run=run,
    tell=tell,
    smaller=smaller,
    known=mistakes(MISTAKES, parts=parts, float32=float32),
    about={
        "returned": "The policy serves the smallest rank first, so the candidate with the largest would be served "
        "last; of equal ones, the one that is last in the list. Ask `policy.rank` in each call.",
    },
)

EXERCISE = Exercise(
    id="10.1",
    title="the victim",
    reference=TASK.reference,
    test=TASK,
    hints=(
        "Suppose that C, which the policy serves last, isn't the victim but B is, and C is the one that needs the "
        "block. What happens then? And what if C needs the block and is the victim?",
        "So the victim is the candidate with the largest rank, whichever one needs the block. `max` with "
        "`key=policy.rank` finds it. If several are equally large, `max` returns the first one it sees. You want "
        "the last one in the list.",
        "`reversed(candidates)` iterates from the end and doesn't change the list: `max(reversed(candidates), "
        "key=policy.rank)`.",
    ),
    points=1,
)
