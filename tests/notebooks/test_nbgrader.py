"""A class taught with nbgrader as it is: its own commands release the lessons, students hand in, it grades them.

They hand in the notebook up to its last check. By day, two students take the toy lesson, one of which stands for three,
and hand in all of its cells. With LESSONS_NIGHTLY=1, four do so, and one hands in every sixth lesson of the course,
solved, and one every ninth. Of their cells they hand in the exercises, the checks and what these need, since the rest gives no marks, and
`test_notebooks` runs it.
A course is graded once a process: with pytest-xdist use `--dist loadfile`, which keeps this file in one.
"""

import functools
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
import pytest
from how_many import by_day
from lesson_notebooks import LESSONS, ROOT
from nbgrader.api import Gradebook
from notebook_cells import graded_cells

from lessons_lib.checks.registry import exercises_of
from tools.authoring.build import build, write
from tools.authoring.execute import kernel_environment

TOY = Path(__file__).parents[1] / "toy_course"

# nbgrader starts `alembic` by name, here and in its commands: the environment must be activated.
ACTIVATED = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("nbgrader")]


@dataclass
class Course:
    """An nbgrader course with one assignment, graded.

    Attributes:
        folder: the course directory.
        origin: the folder whose solutions/ and notebooks/ it was made from.
        lessons: names of the notebooks.
        environment: of nbgrader's commands.
        is_whole: whether all cells up to the last check are handed in, or those that are graded and what these need.
        taken: student -> those that the student hands in.
    """

    folder: Path
    origin: Path
    lessons: list[str]
    environment: dict[str, str]
    is_whole: bool
    taken: dict[str, list[str]] = field(default_factory=dict)

    def nbgrader(self, *arguments: str) -> str:
        """What the command prints."""
        command = [sys.executable, "-m", "nbgrader", *arguments]
        place = dict(cwd=self.folder, env=self.environment)
        done = subprocess.run(command, capture_output=True, text=True, timeout=1700, **place)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def notebook(self, *parts: str) -> nbformat.NotebookNode:
        return nbformat.read(Path(self.folder, *parts).with_suffix(".ipynb"), as_version=4)

    def release(self) -> None:
        source = self.folder / "source" / "course"
        source.mkdir(parents=True)
        for lesson in self.lessons:
            shutil.copy(self.origin / "solutions" / f"{lesson}.ipynb", source)
        (self.folder / "nbgrader_config.py").write_text("c = get_config()\nc.Execute.timeout = 300\n")
        self.nbgrader("generate_assignment", "course")

    def hand_in(self, student: str, lessons: list[str], edit) -> None:
        """Submit released notebooks; `edit(released, solved, is_first, is_last)` returns the exercise as the student
        wrote it.
        """
        self.taken[student] = lessons
        folder = self.folder / "submitted" / student / "course"
        folder.mkdir(parents=True)
        for lesson in lessons:
            notebook = self.notebook("release", "course", lesson)
            source = self.notebook("source", "course", lesson)
            solved, graded = {cell.id: cell.source for cell in source.cells}, graded_cells(source)
            last_check = max(index for index, cell in enumerate(notebook.cells) if cell.id.startswith("check-"))
            notebook.cells = [
                cell
                for cell in notebook.cells[: last_check + 1]
                if self.is_whole or cell.cell_type != "code" or cell.id in graded
            ]
            exercises = [cell for cell in notebook.cells if cell.id.startswith("ex-")]
            for cell in exercises:
                cell.source = edit(cell.source, solved[cell.id], cell is exercises[0], cell is exercises[-1])
            (folder / f"{lesson}.ipynb").write_text(nbformat.writes(notebook), encoding="utf-8")

    def scores(self, student: str) -> dict[str, dict[str, tuple[float, float]]]:
        """{lesson: {grade id: (score, maximum)}} from nbgrader's own database."""
        with Gradebook(f"sqlite:///{self.folder / 'gradebook.db'}") as gradebook:
            return {
                lesson: {
                    grade.name: (grade.score, grade.max_score)
                    for grade in gradebook.find_submission_notebook(lesson, "course", student).grades
                }
                for lesson in self.taken[student]
            }


def returns_none(released: str) -> str:
    return released.replace("raise NotImplementedError()", "return None")


STUDENTS = {
    "solved": lambda released, solved, is_first, is_last: solved,
    "unsolved": lambda released, solved, is_first, is_last: released,
    "wrong": lambda released, solved, is_first, is_last: returns_none(released) if is_last else solved,
    "half-way": lambda released, solved, is_first, is_last: (
        returns_none(released) if is_last else released if is_first else solved
    ),
}
COURSES = {"toy": by_day(("solved", "half-way"), tuple(STUDENTS))} | by_day({}, {"lessons": ("solved", "half-way")})
every_course = pytest.mark.parametrize("course", COURSES, indirect=True)

# Answer cells for full points without an answer; {0} is the released cell, {1} "module", {2} the name in it.
# tests/checks/test_graded.py tries many more, without nbgrader.
CHEATS = (
    'import os\nos.environ.pop("NBGRADER_EXECUTION", None)\n{0}',
    "check = points = lambda *any: None\n{0}",
    "from {1} import {2} as _theirs\n{2} = _theirs",
    "import lessons_lib.checks.graded as g\ng.graded = lambda id: None\n{0}",
    "get_ipython().events.register('pre_run_cell', lambda info: get_ipython().user_ns.update(check=max))\n{0}",
    'import sys, types\nsys.modules["lessons_lib.checks.graded"] = types.SimpleNamespace(graded=print)\n{0}',
)


def handed_in(*students):
    """Run a test with each of these students in each course in which they hand in."""
    pairs = [(course, student) for course, those in COURSES.items() for student in students if student in those]
    return pytest.mark.parametrize("course, student", pairs, indirect=["course"])


def toy_course(folder: Path) -> tuple[Path, list[str], tuple[Path, ...]]:
    sys.path.insert(0, str(TOY))
    from toylib import checks

    write(build(TOY / "solutions" / "99_toy.py", checks, (TOY,)), folder)
    return folder, ["99_toy"], (TOY,)


@pytest.fixture(autouse=True)
def activated(monkeypatch):
    monkeypatch.setenv("PATH", ACTIVATED)


def released_course(name: str, folder: Path, numbers: tuple[str, ...] = ()) -> Course:
    chosen = [lesson for lesson in LESSONS if not numbers or lesson[:2] in numbers]
    origin, lessons, python_path = toy_course(folder / "origin") if name == "toy" else (ROOT, chosen, ())
    environment = kernel_environment(folder, python_path) | {
        "PATH": ACTIVATED,
        "JUPYTER_CONFIG_DIR": str(folder / "jupyter"),
    }
    # As in a class: progress lies beside each submission.
    del environment["LESSONS_PROGRESS"]
    made = Course(folder / "course", origin, lessons, environment, is_whole=name == "toy")
    made.release()
    return made


def graded(name: str, folder: Path) -> Course:
    made = released_course(name, folder)
    # The solved capstone returns an engine of the course, which earns nothing; see test_no_points_for_cheats.
    lessons = [lesson for lesson in made.lessons if not lesson.startswith("17")]
    for student in COURSES[name]:
        every = 1 if name == "toy" else {"solved": 6, "half-way": 9}[student]
        made.hand_in(student, lessons[4 % every :: every], STUDENTS[student])
    made.nbgrader("autograde", "course")
    return made


@pytest.fixture(scope="module")
def graded_once(tmp_path_factory):
    """Gives a course by name. A fixture with the name as its parameter would be made anew whenever the tests change
    course.
    """
    return functools.cache(lambda name: graded(name, tmp_path_factory.mktemp(name)))


@pytest.fixture
def course(request, graded_once):
    return graded_once(request.param)


@every_course
def test_the_committed_copy_is_what_nbgrader_releases(course):
    for lesson in course.lessons:
        committed = nbformat.read(course.origin / "notebooks" / f"{lesson}.ipynb", as_version=4)
        assert course.notebook("release", "course", lesson) == committed


@every_course
def test_solved_gets_full_marks(course):
    for lesson, grades in course.scores("solved").items():
        assert grades and all(score == maximum > 0 for score, maximum in grades.values()), (lesson, grades)


@handed_in("unsolved")
def test_unsolved_gets_no_marks(course, student):
    for lesson, grades in course.scores(student).items():
        assert grades and all(score == 0 for score, _ in grades.values()), (lesson, grades)


@handed_in("wrong", "half-way")
def test_an_exercise_costs_its_own_marks_and_no_others(course, student):
    for lesson, grades in course.scores(student).items():
        checks = [
            cell.id for cell in course.notebook("release", "course", lesson).cells if cell.id.startswith("check-")
        ]
        lost = {name for name, (score, _) in grades.items() if score == 0}
        assert lost == {checks[-1]} | ({checks[0]} if student == "half-way" else set()), (lesson, grades)
        assert all(score == maximum for name, (score, maximum) in grades.items() if name not in lost)


@handed_in("unsolved", "wrong", "half-way")
def test_a_failed_check_raises_and_prints_nothing_to_stderr(course, student):
    for lesson, scores in course.scores(student).items():
        for cell in course.notebook("autograded", student, "course", lesson).cells:
            if cell.id.startswith("check-"):
                kinds = [output.output_type for output in cell.outputs]
                assert ("error" in kinds) == (scores[cell.metadata.nbgrader.grade_id][0] == 0), cell.source
                assert not [output for output in cell.outputs if output.get("name") == "stderr"]


@pytest.mark.parametrize("course", ["toy"], indirect=True)
def test_a_student_can_validate_a_copy(course):
    copies = [Path("submitted", student, "course", f"{course.lessons[0]}.ipynb") for student in ("solved", "half-way")]
    said = course.nbgrader("validate", *map(str, copies))
    assert said.count("Success! Your notebook passes all the tests.") == 1 and "The following" in said


def exercise_of(released):
    """The exercise of a released cell, which begins as its reference does."""
    exercises = [exercise for number in ("03", "07") for exercise in exercises_of(number)]
    return next(each for each in exercises if each.reference_source().split('"""')[1].split("\n")[0] in released)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_no_points_for_cheats(tmp_path):
    course = released_course("lessons", tmp_path, ("03", "07"))
    for number, text in enumerate(CHEATS):

        def cheat(released, solved, is_first, is_last):
            return text.format(released, *exercise_of(released).reference.split(":"))

        course.hand_in(f"cheat-{number}", course.lessons, cheat)
    cheating = list(course.taken)
    course.hand_in("honest", course.lessons, STUDENTS["solved"])
    course.nbgrader("autograde", "course")
    for student, text in zip(cheating, CHEATS):
        got = {name: score for grades in course.scores(student).values() for name, (score, _) in grades.items()}
        assert got == dict.fromkeys(got, 0), text
    assert all(score == most for grades in course.scores("honest").values() for score, most in grades.values())
