"""`check`: judges an attempt, says what is wrong with it, and always returns something usable."""

import inspect
import os
import sys
import traceback
from dataclasses import FrozenInstanceError

from lessons_lib.checks import progress
from lessons_lib.checks.endless import files_of, is_cell, place_of
from lessons_lib.checks.exercise import Exercise, Mistake, current_case, short
from lessons_lib.checks.kept import keep
from lessons_lib.checks.panel import Panel
from lessons_lib.checks.registry import UnknownExercise, get_exercise
from lessons_lib.checks.sandbox import TOTAL, Outcome, Stopwatch, TimeLimit, run_guarded

FROZEN = (
    "This object is frozen: its fields are set once, when it is made. Compute them first, or make a changed copy: "
    "`dataclasses.replace(old, field=new)`."
)


class CheckFailed(AssertionError):
    """Raised in strict mode for an exercise that is not solved."""


earned: dict[str, float] = {}  # exercise -> the points that its last check in this process gave


def is_strict() -> bool:
    """Graded runs are strict: nbgrader sets NBGRADER_EXECUTION; LESSONS_STRICT=1 does the same by hand."""
    return bool(os.environ.get("NBGRADER_EXECUTION")) or os.environ.get("LESSONS_STRICT", "") not in ("", "0")


def check(id: str, attempt: object) -> object:
    """Judge an attempt at exercise `id`.

    Returns:
        The attempt if it is right. Otherwise the reference, so that the cells below still work.

    Raises:
        CheckFailed: only in strict mode, if the attempt is wrong or not written yet, and has earned nothing.
    """
    try:
        exercise = get_exercise(id)
    except UnknownExercise as error:
        return _finish(Panel("wrong", str(error)), attempt)
    if attempt is exercise.load_reference():
        return _finish(_not_yours(exercise), attempt)
    outcome, case = judge(exercise, attempt)
    panel = describe(exercise, outcome, case, attempt)
    earned[id] = exercise.points * share_earned(exercise, outcome)
    entry = progress.load()["exercises"].get(id, {})
    tried = entry.get("attempts", 0) + (panel.kind != "open")
    progress.note_exercise(id, attempts=tried, passed=panel.kind == "right" or entry.get("passed", False))
    if panel.kind == "right":
        keep(exercise, attempt)
    elif is_strict():
        _put_reference_in_cells(exercise, attempt)
    return _finish(panel, attempt if panel.kind == "right" else exercise.load_reference(), earned[id])


def points(id: str) -> float | None:
    """The points that the last `check` of an exercise gave: in a graded run a number, which nbgrader takes as the grade
    of the cell. Otherwise None: the panel has said it."""
    return round(earned.get(id, 0.0), 2) if is_strict() else None


def share_earned(exercise: Exercise, outcome: Outcome) -> float:
    """The share of an exercise's points that an attempt is worth, 0 to 1."""
    if outcome.error is None and not outcome.timed_out:
        return 1.0
    return getattr(outcome.error, "earned", 0.0) if exercise.in_parts else 0.0


def judge(exercise: Exercise, attempt: object) -> tuple[Outcome, str]:
    """Run the exercise's test on an attempt.

    Returns:
        (outcome, case): how the test ended, and the case it was running, or "".
    """
    case = ""
    stopwatch = Stopwatch()

    def begin_case() -> None:
        nonlocal case
        case = current_case.text
        stopwatch.restart()

    def test() -> None:
        current_case.begins = begin_case
        current_case.text = ""
        _refuse_wrong_kind(exercise, attempt)
        exercise.test(attempt)

    outcome = run_guarded(test, exercise.time_limit, stopwatch=stopwatch)
    return outcome, case


def describe(exercise: Exercise, outcome: Outcome, case: str, attempt: object = None) -> Panel:
    """The panel for an outcome: right, not written yet, or what is wrong with the attempt."""
    label = f"{exercise.id} `{exercise.name}`"
    further = f'`hint("{exercise.id}")` gives a hint. The cells below use the reference for now.'
    smallest = [f"Smallest case: {case}"] if case else []
    reached = [text] if (text := getattr(outcome.error, "reached", "")) else []
    printed = f"Your code printed:\n{_first_lines(outcome.printed)}" if outcome.printed.strip() else ""
    error = outcome.error
    if outcome.timed_out or isinstance(error, TimeLimit):
        what = f"{label}: stopped after {exercise.time_limit:g} seconds. Is there an infinite loop?"
        if outcome.is_slow:
            what = f"{label}: stopped after {TOTAL * exercise.time_limit:g} seconds for all cases. What takes so long?"
        return Panel("wrong", what, [*smallest, where_stuck(outcome, attempt), further], printed)
    if error is None:
        return Panel("right", f"{label}: correct.")
    if isinstance(error, Mistake):
        lines = [f"Smallest case: {error.case}"] if error.case else []
        lines += _where_explained(error, attempt) + ([error.idea] if error.idea else [])
        if exercise.in_parts:
            lines.append(f"{exercise.points * error.earned:g} of {exercise.points} points so far.")
        return Panel("wrong", f"{label}: {error.what}", [*reached, *lines, further], printed)
    if isinstance(error, NotImplementedError):
        line = f'The cells below use the reference for now. `hint("{exercise.id}")` gets you started.'
        return Panel("open", f"{label}: not written yet.", [line])
    what = f"{label}: your code raised {type(error).__name__}: {str(error)[:300]}"
    lines = [*reached, *(smallest or _called_with(error, attempt)), *_where(error, attempt)]
    if isinstance(error, FrozenInstanceError):
        lines.append(FROZEN)
    return Panel("wrong", what, [*lines, further], printed)


def where_stuck(outcome: Outcome, attempt: object) -> str:
    """A sentence about the line at which an attempt was when its time was up."""
    own = files_of(attempt)
    place = place_of(outcome.stuck_calls, lambda file: is_cell(file) or file in own)
    if place is None:
        return "Each call of your code returned. But what the check waits for didn't happen, however often it called."
    where = f"line {place.line} of your cell"
    if not place.function.startswith("<") and place.function != getattr(attempt, "__name__", ""):
        where += f", in `{place.function}`"
    return f"It was in the loop at {where}: `{place.text}`" if place.is_loop else f"It was at {where}: `{place.text}`"


def _first_lines(text: str, limit: int = 10) -> str:
    lines = text.strip("\n").split("\n")
    return "\n".join(lines if len(lines) <= limit else [*lines[:limit], "..."])


def _not_yours(exercise: Exercise) -> Panel:
    line = (
        f"An earlier check replaced your version with it. Rerun the cell that defines `{exercise.name}`, then this one."
    )
    afresh = f'`reset("{exercise.id}")` puts the exercise, as it was, into a new cell.'
    return Panel("open", f"{exercise.id} `{exercise.name}`: this is the reference, not your version.", [line, afresh])


def _refuse_wrong_kind(exercise: Exercise, attempt: object) -> None:
    wanted = exercise.load_reference()
    kind = "class" if isinstance(wanted, type) else "function"
    right_kind = isinstance(attempt, type) if kind == "class" else callable(attempt)
    if not right_kind:
        raise Mistake(
            f"`check` was given {type(attempt).__name__} {str(attempt)[:60]!r}, not a {kind}.",
            idea=f"Pass the {kind} itself, without calling it: `check({exercise.id!r}, {exercise.name})`.",
        )


def _where(error: BaseException, attempt: object) -> list[str]:
    """The line of the learner's code that raised: the last frame inside a notebook cell."""
    own = files_of(attempt)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if is_cell(f.filename) or f.filename in own]
    return [f"Line {frames[-1].lineno} of your cell: `{frames[-1].line}`"] if frames and frames[-1].line else []


def _called_with(error: BaseException, attempt: object) -> list[str]:
    """In place of a case, where the check has named none: its call of the learner's code, with the arguments."""
    own = files_of(attempt)
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    for frame in (each for each in frames if is_cell(each.f_code.co_filename) or each.f_code.co_filename in own):
        values = inspect.getargvalues(frame)
        told = [f"{name}={short(values.locals.get(name), 60)}" for name in values.args if name != "self"]
        return [f"Smallest case: `{frame.f_code.co_name}({', '.join(told)})`"]
    return []


def _where_explained(mistake: Mistake, attempt: object) -> list[str]:
    """The same for a mistake that explains an exception which the check has caught. One that is raised below the
    learner's code, as by a stand-in that is called, explains none: the learner's code may be handling another."""
    error = mistake.__context__
    if error is None or isinstance(error, Mistake) or _where(mistake, attempt):
        return []
    return _where(error, attempt)


def _put_reference_in_cells(exercise: Exercise, attempt: object) -> None:
    """In a graded run `check` raises, so its cell assigns nothing; later exercises that call this one need it."""
    cells = vars(sys.modules["__main__"])
    if cells.get(exercise.name) is attempt:
        cells[exercise.name] = exercise.load_reference()


def _finish(panel: Panel, result: object, points_earned: float = 0.0) -> object:
    if is_strict() and panel.kind != "right" and not points_earned:
        raise CheckFailed(str(panel)) from None
    panel.show()
    return result
