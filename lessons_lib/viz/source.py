"""`show_source`: the code of a function or class in color, folded if it is long, with a link to its file."""

import html
import inspect
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LONGEST_OPEN = 20  # lines
# Pygments' classes (keywords, defined names, text, numbers and built-ins): their colors on a light and on a dark page.
KINDS = {
    "k kn kc ow": ("#00603a", "#7ee0a1"),
    "nf nc fm nd": ("#0050a0", "#8ab8ff"),
    "s1 s2 sd sa se si": ("#a31515", "#ffa198"),
    "mi mf nb bp": ("#6f3a00", "#e6b673"),
}
DARK = "[data-theme='dark'],[data-jp-theme-light='false']"
PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Source:
    """Code as text, its name ("BlockPool.free"), and its file relative to the course; "" for code of a notebook."""

    name: str
    code: str
    file: str

    def __str__(self) -> str:
        return self.code

    __repr__ = __str__

    def _repr_html_(self) -> str:
        lines = self.code.count("\n") + 1
        name, file = html.escape(self.name), html.escape(self.file)
        link = f'in <a href="../{file}">{file}</a>' if file else ""
        block = f"<div style='overflow-x:auto' tabindex='0'>{_colored(self.code)}</div>"
        if lines <= LONGEST_OPEN:
            return f"<div><div><code>{name}</code> {link}</div>{block}</div>"
        summary = f"<summary style='cursor:pointer'><code>{name}</code>: {lines} lines</summary>"
        return f"<details>{summary}<div>{link}</div>{block}</details>"


def show_source(*things: Any) -> None:
    """Show the source of functions, methods, classes or Triton kernels; else TypeError."""
    from IPython.display import display

    for source in [source_of(thing) for thing in things]:
        display(source)


def source_of(thing: Any) -> Source:
    """The source of a function, method, class or Triton kernel; TypeError for a number, or a function written in C."""
    code = inspect.unwrap(getattr(thing, "fn", thing))  # Triton's and torch's decorators wrap functions
    try:
        lines, _ = inspect.getsourcelines(code)
        path = Path(inspect.getsourcefile(code) or "")
    except (TypeError, OSError):
        raise TypeError(f"{thing!r} has no source: give a function, a method or a class written in Python.") from None
    file = path.relative_to(PACKAGE.parent).as_posix() if path.is_relative_to(PACKAGE) else ""
    return Source(code.__qualname__, textwrap.dedent("".join(lines)).rstrip(), file)


def _colored(code: str) -> str:
    """Lines keep their length and scroll. Without Pygments, which comes with Jupyter, all have the page's color."""
    style = "margin:0;overflow:visible;white-space:pre;line-height:1.4"  # the box around it scrolls, by key too
    try:
        from pygments import highlight
        from pygments.formatters import HtmlFormatter
        from pygments.lexers import PythonLexer
    except ImportError:
        return f"<pre style='{style}'>{html.escape(code)}</pre>"
    shown = highlight(code, PythonLexer(), HtmlFormatter(cssclass="lessons-source", prestyles=style))
    return f"<style>{_theme()}</style>{shown}"


def _theme() -> str:
    """The colors; JupyterLab says at its body, and the website at its root, whether the page is dark."""
    light, dark = ("".join(f"--c{i}:{pair[side]};" for i, pair in enumerate(KINDS.values())) for side in (0, 1))
    of_kinds = "".join(
        f".lessons-source :is({','.join('.' + kind for kind in kinds.split())}){{color:var(--c{i})}}"
        for i, kinds in enumerate(KINDS)
    )
    return f".lessons-source{{{light}}}:is({DARK}) .lessons-source{{{dark}}}{of_kinds}"
