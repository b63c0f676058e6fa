"""Lesson 18: what guesses the next tokens of a text."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from lessons_lib.engine.draft_lengths import Guess
from lessons_lib.models.loading import ASSETS
from lessons_lib.scheduling.sequence import Sequence


@dataclass(frozen=True)
class NgramTable:
    """Guesses what most often followed the newest tokens in texts seen before.

    Attributes:
        following: some tokens -> what followed them most often, and its share.
        longest: of those tokens; the longest match counts.
    """

    following: dict[tuple[int, ...], Guess]
    longest: int

    @classmethod
    def of(cls, texts: Iterable[list[int]], longest: int = 4) -> "NgramTable":
        """Count what follows 1 to `longest` tokens in texts."""
        counts: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        for text in texts:
            for end in range(1, len(text)):
                for size in range(1, min(longest, end) + 1):
                    counts[tuple(text[end - size : end])][text[end]] += 1
        following = {}
        for context, found in counts.items():
            [(token, count)] = found.most_common(1)
            following[context] = Guess(token, count / (found.total() + 1))  # what was seen once is no certainty
        return cls(following, longest)

    def propose(self, sequences: list[Sequence], most: int) -> list[list[Guess]]:
        """See Proposer."""
        return [self.guess(newest(each, self.longest), most) for each in sequences]

    def guess(self, tokens: list[int], most: int) -> list[Guess]:
        """Up to `most` guesses, each by the longest context that the table has."""
        guesses: list[Guess] = []
        while len(guesses) < most:
            contexts = (tuple(tokens[-size:]) for size in range(min(self.longest, len(tokens)), 0, -1))
            guess = next((self.following[each] for each in contexts if each in self.following), None)
            if guess is None:
                break
            guesses.append(guess)
            tokens = [*tokens[1 - self.longest :], guess.token] if self.longest > 1 else [guess.token]
        return guesses


@dataclass(frozen=True)
class NgramLookup:
    """Guesses what followed the newest tokens when they last occurred in the same text (prompt lookup, Saxena 2023):
    right for answers that quote or edit their prompt.

    Attributes:
        longest, shortest: how many of the newest tokens must have occurred; the longest match counts.
        chance: of a guess.
    """

    longest: int = 3
    shortest: int = 2
    chance: float = 0.6

    def propose(self, sequences: list[Sequence], most: int) -> list[list[Guess]]:
        """See Proposer."""
        return [[Guess(token, self.chance) for token in self.guess(each.token_ids, most)] for each in sequences]

    def guess(self, tokens: list[int], most: int) -> list[int]:
        """Up to `most` tokens; none if the newest ones are new."""
        for size in range(self.longest, self.shortest - 1, -1):
            wanted, last = tokens[-size:], tokens[-1]
            for end in range(len(tokens) - 1, size - 1, -1):
                if tokens[end - 1] == last and tokens[end - size : end] == wanted:
                    return tokens[end : end + most]
        return []


def own_stories() -> list[list[int]]:
    """Stories that the bundled model has drawn at temperature 1, each with its end token: 330,000 tokens."""
    tokens = np.load(ASSETS / "own_stories.npz")["tokens"]
    return [story.tolist() for story in np.split(tokens, np.flatnonzero(tokens == 0) + 1)]


def newest(sequence: Sequence, count: int) -> list[int]:
    """The last tokens of a sequence, at most `count`."""
    tokens = sequence.output_ids[-count:]
    return tokens if len(tokens) == count else [*sequence.prompt_ids[len(tokens) - count :], *tokens]
