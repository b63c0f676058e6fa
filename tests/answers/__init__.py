"""Wrong and right answers to the exercises, and how to judge one."""

from collections.abc import Callable
from dataclasses import dataclass

from lessons_lib.checks.diagnosis import mistakes
from lessons_lib.checks.judge import describe
from lessons_lib.checks.judge import judge as run_check
from lessons_lib.checks.panel import Panel
from lessons_lib.checks.registry import get_exercise


@dataclass(frozen=True)
class Wrong:
    """A plausible wrong answer.

    Attributes:
        mistake: what is wrong with it, in a few words.
        attempt: the function or class.
        says: words that the check's message must contain.
    """

    mistake: str
    attempt: Callable
    says: str


def verdict(id: str, attempt: object) -> Panel:
    """The panel that a learner sees for this attempt."""
    exercise = get_exercise(id)
    return describe(exercise, *run_check(exercise, attempt), attempt)


def other_ways(id: str, text: str, **names: object) -> list[Callable]:
    """Right answers that are written as `mistakes` are: the name of each, and what it changes in the reference."""
    reference, made = get_exercise(id).load_reference(), []
    for each in mistakes(text, **names):
        made.append(each.attempt(reference))
        made[-1].__name__ = each.why
    return made
