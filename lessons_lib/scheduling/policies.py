"""Lesson 09: who goes next. A policy ranks the sequences that wait; the smallest rank gets the next free place."""

import bisect
import itertools
from collections.abc import Iterator

from lessons_lib.scheduling.sequence import Sequence


class FirstComeFirstServed:
    """In the order of arrival."""

    name = "first come, first served"

    def rank(self, sequence):
        return sequence.arrival_time


class ShortestJobFirst:
    """The shortest expected answer first: many leave soon, and the mean wait is the least that there is.

    A sequence of which nothing is expected counts as long as its cap.
    """

    name = "shortest job first"

    def rank(self, sequence):
        return sequence.max_new_tokens if sequence.expected_tokens is None else sequence.expected_tokens


class StrictPriority:
    """The best tier first, and in a tier the order of arrival. Whoever is of a lower tier waits until no better one is left."""

    name = "strict priority"

    def rank(self, sequence):
        return sequence.tier, sequence.arrival_time


class PriorityWithAgeing:
    """The best tier first, and readers at a screen before jobs; but waiting counts too, in seconds like the others.

    Everybody who waits ages alike, so the order of two sequences never changes once both have come: a sequence ranks as if it had come
    `patience` seconds later for each tier that it is below the best, and `head_start` seconds earlier if it is interactive.

    Attributes:
        patience: seconds of waiting that a tier is worth, 0 or more.
        head_start: seconds of waiting that a reader at a screen is worth, 0 or more. With 0 for both it is the order of arrival.
    """

    name = "priority with ageing"

    def __init__(self, patience, head_start=0.0):
        if patience < 0 or head_start < 0:
            raise ValueError(f"patience is {patience} seconds and head_start {head_start}; both must be 0 or more.")
        self.patience = patience
        self.head_start = head_start

    def rank(self, sequence):
        head_start = self.head_start if sequence.is_interactive else 0.0
        return sequence.arrival_time + sequence.tier * self.patience - head_start


class BalancedLengths:
    """Among the first few that wait, the one that brings the mean length of the running sequences nearest to a target.

    A batch of long sequences only reads a large cache in every step, and then one of short ones leaves the memory idle. Mixing them
    keeps steps alike.

    Attributes:
        target: mean tokens of a running sequence, prompt and expected answer together, that is aimed at.
        window: how many of the first that wait are looked at, 1 or more.
    """

    name = "balanced lengths"

    def __init__(self, target, window=16):
        if window < 1:
            raise ValueError(f"window is {window}; it must be 1 or more: somebody has to be looked at.")
        self.target = target
        self.window = window

    def rank(self, sequence):
        return sequence.arrival_time

    def choose(self, first_waiting, running):
        """The one of `first_waiting` that suits the batch best; of two alike, the one that came first."""
        total = sum(expected_length(sequence) for sequence in running)
        return min(
            first_waiting,
            key=lambda sequence: abs((total + expected_length(sequence)) / (len(running) + 1) - self.target),
        )


def expected_length(sequence: Sequence) -> float:
    """Tokens of prompt and answer, as far as one can tell."""
    return len(sequence.prompt_ids) + (
        sequence.max_new_tokens if sequence.expected_tokens is None else sequence.expected_tokens
    )


class WaitingQueue:
    """The sequences that wait, in the order of a policy. Of two with the same rank, the one that was added first is first."""

    def __init__(self, policy):
        self.policy = policy
        self._entries = []
        self._order = itertools.count()

    def add(self, sequence: Sequence) -> None:
        bisect.insort(self._entries, (self.policy.rank(sequence), next(self._order), sequence))

    def next(self, running: list[Sequence]) -> Sequence:
        """Who goes next. It stays in the queue: nobody knows yet whether there is room for it.

        Raises:
            IndexError: nobody waits.
        """
        window = getattr(self.policy, "window", 1)
        if window == 1 or not self._entries:
            return self._entries[0][-1]
        return self.policy.choose([sequence for *_, sequence in self._entries[:window]], running)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out.

        Raises:
            ValueError: it does not wait here.
        """
        for index, (*_, other) in enumerate(self._entries):
            if other is sequence:
                del self._entries[index]
                return
        raise ValueError(f"sequence {sequence.id!r} does not wait in this queue of {len(self)}.")

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Sequence]:
        return (sequence for *_, sequence in self._entries)
