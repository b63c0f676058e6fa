"""Kernels with pieces of their source replaced: learners' mistakes, as data for the tests of the checks."""

import inspect
import itertools
import linecache

from source_text import unwrapped

_count = itertools.count()


def with_source(source, name, **names):
    """The function `name` of some source text, which `inspect` finds as if it stood in a file.

    `names`: what the source uses.
    """
    file = f"<kernel {next(_count)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    namespace = {**names, "__name__": __name__}
    exec(compile(source, file, "exec"), namespace)  # noqa: S102
    return namespace[name]


def changed(kernel, *pairs):
    """The kernel with pieces of its source replaced.

    Each pair is (old, new), one statement per line; old must be there.
    """
    source = unwrapped(inspect.getsource(kernel.fn))
    for old, new in pairs:
        assert old in source, f"{kernel.fn.__name__} has no {old!r} any more"
        source = source.replace(old, new)
    return with_source(source, kernel.fn.__name__, **kernel.fn.__globals__)
