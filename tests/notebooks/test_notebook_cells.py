"""The parts of a lesson that tests run: the cells that are graded, read answers or measure, and those that they need."""

import nbformat
import pytest
from notebook_cells import cells_that_only_measure, cells_that_read_answers, graded_cells

LESSON = {
    "imports": "import math\nfrom course import check, progress",
    "sides": "SIDES = 4",
    "shown": "print(math.pi)",
    "ex-1": "def area(width):\n    return width * SIDES",
    "tried": "print(area(1))",
    "check-1": "area = check('1', area)",
    "unit": "unit = 1 / 0",
    "used": "total = area(unit)",
    "told": "print(total)",
    "alone": "print(SIDES)",
    "progress": "progress()",
}


@pytest.fixture
def lesson():
    cells = [nbformat.v4.new_code_cell(source, id=id) for id, source in LESSON.items()]
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("area", id="text"), *cells])


def test_what_is_graded_comes_with_what_it_needs(lesson):
    assert graded_cells(lesson) == {"imports", "sides", "ex-1", "check-1"}


def test_what_reads_an_answer_comes_with_what_it_needs(lesson):
    reading = {"imports", "sides", "ex-1", "tried", "check-1"}  # `used` reads what the check gives: the reference
    assert cells_that_read_answers(lesson) == reading
    assert cells_that_read_answers(lesson, {"progress"}) == reading | {"progress"}
    assert cells_that_read_answers(lesson, {"total"}) == reading | {"unit", "used", "told"}


def test_what_only_measures_is_what_no_compared_cell_needs(lesson):
    cells = {cell.id: cell for cell in lesson.cells}
    for name in ("unit", "told", "progress"):
        cells[name].metadata["tags"] = ["measured"]
    assert cells_that_only_measure(lesson) == {"told", "progress"}  # `used` is compared and needs `unit`
    cells["used"].metadata["tags"] = ["measured"]
    assert cells_that_only_measure(lesson) == {"unit", "used", "told", "progress"}
