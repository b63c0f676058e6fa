"""06.4, `paged_attention_forward`: write, then attend, with the shapes of a Hugging Face layer."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

from lessons_lib.attention.hf_backend import PagedPass
from lessons_lib.checks.diagnosis import Shown, Task, Watch, mistakes
from lessons_lib.checks.lesson_06.cache import contents, names_of
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache
from lessons_lib.models.configuration import KVShape
from lessons_lib.models.tiny_models import tiny_model

Case = tuple[int, list[int], float | None]  # the layer, the slots of the new tokens, and `scaling`
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 8


def cases() -> Iterator[Case]:
    yield from ((1, [5, 0], 0.5), (0, [5, 6, 0], 0.5), (1, [5, 6, 0], None), (0, [3], None), (2, [7, 1], 0.25))


def run(attempt: Any, case: Case, watch: Watch) -> None:
    layer, slots, scaling = case
    draw = torch.Generator().manual_seed(layer)
    query, key, value = (
        torch.randn(1, heads, len(slots), HEAD_DIM, generator=draw) for heads in (HEADS, KV_HEADS, KV_HEADS)
    )
    result = torch.randn(len(slots), HEADS, HEAD_DIM, generator=draw)
    cache = PagedKVCache(
        tiny_model("qwen2").config, num_blocks=2, block_size=4, layer_shapes=[KVShape(KV_HEADS, HEAD_DIM, HEAD_DIM)] * 3
    )
    names = names_of(key[0].transpose(0, 1), value[0].transpose(0, 1))
    pool = {
        (tensor.data_ptr(), tensor.shape): f"`paged.cache.{kind}[{index}]`"
        for kind in ("keys", "values")
        for index, tensor in enumerate(getattr(cache, kind))
    }
    seen: dict[str, Any] = {"calls of `attend`": 0}

    def attend(query: Any, keys: Any, values: Any, scale: Any) -> torch.Tensor:
        seen["calls of `attend`"] += 1
        seen["what the cache holds when `attend` is called"] = held()
        seen["the query of `attend`"] = query
        seen["the keys of `attend`"] = whose(keys)
        seen["the values of `attend`"] = whose(values)
        seen["the scale of `attend`"] = Shown("None") if scale is None else float(scale)
        return result

    def whose(tensor: Any) -> Shown:
        if not isinstance(tensor, torch.Tensor):
            return Shown(f"a {type(tensor).__name__}")
        return Shown(pool.get((tensor.data_ptr(), tensor.shape), f"another tensor, {list(tensor.shape)}"))

    def held() -> Shown:
        found = contents(cache, names, 0.0).items()
        return Shown("; ".join(f"{what} of `{name}`" for name, what in found if what != "nothing") or "nothing")

    made: list[Any] = []

    def forward(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
        paged = PagedPass(cache, torch.tensor(slots), attend)
        module = SimpleNamespace(layer_idx=layer)
        made.append(attempt(module, query, key, value, None, scaling=scaling, paged=paged, dropout=0.0, is_causal=True))
        return made[0]

    def look() -> dict[str, Any]:
        pair = dict(zip(("the attention", "the second of the pair"), made[0])) if is_pair(made[0]) else {}
        return seen | {"what the cache holds afterwards": held()} | pair

    watch("`paged_attention_forward`", forward, query, key, value, look=look, returns=kind_of)


def is_pair(got: Any) -> bool:
    return isinstance(got, tuple | list) and len(got) == 2


def kind_of(got: Any) -> Any:
    return Shown("a pair") if is_pair(got) else got


def tell(case: Case) -> str:
    layer, slots, scaling = case
    count = len(slots)
    return (
        f"layer {layer} of 3; slots {slots}; query [1, {HEADS}, {count}, {HEAD_DIM}], key and value [1, {KV_HEADS}, "
        f"{count}, {HEAD_DIM}]; scaling={scaling}."
    )


MISTAKES = """
A token attends to itself, too, so its key must be in the cache first: write, then attend.
- paged.cache.write => pass
> attended = => paged.cache.write(layer, key[0].transpose(0, 1), value[0].transpose(0, 1), paged.slot_mapping)
Nothing was written to the cache, so later tokens can't attend to these: `paged.cache.write(layer, keys, values,
paged.slot_mapping)`.
- paged.cache.write
The first of the two is keys, the second values.
~ key[0].transpose(0, 1), value[0].transpose(0, 1) => value[0].transpose(0, 1), key[0].transpose(0, 1)
or ~ value[0].transpose(0, 1), paged => key[0].transpose(0, 1), paged
`module.layer_idx` is the index of the calling layer.
= layer = 0
or = layer = -1
The layer's tensors have a batch axis in front: `key[0]`. And heads come before tokens: `transpose(0, 1)` swaps them.
~ key[0].transpose(0, 1), value[0].transpose(0, 1) => key.transpose(1, 2), value.transpose(1, 2)
or ~ key[0].transpose(0, 1), value[0].transpose(0, 1) => key[0], value[0]
or ~ key[0].transpose(0, 1), value[0].transpose(0, 1) => key, value
Swap the axes with `transpose`. `reshape` and `view` keep the order in memory, so they mix up tokens and heads.
- paged.cache.write
+ rows = [each[0].reshape(-1, key.shape[1], key.shape[3]) for each in (key, value)]
+ paged.cache.write(layer, *rows, paged.slot_mapping)
or ~ query[0].transpose(0, 1) => query[0].reshape(-1, query.shape[1], query.shape[3])
Those are the new tokens only. `attend` reads the whole pool of this layer, `paged.cache.keys[layer]`, by block tables.
~ paged.cache.keys[layer], paged.cache.values[layer], scale => key[0].transpose(0, 1), value[0].transpose(0, 1), scale
Keys and values are swapped in the call of `attend`.
~ paged.cache.keys[layer], paged.cache.values[layer], scale => paged.cache.values[layer], paged.cache.keys[layer], scale
The layer unpacks two values: the attention, and None in place of the weights.
- return => return attended[None]
or - return => return attended[None], attended
or - return => return None, attended[None]
`write` writes all new tokens at once: call it once.
- paged.cache.write
+ for token in range(len(paged.slot_mapping) - 1):
+     own = slice(token, token + 1)
+     paged.cache.write(layer, key[0].transpose(0, 1)[own], value[0].transpose(0, 1)[own], paged.slot_mapping[own])
`attend` computes the whole batch in one call.
- attended =
+ for _ in range(2):
+     attended = paged.attend(query[0].transpose(0, 1), paged.cache.keys[layer], paged.cache.values[layer], scale)
"""

TASK = Task(
    reference="lessons_lib.attention.hf_backend:paged_attention_forward",
    cases=cases,
    run=run,
    tell=tell,
    known=mistakes(MISTAKES),
    about={
        "calls of `attend`": "One call of `paged.attend` computes attention for the whole batch.",
        "returned": "Return the attention with a batch axis in front, and None: `attended[None], None`.",
        "the attention": lambda *_: (
            "Return what `attend` computed as it is, tokens before heads and the heads apart, "
            "with a batch axis in front: `attended[None], None`."
        ),
        "the query of `attend`": lambda *_: (
            "`attend` takes the query as [T, query heads, head size], "
            "`query[0].transpose(0, 1)`, and multiplies by the scale itself."
        ),
        **dict.fromkeys(
            ("the keys of `attend`", "the values of `attend`"),
            "Pass this layer's pool itself: `paged.cache.keys[layer]`, `paged.cache.values[layer]`.",
        ),
        "the scale of `attend`": "If `scaling` is None, the scale is 1 / sqrt(head size), where the head size is the "
        "query's last axis; if not, it is `scaling`.",
        "what the cache holds when `attend` is called": "By then, the new keys and values are in this layer's slots, "
        "tokens before heads (`transpose(0, 1)`, not `reshape`), and nothing else has changed.",
    },
)

EXERCISE = TASK.exercise(
    id="06.4",
    title="the function a model calls (optional)",
    hints=(
        "A new token attends to itself as well. What must have happened to its key before `attend` reads the cache?",
        "The layer's index is `module.layer_idx`. Write `key` and `value` without their first axis, "
        "tokens before heads. Work out the scale. Call `paged.attend` with "
        "the query in the same layout and this layer's two cache tensors. Add a leading axis to the result.",
        "`paged.cache.write(layer, key[0].transpose(0, 1), value[0].transpose(0, 1), paged.slot_mapping)`; "
        "`scale = query.shape[-1] ** -0.5 if scaling is None else scaling`; `attended = "
        "paged.attend(query[0].transpose(0, 1), paged.cache.keys[layer], "
        "paged.cache.values[layer], scale)`; `return attended[None], None`.",
    ),
    points=2,
)
