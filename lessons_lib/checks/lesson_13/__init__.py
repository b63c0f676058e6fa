"""The exercises and the quiz of lesson 13: graphs that are never stale, tokens that aren't known yet, steps that
overlap, a draw on the device."""

from lessons_lib.checks.lesson_13 import draws, graphs, tokens, turns

EXERCISES = [each.EXERCISE for each in (graphs, tokens, turns, draws)]
