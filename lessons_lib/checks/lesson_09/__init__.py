"""The exercises and the quiz of lesson 09: sharing the budget, admission, the scheduler, two policies with aging."""

from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_09 import admission, aging, share
from lessons_lib.checks.lesson_09.quiz import QUIZ
from lessons_lib.checks.lesson_09.scheduling import check_scheduler
from lessons_lib.checks.lesson_09.shortest import check_shortest_with_aging

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = [
    share.EXERCISE,
    admission.EXERCISE,
    Exercise(
        id="09.3",
        title="the scheduler",
        reference="lessons_lib.scheduling.stalling:Scheduler",
        test=check_scheduler,
        hints=(
            "`schedule_waiting` is a loop. Which conditions can you check before you know the next sequence, and which "
            "only afterwards?",
            "`schedule_waiting`: return if `scheduler_output.stalled` isn't empty. The budget is the limit minus the "
            "tokens scheduled so far. While a sequence waits, budget is left and a batch slot is free: get the next "
            "sequence; if the admission rule says no, stop; admit it; schedule what it wants or what is left; subtract "
            "that from the budget.",
            "`if scheduler_output.stalled: return`. `while self.waiting and budget and len(self.running) < "
            "self.max_num_seqs:`, and in the loop `sequence = self.waiting.next(self.running)` and `if not "
            "self.admission(self, sequence): break`; `self.admit(scheduler_output, sequence)`; `count = "
            "min(sequence.num_tokens - sequence.num_computed_tokens, budget)`; `self.allocate_slots(scheduler_output, "
            "sequence, count)`; `budget -= count`.",
        ),
        points=3,
    ),
    aging.EXERCISE,
    Exercise(
        id="09.5",
        title="a policy of your own",
        reference="lessons_lib.scheduling.policies:ShortestWithAgeing",
        test=check_shortest_with_aging,
        hints=(
            "Let each sequence rank as if it had arrived later than it did. How much later may the longest one be, so "
            "that none overtakes it that arrived more than `patience` after it? And the shortest?",
            "The rank is the arrival time plus a part of `self.patience`. The part depends on the lengths only: near 0 "
            "for the shortest request, at most 1 for the longest, and larger with every token. What does a request "
            "cost the machine?",
            "`cost = len(sequence.prompt_ids) + 8 * sequence.expected_tokens`; `return sequence.arrival_time + "
            "self.patience * part`, with `part = cost / 4608`. That keeps all three promises, but short requests "
            "hardly differ. A part that grows fast at first and slowly later can keep them too, and scores far better.",
        ),
    ),
]
