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
from tools.site.front_page import PAGES, contents_page

MARK = re.compile(r"^[ \t]*### (?:BEGIN|END) SOLUTION[ \t]*\n?", re.MULTILINE)
OPENINGS = "lessons_lib/assets/openings"
LINK = re.compile(r"\[([^\]]+)\]\(\.\./\.\./\.\./([^)]+)\)")  # of a page in tools/site/pages to a file of the course
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
    for page in PAGES:
        written = Path(ROOT, "tools/site/pages", f"{page}.md").read_text(encoding="utf-8")
        text, files = page_beside_lessons(written, home)
        code |= files
        (folder / f"{page}.md").write_text(text, encoding="utf-8")
    write_code_pages(code, folder)
    shutil.copy(ROOT / "notebooks/glossary.md", folder)
    shutil.copytree(ROOT / OPENINGS, folder / OPENINGS)
    readme = Path(ROOT, "README.md").read_text(encoding="utf-8")
    (folder / "contents.md").write_text(contents_page(readme), encoding="utf-8")


def page_beside_lessons(text: str, home: str) -> tuple[str, set[str]]:
    """A page of tools/site/pages, with its links to files of the course, and the files that need a page of code.

    Lessons and reference code are on the site; other files only on GitHub, and without a home there they are no links.
    """
    files = set()

    def to_the_site(link: re.Match) -> str:
        words, file = link.groups()
        if file.startswith("notebooks/"):
            return f"[{words}]({file.removeprefix('notebooks/')})"
        if file.startswith("lessons_lib/") and file.endswith(".py"):
            files.add(file)
            return f"[{words}]({file.removesuffix('.py')}.md)"
        return f"[{words}](https://github.com/{home}/blob/main/{file})" if home else words

    return LINK.sub(to_the_site, text), files


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
            if cell.metadata.get("jupyter", {}).get("source_hidden"):
                _fold(cells[-1], "the imports")
        else:
            cells.append(nbformat.v4.new_markdown_cell(cell.source.replace(f"](../{OPENINGS}", f"]({OPENINGS}")))
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
    _fold(solution, f"the solution of {number}")
    return [_code_cell(MARK.sub("", stub.source)), nbformat.v4.new_markdown_cell(words), solution]


def _fold(cell: NotebookNode, what: str) -> None:
    cell.metadata = {
        "tags": ["hide-input"],
        "mystnb": {"code_prompt_show": f"Show {what}", "code_prompt_hide": f"Hide {what}"},
    }


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
