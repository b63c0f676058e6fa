"""Prompts of any kind: right, or refused as a BadRequest that says what was wrong."""

import array
from collections import deque

import numpy as np
import pytest
import torch

from lessons_lib.batching.prompts import encode_prompt, encode_prompts
from lessons_lib.models.loading import load_model
from lessons_lib.models.prompts import MAX_CHARACTERS_PER_TOKEN
from lessons_lib.models.tiny_models import VOCAB_SIZE, tiny_model
from lessons_lib.models.validate import BadRequest

CONTEXT = 256


def encode(prompt, max_new_tokens=1):
    return encode_prompt(tiny_model(), None, "it", prompt, max_new_tokens)


class Hides:
    """An object that can't be written out."""

    def __repr__(self):
        raise RuntimeError


SEQUENCES = [
    [1, 2], (1, 2), range(1, 3), deque([1, 2]), np.array([1, 2]), np.array([1, 2], dtype=np.uint8),
    [np.int32(1), np.uint64(2)], torch.tensor([1, 2]), [torch.tensor(1), torch.tensor(2)], array.array("q", [1, 2]),
]  # fmt: skip


@pytest.mark.parametrize("prompt", SEQUENCES, ids=repr)
def test_token_ids_may_be_in_any_sequence(prompt):
    prompt_ids, _ = encode(prompt)
    assert prompt_ids == [1, 2] and [type(token) for token in prompt_ids] == [int, int]


BAD = {
    "whole floats": ([1.0, 2.0], "contains 1.0, which is float"),
    "a float behind": ([1, 2.5], "contains 2.5"),
    "a bool": ([True], "contains True, which is bool"),
    "a NumPy bool": ([np.bool_(True)], "contains .*True.*, which is bool"),
    "an array of floats": (np.array([1.0]), "contains 1.0"),
    "a tensor of floats": (torch.tensor([1.0]), "contains 1.0"),
    "a tensor of bools": (torch.tensor([True]), "contains True"),
    "a batch of one": (torch.tensor([[1, 2]]), r"contains \[1, 2\], which is list.*one flat list"),
    "a tensor without a dimension": (torch.tensor(3), r"is tensor\(3\)"),
    "a list in a list": ([[1, 2]], "one flat list"),
    "digits": (["1", "2"], "contains '1', which is str"),
    "None in it": ([None], "contains None"),
    "bytes": (b"hello", "is b'hello'; give a str"),
    "a bytearray": (bytearray(b"hello"), "is bytearray.* give a str"),
    "a memoryview": (memoryview(b"hello"), "is .*memory.* give a str"),
    "None": (None, "is None; give a str"),
    "a number": (5, "is 5; give a str"),
    "a set": ({1, 2}, "give a str, or a list"),
    "a dict": ({"prompt_token_ids": [1]}, "give a str, or a list"),
    "a generator": ((token for token in [1]), "give a str, or a list"),
    "nothing": ([], "is empty"),
    "an array of nothing": (np.array([], dtype=int), "is empty"),
    "negative": ([3, -1], f"token id -1; .* 0 to {VOCAB_SIZE - 1}"),
    "behind the vocabulary": ([VOCAB_SIZE], f"token id {VOCAB_SIZE}; "),
    "an id of 10,000 digits": ([10**10_000], "token id a huge int"),
    "objects that can't be shown": ([Hides()], "which is Hides"),
    "long": ([1] * 100_000, f"100000 tokens; the context is {CONTEXT}"),
    "long and wrong": ([0.5] * 100_000, "100000 tokens"),
    "an array with too many": (np.ones(10**6, dtype=int), "1000000 tokens"),
    "a text that can't fit": ("a" * (CONTEXT * MAX_CHARACTERS_PER_TOKEN + 1), "32769 characters"),
}


@pytest.mark.parametrize("case", BAD)
def test_anything_else_is_refused(case):
    prompt, says = BAD[case]
    with pytest.raises(BadRequest, match=f"^it .*{says}") as refused:
        encode(prompt)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("text", ["\ud800", "fine \udfff"])
def test_half_a_character_is_refused(text):
    model, tokenizer = load_model()
    with pytest.raises(BadRequest, match="^it can't be encoded.*lone surrogates"):
        encode_prompt(model, tokenizer, "it", text, 1)


def test_the_bound_on_characters_holds_for_the_bundled_tokenizer():
    tokenizer = load_model()[1]
    assert max(len(tokenizer.decode([token])) for token in range(len(tokenizer))) <= MAX_CHARACTERS_PER_TOKEN


@pytest.mark.parametrize(
    "limit", [True, 2.0, "3", 10**10_000, [1, 2.5], [1, None, 3], object()], ids=lambda value: type(value).__name__
)
def test_a_limit_is_an_integer(limit):
    with pytest.raises(BadRequest):
        encode_prompts(tiny_model(), None, [[1], [2]], limit)
