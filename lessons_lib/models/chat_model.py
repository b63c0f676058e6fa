"""The optional chat model, SmolLM2-135M-Instruct. `make chat-model` downloads it once."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

CHAT_MODEL = "SmolLM2-135M-Instruct"


def chat_model_folder(environment: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Path:
    """Return the model's folder in the user's cache, shared by all copies of the course.

    `$LESSONS_CACHE` if set, else `$XDG_CACHE_HOME/lessons` if set; otherwise `~/.cache/lessons` on Linux,
    `~/Library/Caches/lessons` on macOS and `%LOCALAPPDATA%\\lessons` on Windows.
    """
    if own := environment.get("LESSONS_CACHE"):
        return Path(own).expanduser() / CHAT_MODEL
    xdg = environment.get("XDG_CACHE_HOME", "")
    if os.path.isabs(xdg):  # the specification says to ignore relative paths
        cache = Path(xdg)
    elif platform == "win32" and environment.get("LOCALAPPDATA"):
        cache = Path(environment["LOCALAPPDATA"])
    else:
        cache = Path.home() / ("Library/Caches" if platform == "darwin" else ".cache")
    return cache / "lessons" / CHAT_MODEL


def chat_model_path() -> Path | None:
    """Return the chat model's folder for `load_model`; None if it isn't downloaded. It is created atomically."""
    folder = chat_model_folder()
    return folder if (folder / "config.json").is_file() else None
