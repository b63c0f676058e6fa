"""Lesson 09: a request as the scheduler sees it, and the waiting queue."""

import bisect
import itertools
from collections.abc import Iterator
from collections.abc import Sequence as ListOrRange
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(eq=False)
class Sequence:
    """A prompt and its growing completion.

    There are no phases. An uncomputed prompt, a half-computed prompt, a completion whose last token isn't computed yet,
    and a sequence that lost its cache and recomputes everything differ only in two counts: `num_tokens` and
    `num_computed_tokens`.

    Attributes:
        id: unique among the sequences of a scheduler.
        prompt_ids: token ids of the prompt. Only the model reads them; without a model, `range(length)` is enough.
        max_new_tokens: maximum number of tokens to generate.
        stop_token_ids: tokens that end the completion and are part of it.
        arrival_time: seconds on any clock.
        tier: priority class of the user; 0 is the best. Used by some policies.
        expected_tokens: an estimate of the completion's length. Used by some policies.
        is_interactive: True if a user reads the completion as it is generated. Used by some policies.
        cache_salt: sequences share blocks only with those of the same salt (lesson 11).
        output_ids: the completion so far.
        num_computed_tokens: number of tokens, from the first on, whose keys and values are in the cache, or will be
            once the step in flight has run.
        blocks: block ids, in the order of the tokens.
        finish_reason: "stop" after a stop token, "length" at `max_new_tokens`, None before. An engine may also set
            "abort" or "error".
        block_hashes: hashes of the full blocks, as far as they are computed (lesson 11).
        swapped: blocks of the swap space that hold the tokens while the sequence is swapped out (lesson 10).
        prompt_logits: True if logits are wanted after each prompt token, which rules out cached prefixes (lesson 12).
        num_placeholders: tokens that a step in flight will append: they are counted, but their ids aren't known yet
            (lesson 13).
        queue_place: place among waiting sequences of the same rank, from the first time it waited.
    """

    id: str
    prompt_ids: ListOrRange[int]
    max_new_tokens: int
    stop_token_ids: frozenset[int] = frozenset()
    arrival_time: float = 0.0
    tier: int = 0
    expected_tokens: float | None = None
    is_interactive: bool = False
    cache_salt: str | None = None
    output_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    blocks: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    block_hashes: list[bytes] = field(default_factory=list)
    swapped: list[int] = field(default_factory=list)
    num_placeholders: int = 0
    prompt_logits: bool = False
    queue_place: int | None = None

    @property
    def token_ids(self) -> list[int]:
        """All tokens whose ids are known, in order."""
        return [*self.prompt_ids, *self.output_ids]

    @property
    def num_tokens(self) -> int:
        """Tokens of the prompt and of the completion so far, placeholders included."""
        return len(self.prompt_ids) + len(self.output_ids) + self.num_placeholders

    @property
    def most_tokens(self) -> int:
        """Maximum number of tokens in the cache. The last token of the completion is returned, but never computed."""
        return len(self.prompt_ids) + self.max_new_tokens - 1

    def append_token(self, token: int) -> None:
        """Append a token to the completion, and set `finish_reason` if it is the last one."""
        self.output_ids.append(token)
        self.finish_reason = self.reason_to_finish()

    def reason_to_finish(self) -> str | None:
        """ "stop" after a stop token, "length" at `max_new_tokens`, None if the completion continues."""
        if self.output_ids and self.output_ids[-1] in self.stop_token_ids:
            return "stop"
        return "length" if len(self.output_ids) >= self.max_new_tokens else None


class Policy(Protocol):
    """Ranks waiting sequences. With a `window` above 1, it also has `choose(first_waiting, running)`; see
    `BalancedLengths`."""

    name: str

    def rank(self, sequence: Sequence) -> Any:
        """A value comparable with other sequences' ranks; the smallest is admitted first."""


class FirstComeFirstServed:
    """Order of arrival."""

    name = "first come, first served"

    def rank(self, sequence: Sequence) -> float:
        return sequence.arrival_time


class WaitingQueue:
    """The waiting sequences, ordered by a policy. Of two with the same rank, the one added first stays first, even if
    it is preempted and added again."""

    def __init__(self, policy: Policy):
        self.policy = policy
        self._entries: list[tuple[Any, int, int, Sequence]] = []
        self._order = itertools.count()

    def add(self, sequence: Sequence) -> None:
        order = next(self._order)  # unique, so sequences are never compared
        if sequence.queue_place is None:
            sequence.queue_place = order
        bisect.insort(self._entries, (self.policy.rank(sequence), sequence.queue_place, order, sequence))

    def clear(self) -> None:
        """Remove all sequences."""
        self._entries.clear()

    def next(self, running: list[Sequence]) -> Sequence:
        """Return the sequence to admit next, without removing it. IndexError if the queue is empty."""
        window: int = getattr(self.policy, "window", 1)
        if window == 1 or not self._entries:
            return self._entries[0][-1]
        first_waiting = [sequence for *_, sequence in self._entries[:window]]
        return self.policy.choose(first_waiting, running)  # type: ignore[attr-defined, no-any-return]

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence. ValueError if it isn't in the queue."""
        for index, (*_, other) in enumerate(self._entries):
            if other is sequence:
                del self._entries[index]
                return
        raise ValueError(f"sequence {sequence.id!r} does not wait in this queue of {len(self)}.")

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Sequence]:
        return (sequence for *_, sequence in self._entries)
