"""The scripts that made the bundled model, on a CPU in a few seconds."""

import json
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

import lessons_lib
from examples.distill import evaluate, export, sample, teacher, text, train

MODEL = Path(lessons_lib.__file__).parent / "assets" / "model"
END = "<|endoftext|>"


def test_rotary_halves_give_the_same_dot_products():
    torch.manual_seed(0)
    heads, width, inputs = 3, 8, 5
    weights = torch.randn(2, heads * width, inputs)
    x = torch.randn(2, inputs)
    angles = torch.rand(2, 1, width // 2) * 6  # of two positions
    cos, sin = angles.cos(), angles.sin()

    def interleaved(vector, at):
        even, odd = vector.view(heads, width)[:, ::2], vector.view(heads, width)[:, 1::2]
        return torch.stack([even * cos[at] - odd * sin[at], odd * cos[at] + even * sin[at]], -1).flatten(1)

    q, k = (interleaved(weights[at] @ x[at], at) for at in (0, 1))
    moved = [teacher.interleaved_to_halves(weight, heads) for weight in weights]
    q2, k2 = (sample.rotate((moved[at] @ x[at]).view(1, heads, width), cos[at], sin[at])[0] for at in (0, 1))
    torch.testing.assert_close((q * k).sum(-1), (q2 * k2).sum(-1))


def test_teacher_file_is_read_to_its_last_number():
    width, hidden, layers, heads, vocabulary, context = 16, 24, 2, 2, 11, 8
    table = context * width // heads  # the rotary tables at the end are computed, not read
    size = vocabulary * width + layers * (2 * width + 4 * width**2 + 3 * width * hidden) + width + table
    numbers = np.random.default_rng(0).normal(size=size).astype(np.float32)
    model = teacher.read_model(
        struct.pack("<7i", width, hidden, layers, heads, heads, vocabulary, context) + numbers.tobytes()
    )
    assert model.model.norm.weight.tolist() == numbers[-table - width : -table].tolist()
    assert (
        model.model.layers[1].mlp.up_proj.weight[-1].tolist() == numbers[-table - 2 * width : -table - width].tolist()
    )
    with pytest.raises(ValueError, match="sha256"):
        teacher.split_file(__file__)


def toy_teacher():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=20, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=16, rms_norm_eps=1e-5, tie_word_embeddings=True,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def test_sampler_computes_what_transformers_computes():
    model = toy_teacher()
    ids = torch.randint(20, (3, 16))
    with torch.inference_mode():
        expected = model(ids).logits
        sampler = sample.Sampler(model, 3, "cpu", torch.float32)
        for at in range(16):
            torch.testing.assert_close(sampler.logits(ids[:, at]), expected[:, at], rtol=1e-4, atol=1e-5)
            sampler.position += 1


def test_text_keeps_finished_distinct_stories_and_holds_some_out(tmp_path, monkeypatch):
    pieces = [b"<unk>", b"\n<s>\n", b"\n</s>\n", b" the", b" cat", b" sat", b".", b"\xff", b" dog", b"\n"]
    packed = b"".join(struct.pack("<fi", 0.0, len(piece)) + piece for piece in pieces)
    (tmp_path / "tokenizer.bin").write_bytes(struct.pack("<i", 9) + packed)
    stories = [[3, 4, 5, 6], [3, 8, 5, 6], [3, 4, 5, 6], [4, 7], [3, 8, 9, 4, 6]]
    ids = np.full((7, 8), 3, np.int16)  # the last rows never end
    for row, story in enumerate(stories):
        ids[row, : len(story) + 1] = [*story, 1]
    kept = [found for _, found in text.read_stories(ids.view(np.uint16), pieces)]
    assert kept == ["the cat sat.", "the dog sat.", "the cat sat.", "the dog\n cat."]

    more = np.full((64, 8), 1, np.int16)
    more[:, :6] = np.random.default_rng(0).integers(3, 7, (64, 6))
    (tmp_path / "shards").mkdir()
    np.save(tmp_path / "shards" / "00001.npy", ids)
    np.save(tmp_path / "shards" / "00002.npy", more)
    monkeypatch.setattr(text, "VOCABULARY", 300)
    arguments = {
        "--teacher": tmp_path,
        "--shards": tmp_path / "shards",
        "--out": tmp_path / "data",
        "--heldout-one-in": 3,
    }
    monkeypatch.setattr(sys, "argv", ["text", *(str(part) for pair in arguments.items() for part in pair)])
    text.main()
    tokenizer = Tokenizer.from_file(str(tmp_path / "data" / "tokenizer" / "tokenizer.json"))
    line = tokenizer.decode(np.load(tmp_path / "data" / "train.npy").tolist(), skip_special_tokens=False)
    trained, judged = line.split(END)[:-1], json.loads((tmp_path / "data" / "heldout.json").read_text())
    assert len(trained) == len(set(trained)) and len(judged) == len(set(judged)) > 3
    everything = {found for part in (ids, more) for _, found in text.read_stories(part.view(np.uint16), pieces)}
    assert set(trained) | set(judged) == everything and not set(trained) & set(judged)
    saved = np.load(tmp_path / "data" / "heldout_teacher.npz")
    rows = np.split(saved["ids"], saved["ends"][:-1])
    assert [teacher.decode(pieces, row[:-1]).decode() for row in rows] == judged


def test_packed_rows_lose_what_their_stories_lose_alone():
    """No story in a row sees another: the packed loss is the loss of each story in a forward pass of its own."""
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32),
        AutoTokenizer.from_pretrained(MODEL),
    )
    heldout = (MODEL / "heldout_sample.txt").read_text(encoding="utf-8").split(f"\n{END}\n")
    tokens = np.array([token for story in heldout[:4] for token in [*tokenizer(story).input_ids, 0]], np.uint16)
    rows = train.Rows(tokens, "cpu", one_text=0.0, leading_end=1.0)
    ids, targets, positions, documents = rows.next(1, 400)
    nats = count = 0
    with torch.inference_mode():
        for document in documents.unique():
            row = ids[documents == document].tolist()
            if document == documents.max():
                row.append(int(targets[0, -1]))
            one = evaluate.sum_of_losses(model, [row])
            nats, count = nats + one[0], count + one[1]
        assert count == int((targets != -100).sum())
        model.set_attn_implementation("packed")
        packed = train.packed_loss(model, ids, targets, positions, train.document_mask(documents)).item()
    assert packed == pytest.approx(nats / count, abs=0.01)


def test_export_gives_back_the_weights(tmp_path):
    torch.manual_seed(0)
    config = train.student_config()
    assert config.num_hidden_layers == 8
    state = {name: value.bfloat16() for name, value in export.Qwen2ForCausalLM(config).state_dict().items()}
    del state["lm_head.weight"]
    export.export(state, MODEL, tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert set(file.keys()) == set(state)
        assert all(torch.equal(file.get_tensor(name), state[name]) for name in state)
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        assert json.loads((tmp_path / name).read_text()) == json.loads((MODEL / name).read_text())
