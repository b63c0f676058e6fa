"""The exercises and the quiz of lesson 15: which replica, a stream that goes on elsewhere, the core of a balancer."""

from lessons_lib.checks.lesson_15 import going_on, relaying, routing

EXERCISES = [each.EXERCISE for each in (routing, going_on, relaying)]
