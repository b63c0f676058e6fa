"""The break-in of lesson 17: mutants differ from the right engine as their hints say, and only raising finds one."""

import nbformat
import pytest
from nbgrader.utils import determine_grade

from lessons_lib.checks import judge
from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.judge import check, points, share_earned
from lessons_lib.checks.registry import get_exercise
from lessons_lib.checks.sandbox import Outcome
from lessons_lib.conformance.break_in import grading
from lessons_lib.conformance.break_in.examples import break_in_tests
from lessons_lib.conformance.break_in.grading import break_in, check_break_in_tests
from lessons_lib.conformance.break_in.mutants import MUTANTS

TESTS = {test.__name__: test for test in break_in_tests()}


def test_hints_tell_what_is_seen_and_no_names_of_the_code():
    for mutant in MUTANTS:
        assert not {"_", "scheduler", "pool", "hash"} & {*mutant.observable, *mutant.observable.split()}
    assert len({mutant.observable for mutant in MUTANTS}) == len(MUTANTS) == 12


@pytest.fixture
def one_mutant(monkeypatch):
    monkeypatch.setattr(grading, "MUTANTS", MUTANTS[:1])


def test_a_test_that_changes_its_mind_is_refused(one_mutant):
    calls = []

    def moody(make_engine):
        calls.append(1)
        assert len(calls) != 3, "the third time"

    with pytest.raises(Mistake, match="The first time it passed"):
        break_in([moody])


def test_errors_count_as_failures_do(one_mutant):
    def exits(make_engine):
        try:
            TESTS["test_length"](make_engine)
        except AssertionError:
            raise SystemExit from None

    assert break_in([exits]).killed_by == {1: "exits"}


def test_survivors_earn_a_part(monkeypatch):
    monkeypatch.setattr(grading, "MUTANTS", MUTANTS[:2])
    with pytest.raises(Mistake, match="1 of 2 mutants survives: 2") as caught:
        check_break_in_tests(lambda: [TESTS["test_length"]])
    assert caught.value.earned == 0.5 and MUTANTS[1].observable in caught.value.idea
    table = str(break_in([TESTS["test_length"]]).table())
    assert "1 of 2 mutants are found" in table and "– survives" in table


def test_nbgrader_gets_points_in_parts(monkeypatch, tmp_path):
    monkeypatch.setenv("LESSONS_PROGRESS", str(tmp_path / "progress.json"))
    monkeypatch.setenv("LESSONS_STRICT", "1")
    monkeypatch.setattr(grading, "MUTANTS", MUTANTS[:2])
    reference = get_exercise("17.5").load_reference()
    assert check("17.5", lambda: [TESTS["test_length"]]) is reference
    shown = nbformat.v4.new_output("execute_result", {"text/plain": repr(points("17.5"))})
    metadata = {"nbgrader": {"grade": True, "solution": False, "points": 12}}
    assert determine_grade(nbformat.v4.new_code_cell(outputs=[shown], metadata=metadata)) == (6.0, 12.0)
    with pytest.raises(judge.CheckFailed, match="returned no test"):
        check("17.5", list)
    assert points("17.5") == 0.0
    monkeypatch.delenv("LESSONS_STRICT")
    assert points("17.5") is None


def test_an_exercise_without_parts_earns_all_or_nothing():
    mistake = Outcome(Mistake("half right", earned=0.5), "", False, False, [])
    assert share_earned(get_exercise("17.1"), mistake) == 0.0
    assert share_earned(get_exercise("17.5"), mistake) == 0.5
    assert share_earned(get_exercise("17.1"), Outcome(None, "", False, False, [])) == 1.0
