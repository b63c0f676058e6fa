"""The exercises and the quiz of lesson 00: the loop without a cache, the cache, the loop with it."""

from lessons_lib.checks.lesson_00 import greedy, growing_cache

EXERCISES = [greedy.EXERCISES[0], growing_cache.EXERCISE, greedy.EXERCISES[1]]
