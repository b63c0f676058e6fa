"""Elements that scripts of the page bring to life, without a kernel."""

import base64
import json
import re
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path

from lessons_lib.viz.notebook import in_notebook

_IMPORT = re.compile(r'^import .*? from "(.+?)";\n', re.MULTILINE)


def live_element(module: Path, kind: str, data: object, still: Mapping[str, str], classes: str = "") -> dict[str, str]:
    """Everything that a cell shows for a custom element.

    Args:
        module: the JavaScript that defines it. It may import others, without renaming anything.
        kind: its name there.
        data: what it reads from the <script> inside, ready for JSON. 650 kB of a player's JSON are packed into 58.
        still: the mimebundle shown where no script runs (GitHub, a notebook that isn't trusted).
    """
    # JupyterLab would take the arrow keys for itself.
    tag = f"{kind} class='{classes}' data-lm-suppress-shortcuts='true'"
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    packed = base64.b64encode(zlib.compress(text.encode(), 9)).decode()
    inside = f'{still["text/html"]}<script type="application/zlib">{packed}</script>'
    return dict(still) | {"text/html": f"<{tag}>{inside}</{kind}>{_script(module)}"}


def bundled(module: Path) -> str:
    """A module and those that it imports, as one."""
    texts: dict[Path, str] = {}

    def add(file: Path) -> None:
        if file not in texts:
            text = file.read_text(encoding="utf-8")
            for name in _IMPORT.findall(text):
                add((file.parent / name).resolve())
            texts[file] = _IMPORT.sub("", text)

    add(module.resolve())
    return "".join(texts.values())


_shown_in: dict[Path, object] = {}  # a module, and the cell whose output holds it


def _script(module: Path) -> str:
    """The module, in one output of a notebook; in Colab in each, because there an output is a page of its own."""
    cell = _running_cell()
    if _shown_in.setdefault(module, cell) != cell and "google.colab" not in sys.modules:
        return ""
    _shown_in[module] = cell
    return f'<script type="module">{bundled(module)}</script>'


def _running_cell() -> object:
    """What tells a cell from others, also when it runs again; outside of notebooks always the same."""
    if not in_notebook():
        return "no notebook"
    request = sys.modules["IPython"].get_ipython().get_parent()
    # Some clients name no cell, nor do all of them count what they execute; each request has an id.
    return request.get("metadata", {}).get("cellId") or request.get("header", {}).get("msg_id")
