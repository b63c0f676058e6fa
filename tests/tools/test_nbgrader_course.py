"""`make nbgrader` makes a course that nbgrader's own commands release, collect, grade and give feedback on."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from tools.nbgrader_course import ROOT, main, make_course


def test_a_course_has_an_assignment_for_each_lesson(tmp_path):
    added = make_course(tmp_path / "course")
    assert added[0] == "00_one_request" and len(added) == len(list((ROOT / "solutions").glob("*.ipynb")))
    source = tmp_path / "course/source/03_block_allocator/03_block_allocator.ipynb"
    assert "### BEGIN SOLUTION" in source.read_text(encoding="utf-8")
    assert 'course_id = "course"' in (tmp_path / "course/nbgrader_config.py").read_text()


def test_what_is_there_is_kept(tmp_path):
    make_course(tmp_path, ["03"])
    (tmp_path / "nbgrader_config.py").write_text("mine")
    source = tmp_path / "source/03_block_allocator/03_block_allocator.ipynb"
    source.write_text("changed by the teacher")
    assert make_course(tmp_path, ["03", "04"]) == ["04_block_diagonal_masks"]
    assert source.read_text() == "changed by the teacher"
    assert (tmp_path / "nbgrader_config.py").read_text() == "mine"


def test_what_was_added_and_what_was_there_is_said(tmp_path, capsys):
    for there, lessons in ((0, "03"), (1, "04"), (2, "03")):
        main([str(tmp_path), lessons])
        said = capsys.readouterr().out.splitlines()[0]
        assert said.endswith(f"; {there} were there.") and ("0 assignments added" in said) == (there == 2)
    assert len(list((tmp_path / "source").iterdir())) == 2


def test_a_lesson_without_a_folder_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["03"])
    assert "make nbgrader FOLDER=course ARGS=03" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_unknown_lesson_is_refused_and_nothing_written(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main([str(tmp_path / "course"), "03", "77"])
    assert "no lesson 77; there are 00, 01" in capsys.readouterr().err
    assert not (tmp_path / "course").exists()


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_release_collect_autograde_and_feedback(tmp_path):
    name, course, student = "16_two_gpus", tmp_path / "course", tmp_path / "student"
    make_course(course, ["16"])
    exchange = tmp_path / "exchange"
    exchange.mkdir()
    exchange.chmod(0o777)
    student.mkdir()
    with open(course / "nbgrader_config.py", "a") as config:
        config.write(f"c.Exchange.root = {str(exchange)!r}\n")
    (student / "nbgrader_config.py").write_text(
        f"c = get_config()\nc.Exchange.root = {str(exchange)!r}\nc.CourseDirectory.course_id = 'course'\n"
    )
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)}

    def nbgrader(folder, *arguments):
        command = [sys.executable, "-m", "nbgrader", *arguments]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=800)
        assert done.returncode == 0, done.stdout + done.stderr

    nbgrader(course, "generate_assignment", name)
    nbgrader(course, "release_assignment", name)
    nbgrader(student, "fetch_assignment", name)
    solved = nbformat.read(ROOT / "solutions" / f"{name}.ipynb", as_version=4)
    answers = {cell.id: cell.source for cell in solved.cells}
    handed_in = student / name / f"{name}.ipynb"
    notebook = nbformat.read(handed_in, as_version=4)
    for cell in notebook.cells:
        cell.source = answers.get(cell.id, cell.source)
    nbformat.write(notebook, handed_in)
    nbgrader(student, "submit", name)
    nbgrader(course, "collect", name)
    nbgrader(course, "autograde", name)
    nbgrader(course, "generate_feedback", name)
    nbgrader(course, "release_feedback", name)
    nbgrader(student, "fetch_feedback", name)
    (feedback,) = student.rglob("*.html")
    assert "16.1" in feedback.read_text(encoding="utf-8")
    shutil.rmtree(exchange, ignore_errors=True)
