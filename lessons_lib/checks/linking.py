"""Define parts of the engine once more, over other functions and classes. What is defined already stays as it is.

`SchedulerBase` calls `share_budget`, and `PreemptiveScheduler` is a subclass of it. To run an engine with another
`share_budget`, we execute the source of `SchedulerBase` once more, in a copy of its module's names where `share_budget`
is the other one, then that of `PreemptiveScheduler`, and so on up to `LLMEngine`. No module changes, so engines with
different parts can run side by side.
"""

import ast
import importlib
import linecache
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Link:
    """A function or class of the engine.

    Attributes:
        target: "module:name".
        stand_in: "module:name" of what takes its place as soon as something that the stand-in uses is replaced. For
            exercises that the engine doesn't call in the form in which they are written.
    """

    target: str
    stand_in: str = ""


@dataclass
class Linked:
    """What was defined once more.

    Attributes:
        made: id of the original -> (original, what is used in its place).
    """

    made: dict[int, tuple[Any, Any]] = field(default_factory=dict)

    def get(self, original: Any) -> Any:
        """What is used in place of a function or class: itself, if it wasn't replaced."""
        return self.made.get(id(original), (None, original))[1]

    def replace_in(self, names: dict[str, Any]) -> None:
        names.update({name: self.get(value) for name, value in names.items() if id(value) in self.made})


def link(links: Iterable[Link], answers: Mapping[str, str]) -> Linked:
    """Replace what has an answer, and define again whatever uses something that was replaced.

    Args:
        links: each behind those that it uses.
        answers: "module:name" -> the source of a module that defines this name.

    Raises:
        Exception: an answer can't be executed, whatever it raises.
    """
    linked = Linked()
    for each in links:
        original = load(each.target)
        source = each.stand_in or each.target
        if each.target in answers:
            made = executed_answer(each.target, answers[each.target], linked)
        elif any(id(value) in linked.made for value in used_by(source)):
            made = _executed(source, [definition(source)], module_file(source), linked)
        else:
            continue
        linked.made[id(original)] = original, made
    return linked


def executed_answer(target: str, source: str, linked: Linked | None = None) -> Any:
    """What an answer defines. It finds the names of the reference's module, and those that it imports."""
    filename = f"<your {target.partition(':')[2]}, {hash(source):x}>"
    linecache.cache[filename] = len(source), None, source.splitlines(keepends=True), filename  # for tracebacks
    return _executed(target, ast.parse(source, filename).body, filename, linked or Linked())


def load(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


@cache
def module_file(target: str) -> str:
    return str(importlib.import_module(target.partition(":")[0]).__file__)


@cache
def definition(target: str) -> ast.stmt:
    """The `def` or `class` in its module's file."""
    name, body = target.partition(":")[2], ast.parse(Path(module_file(target)).read_text(encoding="utf-8")).body
    return next(node for node in body if getattr(node, "name", None) == name)


def used_by(target: str) -> list[Any]:
    """What the names in a definition stand for in its module."""
    names = vars(importlib.import_module(target.partition(":")[0]))
    found = {node.id for node in ast.walk(definition(target)) if isinstance(node, ast.Name)}
    return [names[name] for name in found if name in names]


def _executed(target: str, statements: list[ast.stmt], filename: str, linked: Linked) -> Any:
    module, _, name = target.partition(":")
    names = dict(vars(importlib.import_module(module)))
    linked.replace_in(names)
    for statement in statements:
        exec(compile(ast.Module([statement], []), filename, "exec"), names)
        linked.replace_in(names)  # an import brings originals
    return names[name]
