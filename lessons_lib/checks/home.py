"""The start page: a tile for each lesson with what is done of it, and the three routes through the course."""

import base64
import html
from dataclasses import dataclass

from lessons_lib.checks.footer import link
from lessons_lib.checks.lessons import LessonPage, beside, released_pages
from lessons_lib.checks.progress import load
from lessons_lib.checks.quizzes import score
from lessons_lib.viz.drawing.picture import DARK_PAGES

# What each route is for, and its color (the palette of the pictures).
ROUTES = {"ideas": ("how it works", "#0072B2"), "kernels": ("how it gets fast", "#D55E00"),
          "serving": ("how it serves many", "#009E73")}  # fmt: skip
GRAY = "#7f7f7f"
# On a phone the open contents panel would leave the page a column of some letters. A tab of JupyterLab's side bar reads
# the pointer, not a click.
MAKE_ROOM = """<script>(() => {
  const tab = document.querySelector(".jp-SideBar.jp-mod-left .lm-TabBar-tab.lm-mod-current");
  if (!tab || innerWidth > 700) return;
  const { left, top, width, height } = tab.getBoundingClientRect();
  const at = { bubbles: true, button: 0, clientX: left + width / 2, clientY: top + height / 2 };
  tab.dispatchEvent(new PointerEvent("pointerdown", at));
  document.dispatchEvent(new PointerEvent("pointerup", at));
})()</script>"""


@dataclass(frozen=True)
class Home:
    """The start page.

    Attributes:
        pages: the lessons.
        record: the learner's progress; None for the page as it is released, which says nothing about any learner.
    """

    pages: list[LessonPage]
    record: dict | None = None

    def __repr__(self) -> str:
        return "\n".join(" · ".join([f"{page.number} {page.title}", *self._words(page)]) for page in self.pages)

    def _repr_html_(self) -> str:
        tiles = "".join(map(self._tile, self.pages))
        routes = "".join(self._route(name, *about) for name, about in ROUTES.items())
        return (
            f"<div style='line-height:1.5'>{DARK_PAGES}<p>{self._buttons()}</p>{self._total()}{routes}"
            f"<div style='display:flex;flex-wrap:wrap;gap:10px;margin-top:12px'>{tiles}</div>{MAKE_ROOM}</div>"
        )

    def next_page(self) -> LessonPage | None:
        """The first lesson with an exercise that isn't solved, optional ones aside."""
        return next((page for page in self.pages if not self._is_done(page)), None)

    def _is_done(self, page: LessonPage) -> bool:
        solved, count = self._exercises(page)
        return solved == count

    def _exercises(self, page: LessonPage) -> tuple[int, int]:
        """How many exercises are solved, and how many there are, without the optional ones."""
        return sum(map(self._is_solved, page.exercises)), len(page.exercises)

    def _is_solved(self, id: str) -> bool:
        return bool((self.record or {}).get("exercises", {}).get(id, {}).get("passed"))

    def _words(self, page: LessonPage) -> list[str]:
        solved, count = self._exercises(page)
        minutes = [f"{page.minutes} min"] if page.minutes else []
        if self.record is None:
            return [*minutes, f"{count} exercises"]
        made = sum(key.split(".")[0] == page.number for key in self.record["predictions"])
        predictions = f"{made} prediction{'' if made == 1 else 's'}"
        right, answered, questions = score(page.number, self.record)
        quiz = f"quiz: {right} of {questions} right" + (
            f", {questions - answered} open" if answered < questions else ""
        )
        more = sum(map(self._is_solved, page.optional))
        exercises = f"{solved} of {count} exercises" + (f" and {more} optional" if more else "")
        return [*minutes, exercises, predictions, quiz]

    def _total(self) -> str:
        """What is done of all lessons, as a line of HTML; "" on the page as released."""
        if self.record is None:
            return ""
        solved, count = map(sum, zip(*map(self._exercises, self.pages)))
        right, _, questions = map(sum, zip(*(score(page.number, self.record) for page in self.pages)))
        return (
            f"<p><b>In all:</b> {solved} of {count} exercises solved, {right} of {questions} quiz questions right at "
            "the first choice</p>"
        )

    def _buttons(self) -> str:
        page = self.next_page() or (self.pages[0] if self.pages else None)
        begun = self.record is not None and any(self.record[part] for part in ("exercises", "predictions", "quiz"))
        words = f"{'Continue' if begun else 'Begin'}: {page.number} {page.title}" if page else ""
        return (link(words, f"{page.name}.ipynb") if page else "") + link("Glossary", beside("glossary.md"))

    def _route(self, name: str, purpose: str, color: str) -> str:
        stations = f"<span style='color:{color}'> – </span>".join(
            f'<a href="{page.name}.ipynb" style="display:inline-block;padding:0 0.5em;border:2px solid {color};'
            f'border-radius:10px" title="{html.escape(page.title)}">{page.number}</a>'
            for page in self.pages
            if name in page.routes
        )
        heading = f"<b style='border-bottom:3px solid {color}'>{name}</b> ({purpose})"
        return f"<div style='margin:4px 0'>{heading}: {stations}</div>"

    def _tile(self, page: LessonPage) -> str:
        color = next((ROUTES[route][1] for route in page.routes if route in ROUTES), GRAY)
        solved, count = self._exercises(page)
        done = "" if self.record is None else _bar(solved, count, color)
        words = "<br>".join(map(html.escape, self._words(page)))
        name = f'<a href="{page.name}.ipynb"><b>{page.number} {html.escape(page.title)}</b></a>'
        return (
            f"<div style='box-sizing:border-box;width:200px;max-width:100%;padding:8px 10px;border:1px solid #bbb;"
            f"border-top:6px solid {color};border-radius:4px;display:flex;flex-direction:column'>{_picture(page)}"
            f"{name}<div style='font-size:90%;margin-top:auto'>{words}</div>{done}</div>"
        )


def home() -> Home:
    """The start page with your progress."""
    return Home(released_pages(), load())


def _picture(page: LessonPage) -> str:
    """Part of the lesson's main picture."""
    if not page.tile:
        return ""
    data = base64.b64encode(page.tile.encode()).decode()
    alt = f"a picture of lesson {page.number}"  # JupyterLab calls a picture without words "Image"
    style = "width:100%;height:84px;object-fit:contain;margin-bottom:6px"
    return f'<img class="lessons-picture" alt="{alt}" style="{style}" src="data:image/svg+xml;base64,{data}">'


def _bar(done: int, count: int, color: str) -> str:
    percent = round(100 * done / count) if count else 0
    return (
        "<div style='margin-top:6px;height:6px;background:rgba(127,127,127,0.35)' aria-hidden='true'>"
        f"<div style='height:6px;width:{percent}%;background:{color}'></div></div>"
    )
