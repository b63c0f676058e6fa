"""The exercises and the quiz of lesson 19: the step of a state, the blocks of a window, and prefixes for both."""

from lessons_lib.checks.lesson_19 import delta, prefix, sliding

EXERCISES = [each.EXERCISE for each in (delta, sliding, prefix)]
