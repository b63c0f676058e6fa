"""What the page asks Python: check an answer, give hints, show the solution. Each returns HTML."""

import importlib
import json
import linecache
import os
import sys
import traceback

sys.path.insert(0, "/course")
os.environ["LESSONS_PROGRESS"] = "/tmp/progress.json"

from lessons_lib.checks.judge import describe, judge
from lessons_lib.checks.panel import Panel
from lessons_lib.checks.registry import get_exercise

CELL = "<ipython-input-{}>"  # so that the checks take it for the learner's cell


def answer(question: str) -> str:
    asked = json.loads(question)
    exercise = get_exercise(asked["id"])
    label = f"{exercise.id} `{exercise.name}`"
    if asked["does"] == "hint":
        shown = exercise.hints[: asked["count"]]
        title = f"{label}: hint {len(shown)} of {len(exercise.hints)}"
        return Panel("note", title, [f"{number}. {text}" for number, text in enumerate(shown, 1)]).as_html()
    if asked["does"] == "solution":
        return Panel("note", f"{label}: one solution", code=exercise.reference_body()).as_html()
    try:
        attempt = run(asked["code"], exercise)
    except BaseException as error:  # a learner's code may raise anything, even SystemExit
        return Panel("wrong", f"{label}: your code doesn't run", code=_last_lines(error)).as_html()
    panel = describe(exercise, *judge(exercise, attempt), attempt)
    panel.lines = [line for line in panel.lines if "The cells below" not in line]  # there are none
    return panel.as_html()


def run(code: str, exercise) -> object:
    """The learner's function or class. The other names of the reference's module are there, as in the notebook."""
    module = importlib.import_module(exercise.reference.split(":")[0])
    names = {name: value for name, value in vars(module).items() if name != exercise.name and name[:2] != "__"}
    file = CELL.format(exercise.id)
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    exec(compile(code, file, "exec"), names)
    if exercise.name not in names:
        raise NameError(f"your code must define {exercise.name}")
    return names[exercise.name]


def _last_lines(error: BaseException) -> str:
    """The error and the learner's line, without our own frames."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith("<ipython")]
    lines = [f"line {own[-1].lineno}: {own[-1].line}"] if own else []
    return "\n".join([*lines, *(text.rstrip() for text in traceback.format_exception_only(error))])
