"""Lesson 12: refuse calls from inside a step, such as those of a model or a logits processor."""

import sys
from types import FrameType
from typing import Any


def refuse_inside(method: Any, mistake: str) -> None:
    """Refuse a call that a bound method makes, directly or not. The call stack tells: a flag could be left behind by an
    interrupt.

    Raises:
        RuntimeError: with the mistake, and what to do.
    """
    frame: FrameType | None = sys._getframe(2)
    while frame:
        if frame.f_code is method.__code__ and frame.f_locals["self"] is method.__self__:
            raise RuntimeError(f"{mistake}; note what you want to do, and do it after the step.")
        frame = frame.f_back
