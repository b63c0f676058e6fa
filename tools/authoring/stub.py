"""Reference code taken from the library by name, with its bodies marked as solution.

Everything works on source text and its syntax tree, never on the imported object: comments stay, and decorators
that replace the function (`functools.cache`, `triton.jit`) make no difference.
"""

import ast
import builtins
import importlib.util
import io
import symtable
import tokenize
from dataclasses import dataclass
from pathlib import Path

from tools.authoring.errors import BuildError

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Reference:
    """The source of one function or class of the library.

    Attributes:
        module, name: where it is defined.
        source: its text, from the first decorator to the last line of its body.
        needs: names it uses that its own module defines or imports: {name: an import that provides it}.
    """

    module: str
    name: str
    source: str
    needs: dict[str, str]


def find_reference(target: str) -> Reference:
    """Read "package.module:name" from the module's file.

    Raises:
        BuildError: no such module, or it has no single top-level function or class of that name.
    """
    module, _, name = target.partition(":")
    text = _module_text(module, target)
    tree = ast.parse(text)
    found = [node for node in tree.body if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and node.name == name]
    if len(found) != 1:
        defined = [node.name for node in tree.body if isinstance(node, (*FUNCTIONS, ast.ClassDef))]
        raise BuildError(
            f"reference {target!r}: {module} defines {len(found)} functions or classes named {name!r} at its top "
            f"level, and must define one. It has: {', '.join(defined) or 'none'}."
        )
    lines = text.splitlines()
    first = min([found[0].lineno, *(decorator.lineno for decorator in found[0].decorator_list)])
    source = "\n".join(lines[first - 1 : _last_line(lines, found[0])])
    return Reference(module, name, source, _needs(source, module, name, tree))


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
    """Put the markers around one body, in place. Lines are numbered from 1 in the tree."""
    end = _last_line(lines, function)
    header_line, colon = _header_end(lines, function)
    if function.body[0].lineno == header_line:
        # A body on its signature's line moves to a separate line.
        indent = " " * (function.col_offset + 4)
        header, rest = lines[header_line - 1][: colon + 1], lines[header_line - 1][colon + 1 :].strip()
        lines[header_line - 1 : end] = [header, indent + BEGIN, indent + rest, *lines[header_line:end], indent + END]
        return
    indent = " " * function.body[0].col_offset
    start = function.body[0].end_lineno + 1 if _has_docstring(function) else header_line + 1
    while not lines[start - 1].strip():
        start += 1
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


def _header_end(lines: list[str], function: ast.FunctionDef) -> tuple[int, int]:
    """Line and column of the colon that ends the signature: the first one outside all brackets."""
    text = "\n".join(lines[function.lineno - 1 : function.end_lineno]) + "\n"
    depth = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.string in ("(", "[", "{"):
            depth += 1
        elif token.string in (")", "]", "}"):
            depth -= 1
        elif token.string == ":" and depth == 0:
            return function.lineno + token.start[0] - 1, token.start[1]
    raise AssertionError("a function has a colon")


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


def _needs(source: str, module: str, name: str, tree: ast.Module) -> dict[str, str]:
    """The module's own names that the source uses, each with an import that provides it."""
    origin = {}
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                origin[alias.asname or alias.name.split(".")[0]] = ast.unparse(node)
        elif isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            origin[node.name] = f"from {module} import {node.name}"
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for part in ast.walk(target):
                    if isinstance(part, ast.Name):
                        origin[part.id] = f"from {module} import {part.id}"
    used = _global_names(symtable.symtable(source, name, "exec"))
    return {used_name: origin[used_name] for used_name in sorted(used) if used_name in origin and used_name != name}


def _global_names(table: symtable.SymbolTable) -> set[str]:
    names = {
        symbol.get_name()
        for symbol in table.get_symbols()
        if symbol.is_referenced()
        and not hasattr(builtins, symbol.get_name())
        and (symbol.is_global() if table.get_type() != "module" else not symbol.is_assigned())
    }
    return names.union(*(_global_names(child) for child in table.get_children()))
