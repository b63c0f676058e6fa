"""What a cell can do only in a notebook: say how far it is, in a line that its result replaces."""

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def in_notebook() -> bool:
    return "IPython" in sys.modules and hasattr(sys.modules["IPython"].get_ipython(), "kernel")


def with_progress(items: Sequence[T], told: Callable[[T], str]) -> Iterator[T]:
    """The items, one after another. In a notebook a line says which one the caller is working on.

    It isn't a progress bar: those write to stderr or leave a widget behind, and a notebook is saved with both. The line
    clears what the cell has shown before, so the cell should show nothing else until its result comes.
    """
    shown = in_notebook()
    if shown:
        from IPython.display import clear_output
    for number, item in enumerate(items, 1):
        if shown:
            clear_output(wait=True)
            print(f"{number} of {len(items)}: {told(item)} …", flush=True)
        yield item
    if shown:
        clear_output(wait=True)
