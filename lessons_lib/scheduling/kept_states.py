"""Lesson 19: the rules of layers that keep a state, as a scheduler follows them. Most models have no such layer."""

from lessons_lib.scheduling.sequence import Sequence


class KeptStates:
    """The rules of a model without such layers; `hybrid.sequence_states` has others.

    Attributes:
        least_budget: the fewest tokens of a step that must be left for a sequence to begin.
    """

    least_budget = 1

    def usable(self, sequence: Sequence, blocks: list[int]) -> list[int]:
        """Of the cached blocks of its first tokens, return those that a sequence can start with."""
        return blocks

    def chunk(self, sequence: Sequence, count: int) -> int:
        """Return how many of the next `count` tokens of a sequence a step may compute."""
        return count

    def chunks(self, counts: dict[Sequence, int]) -> dict[Sequence, int]:
        """Return `chunk` of several sequences, without those that get none."""
        return counts

    def discard(self, sequence: Sequence) -> None:
        """Forget the states of a sequence, which may be wrong."""
