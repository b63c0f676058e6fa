"""A line that says how far a cell is."""

import IPython.display

from lessons_lib.viz import notebook


def test_a_line_for_each_item_takes_the_place_of_the_one_before_and_the_result_that_of_the_last(monkeypatch, capsys):
    cleared = []
    monkeypatch.setattr(notebook, "in_notebook", lambda: True)
    monkeypatch.setattr(IPython.display, "clear_output", lambda wait: cleared.append(wait))
    seen = [(item, capsys.readouterr().out) for item in notebook.with_progress(["a", "b"], str.upper)]
    assert seen == [("a", "1 of 2: A …\n"), ("b", "2 of 2: B …\n")] and cleared == [True] * 3


def test_nothing_is_printed_outside_of_a_notebook(capsys):
    assert list(notebook.with_progress([1, 2], str)) == [1, 2] and capsys.readouterr().out == ""
