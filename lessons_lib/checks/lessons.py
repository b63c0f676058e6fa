"""The lessons as a learner finds them: their files, titles, minutes and routes, read from the released notebooks."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

RELEASED = Path(__file__).resolve().parents[2] / "notebooks"
TILES = Path(__file__).resolve().parents[1] / "assets" / "tiles"
HEADER = re.compile(r"^# (?P<number>\d\d) · (?P<title>.+)$", re.MULTILINE)
FACTS = re.compile(r"^(?P<minutes>[\d–]+) minutes · .*?routes: (?P<routes>[^·]+)", re.MULTILINE)
ROUTE = re.compile(r"\b(ideas|kernels|serving)\b")
FURTHER = "## Further (optional)"  # the heading of a lesson's last section


@dataclass(frozen=True)
class LessonPage:
    """A lesson's file and what its first cell says.

    Attributes:
        number, name: such as "03" and "03_block_allocator".
        minutes: as written, such as "105".
        routes: such as ("ideas", "serving").
        exercises: their ids, without the optional ones.
        optional: the ids of those in the lesson's last section, which can be left out.
        tile: a part of its main picture, as SVG; "" if there is none.
    """

    number: str
    name: str
    title: str
    minutes: str
    routes: tuple[str, ...]
    exercises: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    tile: str = ""


def page_of(
    name: str, text: str, exercises: tuple[str, ...] = (), optional: tuple[str, ...] = (), tile: str = ""
) -> LessonPage:
    """Read the header from a lesson's text."""
    header, facts = HEADER.search(text), FACTS.search(text)
    title = header["title"] if header else name[3:].replace("_", " ")
    routes = tuple(ROUTE.findall(facts["routes"])) if facts else ()
    return LessonPage(name[:2], name, title, facts["minutes"] if facts else "", routes, exercises, optional, tile)


def released_pages() -> list[LessonPage]:
    """All released lessons in order; a damaged notebook counts as one without a header."""
    return [_released_page(path) for path in sorted(RELEASED.glob("[0-9][0-9]_*.ipynb"))]


def beside(file: str) -> str:
    """The link to a page of the course from the notebook's folder: in solutions/ there is no START and no glossary."""
    return file if Path(file).exists() else f"../{RELEASED.name}/{file}"


def _exercises_in(cells: list[dict]) -> tuple[str, ...]:
    ids = (cell.get("id", "") for cell in cells)
    return tuple(id[3:].replace("-", ".") for id in ids if id.startswith("ex-"))


def _released_page(path: Path) -> LessonPage:
    file = TILES / f"{path.stem[:2]}.svg"
    tile = file.read_text(encoding="utf-8") if file.exists() else ""
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        # The modules of the exercises know them too, but importing them all takes seconds.
        starts = ("".join(cell["source"]).startswith(FURTHER) for cell in cells)
        end = next((place for place, is_further in enumerate(starts) if is_further), len(cells))
        text = "".join(cells[0]["source"])
        return page_of(path.stem, text, _exercises_in(cells[:end]), _exercises_in(cells[end:]), tile)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return page_of(path.stem, "", tile=tile)
