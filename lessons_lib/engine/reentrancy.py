"""Lesson 12: refuse calls from inside a step, such as those of a model, a logits processor or the garbage collector."""

import sys
from typing import Any


def refuse_inside(owner: Any, methods: tuple[str, ...] = ("settle", "read", "step")) -> None:
    """Refuse a call that one of these methods of the owner makes, directly or not; by default, those of EngineCore. The
    call stack tells: a flag could be left behind by an interrupt.

    Raises:
        RuntimeError: says what to do.
    """
    frame: Any = sys._getframe(2)
    while frame:
        if frame.f_code.co_name in methods and frame.f_locals.get("self") is owner:
            raise RuntimeError("called inside a step or an on_token; note what to do, and do it after the step.")
        frame = frame.f_back
