"""Checks 09.3, `Scheduler`: small cases one by one, then random workloads until they finish."""

from random import Random

from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.lesson_09.twins import Twins, random_requests
from lessons_lib.scheduling.policies import BalancedLengths, PriorityWithAgeing
from lessons_lib.scheduling.scheduler import conservative, optimistic
from lessons_lib.scheduling.sequence import FirstComeFirstServed


def check_scheduler(attempt) -> None:
    _check_new_sequences(attempt)
    _check_running_first(attempt)
    _check_admission(attempt)
    _check_policy(attempt)
    _check_blocks(attempt)
    _check_stall_passes(attempt)
    for seed in range(30):
        _check_random(attempt, seed)


def admit_all(scheduler, sequence) -> bool:
    return True


def admit_none(scheduler, sequence) -> bool:
    return False


class LastComeFirstServed:
    name = "last come, first served"

    def rank(self, sequence):
        return -sequence.arrival_time


def _steps(twins: Twins, count: int) -> None:
    for _ in range(count):
        twins.step()


def _check_new_sequences(attempt) -> None:
    large = dict(num_blocks=64, max_num_seqs=4, max_num_batched_tokens=32)
    twins = Twins(attempt, {}, "nothing runs and nothing waits.", **large)
    _steps(twins, 1)
    twins = Twins(
        attempt, {"A": (13, 9, 9)}, "blocks of 4, budget 32, four batch slots; A waits, with a prompt of 13.", **large
    )
    twins.add("A")
    _steps(twins, 3)
    twins = Twins(
        attempt,
        {"D": (21, 9, 9)},
        "blocks of 4, budget 8, four batch slots; D waits, with a prompt of 21.",
        **large | {"max_num_batched_tokens": 8},
    )
    twins.add("D")
    _steps(twins, 5)
    requests = {"A": (13, 9, 9), "F": (40, 9, 9), "C": (3, 9, 9)}
    case = "blocks of 4, budget 32, four batch slots; A (prompt 13) and C (prompt 3) wait."
    twins = Twins(attempt, requests, case, **large)  # both prompts fit whole
    twins.add("A", "C")
    _steps(twins, 1)
    twins = Twins(
        attempt, requests, "blocks of 4, budget 32, four batch slots; A (prompt 13) and F (prompt 40) wait.", **large
    )
    twins.add("A", "F")
    _steps(twins, 4)
    twins = Twins(
        attempt,
        requests,
        "blocks of 4, budget 32, four batch slots; A (prompt 13), F (prompt 40) and C (prompt 3) wait.",
        **large,
    )
    twins.add("A", "F", "C")
    _steps(twins, 5)
    requests = {"E": (5, 12, 12)}
    case = (
        "blocks of 4, budget 32, four batch slots; E waits again, with a prompt of 5 and 6 tokens of its answer "
        "known. None of its tokens are in the cache."
    )
    twins = Twins(attempt, requests, case, **large)
    twins.add_begun("E", answered=6, computed=0)
    _steps(twins, 3)
    case = (
        "blocks of 4, budget 32, four batch slots; E waits again, with a prompt of 5 and 6 tokens of its answer "
        "known. 7 of its tokens are in the cache."
    )
    twins = Twins(attempt, requests, case, **large)
    twins.add_begun("E", answered=6, computed=7)
    _steps(twins, 3)
    case = (
        "blocks of 4, budget 4, four batch slots; E waits again, with a prompt of 5 and 6 tokens of its answer "
        "known. None of its tokens are in the cache."
    )
    twins = Twins(attempt, requests, case, **large | {"max_num_batched_tokens": 4})
    twins.add_begun("E", answered=6, computed=0)
    _steps(twins, 4)
    case = (
        "blocks of 4, budget 12, four batch slots; E waits again, with a prompt of 5 and 6 tokens of its answer "
        "known. 7 of its tokens are in the cache. Behind it waits A (prompt 13)."
    )
    twins = Twins(attempt, requests | {"A": (13, 9, 9)}, case, **large | {"max_num_batched_tokens": 12})
    twins.add_begun("E", answered=6, computed=7)
    twins.add("A")
    _steps(twins, 2)
    requests = dict.fromkeys("ABCD", (3, 3, 3))
    twins = Twins(
        attempt,
        requests,
        "blocks of 4, budget 32, two batch slots; A, B, C and D wait, with prompts of 3.",
        **large | {"max_num_seqs": 2},
    )
    twins.add(*requests)
    _steps(twins, 5)


def _check_running_first(attempt) -> None:
    requests = {"A": (3, 9, 9), "F": (20, 9, 9), "C": (3, 9, 9)}
    case = (
        "blocks of 4, budget 8, four batch slots; A (prompt 3) waits. After step 1, F (prompt 20) and C (prompt "
        "3) arrive."
    )
    twins = Twins(attempt, requests, case, num_blocks=64, max_num_seqs=4, max_num_batched_tokens=8)
    twins.add("A")
    _steps(twins, 1)
    twins.add("F", "C")
    _steps(twins, 7)


def _check_admission(attempt) -> None:
    requests = {"A": (8, 5, 5), "B": (30, 11, 11), "C": (3, 2, 2)}
    case = (
        "ten blocks of 4, `conservative`; A (prompt 8, max_tokens 5) runs. B (prompt 30, max_tokens 11) may need "
        "ten blocks and waits; behind it waits C (prompt 3, max_tokens 2), which needs one."
    )
    twins = Twins(attempt, requests, case, num_blocks=10, max_num_seqs=4, max_num_batched_tokens=32)
    twins.add("A")
    _steps(twins, 1)
    twins.add("B", "C")
    _steps(twins, 8)
    twins = Twins(
        attempt,
        requests,
        "an admission rule that always says no; A waits, nothing runs.",
        num_blocks=10,
        admission=admit_none,
    )
    twins.add("A")
    _steps(twins, 2)


def _check_policy(attempt) -> None:
    requests = {name: (3, 3, 3, float(at)) for at, name in enumerate("ACE")}
    case = "one batch slot; the policy is last come, first served; A, C and E arrived in this order."
    twins = Twins(
        attempt, requests, case, num_blocks=64, max_num_seqs=1, max_num_batched_tokens=8, policy=LastComeFirstServed()
    )
    twins.add("A", "C", "E")
    _steps(twins, 8)
    case = (
        "one batch slot; A (prompt 20) arrived before C (prompt 3). The policy is `BalancedLengths` with a target of "
        "6 tokens: it picks the one that brings the mean length of the running sequences closest to 6, so C."
    )
    twins = Twins(
        attempt,
        {"A": (20, 9, 9, 0.0), "C": (3, 3, 3, 1.0)},
        case,
        num_blocks=64,
        max_num_seqs=1,
        max_num_batched_tokens=8,
        policy=BalancedLengths(6),
    )
    twins.add("A", "C")
    _steps(twins, 2)
    case = (
        "two batch slots; D (prompt 40) runs, A (prompt 20) and C (prompt 3) wait. The policy is `BalancedLengths` "
        "with a target of 29 tokens. A would be closer to the target by itself; beside D, C brings the mean closer."
    )
    twins = Twins(
        attempt,
        {"D": (40, 9, 9, 0.0), "A": (20, 9, 9, 1.0), "C": (3, 9, 9, 2.0)},
        case,
        num_blocks=64,
        max_num_seqs=2,
        max_num_batched_tokens=64,
        policy=BalancedLengths(29),
    )
    twins.add("D")
    _steps(twins, 1)
    twins.add("A", "C")
    _steps(twins, 2)
    case = (
        "two batch slots; F (prompt 26), B (prompt 28) and C (prompt 10) wait, and nothing runs. The policy is "
        "`BalancedLengths` with a target of 29 tokens. With max_tokens of 9, they count 35, 37 and 19. "
        "F is closest to the target. By itself, B would be next; "
        "beside F, which was admitted a moment ago, C brings the mean closer."
    )
    twins = Twins(
        attempt,
        {"F": (26, 9, 9, 0.0), "B": (28, 9, 9, 1.0), "C": (10, 9, 9, 2.0)},
        case,
        num_blocks=64,
        max_num_seqs=2,
        max_num_batched_tokens=64,
        policy=BalancedLengths(29),
    )
    twins.add("F", "B", "C")
    _steps(twins, 2)


def _check_blocks(attempt) -> None:
    twins = Twins(
        attempt,
        {"A": (8, 5, 5)},
        "four blocks of 4, `optimistic` with a watermark of 2; A (prompt 8) waits, and nothing else.",
        num_blocks=4,
        admission=optimistic,
        watermark=2,
    )
    twins.add("A")
    _steps(twins, 3)
    wide = dict(admission=admit_all, max_num_seqs=4, max_num_batched_tokens=32)
    requests = {"A": (8, 9, 9), "B": (7, 9, 9)}
    case = (
        "four blocks of 4, every request is admitted; A (prompt 8) and B (prompt 7) wait. After step 1 no block "
        "is free, and A's blocks are full."
    )
    twins = Twins(attempt, requests, case, num_blocks=4, **wide)
    twins.add("A", "B")
    _steps(twins, 3)  # in the third, none can continue
    requests = {"A": (8, 9, 9), "B": (8, 9, 9), "C": (5, 9, 9)}
    case = (
        "six blocks of 4, every request is admitted; A, B (prompts of 8) and C (prompt 5) wait. After step 1 no "
        "block is free, and the blocks of A and B are full."
    )
    twins = Twins(attempt, requests, case, num_blocks=6, **wide)
    twins.add("A", "B", "C")
    _steps(twins, 3)
    requests = {"A": (3, 9, 9), "F": (30, 9, 9), "C": (3, 2, 2)}
    case = (
        "ten blocks of 4, every request is admitted, budget 10; A (prompt 3) and F (prompt 30) run. "
        "After step 1, six more blocks are taken: F's chunk needs two blocks, and one is free. "
        "C (prompt 3) waits, and needs one."
    )
    twins = Twins(attempt, requests, case, **wide | {"max_num_batched_tokens": 10, "num_blocks": 10})
    twins.add("A", "F")
    _steps(twins, 1)
    for scheduler in (twins.mine, twins.want):
        scheduler.pool.allocate(6)
    twins.add("C")
    _steps(twins, 3)
    requests = {"A": (8, 9, 3), "F": (30, 9, 9)}
    case = (
        "ten blocks of 4, four of them taken; every request is admitted, budget 16; A (prompt 8) and F (prompt 30) "
        "wait. In step 2, F's next chunk needs more blocks than are free."
    )
    pool = dict(num_blocks=10, admission=admit_all, max_num_seqs=4, max_num_batched_tokens=16)
    twins = Twins(attempt, requests, case, **pool)
    twins.add("A", "F")
    for scheduler in (twins.mine, twins.want):
        scheduler.pool.allocate(4)
    _steps(twins, 5)


def _check_stall_passes(attempt) -> None:
    case = (
        "three blocks of 4, every request is admitted; A and B run, with prompts of 4. After step 1, C (prompt 3) "
        "arrives. In step 2, A gets the free block, and B stalls. Then A ends."
    )
    requests = {"A": (4, 2, 2), "B": (4, 9, 9), "C": (3, 2, 2)}
    twins = Twins(attempt, requests, case, num_blocks=3, admission=admit_all, max_num_seqs=4, max_num_batched_tokens=32)
    twins.add("A", "B")
    _steps(twins, 1)
    twins.add("C")
    _steps(twins, 2)


def _check_random(attempt, seed: int) -> None:
    rng = Random(seed)
    requests = random_requests(seed)
    settings = dict(
        num_blocks=rng.choice((11, 14, 30)),
        max_num_seqs=rng.choice((1, 2, 4)),
        max_num_batched_tokens=rng.choice((4, 7, 32)),
        admission=rng.choice((conservative, optimistic)),
        watermark=rng.choice((0, 2)),
    )
    told = ", ".join(f"{key} {getattr(value, '__name__', value)}" for key, value in settings.items())
    case = f"ten sequences arrive one after the other; {told}; block size 4."
    twins = Twins(
        attempt, requests, case, policy=rng.choice((FirstComeFirstServed(), PriorityWithAgeing(3))), **settings
    )
    for name in requests:
        twins.add(name)
        twins.step()
    for _ in range(400):
        if not twins.step():
            break
    if twins.mine.has_unfinished() != twins.want.has_unfinished():
        raise Mistake("at the end, all sequences should be finished; with yours, some are left.", case=case)
