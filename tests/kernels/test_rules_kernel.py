"""Rules as a kernel: the logits of `apply_rules`, bit by bit."""

import random

import lessons_lib.kernels.triton_setup  # noqa: F401 - before Triton: decides whether kernels are compiled

# isort: split
from lessons_lib.kernels.triton_setup import kernel_device

import numpy as np
import pytest
import torch
from paged_cases import without_synchronizing

from lessons_lib.engine import rules_state as plain
from lessons_lib.engine.logits_processors import LogitsProcessor, LogitsRules
from lessons_lib.engine.rules_state import RulesState, apply_rules, rules_on
from lessons_lib.engine.sampling import choose_tokens
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.kernels import rules as kernel
from lessons_lib.measuring.compile_check import can_compile, why_not_compiled
from lessons_lib.scheduling.sequence import Sequence

DEVICE = kernel_device()
on_gpu = pytest.mark.skipif(DEVICE != "cuda", reason="there is no NVIDIA GPU here, or kernels are interpreted")


def a_case(seed, vocabulary, num_seqs=7):
    """Arguments of `apply_rules`: every kind of rule, alone and together, and rows without one."""
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    logits = torch.from_numpy(numbers.normal(size=(num_seqs, vocabulary)).astype(np.float32)) * rng.choice([1, 30])
    counts = torch.from_numpy(numbers.integers(0, 9, (num_seqs, vocabulary), np.int32)) * (torch.rand(vocabulary) < 0.5)
    biases = torch.from_numpy(numbers.normal(size=(num_seqs, vocabulary)).astype(np.float32)) * 9
    biases[:, :: rng.randint(2, 5)] = -torch.inf
    masks = torch.from_numpy(numbers.integers(-(2**31), 2**31, (num_seqs, -(-vocabulary // 32)), np.int64))
    table = torch.empty(num_seqs, plain.NUM_SETTINGS, dtype=torch.int64)
    for column in range(3):
        slots = rng.sample(range(num_seqs), num_seqs)
        table[:, column] = torch.tensor([slot if rng.random() < 0.6 else -1 for slot in slots])
    penalties = [[rng.choice([0.7, 1.0, 1.3]), rng.uniform(-2, 2), rng.uniform(-2, 2)] for _ in range(num_seqs)]
    table[:, 3:] = torch.tensor(penalties, dtype=torch.float64).view(torch.int64)
    return logits, table, counts.int(), biases, masks.int()


@pytest.mark.parametrize("seed, vocabulary, dtype", [
    (0, 1, torch.float32), (1, 31, torch.bfloat16), (2, 32, torch.float32), (3, 33, torch.float16),
    (4, 4096, torch.bfloat16), (5, 4100, torch.float32),
])  # fmt: skip
def test_logits_are_those_of_the_rules_in_pytorch(seed, vocabulary, dtype):
    logits, *rules = a_case(seed, vocabulary)
    logits = logits.to(dtype)
    found = kernel.apply_rules(logits.to(DEVICE), *(each.to(DEVICE) for each in rules))
    assert torch.equal(found.cpu(), apply_rules(logits, *rules))


def test_rows_of_other_strides_and_none():
    logits, *rules = a_case(9, 50)
    on_device = [each.to(DEVICE) for each in rules]
    for view in (logits[:1].expand(7, -1), torch.cat([logits, logits], dim=1)[:, 50:], logits.T.contiguous().T):
        assert torch.equal(kernel.apply_rules(view.to(DEVICE), *on_device).cpu(), apply_rules(view, *rules))
    nothing = torch.zeros(0, 50), torch.zeros(0, 6, dtype=torch.int64), *rules[1:]
    assert apply_rules(*nothing).shape == (0, 50)


@pytest.mark.skipif(not can_compile(), reason="this Triton can not compile for a GPU that is not there")
def test_it_compiles():
    logits, table, *memory = a_case(1, 100)
    for dtype in (torch.float32, torch.bfloat16):
        arguments = logits.to(dtype), table, table.view(torch.float64), *memory, torch.empty(7, 100), 100, 100, 4
        assert why_not_compiled(kernel.rules_kernel, *arguments, TILE=64) is None


RULES = [
    dict(repetition_penalty=1.3), dict(presence_penalty=0.7, frequency_penalty=-0.3), dict(logit_bias={3: 9.0, 4: -9}),
    dict(allowed_token_ids=[*range(0, 500, 7)]), dict(min_tokens=4), dict(repetition_penalty=0.8, min_tokens=2),
]  # fmt: skip


@pytest.mark.gpu
@on_gpu
def test_steps_with_rules_on_a_gpu_wait_for_nothing_and_choose_what_a_cpu_chooses():
    def chosen(device):
        memory, generator = RulesState(), torch.Generator().manual_seed(0)
        params = [SamplingParams(temperature=0.8, **fields) for fields in RULES]
        sequences = [Sequence(str(row), [row, 5, 5], 99, frozenset([1, 2])) for row in range(len(RULES))]
        processors = [LogitsProcessor(LogitsRules(own, memory), each) for own, each in zip(params, sequences)]
        assert rules_on(torch.device("cuda")) is kernel.apply_rules
        found = []
        for position in range(8):
            logits = (torch.randn(len(RULES), 5000, generator=generator) * 4).to(device)
            places = [position] * len(RULES)
            if position > 2 and device == "cuda":
                with without_synchronizing():
                    tokens = choose_tokens(logits, params, places, places, processors)
            else:
                tokens = choose_tokens(logits, params, places, places, processors)
            found.append(tokens.tolist())
        return found

    assert chosen("cuda") == chosen("cpu")
