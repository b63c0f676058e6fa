"""The exercises and the quiz of lesson 12: the loop that batches, sampling, a step that may fail, and stop strings."""

from lessons_lib.checks.lesson_12 import loop, probabilities, steps, stopping

EXERCISES = [each.EXERCISE for each in (loop, probabilities, steps, stopping)]
