"""Lesson 12: lengths beyond which a model computes differently: windows, chunks, positions where queries get scaled.

A probe of a few tokens never reaches them, so it shortens them, both for the engine and for `generate`.

Every family has its own names for them, so they are found by trial: a number is such a length if shortening it changes
the result of a long pass and not that of a short one.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache, PretrainedConfig, PreTrainedModel

from lessons_lib.compat.gathered_runner import forward_with_cache
from lessons_lib.models.configuration import text_config
from lessons_lib.models.support import rescales_rope

SHORT = 5
SAME = 1e-4  # relative difference of logits due to rounding
MANY_ELEMENTS = 2**16  # a larger buffer is a table of weights, not a result of a pass


@dataclass(frozen=True)
class Place:
    """Location of a number: an attribute of a module or a configuration, or an entry of a dict in one."""

    values: dict[str, Any]
    name: str
    number: int | float

    def set(self, number: int | float) -> None:
        self.values[self.name] = number


@contextmanager
def short_lengths(model: PreTrainedModel, names: Collection[str]) -> Iterator[None]:
    """Context manager: set the lengths with these names, see `names_of_lengths`, to SHORT."""
    places = [place for place in numbers(model) if place.name in names]
    with kept(model):
        for place in places:
            place.set(SHORT)
        try:
            yield
        finally:
            for place in places:
                place.set(place.number)


@torch.inference_mode()
def names_of_lengths(model: PreTrainedModel, token_ids: list[int]) -> list[str]:
    """Find the names of the model's lengths by trials with these tokens, more than SHORT."""
    first = token_ids[: SHORT - 1]
    with kept(model):
        compute = with_and_without_cache if fills_a_cache(model, first) else without_cache
        expected, expected_first = compute(model, token_ids), compute(model, first)
    found = []
    for name in dict.fromkeys(place.name for place in numbers(model)):
        # Beyond this length, all sequences of a batch change, so it is refused; see `support.check_context`.
        if rescales_rope(model.config) and ("max_pos" in name or "max_seq" in name):
            continue
        with suppress(Exception), short_lengths(model, [name]):  # a model fails with a wrong size
            if not same(compute(model, token_ids), expected) and same(compute(model, first), expected_first):
                found.append(name)
    return found


def without_cache(model: PreTrainedModel, token_ids: list[int]) -> torch.Tensor:
    """Compute the logits of all tokens in one pass."""
    return forward_with_cache(model, token_ids, 0, None, 0)


def with_and_without_cache(model: PreTrainedModel, token_ids: list[int]) -> torch.Tensor:
    """Compute these, and the logits of the last token over the cache that `generate` would make: in some models, only
    the cache has a window."""
    own, end = DynamicCache(config=model.config), len(token_ids) - 1
    forward_with_cache(model, token_ids[:end], 0, own)
    return torch.cat([without_cache(model, token_ids), forward_with_cache(model, token_ids[end:], end, own)])


def fills_a_cache(model: PreTrainedModel, token_ids: list[int]) -> bool:
    """True if a pass over a DynamicCache works; some models need another class."""
    try:
        with_and_without_cache(model, token_ids)
    except Exception:
        return False
    return True


def numbers(model: PreTrainedModel) -> Iterator[Place]:
    """Every number above SHORT that may be a length: of the modules and of their configurations."""
    owners: dict[int, dict[str, Any]] = {}
    for module in model.modules():
        if not type(module).__module__.startswith("torch."):
            owners[id(module)] = vars(module)
        if isinstance(config := getattr(module, "config", None), PretrainedConfig):
            owners[id(config)] = vars(config)
    waiting = [*owners.values(), vars(text_config(model.config))]
    seen: set[int] = set()
    while waiting:
        values = waiting.pop()
        if id(values) in seen:
            continue
        seen.add(id(values))
        for name, value in values.items():
            if isinstance(value, dict) and name[:1] != "_":
                waiting.append(value)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if is_number and SHORT < value < float("inf") and value == int(value) and isinstance(name, str):
                yield Place(values, name, value)


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """True if logits differ only by rounding."""
    if found.shape != expected.shape:
        return False
    found, expected = found.double().nan_to_num(nan=1e9), expected.double().nan_to_num(nan=1e9)
    return bool((found - expected).norm() <= SAME * expected.norm().clamp(min=1e-9))


@contextmanager
def kept(model: PreTrainedModel) -> Iterator[None]:
    """Context manager: restore state that modules keep between two passes, such as rotary frequencies."""
    before = []
    for module in model.modules():
        small = {
            name: each for name, each in module._buffers.items() if each is not None and each.numel() <= MANY_ELEMENTS
        }
        plain = {
            name: value
            for name, value in vars(module).items()
            if name[:1] != "_" and isinstance(value, int | float | torch.Tensor | None)
        }
        if small or plain:
            before.append((module, plain, dict(module._buffers), {name: each.clone() for name, each in small.items()}))
    try:
        yield
    finally:
        for module, plain, buffers, contents in before:
            for name in [name for name in vars(module) if name[:1] != "_" and name not in plain]:
                if isinstance(vars(module)[name], int | float | torch.Tensor | None):
                    del vars(module)[name]
            vars(module).update(plain)
            module._buffers.clear()
            module._buffers.update(buffers)
            for name, content in contents.items():
                with suppress(RuntimeError):  # a buffer created in inference mode
                    module._buffers[name].copy_(content)  # type: ignore[union-attr]
