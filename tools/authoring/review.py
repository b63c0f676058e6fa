"""What a stored notebook must not contain: pictures without words, traces of one machine, widgets without a kernel."""

import re
from collections.abc import Iterator

from nbformat import NotebookNode

from tools.authoring.execute import WIDGET_VIEW, describe

BARE_REPR = re.compile(r"<Figure\b|<IPython\.|<[^>]* (?:object|at 0x[0-9a-fA-F]+)\b|\w+\(children=")
SCRIPT = re.compile(r"<script.*?</script>", re.DOTALL)
OPENING_SVG = re.compile(r"<svg\b[^>]*>", re.IGNORECASE)
OPENING_IMG = re.compile(r"<img\b[^>]*>", re.IGNORECASE)
MARKDOWN_PICTURE_WITHOUT_WORDS = re.compile(r"!\[\s*\]\(")
EMBEDDED_FILE = re.compile(r"base64,[A-Za-z0-9+/=]+")
ONE_MACHINE = re.compile(
    r"\bat 0x[0-9a-fA-F]{6,}|/home/\w+|/Users/\w+|/tmp/\w+|/root/\w+|site-packages/|ipykernel_\d+|[A-Z]:\\Users"
)


def findings(notebook: NotebookNode) -> list[str]:
    """One sentence for each fault, naming the cell."""
    found = [
        f"{describe(index, cell)}: {fault}"
        for index, cell in enumerate(notebook.cells)
        for fault in (_faults_of_markdown(cell) if cell.cell_type == "markdown" else _faults_of_outputs(cell))
    ]
    if "widgets" in notebook.metadata:
        found.append("the notebook stores widget state, which can't work without a kernel")
    return found


def _faults_of_markdown(cell: NotebookNode) -> Iterator[str]:
    if MARKDOWN_PICTURE_WITHOUT_WORDS.search(cell.source):
        yield "a picture has no words between its brackets: write ![what is seen](file)"
    yield from _faults_of_html(cell.source)


def _faults_of_outputs(cell: NotebookNode) -> Iterator[str]:
    for output in cell.get("outputs", []):
        if output.output_type == "error":
            yield f"the output is an error, {output.ename}"
        elif output.output_type == "stream":
            if output.name == "stderr":
                yield f"there is text on stderr: {output.text[:80]!r}"
            yield from _traces_of_one_machine(output.text)
        else:
            yield from _faults_of_bundle(output.data)


def _faults_of_bundle(data: dict) -> Iterator[str]:
    text, page = data.get("text/plain", ""), data.get("text/html", "")
    if WIDGET_VIEW in data:
        yield "the output needs a live widget"
    is_picture = any(kind.startswith("image/") for kind in data) or OPENING_SVG.search(page)
    if is_picture and _says_nothing(text):
        yield f"a picture has no words: its text/plain is {text[:60]!r}"
    elif set(data) == {"text/plain"} and _says_nothing(text):
        yield f"the output is a bare repr, {text[:60]!r}"
    yield from _faults_of_html(page)
    for part in (text, page):
        yield from _traces_of_one_machine(part)


def _says_nothing(text: str) -> bool:
    return not text.strip() or bool(BARE_REPR.match(text.strip()))


def _faults_of_html(page: str) -> Iterator[str]:
    page = SCRIPT.sub("", page)
    for tag in OPENING_SVG.findall(page):
        if not re.search(r"""aria-label=(["'])(?!\s*\1)""", tag):
            yield f"an <svg> has no aria-label: {tag[:60]}"
    for tag in OPENING_IMG.findall(page):
        if not re.search(r"""\balt=(["'])(?!\s*\1)""", tag):
            yield f"an <img> has no alt: {tag[:60]}"


def _traces_of_one_machine(text: str) -> Iterator[str]:
    trace = ONE_MACHINE.search(EMBEDDED_FILE.sub("", text))
    if trace:
        yield f"the output contains a trace of this machine: {trace.group()!r}"
