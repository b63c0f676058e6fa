"""A damaged copy of the bundled model is served as the whole one, or refused with a sentence; never otherwise."""

import json
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Tokenizer

from lessons_lib.engine.llm_engine import EngineConfig, LLMEngine
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.models.configuration import UnsupportedModel
from lessons_lib.models.loading import BUNDLED_MODEL, DamagedModel, load_model
from lessons_lib.models.whole_folder import in_files, in_vocabulary, weights_left_out

PROMPTS = ["Once upon a time", "The little dog said:"]
DAMAGES = {
    "gone": lambda path: path.unlink(),
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "an empty list": lambda path: path.write_text("[]"),
    "an empty object": lambda path: path.write_text("{}"),
}
FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
HARMLESS = {  # the rest of the folder says the same
    ("generation_config.json", "gone"),
    ("generation_config.json", "an empty object"),
    ("tokenizer_config.json", "gone"),
    ("tokenizer_config.json", "an empty object"),
}


def answers(folder):
    model, tokenizer = load_model(folder, device="cpu")
    with LLMEngine(model, tokenizer, EngineConfig(num_blocks=16)) as engine:
        outputs = engine.generate(PROMPTS, SamplingParams(max_tokens=6, temperature=0))
    return [(output.prompt_ids, output.token_ids, output.text, output.finish_reason) for output in outputs]


@pytest.fixture(scope="module")
def right():
    return answers(BUNDLED_MODEL)


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(BUNDLED_MODEL, tmp_path / "model")


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file(folder, right, name, how):
    DAMAGES[how](folder / name)
    if (name, how) in HARMLESS:
        assert answers(folder) == right
        return
    with pytest.raises(DamagedModel, match=re.escape(f"the model in {folder}")) as refused:
        answers(folder)
    assert "Fetch the files again" in str(refused.value)


def layers(count):
    return dict(num_hidden_layers=count, layer_types=["full_attention"] * count)


@pytest.mark.parametrize(
    "changes, says",
    [
        (layers(7), "12 weights that a 'qwen2' model of 7 layers doesn't use"),
        (layers(9), "lacks 12 weights, such as 'model.layers.8."),
        (dict(vocab_size=4104), "can't be read"),
        (dict(num_key_value_heads=1), "can't be read"),
        (dict(tie_word_embeddings=False), "lacks 1 weights, such as 'lm_head.weight'"),
        (dict(model_type="gpt2", architectures=["GPT2LMHeadModel"]), "lacks"),
        (dict(model_type="llama", architectures=["LlamaForCausalLM"]), "24 weights that a 'llama' model of 8 layers"),
        (dict(model_type="nonsense"), "can't be read"),
    ],
)
def test_a_configuration_of_another_model(folder, changes, says):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(DamagedModel, match=re.escape(says)):
        load_model(folder, device="cpu")


@pytest.mark.parametrize("size", [1000, 6000])
def test_a_tokenizer_of_another_model(folder, size):
    spec = json.loads((folder / "tokenizer.json").read_text())
    more = {f"more{id}": id for id in range(4096, size)}
    vocabulary = {token: id for token, id in (spec["model"]["vocab"] | more).items() if id < size}
    spec["model"]["vocab"] = vocabulary
    spec["model"]["merges"] = [pair for pair in spec["model"]["merges"] if "".join(pair) in vocabulary]
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    with pytest.raises(DamagedModel, match=f"its tokenizer has {size} tokens and the model 4096"):
        load_model(folder, device="cpu")


@pytest.mark.parametrize(
    "name, text, says",
    [
        (
            "chat_template.jinja",
            "{% for message in messages %}{{ message['con",
            "chat template can't be read: unexpected",
        ),
        ("chat_template.jinja", "{% for message in messages %}a", "chat template can't be read: Unexpected end of"),
        ("chat_template.jinja", "{{ raise_exception('the system message comes first') }}", None),
        ("chat_template.jinja", "{% generation %}{{ messages[0].content }}{% endgeneration %}", None),
        ("adapter_config.json", '{"peft_type": "LORA"}', "its adapter .* would be left out; merge it"),
    ],
)
def test_other_files_are_read_before_the_first_request(folder, name, text, says):
    (folder / name).write_text(text)
    if says is None:
        assert load_model(folder, device="cpu")
        return
    with pytest.raises(DamagedModel, match=says):
        load_model(folder, device="cpu")


def change_weights(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def test_weights_that_are_not_numbers(folder):
    change_weights(folder, lambda weights: weights["model.norm.weight"].fill_(torch.nan))
    with pytest.raises(UnsupportedModel, match="its own logits are NaN. Its weights are damaged"):
        answers(folder)


def test_other_weights_and_the_tied_one_do_not_matter(folder, right):
    def change(weights):
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
        for other in ("vision.layers.0.proj.weight", "model.layers.0.self_attn.rotary_emb.inv_freq"):
            weights[other] = torch.ones(4)

    change_weights(folder, change)
    assert answers(folder) == right


class Tokenizer:
    all_special_ids = (0,)
    vocab_size = 0

    def __init__(self, size, ids):
        self.size, self.ids = size, ids

    def __len__(self):
        return self.size

    def __call__(self, text, add_special_tokens):
        return type("Encoding", (), {"input_ids": self.ids})


def test_what_a_tokenizer_must_be():
    assert in_vocabulary(Tokenizer(5, [1, 4]), 10) == in_vocabulary(Tokenizer(4096, [99]), 10) == ""
    assert "no tokens but the special ones (1)" in in_vocabulary(Tokenizer(1, []), 1)
    assert "has 4 tokens and the model 10" in in_vocabulary(Tokenizer(4, [1]), 10)
    assert "as no tokens" in in_vocabulary(Tokenizer(10, []), 10)


def test_a_tokenizer_in_its_old_files_is_whole(tmp_path):
    vocabulary = {"<|endoftext|>": 0, "a": 1, "b": 2, "ab": 3}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    tokenizer = GPT2Tokenizer.from_pretrained(tmp_path)
    assert tokenizer("ab").input_ids == [3] and in_files(tokenizer, tmp_path) == ""
    (tmp_path / "merges.txt").unlink()
    assert in_files(tokenizer, tmp_path) == "its tokenizer lacks merges.txt, and there is no tokenizer.json"


def test_weights_beside_the_model_are_no_layers():
    used = ["model.layers.0.mlp.up.weight", "model.layers.1.mlp.up.weight", "lm_head.weight"]
    fine = ["vision.layers.0.weight", "model.layers.2.mtp.weight", "model.layers.0.rotary.inv_freq"]
    fine += ["model.layers.0.attn.bias", "model.layers.0.attn.masked_bias"]  # causal masks of old files
    wrong = ["lm_head.bias", "model.layers.1.mlp.up.lora_A.weight", "model.layers.7.mlp.up.weight"]
    assert weights_left_out(fine + wrong, used) == wrong
