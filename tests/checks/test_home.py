"""The start page and the footer of a lesson: what is done, and where to go."""

import json
import xml.etree.ElementTree as ET

import pytest

from lessons_lib.checks.footer import Footer
from lessons_lib.checks.home import Home
from lessons_lib.checks.lessons import page_of, released_pages
from lessons_lib.checks.predictions import predict, reveal
from lessons_lib.checks.progress import load, note_exercise, save
from lessons_lib.checks.quizzes import _right_letter
from lessons_lib.checks.registry import UnknownExercise, exercises_of, quiz_of
from tools.authoring.build import lesson_files
from tools.authoring.execute import LIBRARY
from tools.authoring.start_page import start_page
from tools.authoring.tiles import MAIN_PICTURES, tile

HEADER = (
    "# 03 · A pool\n\n**Why?**\n\n105 minutes · difficulty: easy · routes: *ideas* (00–06), serving · prerequisites: no"
)
PAGES = [page_of("02_slots", "", ("02.1",)), page_of("03_pool", HEADER, ("03.1", "03.2"))]


def test_home_goes_on_with_the_first_lesson_that_is_not_done():
    assert "Begin: 02 slots" in Home(PAGES, load())._repr_html_()
    note_exercise("02.1", passed=True)
    note_exercise("03.2", passed=True)
    home = Home(PAGES, load())
    assert "Continue: 03 A pool" in home._repr_html_() and "1 of 2 exercises" in repr(home)
    home = Home([page_of("02_slots", "", ("02.1",), ("02.2", "02.3")), PAGES[1]], load())
    assert "Continue: 03 A pool" in home._repr_html_(), "optional exercises can be left out"
    note_exercise("02.2", passed=True)
    assert "1 of 1 exercises and 1 optional" in repr(Home(home.pages, load()))
    assert " of " not in repr(Home(PAGES)), "the released page knows no learner"


def test_what_a_lesson_calls_optional_is_in_its_last_section():
    for page in released_pages():
        exercises = exercises_of(page.number)
        assert sorted((*page.exercises, *page.optional)) == sorted(each.id for each in exercises)
        assert set(page.optional) == {each.id for each in exercises if each.is_optional}, page.number


def test_the_footer_counts_optional_exercises_apart():
    note_exercise("12.1", passed=True)
    assert "Exercises: 1 of 3 solved; optional ones: 0 of 1" in str(Footer("12"))
    without = next(page.number for page in released_pages() if page.exercises and not page.optional)
    assert "optional" not in str(Footer(without))


def test_home_counts_the_quizzes_without_loading_the_exercises():
    record = load()
    record["quiz"]["02"] = {"1": next(iter(_right_letter(quiz_of("02")[0]))), "2": "x"}
    save(record)
    questions = len(quiz_of("02"))
    home = Home(PAGES, load())
    assert f"quiz: 1 of {questions} right, {questions - 2} open" in repr(home)
    assert f"1 of {questions + len(quiz_of('03'))} quiz questions right" in home._repr_html_()
    assert "In all" not in Home(PAGES)._repr_html_()
    with pytest.raises(UnknownExercise, match="no lesson '99'"):
        quiz_of("99")


def test_every_lesson_has_a_tile_with_a_part_of_its_picture():
    for page in released_pages():
        assert page.tile.startswith("<svg ") and "<text" not in page.tile, page.number
        assert len(page.tile) < 70_000 and ET.fromstring(page.tile).get("viewBox"), page.number
    for path in lesson_files(LIBRARY):
        assert MAIN_PICTURES[path.stem[:2]][0] in path.read_text(encoding="utf-8"), path.name
    assert Home(released_pages())._repr_html_().count("<img ") == len(released_pages())
    picture = """<svg viewBox="0 0 900 99" role="img" aria-label="x"><title>t</title><g><text x="1">A</text></g>
        <rect x="1.2345" width="20.04"/></svg>"""
    assert tile("00", picture).endswith('<rect x="1.2" width="20"/></svg>\n')


def test_the_start_page_has_every_lesson_and_the_routes_of_the_readme():
    lessons = lesson_files(LIBRARY)
    cells = {cell["id"]: cell for cell in json.loads(start_page(lessons))["cells"]}
    page = "".join(cells["home"]["outputs"][0]["data"]["text/html"])
    assert all(page.count(f'href="{path.stem}.ipynb"') >= 2 for path in lessons)
    routes = {route: [p.number for p in released_pages() if route in p.routes] for route in ("ideas", "kernels")}
    assert routes == {
        "ideas": ["00", "01", "02", "03", "04", "05", "06", "17"],
        "kernels": ["00", "02", "03", "04", "05", "06", "07", "08", "13"],
    }


def test_a_footer_shows_predictions_beside_measurements():
    predict("03.a", 30)
    predict("02.a", 7)
    reveal("03.a", 60, "steps")
    note_exercise("03.1", passed=True)
    text = str(Footer("03"))
    assert "1 of 4 solved" in text and "60 steps" in text and "Too low by a factor of 2.0." in text
    assert "02.a" not in text and "Quiz: 0 of" in text
    assert "Start page" in Footer("03")._repr_html_()
