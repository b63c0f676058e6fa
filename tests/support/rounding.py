"""The environment variables under which Python rounds as another processor might: see `other_rounding`."""

import os
from pathlib import Path

FOLDER = Path(__file__).parent / "other_rounding"


def other_rounding(number: int | str) -> dict[str, str]:
    """For the processes of a test. Different numbers round differently."""
    paths = [str(FOLDER), os.environ.get("PYTHONPATH")]
    return {"LESSONS_ROUNDING": str(number), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
