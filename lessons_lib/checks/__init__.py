"""Checks that test a learner's exercises, and what helps to solve them.

A notebook uses these functions::

    name = check("00.1", name)  # the learner's own object if it is right, else the reference
    points("00.1")  # for nbgrader: what the check gave, of an exercise with points in parts
    hint("00.1")  # one more hint per call
    solution("00.1")  # the reference code
    reset("00.1")  # its cell as released, below the answer
    progress()  # a table of every exercise
    predict("00.a", 37)  # commit to a number ...
    reveal("00.a", 41, "steps")  # ... and compare it with the measured one
    quiz("00")  # questions, with every choice explained
    footer("00")  # what is done of the lesson, and where to go from here
    home()  # the same for all lessons
"""

from lessons_lib.checks.asking import quiz
from lessons_lib.checks.footer import footer
from lessons_lib.checks.help import hint, reset, solution
from lessons_lib.checks.home import home
from lessons_lib.checks.judge import CheckFailed, check, points
from lessons_lib.checks.predictions import predict, reveal
from lessons_lib.checks.progress import progress

__all__ = ["CheckFailed", "check", "footer", "hint", "home", "points", "predict", "progress"]
__all__ += ["quiz", "reset", "reveal", "solution"]
