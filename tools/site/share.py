"""What a page says to search engines and to sites on which its address is shared: words, and a picture made here."""

import re
import textwrap
from collections.abc import Callable
from html import escape, unescape
from pathlib import Path

from tools.site.doors import ROOT, repository
from tools.site.front_page import NAME, Listed

SIZE = 1200, 630  # pixels, what such sites show
PICTURE = "03"  # the lesson whose picture stands for all
PARAGRAPH = re.compile(r"<p>(.+?)</p>", re.DOTALL)
INNER = re.compile(r'^<svg [^>]*?viewBox="([^"]+)"[^>]*>(.*)</svg>\s*$', re.DOTALL)
STYLE_OF_NIGHT = re.compile(r"<style>@media[^<]*</style>")


def address() -> str:
    """Of the site, as GitHub Pages gives it to the repository; "" as long as there is none."""
    owner, _, name = repository().partition("/")
    return f"https://{owner}.github.io/{name}/" if name else ""


def first_words(body: str) -> str:
    """The first paragraph with words in a page's HTML, 200 characters at most; "" if there is none."""
    paragraphs = (" ".join(unescape(re.sub(r"<[^>]+>", "", text)).split()) for text in PARAGRAPH.findall(body))
    return textwrap.shorten(next(filter(None, paragraphs), ""), 200, placeholder=" …")


def head(title: str, words: str, page: str) -> str:
    """The tags, in HTML. `page` is the name of its picture in og/, such as "03_block_allocator"."""
    tags = {"og:site_name": NAME, "og:type": "website", "og:title": title, "og:description": words}
    tags |= {"og:image": f"{address()}og/{page}.png", "og:image:width": f"{SIZE[0]}", "og:image:height": f"{SIZE[1]}"}
    told = "".join(f'<meta property="{name}" content="{escape(content)}">' for name, content in tags.items())
    return (
        f'<meta name="description" content="{escape(words)}">'
        f'<meta name="twitter:card" content="summary_large_image">{told}'
    )


def card(number: str, heading: str, words: str) -> str:
    """The picture that is shared, as SVG: a lesson's opening under its heading."""
    picture = Path(ROOT, "lessons_lib/assets/openings", f"{number}.svg").read_text(encoding="utf-8")
    box, inside = INNER.match(STYLE_OF_NIGHT.sub("", picture)).groups()
    logo = INNER.match(Path(ROOT, "lessons_lib/assets/logo.svg").read_text(encoding="utf-8"))[2]
    wrapped = textwrap.wrap(words.replace("`", ""), 84)[:2]
    top = 150 + 34 * len(wrapped)
    lines = "".join(
        f'<text x="60" y="{150 + 34 * at}" font-size="26" fill="#555555">{escape(line)}</text>'
        for at, line in enumerate(wrapped)
    )
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 1200 630" '
        f'font-family="Helvetica, Arial, \'DejaVu Sans\', sans-serif"><rect width="1200" height="630" fill="#FDFDFB"/>'
        f'<text x="60" y="98" font-size="46" font-weight="bold" fill="#1A1A1A">{escape(heading)}</text>{lines}'
        f'<svg x="60" y="{top}" width="1080" height="{550 - top}" viewBox="{box}">{inside}</svg>'
        f'<svg x="60" y="566" width="40" height="40" viewBox="0 0 32 32">{logo}</svg>'
        f'<text x="112" y="595" font-size="28" font-weight="bold" fill="#1A1A1A">{NAME}</text></svg>'
    )


def write_cards(lessons: list[Listed], what: str, folder: Path, to_png: Callable[..., bytes]) -> None:
    """A picture for each lesson, and index.png for all other pages."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = {lesson.file: (lesson.number, f"{lesson.number} · {lesson.title}", lesson.skill) for lesson in lessons}
    for name, words in (pictures | {"index": (PICTURE, NAME, what)}).items():
        (folder / f"{name}.png").write_bytes(to_png(svg_string=card(*words), width=SIZE[0]))
