"""solutions/NN_name.py -> a notebook that is complete but not yet run.

A lesson is written in jupytext's percent format. A cell `# %% exercise="00.1"` holds the line
`from lessons_lib.batching.greedy import greedy_without_cache`; the build replaces the line with that function's code,
with its body marked as solution, and adds the check cell below. The options a cell may have:

    exercise="00.1"       the exercise of that id in `lessons_lib.checks`
    given="used free"     methods of its class that stay complete for the learner
    tags=["measured"]     the output holds times: it is kept, and never compared
    folded=true           a markdown cell that begins with a heading: its section is closed until it is clicked;
                          a code cell: its source is, as are the imports of every lesson
"""

import ast
import hashlib
import re
from pathlib import Path

import jupytext
import nbformat
from nbformat import NotebookNode

from lessons_lib.checks import registry as course_registry
from lessons_lib.checks.exercise import Exercise
from tools.authoring.colab import colab_cell
from tools.authoring.errors import BuildError
from tools.authoring.stub import find_reference, mark_solution
from tools.site.doors import home_of_record

MEASURED = "measured"
FOLDED = "folded"
OPTIONS = {"exercise", "given", "tags", FOLDED}
JUPYTEXT_OWN = {"cell_marker", "lines_to_next_cell", "lines_to_end_of_cell_marker"}
# No language version: it would change the stored files from one machine to the next.
NOTEBOOK_METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "name": "python",
        "nbconvert_exporter": "python",
        "pygments_lexer": "ipython3",
    },
}


class Lesson:
    """A lesson's notebook before it is run.

    Attributes:
        path: the .py file.
        notebook: its cells, each with id, tags and nbgrader metadata, without outputs.
        references: {exercise id: the name of its function or class}.
    """

    def __init__(self, path: Path, registry=course_registry):
        self.path = Path(path)
        self.registry = registry
        self.references: dict[str, str] = {}
        if not re.fullmatch(r"\d\d_\w+", self.name):
            raise BuildError(f"{self.path.name}: a lesson's file is named like 00_one_request.py.")
        self.notebook = self._assemble()

    @property
    def name(self) -> str:
        """Such as "00_one_request"."""
        return self.path.stem

    @property
    def number(self) -> str:
        return self.name[:2]

    def _assemble(self) -> NotebookNode:
        written = jupytext.reads(self.path.read_text(encoding="utf-8"), fmt="py:percent")
        cells: list[NotebookNode] = []
        for number, cell in enumerate(written.cells, start=1):
            cell.metadata = {key: value for key, value in cell.metadata.items() if key not in JUPYTEXT_OWN}
            self._refuse_unknown_options(cell, number)
            if "exercise" in cell.metadata:
                cells += self._exercise_cells(cell, number)
            elif cell.cell_type == "code":
                tags = ["measured", "nbval-ignore-output"] if "tags" in cell.metadata else ["nbval-check-output"]
                folded = {"jupyter": {"source_hidden": True}} if FOLDED in cell.metadata else {}
                cells.append(nbformat.v4.new_code_cell(cell.source, metadata={"tags": tags, **folded}))
            else:
                folded = {"jp-MarkdownHeadingCollapsed": True} if FOLDED in cell.metadata else {}
                cells.append(nbformat.v4.new_markdown_cell(cell.source, metadata=folded))
        self._refuse_missing_exercises()
        cells[1:1] = colab_cell(home_of_record())
        if self.registry is course_registry:
            cells.append(_footer_cell(self.number))
        _give_ids(cells)
        return nbformat.v4.new_notebook(cells=cells, metadata=NOTEBOOK_METADATA)

    def _exercise_cells(self, cell: NotebookNode, number: int) -> list[NotebookNode]:
        id = str(cell.metadata["exercise"])
        where = f"{self.path.name}, cell {number}, exercise {id}"
        exercise = self._exercise(id, where)
        module, name = exercise.reference.split(":")
        try:
            given = tuple(str(cell.metadata.get("given", "")).split())
            code = mark_solution(find_reference(exercise.reference), given)
        except BuildError as error:
            raise BuildError(f"{where}: {error}") from None
        source = _replace_import(cell.source, module, name, code, where)
        self.references[id] = name
        slug = id.replace(".", "-")
        write = nbformat.v4.new_code_cell(
            source,
            id=f"ex-{slug}",
            metadata={"tags": ["nbval-check-output"], "nbgrader": _nbgrader(f"ex-{slug}", solution=True)},
        )
        judge = nbformat.v4.new_code_cell(
            f'{name} = check("{id}", {name})' + (f'\npoints("{id}")' if exercise.in_parts else ""),
            id=f"check-{slug}",
            metadata={"tags": ["nbval-check-output"], "nbgrader": _nbgrader(f"check-{slug}", points=exercise.points)},
        )
        return [write, judge]

    def _exercise(self, id: str, where: str) -> Exercise:
        if id in self.references:
            raise BuildError(f"{where}: this exercise is in the lesson twice. Remove one of the cells.")
        if id.split(".")[0] != self.number:
            raise BuildError(f"{where}: an exercise of lesson {self.number} is named like {self.number}.1.")
        try:
            return self.registry.get_exercise(id)
        except LookupError as error:
            raise BuildError(f"{where}: {error} Correct it, or add it to EXERCISES of lesson {self.number}.") from None

    def _refuse_unknown_options(self, cell: NotebookNode, number: int) -> None:
        where = f"{self.path.name}, cell {number}"
        unknown = sorted(set(cell.metadata) - OPTIONS)
        if unknown:
            raise BuildError(f"{where}: unknown option {', '.join(unknown)}. There are {', '.join(sorted(OPTIONS))}.")
        if cell.metadata.get("tags", [MEASURED]) != [MEASURED]:
            raise BuildError(f'{where}: tags {cell.metadata["tags"]}. The only tag is tags=["{MEASURED}"].')
        if cell.cell_type != "code" and set(cell.metadata) - {FOLDED}:
            options = ", ".join(cell.metadata)
            raise BuildError(f"{where}: a markdown cell has no options but {FOLDED}; this one has {options}.")
        if FOLDED in cell.metadata and cell.cell_type != "code" and not cell.source.lstrip('"\n').startswith("#"):
            raise BuildError(f"{where}: a folded markdown cell begins with a heading.")
        if "exercise" in cell.metadata and {"tags", FOLDED} & set(cell.metadata):
            raise BuildError(f"{where}: an exercise cell is neither measured nor folded. Measure in a separate cell.")
        if "given" in cell.metadata and "exercise" not in cell.metadata:
            raise BuildError(f"{where}: `given` belongs to an exercise, and this cell has none.")
        if not cell.source.strip():
            raise BuildError(f"{where}: the cell is empty. Remove it.")

    def _refuse_missing_exercises(self) -> None:
        try:
            expected = [exercise.id for exercise in self.registry.exercises_of(self.number)]
        except LookupError:
            expected = []
        missing = [id for id in expected if id not in self.references]
        if missing:
            raise BuildError(
                f"{self.path.name}: exercise {', '.join(missing)} of lesson {self.number} has no cell. "
                f'Add a cell `# %% exercise="{missing[0]}"`, or take it out of EXERCISES.'
            )


def _footer_cell(number: str) -> NotebookNode:
    """The last cell. Its output tells what a learner did, so it is never compared."""
    source = f'from lessons_lib.checks import footer\n\nfooter("{number}")'
    return nbformat.v4.new_code_cell(source, metadata={"tags": [MEASURED, "nbval-ignore-output"]})


def is_measured(cell: NotebookNode) -> bool:
    return MEASURED in cell.metadata.get("tags", [])


def _replace_import(source: str, module: str, name: str, code: str, where: str) -> str:
    """Replace the line `from module import name` with `code`."""
    wanted = f"from {module} import {name}"
    lines = source.splitlines()
    found = [
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.ImportFrom) and node.module == module and name in [alias.name for alias in node.names]
    ]
    if len(found) != 1 or lines[found[0].lineno - 1].split("#")[0].strip() != wanted:
        raise BuildError(f"{where}: the cell must hold the line `{wanted}` once, with nothing else imported on it.")
    lines[found[0].lineno - 1 : found[0].end_lineno] = code.splitlines()
    return "\n".join(lines)


def _nbgrader(grade_id: str, solution: bool = False, points: int | None = None) -> dict:
    """nbgrader's cell metadata, schema 3: a solution cell, or a locked cell of tests with points."""
    metadata = {
        "grade": not solution,
        "grade_id": grade_id,
        "locked": not solution,
        "schema_version": 3,
        "solution": solution,
        "task": False,
    }
    return metadata if solution else metadata | {"points": points}


def _give_ids(cells: list[NotebookNode]) -> None:
    """An id from the cell's own text, so that inserting a cell changes no other id."""
    seen: dict[str, int] = {}
    for cell in cells:
        if "nbgrader" in cell.metadata:
            continue
        text = f"{cell.cell_type}\n{cell.source}"
        seen[text] = seen.get(text, 0) + 1
        cell.id = hashlib.sha256(f"{seen[text]}\n{text}".encode()).hexdigest()[:12]
