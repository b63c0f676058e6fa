"""Rotary positions of every kind, in families with windows, chunks and compressed keys: served as `generate` does, or
refused."""

import os
from dataclasses import replace

import pytest
import torch
from served_architectures import ALONE, ENGINE, PAGED, compare, generate, random_prompts
from tiny_architectures import randomize, tiny_config
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

BEGINS = 16  # at longer positions, they are other ones
CONTEXT = 24
FIELDS = {
    "linear": dict(factor=4.0),
    "dynamic": dict(factor=4.0),
    "yarn": dict(factor=4.0, original_max_position_embeddings=BEGINS),
    "llama3": dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=BEGINS),
    "longrope": dict(factor=4.0, original_max_position_embeddings=BEGINS),
    "proportional": dict(factor=1.0, partial_rotary_factor=1.0),
}
FAMILIES = ["llama", "gemma3_text", "deepseek_v3"]
# Of the Phi models, transformers takes only "longrope".
MORE = ["mistral", "modernbert-decoder", "gemma2", "llama4_text", "qwen2", "gpt_oss", "olmo3", "cohere2", "exaone4"]


def with_rope(parameters, kind, dim):
    """Rotary positions of another kind. Some models have those of each kind of layer."""
    if any(isinstance(each, dict) for each in parameters.values()):
        return {layers: with_rope(each, kind, dim) for layers, each in parameters.items()}
    factors = dict(short_factor=[1.0] * (dim // 2), long_factor=[2.0] * (dim // 2)) if kind == "longrope" else {}
    own = {name: parameters[name] for name in ("rope_theta", "partial_rotary_factor") if name in parameters}
    return own | dict(rope_type=kind) | FIELDS[kind] | factors


def model_of(family, kind):
    fields = tiny_config(family).to_dict()
    dim = (
        fields.get("qk_rope_head_dim")
        or fields.get("head_dim")
        or fields["hidden_size"] // fields["num_attention_heads"]
    )
    dim = int(dim * (fields.get("partial_rotary_factor") or fields["rope_parameters"].get("partial_rotary_factor", 1)))
    fields |= dict(rope_parameters=with_rope(fields["rope_parameters"], kind, dim), max_position_embeddings=CONTEXT)
    config = type(tiny_config(family))(**{name: fields[name] for name in fields.keys() - {"model_type"}})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).float().eval().requires_grad_(False)
    randomize(model, 0)
    model.generation_config = GenerationConfig(pad_token_id=0)
    return model


def test_all_kinds_are_here():
    assert FIELDS.keys() == ROPE_INIT_FUNCTIONS.keys()


@pytest.mark.parametrize("kind", FIELDS)
@pytest.mark.parametrize("family", FAMILIES + (MORE if os.environ.get("LESSONS_NIGHTLY") else []))
def test_rotary_positions(family, kind):
    model = model_of(family, kind)
    prompts = [prompt[:BEGINS] for prompt in random_prompts(model.config.vocab_size)]
    engine = replace(ENGINE, max_model_len=CONTEXT)
    outcome = compare(family, model, prompts, [generate(model, prompt) for prompt in prompts], engine)
    if kind == "longrope":  # the frequencies of all sequences change with the longest
        assert outcome.verdict == "refused" and f"beyond {BEGINS} tokens" in outcome.reason
    else:
        assert outcome.verdict in (PAGED, ALONE), outcome
