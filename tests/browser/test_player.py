"""Pictures that play without a kernel: from a file, with no network."""

import base64
import re

import pytest

from lessons_lib.viz.drawing.svg import Drawing
from lessons_lib.viz.player import script
from lessons_lib.viz.stepper import Stepper

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.xdist_group("browser")]
COUNT = 40


def draw(i):
    """A growing row of cells, a counter, a cell that comes and goes, and equal ones on top of one another."""
    drawing = Drawing(height=60 + 20 * (i % 3))
    for k in range(i // 3):
        drawing.cell(20 + 20 * k, 20, 18, 18, "#E69F00", title=f"cell {k}", hatched=0.5 * (k % 2))
    drawing.text(20, 50, f"{i // 3} < {i}" if i > 20 else "<")
    if i % 4 == 0:
        drawing.rect(400, 20, 18, 18, "#009E73")
    for _ in range(1 + i % 3):  # the same element several times, and at the end of each picture
        drawing.rect(440, 20, 18, 18, "#0072B2")
    return drawing.picture(f"{i + 1} cells")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    script._shown_in.clear()  # another test of this process may have been given the module
    path = tmp_path_factory.mktemp("player") / "page.html"
    pages = [Stepper(draw, COUNT, start=3)._repr_mimebundle_()["text/html"] for _ in range(2)]
    assert "customElements.define" in pages[0]
    path.write_text(f"<!doctype html><meta charset='utf-8'>{''.join(reversed(pages))}", encoding="utf-8")
    return path


@pytest.fixture
def page(chromium, file):
    context = chromium.new_context(offline=True)
    page = context.new_page()
    page.problems = []
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.goto(file.as_uri())
    page.locator("lessons-player output").first.wait_for()
    yield page
    assert page.problems == []
    context.close()


def state(page, index=0):
    return page.evaluate(
        """index => {
             const {at, svg, status, range, playButton} = document.querySelectorAll('lessons-player')[index];
             return {at, words: svg.getAttribute('aria-label'), says: status.textContent, playing: playButton.ariaLabel === 'pause',
                     value: range.getAttribute('aria-valuetext'), markup: svg.querySelector('g').innerHTML};
           }""",
        index,
    )


def test_it_opens_where_it_starts_and_both_of_a_page_work(page):
    for index in (0, 1):
        shown = state(page, index)
        assert (shown["at"], shown["words"], shown["says"], shown["value"]) == (3, "4 cells", *["step 4 of 40"] * 2)


def test_every_picture_is_the_one_that_was_drawn_whichever_was_shown_before(page):
    for i in [*range(COUNT), *range(COUNT - 1, -1, -1), *(17 * k % COUNT for k in range(COUNT))]:
        page.evaluate("i => document.querySelector('lessons-player').go(i)", i)
        assert state(page)["words"] == f"{i + 1} cells"
        drawn = page.evaluate(
            """svg => {
                 const parsed = new DOMParser().parseFromString(svg, 'text/html').querySelector('g');
                 parsed.firstElementChild.remove();  // the paper
                 return parsed.innerHTML;
               }""",
            draw(i).svg,
        )
        assert without_ids(state(page)["markup"]) == without_ids(drawn)


def without_ids(text):
    return re.sub(r"#(hatch|arrow)-[0-9a-f]{8}", r"#\1", text)


def test_keys_and_buttons_move_it_and_stop_at_the_ends(page):
    page.locator("lessons-player input").first.focus()
    for key, at in (("ArrowRight", 4), ("End", COUNT - 1), ("ArrowRight", COUNT - 1), ("Home", 0), ("ArrowLeft", 0)):
        page.keyboard.press(key)
        assert state(page)["at"] == at
    page.get_by_label("next step").first.click()
    assert state(page)["at"] == 1
    page.get_by_label("previous step").first.press("Enter")
    assert state(page)["at"] == 0


def test_it_plays_to_the_end_from_the_beginning_and_pauses(page):
    page.get_by_label("speed").first.select_option("3")
    page.get_by_label("play", exact=True).first.press("Enter")
    page.wait_for_function("document.querySelector('lessons-player').at > 5")
    page.get_by_label("pause").first.click()
    shown = state(page)
    assert not shown["playing"] and 5 < shown["at"] < COUNT - 1
    page.keyboard.press("Enter")
    page.wait_for_function(f"document.querySelector('lessons-player').at === {COUNT - 1}")
    assert not state(page)["playing"]
    page.keyboard.press("Enter")
    page.wait_for_function("document.querySelector('lessons-player').at < 5")


def test_a_tall_picture_scrolls_in_its_place_and_keeps_its_scale(chromium, tmp_path):
    def tall(i):
        drawing = Drawing(height=100 + 900 * i)
        drawing.text(20, 50, "first line")
        drawing.text(20, 90 + 900 * i, "last line")
        return drawing.picture(f"picture {i}")

    path = tmp_path / "tall.html"
    path.write_text(Stepper(tall, 2)._repr_mimebundle_()["text/html"], encoding="utf-8")
    page = chromium.new_page(viewport={"width": 920, "height": 800})
    page.goto(path.as_uri())
    boxes, player = [], page.locator("lessons-player")
    player.locator("output").wait_for()
    for i in range(2):
        player.evaluate("(player, i) => player.go(i)", i)
        text = page.get_by_text("first line").bounding_box()
        boxes.append((text["width"], text["height"], player.bounding_box()["height"]))
    assert boxes[0] == pytest.approx(boxes[1], abs=0.01) and boxes[0][2] <= 600
    page.locator(".lessons-stepper-picture").focus()
    page.keyboard.press("End")
    page.wait_for_function(
        "document.querySelector('lessons-player').shadowRoot.querySelector('.sheet').scrollTop > 300"
    )
    page.close()


def test_without_scripts_there_is_the_still_picture(chromium, file):
    context = chromium.new_context(java_script_enabled=False, offline=True)
    page = context.new_page()
    page.goto(file.as_uri())
    picture = page.locator("lessons-player img").first
    assert picture.is_visible() and picture.get_attribute("alt") == "40 cells"
    context.close()


def test_pictures_follow_the_theme_of_the_page_not_of_the_computer(chromium, file, tmp_path):
    html = file.read_text(encoding="utf-8")
    path = tmp_path / "page.html"
    path.write_text(html + draw(3)._repr_mimebundle_()["text/html"], encoding="utf-8")
    for says, is_dark in ((("data-theme", "dark"), True), (("data-jp-theme-light", "true"), False)):
        page = chromium.new_page(color_scheme="light" if is_dark else "dark", viewport={"width": 390, "height": 800})
        page.goto(path.as_uri())
        page.locator("lessons-player output").first.wait_for()
        page.evaluate("says => document.body.setAttribute(...says)", says)
        for picture in ("lessons-player svg", "body > div > img.lessons-picture"):
            assert is_ground_dark(page, page.locator(picture).last) == is_dark
        assert page.evaluate("document.documentElement.scrollWidth") <= 390  # wide pictures scroll in their boxes
        page.close()


def is_ground_dark(page, picture):
    """Whether the corner of a picture, where nothing is drawn, is dark: the browser reads its own screenshot."""
    shot = base64.b64encode(picture.screenshot()).decode()
    red = page.evaluate(
        """async shot => {
             const image = await createImageBitmap(await (await fetch('data:image/png;base64,' + shot)).blob());
             const context = new OffscreenCanvas(image.width, image.height).getContext('2d');
             context.drawImage(image, 0, 0);
             return context.getImageData(12, 8, 1, 1).data[0];
           }""",
        shot,
    )
    return red < 128


def draw_marked(i):
    """A chip of A that moves from left to right, a cell of A, a cell of B, and a line that only followers of A see."""
    drawing = Drawing(height=80)
    with drawing.marked([("A",)], moves="chip"):
        drawing.rect(20 + 300 * i, 10, 40, 20, "#E69F00", title="A's chip")
    with drawing.marked([("A", "7")]):
        drawing.rect(20, 50, 20, 20, "#E69F00", title="A's cell")
    with drawing.marked([("B", "8")]):
        drawing.rect(60, 50, 20, 20, "#009E73", title="B's cell")
    with drawing.marked([("A",)], hidden=True):
        drawing.lines("M30 60H300")
    return drawing.picture(f"moment {i}")


@pytest.fixture
def marked(chromium, tmp_path):
    script._shown_in.clear()
    path = tmp_path / "marked.html"
    path.write_text(Stepper(draw_marked, 3)._repr_mimebundle_()["text/html"], encoding="utf-8")

    def opened(motion):
        page = chromium.new_page(reduced_motion=motion)
        page.goto(path.as_uri())
        page.locator("lessons-player output").wait_for()
        return page

    return opened


def opacities(page):
    """Of the chip, A's cell, B's cell and the line."""
    return page.evaluate(
        """() => [...document.querySelector('lessons-player').group.children].map(each => getComputedStyle(each).opacity)"""
    )


def test_a_choice_a_click_and_the_mouse_light_what_belongs_together(marked):
    page = marked("no-preference")
    follow = page.get_by_label("follow")
    assert follow.locator("option").all_inner_texts() == ["follow …", "follow A", "follow B"]
    assert opacities(page) == ["1", "1", "1", "0"]
    follow.select_option("A")
    assert opacities(page) == ["1", "1", "0.22", "1"]
    page.evaluate("document.querySelector('lessons-player').go(1)")
    assert opacities(page) == ["1", "1", "0.22", "1"], "it is followed from picture to picture"
    sheet = page.locator("lessons-player svg")
    cell = page.locator("lessons-player rect").nth(2)
    cell.hover()
    assert opacities(page) == ["0.22", "0.22", "1", "0"]
    sheet.hover(position={"x": 500, "y": 70})
    assert opacities(page) == ["1", "1", "0.22", "1"]
    cell.click()
    assert follow.input_value() == "B"
    sheet.click(position={"x": 500, "y": 70})
    assert follow.input_value() == "" and opacities(page) == ["1", "1", "1", "0"]
    page.close()


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_what_moves_glides_to_the_next_picture_but_not_over_a_jump_nor_where_motion_is_unwanted(marked, motion):
    page = marked(motion)
    moved = page.evaluate(
        """() => {
             const player = document.querySelector('lessons-player'), seen = [];
             for (const index of [1, 2, 0]) {
               player.go(index);
               const running = player.group.firstElementChild.getAnimations();
               seen.push(running.map(each => each.effect.getKeyframes()[0].transform));
             }
             return seen;
           }"""
    )
    glide = ["translate(-300px, 0px)"]
    assert moved == ([glide, glide, []] if motion == "no-preference" else [[], [], []])
    page.close()
