"""The exercise and the quiz of lesson 13: a search for the largest size that fits."""

from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_13.quiz import QUIZ
from lessons_lib.checks.lesson_13.searching import check_largest_that_fits

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = [
    Exercise(
        id="13.1",
        title="the largest batch that fits",
        reference="lessons_lib.measuring.tuning:largest_that_fits",
        test=check_largest_that_fits,
        hints=(
            "Keep two sizes: one known to fit, and one known to be too large. Each try moves one of them.",
            "At the start, 0 counts as fitting and `most + 1` as too large. Try the size in the middle. If it fits, "
            "it becomes the size that fits; otherwise it becomes the one that is too large. "
            "When they differ by 1, the lower one is the answer.",
            "`fitting, too_large = 0, most + 1`; `while too_large - fitting > 1:` compute `middle = (fitting + "
            "too_large) // 2` and call `fits(middle)`; after the loop, `return fitting`.",
        ),
        points=1,
    ),
]
