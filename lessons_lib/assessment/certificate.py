"""A certificate, or the result of a failed exam: a page to print, with all that is needed to mark its exam again."""

from __future__ import annotations

import hashlib
import html
import json
import re
from pathlib import Path

from lessons_lib.assessment.draw import draw_exam
from lessons_lib.assessment.lessons import link_to
from lessons_lib.assessment.mark import Result, mark
from lessons_lib.assessment.question import KINDS

_DATA = re.compile(r'<script type="application/json" id="exam">(.*?)</script>', re.DOTALL)


class NotVerified(ValueError):
    pass


def digest_of(name: str, seed: int, answers: list[int | None], exam_digest: str) -> str:
    """Changes with the name, the seed, any answer, and any question of the exam."""
    return hashlib.sha256(json.dumps([name, seed, answers, exam_digest]).encode()).hexdigest()


def page_name(result: Result) -> str:
    return "certificate.html" if result.passed else "result.html"


def certificate_html(result: Result, name: str, minutes: float) -> str:
    """One page without anything from outside: score, lessons, kinds, what to revisit, seed and digest.

    Raises:
        ValueError: the name is empty.
    """
    if not name.strip():
        raise ValueError(f"name is {name!r}; a certificate needs one. Give the name of the learner.")
    exam, answers = result.exam, list(result.answers)
    digest = digest_of(name, exam.seed, answers, exam.digest)
    data = {
        "name": name,
        "seed": exam.seed,
        "answers": answers,
        "score": result.score,
        "exam": exam.digest,
        "digest": digest,
    }
    rows = "".join(f"<tr><td>{lesson}<td>{right} of {of}" for lesson, (right, of) in result.by("lesson").items())
    kinds = ", ".join(f"{KINDS[kind]} {right} of {of}" for kind, (right, of) in result.by("kind").items())
    revisit = "".join(
        f'<li><a href="{html.escape(link_to(lesson, heading))}">{lesson}: {html.escape(heading)}</a></li>'
        for lesson, heading in result.to_revisit
    )
    title = "Certificate" if result.passed else "Result of an exam"
    verdict = "passed" if result.passed else "not passed"
    packed = json.dumps(data).replace("<", "\\u003c")
    return (
        f'<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        "<style>body{font:16px/1.5 sans-serif;max-width:42em;margin:3em auto;padding:0 1em}td{padding:0 2em 0 0}"
        "code{overflow-wrap:anywhere}caption{text-align:left;white-space:nowrap}"
        "th{text-align:left}@media print{a{color:inherit}}</style>"
        f"<h1>{html.escape(name)}</h1><p>Build a continuous-batching engine: the exam over lessons 00 to 16.</p>"
        f"<p>{result.score} of {len(answers)} questions right: <b>{verdict}</b>, "
        f"in {minutes:.0f} minutes. By kind: {kinds}.</p>"
        f"<table><caption>Right answers by lesson</caption><tr><th>lesson<th>right{rows}</table>"
        f"{'<h2>Revisit</h2><ul>' + revisit + '</ul>' if revisit else ''}"
        f"<p>Seed {exam.seed}, digest of the answers <code>{digest}</code>.</p>"
        f"<p>In the course's folder, <code>make verify ARGS={page_name(result)}</code> draws the same exam and marks "
        "these answers again. That proves the score, not who gave the answers.</p>"
        f'<script type="application/json" id="exam">{packed}</script></html>\n'
    )


def verify(path: str | Path) -> str:
    """Draw the exam of a certificate again, mark its answers, and say what holds.

    Raises:
        NotVerified: what doesn't hold, and what to do about it.
    """
    page = Path(path)
    if not page.is_file():
        raise NotVerified(f"there is no file {str(path)!r}. Give the path of a certificate that an exam wrote.")
    found = _DATA.search(page.read_text(encoding="utf-8"))
    try:
        data = json.loads(found[1]) if found else {}
        name, seed, answers = data["name"], data["seed"], data["answers"]
        exam = draw_exam(seed, len(answers))
        result = mark(exam, answers)
    except (ValueError, KeyError, TypeError) as error:
        raise NotVerified(f"{page.name} doesn't hold an exam's answers ({error}). Ask for the original file.") from None
    if data.get("exam") != exam.digest:
        raise NotVerified(
            f"{page.name} belongs to another version of the bank: seed {seed} draws other questions here. Verify it "
            "with the version of the course that wrote it."
        )
    if data.get("digest") != digest_of(name, seed, answers, exam.digest):
        raise NotVerified(f"{page.name} was changed: its digest isn't that of its name, seed and answers.")
    if data.get("score") != result.score:
        raise NotVerified(f"{page.name} says {data.get('score')} right; its answers have {result.score}.")
    again = certificate_html(result, name, 0)
    if _without_minutes(again) != _without_minutes(page.read_text(encoding="utf-8")):
        raise NotVerified(f"{page.name} was changed: its text isn't what these answers give.")
    return f"verified: {name}, seed {seed}, {result.score} of {len(answers)} right"


def _without_minutes(page: str) -> str:
    return re.sub(r"in \d+ minutes", "in minutes", page, count=1)
