"""Set up the course and start one of its programs, with nothing but a Python and its standard library.

    python3 course.py lab [--port 9999] [...]   install, then JupyterLab on your copy of the lessons, work/
    python3 course.py update | export           renew the lessons in work/ | all your answers as one file
    python3 course.py class FOLDER              the exports of a class as one table and a heat map
    python3 course.py nbgrader FOLDER           an nbgrader course of these lessons
    python3 course.py test [...]                install with the test tools, then all tests
    python3 course.py quick [...]               the same, but only the tests that need less than two minutes together
    python3 course.py serve [--port 8000] [...] install, then an OpenAI-compatible server
    python3 course.py site [...]                install with Sphinx, then the lessons as web pages in build/site
    python3 course.py verify FILE               mark the answers of an exam's certificate again
    python3 course.py notebooks | bench | soak | chat-model | doctor

`make lab`, `make test`, ... call exactly this. Where there is no make (Windows) call it yourself:

    py course.py lab

The course is installed into `.venv` next to the README: the package itself (editable), its dependencies in the
versions of constraints.txt, and for `test`, `quick` and `notebooks` the tools of the extra `test`; `site` adds its own.
tools/install.py does that, once.

This file runs before anything is installed and on whatever `python3` is: it must *parse* on old Pythons, so that they
reach the sentence that says which Python is needed. No f-strings and no annotations here; the modules that need a
modern Python are imported after that sentence.
"""

from __future__ import print_function

import os
import subprocess
import sys

try:
    from tools.setup_errors import SetupError, print_any_text
except ImportError:
    sys.exit("course.py needs the other files of the course next to it, and the folder tools is missing or damaged.\n"
             "Take the whole course again: `git checkout .`, or unpack it afresh.")  # fmt: skip

OLDEST, TOO_NEW = (3, 10), (3, 14)

# The extra that each command needs; `doctor`, `update`, `export` and `class` need none.
EXTRAS = dict.fromkeys(["lab", "bench", "soak", "serve", "chat-model", "verify"], "lab")
EXTRAS.update(dict.fromkeys(["test", "quick", "notebooks", "nbgrader"], "test"))
EXTRAS["site"] = "site"

# A file of tests stays in one process, and the longest files come first (tests/conftest.py).
PYTEST = ["pytest", "--dist", "loadfile", "--no-loadscope-reorder"]
MODULES = {
    "test": PYTEST + ["-n", "2"],  # the last -n counts, so ARGS="-n 0" gives one process
    "quick": PYTEST + ["-n", "auto", "-m", "not slow and not browser and not gpu"],
    "notebooks": ["tools.authoring"],
    "site": ["tools.site"],
    "bench": ["tools.bench"],
    "soak": ["tools.soak"],
    "serve": ["lessons_lib.serving"],
    "chat-model": ["tools.chat_model"],
    "verify": ["lessons_lib.assessment", "--verify"],
    "doctor": ["tools.doctor"],
    "update": ["tools.learner_work", "update"],
    "export": ["tools.learner_work", "export"],
    "class": ["tools.classroom"],
    "nbgrader": ["tools.nbgrader_course"],
}
INSTALL_NOTHING = ("doctor", "update", "export", "class")


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
    return [name for name in names if starts([name, "-c", "import ensurepip, venv"])]


def starts(command):
    try:
        with open(os.devnull, "w") as nothing:
            return subprocess.call(command, stdout=nothing, stderr=nothing) == 0
    except (IOError, OSError):
        return False


def become(command, root):
    """Run `command` in place of this process, so that Control-C and the exit status are its own."""
    os.chdir(root)
    sys.stdout.flush()
    if os.name == "nt":  # where exec leaves the terminal
        sys.exit(subprocess.call(command))
    try:
        os.execv(command[0], command)
    except (IOError, OSError) as error:
        raise SetupError(
            "%s cannot be started (%s). Remove the folder .venv, then run the same command again."
            % (command[0], error.strerror or error)
        )


def start_lab(env, port, arguments):
    from tools.lab import has_screen, lab_command, lay_out, trust
    from tools.learner_work import copy_missing

    lay_out(env.root)
    copied = copy_missing()
    if copied:
        print("Copied into work/, which is yours: %s." % ", ".join(copied))
    if "START.ipynb" in copied:
        trust(env.python, os.path.join(env.root, "work", "START.ipynb"))
    # As lessons_lib/__init__.py does, which says why: here for notebooks that import torch before lessons_lib.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) - 1)))
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    print("JupyterLab is starting on port %d. To stop it press Control-C twice." % port)
    uid = os.getuid() if hasattr(os, "getuid") else None
    become(lab_command(env.python, env.root, port, has_screen(sys.platform, os.environ), uid, arguments), env.root)


def main(arguments):
    command, rest = (arguments[0] if arguments else "help"), arguments[1:]
    if command not in EXTRAS and command not in INSTALL_NOTHING:
        print(__doc__.split("`make lab`")[0].rstrip())
        return 0 if command in ("help", "-h", "--help") else 2
    check_python(sys.version_info, () if OLDEST <= sys.version_info[:2] < TOO_NEW else usable_pythons())

    from tools.install import Environment, install
    from tools.lab import take_port

    env = Environment()
    if command in INSTALL_NOTHING:  # they must work with a broken install
        become([env.python if os.path.exists(env.python) else sys.executable, "-m"] + MODULES[command] + rest, env.root)
    if command == "lab":
        port, rest = take_port(rest)  # before minutes of installing, not after
    install(env, EXTRAS[command], os.environ.get("TORCH_INDEX", ""))
    if command == "lab":
        start_lab(env, port, rest)
    if command == "bench":  # a benchmark takes all cores, where a lesson leaves one free
        os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count() or 1))
    become([env.python, "-m"] + MODULES[command] + rest, env.root)


if __name__ == "__main__":
    try:
        print_any_text()
        sys.exit(main(sys.argv[1:]))
    except SetupError as error:
        sys.exit("\n%s" % error)
    except (IOError, OSError) as error:
        sys.exit("\nThe setup stopped: %s.\nSee that this folder is yours and its disk is not full, then run the same "
                 "command again." % error)  # fmt: skip
    except KeyboardInterrupt:
        sys.exit("\nInterrupted. Run the same command again; it starts afresh.")
