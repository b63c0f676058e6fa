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
import re
import subprocess
import sys

try:
    from tools.setup_errors import SetupError, print_any_text

    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "pyproject.toml")) as file:
        # the one place that states which Pythons the course supports
        OLDEST, TOO_NEW = map(int, re.search(r'requires-python = ">=3[.](\d+),<3[.](\d+)"', file.read()).groups())
except (ImportError, IOError, AttributeError):
    sys.exit("course.py needs the other files of the course next to it, and one is missing or damaged.\n"
             "Take the whole course again: `git checkout .`, or unpack it afresh.")  # fmt: skip

# The extra that each command needs; `doctor`, `update`, `export` and `class` need none.
EXTRAS = dict.fromkeys(["lab", "bench", "soak", "serve", "chat-model", "verify"], "")
EXTRAS.update(dict.fromkeys(["test", "quick", "notebooks", "nbgrader"], "test"))
EXTRAS["site"] = "site"

# A file of tests stays in one process, and the longest files come first (tests/conftest.py).
PYTEST = ["pytest", "--dist", "loadfile", "--no-loadscope-reorder"]
MODULES = {
    "lab": ["tools.lab"],
    "test": PYTEST + ["-n", "2"],  # the last -n counts, so ARGS="-n 0" gives one process
    "quick": PYTEST + ["-n", "auto", "-m", "not slow and not browser and not gpu"],
    "notebooks": ["tools.authoring"],
    "site": ["tools.site"],
    "bench": ["tools.bench_engines"],
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


# What a command must be given, and how.
NEEDED = {
    "nbgrader": "Give the folder for the nbgrader course: make nbgrader FOLDER=course",
    "verify": "Give the page that an exam wrote: make verify ARGS=certificate.html",
}


SUPPORTED = "import sys; sys.exit(not (3, %d) <= sys.version_info[:2] < (3, %d))" % (OLDEST, TOO_NEW)


def supports(version):
    return (3, OLDEST) <= tuple(version[:2]) < (3, TOO_NEW)


def other_python():
    """The command of a Python that can run the course, one that is here or that uv fetches; else None."""
    for minor in range(TOO_NEW - 1, OLDEST - 1, -1):
        if output(["python3.%d" % minor, "-c", "import ensurepip, venv; " + SUPPORTED]) is not None:
            return "python3.%d" % minor
    for fetch in (["uv", "python", "install", "3.12"], None):
        found = output(["uv", "python", "find", "--system", ">=3.%d,<3.%d" % (OLDEST, TOO_NEW)])
        if found or fetch is None or output(["uv", "--version"]) is None:
            return found
        print("uv fetches Python 3.12.")
        sys.stdout.flush()
        subprocess.call(fetch)


def output(command):
    """What a program prints, None if it fails or isn't there."""
    try:
        with open(os.devnull, "w") as nothing:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=nothing)
            said = process.communicate()[0]
    except (IOError, OSError):
        return None
    return said.decode("utf-8", "replace").strip() if process.returncode == 0 else None


def become(command):
    """Run `command` in place of this process, so that Control-C and the exit status are its own."""
    sys.stdout.flush()
    try:
        if os.name == "nt":  # where exec leaves the terminal
            sys.exit(subprocess.call(command))
        os.execvp(command[0], command)
    except (IOError, OSError) as error:
        raise SetupError(
            "%s cannot be started (%s). Remove the folder .venv, then run the same command again."
            % (command[0], error.strerror or error)
        )


def main(arguments):
    command, rest = (arguments[0] if arguments else "help"), arguments[1:]
    if command not in EXTRAS and command not in INSTALL_NOTHING:
        print(__doc__.split("`make lab`")[0].rstrip())
        return 0 if command in ("help", "-h", "--help") else 2
    if command in NEEDED and not rest:
        print(NEEDED[command])
        return 2
    version = "%d.%d" % sys.version_info[:2]
    if not supports(sys.version_info):
        python = other_python()
        if python is None:
            raise SetupError(
                "Python %s cannot run this course; it needs Python 3.%d to 3.%d. Install one from\n"
                "https://www.python.org/downloads/, or uv, which fetches one: https://docs.astral.sh/uv/"
                % (version, OLDEST, TOO_NEW - 1)
            )
        print("Python %s cannot run this course; %s does." % (version, python))
        become([python, os.path.abspath(__file__)] + arguments)

    from tools.install import Environment, install

    env = Environment()
    os.chdir(env.root)
    if command in INSTALL_NOTHING:  # they must work with a broken install, or one of an older Python
        works = output([env.python, "-c", SUPPORTED]) is not None
        become([env.python if works else sys.executable, "-m"] + MODULES[command] + rest)
    install(env, EXTRAS[command], os.environ.get("TORCH_INDEX", ""))
    if command == "bench":  # a benchmark takes all cores, where a lesson leaves one free
        os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count() or 1))
    become([env.python, "-m"] + MODULES[command] + rest)


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
