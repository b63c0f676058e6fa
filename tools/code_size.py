"""`python -m tools.code_size`: how many lines of code the engine has, without docstrings, comments and blank lines.

A column counts every module of `lessons_lib` that imports pull in: what is imported at the top of a module, of the
modules named there, and of those that they name. A package's `__init__` only passes names on and is left out.
"""

import argparse

from lessons_lib.measuring.code_lines import closure

ENTRIES = {
    "LLMEngine": ("lessons_lib.engine.llm_engine",),
    "and its GPU runner": ("lessons_lib.engine.llm_engine", "lessons_lib.engine.gpu_model_runner"),
}


def table() -> str:
    """A row for each module, a column for each entry, and the sums."""
    closures = {name: closure(*entries) for name, entries in ENTRIES.items()}
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
