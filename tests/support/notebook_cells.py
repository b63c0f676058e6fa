"""Take out of a lesson the cells that a test is about, and those before them that they need."""

import ast
import symtable
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from tools.authoring.assemble import is_measured


def cells_that_show(notebook: Path, *wanted: set[str]) -> list[str]:
    """The code cells that call all names of a set `wanted`, in order, with the cells before them that they need.

    Raises:
        LookupError: no cell calls all names of one of the sets.
    """
    sources = [cell.source for cell in nbformat.read(notebook, as_version=4).cells if cell.cell_type == "code"]
    called = [_called(_without_magics(source)) for source in sources]
    for names in wanted:
        if not any(names <= calls for calls in called):
            raise LookupError(f"no cell of {notebook.name} calls {' and '.join(sorted(names))}.")
    taken = {index for index, calls in enumerate(called) if any(names <= calls for names in wanted)}
    return [sources[index] for index in sorted(_with_needs(taken, _needs(sources)))]


def graded_cells(notebook: NotebookNode) -> set[str]:
    """Ids of the checks, the exercises, and the cells that these need."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    checks = {index for index, cell in enumerate(cells) if cell.id.startswith("check-")}
    return {cells[index].id for index in _with_needs(checks, _needs([cell.source for cell in cells]))}


def cells_that_read_answers(notebook: NotebookNode, asking: set[str] = frozenset()) -> set[str]:
    """Ids of the exercises, of the checks, of the cells that read an exercise before its check, and of the cells that
    all these need. After its check a name stands for the reference.

    Args:
        asking: names of functions that know by themselves what has been answered: cells that read one are taken too.
    """
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    sources = [cell.source for cell in cells]
    needs = _needs(sources)
    exercises = {index for index, cell in enumerate(cells) if cell.id.startswith("ex-")}
    taken = exercises | {index for index, cell in enumerate(cells) if cell.id.startswith("check-")}
    for index, source in enumerate(sources):
        if needs[index] & exercises or asking & _read(_table(source)):
            taken.add(index)
    return {cells[index].id for index in _with_needs(taken, needs)}


def cells_that_only_measure(notebook: NotebookNode) -> set[str]:
    """Ids of the measured cells that no other cell needs: no output that is compared depends on them."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    compared = {index for index, cell in enumerate(cells) if not is_measured(cell)}
    needed = _with_needs(compared, _needs([cell.source for cell in cells]))
    return {cell.id for index, cell in enumerate(cells) if index not in needed}


def _needs(sources: list[str]) -> list[set[int]]:
    """For each cell, the cells that it needs itself: the last before it that gives a name which it reads.

    What a cell does to an object that another made is not seen: a lesson that shows an object after changing it in a
    cell of its own would be shown the object as it was at first.
    """
    last_giver: dict[str, int] = {}
    needs = []
    for index, source in enumerate(sources):
        table = _table(source)
        needs.append({last_giver[name] for name in _read(table) if name in last_giver})
        last_giver.update(dict.fromkeys(_given(table), index))
    return needs


def _with_needs(taken: set[int], needs: list[set[int]]) -> set[int]:
    found, to_do = set(taken), list(taken)
    while to_do:
        new = needs[to_do.pop()] - found
        found |= new
        to_do += new
    return found


def _table(source: str) -> symtable.SymbolTable:
    return symtable.symtable(_without_magics(source), "cell", "exec")


def _without_magics(source: str) -> str:
    return "\n".join("pass" if line.startswith(("%", "!")) else line for line in source.split("\n"))


def _called(source: str) -> set[str]:
    return {
        node.func.id
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }


def _given(cell: symtable.SymbolTable) -> set[str]:
    """Names that the cell defines, assigns or imports."""
    return {
        symbol.get_name()
        for symbol in cell.get_symbols()
        if symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()
    }


def _read(cell: symtable.SymbolTable) -> set[str]:
    """Names that the cell, or a function in it, looks up among the globals."""
    found = {symbol.get_name() for symbol in cell.get_symbols() if symbol.is_referenced()}
    inner = list(cell.get_children())
    while inner:
        table = inner.pop()
        found |= {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global()}
        inner += table.get_children()
    return found
