"""Builds a lesson: solutions/NN_name.py -> solutions/NN_name.ipynb and notebooks/NN_name.ipynb."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from lessons_lib.checks import registry as course_registry
from tools.authoring.assemble import Lesson, is_measured
from tools.authoring.compare import compare, same_code
from tools.authoring.errors import BuildError
from tools.authoring.execute import execute
from tools.authoring.release import release, with_hidden_tests
from tools.authoring.review import findings


@dataclass
class Built:
    """Both notebooks of one lesson, in memory, and how long the solved one ran."""

    name: str
    solved: NotebookNode
    released: NotebookNode
    seconds: float


def lesson_files(root: Path, numbers: tuple[str, ...] = ()) -> list[Path]:
    """The lessons under root/solutions, or those of the given numbers, else BuildError."""
    files = sorted(Path(root, "solutions").glob("[0-9][0-9]_*.py"))
    unknown = [number for number in numbers if number not in [path.stem[:2] for path in files]]
    if unknown:
        existing = ", ".join(path.stem for path in files) or "none"
        raise BuildError(
            f"there is no lesson {', '.join(unknown)} in {Path(root, 'solutions')}. There are: {existing}."
        )
    return [path for path in files if not numbers or path.stem[:2] in numbers]


def build(
    path: Path, registry=course_registry, python_path: tuple[Path, ...] = (), left_out: Collection[str] = ()
) -> Built:
    """Assemble, run, review and release one lesson. Nothing is written.

    Args:
        left_out: ids of cells that aren't run.

    Raises:
        BuildError: it names the cell and the remedy.
    """
    lesson = Lesson(path, registry)
    name, probes = f"solutions/{lesson.name}", _probes(lesson)
    execution = execute(lesson.notebook, name, python_path=python_path, probes=probes, left_out=left_out)
    faults = findings(execution.notebook)
    if faults:
        raise BuildError(f"solutions/{lesson.name}:\n" + "\n".join(f"  {fault}" for fault in faults))
    solved = with_hidden_tests(execution.notebook) if registry is course_registry else execution.notebook
    return Built(lesson.name, solved, release(solved), execution.seconds)


def write(built: Built, root: Path, fresh: bool = False) -> dict[str, bool]:
    """Write both notebooks; a file whose deterministic part hasn't changed isn't rewritten.

    If the code and its deterministic outputs are unchanged, measured outputs are kept from the committed file, so that
    a rebuild changes nothing. `fresh` takes the new ones.

    Returns:
        {path relative to root: was it changed?}
    """
    solved = built.solved
    committed = read(root, "solutions", built.name)
    if committed is not None and not fresh and same_code(committed, solved):
        solved = _with_measured_outputs(solved, committed)
    notebooks = {"solutions": solved, "notebooks": built.released}
    return {
        f"{folder}/{built.name}.ipynb": _write(notebook, Path(root, folder, f"{built.name}.ipynb"))
        for folder, notebook in notebooks.items()
    }


def differences(built: Built, root: Path) -> list[str]:
    """How a rebuilt lesson differs from the files under root, one text per difference."""
    found = []
    for folder, notebook in (("solutions", built.solved), ("notebooks", built.released)):
        file = f"{folder}/{built.name}.ipynb"
        committed = read(root, folder, built.name)
        if committed is None:
            found.append(f"{file}: missing. Run `make notebooks`.")
        else:
            found += [f"{file}, {difference}" for difference in compare(committed, notebook)]
    return found


def orphans(root: Path) -> list[str]:
    """Notebooks that no lesson builds any more."""
    names = {path.stem for path in lesson_files(root)}
    built = [path for folder in ("solutions", "notebooks") for path in sorted(Path(root, folder).glob("[0-9]*.ipynb"))]
    return [
        f"{path.relative_to(root).as_posix()}: there is no solutions/{path.stem}.py. Delete it."
        for path in built
        if path.stem not in names
    ]


def read(root: Path, folder: str, name: str) -> NotebookNode | None:
    path = Path(root, folder, f"{name}.ipynb")
    return nbformat.read(path, as_version=4) if path.exists() else None


def _probes(lesson: Lesson) -> dict[str, str]:
    """Code that fails the build if a check refuses the reference code as it is in the notebook: else the check returns
    the notebook's own object."""
    return {
        f"check-{id.replace('.', '-')}": f"if getattr({name}, 'fn', {name}).__module__ != '__main__': "
        f"raise AssertionError('check {id} refuses the reference code run in the notebook: see what the check says')"
        for id, name in lesson.references.items()
    }


def _with_measured_outputs(solved: NotebookNode, committed: NotebookNode) -> NotebookNode:
    measured = {cell.id: cell.outputs for cell in committed.cells if is_measured(cell)}
    solved = nbformat.from_dict(solved)
    for cell in solved.cells:
        if cell.id in measured:
            cell.outputs = measured[cell.id]
    return solved


def _write(notebook: NotebookNode, path: Path) -> bool:
    text = nbformat.writes(notebook).rstrip("\n") + "\n"
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return True
