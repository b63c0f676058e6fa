"""Workflows and issue forms follow the schemas of GitHub, and name only what exists: GitHub tells us after a push."""

import re
from pathlib import Path

import pytest
import yaml
from check_jsonschema.cli import main as check_jsonschema
from click.testing import CliRunner

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
FORMS = [path for path in sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")) if path.stem != "config"]

every_workflow = pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)


def problems(schema: str, *files: Path) -> str:
    """What a schema of the package says about the files; "" if it says nothing."""
    result = CliRunner().invoke(check_jsonschema, ["--builtin-schema", schema, *map(str, files)])
    return "" if result.exit_code == 0 else f"{result.output}{result.exception or ''}"


def commands(workflow: Path) -> list[str]:
    """Every line of every `run:`, continued lines joined."""
    jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"].values()
    text = "\n".join(step.get("run", "") for job in jobs for step in job["steps"])
    return re.sub(r"\\\n\s*", "", text).splitlines()


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("vendor.github-workflows", WORKFLOWS),
        ("custom.github-workflows-require-timeout", WORKFLOWS),
        ("vendor.github-issue-forms", FORMS),
        ("vendor.github-issue-config", [ROOT / ".github/ISSUE_TEMPLATE/config.yml"]),
        ("vendor.citation-file-format", [ROOT / "CITATION.cff"]),
    ],
)
def test_files_follow_the_schema(schema, files):
    assert files
    assert problems(schema, *files) == ""


def test_a_mistake_is_found(tmp_path):
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(WORKFLOWS[0].read_text(encoding="utf-8").replace("runs-on:", "run-on:"), encoding="utf-8")
    assert "run-on" in problems("vendor.github-workflows", wrong)


@every_workflow
def test_a_workflow_may_only_read_and_one_job_publish_the_site(workflow):
    content = yaml.safe_load(workflow.read_text(encoding="utf-8"))
    assert content["permissions"] == {"contents": "read"}
    granted = {name: job["permissions"] for name, job in content["jobs"].items() if "permissions" in job}
    publishing = {"publish": {"pages": "write", "id-token": "write"}}
    assert granted == (publishing if workflow.stem == "site" else {})


@every_workflow
def test_actions_have_a_version_and_checkouts_keep_no_token(workflow):
    text = workflow.read_text(encoding="utf-8")
    steps = [step for job in yaml.safe_load(text)["jobs"].values() for step in job["steps"] if "uses" in step]
    for step in steps:
        assert re.fullmatch(r"[\w-]+/[\w./-]+@(v\d+(\.\d+)*|[0-9a-f]{40})", step["uses"]), step["uses"]
        if step["uses"].startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


@every_workflow
def test_commands_paths_and_markers_exist(workflow):
    course = (ROOT / "course.py").read_text(encoding="utf-8")
    known = set(re.findall(r'^    "(\w+): ', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE))
    for command in commands(workflow):
        for name in re.findall(r"course\.py (\S+)", command):
            assert f'"{name}"' in course, command
        for path in re.findall(r"(?<=\s)(?:tests|notebooks|solutions|lessons_lib)(?:/[\w./-]+)?(?=\s|$)", command):
            assert (ROOT / path).exists(), path
        for quoted, bare in re.findall(r'-m (?:"([^"]+)"|(browser|slow|gpu)\b)', command):
            assert set(re.findall(r"\w+", quoted or bare)) - {"and", "or", "not"} <= known, command


def test_the_matrix_covers_every_supported_python():
    jobs = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text(encoding="utf-8"))["jobs"].values()
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    oldest, too_new = map(int, re.search(r'requires-python = ">=3\.(\d+),<3\.(\d+)"', pyproject).groups())
    for job in jobs:
        assert job["strategy"]["matrix"]["python"] == [f"3.{minor}" for minor in range(oldest, too_new)]


def test_the_lesson_form_lists_every_lesson():
    """A lesson's number is that of its file; the form must offer it."""
    form = yaml.safe_load((ROOT / ".github/ISSUE_TEMPLATE/lesson.yml").read_text(encoding="utf-8"))
    options = next(field for field in form["body"] if field.get("id") == "lesson")["attributes"]["options"]
    numbers = {path.name[:2] for path in (ROOT / "solutions").glob("[0-9][0-9]_*.py")}
    assert numbers <= {option[:2] for option in options}
