"""Which package may import which: the layers of pyproject.toml, and no import circle anywhere in the library."""

from pathlib import Path

import grimp
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

ROOT = Path(__file__).parents[1]


def circles(imported_by: dict[str, set[str]]) -> list[list[str]]:
    """Modules that import one another, directly or through others: the strongly connected components (Tarjan 1972)."""
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(module: str) -> None:
        index[module] = lowest[module] = len(index)
        stack.append(module)
        for other in imported_by[module]:
            if other not in index:
                visit(other)
            if other in stack:
                lowest[module] = min(lowest[module], lowest[other])
        if lowest[module] == index[module]:
            start = stack.index(module)
            component = stack[start:]
            del stack[start:]
            if len(component) > 1:
                found.append(sorted(component))

    for module in imported_by:
        if module not in index:
            visit(module)
    return found


def test_the_layers_hold(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    # It would turn off all loggers that exist, for the tests that follow in this process.
    monkeypatch.setattr("importlinter.cli.logging_config.dictConfig", lambda config: None)
    status = lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True)
    assert status == EXIT_STATUS_SUCCESS, capsys.readouterr().out


def test_no_module_imports_itself_through_others():
    # Imports for annotations count: two modules that know each other's types aren't two.
    graph = grimp.build_graph("lessons_lib", exclude_type_checking_imports=False, cache_dir=None)
    assert len(graph.modules) > 100
    found = circles({module: graph.find_modules_directly_imported_by(module) for module in graph.modules})
    assert found == []


def test_circles_are_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == [["b", "c"]]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
