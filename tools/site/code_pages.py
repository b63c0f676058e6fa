"""The site's pages of source code: what `show_source` shows comes from a file of `lessons_lib`, and links to it."""

import ast
import re
from pathlib import Path

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from tools.site.doors import ROOT

# As `lessons_lib.viz.source` writes it: the name of what is shown, and the file beside the notebook's folder.
LINK = re.compile(
    r'<code>([\w.]+)</code>((?:: \d+ lines)?(?:</summary><div>| )in )<a href="\.\./(lessons_lib/[\w/]+)\.py">'
)
LINE = re.compile(r'<span id="line-(\d+)">')


def to_code_pages(html: str) -> str:
    """An output's HTML, with its links to source files leading to the definition on the site's page of that file."""
    return LINK.sub(r'<code>\1</code>\2<a href="\3.html#\1">', html)


def linked_files(html: str) -> set[str]:
    """The files, such as "lessons_lib/kv_cache/block_pool.py", whose pages an output links to."""
    return {f"{page}.py" for page in re.findall(r'<a href="(lessons_lib/[\w/]+)\.html#', html)}


def code_page(file: str, code: str) -> str:
    """One file as a page in MyST Markdown. Every line has an anchor: its definition's name, or "line-12"."""
    names = definitions(code)
    shown = highlight(code, PythonLexer(), HtmlFormatter(linenos="inline", linespans="line", wrapcode=True))
    shown = LINE.sub(lambda found: f'<span id="{names.get(int(found[1]), f"line-{found[1]}")}">', shown)
    return f"---\norphan: true\n---\n# `{file}`\n\n````{{raw}} html\n<div class='lessons-code'>{shown}</div>\n````\n"


def definitions(code: str) -> dict[int, str]:
    """{line of its `def` or `class`: qualified name}, of functions, classes and methods."""
    found = {}

    def collect(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found[node.lineno] = prefix + node.name
                collect(node.body, f"{prefix}{node.name}.")

    collect(ast.parse(code).body, "")
    return found


def write_code_pages(files: set[str], folder: Path) -> None:
    for file in sorted(files):
        page = (folder / file).with_suffix(".md")
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(code_page(file, (ROOT / file).read_text(encoding="utf-8")), encoding="utf-8")
