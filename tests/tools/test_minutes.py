"""Every lesson fits into ninety minutes, by one yardstick for all."""

import pytest

from lessons_lib.checks.lessons import released_pages
from tools.minutes import CODE_LINES, EASY_LINES, FAILED_CHECK, UNDERSTAND, _prose, _solution, minutes_of

PAGES = released_pages()
SLACK = 5  # minutes; readers differ by more


@pytest.mark.parametrize("page", PAGES, ids=[page.number for page in PAGES])
def test_a_lesson_takes_ninety_minutes_and_says_what_it_takes(page):
    counted = sum(minutes_of(page).values())
    assert int(page.minutes) <= 90
    assert counted <= int(page.minutes) + SLACK, minutes_of(page)


def test_only_what_is_written_is_counted_as_written():
    stub = 'def f(a):\n    """What it does."""\n    b = a\n    raise NotImplementedError\n'
    solved = 'import os\n\ndef f(a):\n    """What it does."""\n    b = a\n    return b\n'
    assert _solution(solved, stub) == pytest.approx(UNDERSTAND + FAILED_CHECK + 1 + 3 / CODE_LINES)
    long = "def f(a):\n" + "".join(f"    a += {n}\n" for n in range(30))
    assert _solution(long, "def f(a):\n    pass\n") == pytest.approx(
        UNDERSTAND + FAILED_CHECK + EASY_LINES + (30 - EASY_LINES) / 2 + 2 / CODE_LINES
    )


def test_the_text_of_an_exercise_is_part_of_understanding_it():
    assert _prose("word " * 170) == pytest.approx(1)
    assert _prose("word " * 170 + "\n\n**Your task: `f`.** " + "more " * 500) == pytest.approx(1)
    assert _prose("word " * 170 + "\n| a | b |\n|---|---|\n| 1 | 2 |") == pytest.approx(2)
