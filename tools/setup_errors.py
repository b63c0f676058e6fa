"""Errors of the setup, and what the output of a failed install means.

course.py imports this file before it knows which Python it runs on: no f-strings, no annotations here.
"""

import os
import re
import sys
import tempfile

FIRST_INSTALL_GB = 4.0  # measured on Linux: .venv takes 2.4 GB with the CPU build of torch, and unpacking needs room


class SetupError(Exception):
    """The course cannot be set up here; the message says why and what to do."""


class NoNetwork(SetupError):
    """Packages could not be fetched. pip and uv fetch everything before they install anything, so nothing changed."""


class NoBuild(SetupError):
    """The index offers no build of `package`; pip says the same of an index that answers with an error."""

    def __init__(self, message, package):
        SetupError.__init__(self, message)
        self.package = package


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


CERTIFICATE = ("CERTIFICATE_VERIFY_FAILED", "invalid peer certificate", "confirming the ssl certificate")

# How pip and uv spell the HTTP status of an answer that is an error.
HTTP_STATUS = re.compile(
    r"(\d{3}) (?:Client|Server) Error|too many (\d{3}) error responses|Tunnel connection failed: (\d{3})"
    r"|HTTP status (?:client|server) error \((\d{3})|returned a (\d{3}) |credentials \((\d{3}) "
)
NO_PACKAGE = re.compile(r"No matching distribution found for ([A-Za-z0-9._-]+)|there are no versions of ([\w.-]+) and")
AGAIN = "Then run the same command again."


def explain_failure(said, root):
    """Turn the error output of a failed venv, pip or uv into an error that says what to do."""
    if is_disk_full(said):
        return SetupError(disk_full_message(root))
    if "DO NOT MATCH THE HASHES" in said:
        return SetupError(
            "A downloaded file is not the one that was expected (see its hash above), so it is not used.\n"
            "Run the same command again. If the hash is wrong again, the package index or a proxy changes files: use "
            "another one\n(PIP_INDEX_URL, or UV_DEFAULT_INDEX for uv)."
        )
    refusal = explain_answer(said)
    if refusal:
        return refusal
    if any(sign in said for sign in NO_NETWORK):
        return NoNetwork(
            "The packages could not be fetched: no network, or the package index does not answer.\n"
            "Check the connection (behind a proxy: set HTTPS_PROXY; with a mirror: set PIP_INDEX_URL, or "
            "UV_DEFAULT_INDEX for uv). " + AGAIN
        )
    if any(sign in said for sign in ("Permission denied", "Read-only file system", "Operation not permitted")):
        return SetupError(
            "The install was not allowed to write in %s. If parts of it belong to another user (after `sudo make "
            "lab`, say),\nmake it yours: `sudo chown -R $(id -un) .` in that folder. Otherwise copy the whole folder "
            "to one that you own,\nsuch as your home folder. %s" % (root, AGAIN)
        )
    package = NO_PACKAGE.search(said)
    if package and package.group(2):  # uv: the index answered, but listed no file at all
        return NoNetwork(not_an_index(package.group(2)))
    if package or "No solution found when resolving dependencies" in said:
        return NoBuild(
            "A package has no build for this Python or this machine (its name is in the output above).\n"
            "Try another supported Python, for example `make lab PYTHON=python3.12`; torch has no build "
            "for 32-bit and very old systems.",
            package.group(1) if package else None,
        )
    if "No module named pip" in said or ("Traceback (most recent call last)" in said and "_internal" in said):
        return SetupError(
            "pip in .venv is damaged (see above). Run the same command again: it makes .venv afresh.\n"
            "If that fails too, use another Python, for example `make lab PYTHON=python3.12`."
        )
    return SetupError("The install failed; the output above says why. Fix it. " + AGAIN)


def explain_answer(said):
    """What an index or a proxy answered in place of packages, as an error that says what to do; else None."""
    statuses = [int("".join(found)) for found in HTTP_STATUS.findall(said)]
    if "proxy authorization required" in said:  # uv
        statuses.append(407)
    # With two indexes, one may rightly know nothing of a package: another answer says more than a 404.
    status = max(statuses, key=lambda status: status != 404) if statuses else None
    if status == 407:
        return NoNetwork(
            "The packages could not be fetched: the proxy asks for a user name and a password (HTTP status 407).\n"
            "Set HTTPS_PROXY=http://name:password@host:port (and HTTP_PROXY the same). " + AGAIN
        )
    if status in (401, 403):
        return NoNetwork(
            "The packages could not be fetched: the package index, or a filter on the way to it, refuses access (HTTP "
            "status %d).\nCheck its address and your credentials (PIP_INDEX_URL, or UV_DEFAULT_INDEX for uv), or use "
            "another network. %s" % (status, AGAIN)
        )
    if status == 404:
        return NoNetwork(
            "The package index does not know a package that the course needs (HTTP status 404).\n"
            "Check the index's address (PIP_INDEX_URL, or UV_DEFAULT_INDEX for uv). " + AGAIN
        )
    if status:
        return NoNetwork(
            "The packages could not be fetched: the package index has a problem of its own (HTTP status %d).\n"
            "Wait some minutes, or use a mirror (PIP_INDEX_URL, or UV_DEFAULT_INDEX for uv). %s" % (status, AGAIN)
        )
    if any(sign in said for sign in CERTIFICATE):
        return NoNetwork(
            "The packages could not be fetched: the certificate of the server that answers is not trusted.\n"
            "If this network has a sign-in page, open it in a browser. Behind a company's proxy, set PIP_CERT (for uv: "
            "SSL_CERT_FILE)\nto its certificate. Check this machine's clock, too. " + AGAIN
        )
    return None


def explain_no_build(error, said):
    """Replace a NoBuild by what the index really answered.

    said    all that `pip -vv index versions` says of the package, which `pip install` keeps to itself
    """
    if "Skipping link: none of the wheel" in said or "requires a different Python" in said or "Found link" in said:
        return error  # the index works; its builds are for others
    answer = explain_answer(said)
    if answer:
        return answer
    if "Fetched page" in said or "Content-Type" in said:
        return NoNetwork(not_an_index(error.package))
    return error


def not_an_index(package):
    return (
        "The package index answered, but its page for %s lists no packages: something else may have answered,\n"
        "such as the sign-in page of a hotel, train or campus network. Open any page in a browser and sign in; with a "
        "mirror,\ncheck its address (PIP_INDEX_URL, or UV_DEFAULT_INDEX for uv). %s" % (package, AGAIN)
    )


def disk_full_message(root):
    return (
        "The disk is full: %s or the folder for temporary files (%s) has no space left.\n"
        "Free about %.0f GB (`pip cache purge` may help; TMPDIR=/a/larger/disk moves the temporary files), then "
        "run the same command again." % (root, temporary_folder(), FIRST_INSTALL_GB)
    )


def temporary_folder():
    """Where temporary files go. If no folder can be written, the one that is tried first."""
    try:
        return tempfile.gettempdir()
    except (IOError, OSError):  # each is full or not ours
        return os.environ.get("TMPDIR", "/tmp")


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
