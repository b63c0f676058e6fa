"""`python -m tools.code_size`: how many lines of code the engine has, without docstrings, comments and blank lines.

A row counts every module of `lessons_lib` that an import pulls in: what is imported at the top of a module, of the
modules named there, and of those that they name. A package's `__init__` only passes names on and is left out.
"""

import argparse
import ast
import io
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
ENTRIES = {
    "LLMEngine": "lessons_lib.engine.llm_engine",
    "OverlappedEngine and its GPU runner": "lessons_lib.engine.overlapped_engine",
}


def path_of(module: str) -> Path | None:
    """The file of a module, None if there is none or if it is a package."""
    path = ROOT / (module.replace(".", "/") + ".py")
    return path if path.is_file() else None


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
    """Lines with at least one token of code. A line inside a docstring doesn't count; one inside any other string
    does.
    """
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstring_lines(ast.parse(source)))


def imported_modules(source: str) -> set[str]:
    """Modules of `lessons_lib` that are imported at the top level of a module."""
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


def closure(entry: str) -> dict[str, int]:
    """Every module that importing `entry` pulls in -> its lines of code.

    Raises:
        ValueError: there is no such module.
    """
    sizes: dict[str, int] = {}
    found = [entry]
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


def table() -> str:
    """A row for each module, a column for each entry, and the sums."""
    closures = {name: closure(entry) for name, entry in ENTRIES.items()}
    modules = sorted(set().union(*closures.values()))
    width = max(map(len, modules))
    rows = [f"{'lines of code':{width}}  " + "  ".join(closures)]
    for module in modules:
        cells = (f"{sizes.get(module, ''):>{len(name)}}" for name, sizes in closures.items())
        rows.append(f"{module:{width}}  " + "  ".join(cells))
    totals = (f"{sum(sizes.values()):>{len(name)},}" for name, sizes in closures.items())
    return "\n".join([*rows, f"{'total':{width}}  " + "  ".join(totals)])


def main() -> None:
    argparse.ArgumentParser(prog="python -m tools.code_size", description=__doc__.splitlines()[0]).parse_args()
    print(table())


if __name__ == "__main__":
    main()
