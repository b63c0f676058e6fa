"""The last cell of every lesson: what is done, predictions beside measurements, and where to go from here."""

import html
from dataclasses import dataclass

from lessons_lib.checks.lessons import LessonPage, beside, released_pages
from lessons_lib.checks.predictions import how_far
from lessons_lib.checks.progress import load
from lessons_lib.checks.quizzes import score
from lessons_lib.checks.registry import exercises_of
from lessons_lib.viz.tables.table import Table

LINK = "display:inline-block;padding:0.3em 0.8em;margin:0 0.5em 0.5em 0;border:1px solid #0072B2;border-radius:4px"


@dataclass(frozen=True)
class Footer:
    """The end of one lesson."""

    lesson: str

    def __str__(self) -> str:
        return "\n".join([*self._scores(), *([str(self._predictions())] if self._predictions().rows else [])])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        scores = "".join(f"<div>{html.escape(line)}</div>" for line in self._scores())
        table = self._predictions()
        bundle = table._repr_mimebundle_()
        predicted = f"<div style='overflow-x:auto' tabindex='0'>{bundle['text/html']}</div>" if table.rows else ""
        links = "".join(link(words, file) for words, file in self._links())
        return f"<div style='line-height:1.6'>{scores}{predicted}<div style='margin-top:0.6em'>{links}</div></div>"

    def _scores(self) -> list[str]:
        exercises, optional = _solved(self.lesson, optional=False), _solved(self.lesson, optional=True)
        right, chosen, count = score(self.lesson)
        return [
            f"Exercises: {exercises} solved" + (f"; optional ones: {optional}" if optional else ""),
            f"Quiz: {right} of {count} right at the first choice, {chosen} answered",
        ]

    def _predictions(self) -> Table:
        record = load()
        rows = []
        for key, guess in sorted(record["predictions"].items()):
            found = record["measured"].get(key)
            if key.split(".")[0] == self.lesson and isinstance(found, dict):
                words = how_far(guess, found["value"], found["unit"], found["tolerance"])
                rows.append([key, guess, f"{found['value']:,.4g} {found['unit']}".strip(), words])
        return Table(["prediction", "yours", "measured", ""], rows, "Your predictions" if rows else "")

    def _links(self) -> list[tuple[str, str]]:
        before, after = neighbors(self.lesson, released_pages())
        links = [(f"← {before.number} {before.title}", f"{before.name}.ipynb")] if before else []
        links += [(f"{after.number} {after.title} →", f"{after.name}.ipynb")] if after else []
        return [*links, ("Start page", beside("START.ipynb")), ("Glossary", beside("glossary.md"))]


def _solved(lesson: str, optional: bool) -> str:
    """How many of a lesson's exercises are solved, such as "2 of 5"; "" if it has none of this kind."""
    done, ids = load()["exercises"], [each.id for each in exercises_of(lesson) if each.is_optional == optional]
    return f"{sum(bool(done.get(id, {}).get('passed')) for id in ids)} of {len(ids)}" if ids else ""


def footer(lesson: str) -> Footer:
    """What is done of a lesson such as "03", and links to the lessons beside it."""
    return Footer(lesson)


def neighbors(lesson: str, pages: list[LessonPage]) -> tuple[LessonPage | None, LessonPage | None]:
    """The lessons before and after this one; None where there is none."""
    before = [page for page in pages if page.number < lesson]
    after = [page for page in pages if page.number > lesson]
    return (before[-1] if before else None), (after[0] if after else None)


def link(words: str, file: str) -> str:
    return f'<a href="{html.escape(file)}" style="{LINK}">{html.escape(words)}</a>'
