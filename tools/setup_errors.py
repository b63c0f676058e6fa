"""What course.py needs before it knows which Python runs it: no f-strings, no annotations here."""

import os
import sys


class SetupError(Exception):
    """The course cannot be set up here; the message says why and what to do."""


def is_disk_full(text):
    return any(sign in text for sign in ("No space left on device", "[Errno 28]", "os error 28", "Disk quota exceeded"))


def print_any_text():
    """Escape what the terminal's encoding lacks (a letter of a folder's name, say), instead of failing to print it."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    # For the programs that are started from here: the same encoding, the same rule.
    encoding = os.environ.get("PYTHONIOENCODING", "").split(":")[0]
    os.environ["PYTHONIOENCODING"] = encoding + ":backslashreplace"
