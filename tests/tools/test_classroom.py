"""A folder of exports becomes a table, a heat map, and a list of where learners get stuck."""

import csv
import json

import pytest

from tools.classroom import COLUMNS, as_csv, as_html, course_exercises, main, read_class
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


def test_the_class_is_read(folder):
    everyone = read_class(folder, ["03.1", "03.2", "09.3", "10.1"])
    assert sorted(everyone.unread) == ["broken.json", "other.json"]
    by_id = {each.id: each for each in everyone.summary()}
    assert (by_id["03.1"].tried, by_id["03.1"].solved) == (2, 1), "who saw the solution did not solve it"
    assert (by_id["09.3"].tried, by_id["09.3"].stuck, by_id["09.3"].attempts, by_id["09.3"].hints) == (2, 2, 5, 4)
    assert by_id["10.1"].tried == 0
    assert [each.id for each in everyone.where_they_get_stuck()] == ["09.3", "03.1"]


def test_the_table_has_a_row_for_each_learner_and_exercise(folder):
    rows = list(csv.DictReader(as_csv(read_class(folder, ["03.1", "10.1"])).splitlines()))
    assert list(rows[0]) == COLUMNS and len(rows) == 3 * 4
    ada = {row["exercise"]: row for row in rows if row["learner"] == "Ada"}
    assert ada["03.2"] == dict(learner="Ada", exercise="03.2", state="solved", attempts="4", hints="1")
    assert ada["10.1"]["state"] == "not tried"
    assert {row["learner"] for row in rows} == {"Ada", "Béla <b>", "'=cmd()"}, "no name is a formula"


def test_the_page_needs_nothing_else_and_escapes_names(folder):
    page = as_html(read_class(folder, []))
    assert "Béla &lt;b&gt;" in page and "<b>" not in page
    assert "http" not in page and "<script" not in page
    assert "✗ 7" in page and "(✓) 2" in page and "2 of 2 who tried" in page


def test_the_command_writes_both_files(folder, capsys):
    assert main([str(folder)]) == 0
    said = capsys.readouterr().out
    assert "3 learners" in said and "not read: broken.json" in said and "stuck at 09.3" in said
    assert (folder / "class.html").exists() and (folder / "class.csv").exists()
    assert main([str(folder)]) == 0, "its own files are no exports"
    assert main([]) == 2 and "make class FOLDER=exports" in capsys.readouterr().out


def test_without_exports_it_says_what_to_do(tmp_path):
    with pytest.raises(SetupError, match="no folder .*export.json"):
        read_class(tmp_path / "none", [])
    with pytest.raises(SetupError, match="make export"):
        read_class(tmp_path, [])


def test_all_exercises_of_the_course_are_known():
    exercises = course_exercises()
    assert {"00.1", "03.4", "12.3"} <= set(exercises) and len(exercises) > 60
