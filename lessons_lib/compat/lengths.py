"""Lesson 12: lengths beyond which a model computes differently: windows, chunks, positions where queries get scaled.

A probe of a few tokens never reaches them, so it shortens them, both for the engine and for `generate`.

Every family has its own names for them, so they are found by trial: a number is such a length if shortening it changes
the result of a long pass and not that of a short one.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel

from lessons_lib.compat.alone_runner import forward_alone
from lessons_lib.models.configuration import text_config
from lessons_lib.models.support import rescales_rope

SHORT = 5
SAME = 1e-4  # relative difference of logits due to rounding
MANY_ELEMENTS = 2**16  # a larger buffer is a table of weights, not a result of a pass
Place = tuple[dict[str, Any], str, int | float]  # a number, and the dict and the name where it stands


@contextmanager
def short_lengths(model: PreTrainedModel, names: Collection[str]) -> Iterator[None]:
    """Context manager: set the lengths with these names, see `names_of_lengths`, to SHORT."""
    places = [place for place in numbers(model) if place[1] in names]
    with kept(model):
        for values, name, _ in places:
            values[name] = SHORT
        try:
            yield
        finally:
            for values, name, number in places:
                values[name] = number


@torch.inference_mode()
def names_of_lengths(model: PreTrainedModel, token_ids: list[int]) -> list[str]:
    """Find the names of the model's lengths by trials with these tokens, more than SHORT."""
    first = token_ids[: SHORT - 1]
    with kept(model):
        compute = with_and_without_cache if fills_a_cache(model, first) else without_cache
        expected, expected_first = compute(model, token_ids), compute(model, first)
    found = []
    for name in dict.fromkeys(name for _, name, _ in numbers(model)):
        # Beyond this length, all sequences of a batch change, so it is refused; see `support.check_context`.
        if rescales_rope(model.config) and ("max_pos" in name or "max_seq" in name):
            continue
        with suppress(Exception), short_lengths(model, [name]):  # a model fails with a wrong size
            if not same(compute(model, token_ids), expected) and same(compute(model, first), expected_first):
                found.append(name)
    aliases = text_config(model.config).attribute_map  # a module may have copied the length under its other name
    return [*found, *(alias for alias, name in aliases.items() if name in found)]


def without_cache(model: PreTrainedModel, token_ids: list[int]) -> torch.Tensor:
    """Compute the logits of all tokens in one pass."""
    return forward_alone(model, token_ids, 0, None, 0, use_cache=False)[0]


def with_and_without_cache(model: PreTrainedModel, token_ids: list[int]) -> torch.Tensor:
    """Compute these, and the logits of the last token over the cache that `generate` would make: in some models, only
    the cache has a window."""
    end = len(token_ids) - 1
    _, own = forward_alone(model, token_ids[:end], 0, None)
    return torch.cat([without_cache(model, token_ids), forward_alone(model, token_ids[end:], end, own)[0]])


def fills_a_cache(model: PreTrainedModel, token_ids: list[int]) -> bool:
    """True if a pass over a cache works."""
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
                yield values, name, value


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
        buffers = dict(module._buffers)
        small = {name: each for name, each in buffers.items() if each is not None and each.numel() <= MANY_ELEMENTS}
        before.append((module, plain(module), buffers, {name: each.clone() for name, each in small.items()}))
    try:
        yield
    finally:
        for module, values, buffers, contents in before:
            for name in plain(module).keys() - values.keys():
                del vars(module)[name]
            vars(module).update(values)
            module._buffers.clear()
            module._buffers.update(buffers)
            for name, content in contents.items():
                with suppress(RuntimeError):  # a buffer created in inference mode
                    module._buffers[name].copy_(content)  # type: ignore[union-attr]


def plain(module: torch.nn.Module) -> dict[str, Any]:
    """Attributes of a module that are numbers, tensors or None."""
    kinds = int | float | torch.Tensor | None
    return {name: value for name, value in vars(module).items() if name[:1] != "_" and isinstance(value, kinds)}
