"""A line that says how far a cell is."""

import IPython.display
import pytest

from lessons_lib.viz import notebook


@pytest.fixture
def cleared(monkeypatch):
    calls = []
    monkeypatch.setattr(notebook, "in_notebook", lambda: True)
    monkeypatch.setattr(IPython.display, "clear_output", lambda wait: calls.append(wait))
    return calls


def test_a_line_for_each_item_before_it_is_worked_on(cleared, capsys):
    seen = [(item, capsys.readouterr().out) for item in notebook.with_progress(["a", "b"], str.upper)]
    assert seen == [("a", "1 of 2: A …\n"), ("b", "2 of 2: B …\n")]


def test_each_line_takes_the_place_of_the_one_before_and_the_result_that_of_the_last(cleared):
    assert list(notebook.with_progress("ab", str)) == ["a", "b"]
    assert cleared == [True] * 3


def test_nothing_is_printed_outside_of_a_notebook(capsys):
    assert list(notebook.with_progress([1, 2], str)) == [1, 2]
    assert capsys.readouterr().out == ""
