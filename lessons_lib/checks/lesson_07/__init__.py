"""Exercises and quiz of lesson 07: addition, attention over a block table, all sequences and heads."""

from lessons_lib.checks.lesson_07 import add, attend, decode
from lessons_lib.checks.lesson_07.quiz import QUIZ

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = [add.EXERCISE, attend.EXERCISE, decode.EXERCISE]
