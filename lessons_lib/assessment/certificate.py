"""A certificate, or the result of a failed exam: a page to print, with all that is needed to mark its exam again."""

import hashlib
import html
import json
import re
from pathlib import Path

from lessons_lib.assessment.exam import Result, draw_exam, mark
from lessons_lib.assessment.question import KINDS

_DATA = re.compile(r'<script type="application/json" id="exam">(.*?)</script>', re.DOTALL)


class NotVerified(ValueError):
    pass


def certificate_html(result: Result, name: str, minutes: int) -> str:
    """One page without anything from outside: score, lessons, kinds, seed and answers."""
    exam = result.exam
    data = {"name": name, "seed": exam.seed, "answers": result.answers, "minutes": minutes, "exam": exam.digest}
    packed = json.dumps(data).replace("<", "\\u003c")
    digest = hashlib.sha256(packed.encode()).hexdigest()
    rows = "".join(f"<tr><td>{lesson}<td>{right} of {of}" for lesson, (right, of) in result.by("lesson").items())
    kinds = ", ".join(f"{KINDS[kind]} {right} of {of}" for kind, (right, of) in result.by("kind").items())
    title, verdict = ("Certificate", "passed") if result.passed else ("Result of an exam", "not passed")
    return (
        f'<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        "<style>body{font:16px/1.5 sans-serif;max-width:42em;margin:3em auto;padding:0 1em}td{padding:0 2em 0 0}"
        "caption,th{text-align:left;white-space:nowrap}</style>"
        f"<h1>{html.escape(name)}</h1><p>glass-vllm: the exam over lessons 00 to 16 and 18 to 20.</p>"
        f"<p>{result.score} of {len(result.answers)} questions right: <b>{verdict}</b>, in {minutes} minutes. "
        f"By kind: {kinds}. Seed {exam.seed}, digest <code>{digest[:16]}</code>.</p>"
        f"<table><caption>Right answers by lesson</caption><tr><th>lesson<th>right{rows}</table>"
        f"<p>In the course's folder, <code>make verify ARGS={result.page}</code> draws the same exam and marks "
        "these answers again. That proves the score, not who gave the answers.</p>"
        f'<script type="application/json" id="exam">{packed}</script></html>\n'
    )


def verify(path: str | Path) -> str:
    """Draw the exam of a certificate again, mark its answers, and say what holds; else NotVerified."""
    page = Path(path)
    if not page.is_file():
        raise NotVerified(f"there is no file {str(path)!r}. Give the path of a certificate that an exam wrote.")
    text = page.read_text(encoding="utf-8", errors="replace")
    found = _DATA.search(text)
    try:
        data = json.loads(found[1]) if found else {}
        exam = draw_exam(data["seed"])
        if data["exam"] != exam.digest:
            raise NotVerified(
                f"{page.name} belongs to another version of the bank: seed {data['seed']} draws other questions here. "
                "Verify it with the version of the course that wrote it."
            )
        result = mark(exam, data["answers"])
        again = certificate_html(result, data["name"], data["minutes"])
    except NotVerified:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NotVerified(f"{page.name} doesn't hold an exam ({error}). Ask for the original file.") from None
    if again != text:
        raise NotVerified(f"{page.name} was changed: its text isn't what its answers give.")
    return f"verified: {data['name']}, seed {exam.seed}, {result.score} of {len(result.answers)} right"
