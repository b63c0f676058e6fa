"""Hints, one at a time, the solution on request, and an exercise's cell as it was released."""

import json

from lessons_lib.checks import progress
from lessons_lib.checks.lessons import RELEASED
from lessons_lib.checks.panel import Panel
from lessons_lib.checks.registry import UnknownExercise, get_exercise
from lessons_lib.viz.notebook import in_notebook


def hint(id: str) -> None:
    """Show the next hint of an exercise, below the earlier ones."""
    try:
        exercise = get_exercise(id)
    except UnknownExercise as error:
        return Panel("wrong", str(error)).show()
    seen = progress.load()["exercises"].get(id, {}).get("hints", 0)
    shown = min(seen + 1, len(exercise.hints))
    progress.note_exercise(id, hints=shown)
    left = len(exercise.hints) - shown
    more = f"{left} more: call `hint` again." if left else f'That was the last one. `solution("{id}")` shows the code.'
    steps = [f"{number}. {text}" for number, text in enumerate(exercise.hints[:shown], start=1)]
    Panel("note", f"{id} `{exercise.name}`: hint {shown} of {len(exercise.hints)}", [*steps, more]).show()


def solution(id: str) -> None:
    """Show the reference code of an exercise."""
    try:
        exercise = get_exercise(id)
    except UnknownExercise as error:
        return Panel("wrong", str(error)).show()
    if not progress.load()["exercises"].get(id, {}).get("passed"):
        progress.note_exercise(id, solution=True)
    module = exercise.reference.split(":")[0]
    where = f"This is `{exercise.name}` from `{module}`, which later lessons import."
    Panel("note", f"{id} `{exercise.name}`: one solution", [where], exercise.reference_body()).show()


def reset(id: str) -> None:
    """Put the cell of an exercise, as it was released, into a new cell below. The old answer stays where it is."""
    try:
        exercise = get_exercise(id)
    except UnknownExercise as error:
        return Panel("wrong", str(error)).show()
    stub = released_cell(id)
    if stub is None:
        where = f"There is no released notebook of lesson {id.split('.')[0]} in `{RELEASED.name}/` with this exercise."
        return Panel("wrong", where, ["Restore that folder from the course, or call `solution`."]).show()
    title = f"{id} `{exercise.name}`: as released"
    if not in_notebook():
        return Panel("note", title, code=stub).show()
    from IPython import get_ipython

    get_ipython().set_next_input(stub)  # the frontend inserts it; a change of the file on disk would fight with it
    left = "Your answer is still in its own cell. Write the new one below, run it, then run the check again."
    Panel("note", title, [f"The cell below this one holds the exercise. {left}"]).show()


def released_cell(id: str) -> str | None:
    """The released source of an exercise's cell; None if the notebook or the cell is missing."""
    for path in RELEASED.glob(f"{id.split('.')[0]}_*.ipynb"):
        try:
            cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        for cell in cells:
            if cell.get("id") == "ex-" + id.replace(".", "-"):
                return "".join(cell["source"])
    return None
