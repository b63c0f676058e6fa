"""Lesson 13: tokens between the launch of a step and the moment the host has them, and the loop that uses that time.

Scheduling a sequence's next step doesn't take its new token, only the fact that there will be one. Until the token
arrives, a placeholder counts. Only then can the host see that it was a stop token: the sequence has computed one token
too many, which is thrown away.
"""

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


def overlapped_step(loop: Any) -> None:
    """One turn of a loop: launch the next step, then process all but the last `depth` of those in flight. With a depth
    of 1, the device has its next step before the host turns to the tokens of the last one.

    Args:
        loop: an EngineCore or a GreedyLoop.
    """
    if loop.host_must_see_tokens():
        loop.process(0)
    scheduler_output = loop.schedule()
    if any(victim.num_placeholders for victim in scheduler_output.preempted):
        loop.process(0)  # a victim is computed again from its tokens, so all of them must be known
        scheduler_output.drop_finished()
    launched = loop.launch(scheduler_output)
    if launched:
        loop.in_flight.append(launched)
    loop.process(loop.depth if launched else 0)
