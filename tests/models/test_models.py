"""Any Hugging Face causal language model can take the bundled one's place."""

import shutil
from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch
from oracle import generate_alone
from torch.utils.flop_counter import FlopCounterMode
from transformers import BloomConfig, DynamicCache, MptConfig

from lessons_lib.batching.continuous_batching import batch_generate
from lessons_lib.batching.prompts import encode_prompt
from lessons_lib.measuring.flop_counts import forward_cost
from lessons_lib.models.configuration import cache_bytes_per_token, context_length
from lessons_lib.models.loading import BUNDLED_MODEL, load_model
from lessons_lib.models.tiny_models import tiny_model
from lessons_lib.models.validate import BadRequest
from lessons_lib.recording.forward_passes import watch_forwards

FAMILIES = ["gpt2", "llama", "qwen2"]


def test_a_model_made_in_inference_mode_has_ordinary_weights():
    with torch.inference_mode():
        model = tiny_model("llama", seed=99)
    assert not any(weights.is_inference() for weights in model.parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_local_folder_loads_through_transformers(family, tmp_path):
    tiny = deepcopy(tiny_model(family))  # other tests have the cached one
    tiny.resize_token_embeddings(4096)  # as many as the bundled tokenizer has
    tiny.save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(BUNDLED_MODEL / name, tmp_path)
    model, tokenizer = load_model(tmp_path)
    assert model.config.model_type == family and model.dtype is torch.float32
    assert tokenizer.decode(tokenizer("The old dog").input_ids) == "The old dog"
    outputs = batch_generate(model, tokenizer, [[1, 2, 3]], max_new_tokens=9)
    assert outputs == [generate_alone(tiny, [1, 2, 3], 9, tokenizer.eos_token_id)]


@pytest.mark.parametrize("family", FAMILIES)
def test_cache_bytes_are_those_of_a_real_cache(family):
    model = tiny_model(family)
    cache = DynamicCache(config=model.config)
    model(torch.tensor([[1, 2, 3]]), past_key_values=cache)
    numbers = sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers)
    for size in (4, 2):
        assert cache_bytes_per_token(model.config, size) * 3 == numbers * size


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("new, cached", [(1, 50), (30, 0), (30, 20)])
def test_operations_are_those_that_pytorch_counts(family, new, cached):
    """PyTorch's own counter sees every matrix product; it knows nothing of our formula."""
    model = tiny_model.__wrapped__(family)
    model.set_attn_implementation("eager")  # the counter does not see into fused attention on a CPU
    config, cache = model.config, DynamicCache(config=model.config)
    if cached:
        model(torch.tensor([[5] * cached]), past_key_values=cache)
    with FlopCounterMode(display=False) as counter:
        model(torch.tensor([[5] * new]), past_key_values=cache, logits_to_keep=1)
    # PyTorch counts the whole rectangle of queries and keys; the formula only the pairs that may look at each other.
    hidden_pairs = new * (new + cached) - sum(cached + i + 1 for i in range(new))
    counted = counter.get_total_flops() - 4 * config.num_hidden_layers * config.hidden_size * hidden_pairs
    # transformers 5.17 computes the angles of rotary positions as a matrix product, later versions as a plain one.
    rotary_angles = 0 if family == "gpt2" else 2 * new * config.hidden_size // config.num_attention_heads // 2
    assert counted - forward_cost(model, new, cached).operations in (0, rotary_angles)


def test_watching_counts_every_pass():
    model = tiny_model()
    with watch_forwards(model) as passes:
        model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=4, do_sample=False, pad_token_id=0)
    assert [(p.rows, p.tokens, p.cached) for p in passes] == [(1, 3, 0), (1, 1, 3), (1, 1, 4), (1, 1, 5)]
    model(torch.tensor([[1]]))
    assert len(passes) == 4, "nothing is recorded after the block"


def test_models_without_a_longest_sequence_take_any_length_but_need_a_limit():
    bloom = SimpleNamespace(config=BloomConfig(vocab_size=97, hidden_size=32, n_layer=2, n_head=4))
    assert context_length(bloom.config) is None
    assert context_length(MptConfig(max_seq_len=77)) == 77
    assert context_length(tiny_model("gpt2", context=64).config) == 64
    assert encode_prompt(bloom, None, "A", [1] * 5000, 7) == ([1] * 5000, 7)
    assert encode_prompt(bloom, None, "A", [1, 2], None, context=10) == ([1, 2], 8)
    with pytest.raises(BadRequest, match="A has no token limit, and the model has no maximum length"):
        encode_prompt(bloom, None, "A", [1, 2], None)
    with pytest.raises(BadRequest, match="is set to 1; it must be at least 2"):
        encode_prompt(bloom, None, "A", [1], 1, context=1)
    with pytest.raises(BadRequest, match="the context is 10"):
        encode_prompt(bloom, None, "A", [1] * 9, 7, context=10)
