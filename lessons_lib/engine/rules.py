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


class Processor(Protocol):
    """The rules of a completion that change its logits, such as a LogitsProcessor.

    Attributes:
        error: the reason why no token could be chosen.
        end_token: the token to choose where the rules leave none; NO_TOKEN_ALLOWED if there is none.
    """

    error: Exception | None

    @property
    def end_token(self) -> int: ...

    def check(self, vocab_size: int) -> None:
        """Refuse a completion that another engine began, and that the rules don't allow."""

    def __call__(self, logits: torch.Tensor, position: int) -> torch.Tensor:
        """The logits of the next token, float32 [vocabulary], of a completion that has `position` tokens."""


class Rules(Protocol):
    """The rules of a request, such as LogitsRules."""

    def processor(self, sequence: Sequence) -> Processor:
        """Apply the rules to a completion that grows with a sequence."""


def to_device(values: list[Any], logits: torch.Tensor) -> torch.Tensor:
    """A tensor on the device of the logits. The host doesn't wait for the copy: it comes from page-locked memory."""
    tensor = torch.tensor(values, dtype=torch.float64 if values and isinstance(values[0], float) else torch.int64)
    return tensor.pin_memory().to(logits.device, non_blocking=True) if logits.is_cuda else tensor


def process_logits(logits: torch.Tensor, processors: ListOf[Processor | None], positions: ListOf[int]) -> torch.Tensor:
    """The logits of a step after the rules of each sequence; the argument stays as it is.

    A rule that raises leaves its own sequence without a token, and says why in `processor.error`.

    Args:
        logits: [N, vocabulary].
        processors: None for sequences without rules.
        positions: see `choose_tokens`.
    """
    logits = logits.float() if logits.dtype != torch.float32 else logits.clone()
    for row, processor in enumerate(processors):
        if processor is not None:
            try:
                logits[row] = processor(logits[row], positions[row])
            except Exception as error:
                processor.error = error
                logits[row] = NEVER
    return logits


def why_no_token(token: int, processor: Processor | None) -> Exception:
    """The error of a request that got a negative token."""
    if processor and processor.error:
        return processor.error
    if token == NO_TOKEN_ALLOWED:
        return NoTokenAllowed(
            "the request's rules leave no token that may be drawn, and no end token; loosen one of them."
        )
    return FloatingPointError("the model's logits are not finite numbers; check weights and dtype.")
