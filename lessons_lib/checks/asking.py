"""`quiz`: with buttons in a running notebook, as a page elsewhere."""

from typing import Any

from lessons_lib.checks.quizzes import Quiz
from lessons_lib.checks.registry import quiz_of
from lessons_lib.viz.notebook import in_notebook


def quiz(lesson: str) -> Any:
    """The quiz of one lesson, such as "00"."""
    questions = Quiz(lesson, tuple(quiz_of(lesson)))
    if not in_notebook():
        return questions
    from lessons_lib.checks.quiz_buttons import QuizButtons  # here, because only a running notebook needs ipywidgets

    return QuizButtons(questions)
