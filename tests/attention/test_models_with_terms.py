"""Models with windows, softcaps, sinks, chunks and heads of several sizes: served as packed, chunked, paged batches, and
compared with `generate`."""

import random
from types import SimpleNamespace

import pytest
import torch
from overlap_cases import with_the_same_past
from term_models import MODELS, WINDOW, term_model
from transformers import masking_utils

from lessons_lib.attention.hf_backend import PAGED, PagedPass, attention_of_layer, paged_attention_in
from lessons_lib.attention.score_terms import ScoreTerms, score_terms
from lessons_lib.engine.gpu_model_runner import GPUModelRunner, compiled_logits
from lessons_lib.engine.greedy_loop import serve_greedily
from lessons_lib.engine.model_runner import ModelRunner
from lessons_lib.kv_cache.block_memory import block_bytes
from lessons_lib.kv_cache.block_pool import BlockPool
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache
from lessons_lib.models.configuration import KVShape, UnsupportedModel, kv_shapes
from lessons_lib.models.tiny_models import tiny_model
from lessons_lib.scheduling.scheduler import SchedulerOutput
from lessons_lib.scheduling.sequence import Sequence
from lessons_lib.scheduling.stalling import Scheduler

BLOCK, NEW_TOKENS = 4, 8
LENGTHS = (1, WINDOW, WINDOW + 1, 31)


def prompts_of(seed):
    rng = random.Random(seed)
    return [[rng.randrange(97) for _ in range(length)] for length in LENGTHS]


def alone(model, prompt):
    generated = model.generate(torch.tensor([prompt]), max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0)
    return generated[0, len(prompt) :].tolist()


@pytest.mark.parametrize("model_type", MODELS)
def test_a_chunked_paged_batch_generates_what_each_prompt_generates_alone(model_type):
    model, prompts = term_model(model_type), prompts_of(3)
    expected = [alone(model, prompt) for prompt in prompts]
    scheduler = Scheduler(BlockPool(80, BLOCK), max_num_seqs=3, max_num_batched_tokens=13)
    sequences = [Sequence(str(index), prompt, NEW_TOKENS) for index, prompt in enumerate(prompts)]
    assert serve_greedily(ModelRunner(model, 80, BLOCK), scheduler, sequences) == expected
    assert len({token for tokens in expected for token in tokens}) > 8, "a model that repeats itself proves little"


@pytest.mark.parametrize("model_type", ["gemma2", "gpt_oss", "llama4_text", "deepseek_v3"])
def test_the_operator_computes_the_same_logits(model_type):
    model = term_model(model_type)
    plain = ModelRunner(model, 41, BLOCK)
    tested = GPUModelRunner(model, 40, BLOCK, max_num_seqs=3, max_model_len=64, compiled=False, graphs=False)
    with_the_same_past(tested, plain)
    chunk = Sequence("A", prompts_of(1)[3], 9, num_computed_tokens=25, blocks=list(range(8)))
    decode = Sequence("B", prompts_of(2)[2], 9, num_computed_tokens=6, blocks=[30, 20])
    step = SchedulerOutput({chunk: 5, decode: 1})
    torch.testing.assert_close(tested.forward(step), plain.forward(step), rtol=1e-4, atol=1e-4)
    tested.close()


def test_a_model_with_terms_is_traced_in_one_piece():
    """Traced as for a GPU, and run as it is."""
    torch._dynamo.reset()
    model = term_model("gemma2", num_hidden_layers=1, layer_types=("sliding_attention",))
    runner = GPUModelRunner(model, 40, BLOCK, max_num_seqs=3, max_model_len=64, compiled=False, graphs=False)
    compiled = compiled_logits(runner.cache, backend="eager", options=None)
    sequences = [Sequence(str(seed), prompts_of(seed)[3], 9, blocks=[seed, seed + 9]) for seed in range(3)]
    batch = runner.prepare(SchedulerOutput(dict.fromkeys(sequences, 7)))
    with torch.inference_mode(), paged_attention_in(model):
        logits = compiled(model, runner.cache, batch, runner.previous_tokens)
    for got, sequence in zip(logits, sequences, strict=True):
        expected = model(torch.tensor([sequence.prompt_ids[:7]])).logits[0, -1]
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    runner.close()


# --- what a layer asks for


class Layer:
    layer_idx = 1

    def __init__(self, **config):
        self.config = SimpleNamespace(**config)


SLIDING = dict(layer_types=["full_attention", "sliding_attention"], sliding_window=4)


@pytest.mark.parametrize(
    "config, keywords, expected",
    [
        ({}, {}, None),
        ({}, dict(dropout=0.0, is_causal=True, sliding_window=None, softcap=None, s_aux=None), None),
        ({}, dict(position_ids=torch.zeros(1), output_attentions=False, unknown=False), None),
        (SLIDING, dict(sliding_window=3), ScoreTerms(window=3)),
        ({}, dict(sliding_window=4), ScoreTerms(window=4)),
        ({}, dict(softcap=30.0), ScoreTerms(softcap=30.0)),
        (SLIDING | dict(layer_types=["full_attention"] * 2), {}, None),
        (SLIDING, {}, ScoreTerms(window=4)),
        (dict(layer_types=["full_attention", "chunked_attention"], attention_chunk_size=8), {}, ScoreTerms(chunk=8)),
        (SLIDING | dict(layer_types=None), {}, None),
    ],
)
def test_terms_come_from_keywords_and_layer_types(config, keywords, expected):
    assert score_terms(Layer(**config), None, keywords) == expected


def attend(attention, mask=None, **keywords):
    """Layer 1 calls our attention."""
    cache = PagedKVCache(tiny_model().config, 2, BLOCK)
    query, key = torch.ones(1, 4, 2, 8), torch.ones(1, 2, 2, 8)
    try:
        attention_of_layer(
            Layer(), query, key, key, mask, 0.5, paged=PagedPass(cache, torch.arange(2), attention), **keywords
        )
    except UnsupportedModel:
        assert not any(tensor.any() for tensor in cache.keys + cache.values), "nothing is written before"
        raise


@pytest.mark.parametrize(
    "mask, keywords, says",
    [
        (torch.zeros(1, 1, 2, 2), {}, "layer 1 .Layer. passes a mask of its own .*'attention_mask'"),
        (None, dict(position_bias=torch.zeros(1, 4, 2, 2)), r"position_bias=a tensor of shape \[1, 4, 2, 2\]"),
        (None, dict(block_indices=[3]), r"block_indices=\[3\]"),
        (None, dict(is_causal=False), "is_causal=False to its attention"),
    ],
)
def test_what_would_change_the_result_is_refused_by_name_before_anything_is_written(mask, keywords, says):
    with pytest.raises(UnsupportedModel, match=says):
        attend(lambda *args: pytest.fail("attention was computed"), mask, **keywords)


def test_a_backend_that_knows_no_terms_never_drops_them():
    def attention(query, keys, values, scale):
        return query

    attend(attention)
    with pytest.raises(TypeError, match="terms"):
        attend(attention, sliding_window=2)


@pytest.mark.parametrize("make_mask", ["causal", "sliding_window_causal", "chunked_causal", "bidirectional"])
def test_transformers_makes_no_mask_for_our_attention(make_mask):
    config = term_model("llama4_text").config
    arguments = dict(config=config, inputs_embeds=torch.zeros(1, 3, 32), attention_mask=None)
    if make_mask != "bidirectional":
        arguments |= dict(past_key_values=None, position_ids=torch.arange(3)[None])
    before, config._attn_implementation = config._attn_implementation, PAGED
    try:
        assert getattr(masking_utils, f"create_{make_mask}_mask")(**arguments) is None
    finally:
        config._attn_implementation = before


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen2"])
def test_without_a_pass_paged_attention_is_refused_and_the_model_is_as_before_afterwards(family):
    """A fault of real engines: called without its cache, it ran without the causal mask."""
    model, row = tiny_model(family, seed=3), torch.arange(20, 26)[None]
    own, before = model.config._attn_implementation, model(input_ids=row).logits
    with paged_attention_in(model), pytest.raises(TypeError, match="paged"):
        assert model.config._attn_implementation == "paged"
        model(input_ids=row, use_cache=False)
    assert model.config._attn_implementation == own and torch.equal(model(input_ids=row).logits, before)


# --- heads of several sizes


@pytest.mark.parametrize(
    "model_type, measured, expected",
    [
        ("deepseek_v3", None, [KVShape(4, 12, 6)] * 3),
        ("gemma4_text", None, [KVShape(2, 8, 8), KVShape(2, 8, 8), KVShape(2, 16, 16)]),
        ("gemma2", None, [KVShape(2, 8, 8)] * 3),
        ("gemma2", [KVShape(1, 4, 2), KVShape(3, 6, 6)], [KVShape(1, 4, 2), KVShape(3, 6, 6)]),
    ],
)
def test_every_layer_gets_a_cache_of_its_own_shape(model_type, measured, expected):
    config = term_model(model_type).config
    cache = PagedKVCache(config, 5, BLOCK, layer_shapes=measured)
    assert measured or kv_shapes(config) == expected
    for shape, keys, values in zip(expected, cache.keys, cache.values, strict=True):
        assert keys.shape == (5, BLOCK, shape.kv_heads, shape.key_dim)
        assert values.shape == (5, BLOCK, shape.kv_heads, shape.value_dim)
    size = block_bytes(config, BLOCK, layer_shapes=measured)
    assert sum(tensor.nbytes for tensor in cache.keys + cache.values) == 5 * size
