"""`make nbgrader` makes a course; tests/notebooks/test_nbgrader.py releases and grades one with nbgrader's commands."""

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
