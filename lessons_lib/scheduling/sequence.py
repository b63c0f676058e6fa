"""Lesson 09: what a scheduler keeps of a request: the tokens that are known, and how many of them are computed."""

from collections.abc import Sequence as ListOrRange
from dataclasses import dataclass, field


@dataclass(eq=False)
class Sequence:
    """One line of tokens, a prompt and the answer that grows behind it.

    There are no phases here. A prompt of which nothing is computed, one computed half, an answer of which the last token is not
    computed yet, and a sequence that lost its cache and computes all of it again differ in two numbers only.

    Attributes:
        id: its name, unique among the sequences of a scheduler.
        prompt_ids: token ids of the prompt. Only the model looks at them: where there is none, `range(length)` will do.
        max_new_tokens: the most tokens to add.
        stop_token_ids: tokens that end the answer; the one that does is part of it.
        arrival_time: when it came, in seconds of any clock.
        tier: rank of its customer; 0 goes first, where a policy asks.
        expected_tokens: a guess of how long the answer will be, for policies that want one.
        is_interactive: whether somebody waits at a screen and reads the answer as it grows, where a policy asks.
        output_ids: the answer so far.
        num_computed_tokens: tokens, from the first on, whose keys and values are in the cache.
        blocks: its blocks, in the order of its tokens.
        finish_reason: "stop" after a stop token, "length" at the cap, None before.
        block_hashes: what its full blocks are called, as far as anybody asked (lesson 10).
        swapped: blocks of the swap space that hold its tokens while it is swapped out (lesson 10).
    """

    id: str
    prompt_ids: ListOrRange[int]
    max_new_tokens: int
    stop_token_ids: frozenset[int] = frozenset()
    arrival_time: float = 0.0
    tier: int = 0
    expected_tokens: float | None = None
    is_interactive: bool = False
    output_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    blocks: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    block_hashes: list[bytes] = field(default_factory=list)
    swapped: list[int] = field(default_factory=list)

    @property
    def token_ids(self) -> list[int]:
        """All tokens that are known, in order."""
        return [*self.prompt_ids, *self.output_ids]

    @property
    def num_tokens(self) -> int:
        """Tokens that are known: those of the prompt, and of the answer so far."""
        return len(self.prompt_ids) + len(self.output_ids)

    @property
    def most_tokens(self) -> int:
        """Tokens that it may ever have in the cache. The last one of the answer is handed out and never computed."""
        return len(self.prompt_ids) + self.max_new_tokens - 1

    def append_token(self, token: int) -> None:
        """Take one more token into the answer. A stop token finishes it, and so does the last token that the cap allows."""
        self.output_ids.append(token)
        if token in self.stop_token_ids:
            self.finish_reason = "stop"
        elif len(self.output_ids) == self.max_new_tokens:
            self.finish_reason = "length"
