"""Checks 06.4, `paged_attention_forward`: write, then attend, with the shapes of a Hugging Face layer."""

from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from transformers import AttentionInterface

from lessons_lib.attention.hf_backend import PagedPass
from lessons_lib.attention.packing import pack
from lessons_lib.attention.paged_attention import plan_torch
from lessons_lib.batching.paged_batching import padded_tables
from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.kv_cache.block_pool import BlockPool
from lessons_lib.kv_cache.block_table import BlockTable
from lessons_lib.kv_cache.cache_slots import slot_mapping
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache
from lessons_lib.models.configuration import kv_head_size
from lessons_lib.models.tiny_models import tiny_model

TOKENS, QUERY_HEADS = 3, 4
SLOTS = [5, 6, 0]


@dataclass
class Calls:
    """The calls to the cache and to `attend`, in order. Writing to the cache's tensors counts as a call of `write`."""

    made: list[str] = field(default_factory=list)
    layer: int | None = None
    written: tuple = ()
    attended: tuple = ()
    directly: bool = False

    def note_direct_write(self, cache: PagedKVCache) -> None:
        """Note what is in the cache, which was empty, if `write` hasn't been called."""
        if "write" in self.made:
            return
        for layer, tensors in enumerate(zip(cache.keys, cache.values)):
            keys, values = (tensor.flatten(0, 1) for tensor in tensors)
            slots = [slot for slot in range(len(keys)) if bool(keys[slot].any()) or bool(values[slot].any())]
            if slots:
                slots = SLOTS if sorted(slots) == sorted(SLOTS) else slots
                self.made.append("write")
                self.directly, self.layer, self.written = True, layer, (keys[slots], values[slots], torch.tensor(slots))
                return


class WatchedCache(PagedKVCache):
    def __init__(self, config, calls: Calls):
        super().__init__(config, num_blocks=2, block_size=4)
        self.calls = calls

    def write(self, layer, keys, values, slot_mapping):
        self.calls.made.append("write")
        self.calls.layer, self.calls.written = layer, (keys, values, slot_mapping)
        if (
            isinstance(keys, torch.Tensor)
            and keys.shape == (TOKENS, *self.keys[0].shape[2:])
            and keys.shape == values.shape
        ):
            super().write(layer, keys, values, slot_mapping)


def check_paged_attention_forward(attempt) -> None:
    for layer in (1, 0):
        _check_layer(attempt, layer, scaling=0.5)
    _check_layer(attempt, 1, scaling=None)
    for family in ("qwen2", "llama", "gpt2"):
        _check_in_model(attempt, family)


def _check_layer(attempt, layer: int, scaling: float | None) -> None:
    model = tiny_model("qwen2")
    kv_heads, head_dim = kv_head_size(model.config)
    case = (
        f"layer {layer} of 2; 3 new tokens with slots {SLOTS}; query [1, 4, 3, 8], key and value [1, 2, 3, 8]; "
        f"scaling={scaling}."
    )
    generator = torch.Generator().manual_seed(layer)
    query = torch.randn(1, QUERY_HEADS, TOKENS, head_dim, generator=generator)
    key, value = (torch.randn(1, kv_heads, TOKENS, head_dim, generator=generator) for _ in range(2))
    calls = Calls()
    result = torch.randn(TOKENS, QUERY_HEADS, head_dim, generator=generator)

    def attend(query, keys, values, scale):
        calls.note_direct_write(paged.cache)
        calls.made.append("attend")
        calls.attended = query, keys, values, scale
        return result

    paged = PagedPass(WatchedCache(model.config, calls), torch.tensor(SLOTS), attend)
    module = model.model.layers[layer].self_attn

    def in_layer(query, key, value):
        # `paged` is bound here, so that `call` does not copy it and compare it afterwards.
        return attempt(module, query, key, value, None, scaling=scaling, paged=paged, dropout=0.0, is_causal=True)

    got = call(in_layer, query, key, value, case=case)
    calls.note_direct_write(paged.cache)
    _check_written(calls, layer, key, value, case)
    _check_attended(calls, paged, layer, query, scaling, case)
    _check_result(got, result, case)


def _check_written(calls: Calls, layer: int, key, value, case: str) -> None:
    if "write" not in calls.made:
        raise Mistake(
            "nothing was written to the cache.",
            case=case,
            idea="Later tokens can only attend to these tokens if their keys are in the cache: "
            "`paged.cache.write(layer, keys, values, paged.slot_mapping)`.",
        )
    if calls.made[0] == "attend":
        raise Mistake(
            "the attention was computed before the new keys were written.",
            case=case,
            idea="A token attends to itself too, so its key must be in the cache first: write, then attend.",
        )
    if calls.made.count("write") > 1:
        raise Mistake(
            f"`write` was called {calls.made.count('write')} times.",
            case=case,
            idea="One call writes all tokens of the batch to this layer.",
        )
    if calls.layer != layer:
        raise Mistake(
            f"this is layer {layer}, but you wrote to layer {calls.layer} of the cache.",
            case=case,
            idea="`module.layer_idx` is the index of the calling layer.",
        )
    keys, values, slots = calls.written
    if not isinstance(slots, torch.Tensor) or slots.tolist() != SLOTS:
        raise Mistake(
            f"the slots should be {SLOTS}; {'you wrote to' if calls.directly else '`write` got'} {short(slots)}.",
            case=case,
            idea="Pass `paged.slot_mapping`.",
        )
    for name, found, source, other in (("keys", keys, key, value), ("values", values, value, key)):
        want = source[0].transpose(0, 1)
        if not isinstance(found, torch.Tensor) or found.shape != want.shape:
            shape = list(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
            idea = (
                "The layer's tensors have a batch axis in front, and heads before tokens. `key[0].transpose(0, "
                "1)` is [T, KV heads, head size]."
            )
            raise Mistake(
                f"`write` expects the {name} as {list(want.shape)}, [T, KV heads, head size]; it got {shape}.",
                case=case,
                idea=idea,
            )
        if not torch.equal(found, want):
            idea = (
                f"These are the {'values' if name == 'keys' else 'keys'}. Pass the keys first, then the values."
                if torch.equal(found, other[0].transpose(0, 1))
                else "Swap the axes with `transpose`; `reshape` and `view` mix up tokens and heads."
            )
            if not bool(found.any()):
                idea = f"They are all 0. Both are written: the {name}, too."
            where = "in the new slots" if calls.directly else "passed to `write`"
            raise Mistake(f"the {name} {where} are not this layer's new {name}.", case=case, idea=idea)


def _check_attended(calls: Calls, paged: PagedPass, layer: int, query, scaling, case: str) -> None:
    if calls.made.count("attend") != 1:
        times = "was not called" if "attend" not in calls.made else f"was called {calls.made.count('attend')} times"
        idea = (
            "One call computes attention for the whole batch. The layer passes the keys of the new tokens only; "
            "the cached ones are in the pool."
        )
        raise Mistake(f"`paged.attend` {times}.", case=case, idea=idea)
    found, keys, values, scale = calls.attended
    want = query[0].transpose(0, 1)
    if not isinstance(found, torch.Tensor) or found.shape != want.shape:
        shape = list(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        raise Mistake(
            f"`attend` expects the query as {list(want.shape)}, [T, query heads, head size]; it got {shape}.",
            case=case,
            idea="Pass `query[0].transpose(0, 1)`.",
        )
    if not torch.equal(found, want):
        idea = "Swap the axes with `transpose`; `reshape` and `view` mix up tokens and heads."
        if scaling and torch.allclose(found, want * scaling):
            idea = "You already multiplied it by the scale. `attend` does that."
        raise Mistake("the query passed to `attend` is not this layer's query.", case=case, idea=idea)
    for name, given, all_layers in (("keys", keys, paged.cache.keys), ("values", values, paged.cache.values)):
        if (
            isinstance(given, torch.Tensor)
            and given.data_ptr() == all_layers[layer].data_ptr()
            and given.shape == all_layers[layer].shape
        ):
            continue
        others = {
            "keys of the new tokens only": paged.cache.calls.written[0],
            "values of the new tokens only": paged.cache.calls.written[1],
        }
        idea = f"Pass `paged.cache.{name}[layer]`, the whole pool of this layer. `attend` knows the block tables."
        for words, tensor in others.items():
            if isinstance(given, torch.Tensor) and torch.equal(
                given.flatten().sort().values, tensor.flatten().sort().values
            ):
                idea = f"These are the {words}, so the cached ones are ignored. Pass `paged.cache.{name}[layer]`."
        for index, tensor in enumerate(all_layers):
            if isinstance(given, torch.Tensor) and given.data_ptr() == tensor.data_ptr() and index != layer:
                idea = f"That is layer {index}; `module.layer_idx` is {layer}."
        swapped = paged.cache.values[layer] if name == "keys" else paged.cache.keys[layer]
        if isinstance(given, torch.Tensor) and given.data_ptr() == swapped.data_ptr():
            idea = "Keys and values are swapped: `paged.attend(query, keys, values, scale)`."
        raise Mistake(f"the {name} passed to `attend` should be this layer's cache tensor.", case=case, idea=idea)
    wanted = query.shape[-1] ** -0.5 if scaling is None else scaling
    if not isinstance(scale, (int, float)) or abs(scale - wanted) > 1e-6:
        idea = (
            "The layer passes its own factor: use `scaling`."
            if scaling is not None
            else "If `scaling` is None, the scale is 1 / sqrt(head size): `query.shape[-1] ** -0.5`."
        )
        raise Mistake(f"the scale should be {wanted:.4g}; `attend` got {scale!r}.", case=case, idea=idea)


def _check_result(got, result: torch.Tensor, case: str) -> None:
    if not isinstance(got, (tuple, list)) or len(got) != 2:
        raise Mistake(
            f"expected a pair; your function returned {type(got).__name__}.",
            case=case,
            idea="The layer unpacks two values: `return attention[None], None`.",
        )
    found, weights = got
    want = result[None]
    if not isinstance(found, torch.Tensor) or found.shape != want.shape:
        shape = list(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        idea = "Add the batch axis: `attended[None]`."
        if isinstance(found, torch.Tensor) and found.shape == want.transpose(1, 2).shape:
            idea = "In the result, tokens come before heads, unlike in the query. `attend` already returns that layout."
        elif isinstance(found, torch.Tensor) and found.numel() == want.numel() and want.shape[-1] not in found.shape:
            idea = "Keep the heads apart, [1, T, query heads, head size]: the layer itself joins them."
        raise Mistake(
            f"the attention should have the shape {list(want.shape)}; yours has {shape}.", case=case, idea=idea
        )
    if not torch.equal(found, want):
        raise Mistake(
            "the returned attention is not what `attend` computed.",
            case=case,
            idea="Return it unchanged, with a leading axis.",
        )
    if weights is not None:
        raise Mistake(
            f"the second value of the pair should be None; yours is {type(weights).__name__}.",
            case=case,
            idea="There are no attention weights to return: they are never computed for the whole batch.",
        )


@contextmanager
def _attention(model, function):
    before = model.config._attn_implementation
    AttentionInterface.register("paged_under_test", function)
    model.set_attn_implementation("paged_under_test")
    try:
        yield
    finally:
        model.set_attn_implementation(before)


@torch.inference_mode()
def _check_in_model(attempt, family: str) -> None:
    """Two passes through a real model: two prompts, then a token of one and a chunk of the other."""
    case = f"a small {family} model; A: 5 tokens, then 1; B: 2 tokens, then 4; blocks of 4."
    model = tiny_model(family)
    texts, first = [[5, 6, 7, 8, 9, 10], [20, 21, 22, 23, 24, 25]], [5, 2]
    pool = BlockPool(6, 4)
    pool.free_queue.rotate(2)
    tables, cache = [BlockTable(pool) for _ in texts], PagedKVCache(model.config, 6, 4)
    for new_tokens in ([text[:n] for text, n in zip(texts, first)], [text[n:] for text, n in zip(texts, first)]):
        packed = pack(new_tokens, [table.num_tokens for table in tables])
        for table, count in zip(tables, packed.new_lens):
            table.append(count)
        slots = torch.cat(
            [slot_mapping(t.blocks, 4, start, t.num_tokens) for t, start in zip(tables, packed.cached_lens)]
        )
        paged = PagedPass(cache, slots, plan_torch(packed, padded_tables(tables), 4))
        arguments = dict(
            input_ids=packed.input_ids[None],
            position_ids=packed.positions[None],
            use_cache=False,
            logits_to_keep=packed.logits_index,
        )
        with _attention(model, attempt):
            got = call(lambda: model(**arguments, paged=paged), case=case).logits[0]
    for name, logits, text in zip("AB", got, texts):
        want = model(input_ids=torch.tensor([text])).logits[0, -1]
        if not torch.allclose(logits, want, rtol=1e-3, atol=2e-3):
            what = (
                f"{name}'s logits should be the same as for {name} alone; they differ by up to "
                f"{float((logits - want).abs().max()):.2g}."
            )
            raise Mistake(
                what,
                case=case,
                idea="In each layer, write the new keys and values, then attend over this layer's whole cache.",
            )
