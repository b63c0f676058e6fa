"""The exam in a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from lessons_lib.assessment.certificate import certificate_html, page_name
from lessons_lib.assessment.draw import MINUTES, draw_exam
from lessons_lib.assessment.mark import Result, explained, mark
from lessons_lib.assessment.question import KINDS, Asked, Item


def told(number: int, item: Item, asked: Asked) -> str:
    """One question as text. The picture isn't part of it."""
    lines = [f"{number}. Lesson {item.lesson}, {KINDS[item.kind]}", asked.text]
    if asked.code:
        lines += [f"{line:>4}  {code}" for line, code in enumerate(asked.code.split("\n"), start=1)]
    lines += [f"  {letter}) {choice.text}" for letter, choice in zip("abcd", asked.choices)]
    return "\n".join(lines)


def take_exam(
    seed: int,
    name: str,
    folder: Path,
    ask: Callable[[str], str] = input,
    say: Callable[[str], object] = print,
    clock: Callable[[], float] = time.monotonic,
) -> Result:
    """Ask thirty questions, mark them, and write its page and the pictures into the folder.

    Questions that are answered after the hour don't count.

    Args:
        ask: shows a prompt and returns what was typed: a letter, "?" for a picture in words, or nothing to skip.
    """
    exam = draw_exam(seed)
    folder.mkdir(parents=True, exist_ok=True)
    start = clock()
    answers: list[int | None] = [None] * len(exam.questions)
    say(f"{len(answers)} questions, {MINUTES} minutes. Type a letter, or press Enter to skip a question.")
    for index, (item, asked) in enumerate(zip(exam.items, exam.questions)):
        say("\n" + told(index + 1, item, asked))
        if asked.picture:
            path = folder / f"question-{index + 1:02}.svg"
            picture = asked.picture()
            path.write_text(picture.svg, encoding="utf-8")
            say(f"  The picture is {path}. Type ? to read it in words.")
        typed = ask("> ").strip().lower()
        while typed and typed not in "abcd"[: len(asked.choices)]:
            say(picture.alt if typed == "?" and asked.picture else "Type a, b, c or d, or press Enter to skip.")
            typed = ask("> ").strip().lower()
        if clock() - start > 60 * MINUTES:
            say("The time is up. What is left counts as not answered.")
            break
        answers[index] = "abcd".index(typed) if typed else None
    minutes = min((clock() - start) / 60, MINUTES)
    result = mark(exam, answers)
    for index, is_right in enumerate(result.is_right):
        if not is_right:
            question = told(index + 1, exam.items[index], exam.questions[index])
            say(f"\n{question}\n{explained(exam, index, answers[index])}")
    say(f"\n{result}")
    page = folder / page_name(result)
    page.write_text(certificate_html(result, name, minutes), encoding="utf-8")
    say(f"{page.stem.capitalize()}: {page}. Check it with: make verify ARGS={page}")
    return result
