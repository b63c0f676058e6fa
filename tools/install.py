"""Install the course into .venv, once: with uv where it is on the PATH, else with venv and pip.

The versions are those of constraints.txt. A stamp written at the very end records what was installed: a second call
installs nothing, and a call after an interrupted install finds no stamp and starts afresh.
"""

import contextlib
import hashlib
import importlib.util
import json
import os
import re
import shutil
import sys

from tools import machine
from tools.run_command import output_of, run_or_explain, succeeds
from tools.setup_errors import FIRST_INSTALL_GB, NoBuild, NoNetwork, SetupError, explain_no_build, temporary_folder

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LEVELS = ("lab", "test", "site")  # what can be installed; each includes those before it
OLDEST_PIP = (23, 1)  # older ones do not read what pyproject.toml says about an editable install
LATER_INSTALL_GB, CUDA_INSTALL_GB, TEMPORARY_GB = 0.5, 12.0, 0.5

SAME_PYTHON = "import sys, pip; sys.exit(sys.version_info[:2] != (%d, %d))"
MISSING_PACKAGES = os.path.join(ROOT, "tools", "missing_packages.py")
PLACES_OF_PACKAGES = ("index-url", "find-links", "no-index")  # names of pip's settings, with "extra-index-url"


class Environment:
    """`.venv` next to the README, and the stamp that says what is in it."""

    def __init__(self, root=ROOT):
        self.root = root
        self.folder = os.path.join(root, ".venv")
        self.python = os.path.join(self.folder, *(["Scripts", "python.exe"] if os.name == "nt" else ["bin", "python"]))
        self.stamp = os.path.join(self.folder, "course-stamp.json")

    def fingerprint(self):
        """A hash of everything that decides what gets installed."""
        digest = hashlib.sha256()
        for name in ("pyproject.toml", "constraints.txt"):
            try:
                with open(os.path.join(self.root, name), "rb") as file:
                    digest.update(file.read())
            except OSError as error:
                raise SetupError(
                    f"{name} cannot be read ({error.strerror or error}); it says what to install.\n"
                    f"Take it from the course again: `git checkout {name}`, or unpack the whole course afresh."
                ) from None
        digest.update(b"%d.%d" % sys.version_info[:2])
        return digest.hexdigest()

    def read_stamp(self):
        """The stamp as a dictionary; empty if there is none or it cannot be read."""
        try:
            with open(self.stamp) as file:
                stamp = json.load(file)
        except (OSError, ValueError):
            return {}
        return stamp if isinstance(stamp, dict) else {}

    def write_stamp(self, stamp):
        unfinished = self.stamp + ".part"
        with open(unfinished, "w") as file:
            json.dump(stamp, file)
        os.replace(unfinished, self.stamp)

    def finished_stamp(self, extra):
        """The stamp of a finished install. It names the folder, because a .venv does not survive a move."""
        return {"root": self.root, "extra": extra, "fingerprint": self.fingerprint(), "packages": self.packages()}

    def packages(self):
        """The names of the packages that are installed now, from the folders with their metadata."""
        return sorted(os.path.basename(folder).split("-")[0].lower() for folder in self.metadata_folders())

    def metadata_folders(self):
        version = "python%d.%d" % sys.version_info[:2]
        place = ["Lib", "site-packages"] if os.name == "nt" else ["lib", version, "site-packages"]
        place = os.path.join(self.folder, *place)
        try:
            return [os.path.join(place, entry) for entry in os.listdir(place) if entry.endswith(".dist-info")]
        except OSError:
            return []

    def is_damaged(self):
        """Has a package lost its metadata? pip counts it as installed, and nothing else does."""
        return not all(os.path.exists(os.path.join(folder, "METADATA")) for folder in self.metadata_folders())

    def is_ready(self, extra):
        """Is everything for `extra`, one of LEVELS, installed and still there?"""
        stamp = self.read_stamp()
        wanted = self.finished_stamp(extra)
        return (
            stamp.get("extra") in LEVELS[LEVELS.index(extra) :]
            and all(stamp.get(name) == wanted[name] for name in ("root", "fingerprint"))
            and isinstance(stamp.get("packages"), list)
            and set(stamp["packages"]) <= set(wanted["packages"])
            and os.path.exists(self.python)
            and not self.is_damaged()
        )


def install(env, extra, torch_index="", say=print):
    """Make `env` contain the course with `extra`. Does nothing if it does; repairs an install that was cut short."""
    if env.is_ready(extra):
        return
    machine.check_writable(env.root)
    with only_one_at_a_time(env.root, say):
        if not env.is_ready(extra):  # else another call installed it while we waited
            _install(env, extra, torch_index, say)
            say("Installed.")


def _install(env, extra, torch_index, say):
    before, uv = env.read_stamp(), find_uv(os.environ)
    usable = before.get("root") == env.root and succeeds([env.python, "-c", SAME_PYTHON % sys.version_info[:2]])
    usable = usable and not env.is_damaged()
    machine.check_owned(env.folder)
    if not usable:
        if not uv:
            machine.check_venv_module(importlib.util.find_spec, sys.version_info)
        remove_unusable(env.folder, say)
    if usable and before.get("extra") in LEVELS:
        extra = max(extra, before["extra"], key=LEVELS.index)

    index, sentence, may_pull_cuda = machine.choose_torch_index(
        torch_index, sys.platform, machine.has_nvidia_gpu, machine.reachable
    )
    machine.check_disk(env.root, LATER_INSTALL_GB if usable else FIRST_INSTALL_GB)
    if not uv:  # pip downloads into this folder, uv into its cache
        machine.check_disk(temporary_folder(), TEMPORARY_GB, "for temporary files")
    say(f"Installing the course into {env.folder}{' with uv' if uv else ''} (the first time takes some minutes).")
    if sentence:
        say(sentence)
    free = machine.free_gigabytes(env.root)
    if may_pull_cuda and not usable and free < CUDA_INSTALL_GB:
        say(f"Note: {free:.1f} GB are free; torch with CUDA may need {CUDA_INSTALL_GB:.0f}. "
            f"With `make lab TORCH_INDEX={machine.CPU_INDEX}` it needs {FIRST_INSTALL_GB:.0f}.")  # fmt: skip

    if usable:
        os.remove(env.stamp)  # from here until the new stamp is written the install counts as unfinished
    elif uv:
        run_or_explain([uv, "venv", "--seed", "--python", sys.executable, env.folder], env.root)
    else:  # in two steps, because `venv` hides why its ensurepip failed
        run_or_explain([sys.executable, "-m", "venv", "--without-pip", env.folder], env.root)
        run_or_explain([env.python, "-m", "ensurepip", "--upgrade", "--default-pip"], env.root, quiet=True)
    try:
        install_packages(env, extra, uv, index)
    except NoNetwork:
        if usable:
            env.write_stamp(before)
        raise
    check_complete(env, extra)
    # On all cores; pip would use one. A file that fails here fails, or not, when it is imported.
    succeeds([env.python, "-m", "compileall", "-qq", "-j", "0", os.path.join(env.folder, "lib")])
    env.write_stamp(env.finished_stamp(extra))


def install_packages(env, extra, uv, index):
    try:
        if not uv:
            check_settings(env)
            upgrade_pip(env)
        run_or_explain(install_command(env, extra, uv, index), env.root)
    except NoBuild as error:
        if not uv and error.package:
            raise explain_no_build(error, ask_pip(env, error.package, index)) from None
        raise


def install_command(env, extra, uv, index):
    """The command that installs the exact versions of constraints.txt; it runs in env.root.

    "." and not env.root: pip and uv would read a folder's name such as x[1] as a package with an extra.
    """
    if uv:  # with the second option uv takes the best version from all indexes, as pip does
        command = [uv, "pip", "install", "--python", env.python]
        extra_index = ["--index", index, "--index-strategy", "unsafe-best-match"]
    else:
        command = [env.python, "-m", "pip", "install", "--no-compile"]
        extra_index = ["--extra-index-url", index]
    command += ["-c", "constraints.txt", *(extra_index if index else [])]
    extras = ",".join(LEVELS[1 : LEVELS.index(extra) + 1])
    return [*command, "-e", f".[{extras}]" if extras else "."]


def ask_pip(env, package, index):
    """All that pip can say of a package that it did not find."""
    command = [env.python, "-m", "pip", "-vv", "index", "versions", "--no-cache-dir", "--retries", "0", package]
    return output_of([*command, *(["--extra-index-url", index] if index else [])], with_errors=True)


def check_settings(env):
    """Refuse settings in pip.conf that send packages elsewhere; those of the environment are not handed on."""
    settings = output_of([env.python, "-m", "pip", "config", "list"]).splitlines()
    found = [line for line in settings if re.search(r"\.(target|prefix|root|dry-run|python)=", line)]
    if found:
        raise SetupError(
            f"pip is set up to put packages elsewhere than in {env.folder}: {', '.join(found)}\n"
            "Remove that line from its file (`python3 -m pip config debug` names it), then run the same command again."
        )


def check_complete(env, extra):
    """Refuse an install that reported success but put its packages elsewhere, or only some of them."""
    said = output_of([env.python, "-I", MISSING_PACKAGES, extra]).strip()
    if said != "complete":
        raise SetupError(
            f"The install reported success, but {said or 'a package'} is not in {env.folder}.\n"
            "A setting sends packages elsewhere, or leaves some out: look for no-deps, target, prefix or root in "
            "`python3 -m pip config list`\n(uv: uv.toml), remove it, then run the same command again."
        )


def find_uv(environ):
    """The path of a uv that works, or None. uv does not read pip's settings: pip stays where they name a mirror."""
    uv = shutil.which("uv", path=environ.get("PATH", ""))
    if not uv or not succeeds([uv, "--version"]):
        return None
    if any(name.startswith(("UV_INDEX", "UV_DEFAULT_INDEX", "UV_FIND_LINKS", "UV_CONFIG_FILE")) for name in environ):
        return uv
    settings = output_of([sys.executable, "-m", "pip", "config", "list"])
    return None if any(name in settings for name in PLACES_OF_PACKAGES) else uv


def remove_unusable(folder, say):
    """Remove a .venv that cannot be used, if it is a folder of its own; a file or a link may be someone's work."""
    if os.path.islink(folder) or os.path.isfile(folder):
        kind = "a link to " + os.path.realpath(folder) if os.path.islink(folder) else "a file"
        raise SetupError(f"{folder} is {kind}, but the course needs a folder of that name for its packages.\n"
                         "Rename or remove it, then run the same command again.")  # fmt: skip
    if os.path.exists(folder):
        say(f"Removing {folder}: it is unfinished or damaged, or was made by another Python or elsewhere.")
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise SetupError(f"{folder} is damaged and cannot be removed ({error.strerror or error}).\n"
                             "Remove it yourself (`sudo rm -rf .venv` if sudo made it), then run the same command "
                             "again.") from None  # fmt: skip


def upgrade_pip(env):
    found = re.search(r"pip (\d+)\.(\d+)", output_of([env.python, "-m", "pip", "--version"]))
    if not found or (int(found.group(1)), int(found.group(2))) < OLDEST_PIP:
        run_or_explain([env.python, "-m", "pip", "install", "--upgrade", "pip>=%d.%d" % OLDEST_PIP], env.root)


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
