"""What attention gets in the decodes of a run."""

from types import SimpleNamespace

import torch

from lessons_lib.attention import pack, plan_torch
from lessons_lib.batching import paged_generate
from lessons_lib.models import kv_head_size, tiny_model
from lessons_lib.recording import decode_inputs

PLAIN = SimpleNamespace(pad_token_id=0, eos_token_id=None)


def test_every_layer_of_every_step_with_decodes_only_is_kept():
    model, load = tiny_model("qwen2"), dict(prompts=[[5, 6, 7], [8]], max_new_tokens=4, block_size=2)
    tokens, noted = decode_inputs(model, PLAIN, **load)
    assert tokens == paged_generate(model, PLAIN, **load)
    layers = model.config.num_hidden_layers
    assert len(noted) == 3 * layers  # the first of four steps has the prompts
    assert [inputs.context_lens.tolist() for inputs in noted[::layers]] == [[4, 2], [5, 3], [6, 4]]
    kv_heads, head_dim = kv_head_size(model.config)
    for query, keys, values, block_tables, context_lens, scale in noted:
        assert query.shape == (2, model.config.num_attention_heads, head_dim) and scale == head_dim**-0.5
        assert keys.shape == values.shape and keys.shape[1:] == (2, kv_heads, head_dim)
        assert block_tables.dtype == context_lens.dtype == torch.int32


def test_keys_are_those_of_their_step():
    model = tiny_model("llama")
    _, noted = decode_inputs(model, PLAIN, [[5, 6, 7]], max_new_tokens=3, block_size=4)
    query, keys, values, block_tables, context_lens, scale = noted[0]
    packed = pack([[0]], [3])
    before = plan_torch(packed, block_tables, 4)(query, keys, values, scale)
    assert before.isfinite().all() and not torch.equal(keys, noted[-model.config.num_hidden_layers].keys)
    assert context_lens.tolist() == [4]
