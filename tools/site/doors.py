"""Where a notebook of the course opens without an install: Colab, Codespaces, Binder.

All addresses follow from one setting: `repository` under [tool.lessons] in pyproject.toml, such as "name/course". In a
workflow of GitHub it is the repository that runs it.
"""

import os
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SETTING = re.compile(r'^\[tool\.lessons\]\nrepository = "([^"]*)"', re.MULTILINE)
BRANCH = "main"
BEGIN, END = (
    "<!-- doors: `python -m tools.site --repository OWNER/NAME` writes these lines -->",
    "<!-- end of doors -->",
)
BADGES = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)


def home_of_record(root: Path = ROOT) -> str:
    """The setting: "owner/name", or "" as long as the course has no home on GitHub."""
    found = SETTING.search((root / "pyproject.toml").read_text(encoding="utf-8"))
    return found[1] if found else ""


def repository(root: Path = ROOT) -> str:
    """Where the pages that are built now send readers: in a workflow to its own repository, which may be a fork."""
    return os.environ.get("GITHUB_REPOSITORY") or home_of_record(root)


def colab(home: str, lesson: str, cell: str = "") -> str:
    """A lesson's notebook for learners in Colab, scrolled to a cell."""
    place = f"#scrollTo={cell}" if cell else ""
    return f"https://colab.research.google.com/github/{home}/blob/{BRANCH}/notebooks/{lesson}.ipynb{place}"


def codespaces(home: str) -> str:
    return f"https://codespaces.new/{home}?quickstart=1"


def binder(home: str, lesson: str) -> str:
    return f"https://mybinder.org/v2/gh/{home}/{BRANCH}?urlpath=lab/tree/notebooks/{lesson}.ipynb"


def links(home: str, lesson: str, cell: str = "") -> str:
    """One line of Markdown, or "" as long as there is no repository."""
    if not home:
        return ""
    return f"[Colab]({colab(home, lesson, cell)}) · [Codespaces]({codespaces(home)}) · [Binder]({binder(home, lesson)})"


def badges(home: str, lesson: str = "00_one_request") -> str:
    """The README's badges, between the lines that mark them."""
    shown = [
        ("Open in Colab", "https://colab.research.google.com/assets/colab-badge.svg", colab(home, lesson)),
        ("Open in GitHub Codespaces", "https://github.com/codespaces/badge.svg", codespaces(home)),
        ("Launch Binder", "https://mybinder.org/badge_logo.svg", binder(home, lesson)),
    ]
    lines = [f"[![{words}]({image})]({address})" for words, image, address in shown] if home else []
    return "\n".join([BEGIN, *lines, END])


def move_to(home: str, root: Path = ROOT) -> None:
    """Make `home` the course's repository: the setting, and the badges of the README. `make notebooks` then gives every
    notebook a cell that installs the course in Colab.

    Raises:
        ValueError: `home` isn't like "owner/name"; nothing is changed.
    """
    if home and not re.fullmatch(r"[\w.-]+/[\w.-]+", home):
        raise ValueError(f"{home!r} is no repository of GitHub; give it as OWNER/NAME. Nothing was changed.")
    setting, readme = root / "pyproject.toml", root / "README.md"
    text = setting.read_text(encoding="utf-8")
    setting.write_text(SETTING.sub(f'[tool.lessons]\nrepository = "{home}"', text), encoding="utf-8")
    readme.write_text(BADGES.sub(badges(home), readme.read_text(encoding="utf-8")), encoding="utf-8")
