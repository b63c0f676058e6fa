"""A question of the bank: its text, and for some the numbers that a seed draws."""

import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lessons_lib.checks.exercise import Choice

KINDS = {"compute": "compute", "bug": "find the bug", "design": "design"}
NUM_CHOICES = 4


@dataclass(frozen=True)
class Asked:
    """One question as a learner sees it: exactly one of its choices is right."""

    text: str
    choices: tuple[Choice, ...]
    code: str = ""

    @property
    def right(self) -> int:
        """Index of the right choice."""
        return next(index for index, choice in enumerate(self.choices) if choice.right)


@dataclass(frozen=True)
class Item:
    """One entry of the bank.

    Attributes:
        name: unique in the bank.
        lesson: "00" to "16".
        kind: one of `KINDS`.
        heading: the heading in the lesson's notebook whose cells teach the answer.
        entry: the rest of it, as in `bank.yaml`.
    """

    name: str
    lesson: str
    kind: str
    heading: str
    entry: dict[str, Any]

    def ask(self, seed: int) -> Asked:
        """The question for this seed, with its choices shuffled."""
        if self.kind == "bug":
            return self._ask_for_the_line()
        for attempt in range(200):
            draw = random.Random(f"{seed}:{self.name}:{attempt}")
            names: dict[str, Any] = {"randint": draw.randint, "choice": draw.choice, "sample": draw.sample}
            for name, expression in self.entry.get("numbers", {}).items():
                names[name] = eval(str(expression), names)  # noqa: S307 - the bank is a part of the course
            if eval(self.entry.get("unless", "False"), names):  # noqa: S307 - as above
                continue
            told = [self.entry["right"], *self.entry["wrong"]]
            choices = [
                Choice(self._filled(text, names), self._filled(why, names), right=index == 0)
                for index, (text, why) in enumerate(told)
            ]
            if len({choice.text for choice in choices}) == NUM_CHOICES:
                draw.shuffle(choices)
                return Asked(self._filled(self.entry["text"], names), tuple(choices))
        raise RuntimeError(f"question {self.name!r} found no numbers for seed {seed} in 200 draws.")

    def _filled(self, text: str, names: dict[str, Any]) -> str:
        """A text with the values of the expressions in its braces."""
        if "numbers" not in self.entry:
            return text
        return re.sub(r"\{(.+?)\}", lambda found: say(eval(found[1], names)), text)  # noqa: S307 - as above

    def _ask_for_the_line(self) -> Asked:
        lines = self.wrong_code.split("\n")
        told = dict(sorted({self.entry["line"]: self.entry["why"], **self.entry["innocent"]}.items()))
        choices = tuple(
            Choice(f"line {number}: `{lines[number - 1].strip()}`", why, right=number == self.entry["line"])
            for number, why in told.items()
        )
        return Asked(f"{self.entry['task']} One line is wrong. Which one?", choices, code="\n".join(lines))

    @property
    def wrong_code(self) -> str:
        """The code of a "bug", with its one wrong line."""
        lines = self.entry["code"].strip("\n").split("\n")
        old = lines[self.entry["line"] - 1]
        lines[self.entry["line"] - 1] = old[: len(old) - len(old.lstrip())] + self.entry["wrong"]
        return "\n".join(lines)


def say(what: object) -> str:
    """A value in words: integers with commas, floats with three significant digits."""
    if isinstance(what, float):
        return f"{what:.3g}"
    return f"{what:,}" if isinstance(what, int) else str(what)


def _bank() -> tuple[Item, ...]:
    entries = yaml.safe_load(Path(__file__).with_name("bank.yaml").read_text(encoding="utf-8"))
    head = ("name", "lesson", "kind", "heading")
    return tuple(Item(**{name: entry.pop(name) for name in head}, entry=entry) for entry in entries)


ITEMS = _bank()
