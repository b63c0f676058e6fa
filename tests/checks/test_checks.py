"""The checks themselves: the two modes, the time limit, hints, progress, predictions and quizzes."""

import dataclasses
import json
import operator
import sys
import threading
import time

import pytest
import torch

import lessons_lib.checks as checks
from lessons_lib.checks import CheckFailed, check, hint, predict, progress, quiz, reset, reveal, solution
from lessons_lib.checks.exercise import Mistake, call
from lessons_lib.checks.judge import describe, judge
from lessons_lib.checks.registry import UnknownExercise, exercises_of, get_exercise, lesson_numbers
from lessons_lib.checks.sandbox import TimeLimit, run_guarded

LESSON = """
from lessons_lib.checks.exercise import Exercise, Mistake, call

def test_double(attempt):
    try:
        got = call(attempt, [1, 2], case="double([1, 2])")
    except KeyError:
        raise Mistake("double([1, 2]) should look nothing up.", idea="Every element is doubled.") from None
    if got != [2, 4]:
        raise Mistake("double([1, 2]) should give [2, 4].", case="two numbers", idea="Every element is doubled.")

HINTS = ("idea", "outline", "nearly")
EXERCISES = [Exercise("77.1", "Double", "toy_reference:double", test_double, HINTS, time_limit=1)]
"""
QUIZ = """
QUIZ = "What is\\n`2 * 2`?\\n- 3 => That is 2 + 1.\\n+ 4\\n  Two\\n  twos.\\n- <5>\\n  Too many."
"""
REFERENCE = '''
def double(numbers):
    """Double every number."""
    return [2 * number for number in numbers]
'''


@pytest.fixture(autouse=True)
def toy_lesson(tmp_path, monkeypatch):
    """Lesson 77, with one exercise: double every number in a list."""
    (tmp_path / "lesson_77").mkdir()
    (tmp_path / "lesson_77" / "__init__.py").write_text(LESSON)
    (tmp_path / "lesson_77" / "quiz.py").write_text(QUIZ)
    (tmp_path / "toy_reference.py").write_text(REFERENCE)
    monkeypatch.setattr(checks, "__path__", [*checks.__path__, str(tmp_path)])
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in ("toy_reference", "lessons_lib.checks.lesson_77"):
        sys.modules.pop(name, None)


@pytest.fixture
def strict(monkeypatch):
    monkeypatch.setenv("LESSONS_STRICT", "1")


def reference():
    return get_exercise("77.1").load_reference()


def right(numbers):
    return [number + number for number in numbers]


def unwritten(numbers):
    raise NotImplementedError()


def endless(numbers):
    while True:
        pass


def endless_and_deaf(numbers):
    while True:
        try:
            time.monotonic()
        except Exception:
            pass


def exits(numbers):
    sys.exit(3)


def mutates(numbers):
    for index in range(len(numbers)):
        numbers[index] *= 2
    return numbers


def prints_without_end(numbers):
    while True:
        print("again")


def warns(numbers):
    print("careful", file=sys.stderr)
    return [0]


def recurses(numbers):
    return recurses(numbers)


WRONG = [
    (unwritten, "not written yet"),
    (lambda numbers: [1], "double([1, 2]) should give [2, 4]"),
    (lambda numbers: None, "double([1, 2]) should give [2, 4]"),
    (lambda: [2, 4], "TypeError"),
    (lambda numbers: 1 / 0, "ZeroDivisionError"),
    (endless, "Is there an infinite loop?"),
    (endless_and_deaf, "Is there an infinite loop?"),
    (prints_without_end, "again"),
    (exits, "SystemExit"),
    (mutates, "changed its argument `numbers`"),
    (recurses, "RecursionError"),
    (warns, "careful"),
    (3, "not a function"),
    ("double", "not a function"),
    (None, "not a function"),
]


@pytest.mark.parametrize("attempt, says", WRONG)
def test_a_wrong_attempt_gets_a_message_and_the_reference_or_strictly_an_error(attempt, says, capsys, monkeypatch):
    assert check("77.1", attempt) is reference()
    printed = capsys.readouterr()
    assert f"{'○' if attempt is unwritten else '✗'} 77.1 `double`" in printed.out and says in printed.out
    assert printed.err == ""
    monkeypatch.setenv("LESSONS_STRICT", "1")
    with pytest.raises(CheckFailed, match="77.1") as raised:
        check("77.1", attempt)
    assert says in str(raised.value) and capsys.readouterr() == ("", "")


def looks_up(numbers):
    return {}[numbers[0]]


def misuses_what_it_was_given(numbers):
    try:
        return {}[numbers[0]]
    except KeyError:
        raise Mistake("what the check handed in was called wrongly.") from None


def test_an_explained_exception_is_shown_with_its_line(capsys):
    check("77.1", looks_up)
    assert "of your cell: `return {}[numbers[0]]`\nEvery element" in capsys.readouterr().out
    check("77.1", misuses_what_it_was_given)
    assert "of your cell" not in capsys.readouterr().out


def test_an_exception_without_a_case_is_shown_with_the_arguments():
    exercise = dataclasses.replace(get_exercise("77.1"), test=operator.methodcaller("__call__", [1, 2]))
    panel = describe(exercise, *judge(exercise, looks_up), looks_up)
    assert panel.lines[0] == "Smallest case: `looks_up(numbers=[1, 2])`"


def test_a_second_run_of_the_check_does_not_pass_the_reference(capsys, monkeypatch):
    mine = check("77.1", lambda numbers: [1])
    assert check("77.1", mine) is reference()
    assert "this is the reference, not your version" in capsys.readouterr().out
    assert check("77.1", right) is right
    assert capsys.readouterr().out == "✓ 77.1 `double`: correct.\n"
    monkeypatch.setenv("LESSONS_STRICT", "1")
    with pytest.raises(CheckFailed, match="this is the reference, not your version"):
        check("77.1", reference())


@pytest.mark.parametrize("attempt", [unwritten, lambda numbers: None])
def test_in_a_graded_run_later_exercises_find_the_reference(attempt, strict, monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "double", attempt, raising=False)
    with pytest.raises(CheckFailed):
        check("77.1", attempt)
    assert sys.modules["__main__"].double is reference()


def test_a_graded_run_replaces_no_other_definition(strict, monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "double", right, raising=False)
    with pytest.raises(CheckFailed):
        check("77.1", unwritten)
    assert sys.modules["__main__"].double is right


def test_an_unknown_exercise_is_named_and_stops_no_notebook(capsys, monkeypatch):
    assert check("77.9", right) is right
    hint("77.9")
    solution("77.9")
    assert capsys.readouterr().out.count("no exercise '77.9'") == 3
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")  # strict, too
    with pytest.raises(CheckFailed, match="no exercise '77.9'. Lesson 77 has 77.1"):
        check("77.9", right)
    with pytest.raises(UnknownExercise, match="lessons .*77"):
        get_exercise("78.1")


def test_the_smallest_case_is_named_for_exceptions_and_endless_loops(capsys):
    check("77.1", lambda numbers: 1 / 0)
    check("77.1", endless)
    assert capsys.readouterr().out.count("Smallest case: double([1, 2])") == 2


def test_what_the_attempt_prints_is_cut_short():
    outcome = run_guarded(lambda: prints_without_end([]), seconds=0.2)
    assert outcome.timed_out and len(outcome.printed) == 600


def test_a_busy_machine_leaves_an_attempt_its_time(monkeypatch):
    """The clock goes on while other programs have the processor; the attempt's own time doesn't."""
    computed = [0.0]
    monkeypatch.setattr("lessons_lib.checks.sandbox.time.process_time", lambda: computed[0])

    def computes_a_little_and_has_to_wait_for_the_processor():
        for _ in range(3):
            threading.Event().wait(0.1)
            computed[0] += 0.05

    assert not run_guarded(computes_a_little_and_has_to_wait_for_the_processor, seconds=0.2).timed_out


def test_an_attempt_that_waits_without_end_is_stopped():
    outcome = run_guarded(lambda: [threading.Event().wait(0.01) for _ in iter(int, 1)], seconds=0.05)
    assert outcome.timed_out and isinstance(outcome.error, TimeLimit)


def test_an_interrupt_from_the_keyboard_gets_through(monkeypatch):
    monkeypatch.setattr(threading.Thread, "join", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run_guarded(lambda: None, seconds=1)
    assert sys.stdout is not None and not hasattr(sys.stdout, "kept")


def test_hints_come_in_steps_and_the_solution_last(capsys):
    hint("77.1")
    assert "1. idea" in (first := capsys.readouterr().out) and "outline" not in first
    hint("77.1")
    assert "2. outline" in capsys.readouterr().out
    hint("77.1")
    hint("77.1")
    assert 'solution("77.1")' in capsys.readouterr().out
    solution("77.1")
    shown = capsys.readouterr().out
    assert "return [2 * number for number in numbers]" in shown and "Double every number" not in shown


def test_reset_shows_the_released_cell(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("lessons_lib.checks.help.RELEASED", tmp_path)
    reset("77.9")
    reset("77.1")
    shown = capsys.readouterr().out
    assert "no exercise '77.9'" in shown and "no released notebook of lesson 77" in shown
    cells = [{"id": "ex-77-1", "source": ["def double(numbers):\n", "    raise NotImplementedError()"]}]
    (tmp_path / "77_toy.ipynb").write_text(json.dumps({"cells": cells}))
    reset("77.1")
    assert "raise NotImplementedError()" in capsys.readouterr().out


def states():
    return {row[0]: row[2:] for row in progress().rows}


def test_progress_counts_attempts_and_hints():
    assert states()["77.1"] == ["○ not tried", 0, 0]
    check("77.1", unwritten)
    assert states()["77.1"] == ["○ not tried", 0, 0]
    check("77.1", mutates)
    assert states()["77.1"] == ["✗ not yet", 1, 0]
    hint("77.1")
    check("77.1", right)
    assert states()["77.1"] == ["✓ solved", 2, 1]
    check("77.1", mutates)
    assert states()["77.1"] == ["✓ solved", 3, 1], "solved stays solved"


@pytest.mark.parametrize(
    "first, then, state",
    [(solution, right, "✓ solved after seeing the solution"), (lambda id: check(id, right), mutates, "✓ solved")],
)
def test_a_solution_counts_if_it_is_read_first(first, then, state):
    first("77.1")
    check("77.1", then)
    solution("77.1")
    assert states()["77.1"][0] == state


@pytest.mark.parametrize("content", ["", "{", "[]", '{"exercises": 3}', "\x00"])
def test_a_damaged_progress_file_counts_as_empty(content, tmp_path, monkeypatch):
    path = tmp_path / "damaged.json"
    path.write_text(content)
    monkeypatch.setenv("LESSONS_PROGRESS", str(path))
    check("77.1", right)
    assert states()["77.1"][0] == "✓ solved"
    assert json.loads(path.read_text())["exercises"]["77.1"]["passed"]


def test_a_progress_file_that_cannot_be_written_stops_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("LESSONS_PROGRESS", str(tmp_path / "no such folder" / "progress.json"))
    assert check("77.1", right) is right


@pytest.mark.parametrize(
    "guess, measured, options, says",
    [
        (30, 60, {"unit": "steps"}, "Measured: 60 steps. You predicted 30 steps. Too low by a factor of 2.0."),
        (60, 60, {"how": "Computed"}, "Computed: 60. You predicted 60. Correct."),
        (66, 60, {}, "10% too high."),
        (0, 60, {}, "Off by −60."),
        (-5, 60, {}, "Off by −65."),
        (66, 60, {"tolerance": 0.15}, "A hit: within 15%."),
        (72, 60, {"tolerance": 0.15}, "20% too high."),
        (58, 53, {"unit": "%"}, "5 percentage points too high."),
        (53, 53, {"unit": "%", "tolerance": 0.1}, "Correct."),
        (58, 53, {"unit": "%", "tolerance": 0.1}, "A hit: within 5 percent"),
        (59, 53, {"unit": "%", "tolerance": 0.1}, "6 percentage points too high."),
        (-12.345, -6.7064, {"unit": "%"}, "Measured: −6.7 %. You predicted −12.3 %."),
        (12000, 12345, {"unit": "positions"}, "Measured: 12,345 positions. You predicted 12,000 positions."),
    ],
)
def test_how_far_off_a_prediction_is(guess, measured, options, says, capsys):
    predict("77.a", guess)
    reveal("77.a", measured, **options)
    assert says in capsys.readouterr().out.replace("\n", " ")


def test_a_wrong_prediction_is_explained(capsys):
    predict("00.b", 4096)
    reveal("00.b", 8192, "bytes")
    assert "Too low by a factor of 2.0.\nA key *and* a value" in capsys.readouterr().out
    predict("00.b", 8192)
    reveal("00.b", 8192, "bytes")
    assert capsys.readouterr().out.endswith("Correct.\n")


@pytest.mark.parametrize("guess", ["many", None, True, float("nan"), [3], ...])
def test_a_prediction_is_a_number(guess, capsys):
    predict("77.a", guess)
    reveal("77.a", 60)
    out = capsys.readouterr().out
    assert ("A prediction is a number" in out) == (guess is not ...) and "You made no prediction" in out


def test_a_quiz_explains_every_choice():
    page = quiz("77")._repr_html_()
    assert page.count("<details") == 3 and page.count("✓ Right.") == 1
    assert "Two twos." in page and "&lt;5&gt;" in page and "What is <code>2 * 2</code>?" in page
    assert "Answers: 1 b" in repr(quiz("77"))


def test_the_first_choice_counts_and_is_stored():
    from lessons_lib.checks.quiz_buttons import QuizButtons
    from lessons_lib.checks.quizzes import score

    shown = QuizButtons(quiz("77"))
    assert "0 of 1 right at the first choice. 1 still open." in shown.score.value
    (question,) = shown.questions
    question.buttons[0].click()
    question.buttons[1].click()
    assert [button.description for button in question.buttons] == ["✗ a", "✓ b", "c"]
    assert "That is 2 + 1." in question.explanations[0].value and not question.explanations[2].value
    assert "0 of 1 right at the first choice.<" in shown.score.value
    (question,) = QuizButtons(quiz("77")).questions
    assert [button.description for button in question.buttons] == ["✗ a", "b", "c"]
    assert "<details" in shown._repr_mimebundle_()["text/html"]
    assert score("77") == (0, 1, 1)


@pytest.mark.parametrize(
    "argument, advice",
    [([1], "`list(data)`"), ({1: 2}, "`dict(data)`"), ([[1]], "`[list(row) for row in data]`"), (torch.ones(2), "")],
)
def test_a_changed_argument_gets_advice_that_helps(argument, advice):
    def spoils(data):
        data[0] = [7] if isinstance(data, list) else 7

    with pytest.raises(Mistake, match="`data`") as raised:
        call(spoils, argument, case="")
    assert advice in raised.value.idea


def test_ids_are_unique_and_in_order():
    for lesson in lesson_numbers():
        lessons, numbers = zip(*(exercise.id.split(".") for exercise in exercises_of(lesson)))
        assert set(lessons) == {lesson}
        # An exercise that is gone leaves a gap: learners' kept answers have the old numbers.
        assert list(map(int, numbers)) == sorted(set(map(int, numbers)))
