"""The exercises and the quiz of lesson 20."""

from lessons_lib.checks.lesson_20 import evicting, fetching, loading

EXERCISES = [each.EXERCISE for each in (loading, evicting, fetching)]
