"""Kernels with pieces of their source replaced: learners' mistakes, as data for the tests of the checks."""

import inspect

from source_text import unwrapped

from lessons_lib.measuring.ablations import from_source


def with_source(source, name, **names):
    """The function `name` of some source text; `names`: what the source uses."""
    return from_source(source, name, {**names, "__name__": __name__})


def changed(kernel, *pairs):
    """The kernel with pieces of its source replaced.

    Each pair is (old, new), one statement per line; old must be there.
    """
    source = unwrapped(inspect.getsource(kernel.fn))
    for old, new in pairs:
        assert old in source, f"{kernel.fn.__name__} has no {old!r} any more"
        source = source.replace(old, new)
    return with_source(source, kernel.fn.__name__, **kernel.fn.__globals__)
