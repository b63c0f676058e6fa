"""The bundled model: its files, its tokenizer, and the stories that it writes."""

import io
import json
import logging
import unicodedata
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

import lessons_lib

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


def test_files_are_small_and_a_license_and_a_card_are_with_them():
    assert (MODEL / "model.safetensors").stat().st_size <= 15_000_000
    assert sum((MODEL / name).stat().st_size for name in ("tokenizer.json", "tokenizer_config.json")) <= 500_000
    assert (MODEL / "heldout_sample.txt").stat().st_size <= 60_000
    card = (MODEL / "README.md").read_text(encoding="utf-8")
    assert all(word in card for word in ("stories15M", "MIT", "CDLA-Sharing-1.0", "nats a character"))
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


@torch.inference_mode()
def losses(model, rows):
    """Nats of each token but the first of each row, [rows, longest - 1]; 0 where a row has ended."""
    ids = torch.nn.utils.rnn.pad_sequence(list(map(torch.tensor, rows)), batch_first=True)
    targets = torch.nn.utils.rnn.pad_sequence(list(map(torch.tensor, rows)), batch_first=True, padding_value=-100)
    logits = model(ids).logits[:, :-1]  # padding is on the right: no token before it sees it
    return torch.nn.functional.cross_entropy(logits.transpose(1, 2), targets[:, 1:], reduction="none")


@pytest.mark.parametrize("prompt", ["The dragon", "Ben had a red ball. He"])
def test_greedy_story_ends_and_does_not_loop(loaded, prompt):
    model, tokenizer, _ = loaded
    inputs = tokenizer(prompt, return_tensors="pt")
    ids = model.generate(**inputs, max_new_tokens=300)[0, inputs.input_ids.shape[1] :].tolist()
    assert ids[-1] == tokenizer.eos_token_id and 40 < len(ids) < 300
    words = tokenizer.decode(ids[:-1]).split()
    runs = list(zip(words, words[1:], words[2:], words[3:]))
    assert len(set(runs)) > 0.7 * len(runs), "four words in a row come again and again"


def test_heldout_loss(loaded, heldout):
    model, tokenizer, _ = loaded
    for stories, least, most in (
        (heldout[:24], 0.2, MOST_NATS),
        ([" ".join(reversed(story.split(" "))) for story in heldout[:4]], 1, 10),
    ):
        nats = losses(model, [tokenizer(END + story + END).input_ids for story in stories]).sum()
        assert least < nats / sum(map(len, stories)) <= most


def test_positions_to_the_end_of_the_context_are_trained(loaded, heldout):
    """In rows of several stories that are read as one text."""
    model, tokenizer, _ = loaded
    line = tokenizer(END + END.join(heldout)).input_ids
    by_position = losses(model, [line[row * 1024 : row * 1024 + 1024] for row in range(4)]).mean(0)
    assert by_position[768:].mean() < by_position[256:512].mean() * 1.15
