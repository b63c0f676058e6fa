"""A raw log that the load generator wrote, shipped with the course."""

import json
from pathlib import Path
from typing import Any

import lessons_lib

RECORDED_LOG = Path(lessons_lib.__file__).parent / "assets" / "recorded" / "load_log.json"


def recorded_log() -> dict[str, Any]:
    """As `load_report` gets it; its "provenance" says how it was made."""
    log: dict[str, Any] = json.loads(RECORDED_LOG.read_text(encoding="utf-8"))
    return log
