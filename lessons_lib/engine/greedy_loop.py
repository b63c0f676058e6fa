"""Lesson 09: the simplest loop around a scheduler and a runner. Lesson 13: the same with a step in flight."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lessons_lib.engine.core import overlapped_step
from lessons_lib.engine.model_runner import InFlight, ModelRunner
from lessons_lib.scheduling.scheduler import SchedulerBase
from lessons_lib.scheduling.sequence import Sequence


@dataclass
class GreedyLoop:
    """Drives a scheduler and a runner; the likeliest token comes next.

    Attributes:
        depth: how many steps may be in flight while the next one is scheduled (lesson 13).
        copy_blocks: function (scheduler_output): carries out its block copies; None if there are none.
        in_flight: (scheduler output, InFlight) of each step that was launched and not processed, oldest first.
    """

    scheduler: SchedulerBase
    runner: ModelRunner
    depth: int = 0
    copy_blocks: Callable[[Any], None] | None = None
    in_flight: deque[tuple[Any, InFlight]] = field(default_factory=deque)

    def schedule(self) -> Any:
        return self.scheduler.schedule()

    def launch(self, scheduler_output: Any) -> tuple[Any, InFlight] | None:
        """Start a step. None if there is nothing to compute."""
        if self.copy_blocks:
            self.copy_blocks(scheduler_output)
        if not scheduler_output.num_scheduled_tokens:
            return None
        tokens = self.runner.forward(scheduler_output).argmax(dim=-1)
        step = scheduler_output, self.runner.keep_tokens(scheduler_output, tokens)
        self.scheduler.update_after_launch(scheduler_output)
        return step

    def process(self, depth: int) -> None:
        """Wait for the tokens of all steps in flight but the last `depth`, and append them to their sequences."""
        while len(self.in_flight) > depth:
            scheduler_output, tokens = self.in_flight.popleft()
            self.scheduler.update_from_output(scheduler_output, tokens.wait())


def serve_greedily(
    runner: ModelRunner, scheduler: SchedulerBase, sequences: list[Sequence], depth: int = 0,
    copy_blocks: Callable[[Any], None] | None = None,
) -> list[list[int]]:  # fmt: skip
    """Generate the completions of all sequences, in their order; see GreedyLoop."""
    loop = GreedyLoop(scheduler, runner, depth, copy_blocks)
    for sequence in sequences:
        scheduler.add(sequence)
    while scheduler.has_unfinished():
        overlapped_step(loop)  # type: ignore[arg-type]  # it has the methods that this needs
    loop.process(0)
    return [sequence.output_ids for sequence in sequences]
