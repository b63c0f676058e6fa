"""Exams: the same for the same seed, spread over lessons and kinds, marked, certified, and verified."""

from collections import Counter

import pytest

from lessons_lib.assessment import __main__ as command
from lessons_lib.assessment.__main__ import take_exam
from lessons_lib.assessment.certificate import NotVerified, certificate_html, verify
from lessons_lib.assessment.exam import NOTEBOOKS, NUM_QUESTIONS, draw_exam, mark


@pytest.fixture(scope="module")
def exam():
    return draw_exam(7)


@pytest.fixture(scope="module")
def key(exam):
    return [asked.right for asked in exam.questions]


def test_an_exam_is_spread_over_lessons_and_kinds(monkeypatch):
    monkeypatch.setattr("lessons_lib.assessment.question.Item.ask", lambda item, seed: item.name)
    for seed in range(50):
        items = draw_exam(seed).items
        assert len({item.name for item in items}) == NUM_QUESTIONS
        assert set(Counter(item.lesson for item in items).values()) <= {1, 2}
        assert len({(item.lesson, item.kind) for item in items}) == NUM_QUESTIONS
        assert len({item.lesson for item in items}) == len(NOTEBOOKS)
        assert all(8 <= count <= 12 for count in Counter(item.kind for item in items).values())
    assert len({tuple(item.name for item in draw_exam(seed).items) for seed in range(50)}) == 50


@pytest.mark.parametrize("seed", [-1, 1.5, "7", True])
def test_a_seed_that_is_none_is_refused(seed):
    with pytest.raises(ValueError, match=r"seed is .*; it must be an integer of 0 or more"):
        draw_exam(seed)


def test_marks(exam, key):
    full = mark(exam, key)
    assert (full.score, full.passed, full.to_revisit) == (NUM_QUESTIONS, True, [])
    one_wrong = mark(exam, [None, *key[1:]])
    assert one_wrong.score == NUM_QUESTIONS - 1
    assert one_wrong.to_revisit == [(exam.items[0].lesson, exam.items[0].heading)]
    assert "revisit notebooks/00_one_request.ipynb#" in str(one_wrong)
    assert not mark(exam, [*key[:20], *[None] * 10]).passed
    assert mark(exam, [*key[:21], *[None] * 9]).passed
    assert sum(of for _, of in full.by("kind").values()) == NUM_QUESTIONS


def test_answers_that_fit_no_choice_are_refused(exam, key):
    with pytest.raises(match="29 answers to 30 questions"):
        mark(exam, key[:29])
    with pytest.raises(match="answer 1 is 4; it must be 0 to 3"):
        mark(exam, [4, *key[1:]])


@pytest.fixture
def page(exam, key, tmp_path):
    path = tmp_path / "certificate.html"
    path.write_text(certificate_html(mark(exam, [None, *key[1:]]), "Ada <b>", 42), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "old, new, message",
    [
        ('"seed": 7', '"seed": 8', "another version of the bank"),
        ('"answers": [null', '"answers": [0', "its text isn't"),
        ('"name": "Ada', '"name": "Bob', "its text isn't"),
        ('"minutes": 42', '"minutes": 12', "its text isn't"),
        ("<h1>Ada", "<h1>Bob", "its text isn't"),
        ("29 of 30", "30 of 30", "its text isn't"),
        ("</html>", "<p>best of all</html>", "its text isn't"),
        ('id="exam"', 'id="other"', "doesn't hold an exam"),
        ('"answers": [null', '"answers": [9', "doesn't hold an exam"),
        ('"answers": [null', '"answers": ["a"', "doesn't hold an exam"),
        ('"name": "Ada', '"other": "Ada', "doesn't hold an exam"),
    ],
)
def test_a_changed_certificate_is_not_verified(page, old, new, message):
    text = page.read_text()
    assert old in text
    page.write_text(text.replace(old, new))
    with pytest.raises(NotVerified, match=message):
        verify(page)


def test_the_command_verifies(page, capsys):
    assert command.main(["--verify", str(page)]) == 0
    assert capsys.readouterr().out == "verified: Ada <b>, seed 7, 29 of 30 right\n"
    assert "<b>, " not in page.read_text().replace("<b>passed</b>, ", "")
    with pytest.raises(SystemExit, match="not verified: there is no file"):
        command.main(["--verify", str(page.parent / "none.html")])


@pytest.mark.parametrize("num_right, page", [(29, "certificate.html"), (0, "result.html")])
def test_the_exam_in_a_terminal(key, tmp_path, num_right, page):
    """A failed one writes a result, and no certificate. What wasn't right is explained."""
    typed = iter(["x", *("abcd"[right] for right in key[:num_right]), *[""] * 30])
    said = []
    result = take_exam(7, "Ada", tmp_path / "new", lambda prompt: next(typed), said.append, lambda: 0.0)
    assert result.score == num_right and "a, b, c or d" in (told := "".join(said))
    assert [path.name for path in tmp_path.rglob("*.html")] == [page]
    assert verify(tmp_path / "new" / page).endswith(f"{num_right} of 30 right")
    assert told.count("✓") == 30 - num_right and told.count("✗") == 3 * (30 - num_right)
    assert ("ertificate" in told + (tmp_path / "new" / page).read_text()) == (num_right == 29)
    with pytest.raises(ValueError, match="name is ' '"):
        take_exam(7, " ", tmp_path, lambda prompt: pytest.fail("asked"), print, lambda: 0.0)


def test_the_exam_ends_after_an_hour(tmp_path):
    times = iter([0.0, 60.0, 3601.0, 3601.0])
    said = []
    result = take_exam(7, "Ada", tmp_path, lambda prompt: "a", said.append, lambda: next(times))
    assert result.answers[1:] == (None,) * 29
    assert any("time is up" in line for line in said)
