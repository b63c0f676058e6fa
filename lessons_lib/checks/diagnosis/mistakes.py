"""Known mistakes, each written once: the sentence that explains it, and what it changes in the reference's source."""

import ast
import inspect
import itertools
import linecache
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

MARKS = ("~ ", "= ", "- ", "+ ", "< ", "> ")
DOCUMENTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class StalePatch(LookupError):
    """What a mistake changes isn't in the reference any more."""


@dataclass(frozen=True)
class Known:
    """A mistake that learners make.

    Attributes:
        why: the sentence that explains it. `{name}` stands for one of the case's facts; see `Task.facts`.
        patch: lines that say what changes in the reference; see `mistakes`. "" if `answer` makes the mistake.
        answer: an answer in full, where no small change of the reference makes the mistake.
        names: what the patch uses beyond the names of the reference's module.
    """

    why: str
    patch: str = ""
    answer: Any = None
    names: dict[str, Any] = field(default_factory=dict)

    def attempt(self, reference: Any) -> Any:
        """An answer that makes the mistake."""
        return self.answer if self.answer is not None else patched(reference, self.patch, self.names)


def mistakes(text: str, **names: Any) -> list[Known]:
    """Read mistakes. Each is a sentence, on one line or more, and below it what changes in the reference:

    - `~ old => new` changes every place of a piece of a line;
    - `= line` takes the place of the line that begins in the same way: with `return`, or with what is assigned to;
    - `- line` and `+ line` change whole lines. A line of `-` may be the beginning of the reference's, and
      `- first ... last` is all from one line to another. Of `+` lines only the indentation relative to the first one
      counts, and `+ ...` stands for the lines of `-` as they were. `- line => new` does without `+`;
    - `< line => new` puts a new line before one, `> line => new` after it;
    - after `or`, on the same line or the next, another way to make the same mistake follows.

    Args:
        names: what the patches use beyond the names of the reference's module.
    """
    found: list[Known] = []
    why, patch = [], []
    text = re.sub(r"(?m)^or (?=[~=+<>-] )", "or\n", textwrap.dedent(text))
    for line in [*text.strip("\n").split("\n"), ""]:
        is_patch = line[:2] in MARKS
        if patch and not is_patch:
            found.append(Known(" ".join(why), "\n".join(patch), names=names))
            why, patch = ([] if line != "or" else why), []
        if is_patch:
            patch.append(line)
        elif line and line != "or":
            why.append(line.strip())
    return found


@cache
def source_of(function: Any) -> str:
    """The source as it is written, without the docstrings: a patch must not change only those."""
    source = textwrap.dedent(inspect.getsource(function))
    lines = source.split("\n")
    for node in ast.walk(ast.parse(source)):
        has_docstring = isinstance(node, DOCUMENTED) and ast.get_docstring(node)
        if has_docstring and len(node.body) > 1:
            first, last = node.body[0].lineno - 1, node.body[0].end_lineno
            lines[first:last] = [""] * len(lines[first:last])
    return "\n".join(line for line in lines if line.strip())


_numbers = itertools.count()


def patched(reference: Any, patch: str, names: dict[str, Any]) -> Any:
    """The reference with a patch applied, as an object of its own.

    Raises:
        StalePatch: the reference doesn't contain what the patch changes.
    """
    function = getattr(reference, "fn", reference)  # a Triton kernel wraps its function
    source = source_of(function)
    for old, new in changes(patch):
        source = replaced(source, old, new)
    known, file = vars(sys.modules[function.__module__]) | names, f"<mistake {next(_numbers)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)  # Triton reads the source
    exec(compile(source, file, "exec"), known)
    return known[function.__name__]


def changes(patch: str) -> Iterator[tuple[list[str], list[str]] | tuple[str, str]]:
    """(old, new) of each change: two texts, or two lists of lines."""
    old: list[str] = []
    new: list[str] = []
    for line in [*patch.split("\n"), ""]:
        mark, rest = line[:2], line[2:]
        before, arrow, after = rest.partition(" => ")
        if (new and mark != "+ ") or (old and (arrow or mark not in ("+ ", "- "))):
            yield old, new
            old, new = [], []
        if mark == "~ ":
            yield before, after
        elif mark == "- " and arrow:
            yield [before], [after]
        elif mark in ("< ", "> "):
            yield [before], [after, "..."] if mark == "< " else ["...", after]
        elif mark == "= ":
            yield [beginning(rest)], [rest]
        elif mark == "- ":
            old.append(rest)
        elif mark == "+ ":
            new.append(rest)


def end_of(lines: list[str], start: int, wanted: str) -> int:
    """The index behind what a line of `-` stands for, if it begins here; else -1."""
    first, _, last = wanted.strip().partition(" ... ")
    if start >= len(lines) or not (lines[start].strip().startswith(first) or beginning(lines[start].strip()) == first):
        return -1
    if not last:
        return start + 1
    return next((index + 1 for index in range(start, len(lines)) if lines[index].strip().startswith(last)), -1)


def beginning(line: str) -> str:
    """`return`, or what a line assigns to; another line as a whole."""
    found = re.match(r"(return)\b|([\w.\[\], ]+?) [-+*/|&]?= ", line)
    return f"{found[1] or found[2]} =" if found else line


def replaced(source: str, old: list[str] | str, new: list[str] | str) -> str:
    if isinstance(old, str) or isinstance(new, str):
        if old not in source:
            raise StalePatch(f"{old!r} is not in the reference any more:\n{source}")
        return source.replace(str(old), str(new))
    lines = source.split("\n")
    for start in range(len(lines)):
        end = start
        for each in old:
            end = end_of(lines, end, each) if end >= 0 else -1
        if end > start:
            indent = lines[start][: len(lines[start]) - len(lines[start].lstrip())]
            inserted = [
                each
                for line in textwrap.dedent("\n".join(new or ["pass"])).split("\n")
                for each in (lines[start:end] if line == "..." else [indent + line])
            ]
            return "\n".join([*lines[:start], *inserted, *lines[end:]])
    raise StalePatch("\n".join(["these lines are not in the reference any more:", *old, "It is:", source]))
