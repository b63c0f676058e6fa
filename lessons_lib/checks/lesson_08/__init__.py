"""The exercises and the quiz of lesson 08: a tile's offsets, a group of heads over a range of keys, splits merged."""

from lessons_lib.checks.lesson_08 import attend, merge, offsets

EXERCISES = [each.EXERCISE for each in (offsets, attend, merge)]
