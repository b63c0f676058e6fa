"""A short message with a mark: HTML in a notebook, plain text elsewhere."""

import html
from dataclasses import dataclass, field

from lessons_lib.viz.notebook import in_notebook
from lessons_lib.viz.words import code_as_html, marks_as_html

MARKS = {"right": "✓", "wrong": "✗", "open": "○", "note": "•"}
EDGES = {"right": "#009E73", "wrong": "#D55E00", "open": "#7f7f7f", "note": "#0072B2"}


@dataclass
class Panel:
    """A message to the learner.

    Attributes:
        kind: "right", "wrong", "open" (not attempted) or "note".
        title: the first line.
        lines: further paragraphs; text in `backticks` is shown as code, and »marked« text in color.
        code: a block of code or output below the paragraphs.
    """

    kind: str
    title: str
    lines: list[str] = field(default_factory=list)
    code: str = ""

    def __str__(self) -> str:
        blocks = [f"{MARKS[self.kind]} {self.title}", *self.lines]
        if self.code:
            blocks.append("\n".join("    " + line for line in self.code.rstrip().split("\n")))
        return "\n".join(blocks)

    def as_html(self) -> str:
        paragraphs = "".join(f"<div>{_with_code(line)}</div>" for line in self.lines)
        code = f"<pre style='margin:0.4em 0 0'>{html.escape(self.code.rstrip())}</pre>" if self.code else ""
        return (
            f"<div role='status' style='border-left:4px solid {EDGES[self.kind]};padding:0.2em 0.8em;line-height:1.5'>"
            f"<div><b>{MARKS[self.kind]} {_with_code(self.title)}</b></div>{paragraphs}{code}</div>"
        )

    def show(self) -> None:
        """Display in a notebook; print elsewhere."""
        if in_notebook():
            from IPython.display import display

            display({"text/html": self.as_html(), "text/plain": str(self)}, raw=True)
        else:
            print(self)


def _with_code(text: str) -> str:
    return marks_as_html(code_as_html(text)).replace("\n", "<br>")
