"""Lesson 18: how many guesses a step should compute. A guess costs the time of one more token in the pass, and brings a
token with some chance: it pays if it brings more tokens per second than the step does without it."""

from dataclasses import dataclass, field
from typing import NamedTuple

from lessons_lib.scheduling.sequence import Sequence

DECAY = 0.98  # of what was measured, with each step
FEW_STEPS = 4  # with guesses, before any decision
TRY_EVERY = 64  # steps; what never happens isn't measured
MARGIN = 1.2  # times and chances are estimates, and a step without guesses is the safe choice


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
        if variance > 0.001 * mean**2:  # steps of one size say nothing about the slope
            covariance = self.products / self.weight - mean * self.seconds / self.weight
            self.per_token = max(0.0, covariance / variance)

    def of(self, tokens: float) -> float:
        """Seconds of a step with this many tokens."""
        return self.seconds / self.weight + self.per_token * (tokens - self.tokens / self.weight)


@dataclass
class Trust:
    """The number of right guesses, compared with the sum of the chances that the proposer gave them."""

    right: float = 0.0
    expected: float = 0.0

    def factor(self, weight: float, before: float) -> float:
        """Right guesses for each that was expected; `before` if there were none, which counts as `weight` guesses."""
        return (self.right + weight * before) / (self.expected + weight)

    def add(self, right: float, expected: float) -> None:
        self.right, self.expected = DECAY * self.right + right, DECAY * self.expected + expected


@dataclass
class DraftLengths:
    """Chooses the guesses that pay.

    Attributes:
        times: of the steps without prompts.
        trust: in the proposer's chances, for all sequences; trust_in: for each of those that are running.
        expected: for each sequence with guesses in this step, how many of them should be right if the proposer's
            chances were.
        num_steps: steps of decodes so far. num_tried: those with guesses. num_refused: how many of the last steps in a
            row had none, since none was worth its time.
    """

    times: StepTimes = field(default_factory=StepTimes)
    trust: Trust = field(default_factory=Trust)
    trust_in: dict[Sequence, Trust] = field(default_factory=dict)
    expected: dict[Sequence, float] = field(default_factory=dict)
    num_steps: int = 0
    num_tried: int = 0
    num_refused: int = 0

    def is_trying(self) -> bool:
        """True if this step computes guesses in any case, to learn what they cost and bring."""
        return self.num_tried < FEW_STEPS or self.num_steps % TRY_EVERY == 0

    def may_pay(self, num_seqs: int) -> bool:
        """False if no guess for this many sequences pays, however sure, or none has paid for a while: then it takes
        less time not to ask the proposer."""
        if self.is_trying():
            return True
        return self.num_refused < FEW_STEPS and self.pays(1.0, num_seqs, num_seqs)

    def pays(self, chance: float, num_tokens: int, tokens_gained: float) -> bool:
        """True if one more guess brings more tokens per second than the step does so far."""
        return chance * self.times.of(num_tokens) >= MARGIN * self.times.per_token * tokens_gained

    def choose(self, proposed: dict[Sequence, list[Guess]], num_tokens: int) -> dict[Sequence, list[int]]:
        """Of the guesses for each sequence, the first ones: as long as a guess's chance per second of a pass is above
        what the step brings per second without it.

        Args:
            num_tokens: tokens of the step so far.
        """
        self.trust_in = {each: self.trust_in.get(each) or Trust() for each in proposed}
        candidates = []
        for sequence, guesses in proposed.items():
            factor, chance, told = self.trust_in[sequence].factor(3, self.trust.factor(5, 1.0)), 1.0, 1.0
            for guess in guesses:
                told *= guess.chance
                chance *= min(1.0, guess.chance * factor)
                candidates.append((chance, told, sequence, guess.token))
        candidates.sort(key=lambda each: -each[0])  # stable: the guesses for a sequence keep their order
        drafts: dict[Sequence, list[int]] = {}
        self.expected = {}
        tokens_gained = float(len(proposed))
        for chance, told, sequence, token in candidates:
            if self.is_trying():
                if sequence in drafts or 2 * len(drafts) > len(proposed):
                    continue  # enough to learn
            elif not self.pays(chance, num_tokens, tokens_gained):
                break
            drafts.setdefault(sequence, []).append(token)
            self.expected[sequence] = self.expected.get(sequence, 0.0) + told
            tokens_gained, num_tokens = tokens_gained + chance, num_tokens + 1
        self.num_tried += bool(drafts)
        self.num_refused = 0 if drafts else self.num_refused + 1
        return drafts

    def note_draft(self, sequence: Sequence, num_right: int) -> None:
        """Learn how many of the guesses for a sequence were right."""
        for trust in (self.trust, self.trust_in.get(sequence) or Trust()):
            trust.add(num_right, self.expected.get(sequence, 0.0))

    def note_step(self, num_tokens: int, seconds: float) -> None:
        """Learn how long a step of decodes and guesses took."""
        self.num_steps += 1
        self.times.add(num_tokens, seconds)
