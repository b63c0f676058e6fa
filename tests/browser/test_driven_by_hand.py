"""The pool and the mask that are driven by hand: a page from a file, with no network and no kernel."""

import pytest
from accessibility import axe_faults, axe_source

from lessons_lib.viz.by_hand import mask_by_hand, pool_by_hand
from lessons_lib.viz.player import script

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.xdist_group("browser")]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    script._shown_in.clear()  # another test of this process may have been given the modules
    path = tmp_path_factory.mktemp("by_hand") / "page.html"
    pool = pool_by_hand(12, 4, calls=[("A", 6), ("B", 9), ("A", 5)])
    parts = [each._repr_mimebundle_()["text/html"] for each in (pool, mask_by_hand())]
    head = "<!doctype html><html lang='en'><meta charset='utf-8'><title>By hand</title><meta name='viewport' content='width=device-width'>"
    path.write_text(f"{head}<main>{''.join(parts)}</main>", encoding="utf-8")
    return path


@pytest.fixture
def opened(chromium, file):
    pages = []

    def open_page(width=1280, **options):
        page = chromium.new_context(offline=True, viewport={"width": width, "height": 900}, **options).new_page()
        page.problems = []
        page.on("pageerror", lambda error: page.problems.append(str(error)))
        page.goto(file.as_uri())
        page.locator("lessons-mask .cell").wait_for()
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        assert page.problems == []
        page.context.close()


def test_the_pool_by_mouse_and_by_keys(opened):
    page = opened()
    told, tables = page.locator("lessons-pool .told"), page.locator("lessons-pool .table")
    page.get_by_role("radio", name="A").press("ArrowRight")
    page.keyboard.press("Tab")
    page.keyboard.type("7")
    page.keyboard.press("Enter")
    assert told.inner_text() == "B, now 16 tokens, grows and takes block 6."
    page.get_by_role("button", name="free", exact=True).click()
    assert told.inner_text().startswith("B frees blocks 2 to 4, 6") and tables.count() == 1
    assert page.locator("lessons-pool .queue .chip").all_inner_texts() == list(map(str, (7, 8, 9, 10, 11, 6, 4, 3, 2)))
    page.locator("[data-block='0']").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("lessons-pool .lot p").inner_text() == "block 1: A, positions 4 to 7"
    page.get_by_role("button", name="start again").click()
    assert tables.count() == 2


def ends(page):
    return page.evaluate("['cached', 'new', 'padding'].flatMap(k => document.querySelector('lessons-mask').counts(k))")


def drag(page, end, tokens, axis="x", finger=False):
    """Drag an end by so many tokens, and let go."""
    box = page.locator(f'[data-end="{end}"].{axis} .finger').bounding_box()
    way = tokens * page.evaluate(f"document.querySelector('lessons-mask').{'wide' if axis == 'x' else 'high'}")
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    along = [(x + way * part / 6 * (axis == "x"), y + way * part / 6 * (axis == "y")) for part in range(7)]
    if finger:
        touches = page.context.new_cdp_session(page)
        for kind, points in [("Start", along[:1]), *(("Move", [point]) for point in along[1:]), ("End", [])]:
            touches.send(
                "Input.dispatchTouchEvent",
                {"type": f"touch{kind}", "touchPoints": [{"x": x, "y": y} for x, y in points]},
            )
        return
    page.mouse.move(*along[0])
    page.mouse.down()
    for point in along[1:]:
        page.mouse.move(*point)
    page.mouse.up()


def test_the_mask_by_mouse_finger_and_keys(opened):
    page = opened(has_touch=True)
    page.locator("lessons-mask").scroll_into_view_if_needed()
    told = page.locator("lessons-mask .told")
    for end, tokens, where, expected in [
        ("new 0", 2, {}, [0, 0, 0, 6, 3, 2, 0]),
        ("new 0", -3, {"axis": "y"}, [0, 0, 0, 3, 3, 2, 0]),
        ("cached 2", 5, {}, [0, 0, 5, 3, 3, 2, 0]),  # all three ends are at the left edge; to the right, the last goes
        ("padding 0", 1, {}, [0, 0, 5, 3, 3, 2, 1]),
        ("new 2", -9, {}, [0, 0, 5, 3, 3, 0, 1]),
        ("new 1", 2, {"finger": True}, [0, 0, 5, 3, 3, 2, 1]),  # C's end is here, too
    ]:
        drag(page, end, tokens, **where)
        assert ends(page) == expected
    page.get_by_role("checkbox", name="same sequence").uncheck()
    assert "of them shouldn't (×)" in told.inner_text()
    page.locator("lessons-mask svg").focus()
    for key in ("End", "ArrowUp", "ArrowLeft", "ArrowLeft"):
        page.keyboard.press(key)
    assert told.inner_text().endswith("may not attend to C, position 5: in the future.")


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_both_fit_and_can_be_read(opened, width, scheme):
    page = opened(width, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.get_by_label("cached tokens of A").fill("20")
    sheet = page.locator("lessons-mask .sheet")
    assert sheet.evaluate("each => each.scrollWidth <= each.clientWidth")
    if axe_source():
        assert axe_faults(page, axe_source()) == []


@pytest.mark.nightly
def test_both_in_jupyterlab_which_leaves_them_the_keys(lab):
    cells = ["from lessons_lib.viz.by_hand import mask_by_hand, pool_by_hand", "pool_by_hand()", "mask_by_hand()"]
    opened = lab.open_notebook(lab.write_notebook("by_hand.ipynb", cells))
    opened.run_all_cells()
    assert opened.errors() == []
    pool, mask = (opened.panel.locator(f"lessons-{kind}") for kind in ("pool", "mask"))
    active = "window.jupyterapp.shell.currentWidget.content.activeCellIndex"
    pool.get_by_role("radio", name="A").press("ArrowRight")
    lab.page.keyboard.press("Tab")
    lab.page.keyboard.type("7")
    lab.page.keyboard.press("Enter")
    assert pool.locator(".told").inner_text().startswith("B, now 7 tokens")
    pool.locator("[data-block='0']").focus()
    lab.page.keyboard.press("ArrowRight")
    assert pool.locator(".lot p").inner_text().startswith("block 1: B") and lab.page.evaluate(active) == 1
    mask.locator("svg").focus()
    for key in ("End", "ArrowUp", "ArrowLeft"):
        lab.page.keyboard.press(key)
    assert (
        mask.locator(".told").inner_text().endswith("B, position 0, may not attend to C, position 0: another sequence.")
    )
    assert lab.page.evaluate(active) == 2 and opened.panel.locator(".jp-Cell").count() == len(cells)
    for theme, ground in (("Dark", "rgb(31, 31, 31)"), ("Light", "rgb(253, 253, 251)")):
        opened.change_theme(f"JupyterLab {theme}")
        for each in (pool, mask):
            assert each.locator(".sheet").evaluate("each => getComputedStyle(each).backgroundColor") == ground
    opened.close()
