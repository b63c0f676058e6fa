"""Set up the course and start one of its programs, with nothing but a Python and its standard library.

    python3 lessons_lib/bootstrap.py lab [--port 9999] [...]    install, then JupyterLab on lesson 00
    python3 lessons_lib/bootstrap.py test [...]                 install with the test tools, then pytest
    python3 lessons_lib/bootstrap.py notebooks | bench | soak | doctor

`make lab`, `make test`, ... call exactly this. Where there is no make (Windows) call it yourself:

    py lessons_lib\\bootstrap.py lab

The install goes into `.venv` beside the README: the course itself (editable), its packages in the
versions of constraints.txt, and for `test` and `notebooks` the tools of the extra `test`. A stamp written
at the very end records what was installed, so a second call installs nothing, and a call after an
interrupted install sees that the stamp is missing and starts afresh.

This file runs before anything is installed and on whatever `python3` is: it must *parse* on old Pythons,
so that they reach the sentence that says which Python is needed. No f-strings, no annotations here.
"""

from __future__ import print_function

import sys

if __name__ == "__main__":
    sys.path.pop(0)  # lessons_lib/ itself: its trace.py must not stand in for the standard library's

import contextlib
import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FIRST_LESSON = "notebooks/00_one_request.ipynb"

OLDEST, TOO_NEW = (3, 10), (3, 14)
OLDEST_PIP = (23, 1)  # older ones do not read what pyproject.toml says about an editable install
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PROBE_SECONDS = 3.0

# Disk space in GB, measured on Linux: .venv takes 2.4 with the CPU build of torch, and pip needs room to unpack.
FIRST_INSTALL_GB, LATER_INSTALL_GB, CUDA_INSTALL_GB = 4.0, 0.5, 12.0

EXTRAS = {"lab": "lab", "bench": "lab", "soak": "lab", "test": "test", "notebooks": "test"}


class SetupError(Exception):
    """The course cannot be set up here; the message says why and what to do."""


class NoNetwork(SetupError):
    """Packages could not be fetched. pip fetches all before it installs any, so nothing was changed."""


# ---------------------------------------------------------------------------------------------------
# What can be known before anything is written
# ---------------------------------------------------------------------------------------------------


def check_python(version, others=()):
    """Refuse a Python outside the supported range. `version` is (major, minor); `others` names usable ones."""
    if OLDEST <= tuple(version[:2]) < TOO_NEW:
        return
    if others:
        remedy = "This machine also has %s: run `make lab PYTHON=%s`." % (" and ".join(others), others[0])
    else:
        remedy = "Install one of these from https://www.python.org/downloads/, then `make lab PYTHON=python3.12`."
    raise SetupError(
        "Python %d.%d cannot run this course; it needs Python 3.10, 3.11, 3.12 or 3.13.\n%s"
        % (version[0], version[1], remedy)
    )


def usable_pythons():
    """Commands on the PATH that start a supported Python, newest first."""
    names = ["python3.%d" % minor for minor in range(TOO_NEW[1] - 1, OLDEST[1] - 1, -1)]
    return [name for name in names if _succeeds([name, "-c", "import ensurepip, venv"])]


def check_venv_module(find_spec, version):
    """Refuse a Python that cannot make a virtual environment (Debian and Ubuntu ship it apart)."""
    missing = [name for name in ("venv", "ensurepip") if find_spec(name) is None]
    if missing:
        raise SetupError(
            "This Python has no `%s` module, so it cannot make a virtual environment.\n"
            "Debian, Ubuntu: `sudo apt install python3-venv` (or python%d.%d-venv), then run the same "
            "command again.\nElsewhere: install Python from https://www.python.org/downloads/."
            % (missing[0], version[0], version[1])
        )


def check_writable(root):
    """Refuse a folder that we may not write to."""
    try:
        with tempfile.TemporaryFile(dir=root):
            pass
    except (IOError, OSError) as error:
        if _is_disk_full(str(error)):
            raise SetupError(disk_full_message(root))
        raise SetupError(
            "Cannot write in %s (%s), and the course installs itself there.\n"
            "Copy the whole folder to a place of your own, such as your home folder, and run the same "
            "command there." % (root, error.strerror or error)
        )


def check_disk(root, needed_gb, free_gb=None):
    """Refuse an install that will not fit. `free_gb` is measured unless given."""
    free_gb = free_gigabytes(root) if free_gb is None else free_gb
    if free_gb < needed_gb:
        raise SetupError(
            "Too little disk space: %.1f GB free in %s, about %.1f GB needed.\n"
            "Free some space, or move the course to a larger disk, and run the same command again. "
            "Nothing was installed." % (free_gb, root, needed_gb)
        )


def free_gigabytes(root):
    return shutil.disk_usage(root).free / 1e9


# ---------------------------------------------------------------------------------------------------
# Which torch
# ---------------------------------------------------------------------------------------------------


def has_nvidia_gpu():
    return os.path.exists("/dev/nvidiactl") or _succeeds(["nvidia-smi", "-L"])


def reachable(url, seconds=PROBE_SECONDS):
    """Does `url` answer within `seconds`? Never raises. (The thread is for name look-ups, which know no timeout.)"""
    answered = []

    def probe():
        from urllib.request import urlopen

        try:
            urlopen(url, timeout=seconds).close()
            answered.append(True)
        except Exception:  # noqa: BLE001 - any failure means the same: not reachable
            pass

    thread = threading.Thread(target=probe)
    thread.daemon = True
    thread.start()
    thread.join(seconds)
    return bool(answered)


def choose_torch_index(wanted, platform, gpu, probe):
    """Return (index or None, sentence or None, may_pull_cuda).

    wanted     what TORCH_INDEX says: "" to choose here, "none" for no extra index, otherwise an index URL
    platform   sys.platform
    gpu        () -> bool, is there an NVIDIA GPU
    probe      (url) -> bool, does the URL answer
    """
    on_linux = platform.startswith("linux")
    if wanted == "none":
        return None, None, on_linux
    if wanted:
        return wanted, "Taking torch from %s (TORCH_INDEX)." % wanted, on_linux and "/cpu" not in wanted
    if not on_linux:
        return None, None, False
    if gpu():
        return None, "NVIDIA GPU found: taking torch with CUDA (several GB).", True
    if probe(CPU_INDEX + "/torch/"):
        return CPU_INDEX, "No NVIDIA GPU: taking the CPU build of torch from %s." % CPU_INDEX, False
    return (
        None,
        (
            "No NVIDIA GPU, but %s does not answer: taking torch as your pip is set up to find it.\n"
            "(From PyPI that is the build with CUDA: several GB more, which a machine without a GPU never uses.)"
            % CPU_INDEX
        ),
        True,
    )


# ---------------------------------------------------------------------------------------------------
# The environment
# ---------------------------------------------------------------------------------------------------


class Environment(object):
    """`.venv` beside the README, and the stamp that says what is in it."""

    def __init__(self, root=ROOT):
        self.root = root
        self.folder = os.path.join(root, ".venv")
        self.python = os.path.join(self.folder, *(["Scripts", "python.exe"] if os.name == "nt" else ["bin", "python"]))
        self.stamp = os.path.join(self.folder, "course-stamp.json")

    def fingerprint(self):
        """A hash of all that decides what gets installed."""
        digest = hashlib.sha256()
        for name in ("pyproject.toml", "constraints.txt"):
            with open(os.path.join(self.root, name), "rb") as file:
                digest.update(file.read())
        digest.update(("%d.%d" % sys.version_info[:2]).encode("ascii"))
        return digest.hexdigest()

    def read_stamp(self):
        """The stamp as a dictionary; empty when there is none or it cannot be read."""
        try:
            with open(self.stamp) as file:
                stamp = json.load(file)
        except (IOError, OSError, ValueError):
            return {}
        return stamp if isinstance(stamp, dict) else {}

    def is_ready(self, extra):
        """Is everything for `extra` ("lab" or "test") installed? "test" holds all that "lab" does."""
        stamp = self.read_stamp()
        return stamp in (self.what_is_installed(extra), self.what_is_installed("test")) and os.path.exists(self.python)

    def what_is_installed(self, extra):
        """The stamp of a finished install. It names the folder, because a .venv does not survive a move."""
        return {"root": self.root, "extra": extra, "fingerprint": self.fingerprint()}

    def write_stamp(self, stamp):
        unfinished = self.stamp + ".part"
        with open(unfinished, "w") as file:
            json.dump(stamp, file)
        os.rename(unfinished, self.stamp)


def install(env, extra, torch_index="", say=print):
    """Make `env` hold the course with `extra`. Does nothing when it does; repairs an install that was cut short."""
    if env.is_ready(extra):
        return
    check_writable(env.root)
    with _only_one_at_a_time(env.root, say):
        if env.is_ready(extra):  # another call installed it while we waited
            return
        before = env.read_stamp()
        usable = before.get("root") == env.root and _succeeds(
            [env.python, "-c", _SAME_PYTHON % tuple(sys.version_info[:2])]
        )
        if not usable:
            from importlib.util import find_spec

            check_venv_module(find_spec, sys.version_info)
            if os.path.exists(env.folder):
                say(
                    "Removing %s: its install did not finish, or it was made by another Python or elsewhere."
                    % env.folder
                )
                shutil.rmtree(env.folder)
        extra = "test" if usable and before.get("extra") == "test" else extra

        index, sentence, may_pull_cuda = choose_torch_index(torch_index, sys.platform, has_nvidia_gpu, reachable)
        check_disk(env.root, LATER_INSTALL_GB if usable else FIRST_INSTALL_GB)
        say("Installing the course into %s (the first time takes some minutes)." % env.folder)
        if sentence:
            say(sentence)
        if may_pull_cuda and not usable and free_gigabytes(env.root) < CUDA_INSTALL_GB:
            say(
                "Note: %.1f GB are free; torch with CUDA may need %.0f. With `make lab TORCH_INDEX=%s` it needs %.0f."
                % (free_gigabytes(env.root), CUDA_INSTALL_GB, CPU_INDEX, FIRST_INSTALL_GB)
            )

        if not usable:
            _run_or_explain([sys.executable, "-m", "venv", env.folder], env.root)
        elif os.path.exists(env.stamp):
            os.remove(env.stamp)  # from here until the new stamp is written the install counts as unfinished
        command = [env.python, "-m", "pip", "install", "--no-compile", "-c", os.path.join(env.root, "constraints.txt")]
        if index:
            command += ["--extra-index-url", index]
        try:
            _upgrade_pip(env)
            _run_or_explain(command + ["-e", env.root + ("[test]" if extra == "test" else "")], env.root)
        except NoNetwork:
            if usable:
                env.write_stamp(before)
            raise
        _compile(env)
        env.write_stamp(env.what_is_installed(extra))
        say("Installed.")


_SAME_PYTHON = "import sys, pip; sys.exit(sys.version_info[:2] != (%d, %d))"


def _upgrade_pip(env):
    text = subprocess.check_output([env.python, "-m", "pip", "--version"]).decode("utf-8", "replace")
    found = re.search(r"pip (\d+)\.(\d+)", text)
    if not found or (int(found.group(1)), int(found.group(2))) < OLDEST_PIP:
        _run_or_explain([env.python, "-m", "pip", "install", "--upgrade", "pip>=%d.%d" % OLDEST_PIP], env.root)


def _compile(env):
    """Compile what pip installed, on all cores; pip itself would use one. A file that fails is compiled, or fails, when it is imported."""
    _succeeds([env.python, "-m", "compileall", "-qq", "-j", "0", os.path.join(env.folder, "lib")])


@contextlib.contextmanager
def _only_one_at_a_time(root, say):
    """Hold a lock, so that `make lab` and `make test` in two terminals do not install over each other."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    with open(os.path.join(root, "pyproject.toml")) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (IOError, OSError):
            say("Another install of this course is running; waiting for it.")
            with contextlib.suppress(OSError):  # some network disks have no locks
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _succeeds(command):
    try:
        with open(os.devnull, "w") as nothing:
            return subprocess.call(command, stdout=nothing, stderr=nothing) == 0
    except (IOError, OSError):
        return False


def _run_or_explain(command, root):
    """Run `command`; when it fails, raise a SetupError that says what to do.

    Its output goes to the terminal as it is, progress bars too. Errors pass through us, because pip's last
    lines tell a full disk from a missing network.
    """
    process = subprocess.Popen(command, cwd=root, stderr=subprocess.PIPE)
    said = []
    for line in iter(process.stderr.readline, b""):
        said.append(line.decode("utf-8", "replace"))
        sys.stderr.write(said[-1])
    process.stderr.close()
    if process.wait() != 0:
        raise explain_failure("".join(said), root)


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
)


def explain_failure(said, root):
    """Turn the error output of a failed venv or pip into an error that says what to do."""
    again = "Then run the same command again."
    if _is_disk_full(said):
        return SetupError(disk_full_message(root))
    if any(sign in said for sign in NO_NETWORK):
        return NoNetwork(
            "The packages could not be fetched: no network, or the package index does not answer.\n"
            "Check the connection (behind a proxy: set HTTPS_PROXY; with a mirror: set PIP_INDEX_URL). " + again
        )
    if "Permission denied" in said or "Read-only file system" in said:
        return SetupError(
            "The install was not allowed to write. Copy the whole course folder (%s) to a place of your "
            "own, such as your home folder, and run the same command there." % root
        )
    if "No matching distribution found" in said:
        return SetupError(
            "A package has no build for this Python or this machine (its name stands above).\n"
            "Try another supported Python, for example `make lab PYTHON=python3.12`; for a 32-bit or "
            "very old system torch has no build at all."
        )
    return SetupError("The install failed; the reason stands above. Mend it. " + again)


def disk_full_message(root):
    return (
        "The disk is full: %s or the folder for temporary files (%s) has no space left.\n"
        "Free about %.0f GB (`pip cache purge` may help; TMPDIR=/a/larger/disk moves the temporary files), then "
        "run the same command again." % (root, tempfile.gettempdir(), FIRST_INSTALL_GB)
    )


def _is_disk_full(text):
    return "No space left on device" in text or "[Errno 28]" in text or "Disk quota exceeded" in text


# ---------------------------------------------------------------------------------------------------
# Starting programs
# ---------------------------------------------------------------------------------------------------


def choose_port(wanted, first=8888, tries=50):
    """The port JupyterLab shall use: the wanted one if it is free, else an error; by default the first free one."""
    if wanted:
        if not wanted.isdigit() or not 0 < int(wanted) < 65536:
            raise SetupError(
                "PORT=%s is not a port: give a number from 1 to 65535, e.g. `make lab PORT=9999`." % wanted
            )
        if not _port_is_free(int(wanted)):
            raise SetupError(
                "Port %s is in use. Choose another one, e.g. `make lab PORT=%d`; or leave PORT out and a "
                "free one is found." % (wanted, int(wanted) % 65535 + 1)
            )
        return int(wanted)
    for port in range(first, first + tries):
        if _port_is_free(port):
            return port
    raise SetupError("Ports %d to %d are all in use. Choose one: `make lab PORT=9999`." % (first, first + tries - 1))


def _port_is_free(port):
    with contextlib.closing(socket.socket()) as server:
        if os.name != "nt":  # a port in TIME_WAIT can be used again
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(("127.0.0.1", port))
        except (IOError, OSError, OverflowError):
            return False
    return True


def has_screen(platform, environ):
    """Can a browser window open here?"""
    if platform == "darwin" or platform.startswith("win"):
        return not environ.get("SSH_CONNECTION")
    return bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))


def lab_command(python, root, port, screen, uid, extra_arguments=()):
    """The command that starts JupyterLab on lesson 00."""
    page = "/lab/tree/" + FIRST_LESSON if os.path.exists(os.path.join(root, FIRST_LESSON)) else "/lab"
    command = [
        python,
        "-m",
        "jupyterlab",
        "--port=%d" % port,
        "--port-retries=0",
        "--ServerApp.root_dir=" + root,
        "--LabApp.default_url=" + page,
        "--log-level=WARN",
    ]
    if not screen:
        command.append("--no-browser")
    if uid == 0:
        command.append("--allow-root")
    return command + list(extra_arguments)


def take_port(arguments):
    """Split `--port 9999 ...` into the port to use and the rest."""
    if arguments[:1] == ["--port"] and len(arguments) > 1:
        return choose_port(arguments[1]), arguments[2:]
    return choose_port(""), arguments


def start_lab(env, port, arguments):
    uid = os.getuid() if hasattr(os, "getuid") else None
    print("JupyterLab is starting on port %d. To stop it press Control-C twice." % port)
    # One core stays free for the browser: torch's threads wait by spinning, and where all cores are theirs a lesson
    # becomes several times slower as soon as something else runs.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) - 1)))
    _become(lab_command(env.python, env.root, port, has_screen(sys.platform, os.environ), uid, arguments), env.root)


def _become(command, root):
    """Run `command` in place of this process, so that Control-C and the exit status are its own."""
    os.chdir(root)
    sys.stdout.flush()
    if os.name == "nt":  # where exec leaves the terminal
        sys.exit(subprocess.call(command))
    os.execv(command[0], command)


def main(arguments):
    command, rest = (arguments[0] if arguments else "help"), arguments[1:]
    env = Environment()
    if command not in EXTRAS and command != "doctor":
        print(__doc__.split("`make lab`")[0].rstrip())
        return 0 if command in ("help", "-h", "--help") else 2
    check_python(sys.version_info, () if OLDEST <= sys.version_info[:2] < TOO_NEW else usable_pythons())
    if command == "doctor":  # installs nothing: it must be able to look at a broken install
        python = env.python if os.path.exists(env.python) else sys.executable
        _become([python, "-m", "lessons_lib.doctor"] + rest, env.root)
    if command == "lab":
        port, rest = take_port(rest)  # before minutes of installing, not after
    install(env, EXTRAS[command], os.environ.get("TORCH_INDEX", ""))
    if command == "lab":
        start_lab(env, port, rest)
    elif command == "test":  # two processes; the last -n counts, so ARGS="-n 0" gives one
        _become(
            [env.python, "-m", "pytest", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"] + rest, env.root
        )
    elif command == "notebooks":
        _become([env.python, "-m", "tools.authoring"] + rest, env.root)
    else:
        _become([env.python, "-m", "tools." + command] + rest, env.root)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except SetupError as error:
        sys.exit("\n%s" % error)
    except KeyboardInterrupt:
        sys.exit("\nInterrupted. Run the same command again; it starts afresh.")
