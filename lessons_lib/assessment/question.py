"""What a question of the bank is: an `Item` makes an `Asked` from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lessons_lib.checks.exercise import Choice
from lessons_lib.viz.drawing.picture import Picture

KINDS = {
    "picture": "read a picture",
    "compute": "compute",
    "bug": "find the bug",
    "design": "design",
}
NUM_CHOICES = 4
Told = tuple[object, str]  # what a choice says, and the explanation


class Redraw(Exception):
    """The numbers drawn make two choices equal, or the question trivial: draw others."""


@dataclass(frozen=True)
class Asked:
    """One question as a learner sees it.

    Attributes:
        text: the question; `code` in backticks.
        choices: in the order shown. Exactly one is right.
        code: ten lines of Python for "find the bug", shown with line numbers.
        picture: makes the picture of "read a picture". Drawing takes time, so it's left to those who show it.
    """

    text: str
    choices: tuple[Choice, ...]
    code: str = ""
    picture: Callable[[], Picture] | None = None

    @property
    def right(self) -> int:
        """Index of the right choice."""
        return next(index for index, choice in enumerate(self.choices) if choice.right)


@dataclass(frozen=True)
class Item:
    """One entry of the bank.

    Attributes:
        name: unique in the bank, such as "victim_in_picture".
        lesson: "00" to "16".
        kind: one of `KINDS`.
        heading: the heading in the lesson's notebook whose cells teach the answer.
        make: called with a random generator; returns the question, its choices in any order.
    """

    name: str
    lesson: str
    kind: str
    heading: str
    make: Callable[[random.Random], Asked]

    def ask(self, seed: int) -> Asked:
        """The question for this seed, with its choices shuffled.

        Raises:
            RuntimeError: no numbers were found that make a question. A mistake in the bank, which its tests find.
        """
        for attempt in range(200):
            draw = random.Random(f"{seed}:{self.name}:{attempt}")
            try:
                asked = self.make(draw)
            except Redraw:
                continue
            choices = list(asked.choices)
            if self.kind == "bug":  # lines are listed as they stand in the code
                choices.sort(key=lambda choice: int(choice.text.split()[1].rstrip(":")))
            else:
                draw.shuffle(choices)
            return Asked(asked.text, tuple(choices), asked.code, asked.picture)
        raise RuntimeError(f"question {self.name!r} found no numbers for seed {seed} in 200 draws.")


@dataclass(frozen=True)
class Bug:
    """Ten lines of code, one of which is wrong.

    Attributes:
        task: what the code should do.
        code: the right code.
        line: number of the line to replace, from 1.
        wrong: what to replace it with.
        why: what the wrong line breaks, and what it should be.
        innocent: other lines a reader may suspect -> why they are right.
        trial: assertions, run after the code. They pass with the right code and fail with the wrong one.
        setup: imports and helpers that the code uses; not shown.
    """

    task: str
    code: str
    line: int
    wrong: str
    why: str
    innocent: dict[int, str]
    trial: str
    setup: str = ""

    @property
    def wrong_code(self) -> str:
        lines = self.code.strip("\n").split("\n")
        indent = lines[self.line - 1][: len(lines[self.line - 1]) - len(lines[self.line - 1].lstrip())]
        lines[self.line - 1] = indent + self.wrong
        return "\n".join(lines)

    def __call__(self, draw: random.Random) -> Asked:
        lines = self.wrong_code.split("\n")
        told = {self.line: self.why, **self.innocent}
        choices = tuple(
            Choice(f"line {number}: `{lines[number - 1].strip()}`", why, right=number == self.line)
            for number, why in told.items()
        )
        return Asked(f"{self.task} One line is wrong. Which one?", choices, code="\n".join(lines))


def asked(text: str, right: Told, wrong: Sequence[Told], picture: Callable[[], Picture] | None = None) -> Asked:
    """A question with the right choice and the first three wrong ones that differ from it and from each other.

    Raises:
        Redraw: fewer than three of them differ.
    """
    choices = [Choice(say(right[0]), right[1], right=True)]
    for what, why in wrong:
        if len(choices) < NUM_CHOICES and say(what) not in {choice.text for choice in choices}:
            choices.append(Choice(say(what), why))
    if len(choices) < NUM_CHOICES:
        raise Redraw
    return Asked(text, tuple(choices), picture=picture)


def say(what: object) -> str:
    """A choice in words: integers with commas, floats with three significant digits."""
    if isinstance(what, bool) or not isinstance(what, (int, float)):
        return str(what)
    return f"{what:,}" if isinstance(what, int) else f"{what:,.3g}"


def item(lesson: str, kind: str, heading: str) -> Callable[[Callable[[random.Random], Asked]], Item]:
    """Turn a function of a random generator into an `Item` named like it."""
    return lambda make: Item(make.__name__, lesson, kind, heading, make)


def design(lesson: str, heading: str, name: str, text: str, right: Told, *wrong: Told) -> Item:
    """A question without numbers: choices with reasons."""
    return Item(name, lesson, "design", heading, lambda draw: asked(text, right, wrong))


def bug(lesson: str, heading: str, name: str, **parts: Any) -> Item:
    """Ten lines of code, one wrong; `parts` are those of `Bug`."""
    return Item(name, lesson, "bug", heading, Bug(**parts))
