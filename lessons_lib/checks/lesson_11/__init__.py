"""The exercises and the quiz of lesson 11: hashes, what a sequence takes from the cache, copies before a write."""

from lessons_lib.checks.lesson_11 import cached, copies, hashes

EXERCISES = [each.EXERCISE for each in (hashes, cached, copies)]
