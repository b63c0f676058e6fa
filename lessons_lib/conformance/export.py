"""One HTML file for each engine that was judged and raced, and a class's table from many of them."""

import html
import json
import re
from pathlib import Path
from typing import Any

from lessons_lib.conformance.level_table import Judged
from lessons_lib.conformance.levels import LEVELS
from lessons_lib.conformance.scoreboard import REFERENCE, Race
from lessons_lib.viz.tables.table import Table
from lessons_lib.viz.timelines import draw_compare

DATA = re.compile(r'<script type="application/json" id="scores">(.*?)</script>', re.DOTALL)
STYLE = (
    "body{font-family:system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;line-height:1.5;"
    "background:#fff;color:#222}table{border-collapse:collapse;margin:1rem 0}"
    "th,td{padding:.2rem .7rem;border-bottom:1px solid #ddd}"
)


def export_page(path: Path | str, name: str, judged: Judged, race: Race) -> Path:
    """Write one HTML file: the levels, the scoreboard, both timelines. It needs no kernel and no network.

    Args:
        name: whose engine it is, or what it is called.
    """
    mine, reference = race.timelines()
    picture = draw_compare(mine, reference, names=(name, REFERENCE))
    data = {
        "name": name,
        "reached": judged.report.reached,
        "held": {level: sum(v.status == "held" for v in each) for level, each in judged.report.verdicts.items()},
        "seed": race.seed,
        "engines": dict(zip(("own", "reference"), race.figures().values())),
    }
    told = "".join(f"<p>{html.escape(line)}</p>" for line in judged.told())
    text = json.dumps(data, indent=1).replace("<", "\\u003c")
    tables = [table._repr_mimebundle_()["text/html"] for table in (judged.table(), race.table())]
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(name)}</title>'
        f"<style>{STYLE}</style></head><body><h1>{html.escape(name)}</h1>{tables[0]}{told}<h2>Scoreboard</h2>{tables[1]}"
        f"<h2>Timelines</h2>{picture.svg}<p>A request appears in the step of its first token.</p>"
        f'<script type="application/json" id="scores">{text}</script></body></html>\n'
    )
    path = Path(path)
    path.write_text(page, encoding="utf-8")
    return path


def read_export(path: Path | str) -> dict[str, Any]:
    """The data in an exported page.

    Raises:
        ValueError: the file is no such page.
    """
    found = DATA.search(Path(path).read_text(encoding="utf-8"))
    if found is None:
        raise ValueError(f"{Path(path).name} has no scores; it isn't a page that export_page has written.")
    data: dict[str, Any] = json.loads(found[1])
    return data


def class_scoreboard(folder: Path | str) -> Table:
    """A row for each exported page in a folder: the highest level first, then the rate relative to the reference.

    Rates of different machines are comparable because each is relative to the reference in the same run.
    """
    names = [level.name for level in LEVELS]
    rows = []
    for each in map(read_export, sorted(Path(folder).glob("*.html"))):
        own, reference = each["engines"]["own"], each["engines"]["reference"]
        relative = [own[key] / reference[key] for key in ("tokens_per_second", "p99_seconds_to_first_token")]
        level = each["reached"][-1] if each["reached"] else "none yet"
        row = [
            each["name"],
            level,
            *(f"{ratio:.2f}" for ratio in relative),
            own["memory_at_peak"],
            own["lines_of_code"],
        ]
        rows.append((-names.index(level) if level in names else 1, -relative[0], row))
    columns = ["engine", "level", "rate", "p99 TTFT", "memory at peak", "lines of code"]
    ordered = [row for *_, row in sorted(rows, key=lambda each: each[:2])]
    return Table(columns, ordered, caption="Rate and p99 TTFT are relative to the reference of the same run")
