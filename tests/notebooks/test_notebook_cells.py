"""The part of a lesson that a browser test runs: the cells that show something, and those that they need."""

import nbformat
import pytest
from notebook_cells import cells_that_only_measure, cells_that_read_answers, cells_that_show, graded_cells

CELLS = [
    "from shop import Apple, Pear, show",
    "count = 3\nunused = 1 / 0",
    "def slice_of(fruit):\n    half = 2\n    return [fruit for _ in range(count) if half]",
    "fruit = None",
    "Apple = check('1', Apple)",
    "%matplotlib inline\nfruit = Apple(1)",
    "show(lambda fruit: Pear(fruit))",
    "show(Apple(2), slice_of(fruit))",
    "fruit = 1 / 0",
]


@pytest.fixture
def notebook(tmp_path):
    cells = [nbformat.v4.new_markdown_cell("show Apple"), *map(nbformat.v4.new_code_cell, CELLS)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "fruit.ipynb")
    return tmp_path / "fruit.ipynb"


def test_a_cell_comes_with_what_it_needs_and_no_more(notebook):
    assert cells_that_show(notebook, {"show", "Pear"}) == [CELLS[0], CELLS[6]]
    assert cells_that_show(notebook, {"show", "Apple"}) == [CELLS[i] for i in (0, 1, 2, 4, 5, 7)]
    assert cells_that_show(notebook, {"show"}) == [CELLS[i] for i in (0, 1, 2, 4, 5, 6, 7)]


def test_what_is_not_called_is_not_shown(notebook):
    with pytest.raises(LookupError, match="no cell of fruit.ipynb calls Pear and slice_of"):
        cells_that_show(notebook, {"show"}, {"slice_of", "Pear"})


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
