"""Exams: the same for the same seed, spread over lessons and kinds, marked, certified, and verified."""

import json
from collections import Counter
from pathlib import Path

import pytest

from lessons_lib.assessment import __main__ as command
from lessons_lib.assessment.bank import ITEMS
from lessons_lib.assessment.certificate import NotVerified, certificate_html, verify
from lessons_lib.assessment.draw import NUM_QUESTIONS, draw_exam
from lessons_lib.assessment.lessons import NOTEBOOKS, notebook_of
from lessons_lib.assessment.mark import BadAnswer, explained, mark
from lessons_lib.assessment.notebook import ExamSheet
from lessons_lib.assessment.question import KINDS
from lessons_lib.assessment.terminal import take_exam

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def exam():
    return draw_exam(7)


@pytest.fixture(scope="module")
def key(exam):
    return [asked.right for asked in exam.questions]


def test_the_bank_covers_every_lesson_and_every_kind():
    assert len(ITEMS) >= 110
    kinds = {name[:2]: {item.kind for item in ITEMS if item.lesson == name[:2]} for name in NOTEBOOKS}
    assert all({"compute", "bug"} <= each for each in kinds.values()) and set().union(*kinds.values()) == set(KINDS)
    assert all((ROOT / notebook_of(name[:2])).is_file() for name in NOTEBOOKS)


def test_an_exam_is_spread_over_lessons_and_kinds(monkeypatch):
    monkeypatch.setattr("lessons_lib.assessment.question.Item.ask", lambda item, seed: item.name)
    for seed in range(50):
        items = draw_exam(seed).items
        assert len({item.name for item in items}) == NUM_QUESTIONS
        assert set(Counter(item.lesson for item in items).values()) <= {1, 2}
        assert len({(item.lesson, item.kind) for item in items}) == NUM_QUESTIONS
        assert len({item.lesson for item in items}) == len(NOTEBOOKS)
        assert all(6 <= count <= 9 for count in Counter(item.kind for item in items).values())
    assert len({tuple(item.name for item in draw_exam(seed).items) for seed in range(50)}) == 50


def test_a_seed_gives_one_exam(exam):
    assert draw_exam(7).digest == exam.digest != draw_exam(8).digest


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
    assert f"revisit 00: {exam.items[0].heading}" in str(one_wrong)
    assert not mark(exam, [*key[:20], *[None] * 10]).passed
    assert mark(exam, [*key[:21], *[None] * 9]).passed
    assert sum(of for _, of in full.by("kind").values()) == NUM_QUESTIONS


def test_answers_that_fit_no_choice_are_refused(exam, key):
    with pytest.raises(BadAnswer, match="29 answers to 30 questions"):
        mark(exam, key[:29])
    with pytest.raises(BadAnswer, match="answer 1 is 4; it must be 0 to 3"):
        mark(exam, [4, *key[1:]])


def test_every_choice_is_explained(exam):
    text = explained(exam, 0, None)
    assert text.count("✓") == 1
    assert text.count("✗") == 3
    assert "notebooks/00_one_request.ipynb#" in text


@pytest.fixture
def page(exam, key, tmp_path):
    path = tmp_path / "certificate.html"
    path.write_text(certificate_html(mark(exam, [None, *key[1:]]), "Ada <b>", 42), encoding="utf-8")
    return path


def test_a_certificate_is_verified(page):
    assert verify(page) == "verified: Ada <b>, seed 7, 29 of 30 right"
    assert "<b>, " not in page.read_text()


@pytest.mark.parametrize(
    "old, new, message",
    [
        ('"score": 29', '"score": 30', "says 30 right; its answers have 29"),
        ('"seed": 7', '"seed": 8', "another version of the bank"),
        ('"answers": [null', '"answers": [0', "its digest isn't"),
        ('"name": "Ada', '"name": "Bob', "its digest isn't"),
        ("<h1>Ada", "<h1>Bob", "its text isn't"),
        ("29 of 30", "30 of 30", "its text isn't"),
        ('id="exam"', 'id="other"', "doesn't hold an exam's answers"),
        ('"answers": [null', '"answers": [9', "doesn't hold an exam's answers"),
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
    assert "29 of 30" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="not verified: there is no file"):
        command.main(["--verify", str(page.parent / "none.html")])


def test_the_exam_in_a_terminal(exam, key, tmp_path):
    typed = iter(["x", "?", *("abcd"[right] for right in key[:29]), ""])
    said = []
    result = take_exam(7, "Ada", tmp_path, lambda prompt: next(typed), said.append, lambda: 0.0)
    assert result.score == 29
    assert "a, b, c or d" in "".join(said)
    assert verify(tmp_path / "certificate.html").endswith("29 of 30 right")
    assert len(list(tmp_path.glob("*.svg"))) == sum(item.kind == "picture" for item in exam.items)


def test_the_exam_ends_after_an_hour(tmp_path):
    times = iter([0.0, 60.0, 3601.0, 3601.0])
    said = []
    result = take_exam(7, "Ada", tmp_path, lambda prompt: "a", said.append, lambda: next(times))
    assert result.answers[1:] == (None,) * 29
    assert any("time is up" in line for line in said)


def test_the_exam_as_functions(key, tmp_path):
    sheet = ExamSheet(7, clock=iter([0.0] + 99 * [60.0]).__next__)
    for number, right in enumerate(key, start=1):
        sheet.answer(number, "abcd"[right])
    for number, letter, message in [(0, "a", "no question 0"), (1, "e", "'e' is no choice"), (31, "a", "1 to 30")]:
        with pytest.raises(BadAnswer, match=message):
            sheet.answer(number, letter)
    with pytest.raises(BadAnswer, match="isn't marked yet"):
        sheet.explain(1)
    assert sheet.finish("Ada", tmp_path / "page.html").score == 30
    with pytest.raises(BadAnswer, match="is marked"):
        sheet.answer(1, "a")
    assert "Right." in sheet.explain(1)
    assert "30. Lesson 16" in repr(sheet)


def test_a_failed_exam_writes_a_result_and_no_certificate(exam, key, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = []
    take_exam(7, "Ada", tmp_path / "terminal", lambda prompt: "", said.append, lambda: 0.0)
    ExamSheet(7).finish("Ada")
    for page in (tmp_path / "terminal/result.html", tmp_path / "result.html"):
        assert verify(page).endswith("0 of 30 right")
        assert "ertificate" not in page.read_text()
    assert list(tmp_path.rglob("certificate.html")) == [] and "ertificate" not in "".join(said)


def test_the_hour_of_a_sheet():
    sheet = ExamSheet(7, clock=iter([0.0, 3601.0]).__next__)
    with pytest.raises(BadAnswer, match="60 minutes are over"):
        sheet.answer(1, "a")
    assert sheet.answers[0] is None


def test_radio_buttons_answer(key, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sheet = ExamSheet(7)
    box = sheet.widget()
    for part, right in zip(box.children, key):
        part.children[1].value = "abcd"[right]
    assert sheet.answers == key
    box.children[-3].value = "Ada"
    box.children[-2].click()
    assert "30 of 30 right" in box.children[-1].value
    assert json.loads(Path("certificate.html").read_text().split('id="exam">')[1].split("<")[0])["score"] == 30
