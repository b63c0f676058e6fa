"""Hints, one at a time, and the solution on request."""

from lessons_lib.checks import progress
from lessons_lib.checks.panel import Panel
from lessons_lib.checks.registry import UnknownExercise, get_exercise


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
