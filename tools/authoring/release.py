"""The learner's copy: nbgrader's own conversion of the solved notebook."""

import nbformat
from nbformat import NotebookNode

from tools.authoring.errors import BuildError


def release(solved: NotebookNode) -> NotebookNode:
    """What `nbgrader generate_assignment --no-db` makes of a solved notebook: stubs, no outputs, locked check cells."""
    try:
        from nbgrader.converters import GenerateAssignment
        from nbgrader.preprocessors import IncludeHeaderFooter, SaveCells
    except ImportError:
        raise BuildError(
            "nbgrader is not installed. Install the extra for teachers: pip install -e '.[test]'"
        ) from None
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
