"""Take out of a lesson the cells that show one thing, and those before them that they need."""

import ast
import symtable
from pathlib import Path

import nbformat


def cells_that_show(notebook: Path, *wanted: set[str]) -> list[str]:
    """The code cells that call all names of a set `wanted`, in order, with the cells before them that they need.

    A cell needs the last cell before it that gives a name it reads. What a cell does to an object that another made is
    not seen:
    a lesson that shows an object after changing it in a cell of its own would be shown the object as it was at first.

    Raises:
        LookupError: no cell calls all names of one of the sets.
    """
    sources = [cell.source for cell in nbformat.read(notebook, as_version=4).cells if cell.cell_type == "code"]
    plain = [_without_magics(source) for source in sources]
    called = [_called(source) for source in plain]
    for names in wanted:
        if not any(names <= calls for calls in called):
            raise LookupError(f"no cell of {notebook.name} calls {' and '.join(sorted(names))}.")
    tables = [symtable.symtable(source, "cell", "exec") for source in plain]
    gives, reads = [_given(table) for table in tables], [_read(table) for table in tables]
    taken = {index for index, calls in enumerate(called) if any(names <= calls for names in wanted)}
    to_do = sorted(taken)
    while to_do:
        index = to_do.pop()
        for name in reads[index]:
            giver = next((earlier for earlier in reversed(range(index)) if name in gives[earlier]), None)
            if giver is not None and giver not in taken:
                taken.add(giver)
                to_do.append(giver)
    return [sources[index] for index in sorted(taken)]


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
