"""00.2, `KVCache`: every layer gets back all keys and values so far, in the order of the text."""

from collections.abc import Iterator
from operator import attrgetter, methodcaller
from typing import Any, NamedTuple

import torch

from lessons_lib.checks.diagnosis import Task, Watch, mistakes


class Case(NamedTuple):
    """Passes over new tokens, each with the cache that it uses: in a pass, every layer calls `update` once."""

    passes: list[tuple[str, int]]
    layers: int = 1
    heads: int = 1
    size: int = 2
    dtype: str = "float32"


def cases() -> Iterator[Case]:
    yield Case([("cache", 1)])
    yield Case([("cache", 3)])
    yield Case([("cache", 2), ("cache", 1)])
    yield Case([("cache", 2), ("cache", 1), ("cache", 1)], layers=2)
    yield Case([("cache", 3), ("cache", 1), ("cache", 1)], layers=3, heads=2, size=4)
    yield Case([("cache", 1), ("cache", 3), ("cache", 2)], layers=2, heads=3, size=3)
    yield Case([("cache", 4), ("cache", 1)], layers=2, heads=2, dtype="bfloat16")
    yield Case([("A", 2), ("B", 3), ("A", 1), ("B", 1)], layers=2)
    yield Case([("cache", 300), ("cache", 1), ("cache", 1)], layers=2, heads=2)
    yield Case([("cache", 5), *[("cache", 1)] * 70])
    yield Case([("cache", 1), ("cache", 1)], layers=40)


def run(Cache: Any, case: Case, watch: Watch) -> None:
    caches: dict[str, Any] = {}
    for number, (name, count) in enumerate(case.passes):
        if name not in caches:
            caches[name] = watch("`KVCache()`", Cache, returns=lambda made: None)
            look_at("`KVCache()`", caches, watch)
        for layer in range(case.layers):
            shape = (1, case.heads, count, case.size)
            key = torch.arange(case.heads * count * case.size, dtype=getattr(torch, case.dtype)).view(shape)
            key = key % 50 + (100 if case.dtype == "float32" else 50) * (number % 5) + layer
            done = f"`{name}.update(key, value, {layer})` in pass {number + 1}"
            is_last = layer == case.layers - 1  # within a pass, the layers needn't agree on the number of tokens
            got = watch(done, caches[name].update, key, -key - 1, layer, returns=shapes)
            watch(done, lambda got=got: got[0], subject="of the keys that it returns, the tensor")
            watch(done, lambda got=got: got[1], subject="of the values that it returns, the tensor")
            if is_last:
                look_at(f"pass {number + 1}", caches, watch)


def shapes(got: Any) -> Any:
    """Of a pair of tensors, the shapes."""
    if not isinstance(got, tuple | list):
        return got
    return tuple(
        f"{what} of shape {list(each.shape)}" if hasattr(each, "shape") else type(each).__name__
        for what, each in zip(("keys", "values", "more"), got)
    )


def look_at(done: str, caches: dict[str, Any], watch: Watch) -> None:
    for what in ("num_tokens", "num_bytes", "get_seq_length()"):
        read = methodcaller(what[:-2]) if what.endswith("()") else attrgetter(what)
        for name, made in caches.items():
            watch(done, lambda: None, look=lambda: {f"{name}.{what}": read(made)})


def tell(case: Case) -> str:
    counts = ", then ".join(f"{count} in {name}" if name != "cache" else f"{count}" for name, count in case.passes[:4])
    more = ", and so on" if len(case.passes) > 4 else ""
    return (
        f"a model with {case.layers} layer{'s' * (case.layers > 1)}, {case.heads} KV head{'s' * (case.heads > 1)} of "
        f"size {case.size}, in {case.dtype}; new tokens in each pass: {counts}{more}."
    )


MISTAKES = """
Tokens are the third axis of [1, KV heads, tokens, head size]: join along `dim=2`. Along another axis, other things get
mixed.
~ dim=2 => dim=1
or ~ dim=2 => dim=-1
or ~ dim=2 => dim=0
`torch.stack` makes a new axis. `torch.cat` joins along one that is there.
~ torch.cat => torch.stack
The keys are added up. Each token keeps its own: join them with `torch.cat`.
~ torch.cat([self.keys[layer], key], dim=2) => self.keys[layer] + key
~ torch.cat([self.values[layer], value], dim=2) => self.values[layer] + value
The order is that of the text: the old tokens first, then the new ones.
~ [self.keys[layer], key] => [key, self.keys[layer]]
~ [self.values[layer], value] => [value, self.values[layer]]
or ~ [self.keys[layer], key] => [key, self.keys[layer]]
or ~ [self.values[layer], value] => [value, self.values[layer]]
`update` returns the keys and values of *all* tokens so far: the layer's attention reads what it gets back. Yours
returns the new ones only.
< if layer in self.keys: => new = key, value
= return new
or - if layer in self.keys: ... value = torch.cat => pass
`update` returns what was there before the new tokens. A token sees itself, too: add first, then return.
< if layer in self.keys: => old = self.keys.get(layer, key), self.values.get(layer, value)
= return old
Nothing is kept or counted from one pass to the next. Store what you return: it's what the next pass starts from.
- self.keys[layer], self.values[layer] = key, value => pass
The second pass joins the first one's tokens, and the third misses those of the second: store the joined tensors every
time, not only the first.
- self.keys[layer], self.values[layer] = key, value
+ self.keys.setdefault(layer, key)
+ self.values.setdefault(layer, value)
Each layer has keys and values of its own, and yours share one place. Keep them by `layer`.
~ [layer] => [0]
~ if layer in => if 0 in
or = return self.keys[0], self.values[0]
The values are joined with the old *keys*. Keep both, apart.
~ torch.cat([self.values[layer], value] => torch.cat([self.keys[layer], value]
or - self.values: dict => self.values = self.keys
Give back all four axes, [1, KV heads, tokens, head size], as they came.
= return key[0], value[0]
Keys first, then values: yours are the other way around.
= return value, key
Return both, the keys and the values, as a pair.
= return key
or = return torch.stack([key, value])
Several new tokens may come at any time. They join those in the cache, just as a single one does.
~ [self.keys[layer], key] => [self.keys[layer], key[:, :, -1:]]
~ [self.values[layer], value] => [self.values[layer], value[:, :, -1:]]
or ~ if layer in self.keys => if layer in self.keys and key.shape[2] == 1
Values are joined and stored as keys are: the values of all tokens, old and new.
- value = torch.cat
or ~ value = torch.cat([self.values[layer], value], dim=2) => value = self.values[layer]
or ~ self.keys[layer], self.values[layer] = key, value => self.keys[layer] = key; self.values.setdefault(layer, value)
An empty cache holds 0 tokens, and the model asks for that before its first pass.
~ self.keys[0].shape[2] if self.keys else 0 => self.keys[0].shape[2]
or ~ if self.keys else 0 => if self.keys else None
A key *and* a value are kept of each token.
~ (*self.keys.values(), *self.values.values()) => self.keys.values()
Every layer has keys and values of its own: yours counts one layer.
~ (*self.keys.values(), *self.values.values()) => ((self.keys[0], self.values[0]) if self.keys else ())
An element takes 4 bytes in float32, and 2 in bfloat16. `tensor.nbytes` knows, and so does `tensor.element_size()`.
~ tensor.nbytes => tensor.numel()
or ~ tensor.nbytes => 2 * tensor.numel()
or ~ tensor.nbytes => 4 * tensor.numel()
"""


def about_bytes(mine: dict, want: dict) -> str:
    name = "cache.num_bytes"
    text = "Add up `tensor.nbytes` of all keys and all values that are in use, in every layer, each once."
    return f"{text} Yours is {mine[name] / want[name]:.3g} times that." if want[name] else text


TASK = Task(
    reference="lessons_lib.batching.growing_cache:KVCache",
    cases=cases,
    run=run,
    tell=tell,
    known=mistakes(MISTAKES),
    about={
        "returned": "`update` returns two tensors, the keys and the values of all tokens so far in this layer, in the "
        "order of the text: [1, KV heads, tokens, head size] each.",
        "cache.num_tokens": "Count the tokens of all passes so far, each once, however many layers and heads there "
        "are: the third axis of *one* layer's keys.",
        "cache.num_bytes": about_bytes,
        "raised KeyError": "A layer has nothing stored before its first call. Test whether *this* layer has.",
        "raised IndexError": "There may be any number of layers.",
        "raised RuntimeError": "Does that fit, with any number of layers, heads and tokens?",
    },
)

EXERCISE = TASK.exercise(
    id="00.2",
    title="the KV cache",
    hints=(
        "The model's layers call `update` in turn, pass after pass. What must layer 0 find when its second call comes, "
        "that layer 1 must not?",
        "Keep two dicts, from a layer's index to a tensor: one for keys, one for values. If the layer has an entry, "
        "join its tensor and the new one with `torch.cat` along the axis of tokens. Store the result, and return it.",
        "`if layer in self.keys: key = torch.cat([self.keys[layer], key], dim=2)`, the same for `value`, then "
        "`self.keys[layer], self.values[layer] = key, value` and `return key, value`. `num_tokens` is the third "
        "number in the shape of layer 0's keys, or 0; `num_bytes` adds up `tensor.nbytes` over both dicts.",
    ),
)
