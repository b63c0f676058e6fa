"""Small real runs for the pictures: a tiny random model, and requests drawn by seed."""

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from lessons_lib.models import tiny_model
from lessons_lib.recording import RecordedRun, record_run


def _text(ids: int | list[int]) -> str:
    return f"t{ids if isinstance(ids, int) else ids[0]}"


LETTERS = SimpleNamespace(eos_token_id=None, pad_token_id=0, decode=_text)  # stands in for a tokenizer


def drawn_prompts(draw: random.Random, lengths: list[int]) -> list[list[int]]:
    return [[draw.randrange(1, 97) for _ in range(length)] for length in lengths]


def recorded(serve: Callable[..., Any], prompts: list[list[int]], new_tokens: list[int], **options: Any) -> RecordedRun:
    """`serve` on the tiny model, recorded; the requests are called A, B, C, ..."""
    names = "ABCDEFGH"[: len(prompts)]
    return record_run(serve, tiny_model(), LETTERS, prompts, names=names, max_new_tokens=new_tokens, **options)
