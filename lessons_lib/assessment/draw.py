"""An exam: thirty questions drawn from the bank by a seed."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from dataclasses import dataclass

from lessons_lib.assessment.bank import ITEMS
from lessons_lib.assessment.question import KINDS, Asked, Item

NUM_QUESTIONS = 30
MINUTES = 60


@dataclass(frozen=True)
class Exam:
    """Attributes:
    seed: the same seed gives the same exam.
    items: the entries of the bank that were drawn, in the order of the lessons.
    questions: what is asked: one for each item.
    """

    seed: int
    items: tuple[Item, ...]
    questions: tuple[Asked, ...]

    @property
    def digest(self) -> str:
        """Changes with any question, choice or key, so a certificate can name the exam that it belongs to."""
        told = [
            [item.name, asked.text, asked.code, [[choice.text, choice.right] for choice in asked.choices]]
            for item, asked in zip(self.items, self.questions)
        ]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def draw_exam(seed: int, num_questions: int = NUM_QUESTIONS) -> Exam:
    """Draw an exam: the lessons take turns, and each turn asks in the kind that was asked least so far,
    of those that the lesson wasn't asked in yet.

    Raises:
        ValueError: the seed isn't an integer of 0 or more, or there are too few questions in the bank.
    """
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise ValueError(f"seed is {seed!r}; it must be an integer of 0 or more, such as 7.")
    if not 1 <= num_questions <= len(ITEMS):
        raise ValueError(f"{num_questions} questions asked for; the bank has {len(ITEMS)}. Ask for 1 to {len(ITEMS)}.")
    draw = random.Random(seed)
    left = list(ITEMS)
    draw.shuffle(left)
    lessons: list[str] = []
    kinds = Counter(dict.fromkeys(KINDS, 0))
    drawn: list[Item] = []
    while len(drawn) < num_questions:
        if not lessons:
            lessons = sorted({item.lesson for item in left})
            draw.shuffle(lessons)
        lesson = lessons.pop()
        asked = {item.kind for item in drawn if item.lesson == lesson}
        item = min(
            (item for item in left if item.lesson == lesson), key=lambda item: (item.kind in asked, kinds[item.kind])
        )
        left.remove(item)
        kinds[item.kind] += 1
        drawn.append(item)
    drawn.sort(key=lambda item: (item.lesson, item.name))
    return Exam(seed, tuple(drawn), tuple(item.ask(seed) for item in drawn))
