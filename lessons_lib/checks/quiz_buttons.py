"""A quiz with a button per choice: the choice is marked and explained, and the first one of each question is stored."""

import ipywidgets as widgets

from lessons_lib.checks.exercise import Question
from lessons_lib.checks.panel import EDGES
from lessons_lib.checks.progress import load, save
from lessons_lib.checks.quizzes import LETTERS, Quiz, score
from lessons_lib.viz.words import code_as_html


class QuizButtons(widgets.VBox):
    """The quiz of one lesson. Where no kernel runs, `Quiz` is shown: each choice, with its explanation folded."""

    def __init__(self, quiz: Quiz):
        self.quiz = quiz
        self.score = widgets.HTML()
        self.questions = [QuestionButtons(number, question, self) for number, question in enumerate(quiz.questions, 1)]
        super().__init__([*self.questions, self.score], layout=widgets.Layout(max_width="900px"))
        self.add_class("lessons-quiz")
        self.show_score()

    def show_score(self) -> None:
        right, chosen, count = score(self.quiz.lesson)
        left = "" if chosen == count else f" {count - chosen} still open."
        words = f"{right} of {count} right at the first choice.{left}"
        self.score.value = f"<div role='status' style='line-height:1.5'><b>{words}</b></div>"

    def _repr_mimebundle_(self, **kwargs) -> dict[str, str]:
        still = {"text/html": self.quiz._repr_html_(), "text/plain": repr(self.quiz)}
        return {**super()._repr_mimebundle_(**kwargs), **still}


class QuestionButtons(widgets.VBox):
    """One question: a lettered button beside each choice, and the explanation of the choice that was clicked last."""

    def __init__(self, number: int, question: Question, quiz: QuizButtons):
        self.number, self.question, self.quiz = number, question, quiz
        self.explanations = [widgets.HTML() for _ in question.choices]
        self.buttons = []
        rows = []
        for place, choice in enumerate(question.choices):
            button = widgets.Button(
                description=LETTERS[place], tooltip=choice.text, layout=widgets.Layout(width="48px", flex="0 0 auto")
            )
            button.on_click(lambda _, place=place: self.choose(place))
            words = widgets.VBox(
                [_text(code_as_html(choice.text)), self.explanations[place]],
                layout=widgets.Layout(flex="1 1 0", min_width="0"),
            )
            self.buttons.append(button)
            rows.append(widgets.HBox([button, words], layout=widgets.Layout(margin="2px 0")))
        super().__init__([_text(f"<b>{number}.</b> {code_as_html(question.text)}"), *rows])
        self.layout.margin = "0 0 12px"
        stored = load()["quiz"].get(quiz.quiz.lesson, {}).get(str(number))
        if stored in list(LETTERS[: len(question.choices)]):
            self.mark(LETTERS.index(stored))

    def choose(self, place: int) -> None:
        """Mark a choice; the first one counts."""
        record = load()
        record["quiz"].setdefault(self.quiz.quiz.lesson, {}).setdefault(str(self.number), LETTERS[place])
        save(record)
        self.mark(place)
        self.quiz.show_score()

    def mark(self, place: int) -> None:
        choice = self.question.choices[place]
        mark, words, edge = ("✓", "Right.", EDGES["right"]) if choice.right else ("✗", "No.", EDGES["wrong"])
        self.buttons[place].description = f"{mark} {LETTERS[place]}"
        self.buttons[place].style.button_color, self.buttons[place].style.text_color = edge, "white"
        self.explanations[place].value = (
            f"<div role='status' style='{WRAP};border-left:4px solid {edge};padding:0 0.8em'>"
            f"<b>{words}</b> {code_as_html(choice.explanation)}</div>"
        )


WRAP = "line-height:1.5;white-space:normal;overflow-wrap:anywhere"


def _text(html: str) -> widgets.HTML:
    return widgets.HTML(f"<div style='{WRAP}'>{html}</div>")
