"""Builds the notebooks of the course from solutions/NN_name.py, the only files that are written by hand.

    python -m tools.authoring            build all lessons
    python -m tools.authoring 00 --check compare a rebuild of lesson 00 with the files there

The steps, one module each::

    assemble   cells, with the exercises' code taken from the library by name (stub)
    execute    outputs, from a fresh kernel
    review     refuses pictures without words and traces of one machine
    release    the learner's copy, by nbgrader's own converter
    compare    what a rebuild would change
"""
