"""A folder of exports becomes a table, and a list of where learners get stuck."""

import csv
import json

import pytest

from tools.classroom import as_csv, course_exercises, main, read_class, where_they_get_stuck
from tools.setup_errors import SetupError


def record(passed=False, attempts=1, hints=0, solution=False):
    return dict(passed=passed, attempts=attempts, hints=hints, solution=solution)


@pytest.fixture
def folder(tmp_path):
    done = {
        "Ada": {"03.1": record(True), "03.2": record(True, 4, 1), "09.3": record(False, 7, 3)},
        "Béla <b>": {"03.1": record(True, 2, solution=True), "09.3": record(False, 3, 1)},
        "=cmd()": {},
    }
    for name, exercises in done.items():
        text = json.dumps({"lessons": {}, "progress": {"exercises": exercises}, "kept_answers": {}})
        (tmp_path / f"{name}.json").write_text(text, encoding="utf-8")
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "other.json").write_text("[1]")
    return tmp_path


def test_the_class_is_read_and_where_it_gets_stuck_is_said(folder):
    rows, unread = read_class(folder, ["03.1", "03.2", "09.3", "10.1"])
    assert sorted(unread) == ["broken.json", "other.json"]
    assert where_they_get_stuck(rows) == [
        "09.3: 2 of 2 who tried did not solve it by themselves (median 5 attempts, 4 hints)",
        "03.1: 1 of 2 who tried did not solve it by themselves (median 1.5 attempts, 0 hints)",  # saw the solution
    ]


def test_the_table_has_a_row_for_each_learner_and_exercise(folder):
    rows = list(csv.DictReader(as_csv(read_class(folder, ["03.1", "10.1"])[0]).splitlines()))
    assert list(rows[0]) == ["learner", "exercise", "state", "attempts", "hints"] and len(rows) == 3 * 4
    ada = {row["exercise"]: row for row in rows if row["learner"] == "Ada"}
    assert ada["03.2"] == dict(learner="Ada", exercise="03.2", state="solved", attempts="4", hints="1")
    assert ada["10.1"]["state"] == "not tried"
    assert {row["learner"] for row in rows} == {"Ada", "Béla <b>", "'=cmd()"}, "no name is a formula"


def test_the_command_writes_the_table_and_says_where_the_class_is_stuck(folder, capsys):
    assert main([str(folder)]) == 0
    said = capsys.readouterr().out
    assert "3 learners" in said and "not read: broken.json" in said and "stuck at 09.3" in said
    assert (folder / "class.csv").exists()
    assert main([]) == 2 and "make class FOLDER=exports" in capsys.readouterr().out


def test_without_exports_it_says_what_to_do(tmp_path):
    with pytest.raises(SetupError, match="no folder .*export.json"):
        read_class(tmp_path / "none", [])
    with pytest.raises(SetupError, match="make export"):
        read_class(tmp_path, [])


def test_all_exercises_of_the_course_are_known():
    exercises = course_exercises()
    assert {"00.1", "03.5", "12.3"} <= set(exercises) and len(exercises) > 60
