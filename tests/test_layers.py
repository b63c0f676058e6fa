"""Which package may import which: the layers of pyproject.toml, and no import circle anywhere in the library."""

from graphlib import TopologicalSorter
from pathlib import Path

import grimp
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

ROOT = Path(__file__).parents[1]


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
    imported_by = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imported_by).prepare()  # raises CycleError, which names a circle
