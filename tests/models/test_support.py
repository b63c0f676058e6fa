"""What can't be served is refused by name, by looking at the model, before it runs."""

import shutil

import pytest
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

from lessons_lib.models.configuration import UnsupportedModel, text_config
from lessons_lib.models.loading import BUNDLED_MODEL, load_model
from lessons_lib.models.support import check_context, check_supported
from tools.doctor import FAIL, OK, check_model

TINY = dict(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32)
# (class of the model, fields of its configuration, what the message says)
REFUSED = [
    ("T5ForConditionalGeneration", dict(vocab_size=64, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=4),
     "T5ForConditionalGeneration (model_type 't5') can't be served: it is an encoder-decoder"),
    ("BertLMHeadModel", TINY, "it attends to later tokens too (encoder.layer.0.attention.self.is_causal is False"),
    ("BertModel", TINY, "it is not a causal language model"),
    ("BigBirdForCausalLM", TINY | dict(is_decoder=True), "call `set_attention_type('original_full')`"),
    ("Gemma3ForCausalLM", TINY | dict(use_bidirectional_attention=True), "config.use_bidirectional_attention"),
]  # fmt: skip


def make(name, fields):
    torch.manual_seed(0)
    model_class = getattr(transformers, name)
    return model_class(model_class.config_class(**fields)).eval()


@pytest.mark.parametrize("name, fields, says", REFUSED, ids=[each[0] for each in REFUSED])
def test_a_model_of_another_kind_is_refused(name, fields, says):
    with pytest.raises(UnsupportedModel) as refused:
        check_supported(make(name, fields))
    assert says in str(refused.value) and "Hugging Face's `generate`" in str(refused.value)


def test_a_model_in_training_mode_is_refused():
    model = make("LlamaForCausalLM", TINY).train()
    with pytest.raises(UnsupportedModel, match="training mode.*call `model.eval\\(\\)` first"):
        check_supported(model)
    check_supported(model.eval())


def test_load_model_and_the_doctor_refuse_what_cannot_be_served(tmp_path):
    name, fields, _ = REFUSED[-1]
    make(name, fields | dict(vocab_size=4096)).save_pretrained(tmp_path)  # as the bundled tokenizer
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(BUNDLED_MODEL / name, tmp_path)
    with pytest.raises(UnsupportedModel, match="Gemma3ForCausalLM .*bidirectional"):
        load_model(tmp_path)
    refused = check_model(str(tmp_path))
    assert refused.level == FAIL and "bidirectional" in refused.remedy
    assert check_model(str(tmp_path / "nothing")).level == FAIL
    served = check_model(str(BUNDLED_MODEL))
    assert served.level == OK and "Qwen2ForCausalLM" in served.found and "equal to `generate`" in served.found


def rope(rope_type, **fields):
    return LlamaConfig(**TINY, max_position_embeddings=256, rope_parameters=dict(rope_type=rope_type, **fields))


LONGROPE = dict(rope_theta=1e4, original_max_position_embeddings=64, short_factor=[1.0] * 4, long_factor=[2.0] * 4)


@pytest.mark.parametrize(
    "config, longest, is_refused",
    [
        (rope("default", rope_theta=1e4), 256, False),
        (rope("longrope", **LONGROPE), 64, False),
        (rope("longrope", **LONGROPE), 65, True),
        (rope("longrope", **LONGROPE), None, True),
        (rope("dynamic", rope_theta=1e4, factor=2.0), 256, False),
        (rope("dynamic", rope_theta=1e4, factor=2.0), 257, True),
    ],
)
def test_contexts_beyond_which_one_sequence_changes_the_others_are_refused(config, longest, is_refused):
    if not is_refused:
        return check_context(config, longest)
    with pytest.raises(UnsupportedModel, match=r"positions change for every sequence.*max_model_len=(64|256)\)"):
        check_context(config, longest)


@pytest.mark.parametrize("rope_type, limit", [("longrope", 64), ("dynamic", 256)])
def test_the_limit_of_a_context_is_where_hugging_face_changes_the_frequencies(rope_type, limit):
    """The oracle: the angles of position 1 in a batch whose longest position is `limit - 1`, and one more."""
    fields = LONGROPE if rope_type == "longrope" else dict(rope_theta=1e4, factor=2.0)
    rotary = LlamaForCausalLM(rope(rope_type, **fields)).model.rotary_emb
    angles = [rotary(torch.zeros(1), torch.tensor([[1, last]]))[0][0, 0] for last in (2, limit - 1, limit)]
    assert torch.equal(angles[0], angles[1]) and not torch.equal(angles[1], angles[2])


def test_the_text_part_of_a_configuration():
    config = LlamaConfig(**TINY)
    assert text_config(config) is config
    whole = transformers.Gemma3Config(text_config=TINY)
    assert text_config(whole) is whole.text_config
