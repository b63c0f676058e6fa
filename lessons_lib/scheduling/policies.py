"""Lesson 09: more scheduling policies. A policy ranks the waiting sequences; the smallest rank is admitted next."""

from lessons_lib.scheduling.sequence import Sequence


class ShortestJobFirst:
    """The shortest expected completion first, which minimizes the mean wait. Without an estimate, `max_new_tokens`
    counts."""

    name = "shortest job first"

    def rank(self, sequence: Sequence) -> float:
        return sequence.max_new_tokens if sequence.expected_tokens is None else sequence.expected_tokens


class StrictPriority:
    """The best tier first, and within a tier in order of arrival. Other tiers wait until no better one is waiting."""

    name = "strict priority"

    def rank(self, sequence: Sequence) -> tuple[int, float]:
        return sequence.tier, sequence.arrival_time


class PriorityWithAging:
    """The best tier first, and interactive requests before others, but waiting time counts too.

    All waiting sequences age alike, so the order of two sequences never changes: a sequence ranks as if it had arrived
    `patience` seconds later for each tier below the best, and `head_start` seconds earlier if it is interactive.

    Attributes:
        patience: seconds of waiting per tier, 0 or more.
        head_start: seconds of waiting for being interactive, 0 or more. If both are 0, this is the order of arrival.

    Raises:
        ValueError: `patience` or `head_start` is negative.
    """

    name = "priority with aging"

    def __init__(self, patience: float, head_start: float = 0.0):
        if patience < 0 or head_start < 0:
            raise ValueError(f"patience is {patience} seconds and head_start {head_start}; both must be 0 or more.")
        self.patience = patience
        self.head_start = head_start

    def rank(self, sequence: Sequence) -> float:
        head_start = self.head_start if sequence.is_interactive else 0.0
        return sequence.arrival_time + sequence.tier * self.patience - head_start


class ShortestWithAging:
    """Short requests first, but waiting time counts too: none is overtaken by one that arrives `patience` seconds
    later.

    Attributes:
        patience: seconds, above 0.

    Raises:
        ValueError: `patience` isn't above 0.
    """

    name = "shortest first with aging"

    def __init__(self, patience: float):
        if not patience > 0:
            raise ValueError(f"patience is {patience} seconds; it must be above 0.")
        self.patience = patience

    def rank(self, sequence: Sequence) -> float:
        answer = sequence.max_new_tokens if sequence.expected_tokens is None else sequence.expected_tokens
        cost = len(sequence.prompt_ids) + 8 * answer  # in prompt tokens
        # Grows fast among short requests, since most are short, and never reaches 1.
        return sequence.arrival_time + self.patience * cost / (cost + 60)


class BalancedLengths:
    """The one of the first waiting sequences that brings the mean length of the running ones closest to a target.

    A batch of only long sequences reads a large cache in every step, and one of only short sequences leaves memory
    idle. A mixture makes steps alike.

    Attributes:
        target: the desired mean length, in tokens of prompt and expected completion together.
        window: number of waiting sequences to choose from, 1 or more.

    Raises:
        ValueError: `window` is below 1.
    """

    name = "balanced lengths"

    def __init__(self, target: float, window: int = 16):
        if window < 1:
            raise ValueError(f"window is {window}; it must be 1 or more, so that there is a sequence to choose.")
        self.target = target
        self.window = window

    def rank(self, sequence: Sequence) -> float:
        return sequence.arrival_time

    def choose(self, first_waiting: list[Sequence], running: list[Sequence]) -> Sequence:
        """Choose from `first_waiting`; of two equally good, the first."""
        total = sum(expected_length(sequence) for sequence in running)
        return min(
            first_waiting,
            key=lambda sequence: abs((total + expected_length(sequence)) / (len(running) + 1) - self.target),
        )


def expected_length(sequence: Sequence) -> float:
    """Tokens of prompt and expected completion; without an estimate, `max_new_tokens` counts."""
    return len(sequence.prompt_ids) + (
        sequence.max_new_tokens if sequence.expected_tokens is None else sequence.expected_tokens
    )
