"""Judges 00.4, the bytes of cache that one token takes, on the configurations of several families."""

import copy

import torch
from transformers import AutoConfig, GPT2Config, LlamaConfig, Qwen2Config, Qwen3Config

from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.models.loading import BUNDLED_MODEL, cache_bytes_per_token, kv_head_size


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


# (configuration, bytes_per_element, in words), smallest first; each brings one rule more into play.
BYTES_CASES = (
    (_llama(), 1, "one layer, one KV head of size 8, 1 byte a number."),
    (_llama(), 2, "one layer, one KV head of size 8, 2 bytes a number (bfloat16)."),
    (_llama(num_hidden_layers=3), 2, "3 layers, one KV head of size 8, 2 bytes a number."),
    (
        _llama(hidden_size=32, num_attention_heads=4, num_key_value_heads=4),
        2,
        "one layer, 4 KV heads of size 8, 2 bytes a number.",
    ),
    (
        _llama(hidden_size=32, num_attention_heads=4, num_key_value_heads=2),
        2,
        "one layer, 4 query heads over 2 KV heads of size 8 (grouped-query attention), 2 bytes a number.",
    ),
    (
        _llama(hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=16),
        2,
        "one layer, hidden size 32, 4 query heads over 2 KV heads, and head_dim=16 stated in the configuration, 2 bytes a number.",
    ),
    (GPT2Config(n_layer=2, n_head=3, n_embd=48), 4, "GPT-2 with 2 layers and 3 heads of size 16, 4 bytes a number."),
    (
        Qwen2Config(num_hidden_layers=5, hidden_size=96, num_attention_heads=6, num_key_value_heads=3),
        4,
        "Qwen2 with 5 layers, 6 query heads over 3 KV heads of size 16, 4 bytes a number.",
    ),
    (
        Qwen3Config(num_hidden_layers=3, hidden_size=96, num_attention_heads=6, num_key_value_heads=2, head_dim=40),
        2,
        "Qwen3 with 3 layers, 6 query heads over 2 KV heads of size 40, 2 bytes a number.",
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
                idea="Families name the parts of their configurations differently. `kv_head_size(config)` gives KV heads and head size for all.",
            ) from error
        _refuse_no_number(got, case)
        expected = cache_bytes_per_token(config, size)
        if got != expected:
            idea = _why_other_model(got, config, size, attempt) or _why_bytes(got, expected, config, size, attempt)
            raise Mistake(f"{expected:,} bytes a token; yours says {_plain(got)}.", case=case, idea=idea)
        if not hasattr(got, "__index__"):
            raise Mistake(
                f"{expected:,} bytes a token is right, but yours is {got}, a {type(got).__name__}; bytes are whole, so return an int.",
                case=case,
                idea="In Python `/` gives a float even when nothing is left over; `//` gives an int.",
            )
    config, _, case = BYTES_CASES[0]
    got = call(attempt, config, case=case)
    if got != cache_bytes_per_token(config):
        raise Mistake(
            f"without `bytes_per_element` it should be {cache_bytes_per_token(config)} bytes a token; yours says {_plain(got)}.",
            case="one layer, one KV head of size 8, called without bytes_per_element.",
            idea="The default is 4, the bytes of a float32.",
        )


def _why_other_model(got, config, size: int, attempt) -> str:
    """Words for an attempt that reads the numbers of the notebook's model instead of those of `config`; else ""."""
    ours = AutoConfig.from_pretrained(BUNDLED_MODEL, local_files_only=True)
    deeper = copy.deepcopy(config)
    deeper.num_hidden_layers += 1
    ignores_layers = attempt(deeper, size) == got
    for layers, heads_of in ((ours, ours), (config, ours), (ours, config)):
        if got == _bytes(layers, size, *kv_head_size(heads_of)) and ignores_layers == (layers is ours):
            return "You seem to take numbers of the notebook's own model, `model.config`. Read all of them from the argument, `config`."
    if ignores_layers and attempt(BYTES_CASES[-1][0], size) == got:
        return "Your number is the same for every configuration. Read layers, KV heads and their size from the argument, `config`."
    return ""


def _why_bytes(got, expected: int, config, size: int, attempt) -> str:
    kv_heads, head_dim = kv_head_size(config)
    layers = config.num_hidden_layers
    # hidden_size and (query heads) x (head size) are the same unless the configuration states head_dim.
    if config.num_attention_heads > kv_heads and got == _bytes(config, size, config.num_attention_heads, head_dim):
        stated = _llama(hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=16)
        if attempt(stated, 1) == _bytes(stated, 1, 1, stated.hidden_size):
            return "You seem to count hidden_size numbers a layer. Count KV heads times their size: query heads share them, so here that is less."
        return "You seem to count the query heads. Only KV heads are stored; query heads share them."
    if got == _bytes(config, size, kv_heads, config.hidden_size // config.num_attention_heads):
        return "You seem to compute the head size as hidden_size // heads. This configuration states it: `head_dim`."
    if kv_heads > 1 and got * kv_heads == expected:
        return f"You seem to count one head. There are {kv_heads} KV heads, each with a key and a value."
    if got == 8 * expected:
        return "You seem to count bits. Count bytes: a bfloat16 has 2, a float32 has 4."
    if layers > 1 and got * layers == expected:
        return f"You seem to count one layer. The model has {layers}, and every layer keeps keys and values of its own."
    if size > 1 and got * size == expected:
        return f"You seem to count numbers, not bytes. Each number takes {size} here."
    if got * 2 == expected:
        return "You seem to count one number where there are two: a token leaves a key *and* a value in every layer."
    if got * size == expected * 4:
        return f"You seem to take 4 bytes a number. `bytes_per_element` is {size} here."
    if got == expected * config.max_position_embeddings:
        return "You seem to count the whole context. The question is about *one* token."
    return "Multiply: key and value (2) × layers × KV heads × size of a head × bytes a number."


def _bytes(config, size: int, heads: int, width: int) -> int:
    return 2 * config.num_hidden_layers * heads * width * size


def _refuse_no_number(got, case: str) -> None:
    if got is None:
        raise Mistake(
            "your function returned None; it should return a number of bytes.",
            case=case,
            idea="Is there a `return` at its end?",
        )
    if isinstance(got, (torch.Tensor, str, list, tuple, dict)) or not hasattr(got, "__mul__"):
        raise Mistake(
            f"your function returned {type(got).__name__} {short(got)}; it should return a number of bytes, an int.",
            case=case,
        )


def _plain(number) -> str:
    return f"{number:,}"
