"""Answers to the exercise of lesson 10: what learners get wrong, and other ways to be right."""

from answers import Wrong
from lessons_lib.scheduling.preemption import last_in_rank

# 10.1 last_in_rank


def takes_the_first_in_rank(candidates, policy):
    return min(candidates, key=policy.rank)


def takes_the_first_of_two_alike(candidates, policy):
    return max(candidates, key=policy.rank)


def breaks_ties_by_id(candidates, policy):
    return max(candidates, key=lambda sequence: (policy.rank(sequence), sequence.id))


def takes_the_last_admitted(candidates, policy):
    return candidates[-1]


def takes_the_first_admitted(candidates, policy):
    return candidates[0]


def takes_the_longest(candidates, policy):
    return max(reversed(candidates), key=lambda sequence: sequence.num_tokens)


def takes_the_last_to_come(candidates, policy):
    return max(reversed(candidates), key=lambda sequence: sequence.arrival_time)


def returns_the_rank(candidates, policy):
    return max(policy.rank(sequence) for sequence in candidates)


def returns_the_index(candidates, policy):
    return candidates.index(last_in_rank(candidates, policy))


def returns_the_id(candidates, policy):
    return last_in_rank(candidates, policy).id


def reverses_in_place(candidates, policy):
    candidates.reverse()
    return max(candidates, key=policy.rank)


def sorts_in_place(candidates, policy):
    candidates.sort(key=policy.rank)
    return candidates[-1]


def pops_the_victim(candidates, policy):
    return candidates.pop(candidates.index(last_in_rank(candidates, policy)))


def returns_no_victim(candidates, policy):
    last_in_rank(candidates, policy)


def spares_the_one_that_stands_alone(candidates, policy):
    return last_in_rank(candidates, policy) if len(candidates) > 1 else None


def negates_the_rank(candidates, policy):
    return min(reversed(candidates), key=lambda sequence: -policy.rank(sequence))


def sorted_and_last(candidates, policy):
    return sorted(candidates, key=policy.rank)[-1]


def by_a_loop(candidates, policy):
    victim = candidates[0]
    for sequence in candidates:
        if policy.rank(sequence) >= policy.rank(victim):
            victim = sequence
    return victim


WRONG = {
    "10.1": [
        Wrong(
            "the smallest rank instead of the largest",
            takes_the_first_in_rank,
            "The victim is the one with the largest",
        ),
        Wrong("the first of two equal ranks", takes_the_first_of_two_alike, "take the last of them in the list"),
        Wrong("the largest id of two equal ranks", breaks_ties_by_id, "not the id"),
        Wrong("the last admitted, whatever its rank", takes_the_last_admitted, "was preempted once"),
        Wrong("the first admitted", takes_the_first_admitted, "B is first in the list"),
        Wrong("the longest", takes_the_longest, "The length of a sequence doesn't matter"),
        Wrong("the latest arrival, whatever the policy", takes_the_last_to_come, "not `arrival_time`"),
        Wrong("the rank instead of the sequence", returns_the_rank, "yours returned 1.0"),
        Wrong("the index instead of the sequence", returns_the_index, "yours returned 0"),
        Wrong("the id instead of the sequence", returns_the_id, "yours returned 'A'"),
        Wrong("the list is reversed", reverses_in_place, "is [C, D, A, B] afterwards"),
        Wrong("the list is sorted", sorts_in_place, "is [A, B, C, D] afterwards"),
        Wrong("the victim is removed from the list", pops_the_victim, "is [] afterwards"),
        Wrong("nothing is returned", returns_no_victim, "yours returned None"),
        Wrong("a negated rank that is a pair", negates_the_rank, "TypeError"),
    ],
}

RIGHT = {
    "10.1": [sorted_and_last, by_a_loop],
}
