"""The site's first page: what the course is, the routes with their minutes, and every lesson.

Everything comes from the README, which a test compares with the lessons.
"""

import re
from dataclasses import dataclass

from tools.site.doors import links

LESSON = re.compile(r"^\| \[(\d\d) ([^\]]+)\]\(notebooks/(\w+)\.ipynb\) \| (.+) \| (\d+) \|$", re.MULTILINE)
ROUTES = re.compile(r"^Three routes for less time: (.+)\.$", re.MULTILINE)
PROMISES = re.compile(r"^- \*\*It runs as it is\.\*\*.*?(?=\n\n)", re.MULTILINE | re.DOTALL)
LINK_TO_FILE = re.compile(r" ?\(\[[^\]]+\]\((?!http)[^)]+\)\)")


@dataclass(frozen=True)
class Listed:
    """One row of the README's table of lessons."""

    number: str
    title: str
    file: str
    skills: str
    minutes: int


def lessons_of(readme: str) -> list[Listed]:
    return [Listed(*words, int(minutes)) for *words, minutes in LESSON.findall(readme)]


def routes_of(readme: str) -> dict[str, list[str]]:
    """{route: numbers of its lessons, in order}, from a sentence such as "**ideas** 00–06; **kernels** 04, 06–08"."""
    found = {}
    for part in ROUTES.search(readme)[1].split("; "):
        name, ranges = re.fullmatch(r"\*\*(\w+)\*\* (.+)", part).groups()
        ends = [(piece[:2], piece[-2:]) for piece in ranges.split(", ")]
        found[name] = [f"{number:02}" for first, last in ends for number in range(int(first), int(last) + 1)]
    return found


def hours(minutes: int) -> str:
    return f"{minutes / 60:.0f} hours"


def front_page(readme: str, home: str) -> str:
    """The page, in MyST Markdown.

    Args:
        readme: the text of README.md.
        home: "owner/name" on GitHub, or "".
    """
    lessons = lessons_of(readme)
    by_number = {lesson.number: lesson for lesson in lessons}
    title, opening = re.match(r"# ([^\n]+)\n\n(.+?)\n\n", readme, re.DOTALL).groups()
    alt, caption = re.search(r"!\[([^\]]*)\]\([^)]*\.svg\)\n\n\*(.+?)\*\n", readme, re.DOTALL).groups()
    promises = LINK_TO_FILE.sub("", PROMISES.search(readme)[0])
    routes = routes_of(readme)
    opening = f"# {title}\n\n{opening}\n\n![{alt}](static_and_continuous.svg)\n\n*{caption}*\n\n{promises}\n"
    room = '<a href="engine_room.html">Open the engine room</a>: the whole engine, live on one page, to play with.'
    lines = [opening, room, "", *_start(lessons[0].file, home), "", "## Routes", ""]
    lines += [f"- **everything** · {hours(sum(lesson.minutes for lesson in lessons))} · all {len(lessons)} lessons"]
    for name, numbers in routes.items():
        on_it = ", ".join(f"[{number}]({by_number[number].file}.ipynb)" for number in numbers)
        lines.append(f"- **{name}** · {hours(sum(by_number[number].minutes for number in numbers))} · {on_it}")
    lines += ["", "## Lessons", ""]
    for lesson in lessons:
        about = [f"{lesson.minutes} minutes", *(name for name, numbers in routes.items() if lesson.number in numbers)]
        lines.append(f"- **[{lesson.number} · {lesson.title}]({lesson.file}.ipynb)** · {' · '.join(about)}\\")
        lines.append(f"  Afterwards you can {lesson.skills}.")
    lines += ["", "Every term is in the [glossary](glossary.md).", ""]
    lines += ["```{toctree}", ":hidden:", *(lesson.file for lesson in lessons), "glossary", "the_server", "```", ""]
    return "\n".join(lines)


def _start(first_lesson: str, home: str) -> list[str]:
    doors = links(home, first_lesson)
    return [
        *("## Start", ""),
        f"Read the lessons here, with every picture and every result. [Lesson 00]({first_lesson}.ipynb) is the first.",
        "To write the code yourself, take the course to your machine: `make lab` installs and opens it.",
        *([f"Or open it where nothing has to be installed: {doors}."] if doors else []),
    ]
