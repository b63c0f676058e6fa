"""The lessons as a learner meets them: JupyterLab, a real browser, mouse and keyboard.

Lesson 07, a quick one, is run whole. Of others, the cells that show something which Python answers are run, and those
that they need.
"""

import pytest
from browser import ROOT, Stepper
from notebook_cells import cells_that_show

LESSON = "07_triton_kernel.ipynb"

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("browser")]


def test_all_cells_of_the_unsolved_lesson_run(lab):
    opened = lab.open_notebook(LESSON)
    opened.run_all_cells()
    assert opened.errors() == []


def open_part(lab, lesson, *wanted):
    """A notebook with those cells of a lesson that call the names wanted, run from top to bottom."""
    (released,) = (ROOT / "notebooks").glob(f"{lesson}_*.ipynb")
    opened = lab.open_notebook(lab.write_notebook(f"part_of_{released.name}", cells_that_show(released, *wanted)))
    opened.run_all_cells()
    assert opened.errors() == []
    return opened


@pytest.fixture(scope="module")
def first_lesson(lab):
    return open_part(lab, "00", {"Stepper", "draw_cache_growth"})


def test_buttons_and_keys_move_a_stepper(first_lesson):
    """The player of all lessons; `test_player` tests it in a page of its own."""
    stepper = first_lesson.shown(Stepper)
    where, words = stepper.says("position"), stepper.words()
    before, after = stepper.click("next")
    assert stepper.says("position") != where and stepper.words() != words
    assert stepper.press("ArrowLeft") == (after, before) and stepper.says("position") == where


def test_the_next_day_the_pictures_still_play(lab, first_lesson):
    """Saved, its kernel ended, and opened again: no cell has run in the new page."""
    path = first_lesson.save_and_end_kernel()
    page = lab.browser.new_page()
    page.goto(f"{lab.url}/lab/workspaces/next-day/tree/{path}")
    page.get_by_label("next step").first.click(timeout=60_000)
    assert page.locator(".lessons-stepper-position").first.inner_text().startswith("step 2 of ")
    assert "Error displaying widget" not in page.inner_text("body")
    page.close()


@pytest.mark.nightly
def test_on_a_phone_the_start_page_takes_the_place_of_the_open_contents(lab):
    start = lab.open_notebook("START.ipynb")
    is_open = "() => document.querySelector('#jp-left-stack').offsetWidth > 0"
    lab.page.evaluate("() => window.jupyterapp.shell.expandLeft()")
    lab.page.wait_for_function(is_open)
    start.run_all_cells()
    assert lab.page.evaluate(is_open), "a wide window keeps its contents"
    lab.page.set_viewport_size({"width": 390, "height": 844})
    try:
        start.run_all_cells()
        lab.page.wait_for_function("() => document.querySelector('#jp-left-stack').offsetWidth === 0")
    finally:
        lab.page.set_viewport_size({"width": 1400, "height": 1000})
    start.close()
