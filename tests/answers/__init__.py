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


def slips(reference, text, **names):
    """Wrong answers, written as the mistakes of a check are: what the message says, and what changes in the reference."""
    patches = mistakes(text, **names)
    return [Wrong(known.patch.replace("\n", "; "), known.attempt(reference), known.why) for known in patches]


def rights(reference, text, **names):
    """Right answers, written in the same way."""
    return [known.attempt(reference) for known in mistakes(text, **names)]


def verdict(id: str, attempt: object) -> Panel:
    """The panel that a learner sees for this attempt."""
    exercise = get_exercise(id)
    return describe(exercise, *run_check(exercise, attempt), attempt)
