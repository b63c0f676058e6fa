"""The exercises and the quiz of lesson 18: guesses by n-grams, their verification, and guesses of a draft that draws on
its own."""

from lessons_lib.checks.lesson_18 import accepting, guessing, verifying

EXERCISES = [each.EXERCISE for each in (guessing, verifying, accepting)]
