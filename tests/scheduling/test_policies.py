"""Who goes next: each policy against a sort by what it promises, and the queue against a plain list."""

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling_cases import POLICIES, a_sequence, names

from lessons_lib.scheduling.policies import (
    BalancedLengths,
    PriorityWithAging,
    ShortestJobFirst,
    ShortestWithAging,
    StrictPriority,
    expected_length,
)
from lessons_lib.scheduling.sequence import FirstComeFirstServed, WaitingQueue

# Whole seconds: sums of them are exact, and many are alike.
customers = st.lists(
    st.builds(
        lambda prompt, max_tokens, at, tier, guess, is_interactive: a_sequence(
            "x", prompt, max_tokens, arrival_time=at, tier=tier, expected_tokens=guess, is_interactive=is_interactive
        ),
        st.integers(1, 30), st.integers(1, 30), st.integers(0, 12), st.integers(0, 3), st.none() | st.integers(1, 30), st.booleans(),
    ),
    max_size=12,
)  # fmt: skip


def queue_of(policy, sequences):
    queue = WaitingQueue(policy)
    for sequence in sequences:
        queue.add(sequence)
    return queue


def sorted_by(sequences, *reasons):
    """Sorted by insertion: the first of the reasons in which two differ decides, otherwise the one added first."""
    order = []
    for sequence in sequences:
        own = [reason(sequence) for reason in reasons]
        place = next((n for n, other in enumerate(order) if own < [reason(other) for reason in reasons]), len(order))
        order.insert(place, sequence)
    return order


def came(sequence):
    return sequence.arrival_time


def guessed(sequence):
    return sequence.max_new_tokens if sequence.expected_tokens is None else sequence.expected_tokens


def tier(sequence):
    return sequence.tier


@settings(max_examples=100, deadline=None)
@given(customers)
def test_each_policy_sorts_by_what_it_promises(sequences):
    promises = (
        (FirstComeFirstServed(), [came]),
        (ShortestJobFirst(), [guessed]),
        (StrictPriority(), [tier, came]),
        (BalancedLengths(9), [came]),
    )
    for policy, reasons in promises:
        assert list(queue_of(policy, sequences)) == sorted_by(sequences, *reasons)


SECONDS = st.sampled_from([0, 1, 2, 4, 8])


@settings(max_examples=100, deadline=None)
@given(customers, SECONDS, SECONDS, st.integers(12, 60))
def test_aging_is_sorting_by_tier_reader_and_wait_at_every_moment(sequences, patience, head_start, now):
    """`patience` seconds are worth a tier, and `head_start` seconds a reader, whenever one looks: the queue never has
    to be sorted again."""

    def urgency(sequence):
        waited = now - sequence.arrival_time + (head_start if sequence.is_interactive else 0)
        return patience * sequence.tier - waited

    assert list(queue_of(PriorityWithAging(patience, head_start), sequences)) == sorted_by(sequences, urgency)


@settings(max_examples=100, deadline=None)
@given(customers.filter(bool), customers, st.integers(1, 50), st.integers(1, 14))
def test_balancing_takes_the_one_that_brings_the_mean_nearest_to_the_target(waiting, running, target, window):
    """In whole numbers: |(total + own) / n - target| is smallest where |total + own - target x n| is."""

    def miss(sequence):
        return abs(sum(map(expected_length, [*running, sequence])) - target * (len(running) + 1))

    first = sorted_by(waiting, came)[:window]
    chosen = queue_of(BalancedLengths(target, window), waiting).next(running)
    assert any(chosen is sequence for sequence in first) and miss(chosen) == min(map(miss, first))


def test_of_two_that_balance_alike_the_first_is_taken():
    prompts = {"far": 40, "first": 13, "second": 13, "other side": 17}
    waiting = [a_sequence(name, prompt, 5, arrival_time=n) for n, (name, prompt) in enumerate(prompts.items())]
    for window, name in ((1, "far"), (2, "first"), (4, "first")):
        assert queue_of(BalancedLengths(20, window), waiting).next([]).id == name
    assert queue_of(BalancedLengths(20), waiting).next([a_sequence("running", 1, 1)]).id == "far"


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(POLICIES),
    st.lists(st.tuples(st.sampled_from(["add", "add", "take", "remove"]), st.integers(0, 9)), max_size=30),
)
def test_the_queue_is_a_sorted_list(policy, calls):
    queue, model = WaitingQueue(policy), []
    for n, (call, value) in enumerate(calls):
        if call == "add":
            rank = dict(arrival_time=value % 5, tier=value % 2, is_interactive=value % 3 == 0)
            sequence = a_sequence(str(n), 1 + value % 4, 1 + value % 3, **rank)
            queue.add(sequence)
            model.append(sequence)
            model.sort(key=policy.rank)  # stable
        elif model:
            chosen = model[value % len(model)] if call == "remove" else queue.next([])
            assert call == "remove" or chosen in model[: getattr(policy, "window", 1)]
            queue.remove(chosen)
            model.remove(chosen)
        assert list(queue) == model and len(queue) == len(model) and bool(queue) == bool(model)
        if model:
            assert queue.next([]) is queue.next([])  # it stays
            assert hasattr(policy, "choose") or queue.next([]) is model[0]


def test_a_policy_of_ones_own():
    last_come = SimpleNamespace(rank=lambda sequence: -sequence.arrival_time)
    assert names(queue_of(last_come, [a_sequence("A", arrival_time=1), a_sequence("B", arrival_time=2)])) == ["B", "A"]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_who_does_not_wait_is_neither_removed_nor_next(policy):
    here, gone = a_sequence("A"), a_sequence("A")
    queue = queue_of(policy, [here])
    with pytest.raises(ValueError, match="sequence 'A' does not wait in this queue of 1"):
        queue.remove(gone)
    assert list(queue) == [here]
    with pytest.raises(IndexError):
        WaitingQueue(policy).next([])


@pytest.mark.parametrize(
    "make, says",
    [
        (lambda: BalancedLengths(20, 0), "window is 0; it must be 1 or more"),
        (lambda: PriorityWithAging(-1), "patience is -1 seconds and head_start 0.0; both must be 0 or more"),
        (lambda: PriorityWithAging(3, -2), "patience is 3 seconds and head_start -2; both"),
        (lambda: ShortestWithAging(0), "patience is 0 seconds; it must be above 0"),
    ],
)
def test_numbers_out_of_bounds_are_refused(make, says):
    with pytest.raises(ValueError, match=says):
        make()
