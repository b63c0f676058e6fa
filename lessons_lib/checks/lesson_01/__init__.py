"""The exercises and the quiz of lesson 01: the rectangle, and the loop for one wave."""

from lessons_lib.checks.lesson_01 import generation, padding
from lessons_lib.checks.lesson_01.quiz import QUIZ

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = [padding.EXERCISE, generation.EXERCISE]
