"""Exercises and quiz of lesson 07: addition, attention over a block table, all sequences and heads."""

from lessons_lib.checks.lesson_07 import add, attend, decode

EXERCISES = [add.EXERCISE, attend.EXERCISE, decode.EXERCISE]
