"""Any Hugging Face causal language model can take the bundled one's place."""

import shutil
from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch
from oracle import generate_alone
from transformers import BloomConfig, DynamicCache, MptConfig

from lessons_lib.batching.continuous_batching import batch_generate
from lessons_lib.batching.prompts import encode_prompt
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
