"""The lessons as a learner meets them: JupyterLab, a real browser, mouse and keyboard.

Lesson 07, a quick one, is run whole. Of others, the cells that show something which Python answers are run, and those
that they need. Recorded pictures need no kernel: those of the solved notebooks are played from a file.
"""

import json
import re

import pytest
from browser import ROOT, Dashboard, Explorer, Playground, Stepper
from mask_page import MaskPage
from notebook_cells import cells_that_show

from lessons_lib.viz.stepper import PLAYER

LESSON = "07_triton_kernel.ipynb"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("browser"),
    pytest.mark.skipif(
        not (ROOT / "notebooks" / LESSON).exists(),
        reason=f"notebooks/{LESSON} is not built; `make notebooks` builds it",
    ),
]


@pytest.fixture(scope="module")
def kernel_lesson(lab):
    """Lesson 07, run from top to bottom."""
    opened = lab.open_notebook(LESSON)
    opened.seconds = opened.run_all_cells()
    return opened


def test_all_cells_of_the_unsolved_lesson_run(kernel_lesson, record_property):
    assert kernel_lesson.errors() == []
    record_property("measured", f"{kernel_lesson.count_code_cells()} code cells ran in {kernel_lesson.seconds:.1f} s")


def test_next_and_previous_button_move_the_first_stepper(first_lesson, record_property):
    stepper = first_lesson.steppers()[0]
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


def test_arrow_keys_move_the_first_stepper(first_lesson, record_property):
    stepper = first_lesson.steppers()[0]
    where = stepper.position()
    forward = stepper.press("ArrowRight")
    assert forward.after != forward.before
    assert stepper.position() != where
    assert stepper.press("ArrowLeft").after == forward.before
    record_property("measured", f"stepper answered an arrow key in {forward.milliseconds:.0f} ms")


def open_part(lab, lesson, *wanted):
    """A notebook with those cells of a lesson that call the names wanted, run from top to bottom."""
    released = next((ROOT / "notebooks").glob(f"{lesson}_*.ipynb"), None)
    if released is None:
        pytest.skip(f"lesson {lesson} is not built; `make notebooks` builds it")
    opened = lab.open_notebook(lab.write_notebook(f"part_of_{released.name}", cells_that_show(released, *wanted)))
    opened.run_all_cells()
    assert opened.errors() == []
    return opened


@pytest.fixture(scope="module")
def first_lesson(lab):
    return open_part(lab, "00", {"Stepper", "draw_cache_growth"})


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
def pool_lesson(lab):
    return open_part(lab, "03", {"PoolPlayground"})


@pytest.fixture(scope="module")
def mask_lesson(lab):
    return open_part(lab, "04", {"MaskExplorer"})


def players_of(notebook):
    """The elements that play, in the order of the lesson."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    pages = ("".join(o.get("data", {}).get("text/html", ())) for cell in cells for o in cell.get("outputs", ()))
    return re.findall(r"<lessons-player .*?</lessons-player>", "".join(pages), re.S)


@pytest.fixture(scope="module")
def recorded(chromium, tmp_path_factory):
    """recorded("05"): the steppers of that lesson's solved notebook, as committed."""

    def steppers(lesson):
        [notebook] = (ROOT / "solutions").glob(f"{lesson}_*.ipynb")
        script = f'<script type="module">{PLAYER.read_text(encoding="utf-8")}</script>'
        path = tmp_path_factory.mktemp("recorded") / f"{lesson}.html"
        path.write_text(
            f"<!doctype html><meta charset='utf-8'>{''.join(players_of(notebook))}{script}", encoding="utf-8"
        )
        page = chromium.new_page(viewport={"width": 1280, "height": 800})
        page.goto(path.as_uri())
        players = page.locator("lessons-player")
        players.locator("output").nth(players.count() - 1).wait_for()
        return [Stepper(page, players.nth(index)) for index in range(players.count())]

    return steppers


def check_that_it_steps(stepper):
    """Forward by button, back by key: the picture changes, in what is seen and in what is read, and comes back."""
    stepper.page.mouse.move(0, 0)  # what lies under the mouse is lit
    where, words = stepper.position(), stepper.words()
    forward = stepper.click_next()
    assert forward.after != forward.before
    assert stepper.position() != where and stepper.words() != words
    back = stepper.press("ArrowLeft")
    assert back.after == forward.before
    assert stepper.position() == where
    return f"answered its button in {forward.milliseconds:.0f} ms and an arrow key in {back.milliseconds:.0f} ms"


def test_the_pool_is_replayed_step_by_step(recorded, record_property):
    record_property("measured", f"pool stepper {check_that_it_steps(recorded('03')[0])}")


def test_the_pool_can_be_driven_by_hand(pool_lesson, record_property):
    playground = pool_lesson.shown(Playground)[0]
    playground.choose("B", tokens=20)
    taken = playground.click("append")
    assert taken.after != taken.before
    assert "B" in playground.says("message") and "B" in playground.words()
    freed = playground.click("free")
    assert freed.after != taken.after
    assert playground.click("again").after == taken.before
    record_property(
        "measured", f"playground answered append in {taken.milliseconds:.0f} ms and free in {freed.milliseconds:.0f} ms"
    )


def test_a_slider_and_a_rule_change_the_mask(mask_lesson, record_property):
    explorer = mask_lesson.shown(Explorer)[0]
    words = explorer.words()
    longer = explorer.press("ArrowRight", "new")
    assert longer.after != longer.before
    assert explorer.words() != words
    explorer.press("ArrowLeft", "new")
    assert explorer.words() == words
    dropped = explorer.tick("same sequence")
    assert dropped.after != dropped.before
    assert explorer.words() != words
    explorer.tick("same sequence")
    assert explorer.words() == words
    record_property(
        "measured",
        f"mask explorer answered a slider in {longer.milliseconds:.0f} ms and a rule in {dropped.milliseconds:.0f} ms",
    )


def test_ends_of_the_mask_are_dragged(mask_lesson):
    explorer = mask_lesson.shown(Explorer)[0]
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


def test_the_packed_row_is_stepped_through(recorded, record_property):
    steppers = recorded("05")
    packing = next(stepper for stepper in steppers if stepper.words().startswith("A rectangle: "))
    check_that_it_steps(packing)
    stepper = next(stepper for stepper in steppers if stepper.words().startswith("One row of "))
    record_property("measured", f"packed row {check_that_it_steps(stepper)}")


def test_the_softmax_is_stepped_through_block_by_block(recorded, record_property):
    steppers = [stepper for stepper in recorded("06") if stepper.words().startswith("Block ")]
    online, naive = steppers
    record_property("measured", f"softmax stepper {check_that_it_steps(online)}")
    naive.press("End")
    assert "not a number" in naive.words()
    online.press("End")
    assert "Output / sum = attention" in online.words() and "not a number" not in online.words()


def test_writes_and_reads_on_the_pool_are_stepped_through(recorded, record_property):
    small, stories = [stepper for stepper in recorded("06") if "written" in stepper.words()]
    assert "Nothing was there before." in small.words()
    record_property(
        "measured", f"small pool {check_that_it_steps(small)}; the six stories' {check_that_it_steps(stories)}"
    )


def test_a_kernel_is_stepped_through_program_by_program(kernel_lesson, record_property):
    watched, decoded = kernel_lesson.steppers()
    assert "single_head_kernel, program 0, access 1 of 11: it loads" in watched.words()
    check_that_it_steps(watched)
    assert "decode_heads_kernel" in decoded.words() and "blocks of k_cache" in decoded.words()
    record_property(
        "measured",
        f"programs of the decode kernel {check_that_it_steps(decoded)}",
    )
    decoded.press("Home")
    assert "program (0, 0): sequence 0, query head 0" in decoded.words()
    assert decoded.part("picture").locator("svg title").first.text_content()


def test_the_gantt_charts_are_stepped_through(recorded, record_property):
    stepper = next(stepper for stepper in recorded("09") if stepper.words().startswith("Gantt charts"))
    stepper.click_next()
    assert re.search(r"\d of \d+ finished\. At ", stepper.words())
    record_property("measured", f"Gantt charts {check_that_it_steps(stepper)}")
    stepper.press("End")
    assert "Finished in this order: " in stepper.words() and "mean latency" in stepper.words()
    assert "finished" in stepper.part("picture").locator("svg title").last.text_content()


def test_the_pool_under_pressure_is_stepped_through(recorded, record_property):
    stepper = recorded("10")[0]
    record_property("measured", f"pool under pressure {check_that_it_steps(stepper)}")
    stepper.press("Home")
    assert stepper.words().startswith("Step 1 computes ")
    while "preempted" not in stepper.words():
        stepper.press("ArrowRight")  # an error at the last step, if none ever is
    hovers = stepper.part("picture").locator("svg title").all_text_contents()
    assert any(hover.startswith("block 0: ") for hover in hovers)


@pytest.fixture(scope="module")
def engine_lesson(lab):
    return open_part(lab, "12", {"Dashboard"})


def test_an_engine_is_driven_from_its_dashboard(engine_lesson, record_property):
    dashboard = engine_lesson.shown(Dashboard)[0]
    added = dashboard.click("add")
    assert "waits for the next step" in dashboard.says("message")
    before = dashboard.steps()
    stepped = dashboard.click("step")
    assert stepped.after != stepped.before and dashboard.steps() == before + 1
    running = dashboard.click("run")
    assert dashboard.says("run") == "pause"
    dashboard.wait_for_steps(before + 6)
    paused = dashboard.click("run")
    dashboard.part("run").get_by_text("run").wait_for()  # the last that changes
    assert dashboard.says("message") == "Paused."
    steps, answers = dashboard.steps(), dashboard.says("texts")
    assert answers, "the answers are seen as they grow"
    again = dashboard.press_button("Enter", "step")
    assert dashboard.steps() == steps + 1 and dashboard.says("texts") != answers and again.after != paused.after
    record_property(
        "measured",
        f"dashboard answered add in {added.milliseconds:.0f} ms, step in {stepped.milliseconds:.0f} ms, by key in "
        f"{again.milliseconds:.0f} ms, "
        f"run in {running.milliseconds:.0f} ms and pause in {paused.milliseconds:.0f} ms",
    )


def test_keys_and_clicks_change_a_large_mask(lab, record_property):
    explorer = MaskPage(lab)
    times = []
    for key in ("ArrowRight", "ArrowLeft") * 3:
        picture, milliseconds = explorer.press("new", key, n=2)
        times.append(milliseconds)
        assert f"Mask of {64 if key == 'ArrowRight' else 63} queries" in picture
    record_property(
        "measured",
        f"a mask of 64 x 64 was painted {sorted(times)[len(times) // 2]:.0f} ms after the key (median of {len(times)})",
    )

    picture, _ = explorer.press("cached", "ArrowRight", n=1)
    assert "Keys in the cache: B 0." in picture
    picture, _ = explorer.press("row", "PageUp")
    sentence = explorer.part("reading").inner_text()
    assert sentence.startswith("A, position ") and sentence in picture
    picture, _ = explorer.answer_to(lambda: explorer.part("rule", 2).locator("input").click())
    assert "A attends to A, B, C." in picture
    explorer.wait_for_hovers()
    assert explorer.part("picture").locator("title").count() == 63 * 64
    picture, _ = explorer.answer_to(lambda: explorer.part("as-text").locator("input").click())
    assert "<pre" in picture and "##" in picture and "<svg" not in picture


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
