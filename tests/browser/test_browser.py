"""The lessons as a learner meets them: JupyterLab, a real browser, mouse and keyboard.

Lesson 07, a quick one, is run whole. Of others, the cells that show something which Python answers are run, and those
that they need.
"""

import pytest
from browser import ROOT, Dashboard, Explorer, Playground, Stepper
from notebook_cells import cells_that_show

LESSON = "07_triton_kernel.ipynb"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("browser"),
]


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


@pytest.fixture(scope="module")
def mask_lesson(lab):
    return open_part(lab, "04", {"MaskExplorer"})


def test_the_pool_can_be_driven_by_hand(lab):
    playground = open_part(lab, "03", {"PoolPlayground"}).shown(Playground)
    playground.choose("B", tokens=20)
    before, _ = playground.click("append")
    assert "B" in playground.says("message") and "B" in playground.words()
    playground.click("free")
    assert playground.click("again")[1] == before


def test_a_slider_and_a_rule_change_the_mask(mask_lesson):
    explorer = mask_lesson.shown(Explorer)
    words = explorer.words()
    explorer.press("ArrowRight", "new")
    assert explorer.words() != words
    explorer.press("ArrowLeft", "new")
    assert explorer.words() == words
    explorer.tick("same sequence")
    assert explorer.words() != words
    explorer.tick("same sequence")
    assert explorer.words() == words


def test_ends_of_the_mask_are_dragged(mask_lesson):
    explorer = mask_lesson.shown(Explorer)
    explorer.wait_for_ends([0, 0, 0, 4, 3, 2, 0])
    explorer.drag("new 0", 2)
    explorer.wait_for_ends([0, 0, 0, 6, 3, 2, 0])
    explorer.drag("new 0", -3, axis="y")
    explorer.wait_for_ends([0, 0, 0, 3, 3, 2, 0])
    explorer.drag("cached 2", 5)  # all three ends are at the left edge; to the right, the last of them goes
    explorer.wait_for_ends([0, 0, 5, 3, 3, 2, 0])
    explorer.drag("new 2", 1)  # here is the end of the padding, too
    explorer.wait_for_ends([0, 0, 5, 3, 3, 2, 1])
    explorer.drag("new 2", -9)
    explorer.wait_for_ends([0, 0, 5, 3, 3, 0, 1])
    explorer.drag("new 1", 2, finger=True)
    explorer.wait_for_ends([0, 0, 5, 3, 3, 2, 1])
    assert explorer.words().startswith("Mask of 9 queries")


def test_an_engine_is_driven_from_its_dashboard(lab):
    dashboard = open_part(lab, "12", {"Dashboard"}).shown(Dashboard)
    dashboard.click("add")
    assert "waits for the next step" in dashboard.says("message")
    before = dashboard.steps()
    dashboard.click("step")
    assert dashboard.steps() == before + 1
    dashboard.click("run")
    assert dashboard.says("run") == "pause"
    dashboard.wait_for_steps(before + 6)
    dashboard.click("run")
    dashboard.part("run").get_by_text("run").wait_for()  # the last that changes
    assert dashboard.says("message") == "Paused."
    steps, answers = dashboard.steps(), dashboard.says("texts")
    assert answers, "the answers are seen as they grow"
    dashboard.press("Enter", "step")
    assert dashboard.steps() == steps + 1 and dashboard.says("texts") != answers


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
