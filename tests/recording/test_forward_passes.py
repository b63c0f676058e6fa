"""What the attention of each layer gets in a pass over one prompt."""

from lessons_lib.models.configuration import kv_head_size
from lessons_lib.models.tiny_models import tiny_model
from lessons_lib.recording import attention_inputs


def test_each_layer_s_inputs_are_recorded_and_the_model_is_as_before():
    model = tiny_model("qwen2")
    before = model.config._attn_implementation
    inputs = attention_inputs(model, [5, 6, 7])
    assert model.config._attn_implementation == before and len(inputs) == model.config.num_hidden_layers
    kv_heads, head_dim = kv_head_size(model.config)
    for query, key, value, scale in inputs:
        assert query.shape == (model.config.num_attention_heads, 3, head_dim) and scale == head_dim**-0.5
        assert key.shape == value.shape == (kv_heads, 3, head_dim)
