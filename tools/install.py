"""Install the course into .venv, once: with uv where it is on the PATH, else with venv and pip.

The versions are those of constraints.txt. A stamp in .venv says what was installed: a second call installs nothing, and
a call after an interrupted install starts afresh. A .venv without a stamp isn't ours, and is left alone.
"""

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request

from tools.setup_errors import SetupError, is_disk_full

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
INSTALL_GB = 4.0  # measured on Linux: .venv takes 2.4 GB with the CPU build of torch, and unpacking needs room
AGAIN = "Then run the same command again."
SAME_PYTHON = "import sys, pip; sys.exit(sys.version_info[:2] != (%d, %d))" % sys.version_info[:2]
LANDED = "from importlib.metadata import version; version('lessons_lib'); version('torch')"
# Settings that would send packages elsewhere than into .venv, or count what lies elsewhere as installed.
MISLEADING = ("PYTHONHOME", "PYTHONPATH", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "UV_TARGET", "UV_PREFIX")


class NoNetwork(SetupError):
    """Packages could not be fetched. pip and uv fetch everything before they install anything, so nothing changed."""


class Environment:
    """`.venv` next to the README, and the stamp that says what is in it."""

    def __init__(self, root=ROOT):
        self.root = root
        self.folder = os.path.join(root, ".venv")
        self.python = os.path.join(self.folder, *(["Scripts", "python.exe"] if os.name == "nt" else ["bin", "python"]))
        self.stamp = os.path.join(self.folder, "course-stamp.json")

    def fingerprint(self):
        """A hash of everything that decides what gets installed."""
        digest = hashlib.sha256(b"%d.%d" % sys.version_info[:2])
        for name in ("pyproject.toml", "constraints.txt"):
            with open(os.path.join(self.root, name), "rb") as file:
                digest.update(file.read())
        return digest.hexdigest()

    def read_stamp(self):
        """The stamp as a dictionary; empty if there is none or it cannot be read."""
        try:
            with open(self.stamp) as file:
                stamp = json.load(file)
        except (OSError, ValueError):
            return {}
        return stamp if isinstance(stamp, dict) else {}

    def write_stamp(self, extras, unfinished=False):
        """Record an install. The stamp names the folder, because a .venv does not survive a move."""
        stamp = {"root": self.root, "fingerprint": self.fingerprint(), "extras": extras, "unfinished": unfinished}
        with open(self.stamp + ".part", "w") as file:
            json.dump(stamp, file)
        os.replace(self.stamp + ".part", self.stamp)

    def is_usable(self):
        """Can packages be installed into what is there?"""
        stamp = self.read_stamp()
        return stamp.get("root") == self.root and not stamp.get("unfinished") and succeeds(
            [self.python, "-c", SAME_PYTHON])  # fmt: skip

    def is_ready(self, extra):
        """Is the course installed with `extra`, a name from pyproject.toml or ""?"""
        stamp = self.read_stamp()
        return (
            stamp.get("root") == self.root
            and stamp.get("fingerprint") == self.fingerprint()
            and not stamp.get("unfinished")
            and {extra} - {""} <= set(stamp.get("extras", []))
            and os.path.exists(self.python)
        )


def install(env, extra, torch_index="", say=print):
    """Make `env` contain the course with `extra`. Does nothing if it does; repairs an install that was cut short."""
    if env.is_ready(extra):
        return
    for folder in (env.root, env.folder):
        if os.path.isdir(folder) and not os.access(folder, os.W_OK | os.X_OK):
            raise SetupError(not_writable(folder))
    with only_one_at_a_time(env.root, say):
        if not env.is_ready(extra):  # else another call installed it while we waited
            _install(env, extra, torch_index, say)
            say("Installed.")


def _install(env, extra, torch_index, say):
    usable, uv = env.is_usable(), find_uv(os.environ)
    before = env.read_stamp().get("extras", []) if usable else []
    extras = sorted({*before, extra} - {""})
    if not usable:
        remove(env, say)
        free = shutil.disk_usage(env.root).free / 1e9
        if free < INSTALL_GB:
            raise SetupError(f"Too little disk space: {free:.1f} GB are free in {env.root}, and {INSTALL_GB:.0f} are "
                             f"needed. Nothing was installed.\nFree some space. {AGAIN}")  # fmt: skip
    index, words = choose_torch_index(torch_index, sys.platform)
    say(f"Installing the course into {env.folder}{' with uv' if uv else ''} (the first time takes some minutes).")
    if words:
        say(words)
    os.makedirs(env.folder, exist_ok=True)
    env.write_stamp(extras, unfinished=True)
    if not usable and uv:
        run([uv, "venv", "-q", "--allow-existing", "--python", sys.executable, env.folder], env.root)
    elif not usable:
        run([sys.executable, "-m", "venv", env.folder], env.root)
    installer = [uv, "pip", "install", "--python", env.python] if uv else [env.python, "-m", "pip", "install"]
    try:
        run(install_command(installer, extras, index), env.root, installer)
    except NoNetwork:
        if usable:
            env.write_stamp(before)
        raise
    if not succeeds([env.python, "-I", "-c", LANDED]):
        raise SetupError(
            f"The install reported success, but its packages are not in {env.folder}: a setting sends them elsewhere.\n"
            f"Look for no-deps, target, prefix or root in `python3 -m pip config list` (uv: uv.toml). {AGAIN}"
        )
    # On all cores; pip would use one. A file that fails here fails, or not, when it is imported.
    succeeds([env.python, "-m", "compileall", "-qq", "-j", "0", os.path.join(env.folder, "lib")])
    env.write_stamp(extras)


def install_command(installer, extras, index):
    """The command that installs the exact versions of constraints.txt; it runs in the course's folder.

    "." and not the folder's name: pip and uv would read x[1] as a package with an extra.
    """
    uv = "-m" not in installer
    command = [*installer, "-c", "constraints.txt", "pip" if uv else "--no-compile"]  # uv's environments have no pip
    if index and uv:  # with the second option uv takes the best version from all indexes, as pip does
        command += ["--index", index, "--index-strategy", "unsafe-best-match"]
    elif index:
        command += ["--extra-index-url", index]
    return [*command, "-e", f".[{','.join(extras)}]" if extras else "."]


def remove(env, say):
    """Remove an install that cannot be used. What this course did not make may be someone's work."""
    folder = env.folder
    if not os.path.lexists(folder):
        return
    if os.path.islink(folder) or not os.path.isdir(folder) or (os.listdir(folder) and not os.path.exists(env.stamp)):
        raise SetupError(f"{folder} is in the way: the course installs itself there, and this one it did not make (it "
                         f"has no {os.path.basename(env.stamp)}).\nRename or remove it. {AGAIN}")  # fmt: skip
    say(f"Removing {folder}: it is unfinished, or was made by another Python or elsewhere.")
    try:
        shutil.rmtree(folder)
    except BaseException as error:
        if os.path.isdir(folder):
            with contextlib.suppress(OSError):  # it stays ours
                env.write_stamp([], unfinished=True)
        if isinstance(error, OSError):
            raise SetupError(not_writable(folder)) from None
        raise


def choose_torch_index(wanted, platform):
    """The index to take torch from next to the usual one ("" for none), and a sentence about it.

    wanted: the value of TORCH_INDEX: "" to choose here, "none" for no other index, otherwise its URL.
    """
    if wanted:
        return ("" if wanted == "none" else wanted), f"Taking torch from {wanted} (TORCH_INDEX)."
    if not platform.startswith("linux"):
        return "", ""
    if os.path.exists("/dev/nvidiactl") or succeeds(["nvidia-smi", "-L"]):
        return "", "NVIDIA GPU found: taking torch with CUDA, about 12 GB."
    if answers(CPU_INDEX + "/torch/"):
        return CPU_INDEX, f"No NVIDIA GPU: taking the CPU build of torch from {CPU_INDEX}."
    return "", (f"No NVIDIA GPU, but {CPU_INDEX} does not answer: taking torch from your package index.\n"
                "From PyPI that is the build with CUDA, about 12 GB; Control-C stops here.")  # fmt: skip


def answers(url):
    try:
        urllib.request.urlopen(url, timeout=3).close()
    except Exception:  # noqa: BLE001 - any failure means the same
        return False
    return True


def find_uv(environ):
    """The path of a uv that works, or None. uv does not read pip's settings: pip stays where they name a mirror."""
    uv = shutil.which("uv", path=environ.get("PATH", ""))
    if not uv or not succeeds([uv, "--version"]):
        return None
    if any(name.startswith(("UV_INDEX", "UV_DEFAULT_INDEX", "UV_FIND_LINKS", "UV_CONFIG_FILE")) for name in environ):
        return uv
    command = [sys.executable, "-m", "pip", "config", "list"]
    settings = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.decode()
    return None if any(name in settings for name in ("index-url", "find-links", "no-index")) else uv


def variables(environ=os.environ):
    """What pip and uv run with."""
    return {**{name: value for name, value in environ.items() if name not in MISLEADING}, "PIP_USER": "0"}


def succeeds(command, **more):
    try:
        return subprocess.call(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               env={**variables(), **more}) == 0  # fmt: skip
    except OSError:
        return False


def run(command, root, installer=None):
    """Run `command` with its output on the terminal; if it fails, raise a SetupError that says what to do.

    installer: the pip or uv in `command`, such as [python, "-m", "pip", "install"].
    """
    sys.stdout.flush()  # so that what is said stands before what pip says, in a file too
    try:
        process = subprocess.Popen(command, cwd=root, stderr=subprocess.PIPE, env=variables())
    except OSError as error:
        raise SetupError(f"{command[0]} cannot be started ({error.strerror or error}). {AGAIN}") from None
    said = []
    for line in iter(process.stderr.readline, b""):
        said.append(line.decode("utf-8", "replace"))
        sys.stderr.write(said[-1])
    process.stderr.close()
    if process.wait() != 0:
        raise explain("".join(said), root, installer)


def explain(said, root, installer):
    """The errors that have a remedy of their own; for the rest, pip and uv have said enough."""
    if is_disk_full(said):
        return SetupError(
            f"The disk is full: {root} or the folder for temporary files ({temporary_folder()}) has no space left.\n"
            f"Free about {INSTALL_GB:.0f} GB (`pip cache purge` may help; TMPDIR=/a/larger/disk moves the temporary "
            f"files). {AGAIN}"
        )
    if any(sign in said for sign in ("Permission denied", "Read-only file system", "Operation not permitted")):
        return SetupError(not_writable(root))
    if installer and not index_answers(installer):
        return NoNetwork(
            "The packages could not be fetched: no network, or the package index does not answer (see above).\n"
            "Check the connection, its sign-in page or proxy (HTTPS_PROXY), and the index's address (PIP_INDEX_URL; "
            f"UV_DEFAULT_INDEX for uv). {AGAIN}"
        )
    return SetupError(f"The install failed; the output above says why. {AGAIN}")


def index_answers(installer):
    """Does the index have a package that every Python can install? pip says of a dead index that it has no match."""
    probe = [*installer, "--dry-run", "--no-deps", "--force-reinstall", "packaging"]
    return succeeds(probe, PIP_RETRIES="0", UV_HTTP_RETRIES="0", PIP_NO_CACHE_DIR="1", UV_NO_CACHE="1")


def not_writable(folder):
    return (
        f"{folder} cannot be written: it belongs to another user (after `sudo make lab`, say), or is read-only.\n"
        "Make it yours (`sudo chown -R $(id -un) .` in the course's folder), or copy the course to a folder that you "
        f"own. {AGAIN}"
    )


def temporary_folder():
    try:
        return tempfile.gettempdir()
    except OSError:  # each is full or not ours
        return os.environ.get("TMPDIR", "/tmp")


@contextlib.contextmanager
def only_one_at_a_time(root, say):
    """Hold a lock, so that `make lab` and `make test` in two terminals do not install over each other."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    with open(os.path.join(root, "pyproject.toml")) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("Another install of this course is running; waiting for it.")
            with contextlib.suppress(OSError):  # some network disks have no locks
                fcntl.flock(file, fcntl.LOCK_EX)
        yield
