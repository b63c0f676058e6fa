"""The exercises and the quiz of lesson 04: the mask, one pass over a packed row, attention without the mask."""

from lessons_lib.checks.lesson_04 import mask, packed, varlen

EXERCISES = [each.EXERCISE for each in (mask, packed, varlen)]
