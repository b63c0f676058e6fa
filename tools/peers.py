"""`python -m tools.peers`: what the tests of other engines check, and which test here holds it, as a table.

The behaviors are data in `tests/peers/behaviors.py`; with `--write` the table goes to `tests/peers/README.md`.
"""

import argparse
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "tests/peers/README.md"
HELD, BROKEN, NOT_YET, NOT_OFFERED = "held", "broken", "not yet", "not offered"


@dataclass(frozen=True)
class Behavior:
    """Something that another engine's tests check.

    Attributes:
        id: unique, "topic.name".
        sentence: the behavior, as it is said of this engine.
        source: "project path::test", of one of the projects in `PROJECTS`.
        status: HELD, BROKEN, NOT_YET or NOT_OFFERED.
        tests: what holds it, or shows that it is broken: node ids without parameters, relative to `tests`.
        reason: why it is not held.
    """

    id: str
    sentence: str
    source: str
    status: str
    tests: tuple[str, ...] = ()
    reason: str = ""


@dataclass
class Topic:
    """Behaviors of one subject, in the order of the table.

    Attributes:
        name: first part of their ids.
        title: headline of their table.
    """

    name: str
    title: str
    behaviors: list[Behavior] = field(default_factory=list)

    def held(self, name: str, sentence: str, source: str, *tests: str) -> None:
        """A behavior that tests here hold."""
        self._add(name, sentence, source, HELD, tests)

    def broken(self, name: str, sentence: str, source: str, *tests: str) -> None:
        """A behavior that this engine should have and doesn't; the tests are expected to fail."""
        self._add(name, sentence, source, BROKEN, tests)

    def not_yet(self, name: str, sentence: str, source: str, reason: str) -> None:
        """A behavior that this engine is going to have."""
        self._add(name, sentence, source, NOT_YET, reason=reason)

    def not_offered(self, name: str, sentence: str, source: str, reason: str) -> None:
        """A behavior that this engine does not have."""
        self._add(name, sentence, source, NOT_OFFERED, reason=reason)

    def _add(
        self, name: str, sentence: str, source: str, status: str, tests: tuple[str, ...] = (), reason: str = ""
    ) -> None:
        self.behaviors.append(Behavior(f"{self.name}.{name}", sentence, source, status, tests, reason))


def table(topics: list[Topic], projects: dict[str, str]) -> str:
    """All of it as Markdown.

    Args:
        projects: name -> which version of it was read.
    """
    behaviors = [behavior for topic in topics for behavior in topic.behaviors]
    counts = Counter(behavior.status for behavior in behaviors)
    summary = ", ".join(
        f"{counts[status]} {status}" for status in (HELD, BROKEN, NOT_YET, NOT_OFFERED) if counts[status]
    )
    lines = [
        "# What other engines test, and what holds it here",
        "",
        "<!-- Written by `python -m tools.peers --write` from behaviors.py; edit that file. -->",
        "",
        f"{len(behaviors)} behaviors that the tests of other projects check, restated for this engine: {summary}. "
        "Tests are relative to [`tests`](..).",
        "",
        *(f"- **{name}**: {version}" for name, version in projects.items()),
    ]
    for topic in topics:
        lines += ["", f"## {topic.title}", "", "| behavior | from | held by |", "|---|---|---|"]
        lines += [f"| {each.sentence} | {each.source} | {_holder(each)} |" for each in topic.behaviors]
    return "\n".join(lines) + "\n"


def _holder(behavior: Behavior) -> str:
    tests = "<br>".join(f"`{test}`" for test in behavior.tests)
    return tests if behavior.status == HELD else f"*{behavior.status}*: {tests}{behavior.reason}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.peers", description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"write {README.relative_to(ROOT)}")
    arguments = parser.parse_args()
    from tests.peers.behaviors import PROJECTS, TOPICS

    text = table(TOPICS, PROJECTS)
    if arguments.write:
        README.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
