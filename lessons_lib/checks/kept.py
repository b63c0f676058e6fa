"""The learner's answers: the source of each, kept when its check passes.

The folder is `work` next to the progress file, or the path in the environment variable LESSONS_WORK. `my_engine` builds
an engine from what is in it. If the folder is lost, run the cells with the answers and their checks again.
"""

import ast
import linecache
import os
import symtable
import sys
from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.progress import progress_file

CONSTANTS = (bool, int, float, complex, str, bytes, tuple, frozenset, type(None))


class NoSource(LookupError):
    """The source of an answer can't be found, so it can't be kept."""


def work_folder() -> Path:
    return Path(os.environ.get("LESSONS_WORK") or progress_file().parent / "work")


def kept_file(exercise: Exercise) -> Path:
    """Such as work/03.1_BlockPool.py. If an exercise changes its number, its old answers are not found under the new
    one."""
    return work_folder() / f"{exercise.id}_{exercise.name}.py"


def kept_answer(exercise: Exercise) -> str | None:
    """The source of the answer that passed last; None if there is none."""
    try:
        return kept_file(exercise).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


def keep(exercise: Exercise, answer: object) -> None:
    """Keep an answer that has passed its check. If its source can't be found or written, the lesson goes on without."""
    try:
        source = standalone_source(answer, exercise.name)
        path = kept_file(exercise)
        path.parent.mkdir(exist_ok=True)
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        draft.write_text(f"# Your answer to exercise {exercise.id}.\n{source}", encoding="utf-8")
        draft.replace(path)
    except Exception:  # a check must not fail because of what comes behind it
        pass


def standalone_source(answer: Any, name: str) -> str:
    """The source of a function or class, behind all that it needs: imports, constants, and functions of other cells.

    Args:
        answer: defined at the top level of a cell or a file, with `def` or `class`.
        name: what the source must define.

    Raises:
        NoSource: the answer, or something that it uses, was made in another way.
    """
    imports: set[str] = set()
    definitions: dict[str, str] = {}
    _collect(getattr(answer, "fn", answer), name, imports, definitions)  # a Triton kernel wraps its function
    return "\n".join(sorted(imports)) + "\n\n\n" + "\n\n\n".join(definitions.values()) + "\n"


def _collect(value: Any, name: str, imports: set[str], definitions: dict[str, str]) -> None:
    source, names = _definition(value)
    definitions[name] = ""  # it is being collected; it may use itself
    for used in _global_names(symtable.symtable(source, name, "exec")):
        if used in names and used not in (name, value.__name__) and used not in definitions:
            other = names[used]
            if statement := _import_of(used, other):
                imports.add(statement)
            elif isinstance(other, (FunctionType, type)):
                _collect(other, used, imports, definitions)
            elif isinstance(other, CONSTANTS):
                definitions[used] = f"{used} = {_literal(other)}"
    del definitions[name]
    alias = "" if value.__name__ == name else f"\n\n\n{name} = {value.__name__}"
    definitions[name] = source + alias


def _literal(value: Any) -> str:
    is_plain = not isinstance(value, float) or isfinite(value)
    return repr(value) if is_plain else f'float("{value}")'


def _definition(value: Any) -> tuple[str, dict[str, Any]]:
    """The source of a function or class, and the globals that it uses."""
    for function in functions_of(value):
        text = "".join(linecache.getlines(function.__code__.co_filename))
        if (node := _top_level(text, value.__name__, function.__code__)) is not None:
            return _lines(text, node), function.__globals__
    raise NoSource(f"the source of {value!r} isn't a `def` or `class` at the top level of a cell.")


def functions_of(value: Any) -> Iterator[FunctionType]:
    for each in [value, *(vars(value).values() if isinstance(value, type) else ())]:
        function = getattr(each, "fget", None) or getattr(each, "__func__", None) or each
        if isinstance(function, FunctionType):
            yield function


def _top_level(text: str, name: str, code: CodeType) -> ast.FunctionDef | ast.ClassDef | None:
    """The definition of this name that holds the code."""
    try:
        body = ast.parse(text).body
    except SyntaxError:
        return None
    for node in body:
        is_named = isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name
        if is_named and _first_line(node) <= code.co_firstlineno <= (node.end_lineno or 0):
            return node
    return None


def _first_line(node: ast.FunctionDef | ast.ClassDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _lines(text: str, node: ast.FunctionDef | ast.ClassDef) -> str:
    return "\n".join(text.splitlines()[_first_line(node) - 1 : node.end_lineno])


def _global_names(table: symtable.SymbolTable) -> list[str]:
    """What a definition looks up among the globals, sorted."""
    is_module = table.get_type() == "module"
    found = {
        symbol.get_name()
        for symbol in table.get_symbols()
        if symbol.is_referenced() and (not symbol.is_assigned() if is_module else symbol.is_global())
    }
    return sorted(found.union(*map(_global_names, table.get_children())))


def _import_of(name: str, value: Any) -> str | None:
    """The statement that imports a value under a name; None if nothing can be imported."""
    if isinstance(value, ModuleType):
        return f"import {value.__name__}" if value.__name__ == name else f"import {value.__name__} as {name}"
    module, own_name = getattr(value, "__module__", None), getattr(value, "__name__", None)
    if not isinstance(module, str) or not isinstance(own_name, str) or module == "__main__":
        return None
    if getattr(sys.modules.get(module), own_name, None) is not value:
        return None
    return f"from {module} import {own_name}" + ("" if own_name == name else f" as {name}")
