"""Lesson 18: what guesses the next tokens of a text."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from lessons_lib.engine.draft_lengths import Guess
from lessons_lib.models.loading import ASSETS
from lessons_lib.scheduling.sequence import Sequence


def ngram_guesser(texts: Iterable[list[int]], longest: int = 4) -> Callable[[list[int], int], list[Guess]]:
    """Count which token follows which in texts, and make a function that guesses from these counts.

    Args:
        texts: token ids, read once. No n-gram reaches from one text into the next.
        longest: tokens of a context, at most; 1 or more.

    Returns:
        function (tokens, most) -> up to `most` guesses how `tokens` goes on, each by the longest context, of `longest`
        last tokens or fewer, that a text goes on from. Guesses count as tokens for those that follow them.
    """
    counts: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    for text in texts:
        for end in range(1, len(text)):
            for size in range(1, min(longest, end) + 1):
                counts[tuple(text[end - size : end])][text[end]] += 1
    following = {
        context: Guess(token, count / (found.total() + 1))  # what was seen once is no certainty
        for context, found in counts.items()
        for token, count in found.most_common(1)
    }

    def guess(tokens: list[int], most: int) -> list[Guess]:
        draft: list[Guess] = []
        tokens = tokens[-longest:]
        while len(draft) < most:
            contexts = (tuple(tokens[start:]) for start in range(len(tokens)))
            best = next((following[each] for each in contexts if each in following), None)
            if best is None:
                break
            draft.append(best)
            tokens = [*tokens, best.token][-longest:]
        return draft

    return guess


@dataclass(frozen=True)
class NgramTable:
    """Guesses what most often followed the newest tokens in texts seen before.

    Attributes:
        guess: what `ngram_guesser` returns.
        longest: how many of the newest tokens it looks at, at most.
    """

    guess: Callable[[list[int], int], list[Guess]]
    longest: int = 4

    @classmethod
    def of(cls, texts: Iterable[list[int]], longest: int = 4) -> "NgramTable":
        """Count what follows 1 to `longest` tokens in texts."""
        return cls(ngram_guesser(texts, longest), longest)

    def propose(self, sequences: list[Sequence], most: int) -> list[list[Guess]]:
        """See Proposer."""
        return [self.guess(newest(each, self.longest), most) for each in sequences]


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

    def expects(self, sequences: list[Sequence]) -> bool:
        """See Proposer: a text that repeats itself is likely to go on with that."""
        return any(self.guess(each.token_ids, 1) for each in sequences)

    def guess(self, tokens: list[int], most: int) -> list[int]:
        """Up to `most` tokens; none if the newest ones are new."""
        if tokens and tokens[-1] not in tokens[:-1]:  # as mostly, and this is a loop in C
            return []
        for size in range(self.longest, self.shortest - 1, -1):
            wanted, last = tokens[-size:], tokens[-1]
            for end in range(len(tokens) - 1, size - 1, -1):
                if tokens[end - 1] == last and tokens[end - size : end] == wanted:
                    return tokens[end : end + most]
        return []


def own_stories() -> list[list[int]]:
    """Stories that the bundled model has drawn at temperature 1, each with its end token: 330,000 tokens."""
    tokens = np.load(ASSETS / "own_stories.npz")["tokens"]
    return [story.tolist() for story in np.split(tokens, np.flatnonzero(tokens == 0)[:-1] + 1)]


def newest(sequence: Sequence, count: int) -> list[int]:
    """The last tokens of a sequence, at most `count`."""
    tokens = sequence.output_ids[-count:]
    return tokens if len(tokens) == count else [*sequence.prompt_ids[len(tokens) - count :], *tokens]
