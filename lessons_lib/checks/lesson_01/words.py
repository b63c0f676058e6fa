"""What the refusals of lesson 01 share: words for a value that is not what was asked for."""

import torch

from lessons_lib.checks.exercise import short


def kind(value) -> str:
    """What something is, in a few words."""
    if value is None:
        return "None (is a `return` missing?)"
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {list(value.shape)}"
    return f"{type(value).__name__} {short(value, 60)}"
