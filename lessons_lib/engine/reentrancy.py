"""Lesson 12: refuse calls from inside a step, such as those of a model, a logits processor or the garbage collector."""

import sys
from traceback import walk_stack

CHANGES = ("EngineCore.settle", "EngineCore.read", "EngineCore.step", "LLMEngine.advance")


def refuse_inside(owner: object) -> None:
    """Refuse a call that one of CHANGES makes, of the same owner, directly or not. The call stack tells: a flag could
    be left behind by an interrupt.

    Raises:
        RuntimeError: says what to do.
    """
    for frame, _ in walk_stack(sys._getframe(2)):
        if frame.f_code.co_qualname in CHANGES and frame.f_locals.get("self") is owner:
            raise RuntimeError("called inside a step or an on_token; note what to do, and do it after the step.")
