"""A limit on the memory of tensors: what is alive counts, once."""

import gc

import pytest
import torch

from lessons_lib.measuring.memory_limit import OutOfMemory, memory_limit

KIB = 256  # float32 values in 1024 bytes


def test_beyond_the_limit_is_an_error_with_both_numbers_and_exactly_the_limit_is_none():
    with memory_limit(2500) as memory:
        kept = torch.zeros(2 * KIB)
        with pytest.raises(OutOfMemory, match=r"3,072 bytes; the limit is 2,500\. Use a smaller batch"):
            torch.zeros(KIB)
        gc.collect()
        torch.zeros(KIB // 4)
        assert memory.peak == 3072 and isinstance(OutOfMemory("x"), MemoryError)
    with memory_limit(1023), pytest.raises(OutOfMemory):
        torch.zeros(KIB)
    with memory_limit(1024):
        torch.zeros(KIB)
    assert kept.sum() == 0


def changed_in_place():
    tensor = torch.zeros(16, KIB // 16)
    views = [tensor.view(-1), tensor[3:5], tensor.T, tensor.unsqueeze(0)]
    tensor += 1
    tensor.mul_(2)
    tensor[2] = 5
    return tensor, views


BEFORE = torch.zeros(100 * KIB)


@pytest.mark.parametrize(
    "make, kib",
    [
        (changed_in_place, 1),  # views and changes in place cost nothing
        (lambda: [torch.zeros(KIB), torch.ones(2 * KIB)], 3),
        (lambda: [torch.zeros(KIB) for _ in range(3) if torch.zeros(KIB) is not None], 3),  # what is gone isn't counted
        (lambda: torch.zeros(16, 16).T.contiguous(), 2),
        (lambda: (torch.zeros(KIB)[:4], torch.zeros(KIB)), 2),  # a view keeps the memory of its whole
        (lambda: (BEFORE[:10], BEFORE[:KIB] + 1), 1),  # what was there before isn't counted
        (lambda: torch.arange(float(KIB)).sort(), 1 + 1 + 2),  # the input, the values, int64 indices
    ],
)
def test_what_counts(make, kib):
    with memory_limit(10_000) as memory:
        kept = make()
        assert memory.peak == 1024 * kib
    del kept
    torch.zeros(10 * KIB)  # outside there is no limit


def test_a_model_gives_the_same_answer_under_a_limit():
    from engine_cases import a_model

    ids = torch.arange(20)[None]
    expected = a_model()(ids).logits
    with memory_limit(2**24) as memory:
        assert torch.equal(a_model()(ids).logits, expected)
    assert expected.nbytes < memory.peak < 100 * expected.nbytes
