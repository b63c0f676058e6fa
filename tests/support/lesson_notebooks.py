"""The notebooks of the course as they are committed, for tests that go through all lessons."""

from pathlib import Path

import nbformat
import pytest

from tools.authoring.build import lesson_files

ROOT = Path(__file__).resolve().parents[2]
LESSONS = [path.stem for path in lesson_files(ROOT)]
every_lesson = pytest.mark.parametrize("lesson", LESSONS)


def stored(folder: str, lesson: str) -> nbformat.NotebookNode:
    """`folder` is "solutions" or "notebooks"."""
    return nbformat.read(ROOT / folder / f"{lesson}.ipynb", as_version=4)


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]
