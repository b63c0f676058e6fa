"""The cell that installs the course in Colab, which opens a notebook without it. Elsewhere it is folded, and inert.

Where the course is on GitHub says `repository` under [tool.lessons] in pyproject.toml. As long as that is empty, Colab
can't open the notebooks, and they have no such cell.
"""

import nbformat
from nbformat import NotebookNode

TITLE = "#@title Install the course in Colab"


def colab_cell(home: str) -> list[NotebookNode]:
    """The cell in a list, or an empty list. `home`: "owner/name" on GitHub, or ""."""
    if not home:
        return []
    source = (
        f"{TITLE}\n"
        "import sys\n"
        f'if "google.colab" in sys.modules: get_ipython().system("pip install -q git+https://github.com/{home}")'
    )
    folded = {"tags": ["nbval-check-output"], "jupyter": {"source_hidden": True}, "cellView": "form"}
    return [nbformat.v4.new_code_cell(source, metadata=folded)]


def is_colab_cell(cell: NotebookNode) -> bool:
    return cell.source.startswith(TITLE)
