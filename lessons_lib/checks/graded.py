"""`graded`: what nbgrader's hidden tests call, so that points don't depend on what a learner's kernel says.

An answer cell can redefine `check`, remove NBGRADER_EXECUTION, or change the checks themselves. So the answer is judged
a second time, in a process of its own, which executes only the statements that the answer needs. There, an answer that
is the reference, or calls it, earns nothing.
"""

import builtins
import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from inspect import unwrap
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any

import lessons_lib
from lessons_lib.checks import judge as in_kernel
from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.judge import CheckFailed, describe, judge, share_earned
from lessons_lib.checks.kept import functions_of
from lessons_lib.checks.needed import needed, statements_of
from lessons_lib.checks.registry import get_exercise
from lessons_lib.checks.sandbox import run_guarded

LIBRARY = str(Path(lessons_lib.__file__).parent)
INSTALLED = (sys.prefix, sys.base_prefix, "<")  # files that aren't the learner's; "<" of code without a file
SECONDS = 250.0  # nbgrader stops a cell after 300
SLOWER = 3  # calls are watched, which takes time
# Copied text of the reference can't be told from typed text, but it must stand in the notebook.
NOT_FOR_ANSWERS = ("exec", "eval", "compile")


def graded(id: str) -> float | None:
    """Judge the notebook's answer to an exercise in a process of its own.

    Returns:
        None if it is right. If it has earned a part of the points, this part: nbgrader takes it as the cell's grade.

    Raises:
        CheckFailed: the answer has earned nothing.
    """
    from IPython import get_ipython

    shell = get_ipython()
    if not shell.kernel.get_parent()["content"]["store_history"]:
        return None  # nbval runs the notebook, and asks the kernel to keep no cells; nbgrader asks to keep them
    cells = list(shell.history_manager.input_hist_parsed)
    passed = {each for each, points in in_kernel.earned.items() if points == get_exercise(each).points}
    message, earned = in_new_process(id, cells, passed, os.getcwd())
    if earned == 0:
        raise CheckFailed(f"{id}, judged in a process of its own: {message}") from None
    return earned


def in_new_process(id: str, *arguments: Any) -> tuple[str, float | None]:
    """What `judge_cells` returns. The first call starts a process that imports the libraries, and is forked from."""
    is_forked = "forkserver" in multiprocessing.get_all_start_methods()
    processes: Any = multiprocessing.get_context("forkserver" if is_forked else "spawn")
    if is_forked:
        processes.set_forkserver_preload([__name__, "transformers", f"lessons_lib.checks.lesson_{id[:2]}"])
    receiver, sender = processes.Pipe(duplex=False)
    process = processes.Process(target=_send, args=(sender, id, *arguments))
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")  # multiprocessing would execute the file of the kernel's
    try:
        process.start()
    finally:
        sys.modules["__main__"] = main
    sender.close()
    try:
        return receiver.recv() if receiver.poll(SECONDS) else ("it took too long.", 0.0)
    except EOFError:
        return "the process ended before the check did.", 0.0
    finally:
        process.kill()
        process.join()


def _send(sender: Connection, *arguments: Any) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)  # nbgrader gives no points to a cell that writes to stderr
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    sender.send(judge_cells(*arguments))


def judge_cells(id: str, cells: list[str], passed: set[str], folder: str) -> tuple[str, float | None]:
    """Judge what the cells define under the exercise's name.

    Args:
        cells: all that have run, in order.
        passed: ids of exercises whose answers are used where this one needs them, in place of the reference.
        folder: where the notebook is, with modules of the learner's.

    Returns:
        (message, points); None for all points.
    """
    sys.path.append(folder)
    exercise = get_exercise(id)
    exercise.load_reference()
    names = new_names()
    loading = run_guarded(lambda: execute(exercise, cells, passed, names), SECONDS)
    if exercise.name not in names:
        why = (
            f"{type(loading.error).__name__}: {loading.error}" if loading.error else "no statement of a cell binds it."
        )
        return f"there is no `{exercise.name}`. {why}", 0.0
    if problem := reference_among(names, exercise):
        return problem, 0.0
    attempt = names[exercise.name]
    with calls_of_reference(exercise, names) as calls:
        outcome, case = judge(replace(exercise, time_limit=SLOWER * exercise.time_limit), attempt)
    if calls:
        return f"{calls[0]} calls the reference of this exercise, or other code of the course that solves it.", 0.0
    share = share_earned(exercise, outcome)
    earned = None if share == 1 else round(exercise.points * share, 2)
    return str(describe(exercise, outcome, case, attempt)), earned


def new_names() -> dict[str, Any]:
    """Those of a new `__main__`, as a kernel's cells have."""
    sys.modules["__main__"] = main = ModuleType("__main__")
    allowed = {name: value for name, value in vars(builtins).items() if name not in NOT_FOR_ANSWERS}
    vars(main)["__builtins__"] = allowed
    return vars(main)


def execute(exercise: Exercise, cells: list[str], passed: set[str], names: dict[str, Any]) -> None:
    """Execute what the answer needs. Other exercises' answers are used where they have passed, as in the kernel."""
    statements = [each for each in statements_of(cells) if each.checks != exercise.id]
    errors = []
    for statement in needed(statements, exercise.name):
        if statement.checks in passed:
            continue
        try:
            if statement.checks:
                names.update(dict.fromkeys(statement.gives, get_exercise(statement.checks).load_reference()))
            else:
                statement.run(names)
        except Exception as error:  # in the kernel it has failed, too
            errors.append(error)
    if errors:
        raise errors[0]


def reference_among(names: dict[str, Any], exercise: Exercise) -> str:
    """A sentence if one of these is the reference, a subclass of it, or made of its code; else "". Other code of the
    course that solves the exercise counts as well."""
    reference, codes = exercise.load_reference(), codes_of_reference(exercise)
    packages = tuple(f"{package}." for package in exercise.solved_by)
    for name, value in names.items():
        kinds = value.__mro__ if isinstance(value, type) else (value, *wrapped_by(value), *type(value).__mro__)
        is_copied = any(
            id(getattr(unwrap(each), "__code__", None)) in codes for kind in kinds for each in functions_of(kind)
        )
        is_theirs = any(
            kind is reference or str(getattr(kind, "__module__", "")).startswith(packages) for kind in kinds
        )
        if is_copied or is_theirs:
            return f"`{name}` is the reference of this exercise, a subclass of it, or made of its code."
    return ""


def wrapped_by(value: Any) -> list[Any]:
    """What a Triton kernel, a `partial` or a decorator's function calls."""
    inner = [vars(value)[name] for name in ("fn", "__wrapped__") if name in getattr(value, "__dict__", {})]
    inner += [value.func] if isinstance(value, partial) else []
    return inner + [deeper for each in inner for deeper in wrapped_by(each)]


@contextmanager
def calls_of_reference(exercise: Exercise, names: dict[str, Any]) -> Iterator[list[str]]:
    """Collect the lines of the learner's code that call the reference, in all threads that start meanwhile."""
    codes = codes_of_reference(exercise)
    folders = tuple(str(Path(LIBRARY, *package.split(".")[1:], "_"))[:-1] for package in exercise.solved_by)
    lines: list[str] = []

    def is_learners(frame: FrameType) -> bool:
        return frame.f_globals is names or not frame.f_code.co_filename.startswith((LIBRARY, *INSTALLED))

    def watch(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        is_theirs = id(code) in codes or (code.co_filename.startswith(folders) and code.co_name != "<module>")
        if event == "call" and is_theirs:
            caller = frame.f_back
            while caller and not is_learners(caller) and not caller.f_code.co_filename.startswith(LIBRARY):
                caller = caller.f_back
            if caller and is_learners(caller):
                lines.append(f"line {caller.f_lineno} of {Path(caller.f_code.co_filename).name}")

    threading.setprofile(watch)
    try:
        yield lines
    finally:
        threading.setprofile(None)


def codes_of_reference(exercise: Exercise) -> set[int]:
    """The identities of its functions' code. Equal code may be typed, on the same lines of a cell."""
    reference: Any = exercise.load_reference()
    functions = [unwrap(each) for each in functions_of(getattr(reference, "fn", reference))]
    codes = [each.__code__ for each in functions if isinstance(each, FunctionType)]
    return {id(code) for code in codes if code.co_filename.startswith(LIBRARY)}
