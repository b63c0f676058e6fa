"""The empty package that the capstone begins with, and how a notebook gets the engine in it, as the files are now."""

import importlib
import inspect
import sys
from dataclasses import dataclass
from pathlib import Path

from lessons_lib.conformance import contract
from lessons_lib.conformance.driver import MakeEngine
from lessons_lib.conformance.levels import SIZES

PACKAGE = "my_serving"
METHODS = ("add_request", "step", "abort", "has_unfinished", "stream")


@dataclass(frozen=True)
class Size:
    """One of the three sizes; `methods` are those besides the contract's five: signature -> docstring."""

    what: str
    may_import: str
    methods: dict[str, str]


BLOCK_METHODS = {
    "num_free_blocks(self) -> int": "Blocks that a request could get now.",
    "block_tables(self) -> dict[str, list[int]]": "The blocks of each request that has some, in the order of its "
    "tokens.",
}
ONE_ROW = "the contract and lesson 05's packed row, lessons_lib.attention.packing"
ANY_PART = "any part of lessons_lib; replace them one by one, and judge the engine after each"
CAPSTONE_SIZES = {
    "small": Size("batch slots and ragged packing, no blocks", ONE_ROW, {}),
    "medium": Size("a paged cache, a scheduler, preemption", ANY_PART, BLOCK_METHODS),
    "large": Size("prefix sharing, sampling, a server on top", ANY_PART, BLOCK_METHODS),
}


def template(size: str) -> str:
    """`engine.py` of an empty package: the methods of the contract with their docstrings, and nothing in them."""
    chosen = CAPSTONE_SIZES[size]
    # A method of a protocol has a docstring only.
    methods = [inspect.getsource(getattr(contract.Engine, name)).rstrip() for name in METHODS]
    methods += [f'    def {signature}:\n        """{told}"""' for signature, told in chosen.methods.items()]
    names = [*METHODS, *(signature.split("(")[0] for signature in chosen.methods)]
    body = "\n\n".join(
        f'{method}\n        raise NotImplementedError("{name} isn\'t written yet")'
        for name, method in zip(names, methods)
    )
    return f'''"""My engine, size {size}: {chosen.what}.

It may import {chosen.may_import}.
It has reached its size when it reaches the level `{SIZES[size]}`:

    python -m lessons_lib.conformance {PACKAGE}.engine --size {size}
"""

from collections.abc import Iterator
from typing import Any

import torch

from lessons_lib.conformance.contract import Limits, NewTokens, Params


class Engine:
    """lessons_lib/conformance/contract.py explains Limits, Params and NewTokens."""

    def __init__(self, model: Any, limits: Limits, tokenizer: Any):
        self.model, self.limits, self.tokenizer = model, limits, tokenizer

{body}


def make_engine(model: Any, limits: Limits, tokenizer: Any) -> Engine:
    """The suite calls this: each item gets an engine of its own, with a model of its own."""
    return Engine(model, limits, tokenizer)
'''


def start_capstone(size: str = "small", folder: Path | str = ".") -> str:
    """Make the empty package `my_serving` in a folder, and say what to do first. Files that are there already stay."""
    if size not in CAPSTONE_SIZES:
        raise ValueError(f"no size {size!r}; choose one of {', '.join(CAPSTONE_SIZES)}. Nothing was written.")
    engine = Path(folder, PACKAGE, "engine.py")
    if engine.exists():
        return f"{PACKAGE}/engine.py is there already and stays as it is. To begin anew, rename the folder."
    engine.parent.mkdir(parents=True, exist_ok=True)
    (engine.parent / "__init__.py").touch()
    engine.write_text(template(size), encoding="utf-8")
    chosen = CAPSTONE_SIZES[size]
    return (
        f"Wrote {PACKAGE}/engine.py. Size {size}: {chosen.what}.\nIt may import {chosen.may_import}.\n"
        "Open it in its own tab, write add_request, step and has_unfinished for one request, and judge it."
    )


def engine_of(package: str = PACKAGE, folder: Path | str = ".") -> MakeEngine:
    """The function `make_engine` of a package's engine.py, from its files as they are now; else ValueError."""
    file = Path(folder, package, "engine.py")
    if not file.exists():
        raise ValueError(f"there is no {package}/engine.py in this folder; `start_capstone()` makes one.")
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        del sys.modules[name]
    # A file that changes twice in a second may be taken for the compiled one: none is written.
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    sys.path.insert(0, str(Path(folder).resolve()))
    try:
        importlib.invalidate_caches()
        module = importlib.import_module(f"{package}.engine")
    finally:
        sys.path.pop(0)
        sys.dont_write_bytecode = writes
    if not callable(found := getattr(module, "make_engine", None)):
        raise ValueError(f"{package}/engine.py has no function make_engine(model, limits, tokenizer).")
    make_engine: MakeEngine = found
    return make_engine
