"""Lesson 13: tokens between the launch of a step and the moment the host has them."""

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class InFlightTokens:
    """The tokens of a step that was launched.

    Attributes:
        tokens: int64 [N], valid once `arrived` has happened.
        arrived: torch.cuda.Event, or None if there is nothing to wait for.
    """

    tokens: torch.Tensor
    arrived: Any = None

    def wait(self) -> list[int]:
        """Wait for the step, and return a token for each of its sequences."""
        if self.arrived is not None:
            self.arrived.synchronize()
        return self.tokens.tolist()
