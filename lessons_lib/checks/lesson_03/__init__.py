"""The exercises and the quiz of lesson 03: the pool, the boundary, the block table, the slot mapping, the
budget, the step, the rule of admission."""

from lessons_lib.checks.lesson_03 import admitting, budget, counting, mapping, pool, serving, table
from lessons_lib.checks.lesson_03.quiz import QUIZ

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = [each.EXERCISE for each in (pool, counting, table, mapping, budget, serving, admitting)]
