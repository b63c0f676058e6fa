"""Where a notebook of the course opens without an install: Colab, Codespaces, Binder.

All addresses follow from one setting: `repository` under [tool.lessons] in pyproject.toml, such as "name/course". In a
workflow of GitHub it is the repository that runs it.
"""

import os
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BRANCH = "main"


def home_of_record() -> str:
    """The setting: "owner/name", or "" as long as the course has no home on GitHub."""
    home: str = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["lessons"]["repository"]
    return home


def repository() -> str:
    """Where the pages that are built now send readers: in a workflow to its own repository, which may be a fork."""
    return os.environ.get("GITHUB_REPOSITORY") or home_of_record()


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
