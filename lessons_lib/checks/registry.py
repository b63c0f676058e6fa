"""Finds exercises and quizzes; those of lesson NN are in `lessons_lib.checks.lesson_NN`."""

import importlib
import importlib.util
import pkgutil
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

from lessons_lib.checks.exercise import Exercise, Question, questions


class UnknownExercise(LookupError):
    pass


def lesson_numbers() -> list[str]:
    """Every lesson that has exercises, such as ["00", "01"], in order."""
    return list(_lesson_numbers(tuple(sys.modules[__package__].__path__)))


@cache
def _lesson_numbers(folders: tuple[str, ...]) -> tuple[str, ...]:
    names = (module.name for module in pkgutil.iter_modules(folders))
    return tuple(sorted(name.removeprefix("lesson_") for name in names if name.startswith("lesson_")))


def exercises_of(lesson: str) -> list[Exercise]:
    return list(_module(lesson).EXERCISES)


def quiz_of(lesson: str) -> tuple[Question, ...]:
    return tuple(questions(_quiz_module(lesson).QUIZ))


def slips_of(key: str) -> dict[float, str]:
    """What wrong values of a prediction such as "00.a" come from: `00.a 390: why`, one below the other."""
    lesson = key.split(".")[0]
    text = getattr(_quiz_module(lesson), "SLIPS", "") if lesson in lesson_numbers() else ""
    slips = re.findall(rf"^{re.escape(key)} (\S+): (.+)$", text.replace("\n  ", " "), re.MULTILINE)
    return {float(wrong): why for wrong, why in slips}


@cache
def _quiz_module(lesson: str) -> Any:
    """The module with a lesson's questions, loaded by itself: the exercises beside it import torch."""
    if lesson not in lesson_numbers():
        raise _unknown_lesson(lesson)
    folders = [Path(place, f"lesson_{lesson}") for place in sys.modules[__package__].__path__]
    file = next(folder / "quiz.py" for folder in folders if folder.is_dir())
    spec = importlib.util.spec_from_file_location(f"{__package__}.quiz_of_lesson_{lesson}", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def get_exercise(id: str) -> Exercise:
    """The exercise with this id.

    Raises:
        UnknownExercise: there is none; the message lists the ids that exist.
    """
    lesson = str(id).split(".")[0]
    known = exercises_of(lesson) if lesson in lesson_numbers() else []
    for exercise in known:
        if exercise.id == id:
            return exercise
    raise UnknownExercise(f"no exercise {id!r}. {_what_exists(lesson, known)}")


def _what_exists(lesson: str, known: list[Exercise]) -> str:
    if known:
        return f"Lesson {lesson} has {', '.join(exercise.id for exercise in known)}."
    return f"There are lessons {', '.join(lesson_numbers())}."


def _module(lesson: str):
    if lesson not in lesson_numbers():
        raise _unknown_lesson(lesson)
    return importlib.import_module(f"{__package__}.lesson_{lesson}")


def _unknown_lesson(lesson: str) -> UnknownExercise:
    return UnknownExercise(f"no lesson {lesson!r}. There are lessons {', '.join(lesson_numbers())}.")
