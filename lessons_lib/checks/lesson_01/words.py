"""Shared by the messages of lesson 01: a short description of an unexpected value."""

import torch

from lessons_lib.checks.exercise import short


def kind(value) -> str:
    """A short description of a value."""
    if value is None:
        return "None (is a `return` missing?)"
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {list(value.shape)}"
    return f"{type(value).__name__} {short(value, 60)}"


def count(n: int, noun: str) -> str:
    """A count with its noun: 1 column, 2 columns."""
    return f"{n} {noun}" + ("" if n == 1 else "es" if noun.endswith("s") else "s")
