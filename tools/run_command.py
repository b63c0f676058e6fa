"""Run a program during the install, and explain it when it fails."""

import os
import subprocess
import sys

from tools.setup_errors import explain_failure

# Of a user's settings pip and uv get those that say where packages come from and how to reach them. Any other, such as
# PIP_PREFIX, PIP_NO_DEPS or UV_TARGET, may send packages elsewhere or leave some out, without an error.
HANDED_ON = (
    *("PIP_" + name for name in (
        "INDEX_URL", "EXTRA_INDEX_URL", "FIND_LINKS", "NO_INDEX", "TRUSTED_HOST", "PROXY", "CERT", "CLIENT_CERT",
        "DEFAULT_TIMEOUT", "TIMEOUT", "RETRIES", "RESUME_RETRIES", "KEYRING_PROVIDER", "USE_FEATURE", "USE_DEPRECATED",
        "CACHE_DIR", "NO_CACHE_DIR", "CONFIG_FILE", "NO_INPUT", "DISABLE_PIP_VERSION_CHECK", "ROOT_USER_ACTION",
        "PROGRESS_BAR", "NO_COLOR")),
    *("UV_" + name for name in (
        "INDEX_URL", "EXTRA_INDEX_URL", "DEFAULT_INDEX", "FIND_LINKS", "NO_INDEX", "OFFLINE", "INSECURE_HOST",
        "NATIVE_TLS", "SYSTEM_CERTS", "HTTP_TIMEOUT", "HTTP_CONNECT_TIMEOUT", "REQUEST_TIMEOUT", "HTTP_RETRIES",
        "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "KEYRING_PROVIDER", "CONCURRENT_DOWNLOADS", "CONCURRENT_BUILDS",
        "CONCURRENT_INSTALLS", "CACHE_DIR", "NO_CACHE", "CONFIG_FILE", "NO_CONFIG", "LINK_MODE", "NO_PROGRESS")),
)  # fmt: skip
SWITCHED_OFF = {"PIP_NO_DEPS": "0", "PIP_USER": "0"}  # in pip.conf too, which the variables override


def is_handed_on(name):
    name = name.upper()
    if name.startswith(("PIP_", "UV_")):
        return name in HANDED_ON or name.startswith("UV_INDEX")  # UV_INDEX_<NAME>_PASSWORD, and the like
    return name not in ("PYTHONHOME", "PYTHONPATH")  # pip would count packages found there as installed


def install_environment(environ):
    """The variables that pip and uv run with: `environ` without what would mislead them."""
    kept = {name: value for name, value in environ.items() if is_handed_on(name)}
    kept.update(SWITCHED_OFF)
    if not os.isatty(0):
        kept.setdefault("PIP_NO_INPUT", "1")  # else pip asks for a password, and nothing answers
    return kept


def succeeds(command):
    try:
        return subprocess.call(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               env=install_environment(os.environ)) == 0  # fmt: skip
    except OSError:
        return False


def output_of(command, with_errors=False):
    """What `command` prints; unless with_errors, empty when it fails."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL,
                              stderr=subprocess.STDOUT if with_errors else subprocess.DEVNULL,
                              env=install_environment(os.environ))  # fmt: skip
    except OSError:
        return ""
    return done.stdout.decode("utf-8", "replace") if with_errors or done.returncode == 0 else ""


def run_or_explain(command, root, quiet=False):
    """Run `command`; if it fails, raise a SetupError that says what to do.

    Its output goes to the terminal unchanged, progress bars too (quiet: nowhere). Errors pass through here, because the
    last lines tell a full disk from a missing network.
    """
    try:
        process = subprocess.Popen(command, cwd=root, stdout=subprocess.DEVNULL if quiet else None,
                                   stderr=subprocess.PIPE, env=install_environment(os.environ))  # fmt: skip
    except OSError as error:
        raise explain_failure(f"{error}", root) from None
    said = []
    for line in iter(process.stderr.readline, b""):
        said.append(line.decode("utf-8", "replace"))
        sys.stderr.write(said[-1])
    process.stderr.close()
    if process.wait() != 0:
        raise explain_failure("".join(said), root)
