"""Quizzes in which every choice explains why it is right or wrong.

In a running notebook each choice has a button, and the score is stored (`quiz_buttons`). Without a kernel, as on an
exported page, each choice is an HTML `<details>` element, and opening it means choosing it.
"""

from dataclasses import dataclass

from lessons_lib.checks.exercise import Choice, Question
from lessons_lib.checks.panel import EDGES
from lessons_lib.checks.progress import load
from lessons_lib.checks.registry import quiz_of
from lessons_lib.viz.words import code_as_html

LETTERS = "abcdefgh"


@dataclass(frozen=True)
class Quiz:
    lesson: str
    questions: tuple[Question, ...]

    def __repr__(self) -> str:
        blocks = []
        for number, question in enumerate(self.questions, start=1):
            choices = [f"   {letter}) {choice.text}" for letter, choice in zip(LETTERS, question.choices)]
            blocks.append("\n".join([f"{number}. {question.text}", *choices]))
        answers = ", ".join(
            f"{number} {_right_letter(question)}" for number, question in enumerate(self.questions, start=1)
        )
        return "\n\n".join([*blocks, f"Answers: {answers}"])

    def _repr_html_(self) -> str:
        return "".join(_question_html(number, question) for number, question in enumerate(self.questions, start=1))


def score(lesson: str, record: dict | None = None) -> tuple[int, int, int]:
    """How many questions were right at the first choice, how many have been answered, and how many there are."""
    chosen = (record or load())["quiz"].get(lesson, {})
    questions = quiz_of(lesson)
    answers = [(question, chosen.get(str(number))) for number, question in enumerate(questions, start=1)]
    right = sum(answer is not None and answer in _right_letter(question) for question, answer in answers)
    return right, sum(answer is not None for _, answer in answers), len(questions)


def _question_html(number: int, question: Question) -> str:
    choices = "".join(_choice_html(letter, choice) for letter, choice in zip(LETTERS, question.choices))
    return f"<div style='margin-bottom:1em'><p><b>{number}.</b> {code_as_html(question.text)}</p>{choices}</div>"


def _choice_html(letter: str, choice: Choice) -> str:
    mark, edge = ("✓ Right.", EDGES["right"]) if choice.right else ("✗ No.", EDGES["wrong"])
    return (
        "<details style='margin:0 0 0.3em 1em'><summary style='cursor:pointer'>"
        f"<b>{letter}</b> {code_as_html(choice.text)}</summary>"
        f"<div style='margin:0.2em 0 0.6em 1em;padding:0 0.8em;border-left:4px solid {edge}'>"
        f"<b>{mark}</b> {code_as_html(choice.explanation)}</div></details>"
    )


def _right_letter(question: Question) -> str:
    return "".join(letter for letter, choice in zip(LETTERS, question.choices) if choice.right)
