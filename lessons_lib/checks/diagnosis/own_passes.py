"""The forward passes of an exercise whose loop is the learner's own: `model.generate` doesn't pass as an answer."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

from lessons_lib.checks.diagnosis.watching import is_tensor
from lessons_lib.checks.exercise import Mistake


@dataclass
class Pass:
    """A forward pass: what it fed, one list for each row, how many tokens its cache held, and its other arguments."""

    token_ids: Any
    cached: int
    named: dict[str, Any]


class TooManyPasses(RuntimeError):
    pass


@contextmanager
def own_passes(model: Any, most: int = 400) -> Iterator[list[Pass]]:
    """Record the passes of a model, those of `model.forward` too.

    Raises:
        Mistake: `model.generate` was called.
        TooManyPasses: more passes than `most` were made.
    """
    passes: list[Pass] = []
    original = model.forward

    @wraps(original)
    def forward(*args: Any, **named: Any) -> Any:
        ids, cache = args[0] if args else named.get("input_ids"), named.get("past_key_values")
        if len(passes) >= most:
            raise TooManyPasses(f"stopped after {most} forward passes, which is more than any answer needs")
        passes.append(Pass(ids.tolist() if is_tensor(ids) else ids, cache.get_seq_length() if cache else 0, named))
        return original(*args, **named)

    def generate(*args: Any, **named: Any) -> None:
        raise Mistake(
            "your code calls `model.generate`.",
            idea="That is the loop that this exercise asks for, and below, the one that yours is compared with. Write "
            "it yourself: call `model(...)` once for each pass, and choose the next token from its logits.",
        )

    model.forward, model.generate = forward, generate
    try:
        yield passes
    finally:
        del model.forward, model.generate
