"""The exercise and the quiz of lesson 10: which sequence is preempted."""

from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_10.quiz import QUIZ
from lessons_lib.checks.lesson_10.victim import check_last_in_rank

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = [
    Exercise(
        id="10.1",
        title="the victim",
        reference="lessons_lib.scheduling.preemption:last_in_rank",
        test=check_last_in_rank,
        hints=(
            "The policy serves the smallest rank first. Which sequence would it serve last?",
            "`max` with `key=policy.rank` finds the largest rank. If several are equally large, it returns the first "
            "one it sees. You want the last one in the list.",
            "`reversed(candidates)` iterates from the end and doesn't change the list: `max(reversed(candidates), "
            "key=policy.rank)`.",
        ),
        points=1,
    ),
]
