"""The exercises and the quiz of lesson 02: the mask of every row, and the loop."""

from lessons_lib.checks.lesson_02 import mask, serving

EXERCISES = [mask.EXERCISE, serving.EXERCISE]
