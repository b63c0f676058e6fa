"""What an exam's answers are worth, and which lessons to revisit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lessons_lib.assessment.draw import Exam
from lessons_lib.assessment.lessons import link_to, notebook_of
from lessons_lib.assessment.question import KINDS

PASS_SHARE = 0.7


class BadAnswer(ValueError):
    pass


@dataclass(frozen=True)
class Result:
    """The marks of one exam.

    Attributes:
        exam: what was asked.
        answers: for each question the index of the choice, or None if it wasn't answered.
    """

    exam: Exam
    answers: tuple[int | None, ...]

    @property
    def is_right(self) -> list[bool]:
        return [answer == asked.right for answer, asked in zip(self.answers, self.exam.questions)]

    @property
    def score(self) -> int:
        return sum(self.is_right)

    @property
    def passed(self) -> bool:
        return self.score >= PASS_SHARE * len(self.answers)

    def by(self, attribute: str) -> dict[str, tuple[int, int]]:
        """Right answers and questions for each lesson or kind: `by("lesson")`, `by("kind")`."""
        counts: dict[str, tuple[int, int]] = {}
        for item, is_right in zip(self.exam.items, self.is_right):
            right, total = counts.get(getattr(item, attribute), (0, 0))
            counts[getattr(item, attribute)] = (right + is_right, total + 1)
        return dict(sorted(counts.items()))

    @property
    def to_revisit(self) -> list[tuple[str, str]]:
        """Lesson and heading of each question without a right answer."""
        missed = (item for item, is_right in zip(self.exam.items, self.is_right) if not is_right)
        return list(dict.fromkeys((item.lesson, item.heading) for item in missed))

    def __str__(self) -> str:
        total = len(self.answers)
        lines = [f"{self.score} of {total} right: {'passed' if self.passed else 'not passed'} (from {PASS_SHARE:.0%})."]
        lines += [f"  {KINDS[kind]}: {right} of {of}" for kind, (right, of) in self.by("kind").items()]
        lines += [f"  lesson {lesson}: {right} of {of}" for lesson, (right, of) in self.by("lesson").items()]
        lines += [f"revisit {lesson}: {heading} ({notebook_of(lesson)})" for lesson, heading in self.to_revisit]
        return "\n".join(lines)


def mark(exam: Exam, answers: Sequence[int | None]) -> Result:
    """Mark the answers to an exam.

    Args:
        answers: for each question the index of the choice, from 0; None counts as wrong.

    Raises:
        BadAnswer: there are more or fewer answers than questions, or a question has no such choice.
    """
    if len(answers) != len(exam.questions):
        raise BadAnswer(f"{len(answers)} answers to {len(exam.questions)} questions; give None where there is none.")
    for number, (answer, asked) in enumerate(zip(answers, exam.questions), start=1):
        if answer is not None and (isinstance(answer, bool) or answer not in range(len(asked.choices))):
            raise BadAnswer(f"answer {number} is {answer!r}; it must be 0 to {len(asked.choices) - 1}, or None.")
    return Result(exam, tuple(answers))


def explained(exam: Exam, index: int, answer: int | None) -> str:
    """What was right or wrong about an answer, every choice explained, and where the lesson teaches it."""
    item, asked = exam.items[index], exam.questions[index]
    lines = ["Right." if answer == asked.right else "Not answered." if answer is None else "No."]
    for letter, number, choice in zip("abcd", range(4), asked.choices):
        chosen = " (your answer)" if number == answer else ""
        lines.append(f"  {'✓' if choice.right else '✗'} {letter}) {choice.text}{chosen}\n       {choice.explanation}")
    lines.append(f"  Lesson {item.lesson}, “{item.heading}”: {link_to(item.lesson, item.heading)}")
    return "\n".join(lines)
