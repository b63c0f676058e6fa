"""Errors of the setup, and what the output of a failed install means.

course.py imports this file before it knows which Python it runs on: no f-strings, no annotations here.
"""

import tempfile

FIRST_INSTALL_GB = 4.0  # measured on Linux: .venv takes 2.4 GB with the CPU build of torch, and unpacking needs room


class SetupError(Exception):
    """The course cannot be set up here; the message says why and what to do."""


class NoNetwork(SetupError):
    """Packages could not be fetched. pip and uv fetch everything before they install anything, so nothing changed."""


NO_NETWORK = (
    "Name or service not known",
    "Temporary failure in name resolution",
    "getaddrinfo failed",
    "nodename nor servname",
    "Failed to establish a new connection",
    "NewConnectionError",
    "Network is unreachable",
    "No route to host",
    "ConnectTimeoutError",
    "Connection timed out",
    "ProxyError",
    "Cannot connect to proxy",
    "Read timed out",
    "No address associated with hostname",
    "Failed to resolve",
    "Could not resolve host",
    "dns error",
    "error sending request for url",
    "tcp connect error",
    "operation timed out",
)  # uv's words


def explain_failure(said, root):
    """Turn the error output of a failed venv, pip or uv into an error that says what to do."""
    again = "Then run the same command again."
    if is_disk_full(said):
        return SetupError(disk_full_message(root))
    if any(sign in said for sign in NO_NETWORK):
        return NoNetwork(
            "The packages could not be fetched: no network, or the package index does not answer.\n"
            "Check the connection (behind a proxy: set HTTPS_PROXY; with a mirror: set PIP_INDEX_URL, or "
            "UV_DEFAULT_INDEX for uv). " + again
        )
    if any(sign in said for sign in ("Permission denied", "Read-only file system", "Operation not permitted")):
        return SetupError(
            "The install was not allowed to write. Copy the whole course folder (%s) to a folder that "
            "you own, such as your home folder, and run the same command there." % root
        )
    if "No matching distribution found" in said or "No solution found when resolving dependencies" in said:
        return SetupError(
            "A package has no build for this Python or this machine (its name is in the output above).\n"
            "Try another supported Python, for example `make lab PYTHON=python3.12`; torch has no build "
            "for 32-bit and very old systems."
        )
    return SetupError("The install failed; the output above says why. Fix it. " + again)


def disk_full_message(root):
    return (
        "The disk is full: %s or the folder for temporary files (%s) has no space left.\n"
        "Free about %.0f GB (`pip cache purge` may help; TMPDIR=/a/larger/disk moves the temporary files), then "
        "run the same command again." % (root, tempfile.gettempdir(), FIRST_INSTALL_GB)
    )


def is_disk_full(text):
    return any(sign in text for sign in ("No space left on device", "[Errno 28]", "os error 28", "Disk quota exceeded"))
