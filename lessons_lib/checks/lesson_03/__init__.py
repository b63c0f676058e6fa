"""The exercises and the quiz of lesson 03: the block table, the slot mapping, the step, the rule of admission; and
optional, the pool and the boundary."""

from lessons_lib.checks.lesson_03 import admitting, counting, mapping, pool, serving, table

EXERCISES = [each.EXERCISE for each in (table, mapping, serving, admitting, pool, counting)]
