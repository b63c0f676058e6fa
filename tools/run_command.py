"""Run a program during the install, and explain it when it fails."""

import os
import subprocess
import sys

from tools.setup_errors import explain_failure

# A user's settings that would send packages elsewhere, or leave some out, without an error.
MISLEADING = {
    *(tool + name for tool in ("PIP_", "UV_") for name in
      ("TARGET", "PREFIX", "ROOT", "USER", "NO_DEPS", "DRY_RUN", "PYTHON", "REQUIREMENT", "NO_BINARY", "SYSTEM_PYTHON")),  # noqa: E501
    "PYTHONHOME",
    "PYTHONPATH",  # pip would count packages found there as installed
}  # fmt: skip


def install_environment(environ):
    """The variables that pip and uv run with: `environ` without the misleading ones."""
    return {name: value for name, value in environ.items() if name.upper() not in MISLEADING}


def succeeds(command):
    try:
        return subprocess.call(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               env=install_environment(os.environ)) == 0  # fmt: skip
    except OSError:
        return False


def output_of(command):
    """What `command` prints; empty when it fails."""
    try:
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True,
                              env=install_environment(os.environ)).stdout.decode("utf-8", "replace")  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return ""


def run_or_explain(command, root):
    """Run `command`; if it fails, raise a SetupError that says what to do.

    Its output goes to the terminal unchanged, progress bars too. Errors pass through here, because the last lines
    tell a full disk from a missing network.
    """
    process = subprocess.Popen(command, cwd=root, stderr=subprocess.PIPE, env=install_environment(os.environ))
    said = []
    for line in iter(process.stderr.readline, b""):
        said.append(line.decode("utf-8", "replace"))
        sys.stderr.write(said[-1])
    process.stderr.close()
    if process.wait() != 0:
        raise explain_failure("".join(said), root)
