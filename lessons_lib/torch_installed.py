"""Whether torch is there. In a browser (Pyodide) it isn't; packages then leave out the names that need it."""

from importlib.util import find_spec

HAS_TORCH = find_spec("torch") is not None
