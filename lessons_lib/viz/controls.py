"""Controls of the widgets: buttons, a line of controls, and what is said below it."""

from html import escape

import ipywidgets as widgets


def button(text: str, tooltip: str, width: str = "auto") -> widgets.Button:
    return widgets.Button(description=text, tooltip=tooltip, layout=widgets.Layout(width=width))


def line_of(*controls: widgets.Widget, gap: str | None = None) -> widgets.HBox:
    """Controls side by side; in a narrow window, in several lines."""
    layout = dict(align_items="center", max_width="900px", flex_flow="row wrap", grid_gap=gap)
    return widgets.HBox(controls, layout=widgets.Layout(**layout))


def said(words: str) -> str:
    """A sentence for a `widgets.HTML`; a screen reader reads it when it changes."""
    return f'<div role="status" style="line-height:20px">{escape(words)}</div>'


def name_parts(widget: widgets.Widget, name: str, **parts: widgets.Widget) -> None:
    """Classes by which a browser finds a widget and its parts: "lessons-pool", "lessons-pool-append"."""
    widget.add_class(f"lessons-{name}")
    for part, one in parts.items():
        one.add_class(f"lessons-{name}-{part.replace('_', '-')}")
