"""What Sphinx builds the site from: a folder with one notebook per lesson, the glossary, and the front page.

The lessons are the solved notebooks as committed; nothing runs. An exercise is shown as learners meet it, and its
solution is folded.
"""

import re
import shutil
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from tools.authoring.colab import is_colab_cell
from tools.site.code_pages import linked_files, to_code_pages, write_code_pages
from tools.site.doors import ROOT, links, repository
from tools.site.front_page import front_page

MARK = re.compile(r"^[ \t]*### (?:BEGIN|END) SOLUTION[ \t]*\n?", re.MULTILINE)
FOOTER = re.compile(r"^footer\(", re.MULTILINE)  # a learner's score, and links to notebooks; the theme links to pages
SHOWN_MIME = ("text/html", "text/plain")  # a picture's HTML holds the picture; its SVG would only make the page larger


def write_sources(folder: Path) -> None:
    """Write everything that Sphinx reads into `folder`, emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    home, code = repository(), set()
    for solved in sorted(Path(ROOT, "solutions").glob("[0-9][0-9]_*.ipynb")):
        released = nbformat.read(Path(ROOT, "notebooks", solved.name), as_version=4)
        page = lesson_page(nbformat.read(solved, as_version=4), released, solved.stem, home)
        nbformat.write(page, folder / solved.name)
        code |= linked_files("".join(map(_html, _outputs(page))))
    write_code_pages(code, folder)
    for file in ("notebooks/glossary.md", "tools/site/the_server.md", "lessons_lib/assets/static_and_continuous.svg"):
        shutil.copy(ROOT / file, folder)
    readme = Path(ROOT, "README.md").read_text(encoding="utf-8")
    (folder / "index.md").write_text(front_page(readme, home), encoding="utf-8")


def lesson_page(solved: NotebookNode, released: NotebookNode, lesson: str, home: str) -> NotebookNode:
    """One lesson's page: its cells and outputs, without what only tests and nbgrader read.

    Args:
        solved, released: the notebooks of solutions/ and notebooks/.
        lesson: such as "03_block_allocator".
        home: "owner/name" on GitHub, or "" if there is none; then no cell links to a notebook elsewhere.
    """
    stubs = {cell.id: cell for cell in released.cells}
    cells = []
    for cell in solved.cells:
        if is_colab_cell(cell) or FOOTER.search(cell.source):
            continue
        is_exercise = cell.metadata.get("nbgrader", {}).get("solution", False)
        if is_exercise:
            cells += _exercise(cell, stubs[cell.id], lesson, home)
        elif cell.cell_type == "code":
            cells.append(_code_cell(stubs[cell.id].source, cell.outputs))  # without nbgrader's hidden tests
        else:
            cells.append(nbformat.v4.new_markdown_cell(cell.source))
    doors = links(home, lesson)
    if doors:
        cells.insert(1, nbformat.v4.new_markdown_cell(f"Run this lesson: {doors}"))
    _give_ids(cells)
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": solved.metadata.kernelspec})


def _exercise(solved: NotebookNode, stub: NotebookNode, lesson: str, home: str) -> list[NotebookNode]:
    """What the learner starts from, where to try it, and the solution behind a button."""
    number = solved.id.removeprefix("ex-").replace("-", ".")
    doors = links(home, lesson, solved.id)
    words = f"Try {number} in " + (doors or "your own copy of the course: `make lab`.")
    solution = _code_cell(MARK.sub("", solved.source), solved.outputs)
    solution.metadata = {
        "tags": ["hide-input"],
        "mystnb": {"code_prompt_show": f"Show the solution of {number}", "code_prompt_hide": "Hide the solution"},
    }
    return [_code_cell(MARK.sub("", stub.source)), nbformat.v4.new_markdown_cell(words), solution]


def _code_cell(source: str, outputs: list[NotebookNode] = ()) -> NotebookNode:
    return nbformat.v4.new_code_cell(source, outputs=[_smaller(output) for output in outputs])


def _smaller(output: NotebookNode) -> NotebookNode:
    """The output in the first of the forms that the page can show."""
    if "data" not in output:
        return output
    form = next((mime for mime in SHOWN_MIME if mime in output.data), None)
    shown = {form: to_code_pages(output.data[form])} if form else {}
    return nbformat.from_dict(output | {"data": shown, "metadata": {}})


def _outputs(page: NotebookNode) -> list[NotebookNode]:
    return [output for cell in page.cells for output in cell.get("outputs", [])]


def _html(output: NotebookNode) -> str:
    return output.get("data", {}).get("text/html", "")


def _give_ids(cells: list[NotebookNode]) -> None:
    for number, cell in enumerate(cells):
        cell.id = f"cell-{number}"
