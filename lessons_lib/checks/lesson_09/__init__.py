"""The exercises and the quiz of lesson 09: sharing the budget, the scheduler, a policy."""

from lessons_lib.checks.lesson_09 import scheduling, share, shortest

EXERCISES = [each.EXERCISE for each in (share, scheduling, shortest)]
