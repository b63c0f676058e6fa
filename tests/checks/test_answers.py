"""Every check names the mistakes in tests/answers/lesson_NN.py and accepts the right answers there. An exercise that is
a `Task` lists its mistakes itself.

The checks of SLOW exercises run kernels or whole engines: by day every fifth answer of these is tried, and with
LESSONS_NIGHTLY=1 each.
"""

import functools
import importlib

import answers
import pytest
from how_many import by_day

from lessons_lib.checks.diagnosis import Task
from lessons_lib.checks.registry import exercises_of, get_exercise, lesson_numbers, quiz_of

BOOKS = {lesson: importlib.import_module(f"answers.lesson_{lesson}") for lesson in lesson_numbers()}
EXERCISES = [exercise for lesson in lesson_numbers() for exercise in exercises_of(lesson)]
SLOW = {"07.2", "07.3", "08.2", "08.3", "08.5", "17.1", "17.2", "17.3", "17.4", "17.5"}


def tried(id, answers):
    return answers[:: by_day(5, 1)] if id in SLOW else answers


WRONG = [
    pytest.param(id, wrong, id=f"{id} {wrong.mistake}")
    for book in BOOKS.values()
    for id in book.WRONG
    for wrong in tried(id, book.WRONG[id])
]
TASKS = [exercise for exercise in EXERCISES if isinstance(exercise.test, Task) and exercise.test.known]
RIGHT = [
    pytest.param(id, right, id=f"{id} {right.__name__}")
    for book in BOOKS.values()
    for id in book.RIGHT
    for right in tried(id, book.RIGHT[id])
]

verdict = functools.cache(answers.verdict)  # two tests read what a check says of a wrong answer; it is judged once


@pytest.mark.parametrize("id, wrong", WRONG)
def test_a_wrong_answer_is_named(id, wrong):
    panel = verdict(id, wrong.attempt)
    assert panel.kind == "wrong", f"accepted: {wrong.mistake}"
    assert wrong.says in str(panel), str(panel)


@pytest.mark.parametrize("exercise", TASKS, ids=lambda exercise: exercise.id)
def test_each_known_mistake_is_recognised(exercise):
    task, lost = exercise.test, []
    for wrong in tried(exercise.id, task.wrong):
        failed, cases = task.failures_of(wrong.attempt)
        named = task.named(failed, cases) if failed else None
        if named is None or named.known.why != wrong.known.why:
            told = f"taken for: {named.known.why}" if named else "it does what the reference does"
            lost.append(f"{wrong.known.why}\n{wrong.known.patch}\n{told}")
    assert not lost, "\n\n".join(lost)


@pytest.mark.parametrize("exercise", TASKS, ids=lambda exercise: exercise.id)
def test_a_known_mistake_is_told(exercise):
    wrong = exercise.test.wrong[0]
    panel = answers.verdict(exercise.id, wrong.attempt)
    assert panel.kind == "wrong"
    assert wrong.known.why.split("{")[0] in str(panel), str(panel)


@pytest.mark.parametrize("id, right", RIGHT)
def test_another_right_answer_is_accepted(id, right):
    panel = verdict(id, right)
    assert panel.kind == "right", str(panel)


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.id)
def test_the_reference_is_accepted(exercise):
    panel = verdict(exercise.id, exercise.load_reference())
    assert panel.kind == "right", str(panel)


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.id)
def test_enough_answers_and_hints(exercise):
    book = BOOKS[exercise.id.split(".")[0]]
    known = {each.why for each in getattr(exercise.test, "known", ())}
    assert len(book.WRONG.get(exercise.id, ())) + len(known) >= 5
    assert len(book.RIGHT[exercise.id]) >= 2
    assert len(exercise.hints) >= 3


@pytest.mark.slow  # the test above names each of them already
@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.id)
def test_each_wrong_answer_has_a_message_of_its_own(exercise):
    book = BOOKS[exercise.id.split(".")[0]]
    wrong = tried(exercise.id, book.WRONG.get(exercise.id, []))
    first_lines = [str(verdict(exercise.id, each.attempt)).rsplit("`hint(", 1)[0] for each in wrong]
    assert len(set(first_lines)) == len(first_lines)


@pytest.mark.parametrize("lesson", BOOKS)
def test_every_question_has_explained_choices_and_a_right_one(lesson):
    for question in quiz_of(lesson):
        assert len(question.choices) >= 3, question.text
        assert sum(choice.right for choice in question.choices) == 1, question.text
        assert all(len(choice.explanation) > 20 for choice in question.choices), question.text


def test_answers_belong_to_exercises():
    for book in BOOKS.values():
        for id in {**book.WRONG, **book.RIGHT}:
            get_exercise(id)
