"""axe-core in a page: what it calls serious or critical.

It comes from `npm install --no-save axe-core` in the course's folder, or from the folder AXE_CORE.
"""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def axe_source() -> str | None:
    """axe-core's code, or None if it isn't there."""
    folder = Path(os.environ.get("AXE_CORE", ROOT / "node_modules" / "axe-core"))
    file = folder / "axe.min.js"
    return file.read_text(encoding="utf-8") if file.exists() else None


def axe_faults(tab, axe: str, within: str = "html") -> list[str]:
    """Serious and critical faults of the elements `within` (a CSS selector), those inside the players among them."""
    tab.evaluate(axe)
    options = {"resultTypes": ["violations"]}
    found = tab.evaluate(
        "async ([within, options]) => (await axe.run({include: [[within]]}, options)).violations", [within, options]
    )
    return [
        f"{fault['id']}: {node['target']} {node['html'][:160]}"
        for fault in found
        if fault["impact"] in ("serious", "critical")
        for node in fault["nodes"][:3]
    ]
