"""The exercises and the quiz of lesson 05: the packed row, one step of the loop, and one with prompts in chunks."""

from lessons_lib.checks.lesson_05 import chunked, pack, step
from lessons_lib.checks.lesson_05.quiz import QUIZ

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = [each.EXERCISE for each in (pack, step, chunked)]
