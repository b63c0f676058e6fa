"""The exercises and the quiz of lesson 16: the two cuts of a matrix, the sum over all workers, a layer in parts."""

from lessons_lib.checks.lesson_16 import cutting, layers, reducing

EXERCISES = [each.EXERCISE for each in (cutting, reducing, layers)]
