"""Lesson 12: rules that change logits before tokens are chosen, as the sampler and a request see them. Those of the
sampling parameters are in `logits_processors`; a request without rules never touches them."""

from collections.abc import Sequence as ListOf
from typing import Any, Protocol

import torch

from lessons_lib.scheduling.sequence import Sequence

NEVER = float("-inf")
NO_TOKEN_ALLOWED = -2


class NoTokenAllowed(RuntimeError):
    """The rules of a request leave no token that could be drawn."""


class RulesMemory(Protocol):
    """State that the rules of a step need on the device, such as a RulesState."""

    def process(self, logits: torch.Tensor, processors: ListOf[Any], positions: ListOf[int]) -> torch.Tensor:
        """The logits of a step after the rules of each sequence, float32 [N, vocabulary]; the argument stays as it is.

        A rule that raises leaves its own sequence without a token, and says why in `processor.error`.

        Args:
            logits: [N, vocabulary].
            processors: a Processor of each, None for sequences without rules.
            positions: see `choose_tokens`.
        """

    def settle(self, tokens: torch.Tensor, highest: torch.Tensor) -> None:
        """Replace tokens of rows that the rules leave nothing of, by the end token or NO_TOKEN_ALLOWED, and count them.

        Args:
            tokens: int64 [N], chosen for the rows of the last `process`; changed in place.
            highest: the largest logit of each row, after its rules.
        """


class Processor(Protocol):
    """The rules of a completion that change its logits, such as a LogitsProcessor.

    Attributes:
        memory: what all completions of an engine share.
        error: the reason why no token could be chosen.
        end_token: the token to choose where the rules leave none; NO_TOKEN_ALLOWED if there is none.
        needs_host: whether the host must know all tokens of the completion before it can choose the next.
    """

    error: Exception | None

    @property
    def memory(self) -> RulesMemory: ...

    @property
    def end_token(self) -> int: ...

    @property
    def needs_host(self) -> bool: ...

    def check(self, vocab_size: int) -> None:
        """Refuse a completion that another engine began, and that the rules don't allow."""


class Rules(Protocol):
    """The rules of a request, such as LogitsRules."""

    def processor(self, sequence: Sequence) -> Processor:
        """Apply the rules to a completion that grows with a sequence."""


def to_device(values: torch.Tensor | list[int], device: torch.device) -> torch.Tensor:
    """Integers, or a tensor on the host, on a device. The host doesn't wait for the copy: it comes from page-locked
    memory."""
    tensor = values if isinstance(values, torch.Tensor) else torch.tensor(values, dtype=torch.int64)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def why_no_token(token: int, processor: Processor | None) -> Exception:
    """The error of a request that got a negative token."""
    if processor and processor.error:
        return processor.error
    if token == NO_TOKEN_ALLOWED:
        return NoTokenAllowed("the request's rules leave no token that may be drawn, and no end token; loosen one.")
    return FloatingPointError("the model's logits are not finite numbers; check weights and dtype.")
