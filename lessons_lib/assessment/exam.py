"""An exam: thirty questions drawn from the bank by a seed, and what its answers are worth."""

import hashlib
import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from lessons_lib.assessment.question import ITEMS, KINDS, Asked, Item

NUM_QUESTIONS = 30
MINUTES = 60
PASS_SHARE = 0.7
NOTEBOOKS = (
    "00_one_request", "01_static_batching", "02_continuous_batching", "03_block_allocator", "04_block_diagonal_masks",
    "05_ragged_packing", "06_paged_attention", "07_triton_kernel", "08_fast_kernels", "09_scheduling",
    "10_memory_pressure", "11_prefix_sharing", "12_engine", "13_engine_on_gpu", "14_serving", "15_replicas",
    "16_two_gpus", "18_speculation", "19_hybrid_layers", "20_floors",
)  # fmt: skip


@dataclass(frozen=True)
class Exam:
    """What a seed draws: items of the bank in the order of the lessons, and what is asked, one question for each."""

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


def draw_exam(seed: int) -> Exam:
    """Draw an exam: the lessons take turns, and each turn asks in the kind that was asked least so far, of those that
    the lesson wasn't asked in yet.

    Raises:
        ValueError: the seed isn't an integer of 0 or more.
    """
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise ValueError(f"seed is {seed!r}; it must be an integer of 0 or more, such as 7.")
    draw = random.Random(seed)
    left = list(ITEMS)
    draw.shuffle(left)
    lessons: list[str] = []
    kinds = Counter(dict.fromkeys(KINDS, 0))
    drawn: list[Item] = []
    while len(drawn) < NUM_QUESTIONS:
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


@dataclass(frozen=True)
class Result:
    """The marks of one exam; `answers` has for each question the index of the choice, or None."""

    exam: Exam
    answers: tuple[int | None, ...]

    @property
    def is_right(self) -> list[bool]:
        return [answer == asked.right for answer, asked in zip(self.answers, self.exam.questions)]

    @property
    def score(self) -> int:
        return sum(self.is_right)

    @property
    def passed(self) -> bool:
        return self.score >= PASS_SHARE * len(self.answers)

    @property
    def page(self) -> str:
        """Name of the file that it is written to."""
        return "certificate.html" if self.passed else "result.html"

    def by(self, attribute: str) -> dict[str, tuple[int, int]]:
        """Right answers and questions for each lesson or kind: `by("lesson")`, `by("kind")`."""
        counts: dict[str, tuple[int, int]] = {}
        for item, is_right in zip(self.exam.items, self.is_right):
            right, total = counts.get(getattr(item, attribute), (0, 0))
            counts[getattr(item, attribute)] = (right + is_right, total + 1)
        return dict(sorted(counts.items()))

    @property
    def to_revisit(self) -> list[tuple[str, str]]:
        """Lesson and heading of each question without a right answer."""
        missed = (item for item, is_right in zip(self.exam.items, self.is_right) if not is_right)
        return list(dict.fromkeys((item.lesson, item.heading) for item in missed))

    def __str__(self) -> str:
        total = len(self.answers)
        lines = [f"{self.score} of {total} right: {'passed' if self.passed else 'not passed'} (from {PASS_SHARE:.0%})."]
        lines += [f"  {KINDS[kind]}: {right} of {of}" for kind, (right, of) in self.by("kind").items()]
        lines += [f"  lesson {lesson}: {right} of {of}" for lesson, (right, of) in self.by("lesson").items()]
        lines += [f"revisit {link_to(lesson, heading)}" for lesson, heading in self.to_revisit]
        return "\n".join(lines)


def mark(exam: Exam, answers: Sequence[int | None]) -> Result:
    """Mark the answers to an exam: for each question the index of a choice, or None; else ValueError."""
    if len(answers) != len(exam.questions):
        raise ValueError(f"{len(answers)} answers to {len(exam.questions)} questions; give None where there is none.")
    for number, (answer, asked) in enumerate(zip(answers, exam.questions), start=1):
        if answer is not None and (isinstance(answer, bool) or answer not in range(len(asked.choices))):
            raise ValueError(f"answer {number} is {answer!r}; it must be 0 to {len(asked.choices) - 1}, or None.")
    return Result(exam, tuple(answers))


def told(exam: Exam, index: int) -> str:
    """One question as text."""
    item, asked = exam.items[index], exam.questions[index]
    lines = [f"{index + 1}. Lesson {item.lesson}, {KINDS[item.kind]}", asked.text]
    if asked.code:
        lines += [f"{line:>4}  {code}" for line, code in enumerate(asked.code.split("\n"), start=1)]
    return "\n".join([*lines, *(f"  {letter}) {choice.text}" for letter, choice in zip("abcd", asked.choices))])


def explained(exam: Exam, index: int, answer: int | None) -> str:
    """What was right or wrong about an answer, every choice explained, and where the lesson teaches it."""
    item, asked = exam.items[index], exam.questions[index]
    lines = ["Right." if answer == asked.right else "Not answered." if answer is None else "No."]
    for number, choice in enumerate(asked.choices):
        chosen = " (your answer)" if number == answer else ""
        mark = "✓" if choice.right else "✗"
        lines.append(f"  {mark} {'abcd'[number]}) {choice.text}{chosen}\n       {choice.explanation}")
    return "\n".join([*lines, f"  Taught in {link_to(item.lesson, item.heading)}"])


def link_to(lesson: str, heading: str) -> str:
    """The notebook and the heading's anchor, as JupyterLab makes it."""
    return f"notebooks/{next(name for name in NOTEBOOKS if name.startswith(lesson))}.ipynb#{heading.replace(' ', '-')}"
