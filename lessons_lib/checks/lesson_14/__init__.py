"""The exercises and the quiz of lesson 14: a stream's mailbox, the engine's owner, clients that leave."""

from lessons_lib.checks.lesson_14 import leaving, mailbox, owning

EXERCISES = [each.EXERCISE for each in (mailbox, owning, leaving)]
