"""Rotary positions of every kind, in families with windows, chunks and compressed keys: served as `generate` does, or
refused."""

import os
from dataclasses import replace

import pytest
from model_variations import BEGINS, ROPES, with_rope
from served_architectures import ALONE, ENGINE, PAGED, compare, generate, random_prompts
from tiny_architectures import tiny_fields, tiny_model
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

CONTEXT = 24
FAMILIES = ["llama", "gemma3_text", "deepseek_v3"]
# Of the Phi models, transformers takes only "longrope".
MORE = ["mistral", "modernbert-decoder", "gemma2", "llama4_text", "qwen2", "gpt_oss", "olmo3", "cohere2", "exaone4"]


def test_all_kinds_are_here():
    assert ROPES.keys() == ROPE_INIT_FUNCTIONS.keys()


@pytest.mark.parametrize("kind", ROPES)
@pytest.mark.parametrize("family", FAMILIES + (MORE if os.environ.get("LESSONS_NIGHTLY") else []))
def test_rotary_positions(family, kind):
    ropes = with_rope(tiny_fields(family), kind)
    model = tiny_model(family, rope_parameters=ropes, max_position_embeddings=CONTEXT)
    prompts = [prompt[:BEGINS] for prompt in random_prompts(model.config.vocab_size)]
    engine = replace(ENGINE, max_model_len=CONTEXT)
    outcome = compare(family, model, prompts, [generate(model, prompt) for prompt in prompts], engine)
    if kind == "longrope":  # the frequencies of all sequences change with the longest
        assert outcome.verdict == "refused" and f"beyond {BEGINS} tokens" in outcome.reason
    else:
        assert outcome.verdict in (PAGED, ALONE), outcome
