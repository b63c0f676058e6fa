"""The statements of a notebook that a name depends on: what a graded run executes again, and nothing else."""

import ast
import copy
import linecache
import symtable
from dataclasses import dataclass, replace
from typing import Any

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
BINDINGS = (*DEFINITIONS, ast.Assign, ast.AnnAssign, ast.Import, ast.ImportFrom)  # what they bind, they bind for sure


@dataclass(frozen=True)
class Statement:
    """A top-level statement of a cell.

    Attributes:
        file: the cell's name in tracebacks.
        gives: names that it binds.
        changes: names whose objects it changes in place, as in `table[3] = 4` and `table.append(4)`.
        reads: names that it looks up among the globals, now or once a function in it is called.
        checks: the exercise's id, if it is `name = check("03.1", name)`.
    """

    node: Any
    file: str
    gives: frozenset[str]
    changes: frozenset[str]
    reads: frozenset[str]
    checks: str = ""

    def run(self, names: dict[str, Any]) -> None:
        exec(compile(ast.Module([self.node], []), self.file, "exec"), names)


def statements_of(cells: list[str]) -> list[Statement]:
    """The statements of all cells in order. A cell with a syntax error has none."""
    return [
        _statement(node, f"<your cell {number}>")
        for number, cell in enumerate(cells)
        for node in _parsed(cell, f"<your cell {number}>")
    ]


def needed(statements: list[Statement], name: str) -> list[Statement]:
    """Those that `name` needs, in order; of an import only what is needed of it."""
    taken: dict[int, set[str]] = {index: {"*"} for index, each in enumerate(statements) if "*" in each.gives}
    wanted, done = [(name, len(statements))], set()
    while wanted:
        if (each := wanted.pop()) in done:
            continue
        done.add(each)
        for index in _givers(statements, *each):
            taken.setdefault(index, set()).add(each[0])
            for read in statements[index].reads:
                wanted += [(read, index), (read, len(statements))]  # now, and when a function is called later
    return [_narrowed(statements[index], names) for index, names in sorted(taken.items())]


def _givers(statements: list[Statement], name: str, before: int) -> list[int]:
    """What last bound a name before a statement, and what has changed its object since."""
    changes: list[int] = []
    for index in reversed(range(before)):
        each = statements[index]
        if name in each.gives:
            if isinstance(each.node, (ast.Import, ast.ImportFrom)):
                return [index]  # a library stays as it is, whatever a cell would change in it
            changes.append(index)
            if isinstance(each.node, BINDINGS):
                return changes
        elif name in each.changes:
            changes.append(index)
    return [index for index in changes if name in statements[index].gives]


def _narrowed(statement: Statement, names: set[str]) -> Statement:
    node = statement.node
    if not isinstance(node, (ast.Import, ast.ImportFrom)):
        return statement
    node = copy.copy(node)
    node.names = [alias for alias in node.names if _bound_by(alias) in names]
    return replace(statement, node=node)


def _bound_by(alias: ast.alias) -> str:
    return alias.asname or alias.name.split(".")[0]


def _parsed(cell: str, file: str) -> list[ast.stmt]:
    linecache.cache[file] = len(cell), None, cell.splitlines(keepends=True), file  # for tracebacks, and for Triton
    try:
        body = ast.parse(cell, file).body
    except (SyntaxError, ValueError):
        return []
    if len(body) == 1 and (inner := _below_magic(body[0])):
        return _parsed("\n" + inner, file)  # on the lines that it has in the cell
    return body


def _below_magic(node: ast.stmt) -> str:
    """The code below `%%time`, which IPython makes `get_ipython().run_cell_magic("time", "", code)`."""
    call = getattr(node, "value", None)
    if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "run_cell_magic" and len(call.args) == 3:
        return str(getattr(call.args[2], "value", ""))
    return ""


def _statement(node: ast.stmt, file: str) -> Statement:
    table = symtable.symtable(ast.unparse(node), file, "exec")
    given = {each.get_name() for each in table.get_symbols() if each.is_assigned() or each.is_imported()}
    if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
        given = {"*"}
    checked = _checked(node)
    reads = given if checked else _read(table)
    return Statement(node, file, frozenset(given), frozenset(_changed(node)), frozenset(reads), checked)


def _read(table: symtable.SymbolTable) -> set[str]:
    is_module = table.get_type() == "module"
    symbols = [each for each in table.get_symbols() if each.is_referenced() and (is_module or each.is_global())]
    found = {each.get_name() for each in symbols}
    return found.union(*map(_read, table.get_children()))


def _changed(node: ast.AST) -> set[str]:
    """Roots of what is assigned to, deleted from, or called as a method, outside functions and classes."""
    if isinstance(node, DEFINITIONS):
        return set()
    found = set().union(*map(_changed, ast.iter_child_nodes(node)))
    is_target = isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load)
    is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    root: Any = node.value.func if is_call else node if is_target else None  # type: ignore[attr-defined]
    while isinstance(root, (ast.Attribute, ast.Subscript, ast.Call)):
        root = root.func if isinstance(root, ast.Call) else root.value
        if isinstance(root, ast.Name):
            found.add(root.id)
    return found


def _checked(node: ast.stmt) -> str:
    call = getattr(node, "value", None)
    if isinstance(node, ast.Assign) and isinstance(call, ast.Call) and getattr(call.func, "id", "") == "check":
        return str(getattr(call.args[0], "value", "")) if call.args else ""
    return ""
