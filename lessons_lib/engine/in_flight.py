"""Lesson 12: a step between its launch and the moment its results are processed. LLMEngine does both at once, lesson 13
one step apart."""

from dataclasses import dataclass, field
from typing import Any

import torch

from lessons_lib.scheduling.scheduler import SchedulerOutput


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


@dataclass
class InFlightStep:
    """A step that was launched and whose results haven't been processed.

    Attributes:
        scheduler_output: what it computes.
        tokens: `tokens.wait()` returns a token for each of its sequences.
        gets_token: for each scheduled sequence, whether all its tokens are computed by this step, so that it gets a new
            one.
    """

    scheduler_output: SchedulerOutput
    tokens: InFlightTokens
    gets_token: list[bool] = field(init=False)

    def __post_init__(self) -> None:
        # Not `num_tokens`: a call for each of hundreds of sequences takes time in every step.
        self.gets_token = [
            each.num_computed_tokens + count == len(each.prompt_ids) + len(each.output_ids) + each.num_placeholders
            for each, count in self.scheduler_output.num_scheduled_tokens.items()
        ]
