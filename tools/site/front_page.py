"""The site's first page, index.html, and the list of everything, contents.html.

All words come from the README, which tests compare with the lessons; the numbers from `facts`.
"""

import re
from dataclasses import dataclass
from html import escape

from lessons_lib.checks.home import ROUTES
from tools.site.doors import links
from tools.site.facts import facts

NAME = "glass-vllm"
CARD = re.compile(r"\*\*(\d\d) ([^*]+)\*\*\]\(notebooks/(\w+)\.ipynb\)<br>([^<|]+)<br>(\d+) minutes")
ROUTES_OF_README = re.compile(r"^Three routes for less time: (.+)\.$", re.MULTILINE)
PAGES = {"benchmarks": "Benchmarks", "the_server": "The server", "teachers": "For teachers", "install": "Install"}


# Without a server a browser loads no modules, and the room stays empty. A lazy picture that goes at once isn't loaded.
ROOM = """<script>if (location.protocol !== "file:") document.querySelector("figure").innerHTML =
'<iframe src="engine_room.html?door" title="The engine room, playing"></iframe><figcaption>The real engine serves a \
trained model: a recording, step by step. A color is a request. Click a block, a word or a request to follow it.\
</figcaption>'
</script>"""
MODE = """<script>document.documentElement.style.colorScheme =
{light: "light", dark: "dark"}[localStorage.getItem("mode")] ?? "";</script>"""  # that of the lessons' pages


@dataclass(frozen=True)
class Listed:
    """One card of the README."""

    number: str
    title: str
    file: str
    skill: str
    minutes: int


def lessons_of(readme: str) -> list[Listed]:
    return [Listed(*words, int(minutes)) for *words, minutes in CARD.findall(readme)]


def routes_of(readme: str) -> dict[str, list[str]]:
    """{route: numbers of its lessons, in order}, from a sentence such as "**ideas** 00–06; **kernels** 04, 06–08"."""
    found = {}
    for part in ROUTES_OF_README.search(readme)[1].split("; "):
        name, ranges = re.fullmatch(r"\*\*(\w+)\*\* (.+)", part).groups()
        ends = [(piece[:2], piece[-2:]) for piece in ranges.split(", ")]
        found[name] = [f"{number:02}" for first, last in ends for number in range(int(first), int(last) + 1)]
    return found


def hours(minutes: int) -> str:
    return f"{minutes / 60:.0f} hours"


def contents_page(readme: str) -> str:
    """Every page of the site, in MyST Markdown; its list is the sidebar's."""
    lessons = lessons_of(readme)
    lines = ["# Contents", "", f"The lessons of {NAME}, its glossary, and what stands beside them.", ""]
    lines += [f"- [{lesson.number} · {lesson.title}]({lesson.file}.ipynb): {lesson.skill}" for lesson in lessons]
    lines += ["", "```{toctree}", ":hidden:", *(lesson.file for lesson in lessons), "glossary", *PAGES, "```", ""]
    return "\n".join(lines)


def sentences(readme: str) -> tuple[str, str]:
    """(what the course is, its readers), without marks."""
    both = r"^\*\*(Build .+?)\*\*$.*?^\*\*(For you\*\* .+?)\n\n"
    what, readers = re.search(both, readme, re.MULTILINE | re.DOTALL).groups()
    return what, " ".join(re.sub(r"[*`]", "", readers).split()).split(". ")[0] + "."


def front_page(readme: str, home: str, head: str) -> str:
    """The page, in HTML. Where no script runs, or no server is, a picture stands in place of the engine room.

    Args:
        readme: the text of README.md.
        home: "owner/name" on GitHub, or "".
        head: tags that say to other sites what the page is.
    """
    lessons, routes, number = lessons_of(readme), routes_of(readme), facts()
    what, readers = sentences(readme)
    alt, caption = re.search(r"!\[([^\]]*)\]\([^)]*\.svg\)\n\n\*(.+?)\*\n", readme, re.DOTALL).groups()
    doors = re.sub(r"\[(\w+)\]\(([^)]+)\)", r'<a href="\2">\1</a>', links(home, lessons[0].file))
    pages = {"contents": "Lessons"} | PAGES
    navigation = "".join(f'<a href="{page}.html">{title}</a>' for page, title in pages.items())
    told = {
        f"about {number['lines']}": "lines of code: the whole engine, with its GPU path",
        f"{number['gpu']} ×": "vLLM 0.26’s tokens per second, a mean of workloads on one H200",
        f"{number['cpu']} ×": "one request at a time, on a CPU with 2 cores",
    }
    commands = re.search(r"```\n(make lab.+?)```", readme, re.DOTALL)[1]
    run = f"<p>Or run it: {doors}</p>" if doors else ""
    numbers = "".join(f"<div><dt>{value}</dt><dd>{words}</dd></div>" for value, words in told.items())
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{NAME}: build an LLM serving engine</title>{head}<link rel="icon" href="assets/logo.svg">
<link rel="stylesheet" href="assets/front.css">{MODE}</head><body>
<header><a class="name" href="index.html"><img src="assets/logo.svg" alt="" width="32" height="32">{NAME}</a>
<nav aria-label="Pages">{navigation}</nav></header>
<main><section class="first"><div class="words"><h1>{escape(what)}</h1><p>{escape(readers)}</p>
<p class="doors"><a class="button" href="{lessons[0].file}.html">First lesson</a>
<a class="second button" href="engine_room.html">Open the engine room</a></p>{run}</div>
<div class="numbers"><dl>{numbers}</dl>
<p class="small">The same work on both sides; <a href="benchmarks.html">all of it, and what is slower</a>.</p></div>
<figure><a href="engine_room.html" title="Open the engine room"><picture>
<source media="(prefers-reduced-motion: reduce)" srcset="assets/static_and_continuous.svg#still">
<img src="assets/static_and_continuous.svg" alt="{escape(alt)}" width="900" height="498" loading="lazy"></picture></a>
<figcaption>{escape(" ".join(caption.split()))}</figcaption></figure>{ROOM}</section>
<section><h2>Lessons</h2>{"".join(_route(name, numbers, lessons) for name, numbers in routes.items())}
<ul class="cards">{"".join(_card(lesson, routes) for lesson in lessons)}</ul>
<p>Every term is in the <a href="glossary.html">glossary</a>.</p></section>
<section><h2>Take it to your machine</h2><pre tabindex="0">{escape(commands)}</pre>
<p>Other ways: <a href="install.html">Windows without make, conda, Docker, another model</a>.</p></section></main>
<footer>{NAME} is not part of the vLLM project. MIT license.</footer></body></html>
"""


def _route(name: str, numbers: list[str], lessons: list[Listed]) -> str:
    by_number = {lesson.number: lesson for lesson in lessons}
    purpose, color = ROUTES[name]
    stops = " ".join(
        f'<a href="{by_number[each].file}.html" title="{escape(by_number[each].title)}">{each}</a>' for each in numbers
    )
    minutes = hours(sum(by_number[each].minutes for each in numbers))
    return f'<p class="route" style="--route:{color}"><b>{name}</b> ({purpose}, {minutes}): {stops}</p>'


def _card(lesson: Listed, routes: dict[str, list[str]]) -> str:
    on = [name for name, numbers in routes.items() if lesson.number in numbers]
    skill = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(lesson.skill))
    return (
        f'<li style="--route:{ROUTES[on[0]][1]}"><a href="{lesson.file}.html">'
        f'<img src="assets/{lesson.number}.svg" alt="" loading="lazy">'
        f"<b>{lesson.number} {escape(lesson.title)}</b></a><span>{skill}</span>"
        f"<small>{lesson.minutes} minutes · {' · '.join(on)}</small></li>"
    )
