"""Lesson 18: how many guesses a step should compute. A guess costs the time of one more token in the pass, and brings a
token with some chance. The right number brings the most tokens per second."""

from dataclasses import dataclass, field
from typing import NamedTuple

from lessons_lib.scheduling.sequence import Sequence

DECAY = 0.98  # of what was measured, with each step
FIRST = 8, 1, 2, 4  # guesses of the first steps, before any decision; the time of the very first doesn't count
FEW_STEPS = len(FIRST)
TRY_EVERY, LONGEST_PAUSE = 64, 1024  # steps; what never happens isn't measured
SUREST = 0.95  # a proposer that says 1 could never be corrected
MARGIN = 1.05  # times and chances are estimates, and a step without guesses is the safe choice


class Guess(NamedTuple):
    """A token, and how likely the proposer takes it to be right if those before it are, 0 to 1."""

    token: int
    chance: float


@dataclass
class StepTimes:
    """Seconds of a step as a line, `base + per_token * tokens`, through those that were measured, the latest ones with
    the most weight (least squares)."""

    weight: float = 0.0
    tokens: float = 0.0
    seconds: float = 0.0
    squares: float = 0.0
    products: float = 0.0
    per_token: float = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        if self.weight > 1:
            seconds = min(seconds, 3 * self.of(tokens))  # something else ran
        for name, value in dict(weight=1.0, tokens=tokens, seconds=seconds, squares=tokens**2,
                                products=tokens * seconds).items():  # fmt: skip
            setattr(self, name, DECAY * getattr(self, name) + value)
        mean = self.tokens / self.weight
        variance = self.squares / self.weight - mean**2
        covariance = self.products / self.weight - mean * self.seconds / self.weight
        # Few steps of nearly one size say little about the slope: the second term draws it to 0.
        self.per_token = max(0.0, covariance / (variance + mean**2 / (6 * self.weight)))

    def of(self, tokens: float) -> float:
        """Seconds of a step with this many tokens, above 0; 1 if none was measured."""
        if not self.weight:
            return 1.0
        return max(1e-9, self.seconds / self.weight + self.per_token * (tokens - self.tokens / self.weight))


@dataclass
class Trust:
    """Compares the chances that a proposer gave its guesses with what became of them. A guess behind a wrong one says
    nothing.

    Attributes:
        right, expected: number of right guesses, and the sum of their chances.
        wrong, doubted: number of wrong guesses, and the sum of what was missing from their chances.
    """

    right: float = 0.0
    expected: float = 0.0
    wrong: float = 0.0
    doubted: float = 0.0

    def odds_factor(self, weight: float, before: float = 1.0) -> float:
        """The odds of a right guess, divided by those that the proposer gives it; `before` if nothing was seen, which
        counts as `weight` right guesses and as many wrong ones."""
        of_right = (self.right + weight * before) / (self.expected + weight)
        return of_right * (self.doubted + weight) / (self.wrong + weight)

    def add(self, chances: list[float], num_right: int) -> None:
        """Learn from the guesses that were looked at."""
        self.right, self.wrong = DECAY * self.right + num_right, DECAY * self.wrong + len(chances) - num_right
        self.expected = DECAY * self.expected + sum(chances)
        self.doubted = DECAY * self.doubted + len(chances) - sum(chances)


def corrected(chance: float, odds_factor: float) -> float:
    """A proposer's chance with its odds scaled."""
    right = min(chance, SUREST) * odds_factor
    return right / (right + 1 - min(chance, SUREST))


@dataclass
class DraftLengths:
    """Chooses the guesses that pay.

    Attributes:
        plain, guessing: times of steps without prompts: those without guesses and those with some, which take longer
            than their tokens alone say: their sequences have different numbers of them.
        trust: in the proposer's chances, for all sequences; trust_in: for each of those that are running.
        told: for each sequence with guesses in this step, the proposer's chances of them.
        num_steps: steps of decodes so far. num_tried: those with guesses. num_refused: how many of the last guesses in
            a row weren't worth their time; after FEW_STEPS of them, there are none until step `pause_end`.
        pause: length of the next pause: the more often guesses didn't pay, the longer.
    """

    plain: StepTimes = field(default_factory=StepTimes)
    guessing: StepTimes = field(default_factory=StepTimes)
    trust: Trust = field(default_factory=Trust)
    trust_in: dict[Sequence, Trust] = field(default_factory=dict)
    told: dict[Sequence, list[float]] = field(default_factory=dict)
    num_steps: int = 0
    num_tried: int = 0
    num_refused: int = 0
    pause_end: int = 2  # what a step takes without guesses comes first
    pause: int = TRY_EVERY

    def is_trying(self) -> bool:
        """True if the next guesses are computed in any case, to learn what they cost and bring."""
        return self.num_tried < FEW_STEPS or self.num_refused == FEW_STEPS

    def may_pay(self) -> bool:
        """False if the next step shouldn't wait for guesses: they weren't worth their time, or it is to be measured
        what a step takes without."""
        is_plain = (self.num_steps + TRY_EVERY // 2) % TRY_EVERY < 2
        return self.num_steps >= self.pause_end and not is_plain

    def choose(self, proposed: dict[Sequence, list[Guess]], num_tokens: int) -> dict[Sequence, list[int]]:
        """Of the guesses for each sequence, the first ones: as many as bring the most tokens per second.

        Args:
            num_tokens: tokens of the step so far.
        """
        self.told = {}
        candidates, is_trying = self.by_chance(proposed), self.is_trying()
        if not candidates:
            return {}
        few = FIRST[min(self.num_tried, FEW_STEPS - 1)]
        count = few if is_trying else self.best_count(candidates, len(proposed), num_tokens)
        drafts: dict[Sequence, list[int]] = {}
        for _, sequence, guess in candidates[:count]:
            drafts.setdefault(sequence, []).append(guess.token)
            self.told.setdefault(sequence, []).append(guess.chance)
        self.num_tried += bool(drafts)
        if is_trying:
            self.num_refused = min(self.num_refused, FEW_STEPS - 1)  # the next guesses decide
        elif drafts:
            self.num_refused, self.pause = 0, TRY_EVERY
        else:
            self.refuse()
        return drafts

    def refuse(self) -> None:
        """Note that no guess was worth its time; after a few times, make a pause."""
        self.num_refused += 1
        if self.num_refused == FEW_STEPS:
            self.pause_end, self.pause = self.num_steps + self.pause, min(2 * self.pause, LONGEST_PAUSE)

    def by_chance(self, proposed: dict[Sequence, list[Guess]]) -> list[tuple[float, Sequence, Guess]]:
        """All guesses, the surest first: (how likely it is that this one and all before it are right, sequence,
        guess)."""
        self.trust_in = {each: self.trust_in.get(each) or Trust() for each in proposed}
        candidates = []
        for sequence, guesses in proposed.items():
            factor, chance = self.trust_in[sequence].odds_factor(3, self.trust.odds_factor(2)), 1.0
            for guess in guesses:
                chance *= corrected(guess.chance, factor)
                candidates.append((chance, sequence, guess))
        return sorted(candidates, key=lambda each: -each[0])  # stable: the guesses for a sequence keep their order

    def best_count(self, candidates: list[tuple[float, Sequence, Guess]], num_seqs: int, num_tokens: int) -> int:
        """Find how many of the surest guesses bring the most tokens per second; 0 if it is hardly more than without."""
        best, rate, gained = 0, MARGIN * num_seqs / self.plain.of(num_tokens), float(num_seqs)
        for count, (chance, *_) in enumerate(candidates, 1):
            gained += chance
            if gained / self.guessing.of(num_tokens + count) > rate:
                best, rate = count, gained / self.guessing.of(num_tokens + count)
        return best

    def note_draft(self, sequence: Sequence, num_right: int) -> None:
        """Learn how many of the guesses for a sequence were right."""
        looked_at = self.told.get(sequence, [])[: num_right + 1]
        for trust in (self.trust, self.trust_in.get(sequence) or Trust()):
            trust.add(looked_at, num_right)

    def note_step(self, num_tokens: int, num_guesses: int, seconds: float, has_asked: bool = False) -> None:
        """Learn how long a step of decodes and guesses took. One that `has_asked` and got none says nothing about steps
        that don't ask."""
        self.num_steps += 1
        if num_guesses and self.num_tried == 1:
            return  # a draft has computed the prompts in this one, too
        if num_guesses or not has_asked:
            (self.guessing if num_guesses else self.plain).add(num_tokens, seconds)
