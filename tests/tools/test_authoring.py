"""The build of the notebooks, tried on a toy lesson with one cell of every kind."""

import ast
import re
import shutil
import sys
from pathlib import Path

import jupytext
import nbformat
import pytest
from nbgrader.preprocessors import ClearSolutions

from tools.authoring import __main__ as command
from tools.authoring.assemble import Lesson
from tools.authoring.build import build, differences, lesson_files, orphans, read, write
from tools.authoring.compare import compare
from tools.authoring.errors import BuildError
from tools.authoring.execute import LIBRARY
from tools.authoring.release import release
from tools.authoring.review import findings
from tools.authoring.stub import BEGIN, END, find_reference, mark_solution

TOY = Path(__file__).parents[1] / "toy_course"
sys.path.insert(0, str(TOY))
from toylib import checks as toy_registry  # noqa: E402
from toylib import shapes  # noqa: E402

SOLUTIONS = Path(__file__).parents[2] / "solutions"
TEXT = (TOY / "solutions" / "99_toy.py").read_text(encoding="utf-8")
SHAPES = ["area", "Counter", "no_docstring", "outer", "long_signature", "waits", "counts", "Outer"]


def marked(name, given=()):
    return mark_solution(find_reference(f"toylib.shapes:{name}"), given)


WRITTEN = {"schema_version": 3, "task": False, "solution": True, "grade": False, "locked": False, "grade_id": "x"}


def stub_of(source):
    """What nbgrader's own converter makes of a marked source."""
    cell = nbformat.v4.new_code_cell(source, metadata={"nbgrader": WRITTEN})
    return ClearSolutions().preprocess(nbformat.v4.new_notebook(cells=[cell]), {})[0].cells[0].source


# --- the learner's stub -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHAPES)
def test_markers_add_lines_and_change_none(name):
    source = find_reference(f"toylib.shapes:{name}")
    without = [line for line in marked(name).splitlines() if line.strip() not in (BEGIN, END)]
    assert ast.dump(ast.parse("\n".join(without))) == ast.dump(ast.parse(source))
    assert without == source.splitlines()


def is_left_to_write(source, method):
    return BEGIN in "\n".join(source.splitlines()[method.lineno - 1 : method.end_lineno])


@pytest.mark.parametrize("path", sorted(SOLUTIONS.glob("*.py")), ids=lambda path: path.stem)
def test_a_learner_writes_only_methods_that_the_text_names(path):
    text = ""
    for cell in Lesson(path).notebook.cells:
        if cell.cell_type == "markdown":
            text += cell.source
        elif cell.metadata.get("nbgrader", {}).get("solution"):
            for node in ast.walk(ast.parse(cell.source)):
                for method in node.body if isinstance(node, ast.ClassDef) else []:
                    if isinstance(method, ast.FunctionDef) and is_left_to_write(cell.source, method):
                        assert f"`{method.name}" in text, f"{path.stem}: {node.name}.{method.name}"


def test_stub_of_nested_classes_keeps_indentation_and_empty_bodies():
    stub, left = stub_of(marked("Outer")), "            # YOUR CODE HERE\n            raise NotImplementedError()"
    assert (
        f"        def value(self) -> int:\n{left}\n" in stub and "    def nothing(self) -> None:\n        ...\n" in stub
    )
    assert stub.endswith(f"        async def later(self):\n{left}")


def test_marked_code_does_what_the_library_does():
    names = dict(vars(shapes))
    for name in SHAPES:
        exec(compile(marked(name), name, "exec"), names)
    assert names["area"] is not shapes.area and names["area"](2, 3) == 6
    assert names["outer"]() == shapes.outer() and names["long_signature"](1) == 3 and list(names["counts"](2)) == [0, 1]
    counter = names["Counter"](step=2)
    assert counter.add(3) == 6 and counter.mean == 6 and counter.reset() is None and counter.total == 0


@pytest.mark.parametrize(
    "attempt, message",
    [
        (lambda: marked("OnlyData"), "no function body is left"),
        (lambda: marked("Counter", ("ad",)), "given='ad' names no method of this code. It has: __post_init__, add"),
        (lambda: find_reference("toylib.shapes:nope"), "defines 0 functions or classes named 'nope'.*It has: area"),
        (lambda: find_reference("toylib.nope:area"), "there is no module 'toylib.nope'"),
    ],
)
def test_what_cannot_be_stripped_is_refused(attempt, message):
    with pytest.raises(BuildError, match=message):
        attempt()


# --- the lesson's cells -----------------------------------------------------------------------------------------


def lesson_from(tmp_path, text):
    (tmp_path / "solutions").mkdir(exist_ok=True)
    path = tmp_path / "solutions" / "99_toy.py"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "old, new, message",
    [
        ('exercise="99.1"', 'exercise="99.7"', "99_toy.py, cell 4, exercise 99.7: no exercise '99.7'.*add it to"),
        ('exercise="99.2"', 'exercise="99.1"', "cell 6, exercise 99.1: this exercise is in the lesson twice"),
        ('exercise="99.2" given="__post_init__"', "", "exercise 99.2 of lesson 99 has no cell. Add a cell"),
        ('exercise="99.1"', 'exercise="98.1"', "an exercise of lesson 99 is named like 99.1"),
        ('exercise="99.1"', 'excercise="99.1"', "cell 4: unknown option excercise"),
        ('tags=["measured"]', 'tags=["measure"]', r'cell 8: tags \[\'measure\'\]. The only tag is tags=\["measured"\]'),
        ("import area", "import area, SIDES", "must hold the line `from toylib.shapes import area` once"),
        ("from toylib.shapes import area", "pass", "must hold the line `from toylib.shapes import area` once"),
        ('given="__post_init__"', 'given="start"', "exercise 99.2: given='start' names no method"),
        ('%% exercise="99.1"', '%% exercise="99.1" tags=["measured"]', "neither measured nor folded"),
        ('# %%\nprint("first"', '# %% given="add"\nprint("first"', "`given` belongs to an exercise"),
        ('# %%\nprint("first"', '# %% [markdown] folded=true\n"""\nno heading\n"""\n', "begins with a heading"),
        ('# %%\nprint("first"', '# %% [markdown] tags=["measured"]\n"""\n# x\n"""\n', "no options but folded"),
    ],
)
def test_a_wrong_cell_is_named_with_its_remedy(tmp_path, old, new, message):
    assert old in TEXT
    with pytest.raises(BuildError, match=message):
        Lesson(lesson_from(tmp_path, TEXT.replace(old, new, 1)), toy_registry)


def test_a_folded_section_is_closed_in_both_notebooks(tmp_path):
    text = TEXT + '\n\n# %% [markdown] folded=true\n"""\n## Further\n"""\n'
    notebook = Lesson(lesson_from(tmp_path, text), toy_registry).notebook
    for each in (notebook, release(notebook)):
        assert each.cells[-1].source == "## Further"
        assert each.cells[-1].metadata["jp-MarkdownHeadingCollapsed"] is True
        assert not [cell for cell in each.cells[:-1] if "jp-MarkdownHeadingCollapsed" in cell.metadata]


def test_a_folded_cell_hides_its_source_in_both_notebooks(tmp_path):
    text = TEXT.replace('# %%\nprint("first"', '# %% folded=true\nprint("first"')
    notebook = Lesson(lesson_from(tmp_path, text), toy_registry).notebook
    for each in (notebook, release(notebook)):
        [cell] = [cell for cell in each.cells if cell.metadata.get("jupyter") == {"source_hidden": True}]
        assert cell.source.startswith('print("first"')


@pytest.mark.parametrize("path", lesson_files(LIBRARY), ids=lambda path: path.stem)
def test_a_lesson_opens_with_its_picture_and_folded_imports_and_no_line_of_code_is_cut(path):
    number, notebook = path.stem[:2], nbformat.read(LIBRARY / "solutions" / f"{path.stem}.ipynb", as_version=4)
    heading, picture, question = notebook.cells[0].source.split("\n\n")[:3]
    assert heading.startswith(f"# {number} · ") and question.startswith("**")
    [file] = re.findall(r"^!\[.{20,}\]\(\.\./(lessons_lib/assets/openings/\d\d\.svg)\)$", picture)
    assert (LIBRARY / file).exists() and file.endswith(f"/{number}.svg")
    imports = next(cell for cell in notebook.cells if cell.cell_type == "code")
    assert imports.metadata.jupyter.source_hidden and not imports.outputs
    written = jupytext.reads(path.read_text(encoding="utf-8"), fmt="py:percent").cells  # without the reference code
    code = [line for cell in written if cell.cell_type == "code" for line in cell.source.splitlines()]
    assert [line for line in code if len(line) > 95] == []


def test_a_cell_keeps_its_id_when_others_come_and_go(tmp_path):
    before = [cell.id for cell in Lesson(TOY / "solutions" / "99_toy.py", toy_registry).notebook.cells]
    path = lesson_from(tmp_path, "# %%\n1\n\n# %%\n1\n\n" + TEXT)
    after, again = ([cell.id for cell in Lesson(path, toy_registry).notebook.cells] for _ in range(2))
    assert after[2:] == before and len(set(after)) == len(after) and again == after


# --- running it -------------------------------------------------------------------------------------------------


def build_text(tmp_path, text):
    return build(lesson_from(tmp_path, text), toy_registry, (TOY,))


@pytest.fixture(scope="module")
def built():
    return build(TOY / "solutions" / "99_toy.py", toy_registry, (TOY,))


@pytest.fixture
def root(tmp_path, built):
    """A folder like the repository, with the toy lesson built in it."""
    shutil.copytree(TOY / "solutions", tmp_path / "solutions")
    write(built, tmp_path)
    return tmp_path


def test_outputs_hold_nothing_that_changes_between_runs(built):
    code = [cell for cell in built.solved.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, 9))
    assert [output.text for output in code[3].outputs] == ["first area 6.0\n"]
    results = [output for cell in code for output in cell.outputs if output.output_type == "execute_result"]
    assert [output.execution_count for output in results] == [7, 8]
    assert "widgets" not in built.solved.metadata and "version" not in built.solved.metadata.language_info
    assert not [cell for cell in built.solved.cells if "execution" in cell.metadata]
    nbformat.validate(built.solved)


@pytest.mark.parametrize(
    "cell, message",
    [
        ("1 / 0", r"solutions/99_toy, cell 11 \(\w+: '1 / 0'\) raised ZeroDivisionError: division by zero"),
        ("import sys; print('look', file=sys.stderr)", "cell 11 .* wrote to stderr, which must stay empty:\nlook"),
        ("object()", "the output is a bare repr"),
    ],
)
def test_a_cell_that_must_not_be_stored_fails_the_build(tmp_path, cell, message):
    with pytest.raises(BuildError, match=message):
        build_text(tmp_path, TEXT + f"\n# %%\n{cell}\n")


WIDGET = """import ipywidgets
from IPython.display import display
picture = {'text/html': '<svg aria-label="a line"></svg>', 'text/plain': 'a line'}
display(ipywidgets.IntSlider()._repr_mimebundle_() | picture, raw=True)"""
STREAM = """import sys
for part in "abc":
    print(part, end="")
    sys.stdout.flush()"""
ENVIRONMENT = """import os
strict, offline, seed = (os.environ.get(name) for name in ('NBGRADER_EXECUTION', 'HF_HUB_OFFLINE', 'PYTHONHASHSEED'))
print(strict, offline, seed, os.listdir('.'))
open('x', 'w').close()"""


def test_outputs_are_stored_without_a_widget_and_the_kernel_is_not_strict(tmp_path, monkeypatch):
    """A stream in pieces is one output, of a widget only its picture stays, and no file is left beside the lesson."""
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    text = "\n\n".join([TEXT, *(f"# %%\n{cell}\n" for cell in (WIDGET, STREAM, ENVIRONMENT))])
    widget, stream, environment = (cell.outputs for cell in build_text(tmp_path, text).solved.cells[-3:])
    assert set(widget[0].data) == {"text/html", "text/plain"}
    assert [output.text for output in stream] == ["abc"]
    assert environment[0].text == "None 1 0 []\n"
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["99_toy.py"]


def test_a_name_that_the_exercise_needs_and_the_notebook_lacks_fails_the_build(tmp_path):
    with pytest.raises(BuildError, match="check-99-1.*check 99.1 refuses the reference code"):
        build_text(tmp_path, TEXT.replace("import math\n", ""))


def test_a_check_that_refuses_the_reference_fails_the_build(tmp_path, monkeypatch):
    monkeypatch.setenv("TOY_REFUSES", "99.2")
    with pytest.raises(BuildError, match="check-99-2.*check 99.2 refuses the reference code"):
        build_text(tmp_path, TEXT)


# --- what a picture must hold -----------------------------------------------------------------------------------


SVG, DOT = "<svg aria-label='a dot'></svg>", {"text/plain": "a dot"}


@pytest.mark.parametrize(
    "data, fault",
    [
        ({"text/html": SVG, **DOT}, None),
        ({"image/svg+xml": "<svg/>", **DOT}, None),
        ({"text/plain": "{'a': 1}"}, None),
        ({"text/html": "<img alt='a dot' src='data:image/png;base64,AA/tmp/AA'>", **DOT}, None),
        ({"text/html": "<svg></svg>", **DOT}, "no aria-label"),
        ({"text/html": "<svg aria-label=' '></svg>", **DOT}, "no aria-label"),
        ({"text/html": SVG}, "no words"),
        ({"text/html": SVG, "text/plain": "<lessons_lib.Picture object at 0x7f00>"}, "no words"),
        ({"text/html": SVG, "text/plain": "<IPython.core.display.HTML object>"}, "no words"),
        ({"image/png": "iVBO", "text/plain": "<Figure size 640x480 with 1 Axes>"}, "no words"),
        ({"image/png": "iVBO", "text/plain": " "}, "no words"),
        ({"text/html": "<img src='x'>", **DOT}, "no alt"),
        ({"application/vnd.jupyter.widget-view+json": {}, **DOT}, "live widget"),
        ({"text/plain": "VBox(children=(IntSlider(value=0),))"}, "bare repr"),
        ({"text/plain": "<function f at 0x7f0012345678>"}, "bare repr"),
        ({"text/plain": "/home/someone/model"}, "a trace of this machine: '/home/someone'"),
    ],
)
def test_pictures_need_words(data, fault):
    cell = nbformat.v4.new_code_cell("draw()", outputs=[nbformat.v4.new_output("display_data", data=data)])
    prose = [nbformat.v4.new_markdown_cell(source) for source in ("![a dot](dot.svg)", "![](dot.svg)")]
    assert len(findings(nbformat.v4.new_notebook(cells=prose))) == 1
    found = findings(nbformat.v4.new_notebook(cells=[cell]))
    assert bool(found) == bool(fault) and all("draw()" in text for text in found)
    assert fault is None or fault in found[0]


# --- rebuilding -------------------------------------------------------------------------------------------------


def test_a_rebuild_differs_in_nothing_but_measured_outputs(root, built):
    again = build(root / "solutions" / "99_toy.py", toy_registry, (TOY,))
    assert again.released == built.released and again.solved != built.solved
    assert differences(again, root) == []
    assert write(again, root) == {"solutions/99_toy.ipynb": False, "notebooks/99_toy.ipynb": False}
    assert write(again, root, fresh=True) == {"solutions/99_toy.ipynb": True, "notebooks/99_toy.ipynb": False}
    assert read(root, "solutions", "99_toy") == again.solved


def test_a_cell_that_is_left_out_is_not_run_and_keeps_its_number(root, built):
    last = built.solved.cells[-1]
    again = build(root / "solutions" / "99_toy.py", toy_registry, (TOY,), left_out={last.id})
    assert last.outputs and again.solved.cells[-1].outputs == []
    assert again.solved.cells[-1].execution_count == last.execution_count
    assert again.solved.cells[:-1] == built.solved.cells[:-1] and differences(again, root) == []


def test_measurements_outlive_new_prose_but_not_new_code(root, built):
    old = built.solved.cells[-1].outputs
    prose = build_text(root, TEXT.replace("A toy lesson", "The toy lesson"))
    assert write(prose, root) == {"solutions/99_toy.ipynb": True, "notebooks/99_toy.ipynb": True}
    assert read(root, "solutions", "99_toy").cells[-1].outputs == old
    code = build_text(root, TEXT.replace("area(2, 3)", "area(2, 4)"))
    write(code, root)
    assert read(root, "solutions", "99_toy").cells[-1].outputs == code.solved.cells[-1].outputs != old


def renamed_sides(nb):
    nb.cells[3].source = nb.cells[3].source.replace("both", "two").replace("Both", "Two")


LEFT_OVER = nbformat.v4.new_code_cell("left over")
STREAM_OUTPUT = nbformat.v4.new_output("stream", text="x")


@pytest.mark.parametrize(
    "folder, spoil, message",
    [
        (
            "solutions",
            lambda nb: nb.cells[5].outputs[0].update(text="7.0\n"),
            "cell 6 .*: outputs\n(.|\n)*\\+.*area 6.0",
        ),
        ("solutions", renamed_sides, "ex-99-1.*: source\n(.|\n)*Two sides"),
        ("solutions", lambda nb: nb.cells[9].metadata.update(tags=[]), "cell 10 .*: metadata"),
        ("solutions", lambda nb: nb.metadata.kernelspec.update(name="other"), "notebook: metadata"),
        ("notebooks", lambda nb: nb.cells[4].metadata.nbgrader.update(points=5), "cell 5 .check-99-1.*metadata"),
        ("notebooks", lambda nb: nb.cells.pop(2), "cell 3 .*only in the rebuilt file"),
        ("notebooks", lambda nb: nb.cells.append(LEFT_OVER), "left over.*only in the committed file"),
        ("notebooks", lambda nb: nb.cells[8].outputs.append(STREAM_OUTPUT), "notebooks/99_toy.ipynb, cell 9 .*outputs"),
    ],
)
def test_any_other_change_is_found_and_named(root, built, folder, spoil, message):
    path = root / folder / "99_toy.ipynb"
    notebook = nbformat.read(path, as_version=4)
    spoil(notebook)
    path.write_text(nbformat.writes(notebook), encoding="utf-8")
    found = differences(built, root)
    assert len(found) == 1 and re.search(message, found[0])


def test_a_coordinate_may_be_off_by_its_last_decimal_and_a_text_may_not(built):
    def drawn(width, text):
        picture = f'<svg><rect x="7" width="{width}"/><text x="8">{text}</text></svg>'
        other = nbformat.from_dict(built.solved)
        code = next(cell for cell in other.cells if cell.cell_type == "code")
        code.outputs = [
            nbformat.v4.new_output("display_data", {"image/svg+xml": picture, "text/html": f"'{picture!r}'"})
        ]
        return other

    committed = drawn("7.99", "2.31")
    assert compare(committed, drawn("8", "2.31")) == []
    assert compare(committed, drawn("8.01", "2.31")) and compare(committed, drawn("7.99", "2.32"))


def test_missing_and_left_over_notebooks_are_named(root, built):
    (root / "notebooks" / "99_toy.ipynb").rename(root / "notebooks" / "98_old.ipynb")
    assert differences(built, root) == ["notebooks/99_toy.ipynb: missing. Run `make notebooks`."]
    assert orphans(root) == ["notebooks/98_old.ipynb: there is no solutions/98_old.py. Delete it."]


# --- the command ------------------------------------------------------------------------------------------------


def test_the_command_builds_checks_and_says_so(root, built, monkeypatch, capsys):
    monkeypatch.setattr(command, "build", lambda path: built)
    monkeypatch.setattr(command, "pages", lambda root: {})
    assert command.main(["--root", str(root), "--check"]) == 0
    assert "✓ 99_toy: as committed" in capsys.readouterr().out
    (root / "notebooks" / "99_toy.ipynb").unlink()
    assert command.main(["--root", str(root), "--check"]) == 1
    assert "✗ notebooks/99_toy.ipynb: missing" in capsys.readouterr().out
    assert not (root / "notebooks" / "99_toy.ipynb").exists()
    assert command.main(["--root", str(root), "99"]) == 0
    out = capsys.readouterr().out
    assert "solutions/99_toy.ipynb: unchanged" in out and "notebooks/99_toy.ipynb: written" in out


def test_the_command_names_what_it_cannot_build(root, monkeypatch, capsys):
    monkeypatch.setattr(command, "pages", lambda root: {})

    def refuse(path):
        raise BuildError("99_toy.py, cell 4: a reason")

    assert command.main(["--root", str(root), "42"]) == 2
    assert "there is no lesson 42" in capsys.readouterr().out
    monkeypatch.setattr(command, "build", refuse)
    assert command.main(["--root", str(root)]) == 2
    assert "✗ 99_toy.py, cell 4: a reason" in capsys.readouterr().out
