"""The exercises and the quiz of lesson 20: a prompt's blocks from all floors, which block leaves a full floor, and
blocks from another engine."""

from lessons_lib.checks.lesson_20 import evicting, loading, receiving
from lessons_lib.checks.lesson_20.quiz import QUIZ

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = [each.EXERCISE for each in (loading, evicting, receiving)]
