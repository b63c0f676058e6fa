"""The attempt and the reference, run side by side and compared after every step."""

import random

from lessons_lib.checks.exercise import call
from lessons_lib.checks.lesson_09.differences import compare_computed, compare_errors, compare_outputs
from lessons_lib.checks.lesson_09.made_up import END, names_of
from lessons_lib.checks.lesson_09.pair import Pair


class Twins(Pair):
    """A pair that is compared after every step."""

    def step(self) -> bool:
        """Run one step of both. Returns whether anything was computed; False also if both raise a Deadlock.

        Raises:
            Mistake: they differ.
        """
        self.number += 1
        self.questions = 0
        self.before = {sequence.id: len(sequence.blocks) for sequence in self.want.running}
        self.held = {sequence: list(sequence.blocks) for sequence in [*self.mine.running, *self.mine.waiting]}
        self.queue = names_of(self.want.waiting)
        want, expected = self._scheduled(self.want)
        computed = {sequence: sequence.num_computed_tokens for sequence in [*self.mine.running, *self.mine.waiting]}
        got, raised = self._scheduled(self.mine)
        compare_computed(self, computed)
        compare_errors(self, raised, expected, want)
        self.want_stalled = names_of(want.stalled) if want else []
        if expected:
            return False
        compare_outputs(self, got, want)
        if self.want_stalled:
            self.stalls[self.number] = self.want_stalled
        for scheduler, scheduler_output in ((self.mine, got), (self.want, want)):
            lengths = [len(sequence.output_ids) + 1 for sequence in scheduler_output.num_scheduled_tokens]
            call(
                scheduler.update,
                scheduler_output,
                [
                    END if length == self.requests[sequence.id][2] else 7
                    for sequence, length in zip(scheduler_output.num_scheduled_tokens, lengths)
                ],
                case=self.case,
            )
        return bool(want.num_scheduled_tokens)


def random_requests(seed: int) -> dict[str, tuple]:
    """Sequences of all kinds, with increasing arrival times."""
    rng = random.Random(seed)
    return {
        name: (rng.choice((1, 3, 4, 9, 16, 30)), max_tokens, rng.randint(1, max_tokens), float(index))
        for index, (name, max_tokens) in enumerate((name, rng.choice((1, 2, 5, 12))) for name in "ABCDEFGHIJ")
    }
