"""Lesson 09: a request as the scheduler sees it, and the queue in which it waits."""

import bisect
import itertools
from collections.abc import Iterator
from collections.abc import Sequence as ListOrRange
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(eq=False)
class Sequence:
    """A prompt and the completion that grows behind it.

    There are no phases. A prompt that isn't computed yet, a prompt computed halfway, a completion whose last token
    isn't computed yet, and a sequence that lost its cache and recomputes everything differ in two counts only:
    `num_tokens` and `num_computed_tokens`.

    Attributes:
        id: unique among the sequences of a scheduler.
        prompt_ids: token ids of the prompt. Only the model looks at them; without a model, `range(length)` will do.
        max_new_tokens: the most tokens to generate.
        stop_token_ids: tokens that end the completion; the one that does is part of it.
        arrival_time: when it arrived, in seconds of any clock.
        tier: priority class of its user; 0 is the best. Used by some policies.
        expected_tokens: an estimate of the completion's length, for policies that want one.
        is_interactive: whether a reader is watching the completion grow. Used by some policies.
        cache_salt: it shares blocks only with sequences of the same salt (lesson 11).
        output_ids: the completion so far.
        num_computed_tokens: tokens, from the first on, whose keys and values are in the cache.
        blocks: its blocks, in the order of its tokens.
        finish_reason: "stop" after a stop token, "length" at `max_new_tokens`, None while it is unfinished.
        block_hashes: hashes of its full blocks, as far as they have been computed (lesson 11).
        swapped: blocks of the swap space that hold its tokens while it is swapped out (lesson 10).
        prompt_logits: whether the logits after each token of the prompt are wanted. Then nothing of it is taken from
            the prefix cache (lesson 12).
        num_placeholders: tokens that a step in flight will append: they count as known, but their ids aren't there yet
            (lesson 13).
        queue_place: its place among waiting sequences of the same rank, from the first time it waited.
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
        """The most tokens it can ever have in the cache. The last token of the completion is returned and never
        computed."""
        return len(self.prompt_ids) + self.max_new_tokens - 1

    def append_token(self, token: int) -> None:
        """Append a token to the completion. It finishes with a stop token, or with the last token that `max_new_tokens`
        allows."""
        self.output_ids.append(token)
        self.finish_reason = self.reason_to_finish()

    def reason_to_finish(self) -> str | None:
        """ "stop" after a stop token, "length" at `max_new_tokens`, None if the completion goes on."""
        if self.output_ids and self.output_ids[-1] in self.stop_token_ids:
            return "stop"
        return "length" if len(self.output_ids) >= self.max_new_tokens else None


class Policy(Protocol):
    """Ranks waiting sequences.

    A policy with a `window` above 1 also has `choose(first_waiting, running)`; see `BalancedLengths`.
    """

    name: str

    def rank(self, sequence: Sequence) -> Any:
        """Anything that can be compared with the ranks of other sequences; the smallest is admitted first."""


class FirstComeFirstServed:
    """In the order of arrival."""

    name = "first come, first served"

    def rank(self, sequence: Sequence) -> float:
        return sequence.arrival_time


class WaitingQueue:
    """The waiting sequences in the order of a policy. Of two with the same rank, the one added first is first, and
    stays first if it is preempted and added again."""

    def __init__(self, policy: Policy):
        self.policy = policy
        self._entries: list[tuple[Any, int, int, Sequence]] = []
        self._order = itertools.count()

    def add(self, sequence: Sequence) -> None:
        order = next(self._order)  # no two entries have the same, so sequences are never compared
        if sequence.queue_place is None:
            sequence.queue_place = order
        bisect.insort(self._entries, (self.policy.rank(sequence), sequence.queue_place, order, sequence))

    def clear(self) -> None:
        """Take all sequences out."""
        self._entries.clear()

    def next(self, running: list[Sequence]) -> Sequence:
        """The sequence to admit next. It stays in the queue: whether there is room for it is another question.

        Raises:
            IndexError: the queue is empty.
        """
        window: int = getattr(self.policy, "window", 1)
        if window == 1 or not self._entries:
            return self._entries[0][-1]
        first_waiting = [sequence for *_, sequence in self._entries[:window]]
        return self.policy.choose(first_waiting, running)  # type: ignore[attr-defined, no-any-return]

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out.

        Raises:
            ValueError: it is not in the queue.
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
