"""The exam in a notebook: radio buttons where a kernel runs, plain functions otherwise."""

from __future__ import annotations

import html
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lessons_lib.assessment.certificate import certificate_html, page_name
from lessons_lib.assessment.draw import MINUTES, draw_exam
from lessons_lib.assessment.mark import BadAnswer, Result, explained, mark
from lessons_lib.assessment.terminal import told


class ExamSheet:
    """An exam being taken. `answer(3, "b")` answers question 3; `finish("Ada")` marks the exam, once.

    In a notebook it shows its questions with radio buttons, and a button that marks them.
    """

    def __init__(self, seed: int, clock: Callable[[], float] = time.monotonic):
        self.exam = draw_exam(seed)
        self.answers: list[int | None] = [None] * len(self.exam.questions)
        self.result: Result | None = None
        self._clock = clock
        self._start = clock()

    @property
    def minutes(self) -> float:
        return (self._clock() - self._start) / 60

    def answer(self, number: int, letter: str | None) -> None:
        """Answer question `number`, from 1, by a letter; None takes an answer back.

        Raises:
            BadAnswer: there is no such question or choice, the exam is marked, or its hour is over. Nothing changed.
        """
        if number not in range(1, len(self.answers) + 1):
            raise BadAnswer(f"there is no question {number!r}; they are 1 to {len(self.answers)}.")
        letters = "abcd"[: len(self.exam.questions[number - 1].choices)]
        if letter is not None and (len(letter) != 1 or letter not in letters):
            raise BadAnswer(f"{letter!r} is no choice of question {number}; take one of {', '.join(letters)}, or None.")
        if self.result is not None:
            raise BadAnswer("this exam is marked. Start another one with another seed.")
        if self.minutes > MINUTES:
            raise BadAnswer(f"the {MINUTES} minutes are over. Mark the exam with `finish(name)`.")
        self.answers[number - 1] = None if letter is None else letters.index(letter)

    def finish(self, name: str, path: str | Path | None = None) -> Result:
        """Mark the exam and write `certificate.html`, or `result.html` if it failed. A second call writes it again."""
        result = self.result or mark(self.exam, self.answers)
        page = certificate_html(result, name, min(self.minutes, MINUTES))
        Path(path or page_name(result)).write_text(page, encoding="utf-8")
        self.result = result
        return result

    def explain(self, number: int) -> str:
        """The explanations of question `number`, once the exam is marked.

        Raises:
            BadAnswer: it isn't marked yet.
        """
        if self.result is None:
            raise BadAnswer("the exam isn't marked yet. Call `finish(name)` first.")
        return explained(self.exam, number - 1, self.answers[number - 1])

    def __repr__(self) -> str:
        questions = zip(self.exam.items, self.exam.questions)
        return "\n\n".join(told(number, item, asked) for number, (item, asked) in enumerate(questions, start=1))

    def _ipython_display_(self) -> None:
        from IPython.display import display

        display(self.widget())

    def widget(self) -> Any:
        """The exam as ipywidgets: a picture or code, radio buttons for each question, and a button that marks them."""
        import ipywidgets as widgets

        parts = []
        for number, (item, asked) in enumerate(zip(self.exam.items, self.exam.questions), start=1):
            head = f"<b>{number}.</b> (lesson {item.lesson}) {html.escape(asked.text)}"
            if asked.code:
                lines = enumerate(asked.code.split("\n"), start=1)
                head += "<pre>" + html.escape("\n".join(f"{line:>2}  {code}" for line, code in lines)) + "</pre>"
            if asked.picture:
                head += asked.picture()._repr_mimebundle_()["text/html"]
            options = [(choice.text, letter) for letter, choice in zip("abcd", asked.choices)]
            buttons = widgets.RadioButtons(options=options, value=None, layout={"width": "max-content"})
            buttons.observe(lambda change, number=number: self._chosen(number, change["new"]), "value")
            parts.append(widgets.VBox([widgets.HTML(head), buttons]))
        name = widgets.Text(description="name")
        button, self._output = widgets.Button(description="mark"), widgets.HTML()
        button.on_click(lambda _: self._mark(name.value))
        return widgets.VBox([*parts, name, button, self._output])

    def _chosen(self, number: int, letter: str | None) -> None:
        try:
            self.answer(number, letter)
        except BadAnswer as error:
            self._output.value = html.escape(str(error))

    def _mark(self, name: str) -> None:
        try:
            told_now = str(self.finish(name))
            missed = [
                number for number, right in enumerate(self.result.is_right if self.result else (), start=1) if not right
            ]
            told_now += "".join(f"\n\n{number}. {self.explain(number)}" for number in missed)
        except (ValueError, OSError) as error:
            told_now = str(error)
        self._output.value = f"<pre style='white-space:pre-wrap'>{html.escape(told_now)}</pre>"


_latest: ExamSheet | None = None


def exam(seed: int) -> ExamSheet:
    """Start an exam; its hour begins now. The last line of a cell shows it."""
    global _latest
    _latest = ExamSheet(seed)
    return _latest


def answer(number: int, letter: str | None) -> None:
    """Answer a question of the exam that was started last; see `ExamSheet.answer`."""
    _running().answer(number, letter)


def finish(name: str, path: str | Path | None = None) -> Result:
    """Mark the exam that was started last, and write its page; see `ExamSheet.finish`."""
    return _running().finish(name, path)


def _running() -> ExamSheet:
    if _latest is None:
        raise BadAnswer("no exam was started. Start one with `exam(seed)`, such as exam(7).")
    return _latest
