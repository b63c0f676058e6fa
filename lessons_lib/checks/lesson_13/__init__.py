"""The exercise and the quiz of lesson 13: a search for the largest size that fits."""

from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_13.quiz import QUIZ
from lessons_lib.checks.lesson_13.searching import check_largest_that_fits

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = [
    Exercise(
        id="13.1",
        title="the largest that fits",
        reference="lessons_lib.measuring.tuning:largest_that_fits",
        test=check_largest_that_fits,
        hints=(
            "Keep two sizes: one that surely fits, and one that is surely too large. Each try moves one of them.",
            "At the beginning 0 surely fits, and `most + 1` counts as too large. Try the middle of the two. After a yes it becomes the one that fits, after a no the one that is too large. "
            "When they are neighbours, the lower one is the answer.",
            "`fitting, too_large = 0, most + 1`; `while too_large - fitting > 1:` take `middle = (fitting + too_large) // 2` and ask `fits(middle)`; at the end `return fitting`.",
        ),
        points=1,
    ),
]
