"""Lesson 12: the lengths at which a model begins to compute in another way: windows, chunks, positions from which
queries are scaled. A probe of a few tokens never reaches them as they are, so it makes them short, for the engine and
for `generate`.

They are found by trying, since every family has names of its own: a number is such a length if making it short changes
what a long pass computes, and nothing in a pass that is shorter still.
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
SAME = 1e-4  # relative difference of logits that rounding explains
MANY_ELEMENTS = 2**16  # of a buffer that is a table of weights rather than something that a pass computes


@dataclass(frozen=True)
class Place:
    """Where a number stands: an attribute of a module or a configuration, or an entry of a dict in one."""

    values: dict[str, Any]
    name: str
    number: int | float

    def set(self, number: int | float) -> None:
        self.values[self.name] = number


@contextmanager
def short_lengths(model: PreTrainedModel, names: Collection[str]) -> Iterator[None]:
    """Inside, the lengths of a model are so short that a few tokens reach past them.

    Args:
        names: see `names_of_lengths`.
    """
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
    """What the model calls its lengths.

    Args:
        token_ids: to try with, more than SHORT.
    """
    first = token_ids[: SHORT - 1]
    with kept(model):
        compute = with_and_without_cache if fills_a_cache(model, first) else without_cache
        expected, expected_first = compute(model, token_ids), compute(model, first)
    found = []
    for name in dict.fromkeys(place.name for place in numbers(model)):
        # Beyond it, all sequences of a batch change, so it is refused; see `support.check_context`.
        if rescales_rope(model.config) and ("max_pos" in name or "max_seq" in name):
            continue
        with suppress(Exception), short_lengths(model, [name]):  # without one of its sizes, a model fails
            if not same(compute(model, token_ids), expected) and same(compute(model, first), expected_first):
                found.append(name)
    return found


def without_cache(model: PreTrainedModel, token_ids: list[int]) -> torch.Tensor:
    """The logits of all tokens in one pass."""
    return forward_with_cache(model, token_ids, 0, None, 0)


def with_and_without_cache(model: PreTrainedModel, token_ids: list[int]) -> torch.Tensor:
    """The same, and the logits of the last token over a cache such as `generate` makes: the cache of some models has a
    window that their masks don't have."""
    own, end = DynamicCache(config=model.config), len(token_ids) - 1
    forward_with_cache(model, token_ids[:end], 0, own)
    return torch.cat([without_cache(model, token_ids), forward_with_cache(model, token_ids[end:], end, own)])


def fills_a_cache(model: PreTrainedModel, token_ids: list[int]) -> bool:
    """Whether a pass over a cache works at all; some models need a cache of another class."""
    try:
        with_and_without_cache(model, token_ids)
    except Exception:
        return False
    return True


def numbers(model: PreTrainedModel) -> Iterator[Place]:
    """Every number above SHORT that a pass may look at, and that may be a length."""
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
    """Whether logits differ by rounding only."""
    if found.shape != expected.shape:
        return False
    found, expected = found.double().nan_to_num(nan=1e9), expected.double().nan_to_num(nan=1e9)
    return bool((found - expected).norm() <= SAME * expected.norm().clamp(min=1e-9))


@contextmanager
def kept(model: PreTrainedModel) -> Iterator[None]:
    """Afterwards, what the modules keep between two passes, such as rotary frequencies, is as before."""
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
                with suppress(RuntimeError):  # a buffer that was made in inference mode
                    module._buffers[name].copy_(content)  # type: ignore[union-attr]
