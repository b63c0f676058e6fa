"""Quizzes in which every choice explains why it is right or wrong.

Each choice is an HTML `<details>` element, and opening it means choosing it. So a quiz works from the keyboard, without
a running kernel, and on an exported page.
"""

import html
import re
from dataclasses import dataclass

from lessons_lib.checks.exercise import Question
from lessons_lib.checks.registry import quiz_of


@dataclass(frozen=True)
class Quiz:
    lesson: str
    questions: tuple[Question, ...]

    def __repr__(self) -> str:
        blocks = []
        for number, question in enumerate(self.questions, start=1):
            choices = [f"   {letter}) {choice.text}" for letter, choice in zip("abcdefgh", question.choices)]
            blocks.append("\n".join([f"{number}. {question.text}", *choices]))
        answers = ", ".join(
            f"{number} {_right_letter(question)}" for number, question in enumerate(self.questions, start=1)
        )
        return "\n\n".join([*blocks, f"Answers: {answers}"])

    def _repr_html_(self) -> str:
        return "".join(_question_html(number, question) for number, question in enumerate(self.questions, start=1))


def quiz(lesson: str) -> Quiz:
    """The quiz of one lesson, such as "00"."""
    return Quiz(lesson, tuple(quiz_of(lesson)))


def _question_html(number: int, question: Question) -> str:
    choices = "".join(
        f"<details style='margin-left:1.5em'><summary style='cursor:pointer'>{_inline(choice.text)}</summary>"
        f"<div style='margin:0.2em 0 0.6em 1.2em'>{'✓ Right.' if choice.right else '✗ No.'} "
        f"{_inline(choice.explanation)}</div></details>"
        for choice in question.choices
    )
    return f"<div style='margin-bottom:1em'><p><b>{number}.</b> {_inline(question.text)}</p>{choices}</div>"


def _inline(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text, quote=False))


def _right_letter(question: Question) -> str:
    return "".join(letter for letter, choice in zip("abcdefgh", question.choices) if choice.right)
