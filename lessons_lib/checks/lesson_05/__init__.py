"""The exercises and the quiz of lesson 05: the packed row, one step of the loop, and one with prompts in chunks."""

from lessons_lib.checks.lesson_05 import chunked, pack, step

EXERCISES = [each.EXERCISE for each in (pack, step, chunked)]
