"""Lesson 00 as a learner meets it: JupyterLab, a real browser, mouse and keyboard."""

import pytest

from browser import ROOT

LESSON = "00_one_request.ipynb"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("browser"),
    pytest.mark.skipif(not (ROOT / "notebooks" / LESSON).exists(),
                       reason=f"notebooks/{LESSON} is not built; `make notebooks` builds it"),
]


@pytest.fixture(scope="module")
def notebook(lab):
    """Lesson 00, run from top to bottom."""
    opened = lab.open_notebook(LESSON)
    opened.seconds = opened.run_all_cells()
    return opened


def test_all_cells_of_the_unsolved_lesson_run(notebook, record_property):
    assert notebook.errors() == []
    record_property("measured", f"{notebook.count_code_cells()} code cells ran in {notebook.seconds:.1f} s")


def test_next_and_previous_button_move_the_first_stepper(notebook, record_property):
    stepper = notebook.steppers()[0]
    stepper.press("Home") if not stepper.position().startswith("step 1 ") else None
    where = stepper.position()
    forward = stepper.click_next()
    assert "<svg" in forward.before or "<table" in forward.before
    assert forward.after != forward.before
    assert stepper.position() != where

    back = stepper.click_previous()
    assert back.after == forward.before
    assert stepper.position() == where
    record_property("measured", f"stepper answered its button in {forward.milliseconds:.0f} ms")


def test_arrow_keys_move_the_first_stepper(notebook, record_property):
    stepper = notebook.steppers()[0]
    where = stepper.position()
    forward = stepper.press("ArrowRight")
    assert forward.after != forward.before
    assert stepper.position() != where
    assert stepper.press("ArrowLeft").after == forward.before
    record_property("measured", f"stepper answered an arrow key in {forward.milliseconds:.0f} ms")
