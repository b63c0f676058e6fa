"""Count lines of code, without docstrings, comments and blank lines: of a text, or of a module and all its imports."""

import ast
import io
import tokenize
from pathlib import Path

import lessons_lib

ROOT = Path(lessons_lib.__file__).resolve().parent.parent

LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def docstring_lines(tree: ast.Module) -> set[int]:
    """The line numbers of all docstrings, counted from 1."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                lines.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def code_lines(source: str) -> int:
    """Count lines with at least one token of code. Docstrings don't count; other strings do."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstring_lines(ast.parse(source)))


def path_of(module: str) -> Path | None:
    """The file of a module; None if there is none or it is a package."""
    path = ROOT / (module.replace(".", "/") + ".py")
    return path if path.is_file() else None


def imported_modules(source: str) -> set[str]:
    """Modules of `lessons_lib` imported at a module's top level."""
    modules: set[str] = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        modules |= {name for name in names if name.startswith("lessons_lib.") and path_of(name)}
    return modules


def closure(*entries: str) -> dict[str, int]:
    """Map each module that the entries import, directly or not, to its lines of code; ValueError if there is none."""
    sizes: dict[str, int] = {}
    found = list(entries)
    while found:
        module = found.pop()
        if module in sizes:
            continue
        path = path_of(module)
        if path is None:
            raise ValueError(f"there is no module {module!r} under {ROOT}.")
        source = path.read_text(encoding="utf-8")
        sizes[module] = code_lines(source)
        found += imported_modules(source)
    return sizes
