"""Checks 00.4, the bytes that one token takes in the cache, on configurations of several model families."""

import copy

import torch
from transformers import AutoConfig, GPT2Config, LlamaConfig, Qwen2Config, Qwen3Config

from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.models.configuration import cache_bytes_per_token, kv_head_size
from lessons_lib.models.loading import BUNDLED_MODEL


def _llama(**changes) -> LlamaConfig:
    shape = dict(
        num_hidden_layers=1,
        hidden_size=8,
        num_attention_heads=1,
        num_key_value_heads=1,
        intermediate_size=16,
        vocab_size=32,
    )
    return LlamaConfig(**(shape | changes))


def _gpt2_with_head_dim(head_dim: int, **shape) -> GPT2Config:
    config = GPT2Config(**shape)
    config.head_dim = head_dim
    return config


def _with_none(field: str, **shape) -> Qwen2Config:
    config = Qwen2Config(**shape)
    setattr(config, field, None)
    return config


# (configuration, bytes_per_element, description), smallest first; each case tests one more rule.
BYTES_CASES = (
    (_llama(), 1, "one layer, one KV head of size 8, 1 byte per element."),
    (_llama(), 2, "one layer, one KV head of size 8, 2 bytes per element (bfloat16)."),
    (_llama(num_hidden_layers=3), 2, "3 layers, one KV head of size 8, 2 bytes per element."),
    (
        _llama(hidden_size=32, num_attention_heads=4, num_key_value_heads=4),
        2,
        "one layer, 4 KV heads of size 8, 2 bytes per element.",
    ),
    (
        _llama(hidden_size=32, num_attention_heads=4, num_key_value_heads=2),
        2,
        "one layer, 4 query heads sharing 2 KV heads of size 8 (grouped-query attention), 2 bytes per element.",
    ),
    (
        _llama(hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=16),
        2,
        "one layer, hidden size 32, 4 query heads sharing 2 KV heads, head_dim=16 set in the configuration, 2 bytes "
        "per element.",
    ),
    (GPT2Config(n_layer=2, n_head=3, n_embd=48), 4, "GPT-2 with 2 layers and 3 heads of size 16, 4 bytes per element."),
    (
        Qwen2Config(num_hidden_layers=5, hidden_size=96, num_attention_heads=6, num_key_value_heads=3),
        4,
        "Qwen2 with 5 layers, 6 query heads sharing 3 KV heads of size 16, 4 bytes per element.",
    ),
    (
        _with_none("head_dim", num_hidden_layers=1, hidden_size=96, num_attention_heads=6, num_key_value_heads=3),
        2,
        "Qwen2 with one layer, 6 query heads sharing 3 KV heads, hidden size 96, head_dim=None, 2 bytes per element.",
    ),
    (
        _with_none("num_key_value_heads", num_hidden_layers=1, hidden_size=96, num_attention_heads=6),
        2,
        "Qwen2 with one layer, 6 query heads, hidden size 96, num_key_value_heads=None, 2 bytes per element.",
    ),
    (
        _gpt2_with_head_dim(32, n_layer=1, n_head=3, n_embd=48),
        2,
        "one layer, hidden size 48, 3 query heads, no num_key_value_heads, head_dim=32 set in the configuration, 2 "
        "bytes per element.",
    ),
    (
        Qwen3Config(num_hidden_layers=3, hidden_size=96, num_attention_heads=6, num_key_value_heads=2, head_dim=40),
        2,
        "Qwen3 with 3 layers, 6 query heads sharing 2 KV heads of size 40, 2 bytes per element.",
    ),
)


def test_cache_bytes_per_token(attempt) -> None:
    for config, size, case in BYTES_CASES:
        try:
            got = call(attempt, config, size, case=case)
        except AttributeError as error:
            raise Mistake(
                f"your code raised AttributeError: {error}.",
                case=case,
                idea=_why_missing(str(error)),
            ) from error
        except TypeError as error:
            unset = [name for name in ("head_dim", "num_key_value_heads") if getattr(config, name, 0) is None]
            if "None" not in str(error) or not unset:
                raise
            raise Mistake(
                f"your code raised TypeError: {error}.",
                case=case,
                idea="In this configuration, `head_dim` exists and is None: no size is set. Then it is "
                "hidden_size // num_attention_heads."
                if unset == ["head_dim"]
                else "In this configuration, `num_key_value_heads` exists and is None. Then every query head has a KV "
                "head of its own.",
            ) from error
        _refuse_no_number(got, case)
        expected = cache_bytes_per_token(config, size)
        if got != expected:
            idea = _why_other_model(got, config, size, attempt) or _why_bytes(got, expected, config, size, attempt)
            raise Mistake(f"one token should take {expected:,} bytes; yours says {_plain(got)}.", case=case, idea=idea)
        if not hasattr(got, "__index__"):
            raise Mistake(
                f"{expected:,} bytes per token is right, but yours is {got}, a {type(got).__name__}; return an int.",
                case=case,
                idea="In Python, `/` gives a float even when the division is exact; `//` gives an int.",
            )
    config, _, case = BYTES_CASES[0]
    got = call(attempt, config, case=case)
    if got != cache_bytes_per_token(config):
        raise Mistake(
            f"without `bytes_per_element`, one token should take {cache_bytes_per_token(config)} bytes; yours says "
            f"{_plain(got)}.",
            case="one layer, one KV head of size 8, called without bytes_per_element.",
            idea="The default is 4, the size of a float32.",
        )


def _why_missing(error: str) -> str:
    if "'num_key_value_heads'" in error:
        return (
            "This configuration has no `num_key_value_heads`: every query head has keys and values of its own. Then "
            "there are `num_attention_heads` KV heads."
        )
    if "'head_dim'" in error:
        return "This configuration has no `head_dim`. Then the size of a head is hidden_size // num_attention_heads."
    return (
        "Every configuration has `num_hidden_layers`, `num_attention_heads` and `hidden_size`; `num_key_value_heads` "
        "and `head_dim` may be missing."
    )


def _why_other_model(got, config, size: int, attempt) -> str:
    """Why the attempt is wrong if it reads the notebook's model instead of `config`; else ""."""
    ours = AutoConfig.from_pretrained(BUNDLED_MODEL, local_files_only=True)
    expected = cache_bytes_per_token(config, size)
    if got == expected // 1024 and attempt(config, 1024 * size) == expected:
        return "You seem to count in KiB. The result is in bytes."
    deeper = copy.deepcopy(config)
    deeper.num_hidden_layers += 1
    ignores_layers = attempt(deeper, size) == got
    other = _llama(num_hidden_layers=2, hidden_size=48, num_attention_heads=6, num_key_value_heads=3)
    for layers, heads_of in ((ours, ours), (config, ours), (ours, config)):
        if got == _bytes(layers, size, *kv_head_size(heads_of)) and ignores_layers == (layers is ours):
            same = [read if read is ours else other for read in (layers, heads_of)]
            if attempt(other, size) != _bytes(same[0], size, *kv_head_size(same[1])):
                continue  # the same number by accident
            return (
                "You seem to read the notebook's own model, `model.config`. Take every value from the argument, "
                "`config`."
            )
    if ignores_layers and attempt(BYTES_CASES[-1][0], size) == got:
        return (
            "Your result is the same for every configuration. Take the layers, KV heads and head size from the "
            "argument, `config`."
        )
    return ""


def _why_bytes(got, expected: int, config, size: int, attempt) -> str:
    kv_heads, head_dim = kv_head_size(config)
    layers = config.num_hidden_layers
    # hidden_size equals (query heads) x (head size) unless the configuration sets head_dim.
    if config.num_attention_heads > kv_heads and got == _bytes(config, size, config.num_attention_heads, head_dim):
        stated = _llama(hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=24)
        if attempt(stated, 1) == _bytes(stated, 1, 1, stated.hidden_size):
            return (
                "You seem to count hidden_size elements per layer. Count KV heads times head size: query heads share "
                "KV heads, so here it's fewer elements."
            )
        if attempt(stated, 1) == _bytes(stated, 1, 2, 24):
            return (
                "You seem to divide hidden_size by the KV heads. The size of a head is hidden_size divided by the "
                "*query* heads."
            )
        return "You seem to count the query heads. Only KV heads are stored, and several query heads share each one."
    if got == _bytes(config, size, kv_heads, config.hidden_size // config.num_attention_heads):
        if not hasattr(config, "num_key_value_heads"):
            return (
                "Each of the two fields may be missing without the other. Here the number of KV heads is missing, but "
                "the size of a head is set."
            )
        return (
            "You seem to compute the head size as hidden_size // heads. This configuration sets it explicitly: "
            "`head_dim`."
        )
    queries = config.num_attention_heads
    if kv_heads > 1 and got * kv_heads == expected:
        grouped = _llama(hidden_size=48, num_attention_heads=6, num_key_value_heads=3)
        if attempt(grouped, 1) == _bytes(grouped, 1, 2, 8):
            return (
                "You seem to divide the query heads by the KV heads. That is how many query heads share one KV head. "
                "Count the KV heads."
            )
        return f"You seem to count only one head. There are {kv_heads} KV heads, each with a key and a value."
    if queries > 1 and got == queries * expected:
        return (
            f"Yours is {queries} times too large, and the model has {queries} query heads. hidden_size covers all of "
            "them, and queries aren't kept. Count KV heads times the size of one head."
        )
    if got == 8 * expected:
        return "You seem to count bits. Count bytes: a bfloat16 has 2, a float32 has 4."
    if layers > 1 and got * layers == expected:
        return f"You seem to count only one layer. The model has {layers}, and each has its own keys and values."
    if size > 1 and got * size == expected:
        return f"You seem to count elements, not bytes. Each element takes {size} bytes here."
    three = _llama(num_hidden_layers=3)
    if got * 2 == expected * 3 and attempt(three, size) * 2 == _bytes(three, size, 1, 8) * 3:
        return "You seem to count three vectors per head. Queries aren't kept: only a key and a value are."
    if got * 1024 == expected:
        return "You seem to count in KiB. The result is in bytes."
    if layers == kv_heads == 1 and got * 2 * size == expected * (size + 1):
        return f"You seem to multiply only half of the elements by `bytes_per_element`, here {size}. It counts for all."
    if queries > kv_heads and got * 2 * kv_heads == expected * (kv_heads + queries):
        return (
            "You seem to count the keys or the values once per query head. Both are stored once per KV head, and "
            "several query heads share each one."
        )
    if got * kv_heads * head_dim == expected * (kv_heads + head_dim):
        return (
            "You seem to add the number of KV heads and their size. Multiply them: each KV head has that many elements."
        )
    if got == expected // 2 + expected * 4 // (2 * size):
        return f"You seem to count half of the elements with 4 bytes. `bytes_per_element`, here {size}, counts for all."
    if got * 2 == expected:
        return "You seem to count only half: a token stores a key *and* a value in every layer."
    if got * size == expected * 4:
        return f"You seem to assume 4 bytes per element. `bytes_per_element` is {size} here."
    if got == expected * config.max_position_embeddings:
        return "You seem to count the whole context. The question is about *one* token."
    return "Multiply: 2 (key and value) × layers × KV heads × head size × bytes per element."


def _bytes(config, size: int, heads: int, width: int) -> int:
    return 2 * config.num_hidden_layers * heads * width * size


def _refuse_no_number(got, case: str) -> None:
    if got is None:
        raise Mistake(
            "your function returned None; it should return the number of bytes.",
            case=case,
            idea="Does it end with a `return`?",
        )
    if isinstance(got, (torch.Tensor, str, list, tuple, dict)) or not hasattr(got, "__mul__"):
        raise Mistake(
            f"your function returned {type(got).__name__} {short(got)}; it should return the number of bytes, an int.",
            case=case,
        )


def _plain(count) -> str:
    return f"{count:,}"
