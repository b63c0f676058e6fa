"""Where the chat model lives: SmolLM2-135M-Instruct, which `make chat-model` downloads once. The course runs without
it."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

CHAT_MODEL = "SmolLM2-135M-Instruct"


def chat_model_folder(environment: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Path:
    """Where `make chat-model` puts the model: a folder of the user's cache, so that every copy of the course finds it.

    `LESSONS_CACHE` if that is set; otherwise `$XDG_CACHE_HOME/lessons`, which is `~/.cache/lessons` unless the user has
    another; `~/Library/Caches/lessons` on macOS and `%LOCALAPPDATA%\\lessons` on Windows.
    """
    if own := environment.get("LESSONS_CACHE"):
        return Path(own).expanduser() / CHAT_MODEL
    xdg = environment.get("XDG_CACHE_HOME", "")
    if os.path.isabs(xdg):  # the specification says to ignore a relative one
        cache = Path(xdg)
    elif platform == "win32" and environment.get("LOCALAPPDATA"):
        cache = Path(environment["LOCALAPPDATA"])
    else:
        cache = Path.home() / ("Library/Caches" if platform == "darwin" else ".cache")
    return cache / "lessons" / CHAT_MODEL


def chat_model_path() -> Path | None:
    """The folder of the chat model, for `load_model`; None if it has not been downloaded. It appears in one piece, so
    what is there is complete."""
    folder = chat_model_folder()
    return folder if (folder / "config.json").is_file() else None
