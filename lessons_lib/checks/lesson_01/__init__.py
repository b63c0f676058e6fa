"""The exercises and the quiz of lesson 01: the rectangle, and the loop for one wave."""

from lessons_lib.checks.lesson_01 import generation, padding

EXERCISES = [padding.EXERCISE, generation.EXERCISE]
