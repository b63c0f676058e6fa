"""The toy course's registry and its `check`, with the behaviour of the real one."""

import os

from lessons_lib.checks.exercise import Exercise, Mistake
from toylib import shapes


def _test_area(attempt):
    if attempt(2, 3) != 6:
        raise Mistake("area(2, 3) is 6.")


def _test_counter(attempt):
    if attempt(step=2).add(3) != 6:
        raise Mistake("Counter(step=2).add(3) is 6.")


EXERCISES = [
    Exercise("99.1", "Area", "toylib.shapes:area", _test_area, ("multiply",), points=2),
    Exercise("99.2", "Counter", "toylib.shapes:Counter", _test_counter, ("add",), points=3),
]


def get_exercise(id):
    for exercise in EXERCISES:
        if exercise.id == id:
            return exercise
    raise LookupError(f"no exercise {id!r}. Lesson 99 has 99.1, 99.2.")


def exercises_of(lesson):
    return EXERCISES if lesson == "99" else []


def check(id, attempt):
    exercise = get_exercise(id)
    try:
        if os.environ.get("TOY_REFUSES") == id:
            raise Mistake("refused for a test's sake.")
        exercise.test(attempt)
    except Exception as error:
        if os.environ.get("NBGRADER_EXECUTION"):
            raise AssertionError(f"{id}: {error}") from None
        print(f"✗ {id}: {error}")
        return getattr(shapes, exercise.name)
    print(f"✓ {id}: right.")
    return attempt
