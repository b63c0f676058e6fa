"""The exercises and the quiz of lesson 10: which sequence is preempted, how, and whether it is swapped."""

from lessons_lib.checks.lesson_10 import choosing, preempting, victim

EXERCISES = [each.EXERCISE for each in (victim, preempting, choosing)]
