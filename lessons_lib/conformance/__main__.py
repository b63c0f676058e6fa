"""Judges an engine: `python -m lessons_lib.conformance my_serving.engine:make_engine --size small`.

`make_engine(model, limits, tokenizer)` returns an engine that keeps the contract in
`lessons_lib/conformance/contract.py`. The command tries each item of the levels up to the
size, explains what is broken, and ends with the levels reached.
"""

import argparse
import importlib
import os
import sys
import time

from lessons_lib.conformance.driver import MakeEngine
from lessons_lib.conformance.items import Level
from lessons_lib.conformance.levels import LEVELS, SIZES, levels_up_to
from lessons_lib.conformance.report import judge


def find(target: str) -> MakeEngine:
    """The function that "module:name" names; ValueError if there is none."""
    module_name, _, name = target.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ValueError(f"no module {error.name!r}; run this in the folder that contains it.") from error
    found = getattr(module, name or "make_engine", None)
    if not callable(found):
        raise ValueError(f"{module_name} has no function {name or 'make_engine'!r}; name it as module:function.")
    make_engine: MakeEngine = found
    return make_engine


def main(arguments: list[str] | None = None) -> int:
    levels = ", ".join(level.name for level in LEVELS)
    parser = argparse.ArgumentParser(
        prog="python -m lessons_lib.conformance", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("engine", metavar="module:make_engine", help="function (model, limits, tokenizer) -> engine")
    parser.add_argument("--size", default="large", help=f"{', '.join(SIZES)}, or a level: {levels}")
    parser.add_argument("--only", default="", help="the item of this name, or else items whose name contains it")
    parser.add_argument("--seconds", type=float, default=60.0, help="an item that computes longer is broken")
    options = parser.parse_args(arguments)
    try:
        make_engine, wanted = find(options.engine), levels_up_to(options.size)
    except ValueError as error:
        parser.error(str(error))
    if options.only:
        names = [item.name for level in wanted for item in level.items]
        chosen = {name for name in names if options.only == name} or {name for name in names if options.only in name}
        wanted = [Level(each.name, each.title, [i for i in each.items if i.name in chosen]) for each in wanted]
    began = time.monotonic()
    report = judge(make_engine, wanted, lambda verdict: print(verdict, flush=True), options.seconds)
    reached = report.reached
    sizes = [size for size, last in SIZES.items() if last in reached]
    print(f"\n{len(report.broken)} broken, in {time.monotonic() - began:.0f} s.")
    print(f"Levels reached: {', '.join(reached) or 'none yet'}{f' (size: {sizes[-1]})' if sizes else ''}.")
    return int(bool(report.broken) or not report.held)  # an engine that offers nothing has passed nothing


if __name__ == "__main__":
    sys.exit(main())
