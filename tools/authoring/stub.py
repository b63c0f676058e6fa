"""Reference code taken from the library by name, with its bodies marked as solution.

Everything works on source text and its syntax tree, never on the imported object: comments stay, and decorators
that replace the function (`functools.cache`, `triton.jit`) make no difference.
"""

import ast
import importlib.util
from pathlib import Path

from tools.authoring.errors import BuildError

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def find_reference(target: str) -> str:
    """The source of "package.module:name", from the first decorator to the last line of its body.

    Raises:
        BuildError: no such module, or it has no single top-level function or class of that name.
    """
    module, _, name = target.partition(":")
    text = _module_text(module, target)
    definitions = [node for node in ast.parse(text).body if isinstance(node, (*FUNCTIONS, ast.ClassDef))]
    found = [node for node in definitions if node.name == name]
    if len(found) != 1:
        defined = [node.name for node in definitions]
        raise BuildError(
            f"reference {target!r}: {module} defines {len(found)} functions or classes named {name!r} at its top "
            f"level, and must define one. It has: {', '.join(defined) or 'none'}."
        )
    lines = text.splitlines()
    first = min([found[0].lineno, *(decorator.lineno for decorator in found[0].decorator_list)])
    return "\n".join(lines[first - 1 : _last_line(lines, found[0])])


def mark_solution(source: str, given: tuple[str, ...] = ()) -> str:
    """Put each function body, after its docstring, between BEGIN and END SOLUTION.

    A method named in `given` stays visible, and so does a body of only `...` or `pass`. Functions inside functions
    belong to the outer body.

    Raises:
        BuildError: `given` names a method that is not there, or nothing is left to write.
    """
    lines = source.splitlines()
    functions = list(_outermost_functions(ast.parse(source)))
    unknown = sorted(set(given) - {function.name for function in functions})
    if unknown:
        names = ", ".join(function.name for function in functions)
        raise BuildError(f"given={' '.join(unknown)!r} names no method of this code. It has: {names}.")
    hidden = [function for function in functions if function.name not in given and not _is_empty(function)]
    if not hidden:
        raise BuildError("no function body is left for the learner to write. Name fewer methods in `given`.")
    for function in reversed(hidden):
        _mark(lines, function)
    return "\n".join(lines)


def _mark(lines: list[str], function: ast.FunctionDef) -> None:
    """Put the markers around one body, in place, with the comments above its first statement."""
    end, indent = _last_line(lines, function), " " * function.body[0].col_offset
    start = function.body[0].lineno  # counted from 1, as in the tree
    if _has_docstring(function):
        start = function.body[0].end_lineno + 1
        while not lines[start - 1].strip():
            start += 1
    while lines[start - 2].lstrip().startswith("#"):
        start -= 1
    lines[start - 1 : end] = [indent + BEGIN, *lines[start - 1 : end], indent + END]


def _outermost_functions(node: ast.AST):
    for child in ast.iter_child_nodes(node):
        if isinstance(child, FUNCTIONS):
            yield child
        elif isinstance(child, ast.stmt):
            yield from _outermost_functions(child)


def _has_docstring(function: ast.FunctionDef) -> bool:
    return ast.get_docstring(function, clean=False) is not None


def _is_empty(function: ast.FunctionDef) -> bool:
    body = function.body[1:] if _has_docstring(function) else function.body
    return all(ast.unparse(statement) in ("pass", "...") for statement in body)


def _last_line(lines: list[str], node: ast.stmt) -> int:
    """The last line of a definition, including comments at the end of its body, which the tree doesn't contain."""
    last = node.end_lineno
    for number, line in enumerate(lines[last:], start=last + 1):
        text = line.lstrip()
        if text.startswith("#") and len(line) - len(text) > node.col_offset:
            last = number
        elif text:
            break
    return last


def _module_text(module: str, target: str) -> str:
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.origin is None:
        raise BuildError(f"reference {target!r}: there is no module {module!r}. Correct `reference` of the exercise.")
    return Path(spec.origin).read_text(encoding="utf-8")
