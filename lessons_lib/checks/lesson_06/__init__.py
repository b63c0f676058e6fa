"""The exercises and the quiz of lesson 06: the cache in blocks, the online softmax, attention over a block table, and
the function that a model calls."""

from lessons_lib.checks.lesson_06 import add_block, cache, forward, in_place

EXERCISES = [each.EXERCISE for each in (cache, add_block, in_place, forward)]
