"""The learner's copy: nbgrader's own conversion of the solved notebook."""

import nbformat
from nbformat import NotebookNode

from tools.authoring.errors import BuildError

# nbgrader puts this back into a locked cell when it grades, whatever was handed in. The module is reloaded because an
# answer may have changed it.
HIDDEN_TESTS = """
### BEGIN HIDDEN TESTS
from importlib import reload
import lessons_lib.checks.graded
reload(lessons_lib.checks.graded).graded("{id}")
### END HIDDEN TESTS"""


def with_hidden_tests(solved: NotebookNode) -> NotebookNode:
    """A solved notebook whose checks are what nbgrader grades; see `lessons_lib.checks.graded`."""
    notebook = nbformat.from_dict(solved)
    for cell in notebook.cells:
        if cell.metadata.get("nbgrader", {}).get("grade"):
            cell.source += HIDDEN_TESTS.format(id=cell.id.removeprefix("check-").replace("-", "."))
    return notebook


def release(solved: NotebookNode) -> NotebookNode:
    """What `nbgrader generate_assignment --no-db` makes of a solved notebook: stubs, no outputs, locked check cells."""
    try:
        from nbgrader.converters import GenerateAssignment
        from nbgrader.preprocessors import IncludeHeaderFooter, SaveCells
    except ImportError:
        raise BuildError("nbgrader is not installed. For teachers: pip install -e '.[test]'") from None
    # SaveCells writes to a course's database, and IncludeHeaderFooter reads its files: here there is no course.
    steps = [
        step
        for step in GenerateAssignment.class_traits()["preprocessors"].default()
        if step not in (SaveCells, IncludeHeaderFooter)
    ]
    notebook, resources = nbformat.from_dict(solved), {}
    for step in steps:
        notebook, resources = step().preprocess(notebook, resources)
    return notebook
