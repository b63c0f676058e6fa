"""10.1, `last_in_rank`: the victim is what the policy would serve last; on a tie, the later candidate."""

from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

from lessons_lib.checks.diagnosis import Shown, Task, Watch, mistakes
from lessons_lib.scheduling.policies import ShortestJobFirst, StrictPriority
from lessons_lib.scheduling.sequence import FirstComeFirstServed, Sequence


class LastComeFirstServed:
    name = "last come, first served"

    def rank(self, sequence: Any) -> float:
        return -float(sequence.arrival_time)


FCFS = FirstComeFirstServed()
LENGTHS = {"A": 9, "B": 7, "C": 12, "D": 8}  # of the prompts


class Case(NamedTuple):
    """Candidates, as (id, arrival time, what else), and the policy; with a second one, another call follows."""

    candidates: list[tuple[str, float, dict[str, Any]]]
    policy: Any = FCFS
    then: Any = None


def arrived(*times: float, **more: dict[str, Any]) -> list[tuple[str, float, dict[str, Any]]]:
    return [(name, time, more.get(name, {})) for name, time in zip("ABCD", times)]


def cases() -> Iterator[Case]:
    """Smallest first."""
    yield Case(arrived(1, 0), FCFS, LastComeFirstServed())
    yield Case(arrived(1))
    for times in ((0, 1), (1, 0), (1, 1), (0, 2, 1), (2, 0, 1), (1, 1, 1), (2, 2, 0), (0, 1, 1), (3, 1, 2, 0)):
        yield Case(arrived(*times))
    yield Case([("B", 1, {}), ("A", 1, {})])
    yield Case(arrived(1, 2), LastComeFirstServed())
    yield Case(arrived(2, 1), LastComeFirstServed())
    yield Case(arrived(0, 1, A={"tier": 1}), StrictPriority())
    yield Case(arrived(1, 0, A={"tier": 1}, B={"tier": 1}), StrictPriority())
    yield Case(arrived(0, 1, A={"tier": 1}))
    yield Case(arrived(2, 1, A={"expected_tokens": 20}, B={"expected_tokens": 20}), ShortestJobFirst())
    yield Case(arrived(0.5, 0.2))
    yield Case(arrived(1_700_000_001, 1_700_000_000))
    yield Case(arrived(1, 0, A={"num_computed_tokens": 0}))
    yield Case(arrived(1, 0, A={"is_interactive": True}))
    yield Case(arrived(1, 1, A={"queue_place": 1}, B={"queue_place": 0}))
    draw = Random(10)
    for _ in range(40):
        more = {}
        for name in "ABCD":
            more[name] = {"tier": draw.randrange(2), "expected_tokens": draw.randint(1, 9)}
            more[name] |= {"output_ids": [5] * draw.randrange(3)}
        times = [draw.randrange(3) for _ in range(draw.randint(1, 4))]
        yield Case(arrived(*times, **more), draw.choice((FCFS, ShortestJobFirst(), StrictPriority())))


def run(attempt: Any, case: Case, watch: Watch) -> None:
    candidates = []
    for name, arrival, more in case.candidates:
        ids = list(range(LENGTHS[name]))
        settings = {"arrival_time": arrival, "num_computed_tokens": len(ids), **more}
        candidates.append(Sequence(name, ids, 30, blocks=ids, **settings))

    def itself(got: Any) -> Any:
        return Shown("a copy of a candidate") if isinstance(got, Sequence) and got not in candidates else got

    done = f"with the policy {case.policy.name}"
    watch(done, attempt, candidates, case.policy, returns=itself, subject="the victim")
    if case.then:
        done = f"called again, with the policy {case.then.name}"
        watch(done, attempt, candidates, case.then, returns=itself, subject="the victim")


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
or ~ max(reversed(candidates) => min(candidates
Of equal ranks, the one admitted last is the victim. Which of several equal ones does `max` return: the first that it
sees.
~ reversed(candidates) => candidates
A pair (rank, sequence) compares the sequences if the ranks are equal, and they have no order. Compare the ranks alone:
`key=policy.rank`.
= return max((policy.rank(sequence), sequence) for sequence in candidates)[1]
Ranks may be negative: begin with the rank of the first candidate, not with 0.
- return
+ victim, largest = None, 0
+ for one in candidates:
+     if policy.rank(one) >= largest: victim, largest = one, policy.rank(one)
+ return victim
If the ranks are equal, the position in the list decides: not the id, the length or the arrival.
= return max(candidates, key=lambda one: (policy.rank(one), one.id))
or = return max(reversed(candidates), key=lambda one: (policy.rank(one), -one.num_tokens))
or = return max(reversed(candidates), key=lambda one: (policy.rank(one), one.num_tokens))
or = return max(reversed(candidates), key=lambda one: (policy.rank(one), one.arrival_time))
or = return max(reversed(candidates), key=lambda one: (policy.rank(one), one.queue_place or 0))
Only `policy.rank` decides, whatever the policy is: not the order of admission, the arrival, the tier, the length, or
how far a candidate has come.
= return max(reversed([one for one in candidates if one.num_computed_tokens] or candidates), key=policy.rank)
or = return max(reversed(candidates), key=lambda one: (not one.is_interactive, policy.rank(one)))
or = return candidates[-1]
or = return candidates[0]
or = return max(candidates, key=lambda one: (one.tier, one.arrival_time))
or = return max(reversed(candidates), key=lambda one: (one.tier, policy.rank(one)))
or = return max(reversed(candidates), key=lambda one: one.tier)
or = return max(reversed(candidates), key=lambda one: one.arrival_time)
or = return max(candidates, key=lambda one: len(one.blocks))
or = return min(candidates, key=lambda one: len(one.blocks))
or = return max(reversed([one for one in candidates if not one.output_ids] or candidates), key=policy.rank)
or = return max(reversed([one for one in candidates if one.output_ids] or candidates), key=policy.rank)
Compare the ranks as they are: rounded, different ones become equal.
= return max(reversed(candidates), key=lambda one: round(policy.rank(one)))
You compare neighbors. Compare each candidate with the best victim so far.
- return
+ victim = candidates[0]
+ for before, after in zip(candidates, candidates[1:]):
+     if policy.rank(after) >= policy.rank(before): victim = after
+ return victim
Each candidate may be the victim, the first and the last one, too, also if it is alone.
~ reversed(candidates) => reversed(candidates[1:] or candidates)
or ~ reversed(candidates) => reversed(candidates[1:])
or ~ reversed(candidates) => reversed(candidates[:-1] or candidates)
A rank may be a pair, which has no negative. Use `max`.
= return min(reversed(candidates), key=lambda one: -policy.rank(one))
"""

TASK = Task(
    reference="lessons_lib.scheduling.preemption:last_in_rank",
    cases=cases,
    run=run,
    tell=tell,
    smaller=smaller,
    known=mistakes(MISTAKES),
    about={
        "returned": "The policy serves the smallest rank first, so the candidate with the largest would be served "
        "last; of equal ones, the one that is last in the list. Ask `policy.rank` in each call.",
    },
)

EXERCISE = TASK.exercise(
    id="10.1",
    title="the victim",
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
