"""Where production engines have the parts that the course builds: production_map.yaml, as tables."""

from pathlib import Path

import yaml

from lessons_lib.viz.tables.table import Table

_MAP = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
# name -> its version, and the folder that files are in
ENGINES: dict[str, dict[str, str]] = _MAP["engines"]
# Of each part: `what` it is, the `lesson` that builds it, "file name" of it here (`ours`), and of it in each engine
# (`there`).
PARTS: list[dict] = _MAP["parts"]  # type: ignore[type-arg]


def parts_in(engine: str) -> Table:
    """Where one engine has them, without those that have no single place there."""
    if engine not in ENGINES:
        raise ValueError(f"the map has no {engine!r}; choose one of {', '.join(ENGINES)}.")
    rows = []
    for part in PARTS:
        if place := part["there"].get(engine):
            file, name = place.split()
            rows.append([part["what"], part["lesson"], part["ours"].split()[1], name, file.removeprefix("/")])
    version, folder = ENGINES[engine]["version"], ENGINES[engine]["folder"]
    return Table(
        ["part", "lesson", "here", "there", "file"],
        rows,
        caption=f"{engine} {version}; files are in {folder} if they don't begin with a package",
    )
