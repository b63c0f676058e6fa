"""`show_source`: the code of a function or class in color, folded if it is long, with a link to its file."""

import html
import inspect
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LONGEST_OPEN = 20  # lines
PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Source:
    """Code as text, and where it is.

    Attributes:
        name: such as "BlockPool.free".
        code: its lines.
        file: relative to the course, such as "lessons_lib/kv_cache/block_pool.py"; "" for code of a notebook.
    """

    name: str
    code: str
    file: str

    def __str__(self) -> str:
        return self.code

    __repr__ = __str__

    def _repr_html_(self) -> str:
        lines = self.code.count("\n") + 1
        name, file = html.escape(self.name), html.escape(self.file)
        link = f' in <a href="../{file}">{file}</a>' if file else ""
        block = f"<div style='overflow-x:auto'>{_colored(self.code)}</div>"
        if lines <= LONGEST_OPEN:
            return f"<div><div><code>{name}</code>{link}</div>{block}</div>"
        summary = f"<summary style='cursor:pointer'><code>{name}</code>: {lines} lines{link}</summary>"
        return f"<details>{summary}{block}</details>"


def show_source(*things: Any) -> None:
    """Show the source of functions, methods, classes or Triton kernels.

    Raises:
        TypeError: see `source_of`.
    """
    from IPython.display import display

    for source in [source_of(thing) for thing in things]:
        display(source)


def source_of(thing: Any) -> Source:
    """The source of a function, method, class or Triton kernel.

    Raises:
        TypeError: it has no source, such as a number or a function written in C.
    """
    code = inspect.unwrap(getattr(thing, "fn", thing))  # Triton's and torch's decorators wrap functions
    try:
        lines, _ = inspect.getsourcelines(code)
        path = Path(inspect.getsourcefile(code) or "")
    except (TypeError, OSError):
        raise TypeError(f"{thing!r} has no source: give a function, a method or a class written in Python.") from None
    file = path.relative_to(PACKAGE.parent).as_posix() if path.is_relative_to(PACKAGE) else ""
    return Source(code.__qualname__, textwrap.dedent("".join(lines)).rstrip(), file)


def _colored(code: str) -> str:
    """Lines keep their length and scroll. Without Pygments, which comes with Jupyter, they are black."""
    style = "margin:0;white-space:pre;line-height:1.4"
    try:
        from pygments import highlight
        from pygments.formatters import HtmlFormatter
        from pygments.lexers import PythonLexer
    except ImportError:
        return f"<pre style='{style}'>{html.escape(code)}</pre>"
    return str(highlight(code, PythonLexer(), HtmlFormatter(noclasses=True, nobackground=True, prestyles=style)))
