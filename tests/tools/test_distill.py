"""The bundled model's files, and the scripts that made them, on a CPU in a few seconds."""

import io
import json
import logging
import struct
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

import lessons_lib
from examples.distill import evaluate, export, sample, teacher, text, train

MODEL = Path(lessons_lib.__file__).parent / "assets" / "model"
END = "<|endoftext|>"
RAW_TOKENIZER = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
MOST_NATS = 0.31  # the card says what was measured


@pytest.fixture(scope="module")
def loaded():
    """(model, tokenizer, what transformers logged while loading)"""
    logged = io.StringIO()
    handler = logging.StreamHandler(logged)
    logging.getLogger("transformers").addHandler(handler)
    try:
        model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(MODEL)
    finally:
        logging.getLogger("transformers").removeHandler(handler)
    return model, tokenizer, logged.getvalue()


@pytest.fixture(scope="module")
def heldout():
    return (MODEL / "heldout_sample.txt").read_text(encoding="utf-8")[:-1].split(f"\n{END}\n")


# The files


def test_files_are_small():
    assert (MODEL / "model.safetensors").stat().st_size <= 15_000_000
    assert sum((MODEL / name).stat().st_size for name in ("tokenizer.json", "tokenizer_config.json")) <= 500_000
    assert (MODEL / "heldout_sample.txt").stat().st_size <= 60_000


def test_config_says_what_the_model_is_and_nothing_about_who_made_it():
    config = json.loads((MODEL / "config.json").read_text())
    expected = {
        "model_type": "qwen2", "hidden_size": 256, "num_hidden_layers": 8, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 4096, "max_position_embeddings": 1024, "tie_word_embeddings": True,
        "bos_token_id": None, "eos_token_id": 0, "pad_token_id": 0, "dtype": "bfloat16",
    }  # fmt: skip
    assert expected == {key: config[key] for key in expected}
    assert not set(config) & {"_name_or_path", "transformers_version"}
    generation = json.loads((MODEL / "generation_config.json").read_text())
    assert generation == {"do_sample": False, "eos_token_id": 0, "pad_token_id": 0}


def test_weights_are_bf16_and_the_embedding_is_stored_once(loaded):
    model, _, said = loaded
    with safe_open(MODEL / "model.safetensors", "pt") as file:
        names = list(file.keys())
        assert {file.get_tensor(name).dtype for name in names} == {torch.bfloat16}
    assert "lm_head.weight" not in names
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.num_parameters() == 6_955_264
    assert said == ""


def test_licence_and_card_are_there():
    card = (MODEL / "README.md").read_text(encoding="utf-8")
    for word in ("stories15M", "MIT", "CDLA-Sharing-1.0", "nats a character", "python -m examples.distill.train"):
        assert word in card
    assert "Permission is hereby granted" in (MODEL / "LICENSE").read_text()


# The tokenizer


def test_tokenizer_adds_nothing(loaded):
    _, tokenizer, _ = loaded
    ids = tokenizer("Once upon a time").input_ids
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        assert str(getattr(RAW_TOKENIZER, part)) == str(getattr(tokenizer.backend_tokenizer, part))
    assert "".join(tokenizer.decode([token]) for token in ids) == "Once upon a time"
    assert len(tokenizer) == 4096 and tokenizer.bos_token is None
    assert tokenizer.eos_token == tokenizer.pad_token == END
    assert tokenizer.clean_up_tokenization_spaces is False and tokenizer.model_max_length == 1024
    assert tokenizer(END).input_ids == [0] and tokenizer("").input_ids == []


AWKWARD = [
    "  two  spaces ",
    "it 's . Don 't , ok ? 33",
    "\n\n\t",
    "Zoë 世界 😀 ‘’ \u0301e\u0301",
    "\x00\x7f",
    END + "a" + END,
]


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from(AWKWARD))
def test_tokenizer_is_lossless(loaded, words):
    """Letters written as base and accent come back as the one letter that they mean (Qwen2 applies NFC)."""
    _, tokenizer, _ = loaded
    ids = tokenizer(words).input_ids
    assert tokenizer.decode(ids) == unicodedata.normalize("NFC", words)
    assert ids == RAW_TOKENIZER.encode(words).ids


# The model


@pytest.mark.parametrize(
    "prompt", ["Once upon a time", "The dragon", "Tom and Sue went to the", "Ben had a red ball. He"]
)
def test_greedy_story_ends_and_does_not_loop(loaded, prompt):
    model, tokenizer, _ = loaded
    [(story, ended, length)] = evaluate.write(model, tokenizer, [prompt], limit=300)
    assert ended and 40 < length < 300
    assert story.startswith(prompt) and END not in story
    assert evaluate.repetition(story) < 0.3


def test_heldout_loss(loaded, heldout):
    model, tokenizer, _ = loaded
    found = evaluate.heldout_loss(model, tokenizer, heldout[:24])
    assert found["tokens"] == sum(len(tokenizer(story).input_ids) + 1 for story in heldout[:24])
    assert found["nats_per_character"] <= MOST_NATS
    shuffled = [" ".join(reversed(story.split(" "))) for story in heldout[:4]]
    assert evaluate.heldout_loss(model, tokenizer, shuffled)["nats_per_character"] > 1


def test_positions_to_the_end_of_the_context_are_trained(loaded, heldout):
    model, tokenizer, _ = loaded
    by_position = evaluate.long_context(model, tokenizer, heldout, count=8)
    assert by_position["768-1022"] < by_position["256-511"] * 1.15


# The scripts


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


def story_tokens(lengths):
    """Stories whose tokens tell them apart: story n is n + 1, n + 1, ..., END."""
    return np.concatenate([[number + 1] * length + [0] for number, length in enumerate(lengths)]).astype(np.uint16)


def test_rows_restart_positions_and_never_count_the_next_story():
    rows = train.Rows(story_tokens([5, 9, 3, 7, 12, 4, 8]), "cpu", one_text=0.0, leading_end=0.5)
    for _ in range(20):
        ids, targets, positions, documents = (batch.tolist() for batch in rows.next(2, 16))
        for row in range(2):
            for at in range(16):
                new = at == 0 or documents[row][at] != documents[row][at - 1]
                assert positions[row][at] == (0 if new else positions[row][at - 1] + 1)
            for document in set(documents[row]):
                inside = [at for at in range(16) if documents[row][at] == document]
                assert len({ids[row][at] for at in inside} - {0}) <= 1  # one story
                assert all(targets[row][at] == ids[row][at + 1] for at in inside[:-1])
                last = inside[-1]
                if last < 15:
                    assert ids[row][last] == 0 and targets[row][last] == -100


def test_packed_rows_lose_what_their_stories_lose_alone(loaded, heldout):
    """No story in a row sees another: the packed loss is the loss of each story in a forward pass of its own."""
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    _, tokenizer, _ = loaded
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
