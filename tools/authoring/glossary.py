"""notebooks/glossary.md, made from the definitions in the lessons.

A lesson defines a term in a quoted paragraph that begins with it: `> **prefill**: computing all tokens of ...`.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from tools.authoring.errors import BuildError

DEFINITION = re.compile(r"^> \*\*(?P<term>[^*]+)\*\*: (?P<text>.+(?:\n> (?!\*\*).+)*)", re.MULTILINE)


@dataclass(frozen=True)
class Definition:
    term: str
    text: str
    lesson: str


def definitions(lessons: list[Path]) -> list[Definition]:
    """The definitions of all lessons, in alphabetical order; BuildError if a term is defined twice."""
    found: dict[str, Definition] = {}
    for path in lessons:
        for match in DEFINITION.finditer(path.read_text(encoding="utf-8")):
            definition = Definition(match["term"], match["text"].replace("\n> ", " "), path.stem)
            earlier = found.setdefault(definition.term.lower(), definition)
            if earlier is not definition:
                raise BuildError(
                    f"{path.name}: {definition.term!r} is defined in {earlier.lesson} already. Use it here without "
                    "defining it again."
                )
    return [found[term] for term in sorted(found)]


def glossary(lessons: list[Path]) -> str:
    """The page, in Markdown."""
    lines = ["# Glossary", "", "Every term of the course, and the lesson that defines it.", ""]
    for definition in definitions(lessons):
        lines.append(
            f"- **{definition.term}**: {definition.text} ([{definition.lesson[:2]}]({definition.lesson}.ipynb))"
        )
    return "\n".join(lines) + "\n"
